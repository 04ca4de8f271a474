/* test_stock.c - this engine beside stock llama.cpp: equal logits, equal perplexity, files that load there.
 *
 * Needs stock's libraries ($DW_STOCK) and is skipped aloud without them. */
#include "experiments/peer/runner.h"
#include "text/tokenizers.h"
#include "experiments/random_model.h"
#include "quant/quant.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static stock *peer; // the library can be opened once a process
static dw_pool *pool, *pool_of_one; // stock gets one thread: two would spin for each other on a busy machine

static bool have_stock(void) {
    static bool tried;
    dw_err err = {0};
    if (!tried) {
        peer = stock_open(NULL, &err);
        if (!pool) pool = dw_pool_new(2, &err);
        pool_of_one = dw_pool_new(1, &err);
        if (!peer && getenv("DW_STOCK")) printf("%s\n", err.text);
    }
    tried = true;
    return peer && pool && pool_of_one;
}

/* Perplexities are computed in children that open the libraries themselves; so those cases come first. */
#define NEED_FOLDER() do { if (!getenv("DW_STOCK")) SKIP("$DW_STOCK names no folder with libllama*.so"); } while (0)
#define NEED_STOCK() do { if (!have_stock()) SKIP("$DW_STOCK names no folder with libllama*.so"); } while (0)

static int write_shape(const char *path, const exp_shape *shape, const char *type, dw_err *err) {
    const exp_random_options o = {.shape = shape, .type = dw_qtype_by_name(type), .seed = 1, .pool = pool};
    dw_gguf_writer *w = dw_gguf_writer_new(path, err);
    int rc = w ? exp_random_write(w, &o, err) : -1;
    if (!rc) rc = dw_gguf_commit(w, err);
    dw_gguf_writer_free(w);
    return rc;
}

static int write_model(const char *path, const char *shape, const char *type, dw_err *err) {
    return write_shape(path, exp_shape_find(shape), type, err);
}

static exp_program *open_program(bool of_stock, const char *path, dw_err *err) {
    const exp_program_options o = {.stock = of_stock ? peer : NULL,
                                   .flash = STOCK_FLASH_OFF,
                                   .pool = of_stock ? pool_of_one : pool,
                                   .n_ctx = 128,
                                   .n_seq = 2,
                                   .n_batch = 128,
                                   .kv_f32 = true,
                                   .backend = "ref"};
    return exp_program_open(path, &o, err);
}

/* Normalized mean square difference of the logits of 48 tokens in one batch; 1e30 after an error. */
static double logits_nmse(const char *path, dw_err *err) {
    enum { N = 48 };
    double nmse = 1e30;
    exp_program *ours = open_program(false, path, err), *theirs = ours ? open_program(true, path, err) : NULL;
    int32_t token[N];
    if (!theirs) goto done;
    const int n_vocab = exp_program_n_vocab(theirs);
    for (int i = 0; i < N; i++) token[i] = (int32_t)((i * 7919 + 300) % n_vocab);
    const stock_tokens all = {token, N, 1, 0, N};
    if (exp_program_n_vocab(ours) != n_vocab || exp_program_eval(ours, &all, err) ||
        exp_program_eval(theirs, &all, err))
        goto done;
    double difference = 0, square = 0;
    for (int i = 0; i < N; i++) {
        const float *a = exp_program_logits(ours, i, err), *b = exp_program_logits(theirs, i, err);
        if (!a || !b) goto done;
        for (int v = 0; v < n_vocab; v++) {
            difference += ((double)a[v] - b[v]) * ((double)a[v] - b[v]);
            square += (double)b[v] * b[v];
        }
    }
    nmse = difference / square;
done:
    exp_program_close(ours);
    exp_program_close(theirs);
    return nmse;
}

static double nmse_of(const float *a, const float *b, int n) {
    double difference = 0, square = 0;
    for (int i = 0; i < n; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        square += (double)b[i] * b[i];
    }
    return difference / square;
}

/* What versus --depth --sequences times: 20 tokens of two sequences stay in the cache while the next ones are evaluated
 * again and again.  logits (2, n_vocab): of token 23 of each; false after an error. */
