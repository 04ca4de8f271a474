/* layout.c - what the smaller file holds: widths, architecture, keys, tensors. */
#include "prune/cutting.h"

#include "formats/ffn_act.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- carriers: architectures of llama.cpp that read a width for each layer ---------------------------------- */

static const dw_tensor *layer_tensor(const dw_model *m, int l, const char *rest) {
    char name[96];
    snprintf(name, sizeof name, "blk.%d.%s", l, rest);
    return dw_gguf_find_tensor(m->gguf, name);
}

static bool is_bias(const char *rest) {
    const size_t n = strlen(rest);
    return n > 5 && !strcmp(rest + n - 5, ".bias");
}

/* q, k and v can be one matrix only where they have one type. */
static int check_fusable(const dw_model *m, int l, dw_err *err) {
    const dw_tensor *q = layer_tensor(m, l, "attn_q.weight"), *k = layer_tensor(m, l, "attn_k.weight");
    const dw_tensor *v = layer_tensor(m, l, "attn_v.weight");
    if (!q || !k || !v || (q->type == k->type && k->type == v->type)) return 0;
    return dw_fail(
        err,
        "layer %d: q, k and v are %s, %s and %s, but architecture 'openelm', which stores unequal widths, has them as "
        "one matrix; give --pad, or make the widths equal",
        l, q->type->name, k->type->name, v->type->name);
}

/* Whether the rows of q and k are permuted: rope rotates the pairs (2i, 2i + 1) in the carrier, (i, i + D/2) in the
 * parent. */
static bool permutes(const dw_arch *from, const dw_arch *to) { return from->has & ~to->has & DW_ARCH_ROPE_NEOX; }

/* Why the file needs another architecture, as a sentence and what else may be done; NULL: it does not. */
typedef struct reason {
    const char *what, *advice;
} reason;

static int check_carrier(const prune_layout *o, const dw_arch *to, reason why, dw_err *err) {
    const dw_model *m = o->parent;
    if (!to)
        return dw_fail(err, "%s, for which architecture '%s' has no carrier; %s", why.what, m->arch->name, why.advice);
    if (!(to->has & DW_ARCH_UNTIED) && !m->net.hp.tied)
        return dw_fail(err, "%s, which no architecture stores for '%s' with an output matrix of its own; %s", why.what,
                       m->arch->name, why.advice);
    const bool fuses = to->has & DW_ARCH_FUSED_QKV;
    for (size_t i = 0; i < dw_gguf_n_tensors(m->gguf); i++) {
        const char *rest, *name = dw_gguf_tensor(m->gguf, i)->name;
        const int l = dw_layer_of(name, &rest);
        const bool is_fused = !strncmp(rest, "attn_qkv.", 9) && (permutes(m->arch, to) || fuses);
        if ((is_bias(rest) && (!(to->has & DW_ARCH_BIASES) || l < 0)) || is_fused)
            return dw_fail(err, "%s; architecture '%s' can store that, but not '%s'; %s", why.what, to->name, name,
                           why.advice);
    }
    for (int l = 0; l < o->n_layer && fuses; l++)
        if (check_fusable(m, o->layer_of[l], err)) return -1;
    return 0;
}

static bool differs(const int *number, int n) {
    for (int l = 1; l < n; l++)
        if (number[l] != number[0]) return true;
    return false;
}

static reason reason_for_carrier(const prune_layout *o) {
    const unsigned has = o->parent->arch->has;
    if (o->cuts_heads && (differs(o->n_head, o->n_layer) || differs(o->n_head_kv, o->n_layer)))
        return (reason){"the numbers of heads differ by layer", "cut the same number of heads in every layer"};
    if (o->cuts_heads && has & DW_ARCH_SQUARE_Q)
        return (reason){"the heads that stay are not as wide as the embedding", "cut no heads"};
    if (o->n_biases && !(has & DW_ARCH_FFN_BIASES))
        return (reason){"the repair gives down a bias", "give --repair lsq, which needs none"};
    if (differs(o->n_ff, o->n_layer))
        return (reason){"the widths differ by layer", "give --pad, or make the widths equal (rank --allocate uniform)"};
    return (reason){0};
}

