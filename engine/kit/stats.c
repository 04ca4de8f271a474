/* stats.c - activation statistics in memory and as an HDF5 file (layout in stats.h, checks in h5.h). */
#include "kit/h5.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const int kit_stats_group_sizes[KIT_STATS_N_GROUPS] = {32, 64, 128};
const char *const kit_stats_input_names[KIT_STATS_N_INPUTS] = {"attn_in", "attn_mix", "ffn_in", "ffn_neuron"};

enum {
    VERSION = 1,
    MAX_WIDTH = KIT_H5_MAX_ROWS,
};

static const char magic[] = "deadwood stats 1\n";

/* ---- bins ----------------------------------------------------------------------------------------------- */

/* Takes the octave from the exponent of the float; mantissas from sqrt(2) on are in the upper half octave. */
int kit_stats_bin(float magnitude) {
    union { float f; uint32_t u; } v = {magnitude};
    const int octave = (int)(v.u >> 23 & 255) - 127, half = (v.u & 0x7fffff) >= 0x3504f4;
    const int bin = 2 * octave + half + 40;
    return bin < 0 ? 0 : bin >= KIT_STATS_BINS ? KIT_STATS_BINS - 1 : bin;
}

float kit_stats_bin_edge(int bin) { return bin <= 0 ? 0 : (float)exp2((bin - 40) / 2.0); }

/* ---- what a layer holds ------------------------------------------------------------------------------------ */

typedef enum kind { F64, F64_SQUARE, F32_MAGNITUDE, U32, U64 } kind; // F64_SQUARE, F32_MAGNITUDE: never negative

static size_t kind_size(kind k) { return k == U32 || k == F32_MAGNITUDE ? 4 : 8; }

/* A dataset of rows x cols values; cols 0: one dimension.  by_text: one row per text, and room for more texts. */
typedef struct item {
    char path[96];
    kind kind;
    size_t rows, cols;
    void *array_pointer; // address of the array pointer in the kit_stats
    bool by_text, packed;
    size_t per_token;    // of a histogram: the most that a token adds to a bin
} item;

enum { MAX_ITEMS = 24 };

static item *add_item(item *list, size_t *n, int l, const char *name, kind k, size_t rows, size_t cols, void *array_pointer, bool by_text) {
    item *it = &list[(*n)++];
    *it = (item){.kind = k, .rows = rows, .cols = cols, .array_pointer = array_pointer, .by_text = by_text};
    snprintf(it->path, sizeof it->path, "layer/%02d/%s", l, name);
    return it;
}

/* A histogram for each of some neurons or groups. */
static void add_hist(item *list, size_t *n, int l, const char *name, size_t rows, void *array_pointer) {
    item *it = add_item(list, n, l, name, U32, rows, KIT_STATS_BINS, array_pointer, false);
    it->packed = true;
    it->per_token = 1;
}

/* Lists the datasets of layer l, which depend on its widths.  Reader, writer and memory use this list. */
static size_t layer_items(const kit_stats *s, int l, item *list) {
    kit_stats_layer *w = &s->layer[l];
    const size_t n_text = s->n_text, n_ff = (size_t)w->n_ff;
    size_t n = 0;
    char name[48];
    add_item(list, &n, l, "ffn/count", U64, n_text, 0, &w->count, true);
    if (n_ff) {
        add_item(list, &n, l, "ffn/sum_a", F64, n_text, n_ff, &w->sum_a, true);
        add_item(list, &n, l, "ffn/sum_abs", F64_SQUARE, n_text, n_ff, &w->sum_abs, true);
        add_item(list, &n, l, "ffn/sum_square", F64_SQUARE, n_text, n_ff, &w->sum_square, true);
        add_item(list, &n, l, "ffn/max_abs", F32_MAGNITUDE, n_text, n_ff, &w->max_abs, true);
        add_hist(list, &n, l, "ffn/hist_a", n_ff, &w->hist_a);
        add_hist(list, &n, l, "ffn/hist_gate", n_ff, &w->hist_gate);
    }
    for (int g = 0; g < KIT_STATS_N_GROUPS && n_ff; g++) {
        const size_t size = (size_t)kit_stats_group_sizes[g];
        snprintf(name, sizeof name, "ffn/hist_group_%zu", size);
        add_hist(list, &n, l, name, (n_ff + size - 1) / size, &w->hist_group[g]);
    }
    for (int k = 0; k < KIT_STATS_N_INPUTS; k++) {
        if (!w->n_input[k]) continue;
        if (k != KIT_STATS_FFN_NEURON) {
            snprintf(name, sizeof name, "input/%s/sum_square", kit_stats_input_names[k]);
            add_item(list, &n, l, name, F64_SQUARE, n_text, (size_t)w->n_input[k], &w->text_square[k], true);
        }
        snprintf(name, sizeof name, "input/%s/hist", kit_stats_input_names[k]);
        add_item(list, &n, l, name, U64, KIT_STATS_BINS, 0, &w->input_hist[k], false)->per_token = (size_t)w->n_input[k];
    }
    add_item(list, &n, l, "influence/sum_cosine", F64, n_text, 0, &w->text_cosine, true);
    add_item(list, &n, l, "influence/count", U64, n_text, 0, &w->text_n_cosine, true);
    return n;
}

