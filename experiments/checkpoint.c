/* checkpoint.c - see checkpoint.h.  Names and keys: transformers' configurations, llama.cpp's conversion scripts. */
#include "checkpoint.h"
#include "text/tokenizers.h"
#include "text/json.h"
#include "kit/safetensors.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_CONFIG_BYTES = 16 << 20 };

/* ---- config.json ------------------------------------------------------------------------------------- */

/* An absent or null key leaves *value alone. */
static int get_int(const json_t *object, const char *key, int least, int *value, dw_err *err) {
    const json_t *j = json_object_get(object, key);
    if (!j || json_is_null(j)) return 0;
    const json_int_t v = json_integer_value(j);
    if (!json_is_integer(j) || v < least || v > INT32_MAX)
        return dw_fail(err, "config.json: '%s' is not an integer of at least %d", key, least);
    *value = (int)v;
    return 0;
}

static int get_real(const json_t *object, const char *key, double *value, dw_err *err) {
    const json_t *j = json_object_get(object, key);
    if (!j || json_is_null(j)) return 0;
    if (!json_is_number(j) || !(json_number_value(j) > 0)) return dw_fail(err, "config.json: '%s' is not a positive number", key);
    *value = json_number_value(j);
    return 0;
}

/* transformers 5 puts all of rope into rope_parameters; before, rope_theta stood alone and rope_scaling beside it. */
static int read_rope(checkpoint_config *c, const json_t *config, dw_err *err) {
    const json_t *rope = json_object_get(config, "rope_parameters");
    if (!json_is_object(rope)) rope = json_object_get(config, "rope_scaling");
    c->rope_theta = 10000;
    if (get_real(config, "rope_theta", &c->rope_theta, err) || get_real(rope, "rope_theta", &c->rope_theta, err)) return -1;
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    if (!type) type = json_string_value(json_object_get(rope, "type"));
    if (!type || !strcmp(type, "default")) return 0;

    static const char *const names[] = {[ROPE_LINEAR] = "linear", [ROPE_YARN] = "yarn", [ROPE_LLAMA3] = "llama3"};
    for (int i = ROPE_LINEAR; i <= ROPE_LLAMA3; i++)
        if (!strcmp(type, names[i])) c->rope = i;
    if (c->rope == ROPE_PLAIN) return dw_fail(err, "config.json: rope type '%s' is not supported (default, linear, yarn, llama3 are)", type);
    if (c->rope == ROPE_LLAMA3 && !c->arch->may_rope_freqs)
        return dw_fail(err, "config.json: rope type 'llama3' cannot be stored for architecture '%s'", c->arch->name);
    c->rope_factor = c->rope == ROPE_LLAMA3 ? 8 : 1;
    c->low_freq_factor = 1;
    c->high_freq_factor = 4;
    c->n_ctx_original = c->rope == ROPE_LLAMA3 ? 8192 : c->n_ctx;
    double beta_fast = 32, beta_slow = 1;
    if (get_real(rope, "factor", &c->rope_factor, err) || get_real(rope, "low_freq_factor", &c->low_freq_factor, err) ||
        get_real(rope, "high_freq_factor", &c->high_freq_factor, err) || get_real(rope, "attention_factor", &c->attention_factor, err) ||
        get_real(rope, "beta_fast", &beta_fast, err) || get_real(rope, "beta_slow", &beta_slow, err) ||
        get_int(rope, "original_max_position_embeddings", 1, &c->n_ctx_original, err))
        return -1;
    if (beta_fast != 32 || beta_slow != 1) return dw_fail(err, "config.json: yarn with other betas than 32 and 1 cannot be stored in GGUF");
    return 0;
}

