/* test_tokenizers.c - text to ids and back, against reference ids, conformance files and bad input. */
#include "test.h"
#include "text/tokenizers.h"
#include "text/json.h"
#include "text/internal.h"

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
    json_t *json = dw_json_load(test_path(folder, name), 64 << 20, DW_JSON_LARGE_TREE, &err);
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
        const json_t *p = json_array_get(prompts, i), *want = json_object_get(p, key),
                     *text = json_object_get(p, "text");
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
    static const char *const names[] = {"llama-untied", "llama3-rope",  "smollm-tied", "mistral",
                                        "mixtral",      "qwen2-untied", "qwen3",       "qwen3-moe"};
    static const char *const no_model[] = {"tokenizer.json",         "tokenizer_config.json", "config.json",
                                           "generation_config.json", "reference.json",        NULL};
    static const char *const only_model[] = {"tokenizer.model",        "tokenizer_config.json", "config.json",
                                             "generation_config.json", "reference.json",        NULL};
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
        char *stop = memmem(at, len - (size_t)(at - text), between, sizeof between - 1),
             *line_end = strchrnul(line, '\n');
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

/* ---- small vocabularies ----------------------------------------------------------------------------- */

/* A vocabulary from the text of a tokenizer.json and of a tokenizer_config.json (NULL: none). */
static int from_text(dw_vocab *v, const char *tokenizer, const char *config, size_t n_rows, dw_err *err) {
    dw_hf_files files = {0};
    json_t *t = dw_json_parse(tokenizer, strlen(tokenizer), DW_JSON_TREE, "tokenizer.json", err);
    json_t *c = config ? dw_json_parse(config, strlen(config), DW_JSON_TREE, "tokenizer_config.json", err) : NULL;
    files.tokenizer = t;
    files.tokenizer_config = c;
    const int rc = t ? dw_vocab_from_hf_files(v, &files, n_rows, err) : -1;
    json_decref(t);
    json_decref(c);
    return rc;
}

static bool load_text(loaded *l, const char *tokenizer, size_t n_rows) {
    dw_err err = {0};
    *l = (loaded){0};
    if (CHECK(!from_text(&l->vocab, tokenizer, NULL, n_rows, &err), "%s", err.text))
        l->t = dw_tokenizer_new(&l->vocab, &err);
    return CHECK(l->t, "%s", err.text);
}

#define GPT2 "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
#define SPM                                                                                                            \
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"},"      \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}]},\"pre_tokenizer\":null"
#define ADDED(id, text, special) "{\"id\":" #id ",\"content\":\"" text "\",\"special\":" #special "}"

static const char letters_json[] =
    "{" GPT2 ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"bc\":4,\"aa\":5,\"abc\":6,"
    "\"aaaa\":7,\"bcab\":8,\"cc\":9,\"ca\":10},\"merges\":[\"b c\",\"a b\",\"a a\",[\"aa\",\"aa\"],\"ab c\",\"bc ab\","
    "\"c c\",\"c a\",\"a bc\"]}}";

/* Byte-level BPE as its definition says: the pair of lowest rank, leftmost, until there is none. */
static ids merge_slowly(const dw_vocab *v, const char *word, size_t len) {
    dw_lookup x;
    CHECK(!dw_lookup_build(&x, v->token, v->n_token, NULL));
    ids s = {.id = malloc(len * sizeof(int32_t)), .n = len};
    for (size_t i = 0; i < len; i++) s.id[i] = dw_lookup_find(&x, word + i, 1);
    for (size_t best = 0; best < v->n_merge;) {
        dw_merge_ids m;
        size_t at = s.n;
        for (best = 0; best < v->n_merge && at == s.n; best++) {
            CHECK(!dw_vocab_merge_ids(v, &x, best, &m, NULL));
            for (size_t i = 0; i + 1 < s.n && at == s.n; i++)
                if (s.id[i] == m.left && s.id[i + 1] == m.right) at = i;
        }
        if (at == s.n) break;
        s.id[at] = m.result;
        memmove(s.id + at + 1, s.id + at + 2, (s.n - at - 2) * sizeof *s.id);
        s.n--;
        best = 0;
    }
    dw_lookup_release(&x);
    return s;
}

static void merges_by_definition(void) {
    loaded l;
    if (!load_text(&l, letters_json, 11)) return release(&l);
    dw_rng rng;
    dw_rng_seed(&rng, 1);
    for (int i = 0; i < 3000; i++) {
        char word[40];
        const size_t len = 1 + dw_rng_below(&rng, sizeof word);
        for (size_t k = 0; k < len; k++) word[k] = (char)('a' + dw_rng_below(&rng, 3));
        ids want = merge_slowly(&l.vocab, word, len), got = tokens_of(l.t, word, len, 0);
        CHECK(same_ids(got, want), "%.*s: %s instead of %s", (int)len, word, show(got), show(want));
        free(want.id);
        free(got.id);
    }
    release(&l);
}

static void long_word(void) {
    loaded l;
    if (!load_text(&l, letters_json, 11)) return release(&l);
    const size_t len = 1 << 20;
    char *word = malloc(len);
    memset(word, 'a', len);
    const double start = dw_now();
    ids got = tokens_of(l.t, word, len, 0);
    CHECK(got.n == len / 4 && got.id[0] == 7, "%zu ids", got.n);
    CHECK(dw_now() - start < 20, "quadratic time would take hours");
    free(got.id);
    free(word);
    release(&l);
}

/* ---- look-up ------------------------------------------------------------------------------------------ */

/* Texts of 32 words.  Flipping bit 63 of a word and bits 63 and 34 of the next one left the state of a
 * multiplicative hash as it was, whatever its seed: each of the 2^N texts flips another subset of N pairs of words. */
static void colliding_tokens(void) {
    enum { N = 12, BYTES = 256 };
    const size_t n = 1 << N;
    dw_err err = {0};
    dw_str *text = calloc(n, sizeof *text);
    char *bytes = malloc(n * BYTES);
    memset(bytes, 'a', n * BYTES);
    for (size_t i = 0; i < n; i++) {
        char *t = bytes + i * BYTES;
        text[i] = (dw_str){t, BYTES};
        for (int k = 0; k < N; k++, t += 16)
            if (i >> k & 1) t[7] ^= (char)0x80, t[12] ^= 4, t[15] ^= (char)0x80;
    }
    dw_lookup x;
    if (CHECK(!dw_lookup_build(&x, text, n, &err), "%s", err.text)) {
        CHECK(dw_lookup_steps(&x) < 3 * n, "%zu steps for %zu texts", dw_lookup_steps(&x), n);
        for (size_t i = 0; i < n; i++) REQUIRE(dw_lookup_find(&x, text[i].ptr, BYTES) == (int32_t)i);
        CHECK(dw_lookup_find(&x, bytes, BYTES - 1) < 0);
        dw_lookup_release(&x);
    }
    free(bytes);
    free(text);
}