static item output_item(const kit_stats *s) {
    return (item){.path = "output/sum_square", .kind = F64_SQUARE, .rows = s->n_text, .cols = (size_t)s->n_embd,
                  .array_pointer = (void *)(uintptr_t)&s->text_output_square, .by_text = true};
}

static size_t n_values(const item *it) { return it->rows * (it->cols ? it->cols : 1); }

/* ---- memory ------------------------------------------------------------------------------------------------- */

/* Makes the array of an item; if the array exists and is by text, moves its n_used texts to larger memory. */
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

int kit_stats_reserve(kit_stats *s, size_t n_text, dw_err *err) {
    if (n_text <= s->cap_text) return 0;
    if (n_text > KIT_H5_MAX_TEXTS) return dw_fail(err, "%zu texts are too many: statistics hold at most %d", n_text, KIT_H5_MAX_TEXTS);
    kit_stats_text *text = dw_alloc(n_text, sizeof *text, "statistics", err);
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
        s->layer[l].text_square[KIT_STATS_FFN_NEURON] = s->layer[l].sum_square;
    }
    s->cap_text = n_text;
    return 0;
}

/* Makes the arrays for totals. */
static int make_totals(kit_stats *s, dw_err *err) {
    s->output_square = dw_alloc((size_t)s->n_embd, sizeof *s->output_square, "statistics", err);
    if (!s->output_square) return -1;
    for (int l = 0; l < s->n_layer; l++) {
        kit_stats_layer *w = &s->layer[l];
        for (int k = 0; k < KIT_STATS_N_INPUTS; k++) {
            if (!w->n_input[k]) continue;
            w->input_square[k] = dw_alloc((size_t)w->n_input[k], sizeof *w->input_square[k], "statistics", err);
            if (!w->input_square[k]) return -1;
        }
    }
    return 0;
}

/* Sets the widths; makes no arrays. */
static int set_shape(kit_stats *s, int n_layer, int n_embd, const int *n_ff, const int *n_attn_mix, dw_err *err) {
    *s = (kit_stats){.n_embd = n_embd, .hist_every = 1};
    if (n_layer < 1 || n_layer > DW_MAX_LAYERS || n_embd < 1 || n_embd > MAX_WIDTH)
        return dw_fail(err, "statistics of %d layers of width %d are out of range", n_layer, n_embd);
    for (int l = 0; l < n_layer; l++)
        if (n_ff[l] < 0 || n_ff[l] > MAX_WIDTH || n_attn_mix[l] < 0 || n_attn_mix[l] > MAX_WIDTH)
            return dw_fail(err, "layer %d: statistics of %d neurons and %d attention values are out of range", l, n_ff[l], n_attn_mix[l]);
    s->layer = dw_alloc((size_t)n_layer, sizeof *s->layer, "statistics", err);
    if (!s->layer) return -1;
    s->n_layer = n_layer;
    for (int l = 0; l < n_layer; l++)
        s->layer[l] = (kit_stats_layer){.n_ff = n_ff[l], .n_input = {n_attn_mix[l] ? n_embd : 0, n_attn_mix[l], n_ff[l] ? n_embd : 0, n_ff[l]}};
    return 0;
}

