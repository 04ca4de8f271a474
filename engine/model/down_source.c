/* down_source.c - whether one model holds the 16-bit weights that another was made from. */
#include "model/model.h"

#include <stdlib.h>

enum { PROBE_ROWS = 4 };

/* Fails if the squared error of down's first rows, model against source, is large relative to their squares. */
static int probe_source(const dw_tensor *a, const dw_tensor *b, int l, dw_err *err) {
    const size_t n = a->ne[0];
    float *x = dw_alloc(n, 2 * sizeof *x, "rows to compare", err);
    if (!x) return -1;
    double error = 0, power = 0;
    for (size_t r = 0; r < PROBE_ROWS && r < a->ne[1]; r++) {
        a->type->decode(a->data + r * dw_tensor_row_bytes(a), x, n);
        b->type->decode(b->data + r * dw_tensor_row_bytes(b), x + n, n);
        for (size_t j = 0; j < n; j++) {
            error += ((double)x[j] - x[n + j]) * ((double)x[j] - x[n + j]);
            power += (double)x[n + j] * x[n + j];
        }
    }
    free(x);
    if (error <= 0.5 * power) return 0; // at 2 bits it is below 0.2, for another model about 2; NaN fails
    return dw_fail(err,
                   "the source's 'blk.%d.ffn_down.weight' is another matrix than the model's: give the 16-bit file "
                   "that the model was made from",
                   l);
}

int dw_model_check_source(const dw_model *m, const dw_model *source, dw_err *err) {
    const dw_hparams *a = &m->net.hp, *b = &source->net.hp;
    if (dw_model_need_whole_ffn(source, err)) return -1;
    if (a->n_layer != b->n_layer || a->n_embd != b->n_embd)
        return dw_fail(err, "the source has %d layers of width %d, the model %d of %d", b->n_layer, b->n_embd,
                       a->n_layer, a->n_embd);
    for (int l = 0; l < a->n_layer; l++) {
        const dw_tensor *down = &source->net.layer[l].down;
        if (a->n_ff[l] != b->n_ff[l])
            return dw_fail(err, "layer %d: the source has %d neurons, the model %d", l, b->n_ff[l], a->n_ff[l]);
        if (down->type->block > 1)
            return dw_fail(err, "the source's 'blk.%d.ffn_down.weight' is %s; a source has F32, F16 or BF16", l,
                           down->type->name);
        if (probe_source(&m->net.layer[l].down, down, l, err)) return -1;
    }
    return 0;
}
