/* backend_cpu_many.c - steps for many tokens and for exact passes: tokens packed once, then products by pieces of rows.
 *
 * A piece is a range of rows times a group of up to 512 tokens.  The sums of a product do not depend on the cut into
 * pieces, and everything after them works on single tokens, so the results do not depend on it either. */
#include "backends/backend_cpu.h"

#include <math.h>
#include <string.h>

/* ---- pieces ------------------------------------------------------------------------------------------------- */

/* Rows of a piece: a multiple of `unit`, at most 256, such that every thread gets two pieces or more.  Each piece reads
 * all tokens, so few large ones are faster (prefill of base: 1.07 times as fast as with four a thread). */
static int rows_of_piece(const dw_step *s, int n_rows, int unit) {
    const int wanted = dw_smaller(DW_MANY_ROWS, n_rows / (2 * s->n_threads));
    return wanted > unit ? wanted / unit * unit : unit;
}

static int count(int n, int size) { return (n + size - 1) / size; }
static int n_groups(int n_tokens) { return count(n_tokens, DW_GEMM_TOKENS); }

typedef dw_token_group group;

static group group_in(const uint8_t *packed, int i, int n_tokens, int n) {
    const int first = i * DW_GEMM_TOKENS;
    return (group){first, dw_smaller(DW_GEMM_TOKENS, n_tokens - first), packed + dw_gemm_pack_bytes(first, n)};
}

static group group_of(const dw_step *s, int i, int n_tokens, int n) { return group_in(s->shared, i, n_tokens, n); }

static dw_gemm_job job_of(const dw_step *s, dw_gemm_form form, const dw_tensor *w, group g) {
    return (dw_gemm_job){
        .level = s->level, .form = form, .w = w, .packed = g.packed, .n_tokens = g.n, .scratch = s->scratch};
}

static void rows_into(dw_gemm_job job, dw_rows rows, float *y, size_t ldy) {
    job.list = rows.list, job.first = (size_t)rows.first, job.n_rows = rows.n, job.y = y, job.ldy = ldy;
    dw_gemm_rows(&job);
}

/* Exact passes ask for many tokens, so that sums do not depend on how many there are. */
static dw_gemm_form form_for(const dw_step *s, const dw_tensor *w, dw_precision precision, int n_tokens) {
    return dw_gemm_form_of(s->level, w->type, precision, s->p->exact ? DW_GEMM_TOKENS : n_tokens);
}

/* The largest form of the matrices that read x. */
static dw_gemm_form form_of_all(const dw_step *s, const dw_tensor *const *w, int n_matrices, dw_precision precision,
                                int n_tokens) {
    dw_gemm_form form = 0;
    for (int i = 0; i < n_matrices; i++) {
        const dw_gemm_form f = form_for(s, w[i], precision, n_tokens);
        if (f > form) form = f;
    }
    return form;
}

dw_gemm_form dw_many_pack(const dw_step *s, uint8_t *packed, dw_many_x x, const dw_tensor *const *w, int n_matrices) {
    const bool no_bytes = x.turned && s->p->precision == DW_PRECISION_INT8; // the form that columns do not have
    const dw_precision precision = no_bytes ? DW_PRECISION_ROUNDED : s->p->precision;
    const dw_gemm_form form = form_of_all(s, w, n_matrices, precision, x.n_tokens);
    for (int t = 0; t < x.n_tokens; t += DW_GEMM_TOKENS)
        dw_gemm_pack(&(dw_gemm_tokens){.level = s->level,
                                       .form = form,
                                       .x = x.x + (size_t)t * (size_t)x.ldx,
                                       .ldx = (size_t)x.ldx,
                                       .n_tokens = dw_smaller(DW_GEMM_TOKENS, x.n_tokens - t),
                                       .n = x.n},
                     packed + dw_gemm_pack_bytes(t, x.n), s->ith, s->n_threads);
    dw_pool_barrier(s->p->pool);
    return form;
}

