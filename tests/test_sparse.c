/* test_sparse.c - gated layers: what is open, that closed neurons count as zero and nothing else changes. */
#include "backends/kernels.h"
#include "backends/steps.h"
#include "experiments/random_model.h"
#include "formats/ffn_gated.h"
#include "model/session.h"
#include "test.h"
#include "tests/build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 24, LAYERS = 4, MAX_FF = 512 };

/* Matrices whose rows hold whole superblocks; widths that differ stand in the tiny shapes. */
static const exp_shape wide = {
    "wide", "llama", 3, 256, 512, 4, 2, 64, 512, true, 10000, 256, NULL, NULL, "whole superblocks"};
static const char *const shapes[] = {"tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-deci", "tiny-openelm", NULL};
static const char *const types[] = {"BF16", "F16", "Q8_0", "Q4_0", "Q4_K", NULL};
typedef enum way { FUSED, GATHERED, N_WAYS } way;
static const char *const backends[] = {"ref", "cpu"};
static const char *const way_names[] = {"fused", "gathered"}, *const select_names[] = {"auto", "fused", "dense"};

/* ---- files ---------------------------------------------------------------------------------------------------- */

static dw_pool *pool_of(int n) {
    static dw_pool *pools[4];
    if (!pools[n]) pools[n] = dw_pool_new(n, NULL);
    return pools[n];
}

static const char *plain(const exp_shape *shape, const char *type) {
    char name[96];
    snprintf(name, sizeof name, "%s-%s.gguf", shape->name, type);
    const char *path = test_path(test_folder(), name);
    if (!access(path, R_OK)) return path;
    dw_err err = {0};
    const exp_random_options o = {.shape = shape, .type = dw_qtype_by_name(type), .seed = 3, .pool = pool_of(2)};
    dw_gguf_writer *w = dw_gguf_writer_new(path, &err);
    CHECK(w && !exp_random_write(w, &o, &err) && !dw_gguf_commit(w, &err), "%s", err.text);
    dw_gguf_writer_free(w);
    return path;
}

static const exp_shape *shape_of(const char *name) { return strcmp(name, "wide") ? exp_shape_find(name) : &wide; }

/* The path of a model that was gated as wanted; made once. */
static const char *gated(const char *shape, const char *type, gated_file o) {
    static struct { const char *shape, *type; gated_file o; char path[256]; } made[256];
    int i = 0;
    for (; made[i].shape; i++)
        if (!strcmp(made[i].shape, shape) && !strcmp(made[i].type, type) && !memcmp(&made[i].o, &o, sizeof o))
            return made[i].path;
    char name[32], parent[256];
    snprintf(parent, sizeof parent, "%s", plain(shape_of(shape), type));
    snprintf(name, sizeof name, "gated-%d.gguf", i);
    snprintf(made[i].path, sizeof made[i].path, "%s", test_path(test_folder(), name));
    made[i].shape = shape, made[i].type = type, made[i].o = o;
    write_gated(parent, made[i].path, &o);
    return made[i].path;
}

static const float half_open_singles[] = {0.15f, 0.2f, 0.25f, 0.2f}, half_open_groups[] = {1.2f, 1.3f, 1.4f, 1.3f};

/* Rules whose decisions vary: by threshold, and by predictors that see their layer or the one before. */
static const gated_file rules[] = {
    {.group = 1, .threshold = half_open_singles},
    {.group = 24, .threshold = half_open_groups}, // does not divide the widths
    {.group = 8, .rank = 32, .input = "ffn"},
    {.group = 32, .rank = 96, .input = "previous"},
};
enum { N_RULES = sizeof rules / sizeof *rules };

/* ---- runs ----------------------------------------------------------------------------------------------------- */

typedef struct run {
    dw_model *model;
    dw_session *session;
    const dw_hparams *hp;
} run;

static bool open_run(run *r, const char *path, dw_session_options o, int n_threads) {
    dw_err err = {0};
    o.pool = pool_of(n_threads);
    o.n_ctx = 64;
    if (!o.n_batch) o.n_batch = 32;
    o.n_out = N;
    o.kv = DW_KV_CACHE_F32;
    *r = (run){.model = dw_model_open(path, &err)};
    r->session = r->model ? dw_session_new(r->model, &o, &err) : NULL;
    r->hp = r->model ? dw_model_hparams(r->model) : NULL;
    return CHECK(r->session, "%s", err.text);
}

/* With the open neurons walked over, or listed and their rows copied together. */
static bool open_way(run *r, const char *path, dw_session_options o, way how, int n_threads) {
    dw_err err = {0};
    o.select = DW_SELECT_FUSED;
    if (!open_run(r, path, o, n_threads)) return false;
    if (how == FUSED) return true;
    return CHECK(!dw_session_experiment(r->session, &(dw_ffn_experiment){.gathered = true}, &err), "%s", err.text);
}

