/* column_sums.h - sums down the columns of activation matrices: the loops in which collect spends its time.
 *
 * Matrices are F32, rows ld floats apart; `row` lists the rows that count, in order.  Sums are double and are added in
 * the order of the rows.  A product of two floats is exact in double.  So a sum depends neither on which other columns
 * are summed with it nor on the instructions used. */
#ifndef COLUMN_SUMS_H
#define COLUMN_SUMS_H

#include "engine.h"

typedef struct column_sums {
    const char *level; // as dw_cpu_level calls it
    /* sum[j] += x[r][j], sum_abs[j] += |x[r][j]|, sum_square[j] += x[r][j]^2,
     * max_abs[j] = max(max_abs[j], |x[r][j]|) */
    void (*moments)(const float *x, size_t ld, const int *row, int n_rows, int n, double *sum, double *sum_abs,
                    double *sum_square, float *max_abs);
    void (*squares)(const float *x, size_t ld, const int *row, int n_rows, int n, double *sum_square);
    void (*bins)(const float *x, int n, uint8_t *bin);                  // kit_stats_bin of |x[i]|
    void (*largest_of_32)(const uint8_t *bin, int n, uint8_t *largest); // of 32 bins each, n times
    void (*add_bytes)(const uint8_t *count, int n, uint32_t *sum);     // sum[i] += count[i]; n is a multiple of 16
    /* Returns the dot product of old and x, sets *square to that of x and x, both in 32 interleaved sums; then
     * old = x. */
    double (*replace)(float *old, const float *x, int n, double *square);
} column_sums;

extern const column_sums column_sums_levels[]; // slowest first; ends with level NULL
/* The best row that this machine, or $DEADWOOD_CPU, allows. */
const column_sums *column_sums_choose(dw_err *err);

#endif
