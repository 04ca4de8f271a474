/* checkpoint.h - a Hugging Face or MLX checkpoint folder, read as the tensors of a GGUF file.
 *
 *   config.json                hyperparameters (rope in the old form, rope_theta and rope_scaling, or the new,
 *                              rope_parameters)
 *   model*.safetensors         the weights, F32, F16, BF16, or MLX's affine groups (weight, scales, biases)
 *   tokenizer.json, ...        read by text/vocab_hf.c
 *
 * A matrix keeps the order of its rows.  The exception is q and k where the architecture's rope turns the pairs
 * (2i, 2i + 1): transformers turns (i, i + D/2), so their rows are permuted within each head.
 *
 * MLX's groups are w = scale q + bias with q of b unsigned bits.  They become blocks of Q4_1 (b <= 4) or Q5_1 (b = 5)
 * that repeat the group's scale and bias.  That is exact when both fit F16, which is checked for every value. */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "engine.h"
#include "kit/safetensors.h"
#include "model/archs.h"
#include "text/tokenizers.h"

typedef struct checkpoint_config {
    const dw_arch *arch;
    dw_act act;
    double value[DW_N_KEYS]; // hyperparameters; those that config.json leaves out have their defaults
    int n_layer, n_ctx;
    dw_sizes sizes;          // of every layer
    bool tied;
    int sliding_window; // 0: none
    enum { ROPE_PLAIN, ROPE_LINEAR, ROPE_YARN, ROPE_LLAMA3 } rope;
    double rope_factor, low_freq_factor, high_freq_factor, attention_factor; // attention_factor 0: derived
    int n_ctx_original;
} checkpoint_config;

typedef struct checkpoint_tensor { // a tensor of the new GGUF file
    char name[DW_TENSOR_NAME];
    int n_dims;
    size_t ne[2];                 // values of a row, rows
    const dw_qtype_row *kept;     // the type that keeps every bit; NULL: MLX groups without an exact block format
    const kit_st_tensor *source;   // NULL: made here (rope_freqs)
    const kit_st_tensor *scales, *biases; // MLX
    int group_size, bits;
    size_t head_dim;              // rows are permuted within heads of that many rows; 0: they keep their order
    const float *made;            // values of a tensor made here
} checkpoint_tensor;

typedef struct checkpoint {
    checkpoint_config config;
    kit_safetensors *weights;
    dw_vocab vocab;
    checkpoint_tensor *tensor;
    size_t n_tensor;
    float *rope_freqs;
    const char *folder;           // borrowed
    bool had_lineage;             // cut wrote this folder, or one that it was made from
} checkpoint;

/* Reads config.json and the vocabulary, maps the weights and binds them to tensors.  folder is borrowed.  After a
 * failure *c is closed. */
int checkpoint_open(checkpoint *c, const char *folder, dw_err *err);
void checkpoint_close(checkpoint *c);

/* All metadata of the GGUF file except types and lineage. */
void checkpoint_write_keys(const checkpoint *c, dw_gguf_writer *w);

/* Row r of a tensor: as F32 values, or as the bytes of its kept type. */
void checkpoint_row_values(const checkpoint_tensor *t, size_t r, float *row);
void checkpoint_row_kept(const checkpoint_tensor *t, size_t r, uint8_t *row);

#endif
