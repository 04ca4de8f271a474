/* arch.c - the architectures as a table, and the binding of a file's tensors to a dw_net.
 *
 *   llama     Llama 2/3, Mistral, SmolLM: rope on pairs (2i, 2i+1), optional rope factors, optional biases
 *   qwen2     biases on q, k, v; rope on pairs (i, i + D/2)
 *   qwen3     RMS norm on each head of q and k; rope as qwen2
 *   deci      carries llama, mistral, qwen2 (rows of q and k permuted) with widths and heads that differ by layer;
 *             a layer may have no attention
 *   openelm   carries tied qwen3 with widths that differ by layer; q, k, v fused
 * Keys and tensor names: llama.cpp src/llama-arch.cpp; which architecture reads what: its src/models folder. */
#include "formats/ffn_two_part.h"
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// clang-format off
static const dw_arch archs[] = {
    /* name      transformers' classes                          neox   fused  qknorm freqs  differ tied */
    {"llama",   {"LlamaForCausalLM", "MistralForCausalLM"},     false, false, false, true,  false, false},
    {"qwen2",   {"Qwen2ForCausalLM"},                           true,  false, false, false, false, false},
    {"qwen3",   {"Qwen3ForCausalLM"},                           true,  false, true,  false, false, false},
    {"deci",    {0},                                            false, false, false, true,  true,  false},
    {"openelm", {0},                                            true,  true,  true,  false, true,  true},
    {0}};
// clang-format on

const dw_arch *dw_arch_find(dw_str name) {
    for (const dw_arch *a = archs; a->name; a++)
        if (dw_str_is(name, a->name)) return a;
    return NULL;
}

const dw_arch *dw_arch_of_hf(const char *class_name) {
    for (const dw_arch *a = archs; a->name; a++)
        for (int i = 0; i < 3 && a->hf_class[i]; i++)
            if (!strcmp(a->hf_class[i], class_name)) return a;
    return NULL;
}

/* ---- hyperparameters ------------------------------------------------------------------------------- */

enum { MAX_LAYERS = 512, MAX_DIM = 1 << 24, MAX_RANK = 1 << 16 }; // llama.cpp's limit; far beyond any model

typedef struct keys { // of one file: "llama.block_count" from "block_count"
    const dw_gguf *g;
    const char *arch;
    dw_err *err;
} keys;

static const char *key_name(const keys *k, const char *name, char buffer[128]) {
    snprintf(buffer, 128, "%s.%s", k->arch, name);
    return buffer;
}

/* A required or optional integer within 1 .. max. */
static int get_int(const keys *k, const char *name, bool required, int max, int *value) {
    char key[128];
    uint32_t u;
    const int found = dw_gguf_u32(k->g, key_name(k, name, key), &u, k->err);
    if (found < 0) return -1;
    if (!found) return required ? dw_fail(k->err, "key '%s' is missing", key) : 0;
    if (u < 1 || u > (uint32_t)max) return dw_fail(k->err, "key '%s' is %u, expected 1 to %d", key, u, max);
    *value = (int)u;
    return 0;
}

static int get_real(const keys *k, const char *name, float *value, bool may_be_zero) {
    char key[128];
    if (dw_gguf_f32(k->g, key_name(k, name, key), value, k->err) < 0) return -1;
    if (!isfinite(*value) || *value < 0 || (!may_be_zero && *value == 0))
        return dw_fail(k->err, "key '%s' is %g, expected a positive number", key, (double)*value);
    return 0;
}

