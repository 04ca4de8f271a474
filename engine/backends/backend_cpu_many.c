/* backend_cpu_many.c - steps for many tokens and for exact passes: tokens packed once, then products by pieces of rows.
 *
 * A piece is a range of rows times a group of up to 512 tokens.  The sums of a product do not depend on the cut into
 * pieces, and everything after them works on single tokens, so the results do not depend on it either. */
#include "backends/backend_cpu.h"

#include <math.h>
#include <string.h>

/* ---- pieces ------------------------------------------------------------------------------------------------- */

/* Rows of a piece: a multiple of `unit`, at most 256, such that every thread gets a few pieces. */
static int rows_of_piece(const dw_step *s, int n_rows, int unit) {
    const int wanted = dw_smaller(DW_MANY_ROWS, n_rows / (4 * s->n_threads));
    return wanted > unit ? wanted / unit * unit : unit;
}

static int count(int n, int size) { return (n + size - 1) / size; }
static int n_groups(int n_tokens) { return count(n_tokens, DW_GEMM_TOKENS); }

typedef struct group { // of tokens
    int first, n;
    const uint8_t *packed;
} group;

static group group_in(const uint8_t *packed, int i, int n_tokens, int n) {
    const int first = i * DW_GEMM_TOKENS;
    return (group){first, dw_smaller(DW_GEMM_TOKENS, n_tokens - first), packed + dw_gemm_pack_bytes(first, n)};
}

static group group_of(const dw_step *s, int i, int n_tokens, int n) { return group_in(s->shared, i, n_tokens, n); }

static dw_gemm_job job_of(const dw_step *s, dw_gemm_form form, const dw_tensor *w, group g) {
    return (dw_gemm_job){.level = s->level, .form = form, .w = w, .packed = g.packed, .n_tokens = g.n, .scratch = s->kernel};
}

static void rows_into(dw_gemm_job job, const int32_t *list, size_t first, int n_rows, float *y, size_t ldy) {
    job.list = list, job.first = first, job.n_rows = n_rows, job.y = y, job.ldy = ldy;
    dw_gemm_rows(&job);
}

/* Packs x (n_tokens, n), rows ldx apart, for the matrices; all groups are packed after the barrier. */
static dw_gemm_form pack_into(const dw_step *s, uint8_t *packed, const float *x, int ldx, int n_tokens, int n, const dw_tensor *const *w,
                              int n_matrices) {
    dw_gemm_form form = 0;
    for (int i = 0; i < n_matrices; i++) {
        const dw_gemm_form f = dw_gemm_form_of(s->level, w[i]->type, s->p->precision);
        if (f > form) form = f;
    }
    for (int t = 0; t < n_tokens; t += DW_GEMM_TOKENS)
        dw_gemm_pack(s->level, form, x + (size_t)t * (size_t)ldx, (size_t)ldx, dw_smaller(DW_GEMM_TOKENS, n_tokens - t), n,
                     packed + dw_gemm_pack_bytes(t, n), s->ith, s->n_threads);
    dw_pool_barrier(s->p->pool);
    return form;
}

static dw_gemm_form pack(const dw_step *s, const float *x, int n_tokens, const dw_tensor *const *w, int n_matrices) {
    const int n = (int)w[0]->ne[0];
    return pack_into(s, s->shared, x, n, n_tokens, n, w, n_matrices);
}

static void norm_tokens(const dw_step *s, const dw_tensor *norm) {
    const dw_pass *p = s->p;
    const size_t n = (size_t)p->net->hp.n_embd;
    for (int t = s->ith; t < p->n_tokens; t += s->n_threads)
        s->vec->norm(p->x + (size_t)t * n, dw_floats(norm), (int)n, p->net->hp.norm_eps, p->h + (size_t)t * n);
    dw_pool_barrier(p->pool);
}

/* ---- attention's matrices ------------------------------------------------------------------------------------- */

