/* h5_changes.c - good statistics and traces, and the ways in which they are changed (h5_changes.h). */
#include "tests/h5_changes.h"

#include "kit/traces.h"
#include "tests/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_DIM = 72,
    MAX_CHANGES = 8
}; // dimensions beyond those of any good file here; small, for every file is hashed

/* ---- files ------------------------------------------------------------------------------------------------------ */

uint8_t *h5_bytes(const char *path, size_t *size) {
    uint8_t *bytes = (uint8_t *)dw_read_file(path, 1 << 28, size, NULL);
    if (!bytes) abort();
    return bytes;
}

void h5_seal(const char *path, const char *magic, uint8_t *bytes, size_t n) {
    char block[KIT_H5_USER_BLOCK];
    kit_h5_user_block(magic, bytes + sizeof block, n - sizeof block, block);
    memcpy(bytes, block, sizeof block);
    scratch_write(path, bytes, n);
}

void h5_seal_file(const char *path, const char *magic) {
    size_t n;
    uint8_t *bytes = h5_bytes(path, &n);
    h5_seal(path, magic, bytes, n);
    free(bytes);
}

void h5_change(const char *path, const char *magic, void (*change)(hid_t file)) {
    const hid_t f = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    if (f < 0) abort();
    change(f);
    H5Fclose(f);
    h5_seal_file(path, magic);
}

/* A heap: "GCOL", version (4 bytes), size (8); each string: number (2), references (2), zeros (4), length (8),
 * bytes.  A name of a string: its length (4), the heap's address (8), its number (4). */
