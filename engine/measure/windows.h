/* windows.h - which tokens of a text are scored, and with which context: the protocols of perplexity.
 *
 *   llama  consecutive windows of n_ctx tokens, each with an empty cache; the rest of the text is dropped.  If the
 *          vocabulary adds BOS, it replaces the first token of each window.  Logits of positions n_ctx/2 .. n_ctx-2
 *          are scored (llama.cpp tools/perplexity; 255 tokens of 512).  A text needs two windows.
 *   hf     windows that slide by n_ctx/2.  Each scores only the tokens that no earlier window scored, so every token
 *          except the first of the text is scored once (documentation of transformers, "perplexity of fixed-length
 *          models").
 *   full   consecutive windows; logits of positions 0 .. n_ctx-2 are scored; the rest of the text is dropped (the
 *          protocol of the GPTQ, SparseGPT and Wanda papers, with n_ctx 2048).
 * Values of different protocols or different n_ctx cannot be compared. */
#ifndef MEASURE_WINDOWS_H
#define MEASURE_WINDOWS_H

#include "base/base.h"

enum { MEASURE_LEAST_CTX = 4 }; // tokens of a window

/* Tokens start .. start + n_eval - 1 of the text are evaluated from an empty cache.  The logits of positions first ..
 * n_eval - 1 are scored; position p predicts token start + p + 1. */
typedef struct measure_window {
    size_t start;
    int n_eval, first;
} measure_window;

static inline int measure_window_n_scored(const measure_window *w) { return w->n_eval - w->first; }

typedef struct measure_protocol {
    const char *name;
    const char *help;
    int least_windows;    // that a text must have; 0: two tokens are enough
    bool bos_each_window; // if the vocabulary adds BOS, it replaces the first token of each window
    bool (*window)(size_t i, size_t n_ids, int n_ctx, measure_window *w); // sets window i; false after the last
} measure_protocol;

extern const measure_protocol measure_protocols[];               // ends with name NULL
const measure_protocol *measure_protocol_find(const char *name); // NULL: unknown

typedef struct measure_windows {
    measure_window *window;
    size_t n;
    size_t n_all;    // windows of the whole text
    size_t n_scored; // tokens, over the n windows
} measure_windows;

/* Windows first .. last (counted from 1; 0, 0: all) of a text of n_ids tokens; `what` names the text in messages. */
int measure_windows_make(measure_windows *w, const measure_protocol *p, size_t n_ids, int n_ctx, int first, int last,
                         const char *what, dw_err *err);
void measure_windows_release(measure_windows *w);

#endif
