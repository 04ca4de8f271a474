/* sequential.c - repairs in the order of the layers, each on the layers below as they are cut (repairs.h). */
#include "model/model.h"
#include "prune/gram_sums.h"
#include "prune/obs_model.h"
#include "prune/repair.h"
#include "prune/repairs.h"
#include "prune/walk.h"
#include "qtypes/encoding.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>

enum { TILE = 256 };

/* ---- matrix products on the pool, by tiles ---------------------------------------------------------------- */

typedef struct product {
    const float *a, *b;
    float *c;    // y = a b^T + beta c, a (m, k), b (n, k)
    double *sum; // or: sum += a^T b, a (k, m), b (k, n), in double
    int m, n, k;
    float alpha, beta;
    float *scratch; // a tile for each thread
} product;

static void multiply(void *arg, int ith, int n_threads) {
    const product *p = arg;
    float *tile = p->scratch + (size_t)ith * GRAM_SCRATCH;
    int at = 0;
    for (int r = 0; r < p->m; r += TILE)
        for (int c = 0; c < p->n; c += TILE) {
            if (at++ % n_threads != ith) continue;
            const int nr = dw_smaller(TILE, p->m - r), nc = dw_smaller(TILE, p->n - c);
            if (!p->sum) {
                cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, nr, nc, p->k, p->alpha,
                            p->a + (size_t)r * (size_t)p->k, p->k, p->b + (size_t)c * (size_t)p->k, p->k, p->beta,
                            p->c + (size_t)r * (size_t)p->n + c, p->n);
                continue;
            }
            cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, nr, nc, p->k, 1, p->a + r, p->m, p->b + c, p->n, 0,
                        tile, TILE);
            for (int i = 0; i < nr; i++)
                for (int k = 0; k < nc; k++)
                    p->sum[(size_t)(r + i) * (size_t)p->n + (size_t)(c + k)] += (double)tile[i * TILE + k];
        }
}

/* ---- the state of a layer --------------------------------------------------------------------------------- */

typedef struct sequence {
    const repairs_task *t;
    walk dense, cut;
    int l, n_ff, n_keep, d;
    int32_t *keep;
    float *v, *v_keep;    // (d, n_ff), (d, n_keep): V, V_S
    float *expanded;      // (d, n_ff): V' as in the file, with zeros; the cut session reads it
    float *a, *a_cut;     // (rows, n_ff): tapped neurons of a batch
    float *x;             // (rows, d): residual of the cut path after the layer as it was
    float *y, *y_cut, *r; // (rows, d): V a, V a', R
    float *kept;          // (rows, n_keep): a'_S
    float *scratch;       // a tile for each thread
    double *gram, *cross; // packed (n_keep); (n_keep, d)
    float **o;            // (n_layer): o where heads are cut; the cut session reads it
    int *all_rows;        // 0, 1, 2, ..
} sequence;

static void release_layer(sequence *s) {
    free(s->keep), free(s->v), free(s->v_keep), free(s->gram), free(s->cross), free(s->kept), free(s->expanded);
    s->keep = NULL, s->v = s->v_keep = s->kept = s->expanded = NULL, s->gram = s->cross = NULL;
}

static void release(sequence *s) {
    release_layer(s);
    walk_close(&s->dense);
    walk_close(&s->cut);
    for (int l = 0; s->o && l < dw_model_hparams(s->t->model)->n_layer; l++) free(s->o[l]);
    free(s->o);
    free(s->a), free(s->a_cut), free(s->x), free(s->y), free(s->y_cut), free(s->r), free(s->scratch), free(s->all_rows);
}

