/* backward_cpu.c - the arithmetic of the training pass on the cpu backend's kernels.
 *
 * The three products of a matrix are the same kernel (kernels.h):
 *
 *     y = x W^T      rows of W times tokens x            dw_gemm_rows
 *     dx = dy W      columns of W times tokens dy        dw_gemm_columns
 *     dW = dy^T x    columns of x times "tokens" dy^T    dw_gemm_columns; an output of dy counts as a token
 *
 * Tokens are packed first, then pieces (a group of up to 512 tokens times up to 256 rows or columns) are taken from a
 * counter.  The kernel's sums do not depend on the shape of a piece. */
#include "backends/backward.h"
#include "backends/kernels_backward.h"
#include "backends/kernels_vec.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum {
    PIECE_ROWS = 256,
    LEAST_PIECE_ROWS = 64,
    PIECES_PER_THREAD = 4, // of a product
    PACK_PIECES = 8,       // of a group of tokens
    GLU_PIECE = 4096,
};

typedef struct thread_memory {
    uint8_t *kernel; // DW_GEMM_SCRATCH, or attention's
    float *piece;    // (DW_GEMM_TOKENS, PIECE_ROWS): a result that is added
} thread_memory;

typedef struct own {
    dw_level level;
    const dw_vec *vec;
    const dw_vec_back *back;
    uint8_t *packed;
    thread_memory thread[]; // n_threads
} own;

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }
static int smaller(int a, int b) { return a < b ? a : b; }
static int count(int n, int size) { return (n + size - 1) / size; }

static void lay_out(dw_back_env *e, dw_layout *a, const dw_back_sizes *most) {
    const dw_hparams *hp = &e->net->hp;
    const int n_threads = dw_pool_size(e->pool), groups = count(most->n_tokens, 16) * 16;
    own *o = dw_layout_take(a, 1, sizeof *o + (size_t)n_threads * sizeof o->thread[0]);
    const size_t kernel = larger(DW_GEMM_SCRATCH, dw_attend_back_scratch(e->n_ctx, hp->head_dim) * sizeof(float));
    const size_t body = dw_gemm_pack_bytes(groups, most->widest), head = dw_gemm_pack_bytes(most->n_rows, hp->n_vocab);
    const size_t turned = dw_gemm_pack_bytes(count(most->widest, 16) * 16, groups),
                 turned_head = dw_gemm_pack_bytes(hp->n_vocab, most->n_rows);
    const size_t back = most->gradients ? larger(larger(head, turned_head), turned) : 0;
    uint8_t *packed = dw_layout_take(a, larger(body, back), 1);
    for (int i = 0; i < n_threads; i++) {
        uint8_t *k = dw_layout_take(a, kernel, 1);
        float *piece = dw_layout_take(a, (size_t)DW_GEMM_TOKENS * PIECE_ROWS, sizeof *piece);
        if (a->base) o->thread[i] = (thread_memory){k, piece};
    }
    if (a->base) o->packed = packed;
    e->own = o;
}

static int start(dw_back_env *e, dw_err *err) {
    own *o = e->own;
    if (dw_level_choose(&o->level, err)) return -1;
    o->vec = dw_vec_of(o->level);
    o->back = dw_vec_back_of(o->level);
    return 0;
}

/* ---- pieces from a counter -------------------------------------------------------------------------------------- */

typedef struct pieces {
    void (*fn)(void *job, int piece, const thread_memory *m);
    void *job;
    const own *own;
    int n;
    atomic_int next;
} pieces;

