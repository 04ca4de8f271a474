/* kernels_vec_avx512.c - vectors of sixteen lanes: AVX-512 F, BW, VL, DQ. */
#if defined(__x86_64__)
#include "backends/kernels_tiles.h"

#include <immintrin.h>
#include <stdint.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")))
#define LEVEL(name) name##_avx512
enum { LANES = 16, ROWS = 8 };
typedef __m512 vf;

TARGET static inline vf load(const float *p) { return _mm512_loadu_ps(p); }
TARGET static inline void store(float *p, vf v) { _mm512_storeu_ps(p, v); }
TARGET static inline vf set1(float x) { return _mm512_set1_ps(x); }
TARGET static inline vf fmadd(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
TARGET static inline vf at_least(vf bound, vf x) { return _mm512_max_ps(bound, x); }
TARGET static inline vf at_most(vf bound, vf x) { return _mm512_min_ps(bound, x); }
TARGET static inline vf load_f16(const uint16_t *h) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)h));
}
TARGET static inline void store_f16(uint16_t *h, vf v) {
    _mm256_storeu_si256((__m256i *)(void *)h, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

TARGET static inline float sum_of(vf v) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}
TARGET static inline float max_of(vf v) {
    const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
}

/* Four steps: rows are interleaved with rows 1, 2, 4 and 8 below. */
TARGET static inline void transpose16(const float *src, size_t ld_src, float *dst, size_t ld_dst) {
    __m512 a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) a[i] = load(src + (size_t)i * ld_src);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) { // a[i + j]: column j of each quarter of rows i..i+3
        a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const __m512 even = _mm512_shuffle_f32x4(a[j], a[j + 4], 0x88),
                     odd = _mm512_shuffle_f32x4(a[j], a[j + 4], 0xdd);
        const __m512 even2 = _mm512_shuffle_f32x4(a[j + 8], a[j + 12], 0x88),
                     odd2 = _mm512_shuffle_f32x4(a[j + 8], a[j + 12], 0xdd);
        store(dst + (size_t)j * ld_dst, _mm512_shuffle_f32x4(even, even2, 0x88));
        store(dst + (size_t)(j + 4) * ld_dst, _mm512_shuffle_f32x4(odd, odd2, 0x88));
        store(dst + (size_t)(j + 8) * ld_dst, _mm512_shuffle_f32x4(even, even2, 0xdd));
        store(dst + (size_t)(j + 12) * ld_dst, _mm512_shuffle_f32x4(odd, odd2, 0xdd));
    }
}

TARGET static inline void transpose_lanes(const float *src, float *dst) { transpose16(src, LANES, dst, LANES); }

#include "backends/kernels_vec_body.inc"
#include "backends/kernels_backward_body.inc"
#include "backends/kernels_attend_rounded.inc"
#include "backends/kernels_attend_tiles.inc"
#endif
