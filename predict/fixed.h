/* fixed.h - the controls of gates: the same neurons for every token, as many as a gate opens.
 *
 *   static   the groups of most energy, sum over their neurons of ||v_j||^2 E[a_j^2]: what cutting would give
 *   random   random groups
 *
 * Where a gate does not beat `static` at equal coverage, deciding for each token brings nothing; where it does not beat
 * `random`, its rule says nothing.  In the file a fixed choice is a predictor (formats/ffn_gated.h) of rank 1 whose A,
 * a and B are 0 and whose b is 1 for open groups and -1 for closed ones, so that every program runs it as it runs
 * gates. */
#ifndef PREDICT_FIXED_H
#define PREDICT_FIXED_H

#include "kit/metrics.h"
#include "predict/predict.h"

typedef struct predict_fixed_options {
    const dw_model *model;
    const kit_stats *stats;   // NULL for random
    const kit_metric *metric; // groups of the largest sum of scores are open
    dw_pool *pool;
    int group;
    double activity; // wanted share of neurons
    uint64_t seed;
} predict_fixed_options;

typedef struct predict_fixed {
    int n_layer;
    int *n_groups;   // (n_layer)
    float **bias;    // (n_layer): b, (n_groups)
    float *activity; // (n_layer): reached
} predict_fixed;

/* The number of open groups is the one whose neurons come nearest to the wanted share, at least one.  Release it also
 * after a failure. */
int predict_fixed_choose(predict_fixed *f, const predict_fixed_options *o, dw_err *err);
void predict_fixed_release(predict_fixed *f);

#endif