/* Groups are open at random, a share[l] of those of layer l; NULL: as the gate says. */
static void plant(run *r, const float *share, uint64_t seed) {
    static dw_random_groups groups;
    dw_err err = {0};
    groups = (dw_random_groups){share, seed};
    const dw_ffn_experiment e = {.decide = dw_open_random, .ctx = &groups, .activity = share};
    CHECK(!dw_session_experiment(r->session, share ? &e : NULL, &err), "%s", err.text);
}

static void close_run(run *r) {
    dw_session_free(r->session);
    dw_model_close(r->model);
}

static size_t n_logits(const run *r) { return N * (size_t)r->hp->n_vocab; }

/* Logits of N tokens, `step` at a time, from an empty cache; free() them.  Before each pass the next number of threads
 * is said to be present, if there is a pool. */
static float *logits_present(run *r, int step, dw_pool *pool) {
    dw_err err = {0};
    float *logits = calloc(n_logits(r), sizeof *logits);
    int32_t token[N];
    uint8_t out[N];
    memset(out, 1, sizeof out);
    for (int i = 0; i < N; i++) token[i] = (i * 37 + 11) % r->hp->n_vocab;
    dw_session_rewind(r->session, 0, 0);
    for (int i = 0; i < N; i += step) {
        const int n = N - i < step ? N - i : step;
        if (pool) dw_pool_rest(pool, 1 + i / step % dw_pool_size(pool), 60);
        CHECK(!dw_session_eval(r->session, &(dw_batch){.n_tokens = n, .token = token + i, .out = out}, &err) &&
                  !dw_session_logits(r->session, 0, n, logits + (size_t)i * (size_t)r->hp->n_vocab, &err),
              "%s", err.text);
    }
    return logits;
}

static float *logits_of(run *r, int step) { return logits_present(r, step, NULL); }

static float *logits_of_file(const char *path, dw_session_options o, int n_threads, int step) {
    run r;
    float *logits = NULL;
    if (open_run(&r, path, o, n_threads)) logits = logits_of(&r, step);
    close_run(&r);
    return logits;
}

/* Share of open neurons in all layers since the last reset. */
static double activity_of(const run *r) {
    double open = 0, all = 0;
    for (int l = 0; l < r->hp->n_layer; l++) {
        const dw_coverage c = dw_session_coverage(r->session, l);
        open += (double)c.n_open;
        all += (double)c.n_tokens * r->hp->n_ff[l];
    }
    return open / all;
}

/* ---- all groups open: the dense pass ----------------------------------------------------------------------------- */

static const gated_file all_open[] = {{.group = 1},
                                      {.group = 48},
                                      {.group = 32}, // threshold 0
                                      {.group = 8, .rank = 32, .open_bias = 1000, .input = "ffn"},
                                      {.group = 32, .rank = 96, .open_bias = 1000, .input = "previous"}};

/* Quantized weights: a few tokens are rounded to int8, which magnifies a last bit; with many, AMX rounds the weights to
 * BF16, but not the twin's F32 down. */
static double bound_of(const char *backend, const char *type) {
    return !strcmp(backend, "ref") ? 1e-10 : type[0] == 'Q' ? 1e-4 : 1e-6;
}

/* Prompts in precision rounded: int8 would round the inputs of the gated down, but not of the twin's, which is F32. */
static void check_equals_twin(const char *shape, const char *type, const char *backend, size_t first_rule,
                              size_t each) {
    static const int steps[] = {N, 1, 5};
    char twin[256];
    snprintf(twin, sizeof twin, "%s", gated(shape, type, (gated_file){.twin = true, .group = 1}));
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        const dw_session_options o = {.backend = backend, .precision = DW_PRECISION_ROUNDED};
        float *dense = logits_of_file(twin, o, 2, steps[s]);
        for (size_t i = first_rule; i < sizeof all_open / sizeof *all_open; i += each)
            for (way how = 0; how < N_WAYS; how++) {
                run r;
                if (!strcmp(backend, "ref") && (how || s == 2)) continue;
                const bool opened = open_way(&r, gated(shape, type, all_open[i]), o, how, 2);
                if (opened) {
                    float *open = logits_of(&r, steps[s]);
                    const double e = nmse(open, dense, n_logits(&r)), bound = bound_of(backend, type);
                    CHECK(e <= bound, "%s, %s %s, rule %zu, %s, %d at a time: NMSE %.1e, allowed %.0e", backend, shape,
                          type, i, way_names[how], steps[s], e, bound);
                    CHECK(activity_of(&r) == 1, "activity %g", activity_of(&r));
                    free(open);
                }
                close_run(&r);
            }
        free(dense);
    }
}

static void open_is_dense(void) {
    for (int s = 0; shapes[s]; s++) check_equals_twin(shapes[s], "F32", "ref", 0, 1);
    check_equals_twin("wide", "Q4_K", "ref", 1, 3);
    for (int s = 0; shapes[s]; s++) check_equals_twin(shapes[s], "F32", "cpu", 0, 1);
}

static void every_type(void) {
    for (int level = 0; level < DW_N_LEVELS; level++) {
        if (!dw_level_usable((dw_level)level)) continue;
        const char *forced = getenv("DEADWOOD_CPU");
        if (forced && strcmp(forced, dw_level_names[level])) continue;
        if (!forced) setenv("DEADWOOD_CPU", dw_level_names[level], 1);
        for (int t = 0; types[t]; t++) check_equals_twin("wide", types[t], "cpu", 1, 3);
        if (!forced) unsetenv("DEADWOOD_CPU");
    }
}

