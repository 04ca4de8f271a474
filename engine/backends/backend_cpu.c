/* backend_cpu.c - the fast backend: its scratch, the sharing of work, and the steps that both ways have in common. */
#include "backends/backend_cpu.h"

#include <string.h>

/* ---- memory: each thread's own, what is shared ------------------------------------------------------------------- */

static int longest_row(const dw_hparams *hp) {
    const int heads = hp->n_head_max * hp->head_dim, most = heads > hp->n_ff_max ? heads : hp->n_ff_max;
    return most > hp->n_embd ? most : hp->n_embd;
}

static size_t scratch_bytes(const dw_net *net) {
    const dw_hparams *hp = &net->hp;
    const int most_group = hp->n_head_max > 0 ? hp->n_head_max : 1;
    const size_t attend = dw_larger_size(dw_attend_scratch_bytes(hp->head_dim, most_group),
                                         dw_attend_tiles_scratch_bytes(hp->head_dim, most_group));
    const size_t gated = dw_few_scratch_bytes(hp->n_embd) + dw_few_scratch_bytes(dw_gate_sizes_of(net).rank);
    return dw_larger_size(dw_larger_size(DW_GEMM_SCRATCH, attend),
                          dw_larger_size(gated, dw_few_scratch_bytes(longest_row(hp))));
}

static size_t piece_bytes(const dw_hparams *hp) {
    return DW_GEMM_TOKENS * sizeof(float) * dw_larger_size(DW_MANY_ROWS, ((size_t)hp->head_dim + 15) / 16 * 16);
}

static size_t shared_bytes(const dw_hparams *hp, int n_batch) {
    const size_t packed = dw_gemm_pack_bytes(n_batch, longest_row(hp));
    return (dw_larger_size(packed, dw_many_head_bytes(hp, n_batch)) + 63) / 64 * 64;
}

static size_t own_bytes(int n_threads) { return sizeof(dw_cpu) + (size_t)n_threads * sizeof(dw_step); }

static int start(dw_pass *p, const dw_session_options *o, dw_err *err) {
    dw_cpu *c = p->own;
    dw_level level;
    (void)o;
    if (dw_level_choose(&level, err)) return -1;
    const dw_vec *vec = dw_vec_of(level);
    for (int i = 0; i < p->n_threads; i++)
        c->step[i] = (dw_step){.p = p,
                               .ith = i,
                               .n_threads = p->n_threads,
                               .n_shares = p->n_threads,
                               .level = level,
                               .vec = vec,
                               .gated = &c->gated};
    return 0;
}

static void lay_out(dw_pass *p, dw_layout *a, const dw_session_options *o) {
    dw_cpu *c = p->own;
    const dw_hparams *hp = &p->net->hp;
    const size_t scratch = scratch_bytes(p->net), piece = piece_bytes(hp);
    dw_portion *portions = dw_layout_take(a, (size_t)p->n_threads, sizeof *portions);
    for (int i = 0; i < p->n_threads; i++) {
        c->step[i].portions = portions;
        c->step[i].scratch = dw_layout_take(a, 1, scratch);
        c->step[i].out = dw_layout_take(a, 1, piece);
        c->step[i].out2 = dw_layout_take(a, 1, piece);
    }
    uint8_t *shared = dw_layout_take(a, 1, shared_bytes(hp, o->n_batch));
    const size_t neurons = c->step->level >= DW_AVX512 ? dw_gemm_pack_bytes(o->n_batch, hp->n_ff_max) : 0;
    uint8_t *packed = dw_layout_take(a, 1, neurons);
    for (int i = 0; i < p->n_threads; i++) c->step[i].shared = shared, c->step[i].neurons = packed;
}

/* Absent threads missed steps, so all count again from the first. */
static void change_threads(dw_pass *p) {
    dw_cpu *c = p->own;
    for (int i = 0; i < dw_pool_size(p->pool); i++) {
        c->step[i].n_threads = p->n_threads;
        c->step[i].portions[i] = (dw_portion){0};
    }
}

/* ---- pieces ------------------------------------------------------------------------------------------------- */

enum { TAG_SHIFT = 62, NEXT_SHIFT = 31 };

static uint64_t left_of(uint64_t tag, int next, int end) {
    return tag << TAG_SHIFT | (uint64_t)next << NEXT_SHIFT | (uint64_t)end;
}

// The pieces that `seen` leaves in thread i's portion.
static dw_run left_in(const dw_step *s, const dw_pieces *pieces, uint64_t seen, int i) {
    if (seen >> TAG_SHIFT != pieces->tag)
        return (dw_run){dw_share(pieces->n, i, s->n_threads), dw_share(pieces->n, i + 1, s->n_threads)};
    return (dw_run){(int)(seen >> NEXT_SHIFT & INT32_MAX), (int)(seen & INT32_MAX)};
}