static bool deep_logits(exp_program *program, const int32_t *ids, float *logits, dw_err *err) {
    enum { DEPTH = 20 };
    int32_t token[2 * DEPTH];
    const int n_vocab = exp_program_n_vocab(program);
    for (int i = 0; i < 2 * DEPTH; i++) token[i] = ids[i / DEPTH * 100 + i % DEPTH];
    if (exp_program_eval(program, &(stock_tokens){token, DEPTH, 2, 0, 1}, err)) return false;
    for (int lap = 0; lap < 2; lap++)
        for (int pos = DEPTH; pos < DEPTH + 4; pos++)
            if (exp_program_eval(program, &(stock_tokens){(int32_t[]){ids[pos], ids[100 + pos]}, 1, 2, pos, 1}, err))
                return false;
    for (int k = 0; k < 2; k++) {
        const float *row = exp_program_logits(program, k, err);
        if (!row) return false;
        memcpy(logits + k * n_vocab, row, (size_t)n_vocab * sizeof *row);
    }
    return true;
}

/* What versus reads beside its laps. */
static void reads_weights(void) {
    dw_err err = {0};
    const char *path = test_path(test_folder(), "m.gguf");
    if (!pool) pool = dw_pool_new(2, &err);
    REQUIRE(pool && !write_model(path, "tiny-qwen2", "Q4_0", &err), "%s", err.text);
    exp_program *program = open_program(false, path, &err);
    REQUIRE(program, "%s", err.text);
    for (int i = 0; i < 3; i++) {
        const double gb_s = exp_program_read(program);
        CHECK(gb_s > 0 && gb_s < 1e5, "%g GB/s", gb_s);
    }
    exp_program_close(program);
}

/* Both programs at a depth, against each sequence whole and alone. */
static void at_a_depth(void) {
    NEED_STOCK();
    dw_err err = {0};
    const char *path = test_path(test_folder(), "m.gguf");
    REQUIRE(!write_model(path, "tiny-qwen2", "F32", &err), "%s", err.text);
    for (int of_stock = 0; of_stock < 2; of_stock++) {
        exp_program *program = open_program(of_stock, path, &err);
        REQUIRE(program, "%s", err.text);
        const int n_vocab = exp_program_n_vocab(program);
        int32_t ids[200];
        for (int i = 0; i < 200; i++) ids[i] = (int32_t)((i * 7919 + 300) % n_vocab);
        float *deep = malloc(2 * (size_t)n_vocab * sizeof *deep);
        CHECK(deep_logits(program, ids, deep, &err), "%s", err.text);
        for (int k = 0; k < 2; k++) {
            CHECK(!exp_program_eval(program, &(stock_tokens){ids + 100 * k, 24, 1, 0, 1}, &err), "%s", err.text);
            const float *alone = exp_program_logits(program, 0, &err);
            const double nmse = alone ? nmse_of(deep + k * n_vocab, alone, n_vocab) : 1;
            CHECK(nmse <= 1e-6, "%s, sequence %d: NMSE %.1e %s", of_stock ? "stock" : "this engine", k, nmse, err.text);
        }
        CHECK(!of_stock || (!exp_program_logits(program, 1, &err) &&
                            strstr(err.text, "upstream has no logits of row 1")),
              "a row whose logits were not kept: %s", err.text);
        free(deep);
        exp_program_close(program);
    }
}

static void every_architecture(void) {
    NEED_STOCK();
    for (const exp_shape *s = exp_shapes; s->name; s++) {
        dw_err err = {0};
        const char *path = test_path(test_folder(), "m.gguf");
        if (strncmp(s->name, "tiny-", 5)) continue;
        REQUIRE(!write_model(path, s->name, "F32", &err), "%s", err.text);
        const double nmse = logits_nmse(path, &err);
        CHECK(nmse <= 1e-6, "%s: NMSE %.3g %s", s->name, nmse, err.text);
    }
}

/* Stock rounds activations to 8 bits (F16 and BF16 files: to that type), of K types with one scale for 256 of them; the
 * bounds are what that costs. */
static double bound_of(const dw_qtype_row *t) {
    return t->id == DW_F32 ? 1e-6 : t->block == 1 ? 1e-4 : t->block == 32 ? 1e-3 : 3e-3;
}

