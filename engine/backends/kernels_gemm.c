/* kernels_gemm.c - matrix products: panels of weight rows in cache, multiplied with all tokens.
 *
 * A form (kernels.h) is a row of a table: how a tile of 16 tokens is packed, how rows of weights are unpacked into the
 * panel, and how a panel is multiplied with one or two tiles.  Everything else is the same for all forms, but for few
 * tokens (below).  Products without tiles prefetch weights while they multiply, those with tiles before they unpack.
 *
 * The sum over n is cut into chunks of 256.  For a block of up to 256 rows, chunk after chunk, the rows are unpacked
 * into a panel, which stays in L2, and multiplied with the packed tokens, two tiles of 16 at a time, which stay in L1.
 *
 *     for each block of 256 rows, each chunk of 256 values:
 *         panel (256, 256) = unpacked weights
 *         for each two tiles of 16 tokens:
 *             squares (16 rows, 16 tokens) += panel . tokens
 *
 * With few tokens, reading and unpacking weights take much of the time.  For up to DW_GEMM_FEW tokens a block has 16
 * rows, or as many as the form needs, so that weights are read nearly in the order of the file.  Where products prefetch
 * (prefetches_while_multiplying), blocks have FEW_ROWS rows, which read the tokens half as often: on Zen 5 they are
 * faster than 16 with 16, 32 and 64 tokens.  Tiles of BF16 have a loop of their own for few tokens, further down.
 *
 * A square has 1 KB; a block's squares follow each other.  Tokens are the lanes, so weights need no transposition; the
 * finished squares are transposed once.  Missing rows of a square are zeros, missing tokens anything.
 *
 * A matrix that is stored transposed gives the same panels: of 32 of its rows at a time a piece, as wide as the block,
 * is unpacked and transposed. */
#include "backends/kernels_gemm_int8.h"
#include "backends/kernels_vec.h"

#include <string.h>

enum {
    ROW_BLOCK = 256,
    FEW_ROWS = 32,
    ROWS_AHEAD = 16, // of a burst; the hardware prefetcher does not follow such short pieces of rows
    FEW_LEAD = 4,    // chunks, with few tokens, which take little time (ahead_of).  2 and 8: no difference, 16: slower
    SQUARE = DW_TILE * DW_TILE,
    AMX_TILE = 1024, // bytes
    SUM_BYTES = ROW_BLOCK * DW_GEMM_TOKENS * 4,
    PANEL_BYTES = ROW_BLOCK * DW_PANEL_LD * 4, // F32, or two parts of BF16
    FEW_PANEL = 2 * DW_TILE * DW_PANEL_K * 4,  // bytes of a panel for few tokens, two parts of BF16
    STRIP = DW_AMX_STEP * ROW_BLOCK,           // values of 32 rows of a transposed matrix
};
_Static_assert(sizeof(dw_int8_row) * ROW_BLOCK <= PANEL_BYTES && (int)RECORD == (int)DW_PANEL_K, "a panel of bytes");
_Static_assert(SUM_BYTES + PANEL_BYTES + DW_PANEL_K * 4 + SQUARE * 4 + STRIP * 4 <= DW_GEMM_SCRATCH,
               "a thread's scratch");

static int tiles_of(int n) { return (n + DW_TILE - 1) / DW_TILE; }
static int steps_of(int k) { return (k + DW_AMX_STEP - 1) / DW_AMX_STEP; }
static int token_parts(dw_gemm_form form) { return form == DW_GEMM_ROUNDED ? 1 : 2; }
static int weight_parts(dw_gemm_form form) { return form == DW_GEMM_SPLIT ? 2 : 1; }

const dw_int8 *dw_int8_of(dw_level level) {
#if defined(__x86_64__)
    if (level >= DW_AMX) return &dw_int8_amx;
    if (level == DW_AVX512) return &dw_int8_avx512;
    if (level == DW_AVX2) return &dw_int8_avx2;
#endif
    (void)level;
    return NULL;
}

dw_gemm_form dw_gemm_form_of(dw_level level, const dw_qtype_row *type, dw_precision precision, int n_tokens) {
    const dw_int8 *int8 = dw_int8_of(level);
    const bool has_bytes = precision == DW_PRECISION_INT8 && int8 && int8->multiply[type->id];
    const bool has_bf16 = level >= DW_AMX || dw_level_has_bf16(level);
    const bool few_bytes = n_tokens <= DW_GEMM_FEW && !dw_unpack_tiles[type->id];
    if (precision == DW_PRECISION_BF16 && has_bf16) return DW_GEMM_ROUNDED;
    if (has_bytes && (level < DW_AMX || few_bytes)) return DW_GEMM_INT8;
    if (level < DW_AMX) return DW_GEMM_F32;
    if (type->id == DW_BF16) return DW_GEMM_SPLIT_X;
    return precision != DW_PRECISION_SPLIT && type->block > 1 ? DW_GEMM_ROUNDED : DW_GEMM_SPLIT;
}

/* ---- forms -------------------------------------------------------------------------------------------------- */

typedef struct product {
    const dw_gemm_job *job;
    bool turned;      // w is stored transposed: "rows" are its columns
    size_t row_bytes; // of a stored row
    float *sum;       // [row tile][token tile] squares
    uint8_t *panel;
    float *row;    // DW_PANEL_K values of a weight row
    float *square; // one square, transposed
    float *strip;  // STRIP values as stored
} product;

/* A panel, and one or two token tiles of k values. */
typedef struct panel_job {
    dw_level level;
    dw_gemm_form form;
    dw_qtype type;
    int k, n_tokens;
    dw_amx_product p;
} panel_job;

/* Rows first .. first + n - 1 of a panel, k values each; row r of the panel is unpacked from row[r] + offset.  first is a
 * multiple of DW_TILE. */
typedef struct panel_rows {
    uint8_t *panel;
    const uint8_t *const *row;
    size_t offset;
    int first, n, k;
} panel_rows;

