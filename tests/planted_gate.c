/* planted_gate.c - a gated model from synth with thresholds that something reaches. */
#include "planted_gate.h"
#include "build.h"
#include "formats/ffn_gated.h"
#include "model/model.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

float planted_threshold(int layer) { return 0.05f + 0.1f * (float)layer; }

static void set_keys(dw_gguf_writer *w, const dw_gguf *g, unsigned dense) {
    float threshold[PLANTED_LAYERS];
    uint8_t is_dense[PLANTED_LAYERS];
    for (int l = 0; l < PLANTED_LAYERS; l++) {
        threshold[l] = planted_threshold(l);
        is_dense[l] = dense >> l & 1;
    }
    dw_gguf_set_keys(w, g);
    dw_gguf_set_array(w, DW_KEY_GATE_THRESHOLD, DW_KV_F32, threshold, PLANTED_LAYERS);
    dw_gguf_set_array(w, DW_KEY_GATE_DENSE, DW_KV_BOOL, is_dense, PLANTED_LAYERS);
}

static void copy(const char *from, const char *to, unsigned dense) {
    dw_err err = {0};
    dw_gguf *g = dw_gguf_open(from, &err);
    dw_gguf_writer *w = g ? dw_gguf_writer_new(to, &err) : NULL;
    if (w) set_keys(w, g, dense);
    for (size_t i = 0; w && i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        dw_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne);
    }
    int rc = w ? dw_gguf_begin(w, &err) : -1;
    for (size_t i = 0; !rc && i < dw_gguf_n_tensors(g); i++)
        rc = dw_gguf_write(w, dw_gguf_tensor(g, i)->data, dw_gguf_tensor(g, i)->n_bytes, &err);
    CHECK(!rc && !dw_gguf_commit(w, &err), "%s", err.text);
    dw_gguf_writer_free(w);
    dw_gguf_close(g);
}

const char *planted_gate(const char *name, int group, unsigned dense, int seed) {
    const char *plain = test_file("planted-plain.gguf"), *path = test_file(name);
    CHECK(!test_run("deadwood-synth --shape tiny-qwen2 --type f16 --gate --group %d --seed %d -q -o %s", group, seed,
                    plain),
          "%s", test_run_output());
    copy(plain, path, dense);
    return path;
}

const char *planted_text(const char *name, int n, int seed) {
    static const char *const words[] = {"the ",    "function ", "returns ", "a ",           "tree ",  "of ",
                                        "light, ", "und ",      "es ",      "x = y + 1;\n", "river ", "12 "};
    const char *path = test_file(name);
    test_bytes b = {0};
    dw_rng rng;
    dw_rng_seed(&rng, (uint64_t)seed);
    for (int i = 0; i < n; i++) put_text(&b, words[dw_rng_below(&rng, sizeof words / sizeof *words)]);
    save(&b, path);
    free(b.data);
    return path;
}

/* y (rows) = m . x + bias */
static void affine(const dw_tensor *m, const dw_tensor *bias, const double *x, double *y) {
    float *row = malloc(m->ne[0] * sizeof *row);
    for (size_t i = 0; i < m->ne[1]; i++) {
        m->type->decode(m->data + i * dw_tensor_row_bytes(m), row, m->ne[0]);
        y[i] = (double)((const float *)(const void *)bias->data)[i];
        for (size_t j = 0; j < m->ne[0]; j++) y[i] += (double)row[j] * x[j];
    }
    free(row);
}

bool plain_scores(const dw_model *m, int layer, const float *x, double *score) {
    const dw_layer_gate *g = &m->net.layer[layer].sparse;
    if (!g->pred_a.name) return false;
    const size_t rank = g->pred_a.ne[1], n_in = g->pred_a.ne[0];
    double *hidden = malloc(rank * sizeof *hidden), *in = malloc(n_in * sizeof *in);
    for (size_t j = 0; j < n_in; j++) in[j] = (double)x[j];
    affine(&g->pred_a, &g->pred_a_bias, in, hidden);
    for (size_t i = 0; i < rank; i++) hidden[i] = hidden[i] > 0 ? hidden[i] : 0;
    affine(&g->pred_b, &g->pred_b_bias, hidden, score);
    free(hidden), free(in);
    return true;
}
