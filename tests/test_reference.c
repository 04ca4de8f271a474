/* test_reference.c - the engine's answers against transformers': two trained models and a tiny random one of every
 * dense architecture (reference.json, reference.safetensors; made by transformers in F32).
 *
 * In a normal run two windows a domain of mini; with DW_SLOW all of them, and base. */
#include "model/model.h"
#include "text/tokenizers.h"
#include "text/json.h"
#include "kit/safetensors.h"
#include "test.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct run { // a model open for one backend
    dw_pool *pool;
    dw_model *model;
    dw_tokenizer *tok;
    dw_session *session;
} run;

/* The oracles were computed after model.to(dtype), which rounded transformers' rotary frequencies to 16 bits as well as
 * the weights.  The same rounding here leaves a difference of 1e-12; without it, of up to 1e-5. */
static void round_frequencies(dw_model *m, const char *dtype) {
    const dw_hparams *hp = &m->net.hp;
    for (int i = 0; i < hp->head_dim / 2; i++) {
        const double exact = pow(hp->rope_base, -2.0 * i / hp->head_dim), f = exact / m->rope_factors[i];
        if (!strcmp(dtype, "torch.bfloat16"))
            m->rope_factors[i] = (float)(exact / dw_bf16_to_f32(dw_f32_to_bf16((float)f)));
        if (!strcmp(dtype, "torch.float16"))
            m->rope_factors[i] = (float)(exact / dw_f16_to_f32(dw_f32_to_f16((float)f)));
    }
}

static bool run_open(run *r, const char *gguf, const char *backend, int n_ctx, int n_batch, const char *frequencies) {
    dw_err err = {0};
    r->pool = dw_pool_new(0, &err);
    r->model = dw_model_open(gguf, &err);
    r->tok = r->model ? dw_tokenizer_open(dw_model_gguf(r->model), &err) : NULL;
    if (r->model && !r->tok) return CHECK(false, "%s", err.text);
    if (r->model && frequencies) round_frequencies(r->model, frequencies);
    const dw_session_options o = {
        .pool = r->pool, .backend = backend, .n_ctx = n_ctx, .n_batch = n_batch, .kv = DW_KV_CACHE_F32, .exact = true};
    r->session = r->model ? dw_session_new(r->model, &o, &err) : NULL;
    return CHECK(r->session, "%s", err.text);
}

static void run_close(run *r) {
    dw_session_free(r->session);
    dw_tokenizer_free(r->tok);
    dw_model_close(r->model);
    dw_pool_free(r->pool);
}

/* Converts a checkpoint folder once; the path of the GGUF, or NULL. */
static const char *converted(const char *folder, const char *type) {
    const char *slash = strrchr(folder, '/');
    char name[128];
    snprintf(name, sizeof name, "%s-%s.gguf", slash + 1, type);
    const char *path = test_path(test_folder(), name);
    if (access(path, R_OK) == 0) return path;
    const int rc = test_run("deadwood-convert %s -o %s --type %s", folder, path, type);
    return CHECK(rc == 0, "%s", test_run_output()) ? path : NULL;
}

static json_t *reference(const char *folder) {
    dw_err err = {0};
    json_t *r = dw_json_load(test_path(folder, "reference.json"), 64 << 20, DW_JSON_LARGE_TREE, &err);
    CHECK(r, "%s", err.text);
    return r;
}

/* ---- mean negative log-likelihood by llama.cpp's protocol: windows of 512, positions 256..510 predict 257..511 --- */

enum { WINDOW = 512, FIRST = 256, SCORED = 255 };

static double window_nll(run *r, const int32_t *ids) {
    dw_err err = {0};
    uint8_t out[WINDOW] = {0};
    double logprob[SCORED], sum = 0;
    memset(out + FIRST, 1, SCORED);
    dw_session_rewind(r->session, 0, 0);
    if (dw_session_eval(r->session, &(dw_batch){.n_tokens = WINDOW, .token = ids, .out = out}, &err) ||
        dw_session_logprobs(r->session, 0, SCORED, ids + FIRST + 1, logprob, &err)) {
        CHECK(false, "%s", err.text);
        return NAN;
    }
    for (int i = 0; i < SCORED; i++) sum -= logprob[i];
    return sum / SCORED;
}

