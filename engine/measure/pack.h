/* pack.h - bytes of this library's files: little-endian numbers, texts with their length, zstd frames. */
#ifndef MEASURE_PACK_H
#define MEASURE_PACK_H

#include "base/base.h"

typedef struct measure_bytes { // bytes that grow; after a failure `failed` stays set and nothing is added
    uint8_t *data; // free()
    size_t size, cap;
    dw_err *err;
    bool failed;
} measure_bytes;

void measure_put_u32(uint8_t *to, uint32_t v);
void measure_add(measure_bytes *b, const void *data, size_t n);
void measure_add_u32(measure_bytes *b, uint32_t v);
void measure_add_u64(measure_bytes *b, uint64_t v);
void measure_add_f64(measure_bytes *b, double v);
void measure_add_text(measure_bytes *b, const char *text); // u32 length and bytes

/* A text of at most `most` bytes of UTF-8; NULL and c->failed: it is none. */
char *measure_read_text(dw_cursor *c, size_t most, dw_err *err);
double measure_read_f64(dw_cursor *c);

/* Packs into a frame with a checksum; its size, or 0. */
size_t measure_pack(void *to, size_t cap, const void *raw, size_t size, int level);

/* Unpacks the frame of the next `packed` bytes; fails unless it gives exactly `size` bytes.  A frame that has a
 * checksum must agree with it. */
int measure_unpack(dw_cursor *c, size_t packed, void *raw, size_t size);

#endif
