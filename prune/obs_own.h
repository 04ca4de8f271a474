/* obs_own.h - the selection's state, for obs.c and the two compilations of obs_body.inc. */
#ifndef PRUNE_OBS_OWN_H
#define PRUNE_OBS_OWN_H

#include "prune/obs.h"

typedef struct obs_start { // H^-1 and G = V^T V of all n neurons, scaled to a unit diagonal of H
    int n, group, most_removed, block;
    double *inverse; // (n, n), the lower triangle; the selection releases it when it has its copy
    const float *v;  // (d, n)
    int d;
    const double *scale; // (n): of the columns of v; 0 for dead neurons
} obs_start;

int obs_run_f64(obs_order *o, obs_start *s, dw_pool *pool, dw_err *err);
int obs_run_f32(obs_order *o, obs_start *s, dw_pool *pool, dw_err *err);

#endif
