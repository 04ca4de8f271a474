/* repairs.c - repairs of all layers from their Gram matrices (repairs.h). */
#include "prune/repairs.h"
#include "qtypes/encoding.h"

#include "model/model.h"
#include "prune/obs_model.h"
#include "prune/repair.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// clang-format off
const repair_target repair_targets[] = {
    {"own",   0,   "the layer's whole output on the inputs that the cut layers below give it"},
    {"dense", 1,   "the whole model's output, and a share of what the residual stream lacks (--gap)"},
    {"blend", 0.5, "the mean of both"},
    {0}};
// clang-format on

const repair_target *repair_target_find(const char *name) {
    for (const repair_target *t = repair_targets; t->name; t++)
        if (!strcmp(t->name, name)) return t;
    return NULL;
}

static void free_lists(float **list, int n_layer) {
    for (int l = 0; list && l < n_layer; l++) free(list[l]);
    free(list);
}

void repairs_release(repairs *r) {
    float **const lists[] = {r->down, r->importance, r->o, r->o_importance, r->bias};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) free_lists(lists[i], r->n_layer);
    *r = (repairs){0};
}

bool repairs_needed(const repairs_task *t, int layer) {
    const kit_plan_layer *p = &t->plan->layer[layer];
    return !p->drop && p->n_keep < dw_model_hparams(t->model)->n_ff[layer];
}

int repairs_head_columns(const dw_hparams *hp, const kit_plan *plan, int layer, int32_t *column) {
    const kit_plan_layer *p = &plan->layer[layer];
    if (p->drop || !p->n_kv || p->n_kv >= hp->n_head_kv[layer]) return 0;
    const int per = hp->n_head[layer] / hp->n_head_kv[layer] * hp->head_dim; // columns of a KV head
    for (size_t i = 0; i < p->n_kv_span && column; i++)
        for (int c = p->kv[i].first * per; c < (p->kv[i].last + 1) * per; c++) *column++ = c;
    return p->n_kv * per;
}

static bool is_o_needed(const repairs_task *t, int layer) {
    return t->gram && repairs_head_columns(dw_model_hparams(t->model), t->plan, layer, NULL) > 0;
}

double repairs_steps(const repairs_task *t) {
    if (!t->texts) return dw_model_hparams(t->model)->n_layer;
    return 3.0 * (double)calib_n_tokens(t->texts); // the whole model once, the cut one twice
}

/* ---- one-shot --------------------------------------------------------------------------------------------- */

typedef struct one_shot { // a matrix and what of it is repaired
    kit_stats_input input;
    const float *v; // (d, n)
    const int32_t *keep;
    int n, n_keep;
    float *to, *importance; // (d, n_keep), (n_keep)
} one_shot;

static int repair_matrix(const one_shot *m, const repairs_task *t, int l, dw_err *err) {
    double n_tokens;
    const kit_gram_matrix *g = kit_gram_find(t->gram, l, m->input, &n_tokens, err);
    if (!g) return -1;
    if (g->n != m->n)
        return dw_fail(err, "layer %d: the Gram matrix has %d neurons, the model %d; collect it from this model", l,
                       g->n, m->n);
    damping info;
    const repair_task task = {.gram = g,
                              .n_tokens = n_tokens,
                              .v = m->v,
                              .d = dw_model_hparams(t->model)->n_embd,
                              .keep = m->keep,
                              .n_keep = m->n_keep,
                              .damp = t->damp};
    if (repair_least_squares(&task, m->to, &info, t->pool, err)) return -1;
    damping_report_layer(t->report, l, &info, g->n, n_tokens);
    for (int s = 0; s < m->n_keep; s++) m->importance[s] = (float)(kit_gram_at(g, m->keep[s], m->keep[s]) / n_tokens);
    dw_weights_raise(m->importance, (size_t)m->n_keep);
    return 0;
}

static int repair_layer(repairs *r, const repairs_task *t, int l, dw_err *err) {
    const int n_keep = t->plan->layer[l].n_keep;
    int32_t *keep = dw_alloc((size_t)n_keep, sizeof *keep, "kept neurons", err);
    float *v = prune_decode_down(t->source ? t->source : t->model, l, t->pool, err);
    if (keep) kit_plan_neurons(&t->plan->layer[l], keep);
    const one_shot m = {.input = KIT_STATS_FFN_NEURON,
                        .v = v,
                        .keep = keep,
                        .n = dw_model_hparams(t->model)->n_ff[l],
                        .n_keep = n_keep,
                        .to = r->down[l],
                        .importance = r->importance[l]};
    const int rc = keep && v ? repair_matrix(&m, t, l, err) : -1;
    free(keep);
    free(v);
    return rc;
}

