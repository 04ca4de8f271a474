/* rules.h - when a neuron is open: rules, and their thresholds from the histograms of calibration texts.
 *
 * A rule compares one value of a group of neurons with the layer's threshold.  A row of the
 * table says where the statistics have the histogram of this value.  A new rule is a new row, if the engine can compute
 * its value.
 *
 * Histograms have bins of half an octave, and a threshold can lie anywhere in one.  Inside a bin, pre-activations g are
 * taken as spread evenly and as independent within a group: |act(g)| then piles up below the depth of the activation's
 * minimum (0.278 of silu, 0.170 of gelu), and the largest of many near the upper edge, as they do.  silu, gelu and relu
 * each have their own inverse (rules.c); what else a model names is treated as silu.  The true share of open neurons
 * differs from the expected one by less than the bin holds; predict_values says by how much that is. */
#ifndef PREDICT_RULES_H
#define PREDICT_RULES_H

#include "kit/stats.h"
#include "predict/predict.h"

typedef struct predict_rule {
    const char *name;
    const char *formula, *source;
    const char *groups; // the sizes that it works on, in words
    int least_group, most_group;
    /* Histograms of the value, a row of KIT_STATS_BINS for each aligned group of so many neurons; NULL: there are none
     * for that size. */
    const uint32_t *(*histograms)(const kit_stats_layer *s, int group);
    const char *metric; // of a control, which opens the same groups for every token (fixed.h); NULL: it is a rule
} predict_rule;

extern const predict_rule predict_rules[]; // ends with name NULL
const predict_rule *predict_rule_find(const char *name); // NULL: unknown

bool predict_rule_fits(const predict_rule *rule, int group); // whether it works on groups of this size

/* How a rule's value is distributed over calibration tokens and neurons (a group counts once for each of its neurons):
 * the share of values below each of the knots, which are the edges of bins and the activation's minimum.
 *
 * With normal pre-activations g shares are right to 0.02 (tests/test_gate.c).  Of gelu most of a bin can lie at its
 * minimum: for g of -0.3 +- 0.4 a share is off by 0.021, for the largest of 32 with g of -2 +- 1 by up to 0.14. */
enum { PREDICT_KNOTS = KIT_STATS_BINS + 2 };

typedef struct predict_act predict_act; // an activation and its inverse (rules.c)

typedef struct predict_values {
    int group;
    const predict_act *act;
    double least;                // half a value: no share of values is nearer to 0 or 1
    double knot[PREDICT_KNOTS];  // ascending, from 0
    double below[PREDICT_KNOTS]; // ascending, 0 .. 1
} predict_values;

/* activation: the model's (dw_model_activation).  Refused when the rule has no such group size, or the statistics no
 * histograms. */
int predict_values_of(predict_values *v, const predict_rule *rule, int group, const char *activation,
                      const kit_stats_layer *s, dw_err *err);
/* The share of neurons whose value reaches a threshold. */
double predict_activity_at(const predict_values *v, float threshold);
/* The threshold that a share `activity` reaches, > 0 .. 1.  0, which everything reaches, where the activity is 1.
 * Values of the lowest bin are not told from zero: they are closed whenever anything is. */
float predict_threshold_for(const predict_values *v, double activity);

#endif
