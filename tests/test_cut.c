/* test_cut.c - cutting: what stays is the parent's, bit for bit, and computes what the parent computes with a list. */
#include "build.h"
#include "kit/safetensors.h"
#include "engine.h"
#include "experiments/peer/stock.h"
#include "formats/ffn_act.h"
#include "kit/plan.h"
#include "kit/sizes.h"
#include "kit/stats.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N = 24, MAX_LAYERS = 64 };

/* ---- models and plans ------------------------------------------------------------------------------------------ */

/* "keep of layer 0|keep of layer 1|..": the last one is repeated for further layers. */
static const char *write_plan(const char *name, const char *model, const char *keeps) {
    const char *path = test_file(name);
    dw_err err = {0};
    dw_model *m = dw_model_open(model, &err);
    FILE *f = fopen(path, "w");
    char hash[65];
    if (!CHECK(m && f && !dw_sha256_file(model, hash, &err), "%s", err.text)) exit(1);
    fprintf(f, "# deadwood plan 1\n# model %s sha256 %s\nlayer width keep\n", model, hash);
    for (int l = 0; l < dw_model_hparams(m)->n_layer; l++) {
        const size_t n = strcspn(keeps, "|");
        int width = 0, first, last, used = 0;
        char keep[4096];
        snprintf(keep, sizeof keep, "%.*s", (int)n, keeps);
        if (!strcmp(keep, "all")) snprintf(keep, sizeof keep, "0-%d", dw_model_hparams(m)->n_ff[l] - 1);
        for (const char *p = keep; sscanf(p, "%d%n", &first, &used) == 1; p += *p == ',') {
            p += used;
            last = *p == '-' && sscanf(p + 1, "%d%n", &last, &used) == 1 ? (p += used + 1, last) : first;
            width += last - first + 1;
        }
        fprintf(f, "%d %d %s\n", l, width, keep);
        if (keeps[n]) keeps += n + 1;
    }
    fclose(f);
    dw_model_close(m);
    return path;
}

static const char *cut(const char *model, const char *plan, const char *name, const char *options) {
    const char *path = test_file(name);
    CHECK(!test_run("deadwood-cut -m %s -p %s -o %s -q %s", model, plan, path, options), "%s: %s", name,
          test_run_output());
    return path;
}

/* The program refuses with one line that holds the words, and leaves no file. */
static void refused(const char *model, const char *plan, const char *options, const char *words) {
    const char *path = test_file("refused.gguf");
    unlink(path);
    CHECK(test_run("deadwood-cut -m %s -p %s -o %s -q %s", model, plan, path, options) == 1 && access(path, F_OK),
          "not refused: %s", words);
    const char *text = test_run_output();
    CHECK(strstr(text, words) && strchr(text, '\n') == text + strlen(text) - 1, "'%s' does not say '%s' in one line",
          text, words);
}

/* n_vocab 0: none is named. */
static void write_config(const char *path, int n_layer, int n_vocab) {
    char vocab[64] = "";
    FILE *f = fopen(path, "w");
    REQUIRE(f);
    if (n_vocab) snprintf(vocab, sizeof vocab, "\"vocab_size\": %d, ", n_vocab);
    fprintf(f,
            "{\"hidden_size\": 64, \"num_hidden_layers\": %d, %s\"layer_types\": [\"a\", \"b\", \"c\", \"d\"], "
            "\"eos_token_id\": [1, 2, 3, 4]}",
            n_layer, vocab);
    fclose(f);
}

/* ---- logits ------------------------------------------------------------------------------------------------------ */

/* Logits (N, n_vocab) by ref; with a plan of the model, those of the neurons that it keeps, chosen by list. */
static float *logits(const char *path, const char *plan_path, size_t *n) {
    dw_err err = {0};
    dw_pool *pool = dw_pool_new(2, &err);
    dw_model *m = dw_model_open(path, &err);
    dw_session *s =
        m ? dw_session_new(m, &(dw_session_options){.pool = pool, .backend = "ref", .n_ctx = 64, .kv = DW_KV_CACHE_F32},
                           &err)
          : NULL;
    if (!CHECK(s, "%s", err.text)) exit(1);
    const dw_hparams *hp = dw_model_hparams(m);
    *n = (size_t)N * (size_t)hp->n_vocab;
    float *out = calloc(*n, sizeof *out);
    int32_t token[N], *list[MAX_LAYERS], length[MAX_LAYERS];
    uint8_t all[N];
    memset(all, 1, sizeof all);
    random_tokens(token, N, hp->n_vocab, 5);
    kit_plan plan = {0};
    const dw_selection selection = {(const int32_t *const *)list, length};
    if (plan_path) {
        CHECK(!kit_plan_read(&plan, plan_path, hp->n_ff, hp->n_layer, &err), "%s", err.text);
        for (int l = 0; l < plan.n_layer; l++) {
            length[l] = plan.layer[l].n_keep;
            list[l] = calloc((size_t)length[l] + 1, sizeof **list);
            kit_plan_neurons(&plan.layer[l], list[l]);
        }
        CHECK(!dw_session_set_selection(s, &selection, &err), "%s", err.text);
    }
    CHECK(!dw_session_eval(s, &(dw_batch){.n_tokens = N, .token = token, .out = all}, &err) &&
              !dw_session_logits(s, 0, N, out, &err),
          "%s", err.text);
    dw_session_free(s);
    for (int l = 0; l < plan.n_layer; l++) free(list[l]);
    kit_plan_release(&plan);
    dw_model_close(m);
    dw_pool_free(pool);
    return out;
}

