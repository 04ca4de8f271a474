/* session.c - a session: a net of its own, batches cut into passes, outputs. */
#include "model/session.h"

#include <stdlib.h>
#include <string.h>

enum { DEFAULT_CTX = 4096, DEFAULT_BATCH = 512 };

/* ---- memory: one layout function counts it and places it; the backend has its own ------------------------------ */

static void lay_out(dw_session *s, dw_layout *a) {
    const size_t n_layer = (size_t)s->net.hp.n_layer, n_seq = (size_t)s->o.n_seq, rows = (size_t)s->o.n_batch;
    s->net.layer = dw_layout_take(a, n_layer, sizeof *s->net.layer);
    s->activity = dw_layout_take(a, n_layer, sizeof *s->activity);
    s->n_past = dw_layout_take(a, n_seq, sizeof *s->n_past);
    s->next_past = dw_layout_take(a, n_seq, sizeof *s->next_past);
    s->begun = dw_layout_take(a, n_seq, sizeof *s->begun);
    s->token = dw_layout_take(a, rows, sizeof *s->token);
    s->seq = dw_layout_take(a, rows, sizeof *s->seq);
    s->pos = dw_layout_take(a, rows, sizeof *s->pos);
    s->wanted = dw_layout_take(a, rows, sizeof *s->wanted);
    s->hidden = dw_layout_take(a, (size_t)s->o.n_out * (size_t)s->net.hp.n_embd, sizeof *s->hidden);
}

static size_t count_bytes(dw_session *s) {
    dw_session counted = *s;
    dw_layout count = {0};
    lay_out(&counted, &count);
    return count.used;
}

static int fill_options(dw_session *s, const dw_session_options *given, dw_err *err) {
    const dw_hparams *hp = &s->net.hp;
    dw_session_options *o = &s->o;
    *o = *given;
    if (!o->pool) return dw_fail(err, "a session needs a thread pool");
    if (!o->n_ctx) o->n_ctx = hp->n_ctx_train < DEFAULT_CTX ? hp->n_ctx_train : DEFAULT_CTX;
    if (!o->n_seq) o->n_seq = 1;
    if (!o->n_batch) o->n_batch = DEFAULT_BATCH;
    if (!o->n_out) o->n_out = o->n_batch;
    if (!o->precision) o->precision = o->exact ? DW_PRECISION_SPLIT : DW_PRECISION_INT8;
    if ((unsigned)o->kv > DW_KV_CACHE_Q8_0) return dw_fail(err, "cache type %d is unknown", (int)o->kv);
    if ((unsigned)o->precision > DW_PRECISION_BF16) return dw_fail(err, "precision %d is unknown", (int)o->precision);
    if ((unsigned)o->select > DW_SELECT_DENSE) return dw_fail(err, "selection %d is unknown", (int)o->select);
    if (o->kv == DW_KV_CACHE_Q8_0 && hp->head_dim % 32)
        return dw_fail(err, "a Q8_0 cache has blocks of 32 values, the heads of this model have %d; give --kv f16",
                       hp->head_dim);
    if (o->n_ctx < 1 || o->n_ctx > 1 << 22 || o->n_seq < 1 || o->n_seq > 4096 || o->n_batch < 1 ||
        o->n_batch > 1 << 16 || o->n_out < 1 || o->n_out > 1 << 20)
        return dw_fail(err, "a session of %d positions, %d sequences, %d tokens a batch and %d outputs is out of range",
                       o->n_ctx, o->n_seq, o->n_batch, o->n_out);
    if (o->n_batch > INT32_MAX / (hp->n_head_max > 1 ? hp->n_head_max : 1))
        return dw_fail(err, "%d tokens a batch times %d heads are too many; take fewer tokens", o->n_batch,
                       hp->n_head_max);
    s->backend = dw_backend_find(o->backend);
    return s->backend ? 0 : dw_fail(err, "backend '%s' is unknown", o->backend);
}

