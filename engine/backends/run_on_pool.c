/* run_on_pool.c - a backend over fused steps: memory, the pass, taps.  Every thread of a pass runs the same steps, with
 * a barrier after each. */
#include "backends/gate_decide.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROPE_BLOCK = 256 }; // rows of the table that are computed at once

struct dw_state {
    const dw_steps *steps;
    dw_session_options o;
    dw_pass pass;
    dw_binding binding;
    dw_pages memory;     // holds the arrays below and those of the pass
    dw_pages experiment; // memory of an experiment's operator
    float *x;           // (n_batch, n_embd): the residual, unless the caller gives one
    int n_rope;         // rows of pass.rope that are computed
    bool is_unsure;     // a layer's operator depends on a break-even that is not measured yet
    float *trial_x;     // (n_embd)
    dw_coverage *trial_counts; // (pool's threads, n_layer)
};

/* ---- memory: one block; the same code counts it and lays it out ----------------------------------------------- */

static int take_memory(dw_pages *p, size_t bytes, const dw_state *s, dw_err *err) {
    if (bytes && !dw_pages_new(p, bytes, s->pass.net->in_huge_pages, NULL)) return 0;
    return dw_fail(err, "out of memory: %zu bytes for a session of %d x %d positions; try a smaller context", bytes,
                   s->o.n_seq, s->o.n_ctx);
}

static const dw_qtype_row *type_of_cache(dw_kv_cache kv) {
    static const dw_qtype type[] = {
        [DW_KV_CACHE_F16] = DW_F16, [DW_KV_CACHE_F32] = DW_F32, [DW_KV_CACHE_Q8_0] = DW_Q8_0};
    return dw_qtype_get((uint32_t)type[kv]);
}

static void lay_out_cache(dw_pass *p, dw_layout *a, const dw_session_options *o) {
    const dw_hparams *hp = &p->net->hp;
    p->cache = (dw_cache){.type = type_of_cache(o->kv), .n_ctx = o->n_ctx, .n_seq = o->n_seq};
    p->cache.k = dw_layout_take(a, (size_t)hp->n_layer, sizeof *p->cache.k);
    p->cache.v = dw_layout_take(a, (size_t)hp->n_layer, sizeof *p->cache.v);
    for (int l = 0; l < hp->n_layer; l++) {
        const size_t rows = dw_times(dw_times((size_t)o->n_seq, (size_t)hp->n_head_kv[l]), (size_t)o->n_ctx),
                     n = dw_times(rows, (size_t)hp->head_dim);
        const size_t blocks = n / (size_t)p->cache.type->block, size = (size_t)p->cache.type->block_bytes;
        void *k = dw_layout_take(a, blocks, size), *v = dw_layout_take(a, blocks, size);
        if (!a->base) continue;
        p->cache.k[l] = k;
        p->cache.v[l] = v;
    }
}

/* Memory of the operators: of experiments, or of all others. */
static void lay_out_ops(dw_state *s, bool of_experiments, dw_layout *a) {
    for (const dw_ffn_op *const *op = dw_ffn_ops; *op; op++)
        for (int i = 0; i < DW_N_WAYS && (*op)->is_experiment == of_experiments; i++) {
            const dw_ffn_steps *steps = &(*op)->by[s->steps->way[i]->ffn];
            if (steps->lay_out && (i == 0 || s->steps->way[i] != s->steps->way[0])) steps->lay_out(&s->pass, a, &s->o);
        }
}

static void lay_out(dw_state *s, dw_layout *a) {
    dw_pass *p = &s->pass;
    const dw_session_options *o = &s->o;
    const dw_hparams *hp = &p->net->hp;
    const size_t rows = (size_t)o->n_batch, d = (size_t)hp->n_embd,
                 heads = (size_t)hp->n_head_max * (size_t)hp->head_dim;
    const size_t counts = (size_t)p->n_threads * (size_t)hp->n_layer;
    p->layer = dw_layout_take(a, (size_t)hp->n_layer, sizeof *p->layer);
    p->rope = dw_layout_take(a, dw_times((size_t)o->n_ctx, (size_t)hp->head_dim), sizeof *p->rope);
    s->x = dw_layout_take(a, rows * d, sizeof *s->x);
    p->h = dw_layout_take(a, rows * d, sizeof *p->h);
    p->q = dw_layout_take(a, rows * heads, sizeof *p->q);
    p->mix = dw_layout_take(a, rows * heads, sizeof *p->mix);
    p->gate = dw_layout_take(a, rows * (size_t)hp->n_ff_max, sizeof *p->gate);
    p->neuron = dw_layout_take(a, rows * (size_t)hp->n_ff_max, sizeof *p->neuron);
    p->coverage = dw_layout_take(a, counts, sizeof *p->coverage);
    s->trial_x = dw_layout_take(a, d, sizeof *s->trial_x);
    s->trial_counts = dw_layout_take(a, counts, sizeof *s->trial_counts);
    lay_out_cache(p, a, o);
    lay_out_ops(s, false, a);
    s->steps->lay_out(p, a, o); // last, so that scratch ends where the memory ends
}

