/* bind.c - reads a GGUF file's hyperparameters and binds its tensors to a dw_net, by the tables of archs.h. */
#include "formats/ffn_act.h"
#include "formats/ffn_two_part.h"
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- hyperparameters ------------------------------------------------------------------------------- */

typedef struct keys { // the keys of one file: "block_count" is found as "llama.block_count"
    const dw_gguf *g;
    const char *arch;
    dw_err *err;
} keys;

static const char *key_name(const keys *k, const char *name, char buffer[128]) {
    snprintf(buffer, 128, "%s.%s", k->arch, name);
    return buffer;
}

static int missing(const keys *k, const char *key) { return dw_fail(k->err, "key '%s' is missing", key); }

/* Reads an integer and checks it by its row.  If an optional key is absent *value is unchanged. */
static int get_int(const keys *k, dw_key which, int *value) {
    const dw_key_row *row = &dw_keys[which];
    char key[128];
    uint32_t u;
    const int found = dw_gguf_u32(k->g, key_name(k, row->gguf, key), &u, k->err);
    if (found < 0) return -1;
    if (!found) return row->required ? missing(k, key) : 0;
    if (!dw_key_allows(row, u)) return dw_fail(k->err, "key '%s' is %u, expected %s", key, u, dw_key_bounds(row).text);
    *value = (int)u;
    return 0;
}

static int get_real(const keys *k, dw_key which, float *value) {
    const dw_key_row *row = &dw_keys[which];
    char key[128];
    const int found = dw_gguf_f32(k->g, key_name(k, row->gguf, key), value, k->err);
    if (found < 0) return -1;
    if (!found) return row->required ? missing(k, key) : 0;
    if (!dw_key_allows(row, (double)*value))
        return dw_fail(k->err, "key '%s' is %g, expected a number %s", key, (double)*value, dw_key_bounds(row).text);
    return 0;
}

/* Reads an optional number that is not in dw_keys: positive, or 0 if that means the default. */
static int get_positive(const keys *k, const char *name, float *value, bool may_be_zero) {
    char key[128];
    if (dw_gguf_f32(k->g, key_name(k, name, key), value, k->err) < 0) return -1;
    if (!isfinite(*value) || *value < 0 || (!may_be_zero && *value == 0))
        return dw_fail(k->err, "key '%s' is %g, expected a positive number", key, (double)*value);
    return 0;
}

/* Reads an integer for each layer.  Returns the largest, or -1.  An optional key may be absent. */
static int get_per_layer(const dw_model *m, const keys *k, dw_key which, int *values) {
    const dw_key_row *row = &dw_keys[which];
    const int n_layer = m->net.hp.n_layer;
    char key[128];
    uint32_t u[DW_MAX_LAYERS];
    const int found = dw_gguf_u32s(k->g, key_name(k, row->gguf, key), u, (size_t)n_layer, k->err);
    if (found < 0) return -1;
    if (!found && row->required) return missing(k, key);
    int largest = 0;
    for (int l = 0; l < n_layer; l++) {
        if (found && !dw_key_allows(row, u[l]))
            return dw_fail(k->err, "key '%s' is %u for layer %d, expected %s", key, u[l], l, dw_key_bounds(row).text);
        if (found) values[l] = (int)u[l];
        if (values[l] != values[0] && !(m->arch->has & DW_ARCH_BY_LAYER))
            return dw_fail(k->err, "key '%s' differs between layers, which architecture '%s' does not allow", key,
                           k->arch);
        if (values[l] > largest) largest = values[l];
    }
    return largest;
}

/* Checks a key that must repeat head_dim if it is present. */
static int check_is_head_dim(const keys *k, dw_key which, int head_dim, const char *why) {
    char key[128];
    uint32_t u = (uint32_t)head_dim;
    if (dw_gguf_u32(k->g, key_name(k, dw_keys[which].gguf, key), &u, k->err) < 0) return -1;
    return u == (uint32_t)head_dim ? 0 : dw_fail(k->err, "key '%s' is %u; %s (%d)", key, u, why, head_dim);
}

