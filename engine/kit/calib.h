/* calib.h - calibration texts: files, their tokens, and windows of them. */
#ifndef KIT_CALIB_H
#define KIT_CALIB_H

#include "kit/options.h"
#include "text/tokenizers.h"

/* A text to learn from is a file and a range of its windows: consecutive runs of n_ctx tokens, the rest of the file is
 * left out.  Where the vocabulary adds BOS, it replaces the first token of every window (as llama.cpp's perplexity does). */
typedef struct calib_text {
    const char *name, *sha256;   // of the file: base name, hash
    int first_window, n_windows; // counted from 1
    const int32_t *token;        // (n_windows * n_ctx), as tokenized
} calib_text;

enum { CALIB_NAME = 128 };

typedef struct calib_file {
    char name[CALIB_NAME], sha256[65];
    int32_t *token;
} calib_file;

typedef struct calib_texts {
    calib_text *text;
    size_t n_text;
    int n_ctx;
    int32_t bos;       // -1: windows keep their first token
    calib_file *file;  // what the texts borrow
    size_t n_file;
} calib_texts;

/* Reads and tokenizes the files and cuts their windows (0, 0: all) into texts of `per_text` windows each, the last one
 * perhaps of fewer; 0: a file is one text.  Refused when a file is not UTF-8 or has too few tokens, or two files hold the
 * same bytes. */
int calib_read(calib_texts *t, const dw_model *m, const opt_list *paths, opt_range windows, int n_ctx, int per_text, dw_err *err);
void calib_name(char name[CALIB_NAME], const char *path); // as texts are called: the base name, cut behind a whole character
void calib_window(const calib_texts *t, const calib_text *text, int window, int32_t *token); // n_ctx tokens of window 0 ..
size_t calib_n_tokens(const calib_texts *t);
void calib_release(calib_texts *t);

#endif
