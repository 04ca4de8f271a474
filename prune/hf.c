/* hf.c - writes a checkpoint folder beside a cut model. */
#include "prune/hf.h"
#include "text/json.h"
#include "kit/safetensors.h"

#include "model/model.h"

#include <errno.h>
#include <jansson.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_CONFIG_BYTES = 1 << 24 };

typedef struct name_rule {
    const char *gguf, *hf;
    char permute; // q or k
} name_rule;

// clang-format off
static const name_rule model_rules[] = {
    {"token_embd.weight", "model.embed_tokens.weight"}, {"output_norm.weight", "model.norm.weight"}, {"output.weight", "lm_head.weight"}, {0}};

static const name_rule layer_rules[] = {
    {"attn_norm.weight",   "input_layernorm.weight"},
    {"attn_q.weight",      "self_attn.q_proj.weight", 'q'}, {"attn_q.bias", "self_attn.q_proj.bias", 'q'},
    {"attn_k.weight",      "self_attn.k_proj.weight", 'k'}, {"attn_k.bias", "self_attn.k_proj.bias", 'k'},
    {"attn_v.weight",      "self_attn.v_proj.weight"},      {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_output.weight", "self_attn.o_proj.weight"},      {"attn_output.bias", "self_attn.o_proj.bias"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},      {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"ffn_norm.weight",    "post_attention_layernorm.weight"},
    {"ffn_gate.weight",    "mlp.gate_proj.weight"},         {"ffn_gate.bias", "mlp.gate_proj.bias"},
    {"ffn_up.weight",      "mlp.up_proj.weight"},           {"ffn_up.bias", "mlp.up_proj.bias"},
    {"ffn_down.weight",    "mlp.down_proj.weight"},         {"ffn_down.bias", "mlp.down_proj.bias"},
    {0}};
// clang-format on

/* ---- what goes where --------------------------------------------------------------------------------------- */

/* The name in transformers; false for tensors that config.json stands for (rope_freqs). */
static bool hf_name(const dw_tensor *t, char *name, size_t size, char *permute) {
    const char *part;
    const int l = dw_layer_of(t->name, &part);
    const name_rule *r = l >= 0 ? layer_rules : model_rules;
    while (r->gguf && strcmp(r->gguf, part)) r++;
    if (!r->gguf) return false;
    if (l >= 0) snprintf(name, size, "model.layers.%d.%s", l, r->hf);
    else snprintf(name, size, "%s", r->hf);
    *permute = r->permute;
    return true;
}

static bool dtype_of(const dw_qtype_row *type, dw_st_dtype *dtype) {
    *dtype = type->id == DW_F32 ? DW_ST_F32 : type->id == DW_F16 ? DW_ST_F16 : DW_ST_BF16;
    return type->id == DW_F32 || type->id == DW_F16 || type->id == DW_BF16;
}

int prune_hf_check(const dw_model *m, const char *checkpoint, const char *out, dw_err *err) {
    if (m->arch->may_differ_by_layer) return dw_fail(err, "architecture '%s' has no checkpoint folder: --hf needs one that transformers knows", m->arch->name);
    for (size_t i = 0; i < dw_gguf_n_tensors(m->gguf); i++) {
        const dw_tensor *t = dw_gguf_tensor(m->gguf, i);
        char name[128], permute;
        dw_st_dtype dtype;
        if (!dtype_of(t->type, &dtype)) return dw_fail(err, "tensor '%s' is %s; --hf writes F32, F16 and BF16 only", t->name, t->type->name);
        if (!hf_name(t, name, sizeof name, &permute) && strcmp(t->name, "rope_freqs.weight") != 0)
            return dw_fail(err, "tensor '%s' has no name in transformers; --hf cannot write it", t->name);
    }
    if (dw_file_exists(out)) return dw_fail(err, "'%s' exists; --hf writes a new folder", out);
    char *copy = dw_strdup(out, err);
    if (!copy) return -1;
    const bool can_write = !access(dirname(copy), W_OK | X_OK);
    free(copy);
    if (!can_write) return dw_fail(err, "cannot create '%s': %s", out, strerror(errno));
    char *config = dw_format(err, "%s/config.json", checkpoint);
    const bool there = config && dw_file_exists(config);
    free(config);
    return there ? 0 : dw_fail(err, "'%s' has no config.json; give the checkpoint folder that the model came from", checkpoint);
}

/* ---- weights ----------------------------------------------------------------------------------------------- */

/* Vectors are F32 in GGUF; they take the type of the matrices when no value changes. */
static dw_st_dtype vector_dtype(const dw_tensor *t, dw_st_dtype matrices) {
    for (size_t i = 0; i < t->ne[0]; i++) {
        float v;
        memcpy(&v, t->data + i * sizeof v, sizeof v);
        const float back = matrices == DW_ST_F16 ? dw_f16_to_f32(dw_f32_to_f16(v)) : dw_bf16_to_f32(dw_f32_to_bf16(v));
        if (back != v) return DW_ST_F32;
    }
    return matrices;
}

/* The row of GGUF that row r of transformers stands in: i in 2i, i + D/2 in 2i + 1 of a head. */
static size_t gguf_row(size_t r, size_t D) {
    const size_t i = r % D;
    return r - i + (i < D / 2 ? 2 * i : 2 * (i - D / 2) + 1);
}

static int write_vector(dw_st_writer *w, const dw_tensor *t, dw_st_dtype dtype, size_t D, dw_err *err) {
    int rc = 0;
    for (size_t i = 0; i < t->ne[0] && !rc; i++) {
        float v;
        memcpy(&v, t->data + (D ? gguf_row(i, D) : i) * sizeof v, sizeof v);
        const uint16_t half = dtype == DW_ST_F16 ? dw_f32_to_f16(v) : dw_f32_to_bf16(v);
        rc = dtype == DW_ST_F32 ? dw_st_write(w, &v, sizeof v, err) : dw_st_write(w, &half, sizeof half, err);
    }
    return rc;
}

static int write_matrix(dw_st_writer *w, const dw_tensor *t, size_t D, dw_err *err) {
    if (!D) return dw_st_write(w, t->data, t->n_bytes, err);
    int rc = 0;
    for (size_t r = 0; r < t->ne[1] && !rc; r++) rc = dw_st_write(w, t->data + gguf_row(r, D) * dw_tensor_row_bytes(t), dw_tensor_row_bytes(t), err);
    return rc;
}

static int write_weights(const dw_model *m, const char *path, dw_err *err) {
    const dw_gguf *g = m->gguf;
    dw_st_dtype matrices, *dtype = dw_alloc(dw_gguf_n_tensors(g), sizeof *dtype, "types of tensors", err);
    dw_st_writer *w = dtype ? dw_st_writer_new(path, err) : NULL;
    int rc = w ? 0 : -1;
    dtype_of(m->net.token_embd.type, &matrices);
    for (size_t i = 0; i < dw_gguf_n_tensors(g) && !rc; i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        char name[128], permute;
        if (!hf_name(t, name, sizeof name, &permute)) continue;
        dtype_of(t->type, &dtype[i]);
        if (t->n_dims == 1) dtype[i] = vector_dtype(t, matrices);
        dw_st_add_tensor(w, name, dtype[i], t->n_dims, t->n_dims == 1 ? t->ne : (size_t[]){t->ne[1], t->ne[0]});
    }
    if (!rc) rc = dw_st_begin(w, err);
    for (size_t i = 0; i < dw_gguf_n_tensors(g) && !rc; i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        char name[128], permute;
        if (!hf_name(t, name, sizeof name, &permute)) continue;
        const size_t D = permute && !m->arch->rope_neox ? (size_t)m->net.hp.head_dim : 0;
        rc = t->n_dims == 1 ? write_vector(w, t, dtype[i], D, err) : write_matrix(w, t, D, err);
    }
    if (!rc) rc = dw_st_commit(w, err);
    dw_st_writer_free(w);
    free(dtype);
    return rc;
}

/* ---- config.json and the tokenizer ------------------------------------------------------------------------- */

static int write_text(const char *path, const char *text, size_t size, dw_err *err) {
    dw_out *out = dw_out_open(path, err);
    const int rc = !out || dw_out_write(out, text, size, err) || dw_out_commit(out, err) ? -1 : 0;
    dw_out_free(out);
    return rc;
}

/* The list with an entry a layer, where there is one, loses those of dropped layers. */
static int drop_layer_types(json_t *config, const dw_plan *plan, const char *from, dw_err *err) {
    json_t *list = json_object_get(config, "layer_types");
    if (!json_is_array(list)) return 0;
    if (json_array_size(list) != (size_t)plan->n_layer)
        return dw_fail(err, "'%s': 'layer_types' has %zu entries, the model had %d layers", from, json_array_size(list), plan->n_layer);
    for (int l = plan->n_layer - 1; l >= 0; l--)
        if (plan->layer[l].drop && json_array_remove(list, (size_t)l)) return dw_fail(err, "out of memory: config.json");
    return 0;
}

static int write_config(const dw_model *m, const dw_plan *plan, const char *from, const char *to, dw_err *err) {
    const dw_hparams *hp = &m->net.hp;
    json_t *config = dw_json_load(from, MAX_CONFIG_BYTES, DW_JSON_TREE, err);
    if (!config) return -1;
    int rc = -1;
    const json_int_t n_embd = json_integer_value(json_object_get(config, "hidden_size")), n_layer = json_integer_value(json_object_get(config, "num_hidden_layers"));
    if (n_embd != hp->n_embd || n_layer != plan->n_layer) {
        dw_fail(err, "'%s' has %lld layers of width %lld, the model was cut from %d of %d: give the folder that it came from", from, (long long)n_layer, (long long)n_embd,
                plan->n_layer, hp->n_embd);
    } else if (!drop_layer_types(config, plan, from, err)) {
        json_object_del(config, "quantization"); // the weights are plain now
        json_object_del(config, "quantization_config");
        char *text = NULL;
        if (!json_object_set_new(config, "intermediate_size", json_integer(hp->n_ff[0])) && !json_object_set_new(config, "num_hidden_layers", json_integer(hp->n_layer)))
            text = json_dumps(config, JSON_INDENT(2));
        rc = text ? write_text(to, text, strlen(text), err) : dw_fail(err, "out of memory: config.json");
        free(text);
    }
    json_decref(config);
    return rc;
}

static int copy_file(const char *from, const char *to, dw_err *err) {
    dw_map map;
    if (dw_map_file(&map, from, err)) return -1;
    const int rc = write_text(to, (const char *)map.data, map.size, err);
    dw_unmap(&map);
    return rc;
}

/* ---- the folder --------------------------------------------------------------------------------------------- */

static const char *const files[] = {"model.safetensors", "config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
                                    "vocab.json", "merges.txt", "added_tokens.json", "generation_config.json", "chat_template.jinja", NULL};

static int write_file(const dw_model *m, const dw_plan *plan, const char *from, const char *to, const char *file, dw_err *err) {
    if (!strcmp(file, "model.safetensors")) return write_weights(m, to, err);
    if (!strcmp(file, "config.json")) return write_config(m, plan, from, to, err);
    return dw_file_exists(from) ? copy_file(from, to, err) : 0;
}

static int fill_folder(const dw_model *m, const dw_plan *plan, const char *checkpoint, dw_out_folder *folder, dw_err *err) {
    int rc = 0;
    for (int i = 0; files[i] && !rc; i++) {
        char *from = dw_format(err, "%s/%s", checkpoint, files[i]);
        const char *to = dw_out_folder_file(folder, files[i], err);
        rc = from && to ? write_file(m, plan, from, to, files[i], err) : -1;
        free(from);
    }
    return rc;
}

int prune_hf_write(const char *model, const dw_plan *plan, const char *checkpoint, const char *out, dw_err *err) {
    dw_model *m = dw_model_open(model, err);
    dw_out_folder *folder = m ? dw_out_folder_open(out, err) : NULL;
    const int rc = !folder || fill_folder(m, plan, checkpoint, folder, err) || dw_out_folder_commit(folder, err) ? -1 : 0;
    dw_out_folder_free(folder);
    dw_model_close(m);
    return rc;
}
