/* test_requant.c - requant: the types it gives are stock's, its bytes are the encoders', nothing else changes.
 *
 * Comparisons with stock need its libraries ($DW_STOCK) and are skipped aloud without them. */
#include "build.h"
#include "experiments/random_model.h"
#include "experiments/peer/stock.h"
#include "kit/imatrix.h"
#include "quant/quant.h"
#include "test.h"
#include "kit/lineage.h"
#include "kit/tsv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Shapes on which the rules differ: rows of whole 256-blocks; widths that are multiples of 32 only; keys shared by four
 * heads and by two; tied and not; fused and per-layer forms. */
static const exp_shape shapes[] = {
    {"shared by four", "qwen2", 8, 256, 256, 4, 1, 64, 320, true, 10000, 256},
    {"width 288", "llama", 4, 256, 288, 4, 2, 64, 320, false, 10000, 256},
    {"rows of 96", "qwen3", 3, 96, 160, 3, 1, 32, 512, false, 10000, 256},
    {0},
};
static const exp_shape small = {"small", "qwen2", 2, 256, 256, 4, 2, 64, 512, true, 10000, 256};
static const exp_shape wide_down = {"rows of 96", "llama", 2, 96, 256, 3, 1, 32, 512, false, 10000, 256};
static const exp_shape eighty = {"80 layers", "qwen2", 80, 256, 32, 4, 1, 64, 512, true, 10000, 256};

/* ---- two files --------------------------------------------------------------------------------------------------- */

typedef struct pair {
    dw_gguf *a, *b;
} pair;

static bool open_pair(pair *p, const char *a, const char *b) {
    dw_err err = {0};
    *p = (pair){dw_gguf_open(a, &err), NULL};
    if (p->a) p->b = dw_gguf_open(b, &err);
    return CHECK(p->b, "%s", err.text);
}

static void close_pair(pair *p) {
    dw_gguf_close(p->a);
    dw_gguf_close(p->b);
}

/* Same names, shapes, types and bytes. */
static void check_same_tensors(const char *a, const char *b, const char *what) {
    pair p;
    if (open_pair(&p, a, b) && CHECK(dw_gguf_n_tensors(p.a) == dw_gguf_n_tensors(p.b), "%s", what)) {
        for (size_t i = 0; i < dw_gguf_n_tensors(p.a); i++) {
            const dw_tensor *s = dw_gguf_tensor(p.a, i), *t = dw_gguf_find_tensor(p.b, s->name);
            if (!CHECK(t, "%s: '%s' is missing", what, s->name)) break;
            if (!CHECK(s->type == t->type, "%s: '%s' is %s and %s", what, s->name, s->type->name, t->type->name))
                continue;
            CHECK(s->n_bytes == t->n_bytes && !memcmp(s->data, t->data, s->n_bytes), "%s: '%s' (%s) differs", what,
                  s->name, s->type->name);
        }
    }
    close_pair(&p);
}

static float *decoded(const dw_tensor *t) {
    float *v = dw_alloc(dw_tensor_n_values(t), sizeof *v, "values", NULL);
    t->type->decode(t->data, v, dw_tensor_n_values(t));
    return v;
}

/* ---- types and bytes --------------------------------------------------------------------------------------------- */

static void same_type(void) {
    const char *from = test_file("a.gguf"), *to = test_file("b.gguf");
    for (const dw_qtype_row *t = dw_qtypes; t->name; t++) {
        if (!t->encode) continue;
        if (!write_random(from, &small, t->name)) return;
        CHECK(!test_run("deadwood-requant -m %s -o %s --type %s", from, to, t->name), "%s", test_run_output());
        check_same_tensors(from, to, t->name);
    }
}

/* Mean square error over mean square, of all matrices. */
static double relative_error(const char *from, const char *to) {
    pair p;
    double error = 0, square = 0;
    for (size_t i = 0; open_pair(&p, from, to) && i < dw_gguf_n_tensors(p.a); close_pair(&p), i++) {
        const dw_tensor *s = dw_gguf_tensor(p.a, i), *t = dw_gguf_find_tensor(p.b, s->name);
        if (!kit_is_matrix(s)) continue;
        float *v = decoded(s), *w = decoded(t);
        for (size_t k = 0; k < dw_tensor_n_values(s); k++) {
            error += ((double)v[k] - w[k]) * ((double)v[k] - w[k]);
            square += (double)v[k] * v[k];
        }
        free(v);
        free(w);
    }
    close_pair(&p);
    return error / square;
}

/* What a normal distribution costs, with a little room. */
static void every_type(void) {
    static const struct {
        const char *type;
        double bound;
    } expected[] = {{"F32", 0},          {"F16", 1e-7},     {"BF16", 3e-6},
                    {"Q8_0", 4e-5},      {"Q6_K", 5e-4},    {"Q5_K", 1.5e-3},
                    {"Q5_0", 2e-3},      {"Q5_1", 2e-3},    {"Q4_K", 6e-3},
                    {"Q4_0", 9e-3},      {"Q4_1", 9e-3},    {"IQ4_NL", 8e-3},
                    {"Q3_K", 2.5e-2},    {"Q2_K", 9e-2},    {"affine4", 1.2e-2},
                    {"minmax4", 1.1e-2}, {"affine3", 6e-2}, {"minmax3", 5e-2},
                    {"affine2", 0.6},    {"minmax2", 0.25}, {0}};
    const char *from = test_file("a.gguf"), *to = test_file("b.gguf");
    if (!write_random(from, &small, "F32")) return;
    quant_types_init();
    int n = 0;
    for (const quant_type *t = quant_types; t->name; t++) {
        int i = 0;
        while (expected[i].type && strcmp(expected[i].type, t->name)) i++;
        if (!CHECK(expected[i].type, "%s has no bound here", t->name)) continue;
        REQUIRE(!test_run("deadwood-requant -m %s -o %s --type %s", from, to, t->name), "%s", test_run_output());
        const double error = relative_error(from, to);
        CHECK(error <= expected[i].bound, "%s: %.3g", t->name, error);
        n++;
    }
    CHECK(n == (int)(sizeof expected / sizeof *expected) - 1);
}

static void vectors_and_keys(void) {
    const char *from = test_file("a.gguf"), *to = test_file("b.gguf");
    pair p;
    if (!write_random(from, &small, "BF16")) return;
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --type q4_k", from, to), "%s", test_run_output());
    if (open_pair(&p, from, to)) {
        uint32_t file_type = 0, version = 0;
        for (size_t i = 0; i < dw_gguf_n_tensors(p.a); i++) {
            const dw_tensor *s = dw_gguf_tensor(p.a, i), *t = dw_gguf_tensor(p.b, i);
            CHECK(!strcmp(s->name, t->name) && t->type->id == (s->n_dims == 2 ? DW_Q4_K : DW_F32), "%s is %s", t->name,
                  t->type->name);
            if (s->n_dims == 1) CHECK(!memcmp(s->data, t->data, s->n_bytes), "%s", s->name);
        }
        for (size_t i = 0; i < dw_gguf_n_kv(p.a); i++) {
            const dw_kv *k = dw_gguf_kv(p.a, i), *l = dw_gguf_find(p.b, k->key);
            if (!CHECK(l, "%s", k->key) || !strcmp(k->key, "general.file_type")) continue;
            CHECK(k->n_bytes == l->n_bytes && !memcmp(k->data, l->data, k->n_bytes), "%s", k->key);
        }
        CHECK(dw_gguf_u32(p.b, "general.file_type", &file_type, NULL) == 1 && file_type == 15);
        CHECK(dw_gguf_u32(p.b, "general.quantization_version", &version, NULL) == 1 && version == 2);
        CHECK(!dw_gguf_find(p.b, "deadwood.nominal_bits"));
    }
    close_pair(&p);
}

