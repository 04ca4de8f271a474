/* ridge.c - reduced-rank ridge regression (ridge.h has the formulas). */
#include "predict/ridge.h"

#include <cblas.h>
#include <lapacke.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 512 }; // tokens at once: X^T X of a block is summed in F32, blocks in a double; X^T Y is summed in F32

typedef struct fit {
    int n_in, n_out, rank;
    double *c;    // (n_in, n_in): X^T X, then its factor
    float *m;     // (n_in, n_out): X^T Y, then M
    float *l;     // (n_in, n_in): the factor in F32
    float *k;     // (n_in, n_in): M M^T, then its eigenvectors
    float *part;  // (n_in, n_in)
    float *y;     // (BLOCK, n_out)
    float *value; // (n_in)
} fit;

static void release(fit *f) {
    free(f->c), free(f->m), free(f->l), free(f->k), free(f->part), free(f->y), free(f->value);
}

static int take_memory(fit *f, dw_err *err) {
    const size_t d = (size_t)f->n_in, n_out = (size_t)f->n_out;
    f->c = dw_alloc(d * d, sizeof *f->c, "a linear predictor", err);
    f->m = dw_alloc(d * n_out, sizeof *f->m, "a linear predictor", err);
    f->l = dw_alloc(d * d, sizeof *f->l, "a linear predictor", err);
    f->k = dw_alloc(d * d, sizeof *f->k, "a linear predictor", err);
    f->part = dw_alloc(d * d, sizeof *f->part, "a linear predictor", err);
    f->y = dw_alloc(BLOCK * n_out, sizeof *f->y, "a linear predictor", err);
    f->value = dw_alloc(d, sizeof *f->value, "a linear predictor", err);
    return f->c && f->m && f->l && f->k && f->part && f->y && f->value ? 0 : -1;
}

/* Adds the products of n tokens from `first`; only the lower half of X^T X is used. */
static void add_block(fit *f, const predict_regression *p, size_t first, int n) {
    const int d = f->n_in, n_out = f->n_out;
    const size_t square = (size_t)d * (size_t)d;
    const float *x = p->x + first * (size_t)d;
    cblas_ssyrk(CblasRowMajor, CblasLower, CblasTrans, d, n, 1, x, d, 0, f->part, d);
    for (size_t i = 0; i < square; i++) f->c[i] += (double)f->part[i];
    for (int t = 0; t < n; t++) {
        float *y = f->y + (size_t)t * (size_t)n_out;
        p->target(p->ctx, first + (size_t)t, y);
        for (int g = 0; g < n_out; g++) y[g] -= (float)p->mean[g];
    }
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, d, n_out, n, 1, x, d, f->y, n_out, 1, f->m, n_out);
}

static int ascending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* C = X^T X + lambda I as L L^T. */
static int factorize(fit *f, dw_err *err) {
    const size_t d = (size_t)f->n_in;
    for (size_t i = 0; i < d; i++) f->value[i] = (float)f->c[i * d + i];
    qsort(f->value, d, sizeof *f->value, ascending);
    const double lambda = f->value[d / 2] > 0 ? 0.01 * (double)f->value[d / 2] : 1;
    for (size_t i = 0; i < d; i++) f->c[i * d + i] += lambda;
    if (LAPACKE_dpotrf(LAPACK_ROW_MAJOR, 'L', f->n_in, f->c, f->n_in))
        return dw_fail(err, "the inputs' products have no Cholesky factor; the traces are damaged");
    for (size_t i = 0; i < d * d; i++) f->l[i] = (float)f->c[i];
    return 0;
}

/* U as the last `rank` columns of k, the eigenvectors of M M^T in ascending order. */
static int find_directions(fit *f, dw_err *err) {
    const int d = f->n_in;
    cblas_strsm(CblasRowMajor, CblasLeft, CblasLower, CblasNoTrans, CblasNonUnit, d, f->n_out, 1, f->l, d, f->m,
                f->n_out);
    cblas_ssyrk(CblasRowMajor, CblasLower, CblasNoTrans, d, f->n_out, 1, f->m, f->n_out, 0, f->k, d);
    return LAPACKE_ssyevd(LAPACK_ROW_MAJOR, 'V', 'L', d, f->k, d, f->value)
               ? dw_fail(err, "a linear predictor has no eigenvectors; the traces are damaged")
               : 0;
}

static int solve(fit *f, predict_ridge *r, dw_err *err) {
    const int d = f->n_in, rank = f->rank;
    if (factorize(f, err) || find_directions(f, err)) return -1;
    const float *u = f->k + (d - rank); // (n_in, rank), rows n_in apart
    for (int i = 0; i < rank; i++)
        for (int j = 0; j < d; j++) r->a[(size_t)i * (size_t)d + (size_t)j] = u[(size_t)j * (size_t)d + (size_t)i];
    cblas_strsm(CblasRowMajor, CblasRight, CblasLower, CblasNoTrans, CblasNonUnit, rank, d, 1, f->l, d, r->a,
                d); // U^T L^-1
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, f->n_out, rank, d, 1, f->m, f->n_out, u, d, 0, r->b, rank);
    return 0;
}

int predict_ridge_fit(predict_ridge *r, const predict_regression *p, int rank, dw_err *err) {
    fit f = {.n_in = p->n_in, .n_out = p->n_out, .rank = rank < p->n_in ? rank : p->n_in};
    *r = (predict_ridge){.n_in = f.n_in, .rank = f.rank, .n_out = f.n_out};
    r->a = dw_alloc((size_t)f.rank * (size_t)f.n_in, sizeof *r->a, "a linear predictor", err);
    r->b = dw_alloc((size_t)f.n_out * (size_t)f.rank, sizeof *r->b, "a linear predictor", err);
    int rc = r->a && r->b ? take_memory(&f, err) : -1;
    for (size_t t = 0; t < p->n && !rc; t += BLOCK) add_block(&f, p, t, p->n - t < BLOCK ? (int)(p->n - t) : BLOCK);
    if (!rc) rc = solve(&f, r, err);
    release(&f);
    return rc;
}

void predict_ridge_hidden(const predict_ridge *r, const float *x, int n, float *hidden) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, r->rank, r->n_in, 1, x, r->n_in, r->a, r->n_in, 0, hidden,
                r->rank);
}

void predict_ridge_release(predict_ridge *r) {
    free(r->a), free(r->b);
    *r = (predict_ridge){0};
}
