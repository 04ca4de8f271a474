/* tensor_stream.h - the data of a model's tensors, streamed: written into a new file, or gone over once more.
 *
 * A tensor's rows are cut into slabs of about 8 MB.  While one slab is written, all threads make the next, so that memory is
 * two slabs and some rows of scratch whatever the model's size:
 *
 *     kit_stream *s = kit_stream_new(writer, pool, bar, err);
 *     for each tensor, in the order of dw_gguf_add_tensor:   kit_stream_tensor(s, &rows, err)
 *     kit_stream_end(s, err)
 *
 * Without a writer the same calls go over rows that exist already (`written`), for example to compare them.  Who makes a
 * row never matters: a piece sees only its own rows. */
#ifndef KIT_TENSOR_STREAM_H
#define KIT_TENSOR_STREAM_H

#include "engine.h"
#include "kit/progress.h"

typedef struct kit_piece {  // rows first .. first+n-1 of a tensor, for one thread
    size_t first, n;
    uint8_t *out;           // room for them; NULL when rows are gone over
    const uint8_t *written; // the rows as they are; NULL when rows are made
    float *scratch;         // n_scratch floats of this piece alone, 64-byte aligned
} kit_piece;

typedef struct kit_rows {   // a tensor's data
    size_t n_rows, row_bytes;
    const uint8_t *written; // all rows as they lie in memory: copied, or gone over; NULL: `make` makes them
    size_t unit;            // rows that are made together: pieces begin at its multiples; 0 stands for 1
    size_t n_scratch;       // floats
    void (*make)(void *ctx, const kit_piece *p); // on many threads at once; not called for rows that are copied
    int (*check)(void *ctx, dw_err *err);        // after each slab, on the calling thread: 0, or -1 to end; may be NULL
    void *ctx;
} kit_rows;

typedef struct kit_stream kit_stream;

/* w, pool and bar are borrowed; w NULL: rows are gone over; bar NULL: nobody is told. */
kit_stream *kit_stream_new(dw_gguf_writer *w, dw_pool *pool, progress *bar, dw_err *err);
int kit_stream_tensor(kit_stream *s, const kit_rows *rows, dw_err *err);
int kit_stream_copy(kit_stream *s, const dw_tensor *t, dw_err *err); // a tensor of another file, as it is
int kit_stream_end(kit_stream *s, dw_err *err);                      // writes the last slab
void kit_stream_free(kit_stream *s);

#endif
