/* controls.h - the controls of a grid that has none of its own: what any choice of neurons must be compared with.
 *
 *   random neurons    Every step from a `rank --metric ..` to its rows once more as random_NAME, with --metric random
 *                     and three seeds.  Not added where some `rank` of the grid has the metric random.
 *   plain rounding    The model that is cut, uncut but in six mixtures, Q8_0 to Q2_K, as rounded_NAME.  It is made from
 *                     the 16-bit model (that of `cut --source`, or the first model of the chain of -m) and with the
 *                     statistics that the cut used if they are of that model, so the control has what the cut had.
 *                     For any number of bytes between those of Q2_K and of the 16-bit model two of the controls are
 *                     the nearest smaller and the nearest larger one.  Not added where some `requant` of the grid
 *                     rounds the 16-bit model itself.  It is a control of cuts: a grid without rows of a cut model
 *                     gets none.
 *   fixed neurons     Every step with `gate --rule ..` once more as fixed_NAME, with the rules static and random (three
 *                     seeds, in the variable seed, or fixed_seed beside random neurons or a seed of the grid's own): the
 *                     same neurons for every token, as many as the gate opens in groups of the same size,
 *                     and the rows of what comes from the gate for them.  Not added where some gate of the grid has
 *                     one of these rules.
 *
 * Where a step makes rows of several models, the added step has the control alone in the place of all of them.  It
 * comes once for each `cut` or `gate` that has a control and from which one of the models comes.
 *
 * The notes name the steps that were added, and say which controls cannot be made and why. */
#ifndef EXP_CONTROLS_H
#define EXP_CONTROLS_H

#include "base/base.h"

typedef struct controls controls;

controls *controls_new(dw_err *err);
void controls_free(controls *c);

/* A statement of the grid, in order; the words as they stand there.  controls_write tells when memory ran out. */
void controls_see(controls *c, char *const *word, size_t n_word);
/* The statements to be added, "" for none, and the notes, a line each; free() both. */
int controls_write(controls *c, char **text, char **notes, dw_err *err);

#endif
