/* test_gguf.c - the GGUF reader and writer: round trips, every truncation, published holes. */
#include "formats/internal.h"
#include "tests/build.h"
#include "tests/test.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* ---- round trips ---------------------------------------------------------------------------------- */

/* A file with a value of every kind and tensors of three types. */
static void write_sample(const char *path, size_t piece) {
    dw_err err = {0};
    dw_gguf_writer *w = dw_gguf_writer_new(path, &err);
    REQUIRE(w, "%s", err.text);
    const size_t ne[][3] = {{32, 3, 2}, {5, 2, 1}, {64, 1, 1}};
    dw_gguf_set_text(w, "general.architecture", "llama");
    dw_gguf_set_u32(w, "llama.block_count", 7);
    dw_gguf_set_f32(w, "llama.eps", 1e-5f);
    dw_gguf_set_bool(w, "test.yes", true);
    dw_gguf_set_text(w, "test.gone", "gone");
    dw_gguf_set_array(w, "test.bytes", DW_KV_I8, (int8_t[]){-1, 2, 3}, 3);
    dw_gguf_set_array(w, "test.widths", DW_KV_I32, (int32_t[]){10, 20, 30}, 3);
    dw_gguf_set_array(w, "test.none", DW_KV_F64, NULL, 0);
    dw_gguf_set_strs(w, "test.tokens", (dw_str[]){{"a", 1}, {"", 0}, {"\xff\0z", 3}}, 3);
    dw_gguf_add_tensor(w, "q8", dw_qtype_get(DW_Q8_0), 3, ne[0]);
    dw_gguf_set_u32(w, "llama.block_count", 8);
    dw_gguf_set_u32(w, "general.alignment", 64);
    dw_gguf_unset(w, "test.gone");
    dw_gguf_add_tensor(w, "f32", dw_qtype_get(DW_F32), 2, ne[1]);
    dw_gguf_add_tensor(w, "f16", dw_qtype_get(DW_F16), 1, ne[2]);
    REQUIRE(!dw_gguf_begin(w, &err), "%s", err.text);
    uint8_t data[6 * 34 + 40 + 128];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 7);
    for (size_t i = 0; i < sizeof data; i += piece) {
        const size_t n = sizeof data - i < piece ? sizeof data - i : piece;
        REQUIRE(!dw_gguf_write(w, data + i, n, &err), "%s", err.text);
    }
    CHECK(access(path, F_OK), "nothing may appear before commit");
    REQUIRE(!dw_gguf_commit(w, &err), "%s", err.text);
    dw_gguf_writer_free(w);
}

static void round_trip(void) {
    const char *path = test_path(test_folder(), "round.gguf");
    write_sample(path, 1000);
    dw_err err = {0};
    dw_gguf *g = dw_gguf_open(path, &err);
    REQUIRE(g, "%s", err.text);
    CHECK(dw_gguf_n_kv(g) == 8 && dw_gguf_n_tensors(g) == 3 && dw_gguf_file_bytes(g) % 32 == 0);
    CHECK(!strcmp(dw_gguf_kv(g, 1)->key, "llama.block_count"), "replaced in place");
    uint32_t n = 0, widths[3], twice[2];
    float eps = 0;
    bool yes = false;
    dw_str text;
    CHECK(dw_gguf_u32(g, "llama.block_count", &n, &err) == 1 && n == 8);
    CHECK(dw_gguf_f32(g, "llama.eps", &eps, &err) == 1 && eps == 1e-5f);
    CHECK(dw_gguf_bool(g, "test.yes", &yes, &err) == 1 && yes);
    CHECK(dw_gguf_str(g, "general.architecture", &text, &err) == 1 && dw_str_is(text, "llama"));
    CHECK(dw_gguf_u32s(g, "test.widths", widths, 3, &err) == 1 && widths[0] == 10 && widths[2] == 30);
    CHECK(dw_gguf_u32s(g, "llama.block_count", twice, 2, &err) == 1 && twice[0] == 8 && twice[1] == 8);
    CHECK(dw_kv_number(dw_gguf_find(g, "test.bytes"), 0) == -1 &&
          isnan(dw_kv_number(dw_gguf_find(g, "test.bytes"), 3)));
    CHECK(dw_gguf_find(g, "test.none")->count == 0 && !dw_gguf_find(g, "test.gone"));
    const dw_kv *tokens = dw_gguf_find(g, "test.tokens");
    CHECK(tokens->count == 3 && tokens->str[1].len == 0 && !memcmp(tokens->str[2].ptr, "\xff\0z", 3));
    const dw_tensor *t = dw_gguf_find_tensor(g, "f32");
    CHECK(t == dw_gguf_tensor(g, 1) && t->ne[0] == 5 && t->ne[1] == 2 && t->ne[3] == 1 && t->n_bytes == 40);
    CHECK(t->data[0] == (uint8_t)(6 * 34 * 7) && t->data[39] == (uint8_t)((6 * 34 + 39) * 7));
    CHECK(!err.text[0], "%s", err.text);
    dw_gguf_close(g);
}

