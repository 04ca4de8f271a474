/* stats.h - activation statistics (stats.h5): sums over calibration tokens, separate for every text.
 *
 * The file has sums, not means.  Every text adds to one row of the sums.  The first texts (KIT_STATS_APART, or as many
 * as collect --apart says) have a row each, and all later texts share one more row, so that thousands of texts need no
 * more memory than a few.  The rows do not depend on each other.  Therefore files of different texts add up
 * (kit_stats_add) to the file of all texts: bit for bit while every text has its own row, otherwise to rounding in F64.
 *
 * The file is HDF5 and opens in h5py.  Every dataset has the attributes `meaning` and `unit`.  Layout (n_ff and n may
 * differ per layer):
 *
 *   /  attributes  format_version 1, model_sha256 (dw_gguf_sha256), model_arch, n_layer, n_embd, n_ctx, skip (positions
 *                  at the beginning of every window that are not counted), hist_every (of the other positions, 0, n,
 *                  2n, ... enter the histograms), backend (name and level, e.g. "cpu avx512"), arguments,
 *                  bin_lower_edges (KIT_STATS_BINS) f64: the smallest value of each bin of every histogram
 *   /texts         name (string), sha256 (string), first_window, n_windows i32, n_tokens u64 (counted tokens), blocks
 *                  (string): one entry per text; `blocks` are hashes of its parts (lineage.h), which show leaks
 *                  row i32: the row that the text adds to; only where texts share a row, otherwise text i has row i
 *   /layer/NN/ffn  count (n_row) u64;  sum_a, sum_abs, sum_square (n_row, n_ff) f64;  max_abs (n_row, n_ff) f32
 *                  hist_a, hist_gate (n_ff, KIT_STATS_BINS) u32: histograms of |a| and |act(gate)|
 *                  hist_group_32, _64, _128 (ceil(n_ff / size), KIT_STATS_BINS) u32: histograms of the largest
 *                  |act(gate)| in each aligned group of that many neurons
 *                  sum_taylor, sum_fisher (n_row, n_ff) f64: only with gradients (collect --gradients); sums of
 *                  |a g| and (a g)^2 with g = dL/da, L = sum of -ln p(next token) over the window.  The last token of a
 *                  window has no next one, so its g is 0.
 *   /layer/NN/input/attn_in, attn_mix, ffn_in, ffn_neuron: the inputs x of q,k,v | attn_output | gate,up | down
 *                  sum_square (n_row, n) f64: per column; that of ffn_neuron is a second name of ffn/sum_square
 *                  hist (KIT_STATS_BINS) u64: histogram of |x| over all columns
 *   /layer/NN/influence  sum_cosine (n_row) f64, count (n_row) u64: of the cosine between the residuals before and
 *                  after the layer; block influence = 1 - sum_cosine / count (Men et al. 2024)
 *                  sum_inverse (n_row) f64: of 1 / ||x||^2, x the residual after the layer; older files lack it
 *   /output        sum_square (n_row, n_embd) f64: input of the output matrix
 *
 * Bin b of a histogram counts values v with floor(2 log2 v) + 40 = b: half octaves from 2^-20 to 2^12.  Bin 0 also has
 * all smaller values and zero, the last bin all larger values.
 *
 * The user block before the HDF5 file has the line "deadwood stats 1\n" and a checksum (h5.h).
 *
 * Statistics made from an imatrix (collect --import-imatrix) have input sums only: one text, count 0 everywhere in ffn
 * and influence, and sums of squares scaled to n_tokens tokens. */
#ifndef KIT_STATS_H
#define KIT_STATS_H

#include "formats/formats.h"

enum { KIT_STATS_BINS = 64, KIT_STATS_N_INPUTS = 4, KIT_STATS_N_GROUPS = 3, KIT_STATS_APART = 64 };

typedef enum kit_stats_input {
    KIT_STATS_ATTN_IN, KIT_STATS_ATTN_MIX, KIT_STATS_FFN_IN, KIT_STATS_FFN_NEURON
} kit_stats_input;

extern const int kit_stats_group_sizes[KIT_STATS_N_GROUPS];         // 32, 64, 128
extern const char *const kit_stats_input_names[KIT_STATS_N_INPUTS]; // attn_in, attn_mix, ffn_in, ffn_neuron

typedef struct kit_stats_text {
    char name[128], sha256[65];
    int first_window, n_windows; // counted from 1
    uint64_t n_tokens;
    char *blocks;                // hex; may be ""
    size_t row;                  // of the sums
} kit_stats_text;

typedef struct kit_stats_layer {
    int n_ff, n_input[KIT_STATS_N_INPUTS];    // n_input 0: the layer has no such input (no attention, or no FFN)
    uint64_t *count;                          // (n_row)
    double *sum_a, *sum_abs, *sum_square;     // (n_row, n_ff)
    float *max_abs;                           // (n_row, n_ff)
    uint32_t *hist_a, *hist_gate;             // (n_ff, BINS)
    uint32_t *hist_group[KIT_STATS_N_GROUPS]; // (ceil(n_ff / size), BINS)
    double *sum_taylor, *sum_fisher;          // (n_row, n_ff); NULL unless has_gradients
    double *text_square[KIT_STATS_N_INPUTS];  // (n_row, n_input); that of ffn_neuron is the pointer sum_square
    uint64_t *input_hist[KIT_STATS_N_INPUTS]; // (BINS)
    double *text_cosine, *text_inverse;       // (n_row)
    uint64_t *text_n_cosine;                  // (n_row)
    /* sums over all rows, by kit_stats_total */
    double *input_square[KIT_STATS_N_INPUTS]; // (n_input)
    double sum_cosine;
    double sum_inverse; // 0: unknown
    uint64_t n_cosine;
} kit_stats_layer;