dw_pieces dw_pieces_begin(const dw_step *s, int n) {
    dw_portion *own = &s->portions[s->ith];
    const dw_pieces pieces = {.n = n, .tag = ++own->n_steps & 1};
    uint64_t seen = atomic_load_explicit(&own->left, memory_order_relaxed);
    if (seen >> TAG_SHIFT != pieces.tag) { // written even if it is empty: a tag must not be two steps old
        const dw_run all = left_in(s, &pieces, seen, s->ith);
        atomic_compare_exchange_strong_explicit(&own->left, &seen, left_of(pieces.tag, all.first, all.end),
                                                memory_order_relaxed, memory_order_relaxed);
    }
    return pieces;
}

/* Takes pieces of thread i's portion: of the own one the first, up to `most`, but of the last tenth no more than half of
 * what is left; of another's the last.  False: none left. */
static bool take(const dw_step *s, const dw_pieces *pieces, int i, int most, dw_run *run) {
    atomic_uint_fast64_t *left = &s->portions[i].left;
    const int tenth = dw_larger(pieces->n / s->n_threads / 10, 1);
    uint64_t seen = atomic_load_explicit(left, memory_order_relaxed), rest;
    do {
        const dw_run all = left_in(s, pieces, seen, i);
        const int n = all.end - all.first;
        if (!n) return false;
        if (i == s->ith) {
            *run = (dw_run){all.first, all.first + dw_smaller(dw_larger(n - tenth, (n + 1) / 2), most)};
            rest = left_of(pieces->tag, run->end, all.end);
        } else {
            *run = (dw_run){all.end - 1, all.end};
            rest = left_of(pieces->tag, all.first, run->first);
        }
    } while (!atomic_compare_exchange_weak_explicit(left, &seen, rest, memory_order_relaxed, memory_order_relaxed));
    return true;
}

bool dw_pieces_run(const dw_step *s, dw_pieces *pieces, int most, dw_run *run) {
    for (; pieces->n_empty < s->n_threads; pieces->n_empty++)
        if (take(s, pieces, (s->ith + pieces->n_empty) % s->n_threads, most, run)) return true;
    return false;
}

int dw_pieces_next(const dw_step *s, dw_pieces *pieces) {
    dw_run run;
    return dw_pieces_run(s, pieces, 1, &run) ? run.first : -1;
}

int dw_pieces_dealt(const dw_step *s, const dw_pieces *pieces, int i) {
    int thread = 0;
    while (dw_share(pieces->n, thread + 1, s->n_threads) <= i) thread++;
    const int each = pieces->n / s->n_threads, first = dw_share(pieces->n, thread, s->n_threads);
    // Portions have `each` pieces or one more; of those before, first - each * thread have one more.
    return i - first < each ? (i - first) * s->n_threads + thread : each * s->n_threads + first - each * thread;
}

/* ---- steps in common ---------------------------------------------------------------------------------------- */

void dw_cpu_embed(dw_pass *p, int ith) {
    for (int t = ith; t < p->n_tokens; t += p->n_threads)
        dw_embed_token(p->net, p->token[t], p->x + (size_t)t * (size_t)p->net->hp.n_embd);
}

void dw_finish_head(const dw_step *s, int l, dw_head_kind kind, int head, int token, float *x) {
    const dw_pass *p = s->p;
    const dw_layer *w = &p->net->layer[l];
    const int n = p->net->hp.head_dim, pos = p->pos[token];
    const float *bias = dw_floats(kind == DW_HEAD_Q ? &w->q_bias : kind == DW_HEAD_K ? &w->k_bias : &w->v_bias);
    if (bias) s->vec->add(x, bias + (size_t)head * (size_t)n, NULL, n);
    if (kind != DW_HEAD_V) {
        const float *norm = dw_floats(kind == DW_HEAD_Q ? &w->q_norm : &w->k_norm);
        if (norm) s->vec->norm(x, norm, n, p->net->hp.norm_eps, x);
        s->vec->rope(x, p->rope + (size_t)pos * (size_t)n, n, p->net->rope_neox);
    }
    if (kind == DW_HEAD_Q) {
        memcpy(p->q + ((size_t)token * (size_t)w->n_head + (size_t)head) * (size_t)n, x, (size_t)n * sizeof *x);
        return;
    }
    uint8_t *cache = kind == DW_HEAD_K ? p->cache.k[l] : p->cache.v[l];
    cache += dw_qtype_row_bytes(p->cache.type, dw_cache_at(p, l, p->seq[token], head, pos));
    if (p->cache.type->id == DW_F16) s->vec->to_f16(x, n, (uint16_t *)(void *)cache);
    else dw_cache_store(&p->cache, x, (size_t)n, cache);
}

/* Copies values of selected neurons to their places in y; the others from `from` to `to` become zero. */
static void scatter(const int32_t *list, int n, int from, int to, const float *x, float *y) {
    memset(y + from, 0, (size_t)(to - from) * sizeof *y);
    for (int i = 0; i < n; i++) y[list[i]] = x[i];
}

