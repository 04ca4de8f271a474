/* stats.h - activation statistics (stats.h5): sums over calibration tokens, separate for every text.
 *
 * The file has sums, not means, and the sums of a text do not depend on other texts.  Therefore files of different
 * texts add up (kit_stats_add) to the file of all texts, bit for bit.  The file is HDF5 and opens in h5py.  Layout
 * (n_ff and n may differ per layer):
 *
 *   /  attributes  format_version 1, model_sha256 (dw_gguf_sha256), model_arch, n_layer, n_embd, n_ctx, skip (positions
 *                  at the beginning of every window that are not counted), hist_every (of the other positions, 0, n,
 *                  2n, ... enter the histograms), backend (name and level, e.g. "cpu avx512"), arguments
 *   /texts         name (string), sha256 (string), first_window, n_windows i32, n_tokens u64 (counted tokens), blocks
 *                  (string): one entry per text; `blocks` are hashes of its parts (lineage.h), which show leaks
 *   /layer/NN/ffn  count (n_text) u64;  sum_a, sum_abs, sum_square (n_text, n_ff) f64;  max_abs (n_text, n_ff) f32
 *                  hist_a, hist_gate (n_ff, KIT_STATS_BINS) u32: histograms of |a| and |act(gate)|
 *                  hist_group_32, _64, _128 (ceil(n_ff / size), KIT_STATS_BINS) u32: histograms of the largest
 *                  |act(gate)| in each aligned group of that many neurons
 *   /layer/NN/input/attn_in, attn_mix, ffn_in, ffn_neuron: the inputs x of q,k,v | attn_output | gate,up | down
 *                  sum_square (n_text, n) f64: per column; that of ffn_neuron is a second name of ffn/sum_square
 *                  hist (KIT_STATS_BINS) u64: histogram of |x| over all columns
 *   /layer/NN/influence  sum_cosine (n_text) f64, count (n_text) u64: of the cosine between the residuals before and
 *                  after the layer; block influence = 1 - sum_cosine / count (Men et al. 2024)
 *   /output        sum_square (n_text, n_embd) f64: input of the output matrix
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

enum { KIT_STATS_BINS = 64, KIT_STATS_N_INPUTS = 4, KIT_STATS_N_GROUPS = 3 };

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
} kit_stats_text;

typedef struct kit_stats_layer {
    int n_ff, n_input[KIT_STATS_N_INPUTS];    // n_input 0: the layer has no such input (no attention, or no FFN)
    uint64_t *count;                          // (n_text)
    double *sum_a, *sum_abs, *sum_square;     // (n_text, n_ff)
    float *max_abs;                           // (n_text, n_ff)
    uint32_t *hist_a, *hist_gate;             // (n_ff, BINS)
    uint32_t *hist_group[KIT_STATS_N_GROUPS]; // (ceil(n_ff / size), BINS)
    double *text_square[KIT_STATS_N_INPUTS];  // (n_text, n_input); that of ffn_neuron is the pointer sum_square
    uint64_t *input_hist[KIT_STATS_N_INPUTS]; // (BINS)
    double *text_cosine;                      // (n_text)
    uint64_t *text_n_cosine;                  // (n_text)
    /* sums over all texts, by kit_stats_total */
    double *input_square[KIT_STATS_N_INPUTS]; // (n_input)
    double sum_cosine;
    uint64_t n_cosine;
} kit_stats_layer;

typedef struct kit_stats {
    char model_sha256[65], arch[32], backend[32];
    int n_ctx, skip, hist_every;
    char *arguments;
    int n_layer, n_embd;
    size_t n_text;
    kit_stats_text *text;
    kit_stats_layer *layer;     // n_layer
    double *text_output_square; // (n_text, n_embd)
    double *output_square;      // (n_embd): sum over all texts, by kit_stats_total
    size_t cap_text;            // texts that the arrays have room for
} kit_stats;

/* Statistics for n_text texts, all zero, arguments "".  n_ff and n_attn_mix (0: no attention): widths of the n_layer
 * layers.  After a failure there is nothing to release. */
int kit_stats_init(kit_stats *s, int n_layer, int n_embd, const int *n_ff, const int *n_attn_mix, size_t n_text,
                   dw_err *err);
/* Makes room for n_text texts in all arrays; the new room is zero.  s->n_text does not change. */
int kit_stats_reserve(kit_stats *s, size_t n_text, dw_err *err);
/* Checks the shape of every dataset and every number: NaN, infinity, negative sums of squares, and histograms that
 * count more tokens than the texts have are errors.  Takes at most 20 times the memory of the file.  Makes the
 * totals. */
int kit_stats_read(kit_stats *s, const char *path, dw_err *err);
bool kit_stats_is(const char *path); // whether the file begins with the magic line
/* The file appears whole or not at all; the same statistics give the same bytes. */
int kit_stats_write(const kit_stats *s, const char *path, dw_err *err);
int kit_stats_keep(const kit_stats *s, const char *path, dw_err *err); // may replace a file that this program has read
/* Appends the texts of b to a and updates the totals.  Fails when models, contexts, skips or histograms differ, or when
 * both have the same window of a text. */
int kit_stats_add(kit_stats *a, const kit_stats *b, dw_err *err);
int kit_stats_can_add(const kit_stats *a, const kit_stats *b, dw_err *err); // the checks of kit_stats_add alone
void kit_stats_total(kit_stats *s); // input_square, sum_cosine, n_cosine, output_square: sums in the order of texts
void kit_stats_release(kit_stats *s);

/* Fail, with the advice to collect again: if the statistics are not of `model` with this hash; if their shape is not
 * n_layer layers of n_ff[l] neurons and width n_embd; if a text has no neurons, as in statistics from an imatrix. */
int kit_stats_check_model(const kit_stats *s, const char *path, const char *model, const char sha256[65], dw_err *err);
int kit_stats_check_shape(const kit_stats *s, int n_layer, int n_embd, const int *n_ff, dw_err *err);
int kit_stats_check_neurons(const kit_stats *s, dw_err *err);

/* Over all texts. */
uint64_t kit_stats_n_tokens(const kit_stats *s);
int kit_stats_n_windows(const kit_stats *s); // fits an int: readers and kit_stats_add check

int kit_stats_bin(float magnitude);      // the bin of |v|
float kit_stats_bin_edge(int bin);       // the smallest value of a bin; 0 for bin 0

#endif
