/* qtypes.c - the table of number formats. */
#include "qtypes/codecs.h"

#include <strings.h>

#define ROW_ENCODER(suffix) .encode = dw_encode_##suffix, .coder = &dw_coder_##suffix,
#define ROW_DECODER(suffix)
#define ROW(NAME, number, values, bytes, type_of_file, suffix, HAS)                                                    \
    {.name = #NAME, .id = DW_##NAME, .block = values, .block_bytes = bytes, .file_type = type_of_file,                 \
     .decode = dw_decode_##suffix, ROW_##HAS(suffix)},
const dw_qtype_row dw_qtypes[] = {DW_QTYPES(ROW){0}};

#define NAME_ENCODER(NAME) {#NAME},
#define NAME_DECODER(NAME)
#define ENCODABLE_NAME(NAME, id, block, bytes, file_type, suffix, HAS) NAME_##HAS(NAME)
const dw_qtype_name dw_encodable_names[] = {DW_QTYPES(ENCODABLE_NAME){0}};

// Each type's place in dw_qtypes.
#define PLACE(NAME, id, block, bytes, file_type, suffix, HAS) PLACE_##NAME,
enum { DW_QTYPES(PLACE) N_TYPES };

#define BY_ID(NAME, id, block, bytes, file_type, suffix, HAS) [DW_##NAME] = &dw_qtypes[PLACE_##NAME],
static const dw_qtype_row *const by_id[DW_QTYPE_END] = {DW_QTYPES(BY_ID)};

#define CHECK_ROW(NAME, id, block, bytes, file_type, suffix, HAS)                                                      \
    _Static_assert((id) < DW_QTYPE_END && 256 % (block) == 0, #NAME);
DW_QTYPES(CHECK_ROW)

// clang-format off
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