static void qkv(dw_pass *p, int l, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    const dw_layer *w = &p->net->layer[l];
    const dw_tensor *const matrix[] = {&w->q, &w->k, &w->v}; // indexed by dw_head_kind
    const int n = p->net->hp.head_dim, n_heads[] = {w->n_head, w->n_head_kv, w->n_head_kv};
    const int rows = rows_of_piece(s, (w->n_head + 2 * w->n_head_kv) * n, n), heads = rows / n;
    const int n_q = count(w->n_head, heads), n_kv = count(w->n_head_kv, heads), n_pieces = n_q + 2 * n_kv;
    norm_tokens(s, &w->attn_norm);
    const dw_gemm_form form = pack(s, p->h, p->n_tokens, matrix, 3);

    dw_pieces pieces = dw_pieces_begin(s, n_pieces * n_groups(p->n_tokens), false);
    for (int i; (i = dw_pieces_next(s, &pieces)) >= 0;) {
        const group g = group_of(s, i / n_pieces, p->n_tokens, p->net->hp.n_embd);
        const int piece = i % n_pieces;
        const dw_head_kind kind = piece < n_q ? DW_HEAD_Q : piece < n_q + n_kv ? DW_HEAD_K : DW_HEAD_V;
        const int first = (piece - (kind == DW_HEAD_Q ? 0 : kind == DW_HEAD_K ? n_q : n_q + n_kv)) * heads;
        const int here = dw_smaller(heads, n_heads[kind] - first), n_rows = here * n;
        rows_into(job_of(s, form, matrix[kind], g), NULL, (size_t)(first * n), n_rows, s->gate, (size_t)n_rows);
        for (int t = 0; t < g.n; t++)
            for (int h = 0; h < here; h++) dw_finish_head(s, l, kind, first + h, g.first + t, s->gate + (size_t)t * (size_t)n_rows + h * n);
    }
}

/* x += W v + bias for v (n_tokens, columns of W), rows of v ldv apart. */
static void add_product(const dw_step *s, const float *v, int ldv, const dw_tensor *w, const dw_tensor *bias) {
    const dw_pass *p = s->p;
    const int n_rows = (int)w->ne[1], rows = rows_of_piece(s, n_rows, 32), n_pieces = count(n_rows, rows);
    const float *b = dw_floats(bias);
    const dw_gemm_form form = pack_into(s, s->shared, v, ldv, p->n_tokens, (int)w->ne[0], &w, 1);
    dw_pieces pieces = dw_pieces_begin(s, n_pieces * n_groups(p->n_tokens), false);
    for (int i; (i = dw_pieces_next(s, &pieces)) >= 0;) {
        const group g = group_of(s, i / n_pieces, p->n_tokens, (int)w->ne[0]);
        const int first = i % n_pieces * rows, n = dw_smaller(rows, n_rows - first);
        rows_into(job_of(s, form, w, g), NULL, (size_t)first, n, s->gate, (size_t)n);
        for (int t = 0; t < g.n; t++)
            s->vec->add(p->x + (size_t)(g.first + t) * (size_t)n_rows + first, s->gate + (size_t)t * (size_t)n, b ? b + first : NULL, n);
    }
}

static void attend(dw_pass *p, int l, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    const int n_group = p->net->layer[l].n_head / p->net->layer[l].n_head_kv;
    dw_cpu_attend(s, l, n_group < DW_QUERY_BLOCK ? DW_QUERY_BLOCK / n_group : 1, s->vec->attend);
}

static void attn_out(dw_pass *p, int l, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    const dw_layer *w = &p->net->layer[l];
    add_product(s, p->mix, (int)w->o.ne[0], &w->o, &w->o_bias);
}

/* ---- FFN ------------------------------------------------------------------------------------------------------ */

/* Rows first .. end - 1 of w times all packed tokens, 256 rows at a time, on the calling thread; `use` receives each
 * product. */
typedef void use_rows(const dw_step *s, int l, group g, int first, int n_rows);

static void own_rows(const dw_step *s, int l, dw_gemm_form form, const dw_tensor *w, const uint8_t *packed, use_rows *use) {
    const int n_tokens = s->p->n_tokens, end = dw_share((int)w->ne[1], s->ith + 1, s->n_threads);
    for (int i = 0; i < n_groups(n_tokens); i++) {
        const group g = group_in(packed, i, n_tokens, (int)w->ne[0]);
        for (int first = dw_share((int)w->ne[1], s->ith, s->n_threads); first < end; first += DW_MANY_ROWS) {
            const int n = dw_smaller(DW_MANY_ROWS, end - first);
            rows_into(job_of(s, form, w, g), NULL, (size_t)first, n, s->gate, (size_t)n);
            use(s, l, g, first, n);
        }
    }
}

