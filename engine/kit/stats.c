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

static const char magic[] = "deadwood stats 1\n", text_rows[] = "texts/row";

/* ---- bins ----------------------------------------------------------------------------------------------- */

/* Takes the octave from the exponent of the float; mantissas from sqrt(2) on are in the upper half octave. */
int kit_stats_bin(float magnitude) {
    union {
        float f;
        uint32_t u;
    } v = {magnitude};
    const int octave = (int)(v.u >> 23 & 255) - 127, half = (v.u & 0x7fffff) >= 0x3504f4;
    const int bin = 2 * octave + half + 40;
    return bin < 0 ? 0 : bin >= KIT_STATS_BINS ? KIT_STATS_BINS - 1 : bin;
}

float kit_stats_bin_edge(int bin) { return bin <= 0 ? 0 : (float)exp2((bin - 40) / 2.0); }

double kit_stats_quantile(const uint64_t hist[KIT_STATS_BINS], double q) {
    double n = 0, below = 0;
    for (int b = 0; b < KIT_STATS_BINS; b++) n += (double)hist[b];
    if (!(n > 0)) return NAN;
    int b = 0;
    while (b < KIT_STATS_BINS - 1 && below + (double)hist[b] < q * n) below += (double)hist[b++];
    const double part = hist[b] ? fmin(fmax((q * n - below) / (double)hist[b], 0), 1) : 1;
    return b ? (double)kit_stats_bin_edge(b) * exp2(part / 2) : part * (double)kit_stats_bin_edge(1);
}

/* ---- what a layer holds ------------------------------------------------------------------------------------ */

typedef enum kind { F64, F64_SQUARE, F32_MAGNITUDE, U32, U64 } kind; // F64_SQUARE, F32_MAGNITUDE: never negative

static size_t kind_size(kind k) { return k == U32 || k == F32_MAGNITUDE ? 4 : 8; }

/* A dataset of rows x cols values; cols 0: one dimension.  by_row: one row of sums after the other, with room for more.
 * small: read when the file is opened.  optional: older files lack it, and it is then 0. */
typedef struct item {
    char path[96];
    kind kind;
    size_t rows, cols;
    void *array_pointer; // address of the array pointer in the kit_stats
    bool by_row, packed, small, optional;
    size_t per_token;           // of a histogram: the most that a token adds to a bin
    const char *meaning, *unit; // attributes in the file
} item;

enum { MAX_ITEMS = 24 };

typedef struct item_list {
    const kit_stats *s;
    int l; // the layer
    item *item;
    size_t n;
} item_list;

static item *add_item(item_list *list, const char *name, kind k, size_t rows, size_t cols, void *array_pointer) {
    item *it = &list->item[list->n++];
    *it = (item){.kind = k, .rows = rows, .cols = cols, .array_pointer = array_pointer, .unit = "1"};
    snprintf(it->path, sizeof it->path, "layer/%02d/%s", list->l, name);
    return it;
}

/* Sums for each row: cols values of them, or one if cols is 0. */
static item *add_sums(item_list *list, const char *name, kind k, size_t cols, void *array_pointer,
                      const char *meaning) {
    item *it = add_item(list, name, k, list->s->n_row, cols, array_pointer);
    it->by_row = true;
    it->small = !cols;
    it->meaning = meaning;
    return it;
}

/* A histogram for each of some neurons or groups. */
static void add_hist(item_list *list, const char *name, size_t rows, void *array_pointer, const char *meaning) {
    item *it = add_item(list, name, U32, rows, KIT_STATS_BINS, array_pointer);
    it->packed = true;
    it->per_token = 1;
    it->meaning = meaning;
    it->unit = "tokens in each bin (edges: root attribute bin_lower_edges)";
}

static void add_neuron_items(item_list *list, kit_stats_layer *w) {
    static const char *const of_groups[KIT_STATS_N_GROUPS] = {
        "largest |act(gate)| in each aligned group of 32 neurons",
        "largest |act(gate)| in each aligned group of 64 neurons",
        "largest |act(gate)| in each aligned group of 128 neurons"};
    const size_t n_ff = (size_t)w->n_ff;
    char name[48];
    if (!n_ff) return;
    add_sums(list, "ffn/sum_a", F64, n_ff, &w->sum_a, "sum over tokens of the neuron's value a = act(gate) up");
    add_sums(list, "ffn/sum_abs", F64_SQUARE, n_ff, &w->sum_abs, "sum over tokens of |a|");
    add_sums(list, "ffn/sum_square", F64_SQUARE, n_ff, &w->sum_square, "sum over tokens of a^2")->unit = "1 (square)";
    add_sums(list, "ffn/max_abs", F32_MAGNITUDE, n_ff, &w->max_abs, "largest |a| of any token");
    add_hist(list, "ffn/hist_a", n_ff, &w->hist_a, "|a| of each neuron");
    add_hist(list, "ffn/hist_gate", n_ff, &w->hist_gate, "|act(gate)| of each neuron");
    for (int g = 0; g < KIT_STATS_N_GROUPS; g++) {
        const size_t size = (size_t)kit_stats_group_sizes[g];
        snprintf(name, sizeof name, "ffn/hist_group_%zu", size);
        add_hist(list, name, (n_ff + size - 1) / size, &w->hist_group[g], of_groups[g]);
    }
    if (!list->s->has_gradients) return;
    add_sums(list, "ffn/sum_taylor", F64_SQUARE, n_ff, &w->sum_taylor,
             "sum over tokens of |a g|, g = dL/da, L: sum over the window of -ln p(next token)")
        ->unit = "nats";
    add_sums(list, "ffn/sum_fisher", F64_SQUARE, n_ff, &w->sum_fisher,
             "sum over tokens of (a g)^2, g = dL/da, L: sum over the window of -ln p(next token)")
        ->unit = "nats (square)";
}

