/* gram_sums.c - Gram matrices by tiles (gram_sums.h). */
#include "prune/gram_sums.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>

enum { TILE = 256 };

// clang-format off
const gram_inputs gram_inputs_names[] = {
    {"down", {[KIT_STATS_FFN_NEURON] = true},                            "of the inputs of down, which obs and repairs need"},
    {"down+o", {[KIT_STATS_ATTN_MIX] = true, [KIT_STATS_FFN_NEURON] = true},
                                                                         "of down and o: for cutting heads, too"},
    {"all",  {[KIT_STATS_ATTN_IN] = true, [KIT_STATS_ATTN_MIX] = true,
              [KIT_STATS_FFN_IN] = true, [KIT_STATS_FFN_NEURON] = true}, "of the inputs of every matrix"},
    {0}};
// clang-format on

const gram_inputs gram_inputs_none = {.name = "none"},
                  gram_inputs_gradient = {.name = "gradient", .wanted = {[KIT_GRAM_GRADIENT] = true}};

const gram_inputs *gram_inputs_find(const char *name) {
    for (const gram_inputs *g = gram_inputs_names; g->name; g++)
        if (name && !strcmp(g->name, name)) return g;
    return NULL;
}

int gram_width(const dw_hparams *hp, int l, int input) {
    switch (input) {
    case KIT_STATS_ATTN_IN: return hp->n_head[l] ? hp->n_embd : 0;
    case KIT_STATS_ATTN_MIX: return hp->n_head[l] * hp->head_dim;
    case KIT_STATS_FFN_IN:
    case KIT_GRAM_GRADIENT: return hp->n_ff[l] ? hp->n_embd : 0;
    default: return hp->n_ff[l];
    }
}

double gram_bytes(const dw_hparams *hp, const gram_inputs *inputs, int first, int end) {
    double bytes = 0;
    for (int l = first; l < end; l++)
        for (int k = 0; k < KIT_GRAM_N_KINDS; k++)
            if (inputs->wanted[k]) bytes += (double)kit_gram_packed(gram_width(hp, l, k)) * sizeof(double);
    return bytes;
}

int gram_sums_init(gram_sums *g, const dw_hparams *hp, const gram_inputs *inputs, int first, int end, int n_threads,
                   dw_err *err) {
    *g = (gram_sums){.n_layer = hp->n_layer};
    g->sum = dw_alloc((size_t)hp->n_layer, sizeof *g->sum, "Gram matrices", err);
    g->scratch = dw_alloc((size_t)n_threads, GRAM_SCRATCH * sizeof *g->scratch, "Gram matrices", err);
    int rc = g->sum && g->scratch ? 0 : -1;
    for (int l = first; l < end && !rc; l++)
        for (int k = 0; k < KIT_GRAM_N_KINDS && !rc; k++) {
            const int n = gram_width(hp, l, k);
            if (!inputs->wanted[k] || !n) continue;
            g->sum[l][k] = dw_alloc(kit_gram_packed(n), sizeof(double), "a Gram matrix", err);
            if (!g->sum[l][k]) rc = -1;
        }
    if (rc) gram_sums_release(g);
    return rc;
}

void gram_sums_release(gram_sums *g) {
    for (int l = 0; g->sum && l < g->n_layer; l++)
        for (int k = 0; k < KIT_GRAM_N_KINDS; k++) free(g->sum[l][k]);
    free(g->sum);
    free(g->scratch);
    *g = (gram_sums){0};
}

static int input_of(dw_tap_point point) {
    switch (point) {
    case DW_TAP_ATTN_IN: return KIT_STATS_ATTN_IN;
    case DW_TAP_ATTN_MIX: return KIT_STATS_ATTN_MIX;
    case DW_TAP_FFN_IN: return KIT_STATS_FFN_IN;
    case DW_TAP_FFN_NEURON: return KIT_STATS_FFN_NEURON;
    default: return -1;
    }
}

unsigned gram_tap_points(const gram_inputs *inputs) {
    unsigned points = 0;
    for (unsigned p = 0; p < DW_N_TAP_POINTS; p++) {
        const int k = input_of((dw_tap_point)p);
        if (k >= 0 && inputs->wanted[k]) points |= 1u << p;
    }
    return points;
}

/* The sums of the input that a tap's event shows; NULL: it is not summed. */
static double *sums_of(const gram_sums *g, const dw_tap_event *e) {
    const int k = input_of(e->point);
    return k < 0 || !g->sum || e->layer >= g->n_layer ? NULL : g->sum[e->layer][k];
}

/* Products of columns r.. and c.. over the rows, one product for each run of neighbouring rows. */
static void multiply(float *tile, int nr, int nc, const float *x, int n, int r, int c, const int *row, int n_row) {
    for (int i = 0, end; i < n_row; i = end) {
        for (end = i + 1; end < n_row && row[end] == row[end - 1] + 1;) end++;
        const float *from = x + (size_t)row[i] * (size_t)n;
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, nr, nc, end - i, 1, from + r, n, from + c, n, i ? 1 : 0,
                    tile, TILE);
    }
}

static void add_tile(double *sum, int n, const float *tile, int nr, int nc, int r, int c) {
    for (int i = 0; i < nr; i++) {
        double *to = sum + kit_gram_row(n, r + i) + (size_t)c;
        const float *from = tile + (size_t)i * TILE;
        for (int k = r == c ? i : 0; k < nc; k++) to[k] += (double)from[k];
    }
}

static void add_block(double *sum, int n, const float *x, const int *row, int n_row, float *tile, int ith,
                      int n_threads) {
    int at = 0;
    for (int r = 0; r < n; r += TILE)
        for (int c = r; c < n; c += TILE) {
            if (at++ % n_threads != ith) continue;
            multiply(tile, dw_smaller(TILE, n - r), dw_smaller(TILE, n - c), x, n, r, c, row, n_row);
            add_tile(sum, n, tile, dw_smaller(TILE, n - r), dw_smaller(TILE, n - c), r, c);
        }
}

void gram_add(double *sum, int n, const float *x, const int *row, int n_row, float *scratch, int ith, int n_threads) {
    float *tile = scratch + (size_t)ith * GRAM_SCRATCH;
    for (int first = 0; first < n_row; first += GRAM_TOKENS)
        add_block(sum, n, x, row + first, dw_smaller(GRAM_TOKENS, n_row - first), tile, ith, n_threads);
}

void gram_sums_add(const gram_sums *g, const dw_tap_event *e, const int *row, int n_row, int ith, int n_threads) {
    double *sum = sums_of(g, e);
    if (sum) gram_add(sum, e->n, e->values, row, n_row, g->scratch, ith, n_threads);
}