static int check_first_layer(const prune_layout *o, dw_err *err) {
    if (o->n_head[0] > 0) return 0;
    return dw_fail(err,
                   "layer %d would become the first and has no attention, which llama.cpp refuses; drop it too, "
                   "or keep one before it",
                   o->layer_of[0]);
}

/* to: the architecture that the file would have. */
static int check_biases(const prune_layout *o, const dw_arch *arch, const dw_arch *to, dw_err *err) {
    if (!o->n_biases || to->has & DW_ARCH_FFN_BIASES) return 0;
    return dw_fail(err,
                   "--repair bias: architecture '%s' has no bias of down, and llama.cpp would refuse the file; give "
                   "--repair lsq",
                   arch->name);
}

static int choose_arch(prune_layout *o, dw_err *err) {
    const dw_arch *from = o->parent->arch;
    const reason why = reason_for_carrier(o);
    o->arch = from;
    if (from->has & DW_ARCH_BY_LAYER) return check_first_layer(o, err) || check_biases(o, from, from, err) ? -1 : 0;
    if (!why.what) return 0;
    const dw_arch *to = from->carrier ? dw_arch_find((dw_str){from->carrier, strlen(from->carrier)}) : NULL;
    if ((to && check_biases(o, from, to, err)) || check_carrier(o, to, why, err)) return -1;
    o->arch = to;
    o->is_carrier = true;
    return 0;
}

/* ---- heads ------------------------------------------------------------------------------------------------------ */

/* Rows of D for each of `per` heads of each kept KV head; to: those of q or k, permuted where rope turns others. */
static int32_t *head_rows(const int32_t *kv, int n_kv, int per, int D, bool permuted, dw_err *err) {
    int32_t *rows = dw_alloc((size_t)n_kv * (size_t)per, (size_t)D * sizeof *rows, "rows of heads", err), *to = rows;
    for (int i = 0; rows && i < n_kv; i++)
        for (int r = 0; r < per * D; r++)
            *to++ = kv[i] * per * D + (permuted ? (int32_t)dw_unpermuted_row((size_t)r, (size_t)D) : r);
    return rows;
}

/* The rows of q, k and v one after the other. */
static int32_t *all_rows(const prune_layout *o, int l, dw_err *err) {
    const dw_hparams *hp = &o->parent->net.hp;
    const prune_heads *h = &o->heads[l];
    const int D = hp->head_dim, n_q = o->n_head[l] * D, n_k = o->n_head_kv[l] * D, pl = o->layer_of[l];
    int32_t *rows = dw_alloc((size_t)(n_q + 2 * n_k), sizeof *rows, "rows of heads", err);
    for (int r = 0; rows && r < n_q; r++) rows[r] = h->q[r];
    for (int r = 0; rows && r < n_k; r++) {
        rows[n_q + r] = hp->n_head[pl] * D + h->k[r];
        rows[n_q + n_k + r] = (hp->n_head[pl] + hp->n_head_kv[pl]) * D + h->v[r];
    }
    return rows;
}

static int map_heads(prune_layout *o, const kit_plan_layer *p, int l, dw_err *err) {
    const dw_hparams *hp = &o->parent->net.hp;
    const int pl = o->layer_of[l], D = hp->head_dim, n_kv = o->n_head_kv[l];
    const bool cuts = n_kv < hp->n_head_kv[pl], permuted = o->is_carrier && permutes(o->parent->arch, o->arch);
    prune_heads *h = &o->heads[l];
    if (!n_kv || (!cuts && !permuted)) return 0;
    const int per = hp->n_head[pl] / hp->n_head_kv[pl];
    int32_t *kv = dw_alloc((size_t)n_kv, sizeof *kv, "kept heads", err);
    if (!kv) return -1;
    for (int i = 0; i < n_kv; i++) kv[i] = i;
    if (cuts) kit_plan_kv_heads(p, kv);
    h->q = head_rows(kv, n_kv, per, D, permuted, err);
    h->k = head_rows(kv, n_kv, 1, D, permuted, err);
    if (cuts) h->v = head_rows(kv, n_kv, 1, D, false, err);
    if (cuts) h->o = head_rows(kv, n_kv, per, D, false, err);
    free(kv);
    if (!h->q || !h->k || (cuts && (!h->v || !h->o))) return -1;
    return cuts && !(h->all = all_rows(o, l, err)) ? -1 : 0;
}

