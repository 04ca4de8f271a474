/* output_norm.h - a layer's down matrix in the norm by which errors of its output change the loss.
 *
 * Let y = V a be the FFN's output, e the error that a cut makes in it, and g = dL/dy.  To second order, with the
 * empirical Fisher matrix Gamma = E[g g^T] for the Hessian by y, the loss changes by e^T Gamma e / 2, in nats a token.
 * A change of V by D makes e = D a.  If g and a are independent, the mean over tokens is tr(Gamma D H D^T) / 2 with
 * H = E[a a^T] (Kronecker factors: Martens & Grosse 2015, arXiv 1503.05671; for pruning: van der Ouderaa et al. 2023,
 * LLM Surgeon, arXiv 2312.17244).  With a Cholesky factor Gamma = L L^T it is
 *
 *     tr(R D H (R D)^T),  R = L^T / sqrt(2)
 *
 * so a selection on R V (obs.h) instead of V scores a removal by v_j^T Gamma v_j / (2 [H^-1]_jj).  These scores are
 * nats of the one loss: those of different layers compare.
 *
 * Repair does not change: the best D with fixed columns solves Gamma D H_:S = 0, which is D H_:S = 0 for every positive
 * definite Gamma.  So cut --repair lsq refits V itself and knows nothing of Gamma.
 *
 * Gamma is damped by OUTPUT_NORM_DAMPING of its mean diagonal value, and by ten times as much as long as a pivot is not
 * positive (damping.h).  Directions that the loss did not ask for on the calibration texts keep that little weight. */
#ifndef PRUNE_OUTPUT_NORM_H
#define PRUNE_OUTPUT_NORM_H

#include "kit/gram.h"

#define OUTPUT_NORM_DAMPING 1e-3

/* Replaces v (gamma->n, n) by R v.  gamma sums n_tokens tokens.  Fails when all gradients are 0. */
int output_norm_apply(const kit_gram_matrix *gamma, double n_tokens, float *v, int n, dw_pool *pool, dw_err *err);

#endif