static void to_hidden(const dw_step *s, int l, group g, int first, int n) {
    const dw_layer_gate *gate = &s->p->net->layer[l].sparse;
    const float *bias = dw_floats(&gate->pred_a_bias) + first;
    const size_t rank = gate->pred_a.ne[1];
    float *z = s->gated->hidden[l % 2] + (size_t)g.first * rank + first;
    for (int t = 0; t < g.n; t++)
        for (int i = 0; i < n; i++) {
            const float value = s->gate[t * n + i] + bias[i];
            z[(size_t)t * rank + (size_t)i] = value > 0 ? value : 0;
        }
}

static void to_flags(const dw_step *s, int l, group g, int first, int n) {
    const dw_layer *w = &s->p->net->layer[l];
    const float *bias = dw_floats(&w->sparse.pred_b_bias) + first;
    const size_t n_all = (size_t)dw_n_groups(w);
    uint8_t *open = s->gated->open + (size_t)g.first * n_all + first;
    for (int t = 0; t < g.n; t++)
        for (int i = 0; i < n; i++) open[(size_t)t * n_all + (size_t)i] = s->gate[t * n + i] + bias[i] >= 0;
}

/* Computes z of layer l's predictor from the packed h. */
static void compute_hidden(const dw_step *s, int l, dw_gemm_form form) {
    own_rows(s, l, form, &s->p->net->layer[l].sparse.pred_a, s->shared, to_hidden);
}

/* Sets the flags of layer l by its predictor's scores. */
static void compute_scores(const dw_step *s, int l) {
    const dw_tensor *b = &s->p->net->layer[l].sparse.pred_b;
    const dw_gated *g = s->gated;
    const dw_gemm_form form = pack_into(s, g->packed, g->hidden[l % 2], (int)b->ne[0], s->p->n_tokens, (int)b->ne[0], &b, 1);
    own_rows(s, l, form, b, g->packed, to_flags);
}

/* pass->gate = act(gate) of a piece for its tokens. */
static void finish_gates(const dw_step *s, int l, group g, int first, int n) {
    const dw_layer *w = &s->p->net->layer[l];
    const float *bias = dw_floats(&w->gate_bias);
    for (int t = 0; t < g.n; t++) {
        float *gate = s->gate + t * n;
        if (bias) s->vec->add(gate, bias + first, NULL, n);
        s->glu(gate, gate, n, s->up); // s->up is scratch here
        memcpy(s->p->gate + (size_t)(g.first + t) * (size_t)w->n_ff + first, gate, (size_t)n * sizeof *gate);
    }
}

/* a = act(gate) * up for open neurons, 0 for closed ones; with a predictor the gates of closed ones are zero, too. */
static void finish_ups(const dw_step *s, int l, group g, int first, int n) {
    const dw_layer *w = &s->p->net->layer[l];
    const float *bias = dw_floats(&w->up_bias);
    const uint8_t *flags = s->gated->open;
    for (int t = 0; t < g.n; t++) {
        const size_t token = (size_t)(g.first + t), row = token * (size_t)w->n_ff + (size_t)first;
        const uint8_t *open = flags + token * (size_t)dw_n_groups(w);
        float *up = s->up + t * n, *gate = s->p->gate + row, *neuron = s->p->neuron + row;
        if (bias) s->vec->add(up, bias + first, NULL, n);
        for (int i = 0; i < n; i++) {
            const bool is_open = open[(first + i) / w->sparse.group];
            neuron[i] = is_open ? gate[i] * up[i] : 0;
            if (!is_open && w->sparse.pred_a.name) gate[i] = 0;
        }
    }
}

/* A neurons step begins with norm and packing for all matrices that read the FFN's input, the next predictor's too. */
typedef struct ffn_input {
    const dw_step *s;
    int l;
    dw_gemm_form form;
} ffn_input;

static ffn_input begin_neurons(dw_pass *p, int l, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    const dw_layer *w = &p->net->layer[l];
    const dw_tensor *matrix[5] = {&w->gate, &w->up};
    int n_matrices = 2;
    if (w->n_cold) matrix[n_matrices++] = &w->gate_cold, matrix[n_matrices++] = &w->up_cold; // never in a gated model
    if (p->layer[l].needs_hidden) matrix[n_matrices++] = &w->sparse.pred_a;
    if (p->layer[l].gives_hidden) matrix[n_matrices++] = &p->net->layer[l + 1].sparse.pred_a;
    norm_tokens(s, &w->ffn_norm);
    return (ffn_input){s, l, pack(s, p->h, p->n_tokens, matrix, n_matrices)};
}

