/* backward.c - the training pass: layers forward and backward, the head in pieces, and what both arithmetics share. */
#include "backends/backward.h"
#include "backends/steps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOGIT_BYTES = 32 << 20,
    LEAST_ROWS = 32,
    MOST_ROWS = 512, // rows of logits that exist at once
    ROWS_OF_PIECE = 64,
    COLUMNS_OF_PIECE = 16,
};

/* What the products of a layer give, (n, ..). */
typedef struct layer_values {
    float *x1;        // x + attention
    float *q, *k, *v; // products and biases
    float *mix, *lse;
    float *g, *u; // Wgate h2, Wup h2
} layer_values;

struct dw_train {
    const dw_net *net;
    const dw_back_ops *ops;
    dw_back_env env;
    dw_train_options o;
    dw_grad_tap tap;
    int n_seq, n;    // windows and tokens of the last forward pass
    int n_rows;      // of logits
    int32_t *token;  // (n)
    float *rope;     // (n_ctx, head_dim/2, 2)
    float *residual; // (n_layer + 1, n, d) before each layer; not kept: (n, d), overwritten by each layer
    float *hidden;   // (n, d): normed for the head
    layer_values now;     // of the layer at hand
    layer_values *kept;   // (n_layer) with keep_values; NULL: each layer overwrites those of the one before
    float *h, *h2;        // norm(x); norm(x1)
    float *q_rot, *k_rot; // after norm and rope
    float *a;             // act(g) u
    /* gradients by them */
    float *dx, *dh; // by the residual; by the result of a norm
    float *da;
    float *dmix, *dq, *dk, *dv;
    double *scale; // (n * most heads): 1 / rms of each row of a norm; of tokens, the error of a residual or the density
    double *open;  // (n): share of a token's open gates
    /* the head, (n_rows, ..) */
    float *logits, *teacher_logits;
    int32_t *target;
    uint8_t *counts;
    double *kl, *nll;
    uint8_t *memory;
};

static bool keeps_residuals(const dw_train *t) { return !t->o.forward_only || t->o.keep_residuals; }

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static int n_rows_of(const dw_net *net, int n_tokens) {
    const int fit = LOGIT_BYTES / (int)sizeof(float) / net->hp.n_vocab / 16 * 16;
    const int n = fit < LEAST_ROWS ? LEAST_ROWS : fit > MOST_ROWS ? MOST_ROWS : fit;
    return n < n_tokens ? n : n_tokens;
}

static float *take(dw_layout *a, size_t n, size_t width) {
    return dw_layout_take(a, dw_times(n, width), sizeof(float));
}

static void lay_out_gradients(dw_train *t, dw_layout *a, size_t n) {
    const dw_hparams *hp = &t->net->hp;
    const size_t d = (size_t)hp->n_embd, D = (size_t)hp->head_dim, nq = (size_t)hp->n_head_max * D,
                 nkv = (size_t)hp->n_head_kv_max * D;
    t->dx = take(a, n, d);
    t->dh = take(a, n, d);
    t->da = take(a, n, (size_t)hp->n_ff_max);
    t->dmix = take(a, n, nq);
    t->dq = take(a, n, nq);
    t->dk = take(a, n, nkv);
    t->dv = take(a, n, nkv);
    t->scale = dw_layout_take(a, dw_times(n, (size_t)dw_larger(1, hp->n_head_max)), sizeof *t->scale);
    t->open = dw_layout_take(a, n, sizeof *t->open);
}

static layer_values take_values(dw_layout *a, size_t n, int n_embd, int head_dim, int n_head, int n_head_kv, int n_ff) {
    const size_t nq = (size_t)n_head * (size_t)head_dim, nkv = (size_t)n_head_kv * (size_t)head_dim;
    layer_values v;
    v.x1 = take(a, n, (size_t)n_embd);
    v.q = take(a, n, nq);
    v.k = take(a, n, nkv);
    v.v = take(a, n, nkv);
    v.mix = take(a, n, nq);
    v.lse = take(a, n, (size_t)n_head);
    v.g = take(a, n, (size_t)n_ff);
    v.u = take(a, n, (size_t)n_ff);
    return v;
}

static void lay_out_values(dw_train *t, dw_layout *a, size_t n) {
    const dw_hparams *hp = &t->net->hp;
    if (!t->o.keep_values) {
        t->now = take_values(a, n, hp->n_embd, hp->head_dim, hp->n_head_max, hp->n_head_kv_max, hp->n_ff_max);
        return;
    }
    t->kept = dw_layout_take(a, (size_t)hp->n_layer, sizeof *t->kept);
    for (int l = 0; l < hp->n_layer; l++) {
        const dw_layer *w = &t->net->layer[l];
        const layer_values v = take_values(a, n, hp->n_embd, hp->head_dim, w->n_head, w->n_head_kv, w->n_ff);
        if (a->base) t->kept[l] = v;
    }
}

