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
#include "qtypes/layouts.h"
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

/* Nothing to fit: a code is the number's bits. */
static void fit_nothing(const float *x, const float *importance, float mean_square, dw_block_fit *f) {
    (void)x, (void)importance, (void)mean_square, (void)f;
}

static uint32_t round_f32(const dw_block_fit *f, int i, float x, float *value) {
    (void)f, (void)i;
    *value = x;
    return dw_float_bits(x);
}

static uint32_t round_f16(const dw_block_fit *f, int i, float x, float *value) {
    (void)f, (void)i;
    const uint16_t h = dw_f32_to_f16_inline(x);
    *value = dw_f16_to_f32_inline(h);
    return h;
}

static uint32_t round_bf16(const dw_block_fit *f, int i, float x, float *value) {
    (void)f, (void)i;
    const uint16_t h = dw_f32_to_bf16_inline(x);
    *value = dw_bf16_to_f32(h);
    return h;
}

static void pack_32(const dw_block_fit *f, const uint32_t *code, void *to) {
    (void)f;
    memcpy(to, code, 4);
}

static void pack_16(const dw_block_fit *f, const uint32_t *code, void *to) {
    (void)f;
    store16(to, (uint16_t)*code);
}

const dw_coder dw_coder_f32 = {fit_nothing, round_f32, pack_32};
const dw_coder dw_coder_f16 = {fit_nothing, round_f16, pack_16};
const dw_coder dw_coder_bf16 = {fit_nothing, round_bf16, pack_16};

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

const float dw_iq4_nl_table[16] = {DW_IQ4_NL_VALUES};

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

/* ---- encoders of 32 values ----------------------------------------------------------------------------- */

/* v, or 0 if no int holds it (NaN, or the inverse of a scale overflowed). */
static inline float held(float v) { return fabsf(v) < 0x1p31f ? v : 0; }

/* Rounds half away from zero; the subtraction is exact. */
static inline int rounded(float v) {
    const int whole = (int)held(v);
    const float rest = held(v) - (float)whole;
    return whole + (rest >= 0.5f) - (rest <= -0.5f);
}

static inline float inverse(float d) { return d != 0 ? 1 / d : 0; }

static void fit_q8_0(const float *x, const float *importance, float mean_square, int n_blocks, dw_block_fit *f) {
    (void)importance, (void)mean_square;
    for (int k = 0; k < n_blocks; k++) {
        f[k].d = fabsf(dw_extreme(x + k * BLOCK, BLOCK)) / 127;
        f[k].inverse = inverse(f[k].d);
        f[k].has_codes = false;
    }
}

static inline int code_q8_0(const dw_block_fit *f, int group, int i, float x, bool any) {
    (void)group, (void)i;
    return rounded(any ? limited(x * f->inverse, -128, 127) : x * f->inverse);
}

static float value_q8_0(const dw_block_fit *f, int i, int code) {
    (void)i;
    return in_half(f->d) * (float)(int8_t)code;
}

static inline void pack_q8_0(const dw_block_fit *f, const uint8_t *code, uint8_t *b) {
    store_half(b, f->d);
    memcpy(b + 2, code, BLOCK);
}

/* ---- symmetric: Q4_0, Q5_0 --------------------------------------------------------------------------- */

enum { SIDE = 4 }; // blocks that one search handles together

/* Without importances the value of largest magnitude becomes code 0, that is -nmax times the (signed) scale. */
static inline void fit_symmetric(int nmax, const float *x, const float *importance, float mean_square, int n_blocks,
                                 dw_block_fit *f) {
    if (!importance) {
        for (int k = 0; k < n_blocks; k++) {
            f[k].d = dw_extreme(x + k * BLOCK, BLOCK) / (float)-nmax;
            f[k].inverse = inverse(f[k].d);
            f[k].has_codes = false;
        }
        return;
    }
    float w[SIDE * BLOCK], d[SIDE], to_code[SIDE];
    uint8_t code[SIDE * BLOCK];
    dw_weigh(x, importance, mean_square, (size_t)(n_blocks * BLOCK), w);
    dw_search_symmetric(&(dw_groups){n_blocks, BLOCK, x, w, .scale = d, .inverse = to_code, .code = code}, nmax);
    for (int k = 0; k < n_blocks; k++) {
        f[k].d = d[k];
        f[k].inverse = to_code[k];
        f[k].has_codes = true;
        memcpy(f[k].code, code + k * BLOCK, BLOCK);
    }
}

