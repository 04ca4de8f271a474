/* speed.c - what the child does when it is told to, and the rounds over all children. */
#include "experiments/speed.h"

#include "kit/memory.h"
#include "kit/options.h"
#include "model/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

typedef enum what { LOAD, ROUND } what;

typedef struct command {
    what what;
    int depth; // ROUND: index
} command;

typedef struct reply {
    dw_err err; // "" when it went well
    double load_s, prefill_rate, decode_rate, peak_rss_bytes; // tokens a second
    exp_watch watch;
    exp_reading reading;
} reply;

/* ---- the child -------------------------------------------------------------------------------------------- */

typedef struct bench {
    const exp_speed_options *o;
    dw_pool *pool;
    dw_model *model;
    dw_session *session;
    float *logits;        // (n_seq, n_vocab)
    int32_t *token, *seq; // of a batch: (n_seq, EXP_SPEED_TOKENS)
    uint8_t *out;
    float activity[DW_MAX_LAYERS]; // planted
    dw_random_groups lots;
    int32_t ids[EXP_SPEED_TOKENS];
} bench;

/* The planted activity of every layer; other models of the run are timed as they are. */
static void plant_activity(bench *b) {
    const int n = b->o->n_inject, n_layer = dw_model_hparams(b->model)->n_layer;
    for (int l = 0; l < n_layer; l++) {
        const double at = n_layer > 1 ? (double)l * (n - 1) / (n_layer - 1) : 0;
        const int k = (int)at < n - 1 ? (int)at : n - 1, next = k < n - 1 ? k + 1 : k;
        b->activity[l] = (float)(b->o->inject[k] + (at - k) * (b->o->inject[next] - b->o->inject[k]));
    }
    b->lots = (dw_random_groups){b->activity, 1};
}

static int begin_experiment(bench *b, dw_err *err) {
    dw_ffn_experiment e = {.gathered = b->o->is_listed};
    if (!dw_model_is_gated(b->model)) return 0;
    if (b->o->n_inject) {
        plant_activity(b);
        e.decide = dw_open_random;
        e.ctx = &b->lots;
        e.activity = b->activity;
    }
    return e.decide || e.gathered ? dw_session_experiment(b->session, &e, err) : 0;
}

static size_t ffn_bytes(const dw_layer *w) { return w->gate.n_bytes + w->up.n_bytes + w->down.n_bytes; }

/* What the passes since the counts began have opened and read; layers that count nothing were read densely. */
static void take_reading(const bench *b, exp_reading *r) {
    *r = (exp_reading){0};
    if (!dw_model_is_gated(b->model) || !b->o->n_decode || b->o->n_seq > 1) return;
    r->n_layer = dw_model_hparams(b->model)->n_layer;
    r->bytes_per_token = (double)dw_model_bytes_per_token(b->model);
    for (int l = 0; l < r->n_layer; l++) {
        const dw_layer *w = &b->model->net.layer[l];
        const dw_coverage c = dw_session_coverage(b->session, l);
        const double dense = (double)ffn_bytes(w);
        r->open[l] = c.n_tokens ? (double)c.n_open / ((double)c.n_tokens * w->n_ff) : 1;
        r->bytes[l] = c.n_few ? (double)c.n_bytes / (double)c.n_few : dense;
        r->bytes_per_token += r->bytes[l] - dense;
    }
}

static int take_batch(bench *b, dw_err *err) {
    const size_t n_seq = (size_t)b->o->n_seq, n = n_seq * EXP_SPEED_TOKENS;
    b->logits = dw_alloc(n_seq * (size_t)dw_model_hparams(b->model)->n_vocab, sizeof *b->logits, "logits", err);
    b->token = dw_alloc(n, sizeof *b->token, "a batch", err);
    b->seq = dw_alloc(n, sizeof *b->seq, "a batch", err);
    b->out = dw_alloc(n, 1, "a batch", err);
    return b->logits && b->token && b->seq && b->out ? 0 : -1;
}

static int deepest(const exp_speed_options *o) {
    int most = 0;
    for (int d = 0; d < o->n_depths; d++)
        if (o->depth[d] > most) most = o->depth[d];
    return most;
}

static int load(bench *b, reply *r) {
    b->pool = dw_pool_new(b->o->n_threads, &r->err);
    if (!b->pool) return -1;
    const double start = dw_now();
    b->model = dw_model_open(b->o->path, &r->err);
    if (!b->model || (b->o->huge_pages && kit_huge_pages(b->model, b->pool, &r->err))) return -1;
    const dw_session_options so = {.pool = b->pool,
                                   .backend = b->o->backend,
                                   .n_ctx = deepest(b->o) + EXP_SPEED_TOKENS,
                                   .n_seq = b->o->n_depths * b->o->n_seq,
                                   .n_batch = EXP_SPEED_TOKENS,
                                   .n_out = b->o->n_seq,
                                   .kv = b->o->kv,
                                   .precision = b->o->precision ? tool_precision(b->o->precision) : DW_PRECISION_DEFAULT,
                                   .select = b->o->select};
    b->session = dw_session_new(b->model, &so, &r->err);
    r->load_s = dw_now() - start;
    return b->session && !take_batch(b, &r->err) ? begin_experiment(b, &r->err) : -1;
}

