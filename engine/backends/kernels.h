/* kernels.h - inside of the cpu backend: dot products, matrix products, attention, vector functions.
 *
 * Levels.  One level is chosen at start (best that the CPU has, or $DEADWOOD_CPU): portable C, avx2 (AVX2 + FMA + F16C),
 * avx512 (F BW VL DQ VNNI), amx (avx512 + AMX BF16/INT8 tiles).  Functions of a level carry target attributes, so one
 * portable binary holds all.  A level uses the rows of its own and of lower levels.
 *
 * Two shapes of work:
 *   dot rows   decode, 1..DW_DOT_MAX_COLS activation vectors: weight rows are read once, straight from the packed
 *              file, activations are int8 blocks of 32 with F32 scale (quantized weights) or F32 (F32, F16, BF16).
 *   gemm       prefill and exact passes: a panel of weight rows is unpacked into cache (F32, or BF16 tiles for AMX) and
 *              multiplied with all tokens.  Every output element is summed in an order that depends on neither the
 *              number of tokens nor of threads, so exact passes are built from this alone. */
#ifndef DW_KERNELS_H
#define DW_KERNELS_H

#include "backends/backends.h"

typedef enum dw_level { DW_PORTABLE, DW_AVX2, DW_AVX512, DW_AMX, DW_N_LEVELS } dw_level;

extern const char *const dw_level_names[DW_N_LEVELS];
bool dw_level_usable(dw_level level); // asks the CPU and, for AMX, the kernel's permission (before threads start)
/* The level in force: the best usable one, or what $DEADWOOD_CPU names.  -1 when that is unknown or not usable here. */
int dw_level_choose(dw_level *level, dw_err *err);

/* ---- dot rows (kernels_dot.c) -------------------------------------------------------------------------- */

enum { DW_DOT_MAX_COLS = 8 };

/* Activations packed for the dot kernels: int8 blocks of 32, F32 scales and the sums that affine types need
 * (layout at the head of kernels_dot.c), or the F32 values themselves. */
typedef enum dw_act_form { DW_ACT_F32, DW_ACT_INT8 } dw_act_form;

typedef struct dw_dot_kernel {
    dw_qtype type;
    dw_level level;
    dw_act_form form;
    /* y[c * y_stride + r] = w_row(r) . x_c  for r < n_rows, c < n_cols <= DW_DOT_MAX_COLS; rows of n values lie row_bytes apart;
     * column c's packed activations begin at act + c * act_stride bytes (both multiples of 64). */
    void (*rows)(const uint8_t *w, size_t row_bytes, int n_rows, int n, const uint8_t *act, size_t act_stride, int n_cols,
                 float *y, size_t y_stride);
} dw_dot_kernel;

extern const dw_dot_kernel dw_dot_kernels[]; // ends with rows NULL; tests and benchmarks walk it
const dw_dot_kernel *dw_dot_find(dw_level level, dw_qtype type); // best row of this level or below; never NULL for a known type
size_t dw_act_bytes(dw_act_form form, int n);                    // of one packed vector, padded to 64
void dw_act_pack(dw_level level, dw_act_form form, const float *x, int n, uint8_t *act);

/* ---- matrix products (kernels_gemm.c) --------------------------------------------------------------------- */

/* Packed tokens: what the panels are multiplied with.  Layout depends on the level and on the weight type's family. */
size_t dw_gemm_pack_bytes(dw_level level, int n_tokens, int n);
/* Packs tokens of x (n_tokens, n) with row stride ldx; all threads together, a barrier must follow. */
void dw_gemm_pack(dw_level level, dw_qtype weight_type, const float *x, size_t ldx, int n_tokens, int n, uint8_t *packed, int ith, int n_threads);
size_t dw_gemm_scratch_bytes(dw_level level, int n_tokens, int n); // a thread
/* y[t * ldy + r] = w_row(first + r) . x_t for r < n_rows and all tokens, by the calling thread alone. */
void dw_gemm_rows(dw_level level, const dw_tensor *w, size_t first, int n_rows, const uint8_t *packed, int n_tokens, float *y, size_t ldy, uint8_t *scratch);
int dw_gemm_row_grain(dw_level level); // n_rows should be a multiple of it, but for the last piece

#endif
