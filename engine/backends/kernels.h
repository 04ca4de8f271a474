/* kernels.h - the cpu backend's kernels: dot products and matrix products.
 *
 * Levels.  One level is chosen at start (the best that the CPU has, or $DEADWOOD_CPU): portable C, avx2 (AVX2 + FMA +
 * F16C), avx512 (F BW VL DQ VNNI; some rows also VBMI), amx (avx512 + AVX512_BF16 + AMX tiles, BF16 and INT8).
 * Functions of a level carry target attributes, so one portable binary holds all.  A level uses its own rows of the
 * tables and those of lower levels.
 *
 * Two shapes of work:
 *   dot rows   decode, 1..DW_DOT_MAX_COLS activation vectors: weight rows are read once, straight from the packed
 *              file; activations are int8 blocks of 32 with an F32 scale (quantized weights) or F32 (F32, F16, BF16).
 *   gemm       prefill and exact passes: a panel of weight rows is unpacked into cache (F32, bytes, or BF16 tiles) and
 *              multiplied with all tokens.  The order of every sum depends neither on the number of tokens nor on that
 *              of threads, so exact passes use only this.
 *
 * Functions on activations (norms, attention, exponentials) are in kernels_vec.h. */
#ifndef DW_KERNELS_H
#define DW_KERNELS_H

#include "backends/backends.h"

typedef enum dw_level { DW_PORTABLE, DW_AVX2, DW_AVX512, DW_AMX, DW_N_LEVELS } dw_level;

extern const char *const dw_level_names[DW_N_LEVELS];
bool dw_level_usable(dw_level level);   // the first call asks Linux for AMX's tiles, for all threads of the process
bool dw_level_has_bf16(dw_level level); // usable, and it can take products in DW_GEMM_ROUNDED
bool dw_level_has_vbmi(dw_level level); // usable, and it can take the rows of dw_dot_vbmi and dw_axpy_vbmi

/* Registers of CPUID, and the register states that the operating system saves (XCR0). */
typedef struct dw_cpu_words {
    uint32_t leaf1_c, leaf7_b, leaf7_c, leaf7_d, leaf7_1_a, state;
} dw_cpu_words;

/* True when a CPU with these words has all instructions of the level. */
bool dw_level_runs_on(dw_level level, const dw_cpu_words *cpu);
bool dw_vbmi_runs_on(const dw_cpu_words *cpu); // likewise of avx512 and AVX512_VBMI
/* The level to use: the best usable one, or the one that $DEADWOOD_CPU names.  -1 if that is unknown or not usable. */
int dw_level_choose(dw_level *level, dw_err *err);

/* ---- dot rows (kernels_dot.c) -------------------------------------------------------------------------- */

enum { DW_DOT_MAX_COLS = 8 };

/* Activations packed for the dot kernels: the F32 values themselves; or int8 blocks of 32, F32 scales and the sums that
 * affine types need, in one of four orders (layouts at the head of kernels_dot.h). */
typedef enum dw_act_form {
    DW_ACT_F32,
    DW_ACT_INT8,
    DW_ACT_INT8_LANES,
    DW_ACT_INT8_QUARTERS,
    DW_ACT_INT8_PIECES,
    DW_N_ACT_FORMS
} dw_act_form;

/* Rows of n values; from_memory: of more weights than a cache holds. */
typedef struct dw_row_kind {
    dw_qtype type;
    int n;
    bool from_memory;
} dw_row_kind;

/* How a stream of weights is read.  What is best depends on the CPU's maker and the kind of rows (results/kernels.md). */
typedef struct dw_reach {
    int first, second; // bytes ahead of the current ones that are prefetched into the first-level cache and the second
    bool few_sums;     // 128 bytes of F16 or BF16 take a chain of four additions, not of one or two
    bool one_by_one;   // rows are read one by one, also where others take pairs or fours
    size_t streams_from; // a call of so many bytes or more is read in three streams; 0: none is
    bool past_second;    // streams are prefetched past the second-level cache
} dw_reach;
typedef enum dw_maker { DW_OTHER_MAKER, DW_INTEL, DW_ZEN_5 } dw_maker; // ZEN_5: AMD's, and what came after it
dw_reach dw_reach_on(dw_maker maker, dw_level level, dw_row_kind rows);
/* On this CPU, for a level that dw_level_choose or dw_level_usable has answered about. */
dw_reach dw_reach_of(dw_level level, dw_row_kind rows);
/* True where rows of dw_dot_vbmi, if the type has them, are faster than level avx512's. */
bool dw_vbmi_is_faster_on(dw_maker maker, dw_row_kind rows);
/* True where they are faster on this CPU, and usable. */
bool dw_rows_with_vbmi(dw_level level, dw_row_kind rows);

