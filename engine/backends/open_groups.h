/* open_groups.h - inside of the backends: which groups of neurons of a gated layer are open for a token.
 *
 * Both backends decide by these functions, from the gates or scores that they compute their own way; so a decision is the
 * same wherever these numbers are.  Flags (n_tokens, dw_n_groups) hold 1 for an open group.  A list of selected neurons
 * goes before: a layer that has one in this pass is not gated.
 *
 * A predictor's hidden values z = relu(A h + a) come from the FFN's input of the layer itself, or of the layer before,
 * which then computes them in its own FFN step: the layer finds them ready. */
#ifndef DW_OPEN_GROUPS_H
#define DW_OPEN_GROUPS_H

#include "backends/backends.h"

/* Whether groups of layer l are tested in this pass. */
bool dw_is_gated(const dw_pass *p, int l);
/* Whether the FFN step of layer l has to compute z for itself, and for the layer behind it. */
bool dw_needs_hidden(const dw_pass *p, int l);
bool dw_gives_hidden(const dw_pass *p, int l);

static inline int dw_n_groups(const dw_layer *w) { return (w->n_ff + w->sparse.group - 1) / w->sparse.group; }

/* What scratch must hold: the most of any gated layer; all 0 without one. */
typedef struct dw_gate_sizes {
    int n_groups, rank, n_ff;
    size_t row_bytes; // of up, gate or down_t
} dw_gate_sizes;

dw_gate_sizes dw_gate_sizes_of(const dw_net *net);

/* Decides on groups first .. end - 1 of layer l for a token of the pass: by lot, by what its scores have put into the flags,
 * or by the token's row of pass->gate, whose neurons of these groups hold act(gate).  open: the token's flags.  Returns
 * the number of open neurons. */
int dw_decide(const dw_pass *p, int l, int token, int first, int end, uint8_t *open);

/* One more pass over a layer that is not gated; `few`: its rows of all matrices were read for few tokens. */
void dw_count_dense(const dw_pass *p, int l, bool few);

#endif
