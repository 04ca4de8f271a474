/* optimizer.c - parameters in four arrays, what is derived from them, and AdamW in blocks of them. */
#include "model/optimizer.h"
#include "model/session.h"
#include "qtypes/encoding.h"

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

typedef int each_fn(void *ctx, int layer, dw_weight w, const dw_tensor *t, dw_err *err);

/* Calls fn for every parameter; layer n_layer stands for the model. */
static int each_parameter(dw_session *s, bool (*wanted)(dw_weight), each_fn *fn, void *ctx, dw_err *err) {
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

static bool is_layer_matrix(dw_weight w) {
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

/* Of a weight's additions; 0: the weight itself is trained. */
static int rank_of(const dw_trained *what, dw_weight w, const dw_tensor *t) {
    const size_t side = t->ne[0] < t->ne[1] ? t->ne[0] : t->ne[1];
    if (!is_layer_matrix(w)) return 0;
    return (size_t)what->rank < side ? what->rank : (int)side;
}

/* How many values are trained for a weight. */
static size_t n_trained(const dw_tensor *t, int rank) {
    return rank ? (size_t)rank * (t->ne[0] + t->ne[1]) : t->ne[0] * t->ne[1];
}

/* The type that a weight is rounded to; NULL: none. */
static const dw_qtype_row *rounded_of(const dw_trained *what, const dw_tensor *t, int rank) {
    return what->rounded && !rank ? what->rounded(what->ctx, t) : NULL;
}

enum { SLAB = 64 }; // rows or columns of W that one thread takes at a time

static size_t n_slabs(size_t n) { return (n + SLAB - 1) / SLAB; }

/* An encoded row for each slab of a matrix. */
static size_t scratch_of(const dw_qtype_row *type, const dw_tensor *t) {
    return type ? n_slabs(t->ne[1]) * dw_qtype_row_bytes(type, t->ne[0]) : 0;
}

typedef struct making { // of parameters
    dw_parameters *p;
    const dw_trained *what;
} making;

static int count_one(void *ctx, int layer, dw_weight w, const dw_tensor *t, dw_err *err) {
    const making *m = ctx;
    dw_parameters *p = m->p;
    const int rank = rank_of(m->what, w, t);
    const dw_qtype_row *rounded = rounded_of(m->what, t, rank);
    const size_t n = n_trained(t, rank), n_weights = t->ne[0] * t->ne[1], scratch = scratch_of(rounded, t);
    (void)layer, (void)err;
    p->n++;
    p->n_values += n;
    p->n_derived += rank || rounded ? n_weights : 0;
    p->n_derived_grad += rank ? n_weights : 0;
    p->n_scratch = p->n_scratch > scratch ? p->n_scratch : scratch;
    p->n_blocks += (n + BLOCK - 1) / BLOCK;
    return 0;
}

static dw_parameters count_all(dw_session *s, const dw_trained *what) {
    dw_parameters p = {.session = s};
    each_parameter(s, what->wanted, count_one, &(making){&p, what}, NULL);
    return p;
}

size_t dw_parameters_memory(dw_session *s, const dw_trained *what) {
    const dw_parameters p = count_all(s, what);
    return sizeof(float) * (4 * p.n_values + p.n_derived + p.n_derived_grad) + p.n_scratch + p.n * sizeof *p.item +
           p.n_blocks * sizeof(block) + ((size_t)n_layer_of(s) + 1) * sizeof *p.gradients;
}

size_t dw_parameters_n_values(dw_session *s, const dw_trained *what) { return count_all(s, what).n_values; }

/* ---- copies ---------------------------------------------------------------------------------------------------- */

static void add_blocks(dw_parameters *p, const dw_parameter *item) {
    for (size_t done = 0; done < item->n; done += BLOCK)
        p->block[p->n_blocks++] = (block){item->first + done, item->n - done < BLOCK ? item->n - done : BLOCK,
                                          item->decays, 0};
}

static void decode_values(const dw_parameters *p, const dw_parameter *item) {
    const dw_tensor *t = &item->source;
    for (size_t r = 0; r < t->ne[1]; r++)
        t->type->decode(t->data + r * dw_tensor_row_bytes(t), p->value + item->first + r * t->ne[0], t->ne[0]);
}

/* A is random, B is 0 already. */
static void begin_factors(const dw_parameters *p, const dw_parameter *item, uint64_t seed) {
    const size_t n_in = item->source.ne[0];
    dw_rng rng;
    dw_rng_seed(&rng, dw_splitmix(dw_splitmix(seed) + item->first));
    for (size_t i = 0; i < (size_t)item->rank * n_in; i++)
        p->value[item->first + i] = (float)(dw_rng_normal(&rng) / sqrt((double)n_in));
}

/* Where the weight and its gradient are. */
static void place_weight(dw_parameters *p, dw_parameter *item) {
    const bool derived = item->rank || item->rounded;
    const size_t n_weights = item->source.ne[0] * item->source.ne[1];
    item->weight = derived ? p->derived + p->n_derived : p->value + item->first;
    item->weight_grad = item->rank ? p->derived_grad + p->n_derived_grad : p->grad + item->first;
    p->n_derived += derived ? n_weights : 0;
    p->n_derived_grad += item->rank ? n_weights : 0;
}

/* The session computes with the copy, and its gradients go where AdamW reads them. */
static int put_to_work(dw_parameters *p, const dw_parameter *item, dw_err *err) {
    const dw_tensor *t = &item->source;
    const dw_weight w = item->which;
    const dw_tensor copy = {.name = t->name,
                            .type = dw_qtype_get(DW_F32),
                            .ne = {t->ne[0], t->ne[1], 1, 1},
                            .data = (const uint8_t *)(const void *)item->weight};
    const bool tied = w == DW_W_TOKEN_EMBD && is_tied(p->session);
    if (dw_session_replace(p->session, item->layer, w, &copy, err)) return -1;
    if (tied && dw_session_replace(p->session, item->layer, DW_W_OUTPUT, &copy, err)) return -1;
    p->gradients[item->layer].of[w] = item->weight_grad;
    if (tied) p->gradients[item->layer].of[DW_W_OUTPUT] = item->weight_grad;
    return 0;
}

static int copy_one(void *ctx, int layer, dw_weight w, const dw_tensor *t, dw_err *err) {
    const making *m = ctx;
    dw_parameters *p = m->p;
    const int rank = rank_of(m->what, w, t);
    dw_parameter item = {.layer = layer,
                         .which = w,
                         .source = *t,
                         .first = p->n_values,
                         .n = n_trained(t, rank),
                         .decays = is_layer_matrix(w),
                         .rank = rank,
                         .rounded = rounded_of(m->what, t, rank)};
    if (item.rounded && m->what->importance) item.importance = m->what->importance(m->what->ctx, t);
    place_weight(p, &item);
    if (rank) begin_factors(p, &item, m->what->seed);
    else decode_values(p, &item);
    if (put_to_work(p, &item, err)) return -1;
    p->item[p->n++] = item;
    p->n_values += item.n;
    add_blocks(p, &item);
    return 0;
}

int dw_parameters_new(dw_parameters *p, dw_session *s, const dw_trained *what, dw_err *err) {
    *p = count_all(s, what);
    const char use[] = "trainable copies of the weights";
    p->item = dw_alloc(p->n, sizeof *p->item, use, err);
    p->block = dw_alloc(p->n_blocks, sizeof *p->block, use, err);
    p->gradients = dw_alloc((size_t)n_layer_of(s) + 1, sizeof *p->gradients, use, err);
    p->value = dw_alloc(p->n_values, sizeof *p->value, use, err);
    p->grad = dw_alloc(p->n_values, sizeof *p->grad, use, err);
    p->mean = dw_alloc(p->n_values, sizeof *p->mean, use, err);
    p->square = dw_alloc(p->n_values, sizeof *p->square, use, err);
    p->derived = dw_alloc(p->n_derived, sizeof *p->derived, use, err);
    p->derived_grad = dw_alloc(p->n_derived_grad, sizeof *p->derived_grad, use, err);
    p->scratch = dw_alloc(p->n_scratch, 1, use, err);
    const bool ok = p->item && p->block && p->gradients && p->value && p->grad && p->mean && p->square && p->derived &&
                    p->derived_grad && p->scratch;
    p->n = p->n_values = p->n_derived = p->n_derived_grad = p->n_blocks = 0; // copy_one counts again
    if (!ok || each_parameter(s, what->wanted, copy_one, &(making){p, what}, err)) {
        dw_parameters_release(p);
        return -1;
    }
    dw_parameters_derive(p, s->o.pool);
    return 0;
}

void dw_parameters_restore(dw_parameters *p) {
    for (const dw_parameter *i = p->item; i < p->item + p->n; i++)
        if (i->rank) memset(p->value + i->first, 0, i->n * sizeof *p->value);
        else decode_values(p, i);
    dw_parameters_derive(p, p->session->o.pool);
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
    free(p->derived);
    free(p->derived_grad);
    free(p->scratch);
    *p = (dw_parameters){0};
}

static void zero_block(void *parameters, size_t i) {
    const dw_parameters *p = parameters;
    memset(p->grad + p->block[i].first, 0, p->block[i].n * sizeof *p->grad);
}

void dw_parameters_zero_gradients(dw_parameters *p) {
    dw_pool_each(p->session->o.pool, p->n_blocks, zero_block, p);
    memset(p->derived_grad, 0, p->n_derived_grad * sizeof *p->derived_grad);
}

/* ---- derived matrices ------------------------------------------------------------------------------------------ */

static const float low_rank_scale = 2; // s

typedef struct factors { // of one matrix
    const dw_parameter *item;
    size_t n_in, n_out, rank;
    float *A, *B, *dA, *dB;
} factors;

static factors factors_of(const dw_parameters *p, const dw_parameter *item) {
    const size_t rank = (size_t)item->rank, n_in = item->source.ne[0];
    float *value = p->value + item->first, *grad = p->grad + item->first;
    return (factors){item, n_in, item->source.ne[1], rank, value, value + rank * n_in, grad, grad + rank * n_in};
}

static size_t end_of(size_t slab, size_t n) { return (slab + 1) * SLAB < n ? (slab + 1) * SLAB : n; }

/* Rows of W = W0 + s B A.  A row of B that is 0 adds nothing, so the row of W0 keeps its bits. */
static void merge_rows(void *job, size_t slab) {
    const factors *f = job;
    const dw_tensor *t = &f->item->source;
    for (size_t i = slab * SLAB; i < end_of(slab, f->n_out); i++) {
        float *w = f->item->weight + i * f->n_in;
        t->type->decode(t->data + i * dw_tensor_row_bytes(t), w, f->n_in);
        for (size_t k = 0; k < f->rank; k++) {
            const float b = low_rank_scale * f->B[i * f->rank + k], *a = f->A + k * f->n_in;
            for (size_t j = 0; j < f->n_in && b != 0; j++) w[j] += b * a[j];
        }
    }
}

static float dot_lanes(const float *x, const float *y, size_t n) {
    float lane[16] = {0}, sum = 0;
    size_t j = 0;
    for (; j + 16 <= n; j += 16)
        for (size_t l = 0; l < 16; l++) lane[l] += x[j + l] * y[j + l];
    for (; j < n; j++) lane[j % 16] += x[j] * y[j];
    for (size_t l = 0; l < 16; l++) sum += lane[l];
    return sum;
}

/* Rows of dB = s dW A^T */
static void grad_b_rows(void *job, size_t slab) {
    const factors *f = job;
    for (size_t i = slab * SLAB; i < end_of(slab, f->n_out); i++)
        for (size_t k = 0; k < f->rank; k++)
            f->dB[i * f->rank + k] = low_rank_scale *
                                     dot_lanes(f->item->weight_grad + i * f->n_in, f->A + k * f->n_in, f->n_in);
}

/* Columns of dA = s B^T dW */
static void grad_a_columns(void *job, size_t slab) {
    const factors *f = job;
    const size_t first = slab * SLAB, n = end_of(slab, f->n_in) - first;
    for (size_t k = 0; k < f->rank; k++) memset(f->dA + k * f->n_in + first, 0, n * sizeof *f->dA);
    for (size_t i = 0; i < f->n_out; i++)
        for (size_t k = 0; k < f->rank; k++) {
            const float b = low_rank_scale * f->B[i * f->rank + k], *dw = f->item->weight_grad + i * f->n_in + first;
            float *da = f->dA + k * f->n_in + first;
            for (size_t j = 0; j < n; j++) da[j] += b * dw[j];
        }
}

typedef struct rounding { // of one matrix
    const dw_parameter *item;
    const float *value;
    uint8_t *scratch;
} rounding;

static void round_rows(void *job, size_t slab) {
    const rounding *r = job;
    const dw_qtype_row *type = r->item->rounded;
    const size_t n_in = r->item->source.ne[0];
    uint8_t *row = r->scratch + slab * dw_qtype_row_bytes(type, n_in);
    for (size_t i = slab * SLAB; i < end_of(slab, r->item->source.ne[1]); i++) {
        dw_encoding e = {.tensor = r->item->source.name, .type = type, .n = n_in, .weight = r->item->importance};
        float *w = r->item->weight + i * n_in;
        dw_encode_row(&e, i, r->value + i * n_in, row);
        if (!e.is_refused) type->decode(row, w, n_in);
        for (size_t k = 0; k < n_in && e.is_refused; k++) w[k] = NAN;
    }
}

void dw_parameters_derive(dw_parameters *p, dw_pool *pool) {
    for (size_t k = 0; k < p->n; k++) {
        const dw_parameter *i = &p->item[k];
        const size_t n = n_slabs(i->source.ne[1]);
        if (i->rank) dw_pool_each(pool, n, merge_rows, (factors[]){factors_of(p, i)});
        if (i->rounded) dw_pool_each(pool, n, round_rows, &(rounding){i, p->value + i->first, p->scratch});
    }
}

/* From dW to dA and dB. */
static void factor_gradients(const dw_parameters *p, dw_pool *pool) {
    for (size_t i = 0; i < p->n; i++) {
        factors f = factors_of(p, &p->item[i]);
        if (!p->item[i].rank) continue;
        dw_pool_each(pool, n_slabs(f.n_out), grad_b_rows, &f);
        dw_pool_each(pool, n_slabs(f.n_in), grad_a_columns, &f);
    }
}

/* ---- AdamW ----------------------------------------------------------------------------------------------------- */

typedef struct step_job {
    dw_parameters *p;
    const dw_adamw *o;
    double factor, first, second; // of clipping; 1 - b1^t and 1 - b2^t
} step_job;

DW_FOR_VECTOR_UNITS static void square_block(void *job, size_t i) {
    const step_job *j = job;
    block *b = &j->p->block[i];
    const float *g = j->p->grad + b->first;
    double lane[8] = {0};
    size_t k = 0;
    for (; k + 8 <= b->n; k += 8)
        for (size_t l = 0; l < 8; l++) lane[l] += (double)g[k + l] * g[k + l];
    for (; k < b->n; k++) lane[k % 8] += (double)g[k] * g[k];
    b->square = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

DW_FOR_VECTOR_UNITS static void step_block(void *job, size_t i) {
    const step_job *j = job;
    const block *b = &j->p->block[i];
    const double b1 = j->o->beta1, b2 = j->o->beta2, rate = j->o->rate, decay = b->decays ? j->o->decay : 0;
    const double factor = j->factor, first = j->first, second = j->second, eps = j->o->eps;
    float *restrict w = j->p->value + b->first, *restrict m = j->p->mean + b->first,
                    *restrict v = j->p->square + b->first;
    const float *restrict grad = j->p->grad + b->first;
    for (size_t k = 0; k < b->n; k++) {
        const double g = grad[k] * factor;
        m[k] = (float)(b1 * m[k] + (1 - b1) * g);
        v[k] = (float)(b2 * v[k] + (1 - b2) * g * g);
        w[k] = (float)(w[k] - rate * (m[k] / first / (sqrt(v[k] / second) + eps) + decay * w[k]));
    }
}

double dw_adamw_step(dw_parameters *p, const dw_adamw *o, uint64_t t, dw_pool *pool) {
    step_job j = {p, o, 1, 1 - pow(o->beta1, (double)t), 1 - pow(o->beta2, (double)t)};
    double square = 0;
    factor_gradients(p, pool);
    dw_pool_each(pool, p->n_blocks, square_block, &j);
    for (size_t i = 0; i < p->n_blocks; i++) square += p->block[i].square;
    const double norm = sqrt(square);
    if (!isfinite(norm)) return norm;
    if (o->clip > 0 && norm > o->clip) j.factor = o->clip / norm;
    dw_pool_each(pool, p->n_blocks, step_block, &j);
    dw_parameters_derive(p, pool);
    return norm;
}

double dw_cosine(uint64_t i, uint64_t n, double warm, double last) {
    const double rise = fmin(1, (double)(i + 1) / fmax(1, warm * (double)n));
    const double fall = last + (1 - last) * 0.5 * (1 + cos(3.14159265358979323846 * (double)i / (double)n));
    return rise * fall;
}
