/* test_gate.c - thresholds against what the taps show, transposed copies against down, marks, loss, refusals. */
#include "build.h"
#include "text/tokenizers.h"
#include "engine.h"
#include "measure/windows.h"
#include "formats/ffn_gated.h"
#include "model/model.h"
#include "predict/down_t.h"
#include "predict/rules.h"
#include "test.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* A path that stays: test_path's own buffers are used again. */
static const char *file(const char *name) {
    static char paths[64][256];
    const char *wanted = test_path(test_folder(), name);
    int i = 0;
    while (paths[i][0] && strcmp(paths[i], wanted)) i++;
    return strcpy(paths[i], wanted);
}

#define RUN(...) CHECK(!test_run(__VA_ARGS__), "%s", test_run_output())

/* The trained model of the repository in a number format, made once. */
static const char *mini(const char *type) {
    const char *path = file(type);
    if (access(path, R_OK)) RUN("deadwood-convert experiments/mini -q --type %s -o %s", type, path);
    return path;
}

static const char *synth(const char *shape, const char *type) {
    char name[96];
    snprintf(name, sizeof name, "%s-%s.gguf", shape, type);
    const char *path = file(name);
    if (access(path, R_OK)) RUN("deadwood-synth --shape %s --type %s -o %s -q", shape, type, path);
    return path;
}

static const char *words(const char *name, uint64_t seed) {
    static const char *const word[] = {"the ",    "function ", "returns ", "a ",           "tree ",  "of ",
                                       "light, ", "und ",      "es ",      "x = y + 1;\n", "river ", "12 "};
    const char *path = file(name);
    if (!access(path, R_OK)) return path;
    test_bytes b = {0};
    dw_rng rng;
    dw_rng_seed(&rng, seed);
    for (int i = 0; i < 1500; i++) put_text(&b, word[dw_rng_below(&rng, sizeof word / sizeof *word)]);
    save(&b, path);
    free(b.data);
    return path;
}

static const char *a_text(void) { return words("text.txt", 3); }
static const char *held_out(void) { return words("held-out.txt", 4); }

enum { N_CTX = 64, N_WINDOWS = 4 };

/* Statistics of a model, made once. */
static const char *stats_of(const char *model) {
    char name[128];
    snprintf(name, sizeof name, "%s.h5", strrchr(model, '/') + 1);
    const char *path = file(name);
    if (access(path, R_OK))
        RUN("deadwood-collect -q -m %s -f %s -c %d --windows %d --hist-every 1 -o %s", model, a_text(), N_CTX,
            N_WINDOWS, path);
    return path;
}

static const char *gate(const char *model, const char *options) {
    const char *path = file("gated.gguf");
    RUN("deadwood-gate -m %s -s %s -o %s %s", model, stats_of(model), path, options);
    return path;
}

static void refused(const char *model, const char *stats, const char *options, const char *words) {
    const char *path = file("refused.gguf");
    unlink(path);
    CHECK(test_run("deadwood-gate -m %s -s %s -o %s -q %s", model, stats, path, options) == 1 && access(path, F_OK),
          "not refused: %s", words);
    const char *text = test_run_output();
    CHECK(strstr(text, words) && strchr(text, '\n') == text + strlen(text) - 1, "'%s' does not say '%s' in one line",
          text, words);
}

/* ---- rules ------------------------------------------------------------------------------------------------------- */

/* Values of 64 neurons over 4000 tokens, by lot: histograms and the values themselves. */
enum { NEURONS = 64, TOKENS = 4000 };

static double activated(const char *name, double g) {
    if (!strcmp(name, "relu")) return fmax(g, 0);
    if (!strcmp(name, "silu")) return g / (1 + exp(-g));
    return 0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * pow(g, 3))));
}

static void draw(kit_stats_layer *s, float *largest, int group, const char *act, double mean, double deviation) {
    dw_rng rng;
    dw_rng_seed(&rng, 11);
    for (int t = 0; t < TOKENS; t++) {
        float most[NEURONS] = {0};
        for (int j = 0; j < NEURONS; j++) {
            const double g = mean + deviation * dw_rng_normal(&rng);
            most[j / group] = fmaxf(most[j / group], (float)fabs(activated(act, g)));
        }
        for (int i = 0; i < NEURONS / group; i++) {
            uint32_t *hist = group == 1 ? s->hist_gate : s->hist_group[0];
            hist[i * KIT_STATS_BINS + kit_stats_bin(most[i])]++;
            largest[t * (NEURONS / group) + i] = most[i];
        }
    }
}

static void check_quantiles(int group, const char *act, double mean, double deviation) {
    dw_err err = {0};
    static uint32_t hist[NEURONS * KIT_STATS_BINS];
    static float largest[NEURONS * TOKENS];
    memset(hist, 0, sizeof hist);
    kit_stats_layer s = {.n_ff = NEURONS, .hist_gate = hist, .hist_group = {hist}};
    predict_values v;
    draw(&s, largest, group, act, mean, deviation);
    REQUIRE(!predict_values_of(&v, predict_rule_find(group > 1 ? "group-max" : "cats"), group, act, &s, &err), "%s",
            err.text);
    const double most = 1 - v.below[1]; // the lowest bin, which holds zeros, is closed as a whole
    for (int i = 5; i < 100 && i / 100.0 < most; i += 5) {
        const float threshold = predict_threshold_for(&v, i / 100.0);
        const int n = NEURONS * TOKENS / group;
        int open = 0;
        for (int k = 0; k < n; k++) open += largest[k] >= threshold;
        CHECK(fabs(predict_activity_at(&v, threshold) - i / 100.0) < 5e-3, "%d %%: %g expected", i,
              predict_activity_at(&v, threshold));
        CHECK(fabs((double)open / n - i / 100.0) < 0.02, "%s, groups of %d, g of %g +- %g: %d %% wanted, %.4f open",
              act, group, mean, deviation, i, (double)open / n);
    }
    CHECK(predict_threshold_for(&v, 1) == 0 && predict_activity_at(&v, 0) == 1);
}

