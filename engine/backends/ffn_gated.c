/* ffn_gated.c - the operator for gated layers: closed neurons are skipped where few tokens are computed.
 *
 * Each thread walks over its neurons: it computes the gates of up to DW_FEW_RUN pieces, then tests them.  When a block of
 * open neurons is full and another one comes, or at the end, it computes their ups and adds their down rows to its sum.
 * With a predictor the scores come before the walk, and only the gates of open neurons are computed.  The only barrier
 * is after a predictor's hidden values.  Rows of up and down of closed neurons are not read.
 *
 * With several tokens a neuron is computed if it is open for any of them; for the others it adds zero. */
#include "backends/ffn_gated.h"
#include "backends/backend_ref.h"

#include <string.h>

/* ---- memory --------------------------------------------------------------------------------------------------- */

void dw_gated_lay_out(dw_pass *p, dw_layout *a, const dw_session_options *o) {
    const dw_gate_sizes most = dw_gate_sizes_of(p->net);
    const size_t rows = (size_t)p->n_batch, rank = (size_t)most.rank, n_groups = (size_t)most.n_groups;
    const size_t n_sums = (size_t)(p->n_threads + DW_TAIL_PIECES) * DW_DOT_MAX_COLS;
    dw_gated *g = &((dw_cpu *)p->own)->gated;
    if (o->select == DW_SELECT_DENSE || !most.n_ff) return;
    for (int i = 0; i < 2; i++) g->hidden[i] = dw_layout_take(a, rows * rank, sizeof(float));
    g->open = dw_layout_take(a, rows, n_groups);
    g->packed = dw_layout_take(a, rank ? dw_gemm_pack_bytes(p->n_batch, most.rank) : 0, 1);
    g->score = dw_layout_take(a, rank ? DW_DOT_MAX_COLS * n_groups : 0, sizeof(float));
    g->sum = dw_layout_take(a, n_sums * (size_t)p->net->hp.n_embd, sizeof(float));
}

/* ---- few tokens: parts that masked and gathered share --------------------------------------------------------- */

/* Turns a token's products with up (with a predictor also with gate) into values a of the listed neurons, in up. */
static void finish_token(const dw_walk *k, int token, const int32_t *list, int n, float *gate, float *up) {
    const dw_pass *p = k->s->p;
    const uint8_t *open = dw_walk_flags(k, token);
    const bool is_only = p->n_tokens == 1; // then every listed neuron is open
    float *gates = p->gate + dw_walk_row(k, token), *neurons = p->neuron + dw_walk_row(k, token);
    dw_add_listed(&k->w->up_bias, list, n, up);
    if (k->predicted) {
        dw_add_listed(&k->w->gate_bias, list, n, gate);
        dw_glu(k->s, gate, up, n, up);
    }
    for (int i = 0; i < n; i++) {
        const int j = list[i];
        if (!is_only && !open[j / k->w->sparse.group]) {
            up[i] = 0;
            continue;
        }
        if (k->predicted) gates[j] = gate[i];
        else up[i] *= gates[j];
        neurons[j] = up[i];
    }
}

void dw_walk_count_bytes(dw_walk *k, int n) {
    const size_t gate = k->predicted ? dw_tensor_row_bytes(&k->gate) : 0; // otherwise all gates are read
    k->count->n_bytes += (uint64_t)n * (gate + dw_tensor_row_bytes(&k->up) + dw_tensor_row_bytes(&k->down));
}

void dw_walk_add(dw_walk *k, const int32_t *neuron, dw_rows rows) {
    const int n = rows.n, n_tokens = k->h->n_cols, n_embd = k->s->p->net->hp.n_embd;
    const size_t row_bytes = dw_tensor_row_bytes(&k->down);
    const uint8_t *down = k->down.data + (rows.list ? 0 : (size_t)rows.first * row_bytes);
    float gate[DW_DOT_MAX_COLS * DW_WALK_BLOCK], up[DW_DOT_MAX_COLS * DW_WALK_BLOCK];
    if (!n) return;
    dw_axpy_prefetch(k->axpy, down, row_bytes, rows.list, n);
    if (k->predicted) dw_dot_rows(k->h, &k->gate, rows, gate, DW_WALK_BLOCK);
    dw_dot_rows(k->h, &k->up, rows, up, DW_WALK_BLOCK);
    for (int t = 0; t < n_tokens; t++) finish_token(k, t, neuron, n, gate + t * DW_WALK_BLOCK, up + t * DW_WALK_BLOCK);
    k->axpy->rows(&(dw_axpy_job){.w = down,
                                 .row_bytes = row_bytes,
                                 .row = rows.list,
                                 .n_rows = n,
                                 .n = n_embd,
                                 .a = up,
                                 .a_stride = DW_WALK_BLOCK,
                                 .n_cols = n_tokens,
                                 .y = k->sum,
                                 .y_stride = (size_t)n_embd});
    k->count->n_computed += (uint64_t)n;
    dw_walk_count_bytes(k, n);
}