/* y[c * y_stride + r] = w_row(r) . x_c  for r < n_rows, c < n_cols <= DW_DOT_MAX_COLS. */
typedef struct dw_dot_job {
    const uint8_t *w;    // rows of n values, row_bytes apart
    size_t row_bytes;
    int n_rows, n;
    const uint8_t *act;  // column c's packed activations begin at act + c * act_stride bytes (both multiples of 64)
    size_t act_stride;
    int n_cols;
    float *y;
    size_t y_stride;
    dw_reach reach;
} dw_dot_job;

typedef struct dw_dot_kernel {
    dw_qtype type;
    dw_level level;
    dw_act_form form;
    /* Fastest in consecutive calls of 32 rows or more, which prefetch the rows after the last one. */
    void (*rows)(const dw_dot_job *job);
} dw_dot_kernel;

extern const dw_dot_kernel dw_dot_kernels[DW_N_LEVELS][DW_QTYPE_END]; // rows NULL: this level has none of its own
/* Rows of level avx512 that also need AVX512_VBMI (Ice Lake, Zen 4 and later); where dw_rows_with_vbmi is true they go
 * before those of the table above. */
extern const dw_dot_kernel dw_dot_vbmi[DW_QTYPE_END];
/* The plain kernel of every type: rows are decoded and multiplied as F32 (levels above AVX-512: rows NULL). */
extern const dw_dot_kernel dw_dot_decoded[DW_N_LEVELS][DW_QTYPE_END];
/* The kernel of this level or below, with VBMI where that is faster, or the plain one; never NULL for a type in
 * dw_qtypes. */
const dw_dot_kernel *dw_dot_find(dw_level level, dw_row_kind rows);
size_t dw_act_bytes(dw_act_form form, int n); // of one packed vector, padded to 64
/* Packing DW_ACT_INT8_LANES needs level avx2 or above, DW_ACT_INT8_QUARTERS and .._PIECES avx512. */
void dw_act_pack(dw_level level, dw_act_form form, const float *x, int n, uint8_t *act);

/* ---- matrix products (kernels_gemm.c) --------------------------------------------------------------------- */

/* Precision of a product.  AVX2 and AVX-512 multiply and add F32, or bytes and integers.  AVX512_BF16 and AMX multiply
 * BF16 numbers and add in F32; a number is rounded to one BF16 part, or split into two, x = hi + lo, with an error
 * below 2^-17. */
typedef enum dw_gemm_form {
    DW_GEMM_INT8,    // tokens as the dot kernels round them: about 6e-3; quantized weights; rows only
    DW_GEMM_ROUNDED, // AMX or AVX512_BF16, one part each: relative RMS error about 2e-3
    DW_GEMM_SPLIT_X, // AMX, tokens in two parts; BF16 weights: 3e-6
    DW_GEMM_SPLIT,   // AMX, both in two parts, without lo * lo; other types: 3e-6
    DW_GEMM_F32,     // the other levels: 1e-6
} dw_gemm_form;
static inline bool dw_gemm_is_bf16(dw_gemm_form form) { return form != DW_GEMM_INT8 && form != DW_GEMM_F32; }

enum {
    DW_GEMM_TOKENS = 512,      // most tokens of one product
    DW_GEMM_FEW = 64,          // up to so many tokens, a product waits for weights
    DW_GEMM_SCRATCH = 5 << 18, // bytes per thread
    DW_GEMM_SUM_ROWS = 256,    // most rows of dw_gemm_job.sums, which then are DW_GEMM_SUM_ROWS * DW_GEMM_TOKENS floats
};

/* The form for a weight type.
 *   - Matrices that share packed tokens use the largest of their forms.
 *   - Columns and training have no INT8: they ask with another precision.
 *   - DW_PRECISION_BF16 is ROUNDED for every type and number of tokens, where the CPU has such products.
 *   - AMX takes BF16 for DW_PRECISION_INT8, too: products are faster and more precise.  Types that are not unpacked
 *     straight into tiles of BF16 are unpacked faster to bytes; up to DW_GEMM_FEW tokens they are multiplied so, as in
 *     decode.  (results/kernels.md.  For Q6_K 64 is too many: it is faster as BF16 from 32 tokens on.  The limit stays,
 *     because then these types round up to 64 tokens alike, however they are cut.)
 *   - So the precision depends on n_tokens, the tokens of this product.  Exact passes ask with n_tokens =
 *     DW_GEMM_TOKENS: their sums must not depend on it. */
