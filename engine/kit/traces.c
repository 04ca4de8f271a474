/* traces.c - reads traces.h5 by rows and writes it from begin to end (layout in traces.h). */
#include "kit/traces.h"
#include "kit/disk.h"
#include "kit/talk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VERSION = 1, CHUNK_BYTES = 1 << 20, PATH_BYTES = 32 };

static const char magic[] = "deadwood traces 1\n";

static const char *const part_names[] = {"input", "open", "share"};

size_t traces_row_bytes(const traces *t, int layer, traces_part part) {
    const traces_layer *w = &t->layer[layer];
    switch (part) {
    case TRACES_INPUT: return w->has_input ? 2 * (size_t)t->n_embd : 0;
    case TRACES_OPEN: return traces_open_bytes(w->n_groups);
    default: return 2 * (size_t)w->n_groups;
    }
}

size_t traces_token_bytes(const traces *t) {
    size_t n = 0;
    for (int l = 0; l < t->n_layer; l++)
        for (int part = TRACES_INPUT; part <= TRACES_SHARE; part++) n += traces_row_bytes(t, l, (traces_part)part);
    return n;
}

void traces_release(traces *t) {
    kit_h5_close(&t->in);
    for (size_t i = 0; t->text && i < t->n_text; i++) free(t->text[i].blocks);
    free(t->text);
    free(t->layer);
    free(t->arguments);
    *t = (traces){0};
}

static void path_of(char path[PATH_BYTES], int layer, traces_part part) {
    snprintf(path, PATH_BYTES, "layer/%02d/%s", layer, part_names[part]);
}

static size_t value_size(traces_part part) { return part == TRACES_OPEN ? 1 : 2; }

static hid_t type_of(traces_part part) { return part == TRACES_OPEN ? H5Tcopy(H5T_STD_U8LE) : kit_h5_half_type(); }

/* ---- disk space ------------------------------------------------------------------------------------------ */

/* Reserves the disk space, because the library handles failed writes badly. */
static int reserve(const char *temporary, const char *path, size_t n_bytes, dw_err *err) {
#ifdef FALLOC_FL_KEEP_SIZE
    const int fd = open(temporary, O_WRONLY | O_CLOEXEC);
    const int rc = fd < 0 ? -1 : fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)n_bytes);
    const bool full = fd >= 0 && rc && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG);
    if (fd >= 0) close(fd);
    if (full)
        return dw_fail(err, "cannot write '%s': it needs %s, and the disk does not have that much free space", path,
                       show_bytes((double)n_bytes).text);
    if (!rc) return 0;
#endif
    return kit_need_disk(path, (double)n_bytes, err);
}

/* Releases reserved space that was not used: changing the size twice frees the blocks after the end of the file. */
static int give_back(const char *temporary, const char *path, dw_err *err) {
    struct stat st;
    if (!stat(temporary, &st) && !truncate(temporary, st.st_size + 1) && !truncate(temporary, st.st_size)) return 0;
    return dw_fail(err, "cannot write '%s': %s", path, strerror(errno));
}

/* ---- writing ------------------------------------------------------------------------------------------------ */

typedef struct writer {
    kit_h5_out h;
    const traces *t;
    traces_rows *rows;
    void *ctx;
    uint8_t *chunk;
    dw_err *err;
} writer;

static size_t chunk_rows(const traces *t, size_t row_bytes) {
    const size_t n = CHUNK_BYTES / row_bytes ? CHUNK_BYTES / row_bytes : 1;
    return n < t->n_tokens ? n : t->n_tokens;
}

static hid_t make_set(writer *w, const char *path, hid_t type, size_t cols, size_t rows_per_chunk) {
    const hsize_t dims[] = {w->t->n_tokens, cols}, chunk[] = {rows_per_chunk, cols};
    const hid_t space = H5Screate_simple(2, dims, NULL), how = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_obj_track_times(how, 0);
    H5Pset_chunk(how, 2, chunk);
    H5Pset_shuffle(how);
    H5Pset_deflate(how, 1);
    const hid_t set = H5Dcreate2(w->h.file, path, type, space, w->h.links, how, H5P_DEFAULT);
    H5Pclose(how);
    H5Sclose(space);
    return set;
}

