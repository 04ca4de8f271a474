/* statistics.c - the formulas of statistics.h. */
#include "measure/statistics.h"

#include <math.h>
#include <stdlib.h>

enum { N_DRAWS = 10000, LEAST_RUNS = 10 };

/* From the sums and the sum of squared deviations of n_windows windows. */
static measure_mean clustered(double mean, double square, double tokens, size_t n_windows) {
    const double w = (double)n_windows;
    if (n_windows < MEASURE_LEAST_WINDOWS) return (measure_mean){mean, NAN, NAN};
    return (measure_mean){mean, sqrt(square * w / (w - 1)) / tokens, w - 1};
}

/* b NULL: zeros. */
static measure_mean mean_of(const double *a, const double *b, const double *n, size_t n_windows) {
    double total = 0, tokens = 0, square = 0;
    for (size_t w = 0; w < n_windows; w++) {
        total += b ? a[w] - b[w] : a[w];
        tokens += n[w];
    }
    const double mean = total / tokens;
    for (size_t w = 0; w < n_windows; w++) {
        const double d = (b ? a[w] - b[w] : a[w]) - n[w] * mean;
        square += d * d;
    }
    return clustered(mean, square, tokens, n_windows);
}

measure_mean measure_mean_of_windows(const double *sum, const double *n, size_t n_windows) {
    return mean_of(sum, NULL, n, n_windows);
}

measure_mean measure_mean_of_pairs(const double *a, const double *b, const double *n, size_t n_windows) {
    return mean_of(a, b, n, n_windows);
}

void measure_texts_add(measure_texts *t, const measure_mean *m) {
    const double v = m->se * m->se;
    t->n++;
    t->sum += m->mean;
    t->square += v;
    t->fourth += v * v / m->df;
    t->df += m->df;
}

/* Where no text has an error, the degrees of freedom are those of all texts. */
measure_mean measure_texts_mean(const measure_texts *t) {
    return (measure_mean){t->sum / t->n, sqrt(t->square) / t->n,
                          t->fourth > 0 ? t->square * t->square / t->fourth : t->df};
}

measure_mean measure_mean_of_texts(const measure_mean *m, size_t n) {
    measure_texts t = {0};
    for (size_t i = 0; i < n; i++) measure_texts_add(&t, &m[i]);
    return measure_texts_mean(&t);
}

double measure_between_texts(const measure_mean *m, size_t n) {
    double sum = 0, square = 0;
    if (n < 2) return NAN;
    for (size_t i = 0; i < n; i++) sum += m[i].mean;
    for (size_t i = 0; i < n; i++) square += (m[i].mean - sum / (double)n) * (m[i].mean - sum / (double)n);
    return sqrt(square / (double)(n - 1));
}

measure_mean measure_mean_of_values(const double *x, size_t n) {
    double sum = 0, square = 0;
    if (!n) return (measure_mean){NAN, NAN, NAN};
    for (size_t i = 0; i < n; i++) sum += x[i];
    const double mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean);
    return (measure_mean){mean, n > 1 ? sqrt(square / (double)n / (double)(n - 1)) : 0, (double)(n - 1)};
}

/* ---- Student's t ------------------------------------------------------------------------------------------- */

/* The continued fraction of the incomplete beta function I_x(a, b), by Lentz's method. */
static double beta_fraction(double x, double a, double b) {
    enum { STEPS = 20000 };
    const double tiny = 1e-300;
    double c = 1, d = 1 - (a + b) * x / (a + 1);
    d = 1 / (fabs(d) < tiny ? tiny : d);
    double f = d;
    for (int m = 1; m < STEPS; m++) {
        const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                     odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
        d = 1 + even * d;
        c = 1 + even / c;
        d = 1 / (fabs(d) < tiny ? tiny : d);
        c = fabs(c) < tiny ? tiny : c;
        f *= c * d;
        d = 1 + odd * d;
        c = 1 + odd / c;
        d = 1 / (fabs(d) < tiny ? tiny : d);
        c = fabs(c) < tiny ? tiny : c;
        f *= c * d;
        if (fabs(c * d - 1) < 1e-15) break;
    }
    return f;
}

/* I_x(a, b); y is 1 - x, given because 1 - x loses digits. */
static double incomplete_beta(double x, double y, double a, double b) {
    if (x <= 0 || y <= 0) return x <= 0 ? 0 : 1;
    const double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(y));
    if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(x, a, b) / a;
    return 1 - front * beta_fraction(y, b, a) / b;
}

/* The probability that t exceeds x >= 0: I_(df / (df + x^2))(df / 2, 1 / 2) / 2. */
static double upper_tail(double x, double df) {
    const double whole = df + x * x;
    return incomplete_beta(df / whole, x * x / whole, df / 2, 0.5) / 2;
}

static const double most_df = 1e6; // above it t is normal to 1e-6

double measure_t_tail(double x, double df) {
    if (!(df > 0) || isnan(x)) return NAN;
    const double tail = upper_tail(fabs(x), df < most_df ? df : most_df);
    return x < 0 ? 1 - tail : tail;
}

double measure_t(double p, double df) {
    if (!(p > 0 && p < 1 && df > 0)) return NAN;
    if (p > 0.5) return -measure_t(1 - p, df);
    if (p == 0.5) return 0;
    if (df > most_df) df = most_df;
    double low = 0, high = 1;
    while (upper_tail(high, df) > p && high < 1e300) high *= 2;
    for (int i = 0; i < 200 && high - low > 1e-12 * high; i++) {
        const double middle = (low + high) / 2;
        *(upper_tail(middle, df) > p ? &low : &high) = middle;
    }
    return (low + high) / 2;
}

double measure_half_width(const measure_mean *m, double probability) {
    return measure_t((1 - probability) / 2, m->df) * m->se;
}

/* ---- neighbouring windows ---------------------------------------------------------------------------------- */

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
        *se = measure_mean_of_values(draw, N_DRAWS).se * sqrt(N_DRAWS - 1) * sqrt(drawn / (w - (double)run));
    }
    free(run_sum);
    free(run_n);
    free(draw);
    return rc;
}

/* At 5 % significance with 80 % power; NaN if the error is unknown. */
static double resolvable(double se, double df) { return se * (measure_t(0.025, df) + measure_t(0.2, df)); }

static void fill_resolvable(measure_paired *p) {
    p->resolvable = fmax(resolvable(p->of.se, p->of.df), resolvable(p->se_blocks, p->df_blocks)); // fmax ignores a NaN
}

int measure_paired_of(measure_paired *p, const double *sum, const double *n, size_t n_windows, dw_err *err) {
    const size_t run = (size_t)ceil(cbrt((double)n_windows));
    *p = (measure_paired){measure_mean_of_windows(sum, n, n_windows), NAN, NAN, NAN};
    if (n_windows >= LEAST_RUNS * run) {
        if (bootstrap(sum, n, n_windows, run, &p->se_blocks, err)) return -1;
        p->df_blocks = (double)n_windows / (double)run - 1;
    }
    fill_resolvable(p);
    return 0;
}

measure_paired measure_paired_of_texts(const measure_paired *p, size_t n) {
    measure_texts windows = {0}, blocks = {0};
    for (size_t i = 0; i < n; i++) {
        measure_texts_add(&windows, &p[i].of);
        measure_texts_add(&blocks, &(measure_mean){p[i].of.mean, p[i].se_blocks, p[i].df_blocks});
    }
    const measure_mean of_blocks = measure_texts_mean(&blocks);
    measure_paired all = {measure_texts_mean(&windows), of_blocks.se, of_blocks.df, NAN};
    fill_resolvable(&all);
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