static void take_pieces(void *all, int ith, int n_threads) {
    pieces *p = all;
    (void)n_threads;
    for (int i; (i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->n;)
        p->fn(p->job, i, &p->own->thread[ith]);
}

static void for_pieces(const dw_back_env *e, int n, void (*fn)(void *job, int piece, const thread_memory *m),
                       void *job) {
    dw_pool_run(e->pool, take_pieces, &(pieces){.fn = fn, .job = job, .own = e->own, .n = n});
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* A product of n_tokens packed tokens with rows or columns of w. */
typedef struct product {
    const own *own;
    dw_gemm_form form;
    const float *x; // tokens; turned: (n_in, n_tokens)
    bool turned;
    int n_tokens, n_in; // tokens and values of each
    const dw_tensor *w, *bias;
    bool columns; // of w
    int n_out, piece_rows;
    float *y; // (n_tokens, n_out)
    bool add;
} product;

static dw_gemm_form form_of(const dw_back_env *e) {
    const own *o = e->own;
    if (e->precision == DW_PRECISION_ROUNDED && dw_level_has_bf16(o->level)) return DW_GEMM_ROUNDED;
    return o->level < DW_AMX ? DW_GEMM_F32 : DW_GEMM_SPLIT;
}

static int group_tokens(const product *p, int group) {
    return smaller(DW_GEMM_TOKENS, p->n_tokens - group * DW_GEMM_TOKENS);
}

static uint8_t *packed_group(const product *p, int group) {
    return p->own->packed + (group ? dw_gemm_pack_bytes(group * DW_GEMM_TOKENS, p->n_in) : 0);
}

static void pack_piece(void *job, int piece, const thread_memory *m) {
    const product *p = job;
    const int group = piece / PACK_PIECES, n = group_tokens(p, group);
    const size_t first = (size_t)group * DW_GEMM_TOKENS;
    (void)m;
    const dw_gemm_tokens tokens = {.level = p->own->level,
                                   .form = p->form,
                                   .x = p->x + first * (p->turned ? 1 : (size_t)p->n_in),
                                   .ldx = (size_t)(p->turned ? p->n_tokens : p->n_in),
                                   .n_tokens = n,
                                   .n = p->n_in};
    (p->turned ? dw_gemm_pack_turned : dw_gemm_pack)(&tokens, packed_group(p, group), piece % PACK_PIECES, PACK_PIECES);
}

/* y (+)= a piece's result (n_tokens, n) + bias. */
static void finish(const product *p, const float *piece, int first_token, int n_tokens, int first, int n) {
    const float *bias = p->bias && p->bias->name ? (const float *)(const void *)p->bias->data + first : NULL;
    for (int t = 0; t < n_tokens; t++) {
        float *y = p->y + (size_t)(first_token + t) * (size_t)p->n_out + first;
        if (piece)
            p->own->vec->add(y, piece + (size_t)t * (size_t)n, NULL, n);
        else if (bias)
            p->own->vec->add(y, bias, NULL, n);
    }
}

static void multiply_piece(void *job, int piece, const thread_memory *m) {
    const product *p = job;
    const int n_each = count(p->n_out, p->piece_rows), group = piece / n_each, first = piece % n_each * p->piece_rows;
    const int n = smaller(p->piece_rows, p->n_out - first), token = group * DW_GEMM_TOKENS,
              n_tokens = group_tokens(p, group);
    const dw_gemm_job j = {.level = p->own->level,
                           .form = p->form,
                           .w = p->w,
                           .first = (size_t)first,
                           .n_rows = n,
                           .packed = packed_group(p, group),
                           .n_tokens = n_tokens,
                           .y = p->add ? m->piece : p->y + (size_t)token * (size_t)p->n_out + first,
                           .ldy = p->add ? (size_t)n : (size_t)p->n_out,
                           .scratch = m->kernel};
    (p->columns ? dw_gemm_columns : dw_gemm_rows)(&j);
    finish(p, p->add ? m->piece : NULL, token, n_tokens, first, n);
}

static void pack(const dw_back_env *e, product *p) {
    for_pieces(e, count(p->n_tokens, DW_GEMM_TOKENS) * PACK_PIECES, pack_piece, p);
}

/* Fewer rows in a piece where there would not be enough pieces for the threads; columns are whole blocks of their
 * type. */
static void multiply(const dw_back_env *e, product *p) {
    const int groups = count(p->n_tokens, DW_GEMM_TOKENS), wanted = PIECES_PER_THREAD * dw_pool_size(e->pool);
    const int least = p->columns && p->w->type->block > LEAST_PIECE_ROWS ? PIECE_ROWS : LEAST_PIECE_ROWS;
    p->piece_rows = PIECE_ROWS;
    while (p->piece_rows > least && groups * count(p->n_out, p->piece_rows) < wanted) p->piece_rows /= 2;
    for_pieces(e, groups * count(p->n_out, p->piece_rows), multiply_piece, p);
}

static void linear(const dw_back_env *e, const dw_back_linear *list, int n_list, const float *x, int n) {
    product p = {.own = e->own, .form = form_of(e), .x = x, .n_tokens = n, .n_in = (int)list->w->ne[0]};
    pack(e, &p);
    for (const dw_back_linear *l = list; l < list + n_list; l++) {
        p.w = l->w;
        p.bias = l->bias;
        p.n_out = (int)l->w->ne[1];
        p.y = l->y;
        multiply(e, &p);
    }
}

static void linear_x(const dw_back_env *e, const dw_tensor *w, const float *dy, int n, float *dx, bool add) {
    product p = {.own = e->own,
                 .form = form_of(e),
                 .x = dy,
                 .n_tokens = n,
                 .n_in = (int)w->ne[1],
                 .w = w,
                 .columns = true,
                 .n_out = (int)w->ne[0],
                 .y = dx,
                 .add = add};
    pack(e, &p);
    multiply(e, &p);
}

static void linear_w(const dw_back_env *e, const float *x, int n_in, const float *dy, int n_out, int n, float *dw) {
    const dw_tensor values = {.name = "x",
                              .type = dw_qtype_get(DW_F32),
                              .n_dims = 2,
                              .ne = {(size_t)n_in, (size_t)n, 1, 1},
                              .data = (const uint8_t *)(const void *)x};
    product p = {.own = e->own,
                 .form = form_of(e),
                 .x = dy,
                 .turned = true,
                 .n_tokens = n_out,
                 .n_in = n,
                 .w = &values,
                 .columns = true,
                 .n_out = n_in,
                 .y = dw,
                 .add = true};
    pack(e, &p);
    multiply(e, &p);
}

/* ---- the gate, attention, the loss ---------------------------------------------------------------------- */

typedef struct glu_job {
    const own *own;
    dw_act act;
    const float *da;
    float *g, *u, *a;
    size_t n;
} glu_job;

static void glu_piece(void *job, int piece, const thread_memory *m) {
    const glu_job *j = job;
    const size_t first = (size_t)piece * GLU_PIECE;
    const int n = j->n - first < GLU_PIECE ? (int)(j->n - first) : GLU_PIECE;
    (void)m;
    if (j->a)
        j->own->back->glu[j->act](j->g + first, j->u + first, n, j->a + first);
    else
        j->own->back->glu_back[j->act](j->da + first, n, j->g + first, j->u + first);
}

static void run_glu(const dw_back_env *e, glu_job j) {
    j.own = e->own;
    j.act = e->net->act;
    for_pieces(e, (int)((j.n + GLU_PIECE - 1) / GLU_PIECE), glu_piece, &j);
}

static void glu(const dw_back_env *e, const float *g, const float *u, size_t n, float *a) {
    run_glu(e,
            (glu_job){.g = (float *)(uintptr_t)g, .u = (float *)(uintptr_t)u, .n = n, .a = a}); // g and u are only read
}

static void glu_back(const dw_back_env *e, const float *da, size_t n, float *g, float *u) {
    run_glu(e, (glu_job){.da = da, .g = g, .u = u, .n = n});
}

typedef struct attend_job {
    const dw_back_env *e;
    const dw_back_attention *a;
    bool back;
} attend_job;

/* A KV head of a window. */
static void attend_piece(void *job, int piece, const thread_memory *m) {
    const attend_job *j = job;
    const dw_back_attention *a = j->a;
    const dw_hparams *hp = &j->e->net->hp;
    const int group = a->n_head / a->n_head_kv, window = piece / a->n_head_kv, kv_head = piece % a->n_head_kv,
              D = hp->head_dim;
    const size_t token = (size_t)window * (size_t)j->e->n_ctx, ld = (size_t)a->n_head * (size_t)D,
                 ld_kv = (size_t)a->n_head_kv * (size_t)D;
    const size_t q = token * ld + (size_t)(kv_head * group * D), kv = token * ld_kv + (size_t)(kv_head * D);
    dw_attend_back_job b = {.n = j->e->n_ctx,
                            .head_dim = D,
                            .n_group = group,
                            .q = a->q + q,
                            .k = a->k + kv,
                            .v = a->v + kv,
                            .ld = ld,
                            .ld_kv = ld_kv,
                            .mix = a->mix + q,
                            .lse = a->lse + token * (size_t)a->n_head + (size_t)(kv_head * group),
                            .ld_lse = (size_t)a->n_head,
                            .scale = hp->attn_scale,
                            .scratch = (float *)(void *)m->kernel};
    const own *o = j->e->own;
    if (j->back) b.dmix = a->dmix + q, b.dq = a->dq + q, b.dk = a->dk + kv, b.dv = a->dv + kv;
    (j->back ? o->back->attend_back : o->back->attend)(&b);
}

static void run_attention(const dw_back_env *e, const dw_back_attention *a, bool back) {
    for_pieces(e, a->n_seq * a->n_head_kv, attend_piece, &(attend_job){e, a, back});
}

static void attend(const dw_back_env *e, const dw_back_attention *a) { run_attention(e, a, false); }
static void attend_back(const dw_back_env *e, const dw_back_attention *a) { run_attention(e, a, true); }

typedef struct softmax_job {
    const own *own;
    const dw_back_softmax *s;
} softmax_job;

static void softmax_row(void *job, int r, const thread_memory *m) {
    const softmax_job *j = job;
    const dw_back_softmax *s = j->s;
    const size_t at = (size_t)r * (size_t)s->n_vocab;
    dw_softmax_job row = {.n = s->n_vocab,
                          .teacher = s->teacher ? s->teacher + at : NULL,
                          .logits = s->logits + at,
                          .target = s->target[r],
                          .temperature = (float)s->temperature,
                          .ce = (float)s->ce,
                          .scale = (float)s->scale};
    (void)m;
    if (s->counts[r])
        j->own->back->softmax(&row);
    else if (s->scale != 0)
        memset(row.logits, 0, (size_t)s->n_vocab * sizeof *row.logits);
    s->kl[r] = row.kl;
    s->nll[r] = row.nll;
}

static void softmax(const dw_back_env *e, const dw_back_softmax *s) {
    for_pieces(e, s->n, softmax_row, &(softmax_job){e->own, s});
}

typedef struct spread_job {
    const own *own;
    const dw_back_spread *s;
} spread_job;

/* The known tokens of a row are left out of the sum by values whose exp() is 0. */
static void spread_row(void *job, int r, const thread_memory *m) {
    const spread_job *j = job;
    const dw_back_spread *s = j->s;
    const size_t at = (size_t)r * (size_t)s->n_vocab, first = (size_t)r * (size_t)s->from.k;
    const float *z = s->logits + at, tau = (float)s->temperature;
    float *out = s->out + at, max, sum;
    (void)m;
    for (int i = 0; i < s->n_vocab; i++) out[i] = z[i] / tau;
    for (int i = 0; i < s->from.k; i++) out[s->from.token[first + (size_t)i]] = -1e30f;
    j->own->vec->exp_sum(out, s->n_vocab, &max, &sum);
    const float shift = s->from.k < s->n_vocab ? s->from.rest[r] - max - logf(sum) : 0;
    for (int i = 0; i < s->n_vocab; i++) out[i] = z[i] + tau * shift;
    for (int i = 0; i < s->from.k; i++)
        out[s->from.token[first + (size_t)i]] = tau * s->from.logprob[first + (size_t)i];
}

static void spread(const dw_back_env *e, const dw_back_spread *s) {
    for_pieces(e, s->n, spread_row, &(spread_job){e->own, s});
}

const dw_back_ops dw_back_ops_cpu = {.lay_out = lay_out,
                                     .start = start,
                                     .linear = linear,
                                     .linear_x = linear_x,
                                     .linear_w = linear_w,
                                     .glu = glu,
                                     .glu_back = glu_back,
                                     .attend = attend,
                                     .attend_back = attend_back,
                                     .spread = spread,
                                     .softmax = softmax};
