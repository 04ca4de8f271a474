/* tensor_stream.c - two slabs of rows in turn: one is written while threads make the other (tensor_stream.h). */
#include "kit/tensor_stream.h"

#include <stdlib.h>

enum { SLAB_BYTES = 8 << 20, PIECES_PER_THREAD = 4 };

struct kit_stream {
    dw_gguf_writer *w;
    dw_pool *pool;
    progress *bar;
    uint8_t *slab[2]; // slab_bytes each; one is filled, the other is being written
    size_t slab_bytes;
    int filling;
    float *scratch;   // of all pieces
    size_t n_scratch;
    const uint8_t *full; // the rows that are to be written next
    size_t n_full;
    /* the slab that is being made */
    const kit_rows *rows;
    size_t first, n, piece_rows;
    size_t piece_scratch; // floats, a multiple of a cache line
    int rc;
    dw_err *err;
};

kit_stream *kit_stream_new(dw_gguf_writer *w, dw_pool *pool, progress *bar, dw_err *err) {
    kit_stream *s = dw_alloc(1, sizeof *s, "a stream of tensors", err);
    if (s) *s = (kit_stream){.w = w, .pool = pool, .bar = bar};
    return s;
}

void kit_stream_free(kit_stream *s) {
    if (!s) return;
    free(s->slab[0]);
    free(s->slab[1]);
    free(s->scratch);
    free(s);
}

static size_t in_units(size_t n, size_t unit) { return (n + unit - 1) / unit; }
static size_t unit_of(const kit_rows *r) { return dw_larger_size(r->unit, 1); }

/* Rows of a slab: whole units, about SLAB_BYTES, but at least a unit for every thread. */
static size_t rows_of_slab(const kit_stream *s, const kit_rows *r) {
    const size_t unit = unit_of(r), fit = SLAB_BYTES / (unit * r->row_bytes);
    return unit * dw_larger_size(fit, (size_t)dw_pool_size(s->pool));
}

static int make_room(kit_stream *s, const kit_rows *r, size_t slab_rows, dw_err *err) {
    const size_t n_pieces = PIECES_PER_THREAD * (size_t)dw_pool_size(s->pool),
                 rows = r->n_rows < slab_rows ? r->n_rows : slab_rows;
    s->piece_scratch = (r->n_scratch + 15) / 16 * 16;
    if (n_pieces * s->piece_scratch > s->n_scratch) {
        free(s->scratch);
        s->n_scratch = n_pieces * s->piece_scratch;
        s->scratch = dw_alloc(s->n_scratch, sizeof *s->scratch, "scratch for rows", err);
        if (!s->scratch) return -1;
    }
    if (r->written || rows * r->row_bytes <= s->slab_bytes) return 0;
    /* Writes the slab that is still to be written, because its memory is freed below. */
    if (kit_stream_end(s, err)) return -1;
    s->slab_bytes = dw_larger_size(rows * r->row_bytes, SLAB_BYTES);
    for (int i = 0; i < 2; i++) {
        free(s->slab[i]);
        s->slab[i] = dw_alloc(s->slab_bytes, 1, "a slab of rows", err);
        if (!s->slab[i]) return -1;
    }
    return 0;
}

static void write_full(kit_stream *s) {
    if (!s->n_full || s->rc) return;
    if (s->w) s->rc = dw_gguf_write(s->w, s->full, s->n_full, s->err);
    if (s->bar) progress_step(s->bar, (double)s->n_full);
    s->n_full = 0;
}

static void make_piece(kit_stream *s, size_t i) {
    const kit_rows *r = s->rows;
    const size_t at = i * s->piece_rows, left = s->n - at;
    kit_piece p = {.first = s->first + at, .n = left < s->piece_rows ? left : s->piece_rows,
                   .scratch = s->scratch ? s->scratch + i * s->piece_scratch : NULL};
    if (r->written) p.written = r->written + p.first * r->row_bytes;
    else p.out = s->slab[s->filling] + at * r->row_bytes;
    r->make(r->ctx, &p);
}

/* Task 0 writes the previous slab, the others make the next one. */
static void write_or_make(void *stream, size_t i) {
    kit_stream *s = stream;
    if (i) make_piece(s, i - 1);
    else write_full(s);
}

static void do_slab(kit_stream *s, size_t first, size_t n) {
    const kit_rows *r = s->rows;
    const size_t unit = unit_of(r), n_units = in_units(n, unit),
                 most = PIECES_PER_THREAD * (size_t)dw_pool_size(s->pool);
    const bool is_copied = r->written && s->w;
    s->first = first;
    s->n = n;
    s->piece_rows = unit * in_units(n_units, most);
    dw_pool_each(s->pool, is_copied ? 1 : 1 + in_units(n, s->piece_rows), write_or_make, s);
    if (!s->rc && r->check && !is_copied) s->rc = r->check(r->ctx, s->err);
    s->full = r->written ? r->written + first * r->row_bytes : s->slab[s->filling];
    s->n_full = n * r->row_bytes;
    if (!r->written) s->filling = !s->filling;
}

int kit_stream_tensor(kit_stream *s, const kit_rows *rows, dw_err *err) {
    const size_t slab_rows = rows_of_slab(s, rows);
    s->err = err;
    if (make_room(s, rows, slab_rows, err)) return -1;
    s->rows = rows;
    for (size_t first = 0; first < rows->n_rows && !s->rc; first += slab_rows)
        do_slab(s, first, rows->n_rows - first < slab_rows ? rows->n_rows - first : slab_rows);
    return s->rc;
}

int kit_stream_copy(kit_stream *s, const dw_tensor *t, dw_err *err) {
    return kit_stream_tensor(s, &(kit_rows){.n_rows = t->n_bytes, .row_bytes = 1, .written = t->data}, err);
}

int kit_stream_end(kit_stream *s, dw_err *err) {
    s->err = err;
    write_full(s);
    return s->rc;
}
