/* backward_ref.c - the arithmetic of the training pass, as a definition: one loop each, sums in double and in index
 * order.  The gradients of q, k and v in attention are the exception: each of their terms is computed in double and
 * added to an F32 value. */
#include "backends/backward.h"

#include <math.h>
#include <string.h>

typedef struct own { // of all threads: `width` values each
    size_t width;
    float *row;      // a decoded weight row
    double *sum, *p; // sums of a row; probabilities of a query
} own;

static void lay_out(dw_back_env *e, dw_layout *a, const dw_back_sizes *most) {
    const size_t n_threads = (size_t)dw_pool_size(e->pool), widest = (size_t)most->widest, n_ctx = (size_t)e->n_ctx;
    const size_t width = widest > n_ctx ? widest : n_ctx;
    own *o = dw_layout_take(a, 1, sizeof *o);
    float *row = dw_layout_take(a, n_threads, width * sizeof *row);
    double *sum = dw_layout_take(a, n_threads, width * sizeof *sum),
           *p = dw_layout_take(a, n_threads, width * sizeof *p);
    if (a->base) *o = (own){width, row, sum, p};
    e->own = o;
}

static int start(dw_back_env *e, dw_err *err) {
    (void)e, (void)err;
    return 0;
}

static float *row_of(const dw_back_env *e, int ith) {
    return ((const own *)e->own)->row + ((const own *)e->own)->width * (size_t)ith;
}
static double *sum_of(const dw_back_env *e, int ith) {
    return ((const own *)e->own)->sum + ((const own *)e->own)->width * (size_t)ith;
}
static double *p_of(const dw_back_env *e, int ith) {
    return ((const own *)e->own)->p + ((const own *)e->own)->width * (size_t)ith;
}

/* ---- products -------------------------------------------------------------------------------------------------- */

typedef struct product_job {
    const dw_back_env *e;
    const dw_tensor *w, *bias;
    const float *x, *dy;
    float *y, *dx, *dw;
    size_t n, n_in, n_out;
    bool add;
} product_job;

/* Thread ith's share of the outputs, for all tokens. */
static void linear_rows(void *job, int ith, int n_threads) {
    const product_job *j = job;
    float *row = row_of(j->e, ith);
    for (size_t i = (size_t)ith; i < j->n_out; i += (size_t)n_threads) {
        j->w->type->decode(j->w->data + i * dw_tensor_row_bytes(j->w), row, j->n_in);
        const double bias = j->bias && j->bias->name ? ((const float *)(const void *)j->bias->data)[i] : 0;
        for (size_t t = 0; t < j->n; t++) {
            double sum = bias;
            for (size_t k = 0; k < j->n_in; k++) sum += (double)row[k] * j->x[t * j->n_in + k];
            j->y[t * j->n_out + i] = (float)sum;
        }
    }
}

static void linear(const dw_back_env *e, const dw_back_linear *list, int n_list, const float *x, int n) {
    for (const dw_back_linear *l = list; l < list + n_list; l++)
        dw_pool_run(e->pool, linear_rows,
                    &(product_job){.e = e,
                                   .w = l->w,
                                   .bias = l->bias,
                                   .x = x,
                                   .y = l->y,
                                   .n = (size_t)n,
                                   .n_in = l->w->ne[0],
                                   .n_out = l->w->ne[1]});
}

/* dx_k = sum over i of dy_i w_ik, for thread ith's share of the tokens. */
static void linear_x_tokens(void *job, int ith, int n_threads) {
    const product_job *j = job;
    float *row = row_of(j->e, ith);
    double *sum = sum_of(j->e, ith);
    for (size_t t = (size_t)ith; t < j->n; t += (size_t)n_threads) {
        memset(sum, 0, j->n_in * sizeof *sum);
        for (size_t i = 0; i < j->n_out; i++) {
            j->w->type->decode(j->w->data + i * dw_tensor_row_bytes(j->w), row, j->n_in);
            for (size_t k = 0; k < j->n_in; k++) sum[k] += (double)j->dy[t * j->n_out + i] * row[k];
        }
        for (size_t k = 0; k < j->n_in; k++)
            j->dx[t * j->n_in + k] = (float)(sum[k] + (j->add ? j->dx[t * j->n_in + k] : 0));
    }
}