/* Sequences of a depth follow each other.  They have different tokens, because a gated model reads what any opens. */
static int first_seq(const bench *b, int d) { return d * b->o->n_seq; }
static int32_t id_at(const bench *b, int k, int pos) { return b->ids[(pos + 37 * k) % EXP_SPEED_TOKENS]; }

/* Evaluates the next n tokens of every sequence of depth d as one batch, and fetches the logits of each one's last. */
static int advance(bench *b, int d, int n, dw_err *err) {
    const int n_seq = b->o->n_seq;
    for (int k = 0, at = 0; k < n_seq; k++) {
        const int seq = first_seq(b, d) + k, past = dw_session_n_past(b->session, seq);
        for (int i = 0; i < n; i++, at++) {
            b->token[at] = id_at(b, k, past + i);
            b->seq[at] = seq;
            b->out[at] = i == n - 1;
        }
    }
    const dw_batch batch = {.n_tokens = n_seq * n, .token = b->token, .seq = b->seq, .out = b->out};
    if (dw_session_eval(b->session, &batch, err) || dw_session_logits(b->session, 0, n_seq, b->logits, err)) return -1;
    return 0;
}

static void rewind_all(bench *b, int d, int n_past) {
    for (int k = 0; k < b->o->n_seq; k++) dw_session_rewind(b->session, first_seq(b, d) + k, n_past);
}

/* Every sequence of depth d has n tokens in its cache: those that it has already stay there. */
static int go_to(bench *b, int d, int n, dw_err *err) {
    rewind_all(b, d, n);
    for (int past; (past = dw_session_n_past(b->session, first_seq(b, d))) < n;)
        if (advance(b, d, n - past < EXP_SPEED_TOKENS ? n - past : EXP_SPEED_TOKENS, err)) return -1;
    return 0;
}

/* Tokens a second of n tokens a sequence, at once or one by one; NaN for none. */
static int time_tokens(bench *b, int d, int n, bool at_once, double *rate, dw_err *err) {
    const double start = dw_now();
    *rate = NAN;
    if (!n) return 0;
    for (int i = 0; i < n; i += at_once ? n : 1)
        if (advance(b, d, at_once ? n : 1, err)) return -1;
    *rate = n * b->o->n_seq / (dw_now() - start);
    return 0;
}

static int run_round(bench *b, int d, reply *r) {
    const int depth = b->o->depth[d];
    if (go_to(b, d, depth, &r->err)) return -1;
    const exp_watch began = exp_watch_begin();
    if (time_tokens(b, d, b->o->n_prefill, true, &r->prefill_rate, &r->err)) return -1;
    if (!depth) rewind_all(b, d, 0);
    if (go_to(b, d, depth ? depth : EXP_SPEED_PREFIX, &r->err)) return -1;
    dw_session_reset_coverage(b->session);
    if (time_tokens(b, d, b->o->n_decode, false, &r->decode_rate, &r->err)) return -1;
    take_reading(b, &r->reading);
    r->watch = exp_watch_end(&began);
    return 0;
}

static void serve(const void *options, int line) {
    static bench b; // large
    command c;
    b.o = options;
    while (exp_receive(line, &c, sizeof c)) {
        reply r = {0};
        struct rusage usage = {0};
        if (c.what == LOAD && !exp_receive(line, b.ids, sizeof b.ids)) return;
        if (c.what == LOAD)
            load(&b, &r);
        else
            run_round(&b, c.depth, &r);
        getrusage(RUSAGE_SELF, &usage);
        r.peak_rss_bytes = 1024.0 * (double)usage.ru_maxrss;
        if (!exp_send(line, &r, sizeof r)) return;
    }
}

/* ---- the parent ------------------------------------------------------------------------------------------- */

int exp_speed_start(exp_child *c, const exp_speed_options *o, dw_err *err) {
    return exp_child_start(c, serve, o, err) ? dw_fail_in(err, "cannot measure speed") : 0;
}

static int ask(const exp_child *c, command order, const int32_t *ids, reply *r, dw_err *err) {
    if (!exp_send(c->line, &order, sizeof order) ||
        (order.what == LOAD && !exp_send(c->line, ids, EXP_SPEED_TOKENS * sizeof *ids)) ||
        !exp_receive(c->line, r, sizeof *r))
        return dw_fail(err, "the process that measures speed ended (out of memory?); --no-speed leaves it out");
    return r->err.text[0] ? dw_fail(err, "%s", r->err.text) : 0;
}

static void add_watch(exp_watch *sum, const exp_watch *w) {
    sum->wall_s += w->wall_s;
    sum->own_cpu_s += w->own_cpu_s;
    sum->busy_cpu_s += w->busy_cpu_s;
    sum->steal_cpu_s += w->steal_cpu_s;
    sum->load = w->load;
}

