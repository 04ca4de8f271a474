/* backend_cpu.h - inside of the cpu backend: what a step knows, and its two ways to compute.
 *
 *   few   1..DW_DOT_MAX_COLS tokens that need not be exact: every thread norms and packs the tokens for itself and takes
 *         weight rows with the dot kernels; no barrier inside a step (but between the two parts of a down, cold.h).
 *   many  all other passes: tokens are packed once by all threads, barrier, then matrix products by pieces of rows.
 *
 * Work is cut into numbered pieces.  In `few` each thread owns a contiguous share of nine tenths of them (the same rows for
 * every token: their pages and cache lines stay with the core); the rest, and all pieces in `many`, are taken from a
 * counter, so that a thread that lost its core does not stop the others.  Who computes a piece never matters.
 *
 * Gated layers (open_groups.h).  Few tokens: a walk over the neurons adds the down rows of open ones to a sum of its own, and
 * ffn_down adds up these sums; every thread has one for its share, and each piece of the rest one, so that the order of
 * additions is always the same.  Many tokens: all gates, a decision for each token, all ups; closed neurons are zeros, and
 * down is a product with the transposed matrix. */
#ifndef DW_BACKEND_CPU_H
#define DW_BACKEND_CPU_H

#include "backends/open_groups.h"
#include "backends/kernels_vec.h"

#include <stdatomic.h>

/* At the head of the scratch; all zero when a session begins, and again after every step. */
typedef struct dw_team {
    _Alignas(64) atomic_int n_taken;
    atomic_int n_done;
} dw_team;

typedef struct dw_step {
    dw_pass *p;
    int ith, n_threads;
    dw_level level;
    const dw_vec *vec;
    void (*glu)(float *gate, const float *up, int n, float *neuron); // of the net's activation
    dw_team *team;
    uint8_t *kernel;   // this thread's: scratch of a product or of attention, or packed vectors
    float *gate, *up;  // this thread's: results of a piece, (tokens, rows)
    uint8_t *shared;   // packed tokens, and behind them what the head needs
    uint8_t *gated;    // shared: what gated layers need
} dw_step;

/* Shared scratch of gated layers; rows of a smaller layer are packed. */
typedef struct dw_gated {
    float *hidden[2];  // (n_batch, rank): predictors' z of layers of even and odd number
    uint8_t *open;     // (n_batch, n_groups): flags
    uint8_t *packed;   // many: packed z
    float *score;      // few: (DW_DOT_MAX_COLS, n_groups)
    float *sum;        // few: (n_threads + DW_TAIL_PIECES, DW_DOT_MAX_COLS, n_embd)
    int32_t *list;     // listed: (1 + n_ff): how many neurons, and which
    uint8_t *rows[3];  // listed: their rows of gate, up and down_t
} dw_gated;

size_t dw_gated_bytes(const dw_net *net, int n_batch, int n_threads, dw_select select);
dw_gated dw_gated_of(const dw_step *s);
static inline dw_coverage *dw_coverage_of(const dw_step *s, int l) { return s->p->coverage + s->ith * s->p->net->hp.n_layer + l; }

/* The pieces 0 .. n - 1 of a step as one thread gets them. */
typedef struct dw_pieces {
    int next, end;     // own share
    int n_shared_out, n;
} dw_pieces;

typedef struct dw_run {
    int first, end;
} dw_run;

dw_pieces dw_pieces_begin(const dw_step *s, int n, bool own_shares);
int dw_pieces_next(const dw_step *s, dw_pieces *pieces); // -1 once: no more; a barrier must follow before the next step
bool dw_pieces_run(const dw_step *s, dw_pieces *pieces, dw_run *run); // likewise, up to DW_FEW_RUN pieces of its own at once

typedef enum dw_head_kind { DW_HEAD_Q, DW_HEAD_K, DW_HEAD_V } dw_head_kind;

/* Bias, norm and rope of one head of one token, and its way to q or into the cache; x (head_dim) is changed. */
void dw_finish_head(const dw_step *s, int l, dw_head_kind kind, int head, int token, float *x);

/* What a piece of neurons, entries first .. end - 1 of the selection (or neurons), leaves behind: gate and up (n_tokens,
 * end - first) with their biases become neurons first_token and following; neurons between the selected ones become 0. */
void dw_finish_neurons(const dw_step *s, int l, int first, int end, int first_token, int n_tokens);

/* Few: the tokens' vectors, packed once in each form that the step's matrices ask for. */
typedef struct dw_vectors {
    const dw_step *s;
    const float *x; // (n_cols, n), rows ldx apart
    int n_cols, n, ldx;
    bool packed[2]; // by dw_act_form
    uint8_t *act[2];
} dw_vectors;

dw_vectors dw_vectors_of(const dw_step *s, uint8_t *scratch, const float *x, int n_cols, int n); // dw_few_scratch_bytes(n)
/* h = norm(x) in s->kernel; one thread each shows a token's h to whom it may concern. */
dw_vectors dw_normed(const dw_step *s, const dw_tensor *norm);
/* y[c * ldy + r] = row (first + r) of w, or of the list, times vector c. */
void dw_dot_rows(dw_vectors *v, const dw_tensor *w, const int32_t *list, int first, int n_rows, float *y, size_t ldy);
/* Pieces of rows, and the next rows of n_rows for this thread, or none. */
dw_pieces dw_pieces_of_rows(const dw_step *s, int n_rows);
bool dw_next_rows(const dw_step *s, dw_pieces *pieces, int n_rows, int *first, int *n);

static inline const float *dw_floats(const dw_tensor *t) { return t->name ? (const float *)(const void *)t->data : NULL; }
static inline int dw_smaller(int a, int b) { return a < b ? a : b; }
static inline void dw_prefetch(const uint8_t *p, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i += 64) __builtin_prefetch(p + i);
}

/* Where share i of n things begins, and share i - 1 ends. */
static inline int dw_share(int n, int i, int n_shares) { return (int)((size_t)n * (size_t)i / (size_t)n_shares); }

enum {
    DW_FEW_ROWS = 32,   // of a piece in `few`
    DW_FEW_RUN = 64,    // pieces
    DW_TAIL_PIECES = 16, // of a gated layer, most that are taken from the counter
    DW_MANY_ROWS = 256, // most rows of a piece in `many`, but for wider heads
};

void dw_few_qkv(const dw_step *s, int l);
void dw_few_attn_out(const dw_step *s, int l);
void dw_few_ffn_neurons(const dw_step *s, int l);
void dw_few_ffn_down(const dw_step *s, int l);
void dw_few_logits(const dw_step *s, const float *hidden, int n, float *logits);
void dw_few_gated_neurons(const dw_step *s, int l);
void dw_few_gated_down(const dw_step *s, int l);
void dw_few_hidden(const dw_step *s, int l, dw_vectors *h); // z of layer l's predictor; a barrier must follow
size_t dw_few_scratch_bytes(int n_max); // of vectors of at most n_max values

void dw_many_qkv(const dw_step *s, int l);
void dw_many_attn_out(const dw_step *s, int l);
void dw_many_ffn_neurons(const dw_step *s, int l);
void dw_many_ffn_down(const dw_step *s, int l);
void dw_many_gated_down(const dw_step *s, int l);
void dw_many_logits(const dw_step *s, const float *hidden, int n, float *logits);
void dw_many_logprobs(const dw_step *s, const float *hidden, int n, const int32_t *target, double *logprob);
size_t dw_many_head_bytes(const dw_hparams *hp, int n_tokens); // of the shared scratch

#endif
