/* spd.h - symmetric positive definite matrices on a pool of threads: factor, solve, invert.
 *
 * Matrices are double, row-major, n x n; of a symmetric one the lower triangle counts.  Work is divided into tiles of
 * fixed size; one thread computes a tile, and its BLAS has one thread (kit/blas.h).  The order of all sums follows from
 * n alone.  So the results do not depend on the number of threads.
 *
 *   factor    A = L L^T, right-looking by tiles (Golub & Van Loan, Matrix Computations, 4.2.9): n^3 / 3 flops
 *   solve     X <- X (L L^T)^-1 for rows of X: 2 n^2 flops a row
 *   invert    rows r .. of the inverse solve x L L^T = e_r; row r needs the columns from r on only: 2/3 n^3 flops */
#ifndef PRUNE_SPD_H
#define PRUNE_SPD_H

#include "base/base.h"

/* Replaces the lower triangle of A by L.  Returns the first row whose pivot is not positive (NaN included), or n. */
int spd_factor(double *a, int n, dw_pool *pool);

/* The m rows of x, (m, n), become x (L L^T)^-1. */
void spd_solve_rows(const double *l, int n, double *x, size_t m, dw_pool *pool);

/* The lower triangle of the inverse, (n, n); the values above it are undefined. */
int spd_inverse(const double *l, int n, double *inverse, dw_pool *pool, dw_err *err);

/* c += alpha a^T b for a (k, m), b (k, n) and c (m, n), rows lda, ldb and n apart; lower: m = n and only the lower
 * triangle of c counts.  In tiles, as above. */
typedef struct spd_product {
    const double *a, *b;
    double *c;
    size_t lda, ldb;
    int m, n, k;
    double alpha;
    bool lower;
} spd_product;

void spd_multiply(const spd_product *p, dw_pool *pool);

/* Pair number i of (row, column) with column <= row: 0,0  1,0  1,1  2,0 .. */
void spd_pair_of(size_t i, int *row, int *column);

#endif
