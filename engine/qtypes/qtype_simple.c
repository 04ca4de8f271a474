/* qtype_simple.c - plain floats, and formats of 32 values with one scale.
 *
 *     type    bytes  layout                                   value of element i
 *     Q8_0     34    d f16, q[32] int8                        d * q
 *     Q4_0     18    d f16, n[16]                             d * (n - 8)
 *     Q4_1     20    d f16, m f16, n[16]                      d * n + m
 *     Q5_0     22    d f16, h u32, n[16]                      d * ((n | bit i of h << 4) - 16)
 *     Q5_1     24    d f16, m f16, h u32, n[16]               d * (n | bit i of h << 4) + m
 *     IQ4_NL   18    d f16, n[16]                             d * table[n]
 *
 * n[16] holds element j in the low and element j + 16 in the high nibble of byte j. */
#include "qtypes/codecs.h"

#include <math.h>

enum { BLOCK = 32, HALF = 16 };

/* ---- plain floats -------------------------------------------------------------------------------- */

void dw_decode_f32(const void *src, float *dst, size_t n) { memcpy(dst, src, n * sizeof *dst); }

void dw_encode_f32(const float *src, void *dst, size_t n, const float *weight) {
    (void)weight;
    memcpy(dst, src, n * sizeof *src);
}

void dw_decode_f16(const void *src, float *dst, size_t n) {
    const uint8_t *restrict h = src;
    float *restrict y = dst;
    for (size_t i = 0; i < n; i++) y[i] = load_half(h + 2 * i);
}

void dw_encode_f16(const float *src, void *dst, size_t n, const float *weight) {
    (void)weight;
    const float *restrict x = src;
    uint8_t *restrict h = dst;
    for (size_t i = 0; i < n; i++) store_half(h + 2 * i, x[i]);
}

void dw_decode_bf16(const void *src, float *dst, size_t n) {
    const uint8_t *restrict h = src;
    float *restrict y = dst;
    for (size_t i = 0; i < n; i++) y[i] = dw_bf16_to_f32(load16(h + 2 * i));
}

void dw_encode_bf16(const float *src, void *dst, size_t n, const float *weight) {
    (void)weight;
    const float *restrict x = src;
    uint8_t *restrict h = dst;
    for (size_t i = 0; i < n; i++) store16(h + 2 * i, dw_f32_to_bf16_inline(x[i]));
}

/* ---- decoders of 32 values ------------------------------------------------------------------------ */

void dw_decode_q8_0(const void *src, float *dst, size_t n) {
    const uint8_t *restrict b = src;
    float *restrict y = dst;
    for (const float *end = y + n; y < end; y += BLOCK, b += 34) {
        const float d = load_half(b);
        for (int i = 0; i < BLOCK; i++) y[i] = d * (float)(int8_t)b[2 + i];
    }
}

void dw_decode_q4_0(const void *src, float *dst, size_t n) {
    const uint8_t *restrict b = src;
    float *restrict y = dst;
    for (const float *end = y + n; y < end; y += BLOCK, b += 18) {
        const float d = load_half(b);
        const uint8_t *restrict nibbles = b + 2;
        for (int j = 0; j < HALF; j++) {
            y[j] = d * (float)((nibbles[j] & 15) - 8);
            y[j + HALF] = d * (float)((nibbles[j] >> 4) - 8);
        }
    }
}

void dw_decode_q4_1(const void *src, float *dst, size_t n) {
    const uint8_t *restrict b = src;
    float *restrict y = dst;
    for (const float *end = y + n; y < end; y += BLOCK, b += 20) {
        const float d = load_half(b), m = load_half(b + 2);
        const uint8_t *restrict nibbles = b + 4;
        for (int j = 0; j < HALF; j++) {
            y[j] = d * (float)(nibbles[j] & 15) + m;
            y[j + HALF] = d * (float)(nibbles[j] >> 4) + m;
        }
    }
}

/* The 32 five-bit codes of Q5_0 and Q5_1. */
static void load_codes5(const uint8_t *high, const uint8_t *nibbles, int code[BLOCK]) {
    const uint32_t h = dw_le32(high);
    for (int j = 0; j < HALF; j++) {
        code[j] = (nibbles[j] & 15) | (int)(h >> j & 1) << 4;
        code[j + HALF] = nibbles[j] >> 4 | (int)(h >> (j + HALF) & 1) << 4;
    }
}

void dw_decode_q5_0(const void *src, float *dst, size_t n) {
    const uint8_t *b = src;
    for (const float *end = dst + n; dst < end; dst += BLOCK, b += 22) {
        const float d = load_half(b);
        int code[BLOCK];
        load_codes5(b + 2, b + 6, code);
        for (int i = 0; i < BLOCK; i++) dst[i] = d * (float)(code[i] - 16);
    }
}

void dw_decode_q5_1(const void *src, float *dst, size_t n) {
    const uint8_t *b = src;
    for (const float *end = dst + n; dst < end; dst += BLOCK, b += 24) {
        const float d = load_half(b), m = load_half(b + 2);
        int code[BLOCK];
        load_codes5(b + 4, b + 8, code);
        for (int i = 0; i < BLOCK; i++) dst[i] = d * (float)code[i] + m;
    }
}

static const float iq4_nl_table[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

void dw_decode_iq4_nl(const void *src, float *dst, size_t n) {
    const uint8_t *b = src;
    for (const float *end = dst + n; dst < end; dst += BLOCK, b += 18) {
        const float d = load_half(b);
        for (int j = 0; j < HALF; j++) {
            dst[j] = d * iq4_nl_table[b[2 + j] & 15];
            dst[j + HALF] = d * iq4_nl_table[b[2 + j] >> 4];
        }
    }
}

/* ---- encoders without a search -------------------------------------------------------------------- */

/* Toward zero.  What no int holds (a scale's inverse overflowed, or a NaN came in) becomes 0 by decision. */
static inline int truncated(float v) { return fabsf(v) < 0x1p31f ? (int)v : 0; }

/* The first element of largest magnitude, with its sign. */
static inline float extreme(const float *x, int n) {
    float magnitude = 0, value = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > magnitude) {
            magnitude = fabsf(x[i]);
            value = x[i];
        }
    return value;
}

static inline float inverse(float d) { return d != 0 ? 1 / d : 0; }

void dw_encode_q8_0(const float *src, void *dst, size_t n, const float *weight) {
    (void)weight;
    uint8_t *b = dst;
    for (const float *x = src, *end = src + n; x < end; x += BLOCK, b += 34) {
        const float d = fabsf(extreme(x, BLOCK)) / 127, id = inverse(d);
        store_half(b, d);
        for (int i = 0; i < BLOCK; i++) b[2 + i] = (uint8_t)truncated(roundf(x[i] * id));
    }
}

static inline int at_most(int limit, int v) { return v < limit ? v : limit; }

static void store_nibbles(uint8_t nibbles[HALF], const uint8_t code[BLOCK]) {
    for (int j = 0; j < HALF; j++) nibbles[j] = (uint8_t)((code[j] & 15) | code[j + HALF] << 4);
}

void dw_encode_q4_0(const float *src, void *dst, size_t n, const float *weight) {
    (void)weight;
    uint8_t *b = dst;
    for (const float *x = src, *end = src + n; x < end; x += BLOCK, b += 18) {
        const float d = extreme(x, BLOCK) / -8, id = inverse(d);
        uint8_t code[BLOCK];
        for (int i = 0; i < BLOCK; i++) code[i] = (uint8_t)at_most(15, truncated(x[i] * id + 8.5f));
        store_half(b, d);
        store_nibbles(b + 2, code);
    }
}
