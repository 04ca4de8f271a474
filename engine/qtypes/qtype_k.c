/* qtype_k.c - formats of 256 values with a quantized scale per sub-block.
 *
 * Sub-blocks: k = i / 16 of Q2_K, Q3_K, Q6_K; s = i / 32 of Q4_K, Q5_K.  With part = i / 128, shift
 * j = i % 128 / 32 and l = i % 32:
 *
 *     type  bytes  layout (offset)                                      value of element i
 *     Q2_K    84   scales[16] 0, qs[64] 16, d 80, dmin 82               (d*(scales[k]&15))*q - dmin*(scales[k]>>4)
 *     Q3_K   110   hmask[32] 0, qs[64] 32, scales[12] 96, d 108         (d*scale(k)) * ((q | h<<2) - 4)
 *     Q4_K   144   d 0, dmin 2, scales[12] 4, qs[128] 16                (d*scale(s))*q - dmin*min(s)
 *     Q5_K   176   d 0, dmin 2, scales[12] 4, qh[32] 16, qs[128] 48     as Q4_K, q | bit s of qh[l] << 4
 *     Q6_K   210   ql[128] 0, qh[64] 128, scales[16] int8 192, d 208    (d*scales[k]) * ((lo | hi<<4) - 32)
 *
 * Q2_K, Q3_K: q = 2 bits at 2j of qs[32 part + l]; h = bit i/32 of hmask[l].  Q4_K, Q5_K: q = nibble s&1 of
 * qs[32 (s/2) + l].  Q6_K: lo = nibble j>>1 of ql[64 part + 32 (j&1) + l], hi = 2 bits at 2j of qh[32 part + l].
 * Every formula is evaluated in F32 in the order written. */
#include "qtypes/codecs.h"
#include "qtypes/layouts.h"
#include "qtypes/scale_search.h"

#include <math.h>

enum { SUPER = 256 };

/* ---- decoders ------------------------------------------------------------------------------------- */

/* Two sub-blocks of 16 in one loop, which compilers turn into vector code. */
static inline void scale_pair(const int8_t code[32], const float scale[2], const float min[2], float *y) {
    for (int l = 0; l < 16; l++) y[l] = scale[0] * (float)code[l] - min[0];
    for (int l = 16; l < 32; l++) y[l] = scale[1] * (float)code[l] - min[1];
}

static const float no_min[2] = {0, 0}; // x - 0 is x, for -0 too

void dw_decode_q2_k(const void *src, float *dst, size_t n) {
    const uint8_t *b = src;
    float *y = dst;
    for (const float *end = y + n; y < end; b += 84) {
        const float d = load_half(b + 80), dmin = load_half(b + 82);
        for (int s = 0; s < 8; s++, y += 32) {
            const uint8_t *qs = b + 16 + 32 * (s / 4), *pair = b + 2 * s;
            const int shift = 2 * (s & 3);
            const float scale[2] = {d * (float)(pair[0] & 15), d * (float)(pair[1] & 15)};
            const float min[2] = {dmin * (float)(pair[0] >> 4), dmin * (float)(pair[1] >> 4)};
            int8_t code[32];
            for (int l = 0; l < 32; l++) code[l] = (int8_t)(qs[l] >> shift & 3);
            scale_pair(code, scale, min, y);
        }
    }
}

/* Byte i of a word of scales or minima. */
static inline float byte_of(uint64_t word, int i) { return (float)(int)(word >> 8 * i & 0xff); }

void dw_decode_q3_k(const void *src, float *dst, size_t n) {
    const uint8_t *b = src;
    float *y = dst;
    for (const float *end = y + n; y < end; b += 110) {
        const float d = load_half(b + 108);
        uint64_t scales[2];
        dw_unpack_q3_scales(b + 96, &scales[0], &scales[1]);
        for (int s = 0; s < 8; s++, y += 32) {
            const uint8_t *hmask = b, *qs = b + 32 + 32 * (s / 4);
            const int shift = 2 * (s & 3);
            const float scale[2] = {d * (byte_of(scales[s / 4], 2 * s % 8) - 32),
                                    d * (byte_of(scales[s / 4], 2 * s % 8 + 1) - 32)};
            int8_t code[32];
            for (int l = 0; l < 32; l++) code[l] = (int8_t)(((qs[l] >> shift & 3) | (hmask[l] >> s & 1) << 2) - 4);
            scale_pair(code, scale, no_min, y);
        }
    }
}

