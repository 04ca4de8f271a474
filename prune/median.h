/* median.h - the middle of some numbers. */
#ifndef PRUNE_MEDIAN_H
#define PRUNE_MEDIAN_H

/* Of n numbers, which are sorted; of an even number of them the mean of the middle two; of none 0. */
double prune_median(double *x, int n);

#endif
