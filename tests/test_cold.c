/* test_cold.c - an FFN in two parts: what requant writes is the model that it was made of, in another order and
 * other types, and both backends compute it as one. */
#include "build.h"
#include "experiments/random_model.h"
#include "formats/ffn_two_part.h"
#include "kit/metrics.h"
#include "kit/plan.h"
#include "kit/stats.h"
#include "quant/quant.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int unequal_widths[] = {96, 64, 160, 128}, heads[] = {4, 2, 4, 2};

static const exp_shape shapes[] = {
    {"llama", "llama", 4, 64, 128, 4, 2, 16, 512, false, 10000, 256},
    {"qwen2", "qwen2", 4, 64, 128, 4, 2, 16, 512, true, 10000, 256},
    {"qwen3", "qwen3", 4, 64, 128, 4, 2, 32, 512, false, 10000, 256},
    {"deci", "deci", 4, 64, 160, 4, 2, 16, 512, false, 10000, 256, unequal_widths, heads},
    {"openelm", "openelm", 4, 64, 160, 4, 2, 32, 512, true, 10000, 256, unequal_widths, heads},
    {0},
};
static const exp_shape wide = {"wide", "qwen2", 3, 256, 768, 4, 2, 64, 512, true, 10000, 256};

static const exp_shape ragged = {"ragged", "llama", 2, 64, 100, 4, 2, 16, 512, false, 10000, 256};

enum { N = 40 };

/* A plan that keeps about half of each layer's neurons, any of them, in multiples; layer 1 stays whole. */
static bool write_half_plan(const char *path, const exp_shape *shape, int multiple) {
    dw_err err = {0};
    dw_rng rng;
    dw_rng_seed(&rng, 5);
    kit_plan p = {.comment = "",
                  .n_layer = shape->n_layer,
                  .layer = dw_alloc((size_t)shape->n_layer, sizeof *p.layer, "layers", &err)};
    bool ok = p.layer != NULL;
    for (int l = 0; l < shape->n_layer && ok; l++) {
        const int n_ff = shape->n_ff_by_layer ? shape->n_ff_by_layer[l] : shape->n_ff;
        int n = l == 1 ? n_ff : n_ff / 2 / multiple * multiple;
        bool *keep = dw_alloc((size_t)n_ff, sizeof *keep, "neurons", &err);
        while (n) {
            const size_t j = (size_t)dw_rng_below(&rng, (uint64_t)n_ff);
            n -= !keep[j];
            keep[j] = true;
        }
        ok = !kit_plan_set_layer(&p.layer[l], keep, n_ff, &err);
        free(keep);
    }
    ok = ok && !kit_plan_write(&p, path, &err);
    p.comment = NULL;
    kit_plan_release(&p);
    return CHECK(ok, "%s", err.text);
}

/* ---- files made from files --------------------------------------------------------------------------------------- */

static const dw_tensor *cold_part(const dw_gguf *g, const dw_tensor *t) {
    char name[96];
    const char *end = strrchr(t->name, '.');
    snprintf(name, sizeof name, "%.*s_cold.weight", (int)(end - t->name), t->name);
    return dw_gguf_find_tensor(g, name);
}

static void write_values(dw_gguf_writer *w, const dw_tensor *t, size_t r) {
    float row[1024];
    t->type->decode(t->data + r * dw_tensor_row_bytes(t), row, t->ne[0]);
    dw_gguf_write(w, row, t->ne[0] * sizeof *row, NULL);
}

/* A tensor in F32, its cold part behind it: rows behind rows, of down columns behind columns. */
static void write_joined(dw_gguf_writer *w, const dw_tensor *t, const dw_tensor *cold) {
    const bool is_down = strstr(t->name, "ffn_down");
    for (size_t r = 0; r < t->ne[1]; r++) {
        write_values(w, t, r);
        if (cold && is_down) write_values(w, cold, r);
    }
    for (size_t r = 0; cold && !is_down && r < cold->ne[1]; r++) write_values(w, cold, r);
}

