/* imatrix.h - llama.cpp's importance files: for each matrix the mean of x_j^2 of every input column j.
 *
 * Two forms are read and written (formats as in llama.cpp's common/imatrix-loader.cpp); names are GGUF tensor names.
 *   old   i32 entries, each {i32 len, name, i32 ncall, i32 nval, f32 mean * ncall}; then, if not at the end, i32 chunks,
 *         i32 len, dataset.  Tokens are not stored: count is ncall, the number of chunks.
 *   GGUF  general.type "imatrix", imatrix.datasets, .chunk_count, .chunk_size; tensors NAME.in_sum2 (n, experts): sums,
 *         NAME.counts (1, experts): tokens
 * A matrix with experts is one entry of n = columns * experts, count that of all experts; an expert that saw no token
 * has means of 1.  Non-finite and negative values, names that occur twice, sums without counts, and entries
 * that count more than 2^53 tokens are refused. */
#ifndef KIT_IMATRIX_H
#define KIT_IMATRIX_H

#include "formats/formats.h"
#include "kit/stats.h"

typedef struct kit_imatrix_entry {
    char *name;       // "blk.0.ffn_down.weight"
    int n;            // columns
    float *mean;      // (n): mean square
    uint64_t count;   // tokens that the means are of
} kit_imatrix_entry;

typedef struct kit_imatrix {
    kit_imatrix_entry *entry;
    size_t n_entry, cap_entry;
    char *dataset;    // name of the text, or ""; NULL before anything was read or set
    int n_chunks, chunk_size;
} kit_imatrix;

/* Either form; *im is empty after a failure.  Begin with {0}. */
int kit_imatrix_read(kit_imatrix *im, const char *path, dw_err *err);
int kit_imatrix_parse(kit_imatrix *im, const void *data, size_t size, const char *name, dw_err *err); // bytes in memory
typedef enum kit_imatrix_form { KIT_IMATRIX_GGUF, KIT_IMATRIX_OLD } kit_imatrix_form;
int kit_imatrix_write(const kit_imatrix *im, const char *path, kit_imatrix_form form, dw_err *err);
/* Appends an entry: means are sums / count (count above 0). */
int kit_imatrix_put(kit_imatrix *im, const char *name, int n, const double *sum_square, uint64_t count, dw_err *err);
const kit_imatrix_entry *kit_imatrix_find(const kit_imatrix *im, const char *name); // NULL: absent
void kit_imatrix_release(kit_imatrix *im);

/* The matrices of a model that read one of the four inputs (q, k, v alike; gate and up alike), and on request the output
 * matrix, with the statistics' sums.  llama.cpp's quantizer would use an entry of the output matrix, but does not make one
 * by itself. */
int kit_imatrix_from_stats(kit_imatrix *im, const kit_stats *s, const dw_gguf *g, bool with_output, dw_err *err);
/* Fills the input sums of empty statistics of one text, its n_tokens and n_windows, and n_ctx.  Refused when an entry
 * does not belong to a model of that shape; inputs without an entry stay zero. */
int kit_imatrix_to_stats(const kit_imatrix *im, kit_stats *s, dw_err *err);

#endif
