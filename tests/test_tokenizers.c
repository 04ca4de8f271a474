/* test_tokenizers.c - text to ids and back, against reference ids, conformance files and bad input. */
#include "test.h"
#include "tokenizers/internal.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- helpers ------------------------------------------------------------------------------------ */

typedef struct ids {
    int32_t *id;
    size_t n;
} ids;

static ids tokens_of(const dw_tokenizer *t, const char *text, size_t len, unsigned flags) {
    ids r = {0};
    dw_err err = {0};
    CHECK(!dw_tokenize(t, text, len, flags, &r.id, &r.n, &err), "%s", err.text);
    return r;
}

static bool same_ids(ids a, ids b) { return a.n == b.n && !memcmp(a.id, b.id, a.n * sizeof *a.id); }

/* "1 2 3 ..." in a static buffer, for messages. */
static const char *show(ids r) {
    static char text[2][1024];
    static int turn;
    char *b = text[turn++ % 2];
    *b = 0;
    for (size_t i = 0, n = 0; i < r.n && n + 12 < sizeof text[0]; i++)
        n += (size_t)snprintf(b + n, sizeof text[0] - n, "%d ", r.id[i]);
    return b;
}

static json_t *load_json(const char *folder, const char *name) {
    dw_err err = {0};
    json_t *json = dw_json_load(test_path(folder, name), 64 << 20, &err);
    CHECK(json, "%s", err.text);
    return json;
}

static size_t rows_of(const char *folder) {
    json_t *config = load_json(folder, "config.json");
    const size_t n = (size_t)json_integer_value(json_object_get(config, "vocab_size"));
    json_decref(config);
    return n;
}

static const char *shared_path(const char *name) { return test_path(test_shared(), name); }

/* A vocabulary with its tokenizer. */
typedef struct loaded {
    dw_vocab vocab;
    dw_gguf *gguf;
    dw_tokenizer *t;
} loaded;

static bool load_hf(loaded *l, const char *folder) {
    dw_err err = {0};
    *l = (loaded){0};
    if (CHECK(!dw_vocab_from_hf(&l->vocab, folder, rows_of(folder), &err), "%s", err.text))
        l->t = dw_tokenizer_new(&l->vocab, &err);
    return CHECK(l->t, "%s", err.text);
}

static bool load_gguf(loaded *l, const char *path) {
    dw_err err = {0};
    *l = (loaded){.gguf = dw_gguf_open(path, &err)};
    if (l->gguf && !dw_vocab_from_gguf(&l->vocab, l->gguf, &err)) l->t = dw_tokenizer_new(&l->vocab, &err);
    return CHECK(l->t, "%s", err.text);
}

static void release(loaded *l) {
    dw_tokenizer_free(l->t);
    dw_vocab_release(&l->vocab);
    dw_gguf_close(l->gguf);
}

/* Some of a folder's files, linked into a folder of our own. */
static const char *linked(const char *folder, const char *as, const char *const names[]) {
    static char to[256]; // other paths live in buffers that rotate
    snprintf(to, sizeof to, "%s/%s", test_folder(), as);
    char *real = realpath(folder, NULL);
    CHECK(real && !mkdir(to, 0700));
    for (size_t i = 0; real && names[i]; i++) CHECK(!symlink(test_path(real, names[i]), test_path(to, names[i])));
    free(real);
    return to;
}

/* ---- reference ids -------------------------------------------------------------------------------- */

static const char *const domains[] = {"english", "german", "spanish", "code", "math"};
enum { N_DOMAINS = sizeof domains / sizeof *domains };

static char *domain_text(const char *domain, size_t *len) {
    char name[64];
    dw_err err = {0};
    snprintf(name, sizeof name, "reference-model/text/eval/%s.txt", domain);
    char *text = dw_read_file(shared_path(name), 64 << 20, len, &err);
    CHECK(text, "%s", err.text);
    return text;
}

static void check_domains(const char *folder) {
    loaded l;
    if (!load_hf(&l, folder)) return release(&l);
    json_t *reference = load_json(folder, "reference.json");
    for (size_t d = 0; d < N_DOMAINS; d++) {
        const json_t *want = json_object_get(json_object_get(reference, "domains"), domains[d]);
        size_t len;
        char *text = domain_text(domains[d], &len);
        if (!text) continue;
        ids got = tokens_of(l.t, text, len, 0);
        dw_sha256 h;
        uint8_t digest[32];
        char hex[65];
        dw_sha256_begin(&h);
        dw_sha256_add(&h, got.id, got.n * sizeof *got.id);
        dw_sha256_end(&h, digest);
        dw_hex(digest, 32, hex);
        CHECK(got.n == (size_t)json_integer_value(json_object_get(want, "tokens")), "%s: %zu", domains[d], got.n);
        CHECK(!strcmp(hex, json_string_value(json_object_get(want, "ids_sha256"))), "%s: %s", domains[d], hex);

        dw_err err = {0};
        size_t back_len;
        char *back = dw_detokenize(l.t, got.id, got.n, false, &back_len, &err);
        CHECK(back && back_len == len && !memcmp(back, text, len), "%s: text differs", domains[d]);
        free(back);
        free(got.id);
        free(text);
    }
    json_decref(reference);
    release(&l);
}

static void reference_models(void) {
    if (!test_shared()) SKIP("no shared folder");
    static const char *const names[] = {"mini", "base"};
    for (int i = 0; i < 2; i++) {
        char folder[256];
        snprintf(folder, sizeof folder, "%s/reference-model/%s", test_shared(), names[i]);
        check_domains(folder);
    }
}

