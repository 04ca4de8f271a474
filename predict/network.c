/* network.c - forward, backward and Adam of a predictor (network.h has the formulas). */
#include "predict/network.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ------------------------------------------------------------------------------------------------ */

int predict_network_init(predict_network *net, int n_in, int rank, int n_out, dw_err *err) {
    const size_t n_a = (size_t)rank * (size_t)n_in, n_b = (size_t)n_out * (size_t)rank;
    *net = (predict_network){
        .n_in = n_in, .rank = rank, .n_out = n_out, .n_params = n_a + n_b + (size_t)rank + (size_t)n_out};
    net->params = dw_alloc(net->n_params, sizeof *net->params, "a predictor", err);
    if (!net->params) return -1;
    net->a = net->params;
    net->a_bias = net->a + n_a;
    net->b = net->a_bias + rank;
    net->b_bias = net->b + n_b;
    return 0;
}

void predict_network_copy(predict_network *to, const predict_network *from) {
    memcpy(to->params, from->params, from->n_params * sizeof *from->params);
}

void predict_network_release(predict_network *net) {
    free(net->params);
    *net = (predict_network){0};
}

int predict_network_scratch_init(predict_network_scratch *s, const predict_network *net, int n_batch, dw_err *err) {
    const size_t n = (size_t)n_batch, rank = (size_t)net->rank, n_out = (size_t)net->n_out;
    *s = (predict_network_scratch){.n_batch = n_batch};
    s->hidden = dw_alloc(n * rank, sizeof *s->hidden, "a batch", err);
    s->d_hidden = dw_alloc(n * rank, sizeof *s->d_hidden, "a batch", err);
    s->score = dw_alloc(n * n_out, sizeof *s->score, "a batch", err);
    return s->hidden && s->d_hidden && s->score ? 0 : -1;
}

void predict_network_scratch_release(predict_network_scratch *s) {
    free(s->hidden), free(s->d_hidden), free(s->score);
    *s = (predict_network_scratch){0};
}

/* ---- forward ------------------------------------------------------------------------------------------------- */

/* y (n, rows) = x (n, cols) . m^T + bias. */
static void affine(const float *m, const float *bias, int rows, int cols, const float *x, int n, float *y) {
    for (int t = 0; t < n; t++) memcpy(y + (size_t)t * (size_t)rows, bias, (size_t)rows * sizeof *y);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, rows, cols, 1, x, cols, m, cols, 1, y, rows);
}

void predict_network_scores(const predict_network *net, const float *x, int n, predict_network_scratch *s) {
    affine(net->a, net->a_bias, net->rank, net->n_in, x, n, s->hidden);
    for (size_t i = 0; i < (size_t)n * (size_t)net->rank; i++) s->hidden[i] = s->hidden[i] > 0 ? s->hidden[i] : 0;
    affine(net->b, net->b_bias, net->n_out, net->rank, s->hidden, n, s->score);
}

/* ---- loss and backward ------------------------------------------------------------------------------------------ */

/* ln(1 + e^-s), and sigmoid(-s) in *miss. */
static float softplus(float s, float *miss) {
    const float e = expf(-fabsf(s));
    *miss = (s < 0 ? 1.0f : e) / (1 + e);
    return log1pf(e) + (s < 0 ? -s : 0.0f);
}

/* Loss of one token's scores, which become their derivatives times `scale`. */
static double token_loss(float *score, const uint16_t *share, int n_out, float price, float scale) {
    double sum = 0;
    for (int g = 0; g < n_out; g++) {
        const float s = score[g], gain = dw_f16_to_f32(share[g]) / price;
        float miss;
        const float loss = softplus(s, &miss); // if the group is open; if it is closed, loss + s
        sum += (double)gain * (double)loss + (double)(loss + s);
        score[g] = scale * (1 - miss - gain * miss);
    }
    return sum;
}

