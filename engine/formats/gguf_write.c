/* gguf_write.c - the GGUF writer.
 *
 * What it writes is canonical: version 3, alignment 32, no gaps, padding after the last tensor as well.  It refuses names
 * and shapes that the reader would refuse; the reader's limits on counts are the caller's to keep.  The same calls give
 * the same bytes. */
#include "base/siphash.h"
#include "formats/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct value {
    char *key;
    bool is_array;
    dw_kv_type type;
    size_t count;
    uint8_t *data; // as in the file
    size_t n_bytes;
} value;

typedef struct planned_tensor {
    const char *name; // the first member, as dw_index requires
    char name_bytes[DW_GGUF_MAX_NAME + 1];
    const dw_qtype_row *type;
    int n_dims;
    size_t ne[4], n_bytes;
} planned_tensor;

struct dw_gguf_writer {
    dw_out *out;
    char *path;
    dw_err err; // of set and add; begin reports it
    value *values;
    size_t n_values, cap_values;
    uint32_t *slot; // of a hash table by key: the index of a value + 1; 0: free
    size_t n_slots;
    dw_hash_key key;
    planned_tensor *tensors;
    size_t n_tensors, cap_tensors;
    bool begun, is_hashed;
    dw_sha256 hash;   // of all bytes written, if is_hashed
    size_t n_done;    // tensors written whole
    size_t n_written; // bytes of the next one
};

dw_gguf_writer *dw_gguf_writer_new(const char *path, dw_err *err) {
    dw_gguf_writer *w = dw_alloc(1, sizeof *w, "a GGUF writer", err);
    if (w && (w->path = dw_strdup(path, err)) && (w->out = dw_out_open(path, err))) return w;
    dw_gguf_writer_free(w);
    return NULL;
}

static void free_value(value *v) {
    free(v->key);
    free(v->data);
}

void dw_gguf_writer_free(dw_gguf_writer *w) {
    if (!w) return;
    dw_out_free(w->out);
    for (size_t i = 0; i < w->n_values; i++) free_value(&w->values[i]);
    free(w->values);
    free(w->slot);
    free(w->tensors);
    free(w->path);
    free(w);
}

/* ---- keys -------------------------------------------------------------------------------------------------- */

/* Keys about the file and not the model: a copy of another file's must not contradict what is written. */
static bool is_layout_key(const char *key) {
    return !strcmp(key, "general.alignment") || !strncmp(key, "split.", 6);
}

/* The slot that leads to the value of a key, or the free one where it would go. */
static uint32_t *find_slot(const dw_gguf_writer *w, const char *key) {
    size_t i = dw_siphash13(w->key, key, strlen(key)) & (w->n_slots - 1);
    while (w->slot[i] && strcmp(w->values[w->slot[i] - 1].key, key)) i = (i + 1) & (w->n_slots - 1);
    return &w->slot[i];
}

static void fill_slots(dw_gguf_writer *w) {
    memset(w->slot, 0, w->n_slots * sizeof *w->slot);
    for (size_t i = 0; i < w->n_values; i++) *find_slot(w, w->values[i].key) = (uint32_t)i + 1;
}

/* Makes a table of twice the slots.  Keys are copied from files, which may have tens of thousands. */
static int grow_slots(dw_gguf_writer *w) {
    const size_t n = w->n_slots ? 2 * w->n_slots : 64;
    if (!w->n_slots && dw_hash_key_new(&w->key, &w->err)) return -1;
    uint32_t *slot = dw_alloc(n, sizeof *slot, "keys", &w->err);
    if (!slot) return -1;
    free(w->slot);
    w->slot = slot;
    w->n_slots = n;
    fill_slots(w);
    return 0;
}

static value *find_value(const dw_gguf_writer *w, const char *key) {
    const uint32_t found = w->n_slots ? *find_slot(w, key) : 0;
    return found ? &w->values[found - 1] : NULL;
}

static int append(dw_gguf_writer *w, const value *v) {
    if (dw_grow(&w->values, &w->cap_values, w->n_values + 1, sizeof *v, "keys", &w->err)) return -1;
    if (2 * w->n_values >= w->n_slots && grow_slots(w)) return -1;
    w->values[w->n_values] = *v;
    *find_slot(w, v->key) = (uint32_t)++w->n_values;
    return 0;
}

