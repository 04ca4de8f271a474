/* windows.h - which tokens of a text are scored, and with which context: the protocols of perplexity.
 *
 *   llama  consecutive windows of n_ctx tokens, the rest of the text is dropped; each begins with an empty cache, its
 *          first token replaced by BOS where the vocabulary adds one; logits of positions n_ctx/2 .. n_ctx-2 are scored
 *          (llama.cpp tools/perplexity, 255 tokens of 512).  Needs two windows.
 *   hf     windows that slide by n_ctx/2; of each only the tokens that no earlier window scored, so that every token
 *          but the text's first is scored once (the documentation of transformers, "perplexity of fixed-length
 *          models").
 *   full   consecutive windows, logits of positions 0 .. n_ctx-2 scored, the rest of the text is dropped (the
 *          protocol of the GPTQ, SparseGPT and Wanda papers, which take n_ctx 2048). Values of different protocols or
 *          n_ctx cannot be compared. */
#ifndef MEASURE_WINDOWS_H
#define MEASURE_WINDOWS_H

#include "base/base.h"

/* Tokens start .. start + n_eval - 1 of the text are evaluated from an empty cache; the logits of positions first ..
 * n_eval - 1 are scored: that of position p predicts token start + p + 1. */
typedef struct measure_window {
    size_t start;
    int n_eval, first;
} measure_window;

static inline int measure_window_n_scored(const measure_window *w) { return w->n_eval - w->first; }

typedef struct measure_protocol {
    const char *name;
    const char *help;
    int least_windows;    // of n_ctx tokens that a text must have; 0: two tokens suffice
    bool bos_each_window; // where the vocabulary adds BOS, it replaces the first token of each window
    bool (*window)(size_t i, size_t n_ids, int n_ctx, measure_window *w); // window i, false behind the last
} measure_protocol;

extern const measure_protocol measure_protocols[];               // ends with name NULL
const measure_protocol *measure_protocol_find(const char *name); // NULL: unknown

typedef struct measure_windows {
    measure_window *window;
    size_t n;
    size_t n_all;    // windows that the text has
    size_t n_scored; // tokens, over the n windows
} measure_windows;

/* Windows first .. last (counted from 1; 0, 0: all) of a text of n_ids tokens; `what` names the text in errors. */
int measure_windows_make(measure_windows *w, const measure_protocol *p, size_t n_ids, int n_ctx, int first, int last,
                     const char *what, dw_err *err);
void measure_windows_release(measure_windows *w);

#endif