static dw_gemm_form pack(const dw_step *s, const float *x, int n_tokens, const dw_tensor *const *w, int n_matrices) {
    const int n = (int)w[0]->ne[0];
    return dw_many_pack(s, s->shared, (dw_many_x){x, n, n_tokens, n, false}, w, n_matrices);
}

/* h = norm(x) of tokens first .. first + n - 1. */
static void norm_rows(const dw_step *s, const dw_tensor *norm, int first, int n, float *h) {
    const dw_pass *p = s->p;
    const size_t d = (size_t)p->net->hp.n_embd;
    for (int t = 0; t < n; t++)
        s->vec->norm(p->x + (size_t)(first + t) * d, dw_floats(norm), (int)d, p->net->hp.norm_eps, h + (size_t)t * d);
}

/* Norms and packs 16 tokens at a time, so that h stays in a near cache. */
static void pack_normed_tiles(const dw_step *s, const dw_tensor *norm, dw_gemm_form form) {
    const dw_pass *p = s->p;
    const int n = p->net->hp.n_embd;
    for (int first = s->ith * DW_TILE; first < p->n_tokens; first += s->n_threads * DW_TILE) {
        const group g = group_of(s, first / DW_GEMM_TOKENS, p->n_tokens, n);
        const int here = dw_smaller(DW_TILE, p->n_tokens - first);
        float *h = p->keep_h ? p->h + (size_t)first * (size_t)n : s->out;
        norm_rows(s, norm, first, here, h);
        dw_gemm_pack_tile(&(dw_gemm_tokens){s->level, form, h, (size_t)n, here, n}, (first - g.first) / DW_TILE, g.n,
                          s->shared + dw_gemm_pack_bytes(g.first, n));
    }
    dw_pool_barrier(p->pool);
}

/* Packs norm(x) for the matrices; fills p->h if a tap reads it.  Fewer tiles than threads are normed token by token. */
static dw_gemm_form pack_normed(const dw_step *s, const dw_tensor *norm, const dw_tensor *const *w, int n_matrices) {
    const dw_pass *p = s->p;
    const int n = p->net->hp.n_embd, n_tiles = count(p->n_tokens, DW_TILE);
    if (n_tiles >= s->n_threads && DW_TILE * n <= DW_GEMM_TOKENS * DW_MANY_ROWS) {
        const dw_gemm_form form = form_of_all(s, w, n_matrices, p->precision, p->n_tokens);
        pack_normed_tiles(s, norm, form);
        return form;
    }
    for (int t = s->ith; t < p->n_tokens; t += s->n_threads) norm_rows(s, norm, t, 1, p->h + (size_t)t * (size_t)n);
    dw_pool_barrier(p->pool);
    return pack(s, p->h, p->n_tokens, w, n_matrices);
}

/* ---- attention's matrices ------------------------------------------------------------------------------------- */

static void qkv(dw_pass *p, int l, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    const dw_layer *w = &p->net->layer[l];
    const dw_tensor *const matrix[] = {&w->q, &w->k, &w->v}; // indexed by dw_head_kind
    const int n = p->net->hp.head_dim, n_heads[] = {w->n_head, w->n_head_kv, w->n_head_kv};
    const int rows = rows_of_piece(s, (w->n_head + 2 * w->n_head_kv) * n, n), heads = rows / n;
    const int n_q = count(w->n_head, heads), n_kv = count(w->n_head_kv, heads), n_pieces = n_q + 2 * n_kv;
    const dw_gemm_form form = pack_normed(s, &w->attn_norm, matrix, 3);

    dw_pieces pieces = dw_pieces_begin(s, n_pieces * n_groups(p->n_tokens));
    for (int i; (i = dw_pieces_next(s, &pieces)) >= 0;) {
        const group g = group_of(s, i / n_pieces, p->n_tokens, p->net->hp.n_embd);
        const int piece = i % n_pieces;
        const dw_head_kind kind = piece < n_q ? DW_HEAD_Q : piece < n_q + n_kv ? DW_HEAD_K : DW_HEAD_V;
        const int first = (piece - (kind == DW_HEAD_Q ? 0 : kind == DW_HEAD_K ? n_q : n_q + n_kv)) * heads;
        const int here = dw_smaller(heads, n_heads[kind] - first), n_rows = here * n;
        rows_into(job_of(s, form, matrix[kind], g), (dw_rows){NULL, first * n, n_rows}, s->out, (size_t)n_rows);
        for (int t = 0; t < g.n; t++)
            for (int h = 0; h < here; h++)
                dw_finish_head(s, l, kind, first + h, g.first + t, s->out + (size_t)t * (size_t)n_rows + h * n);
    }
}

