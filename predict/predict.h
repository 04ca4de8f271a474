/* predict.h - compute only the neurons that matter for a token.
 *
 *   gate    stats, model -> model with thresholds     which neurons count as active, decided at run time
 *   trace   gated model, texts -> traces.h5           inputs of the FFN and the gate's decisions
 *   train   gated model, traces -> model with small predictor networks of those decisions
 *
 * A selection is part of the FFN step, not a filter around it: listing active neurons first and gathering them later
 * costs what it saves.  What a gated file holds: formats/sparse.h.
 *
 * Invariants: every tensor of the parent is there, bit for bit; what was added says so by name and key; a layer that would
 * not gain is marked dense and runs as before.
 * Predictors (attempt 2 of the story): a network a layer, score = B relu(A h + a) + b, open at 0 or more (network.h; Liu et al. 2023,
 * Deja Vu, arXiv 2310.17157).  It reads rank * (n_embd + n_groups) weights to save those of the gate, and decides a little
 * wrongly, so it pays only at small rank.  It is judged by recall and by the mass that it captures, on text that nothing has seen,
 * beside the choice that costs nothing: always the same groups (learn.h, tally.h).
 *
 * Not here: removal for good (prune/), number formats (quant/). */
#ifndef PREDICT_H
#define PREDICT_H

#include "engine.h"

#endif