/* One number a layer; returns the largest, or -1. */
static int get_per_layer(const keys *k, const char *name, bool required, bool may_differ, int least, int n_layer, int *values) {
    char key[128];
    uint32_t u[MAX_LAYERS];
    const int found = dw_gguf_u32s(k->g, key_name(k, name, key), u, (size_t)n_layer, k->err);
    if (found < 0) return -1;
    if (!found && required) return dw_fail(k->err, "key '%s' is missing", key);
    int largest = 0;
    for (int l = 0; l < n_layer; l++) {
        if (found && (u[l] < (uint32_t)least || u[l] > MAX_DIM))
            return dw_fail(k->err, "key '%s' is %u for layer %d, expected %d to %d", key, u[l], l, least, MAX_DIM);
        if (found) values[l] = (int)u[l];
        if (values[l] != values[0] && !may_differ)
            return dw_fail(k->err, "key '%s' differs between layers, which architecture '%s' does not allow", key, k->arch);
        if (values[l] > largest) largest = values[l];
    }
    return largest;
}

static int check_attention(const dw_model *m, const keys *k) {
    const dw_hparams *hp = &m->net.hp;
    for (int l = 0; l < hp->n_layer; l++) {
        const int h = hp->n_head[l], kv = hp->n_head_kv[l];
        if (h == 0 && kv == 0) {
            if (l == 0 || strcmp(k->arch, "deci"))
                return dw_fail(k->err, "layer %d has no attention heads, which only 'deci' allows behind its first layer", l);
        } else if (kv == 0 || h % kv) {
            return dw_fail(k->err, "layer %d: %d attention heads do not divide into %d KV heads", l, h, kv);
        }
    }
    uint32_t n_rot = (uint32_t)hp->head_dim, n_value = n_rot;
    char key[128];
    if (dw_gguf_u32(k->g, key_name(k, "rope.dimension_count", key), &n_rot, k->err) < 0) return -1;
    if (n_rot != (uint32_t)hp->head_dim || n_rot % 2)
        return dw_fail(k->err, "key '%s' is %u; only rotation of whole heads (%d) is supported", key, n_rot, hp->head_dim);
    if (dw_gguf_u32(k->g, key_name(k, "attention.value_length", key), &n_value, k->err) < 0) return -1;
    if (n_value != (uint32_t)hp->head_dim)
        return dw_fail(k->err, "key '%s' is %u, expected %d as the keys have", key, n_value, hp->head_dim);
    if (dw_gguf_find(k->g, key_name(k, "expert_count", key)))
        return dw_fail(k->err, "this is a mixture of experts ('%s'), which is not supported", key);
    return 0;
}

static int read_hparams(dw_model *m, const keys *k) {
    dw_hparams *hp = &m->net.hp;
    hp->arch = m->arch->name;
    if (get_int(k, "block_count", true, MAX_LAYERS, &hp->n_layer) || get_int(k, "embedding_length", true, MAX_DIM, &hp->n_embd) ||
        get_int(k, "context_length", true, INT32_MAX, &hp->n_ctx_train))
        return -1;
    m->widths = dw_alloc(3 * (size_t)hp->n_layer, sizeof *m->widths, "layer widths", k->err);
    if (!m->widths) return -1;
    int *n_ff = m->widths, *n_head = n_ff + hp->n_layer, *n_head_kv = n_head + hp->n_layer;
    hp->n_ff = n_ff, hp->n_head = n_head, hp->n_head_kv = n_head_kv;
    const bool differ = m->arch->may_differ_by_layer;
    if ((hp->n_ff_max = get_per_layer(k, "feed_forward_length", true, differ, 1, hp->n_layer, n_ff)) < 0 ||
        (hp->n_head_max = get_per_layer(k, "attention.head_count", true, differ, 0, hp->n_layer, n_head)) < 0)
        return -1;
    memcpy(n_head_kv, n_head, (size_t)hp->n_layer * sizeof *n_head);
    if ((hp->n_head_kv_max = get_per_layer(k, "attention.head_count_kv", false, differ, 0, hp->n_layer, n_head_kv)) < 0) return -1;
    if (hp->n_head[0] < 1) return dw_fail(k->err, "the first layer has no attention heads");

    hp->head_dim = hp->n_embd / hp->n_head[0];
    if (get_int(k, "attention.key_length", false, INT32_MAX, &hp->head_dim)) return -1;
    if (hp->head_dim < 1 || hp->head_dim > DW_MAX_HEAD_DIM)
        return dw_fail(k->err, "attention heads have %d values, expected 1 to %d", hp->head_dim, DW_MAX_HEAD_DIM);
    if (check_attention(m, k)) return -1;
    if ((size_t)hp->n_head_max * (size_t)hp->head_dim > MAX_DIM)
        return dw_fail(k->err, "%d attention heads of %d values are too many", hp->n_head_max, hp->head_dim);

    hp->rope_base = 10000; // what llama.cpp takes when the key is missing
    hp->norm_eps = 0;
    float scale = 0;
    if (get_real(k, "rope.freq_base", &hp->rope_base, false) || get_real(k, "attention.layer_norm_rms_epsilon", &hp->norm_eps, true) ||
        get_real(k, "attention.scale", &scale, true))
        return -1;
    hp->attn_scale = scale > 0 ? scale : 1 / sqrtf((float)hp->head_dim);
    return 0;
}

