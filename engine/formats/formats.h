/* formats.h - model files (GGUF), read and written.
 *
 * A reader maps the file, checks every count, offset, type and product against the bytes that are there, and only
 * then allocates; after a successful open every view it hands out lies inside the map.  Views are borrowed until
 * close.  The error for a bad file says what, where and why in one sentence.
 *
 * GGUF v3 (llama.cpp ggml/include/gguf.h; version 2 is read, too), little endian:
 *   "GGUF" u32 version  i64 n_tensors  i64 n_kv
 *   n_kv      x { string key, i32 type, value }
 *   n_tensors x { string name, u32 n_dims, i64 ne[n_dims], i32 type, u64 offset }
 *   padding to general.alignment (32), then data; offset_i is the running padded sum, without gaps. */
#ifndef DW_FORMATS_H
#define DW_FORMATS_H

#include "qtypes/qtypes.h"

/* Bytes of a file, not NUL-terminated. */
typedef struct dw_str {
    const char *ptr;
    size_t len;
} dw_str;

bool dw_str_is(dw_str a, const char *b);

/* A tensor as a view.  ne[0] is the fastest dimension; a HF matrix [out, in] has ne = {in, out}. */
typedef struct dw_tensor {
    const char *name;  // NULL: the tensor is absent
    const dw_qtype_row *type;
    int n_dims;        // 1 to 4; the reader drops a third and fourth dimension of 1
    size_t ne[4];      // missing dimensions are 1
    const uint8_t *data;
    size_t n_bytes;
} dw_tensor;

static inline size_t dw_tensor_row_bytes(const dw_tensor *t) { return dw_qtype_row_bytes(t->type, t->ne[0]); }
static inline size_t dw_tensor_n_values(const dw_tensor *t) { return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; }

enum { DW_MAX_LAYERS = 512 }; // of a model; llama.cpp's limit too

/* "blk.3.ffn_up.weight" gives 3 and *rest "ffn_up.weight"; others give -1 and the name.  rest may be NULL. */
int dw_layer_of(const char *name, const char **rest);

/* ---- GGUF: reading ------------------------------------------------------------------------------ */

typedef enum dw_kv_type {
    DW_KV_U8, DW_KV_I8, DW_KV_U16, DW_KV_I16, DW_KV_U32, DW_KV_I32, DW_KV_F32, DW_KV_BOOL,
    DW_KV_STR, DW_KV_ARRAY, DW_KV_U64, DW_KV_I64, DW_KV_F64
} dw_kv_type;

typedef struct dw_kv {
    const char *key;     // NUL-terminated
    bool is_array;
    dw_kv_type type;     // of the value or of the array's elements; never DW_KV_ARRAY
    size_t count;        // 1 for a scalar
    const uint8_t *data; // numbers: count little-endian elements, unaligned; strings: the file's bytes
    size_t n_bytes;
    const dw_str *str;   // strings: count of them; else NULL
} dw_kv;

typedef struct dw_gguf dw_gguf;

/* Opens and checks a file; for a split model give the first part, the others are found by name. */
dw_gguf *dw_gguf_open(const char *path, dw_err *err);
bool dw_is_gguf(const char *path); // by its first four bytes
void dw_gguf_close(dw_gguf *g);
/* Says that these bytes of a mapped file, data of a tensor, will hardly be read again.  Their pages may leave memory; they
 * can still be read. */
void dw_gguf_release(const dw_gguf *g, const uint8_t *data, size_t n_bytes);

const char *dw_gguf_path(const dw_gguf *g);
size_t dw_gguf_file_bytes(const dw_gguf *g); // all parts

/* The identity of a model, recorded in every file that is made from it: the SHA-256 of its file, as sha256sum prints
 * it.  For a split model it is the SHA-256 of the digests (32 bytes each) of all parts, in order.  The bytes are
 * those that were opened, even when the file has been replaced since. */
void dw_gguf_sha256(const dw_gguf *g, char hex[65]);
/* The same by the caller's hash of a file: for a cache of hashes. */
void dw_gguf_sha256_by(const dw_gguf *g, void (*hash)(const dw_map *file, uint8_t digest[32]), char hex[65]);