/* The same model in F32 and in one part; with biases of gate and up when it has none and they are wanted. */
static bool write_dense(const char *from, const char *to, bool add_biases) {
    dw_err err = {0};
    dw_rng rng;
    dw_rng_seed(&rng, 9);
    dw_gguf *g = dw_gguf_open(from, &err);
    dw_gguf_writer *w = g ? dw_gguf_writer_new(to, &err) : NULL;
    if (!CHECK(w, "%s", err.text)) return false;
    const size_t n = dw_gguf_n_tensors(g);
    for (size_t i = 0; i < dw_gguf_n_kv(g); i++)
        if (strncmp(dw_gguf_kv(g, i)->key, "deadwood.", 9)) dw_gguf_set_kv(w, dw_gguf_kv(g, i)->key, dw_gguf_kv(g, i));
    for (int pass = 0; pass < 2; pass++) {
        if (pass) dw_gguf_begin(w, &err);
        for (size_t i = 0; i < n; i++) {
            const dw_tensor *t = dw_gguf_tensor(g, i), *cold = cold_part(g, t);
            size_t ne[4] = {t->ne[0], t->ne[1], t->ne[2], t->ne[3]};
            if (strstr(t->name, "_cold.")) continue;
            if (cold) ne[strstr(t->name, "ffn_down") ? 0 : 1] += cold->ne[strstr(t->name, "ffn_down") ? 0 : 1];
            if (pass) write_joined(w, t, cold);
            else dw_gguf_add_tensor(w, t->name, dw_qtype_get(DW_F32), t->n_dims, ne);
            if (!add_biases || (!strstr(t->name, "ffn_gate") && !strstr(t->name, "ffn_up"))) continue;
            char name[96];
            snprintf(name, sizeof name, "%.*s.bias", (int)(strrchr(t->name, '.') - t->name), t->name);
            const int n_dims = strstr(name, "ffn_up") ? 2 : 1; // either form is read
            if (!pass) dw_gguf_add_tensor(w, name, dw_qtype_get(DW_F32), n_dims, (size_t[]){t->ne[1], 1, 1, 1});
            for (size_t j = 0; pass && j < t->ne[1]; j++)
                dw_gguf_write(w, &(float){(float)dw_rng_normal(&rng)}, sizeof(float), &err);
        }
    }
    const bool ok = !dw_gguf_commit(w, &err);
    dw_gguf_writer_free(w);
    dw_gguf_close(g);
    return CHECK(ok, "%s", err.text);
}

/* ---- logits ------------------------------------------------------------------------------------------------------ */

/* Of N tokens, `step` in a pass, row by row; free(). */
static float *logits_with(const char *path, const char *backend, int step, bool exact, dw_precision precision) {
    static uint8_t all_out[N];
    int32_t token[N];
    dw_err err = {0};
    dw_model *m = dw_model_open(path, &err);
    const dw_session_options o = {.pool = two_threads(), .backend = backend,      .n_ctx = N,
                                  .n_batch = N,          .kv = DW_KV_CACHE_F32, .exact = exact,
                                  .precision = precision};
    dw_session *s = m ? dw_session_new(m, &o, &err) : NULL;
    float *logits = calloc(N * 512, sizeof *logits);
    if (CHECK(s && dw_model_hparams(m)->n_vocab == 512, "%s", err.text)) {
        memset(all_out, 1, sizeof all_out);
        for (int i = 0; i < N; i++) token[i] = (i * 97 + 5) % 512;
        for (int i = 0; i < N; i += step)
            CHECK(!dw_session_eval(s, &(dw_batch){.n_tokens = step, .token = token + i, .out = all_out}, &err) &&
                      !dw_session_logits(s, 0, step, logits + i * 512, &err), "%s", err.text);
    }
    dw_session_free(s);
    dw_model_close(m);
    return logits;
}

static float *logits_of(const char *path, const char *backend, int step, bool exact) {
    return logits_with(path, backend, step, exact, DW_PRECISION_DEFAULT);
}

static double distance(const char *a, const char *b) {
    float *x = logits_of(a, "ref", N, false), *y = logits_of(b, "ref", N, false);
    const double d = nmse(x, y, N * 512);
    free(x), free(y);
    return d;
}

