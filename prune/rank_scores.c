/* rank_scores.c - the metrics that rank knows, and the scores they give. */
#include "kit/talk.h"
#include "model/model.h"
#include "prune/obs_model.h"
#include "prune/rank.h"

#include <math.h>
#include <string.h>

enum { MOST_METRICS = 32 };

kit_metric rank_metrics[MOST_METRICS + 3]; // those of the kit, obs, obs-gradient; ends with name NULL

static const kit_metric obs_metric = {"obs",
                                      NULL,
                                      true,
                                      true,
                                      KIT_SCALE_ENERGY,
                                      "||v_j||^2 / [H^-1]_jj, one at a time, H = E[a a^T] + damping",
                                      "optimal brain surgeon: Hassibi & Stork 1993, Frantar 2022 (arXiv 2208.11580); "
                                      "error of the output when the rest is repaired"};

static const kit_metric obs_gradient_metric = {
    "obs-gradient",
    NULL,
    true,
    true,
    KIT_SCALE_COMMON,
    "v_j^T Gamma v_j / (2 [H^-1]_jj), one at a time, Gamma = E[g g^T] + damping, g: gradient by the output",
    "obs whose error of the output is weighted by the loss's second-order change, in nats a token; needs collect "
    "--gradients --gram down"};

void rank_list_metrics(void) {
    size_t n = 0;
    for (const kit_metric *m = kit_metrics; m->name && n < MOST_METRICS; m++) rank_metrics[n++] = *m;
    rank_metrics[n++] = obs_metric;
    rank_metrics[n] = obs_gradient_metric;
}

const kit_metric *rank_find_metric(const char *name) {
    for (const kit_metric *m = rank_metrics; m->name; m++)
        if (!strcmp(m->name, name)) return m;
    return NULL;
}

bool rank_is_obs(const kit_metric *m) { return !m->score; }
static bool is_weighted(const kit_metric *m) { return !strcmp(m->name, obs_gradient_metric.name); }

/* Whether the rate alone says how many neurons each layer loses, and nothing else reads the order. */
static bool is_rate_for_all(const rank_options *o) {
    const bool is_rate = !o->bytes && !(o->us > 0) && !strcmp(o->allocate, "uniform");
    return is_rate && !o->protect && !o->min_width && !o->ablation && !o->scores && !o->compare;
}

/* The selection of wide layers ends a little beyond the rate: beyond all that widths are rounded by. */
static double most_removed(const rank_inputs *in) {
    const rank_options *o = in->o;
    const int most_f64 = o->most_f64 ? o->most_f64 : OBS_MOST_F64;
    double step = 0;
    if (!is_rate_for_all(o) || in->hp->n_ff_max <= most_f64) return 1;
    for (int l = 0; l < in->hp->n_layer; l++)
        if (in->hp->n_ff[l]) step = fmax(step, (double)rank_unit(o, in->scorer.group) / in->hp->n_ff[l]);
    return fmin(1, o->rate + fmax(0.03, step));
}

static int score_obs(rank_inputs *in, const kit_metric *metric, double **score, dw_err *err) {
    if (rank_open_gram(in, true, err)) return -1;
    damping_report report = {.tell = rank_say, .what = ""};
    const obs_model_task t = {.model = in->model,
                              .gram = &in->gram,
                              .by_gradient = is_weighted(metric),
                              .group = in->scorer.group,
                              .most = most_removed(in),
                              .damp = in->o->damp,
                              .most_f64 = in->o->most_f64,
                              .pool = in->scorer.pool,
                              .report = &report,
                              .bar = progress_begin("selecting", "layers", in->hp->n_layer)};
    const int rc = obs_score_model(&t, score, err);
    progress_end(t.bar);
    damping_report_end(&report);
    return rc;
}

int rank_make_scores(rank_inputs *in, const kit_metric *metric, double **score, dw_err *err) {
    if (rank_is_obs(metric)) return score_obs(in, metric, score, err);
    if (!kit_score(&in->scorer, metric, score, err)) return 0;
    return metric->needs_stats ? dw_fail_in(err, "'%s'", in->o->stats) : -1;
}

bool rank_can_score(const rank_inputs *in, const kit_metric *m) {
    if (m->needs_stats && !in->has_stats) return false;
    if (rank_is_obs(m)) return in->gram.matrix && (!is_weighted(m) || kit_gram_has(&in->gram, KIT_GRAM_GRADIENT));
    return m->needs_stats != KIT_NEEDS_GRADIENTS || in->stats.has_gradients;
}
