/* internal.h - what the files of this room share.
 *
 *   vocab.c        memory, lookup, GGUF keys        vocab_hf.c    tokenizer.json and the files beside it
 *   vocab_spm.c    tokenizer.model                  tokenizer.c   special tokens, text to ids and back
 *   pretokenize.c  the expressions that cut text    bpe.c, spm.c  one word to ids
 *   merge.c        the queue of merges, used by bpe.c and spm.c */
#ifndef DW_TOKENIZERS_INTERNAL_H
#define DW_TOKENIZERS_INTERNAL_H

#include "base/siphash.h"
#include "text/tokenizers.h"

#define DW_SPACE "\xe2\x96\x81" // U+2581, how SentencePiece writes a space

/* ---- text to id ---------------------------------------------------------------------------------- */

/* Finds the index of a text in an array.  The array is borrowed. */
typedef struct dw_lookup {
    const dw_str *text;
    uint64_t *slot; // high half: part of the text's hash; low half: id + 1, 0 = free
    size_t mask;
    dw_hash_key key;
} dw_lookup;

/* Skips empty texts; fails on the first text that occurs twice. */
int dw_lookup_build(dw_lookup *x, const dw_str *text, size_t n, dw_err *err);
int32_t dw_lookup_find(const dw_lookup *x, const char *text, size_t len); // -1: not there
void dw_lookup_release(dw_lookup *x);
size_t dw_lookup_steps(const dw_lookup *x); // slots read when every text is looked up once

/* ---- vocabularies under construction -------------------------------------------------------------- */

/* A copy of text in memory that the vocabulary owns; ptr is NULL when memory is missing. */
dw_str dw_vocab_text(dw_vocab *v, const char *text, size_t len, dw_err *err);
/* Arrays for n_token texts (empty), types (0) and, for llama, scores. */
int dw_vocab_alloc(dw_vocab *v, const char *model, size_t n_token, dw_err *err);
/* Gives every id without a text the text "[PADid]" and the type unused. */
int dw_vocab_pad(dw_vocab *v, dw_err *err);
/* Tokens that control a model by their names; the last row's name is NULL. */
typedef struct dw_control {
    const char *name;
    enum { DW_CONTROLS, DW_ENDS_TEXT, DW_ENDS_TURN } does; // who ends a turn of a chat ends a text, too
} dw_control;
extern const dw_control dw_controls[];

/* The first token of dw_controls that ends a turn and is in the vocabulary, or -1. */
int32_t dw_vocab_find_eot(const dw_lookup *x);

/* The ids of merge i: left part, right part, result.  Fails when one of the three is not a token. */
typedef struct dw_merge_ids {
    int32_t left, right, result;
} dw_merge_ids;
int dw_vocab_merge_ids(const dw_vocab *v, const dw_lookup *x, size_t i, dw_merge_ids *ids, dw_err *err);

/* A token in a message: at most its first 40 bytes, for "%.*s". */
#define DW_SHOW(s) (int)((s).len < 40 ? (s).len : 40), (s).ptr

/* The parsed files of a Hugging Face folder; a missing file is NULL or empty. */
struct json_t;
typedef struct dw_hf_files {
    const struct json_t *tokenizer, *added_tokens, *tokenizer_config, *config, *generation_config;
    dw_str model;         // tokenizer.model
    dw_str chat_template; // chat_template.jinja
} dw_hf_files;
int dw_vocab_from_hf_files(dw_vocab *v, const dw_hf_files *files, size_t n_rows, dw_err *err);

/* Reads a SentencePiece model into the empty vocabulary v: n_rows tokens are allocated, the pieces become the first of
 * them.  The model's bytes may be freed afterwards. */
int dw_vocab_from_spm(dw_vocab *v, dw_str model, size_t n_rows, dw_err *err);

/* ---- pre-tokenizers --------------------------------------------------------------------------------- */