static void quantiles(void) {
    static const char *const acts[] = {"silu", "gelu_pytorch_tanh", "relu"};
    for (int i = 0; i < 3; i++) {
        check_quantiles(1, acts[i], 0, 1);
        check_quantiles(1, acts[i], -1, 1.5);
        check_quantiles(32, acts[i], 0, 1);
        if (i == 1) continue; // most of these lie near gelu's minimum (rules.h)
        check_quantiles(1, acts[i], -0.3, 0.4);
        check_quantiles(32, acts[i], -2, 1);
    }
    dw_err err = {0};
    uint32_t hist[KIT_STATS_BINS] = {50, [30] = 50};
    predict_values v;
    REQUIRE(!predict_values_of(&v, predict_rule_find("cats"), 1, "silu",
                               &(kit_stats_layer){.n_ff = 1, .hist_gate = hist}, &err),
            "%s", err.text);
    CHECK(predict_activity_at(&v, predict_threshold_for(&v, 0.8)) == 0.5, "the lowest bin is closed as a whole");
}

typedef struct counts { // of a layer: neurons whose value reaches the threshold, or an edge of the bin that holds it
    uint64_t n, open, above_low, above_high;
} counts;

typedef struct watch {
    const dw_model *gated;
    counts layer[64];
} watch;

/* The edges of the bin that a threshold lies in. */
static void edges(float threshold, float *low, float *high) {
    const int b = kit_stats_bin(threshold * 0.99999f);
    *low = kit_stats_bin_edge(b);
    *high = kit_stats_bin_edge(b + 1) * 1.00001f;
}

static void count_open(void *ctx, const dw_tap_event *e) {
    watch *w = ctx;
    counts *c = &w->layer[e->layer];
    const dw_layer_gate *g = &w->gated->net.layer[e->layer].sparse;
    float low, high;
    edges(g->threshold, &low, &high);
    for (int t = 0; t < e->n_tokens; t++) {
        const float *x = e->values + t * e->n;
        for (int first = 0; first < e->n; first += g->group) {
            const int n = e->n - first < g->group ? e->n - first : g->group;
            float largest = 0;
            for (int j = first; j < first + n; j++) largest = fmaxf(largest, fabsf(x[j]));
            c->n += (uint64_t)n;
            c->open += largest >= g->threshold ? (uint64_t)n : 0;
            c->above_low += largest >= low ? (uint64_t)n : 0;
            c->above_high += largest >= high ? (uint64_t)n : 0;
        }
    }
}

/* Runs the model over the windows that the statistics are of, and counts. */
static bool count_plainly(const char *model, const char *gated, watch *w) {
    dw_err err = {0};
    dw_model *m = dw_model_open(model, &err), *g = dw_model_open(gated, &err);
    dw_pool *pool = dw_pool_new(2, &err);
    dw_session *s = m ? dw_session_new(m, &(dw_session_options){.pool = pool, .n_ctx = N_CTX, .n_batch = N_CTX}, &err)
                      : NULL;
    dw_tokenizer *tok = m ? dw_tokenizer_open(dw_model_gguf(m), &err) : NULL;
    if (!CHECK(g && s && tok, "%s", err.text)) return false;
    w->gated = g;
    dw_session_set_tap(s, &(dw_tap){.points = 1u << DW_TAP_FFN_GATE, .fn = count_open, .ctx = w});
    size_t size, n;
    int32_t *token = NULL;
    char *text = dw_read_file(a_text(), 1 << 24, &size, &err);
    const dw_vocab *v = dw_tokenizer_vocab(tok);
    bool ok = CHECK(text && !dw_tokenize(tok, text, size, DW_ADD_SPECIAL, &token, &n, &err) && n >= N_WINDOWS * N_CTX,
                    "%s", err.text);
    for (int i = 0; i < N_WINDOWS && ok; i++) {
        dw_session_rewind(s, 0, 0);
        if (v->add_bos) token[i * N_CTX] = v->bos;
        ok = CHECK(!dw_session_eval(s, &(dw_batch){.n_tokens = N_CTX, .token = token + i * N_CTX}, &err), "%s",
                   err.text);
    }
    free(text), free(token);
    dw_tokenizer_free(tok);
    dw_session_free(s), dw_pool_free(pool), dw_model_close(m);
    return ok;
}

static void check_activity(const char *model, double activity, int group) {
    char options[128];
    watch w = {0};
    snprintf(options, sizeof options, "--rule %s --group %d --activity %g", group > 1 ? "group-max" : "cats", group,
             activity);
    const char *gated = gate(model, options);
    if (!count_plainly(model, gated, &w)) return;
    for (int l = 0; l < w.gated->net.hp.n_layer; l++) {
        const counts *c = &w.layer[l];
        const dw_layer_gate *g = &w.gated->net.layer[l].sparse;
        const double n = (double)c->n, open = (double)c->open / n, bin = (double)(c->above_low - c->above_high) / n;
        CHECK(g->group == group && !g->dense && fabs((double)g->activity - activity) < 1e-4,
              "layer %d: %g expected, %g wanted", l, (double)g->activity, activity);
        CHECK(fabs(open - (double)g->activity) <= bin + 1e-6,
              "%s, layer %d: %.4f are open, %.4f expected, the bin holds %.4f", options, l, open, (double)g->activity,
              bin);
        CHECK(fabs(open - activity) <= (group > 1 ? 0.06 : 0.03), "%s, layer %d: %.4f are open, %.4f wanted", options,
              l, open, activity);
    }
    dw_model_close((dw_model *)w.gated);
}

static void activity(void) {
    check_activity(mini("bf16"), 0.1, 1);
    check_activity(mini("bf16"), 0.35, 1);
    check_activity(mini("bf16"), 0.4, 64);
    check_activity(synth("tiny-deci", "F32"), 0.5, 1);
    check_activity(synth("tiny-deci", "F32"), 0.7, 64); // widths of 96 and 32: smaller last groups
}