static void layers_of_names(void) {
    static const struct {
        const char *name, *rest;
        int layer;
    } rows[] = {{"blk.0.ffn_up.weight", "ffn_up.weight", 0},
                {"blk.120.x", "x", 120},
                {"output.weight", NULL, -1},
                {"blk.x", NULL, -1},
                {"blk..x", NULL, -1},
                {"blk.3", NULL, -1},
                {"blk.-3.x", NULL, -1},
                {"blk. 3.x", NULL, -1},
                {"blk.03.x", NULL, -1},
                {"blk.9999999999.x", NULL, -1},
                {"", NULL, -1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *rest;
        CHECK(dw_layer_of(rows[i].name, &rest) == rows[i].layer &&
                  !strcmp(rest, rows[i].rest ? rows[i].rest : rows[i].name),
              "'%s'", rows[i].name);
    }
}

static char *file_bytes(const char *path, size_t *size) { return dw_read_file(path, 1 << 20, size, NULL); }

static void same_bytes(void) {
    const char *a = test_path(test_folder(), "a.gguf"), *b = test_path(test_folder(), "b.gguf");
    write_sample(a, 1000);
    write_sample(b, 1);
    size_t n_a = 0, n_b = 0;
    char *bytes_a = file_bytes(a, &n_a), *bytes_b = file_bytes(b, &n_b);
    CHECK(n_a == n_b && !memcmp(bytes_a, bytes_b, n_a));
    free(bytes_b);

    // a copy by set_kv and add_tensor
    const char *c = test_path(test_folder(), "c.gguf");
    dw_err err = {0};
    dw_gguf *g = dw_gguf_open(a, &err);
    dw_gguf_writer *w = dw_gguf_writer_new(c, &err);
    REQUIRE(g && w, "%s", err.text);
    dw_gguf_set_keys(w, g);
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        dw_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne);
    }
    CHECK(!dw_gguf_begin(w, &err), "%s", err.text);
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++)
        CHECK(!dw_gguf_write(w, dw_gguf_tensor(g, i)->data, dw_gguf_tensor(g, i)->n_bytes, &err), "%s", err.text);
    CHECK(!dw_gguf_commit(w, &err), "%s", err.text);
    dw_gguf_writer_free(w);
    dw_gguf_close(g);
    char *bytes_c = file_bytes(c, &n_b);
    CHECK(n_a == n_b && !memcmp(bytes_a, bytes_c, n_a));
    free(bytes_a);
    free(bytes_c);
}

/* The file of an earlier day: the format must not drift, and the fuzzer starts from it. */
static void seed(void) {
    const char *path = test_path(test_folder(), "seed.gguf");
    write_sample(path, 1000);
    size_t n = 0, n_seed = 0;
    char *bytes = file_bytes(path, &n), *seed_bytes = file_bytes("tests/seeds/gguf-sample.gguf", &n_seed);
    CHECK(bytes && seed_bytes && n == n_seed && !memcmp(bytes, seed_bytes, n));
    free(bytes);
    free(seed_bytes);
}

/* ---- refusals of the writer -------------------------------------------------------------------------- */

static void refuse_tensor(const char *name, dw_qtype type, int n_dims, size_t columns, const char *words) {
    dw_err err = {0};
    const char *path = test_path(test_folder(), "refused.gguf");
    dw_gguf_writer *w = dw_gguf_writer_new(path, &err);
    REQUIRE(w, "%s", err.text);
    dw_gguf_add_tensor(w, "taken", dw_qtype_get(DW_F32), 1, (size_t[]){1});
    dw_gguf_add_tensor(w, name, dw_qtype_get(type), n_dims, (size_t[]){columns, 2, 1, 1, 1});
    CHECK(dw_gguf_begin(w, &err), "'%s' was taken", name);
    check_sentence(&err, words, name);
    dw_gguf_writer_free(w);
    CHECK(access(path, F_OK), "a refused file appeared");
}

static void writer_refuses(void) {
    char name[65] = "";
    memset(name, 'n', 64);
    refuse_tensor(name, DW_F32, 2, 1, "too long");
    refuse_tensor("", DW_F32, 2, 1, "empty");
    refuse_tensor("\xff", DW_F32, 2, 1, "UTF-8");
    refuse_tensor("taken", DW_F32, 2, 1, "twice");
    refuse_tensor("rows", DW_Q8_0, 2, 33, "whole blocks");
    refuse_tensor("none", DW_F32, 2, 0, "dimension 0 is 0");
    refuse_tensor("dims", DW_F32, 0, 1, "0 dimensions");
    refuse_tensor("dims", DW_F32, 5, 1, "5 dimensions");
    refuse_tensor("huge", DW_F32, 2, SIZE_MAX / 4, "overflow");

    dw_err err = {0};
    dw_gguf_writer *w = dw_gguf_writer_new(test_path(test_folder(), "key.gguf"), &err);
    REQUIRE(w, "%s", err.text);
    dw_gguf_set_u32(w, "", 1);
    dw_gguf_set_u32(w, "good", 1);
    CHECK(dw_gguf_begin(w, &err));
    check_sentence(&err, "its name is empty", "an empty key");
    dw_gguf_writer_free(w);
    err = (dw_err){0};
    CHECK(!dw_gguf_writer_new(test_path(test_folder(), "no/such/folder.gguf"), &err));
    check_sentence(&err, "folder.gguf", "a folder that is missing");
}

static void writer_counts(void) {
    dw_err err = {0};
    const char *path = test_path(test_folder(), "count.gguf");
    const uint8_t zeros[64] = {0};
    dw_gguf_writer *w = dw_gguf_writer_new(path, &err);
    REQUIRE(w, "%s", err.text);
    dw_gguf_add_tensor(w, "w", dw_qtype_get(DW_F32), 1, (size_t[]){10});
    REQUIRE(!dw_gguf_begin(w, &err), "%s", err.text);
    CHECK(!dw_gguf_write(w, zeros, 36, &err) && dw_gguf_commit(w, &err));
    check_sentence(&err, "'w' has 36 of its 40 bytes", "4 bytes too few");
    err = (dw_err){0};
    CHECK(dw_gguf_write(w, zeros, 5, &err));
    check_sentence(&err, "1 bytes too many", "a byte too many");
    dw_gguf_writer_free(w);
    CHECK(access(path, F_OK), "a refused file appeared");
}

