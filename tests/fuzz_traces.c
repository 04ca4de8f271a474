/* fuzz_traces.c - any bytes as traces, and any changes to the datasets of a good file behind a right checksum. */
#include "kit/traces.h"
#include "tests/h5_changes.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Rows that are accepted hold what traces.h promises. */
static void read_rows(const traces *t, int l, traces_part part) {
    const size_t n = t->n_tokens < 64 ? t->n_tokens : 64, bytes = traces_row_bytes(t, l, part);
    dw_err err = {0};
    uint8_t *rows = bytes ? malloc(n * bytes) : NULL;
    if (!rows) return;
    const int rc = traces_read(t, l, part, t->n_tokens - n, n, rows, &err);
    if (!rc != !err.text[0]) abort();
    for (size_t i = 0; !rc && part != TRACES_OPEN && i < n * bytes; i += 2) {
        const float v = dw_f16_to_f32(dw_le16(rows + i));
        if (!(v >= -65504 && v <= 65504) || (part == TRACES_SHARE && !(v >= 0 && v <= 1))) abort();
    }
    free(rows);
}

static void read_file(const char *path) {
    dw_err err = {0};
    traces t;
    const int rc = traces_open(&t, path, &err);
    if (!rc != !err.text[0]) abort();
    if (rc) return;
    for (int l = 0; l < t.n_layer; l++)
        for (int part = TRACES_INPUT; part <= TRACES_SHARE; part++) read_rows(&t, l, (traces_part)part);
    traces_release(&t);
}

static int give(void *ctx, int layer, traces_part part, size_t first, size_t n, uint8_t *to, dw_err *err) {
    (void)first, (void)err;
    memset(to, part == TRACES_OPEN ? 1 : 0, n * traces_row_bytes(ctx, layer, part));
    return 0;
}

static void make_good_file(const char *path) {
    static char nothing[] = "";
    traces_layer layer[] = {{0, true}, {11, true}};
    dw_stats_text text[] = {{"a", "", 1, 2, 12, nothing}, {"b", "", 1, 1, 6, nothing}};
    traces t = {.n_layer = 2, .n_embd = 8, .n_ctx = 6, .group = 3, .arguments = nothing, .n_tokens = 18, .n_text = 2, .text = text, .layer = layer};
    memset(t.model_sha256, 'a', 64), memset(text[0].sha256, 'b', 64), memset(text[1].sha256, 'c', 64);
    if (traces_write(&t, path, give, &t, NULL)) abort();
}

static const char *const paths[] = {"texts/name", "texts/sha256", "texts/first_window", "texts/n_windows", "texts/n_tokens", "texts/blocks", "layer/00/input",
                                    "layer/01/input", "layer/01/open", "layer/01/share", "layer/00/open", "layer/00/share", "layer/01", "texts", NULL};
static const char *const attributes[] = {"format_version", "n_layer", "n_embd", "n_ctx", "skip", "group", "n_tokens", NULL};

static const h5_kind kind = {"traces", "deadwood traces 1\n", paths, attributes, make_good_file, read_file};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    h5_try(&kind, data, size);
    return 0;
}