/* Token i is the letter a, i + 1 times, so that any two short ones merge.  Merges are those pairs that a multiplicative
 * hash without a key put into a 64th of its table. */
static void colliding_merges(void) {
    enum { N = 512, BYTES = N + 1 };
    dw_err err = {0};
    char *letters = malloc(BYTES), *bytes = malloc(N * N / 32 * BYTES);
    dw_str token[N], *merge = calloc(N * N / 32, sizeof *merge);
    memset(letters, 'a', BYTES);
    for (size_t i = 0; i < N; i++) token[i] = (dw_str){letters, i + 1};
    dw_vocab v = {.model = "gpt2", .pre = "gpt-2", .n_token = N, .token = token, .merge = merge};
    for (uint64_t left = 0; left < N; left++)
        for (uint64_t right = 0; left + right + 2 <= N; right++) {
            const uint64_t pair = left << 32 | right;
            if ((pair * 0x9e3779b97f4a7c15u ^ pair >> 7) * 0xbf58476d1ce4e5b9u >> 58) continue;
            char *text = memset(bytes + v.n_merge * BYTES, 'a', BYTES);
            text[left + 1] = ' ';
            merge[v.n_merge++] = (dw_str){text, left + right + 3};
        }
    CHECK(v.n_merge > 1000, "%zu merges", v.n_merge);
    dw_lookup x;
    REQUIRE(!dw_lookup_build(&x, token, N, &err), "%s", err.text);
    dw_bpe *m = dw_bpe_new(&v, &x, &err);
    if (CHECK(m, "%s", err.text))
        CHECK(dw_bpe_steps(m) < 3 * v.n_merge, "%zu steps for %zu merges", dw_bpe_steps(m), v.n_merge);
    dw_bpe_free(m);
    dw_lookup_release(&x);
    free(merge);
    free(bytes);
    free(letters);
}

/* ---- pre-tokenizers --------------------------------------------------------------------------------- */

/* Characters and what they are: Letter, Number, White space, line Break, Other. */
static const struct {
    const char *text;
    char kind;
} characters[] = {
    {"a", 'L'},
    {"s", 'L'},
    {"S", 'L'},
    {"r", 'L'},
    {"e", 'L'},
    {"\xc5\xbf", 'L'}, // U+017F
    {"L", 'L'},
    {"\xc3\xa9", 'L'},
    {"1", 'N'},
    {"\xc2\xb2", 'N'},
    {" ", 'W'},
    {" ", 'W'},
    {"\n", 'B'},
    {"\r", 'B'},
    {"\t", 'W'},
    {"\xc2\x85", 'W'},
    {"\xe3\x80\x80", 'W'}, // U+3000
    {"'", 'O'},
    {"'", 'O'},
    {".", 'O'},
    {"\xcc\x81", 'O'},
    {"\xe1\xa0\x8e", 'O'}, // U+0301, U+180E
};
enum { N_CHARACTERS = sizeof characters / sizeof *characters };

/* Characters of the contraction behind the apostrophe at c[0], or 0. */
static size_t contraction(const int *c, size_t left, bool any_case) {
    static const char *const names[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t n = strlen(names[i]);
        size_t k = 0;
        while (n < left && k < n) {
            const char *t = characters[c[k + 1]].text;
            if (t[1] || (any_case ? t[0] | 0x20 : t[0]) != names[i][k]) break;
            k++;
        }
        if (k == n) return n;
    }
    return 0;
}

/* Length in characters of the piece that llama.cpp's hand-written matchers take at c[0]; numbers: 0 for gpt-2, else
 * how many digits make a piece. */
static size_t piece_by_rules(const int *c, size_t n, size_t numbers) {
#define KIND(i) ((i) < n ? characters[c[i]].kind : '-')
    const bool gpt2 = !numbers, space = *characters[c[0]].text == ' ';
    size_t end = 0;
    if (*characters[c[0]].text == '\'' && (end = contraction(c, n, !gpt2))) return end + 1;
    if (gpt2 ? KIND(space) == 'L' : KIND(0) != 'B' && KIND(0) != 'N' && (KIND(0) == 'L' || KIND(1) == 'L')) {
        for (end = 1; KIND(end) == 'L';) end++;
        return end;
    }
    if (KIND(gpt2 && space) == 'N') {
        for (end = gpt2 && space; KIND(end) == 'N' && (gpt2 || end < numbers);) end++;
        return end;
    }
    if (KIND(space) == 'O') {
        for (end = space; KIND(end) == 'O';) end++;
        while (!gpt2 && KIND(end) == 'B') end++;
        return end;
    }
    size_t after_break = 0;
    for (end = 0; KIND(end) == 'W' || KIND(end) == 'B'; end++)
        if (KIND(end) == 'B') after_break = end + 1;
    if (!gpt2 && after_break) return after_break;
    return end > 1 && end < n ? end - 1 : end;
#undef KIND
}

typedef struct pieces {
    const char *text;
    size_t at, n, end[64];
} pieces;

static int note_piece(void *arg, const char *text, size_t len, dw_err *err) {
    pieces *p = arg;
    if (text != p->text + p->at || !len) return dw_fail(err, "pieces are not adjacent");
    p->at += len;
    if (p->n < sizeof p->end / sizeof *p->end) p->end[p->n] = p->at;
    p->n++;
    return 0;
}

static dw_pretokenizer *pretokenizer(const char *name) {
    dw_err err = {0};
    const dw_pretokenizer_row *row = dw_pretokenizer_find((dw_str){name, strlen(name)});
    dw_pretokenizer *p = row ? dw_pretokenizer_new(row, &err) : NULL;
    CHECK(p, "%s: %s", name, err.text);
    return p;
}

