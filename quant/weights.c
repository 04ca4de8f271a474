/* weights.c - importances of input columns, from activation statistics or an importance file (quant.h). */
#include "quant/quant.h"
#include "tool.h"

#include <stdio.h>
#include <string.h>

/* Which statistics a matrix's input has; -1: none. */
static int input_of(const char *part) {
    static const struct { const char *part; dw_stats_input input; } rows[] = {
        {"attn_q.weight", DW_STATS_ATTN_IN},  {"attn_k.weight", DW_STATS_ATTN_IN},        {"attn_v.weight", DW_STATS_ATTN_IN},
        {"attn_qkv.weight", DW_STATS_ATTN_IN}, {"attn_output.weight", DW_STATS_ATTN_MIX}, {"ffn_gate.weight", DW_STATS_FFN_IN},
        {"ffn_up.weight", DW_STATS_FFN_IN},   {"ffn_down.weight", DW_STATS_FFN_NEURON}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(rows[i].part, part)) return (int)rows[i].input;
    return -1;
}

/* The sums of squares of a tensor's input columns, *n of them; NULL: not in the statistics. */
static const double *sums_of(const dw_stats *s, const char *name, int *n) {
    int layer, end = 0;
    *n = s->n_embd;
    if (!strcmp(name, "output.weight")) return s->output_square;
    if (sscanf(name, "blk.%d.%n", &layer, &end) < 1 || !end || layer < 0 || layer >= s->n_layer) return NULL;
    const int input = input_of(name + end);
    if (input < 0) return NULL;
    *n = s->layer[layer].n_input[input];
    return s->layer[layer].input_square[input];
}

/* Is the model that the statistics are of this one, or one that it was made of? */
typedef struct ancestry {
    const char *wanted;
    bool found;
} ancestry;

static void look(void *ancestry_pointer, const char *tool_name, const char *name, const char *sha256) {
    (void)tool_name, (void)name;
    ancestry *a = ancestry_pointer;
    a->found |= !strcmp(sha256, a->wanted);
}

static int check_origin(const dw_stats *s, const dw_gguf *g, const char sha256[65], const char *path, dw_err *err) {
    ancestry a = {s->model_sha256, !strcmp(s->model_sha256, sha256)};
    if (lineage_inputs(g, look, &a, err)) return -1;
    if (a.found) return 0;
    return dw_fail(err, "'%s' holds statistics of another model: neither '%s' nor a file that it was made of; collect them anew", path,
                   dw_gguf_path(g));
}

static int from_stats(quant_weights *w, const dw_gguf *g, const char model_sha256[65], const char *path, dw_err *err) {
    const dw_stats *s = &w->stats;
    const uint64_t n_tokens = dw_stats_n_tokens(s);
    if (check_origin(s, g, model_sha256, path, err)) return -1;
    if (!n_tokens) return dw_fail(err, "'%s' counts no tokens", path);
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const char *name = dw_gguf_tensor(g, i)->name;
        int n;
        const double *sums = sums_of(s, name, &n);
        if (sums && n > 0 && dw_imatrix_put(&w->matrix, name, n, sums, n_tokens, err)) return -1;
    }
    return 0;
}

int quant_weights_read(quant_weights *w, const dw_gguf *g, const char model_sha256[65], const char *path, dw_err *err) {
    *w = (quant_weights){.is_stats = dw_stats_is(path)};
    if (!w->is_stats) return dw_imatrix_read(&w->matrix, path, err);
    return dw_stats_read(&w->stats, path, err) || from_stats(w, g, model_sha256, path, err) ? -1 : 0;
}

void quant_weights_release(quant_weights *w) {
    dw_imatrix_release(&w->matrix);
    if (w->is_stats) dw_stats_release(&w->stats);
}

int quant_weights_find(const quant_weights *w, const dw_tensor *t, const float **mean, dw_err *err) {
    const dw_imatrix_entry *e = dw_imatrix_find(&w->matrix, t->name);
    const bool fits = e && (size_t)e->n == t->ne[0];
    *mean = fits ? e->mean : NULL;
    if (!e || fits || !strcmp(t->name, "token_embd.weight")) return 0; // some files count tokens there, not columns
    return dw_fail(err, "tensor '%s' has rows of %zu values and %d importances: these are of another model, or of this one before it was cut",
                   t->name, t->ne[0], e->n);
}
