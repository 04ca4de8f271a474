/* bench_dot.c - how fast the dot rows read weights, beside a loop that only reads.
 *
 *   build/bench_dot [-t threads] [-m MB of weights] [-n row length] [-p rows of a call] [-c columns] [-r rounds]
 *                   [TYPE or LEVEL]...
 *
 * Timed: all threads, each over its part of one matrix as large as -m, activations packed before.  The clock is the
 * threads' CPU time, so that other work on the machine disturbs less: rate = bytes * threads / sum of their CPU
 * seconds.  The reading loops (exp_ways) and all kernels take turns; a round's share is the kernel's rate / the best loop's
 * rate in the same round.  Printed: best rates, median share.  Memory is touched before, so caches hold what fits; more than
 * 48 MB are read as a large model's rows are (DW_CACHED).  A call takes 32 rows, as a rule too few for streams
 * (kernels_dot.h); with -p 2048 rows are read in streams where the CPU's way says so.  The best of several loops is above
 * their median, so shares are a little lower than beside one loop. */
#include "backends/kernels.h"
#include "experiments/bandwidth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

enum { MAX_ROUNDS = 1024 };

typedef struct bench {
    dw_pool *pool;
    uint8_t *weights;
    size_t bytes;
    int n, n_cols, n_piece;      // n_piece: rows of one call
    const dw_dot_kernel *kernel; // NULL: only read
    exp_way way;                 // then
    float *x; // activations, and how the kernel wants them
    uint8_t *act;
    float *y;
    double *cpu_seconds; // of each thread, 8 apart
} bench;

static volatile uint64_t sink;

static void work(const bench *b, int ith, int n_threads) {
    if (!b->kernel) {
        const size_t part = b->bytes / (size_t)n_threads / 64 * 64;
        sink = exp_read_bytes(b->weights + part * (size_t)ith, part, b->way);
        return;
    }
    const size_t row_bytes = dw_qtype_row_bytes(dw_qtype_get(b->kernel->type), (size_t)b->n);
    const size_t n_rows = b->bytes / row_bytes / (size_t)n_threads, first = n_rows * (size_t)ith;
    const size_t piece = (size_t)b->n_piece;
    for (size_t r = first; r < first + n_rows; r += piece) { // y is one small piece for each thread
        const int here = (int)(first + n_rows - r < piece ? first + n_rows - r : piece);
        b->kernel->rows(&(dw_dot_job){
            .w = b->weights + r * row_bytes,
            .row_bytes = row_bytes,
            .n_rows = here,
            .n = b->n,
            .act = b->act,
            .act_stride = dw_act_bytes(b->kernel->form, b->n),
            .n_cols = b->n_cols,
            .y = b->y + (size_t)ith * piece * DW_DOT_MAX_COLS,
            .y_stride = piece,
            .reach = dw_reach_of(b->kernel->level, (dw_row_kind){b->kernel->type, b->n, b->bytes > DW_CACHED})});
    }
}

static double cpu_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void job(void *arg, int ith, int n_threads) {
    const bench *b = arg;
    const double start = cpu_now();
    work(b, ith, n_threads);
    b->cpu_seconds[8 * ith] += cpu_now() - start;
}

// GB/s of weights; small sets are passed over until 5 ms are over.
static double rate(bench *b) {
    const int n_threads = dw_pool_size(b->pool);
    dw_pool_run(b->pool, job, b);
    for (int i = 0; i < n_threads; i++) b->cpu_seconds[8 * i] = 0;
    double seconds = 0, n = 0;
    while (seconds < 0.005 * n_threads) {
        dw_pool_run(b->pool, job, b);
        seconds = 0, n++;
        for (int i = 0; i < n_threads; i++) seconds += b->cpu_seconds[8 * i];
    }
    return n * (double)b->bytes * n_threads / seconds * 1e-9;
}

static double rate_of_loop(bench *b) {
    double best = 0;
    b->kernel = NULL;
    for (int i = 0; i < EXP_N_WAYS; i++) {
        b->way = exp_ways[i];
        best = fmax(best, rate(b));
    }
    return best;
}

// Encoded normal numbers, one row after the other.
static void fill(bench *b, dw_qtype type) {
    const dw_qtype_row *t = dw_qtype_get(type);
    dw_rng rng;
    dw_rng_seed(&rng, 1);
    const size_t row_bytes = dw_qtype_row_bytes(t, (size_t)b->n);
    for (int r = 0; r < 8; r++) {
        for (int i = 0; i < b->n; i++) b->x[i] = (float)dw_rng_normal(&rng);
        t->encode(b->x, b->weights + (size_t)r * row_bytes, (size_t)b->n, NULL);
    }
    for (size_t i = 8 * row_bytes; i < b->bytes; i++) b->weights[i] = b->weights[i - 8 * row_bytes];
}

