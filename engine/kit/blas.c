/* blas.c - OpenBLAS on one thread, with the kernels of this CPU, and only where its memory is there (blas.h). */
#include "kit/blas.h"

#include <cblas.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_THREADS = 1024 };

const char *kit_blas_core(const char *chosen, bool has_avx2, bool has_avx512) {
    if (strcmp(chosen, "Prescott") != 0) return NULL;
    return has_avx512 ? "SkylakeX" : has_avx2 ? "Haswell" : NULL;
}

static const char *core_of_this_cpu(void) {
    bool has_avx2 = false, has_avx512 = false;
#if defined(__x86_64__)
    has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    return kit_blas_core(openblas_get_corename(), has_avx2, has_avx512);
}

static bool is_set_to(const char *name, const char *value) {
    const char *now = getenv(name);
    return now && !strcmp(now, value);
}

void kit_blas_start(char **argv) {
    char program[PATH_MAX] = "";
    const bool has_threads = is_set_to("OPENBLAS_NUM_THREADS", "1");
    const char *core = getenv("OPENBLAS_CORETYPE") ? NULL : core_of_this_cpu();
    if (has_threads && !core) return;
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0 || setenv("OPENBLAS_NUM_THREADS", "1", 1) || (core && setenv("OPENBLAS_CORETYPE", core, 1))) return;
    execv(program, argv); // on failure: goes on
}

enum { SPEED_WIDTH = 384 }; // larger products are hardly faster

static void multiply(double *x, bool in_doubles) {
    const int n = SPEED_WIDTH, nn = n * n;
    float *f = (float *)(void *)x;
    if (in_doubles)
        cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, n, n, 1, x, n, x + nn, n, 0, x + 2 * nn, n);
    else
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, n, n, 1, f, n, f + nn, n, 0, f + 2 * nn, n);
}

double kit_blas_speed(bool in_doubles) {
    const size_t n = SPEED_WIDTH;
    double *x = kit_blas_has_memory(1, 0) ? dw_alloc(3 * n * n, sizeof *x, "products to time", NULL) : NULL;
    double least = INFINITY;
    const double until = dw_now() + 0.1;
    for (int i = 0; x && (i < 3 || dw_now() < until); i++) {
        const double began = dw_now();
        multiply(x, in_doubles);
        least = fmin(least, dw_now() - began);
    }
    free(x);
    return 2 * (double)(n * n * n) / least; // 0 without memory
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