static void linear_x(const dw_back_env *e, const dw_tensor *w, const float *dy, int n, float *dx, bool add) {
    dw_pool_run(
        e->pool, linear_x_tokens,
        &(product_job){
            .e = e, .w = w, .dy = dy, .dx = dx, .n = (size_t)n, .n_in = w->ne[0], .n_out = w->ne[1], .add = add});
}

/* dw_ik += sum over tokens of dy_i x_k, for thread ith's share of the rows. */
static void linear_w_rows(void *job, int ith, int n_threads) {
    const product_job *j = job;
    double *sum = sum_of(j->e, ith);
    for (size_t i = (size_t)ith; i < j->n_out; i += (size_t)n_threads) {
        memset(sum, 0, j->n_in * sizeof *sum);
        for (size_t t = 0; t < j->n; t++)
            for (size_t k = 0; k < j->n_in; k++) sum[k] += (double)j->dy[t * j->n_out + i] * j->x[t * j->n_in + k];
        for (size_t k = 0; k < j->n_in; k++) j->dw[i * j->n_in + k] += (float)sum[k];
    }
}

static void linear_w(const dw_back_env *e, const float *x, int n_in, const float *dy, int n_out, int n, float *dw) {
    dw_pool_run(e->pool, linear_w_rows,
                &(product_job){
                    .e = e, .x = x, .dy = dy, .dw = dw, .n = (size_t)n, .n_in = (size_t)n_in, .n_out = (size_t)n_out});
}

/* ---- the gate -------------------------------------------------------------------------------------------------- */

/* act(x) and its slope. */
static double activation(dw_act act, double x, double *slope) {
    const double c = sqrt(2 / 3.14159265358979323846), t = tanh(c * (x + 0.044715 * x * x * x)), s = 1 / (1 + exp(-x));
    switch (act) {
    case DW_GELU_TANH:
        *slope = (1 + t) / 2 + x / 2 * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
        return x / 2 * (1 + t);
    case DW_RELU: *slope = x > 0; return x < 0 ? 0 : x; // NaN gives NaN
    default: *slope = s * (1 + x * (1 - s)); return x * s;
    }
}

static void glu(const dw_back_env *e, const float *g, const float *u, size_t n, float *a) {
    double slope;
    for (size_t i = 0; i < n; i++) a[i] = (float)(activation(e->net->act, g[i], &slope) * u[i]);
}

static void glu_back(const dw_back_env *e, const float *da, size_t n, float *g, float *u) {
    for (size_t i = 0; i < n; i++) {
        double slope;
        const double act = activation(e->net->act, g[i], &slope);
        g[i] = (float)(slope * da[i] * u[i]);
        u[i] = (float)(act * da[i]);
    }
}

/* ---- attention ------------------------------------------------------------------------------------------------- */

typedef struct attend_job {
    const dw_back_env *e;
    const dw_back_attention *a;
} attend_job;

