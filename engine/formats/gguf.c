/* gguf.c - the GGUF reader.
 *
 * Every byte of a header is read once, through a cursor that stops at the end of the file.  Counts are compared with
 * the bytes that are left before anything is allocated for them, so memory is bounded by the file's size, whatever
 * the file claims.  Offsets are compared by subtraction.  Only the header's pages are touched: tensors are views. */
#include "formats/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

bool dw_str_is(dw_str a, const char *b) { return a.len == strlen(b) && !memcmp(a.ptr, b, a.len); }

/* ---- what the format says ------------------------------------------------------------------------- */

static const struct {
    const char *name;
    size_t n_bytes;
} kv_types[] = {
    [DW_KV_U8] = {"u8", 1},   [DW_KV_I8] = {"i8", 1},       [DW_KV_U16] = {"u16", 2}, [DW_KV_I16] = {"i16", 2},
    [DW_KV_U32] = {"u32", 4}, [DW_KV_I32] = {"i32", 4},     [DW_KV_F32] = {"f32", 4}, [DW_KV_BOOL] = {"bool", 1},
    [DW_KV_STR] = {"str", 0}, [DW_KV_ARRAY] = {"array", 0}, [DW_KV_U64] = {"u64", 8}, [DW_KV_I64] = {"i64", 8},
    [DW_KV_F64] = {"f64", 8},
};
enum { N_KV_TYPES = sizeof kv_types / sizeof *kv_types };

int dw_layer_of(const char *name, const char **rest) {
    const size_t n = strncmp(name, "blk.", 4) ? 0 : strspn(name + 4, "0123456789");
    const bool is_layer = n > 0 && n <= 9 && name[4 + n] == '.' && (n == 1 || name[4] != '0');
    if (rest) *rest = is_layer ? name + 4 + n + 1 : name;
    return is_layer ? atoi(name + 4) : -1;
}

size_t dw_kv_type_bytes(uint32_t type) { return type < N_KV_TYPES ? kv_types[type].n_bytes : 0; }
const char *dw_kv_type_name(uint32_t type) { return type < N_KV_TYPES ? kv_types[type].name : "of an unknown type"; }

int dw_tensor_size(const dw_qtype_row *type, const size_t ne[4], size_t *n_bytes, dw_err *err) {
    const size_t block = (size_t)type->block;
    for (int d = 0; d < 4; d++)
        if (!ne[d]) return dw_fail(err, "dimension %d is 0", d);
    if (ne[0] % block)
        return dw_fail(err, "rows of %zu values are not whole blocks of %s (%zu values)", ne[0], type->name, block);
    size_t values = ne[0], bytes;
    bool ok = dw_mul(ne[0] / block, (size_t)type->block_bytes, &bytes);
    for (int d = 1; d < 4; d++) ok = ok && dw_mul(values, ne[d], &values) && dw_mul(bytes, ne[d], &bytes);
    if (!ok || values > INT64_MAX || bytes > INT64_MAX)
        return dw_fail(err, "its dimensions %zu x %zu x %zu x %zu overflow", ne[0], ne[1], ne[2], ne[3]);
    *n_bytes = bytes;
    return 0;
}

int dw_name_check(dw_str name, size_t max, dw_err *err) {
    if (!name.len) return dw_fail(err, "its name is empty");
    if (name.len > max) return dw_fail(err, "its name of %zu bytes is too long (at most %zu)", name.len, max);
    if (!dw_is_utf8(name.ptr, name.len)) return dw_fail(err, "its name is not UTF-8 text");
    return 0;
}

/* ---- one file ----------------------------------------------------------------------------------------- */

/* A file of a split model, or the only one. */
typedef struct part {
    dw_map map;
    bool mapped; // otherwise the bytes belong to the caller
    dw_kv *kv;
    size_t n_kv;
    dw_str *scalars;  // [n_kv] the values of keys that are one string
    size_t n_strings; // in arrays so far
    dw_index by_key;
    dw_tensor *tensors;
    size_t n_tensors;
    char (*names)[DW_GGUF_MAX_NAME + 1]; // [n_tensors]
} part;

