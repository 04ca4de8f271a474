/* ffn_dense.c - the operator that computes all neurons. */
#include "backends/backend_cpu.h"
#include "backends/backend_ref.h"

static void ref_neurons(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    dw_ref_norm_tokens(p, &w->ffn_norm, ith);
    dw_ref_neurons(p, l, false, dw_ref_share(p, (size_t)w->n_ff, ith), ith);
    dw_ref_end_neurons(p, l, ith, w->n_ff);
}

static void few_neurons(dw_pass *p, int l, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    const dw_layer *w = &p->net->layer[l];
    dw_vectors h = dw_normed(s, &w->ffn_norm);
    dw_pieces pieces = dw_pieces_of_rows(s, w->n_ff);
    for (int first, n; dw_next_rows(s, &pieces, w->n_ff, &first, &n);) {
        dw_dot_rows(&h, &w->gate, (dw_rows){NULL, first, n}, s->out, (size_t)n);
        dw_dot_rows(&h, &w->up, (dw_rows){NULL, first, n}, s->out2, (size_t)n);
        dw_finish_neurons(s, l, first, n, 0, h.n_cols);
    }
    dw_few_end_neurons(s, l, w->n_ff, &h);
}

static void many_neurons(dw_pass *p, int l, int ith) {
    const dw_many_input in = dw_many_begin_neurons(p, l, ith);
    const dw_layer *w = &p->net->layer[l];
    const bool stays_packed = dw_many_stays_packed(in.s, l);
    dw_neuron_piece k;
    for (dw_neuron_pieces of = dw_neuron_pieces_of(&in, w->n_ff); dw_next_neurons(&in, &of, &k);) {
        if (stays_packed) {
            dw_many_pack_neurons(&in, k);
            continue;
        }
        dw_many_product(&in, &w->gate, (dw_rows){NULL, k.first, k.n}, k.group, in.s->out, k.n);
        dw_many_product(&in, &w->up, (dw_rows){NULL, k.first, k.n}, k.group, in.s->out2, k.n);
        dw_finish_neurons(in.s, l, k.first, k.n, k.group.first, k.group.n);
    }
    dw_many_end_neurons(&in, w->n_ff);
}

static void many_down(dw_pass *p, int l, int ith) {
    (dw_many_stays_packed(dw_step_of(p, ith), l) ? dw_many_down_packed : dw_many_down)(p, l, ith);
}

static bool applies(const dw_ffn_case *c) { return c->layer != NULL; } // to every layer

const dw_ffn_op dw_ffn_dense = {
    .name = "dense",
    .applies = applies,
    .by = {[DW_BY_REF] = {NULL, ref_neurons, dw_ref_down},
           [DW_BY_FEW] = {NULL, few_neurons, dw_few_down},
           [DW_BY_MANY] = {NULL, many_neurons, many_down}},
};
