/* steps.h - inside the backends that run on a pool: a pass, and the fused steps that compute it.
 *
 * Every thread of the pass runs every step (ith of p->n_threads), with a barrier of the pool after each
 * (run_on_pool.c).  A step divides its own work among the threads and may use further barriers.  Steps trust the
 * shapes and return nothing; they allocate nothing.  Memory is laid out and the CPU's level is chosen when the state is
 * opened; the kernel for a weight type is an entry of a table, read at each call.
 *
 * The route of a product, with the names to look for:
 *
 *     dw_backend (backends.c)              all entries are dw_on_pool_* (run_on_pool.c)
 *       -> dw_steps, dw_steps_cpu or _ref  a way for few tokens, one for many (dw_way)
 *         -> a step of the way: qkv, attend, ..   or of the layer's FFN operator: neurons, down (ffn_ops.h)
 *           -> few: dw_dot_rows -> dw_dot_find(level, rows) -> kernels_dot_LEVEL.c
 *              many: rows_into -> dw_gemm_rows -> kernels_gemm.c
 *
 * dw_session_eval ends with normed rows of the residual; dw_session_logits multiplies them by the output matrix.
 *
 *     embed                                  x = rows of token_embd
 *     qkv, attend, attn_out                  x += Wo attention(norm(x)), keys and values into the cache
 *     neurons, down   (ffn_ops.h)            x += Wdown (act(Wgate norm(x)) * Wup norm(x))
 *     head_norm, then logits or logprobs     Wout norm(x) */
#ifndef DW_STEPS_H
#define DW_STEPS_H

#include "backends/ffn_ops.h"

#include <math.h>
#include <string.h>

/* Keys and values of layer l, sequence s, KV head h, position p: head_dim values (whole blocks), the first of them value
 * ((s * n_head_kv[l] + h) * n_ctx + p) * head_dim of k[l] and v[l]. */
typedef struct dw_cache {
    const dw_qtype_row *type;
    int n_ctx, n_seq;
    void **k, **v; // n_layer
} dw_cache;

/* Stores values as they come, NaN and infinity too: a cache is no file, and what is wrong must show in the logits.  Codes of
 * a block know neither, so its scale becomes NaN. */
static inline void dw_cache_store(const dw_cache *c, const float *x, size_t n, void *to) {
    static const uint8_t nan[2] = {0x00, 0x7e};
    c->type->encode(x, to, n, NULL);
    for (size_t i = 0; c->type->id == DW_Q8_0 && i < n; i++)
        if (!isfinite(x[i])) memcpy((uint8_t *)to + dw_qtype_row_bytes(c->type, i / 32 * 32), nan, sizeof nan);
}

/* What binding chose for a layer. */
typedef struct dw_bound {
    const dw_ffn_op *op;
    const dw_ffn_steps *ffn[2];    // the operator's steps by each way
    bool needs_hidden;             // the FFN step computes the hidden values of its own predictor ...
    bool gives_hidden;             // ... and of the next layer's (gate_decide.h)
    bool is_measured;
    float break_even;              // if measured: the activity up to which skipping pays (break_even.c)
    const int32_t *list;           // ascending; NULL: none
    int n_list;
} dw_bound;

struct dw_pass {
    const dw_net *net;
    dw_pool *pool;
    int n_threads;         // of this pass: at most the pool's, for which memory is laid out
    bool exact;            // results must not depend on n_threads or on how tokens are batched
    dw_precision precision; // not DW_PRECISION_DEFAULT
    int n_batch;           // most tokens of a pass; memory is laid out for them
    int way;               // of the current pass: index into dw_steps.way
    int n_tokens;          // in the last layer fewer, after keep_rows (run_on_pool.c)
    const int32_t *token, *seq, *pos; // n_tokens; tokens of a sequence come in order of position
    const float *rope;     // (n_ctx, head_dim/2, 2): cos, sin of each position and pair, up to the highest one so far
    dw_cache cache;
    dw_bound *layer;       // n_layer
    /* activations, row-major; rows are tokens, and rows of a narrower layer have no gaps (n_ff[l], not n_ff_max) */
    float *x;              // (n_tokens, n_embd): the residual stream
    float *h;              // (n_tokens, n_embd): norm(x), input of q, k, v or of gate and up
    float *q;              // (n_tokens, n_head * head_dim)
    float *mix;            // (n_tokens, n_head * head_dim): attention's result
    float *gate;           // (n_tokens, n_ff): act(gate); gate_every says which rows are filled
    float *neuron;         // (n_tokens, n_ff): a = act(gate) * up; zero where not selected
    bool keep_h;           // a tap reads h, so it must be filled
    bool keep_neurons;     // a tap reads neuron, so it must be filled
    int gate_every;        // a tap reads rows 0, n, 2n.. of gate (by position); 0: no tap does
    dw_ffn_experiment experiment; // all zero: none
    dw_coverage *coverage; // (pool's threads, n_layer): what was selected and read; every thread counts its own
    void *own;             // the steps' own data, own_bytes of it
};

