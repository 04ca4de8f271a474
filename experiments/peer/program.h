/* program.h - one program of a comparison: this engine or stock llama.cpp over one model file, driven alike.
 *
 * Both evaluate the same ids at the same positions of the same sequences and give logits or log-probabilities, so that
 * what compares them is written once.  A program holds its model; nothing of it runs between two calls. */
#ifndef EXP_PROGRAM_H
#define EXP_PROGRAM_H

#include "engine.h"
#include "experiments/peer/stock.h"

typedef struct exp_program exp_program;

typedef struct exp_program_options {
    stock *stock;        // NULL: this engine
    stock_flash flash;   // stock
    bool plain_buffers;  // stock
    const char *backend; // this engine
    bool huge_pages;     // this engine
    bool kv_f32, exact;
    dw_precision precision; // this engine
    dw_pool *pool;       // borrowed; its size is the number of threads of both
    int n_ctx, n_batch;
    int n_seq;           // sequences; 0: one
} exp_program_options;

exp_program *exp_program_open(const char *path, const exp_program_options *o, dw_err *err);
void exp_program_close(exp_program *s);
int exp_program_n_vocab(const exp_program *s);

/* Evaluates tokens (stock.h) as one batch.  Output rows are the last n_out tokens of each sequence, in order. */
int exp_program_eval(exp_program *s, const stock_tokens *t, dw_err *err);
/* (n_vocab) logits of output row i, borrowed until the next call. */
const float *exp_program_logits(exp_program *s, int i, dw_err *err);

/* GB/s that the threads read of the weights of a token, where they lie, once, in the way that was fastest at the first
 * call (bandwidth.h): what a loop that does nothing else reaches.  Of upstream: 0. */
double exp_program_read(exp_program *s);

/* Perplexity as llama-perplexity defines it: window w is ids[w * n_ctx ..], evaluated from an empty cache, its first
 * token replaced by bos unless that is -1; the tokens behind its first half are scored.  nll[w]: their sum of
 * -ln p, for windows first .. first + n - 1; each has n_ctx - 1 - n_ctx/2 of them. */
int exp_program_windows(exp_program *s, const int32_t *ids, int n_ctx, int32_t bos, int first, int n, double *nll,
                     dw_err *err);

#endif