/* Takes over v.data (NULL after a failed allocation).  Replaces the value of the same key, or appends a new one. */
static void set(dw_gguf_writer *w, const char *key, value v) {
    dw_err why = {0};
    v.key = dw_strdup(key, &w->err);
    if (dw_name_check((dw_str){key, strlen(key)}, DW_GGUF_MAX_KEY, &why))
        dw_fail(&w->err, "cannot write '%s': a key: %s", w->path, why.text);
    value *old = find_value(w, key);
    if (!v.key || !v.data || is_layout_key(key) || (!old && append(w, &v))) {
        free_value(&v);
    } else if (old) {
        free_value(old);
        *old = v;
    }
}

static uint8_t *copy_bytes(dw_gguf_writer *w, const void *data, size_t n) {
    uint8_t *copy = dw_alloc(n, 1, "a value", &w->err);
    if (copy && n) memcpy(copy, data, n);
    return copy;
}

static void set_numbers(dw_gguf_writer *w, const char *key, bool is_array, dw_kv_type type, const void *data,
                        size_t count) {
    size_t n_bytes;
    if (!dw_kv_type_bytes(type) || !dw_mul(count, dw_kv_type_bytes(type), &n_bytes)) {
        dw_fail(&w->err, "key '%.200s': %zu values of type %s cannot be written", key, count, dw_kv_type_name(type));
        return;
    }
    set(w, key,
        (value){.is_array = is_array,
                .type = type,
                .count = count,
                .data = copy_bytes(w, data, n_bytes),
                .n_bytes = n_bytes});
}

static void set_strings(dw_gguf_writer *w, const char *key, bool is_array, const dw_str *strs, size_t count) {
    size_t n_bytes = 0;
    for (size_t i = 0; i < count; i++) n_bytes += 8 + strs[i].len;
    uint8_t *data = dw_alloc(n_bytes, 1, "strings", &w->err), *at = data;
    for (size_t i = 0; data && i < count; i++) {
        const uint64_t len = strs[i].len;
        memcpy(at, &len, 8);
        if (len) memcpy(at + 8, strs[i].ptr, len);
        at += 8 + len;
    }
    set(w, key, (value){.is_array = is_array, .type = DW_KV_STR, .count = count, .data = data, .n_bytes = n_bytes});
}

void dw_gguf_set_u32(dw_gguf_writer *w, const char *key, uint32_t v) { set_numbers(w, key, false, DW_KV_U32, &v, 1); }
void dw_gguf_set_f32(dw_gguf_writer *w, const char *key, float v) { set_numbers(w, key, false, DW_KV_F32, &v, 1); }

void dw_gguf_set_bool(dw_gguf_writer *w, const char *key, bool v) {
    const uint8_t byte = v;
    set_numbers(w, key, false, DW_KV_BOOL, &byte, 1);
}

void dw_gguf_set_str(dw_gguf_writer *w, const char *key, const char *text, size_t len) {
    set_strings(w, key, false, &(dw_str){text, len}, 1);
}

void dw_gguf_set_text(dw_gguf_writer *w, const char *key, const char *text) {
    dw_gguf_set_str(w, key, text, strlen(text));
}

void dw_gguf_set_array(dw_gguf_writer *w, const char *key, dw_kv_type type, const void *data, size_t count) {
    set_numbers(w, key, true, type, data, count);
}

void dw_gguf_set_strs(dw_gguf_writer *w, const char *key, const dw_str *strs, size_t count) {
    set_strings(w, key, true, strs, count);
}

void dw_gguf_set_kv(dw_gguf_writer *w, const char *key, const dw_kv *kv) {
    set(w, key,
        (value){.is_array = kv->is_array,
                .type = kv->type,
                .count = kv->count,
                .data = copy_bytes(w, kv->data, kv->n_bytes),
                .n_bytes = kv->n_bytes});
}

void dw_gguf_set_keys(dw_gguf_writer *w, const dw_gguf *g) {
    for (size_t i = 0; i < dw_gguf_n_kv(g); i++) dw_gguf_set_kv(w, dw_gguf_kv(g, i)->key, dw_gguf_kv(g, i));
}

