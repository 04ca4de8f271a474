/* kernels_vec.h - kernels of the cpu backend: functions on F32 activations, one table per level.
 *
 * One source, kernels_vec_body.inc, is compiled once per level with vectors of 4, 8 or 16 lanes.  Every function
 * computes an output element in an order that depends only on the lengths of its vectors, never on the other tokens
 * or queries of the pass; exact passes depend on this.  exp() is accurate to 2e-7 relative; NaN gives NaN. */
#ifndef DW_KERNELS_VEC_H
#define DW_KERNELS_VEC_H

#include "backends/kernels.h"

enum {
    DW_TILE = 16,         // rows and columns of a square that is transposed, multiplied and stored as a unit
    DW_KEY_TILE = 64,     // positions that attention takes at a time, beginning at multiples of it
    DW_QUERY_BLOCK = 64,  // rows of an attention block: queries x heads; more if a group has more heads
    DW_TILED_ROWS = 256,  // the same of attention by tiles
};

/* Queries that share one KV head of one sequence. */
typedef struct dw_attend_job {
    const dw_qtype_row *type;
    void (*decode)(const void *src, float *dst, size_t n); // of the type
    const void *k, *v;  // position 0 of the KV head, rows of head_dim
    int head_dim, n_group; // query heads that share the KV head
    int n_tokens;       // at most max(1, DW_QUERY_BLOCK / n_group); by tiles max(1, DW_TILED_ROWS / n_group)
    bool is_rounded;    // by tiles: factors are one BF16, not sums of two
    bool has_tiles;     // by tiles: AMX multiplies them, not AVX512_BF16 dots, which need is_rounded
    bool is_alone;      // its token is no part of a run of tokens of its sequence; for the choice of a function
    const int32_t *pos; // n_tokens, not descending: token t sees positions 0..pos[t]
    const float *q;     // head g of token t: q + t * ld + g * head_dim
    float *mix;         // likewise
    size_t ld;
    float scale;
    uint8_t *scratch;   // dw_attend_scratch_bytes or dw_attend_tiles_scratch_bytes, aligned to 64
} dw_attend_job;

size_t dw_attend_scratch_bytes(int head_dim, int n_group);

/* Parts of weight rows that are multiplied later: of row r < n_rows, n_bytes from row[r] + offset on.  Products without
 * tiles prefetch them into the second level while they multiply, a row at a time. */
typedef struct dw_ahead {
    const uint8_t *const *row;
    int n_rows;
    size_t offset, n_bytes;
} dw_ahead;

static inline void dw_prefetch_ahead(const dw_ahead *a, int r) {
    if (r < a->n_rows)
        for (size_t i = 0; i < a->n_bytes; i += 64) __builtin_prefetch(a->row[r] + a->offset + i, 0, 2);
}

typedef struct dw_vec {
    /* dst (16, 16) = src transposed. */
    void (*transpose)(const float *src, size_t ld_src, float *dst, size_t ld_dst);
    void (*add_transposed)(const float *src, float *dst, size_t ld_dst); // dst += src transposed; src without gaps
    /* y (n_pairs, 32) (+)= the same row of pairs of squares; pairs lie ld apart. */
    void (*gather_row)(const float *row, size_t ld, int n_pairs, float *y, bool add);
    /* C[row tile][token tile] (16 rows, 16 tokens) (+)= panel . x over k values.  Rows of the panel lie DW_PANEL_LD
     * floats apart; token tiles of x are (k, 16) and follow each other.  `fresh`: C begins at zero.  Columns of C from
     * n_tokens on may stay as they are.  ahead: as many rows as the panel has, or fewer; NULL: none. */
    void (*multiply)(const float *panel, int n_row_tiles, const float *x, int n_tokens, int k, float *c, bool fresh,
                     const dw_ahead *ahead);
    void (*norm)(const float *x, const float *weight, int n, float eps, float *y);    // y = x / rms(x) * weight
    void (*add)(float *x, const float *y, const float *bias, int n);                  // x += y + bias; bias may be NULL
    /* gate = act(gate); neuron = gate * up; by dw_act */
    void (*glu[DW_N_ACTS])(float *gate, const float *up, int n, float *neuron);
    void (*rope)(float *x, const float *cos_sin, int head_dim, bool neox);            // one head
    void (*to_f16)(const float *x, int n, uint16_t *y);
    void (*exp_sum)(const float *x, int n, float *max, float *sum);                   // sum of exp(x - max)
    void (*attend)(const dw_attend_job *job);
    void (*attend_token)(const dw_attend_job *job);                                    // n_tokens 1; sums differ
} dw_vec;

extern const dw_vec dw_vec_portable, dw_vec_avx2, dw_vec_avx512;
const dw_vec *dw_vec_of(dw_level level);

enum {
    DW_PANEL_K = 256,             // values of a chunk: two tiles of tokens and two of weights fit in L1
    DW_PANEL_LD = DW_PANEL_K + 16, // of an F32 panel; the gap spreads rows over cache sets
};