typedef struct kit_stats_file kit_stats_file;

typedef struct kit_stats {
    char model_sha256[65], arch[32], backend[32];
    int n_ctx, skip, hist_every;
    bool has_gradients;
    char *arguments;
    int n_layer, n_embd;
    size_t n_text, n_row;       // n_row <= n_text
    kit_stats_text *text;
    kit_stats_layer *layer;     // n_layer
    double *text_output_square; // (n_row, n_embd)
    double *output_square;      // (n_embd): sum over all rows, by kit_stats_total
    size_t apart;               // texts that are added get a row of their own while there are at most so many
    size_t cap_text, cap_row;   // texts and rows that there is room for
    kit_stats_file *file;       // the other layers are still in it; NULL: all are in memory
} kit_stats;

/* Statistics for n_text texts with a row each, all zero, arguments "".  n_ff and n_attn_mix (0: no attention): widths
 * of the n_layer layers.  After a failure there is nothing to release. */
int kit_stats_init(kit_stats *s, int n_layer, int n_embd, const int *n_ff, const int *n_attn_mix, size_t n_text,
                   dw_err *err);
/* Adds the sums of gradients, all zero, to statistics in memory that lack them. */
int kit_stats_add_gradients(kit_stats *s, dw_err *err);
/* Makes room for so many texts and rows; the new room is zero.  s->n_text and s->n_row do not change. */
int kit_stats_reserve(kit_stats *s, size_t n_text, size_t n_row, dw_err *err);
/* The row of a text that follows n others, by s->apart. */
static inline size_t kit_stats_next_row(const kit_stats *s, size_t n) { return n < s->apart ? n : s->apart; }
size_t kit_stats_bytes(const kit_stats *s, size_t n_row); // of the arrays of all layers

/* Opens a file: header, texts and what is small are read; kit_stats_need_layer reads a layer.  Checks the shape of
 * every dataset and, when it is read, every number: NaN, infinity, negative sums of squares, and histograms that count
 * more tokens than the texts have are errors.  Takes at most 20 times the memory of the file.  Makes the totals. */
int kit_stats_open(kit_stats *s, const char *path, dw_err *err);
/* Reads a layer's arrays and releases those of the layer that was read before.  Nothing is done for statistics that are
 * in memory.  One thread at a time.  Before, a layer has only its widths, count, cosines and their totals. */
int kit_stats_need_layer(const kit_stats *s, int l, dw_err *err);
int kit_stats_read(kit_stats *s, const char *path, dw_err *err); // opens the file and reads all layers into memory
bool kit_stats_is(const char *path); // whether the file begins with the magic line
/* The file appears whole or not at all; the same statistics give the same bytes. */
int kit_stats_write(const kit_stats *s, const char *path, dw_err *err);
int kit_stats_keep(const kit_stats *s, const char *path, dw_err *err); // may replace a file that this program has read
/* Appends the texts of b to a and updates the totals; a is in memory, b may be open.  While a has at most a->apart
 * rows, a row of b becomes a new row, later ones are added to the last row.  Fails when models, contexts, skips or
 * histograms differ, when one has gradients and the other has none, or when both have the same window of a text.  If
 * memory is missing or reading b fails later, a may hold a part of b's sums and is of no use. */
int kit_stats_add(kit_stats *a, const kit_stats *b, dw_err *err);
int kit_stats_can_add(const kit_stats *a, const kit_stats *b, dw_err *err); // the checks of kit_stats_add alone
void kit_stats_total(kit_stats *s); // input_square, sum_cosine, n_cosine, output_square: sums in the order of texts
void kit_stats_release(kit_stats *s);

/* Fail, with the advice to collect again: if the statistics are not of `model` with this hash; if their shape is not
 * n_layer layers of n_ff[l] neurons and width n_embd; if a text has no neurons, as in statistics from an imatrix; if
 * they have no gradients, which `what` needs. */
int kit_stats_check_model(const kit_stats *s, const char *path, const char *model, const char sha256[65], dw_err *err);
int kit_stats_check_shape(const kit_stats *s, const char *path, int n_layer, int n_embd, const int *n_ff, dw_err *err);
int kit_stats_check_neurons(const kit_stats *s, dw_err *err);
int kit_stats_check_gradients(const kit_stats *s, const char *what, dw_err *err);

/* Over all texts. */
uint64_t kit_stats_n_tokens(const kit_stats *s);
int kit_stats_n_windows(const kit_stats *s); // fits an int: readers and kit_stats_add check

int kit_stats_bin(float magnitude);      // the bin of |v|
float kit_stats_bin_edge(int bin);       // the smallest value of a bin; 0 for bin 0
/* The value below which a share q of a histogram's values lie, NaN if it is empty.  Between the edges of a bin the
 * logarithm is interpolated (in bin 0 the value), so it is off by half an octave at most. */
double kit_stats_quantile(const uint64_t hist[KIT_STATS_BINS], double q);

#endif