static float *decode_o(const repairs_task *t, int l, dw_err *err) {
    return prune_decode(&(t->source ? t->source : t->model)->net.layer[l].o, t->pool, err);
}

static int repair_o(repairs *r, const repairs_task *t, int l, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(t->model);
    const int n_keep = repairs_head_columns(hp, t->plan, l, NULL);
    int32_t *keep = dw_alloc((size_t)n_keep, sizeof *keep, "kept heads", err);
    float *v = decode_o(t, l, err);
    if (keep) repairs_head_columns(hp, t->plan, l, keep);
    const one_shot m = {.input = KIT_STATS_ATTN_MIX,
                        .v = v,
                        .keep = keep,
                        .n = hp->n_head[l] * hp->head_dim,
                        .n_keep = n_keep,
                        .to = r->o[l],
                        .importance = r->o_importance[l]};
    const int rc = keep && v ? repair_matrix(&m, t, l, err) : -1;
    free(keep);
    free(v);
    return rc;
}

int repairs_round(const repairs_rounding *m, int layer, dw_err *err) {
    const size_t block = (size_t)m->type->block, n = (m->n_keep + block - 1) / block * block;
    float *row = dw_alloc(3 * n, sizeof *row, "a row of a repaired matrix", err);
    if (!row) return -1;
    float *weight = row + n;
    uint8_t *stored = (uint8_t *)(weight + n); // at most as large as the values
    dw_encoding e = {.tensor = m->tensor, .type = m->type, .n = n, .weight = weight};
    memcpy(weight, m->importance, m->n_keep * sizeof *weight);
    for (size_t i = 0; i < m->d; i++) {
        memcpy(row, m->value + i * m->n_keep, m->n_keep * sizeof *row);
        for (size_t k = m->n_keep; k < n; k++) row[k] = 0;
        dw_encode_row(&e, i, row, stored);
        m->type->decode(stored, row, n);
        for (size_t k = 0; k < m->n_keep; k++) m->to[i * m->n + (size_t)m->keep[k]] = row[k];
    }
    free(row);
    return dw_encoding_end(&e, m->advice, err) ? dw_fail_in(err, "layer %d", layer) : 0;
}

static int fill_whole_o(const repairs *r, const repairs_task *t, int l, const int32_t *keep, float *whole,
                        dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(t->model);
    const size_t n = (size_t)hp->n_head[l] * (size_t)hp->head_dim, d = (size_t)hp->n_embd,
                 n_keep = (size_t)repairs_head_columns(hp, t->plan, l, NULL);
    if (r->o[l])
        return repairs_round(&(repairs_rounding){.tensor = "attn_output",
                                                 .advice = "cut a model in 16 bits",
                                                 .type = t->model->net.layer[l].o.type,
                                                 .value = r->o[l],
                                                 .importance = r->o_importance[l],
                                                 .keep = keep,
                                                 .d = d,
                                                 .n_keep = n_keep,
                                                 .n = n,
                                                 .to = whole},
                             l, err);
    float *v = decode_o(t, l, err);
    for (size_t i = 0; i < d && v; i++)
        for (size_t k = 0; k < n_keep; k++) whole[i * n + (size_t)keep[k]] = v[i * n + (size_t)keep[k]];
    free(v);
    return v ? 0 : -1;
}

float *repairs_whole_o(const repairs *r, const repairs_task *t, int layer, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(t->model);
    const size_t n = (size_t)hp->n_head[layer] * (size_t)hp->head_dim;
    int32_t *keep = dw_alloc((size_t)repairs_head_columns(hp, t->plan, layer, NULL), sizeof *keep, "kept heads", err);
    float *whole = dw_alloc((size_t)hp->n_embd, n * sizeof *whole, "an o matrix", err);
    if (keep) repairs_head_columns(hp, t->plan, layer, keep);
    const bool ok = keep && whole && !fill_whole_o(r, t, layer, keep, whole, err);
    free(keep);
    if (ok) return whole;
    free(whole);
    return NULL;
}

static int repair_all(repairs *r, const repairs_task *t, dw_err *err) {
    for (int l = 0; l < r->n_layer; l++) {
        if (repairs_needed(t, l) && repair_layer(r, t, l, err)) return -1;
        progress_step(t->bar, 1);
    }
    return 0;
}

