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

/* Rows are read in tiles of `bytes` bytes.  While a tile is read, each row's tile some bytes further on is prefetched
 * into the second level; the rows that come next continue a row.  Rows are prefetched one at a time, so that requests
 * do not queue up.  (The distance: results/kernels.md) */
enum { AXPY_AHEAD = 1152 };

/* Where a list's next rows are: those of eight bundles, and those that are prefetched meanwhile, at most that many
 * bundles further on. */
enum { PLACED_ROWS = 8 * AXPY_ROWS, MOST_NEAR = 7 };

typedef struct places {
    const uint8_t *row[PLACED_ROWS + (MOST_NEAR + 1) * AXPY_ROWS];
    int n_near; // bundles to the one whose tiles are prefetched first
} places;

// Places of rows from `first` of the list on; beyond the end there is the last one.
static inline ALWAYS_INLINE void place_rows(dw_qtype type, const dw_axpy_job *j, int first, places *p) {
    const int n_near = AXPY_AHEAD / (j->n / dw_qtype_block(type) * dw_qtype_block_bytes(type)), last = j->n_rows - 1;
    const int n_rows = j->n_rows - first < PLACED_ROWS ? j->n_rows - first : PLACED_ROWS;
    p->n_near = n_near < MOST_NEAR ? n_near : MOST_NEAR;
    for (int r = 0; r < n_rows + (p->n_near + 1) * AXPY_ROWS; r++) {
        const int there = first + r < last ? first + r : last;
        p->row[r] = j->w + (size_t)(j->row ? j->row[there] : there) * j->row_bytes;
    }
}

/* Rows that are added together, and those that are prefetched meanwhile: the bytes ahead are some whole rows and a part
 * of one, so a tile is looked for in the bundle that many rows further on (near), and then in the one after it (far). */
typedef struct bundle {
    const uint8_t *const *row, *const *near, *const *far;
} bundle;

// Rows first .. first + size - 1 of the list; bundles come in order.
static inline ALWAYS_INLINE bundle bundle_at(dw_qtype type, const dw_axpy_job *j, int first, int size, places *p) {
    if (first % PLACED_ROWS == 0) place_rows(type, j, first, p);
    const uint8_t *const *row = p->row + first % PLACED_ROWS, *const *near = row + p->n_near * size;
    return (bundle){row, near, near + size};
}

typedef struct ahead {
    const uint8_t *const *from;
    size_t at;
} ahead;

static inline ALWAYS_INLINE ahead ahead_of(const bundle *b, int tile, int n_tiles, int bytes) {
    const int next = tile + AXPY_AHEAD % (n_tiles * bytes) / bytes;
    return next < n_tiles ? (ahead){b->near, (size_t)(next * bytes)} : (ahead){b->far, (size_t)((next - n_tiles) * bytes)};
}

static inline ALWAYS_INLINE void prefetch_row(ahead next, int row, int bytes) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(next.from[row] + next.at + i, 0, 2);
}

/* A short row is one tile.  With AVX-512, Q4_0 and K types add short rows several bundles at a time: all factors come
 * first, so that their chains of operations overlap, and sums stay in registers while the bundles are added.
 * Longer rows from L3 or memory are slower so.  (results/kernels.md) */
enum { SHORT_Q4_0 = 512, SHORT_K = RECORD };

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
void dw_axpy_vbmi_q4_0(const dw_axpy_job *job);

/* A bundle's rows times some columns: y_c += sum over rows r of a_c[r] row_r, n values. */
typedef struct terms {
    const bundle *b; // of short rows only b->row counts
    int n;
    const float *a;
    size_t a_stride;
    float *y;
    size_t y_stride;
} terms;

static inline ALWAYS_INLINE float factor_of(const terms *t, int c, int r) { return t->a[(size_t)c * t->a_stride + (size_t)r]; }
static inline ALWAYS_INLINE float *sum_at(const terms *t, int c, int i) { return t->y + (size_t)c * t->y_stride + i; }

/* Of a superblock of a K type: each row's factors of its pieces of 16, and the sums of all rows' offsets.  With blocks of 32
 * a factor is at 2k and an offset at 2k + 1 for block k. */
typedef struct k_factors {
    float factor[AXPY_ROWS][PIECES], offset[PIECES];
} k_factors;

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
        places p;                                                                                                      \
        int r = 0;                                                                                                     \
        for (; r + AXPY_ROWS <= j.n_rows; r += AXPY_ROWS) {                                                            \
            const bundle b = bundle_at(type, &j, r, AXPY_ROWS, &p);                                                    \
            t.b = &b, t.a = j.a + r;                                                                                   \
            add_bundle(type, AXPY_ROWS, j.n_cols, t);                                                                  \
        }                                                                                                              \
        for (; r < j.n_rows; r++) {                                                                                    \
            const bundle b = bundle_at(type, &j, r, 1, &p);                                                            \
            t.b = &b, t.a = j.a + r;                                                                                   \
            add_bundle(type, 1, j.n_cols, t);                                                                          \
        }                                                                                                              \
    }

/* add_short_rows: the same for short rows, which are prefetched before (dw_axpy_prefetch).  The file's add_bundles takes
 * up to MOST_BUNDLES bundles at a time: t's rows and factors are those of the first one, and the others' follow. */
enum { MOST_BUNDLES = 8 };
#define DEFINE_ADD_SHORT_ROWS(INLINE, MOST_COLS)                                                                       \
    INLINE void add_equal_bundles(dw_qtype type, int rows, int n, int n_cols, terms t) {                               \
        for (int c = 0; c < n_cols; c += MOST_COLS, t.a += MOST_COLS * t.a_stride, t.y += MOST_COLS * t.y_stride)      \
            switch (n_cols - c) {                                                                                      \
            case 1: add_bundles(type, 1, rows, n, &t); break;                                                          \
            case 2: add_bundles(type, 2, rows, n, &t); break;                                                          \
            case 3: add_bundles(type, 3, rows, n, &t); break;                                                          \
            default: add_bundles(type, MOST_COLS, rows, n, &t);                                                        \
            }                                                                                                          \
    }                                                                                                                  \
    INLINE void add_short_rows(dw_qtype type, const dw_axpy_job *job) {                                                \
        check_axpy_rows(type, job);                                                                                    \
        const dw_axpy_job j = *job;                                                                                    \
        const uint8_t *row[MOST_BUNDLES * AXPY_ROWS];                                                                  \
        const bundle b = {.row = row};                                                                                 \
        terms t = {.b = &b, .n = j.n, .a_stride = j.a_stride, .y = j.y, .y_stride = j.y_stride};                       \
        for (int first = 0, size, n; first < j.n_rows; first += n * size) {                                            \
            const int left = j.n_rows - first;                                                                         \
            size = left < AXPY_ROWS ? 1 : AXPY_ROWS;                                                                   \
            n = left / size < MOST_BUNDLES ? left / size : MOST_BUNDLES;                                               \
            for (int r = 0; r < n * size; r++)                                                                         \
                row[r] = j.w + (size_t)(j.row ? j.row[first + r] : first + r) * j.row_bytes;                           \
            t.a = j.a + first;                                                                                         \
            if (size == 1)                                                                                             \
                add_equal_bundles(type, 1, n, j.n_cols, t);                                                            \
            else                                                                                                       \
                add_equal_bundles(type, AXPY_ROWS, n, j.n_cols, t);                                                    \
        }                                                                                                              \
    }

#endif
