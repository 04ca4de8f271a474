/* kernels_gemm_int8_avx2.c - products with 8-bit inputs: AVX2, eight tokens a vector.
 *
 * VPMADDUBSW adds two products in 16 bits.  Of weights below 16 (four bits) eight such sums still fit, below 32 four,
 * below 64 two; VPMADDWD makes 32 bits of them.  Q8_0 and IQ4_NL stay signed; their sums become 32 bits wide one by one
 * (kernels_weights_avx2.h). */
#if defined(__x86_64__)
#include "backends/kernels_gemm_int8.h"
#include "backends/kernels_weights_avx2.h"

#include <string.h>

#define LEVEL(name) name##_avx2
#define VEC_LEVEL DW_AVX2
enum { LANES = 8 };
typedef __m256 vf;
typedef int32_t vi __attribute__((vector_size(32)));

#define WORDS(type) (type == DW_Q6_K ? 2 : has_scale_of_16(type) || !(has_four_bits(type) || is_signed(type)) ? 4 : 8)
#define ROWS(type, n_vec) 4

INLINE vf load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void store(float *p, vf v) { _mm256_storeu_ps(p, v); }
INLINE vf set1(float x) { return _mm256_set1_ps(x); }
INLINE vf fmadd(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vi load_ints(const void *p) { return (vi)_mm256_loadu_si256(p); }
INLINE void store_ints(void *p, vi v) { _mm256_storeu_si256(p, (__m256i)v); }
INLINE vi set1_ints(int x) { return (vi)_mm256_set1_epi32(x); }
INLINE vi max_bits(vi a, vi b) { return (vi)_mm256_max_epu32((__m256i)a, (__m256i)b); }
INLINE vf to_float(vi v) { return _mm256_cvtepi32_ps((__m256i)v); }
INLINE vi to_int(vf v) { return (vi)_mm256_cvtps_epi32(v); }

/* gcc would load tokens again for every row: 96 loads a block instead of 48. */
INLINE vi kept(vi v) {
    __asm__("" : "+x"(v));
    return v;
}

INLINE __m256i in_fours(__m256i twos) { return _mm256_madd_epi16(twos, _mm256_set1_epi16(1)); }

INLINE vi add_dots(dw_qtype type, vi sum, vi u, vi q) {
    const __m256i one = _mm256_set1_epi16(1), x = (__m256i)q;
    __m256i w = (__m256i)u, y;
    /* Product and sum at once: left to itself, gcc computes all products first and keeps them on the stack. */
    if (is_signed(type)) {
        y = _mm256_sign_epi8(x, w);
        w = _mm256_abs_epi8(w);
        __asm__("vpmaddubsw %1, %2, %1\n\tvpmaddwd %3, %1, %1\n\tvpaddd %1, %0, %0"
                : "+x"(sum), "+&x"(y) : "x"(w), "x"(one));
    } else
        __asm__("vpmaddubsw %2, %3, %1\n\tvpaddw %1, %0, %0" : "+x"(sum), "=&x"(y) : "x"(x), "x"(w));
    return sum;
}

/* The sum in 32 bits is added at the end of those in 16. */
INLINE vi begin_dots(dw_qtype type, vi less, vi u, vi q) {
    return is_signed(type) ? add_dots(type, less, u, q) : (vi)_mm256_maddubs_epi16((__m256i)u, (__m256i)q);
}

INLINE vi end_dots(dw_qtype type, vi sum, vi less) { return is_signed(type) ? sum : (vi)in_fours((__m256i)sum) + less; }

INLINE int offset_bits(dw_qtype type) {
    switch (type) {
    case DW_Q4_0: return 3;
    case DW_Q5_0: return 4;
    case DW_Q3_K: return 2;
    case DW_Q6_K: return 5;
    default: return 0;
    }
}

INLINE bool has_factor_m(dw_qtype type) { return !offset_bits(type) && !is_signed(type); }

INLINE void unpack_bytes(dw_qtype type, const uint8_t *w, int n_blocks, uint8_t *u) {
    for (int h = 0; h < 2; h++)
        for (int odd = 0; odd < 2; odd++) {
            const pair x = unpack_pair(type, w, h, odd, n_blocks);
            store_ints(u + 128 * h + 32 * odd, (vi)x.first);
            store_ints(u + 128 * h + 64 + 32 * odd, (vi)x.last);
        }
}

INLINE void unpack_scales(dw_qtype type, const uint8_t *w, int n_blocks, float *scale) {
    for (int h = 0; h < 2; h++) {
        if (!has_scale_of_16(type)) {
            const float m = offset_32(type);
            const __m256 d_m = scales_32(type, w, h, n_blocks);
            store(scale + 8 * h, _mm256_mul_ps(d_m, _mm256_setr_ps(1, m, 1, m, 1, m, 1, m)));
            continue;
        }
        const scales s = scales_16(type, w, h);
        store(scale + 8 * h, s.d);
        store(scale + PIECES + 8 * h, s.m);
    }
}

#define place_of piece_place

#include "backends/kernels_gemm_int8_body.inc"
#include "backends/kernels_gemm_int8_table.inc"
#endif