static void lay_out_layer(dw_train *t, dw_layout *a, size_t n) {
    const dw_hparams *hp = &t->net->hp;
    const size_t d = (size_t)hp->n_embd, D = (size_t)hp->head_dim;
    lay_out_values(t, a, n);
    t->h = take(a, n, d);
    t->h2 = take(a, n, d);
    t->q_rot = take(a, n, (size_t)hp->n_head_max * D);
    t->k_rot = take(a, n, (size_t)hp->n_head_kv_max * D);
    t->a = take(a, n, (size_t)hp->n_ff_max);
}

static void lay_out(dw_train *t, dw_layout *a) {
    const dw_hparams *hp = &t->net->hp;
    const size_t n = dw_times((size_t)t->o.n_seq, (size_t)t->o.n_ctx), d = (size_t)hp->n_embd, rows = (size_t)t->n_rows;
    const dw_back_sizes most = {
        .n_tokens = (int)n,
        .n_rows = t->n_rows,
        .gradients = !t->o.forward_only,
        .widest = dw_larger(hp->n_embd, dw_larger(hp->n_ff_max, hp->n_head_max * hp->head_dim))};
    t->token = dw_layout_take(a, n, sizeof *t->token);
    t->rope = take(a, (size_t)t->o.n_ctx, (size_t)hp->head_dim);
    t->residual = take(a, dw_times(n, keeps_residuals(t) ? (size_t)hp->n_layer + 1 : 1), d);
    t->hidden = take(a, n, d);
    lay_out_layer(t, a, n);
    if (!t->o.forward_only) lay_out_gradients(t, a, n);
    if (!t->o.forward_only) t->logits = take(a, rows, (size_t)hp->n_vocab);
    if (!t->o.forward_only) t->teacher_logits = take(a, rows, (size_t)hp->n_vocab);
    t->target = dw_layout_take(a, rows, sizeof *t->target);
    t->counts = dw_layout_take(a, rows, sizeof *t->counts);
    t->kl = dw_layout_take(a, rows, sizeof *t->kl);
    t->nll = dw_layout_take(a, rows, sizeof *t->nll);
    t->ops->lay_out(&t->env, a, &most);
}

static dw_train make(const dw_net *net, dw_pool *pool, const dw_back_ops *ops, const dw_train_options *o) {
    return (dw_train){.net = net,
                      .ops = ops,
                      .o = *o,
                      .n_rows = n_rows_of(net, o->n_seq * o->n_ctx),
                      .env = {.pool = pool, .net = net, .n_ctx = o->n_ctx, .precision = o->precision}};
}

size_t dw_back_memory(const dw_net *net, dw_pool *pool, const dw_back_ops *ops, const dw_train_options *o) {
    dw_train t = make(net, pool, ops, o);
    dw_layout count = {0};
    lay_out(&t, &count);
    return count.used;
}

dw_train *dw_back_new(const dw_net *net, dw_pool *pool, const dw_back_ops *ops, const dw_train_options *o,
                      dw_err *err) {
    dw_train *t = dw_alloc(1, sizeof *t, "a training pass", err);
    if (!t) return NULL;
    *t = make(net, pool, ops, o);
    t->memory = dw_alloc(1, dw_back_memory(net, pool, ops, o),
                         "a training pass; try fewer windows at once or a shorter context", err);
    if (t->memory) {
        lay_out(t, &(dw_layout){.base = t->memory});
        dw_rope_rows(net, 0, o->n_ctx, t->rope);
        if (!ops->start(&t->env, err)) return t;
    }
    dw_train_free(t);
    return NULL;
}

void dw_train_free(dw_train *t) {
    if (!t) return;
    free(t->memory);
    free(t);
}

double dw_train_rate(dw_train *t) { return t->ops->rate ? t->ops->rate(&t->env) : 0; }

void dw_train_set_tap(dw_train *t, const dw_grad_tap *tap) { t->tap = tap ? *tap : (dw_grad_tap){0}; }

/* ---- norms, rope, sums: the same in both arithmetics ----------------------------------------------------------- */

/* sum of a_i b_i c_i in eight interleaved sums; c NULL: all 1. */
static inline __attribute__((always_inline)) double dot3(const float *a, const float *b, const float *c, size_t n) {
    double lane[8] = {0}, sum = 0;
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (size_t j = 0; j < 8; j++) lane[j] += (double)a[i + j] * b[i + j] * (c ? c[i + j] : 1);
    for (; i < n; i++) lane[i % 8] += (double)a[i] * b[i] * (c ? c[i] : 1);
    for (int j = 0; j < 8; j++) sum += lane[j];
    return sum;
}

static const float *values_of(const dw_tensor *vector) { return (const float *)(const void *)vector->data; }

typedef struct norm_job {
    const float *x, *weight, *dy;
    size_t width, n_rows;
    double eps;
    float *y, *dx; // dx is added to
    bool replaces; // dx is set instead
    double *scale; // (n_rows): 1 / rms
    float *dweight;
} norm_job;

static inline __attribute__((always_inline)) double row_scale(const norm_job *j, const float *x) {
    return 1 / sqrt(dot3(x, x, NULL, j->width) / (double)j->width + j->eps);
}