/* Whether skipping pays is for the machine to say that runs the model: no layer is marked, at any activity. */
static void every_layer_has_a_threshold(void) {
    static const char *const activities[] = {"0.1", "0.9"};
    dw_err err = {0};
    const char *model = mini("bf16");
    for (size_t i = 0; i < sizeof activities / sizeof *activities; i++) {
        char options[64];
        snprintf(options, sizeof options, "--rule cats --activity %s", activities[i]);
        dw_model *m = dw_model_open(gate(model, options), &err);
        REQUIRE(m, "%s", err.text);
        CHECK(!dw_gguf_find(dw_model_gguf(m), DW_KEY_GATE_DENSE) && !strstr(test_run_output(), "dense"), "%s",
              test_run_output());
        for (int l = 0; l < m->net.hp.n_layer; l++) {
            const dw_layer_gate *g = &m->net.layer[l].sparse;
            CHECK(!g->dense && g->threshold > 0 && g->activity < 1 && g->down_t.name, "--activity %s: layer %d",
                  activities[i], l);
        }
        dw_model_close(m);
    }
}

/* ---- transposed copies ------------------------------------------------------------------------------------------- */

/* The relative error of all transposed copies of a file against down of another: the largest of a layer. */
static double worst_error(const char *gated, const char *model) {
    dw_err err = {0};
    dw_model *a = dw_model_open(gated, &err), *b = dw_model_open(model, &err);
    double worst = 0;
    if (!CHECK(a && b, "%s", err.text)) return NAN;
    for (int l = 0; l < a->net.hp.n_layer; l++) {
        const dw_tensor *t = &a->net.layer[l].sparse.down_t, *down = &b->net.layer[l].down;
        if (!CHECK(t->name && t->ne[0] == down->ne[1] && t->ne[1] == down->ne[0])) break;
        const size_t n_embd = t->ne[0], n_ff = t->ne[1];
        float *x = calloc(n_embd * n_ff, sizeof *x), *y = calloc(n_embd * n_ff, sizeof *y);
        double error = 0, power = 0;
        for (size_t j = 0; j < n_ff; j++) t->type->decode(t->data + j * dw_tensor_row_bytes(t), x + j * n_embd, n_embd);
        for (size_t i = 0; i < n_embd; i++)
            down->type->decode(down->data + i * dw_tensor_row_bytes(down), y + i * n_ff, n_ff);
        for (size_t j = 0; j < n_ff; j++) {
            for (size_t i = 0; i < n_embd; i++) {
                const double v = (double)y[i * n_ff + j], d = (double)x[j * n_embd + i] - v;
                error += d * d;
                power += v * v;
            }
        }
        worst = fmax(worst, sqrt(error / power));
        free(x), free(y);
    }
    dw_model_close(a), dw_model_close(b);
    return worst;
}

static void same_tensors(const char *gated, const char *model) {
    dw_err err = {0};
    dw_gguf *a = dw_gguf_open(gated, &err), *b = dw_gguf_open(model, &err);
    REQUIRE(a && b, "%s", err.text);
    for (size_t i = 0; i < dw_gguf_n_tensors(b); i++) {
        const dw_tensor *t = dw_gguf_tensor(b, i), *u = dw_gguf_find_tensor(a, t->name);
        CHECK(u && u->type == t->type && u->n_bytes == t->n_bytes && u->ne[0] == t->ne[0] &&
                  !memcmp(u->data, t->data, t->n_bytes),
              "%s", t->name);
    }
    for (size_t i = 0; i < dw_gguf_n_kv(b); i++) {
        const dw_kv *k = dw_gguf_kv(b, i), *u = dw_gguf_find(a, k->key);
        if (strcmp(k->key, "deadwood.lineage"))
            CHECK(u && u->n_bytes == k->n_bytes && !memcmp(u->data, k->data, k->n_bytes), "%s", k->key);
    }
    dw_gguf_close(a), dw_gguf_close(b);
}

static void exact(void) {
    static const char *const shapes[] = {"tiny-deci", "tiny-openelm", "tiny-qwen3"};
    static const char *const types[] = {"F32", "F16", "BF16"};
    for (int i = 0; i < 3; i++) {
        const char *model = synth(shapes[i], types[i]),
                   *gated = gate(model, "--rule group-max --group 32 --activity 0.5");
        CHECK(worst_error(gated, model) == 0, "%s", types[i]);
        same_tensors(gated, model);
        CHECK(!strstr(test_run_output(), "RMSE") && strstr(test_run_output(), "upstream llama.cpp cannot load"), "%s",
              test_run_output());
    }
    const char *gated = gate(mini("bf16"), "--rule cats --activity 0.3");
    CHECK(worst_error(gated, mini("bf16")) == 0);
    same_tensors(gated, mini("bf16"));
}

/* The loss that the program says. */
static double stated(void) {
    const char *at = strstr(test_run_output(), "at most ");
    return CHECK(at, "no loss is stated: %s", test_run_output()) ? atof(at + strlen("at most ")) : NAN;
}

static void encoded(void) {
    static const char *const types[] = {"Q4_0", "Q8_0", "Q6_K"};
    for (int i = 0; i < 3; i++) {
        const char *model = synth("mini", types[i]), *gated = gate(model, "--rule cats --activity 0.3");
        CHECK(strstr(test_run_output(), "16 bits are the better source"), "%s", test_run_output());
        const double error = worst_error(gated, model), loss = stated();
        CHECK(error > 0 && error < 0.2 && fabs(error - loss) <= 6e-5, "%s: %.5f is lost, %.5f stated", types[i], error,
              loss);
        same_tensors(gated, model);
    }
    char options[512];
    const char *model = mini("q4_0"), *again = gate(model, "--rule cats --activity 0.3");
    const double twice = worst_error(again, mini("bf16"));
    snprintf(options, sizeof options, "--rule cats --activity 0.3 --source %s", mini("bf16"));
    const char *once = gate(model, options);
    const double loss = stated(), error = worst_error(once, mini("bf16"));
    CHECK(!strstr(test_run_output(), "better source") && fabs(error - loss) <= 6e-5, "%.5f is lost, %.5f stated", error,
          loss);
    CHECK(error < 0.9 * twice, "%.4f from 16 bits, %.4f from 4", error, twice);
}

