/* statistics.h - means with standard errors, paired differences, quantiles.  All sums have a fixed order. */
#ifndef MEASURE_STATISTICS_H
#define MEASURE_STATISTICS_H

#include "base/base.h"

typedef struct measure_mean {
    double mean, se;
} measure_mean;

/* Mean of n values and its standard error for independent values: sqrt((E[x^2] - E[x]^2) / (n - 1)), the formula of
 * llama.cpp.  se is 0 for one value. */
measure_mean measure_mean_of(const double *x, size_t n);

/* The mean of n independent means and its error: sqrt(sum se^2) / n. */
measure_mean measure_mean_of_means(const measure_mean *m, size_t n);

/* The share n_held / n of cases, with the binomial error sqrt(p (1 - p) / (n - 1)). */
measure_mean measure_share(size_t n_held, size_t n);

/* A mean difference over tokens.  Tokens of one text are not independent, so the errors use the W windows as samples:
 *   se         from the window means D_w: sqrt(sum n_w^2 (D_w - mean)^2 W / (W - 1)) / sum n_w;
 *              for windows of equal size this is sd / sqrt(W)
 *   se_blocks  from 10,000 circular block bootstraps over runs of W^(1/3) windows (Politis & Romano 1992), scaled by
 *              sqrt(W / (W - run)) so that independent windows give se; larger than se if neighbours are similar
 *   resolvable 2.8 times the larger error: the smallest true difference found at 5 % significance with 80 % power
 * All three are NaN with fewer than MEASURE_LEAST_WINDOWS windows, because two windows that agree by chance would look
 * like certainty. */
enum { MEASURE_LEAST_WINDOWS = 5 };

typedef struct measure_paired {
    double mean, se, se_blocks, resolvable;
} measure_paired;

/* sum[w]: sum of the differences over the n[w] tokens of window w.  The seed is fixed: equal input, equal errors. */
int measure_paired_of(measure_paired *p, const double *sum, const double *n, size_t n_windows, dw_err *err);
measure_paired measure_paired_of_texts(const measure_paired *p, size_t n); // the mean of independent texts

/* Quantile q of n sorted values, linear between neighbours (fraction q (n - 1)). */
double measure_quantile(const double *sorted, size_t n, double q);
void measure_sort(double *x, size_t n);

#endif
