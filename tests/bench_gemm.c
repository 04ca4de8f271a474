/* bench_gemm.c - how fast matrix products run, beside their own inner loop on a panel in cache.
 *
 *   build/bench_gemm [-t threads] [-n row length] [-m rows] [-c tokens] [-r rounds] [TYPE]...
 *
 * Timed: all threads, each multiplies the rows of its own part with the same packed tokens.  The inner loop and the
 * products of all types take turns; a round's share is the product's rate / the loop's rate in the same round. */
#include "backends/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_ROUNDS = 1024 };

typedef struct bench {
    dw_pool *pool;
    dw_level level;
    dw_gemm_form form;
    dw_tensor w;
    int n_rows, n_tokens;
    float *x; // (n_tokens, n)
    uint8_t *packed, **scratch; // scratch: of each thread
    float **y;
    double *rate; // of the inner loop, of each thread
} bench;

static void multiply(void *arg, int ith, int n_threads) {
    const bench *b = arg;
    const size_t first = (size_t)(b->n_rows * ith / n_threads), end = (size_t)(b->n_rows * (ith + 1) / n_threads);
    for (size_t r = first; r < end; r += 256) {
        const int n = (int)(end - r < 256 ? end - r : 256);
        dw_gemm_rows(&(dw_gemm_job){.level = b->level, .form = b->form, .w = &b->w, .first = r, .n_rows = n,
                                    .packed = b->packed, .n_tokens = b->n_tokens, .y = b->y[ith], .ldy = 256,
                                    .scratch = b->scratch[ith]});
    }
}

static void time_loop(void *arg, int ith, int n_threads) {
    const bench *b = arg;
    (void)n_threads;
    b->rate[ith] = dw_gemm_rate(b->level, b->form, 0.1, b->scratch[ith]);
}

static void pack(void *arg, int ith, int n_threads) {
    const bench *b = arg;
    dw_gemm_pack(&(dw_gemm_tokens){.level = b->level,
                                   .form = b->form,
                                   .x = b->x,
                                   .ldx = b->w.ne[0],
                                   .n_tokens = b->n_tokens,
                                   .n = (int)b->w.ne[0]},
                 b->packed, ith, n_threads);
}

