/* test_score.c - the harness: protocols, statistics, distributions, the stored base, rows, and the program itself. */
#include "build.h"
#include "measure/continuations.h"
#include "measure/evaluate.h"
#include "experiments/measures.h"
#include "experiments/random_model.h"
#include "experiments/speed.h"
#include "measure/statistics.h"
#include "test.h"
#include "kit/lineage.h"
#include "kit/tsv.h"
#include "text/json.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- files ------------------------------------------------------------------------------------------------ */

typedef struct change {   // what a rewritten model gets
    const char *zero;     // tensors whose name contains it become zeros
    const char *nan;      // likewise NaN (F32)
    const char *drop_key; // keys that begin with it are left out
    const char *lineage;  // one step, as JSON
    bool imatrix;         // a key of a quantizer that had importances
} change;

/* A tiny model as synth makes it; its path. */
static const char *model(const char *name, const char *shape, int type, uint64_t seed) {
    dw_err err = {0};
    const char *path = test_file(name);
    dw_pool *pool = dw_pool_new(1, &err);
    const exp_random_options o = {
        .shape = exp_shape_find(shape), .type = dw_qtype_get((uint32_t)type), .seed = seed, .pool = pool};
    dw_gguf_writer *w = dw_gguf_writer_new(path, &err);
    CHECK(w && !exp_random_write(w, &o, &err) && !dw_gguf_commit(w, &err), "%s", err.text);
    dw_gguf_writer_free(w);
    dw_pool_free(pool);
    return path;
}

static void write_tensor(dw_gguf_writer *w, const dw_tensor *t, const change *c, dw_err *err) {
    uint8_t *data = malloc(t->n_bytes);
    memcpy(data, t->data, t->n_bytes);
    if (c->zero && strstr(t->name, c->zero)) memset(data, 0, t->n_bytes);
    if (c->nan && strstr(t->name, c->nan)) memset(data, 0xff, t->n_bytes);
    CHECK(!dw_gguf_write(w, data, t->n_bytes, err), "%s", err->text);
    free(data);
}

static const char *changed(const char *from, const char *name, change c) {
    dw_err err = {0};
    const char *path = test_file(name);
    dw_gguf *g = dw_gguf_open(from, &err);
    dw_gguf_writer *w = dw_gguf_writer_new(path, &err);
    if (!CHECK(g && w, "%s", err.text)) return path;
    for (size_t i = 0; i < dw_gguf_n_kv(g); i++) {
        const dw_kv *kv = dw_gguf_kv(g, i);
        if (!c.drop_key || strncmp(kv->key, c.drop_key, strlen(c.drop_key))) dw_gguf_set_kv(w, kv->key, kv);
    }
    if (c.imatrix) dw_gguf_set_text(w, "quantize.imatrix.file", "x.imatrix");
    if (c.lineage) dw_gguf_set_strs(w, "deadwood.lineage", &(dw_str){c.lineage, strlen(c.lineage)}, 1);
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        dw_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne);
    }
    CHECK(!dw_gguf_begin(w, &err), "%s", err.text);
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) write_tensor(w, dw_gguf_tensor(g, i), &c, &err);
    CHECK(!dw_gguf_commit(w, &err), "%s", err.text);
    dw_gguf_writer_free(w);
    dw_gguf_close(g);
    return path;
}

/* Words of random letters: about one token a byte for a synth vocabulary. */
static const char *text_file(const char *name, size_t n_bytes, uint64_t seed) {
    dw_err err = {0};
    dw_rng rng;
    dw_rng_seed(&rng, seed);
    const char *path = test_file(name);
    dw_out *out = dw_out_open(path, &err);
    for (size_t i = 0; i < n_bytes; i++) {
        const char c = (char)(i % 6 == 5 ? ' ' : 'a' + (char)dw_rng_below(&rng, 26));
        dw_out_write(out, &c, 1, &err);
    }
    CHECK(!dw_out_commit(out, &err), "%s", err.text);
    dw_out_free(out);
    return path;
}

/* ---- running the program ---------------------------------------------------------------------------------- */

/* `deadwood-score ... --json -q`: its objects as an array, or NULL. */
static json_t *score(const char *arguments) {
    const int rc = test_run("deadwood-score %s --json -q", arguments);
    if (!CHECK(rc == 0, "%s: %s", arguments, test_run_output())) return NULL;
    json_t *rows = json_array();
    char *lines = strdup(test_run_output()), *rest = lines;
    for (char *line; (line = strsep(&rest, "\n"));)
        if (*line == '{') json_array_append_new(rows, json_loads(line, 0, NULL));
    free(lines);
    return rows;
}