/* ---- some groups open -------------------------------------------------------------------------------------------- */

typedef struct seen { // by a tap: of every layer and token
    float gate[LAYERS][N][MAX_FF], neuron[LAYERS][N][MAX_FF];
} seen;

static void look(void *ctx, const dw_tap_event *e) {
    seen *s = ctx;
    for (int t = 0; t < e->n_tokens; t++)
        memcpy(e->point == DW_TAP_FFN_GATE ? s->gate[e->layer][e->pos[t]] : s->neuron[e->layer][e->pos[t]],
               e->values + t * e->n, (size_t)e->n * sizeof(float));
}

static void tap(run *r, seen *s) {
    dw_session_set_tap(r->session,
                       &(dw_tap){.points = 1u << DW_TAP_FFN_GATE | 1u << DW_TAP_FFN_NEURON, .fn = look, .ctx = s});
}

/* Open neurons of a token by what the tap saw: with thresholds by the gates, with a predictor by what was computed. */
static int brute_force(const gated_file *o, const float *gate, int l, int n_ff, uint8_t *open) {
    int n = 0;
    for (int j = 0; j < n_ff; j++) {
        const int first = j / o->group * o->group;
        float most = 0;
        for (int i = first; i < n_ff && i < first + o->group; i++) most = fmaxf(most, fabsf(gate[i]));
        open[j] = o->rank ? most > 0 : most >= o->threshold[l];
        n += open[j];
    }
    return n;
}

static uint64_t rows_bytes(const run *r, int l, const char *what) {
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", l, what);
    const dw_tensor *t = dw_gguf_find_tensor(dw_model_gguf(r->model), name);
    return t ? dw_tensor_row_bytes(t) : 0;
}

static uint64_t whole_bytes(const run *r, int l, const char *what) {
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", l, what);
    const dw_tensor *t = dw_gguf_find_tensor(dw_model_gguf(r->model), name);
    return t ? t->n_bytes : 0;
}

/* One token at a time: counts against the tap's neurons. */
static void check_counts(const run *r, const seen *s, const gated_file *o, const char *what, bool is_cpu) {
    uint8_t open[MAX_FF];
    for (int l = 0; l < r->hp->n_layer; l++) {
        const dw_coverage c = dw_session_coverage(r->session, l);
        const int n_ff = r->hp->n_ff[l];
        uint64_t n = 0;
        for (int t = 0; t < N; t++) {
            n += (uint64_t)brute_force(o, s->gate[l][t], l, n_ff, open);
            for (int j = 0; j < n_ff; j++)
                if (!CHECK((s->neuron[l][t][j] != 0) == open[j], "%s: layer %d, token %d, neuron %d is %s", what, l, t,
                           j, open[j] ? "open" : "closed"))
                    break;
        }
        CHECK(c.n_tokens == N && c.n_open == n, "%s: layer %d: %lu tokens, %lu open neurons, counted %lu", what, l,
              c.n_tokens, c.n_open, n);
        if (!is_cpu) continue;
        const uint64_t gates = o->rank ? n : (uint64_t)(N * n_ff);
        const uint64_t bytes = gates * rows_bytes(r, l, "ffn_gate.weight") +
                               n * (rows_bytes(r, l, "ffn_up.weight") + rows_bytes(r, l, "ffn_down_t.weight")) +
                               N * (whole_bytes(r, l, "ffn_pred_a.weight") + whole_bytes(r, l, "ffn_pred_b.weight"));
        CHECK(c.n_few == N && c.n_computed == n && c.n_bytes == bytes,
              "%s: layer %d: %lu passes, %lu computed, %lu bytes, counted %lu and %lu", what, l, c.n_few, c.n_computed,
              c.n_bytes, n, bytes);
    }
}

static void counts(void) {
    static seen s;
    for (int b = 0; b < 2; b++)
        for (int i = 0; i < N_RULES; i++)
            for (way how = 0; how < N_WAYS; how++) {
                run r;
                char what[64];
                snprintf(what, sizeof what, "%s, rule %d, %s", backends[b], i, way_names[how]);
                if (open_way(&r, gated("wide", "Q4_0", rules[i]), (dw_session_options){.backend = backends[b]}, how,
                             2)) {
                    tap(&r, &s);
                    free(logits_of(&r, 1));
                    CHECK(activity_of(&r) > 0.1 && activity_of(&r) < 0.9, "%s: activity %g tests nothing", what,
                          activity_of(&r));
                    check_counts(&r, &s, &rules[i], what, b == 1);
                    dw_session_reset_coverage(r.session);
                    CHECK(dw_session_coverage(r.session, 0).n_tokens == 0 &&
                          dw_session_coverage(r.session, 0).n_open == 0);
                }
                close_run(&r);
            }
}