static void every_type(void) {
    NEED_STOCK();
    for (const dw_qtype_row *t = dw_qtypes; t->name; t++) {
        if (!t->encode) continue;
        dw_err err = {0};
        const char *path = test_path(test_folder(), "m.gguf");
        REQUIRE(!write_model(path, t->block == 256 ? "mini" : "tiny-qwen2", t->name, &err), "%s", err.text);
        const double nmse = logits_nmse(path, &err);
        CHECK(nmse <= bound_of(t), "%s: NMSE %.3g %s", t->name, nmse, err.text);
    }
}

/* ---- perplexity of trained models, as llama-perplexity counts it, on the evaluation texts ------------------------ */

enum { N_CTX = 512, N_SCORED = N_CTX - 1 - N_CTX / 2 };

static const char *const texts[] = {"english", "german", "spanish", "code", "math"};

typedef struct windows { // of all texts, one behind the other
    int32_t *ids;
    int n;
} windows;

/* The first `most` windows of each text, as the model's own tokenizer makes them. */
static int take_windows(windows *all, const char *path, int most, dw_err *err) {
    dw_model *m = dw_model_open(path, err);
    dw_tokenizer *tok = m ? dw_tokenizer_open(dw_model_gguf(m), err) : NULL;
    int rc = tok ? 0 : -1;
    for (size_t i = 0; !rc && i < sizeof texts / sizeof *texts; i++) {
        char name[64];
        size_t size, n_ids = 0;
        int32_t *ids = NULL;
        snprintf(name, sizeof name, "experiments/texts/eval/%s.txt", texts[i]);
        char *text = dw_read_file(name, 1 << 20, &size, err);
        rc = text ? dw_tokenize(tok, text, size, DW_ADD_SPECIAL, &ids, &n_ids, err) : -1;
        const int n = (int)(n_ids / N_CTX) < most ? (int)(n_ids / N_CTX) : most;
        all->ids = realloc(all->ids, (size_t)(all->n + n) * N_CTX * sizeof *ids);
        if (n) memcpy(all->ids + (size_t)all->n * N_CTX, ids, (size_t)n * N_CTX * sizeof *ids);
        all->n += n;
        free(ids);
        free(text);
    }
    dw_tokenizer_free(tok);
    dw_model_close(m);
    return rc;
}

/* ln of (our perplexity over stock's) and its standard error over windows; NAN after an error.  *nll: ours, the
 * mean. */
static double ln_ratio(const char *path, const windows *w, double *se, double *nll, dw_err *err) {
    exp_runner_options o = {
        .path = path, .n_threads = 2, .ids = w->ids, .n_ids = (size_t)w->n * N_CTX, .n_ctx = N_CTX, .bos = -1};
    o.program = (exp_program_options){.n_ctx = N_CTX, .n_batch = N_CTX, .exact = true};
    exp_runner ours = {0}, theirs = {0};
    bool ok = !exp_runner_start(&ours, &o, err);
    o.stock_folder = getenv("DW_STOCK");
    o.n_threads = 1;
    o.program.flash = STOCK_FLASH_AUTO;
    ok = ok && !exp_runner_start(&theirs, &o, err);
    double mean = 0, square = 0;
    *nll = 0;
    for (int i = 0; ok && i < w->n; i++) {
        exp_lap a, b;
        ok = !exp_runner_run(&ours, EXP_PERPLEXITY, i, 1, &a, err) &&
             !exp_runner_run(&theirs, EXP_PERPLEXITY, i, 1, &b, err);
        if (!ok) break;
        mean += (a.nll - b.nll) / w->n;
        *nll += a.nll / w->n;
        square += (a.nll - b.nll) * (a.nll - b.nll) / w->n;
    }
    exp_runner_stop(&ours);
    exp_runner_stop(&theirs);
    *se = sqrt((square - mean * mean) / (w->n - 1));
    return ok && w->n ? mean : NAN;
}

/* The types that are read.  low and high: the least and most that ln(our perplexity / stock's) may be.  Of K types
 * stock rounds activations with one scale for 256 of them, which costs it some tenths of a percent: ours may be that
 * much better, not worse. */
