/* test_stock.c - this engine beside stock llama.cpp: equal logits, equal perplexity, files that load there.
 *
 * Needs stock's libraries ($DW_STOCK) and is skipped aloud without them. */
#include "experiments/contest.h"
#include "experiments/random_model.h"
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
        pool = dw_pool_new(2, &err);
        pool_of_one = dw_pool_new(1, &err);
        if (!peer && getenv("DW_STOCK")) printf("%s\n", err.text);
    }
    tried = true;
    return peer && pool && pool_of_one;
}

/* Perplexities are computed in children that open the libraries themselves; so those cases come first. */
#define NEED_FOLDER() do { if (!getenv("DW_STOCK")) SKIP("$DW_STOCK names no folder with libllama*.so"); } while (0)
#define NEED_STOCK() do { if (!have_stock()) SKIP("$DW_STOCK names no folder with libllama*.so"); } while (0)

static int write_model(const char *path, const char *shape, const char *type, dw_err *err) {
    const exp_random_options o = {.shape = exp_shape_find(shape), .type = dw_qtype_by_name(type), .seed = 1, .pool = pool};
    dw_gguf_writer *w = dw_gguf_writer_new(path, err);
    const int rc = !w || exp_random_write(w, &o, err) || dw_gguf_commit(w, err) ? -1 : 0;
    dw_gguf_writer_free(w);
    return rc;
}

static exp_side *open_side(bool of_stock, const char *path, dw_err *err) {
    const exp_side_options o = {.stock = of_stock ? peer : NULL, .flash = STOCK_FLASH_OFF, .pool = of_stock ? pool_of_one : pool, .n_ctx = 128, .n_batch = 128,
                                .kv_f32 = true, .backend = "ref"};
    return exp_side_open(path, &o, err);
}

