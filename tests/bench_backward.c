/* bench_backward.c - a step of healing beside the operations that it needs and the rates of matrix products here.
 *
 *     make build/bench_backward && build/bench_backward M.gguf [WINDOWS [STEPS [THREADS]]]
 *
 * One thread by default; its times are the process's own processor time, so that a busy machine matters little.  Times
 * of several threads are those of the clock, times their number.  The model is its own teacher; the layers' values are
 * kept for the backward pass.  Operations are multiplies and adds of products with weight matrices, of the head's too,
 * and of attention's causal half.  Rates:
 *   - the training pass's own kernel (dw_train_rate, all threads, before and after all steps);
 *   - OpenBLAS's sgemm (1024 x 1024 x 1024, one thread, before each step);
 *   - where oneDNN is installed, its products in BF16 of a step's own matrices and of large ones (bench_peer_gemm.h,
 *     all threads, before each step).  On several threads OMP_WAIT_POLICY=active can make these faster. */
#include "bench_peer_gemm.h"
#include "kit/blas.h"
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

static bool any(dw_weight w) { return w != DW_W_DOWN_T; }

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct times {
    double teacher[MOST], forward[MOST], backward[MOST], adamw[MOST]; // seconds of a thread
    double gemm[MOST], peer[MOST], square[MOST]; // rates: sgemm's; oneDNN's of all threads, 0: none
    double rate[2]; // of all threads
} times;

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, compare);
    return x[n / 2];
}

/* Rates: oneDNN's of all threads, the step's of one. */
static void report_peer(const char *what, double *rate, int n, int n_threads, double step) {
    const double middle = median(rate, n) / n_threads; // sorts
    if (middle == 0) return;
    printf("oneDNN's BF16 products %s: %.0f (%.0f to %.0f) GFLOP/s a thread: a step reaches %.2f of it (%.2f of the "
           "best)\n",
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
    printf("own kernel %.0f and %.0f GFLOP/s a thread: a step reaches %.2f and %.2f of it\n", before / 1e9, after / 1e9,
           sum / seconds / before, sum / seconds / after);
    report_peer("of a step's matrices", t->peer, n, n_threads, sum / seconds);
    report_peer("of 4096 x 4096", t->square, n, n_threads, sum / seconds);
}

int main(int argc, char **argv) {
    kit_blas_start(argv);
    const int n_seq = argc > 2 ? atoi(argv[2]) : 4, n = argc > 3 ? atoi(argv[3]) : 5,
              n_threads = argc > 4 ? atoi(argv[4]) : 1;
    if (argc < 2 || n_seq < 1 || n < 1 || n > MOST || n_threads < 1)
        return fputs("usage: bench_backward M.gguf [WINDOWS [STEPS [THREADS]]]\n", stderr), 2;
    dw_err err = {0};
    static times t;
    dw_parameters p = {0};
    dw_model *m = dw_model_open(argv[1], &err);
    peer_gemm *peer = m ? peer_gemm_new(m, n_seq * N_CTX, N_CTX, n_threads) : NULL;
    dw_pool *pool = dw_pool_new(n_threads, &err);
    const dw_session_options so = {.pool = pool, .n_ctx = N_CTX, .n_batch = 1};
    dw_session *s = m ? dw_session_new(m, &so, &err) : NULL, *ts = m ? dw_session_new(m, &so, &err) : NULL;
    dw_train *train = s ? dw_train_new(s, &(dw_train_options){.n_seq = n_seq, .keep_values = true}, &err) : NULL;
    dw_train *teacher = ts ? dw_train_new(ts, &(dw_train_options){.n_seq = n_seq, .forward_only = true}, &err) : NULL;
    float *a = calloc(3 * GEMM * GEMM, sizeof *a);
    int32_t *token = malloc((size_t)n_seq * N_CTX * sizeof *token);
    if (!train || !teacher || !a || !token || dw_parameters_new(&p, s, &(dw_trained){.wanted = any}, &err))
        return fprintf(stderr, "bench_backward: %s\n", err.text), 1;
    for (int i = 0; i < n_seq * N_CTX; i++)
        token[i] = (int32_t)(dw_splitmix((uint64_t)i) % (uint64_t)dw_model_hparams(m)->n_vocab);
    t.rate[0] = dw_train_rate(train);
    for (int i = -1; i < n; i++) { // the first step warms up
        double at[5];
        dw_loss_sums sums = {0};
        const double gemm = gemm_rate(a, a + GEMM * GEMM, a + 2 * GEMM * GEMM);
        const double rate = peer ? peer_gemm_rate(peer) : 0, square = peer ? peer_gemm_square_rate(peer) : 0;
        dw_parameters_zero_gradients(&p);
        at[0] = seconds_now(n_threads);
        if (dw_train_forward(teacher, token, n_seq, &err)) return fprintf(stderr, "bench_backward: %s\n", err.text), 1;
        at[1] = seconds_now(n_threads);
        dw_train_forward(train, token, n_seq, &err);
        at[2] = seconds_now(n_threads);
        dw_train_backward(train, &(dw_loss){.teacher = teacher}, 1.0 / (n_seq * N_CTX), p.gradients, &sums);
        at[3] = seconds_now(n_threads);
        dw_adamw_step(&p, &(dw_adamw){.rate = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1},
                      (uint64_t)(i + 2), pool);
        at[4] = seconds_now(n_threads);
        if (i < 0) continue;
        t.teacher[i] = at[1] - at[0], t.forward[i] = at[2] - at[1], t.backward[i] = at[3] - at[2],
        t.adamw[i] = at[4] - at[3], t.gemm[i] = gemm;
        t.peer[i] = rate, t.square[i] = square;
    }
    t.rate[1] = dw_train_rate(train);
    report(m, &t, n, (double)n_seq * N_CTX, n_threads);
    dw_parameters_release(&p);
    dw_train_free(train), dw_train_free(teacher);
    dw_session_free(s), dw_session_free(ts);
    dw_model_close(m);
    dw_pool_free(pool);
    peer_gemm_free(peer);
    free(a), free(token);
    return 0;
}
