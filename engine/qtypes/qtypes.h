/* qtypes.h - number formats: layout, decoder and encoder of each.
 *
 * A tensor's rows are whole blocks; a block holds `block` values in `block_bytes` bytes.  The numbers of the
 * enumeration are GGUF's and permanent.  Layouts, decoders and reference encoders follow llama.cpp's ggml-common.h
 * and ggml-quants.c bit for bit (formulas: the heads of qtype_simple.c and qtype_k.c).  All are evaluated in F32
 * without contraction, so the same input gives the same bytes on every machine.
 *
 * To add a type, write a row in DW_QTYPES and a file qtype_NAME.c with its decoder.  The type then runs everywhere:
 * if backends/ has no kernel for it, blocks are decoded and multiplied as F32.  An encoder and fast kernels can
 * follow later.
 *
 * Encoding goes through encoding.h, which refuses values that a type cannot store. */
#ifndef DW_QTYPES_H
#define DW_QTYPES_H

#include "base/base.h"

/* All types: X(NAME, id, block, block_bytes, file_type, suffix, HAS).  `suffix` names the functions (dw_decode_q4_0).
 * HAS is ENCODER, or DECODER when the type can only be read.  block divides 256. */
// clang-format off
#define DW_QTYPES(X)                              \
    X(F32,     0,   1,   4,  0, f32,    ENCODER)  \
    X(F16,     1,   1,   2,  1, f16,    ENCODER)  \
    X(BF16,   30,   1,   2, 32, bf16,   ENCODER)  \
    X(Q8_0,    8,  32,  34,  7, q8_0,   ENCODER)  \
    X(Q4_0,    2,  32,  18,  2, q4_0,   ENCODER)  \
    X(Q4_1,    3,  32,  20,  3, q4_1,   ENCODER)  \
    X(Q5_0,    6,  32,  22,  8, q5_0,   ENCODER)  \
    X(Q5_1,    7,  32,  24,  9, q5_1,   ENCODER)  \
    X(IQ4_NL, 20,  32,  18, 25, iq4_nl, ENCODER)  \
    X(Q2_K,   10, 256,  84, 10, q2_k,   ENCODER)  \
    X(Q3_K,   11, 256, 110, 12, q3_k,   ENCODER)  \
    X(Q4_K,   12, 256, 144, 15, q4_k,   ENCODER)  \
    X(Q5_K,   13, 256, 176, 17, q5_k,   ENCODER)  \
    X(Q6_K,   14, 256, 210, 18, q6_k,   ENCODER)  \
    DW_TEST_QTYPES(X)
// clang-format on
#ifndef DW_TEST_QTYPES // a test adds a type of its own here
#define DW_TEST_QTYPES(X)
#endif

#define DW_QTYPE_ID(NAME, id, block, bytes, file_type, suffix, HAS) DW_##NAME = id,
typedef enum dw_qtype {
    DW_QTYPES(DW_QTYPE_ID)
    DW_QTYPE_END = 64 // larger than every number
} dw_qtype;
#undef DW_QTYPE_ID

/* Blocks are encoded in three steps, so that a method may change values between them (round one column, add its error
 * to the next).  fit finds a block's scales, round gives the code of one value under them, pack writes the block.  A
 * type's encode does all three. */

enum { DW_BLOCK_MAX = 256, DW_GROUP_MAX = 16 };

/* The result of fit.  A type uses the fields that it needs. */
typedef struct dw_block_fit {
    float d, m;          // scale and minimum; pack rounds them to 16 bits
    float inverse, base; // blocks of 32: code = inverse * (x - base), rounded; inverse 0: the search's `code` is kept
    bool has_codes;      // `code` holds the codes of the fitted values; round then rounds half to even
    float scale[DW_GROUP_MAX], min[DW_GROUP_MAX]; // of each group of a super-block, as a decoder reads them
    uint8_t scale_code[DW_GROUP_MAX], min_code[DW_GROUP_MAX];
    uint8_t code[DW_BLOCK_MAX]; // from the search; kept where a scale is 0, because all codes then mean the same value
} dw_block_fit;

typedef struct dw_coder {
    /* x: the block's values.  importance: of its columns, or NULL; mean_square: of the row's values, if importances
     * are given. */
    void (*fit)(const float *x, const float *importance, float mean_square, dw_block_fit *f);
    /* The code of value x at place i of the block; *value: what a decoder reads.  x may lie outside the fitted
     * range. */
    uint32_t (*round)(const dw_block_fit *f, int i, float x, float *value);
    /* Writes the block with these codes (one per value) to `to`, which may be unaligned. */
    void (*pack)(const dw_block_fit *f, const uint32_t *code, void *to);
} dw_coder;

typedef struct dw_qtype_row {
    const char *name; // as GGUF tools print it: "Q4_0"
    dw_qtype id;
    int block;        // values in a block
    int block_bytes;
    int file_type;    // general.file_type of a file whose matrices have this type
    /* Decodes n values (whole blocks) from src, which may be unaligned. */
    void (*decode)(const void *src, float *dst, size_t n);
    /* Encodes one row of n values to dst, which may be unaligned; weight: importance per column (an imatrix row), or
     * NULL.  Values are not checked: dw_encode_row of encoding.h does that.  NULL: the type cannot be encoded. */
    void (*encode)(const float *src, void *dst, size_t n, const float *weight);
    const dw_coder *coder; // the steps of encode; NULL if encode is NULL
} dw_qtype_row;

extern const dw_qtype_row dw_qtypes[]; // ends with name NULL

/* The names of the types that can be encoded, for options. */
typedef struct dw_qtype_name {
    const char *name;
} dw_qtype_name;

extern const dw_qtype_name dw_encodable_names[]; // ends with name NULL

const dw_qtype_row *dw_qtype_get(uint32_t id);            // NULL: unknown or unsupported
const dw_qtype_row *dw_qtype_by_name(const char *name);   // any case; NULL: unknown
const char *dw_ggml_type_name(uint32_t id);               // for errors: also names types that are not supported

/* Layout constants for kernels; compilers fold them when the type is a constant. */
#define DW_QTYPE_CASE(NAME, id, block, bytes, file_type, suffix, HAS) case DW_##NAME: return block;
static inline __attribute__((always_inline)) int dw_qtype_block(dw_qtype type) {
    switch (type) {
        DW_QTYPES(DW_QTYPE_CASE)
    default: return 1;
    }
}
#undef DW_QTYPE_CASE
#define DW_QTYPE_CASE(NAME, id, block, bytes, file_type, suffix, HAS) case DW_##NAME: return bytes;
static inline __attribute__((always_inline)) int dw_qtype_block_bytes(dw_qtype type) {
    switch (type) {
        DW_QTYPES(DW_QTYPE_CASE)
    default: return 0;
    }
}
#undef DW_QTYPE_CASE

/* Bytes of a row of n values; n must be a multiple of the block (checked when a file is opened). */
static inline size_t dw_qtype_row_bytes(const dw_qtype_row *t, size_t n) {
    return n / (size_t)t->block * (size_t)t->block_bytes;
}

#endif
