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
 * Not here: removal for good (prune/), number formats (quant/). */
#ifndef PREDICT_H
#define PREDICT_H

#include "engine.h"

#endif
