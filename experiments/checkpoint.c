/* checkpoint.c - see checkpoint.h.  Names and keys: transformers' configurations, llama.cpp's conversion scripts. */
#include "checkpoint.h"
#include "formats/ffn_act.h"
#include "kit/lineage.h"
#include "kit/safetensors.h"
#include "text/json.h"
#include "text/tokenizers.h"

#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG_BYTES = 16 << 20 };

/* ---- config.json ------------------------------------------------------------------------------------- */

/* A number of an object, checked by its row.  An absent or null key leaves *value alone. */
static int get_number(const json_t *object, const dw_key_row *row, const char *key, double *value, dw_err *err) {
    const json_t *j = json_object_get(object, key);
    if (!j || json_is_null(j)) return 0;
    const double v = json_number_value(j);
    if (!(row->is_real ? json_is_number(j) : json_is_integer(j)) || !dw_key_allows(row, v))
        return dw_fail(err, "config.json: '%s' is not %s %s", key, row->is_real ? "a number" : "an integer from",
                       dw_key_bounds(row).text);
    *value = v;
    return 0;
}

static int get_key(checkpoint_config *c, const json_t *config, dw_key which, dw_err *err) {
    return get_number(config, &dw_keys[which], dw_keys[which].config, &c->value[which], err);
}

/* Positive numbers and counts that dw_keys does not have. */
static int get_positive(const json_t *object, const char *key, double *value, dw_err *err) {
    static const dw_key_row positive = {.is_real = true, .least = 0, .most = FLT_MAX};
    return get_number(object, &positive, key, value, err);
}

static int get_count(const json_t *object, const char *key, int least, int *value, dw_err *err) {
    const dw_key_row count = {.least = least, .most = INT32_MAX};
    double v = *value;
    if (get_number(object, &count, key, &v, err)) return -1;
    *value = (int)v;
    return 0;
}

/* The GGUF key of what yarn multiplies cos and sin by.  Readers multiply by 1 + 0.1 ln(factor) too, so that is
 * divided out. */
static double attention_factor(const checkpoint_config *c) {
    return c->attention_factor / (1 + 0.1 * log(c->rope_factor));
}

/* What transformers multiplies cos and sin by in yarn where a configuration has these two numbers and no
 * attention_factor; 0: it has not both. */
static double mscale_ratio(const json_t *rope, double factor) {
    const double own = json_number_value(json_object_get(rope, "mscale")),
                 all = json_number_value(json_object_get(rope, "mscale_all_dim"));
    if (!(own > 0 && all > 0)) return 0;
    return factor > 1 ? (1 + 0.1 * own * log(factor)) / (1 + 0.1 * all * log(factor)) : 1;
}

/* Newer configurations may have parameters for each type of layer: "rope_parameters": {"full_attention": {...}}. */
static int check_one_rope(const json_t *rope, dw_err *err) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)rope, name, value)
        if (json_is_object(value))
            return dw_fail(err, "config.json: rope parameters by type of layer ('%.40s') are not supported", name);
    return 0;
}

static int check_rotated(const json_t *object, dw_err *err) {
    double partial = 1;
    if (get_positive(object, "partial_rotary_factor", &partial, err)) return -1;
    return partial == 1 ? 0 : dw_fail(err, "config.json: 'partial_rotary_factor' is not supported");
}

/* As in transformers, these have no default. */
static int need_rope_numbers(const json_t *rope, bool is_llama3, const char *name, dw_err *err) {
    static const char *const keys[] = {"factor", "low_freq_factor", "high_freq_factor",
                                       "original_max_position_embeddings"};
    for (size_t i = 0; i < (is_llama3 ? sizeof keys / sizeof *keys : 1); i++)
        if (!json_is_number(json_object_get(rope, keys[i])))
            return dw_fail(err, "config.json: rope type '%s' needs the number '%s', which is missing", name, keys[i]);
    return 0;
}

