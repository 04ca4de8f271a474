/* distribution.h - what is read from rows of logits: log-probabilities, divergence, the likeliest tokens.
 *
 * A row is n floats; its distribution is p_i = exp(x_i - max) / sum. All sums are double, in eight lanes and a fixed
 * order, so a row's numbers depend on its logits only (a machine without fused multiply-add differs by 1e-15). exp is
 * computed here, to 1e-14, because the C library's would take a third of the time of a small model's perplexity. */
#ifndef MEASURE_DISTRIBUTION_H
#define MEASURE_DISTRIBUTION_H

#include "base/base.h"

typedef struct measure_row {
    double max, log_sum; // ln p_i = x_i - max - log_sum
    int top;             // the likeliest token, first of equals; -1: a logit is not finite
} measure_row;

measure_row measure_row_of(const float *x, int n);
static inline double measure_row_logprob(const measure_row *r, const float *x, int i) {
    return (double)x[i] - r->max - r->log_sum;
}

/* KL(p || q) in nats, p of row x, q of row y.  Equal rows give 0 exactly. */
double measure_row_kl(const float *x, const measure_row *p, const float *y, const measure_row *q, int n);

/* The coarser distribution of a stored base: the n_top likeliest tokens one by one and all others as one. */
enum { MEASURE_TOP = 64 };

typedef struct measure_coarse {
    int32_t id[MEASURE_TOP];    // n_top of them, likeliest first, first of equals first
    float logprob[MEASURE_TOP]; // their ln p, rounded
    float tail;             // ln of the mass of all others; -1000 stands for none
} measure_coarse;

static inline int measure_n_top(int n_vocab) { return n_vocab > MEASURE_TOP ? MEASURE_TOP : n_vocab; }

/* x is written to and restored. */
void measure_coarse_of(measure_coarse *c, float *x, const measure_row *r, int n);
/* The divergence from c of the distribution of x in c's bins: at most KL over the vocabulary, but for the rounding of
 * c. Both sides are rounded alike, so that a model against its own stored row gives 0 exactly. x is written to and
 * restored. */
double measure_coarse_kl(const measure_coarse *c, float *x, const measure_row *q, int n);

#endif