typedef struct form_row {
    int step;      // values that are packed at a time
    int row_tiles; // the panel's number of row tiles is a multiple of it
    size_t (*tile_bytes)(dw_gemm_form form, int k); // of 16 packed tokens; chunks of DW_PANEL_K add up
    /* Packs values at .. at + n - 1 of a tile: x (16, step), rows ld apart, with zeros from n on. */
    void (*pack)(const dw_gemm_tokens *in, const float *x, size_t ld, int at, int n, uint8_t *tile);
    size_t (*row_tile_bytes)(dw_gemm_form form, int k); // of 16 rows of the panel
    void (*unpack)(const product *p, panel_rows rows);
    void (*multiply)(const panel_job *j);
} form_row;

/* F32: a token tile is [k][16]; a row of the panel lies as it is decoded. */
static size_t tile_bytes_f32(dw_gemm_form form, int k) {
    (void)form;
    return (size_t)k * DW_TILE * sizeof(float);
}

static void pack_f32(const dw_gemm_tokens *in, const float *x, size_t ld, int at, int n, uint8_t *tile) {
    float *to = (float *)(void *)tile + (size_t)at * DW_TILE, square[SQUARE];
    dw_vec_of(in->level)->transpose(x, ld, n == DW_TILE ? to : square, DW_TILE);
    if (n < DW_TILE) memcpy(to, square, (size_t)n * DW_TILE * sizeof *to);
}

static size_t row_tile_bytes_f32(dw_gemm_form form, int k) {
    (void)form, (void)k;
    return DW_TILE * DW_PANEL_LD * sizeof(float);
}

static void unpack_f32(const product *p, panel_rows rows) {
    dw_unpack_fn *decode = dw_unpack_of(p->job->level, p->job->w->type);
    float *panel = (float *)(void *)rows.panel;
    for (int r = rows.first; r < rows.first + rows.n; r++)
        decode(rows.row[r] + rows.offset, panel + (size_t)r * DW_PANEL_LD, (size_t)rows.k);
}

static void multiply_f32(const panel_job *j) {
    const float *panel = (const float *)(const void *)j->p.panel, *x = (const float *)(const void *)j->p.x;
    dw_vec_of(j->level)->multiply(panel, j->p.n_row_tiles, x, j->n_tokens, j->k, j->p.c, j->p.fresh, j->p.ahead);
}

/* AMX: [step of 32][part] tiles. */
static size_t tile_bytes_amx(dw_gemm_form form, int k) {
    return (size_t)steps_of(k) * (size_t)token_parts(form) * AMX_TILE;
}

static void pack_amx(const dw_gemm_tokens *in, const float *x, size_t ld, int at, int n, uint8_t *tile) {
    (void)n;
    dw_amx_pack(x, ld, token_parts(in->form), tile + tile_bytes_amx(in->form, at));
}

static size_t row_tile_bytes_amx(dw_gemm_form form, int k) {
    return (size_t)steps_of(k) * (size_t)weight_parts(form) * AMX_TILE;
}

/* n rows of a row tile. */
static void unpack_tile(const product *p, const uint8_t *const *row, size_t offset, int n, int k, uint8_t *tiles) {
    const dw_qtype_row *type = p->job->w->type;
    const int n_parts = weight_parts(p->job->form), n_steps = steps_of(k);
    const bool in_place = type->id == DW_F32 && k % DW_AMX_STEP == 0;
    if (n_parts == 1 && dw_unpack_tiles[type->id] && k % DW_AMX_STEP == 0) {
        dw_unpack_tiles[type->id](row, offset, n, n_steps, tiles);
        return;
    }
    memset(p->row + k, 0, (size_t)(n_steps * DW_AMX_STEP - k) * sizeof *p->row);
    for (int r = 0; r < n; r++) {
        const uint8_t *w = row[r] + offset;
        if (!in_place) dw_unpack_of(p->job->level, type)(w, p->row, (size_t)k);
        dw_amx_unpack(in_place ? (const float *)(const void *)w : p->row, n_steps, r, n_parts, tiles);
    }
}

static void unpack_amx(const product *p, panel_rows rows) {
    const size_t bytes = row_tile_bytes_amx(p->job->form, rows.k);
    dw_assert(rows.first % DW_TILE == 0);
    for (int r = rows.first, end = rows.first + rows.n; r < end; r += DW_TILE)
        unpack_tile(p, rows.row + r, rows.offset, dw_smaller(DW_TILE, end - r), rows.k,
                    rows.panel + (size_t)(r / DW_TILE) * bytes);
}

static void multiply_amx(const panel_job *j) {
    if (j->level >= DW_AMX) dw_amx_multiply(j->form, &j->p);
    else dw_bf16_multiply(&j->p);
}

/* 8-bit inputs: kernels_gemm_int8.h. */
static size_t tile_bytes_int8(dw_gemm_form form, int k) {
    (void)form;
    return (size_t)((k + RECORD - 1) / RECORD) * sizeof(dw_int8_tile);
}

static void pack_int8(const dw_gemm_tokens *in, const float *x, size_t ld, int at, int n, uint8_t *tile) {
    (void)n;
    dw_int8_of(in->level)->pack(x, ld, at / DW_AMX_STEP, (dw_int8_tile *)(void *)tile);
}

static size_t row_tile_bytes_int8(dw_gemm_form form, int k) {
    (void)form, (void)k;
    return DW_TILE * sizeof(dw_int8_row);
}

static void unpack_int8(const product *p, panel_rows rows) {
    dw_int8_row *panel = (dw_int8_row *)(void *)rows.panel + rows.first;
    dw_int8_of(p->job->level)
        ->unpack[p->job->w->type->id](rows.row + rows.first, rows.offset, rows.n, rows.k / DW_AMX_STEP, panel);
}

