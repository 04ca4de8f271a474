/* fuzz_checkpoint.c - any bytes as a checkpoint of heal: refused with a sentence, or a state that a run can go on from.
 * No bytes are no checkpoint: a killed run had the path.
 *
 * The bytes are tried as they are, and with a right identity and a right hash at the end. */
#include "prune/distil.h"
#include "tests/scratch.h"

#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N = 5 }; // values of the model

static void load(const uint8_t *data, size_t size) {
    static const uint8_t identity[32];
    float value[N] = {1}, mean[N] = {2}, square[N] = {3}, best[N] = {4};
    distil d = {.p = {.n_values = N, .value = value, .mean = mean, .square = square}, .best = best};
    dw_err err = {0};
    const int rc = distil_load(&d, scratch_file(data, size), identity, &err);
    if (size ? rc != 1 && rc != -1 : rc) abort();
    if ((rc < 0) != !!err.text[0]) abort(); // a sentence exactly when it failed
    if (rc < 1 && (value[0] != 1 || mean[0] != 2 || square[0] != 3 || best[0] != 4 || d.plan.steps))
        abort(); // and nothing is taken
    if (rc > 0 && (!(d.plan.seconds >= 0) || !isfinite(d.plan.seconds) || !isfinite(d.first_held_out))) abort();
    if (rc > 0 && (d.plan.best_step > d.plan.steps || d.plan.n_measured < 0 || d.plan.n_worse < 0)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    load(data, size);
    uint8_t *file = scratch_resealed(data, size);
    if (file) load(file, size);
    free(file);
    return 0;
}
