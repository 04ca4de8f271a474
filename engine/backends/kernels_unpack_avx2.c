/* kernels_unpack_avx2.c - decoders of weight rows with AVX2; results are those of qtypes/, bit for bit.
 *
 * 32 columns at a time: codes, less the type's offset, become signed bytes, then F32, and are multiplied with the factors
 * of their two halves.  Types with minima add them after that rounding, as qtypes/ does. */
#include "backends/kernels_vec.h"
#include "backends/kernels_weights_avx2.h"

#if defined(__x86_64__)
enum { UNIT = 32 };

/* y (32) = factor[half] * code + minimum[half]; without minima: factor * code. */
INLINE void put(float *y, __m256i code, const float *factor, const float *minimum) {
    const __m128i half[2] = {_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1)};
    for (int i = 0; i < 4; i++) {
        const __m128i bytes = i % 2 ? _mm_srli_si128(half[i / 2], 8) : half[i / 2];
        __m256 v = _mm256_mul_ps(_mm256_set1_ps(factor[i / 2]), signed_to_float(bytes));
        if (minimum) v = _mm256_add_ps(v, _mm256_set1_ps(minimum[i / 2]));
        _mm256_storeu_ps(y + 8 * i, v);
    }
}

INLINE __m256i less(__m256i code, int offset) { return _mm256_sub_epi8(code, _mm256_set1_epi8((char)offset)); }

/* ---- plain numbers ------------------------------------------------------------------------------------------- */

TARGET static void decode_f16(const void *src, float *dst, size_t n) {
    const uint8_t *h = src;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(load128(h + 2 * i)));
    for (; i < n; i++) dst[i] = half_at(h + 2 * i);
}

TARGET static void decode_bf16(const void *src, float *dst, size_t n) {
    const uint8_t *h = src;
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i,
                         _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(h + 2 * i)), 16)));
    for (; i < n; i++) dst[i] = dw_bf16_to_f32(dw_le16(h + 2 * i));
}

/* ---- blocks of 32 -------------------------------------------------------------------------------------------- */

// The last 16 columns of each of two equal blocks follow the first 16 of one.
INLINE __m256i in_order(pair x) { return _mm256_permute2x128_si256(x.first, x.last, 0x20); }

INLINE void decode_blocks(dw_qtype type, const uint8_t *p, float *dst, size_t n) {
    const int offset = type == DW_Q4_0 ? 8 : type == DW_Q5_0 ? 16 : 0;
    const bool has_minimum = type == DW_Q4_1 || type == DW_Q5_1;
    for (const float *end = dst + n; dst < end; dst += UNIT, p += dw_qtype_block_bytes(type)) {
        const float d = half_at(p), m = has_minimum ? half_at(p + 2) : 0;
        put(dst, less(in_order(unpack_blocks(type, p, p)), offset), (float[2]){d, d},
            has_minimum ? (float[2]){m, m} : NULL);
    }
}

/* ---- blocks of 256 ------------------------------------------------------------------------------------------- */

typedef struct numbers { // of the 16 pieces of 16 columns
    float factor[PIECES], minimum[PIECES];
} numbers;

INLINE void store_times(float *y, float d, __m128i bytes) { // 16 signed bytes
    _mm256_storeu_ps(y, _mm256_mul_ps(_mm256_set1_ps(d), signed_to_float(bytes)));
    _mm256_storeu_ps(y + 8, _mm256_mul_ps(_mm256_set1_ps(d), signed_to_float(_mm_srli_si128(bytes, 8))));
}

INLINE numbers numbers_of(dw_qtype type, const uint8_t *p) {
    const __m128i fifteen = _mm_set1_epi8(15);
    numbers x = {0};
    switch (type) {
    case DW_Q2_K:
        store_times(x.factor, half_at(p + 80), _mm_and_si128(load128(p), fifteen));
        store_times(x.minimum, -half_at(p + 82), _mm_and_si128(_mm_srli_epi16(load128(p), 4), fifteen));
        break;
    case DW_Q3_K: store_times(x.factor, half_at(p + 108), q3_scales(p)); break;
    case DW_Q6_K: store_times(x.factor, half_at(p + 208), load128(p + 192)); break;
    default: { // Q4_K, Q5_K: each of a block of 32 twice
        const __m128i both = scales_and_minima(p),
                      twice = _mm_setr_epi8(0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14);
        store_times(x.factor, half_at(p), _mm_shuffle_epi8(both, twice));
        store_times(x.minimum, -half_at(p + 2), _mm_shuffle_epi8(_mm_srli_si128(both, 1), twice));
    }
    }
    return x;
}

INLINE void decode_superblocks(dw_qtype type, const uint8_t *p, float *dst, size_t n) {
    const int offset = type == DW_Q3_K ? 4 : type == DW_Q6_K ? 32 : 0;
    const bool has_minimum = type == DW_Q2_K || type == DW_Q4_K || type == DW_Q5_K;
    for (const float *end = dst + n; dst < end; p += dw_qtype_block_bytes(type)) {
        const numbers x = numbers_of(type, p);
        for (int s = 0; s < 8; s++, dst += UNIT)
            put(dst, less(columns_of(type, p, s), offset), x.factor + 2 * s, has_minimum ? x.minimum + 2 * s : NULL);
    }
}

/* ---- the table ----------------------------------------------------------------------------------------------- */

#define DEFINE(type, suffix, of)                                                                                       \
    TARGET static void decode_##suffix(const void *src, float *dst, size_t n) { decode_##of(type, src, dst, n); }
DEFINE(DW_Q8_0, q8_0, blocks)
DEFINE(DW_Q4_0, q4_0, blocks)
DEFINE(DW_Q4_1, q4_1, blocks)
DEFINE(DW_Q5_0, q5_0, blocks)
DEFINE(DW_Q5_1, q5_1, blocks)
DEFINE(DW_IQ4_NL, iq4_nl, blocks)
DEFINE(DW_Q2_K, q2_k, superblocks)
DEFINE(DW_Q3_K, q3_k, superblocks)
DEFINE(DW_Q4_K, q4_k, superblocks)
DEFINE(DW_Q5_K, q5_k, superblocks)
DEFINE(DW_Q6_K, q6_k, superblocks)

dw_unpack_fn *const dw_unpack_avx2[DW_QTYPE_END] = {
    [DW_F16] = decode_f16,   [DW_BF16] = decode_bf16,     [DW_Q8_0] = decode_q8_0, [DW_Q4_0] = decode_q4_0,
    [DW_Q4_1] = decode_q4_1, [DW_IQ4_NL] = decode_iq4_nl, [DW_Q5_0] = decode_q5_0, [DW_Q5_1] = decode_q5_1,
    [DW_Q2_K] = decode_q2_k, [DW_Q3_K] = decode_q3_k,     [DW_Q4_K] = decode_q4_k, [DW_Q5_K] = decode_q5_k,
    [DW_Q6_K] = decode_q6_k,
};
#endif
