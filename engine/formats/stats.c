/* stats.c - activation statistics in memory and as an HDF5 file (layout at the head of stats.h).
 *
 * A file is made in memory by the HDF5 library and written by dw_out, so that a full disk costs one sentence; the library
 * ends badly when its own writes fail.  Reading, the checksum comes first, then only what this file writes is accepted:
 * hard links, plain types, no filters but shuffle and deflate, no storage outside the file, datasets no larger than their
 * bytes in the file explain. */
#include "formats/stats.h"

#include <hdf5.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const int dw_stats_group_sizes[DW_STATS_N_GROUPS] = {32, 64, 128};
const char *const dw_stats_input_names[DW_STATS_N_INPUTS] = {"attn_in", "attn_mix", "ffn_in", "ffn_neuron"};

enum {
    VERSION = 1,
    USER_BLOCK = 512,
    MAX_LAYERS = 1024,
    MAX_WIDTH = 1 << 24,
    MAX_TEXTS = 1 << 20,
    MOST_DEFLATED = 1100, // deflate makes at most 1032 bytes of one
    CHUNK_ROWS = 256,
};

static const char magic[] = "deadwood stats 1\n";

/* ---- bins ----------------------------------------------------------------------------------------------- */

/* The bits of a float are its exponent and mantissa; 2^(1/2) begins the upper half octave. */
int dw_stats_bin(float magnitude) {
    union { float f; uint32_t u; } v = {magnitude};
    const int octave = (int)(v.u >> 23 & 255) - 127, half = (v.u & 0x7fffff) >= 0x3504f4;
    const int bin = 2 * octave + half + 40;
    return bin < 0 ? 0 : bin >= DW_STATS_BINS ? DW_STATS_BINS - 1 : bin;
}

float dw_stats_bin_edge(int bin) { return bin <= 0 ? 0 : (float)exp2((bin - 40) / 2.0); }

/* ---- what a layer holds ------------------------------------------------------------------------------------ */

typedef enum kind { F64, F64_SQUARE, F32_MAGNITUDE, U32, U64 } kind; // sums of squares and magnitudes are not negative

static size_t kind_size(kind k) { return k == U32 || k == F32_MAGNITUDE ? 4 : 8; }

/* One dataset: rows x cols values; cols 0: one dimension.  The arrays' rows by text have room for more texts. */
typedef struct item {
    char path[96];
    kind kind;
    size_t rows, cols;
    void *array_pointer; // address of the pointer in the dw_stats
    bool by_text, packed;
} item;

enum { MAX_ITEMS = 24 };

static item *add_item(item *list, size_t *n, int l, const char *name, kind k, size_t rows, size_t cols, void *array_pointer, bool by_text) {
    item *it = &list[(*n)++];
    *it = (item){.kind = k, .rows = rows, .cols = cols, .array_pointer = array_pointer, .by_text = by_text};
    snprintf(it->path, sizeof it->path, "layer/%02d/%s", l, name);
    return it;
}

/* All datasets of layer l, by the widths that it has: the reader, the writer and the memory follow this list. */
static size_t layer_items(const dw_stats *s, int l, item *list) {
    dw_stats_layer *w = &s->layer[l];
    const size_t n_text = s->n_text, n_ff = (size_t)w->n_ff;
    size_t n = 0;
    char name[48];
    add_item(list, &n, l, "ffn/count", U64, n_text, 0, &w->count, true);
    if (n_ff) {
        add_item(list, &n, l, "ffn/sum_a", F64, n_text, n_ff, &w->sum_a, true);
        add_item(list, &n, l, "ffn/sum_abs", F64_SQUARE, n_text, n_ff, &w->sum_abs, true);
        add_item(list, &n, l, "ffn/sum_square", F64_SQUARE, n_text, n_ff, &w->sum_square, true);
        add_item(list, &n, l, "ffn/max_abs", F32_MAGNITUDE, n_text, n_ff, &w->max_abs, true);
        add_item(list, &n, l, "ffn/hist_a", U32, n_ff, DW_STATS_BINS, &w->hist_a, false)->packed = true;
        add_item(list, &n, l, "ffn/hist_gate", U32, n_ff, DW_STATS_BINS, &w->hist_gate, false)->packed = true;
    }
    for (int g = 0; g < DW_STATS_N_GROUPS && n_ff; g++) {
        const size_t size = (size_t)dw_stats_group_sizes[g];
        snprintf(name, sizeof name, "ffn/hist_group_%zu", size);
        add_item(list, &n, l, name, U32, (n_ff + size - 1) / size, DW_STATS_BINS, &w->hist_group[g], false)->packed = true;
    }
    for (int k = 0; k < DW_STATS_N_INPUTS; k++) {
        if (!w->n_input[k]) continue;
        if (k != DW_STATS_FFN_NEURON) {
            snprintf(name, sizeof name, "input/%s/sum_square", dw_stats_input_names[k]);
            add_item(list, &n, l, name, F64_SQUARE, n_text, (size_t)w->n_input[k], &w->text_square[k], true);
        }
        snprintf(name, sizeof name, "input/%s/hist", dw_stats_input_names[k]);
        add_item(list, &n, l, name, U64, DW_STATS_BINS, 0, &w->input_hist[k], false);
    }
    add_item(list, &n, l, "influence/sum_cosine", F64, n_text, 0, &w->text_cosine, true);
    add_item(list, &n, l, "influence/count", U64, n_text, 0, &w->text_n_cosine, true);
    return n;
}

