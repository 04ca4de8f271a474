/* test_traces.c - traces.h5: round trips, what is refused, h5py; and trace against what the taps show. */
#include "build.h"
#include "text/tokenizers.h"
#include "model/model.h"
#include "planted_gate.h"
#include "predict/journal.h"
#include "kit/traces.h"
#include "test.h"
#include "tests/h5_changes.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char magic[] = "deadwood traces 1\n";

/* ---- a file of random rows --------------------------------------------------------------------------------------- */

enum { LAYERS = 3, EMBD = 24, TOKENS = 50, GROUPS = 13 };

typedef struct rows { // layer 0: inputs only, 1: all, 2: none
    uint16_t input[2][TOKENS][EMBD], share[TOKENS][GROUPS];
    uint8_t open[TOKENS][2];
} rows;

static rows data;

static void fill(rows *r, uint64_t seed) {
    dw_rng rng;
    dw_rng_seed(&rng, seed);
    for (int t = 0; t < TOKENS; t++) {
        for (int i = 0; i < EMBD; i++)
            r->input[0][t][i] = dw_f32_to_f16((float)dw_rng_normal(&rng)),
            r->input[1][t][i] = dw_f32_to_f16((float)dw_rng_normal(&rng));
        for (int g = 0; g < GROUPS; g++) r->share[t][g] = dw_f32_to_f16((float)dw_rng_uniform(&rng) / GROUPS);
        r->open[t][0] = (uint8_t)dw_rng_next(&rng);
        r->open[t][1] = (uint8_t)(dw_rng_next(&rng) & 31);
    }
}

static const void *row(const rows *r, int layer, traces_part part, size_t t) {
    return part == TRACES_INPUT  ? (const void *)r->input[layer][t]
           : part == TRACES_OPEN ? (const void *)r->open[t]
                                 : (const void *)r->share[t];
}

static int give(void *ctx, int layer, traces_part part, size_t first, size_t n, uint8_t *to, dw_err *err) {
    const size_t bytes = part == TRACES_INPUT ? 2 * EMBD : part == TRACES_OPEN ? 2 : 2 * GROUPS;
    (void)err;
    for (size_t t = 0; t < n; t++) memcpy(to + t * bytes, row(ctx, layer, part, first + t), bytes);
    return 0;
}

static traces_layer layers[LAYERS] = {{0, true}, {GROUPS, true}, {0, false}};
static kit_stats_text texts[2] = {{"t\303\244xt.txt", "", 1, 2, 30, NULL}, {"b.txt", "", 3, 1, 20, NULL}};

static bool write_file(const char *path) {
    static char arguments[] = "--tokens 50", blocks[] = "0123abcd";
    dw_err err = {0};
    traces t = {.n_layer = LAYERS,
                .n_embd = EMBD,
                .n_ctx = 25,
                .skip = 5,
                .group = 4,
                .arguments = arguments,
                .n_tokens = TOKENS,
                .n_text = 2,
                .text = texts,
                .layer = layers};
    memset(t.model_sha256, 'a', 64);
    strcpy(t.arch, "qwen2");
    strcpy(t.backend, "ref");
    for (int i = 0; i < 2; i++) memset(texts[i].sha256, "bc"[i], 64), texts[i].blocks = blocks;
    return CHECK(!traces_write(&t, path, give, &data, &err), "%s", err.text);
}

