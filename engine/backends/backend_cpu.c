/* backend_cpu.c - the fast backend: its scratch, the sharing of work, and the steps that both ways have in common. */
#include "backends/backend_cpu.h"

#include <string.h>

/* ---- scratch: the team, then each thread's own, then what is shared --------------------------------------------- */

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static int longest_row(const dw_hparams *hp) {
    const int heads = hp->n_head_max * hp->head_dim, most = heads > hp->n_ff_max ? heads : hp->n_ff_max;
    return most > hp->n_embd ? most : hp->n_embd;
}

static size_t kernel_bytes(const dw_net *net) {
    const dw_hparams *hp = &net->hp;
    const size_t attend = dw_attend_scratch_bytes(hp->head_dim, hp->n_head_max > 0 ? hp->n_head_max : 1);
    const size_t gated = dw_few_scratch_bytes(hp->n_embd) + dw_few_scratch_bytes(dw_gate_sizes_of(net).rank);
    return larger(larger(DW_GEMM_SCRATCH, attend), larger(gated, dw_few_scratch_bytes(longest_row(hp))));
}

static size_t piece_bytes(const dw_hparams *hp) {
    return DW_GEMM_TOKENS * sizeof(float) * larger(DW_MANY_ROWS, ((size_t)hp->head_dim + 15) / 16 * 16);
}

static size_t shared_bytes(const dw_hparams *hp, int n_batch) {
    const size_t packed = dw_gemm_pack_bytes(n_batch, longest_row(hp));
    return (larger(packed, dw_many_head_bytes(hp, n_batch)) + 63) / 64 * 64;
}

static size_t scratch_bytes(const dw_net *net, int n_batch, int n_ctx, int n_threads, dw_select select) {
    (void)n_ctx;
    const dw_hparams *hp = &net->hp;
    return sizeof(dw_team) + (size_t)n_threads * (kernel_bytes(net) + 2 * piece_bytes(hp)) + shared_bytes(hp, n_batch) +
           dw_gated_bytes(net, n_batch, n_threads, select);
}

static dw_step begin(dw_pass *p, int ith, int n_threads) {
    const dw_hparams *hp = &p->net->hp;
    const size_t kernel = kernel_bytes(p->net), piece = piece_bytes(hp);
    dw_step s = {.p = p, .ith = ith, .n_threads = n_threads};
    uint8_t *first = (uint8_t *)p->scratch + sizeof(dw_team);
    if (dw_level_choose(&s.level, NULL)) s.level = DW_PORTABLE; // a session is refused before this can happen
    s.vec = dw_vec_of(s.level);
    s.glu = s.vec->glu[p->net->act];
    s.team = p->scratch;
    s.kernel = first + (size_t)ith * (kernel + 2 * piece);
    s.gate = (float *)(void *)(s.kernel + kernel);
    s.up = (float *)(void *)(s.kernel + kernel + piece);
    s.shared = first + (size_t)n_threads * (kernel + 2 * piece);
    s.gated = s.shared + shared_bytes(hp, p->n_batch);
    return s;
}

/* ---- pieces ------------------------------------------------------------------------------------------------- */

dw_pieces dw_pieces_begin(const dw_step *s, int n, bool own_shares) {
    const int share = own_shares ? n * 9 / 10 / s->n_threads : 0;
    return (dw_pieces){.next = share * s->ith, .end = share * (s->ith + 1), .n_shared_out = share * s->n_threads, .n = n};
}

int dw_pieces_next(const dw_step *s, dw_pieces *pieces) {
    if (pieces->next < pieces->end) return pieces->next++;
    const int i = pieces->n_shared_out + atomic_fetch_add(&s->team->n_taken, 1);
    if (i < pieces->n) return i;
    if (atomic_fetch_add(&s->team->n_done, 1) + 1 == s->n_threads) { // the last to ask sets the counters back
        atomic_store(&s->team->n_taken, 0);
        atomic_store(&s->team->n_done, 0);
    }
    return -1;
}

static bool is_few(const dw_pass *p, int n_tokens) { return !p->exact && n_tokens <= DW_DOT_MAX_COLS; }

