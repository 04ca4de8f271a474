/* allocate.c - rules for the widths, and the choice of neurons within a layer. */
#include "prune/allocate.h"
#include "measure/statistics.h"
#include "prune/search.h"

#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int n_layer_of(const prune_task *t) { return t->model->net.hp.n_layer; }
static int width(const prune_task *t, int l) { return t->model->net.hp.n_ff[l]; }

/* ---- sizes ------------------------------------------------------------------------------------------------ */

enum { HEADER_ROOM = 4096, REQUANT_ROOM = 4096, ALIGNMENT = 32 };

void prune_sizes_release(prune_sizes *z) {
    free(z->tensor);
    free(z->first);
    free(z->layer);
    free(z->neuron);
    *z = (prune_sizes){0};
}

static const dw_qtype_row *larger_of(const dw_qtype_row *a, const dw_qtype_row *b) {
    return a->block_bytes * b->block > b->block_bytes * a->block ? a : b;
}

/* The types with and without importances differ in a few tensors.  The larger one counts, so no size is exceeded. */
static const dw_qtype_row *type_of_mixture(const prune_sizes_request *wanted, const dw_tensor *t) {
    kit_mixture_use use = {
        .mixture = wanted->as.mixture, .model = wanted->model, .drop = wanted->drop, .output = wanted->as.output};
    const dw_qtype_row *plain = kit_mixture_wanted(&use, t);
    use.weighted = true;
    const dw_qtype_row *weighted = kit_mixture_wanted(&use, t);
    return larger_of(weighted, plain);
}

/* The v whose type q and k get, where a carrier may store the three as one matrix; NULL: each has its own. */
static const dw_tensor *v_beside(const prune_sizes_request *wanted, const dw_tensor *t) {
    const dw_arch *from = wanted->model->arch;
    const dw_arch *to = from->carrier ? dw_arch_find((dw_str){from->carrier, strlen(from->carrier)}) : NULL;
    const char *rest = "";
    char name[64];
    const int l = dw_layer_of(t->name, &rest);
    if (!wanted->may_differ || !to || !(to->has & DW_ARCH_FUSED_QKV)) return NULL;
    if (strcmp(rest, "attn_q.weight") && strcmp(rest, "attn_k.weight")) return NULL;
    snprintf(name, sizeof name, "blk.%d.attn_v.weight", l);
    return dw_gguf_find_tensor(wanted->model->gguf, name);
}

static const dw_qtype_row *wanted_type(const prune_sizes_request *wanted, const dw_tensor *t) {
    if (!kit_is_matrix(t)) return t->type;
    if (wanted->as.type) return wanted->as.type;
    if (!wanted->as.mixture) return t->type;
    const dw_tensor *v = v_beside(wanted, t);
    const dw_qtype_row *own = type_of_mixture(wanted, t);
    return v ? larger_of(type_of_mixture(wanted, v), own) : own;
}

/* The shape with the heads that stay: rows of q, k and v, values of their biases, columns of o. */
static void take_heads(const prune_sizes_request *wanted, const char *rest, prune_size *z) {
    const dw_hparams *hp = &wanted->model->net.hp;
    if (!wanted->n_kv || z->layer < 0 || z->layer >= hp->n_layer || strncmp(rest, "attn_", 5)) return;
    const size_t all = (size_t)hp->n_head_kv[z->layer], kept = (size_t)wanted->n_kv[z->layer];
    const bool is_rows = !strncmp(rest, "attn_q.", 7) || !strncmp(rest, "attn_k.", 7) || !strncmp(rest, "attn_v.", 7) ||
                         !strncmp(rest, "attn_qkv.", 9);
    size_t *n = is_rows ? &z->ne[z->ne[1] > 1] : !strcmp(rest, "attn_output.weight") ? &z->ne[0] : NULL;
    if (n && all && kept < all) *n = *n / all * kept;
}

