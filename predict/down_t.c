/* down_t.c - tiles of neighbouring neurons are gathered from all rows of down, turned, and encoded row by row. */
#include "predict/down_t.h"

#include "kit/mixtures.h"
#include "qtypes/encoding.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    TILE_NEURONS = 256, // a multiple of every block
    STRIP = 16,         // rows of down decoded at once: a cache line of every neuron's row
};

typedef struct loss {
    double error, power; // sums of squares
} loss;

typedef struct turner { // of one copy
    const predict_down_t *t;
    dw_encoding encoding;
    loss *tile; // of each tile, so that sums are in the order of tiles whoever makes them
} turner;

const dw_qtype_row *predict_down_t_type(const dw_tensor *down) { return kit_down_t_type(down->type, down->ne[1]); }

bool predict_down_t_is_exact(const predict_down_t *t) { return t->type == t->from->type && t->type->block == 1; }

/* rows (n, n_embd) = columns first .. first+n-1 of down. */
static void turn(const dw_tensor *down, size_t first, size_t n, float *strip, float *rows) {
    const size_t n_embd = down->ne[1], row_bytes = dw_tensor_row_bytes(down);
    const uint8_t *from = down->data + dw_qtype_row_bytes(down->type, first);
    for (size_t r = 0; r < n_embd; r += STRIP) {
        const size_t n_row = n_embd - r < STRIP ? n_embd - r : STRIP;
        for (size_t i = 0; i < n_row; i++) down->type->decode(from + (r + i) * row_bytes, strip + i * TILE_NEURONS, n);
        for (size_t j = 0; j < n; j++)
            for (size_t i = 0; i < n_row; i++) rows[j * n_embd + r + i] = strip[i * TILE_NEURONS + j];
    }
}

/* Squares of the row and of its error as the type holds it. */
static void add_loss(loss *sum, const predict_down_t *t, const float *row, const uint8_t *bytes, float *again) {
    double error = 0, power = 0;
    t->type->decode(bytes, again, t->n_embd);
    for (size_t k = 0; k < t->n_embd; k++) {
        const double d = (double)again[k] - row[k];
        error += d * d;
        power += (double)row[k] * row[k];
    }
    sum->error += error;
    sum->power += power;
}

/* Neurons first .. first+n-1, one tile: `out` gets their rows, or is NULL and `written` has them. */
static void do_tile(turner *w, size_t first, size_t n, uint8_t *out, const uint8_t *written, float *scratch) {
    const predict_down_t *t = w->t;
    const size_t row_bytes = predict_down_t_row_bytes(t);
    float *rows = scratch, *again = rows + TILE_NEURONS * t->n_embd, *strip = again + t->n_embd;
    loss *sum = &w->tile[first / TILE_NEURONS];
    turn(t->from, first, n, strip, rows);
    for (size_t j = 0; j < n; j++) {
        const float *row = rows + j * t->n_embd;
        if (out) dw_encode_row(&w->encoding, first + j, row, out + j * row_bytes);
        add_loss(sum, t, row, (out ? out : written) + j * row_bytes, again);
    }
}

static void do_tiles(void *turner_pointer, const kit_piece *p) {
    turner *w = turner_pointer;
    const size_t row_bytes = predict_down_t_row_bytes(w->t);
    for (size_t at = 0; at < p->n; at += TILE_NEURONS) {
        const size_t n = p->n - at < TILE_NEURONS ? p->n - at : TILE_NEURONS;
        do_tile(w, p->first + at, n, p->out ? p->out + at * row_bytes : NULL,
                p->written ? p->written + at * row_bytes : NULL, p->scratch);
    }
}

/* Rows of the copy are columns of down. */
static int check_rows(void *turner_pointer, dw_err *err) {
    dw_encoding *e = &((turner *)turner_pointer)->encoding;
    const size_t neuron = e->row;
    e->row = e->column;
    e->column = neuron;
    return dw_encoding_end(e, "requant the model first", err);
}

/* Goes over all neurons; `written` NULL: their rows are made.  *ratio: root of squared error over squared values. */
static int go_over(const predict_down_t *t, const uint8_t *written, kit_stream *s, double *ratio, dw_err *err) {
    const size_t n_tiles = (t->n_ff + TILE_NEURONS - 1) / TILE_NEURONS;
    turner w = {.t = t,
                .encoding = {.tensor = t->from->name, .type = t->type, .n = t->n_embd},
                .tile = dw_alloc(n_tiles, sizeof *w.tile, "errors of tiles", err)};
    const kit_rows r = {.n_rows = t->n_ff,
                        .row_bytes = predict_down_t_row_bytes(t),
                        .written = written,
                        .unit = TILE_NEURONS,
                        .n_scratch = (TILE_NEURONS + 1) * t->n_embd + STRIP * TILE_NEURONS,
                        .make = do_tiles,
                        .check = check_rows,
                        .ctx = &w};
    const int rc = w.tile ? kit_stream_tensor(s, &r, err) : -1;
    loss sum = {0};
    for (size_t i = 0; i < n_tiles && !rc; i++) {
        sum.error += w.tile[i].error;
        sum.power += w.tile[i].power;
    }
    *ratio = sum.power > 0 ? sqrt(sum.error / sum.power) : sum.error;
    free(w.tile);
    return rc;
}

int predict_down_t_write(predict_down_t *t, kit_stream *s, dw_err *err) {
    if (go_over(t, NULL, s, &t->loss, err)) return -1;
    if (!isfinite(t->loss))
        return dw_fail(err, "'%s' holds a weight that is NaN or infinite, or too large for %s; the model is damaged",
                       t->from->name, t->type->name);
    if (predict_down_t_is_exact(t) && t->loss > 0) return dw_fail(err, "'%s' should be exact and is not", t->name);
    return 0;
}

int predict_down_t_compare(const predict_down_t *t, const dw_tensor *written, kit_stream *s, dw_err *err) {
    const bool as_planned = written && written->type == t->type && written->n_dims == 2 &&
                            written->ne[0] == t->n_embd && written->ne[1] == t->n_ff;
    double ratio;
    if (!as_planned) return dw_fail(err, "tensor '%s' was not written as planned", t->name);
    if (go_over(t, written->data, s, &ratio, err)) return -1;
    return ratio == t->loss ? 0
                            : dw_fail(err, "tensor '%s' does not hold what was written: its loss is %.9g, not %.9g",
                                      t->name, ratio, t->loss);
}
