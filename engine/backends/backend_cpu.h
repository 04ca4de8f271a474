/* backend_cpu.h - inside of the cpu backend: what a step knows, and its two ways to compute.
 *
 *   few   1..DW_DOT_MAX_COLS tokens that need not be exact: every thread norms and packs the tokens for itself and takes
 *         weight rows with the dot kernels; no barrier inside a step.
 *   many  all other passes: tokens are packed once by all threads, barrier, then matrix products by pieces of rows.
 *
 * Work is cut into numbered pieces.  In `few` each thread owns a contiguous share of nine tenths of them (the same rows for
 * every token: their pages and cache lines stay with the core); the rest, and all pieces in `many`, are taken from a
 * counter, so that a thread that lost its core does not stop the others.  Who computes a piece never matters. */
#ifndef DW_BACKEND_CPU_H
#define DW_BACKEND_CPU_H

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
    dw_team *team;
    uint8_t *kernel;   // this thread's: scratch of a product or of attention, or packed vectors
    float *gate, *up;  // this thread's: results of a piece, (tokens, rows)
    uint8_t *shared;   // packed tokens, and behind them what the head needs
} dw_step;

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

static inline const float *dw_floats(const dw_tensor *t) { return t->name ? (const float *)(const void *)t->data : NULL; }
static inline int dw_smaller(int a, int b) { return a < b ? a : b; }

enum {
    DW_FEW_ROWS = 32,   // of a piece in `few`
    DW_FEW_RUN = 64,    // pieces
    DW_MANY_ROWS = 256, // most rows of a piece in `many`, but for wider heads
};

void dw_few_qkv(const dw_step *s, int l);
void dw_few_attn_out(const dw_step *s, int l);
void dw_few_ffn_neurons(const dw_step *s, int l);
void dw_few_ffn_down(const dw_step *s, int l);
void dw_few_logits(const dw_step *s, const float *hidden, int n, float *logits);
size_t dw_few_scratch_bytes(int n_max); // of vectors of at most n_max values

void dw_many_qkv(const dw_step *s, int l);
void dw_many_attn_out(const dw_step *s, int l);
void dw_many_ffn_neurons(const dw_step *s, int l);
void dw_many_ffn_down(const dw_step *s, int l);
void dw_many_logits(const dw_step *s, const float *hidden, int n, float *logits);
void dw_many_logprobs(const dw_step *s, const float *hidden, int n, const int32_t *target, double *logprob);
size_t dw_many_head_bytes(const dw_hparams *hp, int n_tokens); // of the shared scratch

#endif