static void pieces_by_rules(void) {
    static const struct {
        const char *name;
        size_t numbers;
    } rules[] = {{"gpt-2", 0}, {"qwen2", 1}, {"llama-bpe", 3}};
    dw_rng rng;
    dw_rng_seed(&rng, 6);
    for (size_t r = 0; r < 3; r++) {
        dw_pretokenizer *p = pretokenizer(rules[r].name);
        for (int k = 0; k < 20000 && p; k++) {
            int c[32];
            char text[4 * 32];
            size_t n = dw_rng_below(&rng, 32), len = 0, n_want = 0, want[32], start[33];
            for (size_t i = 0; i < n; i++) {
                c[i] = (int)dw_rng_below(&rng, N_CHARACTERS);
                start[i] = len;
                len += (size_t)sprintf(text + len, "%s", characters[c[i]].text);
            }
            start[n] = len;
            for (size_t i = 0; i < n; want[n_want++] = start[i]) i += piece_by_rules(c + i, n - i, rules[r].numbers);
            pieces got = {.text = text};
            dw_err err = {0};
            CHECK(!dw_pretokenize(p, text, len, note_piece, &got, &err), "%s", err.text);
            CHECK(got.n == n_want && !memcmp(got.end, want, n_want * sizeof *want), "%s: '%.*s': %zu and %zu pieces",
                  rules[r].name, (int)len, text, got.n, n_want);
        }
        dw_pretokenizer_free(p);
    }
}

static void pieces_are_the_text(void) {
    static const char *const names[] = {"gpt-2",  "llama-bpe", "smaug-bpe", "qwen2",  "qwen35",
                                        "smollm", "tekken",    "falcon",    "default"};
    static const char *const runs[] = {"a", "A",  "Aa",       "1",  " ",   "\n", " \n", "\xe6\x97\xa5",
                                       "'", "'S", "\xcc\x81", "\r", ".a1 "};
    enum { LEN = 60000 };
    char *text = malloc(LEN + 4);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        dw_pretokenizer *p = pretokenizer(names[i]);
        for (size_t r = 0; r < sizeof runs / sizeof *runs && p; r++) {
            size_t len = 0;
            for (; len + strlen(runs[r]) < LEN; len += strlen(runs[r])) memcpy(text + len, runs[r], strlen(runs[r]));
            text[len++] = 'x';
            pieces got = {.text = text};
            dw_err err = {0};
            CHECK(!dw_pretokenize(p, text, len, note_piece, &got, &err) && got.at == len, "%s, run %zu: %s", names[i],
                  r, err.text);
        }
        dw_pretokenizer_free(p);
    }
    free(text);
}

static const char special_json[] =
    "{" GPT2
    ",\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"e\":3,\"ab\":4},\"merges\":[\"a b\"]},\"added_tokens\":[" ADDED(
        5, "cd",
        false) "," ADDED(6, "bcd",
                         false) "," ADDED(7, "dd",
                                          true) "," ADDED(8, "da",
                                                          false) "," ADDED(9, "d",
                                                                           true) "," ADDED(10, "<|a|>",
                                                                                           false) "," ADDED(11, "aabb",
                                                                                                            true) "]}";

/* Special tokens as llama.cpp takes them: the longest first, each from the left, in whatever text is left. */
static void split_slowly(ids *out, const dw_vocab *v, bool control, const char *text, size_t len) {
    for (size_t n = 5; n; n--)
        for (size_t at = 0; at + n <= len; at++)
            for (size_t id = 0; id < v->n_token; id++) {
                const bool counts = v->type[id] == DW_TOKEN_USER || (control && v->type[id] == DW_TOKEN_CONTROL);
                if (!counts || v->token[id].len != n || memcmp(v->token[id].ptr, text + at, n)) continue;
                split_slowly(out, v, control, text, at);
                out->id[out->n++] = (int32_t)id;
                return split_slowly(out, v, control, text + at + n, len - at - n);
            }
    if (!len) return;
    ids rest = merge_slowly(v, text, len);
    memcpy(out->id + out->n, rest.id, rest.n * sizeof *rest.id);
    out->n += rest.n;
    free(rest.id);
}

static void special_tokens(void) {
    loaded l;
    if (!load_text(&l, special_json, 12)) return release(&l);
    CHECK(l.vocab.type[10] == DW_TOKEN_CONTROL && l.vocab.type[5] == DW_TOKEN_USER &&
          l.vocab.type[7] == DW_TOKEN_CONTROL);
    dw_rng rng;
    dw_rng_seed(&rng, 2);
    for (int i = 0; i < 5000; i++) {
        char text[24];
        int32_t room[sizeof text];
        const size_t len = dw_rng_below(&rng, sizeof text + 1);
        for (size_t k = 0; k < len; k++) text[k] = (char)('a' + dw_rng_below(&rng, 4));
        for (int control = 0; control < 2; control++) {
            ids want = {.id = room}, got = tokens_of(l.t, text, len, control ? DW_PARSE_SPECIAL : 0);
            split_slowly(&want, &l.vocab, control, text, len);
            CHECK(same_ids(got, want), "'%.*s': %s instead of %s", (int)len, text, show(got), show(want));
            free(got.id);
        }
    }
    release(&l);
}

/* Thousands of special tokens, each of another length, that begin as many places of the text do. */
static void many_lengths(void) {
    enum { N = 3000, PLACES = 100000, LONG = 2000 };
    char *json = NULL, *text = NULL;
    size_t size, len;
    FILE *f = open_memstream(&json, &size);
    fprintf(f, "{" GPT2 ",\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3},\"merges\":[\"a b\"]},"
               "\"added_tokens\":[");
    for (int i = 0; i < N; i++) {
        fprintf(f, "%s{\"id\":%d,\"special\":false,\"content\":\"ba", i ? "," : "", 4 + i);
        for (int k = 0; k <= i; k++) fputc('a', f);
        fprintf(f, "\"}");
    }
    fprintf(f, "]}");
    fclose(f);
    f = open_memstream(&text, &len);
    for (int i = 0; i < PLACES; i++) fprintf(f, "bac");
    fputc('b', f);
    for (int i = 0; i < LONG; i++) fputc('a', f);
    fclose(f);
    loaded l;
    if (load_text(&l, json, 4 + N)) {
        const double begin = dw_now();
        ids got = tokens_of(l.t, text, len, 0);
        CHECK(dw_now() - begin < 10, "%.1f s for %d lengths at %d places", dw_now() - begin, N, PLACES);
        CHECK(got.n == 3 * PLACES + 1 && got.id[3 * PLACES - 1] == 2 && got.id[3 * PLACES] == 4 + LONG - 2, "%zu ids",
              got.n);
        free(got.id);
    }
    release(&l);
    free(json), free(text);
}

