/* ridge.h - the closed-form rival of a trained predictor: the best linear map of the same rank.
 *
 *   score = B (A x) + b      that minimizes  sum_t ||y_t - score_t||^2 + lambda ||B A||^2   at rank r
 *
 * With centred X (tokens, n_in) and Y (tokens, n_out), C = X^T X + lambda I = L L^T, M = L^-1 X^T Y and the r leading
 * left singular vectors U of M:  A = U^T L^-1,  B = M^T U,  b = mean y  (reduced-rank ridge regression, Mukherjee & Zhu
 * 2011; Izenman 1975).  U are the eigenvectors of M M^T. */
#ifndef RIDGE_H
#define RIDGE_H

#include "base/base.h"

typedef struct predict_ridge {
    int n_in, rank, n_out;
    float *a, *b; // (rank, n_in), (n_out, rank)
} predict_ridge;

typedef struct predict_regression {
    const float *x;     // (n, n_in): centred, of about unit variance
    size_t n;
    int n_in, n_out;
    const double *mean; // (n_out): of the targets
    void (*target)(const void *ctx, size_t t, float *y); // writes the n_out targets of token t
    const void *ctx;
} predict_regression;

/* Fits A and B; the formula's b is p->mean.  A rank above n_in is n_in.  Release it with predict_ridge_release, after a
 * failure, too.  lambda is a hundredth of the median diagonal of X^T X.  OpenBLAS and LAPACK run on the calling
 * thread. */
int predict_ridge_fit(predict_ridge *r, const predict_regression *p, int rank, dw_err *err);
/* hidden (n, rank) = A x of n tokens. */
void predict_ridge_hidden(const predict_ridge *r, const float *x, int n, float *hidden);
void predict_ridge_release(predict_ridge *r);

#endif