int prune_check_plan(const dw_model *m, const kit_plan *plan, dw_err *err) {
    const dw_hparams *hp = &m->net.hp;
    if (plan->n_layer != hp->n_layer)
        return dw_fail(err, "the plan has %d layers, the model %d", plan->n_layer, hp->n_layer);
    for (int l = 0; l < plan->n_layer; l++) {
        const kit_plan_layer *p = &plan->layer[l];
        const int last = p->n_kv ? p->kv[p->n_kv_span - 1].last : -1;
        if (last >= hp->n_head_kv[l])
            return dw_fail(err, "the plan keeps KV head %d of layer %d, which has %d", last, l, hp->n_head_kv[l]);
    }
    return 0;
}

static void count_heads(prune_layout *o, const kit_plan *plan) {
    const dw_hparams *hp = &o->parent->net.hp;
    for (int l = 0; l < o->n_layer; l++) {
        const int pl = o->layer_of[l], has = hp->n_head_kv[pl];
        const kit_plan_layer *p = &plan->layer[pl];
        o->n_head[l] = hp->n_head[pl], o->n_head_kv[l] = has;
        if (!p->n_kv) continue;
        o->cuts_heads |= p->n_kv < has;
        o->n_head[l] = hp->n_head[pl] / has * p->n_kv;
        o->n_head_kv[l] = p->n_kv;
    }
}

/* ---- widths ---------------------------------------------------------------------------------------------------- */

static const dw_qtype_row *new_down_type(const prune_cut_options *options, const dw_tensor *down) {
    return options->encode_down && options->down_type ? options->down_type : down->type;
}

/* The smallest width for all layers that is a whole number of down's blocks. */
static int padded_width(const prune_layout *o, const prune_cut_options *options) {
    int width = 0, block = 1;
    for (int l = 0; l < o->n_layer; l++) {
        const dw_qtype_row *type = new_down_type(options, &o->parent->net.layer[o->layer_of[l]].down);
        if (type->block > block) block = type->block; // 1, 32 or 256: the largest is a multiple of all
        if (o->n_ff[l] > width) width = o->n_ff[l];
    }
    return (width + block - 1) / block * block;
}

static int list_kept(prune_layout *o, const kit_plan *plan, int l, dw_err *err) {
    const kit_plan_layer *from = &plan->layer[o->layer_of[l]];
    o->keep[l] = dw_alloc((size_t)o->n_ff[l], sizeof **o->keep, "kept neurons", err);
    if (!o->keep[l]) return -1;
    kit_plan_neurons(from, o->keep[l]);
    for (int j = from->n_keep; j < o->n_ff[l]; j++) o->keep[l][j] = -1;
    return 0;
}

static int choose_widths(prune_layout *o, const kit_plan *plan, const prune_cut_options *options, dw_err *err) {
    const size_t n = (size_t)plan->n_layer;
    o->layer_of = dw_alloc(n, sizeof *o->layer_of, "layers", err);
    o->n_ff = dw_alloc(n, sizeof *o->n_ff, "layers", err);
    o->keep = dw_alloc(n, sizeof *o->keep, "layers", err);
    o->importance = dw_alloc(n, sizeof *o->importance, "layers", err);
    o->n_head = dw_alloc(n, sizeof *o->n_head, "layers", err);
    o->n_head_kv = dw_alloc(n, sizeof *o->n_head_kv, "layers", err);
    o->heads = dw_alloc(n, sizeof *o->heads, "layers", err);
    o->bias = dw_alloc(n, sizeof *o->bias, "layers", err);
    if (!o->layer_of || !o->n_ff || !o->keep || !o->importance || !o->n_head || !o->n_head_kv || !o->heads || !o->bias)
        return -1;
    for (int l = 0; l < plan->n_layer; l++) {
        if (plan->layer[l].drop) continue;
        o->layer_of[o->n_layer] = l;
        o->n_ff[o->n_layer++] = plan->layer[l].n_keep;
    }
    const int common = options->pad ? padded_width(o, options) : 0;
    for (int l = 0; l < o->n_layer; l++) {
        o->has_padding |= common > o->n_ff[l];
        if (options->pad) o->n_ff[l] = common;
        if (list_kept(o, plan, l, err)) return -1;
    }
    return 0;
}