/* transformers 5 has all of rope in rope_parameters.  Earlier versions have rope_theta in the main object, and
 * rope_scaling. */
static int read_rope(checkpoint_config *c, const json_t *config, dw_err *err) {
    const json_t *rope = json_object_get(config, "rope_parameters");
    if (!json_is_object(rope)) rope = json_object_get(config, "rope_scaling");
    c->value[DW_KEY_ROPE_BASE] = 10000;
    if (check_one_rope(rope, err) || check_rotated(config, err) || check_rotated(rope, err)) return -1;
    if (get_key(c, config, DW_KEY_ROPE_BASE, err) || get_key(c, rope, DW_KEY_ROPE_BASE, err)) return -1;
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    if (!type) type = json_string_value(json_object_get(rope, "type"));
    if (!type || !strcmp(type, "default")) return 0;

    static const char *const names[] = {[ROPE_LINEAR] = "linear", [ROPE_YARN] = "yarn", [ROPE_LLAMA3] = "llama3"};
    for (int i = ROPE_LINEAR; i <= ROPE_LLAMA3; i++)
        if (!strcmp(type, names[i])) c->rope = i;
    if (c->rope == ROPE_PLAIN)
        return dw_fail(err, "config.json: rope type '%s' is not supported (default, linear, yarn, llama3 are)", type);
    if (c->rope == ROPE_LLAMA3 && !(c->arch->has & DW_ARCH_ROPE_FREQS))
        return dw_fail(err, "config.json: rope type 'llama3' cannot be stored for architecture '%s'", c->arch->name);
    if (need_rope_numbers(rope, c->rope == ROPE_LLAMA3, type, err)) return -1;
    c->n_ctx_original = c->n_ctx;
    double beta_fast = 32, beta_slow = 1;
    if (get_positive(rope, "factor", &c->rope_factor, err) ||
        get_positive(rope, "low_freq_factor", &c->low_freq_factor, err) ||
        get_positive(rope, "high_freq_factor", &c->high_freq_factor, err) ||
        get_positive(rope, "attention_factor", &c->attention_factor, err) ||
        get_positive(rope, "beta_fast", &beta_fast, err) || get_positive(rope, "beta_slow", &beta_slow, err) ||
        get_count(rope, "original_max_position_embeddings", 1, &c->n_ctx_original, err))
        return -1;
    if (beta_fast != 32 || beta_slow != 1)
        return dw_fail(err, "config.json: yarn with other betas than 32 and 1 cannot be stored in GGUF");
    if (json_is_false(json_object_get(rope, "truncate")))
        return dw_fail(err, "config.json: yarn with 'truncate' false cannot be stored in GGUF");
    if (c->rope == ROPE_YARN && c->attention_factor == 0) c->attention_factor = mscale_ratio(rope, c->rope_factor);
    const float magnitude = (float)attention_factor(c);
    if (c->rope == ROPE_YARN && c->attention_factor > 0 && (!(magnitude > 0) || !isfinite(magnitude)))
        return dw_fail(err, "config.json: yarn with attention_factor %g and factor %g gives no positive magnitude",
                       c->attention_factor, c->rope_factor);
    return 0;
}

/* Of quantized checkpoints only MLX's affine groups are read.  Their size and bits follow from the shapes of the
 * scales. */
static int check_quantization(const json_t *config, dw_err *err) {
    const json_t *q = json_object_get(config, "quantization");
    if (!json_is_object(q)) q = json_object_get(config, "quantization_config");
    if (!q || json_is_null(q)) return 0;
    const char *method = json_string_value(json_object_get(q, "quant_method")),
               *mode = json_string_value(json_object_get(q, "mode"));
    if (method || (mode && strcmp(mode, "affine")))
        return dw_fail(
            err, "config.json: quantization '%s' is not supported; give the 16-bit checkpoint, or MLX's affine form",
            method ? method : mode);
    return 0;
}

