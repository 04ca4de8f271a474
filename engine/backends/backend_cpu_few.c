/* backend_cpu_few.c - steps for a few tokens: decoding.  Weight rows are read once, straight from the file. */
#include "backends/backend_cpu.h"

#include <string.h>

size_t dw_few_scratch_bytes(int n_max) {
    size_t bytes = dw_act_bytes(DW_ACT_F32, n_max); // normed vectors, then each form
    for (dw_act_form f = 0; f < DW_N_ACT_FORMS; f++) bytes += dw_act_bytes(f, n_max);
    return DW_DOT_MAX_COLS * bytes;
}

dw_vectors dw_vectors_of(const dw_step *s, uint8_t *scratch, const float *x, int n_cols, int n) {
    dw_vectors v = {.s = s, .x = x, .n_cols = n_cols, .n = n, .ldx = n};
    uint8_t *at = scratch + DW_DOT_MAX_COLS * dw_act_bytes(DW_ACT_F32, n);
    for (dw_act_form f = 0; f < DW_N_ACT_FORMS; at += DW_DOT_MAX_COLS * dw_act_bytes(f, n), f++) v.act[f] = at;
    return v;
}

dw_vectors dw_normed(const dw_step *s, const dw_tensor *norm) {
    const dw_pass *p = s->p;
    const int n = p->net->hp.n_embd;
    float *h = (float *)(void *)s->scratch;
    for (int t = 0; t < p->n_tokens; t++) {
        float *row = h + (size_t)t * (size_t)n;
        s->vec->norm(p->x + (size_t)t * (size_t)n, dw_floats(norm), n, p->net->hp.norm_eps, row);
        if (p->keep_h && t % s->n_threads == s->ith) memcpy(p->h + (size_t)t * (size_t)n, row, (size_t)n * sizeof *row);
    }
    return dw_vectors_of(s, s->scratch, h, p->n_tokens, n);
}

/* The hardware cannot predict the rows of a list, so they are prefetched this many rows ahead. */
enum { ROWS_AHEAD = 2 };

void dw_dot_rows(dw_vectors *v, const dw_tensor *w, dw_rows rows, float *y, size_t ldy) {
    const int32_t *list = rows.list;
    const int first = rows.first, n_rows = rows.n;
    const dw_row_kind kind = {w->type->id, v->n, v->s->p->net->from_memory};
    const dw_dot_kernel *kernel = dw_dot_find(v->s->level, kind);
    const size_t stride = dw_act_bytes(kernel->form, v->n), row_bytes = dw_tensor_row_bytes(w);
    if (!v->packed[kernel->form]) {
        for (int c = 0; c < v->n_cols; c++)
            dw_act_pack(v->s->level, kernel->form, v->x + (size_t)c * (size_t)v->ldx, v->n,
                        v->act[kernel->form] + (size_t)c * stride);
        v->packed[kernel->form] = true;
    }
    dw_dot_job job = {.row_bytes = row_bytes,
                      .n = v->n,
                      .act = v->act[kernel->form],
                      .act_stride = stride,
                      .n_cols = v->n_cols,
                      .y_stride = ldy,
                      .reach = dw_reach_of(v->s->level, kind)};
    int asked = 0;
    for (int r = 0, run; r < n_rows; r += run) { // a run of consecutive rows is one call
        const int row = list ? list[first + r] : first;
        run = n_rows - r;
        if (list)
            for (run = 1; r + run < n_rows && list[first + r + run] == row + run;) run++;
        for (asked = asked > r + run ? asked : r + run; asked < dw_smaller(n_rows, r + run + ROWS_AHEAD); asked++)
            dw_prefetch(w->data + (size_t)list[first + asked] * row_bytes, row_bytes);
        job.w = w->data + (size_t)row * row_bytes, job.n_rows = run, job.y = y + r;
        kernel->rows(&job);
    }
}

bool dw_next_rows(const dw_step *s, dw_pieces *pieces, int n_rows, int *first, int *n) {
    dw_run run;
    if (!dw_pieces_run(s, pieces, DW_FEW_RUN, &run)) return false;
    *first = run.first * DW_FEW_ROWS;
    *n = dw_smaller(run.end * DW_FEW_ROWS, n_rows) - *first;
    return true;
}

dw_pieces dw_pieces_of_rows(const dw_step *s, int n_rows) {
    const int n = (n_rows + DW_FEW_ROWS - 1) / DW_FEW_ROWS;
    return dw_pieces_begin(s, n ? n : 1); // an empty selection still writes zeros
}

/* Heads first .. end - 1 of one kind. */
static void project(const dw_step *s, int l, dw_vectors *v, dw_head_kind kind, dw_run heads) {
    const dw_layer *w = &s->p->net->layer[l];
    const dw_tensor *matrix = kind == DW_HEAD_Q ? &w->q : kind == DW_HEAD_K ? &w->k : &w->v;
    const int n = s->p->net->hp.head_dim, n_rows = (heads.end - heads.first) * n;
    dw_dot_rows(v, matrix, (dw_rows){NULL, heads.first * n, n_rows}, s->out, (size_t)n_rows);
    for (int t = 0; t < v->n_cols; t++)
        for (int i = heads.first; i < heads.end; i++)
            dw_finish_head(s, l, kind, i, t, s->out + t * n_rows + (i - heads.first) * n);
}

