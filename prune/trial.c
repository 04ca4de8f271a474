/* trial.c - the divergence of a cut model, with as few layers computed as possible (trial.h). */
#include "prune/trial.h"

#include "measure/distribution.h"
#include "prune/allocate.h"
#include "prune/obs_model.h"
#include "prune/repair.h"
#include "prune/walk.h"

#include <stdlib.h>
#include <string.h>

enum { TILE = 64 };              // rows of logits at a time
#define MOST_STORED (1ull << 30)   // bytes of residuals
#define MOST_MATRICES (4ull << 30) // bytes of repaired matrices that no layer uses now

typedef struct matrix { // down of a layer at a width, (n_embd, n_ff) BF16 with zero columns
    int n_keep;
    uint16_t *data;
} matrix;

typedef struct matrix_list {
    matrix *item;
    size_t n, cap;
} matrix_list;

struct prune_trial {
    trial_options o;
    const dw_hparams *hp;
    walk w;                  // its x: the embedded texts
    int stride;              // every stride-th layer's residuals are stored
    float **stored;          // (n_layer): before the layer, at the accepted widths; NULL: not stored
    int *accepted, *current; // (n_layer): widths of `stored`, -1 before there are any; of the session
    matrix_list *list;       // (n_layer)
    float *x, *logits;       // residuals of a batch; (TILE, n_vocab)
    uint8_t *out;
    measure_coarse *whole; // predictions of the whole model, in order
    size_t n_scored;
    int n_windows;
};

/* ---- matrices --------------------------------------------------------------------------------------------- */

static int list_kept(const prune_trial *t, int l, int n_keep, int32_t *keep, dw_err *err) {
    const int n_ff = t->hp->n_ff[l];
    bool *stays = dw_alloc((size_t)n_ff, sizeof *stays, "kept neurons", err);
    const int rc = stays ? prune_choose(t->o.score[l], n_ff, t->o.group, n_keep, stays, err) : -1;
    for (int j = 0, i = 0; j < n_ff && !rc; j++)
        if (stays[j]) keep[i++] = j;
    free(stays);
    return rc;
}

/* Values of the kept columns, (n_embd, n_keep). */
static int fit(const prune_trial *t, int l, const int32_t *keep, int n_keep, float *down, dw_err *err) {
    const size_t n_ff = (size_t)t->hp->n_ff[l], d = (size_t)t->hp->n_embd;
    float *v = prune_decode_down(t->o.model, l, t->o.pool, err);
    double n_tokens = 0;
    const kit_gram_matrix *g = v && t->o.gram ? kit_gram_find(t->o.gram, l, KIT_STATS_FFN_NEURON, &n_tokens, err)
                                              : NULL;
    int rc = v && (g || !t->o.gram) ? 0 : -1;
    for (size_t r = 0; r < d && !rc && !g; r++)
        for (int s = 0; s < n_keep; s++) down[r * (size_t)n_keep + (size_t)s] = v[r * n_ff + (size_t)keep[s]];
    const repair_task task = {
        .gram = g, .n_tokens = n_tokens, .v = v, .d = t->hp->n_embd, .keep = keep, .n_keep = n_keep, .damp = t->o.damp};
    if (!rc && g) rc = repair_least_squares(&task, down, NULL, t->o.pool, err);
    free(v);
    return rc;
}

static uint16_t *make_matrix(const prune_trial *t, int l, int n_keep, dw_err *err) {
    const size_t n_ff = (size_t)t->hp->n_ff[l], d = (size_t)t->hp->n_embd, n = (size_t)n_keep;
    int32_t *keep = dw_alloc(n, sizeof *keep, "kept neurons", err);
    float *down = dw_alloc(d, n * sizeof *down, "a repaired matrix", err);
    uint16_t *data = dw_alloc(d, n_ff * sizeof *data, "a repaired matrix", err);
    const bool ok = keep && down && data && !list_kept(t, l, n_keep, keep, err) && !fit(t, l, keep, n_keep, down, err);
    for (size_t r = 0; r < d && ok; r++)
        for (size_t s = 0; s < n; s++) data[r * n_ff + (size_t)keep[s]] = dw_f32_to_bf16(down[r * n + s]);
    free(keep);
    free(down);
    if (ok) return data;
    free(data);
    return NULL;
}

/* Whether the layer may have no more matrices than it has. */
static bool is_full(const prune_trial *t, int l) {
    const double one = (double)t->hp->n_ff[l] * t->hp->n_embd * (double)sizeof(uint16_t);
    return (double)t->list[l].n * one >= (double)MOST_MATRICES / t->hp->n_layer;
}

/* The oldest matrix of a layer goes, but not the one that its session reads. */
static void forget_oldest(prune_trial *t, int l) {
    matrix_list *list = &t->list[l];
    size_t i = 0;
    while (i < list->n && list->item[i].n_keep == t->current[l]) i++;
    if (i == list->n) return;
    free(list->item[i].data);
    memmove(&list->item[i], &list->item[i + 1], (list->n - i - 1) * sizeof *list->item);
    list->n--;
}