/* The fastest decoder of a level; its results are those of type->decode, bit for bit. */
typedef void dw_unpack_fn(const void *src, float *dst, size_t n);
extern dw_unpack_fn *const dw_unpack_avx2[DW_QTYPE_END], *const dw_unpack_avx512[DW_QTYPE_END]; // NULL: none of its own
dw_unpack_fn *dw_unpack_of(dw_level level, const dw_qtype_row *type);

/* ---- AMX (kernels_gemm_amx.c): 16 rows x 32 values BF16 make a tile of 1 KB ---------------------------------- */

enum { DW_AMX_STEP = 32 };

/* Packs x (16, 32) F32, rows ldx apart, as n_parts tiles of 16 pairs of values x 16 tokens x 2. */
void dw_amx_pack(const float *x, size_t ldx, int n_parts, uint8_t *tiles);
/* The same tiles of the transposed values: x (32, 16), a token is a column.  Pairs lie in two rows, so that nothing is
 * transposed. */
void dw_amx_pack_turned(const float *x, size_t ldx, int n_parts, uint8_t *tiles);
/* Packs 32 * n_steps values as row `row` of weight tiles: step s, part p is at tiles + (s * n_parts + p) KB. */
void dw_amx_unpack(const float *values, int n_steps, int row, int n_parts, uint8_t *tiles);
/* The same, in one part, of n_rows <= 16 rows of 32 * n_steps packed weights of a type, which begin at row[r] + offset:
 * rows 0 .. n_rows - 1 of the tiles, without F32 in between; needs AVX512_BF16.  NULL: the type has none. */
typedef void dw_unpack_tiles_fn(const uint8_t *const *row, size_t offset, int n_rows, int n_steps, uint8_t *tiles);
extern dw_unpack_tiles_fn *const dw_unpack_tiles[DW_QTYPE_END];
/* A whole tile of one part: its rows are 16 values of `low` and 16 of `high`, whose rows lie ld apart. */
void dw_amx_unpack_halves(const float *low, const float *high, size_t ld, uint8_t *tile);
/* Packs x (32, 16), whose columns are the rows of one step's weight tiles. */
void dw_amx_unpack_turned(const float *x, size_t ldx, int n_parts, uint8_t *tiles);
/* Before products with tiles: rows of weight tiles have 64 bytes (32 values BF16), or 32 or 16 (8-bit inputs). */
void dw_amx_begin(int bytes);
void dw_amx_end(void);
/* C[row tile][token tile] (16, 16) (+)= panel . x over n_steps steps.  Row tiles of the panel (an even number) and token
 * tiles (one or two) follow each other. */
typedef struct dw_amx_product {
    const uint8_t *panel, *x;
    int n_row_tiles, n_token_tiles, n_steps;
    float *c;
    bool fresh;            // c begins at zero
    const dw_ahead *ahead; // as many rows as the panel has, or fewer; NULL: none, as always with tiles
} dw_amx_product;
void dw_amx_multiply(dw_gemm_form form, const dw_amx_product *p); // with the parts of `form`
/* DW_GEMM_ROUNDED without tiles: AVX512_BF16 dots of the same packed numbers. */
void dw_bf16_multiply(const dw_amx_product *p);

/* attend with tiles, each number as one BF16 or two; scratch has dw_attend_tiles_scratch_bytes. */
void dw_attend_tiles(const dw_attend_job *job);
size_t dw_attend_tiles_scratch_bytes(int head_dim, int n_group);

/* Products of few tokens, a chunk of n_steps: n_row_tiles times n_token_tiles, 2 times 1 or 2, or 1 times 3 or 4.  Row
 * tiles and token tiles lie panel_ld and x_ld bytes apart.  The sums stay in tiles from begin to end, which may enclose
 * all chunks, or each. */
typedef struct dw_amx_few {
    dw_gemm_form form;
    int n_row_tiles, n_token_tiles, n_steps;
    const uint8_t *panel, *x;
    size_t panel_ld, x_ld;
} dw_amx_few;

/* Rows that are unpacked meanwhile: n_rows rows of k weights, at row[r] + offset, into row tiles of another panel.
 * n_bytes from ahead[r] + ahead_offset on, or some more, are prefetched. */
typedef struct dw_amx_next {
    const uint8_t *const *row, *const *ahead;
    size_t offset, ahead_offset, n_bytes;
    int n_rows, k;
    uint8_t *panel;
} dw_amx_next;

void dw_amx_few_begin(const dw_amx_few *few, bool fresh, const float *c); // c as of dw_amx_few_end; fresh: zeros
void dw_amx_few_chunk(const dw_amx_few *few);
void dw_amx_few_end(const dw_amx_few *few, float *c); // c: [row tile][token tile] squares
/* dw_amx_few_chunk in DW_GEMM_ROUNDED while rows of a type are unpacked; next->k is DW_PANEL_K.  NULL: the type has
 * none. */
typedef void dw_amx_few_fn(const dw_amx_few *few, const dw_amx_next *next);
extern dw_amx_few_fn *const dw_amx_few_of[DW_QTYPE_END];

#endif