DW_FOR_VECTOR_UNITS static void norm_piece(void *job, size_t piece) {
    const norm_job *j = job;
    const size_t end = (piece + 1) * ROWS_OF_PIECE < j->n_rows ? (piece + 1) * ROWS_OF_PIECE : j->n_rows;
    for (size_t r = piece * ROWS_OF_PIECE; r < end; r++) {
        const float *x = j->x + r * j->width;
        float *y = j->y + r * j->width;
        const double scale = row_scale(j, x);
        for (size_t i = 0; i < j->width; i++) y[i] = (float)(x[i] * scale * j->weight[i]);
    }
}

static size_t pieces_of(size_t n, size_t size) { return (n + size - 1) / size; }

/* y = x / rms(x) * weight for each row of weight->ne[0] values. */
static void norm(const dw_train *t, const float *x, const dw_tensor *weight, size_t n_rows, float *y) {
    norm_job j = {.x = x,
                  .weight = values_of(weight),
                  .width = weight->ne[0],
                  .n_rows = n_rows,
                  .eps = t->net->hp.norm_eps,
                  .y = y};
    dw_pool_each(t->env.pool, pieces_of(n_rows, ROWS_OF_PIECE), norm_piece, &j);
}

DW_FOR_VECTOR_UNITS static void norm_scale_piece(void *job, size_t piece) {
    const norm_job *j = job;
    const size_t end = (piece + 1) * ROWS_OF_PIECE < j->n_rows ? (piece + 1) * ROWS_OF_PIECE : j->n_rows;
    for (size_t r = piece * ROWS_OF_PIECE; r < end; r++) j->scale[r] = row_scale(j, j->x + r * j->width);
}

DW_FOR_VECTOR_UNITS static void norm_back_piece(void *job, size_t piece) {
    const norm_job *j = job;
    const size_t end = (piece + 1) * ROWS_OF_PIECE < j->n_rows ? (piece + 1) * ROWS_OF_PIECE : j->n_rows;
    for (size_t r = piece * ROWS_OF_PIECE; r < end; r++) {
        const float *x = j->x + r * j->width, *dy = j->dy + r * j->width;
        float *dx = j->dx + r * j->width;
        const double scale = j->scale[r];
        const double along = scale * scale * scale / (double)j->width * dot3(dy, j->weight, x, j->width);
        for (size_t i = 0; i < j->width; i++)
            dx[i] = (float)((j->replaces ? 0 : (double)dx[i]) + scale * j->weight[i] * dy[i] - along * x[i]);
    }
}

DW_FOR_VECTOR_UNITS static void norm_weight_piece(void *job, size_t piece) {
    const norm_job *j = job;
    const size_t first = piece * COLUMNS_OF_PIECE,
                 n = j->width - first < COLUMNS_OF_PIECE ? j->width - first : COLUMNS_OF_PIECE;
    double sum[COLUMNS_OF_PIECE] = {0};
    for (size_t r = 0; r < j->n_rows; r++)
        for (size_t i = 0; i < n; i++) {
            const size_t at = r * j->width + first + i;
            sum[i] += (double)j->dy[at] * j->x[at] * j->scale[r];
        }
    for (size_t i = 0; i < n; i++) j->dweight[first + i] += (float)sum[i];
}

typedef struct norm_grads {
    float *dx; // added to, or set if `replaces`; may then be dy
    bool replaces;
    float *dweight; // added to; NULL: not wanted
} norm_grads;

static void norm_back(const dw_train *t, const float *x, const dw_tensor *weight, const float *dy, size_t n_rows,
                      norm_grads to) {
    norm_job j = {.x = x,
                  .weight = values_of(weight),
                  .dy = dy,
                  .width = weight->ne[0],
                  .n_rows = n_rows,
                  .eps = t->net->hp.norm_eps,
                  .dx = to.dx,
                  .replaces = to.replaces,
                  .scale = t->scale,
                  .dweight = to.dweight};
    dw_pool_each(t->env.pool, pieces_of(n_rows, ROWS_OF_PIECE), norm_scale_piece, &j);
    if (to.dweight) dw_pool_each(t->env.pool, pieces_of(j.width, COLUMNS_OF_PIECE), norm_weight_piece, &j);
    dw_pool_each(t->env.pool, pieces_of(n_rows, ROWS_OF_PIECE), norm_back_piece, &j);
}

typedef struct rope_job {
    const dw_train *t;
    const float *x;
    float *y;
    int n_head, sign;
} rope_job;

/* Pairs are `apart` values apart, `step` from one to the next; their angles as cos, sin. */
static inline __attribute__((always_inline)) void rotate_pairs(const float *x, const float *angles, int n_pairs,
                                                               int step, int apart, double sign, float *y) {
    for (int i = 0; i < n_pairs; i++) {
        const double c = angles[2 * i], s = sign * angles[2 * i + 1], a = x[i * step], b = x[i * step + apart];
        y[i * step] = (float)(a * c - b * s);
        y[i * step + apart] = (float)(a * s + b * c);
    }
}

