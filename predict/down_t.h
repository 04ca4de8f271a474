/* down_t.h - the transposed copies of down that a gated file holds: their types, their values, their loss.
 *
 * Down lies along the neurons: (n_embd, n_ff), blocks of 32 or 256 neurons, so that nothing of it can be left out when
 * single neurons are skipped.  The copy has a row of n_embd values for each neuron.  16 and 32 bits are exact.  Blocks
 * are encoded again along the new rows: from the 16-bit model where there is one, else from what down decodes to, which
 * loses a second time.  Memory is a few tiles of neurons, whatever the model's size. */
#ifndef PREDICT_DOWN_T_H
#define PREDICT_DOWN_T_H

#include "kit/tensor_stream.h"
#include "predict/predict.h"

typedef struct predict_down_t { // of a layer
    char name[64];
    const dw_tensor *from;      // whose values it has: down of the model, or of its 16-bit source
    const dw_qtype_row *type;
    size_t n_ff, n_embd;
    double loss;                // root of squared error over squared values, against `from`; found while it is made
} predict_down_t;

/* By the rule of kit_down_t_type. */
const dw_qtype_row *predict_down_t_type(const dw_tensor *down);
bool predict_down_t_is_exact(const predict_down_t *t);
static inline size_t predict_down_t_row_bytes(const predict_down_t *t) {
    return dw_qtype_row_bytes(t->type, t->n_embd);
}
static inline size_t predict_down_t_bytes(const predict_down_t *t) { return t->n_ff * predict_down_t_row_bytes(t); }

/* Encodes all rows into the stream, and finds the loss. */
int predict_down_t_write(predict_down_t *t, kit_stream *s, dw_err *err);
/* Holds what was written against the values once more, with a stream that has no writer: the same loss to the last bit,
 * none where the type is exact. */
int predict_down_t_compare(const predict_down_t *t, const dw_tensor *written, kit_stream *s, dw_err *err);

#endif