/* ---- open, close ---------------------------------------------------------------------------------------------- */

static dw_state *state_new(const dw_backend *b, const dw_net *net, const dw_session_options *o, dw_err *err) {
    dw_state *s = dw_alloc(1, sizeof *s, "a session", err);
    if (!s) return NULL;
    const int n_threads = dw_pool_size(o->pool);
    s->steps = b->own;
    s->o = *o;
    s->pass = (dw_pass){.net = net,
                        .pool = o->pool,
                        .n_threads = n_threads,
                        .exact = o->exact,
                        .precision = o->precision,
                        .n_batch = o->n_batch};
    s->pass.own = dw_alloc(1, s->steps->own_bytes(n_threads), "a session", err);
    if (s->pass.own && !s->steps->start(&s->pass, o, err)) return s;
    dw_on_pool_close(s);
    return NULL;
}

static size_t count_bytes(dw_state *s) {
    dw_layout count = {0};
    lay_out(s, &count);
    return count.used;
}

size_t dw_on_pool_memory(const dw_backend *b, const dw_net *net, const dw_session_options *o) {
    dw_state *s = state_new(b, net, o, NULL);
    const size_t bytes = s ? count_bytes(s) : SIZE_MAX;
    dw_on_pool_close(s);
    return bytes;
}

dw_state *dw_on_pool_open(const dw_backend *b, const dw_net *net, const dw_session_options *o, dw_err *err) {
    dw_state *s = state_new(b, net, o, err);
    if (!s) return NULL;
    if (!take_memory(&s->memory, count_bytes(s), s, err)) {
        lay_out(s, &(dw_layout){.base = s->memory.data});
        if (!dw_on_pool_bind(s, &(dw_binding){0}, err)) return s;
    }
    dw_on_pool_close(s);
    return NULL;
}

void dw_on_pool_close(dw_state *s) {
    if (!s) return;
    dw_pages_free(&s->memory);
    dw_pages_free(&s->experiment);
    free(s->pass.own);
    free(s);
}

dw_pass *dw_on_pool_pass(dw_state *s) { return &s->pass; }

/* ---- threads ---------------------------------------------------------------------------------------------------- */

static bool has_gates(const dw_pass *p) {
    for (int l = 0; l < p->net->hp.n_layer; l++)
        if (p->layer[l].op->is_gated) return true;
    return false;
}

/* Chooses the threads of a pass: those that are present (dw_pool_present), or all where results are added up by thread
 * or a break-even is measured.  Gated layers need a number that divides the pool's: each thread gets as many shares. */
static void choose_threads(dw_state *s, bool all) {
    dw_pass *p = &s->pass;
    const int most = dw_pool_size(p->pool);
    int n = all ? most : dw_pool_present(p->pool);
    if (most % n && has_gates(p)) n = most;
    if (n == p->n_threads) return;
    p->n_threads = n;
    if (s->steps->change_threads) s->steps->change_threads(p);
}

/* ---- binding -------------------------------------------------------------------------------------------------- */

/* With DW_SELECT_AUTO a gated layer computes all neurons where its measured break-even says that this is faster. */
static bool weighs(const dw_state *s) { return s->o.select == DW_SELECT_AUTO && !s->o.exact && s->steps->most_few; }

static bool needs_break_even(const dw_state *s, int l) {
    const dw_bound *b = &s->pass.layer[l];
    return weighs(s) && b->op == &dw_ffn_gated && !b->is_measured && dw_down_is_copy(&s->pass.net->layer[l]);
}

