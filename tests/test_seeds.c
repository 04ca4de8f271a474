/* test_seeds.c - files of tests/seeds that other programs wrote from the documented layout: they are read as they are,
 * and refused when a value in them makes no sense although every hash is right. */
#include "kit/gram.h"
#include "prune/teacher_cache.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD_AT = 64, HASH_AT = 24, N_CTX_AT = 64 + 96, BACKEND_AT = 64 + 64 }; // of gram.h
enum { KIND_AT = 64 + 112 + 208 + 16 + 4 }; // of the second matrix of gram-gradient.gram
enum {
    SECONDS_AT = 64,
    HELD_OUT_AT = 80,
    BEST_STEP_AT = 96,
    BEST_AT = 104,
    RESERVE_AT = 120,
    N_VALUES = 5
}; // of distil.h

static void put_hash(const uint8_t *data, size_t n, uint8_t *to) {
    dw_sha256 h;
    dw_sha256_begin(&h);
    dw_sha256_add(&h, data, n);
    dw_sha256_end(&h, to);
}

static const char *written(const uint8_t *bytes, size_t n) {
    FILE *f = fopen(test_file("changed"), "wb");
    CHECK(f && fwrite(bytes, 1, n, f) == n && !fclose(f));
    return test_file("changed");
}

static uint8_t *seed(const char *path, size_t *n) {
    dw_err err = {0};
    uint8_t *bytes = (uint8_t *)dw_read_file(path, 4096, n, &err);
    if (!CHECK(bytes, "%s", err.text)) exit(1);
    return bytes;
}

/* ---- Gram matrices ------------------------------------------------------------------------------------------ */

static void gram_is_read(void) {
    kit_gram g;
    dw_err err = {0};
    double n_tokens;
    if (!CHECK(!kit_gram_open(&g, "tests/seeds/gram-sample.gram", &err), "%s", err.text)) return;
    const kit_gram_matrix *m = kit_gram_find(&g, 0, KIT_STATS_FFN_NEURON, &n_tokens, &err);
    CHECK(m && m->n == 3 && n_tokens == 768, "%s", err.text);
    for (int i = 0; m && i < 6; i++) CHECK(m->sum[i] == 1.5 * (i + 1)); // 1.5 k + layer, row after row
    CHECK(m && kit_gram_at(m, 1, 2) == 7.5 && kit_gram_at(m, 2, 1) == 7.5);
    CHECK(g.n_ctx == 256 && g.skip == 0 && !strcmp(g.text[1].name, "two.txt") && g.text[1].first_window == 3);
    CHECK(!kit_gram_find(&g, 1, KIT_STATS_ATTN_MIX, &n_tokens, &err) && strstr(err.text, "collect --gram"));
    kit_gram_close(&g);
}

/* With the covariance of the gradient by an FFN's output. */
static void gradient_is_read(void) {
    kit_gram g;
    dw_err err = {0};
    double n_tokens;
    if (!CHECK(!kit_gram_open(&g, "tests/seeds/gram-gradient.gram", &err), "%s", err.text)) return;
    const kit_gram_matrix *m = kit_gram_find(&g, 0, KIT_GRAM_GRADIENT, &n_tokens, &err);
    CHECK(m && m->n == 2 && n_tokens == 512 && kit_gram_at(m, 1, 0) == 0.5 && kit_gram_at(m, 1, 1) == 0.75, "%s",
          err.text);
    CHECK(kit_gram_has(&g, KIT_STATS_FFN_NEURON) && !kit_gram_has(&g, KIT_STATS_FFN_IN));
    CHECK(!kit_gram_find(&g, 1, KIT_GRAM_GRADIENT, &n_tokens, &err) && strstr(err.text, "collect --gradients"));
    kit_gram_close(&g);
}

static void refuse_byte(const char *path, size_t at, uint8_t byte, const char *words) {
    size_t n;
    dw_err err = {0};
    kit_gram g;
    uint8_t *bytes = seed(path, &n);
    bytes[at] = byte;
    put_hash(bytes + HEAD_AT, dw_le64(bytes + 16), bytes + HASH_AT);
    CHECK(kit_gram_open(&g, written(bytes, n), &err) && strstr(err.text, words), "byte %zu: %s", at, err.text);
    free(bytes);
}

static void refuse_gram(size_t at, uint8_t byte) {
    refuse_byte("tests/seeds/gram-sample.gram", at, byte, "makes no sense");
}

static void gram_without_sense(void) {
    refuse_gram(N_CTX_AT + 3, 0x80); // a negative number of tokens
    refuse_gram(N_CTX_AT + 7, 0x80); // and of skipped ones
    refuse_gram(BACKEND_AT, 0xff);   // a name that is no UTF-8
    refuse_gram(HEAD_AT, 'G');       // a hash that is none
    refuse_byte("tests/seeds/gram-gradient.gram", KIND_AT, 5, "lists matrices that make no sense");
}

/* ---- a checkpoint of heal ------------------------------------------------------------------------------------ */

static int load(const char *path, distil *d, dw_err *err) {
    static const uint8_t identity[32];
    static float value[N_VALUES], mean[N_VALUES], square[N_VALUES], best[N_VALUES];
    *err = (dw_err){0};
    *d = (distil){.p = {.n_values = N_VALUES, .value = value, .mean = mean, .square = square}, .best = best};
    return distil_load(d, path, identity, err);
}

