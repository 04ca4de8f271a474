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
#ifndef EXP_WINDOWS_H
#define EXP_WINDOWS_H

#include "base/base.h"

/* Tokens start .. start + n_eval - 1 of the text are evaluated from an empty cache; the logits of positions first ..
 * n_eval - 1 are scored: that of position p predicts token start + p + 1. */
typedef struct exp_window {
    size_t start;
    int n_eval, first;
} exp_window;

static inline int exp_window_n_scored(const exp_window *w) { return w->n_eval - w->first; }

typedef struct exp_protocol {
    const char *name;
    const char *help;
    int least_windows;    // of n_ctx tokens that a text must have; 0: two tokens suffice
    bool bos_each_window; // where the vocabulary adds BOS, it replaces the first token of each window
    bool (*window)(size_t i, size_t n_ids, int n_ctx, exp_window *w); // window i, false behind the last
} exp_protocol;

extern const exp_protocol exp_protocols[];               // ends with name NULL
const exp_protocol *exp_protocol_find(const char *name); // NULL: unknown

typedef struct exp_windows {
    exp_window *window;
    size_t n;
    size_t n_all;    // windows that the text has
    size_t n_scored; // tokens, over the n windows
} exp_windows;

/* Windows first .. last (counted from 1; 0, 0: all) of a text of n_ids tokens; `what` names the text in errors. */
int exp_windows_make(exp_windows *w, const exp_protocol *p, size_t n_ids, int n_ctx, int first, int last,
                     const char *what, dw_err *err);
void exp_windows_release(exp_windows *w);

#endif
