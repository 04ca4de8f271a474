/* bandwidth.c - reading memory, /proc/stat, medians. */
#include "experiments/bandwidth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- medians ----------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

exp_spread exp_spread_of(double *x, size_t n) {
    if (!n) return (exp_spread){0, 0, 0};
    qsort(x, n, sizeof *x, by_value);
    return (exp_spread){n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2, x[0], x[n - 1]};
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static uint64_t read_plain(const uint8_t *p, size_t n, int prefetch) {
    typedef uint64_t pair __attribute__((vector_size(16)));
    pair sum[8] = {{0}};
    for (size_t i = 0; i + 256 <= n; i += 256) {
        const pair *w = (const pair *)(const void *)(p + i);
        if (prefetch)
            for (int k = 0; k < 256; k += 64) __builtin_prefetch(p + i + prefetch + k);
        sum[0] += w[0] + w[8];
        sum[1] += w[1] + w[9];
        sum[2] += w[2] + w[10];
        sum[3] += w[3] + w[11];
        sum[4] += w[4] + w[12];
        sum[5] += w[5] + w[13];
        sum[6] += w[6] + w[14];
        sum[7] += w[7] + w[15];
    }
    for (int k = 1; k < 8; k++) sum[0] += sum[k];
    return sum[0][0] + sum[0][1];
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static uint64_t read_avx512(const uint8_t *p, size_t n, int prefetch) {
    typedef uint64_t wide __attribute__((vector_size(64)));
    wide a = {0}, b = {0}, c = {0}, d = {0};
    for (size_t i = 0; i + 256 <= n; i += 256) {
        const wide *w = (const wide *)(const void *)(p + i);
        if (prefetch)
            for (int k = 0; k < 256; k += 64) __builtin_prefetch(p + i + prefetch + k);
        a += w[0];
        b += w[1];
        c += w[2];
        d += w[3];
    }
    a = a + b + c + d;
    return a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7];
}
#endif

uint64_t exp_read_bytes(const void *memory, size_t n, int prefetch) {
    const uint8_t *p = memory;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return read_avx512(p, n, prefetch);
#endif
    return read_plain(p, n, prefetch);
}

typedef struct reading {
    uint64_t *word;
    size_t n_word;
    int n_threads;
    double *seconds; // of each thread
    uint64_t *sum;
    dw_pool *pool;
} reading;

static void part_of(const reading *r, int ith, int n, size_t *first, size_t *end) {
    *first = r->n_word / (size_t)n * (size_t)ith / 64 * 64;
    *end = ith == n - 1 ? r->n_word : r->n_word / (size_t)n * (size_t)(ith + 1) / 64 * 64;
}

static void touch(void *arg, int ith, int n) { // each thread its own part
    const reading *r = arg;
    size_t first, end;
    part_of(r, ith, n, &first, &end);
    for (size_t i = first; i < end; i++) r->word[i] = i;
}

/* The clock runs inside of the thread, behind a barrier: threads that start late must not shorten the time. */
static void read_part(void *arg, int ith, int n) {
    const reading *r = arg;
    size_t first, end;
    part_of(r, ith, n, &first, &end);
    dw_pool_barrier(r->pool);
    const double t0 = dw_now();
    r->sum[ith] = exp_read_bytes(r->word + first, (end - first) * 8, 0);
    r->seconds[ith] = dw_now() - t0;
}

/* A guest is told the L3 of the whole chip by CPUID (sysconf), the slice that a core shares by the kernel. */
size_t exp_cache_bytes(int n_threads) {
    const long chip = sysconf(_SC_LEVEL3_CACHE_SIZE);
    const size_t all = chip > 0 ? (size_t)chip : 0;
    size_t kib = 0;
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re");
    if (f && fscanf(f, "%zuK", &kib) != 1) kib = 0;
    if (f) fclose(f);
    const size_t slices = kib << 10 <= all / (size_t)n_threads ? (kib << 10) * (size_t)n_threads : all;
    return slices ? slices : all;
}

static size_t default_bytes(int n_threads) {
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    size_t bytes = 4 * exp_cache_bytes(n_threads);
    if (bytes < (size_t)256 << 20) bytes = (size_t)256 << 20;
    if (bytes > (size_t)1 << 30) bytes = (size_t)1 << 30;
    const size_t eighth = (size_t)pages / 8 * (size_t)page;
    return bytes < eighth ? bytes : eighth;
}

double exp_read_bandwidth(dw_pool *pool, size_t n_bytes, int n_pass, dw_err *err) {
    const int n = dw_pool_size(pool);
    reading r = {.n_word = (n_bytes ? n_bytes : default_bytes(n)) / 8, .n_threads = n, .pool = pool};
    r.word = dw_alloc(r.n_word, 8, "memory to read", err);
    r.seconds = dw_alloc((size_t)n, sizeof *r.seconds, "times", err);
    r.sum = dw_alloc((size_t)n, sizeof *r.sum, "sums", err);
    double *rate = dw_alloc((size_t)n_pass, sizeof *rate, "rates", err), result = -1;
    if (r.word && r.seconds && r.sum && rate) {
        dw_pool_run(pool, touch, &r);
        for (int pass = -1; pass < n_pass; pass++) { // the first is not counted
            dw_pool_run(pool, read_part, &r);
            double sum = 0;
            for (int i = 0; i < n; i++) sum += (double)r.n_word * 8e-9 / n / r.seconds[i];
            if (pass >= 0) rate[pass] = sum;
        }
        result = exp_spread_of(rate, (size_t)n_pass).median;
    }
    free(r.word);
    free(r.seconds);
    free(r.sum);
    free(rate);
    return result;
}

/* ---- watching -------------------------------------------------------------------------------------------- */

/* /proc/stat: "cpu user nice system idle iowait irq softirq steal", in ticks. */
static void machine_time(double *busy, double *steal) {
    unsigned long long t[8] = {0};
    *busy = *steal = 0;
    FILE *f = fopen("/proc/stat", "re");
    if (!f) return;
    if (fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", t, t + 1, t + 2, t + 3, t + 4, t + 5, t + 6, t + 7) ==
        8) {
        const double tick = 1.0 / (double)sysconf(_SC_CLK_TCK);
        *busy = tick * (double)(t[0] + t[1] + t[2] + t[5] + t[6]);
        *steal = tick * (double)t[7];
    }
    fclose(f);
}

static double cpu_seconds(const struct rusage *u) {
    return (double)u->ru_utime.tv_sec + (double)u->ru_stime.tv_sec +
           1e-6 * (double)(u->ru_utime.tv_usec + u->ru_stime.tv_usec);
}

exp_watch exp_watch_begin(void) {
    exp_watch w = {.wall_s = dw_now()};
    struct rusage own;
    getrusage(RUSAGE_SELF, &own);
    w.own_cpu_s = cpu_seconds(&own);
    machine_time(&w.busy_cpu_s, &w.steal_cpu_s);
    return w;
}

exp_watch exp_watch_end(const exp_watch *begin) {
    exp_watch w = exp_watch_begin();
    w.wall_s -= begin->wall_s;
    w.own_cpu_s -= begin->own_cpu_s;
    w.busy_cpu_s -= begin->busy_cpu_s;
    w.steal_cpu_s -= begin->steal_cpu_s;
    if (getloadavg(&w.load, 1) != 1) w.load = 0;
    return w;
}

double exp_watch_others(const exp_watch *w) {
    const double others = w->busy_cpu_s - w->own_cpu_s;
    return w->wall_s > 0 ? ((others > 0 ? others : 0) + w->steal_cpu_s) / w->wall_s : 0;
}