static void add_input_items(item_list *list, kit_stats_layer *w) {
    static const char *const squares[KIT_STATS_N_INPUTS] = {
        "sum over tokens of x^2, x: input of q, k and v", "sum over tokens of x^2, x: input of attn_output",
        "sum over tokens of x^2, x: input of gate and up", "sum over tokens of x^2, x: input of down"};
    static const char *const hists[KIT_STATS_N_INPUTS] = {
        "|x| of all columns together, x: input of q, k and v", "|x| of all columns together, x: input of attn_output",
        "|x| of all columns together, x: input of gate and up", "|x| of all columns together, x: input of down"};
    char name[48];
    for (int k = 0; k < KIT_STATS_N_INPUTS; k++) {
        if (!w->n_input[k]) continue;
        if (k != KIT_STATS_FFN_NEURON) {
            snprintf(name, sizeof name, "input/%s/sum_square", kit_stats_input_names[k]);
            add_sums(list, name, F64_SQUARE, (size_t)w->n_input[k], &w->text_square[k], squares[k])->unit =
                "1 (square)";
        }
        snprintf(name, sizeof name, "input/%s/hist", kit_stats_input_names[k]);
        item *it = add_item(list, name, U64, KIT_STATS_BINS, 0, &w->input_hist[k]);
        it->per_token = (size_t)w->n_input[k];
        it->meaning = hists[k];
        it->unit = "values in each bin (edges: root attribute bin_lower_edges)";
    }
}

/* Lists the datasets of layer l, which depend on its widths.  Reader, writer and memory use this list. */
static size_t layer_items(const kit_stats *s, int l, item *items) {
    kit_stats_layer *w = &s->layer[l];
    item_list list = {.s = s, .l = l, .item = items};
    add_sums(&list, "ffn/count", U64, 0, &w->count, "tokens that were counted")->unit = "tokens";
    add_neuron_items(&list, w);
    add_input_items(&list, w);
    add_sums(&list, "influence/sum_cosine", F64, 0, &w->text_cosine,
             "sum over tokens of the cosine between the residuals before and after the layer");
    add_sums(&list, "influence/count", U64, 0, &w->text_n_cosine, "tokens in sum_cosine and sum_inverse")->unit =
        "tokens";
    item *inverse = add_sums(&list, "influence/sum_inverse", F64_SQUARE, 0, &w->text_inverse,
                             "sum over tokens of 1 / ||x||^2, x: residual after the layer");
    inverse->unit = "1 (inverse square)";
    inverse->optional = true;
    return list.n;
}

static item output_item(const kit_stats *s) {
    return (item){.path = "output/sum_square",
                  .kind = F64_SQUARE,
                  .rows = s->n_row,
                  .cols = (size_t)s->n_embd,
                  .array_pointer = (void *)(uintptr_t)&s->text_output_square,
                  .by_row = true,
                  .meaning = "sum over tokens of x^2, x: input of the output matrix",
                  .unit = "1 (square)"};
}

static size_t n_values(const item *it) { return it->rows * (it->cols ? it->cols : 1); }

/* ---- memory ------------------------------------------------------------------------------------------------- */

/* Makes the array of an item; if the array exists and is by row, moves its n_used rows to larger memory. */
static int make_room(const item *it, size_t n_used, size_t n_row, dw_err *err) {
    const size_t cols = it->cols ? it->cols : 1, rows = it->by_row ? n_row : it->rows;
    void **array = it->array_pointer, *old = *array;
    size_t n;
    if (old && !it->by_row) return 0;
    if (!dw_mul(rows, cols, &n)) return dw_fail(err, "statistics of %zu rows are too large", n_row);
    void *room = dw_alloc(n, kind_size(it->kind), "statistics", err);
    if (!room) return -1;
    if (old) memcpy(room, old, n_used * cols * kind_size(it->kind));
    free(old);
    *array = room;
    return 0;
}

typedef enum part { SMALL = 1, LARGE = 2, ALL = 3 } part; // of a layer's items

static bool is_in(part p, const item *it) { return p & (it->small ? SMALL : LARGE); }

static int make_layer(const kit_stats *s, int l, part p, size_t n_row, dw_err *err) {
    item list[MAX_ITEMS];
    const size_t n = layer_items(s, l, list);
    for (size_t i = 0; i < n; i++)
        if (is_in(p, &list[i]) && make_room(&list[i], s->n_row, n_row, err)) return -1;
    s->layer[l].text_square[KIT_STATS_FFN_NEURON] = s->layer[l].sum_square;
    return 0;
}

static void free_layer(const kit_stats *s, int l, part p) {
    kit_stats_layer *w = &s->layer[l];
    item list[MAX_ITEMS];
    const size_t n = layer_items(s, l, list);
    for (size_t i = 0; i < n; i++) {
        if (!is_in(p, &list[i])) continue;
        void **array = list[i].array_pointer;
        free(*array);
        *array = NULL;
    }
    for (int k = 0; k < KIT_STATS_N_INPUTS && p & LARGE; k++) {
        free(w->input_square[k]);
        w->input_square[k] = NULL;
    }
    w->text_square[KIT_STATS_FFN_NEURON] = w->sum_square;
}

static int reserve_texts(kit_stats *s, size_t n_text, dw_err *err) {
    if (n_text <= s->cap_text) return 0;
    if (n_text > KIT_H5_MAX_TEXTS)
        return dw_fail(err, "%zu texts are too many: statistics hold at most %d", n_text, KIT_H5_MAX_TEXTS);
    kit_stats_text *text = dw_alloc(n_text, sizeof *text, "statistics", err);
    if (!text) return -1;
    if (s->n_text) memcpy(text, s->text, s->n_text * sizeof *text);
    free(s->text);
    s->text = text;
    s->cap_text = n_text;
    return 0;
}

