/* collect_gram.c - Gram matrices of collect: kept, resumed, added, written (collect_gram.h). */
#include "prune/collect_gram.h"

#include "kit/talk.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int collect_gram_open(collect_gram *g, double limit, int n_threads, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(g->model);
    const double bytes = gram_bytes(hp, g->inputs, 0, hp->n_layer);
    double largest = 0;
    for (int l = 0; l < hp->n_layer; l++) largest = fmax(largest, gram_bytes(hp, g->inputs, l, l + 1));
    g->by_layer = bytes > limit;
    if (!g->texts) return 0;
    if (g->with_gradients && gram_sums_init(&g->gradients, hp, &gram_inputs_gradient, 0, hp->n_layer, n_threads, err))
        return -1;
    if (!g->by_layer) return gram_sums_init(&g->sums, hp, g->inputs, 0, hp->n_layer, n_threads, err);
    say("Gram matrices take %s, more than --gram-memory: layer by layer in a second pass, with %s for a layer and %s "
        "for residuals",
        show_bytes(bytes).text, show_bytes(largest).text, show_bytes(walk_bytes(g->model, g->texts)).text);
    return 0;
}

void collect_gram_close(collect_gram *g) {
    gram_sums_release(&g->sums);
    gram_sums_release(&g->gradients);
    for (size_t i = 0; i < g->n_part; i++) kit_gram_close(&g->part[i]);
    free(g->part);
    g->part = NULL, g->n_part = 0;
    g->inputs = NULL;
}

/* The sums that the one pass takes; NULL: the second pass does, or nobody. */
static double *sum_in_pass(const collect_gram *g, int l, int k) {
    const gram_sums *s = k == KIT_GRAM_GRADIENT ? &g->gradients : &g->sums;
    return s->sum ? s->sum[l][k] : NULL;
}

static bool is_wanted(const collect_gram *g, int k) {
    return k == KIT_GRAM_GRADIENT ? g->with_gradients : g->inputs->wanted[k];
}

/* ---- parts ------------------------------------------------------------------------------------------------ */

bool collect_same_text(const kit_stats_text *a, const kit_stats_text *b) {
    return !strcmp(a->sha256, b->sha256) && a->first_window == b->first_window && a->n_windows == b->n_windows &&
           a->n_tokens == b->n_tokens;
}

/* The texts of the parts, in order, are those of s. */
static int check_texts(const collect_gram *g, const opt_list *paths, const kit_stats *s, dw_err *err) {
    size_t at = 0;
    for (size_t i = 0; i < g->n_part; i++) {
        const kit_gram *part = &g->part[i];
        bool same = !strcmp(part->model_sha256, s->model_sha256);
        for (size_t t = 0; t < part->n_text && same; t++, at++)
            same = at < s->n_text && collect_same_text(&part->text[t], &s->text[at]);
        if (i + 1 == g->n_part && at < s->n_text) same = false;
        if (!same)
            return dw_fail(err, "'%s.gram' is not of the same model and texts as '%s'; collect both in one run",
                           paths->item[i], paths->item[i]);
    }
    return 0;
}

/* A part has all that is wanted, undamaged and as wide as the model. */
static int check_matrices(const collect_gram *g, kit_gram *part, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(g->model);
    double n_tokens;
    for (int l = 0; l < hp->n_layer; l++)
        for (int k = 0; k < KIT_GRAM_N_KINDS; k++) {
            const int n = is_wanted(g, k) ? gram_width(hp, l, k) : 0;
            const kit_gram_matrix *m = n ? kit_gram_find(part, l, k, &n_tokens, err) : NULL;
            if (n && !m) return -1;
            if (n && m->n != n)
                return dw_fail(err, "layer %d: the Gram matrix of %s has another width than the model", l,
                               kit_gram_names[k]);
        }
    return 0;
}

int collect_gram_open_parts(collect_gram *g, const opt_list *paths, const kit_stats *s, dw_err *err) {
    g->part = dw_alloc(paths->n + 1, sizeof *g->part, "parts", err);
    for (size_t i = 0; g->part && i < paths->n; i++) {
        char *path = kit_gram_path(paths->item[i], err);
        const int rc = path ? kit_gram_open(&g->part[i], path, err) : -1;
        free(path);
        if (rc) return -1;
        g->n_part++;
    }
    if (!g->part || check_texts(g, paths, s, err)) return -1;
    for (size_t i = 0; i < g->n_part; i++)
        if (check_matrices(g, &g->part[i], err)) return dw_fail_in(err, "'%s.gram'", paths->item[i]);
    return 0;
}

