/* versus.c - deadwood-versus: this engine beside stock llama.cpp on one model file.
 *
 *     deadwood-versus -m 7b.gguf --what decode,prefill --stock DIR
 *
 * Each program has a process of its own, laps in turn (A B A B), the ratio taken pair by pair. */
#include "experiments/bandwidth.h"
#include "experiments/peer/runner.h"
#include "experiments/speed.h"
#include "kit/options.h"
#include "kit/progress.h"
#include "kit/talk.h"
#include "text/tokenizers.h"

#include <errno.h>
#include <math.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
    const char *model, *what, *text, *stock, *fetch, *quantize, *out, *imatrix, *depths, *precision;
    int pairs, tokens, prefill, n_ctx, compete, n_seq;
    opt_range windows;
    bool ppl;
} o;

static const opt_row options[] = {
    {"model", 'm', OPT_PATH, OPT_INPUT, &o.model, NULL, "FILE", .help = "the GGUF file that both run"},
    {"stock", 0, OPT_PATH, 0, &o.stock, NULL, "DIR", .help = "folder with upstream's libllama*.so; default: $DW_STOCK"},
    {"what", 0, OPT_TEXT, 0, &o.what, "decode,prefill,perplexity", "LIST", .help = "what is timed"},
    {"pairs", 0, OPT_INT, 0, &o.pairs, "21", "N", "pairs of laps", .min = 1, .max = 9999},
    {"tokens", 'n', OPT_INT, 0, &o.tokens, "0", "N", "tokens of a lap of decode; 0: a third of a second's", .min = 0,
     .max = 100000},
    {"prefill", 0, OPT_INT, 0, &o.prefill, "512", "N", "tokens of a lap of prefill", .min = 1, .max = 100000},
    {"depth", 0, OPT_TEXT, 0, &o.depths, "0", "D[,D...]", "tokens in the KV cache before those of a lap; a row each"},
    {"sequences", 0, OPT_INT, 0, &o.n_seq, "1", "N", "sequences that run together", .min = 1, .max = EXP_SPEED_MAX_SEQ},
    {"compete", 0, OPT_INT, 0, &o.compete, "0", "N", "time each pair also beside N busy processes", .min = 0,
     .max = 64},
    {.kind = OPT_GROUP, .help = "perplexity"},
    {"text", 'f', OPT_PATH, OPT_INPUT, &o.text, NULL, "TEXT", .help = "text; default: random tokens"},
    {"ctx", 'c', OPT_INT, 0, &o.n_ctx, "512", "N", "tokens of a window", .min = 4, .max = 1000000},
    {"windows", 0, OPT_RANGE, 0, &o.windows, NULL, "A-B", .help = "only windows A to B of every text; 20 is 1-20"},
    {"precision", 0, OPT_CHOICE, 0, &o.precision, "split", "NAME",
     "how finely this engine rounds products, as in score; upstream's inputs of quantized weights always have 8 bits",
     OPT_CHOICES_HELP(tool_precision_names, tool_precision_name)},
    {"ppl", 0, OPT_FLAG, 0, &o.ppl, NULL, NULL, .help = "compare the perplexities, time nothing"},
    {.kind = OPT_GROUP, .help = "upstream's own tools"},
    {"fetch", 0, OPT_PATH, 0, &o.fetch, NULL, "DIR", .help = "get upstream's libraries with npm into DIR"},
    {"quantize", 0, OPT_TEXT, 0, &o.quantize, NULL, "TYPE",
     .help = "let upstream quantize -m to -o: Q4_K_M, Q6_K, ..."},
    {"imatrix", 0, OPT_PATH, OPT_INPUT, &o.imatrix, NULL, "FILE", .help = "importances for --quantize"},
    {"out", 'o', OPT_PATH, OPT_NO_BYTE, &o.out, NULL, "FILE", .help = "the file that --quantize writes"},
    OPT_COMMON_ENGINE,
    {0},
};

