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
#include "qtypes/scale_search.h"

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
        for (int j = 0; j < HALF; j++) y[j] = d * (float)((nibbles[j] & 15) - 8);
        for (int j = 0; j < HALF; j++) y[j + HALF] = d * (float)((nibbles[j] >> 4) - 8);
    }
}

void dw_decode_q4_1(const void *src, float *dst, size_t n) {
    const uint8_t *restrict b = src;
    float *restrict y = dst;
    for (const float *end = y + n; y < end; y += BLOCK, b += 20) {
        const float d = load_half(b), m = load_half(b + 2);
        const uint8_t *restrict nibbles = b + 4;
        for (int j = 0; j < HALF; j++) y[j] = d * (float)(nibbles[j] & 15) + m;
        for (int j = 0; j < HALF; j++) y[j + HALF] = d * (float)(nibbles[j] >> 4) + m;
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

const float dw_iq4_nl_table[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

void dw_decode_iq4_nl(const void *src, float *dst, size_t n) {
    const uint8_t *b = src;
    for (const float *end = dst + n; dst < end; dst += BLOCK, b += 18) {
        const float d = load_half(b);
        for (int j = 0; j < HALF; j++) {
            dst[j] = d * dw_iq4_nl_table[b[2 + j] & 15];
            dst[j + HALF] = d * dw_iq4_nl_table[b[2 + j] >> 4];
        }
    }
}

/* ---- encoders ------------------------------------------------------------------------------------- */

/* What no int holds (a scale's inverse overflowed, or a NaN came in) becomes 0 by decision. */
static inline float held(float v) { return fabsf(v) < 0x1p31f ? v : 0; }

/* Half away from zero.  The rest is exact: no value has both a fraction and more than 23 bits before it. */
static inline int rounded(float v) {
    const int whole = (int)held(v);
    const float rest = held(v) - (float)whole;
    return whole + (rest >= 0.5f) - (rest <= -0.5f);
}

static inline float inverse(float d) { return d != 0 ? 1 / d : 0; }

void dw_encode_q8_0(const float *src, void *dst, size_t n, const float *weight) {
    (void)weight;
    uint8_t *b = dst;
    for (const float *x = src, *end = src + n; x < end; x += BLOCK, b += 34) {
        const float d = fabsf(dw_extreme(x, BLOCK)) / 127, id = inverse(d);
        store_half(b, d);
        for (int i = 0; i < BLOCK; i++) b[2 + i] = (uint8_t)rounded(x[i] * id);
    }
}

static void store_nibbles(uint8_t nibbles[HALF], const uint8_t code[BLOCK]) {
    for (int j = 0; j < HALF; j++) nibbles[j] = (uint8_t)((code[j] & 15) | code[j + HALF] << 4);
}

static void store_high_bits(uint8_t high[4], const uint8_t code[BLOCK]) {
    for (int k = 0; k < 4; k++) {
        high[k] = 0;
        for (int i = 0; i < 8; i++) high[k] = (uint8_t)(high[k] | (code[8 * k + i] >> 4 & 1) << i);
    }
}

/* Scale, minimum and codes of a block, however they were found, as a type lays them out. */
typedef void store_fn(uint8_t *b, float d, float m, const uint8_t code[BLOCK]);

static void store_q4_0(uint8_t *b, float d, float m, const uint8_t code[BLOCK]) {
    (void)m;
    store_half(b, d);
    store_nibbles(b + 2, code);
}

static void store_q4_1(uint8_t *b, float d, float m, const uint8_t code[BLOCK]) {
    store_half(b, d);
    store_half(b + 2, m);
    store_nibbles(b + 4, code);
}

static void store_q5_0(uint8_t *b, float d, float m, const uint8_t code[BLOCK]) {
    (void)m;
    store_half(b, d);
    store_high_bits(b + 2, code);
    store_nibbles(b + 6, code);
}

static void store_q5_1(uint8_t *b, float d, float m, const uint8_t code[BLOCK]) {
    store_half(b, d);
    store_half(b + 2, m);
    store_high_bits(b + 4, code);
    store_nibbles(b + 8, code);
}

/* Symmetric: the extreme value becomes code 0, that is -nmax times the (signed) scale. */
static inline void encode_symmetric(const float *x, uint8_t *b, size_t n, int nmax, size_t bytes, store_fn *store) {
    for (const float *end = x + n; x < end; x += BLOCK, b += bytes) {
        const float d = dw_extreme(x, BLOCK) / (float)-nmax, id = inverse(d);
        uint8_t code[BLOCK];
        for (int i = 0; i < BLOCK; i++) {
            const int q = (int)held(x[i] * id + ((float)nmax + 0.5f));
            code[i] = (uint8_t)(q < 2 * nmax ? q : 2 * nmax - 1);
        }
        store(b, d, 0, code);
    }
}

/* Affine: the smallest value becomes code 0, the largest nmax. */
static inline void encode_affine(const float *x, uint8_t *b, size_t n, int nmax, size_t bytes, store_fn *store) {
    for (const float *end = x + n; x < end; x += BLOCK, b += bytes) {
        const dw_range range = dw_range_of(x, BLOCK);
        const float min = range.min, d = (range.max - min) / (float)nmax, id = inverse(d);
        uint8_t code[BLOCK];
        for (int i = 0; i < BLOCK; i++) {
            const int q = (int)held((x[i] - min) * id + 0.5f);
            code[i] = (uint8_t)(q < nmax ? q : nmax);
        }
        store(b, d, min, code);
    }
}

/* ---- encoders with importance weights -------------------------------------------------------------- */

enum { BATCH = 4 }; // blocks searched side by side

static void encode_symmetric_weighted(const float *x, uint8_t *b, size_t n, const float *weight, int nmax, size_t bytes,
                                      store_fn *store) {
    const float variance = dw_sum_of_squares(x, n) / (float)n;
    for (size_t left = n / BLOCK; left;) {
        const int blocks = left < BATCH ? (int)left : BATCH, values = blocks * BLOCK;
        float w[BATCH * BLOCK], d[BATCH];
        uint8_t code[BATCH * BLOCK];
        dw_weigh(x, weight, variance, (size_t)values, w);
        dw_search_symmetric(blocks, BLOCK, nmax, x, w, d, code);
        for (int k = 0; k < blocks; k++, b += bytes) store(b, d[k], 0, code + k * BLOCK);
        x += values, weight += values, left -= (size_t)blocks;
    }
}

static void encode_affine_weighted(const float *x, uint8_t *b, size_t n, const float *weight, int nmax, size_t bytes,
                                   store_fn *store) {
    const float variance = dw_sum_of_squares(x, n) / (float)n;
    const dw_affine_search how = {nmax, -0.9f, 0.05f, 36, false};
    for (size_t left = n / BLOCK; left;) {
        const int blocks = left < BATCH ? (int)left : BATCH, values = blocks * BLOCK;
        float w[BATCH * BLOCK], d[BATCH], depth[BATCH];
        uint8_t code[BATCH * BLOCK];
        dw_weigh(x, weight, variance, (size_t)values, w);
        dw_search_affine(how, blocks, BLOCK, x, w, d, depth, code);
        for (int k = 0; k < blocks; k++, b += bytes) store(b, d[k], -depth[k], code + k * BLOCK);
        x += values, weight += values, left -= (size_t)blocks;
    }
}

void dw_encode_q4_0(const float *src, void *dst, size_t n, const float *weight) {
    if (weight) encode_symmetric_weighted(src, dst, n, weight, 8, 18, store_q4_0);
    else encode_symmetric(src, dst, n, 8, 18, store_q4_0);
}

void dw_encode_q4_1(const float *src, void *dst, size_t n, const float *weight) {
    if (weight) encode_affine_weighted(src, dst, n, weight, 15, 20, store_q4_1);
    else encode_affine(src, dst, n, 15, 20, store_q4_1);
}

void dw_encode_q5_0(const float *src, void *dst, size_t n, const float *weight) {
    if (weight) encode_symmetric_weighted(src, dst, n, weight, 16, 22, store_q5_0);
    else encode_symmetric(src, dst, n, 16, 22, store_q5_0);
}

void dw_encode_q5_1(const float *src, void *dst, size_t n, const float *weight) {
    if (weight) encode_affine_weighted(src, dst, n, weight, 31, 24, store_q5_1);
    else encode_affine(src, dst, n, 31, 24, store_q5_1);
}

/* Code of the nearest table value; between two, the upper. */
static uint8_t table_code(float v) {
    uint8_t code = 15;
    for (int t = 0; t < 15; t++) code = (uint8_t)(code - (v < (dw_iq4_nl_table[t] + dw_iq4_nl_table[t + 1]) / 2));
    return code;
}

void dw_encode_iq4_nl(const float *src, void *dst, size_t n, const float *weight) {
    uint8_t *b = dst;
    const float *x = src;
    for (size_t left = n / BLOCK; left;) {
        const int blocks = left < BATCH ? (int)left : BATCH, values = blocks * BLOCK;
        float w[BATCH * BLOCK], d[BATCH];
        if (weight) {
            for (int i = 0; i < values; i += BLOCK)
                dw_weigh(x + i, weight + i, 2 * dw_sum_of_squares(x + i, BLOCK) / BLOCK, BLOCK, w + i);
            weight += values;
        }
        dw_search_table(blocks, BLOCK, x, weight ? w : NULL, d);
        for (int k = 0; k < blocks; k++, x += BLOCK, b += 18) {
            const float id = inverse(d[k]);
            uint8_t code[BLOCK];
            for (int i = 0; i < BLOCK; i++) code[i] = table_code(id * x[i]);
            store_q4_0(b, d[k], 0, code);
        }
        left -= (size_t)blocks;
    }
}
