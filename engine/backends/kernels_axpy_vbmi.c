/* kernels_axpy_vbmi.c - sums of rows of Q4_0 with AVX-512 VNNI and VBMI: a permutation takes the codes of two rows. */
#if defined(__x86_64__)
#include "backends/kernels_axpy_rows.h"

#include <immintrin.h>

#define TARGET __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi")))
#define INLINE static inline __attribute__((always_inline)) TARGET

INLINE __m128i load128(const void *p) { return _mm_loadu_si128(p); }

// Byte i of row p in the lower half of lane i, of row q in the upper half; the other bytes are zero.
INLINE __m512i codes_of_two(const uint8_t *p, const uint8_t *q) {
    const __m512i four = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i place = _mm512_or_si512(_mm512_mullo_epi32(four, _mm512_set1_epi32(0x10001)),
                                          _mm512_set1_epi32(0x100000));
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(load128(p)), load128(q), 1);
    return _mm512_maskz_permutexvar_epi8(0x5555555555555555, place, _mm512_castsi256_si512(both));
}

#include "backends/kernels_axpy_q4_0.inc"

INLINE void add_some(dw_qtype type, int n_cols, int n_rows, const terms *t) {
    (void)type;
    add_q4_0(n_cols, n_rows, t);
}

DEFINE_ADD_ROWS(INLINE, Q4_0_COLS)
DEFINE_ADD_SHORT_ROWS(INLINE, Q4_0_COLS)

TARGET void dw_axpy_vbmi_q4_0(const dw_axpy_job *job) {
    if (job->n <= SHORT_Q4_0)
        add_short_rows(DW_Q4_0, job);
    else
        add_rows(DW_Q4_0, job);
}
#endif
