/* bench_own_gemm.c - whole products of the training pass (bench_own_gemm.h). */
#include "bench_own_gemm.h"

#include <stdlib.h>

struct own_gemm {
    const dw_back_ops *ops;
    dw_back_env env;
    step_matrix of[STEP_MATRICES];
    int n;
    float *x, *y, *w, *dw; // of the largest matrix: vectors, results, a net's weights and their gradient
    uint8_t *memory;
};

int step_matrices(const dw_net *net, int n_tokens, int n_rows, step_matrix of[STEP_MATRICES]) {
    const dw_layer *l = &net->layer[0];
    const int n_layer = net->hp.n_layer;
    const step_matrix all[STEP_MATRICES] = {{.w = &l->q, .n = n_tokens, .times = n_layer},
                                            {.w = &l->k, .n = n_tokens, .times = 2 * n_layer}, // and v
                                            {.w = &l->o, .n = n_tokens, .times = n_layer},
                                            {.w = &l->gate, .n = n_tokens, .times = 2 * n_layer}, // and up
                                            {.w = &l->down, .n = n_tokens, .times = n_layer},
                                            {.w = &net->output, .n = n_rows, .times = n_tokens / n_rows}};
    int n = 0;
    for (const step_matrix *m = all; m < all + STEP_MATRICES; m++) {
        if (!m->w->name || !m->w->ne[1]) continue;
        of[n] = *m;
        of[n].n_in = (int)m->w->ne[0];
        of[n++].n_out = (int)m->w->ne[1];
    }
    return n;
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static void lay_out(own_gemm *g, dw_layout *a, int n_tokens, int n_rows) {
    size_t values = 0, weights = 0;
    int widest = 0;
    for (const step_matrix *m = g->of; m < g->of + g->n; m++) {
        const size_t wider = larger((size_t)m->n_in, (size_t)m->n_out);
        values = larger(values, (size_t)m->n * wider);
        weights = larger(weights, (size_t)m->n_in * (size_t)m->n_out);
        if (m->n == n_tokens) widest = (int)larger((size_t)widest, wider);
    }
    g->x = dw_layout_take(a, values, sizeof *g->x);
    g->y = dw_layout_take(a, values, sizeof *g->y);
    g->w = dw_layout_take(a, weights, sizeof *g->w);
    g->dw = dw_layout_take(a, weights, sizeof *g->dw);
    g->ops->lay_out(&g->env, a, &(dw_back_sizes){n_tokens, n_rows, widest, true});
}

static void fill(float *x, const float *end) {
    for (uint64_t i = 0; x < end; i++) *x++ = (float)(dw_splitmix(i) >> 40) / (1 << 24) - 0.5f;
}

own_gemm *own_gemm_new(const dw_net *net, dw_pool *pool, int n_tokens, int n_rows, dw_err *err) {
    own_gemm *g = dw_alloc(1, sizeof *g, "own products", err);
    if (!g) return NULL;
    *g = (own_gemm){.ops = &dw_back_ops_cpu,
                    .env = {.pool = pool, .net = net, .n_ctx = n_rows, .precision = DW_PRECISION_ROUNDED}};
    g->n = step_matrices(net, n_tokens, n_rows, g->of);
    dw_layout count = {0};
    lay_out(g, &count, n_tokens, n_rows);
    g->memory = dw_alloc(1, count.used, "own products", err);
    if (g->memory) {
        lay_out(g, &(dw_layout){.base = g->memory}, n_tokens, n_rows);
        fill(g->x, g->y);
        fill(g->w, g->dw);
        if (!g->ops->start(&g->env, err)) return g;
    }
    own_gemm_free(g);
    return NULL;
}

/* The four products of a matrix. */
static void multiply(own_gemm *g, const step_matrix *m) {
    dw_tensor w = *m->w;
    w.type = dw_qtype_get(DW_F32);
    w.data = (const uint8_t *)(const void *)g->w;
    g->ops->linear(&g->env, &(dw_back_linear){.w = m->w, .y = g->y}, 1, g->x, m->n);
    g->ops->linear(&g->env, &(dw_back_linear){.w = &w, .y = g->y}, 1, g->x, m->n);
    g->ops->linear_x(&g->env, &w, g->x, m->n, g->y, false);
    g->ops->linear_w(&g->env, g->x, m->n_in, g->y, m->n_out, m->n, g->dw);
}

double own_gemm_rate(own_gemm *g) {
    double operations = 0, seconds = 0;
    for (const step_matrix *m = g->of; m < g->of + g->n; m++) {
        const double began = dw_now();
        multiply(g, m);
        seconds += m->times * (dw_now() - began);
        operations += m->times * 4 * 2.0 * m->n_out * m->n_in * m->n;
    }
    return operations / seconds;
}

void own_gemm_free(own_gemm *g) {
    if (!g) return;
    free(g->memory);
    free(g);
}