static const char spm_json[] =
    "{" SPM
    ",\"model\":{\"byte_fallback\":true,\"unk_token\":\"<unk>\",\"vocab\":{\"<unk>\":0,\"<0x41>\":1,\"a\":2,\"b\":3,"
    "\"\xe2\x96\x81\":4,\"ab\":5,\"\xe2\x96\x81"
    "a\":6,\"\xe2\x96\x81\xe2\x96\x81\":7,\"ba\":8,\"\xe2\x96\x81"
    "ab\":9,"
    "\"abab\":10,\"aba\":11,\"!%s\":12,\"?!\":13},\"merges\":[\"a b\",\"\xe2\x96\x81 a\",\"\xe2\x96\x81 "
    "\xe2\x96\x81\",\"b a\","
    "\"\xe2\x96\x81 ab\",\"ab ab\",\"aba b\",\"a ba\",\"ab a\",\"\xe2\x96\x81"
    "a b\"]}}";

/* With a token that has a U+2581 inside, text is merged in one piece; without, in pieces between spaces. */
static void spm_cuts(void) {
    loaded cut, whole;
    char json[2][sizeof spm_json + 16];
    snprintf(json[0], sizeof json[0], spm_json, "?");
    snprintf(json[1], sizeof json[1], spm_json, "\xe2\x96\x81");
    const bool both = load_text(&cut, json[0], 20) && load_text(&whole, json[1], 20);
    dw_rng rng;
    dw_rng_seed(&rng, 3);
    for (int i = 0; i < 3000 && both; i++) {
        static const char alphabet[] = "ab A \xf0";
        char text[32];
        const size_t len = dw_rng_below(&rng, sizeof text + 1);
        for (size_t k = 0; k < len; k++) text[k] = alphabet[dw_rng_below(&rng, sizeof alphabet - 1)];
        ids a = tokens_of(cut.t, text, len, 0), b = tokens_of(whole.t, text, len, 0);
        CHECK(same_ids(a, b), "'%.*s': %s and %s", (int)len, text, show(a), show(b));
        free(a.id);
        free(b.id);
    }
    release(&cut);
    release(&whole);
}

/* Scores merge any two tokens whose texts together are a token, here "a" and "b", with or without a merge of them. */
static void spm_without_merge(void) {
    dw_vocab v;
    dw_err err = {0};
    CHECK(from_text(&v,
                    "{" SPM ",\"model\":{\"byte_fallback\":true,\"unk_token\":\"<unk>\",\"vocab\":{\"<unk>\":0,\"a\":1,"
                    "\"b\":2,\"c\":3,\"\xe2\x96\x81\":4,\"ab\":5,\"bc\":6},\"merges\":[\"b c\"]}}",
                    NULL, 7, &err) &&
              strstr(err.text, "tokens 'a' and 'b' make 'ab', but tokenizer.json has no merge of them"),
          "%s", err.text);
    /* A token that is also added, with spaces, is no result of merges any more. */
    CHECK(!from_text(&v,
                     "{\"added_tokens\":[{\"id\":3,\"content\":\"\xe2\x96\x81\xe2\x96\x81\",\"special\":false}]," SPM
                     ",\"model\":{\"byte_fallback\":true,\"unk_token\":\"<unk>\",\"vocab\":{\"<unk>\":0,\"a\":1,"
                     "\"\xe2\x96\x81\":2,\"\xe2\x96\x81\xe2\x96\x81\":3,\"\xe2\x96\x81\xe2\x96\x81\xe2\x96\x81\":4},"
                     "\"merges\":[\"\xe2\x96\x81 \xe2\x96\x81\",\"\xe2\x96\x81 "
                     "\xe2\x96\x81\xe2\x96\x81\",\"\xe2\x96\x81\xe2\x96\x81 \xe2\x96\x81\"]}}",
                     NULL, 5, &err),
          "%s", err.text);
    dw_vocab_release(&v);
}

/* ---- round trips --------------------------------------------------------------------------------------- */

static void text_again(void) {
    if (!test_shared()) SKIP("no shared folder");
    static const char *const names[] = {"llama3-rope", "smollm-tied", "qwen3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        loaded l;
        char folder[256];
        snprintf(folder, sizeof folder, "%s/oracle/%s", test_shared(), names[i]);
        if (!load_hf(&l, folder)) return release(&l);
        dw_rng rng;
        dw_rng_seed(&rng, 4);
        for (int k = 0; k < 500; k++) {
            static const char *const bits[] = {"a",          " ",   "\n",           "\r",
                                               "12",         "'S",  "'\xc5\xbf",    "\xe1\xa0\x8e",
                                               "\xc2\x85",   "the", "\t",           "\xf0\x9f\x91\x8d",
                                               "<|im_end|>", ".",   "\xe2\x96\x81", "\xc3\xa9",
                                               "\x00",       "\x7f"};
            char text[256];
            size_t len = 0, back_len = 0;
            for (size_t n = dw_rng_below(&rng, 16); n; n--) {
                const char *bit = bits[dw_rng_below(&rng, sizeof bits / sizeof *bits)];
                const size_t bit_len = *bit ? strlen(bit) : 1;
                memcpy(text + len, bit, bit_len);
                len += bit_len;
            }
            ids got = tokens_of(l.t, text, len, DW_PARSE_SPECIAL);
            char *back = dw_detokenize(l.t, got.id, got.n, true, &back_len, NULL);
            CHECK(back && back_len == len && !memcmp(back, text, len), "%s: '%s'", names[i], back);
            free(back);
            free(got.id);
        }
        release(&l);
    }
}

static bool same_str(dw_str a, dw_str b) { return a.len == b.len && (!a.len || !memcmp(a.ptr, b.ptr, a.len)); }

static void check_same(const dw_vocab *a, const dw_vocab *b) {
    CHECK(!strcmp(a->model, b->model) && !strcmp(a->pre, b->pre));
    REQUIRE(a->n_token == b->n_token && a->n_merge == b->n_merge);
    size_t n_differ = 0;
    for (size_t i = 0; i < a->n_token; i++) n_differ += !same_str(a->token[i], b->token[i]) || a->type[i] != b->type[i];
    for (size_t i = 0; i < a->n_merge; i++) n_differ += !same_str(a->merge[i], b->merge[i]);
    for (size_t i = 0; a->score && i < a->n_token; i++) n_differ += a->score[i] != b->score[i];
    CHECK(!n_differ, "%zu differ", n_differ);
    CHECK(a->bos == b->bos && a->eos == b->eos && a->eot == b->eot && a->unk == b->unk && a->pad == b->pad,
          "%d %d, %d %d, %d %d, %d %d, %d %d", a->bos, b->bos, a->eos, b->eos, a->eot, b->eot, a->unk, b->unk, a->pad,
          b->pad);
    CHECK(a->add_bos == b->add_bos && a->add_eos == b->add_eos && a->add_space_prefix == b->add_space_prefix &&
          a->ignore_merges == b->ignore_merges);
    CHECK(same_str(a->chat_template, b->chat_template));
}

