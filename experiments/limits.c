/* limits.c - deadwood-limits: what this machine can do at best.
 *
 *     deadwood-limits > limits.tsv
 *
 * Every clock runs inside of the measuring threads, behind a barrier; a rate of several threads is the sum of
 * theirs. */
#include "experiments/bandwidth.h"
#include "experiments/peaks.h"
#include "experiments/peer/runner.h"
#include "kit/options.h"
#include "kit/talk.h"
#include "measure/statistics.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct {
    const char *file, *what;
    size_t bytes, file_bytes;
    int repeats;
} o;

typedef struct part {
    const char *name, *help;
} part;

static const part parts[] = {
    {"all", "everything"},
    {"read", "read bandwidth by working set, page kind and way of reading"},
    {"wall", "the best read of the largest working set by all threads"},
    {"peak", "arithmetic"},
    {"barrier", "the price of a barrier of two threads or more, alone and beside a busy process"},
    {"map", "mapping and touching a file that is in the page cache"},
    {0},
};

static const opt_row options[] = {
    {"what", 0, OPT_CHOICE, 0, &o.what, "all", "PART", "what is measured", OPT_CHOICES_HELP(parts, part)},
    {"repeats", 0, OPT_INT, 0, &o.repeats, "7", "N", "times that each is measured", .min = 1, .max = 1000},
    {"bytes", 0, OPT_BYTES, 0, &o.bytes, "2GiB", "SIZE",
     .help = "largest working set; give at least four times the cache that this process can use", .min = 1 << 20,
     .max = INFINITY},
    {"file", 0, OPT_PATH, OPT_INPUT, &o.file, NULL, "FILE", .help = "file to map; default: a temporary one"},
    {"file-bytes", 0, OPT_BYTES, 0, &o.file_bytes, "512MiB", "SIZE", .help = "size of the temporary file",
     .min = 1 << 20, .max = INFINITY},
    OPT_COMMON,
    {0},
};

static const opt_program program = {
    .name = "limits",
    .summary = "measure what this machine can do",
    .usage = "[--what PART] [-t N] > limits.tsv",
    .about =
        "Prints one row per measurement: the median of the repeats, the least and the most, the unit, "
        "and what others took\n"
        "of the machine meanwhile (CPU seconds a second of wall time, the host's steal included).  Bandwidth counts\n"
        "1e9 bytes, an operation is a multiply or an add.",
    .example = "deadwood limits --what read -t 2\n"
               "deadwood limits --what wall --repeats 3",
    .rows = options,
};

/* ---- rows ---------------------------------------------------------------------------------------------------- */

/* Four digits, and all that stand before the point. */
static const char *plain(char text[32], double v) {
    snprintf(text, 32, fabs(v) < 1e4 ? "%.4g" : "%.0f", v);
    return text;
}

/* Returns the median of x, which is sorted. */
static double print_row(const char *what, const char *variant, int threads, double *x, int n, const char *unit,
                        const exp_watch *begin) {
    const exp_watch w = exp_watch_end(begin);
    const exp_spread s = exp_spread_of(x, (size_t)n);
    char median[32], min[32], max[32];
    printf("%s\t%s\t%d\t%s\t%s\t%s\t%s\t%.2f\t%.2f\t%.3f\n", what, variant, threads, plain(median, s.median),
           plain(min, s.min), plain(max, s.max), unit, exp_watch_others(&w), w.load,
           w.wall_s > 0 ? w.steal_cpu_s / w.wall_s : 0);
    fflush(stdout);
    return s.median;
}

static dw_pool *pool_of(int n) {
    dw_err err = {0};
    dw_pool *pool = dw_pool_new(n, &err);
    if (!pool) die_err(&err);
    return pool;
}