/* Pieces are heads: those of q, then of k, then of v. */
static void qkv(dw_pass *p, int l, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    const dw_layer *w = &p->net->layer[l];
    const int first_of[] = {0, w->n_head, w->n_head + w->n_head_kv, w->n_head + 2 * w->n_head_kv};
    const int most = dw_larger(DW_FEW_RUN * DW_FEW_ROWS / p->net->hp.head_dim, 1);
    dw_vectors v = dw_normed(s, &w->attn_norm);
    dw_pieces pieces = dw_pieces_begin(s, first_of[DW_HEAD_V + 1]);
    for (dw_run run; dw_pieces_run(s, &pieces, most, &run);)
        for (dw_head_kind kind = DW_HEAD_Q; kind <= DW_HEAD_V; kind++) {
            const dw_run heads = {dw_larger(run.first, first_of[kind]) - first_of[kind],
                                  dw_smaller(run.end, first_of[kind + 1]) - first_of[kind]};
            if (heads.first < heads.end) project(s, l, &v, kind, heads);
        }
}

void dw_few_add_product(const dw_step *s, dw_vectors *v, const dw_tensor *w, const dw_tensor *bias) {
    const int n_rows = (int)w->ne[1];
    const float *b = dw_floats(bias);
    dw_pieces pieces = dw_pieces_of_rows(s, n_rows);
    for (int first, n; dw_next_rows(s, &pieces, n_rows, &first, &n);) {
        dw_dot_rows(v, w, (dw_rows){NULL, first, n}, s->out, (size_t)n);
        for (int t = 0; t < v->n_cols; t++)
            s->vec->add(s->p->x + (size_t)t * (size_t)n_rows + first, s->out + t * n, b ? b + first : NULL, n);
    }
}

static void attend(dw_pass *p, int l, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    dw_cpu_attend(s, l, 1, s->vec->attend_token);
}

static void attn_out(dw_pass *p, int l, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    const dw_layer *w = &p->net->layer[l];
    dw_vectors v = dw_vectors_of(s, s->scratch, p->mix, p->n_tokens, (int)w->o.ne[0]);
    dw_few_add_product(s, &v, &w->o, &w->o_bias);
}

/* ---- parts of FFN operators ------------------------------------------------------------------------------------ */

void dw_few_down(dw_pass *p, int l, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    const dw_layer *w = &p->net->layer[l];
    dw_vectors v = dw_vectors_of(s, s->scratch, p->neuron, p->n_tokens, w->n_ff);
    dw_few_add_product(s, &v, &w->down, &w->down_bias);
}

void dw_few_hidden(const dw_step *s, int l, dw_vectors *h) {
    const dw_layer_gate *g = &s->p->net->layer[l].sparse;
    const int rank = (int)g->pred_a.ne[1], first = dw_share(rank, s->ith, s->n_threads);
    const int n = dw_share(rank, s->ith + 1, s->n_threads) - first;
    const float *bias = dw_floats(&g->pred_a_bias);
    float *z = s->gated->hidden[l % 2];
    dw_dot_rows(h, &g->pred_a, (dw_rows){NULL, first, n}, z + first, (size_t)rank);
    for (int t = 0; t < h->n_cols; t++)
        for (int i = first; i < first + n; i++) {
            float *value = &z[t * rank + i];
            *value = (float)dw_relu(*value + bias[i]);
        }
    dw_coverage_of(s->p, l, s->ith)->n_bytes += (uint64_t)n * dw_tensor_row_bytes(&g->pred_a);
}

void dw_few_end_neurons(const dw_step *s, int l, int n, dw_vectors *h) {
    if (s->ith == 0) dw_count_dense(s->p, l, n, true);
    if (s->p->layer[l].gives_hidden) dw_few_hidden(s, l + 1, h);
}

/* ---- the head, and the table ---------------------------------------------------------------------------------- */

static void logits(dw_pass *p, const dw_head *head, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    const dw_tensor *w = &p->net->output;
    const int n_vocab = (int)w->ne[1];
    const float *bias = dw_floats(&p->net->output_bias);
    dw_vectors v = dw_vectors_of(s, s->scratch, head->hidden, head->n, (int)w->ne[0]);
    dw_pieces pieces = dw_pieces_of_rows(s, n_vocab);
    for (int first, rows; dw_next_rows(s, &pieces, n_vocab, &first, &rows);) {
        dw_dot_rows(&v, w, (dw_rows){NULL, first, rows}, head->logits + first, (size_t)n_vocab);
        for (int t = 0; bias && t < head->n; t++)
            s->vec->add(head->logits + (size_t)t * (size_t)n_vocab + first, bias + first, NULL, rows);
    }
}

const dw_way dw_cpu_few = {
    .embed = dw_cpu_embed,
    .qkv = qkv,
    .attend = attend,
    .attn_out = attn_out,
    .ffn = DW_BY_FEW,
    .head_norm = dw_cpu_head_norm,
    .logits = logits, // log-probabilities always use the way of many
};