struct dw_gguf {
    char *path;
    part *parts;
    size_t n_parts, cap_parts;
    dw_tensor *tensors; // of all parts
    size_t n_tensors;
    dw_index by_name;
};

static dw_str take_string(dw_cursor *c) {
    const size_t len = dw_cursor_u64(c);
    const uint8_t *bytes = dw_cursor_take(c, len);
    return bytes ? (dw_str){(const char *)bytes, len} : (dw_str){"", 0};
}

static int cut_short(dw_err *err, const char *what, size_t i) {
    return dw_fail(err, "the file ends inside %s %zu; it may be truncated", what, i);
}

/* Reads the strings of a value: one string into the key's own slot, several into a new array. */
static int read_strings(part *p, dw_cursor *c, dw_kv *kv, dw_str *scalar, dw_err *err) {
    dw_str *str = scalar;
    if (kv->is_array) {
        if (kv->count > c->left / 8) // the shortest string is only its length
            return dw_fail(err, "an array of %zu strings does not fit in the file; it may be truncated", kv->count);
        if (kv->count > DW_GGUF_MAX_STRINGS - p->n_strings)
            return dw_fail(err, "more than %d strings", DW_GGUF_MAX_STRINGS);
        p->n_strings += kv->count;
        str = dw_alloc(kv->count, sizeof *str, "an array of strings", err);
        if (!str) return -1;
    }
    kv->str = str;
    for (size_t i = 0; i < kv->count && !c->failed; i++) str[i] = take_string(c);
    return 0;
}

static int read_value(part *p, dw_cursor *c, dw_kv *kv, dw_str *scalar, dw_err *err) {
    uint32_t type = dw_cursor_u32(c);
    kv->count = 1;
    if (type == DW_KV_ARRAY) {
        kv->is_array = true;
        type = dw_cursor_u32(c);
        kv->count = dw_cursor_u64(c);
        if (type == DW_KV_ARRAY) return dw_fail(err, "arrays of arrays are not supported");
    }
    if (type >= N_KV_TYPES) return dw_fail(err, "unknown value type %u", type);
    kv->type = (dw_kv_type)type;
    kv->data = c->at;
    if (type == DW_KV_STR) {
        if (read_strings(p, c, kv, scalar, err)) return -1;
    } else {
        if (!dw_mul(kv->count, dw_kv_type_bytes(type), &kv->n_bytes) || kv->n_bytes > c->left)
            return dw_fail(err, "%zu x %s do not fit in the file; it may be truncated", kv->count,
                           dw_kv_type_name(type));
        dw_cursor_take(c, kv->n_bytes);
    }
    kv->n_bytes = (size_t)(c->at - kv->data);
    return 0;
}

static int read_kv(part *p, dw_cursor *c, size_t i, dw_err *err) {
    dw_kv *kv = &p->kv[i];
    const dw_str key = take_string(c);
    if (c->failed) return cut_short(err, "key", i);
    dw_err why = {0};
    if (dw_name_check(key, DW_GGUF_MAX_KEY, &why)) return dw_fail(err, "key %zu: %s", i, why.text);
    char *copy = dw_alloc(key.len + 1, 1, "a key", err);
    if (!copy) return -1;
    kv->key = memcpy(copy, key.ptr, key.len);
    if (read_value(p, c, kv, &p->scalars[i], &why)) return dw_fail(err, "key '%.200s': %s", kv->key, why.text);
    return c->failed ? cut_short(err, "the value of key", i) : 0;
}