static double *numbers(size_t n) {
    dw_err err = {0};
    double *x = dw_alloc(n, sizeof *x, "times", &err);
    if (!x) die_err(&err);
    return x;
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

typedef struct reading {
    dw_pool *pool;
    const uint8_t *memory;
    size_t n_bytes;  // of all threads together, a multiple of 256 for each
    exp_way way;
    int n_pass;      // of one repeat: small sets are read many times
    double *seconds;
} reading;

static void read_part(void *arg, int ith, int n) {
    reading *r = arg;
    const size_t share = r->n_bytes / (size_t)n / 256 * 256;
    uint64_t sum = 0;
    dw_pool_barrier(r->pool);
    const double t0 = dw_now();
    for (int pass = 0; pass < r->n_pass; pass++) {
        sum += exp_read_bytes(r->memory + share * (size_t)ith, share, r->way);
        __asm__ volatile("" : : "r"(sum)); // so that no pass is left out
    }
    r->seconds[ith] = dw_now() - t0;
}

/* Each thread first touches the part that it will read of the whole set. */
static void touch_part(void *arg, int ith, int n) {
    const reading *r = arg;
    const size_t share = r->n_bytes / (size_t)n / 256 * 256;
    memset((uint8_t *)r->memory + share * (size_t)ith, ith + 1, share);
}

/* Prints a row; returns its median. */
static double measure_reading(reading *r, const char *pages, double *rates) {
    char variant[96];
    const int n = dw_pool_size(r->pool);
    const exp_watch begin = exp_watch_begin();
    r->n_pass = (int)(((size_t)1 << 30) / r->n_bytes);
    if (r->n_pass < 1) r->n_pass = 1;
    for (int repeat = -1; repeat < o.repeats; repeat++) {
        dw_pool_run(r->pool, read_part, r);
        double rate = 0;
        for (int i = 0; i < n; i++) rate += (double)(r->n_bytes / (size_t)n) * r->n_pass * 1e-9 / r->seconds[i];
        if (repeat >= 0) rates[repeat] = rate;
    }
    snprintf(variant, sizeof variant, "%.0f MB, %s, %d stream%s, prefetch %d", (double)r->n_bytes / 1e6, pages,
             r->way.n_streams, r->way.n_streams > 1 ? "s" : "", r->way.prefetch);
    return print_row("read", variant, n, rates, o.repeats, "GB/s", &begin);
}

static uint8_t *take_memory(size_t n_bytes, bool huge) {
    uint8_t *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) die("cannot take %s to read; give fewer --bytes", show_bytes((double)n_bytes).text);
#if defined(MADV_HUGEPAGE)
    madvise(p, n_bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#else
    (void)huge;
#endif
    return p;
}

/* The largest working set by page kind and way of reading, then by size unless only_largest.  The best median of the
 * largest. */
static double measure_reads(int n_threads, bool only_largest) {
    static const size_t sets[] = {8 << 20, 24 << 20, 64 << 20, 256 << 20, 1 << 30};
    const size_t slack = EXP_MOST_PREFETCH + 256; // the prefetches at the end
    double *rates = numbers((size_t)o.repeats), best = 0;
    reading r = {.pool = pool_of(n_threads), .seconds = numbers((size_t)n_threads)};
    for (int huge = 0; huge < 2; huge++) {
        const char *pages = huge ? "huge pages" : "4 KB pages";
        uint8_t *memory = take_memory(o.bytes + slack, huge);
        r.memory = memory;
        r.n_bytes = o.bytes;
        dw_pool_run(r.pool, touch_part, &r);
        for (int i = 0; i < EXP_N_WAYS; i++) {
            r.way = exp_ways[i];
            best = fmax(best, measure_reading(&r, pages, rates));
        }
        r.way = exp_ways[0];
        for (size_t i = 0; i < sizeof sets / sizeof *sets && sets[i] < o.bytes && !only_largest; i++) {
            r.n_bytes = sets[i];
            measure_reading(&r, pages, rates);
        }
        munmap(memory, o.bytes + slack);
    }
    dw_pool_free(r.pool);
    free(r.seconds);
    free(rates);
    return best;
}

static void measure_wall(int n_threads) {
    const exp_watch begin = exp_watch_begin();
    double best = measure_reads(n_threads, true);
    print_row("wall", "best median of these", n_threads, &best, 1, "GB/s", &begin);
}

/* ---- arithmetic ----------------------------------------------------------------------------------------- */

typedef struct peak_run {
    dw_pool *pool;
    const exp_peak *peak;
    size_t n_steps;
    double *seconds;
} peak_run;

static void run_peak(void *arg, int ith, int n) {
    (void)n;
    peak_run *r = arg;
    dw_pool_barrier(r->pool);
    const double t0 = dw_now();
    r->peak->run(r->n_steps);
    r->seconds[ith] = dw_now() - t0;
}

/* Steps that take about 50 ms. */
static size_t steps_for(const exp_peak *peak) {
    for (size_t n = 1000;; n *= 4) {
        const double t0 = dw_now();
        peak->run(n);
        const double s = dw_now() - t0;
        if (s > 0.01) return (size_t)((double)n * 0.05 / s) + 1;
    }
}

static void measure_peaks(int n_threads) {
    double *rates = numbers((size_t)o.repeats);
    peak_run r = {.pool = pool_of(n_threads), .seconds = numbers((size_t)n_threads)};
    for (r.peak = exp_peaks; r.peak->name; r.peak++) {
        if (!r.peak->usable()) continue;
        const exp_watch begin = exp_watch_begin();
        r.n_steps = steps_for(r.peak);
        for (int repeat = 0; repeat < o.repeats; repeat++) {
            dw_pool_run(r.pool, run_peak, &r);
            rates[repeat] = 0;
            for (int i = 0; i < n_threads; i++) rates[repeat] += (double)r.n_steps * r.peak->ops * 1e-12 / r.seconds[i];
        }
        print_row("peak", r.peak->name, n_threads, rates, o.repeats, r.peak->unit, &begin);
    }
    dw_pool_free(r.pool);
    free(r.seconds);
    free(rates);
}

/* ---- barriers ------------------------------------------------------------------------------------------- */

typedef struct meeting {
    dw_pool *pool;
    pthread_barrier_t *pthread; // NULL: the pool's own
    int n_rounds;
    bool work;                  // about a microsecond of random length between two barriers
    double *round_s;            // n_rounds, of thread 0
} meeting;

/* On the thread's own stack: a shared variable would add its cache line's traffic to what is measured. */
static void work_a_while(dw_rng *rng) {
    for (volatile uint64_t left = 200 + dw_rng_below(rng, 1200); left; left--) {}
}

static void meet(void *arg, int ith, int n) {
    (void)n;
    meeting *m = arg;
    dw_rng rng;
    dw_rng_seed(&rng, (uint64_t)ith);
    for (int i = 0; i < m->n_rounds; i++) {
        if (m->work) work_a_while(&rng);
        const double t0 = ith ? 0 : dw_now();
        if (m->pthread) pthread_barrier_wait(m->pthread);
        else dw_pool_barrier(m->pool);
        if (!ith) m->round_s[i] = dw_now() - t0;
    }
}

/* Nanoseconds in the unit that fits their median. */
static void print_times(const char *what, const char *variant, int threads, double *ns, const exp_watch *begin) {
    static const struct { const char *name; double ns; } units[] = {{"s", 1e9}, {"ms", 1e6}, {"us", 1e3}, {"ns", 1}};
    const double median = exp_spread_of(ns, (size_t)o.repeats).median;
    size_t u = 0;
    while (units[u].ns > 1 && median < units[u].ns) u++;
    for (int i = 0; i < o.repeats; i++) ns[i] /= units[u].ns;
    print_row(what, variant, threads, ns, o.repeats, units[u].name, begin);
}

/* Two rows: the mean price of a barrier (what a token pays), and the price that one in a hundred exceeds. */
static void measure_meeting(meeting *m, const char *kind, const char *company) {
    double *mean = numbers((size_t)o.repeats), *p99 = numbers((size_t)o.repeats);
    char variant[128];
    const exp_watch begin = exp_watch_begin();
    for (int repeat = 0; repeat < o.repeats; repeat++) {
        dw_pool_run(m->pool, meet, m);
        double sum = 0;
        for (int i = 0; i < m->n_rounds; i++) sum += m->round_s[i];
        measure_sort(m->round_s, (size_t)m->n_rounds);
        mean[repeat] = 1e9 * sum / m->n_rounds;
        p99[repeat] = 1e9 * m->round_s[m->n_rounds / 100 * 99];
    }
    snprintf(variant, sizeof variant, "%s, %s%s", kind, m->work ? "1 us of work between, " : "", company);
    print_times("barrier mean", variant, dw_pool_size(m->pool), mean, &begin);
    print_times("barrier p99", variant, dw_pool_size(m->pool), p99, &begin);
    free(mean);
    free(p99);
}

static void measure_barriers(int n_threads) {
    enum { ROUNDS = 100000, ROUNDS_BESIDE = 3000 };
    dw_err err = {0};
    exp_crowd crowd = {0};
    pthread_barrier_t pthread;
    if (exp_crowd_start(&crowd, 1, &err)) die_err(&err);
    pthread_barrier_init(&pthread, NULL, (unsigned)n_threads);
    meeting m = {.pool = pool_of(n_threads), .round_s = numbers(ROUNDS)};
    for (int beside = 0; beside < 2; beside++) {
        const char *company = beside ? "beside a busy process" : "alone";
        m.n_rounds = beside ? ROUNDS_BESIDE : ROUNDS;
        exp_crowd_go(&crowd, beside);
        m.pthread = NULL;
        m.work = false;
        measure_meeting(&m, "own", company);
        m.work = true;
        measure_meeting(&m, "own", company);
        m.pthread = &pthread;
        m.work = false;
        m.n_rounds = ROUNDS_BESIDE;
        measure_meeting(&m, "pthread_barrier", company);
    }
    exp_crowd_stop(&crowd);
    dw_pool_free(m.pool);
    pthread_barrier_destroy(&pthread);
    free(m.round_s);
}

/* ---- the page cache ------------------------------------------------------------------------------------- */

typedef enum map_kind { MAP_TOUCHED, MAP_FLAGGED, MAP_ADVISED, MAP_SCANNED, MAP_SCANNED_AGAIN, N_MAP_KINDS } map_kind;

static const char *const map_names[N_MAP_KINDS] = {"touch every 4 KB", "MAP_POPULATE", "MADV_POPULATE_READ",
                                                   "scan on first touch", "scan when mapped"};

static uint64_t touch_pages(const volatile uint8_t *p, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i += 4096) sum += p[i];
    return sum;
}