/* Normalized mean square difference of the logits of 48 tokens in one batch; 1e30 after an error. */
static double logits_nmse(const char *path, dw_err *err) {
    enum { N = 48 };
    double nmse = 1e30;
    exp_side *ours = open_side(false, path, err), *theirs = ours ? open_side(true, path, err) : NULL;
    int32_t token[N];
    if (!theirs) goto done;
    const int n_vocab = exp_side_n_vocab(theirs);
    for (int i = 0; i < N; i++) token[i] = (int32_t)((i * 7919 + 300) % n_vocab);
    if (exp_side_n_vocab(ours) != n_vocab || exp_side_eval(ours, token, N, 0, N, err) || exp_side_eval(theirs, token, N, 0, N, err))
        goto done;
    double difference = 0, square = 0;
    for (int i = 0; i < N; i++) {
        const float *a = exp_side_logits(ours, i, err), *b = exp_side_logits(theirs, i, err);
        if (!a || !b) goto done;
        for (int v = 0; v < n_vocab; v++) {
            difference += ((double)a[v] - b[v]) * ((double)a[v] - b[v]);
            square += (double)b[v] * b[v];
        }
    }
    nmse = difference / square;
done:
    exp_side_close(ours);
    exp_side_close(theirs);
    return nmse;
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
static void every_type(void) {
    NEED_STOCK();
    for (const dw_qtype_row *t = dw_qtypes; t->name; t++) {
        dw_err err = {0};
        const char *path = test_path(test_folder(), "m.gguf");
        REQUIRE(!write_model(path, t->block == 256 ? "mini" : "tiny-qwen2", t->name, &err), "%s", err.text);
        const double nmse = logits_nmse(path, &err), bound = t->id == DW_F32 ? 1e-6 : t->block == 1 ? 1e-4 : t->block == 32 ? 1e-3 : 3e-3;
        CHECK(nmse <= bound, "%s: NMSE %.3g %s", t->name, nmse, err.text);
    }
}

/* ---- perplexity of trained models, as llama-perplexity counts it, on the evaluation texts --------------------------- */

enum { N_CTX = 512, N_SCORED = N_CTX - 1 - N_CTX / 2 };

static const char *const texts[] = {"english", "german", "spanish", "code", "math"};

typedef struct windows { // of all texts, one behind the other
    int32_t *ids;
    int n;
} windows;

/* The first `most` windows of each text, as the model's own tokenizer makes them. */
static int take_windows(windows *all, const char *path, int most, dw_err *err) {
    dw_model *m = dw_model_open(path, err);
    int rc = m ? dw_model_need_tokenizer(m, err) : -1;
    for (size_t i = 0; !rc && i < sizeof texts / sizeof *texts; i++) {
        char name[64];
        size_t size, n_ids = 0;
        int32_t *ids = NULL;
        snprintf(name, sizeof name, "experiments/texts/eval/%s.txt", texts[i]);
        char *text = dw_read_file(name, 1 << 20, &size, err);
        rc = text ? dw_tokenize(dw_model_tokenizer(m), text, size, DW_ADD_SPECIAL, &ids, &n_ids, err) : -1;
        const int n = (int)(n_ids / N_CTX) < most ? (int)(n_ids / N_CTX) : most;
        all->ids = realloc(all->ids, (size_t)(all->n + n) * N_CTX * sizeof *ids);
        if (n) memcpy(all->ids + (size_t)all->n * N_CTX, ids, (size_t)n * N_CTX * sizeof *ids);
        all->n += n;
        free(ids);
        free(text);
    }
    dw_model_close(m);
    return rc;
}

/* ln of (our perplexity over stock's) and its standard error over windows; NAN after an error. */
static double ln_ratio(const char *path, const windows *w, double *se, dw_err *err) {
    exp_contestant_options o = {.path = path, .n_threads = 2, .ids = w->ids, .n_ids = (size_t)w->n * N_CTX, .n_ctx = N_CTX, .bos = -1};
    o.side = (exp_side_options){.n_ctx = N_CTX, .n_batch = N_CTX, .exact = true};
    exp_contestant ours = {0}, theirs = {0};
    bool ok = !exp_contestant_start(&ours, &o, err);
    o.stock_folder = getenv("DW_STOCK");
    o.n_threads = 1;
    o.side.flash = STOCK_FLASH_AUTO;
    ok = ok && !exp_contestant_start(&theirs, &o, err);
    double mean = 0, square = 0;
    for (int i = 0; ok && i < w->n; i++) {
        exp_lap a, b;
        ok = !exp_contestant_run(&ours, EXP_PERPLEXITY, i, 1, &a, err) && !exp_contestant_run(&theirs, EXP_PERPLEXITY, i, 1, &b, err);
        if (!ok) break;
        mean += (a.nll - b.nll) / w->n;
        square += (a.nll - b.nll) * (a.nll - b.nll) / w->n;
    }
    exp_contestant_stop(&ours);
    exp_contestant_stop(&theirs);
    *se = sqrt((square - mean * mean) / (w->n - 1));
    return ok && w->n ? mean : NAN;
}

/* The types that are read.  low and high: the least and most that ln(our perplexity / stock's) may be.  Of K types stock
 * rounds activations with one scale for 256 of them, which costs it some tenths of a percent: ours may be that much
 * better, not worse. */
static const struct {
    const char *type;
    bool quick;      // not only in a long run
    bool by_convert; // else by stock's quantizer
    double low, high;
} parity[] = {
    {"F32", false, true, -0.003, 0.003},    {"F16", true, true, -0.003, 0.003},     {"BF16", false, true, -0.003, 0.003},
    {"Q8_0", false, true, -0.003, 0.003},   {"Q4_0", true, true, -0.003, 0.003},    {"Q4_1", true, false, -0.003, 0.003},
    {"Q5_0", false, false, -0.003, 0.003},  {"Q5_1", false, false, -0.003, 0.003},  {"IQ4_NL", false, false, -0.003, 0.003},
    {"Q4_K_M", true, false, -0.01, 0.003},  {"Q3_K_M", false, false, -0.01, 0.003}, {"Q5_K_M", false, false, -0.01, 0.003},
    {"Q6_K", false, false, -0.01, 0.003},   {"Q2_K", false, false, -0.01, 0.003},
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
        double se;
        const double ln = ln_ratio(path, &w, &se, &err);
        const double slack = test_slow() ? 0 : 3 * se; // the few windows of a quick run
        CHECK(ln >= parity[i].low - slack && ln <= parity[i].high + slack, "%s %s: ln ratio %+.5f +- %.5f %s", folder, type, ln, se, err.text);
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

static const test_case cases[] = {
    {"mini in every type, by convert or by stock's quantizer, has stock's perplexity", mini_perplexity},
    {"base likewise", base_perplexity},
    {"a random model of every architecture has stock's logits", every_architecture},
    {"a random model of every type has stock's logits", every_type},
    {0},
};
TEST_MAIN(cases)
