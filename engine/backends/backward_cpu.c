/* backward_cpu.c - the arithmetic of the training pass on the cpu backend's kernels.
 *
 * The three products of a matrix are the same kernel (kernels.h), which multiplies packed vectors with rows or columns
 * of another matrix.  Either factor may be the packed one; the cheaper way is taken:
 *
 *     product       packed once            the other, unpacked for each 512 packed vectors
 *     y = x W^T     rows of W (n >= n_out) rows of x        dw_gemm_rows, by_rows
 *                   rows of x              rows of W        dw_gemm_rows
 *     dx = dy W     columns of W (F32)     rows of dy       dw_gemm_rows, by_rows: nothing is transposed
 *                   rows of dy             columns of W     dw_gemm_columns
 *     dW = dy^T x   columns of x           columns of dy    dw_gemm_columns, by_rows
 *                   columns of dy          columns of x     dw_gemm_columns: if fewer values are unpacked
 *
 * The way depends on shapes and types only.  Pieces (a group of packed vectors times up to 256 rows or columns) are
 * taken from a counter.  The kernel's sums do not depend on the shape of a piece. */
#include "backends/backward.h"
#include "backends/kernels_backward.h"
#include "backends/kernels_vec.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum {
    PIECE_ROWS = 256,
    LEAST_PIECE_ROWS = 32,
    PIECES_PER_THREAD = 4, // of a product
    LEAST_GROUP = 128,     // of packed vectors
    PACK_PIECES = 32,      // of a group
    GLU_PIECE = 4096,
};

typedef struct thread_memory {
    uint8_t *kernel; // DW_GEMM_SCRATCH, or attention's
    double rate;     // of rate()
} thread_memory;

typedef struct own {
    dw_level level;
    const dw_vec *vec;
    const dw_vec_back *back;
    uint8_t *packed;
    thread_memory thread[]; // n_threads
} own;

static int count(int n, int size) { return (n + size - 1) / size; }
static int whole(int n) { return count(n, 32) * 32; } // packed sizes are those of whole pieces

