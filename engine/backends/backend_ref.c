/* backend_ref.c - the fused steps, as a definition.  Those of the FFN are in ffn_*.c.
 *
 * Every sum runs in double and in index order (dot products of attention: in eight interleaved partial sums).  So the
 * result is the same for every number of threads and every batching, and on every machine except for the last bits
 * of libm (exp, tanh, pow, cos, sin).  A product works on a tile of tokens at a time, with tokens in the inner loop:
 * that keeps the order of each sum and still fills vector registers. */
#include "backends/backend_ref.h"

#include <math.h>
#include <string.h>

static size_t longest_row(const dw_net *net) {
    const int lengths[] = {net->hp.n_embd, net->hp.n_head_max * net->hp.head_dim, net->hp.n_ff_max,
                           dw_gate_sizes_of(net).rank};
    int n = 0;
    for (int i = 0; i < 4; i++)
        if (lengths[i] > n) n = lengths[i];
    return (size_t)n;
}

static size_t own_bytes(int n_threads) { return (size_t)n_threads * sizeof(dw_ref_scratch); }

static int start(dw_pass *p, const dw_session_options *o, dw_err *err) {
    (void)p, (void)o, (void)err;
    return 0;
}

static void lay_out(dw_pass *p, dw_layout *a, const dw_session_options *o) {
    const size_t rows = (size_t)o->n_batch, n = longest_row(p->net),
                 n_kv = rows * (size_t)p->net->hp.n_head_kv_max * (size_t)p->net->hp.head_dim;
    const dw_gate_sizes most = dw_gate_sizes_of(p->net);
    dw_ref_scratch *thread = p->own, all = {0};
    all.k = dw_layout_take(a, n_kv, sizeof *all.k);
    all.v = dw_layout_take(a, n_kv, sizeof *all.v);
    for (int i = 0; i < 2; i++) all.hidden[i] = dw_layout_take(a, rows * (size_t)most.rank, sizeof *all.hidden[i]);
    all.open = dw_layout_take(a, rows, (size_t)most.n_groups);
    for (int i = 0; i < p->n_threads; i++) {
        thread[i] = all;
        thread[i].xt = dw_layout_take(a, n, DW_REF_TILE * sizeof(double));
        thread[i].rows = dw_layout_take(a, n, DW_REF_ROWS * sizeof(float));
        thread[i].score = dw_layout_take(a, (size_t)o->n_ctx, sizeof(double));
    }
}

/* ---- products -------------------------------------------------------------------------------------- */

/* acc[r][t] = sum over k of rows[r][k] * xt[k][t], each sum in the order of k.  Products of two F32 are exact. */
static inline __attribute__((always_inline)) void tile_sums(const float *rows, const double *restrict xt, size_t n,
                                                            int width, double (*restrict acc)[DW_REF_TILE]) {
    double sum[DW_REF_ROWS][DW_REF_TILE] = {0};
    for (size_t k = 0; k < n; k++)
        for (int r = 0; r < DW_REF_ROWS; r++)
            for (int t = 0; t < width; t++)
                sum[r][t] += (double)rows[(size_t)r * n + k] * xt[k * (size_t)width + (size_t)t];
    memcpy(acc, sum, sizeof sum);
}

/* The same arithmetic for every width of the vector unit, because lanes are tokens. */
DW_FOR_VECTOR_UNITS static void sums_of_tile(const float *rows, const double *xt, size_t n,
                                             double (*acc)[DW_REF_TILE]) {
    tile_sums(rows, xt, n, DW_REF_TILE, acc);
}

DW_FOR_VECTOR_UNITS static void sums_of_one(const float *rows, const double *xt, size_t n, double (*acc)[DW_REF_TILE]) {
    tile_sums(rows, xt, n, 1, acc);
}

float dw_ref_at(const dw_tensor *vector, size_t i) {
    float f;
    memcpy(&f, vector->data + i * sizeof f, sizeof f);
    return f;
}

