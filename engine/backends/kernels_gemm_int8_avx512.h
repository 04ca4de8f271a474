/* kernels_gemm_int8_avx512.h - products with 8-bit inputs: what AVX-512 and AMX share. */
#ifndef DW_KERNELS_GEMM_INT8_AVX512_H
#define DW_KERNELS_GEMM_INT8_AVX512_H

#include "backends/kernels_gemm_int8.h"
#include "backends/kernels_weights_avx512.h"

#if defined(__x86_64__)

#define VEC_LEVEL DW_AVX512
enum { LANES = 16 };
typedef __m512 vf;
typedef int32_t vi __attribute__((vector_size(64)));

INLINE vf load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void store(float *p, vf v) { _mm512_storeu_ps(p, v); }
INLINE vf set1(float x) { return _mm512_set1_ps(x); }
INLINE vf fmadd(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vi load_ints(const void *p) { return (vi)_mm512_loadu_si512(p); }
INLINE void store_ints(void *p, vi v) { _mm512_storeu_si512(p, (__m512i)v); }
INLINE vi set1_ints(int x) { return (vi)_mm512_set1_epi32(x); }
INLINE vi max_bits(vi a, vi b) { return (vi)_mm512_max_epu32((__m512i)a, (__m512i)b); }
INLINE vf to_float(vi v) { return _mm512_cvtepi32_ps((__m512i)v); }
INLINE vi to_int(vf v) { return (vi)_mm512_cvtps_epi32(v); }

INLINE int offset_bits(dw_qtype type) {
    switch (type) {
    case DW_Q4_0: return 3;
    case DW_Q5_0: return 4;
    case DW_Q8_0:
    case DW_IQ4_NL: return 7;
    case DW_Q3_K: return 2;
    case DW_Q6_K: return 5;
    default: return 0;
    }
}

INLINE bool has_factor_m(dw_qtype type) { return !offset_bits(type); }

INLINE void unpack_scales(dw_qtype type, const uint8_t *w, int n_blocks, float *scale) {
    if (!has_scale_of_16(type)) {
        store(scale, _mm512_mul_ps(scales_32(type, w, n_blocks), two_numbers(1, offset_32(type))));
        return;
    }
    const scales s = scales_16(type, w);
    store(scale, s.d);
    store(scale + PIECES, s.m);
}

#endif
#endif
