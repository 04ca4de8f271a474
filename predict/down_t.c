/* down_t.c - tiles of neighbouring neurons are gathered from all rows of down, turned, and encoded a row each; while one slab of
 * tiles is made, the one before is written. */
#include "predict/down_t.h"

#include "qtypes/encoding.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    TILE_NEURONS = 256, // a multiple of every block
    N_TILE = 8,         // in a slab
    STRIP = 16,         // rows of down decoded at once: a cache line of every neuron's row
};

typedef struct tile {
    float *rows;  // (TILE_NEURONS, n_embd)
    float *strip; // (STRIP, TILE_NEURONS)
    float *again; // (n_embd): an encoded row as it is read
    double error, power;
} tile;

struct predict_tiles {
    dw_pool *pool;
    tile tile[N_TILE];
    uint8_t *slab[2];
    void *owned;
    /* at hand */
    const predict_down_t *t;
    size_t first, n_tile;  // neuron, tiles of the slab that is made
    uint8_t *made;         // its bytes
    bool encode;           // else they are there already
    dw_encoding encoding;
    dw_gguf_writer *w;
    const uint8_t *full;   // the slab that is written
    size_t n_full;
    int rc;
    dw_err *err;
};

const dw_qtype_row *predict_down_t_type(const dw_tensor *down) {
    const size_t n_embd = down->ne[1];
    if (down->type->encode && n_embd % (size_t)down->type->block == 0) return down->type;
    return dw_qtype_get(n_embd % 32 == 0 ? DW_Q8_0 : DW_F16);
}

bool predict_down_t_is_exact(const predict_down_t *t) {
    return t->type == t->from->type && t->type->block == 1;
}

predict_tiles *predict_tiles_new(const predict_down_t *list, int n, dw_pool *pool, dw_err *err) {
    size_t most_values = 0, most_bytes = 0;
    for (int i = 0; i < n; i++) {
        if (list[i].n_embd > most_values) most_values = list[i].n_embd;
        if (predict_down_t_row_bytes(&list[i]) > most_bytes) most_bytes = predict_down_t_row_bytes(&list[i]);
    }
    predict_tiles *w = dw_alloc(1, sizeof *w, "tiles of neurons", err);
    if (!w) return NULL;
    const size_t tile_values = (TILE_NEURONS + 1) * most_values + STRIP * TILE_NEURONS, slab_bytes = N_TILE * TILE_NEURONS * most_bytes;
    uint8_t *at = w->owned = dw_alloc(N_TILE * tile_values * sizeof(float) + 2 * slab_bytes, 1, "tiles of neurons", err);
    if (!at) {
        free(w);
        return NULL;
    }
    w->pool = pool;
    for (int i = 0; i < N_TILE; i++, at += tile_values * sizeof(float)) {
        w->tile[i].rows = (float *)(void *)at;
        w->tile[i].again = w->tile[i].rows + TILE_NEURONS * most_values;
        w->tile[i].strip = w->tile[i].again + most_values;
    }
    for (int i = 0; i < 2; i++, at += slab_bytes) w->slab[i] = at;
    return w;
}

void predict_tiles_free(predict_tiles *w) {
    if (w) free(w->owned);
    free(w);
}

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

static void make_tile(predict_tiles *w, size_t i) {
    const predict_down_t *t = w->t;
    tile *at = &w->tile[i];
    const size_t first = w->first + i * TILE_NEURONS, n = t->n_ff - first < TILE_NEURONS ? t->n_ff - first : TILE_NEURONS;
    uint8_t *bytes = w->made + i * TILE_NEURONS * predict_down_t_row_bytes(t);
    turn(t->from, first, n, at->strip, at->rows);
    at->error = at->power = 0;
    for (size_t j = 0; j < n; j++, bytes += predict_down_t_row_bytes(t)) {
        const float *row = at->rows + j * t->n_embd;
        if (w->encode) dw_encode_row(&w->encoding, first + j, row, bytes);
        t->type->decode(bytes, at->again, t->n_embd);
        double error = 0, power = 0;
        for (size_t k = 0; k < t->n_embd; k++) {
            const double d = (double)at->again[k] - row[k];
            error += d * d;
            power += (double)row[k] * row[k];
        }
        at->error += error;
        at->power += power;
    }
}

static void task(void *arg, size_t i) {
    predict_tiles *w = arg;
    if (i > 0) make_tile(w, i - 1);
    else if (w->n_full && !w->rc) w->rc = dw_gguf_write(w->w, w->full, w->n_full, w->err);
}

/* Rows of the copy are columns of down, where the value stands. */
static int refusal(predict_tiles *w) {
    const size_t neuron = w->encoding.row;
    w->encoding.row = w->encoding.column;
    w->encoding.column = neuron;
    return dw_encoding_end(&w->encoding, "requant the model first", w->err);
}

/* Goes over all neurons, slab by slab: bytes are those of the slabs in turn, or the whole tensor's that is there already. */
static double go_over(const predict_down_t *t, predict_tiles *w, const uint8_t *written, predict_show *show, void *ctx) {
    double error = 0, power = 0;
    w->t = t;
    w->encode = !written;
    w->encoding = (dw_encoding){.tensor = t->from->name, .type = t->type, .n = t->n_embd};
    w->n_full = 0;
    w->rc = 0;
    int side = 0;
    for (size_t first = 0; first < t->n_ff && !w->rc; first += N_TILE * TILE_NEURONS, side = !side) {
        const size_t left = t->n_ff - first, n = left < N_TILE * TILE_NEURONS ? left : N_TILE * TILE_NEURONS;
        const size_t n_bytes = n * predict_down_t_row_bytes(t);
        w->first = first;
        w->n_tile = (n + TILE_NEURONS - 1) / TILE_NEURONS;
        w->made = written ? (uint8_t *)written + first * predict_down_t_row_bytes(t) : w->slab[side]; // only read when it is there
        dw_pool_each(w->pool, 1 + w->n_tile, task, w);
        for (size_t i = 0; i < w->n_tile; i++) {
            error += w->tile[i].error;
            power += w->tile[i].power;
        }
        if (w->encoding.is_refused) w->rc = refusal(w);
        w->full = w->made;
        w->n_full = written ? 0 : n_bytes;
        if (show) show(ctx, (double)n_bytes);
    }
    task(w, 0);
    return power > 0 ? sqrt(error / power) : error;
}

int predict_down_t_write(predict_down_t *t, predict_tiles *tiles, dw_gguf_writer *w, predict_show *show, void *ctx, dw_err *err) {
    tiles->w = w;
    tiles->err = err;
    t->loss = go_over(t, tiles, NULL, show, ctx);
    if (tiles->rc) return -1;
    if (!isfinite(t->loss)) return dw_fail(err, "'%s' holds a weight that is NaN or infinite, or too large for %s; the model is damaged", t->from->name, t->type->name);
    if (predict_down_t_is_exact(t) && t->loss > 0) return dw_fail(err, "'%s' should be exact and is not", t->name);
    return 0;
}

int predict_down_t_compare(const predict_down_t *t, const dw_tensor *written, predict_tiles *tiles, predict_show *show, void *ctx, dw_err *err) {
    const bool as_planned = written && written->type == t->type && written->n_dims == 2 && written->ne[0] == t->n_embd && written->ne[1] == t->n_ff;
    if (!as_planned) return dw_fail(err, "tensor '%s' was not written as planned", t->name);
    const double loss = go_over(t, tiles, written->data, show, ctx);
    return loss == t->loss ? 0 : dw_fail(err, "tensor '%s' does not hold what was written: its loss is %.9g, not %.9g", t->name, loss, t->loss);
}
