/* ffn_list.c - the operator that computes the neurons of a list (dw_session_set_selection); the others count as
 * zero. */
#include "backends/backend_cpu.h"
#include "backends/backend_ref.h"

#include <string.h>

static void ref_neurons(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    const dw_bound *b = &p->layer[l];
    const size_t n_ff = (size_t)w->n_ff;
    dw_ref_rows rows = dw_ref_share(p, (size_t)b->n_list, ith);
    rows.list = b->list;
    for (int t = ith; t < p->n_tokens; t += p->n_threads) {
        memset(p->gate + (size_t)t * n_ff, 0, n_ff * sizeof *p->gate);
        memset(p->neuron + (size_t)t * n_ff, 0, n_ff * sizeof *p->neuron);
    }
    dw_ref_norm_tokens(p, &w->ffn_norm, ith); // its barrier also comes after the zeros
    dw_ref_neurons(p, l, false, rows, ith);
    dw_ref_end_neurons(p, l, ith, b->n_list);
}

static void few_neurons(dw_pass *p, int l, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    const dw_layer *w = &p->net->layer[l];
    const dw_bound *b = &p->layer[l];
    dw_vectors h = dw_normed(s, &w->ffn_norm);
    dw_pieces pieces = dw_pieces_of_rows(s, b->n_list);
    for (int first, n; dw_next_rows(s, &pieces, b->n_list, &first, &n);) {
        dw_dot_rows(&h, &w->gate, (dw_rows){b->list, first, n}, s->out, (size_t)n);
        dw_dot_rows(&h, &w->up, (dw_rows){b->list, first, n}, s->out2, (size_t)n);
        dw_finish_listed(s, l, first, n, 0, h.n_cols);
    }
    dw_few_end_neurons(s, l, b->n_list, &h);
}

static void many_neurons(dw_pass *p, int l, int ith) {
    const dw_many_input in = dw_many_begin_neurons(p, l, ith);
    const dw_layer *w = &p->net->layer[l];
    const dw_bound *b = &p->layer[l];
    dw_neuron_piece k;
    for (dw_neuron_pieces of = dw_neuron_pieces_of(&in, b->n_list); dw_next_neurons(&in, &of, &k);) {
        dw_many_product(&in, &w->gate, (dw_rows){b->list, k.first, k.n}, k.group, in.s->out, k.n);
        dw_many_product(&in, &w->up, (dw_rows){b->list, k.first, k.n}, k.group, in.s->out2, k.n);
        dw_finish_listed(in.s, l, k.first, k.n, k.group.first, k.group.n);
    }
    dw_many_end_neurons(&in, b->n_list);
}

static bool applies(const dw_ffn_case *c) { return c->has_list; }

const dw_ffn_op dw_ffn_list = {
    .name = "list",
    .applies = applies,
    .by = {[DW_BY_REF] = {NULL, ref_neurons, dw_ref_down},
           [DW_BY_FEW] = {NULL, few_neurons, dw_few_down},
           [DW_BY_MANY] = {NULL, many_neurons, dw_many_down}},
};
