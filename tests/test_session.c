/* test_session.c - what must hold for any model and every backend: prefill equals decode, sequences do not touch
 * each other, lists of neurons, taps, refusals. */
#include "build.h"
#include "engine.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Largest NMSE of logits that differ only by rounding: of one backend on two ways through it, and of the list path. */
static const struct backend_bound {
    const char *name;
    double ways, list;
} backends[] = {{"ref", 1e-12, 1e-10}, {"cpu", 1e-4, 1e-6}, {0}};

static const char *const shapes[] = {"tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-deci", "tiny-openelm", NULL};

enum { N = 40, MAX_VOCAB = 4096 };

typedef struct run {
    dw_pool *pool;
    dw_model *model;
    dw_session *session;
    int n_vocab;
    bool changes; // other numbers of threads are present, from pass to pass
} run;

static bool open_threads(run *r, const char *path, dw_session_options o, int n_threads) {
    dw_err err = {0};
    *r = (run){.pool = dw_pool_new(n_threads, &err)};
    o.pool = r->pool;
    if (!o.n_ctx) o.n_ctx = 128;
    r->model = dw_model_open(path, &err);
    r->session = r->model ? dw_session_new(r->model, &o, &err) : NULL;
    r->n_vocab = r->model ? dw_model_hparams(r->model)->n_vocab : 0;
    return CHECK(r->session && r->n_vocab <= MAX_VOCAB, "%s", err.text);
}

static bool open_run(run *r, const char *path, dw_session_options o) { return open_threads(r, path, o, 2); }

static void close_run(run *r) {
    dw_session_free(r->session);
    dw_model_close(r->model);
    dw_pool_free(r->pool);
}

static uint8_t all_out[1024];

/* Logits of n tokens of sequence seq from position first on, in pieces of `step` tokens. */
static void logits_of(run *r, const int32_t *token, int n, int step, int seq_id, float *logits) {
    dw_err err = {0};
    memset(all_out, 1, sizeof all_out);
    for (int i = 0; i < n; i += step) {
        const int k = n - i < step ? n - i : step;
        int32_t seq[sizeof all_out];
        for (int j = 0; j < k; j++) seq[j] = seq_id;
        if (r->changes) dw_pool_rest(r->pool, 1 + i / step % dw_pool_size(r->pool), 60);
        CHECK(!dw_session_eval(r->session, &(dw_batch){.n_tokens = k, .token = token + i, .seq = seq, .out = all_out},
                               &err) &&
                  !dw_session_logits(r->session, 0, k, logits + (size_t)i * (size_t)r->n_vocab, &err),
              "%s", err.text);
    }
}

static float *logit_rows(int n_vocab) { return calloc((size_t)N * (size_t)n_vocab, sizeof(float)); }

/* ---- ways through the same computation ------------------------------------------------------------------------ */

static void prefill_decode(void) {
    for (const struct backend_bound *b = backends; b->name; b++) {
        for (int s = 0; shapes[s]; s++) {
            run r;
            if (!open_run(&r, random_model(shapes[s], "F32", 0),
                          (dw_session_options){.backend = b->name, .kv = DW_KV_CACHE_F32}))
                continue;
            int32_t token[N];
            random_tokens(token, N, r.n_vocab, 1);
            float *whole = logit_rows(r.n_vocab), *single = logit_rows(r.n_vocab);
            logits_of(&r, token, N, N, 0, whole);
            dw_session_rewind(r.session, 0, 0);
            logits_of(&r, token, N, 1, 0, single);
            const double e = nmse(single, whole, (size_t)N * (size_t)r.n_vocab);
            CHECK(e <= b->ways, "%s, %s: NMSE %.1e, allowed %.0e", b->name, shapes[s], e, b->ways);
            free(whole), free(single);
            close_run(&r);
        }
    }
}

