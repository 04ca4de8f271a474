/* planted_gate.h - a tiny gated model for tests of predictors, a text for it, and decisions by plain loops. */
#ifndef PLANTED_GATE_H
#define PLANTED_GATE_H

#include "engine.h"

enum { PLANTED_LAYERS = 4, PLANTED_EMBD = 64, PLANTED_FF = 128 };

/* A file of four random layers; layer l is open where the largest |act(gate)| of a group of neurons reaches a threshold that
 * grows with l; bit l of `dense` marks it dense.  `seed` makes other weights.  The path stays. */
const char *planted_gate(const char *name, int group, unsigned dense, int seed);
float planted_threshold(int layer);
/* A text of n random words.  The path stays. */
const char *planted_text(const char *name, int n, int seed);

/* score (n_groups) of one token by the file's predictor of a layer, in doubles; false: it has none. */
bool plain_scores(const dw_model *m, int layer, const float *x, double *score);

#endif