static item output_item(const dw_stats *s) {
    return (item){.path = "output/sum_square", .kind = F64_SQUARE, .rows = s->n_text, .cols = (size_t)s->n_embd,
                  .array_pointer = (void *)(uintptr_t)&s->text_output_square, .by_text = true};
}

static size_t n_values(const item *it) { return it->rows * (it->cols ? it->cols : 1); }

/* ---- memory ------------------------------------------------------------------------------------------------- */

/* Makes the array of an item, or moves one by text, with n_used texts in it, to a larger place. */
static int make_room(const item *it, size_t n_used, size_t n_text, dw_err *err) {
    const size_t cols = it->cols ? it->cols : 1, rows = it->by_text ? n_text : it->rows;
    void **array = it->array_pointer, *old = *array;
    size_t n;
    if (old && !it->by_text) return 0;
    if (!dw_mul(rows, cols, &n)) return dw_fail(err, "statistics of %zu texts are too large", n_text);
    void *room = dw_alloc(n, kind_size(it->kind), "statistics", err);
    if (!room) return -1;
    if (old) memcpy(room, old, n_used * cols * kind_size(it->kind));
    free(old);
    *array = room;
    return 0;
}

int dw_stats_reserve(dw_stats *s, size_t n_text, dw_err *err) {
    if (n_text <= s->cap_text) return 0;
    if (n_text > MAX_TEXTS) return dw_fail(err, "%zu texts are too many: statistics hold at most %d", n_text, MAX_TEXTS);
    dw_stats_text *text = dw_alloc(n_text, sizeof *text, "statistics", err);
    if (!text) return -1;
    if (s->n_text) memcpy(text, s->text, s->n_text * sizeof *text);
    free(s->text);
    s->text = text;
    item list[MAX_ITEMS], output = output_item(s);
    if (make_room(&output, s->n_text, n_text, err)) return -1;
    for (int l = 0; l < s->n_layer; l++) {
        const size_t n = layer_items(s, l, list);
        for (size_t i = 0; i < n; i++)
            if (make_room(&list[i], s->n_text, n_text, err)) return -1;
        s->layer[l].text_square[DW_STATS_FFN_NEURON] = s->layer[l].sum_square;
    }
    s->cap_text = n_text;
    return 0;
}

/* The arrays that hold totals. */
static int make_totals(dw_stats *s, dw_err *err) {
    s->output_square = dw_alloc((size_t)s->n_embd, sizeof *s->output_square, "statistics", err);
    if (!s->output_square) return -1;
    for (int l = 0; l < s->n_layer; l++) {
        dw_stats_layer *w = &s->layer[l];
        for (int k = 0; k < DW_STATS_N_INPUTS; k++) {
            if (!w->n_input[k]) continue;
            w->input_square[k] = dw_alloc((size_t)w->n_input[k], sizeof *w->input_square[k], "statistics", err);
            if (!w->input_square[k]) return -1;
        }
    }
    return 0;
}

int dw_stats_init(dw_stats *s, int n_layer, int n_embd, const int *n_ff, const int *n_attn_mix, size_t n_text, dw_err *err) {
    *s = (dw_stats){.n_embd = n_embd, .hist_every = 1};
    if (n_layer < 1 || n_layer > MAX_LAYERS || n_embd < 1 || n_embd > MAX_WIDTH || !n_text)
        return dw_fail(err, "statistics of %d layers of width %d and %zu texts are out of range", n_layer, n_embd, n_text);
    for (int l = 0; l < n_layer; l++)
        if (n_ff[l] < 0 || n_ff[l] > MAX_WIDTH || n_attn_mix[l] < 0 || n_attn_mix[l] > MAX_WIDTH)
            return dw_fail(err, "layer %d: statistics of %d neurons and %d attention values are out of range", l, n_ff[l], n_attn_mix[l]);
    s->layer = dw_alloc((size_t)n_layer, sizeof *s->layer, "statistics", err);
    if (!s->layer) return -1;
    s->n_layer = n_layer;
    for (int l = 0; l < n_layer; l++)
        s->layer[l] = (dw_stats_layer){.n_ff = n_ff[l], .n_input = {n_attn_mix[l] ? n_embd : 0, n_attn_mix[l], n_ff[l] ? n_embd : 0, n_ff[l]}};
    s->arguments = dw_strdup("", err);
    if (s->arguments && !make_totals(s, err) && !dw_stats_reserve(s, n_text, err)) {
        s->n_text = n_text;
        return 0;
    }
    dw_stats_release(s);
    return -1;
}