/* Reads rows first .. first + n - 1 of a dataset to `to`, or writes them from `from` if `to` is NULL. */
static bool move_rows(hid_t set, hid_t type, size_t first, size_t n, size_t cols, void *to, const void *from) {
    const hsize_t start[] = {first, 0}, count[] = {n, cols};
    const hid_t all = H5Dget_space(set), memory = H5Screate_simple(2, count, NULL);
    bool ok = all >= 0 && memory >= 0 && H5Sselect_hyperslab(all, H5S_SELECT_SET, start, NULL, count, NULL) >= 0;
    ok = ok && (to ? H5Dread(set, type, memory, all, H5P_DEFAULT, to)
                   : H5Dwrite(set, type, memory, all, H5P_DEFAULT, from)) >= 0;
    if (all >= 0) H5Sclose(all);
    if (memory >= 0) H5Sclose(memory);
    return ok;
}

static int put_part(writer *w, int layer, traces_part part) {
    const size_t row_bytes = traces_row_bytes(w->t, layer, part), cols = row_bytes / value_size(part);
    if (!row_bytes) return 0;
    const size_t most = chunk_rows(w->t, row_bytes);
    char path[PATH_BYTES];
    path_of(path, layer, part);
    const hid_t type = type_of(part), set = make_set(w, path, type, cols, most);
    int rc = 0;
    w->h.failed |= set < 0;
    for (size_t first = 0; first < w->t->n_tokens && !rc && !w->h.failed; first += most) {
        const size_t n = w->t->n_tokens - first < most ? w->t->n_tokens - first : most;
        rc = w->rows(w->ctx, layer, part, first, n, w->chunk, w->err);
        if (!rc && !move_rows(set, type, first, n, cols, NULL, w->chunk)) w->h.failed = true;
    }
    if (set >= 0 && H5Dclose(set) < 0) w->h.failed = true;
    H5Tclose(type);
    return rc;
}

static int put_all(writer *w) {
    const traces *t = w->t;
    kit_h5_put_int(&w->h, "format_version", VERSION);
    kit_h5_put_text(&w->h, "model_sha256", t->model_sha256);
    kit_h5_put_text(&w->h, "model_arch", t->arch);
    kit_h5_put_int(&w->h, "n_layer", t->n_layer);
    kit_h5_put_int(&w->h, "n_embd", t->n_embd);
    kit_h5_put_int(&w->h, "n_ctx", t->n_ctx);
    kit_h5_put_int(&w->h, "skip", t->skip);
    kit_h5_put_int(&w->h, "group", t->group);
    kit_h5_put_int(&w->h, "n_tokens", (int)t->n_tokens);
    kit_h5_put_text(&w->h, "backend", t->backend);
    kit_h5_put_text(&w->h, "arguments", t->arguments);
    if (kit_h5_put_texts(&w->h, t->text, t->n_text, w->err)) return -1;
    for (int l = 0; l < t->n_layer; l++)
        for (int part = TRACES_INPUT; part <= TRACES_SHARE; part++)
            if (put_part(w, l, (traces_part)part)) return -1;
    return 0;
}

static int take_chunk(writer *w) {
    size_t most = CHUNK_BYTES;
    for (int l = 0; l < w->t->n_layer; l++)
        for (int part = TRACES_INPUT; part <= TRACES_SHARE; part++)
            if (traces_row_bytes(w->t, l, (traces_part)part) > most)
                most = traces_row_bytes(w->t, l, (traces_part)part);
    w->chunk = dw_alloc(most, 1, "rows of traces", w->err);
    return w->chunk ? 0 : -1;
}

/* Writes the HDF5 part under the temporary name. */
static int write_h5(writer *w, const char *temporary, const char *path) {
    const size_t raw = w->t->n_tokens * traces_token_bytes(w->t), most = raw + raw / 256 + (4 << 20);
    kit_h5_quiet();
    const hid_t how = H5Pcreate(H5P_FILE_CREATE);
    H5Pset_userblock(how, KIT_H5_USER_BLOCK);
    w->h = (kit_h5_out){.file = H5Fcreate(temporary, H5F_ACC_TRUNC, how, H5P_DEFAULT),
                        .links = H5Pcreate(H5P_LINK_CREATE),
                        .text = kit_h5_string_type()};
    H5Pset_create_intermediate_group(w->h.links, 1);
    w->h.failed = w->h.file < 0;
    int rc = w->h.failed ? 0 : reserve(temporary, path, most, w->err);
    if (!rc && !w->h.failed) rc = put_all(w);
    if (w->h.file >= 0 && H5Fclose(w->h.file) < 0) w->h.failed = true;
    H5Tclose(w->h.text);
    H5Pclose(w->h.links);
    H5Pclose(how);
    if (!rc && w->h.failed) rc = dw_fail(w->err, "cannot write '%s': the HDF5 library failed", path);
    return rc ? -1 : give_back(temporary, path, w->err);
}

