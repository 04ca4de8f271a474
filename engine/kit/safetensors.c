/* safetensors.c - reads safetensors: one file, or a folder of shards with an index.
 *
 * A header lists {name: {dtype, shape, data_offsets: [begin, end]}}.  It is valid if the tensors, ordered by begin,
 * cover the data without gap or overlap, and if the length of each is the product of its shape and the size of an
 * element.  Then every byte belongs to a tensor, and no tensor reaches outside the file. */
#include "kit/safetensors.h"
#include "formats/internal.h"
#include "text/json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_HEADER = 100000000, // the format's own limit
    MAX_INDEX = 100000000,
};

// clang-format off
const kit_st_dtype_row kit_st_dtypes[] = {
    {"F32",         32, KIT_ST_F32,   DW_F32},  {"F16",         16, KIT_ST_F16,   DW_F16},
    {"BF16",        16, KIT_ST_BF16,  DW_BF16}, {"U32",         32, KIT_ST_U32,   -1},
    {"BOOL",         8, KIT_ST_OTHER, -1},      {"U8",           8, KIT_ST_OTHER, -1},
    {"I8",           8, KIT_ST_OTHER, -1},      {"F8_E4M3",      8, KIT_ST_OTHER, -1},
    {"F8_E5M2",      8, KIT_ST_OTHER, -1},      {"F8_E8M0",      8, KIT_ST_OTHER, -1},
    {"F8_E4M3FNUZ",  8, KIT_ST_OTHER, -1},      {"F8_E5M2FNUZ",  8, KIT_ST_OTHER, -1},
    {"I16",         16, KIT_ST_OTHER, -1},      {"U16",         16, KIT_ST_OTHER, -1},
    {"I32",         32, KIT_ST_OTHER, -1},      {"I64",         64, KIT_ST_OTHER, -1},
    {"U64",         64, KIT_ST_OTHER, -1},      {"F64",         64, KIT_ST_OTHER, -1},
    {"C64",         64, KIT_ST_OTHER, -1},      {"F4",           4, KIT_ST_OTHER, -1},
    {"F6_E2M3",      6, KIT_ST_OTHER, -1},      {"F6_E3M2",      6, KIT_ST_OTHER, -1},
    {0}};
// clang-format on

const dw_qtype_row *kit_st_qtype(kit_st_dtype dtype) {
    const int qtype = dtype == KIT_ST_OTHER ? -1 : kit_st_dtypes[dtype].qtype;
    return qtype < 0 ? NULL : dw_qtype_get((uint32_t)qtype);
}

bool kit_st_dtype_of(const dw_qtype_row *type, kit_st_dtype *dtype) {
    for (const kit_st_dtype_row *r = kit_st_dtypes; r->name; r++) {
        if (r->qtype != (int)type->id) continue;
        *dtype = r->dtype;
        return true;
    }
    return false;
}

typedef struct shard {
    char *file; // name of the file
    dw_map map;
    bool mapped;           // false: the bytes belong to the caller
    kit_st_tensor *tensors; // in order of data
    size_t n_tensors;
    char *names; // storage of all names
    json_t *metadata; // NULL: none
} shard;

struct kit_safetensors {
    shard *shards;
    size_t n_shards, cap_shards;
    kit_st_tensor *tensors; // of all shards
    size_t n_tensors;
    dw_index by_name;
};

/* ---- one tensor ------------------------------------------------------------------------------------------- */

static int read_whole(const json_t *value, size_t *number) {
    if (!json_is_integer(value) || json_integer_value(value) < 0) return -1;
    *number = (size_t)json_integer_value(value);
    return 0;
}

/* Sets dtype and shape; *n_bytes: the size that they imply. */
static int read_shape(kit_st_tensor *t, const json_t *entry, size_t *n_bytes, dw_err *err) {
    const json_t *shape = json_object_get(entry, "shape"), *value = json_object_get(entry, "dtype");
    const char *dtype = json_string_value(value);
    if (!dtype || !json_is_array(shape)) return dw_fail(err, "its dtype or shape is missing");
    size_t n_bits = 0, n_dims = json_array_size(shape);
    for (const kit_st_dtype_row *r = kit_st_dtypes; r->name && !n_bits; r++) {
        if (strcmp(dtype, r->name)) continue;
        t->dtype = r->dtype;
        t->dtype_name = r->name;
        n_bits = r->n_bits;
    }
    if (!n_bits) return dw_fail(err, "unknown dtype '%.40s'", dtype);
    if (n_dims > 4) return dw_fail(err, "it has %zu dimensions; at most 4 are supported", n_dims);
    t->n_dims = (int)n_dims;
    for (size_t d = 0; d < 4; d++) {
        t->shape[d] = 1;
        if (d < n_dims && read_whole(json_array_get(shape, d), &t->shape[d]))
            return dw_fail(err, "dimension %zu is not a whole number", d);
        if (!dw_mul(n_bits, t->shape[d], &n_bits)) return dw_fail(err, "its dimensions overflow");
    }
    if (n_bits % 8) return dw_fail(err, "its %zu bits are not whole bytes", n_bits);
    *n_bytes = n_bits / 8;
    return 0;
}