/* ---- rope ------------------------------------------------------------------------------------------- */

/* YaRN (Peng et al. 2023): pairs that turn often keep their frequency, slow ones are interpolated, a ramp between. */
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

static int read_rope_scaling(dw_model *m, const keys *k) {
    const int n_pair = m->net.hp.head_dim / 2;
    m->rope_factors = dw_alloc((size_t)n_pair, sizeof *m->rope_factors, "rope factors", k->err);
    if (!m->rope_factors) return -1;
    for (int i = 0; i < n_pair; i++) m->rope_factors[i] = 1;
    m->rope_magnitude = 1;

    char key[128];
    dw_str type = {"linear", 6};
    float factor = 1;
    int n_ctx_original = m->net.hp.n_ctx_train;
    if (get_real(k, "rope.scale_linear", &factor, false) || get_real(k, "rope.scaling.factor", &factor, false) ||
        get_int(k, "rope.scaling.original_context_length", false, INT32_MAX, &n_ctx_original) ||
        get_real(k, "rope.scaling.attn_factor", &m->rope_magnitude, false) ||
        dw_gguf_str(k->g, key_name(k, "rope.scaling.type", key), &type, k->err) < 0)
        return -1;
    if (dw_str_is(type, "yarn")) {
        yarn_factors(m, factor, n_ctx_original);
        m->rope_magnitude *= 1 + 0.1f * logf(factor);
    } else if (dw_str_is(type, "linear")) {
        for (int i = 0; i < n_pair; i++) m->rope_factors[i] = factor;
    } else if (!dw_str_is(type, "none")) {
        return dw_fail(k->err, "rope scaling '%.*s' is not supported", (int)(type.len < 40 ? type.len : 40), type.ptr);
    }
    return 0;
}

/* ---- tensors ---------------------------------------------------------------------------------------- */

typedef struct binder {
    const dw_gguf *g;
    const char *prefix; // "blk.3." or ""
    size_t n_bound;     // every tensor of the file must be bound to something
    dw_err *err;
} binder;

/* Binds prefix + name, of ne0 values in ne1 rows (0: a vector), to *t; absent is fine unless required. */
static int bind(binder *b, const char *name, size_t ne0, size_t ne1, bool required, dw_tensor *t) {
    char full[96];
    snprintf(full, sizeof full, "%s%s", b->prefix, name);
    const dw_tensor *found = dw_gguf_find_tensor(b->g, full);
    if (!found) return required ? dw_fail(b->err, "tensor '%s' is missing", full) : 0;
    const size_t rows = ne1 ? ne1 : 1;
    if (found->ne[0] != ne0 || found->ne[1] != rows || found->ne[2] != 1 || found->ne[3] != 1)
        return dw_fail(b->err, "tensor '%s' has shape [%zu, %zu, %zu, %zu], expected [%zu, %zu]", full, found->ne[0], found->ne[1],
                       found->ne[2], found->ne[3], ne0, rows);
    if (!ne1 && found->type->id != DW_F32) return dw_fail(b->err, "tensor '%s' is %s, expected F32", full, found->type->name);
    *t = *found;
    b->n_bound++;
    return 0;
}