/* As many keys as a reader takes, set, replaced and removed. */
static void many_keys(void) {
    enum { N = 65536 };
    dw_err err = {0};
    char key[32];
    const char *path = test_file("keys.gguf");
    dw_gguf_writer *w = dw_gguf_writer_new(path, &err);
    REQUIRE(w, "%s", err.text);
    const double begin = (double)clock() / CLOCKS_PER_SEC;
    for (uint32_t i = 0; i < N; i++) {
        snprintf(key, sizeof key, "general.number.%05u", i);
        dw_gguf_set_u32(w, key, i);
    }
    dw_gguf_set_u32(w, "general.number.00007", 70000);
    dw_gguf_unset(w, "general.number.00008");
    dw_gguf_unset(w, "general.number.00008");
    dw_gguf_set_u32(w, "general.number.65535", 80000);
    dw_gguf_set_text(w, "general.last", "x");
    const double seconds = (double)clock() / CLOCKS_PER_SEC - begin;
    CHECK(seconds < 3, "%.1f s for %d keys", seconds, N);
    CHECK(!dw_gguf_begin(w, &err) && !dw_gguf_commit(w, &err), "%s", err.text);
    dw_gguf_writer_free(w);
    dw_gguf *g = dw_gguf_open(path, &err);
    REQUIRE(g && dw_gguf_n_kv(g) == N, "%s", err.text);
    for (uint32_t i = 0; i < N - 1; i++) {
        const uint32_t number = i < 8 ? i : i + 1;
        snprintf(key, sizeof key, "general.number.%05u", number);
        const double value = number == 7 ? 70000 : number == N - 1 ? 80000 : number;
        REQUIRE(!strcmp(dw_gguf_kv(g, i)->key, key) && dw_kv_number(dw_gguf_kv(g, i), 0) == value, "key %u is %s", i,
                dw_gguf_kv(g, i)->key);
    }
    CHECK(!strcmp(dw_gguf_kv(g, N - 1)->key, "general.last"));
    dw_gguf_close(g);
}

static void hashed_from_the_start(void) {
    for (int late = 0; late < 2; late++) {
        const char *path = test_file("unhashed.gguf");
        dw_err err = {0};
        dw_gguf_writer *w = dw_gguf_writer_new(path, &err);
        REQUIRE(w && !dw_gguf_begin(w, &err), "%s", err.text);
        if (late) dw_gguf_hash_writes(w);
        CHECK(dw_gguf_commit_read_back(w, NULL, NULL, &err) && !dw_file_exists(path));
        CHECK(strstr(err.text, late ? "hashing was asked for after the header" : "its writes were not hashed"), "%s",
              err.text);
        dw_gguf_writer_free(w);
    }
}

/* A file-size limit stands for a full disk. */
static void full_disk(void) {
    dw_err err = {0};
    const char *path = test_path(test_folder(), "full.gguf");
    const size_t n_bytes = 4 << 20;
    uint8_t *zeros = calloc(1, n_bytes);
    struct rlimit old, small = {1 << 20, RLIM_INFINITY};
    getrlimit(RLIMIT_FSIZE, &old);
    small.rlim_max = old.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    dw_gguf_writer *w = dw_gguf_writer_new(path, &err);
    REQUIRE(w && zeros, "%s", err.text);
    dw_gguf_add_tensor(w, "w", dw_qtype_get(DW_F32), 1, (size_t[]){n_bytes / 4});
    setrlimit(RLIMIT_FSIZE, &small);
    CHECK(!dw_gguf_begin(w, &err) && dw_gguf_write(w, zeros, n_bytes, &err));
    check_sentence(&err, "cannot write", "a full disk");
    CHECK(dw_gguf_commit(w, &err), "committed after a failure");
    dw_gguf_writer_free(w);
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK(access(path, F_OK), "a cut file appeared");
    free(zeros);
}

/* ---- the reader's answers ----------------------------------------------------------------------------- */

static void typed_values(void) {
    test_bytes b = {0};
    put_gguf(&b, 2, 0, 5); // version 2 has the same layout
    put_kv_u32(&b, "big", 0x80000000);
    put_key(&b, "int", DW_KV_I32), put_u32(&b, 5);
    put_key(&b, "negative", DW_KV_I32), put_u32(&b, -5u);
    put_kv_array(&b, "two", DW_KV_U32, 2), put_u32(&b, 1), put_u32(&b, 2);
    put_key(&b, "wide", DW_KV_U64), put_u64(&b, 5);
    dw_err err = {0};
    dw_gguf *g = dw_gguf_open_memory(b.data, b.size, "typed", &err);
    REQUIRE(g, "%s", err.text);
    uint32_t v = 77, three[3];
    float f = 77;
    CHECK(dw_gguf_u32(g, "absent", &v, &err) == 0 && v == 77 && !err.text[0]);
    CHECK(dw_gguf_u32(g, "big", &v, &err) == 1 && v == 0x80000000 && dw_gguf_u32(g, "int", &v, &err) == 1 && v == 5);
    CHECK(dw_gguf_u32(g, "negative", &v, &err) == -1 && v == 5);
    check_sentence(&err, "'negative' is negative", "a negative number");
    err = (dw_err){0};
    CHECK(dw_gguf_u32(g, "two", &v, &err) == -1 && v == 5);
    check_sentence(&err, "is an array of u32, not u32", "an array");
    err = (dw_err){0};
    CHECK(dw_gguf_f32(g, "big", &f, &err) == -1 && f == 77);
    check_sentence(&err, "'big' is u32, not f32", "a number of another type");
    err = (dw_err){0};
    CHECK(dw_gguf_u32(g, "wide", &v, &err) == -1 && dw_gguf_bool(g, "wide", &(bool){0}, NULL) == -1);
    err = (dw_err){0};
    CHECK(dw_gguf_u32s(g, "two", three, 3, &err) == -1);
    check_sentence(&err, "2 values instead of 3", "a short array");
    dw_gguf_close(g);
    free(b.data);
}