static void end_neurons(const ffn_input *in, int n_counted) {
    const dw_bound *b = &in->s->p->layer[in->l];
    if (in->s->ith == 0 && !dw_ffn_is_gated(b->kind)) dw_count_dense(in->s->p, in->l, n_counted, false);
    if (b->gives_hidden) compute_hidden(in->s, in->l + 1, in->form);
}

/* A piece of the neurons times a group of tokens. */
typedef struct neuron_piece {
    int first, n; // neurons
    group g;
} neuron_piece;

typedef struct neuron_pieces {
    dw_pieces pieces;
    int n_all, rows, n_each;
} neuron_pieces;

static neuron_pieces pieces_of(const ffn_input *in, int n_all) {
    const int rows = rows_of_piece(in->s, n_all, 32), n_each = n_all ? count(n_all, rows) : 1; // 1: writes zeros
    return (neuron_pieces){dw_pieces_begin(in->s, n_each * n_groups(in->s->p->n_tokens), false), n_all, rows, n_each};
}

static bool next_piece(const ffn_input *in, neuron_pieces *of, neuron_piece *piece) {
    const dw_pass *p = in->s->p;
    const int i = dw_pieces_next(in->s, &of->pieces);
    if (i < 0) return false;
    const int first = i % of->n_each * of->rows;
    *piece = (neuron_piece){first, dw_smaller(of->rows, of->n_all - first), group_of(in->s, i / of->n_each, p->n_tokens,
                                                            p->net->hp.n_embd)};
    return true;
}

/* y (tokens of the piece, n) = products with n rows of w from `first` on, or with those of a list's entries; y's rows
 * lie ldy apart. */
static void product(const ffn_input *in, const dw_tensor *w, const int32_t *list, int first, int n, group g, float *y, int ldy) {
    rows_into(job_of(in->s, in->form, w, g), list, (size_t)first, n, y, (size_t)ldy);
}

static void gated_neurons(dw_pass *p, int l, int ith) {
    const ffn_input in = begin_neurons(p, l, ith);
    const dw_step *s = in.s;
    const dw_layer *w = &p->net->layer[l];
    dw_coverage *counts = dw_coverage_of(p, l, ith);
    neuron_piece k;
    if (p->layer[l].needs_hidden) {
        compute_hidden(s, l, in.form);
        dw_pool_barrier(p->pool);
    }
    if (w->sparse.pred_a.name) compute_scores(s, l);
    for (neuron_pieces of = pieces_of(&in, w->n_ff); next_piece(&in, &of, &k);) {
        product(&in, &w->gate, NULL, k.first, k.n, k.g, s->gate, k.n);
        finish_gates(s, l, k.g, k.first, k.n);
    }
    dw_pool_barrier(p->pool);
    for (int t = ith; t < p->n_tokens; t += p->n_threads) {
        counts->n_open += (uint64_t)dw_decide(p, l, t, 0, dw_n_groups(w), s->gated->open + (size_t)t * (size_t)dw_n_groups(w));
        counts->n_tokens++;
    }
    dw_pool_barrier(p->pool);
    for (neuron_pieces of = pieces_of(&in, w->n_ff); next_piece(&in, &of, &k);) {
        product(&in, &w->up, NULL, k.first, k.n, k.g, s->up, k.n);
        finish_ups(s, l, k.g, k.first, k.n);
    }
    end_neurons(&in, w->n_ff);
}

static void dense_neurons(dw_pass *p, int l, int ith) {
    const ffn_input in = begin_neurons(p, l, ith);
    const dw_layer *w = &p->net->layer[l];
    neuron_piece k;
    for (neuron_pieces of = pieces_of(&in, w->n_ff); next_piece(&in, &of, &k);) {
        product(&in, &w->gate, NULL, k.first, k.n, k.g, in.s->gate, k.n);
        product(&in, &w->up, NULL, k.first, k.n, k.g, in.s->up, k.n);
        dw_finish_neurons(in.s, l, k.first, k.n, k.g.first, k.g.n);
    }
    end_neurons(&in, w->n_ff);
}

