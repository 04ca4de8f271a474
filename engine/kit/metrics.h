/* metrics.h - scores of neurons; the neurons with the smallest scores are cut first.
 *
 * A score depends on the statistics and weights of one layer.  The score of a group is the sum over its neurons.  To
 * add a metric, write a function and a row in metrics.c.  In formulas, a_j = act(gate_j . h) * (up_j . h) is the value
 * of neuron j for a token, v_j its column of down, and g_j = dL/da_j (stats.h); E and Var are over all tokens of all
 * texts. */
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
    const kit_stats_layer *stats; // NULL unless needs_stats
    size_t n_row;                 // rows of its sums: one for each text, the last one for many texts if there are many
    const double *row_texts;      // (n_row): how many texts each row has
    double n_text;                // their sum
    kit_slices slices;            // NULL pointers unless needs_weights
    dw_rng *rng;
} kit_metric_view;

/* What scores of different layers have in common. */
typedef enum kit_scale {
    KIT_SCALE_LAYER, // nothing
    /* They are energies (mean squares) of the layer's output; the residual's tells what they mean there. */
    KIT_SCALE_ENERGY,
    KIT_SCALE_COMMON, // they are numbers of one scale
} kit_scale;

enum { KIT_NEEDS_GRADIENTS = 2 };

typedef struct kit_metric {
    const char *name;
    void (*score)(const kit_metric_view *v, double *score); // (n_ff)
    int needs_stats; // false, true, or KIT_NEEDS_GRADIENTS: statistics with gradients
    bool needs_weights;
    kit_scale scale;
    const char *formula, *source;
} kit_metric;

extern const kit_metric kit_metrics[]; // ends with name NULL
const kit_metric *kit_metric_find(const char *name);
/* What a user should know when texts share a row of these statistics (collect --apart) and the metric asks for single
 * texts: a sentence in `text`, which is returned; otherwise NULL. */
const char *kit_metric_of_pooled(const kit_metric *m, const kit_stats *s, char *text, size_t size);

typedef struct kit_scorer {
    const dw_model *model;
    const kit_stats *stats; // of the model's shape; NULL: only metrics without statistics
    kit_slices *slices;     // (n_layer), computed when a metric first needs them
    int group;
    uint64_t seed;
    dw_pool *pool;
} kit_scorer;

int kit_widest_group(const dw_hparams *hp, int most); // the largest of most, most / 2, ... 1 that divides all widths
/* Fails if `group` does not divide a width; the message names the largest group that does. */
int kit_check_group(const dw_hparams *hp, int group, dw_err *err);

/* Scores of all groups of all layers: score[l] has n_ff[l] / group values; free() each.  Fails if `group`
 * does not divide a width, if the statistics lack what the metric needs, if a score is not finite, or if the metric needs
 * weights and the model has hot and cold neurons. */
int kit_score(kit_scorer *s, const kit_metric *metric, double **score, dw_err *err);
void kit_scorer_release(kit_scorer *s);

#endif