static void any_threads(void) {
    const char *from = test_file("a.gguf"), *one = test_file("b.gguf"), *more = test_file("c.gguf");
    static const char *const how[] = {"--type affine2", "--mixture Q4_K_M", NULL};
    if (!write_random(from, &small, "F32")) return;
    for (int i = 0; how[i]; i++) {
        REQUIRE(!test_run("deadwood-requant -m %s -o %s -t 1 %s", from, one, how[i]), "%s", test_run_output());
        for (int threads = 2; threads < 6; threads++) {
            REQUIRE(!test_run("deadwood-requant -m %s -o %s -t %d %s", from, more, threads, how[i]), "%s",
                    test_run_output());
            CHECK(same_files(one, more), "%s with %d threads", how[i], threads);
        }
    }
}

/* ---- affine groups ----------------------------------------------------------------------------------------------- */

static float bf16(float x) { return dw_bf16_to_f32(dw_f32_to_bf16(x)); }

/* One group by its definition, written out a second time: values as MLX would give them back. */
static void define_group(const float *w, int bits, bool moves_edge, float *out) {
    const float top = (float)((1 << bits) - 1);
    float lo = INFINITY, hi = -INFINITY, scale, bias;
    for (int i = 0; i < 64; i++) {
        lo = fminf(lo, w[i]);
        hi = fmaxf(hi, w[i]);
    }
    scale = (hi - lo) / top;
    bias = lo;
    if (moves_edge) {
        if (scale < 1e-7f) scale = 1e-7f;
        if (!(fabsf(lo) > fabsf(hi))) {
            scale = -scale;
            bias = hi;
        }
        const float steps = nearbyintf(bias / scale);
        if (steps == 0) bias = 0;
        else scale = bias / steps;
    } else {
        scale = bf16(scale);
        bias = bf16(bias);
    }
    for (int i = 0; i < 64; i++) {
        float q = scale == 0 ? 0 : nearbyintf((w[i] - bias) / scale);
        q = fmaxf(0, fminf(top, q));
        out[i] = bf16(scale) * q + bf16(bias);
    }
}

static void groups_by_definition(void) {
    enum { N = 64 * 50 };
    static float row[N], expected[N], got[N];
    static uint8_t blocks[N / 32 * 20];
    dw_rng rng;
    dw_rng_seed(&rng, 3);
    quant_types_init();
    for (int i = 0; i < N; i++) row[i] = (float)dw_rng_normal(&rng) * (float)(1 << i / 64 % 8) * 0.01f;
    for (int i = 0; i < 64; i++) row[i] = 0;                          // a dead group
    for (int i = 64; i < 128; i++) row[i] = 0.125f;                   // all alike
    for (int i = 128; i < 192; i++) row[i] = (float)(i - 128) / 63;   // one side
    for (int i = 192; i < 256; i++) row[i] = -(float)(i - 192) / 63;  // the other
    for (int i = 256; i < 320; i++) row[i] = i % 2 ? -1.0f : 1.0f;    // as far to both
    for (const quant_type *t = quant_types; t->name; t++) {
        if (!t->bits) continue;
        const bool moves_edge = !strcmp(t->method->name, "affine");
        CHECK(t->nominal_bits == t->bits + 0.5 && t->stored->id == DW_Q4_1, "%s", t->name);
        for (int i = 0; i < N; i += 64) define_group(row + i, t->bits, moves_edge, expected + i);
        CHECK(!t->method->encode(t, row, blocks, N), "%s: a scale was rounded", t->name);
        t->stored->decode(blocks, got, N);
        for (int i = 0; i < N; i++)
            if (!CHECK(got[i] == expected[i], "%s: value %d of group %d is %g instead of %g", t->name, i % 64, i / 64,
                       (double)got[i], (double)expected[i]))
                break;
        if (moves_edge)
            for (int i = 0; i < 64; i++) CHECK(got[i] == 0);
    }
    const quant_type *two = quant_type_find("affine2");
    for (int i = 0; i < N; i++) row[i] *= 1e-6f; // below what F16 holds exactly
    for (int i = 0; i < N; i += 64) define_group(row + i, 2, true, expected + i);
    CHECK(two->method->encode(two, row, blocks, N) > 0);
    two->stored->decode(blocks, got, N);
    for (int i = 0; i < N; i++) // scale and offset each off by half of F16's smallest step
        CHECK(fabsf(got[i] - expected[i]) <= (3 + 1) * 0x1p-25f, "value %d is %g instead of %g", i, (double)got[i],
              (double)expected[i]);
}

static void nominal_bits(void) {
    const char *from = test_file("a.gguf"), *to = test_file("b.gguf"), *twice = test_file("c.gguf");
    float bits = 0;
    pair p;
    if (!write_random(from, &small, "BF16")) return;
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --type affine4", from, to), "%s", test_run_output());
    CHECK(test_run("deadwood-requant -m %s -o %s --type affine2", to, twice) == 1, "%s", test_run_output());
    CHECK(strstr(test_run_output(), "--lossy-twice"), "%s", test_run_output());
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --type affine2 --lossy-twice", to, twice), "%s", test_run_output());
    if (open_pair(&p, to, twice)) {
        CHECK(dw_gguf_f32(p.a, "deadwood.nominal_bits", &bits, NULL) == 1 && bits == 4.5f, "%g", (double)bits);
        CHECK(dw_gguf_f32(p.b, "deadwood.nominal_bits", &bits, NULL) == 1 && bits == 2.5f, "%g", (double)bits);
        char *chain = lineage_commands(p.b, NULL);
        CHECK(chain && strstr(chain, "affine4") && strstr(chain, "affine2") > strstr(chain, "affine4"), "%s", chain);
        free(chain);
    }
    close_pair(&p);
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --type Q4_1", twice, to), "%s", test_run_output());
    check_same_tensors(twice, to, "plain Q4_1 keeps the groups");
}

static float nominal_bits_of(const char *path) {
    float bits = 0;
    dw_gguf *g = dw_gguf_open(path, NULL);
    if (g) dw_gguf_f32(g, "deadwood.nominal_bits", &bits, NULL);
    dw_gguf_close(g);
    return bits;
}