/* A tile of `width` tokens from t0 on, transposed: (w->ne[0], padded), the padding 0. */
static void load_tile(const dw_ref_scratch *s, const dw_ref_job *j, int t0, int width, int padded) {
    const size_t n = j->w->ne[0], ldx = j->ldx ? j->ldx : n;
    for (size_t k = 0; k < n; k++)
        for (int t = 0; t < padded; t++)
            s->xt[k * (size_t)padded + (size_t)t] = t < width ? j->x[(size_t)(t0 + t) * ldx + k] : 0;
}

void dw_ref_product(const dw_ref_scratch *s, const dw_ref_job *j) {
    const dw_tensor *w = j->w;
    const size_t n = w->ne[0];
    double acc[DW_REF_ROWS][DW_REF_TILE];
    for (int t0 = 0; t0 < j->n_tokens; t0 += DW_REF_TILE) {
        const int left = j->n_tokens - t0, width = left < DW_REF_TILE ? left : DW_REF_TILE;
        const int padded = width == 1 ? 1 : DW_REF_TILE;
        load_tile(s, j, t0, width, padded);
        for (size_t i = j->rows.first; i < j->rows.end; i += DW_REF_ROWS) {
            size_t row[DW_REF_ROWS];
            const size_t n_rows = j->rows.end - i < DW_REF_ROWS ? j->rows.end - i : DW_REF_ROWS;
            for (size_t r = 0; r < n_rows; r++) {
                row[r] = j->rows.list ? (size_t)j->rows.list[i + r] : i + r;
                w->type->decode(w->data + row[r] * dw_tensor_row_bytes(w), s->rows + r * n, n);
            }
            if (padded == 1) sums_of_one(s->rows, s->xt, n, acc); // rows from n_rows on: old values, unused
            else sums_of_tile(s->rows, s->xt, n, acc);
            for (size_t r = 0; r < n_rows; r++) {
                const double b = j->bias && j->bias->name ? dw_ref_at(j->bias, row[r]) : 0;
                for (int t = 0; t < width; t++) j->out(j->ctx, row[r], t0 + t, acc[r][t] + b);
            }
        }
    }
}

void dw_ref_store(void *ctx, size_t row, int token, double sum) {
    const dw_ref_into *m = ctx;
    m->y[(size_t)token * m->stride + row] = (float)sum;
}

void dw_ref_add(void *ctx, size_t row, int token, double sum) {
    const dw_ref_into *m = ctx;
    m->y[(size_t)token * m->stride + row] += (float)sum;
}

dw_ref_rows dw_ref_share(const dw_pass *p, size_t n, int ith) {
    const size_t n_threads = (size_t)p->n_threads;
    return (dw_ref_rows){n * (size_t)ith / n_threads, n * (size_t)(ith + 1) / n_threads, NULL};
}

void dw_ref_matrix(dw_pass *p, int ith, dw_ref_job job, float *y) {
    dw_ref_into into = {y, job.w->ne[1]};
    job.rows = dw_ref_share(p, job.w->ne[1], ith);
    job.n_tokens = p->n_tokens;
    job.ctx = &into;
    dw_ref_product(dw_ref_scratch_of(p, ith), &job);
}

/* ---- steps --------------------------------------------------------------------------------------------- */

/* y = x / rms(x) * weight (Zhang & Sennrich 2019). */
static void rms_norm(const float *x, const dw_tensor *weight, float eps, float *y) {
    const size_t n = weight->ne[0];
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    const double scale = 1 / sqrt(sum / (double)n + eps);
    for (size_t i = 0; i < n; i++) y[i] = (float)(x[i] * scale * dw_ref_at(weight, i));
}

void dw_ref_norm_tokens(dw_pass *p, const dw_tensor *weight, int ith) {
    const size_t d = (size_t)p->net->hp.n_embd;
    for (int t = ith; t < p->n_tokens; t += p->n_threads)
        rms_norm(p->x + (size_t)t * d, weight, p->net->hp.norm_eps, p->h + (size_t)t * d);
    dw_pool_barrier(p->pool);
}

static void embed(dw_pass *p, int ith) {
    for (int t = ith; t < p->n_tokens; t += p->n_threads)
        dw_embed_token(p->net, p->token[t], p->x + (size_t)t * (size_t)p->net->hp.n_embd);
}

