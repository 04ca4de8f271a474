/* kernels_unpack_avx512.c - fast decoders of weight rows; results are those of qtypes/, bit for bit.
 *
 * Codes of up to five bits are looked up: the 16 or 32 values that a block (or sub-block) can have are computed once,
 * by the type's formula, and one permutation looks up 16 codes. */
#include "backends/kernels_vec.h"

#if defined(__x86_64__)
#include "backends/kernels_dot.h"

#include <immintrin.h>
#include <string.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")))
#define INLINE TARGET static inline __attribute__((always_inline))

INLINE float half_at(const uint8_t *p) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(dw_le16(p)))); }
INLINE __m128i load128(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)(const void *)p); }
INLINE __m256i load256(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
INLINE __m128i low4(__m128i v) { return _mm_and_si128(v, _mm_set1_epi8(15)); }
INLINE __m128i high4(__m128i v) { return low4(_mm_srli_epi16(v, 4)); }
INLINE __m512 numbers(void) { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
INLINE __m512 times(float d, __m512 v) { return _mm512_mul_ps(_mm512_set1_ps(d), v); }
INLINE __m512 plus(__m512 v, float m) { return _mm512_add_ps(v, _mm512_set1_ps(m)); }

/* y[i] = table[codes[i]], i < 16. */
INLINE void look_up(float *y, __m128i codes, __m512 table) {
    _mm512_storeu_ps(y, _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(codes), table));
}

INLINE void look_up2(float *y, __m128i codes, __m512 low, __m512 high) {
    _mm512_storeu_ps(y, _mm512_permutex2var_ps(low, _mm512_cvtepu8_epi32(codes), high));
}

INLINE void look_up_nibbles(float *y, const uint8_t *nibbles, __m512 table) { // a block of 32
    const __m128i n = load128(nibbles);
    look_up(y, low4(n), table);
    look_up(y + 16, high4(n), table);
}

/* ---- plain numbers ----------------------------------------------------------------------------------------- */

TARGET static void decode_f16(const void *src, float *dst, size_t n) {
    const uint8_t *h = src;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) _mm512_storeu_ps(dst + i, _mm512_cvtph_ps(load256(h + 2 * i)));
    for (; i < n; i++) dst[i] = half_at(h + 2 * i);
}

TARGET static void decode_bf16(const void *src, float *dst, size_t n) {
    const uint8_t *h = src;
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_si512(dst + i, _mm512_slli_epi32(_mm512_cvtepu16_epi32(load256(h + 2 * i)), 16));
    for (; i < n; i++) dst[i] = dw_bf16_to_f32(dw_le16(h + 2 * i));
}

/* ---- blocks of 32 ------------------------------------------------------------------------------------------- */

TARGET static void decode_q8_0(const void *src, float *dst, size_t n) {
    const uint8_t *b = src;
    for (const float *end = dst + n; dst < end; dst += 32, b += 34) {
        const float d = half_at(b);
        for (int i = 0; i < 32; i += 16)
            _mm512_storeu_ps(dst + i, times(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load128(b + 2 + i)))));
    }
}

TARGET static void decode_q4_0(const void *src, float *dst, size_t n) {
    const uint8_t *b = src;
    const __m512 value = plus(numbers(), -8);
    for (const float *end = dst + n; dst < end; dst += 32, b += 18)
        look_up_nibbles(dst, b + 2, times(half_at(b), value));
}

TARGET static void decode_q4_1(const void *src, float *dst, size_t n) {
    const uint8_t *b = src;
    for (const float *end = dst + n; dst < end; dst += 32, b += 20)
        look_up_nibbles(dst, b + 4, plus(times(half_at(b), numbers()), half_at(b + 2)));
}

TARGET static void decode_iq4_nl(const void *src, float *dst, size_t n) {
    const uint8_t *b = src;
    static const float values[16] = {DW_IQ4_NL_VALUES};
    const __m512 value = _mm512_loadu_ps(values);
    for (const float *end = dst + n; dst < end; dst += 32, b += 18)
        look_up_nibbles(dst, b + 2, times(half_at(b), value));
}

