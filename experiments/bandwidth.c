/* bandwidth.c - reading memory, /proc/stat, medians. */
#include "experiments/bandwidth.h"
#include "measure/statistics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- medians ----------------------------------------------------------------------------------------- */

exp_spread exp_spread_of(double *x, size_t n) {
    if (!n) return (exp_spread){0, 0, 0};
    measure_sort(x, n);
    return (exp_spread){n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2, x[0], x[n - 1]};
}

/* ---- reading ------------------------------------------------------------------------------------------- */

const exp_way exp_ways[EXP_N_WAYS] = {{1, 0}, {1, 512}, {1, 1024}, {1, 4096}, {3, 3072}};

static inline void prefetch_ahead(const uint8_t *from, exp_way way) {
    if (way.prefetch)
        for (int k = 0; k < 256; k += 64) __builtin_prefetch(from + way.prefetch + k);
}

/* n_streams streams of n bytes, one behind the other. */
static uint64_t read_plain(const uint8_t *p, size_t n, exp_way way) {
    typedef uint64_t pair __attribute__((vector_size(16)));
    pair sum[8] = {{0}};
    for (size_t i = 0; i + 256 <= n; i += 256)
        for (int s = 0; s < way.n_streams; s++) {
            const uint8_t *from = p + (size_t)s * n + i;
            const pair *w = (const pair *)(const void *)from;
            prefetch_ahead(from, way);
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
__attribute__((target("avx512f"))) static uint64_t read_avx512(const uint8_t *p, size_t n, exp_way way) {
    typedef uint64_t wide __attribute__((vector_size(64)));
    wide a = {0}, b = {0}, c = {0}, d = {0};
    for (size_t i = 0; i + 256 <= n; i += 256)
        for (int s = 0; s < way.n_streams; s++) {
            const uint8_t *from = p + (size_t)s * n + i;
            const wide *w = (const wide *)(const void *)from;
            prefetch_ahead(from, way);
            a += w[0];
            b += w[1];
            c += w[2];
            d += w[3];
        }
    a = a + b + c + d;
    return a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7];
}
#endif

uint64_t exp_read_bytes(const void *memory, size_t n, exp_way way) {
    const uint8_t *p = memory;
    const size_t each = n / (size_t)way.n_streams / 256 * 256;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return read_avx512(p, each, way);
#endif
    return read_plain(p, each, way);
}

typedef struct reading {
    dw_pool *pool;
    const exp_span *span;
    size_t n_spans;
    exp_way way;
    double *seconds; // of each thread
} reading;

/* A thread's own part of a span. */
static exp_span part_of(exp_span s, int ith, int n) {
    const size_t first = s.n_bytes / (size_t)n * (size_t)ith / 64 * 64;
    const size_t end = ith == n - 1 ? s.n_bytes : s.n_bytes / (size_t)n * (size_t)(ith + 1) / 64 * 64;
    return (exp_span){s.start + first, end - first};
}

/* Each thread first touches the part that it will read. */
static void touch(void *arg, int ith, int n) {
    const exp_span part = part_of(*(const exp_span *)arg, ith, n);
    uint64_t *word = (uint64_t *)(uintptr_t)part.start;
    for (size_t i = 0; i < part.n_bytes / 8; i++) word[i] = i;
}

/* The clock runs inside of the thread, behind a barrier: threads that start late must not shorten the time. */
static void read_parts(void *arg, int ith, int n) {
    const reading *r = arg;
    uint64_t sum = 0;
    dw_pool_barrier(r->pool);
    const double t0 = dw_now();
    for (size_t i = 0; i < r->n_spans; i++) {
        const exp_span part = part_of(r->span[i], ith, n);
        sum += exp_read_bytes(part.start, part.n_bytes, r->way);
    }
    __asm__ volatile("" : : "r"(sum)); // so that nothing is left out
    r->seconds[ith] = dw_now() - t0;
}

double exp_read_spans(dw_pool *pool, const exp_span *span, size_t n_spans, exp_way way, double *seconds) {
    reading r = {.pool = pool, .span = span, .n_spans = n_spans, .way = way, .seconds = seconds};
    const int n = dw_pool_size(pool);
    double rate = 0, n_bytes = 0;
    for (size_t i = 0; i < n_spans; i++) n_bytes += (double)span[i].n_bytes;
    dw_pool_run(pool, read_parts, &r);
    for (int i = 0; i < n; i++) rate += n_bytes * 1e-9 / n / seconds[i];
    return rate;
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

/* Four times exp_cache_bytes, from 256 MB to 1 GB and at most an eighth of the machine's memory. */
static size_t default_bytes(int n_threads) {
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    size_t bytes = 4 * exp_cache_bytes(n_threads);
    if (bytes < (size_t)256 << 20) bytes = (size_t)256 << 20;
    if (bytes > (size_t)1 << 30) bytes = (size_t)1 << 30;
    const size_t eighth = (size_t)pages / 8 * (size_t)page;
    return bytes < eighth ? bytes : eighth;
}

double exp_best_way(dw_pool *pool, const exp_span *span, size_t n_spans, double *seconds, exp_way *way) {
    enum { PASSES = 3 };
    double rates[EXP_N_WAYS][PASSES], best = -1;
    *way = exp_ways[0];
    for (int pass = -1; pass < PASSES; pass++) // in turn; the first is not counted
        for (int i = 0; i < EXP_N_WAYS; i++) {
            const double rate = exp_read_spans(pool, span, n_spans, exp_ways[i], seconds);
            if (pass >= 0) rates[i][pass] = rate;
        }
    for (int i = 0; i < EXP_N_WAYS; i++) {
        const double rate = exp_spread_of(rates[i], PASSES).median;
        if (rate > best) best = rate, *way = exp_ways[i];
    }
    return best;
}

double exp_read_bandwidth(dw_pool *pool, dw_err *err) {
    const int n = dw_pool_size(pool);
    const size_t n_bytes = default_bytes(n) / 64 * 64;
    uint8_t *memory = dw_alloc(n_bytes, 1, "memory to read", err);
    double *seconds = dw_alloc((size_t)n, sizeof *seconds, "times", err), result = -1;
    if (memory && seconds) {
        exp_span all = {memory, n_bytes};
        exp_way way;
        dw_pool_run(pool, touch, &all);
        result = exp_best_way(pool, &all, 1, seconds, &way);
    }
    free(memory);
    free(seconds);
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