/* Rotates the pairs of one head (Su et al. 2021) by the angles of its position. */
static void rotate(float *v, const float *angles, int head_dim, bool neox) {
    for (int i = 0; i < head_dim / 2; i++) {
        float *a = neox ? &v[i] : &v[2 * i], *b = neox ? &v[i + head_dim / 2] : &v[2 * i + 1];
        const double c = angles[2 * i], s = angles[2 * i + 1], x = *a, y = *b;
        *a = (float)(x * c - y * s);
        *b = (float)(x * s + y * c);
    }
}

static void to_cache(const dw_cache *c, void *array, size_t first, const float *v, int n) {
    dw_cache_store(c, v, (size_t)n, (uint8_t *)array + dw_qtype_row_bytes(c->type, first));
}

/* n values of the cache as F32: a pointer into it, or converted into row. */
static const float *from_cache(const dw_cache *c, const void *array, size_t first, float *row, int n) {
    if (c->type->id == DW_F32) return (const float *)array + first;
    c->type->decode((const uint8_t *)array + dw_qtype_row_bytes(c->type, first), row, (size_t)n);
    return row;
}

static void qkv(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    const dw_hparams *hp = &p->net->hp;
    const int D = hp->head_dim;
    dw_ref_norm_tokens(p, &w->attn_norm, ith);
    dw_ref_matrix(p, ith, (dw_ref_job){.w = &w->q, .bias = &w->q_bias, .x = p->h, .out = dw_ref_store}, p->q);
    const dw_ref_scratch *s = dw_ref_scratch_of(p, ith);
    dw_ref_matrix(p, ith, (dw_ref_job){.w = &w->k, .bias = &w->k_bias, .x = p->h, .out = dw_ref_store}, s->k);
    dw_ref_matrix(p, ith, (dw_ref_job){.w = &w->v, .bias = &w->v_bias, .x = p->h, .out = dw_ref_store}, s->v);
    dw_pool_barrier(p->pool);
    for (int t = ith; t < p->n_tokens; t += p->n_threads) {
        const float *angles = p->rope + (size_t)p->pos[t] * (size_t)D;
        for (int h = 0; h < w->n_head + w->n_head_kv; h++) {
            const bool is_k = h >= w->n_head;
            const int head = is_k ? h - w->n_head : h, n_head = is_k ? w->n_head_kv : w->n_head;
            float *row = (is_k ? s->k : p->q) + ((size_t)t * (size_t)n_head + (size_t)head) * (size_t)D;
            const dw_tensor *norm = is_k ? &w->k_norm : &w->q_norm;
            if (norm->name) rms_norm(row, norm, hp->norm_eps, row);
            rotate(row, angles, D, p->net->rope_neox);
            if (!is_k) continue;
            const size_t slot = dw_cache_at(p, l, p->seq[t], head, p->pos[t]);
            to_cache(&p->cache, p->cache.k[l], slot, row, D);
            to_cache(&p->cache, p->cache.v[l], slot, s->v + ((size_t)t * (size_t)n_head + (size_t)head) * (size_t)D, D);
        }
    }
}

/* Eight interleaved partial sums, folded in order. */
DW_FOR_VECTOR_UNITS static double dot(const float *a, const float *b, int n) {
    double lane[8] = {0}, sum = 0;
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) lane[j] += (double)a[i + j] * b[i + j];
    for (; i < n; i++) lane[i % 8] += (double)a[i] * b[i];
    for (int j = 0; j < 8; j++) sum += lane[j];
    return sum;
}

DW_FOR_VECTOR_UNITS static void accumulate(double *acc, double weight, const float *row, int n) {
    for (int j = 0; j < n; j++) acc[j] += weight * row[j];
}

void dw_ref_accumulate(double *acc, double weight, const float *row, int n) { accumulate(acc, weight, row, n); }