static void same_type(void) {
    const char *from = test_file("a.gguf"), *to = test_file("b.gguf"), *plan = test_file("plan.tsv");
    static const char *const types[] = {"F32", "BF16", NULL};
    for (const exp_shape *s = shapes; s->name; s++) {
        for (int t = 0; types[t]; t++) {
            if (!write_random(from, s, types[t]) || !write_half_plan(plan, s, 32)) return;
            REQUIRE(!test_run("deadwood-requant -m %s -o %s --hot %s --cold-type %s", from, to, plan, types[t]), "%s",
                    test_run_output());
            const double d = distance(from, to);
            CHECK(d <= 1e-10, "%s, %s: NMSE %.3g", s->name, types[t], d);
        }
    }
}

static void biases(void) {
    const char *from = test_file("a.gguf"), *biased = test_file("biased.gguf"), *to = test_file("b.gguf"),
               *plan = test_file("plan.tsv");
    if (!write_random(from, &shapes[0], "F32") || !write_dense(from, biased, true) ||
        !write_half_plan(plan, &shapes[0], 32))
        return;
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --hot %s --cold-type F32", biased, to, plan), "%s",
            test_run_output());
    CHECK(distance(from, biased) > 1e-3);
    CHECK(distance(biased, to) <= 1e-10);
    float *a = logits_of(to, "ref", N, false), *b = logits_of(to, "cpu", 1, false), *c = logits_of(to, "cpu", N, true);
    CHECK(nmse(b, a, N * 512) <= 1e-6 && nmse(c, a, N * 512) <= 1e-6, "NMSE %.3g decoding, %.3g exact",
          nmse(b, a, N * 512), nmse(c, a, N * 512));
    free(a), free(b), free(c);
}

/* Hot and cold types, and how far cpu may be from ref with many tokens; with few, and with many where the precision is
 * int8, activations have 8 bits. */
static const struct {
    const char *hot, *cold;
    double many, few;
} pairs[] = {{"F32", "Q2_K", 1e-4, 1e-3},  {"BF16", "affine2", 1e-4, 1e-3}, {"Q4_0", "Q2_K", 1e-4, 1e-3},
             {"Q4_K", "Q2_K", 1e-4, 1e-3}, {"Q8_0", "Q4_0", 1e-4, 1e-3},    {0}};

static void different_types(void) {
    const char *from = test_file("a.gguf"), *to = test_file("b.gguf"), *dense = test_file("c.gguf"),
               *plan = test_file("plan.tsv");
    if (!write_random(from, &wide, "F32") || !write_half_plan(plan, &wide, 256)) return;
    for (int i = 0; pairs[i].hot; i++) {
        REQUIRE(!test_run("deadwood-requant -m %s -o %s --type %s --hot %s --cold-type %s", from, to, pairs[i].hot,
                          plan, pairs[i].cold),
                "%s", test_run_output());
        CHECK(strstr(test_run_output(), "upstream llama.cpp cannot load"), "%s", test_run_output());
        if (!write_dense(to, dense, false)) return;
        float *ref = logits_of(to, "ref", N, false), *joined = logits_of(dense, "ref", N, false),
              *whole = logits_of(from, "ref", N, false), *in_fours = logits_of(to, "ref", 4, false);
        const double d = nmse(joined, ref, N * 512), lost = nmse(whole, ref, N * 512);
        CHECK(d <= 1e-10 && lost > 1e-5, "%s and %s: NMSE %.3g to the joined model, %.3g to the whole one",
              pairs[i].hot, pairs[i].cold, d, lost);
        CHECK(nmse(in_fours, ref, N * 512) <= 1e-12, "%s and %s: ref, 4 at a time: NMSE %.3g", pairs[i].hot,
              pairs[i].cold, nmse(in_fours, ref, N * 512));
        static const int steps[] = {1, 4, N, N};
        for (int k = 0; k < 4; k++) {
            const dw_precision precision = k == 2 ? DW_PRECISION_ROUNDED : DW_PRECISION_INT8;
            float *cpu = logits_with(to, "cpu", steps[k], false, precision);
            const double bound = k == 2 ? pairs[i].many : pairs[i].few;
            CHECK(nmse(cpu, ref, N * 512) <= bound, "%s and %s, %d at a time: NMSE %.3g", pairs[i].hot, pairs[i].cold,
                  steps[k], nmse(cpu, ref, N * 512));
            free(cpu);
        }
        float *one = logits_of(to, "cpu", 1, true), *many = logits_of(to, "cpu", N, true);
        CHECK(!memcmp(one, many, N * 512 * sizeof *one), "an exact pass hangs on its batches");
        free(ref), free(joined), free(whole), free(in_fours), free(one), free(many);
    }
}

