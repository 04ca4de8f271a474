/* sizes.h - how many tensors of which type a new model has, and their bytes: what --dry-run prints, and what the
 * lineage stores as the fact `types`.
 *
 *   type  kind        tensors  values    bytes     bits_per_value
 *   Q4_K  matrices    140      91750400  51609600  4.5
 *   Q8_0  fallback    12       ..                              rows that are no whole number of the wanted type's
 *         blocks
 *   F32   vectors     65       ..
 *   *     total       217      ..
 *
 * The bytes are those of the tensors; keys and vocabulary of the file come in addition. */
#ifndef KIT_SIZES_H
#define KIT_SIZES_H

#include "formats/formats.h"

typedef struct kit_size {
    char type[24];    // a number type, or a rounding method's name
    const char *kind; // borrowed
    size_t n_tensors;
    double n_values, n_bytes;
} kit_size;

#define KIT_SIZES_MATRICES "matrices"
#define KIT_SIZES_FALLBACK "fallback"
#define KIT_SIZES_VECTORS "vectors"

enum { KIT_SIZES_MAX = 128 }; // more rows than types times kinds; further tensors would be counted in the last row

typedef struct kit_sizes {
    kit_size row[KIT_SIZES_MAX]; // one for each type and kind, in the order in which they were added
    int n;
} kit_sizes;

void kit_sizes_add(kit_sizes *s, const char *type, const char *kind, double n_values, double n_bytes);
void kit_sizes_add_tensor(kit_sizes *s, const dw_tensor *t); // as it is stored: a matrix, or a vector

/* The table above as tab-separated text; free(). */
char *kit_sizes_table(const kit_sizes *s, dw_err *err);
/* The matrices, most frequent first: "Q4_K 140, Q6_K 20, Q8_0 12 (fallback)"; free(). */
char *kit_sizes_types(const kit_sizes *s, dw_err *err);

#endif
