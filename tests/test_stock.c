/* test_stock.c - this engine beside stock llama.cpp: equal logits, equal perplexity, files that load there.
 *
 * Needs stock's libraries ($DW_STOCK) and is skipped aloud without them. */
#include "experiments/random_model.h"
#include "experiments/side.h"
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

static const test_case cases[] = {
    {"a random model of every architecture has stock's logits", every_architecture},
    {"a random model of every type has stock's logits", every_type},
    {0},
};
TEST_MAIN(cases)
