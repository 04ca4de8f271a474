/* forward.c - the pass: every thread runs the same steps and meets the others behind each. */
#include "model/session.h"

#include <string.h>

/* Shows values to the tap, if it asked for them: to all threads, or to the first while the others wait.  What was shown is
 * written again behind a barrier of the pass at the earliest. */
static void show(dw_session *s, const dw_tap_event *event, int ith) {
    if (s->tap.fn_thread) s->tap.fn_thread(s->tap.ctx, event, ith, dw_pool_size(s->pass.pool));
    else if (ith == 0) s->tap.fn(s->tap.ctx, event);
    if (!s->tap.fn_thread || s->tap.in_step) dw_pool_barrier(s->pass.pool);
}

static bool is_tapped(const dw_session *s, dw_tap_point point) { return s->tap.points >> point & 1; }

/* Values of all tokens. */
static void show_all(dw_session *s, dw_tap_point point, int l, const float *values, int n, int ith) {
    const dw_pass *p = &s->pass;
    const dw_tap_event event = {.point = point, .layer = l, .n_tokens = p->n_tokens, .n = n, .values = values, .seq = p->seq, .pos = p->pos};
    if (is_tapped(s, point)) show(s, &event, ith);
}

/* Output rows, which are packed, with the tokens that they belong to: an event a run of neighbours. */
static void show_head(dw_session *s, int ith) {
    const int d = s->pass.net->hp.n_embd;
    if (!is_tapped(s, DW_TAP_HEAD_IN)) return;
    dw_pool_barrier(s->pass.pool); // rows of other threads
    for (int first = 0, end; first < s->n_wanted; first = end) {
        for (end = first + 1; end < s->n_wanted && s->wanted[end] == s->wanted[end - 1] + 1;) end++;
        const dw_tap_event event = {.point = DW_TAP_HEAD_IN, .layer = s->pass.net->hp.n_layer, .n_tokens = end - first, .n = d,
                                    .values = s->hidden + (size_t)(s->n_hidden + first) * (size_t)d,
                                    .seq = s->pass.seq + s->wanted[first], .pos = s->pass.pos + s->wanted[first]};
        show(s, &event, ith);
    }
}

static void select_neurons(dw_session *s, int l) {
    const dw_selection *sel = s->selection;
    s->pass.selected = sel ? sel->neuron[l] : NULL;
    s->pass.n_selected = s->pass.selected ? sel->n[l] : s->pass.net->layer[l].n_ff;
}

static void forward(void *session, int ith, int n) {
    dw_session *s = session;
    dw_pass *p = &s->pass;
    const dw_backend *b = s->backend;
    const dw_net *net = p->net;
    const int d = net->hp.n_embd, n_layer = net->hp.n_layer;

    b->embed(p, ith, n);
    dw_pool_barrier(p->pool);
    for (int l = 0; l < n_layer; l++) {
        const dw_layer *w = &net->layer[l];
        show_all(s, DW_TAP_RESIDUAL, l, p->x, d, ith);
        if (w->n_head) {
            b->qkv(p, l, ith, n);
            dw_pool_barrier(p->pool);
            show_all(s, DW_TAP_ATTN_IN, l, p->h, d, ith);
            b->attend(p, l, ith, n);
            dw_pool_barrier(p->pool);
            show_all(s, DW_TAP_ATTN_MIX, l, p->mix, w->n_head * net->hp.head_dim, ith);
            b->attn_out(p, l, ith, n);
        }
        if (ith == 0) select_neurons(s, l); // nobody reads it before the barrier
        dw_pool_barrier(p->pool);
        b->ffn_neurons(p, l, ith, n);
        dw_pool_barrier(p->pool);
        show_all(s, DW_TAP_FFN_IN, l, p->h, d, ith);
        show_all(s, DW_TAP_FFN_GATE, l, p->gate, w->n_ff, ith);
        show_all(s, DW_TAP_FFN_NEURON, l, p->neuron, w->n_ff, ith);
        b->ffn_down(p, l, ith, n);
        dw_pool_barrier(p->pool);
    }
    show_all(s, DW_TAP_RESIDUAL, n_layer, p->x, d, ith);
    for (int i = ith; i < s->n_wanted; i += n)
        b->head_norm(p, p->x + (size_t)s->wanted[i] * (size_t)d, s->hidden + (size_t)(s->n_hidden + i) * (size_t)d, ith, n);
    show_head(s, ith);
}

void dw_session_forward(dw_session *s) {
    s->pass.keep_h = s->tap.points & (1u << DW_TAP_ATTN_IN | 1u << DW_TAP_FFN_IN);
    s->pass.gate_every = !is_tapped(s, DW_TAP_FFN_GATE) ? 0 : s->tap.gate_every ? s->tap.gate_every : 1;
    dw_pool_run(s->pass.pool, forward, s);
    s->n_hidden += s->n_wanted;
}