/* ---- a file for texts that are finished ------------------------------------------------------------------- */

/* Of all that is wanted, or of what the one pass sums. */
static int list_matrices(kit_gram *head, const collect_gram *g, const kit_stats *s, bool of_pass, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(g->model);
    if (kit_gram_head(head, s, err)) return -1;
    for (int l = 0; l < hp->n_layer; l++)
        for (int k = 0; k < KIT_GRAM_N_KINDS; k++) {
            const int n = gram_width(hp, l, k);
            const bool is_listed = of_pass ? sum_in_pass(g, l, k) != NULL : n && is_wanted(g, k);
            if (is_listed && kit_gram_add_matrix(head, l, k, n, err)) return -1;
        }
    return 0;
}

static char *next_path(const char *stats_path, dw_err *err) { return dw_format(err, "%s.gram.next", stats_path); }

static bool has_sums(const collect_gram *g) { return g->sums.sum || g->gradients.sum; }

int collect_gram_keep(const collect_gram *g, const kit_stats *s, const char *stats_path, dw_err *err) {
    if (!has_sums(g)) return 0;
    kit_gram head = {0};
    char *path = next_path(stats_path, err);
    kit_gram_out *out = path && !list_matrices(&head, g, s, true, err) ? kit_gram_begin(&head, path, err) : NULL;
    int rc = out ? 0 : -1;
    for (size_t i = 0; i < head.n_matrix && !rc; i++)
        rc = kit_gram_put(out, sum_in_pass(g, head.matrix[i].layer, head.matrix[i].input), err);
    if (!rc) rc = kit_gram_commit(out, err);
    kit_gram_out_free(out);
    kit_gram_close(&head);
    free(path);
    return rc;
}

int collect_gram_kept(const collect_gram *g, const char *stats_path, dw_err *err) {
    if (!has_sums(g)) return 0;
    char *next = next_path(stats_path, err), *path = kit_gram_path(stats_path, err);
    int rc = next && path ? 0 : -1;
    if (!rc && rename(next, path)) rc = dw_fail(err, "cannot rename '%s' to '%s': %s", next, path, strerror(errno));
    free(next);
    free(path);
    return rc;
}

void collect_gram_forget(const char *stats_path) {
    char *next = next_path(stats_path, NULL), *path = kit_gram_path(stats_path, NULL);
    if (next) unlink(next);
    if (path) unlink(path);
    free(next);
    free(path);
}

/* Whether a file has all matrices of the sums.  With `copy` they become the sums; otherwise nothing changes. */
static int load(collect_gram *g, kit_gram *file, bool copy, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(g->model);
    double n_tokens;
    for (int l = 0; l < hp->n_layer; l++)
        for (int k = 0; k < KIT_GRAM_N_KINDS; k++) {
            double *sum = sum_in_pass(g, l, k);
            const kit_gram_matrix *m = sum ? kit_gram_find(file, l, k, &n_tokens, err) : NULL;
            if (!sum) continue;
            if (!m || m->n != gram_width(hp, l, k)) return -1;
            if (copy) memcpy(sum, m->sum, kit_gram_packed(m->n) * sizeof *sum);
        }
    return 0;
}

/* A matrix may be damaged after others that are whole, so all are checked before the first is copied: the sums of a run
 * that starts again are zero. */
static bool resume_from(collect_gram *g, const kit_stats *s, char *path) {
    kit_gram file = {0};
    dw_err err = {0};
    const bool ok = path && !kit_gram_open(&file, path, &err) && !kit_gram_check_stats(&file, path, s, &err) &&
                    !load(g, &file, false, &err) && !load(g, &file, true, &err);
    kit_gram_close(&file);
    free(path);
    return ok;
}

bool collect_gram_resume(collect_gram *g, const kit_stats *s, const char *stats_path) {
    if (!has_sums(g)) return true;
    if (resume_from(g, s, next_path(stats_path, NULL))) return !collect_gram_kept(g, stats_path, NULL);
    return resume_from(g, s, kit_gram_path(stats_path, NULL));
}

