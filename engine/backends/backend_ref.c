/* backend_ref.c - the fused steps, as a definition.
 *
 * Every sum runs in double and in index order (dot products of attention: in eight interleaved partial sums).  So the
 * result is the same for every number of threads and every batching, and on every machine except for the last bits
 * of libm (exp, tanh, pow, cos, sin).  A product works on a tile of tokens at a time, with tokens in the inner loop: that keeps the order of
 * each sum and still fills vector registers. */
#include "backends/gate_decide.h"

#include <math.h>
#include <string.h>

enum { TILE = 32, ROWS = 4 }; // tokens that share a decoded weight row, and rows that share a tile of tokens

/* What a thread works with: its own memory, then what all threads share. */
typedef struct scratch {
    double *xt;          // (n, TILE): a tile of inputs, transposed
    float *rows;         // (ROWS, n): decoded weight rows
    double *score;       // (n_ctx): attention
    float *k, *v;        // (n_batch, n_head_kv * head_dim), shared: before they go to the cache
    float *hidden[2];    // (n_batch, rank), shared: predictors' z of layers of even and odd number
    uint8_t *open;       // (n_batch, n_groups), shared: flags
} scratch;

static size_t longest_row(const dw_net *net) {
    const int lengths[] = {net->hp.n_embd, net->hp.n_head_max * net->hp.head_dim, net->hp.n_ff_max, dw_gate_sizes_of(net).rank};
    int n = 0;
    for (int i = 0; i < 4; i++)
        if (lengths[i] > n) n = lengths[i];
    return (size_t)n;
}

static size_t own_bytes(int n_threads) { return (size_t)n_threads * sizeof(scratch); }

static int start(dw_pass *p, const dw_session_options *o, dw_err *err) {
    (void)p, (void)o, (void)err;
    return 0;
}

static void lay_out(dw_pass *p, dw_layout *a, const dw_session_options *o) {
    const size_t rows = (size_t)o->n_batch, n = longest_row(p->net), n_kv = rows * (size_t)p->net->hp.n_head_kv_max * (size_t)p->net->hp.head_dim;
    const dw_gate_sizes most = dw_gate_sizes_of(p->net);
    scratch *thread = p->own, all = {0};
    all.k = dw_layout_take(a, n_kv, sizeof *all.k);
    all.v = dw_layout_take(a, n_kv, sizeof *all.v);
    for (int i = 0; i < 2; i++) all.hidden[i] = dw_layout_take(a, rows * (size_t)most.rank, sizeof *all.hidden[i]);
    all.open = dw_layout_take(a, rows, (size_t)most.n_groups);
    for (int i = 0; i < p->n_threads; i++) {
        thread[i] = all;
        thread[i].xt = dw_layout_take(a, n, TILE * sizeof(double));
        thread[i].rows = dw_layout_take(a, n, ROWS * sizeof(float));
        thread[i].score = dw_layout_take(a, (size_t)o->n_ctx, sizeof(double));
    }
}

static const scratch *scratch_of(const dw_pass *p, int ith) { return (const scratch *)p->own + ith; }

/* ---- products -------------------------------------------------------------------------------------- */

/* acc[r][t] = sum over k of rows[r][k] * xt[k][t], each sum in the order of k.  Products of two F32 are exact. */
static inline __attribute__((always_inline)) void tile_sums(const float *rows, const double *restrict xt, size_t n, int width,
                                                            double (*restrict acc)[TILE]) {
    double sum[ROWS][TILE] = {0};
    for (size_t k = 0; k < n; k++)
        for (int r = 0; r < ROWS; r++)
            for (int t = 0; t < width; t++) sum[r][t] += (double)rows[(size_t)r * n + k] * xt[k * (size_t)width + (size_t)t];
    memcpy(acc, sum, sizeof sum);
}

/* The same arithmetic for every width of the vector unit, because contraction is off and lanes are tokens.  (Not
 * under the thread sanitizer: the choice between clones runs before the sanitizer is ready.) */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define FOR_VECTOR_UNITS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_VECTOR_UNITS