/* MLX's affine groups are read; their size and bits show in the shapes of scales. */
static int check_quantization(const json_t *config, dw_err *err) {
    const json_t *q = json_object_get(config, "quantization");
    if (!json_is_object(q)) q = json_object_get(config, "quantization_config");
    if (!q || json_is_null(q)) return 0;
    const char *method = json_string_value(json_object_get(q, "quant_method")), *mode = json_string_value(json_object_get(q, "mode"));
    if (method || (mode && strcmp(mode, "affine")))
        return dw_fail(err, "config.json: quantization '%s' is not supported; give the 16-bit checkpoint, or MLX's affine form", method ? method : mode);
    return 0;
}

static int read_attention(checkpoint_config *c, const json_t *config, dw_err *err) {
    if (get_int(config, "num_attention_heads", 1, &c->n_head, err)) return -1;
    c->n_head_kv = c->n_head;
    c->head_dim = c->n_head ? c->n_embd / c->n_head : 0;
    double partial = 1;
    if (get_int(config, "num_key_value_heads", 1, &c->n_head_kv, err) || get_int(config, "head_dim", 2, &c->head_dim, err) ||
        get_real(config, "partial_rotary_factor", &partial, err))
        return -1;
    if (partial != 1) return dw_fail(err, "config.json: 'partial_rotary_factor' is not supported");
    const json_t *use = json_object_get(config, "use_sliding_window");
    if (!use || json_is_true(use)) return get_int(config, "sliding_window", 0, &c->sliding_window, err);
    return 0;
}

static int read_config(checkpoint_config *c, const json_t *config, dw_err *err) {
    const char *class_name = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    if (!class_name) return dw_fail(err, "config.json has no 'architectures': is this a model's folder?");
    c->arch = dw_arch_of_hf(class_name);
    if (!c->arch) return dw_fail(err, "architecture '%s' is not supported (Llama, Mistral, Qwen2 and Qwen3 ForCausalLM are)", class_name);
    const char *act = json_string_value(json_object_get(config, "hidden_act"));
    if (act && strcmp(act, "silu")) return dw_fail(err, "config.json: activation '%s' is not supported (silu is)", act);
    if (get_int(config, "num_hidden_layers", 1, &c->n_layer, err) || get_int(config, "hidden_size", 1, &c->n_embd, err) ||
        get_int(config, "intermediate_size", 1, &c->n_ff, err) || get_int(config, "vocab_size", 1, &c->n_vocab, err) ||
        get_int(config, "max_position_embeddings", 1, &c->n_ctx, err) || get_real(config, "rms_norm_eps", &c->norm_eps, err) ||
        read_attention(c, config, err))
        return -1;
    const struct { const char *key; double value; } needed[] = {
        {"num_hidden_layers", c->n_layer}, {"hidden_size", c->n_embd}, {"intermediate_size", c->n_ff}, {"vocab_size", c->n_vocab},
        {"max_position_embeddings", c->n_ctx}, {"num_attention_heads", c->n_head}, {"rms_norm_eps", c->norm_eps}};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!(needed[i].value > 0)) return dw_fail(err, "config.json: '%s' is missing", needed[i].key);
    if (c->n_layer > 512 || c->n_head % c->n_head_kv || c->head_dim < 2)
        return dw_fail(err, "config.json: %d layers, %d heads over %d KV heads of %d values do not make a model", c->n_layer, c->n_head,
                       c->n_head_kv, c->head_dim);
    c->tied = json_is_true(json_object_get(config, "tie_word_embeddings"));
    return read_rope(c, config, err) || check_quantization(config, err) ? -1 : 0;
}

/* ---- tensors ------------------------------------------------------------------------------------------- */

/* What a layer may hold, in the order that the file gets it. */
typedef struct tensor_rule {
    const char *gguf, *hf; // of a layer: behind "blk.N." and "model.layers.N."
    char rows, cols;       // d n_embd, f n_ff, q and k heads x head_dim, v vocabulary, h head_dim, 1 a vector
    bool optional;
    char permute;          // q or k: rows are permuted where the architecture pairs neighbours
} tensor_rule;

