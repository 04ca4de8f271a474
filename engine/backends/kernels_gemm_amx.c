/* kernels_gemm_amx.c - products of BF16 tiles: 16 rows x 32 values times 32 values x 16 tokens.
 *
 * A weight tile holds 16 rows of 32 numbers; a token tile holds 16 pairs of values, each for 16 tokens (what TDPBF16PS
 * asks of its second operand).  Two row tiles meet two token tiles, so that four sums hide each other's latency. */
#include "backends/kernels_vec.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16")))

enum { TILE_BYTES = 1024, ROW_BYTES = 64, SQUARE = DW_TILE * DW_TILE };

/* Two vectors of 16 as 32 numbers BF16, and what the rounding left over. */
TARGET static inline __m512i round_pair(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

TARGET static inline __m512i rest_pair(__m512 low, __m512 high, __m512i rounded) {
    const __m512i l = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(rounded)), 16);
    const __m512i h = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(rounded, 1)), 16);
    return round_pair(_mm512_sub_ps(low, _mm512_castsi512_ps(l)), _mm512_sub_ps(high, _mm512_castsi512_ps(h)));
}

TARGET void dw_amx_pack(const float *x, size_t ldx, int n_parts, uint8_t *tiles) {
    float part[2][SQUARE]; // 16 tokens x 16 pairs, moved as 32-bit words
    for (int t = 0; t < DW_TILE; t++) {
        const __m512 low = _mm512_loadu_ps(x + (size_t)t * ldx), high = _mm512_loadu_ps(x + (size_t)t * ldx + 16);
        const __m512i rounded = round_pair(low, high);
        _mm512_storeu_si512(part[0] + t * DW_TILE, rounded);
        if (n_parts > 1) _mm512_storeu_si512(part[1] + t * DW_TILE, rest_pair(low, high, rounded));
    }
    for (int i = 0; i < n_parts; i++) dw_vec_avx512.transpose(part[i], DW_TILE, (float *)(void *)(tiles + i * TILE_BYTES), DW_TILE);
}

TARGET void dw_amx_unpack(const float *values, int n_steps, int row, int n_parts, uint8_t *tiles) {
    uint8_t *to = tiles + row * ROW_BYTES;
    for (int s = 0; s < n_steps; s++, to += n_parts * TILE_BYTES) {
        const __m512 low = _mm512_loadu_ps(values + s * DW_AMX_STEP), high = _mm512_loadu_ps(values + s * DW_AMX_STEP + 16);
        const __m512i rounded = round_pair(low, high);
        _mm512_storeu_si512(to, rounded);
        if (n_parts > 1) _mm512_storeu_si512(to + TILE_BYTES, rest_pair(low, high, rounded));
    }
}

/* Static: gcc 12 takes ldtilecfg to read 8 bytes and would drop stores to the others. */
static const struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} config = {.palette = 1,
            .row_bytes = {ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES},
            .rows = {DW_TILE, DW_TILE, DW_TILE, DW_TILE, DW_TILE, DW_TILE, DW_TILE, DW_TILE}};

TARGET void dw_amx_begin(void) { _tile_loadconfig(&config); }
TARGET void dw_amx_end(void) { _tile_release(); }

/* ---- two row tiles times one or two token tiles ------------------------------------------------------------------ */

#define INLINE TARGET static inline __attribute__((always_inline))

/* Tiles 0..3 are sums, 4 and 5 weights, 6 and 7 tokens. */
INLINE void load_weights(const uint8_t *w, size_t ld) {
    _tile_loadd(4, w, ROW_BYTES);
    _tile_loadd(5, w + ld, ROW_BYTES);
}

INLINE void load_tokens(bool two, const uint8_t *x, size_t ld) {
    _tile_loadd(6, x, ROW_BYTES);
    if (two) _tile_loadd(7, x + ld, ROW_BYTES);
}

INLINE void multiply_tiles(bool two) {
    _tile_dpbf16ps(0, 4, 6);
    if (two) _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    if (two) _tile_dpbf16ps(3, 5, 7);
}

INLINE void begin_sums(bool two, bool fresh, const float *c, size_t ld) {
    if (fresh) {
        _tile_zero(0);
        if (two) _tile_zero(1);
        _tile_zero(2);
        if (two) _tile_zero(3);
        return;
    }
    _tile_loadd(0, c, ROW_BYTES);
    if (two) _tile_loadd(1, c + SQUARE, ROW_BYTES);
    _tile_loadd(2, c + ld, ROW_BYTES);
    if (two) _tile_loadd(3, c + ld + SQUARE, ROW_BYTES);
}

INLINE void end_sums(bool two, float *c, size_t ld) {
    _tile_stored(0, c, ROW_BYTES);
    if (two) _tile_stored(1, c + SQUARE, ROW_BYTES);
    _tile_stored(2, c + ld, ROW_BYTES);
    if (two) _tile_stored(3, c + ld + SQUARE, ROW_BYTES);
}

