/* training.c - the training pass of a session: its net, its pool and its backend's arithmetic. */
#include "backends/backward.h"
#include "model/session.h"

static int check_net(const dw_session *s, dw_err *err) {
    for (int l = 0; l < s->net.hp.n_layer; l++) {
        const dw_layer *w = &s->net.layer[l];
        if (w->n_cold)
            return dw_fail(
                err,
                "layer %d has hot and cold neurons, which cannot be trained; train the model before requant divides it",
                l);
        if (w->sparse.down_t.name && s->o.select != DW_SELECT_DENSE)
            return dw_fail(
                err, "layer %d is gated, and gated layers cannot be trained; open the session with dense selection", l);
    }
    if (s->binding.selection) return dw_fail(err, "a session with lists of neurons cannot be trained");
    return 0;
}

/* The options with their defaults filled in. */
static int fill(const dw_session *s, const dw_train_options *given, dw_train_options *o, dw_err *err) {
    *o = *given;
    if (!o->n_ctx) o->n_ctx = s->o.n_ctx;
    if (!o->n_seq) o->n_seq = 1;
    if (o->precision != DW_PRECISION_SPLIT) o->precision = DW_PRECISION_ROUNDED;
    if (o->n_ctx < 2 || o->n_ctx > 1 << 16 || o->n_seq < 1 || o->n_seq > 1 << 16 ||
        (int64_t)o->n_ctx * o->n_seq > 1 << 20)
        return dw_fail(err, "a training pass of %d windows of %d tokens is out of range", o->n_seq, o->n_ctx);
    return check_net(s, err);
}

dw_train *dw_train_new(dw_session *s, const dw_train_options *o, dw_err *err) {
    dw_train_options full;
    return fill(s, o, &full, err) ? NULL : dw_back_new(&s->net, s->o.pool, s->backend->back, &full, err);
}

size_t dw_train_memory(dw_session *s, const dw_train_options *o) {
    dw_train_options full;
    return fill(s, o, &full, NULL) ? 0 : dw_back_memory(&s->net, s->o.pool, s->backend->back, &full);
}
