/* backends.h - a net as a value, and the object that computes it.
 *
 * model/ binds a file's tensors to a dw_net: named fields, shapes checked once.  A net is a value: a session copies it
 * (the weights stay where they are) and may replace single tensors.
 *
 * A backend is a row of functions over a state that it opens for one net and one shape.  It runs a range of layers on a
 * residual, turns rows of the residual into logits, and reads and writes parts of its state.  A caller that owns the
 * residual can run a single layer.
 *
 * Today's backends, `ref` (the definition: plain C, double accumulation) and `cpu` (the fast one), share run_on_pool.c:
 * threads, barriers, memory and the pass, over a table of fused steps (steps.h). */
#ifndef DW_BACKENDS_H
#define DW_BACKENDS_H

#include "engine.h"

enum { DW_MAX_HEAD_DIM = 4096 }; // a model with larger heads is not opened

/* What a gated model says about a layer's FFN (formats/ffn_gated.h): which groups of neurons are open for a token. */
typedef struct dw_layer_gate {
    dw_tensor down_t;                // (n_ff, n_embd): down transposed, a neuron's column as a row
    bool down_differs;               // only one of down and down_t was replaced in the session
    int group;                       // neurons that are open or closed together; the last group may be smaller
    float threshold;                 // a group is open when its largest |act(gate)| reaches it
    float activity;                  // expected share of open neurons
    bool dense;                      // marked in an older file: DW_SELECT_AUTO runs it as if it were not gated
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
    int n_cold;                      // the last neurons, in the *_cold tensors (formats/ffn_two_part.h); 0: none
    dw_tensor gate_cold, up_cold;    // (n_cold, n_embd)
    dw_tensor down_cold;             // (n_embd, n_cold)
    dw_layer_gate sparse;            // absent: down_t.name is NULL
} dw_layer;

/* The activation of the FFN's gate.  gelu_tanh(x) = x / 2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
 * (Hendrycks & Gimpel 2016). */
typedef enum dw_act { DW_SILU, DW_GELU_TANH, DW_RELU, DW_N_ACTS } dw_act;

/* More weights than these count as read from memory.  (Systems that share a CPU do not say how much of its cache is
 * theirs.  Zen 5: 25 MB are read with 170 GB/s, 67 MB with 110, 270 MB with 55; models of 32 and of 112 MB were measured,
 * none between.) */
enum { DW_CACHED = 48 << 20 };

typedef struct dw_net {
    dw_hparams hp;
    dw_act act;
    float embd_scale;                // multiplies rows of token_embd that become the residual; 0 means 1
    bool in_huge_pages;              // the matrices are; the memory of states should be, too
    bool from_memory;                // the weights that a token reads are more than DW_CACHED bytes
    bool rope_neox;                  // pairs (i, i + head_dim/2); else (2i, 2i + 1)
    const float *rope_factor;        // (head_dim/2): divides the frequency of each pair; NULL: all 1
    float rope_magnitude;            // multiplies cos and sin (yarn); 0 means 1
    dw_tensor token_embd;            // (n_vocab, n_embd)
    dw_tensor output_norm;           // (n_embd)
    dw_tensor output, output_bias;   // (n_vocab, n_embd); token_embd when tied
    dw_layer *layer;                 // n_layer
} dw_net;

/* ---- the object ------------------------------------------------------------------------------------- */

typedef struct dw_backend dw_backend;
typedef struct dw_state dw_state;

/* One pass over a range of layers. */
typedef struct dw_work {
    int n_tokens;                    // at most the options' n_batch
    const int32_t *token;            // (n_tokens): embedded before the layers; NULL: x already holds the residual
    const int32_t *seq, *pos;        // (n_tokens): tokens of a sequence come in order of position
    float *x;                        // (n_tokens, n_embd): the residual, the caller's; NULL: the state's own
    int n_rows;                      // after the last layer these rows of the residual are normed for the head:
    const int *row;                  // (n_rows)
    float *hidden;                   // (n_rows, n_embd)
    const dw_tap *tap;               // NULL: none
} dw_work;

/* From normed rows: logits, or ln p(target), for which no row of logits is stored. */
typedef struct dw_head {
    const float *hidden;             // (n, n_embd)
    int n;
    float *logits;                   // (n, n_vocab); or NULL, with these two:
    const int32_t *target;           // (n)
    double *logprob;                 // (n)
} dw_head;

/* What decides, in addition to the net, how layers are bound.  Borrowed until the next binding. */
typedef struct dw_binding {
    const dw_selection *selection;   // NULL: all neurons of every layer
    const struct dw_ffn_experiment *experiment; // ffn_ops.h; NULL: none
} dw_binding;

/* A part of the state as F32 values: n rows from `first` on. */
typedef enum dw_part {
    DW_PART_RESIDUAL, // the state's own, of the last pass's tokens, if it gave rows of all (n, n_embd)
    DW_PART_K,
    DW_PART_V, // of positions of a layer and sequence, (n_head_kv, n, head_dim)
} dw_part;

typedef struct dw_place {
    dw_part part;
    int layer, seq;                  // of keys and values
    int first, n;
} dw_place;

/* The options have their defaults filled in.  The net, the pool and what a binding points to are borrowed until close.
 * Functions that return int fail with -1 and a sentence. */
struct dw_backend {
    const char *name, *help;
    const void *own;                 // the backend's own data
    const struct dw_back_ops *back;  // arithmetic of the training pass (backward.h)
    /* Bytes that open allocates; SIZE_MAX: too many, or there is no memory to count them. */
    size_t (*memory)(const dw_backend *b, const dw_net *net, const dw_session_options *o);
    dw_state *(*open)(const dw_backend *b, const dw_net *net, const dw_session_options *o, dw_err *err);
    void (*close)(dw_state *s);
    /* Also after tensors of the net were replaced.  After a failure the binding before stays. */
    int (*bind)(dw_state *s, const dw_binding *b, dw_err *err);
    int (*layers)(dw_state *s, const dw_work *w, int first, int end, dw_err *err); // first .. end - 1; may be none
    int (*head)(dw_state *s, const dw_head *h, dw_err *err);
    int (*get)(dw_state *s, dw_place at, float *values, dw_err *err);
    int (*put)(dw_state *s, dw_place at, const float *values, dw_err *err);
    dw_coverage (*coverage)(const dw_state *s, int layer);
    void (*reset_coverage)(dw_state *s);
};

const dw_backend *dw_backend_find(const char *name); // NULL name: the first of the table; NULL: unknown

#endif
