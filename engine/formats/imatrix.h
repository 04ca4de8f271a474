/* imatrix.h - llama.cpp's importance files: for each matrix the mean of x_j^2 of every input column j.
 *
 * Two forms are read and written (formats as in llama.cpp's common/imatrix-loader.cpp): the old one, a list of
 * {i32 len, name, i32 ncall, i32 nval, f32 values * ncall}, and GGUF with tensors NAME.in_sum2 and NAME.counts.  Names
 * are GGUF tensor names.  Non-finite and negative values are refused. */
#ifndef DW_IMATRIX_H
#define DW_IMATRIX_H

#include "formats/formats.h"

typedef struct dw_imatrix_entry {
    char *name;       // "blk.0.ffn_down.weight"
    int n;            // columns
    float *mean;      // (n): mean square
    uint64_t count;   // tokens behind it
} dw_imatrix_entry;

typedef struct dw_imatrix {
    dw_imatrix_entry *entry;
    size_t n_entry, cap_entry;
    char *dataset;    // name of the text, or ""
    int n_chunks, chunk_size;
} dw_imatrix;

int dw_imatrix_read(dw_imatrix *im, const char *path, dw_err *err); // either form
typedef enum dw_imatrix_form { DW_IMATRIX_GGUF, DW_IMATRIX_OLD } dw_imatrix_form;
int dw_imatrix_write(const dw_imatrix *im, const char *path, dw_imatrix_form form, dw_err *err);
int dw_imatrix_put(dw_imatrix *im, const char *name, int n, const double *sum_square, uint64_t count, dw_err *err);
const dw_imatrix_entry *dw_imatrix_find(const dw_imatrix *im, const char *name); // NULL: absent
void dw_imatrix_release(dw_imatrix *im);

#endif