/* Rotates the pairs of a token's heads by sign times the angles of its position (Su et al. 2021). */
DW_FOR_VECTOR_UNITS static void rope_piece(void *job, size_t piece) {
    const rope_job *j = job;
    const int D = j->t->net->hp.head_dim;
    const size_t n = (size_t)j->t->n, end = (piece + 1) * ROWS_OF_PIECE < n ? (piece + 1) * ROWS_OF_PIECE : n;
    for (size_t token = piece * ROWS_OF_PIECE; token < end; token++) {
        const float *angles = j->t->rope + token % (size_t)j->t->o.n_ctx * (size_t)D;
        for (int h = 0; h < j->n_head; h++) {
            const size_t at = (token * (size_t)j->n_head + (size_t)h) * (size_t)D;
            if (j->t->net->rope_neox) rotate_pairs(j->x + at, angles, D / 2, 1, D / 2, j->sign, j->y + at);
            else rotate_pairs(j->x + at, angles, D / 2, 2, 1, j->sign, j->y + at);
        }
    }
}

static void rope(const dw_train *t, const float *x, int n_head, int sign, float *y) {
    dw_pool_each(t->env.pool, pieces_of((size_t)t->n, ROWS_OF_PIECE), rope_piece, &(rope_job){t, x, y, n_head, sign});
}

typedef struct add_job {
    const float *x;
    float *y;
    size_t n, width;
} add_job;

enum { ADD_PIECE = 1 << 14 };

static void add_piece(void *job, size_t piece) {
    const add_job *j = job;
    const size_t end = (piece + 1) * ADD_PIECE < j->n ? (piece + 1) * ADD_PIECE : j->n;
    for (size_t i = piece * ADD_PIECE; i < end; i++) j->y[i] += j->x[i];
}

/* y += x */
static void add(const dw_train *t, const float *x, size_t n, float *y) {
    dw_pool_each(t->env.pool, pieces_of(n, ADD_PIECE), add_piece, &(add_job){x, y, n, 0});
}

DW_FOR_VECTOR_UNITS static void sum_piece(void *job, size_t piece) {
    const add_job *j = job;
    const size_t first = piece * COLUMNS_OF_PIECE,
                 n = j->width - first < COLUMNS_OF_PIECE ? j->width - first : COLUMNS_OF_PIECE;
    double sum[COLUMNS_OF_PIECE] = {0};
    for (size_t r = 0; r < j->n; r++)
        for (size_t i = 0; i < n; i++) sum[i] += j->x[r * j->width + first + i];
    for (size_t i = 0; i < n; i++) j->y[first + i] += (float)sum[i];
}

/* db += sum of the rows of dy (n, width) */
static void add_rows(const dw_train *t, const float *dy, int n, size_t width, float *db) {
    if (db)
        dw_pool_each(t->env.pool, pieces_of(width, COLUMNS_OF_PIECE), sum_piece, &(add_job){dy, db, (size_t)n, width});
}

/* ---- the embedding --------------------------------------------------------------------------------------------- */

static void embed_piece(void *train, size_t i) {
    const dw_train *t = train;
    dw_embed_token(t->net, t->token[i], t->residual + i * (size_t)t->net->hp.n_embd);
}

typedef struct embed_job {
    const dw_train *t;
    float *to;
} embed_job;

static void embed_back_piece(void *job, size_t piece) {
    const embed_job *j = job;
    const dw_train *t = j->t;
    const float scale = dw_embd_scale(t->net);
    const size_t d = (size_t)t->net->hp.n_embd, first = piece * COLUMNS_OF_PIECE;
    const size_t end = first + COLUMNS_OF_PIECE < d ? first + COLUMNS_OF_PIECE : d;
    for (size_t i = 0; i < (size_t)t->n; i++)
        for (size_t k = first; k < end; k++) j->to[(size_t)t->token[i] * d + k] += scale * t->dx[i * d + k];
}

/* ---- a layer forward ------------------------------------------------------------------------------------------- */

static dw_back_attention attention_of(const dw_train *t, const dw_layer *w) {
    return (dw_back_attention){.n_seq = t->n_seq,
                               .n_head = w->n_head,
                               .n_head_kv = w->n_head_kv,
                               .q = t->q_rot,
                               .k = t->k_rot,
                               .v = t->now.v,
                               .mix = t->now.mix,
                               .lse = t->now.lse,
                               .dmix = t->dmix,
                               .dq = t->dq,
                               .dk = t->dk,
                               .dv = t->dv};
}

/* to = rope(norm(from)), the norm only if the model has one. */
static void normed_rope(const dw_train *t, const float *from, const dw_tensor *weight, int n_head, float *to) {
    if (weight->name) norm(t, from, weight, (size_t)t->n * (size_t)n_head, to);
    rope(t, weight->name ? to : from, n_head, 1, to);
}

static void rotate(const dw_train *t, const dw_layer *w) {
    normed_rope(t, t->now.q, &w->q_norm, w->n_head, t->q_rot);
    normed_rope(t, t->now.k, &w->k_norm, w->n_head_kv, t->k_rot);
}

