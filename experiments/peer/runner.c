/* runner.c - what the two programs do in their processes. */
#include "experiments/peer/runner.h"

#include "experiments/bandwidth.h"
#include "experiments/peer/level.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct order {
    int work, first, n;
} order;

typedef struct reply {
    int rc;
    dw_err err;
    exp_lap lap;
    double load_s, rss_bytes;
    char about[96];
    int n_vocab;
    bool can_set;
} reply;

/* ---- the child's work ------------------------------------------------------------------------------------- */

typedef struct child {
    const exp_runner_options *o;
    exp_program *program;
    int32_t *token;      // (n_seq, n) of a batch
    bool is_warm;        // decode, depth 0: the cache holds the first tokens
    volatile float sink; // logits are looked at
} child;

static int n_seq_of(const child *c) { return c->o->program.n_seq ? c->o->program.n_seq : 1; }

/* Evaluates n tokens of every sequence at positions pos .. and looks at the logits of each one's last. */
static int evaluate(child *c, int n, int pos, dw_err *err) {
    const int n_seq = n_seq_of(c);
    for (int i = 0; i < n_seq * n; i++) c->token[i] = c->o->ids[(size_t)(pos + i % n + 37 * (i / n)) % c->o->n_ids];
    if (exp_program_eval(c->program, &(stock_tokens){c->token, n, n_seq, pos, 1}, err)) return -1;
    for (int k = 0; k < n_seq; k++) {
        const float *logits = exp_program_logits(c->program, k, err);
        if (!logits) return -1;
        c->sink = logits[0];
    }
    return 0;
}

/* Both programs keep what lies before the first position of a batch, so what comes before a lap is evaluated once. */
static int decode(child *c, int n, exp_watch *watch, exp_lap *lap, dw_err *err) {
    const int prefix = EXP_WARM_TOKENS > n_seq_of(c) ? EXP_WARM_TOKENS / n_seq_of(c) : 1;
    const int from = c->o->depth ? c->o->depth : prefix;
    int again = n / 8 < 1 ? 1 : n / 8 < EXP_WARM_TOKENS ? n / 8 : EXP_WARM_TOKENS;
    if (!c->o->depth && !c->is_warm) again = from;
    c->is_warm = true;
    for (int pos = again < from ? from - again : 0; pos < from; pos++)
        if (evaluate(c, 1, pos, err)) return -1;
    lap->read_gb_s = exp_program_read(c->program);
    *watch = exp_watch_begin();
    for (int pos = from; pos < from + n; pos++)
        if (evaluate(c, 1, pos, err)) return -1;
    return 0;
}

static int windows(child *c, int first, int n, double *mean, dw_err *err) {
    double *nll = dw_alloc((size_t)n, sizeof *nll, "windows", err);
    const int rc = nll ? exp_program_windows(c->program, c->o->ids, c->o->n_ctx, c->o->bos, first, n, nll, err) : -1;
    *mean = 0;
    for (int w = 0; !rc && w < n; w++) *mean += nll[w] / n / (c->o->n_ctx - 1 - c->o->n_ctx / 2);
    free(nll);
    return rc;
}