static int check_attention(const dw_model *m, const keys *k) {
    const dw_hparams *hp = &m->net.hp;
    for (int l = 0; l < hp->n_layer; l++)
        if (dw_check_heads(m->arch, l, hp->n_head[l], hp->n_head_kv[l], hp->head_dim, k->err)) return -1;
    if (check_is_head_dim(k, DW_KEY_ROPE_DIM, hp->head_dim, "only rotation of whole heads is supported") ||
        check_is_head_dim(k, DW_KEY_VALUE_DIM, hp->head_dim, "only values as long as keys are supported"))
        return -1;
    return 0;
}

/* Keys of llama.cpp that change what a model computes, with values that this engine does not compute. */
static int check_others(const dw_model *m, const keys *k) {
    const double own_scale = 1 / sqrt(m->net.hp.head_dim);
    char key[128];
    uint32_t n_expert = 0;
    bool causal = true;
    float scale = 0;
    if (dw_gguf_u32(k->g, key_name(k, "expert_count", key), &n_expert, k->err) < 0) return -1;
    if (n_expert) return dw_fail(k->err, "this is a mixture of experts ('%s'), which is not supported", key);
    if (dw_gguf_bool(k->g, key_name(k, "attention.causal", key), &causal, k->err) < 0) return -1;
    if (!causal)
        return dw_fail(k->err, "every token sees the later ones, too ('%s' is false), which is not supported", key);
    if (get_positive(k, "attention.scale", &scale, true)) return -1;
    if (scale == 0 || fabs(scale - own_scale) <= 1e-5 * own_scale) return 0;
    return dw_fail(k->err, "key '%s' is %g; only 1/sqrt(%d), the root of a head's values, is supported",
                   key_name(k, "attention.scale", key), (double)scale, m->net.hp.head_dim);
}

/* Reads widths and numbers of heads of each layer, and finds the largest of each. */
static int read_widths(dw_model *m, const keys *k) {
    dw_hparams *hp = &m->net.hp;
    m->widths = dw_alloc(3 * (size_t)hp->n_layer, sizeof *m->widths, "layer widths", k->err);
    if (!m->widths) return -1;
    int *n_ff = m->widths, *n_head = n_ff + hp->n_layer, *n_head_kv = n_head + hp->n_layer;
    hp->n_ff = n_ff, hp->n_head = n_head, hp->n_head_kv = n_head_kv;
    hp->n_ff_max = get_per_layer(m, k, DW_KEY_N_FF, n_ff);
    if (hp->n_ff_max < 0) return -1;
    hp->n_head_max = get_per_layer(m, k, DW_KEY_N_HEAD, n_head);
    if (hp->n_head_max < 0) return -1;
    memcpy(n_head_kv, n_head, (size_t)hp->n_layer * sizeof *n_head); // the default
    hp->n_head_kv_max = get_per_layer(m, k, DW_KEY_N_HEAD_KV, n_head_kv);
    return hp->n_head_kv_max < 0 ? -1 : 0;
}

static int read_hparams(dw_model *m, const keys *k) {
    dw_hparams *hp = &m->net.hp;
    hp->arch = m->arch->name;
    if (get_int(k, DW_KEY_N_LAYER, &hp->n_layer) || get_int(k, DW_KEY_N_EMBD, &hp->n_embd) ||
        get_int(k, DW_KEY_N_CTX, &hp->n_ctx_train) || read_widths(m, k))
        return -1;
    hp->head_dim = hp->n_head[0] ? hp->n_embd / hp->n_head[0] : 0;
    if (get_int(k, DW_KEY_HEAD_DIM, &hp->head_dim) || check_attention(m, k)) return -1;

    hp->rope_base = 10000; // llama.cpp's default
    if (get_real(k, DW_KEY_ROPE_BASE, &hp->rope_base) || get_real(k, DW_KEY_NORM_EPS, &hp->norm_eps) ||
        check_others(m, k))
        return -1;
    hp->attn_scale = 1 / sqrtf((float)hp->head_dim);
    m->net.embd_scale = m->arch->has & DW_ARCH_EMBD_SCALE ? sqrtf((float)hp->n_embd) : 1;
    return 0;
}

/* ---- rope ------------------------------------------------------------------------------------------- */

