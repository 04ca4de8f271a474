/* encoding.h - the only way to store values in a type; values that the type cannot hold are refused.
 *
 *     dw_encoding e = {.tensor = "blk.3.ffn_down.weight", .type = type, .n = 896};
 *     on any thread, for rows in any order:   dw_encode_row(&e, row, values, out);
 *     then once:                              if (dw_encoding_end(&e, "choose F32", err)) ... write nothing
 *
 * A value is refused when it is NaN or infinite, or when the type would store it as NaN or infinity.  If several rows
 * are refused, the first one of the tensor is reported, whichever thread found it.  Copying bits to the same type is
 * not encoding and is not checked. */
#ifndef DW_ENCODING_H
#define DW_ENCODING_H

#include "qtypes/qtypes.h"

#include <stdatomic.h>

typedef struct dw_encoding {
    const char *tensor;       // its name, for the refusal
    const dw_qtype_row *type; // has an encoder
    const char *type_name;    // for the refusal; NULL: the type's
    size_t n;                 // values of a row, whole blocks
    const float *weight;      // (n) importance per column, or NULL
    float limit;              // larger magnitudes are refused, too; 0: no limit
    /* The first refusal.  Read by dw_encoding_end. */
    atomic_bool is_busy, is_refused;
    size_t row, column;
    float value;
} dw_encoding;

/* Raises importances to at least 1e-5 of their mean.  Where all but one column of a block have none, the searches of
 * the K types, which are llama.cpp's, divide by what rounding left of 0: the block's numbers are then of any size. */
void dw_weights_raise(float *weight, size_t n);

/* Encodes n values to out, a row of the type; if one is refused, the contents of out are undefined. */
void dw_encode_row(dw_encoding *e, size_t row, const float *values, void *out);

/* For rounding methods other than the type's own: returns false, and records the refusal, if a value is NaN, infinite
 * or beyond `limit`. */
bool dw_encoding_accepts(dw_encoding *e, size_t row, const float *values);

/* 0, or -1 and one sentence: "'TENSOR' row 17: value nan at column 5 cannot be stored as Q4_0; ...".  It ends with
 * `advice` if the value is finite but too large.  Rows and columns count from 0. */
int dw_encoding_end(dw_encoding *e, const char *advice, dw_err *err);

#endif