static void check_domain(run *r, const char *name, const json_t *domain, int n_windows, double bound) {
    dw_err err = {0};
    char path[1024];
    size_t size, n;
    int32_t *ids;
    snprintf(path, sizeof path, "%s/reference-model/%s", test_shared(),
             json_string_value(json_object_get(domain, "file")));
    char *text = dw_read_file(path, 64 << 20, &size, &err);
    REQUIRE(text, "%s", err.text);
    REQUIRE(!dw_tokenize(r->tok, text, size, 0, &ids, &n, &err), "%s", err.text);
    free(text);
    dw_sha256 h;
    uint8_t digest[32];
    char hex[65];
    dw_sha256_begin(&h);
    dw_sha256_add(&h, ids, n * sizeof *ids);
    dw_sha256_end(&h, digest);
    dw_hex(digest, 32, hex);
    CHECK(n == (size_t)json_integer_value(json_object_get(domain, "tokens")), "%s: %zu tokens", name, n);
    CHECK(!strcmp(hex, json_string_value(json_object_get(domain, "ids_sha256"))), "%s: ids", name);
    const json_t *expected = json_object_get(domain, "per_window");
    double sum = 0, expected_sum = 0;
    for (int w = 0; w < n_windows; w++) {
        sum += window_nll(r, ids + w * WINDOW);
        expected_sum += json_number_value(json_array_get(expected, (size_t)w));
    }
    const double difference = (sum - expected_sum) / n_windows;
    CHECK(fabs(difference) <= bound, "%s: mean NLL off by %.2e, allowed %.0e", name, difference, bound);
    free(ids);
}

static void check_greedy(run *r, const json_t *greedy, const char *prompt_key) {
    dw_err err = {0};
    const int n_vocab = dw_model_hparams(r->model)->n_vocab;
    float *logits = malloc((size_t)n_vocab * sizeof *logits);
    dw_sampler *sampler = dw_sampler_new(&(dw_sampler_options){0}, n_vocab, &err);
    const json_t *ids = json_object_get(greedy, "ids"), *next = json_object_get(greedy, prompt_key);
    dw_session_rewind(r->session, 0, 0);
    for (size_t i = 0; i < json_array_size(ids) + json_array_size(next); i++) {
        const bool in_prompt = i < json_array_size(ids);
        const int32_t id = (int32_t)json_integer_value(in_prompt ? json_array_get(ids, i)
                                                                 : json_array_get(next, i - json_array_size(ids)));
        if (!in_prompt) {
            REQUIRE(!dw_session_logits(r->session, 0, 1, logits, &err), "%s", err.text);
            const int32_t mine = dw_sample(sampler, logits);
            if (!CHECK(mine == id, "token %zu is %d, expected %d", i, mine, id)) break;
        }
        REQUIRE(!dw_session_eval(r->session, &(dw_batch){.n_tokens = 1, .token = &id}, &err), "%s", err.text);
    }
    dw_sampler_free(sampler);
    free(logits);
}

static void check_trained(const char *name, const char *backend, double bound) {
    if (!test_shared()) SKIP("the reference models are not here (DW_SHARED)");
    char folder[1024];
    snprintf(folder, sizeof folder, "%s/reference-model/%s", test_shared(), name);
    const char *gguf = converted(folder, "keep");
    json_t *ref = gguf ? reference(folder) : NULL;
    run r = {0};
    if (ref && run_open(&r, gguf, backend, WINDOW, WINDOW, NULL)) {
        const char *domain;
        json_t *value;
        json_object_foreach(json_object_get(ref, "domains"), domain, value)
            check_domain(&r, domain, value, test_slow() ? 20 : 2, bound);
        size_t i;
        json_array_foreach(json_object_get(ref, "greedy"), i, value) check_greedy(&r, value, "next");
    }
    run_close(&r);
    json_decref(ref);
}

static void mini_ref(void) { check_trained("mini", "ref", 1e-4); }
static void mini_cpu(void) { check_trained("mini", "cpu", 5e-4); }

static void base_ref(void) {
    if (!test_slow()) SKIP("takes minutes; make test-slow runs it");
    check_trained("base", "ref", 1e-4);
}

static void base_cpu(void) {
    if (!test_slow()) SKIP("make test-slow runs it");
    check_trained("base", "cpu", 5e-4);
}

/* ---- every dense architecture ------------------------------------------------------------------------------------ */

static const char *const dense[] = {"llama-untied", "llama3-rope", "smollm-tied", "mistral",
                                    "qwen2-untied", "qwen3",       NULL};

static void check_logits(run *r, const char *name, size_t prompt, const json_t *ids, const kit_st_tensor *expected,
                         double bound) {
    dw_err err = {0};
    const int n = (int)expected->shape[0], n_vocab = (int)expected->shape[1];
    int32_t token[64];
    uint8_t out[64];
    REQUIRE(n <= 64 && n <= (int)json_array_size(ids));
    memset(out, 1, sizeof out);
    for (int i = 0; i < n; i++) token[i] = (int32_t)json_integer_value(json_array_get(ids, (size_t)i));
    float *logits = malloc((size_t)n * (size_t)n_vocab * sizeof *logits);
    dw_session_rewind(r->session, 0, 0);
    CHECK(!dw_session_eval(r->session, &(dw_batch){.n_tokens = n, .token = token, .out = out}, &err) &&
              !dw_session_logits(r->session, 0, n, logits, &err), "%s", err.text);
    double error = 0, power = 0;
    for (size_t i = 0; i < (size_t)n * (size_t)n_vocab; i++) {
        float e;
        memcpy(&e, expected->data + i * sizeof e, sizeof e);
        error += ((double)logits[i] - e) * ((double)logits[i] - e);
        power += (double)e * e;
    }
    CHECK(error / power <= bound, "%s: prompt %zu: logits' NMSE %.2e, allowed %.0e", name, prompt, error / power,
          bound);
    free(logits);
}