/* Matrices that stay keep their own bits, in one step or in two. */
static void nominal_bits_stay(void) {
    const char *from = test_file("a.gguf"), *to = test_file("b.gguf"), *once = test_file("c.gguf"),
               *twice = test_file("d.gguf");
    if (!write_random(from, &small, "BF16")) return;
    REQUIRE(!test_run("deadwood-requant -q -m %s -o %s --type affine2 --tensor 'attn_v=Q8_0'", from, once), "%s",
            test_run_output());
    REQUIRE(!test_run("deadwood-requant -q -m %s -o %s --type affine2", from, to), "%s", test_run_output());
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --tensor 'attn_v=Q8_0' --lossy-twice", to, twice), "%s",
            test_run_output());
    const float wanted = nominal_bits_of(once);
    CHECK(wanted > 2.5f && wanted < 3 && fabsf(nominal_bits_of(twice) - wanted) < 1e-5f, "%g instead of %g",
          (double)nominal_bits_of(twice), (double)wanted);
    CHECK(!strstr(test_run_output(), "on average"), "%s", test_run_output());
    REQUIRE(!test_run("deadwood-requant -q -m %s -o %s --type F32", to, twice), "%s", test_run_output());
    CHECK(nominal_bits_of(twice) == 0);
    REQUIRE(!test_run("deadwood-requant -q -m %s -o %s --type affine4 --tensor 'ffn=affine2'", from, to), "%s",
            test_run_output());
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --tensor 'attn_v=Q8_0' --lossy-twice", to, twice), "%s",
            test_run_output());
    CHECK(strstr(test_run_output(), "counts those that stay by this average") && nominal_bits_of(twice) > 0, "%s",
          test_run_output());
}

/* What blocks lost stays lost in 32 bits.  Matrices that always were in 16 bits are rounded without a word. */
static void rounded_before(void) {
    const char *from = test_file("a.gguf"), *blocks = test_file("b.gguf"), *plain = test_file("c.gguf"),
               *to = test_file("d.gguf");
    if (!write_random(from, &small, "BF16")) return;
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --type affine2", from, blocks), "%s", test_run_output());
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --type F32", blocks, plain), "%s", test_run_output());
    CHECK(!strstr(test_run_output(), "warning"), "%s", test_run_output());
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --type Q2_K", plain, to), "%s", test_run_output());
    CHECK(strstr(test_run_output(), "c.gguf' was in blocks before (requant: affine2 15), so this is a loss on top"),
          "%s", test_run_output());
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --type Q2_K --lossy-twice", plain, to), "%s", test_run_output());
    CHECK(!strstr(test_run_output(), "warning"), "%s", test_run_output());
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --tensor 'attn_v=Q8_0'", from, blocks), "%s", test_run_output());
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --tensor 'ffn=Q4_0'", blocks, to), "%s", test_run_output());
    CHECK(!strstr(test_run_output(), "warning"), "%s", test_run_output());
    if (!test_shared()) return;
    REQUIRE(!test_run("deadwood-convert experiments/mini -o %s --type Q8_0 -q", blocks), "%s", test_run_output());
    REQUIRE(!test_run("deadwood-requant -q -m %s -o %s --type F16 --lossy-twice", blocks, plain), "%s",
            test_run_output());
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --type Q4_0 --dry-run", plain, to), "%s", test_run_output());
    CHECK(strstr(test_run_output(), "was in blocks before (convert: "), "%s", test_run_output());
}

/* ---- recipes ----------------------------------------------------------------------------------------------------- */

static void write_text(const char *path, const char *text) {
    test_bytes b = {0};
    put_text(&b, text);
    save(&b, path);
    free(b.data);
}

static void recipe_chooses(void) {
    const char *from = test_file("a.gguf"), *to = test_file("b.gguf"), *recipe = test_file("r.recipe");
    static const struct { const char *name; dw_qtype type; } expected[] = {
        {"token_embd.weight", DW_BF16},        {"blk.0.attn_v.weight", DW_Q6_K},      {"blk.7.attn_v.weight", DW_Q8_0},
        {"blk.0.attn_q.weight", DW_BF16},      {"blk.3.ffn_down.weight", DW_Q4_1},    {"blk.3.ffn_up.weight", DW_Q2_K},
        {"blk.3.ffn_norm.weight", DW_F32},     {"blk.3.attn_output.weight", DW_Q4_0}, {"blk.1.attn_k.weight", DW_BF16}};
    if (!write_random(from, &shapes[0], "BF16")) return;
    write_text(recipe, "# a comment\n\n  blk.*.ffn_down.weight\taffine2 # behind\r\n"
                       "blk.?.ffn_*  q2_k\n"
                       "/^blk\\.[01]\\.attn_v/ Q6_K\n"
                       "/attn_(q|k)/ keep\n"
                       "*attn_v.weight Q8_0\n"
                       "blk.*.attn_output.weight Q4_0\n"
                       "nothing* F16\n");
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --recipe %s", from, to, recipe), "%s", test_run_output());
    CHECK(strstr(test_run_output(), "line 9: no matrix is left for the pattern 'nothing*'"), "%s", test_run_output());
    pair p;
    if (open_pair(&p, from, to)) {
        for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
            const dw_tensor *t = dw_gguf_find_tensor(p.b, expected[i].name);
            CHECK(t && t->type->id == expected[i].type, "%s is %s", expected[i].name, t ? t->type->name : "missing");
        }
    }
    close_pair(&p);
}

static void recipe_refusals(void) {
    static const struct { const char *text, *words; } bad[] = {
        {"", "has no rule"},
        {"# only this\n", "has no rule"},
        {"a Q4_0\nblk.*\n", "line 2: a pattern without a type"},
        {"a Q4_0 b\n", "line 1: 'b' follows the type"},
        {"a Q4_L\n", "line 1: there is no type 'Q4_L'"},
        {"a affine5\n", "did you mean 'affine"},
        {"/a Q4_0\n", "between two slashes"},
        {"/ Q4_0\n", "between two slashes"},
        {"/(a/ Q4_0\n", "regular expression is wrong at its column 3"},
        {"\xff Q4_0\n", "not UTF-8"},
    };
    quant_types_init();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        quant_recipe r;
        dw_err err = {0};
        CHECK(quant_recipe_parse(&r, bad[i].text, strlen(bad[i].text), "r", &err), "'%s' was taken", bad[i].text);
        check_sentence(&err, bad[i].words, bad[i].text);
    }
}