static void types(void) {
    const dw_tensor k = {.type = dw_qtype_get(DW_Q4_K), .ne = {512, 256, 1, 1}},
                    odd = {.type = dw_qtype_get(DW_Q4_K), .ne = {512, 896, 1, 1}};
    const dw_tensor none = {.type = dw_qtype_get(DW_Q4_0), .ne = {512, 36, 1, 1}},
                    half = {.type = dw_qtype_get(DW_BF16), .ne = {7, 9, 1, 1}};
    CHECK(predict_down_t_type(&k)->id == DW_Q4_K && predict_down_t_type(&odd)->id == DW_Q8_0);
    CHECK(predict_down_t_type(&none)->id == DW_F16 && predict_down_t_type(&half)->id == DW_BF16);
}

static void threads(void) {
    char hash[2][65];
    dw_err err = {0};
    for (int i = 0; i < 2; i++) {
        const char *gated = gate(synth("mini", "Q4_0"), i ? "--rule group-max --group 128 --activity 0.5 -t 3 -q"
                                                          : "--rule group-max --group 128 --activity 0.5 -t 1");
        CHECK(!dw_sha256_file(gated, hash[i], &err), "%s", err.text);
    }
    CHECK(!strcmp(hash[0], hash[1]));
}

/* ---- running it -------------------------------------------------------------------------------------------------- */

/* Logits of 24 tokens by ref. */
static float *logits(const char *path, dw_select select, size_t *n) {
    enum { N = 24 };
    dw_err err = {0};
    dw_pool *pool = dw_pool_new(2, &err);
    dw_model *m = dw_model_open(path, &err);
    dw_session *s = m ? dw_session_new(
                            m,
                            &(dw_session_options){
                                .pool = pool, .backend = "ref", .n_ctx = N, .kv = DW_KV_CACHE_F32, .select = select},
                            &err)
                      : NULL;
    if (!CHECK(s, "%s", err.text)) exit(1);
    *n = (size_t)N * (size_t)dw_model_hparams(m)->n_vocab;
    float *out = calloc(*n, sizeof *out);
    int32_t token[N];
    uint8_t all[N];
    memset(all, 1, sizeof all);
    for (int i = 0; i < N; i++) token[i] = 7 * i % dw_model_hparams(m)->n_vocab;
    CHECK(!dw_session_eval(s, &(dw_batch){.n_tokens = N, .token = token, .out = all}, &err) &&
              !dw_session_logits(s, 0, N, out, &err),
          "%s", err.text);
    dw_session_free(s), dw_model_close(m), dw_pool_free(pool);
    return out;
}

static void runs(void) {
    const char *model = synth("tiny-qwen2", "F16");
    size_t n, n_gated;
    float *parent = logits(model, DW_SELECT_AUTO, &n);
    static const struct { const char *options; dw_select select; } ways[] = {
        {"--rule cats --activity 0.2", DW_SELECT_DENSE},
        {"--rule cats --activity 0.95", DW_SELECT_DENSE},
        {"--rule cats --activity 1", DW_SELECT_FUSED}, // everything reaches 0
        {"--rule group-max --group 32 --activity 1", DW_SELECT_AUTO}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        float *x = logits(gate(model, ways[i].options), ways[i].select, &n_gated);
        double error = 0, power = 0;
        for (size_t k = 0; k < n && n == n_gated; k++) {
            error += ((double)x[k] - parent[k]) * ((double)x[k] - parent[k]);
            power += (double)parent[k] * parent[k];
        }
        CHECK(n == n_gated && error <= 1e-10 * power, "%s: NMSE %.1e", ways[i].options, error / power);
        free(x);
    }
    free(parent);
}

