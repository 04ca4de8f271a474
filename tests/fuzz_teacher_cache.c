/* fuzz_teacher_cache.c - any bytes as a teacher's predictions: refused with a sentence, or predictions that make sense.
 *
 * The bytes are tried as they are, and with a right identity and a right hash at the end. */
#include "prune/teacher_cache.h"
#include "tests/scratch.h"

#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const teacher_cache_shape shape = {.n_steps = 2, .step_tokens = 3, .n_vocab = 70, .n_ctx = 3, .n_windows = 1};

static void check_token(const dw_coarse_teacher *c, int t) {
    for (int i = 0; i < c->k; i++) {
        if (c->token[t * c->k + i] < 0 || c->token[t * c->k + i] >= shape.n_vocab) abort();
        if (!(c->logprob[t * c->k + i] <= 0) || !isfinite(c->logprob[t * c->k + i])) abort();
    }
    if (!(c->rest[t] <= 0) || !isfinite(c->rest[t])) abort();
}

static void load(const uint8_t *data, size_t size) {
    static const uint8_t identity[32];
    dw_err err = {0};
    teacher_cache *c = teacher_cache_new(scratch_file(data, size), identity, &shape, &err);
    if (!c != !!err.text[0]) abort(); // a sentence exactly when it failed
    for (uint64_t step = 1; c && step <= shape.n_steps; step++) {
        err.text[0] = 0;
        const int rc = teacher_cache_read(c, step, 0, 1, &err);
        if (!!rc != !!err.text[0]) abort();
        for (int t = 0; !rc && t < shape.n_ctx; t++) check_token(teacher_cache_coarse(c), t);
    }
    teacher_cache_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    load(data, size);
    uint8_t *file = scratch_resealed(data, size);
    if (file) load(file, size);
    free(file);
    return 0;
}