// clang-format off
static const tensor_rule layer_rules[] = {
    {"attn_norm.weight",   "input_layernorm.weight",          '1', 'd', false, 0},
    {"attn_q.weight",      "self_attn.q_proj.weight",         'q', 'd', false, 'q'},
    {"attn_q.bias",        "self_attn.q_proj.bias",           '1', 'q', true,  'q'},
    {"attn_k.weight",      "self_attn.k_proj.weight",         'k', 'd', false, 'k'},
    {"attn_k.bias",        "self_attn.k_proj.bias",           '1', 'k', true,  'k'},
    {"attn_v.weight",      "self_attn.v_proj.weight",         'k', 'd', false, 0},
    {"attn_v.bias",        "self_attn.v_proj.bias",           '1', 'k', true,  0},
    {"attn_q_norm.weight", "self_attn.q_norm.weight",         '1', 'h', false, 0},
    {"attn_k_norm.weight", "self_attn.k_norm.weight",         '1', 'h', false, 0},
    {"attn_output.weight", "self_attn.o_proj.weight",         'd', 'q', false, 0},
    {"attn_output.bias",   "self_attn.o_proj.bias",           '1', 'd', true,  0},
    {"ffn_norm.weight",    "post_attention_layernorm.weight", '1', 'd', false, 0},
    {"ffn_gate.weight",    "mlp.gate_proj.weight",            'f', 'd', false, 0},
    {"ffn_gate.bias",      "mlp.gate_proj.bias",              '1', 'f', true,  0},
    {"ffn_up.weight",      "mlp.up_proj.weight",              'f', 'd', false, 0},
    {"ffn_up.bias",        "mlp.up_proj.bias",                '1', 'f', true,  0},
    {"ffn_down.weight",    "mlp.down_proj.weight",            'd', 'f', false, 0},
    {"ffn_down.bias",      "mlp.down_proj.bias",              '1', 'd', true,  0},
    {0}};
static const tensor_rule model_rules[] = {
    {"token_embd.weight",  "model.embed_tokens.weight",       'v', 'd', false, 0},
    {"output_norm.weight", "model.norm.weight",               '1', 'd', false, 0},
    {"output.weight",      "lm_head.weight",                  'v', 'd', false, 0}, // left out when tied
    {0}};
// clang-format on

static size_t dimension(const checkpoint_config *c, char which) {
    switch (which) {
    case 'd': return (size_t)c->n_embd;
    case 'f': return (size_t)c->n_ff;
    case 'q': return (size_t)c->n_head * (size_t)c->head_dim;
    case 'k': return (size_t)c->n_head_kv * (size_t)c->head_dim;
    case 'v': return (size_t)c->n_vocab;
    case 'h': return (size_t)c->head_dim;
    default: return 1;
    }
}

static const dw_qtype_row *type_of(dw_st_dtype dtype) {
    return dtype == DW_ST_F32 ? dw_qtype_get(DW_F32) : dtype == DW_ST_F16 ? dw_qtype_get(DW_F16) : dtype == DW_ST_BF16 ? dw_qtype_get(DW_BF16) : NULL;
}

/* True when every value of an F16, BF16 or F32 tensor survives the way through F16. */
static bool fits_f16(const dw_st_tensor *t) {
    const dw_qtype_row *type = type_of(t->dtype);
    for (size_t i = 0, n = t->n_bytes / (size_t)type->block_bytes; i < n; i++) {
        float f;
        type->decode(t->data + i * (size_t)type->block_bytes, &f, 1);
        if (dw_f16_to_f32(dw_f32_to_f16(f)) != f) return false;
    }
    return true;
}

