/* median.c - see median.h. */
#include "prune/median.h"

#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double prune_median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, ascending);
    return n == 0 ? 0 : 0.5 * (x[n / 2] + x[(n - 1) / 2]);
}