/* Rows first .. first+n-1 of a matrix, as a tensor of its own. */
static dw_tensor rows_of(const dw_tensor *t, size_t first, size_t n) {
    dw_tensor part = *t;
    part.data += first * dw_tensor_row_bytes(t);
    part.ne[1] = n;
    part.n_bytes = n * dw_tensor_row_bytes(t);
    return part;
}

static int bind_attention(binder *b, const dw_arch *arch, const dw_hparams *hp, dw_layer *w) {
    const size_t d = (size_t)hp->n_embd, n_q = (size_t)w->n_head * (size_t)hp->head_dim, n_kv = (size_t)w->n_head_kv * (size_t)hp->head_dim;
    if (bind(b, "attn_norm.weight", d, 0, true, &w->attn_norm)) return -1;
    dw_tensor fused = {0}, fused_bias = {0};
    if (bind(b, "attn_qkv.weight", d, n_q + 2 * n_kv, arch->fused_qkv, &fused)) return -1;
    if (fused.name) {
        w->q = rows_of(&fused, 0, n_q);
        w->k = rows_of(&fused, n_q, n_kv);
        w->v = rows_of(&fused, n_q + n_kv, n_kv);
        if (bind(b, "attn_qkv.bias", n_q + 2 * n_kv, 0, false, &fused_bias)) return -1;
        if (fused_bias.name) { // a vector is one row: cut it by values
            const struct { dw_tensor *part; size_t first, n; } cut[] = {{&w->q_bias, 0, n_q}, {&w->k_bias, n_q, n_kv}, {&w->v_bias, n_q + n_kv, n_kv}};
            for (int i = 0; i < 3; i++) {
                *cut[i].part = fused_bias;
                cut[i].part->data += cut[i].first * sizeof(float);
                cut[i].part->ne[0] = cut[i].n;
                cut[i].part->n_bytes = cut[i].n * sizeof(float);
            }
        }
    } else if (bind(b, "attn_q.weight", d, n_q, true, &w->q) || bind(b, "attn_k.weight", d, n_kv, true, &w->k) ||
               bind(b, "attn_v.weight", d, n_kv, true, &w->v) || bind(b, "attn_q.bias", n_q, 0, false, &w->q_bias) ||
               bind(b, "attn_k.bias", n_kv, 0, false, &w->k_bias) || bind(b, "attn_v.bias", n_kv, 0, false, &w->v_bias)) {
        return -1;
    }
    if (arch->qk_norm && (bind(b, "attn_q_norm.weight", (size_t)hp->head_dim, 0, true, &w->q_norm) ||
                          bind(b, "attn_k_norm.weight", (size_t)hp->head_dim, 0, true, &w->k_norm)))
        return -1;
    return bind(b, "attn_output.weight", n_q, d, true, &w->o) || bind(b, "attn_output.bias", d, 0, false, &w->o_bias) ? -1 : 0;
}

static int bind_cold(binder *b, size_t d, size_t n_cold, dw_layer *w) {
    return bind(b, "ffn_gate_cold.weight", d, n_cold, true, &w->gate_cold) || bind(b, "ffn_up_cold.weight", d, n_cold, true, &w->up_cold) ||
                   bind(b, "ffn_down_cold.weight", n_cold, d, true, &w->down_cold)
               ? -1
               : 0;
}

