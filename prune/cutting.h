/* cutting.h - a plan applied to a model: which tensors the smaller file has, and where each of their bytes comes from.
 *
 *   gate, up        rows of the kept neurons, as bytes, in every type
 *   down            columns of the kept neurons: block for block where they are whole blocks of its type; otherwise
 *                   decoded (from a 16-bit model if one is given) and encoded again; after a repair (repairs.h) its new
 *                   values are encoded
 *   q, k, v         rows of the kept KV heads and of their query heads, as bytes; o: their columns, as those of down
 *   bias of down    as it is, or what a repair gives
 *   other tensors   as they are; layers that were dropped are left out and the others renumbered
 *
 * Equal widths keep the architecture.  Unequal ones need an architecture that has them (llama.cpp: deci, openelm), or
 * zeros: a padded neuron has zero rows of gate and up, so it is zero for every token and its column of down is nothing.
 *
 *   parent    carrier   what changes
 *   llama     deci      names of keys
 *   qwen2     deci      rows of q and k, weights and biases: deci's rope turns the pairs (2i, 2i + 1)
 *   qwen3     openelm   q, k and v become one matrix; only without an output matrix of its own
 *   deci, openelm       nothing
 *
 * So do numbers of heads that differ by layer.  With equal ones llama and qwen3 stay as they are; qwen2 becomes deci,
 * because llama.cpp wants its q to be square.  Biases of down are read in llama and deci alone: qwen2 becomes deci for
 * them, and in qwen3 and openelm they are refused.
 *
 * The same layout drives the header, the data and the comparison, one tensor after the other, in bounded memory. */
#ifndef PRUNE_CUTTING_H
#define PRUNE_CUTTING_H

#include "kit/plan.h"
#include "kit/sizes.h"
#include "kit/stats.h"
#include "kit/tensor_stream.h"
#include "model/archs.h"
#include "prune/prune.h"
#include "prune/repairs.h"
#include "qtypes/encoding.h"

/* What a repair will give to the layers that are cut.  The layout is then that of the file after the repair, but
 * nothing can be written from it: for dry runs, and for refusals before a long repair. */
typedef struct prune_coming {
    bool down, o, bias;
} prune_coming;

typedef struct prune_cut_options {
    const dw_model *source;        // 16-bit model that down is encoded from; NULL: the parent
    bool encode_down;              // down may be encoded; else it is copied or refused
    const dw_qtype_row *down_type; // its new type; NULL: each layer's own
    bool pad;                      // zero neurons up to a common width instead of a carrier
    const repairs *repairs;        // values of down where a layer has them; NULL: none
    prune_coming coming;           // without `repairs`: what they will have
    const kit_stats *stats;        // of the parent: importances where down is encoded; NULL: none
} prune_cut_options;

typedef enum prune_move {
    PRUNE_ROWS,   // rows (of a vector: values) as bytes
    PRUNE_BLOCKS, // of every row the mapped columns, whole blocks as bytes
    PRUNE_ENCODE, // of every row the mapped columns, decoded (or repaired) and encoded
} prune_move;

typedef struct prune_tensor { // of the smaller file
    char name[64];
    const dw_qtype_row *type;
    int n_dims;
    size_t ne[2];             // values of a row, rows; a vector is one row
    prune_move move;
    const dw_tensor *from[3]; // their rows one after the other; unused ones NULL
    const int32_t *map;       // the row or column that each one comes from, -1: zeros; NULL: all as they are
    const float *repaired;    // values for the n_kept first columns of every row; NULL: those of `from`
    const float *importance;  // (ne[0]): for the encoder; NULL: none
    size_t n_kept;
} prune_tensor;

/* Where rows of q, k and v, and columns of o, come from when heads are cut or q and k permuted; NULL: all as they are. */
typedef struct prune_heads {
    int32_t *q, *k, *v, *o;
    int32_t *all; // rows of q, k and v as one matrix
} prune_heads;

typedef struct prune_layout {
    const dw_model *parent;
    const dw_arch *arch;  // of the smaller file
    bool is_carrier;      // arch is not the parent's
    bool has_padding;
    int n_layer;
    int *layer_of;        // (n_layer): the parent's layer
    int *n_ff;            // (n_layer): with padding
    int32_t **keep;       // (n_layer) lists of n_ff[l] neurons of the parent, ascending, then -1
    int *n_head, *n_head_kv; // (n_layer)
    prune_heads *heads;      // (n_layer)
    bool cuts_heads;         // some layer has fewer heads than in the parent
    dw_tensor *bias;         // (n_layer): of down after a repair; name NULL: as it is
    prune_tensor *tensor; // n_tensor
    size_t n_tensor, n_encoded, n_repaired, n_repaired_o; // n_encoded: from what the model holds
    float **importance;   // (n_layer): of columns that are encoded, then zeros; NULL: none
    size_t n_biases;      // that a repair has made, or will
    size_t n_down_again, n_o_again; // of n_encoded: from blocks, which lost before
    double data_bytes;    // of all tensors
    const dw_model *source;
} prune_layout;

/* Fails for a model with an FFN in two parts, gates, or tensors that cut does not know. */
int prune_need_cuttable(const dw_model *m, dw_err *err);

/* Whether the plan has the layers and heads of the model. */
int prune_check_plan(const dw_model *m, const kit_plan *plan, dw_err *err);

/* Borrows the models and nothing of the plan.  Refuses what cannot be stored, or what llama.cpp would silently compute
 * wrongly.  After a failure there is nothing to release. */
int prune_layout_init(prune_layout *o, const dw_model *parent, const kit_plan *plan, const prune_cut_options *options,
                      dw_err *err);
void prune_layout_release(prune_layout *o);

/* Keys and tensors of the smaller file into a new writer; lineage is the caller's. */
int prune_layout_declare(const prune_layout *o, dw_gguf_writer *w, dw_err *err);
/* All data, after dw_gguf_begin, into a stream to the writer. */
int prune_layout_write(const prune_layout *o, kit_stream *s, dw_err *err);

/* Counts the tensors by type and bytes.  Fallback types are none here: cut refuses what does not fit. */
void prune_layout_sizes(const prune_layout *o, kit_sizes *sizes);

/* Opens the file that was written as a model and compares every row with the parent's.  s: a stream without a
 * writer. */
int prune_layout_compare(const prune_layout *o, const char *path, kit_stream *s, dw_err *err);

/* The bytes of row r in the tensors that t comes from, NULL for a row of zeros. */
const uint8_t *prune_tensor_source(const prune_tensor *t, size_t r);
/* Row r of a tensor that is encoded, by the tensor's encoding.  values: room for a row of the source and one of t. */
dw_encoding prune_tensor_encoding(const prune_tensor *t);
void prune_tensor_encode(const prune_tensor *t, dw_encoding *e, size_t r, float *values, uint8_t *out);
static inline size_t prune_tensor_n_rows(const prune_tensor *t) { return t->n_dims == 1 ? t->ne[0] : t->ne[1]; }
static inline size_t prune_tensor_row_bytes(const prune_tensor *t) {
    return t->n_dims == 1 ? sizeof(float) : dw_qtype_row_bytes(t->type, t->ne[0]);
}

#endif
