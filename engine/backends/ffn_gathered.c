/* ffn_gathered.c - the operator of an experiment: gated layers as array frameworks compute them.
 *
 * Few tokens: all gates, barrier, one thread lists the open neurons, barrier, their rows are copied together, barrier,
 * products over the copy. */
#include "backends/ffn_gated.h"

#include <string.h>

/* Copies of rows have room for the widest type, F32, because tensors may be replaced. */
static void lay_out(dw_pass *p, dw_layout *a, const dw_session_options *o) {
    const size_t n_ff = (size_t)dw_gate_sizes_of(p->net).n_ff;
    dw_gated *g = &((dw_cpu *)p->own)->gated;
    if (o->select == DW_SELECT_DENSE || !n_ff) return;
    g->list = dw_layout_take(a, n_ff + 1, sizeof *g->list);
    for (int i = 0; i < 3; i++) g->rows[i] = dw_layout_take(a, n_ff, (size_t)p->net->hp.n_embd * sizeof(float));
}

/* Computes all gates or scores; every thread does its share. */
static void decide_all(dw_walk *k) {
    const dw_step *s = k->s;
    const int ith = s->ith, n_threads = s->n_threads, n_ff = k->w->n_ff;
    if (k->predicted) {
        dw_walk_scores(k, dw_share(k->n_groups, ith, n_threads), dw_share(k->n_groups, ith + 1, n_threads));
        dw_walk_clear(k, dw_share(n_ff, ith, n_threads), dw_share(n_ff, ith + 1, n_threads));
        return;
    }
    dw_pieces pieces = dw_pieces_of_rows(s, n_ff);
    for (int first, n; dw_next_rows(s, &pieces, n_ff, &first, &n);) {
        dw_walk_gates(k, first, n);
        dw_walk_clear(k, first, first + n);
    }
}

static void list_open(dw_walk *k) {
    const int group = k->w->sparse.group;
    int32_t *list = k->s->gated->list + 1;
    int n = 0;
    dw_walk_decide(k, 0, k->n_groups);
    for (int i = 0; i < k->n_groups; i++)
        for (int j = i * group; dw_walk_is_open(k, i) && j < dw_smaller((i + 1) * group, k->w->n_ff); j++)
            list[n++] = j;
    k->s->gated->list[0] = n;
}

/* Copies the rows of entries first .. end - 1 of the list. */
static void gather(const dw_tensor *w, const int32_t *list, int first, int end, uint8_t *rows) {
    const size_t row_bytes = dw_tensor_row_bytes(w);
    for (int i = first; i < end; i++)
        memcpy(rows + (size_t)i * row_bytes, w->data + (size_t)list[i] * row_bytes, row_bytes);
}

static void compute(dw_walk *k) {
    const dw_step *s = k->s;
    const dw_pass *p = s->p;
    const int32_t *list = s->gated->list + 1;
    decide_all(k);
    dw_pool_barrier(p->pool);
    if (s->ith == 0) list_open(k);
    dw_pool_barrier(p->pool);
    const int n = s->gated->list[0], first = dw_share(n, s->ith, s->n_threads),
              end = dw_share(n, s->ith + 1, s->n_threads);
    dw_tensor *const matrix[] = {&k->gate, &k->up, &k->down};
    for (int i = k->predicted ? 0 : 1; i < 3; i++) {
        gather(matrix[i], list, first, end, s->gated->rows[i]);
        matrix[i]->data = s->gated->rows[i];
    }
    dw_pool_barrier(p->pool);
    k->sum = dw_walk_sum(s, s->ith);
    memset(k->sum, 0, (size_t)p->n_tokens * (size_t)p->net->hp.n_embd * sizeof *k->sum);
    for (int i = first; i < end; i += DW_WALK_BLOCK)
        dw_walk_add(k, list + i, (dw_rows){NULL, i, dw_smaller(DW_WALK_BLOCK, end - i)});
}

static void few_neurons(dw_pass *p, int l, int ith) { dw_walk_layer(p, l, ith, compute); }
static void few_down(dw_pass *p, int l, int ith) { dw_walk_add_sums(dw_step_of(p, ith), l, p->n_threads); }

static bool applies(const dw_ffn_case *c) { return c->is_gated && c->experiment->gathered; }

const dw_ffn_op dw_ffn_gathered = {
    .name = "gathered",
    .applies = applies,
    .is_gated = true,
    .is_experiment = true,
    .by = {[DW_BY_REF] = {NULL, dw_ref_gated_neurons, dw_ref_gated_down},
           [DW_BY_FEW] = {lay_out, few_neurons, few_down},
           [DW_BY_MANY] = {NULL, dw_many_gated_neurons, dw_many_gated_down}},
};
