/* learn.h - makes the predictor of one layer and judges it beside its rivals.
 *
 * A predictor is judged by the mass that it captures (tally.h) at a share of open groups, its activity.
 *
 *   1. The closed form: reduced-rank ridge regression (ridge.h) of the root of each group's share on the FFN's input.
 *   2. The activity: that at which the closed form reaches on the choosing part what the options want (an activity
 *      itself, a recall, or a part of the mass that the gate captures).  tau is the share at this activity on the
 *      training part: the share of the last group that would be opened if all shares were known.
 *   3. Training, with the loss of network.h at the price tau, from a network that begins as the closed form: batches in
 *      a random order, Adam with a rate that falls linearly to zero over the epochs.  After each epoch the mass at the
 *      activity is taken on the choosing part.  The best epoch counts, and training ends when three were no better.
 *   4. The standardization is folded into A and a, and A and B are rounded to F16.  The one that then captures more on
 *      the choosing part, the closed form or the trained network, becomes the predictor.
 *   5. The operating point: the threshold at which the choosing part has what the options want.  It is subtracted from
 *      b, so that a group is open at a score of 0 or more.  Groups of equal score open together, such as those without
 *      any mass: an activity is then the nearest that can be.
 *
 * A linear map fits into a network: relu passes A x + a unchanged when a exceeds all that A x takes away.
 *
 * Judged on the held-out part, each beside the gate's own decisions.  The thresholds of linear and network give the
 * predictor's activity on the choosing part; static has its activity on the held-out part, exactly.
 *   predictor  what is returned
 *   static     always the same groups: those of most mass on the training part; what cutting would give.  Where the
 *              activity is no whole number of groups, every token has a part of the next group's mass
 *   linear     the closed form
 *   network    the trained network
 *   never      always closed: what accuracy is worth */
#ifndef PREDICT_LEARN_H
#define PREDICT_LEARN_H

#include "predict/examples.h"
#include "predict/network.h"
#include "predict/tally.h"

typedef enum predict_learn_method {
    PREDICT_LEARN_GATE,
    PREDICT_LEARN_PREDICTOR,
    PREDICT_LEARN_STATIC,
    PREDICT_LEARN_LINEAR,
    PREDICT_LEARN_NETWORK,
    PREDICT_LEARN_NEVER,
    PREDICT_LEARN_N_METHODS
} predict_learn_method;
extern const char *const predict_learn_method_names[PREDICT_LEARN_N_METHODS];

typedef struct predict_learn_options {
    int rank, n_epochs, n_batch;
    double rate;                   // of Adam
    double activity, recall, mass; // wanted on the choosing part: the first of them that is not 0
    uint64_t seed;
    void (*on_epoch)(void *ctx, int n_epochs); // done: one, and at an early end the rest
    void *ctx;
} predict_learn_options;

typedef struct predict_learned {
    predict_network net; // as stored: F16 values in A and B
    bool is_linear;      // the closed form won
    predict_tally held_out[PREDICT_LEARN_N_METHODS];
    float *mass[PREDICT_LEARN_N_METHODS]; // (tokens held out)
    int n_epochs;                 // that were run
} predict_learned;

int predict_learn_layer(predict_learned *result, const predict_examples *e, const predict_learn_options *o,
                        dw_err *err);
/* What predict_learn_layer takes at most in addition to the examples, in bytes: its own arrays and LAPACK's, without
 * OpenBLAS's buffer. */
double predict_learn_bytes(const traces *t, int layer, int rank, int n_batch);
void predict_learned_release(predict_learned *r);

/* The default rank: n_embd / 6, a multiple of 16. */
int predict_learn_default_rank(int n_embd);

#endif