static void choose(dw_state *s) {
    dw_pass *p = &s->pass;
    s->is_unsure = false;
    dw_choose_ops(p, s->o.select, s->binding.selection, weighs(s));
    for (int l = 0; l < p->net->hp.n_layer; l++) {
        dw_bound *b = &p->layer[l];
        if (needs_break_even(s, l)) s->is_unsure = true;
        for (int i = 0; i < DW_N_WAYS; i++) b->ffn[i] = &b->op->by[s->steps->way[i]->ffn];
    }
}

int dw_on_pool_bind(dw_state *s, const dw_binding *b, dw_err *err) {
    const dw_ffn_experiment *e = b->experiment;
    choose_threads(s, true); // for which memory is laid out
    if (e && e->gathered && !s->experiment.data) {
        dw_layout count = {0};
        lay_out_ops(s, true, &count);
        if (count.used) {
            if (take_memory(&s->experiment, count.used, s, err)) return -1;
            lay_out_ops(s, true, &(dw_layout){.base = s->experiment.data});
        }
    }
    s->binding = *b;
    s->pass.experiment = e ? *e : (dw_ffn_experiment){0};
    choose(s);
    return 0;
}

/* Whether two layers can share a measured break-even. */
static bool are_alike(const dw_layer *a, const dw_layer *b) {
    return a->gate.type == b->gate.type && a->up.type == b->up.type && a->down.type == b->down.type &&
           a->sparse.down_t.type == b->sparse.down_t.type && a->sparse.group == b->sparse.group &&
           !a->sparse.pred_a.name == !b->sparse.pred_a.name && a->n_ff <= 2 * b->n_ff && b->n_ff <= 2 * a->n_ff;
}

static void measure(dw_state *s) {
    dw_pass *p = &s->pass;
    for (int l = 0; l < p->net->hp.n_layer; l++) {
        dw_bound *b = &p->layer[l];
        if (!needs_break_even(s, l)) continue;
        for (int k = 0; k < l && !b->is_measured; k++)
            if (p->layer[k].is_measured && are_alike(&p->net->layer[k], &p->net->layer[l]))
                b->is_measured = true, b->break_even = p->layer[k].break_even;
        if (!b->is_measured) b->break_even = dw_measure_break_even(p, l, s->trial_x, s->trial_counts);
        b->is_measured = true;
    }
    choose(s);
}

/* ---- rope ----------------------------------------------------------------------------------------------------- */

void dw_rope_rows(const dw_net *net, int first, int end, float *table) {
    const int n_pair = net->hp.head_dim / 2;
    const float magnitude = net->rope_magnitude != 0 ? net->rope_magnitude : 1;
    for (int i = 0; i < n_pair; i++) {
        const double factor = net->rope_factor ? (double)net->rope_factor[i] : 1;
        const double frequency = pow(net->hp.rope_base, -2.0 * i / net->hp.head_dim) / factor;
        for (int pos = first; pos < end; pos++) {
            float *pair = table + 2 * ((size_t)pos * (size_t)n_pair + (size_t)i);
            pair[0] = (float)cos(pos * frequency) * magnitude;
            pair[1] = (float)sin(pos * frequency) * magnitude;
        }
    }
}

/* The table is computed up to the highest position so far, so a long context costs nothing before it is used. */
static void need_rope(dw_state *s, const dw_work *w) {
    int n = 0;
    for (int t = 0; t < w->n_tokens; t++)
        if (w->pos[t] >= n) n = w->pos[t] + 1;
    if (n <= s->n_rope) return;
    n = n > s->o.n_ctx - ROPE_BLOCK ? s->o.n_ctx : (n + ROPE_BLOCK - 1) / ROPE_BLOCK * ROPE_BLOCK;
    dw_rope_rows(s->pass.net, s->n_rope, n, (float *)s->pass.rope);
    s->n_rope = n;
}

/* ---- the pass ------------------------------------------------------------------------------------------------- */

typedef struct forward_job {
    dw_pass *p;
    const dw_way *way;
    const dw_work *w;
    int first, end; // layers
    bool only_rows; // in the last layer, tokens that give no row end after its keys and values
} forward_job;

static bool has_tap(const dw_work *w) { return w->tap && w->tap->points; }
static bool is_tapped(const dw_work *w, dw_tap_point point) { return w->tap && w->tap->points >> point & 1; }