/* 32 five-bit codes: nibbles, and the fifth bits in a word. */
INLINE __m256i codes5(const uint8_t *high, const uint8_t *nibbles) {
    const __m128i n = load128(nibbles);
    const __m256i codes = _mm256_set_m128i(high4(n), low4(n));
    return _mm256_mask_add_epi8(codes, dw_le32(high), codes, _mm256_set1_epi8(16));
}

INLINE void look_up_codes5(float *y, __m256i codes, __m512 low, __m512 high) {
    look_up2(y, _mm256_castsi256_si128(codes), low, high);
    look_up2(y + 16, _mm256_extracti128_si256(codes, 1), low, high);
}

TARGET static void decode_q5_0(const void *src, float *dst, size_t n) {
    const uint8_t *b = src;
    const __m512 low = plus(numbers(), -16), high = numbers();
    for (const float *end = dst + n; dst < end; dst += 32, b += 22)
        look_up_codes5(dst, codes5(b + 2, b + 6), times(half_at(b), low), times(half_at(b), high));
}

TARGET static void decode_q5_1(const void *src, float *dst, size_t n) {
    const uint8_t *b = src;
    const __m512 low = numbers(), high = plus(low, 16);
    for (const float *end = dst + n; dst < end; dst += 32, b += 24) {
        const float d = half_at(b), m = half_at(b + 2);
        look_up_codes5(dst, codes5(b + 4, b + 8), plus(times(d, low), m), plus(times(d, high), m));
    }
}

/* ---- blocks of 256 ------------------------------------------------------------------------------------------ */

TARGET static void decode_q2_k(const void *src, float *dst, size_t n) {
    const uint8_t *b = src;
    for (const float *end = dst + n; dst < end; b += 84) {
        const float d = half_at(b + 80), dmin = half_at(b + 82);
        for (int k = 0; k < 16; k++, dst += 16) {
            const __m128i qs = load128(b + 16 + 32 * (k / 8) + 16 * (k & 1));
            const __m128i codes = _mm_and_si128(_mm_srl_epi16(qs, _mm_cvtsi32_si128(k & 6)), _mm_set1_epi8(3));
            look_up(dst, codes, plus(times(d * (float)(b[k] & 15), numbers()), -(dmin * (float)(b[k] >> 4))));
        }
    }
}

TARGET static void decode_q3_k(const void *src, float *dst, size_t n) {
    const uint8_t *b = src;
    const __m512 value = plus(numbers(), -4);
    for (const float *end = dst + n; dst < end; b += 110) {
        const float d = half_at(b + 108);
        uint8_t scale[16];
        uint64_t first, last;
        dw_unpack_q3_scales(b + 96, &first, &last);
        memcpy(scale, &first, 8);
        memcpy(scale + 8, &last, 8);
        for (int k = 0; k < 16; k++, dst += 16) {
            const __m128i qs = load128(b + 32 + 32 * (k / 8) + 16 * (k & 1)), hmask = load128(b + 16 * (k & 1));
            const __m128i codes = _mm_and_si128(_mm_srl_epi16(qs, _mm_cvtsi32_si128(k & 6)), _mm_set1_epi8(3));
            const __mmask16 high = _mm_test_epi8_mask(hmask, _mm_set1_epi8((char)(1 << k / 2)));
            look_up(dst, _mm_mask_add_epi8(codes, high, codes, _mm_set1_epi8(4)),
                    times(d * (float)(scale[k] - 32), value));
        }
    }
}

/* The eight scales and minima of Q4_K and Q5_K. */
INLINE void scales_mins(const uint8_t *b, float scale[8], float min[8]) {
    uint64_t s, m;
    dw_unpack_scales_mins(b + 4, &s, &m);
    const __m256 scales = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)s)));
    const __m256 mins = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)m)));
    _mm256_storeu_ps(scale, _mm256_mul_ps(_mm256_set1_ps(half_at(b)), scales));
    _mm256_storeu_ps(min, _mm256_mul_ps(_mm256_set1_ps(half_at(b + 2)), mins));
}

