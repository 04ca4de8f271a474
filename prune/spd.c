/* spd.c - Cholesky's factor, solutions and inverses by tiles (spd.h). */
#include "prune/spd.h"

#include <cblas.h>
#include <lapacke.h>
#include <stdlib.h>
#include <string.h>

enum { TILE = 256 };

static int n_tiles(int n) { return (n + TILE - 1) / TILE; }
static int tile_size(int n, int t) { return dw_smaller(TILE, n - t * TILE); }

void spd_pair_of(size_t i, int *row, int *column) {
    int r = 0;
    while ((size_t)(r + 1) * (size_t)(r + 2) / 2 <= i) r++;
    *row = r;
    *column = (int)(i - (size_t)r * (size_t)(r + 1) / 2);
}

/* ---- factor ----------------------------------------------------------------------------------------------- */

typedef struct factoring {
    double *a;
    int n, k; // tiles before k are done
} factoring;

static double *tile_at(const factoring *f, int row, int column) {
    return f->a + (size_t)row * TILE * (size_t)f->n + (size_t)column * TILE;
}

/* Tiles below the diagonal one of column k. */
static void divide_tile(void *arg, size_t i) {
    const factoring *f = arg;
    const int row = f->k + 1 + (int)i;
    cblas_dtrsm(CblasRowMajor, CblasRight, CblasLower, CblasTrans, CblasNonUnit, tile_size(f->n, row),
                tile_size(f->n, f->k), 1, tile_at(f, f->k, f->k), f->n, tile_at(f, row, f->k), f->n);
}

/* A_rc -= L_rk L_ck^T for the tiles that remain. */
static void subtract_tile(void *arg, size_t i) {
    const factoring *f = arg;
    int row, column;
    spd_pair_of(i, &row, &column);
    row += f->k + 1, column += f->k + 1;
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, tile_size(f->n, row), tile_size(f->n, column),
                tile_size(f->n, f->k), -1, tile_at(f, row, f->k), f->n, tile_at(f, column, f->k), f->n, 1,
                tile_at(f, row, column), f->n);
}

int spd_factor(double *a, int n, dw_pool *pool) {
    factoring f = {.a = a, .n = n};
    for (; f.k < n_tiles(n); f.k++) {
        const int size = tile_size(n, f.k),
                  bad = LAPACKE_dpotrf_work(LAPACK_COL_MAJOR, 'U', size, tile_at(&f, f.k, f.k), n);
        if (bad) return f.k * TILE + (bad > 0 ? bad - 1 : 0);
        for (int i = 0; i < size; i++) // LAPACK lets NaN pass
            if (!(tile_at(&f, f.k, f.k)[(size_t)i * (size_t)n + (size_t)i] > 0)) return f.k * TILE + i;
        const size_t left = (size_t)(n_tiles(n) - f.k - 1);
        dw_pool_each(pool, left, divide_tile, &f);
        dw_pool_each(pool, left * (left + 1) / 2, subtract_tile, &f);
    }
    return n;
}

/* ---- solve ------------------------------------------------------------------------------------------------ */

typedef struct solving {
    const double *l;
    double *x;
    int n;
    size_t m;
} solving;

/* x <- x (L L^T)^-1 for m rows ldx apart, with the trailing matrix of L from `first` on. */
static void solve_piece(const solving *s, int first, double *x, int m, int ldx) {
    const double *l = s->l + (size_t)first * (size_t)s->n + (size_t)first;
    const int n = s->n - first;
    cblas_dtrsm(CblasRowMajor, CblasRight, CblasLower, CblasTrans, CblasNonUnit, m, n, 1, l, s->n, x, ldx);
    cblas_dtrsm(CblasRowMajor, CblasRight, CblasLower, CblasNoTrans, CblasNonUnit, m, n, 1, l, s->n, x, ldx);
}

static void solve_rows(void *arg, size_t i) {
    const solving *s = arg;
    const size_t left = s->m - i * TILE;
    solve_piece(s, 0, s->x + i * TILE * (size_t)s->n, left < TILE ? (int)left : TILE, s->n);
}

void spd_solve_rows(const double *l, int n, double *x, size_t m, dw_pool *pool) {
    solving s = {l, x, n, m};
    dw_pool_each(pool, (m + TILE - 1) / TILE, solve_rows, &s);
}

/* ---- invert ----------------------------------------------------------------------------------------------- */

typedef struct inverting {
    solving s;
    double *inverse, *rows; // (n, n); room for TILE rows on each thread
    int next;               // tile of rows
} inverting;

/* Tile t of rows, columns from its first row on, goes below the diagonal of the inverse. */
static void invert_rows(const inverting *v, int t, double *x) {
    const int n = v->s.n, first = t * TILE, size = tile_size(n, t), ld = n - first;
    memset(x, 0, (size_t)size * (size_t)ld * sizeof *x);
    for (int r = 0; r < size; r++) x[(size_t)r * (size_t)ld + (size_t)r] = 1;
    solve_piece(&v->s, first, x, size, ld);
    for (int c = 0; c < ld; c++)
        for (int r = 0; r < dw_smaller(size, c + 1); r++)
            v->inverse[(size_t)(first + c) * (size_t)n + (size_t)(first + r)] = x[(size_t)r * (size_t)ld + (size_t)c];
}

static void invert_on_thread(void *arg, int ith, int n_threads) {
    inverting *v = arg;
    (void)n_threads;
    for (int t; (t = __atomic_fetch_add(&v->next, 1, __ATOMIC_RELAXED)) < n_tiles(v->s.n);)
        invert_rows(v, t, v->rows + (size_t)ith * TILE * (size_t)v->s.n);
}

int spd_inverse(const double *l, int n, double *inverse, dw_pool *pool, dw_err *err) {
    inverting v = {.s = {.l = l, .n = n}, .inverse = inverse};
    v.rows = dw_alloc((size_t)dw_pool_size(pool) * TILE, (size_t)n * sizeof *v.rows, "rows of an inverse", err);
    if (!v.rows) return -1;
    dw_pool_run(pool, invert_on_thread, &v);
    free(v.rows);
    return 0;
}

/* ---- products --------------------------------------------------------------------------------------------- */

static void multiply_tile(void *arg, size_t i) {
    const spd_product *p = arg;
    int row, column;
    if (p->lower)
        spd_pair_of(i, &row, &column);
    else
        row = (int)(i / (size_t)n_tiles(p->n)), column = (int)(i % (size_t)n_tiles(p->n));
    const size_t r = (size_t)row * TILE, c = (size_t)column * TILE;
    cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, tile_size(p->m, row), tile_size(p->n, column), p->k, p->alpha,
                p->a + r, (int)p->lda, p->b + c, (int)p->ldb, 1, p->c + r * (size_t)p->n + c, p->n);
}

void spd_multiply(const spd_product *p, dw_pool *pool) {
    const size_t rows = (size_t)n_tiles(p->m), columns = (size_t)n_tiles(p->n);
    if (p->k > 0)
        dw_pool_each(pool, p->lower ? rows * (rows + 1) / 2 : rows * columns, multiply_tile, (void *)(uintptr_t)p);
}