static void round_trip(void) {
    traces t;
    dw_err err = {0};
    uint16_t back[TOKENS * EMBD];
    fill(&data, 1);
    REQUIRE(write_file(test_file("a.h5")) && write_file(test_file("b.h5")));
    CHECK(same_files(test_file("a.h5"), test_file("b.h5")), "the same rows are the same bytes");
    REQUIRE(!traces_open(&t, test_file("a.h5"), &err), "%s", err.text);
    CHECK(t.n_layer == LAYERS && t.n_embd == EMBD && t.n_ctx == 25 && t.skip == 5 && t.group == 4 &&
          t.n_tokens == TOKENS && t.n_text == 2);
    CHECK(!strcmp(t.text[0].name, texts[0].name) && t.text[1].n_tokens == 20 && !strcmp(t.text[1].blocks, "0123abcd") &&
          !strcmp(t.arguments, "--tokens 50"));
    CHECK(t.layer[0].has_input && !t.layer[0].n_groups && t.layer[1].n_groups == GROUPS && !t.layer[2].has_input);
    for (size_t first = 0; first < TOKENS; first += 7) {
        const size_t n = TOKENS - first < 11 ? TOKENS - first : 11;
        CHECK(!traces_read(&t, 0, TRACES_INPUT, first, n, back, &err) &&
                  !memcmp(back, data.input[0][first], n * 2 * EMBD),
              "%s", err.text);
        CHECK(!traces_read(&t, 1, TRACES_OPEN, first, n, back, &err) && !memcmp(back, data.open[first], n * 2), "%s",
              err.text);
        CHECK(!traces_read(&t, 1, TRACES_SHARE, first, n, back, &err) &&
                  !memcmp(back, data.share[first], n * 2 * GROUPS),
              "%s", err.text);
    }
    CHECK(traces_token_bytes(&t) == 2 * 2 * EMBD + 2 + 2 * GROUPS);
    traces_release(&t);
}

/* Reads everything; the sentence of a refusal. */
static bool read_all(const char *path, dw_err *err) {
    traces t;
    uint16_t rest[TOKENS * EMBD];
    if (traces_open(&t, path, err)) return false;
    bool ok = t.n_tokens <= TOKENS;
    for (int l = 0; ok && l < t.n_layer; l++)
        for (int part = TRACES_INPUT; part <= TRACES_SHARE && ok; part++)
            if (traces_row_bytes(&t, l, (traces_part)part))
                ok = !traces_read(&t, l, (traces_part)part, 0, t.n_tokens, rest, err);
    traces_release(&t);
    return ok;
}

static void check_refusal(const char *path, const char *words, const char *what) {
    dw_err err = {0};
    if (CHECK(!read_all(path, &err), "%s", what)) check_sentence(&err, words, what);
}

static void bad_numbers(void) {
    static const struct {
        uint16_t value;
        bool share;
        const char *words;
    } cases[] = {{0x7e00, false, "'layer/01/input' holds NaN or infinity"},
                 {0xfc00, false, "NaN or infinity"},
                 {0x7c01, true, "'layer/01/share' holds"},
                 {0x8001, true, "not in 0 .. 1"},
                 {0x3c01, true, "not in 0 .. 1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fill(&data, 2);
        if (cases[i].share) data.share[TOKENS - 1][GROUPS - 1] = cases[i].value;
        else data.input[1][TOKENS / 2][3] = cases[i].value;
        REQUIRE(write_file(test_file("n.h5")));
        check_refusal(test_file("n.h5"), cases[i].words, cases[i].words);
    }
    fill(&data, 2);
    data.open[7][1] |= 32;
    REQUIRE(write_file(test_file("n.h5")));
    check_refusal(test_file("n.h5"), "bits after the last group", "a stray bit");
}

static void damaged(void) {
    size_t size;
    fill(&data, 3);
    REQUIRE(write_file(test_file("d.h5")));
    uint8_t *bytes = (uint8_t *)dw_read_file(test_file("d.h5"), 1 << 24, &size, NULL);
    REQUIRE(bytes);
    dw_rng rng;
    dw_rng_seed(&rng, 5);
    for (int i = 0; i < 40; i++) {
        const size_t n = i < 20 ? (size_t)i * 40 : (size_t)dw_rng_below(&rng, size);
        save(&(test_bytes){.data = bytes, .size = n}, test_file("t.h5"));
        check_refusal(test_file("t.h5"), n >= 513 ? "checksum" : "traces", "truncated");
        uint8_t *at = &bytes[dw_rng_below(&rng, size)];
        const uint8_t bit = (uint8_t)(1u << dw_rng_below(&rng, 8));
        *at ^= bit;
        save(&(test_bytes){.data = bytes, .size = size}, test_file("t.h5"));
        check_refusal(test_file("t.h5"), "traces", "one bit");
        *at ^= bit;
    }
    save(&(test_bytes){.data = bytes + 512, .size = size - 512}, test_file("t.h5"));
    check_refusal(test_file("t.h5"), "no checksum", "HDF5 without the block in front");
    free(bytes);
}

/* Changes by the HDF5 library, after which the checksum is put right. */
static void put_set(hid_t f, const char *path, hid_t type, hsize_t n_rows, hsize_t cols, bool chunked) {
    const hsize_t dims[] = {n_rows, cols}, chunk[] = {1, 8};
    const hid_t space = H5Screate_simple(2, dims, NULL), how = H5Pcreate(H5P_DATASET_CREATE);
    static uint8_t zeros[1 << 16];
    if (chunked) H5Pset_chunk(how, 2, chunk);
    H5Ldelete(f, path, H5P_DEFAULT);
    const hid_t set = H5Dcreate2(f, path, type, space, H5P_DEFAULT, how, H5P_DEFAULT);
    if (!chunked) H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros);
    H5Dclose(set), H5Pclose(how), H5Sclose(space);
}