static void rewind_kv(void) {
    for (const struct backend_bound *b = backends; b->name; b++) {
        run r;
        if (!open_run(&r, random_model("tiny-qwen2", "Q8_0", 0), (dw_session_options){.backend = b->name})) continue;
        int32_t token[N], other[N];
        random_tokens(token, N, r.n_vocab, 2);
        random_tokens(other, N, r.n_vocab, 3);
        float *first = logit_rows(r.n_vocab), *again = logit_rows(r.n_vocab);
        logits_of(&r, token, N, N, 0, first);
        dw_session_rewind(r.session, 0, 0);
        logits_of(&r, other, N, N, 0, again); // fills the cache with something else
        dw_session_rewind(r.session, 0, 0);
        logits_of(&r, token, N, N, 0, again);
        CHECK(!memcmp(first, again, (size_t)N * (size_t)r.n_vocab * sizeof *first), "%s", b->name);

        dw_session_rewind(r.session, 0, N / 2); // and from the middle on
        logits_of(&r, token + N / 2, N / 2, N, 0, again);
        const double e = nmse(again, first + (size_t)(N / 2) * (size_t)r.n_vocab, (size_t)(N / 2) * (size_t)r.n_vocab);
        CHECK(e <= b->ways, "%s: NMSE %.1e", b->name, e);
        CHECK(dw_session_n_past(r.session, 0) == N);
        free(first), free(again);
        close_run(&r);
    }
}

static void sequences(void) {
    for (const struct backend_bound *b = backends; b->name; b++) {
        run r;
        if (!open_run(&r, random_model("tiny-qwen3", "F32", 0),
                      (dw_session_options){.backend = b->name, .n_seq = 3, .kv = DW_KV_CACHE_F32}))
            continue;
        int32_t token[3][N], mixed[3 * N], seq[3 * N];
        float *alone[3], *together = calloc(3 * (size_t)N * (size_t)r.n_vocab, sizeof *together);
        for (int s = 0; s < 3; s++) {
            random_tokens(token[s], N, r.n_vocab, 10 + (uint64_t)s);
            alone[s] = logit_rows(r.n_vocab);
            logits_of(&r, token[s], N, N, s, alone[s]);
            dw_session_rewind(r.session, s, 0);
        }
        for (int i = 0; i < 3 * N; i++) mixed[i] = token[i % 3][i / 3], seq[i] = i % 3;
        dw_err err = {0};
        memset(all_out, 1, sizeof all_out);
        CHECK(!dw_session_eval(r.session, &(dw_batch){.n_tokens = 3 * N, .token = mixed, .seq = seq, .out = all_out},
                               &err) &&
                  !dw_session_logits(r.session, 0, 3 * N, together, &err),
              "%s", err.text);
        for (int i = 0; i < 3 * N; i++) {
            const double e = nmse(together + (size_t)i * (size_t)r.n_vocab,
                                  alone[i % 3] + (size_t)(i / 3) * (size_t)r.n_vocab, (size_t)r.n_vocab);
            if (!CHECK(e <= b->ways, "%s: token %d of sequence %d: NMSE %.1e", b->name, i / 3, i % 3, e)) break;
        }
        for (int s = 0; s < 3; s++) free(alone[s]);
        free(together);
        close_run(&r);
    }
}

/* In the last layer tokens without an output row end early.  The others' logits stay the same, bit for bit where exact,
 * and so do the keys and values that later tokens read. */
static void few_rows(void) {
    static uint8_t some[N];
    for (const struct backend_bound *b = backends; b->name; b++)
        for (int s = 0; shapes[s]; s++) {
            run r;
            dw_err err = {0};
            int32_t token[N];
            if (!open_run(&r, random_model(shapes[s], "F32", 0), (dw_session_options){.backend = b->name, .exact = true}))
                continue;
            random_tokens(token, N, r.n_vocab, 3);
            float *all = logit_rows(r.n_vocab), *few = logit_rows(r.n_vocab);
            logits_of(&r, token, N, N, 0, all);
            dw_session_rewind(r.session, 0, 0);
            int n_rows = 0;
            for (int i = 0; i < N - 1; i++) some[i] = i >= 8 && i % 3 == 0; // the first pass of 8 tokens gives none
            CHECK(!dw_session_eval(r.session, &(dw_batch){.n_tokens = 8, .token = token, .out = some}, &err) &&
                      !dw_session_eval(r.session, &(dw_batch){.n_tokens = N - 9, .token = token + 8, .out = some + 8},
                                       &err),
                  "%s", err.text);
            for (int i = 8; i < N - 1; i++) {
                if (!some[i]) continue;
                CHECK(!dw_session_logits(r.session, n_rows++, 1, few, &err), "%s", err.text);
                CHECK(!memcmp(few, all + (size_t)i * (size_t)r.n_vocab, (size_t)r.n_vocab * sizeof *few),
                      "%s, %s: the logits of token %d differ", b->name, shapes[s], i);
            }
            CHECK(!dw_session_eval(r.session, &(dw_batch){.n_tokens = 1, .token = token + N - 1}, &err) &&
                      !dw_session_logits(r.session, 0, 1, few, &err),
                  "%s", err.text);
            CHECK(!memcmp(few, all + (size_t)(N - 1) * (size_t)r.n_vocab, (size_t)r.n_vocab * sizeof *few),
                  "%s, %s: the logits of the token after them differ", b->name, shapes[s]);
            free(all);
            free(few);
            close_run(&r);
        }
}