static int repair_heads(repairs *r, const repairs_task *t, dw_err *err) {
    if (t->report) t->report->what = ", heads";
    for (int l = 0; l < r->n_layer; l++)
        if (is_o_needed(t, l) && repair_o(r, t, l, err)) return -1;
    if (!t->report) return 0;
    damping_report_end(t->report);
    t->report->what = "";
    return 0;
}

/* ---- biases ----------------------------------------------------------------------------------------------- */

/* E[a_j] over all texts; 0 where neuron j stays. */
static int means_of_cut(const repairs_task *t, int l, double *mean, dw_err *err) {
    if (kit_stats_need_layer(t->mean, l, err)) return -1;
    const kit_stats_layer *s = &t->mean->layer[l];
    const kit_plan_layer *p = &t->plan->layer[l];
    double n = 0;
    for (size_t row = 0; row < t->mean->n_row; row++) {
        n += (double)s->count[row];
        for (int j = 0; j < s->n_ff; j++) mean[j] += s->sum_a[row * (size_t)s->n_ff + (size_t)j];
    }
    for (int j = 0; j < s->n_ff; j++) mean[j] /= n;
    for (size_t i = 0; i < p->n_span; i++)
        for (int j = p->span[i].first; j <= p->span[i].last; j++) mean[j] = 0;
    return 0;
}

/* b = V_P E[a_P], added to the bias that the layer has. */
static int make_bias(repairs *r, const repairs_task *t, int l, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(t->model);
    const size_t n = (size_t)hp->n_ff[l];
    const dw_tensor *old = &t->model->net.layer[l].down_bias;
    double *mean = dw_alloc(n, sizeof *mean, "means of neurons", err);
    float *v = prune_decode_down(t->source ? t->source : t->model, l, t->pool, err);
    int rc = mean && v ? means_of_cut(t, l, mean, err) : -1;
    for (int i = 0; i < hp->n_embd && !rc; i++) {
        double sum = old->name ? (double)((const float *)old->data)[i] : 0;
        for (size_t j = 0; j < n; j++) sum += (double)v[(size_t)i * n + j] * mean[j];
        r->bias[l][i] = (float)sum;
        if (!isfinite(r->bias[l][i]))
            rc = dw_fail(
                err, "layer %d: the bias of down would be NaN or infinite; the model or the statistics are damaged", l);
    }
    free(mean);
    free(v);
    return rc;
}

static int make_biases(repairs *r, const repairs_task *t, dw_err *err) {
    for (int l = 0; l < r->n_layer; l++) {
        if (repairs_needed(t, l) && make_bias(r, t, l, err)) return -1;
        progress_step(t->bar, 1);
    }
    return 0;
}

/* ---- both ------------------------------------------------------------------------------------------------- */

static float *room(size_t n, size_t m, dw_err *err) { return dw_alloc(n, m * sizeof(float), "repaired matrices", err); }

static int make_room_of_layer(repairs *r, const repairs_task *t, int l, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(t->model);
    const size_t d = (size_t)hp->n_embd, n_keep = (size_t)t->plan->layer[l].n_keep;
    if (repairs_needed(t, l) && t->mean) return (r->bias[l] = room(d, 1, err)) ? 0 : -1;
    if (repairs_needed(t, l) && (!(r->down[l] = room(d, n_keep, err)) || !(r->importance[l] = room(n_keep, 1, err))))
        return -1;
    if (!is_o_needed(t, l)) return 0;
    const size_t n_o = (size_t)repairs_head_columns(hp, t->plan, l, NULL);
    return (r->o[l] = room(d, n_o, err)) && (r->o_importance[l] = room(n_o, 1, err)) ? 0 : -1;
}

static int make_room(repairs *r, const repairs_task *t, dw_err *err) {
    float ***const lists[] = {&r->down, &r->importance, &r->o, &r->o_importance, &r->bias};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (!(*lists[i] = dw_alloc((size_t)r->n_layer, sizeof **lists[i], "repaired matrices", err))) return -1;
    for (int l = 0; l < r->n_layer; l++)
        if (make_room_of_layer(r, t, l, err)) return -1;
    return 0;
}

static int make(repairs *r, const repairs_task *t, dw_err *err) {
    if (make_room(r, t, err)) return -1;
    if (t->mean) return make_biases(r, t, err);
    if (repair_heads(r, t, err)) return -1;
    return t->texts ? repairs_sequential(r, t, err) : repair_all(r, t, err);
}

int repairs_make(repairs *r, const repairs_task *t, dw_err *err) {
    *r = (repairs){.n_layer = dw_model_hparams(t->model)->n_layer};
    if (!make(r, t, err)) return 0;
    repairs_release(r);
    return -1;
}
