/* h5_changes.c - deletes, moves and replaces datasets and attributes as the bytes say. */
#include "tests/h5_changes.h"

#include "kit/h5.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_DIM = 72 }; // beyond what any good file of the targets has; small, for every file is hashed

static char path[64];

static void remove_file(void) { unlink(path); }

static void put_file(const uint8_t *data, size_t size) {
    const int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    close(fd);
}

static const char *pick(const char *const *names, uint8_t which) {
    size_t n = 0;
    while (names[n]) n++;
    return names[which % n];
}

/* A dataset in another shape or type, with one value everywhere. */
static void put_set(hid_t f, const char *name, const uint8_t b[6]) {
    const hid_t half = dw_h5_half_type(), types[] = {H5T_IEEE_F64LE, H5T_IEEE_F32LE, half, H5T_STD_U8LE, H5T_STD_U16LE, H5T_STD_U32LE, H5T_STD_U64LE, H5T_STD_I32LE};
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

static void put_checksum(const char *magic) {
    size_t n;
    char block[DW_H5_USER_BLOCK];
    uint8_t *bytes = (uint8_t *)dw_read_file(path, 1 << 28, &n, NULL);
    if (!bytes) abort();
    dw_h5_user_block(magic, bytes + sizeof block, n - sizeof block, block);
    memcpy(bytes, block, sizeof block);
    put_file(bytes, n);
    free(bytes);
}

static void change_file(const h5_kind *kind, const uint8_t *data, size_t size) {
    const hid_t f = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    for (size_t n = 0; size >= 8 && n < 8; data += 8, size -= 8, n++) {
        const char *name = pick(kind->paths, data[1]);
        switch (data[0] % 4) {
        case 0: H5Ldelete(f, name, H5P_DEFAULT); break;
        case 1: put_set(f, name, data + 2); break;
        case 2: put_attribute(f, pick(kind->attributes, data[1]), data + 2); break;
        default: H5Lmove(f, name, f, pick(kind->paths, data[2]), H5P_DEFAULT, H5P_DEFAULT); break;
        }
    }
    H5Fclose(f);
    put_checksum(kind->magic);
}

void h5_try(const h5_kind *kind, const uint8_t *data, size_t size) {
    static uint8_t *good;
    static size_t n_good;
    if (!good) {
        snprintf(path, sizeof path, "/dev/shm/fuzz-%s-%ld.h5", kind->name, (long)getpid());
        atexit(remove_file);
        dw_h5_quiet();
        kind->make(path);
        good = (uint8_t *)dw_read_file(path, 1 << 28, &n_good, NULL);
        if (!good) abort();
    }
    put_file(data, size);
    kind->read(path);
    put_file(good, n_good);
    change_file(kind, data, size);
    kind->read(path);
}