static const opt_program program = {
    .name = "versus",
    .summary = "time this engine beside upstream llama.cpp",
    .usage = "-m M.gguf [--what decode,prefill,perplexity] [--pairs 21] [-f TEXT] [--stock DIR]",
    .about =
        "Runs one model file in this engine and in the packaged libraries of upstream llama.cpp, each in a process of\n"
        "its own that keeps the model, lap by lap in turn.  "
        "Upstream runs at the best of four settings (flash attention\n"
        "on or automatic, weights repacked or plain), found anew for each kind of work.  "
        "One row a kind of work on stdout:\n"
        "tokens a second of both (median, least, most), the ratio of speeds (above 1: this engine is faster) with the\n"
        "90 % interval of its median and all ratios in order, "
        "CPU seconds a second of wall time (the number of threads\n"
        "when undisturbed), the read bandwidth before and after, load average and what others took of the machine.\n"
        "\n"
        "  decode      tokens one by one after --depth others (8 if that is 0), the logits of each fetched\n"
        "  prefill     one batch after --depth tokens, the last token's logits fetched\n"
        "  perplexity  windows of -c tokens with the log-probabilities of their second halves\n"
        "\n"
        "Upstream's libraries come from the npm package that --fetch gets; "
        "nothing of it is needed at run time but the\n"
        "folder with libllama*.so.",
    .example = "deadwood versus --fetch stock\n"
               "deadwood versus -m 7b.gguf --what decode,prefill --stock stock/package/bins/linux-x64\n"
               "deadwood versus -m 7b.gguf --what decode --depth 0,4096 --sequences 4\n"
               "deadwood versus -m mini.gguf --ppl -f text.txt\n"
               "deadwood versus --quantize Q4_K_M -m mini-f16.gguf -o mini-q4_k_m.gguf",
    .rows = options,
};

/* ---- rows ----------------------------------------------------------------------------------------------- */

/* A row is built name and value together; the names are printed once. */
typedef struct line {
    char names[2048], cells[16384];
    size_t n_names, n_cells;
} line;

