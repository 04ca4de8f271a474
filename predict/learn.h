/* learn.h - trains the predictor of one layer and judges it beside its rivals.
 *
 * Training begins at the linear rival's map, so that the network starts where a closed form ends: batches in a random
 * order, Adam with a rate that falls linearly to zero over the epochs; after each epoch the loss on the choosing part; the
 * best epoch's parameters count, and when three epochs have not bettered it, training ends.  Then the standardization is
 * folded into A and a, A and B are rounded to F16, and only then the operating point is sought: the threshold for which the
 * choosing part has the wanted recall, or the wanted part of the mass that the gate itself captures.  It is subtracted from
 * b, so that a group is open at a score of 0 or more.
 *
 * Judged on the held-out part, each beside the gate's own decisions:
 *   predictor  the network
 *   static     always the same groups, as many as the predictor opens on average: those of most mass on the training part;
 *              what cutting would give
 *   linear     reduced-rank ridge regression (ridge.h) of the same rank, at a threshold that opens as many groups as the
 *              predictor on the choosing part
 *   never      always closed: what accuracy is worth */
#ifndef LEARN_H
#define LEARN_H

#include "predict/examples.h"
#include "predict/network.h"
#include "predict/tally.h"

typedef enum predict_learn_method { LEARN_GATE, LEARN_PREDICTOR, LEARN_STATIC, LEARN_LINEAR, LEARN_NEVER, LEARN_N_METHODS } predict_learn_method;
extern const char *const predict_learn_method_names[LEARN_N_METHODS];

typedef struct predict_learn_options {
    int rank, n_epochs, n_batch;
    double rate;             // of Adam
    double positive_weight;  // w+ of network.h, w- being 1; 0: by the layer's open share
    double recall, mass;     // wanted on the choosing part: recall, or, where it is 0, mass as a part of the gate's
    uint64_t seed;
    void (*on_epoch)(void *ctx, int n_epochs); // done: one, and at an early end the rest
    void *ctx;
} predict_learn_options;

typedef struct predict_learned {
    predict_network net;                      // as stored: F16 values in A and B
    predict_tally held_out[LEARN_N_METHODS];
    float *mass[LEARN_N_METHODS];     // (tokens held out)
    int n_epochs;                     // that were run
} predict_learned;

int predict_learn_layer(predict_learned *result, const predict_examples *e, const predict_learn_options *o, dw_err *err);
/* What predict_learn_layer takes at most in addition to the examples, in bytes: its own arrays and LAPACK's, without OpenBLAS's
 * buffer. */
double predict_learn_bytes(const traces *t, int layer, int rank, int n_batch);
void predict_learned_release(predict_learned *r);

/* The rank that is meant by default: n_embd / 6, a multiple of 16. */
int predict_learn_default_rank(int n_embd);

#endif