void dw_stats_release(dw_stats *s) {
    item list[MAX_ITEMS];
    for (int l = 0; l < s->n_layer; l++) {
        const size_t n = layer_items(s, l, list);
        for (size_t i = 0; i < n; i++) free(*(void **)list[i].array_pointer);
        for (int k = 0; k < DW_STATS_N_INPUTS; k++) free(s->layer[l].input_square[k]);
    }
    for (size_t t = 0; t < s->n_text; t++) free(s->text[t].blocks);
    free(s->text);
    free(s->layer);
    free(s->text_output_square);
    free(s->output_square);
    free(s->arguments);
    *s = (dw_stats){0};
}

/* ---- totals, addition ------------------------------------------------------------------------------------------ */

static void add_rows(double *total, const double *rows, size_t n_rows, size_t n) {
    memset(total, 0, n * sizeof *total);
    for (size_t r = 0; r < n_rows; r++)
        for (size_t i = 0; i < n; i++) total[i] += rows[r * n + i];
}

void dw_stats_total(dw_stats *s) {
    add_rows(s->output_square, s->text_output_square, s->n_text, (size_t)s->n_embd);
    for (int l = 0; l < s->n_layer; l++) {
        dw_stats_layer *w = &s->layer[l];
        for (int k = 0; k < DW_STATS_N_INPUTS; k++)
            if (w->n_input[k]) add_rows(w->input_square[k], w->text_square[k], s->n_text, (size_t)w->n_input[k]);
        add_rows(&w->sum_cosine, w->text_cosine, s->n_text, 1);
        w->n_cosine = 0;
        for (size_t t = 0; t < s->n_text; t++) w->n_cosine += w->text_n_cosine[t];
    }
}

uint64_t dw_stats_n_tokens(const dw_stats *s) {
    uint64_t n = 0;
    for (size_t t = 0; t < s->n_text; t++) n += s->text[t].n_tokens;
    return n;
}

static bool texts_overlap(const dw_stats_text *a, const dw_stats_text *b) {
    return !strcmp(a->sha256, b->sha256) && a->first_window < b->first_window + b->n_windows && b->first_window < a->first_window + a->n_windows;
}

static int by_file_and_window(const void *a, const void *b) {
    const dw_stats_text *x = *(dw_stats_text *const *)a, *y = *(dw_stats_text *const *)b;
    const int order = strcmp(x->sha256, y->sha256);
    return order ? order : x->first_window - y->first_window;
}

bool dw_stats_overlap(const dw_stats *s, size_t *first, size_t *second) {
    const dw_stats_text **sorted = dw_alloc(s->n_text, sizeof(dw_stats_text *), "texts", NULL);
    bool found = false;
    for (size_t t = 0; sorted && t < s->n_text; t++) sorted[t] = &s->text[t];
    if (sorted) qsort(sorted, s->n_text, sizeof *sorted, by_file_and_window);
    for (size_t t = 1; sorted && t < s->n_text && !found; t++) {
        found = texts_overlap(sorted[t - 1], sorted[t]);
        if (found) *first = (size_t)(sorted[t - 1] - s->text), *second = (size_t)(sorted[t] - s->text);
    }
    free(sorted);
    return found;
}

static int check_same(const dw_stats *a, const dw_stats *b, dw_err *err) {
    if (strcmp(a->model_sha256, b->model_sha256))
        return dw_fail(err, "statistics of two models do not add up: sha256 %.12s and %.12s", a->model_sha256, b->model_sha256);
    if (a->n_ctx != b->n_ctx || a->skip != b->skip || a->hist_every != b->hist_every)
        return dw_fail(err, "statistics of windows of %d, skip %d, histograms every %d do not add up with %d, %d, %d", a->n_ctx, a->skip,
                       a->hist_every, b->n_ctx, b->skip, b->hist_every);
    bool same = a->n_layer == b->n_layer && a->n_embd == b->n_embd;
    for (int l = 0; same && l < a->n_layer; l++)
        same = a->layer[l].n_ff == b->layer[l].n_ff && !memcmp(a->layer[l].n_input, b->layer[l].n_input, sizeof a->layer[l].n_input);
    if (!same) return dw_fail(err, "statistics of different widths do not add up");
    return 0;
}

static void add_item_to(const item *to, const item *from) {
    const size_t size = kind_size(to->kind), n = n_values(from);
    uint8_t *a = *(uint8_t **)to->array_pointer;
    const uint8_t *b = *(uint8_t **)from->array_pointer;
    if (to->by_text) memcpy(a + n_values(to) * size, b, n * size);
    else if (to->kind == U32)
        for (size_t i = 0; i < n; i++) ((uint32_t *)(void *)a)[i] += ((const uint32_t *)(const void *)b)[i];
    else
        for (size_t i = 0; i < n; i++) ((uint64_t *)(void *)a)[i] += ((const uint64_t *)(const void *)b)[i];
}