/* Writes the user block with the checksum before the HDF5 part. */
static int put_user_block(dw_out *out, dw_err *err) {
    char block[KIT_H5_USER_BLOCK];
    dw_map map;
    const char *temporary = dw_out_temporary(out, err);
    if (!temporary || dw_map_file(&map, temporary, err)) return -1;
    kit_h5_user_block(magic, map.data + KIT_H5_USER_BLOCK, map.size - KIT_H5_USER_BLOCK, block);
    dw_unmap(&map);
    return dw_out_write(out, block, sizeof block, err);
}

static int write_file(writer *w, dw_out *out, const char *path) {
    const char *temporary = dw_out_temporary(out, w->err);
    if (!temporary || take_chunk(w) || write_h5(w, temporary, path)) return -1;
    return put_user_block(out, w->err);
}

/* The new file opens as traces of the same shape, with the bytes of its checksum. */
static int check_file(void *traces_pointer, const char *path, dw_err *err) {
    const traces *t = traces_pointer;
    traces written;
    if (traces_open(&written, path, err)) return -1;
    const bool same = written.n_tokens == t->n_tokens && written.n_layer == t->n_layer && written.n_text == t->n_text;
    traces_release(&written);
    return same ? 0 : dw_fail(err, "it has other layers, texts or tokens than were written");
}

