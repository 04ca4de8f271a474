/* random_model.h - model files with random weights of a known shape: for speed, memory, parity and planted tests.
 *
 * No weight is encoded: the blocks of the file's type are filled with random codes and scales of a sensible size.  That
 * is why a 7B file takes seconds.  Values have mean zero and standard deviation 1/sqrt(inputs), half of that where a
 * matrix adds to the residual stream.  So activations stay of order one through any number of layers, and tokens stay
 * distinguishable at the end.  One seed gives one file, on every machine and for any number of threads. */
#ifndef EXP_RANDOM_MODEL_H
#define EXP_RANDOM_MODEL_H

#include "engine.h"
#include "kit/tensor_stream.h"
#include "text/tokenizers.h"

typedef struct exp_shape {
    const char *name;
    const char *arch;            // general.architecture
    int n_layer, n_embd, n_ff, n_head, n_head_kv, head_dim, n_vocab;
    bool tied;
    float rope_base;
    int n_ctx;
    const int *n_ff_by_layer;    // n_layer widths; NULL: all n_ff
    const int *n_head_by_layer;  // n_layer numbers of heads, with KV heads in the same proportion; NULL: all n_head
    const char *help;
    bool rope_freqs;             // with random rope factors
} exp_shape;

extern const exp_shape exp_shapes[]; // ends with name NULL
const exp_shape *exp_shape_find(const char *name); // NULL: unknown

typedef struct exp_random_options {
    const exp_shape *shape;
    const dw_qtype_row
        *type; // of every matrix, the embeddings too; rows that are not a whole number of blocks become Q8_0 or F16
    uint64_t seed;
    bool gate; // add transposed copies of down and a gate whose threshold every neuron reaches (formats/ffn_gated.h)
    int group; // of the gate: neurons; 0: 1
    int predictor_rank;    // add predictors of that rank, which open about half of the groups; 0: none; needs gate
    double dead;           // fraction of each layer's neurons that are planted dead: zero rows of gate and up
    const dw_vocab *vocab; // NULL: byte tokens and invented words
    dw_pool *pool;
    progress *bar; // hears of bytes written; may be NULL
} exp_random_options;

/* Bytes of the tensors that exp_random_write will write. */
double exp_random_bytes(const exp_random_options *o);

/* Writes keys, tensors and data to a new writer.  The caller may set further keys before, and commits afterwards. The
 * key "deadwood.synth.dead" lists the dead neurons: an array of i32, pairs of layer and neuron, ascending. The
 * tensors of a gate come after all others, which are the same with and without it.  The transposed copies of down
 * have random values of their own: they serve for measuring speed, not for comparing results. */
int exp_random_write(dw_gguf_writer *w, const exp_random_options *o, dw_err *err);

#endif