static int read_attention(checkpoint_config *c, const json_t *config, dw_err *err) {
    double *v = c->value;
    v[DW_KEY_N_HEAD_KV] = v[DW_KEY_N_HEAD];
    v[DW_KEY_HEAD_DIM] = v[DW_KEY_N_HEAD] > 0 ? floor(v[DW_KEY_N_EMBD] / v[DW_KEY_N_HEAD]) : 0;
    if (get_key(c, config, DW_KEY_N_HEAD_KV, err) || get_key(c, config, DW_KEY_HEAD_DIM, err)) return -1;
    v[DW_KEY_VALUE_DIM] = v[DW_KEY_ROPE_DIM] = v[DW_KEY_HEAD_DIM];
    const json_t *use = json_object_get(config, "use_sliding_window");
    if (!use || json_is_true(use)) return get_count(config, "sliding_window", 0, &c->sliding_window, err);
    return 0;
}

static int read_activation(checkpoint_config *c, const json_t *config, dw_err *err) {
    const char *name = json_string_value(json_object_get(config, "hidden_act"));
    const int act = name ? dw_act_of((dw_str){name, strlen(name)}) : (int)c->arch->act;
    if (act < 0)
        return dw_fail(err, "config.json: activation '%s' is not supported (%s are)", name, dw_act_names().text);
    c->act = (dw_act)act;
    return 0;
}

static bool has_experts(const json_t *config) {
    return json_object_get(config, "num_local_experts") || json_object_get(config, "num_experts") ||
           json_object_get(config, "n_routed_experts");
}

static int read_config(checkpoint_config *c, const json_t *config, dw_err *err) {
    const char *class_name = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    if (!class_name) return dw_fail(err, "config.json has no 'architectures': is this a model's folder?");
    c->arch = dw_arch_of_hf(class_name);
    if (!c->arch && has_experts(config))
        return dw_fail(err, "'%s' is a mixture of experts, which is not supported (%s are)", class_name,
                       dw_arch_names(true).text);
    if (!c->arch)
        return dw_fail(err, "architecture '%s' is not supported (%s are)", class_name, dw_arch_names(true).text);
    if (read_activation(c, config, err)) return -1;
    for (int i = 0; i < DW_N_KEYS; i++) {
        if (!dw_keys[i].required) continue;
        c->value[i] = NAN;
        if (get_key(c, config, i, err)) return -1;
        if (isnan(c->value[i])) return dw_fail(err, "config.json: '%s' is missing", dw_keys[i].config);
    }
    if (read_attention(c, config, err)) return -1;
    const double *v = c->value;
    c->n_layer = (int)v[DW_KEY_N_LAYER];
    c->n_ctx = (int)v[DW_KEY_N_CTX];
    c->sizes = (dw_sizes){.n_embd = (int)v[DW_KEY_N_EMBD],
                          .n_vocab = (int)v[DW_KEY_N_VOCAB],
                          .n_ff = (int)v[DW_KEY_N_FF],
                          .n_head = (int)v[DW_KEY_N_HEAD],
                          .n_head_kv = (int)v[DW_KEY_N_HEAD_KV],
                          .head_dim = (int)v[DW_KEY_HEAD_DIM]};
    if (dw_check_heads(c->arch, 0, c->sizes.n_head, c->sizes.n_head_kv, c->sizes.head_dim, err))
        return dw_fail_in(err, "config.json");
    c->tied = json_is_true(json_object_get(config, "tie_word_embeddings")) || !(c->arch->has & DW_ARCH_UNTIED);
    if (read_rope(c, config, err) || check_quantization(config, err)) return -1;
    return 0;
}

/* ---- tensors ------------------------------------------------------------------------------------------- */

/* True when every value of an F16, BF16 or F32 tensor is finite and the same after encoding to F16. */
static bool fits_f16(const kit_st_tensor *t) {
    const dw_qtype_row *type = kit_st_qtype(t->dtype);
    for (size_t i = 0, n = t->n_bytes / (size_t)type->block_bytes; i < n; i++) {
        float f;
        type->decode(t->data + i * (size_t)type->block_bytes, &f, 1);
        if (!isfinite(f) || dw_f16_to_f32(dw_f32_to_f16(f)) != f) return false;
    }
    return true;
}

