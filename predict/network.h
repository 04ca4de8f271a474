/* network.h - a predictor: which groups of a layer's neurons will be open, from the input of its FFN.
 *
 *   score = B relu(A x + a) + b     A (rank, n_in), a (rank), B (n_out, rank), b (n_out); open where score >= 0
 *
 * Loss of a token: the mean over groups of binary cross-entropy with weights,
 *   w+ y ln(1 + e^-s) + w- (1 - y) ln(1 + e^s),       so dloss/ds = w(y) (sigmoid(s) - y),
 * y the gate's decision; by default w+ = 1 / (p + 0.005) and w- = 1 at an open share p, as in Deja Vu.  Training is Adam
 * with decoupled weight decay (Kingma & Ba 2015; Loshchilov & Hutter 2019).  Products are OpenBLAS's sgemm with one thread,
 * so that the same seed gives the same bits whatever else runs.  Matrices are row-major F32. */
#ifndef NETWORK_H
#define NETWORK_H

#include "base/base.h"

typedef struct predict_network {
    int n_in, rank, n_out;
    size_t n_params;
    float *params;                          // all four, one behind the other:
    float *a, *a_bias, *b, *b_bias;
} predict_network;

typedef struct predict_network_weights {
    float open, closed; // w+ and w-
} predict_network_weights;

/* Memory of passes over up to n_batch tokens. */
typedef struct predict_network_scratch {
    int n_batch;
    float *hidden, *score, *d_hidden;       // (n_batch, rank), (n_batch, n_out), (n_batch, rank)
} predict_network_scratch;

int predict_network_init(predict_network *net, int n_in, int rank, int n_out, dw_err *err); // all zero
void predict_network_release(predict_network *net);
int predict_network_scratch_init(predict_network_scratch *s, const predict_network *net, int n_batch, dw_err *err);
void predict_network_scratch_release(predict_network_scratch *s);

/* s->score (n, n_out) of x (n, n_in). */
void predict_network_scores(const predict_network *net, const float *x, int n, predict_network_scratch *s);
/* The mean loss of n tokens; open: rows of bits, `stride` bytes apart.  gradient (of net's shape): overwritten; NULL: none. */
double predict_network_loss(const predict_network *net, const float *x, const uint8_t *open, size_t stride, int n, predict_network_weights w, predict_network_scratch *s, predict_network *gradient);

typedef struct predict_adam {
    double rate, decay;                     // decay is that of A and B
    int step;
    float *mean, *square;                   // of the gradient
} predict_adam;

int predict_adam_init(predict_adam *a, const predict_network *net, double rate, double decay, dw_err *err);
void predict_adam_step(predict_adam *a, predict_network *net, const predict_network *gradient);
void predict_adam_release(predict_adam *a);

#endif
