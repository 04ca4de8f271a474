/* statistics.c - the formulas of statistics.h. */
#include "measure/statistics.h"

#include <math.h>
#include <stdlib.h>

enum { N_DRAWS = 10000 };

measure_mean measure_mean_of(const double *x, size_t n) {
    double sum = 0, square = 0;
    if (!n) return (measure_mean){NAN, NAN};
    for (size_t i = 0; i < n; i++) sum += x[i];
    const double mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean);
    return (measure_mean){mean, n > 1 ? sqrt(square / (double)n / (double)(n - 1)) : 0};
}

measure_mean measure_mean_of_means(const measure_mean *m, size_t n) {
    double sum = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        sum += m[i].mean;
        square += m[i].se * m[i].se;
    }
    return (measure_mean){sum / (double)n, sqrt(square) / (double)n};
}

measure_mean measure_share(size_t n_held, size_t n) {
    const double p = (double)n_held / (double)n;
    return (measure_mean){p, n > 1 ? sqrt(p * (1 - p) / (double)(n - 1)) : 0};
}

/* The standard deviation of the mean over N_DRAWS bootstrap draws.  A draw is n_runs runs of `run` windows each, which
 * wrap around the end.  The sums of all runs are made first, so a draw costs one lookup per run. */
static int bootstrap(const double *sum, const double *n, size_t n_windows, size_t run, double *se, dw_err *err) {
    double *run_sum = dw_alloc(n_windows, sizeof *run_sum, "bootstrap", err),
           *run_n = dw_alloc(n_windows, sizeof *run_n, "bootstrap", err);
    double *draw = dw_alloc(N_DRAWS, sizeof *draw, "bootstrap", err);
    const int rc = run_sum && run_n && draw ? 0 : -1;
    for (size_t i = 0; !rc && i < n_windows; i++)
        for (size_t k = 0; k < run; k++) {
            run_sum[i] += sum[(i + k) % n_windows];
            run_n[i] += n[(i + k) % n_windows];
        }
    const size_t n_runs = (n_windows + run / 2) / run;
    dw_rng rng;
    dw_rng_seed(&rng, 1);
    for (size_t d = 0; !rc && d < N_DRAWS; d++) {
        double s = 0, tokens = 0;
        for (size_t k = 0; k < n_runs; k++) {
            const size_t i = dw_rng_below(&rng, n_windows);
            s += run_sum[i];
            tokens += run_n[i];
        }
        draw[d] = s / tokens;
    }
    if (!rc) { // corrects for n_runs * run != n_windows, and for the bias: run sums deviate from their own mean
        const double w = (double)n_windows, drawn = (double)(n_runs * run);
        *se = measure_mean_of(draw, N_DRAWS).se * sqrt(N_DRAWS - 1) * sqrt(drawn / (w - (double)run));
    }
    free(run_sum);
    free(run_n);
    free(draw);
    return rc;
}

static double resolvable(double se, double se_blocks) { return 2.8 * fmax(se, se_blocks); } // fmax ignores a NaN

int measure_paired_of(measure_paired *p, const double *sum, const double *n, size_t n_windows, dw_err *err) {
    double total = 0, tokens = 0, square = 0;
    for (size_t w = 0; w < n_windows; w++) {
        total += sum[w];
        tokens += n[w];
    }
    *p = (measure_paired){total / tokens, NAN, NAN, NAN};
    for (size_t w = 0; w < n_windows; w++) {
        const double d = sum[w] - n[w] * p->mean;
        square += d * d;
    }
    if (n_windows >= MEASURE_LEAST_WINDOWS) p->se = sqrt(square * (double)n_windows / (double)(n_windows - 1)) / tokens;
    const size_t run = (size_t)ceil(cbrt((double)n_windows));
    if (n_windows >= MEASURE_LEAST_WINDOWS && n_windows >= 2 * run &&
        bootstrap(sum, n, n_windows, run, &p->se_blocks, err))
        return -1;
    p->resolvable = resolvable(p->se, p->se_blocks);
    return 0;
}

measure_paired measure_paired_of_texts(const measure_paired *p, size_t n) {
    measure_paired all = {0};
    double se = 0, se_blocks = 0;
    for (size_t i = 0; i < n; i++) {
        all.mean += p[i].mean / (double)n;
        se += p[i].se * p[i].se;
        se_blocks += p[i].se_blocks * p[i].se_blocks;
    }
    all.se = sqrt(se) / (double)n;
    all.se_blocks = sqrt(se_blocks) / (double)n;
    all.resolvable = resolvable(all.se, all.se_blocks);
    return all;
}

double measure_quantile(const double *sorted, size_t n, double q) {
    if (!n) return NAN;
    const double at = q * (double)(n - 1);
    const size_t i = (size_t)at;
    return i + 1 < n ? sorted[i] + (at - (double)i) * (sorted[i + 1] - sorted[i]) : sorted[n - 1];
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void measure_sort(double *x, size_t n) { qsort(x, n, sizeof *x, by_value); }