static void globs(void) {
    static const struct {
        const char *pattern, *name;
        bool matches;
    } row[] = {
        {"*", "a", true},           {"a", "a", true},           {"a", "ab", false},   {"a*", "ab", true},
        {"*b", "ab", true},         {"*b*", "ab", true},        {"a?c", "abc", true}, {"a?c", "ac", false},
        {"a*b*c", "aXbYbZc", true}, {"a*b*c", "aXbYbZ", false}, {"?", "ab", false},   {"**", "ab", true},
        {"*aab", "aaaab", true},    {"a.c", "abc", false},
    };
    quant_types_init();
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char text[64];
        quant_recipe r;
        dw_err err = {0};
        snprintf(text, sizeof text, "%s Q4_0", row[i].pattern);
        REQUIRE(!quant_recipe_parse(&r, text, strlen(text), "r", &err), "%s", err.text);
        quant_rule *found;
        CHECK(!quant_recipe_find(&r, row[i].name, &found, &err) && (found != NULL) == row[i].matches, "'%s' on '%s'",
              row[i].pattern, row[i].name);
        quant_recipe_release(&r);
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void check_fails(const char *words, const char *from, const char *how) {
    const char *to = test_file("never.gguf");
    CHECK(test_run("deadwood-requant -q -m %s -o %s %s", from, to, how) == 1, "%s: %s", how, test_run_output());
    const char *said = test_run_output(), *end = strchr(said, '\n');
    CHECK(strstr(said, words), "'%s' is not in: %s", words, said);
    CHECK(end && !end[1], "more than one line: %s", said);
    CHECK(access(to, F_OK), "a file was left");
}

static void refusals(void) {
    const char *from = test_file("a.gguf"), *bad = test_file("bad.gguf");
    dw_err err = {0};
    if (!write_random(from, &shapes[1], "F32")) return;
    check_fails("rows of 288 values are no whole number of Q4_K blocks of 256", from, "--type Q4_K");
    check_fails("rows of 288 values are no whole number of affine2 groups of 64", from, "--type affine2");
    check_fails("is not made without importances", from, "--mixture Q2_K_S");
    const char *recipe = test_file("none.recipe");
    char how[512];
    FILE *f = fopen(recipe, "w");
    fputs("mlp.* Q4_0\n", f);
    fclose(f);
    snprintf(how, sizeof how, "--recipe %s", recipe);
    check_fails("no pattern matches a matrix", from, how);
    size_t n;
    char *bytes = dw_read_file(from, 1 << 26, &n, &err);
    dw_gguf *g = dw_gguf_open(from, &err);
    REQUIRE(bytes && g, "%s", err.text);
    const float nan = NAN, large = 70000;
    char *found = memmem(bytes, n, dw_gguf_find_tensor(g, "blk.3.ffn_up.weight")->data, 64);
    REQUIRE(found);
    memcpy(found + 40, &nan, sizeof nan);
    save(&(test_bytes){(uint8_t *)bytes, n, n}, bad);
    const char *beyond = test_file("beyond.gguf");
    memcpy(found + 40, &large, sizeof large);
    save(&(test_bytes){(uint8_t *)bytes, n, n}, beyond);
    dw_gguf_close(g);
    free(bytes);
    check_fails("holds a weight beyond 65280, which the scales of Q4_0 cannot follow", beyond, "--type Q4_0");
    CHECK(!test_run("deadwood-requant -q -m %s -o %s --type BF16", beyond, test_file("b.gguf")), "%s",
          test_run_output());
    check_fails("'blk.3.ffn_up.weight' row 0: value nan at column 10 cannot be stored as Q4_0; the model is damaged",
                bad, "--type Q4_0");
    check_fails("'blk.3.ffn_up.weight' row 0: value nan at column 10 cannot be stored as BF16; the model is damaged",
                bad, "--type BF16");
    if (!write_random(from, &shapes[0], "Q4_0")) return;
    check_fails("is Q4_0 already", from, "--mixture Q2_K");
    CHECK(!test_run("deadwood-requant -m %s -o %s --type F32", from, bad), "%s", test_run_output());
    CHECK(relative_error(from, bad) == 0);
    CHECK(test_run("deadwood-requant -m %s -o %s", from, bad) == 2 && strstr(test_run_output(), "give one of"), "%s",
          test_run_output());
}

/* Before PCRE2 tries the second alternative, the first has taken all the steps that a match may have. */
static void endless_patterns(void) {
    static const char endless[] = "(([a-z0-9_.]+)+)+=|blk.0.ffn_down.weight";
    const char *from = test_file("a.gguf"), *recipe = test_file("r.recipe");
    char text[256], how[512];
    if (!write_random(from, &small, "BF16")) return;
    snprintf(text, sizeof text, "/%s/ Q6_K\n* Q4_0\n", endless);
    write_text(recipe, text);
    snprintf(how, sizeof how, "--recipe %s", recipe);
    check_fails("r.recipe': '/(([a-z0-9_.]+)+)+=|blk.0.ffn_down.weight/' cannot be decided for '", from, how);
    check_fails("match limit exceeded; write the regular expression in a simpler way", from, how);
    snprintf(how, sizeof how, "--type Q4_0 --tensor '%s=Q6_K'", endless);
    check_fails("--tensor: '(([a-z0-9_.]+)+)+=|blk.0.ffn_down.weight' cannot be decided for '", from, how);
}

/* ---- importances ------------------------------------------------------------------------------------------------- */

/* Sums of squares of one input: a few columns much stronger than the rest, exact in F32. */
static void fill_sums(double *sums, size_t n, const char *input) {
    dw_rng rng;
    dw_rng_seed(&rng, (uint64_t)strlen(input) + (uint64_t)input[4]);
    for (size_t i = 0; i < n; i++) sums[i] = (double)(1 + dw_rng_below(&rng, 1000)) * (i % 31 ? 1 : 64);
}

/* As stock names inputs: those of the matrices that share an input are equal. */
static const char *input_name(const char *name) {
    static char shared[64];
    const char *part = strrchr(name, '.') ? strstr(name, "attn_") : NULL;
    if (!part) part = strstr(name, "ffn_");
    if (!part) part = name;
    snprintf(shared, sizeof shared, "%.*s%s", (int)(part - name), name,
             !strncmp(part, "attn_output", 11) ? "mix"
             : !strncmp(part, "attn", 4)       ? "attn"
             : !strncmp(part, "ffn_down", 8)   ? "neuron"
                                               : "ffn");
    return shared;
}

static bool write_importances(const char *model, const char *path, kit_imatrix_form form, uint64_t count) {
    dw_err err = {0};
    kit_imatrix im = {.n_chunks = 1, .chunk_size = 512};
    dw_gguf *g = dw_gguf_open(model, &err);
    for (size_t i = 0; g && i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        if (!kit_is_matrix(t) || strncmp(t->name, "blk.", 4)) continue;
        double *sums = dw_alloc(t->ne[0], sizeof *sums, "sums", &err);
        fill_sums(sums, t->ne[0], input_name(t->name));
        kit_imatrix_put(&im, t->name, (int)t->ne[0], sums, count, &err);
        free(sums);
    }
    dw_gguf_close(g);
    kit_imatrix_write(&im, path, form, &err);
    kit_imatrix_release(&im);
    return CHECK(!err.text[0], "%s", err.text);
}

/* The same sums as statistics of a model of the shape `small`. */
static bool write_statistics(const char *model, const char *path) {
    dw_err err = {0};
    kit_stats s;
    const int n_ff[] = {small.n_ff, small.n_ff},
              n_mix[] = {small.n_head * small.head_dim, small.n_head * small.head_dim};
    if (!CHECK(!kit_stats_init(&s, small.n_layer, small.n_embd, n_ff, n_mix, 1, &err), "%s", err.text)) return false;
    dw_sha256_file(model, s.model_sha256, &err);
    snprintf(s.arch, sizeof s.arch, "%s", small.arch);
    s.n_ctx = 512;
    s.hist_every = 1;
    s.text[0] = (kit_stats_text){.name = "text",
                                 .first_window = 1,
                                 .n_windows = 2,
                                 .n_tokens = 1024,
                                 .blocks = dw_strdup("0123456789abcdef", &err)};
    memset(s.text[0].sha256, 'a', 64);
    for (int l = 0; l < s.n_layer; l++) {
        static const char *const part[] = {"attn_q", "attn_output", "ffn_up", "ffn_down"};
        for (int i = 0; i < KIT_STATS_N_INPUTS; i++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s.weight", l, part[i]);
            fill_sums(s.layer[l].text_square[i], (size_t)s.layer[l].n_input[i], input_name(name));
        }
        s.layer[l].count[0] = 1024;
    }
    kit_stats_total(&s);
    const bool ok = !kit_stats_write(&s, path, &err);
    kit_stats_release(&s);
    return CHECK(ok, "%s", err.text);
}

static void importances_in_three_forms(void) {
    const char *from = test_file("a.gguf"),
               *form[] = {test_file("imatrix.gguf"), test_file("imatrix.dat"), test_file("stats.h5")};
    const char *to[] = {test_file("b.gguf"), test_file("c.gguf"), test_file("d.gguf")},
               *plain = test_file("plain.gguf");
    if (!write_random(from, &small, "F32") || !write_importances(from, form[0], KIT_IMATRIX_GGUF, 1024) ||
        !write_importances(from, form[1], KIT_IMATRIX_OLD, 1024) || !write_statistics(from, form[2]))
        return;
    for (int i = 0; i < 3; i++)
        REQUIRE(!test_run("deadwood-requant -m %s -o %s --type Q4_K -s %s", from, to[i], form[i]), "%s",
                test_run_output());
    CHECK(strstr(test_run_output(), "14 of the 15 rounded tensors had importances"), "%s", test_run_output());
    check_same_tensors(to[0], to[1], "old and new form");
    check_same_tensors(to[0], to[2], "importance file and statistics");
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --type Q4_K", from, plain), "%s", test_run_output());
    CHECK(!same_files(plain, to[0]));
    pair p;
    dw_str name = {"", 0};
    uint32_t n = 0;
    if (open_pair(&p, to[2], plain)) {
        CHECK(dw_gguf_str(p.a, "quantize.imatrix.file", &name, NULL) == 1 && dw_str_is(name, "stats.h5"));
        CHECK(dw_gguf_u32(p.a, "quantize.imatrix.entries_count", &n, NULL) == 1 && n == 14, "%u", n);
        const dw_kv *steps = dw_gguf_find(p.a, "deadwood.lineage");
        CHECK(steps && memmem(steps->str[0].ptr, steps->str[0].len, "0123456789abcdef", 16),
              "the texts' blocks are missing");
        CHECK(!dw_gguf_find(p.b, "quantize.imatrix.file"));
    }
    close_pair(&p);
}

/* What is said and recorded counts the tensors whose errors importances weighed, not those that have some. */
static void unused_importances(void) {
    static const struct {
        const char *how, *said;
        bool has_keys;
    } ways[] = {{"--type Q8_0", "0 of the 15 rounded", false},
                {"--type affine4", "0 of the 15 rounded", false},
                {"--type F16", "0 of the 15 rounded", false},
                {"--type Q4_K --tensor 'attn=Q8_0'", "6 of the 15 rounded", true}};
    const char *from = test_file("a.gguf"), *to = test_file("b.gguf"), *importances = test_file("imatrix.gguf");
    if (!write_random(from, &small, "F32") || !write_importances(from, importances, KIT_IMATRIX_GGUF, 1024)) return;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        REQUIRE(!test_run("deadwood-requant -m %s -o %s -s %s %s", from, to, importances, ways[i].how), "%s",
                test_run_output());
        CHECK(strstr(test_run_output(), ways[i].said), "%s: %s", ways[i].how, test_run_output());
        dw_gguf *g = dw_gguf_open(to, NULL);
        CHECK(g && (dw_gguf_find(g, "quantize.imatrix.file") != NULL) == ways[i].has_keys, "%s", ways[i].how);
        dw_gguf_close(g);
    }
}