static int read_tensor(part *p, dw_cursor *c, size_t i, size_t *offset, dw_err *err) {
    dw_tensor *t = &p->tensors[i];
    const dw_str name = take_string(c);
    const uint32_t n_dims = dw_cursor_u32(c);
    if (c->failed) return cut_short(err, "the description of tensor", i);
    dw_err why = {0};
    if (dw_name_check(name, DW_GGUF_MAX_NAME, &why)) return dw_fail(err, "tensor %zu: %s", i, why.text);
    memcpy(p->names[i], name.ptr, name.len);
    t->name = p->names[i];
    if (n_dims > 4) return dw_fail(err, "tensor '%s' has %u dimensions; at most 4 are supported", t->name, n_dims);
    t->n_dims = (int)n_dims;
    for (int d = 0; d < 4; d++) t->ne[d] = d < t->n_dims ? dw_cursor_u64(c) : 1;
    if (!t->n_dims) t->n_dims = 1; // one value
    while (t->n_dims > 2 && t->ne[t->n_dims - 1] == 1) t->n_dims--;
    const uint32_t type = dw_cursor_u32(c);
    *offset = dw_cursor_u64(c);
    if (c->failed) return cut_short(err, "the description of tensor", i);
    t->type = dw_qtype_get(type);
    if (!t->type)
        return dw_fail(err, "tensor '%s' has type %s (%u), which is not supported; use a file with another type",
                       t->name, dw_ggml_type_name(type), type);
    if (dw_tensor_size(t->type, t->ne, &t->n_bytes, &why)) return dw_fail(err, "tensor '%s': %s", t->name, why.text);
    return 0;
}

/* ---- a whole header ---------------------------------------------------------------------------------- */

static int read_start(dw_cursor *c, size_t *n_tensors, size_t *n_kv, dw_err *err) {
    const uint8_t *magic = dw_cursor_take(c, 4);
    if (!magic || memcmp(magic, "GGUF", 4)) return dw_fail(err, "not a GGUF file");
    const uint32_t version = dw_cursor_u32(c);
    *n_tensors = dw_cursor_u64(c);
    *n_kv = dw_cursor_u64(c);
    if (c->failed) return dw_fail(err, "the file ends inside the GGUF header; it may be truncated");
    if (version && !(version & 0xffff)) return dw_fail(err, "a big-endian GGUF file; only little-endian ones are read");
    if (version != 2 && version != 3) return dw_fail(err, "GGUF version %u; only 2 and 3 are read", version);
    return 0;
}

/* Bytes of the shortest record of each kind; a claimed count is compared with the bytes left. */
enum {
    KV_BYTES = 8 + 1 + 4 + 1,         // a key of one letter, an 8-bit value
    TENSOR_BYTES = 8 + 1 + 4 + 4 + 8, // a name of one letter, no dimensions
};

static int check_count(const char *what, size_t n, size_t shortest, size_t max, size_t left, dw_err *err) {
    if (n > left / shortest) return dw_fail(err, "%zu %s do not fit in the file; it may be truncated", n, what);
    if (n > max) return dw_fail(err, "%zu %s; at most %zu are read", n, what, max);
    return 0;
}

static int read_alignment(const part *p, size_t *alignment, dw_err *err) {
    const dw_kv *kv = dw_index_find(&p->by_key, "general.alignment");
    *alignment = DW_GGUF_ALIGNMENT;
    if (!kv) return 0;
    if (kv->is_array || kv->type != DW_KV_U32) return dw_fail(err, "key 'general.alignment' must be one u32");
    *alignment = dw_le32(kv->data);
    if (*alignment < 8 || *alignment > 65536 || (*alignment & (*alignment - 1)))
        return dw_fail(err, "alignment %zu is not a power of two from 8 to 65536", *alignment);
    return 0;
}

static size_t pad(size_t n, size_t alignment) { return (n + alignment - 1) & ~(alignment - 1); }

/* Data starts at the first aligned byte after the header, and tensors follow each other without gaps.  All sums
 * stay below twice the file's size, because each tensor is checked against the bytes that are left. */
