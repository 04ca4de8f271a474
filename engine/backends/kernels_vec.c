/* kernels_vec.c - which table of vector functions a level uses. */
#include "backends/kernels_vec.h"

const dw_vec *dw_vec_of(dw_level level) {
#if defined(__x86_64__)
    if (level >= DW_AVX512) return &dw_vec_avx512;
    if (level == DW_AVX2) return &dw_vec_avx2;
#else
    (void)level;
#endif
    return &dw_vec_portable;
}

size_t dw_attend_scratch_bytes(int head_dim, int n_group) {
    const size_t rows = (size_t)(n_group > DW_QUERY_BLOCK ? n_group : DW_QUERY_BLOCK) + 8; // the tallest register tile
    const size_t width = (size_t)(head_dim + 31) / 32 * 32;
    const size_t n = 2 * rows * width + rows * DW_KEY_TILE + 2 * width * DW_KEY_TILE + DW_TILE * width + 2 * rows;
    return (n * sizeof(float) + 63) / 64 * 64;
}