static void multiply_int8(const panel_job *j) {
    dw_int8_of(j->level)->multiply[j->type](
        &(dw_int8_product){(const dw_int8_row *)(const void *)j->p.panel, (const dw_int8_tile *)(const void *)j->p.x,
                           j->p.n_row_tiles, j->p.n_token_tiles, j->k / DW_AMX_STEP, j->p.c, j->p.fresh, j->p.ahead});
}

#define AMX_ROW {DW_AMX_STEP, 2, tile_bytes_amx, pack_amx, row_tile_bytes_amx, unpack_amx, multiply_amx}
static const form_row forms[] = {
    [DW_GEMM_INT8] = {DW_AMX_STEP, 1, tile_bytes_int8, pack_int8, row_tile_bytes_int8, unpack_int8, multiply_int8},
    [DW_GEMM_ROUNDED] = AMX_ROW,
    [DW_GEMM_SPLIT_X] = AMX_ROW,
    [DW_GEMM_SPLIT] = AMX_ROW,
    [DW_GEMM_F32] = {DW_TILE, 1, tile_bytes_f32, pack_f32, row_tile_bytes_f32, unpack_f32, multiply_f32},
};

static bool uses_tiles(dw_level level, dw_gemm_form form) { return level >= DW_AMX && form != DW_GEMM_F32; }

/* Bytes of a weight tile's rows. */
static int part_bytes(dw_gemm_form form, dw_qtype type) {
    return form != DW_GEMM_INT8 ? DW_AMX_STEP * 2 : has_scale_of_16(type) ? 16 : 32;
}

/* ---- tokens ------------------------------------------------------------------------------------------------- */

/* Packed tokens: [chunk][tile of 16 tokens]. */
static size_t tile_bytes(dw_gemm_form form, int k) { return forms[form].tile_bytes(form, k); }

static size_t chunk_offset(dw_gemm_form form, int n_tokens, int first) {
    return (size_t)tiles_of(n_tokens) * tile_bytes(form, first);
}

size_t dw_gemm_pack_bytes(int n_tokens, int n) {
    const size_t split = (size_t)steps_of(n) * 2 * AMX_TILE, int8 = tile_bytes_int8(DW_GEMM_INT8, n);
    return (size_t)tiles_of(n_tokens) * (split > int8 ? split : int8);
}

/* Values k0 .. k0 + k - 1 of tokens that are rows of a tensor, as rows DW_PANEL_K apart. */
static void decode_rows(const dw_gemm_tokens *in, int first, int n_tokens, int k0, int k, float *rows) {
    dw_unpack_fn *decode = dw_unpack_of(in->level, in->w->type);
    const size_t row_bytes = dw_tensor_row_bytes(in->w), at = in->first + (size_t)first;
    const uint8_t *from = in->w->data + at * row_bytes + dw_qtype_row_bytes(in->w->type, (size_t)k0);
    for (int t = 0; t < n_tokens; t++, from += row_bytes) decode(from, rows + t * DW_PANEL_K, (size_t)k);
}

/* Packs a tile: the tokens from `first` on, values k0 .. k0 + k - 1. */
static void pack_tile(const dw_gemm_tokens *in, int first, int k0, int k, uint8_t *tile) {
    const form_row *form = &forms[in->form];
    const int step = form->step, n_tokens = dw_smaller(DW_TILE, in->n_tokens - first);
    float rows[DW_TILE * DW_PANEL_K];
    const size_t ldx = in->w ? DW_PANEL_K : in->ldx;
    const float *x = in->w ? rows : in->x + (size_t)first * in->ldx + k0;
    if (in->w) decode_rows(in, first, n_tokens, k0, k, rows);
    for (int i = 0; i < k; i += step) {
        const int n = dw_smaller(step, k - i);
        float whole[DW_TILE * DW_AMX_STEP];
        if (n == step && n_tokens == DW_TILE) {
            form->pack(in, x + i, ldx, i, n, tile);
            continue;
        }
        memset(whole, 0, sizeof whole);
        for (int t = 0; t < n_tokens; t++) memcpy(whole + t * step, x + (size_t)t * ldx + i, (size_t)n * sizeof *x);
        form->pack(in, whole, (size_t)step, i, n, tile);
    }
}

/* to (n_rows_padded, 16) = x (n_rows, n) and zeros. */
static void copy_part(const float *x, size_t ldx, int n_rows, int n, int n_rows_padded, float *to) {
    if (n < DW_TILE || n_rows < n_rows_padded) memset(to, 0, (size_t)n_rows_padded * DW_TILE * sizeof *to);
    for (int r = 0; r < n_rows; r++) memcpy(to + r * DW_TILE, x + (size_t)r * ldx, (size_t)n * sizeof *x);
}

/* Likewise of values k0 .. k0 + n - 1 (at most 32), where a token is a column of x. */
static void pack_turned_step(const dw_gemm_tokens *in, int first, int k0, int n, uint8_t *tile) {
    const float *x = in->x + (size_t)k0 * in->ldx + first;
    const int n_tokens = dw_smaller(DW_TILE, in->n_tokens - first);
    const bool whole = n == DW_AMX_STEP && n_tokens == DW_TILE;
    float strip[DW_AMX_STEP * DW_TILE];
    if (in->form == DW_GEMM_F32) {
        copy_part(x, in->ldx, n, n_tokens, n, (float *)(void *)tile);
        return;
    }
    if (!whole) copy_part(x, in->ldx, n, n_tokens, DW_AMX_STEP, strip);
    dw_amx_pack_turned(whole ? x : strip, whole ? in->ldx : DW_TILE, token_parts(in->form), tile);
}

/* Tiles of 16 tokens times DW_PANEL_K values, the threads in turn. */
static void pack_tiles(const dw_gemm_tokens *in, uint8_t *packed, int ith, int n_threads) {
    const int chunk = DW_PANEL_K, n_tiles = tiles_of(in->n_tokens), n_chunks = (in->n + chunk - 1) / chunk;
    for (int piece = ith; piece < n_tiles * n_chunks; piece += n_threads) {
        const int tile = piece % n_tiles, k0 = piece / n_tiles * chunk, k = dw_smaller(chunk, in->n - k0);
        pack_tile(in, tile * DW_TILE, k0, k,
                  packed + chunk_offset(in->form, in->n_tokens, k0) + (size_t)tile * tile_bytes(in->form, k));
    }
}