static void same_logits(const char *small, const char *parent, const char *plan, const char *what) {
    size_t n, n_parent;
    float *a = logits(small, NULL, &n), *b = logits(parent, plan, &n_parent);
    if (CHECK(n == n_parent)) CHECK(nmse(a, b, n) <= 1e-10, "%s: NMSE %.1e", what, nmse(a, b, n));
    free(a);
    free(b);
}

static const struct shape {
    const char *name, *carrier; // NULL: none, unequal widths are refused
} shapes[] = {{"tiny-llama", "deci"}, {"tiny-qwen2", "deci"}, {"tiny-qwen3-tied", "openelm"},
              {"tiny-qwen3", NULL},   {"tiny-deci", "deci"},  {"tiny-openelm", "openelm"}};

enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static void check_arch(const char *path, const char *arch) {
    dw_err err = {0};
    dw_gguf *g = dw_gguf_open(path, &err);
    dw_str found = {0};
    CHECK(g && dw_gguf_str(g, "general.architecture", &found, &err) == 1 && dw_str_is(found, arch),
          "expected architecture '%s'", arch);
    dw_gguf_close(g);
}

static void uniform(void) {
    for (int i = 0; i < N_SHAPES; i++) {
        if (strstr(shapes[i].name, "deci") || strstr(shapes[i].name, "openelm")) continue; // their widths are unequal
        for (int k = 0; k < 2 - i % 2; k++) { // every other shape in Q8_0 too
            const char *model = random_model(shapes[i].name, k ? "Q8_0" : "F32", 0);
            const char *plan = write_plan("plan.tsv", model, k ? "32-63,96-127|0-31,64-95" : "0-10,20-40,127|1-33");
            const char *small = cut(model, plan, "small.gguf", "");
            same_logits(small, model, plan, shapes[i].name);
            check_arch(small, strstr(shapes[i].name, "llama")   ? "llama"
                              : strstr(shapes[i].name, "qwen2") ? "qwen2"
                                                                : "qwen3");
        }
    }
}

static const char some[] = "1-31,65-95|7|2-30|5,96-127"; // fits 96, 64, 32, 128 too

static void unequal(void) {
    for (int i = 0; i < N_SHAPES; i++) {
        for (int k = 0; k < 2 - i % 2; k++) { // every other shape in Q8_0 too
            const char *model = random_model(shapes[i].name, k ? "Q8_0" : "F32", 0);
            const char *plan = write_plan("plan.tsv", model, k ? "0-31,64-95|32-63|0-31|96-127" : some);
            if (!shapes[i].carrier) {
                refused(model, plan, "", "output matrix of its own");
                continue;
            }
            const char *small = cut(model, plan, "small.gguf", "");
            same_logits(small, model, plan, shapes[i].name);
            check_arch(small, shapes[i].carrier);
        }
    }
}

