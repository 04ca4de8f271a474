/* kernels_axpy.c - adding up rows: the table, and rows that are decoded first. */
#include "backends/kernels_axpy_rows.h"
#include "backends/kernels_vec.h"

// Rows of F32, aligned.
static void add_values(DW_AXPY_ROWS_ARGS) {
    for (int r = 0; r < n_rows; r++) {
        const float *v = (const float *)(const void *)(w + (size_t)(row ? row[r] : r) * row_bytes);
        for (int c = 0; c < n_cols; c++) {
            const float factor = a[(size_t)c * a_stride + (size_t)r];
            float *sum = y + (size_t)c * y_stride;
            for (int i = 0; i < n; i++) sum[i] += factor * v[i];
        }
    }
}

/* A bundle's rows are decoded a record at a time and added by the level's row of F32. */
static void decoded(dw_level level, dw_qtype type, void (*add_f32)(DW_AXPY_ROWS_ARGS), DW_AXPY_ROWS_ARGS) {
    const dw_qtype_row *t = dw_qtype_get(type);
    dw_unpack_fn *unpack = dw_unpack_of(level, t);
    const int bytes = (int)dw_qtype_row_bytes(t, RECORD);
    _Alignas(64) float values[AXPY_ROWS][RECORD];
    for (int r = 0, rows; r < n_rows; r += rows) {
        rows = n_rows - r < AXPY_ROWS ? n_rows - r : AXPY_ROWS;
        const bundle b = bundle_at(w, row_bytes, row, r, n_rows, rows);
        for (int i = 0; i < n; i += RECORD) {
            const int n_here = n - i < RECORD ? n - i : RECORD;
            const size_t at = dw_qtype_row_bytes(t, (size_t)i);
            const ahead next = ahead_of(&b, i / RECORD, (n + RECORD - 1) / RECORD, bytes);
            for (int k = 0; k < rows; k++) {
                prefetch_row(next, k, bytes);
                unpack(b.row[k] + at, values[k], (size_t)n_here);
            }
            add_f32((const uint8_t *)values, sizeof *values, NULL, rows, n_here, a + r, a_stride, n_cols, y + i,
                    y_stride);
        }
    }
}

// clang-format off
#define DEFINE_DECODED(type, suffix)                                                                                   \
    static void portable_##suffix(DW_AXPY_ROWS_ARGS) {                                                                 \
        decoded(DW_PORTABLE, type, add_values, w, row_bytes, row, n_rows, n, a, a_stride, n_cols, y, y_stride);        \
    }
INT8_TYPES(DEFINE_DECODED)
FLOAT_TYPES(DEFINE_DECODED)

#define PORTABLE_ROW(type, suffix) {type, DW_PORTABLE, portable_##suffix},
#if defined(__x86_64__)
#define DEFINE_DECODED_VECTORS(type, suffix)                                                                           \
    static void avx2_decoded_##suffix(DW_AXPY_ROWS_ARGS) {                                                             \
        decoded(DW_AVX2, type, dw_axpy_avx2_f32, w, row_bytes, row, n_rows, n, a, a_stride, n_cols, y, y_stride);      \
    }                                                                                                                  \
    static void avx512_decoded_##suffix(DW_AXPY_ROWS_ARGS) {                                                           \
        decoded(DW_AVX512, type, dw_axpy_avx512_f32, w, row_bytes, row, n_rows, n, a, a_stride, n_cols, y, y_stride);  \
    }
#define VECTOR_DECODED_TYPES(X)                                                                                        \
    X(DW_Q4_1, q4_1) X(DW_Q5_0, q5_0) X(DW_Q5_1, q5_1) X(DW_Q2_K, q2_k) X(DW_Q3_K, q3_k) X(DW_Q4_K, q4_k)              \
    X(DW_Q5_K, q5_k) X(DW_Q6_K, q6_k)
VECTOR_DECODED_TYPES(DEFINE_DECODED_VECTORS)

#define AVX2_ROW(type, suffix) {type, DW_AVX2, dw_axpy_avx2_##suffix},
#define AVX512_ROW(type, suffix) {type, DW_AVX512, dw_axpy_avx512_##suffix},
#define DECODED_ROWS(type, suffix)                                                                                     \
    {type, DW_AVX2, avx2_decoded_##suffix}, {type, DW_AVX512, avx512_decoded_##suffix},
#endif

const dw_axpy_kernel dw_axpy_kernels[] = {
    INT8_TYPES(PORTABLE_ROW) FLOAT_TYPES(PORTABLE_ROW)
#if defined(__x86_64__)
    AXPY_AVX2_TYPES(AVX2_ROW) AXPY_AVX512_TYPES(AVX512_ROW) VECTOR_DECODED_TYPES(DECODED_ROWS)
#endif
    {0},
};
// clang-format on

void dw_axpy_prefetch(const uint8_t *w, size_t row_bytes, const int32_t *row, int n_rows) {
    for (int r = 0; r < n_rows && r < AXPY_ROWS; r++)
        for (size_t i = 0; i < AXPY_AHEAD && i < row_bytes; i += 64)
            __builtin_prefetch(w + (size_t)(row ? row[r] : r) * row_bytes + i);
}

const dw_axpy_kernel *dw_axpy_find(dw_level level, dw_qtype type) {
    const dw_axpy_kernel *best = NULL;
    for (const dw_axpy_kernel *k = dw_axpy_kernels; k->rows; k++)
        if (k->type == type && k->level <= level && (!best || k->level > best->level)) best = k;
    return best;
}
