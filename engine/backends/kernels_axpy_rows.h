/* kernels_axpy_rows.h - inside the axpy kernels: bundles of rows, and the kernels of each level. */
#ifndef DW_KERNELS_AXPY_ROWS_H
#define DW_KERNELS_AXPY_ROWS_H

#include "backends/kernels_axpy.h"
#include "backends/kernels_dot.h"

enum { AXPY_ROWS = 8 };

/* Preconditions of every axpy kernel. */
static inline void check_axpy_rows(dw_qtype type, const dw_axpy_job *j) {
    dw_assert(j->n > 0 && j->n % dw_qtype_block(type) == 0 && j->n_rows >= 0 && j->n_cols > 0 && j->n_cols <= DW_DOT_MAX_COLS);
    dw_assert(j->a && j->y && (j->n_rows == 0 || j->w));
    dw_assert(j->n_cols == 1 || (j->a_stride >= (size_t)j->n_rows && j->y_stride >= (size_t)j->n));
    (void)type, (void)j;
}

/* Rows that are added together, and the rows that come next. */
typedef struct bundle {
    const uint8_t *row[AXPY_ROWS], *next[AXPY_ROWS];
} bundle;

// Rows first .. first + size - 1 of the list; `next`: the rows after them, or at the end of the list the same rows.
static inline ALWAYS_INLINE bundle bundle_at(const dw_axpy_job *j, int first, int size) {
    bundle b;
    for (int r = 0; r < size; r++) {
        const int i = first + r, next = i + size < j->n_rows ? i + size : i;
        b.row[r] = j->w + (size_t)(j->row ? j->row[i] : i) * j->row_bytes;
        b.next[r] = j->w + (size_t)(j->row ? j->row[next] : next) * j->row_bytes;
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

// X(type, suffix): types that a level adds without decoding them first; K types are in files of their own
// clang-format off
#define AXPY_AVX2_TYPES(X) X(DW_Q4_0, q4_0) X(DW_Q8_0, q8_0) FLOAT_TYPES(X)
#define AXPY_AVX512_TYPES(X) X(DW_Q4_0, q4_0) X(DW_IQ4_NL, iq4_nl) X(DW_Q8_0, q8_0) FLOAT_TYPES(X)
#define AXPY_K_TYPES(X) X(DW_Q2_K, q2_k) X(DW_Q3_K, q3_k) X(DW_Q4_K, q4_k) X(DW_Q5_K, q5_k) X(DW_Q6_K, q6_k)
// clang-format on

#define DECLARE(type, suffix) void dw_axpy_avx2_##suffix(const dw_axpy_job *job);
AXPY_AVX2_TYPES(DECLARE)
AXPY_K_TYPES(DECLARE)
#undef DECLARE
#define DECLARE(type, suffix) void dw_axpy_avx512_##suffix(const dw_axpy_job *job);
AXPY_AVX512_TYPES(DECLARE)
AXPY_K_TYPES(DECLARE)
#undef DECLARE

/* A bundle's rows times some columns: y_c += sum over rows r of a_c[r] row_r, n values. */
typedef struct terms {
    const bundle *b;
    int n;
    const float *a;
    size_t a_stride;
    float *y;
    size_t y_stride;
} terms;

static inline ALWAYS_INLINE float factor_of(const terms *t, int c, int r) { return t->a[(size_t)c * t->a_stride + (size_t)r]; }
static inline ALWAYS_INLINE float *sum_at(const terms *t, int c, int i) { return t->y + (size_t)c * t->y_stride + i; }

/* add_rows: all bundles times all columns.  The file's add_some takes up to MOST_COLS columns at a time; its type and
 * its numbers of columns and rows are constants after inlining.  Rows come AXPY_ROWS at a time, the last ones singly. */
#define DEFINE_ADD_ROWS(INLINE, MOST_COLS)                                                                             \
    INLINE void add_bundle(dw_qtype type, int rows, int n_cols, terms t) {                                             \
        for (int c = 0; c < n_cols; c += MOST_COLS, t.a += MOST_COLS * t.a_stride, t.y += MOST_COLS * t.y_stride) {    \
            const int cols = n_cols - c < MOST_COLS ? n_cols - c : MOST_COLS;                                          \
            if (cols == 1)                                                                                             \
                add_some(type, 1, rows, &t);                                                                           \
            else if (cols == 2)                                                                                        \
                add_some(type, 2, rows, &t);                                                                           \
            else if (cols == 3)                                                                                        \
                add_some(type, 3, rows, &t);                                                                           \
            else                                                                                                       \
                add_some(type, 4, rows, &t);                                                                           \
        }                                                                                                              \
    }                                                                                                                  \
    INLINE void add_rows(dw_qtype type, const dw_axpy_job *job) {                                                      \
        check_axpy_rows(type, job);                                                                                    \
        const dw_axpy_job j = *job;                                                                                    \
        terms t = {.n = j.n, .a_stride = j.a_stride, .y = j.y, .y_stride = j.y_stride};                                \
        int r = 0;                                                                                                     \
        for (; r + AXPY_ROWS <= j.n_rows; r += AXPY_ROWS) {                                                            \
            const bundle b = bundle_at(&j, r, AXPY_ROWS);                                                              \
            t.b = &b, t.a = j.a + r;                                                                                   \
            add_bundle(type, AXPY_ROWS, j.n_cols, t);                                                                  \
        }                                                                                                              \
        for (; r < j.n_rows; r++) {                                                                                    \
            const bundle b = bundle_at(&j, r, 1);                                                                      \
            t.b = &b, t.a = j.a + r;                                                                                   \
            add_bundle(type, 1, j.n_cols, t);                                                                          \
        }                                                                                                              \
    }

#endif