static void sizes(void) {
    const char *from = test_file("a.gguf"), *to = test_file("b.gguf"), *plan = test_file("plan.tsv");
    dw_err err = {0};
    if (!write_random(from, &wide, "BF16") || !write_half_plan(plan, &wide, 256)) return;
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --hot %s --cold-type Q2_K", from, to, plan), "%s",
            test_run_output());
    dw_model *a = dw_model_open(from, &err), *b = dw_model_open(to, &err);
    if (CHECK(a && b, "%s", err.text)) {
        const size_t n_cold = 2 * (768 - 256) * 256 * 3; // in two of three layers
        float rate = 0;
        CHECK(dw_model_n_params(a) == dw_model_n_params(b));
        CHECK(dw_model_bytes_per_token(a) - dw_model_bytes_per_token(b) == n_cold * 2 - n_cold / 256 * 84);
        CHECK(dw_gguf_f32(dw_model_gguf(b), DW_KEY_COLD_RATE, &rate, NULL) == 1 && fabsf(rate - 4.0f / 9) < 1e-6f, "%g",
              (double)rate);
    }
    dw_model_close(a);
    dw_model_close(b);
}

/* ---- which neurons ----------------------------------------------------------------------------------------------- */

static bool write_statistics(const char *model, const exp_shape *shape, const char *path) {
    dw_err err = {0};
    kit_stats s;
    dw_rng rng;
    int n_ff[4], n_mix[4];
    for (int l = 0; l < shape->n_layer; l++) n_ff[l] = shape->n_ff, n_mix[l] = shape->n_head * shape->head_dim;
    if (!CHECK(!kit_stats_init(&s, shape->n_layer, shape->n_embd, n_ff, n_mix, 2, &err), "%s", err.text)) return false;
    dw_rng_seed(&rng, 11);
    dw_sha256_file(model, s.model_sha256, &err);
    snprintf(s.arch, sizeof s.arch, "%s", shape->arch);
    s.n_ctx = 512;
    s.hist_every = 1;
    for (int t = 0; t < 2; t++) {
        s.text[t] = (kit_stats_text){
            .first_window = 1, .n_windows = 1 + t, .n_tokens = 512 * (1 + (uint64_t)t), .blocks = dw_strdup("", &err)};
        snprintf(s.text[t].name, sizeof s.text[t].name, "text %d", t);
        memset(s.text[t].sha256, 'a' + t, 64);
        for (int l = 0; l < s.n_layer; l++) {
            s.layer[l].count[t] = s.text[t].n_tokens;
            for (size_t j = (size_t)t * (size_t)n_ff[l]; j < (size_t)(t + 1) * (size_t)n_ff[l]; j++) {
                s.layer[l].sum_abs[j] = dw_rng_uniform(&rng);
                s.layer[l].sum_square[j] = dw_rng_uniform(&rng);
            }
            double *input = s.layer[l].text_square[KIT_STATS_FFN_IN] + t * shape->n_embd;
            for (int j = 0; j < shape->n_embd; j++) input[j] = dw_rng_uniform(&rng);
        }
    }
    kit_stats_total(&s);
    const bool ok = !kit_stats_write(&s, path, &err);
    kit_stats_release(&s);
    return CHECK(ok, "%s", err.text);
}