void dw_walk_gates(dw_walk *k, int first, int n) {
    const dw_pass *p = k->s->p;
    const float *bias = dw_floats(&k->w->gate_bias);
    float *gate = p->gate + first;
    dw_dot_rows(k->h, &k->w->gate, (dw_rows){NULL, first, n}, gate, (size_t)k->w->n_ff);
    for (int t = 0; t < p->n_tokens; t++) {
        float *row = gate + dw_walk_row(k, t);
        if (bias) k->s->vec->add(row, bias + first, NULL, n);
        dw_glu(k->s, row, row, n, p->neuron + dw_walk_row(k, t) + first); // pass->neuron is overwritten later
    }
    if (!k->predicted) k->count->n_bytes += (uint64_t)n * dw_tensor_row_bytes(&k->w->gate);
}

void dw_walk_scores(dw_walk *k, int first, int end) {
    const dw_layer_gate *g = &k->w->sparse;
    const float *bias = dw_floats(&g->pred_b_bias);
    const int n_tokens = k->s->p->n_tokens, rank = (int)g->pred_b.ne[0];
    uint8_t *scratch = k->s->scratch + dw_few_scratch_bytes(k->s->p->net->hp.n_embd); // after the packed h
    dw_vectors z = dw_vectors_of(k->s, scratch, k->s->gated->hidden[k->l % 2], n_tokens, rank);
    dw_dot_rows(&z, &g->pred_b, (dw_rows){NULL, first, end - first}, k->s->gated->score + first, (size_t)k->n_groups);
    for (int t = 0; t < n_tokens; t++)
        for (int i = first; i < end; i++)
            dw_walk_flags(k, t)[i] = dw_score_opens(k->s->gated->score[t * k->n_groups + i] + bias[i]);
    k->count->n_bytes += (uint64_t)(end - first) * dw_tensor_row_bytes(&g->pred_b);
}

void dw_walk_decide(dw_walk *k, int first, int end) {
    for (int t = 0; t < k->s->p->n_tokens; t++)
        k->count->n_open += (uint64_t)dw_decide(k->s->p, k->l, t, first, end, dw_walk_flags(k, t));
}

void dw_walk_clear(const dw_walk *k, int first, int end) {
    const dw_pass *p = k->s->p;
    const size_t n_bytes = (size_t)(end - first) * sizeof(float);
    for (int t = 0; t < p->n_tokens; t++) {
        memset(p->neuron + dw_walk_row(k, t) + first, 0, n_bytes);
        if (k->predicted) memset(p->gate + dw_walk_row(k, t) + first, 0, n_bytes);
    }
}

bool dw_walk_is_open(const dw_walk *k, int group) {
    for (int t = 0; t < k->s->p->n_tokens; t++)
        if (dw_walk_flags(k, t)[group]) return true;
    return false;
}

void dw_walk_layer(dw_pass *p, int l, int ith, void (*neurons)(dw_walk *k)) {
    const dw_step *s = dw_step_of(p, ith);
    const dw_layer *w = &p->net->layer[l];
    dw_vectors h = dw_normed(s, &w->ffn_norm);
    dw_walk k = {.s = s, .w = w, .l = l, .n_groups = dw_n_groups(w), .predicted = w->sparse.pred_a.name, .h = &h,
                 .gate = w->gate, .up = w->up, .down = w->sparse.down_t,
                 .axpy = dw_axpy_find(s->level, w->sparse.down_t.type->id), .count = dw_coverage_of(p, l, ith)};
    if (p->layer[l].needs_hidden) {
        dw_few_hidden(s, l, &h);
        dw_pool_barrier(p->pool);
    }
    neurons(&k);
    if (p->layer[l].gives_hidden) dw_few_hidden(s, l + 1, &h);
    if (ith) return;
    k.count->n_tokens += (uint64_t)p->n_tokens;
    k.count->n_few++;
}