static void put_half_set(hid_t f, const char *path, hsize_t n_rows, hsize_t cols, bool chunked) {
    const hid_t half = kit_h5_half_type();
    put_set(f, path, half, n_rows, cols, chunked);
    H5Tclose(half);
}

static void put_number(hid_t f, const char *name, int32_t v) {
    const hid_t a = H5Aopen(f, name, H5P_DEFAULT);
    H5Awrite(a, H5T_NATIVE_INT32, &v);
    H5Aclose(a);
}

static void without_open(hid_t f) { H5Ldelete(f, "layer/01/open", H5P_DEFAULT); }
static void without_share(hid_t f) { H5Ldelete(f, "layer/01/share", H5P_DEFAULT); }
static void without_input(hid_t f) { H5Ldelete(f, "layer/01/input", H5P_DEFAULT); }
static void without_layers(hid_t f) { H5Ldelete(f, "layer", H5P_DEFAULT); }
static void without_texts(hid_t f) { H5Ldelete(f, "texts", H5P_DEFAULT); }
static void fewer_rows(hid_t f) { put_half_set(f, "layer/01/input", TOKENS - 1, EMBD, false); }
static void other_columns(hid_t f) { put_half_set(f, "layer/00/input", TOKENS, EMBD + 1, false); }
static void more_groups(hid_t f) { put_half_set(f, "layer/01/share", TOKENS, 17, false); }
static void other_type(hid_t f) { put_set(f, "layer/01/share", H5T_STD_U16LE, TOKENS, GROUPS, false); }
static void empty_chunks(hid_t f) { put_half_set(f, "layer/01/share", TOKENS, 1 << 20, true); }
static void other_tokens(hid_t f) { put_number(f, "n_tokens", TOKENS + 1); }
static void no_tokens(hid_t f) { put_number(f, "n_tokens", 0); }
static void next_version(hid_t f) { put_number(f, "format_version", 2); }
static void no_group(hid_t f) { put_number(f, "group", 0); }
static void no_hash(hid_t f) { H5Adelete(f, "model_sha256"); }
static void all_skipped(hid_t f) { put_number(f, "skip", 25); }

static const struct { const char *what, *words; void (*change)(hid_t); } changes[] = {
    {"decisions are missing", "lacks some of", without_open},
    {"shares are missing", "lacks some of", without_share},
    {"inputs are missing", "lacks some of", without_input},
    {"no layers", "no layer has decisions", without_layers},
    {"texts are missing", "texts", without_texts},
    {"fewer rows", "expected 50 rows", fewer_rows},
    {"other columns", "expected n_embd", other_columns},
    {"more groups", "layer/01/open", more_groups},
    {"another type", "number type", other_type},
    {"a large dataset without bytes", "stored", empty_chunks},
    {"other tokens than the texts", "attribute 'n_tokens' says", other_tokens},
    {"no tokens", "n_tokens", no_tokens},
    {"a newer version", "version is 2", next_version},
    {"groups of nothing", "group", no_group},
    {"no hash", "model_sha256", no_hash},
    {"windows of which nothing is left", "attribute 'skip' is 25", all_skipped}};

static void structure(void) {
    fill(&data, 4);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        REQUIRE(write_file(test_file("c.h5")));
        h5_change(test_file("c.h5"), magic, changes[i].change);
        check_refusal(test_file("c.h5"), changes[i].words, changes[i].what);
    }
}

