/* cold.c - which neurons become cold: by a metric over statistics, or by a plan (quant.h). */
#include "quant/quant.h"

#include "formats/ffn_two_part.h"
#include "model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- a layer's neurons in two parts ------------------------------------------------------------------------------ */

/* Sets a layer's order from which neurons are hot. */
static int set_order(quant_cold *c, int l, const bool *is_hot, int n_ff, dw_err *err) {
    int32_t *order = dw_alloc((size_t)n_ff, sizeof *order, "an order of neurons", err);
    int n = 0;
    if (!order) return -1;
    for (int j = 0; j < n_ff; j++)
        if (is_hot[j]) order[n++] = j;
    c->n_cold[l] = n_ff - n;
    for (int j = 0; j < n_ff; j++)
        if (!is_hot[j]) order[n++] = j;
    c->order[l] = order;
    return 0;
}

static int begin(quant_cold *c, const dw_model *m, dw_err *err) {
    const size_t n = (size_t)m->net.hp.n_layer;
    *c = (quant_cold){.n_layer = m->net.hp.n_layer};
    c->n_cold = dw_alloc(n, sizeof *c->n_cold, "cold widths", err);
    c->order = c->n_cold ? dw_alloc(n, sizeof *c->order, "orders of neurons", err) : NULL;
    if (!c->order || dw_model_need_whole_ffn(m, err)) return -1;
    return dw_model_is_gated(m)
               ? dw_fail(err, "'%s' is gated, and such neurons cannot be cold too; give the model that it was made of",
                         dw_gguf_path(m->gguf))
               : 0;
}

static int end(quant_cold *c, const dw_model *m, int rc) {
    double n_cold = 0, n = 0;
    for (int l = 0; l < c->n_layer && !rc; l++) {
        n_cold += c->n_cold[l];
        n += m->net.hp.n_ff[l];
    }
    c->rate = n > 0 ? n_cold / n : 0;
    if (rc) quant_cold_release(c);
    return rc;
}

void quant_cold_release(quant_cold *c) {
    for (int l = 0; l < c->n_layer && c->order; l++) free(c->order[l]);
    free(c->order);
    free(c->n_cold);
    *c = (quant_cold){0};
}

/* ---- by a rate --------------------------------------------------------------------------------------------------- */

/* The width nearest to rate * n_ff at which both parts are whole blocks; 0: there is none. */
static int cold_width(int n_ff, double rate, int hot_multiple, int cold_multiple) {
    int best = 0;
    for (int n = cold_multiple; n < n_ff; n += cold_multiple)
        if ((n_ff - n) % hot_multiple == 0 && (!best || fabs(n - rate * n_ff) < fabs(best - rate * n_ff))) best = n;
    return best;
}

typedef struct scored {
    double score;
    int neuron;
} scored;

static int by_score(const void *a, const void *b) {
    const scored *x = a, *y = b;
    return x->score != y->score ? x->score < y->score ? -1 : 1 : x->neuron - y->neuron;
}

static int split_by_score(quant_cold *c, int l, const double *score, int n_ff, int n_cold, dw_err *err) {
    scored *list = dw_alloc((size_t)n_ff, sizeof *list, "scores", err);
    bool *is_hot = dw_alloc((size_t)n_ff, sizeof *is_hot, "hot neurons", err);
    int rc = list && is_hot ? 0 : -1;
    for (int j = 0; j < n_ff && !rc; j++) {
        list[j] = (scored){score[j], j};
        if (!isfinite(score[j]))
            rc = dw_fail(err, "layer %d: neuron %d has the score %g; its weights are damaged", l, j, score[j]);
    }
    if (!rc) {
        qsort(list, (size_t)n_ff, sizeof *list, by_score);
        for (int i = n_cold; i < n_ff; i++) is_hot[list[i].neuron] = true;
        rc = set_order(c, l, is_hot, n_ff, err);
    }
    free(list);
    free(is_hot);
    return rc;
}

/* Where the hot part's multiple does not divide a layer, neither does it leave whole blocks of 32. */
static const char *advice(int n_ff) {
    return n_ff % DW_HOT_MULTIPLE ? "give a cold type without blocks, such as F16 or BF16"
                                  : "choose types of smaller blocks";
}

static int split_layer(quant_cold *c, int l, const double *score, int n_ff, const quant_cold_options *o, dw_err *err) {
    const int hot_multiple = o->hot_multiple[l] > DW_HOT_MULTIPLE ? o->hot_multiple[l] : DW_HOT_MULTIPLE;
    const int n_cold = cold_width(n_ff, o->rate, hot_multiple, o->cold_multiple);
    if (n_cold) return split_by_score(c, l, score, n_ff, n_cold, err);
    return dw_fail(err, "layer %d: %d neurons cannot be divided into whole blocks of %d (hot) and of %d (cold); %s", l,
                   n_ff, hot_multiple, o->cold_multiple, advice(n_ff));
}

int quant_cold_by_rate(quant_cold *c, const dw_model *m, const kit_stats *s, const quant_cold_options *o, dw_err *err) {
    const int *n_ff = m->net.hp.n_ff;
    kit_scorer scorer = {.model = m, .stats = s, .group = 1, .seed = o->seed, .pool = o->pool};
    if (begin(c, m, err)) return end(c, m, -1);
    double **score = dw_alloc((size_t)c->n_layer, sizeof *score, "scores", err);
    int rc = score ? kit_score(&scorer, o->metric, score, err) : -1;
    for (int l = 0; l < c->n_layer && !rc; l++) rc = split_layer(c, l, score[l], n_ff[l], o, err);
    for (int l = 0; score && l < c->n_layer; l++) free(score[l]);
    free(score);
    kit_scorer_release(&scorer);
    return end(c, m, rc);
}

/* ---- by a plan --------------------------------------------------------------------------------------------------- */

static int split_by_plan(quant_cold *c, const kit_plan_layer *plan, int l, const dw_hparams *hp, dw_err *err) {
    const int n_ff = hp->n_ff[l];
    if (plan->n_kv && plan->n_kv < hp->n_head_kv[l])
        return dw_fail(err, "layer %d: the plan cuts heads, which stay here; rank without --heads, or cut first", l);
    if (plan->drop)
        return dw_fail(err, "layer %d: the plan drops it; a layer has at least %d hot neurons", l, DW_HOT_MULTIPLE);
    if (plan->n_keep == n_ff) return 0;
    if (plan->n_keep % DW_HOT_MULTIPLE)
        return dw_fail(err, "layer %d: the plan keeps %d neurons; hot ones are a multiple of %d (rank --multiple)", l,
                       plan->n_keep, DW_HOT_MULTIPLE);
    bool *is_hot = dw_alloc((size_t)n_ff, sizeof *is_hot, "hot neurons", err);
    for (size_t i = 0; is_hot && i < plan->n_span; i++)
        for (int32_t j = plan->span[i].first; j <= plan->span[i].last; j++) is_hot[j] = true;
    const int rc = is_hot ? set_order(c, l, is_hot, n_ff, err) : -1;
    free(is_hot);
    return rc;
}

int quant_cold_by_plan(quant_cold *c, const dw_model *m, const kit_plan *plan, dw_err *err) {
    int rc = begin(c, m, err);
    for (int l = 0; l < c->n_layer && !rc; l++) rc = split_by_plan(c, &plan->layer[l], l, &m->net.hp, err);
    return end(c, m, rc);
}
