/* h5.c - HDF5 behind a checksum: attributes, datasets and the table of texts, written and read with distrust (h5.h). */
#include "kit/h5.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_DEFLATED = 1100, // deflate makes at most 1032 bytes of one
    CHUNK_ROWS = 256,
};

void dw_h5_quiet(void) {
    H5dont_atexit(); // at exit it would write again what a full disk refused, and crash
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    H5PLset_loading_state(0); // no filter comes from outside
}

hid_t dw_h5_string_type(void) {
    const hid_t t = H5Tcopy(H5T_C_S1);
    H5Tset_size(t, H5T_VARIABLE);
    H5Tset_cset(t, H5T_CSET_UTF8);
    return t;
}

hid_t dw_h5_half_type(void) {
    const hid_t t = H5Tcopy(H5T_IEEE_F32LE);
    H5Tset_fields(t, 15, 10, 5, 0, 10);
    H5Tset_size(t, 2);
    H5Tset_ebias(t, 15);
    return t;
}

void dw_h5_user_block(const char *magic, const uint8_t *image, size_t n, char block[DW_H5_USER_BLOCK]) {
    char hex[65];
    dw_sha256_hex(image, n, hex);
    memset(block, 0, DW_H5_USER_BLOCK);
    snprintf(block, DW_H5_USER_BLOCK, "%s%s\n", magic, hex);
}

/* ---- writing ----------------------------------------------------------------------------------------------------------- */

static hid_t space_of(size_t rows, size_t cols) {
    const hsize_t dims[] = {rows, cols};
    return H5Screate_simple(cols ? 2 : 1, dims, NULL);
}

void dw_h5_put(dw_h5_out *h, const char *path, hid_t type, hid_t in_memory, size_t rows, size_t cols, bool packed, const void *values) {
    const hid_t space = space_of(rows, cols), how = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_obj_track_times(how, 0);
    if (packed) {
        const hsize_t chunk[] = {rows < CHUNK_ROWS ? rows : CHUNK_ROWS, cols};
        H5Pset_chunk(how, 2, chunk);
        H5Pset_shuffle(how);
        H5Pset_deflate(how, 1);
    }
    const hid_t set = H5Dcreate2(h->file, path, type, space, h->links, how, H5P_DEFAULT);
    if (set < 0 || H5Dwrite(set, in_memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) < 0) h->failed = true;
    if (set >= 0) H5Dclose(set);
    H5Pclose(how);
    H5Sclose(space);
}