/* The checksums are right; the library crashes or loops. */
static void hostile(void) {
    fill(&data, 7);
    for (int part = H5_STRING_LENGTH; part <= H5_STRING_NUMBER; part++) {
        REQUIRE(write_file(test_file("h.h5")));
        h5_damage_heap(test_file("h.h5"), magic, (h5_heap_part)part, part == H5_STRING_LENGTH ? -16 : 1 << 27);
        check_refusal(test_file("h.h5"), part == H5_STRING_LENGTH ? "does not finish" : "crashes", "a damaged heap");
    }
}

static const char script[] =
    "import h5py, numpy, sys\n"
    "f = h5py.File(sys.argv[1], 'r')\n"
    "assert f.attrs['format_version'] == 1 and f.attrs['n_tokens'] == 50 and f.attrs['group'] == 4\n"
    "x, o, s = f['layer/01/input'], f['layer/01/open'], f['layer/01/share']\n"
    "assert x.shape == (50, 24) and x.dtype == numpy.float16 and s.shape == (50, 13) and s.dtype == numpy.float16 and "
    "o.shape == (50, 2)\n"
    "assert 'open' not in f['layer/00'] and list(f['texts/n_tokens']) == [30, 20]\n"
    "bits = numpy.unpackbits(o[:], axis=1, bitorder='little')\n"
    "print('%.9g %.9g %d %d' % (x[49, 23], s[7, 12], bits.sum(), bits[3, 12]))\n";

static void python(void) {
    const char *python3 = access("/usr/bin/python3", X_OK) ? "python3" : "/usr/bin/python3";
    if (test_run("%s -c 'import h5py'", python3)) SKIP("python3 has no h5py (Debian: python3-h5py)");
    fill(&data, 5);
    REQUIRE(write_file(test_file("p.h5")));
    save(&(test_bytes){.data = (uint8_t *)(uintptr_t)script, .size = sizeof script - 1}, test_file("p.py"));
    REQUIRE(!test_run("%s %s %s", python3, test_file("p.py"), test_file("p.h5")), "%s", test_run_output());
    int n = 0, sum, bit;
    float x, s;
    for (int t = 0; t < TOKENS; t++)
        for (int g = 0; g < GROUPS; g++) n += traces_is_open(data.open[t], g);
    CHECK(sscanf(test_run_output(), "%f %f %d %d", &x, &s, &sum, &bit) == 4 &&
              x == dw_f16_to_f32(data.input[1][49][23]) && s == dw_f16_to_f32(data.share[7][12]) && sum == n &&
              bit == traces_is_open(data.open[3], 12),
          "%s", test_run_output());
}

/* Files of today stay readable.  (Their bytes are the HDF5 library's, and zlib's.) */
static void seed_file(void) {
    traces t;
    dw_err err = {0};
    uint16_t share[GROUPS];
    fill(&data, 6);
    REQUIRE(!traces_open(&t, "tests/seeds/traces.h5", &err), "%s", err.text);
    CHECK(!traces_read(&t, 1, TRACES_SHARE, TOKENS - 1, 1, share, &err) &&
              !memcmp(share, data.share[TOKENS - 1], sizeof share),
          "%s", err.text);
    traces_release(&t);
    CHECK(read_all("tests/seeds/traces.h5", &err), "%s", err.text);
}

/* ---- journals ---------------------------------------------------------------------------------------------------- */

static predict_journal *open_journal(const char *path, char who, bool *resumed) {
    uint8_t identity[32];
    dw_err err = {0};
    memset(identity, who, sizeof identity);
    predict_journal *j = predict_journal_open(path, identity, resumed, &err);
    CHECK(j, "%s", err.text);
    return j;
}

static bool add_record(predict_journal *j, const char *text) {
    const size_t n = strlen(text);
    return !predict_journal_begin(j, n, NULL) && !predict_journal_add(j, text, n / 2, NULL) &&
           !predict_journal_add(j, text + n / 2, n - n / 2, NULL) && !predict_journal_end(j, NULL);
}

static bool record_is(predict_journal *j, size_t i, const char *text) {
    size_t size;
    const uint8_t *bytes = predict_journal_record(j, i, &size, NULL);
    return bytes && size == strlen(text) && !memcmp(bytes, text, size);
}

