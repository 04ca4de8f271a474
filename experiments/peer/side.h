/* side.h - one side of a comparison: this engine or stock llama.cpp over one model file, driven alike.
 *
 * Both evaluate the same ids at the same positions of the same sequences and give logits or log-probabilities, so that
 * a program that compares them is written once.  A side holds its model; nothing of it runs between two calls. */
#ifndef EXP_SIDE_H
#define EXP_SIDE_H

#include "engine.h"
#include "experiments/peer/stock.h"

typedef struct exp_side exp_side;

typedef struct exp_side_options {
    stock *stock;        // NULL: this engine
    stock_flash flash;   // stock
    bool plain_buffers;  // stock
    const char *backend; // this engine
    bool kv_f32, exact;
    dw_pool *pool;       // borrowed; its size is the number of threads of both
    int n_ctx, n_batch;
    int n_seq;           // sequences; 0: one
} exp_side_options;

exp_side *exp_side_open(const char *path, const exp_side_options *o, dw_err *err);
void exp_side_close(exp_side *s);
int exp_side_n_vocab(const exp_side *s);

/* Evaluates tokens (stock.h) as one batch.  Output rows are the last n_out tokens of each sequence, in order. */
int exp_side_eval(exp_side *s, const stock_tokens *t, dw_err *err);
/* (n_vocab) logits of output row i, borrowed until the next call. */
const float *exp_side_logits(exp_side *s, int i, dw_err *err);

/* Perplexity as llama-perplexity defines it: window w is ids[w * n_ctx ..], evaluated from an empty cache, its first
 * token replaced by bos unless that is -1; the tokens behind its first half are scored.  nll[w]: their sum of
 * -ln p, for windows first .. first + n - 1; each has n_ctx - 1 - n_ctx/2 of them. */
int exp_side_windows(exp_side *s, const int32_t *ids, int n_ctx, int32_t bos, int first, int n, double *nll,
                     dw_err *err);

#endif