/* exact: bit for bit the same whatever the batch, the cut into passes and the threads. */
static void exact_passes(void) {
    const struct {
        const char *type;
        dw_precision precision;
    } cases[] = {{"F32", DW_PRECISION_SPLIT},  {"F16", DW_PRECISION_SPLIT},    {"BF16", DW_PRECISION_SPLIT},
                 {"Q4_0", DW_PRECISION_SPLIT}, {"Q8_0", DW_PRECISION_SPLIT},   {"Q4_K", DW_PRECISION_SPLIT},
                 {"F16", DW_PRECISION_BF16},   {"BF16", DW_PRECISION_BF16},    {"Q4_0", DW_PRECISION_INT8},
                 {"Q6_K", DW_PRECISION_INT8},  {"Q4_0", DW_PRECISION_ROUNDED}, {"F32", DW_PRECISION_ROUNDED}};
    const struct {
        int n_threads, n_batch, step;
    } ways[] = {{1, 64, N}, {2, 64, N}, {3, 7, N}, {2, 64, 1}, {1, 64, 13}};
    for (const struct backend_bound *b = backends; b->name; b++) {
        for (size_t t = 0; t < sizeof cases / sizeof *cases; t++) {
            float *first = NULL;
            double *first_logprob = calloc(N, sizeof *first_logprob), logprob[N];
            for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
                run r;
                const dw_session_options o = {.backend = b->name,
                                              .n_batch = ways[w].n_batch,
                                              .n_out = N,
                                              .exact = true,
                                              .precision = cases[t].precision};
                dw_err err = {0};
                if (!open_threads(&r, random_model("tiny-llama", cases[t].type, 0), o, ways[w].n_threads)) continue;
                int32_t token[N];
                random_tokens(token, N, r.n_vocab, 4);
                float *logits = logit_rows(r.n_vocab);
                logits_of(&r, token, N, ways[w].step, 0, logits);
                if (!first) first = logits;
                else
                    CHECK(!memcmp(first, logits, (size_t)N * (size_t)r.n_vocab * sizeof *logits), "%s %s: way %zu",
                          b->name, cases[t].type, w);
                if (first != logits) free(logits);
                const int n_out = (N - 1) % ways[w].step + 1; // of the last piece
                CHECK(!dw_session_logprobs(r.session, n_out - 1, 1, token, logprob, &err), "%s", err.text);
                if (w == 0) *first_logprob = *logprob;
                CHECK(*logprob == *first_logprob, "%s %s: way %zu: ln p %.17g, %.17g", b->name, cases[t].type, w,
                      *logprob, *first_logprob);
                close_run(&r);
            }
            free(first);
            free(first_logprob);
        }
    }
}

/* Threads that other processes keep from their cores are left out of passes: only the time changes. */
static void present_threads(void) {
    static const char *const types[] = {"F32", "F16", "BF16", "Q4_0", "Q4_K", NULL};
    for (const struct backend_bound *b = backends; b->name; b++)
        for (int t = 0; types[t]; t++)
            for (int step = 1; step <= N; step = step < 3 ? 3 : step < 8 ? 8 : step < N ? N : N + 1) {
                run r;
                if (!open_threads(&r, random_model("tiny-llama", types[t], 0), (dw_session_options){.backend = b->name},
                                  3))
                    continue;
                int32_t token[N];
                random_tokens(token, N, r.n_vocab, 7);
                float *all = logit_rows(r.n_vocab), *present = logit_rows(r.n_vocab);
                logits_of(&r, token, N, step, 0, all);
                dw_session_rewind(r.session, 0, 0);
                r.changes = true;
                logits_of(&r, token, N, step, 0, present);
                CHECK(!memcmp(all, present, (size_t)N * (size_t)r.n_vocab * sizeof *all), "%s %s, %d at a time",
                      b->name, types[t], step);
                free(all), free(present);
                close_run(&r);
            }
}

