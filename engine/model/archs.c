/* archs.c - see archs.h.
 *
 *   llama     Llama 2 and 3, Mistral, SmolLM
 *   qwen2     as llama, with biases on q, k and v
 *   qwen3     as llama, with an RMS norm on each head of q and k
 *   deci      stores llama, mistral and qwen2 (with q and k permuted) when widths or heads differ by layer
 *   openelm   stores tied qwen3 when widths differ by layer */
#include "model/archs.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

// clang-format off
enum {
    NEOX = DW_ARCH_ROPE_NEOX, FUSED_QKV = DW_ARCH_FUSED_QKV, QKV_BIAS = DW_ARCH_QKV_BIAS, QK_NORM = DW_ARCH_QK_NORM,
    BIASES = DW_ARCH_BIASES, ROPE_FREQS = DW_ARCH_ROPE_FREQS, UNTIED = DW_ARCH_UNTIED, BY_LAYER = DW_ARCH_BY_LAYER,
    NO_ATTENTION = DW_ARCH_NO_ATTENTION, FFN_BIASES = DW_ARCH_FFN_BIASES, SQUARE_Q = DW_ARCH_SQUARE_Q,
};

const dw_arch dw_archs[] = {
    /* name     classes in transformers                     carrier    act      has */
    {"llama",   {"LlamaForCausalLM", "MistralForCausalLM"}, "deci",    DW_SILU, UNTIED | BIASES | FFN_BIASES | ROPE_FREQS},
    {"qwen2",   {"Qwen2ForCausalLM"},                       "deci",    DW_SILU, UNTIED | BIASES | NEOX | QKV_BIAS | SQUARE_Q},
    {"qwen3",   {"Qwen3ForCausalLM"},                       "openelm", DW_SILU, UNTIED | BIASES | NEOX | QK_NORM},
    {"deci",    {0}, NULL, DW_SILU, UNTIED | BIASES | FFN_BIASES | ROPE_FREQS | BY_LAYER | NO_ATTENTION},
    {"openelm", {0}, NULL, DW_SILU, NEOX | FUSED_QKV | QK_NORM | BY_LAYER},
    {0}};

enum { MAX_DIM = 1 << 24, MAX_CTX = INT32_MAX }; // 2^24: far beyond any model, and products of two fit a size_t

const dw_key_row dw_keys[DW_N_KEYS] = {
    /*                   in GGUF                              in config.json            required real  least  most */
    [DW_KEY_N_LAYER]   = {"block_count",                      "num_hidden_layers",       true,  false, 1, DW_MAX_LAYERS},
    [DW_KEY_N_CTX]     = {"context_length",                   "max_position_embeddings", true,  false, 1, MAX_CTX},
    [DW_KEY_N_EMBD]    = {"embedding_length",                 "hidden_size",             true,  false, 1, MAX_DIM},
    [DW_KEY_N_FF]      = {"feed_forward_length",              "intermediate_size",       true,  false, 1, MAX_DIM},
    [DW_KEY_N_HEAD]    = {"attention.head_count",             "num_attention_heads",     true,  false, 0, MAX_DIM},
    [DW_KEY_N_HEAD_KV] = {"attention.head_count_kv",          "num_key_value_heads",     false, false, 0, MAX_DIM},
    [DW_KEY_HEAD_DIM]  = {"attention.key_length",             "head_dim",                false, false, 1, DW_MAX_HEAD_DIM},
    [DW_KEY_VALUE_DIM] = {"attention.value_length",           NULL,                      false, false, 1, DW_MAX_HEAD_DIM},
    [DW_KEY_NORM_EPS]  = {"attention.layer_norm_rms_epsilon", "rms_norm_eps",            true,  true,  0, 1},
    [DW_KEY_ROPE_DIM]  = {"rope.dimension_count",             NULL,                      false, false, 1, DW_MAX_HEAD_DIM},
    [DW_KEY_ROPE_BASE] = {"rope.freq_base",                   "rope_theta",              false, true,  0, FLT_MAX},
    [DW_KEY_N_VOCAB]   = {"vocab_size",                       "vocab_size",              true,  false, 1, MAX_DIM},
};

#define NET(field) .at = offsetof(dw_net, field)
#define LAYER(field) .at = offsetof(dw_layer, field)
#define BIAS(length, field) .bias = length, .bias_at = offsetof(dw_layer, field)

const dw_tensor_row dw_net_rows[] = {
    {"token_embd",  "model.embed_tokens", "vd", NET(token_embd)},
    {"output_norm", "model.norm",         "d",  NET(output_norm)},
    {"output",      "lm_head",            "vd", NET(output), .of = UNTIED, .optional = true,
                     .bias = 'v', .bias_at = offsetof(dw_net, output_bias), .no_hf_bias = true},
    {"rope_freqs",  NULL,                 "p",  .of = ROPE_FREQS, .optional = true},
    {0}};

