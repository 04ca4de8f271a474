/* qtypes.h - what a number format is: layout, decoder, encoder, in one place.
 *
 * A tensor's rows are whole blocks; a block holds `block` values in `block_bytes` bytes.  Numbers of the
 * enumeration are GGUF's and permanent.  Layouts, decoders and reference encoders follow llama.cpp's
 * ggml-common.h and ggml-quants.c bit for bit (formulas: the head of qtype_simple.c and qtype_k.c); all are
 * evaluated in F32 without contraction, so the same input gives the same bytes on every machine.
 *
 * Adding a type: a row and its number in qtypes.c, its functions beside their kin.  Fast dot products live in
 * backends/. */
#ifndef DW_QTYPES_H
#define DW_QTYPES_H

#include "base/base.h"

typedef enum dw_qtype {
    DW_F32 = 0, DW_F16 = 1, DW_Q4_0 = 2, DW_Q4_1 = 3, DW_Q5_0 = 6, DW_Q5_1 = 7, DW_Q8_0 = 8,
    DW_Q2_K = 10, DW_Q3_K = 11, DW_Q4_K = 12, DW_Q5_K = 13, DW_Q6_K = 14, DW_IQ4_NL = 20, DW_BF16 = 30,
    DW_QTYPE_END = 31 // one past the largest
} dw_qtype;

typedef struct dw_qtype_row {
    const char *name; // as GGUF tools print it: "Q4_0"
    dw_qtype id;
    int block;        // values in a block
    int block_bytes;
    int file_type;    // general.file_type of a file whose matrices have this type
    /* n values (whole blocks) from src, which may be unaligned. */
    void (*decode)(const void *src, float *dst, size_t n);
    /* One row of n values to dst, which may be unaligned; weight: importance per column (an imatrix row), or
     * NULL for the plain form. */
    void (*encode)(const float *src, void *dst, size_t n, const float *weight);
} dw_qtype_row;

extern const dw_qtype_row dw_qtypes[]; // ends with name NULL

const dw_qtype_row *dw_qtype_get(uint32_t id);            // NULL: unknown or unsupported
const dw_qtype_row *dw_qtype_by_name(const char *name);   // any case; NULL: unknown
const char *dw_ggml_type_name(uint32_t id);               // for errors: also types that we do not read

/* Bytes of a row of n values; n must be a multiple of the block (checked by who opened the file). */
static inline size_t dw_qtype_row_bytes(const dw_qtype_row *t, size_t n) {
    return n / (size_t)t->block * (size_t)t->block_bytes;
}

#endif
