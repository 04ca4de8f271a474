/* optimizer.h - trainable F32 copies of a session's weights, and AdamW.
 *
 * AdamW (Loshchilov & Hutter 2019), step t = 1, 2, .., for every value w with gradient g:
 *
 *     g = g min(1, clip / |g|)                         |g| is the norm over all parameters
 *     m = b1 m + (1 - b1) g,   v = b2 v + (1 - b2) g^2
 *     w = w - rate ( (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + decay w )
 *
 * Matrices of the layers decay; norms, biases, the embedding and the output matrix do not.  Results do not depend on
 * the number of threads.
 *
 * Low-rank additions (Hu et al. 2021, LoRA).  A matrix W0 of a layer (n_out, n_in) stays as it is, and two factors are
 * trained in its place:
 *
 *     W = W0 + s B A,   A (rank, n_in), B (n_out, rank)     dA = s B^T dW,   dB = s dW A^T
 *
 * A begins as random numbers of variance 1 / n_in, B as 0, so the first W is W0.  s is 2 (alpha = 2 rank).  AdamW's
 * moments then exist for A and B only.
 *
 * Rounded matrices (quantization-aware training by the straight-through estimator: Bengio, Leonard & Courville 2013,
 * arXiv 1308.3432).  The session computes with W = decode(encode(V)) of a number type, where V are the trained values,
 * and dV = dW, as if rounding did nothing.  So a model learns to be rounded.
 *
 * Low-rank sums and rounded matrices are derived from the values again after every step of AdamW. */
#ifndef DW_OPTIMIZER_H
#define DW_OPTIMIZER_H

#include "engine.h"

typedef struct dw_parameter {
    int layer; // n_layer: a weight of the model
    dw_weight which;
    dw_tensor source; // what the session computed with before; borrowed
    size_t first, n;  // values first .. first + n - 1 of the arrays below
    bool decays;
    int rank;                    // 0: the values are the weight's; else those of A, then of B
    const dw_qtype_row *rounded; // W is rounded to this type; NULL: it is not
    const float *importance;     // of the columns, when it is rounded; borrowed, NULL: all are equal
    float *weight, *weight_grad; // W and dW, in the shape of the source; not derived: value + first, grad + first
} dw_parameter;

typedef struct dw_parameters {
    dw_session *session;
    dw_parameter *item;
    size_t n;
    size_t n_values; // of all parameters together, and of each of these arrays:
    float *value, *grad, *mean, *square;
    size_t n_derived, n_derived_grad; // values of derived matrices; of those of low rank
    float *derived, *derived_grad;    // W, and dW where it is not the gradient of values
    size_t n_scratch;
    uint8_t *scratch;        // encoded rows of one matrix, one for each slab of 64 rows
    dw_gradients *gradients; // (n_layer + 1): for dw_train_backward; they point into grad and derived_grad
    struct dw_parameter_block *block;
    size_t n_blocks;
} dw_parameters;

typedef struct dw_trained { // what is trained
    bool (*wanted)(dw_weight which);
    int rank; // of the additions to the layers' matrices, at most the matrix's smaller side; 0: the matrices themselves
    uint64_t seed; // of A
    /* The type that a weight without low-rank additions is rounded to; NULL: it is not.  NULL: none is. */
    const dw_qtype_row *(*rounded)(const void *ctx, const dw_tensor *t);
    /* The importances of its columns, by which errors of rounding are weighed; they stay until
     * dw_parameters_release.  NULL: all are equal. */
    const float *(*importance)(const void *ctx, const dw_tensor *t);
    const void *ctx;
} dw_trained;

/* Copies the weights that `wanted` accepts, and replaces them in the session by these copies, which the session
 * borrows until dw_parameters_release.  An output matrix that is the embedding stays one parameter. */
int dw_parameters_new(dw_parameters *p, dw_session *s, const dw_trained *what, dw_err *err);
size_t dw_parameters_memory(dw_session *s, const dw_trained *what); // bytes
size_t dw_parameters_n_values(dw_session *s, const dw_trained *what);
void dw_parameters_release(dw_parameters *p);                       // the session has its own weights again
void dw_parameters_restore(dw_parameters *p); // weights are those of before; low-rank additions become 0, A and B
/* Makes W of every derived matrix; after the caller has changed `value`.  A row with a value that its type cannot hold
 * becomes NaN. */
void dw_parameters_derive(dw_parameters *p, dw_pool *pool);

typedef struct dw_adamw {
    double rate, beta1, beta2, eps, decay;
    double clip; // 0: none
} dw_adamw;

/* Step t (from 1 on) with the gradients in `grad` (and dW in `derived_grad`).  Returns their norm before clipping; if
 * it is not finite, no value and no moment has changed. */
double dw_adamw_step(dw_parameters *p, const dw_adamw *o, uint64_t t, dw_pool *pool);
void dw_parameters_zero_gradients(dw_parameters *p);

/* The factor of the rate at step i = 0 .. n - 1: a linear rise over the first `warm` of the steps, times a cosine that
 * falls to `last`. */
double dw_cosine(uint64_t i, uint64_t n, double warm, double last);

#endif