/* How many files the name of a model's first part announces: 3 for "m-00001-of-00003.gguf", 1 for any other name; and
 * the name of part i, counted from 0, free() it. */
size_t dw_split_count(const char *path);
char *dw_split_name(const char *path, size_t i, dw_err *err);
size_t dw_gguf_n_kv(const dw_gguf *g);
const dw_kv *dw_gguf_kv(const dw_gguf *g, size_t i);
const dw_kv *dw_gguf_find(const dw_gguf *g, const char *key); // NULL: absent
size_t dw_gguf_n_tensors(const dw_gguf *g);
const dw_tensor *dw_gguf_tensor(const dw_gguf *g, size_t i);
const dw_tensor *dw_gguf_find_tensor(const dw_gguf *g, const char *name); // NULL: absent

/* Typed values: 1 read, 0 absent (value untouched), -1 present with another type; the error names the key, and the
 * caller the file.  A signed 32-bit integer is accepted if it is not negative. */
int dw_gguf_u32(const dw_gguf *g, const char *key, uint32_t *value, dw_err *err);
int dw_gguf_f32(const dw_gguf *g, const char *key, float *value, dw_err *err);
int dw_gguf_bool(const dw_gguf *g, const char *key, bool *value, dw_err *err);
int dw_gguf_str(const dw_gguf *g, const char *key, dw_str *value, dw_err *err);
/* n values: a scalar is repeated, an array must have exactly n elements. */
int dw_gguf_u32s(const dw_gguf *g, const char *key, uint32_t *values, size_t n, dw_err *err);

/* Element i of a numeric kv as double, of any numeric type. */
double dw_kv_number(const dw_kv *kv, size_t i);

/* ---- GGUF: writing ------------------------------------------------------------------------------ */

typedef struct dw_gguf_writer dw_gguf_writer;

/* Order of calls: new, set and add in any order, begin, write the data in the order of add, commit, free.
 * A failure inside set or add is kept and reported by begin, so callers need not check them.  A key that is set
 * again is replaced in place.  The file appears at commit (base.h, dw_out). */
dw_gguf_writer *dw_gguf_writer_new(const char *path, dw_err *err);
void dw_gguf_set_u32(dw_gguf_writer *w, const char *key, uint32_t value);
void dw_gguf_set_f32(dw_gguf_writer *w, const char *key, float value);
void dw_gguf_set_bool(dw_gguf_writer *w, const char *key, bool value);
void dw_gguf_set_str(dw_gguf_writer *w, const char *key, const char *value, size_t len);
void dw_gguf_set_text(dw_gguf_writer *w, const char *key, const char *value); // NUL-terminated
void dw_gguf_set_array(dw_gguf_writer *w, const char *key, dw_kv_type type, const void *data, size_t count);
void dw_gguf_set_strs(dw_gguf_writer *w, const char *key, const dw_str *strs, size_t count);
void dw_gguf_set_kv(dw_gguf_writer *w, const char *key, const dw_kv *kv); // a copy of another file's value
void dw_gguf_set_keys(dw_gguf_writer *w, const dw_gguf *g); // copies of all of another file's
void dw_gguf_unset(dw_gguf_writer *w, const char *key);
void dw_gguf_add_tensor(dw_gguf_writer *w, const char *name, const dw_qtype_row *type, int n_dims, const size_t *ne);
int dw_gguf_begin(dw_gguf_writer *w, dw_err *err);
int dw_gguf_write(dw_gguf_writer *w, const void *data, size_t n_bytes, dw_err *err); // pieces of any size
int dw_gguf_commit(dw_gguf_writer *w, dw_err *err);
int dw_gguf_commit_checked(dw_gguf_writer *w, dw_out_check *check, void *ctx, dw_err *err); // as in base.h
/* The same for data that is too costly to compute a second time: a writer that was told so before begin hashes all bytes
 * as they are written, and the new file must have the same hash before check (NULL: none) sees it. */
void dw_gguf_hash_writes(dw_gguf_writer *w);
int dw_gguf_commit_read_back(dw_gguf_writer *w, dw_out_check *check, void *ctx, dw_err *err);
void dw_gguf_writer_free(dw_gguf_writer *w);

#endif
