/* allocate.c - rules for the widths, and the choice of neurons within a layer. */
#include "prune/allocate.h"
#include "prune/search.h"

#include "model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int n_layer_of(const prune_task *t) { return t->model->net.hp.n_layer; }
static int width(const prune_task *t, int l) { return t->model->net.hp.n_ff[l]; }

/* ---- sizes ------------------------------------------------------------------------------------------------ */

enum { HEADER_ROOM = 4096, ALIGNMENT = 32 };

void prune_sizes_release(prune_sizes *z) {
    free(z->layer);
    free(z->neuron);
    *z = (prune_sizes){0};
}

/* Rows of gate and up with their biases, columns of down. */
static double neuron_bytes(const dw_layer *w) {
    const double down = (double)w->down.n_bytes / (double)w->n_ff;
    const int n_bias = (w->gate_bias.name != NULL) + (w->up_bias.name != NULL);
    return (double)(dw_tensor_row_bytes(&w->gate) + dw_tensor_row_bytes(&w->up)) + down + n_bias * (double)sizeof(float);
}

int prune_sizes_init(prune_sizes *z, const dw_model *m, size_t lineage_bytes, dw_err *err) {
    const dw_net *net = &m->net;
    const size_t n_layer = (size_t)net->hp.n_layer, n_tensor = dw_gguf_n_tensors(m->gguf);
    *z = (prune_sizes){.layer = dw_alloc(n_layer, sizeof *z->layer, "sizes of layers", err), .neuron = dw_alloc(n_layer, sizeof *z->neuron, "sizes of layers", err)};
    if (!z->layer || !z->neuron) {
        prune_sizes_release(z);
        return -1;
    }
    z->fixed = (double)dw_gguf_file_bytes(m->gguf) + HEADER_ROOM + (double)lineage_bytes + (double)(ALIGNMENT * n_tensor);
    for (size_t i = 0; i < n_tensor; i++) { // the layers' bytes come out of the fixed ones
        const dw_tensor *t = dw_gguf_tensor(m->gguf, i);
        const int l = dw_layer_of(t->name, NULL);
        if (l < 0 || l >= net->hp.n_layer) continue;
        z->layer[l] += (double)t->n_bytes;
        z->fixed -= (double)t->n_bytes;
    }
    for (size_t l = 0; l < n_layer; l++) {
        z->neuron[l] = neuron_bytes(&net->layer[l]);
        z->layer[l] -= z->neuron[l] * net->hp.n_ff[l];
    }
    return 0;
}

double prune_file_bytes(const prune_task *t, const int *n_keep) {
    double bytes = t->sizes->fixed;
    for (int l = 0; l < n_layer_of(t); l++)
        if (!t->drop[l]) bytes += t->sizes->layer[l] + n_keep[l] * t->sizes->neuron[l];
    return bytes;
}

double prune_rate_of(const prune_task *t, const int *n_keep) {
    double kept = 0, all = 0;
    for (int l = 0; l < n_layer_of(t); l++)
        if (!t->drop[l]) kept += n_keep[l], all += width(t, l);
    return 1 - kept / all;
}

double prune_rate_for_bytes(const prune_task *t) {
    double least = t->sizes->fixed, neurons = 0;
    for (int l = 0; l < n_layer_of(t); l++)
        if (!t->drop[l]) least += t->sizes->layer[l], neurons += width(t, l) * t->sizes->neuron[l];
    const double rate = 1 - (t->bytes - least) / neurons;
    return rate >= 1 ? -1 : rate > 0 ? rate : 0;
}

/* ---- rules ------------------------------------------------------------------------------------------------ */

static int least_width(const prune_task *t, int l) { return width(t, l) < t->unit ? width(t, l) : t->unit; }

/* The allowed width nearest to `wanted` (the larger of two), or, when rounded down, the next below. */
static int allowed_width(const prune_task *t, int l, double wanted, bool down) {
    const int below = (int)(wanted / t->unit + 1e-9) * t->unit, n_ff = width(t, l), above = below + t->unit < n_ff ? below + t->unit : n_ff;
    int n = !down && above - wanted <= wanted - below ? above : below;
    if (wanted >= n_ff - 1e-9) n = n_ff;
    return n < least_width(t, l) ? least_width(t, l) : n;
}

static int too_small(const prune_task *t, const int *n_keep, dw_err *err) {
    return dw_fail(err, "%.0f bytes are too few: %.0f are needed even when every layer keeps no more than %d neurons; drop layers, or allow more", t->bytes,
                   prune_file_bytes(t, n_keep), t->unit);
}

static int uniform(const prune_task *t, int *n_keep, dw_err *err) {
    const double by_bytes = t->bytes > 0 ? prune_rate_for_bytes(t) : 0, rate = t->bytes > 0 ? by_bytes < 0 ? 1 : by_bytes : t->rate;
    for (int l = 0; l < n_layer_of(t); l++) n_keep[l] = t->drop[l] ? 0 : allowed_width(t, l, (1 - rate) * width(t, l), t->bytes > 0);
    return t->bytes > 0 && prune_file_bytes(t, n_keep) > t->bytes ? too_small(t, n_keep, err) : 0;
}

/* One layer's groups on their way out, least score first. */
typedef struct queue {
    double *score; // ascending
    int n_left;    // groups
    int n_next;    // groups that go next, together
    double next;   // their score a group
} queue;

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* What goes next brings the width to a multiple of the unit; at least one unit stays. */
static void look_ahead(const prune_task *t, queue *q, int l) {
    const int per_unit = t->unit / t->group, n_group = width(t, l) / t->group, over = q->n_left % per_unit;
    q->n_next = over ? over : per_unit;
    q->next = 0;
    if (q->n_left - q->n_next < per_unit) {
        q->n_next = 0;
        return;
    }
    for (int i = 0; i < q->n_next; i++) q->next += q->score[n_group - q->n_left + i] / q->n_next;
}