static const uint16_t *find_matrix(prune_trial *t, int l, int n_keep, dw_err *err) {
    matrix_list *list = &t->list[l];
    for (size_t i = 0; i < list->n; i++)
        if (list->item[i].n_keep == n_keep) return list->item[i].data;
    if (dw_grow(&list->item, &list->cap, list->n + 1, sizeof *list->item, "repaired matrices", err)) return NULL;
    if (is_full(t, l)) forget_oldest(t, l);
    uint16_t *data = make_matrix(t, l, n_keep, err);
    if (data) list->item[list->n++] = (matrix){n_keep, data};
    return data;
}

/* The session computes with these widths. */
static int set_widths(prune_trial *t, const int *n_keep, dw_err *err) {
    for (int l = 0; l < t->hp->n_layer; l++) {
        if (t->o.drop[l] || n_keep[l] == t->current[l]) continue;
        const size_t n_ff = (size_t)t->hp->n_ff[l];
        dw_tensor down = {.type = dw_qtype_get(DW_BF16), .ne = {n_ff, (size_t)t->hp->n_embd, 1, 1}};
        const bool is_whole = n_keep[l] == t->hp->n_ff[l];
        if (!is_whole && !(down.data = (const uint8_t *)find_matrix(t, l, n_keep[l], err))) return -1;
        if (dw_session_replace(t->w.session, l, DW_W_DOWN, is_whole ? NULL : &down, err)) return -1;
        t->current[l] = n_keep[l];
    }
    return 0;
}

/* ---- passes ----------------------------------------------------------------------------------------------- */

/* Layers first .. end - 1 without those that are dropped; `whole` computes them all. */
static int run_layers(prune_trial *t, int first, int end, bool whole, float *x, dw_err *err) {
    for (int l = first, to; l < end; l = to) {
        for (to = l + 1; to < end && (whole || t->o.drop[to] == t->o.drop[l]);) to++;
        if ((whole || !t->o.drop[l]) && walk_run(&t->w, l, to, x, err)) return -1;
    }
    return 0;
}

static void want_outputs(prune_trial *t) {
    memset(t->out, 0, (size_t)t->w.batch.n_tokens);
    for (int k = 0; k < t->w.n_row; k++) t->out[t->w.row[k]] = t->w.pos[t->w.row[k]] >= t->o.texts->n_ctx / 2;
    t->w.batch.out = t->out;
}

/* Rows of logits of the selected batch: stored when kl is NULL, else compared with the stored ones from row *at on. */
static int look_at_logits(prune_trial *t, size_t *at, double *kl, int *n, int first_window, dw_err *err) {
    const int n_vocab = t->hp->n_vocab;
    int row = 0, n_rows = 0;
    for (int i = 0; i < t->w.batch.n_tokens; i++) n_rows += t->out[i];
    for (int i = 0; i < t->w.batch.n_tokens; i++) {
        if (!t->out[i]) continue;
        if (row % TILE == 0 &&
            dw_session_logits(t->w.session, row, n_rows - row < TILE ? n_rows - row : TILE, t->logits, err))
            return -1;
        float *x = t->logits + (size_t)(row++ % TILE) * (size_t)n_vocab;
        const measure_row r = measure_row_of(x, n_vocab);
        if (r.top < 0) return dw_fail(err, "a logit is NaN or infinite; the model is damaged or overflows");
        if (!kl)
            measure_coarse_of(&t->whole[(*at)++], x, &r, n_vocab);
        else
            kl[first_window + t->w.seq[i]] += measure_coarse_kl(&t->whole[(*at)++], x, &r, n_vocab),
                n[first_window + t->w.seq[i]]++;
    }
    return 0;
}

static const float *start_of(const prune_trial *t, int l) { return l ? t->stored[l] : t->w.x; }

/* Evaluates all batches from layer `first` on; kl: sums of windows, NULL: the whole model is evaluated and stored. */
static int evaluate(prune_trial *t, int first, double *kl, int *n, dw_err *err) {
    const size_t d = (size_t)t->hp->n_embd;
    size_t at = 0;
    for (int b = 0; b < t->w.n_batch; b++) {
        walk_select(&t->w, b);
        want_outputs(t);
        memcpy(t->x, start_of(t, first) + t->w.first * d, (size_t)t->w.batch.n_tokens * d * sizeof *t->x);
        if (run_layers(t, first, t->hp->n_layer, !kl, t->x, err) ||
            dw_session_head(t->w.session, &t->w.batch, t->x, err) ||
            look_at_logits(t, &at, kl, n, (int)(t->w.first / (size_t)t->o.texts->n_ctx), err))
            return -1;
    }
    return 0;
}