/* ---- tensors ---------------------------------------------------------------------------------------------------- */

/* True if every block of the list is a whole block of the parent, or all zeros. */
static bool is_whole_blocks(const int32_t *keep, int n, int block) {
    if (n % block) return false;
    for (int j = 0; j < n; j++) {
        const int32_t first = keep[j - j % block];
        if (first < 0 ? keep[j] >= 0 : first % block || keep[j] != first + j % block) return false;
    }
    return true;
}

static bool keeps_all(const prune_layout *o, int l) {
    const int n = o->n_ff[l];
    return n == o->parent->net.hp.n_ff[o->layer_of[l]] && o->keep[l][n - 1] == n - 1;
}

/* Fewer neurons than in the parent, padding not counted. */
static bool is_cut(const prune_layout *o, int l) {
    const int n_parent = o->parent->net.hp.n_ff[o->layer_of[l]];
    return o->n_ff[l] < n_parent || o->keep[l][n_parent - 1] != n_parent - 1;
}

/* Values come from the repair, and the importances of its columns guide the encoder.  r NULL: not there yet. */
static int place_repaired(prune_layout *o, prune_tensor *t, int l, const repairs *r, dw_err *err) {
    const int n = o->n_ff[l], parent_l = o->layer_of[l];
    if (n % t->type->block)
        return dw_fail(err,
                       "layer %d: %d neurons are no whole number of %s blocks of %d; choose a width that is (rank "
                       "--multiple %d), another --down-type, or --pad",
                       parent_l, n, t->type->name, t->type->block, t->type->block);
    if (!t->type->encode)
        return dw_fail(err, "layer %d: %s can be read but not encoded; give another --down-type", parent_l,
                       t->type->name);
    t->map = o->keep[l];
    t->move = PRUNE_ENCODE;
    o->n_repaired++;
    if (!r) return 0;
    for (int j = 0; j < n; j++) t->n_kept += o->keep[l][j] >= 0;
    o->importance[l] = dw_alloc((size_t)n, sizeof **o->importance, "importances", err);
    if (!o->importance[l]) return -1;
    memcpy(o->importance[l], r->importance[parent_l], t->n_kept * sizeof **o->importance);
    t->repaired = r->down[parent_l];
    t->importance = o->importance[l];
    return 0;
}

/* The mean squares of the kept columns' inputs guide the encoder, as an importance matrix does. */
static int weigh(prune_layout *o, prune_tensor *t, int l, const kit_stats *stats, dw_err *err) {
    const int parent_l = o->layer_of[l];
    if (kit_stats_need_layer(stats, parent_l, err)) return -1;
    const double *square = stats->layer[parent_l].input_square[KIT_STATS_FFN_NEURON];
    const double n_tokens = (double)kit_stats_n_tokens(stats);
    o->importance[l] = dw_alloc(t->ne[0], sizeof **o->importance, "importances", err);
    if (!o->importance[l]) return -1;
    for (size_t j = 0; j < t->ne[0]; j++) {
        const int32_t from = t->map ? t->map[j] : (int32_t)j;
        o->importance[l][j] = from < 0 ? 0 : (float)(square[from] / n_tokens);
    }
    dw_weights_raise(o->importance[l], t->ne[0]);
    t->importance = o->importance[l];
    return 0;
}

static int refuse_width(int l, int n, const dw_qtype_row *type, dw_err *err) {
    return dw_fail(
        err,
        "layer %d: %d neurons are no whole number of %s blocks of %d; rank with --multiple %d, "
        "or give another --down-type, or --pad",
        l, n, type->name, type->block, type->block);
}

static int check_encoding(int l, const dw_qtype_row *type, const prune_cut_options *options, dw_err *err) {
    if (!options->encode_down)
        return dw_fail(
            err,
            "layer %d: the kept neurons are not whole blocks of %d, as %s needs for copying; give --down-type (best "
            "with --source), or rank in groups (--group %d)",
            l, type->block, type->name, type->block);
    if (type->encode) return 0;
    return dw_fail(err, "layer %d: %s can be read but not encoded; give another --down-type", l, type->name);
}

