/* optimizer.c - parameters in four arrays, and AdamW in blocks of them. */
#include "model/optimizer.h"
#include "model/session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 1 << 14 }; // values that one thread takes at a time

/* A run of values of one parameter. */
typedef struct dw_parameter_block {
    size_t first, n;
    bool decays;
    double square; // sum of its gradients' squares
} block;

/* ---- which weights there are ----------------------------------------------------------------------------------- */

static bool is_tied(dw_session *s) { return s->net.output.data == s->net.token_embd.data; }

static int n_layer_of(const dw_session *s) { return s->net.hp.n_layer; }

/* Calls fn for every parameter; layer n_layer stands for the model. */
static int each_parameter(dw_session *s, bool (*wanted)(dw_weight),
                          int (*fn)(void *ctx, int layer, dw_weight w, const dw_tensor *t, dw_err *err), void *ctx,
                          dw_err *err) {
    const int n_layer = n_layer_of(s);
    const bool tied = is_tied(s);
    for (int l = 0; l <= n_layer; l++)
        for (int w = 0; w < DW_N_WEIGHTS; w++) {
            if (dw_weight_is_of_model(w) != (l == n_layer) || !wanted((dw_weight)w) || (w == DW_W_OUTPUT && tied))
                continue;
            const dw_tensor t = dw_session_tensor(s, l, (dw_weight)w);
            if (t.name && fn(ctx, l, (dw_weight)w, &t, err)) return -1;
        }
    return 0;
}

static int count_one(void *ctx, int layer, dw_weight w, const dw_tensor *t, dw_err *err) {
    dw_parameters *p = ctx;
    (void)layer, (void)w, (void)err;
    const size_t n = t->ne[0] * t->ne[1];
    p->n++;
    p->n_values += n;
    p->n_blocks += (n + BLOCK - 1) / BLOCK;
    return 0;
}

static dw_parameters count_all(dw_session *s, bool (*wanted)(dw_weight)) {
    dw_parameters p = {.session = s};
    each_parameter(s, wanted, count_one, &p, NULL);
    return p;
}

size_t dw_parameters_memory(dw_session *s, bool (*wanted)(dw_weight)) {
    const dw_parameters p = count_all(s, wanted);
    return 4 * sizeof(float) * p.n_values + p.n * sizeof *p.item + p.n_blocks * sizeof(block) +
           ((size_t)n_layer_of(s) + 1) * sizeof *p.gradients;
}

/* ---- copies ---------------------------------------------------------------------------------------------------- */

static bool decays(dw_weight w) {
    switch (w) {
    case DW_W_Q:
    case DW_W_K:
    case DW_W_V:
    case DW_W_O:
    case DW_W_GATE:
    case DW_W_UP:
    case DW_W_DOWN: return true;
    default: return false;
    }
}

static void add_blocks(dw_parameters *p, const dw_parameter *item) {
    for (size_t done = 0; done < item->n; done += BLOCK)
        p->block[p->n_blocks++] = (block){item->first + done, item->n - done < BLOCK ? item->n - done : BLOCK,
                                          item->decays, 0};
}

static int copy_one(void *ctx, int layer, dw_weight w, const dw_tensor *t, dw_err *err) {
    dw_parameters *p = ctx;
    const size_t rows = t->ne[1];
    const dw_parameter item = {layer, w, *t, p->n_values, t->ne[0] * rows, decays(w)};
    float *value = p->value + item.first;
    for (size_t r = 0; r < rows; r++)
        t->type->decode(t->data + r * dw_tensor_row_bytes(t), value + r * t->ne[0], t->ne[0]);
    const dw_tensor copy = {.name = t->name,
                            .type = dw_qtype_get(DW_F32),
                            .ne = {t->ne[0], rows, 1, 1},
                            .data = (const uint8_t *)(const void *)value};
    const bool tied = w == DW_W_TOKEN_EMBD && is_tied(p->session);
    if (dw_session_replace(p->session, layer, w, &copy, err)) return -1;
    if (tied && dw_session_replace(p->session, layer, DW_W_OUTPUT, &copy, err)) return -1;
    p->gradients[layer].of[w] = p->grad + item.first;
    if (tied) p->gradients[layer].of[DW_W_OUTPUT] = p->grad + item.first;
    p->item[p->n++] = item;
    p->n_values += item.n;
    add_blocks(p, &item);
    return 0;
}