static void padded(void) {
    for (int i = 0; i < N_SHAPES; i++) {
        for (int k = 0; k < 2 - i % 2; k++) { // every other shape in Q8_0 too
            const char *model = random_model(shapes[i].name, k ? "Q8_0" : "F32", 0);
            const char *plan = write_plan("plan.tsv", model, k ? "0-31|32-63|0-31|96-127" : some);
            const char *small = cut(model, plan, "small.gguf", "--pad");
            same_logits(small, model, plan, shapes[i].name);
            dw_err err = {0};
            dw_model *m = dw_model_open(small, &err);
            REQUIRE(m, "%s", err.text);
            for (int l = 0; l < 4; l++) CHECK(dw_model_hparams(m)->n_ff[l] == (k ? 32 : 62));
            dw_model_close(m);
        }
    }
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* Every tensor of both files is the same, and so is every key but the lineage. */
static void same_file(const char *a_path, const char *b_path, const char *what) {
    dw_err err = {0};
    dw_gguf *a = dw_gguf_open(a_path, &err), *b = dw_gguf_open(b_path, &err);
    REQUIRE(a && b, "%s: %s", what, err.text);
    CHECK(dw_gguf_n_tensors(a) == dw_gguf_n_tensors(b), "%s", what);
    for (size_t i = 0; i < dw_gguf_n_tensors(a); i++) {
        const dw_tensor *t = dw_gguf_tensor(a, i), *u = dw_gguf_find_tensor(b, t->name);
        CHECK(u && u->type == t->type && u->n_bytes == t->n_bytes && u->ne[0] == t->ne[0] &&
                  !memcmp(u->data, t->data, t->n_bytes),
              "%s: %s", what, t->name);
    }
    for (size_t i = 0; i < dw_gguf_n_kv(a); i++) {
        const dw_kv *k = dw_gguf_kv(a, i), *u = dw_gguf_find(b, k->key);
        if (!strncmp(k->key, "deadwood.", 9) || !strcmp(k->key, "general.name"))
            continue; // a folder gives its own name
        CHECK(u && u->type == k->type && u->n_bytes == k->n_bytes && !memcmp(u->data, k->data, k->n_bytes),
              "%s: key %s", what, k->key);
    }
    dw_gguf_close(a);
    dw_gguf_close(b);
}

static bool is_tested(const dw_qtype_row *t) { // in the short run one of each kind
    return test_slow() || t->id == DW_Q4_0 || t->id == DW_Q5_1 || t->id == DW_Q3_K || t->id == DW_Q6_K ||
           t->id == DW_IQ4_NL || t->id == DW_BF16;
}

static void rate_zero(void) {
    for (int i = 0; i < N_SHAPES; i++) {
        const char *model = random_model(shapes[i].name, "F32", 0);
        same_file(model, cut(model, write_plan("plan.tsv", model, "all"), "same.gguf", ""), shapes[i].name);
    }
    for (const dw_qtype_row *t = dw_qtypes; t->name; t++) {
        if (!is_tested(t) || !t->encode) continue;
        const char *model = random_model("mini", t->name, 0);
        same_file(model, cut(model, write_plan("plan.tsv", model, "all"), "same.gguf", ""), t->name);
        same_file(model, cut(model, write_plan("plan.tsv", model, "all"), "same.gguf", "--down-type same --pad"),
                  t->name);
    }
}

static void set_activation(dw_gguf_writer *w, const void *act) { dw_gguf_set_text(w, DW_KEY_FFN_ACTIVATION, act); }

static void activation(void) {
    const char *model = test_file("relu.gguf");
    write_with_keys(random_model("tiny-qwen2", "F32", 0), model, set_activation, "relu");
    const char *plan = write_plan("plan.tsv", model, "all");
    same_logits(cut(model, plan, "small.gguf", ""), model, plan, "all neurons");
    plan = write_plan("plan.tsv", model, some); // unequal widths, in deci
    same_logits(cut(model, plan, "small.gguf", ""), model, plan, "some neurons");
}

/* Kept columns of a down matrix of the small file are those of the parent. */
static void check_down(const char *small_path, const char *parent_path, const int32_t *keep, int n_keep, double bound) {
    dw_err err = {0};
    dw_gguf *a = dw_gguf_open(small_path, &err), *b = dw_gguf_open(parent_path, &err);
    REQUIRE(a && b, "%s", err.text);
    const dw_tensor *t = dw_gguf_find_tensor(a, "blk.3.ffn_down.weight"),
                    *u = dw_gguf_find_tensor(b, "blk.3.ffn_down.weight");
    REQUIRE(t && u && t->ne[0] == (size_t)n_keep);
    float *x = calloc(t->ne[0] + u->ne[0], sizeof *x), *y = x + t->ne[0];
    double error = 0, power = 0;
    for (size_t r = 0; r < t->ne[1]; r++) {
        t->type->decode(t->data + r * dw_tensor_row_bytes(t), x, t->ne[0]);
        u->type->decode(u->data + r * dw_tensor_row_bytes(u), y, u->ne[0]);
        for (int j = 0; j < n_keep; j++) {
            error += (x[j] - y[keep[j]]) * (x[j] - y[keep[j]]);
            power += y[keep[j]] * y[keep[j]];
        }
    }
    CHECK(error <= bound * power, "%s: NMSE %.2e, allowed %.1e", t->type->name, error / power, bound);
    free(x);
    dw_gguf_close(a);
    dw_gguf_close(b);
}

static void every_type(void) {
    int32_t keep[512];
    for (int j = 0; j < 512; j++) keep[j] = j < 256 ? j + 256 : j + 512;
    for (const dw_qtype_row *t = dw_qtypes; t->name; t++) {
        if (!is_tested(t) || !t->encode) continue;
        const char *model = random_model("mini", t->name, 0);
        check_down(cut(model, write_plan("plan.tsv", model, "256-511,768-1023"), "small.gguf", ""), model, keep, 512,
                   0);
        if (t->block == 1) continue;
        const char *plan = write_plan("plan.tsv", model, "16-255,272-511,768-799");
        refused(model, plan, "", t->block == 256 ? "whole blocks of 256" : "whole blocks of 32");
    }
}

static void cut_twice(void) {
    const char *model = random_model("tiny-llama", "F16", 0), *plan = write_plan("a.tsv", model, "10-89,100-109");
    const char *once = cut(model, write_plan("both.tsv", model, "10-19,40-89,105-109"), "once.gguf", "");
    const char *first = cut(model, plan, "first.gguf", "");
    same_file(once, cut(first, write_plan("b.tsv", first, "0-9,30-79,85-89"), "twice.gguf", ""), "equal widths");

    once = cut(model, write_plan("both.tsv", model, "10-19,40-89|drop|drop|3"), "once.gguf", "");
    first = cut(model, write_plan("a.tsv", model, "10-89|0-9|drop|3,70"), "first.gguf", "");
    same_file(once, cut(first, write_plan("b.tsv", first, "0-9,30-79|drop|0"), "twice.gguf", ""),
              "a carrier with dropped layers");
}

static void renumbered(void) {
    const char *model = random_model("tiny-deci", "F32", 0);
    const char *small = cut(model, write_plan("plan.tsv", model, "all|drop|all|all"), "small.gguf", "");
    dw_err err = {0};
    dw_gguf *a = dw_gguf_open(small, &err), *b = dw_gguf_open(model, &err);
    dw_model *m = dw_model_open(small, &err);
    REQUIRE(a && b && m, "%s", err.text);
    const dw_hparams *hp = dw_model_hparams(m);
    CHECK(hp->n_layer == 3 && hp->n_ff[1] == 32 && hp->n_ff[2] == 128 && hp->n_head[1] == 4 && hp->n_head[2] == 2);
    const dw_tensor *t = dw_gguf_find_tensor(a, "blk.2.attn_q.weight"),
                    *u = dw_gguf_find_tensor(b, "blk.3.attn_q.weight");
    CHECK(t && u && t->n_bytes == u->n_bytes && !memcmp(t->data, u->data, t->n_bytes));
    CHECK(!dw_gguf_find_tensor(a, "blk.3.attn_q.weight"));
    dw_model_close(m);
    dw_gguf_close(a);
    dw_gguf_close(b);
}

static void threads(void) {
    const char *model = random_model("mini", "Q4_0", 0), *plan = write_plan("plan.tsv", model, "3-500,600-613");
    char hash[2][65];
    dw_err err = {0};
    for (int i = 0; i < 2; i++) {
        const char *path = cut(model, plan, "small.gguf", i ? "--down-type same -t 4" : "--down-type same -t 1");
        CHECK(!dw_sha256_file(path, hash[i], &err), "%s", err.text);
    }
    CHECK(!strcmp(hash[0], hash[1]));
}

/* ---- encoding ---------------------------------------------------------------------------------------------------- */

static void encoded(void) {
    if (access("experiments/mini/model.safetensors", R_OK)) SKIP("experiments/mini is not there");
    const char *m16 = test_file("m16.gguf"), *m4 = test_file("m4.gguf");
    REQUIRE(!test_run("deadwood-convert experiments/mini -o %s -q", m16) &&
                !test_run("deadwood-convert experiments/mini --type q4_0 -o %s -q", m4),
            "%s", test_run_output());
    int32_t keep[320];
    for (int j = 0; j < 320; j++) keep[j] = 3 * j + 1;
    char text[4096] = "";
    for (int j = 0; j < 320; j++) sprintf(text + strlen(text), j ? ",%d" : "%d", keep[j]);
    const char *plan = write_plan("third.tsv", m4, text);
    char options[512];
    snprintf(options, sizeof options, "--down-type same --source %s", m16);
    const char *once = cut(m4, plan, "once.gguf", options), *twice = cut(m4, plan, "twice.gguf", "--down-type same");
    check_down(once, m16, keep, 320, 0.011);
    check_down(twice, m16, keep, 320, 0.02);
    check_down(cut(m4, plan, "q8.gguf", "--down-type q8_0"), m4, keep, 320, 1e-4);
    check_down(cut(m4, plan, "f32.gguf", "--down-type f32"), m4, keep, 320, 0);
    CHECK(test_run("deadwood-cut -m %s -p %s -o %s --down-type same", m4, plan, twice) == 0 &&
          strstr(test_run_output(), "16 bits are the better source"));
    refused(m4, plan, "--down-type q4_k", "no whole number of Q4_K blocks of 256");
}

/* Sum over columns of E[x_j^2] times the squared error of the column, of a layer's down in a file of kept neurons. */
static double weighted_error(const char *small, const char *parent, const kit_stats *stats, const int32_t *keep,
                             int n_keep, int l) {
    char name[64];
    dw_err err = {0};
    snprintf(name, sizeof name, "blk.%d.ffn_down.weight", l);
    dw_gguf *a = dw_gguf_open(small, &err), *b = dw_gguf_open(parent, &err);
    const dw_tensor *t = a ? dw_gguf_find_tensor(a, name) : NULL, *u = b ? dw_gguf_find_tensor(b, name) : NULL;
    if (!CHECK(t && u && t->ne[0] == (size_t)n_keep, "%s", err.text)) return NAN;
    float *x = calloc(t->ne[0], sizeof *x), *y = calloc(u->ne[0], sizeof *y);
    double error = 0;
    for (size_t r = 0; r < t->ne[1]; r++) {
        t->type->decode(t->data + r * dw_tensor_row_bytes(t), x, t->ne[0]);
        u->type->decode(u->data + r * dw_tensor_row_bytes(u), y, u->ne[0]);
        for (int j = 0; j < n_keep; j++) {
            const double d = (double)x[j] - (double)y[keep[j]];
            error += d * d * stats->layer[l].input_square[KIT_STATS_FFN_NEURON][keep[j]];
        }
    }
    free(x), free(y);
    dw_gguf_close(a), dw_gguf_close(b);
    return error;
}

/* Statistics weigh the errors of an encoded down: the error of the layer's output becomes smaller. */
static void weighed(void) {
    if (access("experiments/mini/model.safetensors", R_OK)) SKIP("experiments/mini is not there");
    const char *m = test_file("m16.gguf"), *stats = test_file("w.h5");
    REQUIRE(!test_run("deadwood-convert experiments/mini -o %s -q", m) &&
                !test_run("deadwood-collect -m %s -f experiments/texts/calib/english-1.txt -c 128 --windows 4 -o %s -q",
                          m, stats),
            "%s", test_run_output());
    int32_t keep[320];
    char text[4096] = "", options[512];
    for (int j = 0; j < 320; j++) {
        keep[j] = 3 * j + 1;
        sprintf(text + strlen(text), j ? ",%d" : "%d", keep[j]);
    }
    const char *plan = write_plan("third.tsv", m, text);
    kit_stats s;
    dw_err err = {0};
    REQUIRE(!kit_stats_read(&s, stats, &err), "%s", err.text);
    snprintf(options, sizeof options, "--down-type q4_0 -s %s", stats);
    const char *with = cut(m, plan, "with.gguf", options), *without = cut(m, plan, "without.gguf", "--down-type q4_0");
    for (int l = 0; l < s.n_layer; l++) {
        const double a = weighted_error(with, m, &s, keep, 320, l), b = weighted_error(without, m, &s, keep, 320, l);
        CHECK(a < 0.97 * b, "layer %d: %g with statistics, %g without", l, a, b);
    }
    kit_stats_release(&s);
    CHECK(!test_run("deadwood-inspect %s --lineage", with) && strstr(test_run_output(), "--stats w.h5"), "%s",
          test_run_output());
    CHECK(test_run("deadwood-cut -m %s -p %s -o %s -s %s", m, plan, with, stats) == 2 &&
              strstr(test_run_output(), "--down-type"),
          "%s", test_run_output());
    const char *other = random_model("mini", "BF16", 0);
    snprintf(options, sizeof options, "--down-type q4_0 -s %s", stats);
    refused(other, write_plan("other.tsv", other, "0-511"), options, "was collected from another model");
}

static double bytes_of(const kit_sizes *s) {
    double sum = 0;
    for (int i = 0; i < s->n; i++) sum += s->row[i].n_bytes;
    return sum;
}

/* --dry-run prints what the file would hold, and writes nothing. */
static void dry_run(void) {
    const char *model = random_model("mini", "BF16", 0), *plan = write_plan("plan.tsv", model, "3-500,600-613"),
               *out = test_file("dry.gguf");
    CHECK(!test_run("deadwood-cut -m %s -p %s -o %s -q --down-type q8_0 --dry-run", model, plan, out) &&
              access(out, F_OK),
          "%s", test_run_output());
    char shown[4096];
    snprintf(shown, sizeof shown, "%s", test_run_output());
    dw_err err = {0};
    dw_gguf *g = dw_gguf_open(cut(model, plan, "wet.gguf", "--down-type q8_0"), &err);
    REQUIRE(g, "%s", err.text);
    kit_sizes sizes = {0};
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) kit_sizes_add_tensor(&sizes, dw_gguf_tensor(g, i));
    char *table = kit_sizes_table(&sizes, &err), total[64];
    snprintf(total, sizeof total, "\t%.0f\t", bytes_of(&sizes));
    const char *last = strstr(shown, "*\ttotal");
    CHECK(table && last && strstr(last, total) && strstr(shown, "Q8_0\tmatrices\t8\t"), "%s, expected\n%s", shown,
          table);
    free(table);
    dw_gguf_close(g);
    plan = write_plan("narrow.tsv", model, "0-479");
    CHECK(!test_run("deadwood-cut -m %s -p %s -o %s --dry-run", model, plan, out) &&
              strstr(test_run_output(), "--multiple 256 avoids that"),
          "%s", test_run_output());
}