/* Sums of 32-bit histograms stay below 2^32 while all tokens do. */
static int check_counts(const dw_stats *a, const dw_stats *b, dw_err *err) {
    if (dw_stats_n_tokens(a) + dw_stats_n_tokens(b) > UINT32_MAX) return dw_fail(err, "statistics of more than %u tokens cannot be added", UINT32_MAX);
    return 0;
}

int dw_stats_can_add(const dw_stats *a, const dw_stats *b, dw_err *err) {
    if (check_same(a, b, err) || check_counts(a, b, err)) return -1;
    for (size_t t = 0; t < b->n_text; t++)
        for (size_t u = 0; u < a->n_text; u++)
            if (texts_overlap(&a->text[u], &b->text[t]))
                return dw_fail(err, "windows of '%s' stand in both statistics: %d to %d and %d to %d", b->text[t].name, a->text[u].first_window,
                               a->text[u].first_window + a->text[u].n_windows - 1, b->text[t].first_window,
                               b->text[t].first_window + b->text[t].n_windows - 1);
    return 0;
}

int dw_stats_add(dw_stats *a, const dw_stats *b, dw_err *err) {
    const size_t n_text = a->n_text;
    if (dw_stats_can_add(a, b, err) || dw_stats_reserve(a, n_text + b->n_text, err)) return -1;
    for (size_t t = 0; t < b->n_text; t++) {
        a->text[n_text + t] = b->text[t];
        a->text[n_text + t].blocks = dw_strdup(b->text[t].blocks, err);
        if (!a->text[n_text + t].blocks) {
            while (t--) free(a->text[n_text + t].blocks);
            return -1;
        }
    }
    item to[MAX_ITEMS], from[MAX_ITEMS];
    for (int l = 0; l < a->n_layer; l++) {
        const size_t n = layer_items(a, l, to);
        layer_items(b, l, from);
        for (size_t i = 0; i < n; i++) add_item_to(&to[i], &from[i]);
    }
    const item output_a = output_item(a), output_b = output_item(b);
    add_item_to(&output_a, &output_b);
    a->n_text = n_text + b->n_text;
    dw_stats_total(a);
    return 0;
}

/* ---- HDF5: what both directions need -------------------------------------------------------------------------------- */

static void quiet(void) {
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    H5PLset_loading_state(0); // no filter comes from outside
}

/* In the file, little endian; and in memory. */
static hid_t file_type(kind k) {
    return k == F64 || k == F64_SQUARE ? H5T_IEEE_F64LE : k == F32_MAGNITUDE ? H5T_IEEE_F32LE : k == U32 ? H5T_STD_U32LE : H5T_STD_U64LE;
}
static hid_t memory_type(kind k) {
    return k == F64 || k == F64_SQUARE ? H5T_NATIVE_DOUBLE : k == F32_MAGNITUDE ? H5T_NATIVE_FLOAT : k == U32 ? H5T_NATIVE_UINT32 : H5T_NATIVE_UINT64;
}

static hid_t string_type(void) {
    const hid_t t = H5Tcopy(H5T_C_S1);
    H5Tset_size(t, H5T_VARIABLE);
    H5Tset_cset(t, H5T_CSET_UTF8);
    return t;
}

/* ---- writing ----------------------------------------------------------------------------------------------------------- */

/* Every call hands its identifiers to `keep`, which notes failures and closes at the end. */
typedef struct h5 {
    hid_t file, links, text;
    bool failed;
} h5;

static hid_t space_of(size_t rows, size_t cols) {
    const hsize_t dims[] = {rows, cols};
    return H5Screate_simple(cols ? 2 : 1, dims, NULL);
}