/* mix = sum over positions i <= pos of softmax_i(scale q.k_i) v_i, for one token and head. */
static void attend_head(dw_pass *p, int l, int t, int head, double *score) {
    const dw_layer *w = &p->net->layer[l];
    const int D = p->net->hp.head_dim, n = p->pos[t] + 1, kv_head = head / (w->n_head / w->n_head_kv);
    const float *q = p->q + ((size_t)t * (size_t)w->n_head + (size_t)head) * (size_t)D;
    const size_t base = dw_cache_at(p, l, p->seq[t], kv_head, 0);
    float row[DW_MAX_HEAD_DIM];
    double acc[DW_MAX_HEAD_DIM], max = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) {
        const float *k = from_cache(&p->cache, p->cache.k[l], base + (size_t)i * (size_t)D, row, D);
        score[i] = dot(q, k, D) * p->net->hp.attn_scale;
        if (score[i] > max) max = score[i];
    }
    for (int i = 0; i < n; i++) sum += score[i] = exp(score[i] - max);
    memset(acc, 0, (size_t)D * sizeof *acc);
    for (int i = 0; i < n; i++)
        accumulate(acc, score[i], from_cache(&p->cache, p->cache.v[l], base + (size_t)i * (size_t)D, row, D), D);
    float *mix = p->mix + ((size_t)t * (size_t)w->n_head + (size_t)head) * (size_t)D;
    for (int j = 0; j < D; j++) mix[j] = (float)(acc[j] / sum);
}

static void attend(dw_pass *p, int l, int ith) {
    const dw_ref_scratch *s = dw_ref_scratch_of(p, ith);
    const int n_head = p->net->layer[l].n_head;
    for (int i = ith; i < p->n_tokens * n_head; i += p->n_threads) attend_head(p, l, i / n_head, i % n_head, s->score);
}

static void attn_out(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    dw_ref_matrix(p, ith, (dw_ref_job){.w = &w->o, .bias = &w->o_bias, .x = p->mix, .out = dw_ref_add}, p->x);
}

/* ---- FFN: what the operators share (ffn_*.c) --------------------------------------------------------------- */

double dw_ref_act(dw_act act, double x) {
    switch (act) {
    case DW_GELU_TANH: return x / 2 * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case DW_RELU: return x < 0 ? 0 : x; // NaN gives NaN
    default: return x / (1 + exp(-x));  // silu
    }
}

typedef struct ffn_sink {
    dw_act act;
    float *gate, *neuron; // of the first row
    size_t n_ff;
} ffn_sink;

static void to_gate(void *ctx, size_t row, int token, double sum) {
    const ffn_sink *f = ctx;
    f->gate[(size_t)token * f->n_ff + row] = (float)dw_ref_act(f->act, sum);
}

static void to_neuron(void *ctx, size_t row, int token, double sum) {
    const ffn_sink *f = ctx;
    const size_t i = (size_t)token * f->n_ff + row;
    f->neuron[i] = (float)(f->gate[i] * sum);
}

/* Values first and following of a vector. */
static dw_tensor values_from(const dw_tensor *vector, size_t first) {
    dw_tensor t = *vector;
    if (t.name) t.data += first * sizeof(float);
    return t;
}

void dw_ref_neurons(dw_pass *p, int l, bool is_cold, dw_ref_rows rows, int ith) {
    const dw_layer *w = &p->net->layer[l];
    const dw_ref_scratch *s = dw_ref_scratch_of(p, ith);
    const size_t first = is_cold ? (size_t)(w->n_ff - w->n_cold) : 0;
    const dw_tensor gate_bias = values_from(&w->gate_bias, first), up_bias = values_from(&w->up_bias, first);
    ffn_sink f = {.act = p->net->act, .gate = p->gate + first, .neuron = p->neuron + first, .n_ff = (size_t)w->n_ff};
    dw_ref_product(s, &(dw_ref_job){.w = is_cold ? &w->gate_cold : &w->gate,
                                    .bias = &gate_bias,
                                    .rows = rows,
                                    .x = p->h,
                                    .n_tokens = p->n_tokens,
                                    .out = to_gate,
                                    .ctx = &f});
    dw_ref_product(s, &(dw_ref_job){.w = is_cold ? &w->up_cold : &w->up, .bias = &up_bias, .rows = rows, .x = p->h,
                                    .n_tokens = p->n_tokens, .out = to_neuron, .ctx = &f});
}

