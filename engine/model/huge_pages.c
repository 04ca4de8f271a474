/* huge_pages.c - a model's matrices, copied into huge pages.
 *
 * A token reads every weight once.  With pages of 4 KB a core looks up an address 512 times as often, which may be what
 * makes reading slower (figures: results/speed.md). */
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

typedef struct copying {
    const dw_gguf *gguf;
    dw_tensor **matrix; // in the order of their places
    size_t n, cap;
    size_t *place;      // of each in `memory`
    dw_pages memory;
    dw_err *err;
} copying;

static bool is_matrix(const dw_tensor *t) { return t->name && t->ne[1] > 1; }

static int add(copying *c, dw_tensor *t) {
    if (!is_matrix(t)) return 0;
    if (dw_grow(&c->matrix, &c->cap, c->n + 1, sizeof *c->matrix, "a list of matrices", c->err)) return -1;
    c->matrix[c->n++] = t;
    return 0;
}

/* The output first: it is the largest, and threads take one matrix at a time.  Of embeddings a token reads one row, so
 * they stay in the file. */
static int find_matrices(copying *c, dw_net *net) {
    const dw_tensor_row *const tables[] = {dw_attention_rows, dw_ffn_rows, dw_cold_rows, dw_gated_rows,
                                           dw_predictor_rows};
    if (add(c, &net->output)) return -1;
    for (int l = 0; l < net->hp.n_layer; l++)
        for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
            for (const dw_tensor_row *r = tables[i]; r->gguf; r++)
                if (r->at && add(c, dw_tensor_at(&net->layer[l], r->at))) return -1;
    return 0;
}

/* Finds the matrices and gives each a place; *n_bytes: what all take. */
static int place_matrices(copying *c, dw_net *net, size_t *n_bytes) {
    dw_layout count = {0};
    if (find_matrices(c, net)) return -1;
    c->place = dw_alloc(c->n, sizeof *c->place, "places of matrices", c->err);
    if (!c->place) return -1;
    for (size_t i = 0; i < c->n; i++) {
        c->place[i] = count.used;
        dw_layout_take(&count, c->matrix[i]->n_bytes, 1);
    }
    *n_bytes = count.used;
    return 0;
}

static void release(copying *c) {
    free(c->matrix);
    free(c->place);
}

size_t dw_model_copied_bytes(dw_model *m, dw_err *err) {
    copying c = {.err = err};
    size_t n_bytes = 0;
    const int rc = place_matrices(&c, &m->net, &n_bytes);
    release(&c);
    return rc ? 0 : n_bytes;
}

const dw_pages *dw_model_copies(const dw_model *m) { return &m->matrices; }

static void copy(void *arg, size_t i) {
    const copying *c = arg;
    dw_tensor *t = c->matrix[i];
    uint8_t *to = c->memory.data + c->place[i];
    memcpy(to, t->data, t->n_bytes);
    dw_gguf_release(c->gguf, t->data, t->n_bytes);
    t->data = to;
}

int dw_model_to_huge_pages(dw_model *m, dw_pool *pool, dw_err *err) {
    if (m->matrices.data) return 0;
    if (!dw_pages_may_be_huge())
        return dw_fail(err, "this system gives no huge pages (/sys/kernel/mm/transparent_hugepage/enabled); "
                            "run without them");
    copying c = {.gguf = m->gguf, .err = err};
    size_t n_bytes = 0;
    const int rc = place_matrices(&c, &m->net, &n_bytes) || dw_pages_new(&c.memory, n_bytes, true, err) ? -1 : 0;
    if (!rc) {
        dw_pool_each(pool, c.n, copy, &c);
        if (m->net.hp.tied) m->net.token_embd.data = m->net.output.data;
        m->net.in_huge_pages = true;
        m->matrices = c.memory;
    }
    release(&c);
    return rc;
}
