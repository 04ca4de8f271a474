/* agreement.h - how far two orders of groups agree. */
#ifndef PRUNE_AGREEMENT_H
#define PRUNE_AGREEMENT_H

#include "base/base.h"

/* Spearman's rank correlation of two lists of n scores: Pearson's of their ranks, equal scores sharing the mean of
 * theirs.  NaN when all scores of a list are equal. */
int prune_rank_correlation(const double *a, const double *b, int n, double *rho, dw_err *err);

#endif
