/* test_synth.c - files with random weights: sizes, distributions, planted neurons, determinism. */
#include "experiments/random_model.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int write_model(const char *path, const char *shape, const dw_qtype_row *type, uint64_t seed, double dead,
                       int threads, dw_err *err) {
    dw_pool *pool = dw_pool_new(threads, err);
    const exp_random_options o = {
        .shape = exp_shape_find(shape), .type = type, .seed = seed, .dead = dead, .pool = pool};
    dw_gguf_writer *w = pool ? dw_gguf_writer_new(path, err) : NULL;
    int rc = w ? exp_random_write(w, &o, err) : -1;
    if (!rc) rc = dw_gguf_commit(w, err);
    dw_gguf_writer_free(w);
    dw_pool_free(pool);
    return rc;
}

static void sizes(void) {
    exp_random_options o = {.shape = exp_shape_find("qwen2.5-7b"), .type = dw_qtype_get(DW_Q4_0)};
    REQUIRE(o.shape);
    CHECK(fabs(exp_random_bytes(&o) * 1e-9 - 4.288) < 0.005, "%.4f GB", exp_random_bytes(&o) * 1e-9);
    for (const exp_shape *s = exp_shapes; s->name; s++) {
        CHECK(exp_shape_find(s->name) == s, "%s", s->name);
        CHECK(s->n_head % s->n_head_kv == 0 && s->n_layer <= 64 && s->n_vocab >= 512, "%s", s->name);
    }
    CHECK(!exp_shape_find("gpt-5"));
}

/* Mean and deviation of a matrix against 0 and 1/sqrt(inputs). */
static void check_values(const dw_tensor *t, const char *type) {
    const size_t n = dw_tensor_n_values(t);
    float *x = malloc(n * sizeof *x);
    t->type->decode(t->data, x, n);
    double sum = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        sum += x[i];
        square += (double)x[i] * x[i];
    }
    const double sigma = 1 / sqrt((double)t->ne[0]), mean = sum / (double)n,
                 deviation = sqrt(square / (double)n - mean * mean);
    CHECK(fabs(deviation / sigma - 1) < 0.05, "%s %s: deviation %g, wanted %g", type, t->name, deviation, sigma);
    CHECK(fabs(mean) < 0.02 * sigma, "%s %s: mean %g", type, t->name, mean);
    free(x);
}

static void distributions(void) {
    for (const dw_qtype_row *t = dw_qtypes; t->name; t++) {
        if (!t->encode) continue;
        dw_err err = {0};
        const char *path = test_path(test_folder(), "m.gguf");
        CHECK(!write_model(path, "mini", t, 1, 0, 2, &err), "%s: %s", t->name, err.text);
        dw_gguf *g = dw_gguf_open(path, &err);
        REQUIRE(g, "%s: %s", t->name, err.text);
        const dw_tensor *gate = dw_gguf_find_tensor(g, "blk.3.ffn_gate.weight");
        const dw_tensor *norm = dw_gguf_find_tensor(g, "blk.0.attn_norm.weight");
        if (CHECK(gate && gate->type == t && norm && norm->type->id == DW_F32, "%s", t->name))
            check_values(gate, t->name);
        dw_gguf_close(g);
    }
}

static void ragged_rows(void) { // 64 inputs are no block of 256
    dw_err err = {0};
    const char *path = test_path(test_folder(), "m.gguf");
    REQUIRE(!write_model(path, "tiny-qwen2", dw_qtype_get(DW_Q4_K), 1, 0, 1, &err), "%s", err.text);
    dw_gguf *g = dw_gguf_open(path, &err);
    REQUIRE(g, "%s", err.text);
    const dw_tensor *t = dw_gguf_find_tensor(g, "blk.0.ffn_up.weight");
    CHECK(t && t->type->id == DW_Q8_0);
    dw_gguf_close(g);
}

static void same_bytes(void) {
    char first[65] = "", other[65];
    for (int threads = 1; threads <= 3; threads++) {
        dw_err err = {0};
        const char *path = test_path(test_folder(), "m.gguf");
        REQUIRE(!write_model(path, "mini", dw_qtype_get(DW_Q5_K), 7, 0.1, threads, &err), "%s", err.text);
        REQUIRE(!dw_sha256_file(path, other, &err), "%s", err.text);
        if (threads == 1) memcpy(first, other, sizeof first);
        CHECK(!strcmp(first, other), "%d threads", threads);
    }
    dw_err err = {0};
    const char *path = test_path(test_folder(), "m.gguf");
    REQUIRE(!write_model(path, "mini", dw_qtype_get(DW_Q5_K), 8, 0.1, 2, &err), "%s", err.text);
    REQUIRE(!dw_sha256_file(path, other, &err), "%s", err.text);
    CHECK(strcmp(first, other), "another seed");
}

static bool is_zero(const dw_tensor *t, size_t row) {
    const size_t n = dw_tensor_row_bytes(t);
    for (size_t i = 0; i < n; i++)
        if (t->data[row * n + i]) return false;
    return true;
}

static void check_planted(const dw_gguf *g, double fraction) {
    const dw_kv *list = dw_gguf_find(g, "deadwood.synth.dead");
    REQUIRE(list && list->is_array && list->type == DW_KV_I32 && list->count % 2 == 0);
    size_t at = 0;
    for (int l = 0;; l++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.ffn_gate.weight", l);
        const dw_tensor *gate = dw_gguf_find_tensor(g, name);
        snprintf(name, sizeof name, "blk.%d.ffn_up.weight", l);
        const dw_tensor *up = dw_gguf_find_tensor(g, name);
        if (!gate || !up) break;
        size_t n_dead = 0;
        for (size_t j = 0; j < gate->ne[1]; j++) {
            const bool listed = at < list->count && dw_kv_number(list, at) == l &&
                                dw_kv_number(list, at + 1) == (double)j;
            CHECK(is_zero(gate, j) == listed && is_zero(up, j) == listed, "layer %d neuron %zu", l, j);
            n_dead += listed;
            at += listed ? 2 : 0;
        }
        CHECK(n_dead == (size_t)lround(fraction * (double)gate->ne[1]), "layer %d: %zu", l, n_dead);
    }
    CHECK(at == list->count, "%zu of %zu", at, list->count);
}

static void planted(void) {
    static const char *const shapes[] = {"tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-deci", "tiny-openelm"};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        dw_err err = {0};
        const char *path = test_path(test_folder(), "m.gguf");
        REQUIRE(!write_model(path, shapes[i], dw_qtype_get(DW_Q4_0), 3, 0.3, 2, &err), "%s", err.text);
        dw_gguf *g = dw_gguf_open(path, &err);
        REQUIRE(g, "%s", err.text);
        check_planted(g, 0.3);
        dw_gguf_close(g);
    }
}

static const test_case cases[] = {
    {"the named shapes have their known sizes", sizes},
    {"every type's values have mean 0 and deviation 1/sqrt(inputs)", distributions},
    {"rows that are no whole number of blocks become Q8_0", ragged_rows},
    {"one seed gives one file for any number of threads, another seed another", same_bytes},
    {"exactly the listed neurons have zero rows of gate and up", planted},
    {0},
};
TEST_MAIN(cases)