static volatile uint64_t sink; // what was read is used

/* Seconds of one fresh mapping; -1: the system does not have this kind. */
static double map_once(int fd, size_t n, map_kind kind) {
    int flags = MAP_PRIVATE;
#if defined(MAP_POPULATE)
    if (kind == MAP_FLAGGED) flags |= MAP_POPULATE;
#else
    if (kind == MAP_FLAGGED) return -1;
#endif
    double t0 = dw_now();
    uint8_t *p = mmap(NULL, n, PROT_READ, flags, fd, 0);
    bool done = p != MAP_FAILED;
    if (!done) return -1;
    if (kind == MAP_TOUCHED) sink = touch_pages(p, n);
#if defined(MADV_POPULATE_READ)
    if (kind == MAP_ADVISED) done = !madvise(p, n, MADV_POPULATE_READ);
#else
    if (kind == MAP_ADVISED) done = false;
#endif
    if (kind == MAP_SCANNED_AGAIN) {
        sink = touch_pages(p, n);
        t0 = dw_now();
    }
    if (kind >= MAP_SCANNED) sink = exp_read_bytes(p, n / 256 * 256, exp_ways[0]);
    const double s = dw_now() - t0;
    munmap(p, n);
    return done ? s : -1;
}

static int temporary_file(size_t n_bytes) {
    const char *folder = getenv("TMPDIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/deadwood-limits-XXXXXX", folder ? folder : "/tmp");
    const int fd = mkstemp(path);
    if (fd < 0) die("cannot make a temporary file in '%s'; set $TMPDIR", folder ? folder : "/tmp");
    unlink(path);
    uint8_t block[1 << 16];
    memset(block, 7, sizeof block);
    for (size_t at = 0; at < n_bytes; at += sizeof block)
        if (write(fd, block, sizeof block) != (ssize_t)sizeof block)
            die("cannot write a temporary file of %s; give fewer --file-bytes", show_bytes((double)n_bytes).text);
    return fd;
}