/* "x.weight" with "x.scales" and "x.biases" beside it: groups along a row. */
static int bind_mlx(checkpoint *c, checkpoint_tensor *t, const char *module, size_t rows, size_t cols, dw_err *err) {
    char name[160];
    snprintf(name, sizeof name, "%s.scales", module);
    t->scales = dw_safetensors_find(c->weights, name);
    snprintf(name, sizeof name, "%s.biases", module);
    t->biases = dw_safetensors_find(c->weights, name);
    if (!t->scales || !t->biases) return dw_fail(err, "tensor '%s': U32 without scales and biases", t->source->name);
    const size_t words = t->source->shape[1], groups = t->scales->shape[1];
    /* The shapes say more than config.json, whose per-module overrides they obey. */
    if (!groups || cols % groups || t->scales->n_dims != 2 || t->biases->n_dims != 2 || t->biases->shape[1] != groups ||
        t->scales->shape[0] != rows || t->biases->shape[0] != rows || t->source->shape[0] != rows || words * 32 % cols)
        return dw_fail(err, "tensor '%s': weight, scales and biases do not fit together", t->source->name);
    t->group_size = (int)(cols / groups);
    t->bits = (int)(words * 32 / cols);
    const bool group_ok = t->group_size == 32 || t->group_size == 64 || t->group_size == 128;
    if (!group_ok || t->bits < 2 || t->bits > 8 || t->bits == 7)
        return dw_fail(err, "tensor '%s': %d bits in groups of %d are not MLX's", t->source->name, t->bits, t->group_size);
    if (!type_of(t->scales->dtype) || t->scales->dtype != t->biases->dtype)
        return dw_fail(err, "tensor '%s': scales of type %s are not supported", t->source->name, t->scales->dtype_name);
    if (t->bits <= 5 && fits_f16(t->scales) && fits_f16(t->biases)) t->kept = dw_qtype_get(t->bits == 5 ? DW_Q5_1 : DW_Q4_1);
    return 0;
}

static int bind_tensor(checkpoint *c, const tensor_rule *rule, int layer, dw_err *err) {
    const checkpoint_config *config = &c->config;
    checkpoint_tensor *t = &c->tensor[c->n_tensor];
    *t = (checkpoint_tensor){0};
    char hf[160], module[128];
    if (layer < 0) {
        snprintf(t->name, sizeof t->name, "%s", rule->gguf);
        snprintf(hf, sizeof hf, "%s", rule->hf);
    } else {
        snprintf(t->name, sizeof t->name, "blk.%d.%s", layer, rule->gguf);
        snprintf(hf, sizeof hf, "model.layers.%d.%s", layer, rule->hf);
    }
    t->source = dw_safetensors_find(c->weights, hf);
    if (!t->source) return rule->optional ? 0 : dw_fail(err, "tensor '%s' is missing", hf);
    const size_t rows = dimension(config, rule->rows), cols = dimension(config, rule->cols);
    t->n_dims = rule->rows == '1' ? 1 : 2;
    t->ne[0] = cols;
    t->ne[1] = rows;
    if (rule->permute && !config->arch->rope_neox) t->permute_heads = rule->permute == 'q' ? config->n_head : config->n_head_kv;
    if (t->source->dtype == DW_ST_U32 && t->n_dims == 2 && t->source->n_dims == 2) {
        snprintf(module, sizeof module, "%.*s", (int)(strlen(hf) - strlen(".weight")), hf);
        if (bind_mlx(c, t, module, rows, cols, err)) return -1;
    } else {
        const size_t *shape = t->source->shape;
        const bool fits = t->source->n_dims == t->n_dims && shape[0] == (t->n_dims == 2 ? rows : cols) && (t->n_dims == 1 || shape[1] == cols);
        if (!fits) return dw_fail(err, "tensor '%s' has shape [%zu, %zu], config.json says [%zu, %zu]", hf, shape[0], shape[1], rows, cols);
        t->kept = type_of(t->source->dtype);
        if (!t->kept) return dw_fail(err, "tensor '%s' has type %s, which is not supported", hf, t->source->dtype_name);
    }
    c->n_tensor++;
    return 0;
}

