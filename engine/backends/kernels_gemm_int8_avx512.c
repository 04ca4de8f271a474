/* kernels_gemm_int8_avx512.c - products with 8-bit inputs: AVX-512 VNNI, sixteen tokens a vector. */
#if defined(__x86_64__)
#include "backends/kernels_gemm_int8_avx512.h"

#include <string.h>

#define LEVEL(name) name##_avx512
#define WORDS(type) (has_scale_of_16(type) ? 4 : 8)
/* One vector: up to 16 tokens, or the last ones of more.  (results/kernels.md) */
#define ROWS(type, n_vec) ((n_vec) == 1 ? 8 : 4)

/* VPDPBUSD adds four products of bytes to 32 bits. */
INLINE vi add_dots(dw_qtype type, vi sum, vi u, vi q) {
    (void)type;
    return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)u, (__m512i)q);
}
INLINE vi begin_dots(dw_qtype type, vi less, vi u, vi q) { return add_dots(type, less, u, q); }
INLINE vi end_dots(dw_qtype type, vi sum, vi less) {
    (void)type, (void)less;
    return sum;
}

INLINE void unpack_bytes(dw_qtype type, const uint8_t *w, int n_blocks, uint8_t *u) {
    for (int h = 0; h < 2; h++) {
        const half_record half = unpack_half(type, w, h, n_blocks);
        _mm512_storeu_si512(u + 128 * h, half.first);
        _mm512_storeu_si512(u + 128 * h + 64, half.last);
    }
}

INLINE vi kept(vi v) { return v; }
#define place_of piece_place

#include "backends/kernels_gemm_int8_body.inc"
#include "backends/kernels_gemm_int8_table.inc"
#endif
