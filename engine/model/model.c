/* model.c - a model: a mapped file bound to an architecture. */
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

/* A folder is what checkpoints are, so it gets the command that makes a model file of it. */
static int check_no_folder(const char *path, dw_err *err) {
    if (!dw_is_folder(path)) return 0;
    return dw_fail(err, "'%s' is a folder; make a model file of it: deadwood convert %s -o M.gguf", path, path);
}

dw_model *dw_model_open(const char *path, dw_err *err) {
    if (check_no_folder(path, err)) return NULL;
    dw_model *m = dw_alloc(1, sizeof *m, "a model", err);
    if (!m) return NULL;
    m->gguf = dw_gguf_open(path, err);
    if (!m->gguf) goto fail;
    if (dw_model_bind(m, err)) {
        dw_fail_in(err, "'%s'", path);
        goto fail;
    }
    m->net.rope_factor = m->rope_factors;
    m->net.rope_magnitude = m->rope_magnitude;
    return m;
fail:
    dw_model_close(m);
    return NULL;
}

int dw_model_opens(void *nothing, const char *path, dw_err *err) {
    (void)nothing;
    dw_model *m = dw_model_open(path, err);
    dw_model_close(m);
    return m ? 0 : -1;
}

void dw_model_close(dw_model *m) {
    if (!m) return;
    free(m->net.layer);
    free(m->widths);
    free(m->rope_factors);
    dw_pages_free(&m->matrices);
    dw_gguf_close(m->gguf);
    free(m);
}

const dw_hparams *dw_model_hparams(const dw_model *m) { return &m->net.hp; }
const char *dw_model_activation(const dw_model *m) { return dw_acts[m->net.act].name; }
const dw_gguf *dw_model_gguf(const dw_model *m) { return m->gguf; }

int dw_model_need_whole_ffn(const dw_model *m, dw_err *err) {
    if (!m->is_in_two_parts) return 0;
    return dw_fail(err, "'%s' has its FFN in two parts (hot and cold neurons), which this operation does not support; "
                        "give the model that it was made from", dw_gguf_path(m->gguf));
}

int dw_model_need_ungated(const dw_model *m, const char *verb, dw_err *err) {
    if (!dw_model_is_gated(m)) return 0;
    return dw_fail(err, "'%s' is gated; %s the model before gate", dw_gguf_path(m->gguf), verb);
}

/* Tensors that gate and train add (formats/ffn_gated.h) do not count: ffn_down_t is a copy of ffn_down. */
static bool is_dense_weight(const dw_tensor *t) {
    return !strstr(t->name, ".ffn_down_t.") && !strstr(t->name, ".ffn_pred_");
}

size_t dw_model_n_params(const dw_model *m) {
    size_t n = 0;
    for (size_t i = 0; i < dw_gguf_n_tensors(m->gguf); i++) {
        const dw_tensor *t = dw_gguf_tensor(m->gguf, i);
        if (is_dense_weight(t)) n += dw_tensor_n_values(t);
    }
    return n;
}

/* All tensors, except that only one row of an untied embedding is read. */
size_t dw_model_bytes_per_token(const dw_model *m) {
    size_t n = 0;
    for (size_t i = 0; i < dw_gguf_n_tensors(m->gguf); i++) {
        const dw_tensor *t = dw_gguf_tensor(m->gguf, i);
        if (is_dense_weight(t)) n += t->n_bytes;
    }
    const dw_tensor *embd = &m->net.token_embd;
    return m->net.hp.tied ? n : n - embd->n_bytes + dw_tensor_row_bytes(embd);
}
