/* kernels_backward.h - kernels of the cpu backend for the training pass (backward.h has the formulas), one table per
 * level.  Like kernels_vec.h: one source, kernels_backward_body.inc, compiled once per level; F32; the order of every
 * sum depends only on lengths. */
#ifndef DW_KERNELS_BACKWARD_H
#define DW_KERNELS_BACKWARD_H

#include "backends/kernels.h"

/* The query heads that share one KV head of one window.  Rows are the window's tokens. */
typedef struct dw_attend_back_job {
    int n, head_dim, n_group;
    const float *q, *k, *v; // head g of token t: q + t * ld + g * head_dim; k, v + t * ld_kv
    size_t ld, ld_kv;
    float *mix, *lse; // like q; lse of token t, head g: lse[t * ld_lse + g]
    size_t ld_lse;
    float scale;
    const float *dmix;   // backward only, like q
    float *dq, *dk, *dv; // backward only, like q, k, v: set
    float *scratch;      // dw_attend_back_scratch floats, aligned to 64
    bool has_tiles;      // of dw_attend_rounded: AMX tiles, not AVX512_BF16 dots
} dw_attend_back_job;

size_t dw_attend_back_scratch(int n_ctx, int head_dim); // floats

/* Loss and gradient of one row of logits. */
typedef struct dw_softmax_job {
    int n;
    const float *teacher; // (n); NULL: no KL
    float *logits;        // (n): becomes the gradient if `scale` is not 0
    int32_t target;       // -1: no cross entropy
    float temperature, ce, scale;
    double kl, nll; // results
} dw_softmax_job;

typedef struct dw_vec_back {
    void (*glu[DW_N_ACTS])(const float *g, const float *u, int n, float *a); // a = act(g) u
    void (*glu_back[DW_N_ACTS])(const float *da, int n, float *g, float *u); // g, u become dg, du
    void (*attend)(const dw_attend_back_job *job);
    void (*attend_back)(const dw_attend_back_job *job);
    void (*softmax)(dw_softmax_job *job);
} dw_vec_back;

/* attend and attend_back with factors of products rounded to BF16 (kernels_attend_rounded.inc): for levels that have
 * BF16 products (dw_level_has_bf16). */
void dw_attend_rounded(const dw_attend_back_job *job);
void dw_attend_back_rounded(const dw_attend_back_job *job);

extern const dw_vec_back dw_vec_back_portable, dw_vec_back_avx2, dw_vec_back_avx512;
const dw_vec_back *dw_vec_back_of(dw_level level);

#endif
