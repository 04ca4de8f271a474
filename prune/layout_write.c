/* layout_write.c - the data of the smaller file: while one slab of rows is written, the next is gathered.
 *
 * Memory is two slabs and a row of values a piece, whatever the model's size. */
#include "prune/cutting.h"

#include <stdlib.h>
#include <string.h>

enum { SLAB_BYTES = 8 << 20, N_PIECE = 16 };

/* Neighbouring columns that come from neighbouring columns, in bytes of a row. */
typedef struct run {
    size_t from, n_bytes;
    bool zero;
} run;

typedef struct slab {
    const uint8_t *data; // its memory, or the parent's map
    size_t n_bytes;
    uint8_t *memory;
} slab;

typedef struct stream {
    dw_gguf_writer *w;
    dw_pool *pool;
    prune_show *show;
    void *ctx;
    const prune_tensor *t;  // at hand
    dw_encoding encoding;   // of its rows
    size_t first, n_rows;   // of the slab being filled
    run *run;               // of a row of t, when its columns are gathered
    size_t n_run;
    float *values;          // N_PIECE times room for two rows
    size_t n_values;
    slab slab[2];
    int filling;
    int rc;
    dw_err *err;
} stream;

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
    return (dw_encoding){.tensor = t->name, .type = t->type, .n = t->ne[0]};
}

void prune_tensor_encode(const prune_tensor *t, dw_encoding *e, size_t r, float *values, uint8_t *out) {
    const dw_tensor *from = t->from[0];
    float *kept = values + from->ne[0];
    from->type->decode(prune_tensor_source(t, r), values, from->ne[0]);
    for (size_t j = 0; j < t->ne[0]; j++) kept[j] = !t->map ? values[j] : t->map[j] < 0 ? 0 : values[t->map[j]];
    dw_encode_row(e, r, kept, out);
}

static void gather_blocks(const stream *s, const uint8_t *row, uint8_t *out) {
    for (size_t i = 0; i < s->n_run; i++) {
        const run *part = &s->run[i];
        if (part->zero) memset(out, 0, part->n_bytes);
        else memcpy(out, row + part->from, part->n_bytes);
        out += part->n_bytes;
    }
}

static void copy_row(const uint8_t *row, uint8_t *out, size_t n_bytes) {
    if (row) memcpy(out, row, n_bytes);
    else memset(out, 0, n_bytes);
}

static void fill_piece(stream *s, size_t piece) {
    const size_t n = (s->n_rows + N_PIECE - 1) / N_PIECE, row_bytes = prune_tensor_row_bytes(s->t);
    const size_t end = (piece + 1) * n < s->n_rows ? (piece + 1) * n : s->n_rows;
    uint8_t *out = s->slab[s->filling].memory + piece * n * row_bytes;
    for (size_t i = piece * n; i < end; i++, out += row_bytes) {
        const size_t r = s->first + i;
        if (s->t->move == PRUNE_ENCODE) prune_tensor_encode(s->t, &s->encoding, r, s->values + piece * s->n_values, out);
        else if (s->t->move == PRUNE_BLOCKS) gather_blocks(s, prune_tensor_source(s->t, r), out);
        else copy_row(prune_tensor_source(s->t, r), out, row_bytes);
    }
}

/* ---- slabs ----------------------------------------------------------------------------------------------- */

static void task(void *arg, size_t i) {
    stream *s = arg;
    const slab *full = &s->slab[!s->filling];
    if (i > 0) {
        fill_piece(s, i - 1);
    } else if (full->n_bytes && !s->rc) {
        s->rc = dw_gguf_write(s->w, full->data, full->n_bytes, s->err);
        if (s->show) s->show(s->ctx, (double)full->n_bytes);
    }
}

/* Fills a slab with rows first .. first+n-1 of the tensor at hand and writes the slab before. */
static void step(stream *s, size_t first, size_t n) {
    const bool as_it_is = n && !s->t->map && !s->t->from[1] && s->t->move == PRUNE_ROWS;
    s->first = first;
    s->n_rows = n;
    slab *next = &s->slab[s->filling];
    dw_pool_each(s->pool, n && !as_it_is ? 1 + N_PIECE : 1, task, s);
    if (!s->rc) s->rc = dw_encoding_end(&s->encoding, "choose another --down-type, BF16 or F32", s->err);
    next->n_bytes = n ? n * prune_tensor_row_bytes(s->t) : 0;
    next->data = as_it_is ? prune_tensor_source(s->t, first) : next->memory;
    s->filling = !s->filling;
}

/* How the columns of every row are gathered. */
static void find_runs(stream *s, const prune_tensor *t) {
    const size_t block = (size_t)t->type->block, bytes = (size_t)t->type->block_bytes;
    s->n_run = 0;
    for (size_t b = 0; b < t->ne[0] / block; b++) {
        const int32_t column = t->map[b * block];
        const bool zero = column < 0;
        const size_t from = zero ? 0 : (size_t)column / block * bytes;
        run *last = s->n_run ? &s->run[s->n_run - 1] : NULL;
        if (last && last->zero == zero && (zero || last->from + last->n_bytes == from)) last->n_bytes += bytes;
        else s->run[s->n_run++] = (run){from, bytes, zero};
    }
}

static void stream_tensor(stream *s, const prune_tensor *t) {
    const size_t n_rows = prune_tensor_n_rows(t), row_bytes = prune_tensor_row_bytes(t);
    const size_t slab_rows = SLAB_BYTES / row_bytes ? SLAB_BYTES / row_bytes : 1;
    s->t = t;
    s->encoding = prune_tensor_encoding(t);
    if (t->move == PRUNE_BLOCKS) find_runs(s, t);
    for (size_t first = 0; first < n_rows && !s->rc; first += slab_rows) step(s, first, n_rows - first < slab_rows ? n_rows - first : slab_rows);
}

static int take_memory(stream *s, const prune_layout *o, dw_err *err) {
    size_t slab_bytes = SLAB_BYTES, most_runs = 1;
    for (size_t i = 0; i < o->n_tensor; i++) {
        const prune_tensor *t = &o->tensor[i];
        if (prune_tensor_row_bytes(t) > slab_bytes) slab_bytes = prune_tensor_row_bytes(t);
        if (t->move == PRUNE_BLOCKS && t->ne[0] > most_runs) most_runs = t->ne[0];
        if (t->move == PRUNE_ENCODE && t->from[0]->ne[0] + t->ne[0] > s->n_values) s->n_values = t->from[0]->ne[0] + t->ne[0];
    }
    s->run = dw_alloc(most_runs, sizeof *s->run, "runs of columns", err);
    s->values = dw_alloc(N_PIECE * (s->n_values + 1), sizeof *s->values, "rows to encode", err);
    for (int i = 0; i < 2; i++) s->slab[i].memory = dw_alloc(slab_bytes, 1, "a slab of rows", err);
    return s->run && s->values && s->slab[0].memory && s->slab[1].memory ? 0 : -1;
}

int prune_layout_write(const prune_layout *o, dw_gguf_writer *w, dw_pool *pool, prune_show *show, void *ctx, dw_err *err) {
    stream s = {.w = w, .pool = pool, .show = show, .ctx = ctx, .err = err};
    s.rc = take_memory(&s, o, err);
    for (size_t i = 0; i < o->n_tensor && !s.rc; i++) stream_tensor(&s, &o->tensor[i]);
    if (!s.rc) step(&s, 0, 0);
    free(s.run);
    free(s.values);
    for (int i = 0; i < 2; i++) free(s.slab[i].memory);
    return s.rc;
}