void h5_damage_heap(const char *path, const char *magic, h5_heap_part part, int64_t value) {
    size_t n;
    uint8_t *bytes = h5_bytes(path, &n), *heap = memmem(bytes, n, "GCOL", 4);
    if (!heap) abort();
    struct __attribute__((packed)) {
        uint32_t length;
        uint64_t address;
    } hash = {64, (uint64_t)(heap - bytes) - KIT_H5_USER_BLOCK};
    uint8_t *name = memmem(bytes, n, &hash, sizeof hash); // of the model
    if (!name) abort();
    if (part == H5_STRING_LENGTH) memcpy(heap + 24, &value, 8);
    else memcpy(name + sizeof hash, &value, 4);
    h5_seal(path, magic, bytes, n);
    free(bytes);
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

static void make_stats(const char *path) {
    const int n_ff[] = {40, 0}, n_mix[] = {8, 8};
    kit_stats s;
    if (kit_stats_init(&s, 2, 8, n_ff, n_mix, 3, NULL) || kit_stats_add_gradients(&s, NULL)) abort();
    memset(s.model_sha256, 'a', 64);
    for (size_t t = 0; t < 3; t++) {
        memset(s.text[t].sha256, "bcd"[t], 64);
        s.text[t].first_window = s.text[t].n_windows = 1;
        s.text[t].n_tokens = 10;
    }
    if (kit_stats_write(&s, path, NULL)) abort();
    kit_stats_release(&s);
}

static void read_stats(const char *path) {
    dw_err err = {0};
    kit_stats s;
    const int rc = kit_stats_read(&s, path, &err);
    if (!rc != !err.text[0]) abort();
    if (rc) return;
    const uint64_t n_tokens = kit_stats_n_tokens(&s);
    for (int l = 0; l < s.n_layer; l++) {
        const kit_stats_layer *w = &s.layer[l];
        for (size_t i = 0; i < s.n_text * (size_t)w->n_ff; i++)
            if (!(w->sum_abs[i] >= 0) || !(w->max_abs[i] >= 0)) abort();
        for (size_t i = 0; s.has_gradients && i < s.n_text * (size_t)w->n_ff; i++)
            if (!(w->sum_taylor[i] >= 0) || !(w->sum_fisher[i] >= 0)) abort();
        for (size_t i = 0; i < (size_t)w->n_ff * KIT_STATS_BINS; i++)
            if (w->hist_a[i] > n_tokens || w->hist_gate[i] > n_tokens) abort();
    }
    kit_stats_release(&s);
}

static const char *const stats_paths[] = {"texts/name",
                                          "texts/sha256",
                                          "texts/first_window",
                                          "texts/n_windows",
                                          "texts/n_tokens",
                                          "texts/blocks",
                                          "layer/00/ffn/count",
                                          "layer/00/ffn/sum_a",
                                          "layer/00/ffn/sum_abs",
                                          "layer/00/ffn/sum_square",
                                          "layer/00/ffn/max_abs",
                                          "layer/00/ffn/hist_a",
                                          "layer/00/ffn/hist_group_64",
                                          "layer/01/ffn/count",
                                          "layer/01/input/attn_in/sum_square",
                                          "layer/00/input/attn_mix/sum_square",
                                          "layer/00/input/ffn_in/hist",
                                          "layer/00/influence/sum_cosine",
                                          "layer/01/influence/count",
                                          "layer/00/ffn/sum_taylor",
                                          "layer/00/ffn/sum_fisher",
                                          "output/sum_square",
                                          "layer/00",
                                          "texts",
                                          "output",
                                          NULL};
static const char *const stats_attributes[] = {"format_version", "n_layer",    "n_embd", "n_ctx",
                                               "skip",           "hist_every", NULL};

const h5_kind h5_stats = {"stats", "deadwood stats 1\n", stats_paths, stats_attributes, make_stats, read_stats};

/* ---- traces ------------------------------------------------------------------------------------------------------ */

static int give_rows(void *ctx, int layer, traces_part part, size_t first, size_t n, uint8_t *to, dw_err *err) {
    (void)first, (void)err;
    memset(to, part == TRACES_OPEN ? 1 : 0, n * traces_row_bytes(ctx, layer, part));
    return 0;
}

static void make_traces(const char *path) {
    static char nothing[] = "";
    traces_layer layer[] = {{0, true}, {11, true}};
    kit_stats_text text[] = {{"a", "", 1, 2, 12, nothing}, {"b", "", 1, 1, 6, nothing}};
    traces t = {.n_layer = 2,
                .n_embd = 8,
                .n_ctx = 6,
                .group = 3,
                .arguments = nothing,
                .n_tokens = 18,
                .n_text = 2,
                .text = text,
                .layer = layer};
    memset(t.model_sha256, 'a', 64), memset(text[0].sha256, 'b', 64), memset(text[1].sha256, 'c', 64);
    if (traces_write(&t, path, give_rows, &t, NULL)) abort();
}

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

static void read_traces(const char *path) {
    dw_err err = {0};
    traces t;
    const int rc = traces_open(&t, path, &err);
    if (!rc != !err.text[0]) abort();
    if (rc) return;
    for (int l = 0; l < t.n_layer; l++)
        for (int part = TRACES_INPUT; part <= TRACES_SHARE; part++) read_rows(&t, l, (traces_part)part);
    traces_release(&t);
}

static const char *const traces_paths[] = {
    "texts/name",    "texts/sha256",   "texts/first_window", "texts/n_windows", "texts/n_tokens",
    "texts/blocks",  "layer/00/input", "layer/01/input",     "layer/01/open",   "layer/01/share",
    "layer/00/open", "layer/00/share", "layer/01",           "texts",           NULL};
static const char *const traces_attributes[] = {"format_version", "n_layer", "n_embd",   "n_ctx",
                                                "skip",           "group",   "n_tokens", NULL};

const h5_kind h5_traces = {"traces", "deadwood traces 1\n", traces_paths, traces_attributes, make_traces, read_traces};

/* ---- changes by the library -------------------------------------------------------------------------------------- */

static const char *pick(const char *const *names, uint8_t which) {
    size_t n = 0;
    while (names[n]) n++;
    return names[which % n];
}

/* A dataset in another shape or type, with one value everywhere. */
static void put_set(hid_t f, const char *name, const uint8_t b[6]) {
    const hid_t half = kit_h5_half_type(), types[] = {H5T_IEEE_F64LE, H5T_IEEE_F32LE, half,          H5T_STD_U8LE,
                                                      H5T_STD_U16LE,  H5T_STD_U32LE,  H5T_STD_U64LE, H5T_STD_I32LE};
    const hid_t type = types[b[0] % 8];
    const int rank = 1 + b[0] / 8 % 2;
    const hsize_t dims[] = {b[1] % MAX_DIM, b[2] % MAX_DIM}, chunk[] = {1 + b[3] % 8, 1 + b[4] % 8};
    static uint8_t values[MAX_DIM * MAX_DIM * 8];
    memset(values, b[5], sizeof values);
    H5Ldelete(f, name, H5P_DEFAULT);
    const hid_t space = H5Screate_simple(rank, dims, NULL), how = H5Pcreate(H5P_DATASET_CREATE);
    if (b[3] & 128) H5Pset_chunk(how, rank, chunk);
    const hid_t set = H5Dcreate2(f, name, type, space, H5P_DEFAULT, how, H5P_DEFAULT);
    if (set >= 0 && b[4] & 128) H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
    if (set >= 0) H5Dclose(set);
    H5Pclose(how), H5Sclose(space), H5Tclose(half);
}

static void put_attribute(hid_t f, const char *name, const uint8_t *b) {
    int32_t v;
    memcpy(&v, b, sizeof v);
    const hid_t a = H5Aopen(f, name, H5P_DEFAULT);
    if (a >= 0) H5Awrite(a, H5T_NATIVE_INT32, &v), H5Aclose(a);
}

void h5_make_changes(const h5_kind *kind, const char *path, const uint8_t *data, size_t size) {
    const hid_t f = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    for (size_t n = 0; size >= 8 && n < MAX_CHANGES; data += 8, size -= 8, n++) {
        const char *name = pick(kind->paths, data[1]);
        switch (data[0] % 5) {
        case 0: H5Ldelete(f, name, H5P_DEFAULT); break;
        case 1: put_set(f, name, data + 2); break;
        case 2: put_attribute(f, pick(kind->attributes, data[1]), data + 2); break;
        case 3: H5Lmove(f, name, f, pick(kind->paths, data[2]), H5P_DEFAULT, H5P_DEFAULT); break;
        default:
            H5Ldelete(f, pick(kind->paths, data[2]), H5P_DEFAULT);
            H5Lcreate_hard(f, name, f, pick(kind->paths, data[2]), H5P_DEFAULT, H5P_DEFAULT);
        }
    }
    H5Fclose(f);
    h5_seal_file(path, kind->magic);
}

/* ---- tries ------------------------------------------------------------------------------------------------------- */

static const char *tried; // NULL before the first try

static const char *name_tried(void) {
    if (!tried) {
        tried = scratch_path();
        kit_h5_quiet();
    }
    return tried;
}

/* The bytes of a good file; made once. */
static const uint8_t *good_file(const h5_kind *kind, size_t *size) {
    static uint8_t *good[2];
    static size_t n_good[2];
    const int which = kind == &h5_traces;
    if (!good[which]) {
        kind->make(name_tried());
        good[which] = h5_bytes(tried, &n_good[which]);
    }
    *size = n_good[which];
    return good[which];
}

void h5_try_file(const h5_kind *kind, const uint8_t *data, size_t size) {
    scratch_write(name_tried(), data, size);
    kind->read(tried);
}

void h5_try_changes(const h5_kind *kind, const uint8_t *data, size_t size) {
    size_t n;
    const uint8_t *good = good_file(kind, &n);
    scratch_write(tried, good, n);
    h5_make_changes(kind, tried, data, size);
    kind->read(tried);
}

/* Every 8 bytes: where (3), how many bytes (1), with what they are overwritten (4; eight bytes: sign-extended). */
void h5_try_damage(const h5_kind *kind, const uint8_t *data, size_t size) {
    size_t n;
    const uint8_t *good = good_file(kind, &n);
    uint8_t *bytes = malloc(n + 8);
    if (!bytes) abort();
    memcpy(bytes, good, n);
    for (size_t i = 0; size >= 8 && i < MAX_CHANGES; data += 8, size -= 8, i++) {
        const size_t at = KIT_H5_USER_BLOCK + (dw_le32(data) & 0xffffff) % (n - KIT_H5_USER_BLOCK);
        const int64_t value = (int32_t)dw_le32(data + 4);
        memcpy(bytes + at, &value, (size_t)1 << data[3] % 4);
    }
    h5_seal(tried, kind->magic, bytes, n);
    free(bytes);
    kind->read(tried);
}
