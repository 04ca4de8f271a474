/* repair.h - what stays of down, fitted again after a cut.
 *
 * V' of the kept neurons S minimizes  E||target - V'_S a_S||^2 + lambda ||V'_S - V_S||^2.  With the residual
 * R = target - V_S a_S and H_SS = E[a_S a_S^T] + lambda I this is
 *
 *     V'_S = V_S + E[R a_S^T] H_SS^-1
 *
 * So the ridge draws towards the original columns, not towards zero, and the cross term is not damped.  For the output
 * of the whole layer on the same inputs R = V_P a_P (P: removed), E[R a_S^T] = V_P C_PS, and V' is the repair that the
 * scores of obs.h assume.  Damping and dead neurons: damping.h. */
#ifndef PRUNE_REPAIR_H
#define PRUNE_REPAIR_H

#include "prune/damping.h"

typedef struct repair_task {
    const kit_gram_matrix *gram; // of all n neurons
    double n_tokens;
    const float *v; // (d, n)
    int d;
    const int32_t *keep; // (n_keep): S, ascending
    int n_keep;
    double damp;         // lambda over the median; 0: DAMPING
    const double *cross; // (n_keep, d): sum over the tokens of a_S R^T; NULL: R = V_P a_P, from the Gram matrix
} repair_task;

/* out: (d, n_keep).  info may be NULL. */
int repair_least_squares(const repair_task *t, float *out, damping *info, dw_pool *pool, dw_err *err);

#endif
