/* ffn_ops.h - how a layer's FFN is computed: an operator, chosen when the layer is bound.
 *
 * An operator is one row: its name, when it applies, and its steps for each way of computing.  The row is the constant
 * dw_ffn_NAME at the end of a file of its own, ffn_NAME.c; DW_FFN_OPS lists all rows.  The first row that applies to a
 * layer computes it.  The choice is made when a net is bound, and again when tensors, lists or an experiment change.
 *
 *     a new operator: ffn_NAME.c, and X(NAME) in DW_FFN_OPS, before the rows that apply to the same layers
 *
 * Its functions are made of the parts in backend_ref.h, backend_cpu.h and gate_decide.h.
 *
 * An experiment changes what only measurements need: what decides which groups are open, and how open neurons are
 * computed.  A program installs one in a session with dw_session_experiment (model/session.h). */
#ifndef DW_FFN_OPS_H
#define DW_FFN_OPS_H

#include "backends/backends.h"

typedef struct dw_pass dw_pass;

/* ---- experiments -------------------------------------------------------------------------------------- */

typedef struct dw_ffn_experiment {
    /* Sets open[first .. end - 1] of a gated layer for a token at that position.  It replaces the decision of the
     * layer's rule or predictor, which is computed all the same.  Called from all threads.  NULL: the layer decides. */
    void (*decide)(const void *ctx, int layer, int pos, int first, int end, uint8_t *open);
    const void *ctx;
    const float *activity; // (n_layer): the share that `decide` opens; required with it
    bool gathered;         // gated layers are computed by dw_ffn_gathered
} dw_ffn_experiment;

/* A `decide` that opens groups at random, each with its layer's probability, independently for every layer, position,
 * group. */
typedef struct dw_random_groups {
    const float *share; // (n_layer)
    uint64_t seed;
} dw_random_groups;

void dw_open_random(const void *groups, int layer, int pos, int first, int end, uint8_t *open);

/* ---- operators ------------------------------------------------------------------------------------------ */

/* The two steps of an operator, computed by one way (steps.h). */
typedef struct dw_ffn_steps {
    void (*lay_out)(dw_pass *p, dw_layout *a, const dw_session_options *o); // memory for all layers, if needed; or NULL
    void (*neurons)(dw_pass *p, int l, int ith); // h = norm(x); neuron = act(Wgate h) * Wup h, or 0
    void (*down)(dw_pass *p, int l, int ith);    // x += Wdown neuron
} dw_ffn_steps;

/* What decides about a layer. */
typedef struct dw_ffn_case {
    const dw_layer *layer;
    bool has_list;         // of the neurons that are computed
    bool is_gated;         // groups of neurons are open or closed for a token
    const dw_ffn_experiment *experiment; // all zero: none
    float activity;        // of a gated layer: the share of neurons that will probably be open
    float break_even;      // the activity up to which skipping pays (break_even.c); 1: not measured or of no interest
} dw_ffn_case;

typedef enum dw_ffn_by { DW_BY_REF, DW_BY_FEW, DW_BY_MANY, DW_N_BY } dw_ffn_by; // backend_ref.h, backend_cpu.h

typedef struct dw_ffn_op {
    const char *name;
    bool (*applies)(const dw_ffn_case *c);
    bool is_gated;         // decides about groups, counts them, and reads a predictor's hidden values if there is one
    bool is_experiment;    // its memory is laid out when an experiment begins, not with the state
    dw_ffn_steps by[DW_N_BY];
} dw_ffn_op;

// clang-format off
/* X(name), in the order in which they are tried. */
#define DW_FFN_OPS(X)                                                                                                  \
    X(list)     /* the neurons of a list; the others count as zero */                                                  \
    X(two_part) /* all neurons; the matrices are in two parts (formats/ffn_two_part.h) */                              \
    X(gathered) /* a gated layer in an experiment: few tokens list the open neurons and copy their rows together */    \
    X(masked)   /* a gated layer where skipping does not pay: few tokens compute all neurons, closed ones become 0 */  \
    X(gated)    /* a gated layer: few tokens read the up and down rows of open neurons only */                         \
    X(dense)    /* all neurons */
// clang-format on

#define DECLARE(name) extern const dw_ffn_op dw_ffn_##name; // dw_ffn_list, dw_ffn_two_part, ..
DW_FFN_OPS(DECLARE)
#undef DECLARE

extern const dw_ffn_op *const dw_ffn_ops[]; // all of them, in this order; ends with NULL

/* Chooses every layer's operator, and which layers compute predictors' hidden values.  weighs: break-evens that were
 * measured count. */
void dw_choose_ops(dw_pass *p, dw_select select, const dw_selection *lists, bool weighs);

#endif
