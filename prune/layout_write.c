/* layout_write.c - the data of the smaller file, tensor by tensor. */
#include "prune/cutting.h"

#include <stdlib.h>
#include <string.h>

/* Consecutive columns that were consecutive in the parent, in bytes of a row. */
typedef struct run {
    size_t from, n_bytes;
    bool zero;
} run;

typedef struct gatherer { // of one tensor
    const prune_tensor *t;
    dw_encoding encoding; // of its rows
    run *run;             // of a row, when its columns are gathered
    size_t n_run;
} gatherer;

/* ---- rows ------------------------------------------------------------------------------------------------ */

const uint8_t *prune_tensor_source(const prune_tensor *t, size_t r) {
    size_t from = r;
    if (t->map && t->move == PRUNE_ROWS) {
        if (t->map[r] < 0) return NULL;
        from = (size_t)t->map[r];
    }
    if (t->n_dims == 1) return t->from[0]->data + from * sizeof(float);
    const dw_tensor *const *source = t->from;
    while (from >= (*source)->ne[1]) from -= (*source++)->ne[1];
    return (*source)->data + from * dw_tensor_row_bytes(*source);
}

dw_encoding prune_tensor_encoding(const prune_tensor *t) {
    return (dw_encoding){.tensor = t->name, .type = t->type, .n = t->ne[0], .weight = t->importance};
}

void prune_tensor_encode(const prune_tensor *t, dw_encoding *e, size_t r, float *values, uint8_t *out) {
    const dw_tensor *from = t->from[0];
    float *kept = values + from->ne[0];
    if (t->repaired) {
        memcpy(kept, t->repaired + r * t->n_kept, t->n_kept * sizeof *kept);
        memset(kept + t->n_kept, 0, (t->ne[0] - t->n_kept) * sizeof *kept);
    } else {
        from->type->decode(prune_tensor_source(t, r), values, from->ne[0]);
    }
    for (size_t j = 0; j < t->ne[0] && !t->repaired; j++)
        kept[j] = !t->map ? values[j] : t->map[j] < 0 ? 0 : values[t->map[j]];
    dw_encode_row(e, r, kept, out);
}

static void gather_blocks(const gatherer *g, const uint8_t *row, uint8_t *out) {
    for (size_t i = 0; i < g->n_run; i++) {
        const run *part = &g->run[i];
        if (part->zero)
            memset(out, 0, part->n_bytes);
        else
            memcpy(out, row + part->from, part->n_bytes);
        out += part->n_bytes;
    }
}

static void copy_row(const uint8_t *row, uint8_t *out, size_t n_bytes) {
    if (row)
        memcpy(out, row, n_bytes);
    else
        memset(out, 0, n_bytes);
}

static void gather_rows(void *gatherer_pointer, const kit_piece *p) {
    gatherer *g = gatherer_pointer;
    const size_t row_bytes = prune_tensor_row_bytes(g->t);
    uint8_t *out = p->out;
    for (size_t r = p->first; r < p->first + p->n; r++, out += row_bytes) {
        if (g->t->move == PRUNE_ENCODE)
            prune_tensor_encode(g->t, &g->encoding, r, p->scratch, out);
        else if (g->t->move == PRUNE_BLOCKS)
            gather_blocks(g, prune_tensor_source(g->t, r), out);
        else
            copy_row(prune_tensor_source(g->t, r), out, row_bytes);
    }
}

static int check_rows(void *gatherer_pointer, dw_err *err) {
    gatherer *g = gatherer_pointer;
    return dw_encoding_end(&g->encoding, "choose another --down-type, BF16 or F32", err);
}

/* ---- tensors --------------------------------------------------------------------------------------------- */

/* How the columns of every row are gathered. */
static int find_runs(gatherer *g, dw_err *err) {
    const prune_tensor *t = g->t;
    const size_t block = (size_t)t->type->block, bytes = (size_t)t->type->block_bytes, n = t->ne[0] / block;
    g->run = dw_alloc(n, sizeof *g->run, "runs of columns", err);
    if (!g->run) return -1;
    for (size_t b = 0; b < n; b++) {
        const int32_t column = t->map[b * block];
        const bool zero = column < 0;
        const size_t from = zero ? 0 : (size_t)column / block * bytes;
        run *last = g->n_run ? &g->run[g->n_run - 1] : NULL;
        if (last && last->zero == zero && (zero || last->from + last->n_bytes == from))
            last->n_bytes += bytes;
        else
            g->run[g->n_run++] = (run){from, bytes, zero};
    }
    return 0;
}

/* A tensor whose rows all stay, in their order, is written directly from the parent's mapped file. */
static bool is_as_it_was(const prune_tensor *t) { return !t->map && !t->from[1] && t->move == PRUNE_ROWS; }

static int write_tensor(kit_stream *s, const prune_tensor *t, dw_err *err) {
    gatherer g = {.t = t, .encoding = prune_tensor_encoding(t)};
    const kit_rows r = {.n_rows = prune_tensor_n_rows(t),
                        .row_bytes = prune_tensor_row_bytes(t),
                        .written = is_as_it_was(t) ? prune_tensor_source(t, 0) : NULL,
                        .n_scratch = t->move == PRUNE_ENCODE ? t->from[0]->ne[0] + t->ne[0] : 0,
                        .make = gather_rows,
                        .check = check_rows,
                        .ctx = &g};
    int rc = t->move == PRUNE_BLOCKS ? find_runs(&g, err) : 0;
    if (!rc) rc = kit_stream_tensor(s, &r, err);
    free(g.run);
    return rc;
}

int prune_layout_write(const prune_layout *o, kit_stream *s, dw_err *err) {
    int rc = 0;
    for (size_t i = 0; i < o->n_tensor && !rc; i++) rc = write_tensor(s, &o->tensor[i], err);
    return rc ? rc : kit_stream_end(s, err);
}