/* score() with a format. */
#define SCORE(...) score(words(__VA_ARGS__))
static const char *words(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *words(const char *format, ...) {
    static char line[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    return line;
}

static const json_t *cell(const json_t *rows, size_t i, const char *column) {
    return json_object_get(json_array_get(rows, i), column);
}
static double number(const json_t *rows, size_t i, const char *column) {
    const json_t *c = cell(rows, i, column);
    return json_is_number(c) ? json_number_value(c) : NAN;
}

static bool says(const json_t *rows, size_t i, const char *column, const char *text) {
    const char *value = json_string_value(cell(rows, i, column));
    return value && !strcmp(value, text);
}

static void refused(const char *arguments, const char *sentence) {
    const int rc = test_run("deadwood-score %s --no-speed -q", arguments);
    const char *out = test_run_output(), *newline = strchr(out, '\n');
    CHECK(rc == 1 && strstr(out, sentence) && newline && !newline[1], "%s: status %d: %s", arguments, rc, out);
}

/* ---- statistics ------------------------------------------------------------------------------------------- */

static void means(void) {
    const double x[4] = {1, 2, 3, 6};
    const measure_mean m = measure_mean_of_values(x, 4), two[2] = {{1, 0.3, 4}, {3, 0.4, 7}},
                       both = measure_mean_of_texts(two, 2);
    CHECK(m.mean == 3 && fabs(m.se - sqrt((12.5 - 9) / 3)) < 1e-15, "%g %g", m.mean, m.se);
    CHECK(both.mean == 2 && fabs(both.se - 0.25) < 1e-15);
    CHECK(fabs(both.df - 0.0625 / (0.0081 / 4 + 0.0256 / 7)) < 1e-12, "Satterthwaite: %g", both.df);
    CHECK(fabs(measure_between_texts(two, 2) - sqrt(2)) < 1e-15 && isnan(measure_between_texts(two, 1)));
    CHECK(measure_quantile(x, 4, 0.5) == 2.5 && measure_quantile(x, 4, 1) == 6 && measure_quantile(x, 1, 0.99) == 1);
}

static void paired_by_hand(void) {
    dw_err err = {0};
    measure_paired p;
    // window means 1 1 2 3 3: sd 1, by sqrt(5) windows
    const double sum[5] = {10, 10, 20, 30, 30}, n[5] = {10, 10, 10, 10, 10};
    REQUIRE(!measure_paired_of(&p, sum, n, 5, &err));
    CHECK(p.of.mean == 2 && fabs(p.of.se - sqrt(0.2)) < 1e-15 && p.of.df == 4, "%g %g", p.of.mean, p.of.se);
    CHECK(fabs(p.resolvable / p.of.se - (2.7764451 + 0.9409646)) < 1e-6, "with 4 degrees of freedom: %g", p.resolvable);
    CHECK(isnan(p.se_blocks), "five windows are too few for a bootstrap of runs");
    REQUIRE(!measure_paired_of(&p, sum, n, MEASURE_LEAST_WINDOWS - 1, &err));
    CHECK(p.of.mean == 1.75 && isnan(p.of.se) && isnan(p.se_blocks) && isnan(p.resolvable),
          "few windows say nothing of their error");
}

static void bootstrap_independent(void) {
    enum { W = 400, REPEATS = 12 };
    dw_err err = {0};
    dw_rng rng;
    double sum[W], n[W], ratio = 0;
    dw_rng_seed(&rng, 3);
    for (int k = 0; k < REPEATS; k++) {
        measure_paired p, again;
        for (int w = 0; w < W; w++) n[w] = 255, sum[w] = 255 * dw_rng_normal(&rng);
        REQUIRE(!measure_paired_of(&p, sum, n, W, &err) && !measure_paired_of(&again, sum, n, W, &err));
        CHECK(p.se_blocks == again.se_blocks, "the bootstrap is not repeatable");
        CHECK(fabs(p.of.se * sqrt(W) - 1) < 0.15, "%g", p.of.se * sqrt(W));
        ratio += p.se_blocks / p.of.se / REPEATS;
    }
    CHECK(fabs(ratio - 1) < 0.06, "bootstrap / analytic %.3f", ratio);
}

static void bootstrap_of_runs(void) { // neighbours that agree: pairs of equal windows have sqrt(2) times the error
    enum { W = 512 };
    dw_err err = {0};
    dw_rng rng;
    double sum[W], n[W];
    measure_paired p;
    dw_rng_seed(&rng, 4);
    for (int w = 0; w < W; w++) n[w] = 1, sum[w] = w % 4 ? sum[w - 1] : dw_rng_normal(&rng);
    REQUIRE(!measure_paired_of(&p, sum, n, W, &err));
    CHECK(p.se_blocks > 1.4 * p.of.se && p.se_blocks < 2.4 * p.of.se, "%.3f", p.se_blocks / p.of.se);
    const double factor = measure_t(0.025, 63) + measure_t(0.2, 63); // 64 runs of 8
    CHECK(fabs(p.resolvable - factor * p.se_blocks) < 1e-12 && factor > 2.8 && factor < 2.9, "%g", factor);
}

/* ---- distributions ---------------------------------------------------------------------------------------- */

static void random_row(float *x, int n, double scale, dw_rng *rng) {
    for (int i = 0; i < n; i++) x[i] = (float)(scale * dw_rng_normal(rng));
}

static void rows_of_logits(void) {
    static float x[1003], y[1003];
    dw_rng rng;
    dw_rng_seed(&rng, 5);
    for (int n = 1; n <= 1003; n += n < 40 ? 1 : 321) {
        random_row(x, n, 4, &rng);
        random_row(y, n, 4, &rng);
        const measure_row p = measure_row_of(x, n), q = measure_row_of(y, n);
        long double sum = 0, other = 0, kl = 0;
        int top = 0;
        for (int i = 0; i < n; i++)
            sum += expl((long double)x[i]), other += expl((long double)y[i]), top = x[i] > x[top] ? i : top;
        for (int i = 0; i < n; i++)
            kl += expl((long double)x[i]) / sum * ((long double)x[i] - logl(sum) - (long double)y[i] + logl(other));
        CHECK(p.top == top && fabs((double)(p.max + p.log_sum - logl(sum))) < 1e-13, "%d: %g", n,
              (double)(p.max + p.log_sum - logl(sum)));
        CHECK(fabs(measure_row_kl(x, &p, y, &q, n) - (double)kl) < 1e-12, "%d: %g, not %g", n,
              measure_row_kl(x, &p, y, &q, n), (double)kl);
        CHECK(measure_row_kl(x, &p, x, &p, n) == 0);
    }
    x[70] = NAN;
    CHECK(measure_row_of(x, 1003).top == -1);
    x[70] = -INFINITY;
    CHECK(measure_row_of(x, 71).top == -1);
}

static void coarse_rows(void) {
    static float x[1003], y[1003], before[1003];
    dw_rng rng;
    dw_rng_seed(&rng, 6);
    for (int n = 1; n <= 1003; n += n < 140 ? 1 : 321)
        for (double scale = 0.5; scale < 70; scale *= 5) { // 60: almost all mass on one token
            random_row(x, n, scale, &rng);
            for (int i = 0; i < n; i++) y[i] = x[i] + (float)dw_rng_normal(&rng);
            const measure_row p = measure_row_of(x, n), q = measure_row_of(y, n);
            measure_coarse c;
            memcpy(before, x, sizeof x);
            measure_coarse_of(&c, x, &p, n);
            CHECK(!memcmp(before, x, sizeof x) && c.id[0] == p.top);
            double mass = exp((double)c.tail);
            for (int k = 0; k < measure_n_top(n); k++) {
                mass += exp((double)c.logprob[k]);
                if (k) CHECK(x[c.id[k]] <= x[c.id[k - 1]] && c.id[k] != c.id[k - 1], "n %d, place %d", n, k);
            }
            CHECK(fabs(mass - 1) < 1e-6, "n %d: mass %g", n, mass);
            const double full = measure_row_kl(x, &p, y, &q, n), coarse = measure_coarse_kl(&c, y, &q, n);
            CHECK(coarse <= full + 1e-6 * (1 + full), "n %d: %g above %g", n, coarse, full);
            CHECK(n > MEASURE_TOP || fabs(coarse - full) < 1e-5 * (1 + full), "n %d: nothing is in the tail, %g but %g",
                  n, coarse, full);
            CHECK(measure_coarse_kl(&c, x, &p, n) == 0);
        }
    for (int i = 0; i < 200; i++) x[i] = 1;
    measure_coarse c;
    const measure_row p = measure_row_of(x, 200);
    measure_coarse_of(&c, x, &p, 200);
    for (int k = 0; k < MEASURE_TOP; k++) CHECK(c.id[k] == k, "of equals the first ones: %d at %d", c.id[k], k);
}

/* ---- protocols -------------------------------------------------------------------------------------------- */

static void window_counts(void) {
    dw_err err = {0};
    measure_windows w;
    for (size_t n = 2; n < 60; n++)
        for (int n_ctx = 4; n_ctx < 20; n_ctx++) {
            uint8_t scored[64] = {0};
            REQUIRE(!measure_windows_make(&w, measure_protocol_find("hf"), n, n_ctx, 0, 0, "t", &err), "%s", err.text);
            for (size_t k = 0; k < w.n; k++) {
                CHECK(w.window[k].n_eval < n_ctx && w.window[k].start + (size_t)w.window[k].n_eval < n);
                for (int p = w.window[k].first; p < w.window[k].n_eval; p++)
                    scored[w.window[k].start + (size_t)p + 1]++;
            }
            for (size_t i = 0; i < n; i++)
                CHECK(scored[i] == (i > 0), "hf: token %zu of %zu, context %d: %d times", i, n, n_ctx, scored[i]);
            measure_windows_release(&w);
        }
    REQUIRE(!measure_windows_make(&w, measure_protocol_find("llama"), 512 * 7 + 511, 512, 0, 0, "t", &err));
    CHECK(w.n == 7 && w.n_scored == 7 * 255 && w.window[6].start == 6 * 512 && w.window[6].first == 256 &&
          w.window[6].n_eval == 511);
    measure_windows_release(&w);
    REQUIRE(!measure_windows_make(&w, measure_protocol_find("full"), 512 * 7 + 511, 512, 2, 3, "t", &err));
    CHECK(w.n == 2 && w.n_all == 7 && w.n_scored == 2 * 511 && w.window[0].start == 512);
    measure_windows_release(&w);
    CHECK(measure_windows_make(&w, measure_protocol_find("llama"), 1023, 512, 0, 0, "t", &err) &&
          strstr(err.text, "the text has 1023;"));
    err.text[0] = 0;
    CHECK(measure_windows_make(&w, measure_protocol_find("full"), 1023, 512, 1, 2, "t", &err) &&
          strstr(err.text, "has 1"));
}

typedef struct bench { // a model open for evaluation
    dw_pool *pool;
    dw_model *model;
    int32_t ids[400];
} bench;

static bool bench_open(bench *b, const char *path, int threads) {
    dw_err err = {0};
    b->pool = dw_pool_new(threads, &err);
    b->model = dw_model_open(path, &err);
    if (!CHECK(b->pool && b->model, "%s", err.text)) return false;
    random_tokens(b->ids, 400, dw_model_hparams(b->model)->n_vocab, 9);
    return true;
}

static void bench_close(bench *b) {
    dw_model_close(b->model);
    dw_pool_free(b->pool);
}

/* The negative log-likelihood of ids[target] behind ids[start ..], by the definition: every position's logits at
 * once, no windows. */
static double nll_by_definition(dw_session *s, const bench *b, size_t start, size_t target, int32_t bos,
                                float *logits) {
    dw_err err = {0};
    int32_t ids[400];
    const int n = (int)(target - start), n_vocab = dw_model_hparams(b->model)->n_vocab;
    memcpy(ids, b->ids + start, (size_t)n * sizeof *ids);
    if (bos >= 0) ids[0] = bos;
    dw_session_rewind(s, 0, 0);
    CHECK(!dw_session_eval(s, &(dw_batch){.n_tokens = n, .token = ids}, &err) &&
              !dw_session_logits(s, 0, 1, logits, &err),
          "%s", err.text);
    double sum = 0;
    for (int i = 0; i < n_vocab; i++) sum += exp((double)logits[i]);
    return log(sum) - (double)logits[b->ids[target]];
}

/* Which window's begin the context of a target is, by the protocols' words; -1: the target is not scored. */
static long context_of(const char *protocol, size_t target, size_t n, size_t n_ctx) {
    const size_t window = target / n_ctx * n_ctx, place = target - window;
    if (!strcmp(protocol, "hf")) { // the first window that reaches the target
        size_t start = 0;
        while (start + n_ctx <= target) start += n_ctx / 2;
        return target ? (long)start : -1;
    }
    if (window + n_ctx > n || place == 0) return -1;
    return strcmp(protocol, "llama") || place > n_ctx / 2 ? (long)window : -1;
}

static void protocols_by_definition(void) {
    enum { N = 85, CTX = 16 };
    dw_err err = {0};
    bench b;
    REQUIRE(bench_open(&b, model("m.gguf", "tiny-qwen2", DW_F32, 1), 2));
    const dw_session_options so = {.pool = b.pool, .backend = "ref", .n_ctx = N, .kv = DW_KV_CACHE_F32};
    dw_session *s = dw_session_new(b.model, &so, &err);
    float *logits = malloc(4 * (size_t)dw_model_hparams(b.model)->n_vocab);
    for (const measure_protocol *p = measure_protocols; p->name; p++)
        for (int32_t bos = -1; bos < 8; bos += 8) {
            measure_windows w;
            double nll[N];
            const measure_entrant_options eo = {
                .pool = b.pool, .backend = "ref", .kv = DW_KV_CACHE_F32, .n_ctx = CTX, .n_batch = 21};
            measure_entrant m = {.name = "m", .model = b.model, .nll = nll};
            REQUIRE(!measure_windows_make(&w, p, N, CTX, 0, 0, "t", &err) && !measure_entrant_open(&m, &eo, &err), "%s",
                    err.text);
            const measure_evaluation e = {
                .o = &eo, .windows = &w, .ids = b.ids, .bos = bos, .model = &m, .n_models = 1};
            REQUIRE(!measure_evaluate(&e, &err), "%s", err.text);
            size_t at = 0;
            for (size_t target = 0; target < N; target++) {
                const long start = context_of(p->name, target, N, CTX);
                if (start < 0) continue;
                const double expected = nll_by_definition(s, &b, (size_t)start, target, bos, logits);
                CHECK(at < w.n_scored && fabs(nll[at] - expected) < 1e-5, "%s: token %zu: %g, not %g", p->name, target,
                      nll[at], expected);
                at++;
            }
            CHECK(at == w.n_scored, "%s scores %zu tokens, not %zu", p->name, w.n_scored, at);
            measure_entrant_close(&m);
            measure_windows_release(&w);
        }
    free(logits);
    dw_session_free(s);
    bench_close(&b);
}

static void evaluation_invariance(void) {
    enum { N = 200, CTX = 48 };
    dw_err err = {0};
    static double first[3][N], nll[N], kl[N], base_nll[N];
    static uint8_t agree[N];
    const char *path = model("m.gguf", "tiny-llama", DW_Q4_0, 1), *other = model("b.gguf", "tiny-llama", DW_Q8_0, 1);
    for (int run = 0; run < 6; run++) {
        bench b, c;
        REQUIRE(bench_open(&b, path, run % 3 + 1) && bench_open(&c, other, 1));
        measure_windows w;
        const measure_entrant_options eo = {
            .pool = b.pool, .backend = "cpu", .n_ctx = CTX, .n_batch = (int[]){512, 1, 37, 100, 47, 2000}[run]};
        measure_entrant m = {.name = "m", .model = b.model, .nll = nll, .kl = kl, .agree = agree},
                    base = {.name = "b", .model = c.model, .nll = base_nll};
        REQUIRE(!measure_windows_make(&w, measure_protocol_find("hf"), N, CTX, 0, 0, "t", &err));
        REQUIRE(!measure_entrant_open(&m, &eo, &err) && !measure_entrant_open(&base, &eo, &err), "%s", err.text);
        const measure_evaluation e = {
            .o = &eo, .windows = &w, .ids = b.ids, .bos = -1, .base = &base, .model = &m, .n_models = 1};
        REQUIRE(!measure_evaluate(&e, &err), "%s", err.text);
        if (!run)
            memcpy(first[0], nll, sizeof nll), memcpy(first[1], kl, sizeof kl),
                memcpy(first[2], base_nll, sizeof base_nll);
        const size_t n = w.n_scored * sizeof *nll;
        CHECK(!memcmp(first[0], nll, n) && !memcmp(first[1], kl, n) && !memcmp(first[2], base_nll, n), "run %d", run);
        measure_entrant_close(&m);
        measure_entrant_close(&base);
        measure_windows_release(&w);
        bench_close(&b);
        bench_close(&c);
    }
}

/* A piece of 512 tokens has parts of up to 172 windows of 4 tokens. */
static void short_windows(void) {
    const char *m = model("m.gguf", "tiny-llama", DW_Q4_0, 1), *rows = test_file("short.tsv");
    const char *line = "for b in 512 %d; do rm -f %s; deadwood-score -m %s -f README.md -c %d --windows 300 --batch $b "
                       "--no-speed -o %s -q >%s.txt && "
                       "deadwood-table %s --columns ppl,nll_nats --format tsv -q >%s.$b || exit 1; done; "
                       "cmp %s.512 %s.%d";
    for (int n_ctx = 4; n_ctx <= 16; n_ctx *= 2)
        CHECK(!test_run(line, n_ctx, rows, m, n_ctx, rows, rows, rows, rows, rows, rows, n_ctx),
              "%d: %s", n_ctx, test_run_output());
}

/* ---- the stored base -------------------------------------------------------------------------------------- */

enum { STORED_1 = 300, STORED_2 = 7 }; // one text of more than a chunk, and a short one

static measure_prediction prediction(size_t i) {
    measure_prediction p = {.logprob = -0.1 - (double)i / 3, .coarse.tail = -1 - (float)i};
    for (int k = 0; k < MEASURE_TOP; k++) {
        p.coarse.id[k] = (int32_t)((i * 31 + (size_t)k * 7) % 1000);
        p.coarse.logprob[k] = -0.5f - (float)k / 7;
    }
    return p;
}

static bool is_prediction(const measure_prediction *p, size_t i) {
    const measure_prediction q = prediction(i);
    return p->logprob == q.logprob && !memcmp(&p->coarse, &q.coarse, sizeof q.coarse);
}

static const char *stored_file(const char *name) {
    dw_err err = {0};
    const char *path = test_file(name);
    measure_stored_text texts[2] = {
        {.name = "one.txt", .sha256 = {1}, .n_tokens = 1000, .n_scored = STORED_1, .leak = "it was trained on it"},
        {.name = "zwei.txt", .sha256 = {2}, .n_tokens = 30, .n_scored = STORED_2, .ids_sha256 = {[31] = 5}}};
    const measure_stored_head h = {.model = "m.gguf",
                               .model_sha256 = {3},
                               .n_vocab = 1000,
                               .vocab_sha256 = {4},
                               .protocol = "llama",
                               .n_ctx = 16,
                               .bos = -1,
                               .text = texts,
                               .n_texts = 2};
    measure_predictions_writer *w = measure_predictions_writer_new(path, &h, &err);
    CHECK(w, "%s", err.text);
    for (size_t i = 0; w && i < STORED_1 + STORED_2; i++) {
        const measure_prediction p = prediction(i);
        CHECK(!measure_predictions_write(w, &p, 1, &err), "%s", err.text);
    }
    CHECK(w && measure_predictions_write(w, &(measure_prediction){0}, 1, NULL), "one more than announced is refused");
    CHECK(w && !measure_predictions_commit(w, false, &err), "%s", err.text);
    measure_predictions_writer_free(w);
    return path;
}

static void stored_round_trip(void) {
    dw_err err = {0};
    const char *path = stored_file("a.base");
    measure_predictions *s = measure_predictions_open(path, &err);
    REQUIRE(s && measure_is_predictions(path), "%s", err.text);
    const measure_stored_head *h = measure_predictions_head(s);
    CHECK(!strcmp(h->model, "m.gguf") && !strcmp(h->text[1].name, "zwei.txt") && h->n_texts == 2 && h->n_ctx == 16 &&
          h->bos == -1 && h->vocab_sha256[0] == 4);
    CHECK(h->text[1].ids_sha256[31] == 5 && !h->text[0].ids_sha256[0]);
    CHECK(!h->learnt_unnamed && h->text[0].leak && !strcmp(h->text[0].leak, "it was trained on it") &&
          !h->text[1].leak);
    for (int t = 1; t >= 0; t--) { // in any order
        const size_t n = t ? STORED_2 : STORED_1;
        measure_prediction p, *all = calloc(n, sizeof *all);
        measure_predictions_seek(s, t);
        CHECK(!measure_predictions_read(s, all, n, &err), "%s", err.text);
        for (size_t i = 0; i < n; i++)
            CHECK(is_prediction(&all[i], (t ? STORED_1 : 0) + i), "text %d, prediction %zu", t, i);
        CHECK(measure_predictions_read(s, &p, 1, &err) && strstr(err.text, "no more"), "%s", err.text);
        err.text[0] = 0;
        free(all);
    }
    measure_predictions_close(s);
    measure_predictions_writer *w = measure_predictions_writer_new(
        test_file("b.base"),
        &(measure_stored_head){.model = "m",
                           .protocol = "hf",
                           .n_texts = 1,
                           .text = &(measure_stored_text){.name = "t", .n_tokens = 9, .n_scored = 2}},
        &err);
    CHECK(w && measure_predictions_commit(w, false, NULL), "fewer than announced is refused");
    measure_predictions_writer_free(w);
}

static void read_seed(const char *path, bool unnamed, const char *leak) {
    dw_err err = {0};
    measure_prediction all[5];
    measure_predictions *s = measure_predictions_open(path, &err);
    REQUIRE(s, "%s", err.text);
    const measure_stored_head *h = measure_predictions_head(s);
    CHECK(!strcmp(h->text[0].name, "text.txt") && h->n_vocab == 1000 && h->text[0].n_scored == 5 && h->bos == 7 &&
          h->last == 3);
    const char *read = h->text[0].leak;
    CHECK(h->learnt_unnamed == unnamed && (leak ? read && !strcmp(read, leak) : !read));
    CHECK(!measure_predictions_read(s, all, 5, &err), "%s", err.text);
    for (size_t i = 0; i < 5; i++) CHECK(is_prediction(&all[i], i), "prediction %zu", i);
    measure_predictions_close(s);
}

/* Version 1 of the format does not say what the model has seen. */
static void stored_seed(void) {
    read_seed("tests/seeds/stored-base-sample.base", true, NULL);
    read_seed("tests/seeds/stored-base-2-sample.base", false,
              "calibration text 'text.txt' of step collect has the same hash");
    read_seed("tests/seeds/stored-base-3-sample.base", false,
              "calibration text 'text.txt' of step collect has the same hash");
}

/* Opens bytes and reads all; 0 when every one was accepted, and is what was written. */
static int read_stored(const uint8_t *data, size_t size, dw_err *err) {
    uint8_t *exact = malloc(size ? size : 1); // so that an address sanitizer sees the first byte too many
    if (size) memcpy(exact, data, size);
    measure_predictions *s = measure_predictions_open_memory(exact, size, "damaged", err);
    int rc = s ? 0 : -1;
    for (int t = 0; !rc && t < measure_predictions_head(s)->n_texts; t++) {
        measure_prediction p;
        measure_predictions_seek(s, t);
        for (uint64_t i = 0; !rc && i < measure_predictions_head(s)->text[t].n_scored; i++)
            if (!(rc = measure_predictions_read(s, &p, 1, err)))
                CHECK(is_prediction(&p, (t ? STORED_1 : 0) + i), "text %d, prediction %d", t, (int)i);
    }
    measure_predictions_close(s);
    free(exact);
    return rc;
}

static void stored_damage(void) {
    dw_err err = {0};
    dw_rng rng;
    size_t size;
    char *data = dw_read_file(stored_file("c.base"), 1 << 24, &size, &err);
    REQUIRE(data, "%s", err.text);
    CHECK(!read_stored((uint8_t *)data, size, &err), "%s", err.text);
    for (size_t n = 0; n < size; n += n < 600 || n + 100 > size ? 1 : 97) {
        dw_err e = {0};
        CHECK(read_stored((uint8_t *)data, n, &e) && e.text[0] && !strchr(e.text, '\n'),
              "%zu of %zu bytes are accepted", n, size);
    }
    dw_rng_seed(&rng, 8);
    for (int i = 0; i < 2000; i++) {
        dw_err e = {0};
        const size_t at = i < 400 ? (size_t)i : dw_rng_below(&rng, size);
        const char bit = (char)(1 << dw_rng_below(&rng, 8));
        data[at] ^= bit;
        CHECK(!read_stored((uint8_t *)data, size, &e) == !e.text[0]); // a few bits of a zstd frame say nothing
        data[at] ^= bit;
    }
    free(data);
}

/* With so few tokens a protocol has endless windows, or none. */
static void stored_small_context(void) {
    dw_err err = {0};
    measure_stored_text text = {.name = "t", .n_tokens = 9, .n_scored = 1};
    const measure_stored_head h = {
        .model = "m", .n_vocab = 1000, .protocol = "hf", .n_ctx = 1, .bos = -1, .text = &text, .n_texts = 1};
    measure_predictions_writer *w = measure_predictions_writer_new(test_file("short.base"), &h, &err);
    const measure_prediction p = prediction(0);
    REQUIRE(w && !measure_predictions_write(w, &p, 1, &err) && !measure_predictions_commit(w, true, &err), "%s",
            err.text);
    measure_predictions_writer_free(w);
    CHECK(!measure_predictions_open(test_file("short.base"), &err) && strstr(err.text, "its header is damaged"), "%s",
          err.text);
}

/* A token that occurs twice would be counted twice. */
static void stored_repeated(void) {
    dw_err err = {0};
    measure_stored_text text = {.name = "t", .n_tokens = 9, .n_scored = 1};
    const measure_stored_head h = {
        .model = "m", .n_vocab = 1000, .protocol = "llama", .n_ctx = 16, .bos = -1, .text = &text, .n_texts = 1};
    measure_predictions_writer *w = measure_predictions_writer_new(test_file("twice.base"), &h, &err);
    measure_prediction p = prediction(0);
    p.coarse.id[9] = p.coarse.id[5];
    CHECK(w && !measure_predictions_write(w, &p, 1, &err), "%s", err.text);
    CHECK(w && measure_predictions_commit(w, false, &err) && strstr(err.text, "fails its check"), "%s", err.text);
    measure_predictions_writer_free(w);
    CHECK(!dw_file_exists(test_file("twice.base")));
}

/* ---- small functions -------------------------------------------------------------------------------------- */

static void disturbances(void) {
    static const struct {
        exp_watch w;
        char words[40];
    } cases[] = {
        {{.wall_s = 10, .own_cpu_s = 19.8, .busy_cpu_s = 20.2, .load = 2.2}, "no"},
        {{.wall_s = 10, .own_cpu_s = 13, .busy_cpu_s = 13.5, .load = 2.2}, "cpu 0.65"},
        {{.wall_s = 10, .own_cpu_s = 19, .busy_cpu_s = 19, .steal_cpu_s = 0.6, .load = 2.2}, "steal 0.03"},
        {{.wall_s = 10, .own_cpu_s = 19, .busy_cpu_s = 22, .load = 2.2}, "others 0.3"},
        {{.wall_s = 10, .own_cpu_s = 19, .busy_cpu_s = 19, .load = 3.5}, "load 3.5"},
        {{.wall_s = 10, .own_cpu_s = 10, .busy_cpu_s = 20, .load = 3.5}, "cpu 0.5, others 1, load 3.5"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[128], small[8];
        exp_disturbed(&cases[i].w, 2, text, sizeof text);
        CHECK(!strcmp(text, cases[i].words), "'%s', expected '%s'", text, cases[i].words);
        exp_disturbed(&cases[i].w, 2, small, sizeof small);
    }
}

static void unknown_cells(void) {
    exp_result r = exp_result_unknown();
    char text[320];
    for (const exp_column *c = exp_columns; c->name; c++) {
        exp_cell(&r, c, text, sizeof text);
        CHECK(!strcmp(text, "-"), "%s: '%s'", c->name, text);
        for (const exp_column *d = exp_columns; d < c; d++)
            CHECK(strcmp(c->name, d->name) && c->offset != d->offset, "%s twice", c->name);
    }
    snprintf(r.note, sizeof r.note, "a\tb\nc");
    exp_cell(&r, &exp_columns[exp_n_columns() - 1], text, sizeof text);
    CHECK(!strcmp(text, "a?b?c"), "'%s'", text);
    static const char *const last[] = {"dominated_by", "verdict", "note"};
    for (size_t i = 0; i < 3; i++) CHECK(!strcmp(exp_columns[exp_n_columns() - 3 + i].name, last[i]));
}

/* n tokens of period `period` behind `n_other` that are all different. */
static bool periodic_repeats(int n_other, int n, int period) {
    int32_t id[MEASURE_CONTINUED];
    for (int i = 0; i < n_other + n; i++) id[i] = i < n_other ? 1000 + i : i % period;
    return measure_only_repeats(id, n_other + n);
}

static void repeated_tokens(void) {
    for (int period = 1; period <= 4; period++) {
        CHECK(periodic_repeats(0, 48, period) && periodic_repeats(16, 32, period), "period %d", period);
        CHECK(periodic_repeats(48 - 16 - period, 16 + period, period), "half of the 32, period %d", period);
        CHECK(!periodic_repeats(48 - 15 - period, 15 + period, period), "one less, period %d", period);
    }
    for (int period = 5; period <= 48; period++) CHECK(!periodic_repeats(0, 48, period), "period %d", period);
    CHECK(!periodic_repeats(0, 31, 1) && periodic_repeats(0, 32, 1) && !periodic_repeats(0, 0, 1), "ended early");
    int32_t drifting[MEASURE_CONTINUED], early[MEASURE_CONTINUED];
    for (int i = 0; i < MEASURE_CONTINUED; i++) {
        drifting[i] = i / 3;
        early[i] = i < 24 ? 7 : i;
    }
    CHECK(measure_only_repeats(drifting, MEASURE_CONTINUED), "each token three times, though there is no period");
    CHECK(!measure_only_repeats(early, MEASURE_CONTINUED), "what it found its way out of");
}

/* ---- the program ------------------------------------------------------------------------------------------ */

static void uniform(void) {
    const char *m = changed(model("m.gguf", "tiny-qwen2", DW_F16, 1), "zero.gguf", (change){.zero = "weight"}),
               *t = text_file("t.txt", 700, 1);
    json_t *rows = SCORE("-m %s -f %s -c 64 --no-speed", m, t);
    CHECK(fabs(number(rows, 0, "ppl") - 512) < 1e-4 && number(rows, 0, "nll_se") < 1e-9, "%.9g",
          number(rows, 0, "ppl"));
    CHECK(isnan(number(rows, 0, "base_repeats")));
    json_decref(rows);
}

/* A model of which only its embeddings are left predicts from the last token alone, which ends in a short circle. */
static void broken(void) {
    const char *m = model("m.gguf", "tiny-qwen2", DW_F16, 1), *t = text_file("t.txt", 700, 1),
               *b = changed(m, "broken.gguf", (change){.zero = "blk."});
    json_t *rows = SCORE("-m %s %s -f %s --base %s -c 64 --no-speed", m, b, t, m);
    CHECK(number(rows, 0, "repeats") == number(rows, 0, "base_repeats"));
    CHECK(number(rows, 1, "repeats") == 1, "%g", number(rows, 1, "repeats"));
    CHECK(number(rows, 1, "base_repeats") == number(rows, 0, "repeats"));
    json_decref(rows);
    rows = SCORE("-m %s --speed-only --speed-prefill 8 --speed-decode 2 --speed-rounds 1", m);
    CHECK(isnan(number(rows, 0, "repeats")));
    json_decref(rows);
}

/* ---- speed at a depth, and of several sequences ----------------------------------------------------------- */

static void depth_lists(void) {
    int depth[EXP_SPEED_MAX_DEPTHS];
    CHECK(exp_speed_depths("0", depth) == 1 && depth[0] == 0);
    CHECK(exp_speed_depths("4096,0,12", depth) == 3 && depth[0] == 4096 && depth[1] == 0 && depth[2] == 12);
    static const char *const wrong[] = {"",
                                        ",",
                                        "0,",
                                        "-1",
                                        "1,1",
                                        "a",
                                        "1 2",
                                        "1, 2",
                                        "1048577",
                                        "99999999999999999999",
                                        "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK(!exp_speed_depths(wrong[i], depth), "'%s'", wrong[i]);
    const struct { exp_speed_options o; int depth; const char *name; } names[] = {
        {{.n_prefill = 512, .n_decode = 64, .n_seq = 1}, 0, "pp512 tg64"},
        {{.n_prefill = 512, .n_decode = 64, .n_seq = 1}, 4096, "pp512 tg64 @ d4096"},
        {{.n_decode = 64, .n_seq = 4}, 12, "tg64 x4 @ d12"},
        {{.n_prefill = 8, .n_seq = 1}, 0, "pp8"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[48];
        exp_speed_name(&names[i].o, names[i].depth, name, sizeof name);
        CHECK(!strcmp(name, names[i].name), "%s, expected %s", name, names[i].name);
    }
}

/* Each further depth is a row without a text: its speed stands beside that of the row with the text. */
static void depths(void) {
    const char *m = model("m.gguf", "tiny-llama", DW_F32, 1), *t = text_file("t.txt", 700, 1),
               *out = test_file("depths.tsv");
    json_t *rows = SCORE(
        "-m %s -f %s -c 64 --windows 1-2 --depth 0,4096 --speed-prefill 16 --speed-decode 4 --speed-rounds 2 -o %s", m,
        t, out);
    REQUIRE(json_array_size(rows) == 2, "%zu rows", json_array_size(rows));
    for (size_t i = 0; i < 2; i++) {
        const bool is_deep = i == 1;
        CHECK(number(rows, i, "depth") == (is_deep ? 4096 : 0) && number(rows, i, "sequences") == 1);
        CHECK(!strcmp(json_string_value(cell(rows, i, "speed_test")), is_deep ? "pp16 tg4 @ d4096" : "pp16 tg4"));
        CHECK(json_is_null(cell(rows, i, "text")) == is_deep && isnan(number(rows, i, "ppl")) == is_deep);
        CHECK(number(rows, i, "prefill_tok_s") > 0 && number(rows, i, "decode_tok_s") > 0 &&
              number(rows, i, "file_bytes") > 0);
    }
    // The keys and values of so many positions were written: 4 layers, 2 heads of 16 values, F16.
    json_t *shallow = SCORE("-m %s -f %s -c 64 --windows 1-2 --speed-prefill 16 --speed-decode 4 --speed-rounds 1", m,
                            t);
    const double kv_bytes = 4096.0 * 4 * 2 * 2 * 16 * 2;
    const double with = number(rows, 1, "peak_rss_bytes"), without = number(shallow, 0, "peak_rss_bytes");
    CHECK(with - without >= kv_bytes, "%g bytes, at depth 0 %g", with, without);
    json_decref(rows);
    json_decref(shallow);
    CHECK(!test_run("deadwood-table %s --columns model,text,speed_test,depth,decode_tok_s", out), "%s",
          test_run_output());
    CHECK(strstr(test_run_output(), "pp16 tg4 @ d4096"), "%s", test_run_output());
}

/* Four sequences in one batch: weights are read once, and the rate counts the tokens of all. */
static void sequences(void) {
    const char *m = model("m.gguf", "tiny-llama", DW_F32, 1);
    json_t *rows = SCORE(
        "-m %s --speed-only --depth 3,0 --sequences 4 --speed-prefill 16 --speed-decode 4 --speed-rounds 1", m);
    REQUIRE(json_array_size(rows) == 2, "%zu rows", json_array_size(rows));
    for (size_t i = 0; i < 2; i++)
        CHECK(number(rows, i, "sequences") == 4 && number(rows, i, "depth") == (i ? 0 : 3) &&
              number(rows, i, "decode_tok_s") > 0);
    const double share = number(rows, 0, "read_share"), bytes = number(rows, 0, "bytes_per_token");
    const double wanted = bytes * number(rows, 0, "decode_tok_s") / 4e9 / number(rows, 0, "read_gb_s");
    CHECK(fabs(share / wanted - 1) < 1e-2, "read share %g, expected %g", share, wanted);
    json_decref(rows);
}

static void against_itself(void) {
    const char *m = model("m.gguf", "tiny-llama", DW_Q4_0, 1), *t = text_file("t.txt", 700, 1),
               *stored = test_file("m.base");
    json_decref(SCORE("-m %s -f %s -c 64 --no-speed --store %s", m, t, stored));
    for (int k = 0; k < 2; k++) {
        json_t *rows = SCORE("-m %s -f %s -c 64 --no-speed --base %s", m, t, k ? stored : m);
        CHECK(number(rows, 0, "ln_ratio") == 0 && number(rows, 0, "ln_ratio_se") == 0 &&
              number(rows, 0, "resolvable") == 0);
        CHECK(number(rows, 0, "kl_mean") == 0 && number(rows, 0, "kl_p99") == 0 && number(rows, 0, "top1_agree") == 1 &&
              number(rows, 0, "top1_se") == 0);
        CHECK(number(rows, 0, "base_ppl") == number(rows, 0, "ppl"));
        json_decref(rows);
    }
}

static void side_by_side_and_stored(void) {
    const char *a = model("a.gguf", "tiny-llama", DW_Q8_0, 1), *b = model("b.gguf", "tiny-llama", DW_Q8_0, 2);
    const char *t = text_file("t.txt", 900, 1), *u = text_file("u.txt", 500, 2), *a_stored = test_file("a.base"),
               *b_stored = test_file("b.base");
    json_decref(SCORE("-m %s -f %s %s -c 64 --no-speed --store %s", a, t, u, a_stored));
    json_decref(SCORE("-m %s -f %s %s -c 64 --no-speed --store %s", b, t, u, b_stored));
    json_t *live = SCORE("-m %s -f %s %s -c 64 --no-speed --base %s", b, t, u, a),
           *stored = SCORE("-m %s -f %s %s -c 64 --no-speed --base %s", b, t, u, a_stored);
    json_t *both = SCORE("-m %s --base %s", b_stored, a_stored),
           *swapped = SCORE("-m %s -f %s -c 64 --no-speed --base %s", b, u, a_stored);
    json_t *alone = SCORE("-m %s -f %s %s -c 64 --no-speed", b, t, u),
           *mixed = SCORE("-m %s %s %s -f %s %s -c 64 --no-speed --base %s", b_stored, b, a, t, u, a_stored);
    REQUIRE(json_array_size(mixed) == 9);
    REQUIRE(json_array_size(live) == 3 && json_array_size(both) == 3 && json_array_size(swapped) == 1);
    for (size_t i = 0; i < 3; i++) {
        static const char *const same[] = {"nll_nats",           "nll_se",   "ln_ratio",     "ln_ratio_se",
                                           "ln_ratio_se_blocks", "base_ppl", "tokens_scored"};
        for (size_t k = 0; k < sizeof same / sizeof *same; k++) {
            CHECK(json_equal(cell(live, i, same[k]), cell(stored, i, same[k])), "%s of row %zu", same[k], i);
            CHECK(json_equal(cell(live, i, same[k]), cell(both, i, same[k])), "%s of row %zu, two stored files",
                  same[k], i);
        }
        CHECK(json_equal(cell(live, i, "nll_nats"), cell(alone, i, "nll_nats")));
        CHECK(json_equal(cell(live, i, "nll_nats"), cell(mixed, i, "nll_nats")) &&
                  json_equal(cell(live, i, "nll_nats"), cell(mixed, 3 + i, "nll_nats")) &&
                  number(mixed, 6 + i, "ln_ratio") == 0,
              "stored first, then live: row %zu", i);
        CHECK(json_equal(cell(live, i, "top1_agree"), cell(stored, i, "top1_agree")));
        CHECK(json_equal(cell(live, i, "repeats"), cell(alone, i, "repeats")) && isnan(number(both, i, "repeats")));
        CHECK(!isnan(number(live, i, "base_repeats")) && isnan(number(stored, i, "base_repeats")));
        CHECK(number(stored, i, "kl_mean") > 0 && number(stored, i, "kl_mean") <= number(live, i, "kl_mean"));
        CHECK(isnan(number(both, i, "kl_mean")) && isnan(number(both, i, "params")));
    }
    CHECK(says(live, 1, "kl_kind", "full") && says(stored, 1, "kl_kind", "top64"));
    CHECK(json_equal(cell(swapped, 0, "ln_ratio"), cell(live, 1, "ln_ratio")),
          "a text of the stored ones, by its hash");
    /* the row of all texts: the geometric mean, and errors of independent means */
    CHECK(fabs(number(alone, 2, "ppl") - sqrt(number(alone, 0, "ppl") * number(alone, 1, "ppl"))) < 1e-4);
    CHECK(fabs(number(alone, 2, "nll_se") - hypot(number(alone, 0, "nll_se"), number(alone, 1, "nll_se")) / 2) < 1e-5);
    json_decref(live);
    json_decref(stored);
    json_decref(both);
    json_decref(swapped);
    json_decref(alone);
    json_decref(mixed);
}

static void same_for_threads_and_batches(const char *precision) {
    static const char *const quality[] = {"nll_nats", "nll_se", "ln_ratio",  "ln_ratio_se", "ln_ratio_se_blocks",
                                          "kl_mean",  "kl_se",  "kl_median", "kl_p99",      "top1_agree",
                                          "repeats",  "base_repeats"};
    static const char *const how[] = {"-t 1", "-t 2 --batch 33", "-t 3 --batch 700"};
    const char *a = model("a.gguf", "tiny-qwen3", DW_F16, 1), *b = model("b.gguf", "tiny-qwen3", DW_Q5_0, 1),
               *t = text_file("t.txt", 700, 1);
    json_t *first = NULL;
    for (int k = 0; k < 3; k++) {
        json_t *rows = SCORE("-m %s -f %s -c 64 --no-speed --base %s --precision %s %s", b, t, a, precision, how[k]);
        for (size_t q = 0; k && q < sizeof quality / sizeof *quality; q++)
            CHECK(json_equal(cell(first, 0, quality[q]), cell(rows, 0, quality[q])), "%s, %s with %s", precision,
                  quality[q], how[k]);
        if (!k) first = json_incref(rows);
        json_decref(rows);
    }
    json_decref(first);
}

static void threads_and_batches(void) {
    same_for_threads_and_batches("split");
    same_for_threads_and_batches("bf16");
}

static void rows_and_objects(void) {
    dw_err err = {0};
    tsv_table t;
    const char *m = model("m.gguf", "tiny-llama", DW_Q4_0, 1), *text = text_file("t.txt", 700, 1),
               *path = test_file("rows.tsv");
    remove(path);
    json_t *rows = SCORE("-m %s -f %s -c 64 --speed-rounds 2 --base %s -o %s", m, text, m, path),
           *more = SCORE("-m %s -f %s -c 32 --no-speed -o %s", m, text, path);
    REQUIRE(!tsv_read(&t, path, &err), "%s", err.text);
    REQUIRE(t.n_rows == 2 && t.n_columns == exp_n_columns());
    for (size_t c = 0; c < t.n_columns; c++) {
        const json_t *value = cell(rows, 0, t.column[c]);
        const char *in_table = t.cell[c];
        CHECK(!strcmp(t.column[c], exp_columns[c].name));
        REQUIRE(value, "column '%s' is not in the object", t.column[c]);
        if (json_is_number(value))
            CHECK(strtod(in_table, NULL) == json_number_value(value), "%s: %s", t.column[c], in_table);
        else
            CHECK(!strcmp(in_table, json_is_null(value) ? "-" : json_string_value(value)), "%s: %s", t.column[c],
                  in_table);
    }
    static const char *const known[] = {"peak_rss_bytes", "load_ms",    "prefill_tok_s", "decode_tok_s",
                                        "read_gb_s",      "read_share", "file_bytes",    "params"};
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) CHECK(number(rows, 0, known[k]) > 0, "%s", known[k]);
    CHECK(json_is_string(cell(rows, 0, "disturbed")) && json_is_null(cell(more, 0, "disturbed")) &&
          json_is_null(cell(more, 0, "decode_tok_s")));
    CHECK(number(rows, 0, "peak_rss_bytes") < 60e6, "%g bytes for a tiny model", number(rows, 0, "peak_rss_bytes"));
    tsv_release(&t);
    json_decref(rows);
    json_decref(more);
}

static void leaks(void) {
    char hex[65], hex_of_u[65], step[768];
    dw_err err = {0};
    const char *m = model("m.gguf", "tiny-llama", DW_F16, 1), *t = text_file("t.txt", 700, 1),
               *u = text_file("u.txt", 700, 2);
    REQUIRE(!dw_sha256_file(t, hex, &err) && !dw_sha256_file(u, hex_of_u, &err));
    snprintf(
        step, sizeof step,
        "{\"tool\": \"cut\", \"version\": \"0.1\", \"args\": [\"m.gguf\", \"--metric\", \"wanda\", \"--rate=0.25\"], "
        "\"parent\": \"p.gguf\","
        "\"facts\": {\"layers_dropped\": \"1 of 4\", \"kv_heads\": \"2 of 6\"}, "
        "\"inputs\": [], \"texts\": [{\"name\": \"calib.txt\", \"sha256\": \"%s\", \"tokens\": 9, \"blocks\": \"\"}]}",
        hex);
    const char *leaky = changed(m, "leaky.gguf", (change){.lineage = step}),
               *plain = changed(m, "plain.gguf", (change){.drop_key = "deadwood.lineage"});
    json_t *rows = SCORE("-m %s -f %s %s -c 64 --no-speed", leaky, t, u),
           *unknown = SCORE("-m %s -f %s -c 64 --no-speed", plain, t);
    const char *first = json_string_value(cell(rows, 0, "leak")), *mean = json_string_value(cell(rows, 2, "leak"));
    CHECK(first && strstr(first, "calib.txt") && mean && strstr(mean, "calib.txt"), "%s", first ? first : "no text");
    CHECK(says(rows, 1, "leak", "no") && json_is_null(cell(unknown, 0, "leak")));
    static const char *const done[][2] = {{"tool", "cut"}, {"metric", "wanda"}, {"rate", "0.25"}, {"parent", "p.gguf"},
                                           {"layers_dropped", "1 of 4"}, {"kv_heads", "2 of 6"}};
    for (size_t k = 0; k < sizeof done / sizeof *done; k++)
        CHECK(says(rows, 0, done[k][0], done[k][1]), "%s", done[k][0]);
    json_decref(rows);
    json_decref(unknown);

    snprintf(step, sizeof step,
             "{\"tool\": \"cut\", \"version\": \"0.1\", \"args\": [], \"parent\": \"p.gguf\", \"inputs\": [], "
             "\"texts\": ["
             "{\"name\": \"one.txt\", \"sha256\": \"%s\", \"tokens\": 9, \"blocks\": \"\"}, "
             "{\"name\": \"two.txt\", \"sha256\": \"%s\", \"tokens\": 9, \"blocks\": \"\"}]}",
             hex, hex_of_u);
    rows = SCORE("-m %s -f %s %s -c 64 --no-speed", changed(m, "both.gguf", (change){.lineage = step}), t, u);
    CHECK(says(rows, 2, "leak",
               "calibration text 'one.txt' of step cut has the same hash; "
               "calibration text 'two.txt' of step cut has the same hash"),
          "the row of all texts does not name both: %s", json_string_value(cell(rows, 2, "leak")));
    json_decref(rows);
}

/* The column leak of a model made by this one step. */
static void leak_after(const char *step, bool imatrix, const char *expected) {
    const char *m = model("m.gguf", "tiny-llama", DW_F16, 1), *t = text_file("t.txt", 700, 1),
               *path = changed(m, "step.gguf", (change){.lineage = step, .imatrix = imatrix});
    json_t *rows = SCORE("-m %s -f %s -c 64 --windows 2 --no-speed", path, t);
    CHECK(expected ? says(rows, 0, "leak", expected) : json_is_null(cell(rows, 0, "leak")), "%s", step);
    json_decref(rows);
}

#define STEP(tool, args, facts, texts)                                                                                 \
    "{\"tool\": \"" tool "\", \"args\": [\"m.gguf\", " args "], \"facts\": {" facts                                    \
    "}, \"inputs\": [], \"texts\": [" texts "]}"
#define NAMED                                                                                                          \
    "{\"name\": \"c.txt\", \"sha256\": \"00\", \"tokens\": 64, \"blocks\": \"01234567012345670123456701234567\"}"
#define IMPORTED "{\"name\": \"x.imatrix\", \"sha256\": \"00\", \"tokens\": 4096, \"blocks\": \"\"}"

/* A stored base says what it had seen; beside the model that it is of it adds nothing. */
static void leaks_of_a_stored_base(const char *own, const char *leaky, const char *unnamed, const char *of_base) {
    const char *t = test_file("t.txt"), *u = test_file("u.txt"), *seen = test_file("seen.base"),
               *unknown = test_file("unknown.base");
    CHECK(!test_run("deadwood-score -m %s -f %s %s -c 64 --no-speed --store %s", leaky, t, u, seen) &&
          !test_run("deadwood-score -m %s -f %s -c 64 --no-speed --store %s", unnamed, t, unknown));
    json_t *rows = SCORE("-m %s %s --base %s -f %s %s -c 64 --no-speed", own, leaky, seen, u, t),
           *beside_unknown = SCORE("-m %s --base %s -f %s -c 64 --no-speed", own, unknown, t);
    CHECK(says(rows, 0, "leak", "no") && says(rows, 1, "leak", of_base) && says(rows, 2, "leak", of_base));
    CHECK(says(rows, 3, "leak", "no") && says(rows, 4, "leak", of_base + strlen("of the base: ")));
    CHECK(json_is_null(cell(beside_unknown, 0, "leak")));
    json_decref(rows);
    json_decref(beside_unknown);
}

/* A base that has seen a text is a leak, too; it is said once where the base is one of the models. */
static void leaks_of_the_base(void) {
    char hex[65], step[512];
    dw_err err = {0};
    const char *m = model("m.gguf", "tiny-llama", DW_F16, 1), *t = text_file("t.txt", 700, 1),
               *u = text_file("u.txt", 700, 2);
    REQUIRE(!dw_sha256_file(t, hex, &err));
    snprintf(step, sizeof step,
             "{\"tool\": \"cut\", \"version\": \"0.1\", \"args\": [], \"inputs\": [], \"texts\": "
             "[{\"name\": \"calib.txt\", \"sha256\": \"%s\", \"tokens\": 9, \"blocks\": \"\"}]}",
             hex);
    const char *leaky = changed(m, "leaky.gguf", (change){.lineage = step}),
               *own = changed(m, "own.gguf", (change){.lineage = STEP("requant", "\"--type\", \"F16\"", "", "")}),
               *unnamed = changed(m, "unnamed.gguf",
                                  (change){.lineage = STEP("gate", "\"--stats\", \"s.h5\"", "", "")}),
               *seen = "calibration text 'calib.txt' of step cut has the same hash";
    char of_base[100];
    snprintf(of_base, sizeof of_base, "of the base: %s", seen);
    json_t *rows = SCORE("-m %s %s --base %s -f %s %s -c 64 --no-speed", own, leaky, leaky, t, u),
           *unknown = SCORE("-m %s --base %s -f %s -c 64 --no-speed", own, unnamed, t);
    CHECK(says(rows, 0, "leak", of_base) && says(rows, 1, "leak", "no") && says(rows, 2, "leak", of_base));
    CHECK(says(rows, 3, "leak", seen) && says(rows, 4, "leak", "no") && says(rows, 5, "leak", seen));
    CHECK(json_is_null(cell(unknown, 0, "leak")));
    json_decref(rows);
    json_decref(unknown);
    leaks_of_a_stored_base(own, leaky, unnamed, of_base);
    CHECK(!test_run("deadwood-score -m %s --base %s -f %s -c 64 --no-speed 2>&1 | grep -c 'has seen the text'", leaky,
                    leaky, t) &&
              !strcmp(test_run_output(), "1\n"),
          "%s", test_run_output());
}

static void rule_of_predictors(void) {
    const char *m = model("m.gguf", "tiny-llama", DW_F16, 1), *t = text_file("t.txt", 700, 1),
               *path = changed(m, "step.gguf", (change){.lineage = STEP("train", "\"--activity\", \"0.5\"", "", "")});
    json_t *rows = SCORE("-m %s -f %s -c 64 --windows 2 --no-speed", path, t);
    CHECK(says(rows, 0, "rule", "predictors") && says(rows, 0, "activity", "0.5"));
    json_decref(rows);
}

static void unnamed_data(void) {
    leak_after(STEP("requant", "\"--type\", \"Q4_K\"", "", ""), false, "no");
    leak_after(STEP("requant", "\"--stats\", \"s.h5\"", "", NAMED), true, "no");
    leak_after(STEP("requant", "\"--stats\", \"x.imatrix\"", "", ""), true, NULL);
    leak_after(STEP("requant", "\"--stats\", \"s.h5\"", "\"unnamed_data\": \"x.imatrix\"", NAMED), true, NULL);
    leak_after(STEP("gate", "\"--stats\", \"s.h5\"", "", IMPORTED), false, NULL);
    leak_after(STEP("cut", "\"--plan\", \"p.tsv\"", "\"metric\": \"random\"", ""), false, "no");
    leak_after(STEP("cut", "\"--plan\", \"p.tsv\"", "\"metric\": \"energy\"", NAMED), false, "no");
    leak_after(STEP("cut", "\"--plan\", \"p.tsv\"", "\"metric\": \"energy\"", ""), false, NULL);
    leak_after(STEP("cut", "\"--plan\", \"by-hand.tsv\"", "", ""), false, NULL);
    leak_after(STEP("cut", "\"--plan\", \"p.tsv\"", "\"metric\": \"random\"", ""), true,
               NULL); // a foreign file was cut
}

/* What a row says of what it compared, by hash. */
static void provenance(void) {
    char hex[65], base_hex[65], types[64];
    dw_err err = {0};
    const char *m = model("m.gguf", "tiny-llama", DW_Q4_0, 1), *b = model("b.gguf", "tiny-llama", DW_BF16, 1),
               *t = text_file("t.txt", 900, 1), *u = text_file("u.txt", 700, 2);
    json_t *rows = SCORE("-m %s %s -f %s %s --base %s -c 64 --no-speed --role report", m, b, t, u, b),
           *swapped = SCORE("-m %s -f %s %s -c 64 --no-speed", m, u, t),
           *fewer = SCORE("-m %s -f %s %s -c 64 --windows 2-6 --no-speed", m, u, t);
    REQUIRE(json_array_size(rows) == 6 && !dw_sha256_file(b, base_hex, &err) && !dw_sha256_file(t, hex, &err));
    CHECK(says(rows, 0, "base_sha256", base_hex) && says(rows, 0, "text_sha256", hex) &&
          says(rows, 0, "role", "report"));
    CHECK(says(rows, 0, "type", "Q4_0") && says(rows, 3, "type", "BF16"));
    snprintf(types, sizeof types, "%s", json_string_value(cell(rows, 3, "types")));
    CHECK(!strncmp(types, "BF16 ", 5) && atoi(types + 5) > 8, "%s", types);
    snprintf(types, sizeof types, "1-%.0f", number(rows, 0, "windows"));
    CHECK(says(rows, 0, "window_range", types) && says(fewer, 2, "window_range", "2-6"), "%s", types);
    const char *set = json_string_value(cell(rows, 2, "text_sha256"));
    REQUIRE(set && strlen(set) == 64);
    CHECK(says(swapped, 2, "text_sha256", set) && !says(fewer, 2, "text_sha256", set),
          "the set of texts and windows has a hash");
    const double apart = fabs(number(rows, 0, "ln_ratio") - number(rows, 1, "ln_ratio")) / sqrt(2);
    CHECK(number(rows, 2, "texts") == 2 && fabs(number(rows, 2, "ln_ratio_texts_sd") / apart - 1) < 1e-3);
    CHECK(isnan(number(rows, 0, "texts")) && isnan(number(rows, 0, "ln_ratio_texts_sd")));
    static const char *const of[][2] = {
        {"nll_se", "nll_ci90"}, {"ln_ratio_se", "ln_ratio_ci90"}, {"kl_se", "kl_ci90"}, {"top1_se", "top1_ci90"}};
    for (size_t k = 0; k < 4; k++)
        CHECK(fabs(number(rows, 0, of[k][1]) / number(rows, 0, of[k][0]) -
                   measure_t(0.05, number(rows, 0, "windows") - 1)) < 2e-3,
              "%s", of[k][1]);
    json_decref(rows);
    json_decref(swapped);
    json_decref(fewer);
}

static void refusals(void) {
    const char *m = model("m.gguf", "tiny-llama", DW_F32, 1), *t = text_file("t.txt", 700, 1),
               *shorter = text_file("short.txt", 20, 1);
    refused(words("-m %s -f %s -c 64", m, shorter), "protocol llama with a context of 64 needs 128 tokens");
    refused(words("-m %s -f %s -c 64 --windows 3-400", m, t), "windows 3 to 400 are wanted");
    refused(words("-m %s -f %s -c 64", changed(m, "nan.gguf", (change){.nan = "output_norm"}), t),
            "nan.gguf' are not finite in window 1");
    refused(words("-m %s -f %s -c 64", changed(m, "mute.gguf", (change){.drop_key = "tokenizer."}), t), "mute.gguf': ");
    const char *other = model("other.gguf", "mini", DW_Q4_0, 1), *stored = test_file("m.base");
    refused(words("-m %s -f %s -c 64 --base %s", m, t, other), "have different vocabularies");
    json_decref(SCORE("-m %s -f %s -c 64 --no-speed --store %s", m, t, stored));
    refused(words("-m %s -f %s -c 32 --base %s", m, t, stored), "was stored with --protocol llama -c 64");
    refused(words("-m %s -f %s -c 64 --protocol hf --base %s", m, t, stored), "was stored with --protocol llama -c 64");
    refused(words("-m %s -f %s -c 64 --windows 1-2 --base %s", m, t, stored),
            "was stored with all windows, this run takes --windows 1-2; give the same --windows");
    refused(words("-m %s -f %s -c 64 --base %s", m, shorter, stored), "holds no predictions for the text");
    refused(words("-m %s -f %s -c 64 --base %s", other, t, stored), "have different vocabularies");
    refused(words("-m %s -f %s -c 64 --base %s", stored, t, m), "can only be compared with a stored base");
    CHECK(test_run("deadwood-score -m %s", m) == 2 && strstr(test_run_output(), "give a text with -f"), "%s",
          test_run_output());
    refused(words("-m %s -f %s", t, t), "t.txt");
}

static void mini(void) {
    if (!test_shared()) SKIP("the reference models are not here (DW_SHARED)");
    dw_err err = {0};
    char folder[1024], text[1024];
    const char *gguf = test_file("mini.gguf"), *domain;
    snprintf(folder, sizeof folder, "%s/reference-model/mini", test_shared());
    REQUIRE(!test_run("deadwood-convert %s -o %s", folder, gguf), "%s", test_run_output());
    json_t *reference = dw_json_load(test_path(folder, "reference.json"), 64 << 20, DW_JSON_LARGE_TREE, &err), *value;
    REQUIRE(reference, "%s", err.text);
    json_object_foreach(json_object_get(reference, "domains"), domain, value) {
        const json_t *windows = json_object_get(value, "per_window");
        const double expected =
            (json_number_value(json_array_get(windows, 0)) + json_number_value(json_array_get(windows, 1))) / 2;
        snprintf(text, sizeof text, "%s/reference-model/%s", test_shared(),
                 json_string_value(json_object_get(value, "file")));
        json_t *rows = SCORE("-m %s -f %s --windows 1-2 --kv f32 --no-speed", gguf, text);
        CHECK(fabs(number(rows, 0, "nll_nats") - expected) < 5e-4, "%s: %.6f, transformers %.6f", domain,
              number(rows, 0, "nll_nats"), expected);
        json_decref(rows);
    }
    json_decref(reference);
}

/* mini comes back to whole sentences, which is not the same as repeating words. */
static void mini_continues(void) {
    const char *m = test_file("m.gguf"), *t = text_file("t.txt", 2000, 1), *two = test_file("two.gguf");
    REQUIRE(
        !test_run("deadwood-convert experiments/mini -o %s -q && deadwood-requant -m %s --type affine4 -o %s.4 -q && "
                  "deadwood-requant -m %s.4 --type affine2 --lossy-twice -o %s -q",
                  m, m, two, two, two),
        "%s", test_run_output());
    json_t *rows = SCORE("-m %s %s -f %s --windows 1 -c 64 --no-speed", m, two, t);
    CHECK(number(rows, 0, "repeats") <= 0.2 && number(rows, 1, "repeats") >= 0.6, "%g and %g",
          number(rows, 0, "repeats"), number(rows, 1, "repeats"));
    json_decref(rows);
}

static const test_case cases[] = {
    {"means, shares and quantiles are what the formulas say", means},
    {"a paired error is that of the window means", paired_by_hand},
    {"over independent windows the bootstrap gives the analytic error, each time the same", bootstrap_independent},
    {"where neighbouring windows agree the bootstrap's error is larger, and decides what is resolvable",
     bootstrap_of_runs},
    {"log-sums, likeliest tokens and divergences of logits agree with long double; NaN is seen", rows_of_logits},
    {"the divergence of a coarser distribution is at most the full one, and 0 of a row from itself", coarse_rows},
    {"hf scores every token but the first once; llama and full score what their papers say", window_counts},
    {"each protocol's scored tokens and contexts are those of its definition", protocols_by_definition},
    {"no number depends on threads or on how tokens are batched", evaluation_invariance},
    {"windows far shorter than a batch are scored, with the same numbers as one at a time", short_windows},
    {"stored predictions come back bit for bit, text by text", stored_round_trip},
    {"a stored base of an earlier version reads as then", stored_seed},
    {"a stored base that was truncated is refused, and a changed bit changes no prediction", stored_damage},
    {"a stored base with windows of one token is refused", stored_small_context},
    {"a stored prediction that names a token twice is refused", stored_repeated},
    {"a disturbed measurement says by what", disturbances},
    {"what is unknown is written as a dash", unknown_cells},
    {"a continuation only repeats when half of its last 32 tokens are among the four before them", repeated_tokens},
    {"a uniform model has the perplexity of its vocabulary's size", uniform},
    {"a model without layers only repeats itself, and the row says so of it and of its base", broken},
    {"depths are a list of different numbers, and what is timed is named as llama-bench does", depth_lists},
    {"each further depth has a row of its own with its speed and no quality", depths},
    {"several sequences are timed together", sequences},
    {"a model against itself has ratio 0, divergence 0, agreement 1, exactly, live and stored", against_itself},
    {"side by side, against a stored base and between two stored files the ratio is the same", side_by_side_and_stored},
    {"quality columns are the same for every -t and --batch", threads_and_batches},
    {"the table and the objects say the same, with memory and speed", rows_and_objects},
    {"after train the rule is that predictors decide", rule_of_predictors},
    {"a calibration text in the lineage is reported as a leak, with what was done", leaks},
    {"a text that the base has seen is a leak, too", leaks_of_the_base},
    {"leak is unknown as soon as a step learnt from data that it does not name", unnamed_data},
    {"a row holds the hashes of base and texts, types, windows, half widths of intervals and the spread between texts",
     provenance},
    {"what cannot be compared or scored is refused in one line", refusals},
    {"mini does not only repeat itself, but rounded to two bits over four bits it does", mini_continues},
    {"mini's first windows have transformers' likelihood", mini},
    {0}};
TEST_MAIN(cases)
