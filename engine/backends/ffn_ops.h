/* ffn_ops.h - how a layer's FFN is computed: an operator, chosen when the layer is bound.
 *
 * An operator is a row with its memory layout and its two steps.  Every way of computing (steps.h) has one row per
 * kind.  dw_choose_kinds chooses the kind of a layer from its tensors and the session's options, and again when
 * tensors, lists or an experiment change.  A new operator (experts, say) needs a kind, its rows and a line in kind_of.
 *
 * An experiment changes what only measurements need: what decides which groups are open, and how open neurons are
 * computed.  A program installs one in a session with dw_session_experiment (model/session.h). */
#ifndef DW_FFN_OPS_H
#define DW_FFN_OPS_H

#include "backends/backends.h"

typedef enum dw_ffn_kind {
    DW_FFN_DENSE,    // all neurons
    DW_FFN_TWO_PART, // all neurons; the matrices are in two parts (formats/ffn_two_part.h)
    DW_FFN_LIST,     // the neurons of a list; the others count as zero
    DW_FFN_GATED,    // a gated layer: few tokens read the rows of open neurons only
    DW_FFN_MASKED,   // a gated layer where skipping does not pay: few tokens compute all neurons, closed ones become 0
    DW_FFN_GATHERED, // a gated layer in an experiment: few tokens list the open neurons and copy their rows together
    DW_N_FFN_KINDS
} dw_ffn_kind;

static inline bool dw_ffn_is_gated(dw_ffn_kind kind) { return kind >= DW_FFN_GATED; }

typedef struct dw_pass dw_pass;

typedef struct dw_ffn_op {
    void (*lay_out)(dw_pass *p, dw_layout *a);         // its own memory, once for all layers; NULL: none
    void (*neurons)(dw_pass *p, int l, int ith);       // h = norm(x); neuron = act(Wgate h) * Wup h, or 0
    void (*down)(dw_pass *p, int l, int ith);          // x += Wdown neuron
} dw_ffn_op;

/* ---- experiments -------------------------------------------------------------------------------------- */

typedef struct dw_ffn_experiment {
    /* Sets open[first .. end - 1] of a gated layer for a token at that position.  It replaces the decision of the
     * layer's rule or predictor, which is computed all the same.  Called from all threads.  NULL: the layer decides. */
    void (*decide)(const void *ctx, int layer, int pos, int first, int end, uint8_t *open);
    const void *ctx;
    const float *activity; // (n_layer): the share that `decide` opens; required with it
    bool gathered;         // DW_FFN_GATHERED instead of DW_FFN_GATED
} dw_ffn_experiment;

/* A `decide` that opens groups at random, each with its layer's probability, independently for every layer, position,
 * group. */
typedef struct dw_random_groups {
    const float *share; // (n_layer)
    uint64_t seed;
} dw_random_groups;

void dw_open_random(const void *lots, int layer, int pos, int first, int end, uint8_t *open);

#endif
