/* scratch.c - a file in /dev/shm for each process (scratch.h). */
#include "tests/scratch.h"

#include "base/base.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char own[64];

void scratch_write(const char *path, const void *data, size_t size) {
    const int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    close(fd);
}

static void remove_own(void) { unlink(own); }

const char *scratch_path(void) {
    if (!own[0]) {
        snprintf(own, sizeof own, "/dev/shm/fuzz-%ld", (long)getpid());
        atexit(remove_own);
    }
    return own;
}

const char *scratch_file(const void *data, size_t size) {
    scratch_write(scratch_path(), data, size);
    return own;
}

uint8_t *scratch_resealed(const uint8_t *data, size_t size) {
    enum { IDENTITY_AT = 16, IDENTITY = 32, HASH = 32 };
    if (size < IDENTITY_AT + IDENTITY + HASH) return NULL;
    uint8_t *file = malloc(size);
    dw_sha256 h;
    if (!file) abort();
    memcpy(file, data, size);
    memset(file + IDENTITY_AT, 0, IDENTITY);
    dw_sha256_begin(&h);
    dw_sha256_add(&h, file, size - HASH);
    dw_sha256_end(&h, file + size - HASH);
    return file;
}
