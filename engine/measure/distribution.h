/* distribution.h - log-probabilities, divergence and the likeliest tokens of a row of logits.
 *
 * A row is n floats x_i; its distribution is p_i = exp(x_i - max) / sum.  All sums are double, in eight lanes and a
 * fixed order, so the results depend on the logits only (without fused multiply-add they differ by 1e-15).  exp is
 * computed here, to 1e-14, because the C library's would take a third of the time of a small model's perplexity. */
#ifndef MEASURE_DISTRIBUTION_H
#define MEASURE_DISTRIBUTION_H

#include "base/base.h"

typedef struct measure_row {
    double max, log_sum; // ln p_i = x_i - max - log_sum
    int top;             // the likeliest token, on ties the first; -1: a logit is not finite
} measure_row;

measure_row measure_row_of(const float *x, int n);
static inline double measure_row_logprob(const measure_row *r, const float *x, int i) {
    return (double)x[i] - r->max - r->log_sum;
}

/* KL(p || q) in nats; p is the distribution of row x, q of row y.  Equal rows give exactly 0. */
double measure_row_kl(const float *x, const measure_row *p, const float *y, const measure_row *q, int n);

/* A distribution in the coarse form of a stored base: the n_top likeliest tokens, and all other tokens as one bin. */
enum { MEASURE_TOP = 64 };

typedef struct measure_coarse {
    int32_t id[MEASURE_TOP];    // n_top tokens, likeliest first, on ties the smaller id first
    float logprob[MEASURE_TOP]; // their ln p, rounded to float
    float tail;                 // ln of the mass of all other tokens; -1000: no mass
} measure_coarse;

static inline int measure_n_top(int n_vocab) { return n_vocab > MEASURE_TOP ? MEASURE_TOP : n_vocab; }

/* Both functions write to x while they work and restore it. */
void measure_coarse_of(measure_coarse *c, float *x, const measure_row *r, int n);
/* KL(c || distribution of x) over the bins of c: apart from the rounding of c, at most the KL over the whole
 * vocabulary.  Both sides are rounded in the same way, so a model against its own stored row gives exactly 0. */
double measure_coarse_kl(const measure_coarse *c, float *x, const measure_row *q, int n);

#endif