static void journals(void) {
    const char *path = test_file("run.part");
    bool resumed;
    predict_journal *j = open_journal(path, 'a', &resumed);
    REQUIRE(j && !resumed && add_record(j, "one") && add_record(j, "second") && record_is(j, 1, "second") &&
            add_record(j, "3rd"));
    dw_err err = {0};
    uint8_t identity[32] = {0};
    CHECK(!predict_journal_open(path, identity, &resumed, &err) && strstr(err.text, "in use"), "%s", err.text);
    predict_journal_close(j);
    size_t size;
    uint8_t *bytes = (uint8_t *)dw_read_file(path, 1 << 20, &size, NULL);
    for (size_t n = 0; n <= size; n++) {
        save(&(test_bytes){.data = bytes, .size = n}, path);
        j = open_journal(path, 'a', &resumed);
        const size_t n_whole = n < 51 + 43 ? 0 : n < 51 + 43 + 46 ? 1 : n < size ? 2 : 3;
        if (!CHECK(j && predict_journal_n_records(j) == n_whole && resumed == (n >= 51), "%zu of %zu bytes", n, size))
            return;
        CHECK(add_record(j, "more") && record_is(j, n_whole, "more") && (!n_whole || record_is(j, 0, "one")),
              "%zu bytes", n);
        predict_journal_close(j);
    }
    bytes[size - 40] ^= 1;
    save(&(test_bytes){.data = bytes, .size = size}, path);
    j = open_journal(path, 'a', &resumed);
    CHECK(j && predict_journal_n_records(j) == 2, "a damaged record and what follows it go");
    predict_journal_close(j);
    err = (dw_err){0};
    CHECK(!predict_journal_open(path, identity, &resumed, &err) && strstr(err.text, "is of another run"), "%s",
          err.text);
    save(&(test_bytes){.data = bytes, .size = 51 + 42}, path); // a record that is not whole
    j = open_journal(path, 'b', &resumed);
    CHECK(j && !resumed && !predict_journal_n_records(j), "a journal without records becomes that of another run");
    CHECK(!predict_journal_kept(j));
    predict_journal_close(j);
    CHECK(access(path, F_OK), "a journal without records goes");
    j = open_journal(path, 'b', &resumed);
    REQUIRE(j && add_record(j, "one"));
    CHECK(predict_journal_kept(j) && !strcmp(predict_journal_kept(j), path));
    predict_journal_close(j);
    CHECK(!access(path, F_OK), "a journal with records stays");
    predict_journal_close(NULL);
    j = open_journal(path, 'b', &resumed);
    REQUIRE(j && resumed);
    predict_journal_remove(j);
    CHECK(access(path, F_OK));
    free(bytes);
    save(&(test_bytes){.data = (uint8_t *)(uintptr_t) "my novel", .size = 8}, path);
    CHECK(!predict_journal_open(path, identity, &resumed, &(dw_err){0}), "what is no journal stays");
}

/* ---- trace ------------------------------------------------------------------------------------------------------- */

#define RUN(...) CHECK(!test_run(__VA_ARGS__), "%s", test_run_output())

typedef struct watch { // compares events with the file's rows
    const dw_model *model;
    traces *t;
    size_t row;            // of the first token
    int skip, group, n_bad;
    int n_open;
} watch;

static void compare_inputs(watch *w, const dw_tap_event *e, int i, size_t at) {
    uint16_t in[PLANTED_EMBD];
    w->n_bad += traces_read(w->t, e->layer, TRACES_INPUT, at, 1, in, NULL) != 0;
    for (int k = 0; k < e->n; k++) w->n_bad += in[k] != dw_f32_to_f16(e->values[i * e->n + k]);
}

static void compare_open(watch *w, const dw_tap_event *e, int i, size_t at) {
    uint8_t open[PLANTED_FF / 8];
    w->n_bad += traces_read(w->t, e->layer, TRACES_OPEN, at, 1, open, NULL) != 0;
    for (int g = 0; g * w->group < e->n; g++) {
        float largest = 0;
        for (int j = g * w->group; j < e->n && j < (g + 1) * w->group; j++)
            largest = fmaxf(largest, fabsf(e->values[i * e->n + j]));
        w->n_bad += traces_is_open(open, g) != (largest >= planted_threshold(e->layer));
        w->n_open += traces_is_open(open, g);
    }
}

