/* kernels_vec_avx2.c - vectors of eight lanes: AVX2, FMA, F16C. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <stdint.h>

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define LEVEL(name) name##_avx2
enum { LANES = 8, ROWS = 6 };
typedef __m256 vf;

TARGET static inline vf load(const float *p) { return _mm256_loadu_ps(p); }
TARGET static inline void store(float *p, vf v) { _mm256_storeu_ps(p, v); }
TARGET static inline vf set1(float x) { return _mm256_set1_ps(x); }
TARGET static inline vf fmadd(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
TARGET static inline vf at_least(vf bound, vf x) { return _mm256_max_ps(bound, x); }
TARGET static inline vf at_most(vf bound, vf x) { return _mm256_min_ps(bound, x); }
TARGET static inline vf load_f16(const uint16_t *h) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)h));
}
TARGET static inline void store_f16(uint16_t *h, vf v) {
    _mm_storeu_si128((__m128i *)(void *)h, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

TARGET static inline float sum_of(vf v) {
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}
TARGET static inline float max_of(vf v) {
    const __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
}

/* Four steps: rows are interleaved with rows 1, 2 and 4 below, in squares of 8 x 8. */
TARGET static inline void transpose8(const float *src, size_t ld_src, float *dst, size_t ld_dst) {
    __m256 a[8], b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) a[i] = load(src + (size_t)i * ld_src);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        store(dst + (size_t)i * ld_dst, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
        store(dst + (size_t)(i + 4) * ld_dst, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
}

TARGET static inline void transpose16(const float *src, size_t ld_src, float *dst, size_t ld_dst) {
    for (size_t i = 0; i < 16; i += 8)
        for (size_t j = 0; j < 16; j += 8) transpose8(src + i * ld_src + j, ld_src, dst + j * ld_dst + i, ld_dst);
}

TARGET static inline void transpose_lanes(const float *src, float *dst) { transpose8(src, LANES, dst, LANES); }

#include "backends/kernels_vec_body.inc"
#include "backends/kernels_backward_body.inc"
#endif