/* x1 = x + Wo attention(norm(x)) */
static void attention(const dw_train *t, const dw_layer *w, const float *x) {
    const size_t n = (size_t)t->n, d = (size_t)t->net->hp.n_embd;
    if (!w->n_head) {
        memcpy(t->now.x1, x, n * d * sizeof *x);
        return;
    }
    const dw_back_attention a = attention_of(t, w);
    norm(t, x, &w->attn_norm, n, t->h);
    const dw_back_linear qkv[3] = {
        {&w->q, &w->q_bias, t->now.q}, {&w->k, &w->k_bias, t->now.k}, {&w->v, &w->v_bias, t->now.v}};
    t->ops->linear(&t->env, qkv, 3, t->h, t->n);
    rotate(t, w);
    t->ops->attend(&t->env, &a);
    t->ops->linear(&t->env, &(dw_back_linear){&w->o, &w->o_bias, t->now.x1}, 1, t->now.mix, t->n);
    add(t, x, n * d, t->now.x1);
}

/* a = act(Wgate norm(x1)) * Wup norm(x1) */
static void neurons(const dw_train *t, const dw_layer *w) {
    norm(t, t->now.x1, &w->ffn_norm, (size_t)t->n, t->h2);
    const dw_back_linear both[2] = {{&w->gate, &w->gate_bias, t->now.g}, {&w->up, &w->up_bias, t->now.u}};
    t->ops->linear(&t->env, both, 2, t->h2, t->n);
    t->ops->glu(&t->env, t->now.g, t->now.u, (size_t)t->n * (size_t)w->n_ff, t->a);
}

static float *residual_of(const dw_train *t, int l) {
    return t->residual + (keeps_residuals(t) ? (size_t)l * (size_t)t->n * (size_t)t->net->hp.n_embd : 0);
}

static void choose_layer(dw_train *t, int l) {
    if (t->kept) t->now = t->kept[l];
}

static void layer_forward(dw_train *t, int l) {
    const dw_layer *w = &t->net->layer[l];
    float *y = residual_of(t, l + 1);
    choose_layer(t, l);
    attention(t, w, residual_of(t, l));
    neurons(t, w);
    t->ops->linear(&t->env, &(dw_back_linear){&w->down, &w->down_bias, y}, 1, t->a, t->n);
    add(t, t->now.x1, (size_t)t->n * (size_t)t->net->hp.n_embd, y);
}

int dw_train_forward(dw_train *t, const int32_t *token, int n_seq, dw_err *err) {
    const dw_hparams *hp = &t->net->hp;
    if (n_seq < 1 || n_seq > t->o.n_seq)
        return dw_fail(err, "a training pass of %d windows was asked for, there is room for %d", n_seq, t->o.n_seq);
    const int n = n_seq * t->o.n_ctx;
    for (int i = 0; i < n; i++)
        if (token[i] < 0 || token[i] >= hp->n_vocab)
            return dw_fail(err, "token %d of the pass is %d, the vocabulary has %d", i, token[i], hp->n_vocab);
    t->n_seq = n_seq;
    t->n = n;
    memcpy(t->token, token, (size_t)t->n * sizeof *token);
    dw_pool_each(t->env.pool, (size_t)t->n, embed_piece, t);
    for (int l = 0; l < hp->n_layer; l++) layer_forward(t, l);
    norm(t, residual_of(t, hp->n_layer), &t->net->output_norm, (size_t)t->n, t->hidden);
    return 0;
}

/* ---- residuals beside the teacher's ---------------------------------------------------------------------------- */

typedef struct hidden_job {
    const dw_train *t;
    const float *x, *y; // (n, d): the net's, the teacher's
    int first;          // position of a window
    double factor;      // of the gradient, which is added to dx; 0: none is
    double *square;     // (n): relative squared errors
} hidden_job;

static void hidden_piece(void *job, size_t i) {
    const hidden_job *j = job;
    const dw_train *t = j->t;
    const size_t d = (size_t)t->net->hp.n_embd;
    const float *x = j->x + i * d, *y = j->y + i * d;
    const double size = dot3(y, y, NULL, d);
    double square = 0;
    j->square[i] = 0;
    if ((int)(i % (size_t)t->o.n_ctx) < j->first || size == 0) return;
    for (size_t k = 0; k < d; k++) square += ((double)x[k] - y[k]) * ((double)x[k] - y[k]);
    j->square[i] = square / size;
    for (size_t k = 0; k < d && j->factor != 0; k++)
        t->dx[i * d + k] += (float)(j->factor / size * ((double)x[k] - y[k]));
}

static int hidden_first(const dw_loss *loss) { return loss->first > 1 ? loss->first : 1; }

/* The output of layer l: adds its share of the loss; with a scale, its gradient to dx. */
static void hidden_layer(dw_train *t, const dw_loss *loss, int l, double scale, dw_loss_sums *sums) {
    const double share = loss->hidden / t->net->hp.n_layer;
    if (share == 0) return;
    hidden_job j = {.t = t,
                    .x = residual_of(t, l + 1),
                    .y = residual_of(loss->teacher, loss->residual ? loss->residual[l] : l + 1),
                    .first = hidden_first(loss),
                    .factor = 2 * scale * share,
                    .square = t->scale};
    double sum = 0;
    dw_pool_each(t->env.pool, (size_t)t->n, hidden_piece, &j);
    for (int i = 0; i < t->n; i++) sum += t->scale[i];
    sums->hidden += sum / t->net->hp.n_layer;
    sums->loss += share * sum;
}