/* The layer whose next groups matter least, -1: none can go. */
static int least_layer(const prune_task *t, const queue *q) {
    int least = -1;
    for (int l = 0; l < n_layer_of(t); l++)
        if (!t->drop[l] && q[l].n_next && (least < 0 || q[l].next < q[least].next)) least = l;
    return least;
}

static void take_least(const prune_task *t, queue *q, int *n_keep) {
    double all = 0, gone = 0, bytes = prune_file_bytes(t, n_keep);
    for (int l = 0; l < n_layer_of(t); l++) all += n_keep[l];
    for (int l; (l = least_layer(t, q)) >= 0;) {
        const double n = (double)q[l].n_next * t->group;
        if (t->bytes > 0 ? bytes <= t->bytes : gone + n / 2 > t->rate * all) break; // nearest: past the middle it stays
        gone += n;
        bytes -= n * t->sizes->neuron[l];
        q[l].n_left -= q[l].n_next;
        n_keep[l] = q[l].n_left * t->group;
        look_ahead(t, &q[l], l);
    }
}

static int global(const prune_task *t, int *n_keep, dw_err *err) {
    queue *q = dw_alloc((size_t)n_layer_of(t), sizeof *q, "sorted scores", err);
    int rc = q ? 0 : -1;
    for (int l = 0; l < n_layer_of(t) && !rc; l++) {
        const size_t n = (size_t)(width(t, l) / t->group);
        n_keep[l] = t->drop[l] ? 0 : width(t, l);
        q[l] = (queue){.score = dw_alloc(n, sizeof(double), "sorted scores", err), .n_left = (int)n};
        if (!q[l].score) {
            rc = -1;
        } else {
            memcpy(q[l].score, t->score[l], n * sizeof(double));
            qsort(q[l].score, n, sizeof(double), by_value);
            look_ahead(t, &q[l], l);
        }
    }
    if (!rc) take_least(t, q, n_keep);
    if (!rc && t->bytes > 0 && prune_file_bytes(t, n_keep) > t->bytes) rc = too_small(t, n_keep, err);
    for (int l = 0; q && l < n_layer_of(t); l++) free(q[l].score);
    free(q);
    return rc;
}

/* z = (score - mean) / sd within each layer; a layer of equal scores has z = 0. */
static void standardize(const prune_task *t, int l, double *z) {
    const int n = width(t, l) / t->group;
    double mean = 0, square = 0;
    for (int g = 0; g < n; g++) mean += t->score[l][g] / n;
    for (int g = 0; g < n; g++) square += (t->score[l][g] - mean) * (t->score[l][g] - mean) / n;
    for (int g = 0; g < n; g++) z[g] = square > 0 ? (t->score[l][g] - mean) / sqrt(square) : 0;
}

static int standardized(const prune_task *t, int *n_keep, dw_err *err) {
    const size_t n_layer = (size_t)n_layer_of(t);
    double **z = dw_alloc(n_layer, sizeof *z, "standardized scores", err);
    int rc = z ? 0 : -1;
    for (int l = 0; l < n_layer_of(t) && !rc; l++) {
        z[l] = dw_alloc((size_t)(width(t, l) / t->group), sizeof **z, "standardized scores", err);
        if (z[l]) standardize(t, l, z[l]);
        else rc = -1;
    }
    prune_task other = *t;
    other.score = z;
    if (!rc) rc = global(&other, n_keep, err);
    for (size_t l = 0; z && l < n_layer; l++) free(z[l]);
    free(z);
    return rc;
}

const prune_allocator prune_allocators[] = {
    {"uniform", uniform, false, false, "every layer loses the same fraction"},
    {"global", global, true, false, "scores of all layers are sorted together"},
    {"flap", standardized, false, false, "the same, each layer's scores less their mean and over their standard deviation (An et al. 2023)"},
    {"sensitivity", search_sensitivity, false, true, "least sum of divergences of single cut layers, measured on held-out texts (-f)"},
    {"evolve", search_evolve, false, true, "neurons move between layers when the divergence on held-out texts (-f) falls; from --start"},
    {0}};

const prune_allocator *prune_allocator_find(const char *name) {
    for (const prune_allocator *a = prune_allocators; a->name; a++)
        if (!strcmp(a->name, name)) return a;
    return NULL;
}

/* ---- the choice within a layer ---------------------------------------------------------------------------- */

typedef struct ranked {
    double score;
    int group;
} ranked;

static int by_score(const void *a, const void *b) { // largest first, of equal ones the first
    const ranked *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->group < y->group ? -1 : 1;
}

int prune_choose(const double *score, int n_ff, int group, int n_keep, bool *keep, dw_err *err) {
    const int n_group = n_ff / group;
    ranked *order = dw_alloc((size_t)n_group, sizeof *order, "sorted scores", err);
    if (!order) return -1;
    for (int g = 0; g < n_group; g++) order[g] = (ranked){score[g], g};
    qsort(order, (size_t)n_group, sizeof *order, by_score);
    memset(keep, 0, (size_t)n_ff * sizeof *keep);
    for (int i = 0; i < n_keep / group; i++) memset(keep + (size_t)order[i].group * (size_t)group, true, (size_t)group * sizeof *keep);
    free(order);
    return 0;
}
