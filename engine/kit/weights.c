/* weights.c - importances of input columns, from activation statistics or an importance file (weights.h). */
#include "kit/weights.h"
#include "kit/hash_cache.h"
#include "qtypes/encoding.h"

#include <string.h>

/* Is the model that the statistics are of this one, or one that it was made of?  A cut between moves neurons and
 * layers. */
typedef struct ancestry {
    const char *wanted;
    bool found, was_cut;
} ancestry;

static void look(void *ancestry_pointer, const char *tool_name, const char *name, const char *sha256) {
    (void)name;
    ancestry *a = ancestry_pointer;
    a->found |= !strcmp(sha256, a->wanted);
    a->was_cut |= a->found && !strcmp(tool_name, "cut");
}

static int check_origin(const kit_stats *s, const dw_gguf *g, const char sha256[65], const char *path, dw_err *err) {
    ancestry a = {.wanted = s->model_sha256};
    if (!strcmp(s->model_sha256, sha256)) return 0;
    if (lineage_inputs(g, look, &a, err)) return -1;
    if (a.was_cut)
        return dw_fail(
            err, "'%s' holds statistics from before '%s' was cut, whose neurons stand elsewhere now; collect them anew",
            path, dw_gguf_path(g));
    if (a.found) return 0;
    return dw_fail(
        err, "'%s' holds statistics of another model: neither '%s' nor a file that it was made of; collect them anew",
        path, dw_gguf_path(g));
}

static int from_stats(kit_weights *w, const dw_model *m, const char model_sha256[65], const char *path, dw_err *err) {
    const dw_gguf *g = dw_model_gguf(m);
    const dw_hparams *hp = dw_model_hparams(m);
    if (kit_stats_open(&w->stats, path, err) || check_origin(&w->stats, g, model_sha256, path, err)) return -1;
    if (kit_stats_check_shape(&w->stats, path, hp->n_layer, hp->n_embd, hp->n_ff, err)) return -1;
    return kit_imatrix_from_stats(&w->matrix, &w->stats, g, true, err) ? dw_fail_in(err, "'%s'", path) : 0;
}

/* An importance file does not say its model.  One of more layers is of another, or of this one before layers went. */
static int check_layers(const kit_imatrix *im, int n_layer, const char *path, dw_err *err) {
    for (size_t i = 0; i < im->n_entry; i++) {
        if (dw_layer_of(im->entry[i].name, NULL) >= n_layer)
            return dw_fail(err,
                           "'%s' holds importances of '%s', the model has %d layers: these are of another model, or of "
                           "this one before it was cut",
                           path, im->entry[i].name, n_layer);
    }
    return 0;
}

static int from_imatrix(kit_weights *w, const dw_model *m, const char *path, dw_err *err) {
    if (kit_imatrix_read(&w->matrix, path, err)) return -1;
    return check_layers(&w->matrix, dw_model_hparams(m)->n_layer, path, err);
}

int kit_weights_read(kit_weights *w, const dw_model *m, const char model_sha256[65], const char *path, dw_err *err) {
    *w = (kit_weights){.is_stats = kit_stats_is(path)};
    int rc = kit_sha256_input(path, w->sha256, err);
    if (!rc) rc = w->is_stats ? from_stats(w, m, model_sha256, path, err) : from_imatrix(w, m, path, err);
    if (rc) {
        kit_weights_release(w);
        return -1;
    }
    for (size_t i = 0; i < w->matrix.n_entry; i++)
        dw_weights_raise(w->matrix.entry[i].mean, (size_t)w->matrix.entry[i].n);
    return 0;
}

void kit_weights_release(kit_weights *w) {
    kit_imatrix_release(&w->matrix);
    if (w->is_stats) kit_stats_release(&w->stats);
    w->is_stats = false;
}

/* Zeros alone say nothing: encoders would divide by their sum. */
static bool says_something(const kit_imatrix_entry *e) {
    for (int j = 0; j < e->n; j++)
        if (e->mean[j] > 0) return true;
    return false;
}

int kit_weights_find(const kit_weights *w, const dw_tensor *t, const float **mean, dw_err *err) {
    const kit_imatrix_entry *e = kit_imatrix_find(&w->matrix, t->name);
    const bool fits = e && (size_t)e->n == t->ne[0];
    *mean = fits && says_something(e) ? e->mean : NULL;
    if (!e || fits || !strcmp(t->name, "token_embd.weight")) return 0; // some files count tokens there, not columns
    return dw_fail(err,
                   "tensor '%s' has rows of %zu values and %d importances: these are of another model, or of this one "
                   "before it was cut",
                   t->name, t->ne[0], e->n);
}

int kit_weights_fail(const char *path, const dw_tensor *t, const char *mixture, dw_err *err) {
    if (path)
        return dw_fail(err, "tensor '%s': %s is not made without importances, and '%s' has none of it; choose Q2_K",
                       t->name, mixture, path);
    return dw_fail(err, "tensor '%s': %s is not made without importances; give them by -s, or choose Q2_K", t->name,
                   mixture);
}

void kit_weights_put_keys(const kit_weights *w, const char *path, dw_gguf_writer *to) {
    static const char file[] = "quantize.imatrix.file", dataset[] = "quantize.imatrix.dataset",
                      entries[] = "quantize.imatrix.entries_count", chunks[] = "quantize.imatrix.chunks_count";
    const char *const keys[] = {file, dataset, entries, chunks};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) dw_gguf_unset(to, keys[i]);
    if (!path) return;
    dw_gguf_set_text(to, file, dw_base_name(path));
    if (*w->matrix.dataset) dw_gguf_set_text(to, dataset, w->matrix.dataset);
    dw_gguf_set_u32(to, entries, (uint32_t)w->matrix.n_entry);
    if (w->matrix.n_chunks > 0) dw_gguf_set_u32(to, chunks, (uint32_t)w->matrix.n_chunks);
}

int kit_weights_stamp(const kit_weights *w, const char *path, lineage *l, dw_err *err) {
    if (lineage_input_hashed(l, path, w->sha256, err)) return -1;
    if (!w->is_stats && lineage_unnamed_data(l, path, err)) return -1;
    return lineage_texts(l, w->stats.text, w->stats.n_text, err);
}
