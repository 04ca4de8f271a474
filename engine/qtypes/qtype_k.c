/* qtype_k.c - formats of 256 values with quantized scales a sub-block.
 *
 * Sub-blocks: k = i / 16 of Q2_K, Q3_K, Q6_K; s = i / 32 of Q4_K, Q5_K.  With part = i / 128, shift
 * j = i % 128 / 32 and l = i % 32:
 *
 *     type  bytes  layout (offset)                                      value of element i
 *     Q2_K    84   scales[16] 0, qs[64] 16, d 80, dmin 82               (d*(scales[k]&15))*q - dmin*(scales[k]>>4)
 *     Q3_K   110   hmask[32] 0, qs[64] 32, scales[12] 96, d 108         (d*scale(k)) * (q | h<<2) - 4)
 *     Q4_K   144   d 0, dmin 2, scales[12] 4, qs[128] 16                (d*scale(s))*q - dmin*min(s)
 *     Q5_K   176   d 0, dmin 2, scales[12] 4, qh[32] 16, qs[128] 48     as Q4_K, q | bit s of qh[l] << 4
 *     Q6_K   210   ql[128] 0, qh[64] 128, scales[16] int8 192, d 208    (d*scales[k]) * ((lo | hi<<4) - 32)
 *
 * Q2_K, Q3_K: q = 2 bits at 2j of qs[32 part + l]; h = bit i/32 of hmask[l].  Q4_K, Q5_K: q = nibble s&1 of
 * qs[32 (s/2) + l].  Q6_K: lo = nibble j>>1 of ql[64 part + 32 (j&1) + l], hi = 2 bits at 2j of qh[32 part + l].
 * Every formula is evaluated in F32 in the order written. */
#include "qtypes/codecs.h"

enum { SUPER = 256 };

/* ---- decoders ------------------------------------------------------------------------------------- */

void dw_decode_q2_k(const void *src, float *dst, size_t n) {
    const uint8_t *restrict b = src;
    float *restrict y = dst;
    for (const float *end = y + n; y < end; b += 84) {
        const float d = load_half(b + 80), dmin = load_half(b + 82);
        for (int k = 0; k < 16; k++, y += 16) {
            const uint8_t *restrict qs = b + 16 + 32 * (k / 8) + 16 * (k & 1);
            const float scale = d * (float)(b[k] & 15), min = dmin * (float)(b[k] >> 4);
            const int shift = k & 6;
            for (int l = 0; l < 16; l++) y[l] = scale * (float)(qs[l] >> shift & 3) - min;
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
    const uint8_t *restrict b = src;
    float *restrict y = dst;
    for (const float *end = y + n; y < end; b += 110) {
        const float d = load_half(b + 108);
        for (int k = 0; k < 16; k++, y += 16) {
            const uint8_t *restrict hmask = b + 16 * (k & 1), *restrict qs = b + 32 + 32 * (k / 8) + 16 * (k & 1);
            const float scale = d * (float)q3_k_scale(b + 96, k);
            const int shift = k & 6, s = k / 2;
            for (int l = 0; l < 16; l++) y[l] = scale * (float)(((qs[l] >> shift & 3) | (hmask[l] >> s & 1) << 2) - 4);
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
    const uint8_t *restrict b = src;
    float *restrict y = dst;
    for (const float *end = y + n; y < end; b += 210) {
        const float d = load_half(b + 208);
        for (int k = 0; k < 16; k++, y += 16) {
            const int part = k / 8, j = k / 2 % 4, half = 16 * (k & 1);
            const uint8_t *restrict ql = b + 64 * part + 32 * (j & 1) + half, *restrict qh = b + 128 + 32 * part + half;
            const float scale = d * (float)(int8_t)b[192 + k];
            const int low = 4 * (j >> 1), high = 2 * j;
            for (int l = 0; l < 16; l++) y[l] = scale * (float)(((ql[l] >> low & 15) | (qh[l] >> high & 3) << 4) - 32);
        }
    }
}