void dw_decode_q4_k(const void *src, float *dst, size_t n) {
    const uint8_t *restrict b = src;
    float *restrict y = dst;
    for (const float *end = y + n; y < end; b += 144) {
        const float d = load_half(b), dmin = load_half(b + 2);
        uint64_t scales, mins;
        dw_unpack_scales_mins(b + 4, &scales, &mins);
        for (int s = 0; s < 8; s++, y += 32) {
            const uint8_t *restrict qs = b + 16 + 32 * (s / 2);
            const int shift = 4 * (s & 1);
            const float scale = d * byte_of(scales, s), min = dmin * byte_of(mins, s);
            for (int l = 0; l < 32; l++) y[l] = scale * (float)(qs[l] >> shift & 15) - min;
        }
    }
}

void dw_decode_q5_k(const void *src, float *dst, size_t n) {
    const uint8_t *restrict b = src;
    float *restrict y = dst;
    for (const float *end = y + n; y < end; b += 176) {
        const float d = load_half(b), dmin = load_half(b + 2);
        uint64_t scales, mins;
        dw_unpack_scales_mins(b + 4, &scales, &mins);
        for (int s = 0; s < 8; s++, y += 32) {
            const uint8_t *restrict qh = b + 16, *restrict qs = b + 48 + 32 * (s / 2);
            const int shift = 4 * (s & 1);
            const float scale = d * byte_of(scales, s), min = dmin * byte_of(mins, s);
            for (int l = 0; l < 32; l++) y[l] = scale * (float)((qs[l] >> shift & 15) | (qh[l] >> s & 1) << 4) - min;
        }
    }
}

void dw_decode_q6_k(const void *src, float *dst, size_t n) {
    const uint8_t *b = src;
    float *y = dst;
    for (const float *end = y + n; y < end; b += 210) {
        const float d = load_half(b + 208);
        for (int s = 0; s < 8; s++, y += 32) {
            const int part = s / 4, j = s % 4, low = 4 * (j >> 1), high = 2 * j;
            const uint8_t *ql = b + 64 * part + 32 * (j & 1), *qh = b + 128 + 32 * part, *pair = b + 192 + 2 * s;
            const float scale[2] = {d * (float)(int8_t)pair[0], d * (float)(int8_t)pair[1]};
            int8_t code[32];
            for (int l = 0; l < 32; l++) code[l] = (int8_t)(((ql[l] >> low & 15) | (qh[l] >> high & 3) << 4) - 32);
            scale_pair(code, scale, no_min, y);
        }
    }
}

/* ---- encoders ------------------------------------------------------------------------------------- */

/* Weights of a super-block's values, and their sums over sub-blocks of len values. */
static void weigh(const float *x, const float *importance, float variance, int len, float w[SUPER], float *sums) {
    dw_weigh(x, importance, variance, SUPER, w);
    for (int k = 0; k < SUPER / len; k++) {
        sums[k] = 0;
        for (int i = 0; i < len; i++) sums[k] += w[k * len + i];
    }
}

