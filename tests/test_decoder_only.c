/* test_decoder_only.c - a number type is one row and a decoder: it then runs on every level, in passes of few and of
 * many tokens, dense and gated.
 *
 * The files that hold tables of types are compiled here again, with one row more: TWIN has the layout of Q8_0 under
 * another number, and no kernel, encoder or mention anywhere else.  A model file whose Q8_0 tensors are renamed to
 * TWIN must give what the model itself gives. */
#define DW_TEST_QTYPES(X) X(TWIN, 63, 32, 34, 1063, twin, DECODER)
#include "qtypes/qtypes.c"
#include "backends/kernels_axpy.c"
#include "backends/kernels_dot.c"

#include "build.h"
#include "engine.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>

enum { N = 20 };

void dw_decode_twin(const void *src, float *dst, size_t n) { dw_decode_q8_0(src, dst, n); }

/* ---- the file ------------------------------------------------------------------------------------------------ */

/* A copy of a GGUF file whose Q8_0 tensors say that they are TWIN. */
static const char *renamed(const char *path, const char *name) {
    const char *copy = test_path(test_folder(), name);
    dw_err err = {0};
    size_t size = 0;
    int n_renamed = 0;
    dw_model *m = dw_model_open(path, &err);
    test_bytes b = {.data = (uint8_t *)dw_read_file(path, 1 << 30, &size, &err)};
    b.size = size;
    if (!CHECK(m && b.data, "%s", err.text)) return NULL;
    const dw_gguf *g = dw_model_gguf(m);
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        if (t->type->id != DW_Q8_0) continue;
        test_bytes head = {0};
        put_str(&head, t->name); // then u32 n_dims, u64 ne[n_dims], u32 type
        uint8_t *at = memmem(b.data, size, head.data, head.size);
        at += head.size + 4 + 8 * (size_t)t->n_dims;
        free(head.data);
        n_renamed += dw_le32(at) == DW_Q8_0;
        *at = DW_TWIN;
    }
    CHECK(n_renamed >= 8, "%d tensors", n_renamed);
    dw_model_close(m);
    save(&b, copy);
    free(b.data);
    return copy;
}

/* ---- runs ---------------------------------------------------------------------------------------------------- */

typedef struct way {
    const char *backend;
    int step; // tokens of a pass
    bool exact;
} way;

/* Logits (N, n_vocab); free() them. */
static float *logits_of(const char *path, way how, size_t *n_logits) {
    dw_err err = {0};
    dw_session_options o = {.pool = two_threads(), .n_ctx = 64, .n_batch = 32, .n_out = N, .kv = DW_KV_CACHE_F32,
                            .backend = how.backend, .exact = how.exact};
    dw_model *m = dw_model_open(path, &err);
    dw_session *s = m ? dw_session_new(m, &o, &err) : NULL;
    float *logits = NULL;
    if (CHECK(s, "%s", err.text)) {
        const int n_vocab = dw_model_hparams(m)->n_vocab;
        int32_t token[N];
        uint8_t out[N];
        memset(out, 1, sizeof out);
        random_tokens(token, N, n_vocab, 5);
        *n_logits = (size_t)N * (size_t)n_vocab;
        logits = calloc(*n_logits, sizeof *logits);
        for (int i = 0; i < N; i += how.step) {
            const int n = N - i < how.step ? N - i : how.step;
            const dw_batch batch = {.n_tokens = n, .token = token + i, .out = out};
            CHECK(!dw_session_eval(s, &batch, &err) &&
                      !dw_session_logits(s, 0, n, logits + (size_t)i * (size_t)n_vocab, &err),
                  "%s", err.text);
        }
    }
    dw_session_free(s);
    dw_model_close(m);
    return logits;
}

/* What may be lost against ref.  AMX rounds weights and inputs to BF16, and what that costs depends on the model: as
 * much as it costs Q8_0, whose file this is. */
static double bound_of(const char *path, dw_level level, way how, const float *expected) {
    if (level != DW_AMX || how.exact) return 1e-9;
    size_t n;
    float *got = logits_of(path, how, &n);
    const double error = got ? nmse(got, expected, n) : NAN;
    free(got);
    return 1.5 * error + 1e-9;
}

/* The twin's logits on every level and in passes of any size, beside those of Q8_0 by ref. */
static void check_twin(const char *path, const char *name, bool gated) {
    size_t n = 0, n_ref = 0;
    const char *twin = renamed(path, name);
    if (!twin) return;
    float *expected = logits_of(path, (way){"ref", N, false}, &n),
          *ref = logits_of(twin, (way){"ref", N, false}, &n_ref);
    REQUIRE(expected && ref);
    CHECK(n == n_ref && !memcmp(expected, ref, n * sizeof *ref), "ref decodes the same values");
    for (dw_level l = 0; l < DW_N_LEVELS; l++) {
        if (!dw_level_usable(l)) continue;
        setenv("DEADWOOD_CPU", dw_level_names[l], 1);
        for (int step = 1; step <= N; step += step < 4 ? 3 : 16)
            for (int exact = 0; exact < 2; exact++) {
                const way how = {"cpu", step, exact};
                float *got = logits_of(twin, how, &n);
                const double error = got ? nmse(got, expected, n) : NAN, bound = bound_of(path, l, how, expected);
                CHECK(error <= bound, "%s%s, %d tokens a pass%s: %.3g, allowed %.3g", dw_level_names[l],
                      gated ? " gated" : "", step, exact ? ", exact" : "", error, bound);
                free(got);
            }
    }
    unsetenv("DEADWOOD_CPU");
    free(expected), free(ref);
}

static void dense_model(void) { check_twin(random_model("tiny-llama", "Q8_0", 0), "twin.gguf", false); }

static void gated_model(void) {
    static const float threshold[] = {0.15f, 0.2f, 0.25f, 0.2f}; // about half of the neurons are open
    const char *path = test_path(test_folder(), "gated.gguf");
    write_gated(random_model("tiny-llama", "Q8_0", 0), path, &(gated_file){.group = 1, .threshold = threshold});
    check_twin(path, "gated-twin.gguf", true);
}

static void no_encoder(void) {
    const dw_qtype_row *t = dw_qtype_by_name("twin");
    CHECK(t == dw_qtype_get(63) && t->decode && !t->encode);
    for (const dw_qtype_name *e = dw_encodable_names; e->name; e++) CHECK(strcmp(e->name, "TWIN") != 0);
    for (dw_level l = 0; l < DW_N_LEVELS; l++) {
        CHECK(!dw_dot_kernels[l][DW_TWIN].rows && !dw_axpy_kernels[l][DW_TWIN].rows);
        CHECK(dw_dot_find(l, (dw_row_kind){DW_TWIN, 256, false})->rows && dw_axpy_find(l, DW_TWIN)->rows, "%s",
              dw_level_names[l]);
    }
}

static const test_case cases[] = {
    {"a type is a row with a decoder; it is found at every level and not offered for encoding", no_encoder},
    {"a type without kernels runs on every level, in passes of few and of many tokens", dense_model},
    {"a type without kernels runs in gated layers", gated_model},
    {0},
};
TEST_MAIN(cases)