static void measure_mapping(void) {
    dw_err err = {0};
    size_t end = o.file_bytes;
    const int fd = o.file ? dw_open_input(o.file, &end, &err) : temporary_file(o.file_bytes);
    if (fd < 0) die_err(&err);
    if (!end) die("'%s' is empty; give another --file", o.file ? o.file : "the temporary file");
    double *seconds = numbers((size_t)o.repeats), *rates = numbers((size_t)o.repeats);
    map_once(fd, end, MAP_SCANNED); // warms the cache
    for (int kind = 0; kind < N_MAP_KINDS; kind++) {
        char variant[96];
        const exp_watch begin = exp_watch_begin();
        for (int repeat = 0; repeat < o.repeats; repeat++) {
            const double s = map_once(fd, end, (map_kind)kind);
            seconds[repeat] = s * 1e3;
            rates[repeat] = (double)end * 1e-9 / s;
        }
        snprintf(variant, sizeof variant, "%.0f MB, %s", (double)end * 1e-6, map_names[kind]);
        if (seconds[0] < 0) continue;
        if (kind >= MAP_SCANNED) print_row("map", variant, 1, rates, o.repeats, "GB/s", &begin);
        else print_row("map", variant, 1, seconds, o.repeats, "ms", &begin);
    }
    close(fd);
    free(seconds);
    free(rates);
}