static void listed_neurons(dw_pass *p, int l, int ith) {
    const ffn_input in = begin_neurons(p, l, ith);
    const dw_layer *w = &p->net->layer[l];
    const dw_bound *b = &p->layer[l];
    neuron_piece k;
    for (neuron_pieces of = pieces_of(&in, b->n_list); next_piece(&in, &of, &k);) {
        product(&in, &w->gate, b->list, k.first, k.n, k.g, in.s->gate, k.n);
        product(&in, &w->up, b->list, k.first, k.n, k.g, in.s->up, k.n);
        dw_finish_listed(in.s, l, k.first, k.n, k.g.first, k.g.n);
    }
    end_neurons(&in, b->n_list);
}

/* The same for a matrix in two parts. */
static void product_of_parts(const ffn_input *in, const dw_tensor *hot, const dw_tensor *cold, const neuron_piece *k, float *y) {
    const int here = dw_hot_rows(hot, k->first, k->n);
    if (here) product(in, hot, NULL, k->first, here, k->g, y, k->n);
    if (here < k->n) product(in, cold, NULL, k->first + here - (int)hot->ne[1], k->n - here, k->g, y + here, k->n);
}

static void two_part_neurons(dw_pass *p, int l, int ith) {
    const ffn_input in = begin_neurons(p, l, ith);
    const dw_layer *w = &p->net->layer[l];
    neuron_piece k;
    for (neuron_pieces of = pieces_of(&in, w->n_ff); next_piece(&in, &of, &k);) {
        product_of_parts(&in, &w->gate, &w->gate_cold, &k, in.s->gate);
        product_of_parts(&in, &w->up, &w->up_cold, &k, in.s->up);
        dw_finish_neurons(in.s, l, k.first, k.n, k.g.first, k.g.n);
    }
    end_neurons(&in, w->n_ff);
}

static void down(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    add_product(dw_step_of(p, ith), p->neuron, w->n_ff, &w->down, &w->down_bias);
}

static void two_part_down(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    down(p, l, ith);
    dw_pool_barrier(p->pool);
    add_product(dw_step_of(p, ith), p->neuron + w->down.ne[0], w->n_ff, &w->down_cold, &(dw_tensor){0});
}

/* x += sum over neurons j of a_j d_j + bias; d_j is row j of the transposed down. */
static void gated_down(dw_pass *p, int l, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    const dw_layer *layer = &p->net->layer[l];
    const dw_tensor *w = &layer->sparse.down_t;
    const int block = w->type->block > 32 ? w->type->block : 32;
    const int n_embd = (int)w->ne[0], n_ff = (int)w->ne[1], columns = rows_of_piece(s, n_embd, block), n_pieces = count(n_embd, columns);
    const float *b = dw_floats(&layer->down_bias);
    const dw_gemm_form form = pack_into(s, s->shared, p->neuron, n_ff, p->n_tokens, n_ff, &w, 1);
    dw_pieces pieces = dw_pieces_begin(s, n_pieces * n_groups(p->n_tokens), false);
    for (int i; (i = dw_pieces_next(s, &pieces)) >= 0;) {
        const group g = group_of(s, i / n_pieces, p->n_tokens, n_ff);
        const int first = i % n_pieces * columns, n = dw_smaller(columns, n_embd - first);
        dw_gemm_job job = job_of(s, form, w, g);
        job.first = (size_t)first, job.n_rows = n, job.y = s->gate, job.ldy = (size_t)n;
        dw_gemm_columns(&job);
        for (int t = 0; t < g.n; t++)
            s->vec->add(p->x + (size_t)(g.first + t) * (size_t)n_embd + first, s->gate + (size_t)t * (size_t)n, b ? b + first : NULL, n);
    }
}

/* ---- head ----------------------------------------------------------------------------------------------------- */

/* Logits of rows first .. first + n_rows - 1 for a group, rows of y ldy apart. */
static void head_piece(const dw_step *s, dw_gemm_form form, group g, int first, int n_rows, float *y, size_t ldy) {
    const float *bias = dw_floats(&s->p->net->output_bias);
    rows_into(job_of(s, form, &s->p->net->output, g), NULL, (size_t)first, n_rows, y, ldy);
    for (int t = 0; bias && t < g.n; t++) s->vec->add(y + (size_t)t * ldy, bias + first, NULL, n_rows);
}

