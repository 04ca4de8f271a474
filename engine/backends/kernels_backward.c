/* kernels_backward.c - which table of functions a level uses, and the scratch of attention. */
#include "backends/kernels_backward.h"

const dw_vec_back *dw_vec_back_of(dw_level level) {
#if defined(__x86_64__)
    if (level >= DW_AVX512) return &dw_vec_back_avx512;
    if (level == DW_AVX2) return &dw_vec_back_avx2;
#else
    (void)level;
#endif
    return &dw_vec_back_portable;
}

/* Six arrays of a window's keys, three of a block of 48 queries, four of their scores; padded as in the body. */
size_t dw_attend_back_scratch(int n_ctx, int head_dim) {
    const size_t keys = ((size_t)n_ctx + 95) / 96 * 96, width = ((size_t)head_dim + 31) / 32 * 32;
    return 6 * keys * width + 3 * 48 * width + 4 * 48 * keys;
}
