/* bench_obs.c - seconds of exact selection (prune/obs.h) at any width, beside LAPACK's own factorization.
 *
 *     make build/bench_obs && build/bench_obs WIDTH [RATE [EMBD [THREADS [LAPACK]]]]        0.3, WIDTH / 5, 2, 1
 *
 * The Gram matrix is made: C_ij = s_i s_j (0.6 0.9^|i-j| + 0.4 [i = j] + 0.2), as if of 5 WIDTH tokens.  LAPACK's dpotrf
 * and spotrf factor the same matrix on as many threads of OpenBLAS; LAPACK 0 leaves them out.  The bounds are: our factor
 * at most 1.3 of the time of dpotrf, and the selection of 30 % of 18,944 neurons at most 60 s, within 8 GB.  `select` is
 * the greedy choice with all its updates; the inverse is told apart. */
#include "base/base.h"
#include "prune/obs.h"

#include <lapacke.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

void openblas_set_num_threads(int n);

typedef struct bench {
    int n, d, n_threads;
    double rate, *sum;
    float *v;
    kit_gram_matrix gram;
} bench;

static int make_layer(bench *b, dw_err *err) {
    const int n = b->n;
    dw_rng rng;
    dw_rng_seed(&rng, 1);
    double *size = dw_alloc((size_t)n, 2 * sizeof *size, "sizes of neurons", err), *power = size ? size + n : NULL;
    b->sum = dw_alloc(kit_gram_packed(n), sizeof *b->sum, "a Gram matrix", err);
    b->v = dw_alloc((size_t)b->d, (size_t)n * sizeof *b->v, "a down matrix", err);
    if (!size || !b->sum || !b->v) return free(size), -1;
    for (int i = 0; i < n; i++) size[i] = exp(dw_rng_normal(&rng)), power[i] = 0.6 * pow(0.9, i) + (i ? 0.2 : 0.6);
    for (int i = 0; i < n; i++)
        for (int k = i; k < n; k++) b->sum[kit_gram_row(n, i) + (size_t)k] = 5.0 * n * size[i] * size[k] * power[k - i];
    for (size_t i = 0; i < (size_t)b->d * (size_t)n; i++) b->v[i] = (float)dw_rng_normal(&rng);
    b->gram = (kit_gram_matrix){.input = KIT_STATS_FFN_NEURON, .n = n, .sum = b->sum};
    free(size);
    return 0;
}

/* Seconds of LAPACK's factorization of the same matrix, in double or in float; 0: failed. */
static double time_lapack(const bench *b, bool is_double, dw_err *err) {
    const size_t n = (size_t)b->n;
    double *a = is_double ? dw_alloc(n, n * sizeof *a, "a matrix", err) : NULL;
    float *f = is_double ? NULL : dw_alloc(n, n * sizeof *f, "a matrix", err);
    if (!a && !f) return 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k <= i; k++) {
            const double x = kit_gram_at(&b->gram, (int)k, (int)i) / (5.0 * b->n) + (i == k ? 0.01 : 0);
            if (is_double)
                a[i * n + k] = x;
            else
                f[i * n + k] = (float)x;
        }
    openblas_set_num_threads(b->n_threads);
    const double began = dw_now();
    const int bad = is_double ? LAPACKE_dpotrf_work(LAPACK_COL_MAJOR, 'U', b->n, a, b->n)
                              : LAPACKE_spotrf_work(LAPACK_COL_MAJOR, 'U', b->n, f, b->n);
    const double seconds = dw_now() - began;
    openblas_set_num_threads(1);
    free(a), free(f);
    return bad ? 0 : seconds;
}

static int measure(const bench *b, bool with_lapack, dw_err *err) {
    const double dpotrf = with_lapack ? time_lapack(b, true, err) : 0,
                 spotrf = with_lapack ? time_lapack(b, false, err) : 0;
    dw_pool *pool = dw_pool_new(b->n_threads, err);
    const obs_task t = {.gram = &b->gram,
                        .n_tokens = 5.0 * b->n,
                        .v = b->v,
                        .d = b->d,
                        .group = 1,
                        .most_removed = (int)(b->rate * b->n)};
    obs_order o;
    openblas_set_num_threads(1);
    if (!pool || obs_select(&o, &t, pool, err)) return dw_pool_free(pool), -1;
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    printf("width %d, %d rows, %d threads, %d removed\n", b->n, b->d, b->n_threads, o.n_removed);
    printf("dpotrf %.2f s, spotrf %.2f s (0: not run, or failed)\n", dpotrf, spotrf);
    printf("factor %.2f s", o.seconds.factor);
    if (dpotrf > 0) printf(" (%.2f of dpotrf)", o.seconds.factor / dpotrf);
    printf(", inverse %.2f s, select %.2f s, error %.6g\n", o.seconds.invert, o.seconds.select,
           o.n_removed ? o.error[o.n_removed - 1] : 0);
    printf("peak memory %.2f GB, LAPACK's included\n", 1024.0 * (double)use.ru_maxrss / 1e9);
    obs_order_release(&o);
    dw_pool_free(pool);
    return 0;
}

int main(int argc, char **argv) {
    bench b = {.n = argc > 1 ? atoi(argv[1]) : 0, .rate = argc > 2 ? atof(argv[2]) : 0.3};
    b.d = argc > 3 ? atoi(argv[3]) : b.n / 5 + 1;
    b.n_threads = argc > 4 ? atoi(argv[4]) : 2;
    dw_err err = {0};
    if (b.n < 1 || b.d < 1 || b.n_threads < 1 || !(b.rate >= 0 && b.rate < 1))
        return fputs("usage: bench_obs WIDTH [RATE [EMBD [THREADS [LAPACK]]]]\n", stderr), 2;
    const int rc = make_layer(&b, &err) ? -1 : measure(&b, argc <= 5 || atoi(argv[5]), &err);
    free(b.sum), free(b.v);
    return rc ? fprintf(stderr, "bench_obs: %s\n", err.text), 1 : 0;
}