static int bind_ffn(binder *b, const dw_hparams *hp, dw_layer *w) {
    const size_t d = (size_t)hp->n_embd, n_ff = (size_t)w->n_ff, n_hot = n_ff - (size_t)w->n_cold;
    if (w->n_cold && bind_cold(b, d, (size_t)w->n_cold, w)) return -1;
    return bind(b, "ffn_norm.weight", d, 0, true, &w->ffn_norm) || bind(b, "ffn_gate.weight", d, n_hot, true, &w->gate) ||
                   bind(b, "ffn_up.weight", d, n_hot, true, &w->up) || bind(b, "ffn_down.weight", n_hot, d, true, &w->down) ||
                   bind(b, "ffn_gate.bias", n_ff, 0, false, &w->gate_bias) || bind(b, "ffn_up.bias", n_ff, 0, false, &w->up_bias) ||
                   bind(b, "ffn_down.bias", d, 0, false, &w->down_bias)
               ? -1
               : 0;
}

/* How many neurons of each layer are cold: none, unless the file is in two parts. */
static int read_cold_widths(dw_model *m, dw_err *err) {
    const dw_hparams *hp = &m->net.hp;
    uint32_t n_cold[MAX_LAYERS] = {0};
    if (dw_gguf_u32s(m->gguf, DW_KEY_COLD_LENGTH, n_cold, (size_t)hp->n_layer, err) < 0) return -1;
    for (int l = 0; l < hp->n_layer; l++) {
        dw_layer *w = &m->net.layer[l];
        if (n_cold[l] >= (uint32_t)hp->n_ff[l])
            return dw_fail(err, "key '" DW_KEY_COLD_LENGTH "' is %u for layer %d of %d neurons", n_cold[l], l, hp->n_ff[l]);
        w->n_cold = (int)n_cold[l];
        if (w->n_cold && (hp->n_ff[l] - w->n_cold) % DW_HOT_MULTIPLE)
            return dw_fail(err, "layer %d: %d hot neurons are no multiple of %d", l, hp->n_ff[l] - w->n_cold, DW_HOT_MULTIPLE);
        m->is_in_two_parts |= n_cold[l] > 0;
    }
    return 0;
}

/* A transposed down makes a gated layer; a predictor is four tensors more, or none. */
static int bind_gate(binder *b, const dw_model *m, dw_layer *w) {
    const size_t d = (size_t)m->net.hp.n_embd, n_ff = (size_t)w->n_ff;
    static const char *const names[] = {"ffn_pred_a.weight", "ffn_pred_a.bias", "ffn_pred_b.weight", "ffn_pred_b.bias"};
    const dw_tensor *a = NULL, *any = NULL;
    dw_layer_gate *g = &w->sparse;
    if (bind(b, "ffn_down_t.weight", d, n_ff, false, &g->down_t)) return -1;
    for (int i = 3; i >= 0; i--) {
        char full[96];
        snprintf(full, sizeof full, "%s%s", b->prefix, names[i]);
        a = dw_gguf_find_tensor(b->g, full);
        if (a) any = a;
    }
    if (any && !g->down_t.name) return dw_fail(b->err, "tensor '%sffn_down_t.weight' is missing beside '%s'", b->prefix, any->name);
    if (!g->down_t.name) return 0;
    if (m->is_in_two_parts) return dw_fail(b->err, "tensor '%sffn_down_t.weight': a model with cold neurons cannot be gated too", b->prefix);
    if (dw_model_gate_group(m, &g->group, b->err)) return -1;
    if (!any) return 0;
    const size_t rank = a ? a->ne[1] : 1, n_groups = (n_ff + (size_t)g->group - 1) / (size_t)g->group; // without A bind fails
    if (rank < 1 || rank > MAX_RANK) return dw_fail(b->err, "tensor '%s' has %zu rows, expected 1 to %d", a->name, rank, MAX_RANK);
    return bind(b, names[0], d, rank, true, &g->pred_a) || bind(b, names[1], rank, 0, true, &g->pred_a_bias) ||
                   bind(b, names[2], rank, n_groups, true, &g->pred_b) || bind(b, names[3], n_groups, 0, true, &g->pred_b_bias)
               ? -1
               : 0;
}

