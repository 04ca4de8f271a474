/* layout_compare.c - what was written, held against the parent value by value. */
#include "prune/cutting.h"

#include "model/model.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { N_PIECE = 16 };

typedef struct comparison {
    const prune_tensor *t;
    const dw_tensor *written;
    float *values; // N_PIECE times room for three rows
    size_t n_values;
    atomic_size_t n_wrong;
} comparison;

static bool is_zero(const uint8_t *row, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (row[i]) return false;
    return true;
}

/* Columns that were copied hold the bits that the parent's hold; both are decoded, so that a block in the wrong place
 * shows whatever way it was moved. */
static bool same_columns(const prune_tensor *t, const uint8_t *row, const uint8_t *source, float *values) {
    float *theirs = values, *ours = values + t->from[0]->ne[0];
    t->from[0]->type->decode(source, theirs, t->from[0]->ne[0]);
    t->type->decode(row, ours, t->ne[0]);
    for (size_t j = 0; j < t->ne[0]; j++) {
        if (t->map[j] < 0 ? ours[j] != 0 : memcmp(&ours[j], &theirs[t->map[j]], sizeof *ours) != 0) return false;
    }
    return true;
}

static bool same_row(const prune_tensor *t, size_t r, const uint8_t *row, float *values) {
    const size_t row_bytes = prune_tensor_row_bytes(t);
    const uint8_t *source = prune_tensor_source(t, r);
    if (t->move == PRUNE_ROWS) return source ? !memcmp(row, source, row_bytes) : is_zero(row, row_bytes);
    if (t->move == PRUNE_BLOCKS) return same_columns(t, row, source, values);
    uint8_t *again = (uint8_t *)(values + t->from[0]->ne[0] + t->ne[0]); // at most as large as the values of a row
    dw_encoding e = prune_tensor_encoding(t);
    prune_tensor_encode(t, &e, r, values, again);
    return !memcmp(row, again, row_bytes);
}

static void compare_piece(void *arg, size_t piece) {
    comparison *c = arg;
    const size_t n_rows = prune_tensor_n_rows(c->t), row_bytes = prune_tensor_row_bytes(c->t);
    const size_t first = piece * n_rows / N_PIECE, end = (piece + 1) * n_rows / N_PIECE;
    size_t n_wrong = 0;
    for (size_t r = first; r < end; r++) n_wrong += !same_row(c->t, r, c->written->data + r * row_bytes, c->values + piece * c->n_values);
    atomic_fetch_add(&c->n_wrong, n_wrong);
}

static int compare_tensor(comparison *c, const dw_gguf *g, const prune_tensor *t, dw_pool *pool, dw_err *err) {
    c->t = t;
    c->written = dw_gguf_find_tensor(g, t->name);
    if (!c->written || c->written->type != t->type || c->written->ne[0] != t->ne[0] || c->written->ne[1] != t->ne[1])
        return dw_fail(err, "tensor '%s' was not written as planned", t->name);
    dw_pool_each(pool, N_PIECE, compare_piece, c);
    const size_t n_wrong = atomic_exchange(&c->n_wrong, 0);
    return n_wrong ? dw_fail(err, "tensor '%s' differs from its parent in %zu of %zu rows", t->name, n_wrong, prune_tensor_n_rows(t)) : 0;
}

int prune_layout_compare(const prune_layout *o, const char *path, dw_pool *pool, prune_show *show, void *ctx, dw_err *err) {
    dw_model *m = dw_model_open(path, err);
    if (!m) return -1;
    comparison c = {0};
    for (size_t i = 0; i < o->n_tensor; i++) {
        const size_t n = o->tensor[i].from[0]->ne[0] + 2 * o->tensor[i].ne[0];
        if (o->tensor[i].move != PRUNE_ROWS && n > c.n_values) c.n_values = n;
    }
    c.values = dw_alloc(N_PIECE * (c.n_values + 1), sizeof *c.values, "rows to compare", err);
    int rc = c.values ? 0 : -1;
    if (!rc && dw_gguf_n_tensors(m->gguf) != o->n_tensor)
        rc = dw_fail(err, "%zu tensors were written, %zu were planned", dw_gguf_n_tensors(m->gguf), o->n_tensor);
    for (size_t i = 0; i < o->n_tensor && !rc; i++) {
        rc = compare_tensor(&c, m->gguf, &o->tensor[i], pool, err);
        if (show) show(ctx, (double)(prune_tensor_n_rows(&o->tensor[i]) * prune_tensor_row_bytes(&o->tensor[i])));
    }
    free(c.values);
    dw_model_close(m);
    return rc ? dw_fail_in(err, "'%s'", path) : 0;
}