static void cell(line *l, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void cell(line *l, const char *name, const char *format, ...) {
    va_list args;
    va_start(args, format);
    l->n_names += (size_t)snprintf(l->names + l->n_names, sizeof l->names - l->n_names, "%s%s", l->n_names ? "\t" : "",
                                   name);
    if (l->n_cells) l->cells[l->n_cells++] = '\t';
    l->n_cells += (size_t)vsnprintf(l->cells + l->n_cells, sizeof l->cells - l->n_cells, format, args);
    va_end(args);
    if (l->n_names >= sizeof l->names || l->n_cells + 1 >= sizeof l->cells)
        die("a row is too long; give fewer --pairs");
}

static void print_line(const line *l) {
    static bool has_names;
    if (!has_names) printf("%s\n", l->names);
    has_names = true;
    show_lines(stdout, l->cells);
    putchar('\n');
    fflush(stdout);
}

/* ---- statistics ------------------------------------------------------------------------------------------ */

/* The median lies between the k-th smallest and the k-th largest of n values with a probability of at least 90 %: k is
 * the largest with P(Binomial(n, 1/2) < k) <= 5 %.  Too few values: their extremes. */
static size_t interval_rank(size_t n) {
    double below = 0;
    size_t k = 0;
    for (; k < n / 2; k++) {
        below += exp(lgamma((double)n + 1) - lgamma((double)k + 1) - lgamma((double)(n - k) + 1) - (double)n * log(2));
        if (below > 0.05) break;
    }
    return k ? k : 1;
}

static void cell_spread(line *l, const char *name, const double *x, size_t n) {
    double *sorted = malloc(n * sizeof *sorted);
    char key[64];
    if (!sorted) die("out of memory");
    memcpy(sorted, x, n * sizeof *x);
    const exp_spread s = exp_spread_of(sorted, n);
    snprintf(key, sizeof key, "%s", name);
    cell(l, key, "%.4g", s.median);
    snprintf(key, sizeof key, "%s_min", name);
    cell(l, key, "%.4g", s.min);
    snprintf(key, sizeof key, "%s_max", name);
    cell(l, key, "%.4g", s.max);
    free(sorted);
}

static void cell_ratios(line *l, double *ratio, size_t n) {
    const exp_spread s = exp_spread_of(ratio, n);
    const size_t k = interval_rank(n);
    char list[8192] = "";
    for (size_t i = 0, at = 0; i < n && at + 16 < sizeof list; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%.3f", i ? "," : "", ratio[i]);
    cell(l, "ratio", "%.4f", s.median);
    cell(l, "ratio_low", "%.4f", ratio[k - 1]);
    cell(l, "ratio_high", "%.4f", ratio[n - k]);
    cell(l, "ratios", "%s", list);
}

/* ---- the comparison -------------------------------------------------------------------------------------------- */

static const char *const work_names[EXP_N_WORKS] = {"decode", "prefill", "perplexity"};

typedef struct setting {
    const char *name;
    stock_flash flash;
    bool plain_buffers;
} setting;

static const setting settings[] = {
    {"flash auto, repacked", STOCK_FLASH_AUTO, false},
    {"flash off, repacked", STOCK_FLASH_OFF, false},
    {"flash auto, plain", STOCK_FLASH_AUTO, true},
    {"flash off, plain", STOCK_FLASH_OFF, true},
};
enum { N_SETTINGS = sizeof settings / sizeof *settings };
static const setting unset = {"its defaults", STOCK_FLASH_AUTO, false};

typedef struct comparison {
    int32_t *ids;
    size_t n_ids;
    int n_windows, first_window;
    int32_t bos;
    int n_threads;
    double bytes_per_token;
    int depth[EXP_SPEED_MAX_DEPTHS], n_depths;
} comparison;

/* A kind of work at a depth; perplexity is always of one sequence from an empty cache. */
typedef struct task {
    exp_work work;
    int depth, n_seq;
} task;

static task task_of(const comparison *c, exp_work work, int d) {
    return (task){work, work == EXP_PERPLEXITY ? 0 : c->depth[d], work == EXP_PERPLEXITY ? 1 : o.n_seq};
}

/* Tokens of a sequence's longest lap. */
static int lap_tokens(exp_work work) {
    const int decode = 8 + (o.tokens > 496 ? o.tokens : 496);
    return work == EXP_DECODE ? decode : work == EXP_PREFILL ? o.prefill : o.n_ctx;
}

static exp_runner_options own_options(const comparison *c, task t) {
    exp_runner_options p = {.path = o.model,
                                .n_threads = c->n_threads,
                                .ids = c->ids,
                                .n_ids = c->n_ids,
                                .n_ctx = o.n_ctx,
                                .bos = c->bos,
                                .depth = t.depth};
    const int n_batch = lap_tokens(t.work) * t.n_seq;
    p.program = (exp_program_options){.backend = tool.backend,
                                .n_ctx = t.depth + lap_tokens(t.work),
                                .n_seq = t.n_seq,
                                .n_batch = n_batch < 512 ? 512 : n_batch,
                                .exact = t.work == EXP_PERPLEXITY,
                                .precision = DW_PRECISION_DEFAULT};
    if (t.work == EXP_PERPLEXITY) p.program.precision = tool_precision(o.precision);
    return p;
}

static exp_runner_options stock_options_of(const comparison *c, task t, const setting *s) {
    exp_runner_options p = own_options(c, t);
    p.program.exact = false;
    p.stock_folder = o.stock;
    p.program.flash = s->flash;
    p.program.plain_buffers = s->plain_buffers;
    return p;
}

static double run(exp_runner *c, const comparison *k, exp_work work, int lap_number, int n, exp_lap *lap) {
    dw_err err = {0};
    exp_lap own;
    const int n_starts = k->n_windows / (n ? n : 1);
    const int first = work == EXP_PERPLEXITY ? k->first_window + lap_number % (n_starts ? n_starts : 1) * n : 0;
    if (exp_runner_run(c, work, first, n, lap ? lap : &own, &err)) die_err(&err);
    return lap ? lap->wall_s : own.wall_s;
}

static void start(exp_runner *c, exp_runner_options p) {
    dw_err err = {0};
    if (exp_runner_start(c, &p, &err)) die_err(&err);
}

/* Tokens or windows of a lap: at least a third of a second of this engine's time. */
static int lap_length(exp_runner *own, const comparison *c, exp_work work) {
    const double wanted_s = 0.33;
    if (work == EXP_PREFILL) return o.prefill;
    if (work == EXP_DECODE && o.tokens) return o.tokens;
    const int probe = work == EXP_DECODE ? 8 : 1, limit = work == EXP_DECODE ? 496 : c->n_windows;
    run(own, c, work, 0, probe, NULL);
    const double n = wanted_s / (run(own, c, work, 0, probe, NULL) / probe);
    return n < probe ? probe : n > limit ? limit : (int)n;
}

/* The setting whose best lap is fastest: of three behind a first one, or as many as fit into three seconds.  A release
 * whose parameters are not known runs as it comes. */
static const setting *best_setting(const comparison *c, task t, int n) {
    const setting *best = settings;
    double best_s = INFINITY;
    progress *bar = progress_begin("trying upstream's settings", "settings", N_SETTINGS);
    for (int i = 0; i < N_SETTINGS; i++) {
        exp_runner candidate;
        start(&candidate, stock_options_of(c, t, &settings[i]));
        if (!candidate.can_set) {
            exp_runner_stop(&candidate);
            best = &unset;
            break;
        }
        double spent = run(&candidate, c, t.work, 0, n, NULL), least = spent;
        for (int lap = 0; lap < 3 && spent < 3; lap++) {
            const double s = run(&candidate, c, t.work, lap, n, NULL);
            least = fmin(least, s);
            spent += s;
        }
        exp_runner_stop(&candidate);
        if (least < best_s) {
            best_s = least;
            best = &settings[i];
        }
        progress_step(bar, 1);
    }
    progress_end(bar);
    return best;
}

typedef struct laps { // of one program in one condition, a value a pair
    double *speed, *cpu_share;
} laps;

typedef struct timing { // [0] this engine, [1] stock
    exp_runner runner[2];
    task task;
    const setting *setting;
    int n;                  // tokens of a sequence or windows of a lap
    laps idle[2], crowded[2];
    double read_before, read_after;
    exp_watch watch;
} timing;

static double tokens_of(task t, int n) { return (double)n * (t.work == EXP_PERPLEXITY ? o.n_ctx : t.n_seq); }

static void time_pair(timing *t, const comparison *c, int pair, int n, laps *into) {
    for (int s = 0; s < 2; s++) {
        exp_lap lap;
        run(&t->runner[s], c, t->task.work, pair, n, &lap);
        into[s].speed[pair] = tokens_of(t->task, n) / lap.wall_s;
        into[s].cpu_share[pair] = lap.cpu_s / lap.wall_s;
    }
}

/* Beside busy processes stock may fall to a thirtieth of its speed: shorter laps. */
static int crowded_lap(exp_work work, int n) { return work == EXP_DECODE && n > 32 ? n / 4 : n; }

static double read_now(const comparison *c) {
    dw_err err = {0};
    dw_pool *pool = dw_pool_new(c->n_threads, &err);
    const double rate = pool ? exp_read_bandwidth(pool, 0, 5, &err) : -1;
    if (rate < 0) die_err(&err);
    dw_pool_free(pool);
    return rate;
}

static void cell_both(line *l, const char *what, const laps *of, double *(*values)(const laps *)) {
    static const char *const names[2] = {"own", "stock"};
    for (int s = 0; s < 2; s++) {
        char key[64];
        snprintf(key, sizeof key, "%s_%s", names[s], what);
        cell_spread(l, key, values(&of[s]), (size_t)o.pairs);
    }
}

static double *speeds(const laps *l) { return l->speed; }
static double *cpu_shares(const laps *l) { return l->cpu_share; }

/* What program s keeps of its idle speed beside the crowd: median over the pairs. */
static double kept(const timing *t, int s) {
    double *share = malloc((size_t)o.pairs * sizeof *share);
    if (!share) die("out of memory");
    for (int i = 0; i < o.pairs; i++) share[i] = t->crowded[s].speed[i] / t->idle[s].speed[i];
    const double median = exp_spread_of(share, (size_t)o.pairs).median;
    free(share);
    return median;
}

/* Weight bytes a second over the read bandwidth around it. */
static double read_share(const timing *t, const comparison *c, const laps *of) {
    double *speed = malloc((size_t)o.pairs * sizeof *speed);
    if (!speed) die("out of memory");
    memcpy(speed, of[0].speed, (size_t)o.pairs * sizeof *speed);
    const double median = exp_spread_of(speed, (size_t)o.pairs).median;
    free(speed);
    return median / t->task.n_seq * c->bytes_per_token * 1e-9 / ((t->read_before + t->read_after) / 2);
}

static void print_timing(const timing *t, const comparison *c, bool crowded) {
    const exp_work work = t->task.work;
    const laps *of = crowded ? t->crowded : t->idle;
    double *ratio = malloc((size_t)o.pairs * sizeof *ratio);
    line l = {0};
    if (!ratio) die("out of memory");
    for (int i = 0; i < o.pairs; i++) ratio[i] = of[0].speed[i] / of[1].speed[i];
    cell(&l, "model", "%s", dw_base_name(o.model));
    cell(&l, "work", "%s", work_names[work]);
    cell(&l, "lap", "%d", crowded ? crowded_lap(work, t->n) : t->n);
    cell(&l, "pairs", "%d", o.pairs);
    cell(&l, "threads", "%d", c->n_threads);
    cell(&l, "depth", "%d", t->task.depth);
    cell(&l, "sequences", "%d", t->task.n_seq);
    cell(&l, "busy_others", "%d", crowded ? o.compete : 0);
    cell_both(&l, "tok_s", of, speeds);
    cell_ratios(&l, ratio, (size_t)o.pairs);
    cell_both(&l, "cpu_wall", of, cpu_shares);
    if (crowded) cell(&l, "own_kept", "%.3f", kept(t, 0));
    else cell(&l, "own_kept", "-");
    if (crowded) cell(&l, "stock_kept", "%.3f", kept(t, 1));
    else cell(&l, "stock_kept", "-");
    if (work == EXP_DECODE) cell(&l, "own_read_share", "%.3f", read_share(t, c, of));
    else cell(&l, "own_read_share", "-");
    cell(&l, "read_gb_s_before", "%.1f", t->read_before);
    cell(&l, "read_gb_s_after", "%.1f", t->read_after);
    cell(&l, "load", "%.2f", t->watch.load);
    cell(&l, "steal_share", "%.3f", t->watch.steal_cpu_s / t->watch.wall_s);
    cell(&l, "own_load_ms", "%.0f", 1e3 * t->runner[0].load_s);
    cell(&l, "stock_load_ms", "%.0f", 1e3 * t->runner[1].load_s);
    cell(&l, "own_rss_mb", "%.0f", 1e-6 * t->runner[0].rss_bytes);
    cell(&l, "stock_rss_mb", "%.0f", 1e-6 * t->runner[1].rss_bytes);
    cell(&l, "own_kernels", "%s", t->runner[0].about);
    cell(&l, "stock_version", "%s", t->runner[1].about);
    cell(&l, "stock_setting", "%s", t->setting->name);
    print_line(&l);
    free(ratio);
}

static double *values(void) {
    dw_err err = {0};
    double *x = dw_alloc((size_t)o.pairs, sizeof *x, "times of the pairs", &err);
    if (!x) die_err(&err);
    return x;
}

static void time_task(const comparison *c, task of) {
    const exp_work work = of.work;
    timing t = {.task = of};
    dw_err err = {0};
    exp_crowd crowd = {0};
    laps *const all[] = {&t.idle[0], &t.idle[1], &t.crowded[0], &t.crowded[1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) *all[i] = (laps){values(), values()};
    if (exp_crowd_start(&crowd, o.compete, &err)) die_err(&err);

    start(&t.runner[0], own_options(c, of));
    t.n = lap_length(&t.runner[0], c, work);
    t.setting = best_setting(c, of, t.n);
    say("%s at depth %d: laps of %d, upstream with %s", work_names[work], of.depth, t.n, t.setting->name);
    start(&t.runner[1], stock_options_of(c, of, t.setting));
    for (int s = 0; s < 2; s++) run(&t.runner[s], c, work, 0, t.n, NULL);

    t.read_before = read_now(c);
    progress *bar = progress_begin(work_names[work], "pairs", o.pairs);
    const exp_watch begin = exp_watch_begin();
    for (int pair = 0; pair < o.pairs; pair++) {
        time_pair(&t, c, pair, t.n, t.idle);
        if (crowd.n) {
            exp_crowd_go(&crowd, true);
            time_pair(&t, c, pair, crowded_lap(work, t.n), t.crowded);
            exp_crowd_go(&crowd, false);
        }
        progress_step(bar, 1);
    }
    t.watch = exp_watch_end(&begin);
    progress_end(bar);
    t.read_after = read_now(c);

    print_timing(&t, c, false);
    if (crowd.n) print_timing(&t, c, true);
    for (int s = 0; s < 2; s++) exp_runner_stop(&t.runner[s]);
    exp_crowd_stop(&crowd);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i]->speed);
        free(all[i]->cpu_share);
    }
}

