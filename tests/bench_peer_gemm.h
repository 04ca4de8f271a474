/* bench_peer_gemm.h - the rate of oneDNN's products of BF16 matrices with sums in F32, for bench_backward.
 *
 * Built without oneDNN 2 (Debian: libdnnl-dev) peer_gemm_new returns NULL. */
#ifndef BENCH_PEER_GEMM_H
#define BENCH_PEER_GEMM_H

#include "bench_own_gemm.h"

typedef struct peer_gemm peer_gemm;

/* The products of step_matrices.  Inputs lie in BF16, row-major.  NULL also where oneDNN cannot multiply BF16. */
peer_gemm *peer_gemm_new(const dw_net *net, int n_tokens, int n_rows, int n_threads);
/* Multiplies and adds a second, of all threads: over all these products, or of one product of 4096 x 4096 x 4096. */
double peer_gemm_rate(peer_gemm *p);
double peer_gemm_square_rate(peer_gemm *p);
void peer_gemm_free(peer_gemm *p);

#endif