typedef struct series { // of one model at one depth
    double *prefill, *decode; // n_rounds
    exp_watch watch;
} series;

static void keep_round(series *s, int round, const reply *r, exp_speed *result) {
    s->prefill[round] = r->prefill_rate;
    s->decode[round] = r->decode_rate;
    result->peak_rss_bytes = r->peak_rss_bytes;
    result->reading = r->reading;
    add_watch(&s->watch, &r->watch);
}

static int load_all(const exp_speed_run *run, exp_speed *results, dw_err *err) {
    reply r;
    for (int i = 0; i < run->n; i++) {
        if (ask(&run->children[i], (command){.what = LOAD}, run->ids[i], &r, err)) return -1;
        for (int d = 0; d < run->n_depths; d++) results[i * run->n_depths + d].load_ms = 1e3 * r.load_s;
    }
    return 0;
}

/* all: (n, n_depths) */
static int run_rounds(const exp_speed_run *run, series *all, exp_speed *results, dw_err *err) {
    reply r;
    for (int round = -1; round < run->n_rounds; round++)
        for (int i = 0; i < run->n; i++)
            for (int d = 0; d < run->n_depths; d++) {
                const int at = i * run->n_depths + d;
                if (ask(&run->children[i], (command){ROUND, d}, NULL, &r, err)) return -1;
                if (run->step) run->step(run->ctx);
                if (round >= 0) keep_round(&all[at], round, &r, &results[at]);
            }
    return 0;
}

int exp_speed_measure(const exp_speed_run *run, exp_speed *results, dw_err *err) {
    const size_t n = (size_t)run->n * (size_t)run->n_depths, n_rounds = (size_t)run->n_rounds;
    double *rate = dw_alloc(n * n_rounds, 2 * sizeof *rate, "rounds", err);
    series *all = dw_alloc(n, sizeof *all, "rounds", err);
    for (size_t i = 0; rate && all && i < n; i++)
        all[i].prefill = rate + 2 * i * n_rounds, all[i].decode = all[i].prefill + n_rounds;
    const int rc = rate && all && !load_all(run, results, err) && !run_rounds(run, all, results, err) ? 0 : -1;
    for (size_t i = 0; i < n && !rc; i++) {
        results[i].prefill_tok_s = exp_spread_of(all[i].prefill, n_rounds);
        results[i].decode_tok_s = exp_spread_of(all[i].decode, n_rounds);
        exp_disturbed(&all[i].watch, run->n_threads, results[i].disturbed, sizeof results[i].disturbed);
    }
    free(rate);
    free(all);
    return rc;
}

/* ---- depths --------------------------------------------------------------------------------------------------- */

static bool has_depth(const int *depths, int n, long depth) {
    for (int i = 0; i < n; i++)
        if (depths[i] == depth) return true;
    return false;
}

int exp_speed_depths(const char *list, int *depths) {
    for (int n = 0; n < EXP_SPEED_MAX_DEPTHS;) {
        char *end;
        const long depth = strtol(list, &end, 10);
        if (end == list || *list == ' ' || (*end && *end != ',') || depth < 0 || depth > EXP_SPEED_MAX_DEPTH) return 0;
        if (has_depth(depths, n, depth)) return 0;
        depths[n++] = (int)depth;
        if (!*end) return n;
        list = end + 1;
    }
    return 0;
}

void exp_speed_name(const exp_speed_options *o, int depth, char *name, size_t size) {
    char pp[16] = "", tg[16] = "", times[16] = "", at[24] = "", rounded[16] = "";
    if (o->n_prefill) snprintf(pp, sizeof pp, "pp%d", o->n_prefill);
    if (o->n_decode) snprintf(tg, sizeof tg, "%stg%d", o->n_prefill ? " " : "", o->n_decode);
    if (o->n_seq > 1) snprintf(times, sizeof times, " x%d", o->n_seq);
    if (depth) snprintf(at, sizeof at, " @ d%d", depth);
    if (o->precision) snprintf(rounded, sizeof rounded, ", %s", o->precision);
    snprintf(name, size, "%s%s%s%s%s%s", pp, tg, times, at, rounded, o->huge_pages ? ", huge pages" : "");
}

void exp_disturbed(const exp_watch *w, int n_threads, char *text, size_t size) {
    const double could = w->wall_s * n_threads, own = w->own_cpu_s / could, steal = w->steal_cpu_s / could;
    const double others = (w->busy_cpu_s - w->own_cpu_s) / w->wall_s;
    const struct {
        const char *word;
        bool is;
        double value;
    } signs[] = {{"cpu", own < 0.85, own},
                 {"steal", steal > 0.02, steal},
                 {"others", others > 0.1, others},
                 {"load", w->load > n_threads + 1, w->load}};
    size_t used = 0;
    snprintf(text, size, "no");
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (signs[i].is && used < size)
            used += (size_t)snprintf(text + used, size - used, "%s%s %.2g", used ? ", " : "", signs[i].word,
                                     signs[i].value);
}
