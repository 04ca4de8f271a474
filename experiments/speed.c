/* speed.c - what the child does when it is told to, and the rounds over all children. */
#include "experiments/speed.h"

#include "model/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

typedef enum command { LOAD, ROUND } command;

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
    float *logits;
    float activity[DW_MAX_LAYERS]; // planted
    dw_random_groups lots;
    int32_t ids[EXP_SPEED_TOKENS];
    int n_prefill;
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
    if (!dw_model_is_gated(b->model) || !b->o->n_decode) return;
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

static int load(bench *b, reply *r) {
    b->pool = dw_pool_new(b->o->n_threads, &r->err);
    if (!b->pool) return -1;
    const double start = dw_now();
    b->model = dw_model_open(b->o->path, &r->err);
    if (!b->model) return -1;
    const dw_hparams *hp = dw_model_hparams(b->model);
    b->n_prefill = hp->n_ctx_train < b->o->n_prefill ? hp->n_ctx_train : b->o->n_prefill;
    const dw_session_options so = {.pool = b->pool,
                                   .backend = b->o->backend,
                                   .n_ctx = EXP_SPEED_TOKENS,
                                   .n_batch = EXP_SPEED_TOKENS,
                                   .n_out = 1,
                                   .kv = b->o->kv,
                                   .select = b->o->select};
    b->session = dw_session_new(b->model, &so, &r->err);
    r->load_s = dw_now() - start;
    b->logits = dw_alloc((size_t)hp->n_vocab, sizeof *b->logits, "logits", &r->err);
    return b->session && b->logits ? begin_experiment(b, &r->err) : -1;
}

/* Evaluates n tokens behind what is there and fetches the logits of the last. */
static int advance(bench *b, const int32_t *ids, int n, dw_err *err) {
    return dw_session_eval(b->session, &(dw_batch){.n_tokens = n, .token = ids}, err) ||
                   dw_session_logits(b->session, 0, 1, b->logits, err)
               ? -1
               : 0;
}

/* Tokens a second of n tokens at once or one by one; NaN for none. */
static int time_tokens(bench *b, const int32_t *ids, int n, bool at_once, double *rate, dw_err *err) {
    const double start = dw_now();
    *rate = NAN;
    if (!n) return 0;
    for (int i = 0; i < n; i += at_once ? n : 1)
        if (advance(b, ids + i, at_once ? n : 1, err)) return -1;
    *rate = n / (dw_now() - start);
    return 0;
}

static int run_round(bench *b, reply *r) {
    const exp_watch began = exp_watch_begin();
    dw_session_rewind(b->session, 0, 0);
    if (time_tokens(b, b->ids, b->n_prefill, true, &r->prefill_rate, &r->err)) return -1;
    dw_session_rewind(b->session, 0, 0);
    if (advance(b, b->ids, EXP_SPEED_PREFIX, &r->err)) return -1;
    dw_session_reset_coverage(b->session);
    if (time_tokens(b, b->ids + EXP_SPEED_PREFIX, b->o->n_decode, false, &r->decode_rate, &r->err))
        return -1;
    take_reading(b, &r->reading);
    r->watch = exp_watch_end(&began);
    return 0;
}

static void serve(const void *options, int line) {
    static bench b; // large
    command what;
    b.o = options;
    while (exp_receive(line, &what, sizeof what)) {
        reply r = {0};
        struct rusage usage = {0};
        if (what == LOAD && !exp_receive(line, b.ids, sizeof b.ids)) return;
        if (what == LOAD)
            load(&b, &r);
        else
            run_round(&b, &r);
        getrusage(RUSAGE_SELF, &usage);
        r.peak_rss_bytes = 1024.0 * (double)usage.ru_maxrss;
        if (!exp_send(line, &r, sizeof r)) return;
    }
}

/* ---- the parent ------------------------------------------------------------------------------------------- */

int exp_speed_start(exp_child *c, const exp_speed_options *o, dw_err *err) {
    return exp_child_start(c, serve, o, err) ? dw_fail_in(err, "cannot measure speed") : 0;
}

static int ask(const exp_child *c, command what, const int32_t *ids, reply *r, dw_err *err) {
    if (!exp_send(c->line, &what, sizeof what) ||
        (what == LOAD && !exp_send(c->line, ids, EXP_SPEED_TOKENS * sizeof *ids)) || !exp_receive(c->line, r, sizeof *r))
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

int exp_speed_measure(exp_child *children, int n, const int32_t *const *ids, int n_threads, int n_rounds,
                      exp_speed *results, void (*step)(void *ctx), void *ctx, dw_err *err) {
    double *rate = dw_alloc((size_t)n * (size_t)n_rounds, 2 * sizeof *rate, "rounds", err);
    exp_watch *watch = dw_alloc((size_t)n, sizeof *watch, "rounds", err);
    int rc = rate && watch ? 0 : -1;
    reply r;
    for (int i = 0; i < n && !rc; i++) {
        rc = ask(&children[i], LOAD, ids[i], &r, err);
        results[i].load_ms = 1e3 * r.load_s;
    }
    for (int round = -1; round < n_rounds && !rc; round++)
        for (int i = 0; i < n && !rc; i++) {
            rc = ask(&children[i], ROUND, NULL, &r, err);
            if (step) step(ctx);
            if (round < 0 || rc) continue;
            double *prefill = rate + (size_t)i * 2 * (size_t)n_rounds, *decode = prefill + n_rounds;
            prefill[round] = r.prefill_rate;
            decode[round] = r.decode_rate;
            results[i].peak_rss_bytes = r.peak_rss_bytes;
            results[i].reading = r.reading;
            add_watch(&watch[i], &r.watch);
        }
    for (int i = 0; i < n && !rc; i++) {
        double *prefill = rate + (size_t)i * 2 * (size_t)n_rounds;
        results[i].prefill_tok_s = exp_spread_of(prefill, (size_t)n_rounds);
        results[i].decode_tok_s = exp_spread_of(prefill + n_rounds, (size_t)n_rounds);
        exp_disturbed(&watch[i], n_threads, results[i].disturbed, sizeof results[i].disturbed);
    }
    free(rate);
    free(watch);
    return rc;
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