static void through_gguf(void) {
    static const char *const names[] = {"oracle/llama-untied", "oracle/llama3-rope", "oracle/smollm-tied",
                                        "oracle/qwen3", "reference-model/mini"};
    if (!test_shared()) SKIP("no shared folder");
    size_t len;
    char *text = domain_text("german", &len);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        loaded hf, back = {0};
        dw_err err = {0};
        char folder[256], path[256];
        snprintf(folder, sizeof folder, "%s/%s", test_shared(), names[i]);
        snprintf(path, sizeof path, "%s/vocab.gguf", test_folder());
        if (load_hf(&hf, folder)) {
            dw_gguf_writer *w = dw_gguf_writer_new(path, &err);
            dw_gguf_set_text(w, "general.architecture", "llama");
            dw_vocab_write(&hf.vocab, w);
            CHECK(w && !dw_gguf_begin(w, &err) && !dw_gguf_commit(w, &err), "%s", err.text);
            dw_gguf_writer_free(w);
        }
        if (hf.t && load_gguf(&back, path)) {
            check_same(&hf.vocab, &back.vocab);
            ids a = tokens_of(hf.t, text, len, DW_ADD_SPECIAL), b = tokens_of(back.t, text, len, DW_ADD_SPECIAL);
            CHECK(same_ids(a, b), "%s", names[i]);
            free(a.id);
            free(b.id);
        }
        release(&hf);
        release(&back);
    }
    free(text);
}

/* ---- import rules ---------------------------------------------------------------------------------------- */

static void import_rules(void) {
    static const char tokenizer[] =
        "{" GPT2 ",\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"[PAD9]\":3},\"merges\":[\"a "
        "b\"]},\"added_tokens\":[" ADDED(4, "<s>", true) "," ADDED(5, "<pad>", false) "," ADDED(
            6, "\xe2\x96\x81x",
            false) "," ADDED(7, "<|im_end|>",
                             true) "," ADDED(8, "<unused0>",
                                             false) "],"
                                                    "\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{"
                                                    "\"type\":\"ByteLevel\"},{\"type\":\"TemplateProcessing\","
                                                    "\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":"
                                                    "{\"id\":\"A\"}}]}]}}";
    static const char config[] =
        "{\"eos_token\":{\"content\":\"<|im_end|>\"},\"pad_token\":\"<pad>\",\"chat_template\":["
        "{\"name\":\"tools\",\"template\":\"T\"},{\"name\":\"default\",\"template\":\"D\"}]}";
    dw_vocab v;
    dw_err err = {0};
    REQUIRE(!from_text(&v, tokenizer, config, 11, &err), "%s", err.text);
    CHECK(v.n_token == 11 && !strcmp(v.model, "gpt2") && !strcmp(v.pre, "gpt-2"));
    CHECK(dw_str_is(v.token[9], "[PAD9]_") && dw_str_is(v.token[10], "[PAD10]") && v.type[10] == DW_TOKEN_UNUSED);
    CHECK(v.type[4] == DW_TOKEN_CONTROL && v.type[5] == DW_TOKEN_CONTROL && v.type[8] == DW_TOKEN_CONTROL);
    CHECK(v.type[6] == DW_TOKEN_USER && dw_str_is(v.token[6], " x"));
    CHECK(v.bos == 4 && v.eos == 7 && v.eot == 7 && v.pad == 5 && v.add_bos && !v.add_eos);
    CHECK(dw_str_is(v.chat_template, "D"));
    dw_vocab_release(&v);

    REQUIRE(!from_text(&v, tokenizer, "{\"add_bos_token\":false}", 11, &err), "%s", err.text);
    CHECK(!v.add_bos && v.bos == 4, "the configuration overrides the post-processor");
    dw_vocab_release(&v);
}

/* A piece of a tokenizer.model, of score 0. */
static size_t put_piece(char *to, const char *text, int type) {
    const int n = (int)strlen(text);
    return (size_t)sprintf(to, "\x0a%c\x0a%c%s\x18%c", n + 4, n, text, type);
}

static size_t small_model(char *to) {
    size_t n = put_piece(to, "<unk>", DW_TOKEN_UNKNOWN);
    n += put_piece(to + n, "<s>", DW_TOKEN_CONTROL);
    n += put_piece(to + n, "</s>", DW_TOKEN_CONTROL);
    n += put_piece(to + n, "a", DW_TOKEN_NORMAL);
    return n + (size_t)sprintf(to + n, "\x12\x02\x18\x02"); // a trainer_spec: BPE
}

static int with_added(dw_vocab *v, const char *added, const char *config, dw_err *err) {
    char model[256];
    json_t *a = dw_json_parse(added, strlen(added), DW_JSON_TREE, "added_tokens.json", err);
    json_t *c = config ? dw_json_parse(config, strlen(config), DW_JSON_TREE, "tokenizer_config.json", err) : NULL;
    const dw_hf_files files = {.added_tokens = a, .tokenizer_config = c, .model = {model, small_model(model)}};
    const int rc = dw_vocab_from_hf_files(v, &files, 8, err);
    json_decref(a);
    json_decref(c);
    return rc;
}

