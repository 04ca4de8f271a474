/* safetensors.h - reads and writes checkpoints in safetensors: one file, or a folder with an index and shards.
 *
 * A file is u64 N, N bytes of JSON {name: {dtype, shape, data_offsets}}, then data without holes.  The reader maps the
 * files and checks every offset and product first.  Its tensors point into the mapped files until close. */
#ifndef KIT_SAFETENSORS_H
#define KIT_SAFETENSORS_H

#include "qtypes/qtypes.h"

typedef enum kit_st_dtype { KIT_ST_F32, KIT_ST_F16, KIT_ST_BF16, KIT_ST_U32, KIT_ST_OTHER } kit_st_dtype;

/* The types of the format.  The first four rows are those of kit_st_dtype, in its order; the others are
 * KIT_ST_OTHER. */
typedef struct kit_st_dtype_row {
    const char *name;  // NULL: end of the table
    size_t n_bits;     // of a value
    kit_st_dtype dtype;
    int qtype;         // the type of the same numbers in GGUF; -1: none
} kit_st_dtype_row;
extern const kit_st_dtype_row kit_st_dtypes[];

const dw_qtype_row *kit_st_qtype(kit_st_dtype dtype);                     // NULL: GGUF has no such type
bool kit_st_dtype_of(const dw_qtype_row *type, kit_st_dtype *dtype);      // false: safetensors has no such type

typedef struct kit_st_tensor {
    const char *name;
    kit_st_dtype dtype;
    const char *dtype_name; // as the file spells it
    int n_dims;
    size_t shape[4];        // [out, in]; missing dimensions are 1
    const uint8_t *data;    // may be unaligned
    size_t n_bytes;
} kit_st_tensor;

typedef struct kit_safetensors kit_safetensors;

/* path: a .safetensors file, or a folder with model.safetensors or model.safetensors.index.json and its shards. */
kit_safetensors *kit_safetensors_open(const char *path, dw_err *err);
void kit_safetensors_close(kit_safetensors *st);
size_t kit_safetensors_n_files(const kit_safetensors *st);
const char *kit_safetensors_file(const kit_safetensors *st, size_t i); // its name inside the folder
const char *kit_safetensors_metadata(const kit_safetensors *st, const char *key); // of any file; NULL: absent
size_t kit_safetensors_count(const kit_safetensors *st);
const kit_st_tensor *kit_safetensors_tensor(const kit_safetensors *st, size_t i);
const kit_st_tensor *kit_safetensors_find(const kit_safetensors *st, const char *name); // NULL: absent

/* Writing, as with GGUF: new, add, begin, the data in the order of add, commit, free.  If add fails, begin reports it.
 * The writer does not check names and shapes; dtype must not be KIT_ST_OTHER. */
typedef struct kit_st_writer kit_st_writer;
kit_st_writer *kit_st_writer_new(const char *path, dw_err *err);
void kit_st_set_metadata(kit_st_writer *w, const char *key, const char *value);
void kit_st_add_tensor(kit_st_writer *w, const char *name, kit_st_dtype dtype, int n_dims, const size_t *shape);
int kit_st_begin(kit_st_writer *w, dw_err *err);
int kit_st_write(kit_st_writer *w, const void *data, size_t n_bytes, dw_err *err); // pieces of any size
int kit_st_commit(kit_st_writer *w, dw_err *err);
void kit_st_writer_free(kit_st_writer *w);

/* Reads bytes in memory, which must outlive the result; `name` is used as path in messages. */
kit_safetensors *kit_safetensors_open_memory(const void *data, size_t size, const char *name, dw_err *err);

#endif
