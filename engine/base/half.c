/* half.c - IEEE binary16 and bfloat16, in plain integer arithmetic. */
#include "base/base.h"

#include <string.h>

static uint32_t bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

uint16_t dw_f32_to_bf16(float f) {
    const uint32_t u = bits(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 64); // quiet NaN
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

float dw_f16_to_f32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
    if (exponent == 31) return from_bits(sign | 0x7f800000 | mantissa << 13);
    if (exponent) return from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    const float small = (float)mantissa * 0x1p-24f; // zero and subnormals, exact
    return sign ? -small : small;
}

uint16_t dw_f32_to_f16(float f) {
    const uint32_t u = bits(f), magnitude = u & 0x7fffffff;
    const uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00); // 65520 and above
    if (magnitude < 0x38800000) {                                 // below 2^-14: multiples of 2^-24
        const float scaled = from_bits(magnitude) * 0x1p24f;      // exact
        const uint32_t whole = (uint32_t)scaled;
        const float rest = scaled - (float)whole;
        return (uint16_t)(sign | (whole + (rest > 0.5f || (rest == 0.5f && (whole & 1)))));
    }
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (rounded - 0x38000000) >> 13);
}