static int place_tensors(part *p, size_t header_bytes, size_t alignment, const size_t *offsets, dw_err *err) {
    const size_t start = pad(header_bytes, alignment);
    if (p->n_tensors && start > p->map.size) return cut_short(err, "the padding before tensor", 0);
    const size_t n_bytes = p->n_tensors ? p->map.size - start : 0;
    size_t end = 0; // of the tensors so far, padded
    for (size_t i = 0; i < p->n_tensors; i++) {
        dw_tensor *t = &p->tensors[i];
        if (offsets[i] != end)
            return dw_fail(err, "tensor '%s' is at offset %zu instead of %zu: a gap or an overlap", t->name, offsets[i],
                           end);
        if (end > n_bytes || t->n_bytes > n_bytes - end)
            return dw_fail(err, "tensor '%s' (%zu bytes) reaches beyond the end of the file; it may be truncated",
                           t->name, t->n_bytes);
        t->data = p->map.data + start + end;
        end = pad(end + t->n_bytes, alignment);
    }
    return 0;
}

static int read_records(part *p, dw_cursor *c, size_t *offsets, dw_err *err) {
    size_t alignment;
    for (size_t i = 0; i < p->n_kv; i++)
        if (read_kv(p, c, i, err)) return -1;
    if (dw_index_build(&p->by_key, p->kv, p->n_kv, sizeof *p->kv, "key", err)) return -1;
    if (read_alignment(p, &alignment, err)) return -1;
    for (size_t i = 0; i < p->n_tensors; i++)
        if (read_tensor(p, c, i, &offsets[i], err)) return -1;
    return place_tensors(p, p->map.size - c->left, alignment, offsets, err);
}

static int read_part(part *p, dw_err *err) {
    dw_cursor c = {p->map.data, p->map.size, false};
    size_t n_tensors = 0, n_kv = 0;
    if (read_start(&c, &n_tensors, &n_kv, err)) return -1;
    if (check_count("keys", n_kv, KV_BYTES, DW_GGUF_MAX_KV, c.left, err)) return -1;
    if (check_count("tensors", n_tensors, TENSOR_BYTES, DW_GGUF_MAX_TENSORS, c.left, err)) return -1;
    p->kv = dw_alloc(n_kv, sizeof *p->kv, "keys", err);
    p->scalars = dw_alloc(n_kv, sizeof *p->scalars, "keys", err);
    p->tensors = dw_alloc(n_tensors, sizeof *p->tensors, "tensors", err);
    p->names = dw_alloc(n_tensors, sizeof *p->names, "names of tensors", err);
    size_t *offsets = dw_alloc(n_tensors, sizeof *offsets, "offsets of tensors", err);
    if (!p->kv || !p->scalars || !p->tensors || !p->names || !offsets) {
        free(offsets);
        return -1;
    }
    p->n_kv = n_kv;
    p->n_tensors = n_tensors;
    const int rc = read_records(p, &c, offsets, err);
    free(offsets);
    return rc;
}

static void free_part(part *p) {
    for (size_t i = 0; i < p->n_kv; i++) {
        free((void *)(uintptr_t)p->kv[i].key);
        if (p->kv[i].is_array) free((void *)(uintptr_t)p->kv[i].str);
    }
    dw_index_free(&p->by_key);
    free(p->kv);
    free(p->scalars);
    free(p->tensors);
    free(p->names);
    if (p->mapped) dw_unmap(&p->map);
}

/* ---- the parts of a model ----------------------------------------------------------------------------- */

/* Adds an opened file to the model and reads its header.  The model takes over the map, even on failure. */
static int add_part(dw_gguf *g, part p, const char *name, dw_err *err) {
    dw_err why = {0};
    if (dw_grow(&g->parts, &g->cap_parts, g->n_parts + 1, sizeof p, "parts of a model", err)) {
        free_part(&p);
        return -1;
    }
    part *added = &g->parts[g->n_parts++];
    *added = p;
    return read_part(added, &why) ? dw_fail(err, "'%s': %s", name, why.text) : 0;
}

static int add_file(dw_gguf *g, const char *path, dw_err *err) {
    part p = {.mapped = true};
    if (dw_map_file(&p.map, path, err)) return -1;
    return add_part(g, p, path, err);
}