/* How a tensor's shape depends on the neurons: rows of gate and up, values of their biases, columns of down. */
static prune_size size_of(const prune_sizes_request *wanted, const dw_tensor *t) {
    const char *rest = "";
    prune_size z = {.layer = dw_layer_of(t->name, &rest), .ne = {t->ne[0], dw_tensor_n_values(t) / t->ne[0]}};
    z.type = wanted_type(wanted, t);
    take_heads(wanted, rest, &z);
    z.may_fall_back = wanted->as.mixture && kit_is_matrix(t);
    z.has_rows = !strcmp(rest, "ffn_gate.weight") || !strcmp(rest, "ffn_up.weight");
    z.has_values = !strcmp(rest, "ffn_down.weight") || !strcmp(rest, "ffn_gate.bias") || !strcmp(rest, "ffn_up.bias");
    return z;
}

static bool is_vector(const prune_size *z) { return z->ne[1] == 1; }

/* Bytes of a tensor of a layer with n_ff neurons. */
static double tensor_bytes(const prune_size *z, int n_ff) {
    const size_t n = z->has_values ? (size_t)n_ff : z->ne[0], rows = z->has_rows ? (size_t)n_ff : z->ne[1];
    const dw_qtype_row *type = z->type;
    if (z->may_fall_back && n % (size_t)type->block) type = kit_mixture_fallback(type, n);
    const double blocks = is_vector(z) ? (double)n / type->block
                                       : (double)((n + (size_t)type->block - 1) / (size_t)type->block);
    return (double)rows * blocks * type->block_bytes;
}

/* Bytes that each neuron adds, where rows are whole blocks of the wanted type. */
static double neuron_bytes(const prune_size *z) {
    const double value = (double)z->type->block_bytes / z->type->block;
    return z->has_rows ? (double)z->ne[0] * value : z->has_values ? (double)z->ne[1] * value : 0;
}

static double layer_bytes(const prune_sizes *z, int l, int n_ff) {
    double bytes = 0;
    for (size_t i = z->first[l]; i < z->first[l + 1]; i++) bytes += tensor_bytes(&z->tensor[i], n_ff);
    return bytes;
}

static int by_layer(const void *a, const void *b) {
    return ((const prune_size *)a)->layer - ((const prune_size *)b)->layer;
}

static void list_tensors(prune_sizes *z, const prune_sizes_request *wanted) {
    const dw_net *net = &wanted->model->net;
    const dw_gguf *g = wanted->model->gguf;
    const size_t n_tensor = dw_gguf_n_tensors(g);
    for (size_t i = 0; i < n_tensor; i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        const prune_size size = size_of(wanted, t);
        z->fixed -= (double)t->n_bytes;
        if (size.layer < 0 || size.layer >= net->hp.n_layer)
            z->fixed += tensor_bytes(&size, 0);
        else if (!wanted->drop[size.layer])
            z->tensor[z->n_tensor++] = size;
    }
    qsort(z->tensor, z->n_tensor, sizeof *z->tensor, by_layer);
    for (size_t i = 0, l = 0; l <= (size_t)net->hp.n_layer; l++) {
        while (i < z->n_tensor && z->tensor[i].layer < (int)l) i++;
        z->first[l] = i;
    }
}

/* requant --type refuses rows that are no whole blocks.  Those of down depend on the widths that are chosen. */
static int check_blocks(const prune_sizes_request *wanted, dw_err *err) {
    const dw_gguf *g = wanted->model->gguf;
    const dw_qtype_row *type = wanted->as.type;
    for (size_t i = 0; type && i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        if (kit_is_matrix(t) && !size_of(wanted, t).has_values && t->ne[0] % (size_t)type->block)
            return dw_fail(
                err,
                "tensor '%s': rows of %zu values are no whole number of %s blocks of %d; give --as a mixture, "
                "which takes another type there",
                t->name, t->ne[0], type->name, type->block);
    }
    return 0;
}

