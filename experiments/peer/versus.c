/* versus.c - deadwood-versus: this engine beside stock llama.cpp on one model file.
 *
 *     deadwood-versus -m 7b.gguf --what decode,prefill --stock DIR
 *
 * Each program has a process of its own, laps in turn (A B A B), the ratio taken pair by pair. */
#include "experiments/bandwidth.h"
#include "experiments/measures.h"
#include "experiments/peer/level.h"
#include "experiments/peer/runner.h"
#include "experiments/speed.h"
#include "experiments/sweep/costs.h"
#include "kit/memory.h"
#include "kit/options.h"
#include "kit/progress.h"
#include "kit/talk.h"
#include "measure/statistics.h"
#include "model/model.h"
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

#define PACKAGE_VERSION "3.22.1" // llama.cpp 0.5.0
#define PACKAGE_MB "11"          // 30 MB when unpacked

static struct {
    const char *model, *stock_model, *try, *what, *text, *stock, *fetch, *quantize, *out, *imatrix, *depths, *level, *kv;
    const char *precision;
    int pairs, tokens, prefill, n_ctx, compete, n_seq, seconds;
    opt_range windows;
    bool ppl;
} o;

static const struct { const char *name; } kv_types[] = {{"f16"}, {"f32"}, {0}}; // that stock has at every setting

static const opt_row options[] = {
    {"model", 'm', OPT_PATH, OPT_INPUT, &o.model, NULL, "FILE", .help = "the GGUF file that both run"},
    {"stock", 0, OPT_PATH, 0, &o.stock, NULL, "DIR", .help = "folder with upstream's libllama*.so; default: $DW_STOCK"},
    {"what", 0, OPT_TEXT, 0, &o.what, "decode,prefill,perplexity", "LIST", .help = "what is timed"},
    {"pairs", 0, OPT_INT, 0, &o.pairs, "21", "N", "pairs of laps", .min = 1, .max = 9999},
    {"seconds", 0, OPT_INT, 0, &o.seconds, "0", "N",
     "end each row after about N seconds of laps, with fewer pairs but at least 3; 0: never", .min = 0, .max = 1000000},
    {"tokens", 'n', OPT_INT, 0, &o.tokens, "0", "N", "tokens of a lap of decode; 0: as many as take a third of a second", .min = 0,
     .max = 100000},
    {"prefill", 0, OPT_INT, 0, &o.prefill, "512", "N", "tokens of a lap of prefill", .min = 1, .max = 100000},
    {"depth", 0, OPT_TEXT, 0, &o.depths, "0", "D[,D...]", "tokens in the KV cache before those of a lap; a row each"},
    {"sequences", 0, OPT_INT, 0, &o.n_seq, "1", "N", "sequences that run together", .min = 1, .max = EXP_SPEED_MAX_SEQ},
    {"compete", 0, OPT_INT, 0, &o.compete, "0", "N", "time each pair also beside N busy processes", .min = 0,
     .max = EXP_MAX_CROWD},
    {"level", 0, OPT_CHOICE, 0, &o.level, NULL, "NAME",
     "hold both programs to instruction sets; default: the best of each", OPT_CHOICES(exp_levels)},
    {"kv", 0, OPT_CHOICE, 0, &o.kv, "f16", "TYPE", "type of the key/value cache of both", OPT_CHOICES(kv_types)},
    {"precision", 0, OPT_CHOICE, 0, &o.precision, NULL, "NAME",
     "how finely this engine rounds products of more than 8 tokens; default: split for perplexity, as in score, int8 "
     "for the others, as in generate; upstream's inputs of quantized weights always have 8 bits",
     OPT_CHOICES_HELP(tool_precision_names, tool_precision_name)},
    OPT_HUGE_PAGES,
    {"try", 0, OPT_PATH, OPT_INPUT, &o.try, NULL, "FILE",
     .help = "find upstream's best setting on this file instead of -m: a large model with fewer layers"},
    {.kind = OPT_GROUP, .help = "perplexity"},
    {"text", 'f', OPT_PATH, OPT_INPUT, &o.text, NULL, "TEXT", .help = "text; default: random tokens"},
    {"ctx", 'c', OPT_INT, 0, &o.n_ctx, "512", "N", "tokens of a window", .min = 4, .max = 1000000},
    {"windows", 0, OPT_RANGE, 0, &o.windows, NULL, "A-B", .help = "only windows A to B of every text; 20 is 1-20"},
    {"ppl", 0, OPT_FLAG, 0, &o.ppl, NULL, NULL, .help = "compare the perplexities, time nothing"},
    {"stock-model", 0, OPT_PATH, OPT_INPUT, &o.stock_model, NULL, "FILE",
     .help = "of --ppl: upstream runs this file, of a type that this engine lacks, beside -m; tokens are those of -m"},
    {.kind = OPT_GROUP, .help = "upstream's own tools"},
    {"fetch", 0, OPT_PATH, OPT_FOLDER, &o.fetch, NULL, "DIR",
     .help = "get upstream's libraries with npm into DIR, which it makes: a download of about " PACKAGE_MB " MB"},
    {"quantize", 0, OPT_TEXT, 0, &o.quantize, NULL, "TYPE",
     .help = "let upstream quantize -m to -o: Q4_K_M, IQ2_M, ..."},
    {"imatrix", 0, OPT_PATH, OPT_INPUT, &o.imatrix, NULL, "FILE", .help = "importances for --quantize"},
    {"out", 'o', OPT_PATH, OPT_NO_BYTE, &o.out, NULL, "FILE", .help = "the file that --quantize writes",
     .holds = KIT_GGUF},
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
        "90 % interval of its median (of five pairs or more) and all ratios in order, "
        "CPU seconds a second of wall time (the number of threads\n"
        "when undisturbed), the read bandwidth before and after, load average and what others took of the machine.\n"
        "Of decode also what this engine's threads read of the same weights right before or after each lap, whichever\n"
        "is more (lap_read_gb_s), and what share of that decoding reads (lap_share).\n"
        "With --depth the first tokens are evaluated once, 512 at a time, which is timed as well (own_fill_tok_s).\n"
        "\n"
        "  decode: tokens one by one after --depth others (if that is 0, 8 of all sequences together), the logits of each fetched\n"
        "  prefill: one batch after --depth tokens, the last token's logits fetched\n"
        "  perplexity: windows of -c tokens with the log-probabilities of their second halves\n"
        "\n"
        "Upstream's libraries come from the npm package that --fetch gets; "
        "nothing of it is needed at run time but the\n"
        "folder with libllama*.so.",
    .example = "deadwood versus --fetch stock\n"
               "deadwood versus -m 7b.gguf --what decode,prefill --stock stock/package/bins/linux-x64\n"
               "deadwood versus -m 7b.gguf --what decode --depth 0,4096 --sequences 4\n"
               "deadwood versus -m base.gguf --level avx2\n"
               "deadwood versus -m mini.gguf --ppl -f text.txt\n"
               "deadwood versus --quantize Q4_K_M -m mini-f16.gguf -o mini-q4_k_m.gguf\n"
               "deadwood versus --ppl -m small.gguf --stock-model mini-iq2_m.gguf -f text.txt",
    .rows = options,
};