static inline int code_symmetric(int nmax, const dw_block_fit *f, int i, float x, bool any) {
    const float v = x * f->inverse, l = any ? limited(v, (float)-nmax, (float)(nmax - 1)) : v;
    if (!f->has_codes) return clamp((int)held(l + ((float)nmax + 0.5f)), 0, 2 * nmax - 1);
    return f->inverse == 0 ? f->code[i] : clamp(nearest(l), -nmax, nmax - 1) + nmax;
}

static inline float value_symmetric(int nmax, const dw_block_fit *f, int code) {
    return in_half(f->d) * (float)(code - nmax);
}

/* ---- affine: Q4_1, Q5_1 ------------------------------------------------------------------------------ */

/* Without importances the smallest value becomes code 0, the largest nmax. */
static inline void fit_affine(int nmax, const float *x, const float *importance, float mean_square, int n_blocks,
                              dw_block_fit *f) {
    if (!importance) {
        for (int k = 0; k < n_blocks; k++) {
            const dw_range range = dw_range_of(x + k * BLOCK, BLOCK);
            f[k].m = f[k].base = range.min;
            f[k].d = (range.max - range.min) / (float)nmax;
            f[k].inverse = inverse(f[k].d);
            f[k].has_codes = false;
        }
        return;
    }
    const dw_affine_search how = {nmax, -0.9f, 0.05f, 36, false};
    float w[SIDE * BLOCK], d[SIDE], depth[SIDE], to_code[SIDE], base[SIDE];
    uint8_t code[SIDE * BLOCK];
    dw_weigh(x, importance, mean_square, (size_t)(n_blocks * BLOCK), w);
    dw_search_affine(&(dw_groups){n_blocks, BLOCK, x, w, d, depth, to_code, base, code}, how);
    for (int k = 0; k < n_blocks; k++) {
        f[k].d = d[k];
        f[k].m = -depth[k];
        f[k].inverse = to_code[k];
        f[k].base = base[k];
        f[k].has_codes = true;
        memcpy(f[k].code, code + k * BLOCK, BLOCK);
    }
}

static inline int code_affine(int nmax, const dw_block_fit *f, int i, float x, bool any) {
    const float v = (x - f->base) * f->inverse, l = any ? limited(v, 0, (float)nmax) : v;
    if (!f->has_codes) return clamp((int)held(l + 0.5f), 0, nmax);
    return f->inverse == 0 ? f->code[i] : clamp(nearest(l), 0, nmax);
}

static inline float value_affine(const dw_block_fit *f, int code) {
    return in_half(f->d) * (float)code + in_half(f->m);
}

/* ---- IQ4_NL ------------------------------------------------------------------------------------------ */

static void fit_iq4_nl(const float *x, const float *importance, float mean_square, int n_blocks, dw_block_fit *f) {
    (void)mean_square;
    float w[SIDE * BLOCK], d[SIDE];
    for (int i = 0; importance && i < n_blocks * BLOCK; i += BLOCK)
        dw_weigh(x + i, importance + i, 2 * dw_sum_of_squares(x + i, BLOCK) / BLOCK, BLOCK, w + i);
    dw_search_table(&(dw_groups){n_blocks, BLOCK, x, importance ? w : NULL, .scale = d});
    for (int k = 0; k < n_blocks; k++) {
        f[k].d = d[k];
        f[k].inverse = inverse(d[k]);
        f[k].has_codes = false;
    }
}

/* Code of the nearest table value; halfway between two, the upper one. */
static inline int code_iq4_nl(const dw_block_fit *f, int group, int i, float x, bool any) {
    (void)group, (void)i, (void)any;
    const float v = f->inverse * x;
    int code = 15;
    for (int t = 0; t < 15; t++) code -= v < (dw_iq4_nl_table[t] + dw_iq4_nl_table[t + 1]) / 2;
    return code;
}