/* ---- oracles: what transformers and SentencePiece answer -------------------------------------------- */

static void check_prompts(const char *folder, const char *key) {
    loaded l;
    if (!load_hf(&l, folder)) return release(&l);
    json_t *reference = load_json(folder, "reference.json");
    const json_t *prompts = json_object_get(reference, "prompts");
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        const json_t *p = json_array_get(prompts, i), *want = json_object_get(p, key), *text = json_object_get(p, "text");
        if (!want) continue;
        // SentencePiece knows no special tokens in text
        const unsigned flags = DW_ADD_SPECIAL | (!strcmp(key, "ids") ? DW_PARSE_SPECIAL : 0);
        ids got = tokens_of(l.t, json_string_value(text), json_string_length(text), flags);
        bool same = got.n == json_array_size(want);
        for (size_t k = 0; k < got.n && same; k++) same = got.id[k] == json_integer_value(json_array_get(want, k));
        CHECK(same, "%s, %s, prompt %zu: got %s", folder, key, i, show(got));
        free(got.id);
    }
    json_decref(reference);
    release(&l);
}

static void oracles(void) {
    static const char *const names[] = {"llama-untied", "llama3-rope", "smollm-tied", "mistral", "mixtral",
                                        "qwen2-untied", "qwen3",       "qwen3-moe"};
    static const char *const no_model[] = {"tokenizer.json", "tokenizer_config.json", "config.json",
                                           "generation_config.json", "reference.json", NULL};
    static const char *const only_model[] = {"tokenizer.model", "tokenizer_config.json", "config.json",
                                             "generation_config.json", "reference.json", NULL};
    if (!test_shared()) SKIP("no shared folder");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char as[64];
        char folder[256];
        snprintf(folder, sizeof folder, "%s/oracle/%s", test_shared(), names[i]);
        check_prompts(folder, "ids");
        if (access(test_path(folder, "tokenizer.model"), F_OK)) continue;
        check_prompts(folder, "ids_sentencepiece");
        snprintf(as, sizeof as, "%s-json", names[i]);
        check_prompts(linked(folder, as, no_model), "ids");
        snprintf(as, sizeof as, "%s-model", names[i]);
        const char *model_folder = linked(folder, as, only_model);
        check_prompts(model_folder, "ids");
        check_prompts(model_folder, "ids_sentencepiece");
    }
}

/* ---- conformance files --------------------------------------------------------------------------------- */

static const char *with(const char *path, const char *suffix) {
    static char name[512];
    snprintf(name, sizeof name, "%s%s", path, suffix);
    return name;
}

static void conformance(const char *name) {
    static const char between[] = "\n__ggml_vocab_test__\n";
    char path[128];
    loaded l;
    dw_err err = {0};
    snprintf(path, sizeof path, "oracle/tokenizers/ggml-vocab-%s.gguf", name);
    if (!test_shared()) SKIP("no shared folder");
    if (access(shared_path(path), R_OK)) SKIP("%s: only its texts and ids are here", path);
    char vocab[256];
    snprintf(vocab, sizeof vocab, "%s/%s", test_shared(), path);
    if (!load_gguf(&l, vocab)) return release(&l);
    size_t len, n = 0;
    char *text = dw_read_file(with(vocab, ".inp"), 1 << 20, &len, &err), *at = text;
    char *want = dw_read_file(with(vocab, ".out"), 1 << 20, &(size_t){0}, &err), *line = want;
    for (; CHECK(text && want, "%s", err.text); n++) {
        char *stop = memmem(at, len - (size_t)(at - text), between, sizeof between - 1), *line_end = strchrnul(line, '\n');
        ids expected = {.id = calloc((size_t)(line_end - line) + 1, sizeof(int32_t))};
        for (char *number; number = line, line < line_end;) {
            const long id = strtol(number, &line, 10);
            if (line == number || line > line_end) break;
            expected.id[expected.n++] = (int32_t)id;
        }
        ids got = tokens_of(l.t, at, (size_t)((stop ? stop : text + len) - at), 0);
        CHECK(same_ids(got, expected), "%s, text %zu: %s instead of %s", name, n, show(got), show(expected));
        free(got.id);
        free(expected.id);
        line = *line_end ? line_end + 1 : line_end;
        if (!stop) break;
        at = stop + sizeof between - 1;
    }
    CHECK(n > 40, "only %zu texts", n);
    free(text);
    free(want);
    release(&l);
}

static void conformance_gpt2(void) { conformance("gpt-2"); }
static void conformance_llama(void) { conformance("llama-spm"); }
static void conformance_starcoder(void) { conformance("starcoder"); }
static void conformance_qwen2(void) { conformance("qwen2"); }
static void conformance_llama_bpe(void) { conformance("llama-bpe"); }

static const test_case cases[] = {
    {"the reference models' texts become the reference's ids, and text again", reference_models},
    {"prompts become the ids that transformers and SentencePiece give", oracles},
    {"the conformance texts of gpt-2 become llama.cpp's ids", conformance_gpt2},
    {"the conformance texts of llama-spm become llama.cpp's ids", conformance_llama},
    {"the conformance texts of starcoder become llama.cpp's ids", conformance_starcoder},
    {"the conformance texts of qwen2 become llama.cpp's ids", conformance_qwen2},
    {"the conformance texts of llama-bpe become llama.cpp's ids", conformance_llama_bpe},
    {0}};
TEST_MAIN(cases)