/* Gives values to the tap: on all threads, or on the first while the others wait.  A step overwrites the values only
 * after the next barrier, which no thread passes before its fn_thread has returned. */
static void show(const forward_job *job, const dw_tap_event *event, int ith) {
    const dw_tap *tap = job->w->tap;
    if (tap->fn_thread) tap->fn_thread(tap->ctx, event, ith, job->p->n_threads);
    else if (ith == 0) tap->fn(tap->ctx, event);
    if (!tap->fn_thread || tap->in_step) dw_pool_barrier(job->p->pool);
}

/* Shows values (n_tokens, n) of all tokens.  Without a tap it reads nothing: keep_rows may be changing the pass. */
static void show_all(const forward_job *job, dw_tap_point point, int l, const float *values, int n, int ith) {
    const dw_pass *p = job->p;
    if (!is_tapped(job->w, point)) return;
    show(job,
         &(dw_tap_event){
             .point = point, .layer = l, .n_tokens = p->n_tokens, .n = n, .values = values, .seq = p->seq, .pos = p->pos},
         ith);
}

/* Shows the head's rows: one event per run of rows whose tokens are neighbours. */
static void show_head(const forward_job *job, int ith) {
    const dw_work *w = job->w;
    const int d = job->p->net->hp.n_embd;
    if (!is_tapped(w, DW_TAP_HEAD_IN)) return;
    dw_pool_barrier(job->p->pool); // waits for the rows of other threads
    for (int first = 0, end; first < w->n_rows; first = end) {
        for (end = first + 1; end < w->n_rows && w->row[end] == w->row[end - 1] + 1;) end++;
        const dw_tap_event event = {.point = DW_TAP_HEAD_IN,
                                    .layer = job->p->net->hp.n_layer,
                                    .n_tokens = end - first,
                                    .n = d,
                                    .values = w->hidden + (size_t)first * (size_t)d,
                                    .seq = w->seq + w->row[first],
                                    .pos = w->pos + w->row[first]};
        show(job, &event, ith);
    }
}

/* Nothing reads the residual after the last layer but the head, and that only the wanted rows; with taps and in gated
 * layers other tokens count, too. */
static bool needs_only_rows(const dw_pass *p, const dw_work *w, int first, int end) {
    const int n_layer = p->net->hp.n_layer;
    return first < end && end == n_layer && !w->x && w->n_rows < w->n_tokens && !has_tap(w) &&
           !p->layer[n_layer - 1].op->is_gated; // gates decide by position and count every token
}

/* Moves the wanted rows of a last layer to the front; the pass goes on with them alone.  Few rows may take another
 * form of product than the tokens before them (dw_gemm_form_of). */
static void keep_rows(const forward_job *job, int l, int ith) {
    dw_pass *p = job->p;
    const dw_work *w = job->w;
    const size_t d = (size_t)p->net->hp.n_embd, n_mix = (size_t)(p->net->layer[l].n_head * p->net->hp.head_dim);
    if (!job->only_rows || l < job->end - 1) return;
    if (ith == 0) {
        for (size_t i = 0; i < (size_t)w->n_rows; i++) { // rows ascend
            memmove(p->x + i * d, p->x + (size_t)w->row[i] * d, d * sizeof *p->x);
            memmove(p->mix + i * n_mix, p->mix + (size_t)w->row[i] * n_mix, n_mix * sizeof *p->mix);
        }
        p->n_tokens = w->n_rows;
    }
    dw_pool_barrier(p->pool);
}

static void attention(const forward_job *job, int l, int ith) {
    dw_pass *p = job->p;
    job->way->qkv(p, l, ith);
    dw_pool_barrier(p->pool);
    show_all(job, DW_TAP_ATTN_IN, l, p->h, p->net->hp.n_embd, ith);
    job->way->attend(p, l, ith);
    dw_pool_barrier(p->pool);
    show_all(job, DW_TAP_ATTN_MIX, l, p->mix, p->net->layer[l].n_head * p->net->hp.head_dim, ith);
    keep_rows(job, l, ith);
    if (!p->n_tokens) return;
    job->way->attn_out(p, l, ith);
    dw_pool_barrier(p->pool);
}

