/* ffn_two_part.c - the operator for layers whose matrices are in two parts, hot and cold (formats/ffn_two_part.h). */
#include "backends/backend_cpu.h"
#include "backends/backend_ref.h"

/* ---- ref ------------------------------------------------------------------------------------------------------ */

static void ref_neurons(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    dw_ref_norm_tokens(p, &w->ffn_norm, ith);
    dw_ref_neurons(p, l, false, dw_ref_share(p, (size_t)(w->n_ff - w->n_cold), ith), ith);
    dw_ref_neurons(p, l, true, dw_ref_share(p, (size_t)w->n_cold, ith), ith);
    dw_ref_end_neurons(p, l, ith, w->n_ff);
}

static void ref_down(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    dw_ref_down(p, l, ith);
    dw_ref_matrix(
        p, ith,
        (dw_ref_job){.w = &w->down_cold, .x = p->neuron + w->down.ne[0], .ldx = (size_t)w->n_ff, .out = dw_ref_add},
        p->x);
}

/* ---- few tokens ----------------------------------------------------------------------------------------------- */

static void few_product(dw_vectors *v, const dw_tensor *hot, const dw_tensor *cold, int first, int n, float *y) {
    const int here = dw_hot_rows(hot, first, n);
    if (here) dw_dot_rows(v, hot, (dw_rows){NULL, first, here}, y, (size_t)n);
    if (here < n) dw_dot_rows(v, cold, (dw_rows){NULL, first + here - (int)hot->ne[1], n - here}, y + here, (size_t)n);
}

static void few_neurons(dw_pass *p, int l, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    const dw_layer *w = &p->net->layer[l];
    dw_vectors h = dw_normed(s, &w->ffn_norm);
    dw_pieces pieces = dw_pieces_of_rows(s, w->n_ff);
    for (int first, n; dw_next_rows(s, &pieces, w->n_ff, &first, &n);) {
        few_product(&h, &w->gate, &w->gate_cold, first, n, s->out);
        few_product(&h, &w->up, &w->up_cold, first, n, s->out2);
        dw_finish_neurons(s, l, first, n, 0, h.n_cols);
    }
    dw_few_end_neurons(s, l, w->n_ff, &h);
}

static void few_down(dw_pass *p, int l, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    const dw_layer *w = &p->net->layer[l];
    dw_vectors v = dw_vectors_of(s, s->scratch, p->neuron, p->n_tokens, w->n_ff - w->n_cold);
    v.ldx = w->n_ff;
    dw_few_add_product(s, &v, &w->down, &w->down_bias);
    dw_pool_barrier(p->pool);
    v = dw_vectors_of(s, s->scratch, p->neuron + w->down.ne[0], p->n_tokens, w->n_cold);
    v.ldx = w->n_ff;
    dw_few_add_product(s, &v, &w->down_cold, &(dw_tensor){0});
}

/* ---- many tokens ---------------------------------------------------------------------------------------------- */

static void many_product(const dw_many_input *in, const dw_tensor *hot, const dw_tensor *cold, const dw_neuron_piece *k,
                         float *y) {
    const int here = dw_hot_rows(hot, k->first, k->n);
    if (here) dw_many_product(in, hot, (dw_rows){NULL, k->first, here}, k->group, y, k->n);
    if (here < k->n)
        dw_many_product(in, cold, (dw_rows){NULL, k->first + here - (int)hot->ne[1], k->n - here}, k->group, y + here,
                        k->n);
}

static void many_neurons(dw_pass *p, int l, int ith) {
    const dw_many_input in = dw_many_begin_neurons(p, l, ith);
    const dw_layer *w = &p->net->layer[l];
    dw_neuron_piece k;
    for (dw_neuron_pieces of = dw_neuron_pieces_of(&in, w->n_ff); dw_next_neurons(&in, &of, &k);) {
        many_product(&in, &w->gate, &w->gate_cold, &k, in.s->out);
        many_product(&in, &w->up, &w->up_cold, &k, in.s->out2);
        dw_finish_neurons(in.s, l, k.first, k.n, k.group.first, k.group.n);
    }
    dw_many_end_neurons(&in, w->n_ff);
}

static void many_down(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    dw_many_down(p, l, ith);
    dw_pool_barrier(p->pool);
    dw_many_add_product(dw_step_of(p, ith), p->neuron + w->down.ne[0], w->n_ff, &w->down_cold, &(dw_tensor){0});
}

/* ---- the row -------------------------------------------------------------------------------------------------- */

static bool applies(const dw_ffn_case *c) { return c->layer->n_cold; }

const dw_ffn_op dw_ffn_two_part = {
    .name = "two_part",
    .applies = applies,
    .by = {[DW_BY_REF] = {NULL, ref_neurons, ref_down},
           [DW_BY_FEW] = {NULL, few_neurons, few_down},
           [DW_BY_MANY] = {NULL, many_neurons, many_down}},
};