/* x[at.first ..] += the group's results in s->out, + bias; x has n_x columns. */
static void add_to_x(const dw_step *s, group g, int n_x, dw_rows at, const float *bias) {
    for (int t = 0; t < g.n; t++)
        s->vec->add(s->p->x + (size_t)(g.first + t) * (size_t)n_x + at.first, s->out + (size_t)t * (size_t)at.n,
                    bias ? bias + at.first : NULL, at.n);
}

/* x += W v + bias for packed v. */
static void add_packed(const dw_step *s, dw_gemm_form form, const uint8_t *packed, const dw_tensor *w,
                       const dw_tensor *bias) {
    const dw_pass *p = s->p;
    const int n = (int)w->ne[0], n_rows = (int)w->ne[1], rows = rows_of_piece(s, n_rows, 32),
              n_pieces = count(n_rows, rows);
    const float *b = dw_floats(bias);
    dw_pieces pieces = dw_pieces_begin(s, n_pieces * n_groups(p->n_tokens));
    for (int i; (i = dw_pieces_next(s, &pieces)) >= 0;) {
        const group g = group_in(packed, i / n_pieces, p->n_tokens, n);
        const int first = i % n_pieces * rows, here = dw_smaller(rows, n_rows - first);
        const dw_rows piece = {NULL, first, here};
        dw_gemm_job job = job_of(s, form, w, g);
        job.add = !b;
        if (b) {
            rows_into(job, piece, s->out, (size_t)here);
            add_to_x(s, g, n_rows, piece, b);
        } else {
            rows_into(job, piece, p->x + (size_t)g.first * (size_t)n_rows + first, (size_t)n_rows);
        }
    }
}

void dw_many_add_product(const dw_step *s, const float *v, int ldv, const dw_tensor *w, const dw_tensor *bias) {
    const dw_many_x x = {v, ldv, s->p->n_tokens, (int)w->ne[0], false};
    add_packed(s, dw_many_pack(s, s->shared, x, &w, 1), s->shared, w, bias);
}

void dw_many_add_turned(const dw_step *s, const float *v, int ldv, const dw_tensor *w, const dw_tensor *bias) {
    const dw_pass *p = s->p;
    const int block = w->type->block > 32 ? w->type->block : 32, n_x = (int)w->ne[0], n = (int)w->ne[1];
    const int columns = rows_of_piece(s, n_x, block), n_pieces = count(n_x, columns);
    const float *b = dw_floats(bias);
    const dw_gemm_form form = dw_many_pack(s, s->shared, (dw_many_x){v, ldv, p->n_tokens, n, true}, &w, 1);
    dw_pieces pieces = dw_pieces_begin(s, n_pieces * n_groups(p->n_tokens));
    for (int i; (i = dw_pieces_next(s, &pieces)) >= 0;) {
        const group g = group_of(s, i / n_pieces, p->n_tokens, n);
        const int first = i % n_pieces * columns, here = dw_smaller(columns, n_x - first);
        dw_gemm_job job = job_of(s, form, w, g);
        job.first = (size_t)first, job.n_rows = here, job.y = s->out, job.ldy = (size_t)here;
        dw_gemm_columns(&job);
        add_to_x(s, g, n_x, (dw_rows){NULL, first, here}, b);
    }
}

/* A token alone has few rows for what packing its keys takes.  How a pass is cut into blocks must not decide. */
static void attend_by_tiles(const dw_attend_job *job) {
    (job->is_alone && job->n_group <= DW_TILE ? dw_vec_of(DW_AVX512)->attend : dw_attend_tiles)(job);
}