static void lay_out(dw_back_env *e, dw_layout *a, const dw_back_sizes *most) {
    const dw_hparams *hp = &e->net->hp;
    const int n_threads = dw_pool_size(e->pool), n = whole(most->n_tokens), n_rows = whole(most->n_rows),
              widest = whole(most->widest), n_vocab = whole(hp->n_vocab), d = whole(hp->n_embd);
    own *o = dw_layout_take(a, 1, sizeof *o + (size_t)n_threads * sizeof o->thread[0]);
    const size_t kernel = dw_larger_size(DW_GEMM_SCRATCH,
                                         dw_attend_back_scratch(e->n_ctx, hp->head_dim) * sizeof(float));
    const size_t layer = dw_larger_size(dw_gemm_pack_bytes(n, widest), dw_gemm_pack_bytes(widest, widest)),
                 head = dw_larger_size(dw_gemm_pack_bytes(n_vocab, d), dw_gemm_pack_bytes(n_vocab, n_rows));
    uint8_t *packed = dw_layout_take(a, dw_larger_size(layer, most->gradients ? head : 0), 1);
    for (int i = 0; i < n_threads; i++) {
        uint8_t *k = dw_layout_take(a, kernel, 1);
        if (a->base) o->thread[i] = (thread_memory){.kernel = k};
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

/* A product of packed vectors with rows or columns of w. */
typedef struct product {
    const own *own;
    dw_gemm_form form;
    const float *x;             // (n_packed, n_in): the packed vectors; turned: (n_in, n_packed)
    const dw_tensor *x_rows;    // not NULL: in its place, rows of a matrix
    bool turned;
    int n_packed, n_in, group;  // vectors, values of each, vectors of a group
    const dw_tensor *w, *bias;
    bool columns;               // of w
    int n_out, piece_rows;      // rows or columns of w
    float *y;                   // (n_packed, n_out); by_rows: (n_out, n_packed)
    bool add, by_rows;
} product;

static dw_gemm_form form_of(const dw_back_env *e) {
    const own *o = e->own;
    if (e->precision == DW_PRECISION_ROUNDED && dw_level_has_bf16(o->level)) return DW_GEMM_ROUNDED;
    return o->level < DW_AMX ? DW_GEMM_F32 : DW_GEMM_SPLIT;
}

/* Activations (n, width) as a matrix. */
static dw_tensor values_of(const float *x, int width, int n) {
    return (dw_tensor){.name = "x",
                       .type = dw_qtype_get(DW_F32),
                       .n_dims = 2,
                       .ne = {(size_t)width, (size_t)n, 1, 1},
                       .data = (const uint8_t *)(const void *)x};
}

static int group_size(const product *p, int group) { return dw_smaller(p->group, p->n_packed - group * p->group); }

static uint8_t *packed_group(const product *p, int group) {
    return p->own->packed + (group ? dw_gemm_pack_bytes(group * p->group, p->n_in) : 0);
}

static void pack_piece(void *job, int piece, const thread_memory *m) {
    const product *p = job;
    const int group = piece / PACK_PIECES;
    const size_t first = (size_t)group * (size_t)p->group;
    (void)m;
    const dw_gemm_tokens tokens = {.level = p->own->level,
                                   .form = p->form,
                                   .x = p->x_rows ? NULL : p->x + first * (p->turned ? 1 : (size_t)p->n_in),
                                   .ldx = (size_t)(p->turned ? p->n_packed : p->n_in),
                                   .n_tokens = group_size(p, group),
                                   .n = p->n_in,
                                   .w = p->x_rows,
                                   .first = first};
    (p->turned ? dw_gemm_pack_turned : dw_gemm_pack)(&tokens, packed_group(p, group), piece % PACK_PIECES, PACK_PIECES);
}

/* y (n_rows, n), rows ldy apart, += bias of its columns. */
static void add_bias(const product *p, float *y, size_t ldy, int n_rows, int first, int n) {
    if (!p->bias || !p->bias->name) return;
    const float *bias = (const float *)(const void *)p->bias->data + first;
    for (int r = 0; r < n_rows; r++) p->own->vec->add(y + (size_t)r * ldy, bias, NULL, n);
}

static void multiply_piece(void *job, int piece, const thread_memory *m) {
    const product *p = job;
    const int n_each = count(p->n_out, p->piece_rows), group = piece / n_each, first = piece % n_each * p->piece_rows;
    const int n = dw_smaller(p->piece_rows, p->n_out - first), vector = group * p->group,
              n_vectors = group_size(p, group);
    const size_t ldy = (size_t)(p->by_rows ? p->n_packed : p->n_out);
    float *y = p->by_rows ? p->y + (size_t)first * ldy + vector : p->y + (size_t)vector * ldy + first;
    const dw_gemm_job j = {.level = p->own->level,
                           .form = p->form,
                           .w = p->w,
                           .first = (size_t)first,
                           .n_rows = n,
                           .packed = packed_group(p, group),
                           .n_tokens = n_vectors,
                           .y = y,
                           .ldy = ldy,
                           .scratch = m->kernel,
                           .by_rows = p->by_rows,
                           .add = p->add};
    (p->columns ? dw_gemm_columns : dw_gemm_rows)(&j);
    if (p->by_rows)
        add_bias(p, y, ldy, n, vector, n_vectors);
    else
        add_bias(p, y, ldy, n_vectors, first, n);
}

static int n_pieces(const product *p) { return count(p->n_packed, p->group) * count(p->n_out, p->piece_rows); }

/* Fewer rows in a piece where there would not be enough pieces for the threads; columns are whole blocks of their
 * type.  Then fewer vectors in a group, which costs more, because rows are unpacked for each group. */
static void cut(const dw_back_env *e, product *p) {
    const int n_threads = dw_pool_size(e->pool);
    const int least = p->columns && p->w->type->block > LEAST_PIECE_ROWS ? PIECE_ROWS : LEAST_PIECE_ROWS;
    p->piece_rows = PIECE_ROWS;
    p->group = DW_GEMM_TOKENS;
    while (p->piece_rows > least && n_pieces(p) < PIECES_PER_THREAD * n_threads) p->piece_rows /= 2;
    while (p->group > LEAST_GROUP && n_pieces(p) < n_threads) p->group /= 2;
}

static void pack(const dw_back_env *e, product *p) {
    for_pieces(e, count(p->n_packed, p->group) * PACK_PIECES, pack_piece, p);
}

static void multiply(const dw_back_env *e, product *p) { for_pieces(e, n_pieces(p), multiply_piece, p); }

static void pack_and_multiply(const dw_back_env *e, product p) {
    p.own = e->own;
    p.form = form_of(e);
    cut(e, &p);
    pack(e, &p);
    multiply(e, &p);
}

/* The packed rows of W times rows of x. */
static void linear_by_weights(const dw_back_env *e, const dw_back_linear *l, const float *x, int n) {
    const int n_in = (int)l->w->ne[0];
    const dw_tensor rows = values_of(x, n_in, n);
    pack_and_multiply(e, (product){.x_rows = l->w,
                                   .n_packed = (int)l->w->ne[1],
                                   .n_in = n_in,
                                   .w = &rows,
                                   .bias = l->bias,
                                   .n_out = n,
                                   .y = l->y,
                                   .by_rows = true});
}

static bool is_small(const dw_back_linear *l, int n) { return l->w->ne[1] <= (size_t)n; }

static void linear(const dw_back_env *e, const dw_back_linear *list, int n_list, const float *x, int n) {
    product p = {.own = e->own, .form = form_of(e), .x = x, .n_packed = n, .n_in = (int)list->w->ne[0]};
    bool packed = false;
    for (const dw_back_linear *l = list; l < list + n_list; l++) // those first that overwrite the packed tokens
        if (is_small(l, n)) linear_by_weights(e, l, x, n);
    for (const dw_back_linear *l = list; l < list + n_list; l++) {
        if (is_small(l, n)) continue;
        p.w = l->w;
        p.bias = l->bias;
        p.n_out = (int)l->w->ne[1];
        p.y = l->y;
        const int group = p.group;
        cut(e, &p);
        if (!packed || p.group != group) pack(e, &p);
        packed = true;
        multiply(e, &p);
    }
}

static void linear_x(const dw_back_env *e, const dw_tensor *w, const float *dy, int n, float *dx, bool add) {
    const int n_in = (int)w->ne[1], n_out = (int)w->ne[0];
    const dw_tensor rows = values_of(dy, n_in, n);
    if (w->type->id == DW_F32)
        pack_and_multiply(e, (product){.x = (const float *)(const void *)w->data,
                                       .turned = true,
                                       .n_packed = n_out,
                                       .n_in = n_in,
                                       .w = &rows,
                                       .n_out = n,
                                       .y = dx,
                                       .add = add,
                                       .by_rows = true});
    else
        pack_and_multiply(e, (product){.x = dy,
                                       .n_packed = n,
                                       .n_in = n_in,
                                       .w = w,
                                       .columns = true,
                                       .n_out = n_out,
                                       .y = dx,
                                       .add = add});
}

/* Packed are the columns of x, or those of dy if fewer values are then unpacked. */
static void linear_w(const dw_back_env *e, const float *x, int n_in, const float *dy, int n_out, int n, float *dw) {
    const bool packs_x = count(n_in, DW_GEMM_TOKENS) * n_out <= count(n_out, DW_GEMM_TOKENS) * n_in;
    const dw_tensor rows = packs_x ? values_of(dy, n_out, n) : values_of(x, n_in, n);
    pack_and_multiply(e, (product){.x = packs_x ? x : dy,
                                   .turned = true,
                                   .n_packed = packs_x ? n_in : n_out,
                                   .n_in = n,
                                   .w = &rows,
                                   .columns = true,
                                   .n_out = packs_x ? n_out : n_in,
                                   .y = dw,
                                   .add = true,
                                   .by_rows = packs_x});
}

static void rate_of_thread(void *env, int ith, int n_threads) {
    const dw_back_env *e = env;
    own *o = e->own;
    (void)n_threads;
    o->thread[ith].rate = dw_gemm_rate(o->level, form_of(e), 0.03, o->thread[ith].kernel);
}

/* The best of three, because another process may run meanwhile. */
static double rate(const dw_back_env *e) {
    const own *o = e->own;
    double best = 0;
    for (int k = 0; k < 3; k++) {
        double sum = 0;
        dw_pool_run(e->pool, rate_of_thread, &(dw_back_env){e->pool, e->net, e->n_ctx, e->precision, e->own});
        for (int i = 0; i < dw_pool_size(e->pool); i++) sum += o->thread[i].rate;
        best = fmax(best, sum);
    }
    return best;
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
    const own *o = j->e->own;
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
                            .scratch = (float *)(void *)m->kernel,
                            .has_tiles = o->level >= DW_AMX};
    if (j->back) b.dmix = a->dmix + q, b.dq = a->dq + q, b.dk = a->dk + kv, b.dv = a->dv + kv;
    if (form_of(j->e) == DW_GEMM_ROUNDED)
        (j->back ? dw_attend_back_rounded : dw_attend_rounded)(&b);
    else
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

/* The known tokens of a row are left out of the sum by values whose exp() is the least that there is (2^-126). */
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
                                     .softmax = softmax,
                                     .rate = rate};
