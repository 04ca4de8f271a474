/* h5.c - HDF5 files with a checksum: writes them, and asks a child process for their content (h5.h, h5_child.h). */
#include "kit/h5_child.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

enum {
    MOST_DEFLATED = 1100, // bytes from one packed byte; deflate reaches 1032
    CHUNK_ROWS = 256,
    TEXT_BYTES = 128, // a text takes at least as much in the file: numbers, three references to strings, a hash
};

void kit_h5_quiet(void) {
    H5dont_atexit(); // at exit the library would retry a write that a full disk refused, and crash
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    H5PLset_loading_state(0); // no filter comes from outside
}

hid_t kit_h5_string_type(void) {
    const hid_t t = H5Tcopy(H5T_C_S1);
    H5Tset_size(t, H5T_VARIABLE);
    H5Tset_cset(t, H5T_CSET_UTF8);
    return t;
}

hid_t kit_h5_half_type(void) {
    const hid_t t = H5Tcopy(H5T_IEEE_F32LE);
    H5Tset_fields(t, 15, 10, 5, 0, 10);
    H5Tset_size(t, 2);
    H5Tset_ebias(t, 15);
    return t;
}

void kit_h5_user_block(const char *magic, const uint8_t *image, size_t n, char block[KIT_H5_USER_BLOCK]) {
    char hex[65];
    dw_sha256_hex(image, n, hex);
    memset(block, 0, KIT_H5_USER_BLOCK);
    snprintf(block, KIT_H5_USER_BLOCK, "%s%s\n", magic, hex);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static hid_t space_of(size_t rows, size_t cols) {
    const hsize_t dims[] = {rows, cols};
    return H5Screate_simple(cols ? 2 : 1, dims, NULL);
}

void kit_h5_put(kit_h5_out *h, const char *path, hid_t type, hid_t in_memory, size_t rows, size_t cols, bool packed,
                const void *values) {
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

static void put_attribute(kit_h5_out *h, const char *name, hid_t type, hid_t in_memory, const void *value) {
    const hid_t space = H5Screate(H5S_SCALAR), a = H5Acreate2(h->file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    if (a < 0 || H5Awrite(a, in_memory, value) < 0) h->failed = true;
    if (a >= 0) H5Aclose(a);
    H5Sclose(space);
}

void kit_h5_put_int(kit_h5_out *h, const char *name, int value) {
    const int32_t v = value;
    put_attribute(h, name, H5T_STD_I32LE, H5T_NATIVE_INT32, &v);
}
void kit_h5_put_text(kit_h5_out *h, const char *name, const char *value) {
    put_attribute(h, name, h->text, h->text, &value);
}

void kit_h5_put_numbers(kit_h5_out *h, const char *name, const double *value, size_t n) {
    const hid_t space = space_of(n, 0), a = H5Acreate2(h->file, name, H5T_IEEE_F64LE, space, H5P_DEFAULT, H5P_DEFAULT);
    if (a < 0 || H5Awrite(a, H5T_NATIVE_DOUBLE, value) < 0) h->failed = true;
    if (a >= 0) H5Aclose(a);
    H5Sclose(space);
}

void kit_h5_put_note(kit_h5_out *h, const char *path, const char *name, const char *value) {
    kit_h5_out set = {.file = H5Oopen(h->file, path, H5P_DEFAULT)};
    if (set.file < 0) {
        h->failed = true;
        return;
    }
    put_attribute(&set, name, h->text, h->text, &value);
    h->failed |= set.failed;
    H5Oclose(set.file);
}

int kit_h5_put_texts(kit_h5_out *h, const kit_stats_text *text, size_t n, dw_err *err) {
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
        kit_h5_put(h, "texts/name", h->text, h->text, n, 0, false, names);
        kit_h5_put(h, "texts/sha256", h->text, h->text, n, 0, false, hashes);
        kit_h5_put(h, "texts/first_window", H5T_STD_I32LE, H5T_NATIVE_INT32, n, 0, false, window);
        kit_h5_put(h, "texts/n_windows", H5T_STD_I32LE, H5T_NATIVE_INT32, n, 0, false, window + n);
        kit_h5_put(h, "texts/n_tokens", H5T_STD_U64LE, H5T_NATIVE_UINT64, n, 0, false, n_tokens);
        kit_h5_put(h, "texts/blocks", h->text, h->text, n, 0, false, blocks);
    }
    free(names), free(hashes), free(blocks), free(window), free(n_tokens);
    return ok ? 0 : -1;
}

/* ---- reading: the checksum --------------------------------------------------------------------------------------- */

static int check_bytes(const dw_map *map, const char *magic, const char *what, const char *maker, dw_err *err) {
    char block[KIT_H5_USER_BLOCK];
    if (map->size >= 8 && !memcmp(map->data, "\211HDF\r\n\032\n", 8))
        return dw_fail(err, "the file is HDF5 but has no checksum before the data; only files of 'deadwood %s' "
                       "are read", maker);
    if (map->size < strlen(magic) || memcmp(map->data, magic, strlen(magic)))
        return dw_fail(err, "the file holds no %s of 'deadwood %s'", what, maker);
    if (map->size <= KIT_H5_USER_BLOCK) return dw_fail(err, "the file ends after %zu bytes", map->size);
    kit_h5_user_block(magic, map->data + KIT_H5_USER_BLOCK, map->size - KIT_H5_USER_BLOCK, block);
    if (memcmp(block, map->data, KIT_H5_USER_BLOCK))
        return dw_fail(err, "the checksum differs: the file is damaged or was changed");
    return 0;
}

/* ---- reading: the child ------------------------------------------------------------------------------------------ */

enum { MOST_SECONDS = 120 }; // for an answer, should the child wait for something instead of computing

/* Waits for bytes of an answer. */
static bool is_silent(const kit_h5_in *r) {
    struct pollfd p = {.fd = r->socket, .events = POLLIN};
    int n;
    while ((n = poll(&p, 1, MOST_SECONDS * 1000)) < 0 && errno == EINTR) continue;
    return n == 0;
}

/* The child no longer answers: says why.  kit_h5_close waits for it. */
static int fail_child(const kit_h5_in *r) {
    siginfo_t end = {0};
    kill(r->child, SIGKILL); // no effect if it has ended
    while (waitid(P_PID, (id_t)r->child, &end, WEXITED | WNOWAIT) < 0 && errno == EINTR) continue;
    const bool ended = end.si_code == CLD_EXITED,
               too_long = !ended && (end.si_status == SIGPROF || end.si_status == SIGKILL);
    const char *does = ended ? "cannot read" : too_long ? "does not finish reading" : "crashes on";
    return dw_fail(r->err,
                   "the HDF5 library %s the file, which is damaged or hostile; make it again with 'deadwood %s'", does,
                   r->maker);
}

static int receive(const kit_h5_in *r, void *data, size_t size) {
    uint8_t *at = data;
    while (size) {
        const ssize_t n = is_silent(r) ? 0 : read(r->socket, at, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return fail_child(r);
        at += n, size -= (size_t)n;
    }
    return 0;
}

static int ask(const kit_h5_in *r, const kit_h5_request *q, kit_h5_answer *a) {
    size_t sent = 0;
    while (sent < sizeof *q) {
        const ssize_t n = send(r->socket, (const uint8_t *)q + sent, sizeof *q - sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return fail_child(r);
        sent += (size_t)n;
    }
    return receive(r, a, sizeof *a);
}

static kit_h5_request request(kit_h5_what what, const char *path, kit_h5_type type, size_t first, size_t n) {
    kit_h5_request q = {.what = what, .type = type, .first = first, .n = n};
    snprintf(q.path, sizeof q.path, "%s", path);
    return q;
}

/* ---- reading: open and close ------------------------------------------------------------------------------------- */

int kit_h5_open(kit_h5_in *r, const char *path, const char *magic, const char *what, const char *maker, dw_err *err) {
    dw_map map;
    kit_h5_answer opened;
    *r = (kit_h5_in){.maker = maker, .err = err};
    if (dw_map_file(&map, path, err)) return -1;
    int rc = check_bytes(&map, magic, what, maker, err);
    if (!rc) rc = kit_h5_child_start(&map, &r->child, &r->socket, err);
    r->n_bytes = r->n_left = map.size;
    dw_unmap(&map); // the child has its own
    if (rc) r->child = 0;
    if (rc || receive(r, &opened, sizeof opened)) return -1;
    return opened.fault ? dw_fail(err, "the HDF5 library cannot read the file; make it again with 'deadwood %s'", maker)
                        : 0;
}

void kit_h5_close(kit_h5_in *r) {
    if (r->child > 0) {
        close(r->socket);
        kill(r->child, SIGKILL); // it has nothing to finish
        while (waitpid(r->child, NULL, 0) < 0 && errno == EINTR) continue;
    }
    *r = (kit_h5_in){0};
}

int kit_h5_take(kit_h5_in *r, size_t n_bytes, const char *what) {
    if (n_bytes > r->n_left)
        return dw_fail(r->err, "'%s' needs %zu bytes, but only %zu of the file's %zu bytes are left; files in which "
                       "several names share their bytes are refused", what, n_bytes, r->n_left, r->n_bytes);
    r->n_left -= n_bytes;
    return 0;
}

/* ---- reading: checked access ------------------------------------------------------------------------------------- */

size_t kit_h5_type_size(kit_h5_type type) {
    static const uint8_t sizes[] = {
        [KIT_H5_U8] = 1,  [KIT_H5_U32] = 4, [KIT_H5_U64] = 8, [KIT_H5_I32] = 4,
        [KIT_H5_F16] = 2, [KIT_H5_F32] = 4, [KIT_H5_F64] = 8, [KIT_H5_STRING] = 16}; // a reference
    return type <= KIT_H5_STRING ? sizes[type] : 1;
}

int kit_h5_has(const kit_h5_in *r, const char *path, bool *has) {
    const kit_h5_request q = request(KIT_H5_HAS, path, KIT_H5_U8, 0, 0);
    kit_h5_answer a;
    *has = false;
    if (ask(r, &q, &a)) return -1;
    *has = a.fault == KIT_H5_FINE;
    return 0;
}

static int fail_set(const kit_h5_in *r, const char *path, const kit_h5_answer *a) {
    switch (a->fault) {
    case KIT_H5_MISSING: return dw_fail(r->err, "'%s' is missing", path);
    case KIT_H5_NO_SET: return dw_fail(r->err, "'%s' is not a dataset", path);
    case KIT_H5_OTHER_TYPE: return dw_fail(r->err, "'%s' has a number type that this format does not use", path);
    case KIT_H5_OTHER_RANK: return dw_fail(r->err, "'%s' has %d dimensions", path, a->value);
    default: return dw_fail(r->err, "'%s' is stored in a way that this format does not use", path);
    }
}

/* Bytes of n rows; false on overflow. */
static bool bytes_of_rows(const kit_h5_set *set, size_t n, size_t *n_bytes) {
    return dw_mul(n, set->dims[1] ? set->dims[1] : 1, n_bytes) &&
           dw_mul(*n_bytes, kit_h5_type_size(set->type), n_bytes);
}

int kit_h5_find(const kit_h5_in *r, const char *path, kit_h5_type type, kit_h5_set *set) {
    const kit_h5_request q = request(KIT_H5_SET, path, type, 0, 0);
    kit_h5_answer a;
    size_t n_bytes;
    *set = (kit_h5_set){.path = path, .type = type};
    if (ask(r, &q, &a)) return -1;
    set->dims[0] = a.dims[0], set->dims[1] = a.dims[1];
    set->n_stored = a.n_stored;
    const bool fits = a.dims[0] <= KIT_H5_MAX_ROWS && a.dims[1] <= KIT_H5_MAX_ROWS &&
                      bytes_of_rows(set, a.dims[0], &n_bytes);
    if (a.fault || !fits || a.n_stored > r->n_bytes || n_bytes / MOST_DEFLATED > a.n_stored)
        return fail_set(r, path, &a);
    set->is_packed = set->n_stored < n_bytes;
    return 0;
}

int kit_h5_rows(const kit_h5_in *r, const kit_h5_set *set, size_t first, size_t n, void *values) {
    const kit_h5_request q = request(KIT_H5_ROWS, set->path, set->type, first, n);
    kit_h5_answer a;
    size_t n_bytes;
    if (!bytes_of_rows(set, n, &n_bytes)) return dw_fail(r->err, "'%s' is too large", set->path);
    if (ask(r, &q, &a)) return -1;
    if (a.fault || a.n_bytes != n_bytes) return dw_fail(r->err, "'%s' cannot be read", set->path);
    return receive(r, values, n_bytes);
}

int kit_h5_whole(kit_h5_in *r, const kit_h5_set *set, void *values) {
    if (kit_h5_take(r, set->n_stored, set->path) || kit_h5_rows(r, set, 0, set->dims[0], values)) return -1;
    return 0;
}

/* A dataset of one dimension with n entries, not packed. */
static int find_list(const kit_h5_in *r, const char *path, kit_h5_type type, size_t n, kit_h5_set *set) {
    if (kit_h5_find(r, path, type, set)) return -1;
    if (set->dims[0] != n || set->dims[1])
        return dw_fail(r->err, "'%s' has %zu entries, expected %zu", path, set->dims[0], n);
    return set->is_packed ? dw_fail(r->err, "'%s' is packed; only histograms may be", path) : 0;
}

static int read_list(kit_h5_in *r, const char *path, kit_h5_type type, size_t n, void *values) {
    kit_h5_set set;
    if (find_list(r, path, type, n, &set) || kit_h5_whole(r, &set, values)) return -1;
    return 0;
}

int kit_h5_int(const kit_h5_in *r, const char *name, int least, int most, int *value) {
    const kit_h5_request q = request(KIT_H5_INT, name, KIT_H5_I32, 0, 0);
    kit_h5_answer a;
    if (ask(r, &q, &a)) return -1;
    *value = a.value;
    if (a.fault) return dw_fail(r->err, "attribute '%s' is missing or not a 32-bit number", name);
    return a.value < least || a.value > most
               ? dw_fail(r->err, "attribute '%s' is %d, which is out of range", name, a.value)
               : 0;
}

/* The next text that the child sends; free(). */
static char *receive_text(kit_h5_in *r, const char *name) {
    uint64_t n;
    if (receive(r, &n, sizeof n) || kit_h5_take(r, n, name)) return NULL;
    char *text = dw_alloc(n + 1, 1, "a text", r->err);
    if (text && !receive(r, text, n)) return text;
    free(text);
    return NULL;
}

char *kit_h5_text(kit_h5_in *r, const char *name) {
    const kit_h5_request q = request(KIT_H5_TEXT, name, KIT_H5_STRING, 0, 0);
    kit_h5_answer a;
    if (ask(r, &q, &a)) return NULL;
    char *text = a.fault ? NULL : receive_text(r, name);
    if (text && dw_is_utf8(text, strlen(text))) return text;
    free(text);
    dw_fail(r->err, "attribute '%s' is missing or not UTF-8 text", name);
    return NULL;
}

int kit_h5_short_text(kit_h5_in *r, const char *name, char *text, size_t size) {
    char *value = kit_h5_text(r, name);
    if (!value) return -1;
    const int rc = strlen(value) < size ? 0
                                        : dw_fail(r->err, "attribute '%s' is longer than %zu bytes", name, size - 1);
    if (!rc) strcpy(text, value);
    free(value);
    return rc;
}

int kit_h5_hash(kit_h5_in *r, const char *name, char hash[65]) {
    if (kit_h5_short_text(r, name, hash, 65)) return -1;
    return dw_is_hash(hash) ? 0 : dw_fail(r->err, "attribute '%s' is not a hash", name);
}

int kit_h5_n_texts(const kit_h5_in *r, size_t *n) {
    kit_h5_set texts;
    if (kit_h5_find(r, "texts/n_tokens", KIT_H5_U64, &texts)) return -1;
    *n = texts.dims[0];
    if (!*n || *n > KIT_H5_MAX_TEXTS || *n > r->n_bytes / TEXT_BYTES)
        return dw_fail(r->err, "'texts/n_tokens' has %zu entries, which is out of range for this file", *n);
    return find_list(r, "texts/n_tokens", KIT_H5_U64, *n, &texts);
}

/* Reads n strings of a dataset; take() gets them one by one. */
static int read_strings(kit_h5_in *r, const char *path, kit_stats_text *of, size_t n,
                        int (*take)(kit_stats_text *, const char *, dw_err *)) {
    const kit_h5_request q = request(KIT_H5_ROWS, path, KIT_H5_STRING, 0, n);
    kit_h5_answer a;
    kit_h5_set set;
    if (find_list(r, path, KIT_H5_STRING, n, &set) || kit_h5_take(r, set.n_stored, path) || ask(r, &q, &a)) return -1;
    int rc = a.fault ? dw_fail(r->err, "'%s' cannot be read", path) : 0;
    for (size_t t = 0; t < n && !rc; t++) {
        char *text = receive_text(r, path);
        if (!text) return -1;
        rc = dw_is_utf8(text, strlen(text)) ? take(&of[t], text, r->err)
                                            : dw_fail(r->err, "'%s' has bytes that are not UTF-8 text", path);
        free(text);
    }
    return rc;
}

static int take_name(kit_stats_text *t, const char *value, dw_err *err) {
    if (strlen(value) >= sizeof t->name)
        return dw_fail(err, "'texts/name' has a name of more than %zu bytes", sizeof t->name - 1);
    strcpy(t->name, value);
    return 0;
}

static int take_hash(kit_stats_text *t, const char *value, dw_err *err) {
    if (!dw_is_hash(value)) return dw_fail(err, "'texts/sha256' has a value that is not a hash");
    strcpy(t->sha256, value);
    return 0;
}

static int take_blocks(kit_stats_text *t, const char *value, dw_err *err) {
    if (strspn(value, "0123456789abcdef") != strlen(value) || strlen(value) % 8)
        return dw_fail(err, "'texts/blocks' has a value that is not a list of hashes");
    t->blocks = dw_strdup(value, err);
    return t->blocks ? 0 : -1;
}

int kit_h5_texts(kit_h5_in *r, kit_stats_text *text, size_t n) {
    int32_t *window = dw_alloc(2 * n, sizeof *window, "texts", r->err);
    uint64_t *n_tokens = dw_alloc(n, sizeof *n_tokens, "texts", r->err);
    int rc = window && n_tokens && !read_list(r, "texts/first_window", KIT_H5_I32, n, window) &&
                     !read_list(r, "texts/n_windows", KIT_H5_I32, n, window + n) &&
                     !read_list(r, "texts/n_tokens", KIT_H5_U64, n, n_tokens)
                 ? 0
                 : -1;
    uint64_t n_windows = 0;
    for (size_t t = 0; t < n && !rc; t++) {
        text[t].first_window = window[t];
        text[t].n_windows = window[n + t];
        text[t].n_tokens = n_tokens[t];
        if (window[t] < 1 || window[n + t] < 0 || window[t] > INT32_MAX - window[n + t] || n_tokens[t] > UINT32_MAX)
            rc = dw_fail(r->err, "text %zu of '/texts' is out of range: %d windows from window %d on, %llu tokens",
                         t + 1, window[n + t], window[t], (unsigned long long)n_tokens[t]);
        else if ((n_windows += (uint64_t)window[n + t]) > INT32_MAX)
            rc = dw_fail(r->err, "'texts/n_windows' adds up to more than %d windows", INT32_MAX);
    }
    free(window), free(n_tokens);
    if (rc || read_strings(r, "texts/name", text, n, take_name) ||
        read_strings(r, "texts/sha256", text, n, take_hash) || read_strings(r, "texts/blocks", text, n, take_blocks))
        return -1;
    return 0;
}