static void many_names(void) {
    enum { N = 20000, TOKENS = 150000 };
    test_bytes b = {0};
    put_gguf(&b, 3, N, 1);
    put_kv_array(&b, "tokens", DW_KV_STR, TOKENS);
    for (int i = 0; i < TOKENS; i++) put_str(&b, "token");
    char name[32];
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "blk.%d.weight", i);
        put_tensor(&b, name, DW_F32, 1, (uint64_t[]){1}, 32 * (uint64_t)i);
    }
    put_padding(&b, 32);
    put_zeros(&b, N * 32);
    dw_err err = {0};
    dw_gguf *g = dw_gguf_open_memory(b.data, b.size, "many", &err);
    REQUIRE(g, "%s", err.text);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "blk.%d.weight", i);
        REQUIRE(dw_gguf_find_tensor(g, name) == dw_gguf_tensor(g, (size_t)i), "%s", name);
    }
    CHECK(dw_gguf_find(g, "tokens")->count == TOKENS && !dw_gguf_find_tensor(g, "blk.20000.weight"));
    dw_gguf_close(g);
    free(b.data);
}

static long faults(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_minflt + u.ru_majflt;
}

static void large_file(void) {
    const char *path = test_path(test_folder(), "large.gguf");
    test_bytes b = {0};
    put_gguf(&b, 3, 1, 0);
    put_tensor(&b, "w", DW_F32, 2, (uint64_t[]){1 << 15, 1 << 15}, 0);
    put_padding(&b, 32);
    save(&b, path);
    if (truncate(path, (off_t)b.size + (4l << 30))) SKIP("no room for a sparse file of 4 GiB");
    dw_err err = {0};
    const long before = faults();
    dw_gguf *g = dw_gguf_open(path, &err);
    const long touched = faults() - before;
    CHECK(g && touched < 200, "%s %ld pages touched", err.text, touched);
    dw_gguf_close(g);
    free(b.data);
}

/* ---- split models ----------------------------------------------------------------------------------------- */

static const char *part_path(int i, int n) {
    char name[64];
    snprintf(name, sizeof name, "split-%05d-of-%05d.gguf", i + 1, n);
    return test_path(test_folder(), name);
}

static void put_part(const char *path, int no, int count, uint32_t total, const char *tensor) {
    test_bytes b = {0};
    put_gguf(&b, 3, 1, no ? 3 : 4);
    put_key(&b, "split.no", DW_KV_U16), put_u16(&b, (uint16_t)no);
    put_key(&b, "split.count", DW_KV_U16), put_u16(&b, (uint16_t)count);
    put_key(&b, "split.tensors.count", DW_KV_I32), put_u32(&b, total);
    if (!no) put_kv_u32(&b, "first.only", 9);
    put_tensor(&b, tensor, DW_F32, 1, (uint64_t[]){2}, 0);
    put_padding(&b, 32);
    put_f32(&b, (float)no);
    put_padding(&b, 32);
    save(&b, path);
    free(b.data);
}

static void put_split(void) {
    put_part(part_path(0, 3), 0, 3, 3, "a");
    put_part(part_path(1, 3), 1, 3, 3, "b");
    put_part(part_path(2, 3), 2, 3, 3, "c");
}

static void split_refused(const char *path, const char *words) {
    dw_err err = {0};
    CHECK(!dw_gguf_open(path, &err), "%s", words);
    check_sentence(&err, words, path);
}

static void split_model(void) {
    put_split();
    dw_err err = {0};
    dw_gguf *g = dw_gguf_open(part_path(0, 3), &err);
    REQUIRE(g, "%s", err.text);
    float value = 0;
    const dw_tensor *c = dw_gguf_find_tensor(g, "c");
    CHECK(dw_gguf_n_tensors(g) == 3 && c == dw_gguf_tensor(g, 2) && dw_gguf_find(g, "first.only"));
    if (c) memcpy(&value, c->data, sizeof value);
    CHECK(value == 2);
    dw_gguf_close(g);

    split_refused(part_path(1, 3), "give the first part");
    put_part(part_path(2, 3), 2, 3, 3, "a");
    split_refused(part_path(0, 3), "tensor 'a' occurs twice");
    put_part(part_path(2, 3), 1, 3, 3, "c");
    split_refused(part_path(0, 3), "part 2 of 3 where part 3 of 3 should be");
    put_part(part_path(2, 3), 2, 3, 3, "c");
    put_part(part_path(0, 3), 0, 3, 4, "a");
    split_refused(part_path(0, 3), "hold 3 tensors, but 4");
    put_split();
    unlink(part_path(1, 3));
    split_refused(part_path(0, 3), "00002-of-00003.gguf'");
    put_part(test_path(test_folder(), "odd.gguf"), 0, 3, 3, "a");
    split_refused(test_path(test_folder(), "odd.gguf"), "must be named");
}

/* ---- truncations and changes -------------------------------------------------------------------------------- */

static void *open_gguf(const void *data, size_t size, const char *name, dw_err *err) {
    return dw_gguf_open_memory(data, size, name, err);
}

