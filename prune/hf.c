/* hf.c - writes a checkpoint folder beside a cut model. */
#include "prune/hf.h"
#include "kit/lineage.h"
#include "kit/safetensors.h"
#include "prune/scores.h"
#include "text/json.h"

#include "model/model.h"

#include <errno.h>
#include <jansson.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_CONFIG_BYTES = 1 << 24 };

/* ---- names and types --------------------------------------------------------------------------------------- */

/* The row of a tensor that checkpoints have, and its name there in *hf; NULL: checkpoints do not have it. */
static const dw_tensor_row *find_hf(const dw_tensor *t, dw_tensor_name *hf) {
    int layer;
    bool bias;
    const dw_tensor_row *row = dw_tensor_row_find(t->name, &layer, &bias);
    if (!row || !row->hf || (bias && row->no_hf_bias)) return NULL;
    *hf = dw_name_hf(row, layer, bias);
    return row;
}

static const char *const files[] = {
    "model.safetensors",       "config.json", "tokenizer.json", "tokenizer.model",   "tokenizer_config.json",
    "special_tokens_map.json", "vocab.json",  "merges.txt",     "added_tokens.json", "generation_config.json",
    "chat_template.jinja",     NULL};

/* The model is written before these are copied, so it must not take the place of one. */
static int name_inputs(const char *checkpoint, dw_err *err) {
    int rc = 0;
    for (int i = 0; files[i] && !rc; i++) {
        char *path = dw_format(err, "%s/%s", checkpoint, files[i]);
        rc = path ? dw_input_named(path, err) : -1;
        free(path);
    }
    return rc;
}

/* The class in config.json; "": it names none. */
static const char *class_of(const json_t *config) {
    const char *name = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    return name ? name : "";
}

static json_int_t number_of(const json_t *config, dw_key key) {
    return json_integer_value(json_object_get(config, dw_keys[key].config));
}

/* The folder's config.json goes with the model's weights, so it must be of the same class and shape. */
static int compare_config(const dw_model *m, const json_t *config, const char *checkpoint, dw_err *err) {
    const dw_hparams *hp = &m->net.hp;
    const char *class = class_of(config);
    const json_int_t n_embd = number_of(config, DW_KEY_N_EMBD), n_layer = number_of(config, DW_KEY_N_LAYER),
                     n_vocab = number_of(config, DW_KEY_N_VOCAB);
    if (class[0] && dw_arch_of_hf(class) != m->arch)
        return dw_fail(err, "'%s' is a checkpoint of class %s, the model is %s; give the folder that it came from",
                       checkpoint, class, m->arch->name);
    if (n_embd != hp->n_embd || n_layer != hp->n_layer)
        return dw_fail(err,
                       "'%s' has %lld layers of width %lld, the model has %d of %d; give the folder that it came from",
                       checkpoint, (long long)n_layer, (long long)n_embd, hp->n_layer, hp->n_embd);
    if (n_vocab && n_vocab != hp->n_vocab)
        return dw_fail(err, "'%s' has a vocabulary of %lld, the model of %d; give the folder that it came from",
                       checkpoint, (long long)n_vocab, hp->n_vocab);
    return 0;
}

static int check_config(const dw_model *m, const char *checkpoint, dw_err *err) {
    char *path = dw_format(err, "%s/config.json", checkpoint);
    if (!path) return -1;
    json_t *config = NULL;
    int rc = -1;
    if (!dw_file_exists(path))
        dw_fail(err, "'%s' has no config.json; give the checkpoint folder that the model came from", checkpoint);
    else if ((config = dw_json_load(path, MAX_CONFIG_BYTES, DW_JSON_TREE, err)))
        rc = compare_config(m, config, checkpoint, err);
    json_decref(config);
    free(path);
    return rc;
}

