/* judge.h - rows of many variants become one table, each with its verdict.
 *
 * Two rows compare when they tell of the same texts, windows, protocol and base; of several texts the row of their mean
 * speaks for the model.  A row is dominated by another that is worse in nothing, of file_bytes, bytes_per_token and
 * ln_ratio, and better in a size, or in ln_ratio by more than twice the standard error of the difference (taken as if
 * the two were independent, which is careful: they share the texts).  Of several that dominate, the one of the smallest ln_ratio is
 * named.  This does not depend on the order in which rows come: what is once dominated stays so.
 *
 *   failed      a job did not succeed; the reason is in `note`
 *   control     of metric random, or the grid says so
 *   collapsed   perplexity above ten times the base's, or continuations that only repeat (continuations.h) for at least four
 *               of the five prompts, where the base's do for at most half; rows that do not know either say nothing
 *   discard     dominated
 *   keep        none of these
 *
 * A row without text tells of speed alone: it fills what is unknown in the other rows of its model, with the number of
 * threads that it was measured with, and disappears.
 *
 * The columns are those of score, and `variant`: the values of the grid's variables.  A column that a row leaves unknown
 * has the value of the variable of that name, where there is one. */
#ifndef EXP_JUDGE_H
#define EXP_JUDGE_H

#include "base/base.h"

typedef struct judge judge;

/* For n sources of rows, in the order of the table. */
judge *judge_new(size_t n, dw_err *err);
void judge_free(judge *j);

/* The role of a source's rows: "select", "report", or "-" (grid.h); the column `role`.  The text is borrowed. */
void judge_set_role(judge *j, size_t i, const char *role);
/* The rows of source i stand in a file. */
int judge_add(judge *j, size_t i, const char *path, const char *variant, bool is_control, dw_err *err);
/* Source i has no rows, because of `reason`; `model` is what it would have been about. */
int judge_fail(judge *j, size_t i, const char *model, const char *variant, const char *reason, dw_err *err);

/* Whether a model of source i is worth its disk: not discarded, no control, not collapsed. */
bool judge_keeps(const judge *j, size_t i);

typedef struct judge_counts {
    size_t keep, discard, control, collapsed, failed, other; // models; other: nothing to compare with
} judge_counts;

/* Writes the table of all that was added so far. */
int judge_write(const judge *j, const char *path, const char *comment, judge_counts *counts, dw_err *err);

#endif