TARGET static void decode_q4_k(const void *src, float *dst, size_t n) {
    const uint8_t *b = src;
    for (const float *end = dst + n; dst < end; b += 144) {
        float scale[8], min[8];
        scales_mins(b, scale, min);
        for (int s = 0; s < 8; s += 2, dst += 64) {
            const __m512 even = plus(times(scale[s], numbers()), -min[s]),
                         odd = plus(times(scale[s + 1], numbers()), -min[s + 1]);
            for (int half = 0; half < 32; half += 16) {
                const __m128i qs = load128(b + 16 + 16 * s + half);
                look_up(dst + half, low4(qs), even);
                look_up(dst + 32 + half, high4(qs), odd);
            }
        }
    }
}

TARGET static void decode_q5_k(const void *src, float *dst, size_t n) {
    const uint8_t *b = src;
    const __m512 low = numbers(), high = plus(low, 16);
    for (const float *end = dst + n; dst < end; b += 176) {
        const __m256i qh = load256(b + 16), mask = _mm256_set1_epi8(15);
        float scale[8], min[8];
        scales_mins(b, scale, min);
        for (int s = 0; s < 8; s++, dst += 32) {
            const __m256i qs = load256(b + 48 + 32 * (s / 2));
            const __m256i nibbles = _mm256_and_si256(s & 1 ? _mm256_srli_epi16(qs, 4) : qs, mask);
            const __mmask32 fifth = _mm256_test_epi8_mask(qh, _mm256_set1_epi8((char)(1 << s)));
            look_up_codes5(dst, _mm256_mask_add_epi8(nibbles, fifth, nibbles, _mm256_set1_epi8(16)),
                           plus(times(scale[s], low), -min[s]), plus(times(scale[s], high), -min[s]));
        }
    }
}

TARGET static void decode_q6_k(const void *src, float *dst, size_t n) {
    const uint8_t *b = src;
    for (const float *end = dst + n; dst < end; b += 210) {
        const float d = half_at(b + 208);
        for (int s = 0; s < 8; s++, dst += 32) { // two scales each
            const __m256i ql = load256(b + 64 * (s / 4) + 32 * (s & 1)), qh = load256(b + 128 + 32 * (s / 4));
            const __m256i low = _mm256_and_si256(s & 2 ? _mm256_srli_epi16(ql, 4) : ql, _mm256_set1_epi8(15));
            const __m256i high = _mm256_and_si256(_mm256_srl_epi16(qh, _mm_cvtsi32_si128(2 * (s & 3))),
                                                  _mm256_set1_epi8(3));
            const __m256i codes = _mm256_sub_epi8(_mm256_or_si256(low, _mm256_slli_epi16(high, 4)),
                                                  _mm256_set1_epi8(32));
            const float scale0 = d * (float)(int8_t)b[192 + 2 * s], scale1 = d * (float)(int8_t)b[193 + 2 * s];
            _mm512_storeu_ps(dst,
                             times(scale0, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(codes)))));
            _mm512_storeu_ps(
                dst + 16, times(scale1, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(codes, 1)))));
        }
    }
}

dw_unpack_fn *const dw_unpack_avx512[DW_QTYPE_END] = {
    [DW_F16] = decode_f16,   [DW_BF16] = decode_bf16,     [DW_Q8_0] = decode_q8_0, [DW_Q4_0] = decode_q4_0,
    [DW_Q4_1] = decode_q4_1, [DW_IQ4_NL] = decode_iq4_nl, [DW_Q5_0] = decode_q5_0, [DW_Q5_1] = decode_q5_1,
    [DW_Q2_K] = decode_q2_k, [DW_Q3_K] = decode_q3_k,     [DW_Q4_K] = decode_q4_k, [DW_Q5_K] = decode_q5_k,
    [DW_Q6_K] = decode_q6_k,
};
#endif
