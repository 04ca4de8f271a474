/* scores.h - scores of groups as a table (rank --scores).
 *
 *   # deadwood scores 1
 *   # model  mini.gguf  sha256 4f...
 *   # metric energy (||v_j||^2 E[a_j^2]: ...), group 64
 *   layer  group  first  last  score
 *   0      0      0      63    0.0123456789
 *
 * Tab-separated, one line for each group of each layer, in order.  Neurons `first` to `last` (both included) are the
 * group; without groups every neuron is one.  In pandas: read_csv(path, sep="\t", comment="#"). */
#ifndef PRUNE_SCORES_H
#define PRUNE_SCORES_H

#include "engine.h"

/* comment: lines without "# ", each with "\n".  score: (n_layer) lists of n_ff[l] / group.  free() the text. */
char *prune_scores_table(const dw_hparams *hp, const char *comment, int group, double *const *score, dw_err *err);
/* Writes a file, which appears whole or not at all, and is read back. */
int prune_write_whole(const char *path, const void *data, size_t size, dw_err *err);
/* Writes a text to a file, as above, or to standard output ("-"). */
int prune_write_text(const char *path, const char *text, dw_err *err);

#endif
