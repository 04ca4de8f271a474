/* prune.h - choose FFN neurons and remove them for good.
 *
 * A neuron j of a layer is row j of gate and up and column j of down; it contributes v_j a_j to the layer's output,
 * where v_j is its column of down and a_j = act(gate_j . h) * (up_j . h).  A group is a set of neurons cut together:
 * the same rows of gate and up, the same columns of down.
 *
 *   collect   model, texts -> stats.h5   sums over calibration tokens (kit/stats.h)
 *   rank      stats, model -> plan.tsv   scores, order, what stays (kit/plan.h)
 *   cut       plan, model  -> model      the smaller file
 *   heal      model, original, texts -> model   learns the original's distributions (distil.h)
 *
 * A plan is text and complete: the same parent and plan give the same bytes.
 * Invariants: every layer that stays keeps at least one group; the order of neurons is kept; rate 0 gives the parent's
 * tensors bit for bit; cutting A then B equals cutting both at once.
 * Not here: run-time selection (predict/), number formats (quant/). */
#ifndef PRUNE_H
#define PRUNE_H

#include "engine.h"

#endif