static void statistics_of_the_ancestors(void) {
    const char *from = test_file("a.gguf"), *child = test_file("b.gguf"), *stranger = test_file("c.gguf"),
               *stats = test_file("stats.h5");
    if (!write_random(from, &small, "F32") || !write_statistics(from, stats) || !write_random(stranger, &small, "F16"))
        return;
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --type BF16", from, child), "%s", test_run_output());
    char how[512];
    snprintf(how, sizeof how, "--mixture Q2_K_S -s %s", stats);
    CHECK(!test_run("deadwood-requant -m %s -o %s %s", child, test_file("d.gguf"), how), "%s", test_run_output());
    check_fails("holds statistics of another model", stranger, how);
}

/* Of `small`, by a plan: what was measured before belongs to other neurons, or to other layers. */
static void importances_from_before_a_cut(void) {
    static const char *const plans[] = {"0 256 0-255\n1 0 drop\n", "0 128 128-255\n1 256 0-255\n",
                                        "0 128 0-127\n1 128 0-127\n", NULL};
    const char *from = test_file("a.gguf"), *plan = test_file("plan.tsv"), *child = test_file("b.gguf"),
               *stats = test_file("stats.h5"), *importances = test_file("imatrix.gguf");
    char how[512], text[256];
    if (!write_random(from, &small, "F32") || !write_statistics(from, stats) ||
        !write_importances(from, importances, KIT_IMATRIX_GGUF, 1024))
        return;
    for (int i = 0; plans[i]; i++) {
        snprintf(text, sizeof text, "# deadwood plan 1\nlayer width keep\n%s", plans[i]);
        write_text(plan, text);
        REQUIRE(!test_run("deadwood-cut -q -m %s -p %s -o %s --pad", from, plan, child), "%s", test_run_output());
        snprintf(how, sizeof how, "--type Q4_0 -s %s", stats);
        check_fails("holds statistics from before", child, how);
        snprintf(how, sizeof how, "--type Q4_0 -s %s", importances);
        if (i == 0) check_fails("holds importances of 'blk.1.attn_q.weight', the model has 1 layers", child, how);
        if (i == 2) check_fails("has rows of 128 values and 256 importances", child, how);
    }
}

/* ---- overrides, dry runs, facts ---------------------------------------------------------------------------------- */

/* Whether the last step of a file's lineage has these words. */
static bool lineage_has(const char *path, const char *words) {
    dw_gguf *g = dw_gguf_open(path, NULL);
    const dw_kv *steps = g ? dw_gguf_find(g, "deadwood.lineage") : NULL;
    const dw_str last = steps ? steps->str[steps->count - 1] : (dw_str){"", 0};
    const bool has = memmem(last.ptr, last.len, words, strlen(words)) != NULL;
    dw_gguf_close(g);
    return has;
}