/* MLX has three tensors for a matrix: x.weight with codes, x.scales and x.biases with one value for each group of a
 * row. */
static int bind_mlx(checkpoint *c, checkpoint_tensor *t, const char *module, size_t rows, size_t cols, dw_err *err) {
    char name[160];
    snprintf(name, sizeof name, "%s.scales", module);
    t->scales = kit_safetensors_find(c->weights, name);
    snprintf(name, sizeof name, "%s.biases", module);
    t->biases = kit_safetensors_find(c->weights, name);
    if (!t->scales || !t->biases) return dw_fail(err, "tensor '%s': U32 without scales and biases", t->source->name);
    const size_t words = t->source->shape[1], groups = t->scales->shape[1];
    /* Shapes, not config.json: they already contain its overrides for single modules. */
    if (!groups || cols % groups || t->scales->n_dims != 2 || t->biases->n_dims != 2 || t->biases->shape[1] != groups ||
        t->scales->shape[0] != rows || t->biases->shape[0] != rows || t->source->shape[0] != rows || words * 32 % cols)
        return dw_fail(err, "tensor '%s': weight, scales and biases do not fit together", t->source->name);
    t->group_size = (int)(cols / groups);
    t->bits = (int)(words * 32 / cols);
    const bool group_ok = t->group_size == 32 || t->group_size == 64 || t->group_size == 128;
    if (!group_ok || t->bits < 2 || t->bits > 8 || t->bits == 7)
        return dw_fail(err, "tensor '%s': %d bits in groups of %d are not MLX's", t->source->name, t->bits,
                       t->group_size);
    if (!kit_st_qtype(t->scales->dtype) || t->scales->dtype != t->biases->dtype)
        return dw_fail(err, "tensor '%s': scales of type %s are not supported", t->source->name, t->scales->dtype_name);
    if (t->bits <= 5 && fits_f16(t->scales) && fits_f16(t->biases))
        t->kept = dw_qtype_get(t->bits == 5 ? DW_Q5_1 : DW_Q4_1);
    return 0;
}

/* A row's weight or bias becomes the next tensor of the file.  Where the checkpoint does not have it, it must be
 * optional; lm_head is not, because bind_rows comes here only with untied embeddings. */
static int bind_tensor(checkpoint *c, const dw_tensor_row *row, int layer, bool bias, dw_err *err) {
    const checkpoint_config *config = &c->config;
    const dw_sizes *sizes = &config->sizes;
    const bool required = !bias && (!row->optional || row->of & DW_ARCH_UNTIED);
    const dw_tensor_name hf = dw_name_hf(row, layer, bias);
    const kit_st_tensor *source = kit_safetensors_find(c->weights, hf.text);
    if (!source && required && layer < 0) return dw_fail(err, "tensor '%s' is missing", hf.text);
    if (!source && required)
        return dw_fail(err, "tensor '%s' is missing; config.json says %d layers", hf.text, config->n_layer);
    if (!source) return 0;
    checkpoint_tensor *t = &c->tensor[c->n_tensor];
    *t = (checkpoint_tensor){.source = source, .n_dims = bias || !row->shape[1] ? 1 : 2};
    snprintf(t->name, sizeof t->name, "%s", dw_name_gguf(row, layer, bias).text);
    const size_t rows = t->n_dims == 2 ? dw_dimension(row->shape[0], sizes) : 1;
    const size_t cols = dw_dimension(bias ? row->bias : row->shape[t->n_dims - 1], sizes);
    t->ne[0] = cols;
    t->ne[1] = rows;
    if (row->is_turned && !(config->arch->has & DW_ARCH_ROPE_NEOX)) t->head_dim = (size_t)sizes->head_dim;
    if (source->dtype == KIT_ST_U32 && t->n_dims == 2 && source->n_dims == 2) {
        char module[DW_TENSOR_NAME];
        snprintf(module, sizeof module, "%.*s", (int)(strlen(hf.text) - strlen(".weight")), hf.text);
        if (bind_mlx(c, t, module, rows, cols, err)) return -1;
    } else {
        const size_t *shape = source->shape;
        const bool is_vector = t->n_dims == 1;
        if (source->n_dims != t->n_dims || shape[0] != (is_vector ? cols : rows) || (!is_vector && shape[1] != cols))
            return dw_fail(err, "tensor '%s' has shape [%zu, %zu], config.json says [%zu, %zu]", hf.text, shape[0],
                           shape[1], rows, cols);
        t->kept = kit_st_qtype(source->dtype);
        if (!t->kept)
            return dw_fail(err, "tensor '%s' has type %s, which is not supported", hf.text, source->dtype_name);
    }
    c->n_tensor++;
    return 0;
}