static void truncations(void) {
    const char *path = test_path(test_folder(), "whole.gguf");
    write_sample(path, 1000);
    size_t size = 0;
    char *bytes = file_bytes(path, &size);
    REQUIRE(bytes);
    for (size_t n = 0; n < size; n++) check_refused(open_gguf, bytes, n, "", "a truncated file");
    free(bytes);
}

/* A cheap relative of fuzz_gguf.c, for every run of the tests. */
static void random_changes(void) {
    const char *path = test_path(test_folder(), "changed.gguf");
    write_sample(path, 1000);
    size_t size = 0;
    char *bytes = file_bytes(path, &size);
    REQUIRE(bytes);
    dw_rng rng;
    dw_rng_seed(&rng, 1);
    char *copy = malloc(size);
    int n_refused = 0;
    for (int i = 0; i < 20000; i++) {
        memcpy(copy, bytes, size);
        for (uint64_t n = 1 + dw_rng_below(&rng, 3); n; n--) copy[dw_rng_below(&rng, 512)] = (char)dw_rng_next(&rng);
        dw_err err = {0};
        dw_gguf *g = dw_gguf_open_memory(copy, size, "changed", &err);
        if (!g) check_sentence(&err, "", "a changed file");
        n_refused += !g;
        dw_gguf_close(g);
    }
    CHECK(n_refused > 5000, "only %d refused", n_refused);
    free(copy);
    free(bytes);
}

static void long_names(void) {
    test_bytes b = {0};
    put_gguf(&b, 3, 0, 1);
    put_u64(&b, 65536);
    for (int i = 0; i < 65536; i++) put_u8(&b, 'k');
    put_u32(&b, DW_KV_BOOL), put_u8(&b, 1);
    check_refused(open_gguf, b.data, b.size, "too long", "a key of 64 KiB");
    b.size = 0;
    put_gguf(&b, 3, 0, 1);
    put_kv_array(&b, "tokens", DW_KV_STR, DW_GGUF_MAX_STRINGS + 1);
    put_zeros(&b, 8 * (DW_GGUF_MAX_STRINGS + (size_t)1));
    check_refused(open_gguf, b.data, b.size, "more than", "a vocabulary of 2^22 + 1 tokens");
    free(b.data);
}

/* ---- broken files --------------------------------------------------------------------------------------------- */

/* A header with one tensor and room for 64 bytes of data. */
static void one(test_bytes *b, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *ne, uint64_t offset) {
    put_gguf(b, 3, 1, 0);
    put_tensor(b, name, type, n_dims, ne, offset);
    put_padding(b, 32);
    put_zeros(b, 64);
}

static void two(test_bytes *b, const char *second, const uint64_t *ne, uint64_t offset) {
    put_gguf(b, 3, 2, 0);
    put_tensor(b, "a", DW_F32, 1, (uint64_t[]){4}, 0);
    put_tensor(b, second, DW_F32, 1, ne, offset);
    put_padding(b, 32);
    put_zeros(b, 128);
}

static void alignment(test_bytes *b, uint32_t value) {
    put_gguf(b, 3, 1, 1);
    put_kv_u32(b, "general.alignment", value);
    put_tensor(b, "a", DW_F32, 1, (uint64_t[]){4}, 0);
    put_padding(b, 32);
    put_zeros(b, 64);
}

static void split(test_bytes *b, uint32_t no, uint32_t count) {
    put_gguf(b, 3, 0, 2);
    put_kv_u32(b, "split.no", no);
    put_kv_u32(b, "split.count", count);
}

static void b_empty(test_bytes *b) { b->size = 0; }
static void b_magic_only(test_bytes *b) { put_text(b, "GGUF"); }
static void b_other_magic(test_bytes *b) { put_text(b, "GGML"), put_zeros(b, 60); }
static void b_version_0(test_bytes *b) { put_gguf(b, 0, 0, 0); }
static void b_version_1(test_bytes *b) { put_gguf(b, 1, 0, 0); }
static void b_version_4(test_bytes *b) { put_gguf(b, 4, 0, 0); }
static void b_big_endian(test_bytes *b) { put_gguf(b, 3u << 24, 0, 0); }
static void b_keys_wrap(test_bytes *b) { put_gguf(b, 3, 0, UINT64_MAX / 56 + 2), put_zeros(b, 64); }
static void b_keys_negative(test_bytes *b) { put_gguf(b, 3, 0, UINT64_MAX), put_zeros(b, 64); }
static void b_tensors_wrap(test_bytes *b) { put_gguf(b, 3, UINT64_MAX / 72 + 2, 0), put_zeros(b, 64); }
static void b_tensors_negative(test_bytes *b) { put_gguf(b, 3, 1ull << 63, 0), put_zeros(b, 64); }

static void b_key_length(test_bytes *b) { put_gguf(b, 3, 0, 1), put_u64(b, UINT64_MAX), put_zeros(b, 64); }
static void b_key_empty(test_bytes *b) { put_gguf(b, 3, 0, 1), put_kv_u32(b, "", 1); }
static void b_key_not_utf8(test_bytes *b) { put_gguf(b, 3, 0, 1), put_kv_u32(b, "caf\xe9", 1); }
static void b_key_twice(test_bytes *b) { put_gguf(b, 3, 0, 2), put_kv_u32(b, "k", 1), put_kv_u32(b, "k", 2); }

static void b_key_nul(test_bytes *b) {
    put_gguf(b, 3, 0, 1);
    put_u64(b, 3), put(b, "a\0b", 3);
    put_u32(b, DW_KV_U8), put_u8(b, 0);
}