/* Room for the output and one part of all layers. */
static int reserve_rows(kit_stats *s, size_t n_row, part p, dw_err *err) {
    const item output = output_item(s);
    if (n_row <= s->cap_row) return 0;
    if (make_room(&output, s->n_row, n_row, err)) return -1;
    for (int l = 0; l < s->n_layer; l++)
        if (make_layer(s, l, p, n_row, err)) return -1;
    s->cap_row = n_row;
    return 0;
}

int kit_stats_reserve(kit_stats *s, size_t n_text, size_t n_row, dw_err *err) {
    return reserve_texts(s, n_text, err) ? -1 : reserve_rows(s, n_row, ALL, err);
}

int kit_stats_add_gradients(kit_stats *s, dw_err *err) {
    if (s->has_gradients) return 0;
    s->has_gradients = true;
    for (int l = 0; l < s->n_layer; l++)
        if (make_layer(s, l, LARGE, s->cap_row, err)) return -1;
    return 0;
}

static size_t layer_bytes(const kit_stats *s, int l, size_t n_row) {
    item list[MAX_ITEMS];
    const size_t n = layer_items(s, l, list);
    size_t sum = 0; // at most 2^5 items of 2^20 * 2^24 * 2^3 bytes
    for (size_t i = 0; i < n; i++)
        sum += (list[i].by_row ? n_row : list[i].rows) * (list[i].cols ? list[i].cols : 1) * kind_size(list[i].kind);
    return sum;
}

size_t kit_stats_bytes(const kit_stats *s, size_t n_row) {
    size_t sum = n_row * (size_t)s->n_embd * sizeof(double);
    for (int l = 0; l < s->n_layer; l++) sum += layer_bytes(s, l, n_row);
    return sum;
}

/* Makes the arrays for a layer's totals. */
static int make_totals(const kit_stats *s, int l, dw_err *err) {
    kit_stats_layer *w = &s->layer[l];
    for (int k = 0; k < KIT_STATS_N_INPUTS; k++) {
        if (!w->n_input[k] || w->input_square[k]) continue;
        w->input_square[k] = dw_alloc((size_t)w->n_input[k], sizeof *w->input_square[k], "statistics", err);
        if (!w->input_square[k]) return -1;
    }
    return 0;
}

/* Sets the widths; makes no arrays. */
static int set_shape(kit_stats *s, int n_layer, int n_embd, const int *n_ff, const int *n_attn_mix, dw_err *err) {
    *s = (kit_stats){.n_embd = n_embd, .hist_every = 1, .apart = KIT_STATS_APART};
    if (n_layer < 1 || n_layer > DW_MAX_LAYERS || n_embd < 1 || n_embd > MAX_WIDTH)
        return dw_fail(err, "statistics of %d layers of width %d are out of range", n_layer, n_embd);
    for (int l = 0; l < n_layer; l++)
        if (n_ff[l] < 0 || n_ff[l] > MAX_WIDTH || n_attn_mix[l] < 0 || n_attn_mix[l] > MAX_WIDTH)
            return dw_fail(err, "layer %d: statistics of %d neurons and %d attention values are out of range", l,
                           n_ff[l], n_attn_mix[l]);
    s->layer = dw_alloc((size_t)n_layer, sizeof *s->layer, "statistics", err);
    if (!s->layer) return -1;
    s->n_layer = n_layer;
    for (int l = 0; l < n_layer; l++)
        s->layer[l] = (kit_stats_layer){
            .n_ff = n_ff[l], .n_input = {n_attn_mix[l] ? n_embd : 0, n_attn_mix[l], n_ff[l] ? n_embd : 0, n_ff[l]}};
    return 0;
}

/* Makes the arrays of texts, output and one part of the layers. */
static int make_arrays(kit_stats *s, size_t n_text, size_t n_row, part p, dw_err *err) {
    s->arguments = dw_strdup("", err);
    s->output_square = dw_alloc((size_t)s->n_embd, sizeof *s->output_square, "statistics", err);
    if (!s->arguments || !s->output_square || reserve_texts(s, n_text, err) || reserve_rows(s, n_row, p, err))
        return -1;
    for (int l = 0; l < s->n_layer && p & LARGE; l++)
        if (make_totals(s, l, err)) return -1;
    s->n_text = n_text;
    s->n_row = n_row;
    return 0;
}

int kit_stats_init(kit_stats *s, int n_layer, int n_embd, const int *n_ff, const int *n_attn_mix, size_t n_text,
                   dw_err *err) {
    *s = (kit_stats){0};
    if (!n_text) return dw_fail(err, "statistics need at least one text");
    if (set_shape(s, n_layer, n_embd, n_ff, n_attn_mix, err)) return -1;
    if (make_arrays(s, n_text, n_text, ALL, err)) {
        kit_stats_release(s);
        return -1;
    }
    for (size_t t = 0; t < n_text; t++) s->text[t].row = t;
    return 0;
}

struct kit_stats_file {
    kit_h5_in in;
    char *path;
    int loaded;     // the layer whose arrays are in memory, -1: none
    bool *was_read; // (n_layer)
};

static void close_file(kit_stats *s) {
    if (!s->file) return;
    kit_h5_close(&s->file->in);
    free(s->file->path);
    free(s->file->was_read);
    free(s->file);
    s->file = NULL;
}