/* Rows that the architecture does not have are left out.  If the checkpoint has such tensors, check_all_used refuses
 * it. */
static int bind_rows(checkpoint *c, const dw_tensor_row *rows, int layer, dw_err *err) {
    for (const dw_tensor_row *r = rows; r->gguf; r++) {
        if (!r->hf || (r->of && !(c->config.arch->has & r->of)) || (r->of & DW_ARCH_UNTIED && c->config.tied)) continue;
        if (bind_tensor(c, r, layer, false, err)) return -1;
        if (r->bias && !r->no_hf_bias && bind_tensor(c, r, layer, true, err)) return -1;
    }
    return 0;
}

/* Llama 3's frequency factors (Dubey et al. 2024), computed in F64 and rounded to F32 at the end. */
static int make_rope_freqs(checkpoint *c, dw_err *err) {
    const checkpoint_config *g = &c->config;
    const int n = g->sizes.head_dim / 2;
    c->rope_freqs = dw_alloc((size_t)n, sizeof *c->rope_freqs, "rope factors", err);
    if (!c->rope_freqs) return -1;
    const double low = g->n_ctx_original / g->low_freq_factor, high = g->n_ctx_original / g->high_freq_factor;
    for (int i = 0; i < n; i++) {
        const double wavelength = 2 * 3.14159265358979323846 *
                                  pow(g->value[DW_KEY_ROPE_BASE], 2.0 * i / g->sizes.head_dim);
        const double smooth = (g->n_ctx_original / wavelength - g->low_freq_factor) /
                              (g->high_freq_factor - g->low_freq_factor);
        const double between = 1 / ((1 - smooth) / g->rope_factor + smooth);
        c->rope_freqs[i] = (float)(wavelength < high ? 1 : wavelength > low ? g->rope_factor : between);
    }
    c->tensor[c->n_tensor++] = (checkpoint_tensor){.name = "rope_freqs.weight",
                                                   .n_dims = 1,
                                                   .ne = {(size_t)n, 1},
                                                   .kept = dw_qtype_get(DW_F32),
                                                   .made = c->rope_freqs};
    return 0;
}

static bool is_needless(const checkpoint *c, const kit_st_tensor *t) {
    return strstr(t->name, "rotary_emb.inv_freq") || (c->config.tied && !strncmp(t->name, "lm_head.", 8));
}

static bool is_bound(const checkpoint *c, const kit_st_tensor *t) {
    for (size_t k = 0; k < c->n_tensor; k++)
        if (c->tensor[k].source == t || c->tensor[k].scales == t || c->tensor[k].biases == t) return true;
    return false;
}