static void b_string_length(test_bytes *b) {
    put_gguf(b, 3, 0, 1);
    put_key(b, "k", DW_KV_STR), put_u64(b, UINT64_MAX);
    put_zeros(b, 64);
}

static void b_string_in_array(test_bytes *b) {
    put_gguf(b, 3, 0, 1);
    put_kv_array(b, "k", DW_KV_STR, 2);
    put_str(b, "first"), put_u64(b, 1ull << 63);
    put_zeros(b, 64);
}

static void array(test_bytes *b, uint32_t type, uint64_t count) {
    put_gguf(b, 3, 0, 1);
    put_kv_array(b, "k", type, count);
    put_zeros(b, 64);
}

static void b_strings_wrap(test_bytes *b) { array(b, DW_KV_STR, UINT64_MAX / 16 + 2); }
static void b_strings_many(test_bytes *b) { array(b, DW_KV_STR, 1u << 30); }
static void b_numbers_wrap(test_bytes *b) { array(b, DW_KV_U64, UINT64_MAX / 8 + 2); }
static void b_numbers_many(test_bytes *b) { array(b, DW_KV_U8, 65); }
static void b_array_nested(test_bytes *b) { array(b, DW_KV_ARRAY, 1); }
static void b_array_type(test_bytes *b) { array(b, 99, 1ull << 40); }
static void b_value_type(test_bytes *b) { put_gguf(b, 3, 0, 1), put_key(b, "k", 13), put_zeros(b, 64); }
static void b_value_type_max(test_bytes *b) { put_gguf(b, 3, 0, 1), put_key(b, "k", UINT32_MAX), put_zeros(b, 64); }
static void b_value_cut(test_bytes *b) { put_gguf(b, 3, 0, 1), put_key(b, "k", DW_KV_U64), put_u32(b, 0); }

static void b_alignment_0(test_bytes *b) { alignment(b, 0); }
static void b_alignment_4(test_bytes *b) { alignment(b, 4); }
static void b_alignment_33(test_bytes *b) { alignment(b, 33); }
static void b_alignment_2e31(test_bytes *b) { alignment(b, 1u << 31); }

static void b_alignment_type(test_bytes *b) {
    put_gguf(b, 3, 0, 1);
    put_kv_str(b, "general.alignment", "32");
}

static void b_alignment_array(test_bytes *b) {
    put_gguf(b, 3, 0, 1);
    put_kv_array(b, "general.alignment", DW_KV_U32, 0);
}

static void b_name_64(test_bytes *b) {
    char name[65] = "";
    memset(name, 'n', 64);
    one(b, name, DW_F32, 1, (uint64_t[]){4}, 0);
}

static void b_name_length(test_bytes *b) { put_gguf(b, 3, 1, 0), put_u64(b, UINT64_MAX - 7), put_zeros(b, 64); }
static void b_name_empty(test_bytes *b) { one(b, "", DW_F32, 1, (uint64_t[]){4}, 0); }
static void b_name_not_utf8(test_bytes *b) { one(b, "\xc0\x80", DW_F32, 1, (uint64_t[]){4}, 0); }
static void b_name_twice(test_bytes *b) { two(b, "a", (uint64_t[]){4}, 32); }
static void b_dims_5(test_bytes *b) { one(b, "a", DW_F32, 5, (uint64_t[]){1, 1, 1, 1, 1}, 0); }

static void b_dims_max(test_bytes *b) {
    put_gguf(b, 3, 1, 0);
    put_str(b, "a"), put_u32(b, UINT32_MAX);
    put_zeros(b, 64);
}

static void b_dim_zero(test_bytes *b) { one(b, "a", DW_F32, 2, (uint64_t[]){4, 0}, 0); }
static void b_product_wrap(test_bytes *b) { one(b, "a", DW_F32, 2, (uint64_t[]){1ull << 62, 4}, 0); }
static void b_product_negative(test_bytes *b) { one(b, "a", DW_F32, 2, (uint64_t[]){UINT64_MAX, UINT64_MAX}, 0); }
static void b_product_small(test_bytes *b) { one(b, "a", DW_F32, 3, (uint64_t[]){1ull << 32, 1ull << 31, 2}, 0); }
static void b_bytes_wrap(test_bytes *b) { one(b, "a", DW_F32, 1, (uint64_t[]){(1ull << 62) + 4}, 0); }
static void b_bytes_pad(test_bytes *b) { one(b, "a", DW_F16, 1, (uint64_t[]){(1ull << 62) - 1}, 0); }
static void b_bytes_sum(test_bytes *b) { two(b, "b", (uint64_t[]){(1ull << 61) - 1}, 32); }
static void b_row_block(test_bytes *b) { one(b, "a", DW_Q8_0, 1, (uint64_t[]){33}, 0); }
static void b_row_block_product(test_bytes *b) { one(b, "a", DW_Q8_0, 2, (uint64_t[]){16, 2}, 0); }

static void b_offset_beyond(test_bytes *b) { one(b, "a", DW_F32, 1, (uint64_t[]){4}, 1ull << 40); }
static void b_offset_wrap(test_bytes *b) { one(b, "a", DW_F32, 1, (uint64_t[]){4}, UINT64_MAX - 31); }
static void b_offset_gap(test_bytes *b) { two(b, "b", (uint64_t[]){4}, 64); }
static void b_offset_overlap(test_bytes *b) { two(b, "b", (uint64_t[]){4}, 0); }
static void b_offset_odd(test_bytes *b) { two(b, "b", (uint64_t[]){4}, 16); }
static void b_data_cut(test_bytes *b) { one(b, "a", DW_F32, 1, (uint64_t[]){17}, 0); }
static void b_data_none(test_bytes *b) { one(b, "a", DW_F32, 1, (uint64_t[]){4}, 0), b->size -= 64; }

