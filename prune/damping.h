/* damping.h - a Gram matrix made invertible.
 *
 * H = C + lambda I, C = sum / tokens.  lambda is relative to the median of the positive diagonal values of C, because a
 * few hot neurons dominate their mean.  With T < 5 n tokens lambda is 5 n / T times as large.  When H has a pivot that
 * is not positive, lambda grows by 10, at most DAMPING_TRIES times.
 * A dead neuron (diagonal below 1e-12 of the median) gets zeros beside the diagonal and the median on it.  Then it
 * affects no other neuron, and selections treat it as free. */
#ifndef PRUNE_DAMPING_H
#define PRUNE_DAMPING_H

#include "kit/gram.h"

enum { DAMPING_TRIES = 5 };
#define DAMPING 0.01 // lambda over the median

typedef struct damping {
    double median; // of the positive diagonal values of C
    double lambda;
    int n_dead;
    int n_raised;    // how often a pivot made lambda larger
    bool few_tokens; // fewer than 5 n
} damping;

/* Fills d for a matrix that sums n_tokens tokens and dead[j] (n).  relative: lambda over the median, above 0.
 * Fails when all neurons are dead, or lambda is no positive number. */
int damping_of(damping *d, const kit_gram_matrix *g, double n_tokens, double relative, bool *dead, dw_err *err);

/* Fills the lower triangle of H (m, m) of the m neurons of `at`, ascending (NULL: all), and factors it; raises
 * d->lambda until all pivots are positive. */
int damping_factor(damping *d, const kit_gram_matrix *g, double n_tokens, const bool *dead, const int32_t *at, int m,
                   double *h, dw_pool *pool, dw_err *err);

enum { DAMPING_WORDS = 240 };
/* "damped by 0.17 of the median square; 1200 tokens are few for 4096 neurons: give more text" and similar; "" when
 * there is nothing to tell.  of: "neurons", or "inputs". */
void damping_tell(const damping *d, int n, double n_tokens, const char *of, char text[DAMPING_WORDS]);

/* What is told of the layers.  Neighbours of which the same is told share a line: "layers 0 to 7: damped by ..". */
typedef struct damping_report {
    void (*tell)(const char *text);
    const char *what;          // "": of down; ", heads": of the attention's output, whose inputs are no neurons
    char words[DAMPING_WORDS]; // of the layers first to last; "": nothing
    int first, last;
} damping_report;

void damping_report_layer(damping_report *r, int layer, const damping *d, int n, double n_tokens); // r NULL: untold
void damping_report_end(damping_report *r);

#endif