static void count_tokens(const dw_train *t, const dw_loss *loss, dw_loss_sums *sums) {
    const int n_hidden = t->o.n_ctx - hidden_first(loss), n = t->o.n_ctx - loss->first;
    if (loss->hidden != 0 && n_hidden > 0) sums->n_hidden += (size_t)t->n_seq * (size_t)n_hidden;
    if (loss->sparsity != 0 && n > 0) sums->n_density += (size_t)t->n_seq * (size_t)n;
}

/* ---- a layer's values once more -------------------------------------------------------------------------------- */

/* What follows from kept values without products. */
static void derive(const dw_train *t, const dw_layer *w, const float *x) {
    const size_t n = (size_t)t->n;
    if (w->n_head) {
        norm(t, x, &w->attn_norm, n, t->h);
        rotate(t, w);
    }
    norm(t, t->now.x1, &w->ffn_norm, n, t->h2);
    t->ops->glu(&t->env, t->now.g, t->now.u, n * (size_t)w->n_ff, t->a);
}

/* All values of layer l, the same bits as in the forward pass. */
static void recall(dw_train *t, int l) {
    const dw_layer *w = &t->net->layer[l];
    const float *x = residual_of(t, l);
    choose_layer(t, l);
    if (t->kept) {
        derive(t, w, x);
        return;
    }
    attention(t, w, x);
    neurons(t, w);
}

/* ---- density of the gates -------------------------------------------------------------------------------------- */

typedef struct density_job {
    const float *g; // (n, n_ff): before act
    size_t n_ff;
    int n_ctx, first;       // positions of a window
    double factor;          // of the gradient dg; 0: dg is not written
    double *density, *open; // (n)
    float *dg;              // (n, n_ff)
} density_job;

DW_FOR_VECTOR_UNITS static void density_piece(void *job, size_t i) {
    const density_job *j = job;
    const float *g = j->g + i * j->n_ff;
    float *dg = j->dg + i * j->n_ff;
    double sum = 0, square = 0, n_open = 0;
    for (size_t k = 0; k < j->n_ff; k++) {
        const double r = g[k] > 0 ? g[k] : 0;
        sum += r, square += r * r, n_open += r > 0;
    }
    const bool has_loss = (int)(i % (size_t)j->n_ctx) >= j->first, has_slope = has_loss && square > 0;
    const double slope = has_slope ? 1 / sqrt((double)j->n_ff * square) : 0, density = sum * slope;
    const double fall = has_slope ? density / square : 0;
    j->density[i] = density;
    j->open[i] = has_loss ? n_open / (double)j->n_ff : 0;
    for (size_t k = 0; k < j->n_ff && j->factor != 0; k++)
        dg[k] = g[k] > 0 ? (float)(j->factor * (slope - fall * g[k])) : 0;
}

/* The layer whose values are there: adds its share of the loss.  With a scale, its gradient by g goes to t->a; false: it
 * has none. */
static bool density_layer(dw_train *t, const dw_loss *loss, int l, double scale, dw_loss_sums *sums) {
    const double share = loss->sparsity / t->net->hp.n_layer;
    if (share == 0) return false;
    dw_assert(t->net->act == DW_RELU);
    density_job j = {.g = t->now.g,
                     .n_ff = (size_t)t->net->layer[l].n_ff,
                     .n_ctx = t->o.n_ctx,
                     .first = loss->first,
                     .factor = scale * share,
                     .density = t->scale,
                     .open = t->open,
                     .dg = t->a};
    double sum = 0, open = 0;
    dw_pool_each(t->env.pool, (size_t)t->n, density_piece, &j);
    for (int i = 0; i < t->n; i++) sum += t->scale[i], open += t->open[i];
    sums->density += sum / t->net->hp.n_layer;
    sums->open += open / t->net->hp.n_layer;
    sums->loss += share * sum;
    return j.factor != 0;
}

/* ---- a layer backward ------------------------------------------------------------------------------------------ */

/* dw += dy^T x and db += sum dy, where they are wanted. */
static void weight_back(const dw_train *t, const dw_gradients *g, dw_weight weight, dw_weight bias, const float *x,
                        const float *dy, const dw_tensor *w) {
    float *dw = g->of[weight];
    if (dw) t->ops->linear_w(&t->env, x, (int)w->ne[0], dy, (int)w->ne[1], t->n, dw);
    add_rows(t, dy, t->n, w->ne[1], g->of[bias]);
}

static void tapped(const dw_train *t, const dw_grad_event *event) {
    if (t->tap.fn) t->tap.fn(t->tap.ctx, event);
}