/* All tiles of 32 values, the threads in turn: rows of x are read from their beginning to their end. */
static void pack_turned_tiles(const dw_gemm_tokens *in, uint8_t *packed, int ith, int n_threads) {
    const int n_tiles = tiles_of(in->n_tokens);
    for (int k0 = ith * DW_AMX_STEP; k0 < in->n; k0 += n_threads * DW_AMX_STEP) {
        const int chunk = k0 / DW_PANEL_K * DW_PANEL_K, k = dw_smaller(DW_PANEL_K, in->n - chunk);
        uint8_t *to = packed + chunk_offset(in->form, in->n_tokens, chunk) + tile_bytes(in->form, k0 - chunk);
        for (int tile = 0; tile < n_tiles; tile++)
            pack_turned_step(in, tile * DW_TILE, k0, dw_smaller(DW_AMX_STEP, in->n - k0),
                             to + (size_t)tile * tile_bytes(in->form, k));
    }
}

static void check_tokens(const dw_gemm_tokens *in, const uint8_t *packed, int ith, int n_threads) {
    dw_assert((in->x || in->w) && packed && (uintptr_t)packed % 64 == 0 && in->n > 0 && in->n_tokens > 0);
    dw_assert(in->n_tokens <= DW_GEMM_TOKENS && ith >= 0 && ith < n_threads);
    (void)in, (void)packed, (void)ith, (void)n_threads;
}

void dw_gemm_pack(const dw_gemm_tokens *in, uint8_t *packed, int ith, int n_threads) {
    check_tokens(in, packed, ith, n_threads);
    dw_assert(in->n_tokens == 1 || in->w || in->ldx >= (size_t)in->n);
    pack_tiles(in, packed, ith, n_threads);
}

void dw_gemm_pack_tile(const dw_gemm_tokens *in, int tile, int n_tokens, uint8_t *packed) {
    check_tokens(in, packed, 0, 1);
    dw_assert(in->n_tokens <= DW_TILE && tile * DW_TILE + in->n_tokens <= n_tokens);
    for (int k0 = 0; k0 < in->n; k0 += DW_PANEL_K) {
        const int k = dw_smaller(DW_PANEL_K, in->n - k0);
        pack_tile(in, 0, k0, k, packed + chunk_offset(in->form, n_tokens, k0) + (size_t)tile * tile_bytes(in->form, k));
    }
}

void dw_gemm_pack_turned(const dw_gemm_tokens *in, uint8_t *packed, int ith, int n_threads) {
    check_tokens(in, packed, ith, n_threads);
    dw_assert(!in->w && in->form != DW_GEMM_INT8 && (in->n == 1 || in->ldx >= (size_t)in->n_tokens));
    pack_turned_tiles(in, packed, ith, n_threads);
}

/* ---- weights ------------------------------------------------------------------------------------------------ */

/* Where rows row0 .. row0 + n - 1 of the product begin; beyond its last row, where that one does. */
static void find_rows(const product *p, int row0, int n, const uint8_t **row) {
    for (int r = 0; r < n; r++) {
        const size_t at = p->job->first + (size_t)dw_smaller(row0 + r, p->job->n_rows - 1);
        row[r] = p->job->w->data + (p->job->list ? (size_t)p->job->list[at] : at) * p->row_bytes;
    }
}

/* Before n_rows rows are unpacked: row tiles that they do not fill become zeros.  Nothing reads the sums of missing
 * rows, but numbers that lie there may be slow. */
static void clear_missing(const product *p, uint8_t *panel, int n_rows, int n_row_tiles, int k) {
    const size_t bytes = forms[p->job->form].row_tile_bytes(p->job->form, k);
    const int first = n_rows / DW_TILE;
    if (first < n_row_tiles) memset(panel + (size_t)first * bytes, 0, (size_t)(n_row_tiles - first) * bytes);
}

/* Products by vectors prefetch while they multiply, a row at a step.  Those by tiles prefetch 16 rows at once before they
 * unpack as many; while these requests wait for memory, other loads seem to wait, too: with such bursts nearer ahead
 * products were slower still.  (results/kernels.md) */
static bool prefetches_while_multiplying(const dw_gemm_job *j) { return !uses_tiles(j->level, j->form); }

/* What is prefetched while chunk `chunk` of n_chunks is multiplied: the chunk `lead` further on of the same rows, or one of
 * the next block's.  The last chunk of a row may be shorter: then what follows it is prefetched, too. */
static dw_ahead ahead_of(const uint8_t *const *row, int n_rows, int chunk, int n_chunks, int lead, size_t chunk_bytes) {
    const int next = chunk + dw_smaller(lead, n_chunks);
    return next < n_chunks ? (dw_ahead){row, n_rows, (size_t)next * chunk_bytes, chunk_bytes}
                           : (dw_ahead){row + n_rows, n_rows, (size_t)(next - n_chunks) * chunk_bytes, chunk_bytes};
}

/* Unpacks k values of n_rows rows from `offset` on; row, for a burst: also of the ROWS_AHEAD rows after the last. */
static void unpack(const product *p, const uint8_t *const *row, int n_rows, size_t offset, int k) {
    const size_t bytes = dw_qtype_row_bytes(p->job->w->type, (size_t)k);
    const bool in_a_burst = !prefetches_while_multiplying(p->job);
    for (int r = 0; r < n_rows; r += DW_TILE) {
        const int n = dw_smaller(DW_TILE, n_rows - r);
        for (int i = r; in_a_burst && i < r + n; i++)
            for (size_t b = 0; b < bytes; b += 64) __builtin_prefetch(row[i + ROWS_AHEAD] + offset + b, 0, 2);
        forms[p->job->form].unpack(p, (panel_rows){p->panel, row, offset, r, n, k});
    }
}