static int take_memory(sequence *s, dw_err *err) {
    const size_t rows = WALK_TOKENS, n_ff = (size_t)dw_model_hparams(s->t->model)->n_ff_max, d = (size_t)s->d;
    s->a = dw_alloc(rows, n_ff * sizeof *s->a, "neurons of a batch", err);
    s->a_cut = dw_alloc(rows, n_ff * sizeof *s->a_cut, "neurons of a batch", err);
    s->x = dw_alloc(rows, d * sizeof *s->x, "a batch", err);
    s->y = dw_alloc(rows, d * sizeof *s->y, "a batch", err);
    s->y_cut = dw_alloc(rows, d * sizeof *s->y_cut, "a batch", err);
    s->r = dw_alloc(rows, d * sizeof *s->r, "a batch", err);
    s->scratch = dw_alloc((size_t)dw_pool_size(s->t->pool), GRAM_SCRATCH * sizeof *s->scratch, "a product", err);
    s->all_rows = dw_alloc(rows, sizeof *s->all_rows, "a batch", err);
    for (int i = 0; s->all_rows && i < WALK_TOKENS; i++) s->all_rows[i] = i;
    return s->a && s->a_cut && s->x && s->y && s->y_cut && s->r && s->scratch && s->all_rows ? 0 : -1;
}

static int begin_layer(sequence *s, int l, dw_err *err) {
    const kit_plan_layer *p = &s->t->plan->layer[l];
    s->l = l;
    s->n_ff = dw_model_hparams(s->t->model)->n_ff[l];
    s->n_keep = p->n_keep;
    const size_t n_keep = (size_t)s->n_keep, n_ff = (size_t)s->n_ff, d = (size_t)s->d;
    s->keep = dw_alloc(n_keep, sizeof *s->keep, "kept neurons", err);
    s->v = prune_decode_down(s->t->source ? s->t->source : s->t->model, l, s->t->pool, err);
    s->v_keep = dw_alloc(d, n_keep * sizeof *s->v_keep, "kept columns of down", err);
    s->kept = dw_alloc(WALK_TOKENS, n_keep * sizeof *s->kept, "kept neurons of a batch", err);
    s->gram = dw_alloc(kit_gram_packed(s->n_keep), sizeof *s->gram, "a Gram matrix", err);
    s->cross = dw_alloc(n_keep, d * sizeof *s->cross, "a Gram matrix", err);
    s->expanded = dw_alloc(d, n_ff * sizeof *s->expanded, "a repaired matrix", err);
    if (!s->keep || !s->v || !s->v_keep || !s->kept || !s->gram || !s->cross || !s->expanded) return -1;
    kit_plan_neurons(p, s->keep);
    for (size_t r = 0; r < d; r++)
        for (size_t k = 0; k < n_keep; k++) s->v_keep[r * n_keep + k] = s->v[r * n_ff + (size_t)s->keep[k]];
    return 0;
}

/* ---- sums over a batch ------------------------------------------------------------------------------------ */

static void copy_neurons(void *ctx, const dw_tap_event *e) {
    memcpy(ctx, e->values, (size_t)e->n_tokens * (size_t)e->n * sizeof(float));
}

static void set_tap(walk *w, float *to) {
    dw_session_set_tap(w->session,
                       to ? &(dw_tap){.points = 1u << DW_TAP_FFN_NEURON, .fn = copy_neurons, .ctx = to} : NULL);
}

static void run(const sequence *s, product p) {
    p.scratch = s->scratch;
    dw_pool_run(s->t->pool, multiply, &p);
}

/* R of all rows:  beta (gap (x - x') + V a) + (1 - beta) V a' - V_S a'_S.  The residuals after the layer give those
 * before its FFN: x = after - V a. */
