/* ablation.c - models without one group of neurons after the other (ablation.h). */
#include "prune/ablation.h"

#include "measure/statistics.h"
#include "model/model.h"
#include "prune/agreement.h"
#include "prune/obs_model.h"
#include "prune/walk.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct run {
    const ablation_task *t;
    const dw_hparams *hp;
    walk w; // its x: the residuals before the layer
    int n_windows;
    int32_t *next;       // (w.n_tokens): the token after each, -1 at a window's end
    double *base, *loss; // (n_windows): of the whole model, of the one without a group
    double *layer_base;  // (n_windows): of the whole model with an F32 copy of a layer's down
    float *x;            // a batch
    uint8_t *out;
    int32_t *target;
    double *logprob;
} run;

static void close_run(run *r) {
    walk_close(&r->w);
    free(r->next), free(r->base), free(r->loss), free(r->layer_base);
    free(r->x), free(r->out), free(r->target), free(r->logprob);
}

static void list_targets(run *r) {
    const int n_ctx = r->t->texts->n_ctx;
    for (int b = 0; b < r->w.n_batch; b++) {
        walk_select(&r->w, b);
        for (int i = 0; i < r->w.batch.n_tokens; i++)
            if (r->w.pos[i] > 0) r->next[r->w.first + (size_t)i - 1] = r->w.token[i];
        for (int i = 0; i < r->w.batch.n_tokens; i++)
            if (r->w.pos[i] == n_ctx - 1) r->next[r->w.first + (size_t)i] = -1;
    }
}

static int open_run(run *r, const ablation_task *t, dw_err *err) {
    *r = (run){.t = t, .hp = dw_model_hparams(t->model)};
    const dw_session_options o = {.pool = t->pool, .backend = t->backend, .select = DW_SELECT_DENSE};
    for (size_t i = 0; i < t->texts->n_text; i++) r->n_windows += calib_n_windows(&t->texts->text[i]);
    if (t->texts->n_ctx < 3)
        return dw_fail(err, "windows of %d tokens have no next token in their second half; give --ctx 3 or more",
                       t->texts->n_ctx);
    if (walk_open(&r->w, t->model, t->texts, 0, &o, err)) return -1;
    const size_t most = (size_t)r->w.most, n = (size_t)r->n_windows;
    r->next = dw_alloc(r->w.n_tokens, sizeof *r->next, "tokens", err);
    r->base = dw_alloc(n, sizeof *r->base, "windows", err);
    r->loss = dw_alloc(n, sizeof *r->loss, "windows", err);
    r->layer_base = dw_alloc(n, sizeof *r->layer_base, "windows", err);
    r->x = dw_alloc(most, (size_t)r->hp->n_embd * sizeof *r->x, "a batch", err);
    r->out = dw_alloc(most, 1, "a batch", err);
    r->target = dw_alloc(most, sizeof *r->target, "a batch", err);
    r->logprob = dw_alloc(most, sizeof *r->logprob, "a batch", err);
    if (!r->next || !r->base || !r->loss || !r->layer_base || !r->x || !r->out || !r->target || !r->logprob) return -1;
    list_targets(r);
    return 0;
}

/* Which rows of the selected batch are predictions that count, and of what. */
static int list_rows(run *r) {
    const int n_ctx = r->t->texts->n_ctx;
    int n = 0;
    for (int i = 0; i < r->w.batch.n_tokens; i++) {
        const int32_t next = r->next[r->w.first + (size_t)i];
        r->out[i] = next >= 0 && r->w.pos[i] >= n_ctx / 2;
        if (r->out[i]) r->target[n++] = next;
    }
    r->w.batch.out = r->out;
    return n;
}