size_t dw_session_memory(const dw_model *m, const dw_session_options *o) {
    dw_session s = {.model = m, .net = m->net};
    size_t sum;
    if (fill_options(&s, o, NULL)) return 0;
    return dw_add(count_bytes(&s), s.backend->memory(s.backend, &s.net, &s.o), &sum) ? sum : SIZE_MAX;
}

dw_session *dw_session_new(const dw_model *m, const dw_session_options *o, dw_err *err) {
    dw_session *s = dw_alloc(1, sizeof *s, "a session", err);
    if (!s) return NULL;
    s->model = m;
    s->net = m->net;
    if (fill_options(s, o, err)) goto fail;
    s->memory = dw_alloc(1, count_bytes(s), "a session", err);
    if (!s->memory) goto fail;
    lay_out(s, &(dw_layout){.base = s->memory});
    memcpy(s->net.layer, m->net.layer, (size_t)m->net.hp.n_layer * sizeof *s->net.layer);
    s->state = s->backend->open(s->backend, &s->net, &s->o, err);
    if (s->state) return s;
fail:
    dw_session_free(s);
    return NULL;
}

void dw_session_free(dw_session *s) {
    if (!s) return;
    if (s->state) s->backend->close(s->state);
    free(s->memory);
    free(s);
}

/* ---- batches --------------------------------------------------------------------------------------------------- */

/* Where in a sequence a batch may begin: at most at its end, or anywhere if only layers are run. */
typedef enum start { AT_MOST_PAST, ANYWHERE } start;

static int token_error(const dw_session *s, const dw_batch *b, int i, int seq, dw_err *err) {
    if (b->token && (b->token[i] < 0 || b->token[i] >= s->net.hp.n_vocab))
        return dw_fail(err, "token %d of the batch is %d, the vocabulary has %d", i, b->token[i], s->net.hp.n_vocab);
    if (seq < 0 || seq >= s->o.n_seq)
        return dw_fail(err, "token %d of the batch is for sequence %d of %d", i, seq, s->o.n_seq);
    return 0;
}

/* Checks token i of a batch, finds its position, and moves the sequence's end in n_past past it.  Within a batch a
 * sequence continues without gaps; only its first token may rewind it. */
static int place(const dw_session *s, const dw_batch *b, int i, start where, int *n_past, int32_t *pos, dw_err *err) {
    const int seq = b->seq ? b->seq[i] : 0;
    if (token_error(s, b, i, seq, err)) return -1;
    *pos = b->pos ? b->pos[i] : n_past[seq];
    const bool is_first = !s->begun[seq];
    if (*pos < 0 || (*pos > n_past[seq] && !(is_first && where == ANYWHERE)) || (!is_first && *pos < n_past[seq]))
        return dw_fail(err, "token %d of the batch is for position %d, sequence %d ends at %d", i, *pos, seq,
                       n_past[seq]);
    if (*pos >= s->o.n_ctx) return dw_fail(err, "the context of %d positions is full; give a larger one", s->o.n_ctx);
    n_past[seq] = *pos + 1;
    s->begun[seq] = true;
    return 0;
}

static bool is_wanted(const dw_batch *b, int i) { return b->out ? b->out[i] != 0 : i == b->n_tokens - 1; }

/* Ends of the sequences before a batch: the current ones, or 0 if only layers are run. */
static void begin_ends(dw_session *s, start where) {
    if (where == ANYWHERE) memset(s->next_past, 0, (size_t)s->o.n_seq * sizeof *s->next_past);
    else memcpy(s->next_past, s->n_past, (size_t)s->o.n_seq * sizeof *s->n_past);
    memset(s->begun, 0, (size_t)s->o.n_seq * sizeof *s->begun);
}

/* The whole batch is checked before anything moves. */
static int check_batch(dw_session *s, const dw_batch *b, start where, dw_err *err) {
    int n_out = 0;
    int32_t pos;
    if (b->n_tokens < 0) return dw_fail(err, "a batch cannot have %d tokens", b->n_tokens);
    begin_ends(s, where);
    for (int i = 0; i < b->n_tokens; i++) {
        if (place(s, b, i, where, s->next_past, &pos, err)) return -1;
        n_out += is_wanted(b, i);
    }
    return n_out <= s->o.n_out
               ? 0
               : dw_fail(err, "the batch asks for %d output rows, the session keeps %d", n_out, s->o.n_out);
}

