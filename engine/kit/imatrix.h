/* imatrix.h - llama.cpp's importance files: for each matrix the mean of x_j^2 for every input column j.
 *
 * Two forms are read and written (as in llama.cpp's common/imatrix-loader.cpp); names are GGUF tensor names.
 *   old   i32 number of entries; entries {i32 len, name, i32 ncall, i32 nval, nval f32: mean * ncall}; then, unless the
 *         file ends here: i32 chunks, i32 len, dataset.  It stores no number of tokens: count is ncall, which counts
 *         chunks.
 *   GGUF  general.type "imatrix", imatrix.datasets, .chunk_count, .chunk_size; tensors NAME.in_sum2 (n, experts): sums,
 *         NAME.counts (1, experts): tokens
 * A matrix with experts is one entry of n = columns * experts values, with the tokens of all experts as count.  An
 * expert that saw no token has means of 1.  Refused: values that are negative or not finite, a name that occurs twice,
 * sums without counts, and entries with more than 2^53 tokens. */
#ifndef KIT_IMATRIX_H
#define KIT_IMATRIX_H

#include "formats/formats.h"
#include "kit/stats.h"

typedef struct kit_imatrix_entry {
    char *name;       // "blk.0.ffn_down.weight"
    int n;            // columns
    float *mean;      // (n): mean square
    uint64_t count;   // number of tokens averaged
} kit_imatrix_entry;

typedef struct kit_imatrix {
    kit_imatrix_entry *entry;
    size_t n_entry, cap_entry;
    char *dataset;    // name of the text, or ""; NULL: not set yet
    int n_chunks, chunk_size;
} kit_imatrix;

/* Reads either form; *im is empty after a failure. */
int kit_imatrix_read(kit_imatrix *im, const char *path, dw_err *err);
int kit_imatrix_parse(kit_imatrix *im, const void *data, size_t size, const char *name, dw_err *err); // bytes in memory
typedef enum kit_imatrix_form { KIT_IMATRIX_GGUF, KIT_IMATRIX_OLD } kit_imatrix_form;
int kit_imatrix_write(const kit_imatrix *im, const char *path, kit_imatrix_form form, dw_err *err);
/* Appends an entry with the means sum_square / count; count must be above 0.  *im begins as {0}. */
int kit_imatrix_put(kit_imatrix *im, const char *name, int n, const double *sum_square, uint64_t count, dw_err *err);
const kit_imatrix_entry *kit_imatrix_find(const kit_imatrix *im, const char *name); // NULL: absent
void kit_imatrix_release(kit_imatrix *im);

/* Makes entries from statistics for the matrices of a model that read one of the four inputs; q, k, v share an input,
 * and so do gate and up.  with_output: also for the output matrix, whose entry llama.cpp's quantizer uses but
 * llama.cpp's imatrix program does not make by itself. */
int kit_imatrix_from_stats(kit_imatrix *im, const kit_stats *s, const dw_gguf *g, bool with_output, dw_err *err);
/* Fills empty statistics of one text: the input sums, n_tokens, n_windows and n_ctx.  Fails when an entry does not
 * belong to a model of that shape.  Inputs without an entry stay zero. */
int kit_imatrix_to_stats(const kit_imatrix *im, kit_stats *s, dw_err *err);

#endif