/* A bias of down is one more tensor, and qwen2 becomes deci for it: a dry run knows both, and refuses what the cut
 * refuses. */
static void dry_run_repaired(void) {
    const char *model = random_model("tiny-qwen2", "F32", 0), *plan = write_plan("plan.tsv", model, "3-20,40-43|all"),
               *stats = test_file("dry.h5"), *out = test_file("dry.gguf"), *text = random_text("calib.txt", 4000, 4);
    char options[512], total[64];
    REQUIRE(!test_run("deadwood-collect -m %s -f %s -c 64 --windows 4 --gram down -o %s -q", model, text, stats), "%s",
            test_run_output());
    for (int i = 0; i < 2; i++) {
        snprintf(options, sizeof options, "--repair %s -s %s", i ? "lsq" : "bias", stats);
        dw_err err = {0};
        dw_gguf *g = dw_gguf_open(cut(model, plan, "wet.gguf", options), &err);
        REQUIRE(g, "%s", err.text);
        kit_sizes sizes = {0};
        for (size_t t = 0; t < dw_gguf_n_tensors(g); t++) kit_sizes_add_tensor(&sizes, dw_gguf_tensor(g, t));
        dw_gguf_close(g);
        snprintf(total, sizeof total, "\t%.0f\t", bytes_of(&sizes));
        CHECK(!test_run("deadwood-cut -m %s -p %s -o %s --dry-run %s", model, plan, out, options) && access(out, F_OK),
              "%s", test_run_output());
        const char *last = strstr(test_run_output(), "*\ttotal");
        CHECK(last && strstr(last, total), "%s, wanted%s", test_run_output(), total);
        CHECK(strstr(test_run_output(), "architecture 'deci'"), "%s", test_run_output());
        CHECK(strstr(test_run_output(), i ? "down of 1 layers is repaired" : "down of 1 layers gets the mean"), "%s",
              test_run_output());
    }
    model = random_model("tiny-qwen3", "F32", 0);
    REQUIRE(!test_run("deadwood-collect -m %s -f %s -c 64 --windows 4 -o %s -q", model, text, stats), "%s",
            test_run_output());
    snprintf(options, sizeof options, "--dry-run --repair bias -s %s", stats);
    refused(model, write_plan("plan.tsv", model, "3-20"), options, "has no bias of down");
}

