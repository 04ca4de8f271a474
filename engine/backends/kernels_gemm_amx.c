/* kernels_gemm_amx.c - products of BF16 tiles: 16 rows x 32 values times 32 values x 16 tokens.
 *
 * A weight tile holds 16 rows of 32 numbers; a token tile holds 16 pairs of values, each for 16 tokens, as TDPBF16PS
 * requires.  Two row tiles are multiplied with two token tiles, or one with four, so that four sums hide each other's
 * latency. */
#include "backends/kernels_tiles.h"

#if defined(__x86_64__)
#include <string.h>

#define TARGET TILE_TARGET
#define INLINE TILE_INLINE

enum { ROW_BYTES = TILE_ROW_BYTES, SQUARE = TILE_SQUARE };

TARGET void dw_amx_pack(const float *x, size_t ldx, int n_parts, uint8_t *tiles) {
    float part[2][SQUARE]; // 16 tokens x 16 pairs, moved as 32-bit words
    for (int t = 0; t < DW_TILE; t++) {
        const __m512 low = _mm512_loadu_ps(x + (size_t)t * ldx), high = _mm512_loadu_ps(x + (size_t)t * ldx + 16);
        const __m512i rounded = round_pair(low, high);
        _mm512_storeu_si512(part[0] + t * DW_TILE, rounded);
        if (n_parts > 1) _mm512_storeu_si512(part[1] + t * DW_TILE, rest_pair(low, high, rounded));
    }
    for (int i = 0; i < n_parts; i++)
        dw_vec_avx512.transpose(part[i], DW_TILE, (float *)(void *)(tiles + i * TILE_BYTES), DW_TILE);
}

/* Words of a pair: (low_i, high_i), one BF16 number each. */
TARGET static inline __m512i pair_words(__m512i rounded) {
    const __m512i first = _mm512_setr_epi32(0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005, 0x160006,
                                            0x170007, 0x180008, 0x190009, 0x1a000a, 0x1b000b, 0x1c000c, 0x1d000d,
                                            0x1e000e, 0x1f000f);
    return _mm512_permutexvar_epi16(first, rounded);
}

TARGET void dw_amx_pack_turned(const float *x, size_t ldx, int n_parts, uint8_t *tiles) {
    for (int i = 0; i < DW_TILE; i++, x += 2 * ldx) {
        const __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + ldx);
        const __m512i rounded = round_pair(low, high);
        _mm512_storeu_si512(tiles + i * ROW_BYTES, pair_words(rounded));
        if (n_parts > 1)
            _mm512_storeu_si512(tiles + TILE_BYTES + i * ROW_BYTES, pair_words(rest_pair(low, high, rounded)));
    }
}

TARGET void dw_amx_unpack_turned(const float *x, size_t ldx, int n_parts, uint8_t *tiles) {
    float part[2][SQUARE]; // 16 pairs x 16 rows
    dw_amx_pack_turned(x, ldx, n_parts, (uint8_t *)part);
    for (int i = 0; i < n_parts; i++)
        dw_vec_avx512.transpose(part[i], DW_TILE, (float *)(void *)(tiles + i * TILE_BYTES), DW_TILE);
}

TARGET void dw_amx_unpack_halves(const float *low, const float *high, size_t ld, uint8_t *tile) {
    for (int r = 0; r < DW_TILE; r++, low += ld, high += ld, tile += ROW_BYTES)
        _mm512_storeu_si512(tile, round_pair(_mm512_loadu_ps(low), _mm512_loadu_ps(high)));
}

TARGET void dw_amx_unpack(const float *values, int n_steps, int row, int n_parts, uint8_t *tiles) {
    uint8_t *to = tiles + row * ROW_BYTES;
    for (int s = 0; s < n_steps; s++, to += n_parts * TILE_BYTES) {
        const __m512 low = _mm512_loadu_ps(values + s * DW_AMX_STEP),
                     high = _mm512_loadu_ps(values + s * DW_AMX_STEP + 16);
        const __m512i rounded = round_pair(low, high);
        _mm512_storeu_si512(to, rounded);
        if (n_parts > 1) _mm512_storeu_si512(to + TILE_BYTES, rest_pair(low, high, rounded));
    }
}

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

#define CONFIG(bytes)                                                                                                  \
    {.palette = 1,                                                                                                     \
     .row_bytes = {ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, bytes, bytes, ROW_BYTES, ROW_BYTES},                    \
     .rows = {DW_TILE, DW_TILE, DW_TILE, DW_TILE, DW_TILE, DW_TILE, (bytes) / 4, (bytes) / 4}}

/* Static, because gcc 12 believes that ldtilecfg reads 8 bytes and would drop stores to the others. */
static const tile_config of_64 = CONFIG(64), of_32 = CONFIG(32), of_16 = CONFIG(16);

TARGET void dw_amx_begin(int bytes) {
    dw_assert(bytes == 64 || bytes == 32 || bytes == 16);
    _tile_loadconfig(bytes == 64 ? &of_64 : bytes == 32 ? &of_32 : &of_16);
}
TARGET void dw_amx_end(void) { _tile_release(); }