static double dot(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

/* Window, position and head of query i of a pass, and the offsets of its rows. */
typedef struct query {
    size_t first, t, D;  // the window's first token; the token
    size_t at, row;      // of q, mix: values before it; of lse
    size_t kv, kv_width; // of k and v: values before token 0's head; values of a token
} query;

static query query_of(const attend_job *j, size_t i) {
    const size_t n_head = (size_t)j->a->n_head, n_kv = (size_t)j->a->n_head_kv, D = (size_t)j->e->net->hp.head_dim;
    const size_t t = i / n_head, head = i % n_head, n_ctx = (size_t)j->e->n_ctx;
    return (query){t / n_ctx * n_ctx, t, D, (t * n_head + head) * D, i, head / (n_head / n_kv) * D, n_kv * D};
}

/* p_m = softmax of scale q.k over the positions that the query sees. */
static void probabilities(const attend_job *j, query q, double *p, double lse) {
    for (size_t m = q.first; m <= q.t; m++) {
        const double s = dot(j->a->q + q.at, j->a->k + m * q.kv_width + q.kv, q.D) * j->e->net->hp.attn_scale;
        p[m - q.first] = exp(s - lse);
    }
}

static double log_sum_exp(const attend_job *j, query q) {
    double max = -INFINITY, sum = 0;
    for (int pass = 0; pass < 2; pass++)
        for (size_t m = q.first; m <= q.t; m++) {
            const double s = dot(j->a->q + q.at, j->a->k + m * q.kv_width + q.kv, q.D) * j->e->net->hp.attn_scale;
            if (pass)
                sum += exp(s - max);
            else if (s > max)
                max = s;
        }
    return max + log(sum);
}

static void attend_queries(void *job, int ith, int n_threads) {
    const attend_job *j = job;
    const size_t n = (size_t)j->a->n_seq * (size_t)j->e->n_ctx * (size_t)j->a->n_head;
    double *p = p_of(j->e, ith);
    for (size_t i = (size_t)ith; i < n; i += (size_t)n_threads) {
        const query q = query_of(j, i);
        j->a->lse[q.row] = (float)log_sum_exp(j, q);
        probabilities(j, q, p, j->a->lse[q.row]);
        for (size_t c = 0; c < q.D; c++) {
            double sum = 0;
            for (size_t m = q.first; m <= q.t; m++) sum += p[m - q.first] * j->a->v[m * q.kv_width + q.kv + c];
            j->a->mix[q.at + c] = (float)sum;
        }
    }
}

static void attend(const dw_back_env *e, const dw_back_attention *a) {
    dw_pool_run(e->pool, attend_queries, &(attend_job){e, a});
}

/* The gradients of one query: dq is set; its shares are added to dk and dv. */
static void query_back(const attend_job *j, query q, double *p) {
    const dw_back_attention *a = j->a;
    const double scale = j->e->net->hp.attn_scale, D = dot(a->dmix + q.at, a->mix + q.at, q.D);
    probabilities(j, q, p, a->lse[q.row]);
    memset(a->dq + q.at, 0, q.D * sizeof *a->dq);
    for (size_t m = q.first; m <= q.t; m++) {
        const size_t kv = m * q.kv_width + q.kv;
        const double weight = p[m - q.first], ds = scale * weight * (dot(a->dmix + q.at, a->v + kv, q.D) - D);
        for (size_t c = 0; c < q.D; c++) {
            a->dv[kv + c] += (float)(weight * a->dmix[q.at + c]);
            a->dq[q.at + c] += (float)(ds * a->k[kv + c]);
            a->dk[kv + c] += (float)(ds * a->q[q.at + c]);
        }
    }
}

/* A KV head of a window is one thread's, because the queries that share it add to the same dk and dv. */
static void attend_back_heads(void *job, int ith, int n_threads) {
    const attend_job *j = job;
    const size_t n_head = (size_t)j->a->n_head, n_kv = (size_t)j->a->n_head_kv, group = n_head / n_kv,
                 n_ctx = (size_t)j->e->n_ctx;
    for (size_t i = (size_t)ith; i < (size_t)j->a->n_seq * n_kv; i += (size_t)n_threads)
        for (size_t t = i / n_kv * n_ctx; t < (i / n_kv + 1) * n_ctx; t++)
            for (size_t head = i % n_kv * group; head < (i % n_kv + 1) * group; head++)
                query_back(j, query_of(j, t * n_head + head), p_of(j->e, ith));
}

static void attend_back(const dw_back_env *e, const dw_back_attention *a) {
    const size_t n = (size_t)a->n_seq * (size_t)e->n_ctx * (size_t)a->n_head_kv * (size_t)e->net->hp.head_dim;
    memset(a->dk, 0, n * sizeof *a->dk);
    memset(a->dv, 0, n * sizeof *a->dv);
    dw_pool_run(e->pool, attend_back_heads, &(attend_job){e, a});
}

/* ---- the loss -------------------------------------------------------------------------------------------------- */

/* ln of the sum of exp(x_i / temperature) */
static double log_sum(const float *x, int n, double temperature) {
    double max = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++)
        if (x[i] / temperature > max) max = x[i] / temperature;
    for (int i = 0; i < n; i++) sum += exp(x[i] / temperature - max);
    return max + log(sum);
}

