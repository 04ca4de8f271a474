/* network.h - a predictor: which groups of a layer's neurons to compute, from the input of its FFN.
 *
 *   score = B relu(A x + a) + b     A (rank, n_in), a (rank), B (n_out, rank), b (n_out); open where score >= 0
 *
 * Loss of a token, with m_g the share of group g in the token's sum ||v_j||^2 a_j^2, the mean over groups of
 *
 *   m_g / tau ln(1 + e^-s_g) + ln(1 + e^s_g),         dloss/ds_g = sigmoid(s_g) - m_g / tau sigmoid(-s_g)
 *
 * It is logistic loss in which "open" weighs what opening the group captures, and "closed" what it costs: tau is the
 * price of a group.  At its minimum e^s_g = E[m_g | x] / tau, so scores order groups by the mass that they are expected
 * to have.  Opening the groups of largest E[m_g | x] captures the most mass at any share of open groups, and s_g >= 0
 * is the choice at the price tau.  (Deja Vu, Liu et al. 2023, weighs the gate's decisions instead, which are not the
 * aim: a gate opens by |act(gate)| and does not see up or down.)
 *
 * Training is Adam with decoupled weight decay (Kingma & Ba 2015; Loshchilov & Hutter 2019).  Products are OpenBLAS's
 * sgemm with one thread, so that the same seed gives the same bits whatever else runs.  Matrices are row-major F32. */
#ifndef PREDICT_NETWORK_H
#define PREDICT_NETWORK_H

#include "base/base.h"

typedef struct predict_network {
    int n_in, rank, n_out;
    size_t n_params;
    float *params; // all four, one after the other:
    float *a, *a_bias, *b, *b_bias;
} predict_network;

/* Tokens to learn from. */
typedef struct predict_batch {
    const float *x;        // (n, n_in)
    const uint16_t *share; // (n, n_out) F16: m_g
    int n;
    float price; // tau
} predict_batch;

/* Memory of passes over up to n_batch tokens. */
typedef struct predict_network_scratch {
    int n_batch;
    float *hidden, *score, *d_hidden; // (n_batch, rank), (n_batch, n_out), (n_batch, rank)
} predict_network_scratch;

int predict_network_init(predict_network *net, int n_in, int rank, int n_out, dw_err *err); // all zero
void predict_network_copy(predict_network *to, const predict_network *from);                // of the same shape
void predict_network_release(predict_network *net);
int predict_network_scratch_init(predict_network_scratch *s, const predict_network *net, int n_batch, dw_err *err);
void predict_network_scratch_release(predict_network_scratch *s);

/* s->score (n, n_out) of x (n, n_in). */
void predict_network_scores(const predict_network *net, const float *x, int n, predict_network_scratch *s);
/* The mean loss of a batch.  gradient (of net's shape): overwritten; NULL: none. */
double predict_network_loss(const predict_network *net, const predict_batch *b, predict_network_scratch *s,
                            predict_network *gradient);

typedef struct predict_adam {
    double rate, decay; // decay is that of A and B
    int step;
    float *mean, *square; // of the gradient
} predict_adam;

int predict_adam_init(predict_adam *a, const predict_network *net, double rate, double decay, dw_err *err);
void predict_adam_step(predict_adam *a, predict_network *net, const predict_network *gradient);
void predict_adam_release(predict_adam *a);

#endif
