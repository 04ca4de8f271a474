/* rank_compare.c - how metrics agree with each other, and with the measured loss of single groups. */
#include "kit/talk.h"
#include "model/model.h"
#include "prune/ablation.h"
#include "prune/agreement.h"
#include "prune/rank.h"
#include "prune/scores.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- comparison of metrics -------------------------------------------------------------------------------------- */

enum { MAX_METRICS = 64 };

typedef struct judged { // one metric
    const kit_metric *metric;
    double **score; // (n_layer)
    bool **keep;    // (n_layer) of n_ff
} judged;

static int judge(judged *j, const kit_metric *metric, rank_inputs *in, prune_task *t, const int *n_keep, dw_err *err) {
    const size_t n_layer = (size_t)in->hp->n_layer;
    *j = (judged){metric, dw_alloc(n_layer, sizeof *j->score, "scores", err),
                  dw_alloc(n_layer, sizeof *j->keep, "kept neurons", err)};
    if (!j->score || !j->keep || kit_score(&in->scorer, metric, j->score, err)) return -1;
    for (int l = 0; l < in->hp->n_layer; l++) {
        if (t->drop[l]) continue;
        j->keep[l] = dw_alloc((size_t)in->hp->n_ff[l], sizeof **j->keep, "kept neurons", err);
        if (!j->keep[l] || prune_choose(j->score[l], in->hp->n_ff[l], t->group, n_keep[l], j->keep[l], err)) return -1;
    }
    return 0;
}

static void judged_release(judged *j, int n_layer) {
    for (int l = 0; l < n_layer; l++) {
        if (j->score) free(j->score[l]);
        if (j->keep) free(j->keep[l]);
    }
    free(j->score);
    free(j->keep);
}

/* Mean over the layers that stay of the rank correlation of groups; NaN: no layer has one, as with a single group or
 * equal scores. */
static int correlation(const judged *a, const judged *b, const rank_inputs *in, double *mean, dw_err *err) {
    int n = 0;
    *mean = 0;
    for (int l = 0; l < in->hp->n_layer; l++) {
        double rho;
        if (in->drop[l]) continue;
        if (prune_rank_correlation(a->score[l], b->score[l], in->hp->n_ff[l] / in->scorer.group, &rho, err)) return -1;
        if (isfinite(rho)) *mean += rho, n++;
    }
    *mean = n ? *mean / n : NAN;
    return 0;
}

/* Of the neurons that a removes from layers that stay, the fraction that b removes too. */
static double overlap(const judged *a, const judged *b, const rank_inputs *in) {
    double removed = 0, both = 0;
    for (int l = 0; l < in->hp->n_layer; l++)
        for (int j = 0; j < in->hp->n_ff[l] && !in->drop[l]; j++) {
            removed += !a->keep[l][j];
            both += !a->keep[l][j] && !b->keep[l][j];
        }
    return both / removed;
}

static int print_matrix(const judged *j, int n, const rank_inputs *in, bool overlaps, dw_err *err) {
    printf("%s", overlaps ? "overlap" : "spearman");
    for (int i = 0; i < n; i++) printf("\t%s", j[i].metric->name);
    printf("\n");
    for (int i = 0; i < n; i++) {
        printf("%s", j[i].metric->name);
        for (int k = 0; k < n; k++) {
            double value = 0;
            if (overlaps)
                value = overlap(&j[i], &j[k], in);
            else if (correlation(&j[i], &j[k], in, &value, err))
                return -1;
            if (isnan(value))
                printf("\t-"); // nothing is removed, or all scores are equal
            else
                printf("\t%.4f", value);
        }
        printf("\n");
    }
    return 0;
}

int rank_compare(rank_inputs *in, dw_err *err) {
    const size_t n_layer = (size_t)in->hp->n_layer;
    judged j[MAX_METRICS] = {{0}};
    int n = 0, *n_keep = dw_alloc(n_layer, sizeof *n_keep, "widths", err);
    double wanted;
    prune_task t = {.model = in->model,
                    .drop = in->drop,
                    .group = in->scorer.group,
                    .sizes = &in->sizes,
                    .rate = in->o->rate,
                    .bytes = rank_bytes_of_widths(in),
                    .min_width = in->o->min_width,
                    .protect = in->protect};
    int rc = n_keep ? rank_choose_widths(in, &t, prune_allocator_find("uniform"), &wanted, n_keep, err) : -1;
    if (!rc) rc = rank_check_rate(&t, wanted, n_keep, err);
    if (!rc) rank_warn_of_rate(&t, wanted, n_keep);
    for (const kit_metric *m = kit_metrics; m->name && !rc && n < MAX_METRICS; m++)
        if (rank_can_score(in, m)) rc = judge(&j[n++], m, in, &t, n_keep, err);
    if (!rc) {
        printf("# groups of %d; mean of the layers' rank correlations; overlap of the neurons removed at rate %.4f\n",
               t.group, prune_rate_of(&t, n_keep));
        printf("# not compared: obs, obs-gradient, whose scores are an order of removal\n");
        rc = print_matrix(j, n, in, false, err);
        if (!rc) rc = print_matrix(j, n, in, true, err);
    }
    for (int i = 0; i < n; i++) judged_release(&j[i], in->hp->n_layer);
    free(n_keep);
    return rc;
}

