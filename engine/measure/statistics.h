/* statistics.h - means with standard errors, paired differences, quantiles.  All sums have a fixed order. */
#ifndef MEASURE_STATISTICS_H
#define MEASURE_STATISTICS_H

#include "base/base.h"

typedef struct measure_mean {
    double mean, se;
} measure_mean;

/* Mean of n values and its standard error as if they were independent: sqrt((E[x^2] - E[x]^2) / (n - 1)), the formula
 * of llama.cpp.  se is 0 for one value. */
measure_mean measure_mean_of(const double *x, size_t n);

/* The mean of T means, and its error when they are independent: sqrt(sum se^2) / T. */
measure_mean measure_mean_of_means(const measure_mean *m, size_t n);

/* The share of n cases in which something held, with binomial error sqrt(p (1 - p) / (n - 1)). */
measure_mean measure_share(size_t n_held, size_t n);

/* A mean difference over tokens whose unit of data is the window: tokens of one text are not independent.
 *   se         from window means: sqrt(sum n_w^2 (D_w - mean)^2 W / (W - 1)) / sum n_w; sd / sqrt(W) for equal windows
 *   se_blocks  from 10,000 circular block bootstraps over runs of W^(1/3) windows (Politis & Romano 1992), scaled by
 *              sqrt(W / (W - run)) so that independent windows give se; larger than se where neighbours agree
 *   resolvable the smallest true difference that would be found at 5 % significance with 80 % power: 2.8 x the larger
 * NaN with fewer than MEASURE_LEAST_WINDOWS windows: two that happen to agree would look like certainty. */
enum { MEASURE_LEAST_WINDOWS = 5 };

typedef struct measure_paired {
    double mean, se, se_blocks, resolvable;
} measure_paired;

/* sum[w]: of the differences over the n[w] tokens of window w.  The generator is seeded: same numbers, same errors. */
int measure_paired_of(measure_paired *p, const double *sum, const double *n, size_t n_windows, dw_err *err);
measure_paired measure_paired_of_texts(const measure_paired *p, size_t n); // the mean of independent texts

/* Quantile q of n sorted values, linear between neighbours (fraction q (n - 1)). */
double measure_quantile(const double *sorted, size_t n, double q);
void measure_sort(double *x, size_t n);

#endif