static void use(bench *b, const dw_dot_kernel *k) {
    b->kernel = k;
    for (int c = 0; c < b->n_cols; c++)
        dw_act_pack(k->level, k->form, b->x, b->n, b->act + (size_t)c * dw_act_bytes(k->form, b->n));
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool needs_vbmi(const dw_dot_kernel *k) { return k == &dw_dot_vbmi[k->type]; }
static const char *level_of(const dw_dot_kernel *k) { return needs_vbmi(k) ? "vbmi" : dw_level_names[k->level]; }

static bool wanted(const dw_dot_kernel *k, char **names, int n_names) {
    const char *of[2] = {dw_qtype_get(k->type)->name, level_of(k)};
    bool named[2] = {false, false}, asked[2] = {false, false};
    for (int i = 0; i < n_names; i++) {
        const int kind = dw_qtype_by_name(names[i]) ? 0 : 1;
        asked[kind] = true, named[kind] |= !strcasecmp(names[i], of[kind]);
    }
    const bool usable = needs_vbmi(k) ? dw_level_has_vbmi(k->level) : dw_level_usable(k->level);
    return usable && (named[0] || !asked[0]) && (named[1] || !asked[1]);
}

static void run_type(bench *b, const dw_qtype_row *t, int n_rounds, char **names, int n_names) {
    enum { MAX_KERNELS = DW_N_LEVELS + 1 };
    const dw_dot_kernel *kernel[MAX_KERNELS];
    double share[MAX_KERNELS][MAX_ROUNDS], best[MAX_KERNELS] = {0}, best_read = 0;
    int n_kernels = 0;
    for (int l = 0; l < MAX_KERNELS; l++) {
        const dw_dot_kernel *k = l < DW_N_LEVELS ? &dw_dot_kernels[l][t->id] : &dw_dot_vbmi[t->id];
        if (k->rows && wanted(k, names, n_names)) kernel[n_kernels++] = k;
    }
    if (!n_kernels) return;
    fill(b, t->id);
    for (int round = 0; round < n_rounds; round++) {
        const double read = rate_of_loop(b);
        best_read = fmax(best_read, read);
        for (int k = 0; k < n_kernels; k++) {
            use(b, kernel[k]);
            const double r = rate(b);
            best[k] = fmax(best[k], r), share[k][round] = r / read;
        }
    }
    for (int k = 0; k < n_kernels; k++) {
        qsort(share[k], (size_t)n_rounds, sizeof(double), by_size);
        printf("%-7s %-9s %8.1f %8.1f %8.2f\n", t->name, level_of(kernel[k]), best[k], best_read,
               share[k][n_rounds / 2]);
    }
}

int main(int argc, char **argv) {
    int n_threads = 2, megabytes = 1024, n_rounds = 5;
    bench b = {.n = 3584, .n_cols = 1, .n_piece = 32};
    for (int o; (o = getopt(argc, argv, "t:m:n:p:c:r:")) != -1;) {
        int *to = o == 't'   ? &n_threads
                  : o == 'm' ? &megabytes
                  : o == 'n' ? &b.n
                  : o == 'p' ? &b.n_piece
                  : o == 'c' ? &b.n_cols
                  : o == 'r' ? &n_rounds
                             : NULL;
        if (!to || (*to = atoi(optarg)) < 1) return 2;
    }
    if (b.n % 256 || b.n_cols > DW_DOT_MAX_COLS || n_rounds > MAX_ROUNDS) return 2;
    dw_err err = {0};
    b.bytes = (size_t)megabytes << 20;
    b.pool = dw_pool_new(n_threads, &err);
    uint8_t *memory = dw_alloc(b.bytes + 64, 1, "weights", &err);
    b.weights = memory ? memory + (64 - (uintptr_t)memory % 64) : NULL; // as files are mapped
    b.act = dw_alloc((size_t)b.n_cols, dw_act_bytes(DW_ACT_F32, b.n), "activations", &err);
    b.x = dw_alloc((size_t)b.n, sizeof *b.x, "a vector", &err);
    b.y = dw_alloc((size_t)n_threads * DW_DOT_MAX_COLS, (size_t)b.n_piece * sizeof(float), "results", &err);
    b.cpu_seconds = dw_alloc((size_t)n_threads, 8 * sizeof(double), "clocks", &err);
    if (!b.pool || !b.weights || !b.act || !b.x || !b.y || !b.cpu_seconds)
        return fprintf(stderr, "bench_dot: %s\n", err.text), 1;
    printf("%d threads, %d MB, rows of %d, %d a call, %d columns; GB/s of weights, best of %d\n", n_threads, megabytes,
           b.n, b.n_piece, b.n_cols, n_rounds);
    printf("type    level         best  reading    share\n");
    for (const dw_qtype_row *t = dw_qtypes; t->name; t++) run_type(&b, t, n_rounds, argv + optind, argc - optind);
    dw_pool_free(b.pool);
    free(memory), free(b.act), free(b.x), free(b.y), free(b.cpu_seconds);
    return 0;
}