static void read_checkpoint(const char *path, double reserve) {
    dw_err err;
    distil d;
    CHECK(load(path, &d, &err) == 1, "%s", err.text);
    const schedule *p = &d.plan;
    CHECK(p->reserve == reserve, "%g s are reserved", p->reserve);
    CHECK(p->steps == 7 && p->seconds == 12.5 && p->longest == 1.5 && d.first_held_out == 3.25);
    CHECK(p->n_measured == 6 && p->best_step == 5 && p->best == 2.75 && p->n_worse == 1);
    CHECK(d.p.value[1] == -0.2f && d.p.mean[4] == 1e-3f && d.p.square[0] == 1e-6f && d.best[2] == -0.5f);
}

/* Version 2 does not say what the last measurement needs. */
static void checkpoint_is_read(void) {
    read_checkpoint("tests/seeds/heal-sample.checkpoint", 0);
    read_checkpoint("tests/seeds/heal-3-sample.checkpoint", 4.25);
}

/* The new checkpoint holds all that an old one did, and the reserve. */
static void checkpoint_is_written(void) {
    static const uint8_t identity[32];
    dw_err err;
    distil d;
    REQUIRE(load("tests/seeds/heal-sample.checkpoint", &d, &err) == 1, "%s", err.text);
    d.plan.reserve = 4.25;
    CHECK(!distil_save(&d, test_file("new.checkpoint"), identity, &err), "%s", err.text);
    CHECK(!test_run("cmp %s tests/seeds/heal-3-sample.checkpoint", test_file("new.checkpoint")), "%s",
          test_run_output());
}

static void refuse_checkpoint(size_t at, double number) {
    size_t n;
    dw_err err;
    distil d;
    uint8_t *bytes = seed("tests/seeds/heal-3-sample.checkpoint", &n);
    memcpy(bytes + at, &number, sizeof number);
    put_hash(bytes, n - 32, bytes + n - 32);
    CHECK(load(written(bytes, n), &d, &err) == -1 && strstr(err.text, "is damaged") && !d.plan.steps,
          "byte %zu, %g: %s", at, number, err.text);
    free(bytes);
}

static void checkpoint_without_sense(void) {
    refuse_checkpoint(SECONDS_AT, NAN);
    refuse_checkpoint(SECONDS_AT, INFINITY);
    refuse_checkpoint(SECONDS_AT, -1);
    refuse_checkpoint(HELD_OUT_AT, NAN);
    refuse_checkpoint(BEST_AT, NAN);
    refuse_checkpoint(RESERVE_AT, NAN);
    refuse_checkpoint(RESERVE_AT, -1);
    refuse_checkpoint(BEST_STEP_AT, 1); // a step that has not been done
}

/* ---- predictions of a teacher ---------------------------------------------------------------------------------- */

static teacher_cache *open_predictions(const char *path, dw_err *err) {
    static const uint8_t identity[32];
    *err = (dw_err){0};
    return teacher_cache_new(path, identity, &(teacher_cache_shape){2, 3, 70, 3, 1}, err);
}

static void predictions_are_read(void) {
    dw_err err;
    teacher_cache *c = open_predictions("tests/seeds/teacher-sample.cache", &err);
    if (!CHECK(c && !teacher_cache_read(c, 2, 0, 1, &err), "%s", err.text)) return;
    const dw_coarse_teacher *k = teacher_cache_coarse(c); // tokens 3 to 5 of the file
    CHECK(k->k == 64 && k->token[0] == 21 && k->token[64 + 63] == (4 * 7 + 63) % 70 && k->rest[2] == -5.5f);
    CHECK(k->logprob[0] == -1 && k->logprob[2 * 64 + 32] == -(2048 + 32) / 2048.f);
    teacher_cache_close(c);
}

/* One byte is another, and the hash is right. */
static void refuse_predictions(size_t at, uint8_t byte, const char *words) {
    size_t n;
    dw_err err;
    uint8_t *bytes = seed("tests/seeds/teacher-sample.cache", &n);
    bytes[at] = byte;
    put_hash(bytes, n - 32, bytes + n - 32);
    teacher_cache *c = open_predictions(written(bytes, n), &err);
    CHECK((!c || teacher_cache_read(c, 1, 0, 1, &err)) && strstr(err.text, words), "byte %zu: %s", at, err.text);
    teacher_cache_close(c);
    free(bytes);
}

static void predictions_without_sense(void) {
    refuse_predictions(0, 'x', "is not a file of a teacher's predictions");
    refuse_predictions(20, 1, "is of another teacher");
    refuse_predictions(48, 1, "has 1 steps, the run 2");
    refuse_predictions(48, 3, "is damaged");                                         // steps
    refuse_predictions(56 + 3, 1, "is damaged");                                     // tokens of a step
    refuse_predictions(60, 71, "is damaged");                                        // vocabulary
    refuse_predictions(72, 70, "token 0 of step 1 has a prediction that cannot be"); // an id
    refuse_predictions(72 + 64 * 4 + 3, 0x3f, "has a prediction that cannot be");    // a mass above 1
    refuse_predictions(72 + 64 * 4 + 3, 0xff, "has a prediction that cannot be");    // a mass of NaN or far too small
}

static const test_case cases[] = {
    {"Gram matrices of another writer are read", gram_is_read},
    {"covariances of gradients of another writer are read", gradient_is_read},
    {"a head of Gram matrices that makes no sense is refused", gram_without_sense},
    {"a checkpoint of another writer is read", checkpoint_is_read},
    {"a checkpoint holds what the last measurement needs", checkpoint_is_written},
    {"predictions of another writer are read", predictions_are_read},
    {"predictions that make no sense are refused", predictions_without_sense},
    {"a checkpoint whose times or losses make no sense is refused", checkpoint_without_sense},
    {0}};
TEST_MAIN(cases)
