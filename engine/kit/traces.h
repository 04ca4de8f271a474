/* traces.h - what predictors learn from (traces.h5): inputs of the FFN, the gate's decisions, what each group contributed.
 *
 * The model was run densely, as if it were not gated: inputs and contributions are those of the whole model, and the
 * decisions are what the file's threshold makes of the dense |act(gate)|.  A decision of one layer does not disturb the
 * inputs of the next.
 *
 * HDF5, so that h5py opens it; guarded as h5.h says, with the magic "deadwood traces 1\n".  Layout:
 *
 *   /  attributes  format_version 1, model_sha256 (of the gated file), model_arch, n_layer, n_embd, n_ctx, skip (positions
 *                  left out at the front of every window), group (neurons of a group), n_tokens (rows of every dataset),
 *                  backend, arguments
 *   /texts         as in stats.h: name, sha256, first_window, n_windows, n_tokens, blocks; rows follow text by text, n_tokens
 *                  of each, in order of positions
 *   /layer/NN/input (n_tokens, n_embd) f16: norm(x), input of gate and up; of gated layers and of those before one
 *   of gated layers that are not marked dense, n_groups = ceil(n_ff / group):
 *   /layer/NN/open  (n_tokens, ceil(n_groups / 8)) u8: bit g % 8 of byte g / 8: the largest |act(gate)| of group g reaches
 *                   the threshold; bits after the last group are 0
 *   /layer/NN/share (n_tokens, n_groups) f16: the group's share of sum_j ||v_j||^2 a_j^2 (v_j: column j of down); the mass
 *                   that a selection captures is the sum over its groups
 *
 * Reading is by rows, of any range; memory is the caller's.  Every shape is checked when the file is opened, every number
 * when it is read: NaN, infinity, shares outside 0 .. 1, stray bits are refused by name. */
#ifndef TRACES_H
#define TRACES_H

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
    kit_h5_in in;         // of a file that is open for reading
} traces;

typedef enum traces_part { TRACES_INPUT, TRACES_OPEN, TRACES_SHARE } traces_part;

static inline size_t traces_open_bytes(int n_groups) { return ((size_t)n_groups + 7) / 8; }
static inline bool traces_is_open(const uint8_t *open, int g) { return open[g / 8] >> (g % 8) & 1; }

/* Bytes of a row, 0 when the layer has none; and of all rows of a token. */
size_t traces_row_bytes(const traces *t, int layer, traces_part part);
size_t traces_token_bytes(const traces *t);

/* ---- reading ---------------------------------------------------------------------------------------- */

int traces_open(traces *t, const char *path, dw_err *err);
/* Rows first .. first + n - 1 as they are stored, values as F16.  One thread at a time. */
int traces_read(const traces *t, int layer, traces_part part, size_t first, size_t n, void *rows, dw_err *err);
void traces_release(traces *t); // of a file that was open, or of a header that the caller filled with dw_alloc

/* ---- writing ---------------------------------------------------------------------------------------- */

/* Hands over rows first .. first + n - 1 of a dataset. */
typedef int traces_rows(void *ctx, int layer, traces_part part, size_t first, size_t n, uint8_t *rows, dw_err *err);

/* Writes the file whole or not at all; the disk space is reserved first.  A dataset is written from begin to end. */
int traces_write(const traces *t, const char *path, traces_rows *rows, void *ctx, dw_err *err);

#endif