/* ---- perplexity of both on the same ids ---------------------------------------------------------------------- */

static void compare_perplexity(const comparison *c) {
    exp_runner runner[2];
    const task windows = task_of(c, EXP_PERPLEXITY, 0);
    start(&runner[0], own_options(c, windows));
    start(&runner[1], stock_options_of(c, windows, &settings[0]));
    double mean[2] = {0}, square = 0, seconds[2] = {0};
    const int n = c->n_windows;
    progress *bar = progress_begin("perplexity", "windows", n);
    for (int w = 0; w < n; w++) {
        exp_lap lap[2];
        for (int s = 0; s < 2; s++) {
            seconds[s] += run(&runner[s], c, EXP_PERPLEXITY, w, 1, &lap[s]);
            mean[s] += lap[s].nll / n;
        }
        square += (lap[0].nll - lap[1].nll) * (lap[0].nll - lap[1].nll) / n;
        progress_step(bar, 1);
    }
    progress_end(bar);
    const double ln_ratio = mean[0] - mean[1], variance = square - ln_ratio * ln_ratio;
    line l = {0};
    cell(&l, "model", "%s", dw_base_name(o.model));
    cell(&l, "text", "%s", o.text ? dw_base_name(o.text) : "random");
    cell(&l, "n_ctx", "%d", o.n_ctx);
    cell(&l, "windows", "%d", n);
    cell(&l, "tokens_scored", "%d", n * (o.n_ctx - 1 - o.n_ctx / 2));
    cell(&l, "own_ppl", "%.4f", exp(mean[0]));
    cell(&l, "stock_ppl", "%.4f", exp(mean[1]));
    cell(&l, "difference", "%+.4f%%", 100 * expm1(ln_ratio));
    cell(&l, "ln_ratio", "%+.3e", ln_ratio);
    cell(&l, "ln_ratio_se", "%.1e", n > 1 && variance > 0 ? sqrt(variance / (n - 1)) : 0);
    cell(&l, "own_tok_s", "%.1f", n * o.n_ctx / seconds[0]);
    cell(&l, "stock_tok_s", "%.1f", n * o.n_ctx / seconds[1]);
    cell(&l, "own_kernels", "%s", runner[0].about);
    cell(&l, "stock_version", "%s", runner[1].about);
    print_line(&l);
    for (int s = 0; s < 2; s++) exp_runner_stop(&runner[s]);
}