void kit_stats_release(kit_stats *s) {
    close_file(s);
    for (int l = 0; l < s->n_layer; l++) free_layer(s, l, ALL);
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

/* Of what is read with the header. */
static void total_small(const kit_stats *s, int l) {
    kit_stats_layer *w = &s->layer[l];
    bool has_inverse = true;
    add_rows(&w->sum_cosine, w->text_cosine, s->n_row, 1);
    add_rows(&w->sum_inverse, w->text_inverse, s->n_row, 1);
    w->n_cosine = 0;
    for (size_t r = 0; r < s->n_row; r++) {
        w->n_cosine += w->text_n_cosine[r];
        has_inverse &= w->text_inverse[r] > 0;
    }
    if (!has_inverse) w->sum_inverse = 0; // some texts are from an older file
}

static void total_large(const kit_stats *s, int l) {
    kit_stats_layer *w = &s->layer[l];
    for (int k = 0; k < KIT_STATS_N_INPUTS; k++)
        if (w->n_input[k]) add_rows(w->input_square[k], w->text_square[k], s->n_row, (size_t)w->n_input[k]);
}

void kit_stats_total(kit_stats *s) {
    add_rows(s->output_square, s->text_output_square, s->n_row, (size_t)s->n_embd);
    for (int l = 0; l < s->n_layer; l++) {
        total_small(s, l);
        total_large(s, l);
    }
}

uint64_t kit_stats_n_tokens(const kit_stats *s) {
    uint64_t n = 0;
    for (size_t t = 0; t < s->n_text; t++) n += s->text[t].n_tokens;
    return n;
}

int kit_stats_check_model(const kit_stats *s, const char *path, const char *model, const char sha256[65], dw_err *err) {
    if (!strcmp(s->model_sha256, sha256)) return 0;
    return dw_fail(
        err,
        "'%s' was collected from another model (sha256 %.12s..., '%s' has %.12s...); collect statistics of this one",
        path, s->model_sha256, model, sha256);
}

int kit_stats_check_shape(const kit_stats *s, const char *path, int n_layer, int n_embd, const int *n_ff, dw_err *err) {
    if (s->n_layer != n_layer || s->n_embd != n_embd)
        return dw_fail(err, "'%s' has %d layers of width %d, the model %d of %d; collect statistics of this model",
                       path, s->n_layer, s->n_embd, n_layer, n_embd);
    for (int l = 0; l < n_layer; l++)
        if (s->layer[l].n_ff != n_ff[l])
            return dw_fail(err, "'%s', layer %d: it has %d neurons, the model %d; collect statistics of this model",
                           path, l, s->layer[l].n_ff, n_ff[l]);
    return 0;
}

int kit_stats_n_windows(const kit_stats *s) {
    int n = 0;
    for (size_t t = 0; t < s->n_text; t++) n += s->text[t].n_windows;
    return n;
}

/* Tokens of the texts of each row (n_row); free() it. */
static uint64_t *tokens_of_rows(const kit_stats *s, dw_err *err) {
    uint64_t *n = dw_alloc(s->n_row, sizeof *n, "tokens of rows", err);
    for (size_t t = 0; n && t < s->n_text; t++) n[s->text[t].row] += s->text[t].n_tokens;
    return n;
}

/* A row whose neurons were counted for fewer tokens holds sums of an imatrix, alone or added to others. */
int kit_stats_check_neurons(const kit_stats *s, dw_err *err) {
    if (!s->n_text) return dw_fail(err, "the statistics have no text");
    uint64_t *n_tokens = tokens_of_rows(s, err);
    int rc = n_tokens ? 0 : -1;
    for (int l = 0; l < s->n_layer && !rc; l++)
        for (size_t t = 0; t < s->n_text && !rc; t++) {
            const size_t row = s->text[t].row;
            if (!s->layer[l].count[row] || s->layer[l].count[row] != n_tokens[row])
                rc = dw_fail(
                    err,
                    "the statistics know nothing of single neurons for '%s' or for what was added to it, as those "
                    "from an imatrix do; collect them from texts",
                    s->text[t].name);
        }
    free(n_tokens);
    return rc;
}

int kit_stats_check_gradients(const kit_stats *s, const char *what, dw_err *err) {
    if (s->has_gradients) return 0;
    return dw_fail(err,
                   "the statistics have no gradients, which %s needs; collect them with gradients (collect "
                   "--gradients)",
                   what);
}

static int check_same(const kit_stats *a, const kit_stats *b, dw_err *err) {
    if (strcmp(a->model_sha256, b->model_sha256))
        return dw_fail(err, "statistics of two models cannot be added: sha256 %.12s and %.12s", a->model_sha256,
                       b->model_sha256);
    if (a->n_ctx != b->n_ctx || a->skip != b->skip || a->hist_every != b->hist_every)
        return dw_fail(err, "statistics with -c %d --skip %d --hist-every %d cannot be added to others with %d, %d, %d",
                       b->n_ctx, b->skip, b->hist_every, a->n_ctx, a->skip, a->hist_every);
    if (a->has_gradients != b->has_gradients)
        return dw_fail(err, "statistics with gradients cannot be added to others without; collect all of them with "
                            "gradients (collect --gradients), or none");
    bool same = a->n_layer == b->n_layer && a->n_embd == b->n_embd;
    for (int l = 0; same && l < a->n_layer; l++)
        same = a->layer[l].n_ff == b->layer[l].n_ff &&
               !memcmp(a->layer[l].n_input, b->layer[l].n_input, sizeof a->layer[l].n_input);
    if (!same) return dw_fail(err, "statistics of models with different widths cannot be added");
    return 0;
}

static void add_values(kind k, void *to, const void *from, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (k == U32)
            ((uint32_t *)to)[i] += ((const uint32_t *)from)[i];
        else if (k == U64)
            ((uint64_t *)to)[i] += ((const uint64_t *)from)[i];
        else if (k == F32_MAGNITUDE)
            ((float *)to)[i] = fmaxf(((float *)to)[i], ((const float *)from)[i]);
        else
            ((double *)to)[i] += ((const double *)from)[i];
    }
}

/* The row of a that row r of the added statistics goes to. */
static size_t target_row(const kit_stats *a, size_t r) {
    const size_t last = a->n_row > a->apart + 1 ? a->n_row - 1 : a->apart;
    return a->n_row + r < last ? a->n_row + r : last;
}

