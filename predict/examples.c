/* examples.c - reads a layer's traces into three parts and standardizes what trains. */
#include "predict/examples.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 1 << 20 };

size_t predict_examples_part_of(size_t n, predict_examples_part part, size_t *first) {
    const size_t border[] = {0, n * 8 / 10, n * 9 / 10, n};
    *first = border[part];
    return border[part + 1] - border[part];
}

size_t predict_examples_count(const traces *t, predict_examples_part part) {
    size_t n = 0, first;
    for (size_t i = 0; i < t->n_text; i++) n += predict_examples_part_of(t->text[i].n_tokens, part, &first);
    return n;
}

double predict_examples_bytes(const traces *t, int layer) {
    const double n_groups = t->layer[layer].n_groups, n_in = t->n_embd, n = (double)t->n_tokens;
    return n * (4 * n_in + n_groups / 8 + 1 + 2 * n_groups) + 24 * n_in + 8 * n_groups + 2 * BLOCK_BYTES;
}

static int read_inputs(float *x, const traces *t, int layer, size_t first, size_t n, uint16_t *rows, size_t most,
                       dw_err *err) {
    const size_t cols = (size_t)t->n_embd;
    for (size_t done = 0, now; done < n; done += now) {
        now = n - done < most ? n - done : most;
        if (traces_read(t, layer, TRACES_INPUT, first + done, now, rows, err)) return -1;
        for (size_t i = 0; i < now * cols; i++) x[done * cols + i] = dw_f16_to_f32(rows[i]);
    }
    return 0;
}

static int read_part(predict_examples *e, const traces *t, int layer, int input_layer, predict_examples_part part,
                     uint16_t *rows, size_t most, dw_err *err) {
    size_t row = 0, text_row = 0, first;
    for (size_t i = 0; i < t->n_text; text_row += t->text[i].n_tokens, i++) {
        const size_t n = predict_examples_part_of(t->text[i].n_tokens, part, &first), from = text_row + first;
        if (read_inputs(e->x[part] + row * (size_t)e->n_in, t, input_layer, from, n, rows, most, err) ||
            traces_read(t, layer, TRACES_OPEN, from, n, e->open[part] + row * e->stride, err) ||
            traces_read(t, layer, TRACES_SHARE, from, n, e->share[part] + row * (size_t)e->n_groups, err))
            return -1;
        row += n;
    }
    return 0;
}

/* The scale is one over the column's standard deviation, of which columns that hardly vary count as a thousandth of the
 * mean over all columns. */
static void find_scale(predict_examples *e, double *square) {
    const size_t n = e->n[PREDICT_EXAMPLES_TRAIN], cols = (size_t)e->n_in;
    const float *x = e->x[PREDICT_EXAMPLES_TRAIN];
    double *sum = square + cols, typical = 0;
    for (size_t i = 0; i < n * cols; i++) sum[i % cols] += (double)x[i];
    for (size_t j = 0; j < cols; j++) e->mean[j] = (float)(sum[j] / (double)n);
    for (size_t i = 0; i < n * cols; i++) {
        const double v = (double)x[i] - (double)e->mean[i % cols];
        square[i % cols] += v * v;
    }
    for (size_t j = 0; j < cols; j++) typical += sqrt(square[j] / (double)n) / (double)cols;
    for (size_t j = 0; j < cols; j++) {
        const double deviation = fmax(sqrt(square[j] / (double)n), 1e-3 * typical);
        e->scale[j] = deviation > 0 ? (float)(1 / deviation) : 1;
    }
}

static void standardize(predict_examples *e) {
    const size_t cols = (size_t)e->n_in;
    float *x = e->x[PREDICT_EXAMPLES_TRAIN];
    for (size_t i = 0; i < e->n[PREDICT_EXAMPLES_TRAIN] * cols; i++)
        x[i] = (x[i] - e->mean[i % cols]) * e->scale[i % cols];
}

static void sum_masses(predict_examples *e) {
    const size_t n_groups = (size_t)e->n_groups;
    const uint16_t *share = e->share[PREDICT_EXAMPLES_TRAIN];
    for (size_t i = 0; i < e->n[PREDICT_EXAMPLES_TRAIN]; i++, share += n_groups)
        for (size_t g = 0; g < n_groups; g++) e->mass[g] += (double)dw_f16_to_f32(share[g]);
}

static int take_memory(predict_examples *e, const traces *t, dw_err *err) {
    bool ok = true;
    for (int part = 0; part < PREDICT_EXAMPLES_N_PARTS; part++) {
        const size_t n = e->n[part] = predict_examples_count(t, (predict_examples_part)part);
        if (!n)
            return dw_fail(err,
                           "the traces have too few tokens: %zu, and a tenth of a text is to be held out; trace more",
                           t->n_tokens);
        e->x[part] = dw_alloc(n * (size_t)e->n_in, sizeof *e->x[part], "examples", err);
        e->open[part] = dw_alloc(n, e->stride, "examples", err);
        e->share[part] = dw_alloc(n * (size_t)e->n_groups, sizeof *e->share[part], "examples", err);
        ok = ok && e->x[part] && e->open[part] && e->share[part];
    }
    e->mean = dw_alloc((size_t)e->n_in, sizeof *e->mean, "examples", err);
    e->scale = dw_alloc((size_t)e->n_in, sizeof *e->scale, "examples", err);
    e->mass = dw_alloc((size_t)e->n_groups, sizeof *e->mass, "examples", err);
    return ok && e->mean && e->scale && e->mass ? 0 : -1;
}

int predict_examples_load(predict_examples *e, const traces *t, int layer, int input_layer, dw_err *err) {
    const int n_groups = t->layer[layer].n_groups, widest = n_groups > t->n_embd ? n_groups : t->n_embd;
    *e = (predict_examples){.n_in = t->n_embd, .n_groups = n_groups, .stride = traces_open_bytes(n_groups)};
    const size_t most = 1 + BLOCK_BYTES / (2 * (size_t)widest);
    uint16_t *rows = dw_alloc(most * (size_t)widest, sizeof *rows, "rows of traces", err);
    double *sums = dw_alloc(2 * (size_t)e->n_in, sizeof *sums, "examples", err);
    int rc = rows && sums ? take_memory(e, t, err) : -1;
    for (int part = 0; part < PREDICT_EXAMPLES_N_PARTS && !rc; part++)
        rc = read_part(e, t, layer, input_layer, (predict_examples_part)part, rows, most, err);
    if (!rc) {
        find_scale(e, sums);
        standardize(e);
        sum_masses(e);
    }
    free(rows);
    free(sums);
    return rc;
}

void predict_examples_release(predict_examples *e) {
    for (int part = 0; part < PREDICT_EXAMPLES_N_PARTS; part++)
        free(e->x[part]), free(e->open[part]), free(e->share[part]);
    free(e->mean), free(e->scale), free(e->mass);
    *e = (predict_examples){0};
}
