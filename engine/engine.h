/* engine.h - the public header of libengine.a: read a model, run it, look inside.
 *
 * Purpose.  One engine runs every model file that the tools make, and nothing else does the arithmetic of a model.
 * It is short enough to be read, and fast enough that speed differences between variants come from the model.
 *
 * Objects
 *   model      a mapped GGUF file, read-only, shared by threads and sessions; weights stay packed in the map, or in
 *              copies in huge pages, if they are asked for.
 *   session    timelines over a model: KV cache, positions, scratch, and a shallow copy of the net whose tensors can be
 *              replaced.  dw_session_new allocates all memory that passes need.
 *   batch      tokens of one or several sequences, evaluated in one pass: prefill, decode and perplexity alike.
 *   backend    what computes: `ref` defines the results, `cpu` is fast (backends/backends.h).
 *   tap        a callback that receives inner values of whole batches; a session without a tap pays nothing for taps.
 *   selection  which neurons of each layer's FFN are computed; part of the FFN step, not a filter around it.
 *
 * The pass, for a token with residual x in layer l (all norms RMS, h = norm(x)):
 *   q, k, v = Wq h + bq, Wk h + bk, Wv h + bv   (qwen3: per-head RMS norm of q and k)   rope(q), rope(k)
 *   x += Wo attention(q, K, V)
 *   g = act(Wgate h),  u = Wup h,  a = g * u  (length n_ff[l], the neurons),   x += Wdown a
 * and logits = Wout norm(x).  Widths n_ff and head counts may differ by layer.
 *
 * Glossary.  neuron: row j of gate and up, column j of down.  group: neurons cut together.  rate: fraction of neurons
 * removed for good.  activity: fraction computed at run time.  stats, plan, traces, recipe: the files that tools
 * exchange.  gate: a rule that decides at run time which neurons are computed.
 *
 * Determinism.  With `exact` set in the options the results of a pass do not depend on the number of threads nor on how
 * tokens are batched: exact sessions use the matrix-product kernels only, with one tile shape.  Other sessions use dot
 * kernels for up to 8 tokens and matrix products for more; the two may differ by rounding.
 *
 * Precision.  A separate option, dw_precision, says how finely `cpu` rounds matrix products.  It holds for more than 8
 * tokens and in exact sessions, whose results never depend on threads or batching.  `split` and `rounded`
 * differ only on CPUs with tiles for BF16 (level amx); the other levels multiply in F32.  `int8` rounds the inputs of
 * quantized weights to 8 bits where that is fastest: at the levels avx2 and avx512, and at level amx for 9 to 64
 * tokens of sessions that are not exact; else it is the same as `rounded`.  The fast path for up to 8 tokens always
 * packs them to 8 bits for quantized weights.  `bf16` rounds weights of every type, and inputs, to one BF16, as models in
 * bfloat16 do, where the CPU multiplies BF16 (amx, AVX512_BF16).
 *
 * Attention is F32, with two exceptions where the precision holds.  With `bf16` the factors of its products are one BF16.
 * At level amx they are sums of two with the other precisions; not in exact sessions with `split`.  A token that is alone
 * in its sequence's pass has F32 in sessions that are not exact, where at most 16 heads share a KV head. */
#ifndef DW_ENGINE_H
#define DW_ENGINE_H

#include "base/base.h"
#include "formats/formats.h"
#include "qtypes/qtypes.h"

/* ---- model ------------------------------------------------------------------------------------------ */

typedef struct dw_model dw_model;

typedef struct dw_hparams {
    const char *arch;          // general.architecture: "qwen2"
    int n_layer, n_embd, n_vocab;
    int head_dim;              // of q, k and v
    int n_ctx_train;
    const int *n_ff, *n_head, *n_head_kv; // n_layer each
    int n_ff_max, n_head_max, n_head_kv_max;
    float norm_eps, attn_scale; // attn_scale multiplies q.k
    float rope_base;
    bool tied;                  // output.weight is token_embd.weight
} dw_hparams;

