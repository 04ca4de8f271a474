/* calib.h - calibration texts: files, their tokens, and windows of them. */
#ifndef KIT_CALIB_H
#define KIT_CALIB_H

#include "kit/options.h"
#include "text/tokenizers.h"

/* A calibration text is a file and a range of its windows: consecutive runs of n_ctx tokens.  The tail, which is the
 * tokens after the last whole window, belongs to the file's last text: calib_window(.., n_windows, ..) gives the last
 * n_ctx tokens of the file.  Only their last n_tail tokens count; the others were in the windows before and are context
 * here.  If the vocabulary adds BOS, it replaces the first token of every window, as in llama.cpp's
 * perplexity. */
typedef struct calib_text {
    const char *name, *sha256;   // base name and hash of the file
    int first_window, n_windows; // counted from 1
    const int32_t *token;        // (n_windows * n_ctx + n_tail), before BOS replaces any
    int n_tail;                  // 0: no tail, or a range of windows was wanted
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
    calib_file *file;  // n_file; owns what the texts borrow
    size_t n_file;
} calib_texts;

typedef struct calib_request {
    const opt_list *paths;
    opt_range windows; // 0, 0: all, and the tail
    int n_ctx;
    int per_text;      // windows of a text; the last text of a file may have fewer; 0: a file is one text
} calib_request;

/* Reads and tokenizes the files, and divides their windows into texts.  Refused: a file that is not UTF-8 or has too
 * few tokens, and two files with the same bytes. */
int calib_read(calib_texts *t, const dw_model *m, const calib_request *wanted, dw_err *err);
void calib_name(char name[CALIB_NAME], const char *path); // the base name of path, cut after a whole character
/* Windows of a text, which count from 0 here; the last one is that of the tail, if there is a tail. */
int calib_n_windows(const calib_text *text);
/* The first position of a window that counts: `skip`, or after it where the tail begins. */
int calib_first_new(const calib_texts *t, const calib_text *text, int window, int skip);
uint64_t calib_n_counted(const calib_texts *t, const calib_text *text, int skip); // positions of a text that count
/* Copies the n_ctx tokens of a window. */
void calib_window(const calib_texts *t, const calib_text *text, int window, int32_t *token);
size_t calib_n_tokens(const calib_texts *t); // that are evaluated: n_ctx for each window, also for those of tails
void calib_release(calib_texts *t);

#endif
