/* rules.c - the table of rules, and quantiles of histograms. */
#include "predict/rules.h"

#include <math.h>
#include <string.h>

static const uint32_t *of_neurons(const kit_stats_layer *s, int group) { return group == 1 ? s->hist_gate : NULL; }

static const uint32_t *of_groups(const kit_stats_layer *s, int group) {
    for (int i = 0; i < KIT_STATS_N_GROUPS; i++)
        if (kit_stats_group_sizes[i] == group) return s->hist_group[i];
    return NULL;
}

// clang-format off
const predict_rule predict_rules[] = {
    {"cats", "|act(gate_j . h)| of each neuron alone", "Lee et al. 2024, arXiv 2404.08763",
     "1", 1, 1, of_neurons, NULL},
    {"group-max", "the largest |act(gate_j . h)| of the neurons in each aligned group",
     "CATS over groups, the first attempt of the story", "32, 64 or 128", 32, 128, of_groups, NULL},
    {"static", "control: the same groups for every token, those of most energy ||v_j||^2 E[a_j^2]",
     "what cutting would give", "1, 32, 64 or 128", 1, 128, NULL, "energy"},
    {"random", "control: the same groups for every token, random ones (--seed); needs no statistics",
     "what every rule must beat", "1, 32, 64 or 128", 1, 128, NULL, "random"},
    {0}};
// clang-format on

const predict_rule *predict_rule_find(const char *name) {
    for (const predict_rule *r = predict_rules; r->name; r++)
        if (!strcmp(r->name, name)) return r;
    return NULL;
}

bool predict_rule_fits(const predict_rule *rule, int group) {
    return group >= rule->least_group && group <= rule->most_group;
}

/* ---- activations backwards -------------------------------------------------------------------------------------- */

struct predict_act {
    const char *name;
    double (*of)(double g);
    double lowest; // where it is smallest; 0: it is nowhere negative
    double depth;  // -of(lowest)
};

static double silu(double g) { return g / (1 + exp(-g)); }
static double gelu(double g) { return 0.5 * g * (1 + tanh(sqrt(M_2_PI) * (g + 0.044715 * g * g * g))); }
static double relu(double g) { return g > 0 ? g : 0; }

enum { SILU }; // files that name no activation have it
static const predict_act acts[] = {{"silu", silu, -1.2784645427610738, 0.2784645427610738},
                                   {"gelu_pytorch_tanh", gelu, -0.7524614066, 0.1700407505712540},
                                   {"relu", relu, 0, 0.2784645427610738}}; // the knot may be anywhere

static const predict_act *act_of(const char *name) {
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (!strcmp(acts[i].name, name)) return &acts[i];
    return &acts[SILU];
}

/* The g between a and b with |act(g)| = t, where |act| rises from a to b. */
static double inverse(const predict_act *act, double t, double a, double b) {
    for (int i = 0; i < 64; i++) {
        const double middle = 0.5 * (a + b);
        *(fabs(act->of(middle)) < t ? &a : &b) = middle;
    }
    return 0.5 * (a + b);
}

/* How many pre-activations have |act(g)| < t, if each unit of g holds as many: up to a constant, the length of that
 * set. */
static double length_below(const predict_act *act, double t) {
    const double positive = inverse(act, t, 0, t + 1);
    if (t >= act->depth || act->lowest == 0) return positive;
    return positive - (inverse(act, t, 0, act->lowest) - inverse(act, t, -100, act->lowest));
}

/* ---- distributions ---------------------------------------------------------------------------------------------- */

/* The largest of m independent values is below t when all are: the share for one of them, and back. */
static double of_one(const predict_values *v, double below) {
    return pow(fmin(fmax(below, v->least), 1 - v->least), 1.0 / v->group);
}
static double of_all(const predict_values *v, double share) { return pow(share, v->group); }

static double logit(double p) { return log(p / (1 - p)); }
static double of_logit(double x) { return 1 / (1 + exp(-x)); }