/* What no repair can change is refused before the texts are read, which are too short here. */
static void refused_before_repairs(void) {
    const char *model = random_model("tiny-llama", "F32", 0), *text = random_text("short.txt", 4, 4);
    char options[1024];
    snprintf(options, sizeof options, "--repair lsq --sequential -f %s --down-type Q4_0", text);
    refused(model, write_plan("plan.tsv", model, "0-40"), options, "no whole number of Q4_0 blocks");
    const char *checkpoint = test_file("of-tiny");
    test_run("rm -rf %s %s", test_file("folder"), checkpoint);
    REQUIRE(!mkdir(checkpoint, 0777));
    write_config(test_file("of-tiny/config.json"), 4, 0);
    snprintf(options, sizeof options, "--repair lsq --sequential -f %s --hf %s --checkpoint %s", text,
             test_file("folder"), checkpoint);
    refused(model, write_plan("plan.tsv", model, "0-31|0-63"), options, "needs one width");
}

/* A plan made by rank --bytes says how large the file may be; what a repair adds is not in it. */
static void larger_than_planned(void) {
    const char *model = random_model("tiny-llama", "F32", 0), *plan = write_plan("plan.tsv", model, "0-31"),
               *out = test_file("large.gguf");
    struct stat file;
    for (int i = 0; i < 3; i++) {
        if (i) {
            FILE *f = fopen(plan, "a");
            REQUIRE(f);
            fprintf(f, "# bytes  at most %lld\n", (long long)file.st_size - (i == 1));
            fclose(f);
        }
        CHECK(!test_run("deadwood-cut -m %s -p %s -o %s", model, plan, out) && !stat(out, &file), "%s",
              test_run_output());
        CHECK((i == 1) == (strstr(test_run_output(), "bytes, and the plan is for ") != NULL), "%d: %s", i,
              test_run_output());
    }
}

