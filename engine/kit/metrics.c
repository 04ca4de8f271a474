/* metrics.c - the table of metrics, and the sums over weights that some metrics need. */
#include "kit/metrics.h"

#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- sums over all texts -------------------------------------------------------------------------------- */

static double total_count(const kit_metric_view *v) {
    double n = 0;
    for (size_t r = 0; r < v->n_row; r++) n += (double)v->stats->count[r];
    return n;
}

/* Sum over rows of neuron j's entry of a table (n_row, n_ff). */
static double total(const kit_metric_view *v, const double *table, int j) {
    double sum = 0;
    for (size_t r = 0; r < v->n_row; r++) sum += table[r * (size_t)v->n_ff + (size_t)j];
    return sum;
}

static double mean_square(const kit_metric_view *v, int j) {
    return total(v, v->stats->sum_square, j) / total_count(v);
}

static double variance(const kit_metric_view *v, int j) {
    const double mean = total(v, v->stats->sum_a, j) / total_count(v);
    const double difference = mean_square(v, j) - mean * mean;
    return difference > 0 ? difference : 0; // a constant neuron may give a slightly negative number
}

/* Mean |a_j| over the tokens of one row.  Where texts share a row, nothing is known of a single one. */
static double row_mean(const kit_metric_view *v, size_t r, int j) {
    return v->stats->sum_abs[r * (size_t)v->n_ff + (size_t)j] / (double)v->stats->count[r];
}

/* ---- metrics -------------------------------------------------------------------------------------------- */

/* A shared row counts as its texts, by their common mean; that is the mean of their means if they are equally long. */
static void activation(const kit_metric_view *v, double *score) {
    for (int j = 0; j < v->n_ff; j++) {
        double sum = 0;
        for (size_t r = 0; r < v->n_row; r++) sum += v->row_texts[r] * row_mean(v, r, j);
        score[j] = sum / v->n_text;
    }
}

/* A shared row counts as one text (kit_metric_of_pooled). */
static void activation_max(const kit_metric_view *v, double *score) {
    for (int j = 0; j < v->n_ff; j++) {
        score[j] = 0;
        for (size_t r = 0; r < v->n_row; r++) score[j] = fmax(score[j], row_mean(v, r, j));
    }
}

static void at_random(const kit_metric_view *v, double *score) {
    for (int j = 0; j < v->n_ff; j++) score[j] = dw_rng_uniform(v->rng);
}

static void weight(const kit_metric_view *v, double *score) {
    const kit_slices *s = &v->slices;
    for (int j = 0; j < v->n_ff; j++) score[j] = sqrt(s->gate_square[j] + s->up_square[j] + s->down_square[j]);
}

static void wanda(const kit_metric_view *v, double *score) {
    for (int j = 0; j < v->n_ff; j++) score[j] = sqrt(mean_square(v, j)) * v->slices.down_abs[j];
}

static void energy(const kit_metric_view *v, double *score) {
    for (int j = 0; j < v->n_ff; j++) score[j] = v->slices.down_square[j] * mean_square(v, j);
}

static void flap(const kit_metric_view *v, double *score) {
    for (int j = 0; j < v->n_ff; j++) score[j] = v->slices.down_square[j] * variance(v, j);
}

static void taylor(const kit_metric_view *v, double *score) {
    for (int j = 0; j < v->n_ff; j++) score[j] = total(v, v->stats->sum_taylor, j) / total_count(v);
}

static void fisher(const kit_metric_view *v, double *score) {
    for (int j = 0; j < v->n_ff; j++) score[j] = total(v, v->stats->sum_fisher, j) / total_count(v);
}

enum { GRADIENTS = KIT_NEEDS_GRADIENTS };

// clang-format off
const kit_metric kit_metrics[] = {
    /* name            function        stats  weights scale */
    {"activation",     activation,     true,  false, KIT_SCALE_LAYER, "mean over texts of mean |a_j|",                      "mean activity of a neuron; ignores its column of down"},
    {"activation-max", activation_max, true,  false, KIT_SCALE_LAYER, "largest over texts of mean |a_j|",                   "highest activity on any text: one text keeps a neuron"},
    {"random",         at_random,      false, false, KIT_SCALE_COMMON, "uniform random numbers",                            "the control that every other metric must beat"},
    {"weight",         weight,         false, true,  KIT_SCALE_LAYER, "||(gate_j, up_j, v_j)||",                            "norm of the three slices; needs no statistics"},
    {"wanda",          wanda,          true,  true,  KIT_SCALE_LAYER, "sqrt(E[a_j^2]) sum_i |V_ij|",                        "Sun et al. 2023 (arXiv 2306.11695), summed over a column"},
    {"energy",         energy,         true,  true,  KIT_SCALE_ENERGY,  "||v_j||^2 E[a_j^2]",                                 "error of the layer's output when j alone is zeroed"},
    {"flap",           flap,           true,  true,  KIT_SCALE_ENERGY,  "||v_j||^2 Var(a_j)",                                 "An et al. 2023 (arXiv 2312.11983), without the bias"},
    {"taylor",         taylor,         GRADIENTS, false, KIT_SCALE_COMMON, "E|a_j g_j|, g_j = dL/da_j",                  "first-order change of the loss when j is zeroed: Molchanov et al. 2019 (arXiv 1906.10771); LLM-Pruner, Ma et al. 2023 (arXiv 2305.11627); needs collect --gradients"},
    {"fisher",         fisher,         GRADIENTS, false, KIT_SCALE_COMMON, "E[(a_j g_j)^2], g_j = dL/da_j",              "twice the second-order change, by the empirical Fisher matrix: Theis et al. 2018 (arXiv 1801.05787); needs collect --gradients"},
    {0}};