/* Every thread does its columns. */
void dw_walk_add_sums(const dw_step *s, int l, int n_sums) {
    const dw_pass *p = s->p;
    const float *bias = dw_floats(&p->net->layer[l].down_bias);
    const int n_embd = p->net->hp.n_embd, first = dw_share(n_embd, s->ith, s->n_threads);
    const int n = dw_share(n_embd, s->ith + 1, s->n_threads) - first;
    for (int t = 0; t < p->n_tokens; t++)
        for (int i = 0; i < n_sums; i++)
            s->vec->add(p->x + t * n_embd + first, dw_walk_sum(s, i) + t * n_embd + first,
                        i == 0 && bias ? bias + first : NULL, n);
}

/* ---- few tokens: the walk ------------------------------------------------------------------------------------- */

/* Nine tenths of the pieces are shares, one for each of the pool's threads; others walk those of absent threads.  The
 * rest goes to whoever is ready. */
typedef struct shares {
    int rows, n_pieces; // rows of a piece
    int own, n_tail;    // pieces of a share; number of parts of the rest
} shares;

static shares shares_of(const dw_step *s, const dw_layer *w) {
    const int rows = dw_walk_piece(w->sparse.group), n = (w->n_ff + rows - 1) / rows;
    const int own = n * 9 / 10 / s->n_shares, rest = n - own * s->n_shares;
    return (shares){rows, n, own, dw_smaller(rest, dw_smaller(4 * s->n_shares, DW_TAIL_PIECES))};
}

static void add_block(dw_walk *k) {
    dw_walk_add(k, k->block, (dw_rows){k->block, 0, k->n_block});
    k->n_block = 0;
}

/* Prefetches what is read first of the block's rows, if they are consecutive.  (results/kernels.md) */
static void prefetch_block(const dw_walk *k) {
    const dw_tensor *w = k->predicted ? &k->gate : &k->up;
    const size_t row_bytes = dw_tensor_row_bytes(w), n_bytes = row_bytes * DW_WALK_BLOCK;
    const dw_net *net = k->s->p->net;
    const dw_row_kind kind = {w->type->id, net->hp.n_embd, net->from_memory};
    const size_t ahead = (size_t)dw_reach_of(k->s->level, kind).second;
    if (k->block[DW_WALK_BLOCK - 1] - k->block[0] != DW_WALK_BLOCK - 1) return;
    dw_prefetch(w->data + (size_t)k->block[0] * row_bytes, n_bytes < ahead ? n_bytes : ahead);
}

/* Adds neurons first .. end - 1 to the block.  A full block waits for the next open neuron: at the end of a run gates are
 * computed meanwhile, and the beginning of its ups arrives. */
static void add_neurons(dw_walk *k, int first, int end) {
    while (first < end) {
        if (k->n_block == DW_WALK_BLOCK) add_block(k);
        const int n = dw_smaller(end - first, DW_WALK_BLOCK - k->n_block);
        for (int i = 0; i < n; i++) k->block[k->n_block + i] = first + i;
        k->n_block += n, first += n;
        if (k->n_block == DW_WALK_BLOCK) prefetch_block(k);
    }
}

/* Adds the open ones of groups first .. end - 1, which are decided. */
static void add_open_groups(dw_walk *k, int first, int end) {
    const int group = k->w->sparse.group;
    for (int i = first; i < end; i++)
        if (dw_walk_is_open(k, i)) add_neurons(k, i * group, dw_smaller((i + 1) * group, k->w->n_ff));
}