/* A count of a split model.  The format has u16 and i32; either is accepted. */
static int split_number(const part *p, const char *key, size_t *value, dw_err *err) {
    const dw_kv *kv = dw_index_find(&p->by_key, key);
    if (!kv || kv->is_array || (kv->type != DW_KV_U16 && kv->type != DW_KV_I32 && kv->type != DW_KV_U32))
        return dw_fail(err, "key '%s' of a split model is missing or not a number", key);
    const double number = dw_kv_number(kv, 0);
    if (number < 0) return dw_fail(err, "key '%s' is negative", key);
    *value = (size_t)number;
    return 0;
}

/* Fails unless the file's own keys say that it is part i of n. */
static int check_part(const part *p, size_t i, size_t n, dw_err *err) {
    size_t no = 0, count = 0;
    if (split_number(p, "split.no", &no, err) || split_number(p, "split.count", &count, err)) return -1;
    if (no >= count) return dw_fail(err, "key 'split.no' is %zu, but there are %zu parts", no, count);
    if (no != i && !i) return dw_fail(err, "part %zu of %zu of a split model; give the first part", no + 1, count);
    if (no != i || count != n)
        return dw_fail(err, "part %zu of %zu where part %zu of %zu should be", no + 1, count, i + 1, n);
    return 0;
}

/* "PREFIX-00001-of-00003.gguf" */
enum { SPLIT_DIGITS = 5, SPLIT_ENDING = sizeof "-00001-of-00003.gguf" - 1 };

size_t dw_split_count(const char *path) {
    const size_t len = strlen(path);
    if (len < SPLIT_ENDING) return 1;
    const char *at = path + len - SPLIT_ENDING, *count = at + sizeof "-00001-of-" - 1;
    if (strncmp(at, "-00001-of-", sizeof "-00001-of-" - 1) || strcmp(count + SPLIT_DIGITS, ".gguf")) return 1;
    if (strspn(count, "0123456789") != SPLIT_DIGITS) return 1;
    const long n = strtol(count, NULL, 10);
    return n > 1 ? (size_t)n : 1;
}

char *dw_split_name(const char *path, size_t i, dw_err *err) {
    const size_t n = dw_split_count(path);
    if (n == 1) return dw_strdup(path, err);
    return dw_format(err, "%.*s-%05zu-of-%05zu.gguf", (int)(strlen(path) - SPLIT_ENDING), path, i + 1, n);
}

/* Opens the other parts, whose names follow from the first part's. */
static int add_other_parts(dw_gguf *g, size_t n, dw_err *err) {
    if (dw_split_count(g->path) != n)
        return dw_fail(err, "'%s': the first part of a split model must be named ...-00001-of-%05zu.gguf", g->path, n);
    for (size_t i = 1; i < n; i++) {
        char *path = dw_split_name(g->path, i, err);
        if (!path) return -1;
        dw_err why = {0};
        int rc = add_file(g, path, err);
        if (!rc && check_part(&g->parts[i], i, n, &why)) rc = dw_fail(err, "'%s': %s", path, why.text);
        free(path);
        if (rc) return -1;
    }
    return 0;
}

/* Puts the tensors of all parts in one array and checks their number and names. */
static int join_parts(dw_gguf *g, dw_err *err) {
    size_t n = 0, wanted = 0;
    for (size_t i = 0; i < g->n_parts; i++) n += g->parts[i].n_tensors;
    if (g->n_parts > 1) {
        if (split_number(&g->parts[0], "split.tensors.count", &wanted, err)) return -1;
        if (n != wanted) return dw_fail(err, "the parts hold %zu tensors, but %zu are announced", n, wanted);
    }
    g->tensors = dw_alloc(n, sizeof *g->tensors, "tensors", err);
    if (!g->tensors) return -1;
    for (size_t i = 0; i < g->n_parts; i++) {
        const part *p = &g->parts[i];
        memcpy(g->tensors + g->n_tensors, p->tensors, p->n_tensors * sizeof *p->tensors);
        g->n_tensors += p->n_tensors;
    }
    return dw_index_build(&g->by_name, g->tensors, n, sizeof *g->tensors, "tensor", err);
}