/* Codes 0 .. nmax of non-negative values when the largest gets nmax; returns the scale. */
static float spread(int n, int nmax, const float *x, uint8_t *code) {
    float max = 0;
    for (int i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    const float inverse = max > 0 ? (float)nmax / max : 0;
    for (int i = 0; i < n; i++) {
        const int l = nearest(inverse * x[i]);
        code[i] = (uint8_t)(l < nmax ? l : nmax);
    }
    return max / (float)nmax;
}

/* The best code under the stored scale and minimum; if the scale is zero, the search's code is kept. */
static inline int best_code(const dw_block_fit *f, int group, int i, float x, bool any, int low, int high) {
    const float scale = f->scale[group], v = (x + f->min[group]) / scale;
    if (scale == 0) return f->code[i];
    return clamp(nearest(any ? limited(v, (float)low, (float)high) : v), low, high) - low;
}

/* Stores `width` bits of each code of a super-block, beginning with bit `from`.  Byte l of a run of 32 bytes holds
 * those of elements l, l + 32, .., lowest first, as many as fit into eight bits. */
static void store_bits(uint8_t *to, const uint8_t *code, int from, int width) {
    const int stacked = 8 / width, keep = (1 << width) - 1;
    memset(to, 0, (size_t)(SUPER / stacked));
    for (int i = 0; i < SUPER; i++) {
        uint8_t *byte = to + 32 * (i / (32 * stacked)) + i % 32;
        *byte = (uint8_t)(*byte | (code[i] >> from & keep) << width * (i / 32 % stacked));
    }
}

/* Scale and minimum of each of n groups: the block's, as stored, times the group's codes. */
static void set_groups(dw_block_fit *f, int n) {
    const float d = in_half(f->d), m = in_half(f->m);
    for (int k = 0; k < n; k++) {
        f->scale[k] = d * (float)f->scale_code[k];
        f->min[k] = m * (float)f->min_code[k];
    }
}

/* ---- Q2_K -------------------------------------------------------------------------------------------- */

static void fit_q2_k(const float *x, const float *importance, float mean_square, int n_blocks, dw_block_fit *f) {
    static const dw_affine_search plain = {3, -0.5f, 0.1f, 15, true}, weighted = {3, -0.9f, 0.05f, 36, false};
    (void)mean_square, (void)n_blocks;
    f->has_codes = false;
    float w[SUPER], sums[16], scale[16], depth[16];
    const dw_groups groups = {16, 16, x, w, scale, depth, .code = f->code};
    if (importance) {
        weigh(x, importance, dw_sum_of_squares(x, SUPER) / SUPER, 16, w, sums);
        dw_search_affine(&groups, weighted);
        f->d = dw_search_positive(16, 15, scale, sums, f->scale_code);
        f->m = dw_search_positive(16, 15, depth, sums, f->min_code);
    } else {
        for (int i = 0; i < SUPER; i++) w[i] = fabsf(x[i]);
        dw_search_affine(&groups, plain);
        f->d = spread(16, 15, scale, f->scale_code);
        f->m = spread(16, 15, depth, f->min_code);
    }
    set_groups(f, 16);
}

static inline int code_q2_k(const dw_block_fit *f, int g, int i, float x, bool any) {
    return best_code(f, g, i, x, any, 0, 3);
}

static float value_16(const dw_block_fit *f, int i, int code) {
    return f->scale[i / 16] * (float)code - f->min[i / 16];
}

static void pack_q2_k(const dw_block_fit *f, const uint8_t *code, uint8_t *b) {
    for (int k = 0; k < 16; k++) b[k] = (uint8_t)(f->scale_code[k] | f->min_code[k] << 4);
    store_bits(b + 16, code, 0, 2);
    store_half(b + 80, f->d);
    store_half(b + 82, f->m);
}

/* ---- Q3_K: scale codes 0 .. 63 stand for -32 .. 31 --------------------------------------------------- */

static void fit_q3_k(const float *x, const float *importance, float mean_square, int n_blocks, dw_block_fit *f) {
    (void)mean_square, (void)n_blocks;
    f->has_codes = false;
    float w[SUPER], scale[16], sums[16];
    f->d = 0;
    memset(f->scale_code, 0, sizeof f->scale_code);
    if (importance) {
        weigh(x, importance, 2 * dw_sum_of_squares(x, SUPER) / SUPER, 16, w, sums);
        dw_search_symmetric(&(dw_groups){16, 16, x, w, .scale = scale, .code = f->code}, 4);
        dw_search_symmetric(&(dw_groups){1, 16, scale, sums, .scale = &f->d, .code = f->scale_code}, 32);
    } else {
        dw_search_sweeps(&(dw_groups){16, 16, x, .scale = scale, .code = f->code}, 4);
        const float most = dw_extreme(scale, 16);
        if (most != 0) {
            const float inverse = -32 / most;
            for (int k = 0; k < 16; k++)
                f->scale_code[k] = (uint8_t)(clamp(nearest(inverse * scale[k]), -32, 31) + 32);
            f->d = 1 / inverse;
        }
    }
    for (int k = 0; k < 16; k++) {
        f->scale[k] = in_half(f->d) * (float)(f->scale_code[k] - 32);
        f->min[k] = 0;
    }
}

static inline int code_q3_k(const dw_block_fit *f, int g, int i, float x, bool any) {
    return best_code(f, g, i, x, any, -4, 3);
}

static float value_q3_k(const dw_block_fit *f, int i, int code) { return f->scale[i / 16] * (float)(code - 4); }

static void store_q3_k_scales(uint8_t *scales, const uint8_t *code) {
    memset(scales, 0, 12);
    for (int k = 0; k < 16; k++) {
        scales[k % 8] = (uint8_t)(scales[k % 8] | (code[k] & 15) << 4 * (k / 8));
        scales[8 + k % 4] = (uint8_t)(scales[8 + k % 4] | code[k] >> 4 << 2 * (k / 4));
    }
}

static void pack_q3_k(const dw_block_fit *f, const uint8_t *code, uint8_t *b) {
    store_bits(b, code, 2, 1);
    store_bits(b + 32, code, 0, 2);
    store_q3_k_scales(b + 96, f->scale_code);
    store_half(b + 108, f->d);
}

/* ---- Q4_K, Q5_K -------------------------------------------------------------------------------------- */

static void fit_affine_k(const float *x, const float *importance, dw_affine_search plain, dw_block_fit *f) {
    const dw_affine_search weighted = {plain.nmax, -0.9f, 0.05f, 36, false};
    float w[SUPER], scale[8], depth[8], sums[8];
    const dw_groups groups = {8, 32, x, w, scale, depth, .code = f->code};
    if (importance) {
        weigh(x, importance, 2 * dw_sum_of_squares(x, SUPER) / SUPER, 32, w, sums);
        dw_search_affine(&groups, weighted);
        f->d = dw_search_positive(8, 63, scale, sums, f->scale_code);
        f->m = dw_search_positive(8, 63, depth, sums, f->min_code);
    } else {
        for (int s = 0; s < 8; s++) {
            const float rms = sqrtf(dw_sum_of_squares(x + 32 * s, 32) / 32);
            for (int i = 32 * s; i < 32 * s + 32; i++) w[i] = rms + fabsf(x[i]);
        }
        dw_search_affine(&groups, plain);
        f->d = spread(8, 63, scale, f->scale_code);
        f->m = spread(8, 63, depth, f->min_code);
    }
    set_groups(f, 8);
}

static void fit_q4_k(const float *x, const float *importance, float mean_square, int n_blocks, dw_block_fit *f) {
    (void)mean_square, (void)n_blocks;
    f->has_codes = false;
    fit_affine_k(x, importance, (dw_affine_search){15, -1, 0.1f, 20, false}, f);
}

static void fit_q5_k(const float *x, const float *importance, float mean_square, int n_blocks, dw_block_fit *f) {
    (void)mean_square, (void)n_blocks;
    f->has_codes = false;
    fit_affine_k(x, importance, (dw_affine_search){31, -0.5f, 0.1f, 15, false}, f);
}

static inline int code_q4_k(const dw_block_fit *f, int g, int i, float x, bool any) {
    return best_code(f, g, i, x, any, 0, 15);
}
static inline int code_q5_k(const dw_block_fit *f, int g, int i, float x, bool any) {
    return best_code(f, g, i, x, any, 0, 31);
}

static float value_32(const dw_block_fit *f, int i, int code) {
    return f->scale[i / 32] * (float)code - f->min[i / 32];
}

/* The first 16 bytes of a block. */
static void store_q4_k_scales(uint8_t *b, const dw_block_fit *f) {
    const uint8_t *scale = f->scale_code, *min = f->min_code;
    store_half(b, f->d);
    store_half(b + 2, f->m);
    for (int s = 0; s < 4; s++) {
        b[4 + s] = (uint8_t)(scale[s] | scale[s + 4] >> 4 << 6);
        b[8 + s] = (uint8_t)(min[s] | min[s + 4] >> 4 << 6);
        b[12 + s] = (uint8_t)((scale[s + 4] & 15) | (min[s + 4] & 15) << 4);
    }
}

static void pack_q4_k(const dw_block_fit *f, const uint8_t *code, uint8_t *b) {
    store_q4_k_scales(b, f);
    store_bits(b + 16, code, 0, 4);
}

static void pack_q5_k(const dw_block_fit *f, const uint8_t *code, uint8_t *b) {
    store_q4_k_scales(b, f);
    store_bits(b + 16, code, 4, 1);
    store_bits(b + 48, code, 0, 4);
}

/* ---- Q6_K: scale codes are signed bytes --------------------------------------------------------------- */

static void fit_q6_k(const float *x, const float *importance, float mean_square, int n_blocks, dw_block_fit *f) {
    (void)mean_square, (void)n_blocks;
    f->has_codes = false;
    float scale[16];
    dw_search_symmetric(&(dw_groups){16, 16, x, importance, .scale = scale, .code = f->code}, 32);
    const float most = dw_extreme(scale, 16);
    const bool is_zero = fabsf(most) < 1e-15f;
    const float inverse = is_zero ? 0 : -128 / most;
    f->d = is_zero ? 0 : 1 / inverse;
    if (is_zero) memset(f->code, 0, sizeof f->code);
    for (int k = 0; k < 16; k++) {
        const int l = nearest(inverse * scale[k]);
        const int8_t code = is_zero ? 0 : (int8_t)(l < 127 ? l : 127);
        f->scale_code[k] = (uint8_t)code;
        f->scale[k] = in_half(f->d) * (float)code;
        f->min[k] = 0;
    }
}

static inline int code_q6_k(const dw_block_fit *f, int g, int i, float x, bool any) {
    return best_code(f, g, i, x, any, -32, 31);
}

static float value_q6_k(const dw_block_fit *f, int i, int code) { return f->scale[i / 16] * (float)(code - 32); }

/* Nibbles of Q6_K pair element l of 128 with l + 64, unlike those of Q4_K. */
static void store_q6_k_low(uint8_t *low, const uint8_t *code) {
    for (int part = 0; part < 2; part++)
        for (int l = 0; l < 64; l++)
            low[64 * part + l] = (uint8_t)((code[128 * part + l] & 15) | (code[128 * part + l + 64] & 15) << 4);
}

static void pack_q6_k(const dw_block_fit *f, const uint8_t *code, uint8_t *b) {
    store_q6_k_low(b, code);
    store_bits(b + 128, code, 4, 2);
    memcpy(b + 192, f->scale_code, 16);
    store_half(b + 208, f->d);
}

/* ---- the types ---------------------------------------------------------------------------------------- */

#define TYPE(suffix, bytes, group, value)                                                                              \
    static const coding steps_##suffix = {SUPER,         bytes, group,        1, false, fit_##suffix,                  \
                                          code_##suffix, value, pack_##suffix};                                        \
    DEFINE_ENCODER(suffix, steps_##suffix)
TYPE(q2_k, 84, 16, value_16)
TYPE(q3_k, 110, 16, value_q3_k)
TYPE(q4_k, 144, 32, value_32)
TYPE(q5_k, 176, 32, value_32)
TYPE(q6_k, 210, 16, value_q6_k)
