/* kernels_vec.c - which tables of vector functions and of decoders a level uses. */
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

dw_unpack_fn *dw_unpack_of(dw_level level, const dw_qtype_row *type) {
#if defined(__x86_64__)
    dw_unpack_fn *own = level >= DW_AVX512 ? dw_unpack_avx512[type->id]
                        : level == DW_AVX2 ? dw_unpack_avx2[type->id]
                                           : NULL;
    if (own) return own;
#else
    (void)level;
#endif
    return type->decode;
}

size_t dw_attend_scratch_bytes(int head_dim, int n_group) {
    const size_t rows = (size_t)(n_group > DW_QUERY_BLOCK ? n_group : DW_QUERY_BLOCK) + 8; // the tallest register tile
    const size_t width = (size_t)(head_dim + 31) / 32 * 32;
    const size_t n = 2 * rows * width + rows * DW_KEY_TILE + 2 * width * DW_KEY_TILE + DW_TILE * width + 2 * rows;
    return (n * sizeof(float) + 63) / 64 * 64;
}

size_t dw_attend_tiles_scratch_bytes(int head_dim, int n_group) {
    const size_t rows = (size_t)((n_group > DW_TILED_ROWS ? n_group : DW_TILED_ROWS) + 31) / 32 * 32;
    const size_t width = (size_t)(head_dim + 31) / 32 * 32;
    return (rows * (2 * width + 2 * DW_KEY_TILE + 1 + DW_TILE) + 3 * DW_KEY_TILE * width) * sizeof(float);
}

#if !defined(__x86_64__)
void dw_attend_tiles(const dw_attend_job *job) { (void)job; } // never called
#endif