static int read_entry(kit_st_tensor *t, const json_t *entry, const uint8_t *data, size_t n_data, dw_err *err) {
    size_t begin = 0, end = 0, n_bytes = 0;
    if (!json_is_object(entry)) return dw_fail(err, "its description is not an object");
    if (read_shape(t, entry, &n_bytes, err)) return -1;
    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (json_array_size(offsets) != 2 || read_whole(json_array_get(offsets, 0), &begin) ||
        read_whole(json_array_get(offsets, 1), &end))
        return dw_fail(err, "its data_offsets are not two whole numbers");
    if (begin > end || end > n_data)
        return dw_fail(err, "its data_offsets %zu to %zu are not within the %zu bytes of data; the file may be "
                       "truncated", begin, end, n_data);
    if (end - begin != n_bytes)
        return dw_fail(err, "it has %zu bytes of data where dtype and shape need %zu", end - begin, n_bytes);
    t->data = data + begin;
    t->n_bytes = n_bytes;
    return 0;
}

/* ---- one file ----------------------------------------------------------------------------------------------- */

static int by_place(const void *a_pointer, const void *b_pointer) {
    const kit_st_tensor *a = a_pointer, *b = b_pointer;
    if (a->data != b->data) return a->data < b->data ? -1 : 1;
    if (a->n_bytes != b->n_bytes) return a->n_bytes < b->n_bytes ? -1 : 1; // empty ones first
    return strcmp(a->name, b->name);
}

static int check_places(shard *s, const uint8_t *data, size_t n_data, dw_err *err) {
    qsort(s->tensors, s->n_tensors, sizeof *s->tensors, by_place);
    const uint8_t *at = data;
    for (size_t i = 0; i < s->n_tensors; i++) {
        const kit_st_tensor *t = &s->tensors[i];
        if (t->data != at) return dw_fail(err, "there is a hole or an overlap before tensor '%.200s'", t->name);
        at += t->n_bytes;
    }
    const size_t n_used = (size_t)(at - data);
    if (n_used != n_data)
        return dw_fail(err, "the file has %zu bytes of data, but its tensors account for %zu", n_data, n_used);
    return 0;
}

static int check_metadata(const json_t *metadata, dw_err *err) {
    const char *key;
    json_t *value;
    if (!json_is_object(metadata)) return dw_fail(err, "__metadata__ is not an object");
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value) if (!json_is_string(value)) return dw_fail(
        err, "__metadata__ '%.200s' is not a string", key);
    return 0;
}

static int read_tensors(shard *s, json_t *header, const uint8_t *data, size_t n_data, dw_err *err) {
    const char *name;
    json_t *entry;
    size_t name_bytes = 0;
    json_object_foreach(header, name, entry) name_bytes += strlen(name) + 1;
    s->tensors = dw_alloc(json_object_size(header), sizeof *s->tensors, "tensors", err);
    s->names = dw_alloc(name_bytes, 1, "names of tensors", err);
    if (!s->tensors || !s->names) return -1;
    char *at = s->names;
    json_object_foreach(header, name, entry) {
        dw_err why = {0};
        if (!strcmp(name, "__metadata__")) {
            if (check_metadata(entry, err)) return -1;
            s->metadata = json_incref(entry);
            continue;
        }
        kit_st_tensor *t = &s->tensors[s->n_tensors++];
        const size_t len = strlen(name) + 1;
        t->name = memcpy(at, name, len);
        at += len;
        if (!*name) return dw_fail(err, "a tensor has an empty name");
        if (read_entry(t, entry, data, n_data, &why)) return dw_fail(err, "tensor '%.200s': %s", name, why.text);
    }
    return check_places(s, data, n_data, err);
}

