/* backends.h - the fused steps of a pass, and who computes them.
 *
 * model/ binds a file's tensors to a dw_net (named fields, shapes checked once) and drives a pass: a short function over the
 * steps below, run by every thread of the pool at once (ith of n_threads), with a barrier of the pool behind each step.  A
 * step divides its own work among the threads and may use further barriers (dw_pool_barrier on pass->pool).  A backend
 * sees tensors, activations and threads, never a file; steps trust the shapes and return nothing.
 *
 * `ref` is the definition: plain C, one obvious loop a step, double accumulation.
 * `cpu` is the fast one.  Every kernel of it has its definition in `ref` and a test that compares the two. */
#ifndef DW_BACKENDS_H
#define DW_BACKENDS_H

#include "engine.h"

enum { DW_MAX_HEAD_DIM = 4096 }; // a model with larger heads is not opened

/* What a gated model says of a layer's FFN (sparse.h): which groups of neurons are open for a token, and how to read them. */
typedef struct dw_layer_gate {
    dw_tensor down_t;                // (n_ff, n_embd): down transposed, a neuron's column as a row
    int group;                       // neurons that are open or closed together; the last group may be smaller
    float threshold;                 // a group is open when its largest |act(gate)| reaches it
    float activity;                  // expected share of open neurons
    bool dense;                      // not sparse enough: DW_SELECT_AUTO runs it as if it were no gated layer
    dw_tensor pred_a, pred_a_bias;   // (rank, n_embd), (rank): a predictor instead of the threshold:
    dw_tensor pred_b, pred_b_bias;   // (n_groups, rank), (n_groups): open when B relu(A h + a) + b >= 0
    bool pred_previous;              // h is that of the layer before
} dw_layer_gate;

/* A tensor whose name is NULL is absent.  Norms and biases are F32, one-dimensional. */
typedef struct dw_layer {
    int n_ff, n_head, n_head_kv;     // n_head 0: a layer without attention
    dw_tensor attn_norm;             // (n_embd)
    dw_tensor q, k, v;               // (n_head * head_dim | n_head_kv * head_dim, n_embd), row-major
    dw_tensor q_bias, k_bias, v_bias;
    dw_tensor q_norm, k_norm;        // (head_dim): RMS norm of each head before rope
    dw_tensor o, o_bias;             // (n_embd, n_head * head_dim)
    dw_tensor ffn_norm;              // (n_embd)
    dw_tensor gate, up, gate_bias, up_bias; // (n_ff, n_embd)
    dw_tensor down, down_bias;       // (n_embd, n_ff)
    int n_cold;                      // the last neurons, which gate, up and down do not hold (cold.h); 0: they hold all
    dw_tensor gate_cold, up_cold;    // (n_cold, n_embd)
    dw_tensor down_cold;             // (n_embd, n_cold)
    dw_layer_gate sparse;            // absent: down_t.name is NULL
} dw_layer;

/* The activation of the FFN's gate.  gelu_tanh(x) = x / 2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks & Gimpel 2016). */
typedef enum dw_act { DW_SILU, DW_GELU_TANH, DW_RELU, DW_N_ACTS } dw_act;

typedef struct dw_net {
    dw_hparams hp;
    dw_act act;
    float embd_scale;                // multiplies the rows of token_embd where they become the residual; 0: 1
    bool rope_neox;                  // pairs (i, i + head_dim/2); else (2i, 2i + 1)
    dw_tensor token_embd;            // (n_vocab, n_embd)
    dw_tensor output_norm;           // (n_embd)
    dw_tensor output, output_bias;   // (n_vocab, n_embd); token_embd when tied
    dw_layer *layer;                 // n_layer
} dw_net;

/* Keys and values of layer l, sequence s, KV head h, position p: head_dim values at
 * ((s * n_head_kv[l] + h) * n_ctx + p) * head_dim of k[l] and v[l]. */
typedef struct dw_cache {
    dw_kv_cache type;
    int n_ctx, n_seq;
    void **k, **v; // n_layer
} dw_cache;

typedef struct dw_pass {
    const dw_net *net;
    dw_pool *pool;
    bool exact;            // results must not depend on n_threads or on how tokens are batched
    int n_batch;           // most tokens of a pass: what scratch was made for
    int n_tokens;
    const int32_t *token, *seq, *pos; // n_tokens; tokens of a sequence come in order of position
    const float *rope;     // (n_ctx, head_dim/2, 2): cos and sin of each position and pair
    dw_cache cache;
    /* activations, row-major; rows are tokens, and a row of a narrower layer is packed (n_ff[l], not n_ff_max) */
    float *x;              // (n_tokens, n_embd): the residual stream
    float *h;              // (n_tokens, n_embd): norm(x), input of q, k, v or of gate and up
    float *q;              // (n_tokens, n_head * head_dim)
    float *mix;            // (n_tokens, n_head * head_dim): what attention gives
    float *gate;           // (n_tokens, n_ff): act(gate), filled as gate_every says
    float *neuron;         // (n_tokens, n_ff): a = act(gate) * up; zero where not selected
    bool keep_h;           // a tap looks at h: it must be filled
    int gate_every;        // a tap looks at gate, rows of positions 0, n, 2n..; 0: none does
    const int32_t *selected; // neurons of the layer at hand, ascending, and it is not gated then; NULL: all
    int n_selected;
    dw_select select;      // how gated layers are run
    const float *injected; // (n_layer): share of groups that is open by lot, whatever rule and predictor say; NULL: none
    uint64_t injected_seed;
    dw_coverage *coverage; // (n_threads, n_layer): what was selected and read, counted by every thread for itself
    void *scratch;         // the backend's own, scratch_bytes of it, 64-byte aligned
} dw_pass;

typedef struct dw_backend {
    const char *name;
    size_t (*scratch_bytes)(const dw_net *net, int n_batch, int n_ctx, int n_threads, dw_select select);
    void (*embed)(dw_pass *p, int ith, int n_threads);              // x = rows of token_embd
    void (*qkv)(dw_pass *p, int l, int ith, int n_threads);         // h = norm(x); q, k, v, bias, head norm, rope; k, v into the cache
    void (*attend)(dw_pass *p, int l, int ith, int n_threads);      // mix = softmax(scale q.K) V over positions 0..pos
    void (*attn_out)(dw_pass *p, int l, int ith, int n_threads);    // x += Wo mix + bo
    void (*ffn_neurons)(dw_pass *p, int l, int ith, int n_threads); // h = norm(x); neuron = act(Wgate h) * Wup h, selected ones
    void (*ffn_down)(dw_pass *p, int l, int ith, int n_threads);    // x += Wdown neuron
    /* head, over rows of hidden (n, n_embd) that are already normed */
    void (*head_norm)(dw_pass *p, const float *x, float *hidden, int ith, int n_threads); // one row, whole by the calling thread
    void (*logits)(dw_pass *p, const float *hidden, int n, float *logits, int ith, int n_threads);
    void (*logprobs)(dw_pass *p, const float *hidden, int n, const int32_t *target, double *logprob, int ith, int n_threads);
} dw_backend;

extern const dw_backend dw_backend_ref, dw_backend_cpu;
const dw_backend *dw_backend_find(const char *name); // NULL name: cpu; NULL: unknown

#endif
