/* kernels_axpy.h - inside of the cpu backend: weight rows added up, each times a number.
 *
 * The counterpart of the dot rows for a matrix that is stored transposed: the rows that a token needs are read whole, the
 * others not at all.  Rows are added in the order of the list, so a call's result depends on nothing but its arguments. */
#ifndef DW_KERNELS_AXPY_H
#define DW_KERNELS_AXPY_H

#include "backends/kernels.h"

#define DW_AXPY_ROWS_ARGS                                                                                              \
    const uint8_t *w, size_t row_bytes, const int32_t *row, int n_rows, int n, const float *a, size_t a_stride,        \
        int n_cols, float *y, size_t y_stride

typedef struct dw_axpy_kernel {
    dw_qtype type;
    dw_level level;
    /* y[c * y_stride + i] += sum over r < n_rows of a[c * a_stride + r] * w_row(row ? row[r] : r)[i],  for i < n (whole
     * blocks) and c < n_cols <= DW_DOT_MAX_COLS; rows lie row_bytes apart. */
    void (*rows)(DW_AXPY_ROWS_ARGS);
} dw_axpy_kernel;

extern const dw_axpy_kernel dw_axpy_kernels[]; // ends with rows NULL; tests and benchmarks walk it
const dw_axpy_kernel *dw_axpy_find(dw_level level, dw_qtype type); // best row of this level or below; never NULL for a known type

#endif
