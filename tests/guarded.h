/* guarded.h - for tests of kernels: random weights, and memory behind whose end nothing may be read. */
#ifndef GUARDED_H
#define GUARDED_H

#include "qtypes/qtypes.h"

/* Bytes that end where the readable memory ends. */
typedef struct guarded {
    uint8_t *map, *data;
    size_t map_bytes;
} guarded;

guarded guard(size_t bytes);
void unguard(guarded *g);

/* Random blocks: any bits, but scales that are numbers of moderate size. */
void random_weights(dw_rng *rng, const dw_qtype_row *t, uint8_t *w, size_t bytes);
/* Blocks of such scales, whose other bytes are all `byte`. */
void constant_weights(dw_rng *rng, const dw_qtype_row *t, uint8_t byte, uint8_t *w, size_t bytes);

#endif