static void tensor_overrides(void) {
    static const struct { const char *name; dw_qtype type; } expected[] = {
        {"blk.0.ffn_up.weight", DW_Q8_0}, {"blk.0.attn_q.weight", DW_Q8_0}, {"blk.1.ffn_down.weight", DW_BF16},
        {"blk.1.ffn_up.weight", DW_Q4_K}, {"blk.0.ffn_norm.weight", DW_F32}};
    const char *from = test_file("a.gguf"), *to = test_file("b.gguf");
    dw_err err = {0};
    if (!write_random(from, &small, "BF16")) return;
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --mixture Q4_K_M --tensor 'blk\\.0\\..*=Q8_0' 'ffn_down=keep'",
                      from, to),
            "%s", test_run_output());
    dw_gguf *g = dw_gguf_open(to, &err);
    for (size_t i = 0; g && i < sizeof expected / sizeof *expected; i++) {
        const dw_tensor *t = dw_gguf_find_tensor(g, expected[i].name);
        CHECK(t && t->type->id == expected[i].type, "%s is %s", expected[i].name, t ? t->type->name : "missing");
    }
    dw_gguf_close(g);
    CHECK(g && lineage_has(to, "blk\\\\.0\\\\..*=Q8_0"), "%s", err.text);
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --tensor 'attn_v=Q6_K'", from, to), "%s", test_run_output());
    CHECK(lineage_has(to, "BF16 13, Q6_K 2"), "alone it leaves the rest");
    check_fails("--tensor 'blk.7=Q8_0': it matches no matrix", from, "--mixture Q4_K_M --tensor 'blk.7=Q8_0'");
    check_fails("--tensor 'ffn_up=Q8_0': it matches no matrix", from, "--type Q4_0 --tensor 'ffn=Q4_1' 'ffn_up=Q8_0'");
    check_fails("--tensor 'ffn_up': a word is REGEX=TYPE", from, "--type Q4_0 --tensor ffn_up");
    check_fails("--tensor '(=Q4_0': the regular expression is wrong", from, "--type Q4_0 --tensor '(=Q4_0'");
    check_fails("there is no type 'Q4_L'", from, "--type Q4_0 --tensor 'ffn_up=Q4_L'");
}

/* ffn_down has rows of 288 values, no whole number of blocks of 256, so all four layers fall back to another type.  The
 * mixture gives ffn_down of layers 2 and 3 more bits, so theirs is a larger one. */
static void fallbacks_are_facts(void) {
    const char *from = test_file("a.gguf"), *to = test_file("b.gguf");
    if (!write_random(from, &shapes[1], "BF16")) return;
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --mixture Q4_K_M", from, to), "%s", test_run_output());
    const char *said = test_run_output();
    CHECK(strstr(said, "warning: 4 of 30 matrices have rows that are no whole number of their type's blocks"), "%s",
          said);
    CHECK(strstr(said, "'blk.0.ffn_down.weight' (rows of 288) gets ") && strstr(said, "--multiple 256"), "%s", said);
    CHECK(lineage_has(to, "\"types\":\"Q4_K 23, Q6_K 3, Q5_0 2 (fallback), Q8_0 2 (fallback)\""),
          "the types are no fact");
    CHECK(strstr(said, "; a cut by a plan of rank --multiple 256 avoids it"), "%s", said);
    const char *narrow = test_file("narrow.gguf");
    if (!write_random(narrow, &shapes[2], "BF16")) return;
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --mixture Q4_K_M", narrow, to), "%s", test_run_output());
    CHECK(strstr(test_run_output(), "; for the 3 ffn_down of them a cut by a plan of rank --multiple 256 avoids it"),
          "no width of the FFN helps rows of 96: %s", test_run_output());
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --type Q4_0", from, to), "%s", test_run_output());
    CHECK(!strstr(test_run_output(), "warning") && lineage_has(to, "\"types\":\"Q4_0 30\""), "%s", test_run_output());
}

/* A gate's thresholds are of the weights before; a control that opens the same groups for every token has none. */
static void gates_before_rounding(void) {
    const char *from = test_file("a.gguf"), *gated = test_file("gated.gguf"), *to = test_file("b.gguf");
    if (!write_random(from, &small, "BF16")) return;
    REQUIRE(!test_run("deadwood-gate -m %s -o %s --rule random --activity 0.5 --group 32 -q", from, gated), "%s",
            test_run_output());
    REQUIRE(!test_run("deadwood-requant -m %s -o %s --type Q8_0", gated, to), "%s", test_run_output());
    CHECK(!strstr(test_run_output(), "the gate decides"), "%s", test_run_output());
}

/* A gated run reads ffn_down_t in place of ffn_down.  Whether the model is rounded before or after gate to a type of
 * upstream's, the copy is the same: here made from 16 bits both times.  Rows of 96 values hold no Q4_K blocks, so that copy is Q8_0. */
static void copies_follow_down(void) {
    static const struct {
        const exp_shape *shape;
        const char *how;
        dw_qtype copy; // of layer 0
    } ways[] = {
        {&small, "--mixture Q2_K -s %s", DW_Q3_K}, {&small, "--type BF16 --tensor '\\.ffn_down\\.=Q2_K'", DW_Q2_K},
        {&small, "--recipe %s", DW_Q2_K},          {&small, "--type Q4_1", DW_Q4_1},
        {&shapes[0], "--mixture Q4_K_M", DW_Q6_K}, {&wide_down, "--tensor 'attn=Q8_0' 'ffn_down=Q4_K'", DW_Q8_0}};
    const char *from = test_file("a.gguf"), *gated = test_file("gated.gguf"), *one = test_file("b.gguf"),
               *other = test_file("c.gguf"), *importances = test_file("imatrix.gguf"), *recipe = test_file("r.recipe"),
               *rule = "--rule random --activity 0.5 --group 32 -q";
    char how[512];
    write_text(recipe, "*.ffn_down.weight Q2_K\n");
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (!write_random(from, ways[i].shape, "BF16") || !write_importances(from, importances, KIT_IMATRIX_GGUF, 1024))
            return;
        snprintf(how, sizeof how, ways[i].how, strstr(ways[i].how, "recipe") ? recipe : importances);
        REQUIRE(!test_run("deadwood-gate -m %s -o %s %s", from, gated, rule), "%s", test_run_output());
        REQUIRE(!test_run("deadwood-requant -q -m %s -o %s %s", gated, one, how), "%s", test_run_output());
        REQUIRE(!test_run("deadwood-requant -q -m %s -o %s %s", from, gated, how), "%s", test_run_output());
        REQUIRE(!test_run("deadwood-gate -m %s -o %s %s --source %s", gated, other, rule, from), "%s",
                test_run_output());
        check_same_tensors(one, other, how);
        dw_gguf *g = dw_gguf_open(one, NULL);
        const dw_tensor *t = g ? dw_gguf_find_tensor(g, "blk.0.ffn_down_t.weight") : NULL;
        CHECK(t && t->type->id == ways[i].copy, "%s: %s", how, t ? t->type->name : "missing");
        dw_gguf_close(g);
    }
    if (!write_random(from, &small, "BF16")) return;
    REQUIRE(!test_run("deadwood-gate -m %s -o %s %s", from, gated, rule), "%s", test_run_output());
    check_fails("it matches no matrix", gated, "--type Q4_0 --tensor 'ffn_down_t=Q8_0'"); // it has no wish of its own
}

