/* backend_ref.h - inside the ref backend: the parts that its steps are made of. */
#ifndef DW_BACKEND_REF_H
#define DW_BACKEND_REF_H

#include "backends/gate_decide.h"

/* What a thread works with: its own memory, then what all threads share. */
typedef struct dw_ref_scratch {
    double *xt;          // (n, DW_REF_TILE): a tile of inputs, transposed
    float *rows;         // (DW_REF_ROWS, n): decoded weight rows
    double *score;       // (n_ctx): attention
    float *k, *v;        // (n_batch, n_head_kv * head_dim), shared: before they go to the cache
    float *hidden[2];    // (n_batch, rank), shared: predictors' z of layers of even and odd number
    uint8_t *open;       // (n_batch, n_groups), shared: flags
} dw_ref_scratch;

enum { DW_REF_TILE = 32, DW_REF_ROWS = 4 }; // tokens that share a decoded weight row, rows that share a tile of tokens

static inline const dw_ref_scratch *dw_ref_scratch_of(const dw_pass *p, int ith) {
    return (const dw_ref_scratch *)p->own + ith;
}

/* Rows first .. end - 1, or of a list the entries first .. end - 1. */
typedef struct dw_ref_rows {
    size_t first, end;
    const int32_t *list;
} dw_ref_rows;

dw_ref_rows dw_ref_share(const dw_pass *p, size_t n, int ith); // thread ith's share of n rows

/* For the rows and all tokens of x (n_tokens, w->ne[0]): out(ctx, row, token, w_row . x_token + bias_row). */
typedef void dw_ref_sink(void *ctx, size_t row, int token, double sum);
typedef struct dw_ref_job {
    const dw_tensor *w, *bias; // bias NULL or absent: 0
    dw_ref_rows rows;
    const float *x;
    size_t ldx;                // values from one token's x to the next; 0: w->ne[0]
    int n_tokens;
    dw_ref_sink *out;
    void *ctx;
} dw_ref_job;

void dw_ref_product(const dw_ref_scratch *s, const dw_ref_job *job);
/* This thread's rows of a product with all tokens of the pass; out is dw_ref_store or similar and gets y (n_tokens,
 * rows of w). */
void dw_ref_matrix(dw_pass *p, int ith, dw_ref_job job, float *y);

typedef struct dw_ref_into { // the ctx of a sink that fills a matrix
    float *y;
    size_t stride;
} dw_ref_into;

dw_ref_sink dw_ref_store, dw_ref_add;

float dw_ref_at(const dw_tensor *vector, size_t i);
void dw_ref_accumulate(double *acc, double weight, const float *row, int n);
void dw_ref_norm_tokens(dw_pass *p, const dw_tensor *weight, int ith); // h = norm(x) of all tokens; ends with a barrier

/* ---- FFN ------------------------------------------------------------------------------------------------ */

double dw_ref_act(dw_act act, double x);
/* gate and neuron of the rows of one pair of matrices: the layer's, or its cold ones. */
void dw_ref_neurons(dw_pass *p, int l, bool is_cold, dw_ref_rows rows, int ith);
/* z = relu(A h + a) for the predictor of layer l, from the FFN's input h of this layer or the one before. */
void dw_ref_hidden(dw_pass *p, int l, int ith);
/* The end of a step without a gate that computed n_counted neurons: counts them, and computes z for the next layer. */
void dw_ref_end_neurons(dw_pass *p, int l, int ith, int n_counted);
void dw_ref_down(dw_pass *p, int l, int ith); // x += Wdown neuron, for the rows of this thread

#endif
