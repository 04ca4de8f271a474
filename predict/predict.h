/* predict.h - compute only the neurons that matter for a token.
 *
 *   gate    stats, model -> model with thresholds     which neurons count as active, decided at run time
 *   trace   gated model, texts -> traces.h5           inputs of the FFN and the gate's decisions
 *   train   gated model, traces -> model with small predictor networks of those decisions
 *
 * A selection is part of the FFN step, not a filter around it: listing active neurons first and gathering them later
 * costs what it saves.  What a gated file holds: formats/ffn_gated.h.  With the FFN's normed input h and v_j column j
 * of down,
 *
 *   a_j = act(gate_j . h) (up_j . h),    FFN(h) = sum_j a_j v_j,    gated: the sum over j in open groups only
 *
 * Gate rules (rules.h): a group G is open where its value reaches the layer's threshold t,
 *   cats        |act(gate_j . h)| >= t, groups of 1             Lee et al. 2024, CATS, arXiv 2404.08763
 *   group-max   max over j in G of |act(gate_j . h)| >= t       the same over groups, the first attempt of the story
 * t is the quantile of the value over calibration texts at which the share of open neurons is the wanted activity.  The
 * gate matrix is read whole; up and the transposed copy of down are read where a group is open.
 *
 * Predictors (attempt 2 of the story; after Liu et al. 2023, Deja Vu, arXiv 2310.17157) are one network per layer
 * (network.h), which learns which groups carry the output.  A predictor reads rank * (n_embd + n_groups) weights instead
 * of the gate's, and it errs, so it pays only at small rank.  learn.h says how it is trained and with which rivals it is
 * compared, tally.h by which numbers.
 *
 * Controls (fixed.h) open the same neurons for every token.
 *
 * Invariants: every tensor of the parent is there, bit for bit (train replaces earlier predictors); what was added says
 * so by name and key.  Whether skipping pays is not said by the file: the engine measures it where the model runs.
 *
 * Not here: removal for good (prune/), number formats (quant/). */
#ifndef PREDICT_H
#define PREDICT_H

#include "engine.h"

#endif