#endif

FOR_VECTOR_UNITS static void sums_of_tile(const float *rows, const double *xt, size_t n, double (*acc)[TILE]) {
    tile_sums(rows, xt, n, TILE, acc);
}

FOR_VECTOR_UNITS static void sums_of_one(const float *rows, const double *xt, size_t n, double (*acc)[TILE]) { tile_sums(rows,
                                                            xt, n, 1, acc); }

/* Receives the sums of a product: out(ctx, row, token, sum + bias). */
typedef void (*sink)(void *ctx, size_t row, int token, double sum);

static float at(const dw_tensor *vector, size_t i) {
    float f;
    memcpy(&f, vector->data + i * sizeof f, sizeof f);
    return f;
}

typedef struct row_range { // rows first .. end - 1, or of a list the entries first .. end - 1
    size_t first, end;
    const int32_t *list;
} row_range;

/* out(ctx, r, t, w_r . x_t + bias_r) for the rows r and all tokens of x (n_tokens, w->ne[0]), rows of x ldx apart. */
static void product_of(const scratch *s, const dw_tensor *w, const dw_tensor *bias, row_range range, const float *x,
                       size_t ldx, int n_tokens,
                       sink out, void *ctx) {
    const size_t n = w->ne[0];
    double acc[ROWS][TILE];
    for (int t0 = 0; t0 < n_tokens; t0 += TILE) {
        const int left = n_tokens - t0, width = left < TILE ? left : TILE, padded = width == 1 ? 1 : TILE;
        for (size_t k = 0; k < n; k++)
            for (int t = 0; t < padded; t++) s->xt[k * (size_t)padded + (size_t)t] = t < width ? x[(size_t)(t0 + t) * ldx + k] : 0;
        for (size_t i = range.first; i < range.end; i += ROWS) {
            size_t row[ROWS];
            const size_t n_rows = range.end - i < ROWS ? range.end - i : ROWS;
            for (size_t r = 0; r < n_rows; r++) {
                row[r] = range.list ? (size_t)range.list[i + r] : i + r;
                w->type->decode(w->data + row[r] * dw_tensor_row_bytes(w), s->rows + r * n, n);
            }
            if (padded == 1) sums_of_one(s->rows, s->xt, n, acc); // rows from n_rows on: old values, unused
            else sums_of_tile(s->rows, s->xt, n, acc);
            for (size_t r = 0; r < n_rows; r++) {
                const double b = bias && bias->name ? at(bias, row[r]) : 0;
                for (int t = 0; t < width; t++) out(ctx, row[r], t0 + t, acc[r][t] + b);
            }
        }
    }
}

static void product(const scratch *s, const dw_tensor *w, const dw_tensor *bias, row_range range, const float *x, int n_tokens, sink out,
                    void *ctx) {
    product_of(s, w, bias, range, x, w->ne[0], n_tokens, out, ctx);
}

typedef struct matrix_sink {
    float *y;
    size_t stride;
} matrix_sink;

static void store(void *ctx, size_t row, int token, double sum) {
    const matrix_sink *m = ctx;
    m->y[(size_t)token * m->stride + row] = (float)sum;
}

static void add(void *ctx, size_t row, int token, double sum) {
    const matrix_sink *m = ctx;
    m->y[(size_t)token * m->stride + row] += (float)sum;
}

/* Thread ith's share of n rows. */
static row_range share(const dw_pass *p, size_t n, int ith) {
    const size_t n_threads = (size_t)p->n_threads;
    return (row_range){n * (size_t)ith / n_threads, n * (size_t)(ith + 1) / n_threads, NULL};
}

static void matrix(dw_pass *p, const dw_tensor *w, const dw_tensor *bias, const float *x, sink out, float *y, int ith) {
    const scratch *s = scratch_of(p, ith);
    const size_t rows = w->ne[1];
    product(s, w, bias, share(p, rows, ith), x, p->n_tokens, out, &(matrix_sink){y, rows});
}

