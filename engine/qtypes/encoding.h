/* encoding.h - the one way of storing values in a type: what comes out is finite, or it is refused.
 *
 *     dw_encoding e = {.tensor = "blk.3.ffn_down.weight", .type = type, .n = 896};
 *     on any thread, for rows in any order:   dw_encode_row(&e, row, values, out);
 *     then once:                              if (dw_encoding_end(&e, "choose F32", err)) ... nothing is to be written
 *
 * A value is refused when it is NaN or infinite, or when the type stores it as something that is.  Of many refused rows the
 * first in the tensor's order is told, whichever thread met it.  Copying bits of the same type is no encoding. */
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
    float limit;              // refuse magnitudes above it, too; 0: none
    /* The first refusal.  Read by dw_encoding_end. */
    atomic_bool is_busy, is_refused;
    size_t row, column;
    float value;
} dw_encoding;

/* Encodes n values to out, a row of the type; when one is refused, out holds nothing of use. */
void dw_encode_row(dw_encoding *e, size_t row, const float *values, void *out);

/* For a way of rounding that is not the type's own: false, and a refusal, when a value is NaN, infinite or beyond `limit`. */
bool dw_encoding_accepts(dw_encoding *e, size_t row, const float *values);

/* 0, or -1 and one sentence: "'TENSOR' row 17: value nan at column 5 cannot be stored as Q4_0; ...".  It ends with `advice`
 * where the value is a number, only too large.  Rows and columns count from 0. */
int dw_encoding_end(dw_encoding *e, const char *advice, dw_err *err);

#endif