/* Neurons and every third gate of layer 1, by position. */
typedef struct shown {
    int n_gates;
    float *neuron, *gate;
} shown;

static void keep_shown(void *ctx, const dw_tap_event *event) {
    shown *s = ctx;
    for (int t = 0; t < event->n_tokens && event->layer == 1; t++) {
        const float *row = event->values + (size_t)t * (size_t)event->n;
        const size_t bytes = (size_t)event->n * sizeof *row, at = (size_t)event->pos[t] * (size_t)event->n;
        if (event->point == DW_TAP_FFN_NEURON)
            memcpy(s->neuron + at, row, bytes);
        else if (event->pos[t] % 3 == 0)
            memcpy(s->gate + at, row, bytes), s->n_gates++;
    }
}

/* Neurons stay packed for the product with down in passes of more than DW_GEMM_FEW tokens; more than DW_GEMM_TOKENS are
 * two groups.  Taps do not change the logits.  Exact logits, neurons and gates are the same bits as of small passes. */
static void packed_neurons(void) {
    const struct {
        const char *type;
        dw_precision precision;
        bool exact;
        int n;
    } cases[] = {{"F32", DW_PRECISION_SPLIT, true, 90},   {"BF16", DW_PRECISION_SPLIT, false, 150},
                 {"F16", DW_PRECISION_BF16, false, 90},   {"F16", DW_PRECISION_BF16, true, 150},
                 {"Q4_0", DW_PRECISION_INT8, false, 530}, {"Q4_K", DW_PRECISION_ROUNDED, true, 530}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run r;
        const int n = cases[i].n, n_ways = cases[i].exact ? 4 : 2, step[] = {n, n, 64, 13};
        const dw_session_options o = {.backend = "cpu", .n_ctx = n, .n_batch = n, .precision = cases[i].precision,
                                      .exact = cases[i].exact};
        if (!open_threads(&r, random_model("tiny-llama", cases[i].type, 0), o, 2)) continue;
        const size_t bytes = (size_t)n * (size_t)r.n_vocab * sizeof(float);
        const int n_ff = dw_model_hparams(r.model)->n_ff[1];
        const size_t n_values = (size_t)n * (size_t)n_ff;
        int32_t token[sizeof all_out];
        float *packed = malloc(bytes), *logits = malloc(bytes);
        shown of[4] = {{0}};
        random_tokens(token, n, r.n_vocab, 7);
        for (int way = 0; way < n_ways; way++) {
            shown *s = &of[way];
            *s = (shown){0, calloc(n_values, sizeof(float)), calloc(n_values, sizeof(float))};
            const dw_tap tap = {
                .points = 1u << DW_TAP_FFN_NEURON | 1u << DW_TAP_FFN_GATE, .fn = keep_shown, .ctx = s, .gate_every = 3};
            dw_session_set_tap(r.session, way ? &tap : NULL);
            dw_session_rewind(r.session, 0, 0);
            logits_of(&r, token, n, step[way], 0, way ? logits : packed);
            CHECK(!way || !memcmp(packed, logits, bytes), "%s, %d tokens: way %d", cases[i].type, n, way);
            CHECK(!way || s->n_gates == (n + 2) / 3, "%s: %d gates", cases[i].type, s->n_gates);
            CHECK(way < 2 || (!memcmp(s->neuron, of[1].neuron, n_values * sizeof(float)) &&
                              !memcmp(s->gate, of[1].gate, n_values * sizeof(float))),
                  "%s, %d tokens: neurons or gates of way %d", cases[i].type, n, way);
        }
        for (int way = 0; way < n_ways; way++) free(of[way].neuron), free(of[way].gate);
        free(packed);
        free(logits);
        close_run(&r);
    }
}

static void logprobs_are_softmax(void) {
    for (const struct backend_bound *b = backends; b->name; b++) {
        run r;
        dw_err err = {0};
        if (!open_run(&r, random_model("tiny-qwen2", "F32", 0), (dw_session_options){.backend = b->name})) continue;
        int32_t token[N], target[N];
        random_tokens(token, N, r.n_vocab, 5);
        random_tokens(target, N, r.n_vocab, 6);
        float *logits = logit_rows(r.n_vocab);
        double logprob[N];
        logits_of(&r, token, N, N, 0, logits);
        CHECK(!dw_session_logprobs(r.session, 0, N, target, logprob, &err), "%s", err.text);
        for (int i = 0; i < N; i++) {
            const float *row = logits + (size_t)i * (size_t)r.n_vocab;
            double sum = 0;
            for (int v = 0; v < r.n_vocab; v++) sum += exp(row[v]);
            const double expected = row[target[i]] - log(sum);
            if (!CHECK(fabs(logprob[i] - expected) < 1e-4, "%s: row %d: %.6f, expected %.6f", b->name, i, logprob[i],
                       expected))
                break;
        }
        free(logits);
        close_run(&r);
    }
}