/* ---- steps --------------------------------------------------------------------------------------------- */

/* y = x / rms(x) * weight (Zhang & Sennrich 2019). */
static void rms_norm(const float *x, const dw_tensor *weight, float eps, float *y) {
    const size_t n = weight->ne[0];
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    const double scale = 1 / sqrt(sum / (double)n + eps);
    for (size_t i = 0; i < n; i++) y[i] = (float)(x[i] * scale * at(weight, i));
}

static void norm_tokens(dw_pass *p, const dw_tensor *weight, int ith) {
    const size_t d = (size_t)p->net->hp.n_embd;
    for (int t = ith; t < p->n_tokens; t += p->n_threads) rms_norm(p->x + (size_t)t * d, weight, p->net->hp.norm_eps, p->h + (size_t)t * d);
    dw_pool_barrier(p->pool);
}

static void embed(dw_pass *p, int ith) {
    const dw_tensor *w = &p->net->token_embd;
    const float scale = p->net->embd_scale != 0 ? p->net->embd_scale : 1;
    for (int t = ith; t < p->n_tokens; t += p->n_threads) {
        float *x = p->x + (size_t)t * w->ne[0];
        w->type->decode(w->data + (size_t)p->token[t] * dw_tensor_row_bytes(w), x, w->ne[0]);
        for (size_t i = 0; scale != 1 && i < w->ne[0]; i++) x[i] *= scale;
    }
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
    for (int i = 0; i < n; i++) {
        if (c->type == DW_KV_CACHE_F32) ((float *)array)[first + (size_t)i] = v[i];
        else ((uint16_t *)array)[first + (size_t)i] = dw_f32_to_f16(v[i]);
    }
}

/* n values of the cache as F32: a pointer into it, or converted into row. */
static const float *from_cache(const dw_cache *c, const void *array, size_t first, float *row, int n) {
    if (c->type == DW_KV_CACHE_F32) return (const float *)array + first;
    for (int i = 0; i < n; i++) row[i] = dw_f16_to_f32(((const uint16_t *)array)[first + (size_t)i]);
    return row;
}

static size_t cache_row(const dw_pass *p, int l, int seq, int head, int pos) {
    const size_t heads = (size_t)p->net->layer[l].n_head_kv;
    return (((size_t)seq * heads + (size_t)head) * (size_t)p->cache.n_ctx + (size_t)pos) * (size_t)p->net->hp.head_dim;
}

static void qkv(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    const dw_hparams *hp = &p->net->hp;
    const int D = hp->head_dim;
    norm_tokens(p, &w->attn_norm, ith);
    matrix(p, &w->q, &w->q_bias, p->h, store, p->q, ith);
    const scratch *s = scratch_of(p, ith);
    matrix(p, &w->k, &w->k_bias, p->h, store, s->k, ith);
    matrix(p, &w->v, &w->v_bias, p->h, store, s->v, ith);
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
            const size_t slot = cache_row(p, l, p->seq[t], head, p->pos[t]);
            to_cache(&p->cache, p->cache.k[l], slot, row, D);
            to_cache(&p->cache, p->cache.v[l], slot, s->v + ((size_t)t * (size_t)n_head + (size_t)head) * (size_t)D, D);
        }
    }
}

/* Eight interleaved partial sums, folded in order. */
FOR_VECTOR_UNITS static double dot(const float *a, const float *b, int n) {
    double lane[8] = {0}, sum = 0;
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) lane[j] += (double)a[i + j] * b[i + j];
    for (; i < n; i++) lane[i % 8] += (double)a[i] * b[i];
    for (int j = 0; j < 8; j++) sum += lane[j];
    return sum;
}

FOR_VECTOR_UNITS static void accumulate(double *acc, double weight, const float *row, int n) {
    for (int j = 0; j < n; j++) acc[j] += weight * row[j];
}

