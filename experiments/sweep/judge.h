/* judge.h - rows of many variants become one table, each with its verdict and the reason for it.
 *
 * Rows compare within a frame: the same texts (by hash), windows, protocol, base (by hash), cache, precision, role, and
 * the same type of matrices; that of the matrix that gives the logits (--output-type) may differ.  A pruned file and a
 * quantized one answer different questions, so they do not discard each other; their sizes and errors stand in the
 * table.  --select may differ: models that skip neurons compare with others.  Of several texts the row of their mean
 * speaks for the model.
 *
 *   failed      a job did not succeed; the reason is in `note`
 *   control     of metric random, of a gate's rule static or random, or the grid says so
 *   collapsed   the perplexity is above ten times the base's: the lower end of the 90 % interval of ln_ratio is above
 *               ln 10.  This ratio is taken over all windows and has an error.  A count of prompts whose continuations
 *               repeat has steps of a fifth and no error, and it can call the better of two variants collapsed.
 *   discard     dominated
 *   keep        none of these
 *   -           not judged; the reason is in `note`
 *
 * A row is dominated by another of its frame that is no larger, in file_bytes and in bytes_per_token, and whose
 * ln_ratio is smaller beyond the error of their difference.  The difference is paired: both scored the same tokens, so
 * its error comes from the differences of the windows (engine/measure/sums.h), by Student's t.  Where a row's window
 * sums are missing the two rows count as independent, which makes the error larger.  Of N rows, each may be compared
 * with each other, so the significance 0.05 is divided by N (N - 1) (Bonferroni; Holm's procedure would need all
 * p-values).  The probability that a sweep of N equal variants has any that is called dominated is then at most 5 %.  N
 * counts the rows that are expected (judge_expect), so a verdict does not depend on which are there already.  A
 * row is tried against at most JUDGE_TRIED others, best ln_ratio first; the first that passes is named.
 *
 * A row that does not know its bytes_per_token (a gated model whose bytes were not counted) is not judged.  A row
 * without text tells of speed alone.  Before anything is judged, a row with text that has no speed or does not know its
 * bytes_per_token takes what it does not know, and the threads of the speed, from the first row of speed of the same
 * model, kv and select.  `activity` must be the same, too: another one was planted (score --inject).  A row of speed
 * that was taken disappears.  All others stay: those that fit no row, and those at a depth above 0 or of several
 * sequences, which no row takes.
 *
 * Selection and report: where a model has rows of role select, they alone decide its verdict.  Its rows of role report
 * get the same verdict, and their numbers are unbiased, because nothing was chosen by their texts.
 *
 * The columns are those of score, and `variant`: the values of the grid's variables.  A column that tells what was done
 * to the model, and that a row leaves unknown, has the value of the variable of that name, where there is one. */
#ifndef EXP_JUDGE_H
#define EXP_JUDGE_H

#include "base/base.h"

enum { JUDGE_TRIED = 64 };

typedef struct judge judge;

/* For n sources of rows, in the order of the table. */
judge *judge_new(size_t n, dw_err *err);
/* How many rows all sources will have that are judged: N, where no more are there. */
void judge_expect(judge *j, size_t n_rows);
void judge_free(judge *j);

/* The rows of source i stand in a file, their window sums in the file that measure_book_path names, if it exists. */
int judge_add(judge *j, size_t i, const char *path, const char *variant, bool is_control, dw_err *err);
/* Source i has no rows, because of `reason`; `model` is what it would have been about. */
int judge_fail(judge *j, size_t i, const char *model, const char *variant, const char *reason, dw_err *err);

/* Whether a model file that source i tells of is worth its disk: not discarded, no control, not collapsed.  A file that
 * has no row there, as that of the base, is worth it if one of the source's models is. */
bool judge_keeps(judge *j, size_t i, const char *file);

typedef struct judge_counts {
    size_t keep, discard, control, collapsed, failed, other; // models; other: not judged
} judge_counts;

/* Writes the table of all that was added so far, after the window sums of its rows. */
int judge_write(judge *j, const char *path, const char *comment, judge_counts *counts, dw_err *err);

#endif
