/* bench_backward.c - a step of healing beside the operations that it needs and the rates of matrix products here.
 *
 *     make build/bench_backward && build/bench_backward M.gguf [WINDOWS [STEPS [THREADS]]]
 *
 * One thread by default; its times are the process's own processor time, so that a busy machine matters little.  Times
 * of several threads are those of the clock, times their number.  The model is its own teacher; the layers' values are
 * kept for the backward pass.  Operations are multiplies and adds of products with weight matrices, of the head's too,
 * and of attention's causal half.  Rates:
 *   - the inner loop alone (dw_train_rate, all threads, before and after all steps);
 *   - the training pass's own whole products of a step's matrices (bench_own_gemm.h, all threads, before each step);
 *   - OpenBLAS's sgemm (1024 x 1024 x 1024, one thread, before each step);
 *   - where oneDNN is installed, its products in BF16 of a step's own matrices and of large ones (bench_peer_gemm.h,
 *     all threads, before each step).  On several threads OMP_WAIT_POLICY=active can make these faster. */
#include "bench_own_gemm.h"
#include "bench_peer_gemm.h"
#include "kit/blas.h"
#include "model/model.h"
#include "model/optimizer.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { N_CTX = 512, GEMM = 1024, MOST = 64 };

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double seconds_now(int n_threads) { return n_threads == 1 ? cpu_seconds() : n_threads * dw_now(); }

static double gemm_rate(const float *a, const float *b, float *c) {
    const double began = cpu_seconds();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, GEMM, GEMM, GEMM, 1, a, GEMM, b, GEMM, 0, c, GEMM);
    return 2.0 * GEMM * GEMM * GEMM / (cpu_seconds() - began);
}

/* Multiplies and adds of a token: in the layers, and in the head. */
static void operations(const dw_model *m, double *layers, double *attention, double *head) {
    const dw_hparams *hp = dw_model_hparams(m);
    const double d = hp->n_embd, D = hp->head_dim;
    *layers = *attention = 0;
    for (int l = 0; l < hp->n_layer; l++) {
        *layers += 2 * d * (2 * hp->n_head[l] * D + 2 * hp->n_head_kv[l] * D + 3.0 * hp->n_ff[l]);
        *attention += 2 * hp->n_head[l] * D * N_CTX; // q k and p v, of half of the pairs
    }
    *head = 2 * d * hp->n_vocab;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct times {
    double teacher[MOST], forward[MOST], backward[MOST], adamw[MOST]; // seconds of a thread
    double gemm[MOST], own[MOST], peer[MOST], square[MOST]; // rates: sgemm's; those of all threads, oneDNN's 0: none
    double rate[2]; // of all threads
} times;

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, compare);
    return x[n / 2];
}

/* Rates: of products by all threads, of the step by one. */
static void report_products(const char *what, double *rate, int n, int n_threads, double step) {
    const double middle = median(rate, n) / n_threads; // sorts
    if (middle == 0) return;
    printf("%s: %.0f (%.0f to %.0f) GFLOP/s a thread: a step reaches %.2f of it (%.2f of the best)\n",
           what, middle / 1e9, rate[0] / n_threads / 1e9, rate[n - 1] / n_threads / 1e9, step / middle,
           step / rate[n - 1] * n_threads);
}

static void report(const dw_model *m, times *t, int n, double n_tokens, int n_threads) {
    double layers, attention, head;
    operations(m, &layers, &attention, &head);
    const double forward = layers + attention, gemm = median(t->gemm, n);
    /* backward: dx and dW; attention: scores again and four products; the head: both models' logits, dx and dW */
    const double back = 2 * layers + 2.5 * attention + 4 * head;
    const struct {
        const char *name;
        double seconds, operations;
    } parts[] = {{"teacher forward", median(t->teacher, n), forward},
                 {"student forward", median(t->forward, n), forward},
                 {"losses and backward", median(t->backward, n), back},
                 {"AdamW", median(t->adamw, n), 0}};
    double seconds = 0, sum = 0;
    printf("sgemm %.1f GFLOP/s on one thread, %s kernels, %d thread%s\n", gemm / 1e9, dw_cpu_level(NULL), n_threads,
           n_threads == 1 ? "" : "s");
    for (int i = 0; i < 4; i++) {
        printf("%-20s %8.1f us/token %8.1f GFLOP/s  share %.2f\n", parts[i].name, 1e6 * parts[i].seconds / n_tokens,
               parts[i].operations * n_tokens / parts[i].seconds / 1e9,
               parts[i].operations * n_tokens / parts[i].seconds / gemm);
        seconds += parts[i].seconds;
        sum += parts[i].operations * n_tokens;
    }
    printf("%-20s %8.1f us/token %8.1f GFLOP/s  share %.2f, %.0f tokens/s\n", "a step", 1e6 * seconds / n_tokens,
           sum / seconds / 1e9, sum / seconds / gemm, n_threads * n_tokens / seconds);
    const double before = t->rate[0] / n_threads, after = t->rate[1] / n_threads;
    printf("inner loop %.0f and %.0f GFLOP/s a thread: a step reaches %.2f and %.2f of it\n", before / 1e9, after / 1e9,
           sum / seconds / before, sum / seconds / after);
    const double step = sum / seconds;
    report_products("own products of a step's matrices", t->own, n, n_threads, step);
    report_products("oneDNN's BF16 products of a step's matrices", t->peer, n, n_threads, step);
    report_products("oneDNN's BF16 products of 4096 x 4096", t->square, n, n_threads, step);
}

