/* test_safetensors.c - the safetensors reader: valid files, every truncation, holes and lies. */
#include "formats/internal.h"
#include "tests/build.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

static void reference_model(void) {
    const char *shared = test_shared();
    if (!shared) SKIP("DW_SHARED is not set");
    dw_err err = {0};
    dw_safetensors *st = dw_safetensors_open(test_path(shared, "reference-model/mini"), &err);
    REQUIRE(st, "%s", err.text);
    const dw_st_tensor *t = dw_safetensors_find(st, "model.embed_tokens.weight");
    CHECK(t && t->n_dims == 2 && dw_safetensors_count(st) > 10);
    dw_safetensors_close(st);
}

static const test_case cases[] = {
    {"the reference model opens", reference_model},
    {0},
};
TEST_MAIN(cases)