dw_model *dw_model_open(const char *path, dw_err *err);
int dw_model_opens(void *nothing, const char *path, dw_err *err); // a dw_out_check: dw_model_open takes the new file
void dw_model_close(dw_model *m);
/* Copies the matrices that a token reads into memory for which huge pages are asked (Linux).  It fails where the system
 * never gives them.  Sessions opened from now on compute with the copies, and their own memory asks for huge pages, too;
 * results are the same.  The file's pages of these matrices may leave memory.  Call it before the first session; a
 * second call does nothing.  After a failure the model is as before. */
int dw_model_to_huge_pages(dw_model *m, dw_pool *pool, dw_err *err);
size_t dw_model_copied_bytes(dw_model *m, dw_err *err); // what the copies take; 0: out of memory
const dw_pages *dw_model_copies(const dw_model *m);     // data NULL: there are none
const dw_hparams *dw_model_hparams(const dw_model *m);
const char *dw_model_activation(const dw_model *m);        // of the FFN's gate: silu, gelu_pytorch_tanh, relu
const dw_gguf *dw_model_gguf(const dw_model *m);
size_t dw_model_n_params(const dw_model *m);               // without what gate and train add
int dw_model_need_whole_ffn(const dw_model *m, dw_err *err); // fails for hot and cold neurons (formats/ffn_two_part.h)
int dw_model_need_ungated(const dw_model *m, const char *verb, dw_err *err); // "cut": "cut the model before gate"
size_t dw_model_bytes_per_token(const dw_model *m);        // weight bytes that decoding one token reads when all neurons are computed

/* ---- backends --------------------------------------------------------------------------------------- */

typedef struct dw_backend_name {
    const char *name; // "cpu", "ref"
    const char *help;
} dw_backend_name;
extern const dw_backend_name dw_backend_names[]; // ends with name NULL

/* What the cpu backend would use here, e.g. "amx"; $DEADWOOD_CPU forces one: portable, avx2, avx512, amx. */
const char *dw_cpu_level(dw_err *err); // NULL: a level was forced that this machine lacks

/* ---- run-time sparsity ------------------------------------------------------------------------------ */

/* A gated model (formats/ffn_gated.h) says for each layer's FFN which groups of neurons are open for a token: those
 * whose largest |act(gate)| reaches a threshold, or those that a small network predicts.  Closed neurons count as
 * zero. */
typedef enum dw_select {
    DW_SELECT_AUTO,  // as fused, but where down has 16 or 32 bits, computes all neurons and zeroes closed ones where
                     // a measurement says that this is faster, which changes results by rounding only (down in blocks
                     // holds other numbers than its copy); layers that an older file marks as dense are run as if not
                     // gated
    DW_SELECT_FUSED, // every layer with a transposed down is gated; up to 8 tokens: gate, test, up, down in one walk
    DW_SELECT_DENSE, // as if the model were not gated
} dw_select;

typedef struct dw_coverage {     // of a layer, since the session began or dw_session_reset_coverage
    uint64_t n_tokens;           // of a dense last layer only those that gave an output row
    uint64_t n_open;             // open neurons, summed over tokens: n_tokens * n_ff in a dense layer
    uint64_t n_computed;         // cpu: neurons whose up rows were read, summed over passes of few tokens
    uint64_t n_bytes;            // bytes of the FFN's matrices, with the predictor's, read in these passes; where AUTO computes
                                 // closed neurons, they count as if skipped
    uint64_t n_few;              // the number of these passes
} dw_coverage;

/* ---- session ---------------------------------------------------------------------------------------- */

typedef struct dw_session dw_session;
typedef enum dw_kv_cache {
    DW_KV_CACHE_F16,
    DW_KV_CACHE_F32,
    DW_KV_CACHE_Q8_0, // blocks of 32 values in 34 bytes; heads must be whole blocks
} dw_kv_cache;