/* dx becomes the gradient by x1. */
static void ffn_back(dw_train *t, const dw_loss *loss, int l, double scale, const dw_gradients *g, dw_loss_sums *sums) {
    const dw_layer *w = &t->net->layer[l];
    const size_t n = (size_t)t->n;
    tapped(t, &(dw_grad_event){DW_GRAD_FFN_OUT, l, t->n, t->net->hp.n_embd, t->dx, NULL});
    weight_back(t, g, DW_W_DOWN, DW_W_DOWN_BIAS, t->a, t->dx, &w->down);
    t->ops->linear_x(&t->env, &w->down, t->dx, t->n, t->da, false);
    tapped(t, &(dw_grad_event){DW_GRAD_NEURON, l, t->n, w->n_ff, t->da, t->a});
    const bool has_density = density_layer(t, loss, l, scale, sums); // t->a is free from here on
    t->ops->glu_back(&t->env, t->da, n * (size_t)w->n_ff, t->now.g, t->now.u);
    if (has_density) add(t, t->a, n * (size_t)w->n_ff, t->now.g);
    weight_back(t, g, DW_W_GATE, DW_W_GATE_BIAS, t->h2, t->now.g, &w->gate);
    weight_back(t, g, DW_W_UP, DW_W_UP_BIAS, t->h2, t->now.u, &w->up);
    t->ops->linear_x(&t->env, &w->gate, t->now.g, t->n, t->dh, false);
    t->ops->linear_x(&t->env, &w->up, t->now.u, t->n, t->dh, true);
    norm_back(t, t->now.x1, &w->ffn_norm, t->dh, n, (norm_grads){t->dx, false, g->of[DW_W_FFN_NORM]});
}

/* From the gradient by rope(norm(x)) to that by x, in place. */
static void normed_rope_back(const dw_train *t, const float *x, const dw_tensor *weight, int n_head, float *dweight,
                             float *d) {
    rope(t, d, n_head, -1, d);
    if (weight->name) norm_back(t, x, weight, d, (size_t)t->n * (size_t)n_head, (norm_grads){d, true, dweight});
}

/* dx becomes the gradient by the layer's x. */
static void attention_back(dw_train *t, int l, const dw_gradients *g) {
    const dw_layer *w = &t->net->layer[l];
    const dw_back_attention a = attention_of(t, w);
    if (!w->n_head) return;
    weight_back(t, g, DW_W_O, DW_W_O_BIAS, t->now.mix, t->dx, &w->o);
    t->ops->linear_x(&t->env, &w->o, t->dx, t->n, t->dmix, false);
    t->ops->attend_back(&t->env, &a);
    normed_rope_back(t, t->now.q, &w->q_norm, w->n_head, g->of[DW_W_Q_NORM], t->dq);
    normed_rope_back(t, t->now.k, &w->k_norm, w->n_head_kv, g->of[DW_W_K_NORM], t->dk);
    weight_back(t, g, DW_W_Q, DW_W_Q_BIAS, t->h, t->dq, &w->q);
    weight_back(t, g, DW_W_K, DW_W_K_BIAS, t->h, t->dk, &w->k);
    weight_back(t, g, DW_W_V, DW_W_V_BIAS, t->h, t->dv, &w->v);
    t->ops->linear_x(&t->env, &w->q, t->dq, t->n, t->dh, false);
    t->ops->linear_x(&t->env, &w->k, t->dk, t->n, t->dh, true);
    t->ops->linear_x(&t->env, &w->v, t->dv, t->n, t->dh, true);
    norm_back(t, residual_of(t, l), &w->attn_norm, t->dh, (size_t)t->n,
              (norm_grads){t->dx, false, g->of[DW_W_ATTN_NORM]});
}

/* ---- the head -------------------------------------------------------------------------------------------------- */

void dw_train_logits(dw_train *t, int first, int n, float *out) {
    const dw_net *net = t->net;
    const float *hidden = t->hidden + (size_t)first * (size_t)net->hp.n_embd;
    dw_assert(first >= 0 && n >= 0 && first + n <= t->n);
    for (int from = 0, now; from < n; from += now) {
        now = n - from < t->n_rows ? n - from : t->n_rows;
        t->ops->linear(&t->env,
                       &(dw_back_linear){&net->output, &net->output_bias, out + (size_t)from * (size_t)net->hp.n_vocab},
                       1, hidden + (size_t)from * (size_t)net->hp.n_embd, now);
    }
}

/* Rows first .. first + n - 1 of a pass: which of them have a loss, and their next tokens. */
static void mark_rows(dw_train *t, const dw_loss *loss, int first, int n) {
    for (int i = 0; i < n; i++) {
        const int pos = (first + i) % t->o.n_ctx;
        t->target[i] = pos + 1 < t->o.n_ctx ? t->token[first + i + 1] : -1;
        t->counts[i] = pos >= loss->first;
    }
}

static bool has_teacher(const dw_loss *loss) { return loss->teacher || loss->coarse; }

static void add_sums(const dw_train *t, const dw_loss *loss, double ce, int n, dw_loss_sums *sums) {
    for (int i = 0; i < n; i++) {
        if (!t->counts[i]) continue;
        sums->kl += t->kl[i];
        sums->n_kl += has_teacher(loss);
        sums->nll += t->nll[i];
        sums->n_nll += t->target[i] >= 0;
        sums->loss += (1 - ce) * t->kl[i] + ce * t->nll[i];
    }
}