/* hi * lo, hi * hi, lo * hi: this order loads each part once.  n_ahead cache lines a step are fetched from `ahead`. */
INLINE void block(dw_gemm_form form, bool two, const uint8_t *w, size_t w_ld, const uint8_t *x, size_t x_ld, int n_steps, float *c,
                  size_t c_ld, bool fresh, const uint8_t *ahead, int n_ahead) {
    const int w_step = form == DW_GEMM_SPLIT ? 2 * TILE_BYTES : TILE_BYTES, x_step = form == DW_GEMM_ROUNDED ? TILE_BYTES : 2 * TILE_BYTES;
    begin_sums(two, fresh, c, c_ld);
    for (int s = 0; s < n_steps; s++, w += w_step, x += x_step) {
        for (int i = 0; i < n_ahead; i++, ahead += ROW_BYTES) _mm_prefetch((const char *)ahead, _MM_HINT_T1);
        load_weights(w, w_ld);
        if (form != DW_GEMM_ROUNDED) {
            load_tokens(two, x + TILE_BYTES, x_ld);
            multiply_tiles(two);
        }
        load_tokens(two, x, x_ld);
        multiply_tiles(two);
        if (form == DW_GEMM_SPLIT) {
            load_weights(w + TILE_BYTES, w_ld);
            multiply_tiles(two);
        }
    }
    end_sums(two, c, c_ld);
}

/* One or two token tiles.  While they meet the rows, the next two come closer: from L3 when the tokens are many. */
INLINE void multiply(dw_gemm_form form, bool two, const uint8_t *panel, int n_row_tiles, const uint8_t *x, int n_steps, float *c, bool fresh) {
    const size_t w_ld = (size_t)n_steps * TILE_BYTES * (form == DW_GEMM_SPLIT ? 2 : 1);
    const size_t x_ld = (size_t)n_steps * TILE_BYTES * (form == DW_GEMM_ROUNDED ? 1 : 2);
    const size_t c_ld = two ? 2 * SQUARE : SQUARE;
    const int n_pairs = n_row_tiles / 2, lines = 2 * DW_TILE * (form == DW_GEMM_ROUNDED ? 1 : 2), n_ahead = (lines + n_pairs - 1) / n_pairs;
    const uint8_t *ahead = x + 2 * x_ld;
    for (int r = 0; r < n_row_tiles; r += 2, ahead += (size_t)(n_ahead * n_steps) * ROW_BYTES)
        block(form, two, panel + (size_t)r * w_ld, w_ld, x, x_ld, n_steps, c + (size_t)r * c_ld, c_ld, fresh, ahead, n_ahead);
}

TARGET void dw_amx_multiply(dw_gemm_form form, const uint8_t *panel, int n_row_tiles, const uint8_t *x, int n_token_tiles, int n_steps,
                            float *c, bool fresh) {
    const bool two = n_token_tiles > 1;
    __asm__ volatile("" ::: "memory"); // gcc's tile loads do not say that they read memory: all stores happen before
    if (form == DW_GEMM_ROUNDED && two) multiply(DW_GEMM_ROUNDED, true, panel, n_row_tiles, x, n_steps, c, fresh);
    else if (form == DW_GEMM_ROUNDED) multiply(DW_GEMM_ROUNDED, false, panel, n_row_tiles, x, n_steps, c, fresh);
    else if (form == DW_GEMM_SPLIT_X && two) multiply(DW_GEMM_SPLIT_X, true, panel, n_row_tiles, x, n_steps, c, fresh);
    else if (form == DW_GEMM_SPLIT_X) multiply(DW_GEMM_SPLIT_X, false, panel, n_row_tiles, x, n_steps, c, fresh);
    else if (two) multiply(DW_GEMM_SPLIT, true, panel, n_row_tiles, x, n_steps, c, fresh);
    else multiply(DW_GEMM_SPLIT, false, panel, n_row_tiles, x, n_steps, c, fresh);
}

#else // levels below AMX are all there is; never called

void dw_amx_pack(const float *x, size_t ldx, int n_parts, uint8_t *tiles) { (void)x, (void)ldx, (void)n_parts, (void)tiles; }
void dw_amx_unpack(const float *values, int n_steps, int row, int n_parts, uint8_t *tiles) {
    (void)values, (void)n_steps, (void)row, (void)n_parts, (void)tiles;
}
void dw_amx_begin(void) {}
void dw_amx_end(void) {}
void dw_amx_multiply(dw_gemm_form form, const uint8_t *panel, int n_row_tiles, const uint8_t *x, int n_token_tiles, int n_steps,
                     float *c, bool fresh) {
    (void)form, (void)panel, (void)n_row_tiles, (void)x, (void)n_token_tiles, (void)n_steps, (void)c, (void)fresh;
}

#endif