typedef enum dw_precision {
    DW_PRECISION_DEFAULT, // split in exact sessions, int8 in others
    DW_PRECISION_SPLIT,   // numbers as a sum of two BF16: relative error about 3e-6
    DW_PRECISION_ROUNDED, // quantized weights and their inputs to one BF16: 2e-3; 16 and 32 bits as in split
    DW_PRECISION_INT8,    // inputs of quantized weights to 8 bits, as in decode: 6e-3; where there is no such kernel
                          // (portable), on amx above 64 tokens (Q4_0, Q4_1, Q4_K, IQ4_NL: above 8) or in exact sessions,
                          // and for 16 and 32 bits: as rounded
    DW_PRECISION_BF16,    // all weights and their inputs to one BF16, where the CPU multiplies them (amx, AVX512_BF16):
                          // 2e-3; on others as split
} dw_precision;

typedef struct dw_session_options { // zero means the default
    dw_pool *pool;       // required, borrowed
    const char *backend; // "cpu"
    int n_ctx;           // positions of a sequence; default min(n_ctx_train, 4096)
    int n_seq;           // sequences; 1
    int n_batch;         // tokens in one pass; longer batches are cut into passes; 512
    int n_out;           // output rows kept of one dw_session_eval; n_batch
    dw_kv_cache kv;      // F16
    bool exact;          // results independent of threads and batching (score)
    dw_precision precision; // of matrix products
    dw_select select;    // how gated layers are run; auto
} dw_session_options;

dw_session *dw_session_new(const dw_model *m, const dw_session_options *o, dw_err *err);
void dw_session_free(dw_session *s);
/* Bytes that dw_session_new allocates.  0: it refuses the options; SIZE_MAX: too many, or there is no memory to count
 * them. */
size_t dw_session_memory(const dw_model *m, const dw_session_options *o);

typedef struct dw_batch {
    int n_tokens;
    const int32_t *token;
    const int32_t *seq; // NULL: sequence 0
    const int32_t *pos; // NULL: each token goes after the last of its sequence
    const uint8_t *out; // 1: this token's logits are wanted; NULL: only the last token's
} dw_batch;

/* Evaluates the batch and replaces the output rows of the one before.  A sequence's first token may have a position
 * that is already filled; the sequence is then rewound to it.  After an error no position has changed,
 * but those from a rewound one on may hold other tokens. */
int dw_session_eval(dw_session *s, const dw_batch *b, dw_err *err);
/* Logits of output rows first .. first+n-1 into out, (n, n_vocab) row-major. */
int dw_session_logits(dw_session *s, int first, int n, float *out, dw_err *err);
/* ln p(target[i]) of output row first+i; the full row of logits is never stored. */
int dw_session_logprobs(dw_session *s, int first, int n, const int32_t *target, double *logprob, dw_err *err);
int dw_session_n_past(const dw_session *s, int seq);             // positions filled
void dw_session_rewind(dw_session *s, int seq, int n_past);      // forget positions n_past and later

/* ---- taps -------------------------------------------------------------------------------------------- */

typedef enum dw_tap_point {
    DW_TAP_RESIDUAL,  // x before the layer, n_embd; once more after the last layer with layer = n_layer
    DW_TAP_ATTN_IN,   // norm(x): input of q, k, v, n_embd
    DW_TAP_ATTN_MIX,  // input of attn_output, n_head * head_dim
    DW_TAP_FFN_IN,    // norm(x): input of gate and up, n_embd
    DW_TAP_FFN_GATE,  // g = act(Wgate h), n_ff
    DW_TAP_FFN_NEURON, // a = g * u: input of down, n_ff
    DW_TAP_HEAD_IN,   // norm(x) of the output rows, n_embd; one event per run of neighbouring tokens
    DW_N_TAP_POINTS
} dw_tap_point;

typedef struct dw_tap_event {
    dw_tap_point point;
    int layer, n_tokens, n;  // values (n_tokens, n), row-major
    const float *values;     // borrowed until the callback returns
    const int32_t *seq, *pos; // n_tokens each
} dw_tap_event;