void dw_gguf_unset(dw_gguf_writer *w, const char *key) {
    value *v = find_value(w, key);
    if (!v) return;
    free_value(v);
    const size_t i = (size_t)(v - w->values);
    memmove(v, v + 1, (--w->n_values - i) * sizeof *v);
    fill_slots(w);
}

/* ---- tensors ------------------------------------------------------------------------------------------------- */

static int plan_tensor(planned_tensor *t, const char *name, const dw_qtype_row *type, int n_dims, const size_t *ne,
                       dw_err *err) {
    *t = (planned_tensor){.type = type, .n_dims = n_dims};
    if (dw_name_check((dw_str){name, strlen(name)}, DW_GGUF_MAX_NAME, err)) return -1;
    memcpy(t->name_bytes, name, strlen(name));
    if (n_dims < 1 || n_dims > 4) return dw_fail(err, "it has %d dimensions, expected 1 to 4", n_dims);
    for (int d = 0; d < 4; d++) t->ne[d] = d < n_dims ? ne[d] : 1;
    return dw_tensor_size(type, t->ne, &t->n_bytes, err);
}

void dw_gguf_add_tensor(dw_gguf_writer *w, const char *name, const dw_qtype_row *type, int n_dims, const size_t *ne) {
    dw_err why = {0};
    if (w->begun) dw_fail(&why, "added after the header was written");
    if (dw_grow(&w->tensors, &w->cap_tensors, w->n_tensors + 1, sizeof *w->tensors, "tensors", &w->err)) return;
    if (!w->begun && !plan_tensor(&w->tensors[w->n_tensors], name, type, n_dims, ne, &why))
        w->n_tensors++;
    else
        dw_fail(&w->err, "cannot write '%s': tensor '%.200s': %s", w->path, name, why.text);
}

static int refuse_duplicates(dw_gguf_writer *w, dw_err *err) {
    dw_index by_name = {0};
    dw_err why = {0};
    for (size_t i = 0; i < w->n_tensors; i++) w->tensors[i].name = w->tensors[i].name_bytes;
    const int rc = dw_index_build(&by_name, w->tensors, w->n_tensors, sizeof *w->tensors, "tensor", &why);
    dw_index_free(&by_name);
    return rc ? dw_fail(err, "cannot write '%s': %s", w->path, why.text) : 0;
}

/* ---- the file --------------------------------------------------------------------------------------------------- */

static size_t padding(size_t n) { return -n % DW_GGUF_ALIGNMENT; }

/* All header fields are written here, so that *n is the header's length in the end. */
static void put(dw_gguf_writer *w, size_t *n, const void *data, size_t size) {
    *n += size;
    if (w->is_hashed) dw_sha256_add(&w->hash, data, size);
    if (!w->err.text[0]) dw_out_write(w->out, data, size, &w->err);
}

static void put_u32(dw_gguf_writer *w, size_t *n, uint32_t v) { put(w, n, &v, sizeof v); }
static void put_u64(dw_gguf_writer *w, size_t *n, uint64_t v) { put(w, n, &v, sizeof v); }

static void put_str(dw_gguf_writer *w, size_t *n, const char *text) {
    put_u64(w, n, strlen(text));
    put(w, n, text, strlen(text));
}

static void put_padding(dw_gguf_writer *w, size_t *n) {
    static const uint8_t zeros[DW_GGUF_ALIGNMENT];
    put(w, n, zeros, padding(*n));
}

static void put_value(dw_gguf_writer *w, size_t *n, const value *v) {
    put_str(w, n, v->key);
    if (v->is_array) {
        put_u32(w, n, DW_KV_ARRAY);
        put_u32(w, n, v->type);
        put_u64(w, n, v->count);
    } else {
        put_u32(w, n, v->type);
    }
    put(w, n, v->data, v->n_bytes);
}

static void put_tensor(dw_gguf_writer *w, size_t *n, const planned_tensor *t, size_t offset) {
    put_str(w, n, t->name);
    put_u32(w, n, (uint32_t)t->n_dims);
    for (int d = 0; d < t->n_dims; d++) put_u64(w, n, t->ne[d]);
    put_u32(w, n, (uint32_t)t->type->id);
    put_u64(w, n, offset);
}