int dw_parameters_new(dw_parameters *p, dw_session *s, bool (*wanted)(dw_weight), dw_err *err) {
    *p = count_all(s, wanted);
    const char what[] = "trainable copies of the weights; train fewer of them";
    p->item = dw_alloc(p->n, sizeof *p->item, what, err);
    p->block = dw_alloc(p->n_blocks, sizeof *p->block, what, err);
    p->gradients = dw_alloc((size_t)n_layer_of(s) + 1, sizeof *p->gradients, what, err);
    p->value = dw_alloc(p->n_values, sizeof *p->value, what, err);
    p->grad = dw_alloc(p->n_values, sizeof *p->grad, what, err);
    p->mean = dw_alloc(p->n_values, sizeof *p->mean, what, err);
    p->square = dw_alloc(p->n_values, sizeof *p->square, what, err);
    const bool ok = p->item && p->block && p->gradients && p->value && p->grad && p->mean && p->square;
    p->n = p->n_values = p->n_blocks = 0; // copy_one counts them again
    if (ok && !each_parameter(s, wanted, copy_one, p, err)) return 0;
    dw_parameters_release(p);
    return -1;
}

void dw_parameters_release(dw_parameters *p) {
    for (size_t i = 0; i < p->n; i++) {
        const dw_parameter *item = &p->item[i];
        const bool tied = item->which == DW_W_TOKEN_EMBD && is_tied(p->session);
        dw_session_replace(p->session, item->layer, item->which, &item->source, NULL);
        if (tied) dw_session_replace(p->session, item->layer, DW_W_OUTPUT, &item->source, NULL);
    }
    free(p->item);
    free(p->block);
    free(p->gradients);
    free(p->value);
    free(p->grad);
    free(p->mean);
    free(p->square);
    *p = (dw_parameters){0};
}

void dw_parameters_zero_gradients(dw_parameters *p) { memset(p->grad, 0, p->n_values * sizeof *p->grad); }

/* ---- AdamW ----------------------------------------------------------------------------------------------------- */

typedef struct step_job {
    dw_parameters *p;
    const dw_adamw *o;
    double factor, first, second; // of clipping; 1 - b1^t and 1 - b2^t
} step_job;

static void square_block(void *job, size_t i) {
    const step_job *j = job;
    block *b = &j->p->block[i];
    const float *g = j->p->grad + b->first;
    double lane[8] = {0};
    for (size_t k = 0; k < b->n; k++) lane[k % 8] += (double)g[k] * g[k];
    b->square = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

static void step_block(void *job, size_t i) {
    const step_job *j = job;
    const block *b = &j->p->block[i];
    const double b1 = j->o->beta1, b2 = j->o->beta2, rate = j->o->rate, decay = b->decays ? j->o->decay : 0;
    float *w = j->p->value + b->first, *m = j->p->mean + b->first, *v = j->p->square + b->first;
    const float *grad = j->p->grad + b->first;
    for (size_t k = 0; k < b->n; k++) {
        const double g = grad[k] * j->factor;
        m[k] = (float)(b1 * m[k] + (1 - b1) * g);
        v[k] = (float)(b2 * v[k] + (1 - b2) * g * g);
        w[k] = (float)(w[k] - rate * (m[k] / j->first / (sqrt(v[k] / j->second) + j->o->eps) + decay * w[k]));
    }
}

double dw_adamw_step(dw_parameters *p, const dw_adamw *o, uint64_t t, dw_pool *pool) {
    step_job j = {p, o, 1, 1 - pow(o->beta1, (double)t), 1 - pow(o->beta2, (double)t)};
    double square = 0;
    dw_pool_each(pool, p->n_blocks, square_block, &j);
    for (size_t i = 0; i < p->n_blocks; i++) square += p->block[i].square;
    const double norm = sqrt(square);
    if (!isfinite(norm)) return norm;
    if (o->clip > 0 && norm > o->clip) j.factor = o->clip / norm;
    dw_pool_each(pool, p->n_blocks, step_block, &j);
    return norm;
}

double dw_cosine(uint64_t i, uint64_t n, double warm, double last) {
    const double rise = fmin(1, (double)(i + 1) / fmax(1, warm * (double)n));
    const double fall = last + (1 - last) * 0.5 * (1 + cos(3.14159265358979323846 * (double)i / (double)n));
    return rise * fall;
}