static void dry_run(void) {
    static const char *const how[] = {"--mixture Q4_K_M", "--type affine3", "--mixture Q3_K_S --tensor 'attn_v=F16'",
                                      NULL};
    const char *from = test_file("a.gguf"), *to = test_file("b.gguf");
    for (int i = 0; how[i]; i++) {
        char *end, total[64] = "";
        double bytes = 0;
        dw_err err = {0};
        if (!write_random(from, &small, "BF16")) return;
        REQUIRE(!test_run("deadwood-requant -q -m %s -o %s %s", from, to, how[i]), "%s", test_run_output());
        dw_gguf *g = dw_gguf_open(to, &err);
        for (size_t k = 0; g && k < dw_gguf_n_tensors(g); k++) bytes += (double)dw_gguf_tensor(g, k)->n_bytes;
        dw_gguf_close(g);
        unlink(to);
        REQUIRE(!test_run("deadwood-requant -q -m %s -o %s --dry-run %s", from, to, how[i]), "%s", test_run_output());
        const char *said = test_run_output(), *last = strstr(said, "*\ttotal\t");
        CHECK(access(to, F_OK), "a file was written");
        if (last) sscanf(last, "*\ttotal\t%*s %*s %63s", total);
        CHECK(strtod(total, &end) == bytes && bytes > 0, "%s: %g bytes in the file, told was\n%s", how[i], bytes, said);
        CHECK(strstr(said, "type\tkind\ttensors\tvalues\tbytes\tbits_per_value\n") == said, "%s", said);
    }
}

static void wrong_choices(void) {
    static const struct { const char *program, *how, *words; } bad[] = {
        {"requant -m", "--type Q4_K_M", "give --mixture Q4_K_M"},
        {"requant -m", "--mixture q4_k", "give --type q4_k"},
        {"requant -m", "--type Q4_L", "is not one of F32"},
        {"convert", "--type Q4_K_M", "deadwood requant -m M.gguf -o M2.gguf --type T|--mixture NAME"}};
    const char *from = test_file("a.gguf");
    if (!write_random(from, &small, "BF16")) return;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const int rc = test_run("deadwood-%s %s -o %s %s", bad[i].program, from, test_file("never.gguf"), bad[i].how);
        CHECK(rc == 2 && strstr(test_run_output(), bad[i].words), "%s", test_run_output());
    }
}

static void unnamed_data(void) {
    const char *from = test_file("a.gguf"), *to = test_file("b.gguf"), *imatrix = test_file("imatrix.gguf"),
               *stats = test_file("stats.h5");
    if (!write_random(from, &small, "F32") || !write_importances(from, imatrix, KIT_IMATRIX_GGUF, 1024) ||
        !write_statistics(from, stats))
        return;
    REQUIRE(!test_run("deadwood-requant -q -m %s -o %s --type Q4_K -s %s", from, to, imatrix), "%s", test_run_output());
    CHECK(lineage_has(to, "\"unnamed_data\":\"imatrix.gguf\""), "an imatrix does not say its texts");
    REQUIRE(!test_run("deadwood-requant -q -m %s -o %s --type Q4_K -s %s", from, to, stats), "%s", test_run_output());
    CHECK(!lineage_has(to, "unnamed_data"), "statistics say their texts");
    REQUIRE(!test_run("deadwood-collect -q -m %s --import-imatrix %s -o %s", from, imatrix, test_file("imported.h5")),
            "%s", test_run_output());
    REQUIRE(!test_run("deadwood-requant -q -m %s -o %s --type Q4_K -s %s", from, to, test_file("imported.h5")), "%s",
            test_run_output());
    CHECK(lineage_has(to, "\"unnamed_data\":\"imatrix.gguf\""), "nor do statistics that were made of one");
}

/* ---- beside stock ------------------------------------------------------------------------------------------------ */

static stock *peer(void) {
    static stock *s;
    static bool tried;
    dw_err err = {0};
    if (!tried && !(s = stock_open(NULL, &err)) && getenv("DW_STOCK")) printf("%s\n", err.text);
    tried = true;
    return s;
}

#define NEED_STOCK() do { if (!peer()) SKIP("$DW_STOCK names no folder with libllama*.so"); } while (0)

static void compare_with_stock(const char *from, const char *what, const char *mixture, const char *importances) {
    const char *ours = test_file("ours.gguf"), *theirs = test_file("theirs.gguf");
    char label[128];
    dw_err err = {0};
    snprintf(label, sizeof label, "%s, %s%s", what, mixture, importances ? ", weighed" : "");
    REQUIRE(!test_run("deadwood-requant -q -m %s -o %s --mixture %s %s %s", from, ours, mixture,
                      importances ? "-s" : "", importances ? importances : ""),
            "%s", test_run_output());
    REQUIRE(!stock_quantize(peer(), from, theirs, mixture, importances, 2, &err), "%s: %s", label, err.text);
    check_same_tensors(ours, theirs, label);
    pair p;
    uint32_t a = 1000, b = 2000;
    if (open_pair(&p, ours, theirs))
        CHECK(dw_gguf_u32(p.a, "general.file_type", &a, NULL) == 1 &&
                  dw_gguf_u32(p.b, "general.file_type", &b, NULL) == 1 && a == b,
              "%s: file types %u and %u", label, a, b);
    close_pair(&p);
}

static void every_mixture(const exp_shape *shape, const char *type) {
    const char *from = test_file("a.gguf");
    if (!write_random(from, shape, type)) return;
    for (const kit_mixture *m = kit_mixtures; m->name; m++)
        if (strcmp(m->name, "Q2_K_S")) compare_with_stock(from, shape->name, m->name, NULL);
}

static void weighed_mixtures_are_stocks(void) {
    NEED_STOCK();
    const char *from = test_file("a.gguf"), *importances = test_file("imatrix.gguf");
    for (const exp_shape *s = shapes; s->name; s++) {
        if (!write_random(from, s, "BF16") || !write_importances(from, importances, KIT_IMATRIX_GGUF, 1024)) return;
        for (const kit_mixture *m = kit_mixtures; m->name; m++)
            if (test_slow() || m->ffn_down.when) compare_with_stock(from, s->name, m->name, importances);
    }
}

static void mixtures_are_stocks(void) {
    NEED_STOCK();
    for (const exp_shape *s = shapes; s->name; s++) every_mixture(s, "BF16");
    every_mixture(exp_shape_find("tiny-openelm"), "F32");
    every_mixture(exp_shape_find("tiny-deci"), "F16");
}

