/* kernels_axpy.h - kernels of the cpu backend: sums of weight rows that are selected at run time.
 *
 * With down stored transposed a neuron's column is a row, and an open neuron adds one row times a number: y += sum
 * over r of a_r w_r.  A closed neuron's row is never read.
 *
 * Eight rows are added at a time, so that a piece of y stays in registers meanwhile.  The tiles of rows that will be
 * read next, wherever they are, are prefetched.  (Short rows: kernels_axpy_rows.h.)  Weights are unpacked in registers
 * and y is F32: y_i = fma(w_ri, a_r, y_i) for one row after the other, in the order of the list.  K types add the eight
 * rows' minima first, as one number for a block (kernels_axpy_k_avx512.c), and with AVX2 the sum of all eight
 * (kernels_axpy_k_avx2.c).  Only Q4_0 of avx2 and avx512 adds eight rows in fixed point, with factors of 16 bits
 * (kernels_axpy_q4_0.inc, kernels_axpy_avx2.c).  A result depends only on the list of rows and the level; a list may be
 * divided into calls at multiples of eight without a change.
 *
 * Types without a kernel of their own are decoded piece by piece and added as F32.
 *
 * results/kernels.md has speeds. */
#ifndef DW_KERNELS_AXPY_H
#define DW_KERNELS_AXPY_H

#include "backends/kernels.h"

/* y[c * y_stride + i] += sum over r < n_rows of a[c * a_stride + r] * w_row(row ? row[r] : r)[i],  i < n,
 * c < n_cols <= DW_DOT_MAX_COLS. */
typedef struct dw_axpy_job {
    const uint8_t *w; // rows of n values, row_bytes apart
    size_t row_bytes;
    const int32_t *row;
    int n_rows, n;
    const float *a;
    size_t a_stride;
    int n_cols;
    float *y;
    size_t y_stride;
} dw_axpy_job;

typedef struct dw_axpy_kernel {
    dw_qtype type;
    dw_level level;
    void (*rows)(const dw_axpy_job *job);
    int short_values; // rows of up to this many values are not prefetched by .rows
} dw_axpy_kernel;

/* Prefetches what k->rows does not: a list's first rows, or all where they are short.  To be called some time before. */
void dw_axpy_prefetch(const dw_axpy_kernel *k, const uint8_t *w, size_t row_bytes, const int32_t *row, int n_rows);

extern const dw_axpy_kernel dw_axpy_kernels[DW_N_LEVELS][DW_QTYPE_END]; // rows NULL: this level has none of its own
/* Rows of level avx512 that also need AVX512_VBMI; they go before those of the table above. */
extern const dw_axpy_kernel dw_axpy_vbmi[DW_QTYPE_END];
/* The plain kernel of every type: rows are decoded and added as F32 (levels above AVX-512: rows NULL). */
extern const dw_axpy_kernel dw_axpy_decoded[DW_N_LEVELS][DW_QTYPE_END];
/* The type's own kernel of this level (with VBMI, if there is one) or its plain one, else one of the next lower level;
 * never NULL for a type in dw_qtypes. */
const dw_axpy_kernel *dw_axpy_find(dw_level level, dw_qtype type);

#endif
