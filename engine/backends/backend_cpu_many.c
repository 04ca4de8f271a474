/* backend_cpu_many.c - steps for many tokens and for exact passes: tokens packed once, then products by pieces of rows.
 *
 * A piece is a range of rows times a group of up to 512 tokens.  The sums of a product do not depend on the cut, and
 * everything behind them works on single tokens: so neither do the results. */
#include "backends/backend_cpu.h"

#include <math.h>
#include <string.h>

/* ---- pieces ------------------------------------------------------------------------------------------------- */

/* Rows of a piece: a multiple of `unit`, so many that every thread gets a few pieces, 256 at most. */
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

static group group_of(const dw_step *s, int i, int n_tokens, int n) {
    const int first = i * DW_GEMM_TOKENS;
    return (group){first, dw_smaller(DW_GEMM_TOKENS, n_tokens - first), s->shared + dw_gemm_pack_bytes(first, n)};
}

/* Packs x (n_tokens, n) for the matrices; behind the barrier all groups are there. */
static dw_gemm_form pack(const dw_step *s, const float *x, int n_tokens, const dw_tensor *const *w, int n_matrices) {
    const int n = (int)w[0]->ne[0];
    dw_gemm_form form = 0;
    for (int i = 0; i < n_matrices; i++) {
        const dw_gemm_form f = dw_gemm_form_of(s->level, w[i]->type, s->p->exact);
        if (f > form) form = f;
    }
    for (int t = 0; t < n_tokens; t += DW_GEMM_TOKENS)
        dw_gemm_pack(s->level, form, x + (size_t)t * (size_t)n, (size_t)n, dw_smaller(DW_GEMM_TOKENS, n_tokens - t), n,
                     s->shared + dw_gemm_pack_bytes(t, n), s->ith, s->n_threads);
    dw_pool_barrier(s->p->pool, s->ith);
    return form;
}

static void norm_tokens(const dw_step *s, const dw_tensor *norm) {
    const dw_pass *p = s->p;
    const size_t n = (size_t)p->net->hp.n_embd;
    for (int t = s->ith; t < p->n_tokens; t += s->n_threads)
        s->vec->norm(p->x + (size_t)t * n, dw_floats(norm), (int)n, p->net->hp.norm_eps, p->h + (size_t)t * n);
    dw_pool_barrier(p->pool, s->ith);
}

/* ---- attention's matrices ------------------------------------------------------------------------------------- */

void dw_many_qkv(const dw_step *s, int l) {
    const dw_pass *p = s->p;
    const dw_layer *w = &p->net->layer[l];
    const dw_tensor *const matrix[] = {&w->q, &w->k, &w->v}; // by dw_head_kind
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
        dw_gemm_rows(s->level, form, matrix[kind], NULL, (size_t)(first * n), n_rows, g.packed, g.n, s->gate, (size_t)n_rows, s->kernel);
        for (int t = 0; t < g.n; t++)
            for (int h = 0; h < here; h++) dw_finish_head(s, l, kind, first + h, g.first + t, s->gate + (size_t)t * (size_t)n_rows + h * n);
    }
}

/* x += W v + bias for v (n_tokens, columns of W). */
static void add_product(const dw_step *s, const float *v, const dw_tensor *w, const dw_tensor *bias) {
    const dw_pass *p = s->p;
    const int n_rows = (int)w->ne[1], rows = rows_of_piece(s, n_rows, 32), n_pieces = count(n_rows, rows);
    const float *b = dw_floats(bias);
    const dw_gemm_form form = pack(s, v, p->n_tokens, &w, 1);
    dw_pieces pieces = dw_pieces_begin(s, n_pieces * n_groups(p->n_tokens), false);
    for (int i; (i = dw_pieces_next(s, &pieces)) >= 0;) {
        const group g = group_of(s, i / n_pieces, p->n_tokens, (int)w->ne[0]);
        const int first = i % n_pieces * rows, n = dw_smaller(rows, n_rows - first);
        dw_gemm_rows(s->level, form, w, NULL, (size_t)first, n, g.packed, g.n, s->gate, (size_t)n, s->kernel);
        for (int t = 0; t < g.n; t++)
            s->vec->add(p->x + (size_t)(g.first + t) * (size_t)n_rows + first, s->gate + (size_t)t * (size_t)n, b ? b + first : NULL, n);
    }
}

void dw_many_attn_out(const dw_step *s, int l) {
    const dw_layer *w = &s->p->net->layer[l];
    add_product(s, s->p->mix, &w->o, &w->o_bias);
}

/* ---- FFN ------------------------------------------------------------------------------------------------------ */

void dw_many_ffn_neurons(const dw_step *s, int l) {
    const dw_pass *p = s->p;
    const dw_layer *w = &p->net->layer[l];
    const dw_tensor *const matrix[] = {&w->gate, &w->up};
    const int32_t *list = p->selected;
    const int n_all = list ? p->n_selected : w->n_ff, rows = rows_of_piece(s, n_all, 32);
    const int n_pieces = n_all ? count(n_all, rows) : 1; // an empty list still leaves zeros
    norm_tokens(s, &w->ffn_norm);
    const dw_gemm_form form = pack(s, p->h, p->n_tokens, matrix, 2);

    dw_pieces pieces = dw_pieces_begin(s, n_pieces * n_groups(p->n_tokens), false);
    for (int i; (i = dw_pieces_next(s, &pieces)) >= 0;) {
        const group g = group_of(s, i / n_pieces, p->n_tokens, p->net->hp.n_embd);
        const int first = i % n_pieces * rows, n = dw_smaller(rows, n_all - first);
        dw_gemm_rows(s->level, form, &w->gate, list, (size_t)first, n, g.packed, g.n, s->gate, (size_t)n, s->kernel);
        dw_gemm_rows(s->level, form, &w->up, list, (size_t)first, n, g.packed, g.n, s->up, (size_t)n, s->kernel);
        dw_finish_neurons(s, l, first, first + n, g.first, g.n);
    }
}

