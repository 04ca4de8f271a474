/* timing.c - tokens decoded at several widths, in turn (timing.h). */
#include "prune/timing.h"

#include "model/model.h"
#include "prune/median.h"

#include <stdlib.h>
#include <string.h>

enum { N_CTX = 128, POSITION = 64, LEAST_ROUNDS = 9, MOST_ROUNDS = 100 };
#define SECONDS 2.0 // of all rounds together, about

typedef struct variant { // the model with one width in all layers
    dw_model model;
    int *n_ff;
    dw_session *session;
} variant;

static void close_variant(variant *v) {
    dw_session_free(v->session);
    free(v->model.net.layer);
    free(v->n_ff);
}

/* The first `width` neurons, where the bytes are. */
static void narrow(dw_layer *l, int width) {
    const size_t w = (size_t)width;
    l->gate.ne[1] = l->up.ne[1] = l->down.ne[0] = w;
    l->gate.n_bytes = dw_tensor_row_bytes(&l->gate) * w;
    l->up.n_bytes = dw_tensor_row_bytes(&l->up) * w;
    l->down.n_bytes = dw_tensor_row_bytes(&l->down) * l->down.ne[1];
    if (l->gate_bias.name) l->gate_bias.ne[0] = w;
    if (l->up_bias.name) l->up_bias.ne[0] = w;
    l->sparse = (dw_layer_gate){0};
    l->n_ff = width;
}

static int open_variant(variant *v, const dw_model *m, const bool *drop, int width, dw_pool *pool, dw_err *err) {
    const dw_hparams *hp = &m->net.hp;
    const size_t n = (size_t)hp->n_layer;
    v->model = *m;
    v->model.net.layer = dw_alloc(n, sizeof(dw_layer), "layers", err);
    v->n_ff = dw_alloc(n, 3 * sizeof *v->n_ff, "layers", err);
    if (!v->model.net.layer || !v->n_ff) return -1;
    int *n_head = v->n_ff + n, *n_head_kv = n_head + n, to = 0;
    for (int l = 0; l < hp->n_layer; l++) {
        if (drop[l]) continue;
        v->model.net.layer[to] = m->net.layer[l];
        narrow(&v->model.net.layer[to], width);
        v->n_ff[to] = width, n_head[to] = hp->n_head[l], n_head_kv[to++] = hp->n_head_kv[l];
    }
    dw_hparams *own = &v->model.net.hp;
    own->n_layer = to, own->n_ff_max = width, own->n_ff = v->n_ff, own->n_head = n_head, own->n_head_kv = n_head_kv;
    const dw_session_options o = {
        .pool = pool, .n_ctx = N_CTX, .n_batch = POSITION, .n_out = 1, .select = DW_SELECT_DENSE};
    v->session = dw_session_new(&v->model, &o, err);
    if (!v->session) return -1;
    int32_t token[POSITION] = {0};
    return dw_session_eval(v->session, &(dw_batch){.n_tokens = POSITION, .token = token}, err);
}

/* Microseconds of the second of two tokens. */
static int time_token(variant *v, double *us, dw_err *err) {
    for (int i = 0; i < 2; i++) {
        const int32_t token = 0, pos = POSITION;
        const double began = dw_now();
        if (dw_session_eval(v->session, &(dw_batch){.n_tokens = 1, .token = &token, .pos = &pos}, err)) return -1;
        *us = 1e6 * (dw_now() - began);
    }
    return 0;
}

static int time_all(timing *t, variant *v, double *sample, dw_err *err) {
    double us = 0, sum = 0;
    for (int k = 0; k < t->n; k++, sum += us)
        if (time_token(&v[k], &us, err)) return -1;
    const double fit = SECONDS * 1e6 / (2 * sum);
    const int rounds = fit < LEAST_ROUNDS ? LEAST_ROUNDS : fit > MOST_ROUNDS ? MOST_ROUNDS : (int)fit;
    for (int r = 0; r < rounds; r++)
        for (int k = 0; k < t->n; k++)
            if (time_token(&v[k], &sample[k * MOST_ROUNDS + r], err)) return -1;
    for (int k = 0; k < t->n; k++) t->us[k] = prune_median(sample + k * MOST_ROUNDS, rounds);
    return 0;
}

/* Eighths of the width, whole blocks of down. */
static int choose_widths(timing *t, const dw_model *m, const bool *drop, dw_err *err) {
    int n_ff = 0, block = 32;
    for (int l = 0; l < m->net.hp.n_layer; l++) {
        if (drop[l]) continue;
        if (n_ff && m->net.hp.n_ff[l] != n_ff)
            return dw_fail(err, "layer %d has %d neurons and others %d; times are measured of models with one width", l,
                           m->net.hp.n_ff[l], n_ff);
        n_ff = m->net.hp.n_ff[l];
        if (m->net.layer[l].down.type->block > block) block = m->net.layer[l].down.type->block;
        t->n_layer++;
    }
    for (int k = 1; k <= TIMING_WIDTHS; k++) {
        const int width = k == TIMING_WIDTHS ? n_ff : (int)((long)n_ff * k / TIMING_WIDTHS / block) * block;
        if (width > (t->n ? t->width[t->n - 1] : 0)) t->width[t->n++] = width;
    }
    return t->n >= 2 ? 0 : dw_fail(err, "layers of %d neurons are too narrow to be timed at several widths", n_ff);
}

int timing_measure(timing *t, const dw_model *m, const bool *drop, dw_pool *pool, dw_err *err) {
    variant v[TIMING_WIDTHS] = {{.n_ff = NULL}};
    *t = (timing){.n = 0};
    if (choose_widths(t, m, drop, err)) return -1;
    double *sample = dw_alloc(TIMING_WIDTHS, MOST_ROUNDS * sizeof *sample, "times", err);
    int rc = sample ? 0 : -1;
    for (int k = 0; k < t->n && !rc; k++) rc = open_variant(&v[k], m, drop, t->width[k], pool, err);
    if (!rc) rc = time_all(t, v, sample, err);
    for (int k = 0; k < t->n; k++) close_variant(&v[k]);
    free(sample);
    if (!rc) timing_settle(t);
    return rc;
}

void timing_settle(timing *t) {
    for (int k = 1; k < t->n; k++)
        if (t->us[k] < t->us[k - 1]) t->us[k] = t->us[k - 1];
    const double slope = (t->us[1] - t->us[0]) / (t->width[1] - t->width[0]);
    t->rest = t->us[0] - slope * t->width[0];
    if (t->rest < 0) t->rest = 0;
}

/* T(width): linear between the widths, and from (0, T_0) on. */
static double token_at(const timing *t, int width) {
    int k = 0;
    while (k < t->n - 1 && width > t->width[k]) k++;
    const double from = k ? t->width[k - 1] : 0, low = k ? t->us[k - 1] : t->rest;
    return low + (t->us[k] - low) * (width - from) / (t->width[k] - from);
}

double timing_of_layer(const timing *t, int width) { return (token_at(t, width) - t->rest) / t->n_layer; }

int timing_uniform_width(const timing *t, double us) {
    int width = t->width[t->n - 1];
    while (width > 0 && token_at(t, width) > us) width--;
    return width;
}
