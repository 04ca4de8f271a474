/* layout_compare.c - compares the new file with its parent, value by value. */
#include "prune/cutting.h"

#include "model/model.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct comparison { // of one tensor
    const prune_tensor *t;
    atomic_size_t n_wrong;
} comparison;

static bool is_zero(const uint8_t *row, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (row[i]) return false;
    return true;
}

/* Copied columns have the same values, bit for bit, as the parent's columns that the map names.  Both rows are decoded,
 * so this does not repeat how the blocks were moved. */
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

static void compare_rows(void *comparison_pointer, const kit_piece *p) {
    comparison *c = comparison_pointer;
    const size_t row_bytes = prune_tensor_row_bytes(c->t);
    size_t n_wrong = 0;
    for (size_t i = 0; i < p->n; i++) n_wrong += !same_row(c->t, p->first + i, p->written + i * row_bytes, p->scratch);
    atomic_fetch_add(&c->n_wrong, n_wrong);
}

static int compare_tensor(kit_stream *s, const dw_gguf *g, const prune_tensor *t, dw_err *err) {
    comparison c = {.t = t};
    const dw_tensor *written = dw_gguf_find_tensor(g, t->name);
    if (!written || written->type != t->type || written->ne[0] != t->ne[0] || written->ne[1] != t->ne[1])
        return dw_fail(err, "tensor '%s' was not written as planned", t->name);
    const kit_rows r = {.n_rows = prune_tensor_n_rows(t),
                        .row_bytes = prune_tensor_row_bytes(t),
                        .written = written->data,
                        .n_scratch = t->move == PRUNE_ROWS ? 0 : t->from[0]->ne[0] + 2 * t->ne[0],
                        .make = compare_rows,
                        .ctx = &c};
    if (kit_stream_tensor(s, &r, err)) return -1;
    return c.n_wrong ? dw_fail(err, "tensor '%s' differs from its parent in %zu of %zu rows", t->name,
                               (size_t)c.n_wrong, r.n_rows)
                     : 0;
}

int prune_layout_compare(const prune_layout *o, const char *path, kit_stream *s, dw_err *err) {
    dw_model *m = dw_model_open(path, err);
    if (!m) return -1;
    int rc = 0;
    if (dw_gguf_n_tensors(m->gguf) != o->n_tensor)
        rc = dw_fail(err, "%zu tensors were written, %zu were planned", dw_gguf_n_tensors(m->gguf), o->n_tensor);
    if (!rc && m->net.act != o->parent->net.act)
        rc = dw_fail(err, "its activation is %s, the parent's is %s", dw_model_activation(m),
                     dw_model_activation(o->parent));
    for (size_t i = 0; i < o->n_tensor && !rc; i++) rc = compare_tensor(s, m->gguf, &o->tensor[i], err);
    if (!rc) rc = kit_stream_end(s, err);
    dw_model_close(m);
    return rc;
}
