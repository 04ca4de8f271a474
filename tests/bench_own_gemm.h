/* bench_own_gemm.h - the rate of the training pass's own whole products, for bench_backward. */
#ifndef BENCH_OWN_GEMM_H
#define BENCH_OWN_GEMM_H

#include "backends/backward.h"

enum { STEP_MATRICES = 6 };

/* Weights (n_out, n_in) that a step multiplies with n vectors, `times` times, in each of four ways: y = x W^T of the
 * teacher and of the net, dx = dy W, dW = dy^T x. */
typedef struct step_matrix {
    const dw_tensor *w; // the first layer's
    int n_out, n_in, n, times;
} step_matrix;

/* The matrices of a model whose layers are all like its first.  A step has n_tokens tokens, its head n_rows at a
 * time. */
int step_matrices(const dw_net *net, int n_tokens, int n_rows, step_matrix of[STEP_MATRICES]);

/* These products as the training pass computes them: inputs are read in F32 (the teacher's weights in the model's
 * type), packed, multiplied, and results written in F32. */
typedef struct own_gemm own_gemm;

own_gemm *own_gemm_new(const dw_net *net, dw_pool *pool, int n_tokens, int n_rows, dw_err *err);
double own_gemm_rate(own_gemm *g); // multiplies and adds a second, of all threads
void own_gemm_free(own_gemm *g);

#endif