/* Mean losses of all windows, from the residuals before layer `first`. */
static int evaluate(run *r, int first, double *loss, dw_err *err) {
    const int n_ctx = r->t->texts->n_ctx, n_scored = n_ctx - 1 - n_ctx / 2;
    memset(loss, 0, (size_t)r->n_windows * sizeof *loss);
    for (int b = 0; b < r->w.n_batch; b++) {
        walk_select(&r->w, b);
        const int n = list_rows(r);
        memcpy(r->x, r->w.residual, (size_t)r->w.batch.n_tokens * (size_t)r->hp->n_embd * sizeof *r->x);
        if (walk_run(&r->w, first, r->hp->n_layer, r->x, err) ||
            dw_session_head(r->w.session, &r->w.batch, r->x, err) ||
            (n && dw_session_logprobs(r->w.session, 0, n, r->target, r->logprob, err)))
            return -1;
        for (int i = 0, k = 0; i < r->w.batch.n_tokens; i++)
            if (r->out[i]) loss[(r->w.first + (size_t)i) / (size_t)n_ctx] -= r->logprob[k++] / n_scored;
    }
    for (int w = 0; w < r->n_windows; w++)
        if (!isfinite(loss[w])) return dw_fail(err, "the loss is NaN or infinite; the model is damaged or overflows");
    return 0;
}

/* The mean over windows; *error: its own, NaN where they are too few. */
static double mean_of(const double *x, size_t n, double *error) {
    const measure_mean m = measure_mean_of_values(x, n);
    *error = n < MEASURE_LEAST_WINDOWS ? NAN : m.se;
    return m.mean;
}

/* d (n, n_windows): changes of the groups of a layer.  They become those less the mean of all groups. */
static void compare(const run *r, ablated *group, size_t n, double *d) {
    const size_t n_windows = (size_t)r->n_windows;
    for (size_t i = 0; i < n; i++) group[i].change = mean_of(d + i * n_windows, n_windows, &group[i].error);
    for (size_t w = 0; w < n_windows; w++) {
        double shared = 0;
        for (size_t i = 0; i < n; i++) shared += d[i * n_windows + w] / (double)n;
        for (size_t i = 0; i < n; i++) d[i * n_windows + w] -= shared;
    }
    for (size_t i = 0; i < n; i++) mean_of(d + i * n_windows, n_windows, &group[i].own_error);
}

/* Zeros in the columns of a group of v (d, n_ff), or its values back from `kept` (d, group). */
static void put_columns(const run *r, const ablated *g, float *v, float *kept, bool back) {
    const size_t n_ff = (size_t)r->hp->n_ff[g->layer], m = (size_t)r->t->group, at = (size_t)g->group * m;
    for (size_t i = 0; i < (size_t)r->hp->n_embd; i++) {
        float *column = v + i * n_ff + at;
        memcpy(back ? column : kept + i * m, back ? kept + i * m : column, m * sizeof *v);
        if (!back) memset(column, 0, m * sizeof *v);
    }
}

static bool is_quantized(const ablation_task *t, int l) { return t->model->net.layer[l].down.type->block > 1; }

/* Layer l computes with v (d, n_ff), a copy of its down. */
static int measure_groups(run *r, const ablated *group, size_t n, float *v, float *kept, double *d, dw_err *err) {
    const int l = group[0].layer;
    const bool has_own_base = is_quantized(r->t, l);
    const double *base = has_own_base ? r->layer_base : r->base;
    if (has_own_base && evaluate(r, l, r->layer_base, err)) return -1;
    if (has_own_base) progress_step(r->t->bar, 1);
    for (size_t i = 0; i < n; i++) {
        put_columns(r, &group[i], v, kept, false);
        if (evaluate(r, l, r->loss, err)) return -1;
        for (int w = 0; w < r->n_windows; w++) *d++ = r->loss[w] - base[w];
        put_columns(r, &group[i], v, kept, true);
        progress_step(r->t->bar, 1);
    }
    return 0;
}

