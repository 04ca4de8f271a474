/* tokenizers.h - text to ids and back, as llama.cpp does it.
 *
 * A vocabulary (dw_vocab) is plain data.  It is read from the tokenizer.ggml.* keys of a GGUF file or from a Hugging
 * Face folder (tokenizer.json, tokenizer.model), and can be written into a GGUF file.  A tokenizer is built from a
 * vocabulary.
 *
 *   "gpt2"   byte-level BPE: the expressions of a pre-tokenizer (pretokenizers[], PCRE2) cut the text into pieces.  The
 *            bytes of a piece become printable characters, which merge by the rank of the pair, leftmost first on ties.
 *   "llama"  SentencePiece BPE: spaces become U+2581, characters merge by the score of the result, and unknown
 *            characters become byte tokens <0xXX>.
 * Text is not normalized, as in llama.cpp (transformers applies NFC for qwen2).  Special tokens are found first,
 * longest first; the text between two of them is tokenized by itself. */
#ifndef DW_TOKENIZERS_H
#define DW_TOKENIZERS_H

#include "formats/formats.h"

typedef enum dw_token_type {
    DW_TOKEN_NORMAL = 1, DW_TOKEN_UNKNOWN, DW_TOKEN_CONTROL, DW_TOKEN_USER, DW_TOKEN_UNUSED, DW_TOKEN_BYTE
} dw_token_type;

typedef struct dw_vocab {
    const char *model;  // "gpt2" or "llama"
    char pre[32];       // gpt2: name of the pre-tokenizer, a row of pretokenizers[]
    size_t n_token;
    dw_str *token;      // n_token texts, as the vocabulary spells them
    int32_t *type;      // n_token of dw_token_type
    float *score;       // llama: n_token; else NULL
    size_t n_merge;
    dw_str *merge;      // gpt2: n_merge texts "left right", the index is the rank; else NULL
    int32_t bos, eos, eot, eom, unk, pad; // -1: none
    bool add_bos, add_eos, add_space_prefix, ignore_merges;
    dw_str chat_template; // Jinja source, which is never executed; ptr NULL: none
    void *owned;        // memory of the texts that the vocabulary owns
} dw_vocab;

/* *v is empty after a failure.  The GGUF must outlive the vocabulary.  A special id that the file does not name is -1
 * in a gpt2 vocabulary (llama.cpp takes 11 as bos and eos); in a llama vocabulary unk, bos and eos are then 0, 1 and 2.
 * */
int dw_vocab_from_gguf(dw_vocab *v, const dw_gguf *g, dw_err *err);
/* Reads tokenizer.json or tokenizer.model, tokenizer_config.json, config.json, generation_config.json and
 * chat_template.jinja; without tokenizer.json added_tokens.json, too; *v is empty after a failure.  If both of the
 * first two exist and the model is "llama", tokens and scores come from tokenizer.model.  What llama.cpp cannot do in
 * the same way is refused: unknown pre-tokenizers, normalizers other than NFC, ignore_merges with a pre-tokenizer that
 * has none.
 * n_rows: rows of the embedding matrix; an id without a token gets the text "[PADid]" and the type unused. */
int dw_vocab_from_hf(dw_vocab *v, const char *folder, size_t n_rows, dw_err *err);
void dw_vocab_write(const dw_vocab *v, dw_gguf_writer *w);
void dw_vocab_release(dw_vocab *v);

typedef struct dw_tokenizer dw_tokenizer;

/* The vocabulary is borrowed and must outlive the tokenizer.  Many threads may use one tokenizer. */
dw_tokenizer *dw_tokenizer_new(const dw_vocab *v, dw_err *err);
/* The tokenizer of a model file; it owns its vocabulary.  The file must outlive the tokenizer.  A file without a
 * vocabulary, or with more tokens than its embedding has rows, is refused. */
dw_tokenizer *dw_tokenizer_open(const dw_gguf *g, dw_err *err);
void dw_tokenizer_free(dw_tokenizer *t);

enum { DW_ADD_SPECIAL = 1, DW_PARSE_SPECIAL = 2 }; // add BOS and EOS as the vocabulary says; recognise control tokens

/* *ids: *n ids, free() them (not NULL even for n = 0).  Text may hold any bytes, up to 1 GiB.  A byte that is not UTF-8
 * becomes U+FFFD in gpt2; llama takes it as it is.  User-defined tokens are always recognised. */
int dw_tokenize(const dw_tokenizer *t, const char *text, size_t len, unsigned flags, int32_t **ids, size_t *n,
                dw_err *err);

/* Writes up to cap of the token's bytes into buf; returns how many the token has.  Control tokens have none unless
 * `special`.  The bytes of one UTF-8 character may come from several tokens. */
size_t dw_token_bytes(const dw_tokenizer *t, int32_t id, bool special, char *buf, size_t cap);
/* Text of n ids, NUL-terminated; free() it.  Ids that are no tokens have no text.  If the vocabulary adds a space
 * before a text, that space is removed. */
char *dw_detokenize(const dw_tokenizer *t, const int32_t *ids, size_t n, bool special, size_t *len, dw_err *err);
bool dw_token_ends(const dw_tokenizer *t, int32_t id); // end of sequence, turn or message
const dw_vocab *dw_tokenizer_vocab(const dw_tokenizer *t);

#endif