int prune_sizes_init(prune_sizes *z, const prune_sizes_request *wanted, dw_err *err) {
    const dw_net *net = &wanted->model->net;
    const dw_gguf *g = wanted->model->gguf;
    const size_t n_layer = (size_t)net->hp.n_layer, n_tensor = dw_gguf_n_tensors(g);
    *z = (prune_sizes){.layer = dw_alloc(n_layer, sizeof *z->layer, "sizes of layers", err)};
    z->neuron = dw_alloc(n_layer, sizeof *z->neuron, "sizes of layers", err);
    z->first = dw_alloc(n_layer + 1, sizeof *z->first, "sizes of layers", err);
    z->tensor = dw_alloc(n_tensor, sizeof *z->tensor, "sizes of tensors", err);
    if (!z->layer || !z->neuron || !z->first || !z->tensor) {
        prune_sizes_release(z);
        return -1;
    }
    if (check_blocks(wanted, err)) return -1;
    z->fixed = (double)dw_gguf_file_bytes(g) + HEADER_ROOM + (double)wanted->lineage_bytes +
               (double)(ALIGNMENT * n_tensor);
    if (wanted->as.mixture || wanted->as.type) z->fixed += REQUANT_ROOM;
    list_tensors(z, wanted);
    for (size_t l = 0; l < n_layer; l++) {
        for (size_t i = z->first[l]; i < z->first[l + 1]; i++) z->neuron[l] += neuron_bytes(&z->tensor[i]);
        z->layer[l] = layer_bytes(z, (int)l, 0);
    }
    return 0;
}

int prune_sizes_block(const prune_sizes *z) {
    int block = 1;
    for (size_t i = 0; i < z->n_tensor; i++) {
        const prune_size *t = &z->tensor[i];
        if (t->has_values && !is_vector(t) && t->type->block > block) block = t->type->block;
    }
    return block;
}

double prune_file_bytes(const prune_task *t, const int *n_keep) {
    double bytes = t->sizes->fixed;
    for (int l = 0; l < n_layer_of(t); l++)
        if (!t->drop[l]) bytes += layer_bytes(t->sizes, l, n_keep[l]);
    return bytes;
}

double prune_token_us(const prune_task *t, const int *n_keep) {
    double us = t->times->rest;
    for (int l = 0; l < n_layer_of(t); l++) us += t->drop[l] ? 0 : timing_of_layer(t->times, n_keep[l]);
    return us;
}

double prune_rate_of(const prune_task *t, const int *n_keep) {
    double kept = 0, all = 0;
    for (int l = 0; l < n_layer_of(t); l++)
        if (!t->drop[l]) kept += n_keep[l], all += width(t, l);
    return 1 - kept / all;
}

static bool is_protected(const prune_task *t, int l) { return t->protect && t->protect[l]; }

/* Of the neurons of layers that stay, the fraction in layers that may be cut. */
static double cuttable(const prune_task *t) {
    double all = 0, free = 0;
    for (int l = 0; l < n_layer_of(t); l++)
        if (!t->drop[l]) all += width(t, l), free += is_protected(t, l) ? 0 : width(t, l);
    return free / all;
}

double prune_rate_for_bytes(const prune_task *t) {
    double least = t->sizes->fixed, neurons = 0;
    for (int l = 0; l < n_layer_of(t); l++) {
        if (t->drop[l]) continue;
        const double bytes = width(t, l) * t->sizes->neuron[l];
        least += t->sizes->layer[l];
        if (is_protected(t, l))
            least += bytes;
        else
            neurons += bytes;
    }
    const double rate = 1 - (t->bytes - least) / neurons;
    return rate >= 1 ? -1 : rate > 0 ? rate * cuttable(t) : 0;
}

/* ---- rules ------------------------------------------------------------------------------------------------ */

/* Of a layer that is cut. */
static int least_cut(const prune_task *t) {
    return t->min_width > t->unit ? (t->min_width + t->unit - 1) / t->unit * t->unit : t->unit;
}

int prune_least_width(const prune_task *t, int l) {
    return is_protected(t, l) || width(t, l) < least_cut(t) ? width(t, l) : least_cut(t);
}

/* The allowed width nearest to `wanted` (the larger of two), or, when rounded down, the next below. */
static int allowed_width(const prune_task *t, int l, double wanted, bool down) {
    const int below = (int)(wanted / t->unit + 1e-9) * t->unit, n_ff = width(t, l),
              above = below + t->unit < n_ff ? below + t->unit : n_ff;
    int n = !down && above - wanted <= wanted - below ? above : below;
    if (wanted >= n_ff - 1e-9) n = n_ff;
    return n < prune_least_width(t, l) ? prune_least_width(t, l) : n;
}