static void planted(void) {
    dw_err err = {0};
    const char *path = file("planted.gguf"), *plain = synth("tiny-deci", "Q4_0");
    RUN("deadwood-synth --shape tiny-deci --type Q4_0 --gate --group 32 --predictors 8 -q -o %s", path);
    same_tensors(path, plain);
    dw_model *m = dw_model_open(path, &err);
    REQUIRE(m, "%s", err.text);
    for (int l = 0; l < m->net.hp.n_layer; l++) {
        const dw_layer_gate *g = &m->net.layer[l].sparse;
        CHECK(g->group == 32 && g->threshold == 0 && g->activity == 1 && !g->dense && g->down_t.type->id == DW_Q4_0 &&
                  g->pred_a.type->id == DW_F16,
              "layer %d", l);
        CHECK((int)g->pred_a.ne[1] == 8 && (int)g->pred_b.ne[1] == (m->net.hp.n_ff[l] + 31) / 32, "layer %d", l);
    }
    dw_model_close(m);
    CHECK(test_run("deadwood-synth --shape tiny-deci --group 32 -o %s", path) == 2);
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

/* The first row of `deadwood-score ARGUMENTS --json`; json_decref() it. */
static json_t *score(const char *arguments) {
    if (!CHECK(!test_run("deadwood-score %s --json -q", arguments), "%s: %s", arguments, test_run_output()))
        return json_null();
    const char *line = strstr(test_run_output(), "{");
    json_t *row = line ? json_loads(line, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    CHECK(row, "no row: %s", test_run_output());
    return row;
}

static double number(const json_t *row, const char *column) {
    const json_t *cell = json_object_get(row, column);
    return json_is_number(cell) ? json_number_value(cell) : NAN;
}

static bool is_text(const json_t *row, const char *column, const char *expected) {
    const char *text = json_string_value(json_object_get(row, column));
    return CHECK(text && !strcmp(text, expected), "%s is '%s', expected '%s'", column, text ? text : "-", expected);
}

/* The share of neurons that reach their threshold, of all that a gated model computes for the windows that score
 * takes. */
static double count_coverage(const char *gated, const char *text_path) {
    dw_err err = {0};
    watch w = {0};
    dw_model *m = dw_model_open(gated, &err);
    dw_pool *pool = dw_pool_new(2, &err);
    dw_session *s = m ? dw_session_new(
                            m, &(dw_session_options){.pool = pool, .n_ctx = N_CTX, .n_batch = N_CTX, .exact = true},
                            &err)
                      : NULL;
    size_t size, n;
    int32_t *token = NULL;
    measure_windows windows = {0};
    char *text = dw_read_file(text_path, 1 << 24, &size, &err);
    dw_tokenizer *tok = m ? dw_tokenizer_open(dw_model_gguf(m), &err) : NULL;
    if (!CHECK(
            s && text && tok && !dw_tokenize(tok, text, size, DW_ADD_SPECIAL, &token, &n, &err) &&
                !measure_windows_make(&windows, measure_protocol_find("llama"), n, N_CTX, 1, N_WINDOWS, "text", &err),
            "%s", err.text))
        return NAN;
    w.gated = m;
    dw_session_set_tap(s, &(dw_tap){.points = 1u << DW_TAP_FFN_GATE, .fn = count_open, .ctx = &w});
    const dw_vocab *v = dw_tokenizer_vocab(tok);
    for (size_t i = 0; i < windows.n; i++) {
        int32_t *first = token + windows.window[i].start;
        if (v->add_bos) *first = v->bos;
        dw_session_rewind(s, 0, 0);
        CHECK(!dw_session_eval(s, &(dw_batch){.n_tokens = windows.window[i].n_eval, .token = first}, &err), "%s",
              err.text);
    }
    double open = 0, all = 0;
    for (int l = 0; l < m->net.hp.n_layer; l++) open += (double)w.layer[l].open, all += (double)w.layer[l].n;
    measure_windows_release(&windows);
    dw_tokenizer_free(tok);
    free(text), free(token);
    dw_session_free(s), dw_pool_free(pool), dw_model_close(m);
    return open / all;
}

static void check_coverage(const char *options) {
    char arguments[1024];
    const char *gated = gate(mini("bf16"), options);
    snprintf(arguments, sizeof arguments, "-m %s -f %s -c %d --windows %d --no-speed --batch 100", gated, held_out(),
             N_CTX, N_WINDOWS);
    json_t *row = score(arguments);
    const double counted = count_coverage(gated, held_out()), found = number(row, "coverage");
    CHECK(fabs(found - counted) < 1e-6, "%s: coverage %.6f, counted %.6f", options, found, counted);
    json_decref(row);
}

static void brute_force(void) {
    check_coverage("--rule cats --activity 0.3");
    check_coverage("--rule group-max --group 32 --activity 0.45");
}

static void coverage(void) {
    char arguments[1024];
    const char *model = mini("bf16"), *gated = gate(model, "--rule cats --activity 0.3");
    snprintf(arguments, sizeof arguments, "-m %s -f %s -c %d --windows %d --no-speed", gated, a_text(), N_CTX,
             N_WINDOWS);
    json_t *row = score(arguments);
    const double found = number(row, "coverage"),
                 ppl = number(row, "ppl"); // the windows that the statistics are of, without their last tokens
    CHECK(fabs(found - 0.3) < 0.04, "coverage %g", found);
    is_text(row, "rule", "cats"), is_text(row, "activity", "0.3"), is_text(row, "group", "1"),
        is_text(row, "select", "auto"), is_text(row, "tool", "gate");
    const char *note = json_string_value(json_object_get(row, "note"));
    CHECK(note && strstr(note, "down_t 4.2 MB of it"), "%s", note ? note : "-");
    CHECK(isnan(number(row, "bytes_per_token")), "bytes are known that nobody counted");
    json_decref(row);

    strcat(arguments, " --select dense");
    row = score(arguments);
    const double dense = number(row, "bytes_per_token"), dense_ppl = number(row, "ppl");
    CHECK(dense > 0 && dense_ppl < ppl, "%g bytes, ppl %g, gated %g", dense, dense_ppl, ppl);
    is_text(row, "select", "dense");
    json_decref(row);

    snprintf(arguments, sizeof arguments, "-m %s -f %s -c %d --windows %d --no-speed", model, a_text(), N_CTX,
             N_WINDOWS);
    row = score(arguments);
    CHECK(number(row, "ppl") == dense_ppl && number(row, "bytes_per_token") == dense && isnan(number(row, "coverage")),
          "the parent differs");
    json_decref(row);
}

static void injected(void) {
    char arguments[1024];
    const char *path = file("injected.gguf");
    RUN("deadwood-synth --shape base --type Q4_0 --gate --group 64 -q -o %s", path);
    snprintf(arguments, sizeof arguments,
             "-m %s --inject 0.25 --select fused --speed-rounds 1 --speed-decode 16 --speed-prefill 0", path);
    json_t *row = score(arguments);
    dw_err err = {0};
    dw_model *m = dw_model_open(path, &err);
    REQUIRE(row && m, "%s", err.text);
    double wanted = (double)dw_model_bytes_per_token(m);
    for (int l = 0; l < m->net.hp.n_layer; l++)
        wanted -= 0.75 * (double)(m->net.layer[l].up.n_bytes + m->net.layer[l].down.n_bytes);
    const double bytes = number(row, "bytes_per_token"), found = number(row, "coverage");
    CHECK(isnan(number(row, "ppl")) && number(row, "decode_tok_s") > 0, "quality of a planted activity");
    CHECK(fabs(found - 0.25) < 0.05, "coverage %g", found);
    CHECK(fabs(bytes / wanted - 1) < 0.05, "%g bytes a token, about %g expected", bytes, wanted);
    is_text(row, "activity", "0.25");
    json_decref(row);
    dw_model_close(m);

    CHECK(!test_run("deadwood-score -m %s --inject 0.1,0.9 --select fused --speed-rounds 1 --speed-decode 32 "
                    "--speed-prefill 0 --per-layer -q",
                    path),
          "%s", test_run_output());
    const char *table = strstr(test_run_output(), "layer");
    double first = -1, last = -1;
    if (CHECK(table, "%s", test_run_output())) {
        sscanf(strstr(table, "\n    0 "), "%*d %*d %*s %*s %*s %lf", &first);
        sscanf(strstr(table, "\n   11 "), "%*d %*d %*s %*s %*s %lf", &last);
    }
    CHECK(fabs(first - 0.1) < 0.08 && fabs(last - 0.9) < 0.08, "%g to %g: %s", first, last, test_run_output());
}

static void usage(void) {
    const char *model = synth("tiny-qwen2", "F16");
    CHECK(test_run("deadwood-score -m %s", model) == 2 && strstr(test_run_output(), "give a text with -f"), "%s",
          test_run_output());
    CHECK(test_run("deadwood-score -m %s --inject 1.5", model) == 2);
    CHECK(test_run("deadwood-score -m %s --inject 0.5,", model) == 2);
    CHECK(test_run("deadwood-score -m %s --inject \"\"", model) == 2);
    CHECK(test_run("deadwood-score -m %s --inject 0.5 --no-speed", model) == 2);
    CHECK(test_run("deadwood-score -m %s -f README.md --inject 0.5", model) == 2 &&
              strstr(test_run_output(), "reads no text; leave out -f"),
          "%s", test_run_output());
    CHECK(test_run("deadwood-score -m %s --inject 0.5 -q", model) == 1 && strstr(test_run_output(), "is not gated"),
          "%s", test_run_output());
}

/* ---- controls ---------------------------------------------------------------------------------------------------- */

static const float *choice_of(const dw_model *m, int l) {
    return (const float *)(const void *)m->net.layer[l].sparse.pred_b_bias.data;
}

/* Energies of a layer's groups by plain loops: of every neuron the mean over tokens of a^2 times the norm of its
 * column. */
static void energies(const dw_model *m, const kit_stats *s, int l, int group, double *energy) {
    const dw_tensor *down = &m->net.layer[l].down; // (n_embd, n_ff)
    const kit_stats_layer *x = &s->layer[l];
    float *row = malloc(down->ne[0] * sizeof *row);
    for (int i = 0; i < x->n_ff; i++) energy[i] = 0;
    for (size_t i = 0; i < down->ne[1]; i++) {
        down->type->decode(down->data + i * dw_tensor_row_bytes(down), row, down->ne[0]);
        for (int j = 0; j < x->n_ff; j++)
            energy[j / group] += (double)row[j] * (double)row[j] * x->sum_square[j] / (double)x->count[0];
    }
    free(row);
}

static void check_static(const char *model, int group) {
    dw_err err = {0};
    char options[96];
    kit_stats s;
    snprintf(options, sizeof options, "--rule static --activity 0.5 --group %d", group);
    dw_model *m = dw_model_open(gate(model, options), &err);
    REQUIRE(m && !kit_stats_read(&s, stats_of(model), &err) && s.n_text == 1, "%s", err.text);
    for (int l = 0; l < m->net.hp.n_layer; l++) {
        const int n_ff = m->net.hp.n_ff[l], n_groups = (n_ff + group - 1) / group;
        double *energy = calloc((size_t)n_ff, sizeof *energy), least = INFINITY, most = 0;
        int n_open = 0;
        energies(m, &s, l, group, energy);
        for (int g = 0; g < n_groups; g++) {
            const bool is_open = choice_of(m, l)[g] > 0;
            n_open += is_open ? (n_ff - g * group < group ? n_ff - g * group : group) : 0;
            if (is_open) least = fmin(least, energy[g]);
            else most = fmax(most, energy[g]);
        }
        CHECK(least >= most * (1 - 1e-12), "layer %d: an open group has %g, a closed one %g", l, least, most);
        CHECK(abs(2 * n_open - n_ff) <= group, "layer %d: %d of %d neurons are open", l, n_open, n_ff);
        CHECK(m->net.layer[l].sparse.activity == (float)n_open / (float)n_ff);
        free(energy);
    }
    kit_stats_release(&s);
    dw_model_close(m);
}

/* Logits of the parent with lists of the neurons that the control opens. */
static void runs_as_lists(const char *model, const char *options) {
    enum { N = 24, MAX_LAYERS = 8, MAX_FF = 4096 };
    static int32_t list[MAX_LAYERS][MAX_FF], n_list[MAX_LAYERS];
    const int32_t *lists[MAX_LAYERS];
    dw_err err = {0};
    size_t n;
    const char *path = gate(model, options);
    float *gated = logits(path, DW_SELECT_FUSED, &n), *listed = calloc(n, sizeof *listed);
    dw_model *m = dw_model_open(path, &err), *parent = dw_model_open(model, &err);
    REQUIRE(m && parent && m->net.hp.n_layer <= MAX_LAYERS && m->net.hp.n_ff_max <= MAX_FF, "%s", err.text);
    for (int l = 0; l < m->net.hp.n_layer; l++) {
        n_list[l] = 0;
        lists[l] = list[l];
        for (int j = 0; j < m->net.hp.n_ff[l]; j++)
            if (choice_of(m, l)[j / m->net.layer[l].sparse.group] > 0) list[l][n_list[l]++] = j;
    }
    dw_pool *pool = dw_pool_new(2, &err);
    int32_t token[N];
    uint8_t all[N];
    memset(all, 1, sizeof all);
    for (int i = 0; i < N; i++) token[i] = 7 * i % m->net.hp.n_vocab;
    const dw_batch batch = {.n_tokens = N, .token = token, .out = all};
    dw_session *s = dw_session_new(
        parent, &(dw_session_options){.pool = pool, .backend = "ref", .n_ctx = N, .kv = DW_KV_CACHE_F32}, &err);
    CHECK(s && !dw_session_set_selection(s, &(dw_selection){lists, n_list}, &err) &&
              !dw_session_eval(s, &batch, &err) && !dw_session_logits(s, 0, N, listed, &err),
          "%s", err.text);
    double error = 0, power = 0;
    for (size_t k = 0; k < n; k++)
        error += pow((double)gated[k] - (double)listed[k], 2), power += (double)listed[k] * (double)listed[k];
    CHECK(power > 0 && error <= 1e-10 * power, "%s: NMSE %.1e", options, error / power);
    dw_session_free(s), dw_pool_free(pool), dw_model_close(m), dw_model_close(parent);
    free(gated), free(listed);
}

static void controls(void) {
    const char *model = synth("tiny-llama", "F16");
    check_static(model, 1);
    check_static(model, 32);
    runs_as_lists(model, "--rule static --activity 0.3");
    runs_as_lists(model, "--rule random --seed 5 --group 32 --activity 0.6");
    runs_as_lists(synth("tiny-qwen2", "F32"), "--rule random --activity 0.5");
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "r%d.gguf", i);
        RUN("deadwood-gate -q -m %s -o %s --rule random --seed %d --activity 0.4 -t %d", model, file(name), i / 2,
            1 + i);
    }
    CHECK(same_files(file("r0.gguf"), file("r1.gguf")) && !same_files(file("r1.gguf"), file("r2.gguf")),
          "a seed is a choice, and needs no statistics");
    size_t size;
    char *bytes = dw_read_file(file("r2.gguf"), 1 << 28, &size, NULL);
    CHECK(bytes && memmem(bytes, size, "\"control\":\"random\"", 18), "the lineage says that it is a control");
    free(bytes);
    CHECK(test_run("deadwood-gate -m %s -o %s --rule static --activity 0.4", model, file("x.gguf")) == 2 &&
              strstr(test_run_output(), "-s stats.h5"),
          "%s", test_run_output());
    CHECK(test_run("deadwood-trace -q -m %s -f %s -o %s -c 64 --tokens 256", file("r0.gguf"), a_text(), file("x.h5")) ==
                  1 &&
              strstr(test_run_output(), "the same neurons for every token"),
          "%s", test_run_output());
}