/* ---- stock's package and quantizer ---------------------------------------------------------------------- */

#define PACKAGE_VERSION "3.22.1" // llama.cpp 0.5.0
#if defined(__aarch64__)
#define PLATFORM "linux-arm64"
#else
#define PLATFORM "linux-x64"
#endif

static void run_program(const char *const *argv, const char *missing) {
    extern char **environ;
    pid_t pid;
    int status;
    const int rc = posix_spawnp(&pid, argv[0], NULL, NULL, (char *const *)argv, environ);
    if (rc == ENOENT) die("%s", missing);
    if (rc) die("cannot run '%s': %s", argv[0], strerror(rc));
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status))
        die("'%s' failed; its message stands above", argv[0]);
}

static void fetch(void) {
    char tarball[4096];
    snprintf(tarball, sizeof tarball, "%s/node-llama-cpp-" PLATFORM "-" PACKAGE_VERSION ".tgz", o.fetch);
    run_program((const char *const[]){"mkdir", "-p", o.fetch, NULL}, "cannot find 'mkdir'");
    run_program((const char *const[]){"npm", "pack", "--silent", "--pack-destination", o.fetch,
                                      "@node-llama-cpp/" PLATFORM "@" PACKAGE_VERSION, NULL},
                "cannot find 'npm', which fetches upstream's libraries; install it (Debian: apt-get install npm)");
    run_program((const char *const[]){"tar", "-xzf", tarball, "-C", o.fetch, NULL}, "cannot find 'tar'");
    printf("%s/package/bins/" PLATFORM "\n", o.fetch);
}

