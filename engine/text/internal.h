/* internal.h - what the files of this room share.
 *
 *   vocab.c        arenas, lookups, GGUF keys       vocab_hf.c    tokenizer.json and its companions
 *   vocab_spm.c    tokenizer.model                  tokenizer.c   special tokens, text to ids and back
 *   pretokenize.c  the expressions that cut text    bpe.c, spm.c  one word to ids
 *   merge.c        the queue that both of these merge with */
#ifndef DW_TOKENIZERS_INTERNAL_H
#define DW_TOKENIZERS_INTERNAL_H

#include "base/siphash.h"
#include "text/tokenizers.h"

#define DW_SPACE "\xe2\x96\x81" // U+2581, how SentencePiece writes a space

/* ---- text to id ---------------------------------------------------------------------------------- */

/* Where each text of an array is.  The array is borrowed. */
typedef struct dw_lookup {
    const dw_str *text;
    uint64_t *slot; // high half: part of the text's hash; low half: id + 1, 0 = free
    size_t mask;
    dw_hash_key key;
} dw_lookup;

/* Takes the texts whose len is not 0; fails on the first that occurs twice. */
int dw_lookup_build(dw_lookup *x, const dw_str *text, size_t n, dw_err *err);
int32_t dw_lookup_find(const dw_lookup *x, const char *text, size_t len); // -1: not there
void dw_lookup_release(dw_lookup *x);
size_t dw_lookup_steps(const dw_lookup *x); // slots that are read to find every text once

/* ---- vocabularies under construction -------------------------------------------------------------- */

/* A copy of text in memory owned by the vocabulary; ptr NULL when there is no memory. */
dw_str dw_vocab_text(dw_vocab *v, const char *text, size_t len, dw_err *err);
/* Arrays for n_token texts (empty), types (0) and, for llama, scores. */
int dw_vocab_alloc(dw_vocab *v, const char *model, size_t n_token, dw_err *err);
/* Names every id that has no text "[PADid]", of type unused. */
int dw_vocab_pad(dw_vocab *v, dw_err *err);
/* The names of tokens that end a text; the last row's name is NULL. */
typedef struct dw_end_token {
    const char *name;
    bool is_turn; // it ends a turn of a chat
} dw_end_token;
extern const dw_end_token dw_end_tokens[];

/* The first token that is known to end a turn, or -1. */
int32_t dw_vocab_find_eot(const dw_lookup *x);

/* The two halves and the result of merge i as ids; fails when one of them is no token. */
typedef struct dw_merge_ids {
    int32_t left, right, result;
} dw_merge_ids;
int dw_vocab_merge_ids(const dw_vocab *v, const dw_lookup *x, size_t i, dw_merge_ids *ids, dw_err *err);

/* A sentence's view of a token: at most 40 bytes of it, for "%.*s". */
#define DW_SHOW(s) (int)((s).len < 40 ? (s).len : 40), (s).ptr

/* The parsed files of a Hugging Face folder; NULL or empty where there is none. */
struct json_t;
typedef struct dw_hf_files {
    const struct json_t *tokenizer, *tokenizer_config, *config, *generation_config;
    dw_str model;         // tokenizer.model
    dw_str chat_template; // chat_template.jinja
} dw_hf_files;
int dw_vocab_from_hf_files(dw_vocab *v, const dw_hf_files *files, size_t n_rows, dw_err *err);

/* A SentencePiece model: its pieces become v's first tokens (v: empty; n_rows tokens are allocated), and its
 * settings v's.  The bytes are needed no longer afterwards. */
int dw_vocab_from_spm(dw_vocab *v, dw_str model, size_t n_rows, dw_err *err);

/* ---- pre-tokenizers --------------------------------------------------------------------------------- */

typedef struct dw_pretokenizer_row {
    const char *names;           // as tokenizer.ggml.pre has them, separated by spaces; the first is ours
    const char *expr[4];         // PCRE2; each cuts every piece that the one before it left
    const char *hf_split;        // expression of a tokenizer.json's Split that means this row, or NULL
    bool add_bos, ignore_merges; // what llama.cpp assumes for it
} dw_pretokenizer_row;

const dw_pretokenizer_row *dw_pretokenizer_find(dw_str name); // NULL: unknown
const dw_pretokenizer_row *dw_pretokenizer_find_split(const char *hf_split, bool ignore_merges);

typedef struct dw_pretokenizer dw_pretokenizer;
dw_pretokenizer *dw_pretokenizer_new(const dw_pretokenizer_row *row, dw_err *err);
void dw_pretokenizer_free(dw_pretokenizer *p);

/* Calls piece(arg, ...) for every piece of text (valid UTF-8), in order, until one call returns -1. */
int dw_pretokenize(const dw_pretokenizer *p, const char *text, size_t len,
                   int (*piece)(void *arg, const char *text, size_t len, dw_err *err), void *arg, dw_err *err);

/* ---- merging ------------------------------------------------------------------------------------------ */

typedef struct dw_symbol {
    uint32_t at, len;    // its bytes in the word; len 0: merged into a symbol before it
    uint32_t prev, next; // neighbours, DW_NO_SYMBOL at the ends
    int32_t id;          // -1: no token
} dw_symbol;

#define DW_NO_SYMBOL UINT32_MAX

typedef struct dw_candidate {
    uint64_t order; // key << 32 | index of the left symbol: the smallest is merged first
    uint32_t len;   // bytes of the result: tells whether both symbols are still as they were
    int32_t id;     // of the result
} dw_candidate;

/* Everything one call of dw_tokenize works with; nothing of it is shared. */
typedef struct dw_work {
    const dw_tokenizer *t;
    int32_t *ids;
    size_t n_ids, cap_ids;
    dw_symbol *symbol;
    size_t n_symbol, cap_symbol;
    dw_candidate *heap;
    size_t n_heap, cap_heap;
    char *text; // a fragment, rewritten
    size_t cap_text;
} dw_work;

int dw_work_emit(dw_work *w, int32_t id, dw_err *err); // id < 0: nothing

/* True when left and right merge: the id and the key of the result, smaller keys first. */
typedef bool dw_pair_fn(const void *model, const char *word, const dw_symbol *left, const dw_symbol *right,
                        uint32_t *key, int32_t *id);

/* Merges w->symbol[0 .. n_symbol) (at, len and id set) until no pair merges.  O(n log n). */
int dw_merge(dw_work *w, dw_pair_fn *pair, const void *model, const char *word, dw_err *err);

/* ---- the two models --------------------------------------------------------------------------------- */

typedef struct dw_bpe dw_bpe;
dw_bpe *dw_bpe_new(const dw_vocab *v, const dw_lookup *x, dw_err *err);
void dw_bpe_free(dw_bpe *m);
size_t dw_bpe_steps(const dw_bpe *m); // slots that are read to find every merge once
int dw_bpe_fragment(const dw_bpe *m, dw_work *w, const char *text, size_t len, dw_err *err);
size_t dw_bpe_bytes(const dw_bpe *m, dw_str token, char *buf, size_t cap);

typedef struct dw_spm dw_spm;
dw_spm *dw_spm_new(const dw_vocab *v, const dw_lookup *x, dw_err *err);
void dw_spm_free(dw_spm *m);
int dw_spm_fragment(const dw_spm *m, dw_work *w, const char *text, size_t len, dw_err *err);
size_t dw_spm_bytes(dw_str token, int32_t type, char *buf, size_t cap);
int dw_spm_byte(dw_str token); // the byte of "<0xXX>", or -1

/* Length of the UTF-8 character at s, or 0 where there is none. */
size_t dw_utf8_char(const char *s, size_t left);

#endif