/* The stored layer from which a trial with these widths may start. */
static int start_for(const prune_trial *t, const int *n_keep) {
    int l = 0;
    if (t->accepted[0] < 0) return 0; // nothing is stored yet
    while (l < t->hp->n_layer - 1 && (t->o.drop[l] || n_keep[l] == t->accepted[l])) l++;
    while (l && !t->stored[l]) l--;
    return l;
}

int trial_n_windows(const prune_trial *t) { return t->n_windows; }

int trial_run(prune_trial *t, const int *n_keep, double *kl, dw_err *err) {
    int *n = dw_alloc((size_t)t->n_windows, sizeof *n, "a trial", err);
    memset(kl, 0, (size_t)t->n_windows * sizeof *kl);
    int rc = n ? set_widths(t, n_keep, err) : -1;
    if (!rc) rc = evaluate(t, start_for(t, n_keep), kl, n, err);
    for (int w = 0; w < t->n_windows && !rc; w++)
        if (n[w]) kl[w] /= n[w];
    free(n);
    return rc;
}

int trial_accept(prune_trial *t, const int *n_keep, dw_err *err) {
    const int first = start_for(t, n_keep), n_layer = t->hp->n_layer;
    const size_t d = (size_t)t->hp->n_embd;
    if (set_widths(t, n_keep, err)) return -1;
    for (int b = 0; b < t->w.n_batch; b++) {
        walk_select(&t->w, b);
        const size_t n = (size_t)t->w.batch.n_tokens * d * sizeof *t->x;
        memcpy(t->x, start_of(t, first) + t->w.first * d, n);
        for (int l = first, to; l < n_layer; l = to) {
            for (to = l + 1; to < n_layer && !t->stored[to];) to++;
            if (to == n_layer) break;
            if (run_layers(t, l, to, false, t->x, err)) return -1;
            memcpy(t->stored[to] + t->w.first * d, t->x, n);
        }
    }
    memcpy(t->accepted, n_keep, (size_t)n_layer * sizeof *n_keep);
    return 0;
}

/* ---- new, free -------------------------------------------------------------------------------------------- */

void trial_free(prune_trial *t) {
    if (!t) return;
    walk_close(&t->w);
    for (int l = 0; l < t->hp->n_layer; l++) {
        if (t->stored) free(t->stored[l]);
        for (size_t i = 0; t->list && i < t->list[l].n; i++) free(t->list[l].item[i].data);
        if (t->list) free(t->list[l].item);
    }
    free(t->stored), free(t->list), free(t->accepted), free(t->current);
    free(t->x), free(t->logits), free(t->out), free(t->whole);
    free(t);
}

static int take_memory(prune_trial *t, dw_err *err) {
    const size_t n_layer = (size_t)t->hp->n_layer, d = (size_t)t->hp->n_embd, most = (size_t)t->w.most,
                 n_tokens = t->w.n_tokens;
    t->stored = dw_alloc(n_layer, sizeof *t->stored, "residuals", err);
    t->list = dw_alloc(n_layer, sizeof *t->list, "repaired matrices", err);
    t->accepted = dw_alloc(n_layer, sizeof *t->accepted, "widths", err);
    t->current = dw_alloc(n_layer, sizeof *t->current, "widths", err);
    t->x = dw_alloc(most, d * sizeof *t->x, "a batch", err);
    t->logits = dw_alloc(TILE, (size_t)t->hp->n_vocab * sizeof *t->logits, "logits", err);
    t->out = dw_alloc(most, 1, "a batch", err);
    t->whole = dw_alloc(n_tokens / 2 + (size_t)t->n_windows, sizeof *t->whole, "predictions of the whole model", err);
    if (!t->stored || !t->list || !t->accepted || !t->current || !t->x || !t->logits || !t->out || !t->whole) return -1;
    t->stride = 1 + (int)((unsigned long long)n_layer * n_tokens * d * sizeof(float) / MOST_STORED);
    for (size_t l = (size_t)t->stride; l < n_layer; l += (size_t)t->stride)
        if (!(t->stored[l] = dw_alloc(n_tokens, d * sizeof(float), "residuals", err))) return -1;
    return 0;
}

prune_trial *trial_new(const trial_options *o, dw_err *err) {
    prune_trial *t = dw_alloc(1, sizeof *t, "trials", err);
    if (!t) return NULL;
    t->o = *o;
    t->hp = dw_model_hparams(o->model);
    for (size_t i = 0; i < o->texts->n_text; i++) t->n_windows += calib_n_windows(&o->texts->text[i]);
    const dw_session_options s = {.pool = o->pool, .backend = o->backend};
    int rc = walk_open(&t->w, o->model, o->texts, 0, &s, err);
    if (!rc) rc = take_memory(t, err);
    for (int l = 0; l < t->hp->n_layer && !rc; l++) t->accepted[l] = -1;
    if (!rc) memcpy(t->current, t->hp->n_ff, (size_t)t->hp->n_layer * sizeof *t->current);
    if (!rc && !evaluate(t, 0, NULL, NULL, err) && !trial_accept(t, t->hp->n_ff, err)) return t;
    trial_free(t);
    return NULL;
}
