/* collect_gradients.c - sums over tokens of what a backward pass shows (collect_gradients.h). */
#include "prune/collect_gradients.h"

#include <math.h>
#include <stdlib.h>

enum {
    PASS_TOKENS = 2048, // of one pass, unless a window is longer: enough for efficient products
    UNIT = 16,          // columns that one thread takes together: whole cache lines of sums
};

static dw_train_options pass_options(int n_ctx) {
    return (dw_train_options){.n_ctx = n_ctx, .n_seq = n_ctx < PASS_TOKENS ? PASS_TOKENS / n_ctx : 1};
}

/* ---- sums -------------------------------------------------------------------------------------------------- */

typedef struct adding {
    const collect_gradients *c;
    const dw_grad_event *event;
} adding;

/* Products of two floats are exact in double. */
static void add_neurons(const collect_gradients *c, const dw_grad_event *e, int first, int end) {
    const kit_stats_layer *w = &c->s->layer[e->layer];
    const size_t n = (size_t)e->n;
    double *taylor = w->sum_taylor + c->to * n, *fisher = w->sum_fisher + c->to * n;
    for (int i = 0; i < c->n_row; i++) {
        const float *a = e->values + (size_t)c->row[i] * n, *g = e->grad + (size_t)c->row[i] * n;
        for (int j = first; j < end; j++) {
            const double product = (double)a[j] * (double)g[j];
            taylor[j] += fabs(product);
            fisher[j] += product * product;
        }
    }
}

static void add_on_thread(void *arg, int ith, int n_threads) {
    const adding *x = arg;
    const collect_gradients *c = x->c;
    const dw_grad_event *e = x->event;
    if (e->point == DW_GRAD_FFN_OUT) {
        double *sum = c->covariance->sum[e->layer][KIT_GRAM_GRADIENT];
        if (sum) gram_add(sum, e->n, e->grad, c->row, c->n_row, c->covariance->scratch, ith, n_threads);
    } else {
        const long n_unit = (e->n + UNIT - 1) / UNIT;
        const int first = (int)(n_unit * ith / n_threads) * UNIT, end = (int)(n_unit * (ith + 1) / n_threads) * UNIT;
        add_neurons(c, e, first, end < e->n ? end : e->n);
    }
}

static void look(void *ctx, const dw_grad_event *e) {
    const collect_gradients *c = ctx;
    if (e->n) dw_pool_run(c->pool, add_on_thread, &(adding){c, e});
}

/* ---- windows ----------------------------------------------------------------------------------------------- */

int collect_gradients_add(collect_gradients *c, const calib_texts *texts, const calib_text *text, int first, int n,
                          int skip, dw_err *err) {
    const int n_ctx = texts->n_ctx;
    dw_loss_sums sums = {0};
    c->n_row = 0;
    for (int i = 0; i < n; i++) {
        calib_window(texts, text, first + i, c->token + (size_t)i * (size_t)n_ctx);
        for (int p = calib_first_new(texts, text, first + i, skip); p < n_ctx; p++) c->row[c->n_row++] = i * n_ctx + p;
    }
    if (dw_train_forward(c->train, c->token, n, err)) return -1;
    dw_train_backward(c->train, &(dw_loss){0}, 1, c->of_weights, &sums);
    c->nll += sums.nll;
    c->n_nll += sums.n_nll;
    return 0;
}

/* ---- opening ----------------------------------------------------------------------------------------------- */

double collect_gradients_bytes(const collect_gradients *c) {
    const dw_train_options o = {.n_ctx = 0, .n_seq = c->n_seq}; // 0: the session's
    return (double)dw_train_memory(c->session, &o);
}

int collect_gradients_open(collect_gradients *c, const dw_model *m, int n_ctx, const dw_session_options *o,
                           dw_err *err) {
    *c = (collect_gradients){0};
    if (dw_model_is_gated(m))
        return dw_fail(err, "the model is gated, and the backward pass takes no gates; collect gradients from the "
                            "model before gate");
    const dw_session_options own = {.pool = o->pool, .backend = o->backend, .n_ctx = n_ctx, .n_batch = 1};
    const dw_train_options pass = pass_options(n_ctx);
    const size_t n = (size_t)pass.n_seq * (size_t)n_ctx;
    *c = (collect_gradients){.pool = o->pool, .n_seq = pass.n_seq, .session = dw_session_new(m, &own, err)};
    c->token = dw_alloc(n, sizeof *c->token, "windows", err);
    c->row = dw_alloc(n, sizeof *c->row, "windows", err);
    c->of_weights = dw_alloc((size_t)dw_model_hparams(m)->n_layer + 1, sizeof *c->of_weights, "gradients", err);
    c->train = c->session && c->token && c->row && c->of_weights ? dw_train_new(c->session, &pass, err) : NULL;
    if (c->train) {
        dw_train_set_tap(c->train, &(dw_grad_tap){look, c});
        return 0;
    }
    collect_gradients_close(c);
    return -1;
}

void collect_gradients_close(collect_gradients *c) {
    dw_train_free(c->train);
    dw_session_free(c->session);
    free(c->token), free(c->row), free(c->of_weights);
    *c = (collect_gradients){0};
}
