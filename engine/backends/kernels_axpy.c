/* kernels_axpy.c - rows added up: the portable form, and the table. */
#include "backends/kernels_axpy.h"
#include "backends/kernels_dot.h"

static int smaller(int a, int b) { return a < b ? a : b; }

/* A piece of 256 values of every row after the other: it is decoded once for all columns. */
static inline void add_rows(const dw_qtype_row *type, DW_AXPY_ROWS_ARGS) {
    float value[RECORD];
    for (int first = 0; first < n; first += RECORD) {
        const int n_here = smaller(RECORD, n - first);
        const size_t offset = dw_qtype_row_bytes(type, (size_t)first);
        for (int r = 0; r < n_rows; r++) {
            type->decode(w + (size_t)(row ? row[r] : r) * row_bytes + offset, value, (size_t)n_here);
            for (int c = 0; c < n_cols; c++) {
                const float scale = a[(size_t)c * a_stride + (size_t)r];
                float *to = y + (size_t)c * y_stride + first;
                for (int i = 0; i < n_here; i++) to[i] += scale * value[i];
            }
        }
    }
}

#define PORTABLE(type, suffix)                                                                                         \
    static void portable_##suffix(DW_AXPY_ROWS_ARGS) {                                                                 \
        add_rows(dw_qtype_get(type), w, row_bytes, row, n_rows, n, a, a_stride, n_cols, y, y_stride);                  \
    }
INT8_TYPES(PORTABLE)
FLOAT_TYPES(PORTABLE)

#define PORTABLE_ROW(type, suffix) {type, DW_PORTABLE, portable_##suffix},
const dw_axpy_kernel dw_axpy_kernels[] = {INT8_TYPES(PORTABLE_ROW) FLOAT_TYPES(PORTABLE_ROW){0}};

const dw_axpy_kernel *dw_axpy_find(dw_level level, dw_qtype type) {
    const dw_axpy_kernel *best = NULL;
    for (const dw_axpy_kernel *k = dw_axpy_kernels; k->rows; k++)
        if (k->type == type && k->level <= level && (!best || k->level > best->level)) best = k;
    return best;
}