static void added_tokens_file(void) {
    static const char added[] = "{\"<s>\":1,\"<|im_start|>\":4,\"two words\":5,\"[PAD]\":8}";
    dw_vocab v;
    dw_err err = {0};
    REQUIRE(!with_added(&v, added, NULL, &err), "%s", err.text);
    CHECK(dw_str_is(v.token[4], "<|im_start|>") && v.type[4] == DW_TOKEN_CONTROL && v.score[4] == -1000);
    CHECK(dw_str_is(v.token[5], "two words") && v.type[5] == DW_TOKEN_USER);
    CHECK(dw_str_is(v.token[1], "<s>") && v.type[1] == DW_TOKEN_CONTROL && v.score[1] == 0, "the model's own stays");
    CHECK(v.type[6] == DW_TOKEN_UNUSED && v.type[7] == DW_TOKEN_UNUSED, "[PAD] has no row");
    dw_vocab_release(&v);

    static const char config[] = "{\"added_tokens_decoder\":{\"5\":{\"content\":\"two words\",\"special\":true}}}";
    REQUIRE(!with_added(&v, added, config, &err), "%s", err.text);
    CHECK(v.type[5] == DW_TOKEN_CONTROL && v.type[4] == DW_TOKEN_CONTROL, "tokenizer_config.json knows more");
    dw_vocab_release(&v);

    static const char *const bad[] = {"{\"x\":-1}", "{\"x\":\"5\"}", "{\"x\":4.5}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err = (dw_err){0};
        CHECK(with_added(&v, bad[i], NULL, &err) && strstr(err.text, "the id of 'x' is no whole number"), "%s",
              err.text);
    }
}

/* ---- bad input ---------------------------------------------------------------------------------------------- */

static void bad_tokenizer_json(void) {
#define MODEL(vocab, merges) ",\"model\":{\"vocab\":" vocab ",\"merges\":" merges "}"
#define AB "{\"a\":0,\"b\":1,\"ab\":2}"
    static const struct {
        const char *json, *sentence;
    } bad[] = {
        {"[]", "no object 'model'"},
        {"{\"model\":7}", "no object 'model'"},
        {"{" GPT2 ",\"model\":{\"type\":\"WordPiece\"}}", "WordPiece"},
        {"{" GPT2 MODEL("[]", "[]") "}", "model.vocab"},
        {"{" GPT2 MODEL("{}", "[]") "}", "model.vocab"},
        {"{" GPT2 MODEL("{\"a\":\"0\"}", "[\"a b\"]") "}", "the id of token 'a' is not an integer"},
        {"{" GPT2 MODEL("{\"a\":-1}", "[\"a b\"]") "}", "'a' has id -1"},
        {"{" GPT2 MODEL("{\"a\":8}", "[\"a b\"]") "}", "has id 8, but the model has 8 rows"},
        {"{" GPT2 MODEL("{\"a\":9223372036854775807}", "[\"a b\"]") "}", "9223372036854775807"},
        {"{" GPT2 MODEL("{\"a\":0,\"b\":0}", "[\"a b\"]") "}", "same id 0"},
        {"{" GPT2 MODEL("{\"a\":0,\"a\":1}", "[\"a b\"]") "}", "duplicate"},
        {"{" GPT2 MODEL(AB, "7") "}", "model.merges"},
        {"{" GPT2 MODEL(AB, "[7]") "}", "merge 0 is neither"},
        {"{" GPT2 MODEL(AB, "[\"a b\",[\"a\",\"b\",\"c\"]]") "}", "merge 1 is neither"},
        {"{" GPT2 MODEL(AB, "[\"ab\"]") "}", "not two tokens"},
        {"{" GPT2 MODEL(AB, "[\"a b\",\"x b\"]") "}", "merge 1, 'x b': its left part is no token"},
        {"{" GPT2 MODEL(AB, "[\"b a\"]") "}", "its result is no token"},
        {"{" GPT2 MODEL(AB, "[\"a b\"]") ",\"added_tokens\":[3]}", "has no id"},
        {"{" GPT2 MODEL(AB, "[\"a b\"]") ",\"added_tokens\":[{\"id\":3}]}", "no content"},
        {"{" GPT2 MODEL(AB, "[\"a b\"]") ",\"added_tokens\":[" ADDED(99, "x", true) "]}", "has id 99"},
        {"{" GPT2 MODEL(AB, "[\"a b\"]") ",\"added_tokens\":[" ADDED(1, "x", true) "]}", "same id 1"},
        {"{" GPT2 MODEL(AB, "[\"a b\"]") ",\"added_tokens\":[" ADDED(4, "a", true) "]}", "are both 'a'"},
        {"{\"pre_tokenizer\":null" MODEL(AB, "[\"a b\"]") "}", "pre-tokenizer null"},
        {"{\"pre_tokenizer\":{\"type\":\"Whitespace\"}" MODEL(AB, "[\"a b\"]") "}", "Whitespace"},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true}" MODEL(AB, "[\"a b\"]") "}",
         "add_prefix_space"},
        {"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x+"
         "\"},"
         "\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"use_regex\":false}]}" MODEL(AB, "[\"a b\"]") "}",
         "x+"},
        {"{\"normalizer\":{\"type\":\"Lowercase\"}" MODEL(AB, "[\"a b\"]") "}", "Lowercase"},
        {"{" SPM ",\"model\":{\"byte_fallback\":true,\"ignore_merges\":true,\"vocab\":" AB ",\"merges\":[\"a b\"]}}",
         "always merges"},
        {"{\"model\":{\"byte_fallback\":true,\"vocab\":" AB ",\"merges\":[\"a b\"]}}", "U+2581"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dw_vocab v;
        dw_err err = {0};
        CHECK(from_text(&v, bad[i].json, NULL, 8, &err) && strstr(err.text, bad[i].sentence), "case %zu: %s", i,
              err.text);
    }
}

static void bad_tokenizer_model(void) {
    if (!test_shared()) SKIP("no shared folder");
    size_t len;
    dw_err err = {0};
    char *model = dw_read_file(shared_path("oracle/llama-untied/tokenizer.model"), 1 << 20, &len, &err);
    REQUIRE(model, "%s", err.text);
    size_t n_accepted = 0;
    for (size_t cut = 0; cut < len; cut += cut < len - 200 ? 17 : 1) {
        dw_vocab v;
        dw_hf_files files = {.model = {model, cut}};
        err = (dw_err){0};
        if (!dw_vocab_from_hf_files(&v, &files, 1024, &err)) {
            n_accepted++;
            dw_vocab_release(&v);
        } else {
            CHECK(err.text[0]);
        }
    }
    CHECK(n_accepted == 1, "%zu: only the cut in front of the last field leaves a whole file", n_accepted);
    dw_vocab v;
    err = (dw_err){0};
    CHECK(dw_vocab_from_hf_files(&v, &(dw_hf_files){.model = {model, len}}, 1000, &err) &&
          strstr(err.text, "1024 pieces"));
    err = (dw_err){0};
    char *type = memmem(model, len, "\x18\x02 \x80\x08", 5); // model_type, then vocab_size
    REQUIRE(type);
    type[1] = 1;
    CHECK(dw_vocab_from_hf_files(&v, &(dw_hf_files){.model = {model, len}}, 1024, &err) && strstr(err.text, "only BPE"),
          "%s", err.text);
    free(model);
}

