/* agreement.c - rank correlation (Spearman 1904). */
#include "prune/agreement.h"

#include <math.h>
#include <stdlib.h>

typedef struct entry {
    double score;
    int at;
} entry;

static int by_score(const void *a, const void *b) {
    const double x = ((const entry *)a)->score, y = ((const entry *)b)->score;
    return x < y ? -1 : x > y;
}

/* Ranks from 0; a run of equal scores shares the mean of its places. */
static int rank_all(const double *score, int n, double *rank, dw_err *err) {
    entry *order = dw_alloc((size_t)n, sizeof *order, "ranks", err);
    if (!order) return -1;
    for (int i = 0; i < n; i++) order[i] = (entry){score[i], i};
    qsort(order, (size_t)n, sizeof *order, by_score);
    for (int first = 0, end; first < n; first = end) {
        for (end = first + 1; end < n && order[end].score == order[first].score;) end++;
        for (int i = first; i < end; i++) rank[order[i].at] = 0.5 * (first + end - 1);
    }
    free(order);
    return 0;
}

int prune_rank_correlation(const double *a, const double *b, int n, double *rho, dw_err *err) {
    double *x = dw_alloc((size_t)n, 2 * sizeof *x, "ranks", err), *y = x ? x + n : NULL;
    int rc = x ? rank_all(a, n, x, err) : -1;
    if (!rc) rc = rank_all(b, n, y, err);
    const double mean = 0.5 * (n - 1); // of any ranks of n
    double xy = 0, xx = 0, yy = 0;
    for (int i = 0; i < n && !rc; i++) {
        xy += (x[i] - mean) * (y[i] - mean);
        xx += (x[i] - mean) * (x[i] - mean);
        yy += (y[i] - mean) * (y[i] - mean);
    }
    *rho = xy / sqrt(xx * yy);
    free(x);
    return rc;
}