bool dw_pieces_run(const dw_step *s, dw_pieces *pieces, dw_run *run) {
    const int left = pieces->end - pieces->next;
    run->first = dw_pieces_next(s, pieces);
    if (run->first < 0) return false;
    run->end = run->first + (left > 0 ? dw_smaller(left, DW_FEW_RUN) : 1);
    if (left > 0) pieces->next = run->end;
    return true;
}

/* ---- steps in common ---------------------------------------------------------------------------------------- */

static void embed(dw_pass *p, int ith, int n_threads) {
    const dw_tensor *w = &p->net->token_embd;
    const float scale = p->net->embd_scale != 0 ? p->net->embd_scale : 1;
    for (int t = ith; t < p->n_tokens; t += n_threads) {
        float *x = p->x + (size_t)t * w->ne[0];
        w->type->decode(w->data + (size_t)p->token[t] * dw_tensor_row_bytes(w), x, w->ne[0]);
        for (size_t i = 0; scale != 1 && i < w->ne[0]; i++) x[i] *= scale;
    }
}

static size_t cache_at(const dw_pass *p, int l, int seq, int head, int pos) {
    const size_t row = (size_t)seq * (size_t)p->net->layer[l].n_head_kv + (size_t)head;
    return (row * (size_t)p->cache.n_ctx + (size_t)pos) * (size_t)p->net->hp.head_dim;
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
    void *cache = kind == DW_HEAD_K ? p->cache.k[l] : p->cache.v[l];
    const size_t at = cache_at(p, l, p->seq[token], head, pos);
    if (p->cache.type == DW_KV_CACHE_F32) memcpy((float *)cache + at, x, (size_t)n * sizeof *x);
    else s->vec->to_f16(x, n, (uint16_t *)cache + at);
}

/* Values of selected neurons to their places; zero from `from` to `to` elsewhere. */
static void scatter(const int32_t *list, int n, int from, int to, const float *x, float *y) {
    memset(y + from, 0, (size_t)(to - from) * sizeof *y);
    for (int i = 0; i < n; i++) y[list[i]] = x[i];
}

static void add_bias(const dw_step *s, const dw_tensor *bias, int first, int n, float *x) {
    const float *b = dw_floats(bias);
    const int32_t *list = s->p->selected;
    if (!b) return;
    if (!list) s->vec->add(x, b + first, NULL, n);
    else
        for (int i = 0; i < n; i++) x[i] += b[list[first + i]];
}

void dw_finish_neurons(const dw_step *s, int l, int first, int end, int first_token, int n_tokens) {
    const dw_pass *p = s->p;
    const dw_layer *w = &p->net->layer[l];
    const int32_t *list = p->selected;
    const int n = end - first, n_all = list ? p->n_selected : w->n_ff;
    const int from = !list || !first ? 0 : list[first], to = list && end < n_all ? list[end] : w->n_ff; // of a list
    for (int t = 0; t < n_tokens; t++) {
        const size_t row = (size_t)(first_token + t) * (size_t)w->n_ff;
        float *gate = s->gate + (size_t)t * (size_t)n, *up = s->up + (size_t)t * (size_t)n;
        add_bias(s, &w->gate_bias, first, n, gate);
        add_bias(s, &w->up_bias, first, n, up);
        s->glu(gate, up, n, list ? up : p->neuron + row + first);
        if (list) scatter(list + first, n, from, to, up, p->neuron + row);
        if (!p->gate_every || p->pos[first_token + t] % p->gate_every) continue;
        if (list) scatter(list + first, n, from, to, gate, p->gate + row);
        else memcpy(p->gate + row + first, gate, (size_t)n * sizeof *gate);
    }
}

/* ---- attention ---------------------------------------------------------------------------------------------- */

/* First token of the next block: tokens of one sequence, as many as share an attention job. */
static int block_end(const dw_pass *p, int first, int most) {
    int end = first + 1;
    while (end < p->n_tokens && end - first < most && p->seq[end] == p->seq[first]) end++;
    return end;
}