/* A sound vocabulary in a GGUF file but for one key, which set() sets. */
static void check_bad_gguf(const char *sentence, bool llama, void (*set)(dw_gguf_writer *w)) {
    static const dw_str tokens[] = {{"a", 1}, {"b", 1}, {"ab", 2}};
    const char *path = test_path(test_folder(), "bad.gguf");
    dw_err err = {0};
    dw_gguf_writer *w = dw_gguf_writer_new(path, &err);
    dw_gguf_set_text(w, "general.architecture", "llama");
    dw_gguf_set_text(w, "tokenizer.ggml.model", llama ? "llama" : "gpt2");
    dw_gguf_set_text(w, "tokenizer.ggml.pre", "qwen2");
    dw_gguf_set_strs(w, "tokenizer.ggml.tokens", tokens, 3);
    dw_gguf_set_array(w, "tokenizer.ggml.token_type", DW_KV_I32, (int32_t[]){1, 1, 1}, 3);
    dw_gguf_set_array(w, "tokenizer.ggml.scores", DW_KV_F32, (float[]){0, 0, 0}, 3);
    dw_gguf_set_strs(w, "tokenizer.ggml.merges", (dw_str[]){{"a b", 3}}, 1);
    set(w);
    CHECK(!dw_gguf_begin(w, &err) && !dw_gguf_commit(w, &err), "%s", err.text);
    dw_gguf_writer_free(w);
    dw_gguf *g = dw_gguf_open(path, &err);
    dw_vocab v = {0};
    dw_tokenizer *t = NULL;
    if (CHECK(g, "%s", err.text) && !dw_vocab_from_gguf(&v, g, &err)) t = dw_tokenizer_new(&v, &err);
    CHECK(sentence ? !t && strstr(err.text, sentence) : t != NULL, "wanted '%s', got '%s'", sentence, err.text);
    dw_tokenizer_free(t);
    dw_vocab_release(&v);
    dw_gguf_close(g);
}

static void set_nothing(dw_gguf_writer *w) { (void)w; }
static void set_model(dw_gguf_writer *w) { dw_gguf_set_text(w, "tokenizer.ggml.model", "bert"); }
static void set_no_model(dw_gguf_writer *w) { dw_gguf_unset(w, "tokenizer.ggml.model"); }
static void set_pre(dw_gguf_writer *w) { dw_gguf_set_text(w, "tokenizer.ggml.pre", "moon"); }
static void set_tokens(dw_gguf_writer *w) { dw_gguf_set_u32(w, "tokenizer.ggml.tokens", 3); }
static void set_twice(dw_gguf_writer *w) {
    dw_gguf_set_strs(w, "tokenizer.ggml.tokens", (dw_str[]){{"a", 1}, {"b", 1}, {"a", 1}}, 3);
}
static void set_empty(dw_gguf_writer *w) { // is renamed
    dw_gguf_set_strs(w, "tokenizer.ggml.tokens", (dw_str[]){{"a", 1}, {"b", 1}, {"ab", 2}, {"", 0}}, 4);
    dw_gguf_unset(w, "tokenizer.ggml.token_type");
}
static void set_few_types(dw_gguf_writer *w) {
    dw_gguf_set_array(w, "tokenizer.ggml.token_type", DW_KV_I32, (int32_t[]){1}, 1);
}
static void set_type(dw_gguf_writer *w) {
    dw_gguf_set_array(w, "tokenizer.ggml.token_type", DW_KV_I32, (int32_t[]){1, -7, 1}, 3);
}
static void set_types(dw_gguf_writer *w) {
    dw_gguf_set_array(w, "tokenizer.ggml.token_type", DW_KV_F32, (float[]){1, 1, 1}, 3);
}
static void set_nan(dw_gguf_writer *w) {
    dw_gguf_set_array(w, "tokenizer.ggml.scores", DW_KV_F32, (float[]){0, 0.0f / 0.0f, 0}, 3);
}
static void set_merges(dw_gguf_writer *w) {
    dw_gguf_set_array(w, "tokenizer.ggml.merges", DW_KV_I32, (int32_t[]){1}, 1);
}
static void set_no_merges(dw_gguf_writer *w) { dw_gguf_set_strs(w, "tokenizer.ggml.merges", NULL, 0); }
static void set_merge(dw_gguf_writer *w) { dw_gguf_set_strs(w, "tokenizer.ggml.merges", (dw_str[]){{"a c", 3}}, 1); }
static void set_spaces(dw_gguf_writer *w) { dw_gguf_set_strs(w, "tokenizer.ggml.merges", (dw_str[]){{" ", 1}}, 1); }
static void set_eos(dw_gguf_writer *w) { dw_gguf_set_u32(w, "tokenizer.ggml.eos_token_id", 3); }
static void set_no_pad(dw_gguf_writer *w) { dw_gguf_set_u32(w, "tokenizer.ggml.padding_token_id", UINT32_MAX); }
static void set_pad_beyond(dw_gguf_writer *w) { dw_gguf_set_u32(w, "tokenizer.ggml.padding_token_id", 3); }
static void set_add_bos(dw_gguf_writer *w) { dw_gguf_set_text(w, "tokenizer.ggml.add_bos_token", "yes"); }

static void bad_gguf(void) {
    check_bad_gguf(NULL, false, set_nothing);
    check_bad_gguf(NULL, true, set_nothing);
    check_bad_gguf("'bert' is not known", false, set_model);
    check_bad_gguf("'tokenizer.ggml.model' is missing", false, set_no_model);
    check_bad_gguf("'moon'", false, set_pre);
    check_bad_gguf("not an array", false, set_tokens);
    check_bad_gguf("both 'a'", false, set_twice);
    check_bad_gguf(NULL, false, set_empty);
    check_bad_gguf("has 1 elements", false, set_few_types);
    check_bad_gguf("token 1 has type -7", false, set_type);
    check_bad_gguf("right type", false, set_types);
    check_bad_gguf("score of token 1", true, set_nan);
    check_bad_gguf("right type", false, set_merges);
    check_bad_gguf("'tokenizer.ggml.merges' is an empty array", false, set_no_merges);
    check_bad_gguf("'a c': its right part", false, set_merge);
    check_bad_gguf("not two tokens", false, set_spaces);
    check_bad_gguf("is 3, but there are 3 tokens", false, set_eos);
    check_bad_gguf(NULL, false, set_no_pad);
    check_bad_gguf(NULL, false, set_pad_beyond);
    check_bad_gguf("tokenizer.ggml.add_bos_token", false, set_add_bos);
}