static void eighty_layers(void) {
    NEED_STOCK();
    const char *from = test_file("a.gguf");
    if (!test_slow()) SKIP("long: set DW_SLOW=1");
    if (!write_random(from, &eighty, "F16")) return;
    compare_with_stock(from, eighty.name, "Q4_K_M", NULL);
    compare_with_stock(from, eighty.name, "Q2_K", NULL);
    compare_with_stock(from, eighty.name, "Q3_K_S", NULL);
}

/* ---- perplexities ------------------------------------------------------------------------------------------------ */

/* Of mini, geometric mean over the five evaluation texts, first 20 windows of 512: what other programs measured, and
 * how far from it ours may be (K types: stock rounds activations to 8 bits).  Importances weigh the last step: the
 * known figure of Q4_0 over which Q2_K came is that of the plain one (weighed as well, the pair has 29.378). */
static void known_perplexities(void) {
    static const struct {
        const char *how, *again;
        double ppl, below, above;
        bool is_weighed, is_quick;
    } row[] = {{"--mixture Q8_0", NULL, 16.876, 0.003, 0.003},
               {"--mixture Q6_K", NULL, 16.927, 0.015, 0.005},
               {"--mixture Q5_K_M", NULL, 17.101, 0.015, 0.005},
               {"--mixture Q4_K_M", NULL, 17.489, 0.015, 0.005, .is_quick = true},
               {"--mixture Q4_0", NULL, 18.017, 0.003, 0.003},
               {"--mixture Q3_K_M", NULL, 19.281, 0.015, 0.005},
               {"--mixture Q2_K", NULL, 31.913, 0.015, 0.005},
               {"--mixture Q4_0", "--mixture Q2_K", 38.985, 0.015, 0.005},
               {"--type affine4", NULL, 18.88, 0.003, 0.003},
               {"--type affine2", NULL, 647.7, 0.02, 0.02},
               {"--type affine4", "--type affine2", 1164.5, 0.02, 0.02},
               {"--type minmax4", NULL, 18.86, 0.003, 0.003},
               {"--type minmax3", NULL, 29.86, 0.003, 0.003},
               {"--type minmax2", NULL, 1868, 0.02, 0.02},
               {"--type minmax4", "--type minmax2", 1964, 0.02, 0.02},
               {"--mixture Q4_K_M", NULL, 17.391, 0.015, 0.005, true},
               {"--mixture Q4_0", NULL, 17.721, 0.003, 0.003, true},
               {"--mixture Q3_K_M", NULL, 18.698, 0.015, 0.005, true},
               {"--mixture Q2_K", NULL, 26.684, 0.015, 0.005, true},
               {"--mixture Q4_0", "--mixture Q2_K", 29.977, 0.015, 0.005, true}};
    const char *shared = test_shared(), *from = test_file("a.gguf"), *middle = test_file("b.gguf"),
               *to = test_file("c.gguf");
    if (!shared) SKIP("the reference models are not there");
    REQUIRE(!test_run("deadwood-convert experiments/mini -o %s", from), "%s", test_run_output());
    const char *stats = test_file("stats.h5");
    REQUIRE(!test_slow() ||
                !test_run("deadwood-collect -q -m %s -f %s/reference-model/text/calib/*.txt --windows 24 -o %s", from,
                          shared, stats),
            "%s", test_run_output());
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const char *rows = test_file("rows.tsv"), *with = row[i].is_weighed ? "-s" : "",
                   *what = row[i].is_weighed ? stats : "";
        if (!row[i].is_quick && !test_slow()) continue;
        unlink(rows);
        const bool is_last = !row[i].again;
        REQUIRE(!test_run("deadwood-requant -m %s -o %s %s %s %s", from, is_last ? to : middle, row[i].how,
                          is_last ? with : "", is_last ? what : ""),
                "%s", test_run_output());
        if (!is_last)
            REQUIRE(
                !test_run("deadwood-requant -m %s -o %s %s --lossy-twice %s %s", middle, to, row[i].again, with, what),
                "%s", test_run_output());
        REQUIRE(!test_run("deadwood-score -q --no-speed --windows 20 -m %s -f %s/reference-model/text/eval/*.txt -o %s",
                          to, shared, rows),
                "%s", test_run_output());
        tsv_table t;
        dw_err err = {0};
        REQUIRE(!tsv_read(&t, rows, &err) && t.n_rows == 6, "%s", err.text);
        const double ppl = atof(tsv_cell(&t, 5, "ppl"));
        CHECK(ppl >= row[i].ppl * (1 - row[i].below) && ppl <= row[i].ppl * (1 + row[i].above),
              "%s %s %s: %g instead of %g", row[i].how, is_last ? "" : row[i].again, with, ppl, row[i].ppl);
        printf("      %s %s %s: %.3f, other programs %.3f\n", row[i].how, is_last ? "" : row[i].again,
               row[i].is_weighed ? "weighed" : "", ppl, row[i].ppl);
        tsv_release(&t);
    }
}

static const test_case cases[] = {
    {"a matrix that has its type already keeps its bytes", same_type},
    {"every type loses no more of normal weights than it must", every_type},
    {"vectors and keys are copied, and the file says its type", vectors_and_keys},
    {"the number of threads changes no byte", any_threads},
    {"affine and min-max groups are what their definition says", groups_by_definition},
    {"a method's own bits are recorded, and a second rounding is refused unless asked for", nominal_bits},
    {"matrices that stay as they are keep their method's bits", nominal_bits_stay},
    {"what was in blocks before is rounded again with a warning", rounded_before},
    {"a recipe's first matching line decides", recipe_chooses},
    {"a wrong line of a recipe is refused with its number", recipe_refusals},
    {"globs match whole names", globs},
    {"what cannot be requantized is refused in one line and leaves no file", refusals},
    {"a pattern on which PCRE2 gives up is refused, not passed over", endless_patterns},
    {"importances say the same in stock's old and new form and as statistics", importances_in_three_forms},
    {"importances that no type uses are not counted", unused_importances},
    {"statistics are taken of the model or of those it was made of, never of others", statistics_of_the_ancestors},
    {"importances from before a cut are refused", importances_from_before_a_cut},
    {"--tensor decides on top of a mixture, and a pattern that matches nothing is refused", tensor_overrides},
    {"a mixture's fallbacks are counted, told with advice, and facts of the lineage", fallbacks_are_facts},
    {"a control that opens the same groups is no gate with thresholds", gates_before_rounding},
    {"a gated model's transposed copies get what down gets", copies_follow_down},
    {"a dry run prints the types and bytes of the file, and writes none", dry_run},
    {"a mixture's name given as a type is pointed to --mixture, and convert says how", wrong_choices},
    {"learning from data without named texts is a fact of the lineage", unnamed_data},
    {"every mixture gives stock's types and stock's bytes", mixtures_are_stocks},
    {"every mixture with importances gives stock's types and stock's bytes", weighed_mixtures_are_stocks},
    {"mini's perplexities are those that other programs measured", known_perplexities},
    {"models of 80 layers get what stock gives them", eighty_layers},
    {0},
};
TEST_MAIN(cases)
