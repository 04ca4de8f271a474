/* model.h - internals of model and session: the network bound to a file. */
#ifndef DW_MODEL_H
#define DW_MODEL_H

#include "model/archs.h"

struct dw_model {
    dw_gguf *gguf;
    const dw_arch *arch;
    dw_net net;
    int *widths;          // owns hp.n_ff, n_head and n_head_kv
    bool is_in_two_parts; // a layer has hot and cold neurons
    const char *rope_scaling; // "linear", "yarn", or NULL: none, or by rope_freqs.weight alone
    float rope_factor;    // of it
    float *rope_factors;  // (head_dim/2): divides the frequency of each pair; all 1 without scaling
    float rope_magnitude; // multiplies cos and sin (yarn)
    dw_pages matrices;    // copies of those that a token reads, if they were asked for (huge_pages.c)
};

/* Fills arch, net and rope of a model whose file is open (bind.c). */
int dw_model_bind(dw_model *m, dw_err *err);

/* Keys of gated models (gate_keys.c): the size of a group, and what layers with a transposed down also need. */
int dw_model_gate_group(const dw_model *m, int *group, dw_err *err);
int dw_model_read_gate(dw_model *m, dw_err *err);

/* Whether the down matrices of `source` can be encoded instead of the model's: they are F32, F16 or BF16, have the
 * same shape, and a few rows agree except for rounding. */
int dw_model_check_source(const dw_model *m, const dw_model *source, dw_err *err);

#endif