void dw_many_ffn_down(const dw_step *s, int l) {
    const dw_layer *w = &s->p->net->layer[l];
    add_product(s, s->p->neuron, &w->down, &w->down_bias);
}

/* ---- head ----------------------------------------------------------------------------------------------------- */

/* Logits of rows first .. first + n_rows - 1 for a group, rows of y ldy apart. */
static void head_piece(const dw_step *s, dw_gemm_form form, group g, int first, int n_rows, float *y, size_t ldy) {
    const float *bias = dw_floats(&s->p->net->output_bias);
    dw_gemm_rows(s->level, form, &s->p->net->output, NULL, (size_t)first, n_rows, g.packed, g.n, y, ldy, s->kernel);
    for (int t = 0; bias && t < g.n; t++) s->vec->add(y + (size_t)t * ldy, bias + first, NULL, n_rows);
}

void dw_many_logits(const dw_step *s, const float *hidden, int n, float *logits) {
    const dw_tensor *w = &s->p->net->output;
    const int n_vocab = (int)w->ne[1], n_pieces = count(n_vocab, DW_MANY_ROWS);
    const dw_gemm_form form = pack(s, hidden, n, &w, 1);
    dw_pieces pieces = dw_pieces_begin(s, n_pieces * n_groups(n), false);
    for (int i; (i = dw_pieces_next(s, &pieces)) >= 0;) {
        const group g = group_of(s, i / n_pieces, n, (int)w->ne[0]);
        const int first = i % n_pieces * DW_MANY_ROWS;
        head_piece(s, form, g, first, dw_smaller(DW_MANY_ROWS, n_vocab - first), logits + (size_t)g.first * (size_t)n_vocab + first,
                   (size_t)n_vocab);
    }
}

/* The vocabulary in tiles of 256 rows, the same for every pass: each leaves its maximum and sum of exponentials a token,
 * and they are joined in order of tiles.  No row of logits is ever whole. */
typedef struct tile_sum {
    float max, sum; // ln sum exp = max + ln sum
} tile_sum;

size_t dw_many_head_bytes(const dw_hparams *hp, int n_tokens) {
    const size_t n_tiles = (size_t)count(hp->n_vocab, DW_MANY_ROWS);
    return dw_gemm_pack_bytes(n_tokens, hp->n_embd) + (size_t)n_tokens * (n_tiles * sizeof(tile_sum) + sizeof(float));
}

void dw_many_logprobs(const dw_step *s, const float *hidden, int n, const int32_t *target, double *logprob) {
    const dw_tensor *w = &s->p->net->output;
    const int n_vocab = (int)w->ne[1], n_tiles = count(n_vocab, DW_MANY_ROWS);
    tile_sum *sums = (tile_sum *)(void *)(s->shared + dw_gemm_pack_bytes(n, (int)w->ne[0])); // (n_tiles, n)
    float *target_logit = (float *)(void *)(sums + (size_t)n_tiles * (size_t)n);             // (n)
    const dw_gemm_form form = pack(s, hidden, n, &w, 1);
    dw_pieces pieces = dw_pieces_begin(s, n_tiles * n_groups(n), false);
    for (int i; (i = dw_pieces_next(s, &pieces)) >= 0;) {
        const group g = group_of(s, i / n_tiles, n, (int)w->ne[0]);
        const int tile = i % n_tiles, first = tile * DW_MANY_ROWS, rows = dw_smaller(DW_MANY_ROWS, n_vocab - first);
        head_piece(s, form, g, first, rows, s->gate, (size_t)rows);
        for (int t = 0; t < g.n; t++) {
            const float *logit = s->gate + (size_t)t * (size_t)rows;
            tile_sum *sum = &sums[(size_t)tile * (size_t)n + (size_t)(g.first + t)];
            s->vec->exp_sum(logit, rows, &sum->max, &sum->sum);
            const int at = target[g.first + t] - first;
            if (at >= 0 && at < rows) target_logit[g.first + t] = logit[at];
        }
    }
    dw_pool_barrier(s->p->pool, s->ith);
    for (int t = s->ith; t < n; t += s->n_threads) {
        double max = -INFINITY, sum = 0;
        for (int tile = 0; tile < n_tiles; tile++) max = fmax(max, (double)sums[(size_t)tile * (size_t)n + (size_t)t].max);
        for (int tile = 0; tile < n_tiles; tile++) {
            const tile_sum *part = &sums[(size_t)tile * (size_t)n + (size_t)t];
            sum += (double)part->sum * exp((double)part->max - max);
        }
        logprob[t] = (double)target_logit[t] - max - log(sum);
    }
}