/* Tiles of AMX have sums of two BF16, which exact passes in split precision cannot take; dots have one BF16. */
static bool has_tiled_attention(const dw_step *s) {
    const dw_pass *p = s->p;
    if (s->level >= DW_AMX) return !p->exact || p->precision != DW_PRECISION_SPLIT;
    return p->precision == DW_PRECISION_BF16 && dw_level_has_bf16(s->level);
}

/* Rows of a block: with tiles as many as give every thread a few blocks. */
static int rows_of_block(const dw_step *s, int n_rows, bool by_tiles) {
    int rows = by_tiles ? DW_TILED_ROWS : DW_QUERY_BLOCK;
    while (rows > DW_QUERY_BLOCK && n_rows < 4 * s->n_threads * rows) rows /= 2;
    return rows;
}

static void attend(dw_pass *p, int l, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    const dw_layer *w = &p->net->layer[l];
    const int n_group = w->n_head / w->n_head_kv;
    const bool by_tiles = has_tiled_attention(s);
    const int rows = rows_of_block(s, p->n_tokens * w->n_head, by_tiles);
    dw_cpu_attend(s, l, n_group < rows ? rows / n_group : 1,
                  !by_tiles  ? s->vec->attend
                  : p->exact ? dw_attend_tiles
                             : attend_by_tiles);
}

static void attn_out(dw_pass *p, int l, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    const dw_layer *w = &p->net->layer[l];
    dw_many_add_product(s, p->mix, (int)w->o.ne[0], &w->o, &w->o_bias);
}

/* ---- parts of FFN operators ------------------------------------------------------------------------------------ */

void dw_many_own_rows(const dw_many_input *in, const dw_tensor *w, const uint8_t *packed, dw_use_rows *use) {
    const dw_step *s = in->s;
    const int n_tokens = s->p->n_tokens, end = dw_share((int)w->ne[1], s->ith + 1, s->n_threads);
    for (int i = 0; i < n_groups(n_tokens); i++) {
        const group g = group_in(packed, i, n_tokens, (int)w->ne[0]);
        for (int first = dw_share((int)w->ne[1], s->ith, s->n_threads); first < end; first += DW_MANY_ROWS) {
            const int n = dw_smaller(DW_MANY_ROWS, end - first);
            rows_into(job_of(s, in->form, w, g), (dw_rows){NULL, first, n}, s->out, (size_t)n);
            use(s, in->l, g, first, n);
        }
    }
}

static void to_hidden(const dw_step *s, int l, group g, int first, int n) {
    const dw_layer_gate *gate = &s->p->net->layer[l].sparse;
    const float *bias = dw_floats(&gate->pred_a_bias) + first;
    const size_t rank = gate->pred_a.ne[1];
    float *z = s->gated->hidden[l % 2] + (size_t)g.first * rank + first;
    for (int t = 0; t < g.n; t++)
        for (int i = 0; i < n; i++) z[(size_t)t * rank + (size_t)i] = (float)dw_relu(s->out[t * n + i] + bias[i]);
}

void dw_many_hidden(const dw_many_input *in, int l) {
    const dw_many_input of = {in->s, l, in->form};
    dw_many_own_rows(&of, &in->s->p->net->layer[l].sparse.pred_a, in->s->shared, to_hidden);
}

dw_many_input dw_many_begin_neurons(dw_pass *p, int l, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    const dw_layer *w = &p->net->layer[l];
    const dw_tensor *matrix[5] = {&w->gate, &w->up};
    int n_matrices = 2;
    if (w->n_cold) matrix[n_matrices++] = &w->gate_cold, matrix[n_matrices++] = &w->up_cold; // never in a gated model
    if (p->layer[l].needs_hidden) matrix[n_matrices++] = &w->sparse.pred_a;
    if (p->layer[l].gives_hidden) matrix[n_matrices++] = &p->net->layer[l + 1].sparse.pred_a;
    return (dw_many_input){s, l, pack_normed(s, &w->ffn_norm, matrix, n_matrices)};
}