/* One token's open neurons as a list, which the layers run densely, down as it is. */
static void skipped_is_zero(void) {
    static seen s;
    for (int b = 0; b < 2; b++)
        for (int i = 0; i < N_RULES; i++) {
            run r;
            static int32_t list[LAYERS][MAX_FF];
            const int32_t *lists[LAYERS];
            int32_t n[LAYERS], token = 5;
            dw_err err = {0};
            if (!open_run(&r, gated("tiny-qwen2", "F32", rules[i]),
                          (dw_session_options){.backend = backends[b], .select = DW_SELECT_FUSED}, 2))
                continue;
            tap(&r, &s);
            float *logits = calloc(2 * (size_t)r.hp->n_vocab, sizeof *logits);
            CHECK(!dw_session_eval(r.session, &(dw_batch){.n_tokens = 1, .token = &token}, &err) &&
                      !dw_session_logits(r.session, 0, 1, logits, &err),
                  "%s", err.text);
            for (int l = 0; l < r.hp->n_layer; l++) {
                lists[l] = list[l], n[l] = 0;
                for (int j = 0; j < r.hp->n_ff[l]; j++)
                    if (s.neuron[l][0][j] != 0) list[l][n[l]++] = j;
            }
            dw_session_set_tap(r.session, NULL);
            dw_session_rewind(r.session, 0, 0);
            CHECK(!dw_session_set_selection(r.session, &(dw_selection){lists, n}, &err), "%s", err.text);
            CHECK(!dw_session_eval(r.session, &(dw_batch){.n_tokens = 1, .token = &token}, &err) &&
                      !dw_session_logits(r.session, 0, 1, logits + r.hp->n_vocab, &err), "%s", err.text);
            const double e = nmse(logits, logits + r.hp->n_vocab, (size_t)r.hp->n_vocab);
            CHECK(e <= (b ? 1e-6 : 1e-10), "%s, rule %d: NMSE %.1e", backends[b], i, e);
            free(logits);
            close_run(&r);
        }
}

static bool near(uint64_t x, uint64_t y, double slack) { return fabs((double)x - (double)y) <= slack * (double)y; }

/* Layers behind the first may differ by a share `slack`: their input does, in the last bits, and some gates stand
 * near their threshold. */
static bool same_counts(const run *a, const run *b, double slack) {
    bool same = true;
    for (int l = 0; l < a->hp->n_layer; l++) {
        const dw_coverage x = dw_session_coverage(a->session, l), y = dw_session_coverage(b->session, l);
        const double most = l ? slack : 0;
        same &= x.n_tokens == y.n_tokens && x.n_few == y.n_few && near(x.n_open, y.n_open, most) &&
                near(x.n_computed, y.n_computed, most) && near(x.n_bytes, y.n_bytes, most);
    }
    return same;
}

static void listed_is_fused(void) {
    for (int t = 0; types[t]; t++)
        for (int i = 0; i < N_RULES; i++)
            for (int step = 1; step <= 6; step += 5) {
                run fused, listed = {0};
                const char *path = gated("wide", types[t], rules[i]);
                if (open_way(&fused, path, (dw_session_options){0}, FUSED, 2) &&
                    open_way(&listed, path, (dw_session_options){0}, GATHERED, 3)) {
                    float *a = logits_of(&fused, step), *b = logits_of(&listed, step);
                    const double e = nmse(a, b, n_logits(&fused));
                    const bool rounded = types[t][0] == 'Q'; // hidden values to 8 bits, down's factors to 16
                    CHECK(e <= (rounded ? 1e-2 : 1e-6), "%s, rule %d, %d at a time: NMSE %.1e", types[t], i, step,
                          e); // sums of another order
                    CHECK(same_counts(&fused, &listed, rounded ? 0.01 : 0), "%s, rule %d, %d at a time: other counts",
                          types[t], i, step);
                    free(a), free(b);
                }
                close_run(&fused), close_run(&listed);
            }
}

/* Among ten thousand single neurons one stands so near to its threshold that the last bit decides. */
static double way_bound(int rule) { return rules[rule].group == 1 ? 1e-3 : 1e-6; }

static void cpu_is_ref(void) {
    for (int i = 0; i < N_RULES; i++)
        for (int s = 0; shapes[s]; s++)
            for (int step = 1; step <= N; step += step == 1 ? 6 : N - 7) {
                const char *path = gated(shapes[s], "F32", rules[i]);
                float *ref = logits_of_file(path, (dw_session_options){.backend = "ref", .select = DW_SELECT_FUSED}, 2,
                                            step);
                float *cpu = logits_of_file(path, (dw_session_options){.select = DW_SELECT_FUSED}, 2, step);
                const double e = nmse(cpu, ref, N * 512);
                CHECK(e <= way_bound(i), "%s, rule %d, %d at a time: NMSE %.1e", shapes[s], i, step, e);
                free(ref), free(cpu);
            }
}

