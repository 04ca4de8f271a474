/* ffn_masked.c - the operator for gated layers where skipping does not pay (break_even.c).
 *
 * Few tokens compute all neurons as in a dense layer.  Then closed neurons are set to zero, and down is the dense
 * product, which is faster than adding rows of the transposed matrix one by one.  The decisions and the neurons have
 * the same bits as those of dw_ffn_gated; the sums of down are added in another order.  Where the transposed copy was
 * rounded in another way than down (quantized types), the operator does not apply: it would compute another model. */
#include "backends/ffn_gated.h"

#include <string.h>

/* Sets the closed neurons of groups first .. end - 1 to zero, and turns the products with up into neurons. */
static void finish_groups(const dw_walk *k, int token, int first, int end) {
    const dw_pass *p = k->s->p;
    const uint8_t *open = dw_walk_flags(k, token);
    float *gates = p->gate + dw_walk_row(k, token), *neurons = p->neuron + dw_walk_row(k, token);
    for (int i = first; i < end; i++) {
        const int from = i * k->w->sparse.group, to = dw_smaller(from + k->w->sparse.group, k->w->n_ff);
        const size_t n_bytes = (size_t)(to - from) * sizeof(float);
        if (open[i]) {
            for (int j = from; j < to; j++) neurons[j] *= gates[j];
            continue;
        }
        memset(neurons + from, 0, n_bytes);
        if (k->predicted) memset(gates + from, 0, n_bytes); // with a predictor they count as not computed
    }
}

/* Bytes and open neurons count as if closed ones were skipped: counts must not depend on a measurement of time. */
static void count_open(dw_walk *k, int first, int end) {
    for (int i = first; i < end; i++)
        if (dw_walk_is_open(k, i))
            dw_walk_count_bytes(k, dw_smaller(k->w->sparse.group, k->w->n_ff - i * k->w->sparse.group));
}

/* n neurons from `first` on: whole groups. */
static void compute(dw_walk *k, int first, int n) {
    const dw_pass *p = k->s->p;
    const float *bias = dw_floats(&k->w->up_bias);
    const int group = k->w->sparse.group, first_group = first / group, end_group = (first + n + group - 1) / group;
    if (k->predicted) dw_walk_scores(k, first_group, end_group);
    dw_walk_gates(k, first, n);
    dw_walk_decide(k, first_group, end_group);
    dw_dot_rows(k->h, &k->up, (dw_rows){NULL, first, n}, p->neuron + first, (size_t)k->w->n_ff);
    for (int t = 0; t < p->n_tokens; t++) {
        if (bias) k->s->vec->add(p->neuron + dw_walk_row(k, t) + first, bias + first, NULL, n);
        finish_groups(k, t, first_group, end_group);
    }
    k->count->n_computed += (uint64_t)n;
    count_open(k, first_group, end_group);
}

static void all_pieces(dw_walk *k) {
    const int rows = dw_walk_piece(k->w->sparse.group), n_ff = k->w->n_ff;
    dw_pieces pieces = dw_pieces_begin(k->s, (n_ff + rows - 1) / rows);
    for (dw_run run; dw_pieces_run(k->s, &pieces, DW_FEW_RUN, &run);)
        compute(k, run.first * rows, dw_smaller(run.end * rows, n_ff) - run.first * rows);
}

static void few_neurons(dw_pass *p, int l, int ith) { dw_walk_layer(p, l, ith, all_pieces); }

static bool applies(const dw_ffn_case *c) {
    return c->is_gated && c->activity > c->break_even && dw_down_is_copy(c->layer);
}

const dw_ffn_op dw_ffn_masked = {
    .name = "masked",
    .applies = applies,
    .is_gated = true,
    .by = {[DW_BY_REF] = {NULL, dw_ref_gated_neurons, dw_ref_gated_down},
           [DW_BY_FEW] = {NULL, few_neurons, dw_few_down},
           [DW_BY_MANY] = {NULL, dw_many_gated_neurons, dw_many_gated_down}},
};
