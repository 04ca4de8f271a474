/* kernels_axpy.c - sums of rows: the table, and kernels that decode rows first. */
#include "backends/kernels_axpy_rows.h"
#include "backends/kernels_vec.h"

// Adds aligned rows of F32.
static void add_values(const dw_axpy_job *j) {
    for (int r = 0; r < j->n_rows; r++) {
        const float *v = (const float *)(const void *)(j->w + (size_t)(j->row ? j->row[r] : r) * j->row_bytes);
        for (int c = 0; c < j->n_cols; c++) {
            const float factor = j->a[(size_t)c * j->a_stride + (size_t)r];
            float *sum = j->y + (size_t)c * j->y_stride;
            for (int i = 0; i < j->n; i++) sum[i] += factor * v[i];
        }
    }
}

/* Decodes a bundle's rows record by record and adds them with the level's F32 kernel. */
static void decoded(dw_level level, dw_qtype type, void (*add_f32)(const dw_axpy_job *), const dw_axpy_job *j) {
    check_axpy_rows(type, j);
    const dw_qtype_row *t = dw_qtype_get(type);
    dw_unpack_fn *unpack = dw_unpack_of(level, t);
    const int bytes = (int)dw_qtype_row_bytes(t, RECORD);
    _Alignas(64) float values[AXPY_ROWS][RECORD];
    dw_axpy_job f32 = {.w = (const uint8_t *)values,
                       .row_bytes = sizeof *values,
                       .a_stride = j->a_stride,
                       .n_cols = j->n_cols,
                       .y_stride = j->y_stride};
    places p;
    for (int r = 0, rows; r < j->n_rows; r += rows) {
        rows = j->n_rows - r < AXPY_ROWS ? j->n_rows - r : AXPY_ROWS;
        const bundle b = bundle_at(type, j, r, rows, &p);
        for (int i = 0; i < j->n; i += RECORD) {
            const int n_here = j->n - i < RECORD ? j->n - i : RECORD;
            const size_t at = dw_qtype_row_bytes(t, (size_t)i);
            const ahead next = ahead_of(&b, i / RECORD, (j->n + RECORD - 1) / RECORD, bytes);
            for (int k = 0; k < rows; k++) {
                prefetch_row(next, k, bytes);
                unpack(b.row[k] + at, values[k], (size_t)n_here);
            }
            f32.n_rows = rows, f32.n = n_here, f32.a = j->a + r, f32.y = j->y + i;
            add_f32(&f32);
        }
    }
}

// Defines add_PORTABLE_q4_0, add_AVX2_q4_0, ..: one for each level and type.
#define ADDED(NAME, LEVEL, add_f32, suffix) \
    static void add_##LEVEL##_##suffix(const dw_axpy_job *job) { decoded(DW_##LEVEL, DW_##NAME, add_f32, job); }
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
#define AVX512_ROW(type, suffix) [type] = {type, DW_AVX512, dw_axpy_avx512_##suffix, type == DW_Q4_0 ? SHORT_Q4_0 : 0},
#define AVX512_ROW_K(type, suffix) [type] = {type, DW_AVX512, dw_axpy_avx512_##suffix, SHORT_K},
#endif

const dw_axpy_kernel dw_axpy_kernels[DW_N_LEVELS][DW_QTYPE_END] = {
#if defined(__x86_64__)
    [DW_AVX2] = {AXPY_AVX2_TYPES(AVX2_ROW) AXPY_K_TYPES(AVX2_ROW)},
    [DW_AVX512] = {AXPY_AVX512_TYPES(AVX512_ROW) AXPY_K_TYPES(AVX512_ROW_K)},
#else
    {{0}},
#endif
};

const dw_axpy_kernel dw_axpy_vbmi[DW_QTYPE_END] = {
#if defined(__x86_64__)
    [DW_Q4_0] = {DW_Q4_0, DW_AVX512, dw_axpy_vbmi_q4_0, SHORT_Q4_0},
#endif
};

const dw_axpy_kernel dw_axpy_decoded[DW_N_LEVELS][DW_QTYPE_END] = {
    [DW_PORTABLE] = {DW_QTYPES(PORTABLE_ADDED)},
#if defined(__x86_64__)
    [DW_AVX2] = {DW_QTYPES(AVX2_ADDED)},
    [DW_AVX512] = {DW_QTYPES(AVX512_ADDED)},
#endif
};

void dw_axpy_prefetch(const dw_axpy_kernel *k, const uint8_t *w, size_t row_bytes, const int32_t *row, int n_rows) {
    const bool is_short = row_bytes <= dw_qtype_row_bytes(dw_qtype_get(k->type), (size_t)k->short_values);
    const int n_first = is_short ? n_rows : AXPY_ROWS * (int)((AXPY_AHEAD + row_bytes - 1) / row_bytes);
    for (int r = 0; r < n_rows && r < n_first; r++)
        for (size_t i = 0; i < AXPY_AHEAD && i < row_bytes; i += 64)
            __builtin_prefetch(w + (size_t)(row ? row[r] : r) * row_bytes + i, 0, 2);
}

/* A level's own kernel or its decoding one comes before any kernel of a lower level. */
const dw_axpy_kernel *dw_axpy_find(dw_level level, dw_qtype type) {
    if (dw_axpy_vbmi[type].rows && dw_level_has_vbmi(level)) return &dw_axpy_vbmi[type];
    for (int l = (int)level; l >= 0; l--) {
        if (dw_axpy_kernels[l][type].rows) return &dw_axpy_kernels[l][type];
        if (dw_axpy_decoded[l][type].rows) return &dw_axpy_decoded[l][type];
    }
    return NULL;
}