typedef struct dw_tap {
    unsigned points; // bits 1 << dw_tap_point
    void (*fn)(void *ctx, const dw_tap_event *event); // on the calling thread, in order of layers
    void *ctx;
    /* Instead of fn, for expensive work: called on all threads of the pool at once.  Each sees the events in order. */
    void (*fn_thread)(void *ctx, const dw_tap_event *event, int ith, int n_threads);
    bool in_step;   // the next event waits until all threads have returned: one more barrier per event
    int gate_every; // DW_TAP_FFN_GATE: only rows of positions 0, n, 2n.. hold values; 0: all (slower)
} dw_tap;

void dw_session_set_tap(dw_session *s, const dw_tap *tap); // copied; NULL: none

/* ---- layers one by one ------------------------------------------------------------------------------- */

/* The same pass in pieces, on a residual that the caller owns: (b->n_tokens, n_embd) F32, row-major.  To evaluate a
 * changed layer k, keep the residual before it and run only layer k on a copy.
 *
 *     dw_session_embed(s, &b, x, err);  dw_session_layers(s, &b, 0, n_layer, x, err);  dw_session_head(s, &b, x, err);
 *
 * gives what dw_session_eval gives, with `exact` to the bit.  Positions are b->pos, or 0, 1, 2, .. of each sequence.
 * A layer writes its keys and values at these positions.  It reads those of earlier positions, which an earlier run
 * of the same layer must have written.  n_past does not change.  Taps see the layers that are run. */
int dw_session_embed(dw_session *s, const dw_batch *b, float *residual, dw_err *err);
/* Layers first .. end - 1; b->token is not read. */
int dw_session_layers(dw_session *s, const dw_batch *b, int first, int end, float *residual, dw_err *err);
/* The rows that b->out names become the output rows (dw_session_logits, _logprobs).  The residual is unchanged. */
int dw_session_head(dw_session *s, const dw_batch *b, float *residual, dw_err *err);

/* ---- replaced tensors --------------------------------------------------------------------------------- */

typedef enum dw_weight { // of a layer
    DW_W_ATTN_NORM, DW_W_Q, DW_W_K, DW_W_V, DW_W_Q_BIAS, DW_W_K_BIAS, DW_W_V_BIAS, DW_W_Q_NORM, DW_W_K_NORM, DW_W_O, DW_W_O_BIAS,
    DW_W_FFN_NORM, DW_W_GATE, DW_W_UP, DW_W_GATE_BIAS, DW_W_UP_BIAS, DW_W_DOWN, DW_W_DOWN_BIAS,
    DW_W_DOWN_T,         // of gated layers
    DW_W_TOKEN_EMBD,     // of the model: `layer` is ignored; an output tied to the embedding is replaced separately
    DW_W_OUTPUT_NORM, DW_W_OUTPUT, DW_W_OUTPUT_BIAS,
    DW_N_WEIGHTS
} dw_weight;

static inline bool dw_weight_is_of_model(int which) { return which >= DW_W_TOKEN_EMBD; }

/* From now on this session computes with *t instead of the weight; t NULL: with the model's weight again.  Of *t the
 * type, ne[0], ne[1] and data are read and copied.  The data are borrowed and may change between evaluations.  They
 * have any type, but vectors (norms, biases) are F32.  Biases that the model lacks may be given.  Other sessions of
 * the model are not affected.  In layers in two parts, gate, up and down are the first part.  Fails for another
 * shape, and for the down of a gated layer before its transposed copy was replaced. */
int dw_session_replace(dw_session *s, int layer, dw_weight which, const dw_tensor *t, dw_err *err);
/* The activation of the FFN's gate, from now on: "silu", "gelu_pytorch_tanh" or "relu".  Files name theirs where it is
 * not the architecture's own (formats/ffn_act.h). */
int dw_session_activation(dw_session *s, const char *name, dw_err *err);
/* The tensor that the session computes with; name NULL: the layer or the model has no such weight. */
dw_tensor dw_session_tensor(dw_session *s, int layer, dw_weight which);

/* ---- selection --------------------------------------------------------------------------------------- */

/* For every layer a list of the neurons that are computed; all others count as zero.  Lists are ascending.  A layer
 * with a list is run as if it were not gated. */
typedef struct dw_selection {
    const int32_t *const *neuron; // n_layer lists; a NULL list: all neurons of that layer
    const int32_t *n;             // n_layer lengths
} dw_selection;

