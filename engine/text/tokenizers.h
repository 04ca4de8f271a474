/* tokenizers.h - text to ids and back, as llama.cpp does it.
 *
 * A vocabulary (dw_vocab) is plain data: it comes from a GGUF file's tokenizer.ggml.* keys, or from a Hugging Face
 * folder (tokenizer.json, tokenizer.model), and can be written into a GGUF file.  A tokenizer is built from it.
 *
 *   "gpt2"   byte-level BPE: the text is cut by a pre-tokenizer's expressions (pretokenizers[], PCRE2), each piece's
 *            bytes are mapped to printable characters and merged by rank of the pair, leftmost first on ties.
 *   "llama"  SentencePiece BPE: spaces become U+2581, characters are merged by the score of the result, unknown
 *            characters fall back to byte tokens <0xXX>.
 * No Unicode normalization is done (llama.cpp does none; transformers applies NFC for qwen2).  Special tokens are taken
 * out of the text first, longest first; what lies between two of them is tokenized on its own. */
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
    dw_str *token;      // n_token texts, in the vocabulary's own characters
    int32_t *type;      // n_token of dw_token_type
    float *score;       // llama: n_token; else NULL
    size_t n_merge;
    dw_str *merge;      // gpt2: "left right", rank = index; else NULL
    int32_t bos, eos, eot, unk, pad; // -1: none
    bool add_bos, add_eos, add_space_prefix, ignore_merges;
    dw_str chat_template; // Jinja source, never executed; ptr NULL: none
    void *owned;        // memory behind the above
} dw_vocab;

/* Each fills *v, which is empty after failure.  The GGUF must outlive a vocabulary read from it.  A special id that the
 * file does not name is -1 (llama.cpp would take 11 as bos and eos of a gpt2 vocabulary). */
int dw_vocab_from_gguf(dw_vocab *v, const dw_gguf *g, dw_err *err);
/* Reads tokenizer.json or tokenizer.model (if both are there and the model is "llama", tokens and scores of the latter),
 * tokenizer_config.json, config.json, generation_config.json, chat_template.jinja.  What llama.cpp could not do alike
 * is refused: unknown pre-tokenizers, normalizers other than NFC, ignore_merges where its counterpart has none.
 * n_rows: rows of the embedding matrix; ids that no token names become "[PADid]", unused. */
int dw_vocab_from_hf(dw_vocab *v, const char *folder, size_t n_rows, dw_err *err);
void dw_vocab_write(const dw_vocab *v, dw_gguf_writer *w);
void dw_vocab_release(dw_vocab *v);

typedef struct dw_tokenizer dw_tokenizer;

/* The vocabulary is borrowed and must outlive the tokenizer.  Thread-safe after creation. */
dw_tokenizer *dw_tokenizer_new(const dw_vocab *v, dw_err *err);
/* The tokenizer of a model file, which must outlive it; the vocabulary is the tokenizer's own.  Refused: a file without a
 * vocabulary, or with more tokens than its embedding has rows. */
dw_tokenizer *dw_tokenizer_open(const dw_gguf *g, dw_err *err);
void dw_tokenizer_free(dw_tokenizer *t);

enum { DW_ADD_SPECIAL = 1, DW_PARSE_SPECIAL = 2 }; // prepend BOS where the model does; recognise control tokens

/* *ids: *n ids, free() them (not NULL even for n = 0).  Text may hold any bytes, up to 1 GiB; of what is not UTF-8 gpt2
 * sees U+FFFD for each byte, llama the bytes.  User-defined tokens are recognised without DW_PARSE_SPECIAL too. */
int dw_tokenize(const dw_tokenizer *t, const char *text, size_t len, unsigned flags, int32_t **ids, size_t *n,
                dw_err *err);

/* The bytes that a token stands for: up to cap of them into buf, returns how many there are.  Control tokens give
 * none unless `special`.  Pieces of one UTF-8 character may come from several tokens. */
size_t dw_token_bytes(const dw_tokenizer *t, int32_t id, bool special, char *buf, size_t cap);
/* Text of n ids; the first space is dropped where the vocabulary adds one.  NUL-terminated, free(). */
char *dw_detokenize(const dw_tokenizer *t, const int32_t *ids, size_t n, bool special, size_t *len, dw_err *err);
bool dw_token_ends(const dw_tokenizer *t, int32_t id); // end of sequence, turn or message
const dw_vocab *dw_tokenizer_vocab(const dw_tokenizer *t);

#endif