static void attend(dw_pass *p, int l, int ith, int n_threads) {
    const dw_step s = begin(p, ith, n_threads);
    const dw_layer *w = &p->net->layer[l];
    const bool few = is_few(p, p->n_tokens);
    const int n = p->net->hp.head_dim, n_group = w->n_head / w->n_head_kv;
    const int most = few ? 1 : n_group < DW_QUERY_BLOCK ? DW_QUERY_BLOCK / n_group : 1;
    const size_t element = p->cache.type == DW_KV_CACHE_F32 ? sizeof(float) : sizeof(uint16_t);
    int n_blocks = 0;
    for (int t = 0; t < p->n_tokens; t = block_end(p, t, most)) n_blocks++;

    dw_pieces pieces = dw_pieces_begin(&s, n_blocks * w->n_head_kv, false);
    for (int i; (i = dw_pieces_next(&s, &pieces)) >= 0;) {
        const int head = i % w->n_head_kv, block = n_blocks - 1 - i / w->n_head_kv; // the longest first
        int first = 0;
        for (int b = 0; b < block; b++) first = block_end(p, first, most);
        const size_t at = cache_at(p, l, p->seq[first], head, 0), ld = (size_t)w->n_head * (size_t)n;
        const size_t q = (size_t)first * ld + (size_t)(head * n_group) * (size_t)n;
        const dw_attend_job job = {.type = p->cache.type, .k = (const uint8_t *)p->cache.k[l] + at * element,
                                   .v = (const uint8_t *)p->cache.v[l] + at * element, .head_dim = n, .n_group = n_group,
                                   .n_tokens = block_end(p, first, most) - first, .pos = p->pos + first, .q = p->q + q,
                                   .mix = p->mix + q, .ld = ld, .scale = p->net->hp.attn_scale, .scratch = s.kernel};
        if (few) s.vec->attend_token(&job);
        else s.vec->attend(&job);
    }
}

/* ---- the table ---------------------------------------------------------------------------------------------- */

static void qkv(dw_pass *p, int l, int ith, int n_threads) {
    const dw_step s = begin(p, ith, n_threads);
    if (is_few(p, p->n_tokens)) dw_few_qkv(&s, l);
    else dw_many_qkv(&s, l);
}

static void attn_out(dw_pass *p, int l, int ith, int n_threads) {
    const dw_step s = begin(p, ith, n_threads);
    if (is_few(p, p->n_tokens)) dw_few_attn_out(&s, l);
    else dw_many_attn_out(&s, l);
}

static void ffn_neurons(dw_pass *p, int l, int ith, int n_threads) {
    const dw_step s = begin(p, ith, n_threads);
    const bool few = is_few(p, p->n_tokens);
    if (few && dw_is_gated(p, l)) dw_few_gated_neurons(&s, l);
    else if (few) dw_few_ffn_neurons(&s, l);
    else dw_many_ffn_neurons(&s, l);
}

static void ffn_down(dw_pass *p, int l, int ith, int n_threads) {
    const dw_step s = begin(p, ith, n_threads);
    const bool few = is_few(p, p->n_tokens);
    if (dw_is_gated(p, l)) (few ? dw_few_gated_down : dw_many_gated_down)(&s, l);
    else (few ? dw_few_ffn_down : dw_many_ffn_down)(&s, l);
}

static void head_norm(dw_pass *p, const float *x, float *hidden, int ith, int n_threads) {
    const dw_step s = begin(p, ith, n_threads);
    s.vec->norm(x, dw_floats(&p->net->output_norm), p->net->hp.n_embd, p->net->hp.norm_eps, hidden);
}

static void logits(dw_pass *p, const float *hidden, int n, float *out, int ith, int n_threads) {
    const dw_step s = begin(p, ith, n_threads);
    if (is_few(p, n)) dw_few_logits(&s, hidden, n, out);
    else dw_many_logits(&s, hidden, n, out);
}

static void logprobs(dw_pass *p, const float *hidden, int n, const int32_t *target, double *logprob, int ith, int n_threads) {
    const dw_step s = begin(p, ith, n_threads);
    dw_many_logprobs(&s, hidden, n, target, logprob);
}

const dw_backend dw_backend_cpu = {
    .name = "cpu",
    .scratch_bytes = scratch_bytes,
    .embed = embed,
    .qkv = qkv,
    .attend = attend,
    .attn_out = attn_out,
    .ffn_neurons = ffn_neurons,
    .ffn_down = ffn_down,
    .head_norm = head_norm,
    .logits = logits,
    .logprobs = logprobs,
};