/* YaRN (Peng et al. 2023): fast pairs keep their frequency, slow ones are interpolated, those between get a mixture. */
static void yarn_factors(dw_model *m, double factor, double n_ctx_original) {
    const dw_hparams *hp = &m->net.hp;
    const double pi = 3.14159265358979323846, beta_fast = 32, beta_slow = 1;
    const double per_turn = hp->head_dim / (2 * log(hp->rope_base));
    const double low = fmax(0, floor(per_turn * log(n_ctx_original / (beta_fast * 2 * pi))));
    const double high = fmin(hp->head_dim - 1, ceil(per_turn * log(n_ctx_original / (beta_slow * 2 * pi))));
    for (int i = 0; i < hp->head_dim / 2; i++) {
        const double t = (i - low) / fmax(0.001, high - low), interpolated = t < 0 ? 0 : t > 1 ? 1 : t;
        m->rope_factors[i] = (float)(1 / (interpolated / factor + (1 - interpolated)));
    }
}

/* The context before scaling; it has the bounds of context_length. */
static int get_original_context(const keys *k, int *n_ctx) {
    const dw_key_row *row = &dw_keys[DW_KEY_N_CTX];
    char key[128];
    uint32_t u = (uint32_t)*n_ctx;
    if (dw_gguf_u32(k->g, key_name(k, "rope.scaling.original_context_length", key), &u, k->err) < 0) return -1;
    if (!dw_key_allows(row, u)) return dw_fail(k->err, "key '%s' is %u, expected %s", key, u, dw_key_bounds(row).text);
    *n_ctx = (int)u;
    return 0;
}

static int read_rope_scaling(dw_model *m, const keys *k) {
    const int n_pair = m->net.hp.head_dim / 2;
    m->rope_factors = dw_alloc((size_t)n_pair, sizeof *m->rope_factors, "rope factors", k->err);
    if (!m->rope_factors) return -1;
    for (int i = 0; i < n_pair; i++) m->rope_factors[i] = 1;
    m->rope_magnitude = 1;

    char key[128];
    dw_str type = {"linear", 6};
    float factor = 0;
    int n_ctx_original = m->net.hp.n_ctx_train;
    if (get_positive(k, "rope.scale_linear", &factor, true) || // the old name
        get_positive(k, "rope.scaling.factor", &factor, true) || get_original_context(k, &n_ctx_original) ||
        get_positive(k, "rope.scaling.attn_factor", &m->rope_magnitude, false) ||
        dw_gguf_str(k->g, key_name(k, "rope.scaling.type", key), &type, k->err) < 0)
        return -1;
    if (factor == 0) factor = 1; // as in llama.cpp
    m->rope_factor = factor;
    if (dw_str_is(type, "yarn")) {
        m->rope_scaling = "yarn";
        yarn_factors(m, factor, n_ctx_original);
        m->rope_magnitude *= 1 + 0.1f * logf(factor);
    } else if (dw_str_is(type, "linear")) {
        if (factor != 1) m->rope_scaling = "linear";
        for (int i = 0; i < n_pair; i++) m->rope_factors[i] = factor;
    } else if (!dw_str_is(type, "none")) {
        return dw_fail(k->err, "rope scaling '%.*s' is not supported", (int)(type.len < 40 ? type.len : 40), type.ptr);
    }
    return 0;
}

/* ---- tensors ---------------------------------------------------------------------------------------- */

typedef struct binder {
    const dw_gguf *g;
    const dw_arch *arch;
    int layer;      // -1: the tensors of the whole model
    dw_sizes sizes; // of the layer
    bool *is_bound; // of the file's tensors: every one must be bound to something
    dw_err *err;
} binder;

static const dw_tensor *find(const binder *b, const dw_tensor_row *r, bool bias) {
    return dw_gguf_find_tensor(b->g, dw_name_gguf(r, b->layer, bias).text);
}