static void ffn(const forward_job *job, int l, int ith) {
    dw_pass *p = job->p;
    const dw_ffn_steps *steps = p->layer[l].ffn[p->way];
    const int n_ff = p->net->layer[l].n_ff;
    steps->neurons(p, l, ith);
    dw_pool_barrier(p->pool);
    show_all(job, DW_TAP_FFN_IN, l, p->h, p->net->hp.n_embd, ith);
    show_all(job, DW_TAP_FFN_GATE, l, p->gate, n_ff, ith);
    show_all(job, DW_TAP_FFN_NEURON, l, p->neuron, n_ff, ith);
    steps->down(p, l, ith);
    dw_pool_barrier(p->pool);
}

static void forward(void *job_pointer, int ith, int n_threads) {
    const forward_job *job = job_pointer;
    dw_pass *p = job->p;
    const dw_work *w = job->w;
    const int d = p->net->hp.n_embd, n_layer = p->net->hp.n_layer;
    if (w->token) {
        job->way->embed(p, ith);
        dw_pool_barrier(p->pool);
    }
    for (int l = job->first; l < job->end; l++) {
        show_all(job, DW_TAP_RESIDUAL, l, p->x, d, ith);
        if (p->net->layer[l].n_head) attention(job, l, ith);
        else keep_rows(job, l, ith);
        if (p->n_tokens) ffn(job, l, ith);
    }
    if (job->first < job->end && job->end == n_layer) show_all(job, DW_TAP_RESIDUAL, n_layer, p->x, d, ith);
    for (int i = ith; i < w->n_rows; i += n_threads)
        job->way->head_norm(p, p->x + (size_t)(job->only_rows ? i : w->row[i]) * (size_t)d,
                            w->hidden + (size_t)i * (size_t)d, ith);
    show_head(job, ith);
}

static int way_of(const dw_state *s, int n_tokens) {
    return !s->o.exact && n_tokens <= s->steps->most_few ? DW_WAY_FEW : DW_WAY_MANY;
}

int dw_on_pool_layers(dw_state *s, const dw_work *w, int first, int end, dw_err *err) {
    dw_pass *p = &s->pass;
    (void)err; // nothing here can fail
    dw_assert(w->n_tokens >= 0 && w->n_tokens <= p->n_batch && 0 <= first && first <= end && end <= p->net->hp.n_layer);
    dw_assert(!has_tap(w) || w->tap->fn || w->tap->fn_thread);
    for (int t = 0; t < w->n_tokens; t++)
        dw_assert(w->pos[t] >= 0 && w->pos[t] < s->o.n_ctx && w->seq[t] >= 0 && w->seq[t] < s->o.n_seq);
    need_rope(s, w);
    p->way = way_of(s, w->n_tokens);
    const bool measures = s->is_unsure && p->way == DW_WAY_FEW && first < end;
    const bool adds_by_thread = p->experiment.gathered || (has_tap(w) && w->tap->fn_thread);
    choose_threads(s, measures || adds_by_thread);
    if (measures) measure(s);
    p->n_tokens = w->n_tokens;
    p->token = w->token, p->seq = w->seq, p->pos = w->pos;
    p->x = w->x ? w->x : s->x;
    p->keep_h = is_tapped(w, DW_TAP_ATTN_IN) || is_tapped(w, DW_TAP_FFN_IN);
    p->keep_neurons = is_tapped(w, DW_TAP_FFN_NEURON);
    p->gate_every = !is_tapped(w, DW_TAP_FFN_GATE) ? 0 : w->tap->gate_every ? w->tap->gate_every : 1;
    dw_pool_run_on(p->pool, p->n_threads, forward,
                   &(forward_job){p, s->steps->way[p->way], w, first, end, needs_only_rows(p, w, first, end)});
    return 0;
}

/* ---- the head ------------------------------------------------------------------------------------------------- */

typedef struct head_job {
    dw_pass *p;
    const dw_way *way;
    dw_head h;
} head_job;

static void run_head(void *job_pointer, int ith, int n_threads) {
    const head_job *job = job_pointer;
    (void)n_threads;
    (job->h.logits ? job->way->logits : job->way->logprobs)(job->p, &job->h, ith);
}