static void put_attribute(dw_h5_out *h, const char *name, hid_t type, hid_t in_memory, const void *value) {
    const hid_t space = H5Screate(H5S_SCALAR), a = H5Acreate2(h->file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    if (a < 0 || H5Awrite(a, in_memory, value) < 0) h->failed = true;
    if (a >= 0) H5Aclose(a);
    H5Sclose(space);
}

void dw_h5_put_int(dw_h5_out *h, const char *name, int value) {
    const int32_t v = value;
    put_attribute(h, name, H5T_STD_I32LE, H5T_NATIVE_INT32, &v);
}
void dw_h5_put_text(dw_h5_out *h, const char *name, const char *value) { put_attribute(h, name, h->text, h->text, &value); }

int dw_h5_put_texts(dw_h5_out *h, const dw_stats_text *text, size_t n, dw_err *err) {
    const char **names = dw_alloc(n, sizeof *names, "texts", err), **hashes = dw_alloc(n, sizeof *hashes, "texts", err);
    const char **blocks = dw_alloc(n, sizeof *blocks, "texts", err);
    int32_t *window = dw_alloc(2 * n, sizeof *window, "texts", err);
    uint64_t *n_tokens = dw_alloc(n, sizeof *n_tokens, "texts", err);
    const bool ok = names && hashes && blocks && window && n_tokens;
    for (size_t t = 0; ok && t < n; t++) {
        names[t] = text[t].name;
        hashes[t] = text[t].sha256;
        blocks[t] = text[t].blocks ? text[t].blocks : "";
        window[t] = text[t].first_window;
        window[n + t] = text[t].n_windows;
        n_tokens[t] = text[t].n_tokens;
    }
    if (ok) {
        dw_h5_put(h, "texts/name", h->text, h->text, n, 0, false, names);
        dw_h5_put(h, "texts/sha256", h->text, h->text, n, 0, false, hashes);
        dw_h5_put(h, "texts/first_window", H5T_STD_I32LE, H5T_NATIVE_INT32, n, 0, false, window);
        dw_h5_put(h, "texts/n_windows", H5T_STD_I32LE, H5T_NATIVE_INT32, n, 0, false, window + n);
        dw_h5_put(h, "texts/n_tokens", H5T_STD_U64LE, H5T_NATIVE_UINT64, n, 0, false, n_tokens);
        dw_h5_put(h, "texts/blocks", h->text, h->text, n, 0, false, blocks);
    }
    free(names), free(hashes), free(blocks), free(window), free(n_tokens);
    return ok ? 0 : -1;
}

/* ---- reading: the checksum ------------------------------------------------------------------------------------------------ */

static int check_bytes(const dw_map *map, const char *magic, const char *what, const char *maker, dw_err *err) {
    char block[DW_H5_USER_BLOCK];
    if (map->size >= 8 && !memcmp(map->data, "\211HDF\r\n\032\n", 8))
        return dw_fail(err, "the file is HDF5 but has no checksum in front; only files that 'deadwood %s' made are read", maker);
    if (map->size < strlen(magic) || memcmp(map->data, magic, strlen(magic))) return dw_fail(err, "the file holds no %s of 'deadwood %s'", what, maker);
    if (map->size <= DW_H5_USER_BLOCK) return dw_fail(err, "the file ends after %zu bytes", map->size);
    dw_h5_user_block(magic, map->data + DW_H5_USER_BLOCK, map->size - DW_H5_USER_BLOCK, block);
    if (memcmp(block, map->data, DW_H5_USER_BLOCK)) return dw_fail(err, "the checksum differs: the file is damaged or was changed");
    return 0;
}

int dw_h5_open(dw_h5_in *r, const char *path, const char *magic, const char *what, const char *maker, dw_err *err) {
    dw_map map;
    *r = (dw_h5_in){.file = -1, .text = -1, .err = err};
    if (dw_map_file(&map, path, err)) return -1;
    const int rc = check_bytes(&map, magic, what, maker, err);
    r->n_bytes = map.size;
    dw_unmap(&map);
    if (rc) return -1;
    dw_h5_quiet();
    r->text = dw_h5_string_type();
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_file_locking(access, 0, 1);
    r->file = H5Fopen(path, H5F_ACC_RDONLY, access);
    H5Pclose(access);
    return r->file < 0 ? dw_fail(err, "the HDF5 library cannot read the file") : 0;
}

void dw_h5_close(dw_h5_in *r) {
    if (r->file >= 0) H5Fclose(r->file);
    if (r->text >= 0) H5Tclose(r->text);
    r->file = r->text = -1;
}

/* ---- reading: guarded access ------------------------------------------------------------------------------------------------- */

/* Every component of the path is a hard link. */
bool dw_h5_has(const dw_h5_in *r, const char *path) {
    char part[64];
    for (const char *end = path; *end; ) {
        end += strcspn(end, "/");
        snprintf(part, sizeof part, "%.*s", (int)(end - path), path);
        H5L_info_t info;
        if (H5Lexists(r->file, part, H5P_DEFAULT) <= 0 || H5Lget_info(r->file, part, &info, H5P_DEFAULT) < 0 || info.type != H5L_TYPE_HARD)
            return false;
        if (*end) end++;
    }
    return true;
}

/* Stored in this file in a plain way, as few or many bytes as its values need. */
static bool is_plain(const dw_h5_in *r, hid_t set, size_t n_bytes) {
    const hid_t how = H5Dget_create_plist(set);
    if (how < 0) return false;
    const H5D_layout_t layout = H5Pget_layout(how);
    const size_t stored = (size_t)H5Dget_storage_size(set);
    bool ok = H5Pget_external_count(how) == 0 && stored <= r->n_bytes;
    if (layout == H5D_CHUNKED) {
        const int n = H5Pget_nfilters(how);
        for (int i = 0; i < n && ok; i++) {
            unsigned flags, config;
            size_t n_elements = 0;
            const H5Z_filter_t f = H5Pget_filter2(how, (unsigned)i, &flags, &n_elements, NULL, 0, NULL, &config);
            ok = f == H5Z_FILTER_DEFLATE || f == H5Z_FILTER_SHUFFLE;
        }
        ok = ok && n >= 0 && n_bytes / MOST_DEFLATED <= stored;
    } else {
        ok = ok && (layout == H5D_CONTIGUOUS || layout == H5D_COMPACT) && stored == n_bytes;
    }
    H5Pclose(how);
    return ok;
}

/* The dataset of a type and its dimensions (1 or 2; dims[1] is 0 for one), or -1 with a sentence. */
hid_t dw_h5_set(const dw_h5_in *r, const char *path, hid_t type, size_t value_size, size_t dims[2]) {
    if (!dw_h5_has(r, path)) return dw_fail(r->err, "'%s' is missing", path);
    const hid_t set = H5Dopen2(r->file, path, H5P_DEFAULT);
    if (set < 0) return dw_fail(r->err, "'%s' is no dataset", path);
    const hid_t own = H5Dget_type(set), space = H5Dget_space(set);
    hsize_t d[2] = {0, 0};
    const int rank = space < 0 ? -1 : H5Sget_simple_extent_ndims(space);
    size_t n, n_bytes;
    int rc = 0;
    if (own < 0 || H5Tequal(own, type) <= 0) rc = dw_fail(r->err, "'%s' has another number type than this format's", path);
    else if (rank < 1 || rank > 2 || H5Sget_simple_extent_dims(space, d, NULL) < 0) rc = dw_fail(r->err, "'%s' has %d dimensions", path, rank);
    else if (d[0] > DW_H5_MAX_ROWS || d[1] > DW_H5_MAX_ROWS || !dw_mul(d[0], rank == 2 ? d[1] : 1, &n) || !dw_mul(n, value_size, &n_bytes) || !is_plain(r, set, n_bytes))
        rc = dw_fail(r->err, "'%s' is stored in a way that this format does not use", path);
    if (own >= 0) H5Tclose(own);
    if (space >= 0) H5Sclose(space);
    dims[0] = d[0], dims[1] = d[1];
    if (!rc) return set;
    H5Dclose(set);
    return -1;
}

/* A small one-dimensional dataset of n values. */
static int read_list(const dw_h5_in *r, const char *path, hid_t type, hid_t in_memory, size_t value_size, size_t n, void *values) {
    size_t dims[2];
    const hid_t set = dw_h5_set(r, path, type, value_size, dims);
    if (set < 0) return -1;
    int rc = 0;
    if (dims[0] != n || dims[1]) rc = dw_fail(r->err, "'%s' has %zu entries, expected %zu", path, dims[0], n);
    else if (H5Dread(set, in_memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) < 0) rc = dw_fail(r->err, "'%s' cannot be read", path);
    H5Dclose(set);
    return rc;
}

int dw_h5_int(const dw_h5_in *r, const char *name, int least, int most, int *value) {
    int32_t v = 0;
    const hid_t a = H5Aexists(r->file, name) > 0 ? H5Aopen(r->file, name, H5P_DEFAULT) : -1;
    const hid_t type = a < 0 ? -1 : H5Aget_type(a), space = a < 0 ? -1 : H5Aget_space(a);
    const bool ok = type >= 0 && space >= 0 && H5Tequal(type, H5T_STD_I32LE) > 0 && H5Sget_simple_extent_type(space) == H5S_SCALAR &&
                    H5Aread(a, H5T_NATIVE_INT32, &v) >= 0;
    if (type >= 0) H5Tclose(type);
    if (space >= 0) H5Sclose(space);
    if (a >= 0) H5Aclose(a);
    *value = v;
    if (!ok) return dw_fail(r->err, "attribute '%s' is missing or no 32-bit number", name);
    return v < least || v > most ? dw_fail(r->err, "attribute '%s' is %d, which is out of range", name, v) : 0;
}

/* The text of an attribute; free(). */
char *dw_h5_text(const dw_h5_in *r, const char *name) {
    char *value = NULL, *copy = NULL;
    const hid_t a = H5Aexists(r->file, name) > 0 ? H5Aopen(r->file, name, H5P_DEFAULT) : -1;
    const hid_t type = a < 0 ? -1 : H5Aget_type(a), space = a < 0 ? -1 : H5Aget_space(a);
    if (type >= 0 && space >= 0 && H5Tequal(type, r->text) > 0 && H5Sget_simple_extent_type(space) == H5S_SCALAR && H5Aread(a, r->text, &value) >= 0) {
        copy = value && !dw_is_utf8(value, strlen(value)) ? NULL : dw_strdup(value ? value : "", r->err);
        H5free_memory(value);
    }
    if (type >= 0) H5Tclose(type);
    if (space >= 0) H5Sclose(space);
    if (a >= 0) H5Aclose(a);
    if (!copy) dw_fail(r->err, "attribute '%s' is missing or no text", name);
    return copy;
}

int dw_h5_short_text(const dw_h5_in *r, const char *name, char *text, size_t size) {
    char *value = dw_h5_text(r, name);
    if (!value) return -1;
    const int rc = strlen(value) < size ? 0 : dw_fail(r->err, "attribute '%s' is longer than %zu bytes", name, size - 1);
    if (!rc) strcpy(text, value);
    free(value);
    return rc;
}

int dw_h5_hash(const dw_h5_in *r, const char *name, char hash[65]) {
    if (dw_h5_short_text(r, name, hash, 65)) return -1;
    return dw_is_hash(hash) ? 0 : dw_fail(r->err, "attribute '%s' is no hash", name);
}

int dw_h5_n_texts(const dw_h5_in *r, size_t *n) {
    size_t dims[2];
    const hid_t texts = dw_h5_set(r, "texts/n_tokens", H5T_STD_U64LE, 8, dims);
    if (texts < 0) return -1;
    H5Dclose(texts);
    *n = dims[0];
    return dims[0] && dims[0] <= DW_H5_MAX_TEXTS ? 0 : dw_fail(r->err, "'texts/n_tokens' has %zu entries", dims[0]);
}

/* n strings of a dataset, handed over one by one. */
static int read_strings(const dw_h5_in *r, const char *path, dw_stats_text *of, size_t n, int (*take)(dw_stats_text *, const char *, dw_err *)) {
    char **value = dw_alloc(n, sizeof *value, "texts", r->err);
    if (!value) return -1;
    int rc = read_list(r, path, r->text, r->text, 16, n, value); // a string of any length is stored as a reference of 16 bytes
    for (size_t t = 0; t < n && !rc; t++) {
        const char *text = value[t] ? value[t] : "";
        rc = dw_is_utf8(text, strlen(text)) ? take(&of[t], text, r->err) : dw_fail(r->err, "'%s' holds bytes that are no text", path);
    }
    for (size_t t = 0; t < n; t++) H5free_memory(value[t]);
    free(value);
    return rc;
}

static int take_name(dw_stats_text *t, const char *value, dw_err *err) {
    if (strlen(value) >= sizeof t->name) return dw_fail(err, "'texts/name' holds a name of more than %zu bytes", sizeof t->name - 1);
    strcpy(t->name, value);
    return 0;
}

static int take_hash(dw_stats_text *t, const char *value, dw_err *err) {
    if (!dw_is_hash(value)) return dw_fail(err, "'texts/sha256' holds something that is no hash");
    strcpy(t->sha256, value);
    return 0;
}

static int take_blocks(dw_stats_text *t, const char *value, dw_err *err) {
    if (strspn(value, "0123456789abcdef") != strlen(value) || strlen(value) % 8) return dw_fail(err, "'texts/blocks' holds something that is no list of hashes");
    t->blocks = dw_strdup(value, err);
    return t->blocks ? 0 : -1;
}

int dw_h5_texts(const dw_h5_in *r, dw_stats_text *text, size_t n) {
    int32_t *window = dw_alloc(2 * n, sizeof *window, "texts", r->err);
    uint64_t *n_tokens = dw_alloc(n, sizeof *n_tokens, "texts", r->err);
    int rc = window && n_tokens && !read_list(r, "texts/first_window", H5T_STD_I32LE, H5T_NATIVE_INT32, 4, n, window) &&
                     !read_list(r, "texts/n_windows", H5T_STD_I32LE, H5T_NATIVE_INT32, 4, n, window + n) &&
                     !read_list(r, "texts/n_tokens", H5T_STD_U64LE, H5T_NATIVE_UINT64, 8, n, n_tokens)
                 ? 0 : -1;
    uint64_t n_windows = 0;
    for (size_t t = 0; t < n && !rc; t++) {
        text[t].first_window = window[t];
        text[t].n_windows = window[n + t];
        text[t].n_tokens = n_tokens[t];
        if (window[t] < 1 || window[n + t] < 0 || window[t] > INT32_MAX - window[n + t] || n_tokens[t] > UINT32_MAX)
            rc = dw_fail(r->err, "text %zu of '/texts' has windows from %d on, %d of them, %llu tokens", t + 1, window[t], window[n + t], (unsigned long long)n_tokens[t]);
        else if ((n_windows += (uint64_t)window[n + t]) > INT32_MAX)
            rc = dw_fail(r->err, "'texts/n_windows' adds up to more than %d windows", INT32_MAX);
    }
    free(window), free(n_tokens);
    return rc || read_strings(r, "texts/name", text, n, take_name) || read_strings(r, "texts/sha256", text, n, take_hash) ||
                   read_strings(r, "texts/blocks", text, n, take_blocks)
               ? -1 : 0;
}