/* Layers first .. end - 1 of a batch, in passes of at most n_batch tokens; whether tokens are embedded before them,
 * and whether wanted rows are kept for the head after them. */
typedef struct range {
    int first, end;
    bool embeds, gives_rows;
} range;

static int run_passes(dw_session *s, const dw_batch *b, range r, start where, float *x, dw_err *err) {
    const size_t d = (size_t)s->net.hp.n_embd;
    if (check_batch(s, b, where, err)) return -1;
    begin_ends(s, where);
    if (r.gives_rows) s->n_hidden = 0;
    for (int from = 0; from < b->n_tokens; from += s->o.n_batch) {
        const int left = b->n_tokens - from, n = left < s->o.n_batch ? left : s->o.n_batch;
        int n_rows = 0;
        for (int i = 0; i < n; i++) {
            if (place(s, b, from + i, where, s->next_past, &s->pos[i], err))
                return -1; // cannot fail: the batch was checked
            s->token[i] = b->token ? b->token[from + i] : 0;
            s->seq[i] = b->seq ? b->seq[from + i] : 0;
            if (r.gives_rows && is_wanted(b, from + i)) s->wanted[n_rows++] = i;
        }
        const dw_work w = {.n_tokens = n,
                           .token = r.embeds ? s->token : NULL,
                           .seq = s->seq,
                           .pos = s->pos,
                           .x = x ? x + (size_t)from * d : NULL,
                           .n_rows = n_rows,
                           .row = s->wanted,
                           .hidden = s->hidden + (size_t)s->n_hidden * d,
                           .tap = s->tap.points ? &s->tap : NULL};
        if (s->backend->layers(s->state, &w, r.first, r.end, err)) return -1;
        if (r.gives_rows) s->n_hidden += n_rows;
    }
    return 0;
}

int dw_session_eval(dw_session *s, const dw_batch *b, dw_err *err) {
    if (!b->token && b->n_tokens) return dw_fail(err, "a batch of %d tokens has no list of them", b->n_tokens);
    if (run_passes(s, b, (range){0, s->net.hp.n_layer, true, true}, AT_MOST_PAST, NULL, err)) return -1;
    memcpy(s->n_past, s->next_past, (size_t)s->o.n_seq * sizeof *s->n_past);
    return 0;
}

/* ---- layers on a residual of the caller ------------------------------------------------------------------------ */

int dw_session_embed(dw_session *s, const dw_batch *b, float *residual, dw_err *err) {
    dw_assert(b->token && residual);
    return run_passes(s, b, (range){0, 0, true, false}, ANYWHERE, residual, err);
}

/* A predictor of that kind reads hidden values that the layer before computes, and no residual holds them. */
static int check_start(const dw_session *s, int first, dw_err *err) {
    const bool is_whole = first == 0 || first >= s->net.hp.n_layer || s->o.select == DW_SELECT_DENSE;
    if (is_whole || !s->net.layer[first].sparse.pred_previous) return 0;
    return dw_fail(err,
                   "layer %d cannot be the first of a range: its predictor reads the input of the layer before; begin "
                   "with layer 0 or open the session with dense selection",
                   first);
}

int dw_session_layers(dw_session *s, const dw_batch *b, int first, int end, float *residual, dw_err *err) {
    dw_assert(residual);
    if (first < 0 || first > end || end > s->net.hp.n_layer)
        return dw_fail(err, "layers %d to %d do not exist, the model has %d", first, end - 1, s->net.hp.n_layer);
    if (check_start(s, first, err)) return -1;
    return run_passes(s, b, (range){first, end, false, false}, ANYWHERE, residual, err);
}

int dw_session_head(dw_session *s, const dw_batch *b, float *residual, dw_err *err) {
    dw_assert(residual);
    return run_passes(s, b, (range){s->net.hp.n_layer, s->net.hp.n_layer, false, true}, ANYWHERE, residual, err);
}