void dw_finish_neurons(const dw_step *s, int l, int first, int n, int first_token, int n_tokens) {
    const dw_pass *p = s->p;
    const dw_layer *w = &p->net->layer[l];
    const float *gate_bias = dw_floats(&w->gate_bias), *up_bias = dw_floats(&w->up_bias);
    for (int t = 0; t < n_tokens; t++) {
        const size_t row = (size_t)(first_token + t) * (size_t)w->n_ff;
        float *gate = s->out + (size_t)t * (size_t)n, *up = s->out2 + (size_t)t * (size_t)n;
        if (gate_bias) s->vec->add(gate, gate_bias + first, NULL, n);
        if (up_bias) s->vec->add(up, up_bias + first, NULL, n);
        dw_glu(s, gate, up, n, p->neuron + row + first);
        if (p->gate_every && p->pos[first_token + t] % p->gate_every == 0)
            memcpy(p->gate + row + first, gate, (size_t)n * sizeof *gate);
    }
}

void dw_finish_listed(const dw_step *s, int l, int first, int n, int first_token, int n_tokens) {
    const dw_pass *p = s->p;
    const dw_layer *w = &p->net->layer[l];
    const dw_bound *b = &p->layer[l];
    const int32_t *list = b->list + first;
    const int from = first ? list[0] : 0, to = first + n < b->n_list ? list[n] : w->n_ff;
    for (int t = 0; t < n_tokens; t++) {
        const size_t row = (size_t)(first_token + t) * (size_t)w->n_ff;
        float *gate = s->out + (size_t)t * (size_t)n, *up = s->out2 + (size_t)t * (size_t)n;
        dw_add_listed(&w->gate_bias, list, n, gate);
        dw_add_listed(&w->up_bias, list, n, up);
        dw_glu(s, gate, up, n, up);
        scatter(list, n, from, to, up, p->neuron + row);
        if (p->gate_every && p->pos[first_token + t] % p->gate_every == 0)
            scatter(list, n, from, to, gate, p->gate + row);
    }
}

/* ---- attention ---------------------------------------------------------------------------------------------- */

/* The end of a block: tokens of one sequence, at most `most`, that share an attention job. */
static int block_end(const dw_pass *p, int first, int most) {
    int end = first + 1;
    while (end < p->n_tokens && end - first < most && p->seq[end] == p->seq[first]) end++;
    return end;
}

static bool is_alone(const dw_pass *p, int t) {
    return (t == 0 || p->seq[t - 1] != p->seq[t]) && (t + 1 == p->n_tokens || p->seq[t + 1] != p->seq[t]);
}

void dw_cpu_attend(const dw_step *s, int l, int most, void (*attend)(const dw_attend_job *job)) {
    const dw_pass *p = s->p;
    const dw_layer *w = &p->net->layer[l];
    const int n = p->net->hp.head_dim, n_group = w->n_head / w->n_head_kv;
    const dw_qtype_row *type = p->cache.type;
    int n_blocks = 0;
    for (int t = 0; t < p->n_tokens; t = block_end(p, t, most)) n_blocks++;

    dw_pieces pieces = dw_pieces_begin(s, n_blocks * w->n_head_kv);
    for (int i; (i = dw_pieces_next(s, &pieces)) >= 0;) {
        const int number = dw_pieces_dealt(s, &pieces, i);
        const int head = number % w->n_head_kv, block = n_blocks - 1 - number / w->n_head_kv; // the longest first
        int first = 0;
        for (int b = 0; b < block; b++) first = block_end(p, first, most);
        const size_t at = dw_qtype_row_bytes(type, dw_cache_at(p, l, p->seq[first], head, 0)),
                     ld = (size_t)w->n_head * (size_t)n;
        const size_t q = (size_t)first * ld + (size_t)(head * n_group) * (size_t)n;
        const dw_attend_job job = {.type = type,
                                   .decode = dw_unpack_of(s->level, type),
                                   .k = (const uint8_t *)p->cache.k[l] + at,
                                   .v = (const uint8_t *)p->cache.v[l] + at,
                                   .head_dim = n,
                                   .n_group = n_group,
                                   .n_tokens = block_end(p, first, most) - first,
                                   .is_rounded = p->precision == DW_PRECISION_BF16,
                                   .has_tiles = s->level >= DW_AMX,
                                   .is_alone = is_alone(p, first),
                                   .pos = p->pos + first,
                                   .q = p->q + q,
                                   .mix = p->mix + q,
                                   .ld = ld,
                                   .scale = p->net->hp.attn_scale,
                                   .scratch = s->scratch};
        attend(&job);
    }
}

/* ---- the head's norm, and the table ---------------------------------------------------------------------------- */

void dw_cpu_head_norm(dw_pass *p, const float *x, float *hidden, int ith) {
    dw_step_of(p, ith)->vec->norm(x, dw_floats(&p->net->output_norm), p->net->hp.n_embd, p->net->hp.norm_eps, hidden);
}

const dw_steps dw_steps_cpu = {.way = {&dw_cpu_few, &dw_cpu_many},
                               .most_few = DW_DOT_MAX_COLS,
                               .own_bytes = own_bytes,
                               .start = start,
                               .lay_out = lay_out,
                               .change_threads = change_threads};
