/* backward.h - inside the backends: forward with saved residuals, a loss, and gradients of every weight.
 *
 * The pass works on whole windows of a text: token t of window s has position t and sees positions 0 .. t of its
 * window. The forward part keeps the residual before each layer only (Chen et al. 2016, "Training deep nets with
 * sublinear memory cost").  The backward part goes from the last layer to the first, computes the layer's inner values
 * again from that residual, and then its gradients.  With keep_values the results of the layers' products stay, too;
 * norms, rope and act(g) u alone are then computed again.  Formulas, with dx for the loss's gradient by x, per token:
 *
 *   linear     y = W x + b             dx = W^T dy,  dW += dy x^T,  db += dy
 *   RMS norm   y_i = w_i x_i r         r = (mean x^2 + eps)^(-1/2)
 *                                      dw_i += dy_i x_i r,  dx_i = r w_i dy_i - x_i r^3 / n  sum_k dy_k w_k x_k
 *   FFN        a = act(g) u            du = da act(g),  dg = da u act'(g)
 *   rope       rotation by an angle    rotation by the opposite angle
 *   attention  s_ij = scale q_i.k_j    lse_i = ln sum_j exp s_ij is kept, D_i = do_i.o_i, p_ij = exp(s_ij - lse_i):
 *              o_i = sum_j p_ij v_j    dv_j += p_ij do_i,  ds_ij = p_ij (do_i.v_j - D_i),
 *                                      dq_i = scale sum_j ds_ij k_j,  dk_j += scale ds_ij q_i
 *   KL         tau^2 sum_i p_i ln(p_i / q_i), p and q the softmax of the teacher's and the net's logits z by tau:
 *                                      dz = tau (q - p)
 *   CE         -ln q_target            dz = q - onehot
 *   hidden     |x - y|^2 / |y|^2       dx = 2 (x - y) / |y|^2   of a layer's output and the teacher's
 *   density    s = |r|_1 / (sqrt(n) |r|_2), r = relu(g)
 *                                      dg = 1 / (sqrt(n) |r|_2) - s g / |r|_2^2  where g > 0
 * (attention: Dao et al. 2022, FlashAttention, algorithm 4; KL: Hinton et al. 2015; density: Hoyer 2004.)
 *
 * Logits exist for a few rows at a time.  dw_back_new allocates all memory.
 *
 * A dw_back_ops is the arithmetic: `ref` is the definition (plain loops, double sums except for attention's dq, dk and
 * dv), `cpu` is fast.  Every sum has an order that does not depend on the number of threads. */
#ifndef DW_BACKWARD_H
#define DW_BACKWARD_H

#include "backends/backends.h"

typedef struct dw_back_ops dw_back_ops;

/* What an operation may use in addition to its arguments. */
typedef struct dw_back_env {
    dw_pool *pool;
    const dw_net *net;
    int n_ctx;              // tokens of a window
    dw_precision precision; // split or rounded
    void *own;              // memory of the operations
} dw_back_env;

/* The largest sizes that operations meet. */
typedef struct dw_back_sizes {
    int n_tokens; // of a pass
    int n_rows;   // of logits
    int widest;   // of a matrix's input or output, except for the vocabulary
    bool gradients;
} dw_back_sizes;

/* One of several products of the same x. */
typedef struct dw_back_linear {
    const dw_tensor *w, *bias; // bias may be NULL or absent
    float *y;                  // (n, w->ne[1])
} dw_back_linear;

/* Attention of n_seq windows.  Rows are tokens. */
typedef struct dw_back_attention {
    int n_seq, n_head, n_head_kv;
    const float *q, *k, *v; // (n, n_head * D), (n, n_head_kv * D) twice; q and k after rope
    float *mix;             // (n, n_head * D): o
    float *lse;             // (n, n_head)
    const float *dmix;      // backward only
    float *dq, *dk, *dv;    // backward only: set, not added to
} dw_back_attention;

/* Rows of logits that become rows of gradients. */
typedef struct dw_back_softmax {
    int n, n_vocab;
    const float *teacher;          // (n, n_vocab) logits; NULL: no KL
    float *logits;                 // (n, n_vocab): replaced by the gradient if `scale` is not 0
    const int32_t *target;         // (n): -1: this row has no cross entropy
    const uint8_t *counts;         // (n): 0: this row has no loss and gradient 0
    double temperature, ce, scale; // gradient = scale ((1 - ce) tau (q - p) + ce (q - onehot))
    double *kl, *nll;              // (n): sums of a row; 0 where it has none
} dw_back_softmax;

/* Rows of a coarse teacher that become logits: tau ln p of its k tokens; all other tokens get z_i + tau (ln p_rest -
 * ln sum exp(z / tau) over them), which share p_rest as the net's own z do.  Row r has k tokens at token + r k. */
typedef struct dw_back_spread {
    int n, n_vocab;
    double temperature;
    dw_coarse_teacher from; // its first row is row 0
    const float *logits;    // (n, n_vocab) of the net: z
    float *out;             // (n, n_vocab)
} dw_back_spread;

/* Matrices of activations are row-major without gaps; n is a number of tokens.  Biases of y are F32. */
struct dw_back_ops {
    void (*lay_out)(dw_back_env *e, dw_layout *a, const dw_back_sizes *most); // own memory
    int (*start)(dw_back_env *e, dw_err *err);                                // after lay_out
    void (*linear)(const dw_back_env *e, const dw_back_linear *list, int n_list, const float *x,
                   int n); // y = x W^T + b
    void (*linear_x)(const dw_back_env *e, const dw_tensor *w, const float *dy, int n, float *dx,
                     bool add); // dx (+)= dy W
    /* dw (n_out, n_in) += dy^T x; x (n, n_in), dy (n, n_out) */
    void (*linear_w)(const dw_back_env *e, const float *x, int n_in, const float *dy, int n_out, int n, float *dw);
    void (*glu)(const dw_back_env *e, const float *g, const float *u, size_t n, float *a);
    void (*glu_back)(const dw_back_env *e, const float *da, size_t n, float *g, float *u); // g, u become dg, du
    void (*attend)(const dw_back_env *e, const dw_back_attention *a);
    void (*attend_back)(const dw_back_env *e, const dw_back_attention *a);
    void (*spread)(const dw_back_env *e, const dw_back_spread *s);
    void (*softmax)(const dw_back_env *e, const dw_back_softmax *s);
    double (*rate)(const dw_back_env *e); // dw_train_rate; NULL: not known
};

extern const dw_back_ops dw_back_ops_cpu, dw_back_ops_ref;

/* dw_train_new on a net, which is borrowed and may change between passes.  The options have no zeros. */
dw_train *dw_back_new(const dw_net *net, dw_pool *pool, const dw_back_ops *ops, const dw_train_options *o, dw_err *err);
size_t dw_back_memory(const dw_net *net, dw_pool *pool, const dw_back_ops *ops, const dw_train_options *o);

#endif