/* ---- ablation --------------------------------------------------------------------------------------------------- */

typedef struct scored { // metrics that can be computed here
    const char *name[MAX_METRICS];
    double **score[MAX_METRICS];
    size_t n;
} scored;

static int score_everything(rank_inputs *in, scored *s, dw_err *err) {
    if (in->has_stats && rank_open_gram(in, false, err)) return -1;
    for (const kit_metric *m = rank_metrics; m->name && s->n < MAX_METRICS; m++) {
        if (!rank_can_score(in, m)) continue;
        s->name[s->n] = m->name;
        s->score[s->n] = dw_alloc((size_t)in->hp->n_layer, sizeof **s->score, "scores", err);
        if (!s->score[s->n++] || rank_make_scores(in, m, s->score[s->n - 1], err)) return -1;
    }
    return 0;
}

static void free_scored(scored *s, int n_layer) {
    for (size_t i = 0; i < s->n; i++) {
        for (int l = 0; s->score[i] && l < n_layer; l++) free(s->score[i][l]);
        free(s->score[i]);
    }
}

static char *describe_ablation(const rank_inputs *in, double loss, dw_err *err) {
    char *comment = NULL;
    int rc = rank_describe_inputs(&comment, in, err);
    for (size_t i = 0; i < in->texts.n_text && !rc; i++) {
        const calib_text *t = &in->texts.text[i];
        rc = dw_append(&comment, err, "text   %s  sha256 %s  windows %d-%d of %d tokens\n", t->name, t->sha256,
                       t->first_window, t->first_window + t->n_windows - 1, in->texts.n_ctx);
    }
    if (!rc)
        rc = dw_append(&comment, err, "groups of %d, %d of every layer, seed %d\n", in->scorer.group, in->o->sample,
                       in->o->seed);
    if (!rc) rc = dw_append(&comment, err, "loss   %.6f nats per token of the whole model\n", loss);
    if (!rc) return comment;
    free(comment);
    return NULL;
}

static int write_ablation(const rank_inputs *in, const ablated *group, size_t n, double loss, const scored *s,
                          dw_err *err) {
    ablation_metric metric[MAX_METRICS];
    for (size_t i = 0; i < s->n; i++) metric[i] = (ablation_metric){s->name[i], s->score[i]};
    char *comment = describe_ablation(in, loss, err);
    const ablation_report r = {comment ? comment : "", group, n, in->scorer.group, metric, s->n};
    char *text = comment ? ablation_table(&r, err) : NULL;
    const int rc = text ? prune_write_text(in->o->ablation, text, err) : -1;
    free(comment);
    free(text);
    return rc;
}

static void warn_of_seen(const rank_inputs *in) {
    const calib_text *seen = rank_find_seen(in);
    if (seen)
        warn("tokens of windows %d to %d of '%s' are in the statistics; metrics that read these agree with the loss "
             "better than on held-out texts; give others (--windows)",
             seen->first_window, seen->first_window + seen->n_windows - 1, seen->name);
}

int rank_ablate(rank_inputs *in, dw_err *err) {
    scored s = {.n = 0};
    size_t n = 0;
    double loss = 0;
    if (rank_read_texts(in, err)) return -1;
    warn_of_seen(in);
    rank_warn_of_few(in, "changes of the loss have no errors, and the table no reliability");
    if (rank_warn_of_shared(in, err) || kit_check_group(in->hp, in->scorer.group, err)) return -1;
    ablated *group = ablation_sample(in->hp, in->scorer.group, in->o->sample, (uint64_t)in->o->seed, &n, err);
    int rc = group ? score_everything(in, &s, err) : -1;
    ablation_task t = {.model = in->model, .texts = &in->texts, .group = in->scorer.group, .pool = in->scorer.pool};
    t.bar = rc ? NULL : progress_begin("ablating", "evaluations", (double)ablation_steps(&t, group, n));
    if (!rc) rc = ablation_measure(&t, group, n, &loss, err);
    progress_end(t.bar);
    if (!rc) rc = write_ablation(in, group, n, loss, &s, err);
    free_scored(&s, in->hp->n_layer);
    free(group);
    return rc;
}