/* Llama 3's frequency factors (Dubey et al. 2024), computed in F32 as transformers does. */
static int make_rope_freqs(checkpoint *c, dw_err *err) {
    const checkpoint_config *g = &c->config;
    const int n = g->head_dim / 2;
    c->rope_freqs = dw_alloc((size_t)n, sizeof *c->rope_freqs, "rope factors", err);
    if (!c->rope_freqs) return -1;
    const double low = g->n_ctx_original / g->low_freq_factor, high = g->n_ctx_original / g->high_freq_factor;
    for (int i = 0; i < n; i++) {
        const double wavelength = 2 * 3.14159265358979323846 * pow(g->rope_theta, 2.0 * i / g->head_dim);
        const double smooth = (g->n_ctx_original / wavelength - g->low_freq_factor) / (g->high_freq_factor - g->low_freq_factor);
        c->rope_freqs[i] = (float)(wavelength < high ? 1 : wavelength > low ? g->rope_factor : 1 / ((1 - smooth) / g->rope_factor + smooth));
    }
    c->tensor[c->n_tensor++] = (checkpoint_tensor){.name = "rope_freqs.weight", .n_dims = 1, .ne = {(size_t)n, 1}, .kept = dw_qtype_get(DW_F32), .made = c->rope_freqs};
    return 0;
}

static bool is_needless(const checkpoint *c, const dw_st_tensor *t) {
    return strstr(t->name, "rotary_emb.inv_freq") || (c->config.tied && !strncmp(t->name, "lm_head.", 8));
}

static bool is_bound(const checkpoint *c, const dw_st_tensor *t) {
    for (size_t k = 0; k < c->n_tensor; k++)
        if (c->tensor[k].source == t || c->tensor[k].scales == t || c->tensor[k].biases == t) return true;
    return false;
}

/* Every tensor of the checkpoint must be used: one that is not would be silently lost. */
static int check_all_used(const checkpoint *c, dw_err *err) {
    const size_t n = dw_safetensors_count(c->weights);
    size_t n_left = n;
    for (size_t i = 0; i < c->n_tensor; i++) n_left -= c->tensor[i].scales ? 3 : c->tensor[i].source != NULL;
    for (size_t i = 0; i < n && n_left; i++) {
        const dw_st_tensor *t = dw_safetensors_tensor(c->weights, i);
        if (is_needless(c, t)) n_left--;
        else if (!is_bound(c, t)) return dw_fail(err, "tensor '%s' is not part of architecture '%s' as it is known here", t->name, c->config.arch->name);
    }
    return 0;
}

static int bind_all(checkpoint *c, dw_err *err) {
    const size_t most = sizeof model_rules / sizeof *model_rules + (size_t)c->config.n_layer * sizeof layer_rules / sizeof *layer_rules + 1;
    c->tensor = dw_alloc(most, sizeof *c->tensor, "the list of tensors", err);
    if (!c->tensor) return -1;
    for (const tensor_rule *r = model_rules; r->gguf; r++)
        if (!(c->config.tied && !strcmp(r->gguf, "output.weight")) && bind_tensor(c, r, -1, err)) return -1;
    if (c->config.rope == ROPE_LLAMA3 && make_rope_freqs(c, err)) return -1;
    for (int l = 0; l < c->config.n_layer; l++)
        for (const tensor_rule *r = layer_rules; r->gguf; r++) {
            const bool is_head_norm = strstr(r->gguf, "_q_norm") || strstr(r->gguf, "_k_norm");
            if (is_head_norm && !c->config.arch->qk_norm) continue; // if there all the same, check_all_used refuses it
            if (bind_tensor(c, r, l, err)) return -1;
        }
    return check_all_used(c, err);
}

