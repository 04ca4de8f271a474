/* ridge.h - the closed-form rival of a trained predictor: the best linear map of the same rank.
 *
 *   score = B (A x) + b      that minimizes  sum_t ||y_t - score_t||^2 + lambda ||B A||^2   at rank r
 *
 * With centred X (tokens, n_in) and Y (tokens, n_out), C = X^T X + lambda I = L L^T, M = L^-1 X^T Y and the r leading left
 * singular vectors U of M:  A = U^T L^-1,  B = M^T U,  b = mean y  (reduced-rank ridge regression, Mukherjee & Zhu 2011;
 * Izenman 1975).  U are the eigenvectors of M M^T. */
#ifndef RIDGE_H
#define RIDGE_H

#include "base/base.h"

typedef struct predict_ridge {
    int n_in, rank, n_out;
    float *a, *b, *bias; // (rank, n_in), (n_out, rank), (n_out)
} predict_ridge;

/* x (n, n_in): centred, about unit variance; open: rows of bits, `stride` bytes apart; rate (n_out): their means.  lambda is
 * a hundredth of the median diagonal of X^T X.  OpenBLAS and LAPACK on the calling thread. */
int predict_ridge_fit(predict_ridge *r, const float *x, const uint8_t *open, size_t stride, size_t n, int n_in, int n_out, int rank, const double *rate, dw_err *err);
/* From a map of standardized inputs, (x - mean) * scale, to one of inputs as they are; each (n_in). */
void predict_ridge_fold(predict_ridge *r, const float *mean, const float *scale);
/* score (n, n_out); hidden (n, rank) is scratch. */
void predict_ridge_scores(const predict_ridge *r, const float *x, int n, float *hidden, float *score);
void predict_ridge_release(predict_ridge *r);

#endif
