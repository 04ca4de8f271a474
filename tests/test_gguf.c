/* test_gguf.c - the GGUF reader and writer: round trips, every truncation, published holes. */
#include "formats/internal.h"
#include "tests/build.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
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
    CHECK(dw_kv_number(dw_gguf_find(g, "test.bytes"), 0) == -1 && isnan(dw_kv_number(dw_gguf_find(g, "test.bytes"), 3)));
    CHECK(dw_gguf_find(g, "test.none")->count == 0 && !dw_gguf_find(g, "test.gone"));
    const dw_kv *tokens = dw_gguf_find(g, "test.tokens");
    CHECK(tokens->count == 3 && tokens->str[1].len == 0 && !memcmp(tokens->str[2].ptr, "\xff\0z", 3));
    const dw_tensor *t = dw_gguf_find_tensor(g, "f32");
    CHECK(t == dw_gguf_tensor(g, 1) && t->ne[0] == 5 && t->ne[1] == 2 && t->ne[3] == 1 && t->n_bytes == 40);
    CHECK(t->data[0] == (uint8_t)(6 * 34 * 7) && t->data[39] == (uint8_t)((6 * 34 + 39) * 7));
    CHECK(!err.text[0], "%s", err.text);
    dw_gguf_close(g);
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
    for (size_t i = 0; i < dw_gguf_n_kv(g); i++) dw_gguf_set_kv(w, dw_gguf_kv(g, i)->key, dw_gguf_kv(g, i));
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

static const test_case cases[] = {
    {"what is written is read again", round_trip},
    {"the same calls, a copy, and pieces of any size give the same bytes", same_bytes},
    {0},
};
TEST_MAIN(cases)