/* Loss and gradient of row r. */
static void softmax_row(const dw_back_softmax *s, size_t r) {
    const double tau = s->temperature;
    const float *teacher = s->teacher ? s->teacher + r * (size_t)s->n_vocab : NULL;
    float *z = s->logits + r * (size_t)s->n_vocab;
    const double all_p = teacher ? log_sum(teacher, s->n_vocab, tau) : 0,
                 all_q = teacher ? log_sum(z, s->n_vocab, tau) : 0;
    const double all = log_sum(z, s->n_vocab, 1);
    const bool has_target = s->target[r] >= 0;
    double kl = 0;
    s->nll[r] = has_target ? all - z[s->target[r]] : 0;
    for (int i = 0; i < s->n_vocab; i++) {
        double grad = has_target ? s->ce * (exp(z[i] - all) - (i == s->target[r])) : 0;
        if (teacher) {
            const double ln_p = teacher[i] / tau - all_p, ln_q = z[i] / tau - all_q;
            kl += exp(ln_p) * (ln_p - ln_q);
            grad += (1 - s->ce) * tau * (exp(ln_q) - exp(ln_p));
        }
        if (s->scale != 0) z[i] = (float)(s->scale * grad);
    }
    s->kl[r] = tau * tau * kl;
}

static void softmax_rows(void *job, int ith, int n_threads) {
    const dw_back_softmax *s = job;
    for (int r = ith; r < s->n; r += n_threads) {
        s->kl[r] = s->nll[r] = 0;
        if (s->counts[r])
            softmax_row(s, (size_t)r);
        else if (s->scale != 0)
            memset(s->logits + (size_t)r * (size_t)s->n_vocab, 0, (size_t)s->n_vocab * sizeof *s->logits);
    }
}

static void softmax(const dw_back_env *e, const dw_back_softmax *s) {
    dw_back_softmax copy = *s;
    dw_pool_run(e->pool, softmax_rows, &copy);
}

/* The tokens of a row that the coarse teacher knows are left out of the sum by -INFINITY. */
static void spread_rows(void *job, int ith, int n_threads) {
    const dw_back_spread *s = job;
    const double tau = s->temperature;
    const size_t k = (size_t)s->from.k, n_vocab = (size_t)s->n_vocab;
    for (size_t r = (size_t)ith; r < (size_t)s->n; r += (size_t)n_threads) {
        const int32_t *token = s->from.token + r * k;
        const float *z = s->logits + r * n_vocab;
        float *out = s->out + r * n_vocab;
        memcpy(out, z, n_vocab * sizeof *out);
        for (size_t i = 0; i < k; i++) out[token[i]] = -INFINITY;
        const double shift = k < n_vocab ? s->from.rest[r] - log_sum(out, s->n_vocab, tau) : 0;
        for (size_t i = 0; i < n_vocab; i++) out[i] = (float)(z[i] + tau * shift);
        for (size_t i = 0; i < k; i++) out[token[i]] = (float)(tau * s->from.logprob[r * k + i]);
    }
}

static void spread(const dw_back_env *e, const dw_back_spread *s) {
    dw_back_spread copy = *s;
    dw_pool_run(e->pool, spread_rows, &copy);
}

const dw_back_ops dw_back_ops_ref = {.lay_out = lay_out,
                                     .start = start,
                                     .linear = linear,
                                     .linear_x = linear_x,
                                     .linear_w = linear_w,
                                     .glu = glu,
                                     .glu_back = glu_back,
                                     .attend = attend,
                                     .attend_back = attend_back,
                                     .spread = spread,
                                     .softmax = softmax};