typedef struct dw_pretokenizer_row {
    const char *names;           // values of tokenizer.ggml.pre, separated by spaces; we write the first
    const char *expr[4];         // PCRE2; each expression cuts the pieces of the one before it
    const char *hf_split;        // the Split expression of a tokenizer.json that means this row, or NULL
    bool add_bos, ignore_merges; // what llama.cpp assumes for this pre-tokenizer
} dw_pretokenizer_row;

const dw_pretokenizer_row *dw_pretokenizer_find(dw_str name); // NULL: unknown
const dw_pretokenizer_row *dw_pretokenizer_find_split(const char *hf_split, bool ignore_merges);

typedef struct dw_pretokenizer dw_pretokenizer;
dw_pretokenizer *dw_pretokenizer_new(const dw_pretokenizer_row *row, dw_err *err);
void dw_pretokenizer_free(dw_pretokenizer *p);

/* Calls piece(arg, ...) for every piece of the text, in order, until a call returns -1.  The text is valid UTF-8. */
int dw_pretokenize(const dw_pretokenizer *p, const char *text, size_t len,
                   int (*piece)(void *arg, const char *text, size_t len, dw_err *err), void *arg, dw_err *err);

/* ---- merging ------------------------------------------------------------------------------------------ */

typedef struct dw_symbol {
    uint32_t at, len;    // its bytes in the word; len 0: it was merged into the symbol before
    uint32_t prev, next; // neighbours, DW_NO_SYMBOL at the ends
    int32_t id;          // -1: the symbol is not a token
} dw_symbol;

#define DW_NO_SYMBOL UINT32_MAX

typedef struct dw_candidate {
    uint64_t order; // key << 32 | index of the left symbol; the smallest is merged first
    uint32_t len;   // bytes of the result: shows whether both symbols are unchanged
    int32_t id;     // id of the result
} dw_candidate;

/* The memory of one call of dw_tokenize; calls share nothing. */
typedef struct dw_text_work {
    const dw_tokenizer *t;
    int32_t *ids;
    size_t n_ids, cap_ids;
    dw_symbol *symbol;
    size_t n_symbol, cap_symbol;
    dw_candidate *heap;
    size_t n_heap, cap_heap;
    char *text; // spm: a fragment with U+2581 for spaces; bpe: a word in the byte alphabet
    size_t cap_text;
} dw_text_work;

int dw_text_emit(dw_text_work *w, int32_t id, dw_err *err); // id < 0: does nothing

/* True when left and right merge; sets the id of the result and its key.  The smallest key is merged first. */
typedef bool dw_pair_fn(const void *model, const char *word, const dw_symbol *left, const dw_symbol *right,
                        uint32_t *key, int32_t *id);

/* Merges w->symbol[0 .. n_symbol) until no pair merges, in O(n log n).  The caller has set at, len and id. */
int dw_merge(dw_text_work *w, dw_pair_fn *pair, const void *model, const char *word, dw_err *err);

/* ---- the two models --------------------------------------------------------------------------------- */

typedef struct dw_bpe dw_bpe;
dw_bpe *dw_bpe_new(const dw_vocab *v, const dw_lookup *x, dw_err *err);
void dw_bpe_free(dw_bpe *m);
size_t dw_bpe_steps(const dw_bpe *m); // slots read when every merge is looked up once
int dw_bpe_fragment(const dw_bpe *m, dw_text_work *w, const char *text, size_t len, dw_err *err);
size_t dw_bpe_bytes(const dw_bpe *m, dw_str token, char *buf, size_t cap);

typedef struct dw_spm dw_spm;
dw_spm *dw_spm_new(const dw_vocab *v, const dw_lookup *x, dw_err *err);
void dw_spm_free(dw_spm *m);
int dw_spm_fragment(const dw_spm *m, dw_text_work *w, const char *text, size_t len, dw_err *err);
size_t dw_spm_bytes(dw_str token, int32_t type, char *buf, size_t cap);
int dw_spm_byte(dw_str token); // the byte of "<0xXX>"; -1 for other texts

/* Bytes of the UTF-8 character at s, or 0 when the bytes there are not one. */
size_t dw_utf8_char(const char *s, size_t left);

#endif