static void compare_shares(watch *w, const dw_tap_event *e, int i, size_t at) {
    uint16_t share[PLANTED_FF];
    double mass[PLANTED_FF], sum = 0;
    float v[PLANTED_EMBD];
    const dw_tensor *down_t = &w->model->net.layer[e->layer].sparse.down_t;
    w->n_bad += traces_read(w->t, e->layer, TRACES_SHARE, at, 1, share, NULL) != 0;
    for (int j = 0; j < e->n; j++) {
        double square = 0;
        down_t->type->decode(down_t->data + (size_t)j * dw_tensor_row_bytes(down_t), v, PLANTED_EMBD);
        for (int k = 0; k < PLANTED_EMBD; k++) square += (double)v[k] * (double)v[k];
        sum += mass[j] = square * pow((double)e->values[i * e->n + j], 2);
    }
    for (int g = 0; g * w->group < e->n; g++) {
        double m = 0;
        for (int j = g * w->group; j < e->n && j < (g + 1) * w->group; j++) m += mass[j];
        w->n_bad += !(fabs(dw_f16_to_f32(share[g]) - m / sum) <= 1e-3 * m / sum + 1e-7);
    }
}

static void look(void *ctx, const dw_tap_event *e) {
    watch *w = ctx;
    for (int i = 0; i < e->n_tokens; i++) {
        const size_t at = w->row + (size_t)(e->pos[i] - w->skip);
        if (e->pos[i] < w->skip) continue;
        if (e->point == DW_TAP_FFN_IN && w->t->layer[e->layer].has_input) compare_inputs(w, e, i, at);
        if (e->point == DW_TAP_FFN_GATE && w->t->layer[e->layer].n_groups) compare_open(w, e, i, at);
        if (e->point == DW_TAP_FFN_NEURON && w->t->layer[e->layer].n_groups) compare_shares(w, e, i, at);
    }
}

/* Runs window after window of the same texts as the file has them. */
static void watch_windows(watch *w, dw_model *m, const char *const *text, int n_ctx) {
    dw_err err = {0};
    dw_pool *pool = dw_pool_new(1, &err);
    dw_session *s = dw_session_new(
        m,
        &(dw_session_options){
            .pool = pool, .backend = "ref", .n_ctx = n_ctx, .n_batch = 512, .select = DW_SELECT_DENSE},
        &err);
    dw_tokenizer *tok = dw_tokenizer_open(dw_model_gguf(m), &err);
    REQUIRE(s && tok, "%s", err.text);
    const dw_vocab *vocab = dw_tokenizer_vocab(tok);
    dw_session_set_tap(s, &(dw_tap){.points = 1u << DW_TAP_FFN_IN | 1u << DW_TAP_FFN_GATE | 1u << DW_TAP_FFN_NEURON,
                                    .ctx = w,
                                    .fn = look});
    for (size_t i = 0; i < w->t->n_text; i++) {
        size_t size, n;
        int32_t *token;
        char *bytes = dw_read_file(text[i], 1 << 20, &size, &err);
        REQUIRE(bytes && !dw_tokenize(tok, bytes, size, DW_ADD_SPECIAL, &token, &n, &err), "%s", err.text);
        for (int k = 0; k < w->t->text[i].n_windows; k++, w->row += (size_t)(n_ctx - w->skip)) {
            int32_t *window = token + (w->t->text[i].first_window - 1 + k) * n_ctx;
            if (vocab->add_bos) window[0] = vocab->bos;
            dw_session_rewind(s, 0, 0);
            CHECK(!dw_session_eval(s, &(dw_batch){.n_tokens = n_ctx, .token = window}, &err), "%s", err.text);
        }
        free(token), free(bytes);
    }
    dw_tokenizer_free(tok);
    dw_session_free(s);
    dw_pool_free(pool);
}