/* Only what has blocks already was rounded before. */
static void rounded_before(void) {
    static const struct {
        const char *type;
        bool warned;
    } of[] = {{"BF16", false}, {"Q8_0", true}};
    for (int i = 0; i < 2; i++) {
        const char *model = random_model("tiny-llama", of[i].type, 0);
        CHECK(!test_run("deadwood-cut -m %s -p %s -o %s --down-type q8_0", model, write_plan("plan.tsv", model, "1-32"),
                        test_file("again.gguf")) &&
                  of[i].warned == (strstr(test_run_output(), "down of 4 layers is encoded again from") != NULL),
              "%s: %s", of[i].type, test_run_output());
    }
}

static void sources(void) {
    const char *model = random_model("mini", "Q4_0", 0), *plan = write_plan("plan.tsv", model, "0-511");
    char options[512];
    snprintf(options, sizeof options, "--down-type same --source %s", random_model("mini", "BF16", 0));
    refused(model, plan, options, "is another matrix than the model's");
    snprintf(options, sizeof options, "--down-type same --source %s", random_model("tiny-llama", "F32", 0));
    refused(model, plan, options, "the source has 4 layers");
    snprintf(options, sizeof options, "--down-type same --source %s", model);
    refused(model, plan, options, "is Q4_0; a source has");
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void refusals(void) {
    const char *model = random_model("tiny-llama", "Q8_0", 0), *other = random_model("tiny-qwen2", "F32", 0);
    refused(other, write_plan("plan.tsv", model, "0-31"), "", "was made for another model");
    refused(model, write_plan("plan.tsv", model, "0-32"), "", "33 neurons are no whole number of Q8_0 blocks of 32");
    refused(model, write_plan("plan.tsv", model, "16-47"), "", "not whole blocks of 32");
    refused(model, write_plan("plan.tsv", model, "drop"), "", "drops every layer");
    refused(model, write_plan("plan.tsv", model, "0-31|none"), "", "keeps no neuron");
    refused(model, write_plan("plan.tsv", model, "0-128"), "", "neuron 128 does not exist");
    CHECK(test_run("deadwood-cut -m %s -p %s -o /dev/null", model, write_plan("plan.tsv", model, "0-31")) == 1);
}

static void lineage(void) {
    const char *model = random_model("tiny-llama", "F32", 0), *plan = write_plan("plan.tsv", model, "0-31");
    FILE *f = fopen(plan, "a");
    fprintf(f, "# metric energy (a formula), group 32, allocate uniform, seed 0\n# rate   wanted 0.7, reached 0.75\n"
               "# text   a.txt  sha256 %064d  tokens 32  blocks 0123456789abcdef\n", 7);
    fclose(f);
    char hash[65];
    dw_err err = {0};
    CHECK(!dw_sha256_file(plan, hash, &err), "%s", err.text);
    dw_gguf *g = dw_gguf_open(cut(model, plan, "small.gguf", ""), &err);
    REQUIRE(g, "%s", err.text);
    const dw_kv *steps = dw_gguf_find(g, "deadwood.lineage");
    REQUIRE(steps && steps->count == 2);
    char *step = strndup(steps->str[1].ptr, steps->str[1].len);
    CHECK(strstr(step, "\"cut\"") && strstr(step, hash) && strstr(step, "0123456789abcdef") &&
              !strstr(step, test_folder()),
          "%s", step);
    CHECK(strstr(step, "{\"metric\":\"energy\",\"rate\":\"0.7\",\"rate_reached\":\"0.75\",\"group\":\"32\","
                       "\"allocate\":\"uniform\"}"),
          "%s", step);
    free(step);
    dw_gguf_close(g);
}

/* ---- checkpoint folders ------------------------------------------------------------------------------------------ */

/* The folder was repaired with a text, and again is what convert made of it. */
static void keeps_lineage(const char *folder, const char *again) {
    static const char score[] = "deadwood-score -m %s -f experiments/texts/calib/english-1.txt -c 64 --windows 1 "
                                "--no-speed --json";
    CHECK(!test_run("deadwood-inspect %s --lineage", again) &&
              strstr(test_run_output(), "deadwood cut -o repaired.gguf "),
          "%s", test_run_output());
    CHECK(!test_run(score, again) && strstr(test_run_output(), "has seen the text"), "%s", test_run_output());
    const char *lost = test_file("lost.gguf");
    REQUIRE(!test_run("LC_ALL=C sed -i s/deadwood.lineage/another-key-here/ %s/model.safetensors", folder));
    CHECK(!test_run("deadwood-convert %s -o %s", folder, lost) && strstr(test_run_output(), "have lost their lineage"),
          "%s", test_run_output());
    CHECK(!test_run(score, lost) && strstr(test_run_output(), "\"leak\":null"), "%s", test_run_output());
}

/* Tensors of the folder that is written when nothing is cut are those of the folder that the model came from. */
static void check_folder(const char *checkpoint) {
    const char *m = test_file("from.gguf"), *out = test_file("folder"), *again = test_file("again.gguf");
    char options[1024];
    test_run("rm -rf %s", out);
    REQUIRE(!test_run("deadwood-convert %s -o %s -q", checkpoint, m), "%s", test_run_output());
    snprintf(options, sizeof options, "--hf %s --checkpoint %s", out, checkpoint);
    cut(m, write_plan("plan.tsv", m, "all"), "same.gguf", options);
    dw_err err = {0};
    kit_safetensors *a = kit_safetensors_open(checkpoint, &err), *b = kit_safetensors_open(out, &err);
    REQUIRE(a && b, "%s", err.text);
    CHECK(kit_safetensors_count(a) == kit_safetensors_count(b), "%s", checkpoint);
    for (size_t i = 0; i < kit_safetensors_count(a); i++) {
        const kit_st_tensor *t = kit_safetensors_tensor(a, i), *u = kit_safetensors_find(b, t->name);
        CHECK(u && u->dtype == t->dtype && u->n_bytes == t->n_bytes && !memcmp(u->data, t->data, t->n_bytes), "%s: %s",
              checkpoint, t->name);
    }
    kit_safetensors_close(a);
    kit_safetensors_close(b);

    test_run("rm -rf %s", out);
    const char *small = cut(m, write_plan("plan.tsv", m, "3-20,40-43"), "small.gguf", options);
    REQUIRE(!test_run("deadwood-convert %s -o %s -q", out, again), "%s", test_run_output());
    same_file(small, again, "a cut model through its checkpoint folder");
    test_run("rm -rf %s", out);
    const size_t n = strlen(options);
    snprintf(options + n, sizeof options - n,
             " --repair lsq --sequential -f experiments/texts/calib/english-1.txt -c 64 --windows 4");
    small = cut(m, write_plan("plan.tsv", m, "3-20,40-43"), "repaired.gguf", options);
    REQUIRE(!test_run("deadwood-convert %s -o %s -q", out, again), "%s", test_run_output());
    same_file(small, again, "a repaired model through its checkpoint folder");
    keeps_lineage(out, again);
    options[n] = 0;
    refused(m, write_plan("plan.tsv", m, "3-20,40-43"), options, "exists; --hf writes a new folder");
}

/* Of four layers, two are dropped; of lists with four entries only that of layers loses two. */
static void folder_without_layers(void) {
    const char *m = random_model("tiny-llama", "F32", 0), *plan = write_plan("plan.tsv", m, "all|drop|all|drop"),
               *checkpoint = test_file("checkpoint");
    char options[1024];
    size_t n;
    dw_err err = {0};
    test_run("rm -rf %s %s", test_file("folder"), checkpoint);
    REQUIRE(!mkdir(checkpoint, 0777));
    const char *config = test_file("checkpoint/config.json");
    write_config(config, 4, 0);
    snprintf(options, sizeof options, "--hf %s --checkpoint %s", test_file("folder"), checkpoint);
    cut(m, plan, "small.gguf", options);
    CHECK(!test_run("grep -qa 'layers_dropped.*2 of 4' %s", test_file("small.gguf")), "the lineage tells the layers");
    char *text = dw_read_file(test_file("folder/config.json"), 1 << 16, &n, &err), *to = text;
    REQUIRE(text, "%s", err.text);
    for (const char *p = text; *p; p++)
        if (*p != ' ' && *p != '\n') *to++ = *p;
    *to = 0;
    CHECK(strstr(text, "\"layer_types\":[\"a\",\"c\"]") && strstr(text, "\"eos_token_id\":[1,2,3,4]") &&
              strstr(text, "\"num_hidden_layers\":2"),
          "%s", text);
    free(text);
    snprintf(options, sizeof options, "--hf %s/folder --checkpoint %s", test_file("nowhere"), checkpoint);
    refused(m, plan, options, "cannot create");
    test_run("rm -rf %s", test_file("folder"));
    snprintf(options, sizeof options, "--hf %s --checkpoint %s", test_file("folder"), checkpoint);
    write_config(config, 4, 7);
    refused(m, plan, options, "has a vocabulary of 7");
    write_config(config, 5, 0);
    refused(m, plan, options, "has 5 layers of width 64, the model has 4 of 64");
}

static void folders(void) {
    const char *shared = test_shared();
    if (!shared) SKIP("the shared material is not there");
    static const char *const names[] = {"llama-untied", "smollm-tied", "mistral", "qwen2-untied", "qwen3"};
    for (int i = 0; i < 5; i++) {
        char folder[512];
        snprintf(folder, sizeof folder, "%s/oracle/%s", shared, names[i]);
        check_folder(folder);
    }
    char options[1024];
    test_run("rm -rf %s", test_file("folder"));
    snprintf(options, sizeof options, "--hf %s --checkpoint %s/oracle/llama-untied", test_file("folder"), shared);
    const char *model = test_file("from.gguf"); // the last folder's, of qwen3
    refused(model, write_plan("plan.tsv", model, "3-20,40-43"), options,
            "is a checkpoint of class LlamaForCausalLM, the model is qwen3; give the folder that it came from");
    REQUIRE(!test_run("deadwood-convert %s/oracle/llama-untied -o %s -q", shared, model), "%s", test_run_output());
    refused(model, write_plan("plan.tsv", model, "3-20|3-30"), options, "needs one width");
    model = random_model("tiny-llama", "Q8_0", 0);
    refused(model, write_plan("plan.tsv", model, "0-31"), options, "F32, F16 and BF16 only");
}

/* ---- stock ------------------------------------------------------------------------------------------------------- */

/* Logits of stock against ours, F32 weights and cache. */
static void check_stock(stock *s, const char *path, const char *what) {
    dw_err err = {0};
    size_t n;
    float *ours = logits(path, NULL, &n);
    stock_session *ss = stock_session_new(
        s, path, &(stock_options){.n_threads = 1, .n_ctx = 64, .n_batch = 64, .kv_f32 = true, .plain_buffers = true},
        &err);
    if (CHECK(ss, "%s: %s", what, err.text)) {
        const size_t n_vocab = (size_t)stock_session_n_vocab(ss);
        int32_t token[N];
        random_tokens(token, N, (int)n_vocab, 5);
        REQUIRE(!stock_session_eval(ss, &(stock_tokens){token, N, 1, 0, N}, &err) && n == n_vocab * N, "%s: %s", what,
                err.text);
        for (int i = 0; i < N; i++) {
            const double e = nmse(stock_session_logits(ss, i), ours + (size_t)i * n_vocab, n_vocab);
            CHECK(e <= 1e-6, "%s: NMSE %.1e of token %d", what, e, i);
        }
    }
    stock_session_free(ss);
    free(ours);
}

static void stock_loads(void) {
    dw_err err = {0};
    stock *s = stock_open(NULL, &err);
    if (!s) SKIP("%s", err.text);
    static const struct {
        const char *keeps, *options;
    } ways[] = {{"0-63|0-63|0-63|0-31,64-95", "--pad"},
                {"0-63|32-95|0-63|0-63", ""},
                {"0-31,64-95|32-63|0-31|96-127", ""},
                {"0-63|drop|5|7,9", ""},
                {"0-63|drop|5|7,9", "--pad"}};
    for (int i = 0; i < N_SHAPES; i++) {
        const char *model = random_model(shapes[i].name, "F32", 0);
        for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
            if ((!shapes[i].carrier || strstr(shapes[i].name, "-deci") || strstr(shapes[i].name, "-openelm")) &&
                k != 0 && k != 4)
                continue;
            const bool by_layer = strstr(shapes[i].name, "-deci") || strstr(shapes[i].name, "-openelm");
            const char *plan = write_plan("plan.tsv", model, by_layer ? "0-63|drop|5|7,9" : ways[k].keeps);
            check_stock(s, cut(model, plan, "small.gguf", ways[k].options), shapes[i].name);
        }
    }
    stock_close(s);
}