static void check_ids(run *r, const char *name, size_t prompt, const json_t *row) {
    dw_err err = {0};
    const char *text = json_string_value(json_object_get(row, "text"));
    const json_t *ids = json_object_get(row, "ids");
    int32_t *mine;
    size_t n;
    REQUIRE(!dw_tokenize(r->tok, text, strlen(text), DW_ADD_SPECIAL | DW_PARSE_SPECIAL, &mine, &n, &err), "%s",
            err.text);
    CHECK(n == json_array_size(ids), "%s: prompt %zu: %zu ids, expected %zu", name, prompt, n, json_array_size(ids));
    for (size_t i = 0; i < n && i < json_array_size(ids); i++)
        if (!CHECK(mine[i] == json_integer_value(json_array_get(ids, i)), "%s: prompt %zu: id %zu", name, prompt, i))
            break;
    free(mine);
}

static void check_oracles(const char *backend, const char *type, double bound) {
    if (!test_shared()) SKIP("the oracles are not here (DW_SHARED)");
    for (int i = 0; dense[i]; i++) {
        char folder[1024];
        dw_err err = {0};
        snprintf(folder, sizeof folder, "%s/oracle/%s", test_shared(), dense[i]);
        const char *gguf = converted(folder, type);
        json_t *ref = gguf ? reference(folder) : NULL;
        kit_safetensors *logits = kit_safetensors_open(test_path(folder, "reference.safetensors"), &err);
        CHECK(logits, "%s", err.text);
        run r = {0};
        if (ref && logits && run_open(&r, gguf, backend, 256, 64, json_string_value(json_object_get(ref, "dtype")))) {
            size_t p;
            json_t *row;
            json_array_foreach(json_object_get(ref, "prompts"), p, row) {
                char name[48];
                snprintf(name, sizeof name, "prompt%zu.logits", p);
                const kit_st_tensor *expected = kit_safetensors_find(logits, name);
                check_ids(&r, dense[i], p, row);
                if (expected) check_logits(&r, dense[i], p, json_object_get(row, "ids"), expected, bound);
                if (json_object_get(row, "greedy")) check_greedy(&r, row, "greedy");
            }
        }
        run_close(&r);
        kit_safetensors_close(logits);
        json_decref(ref);
    }
}

static void oracles_ref(void) { check_oracles("ref", "keep", 1e-6); }
static void oracles_cpu(void) { check_oracles("cpu", "keep", 1e-6); }
static void oracles_f32(void) { check_oracles("ref", "f32", 1e-6); }

static void experts_refused(void) {
    if (!test_shared()) SKIP("the oracles are not here (DW_SHARED)");
    const struct {
        const char *folder, *name;
    } mixtures[] = {{"mixtral", "MixtralForCausalLM"}, {"qwen3-moe", "Qwen3MoeForCausalLM"}};
    for (int i = 0; i < 2; i++) {
        const char *out = test_path(test_folder(), "experts.gguf");
        const int rc = test_run("deadwood-convert %s/oracle/%s -o %s", test_shared(), mixtures[i].folder, out);
        CHECK(rc == 1 && strstr(test_run_output(), mixtures[i].name), "exit %d: %s", rc, test_run_output());
        CHECK(access(out, F_OK), "no file may appear");
    }
}

static const test_case cases[] = {
    {"ref on mini: ids, mean NLL within 1e-4 of transformers, greedy tokens", mini_ref},
    {"cpu on mini in BF16: ids, mean NLL within 5e-4 of transformers, greedy tokens", mini_cpu},
    {"ref on base: ids, mean NLL within 1e-4 of transformers, greedy tokens", base_ref},
    {"cpu on base in BF16: ids, mean NLL within 5e-4 of transformers, greedy tokens", base_cpu},
    {"ref on every dense architecture: ids, logits' NMSE within 1e-6, greedy tokens", oracles_ref},
    {"cpu on every dense architecture: ids, logits' NMSE within 1e-6, greedy tokens", oracles_cpu},
    {"ref on every dense architecture converted to F32: the same", oracles_f32},
    {"mixtures of experts are refused by name", experts_refused},
    {0}};
TEST_MAIN(cases)