static void against_taps(void) {
    static const struct {
        int group, n_ctx, skip;
        unsigned dense;
    } cases[] = {{1, 32, 0, 0}, {32, 16, 3, 5}, {1, 600, 520, 8}};
    const char *text[] = {planted_text("one.txt", 900, 1), planted_text("two.txt", 700, 2)};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = planted_gate("gated.gguf", cases[i].group, cases[i].dense, 1);
        dw_err err = {0};
        traces t;
        RUN("deadwood-trace -q -m %s -f %s %s -o %s -c %d --skip %d --tokens 230 --backend ref -t 2", path, text[0],
            text[1], test_file("w.h5"), cases[i].n_ctx, cases[i].skip);
        dw_model *m = dw_model_open(path, &err);
        REQUIRE(m && !traces_open(&t, test_file("w.h5"), &err), "%s", err.text);
        watch w = {.model = m, .t = &t, .skip = cases[i].skip, .group = cases[i].group};
        for (int l = 0; l < PLANTED_LAYERS; l++)
            CHECK((t.layer[l].n_groups == 0) == (cases[i].dense >> l & 1), "layer %d", l);
        watch_windows(&w, m, text, cases[i].n_ctx);
        CHECK(w.row == t.n_tokens && !w.n_bad && w.n_open, "case %zu: %d values differ, %zu of %zu tokens", i, w.n_bad,
              w.row, t.n_tokens);
        CHECK(t.n_tokens <= 230 && t.n_tokens + (size_t)(cases[i].n_ctx - cases[i].skip) > 230 &&
                  t.text[0].n_windows - t.text[1].n_windows <= 1,
              "tokens are drawn evenly");
        traces_release(&t);
        dw_model_close(m);
    }
}

static void killed(void) {
    const char *path = planted_gate("gated.gguf", 1, 0, 1), *out = test_file("k.h5"),
               *text = planted_text("long.txt", 6000, 3);
    char command[1024];
    snprintf(command, sizeof command, "-m %s -f %s -c 64 --tokens 6400", path, text);
    RUN("deadwood-trace -q %s -o %s -t 1", command, test_file("unbroken.h5"));
    RUN("deadwood-trace -q %s -o %s -t 3", command, out);
    CHECK(same_files(out, test_file("unbroken.h5")), "threads change nothing");
    for (int i = 0; i < 4; i++) {
        remove(out);
        test_run("deadwood-trace -q %s -o %s & pid=$!; i=0; while [ ! -s %s.part ] && [ $i -lt 400 ]; do sleep 0.005; "
                 "i=$((i+1)); done; kill -%s $pid; wait $pid",
                 command, out, out, i % 2 ? "INT" : "KILL");
        RUN("deadwood-trace -q %s -o %s", command, out);
        CHECK(same_files(out, test_file("unbroken.h5")), "as without the stop");
        CHECK(access(test_file("k.h5.part"), F_OK), "what was kept is gone");
    }
}

/* Interrupted as soon as the part is there: what is said is so.  (Without `set -m` a job ignores SIGINT.) */
static void interrupted_early(void) {
    const char *part = test_file("early.h5.part");
    const int status = test_run("bash -c 'set -m; deadwood-trace -m %s -f %s -c 512 --tokens 5632 -t 1 -o %s & p=$!; "
                                "until [ -s %s ] || ! kill -0 $p; do :; done; kill -INT $p; wait $p'",
                                planted_gate("gated.gguf", 1, 0, 1), planted_text("long.txt", 6000, 3),
                                test_file("early.h5"), part);
    CHECK(status == 128 + SIGINT && access(test_file("early.h5"), F_OK), "%d: %s", status, test_run_output());
    CHECK(strstr(test_run_output(), access(part, F_OK) ? "nothing unfinished is left" : "has the finished part"), "%s",
          test_run_output());
    remove(part);
}