/* New rows are zero before.  The first addition to them gives the added numbers, bit for bit. */
static void add_item_to(const kit_stats *a, const item *to, const item *from) {
    uint8_t *sums = *(uint8_t **)to->array_pointer;
    const uint8_t *more = *(uint8_t **)from->array_pointer;
    const size_t cols = to->cols ? to->cols : 1, row_bytes = cols * kind_size(to->kind);
    if (!to->by_row) {
        add_values(to->kind, sums, more, n_values(from));
        return;
    }
    for (size_t r = 0; r < from->rows; r++)
        add_values(to->kind, sums + target_row(a, r) * row_bytes, more + r * row_bytes, cols);
}

/* Bins of 32-bit histograms stay below 2^32 if the number of tokens does. */
static int check_counts(const kit_stats *a, const kit_stats *b, dw_err *err) {
    if (kit_stats_n_tokens(a) + kit_stats_n_tokens(b) > UINT32_MAX)
        return dw_fail(err, "statistics of more than %u tokens cannot be added", UINT32_MAX);
    if (kit_stats_n_windows(a) > INT32_MAX - kit_stats_n_windows(b))
        return dw_fail(err, "statistics of more than %d windows cannot be added", INT32_MAX);
    return 0;
}

static int end_of(const kit_stats_text *t) { return t->first_window + t->n_windows; }

static bool texts_overlap(const kit_stats_text *a, const kit_stats_text *b) {
    return !strcmp(a->sha256, b->sha256) && a->first_window < end_of(b) && b->first_window < end_of(a);
}

/* A text among others that are sorted by file and first window; furthest: of those of its file up to here the one that
 * ends last. */
typedef struct placed {
    const kit_stats_text *text, *furthest;
} placed;

static int by_place(const void *a, const void *b) {
    const kit_stats_text *x = ((const placed *)a)->text, *y = ((const placed *)b)->text;
    const int c = strcmp(x->sha256, y->sha256);
    return c ? c : (x->first_window > y->first_window) - (x->first_window < y->first_window);
}

/* free() */
static placed *place_texts(const kit_stats *s, dw_err *err) {
    placed *p = dw_alloc(s->n_text, sizeof *p, "texts", err);
    for (size_t i = 0; p && i < s->n_text; i++) p[i].text = &s->text[i];
    if (p) qsort(p, s->n_text, sizeof *p, by_place);
    for (size_t i = 0; p && i < s->n_text; i++) {
        const bool follows = i && !strcmp(p[i - 1].text->sha256, p[i].text->sha256);
        p[i].furthest = follows && end_of(p[i - 1].furthest) > end_of(p[i].text) ? p[i - 1].furthest : p[i].text;
    }
    return p;
}

/* One of the n texts that has windows of t; NULL: none has. */
static const kit_stats_text *find_overlap(const placed *p, size_t n, const kit_stats_text *t) {
    size_t low = 0, high = n; // the first text of a later file, or that begins after the end of t
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int c = strcmp(p[middle].text->sha256, t->sha256);
        if (c < 0 || (!c && p[middle].text->first_window < end_of(t)))
            low = middle + 1;
        else
            high = middle;
    }
    return low && texts_overlap(p[low - 1].furthest, t) ? p[low - 1].furthest : NULL;
}

static int check_overlap(const kit_stats *a, const kit_stats *b, dw_err *err) {
    placed *of_a = place_texts(a, err);
    int rc = of_a ? 0 : -1;
    for (size_t i = 0; i < b->n_text && !rc; i++) {
        const kit_stats_text *t = &b->text[i], *other = find_overlap(of_a, a->n_text, t);
        if (other)
            rc = dw_fail(err, "windows of '%s' are in both statistics: %d to %d and %d to %d", t->name,
                         other->first_window, end_of(other) - 1, t->first_window, end_of(t) - 1);
    }
    free(of_a);
    return rc;
}

int kit_stats_can_add(const kit_stats *a, const kit_stats *b, dw_err *err) {
    return check_same(a, b, err) || check_counts(a, b, err) || check_overlap(a, b, err) ? -1 : 0;
}

static int append_texts(kit_stats *a, const kit_stats *b, dw_err *err) {
    kit_stats_text *to = a->text + a->n_text;
    for (size_t t = 0; t < b->n_text; t++) {
        to[t] = b->text[t];
        to[t].row = target_row(a, b->text[t].row);
        to[t].blocks = dw_strdup(b->text[t].blocks, err);
        if (to[t].blocks) continue;
        while (t--) free(to[t].blocks);
        return -1;
    }
    return 0;
}

int kit_stats_add(kit_stats *a, const kit_stats *b, dw_err *err) {
    const size_t n_row = b->n_row ? target_row(a, b->n_row - 1) + 1 : a->n_row;
    if (kit_stats_can_add(a, b, err) || kit_stats_reserve(a, a->n_text + b->n_text, n_row, err)) return -1;
    item to[MAX_ITEMS], from[MAX_ITEMS];
    for (int l = 0; l < a->n_layer; l++) {
        const size_t n = layer_items(a, l, to);
        if (kit_stats_need_layer(b, l, err)) return -1;
        layer_items(b, l, from);
        for (size_t i = 0; i < n; i++) add_item_to(a, &to[i], &from[i]);
    }
    const item output_a = output_item(a), output_b = output_item(b);
    add_item_to(a, &output_a, &output_b);
    if (append_texts(a, b, err)) return -1;
    a->n_text += b->n_text;
    a->n_row = n_row > a->n_row ? n_row : a->n_row;
    kit_stats_total(a);
    return 0;
}

/* ---- HDF5 -------------------------------------------------------------------------------------------------------- */

