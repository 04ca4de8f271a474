/* against.h - how every row compares with one model, window by window.
 *
 * The columns of a row tell of its model against the base.  Two variants are compared here: `difference` is ln(ppl of the
 * row / ppl of MODEL) on the same windows, difference_se its standard error from the differences of the windows, and
 * difference_ci90 half the width of its 90 % interval.  The sums of the windows are in ROWS.windows, which score and
 * sweep write (engine/measure/sums.h); a row without them, or on other windows than MODEL, has "-". */
#ifndef EXP_AGAINST_H
#define EXP_AGAINST_H

#include "experiments/report/rows.h"

/* Adds the three columns.  model: its file name, or the first eight or more digits of its hash.  Fails when no row is of
 * this model, or none of its rows has window sums. */
int exp_rows_compare(exp_rows *r, const char *const *paths, size_t n_paths, const char *model, dw_err *err);

#endif
