/* parts.h - the tensors of a layer's predictor, as formats/ffn_gated.h describes them. */
#ifndef PREDICT_PARTS_H
#define PREDICT_PARTS_H

#include "predict/predict.h"

typedef struct predict_part { // a tensor
    char name[64];            // "blk.3.ffn_pred_a.weight"
    const dw_qtype_row *type;
    int n_dims;
    size_t ne[2];
    const void *data; // borrowed
} predict_part;

enum { PREDICT_N_PARTS = 4 }; // A, a, B, b

/* The tensors of layer l, with data NULL. */
void predict_parts_of(int l, size_t n_in, size_t rank, size_t n_groups, predict_part parts[PREDICT_N_PARTS]);
static inline size_t predict_part_bytes(const predict_part *p) {
    return dw_qtype_row_bytes(p->type, p->ne[0]) * p->ne[1];
}

#endif
