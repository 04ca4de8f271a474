/* quant.h - requantization: which tensor gets which number format, and how to round well.
 *
 *   requant   model [, statistics or importance file, plan] -> model
 *
 * Block formats (layout, decoder, encoder) are defined in engine/qtypes.  Here a format is chosen for each tensor
 * (kit/mixtures.h, recipe.c).  Here are also the ways of rounding that are not formats (methods.c), and the choice of
 * neurons that are kept in fewer bits than the rest (cold.c; formats/ffn_two_part.h describes the file).
 *
 * Matrices are the tensors that llama.cpp's quantizer would change: two dimensions, a name that ends in `weight`,
 * no norm.  Everything else is copied, and so is a matrix that has its type already.  Three ways to choose:
 *
 *   --type T        every matrix, embeddings and output too, gets T; a row that is no whole number of T's blocks is an
 *                   error
 *   --mixture NAME  what upstream llama.cpp gives under that name, per tensor, and its fallbacks where a row does not
 *                   fit
 *   --recipe FILE   a text file of lines PATTERN TYPE; the first line that matches a matrix decides; a matrix that no
 *                   line matches is kept
 *
 *       # the FFN in 2 bits, the output better, the rest stays
 *       blk.*.ffn_*.weight           Q2_K         # * any characters, ? one: the whole name
 *       /^blk\.[01]\.attn_[vk]/      Q6_K         # between slashes: a regular expression (PCRE2), anywhere in the name
 *       token_embd.weight            affine4
 *       *                            keep
 *
 *     A `#` at the beginning of a line or after white space begins a comment.  A pattern that decides nothing is
 *     reported as a warning.
 *
 * On top of each of these, --tensor REGEX=TYPE decides for the matrices whose names the regular expression matches.
 *
 * Invariants: a matrix's bytes depend only on its values, its type and its importances, for any number of threads.
 * They are those of llama.cpp's quantizer where it has the type; affine and minmax are not of llama.cpp, but load
 * there.  A quantized tensor is refused unless --lossy-twice allows a second loss; the lineage shows both steps.  The
 * lineage may say that matrices in 16 or 32 bits were in blocks before, but not which; so that is a warning. */
#ifndef QUANT_H
#define QUANT_H

#include "backends/backends.h"
#include "kit/metrics.h"
#include "kit/mixtures.h"
#include "kit/plan.h"
#include "kit/stats.h"

/* ---- how weights are rounded (methods.c) ------------------------------------------------------------------ */

typedef struct quant_type quant_type;

/* A way of rounding. */
typedef struct quant_method {
    const char *name;
    const char *formula, *source;
    int min_bits, max_bits; // its types are NAME<bits>; 0: one type for each block format, by the format's name
    int group;              // values that share a scale; rows must be multiples of it
    double overhead_bits;   // of a group, beside its codes
    dw_qtype stored;        // the block format that holds it
    /* Rounds a row of n finite values.  Returns how many groups have a scale or offset that the block format cannot
     * hold exactly (it is then rounded once more).  NULL: the block format's own encoder, which takes importances. */
    size_t (*encode)(const quant_type *t, const float *row, void *out, size_t n);
} quant_method;

extern const quant_method quant_methods[]; // ends with name NULL

/* What a matrix can become. */
struct quant_type {
    const char *name;           // "Q4_K", "affine2"
    const quant_method *method;
    const dw_qtype_row *stored; // its blocks in the file
    int bits;                   // of a code; 0: the format's
    int multiple;               // a row must be a multiple of so many values
    double nominal_bits;        // bits a weight that the method itself needs; 0: those of the file
};

enum { QUANT_MAX_TYPES = 64 };
extern quant_type quant_types[QUANT_MAX_TYPES + 1]; // ends with name NULL

void quant_types_init(void); // fills the table: every block format, then every method's widths of code
const quant_type *quant_type_find(const char *name);         // any case; NULL: unknown
/* Plain rounding to a block format; NULL: it has no encoder. */
const quant_type *quant_type_of(const dw_qtype_row *stored);

/* The largest weight that scales and offsets in half precision can follow in every type. */
#define QUANT_MAX_WEIGHT 65280.0f

/* ---- rounded before (twice.c) -------------------------------------------------------------------------------- */

typedef struct quant_rounding {
    char tool[32], types[64]; // of the last step after which more matrices were in blocks than are now; "": none
} quant_rounding;

int quant_rounded_before(const dw_gguf *g, quant_rounding *last, dw_err *err);

/* ---- cold neurons (cold.c) ---------------------------------------------------------------------------------- */

typedef struct quant_cold {
    int n_layer;
    int *n_cold;     // (n_layer)
    int32_t **order; // (n_layer): a layer's hot neurons, then its cold ones, each ascending; NULL: all are hot
    double rate;     // share of cold neurons, of all layers
} quant_cold;

typedef struct quant_cold_options {
    const kit_metric *metric; // the neurons with the smallest scores become cold
    dw_pool *pool;
    double rate;             // wanted
    uint64_t seed;           // of the metric random
    const int *hot_multiple; // (n_layer): block of the hot part's down
    int cold_multiple;       // block of the cold part's
} quant_cold_options;

/* The share `rate` of each layer's neurons, or the nearest that blocks can hold, becomes cold.  After a failure there
 * is nothing to release. */
int quant_cold_by_rate(quant_cold *c, const dw_model *m, const kit_stats *s, const quant_cold_options *o, dw_err *err);
/* What the plan keeps stays hot, the rest becomes cold.  Refused: plans that drop layers or cut heads. */
int quant_cold_by_plan(quant_cold *c, const dw_model *m, const kit_plan *plan, dw_err *err);
void quant_cold_release(quant_cold *c);

/* ---- recipes (recipe.c) ---------------------------------------------------------------------------------------- */

typedef struct quant_rule {
    char *pattern;          // as written
    void *regex;            // pcre2_code; NULL: a glob
    const quant_type *type; // NULL: keep
    int line;               // counted from 1; of --tensor: the number of the word
    size_t n_decided;       // matrices that this rule was asked for
} quant_rule;

typedef struct quant_recipe {
    quant_rule *rule;
    size_t n_rule, cap_rule;
    void *match, *limits; // pcre2_match_data, pcre2_match_context
} quant_recipe;

/* Every line is checked; the sentence names file and line. */
int quant_recipe_read(quant_recipe *r, const char *path, dw_err *err);
int quant_recipe_parse(quant_recipe *r, const char *text, size_t len, const char *what, dw_err *err);
/* The same of n words REGEX=TYPE, as --tensor takes them; the type begins after the last `=`. */
int quant_recipe_of_words(quant_recipe *r, const char *const *word, size_t n, dw_err *err);
/* The rule that decides for a name, counted as used; NULL: none.  Fails where PCRE2 gives up on a rule before. */
int quant_recipe_find(quant_recipe *r, const char *name, quant_rule **found, dw_err *err);
void quant_recipe_release(quant_recipe *r);

#endif
