/* output_norm.c - columns of down times the factor of the gradients' covariance (output_norm.h). */
#include "prune/output_norm.h"

#include "prune/damping.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>

enum { COLUMNS = 64 }; // of v that one thread takes together

typedef struct applying {
    const double *factor; // (d, d): L, the lower triangle
    float *v;             // (d, n)
    double *piece;        // (threads, d, COLUMNS)
    int d, n;
} applying;

/* v = L^T v / sqrt(2) for columns first .. first + n_columns - 1. */
static void apply_piece(const applying *a, double *piece, int first, int n_columns) {
    for (int r = 0; r < a->d; r++)
        for (int c = 0; c < n_columns; c++)
            piece[r * COLUMNS + c] = (double)a->v[(size_t)r * (size_t)a->n + (size_t)(first + c)];
    cblas_dtrmm(CblasRowMajor, CblasLeft, CblasLower, CblasTrans, CblasNonUnit, a->d, n_columns, sqrt(0.5), a->factor,
                a->d, piece, COLUMNS);
    for (int r = 0; r < a->d; r++)
        for (int c = 0; c < n_columns; c++)
            a->v[(size_t)r * (size_t)a->n + (size_t)(first + c)] = (float)piece[r * COLUMNS + c];
}

static void apply_on_thread(void *arg, int ith, int n_threads) {
    const applying *a = arg;
    double *piece = a->piece + (size_t)ith * (size_t)a->d * COLUMNS;
    for (int first = ith * COLUMNS; first < a->n; first += n_threads * COLUMNS)
        apply_piece(a, piece, first, a->n - first < COLUMNS ? a->n - first : COLUMNS);
}

/* L of the damped covariance. */
static int factor(const kit_gram_matrix *gamma, double n_tokens, double *l, dw_pool *pool, dw_err *err) {
    double trace = 0;
    for (int i = 0; i < gamma->n; i++) trace += kit_gram_at(gamma, i, i);
    const double mean = trace / gamma->n / n_tokens;
    if (!(mean > 0) || !isfinite(mean))
        return dw_fail(err,
                       "layer %d: the gradients by the FFN's output have the mean square %g, so they weigh nothing; "
                       "collect them from other texts",
                       gamma->layer, mean);
    bool *dead = dw_alloc((size_t)gamma->n, sizeof *dead, "a covariance", err); // none is
    damping d = {.median = mean, .lambda = OUTPUT_NORM_DAMPING * mean};
    const int rc = dead ? damping_factor(&d, gamma, n_tokens, dead, NULL, gamma->n, l, pool, err) : -1;
    free(dead);
    return rc;
}

int output_norm_apply(const kit_gram_matrix *gamma, double n_tokens, float *v, int n, dw_pool *pool, dw_err *err) {
    const size_t d = (size_t)gamma->n;
    double *l = dw_alloc(d, d * sizeof *l, "a covariance of gradients", err);
    double *piece = dw_alloc((size_t)dw_pool_size(pool), d * COLUMNS * sizeof *piece, "columns of down", err);
    const int rc = l && piece ? factor(gamma, n_tokens, l, pool, err) : -1;
    if (!rc) dw_pool_run(pool, apply_on_thread, &(applying){l, v, piece, gamma->n, n});
    free(l);
    free(piece);
    return rc;
}