int prune_hf_check(const dw_model *m, const char *checkpoint, const char *out, dw_err *err) {
    if (!m->arch->hf_class[0])
        return dw_fail(err, "architecture '%s' has no checkpoint folder: --hf needs one that transformers knows",
                       m->arch->name);
    for (size_t i = 0; i < dw_gguf_n_tensors(m->gguf); i++) {
        const dw_tensor *t = dw_gguf_tensor(m->gguf, i);
        dw_tensor_name name;
        kit_st_dtype dtype;
        if (!kit_st_dtype_of(t->type, &dtype))
            return dw_fail(err, "tensor '%s' is %s; --hf writes F32, F16 and BF16 only", t->name, t->type->name);
        if (!find_hf(t, &name) && strcmp(t->name, "rope_freqs.weight") != 0) // which config.json has as numbers
            return dw_fail(err, "tensor '%s' has no name in transformers; --hf cannot write it", t->name);
    }
    if (dw_file_exists(out)) return dw_fail(err, "'%s' exists; --hf writes a new folder", out);
    char *copy = dw_strdup(out, err);
    if (!copy) return -1;
    const bool can_write = !access(dirname(copy), W_OK | X_OK);
    free(copy);
    if (!can_write) return dw_fail(err, "cannot create '%s': %s", out, strerror(errno));
    return check_config(m, checkpoint, err) ? -1 : name_inputs(checkpoint, err);
}

/* ---- weights ----------------------------------------------------------------------------------------------- */

/* Vectors are F32 in GGUF.  They take the type of the matrices when that changes no value. */
static kit_st_dtype vector_dtype(const dw_tensor *t, kit_st_dtype matrices) {
    for (size_t i = 0; i < t->ne[0]; i++) {
        float v;
        memcpy(&v, t->data + i * sizeof v, sizeof v);
        const float back = matrices == KIT_ST_F16 ? dw_f16_to_f32(dw_f32_to_f16(v)) : dw_bf16_to_f32(dw_f32_to_bf16(v));
        if (back != v) return KIT_ST_F32;
    }
    return matrices;
}

static int write_vector(kit_st_writer *w, const dw_tensor *t, kit_st_dtype dtype, size_t D, dw_err *err) {
    int rc = 0;
    for (size_t i = 0; i < t->ne[0] && !rc; i++) {
        float v;
        memcpy(&v, t->data + (D ? dw_permuted_row(i, D) : i) * sizeof v, sizeof v);
        const uint16_t half = dtype == KIT_ST_F16 ? dw_f32_to_f16(v) : dw_f32_to_bf16(v);
        rc = dtype == KIT_ST_F32 ? kit_st_write(w, &v, sizeof v, err) : kit_st_write(w, &half, sizeof half, err);
    }
    return rc;
}

static int write_matrix(kit_st_writer *w, const dw_tensor *t, size_t D, dw_err *err) {
    if (!D) return kit_st_write(w, t->data, t->n_bytes, err);
    int rc = 0;
    const size_t row_bytes = dw_tensor_row_bytes(t);
    for (size_t r = 0; r < t->ne[1] && !rc; r++)
        rc = kit_st_write(w, t->data + dw_permuted_row(r, D) * row_bytes, row_bytes, err);
    return rc;
}

static int put_lineage(kit_st_writer *w, const dw_gguf *g, dw_err *err) {
    dw_err own = {0};
    char *text = lineage_to_json(g, &own);
    if (text) kit_st_set_metadata(w, LINEAGE_KEY, text);
    free(text);
    return own.text[0] ? dw_fail(err, "%s", own.text) : 0;
}

static int write_weights(const dw_model *m, const char *path, dw_err *err) {
    const dw_gguf *g = m->gguf;
    kit_st_dtype matrices, *dtype = dw_alloc(dw_gguf_n_tensors(g), sizeof *dtype, "types of tensors", err);
    kit_st_writer *w = dtype ? kit_st_writer_new(path, err) : NULL;
    int rc = w ? put_lineage(w, g, err) : -1;
    kit_st_dtype_of(m->net.token_embd.type, &matrices);
    for (size_t i = 0; i < dw_gguf_n_tensors(g) && !rc; i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        dw_tensor_name name;
        if (!find_hf(t, &name)) continue;
        kit_st_dtype_of(t->type, &dtype[i]);
        if (t->n_dims == 1) dtype[i] = vector_dtype(t, matrices);
        kit_st_add_tensor(w, name.text, dtype[i], t->n_dims, t->n_dims == 1 ? t->ne : (size_t[]){t->ne[1], t->ne[0]});
    }
    if (!rc) rc = kit_st_begin(w, err);
    for (size_t i = 0; i < dw_gguf_n_tensors(g) && !rc; i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        dw_tensor_name name;
        const dw_tensor_row *row = find_hf(t, &name);
        if (!row) continue;
        const size_t D = row->is_turned && !m->net.rope_neox ? (size_t)m->net.hp.head_dim : 0;
        rc = t->n_dims == 1 ? write_vector(w, t, dtype[i], D, err) : write_matrix(w, t, D, err);
    }
    if (!rc) rc = kit_st_commit(w, err);
    kit_st_writer_free(w);
    free(dtype);
    return rc;
}