/* Binds a row's weight or bias to *t.  If it is optional and absent, *t is unchanged. */
static int bind(binder *b, const dw_tensor_row *r, bool bias, dw_tensor *t) {
    const dw_tensor *found = find(b, r, bias);
    const dw_tensor_name name = dw_name_gguf(r, b->layer, bias);
    const bool required = bias ? r->bias_required : !r->optional || (r->n_parts && b->arch->has & DW_ARCH_FUSED_QKV);
    if (!found) return required ? dw_fail(b->err, "tensor '%s' is missing", name.text) : 0;
    const bool is_vector = bias || !r->shape[1];
    const size_t n_rows = is_vector ? 1 : dw_dimension(r->shape[0], &b->sizes);
    const size_t n = dw_dimension(bias ? r->bias : is_vector ? r->shape[0] : r->shape[1], &b->sizes);
    if (found->ne[0] != n || found->ne[1] != n_rows || found->ne[2] != 1 || found->ne[3] != 1)
        return dw_fail(b->err, "tensor '%s' has shape [%zu, %zu, %zu, %zu], expected [%zu, %zu]", name.text,
                       found->ne[0], found->ne[1], found->ne[2], found->ne[3], n, n_rows);
    if (is_vector && found->type->id != DW_F32)
        return dw_fail(b->err, "tensor '%s' is %s, expected F32", name.text, found->type->name);
    *t = *found;
    b->is_bound[found - dw_gguf_tensor(b->g, 0)] = true;
    return 0;
}

/* Binds a row's weight and bias in `base`, a dw_net or a dw_layer.  A tensor without a place there is only checked. */
static int bind_row(binder *b, const dw_tensor_row *r, void *base) {
    dw_tensor checked;
    if (bind(b, r, false, r->at ? dw_tensor_at(base, r->at) : &checked)) return -1;
    return r->bias ? bind(b, r, true, dw_tensor_at(base, r->bias_at)) : 0;
}

/* Values first .. first+n-1 of a vector, or rows of a matrix, as a tensor of their own. */
static dw_tensor part_of(const dw_tensor *t, size_t first, size_t n, bool is_vector) {
    const size_t bytes = is_vector ? sizeof(float) : dw_tensor_row_bytes(t);
    dw_tensor part = *t;
    part.data += first * bytes;
    part.ne[is_vector ? 0 : 1] = n;
    part.n_bytes = n * bytes;
    return part;
}

/* Binds a matrix and its bias, or its parts, which are the next rows of the table.  A file has one or the other; the
 * parts get their places in both cases. */
static int bind_parts(binder *b, const dw_tensor_row *r, void *base) {
    dw_tensor whole = {0}, bias = {0};
    if (bind(b, r, false, &whole)) return -1;
    const dw_tensor_row *part = r + 1, *end = part + r->n_parts;
    if (!whole.name) {
        for (; part < end; part++)
            if (bind_row(b, part, base)) return -1;
        return 0;
    }
    if (bind(b, r, true, &bias)) return -1;
    for (size_t first = 0; part < end; part++) {
        const size_t n = dw_dimension(part->shape[0], &b->sizes);
        *dw_tensor_at(base, part->at) = part_of(&whole, first, n, false);
        if (bias.name) *dw_tensor_at(base, part->bias_at) = part_of(&bias, first, n, true);
        first += n;
    }
    return 0;
}

static int bind_rows(binder *b, const dw_tensor_row *rows, void *base) {
    for (const dw_tensor_row *r = rows; r->gguf; r += 1 + r->n_parts) {
        if (r->of && !(b->arch->has & r->of)) continue;
        if (r->n_parts ? bind_parts(b, r, base) : bind_row(b, r, base)) return -1;
    }
    return 0;
}

/* How many neurons of each layer are cold: none, unless the file is in two parts. */
static int read_cold_widths(dw_model *m, dw_err *err) {
    const dw_hparams *hp = &m->net.hp;
    uint32_t n_cold[DW_MAX_LAYERS] = {0};
    if (dw_gguf_u32s(m->gguf, DW_KEY_COLD_LENGTH, n_cold, (size_t)hp->n_layer, err) < 0) return -1;
    for (int l = 0; l < hp->n_layer; l++) {
        dw_layer *w = &m->net.layer[l];
        if (n_cold[l] >= (uint32_t)hp->n_ff[l])
            return dw_fail(err, "key '" DW_KEY_COLD_LENGTH "' is %u for layer %d of %d neurons", n_cold[l], l,
                           hp->n_ff[l]);
        w->n_cold = (int)n_cold[l];
        if (w->n_cold && (hp->n_ff[l] - w->n_cold) % DW_HOT_MULTIPLE)
            return dw_fail(err, "layer %d: %d hot neurons are not a multiple of %d", l, hp->n_ff[l] - w->n_cold,
                           DW_HOT_MULTIPLE);
        m->is_in_two_parts |= n_cold[l] > 0;
    }
    return 0;
}