const dw_tensor_row dw_attention_rows[] = {
    {"attn_norm",   "input_layernorm",          "d",  LAYER(attn_norm)},
    {"attn_qkv",    NULL,                       "sd", .bias = 's', .optional = true, .n_parts = 3},
    {"attn_q",      "self_attn.q_proj",         "qd", LAYER(q), BIAS('q', q_bias), .is_turned = true},
    {"attn_k",      "self_attn.k_proj",         "kd", LAYER(k), BIAS('k', k_bias), .is_turned = true},
    {"attn_v",      "self_attn.v_proj",         "kd", LAYER(v), BIAS('k', v_bias)},
    {"attn_q_norm", "self_attn.q_norm",         "h",  LAYER(q_norm), .of = QK_NORM},
    {"attn_k_norm", "self_attn.k_norm",         "h",  LAYER(k_norm), .of = QK_NORM},
    {"attn_output", "self_attn.o_proj",         "dq", LAYER(o), BIAS('d', o_bias)},
    {0}};

const dw_tensor_row dw_ffn_rows[] = {
    {"ffn_norm",    "post_attention_layernorm", "d",  LAYER(ffn_norm)},
    {"ffn_gate",    "mlp.gate_proj",            "nd", LAYER(gate), BIAS('f', gate_bias)},
    {"ffn_up",      "mlp.up_proj",              "nd", LAYER(up), BIAS('f', up_bias)},
    {"ffn_down",    "mlp.down_proj",            "dn", LAYER(down), BIAS('d', down_bias)},
    {0}};

const dw_tensor_row dw_cold_rows[] = { // formats/ffn_two_part.h
    {"ffn_gate_cold", NULL, "cd", LAYER(gate_cold)},
    {"ffn_up_cold",   NULL, "cd", LAYER(up_cold)},
    {"ffn_down_cold", NULL, "dc", LAYER(down_cold)},
    {0}};

const dw_tensor_row dw_gated_rows[] = { // formats/ffn_gated.h
    {"ffn_down_t", NULL, "fd", LAYER(sparse.down_t), .optional = true},
    {0}};

const dw_tensor_row dw_predictor_rows[] = {
    {"ffn_pred_a", NULL, "rd", LAYER(sparse.pred_a), BIAS('r', sparse.pred_a_bias), .bias_required = true},
    {"ffn_pred_b", NULL, "gr", LAYER(sparse.pred_b), BIAS('g', sparse.pred_b_bias), .bias_required = true},
    {0}};
// clang-format on

/* ---- architectures -------------------------------------------------------------------------------------- */

const dw_act_row dw_acts[DW_N_ACTS + 1] = {
    [DW_SILU] = {"silu", "x sigmoid(x)"},
    [DW_GELU_TANH] = {"gelu_pytorch_tanh", "GELU by tanh"},
    [DW_RELU] = {"relu", "max(x, 0): most neurons become exactly 0, which gates can skip"}};

int dw_act_of(dw_str name) {
    int act = DW_N_ACTS - 1;
    while (act >= 0 && !dw_str_is(name, dw_acts[act].name)) act--;
    return act;
}

const dw_arch *dw_arch_find(dw_str name) {
    for (const dw_arch *a = dw_archs; a->name; a++)
        if (dw_str_is(name, a->name)) return a;
    return NULL;
}

enum { MAX_CLASSES = sizeof dw_archs->hf_class / sizeof *dw_archs->hf_class };

const dw_arch *dw_arch_of_hf(const char *class_name) {
    for (const dw_arch *a = dw_archs; a->name; a++)
        for (int i = 0; i < MAX_CLASSES && a->hf_class[i]; i++)
            if (!strcmp(a->hf_class[i], class_name)) return a;
    return NULL;
}

static dw_name_list join(const char *const *name, int n) {
    dw_name_list list = {""};
    size_t used = 0;
    for (int i = 0; i < n && used < sizeof list.text; i++)
        used += (size_t)snprintf(list.text + used, sizeof list.text - used, "%s%s",
                                 !i          ? ""
                                 : i < n - 1 ? ", "
                                             : " and ",
                                 name[i]);
    return list;
}

dw_name_list dw_act_names(void) {
    const char *name[DW_N_ACTS];
    for (int i = 0; i < DW_N_ACTS; i++) name[i] = dw_acts[i].name;
    return join(name, DW_N_ACTS);
}