/* ---- config.json and the tokenizer ------------------------------------------------------------------------- */

/* layer_types has an entry for each layer.  Those of dropped layers are removed. */
static int drop_layer_types(json_t *config, const kit_plan *plan, const char *from, dw_err *err) {
    json_t *list = json_object_get(config, "layer_types");
    if (!json_is_array(list)) return 0;
    if (json_array_size(list) != (size_t)plan->n_layer)
        return dw_fail(err, "'%s': 'layer_types' has %zu entries, the model had %d layers", from, json_array_size(list),
                       plan->n_layer);
    for (int l = plan->n_layer - 1; l >= 0; l--)
        if (plan->layer[l].drop && json_array_remove(list, (size_t)l))
            return dw_fail(err, "out of memory: config.json");
    return 0;
}

static int write_config(const dw_model *m, const kit_plan *plan, const char *from, const char *to, dw_err *err) {
    const dw_hparams *hp = &m->net.hp;
    json_t *config = dw_json_load(from, MAX_CONFIG_BYTES, DW_JSON_TREE, err);
    if (!config) return -1;
    int rc = -1;
    if (!drop_layer_types(config, plan, from, err)) {
        json_object_del(config, "quantization"); // the weights are plain now
        json_object_del(config, "quantization_config");
        char *text = NULL;
        const bool has_act = m->net.act == m->arch->act ||
                             !json_object_set_new(config, "hidden_act", json_string(dw_acts[m->net.act].name));
        if (has_act && !json_object_set_new(config, LINEAGE_IN_CONFIG, json_string("model.safetensors")) &&
            !json_object_set_new(config, dw_keys[DW_KEY_N_FF].config, json_integer(hp->n_ff[0])) &&
            !json_object_set_new(config, dw_keys[DW_KEY_N_LAYER].config, json_integer(hp->n_layer)))
            text = json_dumps(config, JSON_INDENT(2));
        rc = text ? prune_write_whole(to, text, strlen(text), err) : dw_fail(err, "out of memory: config.json");
        free(text);
    }
    json_decref(config);
    return rc;
}

static int copy_file(const char *from, const char *to, dw_err *err) {
    dw_map map;
    if (dw_map_file(&map, from, err)) return -1;
    const int rc = prune_write_whole(to, map.data, map.size, err);
    dw_unmap(&map);
    return rc;
}

/* ---- the folder --------------------------------------------------------------------------------------------- */

static int write_file(const dw_model *m, const kit_plan *plan, const char *from, const char *to, const char *file,
                      dw_err *err) {
    if (!strcmp(file, "model.safetensors")) return write_weights(m, to, err);
    if (!strcmp(file, "config.json")) return write_config(m, plan, from, to, err);
    return dw_file_exists(from) ? copy_file(from, to, err) : 0;
}

static int fill_folder(const dw_model *m, const kit_plan *plan, const char *checkpoint, dw_out_folder *folder,
                       dw_err *err) {
    int rc = 0;
    for (int i = 0; files[i] && !rc; i++) {
        char *from = dw_format(err, "%s/%s", checkpoint, files[i]);
        const char *to = dw_out_folder_file(folder, files[i], err);
        rc = from && to ? write_file(m, plan, from, to, files[i], err) : -1;
        free(from);
    }
    return rc;
}

int prune_hf_write(const char *model, const kit_plan *plan, const char *checkpoint, const char *out, dw_err *err) {
    dw_model *m = dw_model_open(model, err);
    dw_out_folder *folder = m ? dw_out_folder_open(out, err) : NULL;
    int rc = folder ? fill_folder(m, plan, checkpoint, folder, err) : -1;
    if (!rc) rc = dw_out_folder_commit(folder, err);
    dw_out_folder_free(folder);
    dw_model_close(m);
    return rc;
}