/* The first tensor of a predictor that the file has; NULL: it has none. */
static const dw_tensor *find_predictor(const binder *b) {
    for (const dw_tensor_row *r = dw_predictor_rows; r->gguf; r++)
        for (int bias = 0; bias < 2; bias++)
            if (find(b, r, bias)) return find(b, r, bias);
    return NULL;
}

enum { MAX_RANK = 1 << 16 };

/* A layer with a transposed down is gated.  It may also have a predictor, which is four tensors. */
static int bind_gate(binder *b, const dw_model *m, dw_layer *w) {
    const dw_tensor *predictor = find_predictor(b), *a = find(b, &dw_predictor_rows[0], false);
    dw_layer_gate *g = &w->sparse;
    if (bind_rows(b, dw_gated_rows, w)) return -1;
    const dw_tensor_name down_t = dw_name_gguf(&dw_gated_rows[0], b->layer, false);
    if (predictor && !g->down_t.name)
        return dw_fail(b->err, "tensor '%s' is missing, which '%s' needs", down_t.text, predictor->name);
    if (!g->down_t.name) return 0;
    if (m->is_in_two_parts)
        return dw_fail(b->err, "tensor '%s': a model with cold neurons cannot be gated as well", down_t.text);
    if (dw_model_gate_group(m, &g->group, b->err)) return -1;
    if (!predictor) return 0;
    const size_t rank = a ? a->ne[1] : 1; // if A is missing, bind_rows fails
    if (rank < 1 || rank > MAX_RANK)
        return dw_fail(b->err, "tensor '%s' has %zu rows, expected 1 to %d", a->name, rank, MAX_RANK);
    b->sizes.rank = (int)rank;
    b->sizes.n_group = (w->n_ff + g->group - 1) / g->group;
    return bind_rows(b, dw_predictor_rows, w);
}

/* Llama 3's rope scaling: each pair's frequency is divided by its factor. */
static int apply_rope_freqs(dw_model *m, dw_err *err) {
    const dw_tensor *t = dw_gguf_find_tensor(m->gguf, "rope_freqs.weight");
    if (!t || !(m->arch->has & DW_ARCH_ROPE_FREQS)) return 0;
    for (size_t i = 0; i < t->ne[0]; i++) {
        float f;
        memcpy(&f, t->data + i * sizeof f, sizeof f);
        if (!(f > 0) || !isfinite(f)) return dw_fail(err, "tensor 'rope_freqs.weight' has a factor %g", (double)f);
        m->rope_factors[i] *= f;
    }
    return 0;
}

static int bind_layer(binder *b, const dw_model *m, int l) {
    const dw_hparams *hp = &m->net.hp;
    dw_layer *w = &m->net.layer[l];
    w->n_ff = hp->n_ff[l], w->n_head = hp->n_head[l], w->n_head_kv = hp->n_head_kv[l];
    b->layer = l;
    b->sizes.n_ff = w->n_ff, b->sizes.n_cold = w->n_cold;
    b->sizes.n_head = w->n_head, b->sizes.n_head_kv = w->n_head_kv;
    if ((w->n_head && bind_rows(b, dw_attention_rows, w)) || (w->n_cold && bind_rows(b, dw_cold_rows, w))) return -1;
    if (bind_rows(b, dw_ffn_rows, w) || bind_gate(b, m, w)) return -1;
    return 0;
}