static int too_small(const prune_task *t, const int *n_keep, dw_err *err) {
    return dw_fail(
        err,
        "--bytes %.0f is too little: %.0f are needed even when every layer keeps no more than %d neurons%s; drop "
        "layers, or allow more",
        t->bytes, prune_file_bytes(t, n_keep), least_cut(t), t->protect ? ", but for the protected ones" : "");
}

static int too_slow(const prune_task *t, const int *n_keep, dw_err *err) {
    return dw_fail(err,
                   "--us %g is too little: a token takes %.1f us by the measured times even when no layer keeps more "
                   "than %d neurons%s, or allow more",
                   t->us, prune_token_us(t, n_keep), least_cut(t),
                   t->protect ? ", but for the protected ones; drop layers, protect less" : "; drop layers");
}

/* Whether widths miss the size or the time that is wanted; the part in a billion is rounding. */
static bool is_too_much(const prune_task *t, const int *n_keep) {
    if (t->us > 0) return prune_token_us(t, n_keep) > t->us * (1 + 1e-9);
    return t->bytes > 0 && prune_file_bytes(t, n_keep) > t->bytes;
}

/* A rate that protected layers and min_width do not allow. */
static int check_rate(const prune_task *t, dw_err *err) {
    double all = 0, most = 0;
    for (int l = 0; l < n_layer_of(t); l++) {
        if (t->drop[l]) continue;
        all += width(t, l);
        if (!is_protected(t, l)) most += width(t, l) - (t->min_width > t->unit ? prune_least_width(t, l) : 0);
    }
    if (t->bytes > 0 || t->us > 0 || t->rate <= 0 || t->rate * all <= most) return 0;
    return dw_fail(err,
                   "--rate %g cannot be reached: with the protected layers and the least width at most %.4f of the "
                   "neurons may go; give a smaller rate, or protect less",
                   t->rate, most / all);
}

static void uniform_widths(const prune_task *t, double rate, int *n_keep) {
    for (int l = 0; l < n_layer_of(t); l++)
        n_keep[l] = t->drop[l] ? 0 : allowed_width(t, l, (1 - rate) * width(t, l), t->bytes > 0 || t->us > 0);
}

/* By bytes: the rate of whole blocks, and more where rows fall back to larger types.  By time: the rate at which all
 * layers are fast enough with one width, and more where protected layers keep theirs. */
static int uniform(const prune_task *t, int *n_keep, dw_err *err) {
    const double by_bytes = t->bytes > 0 ? prune_rate_for_bytes(t) : 0;
    const double step = (double)t->unit / t->model->net.hp.n_ff_max, share = cuttable(t);
    if (check_rate(t, err)) return -1;
    double rate = t->bytes > 0 ? by_bytes < 0 ? 1 : by_bytes : t->rate;
    if (rate > 0 && rate < 1) rate = fmin(rate / share, 1); // of the layers that may be cut
    uniform_widths(t, rate, n_keep);
    for (; is_too_much(t, n_keep) && rate < 1; rate += step) uniform_widths(t, fmin(rate + step, 1), n_keep);
    if (!is_too_much(t, n_keep)) return 0;
    return t->us > 0 ? too_slow(t, n_keep, err) : too_small(t, n_keep, err);
}

/* The groups of a layer that can still go, smallest score first. */
typedef struct queue {
    double *score; // ascending
    int n_left;    // groups
    int n_next;    // groups that go next, together
    double next;   // their mean score
} queue;

/* The groups that go next are as many as bring the width to a multiple of the unit. */
static void look_ahead(const prune_task *t, queue *q, int l) {
    const int per_unit = t->unit / t->group, n_group = width(t, l) / t->group, over = q->n_left % per_unit;
    q->n_next = over ? over : per_unit;
    q->next = 0;
    if ((q->n_left - q->n_next) * t->group < prune_least_width(t, l)) {
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
        if (t->bytes > 0 ? bytes <= t->bytes : gone + n / 2 > t->rate * all) break; // stops where the rate is nearest
        bytes -= layer_bytes(t->sizes, l, n_keep[l]);
        gone += n;
        q[l].n_left -= q[l].n_next;
        n_keep[l] = q[l].n_left * t->group;
        bytes += layer_bytes(t->sizes, l, n_keep[l]);
        look_ahead(t, &q[l], l);
    }
}