/* The teacher's logits of rows first .. first + n - 1, after those of the net. */
static void teach_rows(dw_train *t, const dw_loss *loss, double temperature, int first, int n) {
    const dw_coarse_teacher *c = loss->coarse;
    if (!c) {
        dw_train_logits(loss->teacher, first, n, t->teacher_logits);
        return;
    }
    const size_t at = (size_t)first * (size_t)c->k;
    t->ops->spread(&t->env, &(dw_back_spread){.n = n,
                                              .n_vocab = t->net->hp.n_vocab,
                                              .temperature = temperature,
                                              .from = {c->k, c->token + at, c->logprob + at, c->rest + first},
                                              .logits = t->logits,
                                              .out = t->teacher_logits});
}

/* The loss of rows first .. first + n - 1; with a scale, t->logits becomes its gradient. */
static void rows_loss(dw_train *t, const dw_loss *loss, double scale, int first, int n, dw_loss_sums *sums) {
    const dw_back_softmax s = {.n = n,
                               .n_vocab = t->net->hp.n_vocab,
                               .teacher = has_teacher(loss) ? t->teacher_logits : NULL,
                               .logits = t->logits,
                               .target = t->target,
                               .counts = t->counts,
                               .temperature = loss->temperature != 0 ? loss->temperature : 1,
                               .ce = has_teacher(loss) ? loss->ce : 1,
                               .scale = scale,
                               .kl = t->kl,
                               .nll = t->nll};
    dw_train_logits(t, first, n, t->logits);
    if (has_teacher(loss)) teach_rows(t, loss, s.temperature, first, n);
    mark_rows(t, loss, first, n);
    t->ops->softmax(&t->env, &s);
    add_sums(t, loss, s.ce, n, sums);
}

static void check_teacher(const dw_train *t, const dw_loss *loss) {
    const dw_train *teacher = loss->teacher;
    dw_assert(!t->o.forward_only);
    dw_assert(!teacher ||
              (teacher->n == t->n && teacher->o.n_ctx == t->o.n_ctx && teacher->net->hp.n_vocab == t->net->hp.n_vocab));
    dw_assert(loss->hidden == 0 ||
              (teacher && keeps_residuals(teacher) && teacher->net->hp.n_embd == t->net->hp.n_embd));
    (void)t, (void)teacher;
}

void dw_train_loss(dw_train *t, const dw_loss *loss, dw_loss_sums *sums) {
    check_teacher(t, loss);
    for (int first = 0; first < t->n; first += t->n_rows)
        rows_loss(t, loss, 0, first, t->n - first < t->n_rows ? t->n - first : t->n_rows, sums);
    for (int l = 0; l < t->net->hp.n_layer; l++) {
        hidden_layer(t, loss, l, 0, sums);
        if (loss->sparsity != 0) recall(t, l);
        density_layer(t, loss, l, 0, sums);
    }
    count_tokens(t, loss, sums);
}

/* dh = gradient by the normed rows; gradients of the output matrix. */
static void head_back(dw_train *t, const dw_loss *loss, double scale, const dw_gradients *g, dw_loss_sums *sums) {
    const dw_net *net = t->net;
    const size_t d = (size_t)net->hp.n_embd;
    for (int first = 0, n; first < t->n; first += n) {
        n = t->n - first < t->n_rows ? t->n - first : t->n_rows;
        rows_loss(t, loss, scale, first, n, sums);
        t->ops->linear_x(&t->env, &net->output, t->logits, n, t->dh + (size_t)first * d, false);
        if (g->of[DW_W_OUTPUT])
            t->ops->linear_w(&t->env, t->hidden + (size_t)first * d, net->hp.n_embd, t->logits, net->hp.n_vocab, n,
                             g->of[DW_W_OUTPUT]);
        add_rows(t, t->logits, n, (size_t)net->hp.n_vocab, g->of[DW_W_OUTPUT_BIAS]);
    }
}

void dw_train_backward(dw_train *t, const dw_loss *loss, double scale, const dw_gradients *g, dw_loss_sums *sums) {
    const int n_layer = t->net->hp.n_layer, n = t->n;
    const dw_gradients *whole = &g[n_layer];
    check_teacher(t, loss);
    count_tokens(t, loss, sums);
    head_back(t, loss, scale, whole, sums);
    norm_back(t, residual_of(t, n_layer), &t->net->output_norm, t->dh, (size_t)n,
              (norm_grads){t->dx, true, whole->of[DW_W_OUTPUT_NORM]});
    for (int l = n_layer - 1; l >= 0; l--) {
        if (l < n_layer - 1) recall(t, l); // the last layer's values are still there
        hidden_layer(t, loss, l, scale, sums);
        ffn_back(t, loss, l, scale, &g[l], sums);
        attention_back(t, l, &g[l]);
    }
    float *to = whole->of[DW_W_TOKEN_EMBD];
    if (to)
        dw_pool_each(t->env.pool, pieces_of((size_t)t->net->hp.n_embd, COLUMNS_OF_PIECE), embed_back_piece,
                     &(embed_job){t, to});
}
