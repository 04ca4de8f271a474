/* statistics.h - means with standard errors, paired differences, quantiles.  All sums have a fixed order.
 *
 * Tokens of one window share their context, so they are not independent samples.  Every quality column is therefore a
 * mean over tokens whose error is clustered by window.  With s_w the sum over the n_w tokens of window w, and W
 * windows:
 *
 *   mean   sum s_w / sum n_w
 *   se     sqrt(sum (s_w - n_w mean)^2 W / (W - 1)) / sum n_w; for windows of equal size this is sd / sqrt(W)
 *   df     W - 1: degrees of freedom of the error
 *
 * (Cochran 1977, Sampling Techniques, 6.4, a ratio estimator.)  Windows are few, often 5 to 8 per text.  An interval
 * therefore takes a quantile of Student's t with df degrees of freedom; for W = 5 the 90 % interval is 2.13 se, where a
 * normal distribution would give 1.64 se.  Fewer than MEASURE_LEAST_WINDOWS windows have no error (se is NaN): two
 * windows that agree by chance would look like certainty.
 *
 * Skewed windows.  KL by window has a long upper tail, and a few windows mostly lack it.  Then the mean and se are both
 * small, and the interval lies below the truth: of 100 90 % intervals of real KL from 5 to 29 windows 12 to 15 do, and
 * 1 lies above.  Covered, in %, of 2,000 to 4,000 trials, with one text of 5, 8, 29 and 200 windows:
 *
 *                                                 5      8     29    200
 *   log-normal, ln sd 0.6                       84.8   85.8   88.7   89.4      tests/test_pairing.c: planted noise
 *   the same, Hall                              87.5   88.7   89.2   89.8
 *   KL of a 20 % cut, 220 real windows          85.3   85.5   86.2   88.6      the sample of tests/test_pairing.c
 *   the same, Hall                              85.3   86.0   85.1   88.2
 *   KL of Q4_0, 200 real windows, English       86.6   86.6   84.6   89.5      the reference text, windows of 256
 *   the same, Hall                              88.3   87.6   83.4   89.8
 *   the same, code and mathematics, each        90-91  90     90     90-91
 *   uniform                                     88.5   89.6   90.4   90.7
 *   the same, Hall                              92.6   94.4   91.9   90.8
 *
 * Hall is the monotone transformation of t by the estimated skewness (Hall 1992, JRSS B 54).  Johnson's modified t
 * (1978, JASA 73), its quadratic form, and bootstrap-t of 999 draws differ from it by 2 % or less on real windows; the
 * interval of the logarithm of a mean KL covers 0 to 2 % more than t.  Hall and bootstrap-t correct a smooth skewness.
 * None helps where one window in a hundred has four times the mean, because 29 windows lack every such window in 77 of
 * 100 samples; and both widen intervals from 5 windows by a fifth to a half, also where nothing is skewed.  So
 * intervals are those of t, and a KL from few windows is to be read as: perhaps larger.  More windows are the remedy.
 *
 * Several texts have equal weights: the mean is that of the T texts, se = sqrt(sum se_t^2) / T, and df is Welch's and
 * Satterthwaite's, (sum se_t^2)^2 / sum(se_t^4 / df_t).  This error is conditional on the texts: it says what other
 * windows of the same texts would give.  measure_between_texts says how much the texts differ. */
#ifndef MEASURE_STATISTICS_H
#define MEASURE_STATISTICS_H

#include "base/base.h"

enum { MEASURE_LEAST_WINDOWS = 5 };

typedef struct measure_mean {
    double mean, se, df;
} measure_mean;

/* sum[w]: sum over the n[w] tokens of window w. */
measure_mean measure_mean_of_windows(const double *sum, const double *n, size_t n_windows);
/* The same for the differences a[w] - b[w] of two models on the same tokens. */
measure_mean measure_mean_of_pairs(const double *a, const double *b, const double *n, size_t n_windows);
/* The mean of n texts, and the same one text after the other: begin with {0}, add each, take the mean. */
measure_mean measure_mean_of_texts(const measure_mean *m, size_t n);
typedef struct measure_texts {
    double n, sum, square, fourth, df;
} measure_texts;
void measure_texts_add(measure_texts *t, const measure_mean *m);
measure_mean measure_texts_mean(const measure_texts *t);
/* The standard deviation between the means of n texts; NaN for one text. */
double measure_between_texts(const measure_mean *m, size_t n);

/* The value that Student's t with df > 0 degrees of freedom exceeds with probability p, 0 < p < 1.  df need not be
 * whole.  From the incomplete beta function by its continued fraction (DLMF 8.17.22), by bisection; relative error
 * below 1e-9.  NaN for other p and df. */
double measure_t(double p, double df);
/* The probability that Student's t exceeds x. */
double measure_t_tail(double x, double df);
/* Half the width of the interval that covers the true mean with this probability, for example 0.9. */
double measure_half_width(const measure_mean *m, double probability);

/* The mean of n independent values; se is sqrt((E[x^2] - E[x]^2) / (n - 1)), 0 for one value. */
measure_mean measure_mean_of_values(const double *x, size_t n);

/* A mean difference with the error that neighbouring windows of similar difference need:
 *   se_blocks  from 10,000 circular block bootstraps over runs of W^(1/3) windows (Politis & Romano 1992), scaled by
 *              sqrt(W / (W - run)) so that independent windows give se; NaN for fewer than ten runs, from which a
 *              bootstrap learns nothing
 *   resolvable (t_0.975 + t_0.8) se: the smallest true difference found at 5 % significance with 80 % power; the larger
 *              of those of se (df) and of se_blocks (number of runs - 1); for many windows it is 2.8 standard errors */
typedef struct measure_paired {
    measure_mean of; // mean, se, df
    double se_blocks, df_blocks, resolvable;
} measure_paired;

/* sum[w]: sum of the differences over the n[w] tokens of window w.  The seed is fixed: equal input, equal errors. */
int measure_paired_of(measure_paired *p, const double *sum, const double *n, size_t n_windows, dw_err *err);
measure_paired measure_paired_of_texts(const measure_paired *p, size_t n); // the mean of texts, as above

/* Quantile q of n sorted values, linear between neighbours (fraction q (n - 1)). */
double measure_quantile(const double *sorted, size_t n, double q);
void measure_sort(double *x, size_t n);

#endif