/* n groups of one layer. */
static int measure_layer(run *r, ablated *group, size_t n, dw_err *err) {
    const int l = group[0].layer;
    float *v = prune_decode_down(r->t->model, l, r->t->pool, err);
    float *kept = dw_alloc((size_t)r->hp->n_embd, (size_t)r->t->group * sizeof *kept, "columns of down", err);
    double *d = dw_alloc(n, (size_t)r->n_windows * sizeof *d, "changes of the loss", err);
    const dw_tensor down = {.type = dw_qtype_get(DW_F32),
                            .ne = {(size_t)r->hp->n_ff[l], (size_t)r->hp->n_embd, 1, 1},
                            .data = (const uint8_t *)v};
    const bool has_room = v && kept && d;
    int rc = has_room ? dw_session_replace(r->w.session, l, DW_W_DOWN, &down, err) : -1;
    if (!rc) rc = measure_groups(r, group, n, v, kept, d, err);
    if (!rc) compare(r, group, n, d);
    if (has_room && dw_session_replace(r->w.session, l, DW_W_DOWN, NULL, err)) rc = -1;
    free(v), free(kept), free(d);
    return rc;
}

/* All residuals through layer l. */
static int advance(run *r, int l, dw_err *err) {
    for (int b = 0; b < r->w.n_batch; b++) {
        walk_select(&r->w, b);
        if (walk_run(&r->w, l, l + 1, r->w.residual, err)) return -1;
    }
    return 0;
}

size_t ablation_steps(const ablation_task *t, const ablated *group, size_t n) {
    size_t steps = n;
    for (size_t i = 0; i < n; i++)
        if (!i || group[i].layer != group[i - 1].layer) steps += is_quantized(t, group[i].layer);
    return steps;
}

int ablation_measure(const ablation_task *t, ablated *group, size_t n, double *loss, dw_err *err) {
    run r;
    int rc = open_run(&r, t, err);
    if (!rc) rc = evaluate(&r, 0, r.base, err);
    *loss = 0;
    for (int w = 0; w < r.n_windows && !rc; w++) *loss += r.base[w] / r.n_windows;
    for (size_t i = 0, end; i < n && !rc; i = end) {
        for (end = i + 1; end < n && group[end].layer == group[i].layer;) end++;
        for (int l = i ? group[i - 1].layer : 0; l < group[i].layer && !rc; l++) rc = advance(&r, l, err);
        if (!rc) rc = measure_layer(&r, group + i, end - i, err);
    }
    close_run(&r);
    return rc;
}

/* ---- the sample ------------------------------------------------------------------------------------------- */

static int in_order(const void *a, const void *b) {
    const ablated *x = a, *y = b;
    return x->layer != y->layer ? x->layer - y->layer : x->group - y->group;
}

ablated *ablation_sample(const dw_hparams *hp, int group, int per_layer, uint64_t seed, size_t *n, dw_err *err) {
    const int most = hp->n_ff_max / group, room = per_layer < most ? per_layer : most;
    ablated *g = dw_alloc((size_t)hp->n_layer, (size_t)room * sizeof *g, "a sample of groups", err);
    int *deck = dw_alloc((size_t)most + 1, sizeof *deck, "a sample of groups", err);
    dw_rng rng;
    dw_rng_seed(&rng, seed);
    *n = 0;
    for (int l = 0; l < hp->n_layer && g && deck; l++) {
        const int n_group = hp->n_ff[l] / group, take = per_layer < n_group ? per_layer : n_group;
        for (int i = 0; i < n_group; i++) deck[i] = i;
        for (int i = 0; i < take; i++) { // Fisher and Yates' shuffle, as far as it is needed
            const int k = i + (int)dw_rng_below(&rng, (uint64_t)(n_group - i)), card = deck[k];
            deck[k] = deck[i], deck[i] = card;
            g[(*n)++] = (ablated){.layer = l, .group = card};
        }
    }
    if (g && deck) qsort(g, *n, sizeof *g, in_order);
    if (!deck) free(g), g = NULL;
    free(deck);
    return g;
}

/* ---- agreement -------------------------------------------------------------------------------------------- */

