/* kernels_tiles.h - inside the kernels that multiply tiles of BF16: tiles 0..3 are sums, 4 and 5 weights, 6 and 7
 * tokens. */
#ifndef DW_KERNELS_TILES_H
#define DW_KERNELS_TILES_H

#include "backends/kernels_vec.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TILE_TARGET                                                                                                    \
    __attribute__((target("avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,"              \
                          "amx-tile,amx-bf16")))
#define TILE_INLINE TILE_TARGET static inline __attribute__((always_inline))

enum { TILE_BYTES = 1024, TILE_ROW_BYTES = 64, TILE_SQUARE = DW_TILE * DW_TILE };

/* Completes stores: gcc's tile loads do not declare that they read. */
#define TILES_READ_MEMORY() __asm__ volatile("" ::: "memory")

/* Two vectors of 16 rounded to 32 BF16 numbers, and the remainders. */
TILE_INLINE __m512i round_pair(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

TILE_INLINE __m512i rest_pair(__m512 low, __m512 high, __m512i rounded) {
    const __m512i l = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(rounded)), 16);
    const __m512i h = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(rounded, 1)), 16);
    return round_pair(_mm512_sub_ps(low, _mm512_castsi512_ps(l)), _mm512_sub_ps(high, _mm512_castsi512_ps(h)));
}

/* ---- two row tiles times one or two token tiles ------------------------------------------------------------------ */

TILE_INLINE void load_weights(const uint8_t *w, size_t ld) {
    _tile_loadd(4, w, TILE_ROW_BYTES);
    _tile_loadd(5, w + ld, TILE_ROW_BYTES);
}

TILE_INLINE void load_tokens(bool two, const uint8_t *x, size_t ld) {
    _tile_loadd(6, x, TILE_ROW_BYTES);
    if (two) _tile_loadd(7, x + ld, TILE_ROW_BYTES);
}

TILE_INLINE void multiply_tiles(bool two) {
    _tile_dpbf16ps(0, 4, 6);
    if (two) _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    if (two) _tile_dpbf16ps(3, 5, 7);
}

/* One step.  hi * lo, hi * hi, lo * hi: this order loads each part once. */
TILE_INLINE void step_of_rows(dw_gemm_form form, bool two, const uint8_t *w, size_t w_ld, const uint8_t *x,
                              size_t x_ld) {
    /* Tokens first.  (Where tiles are slow, 536 Gflop/s a thread; 484 with each load right before its first product.
     * Where they are fast, 2,091 and 2,084.) */
    if (form == DW_GEMM_ROUNDED) {
        load_tokens(two, x, x_ld);
        load_weights(w, w_ld);
        multiply_tiles(two);
        return;
    }
    load_weights(w, w_ld);
    load_tokens(two, x + TILE_BYTES, x_ld);
    multiply_tiles(two);
    load_tokens(two, x, x_ld);
    multiply_tiles(two);
    if (form == DW_GEMM_SPLIT) {
        load_weights(w + TILE_BYTES, w_ld);
        multiply_tiles(two);
    }
}

/* ---- one row tile times four token tiles ------------------------------------------------------------------------- */

TILE_INLINE void multiply_wide(const uint8_t *const x[4], int part) {
    _tile_loadd(6, x[0] + part, TILE_ROW_BYTES);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, x[1] + part, TILE_ROW_BYTES);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(6, x[2] + part, TILE_ROW_BYTES);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(7, x[3] + part, TILE_ROW_BYTES);
    _tile_dpbf16ps(3, 4, 7);
}

TILE_INLINE void wide_step(dw_gemm_form form, const uint8_t *w, const uint8_t *const x[4]) {
    _tile_loadd(4, w, TILE_ROW_BYTES);
    if (form != DW_GEMM_ROUNDED) multiply_wide(x, TILE_BYTES);
    multiply_wide(x, 0);
    if (form == DW_GEMM_SPLIT) {
        _tile_loadd(4, w + TILE_BYTES, TILE_ROW_BYTES);
        multiply_wide(x, 0);
    }
}

/* ---- few tokens --------------------------------------------------------------------------------------------- */

TILE_INLINE int weight_step(dw_gemm_form form) { return form == DW_GEMM_SPLIT ? 2 * TILE_BYTES : TILE_BYTES; }
TILE_INLINE int token_step(dw_gemm_form form) { return form == DW_GEMM_ROUNDED ? TILE_BYTES : 2 * TILE_BYTES; }

/* Step s of a chunk; n_row_tiles and `two` are constants after inlining.  The last token tile stands for a missing
 * one. */
TILE_INLINE void few_step(dw_gemm_form form, int n_row_tiles, bool two, const dw_amx_few *f, int s) {
    const uint8_t *w = f->panel + s * weight_step(form), *x = f->x + s * token_step(form);
    if (n_row_tiles == 2) {
        step_of_rows(form, two, w, f->panel_ld, x, f->x_ld);
        return;
    }
    const uint8_t *const tiles[4] = {x, x + f->x_ld, x + 2 * f->x_ld, x + (size_t)(f->n_token_tiles - 1) * f->x_ld};
    wide_step(form, w, tiles);
}

#endif
#endif
