/* safetensors.h - checkpoints in safetensors: one file, or a folder with its index and shards.
 *
 * u64 N, N bytes of JSON {name: {dtype, shape, data_offsets}}, then data without holes.  The reader maps the files and checks
 * every offset and product first; the views that it hands out are borrowed until close. */
#ifndef KIT_SAFETENSORS_H
#define KIT_SAFETENSORS_H

#include "qtypes/qtypes.h"

typedef enum dw_st_dtype { DW_ST_F32, DW_ST_F16, DW_ST_BF16, DW_ST_U32, DW_ST_OTHER } dw_st_dtype;

/* One table of the format's types: the first four are those of dw_st_dtype, in its order; all others are DW_ST_OTHER. */
typedef struct dw_st_dtype_row {
    const char *name;  // ends the table when NULL
    size_t n_bits;     // of a value
    dw_st_dtype dtype;
    int qtype;         // the same numbers in GGUF; -1: none
} dw_st_dtype_row;
extern const dw_st_dtype_row dw_st_dtypes[];

const dw_qtype_row *dw_st_qtype(dw_st_dtype dtype);                     // NULL: GGUF has none
bool dw_st_dtype_of(const dw_qtype_row *type, dw_st_dtype *dtype);      // false: safetensors have none

typedef struct dw_st_tensor {
    const char *name;
    dw_st_dtype dtype;
    const char *dtype_name; // as the file says it
    int n_dims;
    size_t shape[4];        // [out, in]; missing dimensions are 1
    const uint8_t *data;    // may be unaligned
    size_t n_bytes;
} dw_st_tensor;

typedef struct dw_safetensors dw_safetensors;

/* path: a .safetensors file, or a folder with model.safetensors or model.safetensors.index.json and its shards. */
dw_safetensors *dw_safetensors_open(const char *path, dw_err *err);
void dw_safetensors_close(dw_safetensors *st);
size_t dw_safetensors_n_files(const dw_safetensors *st);
const char *dw_safetensors_file(const dw_safetensors *st, size_t i); // its name inside the folder
size_t dw_safetensors_count(const dw_safetensors *st);
const dw_st_tensor *dw_safetensors_tensor(const dw_safetensors *st, size_t i);
const dw_st_tensor *dw_safetensors_find(const dw_safetensors *st, const char *name); // NULL: absent

/* Writing, as with GGUF: new, add, begin, the data in the order of add, commit, free.  A failure inside add is kept and
 * reported by begin.  Names and shapes are the caller's to get right; dtype is not DW_ST_OTHER. */
typedef struct dw_st_writer dw_st_writer;
dw_st_writer *dw_st_writer_new(const char *path, dw_err *err);
void dw_st_add_tensor(dw_st_writer *w, const char *name, dw_st_dtype dtype, int n_dims, const size_t *shape);
int dw_st_begin(dw_st_writer *w, dw_err *err);
int dw_st_write(dw_st_writer *w, const void *data, size_t n_bytes, dw_err *err); // pieces of any size
int dw_st_commit(dw_st_writer *w, dw_err *err);
void dw_st_writer_free(dw_st_writer *w);

/* The same reader over bytes in memory, which must outlive the result; `name` stands for the path in errors. */
dw_safetensors *dw_safetensors_open_memory(const void *data, size_t size, const char *name, dw_err *err);

#endif
