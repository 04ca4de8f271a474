/* scratch.c - a file in /dev/shm for each process (scratch.h). */
#include "tests/scratch.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
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