static int place_down(prune_layout *o, prune_tensor *t, int l, const prune_cut_options *options, dw_err *err) {
    const dw_tensor *down = t->from[0];
    const int n = o->n_ff[l], parent_l = o->layer_of[l];
    const dw_qtype_row *type = new_down_type(options, down);
    t->ne[0] = (size_t)n;
    t->type = type;
    const repairs *r = options->repairs;
    if (r ? r->down[parent_l] != NULL : options->coming.down && is_cut(o, l)) return place_repaired(o, t, l, r, err);
    if (type == down->type && keeps_all(o, l)) return 0;
    t->map = o->keep[l];
    t->move = PRUNE_BLOCKS;
    if (type == down->type && is_whole_blocks(t->map, n, type->block)) return 0;
    if (n % type->block) return refuse_width(parent_l, n, type, err);
    if (check_encoding(parent_l, type, options, err)) return -1;
    t->move = PRUNE_ENCODE;
    o->n_encoded++;
    o->n_down_again += !options->source && down->type->block > 1;
    if (options->source) t->from[0] = &options->source->net.layer[parent_l].down;
    return options->stats ? weigh(o, t, l, options->stats, err) : 0;
}

/* Columns of heads that stay.  o->importance is down's: the repair's own importances need no padding. */
static int place_o(prune_layout *o, prune_tensor *t, int l, const prune_cut_options *options, dw_err *err) {
    const int parent_l = o->layer_of[l], n = o->n_head[l] * o->parent->net.hp.head_dim;
    const repairs *r = options->repairs;
    const dw_qtype_row *type = t->type;
    if (!o->heads[l].o) return 0;
    t->ne[0] = (size_t)n;
    t->map = o->heads[l].o;
    t->move = PRUNE_BLOCKS;
    const bool is_repaired = r ? r->o[parent_l] != NULL : options->coming.o;
    if (!is_repaired && is_whole_blocks(t->map, n, type->block)) return 0;
    if (n % type->block || !type->encode || (!is_repaired && !options->encode_down))
        return dw_fail(
            err,
            "layer %d: the %d heads that stay give o rows of %d values, which %s blocks of %d do not hold as "
            "they are; cut heads of a model in 16 bits, and requant it",
            parent_l, o->n_head[l], n, type->name, type->block);
    t->move = PRUNE_ENCODE;
    if (!is_repaired) {
        o->n_encoded++;
        o->n_o_again += !options->source && type->block > 1;
        if (options->source) t->from[0] = &options->source->net.layer[parent_l].o;
        return 0;
    }
    o->n_repaired_o++;
    t->n_kept = (size_t)n;
    if (!r) return 0;
    t->repaired = r->o[parent_l];
    t->importance = r->o_importance[parent_l];
    return 0;
}

/* Rows of q, k, v, or of all three. */
static void place_heads(const prune_layout *o, prune_tensor *t, int l, const dw_tensor_row *row, char rows) {
    const int D = o->parent->net.hp.head_dim, n_q = o->n_head[l] * D, n_k = o->n_head_kv[l] * D;
    const prune_heads *h = &o->heads[l];
    t->ne[t->n_dims - 1] = (size_t)(rows == 'q' ? n_q : rows == 'k' ? n_k : n_q + 2 * n_k);
    t->map = rows == 's' ? h->all : rows == 'q' ? h->q : row->is_turned ? h->k : h->v;
}

static void fuse_qkv(const prune_layout *o, prune_tensor *t, int l) {
    snprintf(t->name, sizeof t->name, "blk.%d.attn_qkv.weight", l);
    t->from[1] = layer_tensor(o->parent, o->layer_of[l], "attn_k.weight");
    t->from[2] = layer_tensor(o->parent, o->layer_of[l], "attn_v.weight");
    t->ne[1] = (size_t)((o->n_head[l] + 2 * o->n_head_kv[l]) * o->parent->net.hp.head_dim);
    t->map = o->heads[l].all;
}

