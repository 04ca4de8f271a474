/* repairs.c - repairs of all layers from their Gram matrices (repairs.h). */
#include "prune/repairs.h"

#include "prune/obs_model.h"
#include "prune/repair.h"

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

void repairs_release(repairs *r) {
    for (int l = 0; l < r->n_layer; l++) {
        if (r->down) free(r->down[l]);
        if (r->importance) free(r->importance[l]);
    }
    free(r->down);
    free(r->importance);
    *r = (repairs){0};
}

bool repairs_needed(const repairs_task *t, int layer) {
    const kit_plan_layer *p = &t->plan->layer[layer];
    return !p->drop && p->n_keep < dw_model_hparams(t->model)->n_ff[layer];
}

double repairs_tokens(const repairs_task *t) {
    return t->texts ? 3.0 * (double)calib_n_tokens(t->texts) : 1; // the whole model once, the cut one twice
}

void repairs_tell(const repairs_task *t, int layer, const char *words) {
    char text[256];
    snprintf(text, sizeof text, "layer %d: %s", layer, words);
    if (words[0] && t->tell) t->tell(text);
}

/* ---- one-shot --------------------------------------------------------------------------------------------- */

static int repair_layer(repairs *r, const repairs_task *t, int l, dw_err *err) {
    const int n_keep = t->plan->layer[l].n_keep, d = dw_model_hparams(t->model)->n_embd;
    double n_tokens;
    const kit_gram_matrix *g = kit_gram_find(t->gram, l, KIT_STATS_FFN_NEURON, &n_tokens, err);
    if (!g) return -1;
    if (g->n != dw_model_hparams(t->model)->n_ff[l])
        return dw_fail(err, "layer %d: the Gram matrix has %d neurons, the model %d; collect it from this model", l,
                       g->n, dw_model_hparams(t->model)->n_ff[l]);
    int32_t *keep = dw_alloc((size_t)n_keep, sizeof *keep, "kept neurons", err);
    float *v = prune_decode_down(t->source ? t->source : t->model, l, t->pool, err);
    int rc = keep && v ? 0 : -1;
    if (!rc) {
        damping info;
        char words[200];
        kit_plan_neurons(&t->plan->layer[l], keep);
        const repair_task task = {
            .gram = g, .n_tokens = n_tokens, .v = v, .d = d, .keep = keep, .n_keep = n_keep, .damp = t->damp};
        rc = repair_least_squares(&task, r->down[l], &info, t->pool, err);
        if (!rc) damping_tell(&info, g->n, n_tokens, words), repairs_tell(t, l, words);
        for (int s = 0; s < n_keep; s++) r->importance[l][s] = (float)(kit_gram_at(g, keep[s], keep[s]) / n_tokens);
    }
    free(keep);
    free(v);
    return rc;
}

static int repair_all(repairs *r, const repairs_task *t, dw_err *err) {
    for (int l = 0; l < r->n_layer; l++)
        if (repairs_needed(t, l) && repair_layer(r, t, l, err)) return -1;
    return 0;
}

/* ---- both ------------------------------------------------------------------------------------------------- */

static int make_room(repairs *r, const repairs_task *t, dw_err *err) {
    const size_t d = (size_t)dw_model_hparams(t->model)->n_embd;
    r->down = dw_alloc((size_t)r->n_layer, sizeof *r->down, "repaired matrices", err);
    r->importance = dw_alloc((size_t)r->n_layer, sizeof *r->importance, "importances", err);
    for (int l = 0; r->down && r->importance && l < r->n_layer; l++) {
        if (!repairs_needed(t, l)) continue;
        const size_t n_keep = (size_t)t->plan->layer[l].n_keep;
        r->down[l] = dw_alloc(d, n_keep * sizeof *r->down[l], "repaired matrices", err);
        r->importance[l] = dw_alloc(n_keep, sizeof *r->importance[l], "importances", err);
        if (!r->down[l] || !r->importance[l]) return -1;
    }
    return r->down && r->importance ? 0 : -1;
}

int repairs_make(repairs *r, const repairs_task *t, dw_err *err) {
    *r = (repairs){.n_layer = dw_model_hparams(t->model)->n_layer};
    if (!make_room(r, t, err) && !(t->texts ? repairs_sequential(r, t, err) : repair_all(r, t, err))) return 0;
    repairs_release(r);
    return -1;
}
