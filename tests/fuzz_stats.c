/* fuzz_stats.c - any bytes as statistics, and any changes to the datasets of a good file behind a right checksum.
 *
 * Bytes are taken as a file as they are; the checksum in front keeps them away from the HDF5 library, which is not this
 * target's subject.  Then the bytes are read as a list of changes that the library makes to a good file, whose checksum
 * is put right: what this project's own reader has to judge. */
#include "formats/stats.h"

#include <fcntl.h>
#include <hdf5.h>
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

static void read_file(void) {
    dw_err err = {0};
    dw_stats s;
    const int rc = dw_stats_read(&s, path, &err);
    if (!rc != !err.text[0]) abort();
    if (rc) return;
    for (int l = 0; l < s.n_layer; l++)
        for (size_t i = 0; i < s.n_text * (size_t)s.layer[l].n_ff; i++)
            if (!(s.layer[l].sum_abs[i] >= 0) || !(s.layer[l].max_abs[i] >= 0)) abort();
    dw_stats_release(&s);
}

static void make_good_file(void) {
    const int n_ff[] = {40, 0}, n_mix[] = {8, 8};
    dw_stats s;
    if (dw_stats_init(&s, 2, 8, n_ff, n_mix, 3, NULL)) abort();
    memset(s.model_sha256, 'a', 64);
    for (size_t t = 0; t < 3; t++) {
        memset(s.text[t].sha256, "bcd"[t], 64);
        s.text[t].first_window = s.text[t].n_windows = 1;
        s.text[t].n_tokens = 10;
    }
    if (dw_stats_write(&s, path, NULL)) abort();
    dw_stats_release(&s);
}

static const char *const paths[] = {"texts/name", "texts/sha256", "texts/first_window", "texts/n_windows", "texts/n_tokens", "texts/blocks", "layer/00/ffn/count",
                                    "layer/00/ffn/sum_a", "layer/00/ffn/sum_abs", "layer/00/ffn/sum_square", "layer/00/ffn/max_abs", "layer/00/ffn/hist_a",
                                    "layer/00/ffn/hist_group_64", "layer/01/ffn/count", "layer/01/input/attn_in/sum_square", "layer/00/input/attn_mix/sum_square",
                                    "layer/00/input/ffn_in/hist", "layer/00/influence/sum_cosine", "layer/01/influence/count", "output/sum_square", "layer/00", "texts", "output"};
static const char *const attributes[] = {"format_version", "n_layer", "n_embd", "n_ctx", "skip", "hist_every"};

/* A dataset in another shape or type, with one value everywhere. */
static void put_set(hid_t f, const char *name, const uint8_t b[6]) {
    const hid_t types[] = {H5T_IEEE_F64LE, H5T_IEEE_F32LE, H5T_STD_U32LE, H5T_STD_U64LE, H5T_STD_I32LE};
    const hid_t type = types[b[0] % 5];
    const hsize_t dims[] = {b[1], b[2]}, chunk[] = {1 + b[3] % 8, 1 + b[4] % 8};
    static uint8_t values[256 * 256 * 8];
    memset(values, b[5], sizeof values);
    H5Ldelete(f, name, H5P_DEFAULT);
    const hid_t space = H5Screate_simple(1 + b[0] % 2, dims, NULL), how = H5Pcreate(H5P_DATASET_CREATE);
    if (b[3] & 128) H5Pset_chunk(how, 1 + b[0] % 2, chunk);
    const hid_t set = H5Dcreate2(f, name, type, space, H5P_DEFAULT, how, H5P_DEFAULT);
    if (set >= 0 && b[4] & 128) H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
    if (set >= 0) H5Dclose(set);
    H5Pclose(how), H5Sclose(space);
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
    uint8_t *bytes = (uint8_t *)dw_read_file(path, 1 << 28, &n, NULL), digest[32];
    char hex[65];
    dw_sha256 h;
    if (!bytes) abort();
    dw_sha256_begin(&h);
    dw_sha256_add(&h, bytes + 512, n - 512);
    dw_sha256_end(&h, digest);
    dw_hex(digest, 32, hex);
    memcpy(bytes + strlen("deadwood stats 1\n"), hex, 64);
    put_file(bytes, n);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t *good;
    static size_t n_good;
    if (!good) {
        snprintf(path, sizeof path, "/dev/shm/fuzz-stats-%ld.h5", (long)getpid());
        atexit(remove_file);
        H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
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