/* Makes all arrays for n_text texts; after a failure everything is released. */
static int make_arrays(kit_stats *s, size_t n_text, dw_err *err) {
    s->arguments = dw_strdup("", err);
    if (s->arguments && !make_totals(s, err) && !kit_stats_reserve(s, n_text, err)) {
        s->n_text = n_text;
        return 0;
    }
    kit_stats_release(s);
    return -1;
}

int kit_stats_init(kit_stats *s, int n_layer, int n_embd, const int *n_ff, const int *n_attn_mix, size_t n_text, dw_err *err) {
    *s = (kit_stats){0};
    if (!n_text) return dw_fail(err, "statistics need at least one text");
    return set_shape(s, n_layer, n_embd, n_ff, n_attn_mix, err) || make_arrays(s, n_text, err) ? -1 : 0;
}

void kit_stats_release(kit_stats *s) {
    item list[MAX_ITEMS];
    for (int l = 0; l < s->n_layer; l++) {
        const size_t n = layer_items(s, l, list);
        for (size_t i = 0; i < n; i++) free(*(void **)list[i].array_pointer);
        for (int k = 0; k < KIT_STATS_N_INPUTS; k++) free(s->layer[l].input_square[k]);
    }
    for (size_t t = 0; t < s->n_text; t++) free(s->text[t].blocks);
    free(s->text);
    free(s->layer);
    free(s->text_output_square);
    free(s->output_square);
    free(s->arguments);
    *s = (kit_stats){0};
}

/* ---- totals, addition ------------------------------------------------------------------------------------------ */

static void add_rows(double *total, const double *rows, size_t n_rows, size_t n) {
    memset(total, 0, n * sizeof *total);
    for (size_t r = 0; r < n_rows; r++)
        for (size_t i = 0; i < n; i++) total[i] += rows[r * n + i];
}

void kit_stats_total(kit_stats *s) {
    add_rows(s->output_square, s->text_output_square, s->n_text, (size_t)s->n_embd);
    for (int l = 0; l < s->n_layer; l++) {
        kit_stats_layer *w = &s->layer[l];
        for (int k = 0; k < KIT_STATS_N_INPUTS; k++)
            if (w->n_input[k]) add_rows(w->input_square[k], w->text_square[k], s->n_text, (size_t)w->n_input[k]);
        add_rows(&w->sum_cosine, w->text_cosine, s->n_text, 1);
        w->n_cosine = 0;
        for (size_t t = 0; t < s->n_text; t++) w->n_cosine += w->text_n_cosine[t];
    }
}

uint64_t kit_stats_n_tokens(const kit_stats *s) {
    uint64_t n = 0;
    for (size_t t = 0; t < s->n_text; t++) n += s->text[t].n_tokens;
    return n;
}

int kit_stats_check_model(const kit_stats *s, const char *path, const char *model, const char sha256[65], dw_err *err) {
    if (!strcmp(s->model_sha256, sha256)) return 0;
    return dw_fail(err, "'%s' was collected from another model (sha256 %.12s..., '%s' has %.12s...); collect statistics of this one", path,
                   s->model_sha256, model, sha256);
}

int kit_stats_check_shape(const kit_stats *s, int n_layer, int n_embd, const int *n_ff, dw_err *err) {
    if (s->n_layer != n_layer || s->n_embd != n_embd)
        return dw_fail(err, "the statistics have %d layers of width %d, the model %d of %d; collect them from this model", s->n_layer, s->n_embd, n_layer, n_embd);
    for (int l = 0; l < n_layer; l++)
        if (s->layer[l].n_ff != n_ff[l])
            return dw_fail(err, "layer %d: the statistics have %d neurons, the model %d; collect them from this model", l, s->layer[l].n_ff, n_ff[l]);
    return 0;
}

int kit_stats_n_windows(const kit_stats *s) {
    int n = 0;
    for (size_t t = 0; t < s->n_text; t++) n += s->text[t].n_windows;
    return n;
}

int kit_stats_check_neurons(const kit_stats *s, dw_err *err) {
    for (int l = 0; l < s->n_layer; l++)
        for (size_t t = 0; t < s->n_text; t++)
            if (!s->layer[l].count[t])
                return dw_fail(err, "layer %d: the statistics have no neurons of text '%s' (as statistics from an "
                               "imatrix); collect them from texts", l, s->text[t].name);
    return s->n_text ? 0 : dw_fail(err, "the statistics have no text");
}

