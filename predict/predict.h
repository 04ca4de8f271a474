/* predict.h - compute only the neurons that matter for a token.
 *
 *   gate    stats, model -> model with thresholds     which neurons count as active, decided at run time
 *   trace   gated model, texts -> traces.h5           inputs of the FFN and the gate's decisions
 *   train   gated model, traces -> model with small predictor networks of those decisions
 *
 * A selection is part of the FFN step, not a filter around it: listing active neurons first and gathering them later
 * costs what it saves.  What a gated file holds: formats/sparse.h.  With the FFN's normed input h and v_j column j of
 * down,
 *
 *   a_j = act(gate_j . h) (up_j . h),    FFN(h) = sum_j a_j v_j,    gated: the sum over j in open groups only
 *
 * Gate rules (rules.h): a group G is open where its value reaches the layer's threshold t,
 *   cats        |act(gate_j . h)| >= t, groups of 1             Lee et al. 2024, CATS, arXiv 2404.08763
 *   group-max   max over j in G of |act(gate_j . h)| >= t       the same over groups, the first attempt of the story
 * t is the quantile of the value over calibration texts at which the share of open neurons is the wanted activity.  The
 * gate matrix is read whole; up and the transposed copy of down are read where a group is open.
 *
 * Predictors (attempt 2 of the story), a network a layer: score = B relu(A h + a) + b, open at 0 or more (network.h;
 * Liu et al. 2023, Deja Vu, arXiv 2310.17157).  It reads rank * (n_embd + n_groups) weights to save the gate's, and
 * decides a little wrongly, so it pays only at small rank.  With a group's score s, the gate's decision y and the open
 * share p,
 *
 *   loss = mean over groups of  w+ y ln(1 + e^-s) + (1 - y) ln(1 + e^s),      w+ = 1 / (p + 0.005)
 *
 * by Adam with decoupled weight decay (Kingma & Ba 2015; Loshchilov & Hutter 2019) from the linear rival's map.
 *
 * Numbers that are reported (tally.h), of text that nothing has seen (learn.h says how texts are divided):
 *   active      chosen groups / groups: what is computed
 *   accuracy    equal decisions / decisions; "never open" has 1 - p, so it stands beside the others
 *   recall      open and chosen / open          precision   open and chosen / chosen
 *   mass        sum over chosen groups of ||v_j||^2 a_j^2 / sum over all groups: mean and 5th percentile of tokens
 * each for the gate itself, the predictor, the static choice (always the same groups, as many: what cutting would
 * give), the reduced-rank ridge regression of the same cost (ridge.h), and never.
 *
 * Invariants: every tensor of the parent is there, bit for bit (train replaces earlier predictors); what was added says
 * so by name and key; a layer that would not gain is marked dense and runs as before.
 *
 * Not here: removal for good (prune/), number formats (quant/). */
#ifndef PREDICT_H
#define PREDICT_H

#include "engine.h"

#endif
