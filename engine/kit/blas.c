/* blas.c - keeps OpenBLAS from waiting for memory that never comes (blas.h). */
#include "kit/blas.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_THREADS = 1024 };

void kit_blas_on_one_thread(char **argv) {
    char program[PATH_MAX] = "";
    const char *now = getenv("OPENBLAS_NUM_THREADS");
    if (now && !strcmp(now, "1")) return;
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n > 0 && !setenv("OPENBLAS_NUM_THREADS", "1", 1)) execv(program, argv); // elsewhere, or on failure: goes on
}

/* Takes and gives back what OpenBLAS and the threads will take, in pieces of the same size. */
bool kit_blas_has_memory(int n_threads, size_t n_bytes) {
    void *piece[MAX_THREADS];
    size_t size;
    int n = 0;
    if (n_threads > MAX_THREADS || !dw_add(n_bytes, BLAS_THREAD_BYTES, &size)) return false;
    while (n < n_threads) {
        piece[n] = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (piece[n] == MAP_FAILED) break;
        n++;
    }
    for (int i = 0; i < n; i++) munmap(piece[i], size);
    return n == n_threads;
}
