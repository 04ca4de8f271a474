/* controls.h - the controls of a grid that names none: what any choice of neurons must be held against.
 *
 *   random neurons    every step from a `rank --metric ..` to its rows once more as random_NAME, with --metric random and
 *                     --seed $seed, seed = 1 2 3; not where the grid has the word random, or a seed, itself
 *   plain rounding    what the first `cut -m X` cuts, requantized, as rounded_NAME: requant -m X --mixture $mixture,
 *                     Q8_0 to Q2_K, and the cut's rows for it; not where the grid has a requant, or a mixture, itself
 *
 * A choice that does not beat neurons by lot chooses nothing, and a cut that a rounding of as many bytes dominates is no
 * use: the verdicts say both. */
#ifndef EXP_CONTROLS_H
#define EXP_CONTROLS_H

#include "base/base.h"

typedef struct controls controls;

controls *controls_new(dw_err *err);
void controls_see(controls *c, char *const *word, size_t n_word); // a statement of the grid, in order; words as they stand
char *controls_text(controls *c, dw_err *err);                   // statements to be added, "" for none; free()
void controls_free(controls *c);

#endif