static const struct {
    const char *type;
    bool quick;      // not only in a long run
    bool by_convert; // else by stock's quantizer
    double low, high;
} parity[] = {
    {"F32", false, true, -0.003, 0.003},     {"F16", true, true, -0.003, 0.003},
    {"BF16", false, true, -0.003, 0.003},    {"Q8_0", false, true, -0.003, 0.003},
    {"Q4_0", true, true, -0.003, 0.003},     {"Q4_1", true, false, -0.003, 0.003},
    {"Q5_0", false, false, -0.003, 0.003},   {"Q5_1", false, false, -0.003, 0.003},
    {"IQ4_NL", false, false, -0.003, 0.003}, {"Q4_K_M", true, false, -0.01, 0.003},
    {"Q3_K_M", false, false, -0.01, 0.003},  {"Q5_K_M", false, false, -0.01, 0.003},
    {"Q6_K", false, false, -0.01, 0.003},    {"Q2_K", false, false, -0.01, 0.003},
};

static void check_parity(const char *folder, int most) {
    dw_err err = {0};
    windows w = {0};
    char f32[1024], path[1024]; // test_path's own buffers do not last
    snprintf(f32, sizeof f32, "%s/f32.gguf", test_folder());
    snprintf(path, sizeof path, "%s/quantized.gguf", test_folder());
    REQUIRE(test_run("deadwood-convert %s -o %s --type f32", folder, f32) == 0, "%s", test_run_output());
    if (!CHECK(!take_windows(&w, f32, most, &err), "%s", err.text)) goto done;
    for (size_t i = 0; i < sizeof parity / sizeof *parity; i++) {
        const char *type = parity[i].type;
        if (!parity[i].quick && !test_slow()) continue;
        const int rc = parity[i].by_convert ? test_run("deadwood-convert %s -o %s --type %s", folder, path, type)
                                            : test_run("deadwood-versus --quantize %s -m %s -o %s", type, f32, path);
        if (!CHECK(rc == 0, "%s: %s", type, test_run_output())) continue;
        double se, nll;
        const double ln = ln_ratio(path, &w, &se, &nll, &err);
        const double slack = test_slow() ? 0 : 3 * se; // the few windows of a quick run
        CHECK(ln >= parity[i].low - slack && ln <= parity[i].high + slack, "%s %s: ln ratio %+.5f +- %.5f %s", folder,
              type, ln, se, err.text);
        if (test_slow()) printf("      %s %s: ln ratio %+.5f +- %.5f over %d windows\n", folder, type, ln, se, w.n);
    }
done:
    free(w.ids);
}

static void mini_perplexity(void) {
    NEED_FOLDER();
    check_parity("experiments/mini", test_slow() ? 1000 : 1);
}

static void base_perplexity(void) {
    NEED_FOLDER();
    if (!test_slow()) SKIP("takes minutes; make test-slow runs it");
    if (!test_shared()) SKIP("the shared reference models are not here");
    char folder[1024];
    snprintf(folder, sizeof folder, "%s/reference-model/base", test_shared());
    check_parity(folder, 4);
}

/* versus --stock-model: upstream scores another file than this engine, on the same windows. */
static void another_file(void) {
    NEED_FOLDER();
    char f32[1024], small[1024], other[1024], *field;
    snprintf(f32, sizeof f32, "%s/f32.gguf", test_folder());
    snprintf(small, sizeof small, "%s/small.gguf", test_folder());
    snprintf(other, sizeof other, "%s/other.gguf", test_folder());
    REQUIRE(!test_run("deadwood-convert experiments/mini -o %s --type f32", f32), "%s", test_run_output());
    REQUIRE(!test_run("deadwood-versus --quantize IQ3_S -m %s -o %s", f32, small), "%s", test_run_output());
    const char *text = "-f experiments/texts/eval/english.txt --windows 1 -q";
    REQUIRE(!test_run("deadwood-versus --ppl -m %s --stock-model %s %s | cut -f 2,7,8", f32, small, text), "%s",
            test_run_output());
    const char *row = strchr(test_run_output(), '\n');
    REQUIRE(row && !strncmp(row + 1, "small.gguf\t", 11), "%s", test_run_output());
    const double own = strtod(row + 12, &field), theirs = strtod(field, NULL);
    CHECK(own > 1 && theirs > 1.01 * own && theirs < 1.5 * own, "32 bits: %.3f, 3 bits of upstream: %.3f", own, theirs);

    REQUIRE(!test_run("deadwood-synth --shape qwen2.5-0.5b --layers 1 --type Q4_0 -o %s -q", other), "%s",
            test_run_output());
    CHECK(test_run("deadwood-versus --ppl -m %s --stock-model %s %s", f32, other, text) == 1 &&
              strstr(test_run_output(), "different vocabularies do not compare"),
          "%s", test_run_output());
    CHECK(test_run("deadwood-versus --what decode -m %s --stock-model %s", f32, small) == 2 &&
              strstr(test_run_output(), "--stock-model needs --ppl"),
          "%s", test_run_output());
}