static float value_iq4_nl(const dw_block_fit *f, int i, int code) {
    (void)i;
    return in_half(f->d) * dw_iq4_nl_table[code];
}

/* ---- blocks as each type lays them out ----------------------------------------------------------------- */

static inline void store_nibbles(uint8_t *nibbles, const uint8_t *code) {
    for (int j = 0; j < HALF; j++) nibbles[j] = (uint8_t)((code[j] & 15) | code[j + HALF] << 4);
}

static inline void store_high_bits(uint8_t *high, const uint8_t *code) {
    for (int k = 0; k < 4; k++) {
        high[k] = 0;
        for (int i = 0; i < 8; i++) high[k] = (uint8_t)(high[k] | (code[8 * k + i] >> 4 & 1) << i);
    }
}

static inline void pack_q4_0(const dw_block_fit *f, const uint8_t *code, uint8_t *b) {
    store_half(b, f->d);
    store_nibbles(b + 2, code);
}

static inline void pack_q4_1(const dw_block_fit *f, const uint8_t *code, uint8_t *b) {
    store_half(b, f->d);
    store_half(b + 2, f->m);
    store_nibbles(b + 4, code);
}

static inline void pack_q5_0(const dw_block_fit *f, const uint8_t *code, uint8_t *b) {
    store_half(b, f->d);
    store_high_bits(b + 2, code);
    store_nibbles(b + 6, code);
}

static inline void pack_q5_1(const dw_block_fit *f, const uint8_t *code, uint8_t *b) {
    store_half(b, f->d);
    store_half(b + 2, f->m);
    store_high_bits(b + 4, code);
    store_nibbles(b + 8, code);
}

/* ---- the types ------------------------------------------------------------------------------------------ */

#define STEPS_SYMMETRIC(suffix, nmax)                                                                                  \
    static void fit_##suffix(const float *x, const float *w, float ms, int n, dw_block_fit *f) {                       \
        fit_symmetric(nmax, x, w, ms, n, f);                                                                           \
    }                                                                                                                  \
    static inline int code_##suffix(const dw_block_fit *f, int g, int i, float x, bool any) {                          \
        return (void)g, code_symmetric(nmax, f, i, x, any);                                                            \
    }                                                                                                                  \
    static float value_##suffix(const dw_block_fit *f, int i, int code) {                                              \
        return (void)i, value_symmetric(nmax, f, code);                                                                \
    }
#define STEPS_AFFINE(suffix, nmax)                                                                                     \
    static void fit_##suffix(const float *x, const float *w, float ms, int n, dw_block_fit *f) {                       \
        fit_affine(nmax, x, w, ms, n, f);                                                                              \
    }                                                                                                                  \
    static inline int code_##suffix(const dw_block_fit *f, int g, int i, float x, bool any) {                          \
        return (void)g, code_affine(nmax, f, i, x, any);                                                               \
    }                                                                                                                  \
    static float value_##suffix(const dw_block_fit *f, int i, int code) { return (void)i, value_affine(f, code); }
STEPS_SYMMETRIC(q4_0, 8)
STEPS_SYMMETRIC(q5_0, 16)
STEPS_AFFINE(q4_1, 15)
STEPS_AFFINE(q5_1, 31)

#define TYPE(suffix, bytes, by_row)                                                                                    \
    static const coding steps_##suffix = {BLOCK,        bytes,          BLOCK,       SIDE, by_row, fit_##suffix,       \
                                          code_##suffix, value_##suffix, pack_##suffix};                               \
    DEFINE_ENCODER(suffix, steps_##suffix)
#define pack_iq4_nl pack_q4_0
TYPE(q8_0, 34, false)
TYPE(q4_0, 18, true)
TYPE(q4_1, 20, true)
TYPE(q5_0, 22, true)
TYPE(q5_1, 24, true)
TYPE(iq4_nl, 18, false)