/* sum over rows of m (n, cols) */
static void add_rows(const float *m, int n, int cols, float *sum) {
    memset(sum, 0, (size_t)cols * sizeof *sum);
    for (int t = 0; t < n; t++)
        for (int i = 0; i < cols; i++) sum[i] += m[(size_t)t * (size_t)cols + (size_t)i];
}

/* From s->score, which holds derivatives. */
static void backward(const predict_network *net, const float *x, int n, predict_network_scratch *s,
                     predict_network *d) {
    const int rank = net->rank, n_out = net->n_out, n_in = net->n_in;
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n_out, rank, n, 1, s->score, n_out, s->hidden, rank, 0, d->b,
                rank);
    add_rows(s->score, n, n_out, d->b_bias);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, rank, n_out, 1, s->score, n_out, net->b, rank, 0,
                s->d_hidden, rank);
    for (size_t i = 0; i < (size_t)n * (size_t)rank; i++) s->d_hidden[i] = s->hidden[i] > 0 ? s->d_hidden[i] : 0;
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, rank, n_in, n, 1, s->d_hidden, rank, x, n_in, 0, d->a, n_in);
    add_rows(s->d_hidden, n, rank, d->a_bias);
}

double predict_network_loss(const predict_network *net, const predict_batch *b, predict_network_scratch *s,
                            predict_network *gradient) {
    const size_t n_out = (size_t)net->n_out;
    const double terms = (double)b->n * (double)n_out;
    double sum = 0;
    predict_network_scores(net, b->x, b->n, s);
    for (size_t t = 0; t < (size_t)b->n; t++)
        sum += token_loss(s->score + t * n_out, b->share + t * n_out, net->n_out, b->price, (float)(1 / terms));
    if (gradient) backward(net, b->x, b->n, s, gradient);
    return sum / terms;
}

/* ---- Adam -------------------------------------------------------------------------------------------------------- */

int predict_adam_init(predict_adam *a, const predict_network *net, double rate, double decay, dw_err *err) {
    *a = (predict_adam){.rate = rate, .decay = decay};
    a->mean = dw_alloc(net->n_params, sizeof *a->mean, "a predictor's moments", err);
    a->square = dw_alloc(net->n_params, sizeof *a->square, "a predictor's moments", err);
    return a->mean && a->square ? 0 : -1;
}

void predict_adam_release(predict_adam *a) {
    free(a->mean), free(a->square);
    *a = (predict_adam){0};
}

static void update(const predict_adam *a, float *p, const float *g, float *mean, float *square, size_t n,
                   double decay) {
    const double beta1 = 0.9, beta2 = 0.999;
    const float rate = (float)(a->rate / (1 - pow(beta1, a->step))), norm = (float)(1 / (1 - pow(beta2, a->step))),
                keep = (float)(1 - a->rate * decay);
    const float b1 = (float)beta1, c1 = (float)(1 - beta1), b2 = (float)beta2, c2 = (float)(1 - beta2);
    for (size_t i = 0; i < n; i++) {
        mean[i] = b1 * mean[i] + c1 * g[i];
        square[i] = b2 * square[i] + c2 * g[i] * g[i];
        p[i] = keep * p[i] - rate * mean[i] / (sqrtf(norm * square[i]) + 1e-8f);
    }
}

void predict_adam_step(predict_adam *a, predict_network *net, const predict_network *gradient) {
    const struct {
        const float *at, *end;
        double decay;
    } parts[] = {{net->a, net->a_bias, a->decay},
                 {net->a_bias, net->b, 0},
                 {net->b, net->b_bias, a->decay},
                 {net->b_bias, net->params + net->n_params, 0}};
    a->step++;
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
        const size_t first = (size_t)(parts[k].at - net->params), n = (size_t)(parts[k].end - parts[k].at);
        update(a, net->params + first, gradient->params + first, a->mean + first, a->square + first, n, parts[k].decay);
    }
}
