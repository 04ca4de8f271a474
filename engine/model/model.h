/* model.h - inside of model and session: the network bound to a file, and the architecture table. */
#ifndef DW_MODEL_H
#define DW_MODEL_H

#include "backends/backends.h"

/* An architecture as data.  All five are the same pre-norm transformer with gated FFN; they differ in the names of the
 * tensors, the pairing of rope, and in what may vary by layer (the head of arch.c shows the table). */
typedef struct dw_arch {
    const char *name;         // general.architecture
    const char *hf_class[3];  // architectures[0] of config.json
    bool rope_neox;           // pairs (i, i + D/2) as transformers has them; else (2i, 2i + 1), rows of q and k permuted
    bool fused_qkv;           // attn_qkv.weight with rows of q, then k, then v
    bool qk_norm;             // attn_q_norm, attn_k_norm
    bool may_rope_freqs;      // rope_freqs.weight (Llama 3 scaling) is read
    bool may_differ_by_layer; // feed_forward_length and head counts may be arrays of unequal numbers
    bool always_tied;         // no output.weight
} dw_arch;

const dw_arch *dw_arch_find(dw_str name);
const dw_arch *dw_arch_of_hf(const char *class_name);

struct dw_model {
    dw_gguf *gguf;
    const dw_arch *arch;
    dw_net net;
    int *widths;          // memory behind hp.n_ff, n_head, n_head_kv
    bool is_in_two_parts; // a layer has hot and cold neurons
    float *rope_factors;  // (head_dim/2): divides the frequency of each pair; all 1 without scaling
    float rope_magnitude; // multiplies cos and sin (yarn)
    dw_vocab vocab;
    dw_tokenizer *tokenizer;
};

/* Fills arch, net and rope of a model whose file is open (arch.c). */
int dw_model_bind(dw_model *m, dw_err *err);

/* Keys of run-time sparsity (gate_keys.c): the size of a group, and what the layers with a transposed down need besides. */
int dw_model_gate_group(const dw_model *m, int *group, dw_err *err);
int dw_model_read_gate(dw_model *m, dw_err *err);

/* Whether down can be encoded from another model: the same shape, F32, F16 or BF16, and the same values but for rounding
 * (a few rows are compared). */
int dw_model_check_source(const dw_model *m, const dw_model *source, dw_err *err);

#endif