static void check_same_tensors(const char *a, const char *b, const char *what) {
    dw_err err = {0};
    dw_gguf *g = dw_gguf_open(a, &err), *h = dw_gguf_open(b, &err);
    if (CHECK(g && h && dw_gguf_n_tensors(g) == dw_gguf_n_tensors(h), "%s: %s", what, err.text))
        for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
            const dw_tensor *s = dw_gguf_tensor(g, i), *t = dw_gguf_find_tensor(h, s->name);
            CHECK(t && s->n_bytes == t->n_bytes && !memcmp(s->data, t->data, s->n_bytes), "%s: '%s' differs", what,
                  s->name);
        }
    dw_gguf_close(g);
    dw_gguf_close(h);
}

/* Parts that keep their type are reordered, not rounded. */
static void reordered(void) {
    const char *from = test_file("a.gguf"), *stats = test_file("stats.h5");
    char words[128];
    const int n = 3 * wide.n_layer;
    if (!write_random(from, &wide, "BF16") || !write_statistics(from, &wide, stats)) return;
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --cold-rate 0.5 --cold-type Q4_0 -s %s", from, test_file("b.gguf"),
                      stats),
            "%s", test_run_output());
    snprintf(words, sizeof words, ": %d tensors rounded, %d reordered, ", n, n);
    CHECK(strstr(test_run_output(), words), "%s", test_run_output());
    snprintf(words, sizeof words, "%d of the %d rounded tensors had importances", n, n);
    CHECK(strstr(test_run_output(), words), "%s", test_run_output());
}

/* The same metrics as rank's, so that a plan says the same as a rate. */
static void rate_and_plan(void) {
    const char *from = test_file("a.gguf"), *stats = test_file("stats.h5"), *plan = test_file("plan.tsv"),
               *by_rate = test_file("b.gguf"), *by_plan = test_file("c.gguf");
    static const char *const metrics[] = {"activation", "energy", NULL};
    if (!write_random(from, &wide, "BF16") || !write_statistics(from, &wide, stats)) return;
    for (int i = 0; metrics[i]; i++) {
        REQUIRE(!test_run("deadwood-rank -m %s -s %s -o %s --metric %s --rate 0.3 --group 1 --multiple 32", from, stats,
                          plan, metrics[i]),
                "%s", test_run_output());
        REQUIRE(!test_run("deadwood-requant -m %s -o %s --hot %s --cold-type Q4_0 -s %s --type Q8_0", from, by_plan,
                          plan, stats),
                "%s", test_run_output());
        REQUIRE(!test_run("deadwood-requant -m %s -o %s --cold-rate 0.3 --metric %s --cold-type Q4_0 -s %s --type Q8_0",
                          from, by_rate, metrics[i], stats),
                "%s", test_run_output());
        CHECK(strstr(test_run_output(), "29.17 % of the FFN's neurons become cold (wanted 30.00)"), "%s",
              test_run_output()); // 224 of 768
        check_same_tensors(by_rate, by_plan, metrics[i]);
    }
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --cold-rate 0.3 --cold-type Q2_K -s %s", from, by_rate, stats),
            "%s", test_run_output());
    CHECK(strstr(test_run_output(), "33.33 % of"), "%s", test_run_output());
}

/* Random twins of a choice of cold neurons: each seed is another one. */
static void seeds(void) {
    const char *from = test_file("a.gguf"), *stats = test_file("stats.h5");
    const char *const to[] = {test_file("s0.gguf"), test_file("s1.gguf"), test_file("again.gguf")};
    static const char *const how[] = {"", "--seed 1", "--seed 0"};
    if (!write_random(from, &wide, "BF16") || !write_statistics(from, &wide, stats)) return;
    for (int i = 0; i < 3; i++)
        REQUIRE(!test_run("deadwood-requant -q -m %s -o %s --cold-rate 0.5 --metric random %s --cold-type BF16 -s %s",
                          from, to[i], how[i], stats),
                "%s", test_run_output());
    check_same_tensors(to[0], to[2], "seed 0 is the default");
    dw_gguf *g = dw_gguf_open(to[0], NULL), *h = dw_gguf_open(to[1], NULL);
    const dw_tensor *a = g ? dw_gguf_find_tensor(g, "blk.0.ffn_up.weight") : NULL,
                    *b = h ? dw_gguf_find_tensor(h, "blk.0.ffn_up.weight") : NULL;
    CHECK(a && b && a->n_bytes == b->n_bytes && memcmp(a->data, b->data, a->n_bytes), "seed 1 is another choice");
    dw_gguf_close(g), dw_gguf_close(h);
}