/* ---- files of cut and requant ------------------------------------------------------------------------------------ */

typedef struct parent { // a trained model in 16 bits, its windows, and what it scores
    char path[1024];
    windows w;
    double nll;
} parent;

static bool open_parent(parent *p, int most) {
    dw_err err = {0};
    double se;
    snprintf(p->path, sizeof p->path, "%s/bf16.gguf", test_folder());
    return CHECK(!test_run("deadwood-convert experiments/mini -o %s", p->path), "%s", test_run_output()) &&
           CHECK(!take_windows(&p->w, p->path, most, &err), "%s", err.text) &&
           CHECK(!isnan(ln_ratio(p->path, &p->w, &se, &p->nll, &err)), "%s", err.text);
}

static bool has_k_blocks(const char *path) {
    dw_gguf *g = dw_gguf_open(path, NULL);
    bool has = false;
    for (size_t i = 0; g && i < dw_gguf_n_tensors(g); i++) has |= dw_gguf_tensor(g, i)->type->block == 256;
    dw_gguf_close(g);
    return has;
}

/* As in the table above; what is ten times worse than its parent may differ by 2 %. */
static void check_file(const parent *p, const char *path, const char *what) {
    dw_err err = {0};
    double se, nll;
    const double ln = ln_ratio(path, &p->w, &se, &nll, &err);
    const bool is_wreck = nll - p->nll > log(10);
    const double low = is_wreck             ? -0.02
                       : has_k_blocks(path) ? -0.01
                                            : -0.003,
                 high = is_wreck ? 0.02 : 0.003, slack = 3 * se;
    CHECK(ln >= low - slack && ln <= high + slack, "%s: perplexity %.4g, ln ratio %+.5f +- %.5f %s", what, exp(nll), ln,
          se, err.text);
    if (test_slow()) printf("      %-32s perplexity %9.3f, ln ratio %+.5f +- %.5f\n", what, exp(nll), ln, se);
}

static void requantized(void) {
    NEED_FOLDER();
    parent p = {0};
    char path[1024];
    snprintf(path, sizeof path, "%s/out.gguf", test_folder());
    if (!open_parent(&p, test_slow() ? 4 : 1)) return;
    quant_types_init();
    for (const quant_type *t = quant_types; t->name; t++) {
        if (!test_slow() && strcmp(t->name, "affine3") != 0) continue;
        CHECK(!test_run("deadwood-requant -m %s -o %s --type %s", p.path, path, t->name), "%s", test_run_output());
        check_file(&p, path, t->name);
    }
    for (const kit_mixture *m = kit_mixtures; m->name; m++) {
        char what[64];
        if (!strcmp(m->name, "Q2_K_S") || (!test_slow() && strcmp(m->name, "Q3_K_M") != 0))
            continue; // needs importances
        CHECK(!test_run("deadwood-requant -m %s -o %s --mixture %s", p.path, path, m->name), "%s", test_run_output());
        snprintf(what, sizeof what, "mixture %s", m->name);
        check_file(&p, path, what);
    }
    free(p.w.ids);
}

/* Blocks of 256 neurons that stay, in every layer or by turns. */
static const struct layout {
    const char *name, *keep[2], *options;
} layouts[] = {{"equal widths", {"0-255,512-1023", "256-1023"}, ""},
               {"unequal widths", {"0-255,512-1023", "0-1023"}, ""},
               {"padded", {"0-255,512-1023", "0-1023"}, "--pad"},
               {0}};

static const char *write_plan(const struct layout *layout, int n_layer) {
    const char *path = test_path(test_folder(), "plan.tsv");
    FILE *f = fopen(path, "w");
    fprintf(f, "# deadwood plan 1\nlayer width keep\n");
    for (int l = 0; l < n_layer; l++)
        fprintf(f, "%d %d %s\n", l, strcmp(layout->keep[l % 2], "0-1023") ? 768 : 1024, layout->keep[l % 2]);
    fclose(f);
    return path;
}