/* Refuses a checkpoint with a tensor that is not used, because the converted model would lack it. */
static int check_all_used(const checkpoint *c, dw_err *err) {
    const size_t n = kit_safetensors_count(c->weights);
    size_t n_left = n;
    for (size_t i = 0; i < c->n_tensor; i++) n_left -= c->tensor[i].scales ? 3 : c->tensor[i].source != NULL;
    for (size_t i = 0; i < n && n_left; i++) {
        const kit_st_tensor *t = kit_safetensors_tensor(c->weights, i);
        if (is_needless(c, t))
            n_left--;
        else if (!is_bound(c, t))
            return dw_fail(err, "tensor '%s' is not part of architecture '%s' with %d layers, as config.json says",
                           t->name, c->config.arch->name, c->config.n_layer);
    }
    return 0;
}

static size_t n_rows_of(const dw_tensor_row *rows) {
    size_t n = 0;
    while (rows[n].gguf) n++;
    return n;
}

static int bind_all(checkpoint *c, dw_err *err) {
    const size_t n_layer = (size_t)c->config.n_layer, a_layer = n_rows_of(dw_attention_rows) + n_rows_of(dw_ffn_rows);
    const size_t most = 2 * (n_rows_of(dw_net_rows) + n_layer * a_layer); // each row is a weight and a bias
    c->tensor = dw_alloc(most, sizeof *c->tensor, "the list of tensors", err);
    if (!c->tensor || bind_rows(c, dw_net_rows, -1, err)) return -1;
    if (c->config.rope == ROPE_LLAMA3 && make_rope_freqs(c, err)) return -1;
    for (int l = 0; l < c->config.n_layer; l++)
        if (bind_rows(c, dw_attention_rows, l, err) || bind_rows(c, dw_ffn_rows, l, err)) return -1;
    return check_all_used(c, err);
}

static int fail_without_config(const char *folder, dw_err *err) {
    char *path = dw_format(err, "%s/adapter_config.json", folder);
    if (!path) return -1;
    const bool is_adapter = dw_file_exists(path);
    free(path);
    if (!is_adapter) return dw_fail(err, "'%s' is no checkpoint folder: it has no config.json", folder);
    return dw_fail(err, "'%s' is an adapter (adapter_config.json) and no whole model; merge it into its base model and "
                        "convert that", folder);
}

int checkpoint_open(checkpoint *c, const char *folder, dw_err *err) {
    *c = (checkpoint){.folder = folder};
    if (dw_is_gguf(folder)) return dw_fail(err, "'%s' is a GGUF file already; requant changes its types", folder);
    if (dw_file_exists(folder) && !dw_is_folder(folder))
        return dw_fail(err, "'%s' is no folder; give the checkpoint's folder, in which config.json and the weights are",
                       folder);
    int rc = -1;
    json_t *config = NULL;
    char *path = dw_format(err, "%s/config.json", folder);
    if (!path) return -1;
    if (!dw_file_exists(path)) {
        free(path);
        return fail_without_config(folder, err);
    }
    config = dw_json_load(path, MAX_CONFIG_BYTES, DW_JSON_TREE, err);
    if (!config) goto done;
    if (read_config(&c->config, config, err)) {
        dw_fail_in(err, "'%s'", folder);
        goto done;
    }
    c->had_lineage = json_object_get(config, LINEAGE_IN_CONFIG) != NULL;
    c->weights = kit_safetensors_open(folder, err);
    if (!c->weights) goto done;
    if (bind_all(c, err)) {
        dw_fail_in(err, "'%s'", folder);
        goto done;
    }
    rc = dw_vocab_from_hf(&c->vocab, folder, (size_t)c->config.sizes.n_vocab, err);
done:
    json_decref(config);
    free(path);
    if (rc) checkpoint_close(c);
    return rc;
}

void checkpoint_close(checkpoint *c) {
    dw_vocab_release(&c->vocab);
    kit_safetensors_close(c->weights);
    free(c->tensor);
    free(c->rope_freqs);
    *c = (checkpoint){0};
}

/* ---- rows -------------------------------------------------------------------------------------------------- */

