/* ffn_gated.h - inside the operators of gated layers: what gated, masked and gathered share.
 *
 * Their ways for many tokens and in ref are the same: all gates, a decision for each token, all ups; closed neurons are
 * zeros, and down is the sum of the open neurons' rows of the transposed matrix.  Their ways for few tokens differ. */
#ifndef DW_FFN_GATED_OPS_H
#define DW_FFN_GATED_OPS_H

#include "backends/backend_cpu.h"
#include "backends/kernels_axpy.h"

void dw_ref_gated_neurons(dw_pass *p, int l, int ith);
void dw_ref_gated_down(dw_pass *p, int l, int ith);
void dw_many_gated_neurons(dw_pass *p, int l, int ith);
void dw_many_gated_down(dw_pass *p, int l, int ith);
/* Nothing for a net that is run as not gated. */
void dw_gated_lay_out(dw_pass *p, dw_layout *a, const dw_session_options *o);

/* ---- few tokens ----------------------------------------------------------------------------------------- */

enum { DW_WALK_BLOCK = 64 }; // open neurons are computed in blocks of this size

/* A thread on its way over the neurons of a layer. */
typedef struct dw_walk {
    const dw_step *s;
    const dw_layer *w;
    int l, n_groups;
    bool predicted;
    dw_vectors *h;
    dw_tensor gate, up, down; // rows of neurons: the file's, or copies
    const dw_axpy_kernel *axpy;
    dw_coverage *count;
    float *sum;               // (n_tokens, n_embd): the open neurons' down rows
    int32_t block[DW_WALK_BLOCK]; // open neurons, until one comes after it is full
    int n_block;
} dw_walk;

/* The step of few tokens: norm, a predictor's hidden values, `neurons`, the next layer's hidden values, counts. */
void dw_walk_layer(dw_pass *p, int l, int ith, void (*neurons)(dw_walk *k));

void dw_walk_gates(dw_walk *k, int first, int n);    // pass->gate = act(gate) for n neurons from `first` on
void dw_walk_scores(dw_walk *k, int first, int end); // flags of groups first .. end - 1 by the predictor's scores
void dw_walk_decide(dw_walk *k, int first, int end); // flags of groups first .. end - 1; counts open neurons
bool dw_walk_is_open(const dw_walk *k, int group);   // for any token
void dw_walk_clear(const dw_walk *k, int first, int end); // zeros for neurons that may stay uncomputed
/* Computes rows.n <= DW_WALK_BLOCK open neurons, listed in `neuron`, and adds their down rows to k->sum.  rows: where
 * k's matrices hold them. */
void dw_walk_add(dw_walk *k, const int32_t *neuron, dw_rows rows);
/* Counts the bytes of n open neurons' rows. */
void dw_walk_count_bytes(dw_walk *k, int n);

static inline uint8_t *dw_walk_flags(const dw_walk *k, int token) {
    return k->s->gated->open + (size_t)token * (size_t)k->n_groups;
}
static inline size_t dw_walk_row(const dw_walk *k, int token) { return (size_t)token * (size_t)k->w->n_ff; }

/* Rows of a piece: whole groups. */
static inline int dw_walk_piece(int group) { return (DW_FEW_ROWS + group - 1) / group * group; }

/* Sum i of the layer, (DW_DOT_MAX_COLS, n_embd). */
static inline float *dw_walk_sum(const dw_step *s, int i) {
    return s->gated->sum + (size_t)i * DW_DOT_MAX_COLS * (size_t)s->p->net->hp.n_embd;
}
void dw_walk_add_sums(const dw_step *s, int l, int n_sums); // x += the sums, in order, + bias

#endif
