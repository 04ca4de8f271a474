/* archs.h - architectures, hyperparameters and tensors as tables.
 *
 *   dw_archs       a row for each architecture: its names, and how it differs from the common transformer
 *   dw_keys        a row for each hyperparameter: its key in GGUF, its key in config.json, the values allowed
 *   dw_net_rows    a row for each matrix or norm of the whole model; dw_attention_rows, dw_ffn_rows: of a layer
 *
 * A tensor row has the name in GGUF, the name in transformers, the shape, and the place in dw_net or dw_layer.
 * The engine binds a file's tensors by these rows (bind.c), `convert` and `cut --hf` translate names by them, and
 * `synth` makes random tensors by them.  An architecture that differs only in the columns of dw_archs is one more row.
 *
 * Sources: llama.cpp src/llama-arch.cpp (keys, names) and src/models (which architecture reads what); transformers'
 * model and configuration classes. */
#ifndef DW_ARCHS_H
#define DW_ARCHS_H

#include "backends/backends.h"

/* ---- architectures -------------------------------------------------------------------------------------- */

/* All architectures are one pre-norm transformer with a gated FFN.  These bits say what is added to it. */
typedef enum dw_arch_has {
    DW_ARCH_ROPE_NEOX = 1,       // rope rotates pairs (i, i + D/2) as in transformers; else (2i, 2i + 1), permuted q, k
    DW_ARCH_FUSED_QKV = 2,       // q, k and v are always one matrix, attn_qkv
    DW_ARCH_QKV_BIAS = 4,        // q, k and v have biases (synth makes them; they are read in every architecture)
    DW_ARCH_QK_NORM = 8,         // an RMS norm of each head of q and k, before rope
    DW_ARCH_ROPE_FREQS = 16,     // may have rope_freqs: divisors of rope's frequencies (Llama 3)
    DW_ARCH_UNTIED = 32,         // may have an output matrix of its own
    DW_ARCH_BY_LAYER = 64,       // widths and numbers of heads may differ by layer
    DW_ARCH_NO_ATTENTION = 128,  // layers after the first may have no attention
    DW_ARCH_EMBD_SCALE = 256,    // the embedding is multiplied by sqrt(n_embd)
    DW_ARCH_BIASES = 512,        // llama.cpp reads biases of its layers (this engine does in every architecture)
    DW_ARCH_FFN_BIASES = 1024,   // it also reads those of gate, up and down
    DW_ARCH_SQUARE_Q = 2048,     // its heads together must be as wide as the embedding
} dw_arch_has;

typedef struct dw_arch {
    const char *name;         // general.architecture
    const char *hf_class[3];  // architectures[0] of config.json; none: transformers has no such class
    const char *carrier;      // the architecture that stores it when widths differ by layer; NULL: none
    dw_act act;               // of the FFN's gate
    unsigned has;             // bits of dw_arch_has
} dw_arch;

extern const dw_arch dw_archs[];                       // ends with name NULL
const dw_arch *dw_arch_find(dw_str name);              // NULL: unknown
const dw_arch *dw_arch_of_hf(const char *class_name);  // NULL: unknown
/* All names in one line, "llama, qwen2 and ..", for messages: those of GGUF, or the classes of transformers. */
typedef struct dw_name_list {
    char text[256];
} dw_name_list;
dw_name_list dw_arch_names(bool hf_classes);

typedef struct dw_act_row {
    const char *name; // hidden_act of config.json
    const char *help;
} dw_act_row;

extern const dw_act_row dw_acts[DW_N_ACTS + 1]; // by dw_act; ends with name NULL
int dw_act_of(dw_str name);                     // the dw_act with that name; -1: unknown
dw_name_list dw_act_names(void);

/* ---- hyperparameters ------------------------------------------------------------------------------------ */

typedef enum dw_key { // in the order in which convert writes them
    DW_KEY_N_LAYER, DW_KEY_N_CTX, DW_KEY_N_EMBD, DW_KEY_N_FF, DW_KEY_N_HEAD, DW_KEY_N_HEAD_KV, DW_KEY_HEAD_DIM,
    DW_KEY_VALUE_DIM, DW_KEY_NORM_EPS, DW_KEY_ROPE_DIM, DW_KEY_ROPE_BASE, DW_KEY_N_VOCAB,
    DW_N_KEYS
} dw_key;