/* A part of other options is refused and stays. */
static void other_run(void) {
    const char *out = test_file("other.h5"), *part = test_file("other.h5.part");
    char command[600];
    bool resumed;
    snprintf(command, sizeof command, "deadwood-trace -q -m %s -f %s -c 64 --tokens 640 -o %s",
             planted_gate("gated.gguf", 1, 0, 1), planted_text("long.txt", 6000, 3), out);
    predict_journal *j = open_journal(part, 'a', &resumed);
    REQUIRE(j && add_record(j, "one"));
    predict_journal_close(j);
    CHECK(test_run("cp %1$s %1$s.before; %2$s", part, command) == 1 &&
              strstr(test_run_output(), "other.h5.part' is of another run (other models, texts, options or CPU level); "
                                        "remove it to begin again"),
          "%s", test_run_output());
    CHECK(access(out, F_OK) && same_files(part, test_file("other.h5.part.before")), "the part has changed");
    CHECK(!test_run("head -c 51 %1$s.before > %1$s", part) && !test_run("%s", command), "%s", test_run_output());
    CHECK(access(part, F_OK), "the part stays after the end");
}

static void check_fails(const char *words, const char *command) {
    CHECK(test_run("%s", command) == 1, "%s", command);
    CHECK(strstr(test_run_output(), words), "'%s' says '%s'", command, test_run_output());
}

/* Five windows of 2048 are more than 8192 tokens. */
static void every_text(void) {
    const char *gated = planted_gate("gated.gguf", 1, 0, 1), *out = test_file("every.h5");
    char names[640] = "";
    for (int i = 0; i < 5; i++) {
        char name[16];
        snprintf(name, sizeof name, "part%d.txt", i);
        snprintf(names + strlen(names), sizeof names - strlen(names), " %s", planted_text(name, 2500, (uint64_t)i + 1));
    }
    RUN("deadwood-trace -m %s -f %s -o %s -c 2048", gated, names, out);
    CHECK(strstr(test_run_output(), "10240 tokens of 5 texts") && !strstr(test_run_output(), "no window"), "%s",
          test_run_output());
    RUN("deadwood-trace -m %s -f %s -o %s -c 2048 --tokens 8000", gated, names, out);
    CHECK(strstr(test_run_output(), "2 of 5 texts get no window: part3.txt, part4.txt; --tokens 10240 gives one to "
                                    "every text"),
          "%s", test_run_output());
}

static void refusals(void) {
    const char *gated = planted_gate("gated.gguf", 1, 0, 1), *all_dense = planted_gate("dense.gguf", 1, 15, 1),
               *text = planted_text("one.txt", 900, 1);
    char command[1024];
    RUN("deadwood-synth --shape tiny-qwen2 --type f16 -q -o %s", test_file("plain.gguf"));
    const struct {
        const char *model, *options, *words;
    } cases[] = {{test_file("plain.gguf"), "", "not gated"},
                 {all_dense, "", "every layer is marked dense"},
                 {gated, "-c 32 --tokens 31", "less than one window"},
                 {gated, "-c 32 --skip 32", "nothing left"},
                 {gated, "-c 32 --windows 1000-1001", "windows 1000"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(command, sizeof command, "deadwood-trace -q -m %s -f %s -o %s %s", cases[i].model, text,
                 test_file("no.h5"), cases[i].options);
        check_fails(cases[i].words, command);
        CHECK(access(test_file("no.h5"), F_OK), "nothing is left");
    }
    RUN("deadwood-trace -m %s -f %s -o %s -c 32 --tokens 64", gated, text, test_file("yes.h5"));
    CHECK(strstr(test_run_output(), "64 tokens of 1 text: at most 102.4 kB"), "%s", test_run_output());
}

static const test_case cases[] = {
    {"traces are read as they were written, in any range", round_trip},
    {"traces with NaN, infinity, bad shares or stray bits are refused by name", bad_numbers},
    {"truncated and damaged traces are refused in a sentence", damaged},
    {"traces of another layout are refused in a sentence", structure},
    {"hostile traces with a right checksum are refused in a sentence", hostile},
    {"traces open in h5py with the layout of the header", python},
    {"the seed is read", seed_file},
    {"a journal keeps whole records and nothing else", journals},
    {"trace writes what the taps show, by plain loops", against_taps},
    {"trace goes on where it was killed and writes the same file, with any threads", killed},
    {"trace leaves no file when it is interrupted before anything is finished", interrupted_early},
    {"trace refuses what another run has finished", other_run},
    {"trace takes a window of every text, or names those left out and the tokens that would suffice", every_text},
    {"trace refuses what does not fit in one line", refusals},
    {0}};
TEST_MAIN(cases)
