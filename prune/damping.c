/* damping.c - the ridge on a Gram matrix, and what is done about dead neurons (damping.h). */
#include "prune/damping.h"

#include "prune/median.h"
#include "prune/spd.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEAD 1e-12 // of the median

/* The median of the positive values of the diagonal; 0: there is none. */
static double median_of_diagonal(const kit_gram_matrix *g, double *value) {
    int n = 0;
    for (int j = 0; j < g->n; j++)
        if (kit_gram_at(g, j, j) > 0) value[n++] = kit_gram_at(g, j, j);
    return prune_median(value, n);
}

int damping_of(damping *d, const kit_gram_matrix *g, double n_tokens, double relative, bool *dead, dw_err *err) {
    double *value = dw_alloc((size_t)g->n, sizeof *value, "a diagonal", err);
    if (!value) return -1;
    const double median = median_of_diagonal(g, value), least = 5.0 * g->n;
    free(value);
    *d = (damping){.median = median / n_tokens, .few_tokens = n_tokens < least};
    d->lambda = relative * d->median * (d->few_tokens ? least / n_tokens : 1);
    for (int j = 0; j < g->n; j++) d->n_dead += dead[j] = !(kit_gram_at(g, j, j) > DEAD * median);
    if (d->n_dead < g->n && isfinite(d->lambda) && d->lambda > 0) return 0;
    if (d->n_dead < g->n)
        return dw_fail(err,
                       "layer %d: the damping would be %g times the median square %g of %g tokens; collect the Gram "
                       "matrix again, or give another --damp",
                       g->layer, relative, d->median, n_tokens);
    return dw_fail(err, "layer %d: all %d inputs are 0 for all tokens, so there is nothing to choose by", g->layer,
                   g->n);
}

static void fill(const damping *d, const kit_gram_matrix *g, double n_tokens, const bool *dead, const int32_t *at,
                 int m, double *h) {
    for (int i = 0; i < m; i++) {
        double *row = h + (size_t)i * (size_t)m;
        const int r = at ? at[i] : i;
        for (int k = 0; k < i; k++) {
            const int c = at ? at[k] : k;
            row[k] = dead[r] || dead[c] ? 0 : g->sum[kit_gram_row(g->n, c) + (size_t)r] / n_tokens;
        }
        row[i] = dead[r] ? d->median : kit_gram_at(g, r, r) / n_tokens + d->lambda;
    }
}

int damping_factor(damping *d, const kit_gram_matrix *g, double n_tokens, const bool *dead, const int32_t *at, int m,
                   double *h, dw_pool *pool, dw_err *err) {
    for (;; d->n_raised++, d->lambda *= 10) {
        fill(d, g, n_tokens, dead, at, m, h);
        const int row = spd_factor(h, m, pool);
        if (row == m) return 0;
        if (d->n_raised == DAMPING_TRIES)
            return dw_fail(err,
                           "layer %d: the Gram matrix has no Cholesky factor (row %d), even with %.3g times the median "
                           "added to its "
                           "diagonal; collect it again from more text",
                           g->layer, at ? at[row] : row, d->lambda / d->median);
    }
}

void damping_tell(const damping *d, int n, double n_tokens, const char *of, char text[DAMPING_WORDS]) {
    char dead[64] = "", few[96] = "";
    text[0] = 0;
    if (d->n_dead) snprintf(dead, sizeof dead, "; %d of %d %s are dead", d->n_dead, n, of);
    if (d->few_tokens) snprintf(few, sizeof few, "; %.0f tokens are few for %d %s: give more text", n_tokens, n, of);
    if (d->n_dead || d->few_tokens || d->n_raised)
        snprintf(text, DAMPING_WORDS, "damped by %.3g of the median square%s%s%s", d->lambda / d->median, dead, few,
                 d->n_raised ? "; a pivot was not positive" : "");
}

void damping_report_layer(damping_report *r, int layer, const damping *d, int n, double n_tokens) {
    char words[DAMPING_WORDS];
    if (!r) return;
    damping_tell(d, n, n_tokens, *r->what ? "inputs" : "neurons", words);
    if (strcmp(words, r->words) || layer != r->last + 1) {
        damping_report_end(r);
        r->first = layer;
        memcpy(r->words, words, sizeof words);
    }
    r->last = layer;
}

void damping_report_end(damping_report *r) {
    char text[DAMPING_WORDS + 48];
    if (!r->words[0]) return;
    if (r->first == r->last)
        snprintf(text, sizeof text, "layer %d%s: %s", r->first, r->what, r->words);
    else
        snprintf(text, sizeof text, "layers %d to %d%s: %s", r->first, r->last, r->what, r->words);
    r->tell(text);
    r->words[0] = 0;
}