/* ---- main ----------------------------------------------------------------------------------------------- */

static bool wants(const char *name) { return !strcmp(o.what, "all") || !strcmp(o.what, name); }
static bool only(const char *name) { return !strcmp(o.what, name); }

static void warn_of_cache(int n_threads) {
    const size_t cache = exp_cache_bytes(n_threads);
    if (o.bytes < 4 * cache)
        warn("a working set of %s is less than four times the cache of %s: part of it is read from there; "
             "give more --bytes",
             show_bytes((double)o.bytes).text, show_bytes((double)cache).text);
}

int main(int argc, char **argv) {
    opt_parse(&program, argc, argv);
    dw_err err = {0};
    const char *level = dw_cpu_level(&err); // asks for the tiles before threads start
    if (!level) die_err(&err);
    const int all = tool.threads ? tool.threads : dw_cpu_count();
    if (only("barrier") && all == 1) die_usage("a barrier is for two threads or more; give -t 2");
    printf("# %d thread%s, kernels %s, %d repeat%s, largest working set %s\n", all, plural(all), level, o.repeats,
           plural(o.repeats), show_bytes((double)o.bytes).text);
    printf("what\tvariant\tthreads\tmedian\tmin\tmax\tunit\tothers_cpu\tload\tsteal\n");
    if (wants("read") || only("wall")) warn_of_cache(all);
    if (only("wall")) measure_wall(all); // "all" has these rows in "read"
    for (int n = 1; n <= all; n = n == 1 && all > 1 ? all : all + 1) {
        if (wants("read")) measure_reads(n, false);
        if (wants("peak")) measure_peaks(n);
    }
    if (wants("barrier") && all > 1) measure_barriers(all);
    if (wants("map")) measure_mapping();
    return 0;
}