/* mix = sum over positions i <= pos of softmax_i(scale q.k_i) v_i, for one token and head. */
static void attend_head(dw_pass *p, int l, int t, int head, double *score) {
    const dw_layer *w = &p->net->layer[l];
    const int D = p->net->hp.head_dim, n = p->pos[t] + 1, kv_head = head / (w->n_head / w->n_head_kv);
    const float *q = p->q + ((size_t)t * (size_t)w->n_head + (size_t)head) * (size_t)D;
    const size_t base = cache_row(p, l, p->seq[t], kv_head, 0);
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
    const scratch *s = scratch_of(p, ith);
    const int n_head = p->net->layer[l].n_head;
    for (int i = ith; i < p->n_tokens * n_head; i += p->n_threads) attend_head(p, l, i / n_head, i % n_head, s->score);
}

static void attn_out(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    matrix(p, &w->o, &w->o_bias, p->mix, add, p->x, ith);
}

static double activation(dw_act act, double x) {
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
    bool is_up; // first gate, then up
    const uint8_t *open; // flags of a gated layer; NULL: all are open
    size_t n_groups, group;
} ffn_sink;

static void to_neurons(void *ctx, size_t row, int token, double sum) {
    const ffn_sink *f = ctx;
    const size_t i = (size_t)token * f->n_ff + row;
    if (f->is_up) f->neuron[i] = !f->open || f->open[(size_t)token * f->n_groups + row / f->group] ? (float)(f->gate[i] * sum) : 0;
    else f->gate[i] = (float)activation(f->act, sum);
}

/* Values first and following of a vector. */
static dw_tensor values_from(const dw_tensor *vector, size_t first) {
    dw_tensor t = *vector;
    if (t.name) t.data += first * sizeof(float);
    return t;
}

/* The neurons of one pair of matrices: the layer's, or its cold ones. */
static void neurons_of(dw_pass *p, const dw_layer *w, bool is_cold, row_range rows, int ith) {
    const scratch *s = scratch_of(p, ith);
    const size_t first = is_cold ? (size_t)(w->n_ff - w->n_cold) : 0;
    ffn_sink f = {.act = p->net->act, .gate = p->gate + first, .neuron = p->neuron + first, .n_ff = (size_t)w->n_ff};
    for (int up = 0; up < 2; up++) {
        const dw_tensor *m = up ? is_cold ? &w->up_cold : &w->up : is_cold ? &w->gate_cold : &w->gate;
        const dw_tensor bias = values_from(up ? &w->up_bias : &w->gate_bias, first);
        f.is_up = up;
        product(s, m, &bias, rows, p->h, p->n_tokens, to_neurons, &f);
    }
}

static void store_relu(void *ctx, size_t row, int token, double sum) { store(ctx, row, token, sum > 0 ? sum : 0); }

/* z = relu(A h + a) for the predictor of layer l, from the FFN's input at hand. */
static void hidden(dw_pass *p, int l, int ith) {
    const dw_layer_gate *g = &p->net->layer[l].sparse;
    matrix(p, &g->pred_a, &g->pred_a_bias, p->h, store_relu, scratch_of(p, ith)->hidden[l % 2], ith);
}

static void finish_neurons(dw_pass *p, int l, int ith, int n_counted) {
    if (ith == 0 && !dw_ffn_is_gated(p->layer[l].kind)) dw_count_dense(p, l, n_counted, false);
    if (p->layer[l].gives_hidden) hidden(p, l + 1, ith);
}

static void dense_neurons(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    norm_tokens(p, &w->ffn_norm, ith);
    neurons_of(p, w, false, share(p, (size_t)w->n_ff, ith), ith);
    finish_neurons(p, l, ith, w->n_ff);
}

static void two_part_neurons(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    norm_tokens(p, &w->ffn_norm, ith);
    neurons_of(p, w, false, share(p, (size_t)(w->n_ff - w->n_cold), ith), ith);
    neurons_of(p, w, true, share(p, (size_t)w->n_cold, ith), ith);
    finish_neurons(p, l, ith, w->n_ff);
}

