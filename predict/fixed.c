/* fixed.c - the same neurons for every token (fixed.h). */
#include "predict/fixed.h"
#include "model/model.h"

#include <math.h>
#include <stdlib.h>

static int n_neurons(int n_ff, int group, int i) { return n_ff - i * group < group ? n_ff - i * group : group; }

typedef struct ranked {
    double score;
    int group;
} ranked;

static int best_first(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score) : x->group - y->group;
}

/* Opens groups in this order until one more would be farther from the wanted number of neurons. */
static void open_groups(predict_fixed *f, int l, const ranked *list, const predict_fixed_options *o) {
    const int n_ff = o->model->net.hp.n_ff[l];
    const double wanted = o->activity * n_ff;
    int n_open = 0;
    for (int i = 0; i < f->n_groups[l]; i++) {
        const int n = n_neurons(n_ff, o->group, list[i].group);
        if (i && fabs(n_open + n - wanted) >= fabs(n_open - wanted)) break;
        f->bias[l][list[i].group] = 1;
        n_open += n;
    }
    f->activity[l] = (float)n_open / (float)n_ff;
}

static int choose_layer(predict_fixed *f, int l, const double *score, const predict_fixed_options *o, dw_err *err) {
    const int n_ff = o->model->net.hp.n_ff[l], n = (n_ff + o->group - 1) / o->group;
    ranked *list = dw_alloc((size_t)n, sizeof *list, "groups", err);
    f->n_groups[l] = n;
    f->bias[l] = dw_alloc((size_t)n, sizeof *f->bias[l], "groups", err);
    int rc = list && f->bias[l] ? 0 : -1;
    for (int i = 0; i < n && !rc; i++) {
        f->bias[l][i] = -1;
        list[i] = (ranked){.group = i};
    }
    for (int j = 0; j < n_ff && !rc; j++) list[j / o->group].score += score[j];
    if (!rc) {
        qsort(list, (size_t)n, sizeof *list, best_first);
        open_groups(f, l, list, o);
    }
    free(list);
    return rc;
}

int predict_fixed_choose(predict_fixed *f, const predict_fixed_options *o, dw_err *err) {
    const size_t n = (size_t)o->model->net.hp.n_layer;
    kit_scorer scorer = {.model = o->model, .stats = o->stats, .group = 1, .seed = o->seed, .pool = o->pool};
    *f = (predict_fixed){.n_layer = (int)n};
    f->n_groups = dw_alloc(n, sizeof *f->n_groups, "groups", err);
    f->bias = dw_alloc(n, sizeof *f->bias, "groups", err);
    f->activity = dw_alloc(n, sizeof *f->activity, "groups", err);
    double **score = dw_alloc(n, sizeof *score, "scores", err);
    int rc = f->n_groups && f->bias && f->activity && score ? kit_score(&scorer, o->metric, score, err) : -1;
    for (int l = 0; l < f->n_layer && !rc; l++) rc = choose_layer(f, l, score[l], o, err);
    for (int l = 0; score && l < f->n_layer; l++) free(score[l]);
    free(score);
    kit_scorer_release(&scorer);
    return rc;
}

void predict_fixed_release(predict_fixed *f) {
    for (int l = 0; f->bias && l < f->n_layer; l++) free(f->bias[l]);
    free(f->bias);
    free(f->n_groups);
    free(f->activity);
    *f = (predict_fixed){0};
}