static void prefill_decode(void) {
    for (int b = 0; b < 2; b++)
        for (int i = 0; i < N_RULES; i++) {
            const char *path = gated("tiny-llama", "F32", rules[i]);
            const dw_session_options o = {.backend = backends[b], .select = DW_SELECT_FUSED};
            float *whole = logits_of_file(path, o, 2, N), *single = logits_of_file(path, o, 2, 1),
                  *again = logits_of_file(path, o, 2, 1);
            const double e = nmse(single, whole, N * 512);
            CHECK(e <= (b ? way_bound(i) : 1e-12), "%s, rule %d: NMSE %.1e", backends[b], i, e);
            CHECK(!memcmp(single, again, N * 512 * sizeof *single), "%s, rule %d: decoding twice gives other bits",
                  backends[b], i);
            free(whole), free(single), free(again);
        }
}

static void present_threads(void) {
    for (int b = 0; b < 2; b++)
        for (int w = 0; w < N_WAYS; w++)
            for (int i = 0; i < N_RULES; i++)
                for (int step = 1; step <= N; step += N - 1) {
                    run r;
                    dw_pool *pool = pool_of(3);
                    if (!open_way(&r, gated("wide", "Q4_0", rules[i]), (dw_session_options){.backend = backends[b]},
                                  (way)w, 3))
                        continue;
                    float *all = logits_of(&r, step), *present = logits_present(&r, step, pool);
                    CHECK(!memcmp(all, present, n_logits(&r) * sizeof *all), "%s, rule %d, way %d, %d at a time",
                          backends[b], i, w, step);
                    dw_pool_rest(pool, dw_pool_size(pool), 0);
                    free(all), free(present);
                    close_run(&r);
                }
}

static void exact_passes(void) {
    static const struct {
        int n_threads, n_batch, step;
    } cuts[] = {{1, 32, N}, {2, 32, N}, {3, 7, N}, {2, 32, 1}, {1, 32, 13}};
    for (int b = 0; b < 2; b++)
        for (int t = 0; types[t]; t++)
            for (int i = 0; i < N_RULES; i++) {
                const char *path = gated("wide", types[t], rules[i]);
                float *first = NULL;
                for (size_t c = 0; c < (b ? sizeof cuts / sizeof *cuts : 2); c++) {
                    const dw_session_options o = {
                        .backend = backends[b], .exact = true, .select = DW_SELECT_FUSED, .n_batch = cuts[c].n_batch};
                    float *logits = logits_of_file(path, o, cuts[c].n_threads, cuts[c].step);
                    if (first)
                        CHECK(!memcmp(first, logits, N * 512 * sizeof *first), "%s %s, rule %d, cut %zu", backends[b],
                              types[t], i, c);
                    if (first) free(logits);
                    else first = logits;
                }
                free(first);
            }
}

/* ---- which layers ------------------------------------------------------------------------------------------------ */

static void marked_dense(void) {
    const uint8_t dense[LAYERS] = {1, 0, 1, 0}, all[LAYERS] = {1, 1, 1, 1};
    for (int b = 0; b < 2; b++)
        for (int i = 0; i < N_RULES; i++)
            for (int step = 1; step <= N; step += N - 1) {
                run r;
                gated_file o = rules[i];
                o.dense = dense;
                char path[256];
                snprintf(path, sizeof path, "%s", gated("tiny-llama", "Q8_0", o));
                for (dw_select select = DW_SELECT_AUTO; select <= DW_SELECT_DENSE; select++) {
                    if (!open_run(&r, path, (dw_session_options){.backend = backends[b], .select = select}, 2)) return;
                    free(logits_of(&r, step));
                    for (int l = 0; l < r.hp->n_layer; l++) {
                        const dw_coverage c = dw_session_coverage(r.session, l);
                        const bool is_full = c.n_open == (uint64_t)(N * r.hp->n_ff[l]);
                        const bool wanted = select == DW_SELECT_DENSE || (select == DW_SELECT_AUTO && dense[l]);
                        CHECK(c.n_tokens == N && is_full == wanted, "%s, rule %d, %s: layer %d: %lu open", backends[b],
                              i, select_names[select], l, c.n_open);
                        if (!b || !wanted || step > 1) continue;
                        const uint64_t bytes = whole_bytes(&r, l, "ffn_gate.weight") +
                                               whole_bytes(&r, l, "ffn_up.weight") +
                                               whole_bytes(&r, l, "ffn_down.weight");
                        CHECK(c.n_bytes == N * bytes, "layer %d: %lu bytes", l, c.n_bytes);
                    }
                    close_run(&r);
                }
                o.dense = all;
                snprintf(path, sizeof path, "%s", gated("tiny-llama", "Q8_0", o));
                float *x = logits_of_file(path, (dw_session_options){.backend = backends[b]}, 2, step);
                float *y = logits_of_file(path, (dw_session_options){.backend = backends[b], .select = DW_SELECT_DENSE},
                                          2, step);
                CHECK(!memcmp(x, y, N * 512 * sizeof *x), "all layers marked is dense, bit for bit");
                free(x), free(y);
            }
}