int traces_write(const traces *t, const char *path, traces_rows *rows, void *ctx, dw_err *err) {
    writer w = {.t = t, .rows = rows, .ctx = ctx, .err = err};
    traces wanted = *t;
    dw_out *out = dw_out_open(path, err);
    int rc = out ? write_file(&w, out, path) : -1;
    if (!rc) rc = dw_out_commit_checked(out, check_file, &wanted, err);
    dw_out_free(out);
    free(w.chunk);
    return rc;
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

static kit_h5_type number_of(traces_part part) { return part == TRACES_OPEN ? KIT_H5_U8 : KIT_H5_F16; }

/* Whether the file has the part, and the number of its columns. */
static int look_at(traces *t, int layer, traces_part part, bool *is_there, size_t *cols) {
    char path[PATH_BYTES];
    kit_h5_set set;
    path_of(path, layer, part);
    if (kit_h5_has(&t->in, path, is_there)) return -1;
    if (!*is_there) return 0;
    if (kit_h5_find(&t->in, path, number_of(part), &set)) return -1;
    *cols = set.dims[1];
    if (set.dims[0] == t->n_tokens && set.dims[1]) return 0;
    return dw_fail(t->in.err, "'%s' has %zu x %zu values, expected %zu rows", path, set.dims[0], set.dims[1],
                   t->n_tokens);
}

static int look_at_layer(traces *t, int l) {
    traces_layer *w = &t->layer[l];
    size_t n_in = 0, n_open = 0, n_share = 0;
    bool has_open, has_share;
    if (look_at(t, l, TRACES_INPUT, &w->has_input, &n_in) || look_at(t, l, TRACES_OPEN, &has_open, &n_open) ||
        look_at(t, l, TRACES_SHARE, &has_share, &n_share))
        return -1;
    w->n_groups = (int)n_share;
    if (w->has_input && n_in != (size_t)t->n_embd)
        return dw_fail(t->in.err, "'layer/%02d/input' has %zu columns, expected n_embd, %d", l, n_in, t->n_embd);
    if (has_open != has_share || (has_share && !w->has_input))
        return dw_fail(t->in.err, "layer %d must have input, open and share, but lacks some of them", l);
    if (n_open != traces_open_bytes(w->n_groups))
        return dw_fail(t->in.err, "'layer/%02d/open' has %zu columns, expected %zu for %d groups", l, n_open,
                       traces_open_bytes(w->n_groups), w->n_groups);
    return 0;
}

static int read_layers(traces *t) {
    int n_gated = 0;
    t->layer = dw_alloc((size_t)t->n_layer, sizeof *t->layer, "layers of traces", t->in.err);
    if (!t->layer) return -1;
    for (int l = 0; l < t->n_layer; l++) {
        if (look_at_layer(t, l)) return -1;
        n_gated += t->layer[l].n_groups > 0;
    }
    return n_gated ? 0 : dw_fail(t->in.err, "no layer has decisions");
}

static int read_texts(traces *t) {
    size_t n, n_tokens = 0;
    if (kit_h5_n_texts(&t->in, &n)) return -1;
    t->text = dw_alloc(n, sizeof *t->text, "texts", t->in.err);
    if (!t->text) return -1;
    t->n_text = n;
    if (kit_h5_texts(&t->in, t->text, n)) return -1;
    for (size_t i = 0; i < n; i++) n_tokens += t->text[i].n_tokens;
    return n_tokens == t->n_tokens
               ? 0
               : dw_fail(t->in.err, "the texts have %zu tokens, attribute 'n_tokens' says %zu", n_tokens, t->n_tokens);
}

static int read_header(traces *t) {
    kit_h5_in *r = &t->in;
    int version, n_tokens;
    if (kit_h5_int(r, "format_version", 1, INT32_MAX, &version)) return -1;
    if (version != VERSION)
        return dw_fail(r->err, "the format version is %d, but this program reads %d", version, VERSION);
    if (kit_h5_hash(r, "model_sha256", t->model_sha256) ||
        kit_h5_short_text(r, "model_arch", t->arch, sizeof t->arch) ||
        kit_h5_short_text(r, "backend", t->backend, sizeof t->backend) ||
        kit_h5_int(r, "n_layer", 1, DW_MAX_LAYERS, &t->n_layer) ||
        kit_h5_int(r, "n_embd", 1, KIT_H5_MAX_ROWS, &t->n_embd) || kit_h5_int(r, "n_ctx", 1, 1 << 22, &t->n_ctx) ||
        kit_h5_int(r, "skip", 0, 1 << 22, &t->skip) || kit_h5_int(r, "group", 1, KIT_H5_MAX_ROWS, &t->group) ||
        kit_h5_int(r, "n_tokens", 1, KIT_H5_MAX_ROWS, &n_tokens))
        return -1;
    if (t->skip >= t->n_ctx)
        return dw_fail(r->err, "attribute 'skip' is %d, but windows have only %d tokens", t->skip, t->n_ctx);
    t->n_tokens = (size_t)n_tokens;
    t->arguments = kit_h5_text(r, "arguments");
    return t->arguments ? 0 : -1;
}

int traces_open(traces *t, const char *path, dw_err *err) {
    dw_err own = {0};
    *t = (traces){0};
    if (!kit_h5_open(&t->in, path, magic, "traces", "trace", &own) && !read_header(t) && !read_texts(t) &&
        !read_layers(t)) {
        t->in.err = NULL; // own ends here
        return 0;
    }
    traces_release(t);
    return dw_fail(err, "traces '%s': %s", path, own.text);
}

/* What is wrong with rows of a part; NULL: nothing. */
static const char *fault_of(const traces *t, int layer, traces_part part, size_t n, const uint8_t *rows) {
    const size_t row_bytes = traces_row_bytes(t, layer, part);
    const int n_last = t->layer[layer].n_groups % 8;
    unsigned bad = 0;
    if (part == TRACES_OPEN) {
        for (size_t i = 1; i <= n && n_last; i++) bad |= rows[i * row_bytes - 1] >> n_last;
        return bad ? "bits after the last group" : NULL;
    }
    for (size_t i = 0; i < n * row_bytes; i += 2) {
        const unsigned v = dw_le16(rows + i);
        bad |= part == TRACES_SHARE ? v > 0x3c00 : (v & 0x7c00) == 0x7c00; // above 1 or negative; infinity or NaN
    }
    return !bad ? NULL : part == TRACES_SHARE ? "a share that is not in 0 .. 1" : "NaN or infinity";
}

int traces_read(const traces *t, int layer, traces_part part, size_t first, size_t n, void *rows, dw_err *err) {
    char path[PATH_BYTES];
    dw_err own = {0};
    kit_h5_in r = t->in;
    const kit_h5_set set = {
        path, number_of(part), {t->n_tokens, traces_row_bytes(t, layer, part) / value_size(part)}, 0, false};
    path_of(path, layer, part);
    r.err = &own;
    if (!n) return 0;
    if (kit_h5_rows(&r, &set, first, n, rows)) return dw_fail(err, "%s", own.text);
    const char *fault = fault_of(t, layer, part, n, rows);
    return fault ? dw_fail(err, "'%s' holds %s", path, fault) : 0;
}