/* The first value of a place in the cache (dw_cache). */
static inline size_t dw_cache_at(const dw_pass *p, int l, int seq, int head, int pos) {
    const size_t row = (size_t)seq * (size_t)p->net->layer[l].n_head_kv + (size_t)head;
    return (row * (size_t)p->cache.n_ctx + (size_t)pos) * (size_t)p->net->hp.head_dim;
}

/* One way through a pass. */
typedef struct dw_way {
    void (*embed)(dw_pass *p, int ith);              // x = rows of token_embd
    void (*qkv)(dw_pass *p, int l, int ith);         // h = norm(x); q, k, v, bias, head norm, rope; k, v into the cache
    void (*attend)(dw_pass *p, int l, int ith);      // mix = softmax(scale q.K) V over positions 0..pos
    void (*attn_out)(dw_pass *p, int l, int ith);    // x += Wo mix + bo
    dw_ffn_by ffn;                                   // whose steps of the FFN operators this way takes
    /* head, on rows of hidden (n, n_embd), which are normed */
    void (*head_norm)(dw_pass *p, const float *x, float *hidden, int ith); // one row, whole by the calling thread
    void (*logits)(dw_pass *p, const dw_head *h, int ith);
    void (*logprobs)(dw_pass *p, const dw_head *h, int ith);
} dw_way;

enum { DW_WAY_FEW, DW_WAY_MANY, DW_N_WAYS };

typedef struct dw_steps {
    const dw_way *way[DW_N_WAYS];
    int most_few;                                    // most tokens of the few way, unless exact; 0: never few
    size_t (*own_bytes)(int n_threads);
    int (*start)(dw_pass *p, const dw_session_options *o, dw_err *err); // chooses functions; before lay_out
    void (*lay_out)(dw_pass *p, dw_layout *a, const dw_session_options *o); // lays out the steps' own memory
    void (*change_threads)(dw_pass *p); // between passes: p->n_threads has changed; NULL: nothing to do
} dw_steps;

extern const dw_steps dw_steps_cpu, dw_steps_ref;

/* The functions of a dw_backend over steps (run_on_pool.c). */
size_t dw_on_pool_memory(const dw_backend *b, const dw_net *net, const dw_session_options *o);
dw_state *dw_on_pool_open(const dw_backend *b, const dw_net *net, const dw_session_options *o, dw_err *err);
void dw_on_pool_close(dw_state *s);
int dw_on_pool_bind(dw_state *s, const dw_binding *b, dw_err *err);
int dw_on_pool_layers(dw_state *s, const dw_work *w, int first, int end, dw_err *err);
int dw_on_pool_head(dw_state *s, const dw_head *h, dw_err *err);
int dw_on_pool_get(dw_state *s, dw_place at, float *values, dw_err *err);
int dw_on_pool_put(dw_state *s, dw_place at, const float *values, dw_err *err);
dw_coverage dw_on_pool_coverage(const dw_state *s, int layer);
void dw_on_pool_reset_coverage(dw_state *s);
/* The pass of a state: for tests and benchmarks of single steps. */
dw_pass *dw_on_pool_pass(dw_state *s);

static inline float dw_embd_scale(const dw_net *net) { return net->embd_scale != 0 ? net->embd_scale : 1; }

/* x (n_embd): a token's row of the embedding, scaled. */
static inline void dw_embed_token(const dw_net *net, int32_t token, float *x) {
    const dw_tensor *w = &net->token_embd;
    const float scale = dw_embd_scale(net);
    w->type->decode(w->data + (size_t)token * dw_tensor_row_bytes(w), x, w->ne[0]);
    for (size_t i = 0; scale != 1 && i < w->ne[0]; i++) x[i] *= scale;
}

/* Computes rows first .. end - 1 of rope's table. */
void dw_rope_rows(const dw_net *net, int first, int end, float *table);

/* Measures the break-even of gated layer l on this machine, which takes a few milliseconds.  The pass must be set to all
 * threads.  x (n_embd) and counts (threads, n_layer) are scratch. */
float dw_measure_break_even(dw_pass *p, int l, float *x, dw_coverage *counts);

#endif