static bool texts_overlap(const kit_stats_text *a, const kit_stats_text *b) {
    return !strcmp(a->sha256, b->sha256) && a->first_window < b->first_window + b->n_windows && b->first_window < a->first_window + a->n_windows;
}

static int check_same(const kit_stats *a, const kit_stats *b, dw_err *err) {
    if (strcmp(a->model_sha256, b->model_sha256))
        return dw_fail(err, "statistics of two models cannot be added: sha256 %.12s and %.12s", a->model_sha256,
                       b->model_sha256);
    if (a->n_ctx != b->n_ctx || a->skip != b->skip || a->hist_every != b->hist_every)
        return dw_fail(err, "statistics with -c %d --skip %d --hist-every %d cannot be added to others with %d, %d, %d",
                       a->n_ctx, a->skip, a->hist_every, b->n_ctx, b->skip, b->hist_every);
    bool same = a->n_layer == b->n_layer && a->n_embd == b->n_embd;
    for (int l = 0; same && l < a->n_layer; l++)
        same = a->layer[l].n_ff == b->layer[l].n_ff && !memcmp(a->layer[l].n_input, b->layer[l].n_input, sizeof a->layer[l].n_input);
    if (!same) return dw_fail(err, "statistics of models with different widths cannot be added");
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

/* Bins of 32-bit histograms stay below 2^32 if the number of tokens does. */
static int check_counts(const kit_stats *a, const kit_stats *b, dw_err *err) {
    if (kit_stats_n_tokens(a) + kit_stats_n_tokens(b) > UINT32_MAX) return dw_fail(err, "statistics of more than %u tokens cannot be added", UINT32_MAX);
    if (kit_stats_n_windows(a) > INT32_MAX - kit_stats_n_windows(b)) return dw_fail(err, "statistics of more than %d windows cannot be added", INT32_MAX);
    return 0;
}

int kit_stats_can_add(const kit_stats *a, const kit_stats *b, dw_err *err) {
    if (check_same(a, b, err) || check_counts(a, b, err)) return -1;
    for (size_t t = 0; t < b->n_text; t++)
        for (size_t u = 0; u < a->n_text; u++)
            if (texts_overlap(&a->text[u], &b->text[t]))
                return dw_fail(err, "windows of '%s' are in both statistics: %d to %d and %d to %d", b->text[t].name, a->text[u].first_window,
                               a->text[u].first_window + a->text[u].n_windows - 1, b->text[t].first_window,
                               b->text[t].first_window + b->text[t].n_windows - 1);
    return 0;
}

int kit_stats_add(kit_stats *a, const kit_stats *b, dw_err *err) {
    const size_t n_text = a->n_text;
    if (kit_stats_can_add(a, b, err) || kit_stats_reserve(a, n_text + b->n_text, err)) return -1;
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
    kit_stats_total(a);
    return 0;
}

/* ---- HDF5
 * ------------------------------------------------------------------------------------------------------------- */

/* Types in the file (little endian) and in memory. */
static hid_t file_type(kind k) {
    return k == F64 || k == F64_SQUARE ? H5T_IEEE_F64LE : k == F32_MAGNITUDE ? H5T_IEEE_F32LE : k == U32 ? H5T_STD_U32LE : H5T_STD_U64LE;
}
static hid_t memory_type(kind k) {
    return k == F64 || k == F64_SQUARE ? H5T_NATIVE_DOUBLE : k == F32_MAGNITUDE ? H5T_NATIVE_FLOAT : k == U32 ? H5T_NATIVE_UINT32 : H5T_NATIVE_UINT64;
}

/* ---- writing
 * ----------------------------------------------------------------------------------------------------------- */

static void put_item(kit_h5_out *h, const item *it) {
    kit_h5_put(h, it->path, file_type(it->kind), memory_type(it->kind), it->rows, it->cols, it->packed, *(void **)it->array_pointer);
}

static int put_all(kit_h5_out *h, const kit_stats *s, dw_err *err) {
    kit_h5_put_int(h, "format_version", VERSION);
    kit_h5_put_text(h, "model_sha256", s->model_sha256);
    kit_h5_put_text(h, "model_arch", s->arch);
    kit_h5_put_int(h, "n_layer", s->n_layer);
    kit_h5_put_int(h, "n_embd", s->n_embd);
    kit_h5_put_int(h, "n_ctx", s->n_ctx);
    kit_h5_put_int(h, "skip", s->skip);
    kit_h5_put_int(h, "hist_every", s->hist_every);
    kit_h5_put_text(h, "backend", s->backend);
    kit_h5_put_text(h, "arguments", s->arguments);
    if (kit_h5_put_texts(h, s->text, s->n_text, err)) return -1;
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

/* The part of the file after the user block, in the memory of the library; borrowed until the file is closed. */
static const uint8_t *image_of(kit_h5_out *h, hid_t access, size_t *size) {
    void *memory = NULL;
    hsize_t allocated = 0;
    if (H5Fflush(h->file, H5F_SCOPE_GLOBAL) < 0 || H5Fget_filesize(h->file, &allocated) < 0) return NULL;
    const ssize_t n = H5Fget_file_image(h->file, NULL, 0);
    if (n <= 0 || (hsize_t)n + KIT_H5_USER_BLOCK > allocated || H5Fget_vfd_handle(h->file, access, &memory) < 0) return NULL;
    *size = (size_t)n;
    return *(uint8_t **)memory + KIT_H5_USER_BLOCK;
}

static int save_image(const uint8_t *image, size_t n, dw_out *out, dw_err *err) {
    char block[KIT_H5_USER_BLOCK];
    kit_h5_user_block(magic, image, n, block);
    const dw_out_piece piece[] = {{block, KIT_H5_USER_BLOCK}, {image, n}};
    for (int i = 0; i < 2; i++)
        if (dw_out_write(out, piece[i].data, piece[i].size, err)) return -1;
    return dw_out_commit_checked(out, dw_out_holds, &(dw_out_pieces){piece, 2}, err);
}

static int write_stats(const kit_stats *s, const char *path, dw_out *out, dw_err *err) {
    kit_h5_quiet();
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS), how = H5Pcreate(H5P_FILE_CREATE);
    H5Pset_fapl_core(access, 4 << 20, 0); // in memory, never on disk
    H5Pset_userblock(how, KIT_H5_USER_BLOCK);
    kit_h5_out h = {.file = H5Fcreate(path, H5F_ACC_TRUNC, how, access), .links = H5Pcreate(H5P_LINK_CREATE), .text = kit_h5_string_type()};
    H5Pset_create_intermediate_group(h.links, 1);
    int rc = h.file < 0 ? dw_fail(err, "cannot make '%s': the HDF5 library gives no memory file", path) : put_all(&h, s, err);
    size_t n = 0;
    const uint8_t *image = rc || h.failed ? NULL : image_of(&h, access, &n);
    if (!rc) rc = image ? save_image(image, n, out, err) : dw_fail(err, "out of memory: statistics for '%s' in the HDF5 library", path);
    if (h.file >= 0) H5Fclose(h.file);
    H5Tclose(h.text);
    H5Pclose(h.links);
    H5Pclose(how);
    H5Pclose(access);
    return rc;
}

static int write_to(const kit_stats *s, const char *path, dw_out *out, dw_err *err) {
    const int rc = out ? write_stats(s, path, out, err) : -1;
    dw_out_free(out);
    return rc;
}

int kit_stats_write(const kit_stats *s, const char *path, dw_err *err) { return write_to(s, path, dw_out_open(path, err), err); }
int kit_stats_keep(const kit_stats *s, const char *path, dw_err *err) { return write_to(s, path, dw_out_open_kept(path, err), err); }

/* ---- reading
 * ------------------------------------------------------------------------------------------------------------ */

bool kit_stats_is(const char *path) { return dw_file_begins(path, magic, strlen(magic)); }

/* Checks counts against the most that n_tokens tokens can add, so that the sums of two files cannot wrap around. */
static const char *count_fault(const item *it, size_t n, uint64_t n_tokens) {
    const void *values = *(void **)it->array_pointer;
    size_t most;
    if (!it->per_token || !dw_mul(n_tokens, it->per_token, &most)) return NULL;
    for (size_t i = 0; i < n; i++)
        if ((it->kind == U32 ? ((const uint32_t *)values)[i] : ((const uint64_t *)values)[i]) > most) return "counts of more tokens than its texts have";
    return NULL;
}

static const char *value_fault(const item *it, size_t n, uint64_t n_tokens) {
    const void *values = *(void **)it->array_pointer;
    if (it->kind == U32 || it->kind == U64) return count_fault(it, n, n_tokens);
    for (size_t i = 0; i < n; i++) {
        const double v = it->kind == F32_MAGNITUDE ? (double)((const float *)values)[i] : ((const double *)values)[i];
        if (!isfinite(v)) return isnan(v) ? "NaN" : "infinity";
        if (v < 0 && it->kind != F64) return "a negative sum";
    }
    return NULL;
}

static kit_h5_type type_of(kind k) {
    return k == F64 || k == F64_SQUARE ? KIT_H5_F64 : k == F32_MAGNITUDE ? KIT_H5_F32 : k == U32 ? KIT_H5_U32 : KIT_H5_U64;
}

/* Reads the values of an item into its array. */
static int read_item(kit_h5_in *r, const item *it, uint64_t n_tokens) {
    kit_h5_set set;
    if (kit_h5_find(r, it->path, type_of(it->kind), &set)) return -1;
    if (set.dims[0] != it->rows || set.dims[1] != it->cols)
        return dw_fail(r->err, "'%s' has %zu x %zu values, expected %zu x %zu", it->path, set.dims[0], set.dims[1] ? set.dims[1] : 1, it->rows, it->cols ? it->cols : 1);
    if (set.is_packed && !it->packed) return dw_fail(r->err, "'%s' is packed; only histograms may be", it->path);
    if (kit_h5_whole(r, &set, *(void **)it->array_pointer)) return -1;
    const char *fault = value_fault(it, n_values(it), n_tokens);
    return fault ? dw_fail(r->err, "'%s' holds %s", it->path, fault) : 0;
}

/* *n: columns of a dataset of n_text rows; 0 if the dataset is missing. */
static int columns_of(const kit_h5_in *r, const char *path, size_t n_text, int *n) {
    kit_h5_set set;
    bool is_there;
    *n = 0;
    if (kit_h5_has(r, path, &is_there)) return -1;
    if (!is_there) return 0;
    if (kit_h5_find(r, path, KIT_H5_F64, &set)) return -1;
    *n = (int)set.dims[1];
    if (set.is_packed) return dw_fail(r->err, "'%s' is packed; only histograms may be", path);
    if (set.dims[0] == n_text || !set.dims[1]) return 0;
    return dw_fail(r->err, "'%s' has %zu rows, expected one for each of %zu texts", path, set.dims[0], n_text);
}

/* Reads the widths of all layers into arrays of n_layer. */
static int read_widths(const kit_h5_in *r, int n_layer, size_t n_text, int *n_ff, int *n_attn_mix) {
    char path[64];
    bool has;
    for (int l = 0; l < n_layer; l++) {
        snprintf(path, sizeof path, "layer/%02d/ffn/count", l);
        if (kit_h5_has(r, path, &has)) return -1;
        if (!has) return dw_fail(r->err, "'%s' is missing", path);
        snprintf(path, sizeof path, "layer/%02d/ffn/sum_square", l);
        if (columns_of(r, path, n_text, &n_ff[l])) return -1;
        snprintf(path, sizeof path, "layer/%02d/ffn/hist_a", l);
        if (kit_h5_has(r, path, &has)) return -1;
        if (!n_ff[l] && has) return dw_fail(r->err, "'%s' exists, but ffn/sum_square of that layer is missing", path);
        snprintf(path, sizeof path, "layer/%02d/input/attn_mix/sum_square", l);
        if (columns_of(r, path, n_text, &n_attn_mix[l])) return -1;
    }
    return 0;
}

static int read_counts_ok(const kit_h5_in *r, const kit_stats *s) {
    for (int l = 0; l < s->n_layer; l++)
        for (size_t t = 0; t < s->n_text; t++)
            if (s->layer[l].count[t] > s->text[t].n_tokens || s->layer[l].text_n_cosine[t] > s->text[t].n_tokens)
                return dw_fail(r->err, "layer %d counts more tokens than text %zu has", l, t + 1);
    return 0;
}

static int read_values(kit_h5_in *r, kit_stats *s) {
    item list[MAX_ITEMS];
    const item output = output_item(s);
    if (kit_h5_texts(r, s->text, s->n_text)) return -1;
    const uint64_t n_tokens = kit_stats_n_tokens(s);
    if (read_item(r, &output, n_tokens)) return -1;
    for (int l = 0; l < s->n_layer; l++) {
        const size_t n = layer_items(s, l, list);
        for (size_t i = 0; i < n; i++)
            if (read_item(r, &list[i], n_tokens)) return -1;
    }
    return read_counts_ok(r, s);
}

static int read_header(kit_h5_in *r, kit_stats *s) {
    int version;
    if (kit_h5_int(r, "format_version", 1, INT32_MAX, &version)) return -1;
    if (version != VERSION)
        return dw_fail(r->err, "the format version is %d, but this program reads %d", version, VERSION);
    char *arguments = kit_h5_text(r, "arguments");
    if (!arguments) return -1;
    free(s->arguments);
    s->arguments = arguments;
    return kit_h5_hash(r, "model_sha256", s->model_sha256) || kit_h5_short_text(r, "model_arch", s->arch, sizeof s->arch) ||
                   kit_h5_short_text(r, "backend", s->backend, sizeof s->backend) || kit_h5_int(r, "n_ctx", 0, 1 << 22, &s->n_ctx) ||
                   kit_h5_int(r, "skip", 0, 1 << 22, &s->skip) || kit_h5_int(r, "hist_every", 1, 1 << 22, &s->hist_every)
               ? -1 : 0;
}

/* Fails unless the file has at least the bytes of all arrays that are not packed.  A neuron has at least 28 bytes of
 * such arrays and 64 * 4 * (2 + 1/32 + 1/64 + 1/128) = 526 bytes of histograms, so memory is at most 20 times the
 * file. */
static int check_memory(kit_h5_in *r, const kit_stats *s, size_t n_text) {
    item list[MAX_ITEMS], output = output_item(s);
    size_t sum = n_text * output.cols * kind_size(output.kind); // at most 2^20 * 2^24 * 2^3
    for (int l = 0; l < s->n_layer; l++) {
        const size_t n = layer_items(s, l, list);
        for (size_t i = 0; i < n; i++) // at most 2^10 * 2^5 such terms, so the sum does not overflow
            if (!list[i].packed) sum += (list[i].by_text ? n_text : list[i].rows) * (list[i].cols ? list[i].cols : 1) * kind_size(list[i].kind);
    }
    if (sum <= r->n_left) return 0;
    return dw_fail(r->err, "its arrays need %zu bytes, but the file has only %zu; files in which several names share "
                   "their bytes are refused", sum, r->n_bytes);
}

static int read_all(kit_h5_in *r, kit_stats *s) {
    int n_layer, n_embd;
    size_t n_text;
    if (kit_h5_int(r, "n_layer", 1, DW_MAX_LAYERS, &n_layer) || kit_h5_int(r, "n_embd", 1, MAX_WIDTH, &n_embd)) return -1;
    if (kit_h5_n_texts(r, &n_text)) return -1;
    int output_columns;
    if (columns_of(r, "output/sum_square", n_text, &output_columns)) return -1;
    if (output_columns != n_embd) return dw_fail(r->err, "'output/sum_square' has %d columns, expected n_embd, %d", output_columns, n_embd);
    int *widths = dw_alloc(2 * (size_t)n_layer, sizeof *widths, "widths", r->err);
    if (!widths) return -1;
    const int rc = read_widths(r, n_layer, n_text, widths, widths + n_layer) || set_shape(s, n_layer, n_embd, widths, widths + n_layer, r->err);
    free(widths);
    if (!rc && !check_memory(r, s, n_text) && !make_arrays(s, n_text, r->err) && !read_header(r, s) && !read_values(r, s)) {
        kit_stats_total(s);
        return 0;
    }
    kit_stats_release(s);
    return -1;
}

int kit_stats_read(kit_stats *s, const char *path, dw_err *err) {
    kit_h5_in r;
    dw_err own = {0};
    *s = (kit_stats){0};
    const int rc = kit_h5_open(&r, path, magic, "statistics", "collect", &own) || read_all(&r, s) ? -1 : 0;
    kit_h5_close(&r);
    return rc ? dw_fail(err, "statistics '%s': %s", path, own.text) : 0;
}