/* Messages in `err` name the file. */
static int read_shard(shard *s, const char *path, dw_err *err) {
    dw_cursor c = {s->map.data, s->map.size, false};
    const size_t n = dw_cursor_u64(&c);
    if (!c.failed && n > MAX_HEADER)
        return dw_fail(err, "'%s' is not a safetensors file: its header would have %zu bytes, the limit is %d", path, n,
                       MAX_HEADER);
    const uint8_t *text = dw_cursor_take(&c, n);
    if (!text) return dw_fail(err, "'%s': the file ends inside its header; it may be truncated", path);
    json_t *header = dw_json_parse((const char *)text, n, DW_JSON_TREE, path, err);
    if (!header) return -1;
    dw_err why = {0};
    if (!json_is_object(header))
        dw_fail(&why, "its header is not a JSON object");
    else
        read_tensors(s, header, c.at, c.left, &why);
    json_decref(header);
    return why.text[0] ? dw_fail(err, "'%s': %s", path, why.text) : 0;
}

/* Adds a shard to st, also if it cannot be read; it is freed with the others.  memory NULL: maps the file. */
static int add_shard(kit_safetensors *st, const char *path, const char *file, const dw_map *memory, dw_err *err) {
    if (dw_grow(&st->shards, &st->cap_shards, st->n_shards + 1, sizeof *st->shards, "shards", err)) return -1;
    shard *s = &st->shards[st->n_shards++];
    *s = (shard){.mapped = !memory};
    if (memory)
        s->map = *memory;
    else if (dw_map_file(&s->map, path, err))
        return -1;
    s->file = dw_strdup(file, err);
    return s->file ? read_shard(s, path, err) : -1;
}

/* ---- all files ------------------------------------------------------------------------------------------------ */

static int join_shards(kit_safetensors *st, const char *path, dw_err *err) {
    size_t n = 0;
    for (size_t i = 0; i < st->n_shards; i++) n += st->shards[i].n_tensors;
    st->tensors = dw_alloc(n, sizeof *st->tensors, "tensors", err);
    if (!st->tensors) return -1;
    for (size_t i = 0; i < st->n_shards; i++) {
        const shard *s = &st->shards[i];
        memcpy(st->tensors + st->n_tensors, s->tensors, s->n_tensors * sizeof *s->tensors);
        st->n_tensors += s->n_tensors;
    }
    dw_err why = {0};
    if (!dw_index_build(&st->by_name, st->tensors, n, sizeof *st->tensors, "tensor", &why)) return 0;
    return dw_fail(err, "'%s': %s", path, why.text);
}

/* A shard must be in the folder of its index. */
static bool is_plain_name(const char *file) { return file[0] && file[0] != '.' && !strchr(file, '/'); }

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* The different files that an index names; the strings are borrowed from the index. */
static const char **list_files(json_t *weight_map, size_t *n_files, dw_err *err) {
    const char **files = dw_alloc(json_object_size(weight_map), sizeof *files, "names of shards", err);
    const char *name;
    json_t *file;
    size_t n = 0;
    if (!files) return NULL;
    json_object_foreach(weight_map, name, file) {
        files[n] = json_string_value(file);
        if (!files[n] || !is_plain_name(files[n])) {
            dw_fail(err, "the shard of tensor '%.200s' is not a plain file name", name);
            free(files);
            return NULL;
        }
        n++;
    }
    qsort(files, n, sizeof *files, by_text);
    *n_files = 0;
    for (size_t i = 0; i < n; i++)
        if (!i || strcmp(files[i - 1], files[i])) files[(*n_files)++] = files[i];
    return files;
}

/* Fails unless index and shards have the same tensors in the same files. */
static int compare_with_index(kit_safetensors *st, json_t *weight_map, dw_err *err) {
    size_t n_listed = 0;
    for (size_t i = 0; i < st->n_shards; i++) {
        const shard *s = &st->shards[i];
        for (size_t k = 0; k < s->n_tensors; k++) {
            const char *name = s->tensors[k].name, *file = json_string_value(json_object_get(weight_map, name));
            if (!file || strcmp(file, s->file))
                return dw_fail(err, "tensor '%.200s' is in '%s', but the index puts it in %s", name, s->file,
                               file ? file : "no file");
            n_listed++;
        }
    }
    const char *name;
    json_t *file;
    if (n_listed == json_object_size(weight_map)) return 0;
    json_object_foreach(weight_map, name, file) if (!kit_safetensors_find(st, name)) return dw_fail(
        err, "tensor '%.200s' is not in '%s', where the index puts it", name, json_string_value(file));
    return 0;
}