/* ---- outputs --------------------------------------------------------------------------------------------------- */

int dw_session_n_past(const dw_session *s, int seq) {
    dw_assert(seq >= 0 && seq < s->o.n_seq);
    return seq < 0 || seq >= s->o.n_seq ? 0 : s->n_past[seq];
}

void dw_session_rewind(dw_session *s, int seq, int n_past) {
    dw_assert(seq >= 0 && seq < s->o.n_seq && n_past >= 0);
    if (seq < 0 || seq >= s->o.n_seq) return;
    if (n_past < s->n_past[seq]) s->n_past[seq] = n_past < 0 ? 0 : n_past;
}

static int run_head(dw_session *s, int first, dw_head h, dw_err *err) {
    if (first < 0 || h.n < 0 || first > s->n_hidden - h.n)
        return dw_fail(err, "output rows %d to %d were asked for, there are %d", first, first + h.n - 1, s->n_hidden);
    h.hidden = s->hidden + (size_t)first * (size_t)s->net.hp.n_embd;
    return s->backend->head(s->state, &h, err);
}

int dw_session_logits(dw_session *s, int first, int n, float *out, dw_err *err) {
    return run_head(s, first, (dw_head){.n = n, .logits = out}, err);
}

int dw_session_logprobs(dw_session *s, int first, int n, const int32_t *target, double *logprob, dw_err *err) {
    const int n_vocab = s->net.hp.n_vocab;
    for (int i = 0; i < n; i++)
        if (target[i] < 0 || target[i] >= n_vocab)
            return dw_fail(err, "target %d is %d, the vocabulary has %d", i, target[i], n_vocab);
    return run_head(s, first, (dw_head){.n = n, .target = target, .logprob = logprob}, err);
}

void dw_session_set_tap(dw_session *s, const dw_tap *tap) {
    dw_assert(!tap || !tap->points || tap->fn || tap->fn_thread);
    s->tap = tap && (tap->fn || tap->fn_thread) ? *tap : (dw_tap){0};
}

/* ---- replaced tensors ------------------------------------------------------------------------------------------ */

/* Where a weight is stored, and the shape that it must have: n values in each of `rows` rows, 0 for a vector. */
typedef struct slot {
    dw_tensor *mine;
    const dw_tensor *model;
    size_t n, rows;
} slot;

#define SLOT(field, n_values, n_rows) (slot){&w->field, &m->field, n_values, n_rows}

static slot layer_slot(dw_session *s, int l, dw_weight which) {
    const dw_hparams *hp = &s->net.hp;
    dw_layer *w = &s->net.layer[l];
    const dw_layer *m = &s->model->net.layer[l];
    const size_t d = (size_t)hp->n_embd, n_ff = (size_t)w->n_ff, n_hot = n_ff - (size_t)w->n_cold,
                 head = (size_t)hp->head_dim;
    const size_t n_q = (size_t)w->n_head * head, n_kv = (size_t)w->n_head_kv * head;
    switch (which) {
    case DW_W_ATTN_NORM: return SLOT(attn_norm, d, 0);
    case DW_W_Q: return SLOT(q, d, n_q);
    case DW_W_K: return SLOT(k, d, n_kv);
    case DW_W_V: return SLOT(v, d, n_kv);
    case DW_W_Q_BIAS: return SLOT(q_bias, n_q, 0);
    case DW_W_K_BIAS: return SLOT(k_bias, n_kv, 0);
    case DW_W_V_BIAS: return SLOT(v_bias, n_kv, 0);
    case DW_W_Q_NORM: return SLOT(q_norm, head, 0);
    case DW_W_K_NORM: return SLOT(k_norm, head, 0);
    case DW_W_O: return SLOT(o, n_q, d);
    case DW_W_O_BIAS: return SLOT(o_bias, d, 0);
    case DW_W_FFN_NORM: return SLOT(ffn_norm, d, 0);
    case DW_W_GATE: return SLOT(gate, d, n_hot);
    case DW_W_UP: return SLOT(up, d, n_hot);
    case DW_W_GATE_BIAS: return SLOT(gate_bias, n_ff, 0);
    case DW_W_UP_BIAS: return SLOT(up_bias, n_ff, 0);
    case DW_W_DOWN: return SLOT(down, n_hot, d);
    case DW_W_DOWN_BIAS: return SLOT(down_bias, d, 0);
    case DW_W_DOWN_T: return SLOT(sparse.down_t, d, n_ff);
    default: return (slot){0};
    }
}