/* ---- a layer in the second pass --------------------------------------------------------------------------- */

typedef struct layer_pass {
    walk w;
    gram_sums sums; // of one layer
} layer_pass;

static void look(void *ctx, const dw_tap_event *e, int ith, int n_threads) {
    const layer_pass *p = ctx;
    gram_sums_add(&p->sums, e, p->w.row, p->w.n_row, ith, n_threads);
}

static int sum_layer(layer_pass *p, const collect_gram *g, int l, dw_err *err) {
    const dw_tap tap = {.points = gram_tap_points(g->inputs), .fn_thread = look, .ctx = p};
    if (gram_sums_init(&p->sums, dw_model_hparams(g->model), g->inputs, l, l + 1, dw_pool_size(g->session->pool), err))
        return -1;
    dw_session_set_tap(p->w.session, &tap);
    for (int b = 0; b < p->w.n_batch; b++) {
        walk_select(&p->w, b);
        if (walk_run(&p->w, l, l + 1, p->w.residual, err)) return -1;
        progress_step(g->bar, (double)p->w.batch.n_tokens / dw_model_hparams(g->model)->n_layer);
    }
    return 0;
}

/* ---- the result ------------------------------------------------------------------------------------------- */

static int check_sum(const double *sum, const kit_gram_matrix *m, dw_err *err) {
    for (size_t i = 0; i < kit_gram_packed(m->n); i++)
        if (!isfinite(sum[i]))
            return dw_fail(err,
                           "layer %d: the Gram matrix of %s became NaN or infinite; the model is damaged or overflows",
                           m->layer, kit_gram_names[m->input]);
    return 0;
}

/* One matrix: the sums of the parts in order, then `own`, which may be NULL. */
static int put_matrix(kit_gram_out *out, const kit_gram_matrix *m, const collect_gram *g, const double *own,
                      dw_err *err) {
    const size_t n = kit_gram_packed(m->n);
    double n_tokens, *sum;
    if (!g->n_part) return check_sum(own, m, err) ? -1 : kit_gram_put(out, own, err);
    if (!(sum = dw_alloc(n, sizeof *sum, "a Gram matrix", err))) return -1;
    int rc = 0;
    for (size_t i = 0; i < g->n_part && !rc; i++) {
        const kit_gram_matrix *part = kit_gram_find(&g->part[i], m->layer, m->input, &n_tokens, err);
        if (!part) rc = -1;
        for (size_t k = 0; k < n && !rc; k++) sum[k] += part->sum[k];
    }
    for (size_t k = 0; k < n && own && !rc; k++) sum[k] += own[k];
    if (!rc) rc = check_sum(sum, m, err);
    if (!rc) rc = kit_gram_put(out, sum, err);
    free(sum);
    return rc;
}

static int put_all(kit_gram_out *out, const kit_gram *head, collect_gram *g, dw_err *err) {
    layer_pass p = {0};
    const bool second = g->texts && g->by_layer;
    int rc = second ? walk_open(&p.w, g->model, g->texts, g->skip, g->session, err) : 0;
    for (size_t i = 0; i < head->n_matrix && !rc; i++) {
        const kit_gram_matrix *m = &head->matrix[i];
        if (second && (!i || m->layer != head->matrix[i - 1].layer)) {
            gram_sums_release(&p.sums);
            rc = sum_layer(&p, g, m->layer, err);
        }
        const bool own = second && m->input != KIT_GRAM_GRADIENT;
        if (!rc)
            rc = put_matrix(out, m, g, own ? p.sums.sum[m->layer][m->input] : sum_in_pass(g, m->layer, m->input), err);
    }
    gram_sums_release(&p.sums);
    walk_close(&p.w);
    return rc;
}

int collect_gram_write(collect_gram *g, const kit_stats *s, const char *stats_path, dw_err *err) {
    kit_gram head = {0};
    char *path = kit_gram_path(stats_path, err);
    int rc = path ? list_matrices(&head, g, s, false, err) : -1;
    kit_gram_out *out = rc ? NULL : kit_gram_begin(&head, path, err);
    if (!rc) rc = out ? put_all(out, &head, g, err) : -1;
    if (!rc) rc = kit_gram_commit(out, err);
    kit_gram_out_free(out);
    kit_gram_close(&head);
    free(path);
    return rc;
}
