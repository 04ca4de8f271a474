/* kernels_axpy_rows.h - inside the axpy kernels: bundles of rows, and the kernels of each level. */
#ifndef DW_KERNELS_AXPY_ROWS_H
#define DW_KERNELS_AXPY_ROWS_H

#include "backends/kernels_axpy.h"
#include "backends/kernels_dot.h"

enum { AXPY_ROWS = 8 };

/* Preconditions of every axpy kernel. */
static inline void check_axpy_rows(dw_qtype type, DW_AXPY_ROWS_ARGS) {
    dw_assert(n > 0 && n % dw_qtype_block(type) == 0 && n_rows >= 0 && n_cols > 0 && n_cols <= DW_DOT_MAX_COLS);
    dw_assert(a && y && (n_rows == 0 || w) && (n_cols == 1 || (a_stride >= (size_t)n_rows && y_stride >= (size_t)n)));
    (void)type, (void)w, (void)row_bytes, (void)row, (void)n_rows, (void)n, (void)a, (void)a_stride, (void)n_cols, (void)y;
    (void)y_stride;
}

/* Rows that are added together, and the rows that come next. */
typedef struct bundle {
    const uint8_t *row[AXPY_ROWS], *next[AXPY_ROWS];
} bundle;

// Rows first .. first + size - 1 of the list; `next`: the rows after them, or at the end of the list the same rows.
static inline ALWAYS_INLINE bundle bundle_at(const uint8_t *w, size_t row_bytes, const int32_t *row, int first,
                                             int n_rows, int size) {
    bundle b;
    for (int r = 0; r < size; r++) {
        const int i = first + r, next = i + size < n_rows ? i + size : i;
        b.row[r] = w + (size_t)(row ? row[i] : i) * row_bytes;
        b.next[r] = w + (size_t)(row ? row[next] : next) * row_bytes;
    }
    return b;
}

/* Rows are read in tiles of `bytes` bytes.  While a tile is read, each row's tile AXPY_AHEAD bytes further on is
 * prefetched, or beyond the rows' end that of the rows that come next.  Rows are prefetched one at a time, so that
 * requests do not queue up. */
enum { AXPY_AHEAD = 576 };

typedef struct ahead {
    const uint8_t *const *from;
    size_t at;
} ahead;

static inline ALWAYS_INLINE ahead ahead_of(const bundle *b, int tile, int n_tiles, int bytes) {
    const int next = tile + AXPY_AHEAD / bytes, over = next - n_tiles;
    const int which = over < 0 ? next : over < n_tiles ? over : n_tiles - 1;
    return (ahead){.from = over < 0 ? b->row : b->next, .at = (size_t)(which * bytes)};
}

static inline ALWAYS_INLINE void prefetch_row(ahead next, int row, int bytes) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(next.from[row] + next.at + i);
}

// X(type, suffix): types that a level adds without decoding them first
// clang-format off
#define AXPY_AVX2_TYPES(X) X(DW_Q4_0, q4_0) X(DW_Q8_0, q8_0) FLOAT_TYPES(X)
#define AXPY_AVX512_TYPES(X) X(DW_Q4_0, q4_0) X(DW_IQ4_NL, iq4_nl) X(DW_Q8_0, q8_0) FLOAT_TYPES(X)
// clang-format on

#define DECLARE(type, suffix) void dw_axpy_avx2_##suffix(DW_AXPY_ROWS_ARGS);
AXPY_AVX2_TYPES(DECLARE)
#undef DECLARE
#define DECLARE(type, suffix) void dw_axpy_avx512_##suffix(DW_AXPY_ROWS_ARGS);
AXPY_AVX512_TYPES(DECLARE)
#undef DECLARE

/* add_rows: all bundles times all columns.  add_floats or add_blocks takes up to MOST_COLS columns at a time; its
 * type and its numbers of columns and rows are constants after inlining.  Rows come AXPY_ROWS at a time, the last
 * ones singly. */
#define DEFINE_ADD_ROWS(INLINE, MOST_COLS)                                                                             \
    INLINE void add_some(dw_qtype type, int cols, int rows, const bundle *b, int n, const float *a, size_t a_stride,   \
                         float *y, size_t y_stride) {                                                                  \
        if (type == DW_F32 || type == DW_F16 || type == DW_BF16)                                                       \
            add_floats(type, cols, rows, b, n, a, a_stride, y, y_stride);                                              \
        else                                                                                                           \
            add_blocks(type, cols, rows, b, n, a, a_stride, y, y_stride);                                              \
    }                                                                                                                  \
    INLINE void add_bundle(dw_qtype type, int rows, int n_cols, const bundle *b, int n, const float *a,                \
                           size_t a_stride, float *y, size_t y_stride) {                                               \
        for (int c = 0; c < n_cols; c += MOST_COLS, a += MOST_COLS * a_stride, y += MOST_COLS * y_stride) {            \
            const int cols = n_cols - c < MOST_COLS ? n_cols - c : MOST_COLS;                                          \
            if (cols == 1)                                                                                             \
                add_some(type, 1, rows, b, n, a, a_stride, y, y_stride);                                               \
            else if (cols == 2)                                                                                        \
                add_some(type, 2, rows, b, n, a, a_stride, y, y_stride);                                               \
            else if (cols == 3)                                                                                        \
                add_some(type, 3, rows, b, n, a, a_stride, y, y_stride);                                               \
            else                                                                                                       \
                add_some(type, 4, rows, b, n, a, a_stride, y, y_stride);                                               \
        }                                                                                                              \
    }                                                                                                                  \
    INLINE void add_rows(dw_qtype type, DW_AXPY_ROWS_ARGS) {                                                           \
        check_axpy_rows(type, w, row_bytes, row, n_rows, n, a, a_stride, n_cols, y, y_stride);                         \
        int r = 0;                                                                                                     \
        for (; r + AXPY_ROWS <= n_rows; r += AXPY_ROWS) {                                                              \
            const bundle b = bundle_at(w, row_bytes, row, r, n_rows, AXPY_ROWS);                                       \
            add_bundle(type, AXPY_ROWS, n_cols, &b, n, a + r, a_stride, y, y_stride);                                  \
        }                                                                                                              \
        for (; r < n_rows; r++) {                                                                                      \
            const bundle b = bundle_at(w, row_bytes, row, r, n_rows, 1);                                               \
            add_bundle(type, 1, n_cols, &b, n, a + r, a_stride, y, y_stride);                                          \
        }                                                                                                              \
    }

#endif