static slot net_slot(dw_session *s, dw_weight which) {
    dw_net *w = &s->net;
    const dw_net *m = &s->model->net;
    const size_t d = (size_t)w->hp.n_embd, n_vocab = (size_t)w->hp.n_vocab;
    switch (which) {
    case DW_W_TOKEN_EMBD: return SLOT(token_embd, d, n_vocab);
    case DW_W_OUTPUT_NORM: return SLOT(output_norm, d, 0);
    case DW_W_OUTPUT: return SLOT(output, d, n_vocab);
    case DW_W_OUTPUT_BIAS: return SLOT(output_bias, n_vocab, 0);
    default: return (slot){0};
    }
}

static int find_slot(dw_session *s, int l, dw_weight which, slot *found, dw_err *err) {
    const bool is_of_net = which >= DW_W_TOKEN_EMBD;
    if (!is_of_net && (l < 0 || l >= s->net.hp.n_layer))
        return dw_fail(err, "layer %d does not exist, the model has %d", l, s->net.hp.n_layer);
    *found = is_of_net ? net_slot(s, which) : layer_slot(s, l, which);
    if (!is_of_net && which <= DW_W_O_BIAS && !s->net.layer[l].n_head)
        return dw_fail(err, "layer %d has no attention", l);
    if (!found->mine) return dw_fail(err, "weight %d is unknown", (int)which);
    if (which == DW_W_DOWN_T && !found->model->name)
        return dw_fail(err, "layer %d is not gated and has no transposed down", l);
    return 0;
}

static int check_shape(const slot *at, const dw_tensor *t, dw_err *err) {
    const size_t rows = at->rows ? at->rows : 1;
    if (t->ne[0] != at->n || t->ne[1] != rows)
        return dw_fail(err, "a replacement of shape [%zu, %zu] was given, expected [%zu, %zu]", t->ne[0], t->ne[1],
                       at->n, rows);
    if (!t->data || !t->type || (!at->rows && t->type->id != DW_F32) || at->n % (size_t)t->type->block)
        return dw_fail(err, "a replacement has no data or a type that rows of %zu values cannot have (vectors are F32)",
                       at->n);
    return 0;
}

static bool is_replaced(const dw_tensor *mine, const dw_tensor *model) { return mine->data != model->data; }

/* A gated layer holds down twice, and gated passes read the transposed copy.  So that copy is replaced first and restored
 * last; while only it is replaced, no pass reads down in its place (dw_down_is_copy). */
static int check_copies(const dw_session *s, int l, dw_weight which, const dw_tensor *t, dw_err *err) {
    const dw_layer *mine = &s->net.layer[l], *model = &s->model->net.layer[l];
    if (s->o.select == DW_SELECT_DENSE || !model->sparse.down_t.name) return 0;
    const bool is_copy_new = is_replaced(&mine->sparse.down_t, &model->sparse.down_t),
               is_down_new = is_replaced(&mine->down, &model->down);
    if (which == DW_W_DOWN && t && !is_copy_new)
        return dw_fail(err,
                       "layer %d is gated and also holds down transposed: replace that one first, or open the session "
                       "with dense selection",
                       l);
    if (which == DW_W_DOWN_T && !t && is_down_new)
        return dw_fail(err, "layer %d: down is replaced; restore it before its transposed copy", l);
    return 0;
}

static void note_copies(dw_layer *mine, const dw_layer *model) {
    mine->sparse.down_differs = is_replaced(&mine->sparse.down_t, &model->sparse.down_t) !=
                                is_replaced(&mine->down, &model->down);
}