int dw_gguf_begin(dw_gguf_writer *w, dw_err *err) {
    if (w->begun) return dw_fail(err, "the header of '%s' is already written", w->path);
    refuse_duplicates(w, &w->err);
    size_t n = 0, offset = 0;
    put(w, &n, "GGUF", 4);
    put_u32(w, &n, 3);
    put_u64(w, &n, w->n_tensors);
    put_u64(w, &n, w->n_values);
    for (size_t i = 0; i < w->n_values; i++) put_value(w, &n, &w->values[i]);
    for (size_t i = 0; i < w->n_tensors; i++) {
        const size_t n_bytes = w->tensors[i].n_bytes;
        put_tensor(w, &n, &w->tensors[i], offset);
        if (!dw_add(offset, n_bytes, &offset) || !dw_add(offset, padding(n_bytes), &offset))
            dw_fail(&w->err, "cannot write '%s': the sum of sizes overflows", w->path);
    }
    put_padding(w, &n);
    w->begun = true;
    return w->err.text[0] ? dw_fail(err, "%s", w->err.text) : 0;
}

int dw_gguf_write(dw_gguf_writer *w, const void *data, size_t n_bytes, dw_err *err) {
    if (!w->begun) return dw_fail(err, "data for '%s' before its header", w->path);
    if (w->err.text[0]) return dw_fail(err, "%s", w->err.text);
    const uint8_t *p = data;
    while (n_bytes) {
        if (w->n_done == w->n_tensors) return dw_fail(err, "'%s': %zu bytes too many", w->path, n_bytes);
        const size_t left = w->tensors[w->n_done].n_bytes - w->n_written, n = n_bytes < left ? n_bytes : left;
        put(w, &w->n_written, p, n);
        if (n == left) {
            put_padding(w, &w->n_written);
            w->n_written = 0;
            w->n_done++;
        }
        if (w->err.text[0]) return dw_fail(err, "%s", w->err.text);
        p += n;
        n_bytes -= n;
    }
    return 0;
}

static int check_complete(const dw_gguf_writer *w, dw_err *err) {
    if (!w->begun) return dw_fail(err, "'%s' is finished before its header", w->path);
    if (w->err.text[0]) return dw_fail(err, "%s", w->err.text);
    if (w->n_done == w->n_tensors) return 0;
    const planned_tensor *t = &w->tensors[w->n_done];
    return dw_fail(err, "'%s': tensor '%s' has %zu of its %zu bytes", w->path, t->name, w->n_written, t->n_bytes);
}

int dw_gguf_commit(dw_gguf_writer *w, dw_err *err) {
    return check_complete(w, err) ? -1 : dw_out_commit(w->out, err);
}

int dw_gguf_commit_checked(dw_gguf_writer *w, dw_out_check *check, void *ctx, dw_err *err) {
    return check_complete(w, err) ? -1 : dw_out_commit_checked(w->out, check, ctx, err);
}

void dw_gguf_hash_writes(dw_gguf_writer *w) {
    if (w->begun) dw_fail(&w->err, "cannot write '%s': hashing was asked for after the header", w->path);
    w->is_hashed = true;
    dw_sha256_begin(&w->hash);
}

typedef struct read_back {
    char sha256[65]; // of what was written
    dw_out_check *check;
    void *ctx;
} read_back;

static int compare_hash(void *read_back_pointer, const char *path, dw_err *err) {
    const read_back *r = read_back_pointer;
    char sha256[65];
    if (dw_sha256_file(path, sha256, err)) return -1;
    if (strcmp(sha256, r->sha256))
        return dw_fail(err, "its bytes are not those that were written; the disk may be failing");
    return r->check ? r->check(r->ctx, path, err) : 0;
}

int dw_gguf_commit_read_back(dw_gguf_writer *w, dw_out_check *check, void *ctx, dw_err *err) {
    read_back r = {.check = check, .ctx = ctx};
    uint8_t digest[32];
    if (!w->is_hashed)
        return dw_fail(err, "cannot write '%s': it cannot be read back, because its writes were not hashed", w->path);
    dw_sha256_end(&w->hash, digest);
    dw_hex(digest, sizeof digest, r.sha256);
    return dw_gguf_commit_checked(w, compare_hash, &r, err);
}
