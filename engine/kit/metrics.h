/* metrics.h - how much a neuron matters: a table of scores; the smallest are cut first.
 *
 * A score is a function of one layer's statistics and weights; a group's score is the sum of its neurons'.  To add a
 * metric: a function and a row in metrics.c.  What the letters in formulas mean: a_j the neuron's value
 * act(gate_j . h) * (up_j . h) for a token, v_j its column of down; E and Var are over all tokens of all texts. */
#ifndef KIT_METRICS_H
#define KIT_METRICS_H

#include "kit/stats.h"
#include "engine.h"

/* Sums over the three slices of each neuron of a layer, n_ff each. */
typedef struct kit_slices {
    double *gate_square, *up_square, *down_square; // squared norms
    double *down_abs;                              // sum of magnitudes
} kit_slices;

typedef struct kit_metric_view { // what a metric sees of one layer
    int n_ff;
    size_t n_text;
    const kit_stats_layer *stats; // NULL unless needs_stats
    kit_slices slices;         // NULLs unless needs_weights
    dw_rng *rng;
} kit_metric_view;

typedef struct kit_metric {
    const char *name;
    void (*score)(const kit_metric_view *v, double *score); // (n_ff)
    bool needs_stats, needs_weights;
    bool across_layers; // has the unit of the output's error, the same in every layer: may be sorted over layers
    const char *formula, *source;
} kit_metric;

extern const kit_metric kit_metrics[]; // ends with name NULL
const kit_metric *kit_metric_find(const char *name);

typedef struct kit_scorer {
    const dw_model *model;
    const kit_stats *stats;    // NULL: metrics that need none
    kit_slices *slices;     // (n_layer), made at first need
    int group;
    uint64_t seed;
    dw_pool *pool;
} kit_scorer;

/* Scores of all groups of all layers: score[l] has n_ff[l] / group values, free() each.  Refused: statistics of
 * another shape, groups that do not divide a width, scores that are not finite. */
int kit_score(kit_scorer *s, const kit_metric *metric, double **score, dw_err *err);
void kit_scorer_release(kit_scorer *s);

#endif
