/* encoding.c - encoding that checks the values before and, where needed, after. */
#include "qtypes/encoding.h"

#include "base/half_inline.h"

#include <float.h>
#include <math.h>

/* Every type stores magnitudes up to this as finite numbers: 255 * 2^8 fits F16 with room for a scale's rounding.  With
 * weights the line that is fitted through an affine block's values may begin below them, by up to their range. */
static const float always_finite = 65280, always_finite_weighted = 16000;

/* The bits of the largest magnitude.  Bits are ordered as magnitudes are, with NaN above infinity. */
static uint32_t largest_bits(const float *x, size_t n) {
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = dw_float_bits(x[i]) & 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

static bool all_within(const float *x, size_t n, float limit) { return largest_bits(x, n) <= dw_float_bits(limit); }

/* Keeps only the refusal with the smallest row. */
static void refuse(dw_encoding *e, size_t row, size_t column, float value) {
    while (atomic_exchange(&e->is_busy, true)) continue;
    if (!e->is_refused || row < e->row) {
        e->row = row;
        e->column = column;
        e->value = value;
        e->is_refused = true;
    }
    atomic_store(&e->is_busy, false);
}

bool dw_encoding_accepts(dw_encoding *e, size_t row, const float *values) {
    const float limit = e->limit > 0 ? e->limit : FLT_MAX;
    if (all_within(values, e->n, limit)) return true;
    size_t i = 0;
    while (fabsf(values[i]) <= limit) i++; // stops at a NaN, too
    refuse(e, row, i, values[i]);
    return false;
}

static size_t largest_of(const float *x, size_t n) {
    size_t at = 0;
    for (size_t i = 1; i < n; i++)
        if (fabsf(x[i]) > fabsf(x[at])) at = i;
    return at;
}

/* If a stored block is read back as NaN or infinity, its largest value is reported as the one that does not fit. */
static void check_stored(dw_encoding *e, size_t row, const float *values, const uint8_t *out) {
    const size_t block = (size_t)e->type->block;
    float read[DW_BLOCK_MAX];
    for (size_t i = 0; i < e->n; i += block, out += e->type->block_bytes) {
        e->type->decode(out, read, block);
        if (all_within(read, block, FLT_MAX)) continue;
        const size_t at = i + largest_of(values + i, block);
        refuse(e, row, at, values[at]);
        return;
    }
}

void dw_weights_raise(float *weight, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)weight[i];
    const float least = n ? (float)(1e-5 * sum / (double)n) : 0;
    for (size_t i = 0; i < n; i++)
        if (weight[i] < least) weight[i] = least;
}

void dw_encode_row(dw_encoding *e, size_t row, const float *values, void *out) {
    if (!dw_encoding_accepts(e, row, values)) return;
    e->type->encode(values, out, e->n, e->weight);
    const float safe = e->weight ? always_finite_weighted : always_finite;
    if (!all_within(values, e->n, safe)) check_stored(e, row, values, out);
}

int dw_encoding_end(dw_encoding *e, const char *advice, dw_err *err) {
    if (!e->is_refused) return 0;
    const double value = isnan(e->value) ? (double)NAN : (double)e->value; // printed without a sign
    return dw_fail(err, "'%s' row %zu: value %g at column %zu cannot be stored as %s; %s", e->tensor, e->row, value,
                   e->column, e->type_name ? e->type_name : e->type->name,
                   isfinite(e->value) ? advice : "the model is damaged");
}