/* Requant asks its metric what rank asks (test_rank.c). */
static void pooled(void) {
    const char *from = random_model("tiny-llama", "F32", 0), *stats = test_file("pooled.h5");
    REQUIRE(!test_run("deadwood-collect -m %s -f %s -c 32 --windows 3 --text-windows 1 --apart 1 -o %s -q", from,
                      random_text("pooled.txt", 3000, 4), stats),
            "%s", test_run_output());
    static const char *const metrics[] = {"activation-max", "energy"};
    for (int i = 0; i < 2; i++) {
        REQUIRE(!test_run("deadwood-requant -m %s -o %s --cold-rate 0.5 --metric %s --cold-type Q4_0 -s %s --type Q8_0",
                          from, test_file("pooled.gguf"), metrics[i], stats),
                "%s", test_run_output());
        CHECK((strstr(test_run_output(), "2 rows of sums for 3 texts") != NULL) == !i, "%s", test_run_output());
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void check_one_line(const char *words) {
    const char *said = test_run_output(), *end = strchr(said, '\n');
    CHECK(strstr(said, words), "'%s' is not in: %s", words, said);
    CHECK(end && !end[1], "more than one line: %s", said);
    CHECK(access(test_file("never.gguf"), F_OK), "a file was left");
}

static void check_requant_fails(const char *words, int status, const char *from, const char *how) {
    CHECK(test_run("deadwood-requant -q -m %s -o %s %s", from, test_file("never.gguf"), how) == status, "%s: %s", how,
          test_run_output());
    check_one_line(words);
}

static void refusals_of_requant(void) {
    const char *from = test_file("a.gguf"), *other = test_file("b.gguf"), *stats = test_file("stats.h5"),
               *plan = test_file("plan.tsv");
    char how[512];
    if (!write_random(from, &shapes[1], "F32") || !write_random(other, &shapes[1], "BF16") ||
        !write_statistics(from, &shapes[1], stats) || !write_half_plan(plan, &shapes[1], 32))
        return;
    check_requant_fails("--cold-type needs --cold-rate or --hot", 2, from, "--type Q4_0 --cold-type Q4_0");
    check_requant_fails("--cold-rate needs --cold-type", 2, from, "--cold-rate 0.5");
    check_requant_fails("--seed is for --metric random; nothing else draws", 2, from,
                        "--cold-type Q4_0 --cold-rate 0.5 --metric energy --seed 1");
    check_requant_fails("--seed is for --metric random", 2, from, "--type Q4_0 --seed 0");
    check_requant_fails("needs statistics", 2, from, "--cold-type Q4_0 --cold-rate 0.5");
    check_requant_fails("is not between", 2, from, "--cold-type Q4_0 --cold-rate 1");
    snprintf(how, sizeof how, "--cold-type Q4_0 --cold-rate 0.5 -s %s", stats);
    check_requant_fails("statistics of another model", 1, other, how);
    snprintf(how, sizeof how, "--cold-type Q2_K --cold-rate 0.5 -s %s", stats);
    check_requant_fails("layer 0: 128 neurons cannot be divided into whole blocks of 32 (hot) and of 256 (cold)", 1,
                        from, how);
    snprintf(how, sizeof how, "--cold-type Q2_K --hot %s", plan);
    check_requant_fails("no whole number of Q2_K blocks of 256; give a cold type with blocks of 32", 1, from, how);
    if (!write_random(other, &ragged, "F32") || !write_statistics(other, &ragged, stats)) return;
    snprintf(how, sizeof how, "--cold-type Q4_0 --cold-rate 0.5 -s %s", stats);
    check_requant_fails(
        "100 neurons cannot be divided into whole blocks of 32 (hot) and of 32 (cold); give a cold type "
        "without blocks, such as F16",
        1, other, how);
    CHECK(!test_run("deadwood-requant -q -m %s -o %s --cold-type F16 --cold-rate 0.5 -s %s", other,
                    test_file("ragged.gguf"), stats),
          "%s", test_run_output());
    if (!write_random(other, &wide, "BF16") || !write_half_plan(plan, &wide, 128)) return; // 384 of 768
    snprintf(how, sizeof how, "--mixture Q8_0 --tensor ffn_down=Q4_K --cold-type Q8_0 --hot %s", plan);
    check_requant_fails("rows of 384 values are no whole number of Q4_K blocks of 256", 1, other, how);
    FILE *f = fopen(plan, "w");
    fputs("# deadwood plan 1\nlayer width keep\n0 48 0-47\n1 128 0-127\n2 128 0-127\n3 128 0-127\n", f);
    fclose(f);
    check_requant_fails("layer 0: the plan keeps 48 neurons", 1, from, how);
    f = fopen(plan, "w");
    fputs("# deadwood plan 1\nlayer width keep\n0 128 0-127\n1 drop\n2 128 0-127\n3 128 0-127\n", f);
    fclose(f);
    check_requant_fails("layer 1: the plan drops it", 1, from, how);
    f = fopen(plan, "w");
    fputs("# deadwood plan 1\nlayer width keep\n0 96 0-95\n1 128 0-127\n2 128 0-127\nheads 2 1\n3 128 0-127\n", f);
    fclose(f);
    check_requant_fails("layer 2: the plan cuts heads, which stay here", 1, from, how);
    if (!write_half_plan(plan, &shapes[1], 32) || !write_random(from, &shapes[1], "Q4_0")) return;
    snprintf(how, sizeof how, "--cold-type Q4_0 --hot %s", plan);
    check_requant_fails("is Q4_0 already", 1, from, how); // columns of down change their blocks
}

static void refusals_of_others(void) {
    const char *from = test_file("a.gguf"), *cold = test_file("b.gguf"), *plan = test_file("plan.tsv");
    dw_err err = {0};
    if (!write_random(from, &shapes[1], "F32") || !write_half_plan(plan, &shapes[1], 32)) return;
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --hot %s --cold-type Q4_0", from, cold, plan), "%s",
            test_run_output());
    CHECK(test_run("deadwood-rank -q -m %s -o %s --metric weight --rate 0.5", cold, test_file("never.gguf")) == 1);
    check_one_line("has its FFN in two parts");
    dw_err why = {0};
    double *score[DW_MAX_LAYERS];
    kit_scorer scorer = {.model = dw_model_open(cold, &err), .group = 1, .pool = two_threads()};
    REQUIRE(scorer.model, "%s", err.text);
    CHECK(kit_score(&scorer, kit_metric_find("weight"), score, &why) && strstr(why.text, "its FFN in two parts"), "%s",
          why.text);
    kit_scorer_release(&scorer);
    dw_model_close((dw_model *)(uintptr_t)scorer.model);
    CHECK(test_run("deadwood-cut -q -m %s -p %s -o %s", cold, plan, test_file("never.gguf")) == 1);
    CHECK(strstr(test_run_output(), "has its FFN in two parts") && access(test_file("never.gguf"), F_OK), "%s",
          test_run_output());
    CHECK(test_run("deadwood-heal -m %s -T %s -f LICENSE -o %s --tokens 9", cold, from, test_file("never.gguf")) == 1);
    check_one_line("has its FFN in two parts");
    char how[512];
    snprintf(how, sizeof how, "--hot %s --cold-type Q4_0", plan);
    check_requant_fails("has its FFN in two parts", 1, cold, how);
    check_requant_fails("--mixture: '", 1, cold, "--mixture Q4_K_M --lossy-twice");
    snprintf(how, sizeof how, "--type Q8_0 --lossy-twice -s %s", plan);
    check_requant_fails("--stats: '", 1, cold, how);
    CHECK(!test_run("deadwood-requant -q -m %s -o %s --type F32", cold, test_file("c.gguf")), "%s", test_run_output());
    dw_model *m = dw_model_open(cold, &err);
    dw_session *s = m ? dw_session_new(m, &(dw_session_options){.pool = two_threads()}, &err) : NULL;
    if (CHECK(s, "%s", err.text)) {
        static const int32_t list[] = {1}, n[] = {1, 1, 1, 1};
        static const int32_t *const lists[] = {list, list, list, list};
        CHECK(dw_session_set_selection(s, &(dw_selection){lists, n}, &err) == -1 && strstr(err.text, "in two parts"),
              "%s", err.text);
        CHECK(!dw_session_set_selection(s, NULL, &err));
    }
    dw_session_free(s);
    dw_model_close(m);
}

typedef struct lengths { const int32_t *length; size_t n; } lengths;

static void set_lengths(dw_gguf_writer *w, const void *p) {
    const lengths *cold = p;
    if (cold->n) dw_gguf_set_array(w, DW_KEY_COLD_LENGTH, DW_KV_I32, cold->length, cold->n);
    else dw_gguf_unset(w, DW_KEY_COLD_LENGTH);
}

/* The file again with other cold widths, n of them. */
static void check_damaged(const char *cold, const int32_t *length, size_t n, const char *words) {
    dw_err err = {0};
    const char *bad = test_file("bad.gguf");
    write_with_keys(cold, bad, set_lengths, &(lengths){length, n});
    dw_model *m = dw_model_open(bad, &err);
    CHECK(!m && strstr(err.text, words), "'%s' is not in: %s", words, err.text);
    dw_model_close(m);
}

static void damage(void) {
    const char *from = test_file("a.gguf"), *cold = test_file("b.gguf"), *plan = test_file("plan.tsv");
    if (!write_random(from, &shapes[1], "F32") || !write_half_plan(plan, &shapes[1], 32)) return;
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --hot %s --cold-type Q4_0", from, cold, plan), "%s",
            test_run_output()); // 64, 0, 64, 64
    check_damaged(cold, NULL, 0, "expected [64, 128]");
    check_damaged(cold, (int32_t[]){64, 0, 64}, 3, "has 3 values instead of 4");
    check_damaged(cold, (int32_t[]){64, 0, -64, 64}, 4, "is negative");
    check_damaged(cold, (int32_t[]){64, 0, 128, 64}, 4, "is 128 for layer 2 of 128 neurons");
    check_damaged(cold, (int32_t[]){64, 0, INT32_MAX, 64}, 4, "for layer 2 of 128 neurons");
    check_damaged(cold, (int32_t[]){64, 0, 65, 64}, 4, "layer 2: 63 hot neurons");
    check_damaged(cold, (int32_t[]){64, 0, 32, 64}, 4, "'blk.2.ffn_gate_cold.weight' has shape");
    check_damaged(cold, (int32_t[]){64, 64, 64, 64}, 4, "'blk.1.ffn_gate_cold.weight' is missing");
    check_damaged(cold, (int32_t[]){64, 0, 64, 0}, 4, "expected [64, 128]");
}

static const test_case cases[] = {
    {"cold neurons in the hot ones' type leave the model as it was, in every architecture", same_type},
    {"biases of gate and up go with their neurons", biases},
    {"two types run as one: the joined matrices, both backends, prefill and decode", different_types},
    {"parameters and bytes a token count both parts", sizes},
    {"parts that keep their type are called reordered, not rounded", reordered},
    {"a rate and rank's plan at that rate give the same file", rate_and_plan},
    {"--metric random chooses other neurons with each --seed", seeds},
    {"a metric of single texts warns where texts share a row of sums", pooled},
    {"what cannot be divided is refused in one line and leaves no file", refusals_of_requant},
    {"rank, cut, lists of neurons and a second division refuse a model in two parts", refusals_of_others},
    {"cold widths that do not fit the tensors are refused", damage},
    {0},
};
TEST_MAIN(cases)