/* A tensor that nothing reads would change what the model computes. */
static int check_all_bound(const binder *b, const dw_model *m) {
    for (size_t i = 0; i < dw_gguf_n_tensors(b->g); i++)
        if (!b->is_bound[i])
            return dw_fail(b->err,
                           "tensor '%s' is not part of the model that the file's keys describe (architecture '%s', %d "
                           "layers)",
                           dw_gguf_tensor(b->g, i)->name, b->arch->name, m->net.hp.n_layer);
    return 0;
}

static int bind_all(binder *b, dw_model *m) {
    dw_net *net = &m->net;
    dw_hparams *hp = &net->hp;
    if (bind_rows(b, dw_net_rows, net) || apply_rope_freqs(m, b->err)) return -1;
    hp->tied = !net->output.name;
    if (hp->tied) net->output = net->token_embd;

    net->layer = dw_alloc((size_t)hp->n_layer, sizeof *net->layer, "layers", b->err);
    if (!net->layer || read_cold_widths(m, b->err)) return -1;
    for (int l = 0; l < hp->n_layer; l++)
        if (bind_layer(b, m, l)) return -1;
    return check_all_bound(b, m);
}

static int bind_tensors(dw_model *m, dw_err *err) {
    dw_hparams *hp = &m->net.hp;
    const dw_tensor *embd = dw_gguf_find_tensor(m->gguf, "token_embd.weight");
    if (!embd) return dw_fail(err, "tensor 'token_embd.weight' is missing");
    if (!dw_key_allows(&dw_keys[DW_KEY_N_VOCAB], (double)embd->ne[1]))
        return dw_fail(err, "a vocabulary of %zu tokens is out of range", embd->ne[1]);
    hp->n_vocab = (int)embd->ne[1];
    binder b = {.g = m->gguf, .arch = m->arch, .layer = -1, .err = err};
    b.sizes = (dw_sizes){.n_embd = hp->n_embd, .n_vocab = hp->n_vocab, .head_dim = hp->head_dim};
    b.is_bound = dw_alloc(dw_gguf_n_tensors(m->gguf), sizeof *b.is_bound, "marks of bound tensors", err);
    const int rc = b.is_bound ? bind_all(&b, m) : -1;
    free(b.is_bound);
    return rc;
}

/* The architecture's own, or what the file says (formats/ffn_act.h). */
static int read_activation(dw_model *m, dw_err *err) {
    dw_str name = {0};
    const int found = dw_gguf_str(m->gguf, DW_KEY_FFN_ACTIVATION, &name, err);
    const int act = found > 0 ? dw_act_of(name) : (int)m->arch->act;
    if (found < 0) return -1;
    if (act < 0)
        return dw_fail(err, "key '%s' is '%.*s', which is not supported (%s are)", DW_KEY_FFN_ACTIVATION,
                       (int)(name.len < 40 ? name.len : 40), name.ptr, dw_act_names().text);
    m->net.act = (dw_act)act;
    return 0;
}

/* Of an untied model's token_embd a token reads one row. */
static bool is_from_memory(const dw_model *m) {
    size_t n_bytes = 0;
    for (size_t i = 0; i < dw_gguf_n_tensors(m->gguf); i++) n_bytes += dw_gguf_tensor(m->gguf, i)->n_bytes;
    return n_bytes - (m->net.hp.tied ? 0 : m->net.token_embd.n_bytes) > DW_CACHED;
}

int dw_model_bind(dw_model *m, dw_err *err) {
    dw_str name = {0};
    const int found = dw_gguf_str(m->gguf, "general.architecture", &name, err);
    if (found < 0) return -1;
    if (!found) return dw_fail(err, "key 'general.architecture' is missing: this is not a model");
    m->arch = dw_arch_find(name);
    if (!m->arch)
        return dw_fail(err, "architecture '%.*s' is not supported (%s are)", (int)(name.len < 60 ? name.len : 60),
                       name.ptr, dw_arch_names(false).text);
    m->net.rope_neox = m->arch->has & DW_ARCH_ROPE_NEOX;
    const keys k = {m->gguf, m->arch->name, err};
    if (read_activation(m, err) || read_hparams(m, &k) || read_rope_scaling(m, &k) || bind_tensors(m, err) ||
        dw_model_read_gate(m, err))
        return -1;
    m->net.from_memory = is_from_memory(m);
    return 0;
}