/* llama.cpp knows them by their names, whatever their types. */
static void controls_by_name(void) {
    static const struct {
        const char *name;
        bool ends;
    } names[] = {{"<|im_end|>", true}, {"<|file_sep|>", true}, {"<|fim_prefix|>", false}, {"<|im_start|>", false}};
    enum { N = sizeof names / sizeof *names };
    for (int32_t type = DW_TOKEN_NORMAL; type <= DW_TOKEN_USER; type++) {
        dw_err err = {0};
        const char *path = test_path(test_folder(), "controls.gguf");
        dw_str token[3 + N + 1] = {{"a", 1}, {"b", 1}, {"ab", 2}};
        int32_t types[3 + N + 1] = {1, 1, 1};
        for (int i = 0; i < N; i++) token[3 + i] = (dw_str){names[i].name, strlen(names[i].name)}, types[3 + i] = type;
        token[3 + N] = (dw_str){"done", 4}, types[3 + N] = DW_TOKEN_NORMAL;
        dw_gguf_writer *w = dw_gguf_writer_new(path, &err);
        dw_gguf_set_text(w, "general.architecture", "llama");
        dw_gguf_set_text(w, "tokenizer.ggml.model", "gpt2");
        dw_gguf_set_text(w, "tokenizer.ggml.pre", "qwen2");
        dw_gguf_set_strs(w, "tokenizer.ggml.tokens", token, 3 + N + 1);
        dw_gguf_set_array(w, "tokenizer.ggml.token_type", DW_KV_I32, types, 3 + N + 1);
        dw_gguf_set_strs(w, "tokenizer.ggml.merges", (dw_str[]){{"a b", 3}}, 1);
        dw_gguf_set_u32(w, "tokenizer.ggml.eom_token_id", 3 + N);
        CHECK(!dw_gguf_begin(w, &err) && !dw_gguf_commit(w, &err), "%s", err.text);
        dw_gguf_writer_free(w);
        loaded l = {0};
        if (!load_gguf(&l, path)) continue;
        for (int i = 0; i < 3; i++)
            CHECK(l.vocab.type[3 + i] == (type == DW_TOKEN_UNKNOWN ? type : DW_TOKEN_CONTROL) &&
                      dw_token_ends(l.t, 3 + i) == names[i].ends,
                  "%s of type %d is read as %d", names[i].name, type, l.vocab.type[3 + i]);
        CHECK(l.vocab.type[3 + 3] == type && !dw_token_ends(l.t, 3 + 3), "<|im_start|> is no such name");
        CHECK(dw_token_ends(l.t, 3 + N), "the key names a token that ends a message");
        release(&l);
    }
}

static void any_bytes(void) {
    if (!test_shared()) SKIP("no shared folder");
    static const char *const names[] = {"qwen3", "mistral"};
    for (int i = 0; i < 2; i++) {
        loaded l;
        char folder[256];
        snprintf(folder, sizeof folder, "%s/oracle/%s", test_shared(), names[i]);
        if (!load_hf(&l, folder)) return release(&l);
        dw_rng rng;
        dw_rng_seed(&rng, 5);
        for (int k = 0; k < 300; k++) {
            char text[64];
            const size_t len = dw_rng_below(&rng, sizeof text);
            for (size_t b = 0; b < len; b++) { // after a torn character SentencePiece loses what is a space
                text[b] = (char)dw_rng_next(&rng);
                if (text[b] == ' ') text[b] = 'x';
            }
            ids got = tokens_of(l.t, text, len, DW_ADD_SPECIAL | DW_PARSE_SPECIAL);
            size_t back_len = 0;
            char *back = dw_detokenize(l.t, got.id, got.n, false, &back_len, NULL);
            // SentencePiece gives every byte back; byte-level BPE a U+FFFD for each that is no text
            CHECK(back && (i ? back_len == len && !memcmp(back, text, len)
                             : dw_is_utf8(back, back_len) || memchr(back, 0, back_len)),
                  "%s, text %d: %zu of %zu bytes", names[i], k, back_len, len);
            free(back);
            free(got.id);
        }
        release(&l);
    }
}

static const test_case cases[] = {
    {"the reference models' texts become the reference's ids, and text again", reference_models},
    {"prompts become the ids that transformers and SentencePiece give", oracles},
    {"the conformance texts of gpt-2 become llama.cpp's ids", conformance_gpt2},
    {"the conformance texts of llama-spm become llama.cpp's ids", conformance_llama},
    {"the conformance texts of starcoder become llama.cpp's ids", conformance_starcoder},
    {"the conformance texts of qwen2 become llama.cpp's ids", conformance_qwen2},
    {"the conformance texts of llama-bpe become llama.cpp's ids", conformance_llama_bpe},
    {"byte-level BPE gives what its definition gives", merges_by_definition},
    {"tokens chosen to collide are found as fast as others", colliding_tokens},
    {"merges chosen to collide are found as fast as others", colliding_merges},
    {"a word of a million bytes is merged in reasonable time", long_word},
    {"text is cut as llama.cpp's rules for gpt-2, qwen2 and llama-bpe say", pieces_by_rules},
    {"the pieces that a pre-tokenizer cuts are the whole text, however long its runs", pieces_are_the_text},
    {"special tokens are taken longest first, then leftmost", special_tokens},
    {"special tokens of thousands of lengths are found in seconds", many_lengths},
    {"cutting SentencePiece text at spaces changes no id", spm_cuts},
    {"merges that scores cannot stand for are refused", spm_without_merge},
    {"text becomes ids and the same text again", text_again},
    {"a vocabulary written to GGUF and read back is the same", through_gguf},
    {"tokenizer.json's added tokens, padding, special ids and template are taken over", import_rules},
    {"the tokens of added_tokens.json are taken over where there is no tokenizer.json", added_tokens_file},
    {"a malformed tokenizer.json costs one sentence", bad_tokenizer_json},
    {"a malformed tokenizer.model costs one sentence", bad_tokenizer_model},
    {"tokens that llama.cpp knows by their names are controls of any type, and end texts", controls_by_name},
    {"a malformed vocabulary in a GGUF file costs one sentence", bad_gguf},
    {"any bytes can be tokenized", any_bytes},
    {0}};
TEST_MAIN(cases)