static void make_residual(sequence *s) {
    const int n = s->dense.batch.n_tokens;
    const float beta = (float)s->t->target->dense, gap = (float)s->t->gap;
    const size_t n_value = (size_t)n * (size_t)s->d, n_keep = (size_t)s->n_keep, n_ff = (size_t)s->n_ff;
    run(s, (product){.a = s->a, .b = s->v, .c = s->y, .m = n, .n = s->d, .k = s->n_ff, .alpha = 1});
    run(s, (product){.a = s->a_cut, .b = s->v, .c = s->y_cut, .m = n, .n = s->d, .k = s->n_ff, .alpha = 1});
    for (size_t i = 0; i < n_value; i++) {
        const float before = s->dense.residual[i] - s->y[i], before_cut = s->x[i] - s->y_cut[i];
        s->r[i] = beta * (gap * (before - before_cut) + s->y[i]) + (1 - beta) * s->y_cut[i];
    }
    for (size_t i = 0; i < (size_t)n; i++)
        for (size_t k = 0; k < n_keep; k++) s->kept[i * n_keep + k] = s->a_cut[i * n_ff + (size_t)s->keep[k]];
    run(s,
        (product){.a = s->kept, .b = s->v_keep, .c = s->r, .m = n, .n = s->d, .k = s->n_keep, .alpha = -1, .beta = 1});
}

typedef struct adding {
    double *sum;
    int n, n_row;
    const float *x;
    const int *row;
    float *scratch;
} adding;

static void add_gram(void *arg, int ith, int n_threads) {
    const adding *a = arg;
    gram_add(a->sum, a->n, a->x, a->row, a->n_row, a->scratch, ith, n_threads);
}

/* Rows of positions that do not count become zero. */
static void clear_others(const sequence *s) {
    const walk *w = &s->dense;
    for (int i = 0, k = 0; i < w->batch.n_tokens; i++) {
        if (k < w->n_row && w->row[k] == i)
            k++;
        else
            memset(s->r + (size_t)i * (size_t)s->d, 0, (size_t)s->d * sizeof *s->r);
    }
}

static void add_sums(sequence *s) {
    const walk *w = &s->dense;
    clear_others(s);
    dw_pool_run(s->t->pool, add_gram, &(adding){s->gram, s->n_keep, w->n_row, s->kept, w->row, s->scratch});
    run(s, (product){.a = s->kept, .b = s->r, .sum = s->cross, .m = s->n_keep, .n = s->d, .k = w->batch.n_tokens});
}

static int sum_batch(sequence *s, int b, dw_err *err) {
    walk_select(&s->dense, b);
    walk_select(&s->cut, b);
    memcpy(s->x, s->cut.residual, (size_t)s->cut.batch.n_tokens * (size_t)s->d * sizeof *s->x);
    if (walk_run(&s->dense, s->l, s->l + 1, s->dense.residual, err) || walk_run(&s->cut, s->l, s->l + 1, s->x, err))
        return -1;
    make_residual(s);
    add_sums(s);
    progress_step(s->t->bar, 2.0 * s->cut.batch.n_tokens / dw_model_hparams(s->t->model)->n_layer);
    return 0;
}

/* ---- a layer ---------------------------------------------------------------------------------------------- */

/* V' as a reader of the file will see it, at the places of the kept neurons. */
static int expand(const sequence *s, const repairs *r, dw_err *err) {
    const repairs_rounding m = {.tensor = "ffn_down",
                                .advice = "choose another --down-type",
                                .type = s->t->down_type ? s->t->down_type : s->t->model->net.layer[s->l].down.type,
                                .value = r->down[s->l],
                                .importance = r->importance[s->l],
                                .keep = s->keep,
                                .d = (size_t)s->d,
                                .n_keep = (size_t)s->n_keep,
                                .n = (size_t)s->n_ff,
                                .to = s->expanded};
    return repairs_round(&m, s->l, err);
}

static int solve(sequence *s, repairs *r, dw_err *err) {
    const kit_gram_matrix gram = {.layer = s->l, .input = KIT_STATS_FFN_NEURON, .n = s->n_keep, .sum = s->gram};
    const double n_tokens = walk_n_counted(&s->cut);
    int32_t *all = dw_alloc((size_t)s->n_keep, sizeof *all, "kept neurons", err);
    damping info;
    if (!all) return -1;
    for (int i = 0; i < s->n_keep; i++) all[i] = i;
    const repair_task task = {.gram = &gram,
                              .n_tokens = n_tokens,
                              .v = s->v_keep,
                              .d = s->d,
                              .keep = all,
                              .n_keep = s->n_keep,
                              .damp = s->t->damp,
                              .cross = s->cross};
    const int rc = repair_least_squares(&task, r->down[s->l], &info, s->t->pool, err);
    free(all);
    if (rc) return -1;
    damping_report_layer(s->t->report, s->l, &info, s->n_keep, n_tokens);
    for (int i = 0; i < s->n_keep; i++) r->importance[s->l][i] = (float)(kit_gram_at(&gram, i, i) / n_tokens);
    dw_weights_raise(r->importance[s->l], (size_t)s->n_keep);
    return expand(s, r, err);
}

