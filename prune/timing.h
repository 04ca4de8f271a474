/* timing.h - what a layer's width costs in time, measured on this machine: budgets in microseconds.
 *
 * The model decodes single tokens with all its layers at one width, on as many threads as the pool has, and every width in
 * turn; the median of a width's tokens is T(w).  Weights of width w are the first w rows of gate and up, and the first
 * bytes of down read as rows of w values, so nothing is copied and every number type keeps its kernels.  With n layers,
 *
 *     T(w_1 .. w_n) = T_0 + sum f(w_l),      f(w) = (T(w) - T_0) / n
 *
 * T_0 is what the line through the two smallest widths gives at 0, at least 0; f is linear between the widths and never
 * falls.  A table belongs to this machine, these threads and the types that the model has now; another measurement
 * differs by the machine's noise, so plans made by it are not the same to the byte. */
#ifndef PRUNE_TIMING_H
#define PRUNE_TIMING_H

#include "engine.h"

enum { TIMING_WIDTHS = 8 };

typedef struct timing {
    int n, n_layer;           // measured widths; layers that stay
    int width[TIMING_WIDTHS]; // ascending; the last is the whole layer
    double us[TIMING_WIDTHS]; // of a token with all layers at that width
    double rest;              // T_0
} timing;

/* drop (n_layer): these layers are left out.  Fails when the others differ in width, or have less than 2 blocks. */
int timing_measure(timing *t, const dw_model *m, const bool *drop, dw_pool *pool, dw_err *err);
/* f(width) in microseconds. */
double timing_of_layer(const timing *t, int width);
/* The largest width that all layers may have for a token of at most `us`; 0: none. */
int timing_uniform_width(const timing *t, double us);

/* T_0 and f of measured us; `us` is made ascending first. */
void timing_settle(timing *t);

#endif