/* Walks over pieces first_piece .. end_piece - 1 and adds into `sum`, which begins at zero. */
static void walk(dw_walk *k, const shares *of, int first_piece, int end_piece, float *sum) {
    const dw_pass *p = k->s->p;
    const int group = k->w->sparse.group, end = dw_smaller(end_piece * of->rows, k->w->n_ff);
    k->sum = sum;
    memset(sum, 0, (size_t)p->n_tokens * (size_t)p->net->hp.n_embd * sizeof *sum);
    if (k->predicted && end_piece > first_piece)
        dw_walk_scores(k, first_piece * of->rows / group, (end + group - 1) / group);
    // Zen 5 reads long calls faster; others were not measured.
    const int most = k->predicted ? of->rows : DW_FEW_RUN * of->rows;
    for (int first = first_piece * of->rows; first < end; first += most) {
        const int n = dw_smaller(most, end - first), first_group = first / group,
                  end_group = (first + n + group - 1) / group;
        if (!k->predicted) dw_walk_gates(k, first, n);
        dw_walk_clear(k, first, first + n);
        dw_walk_decide(k, first_group, end_group);
        add_open_groups(k, first_group, end_group);
    }
    add_block(k);
}

static void walk_shares(dw_walk *k) {
    const dw_step *s = k->s;
    const shares of = shares_of(s, k->w);
    const int tail = of.own * s->n_shares, n = of.n_pieces - tail;
    for (int i = s->ith; i < s->n_shares; i += s->n_threads)
        walk(k, &of, of.own * i, of.own * (i + 1), dw_walk_sum(s, i));
    dw_pieces pieces = dw_pieces_begin(s, of.n_tail);
    for (int i; (i = dw_pieces_next(s, &pieces)) >= 0;)
        walk(k, &of, tail + n * i / of.n_tail, tail + n * (i + 1) / of.n_tail, dw_walk_sum(s, s->n_shares + i));
}

static void few_neurons(dw_pass *p, int l, int ith) { dw_walk_layer(p, l, ith, walk_shares); }

static void few_down(dw_pass *p, int l, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    dw_walk_add_sums(s, l, s->n_shares + shares_of(s, &p->net->layer[l]).n_tail);
}

/* ---- many tokens ---------------------------------------------------------------------------------------------- */

static void to_flags(const dw_step *s, int l, dw_token_group g, int first, int n) {
    const dw_layer *w = &s->p->net->layer[l];
    const float *bias = dw_floats(&w->sparse.pred_b_bias) + first;
    const size_t n_all = (size_t)dw_n_groups(w);
    uint8_t *open = s->gated->open + (size_t)g.first * n_all + first;
    for (int t = 0; t < g.n; t++)
        for (int i = 0; i < n; i++) open[(size_t)t * n_all + (size_t)i] = dw_score_opens(s->out[t * n + i] + bias[i]);
}

/* Sets the flags of layer l by its predictor's scores. */
static void many_scores(const dw_step *s, int l) {
    const dw_tensor *b = &s->p->net->layer[l].sparse.pred_b;
    const dw_gated *g = s->gated;
    const int rank = (int)b->ne[0];
    const dw_many_input z = {
        s, l, dw_many_pack(s, g->packed, (dw_many_x){g->hidden[l % 2], rank, s->p->n_tokens, rank, false}, &b, 1)};
    dw_many_own_rows(&z, b, g->packed, to_flags);
}

/* pass->gate = act(gate) of a piece for its tokens. */
static void finish_gates(const dw_step *s, int l, dw_token_group g, int first, int n) {
    const dw_layer *w = &s->p->net->layer[l];
    const float *bias = dw_floats(&w->gate_bias);
    for (int t = 0; t < g.n; t++) {
        float *gate = s->out + t * n;
        if (bias) s->vec->add(gate, bias + first, NULL, n);
        dw_glu(s, gate, gate, n, s->out2); // s->out2 is scratch here
        memcpy(s->p->gate + (size_t)(g.first + t) * (size_t)w->n_ff + first, gate, (size_t)n * sizeof *gate);
    }
}

/* a = act(gate) * up for open neurons, 0 for closed ones; with a predictor the gates of closed ones are zero, too. */
static void finish_ups(const dw_step *s, int l, dw_token_group g, int first, int n) {
    const dw_layer *w = &s->p->net->layer[l];
    const float *bias = dw_floats(&w->up_bias);
    const uint8_t *flags = s->gated->open;
    for (int t = 0; t < g.n; t++) {
        const size_t token = (size_t)(g.first + t), row = token * (size_t)w->n_ff + (size_t)first;
        const uint8_t *open = flags + token * (size_t)dw_n_groups(w);
        float *up = s->out2 + t * n, *gate = s->p->gate + row, *neuron = s->p->neuron + row;
        if (bias) s->vec->add(up, bias + first, NULL, n);
        for (int i = 0; i < n; i++) {
            const bool is_open = open[(first + i) / w->sparse.group];
            neuron[i] = is_open ? gate[i] * up[i] : 0;
            if (!is_open && w->sparse.pred_a.name) gate[i] = 0;
        }
    }
}

