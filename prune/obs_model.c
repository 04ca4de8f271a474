/* obs_model.c - orders of removal for all layers of a model (obs_model.h). */
#include "prune/obs_model.h"

#include "model/model.h"
#include "prune/output_norm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct decoding {
    const dw_tensor *t;
    float *to;
} decoding;

static void decode_row(void *arg, size_t r) {
    const decoding *d = arg;
    d->t->type->decode(d->t->data + r * dw_tensor_row_bytes(d->t), d->to + r * d->t->ne[0], d->t->ne[0]);
}

float *prune_decode(const dw_tensor *t, dw_pool *pool, dw_err *err) {
    decoding d = {t, dw_alloc(t->ne[1], t->ne[0] * sizeof(float), "a matrix in F32", err)};
    if (d.to) dw_pool_each(pool, t->ne[1], decode_row, &d);
    return d.to;
}

float *prune_decode_down(const dw_model *m, int layer, dw_pool *pool, dw_err *err) {
    return prune_decode(&m->net.layer[layer].down, pool, err);
}

/* down, in the norm by which errors of the output count; free(). */
static float *columns_of(const obs_model_task *t, int l, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(t->model);
    double n_tokens;
    const kit_gram_matrix *gamma = NULL;
    if (t->by_gradient && !(gamma = kit_gram_find(t->gram, l, KIT_GRAM_GRADIENT, &n_tokens, err))) return NULL;
    float *v = prune_decode_down(t->model, l, t->pool, err);
    if (!v || !gamma || !output_norm_apply(gamma, n_tokens, v, hp->n_ff[l], t->pool, err)) return v;
    free(v);
    return NULL;
}

static int select_layer(const obs_model_task *t, int l, obs_order *order, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(t->model);
    double n_tokens;
    const kit_gram_matrix *g = kit_gram_find(t->gram, l, KIT_STATS_FFN_NEURON, &n_tokens, err);
    if (!g) return -1;
    if (g->n != hp->n_ff[l])
        return dw_fail(err, "layer %d: the Gram matrix has %d neurons, the model %d; collect it from this model", l,
                       g->n, hp->n_ff[l]);
    float *v = columns_of(t, l, err);
    const obs_task task = {.gram = g,
                           .n_tokens = n_tokens,
                           .v = v,
                           .d = hp->n_embd,
                           .group = t->group,
                           .damp = t->damp,
                           .most_f64 = t->most_f64,
                           .most_removed = (int)ceil(t->most * g->n / t->group)};
    const int rc = v ? obs_select(order, &task, t->pool, err) : -1;
    if (!rc) damping_report_layer(t->report, l, &order->damping, g->n, n_tokens);
    free(v);
    return rc;
}

void obs_orders_free(obs_order *order, int n_layer) {
    for (int l = 0; order && l < n_layer; l++) obs_order_release(&order[l]);
    free(order);
}

/* Orders of all layers. */
static obs_order *select_model(const obs_model_task *t, dw_err *err) {
    const int n_layer = dw_model_hparams(t->model)->n_layer;
    obs_order *order = dw_alloc((size_t)n_layer, sizeof *order, "orders of neurons", err);
    for (int l = 0; order && l < n_layer; l++) {
        if (select_layer(t, l, &order[l], err)) {
            obs_orders_free(order, n_layer);
            return NULL;
        }
        progress_step(t->bar, 1);
    }
    return order;
}

int obs_score_model(const obs_model_task *t, double **score, dw_err *err) {
    const int n_layer = dw_model_hparams(t->model)->n_layer;
    obs_order *order = select_model(t, err);
    int rc = order ? 0 : -1;
    memset(score, 0, (size_t)n_layer * sizeof *score);
    for (int l = 0; l < n_layer && !rc; l++) {
        score[l] = dw_alloc((size_t)order[l].n_group, sizeof **score, "scores", err);
        if (score[l])
            obs_scores(&order[l], score[l]);
        else
            rc = -1;
    }
    obs_orders_free(order, n_layer);
    return rc;
}