/* Whether q, k and v become one matrix.  The list of tensors then has only q, with the rows of all three. */
static bool fuses_qkv(const prune_layout *o) { return o->is_carrier && o->arch->has & DW_ARCH_FUSED_QKV; }

/* l: the layer in the smaller file, -1 for a tensor of the whole model. */
static int place_tensor(prune_layout *o, prune_tensor *t, int l, const prune_cut_options *options, dw_err *err) {
    int parent_l;
    bool bias;
    const dw_tensor_row *row = dw_tensor_row_find(t->from[0]->name, &parent_l, &bias);
    t->n_dims = bias || !row->shape[1] ? 1 : 2; // the file may say that a vector is a matrix of one row
    snprintf(t->name, sizeof t->name, "%.63s", dw_name_gguf(row, l, bias).text);
    const char rows = bias ? row->bias : row->shape[0];
    if (!bias && row->shape[1] == 'n') return place_down(o, t, l, options, err);
    if (!bias && row->shape[1] == 'q') return place_o(o, t, l, options, err);
    if (bias && !strcmp(row->gguf, "ffn_down") && o->bias[l].name) t->from[0] = &o->bias[l];
    if (rows == 'n' || rows == 'f') {
        t->ne[t->n_dims - 1] = (size_t)o->n_ff[l];
        if (!keeps_all(o, l)) t->map = o->keep[l];
    } else if (rows == 'q' || rows == 'k' || rows == 's') {
        place_heads(o, t, l, row, rows);
    }
    if (fuses_qkv(o) && !bias && rows == 'q') fuse_qkv(o, t, l);
    return 0;
}

/* The index of the parent's layer in the smaller file, -1 when it is dropped. */
static int new_layer(const prune_layout *o, int parent_l) {
    for (int l = 0; l < o->n_layer; l++)
        if (o->layer_of[l] == parent_l) return l;
    return -1;
}

/* A bias that the parent does not have. */
static void add_bias(prune_layout *o, int l) {
    prune_tensor *t = &o->tensor[o->n_tensor++];
    *t = (prune_tensor){.type = o->bias[l].type, .n_dims = 1, .ne = {o->bias[l].ne[0], 1}, .from = {&o->bias[l]}};
    snprintf(t->name, sizeof t->name, "blk.%d.ffn_down.bias", l);
    o->data_bytes += (double)(t->ne[0] * sizeof(float));
}

/* Biases of the repair as tensors. */
static void list_biases(prune_layout *o, const prune_cut_options *options) {
    const size_t d = (size_t)o->parent->net.hp.n_embd;
    const repairs *r = options->repairs;
    for (int l = 0; l < o->n_layer; l++) {
        const float *b = r ? r->bias[o->layer_of[l]] : NULL;
        if (!b && (r || !options->coming.bias || !is_cut(o, l))) continue;
        o->bias[l] = (dw_tensor){.name = "ffn_down.bias",
                                 .type = dw_qtype_get(DW_F32),
                                 .n_dims = 1,
                                 .ne = {d, 1, 1, 1},
                                 .n_bytes = d * sizeof *b,
                                 .data = (const uint8_t *)b};
        o->n_biases++;
    }
}

static int place_tensors(prune_layout *o, const prune_cut_options *options, dw_err *err) {
    const dw_gguf *g = o->parent->gguf;
    const bool fuse = fuses_qkv(o);
    o->tensor = dw_alloc(dw_gguf_n_tensors(g) + o->n_biases, sizeof *o->tensor, "the list of tensors", err);
    if (!o->tensor) return -1;
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *from = dw_gguf_tensor(g, i);
        const char *rest;
        const int parent_l = dw_layer_of(from->name, &rest), l = parent_l < 0 ? -1 : new_layer(o, parent_l);
        if (parent_l >= 0 && l < 0) continue; // dropped
        if (fuse && (!strcmp(rest, "attn_k.weight") || !strcmp(rest, "attn_v.weight")))
            continue; // they are rows after q's
        prune_tensor *t = &o->tensor[o->n_tensor++];
        *t = (prune_tensor){.type = from->type, .ne = {from->ne[0], from->ne[1]}, .from = {from}};
        if (place_tensor(o, t, l, options, err)) return -1;
        o->data_bytes += (double)(prune_tensor_n_rows(t) * prune_tensor_row_bytes(t));
    }
    for (int l = 0; l < o->n_layer; l++)
        if (o->bias[l].name && !o->parent->net.layer[o->layer_of[l]].down_bias.name) add_bias(o, l);
    return 0;
}