/* The score of a control: exactly its share of the neurons, on any text. */
static void control_coverage(void) {
    char arguments[1024];
    const char *model = synth("tiny-llama", "F16");
    for (int i = 0; i < 2; i++) {
        RUN("deadwood-gate -q -m %s -s %s -o %s --rule %s --activity 0.5", model, stats_of(model), file("control.gguf"),
            i ? "random" : "static");
        snprintf(arguments, sizeof arguments, "-m %s --base %s -f %s -c 64 --windows 3 --select fused --no-speed",
                 file("control.gguf"), model, held_out());
        json_t *row = score(arguments);
        CHECK(number(row, "coverage") == 0.5, "coverage %g", number(row, "coverage"));
        CHECK(number(row, "kl_mean") > 0 &&
                  !strcmp(json_string_value(json_object_get(row, "rule")), i ? "random" : "static"),
              "KL %g", number(row, "kl_mean"));
        json_decref(row);
    }
}

static void dry_run(void) {
    static const char *const ways[] = {"--rule cats --activity 0.3", "--rule static --activity 0.3",
                                       "--rule group-max --group 64 --activity 0.5"};
    const char *model = synth("mini", "Q4_0");
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        dw_err err = {0};
        double bytes = 0, told = 0;
        dw_gguf *g = dw_gguf_open(gate(model, ways[i]), &err);
        for (size_t k = 0; g && k < dw_gguf_n_tensors(g); k++) bytes += (double)dw_gguf_tensor(g, k)->n_bytes;
        dw_gguf_close(g);
        unlink(file("dry.gguf"));
        RUN("deadwood-gate -q -m %s -s %s -o %s --dry-run %s", model, stats_of(model), file("dry.gguf"), ways[i]);
        const char *last = strstr(test_run_output(), "*\ttotal\t");
        CHECK(last && sscanf(last, "*\ttotal\t%*s %*s %lf", &told) == 1 && told == bytes,
              "%g bytes in the file, told was\n%s", bytes, test_run_output());
        CHECK(access(file("dry.gguf"), F_OK), "a file was written");
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void cuts_no_gated(const char *gated, const char *plan) {
    char words[1024];
    snprintf(words, sizeof words, "'%s' is gated; cut the model before gate\n", gated);
    CHECK(test_run("deadwood-rank -m %s --metric weight --rate 0.25 -o %s", gated, file("no.tsv")) == 1 &&
              strstr(test_run_output(), words) && access(file("no.tsv"), F_OK),
          "%s", test_run_output());
    CHECK(test_run("deadwood-cut -m %s -p %s -o %s", gated, plan, file("no.gguf")) == 1 &&
              strstr(test_run_output(), words) && access(file("no.gguf"), F_OK),
          "%s", test_run_output());
}

static void refusals(void) {
    char options[512];
    const char *model = synth("tiny-qwen2", "F16"), *other = synth("tiny-llama", "F32"),
               *wanted = "--rule cats --activity 0.3";
    refused(model, stats_of(other), wanted, "was collected from another model");
    CHECK(!predict_rule_fits(predict_rule_find("cats"), 32) && predict_rule_fits(predict_rule_find("group-max"), 64));
    refused(gate(model, wanted), stats_of(model), wanted, "is gated already");
    RUN("deadwood-rank -q -m %s -o %s --metric weight --rate 0.25 --multiple 32", model, file("whole.tsv"));
    cuts_no_gated(gate(model, wanted), file("whole.tsv"));
    snprintf(options, sizeof options, "%s --source %s", wanted, other);
    refused(model, stats_of(model), options, "leave out --source");
    refused(synth("mini", "Q8_0"), stats_of(synth("mini", "Q8_0")), options, "the source has 4 layers");
    RUN("deadwood-rank -q -m %s -o %s --metric weight --rate 0.25 --multiple 32", model, file("narrow.tsv"));
    RUN("deadwood-cut -q -m %s -p %s -o %s", model, file("narrow.tsv"), file("narrow.gguf"));
    refused(file("narrow.gguf"), stats_of(file("narrow.gguf")),
            "--rule group-max --group 128 --activity 0.3 --dry-run", "have at most 96 neurons; give a smaller one");

    RUN("deadwood-collect -q -m %s -f %s -c %d --windows 2 -o %s --export-imatrix %s", model, a_text(), N_CTX,
        file("x.h5"), file("x.imatrix"));
    RUN("deadwood-collect -q -m %s --import-imatrix %s -o %s", model, file("x.imatrix"), file("imported.h5"));
    refused(model, file("imported.h5"), wanted, "layer 0: the statistics hold no histograms");

    CHECK(test_run("deadwood-gate -m %s -s %s -o /dev/null %s", model, stats_of(model), wanted) == 1);
    CHECK(test_run("deadwood-gate -m %s -s %s -o %s --rule cats --activity 0", model, stats_of(model),
                   file("x.gguf")) == 2);
}

/* A weight that is NaN, and statistics of the model that has it. */
static void damaged(void) {
    dw_err err = {0};
    const char *model = synth("tiny-llama", "F16"), *bad = file("nan.gguf");
    dw_gguf *g = dw_gguf_open(model, &err);
    dw_gguf_writer *w = dw_gguf_writer_new(bad, &err);
    REQUIRE(g && w, "%s", err.text);
    dw_gguf_set_keys(w, g);
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        dw_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne);
    }
    CHECK(!dw_gguf_begin(w, &err), "%s", err.text);
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        uint8_t *data = malloc(t->n_bytes);
        memcpy(data, t->data, t->n_bytes);
        if (!strcmp(t->name, "blk.2.ffn_down.weight")) memset(data + 100, 0xff, 2);
        CHECK(!dw_gguf_write(w, data, t->n_bytes, &err), "%s", err.text);
        free(data);
    }
    CHECK(!dw_gguf_commit(w, &err), "%s", err.text);
    dw_gguf_writer_free(w);
    dw_gguf_close(g);

    kit_stats s;
    char hash[65];
    REQUIRE(!kit_stats_read(&s, stats_of(model), &err) && !dw_sha256_file(bad, hash, &err), "%s", err.text);
    memcpy(s.model_sha256, hash, sizeof hash);
    CHECK(!kit_stats_write(&s, file("of-nan.h5"), &err), "%s", err.text);
    refused(bad, file("of-nan.h5"), "--rule cats --activity 0.3",
            "'blk.2.ffn_down.weight' row 0: value nan at column 50 cannot be stored as F16; the model is damaged");
    kit_stats_release(&s);
}