void dw_many_end_neurons(const dw_many_input *in, int n_counted) {
    const dw_bound *b = &in->s->p->layer[in->l];
    if (in->s->ith == 0 && !b->op->is_gated) dw_count_dense(in->s->p, in->l, n_counted, false);
    if (b->gives_hidden) dw_many_hidden(in, in->l + 1);
}

/* A piece of neurons has the sums of two matrices.  While the tokens fit in L2, so should these (2 MB; prefill of base
 * 1.03 times as fast as with 256 rows, but two layers of the 7B 0.93). */
static int rows_of_neurons(const dw_step *s, int n_all) {
    enum { SMALL_ROWS = 128, SMALL_TOKENS = 512 << 10 };
    const size_t tokens = DW_GEMM_TOKENS * (size_t)s->p->net->hp.n_embd * sizeof(uint16_t);
    const int rows = rows_of_piece(s, n_all, 32);
    return tokens <= SMALL_TOKENS ? dw_smaller(rows, SMALL_ROWS) : rows;
}

dw_neuron_pieces dw_neuron_pieces_of(const dw_many_input *in, int n_all) {
    const int rows = rows_of_neurons(in->s, n_all), n_each = n_all ? count(n_all, rows) : 1; // 1: writes zeros
    return (dw_neuron_pieces){dw_pieces_begin(in->s, n_each * n_groups(in->s->p->n_tokens)), n_all, rows,
                              n_each};
}

bool dw_next_neurons(const dw_many_input *in, dw_neuron_pieces *of, dw_neuron_piece *piece) {
    const dw_pass *p = in->s->p;
    const int i = dw_pieces_next(in->s, &of->pieces);
    if (i < 0) return false;
    const int first = i % of->n_each * of->rows;
    *piece = (dw_neuron_piece){first, dw_smaller(of->rows, of->n_all - first),
                               group_of(in->s, i / of->n_each, p->n_tokens, p->net->hp.n_embd)};
    return true;
}

void dw_many_product(const dw_many_input *in, const dw_tensor *w, dw_rows rows, dw_token_group g, float *y, int ldy) {
    rows_into(job_of(in->s, in->form, w, g), rows, y, (size_t)ldy);
}

void dw_many_down(dw_pass *p, int l, int ith) {
    const dw_layer *w = &p->net->layer[l];
    dw_many_add_product(dw_step_of(p, ith), p->neuron, w->n_ff, &w->down, &w->down_bias);
}

/* ---- neurons that stay packed ---------------------------------------------------------------------------------- */

bool dw_many_stays_packed(const dw_step *s, int l) {
    const dw_pass *p = s->p;
    const dw_layer *w = &p->net->layer[l];
    const dw_tensor *const matrix[] = {&w->gate, &w->up, &w->down};
    if (p->n_tokens <= DW_GEMM_FEW || w->n_ff % 32 || w->gate_bias.name || w->up_bias.name) return false;
    for (int i = 0; i < 3; i++)
        if (!dw_gemm_is_bf16(form_for(s, matrix[i], p->precision, p->n_tokens))) return false;
    return true;
}

/* The gates of a piece that a tap reads. */
static void fill_gates(const dw_step *s, const dw_layer *w, dw_neuron_piece k) {
    const dw_pass *p = s->p;
    const size_t n_ff = (size_t)w->n_ff;
    int token[DW_GEMM_TOKENS], n = 0;
    for (int t = 0; t < k.group.n; t++)
        if (p->pos[k.group.first + t] % p->gate_every == 0) token[n++] = t;
    dw_gemm_sums_of_tokens(s->level, s->out, k.n, k.group.n, token, n, p->gate + (size_t)k.group.first * n_ff + k.first,
                           n_ff);
}