void prune_layout_sizes(const prune_layout *o, kit_sizes *sizes) {
    *sizes = (kit_sizes){0};
    for (size_t i = 0; i < o->n_tensor; i++) {
        const prune_tensor *t = &o->tensor[i];
        const size_t n_rows = prune_tensor_n_rows(t), per_row = t->n_dims == 1 ? 1 : t->ne[0];
        kit_sizes_add(sizes, t->type->name, t->n_dims == 1 ? KIT_SIZES_VECTORS : KIT_SIZES_MATRICES,
                      (double)n_rows * (double)per_row, (double)n_rows * (double)prune_tensor_row_bytes(t));
    }
}

/* ---- all together ------------------------------------------------------------------------------------------------ */

int prune_need_cuttable(const dw_model *m, dw_err *err) {
    if (dw_model_need_whole_ffn(m, err) || dw_model_need_ungated(m, "cut", err)) return -1;
    for (size_t i = 0; i < dw_gguf_n_tensors(m->gguf); i++) {
        const char *name = dw_gguf_tensor(m->gguf, i)->name;
        int layer;
        bool bias;
        if (!dw_tensor_row_find(name, &layer, &bias))
            return dw_fail(err,
                           "'%s' cannot be cut: its tensor '%s' may depend on neurons in a way that cut does not "
                           "know; cut the model that it was made from",
                           dw_gguf_path(m->gguf), name);
    }
    return 0;
}

static int init(prune_layout *o, const kit_plan *plan, const prune_cut_options *options, dw_err *err) {
    if (prune_need_cuttable(o->parent, err)) return -1;
    if (prune_check_plan(o->parent, plan, err)) return -1;
    if (options->source && dw_model_check_source(o->parent, options->source, err)) return -1;
    if (choose_widths(o, plan, options, err)) return -1;
    count_heads(o, plan);
    list_biases(o, options);
    if (choose_arch(o, err)) return -1;
    for (int l = 0; l < o->n_layer; l++)
        if (map_heads(o, &plan->layer[o->layer_of[l]], l, err)) return -1;
    return place_tensors(o, options, err);
}

int prune_layout_init(prune_layout *o, const dw_model *parent, const kit_plan *plan, const prune_cut_options *options,
                      dw_err *err) {
    *o = (prune_layout){.parent = parent, .source = options->source};
    if (!init(o, plan, options, err)) return 0;
    prune_layout_release(o);
    return -1;
}

