/* blas.h - OpenBLAS on one thread, with the kernels of this CPU, and only where its memory is there.
 *
 * OpenBLAS starts threads when a program is loaded, and takes a buffer of 128 MiB for every thread that computes.
 * Where the memory is refused (ulimit -v) it tries again for ever, also in its own threads, for which exit() then
 * waits.
 *
 * Before version 0.3.25 it takes an Intel CPU whose model it does not know, such as a Raptor Lake, for a Prescott and
 * uses SSE3 alone: a third of the speed (OpenMathLib/OpenBLAS issue 4267). */
#ifndef KIT_BLAS_H
#define KIT_BLAS_H

#include "base/base.h"

/* In main, before anything is opened: starts the program again with the same arguments and OPENBLAS_NUM_THREADS=1, and
 * with the OPENBLAS_CORETYPE that kit_blas_core names; not where both are so already.  A core type that the user set
 * stays. */
void kit_blas_start(char **argv);

/* The core type that fits a CPU better than the one that OpenBLAS chose; NULL: none does. */
const char *kit_blas_core(const char *chosen, bool has_avx2, bool has_avx512);

/* Operations a second of products on this thread, measured for a tenth of a second; 0: no memory. */
double kit_blas_speed(bool in_doubles);

/* What a thread takes beside its own arrays: OpenBLAS's buffer, and the address space in which the libc allocates. */
enum { BLAS_THREAD_BYTES = (128 + 64) << 20 };

/* Whether n_threads threads, each of which takes n_bytes in addition, can get their memory at the same time.  It is not
 * kept. */
bool kit_blas_has_memory(int n_threads, size_t n_bytes);

#endif