/* At most n_batch rows at a time, because memory was laid out for so many. */
int dw_on_pool_head(dw_state *s, const dw_head *h, dw_err *err) {
    const dw_hparams *hp = &s->pass.net->hp;
    head_job job = {.p = &s->pass, .h = *h};
    (void)err;
    dw_assert(h->n >= 0 && !h->logits == (h->target && h->logprob));
    for (int left = h->n; left > 0; left -= job.h.n) {
        job.h.n = left < s->o.n_batch ? left : s->o.n_batch;
        job.way = s->steps->way[h->logits ? way_of(s, job.h.n) : DW_WAY_MANY];
        choose_threads(s, false);
        dw_pool_run_on(s->o.pool, s->pass.n_threads, run_head, &job);
        job.h.hidden += (size_t)job.h.n * (size_t)hp->n_embd;
        if (h->logits) job.h.logits += (size_t)job.h.n * (size_t)hp->n_vocab;
        else job.h.target += job.h.n, job.h.logprob += job.h.n;
    }
    return 0;
}

/* ---- parts of the state --------------------------------------------------------------------------------------- */

static int check_place(const dw_state *s, dw_place at, dw_err *err) {
    const dw_hparams *hp = &s->pass.net->hp;
    const bool is_residual = at.part == DW_PART_RESIDUAL;
    const int most = is_residual ? s->o.n_batch : s->o.n_ctx;
    if (at.first < 0 || at.n < 0 || at.first > most - at.n)
        return dw_fail(err, "rows %d to %d of the state were asked for, there are %d", at.first, at.first + at.n - 1,
                       most);
    if (is_residual || (at.layer >= 0 && at.layer < hp->n_layer && at.seq >= 0 && at.seq < s->o.n_seq)) return 0;
    return dw_fail(err, "layer %d and sequence %d of the cache were asked for, there are %d and %d", at.layer, at.seq,
                   hp->n_layer, s->o.n_seq);
}

/* Copies between F32 values and the cache, head by head. */
static void copy_cache(const dw_state *s, dw_place at, float *to, const float *from) {
    const dw_cache *c = &s->pass.cache;
    const size_t head_dim = (size_t)s->pass.net->hp.head_dim, n = (size_t)at.n * head_dim;
    const int n_head = s->pass.net->layer[at.layer].n_head_kv;
    uint8_t *array = (at.part == DW_PART_K ? c->k : c->v)[at.layer];
    for (int head = 0; head < n_head; head++) {
        const size_t place = dw_cache_at(&s->pass, at.layer, at.seq, head, at.first);
        uint8_t *values = array + dw_qtype_row_bytes(c->type, place);
        if (to) c->type->decode(values, to + (size_t)head * n, n);
        else dw_cache_store(c, from + (size_t)head * n, n, values);
    }
}

int dw_on_pool_get(dw_state *s, dw_place at, float *values, dw_err *err) {
    const size_t d = (size_t)s->pass.net->hp.n_embd;
    if (check_place(s, at, err)) return -1;
    if (at.part == DW_PART_RESIDUAL) memcpy(values, s->x + (size_t)at.first * d, (size_t)at.n * d * sizeof *values);
    else copy_cache(s, at, values, NULL);
    return 0;
}

int dw_on_pool_put(dw_state *s, dw_place at, const float *values, dw_err *err) {
    const size_t d = (size_t)s->pass.net->hp.n_embd;
    if (check_place(s, at, err)) return -1;
    if (at.part == DW_PART_RESIDUAL) memcpy(s->x + (size_t)at.first * d, values, (size_t)at.n * d * sizeof *values);
    else copy_cache(s, at, NULL, values);
    return 0;
}

/* ---- counts --------------------------------------------------------------------------------------------------- */

dw_coverage dw_on_pool_coverage(const dw_state *s, int layer) {
    dw_coverage sum = {0};
    for (int i = 0; i < dw_pool_size(s->pass.pool); i++) {
        const dw_coverage *c = dw_coverage_of(&s->pass, layer, i);
        sum.n_tokens += c->n_tokens;
        sum.n_open += c->n_open;
        sum.n_computed += c->n_computed;
        sum.n_bytes += c->n_bytes;
        sum.n_few += c->n_few;
    }
    return sum;
}

void dw_on_pool_reset_coverage(dw_state *s) {
    const size_t n_counts = (size_t)dw_pool_size(s->pass.pool) * (size_t)s->pass.net->hp.n_layer;
    memset(s->pass.coverage, 0, n_counts * sizeof *s->pass.coverage);
}