static void b_padding_none(test_bytes *b) {
    put_gguf(b, 3, 1, 0);
    put_tensor(b, "a", DW_F32, 1, (uint64_t[]){4}, 0);
}

static void b_type_removed(test_bytes *b) { one(b, "a", 4, 1, (uint64_t[]){32}, 0); }
static void b_type_unread(test_bytes *b) { one(b, "a", 17, 1, (uint64_t[]){256}, 0); }
static void b_type_unknown(test_bytes *b) { one(b, "a", 1000, 1, (uint64_t[]){32}, 0); }
static void b_type_max(test_bytes *b) { one(b, "a", UINT32_MAX, 1, (uint64_t[]){32}, 0); }
static void b_split_second(test_bytes *b) { split(b, 1, 2); }
static void b_split_beyond(test_bytes *b) { split(b, 2, 2); }
static void b_split_none(test_bytes *b) { split(b, 0, 0); }
static void b_split_name(test_bytes *b) { split(b, 0, 2); }

static void b_split_negative(test_bytes *b) {
    put_gguf(b, 3, 0, 2);
    put_key(b, "split.no", DW_KV_I32), put_u32(b, -1u);
    put_key(b, "split.count", DW_KV_I32), put_u32(b, 2);
}

static void b_split_type(test_bytes *b) {
    put_gguf(b, 3, 0, 1);
    put_kv_str(b, "split.count", "2");
}