static void injection(void) {
    static seen once, again;
    const float share[LAYERS] = {0.1f, 0.3f, 0.6f, 1}, none[LAYERS] = {0};
    for (int b = 0; b < 2; b++)
        for (int i = 0; i < N_RULES; i++) {
            run r;
            if (!open_run(&r, gated("tiny-llama", "F32", rules[i]),
                          (dw_session_options){.backend = backends[b], .select = DW_SELECT_FUSED}, 2))
                return;
            plant(&r, share, 9);
            tap(&r, &once);
            free(logits_of(&r, 1));
            for (int l = 0; l < LAYERS; l++) {
                const dw_coverage c = dw_session_coverage(r.session, l);
                const double lots = (double)N * ceil((double)r.hp->n_ff[l] / rules[i].group), p = (double)share[l];
                const double got = (double)c.n_open / ((double)N * r.hp->n_ff[l]);
                CHECK(fabs(got - p) <= 4 * sqrt(p * (1 - p) / lots) + 1e-12,
                      "%s, rule %d: layer %d: %g open, wanted %g", backends[b], i, l, got, p);
            }
            tap(&r, &again);
            free(logits_of(&r, N));
            int n_other = 0;
            for (int l = 0; l < LAYERS; l++)
                for (int t = 0; t < N; t++)
                    for (int j = 0; j < r.hp->n_ff[l]; j++)
                        n_other += (once.neuron[l][t][j] != 0) != (again.neuron[l][t][j] != 0);
            CHECK(!n_other, "%s, rule %d: %d lots differ between decode and prefill", backends[b], i, n_other);
            plant(&r, share, 10);
            tap(&r, &again);
            free(logits_of(&r, N));
            CHECK(memcmp(&once.neuron[1], &again.neuron[1], sizeof once.neuron[1]), "another seed, the same lots");
            dw_session_reset_coverage(r.session);
            plant(&r, none, 10);
            free(logits_of(&r, N));
            CHECK(activity_of(&r) == 0, "activity %g", activity_of(&r));
            plant(&r, NULL, 0);
            free(logits_of(&r, N));
            CHECK(activity_of(&r) > 0);
            close_run(&r);
        }
}

/* ---- which way is faster here ------------------------------------------------------------------------------------ */

/* As if the break-even of every layer had been measured; the layers' operators follow from it. */
static void pretend_break_even(run *r, float even) {
    dw_pass *p = dw_on_pool_pass(r->session->state);
    dw_err err = {0};
    for (int l = 0; l < r->hp->n_layer; l++) p->layer[l].is_measured = true, p->layer[l].break_even = even;
    CHECK(!dw_session_experiment(r->session, NULL, &err), "%s", err.text);
}

static int count_op(const run *r, const dw_ffn_op *op) {
    const dw_pass *p = dw_on_pool_pass(r->session->state);
    int n = 0;
    for (int l = 0; l < r->hp->n_layer; l++) n += p->layer[l].op == op;
    return n;
}

/* A session whose layers all skip closed neurons, or all set them to zero. */
static bool open_skipping(run *r, const char *type, int rule, bool masked) {
    if (!open_run(r, gated("wide", type, rules[rule]), (dw_session_options){0}, 2)) return false;
    pretend_break_even(r, masked ? 0 : 1); // the file expects all neurons open
    return CHECK(count_op(r, masked ? &dw_ffn_masked : &dw_ffn_gated) == r->hp->n_layer, "rule %d", rule);
}

/* Layer 0 gets the same input both ways. */
static void check_first_layer(const char *type, int rule, int step) {
    static seen s[2];
    dw_coverage c[2];
    for (int masked = 0; masked < 2; masked++) {
        run r;
        if (!open_skipping(&r, type, rule, masked)) return;
        tap(&r, &s[masked]);
        free(logits_of(&r, step));
        c[masked] = dw_session_coverage(r.session, 0);
        close_run(&r);
    }
    CHECK(!memcmp(s[0].gate[0], s[1].gate[0], sizeof s[0].gate[0]) &&
              !memcmp(s[0].neuron[0], s[1].neuron[0], sizeof s[0].neuron[0]),
          "%s, rule %d, %d at a time: other neurons", type, rule, step);
    CHECK(c[0].n_tokens == c[1].n_tokens && c[0].n_open == c[1].n_open && c[0].n_bytes == c[1].n_bytes,
          "%s, rule %d: %lu and %lu open, %lu and %lu bytes", type, rule, c[0].n_open, c[1].n_open, c[0].n_bytes,
          c[1].n_bytes);
    CHECK(c[1].n_computed == c[1].n_few * 512 && c[0].n_computed <= c[1].n_computed);
}

/* Decisions that do not follow from the numbers, so that a last bit opens no other group. */
static void check_result(const char *type, int rule, int step) {
    const float half[] = {0.5f, 0.5f, 0.5f, 0.5f};
    float *logits[2] = {NULL, NULL};
    size_t n = 0;
    for (int masked = 0; masked < 2; masked++) {
        run r;
        if (!open_skipping(&r, type, rule, masked)) return;
        plant(&r, half, 3);
        logits[masked] = logits_of(&r, step);
        n = n_logits(&r);
        close_run(&r);
    }
    const double e = nmse(logits[1], logits[0], n), bound = bound_of("cpu", type);
    CHECK(e <= bound, "%s, rule %d, %d at a time: NMSE %.1e, allowed %.0e", type, rule, step, e, bound);
    for (int k = 0; k < 2; k++) free(logits[k]);
}