typedef struct dw_key_row {
    const char *gguf;    // after "ARCHITECTURE."
    const char *config;  // in config.json; NULL: it has none (both are head_dim there)
    bool required;       // otherwise the reader has a default for it
    bool is_real;        // an F32 number above `least`; else an integer of at least `least`
    double least, most;
} dw_key_row;

extern const dw_key_row dw_keys[DW_N_KEYS];

/* Whether a value (rounded to F32 if it is real) is finite and within its row's bounds. */
bool dw_key_allows(const dw_key_row *k, double value);
/* "1 to 512" or "above 0, up to 1", for messages. */
typedef struct dw_key_range { char text[64]; } dw_key_range;
dw_key_range dw_key_bounds(const dw_key_row *k);

/* ---- tensors ------------------------------------------------------------------------------------------------ */

/* The dimensions of one layer.  The letters denote them in the rows' shapes. */
typedef struct dw_sizes {
    int n_embd;            // d
    int n_vocab;           // v
    int n_head, n_head_kv; // q, k: times head_dim;  s: all of q, k and v
    int head_dim;          // h;  p: half of it, the pairs that rope rotates
    int n_ff;              // f
    int n_cold;            // c: cold neurons (formats/ffn_two_part.h);  n: the others
    int rank, n_group;     // r, g: of a predictor (formats/ffn_gated.h)
} dw_sizes;

typedef struct dw_tensor_row {
    const char *gguf;      // name in GGUF, after "blk.N." in a layer and before ".weight"
    const char *hf;        // name in transformers, after "model.layers.N." in a layer; NULL: none
    const char *shape;     // "qd": rows, then values of a row; one letter: a vector
    size_t at;             // offset of its dw_tensor in dw_net or dw_layer; 0: it has none
    char bias;             // length of the bias, whose names end in ".bias"; 0: there is no bias
    size_t bias_at;
    unsigned of;           // only in architectures that have this bit; 0: in all
    bool optional;         // the weight may be absent
    bool bias_required;    // otherwise the bias may be absent
    bool no_hf_bias;       // transformers has no bias there
    bool is_turned;        // rope rotates these rows: without DW_ARCH_ROPE_NEOX they are permuted within each head
    int n_parts;           // the next n_parts rows of the table are its parts, in order; a file has either it or them
} dw_tensor_row;

/* Tables of rows end with gguf NULL. */
extern const dw_tensor_row dw_net_rows[];                                        // of the whole model
extern const dw_tensor_row dw_attention_rows[], dw_ffn_rows[]; // of a layer; if n_head is 0 only dw_ffn_rows
extern const dw_tensor_row dw_cold_rows[], dw_gated_rows[], dw_predictor_rows[]; // of a layer, in deadwood's own files

/* The tensor at a row's `at` or `bias_at` in a dw_net or dw_layer. */
static inline dw_tensor *dw_tensor_at(void *base, size_t at) { return (dw_tensor *)(void *)((char *)base + at); }

size_t dw_dimension(char letter, const dw_sizes *s);

enum { DW_TENSOR_NAME = 128 };
typedef struct dw_tensor_name { char text[DW_TENSOR_NAME]; } dw_tensor_name;
/* The name of a row's weight or bias in a file; layer -1: a row of dw_net_rows. */
dw_tensor_name dw_name_gguf(const dw_tensor_row *r, int layer, bool bias);
dw_tensor_name dw_name_hf(const dw_tensor_row *r, int layer, bool bias);
/* The row of dw_net_rows, dw_attention_rows or dw_ffn_rows with this name in GGUF; NULL: none. */
const dw_tensor_row *dw_tensor_row_find(const char *name, int *layer, bool *bias);

/* Rows of q or k that are permuted within heads of D rows: row r of the GGUF tensor is row dw_unpermuted_row of the
 * checkpoint (2i is i, 2i + 1 is i + D/2).  dw_permuted_row is the inverse. */
static inline size_t dw_unpermuted_row(size_t r, size_t D) {
    const size_t i = r % D;
    return r - i + i / 2 + i % 2 * (D / 2);
}

static inline size_t dw_permuted_row(size_t r, size_t D) {
    const size_t i = r % D;
    return r - i + (i < D / 2 ? 2 * i : 2 * (i - D / 2) + 1);
}

/* Whether layer l may have n_head heads and n_head_kv KV heads of head_dim values. */
int dw_check_heads(const dw_arch *a, int l, int n_head, int n_head_kv, int head_dim, dw_err *err);

#endif
