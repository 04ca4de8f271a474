/* kernels_axpy.h - kernels of the cpu backend: adding up weight rows that were selected at run time.
 *
 * With down stored transposed a neuron's column is a row of its own, and what an open neuron gives is one row times a
 * number: y += sum over r of a_r w_r.  A closed neuron's row is never touched.
 *
 * Rows are taken eight at a time, so that a piece of y stays in registers while as many rows are added to it, and the
 * tiles of rows that will be read next, wherever they lie, are prefetched meanwhile.  Weights are unpacked in
 * registers and y is F32: y_i = fma(w_ri, a_r, y_i) for one row after the other, in the order of the list; Q4_0 of avx2
 * and avx512 adds eight rows in fixed point, with factors of 16 bits (kernels_axpy_avx512.c).  A result depends on the list
 * of rows and the level alone; a list may be divided into calls at multiples of eight without a change.
 *
 * Types without rows of their own are decoded piece by piece and added as F32.  Share of reading alone at which the rows of
 * avx512 take 600 MB with two threads, all rows / half of them, single: Q4_0 0.80 / 0.76, Q8_0 1.0 / 1.0, BF16 1.3 / 1.2
 * (eight streams are read faster than one); in F32 alone Q4_0 took 0.66.  Of avx2: Q4_0 0.67 / 0.64, in F32 0.47. */
#ifndef DW_KERNELS_AXPY_H
#define DW_KERNELS_AXPY_H

#include "backends/kernels.h"

#define DW_AXPY_ROWS_ARGS                                                                                              \
    const uint8_t *w, size_t row_bytes, const int32_t *row, int n_rows, int n, const float *a, size_t a_stride,        \
        int n_cols, float *y, size_t y_stride

typedef struct dw_axpy_kernel {
    dw_qtype type;
    dw_level level;
    /* y[c * y_stride + i] += sum over r < n_rows of a[c * a_stride + r] * w_row(row ? row[r] : r)[i],  i < n,
     * c < n_cols <= DW_DOT_MAX_COLS.  Rows of n values lie row_bytes apart. */
    void (*rows)(DW_AXPY_ROWS_ARGS);
} dw_axpy_kernel;

/* Prefetches the beginnings of the first rows of a list, which are then there when the rows are added. */
void dw_axpy_prefetch(const uint8_t *w, size_t row_bytes, const int32_t *row, int n_rows);

extern const dw_axpy_kernel dw_axpy_kernels[DW_N_LEVELS][DW_QTYPE_END]; // rows NULL: this level has none of its own
/* The plain form, which every type has: rows are decoded and added as F32 (levels above AVX-512: rows NULL). */
extern const dw_axpy_kernel dw_axpy_decoded[DW_N_LEVELS][DW_QTYPE_END];
/* The type's kernel or plain form of this level, or of the next below; never NULL for a type in dw_qtypes. */
const dw_axpy_kernel *dw_axpy_find(dw_level level, dw_qtype type);

#endif
