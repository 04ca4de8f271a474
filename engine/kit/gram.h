/* gram.h - Gram matrices of the inputs of a model's matrices (STATS.gram), in a file beside the statistics.
 *
 * For the inputs x of a matrix, n values per token, the file has the sum of x x^T over all counted tokens of all texts.
 * With gradients (collect --gradients) it also has, for each layer, the sum of g g^T.  Here g = dL/dy is the gradient
 * by the FFN's output y, n_embd values per token, and L the sum over the window of -ln p(next token), in nats (stats.h).
 * It holds sums and not means, so files of disjoint texts add up.  Little endian:
 *
 *   0    "deadwood gram 1\n", u64 bytes of the head, SHA-256 of the head (32 bytes), zeros up to byte 64
 *   64   head: model_sha256 (64 hex digits), backend (32 bytes, zeros at the end), i32 n_ctx, i32 skip, u32 n_text,
 *              u32 n_matrix
 *              n_text   x 208 bytes: name (128, zeros at the end), sha256 (64), i32 first_window, i32 n_windows,
 *                       u64 n_tokens
 *              n_matrix x 16 bytes: i32 layer, i32 input (kit_stats_input: 0 q,k,v  1 attn_output  2 gate,up
 *                       3 down; 4: g, by the FFN's output), i32 n, i32 0; ascending by layer, then input
 *   then for each matrix, at the next multiple of 64:
 *              n (n + 1) / 2 f64: every row from its diagonal on; SHA-256 of them (32 bytes)
 *   The file ends after the last matrix, at a multiple of 64.
 *
 * In NumPy:  s = np.zeros((n, n)); s[np.triu_indices(n)] = np.fromfile(f, "<f8", n * (n + 1) // 2, offset=at)
 * A matrix of width n takes 4 n^2 bytes: 17 MB for 2048 neurons, 1.44 GB for 18,944. */
#ifndef KIT_GRAM_H
#define KIT_GRAM_H

#include "kit/stats.h"

/* What a matrix is of: a kit_stats_input, or the gradient by the FFN's output. */
enum { KIT_GRAM_GRADIENT = KIT_STATS_N_INPUTS, KIT_GRAM_N_KINDS };
extern const char *const kit_gram_names[KIT_GRAM_N_KINDS]; // "the inputs of q, k, v", ..

typedef struct kit_gram_matrix {
    int layer;
    int input; // KIT_STATS_ATTN_IN .. KIT_GRAM_GRADIENT
    int n;
    const double *sum; // packed upper triangle; NULL in a head that is to be written
} kit_gram_matrix;

typedef struct kit_gram {
    char model_sha256[65], backend[32];
    int n_ctx, skip;
    size_t n_text, n_matrix;
    kit_stats_text *text; // without blocks
    kit_gram_matrix *matrix;
    /* of a file that is open */
    dw_map map;
    bool *is_checked; // (n_matrix): its hash and values were
} kit_gram;

static inline size_t kit_gram_packed(int n) { return (size_t)n * ((size_t)n + 1) / 2; }
/* Where row r of a packed matrix begins, minus r: the value of (r, c) with c >= r is at this place + c. */
static inline size_t kit_gram_row(int n, int r) { return (size_t)r * (2 * (size_t)n - (size_t)r - 1) / 2; }
static inline double kit_gram_at(const kit_gram_matrix *g, int r, int c) {
    return r <= c ? g->sum[kit_gram_row(g->n, r) + (size_t)c] : g->sum[kit_gram_row(g->n, c) + (size_t)r];
}

/* "stats.h5.gram"; free(). */
char *kit_gram_path(const char *stats_path, dw_err *err);

/* Maps a file and checks all but the matrices.  After a failure there is nothing to close. */
int kit_gram_open(kit_gram *g, const char *path, dw_err *err);
void kit_gram_close(kit_gram *g); // also of a head that was made in memory
/* The matrix of a layer's input, its hash and values checked when it is first asked for.  NULL and a message with the
 * advice to collect it when the file has no such matrix.  *n_tokens: that it sums up; at least 1. */
const kit_gram_matrix *kit_gram_find(kit_gram *g, int layer, int input, double *n_tokens, dw_err *err);
bool kit_gram_has(const kit_gram *g, int input); // of any layer
/* Fails when the file is not of the same model, widths, texts and options as these statistics. */
int kit_gram_check_stats(const kit_gram *g, const char *path, const kit_stats *s, dw_err *err);
double kit_gram_n_tokens(const kit_gram *g);

/* Makes a head for the model, texts and options of s, without matrices. */
int kit_gram_head(kit_gram *g, const kit_stats *s, dw_err *err);
int kit_gram_add_matrix(kit_gram *g, int layer, int input, int n, dw_err *err); // in ascending order

/* Writing: begin with a head; the sums of every matrix of the head, in its order; commit; free.  The file appears whole
 * or not at all. */
typedef struct kit_gram_out kit_gram_out;
kit_gram_out *kit_gram_begin(const kit_gram *head, const char *path, dw_err *err);
int kit_gram_put(kit_gram_out *o, const double *sum, dw_err *err);
int kit_gram_commit(kit_gram_out *o, dw_err *err);
void kit_gram_out_free(kit_gram_out *o);

#endif