dw_gemm_form dw_gemm_form_of(dw_level level, const dw_qtype_row *type, dw_precision precision, int n_tokens);

typedef struct dw_gemm_tokens { // x (n_tokens, n), rows ldx apart, to be packed
    dw_level level;
    dw_gemm_form form;
    const float *x;
    size_t ldx;
    int n_tokens, n;
    const dw_tensor *w; // not NULL: rows first, first + 1, .. of w are the tokens, in x's place (not turned)
    size_t first;
} dw_gemm_tokens;

/* Packs tokens.  All threads call it, and a barrier must follow.  packed is aligned to 64. */
size_t dw_gemm_pack_bytes(int n_tokens, int n); // enough for every form; sizes of groups of 16 tokens add up
void dw_gemm_pack(const dw_gemm_tokens *tokens, uint8_t *packed, int ith, int n_threads);

/* Packs tile `tile` of n_tokens tokens by the calling thread alone; in: the tile's at most 16 tokens. */
void dw_gemm_pack_tile(const dw_gemm_tokens *in, int tile, int n_tokens, uint8_t *packed);

/* The same as dw_gemm_pack for tokens that are columns of x (n, n_tokens), whose rows lie ldx apart. */
void dw_gemm_pack_turned(const dw_gemm_tokens *tokens, uint8_t *packed, int ith, int n_threads);

/* A product of weights with packed tokens, by the calling thread alone. */
typedef struct dw_gemm_job {
    dw_level level;
    dw_gemm_form form;
    const dw_tensor *w;
    const int32_t *list;   // of rows; NULL: all in order
    size_t first;          // row (or column) of w, or entry of the list, for column 0 of y
    int n_rows;            // or columns
    const uint8_t *packed; // from dw_gemm_pack
    int n_tokens;
    float *y;
    size_t ldy;
    uint8_t *scratch;      // DW_GEMM_SCRATCH bytes, aligned to 64
    bool by_rows;          // y[r * ldy + t] instead of y[t * ldy + r]
    bool add;              // y += the product
    float *sums;           // not NULL: in y's place, for dw_gemm_pack_neurons, and by tiles: [pair of token tiles][row
                           // tile][token tile] squares (row, token); n_rows is at most DW_GEMM_SUM_ROWS
} dw_gemm_job;

/* y[t * ldy + r] = w_row(row) . x_t  for r < n_rows and all tokens; row is list[first + r], or first + r if there
 * is no list.  Each sum has one order, whatever n_tokens and n_rows.  In training "rows" may be activations and
 * "tokens" packed weights (by_rows): a sum's terms and their order are the same, but in DW_GEMM_SPLIT. */
void dw_gemm_rows(const dw_gemm_job *job);

/* The same for a matrix that is stored transposed: y[t * ldy + i] = sum over its rows k of x_t[k] w_row(k)[first + i]
 * for i < n_rows.  `first` is a whole number of the type's blocks, and so is n_rows except for the last columns;
 * tokens have ne[1] values; there is no list. */
void dw_gemm_columns(const dw_gemm_job *job);

/* a = act(gate) * up, on the way from the products with gate and up to that with down: sums become packed tokens, bit
 * for bit those that dw_gemm_pack would make of a, and a is copied by tokens only if somebody reads it.  The thread that
 * multiplied a piece of neurons packs it. */
typedef struct dw_gemm_neurons {
    dw_level level;
    dw_gemm_form form; // of the product with down: BF16, as gate's and up's (dw_gemm_is_bf16)
    dw_act act;
    int n_tokens, n;   // n: all neurons, a multiple of 32
    float *gate, *up;  // sums of neurons first .. first + n_rows - 1; gate is overwritten
    int first, n_rows; // multiples of 32; at most DW_GEMM_SUM_ROWS
    float *rows;       // not NULL: a of token t and neuron first + r also goes to rows[t * ldr + r]
    size_t ldr;
} dw_gemm_neurons;
void dw_gemm_pack_neurons(const dw_gemm_neurons *in, uint8_t *packed);
/* y[t * ldy + r] = the sum of row r and token t, for r < n_rows (a multiple of 32) and the n listed t, in ascending order;
 * sums of dw_gemm_job, or gate after dw_gemm_pack_neurons. */
void dw_gemm_sums_of_tokens(dw_level level, const float *sums, int n_rows, int n_tokens, const int *token, int n,
                            float *y, size_t ldy);

/* Operations a second of the form's kernel on the calling thread, which multiplies one panel for about `seconds`. */
double dw_gemm_rate(dw_level level, dw_gemm_form form, double seconds, uint8_t *scratch);

#endif
