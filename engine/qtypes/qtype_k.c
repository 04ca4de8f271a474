/* qtype_k.c - formats of 256 values with quantized scales a sub-block.
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
#include "qtypes/scale_search.h"

#include <math.h>

enum { SUPER = 256 };

/* ---- decoders ------------------------------------------------------------------------------------- */

/* Two sub-blocks of 16 side by side: so compilers make vector code of it. */
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

/* Scale k of Q3_K: six bits stored + 32, the low four in bytes 0..7, the high two in bytes 8..11. */
static inline int q3_k_scale(const uint8_t *scales, int k) {
    const int low = k < 8 ? scales[k] & 15 : scales[k - 8] >> 4;
    const int high = scales[8 + k % 4] >> 2 * (k / 4) & 3;
    return (low | high << 4) - 32;
}

void dw_decode_q3_k(const void *src, float *dst, size_t n) {
    const uint8_t *b = src;
    float *y = dst;
    for (const float *end = y + n; y < end; b += 110) {
        const float d = load_half(b + 108);
        for (int s = 0; s < 8; s++, y += 32) {
            const uint8_t *hmask = b, *qs = b + 32 + 32 * (s / 4);
            const int shift = 2 * (s & 3);
            const float scale[2] = {d * (float)q3_k_scale(b + 96, 2 * s), d * (float)q3_k_scale(b + 96, 2 * s + 1)};
            int8_t code[32];
            for (int l = 0; l < 32; l++) code[l] = (int8_t)(((qs[l] >> shift & 3) | (hmask[l] >> s & 1) << 2) - 4);
            scale_pair(code, scale, no_min, y);
        }
    }
}

/* Scale and minimum s of Q4_K and Q5_K, six bits each: of the first four in bytes s and s + 4, of the others
 * the low four bits in byte s + 4 and the high two above those of the first four. */
static inline void q4_k_scale(const uint8_t *scales, int s, int *scale, int *min) {
    if (s < 4) {
        *scale = scales[s] & 63;
        *min = scales[s + 4] & 63;
    } else {
        *scale = (scales[s + 4] & 15) | scales[s - 4] >> 6 << 4;
        *min = scales[s + 4] >> 4 | scales[s] >> 6 << 4;
    }
}

void dw_decode_q4_k(const void *src, float *dst, size_t n) {
    const uint8_t *restrict b = src;
    float *restrict y = dst;
    for (const float *end = y + n; y < end; b += 144) {
        const float d = load_half(b), dmin = load_half(b + 2);
        for (int s = 0; s < 8; s++, y += 32) {
            const uint8_t *restrict qs = b + 16 + 32 * (s / 2);
            const int shift = 4 * (s & 1);
            int sc, mn;
            q4_k_scale(b + 4, s, &sc, &mn);
            const float scale = d * (float)sc, min = dmin * (float)mn;
            for (int l = 0; l < 32; l++) y[l] = scale * (float)(qs[l] >> shift & 15) - min;
        }
    }
}