/* Borrowed until changed or the session ends; NULL: all.  Fails when a list is not ascending within 0 .. n_ff[l] - 1,
 * and on models with cold parts.  A list that names every neuron still takes the code path of lists. */
int dw_session_set_selection(dw_session *s, const dw_selection *sel, dw_err *err);

/* ---- gated layers ------------------------------------------------------------------------------------ */

bool dw_model_is_gated(const dw_model *m); // any layer has a transposed down
/* A layer's counts, summed over threads. */
dw_coverage dw_session_coverage(const dw_session *s, int layer);
void dw_session_reset_coverage(dw_session *s);
/* open[i] = the largest |gate| of group i reaches the threshold.  gate (n_ff) holds act(gate). */
void dw_open_groups(const float *gate, int n_ff, int group, float threshold, uint8_t *open);

/* ---- training ------------------------------------------------------------------------------------------ */

/* Gradients of a loss by every weight (formulas: backends/backward.h).  A pass works on whole windows of a text: token t
 * of a window has position t and sees positions 0 .. t.
 *
 *     dw_train_forward(teacher, token, n_seq, err);  dw_train_forward(student, token, n_seq, err);
 *     dw_train_backward(student, &(dw_loss){.teacher = teacher}, 1.0 / n, gradients, &sums);
 *
 * Two models that compute with the same numbers have the same logits bit for bit, so their KL and its gradients are 0.
 * The results do not depend on the number of threads. */
typedef struct dw_train dw_train;

typedef struct dw_train_options { // zero means the default
    int n_ctx;              // tokens of a window; the session's positions
    int n_seq;              // most windows of one pass; 1
    bool forward_only;      // no gradients: a teacher.  Takes less memory
    bool keep_residuals;    // of a forward_only pass: a student's `hidden` compares them
    bool keep_values;       // the results of all layers' products stay, so that backward does not compute them again:
                            // the same bits, an eighth faster, n_ctx n_seq (2 n_ff + 2 n_embd + ..) floats a layer
    dw_precision precision; // of products on CPUs that multiply BF16 (amx, AVX512_BF16); rounded: one BF16 of each
                            // number, sums in F32; int8: as rounded
} dw_train_options;

/* A pass computes with the session's net, its replaced tensors included.  The session must outlive dw_train; its cache and
 * its positions are not used.  All memory is allocated here.  Fails for models with cold neurons, and for gated ones unless the
 * session's selection is dense. */
dw_train *dw_train_new(dw_session *s, const dw_train_options *o, dw_err *err);
size_t dw_train_memory(dw_session *s, const dw_train_options *o); // bytes that dw_train_new allocates; 0: it fails
void dw_train_free(dw_train *t);
/* Measures how many operations of matrix products a second all threads make in the pass's arithmetic, from cache; a
 * multiply-add is two.  Takes 0.1 s.  0: the backend cannot tell (ref). */
double dw_train_rate(dw_train *t);

/* token: (n_seq, n_ctx).  Fails for a token that the vocabulary lacks and for too many windows. */
int dw_train_forward(dw_train *t, const int32_t *token, int n_seq, dw_err *err);
/* Logits of tokens first .. first + n - 1 of the last forward pass into out, (n, n_vocab). */
void dw_train_logits(dw_train *t, int first, int n, float *out);

/* Stored predictions of a teacher in the place of its logits: of each token of a pass the k likeliest next tokens, and
 * the mass of all others together, p_rest.  The KL over these k + 1 bins is the KL to a teacher that spreads p_rest as
 * the net itself does (then p_rest q_j / q_rest is its probability of another token j), and so is the gradient. */
typedef struct dw_coarse_teacher {
    int k;
    const int32_t *token;  // (tokens of the pass, k): different tokens of the vocabulary
    const float *logprob;  // (tokens of the pass, k): ln p at the loss's temperature
    const float *rest;     // (tokens of the pass): ln p_rest
} dw_coarse_teacher;

