/* qtypes.c - the table of number formats. */
#include "qtypes/codecs.h"

#include <strings.h>

// clang-format off
const dw_qtype_row dw_qtypes[] = {
    // name     id         block bytes file_type
    {"F32",    DW_F32,       1,   4,  0, dw_decode_f32,    dw_encode_f32},
    {"F16",    DW_F16,       1,   2,  1, dw_decode_f16,    dw_encode_f16},
    {"BF16",   DW_BF16,      1,   2, 32, dw_decode_bf16,   dw_encode_bf16},
    {"Q8_0",   DW_Q8_0,     32,  34,  7, dw_decode_q8_0,   dw_encode_q8_0},
    {"Q4_0",   DW_Q4_0,     32,  18,  2, dw_decode_q4_0,   dw_encode_q4_0},
    {"Q4_1",   DW_Q4_1,     32,  20,  3, dw_decode_q4_1,   dw_encode_q4_1},
    {"Q5_0",   DW_Q5_0,     32,  22,  8, dw_decode_q5_0,   dw_encode_q5_0},
    {"Q5_1",   DW_Q5_1,     32,  24,  9, dw_decode_q5_1,   dw_encode_q5_1},
    {"IQ4_NL", DW_IQ4_NL,   32,  18, 25, dw_decode_iq4_nl, dw_encode_iq4_nl},
    {"Q2_K",   DW_Q2_K,    256,  84, 10, dw_decode_q2_k,   dw_encode_q2_k},
    {"Q3_K",   DW_Q3_K,    256, 110, 12, dw_decode_q3_k,   dw_encode_q3_k},
    {"Q4_K",   DW_Q4_K,    256, 144, 15, dw_decode_q4_k,   dw_encode_q4_k},
    {"Q5_K",   DW_Q5_K,    256, 176, 17, dw_decode_q5_k,   dw_encode_q5_k},
    {"Q6_K",   DW_Q6_K,    256, 210, 18, dw_decode_q6_k,   dw_encode_q6_k},
    {0},
};

static const dw_qtype_row *const by_id[DW_QTYPE_END] = {
    [DW_F32]  = &dw_qtypes[0],  [DW_F16]  = &dw_qtypes[1],  [DW_BF16] = &dw_qtypes[2],  [DW_Q8_0]   = &dw_qtypes[3],
    [DW_Q4_0] = &dw_qtypes[4],  [DW_Q4_1] = &dw_qtypes[5],  [DW_Q5_0] = &dw_qtypes[6],  [DW_Q5_1]   = &dw_qtypes[7],
    [DW_IQ4_NL] = &dw_qtypes[8], [DW_Q2_K] = &dw_qtypes[9], [DW_Q3_K] = &dw_qtypes[10], [DW_Q4_K]   = &dw_qtypes[11],
    [DW_Q5_K] = &dw_qtypes[12], [DW_Q6_K] = &dw_qtypes[13],
};

static const char *const ggml_names[] = {
    [0] = "F32",      [1] = "F16",      [2] = "Q4_0",   [3] = "Q4_1",    [4] = "Q4_2 (removed)", [5] = "Q4_3 (removed)",
    [6] = "Q5_0",     [7] = "Q5_1",     [8] = "Q8_0",   [9] = "Q8_1",    [10] = "Q2_K",   [11] = "Q3_K",  [12] = "Q4_K",
    [13] = "Q5_K",    [14] = "Q6_K",    [15] = "Q8_K",  [16] = "IQ2_XXS", [17] = "IQ2_XS", [18] = "IQ3_XXS",
    [19] = "IQ1_S",   [20] = "IQ4_NL",  [21] = "IQ3_S", [22] = "IQ2_S",  [23] = "IQ4_XS", [24] = "I8",    [25] = "I16",
    [26] = "I32",     [27] = "I64",     [28] = "F64",   [29] = "IQ1_M",  [30] = "BF16",
    [31] = "Q4_0_4_4 (removed)",  [32] = "Q4_0_4_8 (removed)",  [33] = "Q4_0_8_8 (removed)",
    [34] = "TQ1_0",   [35] = "TQ2_0",
    [36] = "IQ4_NL_4_4 (removed)", [37] = "IQ4_NL_4_8 (removed)", [38] = "IQ4_NL_8_8 (removed)",
    [39] = "MXFP4",   [40] = "NVFP4",   [41] = "Q1_0",  [42] = "Q2_0",
};
// clang-format on

const dw_qtype_row *dw_qtype_get(uint32_t id) { return id < DW_QTYPE_END ? by_id[id] : NULL; }

const dw_qtype_row *dw_qtype_by_name(const char *name) {
    for (const dw_qtype_row *t = dw_qtypes; t->name; t++)
        if (!strcasecmp(t->name, name)) return t;
    return NULL;
}

const char *dw_ggml_type_name(uint32_t id) {
    return id < sizeof ggml_names / sizeof *ggml_names ? ggml_names[id] : "unknown";
}
