/* mixtures.h - which type upstream llama.cpp's quantizer gives to each tensor under a name such as Q4_K_M.
 *
 * requant writes these types, and rank knows the size of the file that requant will write.  The rules are those of
 * llama.cpp's src/llama-quant.cpp; where the rows of a tensor are no whole number of its type's blocks, another type is
 * taken (the fallback). */
#ifndef KIT_MIXTURES_H
#define KIT_MIXTURES_H

#include "engine.h"
#include "formats/formats.h"

/* True for the tensors that are requantized: those that llama.cpp's quantizer would touch. */
bool kit_is_matrix(const dw_tensor *t);

typedef enum kit_mixture_when { // of tensor i of n
    KIT_NEVER,
    KIT_ALWAYS,
    KIT_FIRST_2,
    KIT_FIRST_4,
    KIT_SIXTEENTH,       // i < n/16
    KIT_EIGHTH,          // i < n/8
    KIT_EIGHTH_WEIGHTED, // that, with importances
    KIT_EIGHTH_PLAIN,    // that, without
    KIT_MORE,            // the first and last eighth, and every third between
    KIT_SHARED_4,        // four or more heads share keys and values (in the first layer)
} kit_mixture_when;

typedef struct kit_mixture_rule {
    kit_mixture_when when;
    dw_qtype then, otherwise; // 0: the mixture's type
} kit_mixture_rule;

typedef struct kit_mixture {
    const char *name;
    int file_type; // general.file_type
    dw_qtype type; // of all matrices but the output and those below
    kit_mixture_rule attn_v, ffn_down, attn_output;
} kit_mixture;

extern const kit_mixture kit_mixtures[]; // ends with name NULL

const kit_mixture *kit_mixture_find(const char *name); // any case; NULL: unknown

/* "Q3_K_S", or "Q3_K_S, output Q4_K" where the matrix that gives the logits has a type of its own; output NULL: it has
 * not. */
enum { KIT_TYPES_WORDS = 64 };
const char *kit_types_words(char words[KIT_TYPES_WORDS], const char *types, const char *output);

/* A mixture applied to a model. */
typedef struct kit_mixture_use {
    const kit_mixture *mixture;
    const dw_model *model;
    bool weighted;              // importances are given; llama.cpp then decides otherwise for a few tensors
    const bool *drop;           // (n_layer): these layers are cut before; NULL: none
    const dw_qtype_row *output; // type of the matrix that gives the logits; NULL: the mixture's
} kit_mixture_use;

/* The type of a matrix of the model, whether or not its rows are whole blocks of it. */
const dw_qtype_row *kit_mixture_wanted(const kit_mixture_use *use, const dw_tensor *t);
/* The type that the matrix gets.  *fell_back: the wanted type does not fit the rows. */
const dw_qtype_row *kit_mixture_type(const kit_mixture_use *use, const dw_tensor *t, bool *fell_back);
/* What is taken for rows of n values that are no whole number of the type's blocks: blocks of 32, or F16. */
const dw_qtype_row *kit_mixture_fallback(const dw_qtype_row *type, size_t n);
/* The type of ffn_down_t, down's transposed copy in a gated model: down's own; Q8_0 where n_embd values are no whole
 * number of its blocks, F16 where they are not even that. */
const dw_qtype_row *kit_down_t_type(const dw_qtype_row *down, size_t n_embd);
/* True when llama.cpp refuses this mixture's type for this matrix without importances. */
bool kit_mixture_needs_weights(const kit_mixture *m, const dw_tensor *t, const dw_qtype_row *type);

#endif