/* The factors of Llama 3's rope scaling, divided into each pair's frequency. */
static int bind_rope_freqs(dw_model *m, binder *b) {
    dw_tensor t = {0};
    if (!m->arch->may_rope_freqs) return 0;
    if (bind(b, "rope_freqs.weight", (size_t)m->net.hp.head_dim / 2, 0, false, &t)) return -1;
    for (size_t i = 0; t.name && i < t.ne[0]; i++) {
        float f;
        memcpy(&f, t.data + i * sizeof f, sizeof f);
        if (!(f > 0) || !isfinite(f)) return dw_fail(b->err, "tensor 'rope_freqs.weight' has a factor %g", (double)f);
        m->rope_factors[i] *= f;
    }
    return 0;
}

static int bind_tensors(dw_model *m, dw_err *err) {
    dw_net *net = &m->net;
    dw_hparams *hp = &net->hp;
    binder b = {m->gguf, "", 0, err};
    const dw_tensor *embd = dw_gguf_find_tensor(m->gguf, "token_embd.weight");
    if (!embd) return dw_fail(err, "tensor 'token_embd.weight' is missing");
    if (embd->ne[1] < 1 || embd->ne[1] > MAX_DIM) return dw_fail(err, "a vocabulary of %zu tokens is out of range", embd->ne[1]);
    hp->n_vocab = (int)embd->ne[1];
    const size_t d = (size_t)hp->n_embd, n_vocab = embd->ne[1];
    if (bind(&b, "token_embd.weight", d, n_vocab, true, &net->token_embd) || bind(&b, "output_norm.weight", d, 0, true, &net->output_norm))
        return -1;
    if (!m->arch->always_tied && (bind(&b, "output.weight", d, n_vocab, false, &net->output) ||
                                  bind(&b, "output.bias", n_vocab, 0, false, &net->output_bias)))
        return -1;
    hp->tied = !net->output.name;
    if (hp->tied) net->output = net->token_embd;
    if (bind_rope_freqs(m, &b)) return -1;

    net->layer = dw_alloc((size_t)hp->n_layer, sizeof *net->layer, "layers", err);
    if (!net->layer || read_cold_widths(m, err)) return -1;
    for (int l = 0; l < hp->n_layer; l++) {
        char prefix[24];
        snprintf(prefix, sizeof prefix, "blk.%d.", l);
        b.prefix = prefix;
        dw_layer *w = &net->layer[l];
        w->n_ff = hp->n_ff[l], w->n_head = hp->n_head[l], w->n_head_kv = hp->n_head_kv[l];
        if ((w->n_head && bind_attention(&b, m->arch, hp, w)) || bind_ffn(&b, hp, w) || bind_gate(&b, m, w)) return -1;
    }
    if (b.n_bound != dw_gguf_n_tensors(m->gguf))
        return dw_fail(err, "the file has %zu tensors, architecture '%s' uses %zu of them", dw_gguf_n_tensors(m->gguf), hp->arch, b.n_bound);
    return 0;
}

int dw_model_bind(dw_model *m, dw_err *err) {
    dw_str name = {0};
    const int found = dw_gguf_str(m->gguf, "general.architecture", &name, err);
    if (found < 0) return -1;
    if (!found) return dw_fail(err, "key 'general.architecture' is missing: this is not a model");
    m->arch = dw_arch_find(name);
    if (!m->arch)
        return dw_fail(err, "architecture '%.*s' is not supported (llama, qwen2, qwen3, deci and openelm are)",
                       (int)(name.len < 60 ? name.len : 60), name.ptr);
    m->net.rope_neox = m->arch->rope_neox;
    const keys k = {m->gguf, m->arch->name, err};
    return read_hparams(m, &k) || read_rope_scaling(m, &k) || bind_tensors(m, err) || dw_model_read_gate(m, err) ? -1 : 0;
}