static void masked_is_fused(void) {
    static const char *const exact[] = {"BF16", "F16", "F32"};
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < N_RULES; i++)
            for (int step = 1; step <= 6; step += 5) {
                check_first_layer(exact[t], i, step);
                check_result(exact[t], i, step);
            }
}

/* The transposed copy of a quantized down holds other numbers, so down cannot stand for it. */
static void quantized_is_never_masked(void) {
    run r;
    if (!open_run(&r, gated("wide", "Q4_0", rules[1]), (dw_session_options){0}, 2)) return;
    free(logits_of(&r, 1));
    CHECK(!dw_on_pool_pass(r.session->state)->layer[0].is_measured, "nothing hangs on the break-even");
    pretend_break_even(&r, 0);
    CHECK(count_op(&r, &dw_ffn_gated) == r.hp->n_layer);
    close_run(&r);
}

static void measured_once(void) {
    run r;
    if (!open_run(&r, gated("wide", "BF16", rules[1]), (dw_session_options){0}, 2)) return;
    const dw_pass *p = dw_on_pool_pass(r.session->state);
    CHECK(!p->layer[0].is_measured, "opening a session measures nothing");
    free(logits_of(&r, N));
    CHECK(!p->layer[0].is_measured, "passes of many tokens have one way");
    dw_session_reset_coverage(r.session);
    free(logits_of(&r, 1));
    for (int l = 0; l < r.hp->n_layer; l++) {
        const dw_bound *b = &p->layer[l];
        CHECK(b->is_measured && b->break_even >= 0 && b->break_even <= 1, "layer %d: break-even %g", l,
              (double)b->break_even);
        CHECK(b->break_even == p->layer[0].break_even, "layers of one kind are measured once");
        CHECK(dw_session_coverage(r.session, l).n_tokens == N, "measuring counts nothing");
    }
    close_run(&r);
    if (!open_run(&r, gated("wide", "BF16", rules[1]), (dw_session_options){.exact = true}, 2)) return;
    free(logits_of(&r, 1));
    CHECK(!dw_on_pool_pass(r.session->state)->layer[0].is_measured, "exact sessions measure nothing");
    close_run(&r);
}

static void injected_auto(void) {
    const float share[LAYERS] = {0.49f, 0.51f, 0, 1};
    for (int i = 0; i < N_RULES; i++) {
        run r;
        if (!open_run(&r, gated("tiny-llama", "F32", rules[i]), (dw_session_options){0}, 2)) return;
        pretend_break_even(&r, 0.5f);
        plant(&r, share, 1);
        free(logits_of(&r, 1));
        for (int l = 0; l < LAYERS; l++) {
            const dw_coverage c = dw_session_coverage(r.session, l);
            CHECK((c.n_computed == (uint64_t)(N * r.hp->n_ff[l])) == (share[l] > 0.5f), "rule %d, layer %d", i, l);
            CHECK((c.n_open == (uint64_t)(N * r.hp->n_ff[l])) == (share[l] == 1), "rule %d, layer %d: %lu open", i, l,
                  c.n_open);
        }
        close_run(&r);
    }
}

static void open_groups(void) {
    const float gate[] = {0.1f, -0.5f, 0.2f, 0.3f, 0, 0, NAN, 0, -0.4f};
    uint8_t open[9];
    dw_open_groups(gate, 9, 2, 0.4f, open);
    CHECK(open[0] && !open[1] && !open[2] && open[3] && open[4], "the largest |gate| reaches it; NaN does not hide");
    dw_open_groups(gate, 6, 6, 0, open);
    CHECK(open[0]);
}