/* Turns the n scores of layer l into numbers that compare across layers. */
typedef void make_comparable(const prune_task *t, int l, double *score, size_t n);

static void as_they_are(const prune_task *t, int l, double *score, size_t n) { (void)t, (void)l, (void)score, (void)n; }

static void relative_to_residual(const prune_task *t, int l, double *score, size_t n) {
    for (size_t i = 0; i < n && t->is_energy; i++) score[i] *= t->inverse[l];
}

static void standardize(const prune_task *t, int l, double *score, size_t n) {
    double sum = 0, square = 0;
    (void)t, (void)l;
    for (size_t i = 0; i < n; i++) sum += score[i];
    const double mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) square += (score[i] - mean) * (score[i] - mean);
    const double deviation = sqrt(square / (double)n);
    for (size_t i = 0; i < n; i++) score[i] = deviation > 0 ? (score[i] - mean) / deviation : 0;
}

static int fill_queue(const prune_task *t, queue *q, int l, make_comparable *comparable, dw_err *err) {
    const size_t n = (size_t)(width(t, l) / t->group);
    *q = (queue){.score = dw_alloc(n, sizeof(double), "sorted scores", err), .n_left = (int)n};
    if (!q->score) return -1;
    memcpy(q->score, t->score[l], n * sizeof(double));
    comparable(t, l, q->score, n);
    measure_sort(q->score, n);
    look_ahead(t, q, l);
    return 0;
}

static int sort_together(const prune_task *t, int *n_keep, make_comparable *comparable, dw_err *err) {
    queue *q = dw_alloc((size_t)n_layer_of(t), sizeof *q, "sorted scores", err);
    int rc = q ? check_rate(t, err) : -1;
    for (int l = 0; l < n_layer_of(t) && !rc; l++) {
        n_keep[l] = t->drop[l] ? 0 : width(t, l);
        rc = fill_queue(t, &q[l], l, comparable, err);
    }
    if (!rc) take_least(t, q, n_keep);
    if (!rc && t->bytes > 0 && prune_file_bytes(t, n_keep) > t->bytes) rc = too_small(t, n_keep, err);
    for (int l = 0; q && l < n_layer_of(t); l++) free(q[l].score);
    free(q);
    return rc;
}

static int global(const prune_task *t, int *n_keep, dw_err *err) { return sort_together(t, n_keep, as_they_are, err); }
static int standardized(const prune_task *t, int *n_keep, dw_err *err) {
    return sort_together(t, n_keep, standardize, err);
}
static int relative(const prune_task *t, int *n_keep, dw_err *err) {
    return sort_together(t, n_keep, relative_to_residual, err);
}

// clang-format off
const prune_allocator prune_allocators[] = {
    {"uniform",      uniform,      KIT_SCALE_LAYER,  false, false, true,  "every layer loses the same fraction"},
    {"standardized", standardized, KIT_SCALE_LAYER,  false, false, false, "all groups together, by scores less their layer's mean, over its deviation"},
    {"relative",     relative,     KIT_SCALE_ENERGY, true,  false, false, "all groups together, by energies relative to the residual stream's; needs -s"},
    {"global",       global,       KIT_SCALE_COMMON, false, false, false, "all groups together, by scores as they are"},
    {"sensitivity",  search_sensitivity, KIT_SCALE_LAYER, false, true, true, "least sum of divergences of single cut layers, measured on held-out texts (-f)"},
    {"evolve",       search_evolve, KIT_SCALE_LAYER, false, true, false, "neurons move between layers when the divergence on held-out texts (-f) falls; from --start"},
    {0}};
// clang-format on

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
    for (int i = 0; i < n_keep / group; i++)
        memset(keep + (size_t)order[i].group * (size_t)group, true, (size_t)group * sizeof *keep);
    free(order);
    return 0;
}