static void lineage(void) {
    dw_err err = {0};
    dw_gguf *g = dw_gguf_open(gate(synth("tiny-llama", "F16"), "--rule group-max --group 64 --activity 0.25"), &err);
    REQUIRE(g, "%s", err.text);
    const dw_kv *steps = dw_gguf_find(g, "deadwood.lineage");
    REQUIRE(steps && steps->count == 2);
    char *step = strndup(steps->str[1].ptr, steps->str[1].len);
    CHECK(strstr(step, "\"gate\"") && strstr(step, "\"group-max\"") && strstr(step, "\"64\"") &&
              strstr(step, "\"0.25\"") && strstr(step, "text.txt") && !strstr(step, test_folder()),
          "%s", step);
    free(step);
    dw_gguf_close(g);
}

static void set_learnt(dw_gguf_writer *w, const void *ctx) {
    dw_gguf_set_strs(w, "deadwood.lineage", &(dw_str){ctx, strlen(ctx)}, 1);
}

/* The transposed copies are made of the source's weights, so what it learnt from counts. */
static void texts_of_the_source(void) {
    dw_err err = {0};
    char options[512];
    const char *source = file("learnt.gguf");
    write_with_keys(mini("bf16"), source, set_learnt,
                    "{\"tool\": \"heal\", \"args\": [], \"texts\": [{\"name\": \"learnt.txt\", \"sha256\": \"00\", "
                    "\"tokens\": 64, \"blocks\": \"01234567012345670123456701234567\"}]}");
    snprintf(options, sizeof options, "--rule cats --activity 0.3 --source %s", source);
    dw_gguf *g = dw_gguf_open(gate(mini("q4_0"), options), &err);
    REQUIRE(g, "%s", err.text);
    const dw_kv *steps = dw_gguf_find(g, "deadwood.lineage");
    REQUIRE(steps && steps->count > 1);
    char *step = strndup(steps->str[steps->count - 1].ptr, steps->str[steps->count - 1].len);
    CHECK(strstr(step, "\"gate\"") && strstr(step, "\"learnt.txt\""), "%s", step);
    free(step);
    dw_gguf_close(g);
}

