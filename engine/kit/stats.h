/* stats.h - activation statistics (stats.h5): sums over calibration tokens, separately for every text.
 *
 * Sums, not means: two files of disjoint texts add up to the file of both (kit_stats_add), bit for bit, because the sums
 * of a text are computed by themselves and in order.  The file is HDF5, so that h5py opens it.  Layout (n_ff and n differ
 * by layer):
 *
 *   /  attributes  format_version 1, model_sha256 (dw_gguf_sha256), model_arch, n_layer, n_embd, n_ctx, skip (positions left out
 *                  at the front of every window), hist_every (positions 0, n, 2n.. of a window enter the histograms), backend
 *                  (who computed: name and level), arguments
 *   /texts         name (string), sha256 (string), first_window, n_windows i32, n_tokens u64 (counted ones), blocks
 *                  (string): one entry per text; `blocks` are the hashes of its parts (lineage.h), by which leaks are found
 *   /layer/NN/ffn  count (n_text) u64;  sum_a, sum_abs, sum_square (n_text, n_ff) f64;  max_abs (n_text, n_ff) f32
 *                  hist_a, hist_gate (n_ff, KIT_STATS_BINS) u32: how often |a| and |act(gate)| fell into each bin
 *                  hist_group_32, _64, _128 (ceil(n_ff / size), KIT_STATS_BINS) u32: of the largest |act(gate)| in
 *                  each aligned group of that many neurons
 *   /layer/NN/input/attn_in, attn_mix, ffn_in, ffn_neuron
 *                  sum_square (n_text, n) f64: of each input column of q,k,v | attn_output | gate,up | down; that of
 *                  ffn_neuron is a second name of ffn/sum_square;  hist (KIT_STATS_BINS) u64: of |x| over all columns
 *   /layer/NN/influence  sum_cosine (n_text) f64, count (n_text) u64: block influence = 1 - sum_cosine / count, of the
 *                  residual before and after the layer (Men et al. 2024)
 *   /output        sum_square (n_text, n_embd) f64: input of the output matrix
 *
 * Bin b of a histogram holds values v with floor(2 log2 v) + 40 = b: half octaves from 2^-20 to 2^12; smaller ones (and
 * zero) are in bin 0, larger ones in the last.
 *
 * In front of the HDF5 file is a user block with the line "deadwood stats 1\n" and a checksum (h5.h).
 *
 * Statistics made of an imatrix (collect --import-imatrix) hold input sums only: one text, count 0 everywhere in ffn
 * and influence, sums of squares as if n_tokens tokens had been seen. */
#ifndef KIT_STATS_H
#define KIT_STATS_H

#include "formats/formats.h"

enum { KIT_STATS_BINS = 64, KIT_STATS_N_INPUTS = 4, KIT_STATS_N_GROUPS = 3 };

typedef enum kit_stats_input { KIT_STATS_ATTN_IN, KIT_STATS_ATTN_MIX, KIT_STATS_FFN_IN, KIT_STATS_FFN_NEURON } kit_stats_input;

extern const int kit_stats_group_sizes[KIT_STATS_N_GROUPS];         // 32, 64, 128
extern const char *const kit_stats_input_names[KIT_STATS_N_INPUTS]; // attn_in, attn_mix, ffn_in, ffn_neuron

typedef struct kit_stats_text {
    char name[128], sha256[65];
    int first_window, n_windows; // counted from 1
    uint64_t n_tokens;
    char *blocks;                // hex; may be ""
} kit_stats_text;

typedef struct kit_stats_layer {
    int n_ff, n_input[KIT_STATS_N_INPUTS];             // n_input 0: the layer has no attention
    uint64_t *count;                                  // (n_text)
    double *sum_a, *sum_abs, *sum_square;             // (n_text, n_ff)
    float *max_abs;                                   // (n_text, n_ff)
    uint32_t *hist_a, *hist_gate;                     // (n_ff, BINS)
    uint32_t *hist_group[KIT_STATS_N_GROUPS];          // (ceil(n_ff / size), BINS)
    double *text_square[KIT_STATS_N_INPUTS];           // (n_text, n_input); that of ffn_neuron is sum_square itself
    uint64_t *input_hist[KIT_STATS_N_INPUTS];          // (BINS)
    double *text_cosine;                              // (n_text)
    uint64_t *text_n_cosine;                          // (n_text)
    /* over all texts, by kit_stats_total */
    double *input_square[KIT_STATS_N_INPUTS];          // (n_input)
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
    kit_stats_layer *layer;      // n_layer
    double *text_output_square; // (n_text, n_embd)
    double *output_square;      // (n_embd): over all texts, by kit_stats_total
    size_t cap_text;            // texts that the arrays have room for
} kit_stats;

/* Empty statistics of a shape for n_text texts: all zero, arguments "".  Widths n_ff and n_attn_mix (0: no attention) of
 * n_layer layers.  Fails with nothing to release. */
int kit_stats_init(kit_stats *s, int n_layer, int n_embd, const int *n_ff, const int *n_attn_mix, size_t n_text, dw_err *err);
/* Room for n_text texts in all arrays; n_text is unchanged, what is new is zero. */
int kit_stats_reserve(kit_stats *s, size_t n_text, dw_err *err);
/* Every dataset's shape and every number is checked: NaN, infinity, negative sums of squares, and histograms that count
 * more tokens than the texts have are refused by name.  Memory is at most 20 times the file.  Makes the totals. */
int kit_stats_read(kit_stats *s, const char *path, dw_err *err);
bool kit_stats_is(const char *path); // begins as such a file does
int kit_stats_write(const kit_stats *s, const char *path, dw_err *err); // whole or not at all; same statistics, same bytes
int kit_stats_keep(const kit_stats *s, const char *path, dw_err *err);  // the same over a file that this program itself read
/* Appends b's texts to a and renews the totals.  Refused when the models, contexts, skips or histograms differ, or
 * windows of a text are in both. */
int kit_stats_add(kit_stats *a, const kit_stats *b, dw_err *err);
int kit_stats_can_add(const kit_stats *a, const kit_stats *b, dw_err *err); // whether it would be refused
void kit_stats_total(kit_stats *s); // input_square, sum_cosine, n_cosine, output_square: sums in the order of texts
void kit_stats_release(kit_stats *s);

/* Refused, with the advice to collect anew: statistics of another file than `model` with this hash; of another shape than
 * n_layer layers of n_ff[l] neurons and width n_embd; without neurons in a text, as those of an imatrix are. */
int kit_stats_check_model(const kit_stats *s, const char *path, const char *model, const char sha256[65], dw_err *err);
int kit_stats_check_shape(const kit_stats *s, int n_layer, int n_embd, const int *n_ff, dw_err *err);
int kit_stats_check_neurons(const kit_stats *s, dw_err *err);

/* Over all texts. */
uint64_t kit_stats_n_tokens(const kit_stats *s);
int kit_stats_n_windows(const kit_stats *s); // no reader or sum lets them grow beyond an int

int kit_stats_bin(float magnitude);      // of |v|
float kit_stats_bin_edge(int bin);       // the smallest value of a bin; 0 for bin 0

#endif