/* ---- two row tiles times one or two token tiles ------------------------------------------------------------------ */

/* Sums of two row tiles lie one or two squares apart. */
INLINE void begin_sums(bool two, bool fresh, const float *c) {
    const int ld = two ? 2 * SQUARE : SQUARE;
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

INLINE void end_sums(bool two, float *c) {
    const int ld = two ? 2 * SQUARE : SQUARE;
    _tile_stored(0, c, ROW_BYTES);
    if (two) _tile_stored(1, c + SQUARE, ROW_BYTES);
    _tile_stored(2, c + ld, ROW_BYTES);
    if (two) _tile_stored(3, c + ld + SQUARE, ROW_BYTES);
}

typedef struct tile_block {
    const uint8_t *w, *x, *ahead; // ahead: prefetched meanwhile, n_ahead cache lines per step
    size_t w_ld, x_ld, c_ld;
    int n_steps, n_ahead;
    float *c;
} tile_block;

INLINE void block(dw_gemm_form form, bool two, tile_block b, bool fresh) {
    const int w_step = weight_step(form), x_step = token_step(form);
    begin_sums(two, fresh, b.c);
    for (int s = 0; s < b.n_steps; s++, b.w += w_step, b.x += x_step) {
        for (int i = 0; i < b.n_ahead; i++, b.ahead += ROW_BYTES) _mm_prefetch((const char *)b.ahead, _MM_HINT_T1);
        step_of_rows(form, two, b.w, b.w_ld, b.x, b.x_ld);
    }
    end_sums(two, b.c);
}

/* One or two token tiles.  Meanwhile the next two are prefetched into L2; with many tokens they come from L3. */
INLINE void multiply(dw_gemm_form form, bool two, const dw_amx_product *p) {
    const int w_parts = form == DW_GEMM_SPLIT ? 2 : 1, x_parts = form == DW_GEMM_ROUNDED ? 1 : 2;
    const int n_pairs = p->n_row_tiles / 2, n_ahead = (2 * DW_TILE * x_parts + n_pairs - 1) / n_pairs;
    const size_t step_bytes = (size_t)p->n_steps * TILE_BYTES;
    tile_block b = {.w = p->panel,
                    .x = p->x,
                    .w_ld = step_bytes * (size_t)w_parts,
                    .x_ld = step_bytes * (size_t)x_parts,
                    .c_ld = two ? 2 * SQUARE : SQUARE,
                    .n_steps = p->n_steps,
                    .n_ahead = n_ahead,
                    .c = p->c};
    b.ahead = p->x + 2 * b.x_ld;
    for (int r = 0; r < p->n_row_tiles; r += 2, b.ahead += (size_t)(n_ahead * p->n_steps) * ROW_BYTES) {
        b.w = p->panel + (size_t)r * b.w_ld;
        b.c = p->c + (size_t)r * b.c_ld;
        block(form, two, b, p->fresh);
    }
}

/* ---- few tokens ------------------------------------------------------------------------------------------------ */

/* The four sums are squares that follow each other; or two are, of one token tile. */
INLINE bool has_four(const dw_amx_few *f) { return f->n_row_tiles == 1 || f->n_token_tiles > 1; }

TARGET void dw_amx_few_begin(const dw_amx_few *f, bool fresh, const float *c) {
    dw_assert(f->n_row_tiles == 1 || f->n_row_tiles == 2);
    dw_assert(f->n_token_tiles >= 1 && f->n_token_tiles <= (f->n_row_tiles == 1 ? 4 : 2));
    TILES_READ_MEMORY();
    begin_sums(has_four(f), fresh, c);
}

INLINE void few_steps(dw_gemm_form form, const dw_amx_few *f) {
    for (int s = 0; s < f->n_steps; s++)
        if (f->n_row_tiles == 1) few_step(form, 1, true, f, s);
        else if (f->n_token_tiles > 1) few_step(form, 2, true, f, s);
        else few_step(form, 2, false, f, s);
}

TARGET void dw_amx_few_chunk(const dw_amx_few *f) {
    TILES_READ_MEMORY();
    if (f->form == DW_GEMM_ROUNDED) few_steps(DW_GEMM_ROUNDED, f);
    else if (f->form == DW_GEMM_SPLIT_X) few_steps(DW_GEMM_SPLIT_X, f);
    else few_steps(DW_GEMM_SPLIT, f);
}

TARGET void dw_amx_few_end(const dw_amx_few *f, float *c) { end_sums(has_four(f), c); }

TARGET void dw_amx_multiply(dw_gemm_form form, const dw_amx_product *p) {
    const bool two = p->n_token_tiles > 1;
    dw_assert(p->n_row_tiles % 2 == 0 && p->n_token_tiles >= 1 && p->n_token_tiles <= 2 && p->n_steps > 0);
    TILES_READ_MEMORY();
    if (form == DW_GEMM_ROUNDED && two) multiply(DW_GEMM_ROUNDED, true, p);
    else if (form == DW_GEMM_ROUNDED) multiply(DW_GEMM_ROUNDED, false, p);
    else if (form == DW_GEMM_SPLIT_X && two) multiply(DW_GEMM_SPLIT_X, true, p);
    else if (form == DW_GEMM_SPLIT_X) multiply(DW_GEMM_SPLIT_X, false, p);
    else if (two) multiply(DW_GEMM_SPLIT, true, p);
    else multiply(DW_GEMM_SPLIT, false, p);
}

/* ---- the same packed numbers without tiles ------------------------------------------------------------------------ */

#define DOT_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))

enum { DOT_ROWS = 8, PAIR_BYTES = 4 };

/* DOT_ROWS rows of a weight tile times one or two token tiles: a pair of a row's numbers times that pair of 16 tokens.  As
 * many rows ahead, from first_ahead on, are prefetched meanwhile. */
DOT_TARGET static inline __attribute__((always_inline)) void dot_rows(bool two, tile_block b, bool fresh,
                                                                      const dw_ahead *ahead, int first_ahead) {
    __m512 sum[2][DOT_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < DOT_ROWS; r++) {
        sum[0][r] = fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(b.c + r * DW_TILE);
        if (two) sum[1][r] = fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(b.c + SQUARE + r * DW_TILE);
    }
    for (int s = 0; s < b.n_steps; s++, b.w += TILE_BYTES, b.x += TILE_BYTES) {
        for (int r = s; ahead && r < DOT_ROWS; r += b.n_steps) dw_prefetch_ahead(ahead, first_ahead + r);
        for (int pair = 0; pair < DW_TILE; pair++) {
            const __m512bh x0 = (__m512bh)_mm512_loadu_si512(b.x + pair * ROW_BYTES);
            const __m512bh x1 = two ? (__m512bh)_mm512_loadu_si512(b.x + b.x_ld + pair * ROW_BYTES) : x0;
#pragma GCC unroll 8
            for (int r = 0; r < DOT_ROWS; r++) {
                int32_t numbers;
                memcpy(&numbers, b.w + r * ROW_BYTES + pair * PAIR_BYTES, sizeof numbers);
                const __m512bh w = (__m512bh)_mm512_set1_epi32(numbers);
                sum[0][r] = _mm512_dpbf16_ps(sum[0][r], w, x0);
                if (two) sum[1][r] = _mm512_dpbf16_ps(sum[1][r], w, x1);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < DOT_ROWS; r++) {
        _mm512_storeu_ps(b.c + r * DW_TILE, sum[0][r]);
        if (two) _mm512_storeu_ps(b.c + SQUARE + r * DW_TILE, sum[1][r]);
    }
}

DOT_TARGET void dw_bf16_multiply(const dw_amx_product *p) {
    const bool two = p->n_token_tiles > 1;
    const size_t tile = (size_t)p->n_steps * TILE_BYTES;
    dw_assert(p->n_row_tiles > 0 && p->n_token_tiles >= 1 && p->n_token_tiles <= 2 && p->n_steps > 0);
    for (int r = 0; r < p->n_row_tiles * DW_TILE; r += DOT_ROWS) {
        const size_t at = (size_t)(r / DW_TILE), row = (size_t)(r % DW_TILE);
        const tile_block b = {.w = p->panel + at * tile + row * ROW_BYTES,
                              .x = p->x,
                              .x_ld = tile,
                              .n_steps = p->n_steps,
                              .c = p->c + at * (two ? 2 * SQUARE : SQUARE) + row * DW_TILE};
        if (two)
            dot_rows(true, b, p->fresh, p->ahead, r);
        else
            dot_rows(false, b, p->fresh, p->ahead, r);
    }
}

#else // no AMX on this machine: never called

void dw_bf16_multiply(const dw_amx_product *p) { (void)p; }

void dw_amx_pack(const float *x, size_t ldx, int n_parts, uint8_t *tiles) {
    (void)x, (void)ldx, (void)n_parts, (void)tiles;
}
void dw_amx_unpack(const float *values, int n_steps, int row, int n_parts, uint8_t *tiles) {
    (void)values, (void)n_steps, (void)row, (void)n_parts, (void)tiles;
}
void dw_amx_pack_turned(const float *x, size_t ldx, int n_parts, uint8_t *tiles) {
    (void)x, (void)ldx, (void)n_parts, (void)tiles;
}
void dw_amx_unpack_turned(const float *x, size_t ldx, int n_parts, uint8_t *tiles) {
    (void)x, (void)ldx, (void)n_parts, (void)tiles;
}
void dw_amx_unpack_halves(const float *low, const float *high, size_t ld, uint8_t *tile) {
    (void)low, (void)high, (void)ld, (void)tile;
}
void dw_amx_few_begin(const dw_amx_few *few, bool fresh, const float *c) { (void)few, (void)fresh, (void)c; }
void dw_amx_few_chunk(const dw_amx_few *few) { (void)few; }
void dw_amx_few_end(const dw_amx_few *few, float *c) { (void)few, (void)c; }
void dw_amx_begin(int bytes) { (void)bytes; }
void dw_amx_end(void) {}
void dw_amx_multiply(dw_gemm_form form, const dw_amx_product *p) { (void)form, (void)p; }

#endif