static const broken_file broken[] = {
    {"gguf-empty.gguf", "a file of 0 bytes", "not a GGUF file", b_empty},
    {"gguf-magic-only.gguf", "the magic and nothing else (CVE-2024-39720)", "ends inside the GGUF header",
     b_magic_only},
    {"gguf-other-magic.gguf", "another magic", "not a GGUF file", b_other_magic},
    {"gguf-version-0.gguf", "version 0", "GGUF version 0", b_version_0},
    {"gguf-version-1.gguf", "version 1, whose lengths are 32-bit (CVE-2025-66960)", "GGUF version 1", b_version_1},
    {"gguf-version-4.gguf", "a version of the future", "GGUF version 4", b_version_4},
    {"gguf-big-endian.gguf", "a big-endian file", "a big-endian GGUF file", b_big_endian},
    {"gguf-keys-wrap.gguf", "number of keys x record size wraps (CVE-2024-23605)", "keys do not fit", b_keys_wrap},
    {"gguf-keys-negative.gguf", "number of keys -1", "keys do not fit", b_keys_negative},
    {"gguf-tensors-wrap.gguf", "number of tensors x record size wraps (CVE-2024-21836)", "tensors do not fit",
     b_tensors_wrap},
    {"gguf-tensors-negative.gguf", "number of tensors -2^63", "tensors do not fit", b_tensors_negative},
    {"gguf-key-length.gguf", "length of a key + 1 wraps (CVE-2024-23496)", "ends inside key 0", b_key_length},
    {"gguf-key-empty.gguf", "an empty key", "its name is empty", b_key_empty},
    {"gguf-key-not-utf8.gguf", "a key in Latin-1", "not UTF-8", b_key_not_utf8},
    {"gguf-key-nul.gguf", "NUL inside a key", "not UTF-8", b_key_nul},
    {"gguf-key-twice.gguf", "the same key twice", "key 'k' occurs twice", b_key_twice},
    {"gguf-string-length.gguf", "length of a string + 1 wraps (CVE-2024-23496)", "ends inside the value of key 0",
     b_string_length},
    {"gguf-string-in-array.gguf", "length 2^63 of a string in an array (CVE-2025-66959)",
     "ends inside the value of key 0", b_string_in_array},
    {"gguf-strings-wrap.gguf", "number of strings x record size wraps (CVE-2024-21825)", "strings does not fit",
     b_strings_wrap},
    {"gguf-strings-many.gguf", "2^30 strings announced in a tiny file (CVE-2025-0315)", "strings does not fit",
     b_strings_many},
    {"gguf-numbers-wrap.gguf", "number of elements x element size wraps", "do not fit", b_numbers_wrap},
    {"gguf-numbers-many.gguf", "an array one byte longer than the file (CVE-2024-12055)", "do not fit", b_numbers_many},
    {"gguf-array-nested.gguf", "an array of arrays, the way to endless recursion", "arrays of arrays", b_array_nested},
    {"gguf-array-type.gguf", "2^40 elements of an unknown type, the way to an endless loop", "unknown value type 99",
     b_array_type},
    {"gguf-value-type.gguf", "a value of unknown type", "unknown value type 13", b_value_type},
    {"gguf-value-type-max.gguf", "a value of type -1", "unknown value type 4294967295", b_value_type_max},
    {"gguf-value-cut.gguf", "the file ends inside a number", "do not fit", b_value_cut},
    {"gguf-alignment-0.gguf", "alignment 0: division by zero (CVE-2025-0317)", "alignment 0", b_alignment_0},
    {"gguf-alignment-4.gguf", "alignment below 8", "alignment 4", b_alignment_4},
    {"gguf-alignment-33.gguf", "alignment that is not a power of two", "alignment 33", b_alignment_33},
    {"gguf-alignment-2e31.gguf", "alignment 2^31", "alignment 2147483648", b_alignment_2e31},
    {"gguf-alignment-type.gguf", "alignment as a string", "must be one u32", b_alignment_type},
    {"gguf-alignment-array.gguf", "alignment as an empty array", "must be one u32", b_alignment_array},
    {"gguf-name-64.gguf", "a tensor's name of 64 bytes: no room for the NUL in other readers", "too long", b_name_64},
    {"gguf-name-length.gguf", "length of a name near 2^64", "ends inside the description of tensor 0", b_name_length},
    {"gguf-name-empty.gguf", "a tensor without a name", "its name is empty", b_name_empty},
    {"gguf-name-not-utf8.gguf", "a name with an overlong NUL", "not UTF-8", b_name_not_utf8},
    {"gguf-name-twice.gguf", "two tensors of one name", "tensor 'a' occurs twice", b_name_twice},
    {"gguf-dims-5.gguf", "five dimensions: a write beyond ne[4] (CVE-2024-21802)", "has 5 dimensions", b_dims_5},
    {"gguf-dims-max.gguf", "2^32 - 1 dimensions", "has 4294967295 dimensions", b_dims_max},
    {"gguf-dim-zero.gguf", "a dimension of 0: division by zero in other readers", "dimension 1 is 0", b_dim_zero},
    {"gguf-product-wrap.gguf", "product of dimensions wraps to 0 (CVE-2026-33298)", "overflow", b_product_wrap},
    {"gguf-product-negative.gguf", "-1 x -1 values", "overflow", b_product_negative},
    {"gguf-product-small.gguf", "2^32 x 2^31 x 2: the product wraps only at the end", "overflow", b_product_small},
    {"gguf-bytes-wrap.gguf", "2^62 + 4 numbers of 4 bytes look like 16 bytes (CVE-2026-33298)", "overflow",
     b_bytes_wrap},
    {"gguf-bytes-pad.gguf", "a size that wraps when it is padded (CVE-2025-53630)", "beyond the end", b_bytes_pad},
    {"gguf-bytes-sum.gguf", "the sum of sizes wraps (CVE-2026-27940)", "beyond the end", b_bytes_sum},
    {"gguf-row-block.gguf", "a row of 33 values in blocks of 32", "not whole blocks", b_row_block},
    {"gguf-row-block-product.gguf", "two rows of half a block", "not whole blocks", b_row_block_product},
    {"gguf-offset-beyond.gguf", "an offset beyond the file: other heap content leaks (CVE-2026-7482)", "instead of 0",
     b_offset_beyond},
    {"gguf-offset-wrap.gguf", "an offset near 2^64, so that offset + size wraps", "instead of 0", b_offset_wrap},
    {"gguf-offset-gap.gguf", "a gap between tensors", "a gap or an overlap", b_offset_gap},
    {"gguf-offset-overlap.gguf", "two tensors at one place", "a gap or an overlap", b_offset_overlap},
    {"gguf-offset-odd.gguf", "an offset that is not aligned", "a gap or an overlap", b_offset_odd},
    {"gguf-data-cut.gguf", "a tensor 4 bytes longer than the file (CVE-2026-7482)", "beyond the end", b_data_cut},
    {"gguf-data-none.gguf", "a header without data", "beyond the end", b_data_none},
    {"gguf-padding-none.gguf", "the file ends before the padding of the header", "padding before tensor 0",
     b_padding_none},
    {"gguf-type-removed.gguf", "a removed type, block size 0: division by zero", "tensor 'a' has type", b_type_removed},
    {"gguf-type-unread.gguf", "IQ2_XS, which is not read", "tensor 'a' has type IQ2_XS (17), which is not supported",
     b_type_unread},
    {"gguf-type-unknown.gguf", "type 1000", "(1000), which is not supported", b_type_unknown},
    {"gguf-type-max.gguf", "type -1", "(4294967295), which is not supported", b_type_max},
    {"gguf-split-second.gguf", "the second part of a split model", "give the first part", b_split_second},
    {"gguf-split-beyond.gguf", "part 3 of 2", "'split.no' is 2, but there are 2 parts", b_split_beyond},
    {"gguf-split-none.gguf", "a split model of no parts", "'split.no' is 0, but there are 0 parts", b_split_none},
    {"gguf-split-negative.gguf", "part -1 of a split model", "'split.no' is negative", b_split_negative},
    {"gguf-split-name.gguf", "a first part whose name does not lead to the others", "must be named", b_split_name},
    {"gguf-split-type.gguf", "number of parts as a string", "missing or not a number", b_split_type},
    {0},
};

static void broken_files(void) { check_broken(broken, "gguf-", open_gguf); }

static const test_case cases[] = {
    {"what is written is read again", round_trip},
    {"the same calls, a copy, and pieces of any size give the same bytes", same_bytes},
    {"the layer of a tensor is read from its name, and from nothing like it", layers_of_names},
    {"a file is written as it was in tests/seeds", seed},
    {"the writer refuses what a reader would refuse", writer_refuses},
    {"a file with too few or too many data does not appear", writer_counts},
    {"tens of thousands of keys are written in order, in seconds", many_keys},
    {"only what was hashed from the header on is read back", hashed_from_the_start},
    {"a full disk leaves no file", full_disk},
    {"a value of another type is an error, an absent one is not", typed_values},
    {"thousands of names are found, each in its place", many_names},
    {"opening a file of 4 GiB touches its header only", large_file},
    {"a split model is read as one, and contradictions between parts are refused", split_model},
    {"every truncation costs one sentence", truncations},
    {"random changes cost at most one sentence", random_changes},
    {"names and vocabularies beyond the limits are refused", long_names},
    {"every broken file is refused for its own reason", broken_files},
    {0},
};

int main(int argc, char **argv) {
    return write_broken(broken, argc, argv) ? 0 : test_main(cases, __FILE__, argc, argv);
}