// clang-format on

const kit_metric *kit_metric_find(const char *name) {
    for (const kit_metric *m = kit_metrics; m->name; m++)
        if (!strcmp(m->name, name)) return m;
    return NULL;
}

/* Other metrics add or average over texts, so rows that several texts share change nothing but the weights of texts in
 * activation's mean. */
const char *kit_metric_of_pooled(const kit_metric *m, const kit_stats *s, char *text, size_t size) {
    if (m->score != activation_max || s->n_row == s->n_text) return NULL;
    snprintf(text, size,
             "metric '%s': the statistics have %zu rows of sums for %zu texts, and texts that share a row count as one "
             "text, by the mean over all their tokens; for the largest mean of any text, collect with --apart %zu",
             m->name, s->n_row, s->n_text, s->n_text);
    return text;
}

/* ---- sums over weights ------------------------------------------------------------------------------------ */

enum { PIECE = 256 }; // neurons of one task; a multiple of the block size of every type

typedef struct slice_job {
    const dw_layer *w;
    const kit_slices *s;
    float *values; // a row of gate or up for each task
} slice_job;

static double row_square(const dw_tensor *t, int r, float *values) {
    double sum = 0;
    t->type->decode(t->data + (size_t)r * dw_tensor_row_bytes(t), values, t->ne[0]);
    for (size_t i = 0; i < t->ne[0]; i++) sum += (double)values[i] * values[i];
    return sum;
}

/* Sums of the neurons of one piece: over their rows of gate and up, and over their columns of down. */
static void sum_piece(void *arg, size_t piece) {
    const slice_job *job = arg;
    const kit_slices *s = job->s;
    const dw_tensor *down = &job->w->down;
    float *row = job->values + piece * job->w->gate.ne[0], columns[PIECE];
    const int first = (int)piece * PIECE, n = job->w->n_ff - first < PIECE ? job->w->n_ff - first : PIECE;
    for (int j = first; j < first + n; j++) {
        s->gate_square[j] = row_square(&job->w->gate, j, row);
        s->up_square[j] = row_square(&job->w->up, j, row);
    }
    const size_t at = dw_qtype_row_bytes(down->type, (size_t)first);
    for (size_t r = 0; r < down->ne[1]; r++) {
        down->type->decode(down->data + r * dw_tensor_row_bytes(down) + at, columns, (size_t)n);
        for (int j = 0; j < n; j++) {
            s->down_square[first + j] += (double)columns[j] * columns[j];
            s->down_abs[first + j] += fabs((double)columns[j]);
        }
    }
}

static int sum_slices(kit_slices *s, const dw_layer *w, dw_pool *pool, dw_err *err) {
    const size_t n_ff = (size_t)w->n_ff, n_piece = (n_ff + PIECE - 1) / PIECE;
    double *sums = dw_alloc(n_ff, 4 * sizeof *sums, "sums over weights", err);
    float *values = dw_alloc(n_piece, w->gate.ne[0] * sizeof *values, "rows of weights", err);
    if (sums) *s = (kit_slices){sums, sums + n_ff, sums + 2 * n_ff, sums + 3 * n_ff};
    const bool ok = sums && values;
    slice_job job = {w, s, values};
    if (ok) dw_pool_each(pool, n_piece, sum_piece, &job);
    free(values);
    return ok ? 0 : -1;
}

static int need_slices(kit_scorer *s, dw_err *err) {
    const dw_net *net = &s->model->net;
    if (s->slices) return 0;
    s->slices = dw_alloc((size_t)net->hp.n_layer, sizeof *s->slices, "sums over weights", err);
    for (int l = 0; s->slices && l < net->hp.n_layer; l++)
        if (sum_slices(&s->slices[l], &net->layer[l], s->pool, err)) return kit_scorer_release(s), -1;
    return s->slices ? 0 : -1;
}