/* ---- selection -------------------------------------------------------------------------------------------------- */

typedef struct lists { // one list of neurons a layer
    int32_t *neuron[64], n[64];
} lists;

/* All neurons but those that synth planted dead. */
static void live_neurons(const dw_model *m, lists *out) {
    const dw_hparams *hp = dw_model_hparams(m);
    const dw_kv *dead = dw_gguf_find(dw_model_gguf(m), "deadwood.synth.dead");
    for (int l = 0; l < hp->n_layer; l++) {
        out->neuron[l] = calloc((size_t)hp->n_ff[l], sizeof(int32_t));
        out->n[l] = 0;
        for (int j = 0; j < hp->n_ff[l]; j++) {
            bool is_dead = false;
            for (size_t i = 0; dead && i + 1 < dead->count && !is_dead; i += 2)
                is_dead = dw_kv_number(dead, i) == l && dw_kv_number(dead, i + 1) == j;
            if (!is_dead) out->neuron[l][out->n[l]++] = j;
        }
    }
}

static void check_lists(double planted, bool expect_fewer) {
    const char *types[] = {"F32", "Q4_0", "Q8_0"};
    for (const struct backend_bound *b = backends; b->name; b++) {
        for (int s = 0; shapes[s]; s++) {
            for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
                run r;
                dw_err err = {0};
                if (!open_run(&r, random_model(shapes[s], types[t], planted),
                              (dw_session_options){.backend = b->name, .kv = DW_KV_CACHE_F32}))
                    continue;
                int32_t token[N];
                random_tokens(token, N, r.n_vocab, 7);
                lists l;
                live_neurons(r.model, &l);
                CHECK(!expect_fewer || l.n[0] < dw_model_hparams(r.model)->n_ff[0]);
                float *dense = logit_rows(r.n_vocab), *listed = logit_rows(r.n_vocab);
                for (int step = 1; step <= N; step += N - 1) { // decode, then prefill
                    dw_session_rewind(r.session, 0, 0);
                    dw_session_set_selection(r.session, NULL, NULL);
                    logits_of(&r, token, N, step, 0, dense);
                    dw_session_rewind(r.session, 0, 0);
                    const dw_selection sel = {(const int32_t *const *)l.neuron, l.n};
                    CHECK(!dw_session_set_selection(r.session, &sel, &err), "%s", err.text);
                    logits_of(&r, token, N, step, 0, listed);
                    const double e = nmse(listed, dense, (size_t)N * (size_t)r.n_vocab);
                    CHECK(e <= b->list, "%s, %s %s, %d at a time: NMSE %.1e, allowed %.0e", b->name, shapes[s],
                          types[t], step, e, b->list);
                }
                for (int k = 0; k < dw_model_hparams(r.model)->n_layer; k++) free(l.neuron[k]);
                free(dense), free(listed);
                close_run(&r);
            }
        }
    }
}

static void list_of_all(void) { check_lists(0, false); }
static void list_of_live(void) { check_lists(0.3, true); }

static void bad_lists(void) {
    run r;
    if (!open_run(&r, random_model("tiny-llama", "F32", 0), (dw_session_options){0})) return;
    int32_t twice[] = {3, 3}, beyond[] = {0, 128}, negative[] = {-1}, *bad[] = {twice, beyond, negative},
            n[] = {2, 2, 1};
    for (int i = 0; i < 3; i++) {
        dw_err err = {0};
        const int32_t *neuron[4] = {NULL, bad[i]}, count[4] = {0, n[i]};
        CHECK(dw_session_set_selection(r.session, &(dw_selection){neuron, count}, &err) == -1 &&
                  strstr(err.text, "layer 1"),
              "%s", err.text);
    }
    close_run(&r);
}

/* ---- taps -------------------------------------------------------------------------------------------------------- */

typedef struct seen { // what a tap saw of layer 1
    int n_events[DW_N_TAP_POINTS], n_tokens[DW_N_TAP_POINTS];
    float gate[N * 256], neuron[N * 256], mix[N * 256];
    double power[DW_N_TAP_POINTS];
    int last_layer;
} seen;