dw_name_list dw_arch_names(bool hf_classes) {
    const char *name[64];
    int n = 0;
    for (const dw_arch *a = dw_archs; a->name; a++) {
        if (!hf_classes && n < 64) name[n++] = a->name;
        for (int i = 0; hf_classes && i < MAX_CLASSES && a->hf_class[i] && n < 64; i++) name[n++] = a->hf_class[i];
    }
    return join(name, n);
}

int dw_check_heads(const dw_arch *a, int l, int n_head, int n_head_kv, int head_dim, dw_err *err) {
    if (n_head == 0 && l == 0) return dw_fail(err, "the first layer has no attention heads");
    if (n_head == 0 && n_head_kv == 0) {
        if (a->has & DW_ARCH_NO_ATTENTION) return 0;
        return dw_fail(err, "layer %d has no attention heads, which architecture '%s' does not allow", l, a->name);
    }
    if (n_head == 0 || n_head_kv == 0 || n_head % n_head_kv)
        return dw_fail(err, "layer %d: %d attention heads do not divide into %d KV heads", l, n_head, n_head_kv);
    if (head_dim < 2 || head_dim > DW_MAX_HEAD_DIM || head_dim % 2) // rope rotates pairs
        return dw_fail(err, "attention heads have %d values, expected an even number from 2 to %d", head_dim,
                       DW_MAX_HEAD_DIM);
    if ((size_t)n_head * (size_t)head_dim > MAX_DIM)
        return dw_fail(err, "layer %d: %d attention heads of %d values are too many; at most %d values are supported",
                       l, n_head, head_dim, MAX_DIM);
    return 0;
}

/* ---- hyperparameters ------------------------------------------------------------------------------------ */

bool dw_key_allows(const dw_key_row *k, double value) {
    if (k->is_real) value = (double)(float)value; // rounded as in a GGUF file
    return isfinite(value) && (k->is_real ? value > k->least : value >= k->least) && value <= k->most;
}

dw_key_range dw_key_bounds(const dw_key_row *k) {
    dw_key_range range;
    const char *form = k->is_real ? "above %.9g, up to %.9g" : "%.10g to %.10g";
    snprintf(range.text, sizeof range.text, form, k->least, k->most);
    return range;
}

/* ---- tensors ------------------------------------------------------------------------------------------------ */

size_t dw_dimension(char letter, const dw_sizes *s) {
    const size_t head_dim = (size_t)s->head_dim;
    const size_t n_q = (size_t)s->n_head * head_dim, n_kv = (size_t)s->n_head_kv * head_dim;
    switch (letter) {
    case 'd': return (size_t)s->n_embd;
    case 'v': return (size_t)s->n_vocab;
    case 'q': return n_q;
    case 'k': return n_kv;
    case 's': return n_q + 2 * n_kv;
    case 'h': return head_dim;
    case 'p': return head_dim / 2;
    case 'f': return (size_t)s->n_ff;
    case 'n': return (size_t)(s->n_ff - s->n_cold);
    case 'c': return (size_t)s->n_cold;
    case 'r': return (size_t)s->rank;
    case 'g': return (size_t)s->n_group;
    default: return 0;
    }
}

static const char *suffix(bool bias) { return bias ? ".bias" : ".weight"; }

dw_tensor_name dw_name_gguf(const dw_tensor_row *r, int layer, bool bias) {
    dw_tensor_name name;
    if (layer < 0) snprintf(name.text, sizeof name.text, "%s%s", r->gguf, suffix(bias));
    else snprintf(name.text, sizeof name.text, "blk.%d.%s%s", layer, r->gguf, suffix(bias));
    return name;
}

dw_tensor_name dw_name_hf(const dw_tensor_row *r, int layer, bool bias) {
    dw_tensor_name name;
    if (layer < 0) snprintf(name.text, sizeof name.text, "%s%s", r->hf, suffix(bias));
    else snprintf(name.text, sizeof name.text, "model.layers.%d.%s%s", layer, r->hf, suffix(bias));
    return name;
}

static const dw_tensor_row *find_in(const dw_tensor_row *rows, const char *name, bool *bias) {
    for (const dw_tensor_row *r = rows; r->gguf; r++) {
        const size_t n = strlen(r->gguf);
        if (strncmp(name, r->gguf, n)) continue;
        *bias = !strcmp(name + n, suffix(true));
        if (*bias ? r->bias != 0 : !strcmp(name + n, suffix(false))) return r;
    }
    return NULL;
}

const dw_tensor_row *dw_tensor_row_find(const char *name, int *layer, bool *bias) {
    const char *rest;
    *layer = dw_layer_of(name, &rest);
    if (*layer < 0) return find_in(dw_net_rows, rest, bias);
    const dw_tensor_row *r = find_in(dw_attention_rows, rest, bias);
    return r ? r : find_in(dw_ffn_rows, rest, bias);
}