typedef struct strip { // 32 stored rows of a transposed matrix
    const float *x;
    size_t ld;
} strip;

/* Columns row0 .. row0 + n_rows - 1 of the stored rows k0 .. k0 + n_k - 1 (at most 32) as a strip (32, n_padded), with
 * zeros elsewhere: F32 where it lies, if nothing is missing. */
static strip unpack_strip(const product *p, int row0, int n_rows, int n_padded, int k0, int n_k) {
    dw_unpack_fn *decode = dw_unpack_of(p->job->level, p->job->w->type);
    const size_t row_bytes = dw_tensor_row_bytes(p->job->w),
                 offset = dw_qtype_row_bytes(p->job->w->type, p->job->first + (size_t)row0);
    const uint8_t *from = p->job->w->data + (size_t)k0 * row_bytes + offset;
    if (p->job->w->type->id == DW_F32 && n_rows == n_padded && n_k == DW_AMX_STEP)
        return (strip){(const float *)(const void *)from, p->job->w->ne[0]};
    for (int k = 0; k < DW_AMX_STEP; k++, from += row_bytes) {
        float *to = p->strip + (size_t)k * (size_t)n_padded;
        const int n = k < n_k ? n_rows : 0;
        if (n) decode(from, to, (size_t)n);
        memset(to + n, 0, (size_t)(n_padded - n) * sizeof *to);
    }
    return (strip){p->strip, (size_t)n_padded};
}

/* Makes the panel that unpack would make of the transposed matrix. */
static void unpack_turned(const product *p, int row0, int n_rows, int n_padded, int k0, int k) {
    const dw_vec *vec = dw_vec_of(p->job->level);
    const int n_parts = weight_parts(p->job->form), n_steps = steps_of(k);
    const size_t row_bytes = row_tile_bytes_amx(p->job->form, k);
    for (int step = 0; step < n_steps; step++) {
        float *flat = (float *)(void *)p->panel + step * DW_AMX_STEP; // of DW_GEMM_F32
        const int first = step * DW_AMX_STEP;
        const strip s = unpack_strip(p, row0, n_rows, n_padded, k0 + first, dw_smaller(DW_AMX_STEP, k - first));
        for (int r = 0; r < n_padded; r += DW_TILE)
            if (p->job->form != DW_GEMM_F32)
                dw_amx_unpack_turned(s.x + r, s.ld, n_parts, p->panel + (size_t)(r / DW_TILE) * row_bytes +
                                                                 (size_t)(step * n_parts) * AMX_TILE);
            else
                for (int i = 0; i < DW_AMX_STEP; i += DW_TILE)
                    vec->transpose(s.x + (size_t)i * s.ld + r, s.ld, flat + (size_t)r * DW_PANEL_LD + i, DW_PANEL_LD);
    }
}

/* ---- product ------------------------------------------------------------------------------------------------ */

/* Copies finished sums, [row tile][token tile], to y. */
static void store_tokens(const product *p, const float *sum, int row0, int n_rows, int token0, int n_token_tiles) {
    const dw_vec *vec = dw_vec_of(p->job->level);
    for (int tile = 0; tile < n_token_tiles; tile++)
        for (int r = 0; r < n_rows; r += DW_TILE) {
            const int token = token0 + tile * DW_TILE, tokens = dw_smaller(DW_TILE, p->job->n_tokens - token);
            const int rows = dw_smaller(DW_TILE, n_rows - r);
            const float *square = sum + (size_t)(r / DW_TILE * n_token_tiles + tile) * SQUARE;
            float *y = p->job->y + (size_t)token * p->job->ldy + (size_t)(row0 + r);
            if (rows == DW_TILE && tokens == DW_TILE) {
                if (p->job->add)
                    vec->add_transposed(square, y, p->job->ldy);
                else
                    vec->transpose(square, DW_TILE, y, p->job->ldy);
                continue;
            }
            vec->transpose(square, DW_TILE, p->square, DW_TILE);
            for (int i = 0; i < tokens; i++, y += p->job->ldy)
                for (int k = 0; k < rows; k++) {
                    const float value = p->square[i * DW_TILE + k];
                    y[k] = p->job->add ? y[k] + value : value;
                }
        }
}

/* Copies all sums of a block to y by rows: each row is written from its beginning to its end. */
static void store_rows(const product *p, int row0, int n_rows, int n_row_tiles) {
    const int n = p->job->n_tokens, n_pairs = n / (2 * DW_TILE), done = n_pairs * 2 * DW_TILE;
    const size_t pair = (size_t)n_row_tiles * 2 * SQUARE, squares = n - done > DW_TILE ? 2 : 1; // of the last pair
    for (int r = 0; r < n_rows; r++) {
        float *y = p->job->y + (size_t)(row0 + r) * p->job->ldy;
        const size_t tile = (size_t)(r / DW_TILE) * SQUARE, row = (size_t)(r % DW_TILE) * DW_TILE;
        const float *rest = p->sum + (size_t)n_pairs * pair + tile * squares + row;
        dw_vec_of(p->job->level)->gather_row(p->sum + 2 * tile + row, pair, n_pairs, y, p->job->add);
        for (int i = 0; i < n - done; i++) {
            const float sum = rest[i / DW_TILE * SQUARE + i % DW_TILE];
            y[done + i] = p->job->add ? y[done + i] + sum : sum;
        }
    }
}

/* Sums of a pair of token tiles: [row tile][token tile]. */
static size_t pair_offset(int n_row_tiles, int token_tile) { return (size_t)(token_tile * n_row_tiles) * SQUARE; }

