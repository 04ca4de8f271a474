/* ffn_ops.c - the list of operators, and the choice among them. */
#include "backends/gate_decide.h"

#define ROW(name) &dw_ffn_##name, // &dw_ffn_list, &dw_ffn_two_part, ..
const dw_ffn_op *const dw_ffn_ops[] = {DW_FFN_OPS(ROW) NULL};
#undef ROW

static bool has_list(const dw_selection *lists, int l) { return lists && lists->neuron[l]; }

static bool is_gated(const dw_layer *w, dw_select select, const dw_ffn_experiment *e) {
    if (!w->sparse.down_t.name || select == DW_SELECT_DENSE) return false;
    return select != DW_SELECT_AUTO || !w->sparse.dense || e->decide; // a file may mark a layer as dense
}

static const dw_ffn_op *op_of(const dw_ffn_case *c) {
    const dw_ffn_op *const *op = dw_ffn_ops;
    while (!(*op)->applies(c)) op++; // the last one, dense, always applies
    return *op;
}

static void choose_op(dw_pass *p, int l, dw_select select, const dw_selection *lists, bool weighs) {
    dw_bound *b = &p->layer[l];
    const dw_layer *w = &p->net->layer[l];
    const dw_ffn_experiment *e = &p->experiment;
    b->list = has_list(lists, l) ? lists->neuron[l] : NULL;
    b->n_list = b->list ? lists->n[l] : 0;
    b->op = op_of(&(dw_ffn_case){.layer = w, .has_list = b->list, .is_gated = is_gated(w, select, e), .experiment = e,
                                 .activity = e->activity ? e->activity[l] : w->sparse.activity,
                                 .break_even = weighs && b->is_measured ? b->break_even : 1});
}

void dw_choose_ops(dw_pass *p, dw_select select, const dw_selection *lists, bool weighs) {
    const int n_layer = p->net->hp.n_layer;
    for (int l = 0; l < n_layer; l++) choose_op(p, l, select, lists, weighs);
    for (int l = 0; l < n_layer; l++) {
        const dw_layer_gate *g = &p->net->layer[l].sparse,
                            *next = l + 1 < n_layer ? &p->net->layer[l + 1].sparse : NULL;
        dw_bound *b = &p->layer[l];
        b->needs_hidden = b->op->is_gated && g->pred_a.name && !g->pred_previous;
        b->gives_hidden = next && p->layer[l + 1].op->is_gated && next->pred_a.name && next->pred_previous;
    }
}
