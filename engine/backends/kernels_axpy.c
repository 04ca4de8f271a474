/* kernels_axpy.c - sums of rows: the table, and kernels that decode rows first. */
#include "backends/kernels_axpy_rows.h"
#include "backends/kernels_vec.h"

// Adds aligned rows of F32.
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

/* Decodes a bundle's rows record by record and adds them with the level's F32 kernel. */
static void decoded(dw_level level, dw_qtype type, void (*add_f32)(DW_AXPY_ROWS_ARGS), DW_AXPY_ROWS_ARGS) {
    check_axpy_rows(type, w, row_bytes, row, n_rows, n, a, a_stride, n_cols, y, y_stride);
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

#define ADDED(NAME, LEVEL, add_f32, suffix)                                                                            \
    static void add_##LEVEL##_##suffix(DW_AXPY_ROWS_ARGS) {                                                            \
        decoded(DW_##LEVEL, DW_##NAME, add_f32, w, row_bytes, row, n_rows, n, a, a_stride, n_cols, y, y_stride);       \
    }
#define ADDED_ROW(NAME, LEVEL, suffix) [DW_##NAME] = {DW_##NAME, DW_##LEVEL, add_##LEVEL##_##suffix},

#define DEFINE_ADDED(NAME, id, block, bytes, file_type, suffix, HAS) ADDED(NAME, PORTABLE, add_values, suffix)
DW_QTYPES(DEFINE_ADDED)
#undef DEFINE_ADDED
#define PORTABLE_ADDED(NAME, id, block, bytes, file_type, suffix, HAS) ADDED_ROW(NAME, PORTABLE, suffix)
#if defined(__x86_64__)
#define DEFINE_ADDED(NAME, id, block, bytes, file_type, suffix, HAS)                                                   \
    ADDED(NAME, AVX2, dw_axpy_avx2_f32, suffix) ADDED(NAME, AVX512, dw_axpy_avx512_f32, suffix)
DW_QTYPES(DEFINE_ADDED)
#define AVX2_ADDED(NAME, id, block, bytes, file_type, suffix, HAS) ADDED_ROW(NAME, AVX2, suffix)
#define AVX512_ADDED(NAME, id, block, bytes, file_type, suffix, HAS) ADDED_ROW(NAME, AVX512, suffix)
#define AVX2_ROW(type, suffix) [type] = {type, DW_AVX2, dw_axpy_avx2_##suffix},
#define AVX512_ROW(type, suffix) [type] = {type, DW_AVX512, dw_axpy_avx512_##suffix},
#endif

const dw_axpy_kernel dw_axpy_kernels[DW_N_LEVELS][DW_QTYPE_END] = {
#if defined(__x86_64__)
    [DW_AVX2] = {AXPY_AVX2_TYPES(AVX2_ROW)},
    [DW_AVX512] = {AXPY_AVX512_TYPES(AVX512_ROW)},
#else
    {{0}},
#endif
};

const dw_axpy_kernel dw_axpy_decoded[DW_N_LEVELS][DW_QTYPE_END] = {
    [DW_PORTABLE] = {DW_QTYPES(PORTABLE_ADDED)},
#if defined(__x86_64__)
    [DW_AVX2] = {DW_QTYPES(AVX2_ADDED)},
    [DW_AVX512] = {DW_QTYPES(AVX512_ADDED)},
#endif
};

void dw_axpy_prefetch(const uint8_t *w, size_t row_bytes, const int32_t *row, int n_rows) {
    for (int r = 0; r < n_rows && r < AXPY_ROWS; r++)
        for (size_t i = 0; i < AXPY_AHEAD && i < row_bytes; i += 64)
            __builtin_prefetch(w + (size_t)(row ? row[r] : r) * row_bytes + i);
}

/* A level's own kernel or its decoding one comes before any kernel of a lower level. */
const dw_axpy_kernel *dw_axpy_find(dw_level level, dw_qtype type) {
    for (int l = (int)level; l >= 0; l--) {
        if (dw_axpy_kernels[l][type].rows) return &dw_axpy_kernels[l][type];
        if (dw_axpy_decoded[l][type].rows) return &dw_axpy_decoded[l][type];
    }
    return NULL;
}