/* Multiplies rows row0 .. row0 + n_rows - 1, at most ROW_BLOCK.  Two token tiles stay in L1 while all rows are read. */
static void multiply_block(const product *p, int row0, int n_rows) {
    const int n = (int)p->job->w->ne[p->turned], chunk = DW_PANEL_K, n_token_tiles = tiles_of(p->job->n_tokens);
    const form_row *form = &forms[p->job->form];
    const int n_row_tiles = (tiles_of(n_rows) + form->row_tiles - 1) / form->row_tiles * form->row_tiles;
    const size_t chunk_bytes = dw_qtype_row_bytes(p->job->w->type, (size_t)chunk);
    const uint8_t *row[2 * ROW_BLOCK];
    const bool prefetches = !p->turned && prefetches_while_multiplying(p->job);
    const int n_chunks = (n + chunk - 1) / chunk, lead = p->job->n_tokens <= DW_GEMM_FEW ? FEW_LEAD : 1;
    if (!p->turned) find_rows(p, row0, n_rows + (prefetches ? n_rows : ROWS_AHEAD), row);
    for (int k0 = 0; k0 < n; k0 += chunk) {
        const int k = dw_smaller(chunk, n - k0);
        const bool fresh = k0 == 0, last = k0 + k == n;
        const uint8_t *x = p->job->packed + chunk_offset(p->job->form, p->job->n_tokens, k0);
        const dw_ahead ahead = ahead_of(row, n_rows, k0 / chunk, n_chunks, lead, chunk_bytes);
        if (p->turned) unpack_turned(p, row0, n_rows, n_row_tiles * DW_TILE, k0, k);
        else {
            clear_missing(p, p->panel, n_rows, n_row_tiles, k);
            unpack(p, row, n_rows, (size_t)(k0 / chunk) * chunk_bytes, k);
        }
        for (int t = 0; t < n_token_tiles; t += 2, x += 2 * tile_bytes(p->job->form, k)) {
            const int here = dw_smaller(2, n_token_tiles - t),
                      n_tokens = dw_smaller(2 * DW_TILE, p->job->n_tokens - t * DW_TILE);
            float *sum = p->sum + pair_offset(n_row_tiles, t);
            const panel_job j = {
                p->job->level,
                p->job->form,
                p->job->w->type->id,
                k,
                n_tokens,
                {p->panel, x, n_row_tiles, here, steps_of(k), sum, fresh, prefetches && t == 0 ? &ahead : NULL}};
            form->multiply(&j);
            if (last && !p->job->by_rows && !p->job->sums) store_tokens(p, sum, row0, n_rows, t * DW_TILE, here);
        }
    }
    if (p->job->by_rows) store_rows(p, row0, n_rows, n_row_tiles);
}

/* ---- neurons -------------------------------------------------------------------------------------------------- */

/* Where a square of sums lies among those of n_row_tiles row tiles. */
static size_t square_offset(int n_row_tiles, int n_token_tiles, int row_tile, int token_tile) {
    const int pair = token_tile / 2 * 2, in_pair = dw_smaller(2, n_token_tiles - pair);
    return pair_offset(n_row_tiles, pair) + (size_t)(row_tile * in_pair + token_tile - pair) * SQUARE;
}

void dw_gemm_sums_of_tokens(dw_level level, const float *sums, int n_rows, int n_tokens, const int *token, int n,
                            float *y, size_t ldy) {
    const int n_row_tiles = tiles_of(n_rows);
    float turned[SQUARE];
    dw_assert(n_rows % DW_AMX_STEP == 0);
    for (int i = 0, end; i < n; i = end) {
        const int tile = token[i] / DW_TILE;
        for (end = i; end < n && token[end] / DW_TILE == tile;) end++;
        for (int r = 0; r < n_row_tiles; r++) {
            const size_t at = square_offset(n_row_tiles, tiles_of(n_tokens), r, tile);
            dw_vec_of(level)->transpose(sums + at, DW_TILE, turned, DW_TILE);
            for (int k = i; k < end; k++)
                memcpy(y + (size_t)token[k] * ldy + r * DW_TILE, turned + token[k] % DW_TILE * DW_TILE,
                       DW_TILE * sizeof *y);
        }
    }
}

/* A square (neurons, tokens) into rows of tokens. */
static void store_neurons(const dw_vec *vec, const float *square, int n_tokens, float *rows, size_t ldr) {
    float turned[SQUARE];
    if (n_tokens == DW_TILE) {
        vec->transpose(square, DW_TILE, rows, ldr);
        return;
    }
    vec->transpose(square, DW_TILE, turned, DW_TILE);
    for (int t = 0; t < n_tokens; t++) memcpy(rows + (size_t)t * ldr, turned + t * DW_TILE, DW_TILE * sizeof *rows);
}

/* Two row tiles of sums and one token tile: 32 neurons are a step of the packed tile, whose pairs of values lie in their
 * rows already. */
static void pack_neuron_step(const dw_gemm_neurons *in, int row_tile, int token_tile, uint8_t *to) {
    const dw_vec *vec = dw_vec_of(in->level);
    const int n_row_tiles = tiles_of(in->n_rows), token = token_tile * DW_TILE;
    float neuron[2 * SQUARE];
    for (int i = 0; i < 2; i++) {
        const size_t at = square_offset(n_row_tiles, tiles_of(in->n_tokens), row_tile + i, token_tile);
        vec->glu[in->act](in->gate + at, in->up + at, SQUARE, neuron + i * SQUARE);
        if (in->rows)
            store_neurons(vec, neuron + i * SQUARE, dw_smaller(DW_TILE, in->n_tokens - token),
                          in->rows + (size_t)token * in->ldr + (row_tile + i) * DW_TILE, in->ldr);
    }
    dw_amx_pack_turned(neuron, DW_TILE, token_parts(in->form), to);
}