void prune_layout_release(prune_layout *o) {
    for (int l = 0; l < o->n_layer && o->keep; l++) free(o->keep[l]);
    for (int l = 0; l < o->n_layer && o->importance; l++) free(o->importance[l]);
    free(o->keep);
    free(o->importance);
    free(o->layer_of);
    free(o->n_ff);
    for (int l = 0; l < o->n_layer && o->heads; l++) {
        prune_heads *h = &o->heads[l];
        free(h->q), free(h->k), free(h->v), free(h->o), free(h->all);
    }
    free(o->heads);
    free(o->n_head);
    free(o->n_head_kv);
    free(o->bias);
    free(o->tensor);
    *o = (prune_layout){0};
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static void set_u32(const prune_layout *o, dw_gguf_writer *w, const char *name, int value) {
    char key[128];
    snprintf(key, sizeof key, "%s.%s", o->arch->name, name);
    dw_gguf_set_u32(w, key, (uint32_t)value);
}

/* Arrays with a number for each layer lose those of dropped layers. */
static int set_filtered(const prune_layout *o, dw_gguf_writer *w, const char *key, const dw_kv *kv, dw_err *err) {
    const size_t size = kv->count ? kv->n_bytes / kv->count : 0;
    dw_kv part = *kv;
    part.count = (size_t)o->n_layer;
    part.n_bytes = part.count * size;
    uint8_t *data = dw_alloc(part.n_bytes, 1, "a key", err);
    if (!data) return -1;
    for (int l = 0; l < o->n_layer; l++)
        memcpy(data + (size_t)l * size, kv->data + (size_t)o->layer_of[l] * size, size);
    part.data = data;
    dw_gguf_set_kv(w, key, &part);
    free(data);
    return 0;
}

/* The architecture's keys change their prefix.  Of deadwood's own only the activation is copied: the others are about
 * single neurons of the parent, or about its numbers. */
static int copy_keys(const prune_layout *o, dw_gguf_writer *w, dw_err *err) {
    const dw_model *m = o->parent;
    const size_t n_arch = strlen(m->arch->name);
    const size_t n_layer = (size_t)m->net.hp.n_layer;
    int rc = 0;
    for (size_t i = 0; i < dw_gguf_n_kv(m->gguf) && !rc; i++) {
        const dw_kv *kv = dw_gguf_kv(m->gguf, i);
        if (!strncmp(kv->key, "deadwood.", 9) && strcmp(kv->key, DW_KEY_FFN_ACTIVATION) != 0) continue;
        if (strncmp(kv->key, m->arch->name, n_arch) || kv->key[n_arch] != '.') {
            dw_gguf_set_kv(w, kv->key, kv);
            continue;
        }
        char *key = dw_format(err, "%s%s", o->arch->name, kv->key + n_arch);
        const bool by_layer = kv->is_array && kv->type != DW_KV_STR && kv->count == n_layer &&
                              o->n_layer < m->net.hp.n_layer;
        if (!key)
            rc = -1;
        else if (by_layer)
            rc = set_filtered(o, w, key, kv, err);
        else
            dw_gguf_set_kv(w, key, kv);
        free(key);
    }
    return rc;
}

static void set_widths(const prune_layout *o, dw_gguf_writer *w) {
    if (!(o->arch->has & DW_ARCH_BY_LAYER)) {
        set_u32(o, w, "feed_forward_length", o->n_ff[0]);
        return;
    }
    char key[128];
    snprintf(key, sizeof key, "%s.feed_forward_length", o->arch->name);
    dw_gguf_set_array(w, key, DW_KV_U32, o->n_ff, (size_t)o->n_layer);
}

/* One number, or one for each layer where the architecture has them. */
static void set_heads(const prune_layout *o, dw_gguf_writer *w) {
    const struct {
        const char *name;
        const int *n;
    } keys[] = {{"attention.head_count", o->n_head}, {"attention.head_count_kv", o->n_head_kv}};
    for (int i = 0; i < 2 && o->cuts_heads; i++) {
        char key[128];
        snprintf(key, sizeof key, "%s.%s", o->arch->name, keys[i].name);
        if (differs(keys[i].n, o->n_layer))
            dw_gguf_set_array(w, key, DW_KV_U32, keys[i].n, (size_t)o->n_layer);
        else
            dw_gguf_set_u32(w, key, (uint32_t)keys[i].n[0]);
    }
}

int prune_layout_declare(const prune_layout *o, dw_gguf_writer *w, dw_err *err) {
    const dw_hparams *hp = &o->parent->net.hp;
    if (copy_keys(o, w, err)) return -1;
    dw_gguf_set_text(w, "general.architecture", o->arch->name);
    set_u32(o, w, "block_count", o->n_layer);
    set_widths(o, w);
    set_heads(o, w);
    if (o->is_carrier || o->cuts_heads) { // what a native architecture may leave to a default
        set_u32(o, w, "attention.key_length", hp->head_dim);
        set_u32(o, w, "attention.value_length", hp->head_dim);
        set_u32(o, w, "rope.dimension_count", hp->head_dim);
        set_u32(o, w, "vocab_size", hp->n_vocab);
    }
    bool quantized = false;
    for (size_t i = 0; i < o->n_tensor; i++) {
        const prune_tensor *t = &o->tensor[i];
        quantized |= t->move == PRUNE_ENCODE && t->type->block > 1;
        dw_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne);
    }
    if (quantized) dw_gguf_set_u32(w, "general.quantization_version", 2);
    return 0;
}