/* ---- rows ----------------------------------------------------------------------------------------------- */

/* A row is built name and value together; the names are printed once. */
typedef struct line {
    char *names, *cells;
} line;

static void cell(line *l, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void cell(line *l, const char *name, const char *format, ...) {
    dw_err err = {0};
    const char *tab = l->names ? "\t" : "";
    char *text = NULL;
    va_list args;
    va_start(args, format);
    if (vasprintf(&text, format, args) < 0) die("out of memory");
    va_end(args);
    if (dw_append(&l->names, &err, "%s%s", tab, name) || dw_append(&l->cells, &err, "%s%s", tab, text)) die_err(&err);
    free(text);
}

static void print_line(line *l) {
    static bool has_names;
    if (!has_names) printf("%s\n", l->names);
    has_names = true;
    show_lines(stdout, l->cells);
    putchar('\n');
    fflush(stdout);
    free(l->names);
    free(l->cells);
}

/* ---- statistics ------------------------------------------------------------------------------------------ */

/* The median lies between the k-th smallest and the k-th largest of n values with a probability of at least 90 %: k is
 * the largest with P(Binomial(n, 1/2) < k) <= 5 %.  0: fewer than 5 values, whose extremes are closer than that. */
static size_t interval_rank(size_t n) {
    double below = 0;
    size_t k = 0;
    for (; k < n / 2; k++) {
        below += exp(lgamma((double)n + 1) - lgamma((double)k + 1) - lgamma((double)(n - k) + 1) - (double)n * log(2));
        if (below > 0.05) break;
    }
    return k;
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

/* A number, or "-" where there is none. */
static void cell_if(line *l, bool known, const char *name, const char *format, double value) {
    char text[32] = "-";
    if (known) snprintf(text, sizeof text, format, value);
    cell(l, name, "%s", text);
}

/* The median of n values, which are sorted, and its interval. */
static void cell_median(line *l, const char *name, double *x, size_t n) {
    const exp_spread s = exp_spread_of(x, n);
    const size_t k = interval_rank(n);
    char key[64];
    cell(l, name, "%.4f", s.median);
    snprintf(key, sizeof key, "%s_low", name);
    cell_if(l, k > 0, key, "%.4f", k ? x[k - 1] : 0);
    snprintf(key, sizeof key, "%s_high", name);
    cell_if(l, k > 0, key, "%.4f", k ? x[n - k] : 0);
}

static void cell_ratios(line *l, double *ratio, size_t n) {
    dw_err err = {0};
    char *list = NULL;
    cell_median(l, "ratio", ratio, n);
    for (size_t i = 0; i < n; i++)
        if (dw_append(&list, &err, "%s%.3f", i ? "," : "", ratio[i])) die_err(&err);
    cell(l, "ratios", "%s", list);
    free(list);
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
static const double LEAST_CPU = 0.85; // of each thread, in an undisturbed lap
enum { N_SETTINGS = sizeof settings / sizeof *settings, FEW_LAPS = 3 };
static const setting unset = {"its defaults", STOCK_FLASH_AUTO, false};

typedef struct comparison {
    exp_result place; // date, machine, commit
    int32_t *ids;
    size_t n_ids;
    int n_windows, first_window;
    int32_t bos;
    int n_threads;
    double bytes_per_token, file_bytes;
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

/* Tokens of a sequence that a lap of decode has at most, unless --tokens says how many: the caches hold them. */
static int decode_limit(void) { return 496 / o.n_seq > 16 ? 496 / o.n_seq : 16; }

/* Tokens of a sequence's longest lap. */
static int lap_tokens(exp_work work) {
    const int decode = EXP_WARM_TOKENS + (o.tokens ? o.tokens : decode_limit());
    return work == EXP_DECODE ? decode : work == EXP_PREFILL ? o.prefill : o.n_ctx;
}

/* As score and generate have it. */
static const char *precision_of(exp_work work) {
    return o.precision ? o.precision : work == EXP_PERPLEXITY ? "split" : "int8";
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
                                      .huge_pages = tool.huge_pages,
                                      .n_ctx = t.depth + lap_tokens(t.work),
                                      .n_seq = t.n_seq,
                                      .n_batch = n_batch < EXP_FILL_TOKENS ? EXP_FILL_TOKENS : n_batch,
                                      .kv_f32 = !strcmp(o.kv, "f32"),
                                      .exact = t.work == EXP_PERPLEXITY,
                                      .precision = tool_precision(precision_of(t.work))};
    return p;
}

static exp_runner_options stock_options_of(const comparison *c, task t, const setting *s) {
    exp_runner_options p = own_options(c, t);
    p.program.exact = false;
    p.stock_folder = o.stock;
    p.level = o.level;
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

/* Puts the tokens before a task's laps into the cache; the seconds that it takes.  `name` is shown. */
static double fill(exp_runner *r, task t, const char *name) {
    dw_err err = {0};
    exp_lap lap;
    char what[96];
    const int most = EXP_FILL_TOKENS / t.n_seq;
    double seconds = 0;
    snprintf(what, sizeof what, "%s: filling the cache", name);
    progress *bar = progress_begin(what, "tokens", (double)t.depth * t.n_seq);
    for (int pos = 0, n; pos < t.depth; pos += n) {
        n = t.depth - pos < most ? t.depth - pos : most;
        if (exp_runner_run(r, EXP_FILL, pos, n, &lap, &err)) die_err(&err);
        seconds += lap.wall_s;
        progress_step(bar, (double)n * t.n_seq);
    }
    progress_end(bar);
    return seconds;
}

/* Tokens or windows of a lap: a third of a second of this engine's time; of decode at least 8 tokens, of slow ones 2. */
static int lap_length(exp_runner *own, const comparison *c, exp_work work) {
    const double wanted_s = 0.33, slow_s = 0.4;
    if (work == EXP_PREFILL) return o.prefill;
    if (work == EXP_DECODE && o.tokens) return o.tokens;
    const int limit = work == EXP_DECODE ? decode_limit() : c->n_windows;
    int probe = 1;
    double s = (run(own, c, work, 0, 1, NULL), run(own, c, work, 0, 1, NULL)); // the first one warms up
    for (; s < wanted_s / 8 && probe * 4 <= limit; s = run(own, c, work, 0, probe, NULL)) probe *= 4;
    const double n = wanted_s * probe / s;
    const int least = work != EXP_DECODE ? 1 : s / probe < slow_s ? 8 : 2;
    return n < least ? least : n > limit ? limit : (int)n;
}

/* Upstream's program at a setting that is tried. */
typedef struct trial {
    const setting *setting;
    exp_runner runner; // until it is stopped
    double fill_s;
    double lap_s; // of the best lap; -1: this release obeys no settings
    double rss_bytes;
} trial;

/* The best lap is that of three after a first one, or of as many as fit into a second. */
static trial try_setting(const comparison *c, task t, const setting *s, int n) {
    trial x = {.setting = s, .lap_s = -1};
    exp_runner_options p = stock_options_of(c, t, s);
    exp_lap lap;
    if (o.try) p.path = o.try;
    start(&x.runner, p);
    if (!x.runner.can_set) return x;
    x.fill_s = fill(&x.runner, t, s->name);
    double spent = x.lap_s = run(&x.runner, c, t.work, 0, n, &lap);
    for (int i = 0; i < 3 && spent < 1; i++) {
        const double lap_s = run(&x.runner, c, t.work, i, n, &lap);
        x.lap_s = fmin(x.lap_s, lap_s);
        spent += lap_s;
    }
    x.rss_bytes = lap.rss_bytes;
    return x;
}

/* The setting whose best lap is fastest; of a release whose parameters are not known, its own.  A deep cache costs
 * minutes to fill: there, whether weights are repacked is found without it, and only flash attention with it.
 * The best one's program goes on, unless the next one needs its memory. */
static trial best_trial(const comparison *c, task t, int n) {
    trial best = {.lap_s = INFINITY};
    const bool is_deep = t.depth * t.n_seq > EXP_FILL_TOKENS;
    bool plain = false;
    if (is_deep) {
        trial empty = best_trial(c, (task){t.work, 0, t.n_seq}, n);
        exp_runner_stop(&empty.runner);
        if (empty.setting == &unset) return empty;
        plain = empty.setting->plain_buffers;
    }
    progress *bar = progress_begin("trying upstream's settings", "settings", is_deep ? 2 : N_SETTINGS);
    for (int i = 0; i < N_SETTINGS && best.setting != &unset; i++) {
        if (is_deep && settings[i].plain_buffers != plain) continue;
        if (kit_free_memory() < best.rss_bytes) exp_runner_stop(&best.runner);
        trial x = try_setting(c, t, &settings[i], n);
        if (x.lap_s < 0) x.setting = &unset;
        const bool is_best = x.lap_s < best.lap_s;
        exp_runner_stop(is_best ? &best.runner : &x.runner);
        if (is_best) best = x;
        progress_step(bar, 1);
    }
    progress_end(bar);
    if (o.try || best.setting == &unset) exp_runner_stop(&best.runner);
    return best;
}

/* A lap for choosing a setting: prefill of a large model takes many seconds, and a part of it shows which is best. */
static int trial_length(exp_work work, int n, double lap_s) {
    return work == EXP_PREFILL && lap_s > 1 && n > 128 ? 128 : n;
}

typedef struct laps { // of one program in one condition, a value a pair
    double *speed, *cpu_share, *read;
} laps;

typedef struct timing { // [0] this engine, [1] stock
    exp_runner runner[2];
    task task;
    const setting *setting;
    int n;                  // tokens of a sequence or windows of a lap
    int n_pairs;            // that were measured
    double pair_s;          // a pair of laps, with what is not timed
    double fill_s[2];
    double rss_bytes[2], huge_bytes[2]; // after the laps
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
        into[s].read[pair] = lap.read_gb_s;
        t->rss_bytes[s] = lap.rss_bytes;
        t->huge_bytes[s] = lap.huge_bytes;
    }
}

/* Beside busy processes stock may fall to a thirtieth of its speed: shorter laps. */
static int crowded_lap(exp_work work, int n) { return work == EXP_DECODE && n > 32 ? n / 4 : n; }

static double read_now(const comparison *c) {
    dw_err err = {0};
    dw_pool *pool = dw_pool_new(c->n_threads, &err);
    const double rate = pool ? exp_read_bandwidth(pool, &err) : -1;
    if (rate < 0) die_err(&err);
    dw_pool_free(pool);
    return rate;
}

static void cell_both(line *l, const char *what, const timing *t, const laps *of, double *(*values)(const laps *)) {
    static const char *const names[2] = {"own", "stock"};
    for (int s = 0; s < 2; s++) {
        char key[64];
        snprintf(key, sizeof key, "%s_%s", names[s], what);
        cell_spread(l, key, values(&of[s]), (size_t)t->n_pairs);
    }
}

static double *speeds(const laps *l) { return l->speed; }
static double *cpu_shares(const laps *l) { return l->cpu_share; }

/* What program s keeps of its idle speed beside the crowd: median over the pairs. */
static double kept(const timing *t, int s) {
    double *share = malloc((size_t)t->n_pairs * sizeof *share);
    if (!share) die("out of memory");
    for (int i = 0; i < t->n_pairs; i++) share[i] = t->crowded[s].speed[i] / t->idle[s].speed[i];
    const double median = exp_spread_of(share, (size_t)t->n_pairs).median;
    free(share);
    return median;
}

/* GB (1e9) of weights that this engine reads a second while it decodes at a speed. */
static double weight_rate(const timing *t, const comparison *c, double speed) {
    return speed / t->task.n_seq * c->bytes_per_token * 1e-9;
}

/* What this engine reads a second while it decodes; what its threads read of the same weights right beside each lap;
 * and the first as a share of the second, lap by lap. */
static void cell_reading(line *l, const timing *t, const comparison *c, const laps *own) {
    const size_t n = (size_t)t->n_pairs;
    double *x = malloc(n * sizeof *x);
    if (!x) die("out of memory");
    for (size_t i = 0; i < n; i++) x[i] = weight_rate(t, c, own->speed[i]);
    const double gb_s = exp_spread_of(x, n).median;
    cell(l, "own_gb_s", "%.2f", gb_s);
    cell(l, "own_read_share", "%.3f", gb_s / ((t->read_before + t->read_after) / 2));
    cell_spread(l, "lap_read_gb_s", own->read, n);
    for (size_t i = 0; i < n; i++) x[i] = weight_rate(t, c, own->speed[i]) / own->read[i];
    cell_median(l, "lap_share", x, n);
    free(x);
}

static void no_reading(line *l) {
    static const char *const names[] = {"own_gb_s", "own_read_share", "lap_read_gb_s", "lap_read_gb_s_min",
                                        "lap_read_gb_s_max", "lap_share", "lap_share_low", "lap_share_high"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) cell(l, names[i], "-");
}

static void cell_task(line *l, const timing *t, const comparison *c, bool crowded) {
    cell(l, "date", "%s", c->place.date);
    cell(l, "machine", "%s", c->place.machine);
    cell(l, "commit", "%s", *c->place.commit ? c->place.commit : "-");
    cell(l, "model", "%s", dw_base_name(o.model));
    cell(l, "work", "%s", work_names[t->task.work]);
    cell(l, "lap", "%d", crowded ? crowded_lap(t->task.work, t->n) : t->n);
    cell(l, "pairs", "%d", t->n_pairs);
    cell(l, "pair_s", "%.2f", t->pair_s);
    cell(l, "threads", "%d", c->n_threads);
    cell(l, "level", "%s", o.level ? o.level : "best");
    cell(l, "kv", "%s", o.kv);
    cell(l, "depth", "%d", t->task.depth);
    cell(l, "sequences", "%d", t->task.n_seq);
    cell(l, "busy_others", "%d", crowded ? o.compete : 0);
}

static void cell_memory(line *l, const timing *t, const comparison *c) {
    static const char *const names[2] = {"own", "stock"};
    cell(l, "file_mb", "%.0f", 1e-6 * c->file_bytes);
    for (int s = 0; s < 2; s++) {
        char key[64];
        snprintf(key, sizeof key, "%s_load_ms", names[s]);
        cell(l, key, "%.0f", 1e3 * t->runner[s].load_s);
        snprintf(key, sizeof key, "%s_rss_mb", names[s]);
        cell(l, key, "%.0f", 1e-6 * t->runner[s].rss_bytes);
        snprintf(key, sizeof key, "%s_rss_after_mb", names[s]);
        cell(l, key, "%.0f", 1e-6 * t->rss_bytes[s]);
        snprintf(key, sizeof key, "%s_huge_mb", names[s]);
        cell(l, key, "%.0f", 1e-6 * t->huge_bytes[s]);
    }
}

static void print_timing(const timing *t, const comparison *c, bool crowded) {
    const laps *of = crowded ? t->crowded : t->idle;
    const double n_filled = (double)t->task.depth * t->task.n_seq;
    double *ratio = malloc((size_t)t->n_pairs * sizeof *ratio);
    line l = {0};
    if (!ratio) die("out of memory");
    for (int i = 0; i < t->n_pairs; i++) ratio[i] = of[0].speed[i] / of[1].speed[i];
    cell_task(&l, t, c, crowded);
    cell_both(&l, "tok_s", t, of, speeds);
    cell_ratios(&l, ratio, (size_t)t->n_pairs);
    cell_both(&l, "cpu_wall", t, of, cpu_shares);
    cell_if(&l, crowded, "own_kept", "%.3f", crowded ? kept(t, 0) : 0);
    cell_if(&l, crowded, "stock_kept", "%.3f", crowded ? kept(t, 1) : 0);
    cell_if(&l, n_filled > 0, "own_fill_tok_s", "%.4g", n_filled / t->fill_s[0]);
    cell_if(&l, n_filled > 0, "stock_fill_tok_s", "%.4g", n_filled / t->fill_s[1]);
    if (t->task.work == EXP_DECODE) cell_reading(&l, t, c, &of[0]);
    else no_reading(&l);
    cell(&l, "read_gb_s_before", "%.1f", t->read_before);
    cell(&l, "read_gb_s_after", "%.1f", t->read_after);
    cell(&l, "load", "%.2f", t->watch.load);
    cell(&l, "steal_share", "%.3f", t->watch.steal_cpu_s / t->watch.wall_s);
    cell_memory(&l, t, c);
    cell(&l, "own_kernels", "%s", t->runner[0].about);
    cell(&l, "stock_version", "%s", t->runner[1].about);
    cell(&l, "own_precision", "%s", precision_of(t->task.work));
    cell(&l, "own_setting", "%s", tool.huge_pages ? "huge pages" : "mapped");
    cell(&l, "stock_setting", "%s", t->setting->name);
    print_line(&l);
    free(ratio);
}

static double median_of(const double *x, size_t n) {
    double *sorted = malloc(n * sizeof *sorted);
    if (!sorted) die("out of memory");
    memcpy(sorted, x, n * sizeof *x);
    const double median = exp_spread_of(sorted, n).median;
    free(sorted);
    return median;
}

/* The row of the idle machine in one sentence, and whether a program had so little of its threads' time, because of
 * other work or waits, that the ratio says little. */
static void tell_timing(const timing *t, const comparison *c) {
    static const char *const names[2] = {"this engine", "upstream"};
    const size_t n = (size_t)t->n_pairs;
    double speed[2], ratio[2] = {INFINITY, 0};
    for (int s = 0; s < 2; s++) speed[s] = median_of(t->idle[s].speed, n);
    for (size_t i = 0; i < n; i++) {
        const double x = t->idle[0].speed[i] / t->idle[1].speed[i];
        ratio[0] = fmin(ratio[0], x);
        ratio[1] = fmax(ratio[1], x);
    }
    say("%s at depth %d: %.4g tokens/s, upstream %.4g; ratios of the pairs %.2f to %.2f", work_names[t->task.work],
        t->task.depth, speed[0], speed[1], ratio[0], ratio[1]);
    for (int s = 0; s < 2; s++) {
        const double cpu = median_of(t->idle[s].cpu_share, n);
        if (cpu < LEAST_CPU * c->n_threads)
            warn("%s ran for %.2f of the time of its %d threads; other work or waits disturb this ratio", names[s],
                 cpu / c->n_threads, c->n_threads);
    }
}

static double *values(void) {
    dw_err err = {0};
    double *x = dw_alloc((size_t)o.pairs, sizeof *x, "times of the pairs", &err);
    if (!x) die_err(&err);
    return x;
}

/* Both programs with what comes before their laps, warmed up by one. */
static void prepare_pair(timing *t, const comparison *c) {
    const exp_work work = t->task.work;
    start(&t->runner[0], own_options(c, t->task));
    t->fill_s[0] = fill(&t->runner[0], t->task, "this engine");
    t->n = lap_length(&t->runner[0], c, work);
    const double own_s = run(&t->runner[0], c, work, 0, t->n, NULL);
    const trial best = best_trial(c, t->task, trial_length(work, t->n, own_s));
    t->setting = best.setting;
    t->runner[1] = best.runner;
    t->fill_s[1] = best.fill_s;
    if (!exp_runner_is_running(&best.runner)) {
        start(&t->runner[1], stock_options_of(c, t->task, t->setting));
        t->fill_s[1] = fill(&t->runner[1], t->task, "upstream");
    }
    const double stock_s = run(&t->runner[1], c, work, 0, t->n, NULL);
    say("%s at depth %d: laps of %d take %.3g and %.3g s, upstream with %s; %d pair%s: about %.0f s", work_names[work],
        t->task.depth, t->n, own_s, stock_s, t->setting->name, o.pairs, plural(o.pairs),
        o.pairs * (own_s + stock_s));
}

static void time_pairs(timing *t, const comparison *c, const exp_crowd *crowd) {
    const exp_work work = t->task.work;
    progress *bar = progress_begin(work_names[work], "pairs", o.pairs);
    const exp_watch begin = exp_watch_begin();
    for (t->n_pairs = 0; t->n_pairs < o.pairs; t->n_pairs++) {
        if (o.seconds && t->n_pairs >= FEW_LAPS && dw_now() - begin.wall_s > o.seconds) break;
        time_pair(t, c, t->n_pairs, t->n, t->idle);
        if (crowd->n) {
            exp_crowd_go(crowd, true);
            time_pair(t, c, t->n_pairs, crowded_lap(work, t->n), t->crowded);
            exp_crowd_go(crowd, false);
        }
        progress_step(bar, 1);
    }
    t->watch = exp_watch_end(&begin);
    t->pair_s = t->watch.wall_s / t->n_pairs;
    progress_end(bar);
}

static void time_task(const comparison *c, task of) {
    timing t = {.task = of};
    dw_err err = {0};
    exp_crowd crowd = {0};
    laps *const all[] = {&t.idle[0], &t.idle[1], &t.crowded[0], &t.crowded[1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) *all[i] = (laps){values(), values(), values()};
    if (exp_crowd_start(&crowd, o.compete, &err)) die_err(&err);

    prepare_pair(&t, c);
    t.read_before = read_now(c);
    time_pairs(&t, c, &crowd);
    t.read_after = read_now(c);

    print_timing(&t, c, false);
    tell_timing(&t, c);
    if (crowd.n) print_timing(&t, c, true);
    for (int s = 0; s < 2; s++) exp_runner_stop(&t.runner[s]);
    exp_crowd_stop(&crowd);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i]->speed);
        free(all[i]->cpu_share);
        free(all[i]->read);
    }
}

/* ---- perplexity of both on the same ids ---------------------------------------------------------------------- */

static void compare_perplexity(const comparison *c) {
    exp_runner runner[2];
    const task windows = task_of(c, EXP_PERPLEXITY, 0);
    start(&runner[0], own_options(c, windows));
    exp_runner_options theirs = stock_options_of(c, windows, &settings[0]);
    if (o.stock_model) theirs.path = o.stock_model;
    start(&runner[1], theirs);
    if (runner[0].n_vocab != runner[1].n_vocab) // equal numbers do not prove equal vocabularies
        die("'%s' has %d tokens and '%s' %d: perplexities of different vocabularies do not compare", o.model,
            runner[0].n_vocab, theirs.path, runner[1].n_vocab);
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
    const double ln_ratio = mean[0] - mean[1], variance = fmax(0, square - ln_ratio * ln_ratio);
    line l = {0};
    cell(&l, "model", "%s", dw_base_name(o.model));
    cell(&l, "stock_model", "%s", dw_base_name(theirs.path));
    cell(&l, "text", "%s", o.text ? dw_base_name(o.text) : "random");
    cell(&l, "n_ctx", "%d", o.n_ctx);
    cell(&l, "windows", "%d", n);
    cell(&l, "tokens_scored", "%d", n * (o.n_ctx - 1 - o.n_ctx / 2));
    cell(&l, "own_ppl", "%.4f", exp(mean[0]));
    cell(&l, "stock_ppl", "%.4f", exp(mean[1]));
    cell(&l, "difference", "%+.4f%%", 100 * expm1(ln_ratio));
    cell(&l, "ln_ratio", "%+.3e", ln_ratio);
    if (n < MEASURE_LEAST_WINDOWS) cell(&l, "ln_ratio_se", "-");
    else cell(&l, "ln_ratio_se", "%.1e", sqrt(variance / (n - 1)));
    cell(&l, "own_tok_s", "%.1f", n * o.n_ctx / seconds[0]);
    cell(&l, "stock_tok_s", "%.1f", n * o.n_ctx / seconds[1]);
    cell(&l, "own_kernels", "%s", runner[0].about);
    cell(&l, "stock_version", "%s", runner[1].about);
    print_line(&l);
    for (int s = 0; s < 2; s++) exp_runner_stop(&runner[s]);
}

/* ---- stock's package and quantizer ---------------------------------------------------------------------- */

#if defined(__aarch64__)
#define PLATFORM "linux-arm64"
#define PACKAGE_SHA256 "" // not known
#else
#define PLATFORM "linux-x64"
#define PACKAGE_SHA256 "0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0"
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

/* These libraries run in this process, so they must be those that the project knows. */
static void check_package(const char *tarball) {
    char sha256[65];
    dw_err err = {0};
    if (dw_sha256_file(tarball, sha256, &err)) die_err(&err);
    if (*PACKAGE_SHA256 && strcmp(sha256, PACKAGE_SHA256))
        die("'%s' is another file than expected: sha256 %s, not " PACKAGE_SHA256 "; remove it and do not use it",
            tarball, sha256);
}

static void fetch(void) {
    char tarball[4096];
    snprintf(tarball, sizeof tarball, "%s/node-llama-cpp-" PLATFORM "-" PACKAGE_VERSION ".tgz", o.fetch);
    say("fetching llama.cpp's libraries for " PLATFORM " as a package of npm, about " PACKAGE_MB " MB, into '%s'", o.fetch);
    run_program((const char *const[]){"mkdir", "-p", o.fetch, NULL}, "cannot find 'mkdir'");
    run_program((const char *const[]){"npm", "pack", "--silent", "--pack-destination", o.fetch,
                                      "@node-llama-cpp/" PLATFORM "@" PACKAGE_VERSION, NULL},
                "cannot find 'npm', which fetches upstream's libraries; install it (Debian: apt-get install npm)");
    check_package(tarball);
    run_program((const char *const[]){"tar", "-xzf", tarball, "-C", o.fetch, NULL}, "cannot find 'tar'");
    printf("%s/package/bins/" PLATFORM "\n", o.fetch);
}

/* Upstream writes the head last, so a file that begins as GGUF is whole.  Only the first bytes are checked, because
 * this engine may lack its types. */
static int check_quantized(void *nothing, const char *path, dw_err *err) {
    (void)nothing;
    return dw_is_gguf(path) ? 0 : dw_fail(err, "it does not begin as a GGUF file");
}

/* Upstream writes to a temporary name, so that a failure leaves no part of a file and an old file as it was. */
static void quantize(void) {
    dw_err err = {0};
    if (!o.out) die_usage("--quantize needs -o FILE");
    stock *s = stock_open(o.stock, &err);
    dw_out *out = s ? dw_out_open(o.out, &err) : NULL;
    const char *temporary = out ? dw_out_temporary(out, &err) : NULL;
    int rc = temporary ? stock_quantize(s, o.model, temporary, o.quantize, o.imatrix, tool.threads, &err) : -1;
    if (!rc) rc = dw_out_commit_checked(out, check_quantized, NULL, &err);
    dw_out_free(out);
    if (rc) die_err(&err);
    say("'%s': %s, quantized by upstream llama.cpp %s", o.out, show_bytes((double)dw_file_bytes(o.out)).text,
        stock_version(s));
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

/* What upstream cannot load, or computes as another function. */
static void check_for_upstream(const dw_model *m) {
    if (dw_model_is_gated(m)) die("'%s' is gated, and upstream loads no gated models", o.model);
    if (m->is_in_two_parts) die("'%s' has neurons in two formats, and upstream loads no such models", o.model);
    if (m->net.act != m->arch->act)
        warn("'%s' was healed with %s; upstream computes it with %s, so that the two compute different functions",
             o.model, dw_model_activation(m), dw_acts[m->arch->act].name);
}

static comparison prepare(void) {
    comparison c = {.n_threads = tool.threads ? tool.threads : dw_cpu_count()};
    dw_err err = {0};
    dw_model *m = dw_model_open(o.model, &err);
    if (!m) die_err(&err);
    if (!o.stock_model) check_for_upstream(m);
    c.bytes_per_token = (double)dw_model_bytes_per_token(m);
    c.file_bytes = (double)dw_gguf_file_bytes(dw_model_gguf(m));
    if (exp_fill_place(&c.place, &err)) die_err(&err);
    if (o.text)
        take_text(&c, m);
    else
        take_random(&c, dw_model_hparams(m)->n_vocab);
    dw_model_close(m);
    const size_t all = c.n_ids / (size_t)o.n_ctx;
    c.first_window = o.windows.first ? o.windows.first - 1 : 0;
    const size_t end = o.windows.last ? (size_t)o.windows.last : all;
    if (!o.text && end > all) die("random tokens make %zu windows; give a text (-f), or fewer --windows", all);
    if (end > all || end <= (size_t)c.first_window)
        die("'%s' has %zu window%s of %d tokens, %s; give a longer text, or a smaller -c", o.text ? o.text : "random",
            all, plural((double)all), o.n_ctx, o.windows.last ? "not all of those asked for" : "and one is needed");
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
    if (o.quantize && (o.ppl || o.stock_model))
        die_usage("--quantize compares nothing; leave out --ppl and --stock-model");
    if (o.stock_model && !o.ppl) die_usage("--stock-model needs --ppl: speeds of different files are not compared");
    if (o.quantize) return quantize(), 0;
    if (o.out || o.imatrix) die_usage("-o and --imatrix belong to --quantize; tables go to stdout");
    int depth[EXP_SPEED_MAX_DEPTHS];
    const int n_depths = exp_speed_depths(o.depths, depth);
    if (!n_depths)
        die_usage("--depth '%s' is no list of at most %d different numbers of tokens up to %d, like 0,4096", o.depths,
                  EXP_SPEED_MAX_DEPTHS, EXP_SPEED_MAX_DEPTH);
    dw_err err = {0};
    if (o.level) {
        if (exp_level_check(o.level, o.stock, &err)) die("--level: %s", err.text);
        setenv("DEADWOOD_CPU", o.level, 1); // for the children
    }
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