/* Neurons that are not in the list are zero. */
static void listed_neurons(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    const dw_bound *b = &p->layer[l];
    const size_t n_ff = (size_t)w->n_ff;
    row_range rows = share(p, (size_t)b->n_list, ith);
    rows.list = b->list;
    for (int t = ith; t < p->n_tokens; t += p->n_threads) {
        memset(p->gate + (size_t)t * n_ff, 0, n_ff * sizeof *p->gate);
        memset(p->neuron + (size_t)t * n_ff, 0, n_ff * sizeof *p->neuron);
    }
    norm_tokens(p, &w->ffn_norm, ith); // its barrier also comes after the zeros
    neurons_of(p, w, false, rows, ith);
    finish_neurons(p, l, ith, b->n_list);
}

/* ---- gated layers (gate_decide.h) -------------------------------------------------------------------------------- */

typedef struct flag_sink {
    uint8_t *open;
    size_t n_groups;
} flag_sink;

static void to_flags(void *ctx, size_t row, int token, double score) {
    const flag_sink *f = ctx;
    f->open[(size_t)token * f->n_groups + row] = score >= 0;
}

/* Zeros the gates of closed groups: with a predictor they are not computed. */
static void close_gates(float *gate, const uint8_t *open, int n_ff, int group) {
    for (int j = 0; j < n_ff; j++)
        if (!open[j / group]) gate[j] = 0;
}

/* All gates, a decision for each token, up of the open groups.  With a predictor only gates of open groups are kept. */
static void gated_neurons(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    const dw_layer_gate *g = &w->sparse;
    const scratch *s = scratch_of(p, ith);
    const size_t n_ff = (size_t)w->n_ff, n_groups = (size_t)dw_n_groups(w);
    const row_range rows = share(p, n_ff, ith);
    dw_coverage *count = dw_coverage_of(p, l, ith);
    ffn_sink f = {.act = p->net->act, .gate = p->gate, .neuron = p->neuron, .n_ff = n_ff, .open = s->open,
                  .n_groups = n_groups, .group = (size_t)g->group};
    norm_tokens(p, &w->ffn_norm, ith);
    if (p->layer[l].needs_hidden) {
        hidden(p, l, ith);
        dw_pool_barrier(p->pool);
    }
    if (g->pred_a.name)
        product(s, &g->pred_b, &g->pred_b_bias, share(p, n_groups, ith), s->hidden[l % 2], p->n_tokens, to_flags,
                &(flag_sink){s->open, n_groups});
    product(s, &w->gate, &w->gate_bias, rows, p->h, p->n_tokens, to_neurons, &f);
    dw_pool_barrier(p->pool);
    for (int t = ith; t < p->n_tokens; t += p->n_threads) {
        uint8_t *open = s->open + (size_t)t * n_groups;
        count->n_open += (uint64_t)dw_decide(p, l, t, 0, (int)n_groups, open);
        count->n_tokens++;
        if (g->pred_a.name) close_gates(p->gate + (size_t)t * n_ff, open, w->n_ff, g->group);
    }
    dw_pool_barrier(p->pool);
    f.is_up = true;
    product(s, &w->up, &w->up_bias, rows, p->h, p->n_tokens, to_neurons, &f);
    finish_neurons(p, l, ith, 0);
}