int ablation_agree(const ablated *group, size_t n, const ablation_metric *m, ablation_agreement *a, dw_err *err) {
    double *change = dw_alloc(n, 2 * sizeof *change, "a sample of groups", err), *score = change ? change + n : NULL,
           rho;
    int rc = change ? 0 : -1, n_layer = 0;
    for (size_t i = 0; i < n && !rc; i++) {
        change[i] = group[i].change;
        score[i] = m->score[group[i].layer][group[i].group];
    }
    if (!rc) rc = prune_rank_correlation(change, score, (int)n, &a->pooled, err);
    a->by_layer = 0;
    for (size_t i = 0, end; i < n && !rc; i = end) {
        for (end = i + 1; end < n && group[end].layer == group[i].layer;) end++;
        rc = prune_rank_correlation(change + i, score + i, (int)(end - i), &rho, err);
        if (!rc && isfinite(rho)) a->by_layer += rho, n_layer++;
    }
    a->by_layer = n_layer ? a->by_layer / n_layer : NAN;
    free(change);
    return rc;
}

double ablation_reliability(const ablated *group, size_t n) {
    double variance = 0, noise = 0; // sums with the same degrees of freedom
    bool has_two = false;
    for (size_t i = 0, end; i < n; i = end) {
        double mean = 0;
        for (end = i; end < n && group[end].layer == group[i].layer; end++) mean += group[end].change;
        mean /= (double)(end - i);
        for (size_t k = i; k < end; k++) variance += pow(group[k].change - mean, 2);
        for (size_t k = i; k < end && end - i > 1; k++) noise += pow(group[k].own_error, 2);
        has_two |= end - i > 1;
    }
    return has_two && variance > 0 && !isnan(noise) ? fmax(1 - noise / variance, 0) : NAN;
}

/* ---- the table -------------------------------------------------------------------------------------------- */

typedef struct shown { // a number; "-" where it is undefined
    char text[24];
} shown;

static shown show_rho(double rho) {
    shown s = {"-"};
    if (isfinite(rho)) snprintf(s.text, sizeof s.text, "%.3f", rho);
    return s;
}

static shown show_error(double error) {
    shown s = {"-"};
    if (isfinite(error)) snprintf(s.text, sizeof s.text, "%.3g", error);
    return s;
}

static int put_head(char **text, const ablation_report *r, dw_err *err) {
    int rc = dw_append(text, err, "# deadwood ablation 1\n");
    for (const char *at = r->comment; *at && !rc;) {
        const int n = (int)strcspn(at, "\n");
        rc = dw_append(text, err, "# %.*s\n", n, at);
        at += n + (at[n] == '\n');
    }
    const shown reliability = show_rho(ablation_reliability(r->group, r->n));
    if (!rc) rc = dw_append(text, err, "# reliability %s of the changes within layers\n", reliability.text);
    for (size_t i = 0; i < r->n_metric && !rc; i++) {
        ablation_agreement a;
        if (ablation_agree(r->group, r->n, &r->metric[i], &a, err)) return -1;
        rc = dw_append(text, err, "# metric %s: rank correlation %s over all groups, %s within layers\n",
                       r->metric[i].name, show_rho(a.pooled).text, show_rho(a.by_layer).text);
    }
    if (!rc) rc = dw_append(text, err, "layer\tgroup\tfirst\tlast\tloss_change\tse\town_se");
    for (size_t i = 0; i < r->n_metric && !rc; i++) rc = dw_append(text, err, "\t%s", r->metric[i].name);
    return rc ? rc : dw_append(text, err, "\n");
}

char *ablation_table(const ablation_report *r, dw_err *err) {
    char *text = NULL;
    int rc = put_head(&text, r, err);
    for (size_t i = 0; i < r->n && !rc; i++) {
        const ablated *g = &r->group[i];
        rc = dw_append(&text, err, "%d\t%d\t%d\t%d\t%.6g\t%s\t%s", g->layer, g->group, g->group * r->group_size,
                       (g->group + 1) * r->group_size - 1, g->change, show_error(g->error).text,
                       show_error(g->own_error).text);
        for (size_t m = 0; m < r->n_metric && !rc; m++)
            rc = dw_append(&text, err, "\t%.9g", r->metric[m].score[g->layer][g->group]);
        if (!rc) rc = dw_append(&text, err, "\n");
    }
    if (!rc) return text;
    free(text);
    return NULL;
}