/* Layer l of a path on all texts, in place. */
static int advance(const sequence *s, walk *w, int l, double share, dw_err *err) {
    set_tap(w, NULL);
    for (int b = 0; b < w->n_batch; b++) {
        walk_select(w, b);
        if (walk_run(w, l, l + 1, w->residual, err)) return -1;
        progress_step(s->t->bar, share * w->batch.n_tokens / dw_model_hparams(s->t->model)->n_layer);
    }
    return 0;
}

static int repair_layer(sequence *s, repairs *r, int l, dw_err *err) {
    if (begin_layer(s, l, err)) return -1;
    set_tap(&s->dense, s->a);
    set_tap(&s->cut, s->a_cut);
    for (int b = 0; b < s->cut.n_batch; b++)
        if (sum_batch(s, b, err)) return -1;
    if (solve(s, r, err)) return -1;
    const dw_tensor down = {.type = dw_qtype_get(DW_F32),
                            .ne = {(size_t)s->n_ff, (size_t)s->d, 1, 1},
                            .data = (const uint8_t *)s->expanded};
    if (dw_session_replace(s->cut.session, l, DW_W_DOWN, &down, err) || advance(s, &s->cut, l, 1, err)) return -1;
    return dw_session_replace(s->cut.session, l, DW_W_DOWN, NULL, err); // the matrix is released
}

static int pass_layer(sequence *s, repairs *r, int l, dw_err *err) {
    const bool drops = s->t->plan->layer[l].drop;
    const bool repaired = repairs_needed(s->t, l);
    int rc = repaired ? repair_layer(s, r, l, err) : advance(s, &s->dense, l, drops ? 3 : 1.5, err);
    if (!rc && !repaired && !drops) rc = advance(s, &s->cut, l, 1.5, err);
    release_layer(s);
    return rc;
}

/* The cut session computes without the heads that are cut. */
static int cut_heads(sequence *s, const repairs *r, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(s->t->model);
    s->o = dw_alloc((size_t)r->n_layer, sizeof *s->o, "o matrices", err);
    if (!s->o) return -1;
    for (int l = 0; l < r->n_layer; l++) {
        if (!repairs_head_columns(hp, s->t->plan, l, NULL)) continue;
        s->o[l] = repairs_whole_o(r, s->t, l, err);
        const dw_tensor o = {.type = dw_qtype_get(DW_F32),
                             .ne = {(size_t)hp->n_head[l] * (size_t)hp->head_dim, (size_t)s->d, 1, 1},
                             .data = (const uint8_t *)s->o[l]};
        if (!s->o[l] || dw_session_replace(s->cut.session, l, DW_W_O, &o, err)) return -1;
    }
    return 0;
}

int repairs_sequential(repairs *r, const repairs_task *t, dw_err *err) {
    sequence s = {.t = t, .d = dw_model_hparams(t->model)->n_embd};
    const dw_session_options o = {.pool = t->pool, .backend = t->backend};
    int rc = take_memory(&s, err);
    if (!rc) rc = walk_open(&s.dense, t->model, t->texts, 0, &o, err);
    if (!rc) rc = walk_open(&s.cut, t->model, t->texts, 0, &o, err);
    if (!rc) rc = cut_heads(&s, r, err);
    for (int l = 0; l < r->n_layer && !rc; l++) rc = pass_layer(&s, r, l, err);
    release(&s);
    return rc;
}
