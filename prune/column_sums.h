/* column_sums.h - sums down the columns of activation matrices: the loops in which collect spends its time.
 *
 * Matrices are F32, rows ld floats apart; `row` lists which rows count, in order.  Every column's sums are double and are
 * taken row by row in that order, so they depend on neither the columns at hand nor on the instructions used: a product of
 * two floats is exact in double. */
#ifndef COLUMN_SUMS_H
#define COLUMN_SUMS_H

#include "engine.h"

typedef struct column_sums {
    const char *level; // as dw_cpu_level calls it
    /* sum[j] += x[r][j], sum_abs[j] += |x[r][j]|, sum_square[j] += x[r][j]^2, max_abs[j] = max(max_abs[j], |x[r][j]|) */
    void (*moments)(const float *x, size_t ld, const int *row, int n_rows, int n, double *sum, double *sum_abs, double *sum_square,
                    float *max_abs);
    void (*squares)(const float *x, size_t ld, const int *row, int n_rows, int n, double *sum_square);
    void (*bins)(const float *x, int n, uint8_t *bin);      // kit_stats_bin of |x[i]|
    double (*replace)(float *old, const float *x, int n, double *square); // old = x; old x and x x as they were, in 32 interleaved sums
} column_sums;

extern const column_sums column_sums_levels[]; // slowest first; ends with level NULL
/* The best row that this machine, or $DEADWOOD_CPU, allows. */
const column_sums *column_sums_choose(dw_err *err);

#endif
