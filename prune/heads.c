/* heads.c - groups of heads by optimal brain surgeon on the inputs of o (heads.h). */
#include "prune/heads.h"

#include "model/model.h"
#include "prune/obs_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// clang-format off
const heads_allocator heads_allocators[] = {
    {"uniform",  "every layer loses the same number of KV heads"},
    {"relative", "the KV heads of all layers together, by errors relative to the residual stream; widths may differ by layer"},
    {0}};
// clang-format on

static const dw_hparams *hp_of(const heads_task *t) { return dw_model_hparams(t->model); }
static int n_kv(const heads_task *t, int l) { return hp_of(t)->n_head_kv[l]; }
static bool is_fixed(const heads_task *t, int l) { return t->fixed[l] || !n_kv(t, l); }

static int select_layer(const heads_task *t, int l, obs_order *order, dw_err *err) {
    const dw_hparams *hp = hp_of(t);
    const int n = hp->n_head[l] * hp->head_dim;
    double n_tokens;
    const kit_gram_matrix *g = kit_gram_find(t->gram, l, KIT_STATS_ATTN_MIX, &n_tokens, err);
    if (!g) return -1;
    if (g->n != n)
        return dw_fail(err, "layer %d: the Gram matrix has %d inputs of o, the model %d; collect it from this model", l,
                       g->n, n);
    float *o = prune_decode(&t->model->net.layer[l].o, t->pool, err);
    const obs_task task = {.gram = g,
                           .n_tokens = n_tokens,
                           .v = o,
                           .d = hp->n_embd,
                           .group = n / n_kv(t, l),
                           .damp = t->damp,
                           .most_removed = n_kv(t, l) - 1};
    const int rc = o ? obs_select(order, &task, t->pool, err) : -1;
    free(o);
    if (!rc) damping_report_layer(t->report, l, &order->damping, n, n_tokens);
    return rc;
}

/* ---- how many go ------------------------------------------------------------------------------------------ */

/* The layer whose next group costs least; -1: none can go. */
static int cheapest(const heads_task *t, const obs_order *order, const int *gone) {
    int least = -1;
    double cost = INFINITY;
    for (int l = 0; l < hp_of(t)->n_layer; l++) {
        if (is_fixed(t, l) || gone[l] == n_kv(t, l) - 1) continue;
        const double step = order[l].error[gone[l]] - (gone[l] ? order[l].error[gone[l] - 1] : 0);
        if (step * t->inverse[l] < cost) cost = step * t->inverse[l], least = l;
    }
    return least;
}

static void count_gone(const heads_task *t, const obs_order *order, int *gone) {
    double all = 0;
    for (int l = 0; l < hp_of(t)->n_layer; l++) {
        if (is_fixed(t, l)) continue;
        all += n_kv(t, l);
        const int n = (int)(t->rate * n_kv(t, l) + 0.5);
        gone[l] = t->inverse ? 0 : n < n_kv(t, l) ? n : n_kv(t, l) - 1;
    }
    for (int n = (int)(t->rate * all + 0.5), l; t->inverse && n > 0; n--) {
        if ((l = cheapest(t, order, gone)) < 0) break;
        gone[l]++;
    }
}

double heads_reached(const heads_task *t, bool *const *keep, double *nearest) {
    double all = 0, gone = 0, most = 0;
    for (int l = 0; l < hp_of(t)->n_layer; l++) {
        if (is_fixed(t, l)) continue;
        all += n_kv(t, l), most += n_kv(t, l) - 1;
        for (int h = 0; keep[l] && h < n_kv(t, l); h++) gone += !keep[l][h];
    }
    *nearest = fmin(floor(t->rate * all + 0.5), most) / all;
    return gone / all;
}

/* ---- all together ----------------------------------------------------------------------------------------- */

static int mark(const heads_task *t, const obs_order *order, const int *gone, bool **keep, dw_err *err) {
    int n_gone = 0, most = 1;
    for (int l = 0; l < hp_of(t)->n_layer; l++) {
        n_gone += gone[l];
        if (!is_fixed(t, l) && n_kv(t, l) > most) most = n_kv(t, l);
        if (!gone[l]) continue;
        keep[l] = dw_alloc((size_t)n_kv(t, l), sizeof **keep, "kept heads", err);
        if (!keep[l]) return -1;
        memset(keep[l], true, (size_t)n_kv(t, l) * sizeof **keep);
        for (int i = 0; i < gone[l]; i++) keep[l][order[l].group[i]] = false;
    }
    if (n_gone) return 0;
    if (most < 2)
        return dw_fail(err, "--heads %g cuts no KV head: no layer that may be cut has two of them, and one must stay",
                       t->rate);
    return dw_fail(err,
                   "--heads %g cuts no KV head: layers have at most %d of them, and one must stay; give at least %.4g",
                   t->rate, most, 0.5 / most);
}

int heads_choose(const heads_task *t, bool **keep, dw_err *err) {
    const int n_layer = hp_of(t)->n_layer;
    obs_order *order = dw_alloc((size_t)n_layer, sizeof *order, "orders of heads", err);
    int *gone = dw_alloc((size_t)n_layer, sizeof *gone, "numbers of heads", err), rc = order && gone ? 0 : -1;
    memset(keep, 0, (size_t)n_layer * sizeof *keep);
    for (int l = 0; l < n_layer && !rc; l++)
        if (!is_fixed(t, l)) rc = select_layer(t, l, &order[l], err);
    if (!rc) count_gone(t, order, gone);
    if (!rc) rc = mark(t, order, gone, keep, err);
    obs_orders_free(order, n_layer);
    free(gone);
    return rc;
}
