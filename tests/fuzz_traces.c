/* fuzz_traces.c - any bytes as traces, and any changes to the datasets of a good file behind a right checksum.
 *
 * Bytes are taken as a file as they are; the checksum in front keeps them away from the HDF5 library, which is not this
 * target's subject.  Then the bytes are read as a list of changes that the library makes to a good file, whose checksum
 * is put right: what this project's own reader has to judge. */
#include "predict/traces.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char path[64];

static void remove_file(void) { unlink(path); }

static void put_file(const uint8_t *data, size_t size) {
    const int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    close(fd);
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

static void read_file(void) {
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

static void make_good_file(void) {
    static char nothing[] = "";
    traces_layer layer[] = {{0, true}, {11, true}};
    dw_stats_text text[] = {{"a", "", 1, 2, 12, nothing}, {"b", "", 1, 1, 6, nothing}};
    traces t = {.n_layer = 2, .n_embd = 8, .n_ctx = 6, .group = 3, .arguments = nothing, .n_tokens = 18, .n_text = 2, .text = text, .layer = layer};
    memset(t.model_sha256, 'a', 64), memset(text[0].sha256, 'b', 64), memset(text[1].sha256, 'c', 64);
    if (traces_write(&t, path, give, &t, NULL)) abort();
}

static const char *const paths[] = {"texts/name", "texts/sha256", "texts/first_window", "texts/n_windows", "texts/n_tokens", "texts/blocks", "layer/00/input",
                                    "layer/01/input", "layer/01/open", "layer/01/share", "layer/00/open", "layer/00/share", "layer/01", "texts"};
static const char *const attributes[] = {"format_version", "n_layer", "n_embd", "n_ctx", "skip", "group", "n_tokens"};

/* A dataset in another shape or type, with one value everywhere. */
static void put_set(hid_t f, const char *name, const uint8_t b[6]) {
    const hid_t half = dw_h5_half_type(), types[] = {half, H5T_STD_U8LE, H5T_STD_U64LE, H5T_STD_I32LE, H5T_STD_U16LE}, type = types[b[0] % 5];
    const hsize_t dims[] = {b[1], b[2]}, chunk[] = {1 + b[3] % 8, 1 + b[4] % 8};
    static uint8_t values[256 * 256 * 8];
    memset(values, b[5], sizeof values);
    H5Ldelete(f, name, H5P_DEFAULT);
    const hid_t space = H5Screate_simple(1 + b[0] / 5 % 2, dims, NULL), how = H5Pcreate(H5P_DATASET_CREATE);
    if (b[3] & 128) H5Pset_chunk(how, 1 + b[0] / 5 % 2, chunk);
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

static void change_file(const uint8_t *data, size_t size) {
    const hid_t f = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    for (size_t n = 0; size >= 8 && n < 8; data += 8, size -= 8, n++) {
        const char *name = paths[data[1] % (sizeof paths / sizeof *paths)];
        switch (data[0] % 4) {
        case 0: H5Ldelete(f, name, H5P_DEFAULT); break;
        case 1: put_set(f, name, data + 2); break;
        case 2: put_attribute(f, attributes[data[1] % (sizeof attributes / sizeof *attributes)], data + 2); break;
        default: H5Lmove(f, name, f, paths[data[2] % (sizeof paths / sizeof *paths)], H5P_DEFAULT, H5P_DEFAULT); break;
        }
    }
    H5Fclose(f);
    size_t n;
    char block[DW_H5_USER_BLOCK];
    uint8_t *bytes = (uint8_t *)dw_read_file(path, 1 << 28, &n, NULL);
    if (!bytes) abort();
    dw_h5_user_block("deadwood traces 1\n", bytes + sizeof block, n - sizeof block, block);
    memcpy(bytes, block, sizeof block);
    put_file(bytes, n);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t *good;
    static size_t n_good;
    if (!good) {
        snprintf(path, sizeof path, "/dev/shm/fuzz-traces-%ld.h5", (long)getpid());
        atexit(remove_file);
        dw_h5_quiet();
        make_good_file();
        good = (uint8_t *)dw_read_file(path, 1 << 28, &n_good, NULL);
        if (!good) abort();
    }
    put_file(data, size);
    read_file();
    put_file(good, n_good);
    change_file(data, size);
    read_file();
    return 0;
}