/* x += sum over neurons j of a_j d_j, for the columns of this thread: whole blocks of the rows d_j. */
static void add_open_rows(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    const dw_tensor *d = &w->sparse.down_t;
    const scratch *s = scratch_of(p, ith);
    const size_t n = d->ne[0], n_ff = (size_t)w->n_ff, block = (size_t)d->type->block;
    const row_range columns = share(p, n / block, ith);
    const size_t first = columns.first * block, n_here = columns.end * block - first;
    for (int t0 = 0; t0 < p->n_tokens; t0 += TILE) {
        const int width = p->n_tokens - t0 < TILE ? p->n_tokens - t0 : TILE;
        memset(s->xt, 0, (size_t)width * n_here * sizeof *s->xt);
        for (size_t j = 0; j < n_ff; j++) {
            d->type->decode(d->data + j * dw_tensor_row_bytes(d) + dw_qtype_row_bytes(d->type, first), s->rows, n_here);
            for (int t = 0; t < width; t++) {
                const float a = p->neuron[(size_t)(t0 + t) * n_ff + j];
                if (a != 0) accumulate(s->xt + (size_t)t * n_here, (double)a, s->rows, (int)n_here);
            }
        }
        for (int t = 0; t < width; t++)
            for (size_t i = 0; i < n_here; i++) {
                const double bias = w->down_bias.name ? at(&w->down_bias, first + i) : 0;
                p->x[(size_t)(t0 + t) * n + first + i] += (float)(s->xt[(size_t)t * n_here + i] + bias);
            }
    }
}

/* x += Wdown neuron, for the rows of this thread. */
static void add_down(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    const size_t d = w->down.ne[1];
    product_of(scratch_of(p, ith), &w->down, &w->down_bias, share(p, d, ith), p->neuron, (size_t)w->n_ff, p->n_tokens, add,
               &(matrix_sink){p->x, d});
}

static void add_both_downs(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    const size_t d = w->down.ne[1];
    add_down(p, l, ith);
    product_of(scratch_of(p, ith), &w->down_cold, NULL, share(p, d, ith), p->neuron + w->down.ne[0], (size_t)w->n_ff, p->n_tokens, add,
               &(matrix_sink){p->x, d});
}

/* ---- head ------------------------------------------------------------------------------------------------ */

static void head_norm(dw_pass *p, const float *x, float *hidden_row, int ith) {
    (void)ith;
    rms_norm(x, &p->net->output_norm, p->net->hp.norm_eps, hidden_row);
}

static void logits(dw_pass *p, const dw_head *h, int ith) {
    const dw_tensor *w = &p->net->output;
    const size_t rows = w->ne[1];
    product(scratch_of(p, ith), w, &p->net->output_bias, share(p, rows, ith), h->hidden, h->n, store, &(matrix_sink){h->logits, rows});
}

typedef struct softmax_sink { // running ln sum exp of one tile of rows
    double max[TILE], sum[TILE], target_logit[TILE];
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
    for (int t0 = ith * TILE; t0 < h->n; t0 += p->n_threads * TILE) {
        const int width = h->n - t0 < TILE ? h->n - t0 : TILE;
        softmax_sink f = {.target = h->target + t0};
        for (int t = 0; t < width; t++) f.max[t] = -INFINITY;
        product(scratch_of(p, ith), w, &p->net->output_bias, (row_range){0, w->ne[1], NULL}, h->hidden + (size_t)t0 * w->ne[0],
                width, to_softmax, &f);
        for (int t = 0; t < width; t++) h->logprob[t0 + t] = f.target_logit[t] - f.max[t] - log(f.sum[t]);
    }
}

/* ---- the table ------------------------------------------------------------------------------------------- */

static const dw_way only_way = {
    .embed = embed,
    .qkv = qkv,
    .attend = attend,
    .attn_out = attn_out,
    .ffn = {[DW_FFN_DENSE] = {NULL, dense_neurons, add_down},
            [DW_FFN_TWO_PART] = {NULL, two_part_neurons, add_both_downs},
            [DW_FFN_LIST] = {NULL, listed_neurons, add_down},
            [DW_FFN_GATED] = {NULL, gated_neurons, add_open_rows},
            [DW_FFN_MASKED] = {NULL, gated_neurons, add_open_rows},
            [DW_FFN_GATHERED] = {NULL, gated_neurons, add_open_rows}},
    .head_norm = head_norm,
    .logits = logits,
    .logprobs = logprobs,
};

const dw_steps dw_steps_ref = {.way = {&only_way, &only_way}, .own_bytes = own_bytes, .start = start, .lay_out = lay_out};