/* The row, or value of a bias, of the checkpoint that becomes row r. */
static size_t source_row(const checkpoint_tensor *t, size_t r) {
    return t->head_dim ? dw_unpermuted_row(r, t->head_dim) : r;
}

/* Code j of a row of b-bit codes, packed from the least significant bit on. */
static unsigned code(const uint8_t *row, size_t n_bytes, size_t j, int bits) {
    const size_t bit = j * (size_t)bits, byte = bit / 8;
    const unsigned two = row[byte] | (byte + 1 < n_bytes ? (unsigned)row[byte + 1] << 8 : 0);
    return two >> bit % 8 & ((1u << bits) - 1);
}

static float group_value(const kit_st_tensor *t, size_t row, size_t group) {
    const dw_qtype_row *type = kit_st_qtype(t->dtype);
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
        const dw_qtype_row *type = kit_st_qtype(t->source->dtype);
        for (size_t i = 0; i < n; i++)
            type->decode(t->source->data + source_row(t, i) * (size_t)type->block_bytes, row + i, 1);
        return;
    }
    const size_t from = source_row(t, r), bytes = t->source->n_bytes / t->ne[1];
    const uint8_t *data = t->source->data + from * bytes;
    if (!t->scales) {
        kit_st_qtype(t->source->dtype)->decode(data, row, n);
        return;
    }
    for (size_t j = 0; j < n; j++) {
        const size_t g = j / (size_t)t->group_size;
        row[j] = group_value(t->scales, from, g) * (float)code(data, bytes, j, t->bits) +
                 group_value(t->biases, from, g);
    }
}

/* Blocks of 32: d and m in F16, in Q5_1 the fifth bits of all codes, then 16 bytes with the low bits of codes i and i
 * + 16. */
static void affine_blocks(const checkpoint_tensor *t, size_t from, const uint8_t *data, size_t bytes, uint8_t *out) {
    const bool five = t->kept->id == DW_Q5_1;
    for (size_t b = 0; b < t->ne[0] / 32; b++, out += t->kept->block_bytes) {
        const size_t group = b * 32 / (size_t)t->group_size;
        const uint16_t d = dw_f32_to_f16(group_value(t->scales, from, group)),
                       m = dw_f32_to_f16(group_value(t->biases, from, group));
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
    const size_t from = source_row(t, r), bytes = t->source->n_bytes / t->ne[1];
    const uint8_t *data = t->source->data + from * bytes;
    if (t->scales) affine_blocks(t, from, data, bytes, row);
    else memcpy(row, data, bytes);
}

/* ---- keys ---------------------------------------------------------------------------------------------------- */

static void set_f32(dw_gguf_writer *w, const char *arch, const char *key, double value) {
    char full[96];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    dw_gguf_set_f32(w, full, (float)value);
}

static void set_u32(dw_gguf_writer *w, const char *arch, const char *key, double value) {
    char full[96];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    dw_gguf_set_u32(w, full, (uint32_t)value);
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
    for (int i = 0; i < DW_N_KEYS; i++) (dw_keys[i].is_real ? set_f32 : set_u32)(w, a, dw_keys[i].gguf, g->value[i]);
    if (g->rope == ROPE_LINEAR || g->rope == ROPE_YARN) {
        char key[96];
        snprintf(key, sizeof key, "%s.rope.scaling.type", a);
        dw_gguf_set_text(w, key, g->rope == ROPE_YARN ? "yarn" : "linear");
        set_f32(w, a, "rope.scaling.factor", g->rope_factor);
    }
    if (g->rope == ROPE_YARN) {
        set_u32(w, a, "rope.scaling.original_context_length", g->n_ctx_original);
        if (g->attention_factor > 0) set_f32(w, a, "rope.scaling.attn_factor", attention_factor(g));
    }
    if (g->act != g->arch->act) dw_gguf_set_text(w, DW_KEY_FFN_ACTIVATION, dw_acts[g->act].name);
    dw_vocab_write(&c->vocab, w);
}