int checkpoint_open(checkpoint *c, const char *folder, dw_err *err) {
    *c = (checkpoint){.folder = folder};
    if (dw_is_gguf(folder)) return dw_fail(err, "'%s' is a GGUF file already; requant changes its types", folder);
    struct stat st;
    if (!stat(folder, &st) && !S_ISDIR(st.st_mode))
        return dw_fail(err, "'%s' is no folder; give the checkpoint's folder, in which config.json and the weights are", folder);
    int rc = -1;
    json_t *config = NULL;
    char *path = dw_format(err, "%s/config.json", folder);
    if (!path) return -1;
    config = dw_json_load(path, MAX_CONFIG_BYTES, DW_JSON_TREE, err);
    if (!config || read_config(&c->config, config, err)) goto done;
    c->weights = dw_safetensors_open(folder, err);
    if (!c->weights || bind_all(c, err)) goto done;
    rc = dw_vocab_from_hf(&c->vocab, folder, (size_t)c->config.n_vocab, err);
done:
    json_decref(config);
    free(path);
    if (rc) checkpoint_close(c);
    return rc;
}

void checkpoint_close(checkpoint *c) {
    dw_vocab_release(&c->vocab);
    dw_safetensors_close(c->weights);
    free(c->tensor);
    free(c->rope_freqs);
    *c = (checkpoint){0};
}

/* ---- rows -------------------------------------------------------------------------------------------------- */

/* Where row r of a permuted matrix comes from: within a head, 2i from i and 2i+1 from i + D/2. */
static size_t source_row(const checkpoint_tensor *t, size_t r, size_t n_rows) {
    if (!t->permute_heads) return r;
    const size_t D = n_rows / (size_t)t->permute_heads, i = r % D;
    return r - i + i / 2 + i % 2 * (D / 2);
}

/* Code j of a row of b-bit codes, packed from the least significant bit on. */
static unsigned code(const uint8_t *row, size_t n_bytes, size_t j, int bits) {
    const size_t bit = j * (size_t)bits, byte = bit / 8;
    const unsigned two = row[byte] | (byte + 1 < n_bytes ? (unsigned)row[byte + 1] << 8 : 0);
    return two >> bit % 8 & ((1u << bits) - 1);
}

static float group_value(const dw_st_tensor *t, size_t row, size_t group) {
    const dw_qtype_row *type = type_of(t->dtype);
    float f;
    type->decode(t->data + (row * t->shape[1] + group) * (size_t)type->block_bytes, &f, 1);
    return f;
}

void checkpoint_row_values(const checkpoint_tensor *t, size_t r, float *row) {
    const size_t n = t->ne[0];
    if (t->made) {
        memcpy(row, t->made, n * sizeof *row);
        return;
    }
    if (t->n_dims == 1) { // a bias: values are permuted instead of rows
        const dw_qtype_row *type = type_of(t->source->dtype);
        for (size_t i = 0; i < n; i++) type->decode(t->source->data + source_row(t, i, n) * (size_t)type->block_bytes, row + i, 1);
        return;
    }
    const size_t from = source_row(t, r, t->ne[1]), bytes = t->source->n_bytes / t->ne[1];
    const uint8_t *data = t->source->data + from * bytes;
    if (!t->scales) {
        type_of(t->source->dtype)->decode(data, row, n);
        return;
    }
    for (size_t j = 0; j < n; j++) {
        const size_t g = j / (size_t)t->group_size;
        row[j] = group_value(t->scales, from, g) * (float)code(data, bytes, j, t->bits) + group_value(t->biases, from, g);
    }
}