/* A predictor whose numbers overflow skips nothing. */
static void open_without_scores(void) {
    static float nan[MAX_FF];
    for (int i = 0; i < MAX_FF; i++) nan[i] = NAN;
    for (int k = 0; k < 2 * 2 * 2; k++) {
        const int of_scores = k % 2, step = k / 2 % 2 ? N : 1;
        run r;
        if (open_run(&r, gated("tiny-llama", "F32", rules[2]),
                     (dw_session_options){.backend = backends[k / 4], .select = DW_SELECT_FUSED}, 2)) {
            dw_layer_gate *gate = &r.session->net.layer[1].sparse;
            *(of_scores ? &gate->pred_b_bias.data : &gate->pred_a_bias.data) = (const uint8_t *)nan;
            free(logits_of(&r, step));
            const dw_coverage c = dw_session_coverage(r.session, 1);
            CHECK(c.n_open == c.n_tokens * (uint64_t)r.hp->n_ff[1], "%s, %d tokens, NaN in %s: %lu neurons open of %lu",
                  backends[k / 4], step, of_scores ? "scores" : "hidden values", c.n_open,
                  c.n_tokens * (uint64_t)r.hp->n_ff[1]);
        }
        close_run(&r);
    }
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void same_size(void) {
    dw_err err = {0};
    dw_model *dense = dw_model_open(plain(shape_of("tiny-llama"), "F32"), &err),
             *m = dw_model_open(gated("tiny-llama", "F32", rules[2]), &err);
    REQUIRE(dense && m, "%s", err.text);
    const size_t biases = 4 * (128 + 128 + 64); // planted
    CHECK(!dw_model_is_gated(dense) && dw_model_is_gated(m));
    CHECK(dw_model_n_params(m) == dw_model_n_params(dense) + biases, "%zu, %zu", dw_model_n_params(m),
          dw_model_n_params(dense));
    CHECK(dw_model_bytes_per_token(m) == dw_model_bytes_per_token(dense) + 4 * biases);
    dw_model_close(dense), dw_model_close(m);
}

static void refused(gated_file o, const char *words) {
    dw_err err = {0};
    dw_model *m = dw_model_open(gated("tiny-llama", "F32", o), &err);
    CHECK(!m, "a file was opened that should say \"%s\"", words);
    check_sentence(&err, words, "gated");
    dw_model_close(m);
}

static void damage(void) {
    const float nan[] = {0, NAN, 0, 0}, infinite[] = {0, 0, INFINITY, 0}, negative[] = {0, 0, 0, -1},
                busy[] = {0, 1.5f, 0, 0};
    const gated_file fine = {.group = 8, .rank = 32, .input = "ffn"};
    gated_file o;
    refused((gated_file){.group = 8, .threshold = nan}, "'deadwood.gate.threshold' is nan for layer 1");
    refused((gated_file){.group = 8, .threshold = infinite}, "'deadwood.gate.threshold' is inf for layer 2");
    refused((gated_file){.group = 8, .threshold = negative}, "'deadwood.gate.threshold' is -1 for layer 3");
    refused((gated_file){.group = 8, .activity = busy}, "'deadwood.gate.activity' is 1.5 for layer 1");
    refused((gated_file){.group = 8, .activity = nan}, "'deadwood.gate.activity' is nan");
    refused((gated_file){.group = 129}, "'deadwood.gate.group' is 129, expected 1 to 128");
    refused((gated_file){.group = 8, .layers_more = 1}, "array of f32 for 4 layers");
    refused((gated_file){.group = 8, .layers_more = -1}, "array of f32 for 4 layers");
    o = fine, o.input = "next";
    refused(o, "'deadwood.predictor.input' is 'next'");
    static const char *const names[] = {"blk.2.ffn_pred_a.weight", "blk.2.ffn_pred_a.bias", "blk.2.ffn_pred_b.weight",
                                        "blk.2.ffn_pred_b.bias", "blk.2.ffn_down_t.weight"};
    for (int i = 0; i < 5; i++) {
        char words[96];
        snprintf(words, sizeof words, "tensor '%s' is missing", names[i]);
        o = fine, o.without = names[i];
        refused(o, words);
    }
}

static void ungated_layers(void) {
    run r;
    const gated_file o = {.group = 8, .threshold = half_open_groups, .without = "blk.1.ffn_down_t.weight"};
    if (!open_run(&r, gated("tiny-llama", "F32", o), (dw_session_options){.select = DW_SELECT_FUSED}, 2)) return;
    free(logits_of(&r, 1));
    for (int l = 0; l < LAYERS; l++)
        CHECK((dw_session_coverage(r.session, l).n_open == (uint64_t)(N * r.hp->n_ff[l])) == (l == 1), "layer %d", l);
    close_run(&r);
}

static const test_case cases[] = {
    {"with all groups open a gated pass is the dense pass of its twin, for every architecture", open_is_dense},
    {"... and for every type of weights at every level", every_type},
    {"neurons, rows and bytes are counted as a brute-force count of the taps says", counts},
    {"skipping closed neurons is the same as a list of the open ones", skipped_is_zero},
    {"the gathered way takes the decisions of the fused one", listed_is_fused},
    {"cpu skips what ref skips", cpu_is_ref},
    {"prefill equals decode when gated, and decoding twice gives the same bits", prefill_decode},
    {"gated passes on fewer threads, because others have lost their cores, give the same bits", present_threads},
    {"gated exact passes give the same bits for any threads, batch and cut", exact_passes},
    {"layers that are marked dense run as before when the engine may choose", marked_dense},
    {"injected lots open the wanted share, the same ones for the same position", injection},
    {"skipping closed neurons or setting them to zero: the same decisions and neurons, the result by rounding",
     masked_is_fused},
    {"a layer whose transposed down was quantized anew is never computed with down itself", quantized_is_never_masked},
    {"the break-even is measured at the first pass of few tokens, once for layers of one kind", measured_once},
    {"injected layers above the break-even compute all neurons when the engine may choose", injected_auto},
    {"a group is open when its largest gate reaches the threshold", open_groups},
    {"a group is open when its predictor's score is NaN", open_without_scores},
    {"what a gated file adds counts neither as parameters nor as bytes of the dense pass", same_size},
    {"damaged gates are refused in a sentence", damage},
    {"a layer without a transposed down is dense", ungated_layers},
    {0}};
TEST_MAIN(cases)