/* Operations a second. */
static double rate_of(bench *b) {
    int n = 0;
    const double began = dw_now();
    do dw_pool_run(b->pool, multiply, b), n++;
    while (dw_now() < began + 0.1);
    return 2.0 * n * b->n_rows * (double)b->w.ne[0] * b->n_tokens / (dw_now() - began);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Encoded normal numbers, eight rows again and again. */
static void fill(bench *b, const dw_qtype_row *t, uint8_t *data) {
    const size_t n = b->w.ne[0], row_bytes = dw_qtype_row_bytes(t, n);
    dw_rng rng;
    dw_rng_seed(&rng, 1);
    float *x = dw_alloc(n, sizeof *x, "a row", NULL);
    for (size_t r = 0; r < 8; r++) {
        for (size_t i = 0; i < n; i++) x[i] = (float)dw_rng_normal(&rng);
        t->encode(x, data + r * row_bytes, n, NULL);
    }
    for (size_t i = 8 * row_bytes; i < (size_t)b->n_rows * row_bytes; i++) data[i] = data[i - 8 * row_bytes];
    free(x);
    b->w.type = t, b->w.data = data;
}

static const char *const form_names[] = {[DW_GEMM_INT8] = "int8",
                                         [DW_GEMM_ROUNDED] = "rounded",
                                         [DW_GEMM_SPLIT_X] = "split x",
                                         [DW_GEMM_SPLIT] = "split",
                                         [DW_GEMM_F32] = "f32"};

static void run_form(bench *b, const dw_qtype_row *t, dw_gemm_form form, int n_rounds) {
    double rate[MAX_ROUNDS], share[MAX_ROUNDS];
    b->form = form;
    dw_pool_run(b->pool, pack, b);
    for (int i = 0; i < n_rounds; i++) {
        double loop = 0;
        dw_pool_run(b->pool, time_loop, b);
        for (int k = 0; k < dw_pool_size(b->pool); k++) loop += b->rate[k];
        rate[i] = rate_of(b), share[i] = rate[i] / loop;
    }
    qsort(rate, (size_t)n_rounds, sizeof(double), by_size);
    qsort(share, (size_t)n_rounds, sizeof(double), by_size);
    printf("%-7s %-7s %8.1f %8.1f %6.2f\n", t->name, form_names[form], rate[n_rounds / 2] * 1e-9,
           rate[n_rounds / 2] / share[n_rounds / 2] * 1e-9, share[n_rounds / 2]);
    fflush(stdout);
}

/* All forms that a session of this level may take for the type. */
static void run_type(bench *b, const dw_qtype_row *t, int n_rounds) {
    const dw_level level = b->level;
    const dw_gemm_form split = dw_gemm_form_of(level, t, DW_PRECISION_SPLIT, b->n_tokens),
                       rounded = dw_gemm_form_of(level, t, DW_PRECISION_ROUNDED, b->n_tokens),
                       bf16 = dw_gemm_form_of(level, t, DW_PRECISION_BF16, b->n_tokens),
                       bytes = dw_gemm_form_of(level > DW_AVX512 ? DW_AVX512 : level, t, DW_PRECISION_INT8,
                                               b->n_tokens);
    run_form(b, t, split, n_rounds);
    if (rounded != split) run_form(b, t, rounded, n_rounds);
    if (bf16 != split && bf16 != rounded) run_form(b, t, bf16, n_rounds);
    if (bytes == DW_GEMM_INT8) run_form(b, t, bytes, n_rounds);
}

int main(int argc, char **argv) {
    int n_threads = 2, n = 1536, n_rounds = 5;
    bench b = {.n_rows = 8960, .n_tokens = 512};
    for (int o; (o = getopt(argc, argv, "t:n:m:c:r:")) != -1;) {
        int *to = o == 't'   ? &n_threads
                  : o == 'n' ? &n
                  : o == 'm' ? &b.n_rows
                  : o == 'c' ? &b.n_tokens
                  : o == 'r' ? &n_rounds
                             : NULL;
        if (!to || (*to = atoi(optarg)) < 1) return 2;
    }
    if (n % 256 || b.n_tokens > DW_GEMM_TOKENS || n_rounds > MAX_ROUNDS || b.n_rows < 8) return 2;
    dw_err err = {0};
    b.w.ne[0] = (uint64_t)n, b.w.ne[1] = (uint64_t)b.n_rows;
    b.pool = dw_pool_new(n_threads, &err);
    b.packed = aligned_alloc(64, dw_gemm_pack_bytes(b.n_tokens, n));
    b.scratch = dw_alloc((size_t)n_threads, sizeof *b.scratch, "scratch", &err);
    b.y = dw_alloc((size_t)n_threads, sizeof *b.y, "results", &err);
    b.rate = dw_alloc((size_t)n_threads, sizeof *b.rate, "rates", &err);
    b.x = dw_alloc((size_t)b.n_tokens, (size_t)n * sizeof *b.x, "tokens", &err);
    uint8_t *data = aligned_alloc(64, (size_t)b.n_rows * (size_t)n * 4);
    for (int i = 0; b.scratch && b.y && i < n_threads; i++) {
        b.scratch[i] = aligned_alloc(64, DW_GEMM_SCRATCH);
        b.y[i] = aligned_alloc(64, (size_t)256 * DW_GEMM_TOKENS * sizeof(float));
        if (!b.scratch[i] || !b.y[i]) return 1;
    }
    if (!b.pool || !b.packed || !b.scratch || !b.x || !b.y || !b.rate || !data || dw_level_choose(&b.level, &err)) {
        fprintf(stderr, "bench_gemm: %s\n", err.text);
        return 1;
    }
    dw_rng rng;
    dw_rng_seed(&rng, 2);
    for (size_t i = 0; i < (size_t)b.n_tokens * (size_t)n; i++) b.x[i] = (float)dw_rng_normal(&rng);
    printf("# level %s, %d threads, (%d, %d) x %d tokens\n# type   form     Gflop/s     loop  share\n",
           dw_level_names[b.level], n_threads, b.n_rows, n, b.n_tokens);
    for (int i = 0; i < DW_QTYPE_END; i++) {
        const dw_qtype_row *t = dw_qtype_get((uint32_t)i);
        bool wanted = optind == argc;
        for (int k = optind; t && k < argc; k++) wanted |= dw_qtype_by_name(argv[k]) == t;
        if (!t || !wanted || !t->encode || (t->block == 1 && t->id != DW_F32 && t->id != DW_F16 && t->id != DW_BF16))
            continue;
        fill(&b, t, data);
        run_type(&b, t, n_rounds);
    }
    return 0;
}
