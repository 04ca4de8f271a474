/* parts.c - see parts.h. */
#include "predict/parts.h"

#include <stdio.h>

void predict_parts_of(int l, size_t n_in, size_t rank, size_t n_groups, predict_part parts[PREDICT_N_PARTS]) {
    static const char *const names[PREDICT_N_PARTS] = {"a.weight", "a.bias", "b.weight", "b.bias"};
    const dw_qtype_row *f16 = dw_qtype_get(DW_F16), *f32 = dw_qtype_get(DW_F32);
    parts[0] = (predict_part){.type = f16, .n_dims = 2, .ne = {n_in, rank}};
    parts[1] = (predict_part){.type = f32, .n_dims = 1, .ne = {rank, 1}};
    parts[2] = (predict_part){.type = f16, .n_dims = 2, .ne = {rank, n_groups}};
    parts[3] = (predict_part){.type = f32, .n_dims = 1, .ne = {n_groups, 1}};
    for (int i = 0; i < PREDICT_N_PARTS; i++)
        snprintf(parts[i].name, sizeof parts[i].name, "blk.%d.ffn_pred_%s", l, names[i]);
}
