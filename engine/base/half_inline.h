/* half_inline.h - IEEE binary16 and bfloat16 without branches, so that loops over rows become vector code.
 *
 * half.c gives the same functions as calls; programs with one value to convert use those.  Plain integer and
 * exact F32 steps only: the results do not depend on compiler, rounding hardware or denormal mode. */
#ifndef DW_HALF_INLINE_H
#define DW_HALF_INLINE_H

#include <stdint.h>
#include <string.h>

static inline uint32_t dw_float_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float dw_bits_float(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t dw_choose(int condition, uint32_t yes, uint32_t no) {
    return no ^ ((yes ^ no) & (0u - (uint32_t)condition));
}

static inline float dw_f16_to_f32_inline(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fff;
    // A normal number's exponent grows by 112; that of infinity and NaN by 224, to the largest exponent.
    const uint32_t moved = (magnitude << 13) + (112u << 23) + dw_choose(magnitude >= 0x7c00, 112u << 23, 0);
    const uint32_t small = dw_float_bits((float)(int32_t)magnitude * 0x1p-24f); // zero and subnormals, exact
    return dw_bits_float(sign | dw_choose(magnitude < 0x400, small, moved));
}

static inline uint16_t dw_f32_to_f16_inline(float f) {
    const uint32_t u = dw_float_bits(f), magnitude = u & 0x7fffffff, sign = u >> 16 & 0x8000;
    // Below 2^-14 results are multiples of 2^-24, and so are F32 numbers just above 0.5: adding 0.5 rounds.
    const uint32_t small = dw_float_bits(dw_bits_float(magnitude) + 0.5f) - 0x3f000000;
    const uint32_t normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13;
    const uint32_t large = dw_choose(magnitude > 0x7f800000, 0x7e00, 0x7c00); // NaN; 65520 and above
    const uint32_t finite = dw_choose(magnitude < 0x38800000, small, normal);
    return (uint16_t)(sign | dw_choose(magnitude < 0x477ff000, finite, large));
}

static inline uint16_t dw_f32_to_bf16_inline(float f) {
    const uint32_t u = dw_float_bits(f);
    const uint32_t quiet = u >> 16 | 64, rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    return (uint16_t)dw_choose((u & 0x7fffffff) > 0x7f800000, quiet, rounded);
}

#endif