static int add_listed_shards(kit_safetensors *st, const char *folder, json_t *weight_map, dw_err *err) {
    size_t n_files;
    const char **files = list_files(weight_map, &n_files, err);
    if (!files) return -1;
    int rc = 0;
    for (size_t i = 0; i < n_files && !rc; i++) {
        char *path = dw_format(err, "%s/%s", folder, files[i]);
        rc = path ? add_shard(st, path, files[i], NULL, err) : -1;
        free(path);
    }
    free(files);
    return rc;
}

static int open_index(kit_safetensors *st, const char *folder, const char *index, dw_err *err) {
    json_t *root = dw_json_load(index, MAX_INDEX, 2 * DW_JSON_TREE, err);
    if (!root) return -1;
    json_t *weight_map = json_object_get(root, "weight_map");
    dw_err why = {0};
    int rc = -1;
    if (!json_is_object(weight_map))
        dw_fail(&why, "it has no weight_map");
    else if (!add_listed_shards(st, folder, weight_map, &why) && !join_shards(st, folder, &why))
        rc = compare_with_index(st, weight_map, &why);
    json_decref(root);
    return rc ? dw_fail(err, "'%s': %s", index, why.text) : 0;
}

static int open_folder(kit_safetensors *st, const char *folder, dw_err *err) {
    char *one = dw_format(err, "%s/model.safetensors", folder);
    char *index = dw_format(err, "%s/model.safetensors.index.json", folder);
    int rc = -1;
    if (!one || !index)
        rc = -1;
    else if (dw_file_exists(one))
        rc = add_shard(st, one, one, NULL, err) ? -1 : join_shards(st, one, err);
    else if (dw_file_exists(index))
        rc = open_index(st, folder, index, err);
    else
        dw_fail(err, "'%s' has neither model.safetensors nor model.safetensors.index.json", folder);
    free(one);
    free(index);
    return rc;
}

kit_safetensors *kit_safetensors_open(const char *path, dw_err *err) {
    kit_safetensors *st = dw_alloc(1, sizeof *st, "a safetensors file", err);
    if (!st) return NULL;
    const bool ok = dw_is_folder(path) ? !open_folder(st, path, err)
                                       : !add_shard(st, path, path, NULL, err) && !join_shards(st, path, err);
    if (ok) return st;
    kit_safetensors_close(st);
    return NULL;
}

kit_safetensors *kit_safetensors_open_memory(const void *data, size_t size, const char *name, dw_err *err) {
    kit_safetensors *st = dw_alloc(1, sizeof *st, "a safetensors file", err);
    if (st && !add_shard(st, name, name, &(dw_map){data, size}, err) && !join_shards(st, name, err)) return st;
    kit_safetensors_close(st);
    return NULL;
}

void kit_safetensors_close(kit_safetensors *st) {
    if (!st) return;
    for (size_t i = 0; i < st->n_shards; i++) {
        shard *s = &st->shards[i];
        if (s->mapped) dw_unmap(&s->map);
        free(s->file);
        free(s->tensors);
        free(s->names);
        json_decref(s->metadata);
    }
    dw_index_free(&st->by_name);
    free(st->shards);
    free(st->tensors);
    free(st);
}

size_t kit_safetensors_n_files(const kit_safetensors *st) { return st->n_shards; }

const char *kit_safetensors_file(const kit_safetensors *st, size_t i) {
    const char *slash = strrchr(st->shards[i].file, '/');
    return slash ? slash + 1 : st->shards[i].file;
}

const char *kit_safetensors_metadata(const kit_safetensors *st, const char *key) {
    const char *value = NULL;
    for (size_t i = 0; i < st->n_shards && !value; i++)
        value = json_string_value(json_object_get(st->shards[i].metadata, key));
    return value;
}

size_t kit_safetensors_count(const kit_safetensors *st) { return st->n_tensors; }
const kit_st_tensor *kit_safetensors_tensor(const kit_safetensors *st, size_t i) { return &st->tensors[i]; }
const kit_st_tensor *kit_safetensors_find(const kit_safetensors *st, const char *name) {
    return dw_index_find(&st->by_name, name);
}
