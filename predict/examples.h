/* examples.h - one layer's traces as a predictor learns from them: three parts of every text.
 *
 * Of each text's tokens the first eight tenths train, the next tenth chooses (when to stop, what to keep, and the
 * operating point), the last tenth is held out: only it is reported.  The parts are contiguous, because neighbouring
 * tokens resemble each other.  Inputs of the training part are standardized by column; those of the other two are as
 * traced. */
#ifndef PREDICT_EXAMPLES_H
#define PREDICT_EXAMPLES_H

#include "kit/traces.h"

typedef enum predict_examples_part {
    PREDICT_EXAMPLES_TRAIN, PREDICT_EXAMPLES_CHOOSE, PREDICT_EXAMPLES_HELD_OUT, PREDICT_EXAMPLES_N_PARTS
} predict_examples_part;

typedef struct predict_examples {
    int n_in, n_groups;
    size_t stride;                     // bytes of a row of decisions
    size_t n[PREDICT_EXAMPLES_N_PARTS];        // tokens
    float *x[PREDICT_EXAMPLES_N_PARTS];        // (n, n_in)
    uint8_t *open[PREDICT_EXAMPLES_N_PARTS];   // (n, stride)
    uint16_t *share[PREDICT_EXAMPLES_N_PARTS]; // (n, n_groups) F16
    float *mean, *scale;               // (n_in): standardized = (x - mean) * scale
    double *mass;                      // (n_groups): summed share of the training part
} predict_examples;

/* Rows of a text of n tokens that belong to a part: how many, and *first from the text's beginning. */
size_t predict_examples_part_of(size_t n, predict_examples_part part, size_t *first);
/* Tokens of a part over all texts. */
size_t predict_examples_count(const traces *t, predict_examples_part part);
/* What predict_examples_load takes, in bytes. */
double predict_examples_bytes(const traces *t, int layer);
/* Decisions of `layer` from the input of `input_layer`.  One thread at a time, as traces are read. */
int predict_examples_load(predict_examples *e, const traces *t, int layer, int input_layer, dw_err *err);
void predict_examples_release(predict_examples *e);

#endif