static void logits(dw_pass *p, const dw_head *head, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    const dw_tensor *w = &p->net->output;
    const int n = head->n, n_vocab = (int)w->ne[1], n_pieces = count(n_vocab, DW_MANY_ROWS);
    const dw_gemm_form form = pack(s, head->hidden, n, &w, 1);
    dw_pieces pieces = dw_pieces_begin(s, n_pieces * n_groups(n), false);
    for (int i; (i = dw_pieces_next(s, &pieces)) >= 0;) {
        const group g = group_of(s, i / n_pieces, n, (int)w->ne[0]);
        const int first = i % n_pieces * DW_MANY_ROWS;
        head_piece(s, form, g, first, dw_smaller(DW_MANY_ROWS, n_vocab - first), head->logits + (size_t)g.first * (size_t)n_vocab + first,
                   (size_t)n_vocab);
    }
}

/* The vocabulary is cut into tiles of 256 rows, the same for every pass.  Each tile gives its maximum and sum of
 * exponentials per token, which are joined in order of tiles.  A whole row of logits is never stored. */
typedef struct tile_sum {
    float max, sum; // ln sum exp = max + ln sum
} tile_sum;

size_t dw_many_head_bytes(const dw_hparams *hp, int n_tokens) {
    const size_t n_tiles = (size_t)count(hp->n_vocab, DW_MANY_ROWS);
    return dw_gemm_pack_bytes(n_tokens, hp->n_embd) + (size_t)n_tokens * (n_tiles * sizeof(tile_sum) + sizeof(float));
}

static void logprobs(dw_pass *p, const dw_head *head, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    const dw_tensor *w = &p->net->output;
    const int n = head->n, n_vocab = (int)w->ne[1], n_tiles = count(n_vocab, DW_MANY_ROWS);
    tile_sum *sums = (tile_sum *)(void *)(s->shared + dw_gemm_pack_bytes(n, (int)w->ne[0])); // (n_tiles, n)
    float *target_logit = (float *)(void *)(sums + (size_t)n_tiles * (size_t)n);             // (n)
    const dw_gemm_form form = pack(s, head->hidden, n, &w, 1);
    dw_pieces pieces = dw_pieces_begin(s, n_tiles * n_groups(n), false);
    for (int i; (i = dw_pieces_next(s, &pieces)) >= 0;) {
        const group g = group_of(s, i / n_tiles, n, (int)w->ne[0]);
        const int tile = i % n_tiles, first = tile * DW_MANY_ROWS, rows = dw_smaller(DW_MANY_ROWS, n_vocab - first);
        head_piece(s, form, g, first, rows, s->gate, (size_t)rows);
        for (int t = 0; t < g.n; t++) {
            const float *logit = s->gate + (size_t)t * (size_t)rows;
            tile_sum *sum = &sums[(size_t)tile * (size_t)n + (size_t)(g.first + t)];
            s->vec->exp_sum(logit, rows, &sum->max, &sum->sum);
            const int at = head->target[g.first + t] - first;
            if (at >= 0 && at < rows) target_logit[g.first + t] = logit[at];
        }
    }
    dw_pool_barrier(p->pool);
    for (int t = s->ith; t < n; t += s->n_threads) {
        double max = -INFINITY, sum = 0;
        for (int tile = 0; tile < n_tiles; tile++) max = fmax(max, (double)sums[(size_t)tile * (size_t)n + (size_t)t].max);
        for (int tile = 0; tile < n_tiles; tile++) {
            const tile_sum *part = &sums[(size_t)tile * (size_t)n + (size_t)t];
            sum += (double)part->sum * exp((double)part->max - max);
        }
        head->logprob[t] = (double)target_logit[t] - max - log(sum);
    }
}

/* ---- the table ------------------------------------------------------------------------------------------------ */

const dw_way dw_cpu_many = {
    .embed = dw_cpu_embed,
    .qkv = qkv,
    .attend = attend,
    .attn_out = attn_out,
    .ffn = {[DW_FFN_DENSE] = {NULL, dense_neurons, down},
            [DW_FFN_TWO_PART] = {NULL, two_part_neurons, two_part_down},
            [DW_FFN_LIST] = {NULL, listed_neurons, down},
            [DW_FFN_GATED] = {NULL, gated_neurons, gated_down},
            [DW_FFN_MASKED] = {NULL, gated_neurons, gated_down},
            [DW_FFN_GATHERED] = {NULL, gated_neurons, gated_down}},
    .head_norm = dw_cpu_head_norm,
    .logits = logits,
    .logprobs = logprobs,
};
