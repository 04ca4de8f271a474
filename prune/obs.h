/* obs.h - exact one-at-a-time selection of neurons on the Gram matrix of the inputs of down (optimal brain surgeon).
 *
 * A layer's output is V a: V = down (d, n), a the n neurons.  C = E[a a^T] over calibration tokens, H = C + damping.
 * When a neuron j is removed and the other columns of V are fitted again by least squares, the output's error grows by
 *
 *     s_j = ||v_j||^2 / [H^-1]_jj                                    (Hassibi & Stork 1993; Frantar 2022, 2208.11580)
 *
 * and afterwards  V -= v_j [H^-1]_j: / [H^-1]_jj,   H^-1 -= [H^-1]_:j [H^-1]_j: / [H^-1]_jj.
 * For a group P of neurons that go together,  s_P = tr(V_P ([H^-1]_PP)^-1 V_P^T).  Each step removes the group of the
 * least score, of equal ones the first.  The sum of the scores is E(P) of all that is removed so far, the least
 * possible error of the output: ||(V - V') a||^2 per token + the damping's share.  One run gives every width of the
 * layer, because the kept sets are nested.
 *
 * V enters through G = V^T V alone.  Another norm of the output's error, e^T Gamma e instead of ||e||^2, has
 * V^T Gamma V there: the same selection on R V with Gamma = R^T R (output_norm.h).  For one removal let
 * r^2 = [H^-1]_jj, u = [H^-1]_:j / r, q = V^T v_j / r, w = ||v_j||^2 / r^2.  Then
 *
 *     H^-1 -= u u^T       G -= q u^T + u q^T - w u u^T
 *
 * Blocks of removals are lazy: u is stored, and all n^2 work waits for the end of the block, as matrix products.
 * Within a block let U, Z (n, k) hold the columns u and z = V0^T y of the k removals so far, y = v_j / r, V0 the matrix
 * at the start of the block, and T = Y^T Y (k, k):
 *
 *     u = ([H0^-1]_:j - U U_j:^T) / r      t = (Z_j:^T - T U_j:^T) / r      z = (G0_:j - Z U_j:^T) / r      q = z - U t
 *     at the end:  H^-1 -= U U^T,   G += A U^T + U A^T  with A = U T / 2 - Z
 *
 * Numerics.  H is scaled to a unit diagonal first, which changes no score.  Then [H^-1]_jj >= 1 for every set that
 * stays, and rounding below that is corrected.  Up to OBS_MOST_F64 neurons everything is double, beyond them the
 * matrices of the selection are float (two of n^2), the factor and the inverse double. */
#ifndef PRUNE_OBS_H
#define PRUNE_OBS_H

#include "prune/damping.h"

enum { OBS_MOST_F64 = 8192 };

typedef struct obs_task {
    const kit_gram_matrix *gram;
    double n_tokens; // that it sums
    const float *v;  // (d, n): down
    int d;
    int group;        // neurons that go together; divides n
    int most_removed; // groups; the selection ends there
    double damp;      // lambda over the median; 0: DAMPING
    int block;        // removals of a lazy block; 0: 128
    int most_f64;     // neurons of the widest layer whose selection is in double; 0: OBS_MOST_F64, below 0: none
} obs_task;

typedef struct obs_seconds { // of the parts of a selection
    double factor, invert, select;
} obs_seconds;

typedef struct obs_order {
    int n_group, n_removed;
    int32_t *group; // (n_group): in the order of removal; after n_removed those that stay, least score first
    double *error;  // (n_group): E per token after this one has gone; for those that stay: their score, added
    damping damping;
    obs_seconds seconds;
} obs_order;

/* After a failure there is nothing to release. */
int obs_select(obs_order *o, const obs_task *t, dw_pool *pool, dw_err *err);
void obs_order_release(obs_order *o);

/* Scores of the groups, larger: stays longer.  A group's score is its step of the error, or that of the group before if
 * that is larger; scores ascend strictly in the order of removal. */
void obs_scores(const obs_order *o, double *score);

#endif
