/* ablation.h - the loss that groups of neurons prevent, measured: the slow truth beside which scores are judged.
 *
 * A group's loss change is  L(model without the group) - L(model),  L in nats per token at the positions of the second
 * half of every window, its own next tokens the targets.  Without the group means with zeros in its columns of down;
 * nothing is repaired.  The error is that of the mean over windows of the differences, s / sqrt(windows); fewer than
 * five windows have none (measure/statistics.h).
 *
 * Where groups are alike, their changes differ by little more than noise, and no score can agree with them.  So the
 * table tells the reliability within layers, 1 - sum (own error)^2 / sum (change - the layer's mean)^2, at least 0: the
 * share of the differences that is not noise.  A correlation is at most about its root.  Own errors leave out what all
 * groups of a layer share in a window, because it makes no difference between them.  Both sums have a degree of freedom
 * less than groups in each layer.
 *
 * A group of layer l needs the layers from l on; those before are computed once for all groups.  A layer without a
 * group computes with an F32 copy of down.  Where the file's own down is quantized, L(model) of this layer is measured
 * with such a copy, too: CPUs with tiles for BF16 round quantized weights, but not F32, to one BF16. */
#ifndef PRUNE_ABLATION_H
#define PRUNE_ABLATION_H

#include "engine.h"
#include "kit/calib.h"
#include "kit/progress.h"

typedef struct ablated { // a group, and what was measured
    int layer, group;
    double change, error;
    double own_error; // of the change less the mean change of the layer's measured groups
} ablated;

typedef struct ablation_task {
    const dw_model *model;
    const calib_texts *texts;
    int group; // neurons of a group
    dw_pool *pool;
    const char *backend; // NULL: the default
    progress *bar;       // hears of ablation_steps; NULL: none
} ablation_task;

/* Evaluations from some layer on: a group each, and one for each layer whose down is quantized. */
size_t ablation_steps(const ablation_task *t, const ablated *group, size_t n);

/* Measures the n groups, ascending by layer.  *loss: of the whole model.  Fails with fewer than 2 windows, or
 * with windows of fewer than 3 tokens, whose second half has no next token. */
int ablation_measure(const ablation_task *t, ablated *group, size_t n, double *loss, dw_err *err);

/* `per_layer` random groups of every layer that has so many (else all of them), ascending; free().  *n: how many. */
ablated *ablation_sample(const dw_hparams *hp, int group, int per_layer, uint64_t seed, size_t *n, dw_err *err);

typedef struct ablation_metric { // a score beside the measured change
    const char *name;
    double *const *score; // (n_layer) lists of groups
} ablation_metric;

typedef struct ablation_agreement {
    double pooled, by_layer; // Spearman's rank correlation over all groups; its mean over layers.  NaN: undefined
} ablation_agreement;

int ablation_agree(const ablated *group, size_t n, const ablation_metric *m, ablation_agreement *a, dw_err *err);

/* NaN when no layer has two groups. */
double ablation_reliability(const ablated *group, size_t n);

/* The table:
 *
 *   # deadwood ablation 1
 *   # ...                                                  what it was made from, as `comment` says
 *   # reliability 0.62 of the changes within layers
 *   # metric energy: rank correlation 0.81 over all groups, 0.85 within layers
 *   layer  group  first  last  loss_change  se  own_se  energy  ...
 *
 * tab-separated; free(). */
typedef struct ablation_report {
    const char *comment; // lines without "# ", each with "\n"
    const ablated *group;
    size_t n;
    int group_size;
    const ablation_metric *metric;
    size_t n_metric;
} ablation_report;

char *ablation_table(const ablation_report *r, dw_err *err);

#endif
