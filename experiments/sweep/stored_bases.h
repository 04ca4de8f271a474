/* stored_bases.h - a base is evaluated once for all models that are compared with it.
 *
 *   score : score -m $cut --base $dense -f $eval -o $rows
 *
 * becomes
 *
 *   dense_stored : score -m $dense -f $eval --no-speed --store $out.base
 *   score        : score -m $cut --base $dense_stored -f $eval -o $rows
 *
 * because evaluating the base takes as long as evaluating a model and gives the same numbers every time.  Steps that
 * ask for the same predictions share one file.  Stored predictions keep the exact log-probability of every scored
 * token, the 64 likeliest tokens and the mass of the rest.  So ln_ratio, perplexities and top-1 agreement are exact.
 * KL is that of the coarser distribution, a lower bound, and column kl_kind says "top64" instead of "full".  --base
 * exact keeps the grid as it stands. */
#ifndef EXP_STORED_BASES_H
#define EXP_STORED_BASES_H

#include "base/base.h"

typedef struct stored_bases stored_bases;

typedef struct stored_base {
    const char *of; // the step whose output is the base
    char **word;    // the statement of the step that stores it, n_word
    size_t n_word;
    bool is_new; // no earlier step asked for it
    size_t at;   // the word of the comparing step that names the base
    bool joined; // as --base=$dense
} stored_base;

stored_bases *stored_bases_new(dw_err *err);
void stored_bases_free(stored_bases *b);

/* Looks at the words of a step as they stand in the grid.  1: it compares with the output of a step, *found is filled
 * (everything in it is borrowed); 0: it does not; -1: out of memory. */
int stored_bases_find(stored_bases *b, char *const *word, size_t n_word, stored_base *found, dw_err *err);
/* Puts the stored predictions in the place of the base. */
int stored_bases_use(const stored_base *base, char **word, dw_err *err);

#endif