typedef struct dw_loss {
    dw_train *teacher;  // its last forward pass had the same tokens; NULL: cross entropy alone
    const dw_coarse_teacher *coarse; // or: its stored predictions
    double temperature; // of the distributions in KL(teacher || net); 0: 1.  The KL is multiplied by its square
    double ce;          // share of the cross entropy with the text's next tokens, the KL having the rest; 0 .. 1
    double hidden;      // weight of the residuals' relative squared error, |x - x_teacher|^2 / |x_teacher|^2, in the mean
                        // over the layers' outputs; not of a window's first token, whose residual is unlike all others
    const int *residual; // (n_layer): the residual before that layer of the teacher is compared with the one after layer
                         // l, and n_layer of the teacher is its last; NULL: l + 1
    double sparsity;    // weight of the gates' density, |r|_1 / (sqrt(n) |r|_2) of the n values r = relu(g) of a layer, in
                        // the mean over the layers: 1 if all are alike, 1 / sqrt(n) if one alone is open, 0 if none is.  It
                        // does not depend on their scale (it falls as the sparseness of Hoyer 2004 rises).  Needs relu
    int first;          // positions of a window before it have no loss
} dw_loss;

typedef struct dw_loss_sums { // over tokens; a caller may add up passes
    double loss, kl, nll; // nats
    double hidden;
    double density, open; // open: a token's share of gates g > 0, in the mean over the layers; 0 if sparsity is 0
    size_t n_kl, n_nll, n_hidden, n_density; // tokens; the last of a window has no next token
} dw_loss_sums;

/* Arrays of the caller with the weights' shapes, to which gradients are added; NULL: not wanted. */
typedef struct dw_gradients {
    float *of[DW_N_WEIGHTS];
} dw_gradients;

/* After a forward pass: adds to *sums.  These functions have no way to fail, so the caller sees to it that
 *   - the pass is not forward_only; its teacher may be;
 *   - the teacher has the same n_ctx, tokens and vocabulary;
 *   - with `hidden` there is a teacher of the same n_embd, with keep_residuals if it is forward_only;
 *   - with `sparsity` the activation of the gates is relu.
 * Builds with DW_DEBUG check all but the tokens. */
void dw_train_loss(dw_train *t, const dw_loss *loss, dw_loss_sums *sums);
/* The same, and adds scale times the gradients of the loss's sum.  g: (n_layer + 1), the last with the model's own weights.  A
 * forward pass must come before the next backward pass. */
void dw_train_backward(dw_train *t, const dw_loss *loss, double scale, const dw_gradients *g, dw_loss_sums *sums);

typedef enum dw_grad_point {
    DW_GRAD_FFN_OUT, // by the FFN's output, n_embd
    DW_GRAD_NEURON,  // by the neurons a, n_ff; the event's values are a
} dw_grad_point;

typedef struct dw_grad_event {
    dw_grad_point point;
    int layer, n_tokens, n;
    const float *grad;   // (n_tokens, n) of the scaled loss; borrowed until the callback returns
    const float *values; // (n_tokens, n); NULL: none
} dw_grad_event;

typedef struct dw_grad_tap {
    void (*fn)(void *ctx, const dw_grad_event *event); // on the calling thread, from the last layer to the first
    void *ctx;
} dw_grad_tap;

void dw_train_set_tap(dw_train *t, const dw_grad_tap *tap); // copied; NULL: none

/* ---- sampling ---------------------------------------------------------------------------------------- */

typedef struct dw_sampler_options {
    double temperature; // 0: greedy
    int top_k;          // 0: all
    double top_p;       // 1: all; 0, as everything below the likeliest's share, is greedy
    double min_p;       // 0: all
    uint64_t seed;
} dw_sampler_options;

typedef struct dw_sampler dw_sampler;
dw_sampler *dw_sampler_new(const dw_sampler_options *o, int n_vocab, dw_err *err);
void dw_sampler_free(dw_sampler *s);
/* The token for logits (n_vocab); greedy takes the first of equal ones; -1: a logit is NaN. */
int32_t dw_sample(dw_sampler *s, const float *logits);

#endif