static int finish(dw_gguf *g, dw_err *err) {
    dw_err why = {0};
    size_t n = 1;
    if (dw_gguf_find(g, "split.count")) {
        if (split_number(&g->parts[0], "split.count", &n, &why) || check_part(&g->parts[0], 0, n, &why))
            return dw_fail(err, "'%s': %s", g->path, why.text);
        if (n > 1 && add_other_parts(g, n, err)) return -1;
    }
    return join_parts(g, &why) ? dw_fail(err, "'%s': %s", g->path, why.text) : 0;
}

static dw_gguf *new_gguf(const char *path, dw_err *err) {
    dw_gguf *g = dw_alloc(1, sizeof *g, "a GGUF file", err);
    if (g && (g->path = dw_strdup(path, err))) return g;
    dw_gguf_close(g);
    return NULL;
}

bool dw_is_gguf(const char *path) { return dw_file_begins(path, "GGUF", 4); }

dw_gguf *dw_gguf_open(const char *path, dw_err *err) {
    dw_gguf *g = new_gguf(path, err);
    if (g && !add_file(g, path, err) && !finish(g, err)) return g;
    dw_gguf_close(g);
    return NULL;
}

dw_gguf *dw_gguf_open_memory(const void *data, size_t size, const char *name, dw_err *err) {
    dw_gguf *g = new_gguf(name, err);
    if (g && !add_part(g, (part){.map = {data, size}}, name, err) && !finish(g, err)) return g;
    dw_gguf_close(g);
    return NULL;
}

void dw_gguf_close(dw_gguf *g) {
    if (!g) return;
    for (size_t i = 0; i < g->n_parts; i++) free_part(&g->parts[i]);
    dw_index_free(&g->by_name);
    free(g->parts);
    free(g->tensors);
    free(g->path);
    free(g);
}

/* ---- look-up --------------------------------------------------------------------------------------------- */

const char *dw_gguf_path(const dw_gguf *g) { return g->path; }

size_t dw_gguf_file_bytes(const dw_gguf *g) {
    size_t n = 0;
    for (size_t i = 0; i < g->n_parts; i++) n += g->parts[i].map.size;
    return n;
}

/* Only whole pages; those of a shared, read-only map are read again from the file. */
void dw_gguf_release(const dw_gguf *g, const uint8_t *data, size_t n_bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const uint8_t *first = data + (page - (uintptr_t)data % page) % page, *end = data + n_bytes;
    end -= (uintptr_t)end % page;
    for (size_t i = 0; i < g->n_parts && first < end; i++) {
        const part *p = &g->parts[i];
        if (p->mapped && data >= p->map.data && end <= p->map.data + p->map.size)
            madvise((void *)(uintptr_t)first, (size_t)(end - first), MADV_DONTNEED);
    }
}

static void hash_map(const dw_map *file, uint8_t digest[32]) {
    dw_sha256_digest(file->data, file->size, digest);
}

void dw_gguf_sha256_by(const dw_gguf *g, void (*hash)(const dw_map *file, uint8_t digest[32]), char hex[65]) {
    dw_sha256 whole;
    uint8_t digest[32];
    dw_sha256_begin(&whole);
    for (size_t i = 0; i < g->n_parts; i++) {
        hash(&g->parts[i].map, digest);
        dw_sha256_add(&whole, digest, sizeof digest);
    }
    if (g->n_parts > 1) dw_sha256_end(&whole, digest);
    dw_hex(digest, sizeof digest, hex);
}

void dw_gguf_sha256(const dw_gguf *g, char hex[65]) { dw_gguf_sha256_by(g, hash_map, hex); }

size_t dw_gguf_n_kv(const dw_gguf *g) { return g->parts[0].n_kv; }
const dw_kv *dw_gguf_kv(const dw_gguf *g, size_t i) { return &g->parts[0].kv[i]; }
const dw_kv *dw_gguf_find(const dw_gguf *g, const char *key) { return dw_index_find(&g->parts[0].by_key, key); }
size_t dw_gguf_n_tensors(const dw_gguf *g) { return g->n_tensors; }
const dw_tensor *dw_gguf_tensor(const dw_gguf *g, size_t i) { return &g->tensors[i]; }
const dw_tensor *dw_gguf_find_tensor(const dw_gguf *g, const char *name) { return dw_index_find(&g->by_name, name); }