void dw_gemm_pack_neurons(const dw_gemm_neurons *in, uint8_t *packed) {
    dw_assert(dw_gemm_is_bf16(in->form) && in->n_tokens > 0 && in->n_tokens <= DW_GEMM_TOKENS);
    dw_assert(in->n % DW_AMX_STEP == 0 && in->first % DW_AMX_STEP == 0 && in->n_rows % DW_AMX_STEP == 0);
    dw_assert(in->n_rows <= DW_GEMM_SUM_ROWS && in->first + in->n_rows <= in->n);
    for (int t = 0; t < tiles_of(in->n_tokens); t++)
        for (int r = 0; r < tiles_of(in->n_rows); r += 2) {
            const int k0 = in->first + r * DW_TILE, chunk = k0 / DW_PANEL_K * DW_PANEL_K;
            const size_t tile = tile_bytes(in->form, dw_smaller(DW_PANEL_K, in->n - chunk));
            pack_neuron_step(in, r, t,
                             packed + chunk_offset(in->form, in->n_tokens, chunk) + (size_t)t * tile +
                                 tile_bytes(in->form, k0 - chunk));
        }
}

/* ---- few tokens, tiles of BF16 ------------------------------------------------------------------------------ */

/* Bands of 32 rows times up to two token tiles, or of 16 rows times up to four: the sums of a band are four tiles.
 * They stay there chunk after chunk.  While a chunk is multiplied, or after it where the type has no function for both,
 * the next one is unpacked into another panel.
 *
 * Each band reads all tokens.  Where they do not fit in L2 with the rest, a chunk of them is multiplied with several
 * bands, whose sums go to memory.  (64 tokens of 18,944 values, ns for 16 rows and 32 values: 1 band 116, 2 98, 4 84, 8
 * 68, 16 64 to 69; of 3,584 values, 1 band 52.) */
enum {
    MOST_BANDS = 8,
    MOST_FEW_ROWS = MOST_BANDS * 2 * DW_TILE,
    BAND_SUM = 4 * SQUARE,
    TOKENS_IN_L2 = 3 << 19, // bytes
};

typedef struct few_tokens {
    int n_row_tiles, n_token_tiles; // of a band
    int n_bands;                    // that share a chunk's tokens
} few_tokens;

_Static_assert(2 * FEW_PANEL <= PANEL_BYTES && MOST_BANDS * BAND_SUM * 4 <= SUM_BYTES, "panels and sums of bands");
_Static_assert(DW_GEMM_FEW <= 4 * DW_TILE, "a band has four tiles of sums");

/* A chunk of a band. */
typedef struct band {
    int group, n_group, i; // first row and number of rows of the bands that share tokens, 0: none; which of them
    int k0, k;
    bool is_second; // panel
} band;

static few_tokens few_tokens_of(const dw_gemm_job *j) {
    const int n_token_tiles = tiles_of(j->n_tokens);
    const size_t bytes = (size_t)n_token_tiles * tile_bytes(j->form, (int)j->w->ne[0]);
    return (few_tokens){n_token_tiles > 2 ? 1 : 2, n_token_tiles, bytes > TOKENS_IN_L2 ? MOST_BANDS : 1};
}

static int band_rows(const few_tokens *f) { return f->n_row_tiles * DW_TILE; }
static int rows_of_band(const few_tokens *f, const band *b) {
    return dw_smaller(band_rows(f), b->n_group - b->i * band_rows(f));
}

static band band_at(const product *p, const few_tokens *f, int group, int i, int k0, bool is_second) {
    return (band){group,
                  dw_smaller(f->n_bands * band_rows(f), p->job->n_rows - group),
                  i,
                  k0,
                  dw_smaller(DW_PANEL_K, (int)p->job->w->ne[0] - k0),
                  is_second};
}

/* The next band of the chunk, or the first of the next chunk, or of the next group. */
static band band_after(const product *p, const few_tokens *f, const band *b) {
    if ((b->i + 1) * band_rows(f) < b->n_group) return band_at(p, f, b->group, b->i + 1, b->k0, !b->is_second);
    if (b->k0 + b->k < (int)p->job->w->ne[0]) return band_at(p, f, b->group, 0, b->k0 + b->k, !b->is_second);
    return band_at(p, f, b->group + b->n_group, 0, 0, !b->is_second);
}

static uint8_t *panel_of(const product *p, const band *b) { return p->panel + (b->is_second ? FEW_PANEL : 0); }

/* row: of the group and of the next one.  Prefetched: the next chunk of the same rows, or the next group. */
static dw_amx_next next_of(const product *p, const few_tokens *f, const band *b, const uint8_t *const *row) {
    const dw_qtype_row *type = p->job->w->type;
    const size_t offset = dw_qtype_row_bytes(type, (size_t)b->k0), bytes = dw_qtype_row_bytes(type, (size_t)b->k);
    const int n = (int)p->job->w->ne[0];
    const bool is_last = b->k0 + b->k == n;
    row += b->i * band_rows(f);
    return (dw_amx_next){
        .row = row,
        .offset = offset,
        .ahead = is_last ? row + f->n_bands * band_rows(f) : row,
        .ahead_offset = is_last ? 0 : offset + bytes,
        .n_bytes = dw_qtype_row_bytes(type, (size_t)dw_smaller(DW_PANEL_K, is_last ? n : n - b->k0 - b->k)),
        .n_rows = rows_of_band(f, b),
        .k = b->k,
        .panel = panel_of(p, b)};
}

static void unpack_next(const product *p, const dw_amx_next *n) {
    for (int r = 0; r < n->n_rows; r++)
        for (size_t i = 0; i < n->n_bytes; i += 64) __builtin_prefetch(n->ahead[r] + n->ahead_offset + i, 0, 2);
    unpack_amx(p, (panel_rows){n->panel, n->row, n->offset, 0, n->n_rows, n->k});
}