static const test_case cases[] = {
    {"thresholds are quantiles of histograms, spread evenly inside a bin", quantiles},
    {"thresholds open the wanted share on the calibration texts, as near as a bin allows", activity},
    {"every layer gets a threshold, and no mark of the machine that gated it", every_layer_has_a_threshold},
    {"transposed copies of 16 and 32 bits are exact, and everything else is the parent's", exact},
    {"transposed copies of blocks lose what is stated, and less from 16 bits", encoded},
    {"a transposed copy has down's type where its rows are whole blocks", types},
    {"one thread and three write the same bytes", threads},
    {"a gated model runs as its parent where nothing is closed", runs},
    {"synth plants gates and predictors beside the same model", planted},
    {"coverage on held-out tokens is a plain count", brute_force},
    {"score counts coverage, and says what a gated file holds", coverage},
    {"an injected activity is what decoding reads", injected},
    {"score's wrong usage", usage},
    {"controls open the same neurons for every token: those of most energy, or random ones", controls},
    {"a control's coverage is its activity on any text", control_coverage},
    {"a dry run prints the types and bytes of the file, and writes none", dry_run},
    {"what does not fit is refused in one line, and no file is left", refusals},
    {"a damaged matrix is refused", damaged},
    {"the lineage tells rule, activity, group and texts", lineage},
    {"the lineage has the texts that the source of weights learnt from", texts_of_the_source},
    {0}};

TEST_MAIN(cases)