/* Between two knots.  The logit of what layers' gates look like is nearly a straight line over the pre-activation,
 * tails included; where both sides of the activation's minimum fall into one bin, the share itself is nearer to one. */
static double between(const predict_values *v, int k, double t) {
    const double from = length_below(v->act, v->knot[k - 1]),
                 way = (length_below(v->act, t) - from) / (length_below(v->act, v->knot[k]) - from);
    const double low = of_one(v, v->below[k - 1]), high = of_one(v, v->below[k]);
    if (v->knot[k] == v->act->depth) return of_all(v, low + way * (high - low));
    return of_all(v, of_logit(logit(low) + way * (logit(high) - logit(low))));
}

/* Above the activation's minimum there are only positive pre-activations: as dense as in the next bin, as far as its own bin
 * reaches. */
static void place_minimum(predict_values *v, int k) {
    const double *edge = v->knot + k; // the minimum, the upper edge of its bin, that of the next one
    const double low = of_one(v, v->below[k - 1]), high = of_one(v, v->below[k + 1]), next = of_one(v, v->below[k + 2]);
    const double above = (next - high) * (length_below(v->act, edge[1]) - length_below(v->act, edge[0])) /
                         (length_below(v->act, edge[2]) - length_below(v->act, edge[1]));
    v->below[k] = of_all(v, high - above > low ? high - above : low);
}

static void fill_values(predict_values *v, const uint64_t *n, uint64_t n_all) {
    const int minimum = kit_stats_bin((float)v->act->depth);
    uint64_t below = 0;
    for (int b = 0, k = 0; b <= KIT_STATS_BINS;
         b++, k++) { // the last bin, which holds all larger values, is as wide as the others
        v->knot[k] = b < KIT_STATS_BINS ? (double)kit_stats_bin_edge(b) : M_SQRT2 * (double)kit_stats_bin_edge(b - 1);
        v->below[k] = (double)below / (double)n_all;
        if (b < KIT_STATS_BINS) below += n[b];
        if (b == minimum) v->knot[++k] = v->act->depth;
    }
    place_minimum(v, minimum + 1);
}

int predict_values_of(predict_values *v, const predict_rule *rule, int group, const char *activation,
                      const kit_stats_layer *s, dw_err *err) {
    const uint32_t *row = rule->histograms(s, group);
    uint64_t n[KIT_STATS_BINS] = {0}, n_all = 0;
    if (!row) return dw_fail(err, "rule '%s' works on groups of %s, not of %d", rule->name, rule->groups, group);
    for (int first = 0; first < s->n_ff; first += group, row += KIT_STATS_BINS) {
        const int n_neuron = s->n_ff - first < group ? s->n_ff - first : group;
        for (int b = 0; b < KIT_STATS_BINS; b++) n[b] += (uint64_t)row[b] * (uint64_t)n_neuron;
    }
    for (int b = 0; b < KIT_STATS_BINS; b++) n_all += n[b];
    if (!n_all)
        return dw_fail(
            err,
            "the statistics hold no histograms of the gates; collect them from texts (an importance file has none)");
    *v = (predict_values){.group = group, .act = act_of(activation), .least = 0.5 / (double)n_all};
    fill_values(v, n, n_all);
    return 0;
}

double predict_activity_at(const predict_values *v, float threshold) {
    const double t = (double)threshold;
    int k = 1;
    if (t <= 0) return 1;
    while (k < PREDICT_KNOTS - 1 && v->knot[k] < t) k++;
    return 1 - (k == 1 || t >= v->knot[k] ? v->below[k] : between(v, k, t));
}

float predict_threshold_for(const predict_values *v, double activity) {
    if (activity >= 1) return 0;
    if (1 - v->below[1] <= activity) return (float)v->knot[1];
    double low = v->knot[1], high = v->knot[PREDICT_KNOTS - 1];
    for (int i = 0; i < 64; i++) {
        const double middle = sqrt(low * high);
        *(predict_activity_at(v, (float)middle) > activity ? &low : &high) = middle;
    }
    return (float)high;
}
