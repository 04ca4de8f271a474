/* collect_gradients.h - collect's backward pass: what the loss says of neurons and of the FFNs' outputs.
 *
 * L = sum over a window's tokens of -ln p(next token), in nats.  For every counted token, with a neuron's value a and
 * g = dL/da (the gradient by down's input), and y the FFN's output with its gradient dL/dy:
 *
 *   sum_taylor += |a g|      the first-order change of L when the neuron is zeroed for this token
 *                            (Molchanov et al. 2019, arXiv 1906.10771; Ma et al. 2023, LLM-Pruner, arXiv 2305.11627)
 *   sum_fisher += (a g)^2    twice the second-order change, by the empirical Fisher matrix (Theis et al. 2018, arXiv
 *                            1801.05787)
 *   Gram matrix += dL/dy (dL/dy)^T    n_embd x n_embd for each layer; errors of y are weighted by it (output_norm.h)
 *
 * Magnitudes are taken per token.  Signed products would cancel over tokens, because at a minimum of L their mean is 0.
 *
 * The labels are the texts' own tokens.  A divergence from a teacher would need another model: that from the model
 * itself is at its minimum, so all its gradients are 0.
 *
 * The last token of a window has no next one, so its gradient is 0; it counts like the others.  Attention is causal:
 * gradients at a position depend on losses from there on only.  So positions that do not count (--skip, and those of a
 * tail that were in the window before) change no sum.
 *
 * The windows go through a training pass (engine.h), which computes a again and takes about twice as long as the pass of
 * the statistics.  How many windows share a pass depends on n_ctx alone, and a thread has its own columns or
 * tiles, so no bit depends on the number of threads. */
#ifndef PRUNE_COLLECT_GRADIENTS_H
#define PRUNE_COLLECT_GRADIENTS_H

#include "kit/calib.h"
#include "prune/gram_sums.h"

typedef struct collect_gradients {
    kit_stats *s;                // with gradients (kit_stats_add_gradients)
    const gram_sums *covariance; // of all layers
    dw_pool *pool;
    dw_session *session;
    dw_train *train;
    int n_seq;                // windows of a pass
    int32_t *token;           // (n_seq, n_ctx)
    int *row, n_row;          // tokens of the pass that count
    dw_gradients *of_weights; // (n_layer + 1): none is wanted
    size_t to;                // the row of s that the sums go to
    double nll;               // of all windows so far
    size_t n_nll;
} collect_gradients;

/* o: pool and backend are used.  Fails for models that the backward pass cannot take: gated ones, and those with cold
 * neurons. */
int collect_gradients_open(collect_gradients *c, const dw_model *m, int n_ctx, const dw_session_options *o,
                           dw_err *err);
void collect_gradients_close(collect_gradients *c);
double collect_gradients_bytes(const collect_gradients *c); // of the training pass

/* Adds windows first .. first + n - 1 (at most n_seq) of a text to row c->to. */
int collect_gradients_add(collect_gradients *c, const calib_texts *texts, const calib_text *text, int first, int n,
                          int skip, dw_err *err);

#endif