static void quantize(void) {
    dw_err err = {0};
    if (!o.out) die_usage("--quantize needs -o FILE");
    stock *s = stock_open(o.stock, &err);
    if (!s || stock_quantize(s, o.model, o.out, o.quantize, o.imatrix, tool.threads, &err)) die_err(&err);
    stock_close(s);
}

/* ---- main ----------------------------------------------------------------------------------------------- */

static void take_text(comparison *c, const dw_model *m) {
    dw_err err = {0};
    size_t size;
    char *text = dw_read_text(o.text, SIZE_MAX / 4, &size, &err);
    dw_tokenizer *t = text ? dw_tokenizer_open(dw_model_gguf(m), &err) : NULL;
    if (!t) die_err(&err);
    const dw_vocab *v = dw_tokenizer_vocab(t);
    if (dw_tokenize(t, text, size, DW_ADD_SPECIAL, &c->ids, &c->n_ids, &err)) die_err(&err);
    c->bos = v->add_bos ? v->bos : -1;
    dw_tokenizer_free(t);
    free(text);
}

/* Random tokens: 32 windows, or as many as the batch needs. */
static void take_random(comparison *c, int n_vocab) {
    dw_err err = {0};
    dw_rng rng;
    const size_t n = 32 * (size_t)o.n_ctx;
    c->n_ids = n > (size_t)o.prefill ? n : (size_t)o.prefill;
    c->ids = dw_alloc(c->n_ids, sizeof *c->ids, "tokens", &err);
    if (!c->ids) die_err(&err);
    dw_rng_seed(&rng, 1);
    for (size_t i = 0; i < c->n_ids; i++) c->ids[i] = (int32_t)dw_rng_below(&rng, (uint64_t)n_vocab);
    c->bos = -1;
}