static void cut_perplexity(void) {
    NEED_FOLDER();
    parent p = {0};
    char whole[1024], path[1024];
    snprintf(whole, sizeof whole, "%s/whole.gguf", test_folder());
    snprintf(path, sizeof path, "%s/cut.gguf", test_folder());
    if (!open_parent(&p, test_slow() ? 4 : 1)) return;
    for (const dw_qtype_row *t = dw_qtypes; t->name; t++) {
        if (!test_slow() && t->id != DW_Q4_0 && t->id != DW_Q4_K) continue;
        CHECK(!test_run("deadwood-requant -m %s -o %s --type %s", p.path, whole, t->name), "%s", test_run_output());
        for (const struct layout *layout = layouts; layout->name; layout++) {
            char what[64];
            if (!test_slow() && (layout == layouts) == (t->id == DW_Q4_0)) continue;
            CHECK(!test_run("deadwood-cut -m %s -o %s -p %s %s", whole, path, write_plan(layout, 8), layout->options),
                  "%s", test_run_output());
            snprintf(what, sizeof what, "%s, %s", t->name, layout->name);
            check_file(&p, path, what);
        }
    }
    free(p.w.ids);
}

/* Models of the other architectures, of which no trained one is here. */
static const exp_shape cuttable[] = {{"llama", "llama", 4, 256, 1024, 4, 2, 64, 512, false, 10000, 256},
                                     {"qwen3", "qwen3", 4, 256, 1024, 4, 2, 64, 512, false, 10000, 256},
                                     {"qwen3, tied", "qwen3", 4, 256, 1024, 4, 2, 64, 512, true, 10000, 256},
                                     {0}};

static void cut_logits(void) {
    NEED_STOCK();
    char whole[1024], path[1024];
    snprintf(whole, sizeof whole, "%s/whole.gguf", test_folder());
    snprintf(path, sizeof path, "%s/cut.gguf", test_folder());
    for (const exp_shape *s = cuttable; s->name; s++) {
        for (const dw_qtype_row *t = dw_qtypes; t->name; t++) {
            dw_err err = {0};
            if (!test_slow() && t->id != DW_BF16 && t->id != DW_Q4_0 && t->id != DW_Q3_K) continue;
            REQUIRE(!write_shape(whole, s, t->name, &err), "%s", err.text);
            for (const struct layout *layout = layouts; layout->name; layout++) {
                const bool has_carrier = strcmp(s->name, "qwen3") != 0; // of qwen3 only where it is tied
                if (!has_carrier && !strcmp(layout->name, "unequal widths")) continue;
                CHECK(
                    !test_run("deadwood-cut -m %s -o %s -p %s %s", whole, path, write_plan(layout, 4), layout->options),
                    "%s", test_run_output());
                const double nmse = logits_nmse(path, &err);
                CHECK(nmse <= bound_of(t), "%s, %s, %s: NMSE %.3g %s", s->name, t->name, layout->name, nmse, err.text);
            }
        }
    }
}

/* ---- repaired files, and files without heads --------------------------------------------------------------------- */

/* On mini: what rank and cut get, after statistics of the first windows of two texts. */
static const struct repaired {
    const char *name, *rank, *cut, *arch;
    bool quick;
} repaired[] = {{"repaired, equal widths", "--metric obs --rate 0.25", "--repair lsq -s %s", "qwen2", true},
                {"repaired, unequal widths", "--metric obs --rate 0.25 --allocate standardized", "--repair lsq -s %s",
                 "deci", false},
                {"repaired, padded", "--metric obs --rate 0.25 --allocate standardized", "--repair lsq --pad -s %s",
                 "qwen2", false},
                {"repaired with biases", "--metric flap --rate 0.25", "--repair bias -s %s", "deci", true},
                {"half of the heads, repaired", "--heads 0.5", "--repair lsq -s %s", "deci", false},
                {"heads by layer, repaired", "--metric obs --rate 0.25 --heads 0.25 --heads-allocate relative",
                 "--repair lsq -s %s", "deci", true},
                {0}};

