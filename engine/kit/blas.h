/* blas.h - OpenBLAS on one thread, and only where its memory is there.
 *
 * OpenBLAS starts threads when a program is loaded, and takes a buffer of 128 MiB for every thread that computes.
 * Where the memory is refused (ulimit -v) it tries again for ever, also in its own threads, for which exit() then
 * waits. */
#ifndef KIT_BLAS_H
#define KIT_BLAS_H

#include "base/base.h"

/* First of all in main: unless OPENBLAS_NUM_THREADS is 1, sets it and starts the program again with the same
 * arguments. */
void kit_blas_on_one_thread(char **argv);

/* What a thread takes beside its own arrays: OpenBLAS's buffer, and the address space in which the libc allocates. */
enum { BLAS_THREAD_BYTES = (128 + 64) << 20 };

/* Whether n_threads threads, each of which takes n_bytes in addition, can get their memory at the same time.  It is not
 * kept. */
bool kit_blas_has_memory(int n_threads, size_t n_bytes);

#endif