void dw_decode_q5_k(const void *src, float *dst, size_t n) {
    const uint8_t *restrict b = src;
    float *restrict y = dst;
    for (const float *end = y + n; y < end; b += 176) {
        const float d = load_half(b), dmin = load_half(b + 2);
        for (int s = 0; s < 8; s++, y += 32) {
            const uint8_t *restrict qh = b + 16, *restrict qs = b + 48 + 32 * (s / 2);
            const int shift = 4 * (s & 1);
            int sc, mn;
            q4_k_scale(b + 4, s, &sc, &mn);
            const float scale = d * (float)sc, min = dmin * (float)mn;
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

/* Weights of a super-block, and their sums by sub-blocks of len values. */
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

/* The codes that fit the stored scale and minimum best; a scale of zero leaves the search's codes. */
static void fit_codes(const float *x, int len, float scale, float min, int low, int high, uint8_t *code) {
    if (scale == 0) return;
    for (int i = 0; i < len; i++) code[i] = (uint8_t)(clamp(nearest((x[i] + min) / scale), low, high) - low);
}

/* Bits `from` and up, `width` of them, of the codes of a super-block: 32 bytes hold those of elements l, l + 32,
 * ... one above the other, as many as fit into eight bits. */
static void store_bits(uint8_t *to, const uint8_t code[SUPER], int from, int width) {
    const int stacked = 8 / width, keep = (1 << width) - 1;
    memset(to, 0, (size_t)(SUPER / stacked));
    for (int i = 0; i < SUPER; i++) {
        uint8_t *byte = to + 32 * (i / (32 * stacked)) + i % 32;
        *byte = (uint8_t)(*byte | (code[i] >> from & keep) << width * (i / 32 % stacked));
    }
}

void dw_encode_q2_k(const float *src, void *dst, size_t n, const float *weight) {
    static const dw_affine_search plain = {3, -0.5f, 0.1f, 15, true}, weighted = {3, -0.9f, 0.05f, 36, false};
    uint8_t *b = dst;
    for (const float *x = src, *end = src + n; x < end; x += SUPER, b += 84) {
        float w[SUPER], sums[16], scale[16], depth[16], d, dmin;
        uint8_t code[SUPER], scale_code[16], depth_code[16];
        if (weight) {
            weigh(x, weight, dw_sum_of_squares(x, SUPER) / SUPER, 16, w, sums);
            dw_search_affine(weighted, 16, 16, x, w, scale, depth, code);
            d = dw_search_positive(16, 15, scale, sums, scale_code);
            dmin = dw_search_positive(16, 15, depth, sums, depth_code);
            weight += SUPER;
        } else {
            for (int i = 0; i < SUPER; i++) w[i] = fabsf(x[i]);
            dw_search_affine(plain, 16, 16, x, w, scale, depth, code);
            d = spread(16, 15, scale, scale_code);
            dmin = spread(16, 15, depth, depth_code);
        }
        store_half(b + 80, d);
        store_half(b + 82, dmin);
        d = load_half(b + 80);
        dmin = load_half(b + 82);
        for (int k = 0; k < 16; k++) {
            b[k] = (uint8_t)(scale_code[k] | depth_code[k] << 4);
            fit_codes(x + 16 * k, 16, d * (float)scale_code[k], dmin * (float)depth_code[k], 0, 3, code + 16 * k);
        }
        store_bits(b + 16, code, 0, 2);
    }
}

static void store_q3_k_scales(uint8_t scales[12], const uint8_t code[16]) {
    memset(scales, 0, 12);
    for (int k = 0; k < 16; k++) {
        scales[k % 8] = (uint8_t)(scales[k % 8] | (code[k] & 15) << 4 * (k / 8));
        scales[8 + k % 4] = (uint8_t)(scales[8 + k % 4] | code[k] >> 4 << 2 * (k / 4));
    }
}

void dw_encode_q3_k(const float *src, void *dst, size_t n, const float *weight) {
    uint8_t *b = dst;
    for (const float *x = src, *end = src + n; x < end; x += SUPER, b += 110) {
        float scale[16], d = 0;
        uint8_t code[SUPER], scale_code[16] = {0};
        if (weight) {
            float w[SUPER], sums[16];
            weigh(x, weight, 2 * dw_sum_of_squares(x, SUPER) / SUPER, 16, w, sums);
            dw_search_symmetric(16, 16, 4, x, w, scale, code);
            dw_search_symmetric(1, 16, 32, scale, sums, &d, scale_code);
            weight += SUPER;
        } else {
            dw_search_sweeps(16, 16, 4, x, scale, code);
            const float most = dw_extreme(scale, 16);
            if (most != 0) {
                const float inverse = -32 / most;
                for (int k = 0; k < 16; k++)
                    scale_code[k] = (uint8_t)(clamp(nearest(inverse * scale[k]), -32, 31) + 32);
                d = 1 / inverse;
            }
        }
        store_half(b + 108, d);
        d = load_half(b + 108);
        store_q3_k_scales(b + 96, scale_code);
        for (int k = 0; k < 16; k++)
            fit_codes(x + 16 * k, 16, d * (float)(scale_code[k] - 32), 0, -4, 3, code + 16 * k);
        store_bits(b, code, 2, 1);
        store_bits(b + 32, code, 0, 2);
    }
}

static void store_q4_k_scales(uint8_t scales[12], const uint8_t scale[8], const uint8_t min[8]) {
    for (int s = 0; s < 4; s++) {
        scales[s] = (uint8_t)(scale[s] | scale[s + 4] >> 4 << 6);
        scales[s + 4] = (uint8_t)(min[s] | min[s + 4] >> 4 << 6);
        scales[s + 8] = (uint8_t)((scale[s + 4] & 15) | (min[s + 4] & 15) << 4);
    }
}

/* Q4_K and Q5_K share all but the number of codes: the first 16 bytes of a block, and 256 codes to store. */
static void encode_affine_k(const float *x, uint8_t *b, const float *weight, dw_affine_search plain,
                            uint8_t code[SUPER]) {
    const dw_affine_search weighted = {plain.nmax, -0.9f, 0.05f, 36, false};
    float w[SUPER], scale[8], depth[8], d, dmin;
    uint8_t scale_code[8], depth_code[8];
    if (weight) {
        float sums[8];
        weigh(x, weight, 2 * dw_sum_of_squares(x, SUPER) / SUPER, 32, w, sums);
        dw_search_affine(weighted, 8, 32, x, w, scale, depth, code);
        d = dw_search_positive(8, 63, scale, sums, scale_code);
        dmin = dw_search_positive(8, 63, depth, sums, depth_code);
    } else {
        for (int s = 0; s < 8; s++) {
            const float rms = sqrtf(dw_sum_of_squares(x + 32 * s, 32) / 32);
            for (int i = 32 * s; i < 32 * s + 32; i++) w[i] = rms + fabsf(x[i]);
        }
        dw_search_affine(plain, 8, 32, x, w, scale, depth, code);
        d = spread(8, 63, scale, scale_code);
        dmin = spread(8, 63, depth, depth_code);
    }
    store_half(b, d);
    store_half(b + 2, dmin);
    store_q4_k_scales(b + 4, scale_code, depth_code);
    d = load_half(b);
    dmin = load_half(b + 2);
    for (int s = 0; s < 8; s++)
        fit_codes(x + 32 * s, 32, d * (float)scale_code[s], dmin * (float)depth_code[s], 0, plain.nmax, code + 32 * s);
}

void dw_encode_q4_k(const float *src, void *dst, size_t n, const float *weight) {
    static const dw_affine_search plain = {15, -1, 0.1f, 20, false};
    uint8_t *b = dst, code[SUPER];
    for (size_t at = 0; at < n; at += SUPER, b += 144) {
        encode_affine_k(src + at, b, weight ? weight + at : NULL, plain, code);
        store_bits(b + 16, code, 0, 4);
    }
}

void dw_encode_q5_k(const float *src, void *dst, size_t n, const float *weight) {
    static const dw_affine_search plain = {31, -0.5f, 0.1f, 15, false};
    uint8_t *b = dst, code[SUPER];
    for (size_t at = 0; at < n; at += SUPER, b += 176) {
        encode_affine_k(src + at, b, weight ? weight + at : NULL, plain, code);
        store_bits(b + 16, code, 4, 1);
        store_bits(b + 48, code, 0, 4);
    }
}

/* Nibbles of Q6_K pair element l of 128 with l + 64, unlike those of Q4_K. */
static void store_q6_k_low(uint8_t low[128], const uint8_t code[SUPER]) {
    for (int part = 0; part < 2; part++)
        for (int l = 0; l < 64; l++)
            low[64 * part + l] = (uint8_t)((code[128 * part + l] & 15) | (code[128 * part + l + 64] & 15) << 4);
}

void dw_encode_q6_k(const float *src, void *dst, size_t n, const float *weight) {
    uint8_t *b = dst;
    for (size_t at = 0; at < n; at += SUPER, b += 210) {
        const float *x = src + at;
        float scale[16];
        uint8_t code[SUPER];
        dw_search_symmetric(16, 16, 32, x, weight ? weight + at : NULL, scale, code);
        const float most = dw_extreme(scale, 16);
        if (fabsf(most) < 1e-15f) {
            memset(b, 0, 210);
            continue;
        }
        const float inverse = -128 / most;
        store_half(b + 208, 1 / inverse);
        const float d = load_half(b + 208);
        for (int k = 0; k < 16; k++) {
            const int l = nearest(inverse * scale[k]);
            const int8_t sc = (int8_t)(l < 127 ? l : 127);
            b[192 + k] = (uint8_t)sc;
            fit_codes(x + 16 * k, 16, d * (float)sc, 0, -32, 31, code + 16 * k);
        }
        store_q6_k_low(b, code);
        store_bits(b + 128, code, 4, 2);
    }
}