typedef struct bench {
    dw_model *model;
    dw_pool *pool;
    dw_session *session[2];
    dw_train *teacher, *train;
    dw_parameters p;
    own_gemm *own;
    peer_gemm *peer;
    float *square; // three matrices of sgemm
    int32_t *token;
    int n_seq, n_threads;
} bench;

static bool any(dw_weight w) { return w != DW_W_DOWN_T; }

static int start(bench *b, const char *path, dw_err *err) {
    const int n = b->n_seq * N_CTX;
    b->model = dw_model_open(path, err);
    b->pool = dw_pool_new(b->n_threads, err);
    if (!b->model || !b->pool) return -1;
    const dw_session_options so = {.pool = b->pool, .n_ctx = N_CTX, .n_batch = 1};
    for (int i = 0; i < 2; i++)
        if (!(b->session[i] = dw_session_new(b->model, &so, err))) return -1;
    b->teacher = dw_train_new(b->session[0], &(dw_train_options){.n_seq = b->n_seq, .forward_only = true}, err);
    b->train = dw_train_new(b->session[1], &(dw_train_options){.n_seq = b->n_seq, .keep_values = true}, err);
    b->own = own_gemm_new(&b->model->net, b->pool, n, N_CTX, err);
    b->peer = peer_gemm_new(&b->model->net, n, N_CTX, b->n_threads);
    b->square = dw_alloc(3 * GEMM * GEMM, sizeof *b->square, "matrices", err);
    b->token = dw_alloc((size_t)n, sizeof *b->token, "tokens", err);
    if (!b->teacher || !b->train || !b->own || !b->square || !b->token) return -1;
    for (int i = 0; i < n; i++)
        b->token[i] = (int32_t)(dw_splitmix((uint64_t)i) % (uint64_t)dw_model_hparams(b->model)->n_vocab);
    return dw_parameters_new(&b->p, b->session[1], &(dw_trained){.wanted = any}, err);
}

/* A lap: the rates of products, then step i; the step before the first warms up. */
static int lap(bench *b, int i, times *t, dw_err *err) {
    double at[5];
    dw_loss_sums sums = {0};
    const double gemm = gemm_rate(b->square, b->square + GEMM * GEMM, b->square + 2 * GEMM * GEMM);
    const double own = own_gemm_rate(b->own), peer = b->peer ? peer_gemm_rate(b->peer) : 0,
                 square = b->peer ? peer_gemm_square_rate(b->peer) : 0;
    dw_parameters_zero_gradients(&b->p);
    at[0] = seconds_now(b->n_threads);
    if (dw_train_forward(b->teacher, b->token, b->n_seq, err)) return -1;
    at[1] = seconds_now(b->n_threads);
    if (dw_train_forward(b->train, b->token, b->n_seq, err)) return -1;
    at[2] = seconds_now(b->n_threads);
    dw_train_backward(b->train, &(dw_loss){.teacher = b->teacher}, 1.0 / (b->n_seq * N_CTX), b->p.gradients, &sums);
    at[3] = seconds_now(b->n_threads);
    dw_adamw_step(&b->p, &(dw_adamw){.rate = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1},
                  (uint64_t)(i + 2), b->pool);
    at[4] = seconds_now(b->n_threads);
    if (i < 0) return 0;
    t->teacher[i] = at[1] - at[0], t->forward[i] = at[2] - at[1], t->backward[i] = at[3] - at[2];
    t->adamw[i] = at[4] - at[3];
    t->gemm[i] = gemm, t->own[i] = own, t->peer[i] = peer, t->square[i] = square;
    return 0;
}

static void end(bench *b) {
    dw_parameters_release(&b->p);
    dw_train_free(b->train), dw_train_free(b->teacher);
    dw_session_free(b->session[0]), dw_session_free(b->session[1]);
    own_gemm_free(b->own);
    peer_gemm_free(b->peer);
    dw_model_close(b->model);
    dw_pool_free(b->pool);
    free(b->square), free(b->token);
}

int main(int argc, char **argv) {
    kit_blas_start(argv);
    bench b = {.n_seq = argc > 2 ? atoi(argv[2]) : 4, .n_threads = argc > 4 ? atoi(argv[4]) : 1};
    const int n = argc > 3 ? atoi(argv[3]) : 5;
    if (argc < 2 || b.n_seq < 1 || n < 1 || n > MOST || b.n_threads < 1)
        return fputs("usage: bench_backward M.gguf [WINDOWS [STEPS [THREADS]]]\n", stderr), 2;
    dw_err err = {0};
    static times t;
    int status = start(&b, argv[1], &err);
    if (!status) t.rate[0] = dw_train_rate(b.train);
    for (int i = -1; !status && i < n; i++) status = lap(&b, i, &t, &err);
    if (status) return fprintf(stderr, "bench_backward: %s\n", err.text), 1;
    t.rate[1] = dw_train_rate(b.train);
    report(b.model, &t, n, (double)b.n_seq * N_CTX, b.n_threads);
    end(&b);
    return 0;
}