double dw_kv_number(const dw_kv *kv, size_t i) {
    if (i >= kv->count || kv->type == DW_KV_STR) return NAN;
    const uint8_t *p = kv->data + i * dw_kv_type_bytes(kv->type);
    const uint32_t u = dw_kv_type_bytes(kv->type) >= 4 ? dw_le32(p) : 0;
    float f;
    double d;
    // clang-format off
    switch (kv->type) {
    case DW_KV_U8: return *p;
    case DW_KV_I8: return (int8_t)*p;
    case DW_KV_U16: return dw_le16(p);
    case DW_KV_I16: return (int16_t)dw_le16(p);
    case DW_KV_U32: return u;
    case DW_KV_I32: return (int32_t)u;
    case DW_KV_BOOL: return *p != 0;
    case DW_KV_U64: return (double)dw_le64(p);
    case DW_KV_I64: return (double)(int64_t)dw_le64(p);
    case DW_KV_F32: return memcpy(&f, p, sizeof f), f;
    case DW_KV_F64: return memcpy(&d, p, sizeof d), d;
    default: return NAN;
    }
    // clang-format on
}

static int wrong_type(const dw_kv *kv, const char *wanted, dw_err *err) {
    return dw_fail(err, "key '%.200s' is %s%s, not %s", kv->key, kv->is_array ? "an array of " : "",
                   dw_kv_type_name(kv->type), wanted);
}

/* 1 and the kv, 0 if it is absent, -1 if it is not one value of that type. */
static int find_one(const dw_gguf *g, const char *key, dw_kv_type type, const dw_kv **kv, dw_err *err) {
    *kv = dw_gguf_find(g, key);
    if (!*kv) return 0;
    return (*kv)->is_array || (*kv)->type != type ? wrong_type(*kv, dw_kv_type_name(type), err) : 1;
}

int dw_gguf_u32s(const dw_gguf *g, const char *key, uint32_t *values, size_t n, dw_err *err) {
    const dw_kv *kv = dw_gguf_find(g, key);
    if (!kv) return 0;
    if (kv->type != DW_KV_U32 && kv->type != DW_KV_I32) return wrong_type(kv, "u32", err);
    if (kv->is_array && kv->count != n)
        return dw_fail(err, "key '%.200s' has %zu values instead of %zu", key, kv->count, n);
    if (kv->type == DW_KV_I32)
        for (size_t i = 0; i < kv->count; i++)
            if ((int32_t)dw_le32(kv->data + 4 * i) < 0)
                return dw_fail(err, "key '%.200s' is negative", key);
    for (size_t i = 0; i < n; i++) values[i] = dw_le32(kv->data + (kv->is_array ? 4 * i : 0));
    return 1;
}

int dw_gguf_u32(const dw_gguf *g, const char *key, uint32_t *value, dw_err *err) {
    const dw_kv *kv = dw_gguf_find(g, key);
    if (kv && kv->is_array) return wrong_type(kv, "u32", err);
    return dw_gguf_u32s(g, key, value, 1, err);
}

int dw_gguf_f32(const dw_gguf *g, const char *key, float *value, dw_err *err) {
    const dw_kv *kv;
    const int rc = find_one(g, key, DW_KV_F32, &kv, err);
    if (rc == 1) memcpy(value, kv->data, sizeof *value);
    return rc;
}

int dw_gguf_bool(const dw_gguf *g, const char *key, bool *value, dw_err *err) {
    const dw_kv *kv;
    const int rc = find_one(g, key, DW_KV_BOOL, &kv, err);
    if (rc == 1) *value = *kv->data != 0;
    return rc;
}

int dw_gguf_str(const dw_gguf *g, const char *key, dw_str *value, dw_err *err) {
    const dw_kv *kv;
    const int rc = find_one(g, key, DW_KV_STR, &kv, err);
    if (rc == 1) *value = *kv->str;
    return rc;
}