static void put_values(h5 *h, const char *path, hid_t type, hid_t in_memory, size_t rows, size_t cols, bool packed, const void *values) {
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

static void put_item(h5 *h, const item *it) {
    put_values(h, it->path, file_type(it->kind), memory_type(it->kind), it->rows, it->cols, it->packed, *(void **)it->array_pointer);
}

static void put_attribute(h5 *h, const char *name, hid_t type, hid_t in_memory, const void *value) {
    const hid_t space = H5Screate(H5S_SCALAR), a = H5Acreate2(h->file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    if (a < 0 || H5Awrite(a, in_memory, value) < 0) h->failed = true;
    if (a >= 0) H5Aclose(a);
    H5Sclose(space);
}

static void put_int(h5 *h, const char *name, int value) {
    const int32_t v = value;
    put_attribute(h, name, H5T_STD_I32LE, H5T_NATIVE_INT32, &v);
}
static void put_text(h5 *h, const char *name, const char *value) { put_attribute(h, name, h->text, h->text, &value); }

static int put_texts(h5 *h, const dw_stats *s, dw_err *err) {
    const size_t n = s->n_text;
    const char **names = dw_alloc(n, sizeof *names, "texts", err), **hashes = dw_alloc(n, sizeof *hashes, "texts", err);
    const char **blocks = dw_alloc(n, sizeof *blocks, "texts", err);
    int32_t *window = dw_alloc(2 * n, sizeof *window, "texts", err);
    uint64_t *n_tokens = dw_alloc(n, sizeof *n_tokens, "texts", err);
    const bool ok = names && hashes && blocks && window && n_tokens;
    for (size_t t = 0; ok && t < n; t++) {
        names[t] = s->text[t].name;
        hashes[t] = s->text[t].sha256;
        blocks[t] = s->text[t].blocks ? s->text[t].blocks : "";
        window[t] = s->text[t].first_window;
        window[n + t] = s->text[t].n_windows;
        n_tokens[t] = s->text[t].n_tokens;
    }
    if (ok) {
        put_values(h, "texts/name", h->text, h->text, n, 0, false, names);
        put_values(h, "texts/sha256", h->text, h->text, n, 0, false, hashes);
        put_values(h, "texts/first_window", H5T_STD_I32LE, H5T_NATIVE_INT32, n, 0, false, window);
        put_values(h, "texts/n_windows", H5T_STD_I32LE, H5T_NATIVE_INT32, n, 0, false, window + n);
        put_values(h, "texts/n_tokens", H5T_STD_U64LE, H5T_NATIVE_UINT64, n, 0, false, n_tokens);
        put_values(h, "texts/blocks", h->text, h->text, n, 0, false, blocks);
    }
    free(names), free(hashes), free(blocks), free(window), free(n_tokens);
    return ok ? 0 : -1;
}

static int put_all(h5 *h, const dw_stats *s, dw_err *err) {
    put_int(h, "format_version", VERSION);
    put_text(h, "model_sha256", s->model_sha256);
    put_text(h, "model_arch", s->arch);
    put_int(h, "n_layer", s->n_layer);
    put_int(h, "n_embd", s->n_embd);
    put_int(h, "n_ctx", s->n_ctx);
    put_int(h, "skip", s->skip);
    put_int(h, "hist_every", s->hist_every);
    put_text(h, "backend", s->backend);
    put_text(h, "arguments", s->arguments);
    if (put_texts(h, s, err)) return -1;
    item list[MAX_ITEMS];
    const item output = output_item(s);
    for (int l = 0; l < s->n_layer; l++) {
        const size_t n = layer_items(s, l, list);
        for (size_t i = 0; i < n; i++) put_item(h, &list[i]);
        if (!s->layer[l].n_ff) continue;
        char from[64], to[64];
        snprintf(from, sizeof from, "layer/%02d/ffn/sum_square", l);
        snprintf(to, sizeof to, "layer/%02d/input/ffn_neuron/sum_square", l);
        if (H5Lcreate_hard(h->file, from, h->file, to, h->links, H5P_DEFAULT) < 0) h->failed = true;
    }
    put_item(h, &output);
    return 0;
}

/* The file behind the user block, as the library holds it in memory: borrowed until the file is closed. */
static const uint8_t *image_of(h5 *h, hid_t access, size_t *size) {
    void *memory = NULL;
    hsize_t allocated = 0;
    if (H5Fflush(h->file, H5F_SCOPE_GLOBAL) < 0 || H5Fget_filesize(h->file, &allocated) < 0) return NULL;
    const ssize_t n = H5Fget_file_image(h->file, NULL, 0);
    if (n <= 0 || (hsize_t)n + USER_BLOCK > allocated || H5Fget_vfd_handle(h->file, access, &memory) < 0) return NULL;
    *size = (size_t)n;
    return *(uint8_t **)memory + USER_BLOCK;
}

static void user_block(const uint8_t *image, size_t n, char block[USER_BLOCK]) {
    dw_sha256 h;
    uint8_t digest[32];
    char hex[65];
    dw_sha256_begin(&h);
    dw_sha256_add(&h, image, n);
    dw_sha256_end(&h, digest);
    dw_hex(digest, 32, hex);
    memset(block, 0, USER_BLOCK);
    snprintf(block, USER_BLOCK, "%s%s\n", magic, hex);
}

static int save_image(const uint8_t *image, size_t n, const char *path, dw_err *err) {
    char block[USER_BLOCK];
    dw_out *out = dw_out_open(path, err);
    if (!out) return -1;
    user_block(image, n, block);
    const int rc = dw_out_write(out, block, USER_BLOCK, err) || dw_out_write(out, image, n, err) || dw_out_commit(out, err) ? -1 : 0;
    dw_out_free(out);
    return rc;
}

int dw_stats_write(const dw_stats *s, const char *path, dw_err *err) {
    quiet();
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS), how = H5Pcreate(H5P_FILE_CREATE);
    H5Pset_fapl_core(access, 4 << 20, 0); // in memory, never on disk
    H5Pset_userblock(how, USER_BLOCK);
    h5 h = {.file = H5Fcreate(path, H5F_ACC_TRUNC, how, access), .links = H5Pcreate(H5P_LINK_CREATE), .text = string_type()};
    H5Pset_create_intermediate_group(h.links, 1);
    int rc = h.file < 0 ? dw_fail(err, "cannot make '%s': the HDF5 library gives no memory file", path) : put_all(&h, s, err);
    size_t n = 0;
    const uint8_t *image = rc || h.failed ? NULL : image_of(&h, access, &n);
    if (!rc) rc = image ? save_image(image, n, path, err) : dw_fail(err, "out of memory: statistics for '%s' in the HDF5 library", path);
    if (h.file >= 0) H5Fclose(h.file);
    H5Tclose(h.text);
    H5Pclose(h.links);
    H5Pclose(how);
    H5Pclose(access);
    return rc;
}

/* ---- reading: the checksum ------------------------------------------------------------------------------------------------ */

bool dw_stats_is(const char *path) {
    dw_map map;
    if (dw_map_file(&map, path, NULL)) return false;
    const bool is = map.size >= sizeof magic - 1 && !memcmp(map.data, magic, sizeof magic - 1);
    dw_unmap(&map);
    return is;
}

static int check_bytes(const dw_map *map, dw_err *err) {
    char block[USER_BLOCK];
    if (map->size >= 8 && !memcmp(map->data, "\211HDF\r\n\032\n", 8))
        return dw_fail(err, "the file is HDF5 but has no checksum in front; only files that 'deadwood collect' made are read");
    if (map->size < sizeof magic - 1 || memcmp(map->data, magic, sizeof magic - 1)) return dw_fail(err, "the file holds no statistics of 'deadwood collect'");
    if (map->size <= USER_BLOCK) return dw_fail(err, "the file ends after %zu bytes", map->size);
    user_block(map->data + USER_BLOCK, map->size - USER_BLOCK, block);
    if (memcmp(block, map->data, USER_BLOCK)) return dw_fail(err, "the checksum differs: the file is damaged or was changed");
    return 0;
}

/* ---- reading: guarded access ------------------------------------------------------------------------------------------------- */

typedef struct reader {
    hid_t file, text;
    size_t n_bytes; // of the file
    dw_err *err;
} reader;

/* Every component of the path is a hard link. */
static bool is_inside(const reader *r, const char *path) {
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
static bool is_plain(const reader *r, hid_t set, size_t n_bytes) {
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
static hid_t open_set(const reader *r, const char *path, hid_t type, size_t value_size, size_t dims[2]) {
    if (!is_inside(r, path)) return dw_fail(r->err, "'%s' is missing", path);
    const hid_t set = H5Dopen2(r->file, path, H5P_DEFAULT);
    if (set < 0) return dw_fail(r->err, "'%s' is no dataset", path);
    const hid_t own = H5Dget_type(set), space = H5Dget_space(set);
    hsize_t d[2] = {0, 0};
    const int rank = space < 0 ? -1 : H5Sget_simple_extent_ndims(space);
    size_t n, n_bytes;
    int rc = 0;
    if (own < 0 || H5Tequal(own, type) <= 0) rc = dw_fail(r->err, "'%s' has another number type than %s", path, "this format's");
    else if (rank < 1 || rank > 2 || H5Sget_simple_extent_dims(space, d, NULL) < 0) rc = dw_fail(r->err, "'%s' has %d dimensions", path, rank);
    else if (d[0] > MAX_WIDTH || d[1] > MAX_WIDTH || !dw_mul(d[0], rank == 2 ? d[1] : 1, &n) || !dw_mul(n, value_size, &n_bytes) || !is_plain(r, set, n_bytes))
        rc = dw_fail(r->err, "'%s' is stored in a way that this format does not use", path);
    if (own >= 0) H5Tclose(own);
    if (space >= 0) H5Sclose(space);
    dims[0] = d[0], dims[1] = d[1];
    if (!rc) return set;
    H5Dclose(set);
    return -1;
}

static const char *value_fault(const item *it, size_t n) {
    const void *values = *(void **)it->array_pointer;
    if (it->kind == U32 || it->kind == U64) return NULL;
    for (size_t i = 0; i < n; i++) {
        const double v = it->kind == F32_MAGNITUDE ? (double)((const float *)values)[i] : ((const double *)values)[i];
        if (!isfinite(v)) return isnan(v) ? "NaN" : "infinity";
        if (v < 0 && it->kind != F64) return "a negative sum";
    }
    return NULL;
}

/* An item's values into its array, which has the room. */
static int read_item(const reader *r, const item *it) {
    size_t dims[2];
    const hid_t set = open_set(r, it->path, file_type(it->kind), kind_size(it->kind), dims);
    if (set < 0) return -1;
    const size_t n = n_values(it);
    int rc = 0;
    if (dims[0] != it->rows || dims[1] != it->cols)
        rc = dw_fail(r->err, "'%s' has %zu x %zu values, expected %zu x %zu", it->path, dims[0], dims[1] ? dims[1] : 1, it->rows, it->cols ? it->cols : 1);
    else if (H5Dread(set, memory_type(it->kind), H5S_ALL, H5S_ALL, H5P_DEFAULT, *(void **)it->array_pointer) < 0)
        rc = dw_fail(r->err, "'%s' cannot be read", it->path);
    H5Dclose(set);
    const char *fault = rc ? NULL : value_fault(it, n);
    return fault ? dw_fail(r->err, "'%s' holds %s", it->path, fault) : rc;
}

/* A small one-dimensional dataset of n values. */
static int read_list(const reader *r, const char *path, hid_t type, hid_t in_memory, size_t value_size, size_t n, void *values) {
    size_t dims[2];
    const hid_t set = open_set(r, path, type, value_size, dims);
    if (set < 0) return -1;
    int rc = 0;
    if (dims[0] != n || dims[1]) rc = dw_fail(r->err, "'%s' has %zu entries, expected %zu", path, dims[0], n);
    else if (H5Dread(set, in_memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) < 0) rc = dw_fail(r->err, "'%s' cannot be read", path);
    H5Dclose(set);
    return rc;
}

static int read_int(const reader *r, const char *name, int least, int most, int *value) {
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
static char *read_text(const reader *r, const char *name) {
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

static int read_short_text(const reader *r, const char *name, char *text, size_t size) {
    char *value = read_text(r, name);
    if (!value) return -1;
    const int rc = strlen(value) < size ? 0 : dw_fail(r->err, "attribute '%s' is longer than %zu bytes", name, size - 1);
    if (!rc) strcpy(text, value);
    free(value);
    return rc;
}

static bool is_hash(const char *text) { return strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64; }

/* n strings of a dataset, handed over one by one. */
static int read_strings(const reader *r, const char *path, dw_stats *s, int (*take)(dw_stats_text *, const char *, dw_err *)) {
    const size_t n = s->n_text;
    char **value = dw_alloc(n, sizeof *value, "texts", r->err);
    if (!value) return -1;
    int rc = read_list(r, path, r->text, r->text, 16, n, value); // a string of any length is stored as a reference of 16 bytes
    for (size_t t = 0; t < n && !rc; t++) {
        const char *text = value[t] ? value[t] : "";
        rc = dw_is_utf8(text, strlen(text)) ? take(&s->text[t], text, r->err) : dw_fail(r->err, "'%s' holds bytes that are no text", path);
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
    if (!is_hash(value)) return dw_fail(err, "'texts/sha256' holds something that is no hash");
    strcpy(t->sha256, value);
    return 0;
}

static int take_blocks(dw_stats_text *t, const char *value, dw_err *err) {
    if (strspn(value, "0123456789abcdef") != strlen(value) || strlen(value) % 8) return dw_fail(err, "'texts/blocks' holds something that is no list of hashes");
    t->blocks = dw_strdup(value, err);
    return t->blocks ? 0 : -1;
}

static int read_texts(const reader *r, dw_stats *s) {
    const size_t n = s->n_text;
    int32_t *window = dw_alloc(2 * n, sizeof *window, "texts", r->err);
    uint64_t *n_tokens = dw_alloc(n, sizeof *n_tokens, "texts", r->err);
    int rc = window && n_tokens && !read_list(r, "texts/first_window", H5T_STD_I32LE, H5T_NATIVE_INT32, 4, n, window) &&
                     !read_list(r, "texts/n_windows", H5T_STD_I32LE, H5T_NATIVE_INT32, 4, n, window + n) &&
                     !read_list(r, "texts/n_tokens", H5T_STD_U64LE, H5T_NATIVE_UINT64, 8, n, n_tokens)
                 ? 0 : -1;
    for (size_t t = 0; t < n && !rc; t++) {
        s->text[t].first_window = window[t];
        s->text[t].n_windows = window[n + t];
        s->text[t].n_tokens = n_tokens[t];
        if (window[t] < 1 || window[n + t] < 0 || window[t] > INT32_MAX - window[n + t] || n_tokens[t] > UINT32_MAX)
            rc = dw_fail(r->err, "text %zu of '/texts' has windows from %d on, %d of them, %llu tokens", t + 1, window[t], window[n + t], (unsigned long long)n_tokens[t]);
    }
    free(window), free(n_tokens);
    return rc || read_strings(r, "texts/name", s, take_name) || read_strings(r, "texts/sha256", s, take_hash) ||
                   read_strings(r, "texts/blocks", s, take_blocks)
               ? -1 : 0;
}

/* ---- reading: the whole file ----------------------------------------------------------------------------------------------- */

/* Columns of a dataset of n_text rows that stands uncompressed in the file, so that memory follows the file's size. */
static int columns_of(const reader *r, const char *path, size_t n_text, int *n) {
    size_t dims[2];
    const hid_t set = open_set(r, path, H5T_IEEE_F64LE, 8, dims);
    if (set < 0) return -1;
    H5Dclose(set);
    *n = (int)dims[1];
    if (dims[0] == n_text || !dims[1]) return 0;
    return dw_fail(r->err, "'%s' has %zu rows, expected one for each of %zu texts", path, dims[0], n_text);
}

/* Widths of all layers: arrays of n_layer. */
static int read_widths(const reader *r, int n_layer, size_t n_text, int *n_ff, int *n_attn_mix) {
    char path[64];
    for (int l = 0; l < n_layer; l++) {
        snprintf(path, sizeof path, "layer/%02d/ffn/count", l);
        if (!is_inside(r, path)) return dw_fail(r->err, "'%s' is missing", path);
        snprintf(path, sizeof path, "layer/%02d/ffn/sum_square", l);
        if (is_inside(r, path) && columns_of(r, path, n_text, &n_ff[l])) return -1;
        snprintf(path, sizeof path, "layer/%02d/ffn/hist_a", l);
        if (!n_ff[l] && is_inside(r, path)) return dw_fail(r->err, "'%s' stands there without sum_square", path);
        snprintf(path, sizeof path, "layer/%02d/input/attn_mix/sum_square", l);
        if (is_inside(r, path) && columns_of(r, path, n_text, &n_attn_mix[l])) return -1;
    }
    return 0;
}

static int read_counts_ok(const reader *r, const dw_stats *s) {
    for (int l = 0; l < s->n_layer; l++)
        for (size_t t = 0; t < s->n_text; t++)
            if (s->layer[l].count[t] > s->text[t].n_tokens || s->layer[l].text_n_cosine[t] > s->text[t].n_tokens)
                return dw_fail(r->err, "layer %d counts more tokens than text %zu has", l, t + 1);
    return 0;
}

static int read_values(const reader *r, dw_stats *s) {
    item list[MAX_ITEMS];
    const item output = output_item(s);
    if (read_texts(r, s) || read_item(r, &output)) return -1;
    for (int l = 0; l < s->n_layer; l++) {
        const size_t n = layer_items(s, l, list);
        for (size_t i = 0; i < n; i++)
            if (read_item(r, &list[i])) return -1;
    }
    return read_counts_ok(r, s);
}

static int read_header(const reader *r, dw_stats *s) {
    int version;
    if (read_int(r, "format_version", 1, INT32_MAX, &version)) return -1;
    if (version != VERSION) return dw_fail(r->err, "the format's version is %d, this program reads %d", version, VERSION);
    char *arguments = read_text(r, "arguments");
    if (!arguments) return -1;
    free(s->arguments);
    s->arguments = arguments;
    if (read_short_text(r, "model_sha256", s->model_sha256, sizeof s->model_sha256) || read_short_text(r, "model_arch", s->arch, sizeof s->arch) ||
        read_short_text(r, "backend", s->backend, sizeof s->backend) || read_int(r, "n_ctx", 0, 1 << 22, &s->n_ctx) ||
        read_int(r, "skip", 0, 1 << 22, &s->skip) || read_int(r, "hist_every", 1, 1 << 22, &s->hist_every))
        return -1;
    return is_hash(s->model_sha256) ? 0 : dw_fail(r->err, "attribute 'model_sha256' is no hash");
}

static int read_all(const reader *r, dw_stats *s) {
    int n_layer, n_embd;
    size_t dims[2];
    if (read_int(r, "n_layer", 1, MAX_LAYERS, &n_layer) || read_int(r, "n_embd", 1, MAX_WIDTH, &n_embd)) return -1;
    const hid_t texts = open_set(r, "texts/n_tokens", H5T_STD_U64LE, 8, dims);
    if (texts < 0) return -1;
    H5Dclose(texts);
    if (!dims[0] || dims[0] > MAX_TEXTS) return dw_fail(r->err, "'texts/n_tokens' has %zu entries", dims[0]);
    int output_columns;
    if (columns_of(r, "output/sum_square", dims[0], &output_columns)) return -1;
    if (output_columns != n_embd) return dw_fail(r->err, "'output/sum_square' has %d columns, expected n_embd, %d", output_columns, n_embd);
    int *widths = dw_alloc(2 * (size_t)n_layer, sizeof *widths, "widths", r->err);
    if (!widths) return -1;
    int rc = read_widths(r, n_layer, dims[0], widths, widths + n_layer) || dw_stats_init(s, n_layer, n_embd, widths, widths + n_layer, dims[0], r->err);
    free(widths);
    if (rc) return -1;
    if (!read_header(r, s) && !read_values(r, s)) {
        dw_stats_total(s);
        return 0;
    }
    dw_stats_release(s);
    return -1;
}

int dw_stats_read(dw_stats *s, const char *path, dw_err *err) {
    dw_map map;
    dw_err own = {0};
    *s = (dw_stats){0};
    if (dw_map_file(&map, path, err)) return -1;
    int rc = check_bytes(&map, &own);
    const reader r = {.n_bytes = map.size, .err = &own, .text = string_type(), .file = -1};
    dw_unmap(&map);
    if (!rc) {
        quiet();
        const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
        H5Pset_file_locking(access, 0, 1);
        reader opened = r;
        opened.file = H5Fopen(path, H5F_ACC_RDONLY, access);
        rc = opened.file < 0 ? dw_fail(&own, "the HDF5 library cannot read the file") : read_all(&opened, s);
        if (opened.file >= 0) H5Fclose(opened.file);
        H5Pclose(access);
    }
    H5Tclose(r.text);
    return rc ? dw_fail(err, "statistics '%s': %s", path, own.text) : 0;
}
