/* traces.h - training data of predictors (traces.h5): inputs of the FFN, decisions of the gate, shares of the groups.
 *
 * The model is run dense, as if it were not gated.  Inputs and shares are therefore those of the dense model, and a
 * decision in one layer does not change the inputs of the next.  A decision compares the dense |act(gate)| with the
 * threshold of the file.
 *
 * The file is HDF5 and opens in h5py.  Its user block has the magic "deadwood traces 1\n" and a checksum (h5.h).
 * Layout:
 *
 *   /  attributes  format_version 1, model_sha256 (of the gated file), model_arch, n_layer, n_embd, n_ctx, skip
 *                  (positions at the beginning of every window that are left out), group (neurons of a group), n_tokens
 *                  (rows of every dataset), backend, arguments
 *   /texts         as in stats.h: name, sha256, first_window, n_windows, n_tokens, blocks; the rows of the datasets are
 *                  ordered by text, then by position
 *   /layer/NN/input (n_tokens, n_embd) f16: norm(x), the input of gate and up; for gated layers and layers before one
 * For gated layers that are not marked dense, with n_groups = ceil(n_ff / group):
 *   /layer/NN/open  (n_tokens, ceil(n_groups / 8)) u8: bit g % 8 of byte g / 8 is 1 if the largest |act(gate)| of group
 *                   g reaches the threshold; bits after the last group are 0
 *   /layer/NN/share (n_tokens, n_groups) f16: the share of the group in sum_j ||v_j||^2 a_j^2 (v_j: column j of down);
 *                   the mass that a selection captures is the sum over its groups
 *
 * Any range of rows can be read, into memory of the caller.  Shapes are checked when the file is opened, numbers when
 * they are read: NaN, infinity, shares outside 0 .. 1 and bits after the last group are errors. */
#ifndef KIT_TRACES_H
#define KIT_TRACES_H

#include "kit/h5.h"

typedef struct traces_layer {
    int n_groups; // 0: not gated, or dense
    bool has_input;
} traces_layer;

typedef struct traces {
    char model_sha256[65], arch[32], backend[32];
    int n_layer, n_embd, n_ctx, skip, group;
    char *arguments;
    size_t n_tokens;     // sum over texts
    size_t n_text;
    kit_stats_text *text;
    traces_layer *layer; // n_layer
    kit_h5_in in;        // the file, if it is open for reading
} traces;

typedef enum traces_part { TRACES_INPUT, TRACES_OPEN, TRACES_SHARE } traces_part;

static inline size_t traces_open_bytes(int n_groups) { return ((size_t)n_groups + 7) / 8; }
static inline bool traces_is_open(const uint8_t *open, int g) { return open[g / 8] >> (g % 8) & 1; }

/* Bytes of one row of a part (0: the layer has no such part), and of all rows of one token. */
size_t traces_row_bytes(const traces *t, int layer, traces_part part);
size_t traces_token_bytes(const traces *t);

/* ---- reading ---------------------------------------------------------------------------------------- */

int traces_open(traces *t, const char *path, dw_err *err);
/* Reads rows first .. first + n - 1 as they are stored; numbers are F16.  One thread at a time. */
int traces_read(const traces *t, int layer, traces_part part, size_t first, size_t n, void *rows, dw_err *err);
void traces_release(traces *t); // also for a header that the caller filled, with arrays of dw_alloc

/* ---- writing ---------------------------------------------------------------------------------------- */

/* Fills rows first .. first + n - 1 of a dataset. */
typedef int traces_rows(void *ctx, int layer, traces_part part, size_t first, size_t n, uint8_t *rows, dw_err *err);

/* Writes the file whole or not at all, into disk space that is reserved first.  The rows of a dataset are
 * requested in order. */
int traces_write(const traces *t, const char *path, traces_rows *rows, void *ctx, dw_err *err);

#endif