void dw_many_pack_neurons(const dw_many_input *in, dw_neuron_piece k) {
    const dw_step *s = in->s;
    const dw_layer *w = &s->p->net->layer[in->l];
    const dw_tensor *const matrix[] = {&w->gate, &w->up};
    float *const sums[] = {s->out, s->out2};
    for (int i = 0; i < 2; i++) {
        dw_gemm_job job = job_of(s, in->form, matrix[i], k.group);
        job.first = (size_t)k.first, job.n_rows = k.n, job.sums = sums[i];
        dw_gemm_rows(&job);
    }
    float *rows = s->p->neuron + (size_t)k.group.first * (size_t)w->n_ff + k.first;
    dw_gemm_pack_neurons(&(dw_gemm_neurons){.level = s->level,
                                            .form = form_for(s, &w->down, s->p->precision, s->p->n_tokens),
                                            .act = s->p->net->act,
                                            .n_tokens = k.group.n,
                                            .n = w->n_ff,
                                            .gate = s->out,
                                            .up = s->out2,
                                            .first = k.first,
                                            .n_rows = k.n,
                                            .rows = s->p->keep_neurons ? rows : NULL,
                                            .ldr = (size_t)w->n_ff},
                         s->neurons + dw_gemm_pack_bytes(k.group.first, w->n_ff));
    if (s->p->gate_every) fill_gates(s, w, k);
}

void dw_many_down_packed(dw_pass *p, int l, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    const dw_layer *w = &p->net->layer[l];
    add_packed(s, form_for(s, &w->down, p->precision, p->n_tokens), s->neurons, &w->down, &w->down_bias);
}

/* ---- head ----------------------------------------------------------------------------------------------------- */

/* Logits of rows of the output matrix for a group, rows of y ldy apart. */
static void head_piece(const dw_step *s, dw_gemm_form form, group g, dw_rows rows, float *y, size_t ldy) {
    const float *bias = dw_floats(&s->p->net->output_bias);
    rows_into(job_of(s, form, &s->p->net->output, g), rows, y, ldy);
    for (int t = 0; bias && t < g.n; t++) s->vec->add(y + (size_t)t * ldy, bias + rows.first, NULL, rows.n);
}

static void logits(dw_pass *p, const dw_head *head, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    const dw_tensor *w = &p->net->output;
    const int n = head->n, n_vocab = (int)w->ne[1], n_pieces = count(n_vocab, DW_MANY_ROWS);
    const dw_gemm_form form = pack(s, head->hidden, n, &w, 1);
    dw_pieces pieces = dw_pieces_begin(s, n_pieces * n_groups(n));
    for (int i; (i = dw_pieces_next(s, &pieces)) >= 0;) {
        const group g = group_of(s, i / n_pieces, n, (int)w->ne[0]);
        const int first = i % n_pieces * DW_MANY_ROWS;
        head_piece(s, form, g, (dw_rows){NULL, first, dw_smaller(DW_MANY_ROWS, n_vocab - first)},
                   head->logits + (size_t)g.first * (size_t)n_vocab + first, (size_t)n_vocab);
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
    dw_pieces pieces = dw_pieces_begin(s, n_tiles * n_groups(n));
    for (int i; (i = dw_pieces_next(s, &pieces)) >= 0;) {
        const group g = group_of(s, i / n_tiles, n, (int)w->ne[0]);
        const int tile = i % n_tiles, first = tile * DW_MANY_ROWS, rows = dw_smaller(DW_MANY_ROWS, n_vocab - first);
        head_piece(s, form, g, (dw_rows){NULL, first, rows}, s->out, (size_t)rows);
        for (int t = 0; t < g.n; t++) {
            const float *logit = s->out + (size_t)t * (size_t)rows;
            tile_sum *sum = &sums[(size_t)tile * (size_t)n + (size_t)(g.first + t)];
            s->vec->exp_sum(logit, rows, &sum->max, &sum->sum);
            const int at = head->target[g.first + t] - first;
            if (at >= 0 && at < rows) target_logit[g.first + t] = logit[at];
        }
    }
    dw_pool_barrier(p->pool);
    for (int t = s->ith; t < n; t += s->n_threads) {
        double max = -INFINITY, sum = 0;
        for (int tile = 0; tile < n_tiles; tile++)
            max = fmax(max, (double)sums[(size_t)tile * (size_t)n + (size_t)t].max);
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
    .ffn = DW_BY_MANY,
    .head_norm = dw_cpu_head_norm,
    .logits = logits,
    .logprobs = logprobs,
};
