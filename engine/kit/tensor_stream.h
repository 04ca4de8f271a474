/* tensor_stream.h - computes the tensors of a model row by row and writes them, or reads existing rows again.
 *
 * The rows of a tensor are divided into slabs of about 8 MB.  While one slab is written, the other threads make the
 * next.  Memory is two slabs and some rows of scratch, whatever the size of the model:
 *
 *     kit_stream *s = kit_stream_new(writer, pool, bar, err);
 *     for each tensor, in the order of dw_gguf_add_tensor:   kit_stream_tensor(s, &rows, err)
 *     kit_stream_end(s, err)
 *
 * Without a writer the same calls read existing rows (`written`), for example to compare them.  A piece sees only its
 * own rows, so the result does not depend on the number of threads. */
#ifndef KIT_TENSOR_STREAM_H
#define KIT_TENSOR_STREAM_H

#include "engine.h"
#include "kit/progress.h"

typedef struct kit_piece {  // rows first .. first+n-1 of a tensor, for one thread
    size_t first, n;
    uint8_t *out;           // room for the rows; NULL if rows are read
    const uint8_t *written; // the existing rows; NULL if rows are made
    float *scratch;         // n_scratch floats for this piece alone, 64-byte aligned
} kit_piece;

typedef struct kit_rows {   // a tensor's data
    size_t n_rows, row_bytes;
    const uint8_t *written; // all rows, if they exist: copied, or read if there is no writer; NULL: `make` makes them
    size_t unit;            // pieces begin at multiples of it; 0 means 1
    size_t n_scratch;       // floats
    void (*make)(void *ctx, const kit_piece *p); // called on many threads; not called for rows that are copied
    int (*check)(void *ctx, dw_err *err);        // called after each slab; -1 ends the stream; may be NULL
    void *ctx;
} kit_rows;

typedef struct kit_stream kit_stream;

/* w, pool and bar are borrowed.  w NULL: rows are read; bar NULL: no progress is shown. */
kit_stream *kit_stream_new(dw_gguf_writer *w, dw_pool *pool, progress *bar, dw_err *err);
int kit_stream_tensor(kit_stream *s, const kit_rows *rows, dw_err *err);
int kit_stream_copy(kit_stream *s, const dw_tensor *t, dw_err *err); // copies a tensor of another file
int kit_stream_end(kit_stream *s, dw_err *err);                      // writes the last slab
void kit_stream_free(kit_stream *s);

#endif