static comparison prepare(void) {
    comparison c = {.n_threads = tool.threads ? tool.threads : dw_cpu_count()};
    dw_err err = {0};
    dw_model *m = dw_model_open(o.model, &err);
    if (!m) die_err(&err);
    c.bytes_per_token = (double)dw_model_bytes_per_token(m);
    if (o.text)
        take_text(&c, m);
    else
        take_random(&c, dw_model_hparams(m)->n_vocab);
    dw_model_close(m);
    const size_t all = c.n_ids / (size_t)o.n_ctx;
    c.first_window = o.windows.first ? o.windows.first - 1 : 0;
    const size_t end = o.windows.last && (size_t)o.windows.last < all ? (size_t)o.windows.last : all;
    if (end <= (size_t)c.first_window)
        die("the text has %zu window%s of %d tokens, none of those asked for", all, plural((double)all), o.n_ctx);
    if (c.n_ids < (size_t)o.prefill)
        die("the text has %zu token%s, --prefill wants %d", c.n_ids, plural((double)c.n_ids), o.prefill);
    c.n_windows = (int)(end - (size_t)c.first_window);
    return c;
}

static bool wants(exp_work work) {
    const char *at = o.what;
    const size_t len = strlen(work_names[work]);
    while ((at = strstr(at, work_names[work])) && at[len] && at[len] != ',') at += len;
    return at;
}

static void check_what(void) {
    char *list = strdup(o.what), *rest = list;
    if (!list) die("out of memory");
    for (char *word; (word = strsep(&rest, ","));) {
        int work = 0;
        while (work < EXP_N_WORKS && strcmp(word, work_names[work])) work++;
        if (work == EXP_N_WORKS) die_usage("--what '%s' is none of decode, prefill, perplexity", word);
    }
    free(list);
}

int main(int argc, char **argv) {
    opt_parse(&program, argc, argv);
    check_what();
    if (!o.stock) o.stock = getenv("DW_STOCK");
    if (o.fetch) return fetch(), 0;
    if (!o.model) die_usage("give a model with -m");
    if (!o.stock) die_usage("give the folder of upstream's libraries with --stock or $DW_STOCK; --fetch DIR gets them");
    if (o.quantize) return quantize(), 0;
    int depth[EXP_SPEED_MAX_DEPTHS];
    const int n_depths = exp_speed_depths(o.depths, depth);
    if (!n_depths)
        die_usage("--depth '%s' is no list of at most %d different numbers of tokens, like 0,4096", o.depths,
                  EXP_SPEED_MAX_DEPTHS);
    comparison c = prepare();
    c.n_depths = n_depths;
    memcpy(c.depth, depth, sizeof depth);
    if (o.ppl) compare_perplexity(&c);
    for (int work = 0; work < EXP_N_WORKS && !o.ppl; work++)
        for (int d = 0; d < (work == EXP_PERPLEXITY ? 1 : c.n_depths) && wants((exp_work)work); d++)
            time_task(&c, task_of(&c, (exp_work)work, d));
    free(c.ids);
    return 0;
}