static double resident_bytes(void) {
    unsigned long long total, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%llu %llu", &total, &resident) != 2) resident = 0;
    if (f) fclose(f);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

/* How much of the resident memory lies in huge pages; 0 where the system does not tell. */
static double huge_bytes(void) {
    static const char *const kinds[] = {"AnonHugePages: %lf", "ShmemPmdMapped: %lf", "FilePmdMapped: %lf"};
    double sum = 0, kib;
    char line[128];
    FILE *f = fopen("/proc/self/smaps_rollup", "re");
    while (f && fgets(line, sizeof line, f))
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            if (sscanf(line, kinds[i], &kib) == 1) sum += 1024 * kib;
    if (f) fclose(f);
    return sum;
}

/* Returns when this program's threads sleep, or after a fifth of a second.  Threads that still spin hold a core that the
 * other program's lap needs.  (This engine's sleep after 2 to 4 ms, upstream's within 2.) */
static void settle(void) {
    enum { STEP_US = 2000, MOST_STEPS = 100 };
    for (int i = 0; i < MOST_STEPS; i++) {
        exp_watch watch = exp_watch_begin();
        usleep(STEP_US);
        watch = exp_watch_end(&watch);
        if (watch.own_cpu_s < watch.wall_s / 10) return;
    }
}

static void obey(child *c, const order *o, reply *r) {
    exp_watch watch = exp_watch_begin();
    switch (o->work) {
    case EXP_DECODE: r->rc = decode(c, o->n, &watch, &r->lap, &r->err); break;
    case EXP_PREFILL: r->rc = evaluate(c, o->n, c->o->depth, &r->err); break;
    case EXP_PERPLEXITY: r->rc = windows(c, o->first, o->n, &r->lap.nll, &r->err); break;
    case EXP_FILL: r->rc = evaluate(c, o->n, o->first, &r->err); break;
    }
    watch = exp_watch_end(&watch);
    r->lap.wall_s = watch.wall_s;
    r->lap.cpu_s = watch.own_cpu_s;
    r->lap.rss_bytes = resident_bytes();
    r->lap.huge_bytes = huge_bytes();
    const double after = o->work == EXP_DECODE ? exp_program_read(c->program) : 0;
    if (after > r->lap.read_gb_s) r->lap.read_gb_s = after;
}

static void open_program(child *c, reply *r) {
    exp_program_options program = c->o->program;
    const char *level = NULL;
    const double t0 = dw_now();
    r->rc = -1;
    program.pool = dw_pool_new(c->o->n_threads, &r->err);
    if (!program.pool) return;
    if (c->o->stock_folder) {
        program.stock = stock_open_level(c->o->stock_folder, c->o->level, &r->err);
        if (!program.stock) return;
        r->can_set = stock_can_set(program.stock);
        snprintf(r->about, sizeof r->about, "%s %s", stock_version(program.stock), stock_cpu_library(program.stock));
    } else {
        level = dw_cpu_level(&r->err);
        if (!level) return;
        snprintf(r->about, sizeof r->about, "%s", level);
    }
    c->program = exp_program_open(c->o->path, &program, &r->err);
    c->token = dw_alloc((size_t)program.n_batch, sizeof *c->token, "a batch", &r->err);
    r->rc = c->program && c->token ? 0 : -1;
    if (c->program) r->n_vocab = exp_program_n_vocab(c->program);
    r->load_s = dw_now() - t0;
    r->rss_bytes = resident_bytes();
}

static void live(const void *options, int line) {
    child c = {.o = options};
    reply r = {0};
    order next;
    open_program(&c, &r);
    while (exp_send(line, &r, sizeof r) && exp_receive(line, &next, sizeof next)) {
        r = (reply){0};
        obey(&c, &next, &r);
        settle();
    }
}

/* ---- the parent ---------------------------------------------------------------------------------------------------- */

int exp_runner_start(exp_runner *c, const exp_runner_options *o, dw_err *err) {
    reply r;
    *c = (exp_runner){0};
    if (exp_child_start(&c->child, live, o, err)) return -1;
    if (!exp_receive(c->child.line, &r, sizeof r))
        return dw_fail(err, "%s ended while loading '%s'", o->stock_folder ? "upstream" : "the engine", o->path);
    if (r.rc) return dw_fail(err, "%s", r.err.text);
    c->load_s = r.load_s;
    c->rss_bytes = r.rss_bytes;
    c->n_vocab = r.n_vocab;
    c->can_set = r.can_set;
    memcpy(c->about, r.about, sizeof c->about);
    return 0;
}

void exp_runner_stop(exp_runner *c) { exp_child_stop(&c->child); }

int exp_runner_run(exp_runner *c, exp_work work, int first, int n, exp_lap *lap, dw_err *err) {
    const order o = {work, first, n};
    reply r;
    if (!exp_send(c->child.line, &o, sizeof o) || !exp_receive(c->child.line, &r, sizeof r))
        return dw_fail(err, "the program (%s) ended in the middle of its work", c->about);
    if (r.rc) return dw_fail(err, "%s: %s", c->about, r.err.text);
    *lap = r.lap;
    return 0;
}

/* ---- the crowd -------------------------------------------------------------------------------------------------- */

static void spin(const void *ctx, int line) {
    (void)ctx, (void)line;
    raise(SIGSTOP);
    for (volatile uint64_t i = 0;; i++) {}
}

int exp_crowd_start(exp_crowd *c, int n, dw_err *err) {
    dw_assert(n <= EXP_MAX_CROWD);
    for (c->n = 0; c->n < n; c->n++) {
        if (exp_child_start(&c->child[c->n], spin, NULL, err)) return -1;
        waitpid(c->child[c->n].pid, NULL, WUNTRACED); // until it has stopped
    }
    return 0;
}

void exp_crowd_go(const exp_crowd *c, bool busy) {
    for (int i = 0; i < c->n; i++) kill(c->child[i].pid, busy ? SIGCONT : SIGSTOP);
}

void exp_crowd_stop(exp_crowd *c) {
    for (int i = 0; i < c->n; i++) exp_child_stop(&c->child[i]);
    c->n = 0;
}