static void check_repaired(const parent *p, const struct repaired *r, const char *stats) {
    char path[1024], plan[1024], options[1200];
    dw_err err = {0};
    snprintf(path, sizeof path, "%s/repaired.gguf", test_folder());
    snprintf(plan, sizeof plan, "%s/repaired.tsv", test_folder());
    snprintf(options, sizeof options, r->cut, stats);
    CHECK(!test_run("deadwood-rank -m %s -s %s -o %s -q %s", p->path, stats, plan, r->rank), "%s: %s", r->name,
          test_run_output());
    REQUIRE(!test_run("deadwood-cut -m %s -p %s -o %s -q %s", p->path, plan, path, options), "%s: %s", r->name,
            test_run_output());
    dw_model *m = dw_model_open(path, &err);
    REQUIRE(m, "%s: %s", r->name, err.text);
    CHECK(!strcmp(dw_model_hparams(m)->arch, r->arch), "%s: architecture %s", r->name, dw_model_hparams(m)->arch);
    dw_model_close(m);
    check_file(p, path, r->name);
}

static void repaired_perplexity(void) {
    NEED_FOLDER();
    parent p = {0};
    char stats[1024];
    snprintf(stats, sizeof stats, "%s/stats.h5", test_folder());
    if (!open_parent(&p, test_slow() ? 4 : 1)) return;
    REQUIRE(!test_run("deadwood-collect -m %s -f experiments/texts/calib/*.txt --gram "
                      "down+o -o %s -q", p.path, stats), "%s", test_run_output());
    for (const struct repaired *r = repaired; r->name; r++)
        if (r->quick || test_slow()) check_repaired(&p, r, stats);
    free(p.w.ids);
}

/* Heads that stay, in every layer or in some; shapes with 4 KV heads. */
static const struct { const char *arch; bool tied; } headed[] = {{"llama", false}, {"qwen2", true}, {"qwen3", true}};

static void headless_logits(void) {
    NEED_STOCK();
    char whole[1024], path[1024], plan[1024];
    snprintf(whole, sizeof whole, "%s/whole.gguf", test_folder());
    snprintf(path, sizeof path, "%s/cut.gguf", test_folder());
    snprintf(plan, sizeof plan, "%s/heads.tsv", test_folder());
    for (size_t i = 0; i < sizeof headed / sizeof *headed; i++) {
        const exp_shape s = {headed[i].arch, headed[i].arch, 4, 256, 256, 8, 4, 32, 512, headed[i].tied, 10000, 256};
        dw_err err = {0};
        REQUIRE(!write_shape(whole, &s, "F32", &err), "%s", err.text);
        for (int some = 0; some < 2; some++) {
            FILE *f = fopen(plan, "w");
            fprintf(f, "# deadwood plan 1\nlayer width keep\n");
            for (int l = 0; l < 4; l++)
                fprintf(f, l % 2 && some ? "%d 256 0-255\n" : "%d 256 0-255\nheads %d 0,%d-3\n", l, l, 2 + some);
            fclose(f);
            REQUIRE(!test_run("deadwood-cut -m %s -o %s -p %s -q", whole, path, plan), "%s", test_run_output());
            const double nmse = logits_nmse(path, &err);
            CHECK(nmse <= 1e-6, "%s, heads of %s layers: NMSE %.3g %s", s.name, some ? "some" : "all", nmse, err.text);
        }
    }
}

static const test_case cases[] = {
    {"mini in every type, by convert or by stock's quantizer, has stock's perplexity", mini_perplexity},
    {"base likewise", base_perplexity},
    {"upstream scores a file of a type that this engine lacks, beside -m", another_file},
    {"mini requantized to every type and mixture has stock's perplexity", requantized},
    {"mini cut to equal, unequal and padded widths has stock's perplexity, in every type", cut_perplexity},
    {"mini repaired, with biases and without heads has stock's perplexity", repaired_perplexity},
    {"this engine's program reads its weights at a rate", reads_weights},
    {"tokens after a depth of two sequences have the logits of each sequence alone, by both programs", at_a_depth},
    {"a random model of every architecture has stock's logits", every_architecture},
    {"a random model of every type has stock's logits", every_type},
    {"random models cut in every way have stock's logits, in every type", cut_logits},
    {"random models without some of their heads have stock's logits", headless_logits},
    {0},
};
TEST_MAIN(cases)
