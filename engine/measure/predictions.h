/* predictions.h - the predictions of a base model for texts, stored so that other models can be compared with it.
 *
 * File, little endian:
 *   8 bytes "dw-base3"; the reader also takes "dw-base2", which lacks what is marked (3), and "dw-base1", which lacks
 *   what is marked (2) and (3)
 *   header  u32 bytes raw, u32 bytes packed, a zstd frame:
 *             model: u32 length, its file's name; 32 bytes SHA-256 of the file
 *             vocabulary: u32 n_vocab; 32 bytes measure_vocab_hash
 *             protocol: u32 length, its name; u32 n_ctx; i32 bos (-1: none); u32 first, u32 last window (0, 0: all)
 *             (2) u32 1: the model learnt from data that its lineage does not name; else 0
 *             u32 n_texts, each: u32 length, its file's name; 32 bytes SHA-256; u64 tokens; u64 tokens scored;
 *               (2) u32 length, why the model has seen the text, as lineage_leak says it; empty: nothing says so;
 *               (3) 32 bytes measure_ids_hash of its tokens
 *   chunks  for each text its scored tokens in order, 256 per chunk, the last chunk of a text shorter:
 *             u32 bytes packed, a zstd frame of n records
 *             record: f64 ln p(target); i32 id[MEASURE_TOP]; f32 ln p of each id; f32 ln of the mass of the rest
 *             byte b of record i is at b * n + i: bytes of one meaning are together, which packs well
 * Frames have checksums; older files have none.  The reader checks every number.  Its memory is one header (at most
 * 16 MB) and one chunk, whatever the file says. */
#ifndef MEASURE_PREDICTIONS_H
#define MEASURE_PREDICTIONS_H

#include "measure/distribution.h"
#include "text/tokenizers.h"

typedef struct measure_stored_text {
    char *name;
    uint8_t sha256[32];
    uint64_t n_tokens, n_scored;
    char *leak; // why the model has seen the text; NULL: nothing says so
    uint8_t ids_sha256[32]; // measure_ids_hash; zeros in files of versions 1 and 2: unknown
} measure_stored_text;

typedef struct measure_stored_head { // what was predicted, and how; must be equal for models that are compared
    char *model;
    uint8_t model_sha256[32];
    int n_vocab;
    uint8_t vocab_sha256[32];
    char *protocol;
    int n_ctx;
    int32_t bos;               // replaces the first token of each window; -1: none does
    int first, last;           // windows; 0, 0: all
    bool learnt_unnamed;       // the model, from data that no text can be compared with; true in files of version 1
    measure_stored_text *text; // n_texts
    int n_texts;
} measure_stored_head;

typedef struct measure_prediction {
    double logprob; // ln p of the target, not rounded
    measure_coarse coarse;
} measure_prediction;

/* SHA-256 over the texts of all tokens and merges.  With equal hashes an id is the same token. */
void measure_vocab_hash(const dw_vocab *v, uint8_t digest[32]);

/* SHA-256 of a text's n token ids, as u32: tokenizers with one vocabulary may still cut a text differently. */
void measure_ids_hash(const int32_t *ids, size_t n, uint8_t digest[32]);

/* Writing: new; write the predictions of all texts, in the order of the head, any number per call; commit; free. */
typedef struct measure_predictions_writer measure_predictions_writer;
measure_predictions_writer *measure_predictions_writer_new(const char *path, const measure_stored_head *h, dw_err *err);
int measure_predictions_write(measure_predictions_writer *w, const measure_prediction *p, size_t n, dw_err *err);
/* Reads all back before the rename.  unread: not, for tests that write what no reader may accept. */
int measure_predictions_commit(measure_predictions_writer *w, bool unread, dw_err *err);
void measure_predictions_writer_free(measure_predictions_writer *w);

/* Reading.  Opening checks the header and the number and sizes of the chunks. */
typedef struct measure_predictions measure_predictions;
bool measure_is_predictions(const char *path); // whether the file begins with the 8 bytes
measure_predictions *measure_predictions_open(const char *path, dw_err *err);
measure_predictions *measure_predictions_open_memory(const void *data, size_t size, const char *name,
                                                     dw_err *err); // data is borrowed
void measure_predictions_close(measure_predictions *p);
const measure_stored_head *measure_predictions_head(const measure_predictions *p);
void measure_predictions_seek(measure_predictions *p, int text); // to the first scored token of a text
/* The next n predictions of the text of the last seek. */
int measure_predictions_read(measure_predictions *p, measure_prediction *out, size_t n, dw_err *err);

#endif