static void look(void *ctx, const dw_tap_event *e) {
    seen *s = ctx;
    s->n_events[e->point]++;
    s->n_tokens[e->point] += e->n_tokens;
    for (size_t i = 0; i < (size_t)e->n_tokens * (size_t)e->n; i++)
        s->power[e->point] += (double)e->values[i] * e->values[i];
    CHECK(e->layer >= s->last_layer || e->point == DW_TAP_RESIDUAL, "layers come in order");
    s->last_layer = e->layer;
    float *keep = e->point == DW_TAP_FFN_GATE     ? s->gate
                  : e->point == DW_TAP_FFN_NEURON ? s->neuron
                  : e->point == DW_TAP_ATTN_MIX   ? s->mix
                                                  : NULL;
    if (keep && e->layer == 1) memcpy(keep, e->values, (size_t)e->n_tokens * (size_t)e->n * sizeof *keep);
}

static void taps(void) {
    static seen s[2]; // ref, cpu
    memset(s, 0, sizeof s);
    int n_layer = 0, n_ff = 0, n_mix = 0;
    for (int k = 0; k < 2; k++) {
        run r;
        if (!open_run(&r, random_model("tiny-qwen2", "F32", 0),
                      (dw_session_options){.backend = backends[k].name, .kv = DW_KV_CACHE_F32}))
            return;
        const dw_hparams *hp = dw_model_hparams(r.model);
        n_layer = hp->n_layer, n_ff = hp->n_ff[1], n_mix = hp->n_head[1] * hp->head_dim;
        REQUIRE(n_ff <= 256 && n_mix <= 256);
        int32_t token[N];
        random_tokens(token, N, r.n_vocab, 8);
        float *plain = logit_rows(r.n_vocab), *tapped = logit_rows(r.n_vocab);
        logits_of(&r, token, N, N, 0, plain);
        dw_session_rewind(r.session, 0, 0);
        dw_session_set_tap(r.session, &(dw_tap){.points = (1u << DW_N_TAP_POINTS) - 1, .fn = look, .ctx = &s[k]});
        logits_of(&r, token, N, N, 0, tapped);
        CHECK(!memcmp(plain, tapped, (size_t)N * (size_t)r.n_vocab * sizeof *plain), "%s: a tap changes nothing",
              backends[k].name);
        free(plain), free(tapped);
        close_run(&r);
        for (int p = 0; p < DW_N_TAP_POINTS; p++) {
            const int expected = p == DW_TAP_RESIDUAL ? n_layer + 1 : p == DW_TAP_HEAD_IN ? 1 : n_layer;
            CHECK(s[k].n_events[p] == expected, "%s: point %d: %d events, expected %d", backends[k].name, p,
                  s[k].n_events[p], expected);
            CHECK(s[k].n_tokens[p] == N * expected, "%s: point %d: %d tokens", backends[k].name, p, s[k].n_tokens[p]);
            CHECK(s[k].power[p] > 0, "%s: point %d is all zero", backends[k].name, p);
        }
    }
    CHECK(nmse(s[1].gate, s[0].gate, (size_t)N * (size_t)n_ff) <= 1e-6, "gate");
    CHECK(nmse(s[1].neuron, s[0].neuron, (size_t)N * (size_t)n_ff) <= 1e-6, "neuron");
    CHECK(nmse(s[1].mix, s[0].mix, (size_t)N * (size_t)n_mix) <= 1e-6, "mix");
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void refusals(void) {
    run r;
    if (!open_run(&r, random_model("tiny-llama", "F32", 0), (dw_session_options){.n_ctx = 8, .n_seq = 2})) return;
    const int32_t token[10] = {0}, big = r.n_vocab, negative = -1, seq = 2, gap = 5, back[] = {0, 1, 2, 1};
    const struct {
        dw_batch b;
        const char *says;
    } bad[] = {{{.n_tokens = 1, .token = &big}, "vocabulary"},
               {{.n_tokens = 1, .token = &negative}, "vocabulary"},
               {{.n_tokens = 1, .token = token, .seq = &seq}, "sequence 2"},
               {{.n_tokens = 1, .token = token, .pos = &gap}, "position 5"},
               {{.n_tokens = 4, .token = token, .pos = back}, "position 1"},
               {{.n_tokens = 10, .token = token}, "context"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dw_err err = {0};
        dw_session_rewind(r.session, 0, 0);
        CHECK(dw_session_eval(r.session, &bad[i].b, &err) == -1 && strstr(err.text, bad[i].says), "case %zu: %s", i,
              err.text);
        CHECK(dw_session_n_past(r.session, 0) == 0, "case %zu: after an error nothing has moved", i);
    }
    dw_err err = {0};
    float logits[1];
    CHECK(dw_session_logits(r.session, 5, 3, logits, &err) == -1, "output rows that are not there");
    err = (dw_err){0};
    CHECK(!dw_session_new(r.model, &(dw_session_options){.pool = r.pool, .backend = "abacus"}, &err) &&
              strstr(err.text, "abacus"),
          "%s", err.text);
    close_run(&r);
}

/* A file of keys only whose heads have n_embd / n_head values. */
static void head_width(int n_embd, int n_head, const char *says) {
    dw_err err = {0}, why = {0};
    dw_gguf_writer *w = dw_gguf_writer_new(test_file("heads.gguf"), &err);
    dw_gguf_set_text(w, "general.architecture", "llama");
    dw_gguf_set_u32(w, "llama.block_count", 1);
    dw_gguf_set_u32(w, "llama.embedding_length", (uint32_t)n_embd);
    dw_gguf_set_u32(w, "llama.context_length", 64);
    dw_gguf_set_u32(w, "llama.feed_forward_length", 32);
    dw_gguf_set_u32(w, "llama.attention.head_count", (uint32_t)n_head);
    dw_gguf_set_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    CHECK(!dw_gguf_begin(w, &err) && !dw_gguf_commit(w, &err), "%s", err.text);
    dw_gguf_writer_free(w);
    CHECK(!dw_model_open(test_file("heads.gguf"), &why) && strstr(why.text, says), "%s", why.text);
}

/* The reference backend keeps one head's values on its stack. */
static void head_widths(void) {
    head_width(4096, 1, "token_embd.weight"); // its first tensor is missing: the width was accepted
    head_width(4160, 1, "heads have 4160 values");
    head_width(4, 8, "heads have 0 values");
}

static void memory_known(void) {
    run r;
    if (!open_run(&r, random_model("tiny-llama", "F32", 0), (dw_session_options){0})) return;
    const dw_session_options small = {.pool = r.pool, .n_ctx = 64}, large = {.pool = r.pool, .n_ctx = 128};
    const dw_hparams *hp = dw_model_hparams(r.model);
    size_t cache = 0;
    for (int l = 0; l < hp->n_layer; l++) cache += 64u * 2 * 2 * (size_t)(hp->n_head_kv[l] * hp->head_dim);
    CHECK(dw_session_memory(r.model, &large) >= dw_session_memory(r.model, &small) + cache,
          "64 positions more cost their cache");
    close_run(&r);
}

/* Each backend computes with the activation that the session has now, whatever the file says. */
static void activation_changes(void) {
    static const char *const acts[] = {"relu", "silu"}; // the file's own is the second
    run r[2];
    int32_t token[N];
    float *logits[2][2]; // by backend, by activation
    for (int b = 0; backends[b].name; b++) {
        if (!open_run(&r[b], random_model("tiny-llama", "F32", 0),
                      (dw_session_options){.backend = backends[b].name, .kv = DW_KV_CACHE_F32}))
            return;
        random_tokens(token, N, r[b].n_vocab, 3);
        for (int a = 0; a < 2; a++) {
            dw_err err = {0};
            logits[b][a] = logit_rows(r[b].n_vocab);
            CHECK(!dw_session_activation(r[b].session, acts[a], &err), "%s", err.text);
            dw_session_rewind(r[b].session, 0, 0);
            logits_of(&r[b], token, N, a ? N : 1, 0, logits[b][a]); // few and many
        }
    }
    const size_t n = (size_t)N * (size_t)r[0].n_vocab;
    CHECK(nmse(logits[0][0], logits[0][1], n) > 1e-3, "%.1e", nmse(logits[0][0], logits[0][1], n));
    for (int a = 0; a < 2; a++)
        CHECK(nmse(logits[1][a], logits[0][a], n) < 1e-4, "%s: %.1e", acts[a], nmse(logits[1][a], logits[0][a], n));
    for (int b = 0; b < 2; b++) free(logits[b][0]), free(logits[b][1]), close_run(&r[b]);
}

/* ---- huge pages ----------------------------------------------------------------------------------------------- */

static bool is_in_file(const dw_model *m, const dw_tensor *t) {
    const dw_tensor *first = dw_gguf_tensor(dw_model_gguf(m), 0);
    return t->data >= first->data && t->data < first->data + dw_gguf_file_bytes(dw_model_gguf(m));
}

static float *logits_in(const char *path, const char *backend, bool huge) {
    dw_err err = {0};
    int32_t token[N];
    run r = {.pool = two_threads(), .model = dw_model_open(path, &err)};
    float *logits = NULL;
    if (!CHECK(r.model && (!huge || !dw_model_to_huge_pages(r.model, r.pool, &err)), "%s", err.text)) goto end;
    CHECK(!huge || !dw_model_to_huge_pages(r.model, r.pool, &err), "%s", err.text); // the second call does nothing
    r.session = dw_session_new(r.model, &(dw_session_options){.pool = r.pool, .backend = backend, .n_ctx = N}, &err);
    if (!CHECK(r.session, "%s", err.text)) goto end;
    const dw_tensor q = dw_session_tensor(r.session, 0, DW_W_Q), output = dw_session_tensor(r.session, 0, DW_W_OUTPUT);
    CHECK(is_in_file(r.model, &q) == !huge && is_in_file(r.model, &output) == !huge, "%s", path);
    CHECK(!dw_session_replace(r.session, 0, DW_W_Q, &q, &err) && !dw_session_replace(r.session, 0, DW_W_Q, NULL, &err) &&
              dw_session_tensor(r.session, 0, DW_W_Q).data == q.data,
          "%s", err.text);
    r.n_vocab = dw_model_hparams(r.model)->n_vocab;
    random_tokens(token, N, r.n_vocab, 3);
    logits = logit_rows(r.n_vocab);
    logits_of(&r, token, N / 2, N, 0, logits);                                                      // the many way
    logits_of(&r, token + N / 2, N / 2, 1, 0, logits + (size_t)(N / 2) * (size_t)r.n_vocab); // and the few
end:
    dw_session_free(r.session);
    dw_model_close(r.model);
    return logits;
}

static void check_huge(const char *path) {
    dw_err err = {0};
    dw_model *m = dw_model_open(path, &err);
    if (!CHECK(m, "%s", err.text)) return;
    const size_t n = (size_t)N * (size_t)dw_model_hparams(m)->n_vocab;
    dw_model_close(m);
    for (const struct backend_bound *b = backends; b->name; b++) {
        float *mapped = logits_in(path, b->name, false), *huge = logits_in(path, b->name, true);
        CHECK(mapped && huge && !memcmp(mapped, huge, n * sizeof *huge), "%s with %s", path, b->name);
        free(mapped), free(huge);
    }
}

static void huge_pages(void) {
    if (!dw_pages_may_be_huge()) SKIP("this system gives no huge pages");
    for (int s = 0; shapes[s]; s++) check_huge(random_model(shapes[s], "Q8_0", 0));
    const char *gated = test_file("huge-gated.gguf");
    write_gated(random_model("tiny-qwen2", "Q8_0", 0), gated, &(gated_file){.twin = true, .group = 32, .rank = 4});
    check_huge(gated);
}

static const test_case cases[] = {
    {"prefill equals decode for every architecture", prefill_decode},
    {"a rewound cache gives the same logits again", rewind_kv},
    {"sequences evaluated together equal each alone", sequences},
    {"tokens without output rows change nothing of the others", few_rows},
    {"exact passes give the same bits for any threads, batch and cut", exact_passes},
    {"passes on fewer threads, because others have lost their cores, give the same bits", present_threads},
    {"neurons that stay packed for down give the same bits as others", packed_neurons},
    {"log-probabilities are the softmax of the logits", logprobs_are_softmax},
    {"the list path with all neurons listed equals dense", list_of_all},
    {"the list path without planted dead neurons equals dense", list_of_live},
    {"neuron lists out of order or range are refused", bad_lists},
    {"taps see every layer's values, whole batches, and change nothing", taps},
    {"bad batches and options are refused in a sentence", refusals},
    {"heads are of a width that backends have room for", head_widths},
    {"a session's memory is known beforehand", memory_known},
    {"a session computes with the activation that it was given last", activation_changes},
    {"a model in huge pages gives the same bits", huge_pages},
    {0}};
TEST_MAIN(cases)