void dw_many_gated_neurons(dw_pass *p, int l, int ith) {
    const dw_many_input in = dw_many_begin_neurons(p, l, ith);
    const dw_step *s = in.s;
    const dw_layer *w = &p->net->layer[l];
    dw_coverage *counts = dw_coverage_of(p, l, ith);
    dw_neuron_piece k;
    if (p->layer[l].needs_hidden) {
        dw_many_hidden(&in, l);
        dw_pool_barrier(p->pool);
    }
    if (w->sparse.pred_a.name) many_scores(s, l);
    for (dw_neuron_pieces of = dw_neuron_pieces_of(&in, w->n_ff); dw_next_neurons(&in, &of, &k);) {
        dw_many_product(&in, &w->gate, (dw_rows){NULL, k.first, k.n}, k.group, s->out, k.n);
        finish_gates(s, l, k.group, k.first, k.n);
    }
    dw_pool_barrier(p->pool);
    for (int t = ith; t < p->n_tokens; t += p->n_threads) {
        counts->n_open += (uint64_t)dw_decide(p, l, t, 0, dw_n_groups(w),
                                              s->gated->open + (size_t)t * (size_t)dw_n_groups(w));
        counts->n_tokens++;
    }
    dw_pool_barrier(p->pool);
    for (dw_neuron_pieces of = dw_neuron_pieces_of(&in, w->n_ff); dw_next_neurons(&in, &of, &k);) {
        dw_many_product(&in, &w->up, (dw_rows){NULL, k.first, k.n}, k.group, s->out2, k.n);
        finish_ups(s, l, k.group, k.first, k.n);
    }
    dw_many_end_neurons(&in, w->n_ff);
}

/* x += sum over neurons j of a_j d_j + bias; d_j is row j of the transposed down. */
void dw_many_gated_down(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    dw_many_add_turned(dw_step_of(p, ith), p->neuron, w->n_ff, &w->sparse.down_t, &w->down_bias);
}

/* ---- ref ------------------------------------------------------------------------------------------------------ */

typedef struct flag_sink {
    uint8_t *open;
    size_t n_groups;
} flag_sink;

static void ref_flags(void *ctx, size_t row, int token, double score) {
    const flag_sink *f = ctx;
    f->open[(size_t)token * f->n_groups + row] = dw_score_opens(score);
}

/* Zeros the gates of closed groups: with a predictor they are not computed. */
static void close_gates(float *gate, const uint8_t *open, int n_ff, int group) {
    for (int j = 0; j < n_ff; j++)
        if (!open[j / group]) gate[j] = 0;
}

typedef struct gate_sink {
    dw_act act;
    float *gate, *neuron;
    const uint8_t *open; // flags
    size_t n_ff, n_groups, group;
} gate_sink;

static void ref_gate(void *ctx, size_t row, int token, double sum) {
    const gate_sink *f = ctx;
    f->gate[(size_t)token * f->n_ff + row] = (float)dw_ref_act(f->act, sum);
}

static void ref_open_neuron(void *ctx, size_t row, int token, double sum) {
    const gate_sink *f = ctx;
    const size_t i = (size_t)token * f->n_ff + row;
    f->neuron[i] = f->open[(size_t)token * f->n_groups + row / f->group] ? (float)(f->gate[i] * sum) : 0;
}

