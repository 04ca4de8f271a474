/* gate_decide.h - inside the backends: which groups of neurons of a gated layer are open for a token.
 *
 * Both backends decide by these functions, from the gates or scores that each computes in its own way.  Flags
 * (n_tokens, dw_n_groups) are 1 for open groups.
 *
 * A predictor's hidden values z = relu(A h + a) come from the FFN's input h of its own layer or of the layer before.
 * In the second case the FFN step of the layer before computes them.  Group i is open where the score (B z + b)_i is not
 * negative.  All comparisons are written so that a NaN opens its group. */
#ifndef DW_GATE_DECIDE_H
#define DW_GATE_DECIDE_H

#include "backends/steps.h"

static inline double dw_relu(double x) { return x < 0 ? 0 : x; } // NaN stays NaN
static inline bool dw_score_opens(double score) { return !(score < 0); }

static inline int dw_n_groups(const dw_layer *w) { return (w->n_ff + w->sparse.group - 1) / w->sparse.group; }

/* Whether down and its transposed copy hold the same numbers: not where only one of them was replaced, and not in a
 * quantized type, because blocks lie along rows and the copy was rounded in another way. */
static inline bool dw_down_is_copy(const dw_layer *w) {
    return !w->sparse.down_differs && w->down.type == w->sparse.down_t.type && w->down.type->block == 1;
}

/* Sizes for memory: the largest of all gated layers; 0 if there is none. */
typedef struct dw_gate_sizes {
    int n_groups, rank, n_ff;
} dw_gate_sizes;

dw_gate_sizes dw_gate_sizes_of(const dw_net *net);

/* Decides on groups first .. end - 1 of layer l for a token of the pass.  open: the token's flags.  The decision is
 * the experiment's if there is one; else what a predictor has put into the flags; else it follows from act(gate) of
 * these neurons in the token's row of pass->gate.  Returns the number of open neurons. */
int dw_decide(const dw_pass *p, int l, int token, int first, int end, uint8_t *open);

/* Counts a pass over a layer that computes n of its neurons for all tokens; few: count the matrices' bytes, too. */
void dw_count_dense(const dw_pass *p, int l, int n, bool few);

static inline dw_coverage *dw_coverage_of(const dw_pass *p, int l, int ith) {
    return p->coverage + (size_t)ith * (size_t)p->net->hp.n_layer + l;
}

#endif