static void multiply_band(const product *p, const few_tokens *f, const band *b, const dw_amx_next *next) {
    const dw_gemm_job *job = p->job;
    const bool last = b->k0 + b->k == (int)job->w->ne[0];
    const dw_amx_few few = {.form = job->form,
                            .n_row_tiles = f->n_row_tiles,
                            .n_token_tiles = f->n_token_tiles,
                            .n_steps = steps_of(b->k),
                            .panel = panel_of(p, b),
                            .x = job->packed + chunk_offset(job->form, job->n_tokens, b->k0),
                            .panel_ld = row_tile_bytes_amx(job->form, b->k),
                            .x_ld = tile_bytes(job->form, b->k)};
    dw_amx_few_fn *both =
        job->form == DW_GEMM_ROUNDED && next->k == DW_PANEL_K ? dw_amx_few_of[job->w->type->id] : NULL;
    float *sum = p->sum + b->i * BAND_SUM;
    if (f->n_bands > 1 || b->k0 == 0) dw_amx_few_begin(&few, b->k0 == 0, sum);
    if (both) both(&few, next);
    else dw_amx_few_chunk(&few);
    if (f->n_bands > 1 || last) dw_amx_few_end(&few, sum);
    if (last) store_tokens(p, sum, b->group + b->i * band_rows(f), rows_of_band(f, b), 0, f->n_token_tiles);
    if (!both) unpack_next(p, next);
}

/* Finds the band's rows and those of the next group, if it is the first of a group. */
static dw_amx_next begin_band(const product *p, const few_tokens *f, const band *b, const uint8_t **row) {
    if (!b->n_group) return (dw_amx_next){0};
    if (b->k0 == 0 && b->i == 0) find_rows(p, b->group, 2 * f->n_bands * band_rows(f), row);
    clear_missing(p, panel_of(p, b), rows_of_band(f, b), f->n_row_tiles, b->k);
    return next_of(p, f, b, row);
}

static void multiply_few(const product *p) {
    const few_tokens f = few_tokens_of(p->job);
    const uint8_t *row[2 * MOST_FEW_ROWS];
    band next = band_at(p, &f, 0, 0, 0, false);
    dw_amx_next rows = begin_band(p, &f, &next, row);
    unpack_next(p, &rows);
    for (band b = next; b.n_group; b = next) {
        next = band_after(p, &f, &b);
        rows = begin_band(p, &f, &next, row);
        multiply_band(p, &f, &b, &rows);
    }
}

/* ---- all products ------------------------------------------------------------------------------------------ */

static void check(const dw_gemm_job *j) {
    dw_assert(j->packed && (j->y || j->sums) && j->scratch && (uintptr_t)j->packed % 64 == 0 &&
              (uintptr_t)j->scratch % 64 == 0);
    dw_assert(j->form == DW_GEMM_F32 || j->level >= DW_AMX || j->form == DW_GEMM_ROUNDED ||
              (j->form == DW_GEMM_INT8 && dw_int8_of(j->level)->multiply[j->w->type->id]));
    dw_assert(j->n_rows >= 0 && j->n_tokens > 0 && j->n_tokens <= DW_GEMM_TOKENS);
    if (j->sums)
        dw_assert(dw_gemm_is_bf16(j->form) && !j->by_rows && !j->add && j->n_rows <= DW_GEMM_SUM_ROWS);
    else
        dw_assert(j->ldy >= (size_t)(j->by_rows ? j->n_tokens : j->n_rows));
    (void)j;
}

static void multiply_all(const dw_gemm_job *job, bool turned) {
    uint8_t *panel = job->scratch + SUM_BYTES;
    float *row = (float *)(void *)(panel + PANEL_BYTES), *square = row + DW_PANEL_K;
    const product p = {.job = job,
                       .turned = turned,
                       .row_bytes = dw_tensor_row_bytes(job->w),
                       .sum = job->sums ? job->sums : (float *)(void *)job->scratch,
                       .panel = panel,
                       .row = row,
                       .square = square,
                       .strip = square + SQUARE};
    const bool has_tiles = uses_tiles(job->level, job->form);
    if (has_tiles) dw_amx_begin(part_bytes(job->form, job->w->type->id));
    const bool is_few = !turned && job->n_tokens <= DW_GEMM_FEW && !job->sums;
    const bool by_bands = is_few && has_tiles && job->form != DW_GEMM_INT8 && !job->by_rows;
    const int few_rows = prefetches_while_multiplying(job) ? FEW_ROWS : forms[job->form].row_tiles * DW_TILE;
    const int block = is_few ? few_rows : ROW_BLOCK;
    if (by_bands) multiply_few(&p);
    for (int r = 0; !by_bands && r < job->n_rows; r += block) multiply_block(&p, r, dw_smaller(block, job->n_rows - r));
    if (has_tiles) dw_amx_end();
}

void dw_gemm_rows(const dw_gemm_job *job) {
    check(job);
    multiply_all(job, false);
}

void dw_gemm_columns(const dw_gemm_job *job) {
    check(job);
    dw_assert(!job->list && job->form != DW_GEMM_INT8 && job->first % (size_t)job->w->type->block == 0);
    multiply_all(job, true);
}

/* Two tiles of tokens lie where strips do. */
double dw_gemm_rate(dw_level level, dw_gemm_form form, double seconds, uint8_t *scratch) {
    _Static_assert(STRIP * 4 >= 2 * DW_TILE * DW_PANEL_K * 4, "two tiles of tokens");
    const bool has_tiles = uses_tiles(level, form);
    const uint8_t *panel = scratch + SUM_BYTES, *x = panel + PANEL_BYTES + (DW_PANEL_K + SQUARE) * 4;
    const panel_job job = {level, form, DW_Q4_0, DW_PANEL_K, 2 * DW_TILE,
                           {panel, x, ROW_BLOCK / DW_TILE, 2, steps_of(DW_PANEL_K), (float *)(void *)scratch, true}};
    const double began = dw_now();
    double operations = 0, now = began;
    memset(scratch, 0, DW_GEMM_SCRATCH);
    if (has_tiles) dw_amx_begin(part_bytes(form, DW_Q4_0));
    for (; now < began + seconds; now = dw_now(), operations += 2.0 * ROW_BLOCK * 2 * DW_TILE * DW_PANEL_K)
        forms[form].multiply(&job);
    if (has_tiles) dw_amx_end();
    return operations / (now - began);
}