/* All gates, a decision for each token, up of the open groups.  With a predictor only gates of open groups are kept. */
void dw_ref_gated_neurons(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    const dw_layer_gate *g = &w->sparse;
    const dw_ref_scratch *s = dw_ref_scratch_of(p, ith);
    const size_t n_ff = (size_t)w->n_ff, n_groups = (size_t)dw_n_groups(w);
    const dw_ref_rows rows = dw_ref_share(p, n_ff, ith);
    dw_coverage *count = dw_coverage_of(p, l, ith);
    gate_sink f = {.act = p->net->act,
                   .gate = p->gate,
                   .neuron = p->neuron,
                   .n_ff = n_ff,
                   .open = s->open,
                   .n_groups = n_groups,
                   .group = (size_t)g->group};
    dw_ref_norm_tokens(p, &w->ffn_norm, ith);
    if (p->layer[l].needs_hidden) {
        dw_ref_hidden(p, l, ith);
        dw_pool_barrier(p->pool);
    }
    if (g->pred_a.name)
        dw_ref_product(s, &(dw_ref_job){.w = &g->pred_b,
                                        .bias = &g->pred_b_bias,
                                        .rows = dw_ref_share(p, n_groups, ith),
                                        .x = s->hidden[l % 2],
                                        .n_tokens = p->n_tokens,
                                        .out = ref_flags,
                                        .ctx = &(flag_sink){s->open, n_groups}});
    dw_ref_product(s, &(dw_ref_job){.w = &w->gate,
                                    .bias = &w->gate_bias,
                                    .rows = rows,
                                    .x = p->h,
                                    .n_tokens = p->n_tokens,
                                    .out = ref_gate,
                                    .ctx = &f});
    dw_pool_barrier(p->pool);
    for (int t = ith; t < p->n_tokens; t += p->n_threads) {
        uint8_t *open = s->open + (size_t)t * n_groups;
        count->n_open += (uint64_t)dw_decide(p, l, t, 0, (int)n_groups, open);
        count->n_tokens++;
        if (g->pred_a.name) close_gates(p->gate + (size_t)t * n_ff, open, w->n_ff, g->group);
    }
    dw_pool_barrier(p->pool);
    dw_ref_product(s, &(dw_ref_job){.w = &w->up,
                                    .bias = &w->up_bias,
                                    .rows = rows,
                                    .x = p->h,
                                    .n_tokens = p->n_tokens,
                                    .out = ref_open_neuron,
                                    .ctx = &f});
    if (p->layer[l].gives_hidden) dw_ref_hidden(p, l + 1, ith);
}

/* x += sum over neurons j of a_j d_j, for the columns of this thread: whole blocks of the rows d_j. */
void dw_ref_gated_down(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    const dw_tensor *d = &w->sparse.down_t;
    const dw_ref_scratch *s = dw_ref_scratch_of(p, ith);
    const size_t n = d->ne[0], n_ff = (size_t)w->n_ff, block = (size_t)d->type->block;
    const dw_ref_rows columns = dw_ref_share(p, n / block, ith);
    const size_t first = columns.first * block, n_here = columns.end * block - first;
    for (int t0 = 0; t0 < p->n_tokens; t0 += DW_REF_TILE) {
        const int width = p->n_tokens - t0 < DW_REF_TILE ? p->n_tokens - t0 : DW_REF_TILE;
        memset(s->xt, 0, (size_t)width * n_here * sizeof *s->xt);
        for (size_t j = 0; j < n_ff; j++) {
            d->type->decode(d->data + j * dw_tensor_row_bytes(d) + dw_qtype_row_bytes(d->type, first), s->rows, n_here);
            for (int t = 0; t < width; t++) {
                const float a = p->neuron[(size_t)(t0 + t) * n_ff + j];
                if (a != 0) dw_ref_accumulate(s->xt + (size_t)t * n_here, (double)a, s->rows, (int)n_here);
            }
        }
        for (int t = 0; t < width; t++)
            for (size_t i = 0; i < n_here; i++) {
                const double bias = w->down_bias.name ? dw_ref_at(&w->down_bias, first + i) : 0;
                p->x[(size_t)(t0 + t) * n + first + i] += (float)(s->xt[(size_t)t * n_here + i] + bias);
            }
    }
}

/* ---- the row -------------------------------------------------------------------------------------------------- */

static bool applies(const dw_ffn_case *c) { return c->is_gated; }

const dw_ffn_op dw_ffn_gated = {
    .name = "gated",
    .applies = applies,
    .is_gated = true,
    .by = {[DW_BY_REF] = {NULL, dw_ref_gated_neurons, dw_ref_gated_down},
           [DW_BY_FEW] = {dw_gated_lay_out, few_neurons, few_down},
           [DW_BY_MANY] = {NULL, dw_many_gated_neurons, dw_many_gated_down}},
};