static void store_relu(void *ctx, size_t row, int token, double sum) { dw_ref_store(ctx, row, token, dw_relu(sum)); }

void dw_ref_hidden(dw_pass *p, int l, int ith) {
    const dw_layer_gate *g = &p->net->layer[l].sparse;
    dw_ref_matrix(p, ith, (dw_ref_job){.w = &g->pred_a, .bias = &g->pred_a_bias, .x = p->h, .out = store_relu},
                  dw_ref_scratch_of(p, ith)->hidden[l % 2]);
}

void dw_ref_end_neurons(dw_pass *p, int l, int ith, int n_counted) {
    if (ith == 0) dw_count_dense(p, l, n_counted, false);
    if (p->layer[l].gives_hidden) dw_ref_hidden(p, l + 1, ith);
}

void dw_ref_down(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    dw_ref_matrix(
        p, ith,
        (dw_ref_job){.w = &w->down, .bias = &w->down_bias, .x = p->neuron, .ldx = (size_t)w->n_ff, .out = dw_ref_add},
        p->x);
}

/* ---- head ------------------------------------------------------------------------------------------------ */

static void head_norm(dw_pass *p, const float *x, float *hidden_row, int ith) {
    (void)ith;
    rms_norm(x, &p->net->output_norm, p->net->hp.norm_eps, hidden_row);
}

static void logits(dw_pass *p, const dw_head *h, int ith) {
    const dw_tensor *w = &p->net->output;
    const size_t rows = w->ne[1];
    dw_ref_product(dw_ref_scratch_of(p, ith), &(dw_ref_job){.w = w,
                                                            .bias = &p->net->output_bias,
                                                            .rows = dw_ref_share(p, rows, ith),
                                                            .x = h->hidden,
                                                            .n_tokens = h->n,
                                                            .out = dw_ref_store,
                                                            .ctx = &(dw_ref_into){h->logits, rows}});
}

typedef struct softmax_sink { // running ln sum exp of one tile of rows
    double max[DW_REF_TILE], sum[DW_REF_TILE], target_logit[DW_REF_TILE];
    const int32_t *target;
} softmax_sink;

static void to_softmax(void *ctx, size_t row, int t, double logit) {
    softmax_sink *f = ctx;
    if (logit > f->max[t]) {
        f->sum[t] = f->sum[t] * exp(f->max[t] - logit) + 1;
        f->max[t] = logit;
    } else {
        f->sum[t] += exp(logit - f->max[t]);
    }
    if (row == (size_t)f->target[t]) f->target_logit[t] = logit;
}

static void logprobs(dw_pass *p, const dw_head *h, int ith) {
    const dw_tensor *w = &p->net->output;
    for (int t0 = ith * DW_REF_TILE; t0 < h->n; t0 += p->n_threads * DW_REF_TILE) {
        const int width = h->n - t0 < DW_REF_TILE ? h->n - t0 : DW_REF_TILE;
        softmax_sink f = {.target = h->target + t0};
        for (int t = 0; t < width; t++) f.max[t] = -INFINITY;
        dw_ref_product(dw_ref_scratch_of(p, ith), &(dw_ref_job){.w = w,
                                                                .bias = &p->net->output_bias,
                                                                .rows = {0, w->ne[1], NULL},
                                                                .x = h->hidden + (size_t)t0 * w->ne[0],
                                                                .n_tokens = width,
                                                                .out = to_softmax,
                                                                .ctx = &f});
        for (int t = 0; t < width; t++) h->logprob[t0 + t] = f.target_logit[t] - f.max[t] - log(f.sum[t]);
    }
}

/* ---- the table ------------------------------------------------------------------------------------------- */

static const dw_way only_way = {
    .embed = embed,
    .qkv = qkv,
    .attend = attend,
    .attn_out = attn_out,
    .ffn = DW_BY_REF,
    .head_norm = head_norm,
    .logits = logits,
    .logprobs = logprobs,
};

const dw_steps dw_steps_ref = {
    .way = {&only_way, &only_way}, .own_bytes = own_bytes, .start = start, .lay_out = lay_out};