/* Types in the file (little endian) and in memory. */
static hid_t file_type(kind k) {
    return k == F64 || k == F64_SQUARE ? H5T_IEEE_F64LE
           : k == F32_MAGNITUDE        ? H5T_IEEE_F32LE
           : k == U32                  ? H5T_STD_U32LE
                                       : H5T_STD_U64LE;
}
static hid_t memory_type(kind k) {
    return k == F64 || k == F64_SQUARE ? H5T_NATIVE_DOUBLE
           : k == F32_MAGNITUDE        ? H5T_NATIVE_FLOAT
           : k == U32                  ? H5T_NATIVE_UINT32
                                       : H5T_NATIVE_UINT64;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static void put_item(kit_h5_out *h, const item *it) {
    kit_h5_put(h, it->path, file_type(it->kind), memory_type(it->kind), it->rows, it->cols, it->packed,
               *(void **)it->array_pointer);
    kit_h5_put_note(h, it->path, "meaning", it->meaning);
    kit_h5_put_note(h, it->path, "unit", it->unit);
}

/* Only where texts share rows. */
static int put_text_rows(kit_h5_out *h, const kit_stats *s, dw_err *err) {
    if (s->n_row == s->n_text) return 0;
    int32_t *row = dw_alloc(s->n_text, sizeof *row, "rows of texts", err);
    if (!row) return -1;
    for (size_t t = 0; t < s->n_text; t++) row[t] = (int32_t)s->text[t].row;
    kit_h5_put(h, text_rows, H5T_STD_I32LE, H5T_NATIVE_INT32, s->n_text, 0, false, row);
    free(row);
    return 0;
}

static void put_edges(kit_h5_out *h) {
    double edge[KIT_STATS_BINS];
    for (int b = 0; b < KIT_STATS_BINS; b++) edge[b] = (double)kit_stats_bin_edge(b);
    kit_h5_put_numbers(h, "bin_lower_edges", edge, KIT_STATS_BINS);
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
    put_edges(h);
    if (kit_h5_put_texts(h, s->text, s->n_text, err) || put_text_rows(h, s, err)) return -1;
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
    if (n <= 0 || (hsize_t)n + KIT_H5_USER_BLOCK > allocated || H5Fget_vfd_handle(h->file, access, &memory) < 0)
        return NULL;
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
    kit_h5_out h = {.file = H5Fcreate(path, H5F_ACC_TRUNC, how, access),
                    .links = H5Pcreate(H5P_LINK_CREATE),
                    .text = kit_h5_string_type()};
    H5Pset_create_intermediate_group(h.links, 1);
    int rc = h.file < 0 ? dw_fail(err, "cannot make '%s': the HDF5 library gives no memory file", path)
                        : put_all(&h, s, err);
    size_t n = 0;
    const uint8_t *image = rc || h.failed ? NULL : image_of(&h, access, &n);
    if (!rc)
        rc = image ? save_image(image, n, out, err)
                   : dw_fail(err, "out of memory: statistics for '%s' in the HDF5 library", path);
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

int kit_stats_write(const kit_stats *s, const char *path, dw_err *err) {
    return write_to(s, path, dw_out_open(path, err), err);
}
int kit_stats_keep(const kit_stats *s, const char *path, dw_err *err) {
    return write_to(s, path, dw_out_open_kept(path, err), err);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

bool kit_stats_is(const char *path) { return dw_file_begins(path, magic, strlen(magic)); }

/* Checks counts against the most that n_tokens tokens can add, so that the sums of two files cannot wrap around. */
static const char *count_fault(const item *it, size_t n, uint64_t n_tokens) {
    const void *values = *(void **)it->array_pointer;
    size_t most;
    if (!it->per_token || !dw_mul(n_tokens, it->per_token, &most)) return NULL;
    for (size_t i = 0; i < n; i++)
        if ((it->kind == U32 ? ((const uint32_t *)values)[i] : ((const uint64_t *)values)[i]) > most)
            return "counts of more tokens than its texts have";
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
    return k == F64 || k == F64_SQUARE ? KIT_H5_F64
           : k == F32_MAGNITUDE        ? KIT_H5_F32
           : k == U32                  ? KIT_H5_U32
                                       : KIT_H5_U64;
}

/* 1: the item is there, with its shape; 0: it is not, and need not be; -1: an error. */
static int find_item(const kit_h5_in *r, const item *it, kit_h5_set *set) {
    bool is_there = true;
    if (it->optional && kit_h5_has(r, it->path, &is_there)) return -1;
    if (!is_there) return 0;
    if (kit_h5_find(r, it->path, type_of(it->kind), set)) return -1;
    if (set->dims[0] != it->rows || set->dims[1] != it->cols)
        return dw_fail(r->err, "'%s' has %zu x %zu values, expected %zu x %zu", it->path, set->dims[0],
                       set->dims[1] ? set->dims[1] : 1, it->rows, it->cols ? it->cols : 1);
    if (set->is_packed && !it->packed) return dw_fail(r->err, "'%s' is packed; only histograms may be", it->path);
    return 1;
}

/* Reads the values of an item into its array. */
static int read_item(kit_h5_in *r, const item *it, uint64_t n_tokens) {
    kit_h5_set set;
    const int found = find_item(r, it, &set);
    if (found <= 0) return found;
    if (kit_h5_whole(r, &set, *(void **)it->array_pointer)) return -1;
    const char *fault = value_fault(it, n_values(it), n_tokens);
    return fault ? dw_fail(r->err, "'%s' holds %s", it->path, fault) : 0;
}

/* *n: columns of a dataset of n_row rows; 0 if the dataset is missing. */
static int columns_of(const kit_h5_in *r, const char *path, size_t n_row, int *n) {
    kit_h5_set set;
    bool is_there;
    *n = 0;
    if (kit_h5_has(r, path, &is_there)) return -1;
    if (!is_there) return 0;
    if (kit_h5_find(r, path, KIT_H5_F64, &set)) return -1;
    *n = (int)set.dims[1];
    if (set.is_packed) return dw_fail(r->err, "'%s' is packed; only histograms may be", path);
    if (set.dims[0] == n_row || !set.dims[1]) return 0;
    return dw_fail(r->err, "'%s' has %zu rows, expected one for each of %zu texts", path, set.dims[0], n_row);
}

/* Reads the widths of all layers into arrays of n_layer. */
static int read_widths(const kit_h5_in *r, int n_layer, size_t n_row, int *n_ff, int *n_attn_mix) {
    char path[64];
    bool has;
    for (int l = 0; l < n_layer; l++) {
        snprintf(path, sizeof path, "layer/%02d/ffn/count", l);
        if (kit_h5_has(r, path, &has)) return -1;
        if (!has) return dw_fail(r->err, "'%s' is missing", path);
        snprintf(path, sizeof path, "layer/%02d/ffn/sum_square", l);
        if (columns_of(r, path, n_row, &n_ff[l])) return -1;
        snprintf(path, sizeof path, "layer/%02d/ffn/hist_a", l);
        if (kit_h5_has(r, path, &has)) return -1;
        if (!n_ff[l] && has) return dw_fail(r->err, "'%s' exists, but ffn/sum_square of that layer is missing", path);
        snprintf(path, sizeof path, "layer/%02d/input/attn_mix/sum_square", l);
        if (columns_of(r, path, n_row, &n_attn_mix[l])) return -1;
    }
    return 0;
}

static int check_rows(const kit_h5_in *r, const int32_t *row, size_t n_text, size_t n_row) {
    bool *used = dw_alloc(n_row, sizeof *used, "rows of texts", r->err);
    int rc = used ? 0 : -1;
    for (size_t t = 0; t < n_text && !rc; t++) {
        if (row[t] < 0 || (size_t)row[t] >= n_row)
            rc = dw_fail(r->err, "'%s' has the row %d of %zu", text_rows, row[t], n_row);
        else
            used[row[t]] = true;
    }
    for (size_t i = 0; i < n_row && !rc; i++)
        if (!used[i]) rc = dw_fail(r->err, "'%s' leaves row %zu without a text", text_rows, i);
    free(used);
    return rc;
}

/* *row: the row of each text, free(); NULL if every text has its own. */
static int read_text_rows(kit_h5_in *r, size_t n_text, int32_t **row, size_t *n_row) {
    kit_h5_set set, output;
    bool is_there;
    *row = NULL;
    *n_row = n_text;
    if (kit_h5_has(r, text_rows, &is_there)) return -1;
    if (!is_there) return 0;
    if (kit_h5_find(r, text_rows, KIT_H5_I32, &set) || kit_h5_find(r, "output/sum_square", KIT_H5_F64, &output))
        return -1;
    *n_row = output.dims[0];
    if (set.dims[0] != n_text || set.dims[1] || set.is_packed || !*n_row || *n_row > n_text)
        return dw_fail(r->err, "'%s' does not fit %zu texts and %zu rows of sums", text_rows, n_text, *n_row);
    *row = dw_alloc(n_text, sizeof **row, "rows of texts", r->err);
    return *row && !kit_h5_whole(r, &set, *row) && !check_rows(r, *row, n_text, *n_row) ? 0 : -1;
}

static int check_row_counts(const kit_h5_in *r, const kit_stats *s) {
    uint64_t *n_tokens = tokens_of_rows(s, r->err);
    int rc = n_tokens ? 0 : -1;
    for (int l = 0; l < s->n_layer && !rc; l++)
        for (size_t i = 0; i < s->n_row && !rc; i++)
            if (s->layer[l].count[i] > n_tokens[i] || s->layer[l].text_n_cosine[i] > n_tokens[i])
                rc = dw_fail(r->err, "layer %d counts more tokens in row %zu of the sums than its texts have", l, i);
    free(n_tokens);
    return rc;
}

static int read_layer(kit_h5_in *r, const kit_stats *s, int l, part p) {
    item list[MAX_ITEMS];
    const size_t n = layer_items(s, l, list);
    const uint64_t n_tokens = kit_stats_n_tokens(s);
    for (size_t i = 0; i < n; i++)
        if (is_in(p, &list[i]) && read_item(r, &list[i], n_tokens)) return -1;
    return 0;
}

static int check_large(const kit_h5_in *r, const kit_stats *s, int l) {
    item list[MAX_ITEMS];
    kit_h5_set set;
    const size_t n = layer_items(s, l, list);
    for (size_t i = 0; i < n; i++)
        if (is_in(LARGE, &list[i]) && find_item(r, &list[i], &set) < 0) return -1;
    return 0;
}

/* What is read with the header: texts, output, and the small items of all layers; of the large ones the shapes. */
static int read_small(kit_h5_in *r, kit_stats *s, const int32_t *row) {
    const item output = output_item(s);
    if (kit_h5_texts(r, s->text, s->n_text)) return -1;
    for (size_t t = 0; t < s->n_text; t++) s->text[t].row = row ? (size_t)row[t] : t;
    if (read_item(r, &output, kit_stats_n_tokens(s))) return -1;
    add_rows(s->output_square, s->text_output_square, s->n_row, (size_t)s->n_embd);
    for (int l = 0; l < s->n_layer; l++) {
        if (read_layer(r, s, l, SMALL) || check_large(r, s, l)) return -1;
        total_small(s, l);
    }
    return check_row_counts(r, s);
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
    if (kit_h5_hash(r, "model_sha256", s->model_sha256)) return -1;
    if (kit_h5_short_text(r, "model_arch", s->arch, sizeof s->arch)) return -1;
    if (kit_h5_short_text(r, "backend", s->backend, sizeof s->backend)) return -1;
    if (kit_h5_int(r, "n_ctx", 0, 1 << 22, &s->n_ctx) || kit_h5_int(r, "skip", 0, 1 << 22, &s->skip)) return -1;
    return kit_h5_int(r, "hist_every", 1, 1 << 22, &s->hist_every);
}

/* Fails unless the file has at least the bytes of all arrays that are not packed.  A neuron has at least 28 bytes of
 * such arrays and 64 * 4 * (2 + 1/32 + 1/64 + 1/128) = 526 bytes of histograms, so memory is at most 20 times the
 * file. */
static int check_memory(kit_h5_in *r, const kit_stats *s, size_t n_row) {
    item list[MAX_ITEMS], output = output_item(s);
    size_t sum = n_row * output.cols * kind_size(output.kind); // at most 2^20 * 2^24 * 2^3
    for (int l = 0; l < s->n_layer; l++) {
        const size_t n = layer_items(s, l, list);
        for (size_t i = 0; i < n; i++) // at most 2^10 * 2^5 such terms, so the sum does not overflow
            if (!list[i].packed && !list[i].optional)
                sum += (list[i].by_row ? n_row : list[i].rows) * (list[i].cols ? list[i].cols : 1) *
                       kind_size(list[i].kind);
    }
    if (sum <= r->n_left) return 0;
    return dw_fail(r->err,
                   "its arrays need %zu bytes, but the file has only %zu; files in which several names share "
                   "their bytes are refused",
                   sum, r->n_bytes);
}

/* Whether any layer has sums of gradients; then the reader wants them of every layer with neurons. */
static int read_has_gradients(const kit_h5_in *r, kit_stats *s) {
    char path[64];
    for (int l = 0; l < s->n_layer && !s->has_gradients; l++) {
        snprintf(path, sizeof path, "layer/%02d/ffn/sum_taylor", l);
        if (kit_h5_has(r, path, &s->has_gradients)) return -1;
    }
    return 0;
}

static int read_shape(kit_h5_in *r, kit_stats *s, size_t n_row) {
    int n_layer, n_embd, output_columns;
    if (kit_h5_int(r, "n_layer", 1, DW_MAX_LAYERS, &n_layer) || kit_h5_int(r, "n_embd", 1, MAX_WIDTH, &n_embd))
        return -1;
    if (columns_of(r, "output/sum_square", n_row, &output_columns)) return -1;
    if (output_columns != n_embd)
        return dw_fail(r->err, "'output/sum_square' has %d columns, expected n_embd, %d", output_columns, n_embd);
    int *widths = dw_alloc(2 * (size_t)n_layer, sizeof *widths, "widths", r->err);
    int rc = widths ? read_widths(r, n_layer, n_row, widths, widths + n_layer) : -1;
    if (!rc) rc = set_shape(s, n_layer, n_embd, widths, widths + n_layer, r->err);
    free(widths);
    return rc ? -1 : read_has_gradients(r, s);
}

static int read_all(kit_h5_in *r, kit_stats *s) {
    size_t n_text, n_row;
    int32_t *row = NULL;
    int rc = kit_h5_n_texts(r, &n_text);
    if (!rc) rc = read_text_rows(r, n_text, &row, &n_row);
    if (!rc) rc = read_shape(r, s, n_row);
    if (!rc) rc = check_memory(r, s, n_row);
    if (!rc) rc = make_arrays(s, n_text, n_row, SMALL, r->err);
    if (!rc) rc = read_header(r, s);
    if (!rc) rc = read_small(r, s, row);
    free(row);
    return rc;
}

/* The file's structure, which outlives the opening. */
static kit_stats_file *new_file(int n_layer, const char *path, dw_err *err) {
    kit_stats_file *f = dw_alloc(1, sizeof *f, "statistics", err);
    if (!f) return NULL;
    f->loaded = -1;
    f->path = dw_strdup(path, err);
    f->was_read = dw_alloc((size_t)n_layer, sizeof *f->was_read, "statistics", err);
    if (f->path && f->was_read) return f;
    free(f->path);
    free(f->was_read);
    free(f);
    return NULL;
}

int kit_stats_open(kit_stats *s, const char *path, dw_err *err) {
    kit_h5_in r;
    dw_err own = {0};
    *s = (kit_stats){0};
    int rc = kit_h5_open(&r, path, magic, "statistics", "collect", &own);
    if (!rc) rc = read_all(&r, s);
    if (!rc) rc = (s->file = new_file(s->n_layer, path, &own)) ? 0 : -1;
    if (!rc) {
        s->file->in = r;
        s->file->in.err = NULL; // own ends here
        return 0;
    }
    kit_h5_close(&r);
    kit_stats_release(s);
    return dw_fail(err, "statistics '%s': %s", path, own.text);
}

/* Reads the large arrays of a layer.  The bytes of a layer that is read again were subtracted from the limit before. */
static int load_layer(const kit_stats *s, int l, dw_err *err) {
    kit_stats_file *f = s->file;
    dw_err own = {0};
    const size_t n_left = f->in.n_left;
    f->in.err = &own;
    if (f->was_read[l]) f->in.n_left = f->in.n_bytes;
    int rc = make_layer(s, l, LARGE, s->n_row, &own);
    if (!rc) rc = make_totals(s, l, &own);
    if (!rc) rc = read_layer(&f->in, s, l, LARGE);
    if (f->was_read[l]) f->in.n_left = n_left;
    f->was_read[l] = true;
    f->in.err = NULL;
    if (rc) return dw_fail(err, "statistics '%s': %s", f->path, own.text);
    total_large(s, l);
    return 0;
}

int kit_stats_need_layer(const kit_stats *s, int l, dw_err *err) {
    kit_stats_file *f = s->file;
    if (!f || f->loaded == l) return 0;
    if (f->loaded >= 0) free_layer(s, f->loaded, LARGE);
    f->loaded = -1;
    if (load_layer(s, l, err)) return -1;
    f->loaded = l;
    return 0;
}

int kit_stats_read(kit_stats *s, const char *path, dw_err *err) {
    int rc = kit_stats_open(s, path, err);
    for (int l = 0; l < s->n_layer && !rc; l++) rc = load_layer(s, l, err);
    if (rc)
        kit_stats_release(s);
    else
        close_file(s);
    return rc;
}