int dw_session_replace(dw_session *s, int layer, dw_weight which, const dw_tensor *t, dw_err *err) {
    slot at = {0};
    if (find_slot(s, layer, which, &at, err) || (t && check_shape(&at, t, err))) return -1;
    const bool is_down = which == DW_W_DOWN || which == DW_W_DOWN_T;
    if (is_down && check_copies(s, layer, which, t, err)) return -1;
    const dw_tensor before = *at.mine;
    *at.mine = t ? *t : *at.model;
    if (t) {
        at.mine->name = at.model->name ? at.model->name : "replaced";
        at.mine->n_dims = at.rows ? 2 : 1;
        at.mine->ne[1] = at.rows ? at.rows : 1;
        at.mine->ne[2] = at.mine->ne[3] = 1;
        at.mine->n_bytes = dw_tensor_row_bytes(at.mine) * at.mine->ne[1];
    }
    if (is_down) note_copies(&s->net.layer[layer], &s->model->net.layer[layer]);
    if (!s->backend->bind(s->state, &s->binding, err)) return 0;
    *at.mine = before;
    if (is_down) note_copies(&s->net.layer[layer], &s->model->net.layer[layer]);
    return -1;
}

int dw_session_activation(dw_session *s, const char *name, dw_err *err) {
    const int act = dw_act_of((dw_str){name, strlen(name)});
    if (act < 0) return dw_fail(err, "activation '%s' is not supported (%s are)", name, dw_act_names().text);
    const dw_act before = s->net.act;
    s->net.act = (dw_act)act;
    if (!s->backend->bind(s->state, &s->binding, err)) return 0;
    s->net.act = before;
    return -1;
}

dw_tensor dw_session_tensor(dw_session *s, int layer, dw_weight which) {
    slot at = {0};
    return find_slot(s, layer, which, &at, NULL) ? (dw_tensor){0} : *at.mine;
}

/* ---- selection and experiments --------------------------------------------------------------------------------- */

int dw_session_set_selection(dw_session *s, const dw_selection *sel, dw_err *err) {
    const dw_hparams *hp = &s->net.hp;
    if (sel && dw_model_need_whole_ffn(s->model, err)) return -1;
    for (int l = 0; sel && l < hp->n_layer; l++) {
        const int32_t *list = sel->neuron[l];
        if (list && sel->n[l] < 0) return dw_fail(err, "layer %d: a list cannot have %d neurons", l, sel->n[l]);
        for (int i = 0; list && i < sel->n[l]; i++)
            if (list[i] < 0 || list[i] >= hp->n_ff[l] || (i && list[i] <= list[i - 1]))
                return dw_fail(err, "layer %d: neuron list is not ascending within 0 to %d at entry %d", l,
                               hp->n_ff[l] - 1, i);
    }
    dw_binding b = s->binding;
    b.selection = sel;
    if (s->backend->bind(s->state, &b, err)) return -1;
    s->binding = b;
    return 0;
}

int dw_session_experiment(dw_session *s, const dw_ffn_experiment *e, dw_err *err) {
    dw_assert(!e || !e->decide == !e->activity);
    dw_binding b = s->binding;
    b.experiment = e;
    if (s->backend->bind(s->state, &b, err)) return -1; // the experiment before stays in force
    s->experiment = e ? *e : (dw_ffn_experiment){0};
    if (e && e->activity) {
        memcpy(s->activity, e->activity, (size_t)s->net.hp.n_layer * sizeof *s->activity);
        s->experiment.activity = s->activity;
    }
    s->binding.experiment = e ? &s->experiment : NULL;
    return s->backend->bind(s->state, &s->binding, err); // the same again, to the session's own copy
}

dw_coverage dw_session_coverage(const dw_session *s, int layer) {
    dw_assert(layer >= 0 && layer < s->net.hp.n_layer);
    return s->backend->coverage(s->state, layer);
}

void dw_session_reset_coverage(dw_session *s) { s->backend->reset_coverage(s->state); }