/* Blocks of 32: d, m as F16, then (Q5_1) the fifth bits, then nibbles, value i beside value i + 16. */
static void affine_blocks(const checkpoint_tensor *t, size_t from, const uint8_t *data, size_t bytes, uint8_t *out) {
    const bool five = t->kept->id == DW_Q5_1;
    for (size_t b = 0; b < t->ne[0] / 32; b++, out += t->kept->block_bytes) {
        const size_t group = b * 32 / (size_t)t->group_size;
        const uint16_t d = dw_f32_to_f16(group_value(t->scales, from, group)), m = dw_f32_to_f16(group_value(t->biases, from, group));
        uint8_t *nibbles = out + (five ? 8 : 4);
        uint32_t high = 0;
        memset(nibbles, 0, 16);
        for (size_t i = 0; i < 32; i++) {
            const unsigned q = code(data, bytes, b * 32 + i, t->bits);
            nibbles[i % 16] |= (uint8_t)((q & 15) << (i < 16 ? 0 : 4));
            high |= (uint32_t)(q >> 4) << i;
        }
        memcpy(out, &d, 2);
        memcpy(out + 2, &m, 2);
        if (five) memcpy(out + 4, &high, 4);
    }
}

void checkpoint_row_kept(const checkpoint_tensor *t, size_t r, uint8_t *row) {
    const size_t from = source_row(t, r, t->ne[1]), bytes = t->source->n_bytes / t->ne[1];
    const uint8_t *data = t->source->data + from * bytes;
    if (t->scales) affine_blocks(t, from, data, bytes, row);
    else memcpy(row, data, bytes);
}

/* ---- keys ---------------------------------------------------------------------------------------------------- */

static void set_u32(dw_gguf_writer *w, const char *arch, const char *key, int value) {
    char full[96];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    dw_gguf_set_u32(w, full, (uint32_t)value);
}

static void set_f32(dw_gguf_writer *w, const char *arch, const char *key, double value) {
    char full[96];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    dw_gguf_set_f32(w, full, (float)value);
}

void checkpoint_write_keys(const checkpoint *c, dw_gguf_writer *w) {
    const checkpoint_config *g = &c->config;
    const char *a = g->arch->name;
    dw_gguf_set_text(w, "general.architecture", a);
    dw_gguf_set_text(w, "general.type", "model");
    size_t len = strlen(c->folder);
    while (len > 1 && c->folder[len - 1] == '/') len--;
    const char *name = c->folder + len;
    while (name > c->folder && name[-1] != '/') name--;
    dw_gguf_set_str(w, "general.name", name, (size_t)(c->folder + len - name));
    set_u32(w, a, "block_count", g->n_layer);
    set_u32(w, a, "context_length", g->n_ctx);
    set_u32(w, a, "embedding_length", g->n_embd);
    set_u32(w, a, "feed_forward_length", g->n_ff);
    set_u32(w, a, "attention.head_count", g->n_head);
    set_u32(w, a, "attention.head_count_kv", g->n_head_kv);
    set_u32(w, a, "attention.key_length", g->head_dim);
    set_u32(w, a, "attention.value_length", g->head_dim);
    set_f32(w, a, "attention.layer_norm_rms_epsilon", g->norm_eps);
    set_u32(w, a, "rope.dimension_count", g->head_dim);
    set_f32(w, a, "rope.freq_base", g->rope_theta);
    set_u32(w, a, "vocab_size", g->n_vocab);
    if (g->rope == ROPE_LINEAR || g->rope == ROPE_YARN) {
        char key[96];
        snprintf(key, sizeof key, "%s.rope.scaling.type", a);
        dw_gguf_set_text(w, key, g->rope == ROPE_YARN ? "yarn" : "linear");
        set_f32(w, a, "rope.scaling.factor", g->rope_factor);
    }
    if (g->rope == ROPE_YARN) {
        set_u32(w, a, "rope.scaling.original_context_length", g->n_ctx_original);
        /* Readers multiply by 1 + 0.1 ln(factor) themselves; an explicit attention factor replaces that. */
        if (g->attention_factor > 0) set_f32(w, a, "rope.scaling.attn_factor", g->attention_factor / (1 + 0.1 * log(g->rope_factor)));
    }
    dw_vocab_write(&c->vocab, w);
}