/* Parents with a weight that is NaN, or too large: kept columns are encoded or refused, copied bits are kept. */
static void values_refused(void) {
    static const struct {
        float value;
        const char *options, *words;
    } bad[] = {
        {NAN, "--down-type Q4_0",
         "'blk.3.ffn_down.weight' row 0: value nan at column 5 cannot be stored as Q4_0; the model is damaged"},
        {INFINITY, "--down-type BF16",
         "'blk.3.ffn_down.weight' row 0: value inf at column 5 cannot be stored as BF16; the model is damaged"},
        {1e6f, "--down-type F16",
         "'blk.3.ffn_down.weight' row 0: value 1e+06 at column 5 cannot be stored as F16; choose another --down-type"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dw_err err = {0};
        size_t n = 0;
        const char *model = random_model("mini", "F32", 0), *path = test_file("bad.gguf");
        char *bytes = dw_read_file(model, 1 << 28, &n, &err);
        dw_gguf *g = dw_gguf_open(model, &err);
        REQUIRE(bytes && g, "%s", err.text);
        char *down = memmem(bytes, n, dw_gguf_find_tensor(g, "blk.3.ffn_down.weight")->data, 64);
        memcpy(down + 5 * sizeof(float), &bad[i].value, sizeof(float));
        save(&(test_bytes){(uint8_t *)bytes, n, n}, path);
        dw_gguf_close(g);
        free(bytes);
        const char *plan = write_plan("plan.tsv", path, "0-511");
        const char *out = test_file("refused.gguf");
        unlink(out);
        CHECK(test_run("deadwood-cut -m %s -p %s -o %s -q %s", path, plan, out, bad[i].options) == 1 &&
              access(out, F_OK));
        CHECK(strstr(test_run_output(), bad[i].words), "%s", test_run_output());
        cut(path, plan, "small.gguf", ""); // the bits as they are
    }
}

static const test_case cases[] = {
    {"a file cut to equal widths computes what a list of the same neurons computes", uniform},
    {"a file cut to unequal widths computes the same, in an architecture that has them", unequal},
    {"a padded file computes the same, at one width", padded},
    {"a model whose FFN computes with relu does so when it is cut", activation},
    {"rate 0 gives the parent's tensors and keys bit for bit, in every type", rate_zero},
    {"whole blocks of down are copied in every type, others refused", every_type},
    {"cutting A then B equals cutting A and B at once", cut_twice},
    {"dropped layers are renumbered, and with them what the keys say by layer", renumbered},
    {"the bytes do not depend on the number of threads", threads},
    {"down is encoded again as asked, better from 16 bits", encoded},
    {"statistics weigh the errors of a down that is encoded", weighed},
    {"a dry run prints types and bytes, and writes nothing", dry_run},
    {"a dry run with a repair shows and refuses what the repaired file has", dry_run_repaired},
    {"what no repair can change is refused before the repair", refused_before_repairs},
    {"a file larger than its plan's bytes is warned of", larger_than_planned},
    {"down is called encoded again only where it was encoded before", rounded_before},
    {"a source of other weights, shape or type is refused", sources},
    {"plans of other models, widths that a type cannot hold and empty layers are refused", refusals},
    {"the lineage names the plan, what it says of itself and the texts that it learnt from", lineage},
    {"a checkpoint folder holds what the model was made from, and converts into the same file", folders},
    {"a folder of fewer layers has their types, and its other lists stay", folder_without_layers},
    {"stock llama.cpp computes the same from cut files", stock_loads},
    {"values that cannot be stored are refused with their tensor, row and column", values_refused},
    {0}};
TEST_MAIN(cases)