void kit_scorer_release(kit_scorer *s) {
    for (int l = 0; s->slices && l < s->model->net.hp.n_layer; l++) free(s->slices[l].gate_square);
    free(s->slices);
    s->slices = NULL;
}

/* ---- scores ------------------------------------------------------------------------------------------------- */

static int check_stats(const kit_scorer *s, const kit_metric *metric, dw_err *err) {
    char what[64];
    snprintf(what, sizeof what, "metric '%s'", metric->name);
    if (metric->needs_stats == KIT_NEEDS_GRADIENTS && kit_stats_check_gradients(s->stats, what, err)) return -1;
    return kit_stats_check_neurons(s->stats, err);
}

int kit_widest_group(const dw_hparams *hp, int most) {
    int group = most;
    for (int l = 0; l < hp->n_layer; l++)
        while (hp->n_ff[l] % group) group /= 2;
    return group;
}

int kit_check_group(const dw_hparams *hp, int group, dw_err *err) {
    enum { MOST = 256, LEAST = 32 }; // of those that programs take, beside 1
    const int fits = kit_widest_group(hp, MOST);
    for (int l = 0; l < hp->n_layer; l++)
        if (hp->n_ff[l] % group)
            return dw_fail(err, "layer %d: %d neurons are not a multiple of the group size %d; groups of %d fit", l,
                           hp->n_ff[l], group, fits < LEAST ? 1 : fits);
    return 0;
}

/* Scores of the neurons of a layer, summed per group. */
static double *score_layer(const kit_metric_view *v, const kit_metric *metric, int group, int l, dw_err *err) {
    const int n_group = v->n_ff / group;
    double *neuron = dw_alloc((size_t)v->n_ff, sizeof *neuron, "scores", err);
    double *sum = dw_alloc((size_t)n_group, sizeof *sum, "scores", err);
    bool ok = neuron && sum;
    if (ok) metric->score(v, neuron);
    for (int j = 0; ok && j < v->n_ff; j++) {
        if (!isfinite(neuron[j])) {
            dw_fail(err, "layer %d: neuron %d has the %s score %g; its weights or statistics are damaged", l, j,
                    metric->name, neuron[j]);
            ok = false;
        } else {
            sum[j / group] += neuron[j];
        }
    }
    free(neuron);
    if (ok) return sum;
    free(sum);
    return NULL;
}

/* (n_row): how many texts each row of the statistics has; NULL without statistics or memory. */
static double *count_texts(const kit_stats *s, dw_err *err) {
    double *n = dw_alloc(s->n_row, sizeof *n, "texts of rows", err);
    for (size_t t = 0; n && t < s->n_text; t++) n[s->text[t].row]++;
    return n;
}

static int view_stats(kit_metric_view *v, const kit_stats *s, int l, dw_err *err) {
    if (kit_stats_need_layer(s, l, err)) return -1;
    v->stats = &s->layer[l];
    v->n_row = s->n_row;
    v->n_text = (double)s->n_text;
    return 0;
}

static int score_layers(kit_scorer *s, const kit_metric *metric, kit_metric_view view, double **score, dw_err *err) {
    for (int l = 0; l < s->model->net.hp.n_layer; l++) {
        kit_metric_view v = view;
        v.n_ff = s->model->net.hp.n_ff[l];
        if (metric->needs_stats && view_stats(&v, s->stats, l, err)) return -1;
        if (metric->needs_weights) v.slices = s->slices[l];
        score[l] = score_layer(&v, metric, s->group, l, err);
        if (!score[l]) return -1;
    }
    return 0;
}

int kit_score(kit_scorer *s, const kit_metric *metric, double **score, dw_err *err) {
    const int n_layer = s->model->net.hp.n_layer;
    dw_rng rng;
    dw_rng_seed(&rng, s->seed);
    memset(score, 0, (size_t)n_layer * sizeof *score);
    if (kit_check_group(&s->model->net.hp, s->group, err)) return -1;
    if (metric->needs_stats && check_stats(s, metric, err)) return -1;
    if (metric->needs_weights && dw_model_need_whole_ffn(s->model, err)) return -1;
    if (metric->needs_weights && need_slices(s, err)) return -1;
    double *row_texts = metric->needs_stats ? count_texts(s->stats, err) : NULL;
    const bool ready = row_texts || !metric->needs_stats;
    const int rc = ready ? score_layers(s, metric, (kit_metric_view){.rng = &rng, .row_texts = row_texts}, score, err)
                         : -1;
    for (int l = 0; l < n_layer && rc; l++) {
        free(score[l]);
        score[l] = NULL;
    }
    free(row_texts);
    return rc;
}
