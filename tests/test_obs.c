/* test_obs.c - Gram matrices, exact selection and repair: identities of optimal brain surgeon, and what is said about
 * matrices that cannot be inverted. */
#include "build.h"
#include "prune/obs.h"
#include "prune/output_norm.h"
#include "prune/repair.h"
#include "prune/spd.h"
#include "test.h"

#include <cblas.h>
#include <lapacke.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- a layer with known activations ----------------------------------------------------------------------- */

typedef struct layer {
    int n, d, n_tokens;
    float *a, *v; // (n_tokens, n), (d, n)
    double *sum;  // packed
    kit_gram_matrix gram;
} layer;

static void sum_up(layer *x) {
    memset(x->sum, 0, kit_gram_packed(x->n) * sizeof *x->sum);
    for (int t = 0; t < x->n_tokens; t++)
        for (int i = 0; i < x->n; i++) {
            const float *a = x->a + (size_t)t * (size_t)x->n;
            double *row = x->sum + kit_gram_row(x->n, i);
            for (int k = i; k < x->n; k++) row[k] += (double)a[i] * (double)a[k];
        }
}

/* Correlated activations of very different sizes. */
static layer make_layer(int n, int d, int n_tokens, uint64_t seed) {
    layer x = {.n = n, .d = d, .n_tokens = n_tokens};
    const size_t nn = (size_t)n, rows = (size_t)n_tokens;
    dw_rng rng;
    dw_rng_seed(&rng, seed);
    x.a = calloc(rows * nn, sizeof *x.a);
    x.v = calloc((size_t)d * nn, sizeof *x.v);
    x.sum = calloc(kit_gram_packed(n), sizeof *x.sum);
    float *size = calloc(nn, sizeof *size);
    for (size_t j = 0; j < nn; j++) size[j] = (float)exp(dw_rng_normal(&rng));
    for (size_t t = 0; t < rows; t++) {
        const float common = (float)dw_rng_normal(&rng);
        for (size_t j = 0; j < nn; j++) {
            const float before = j ? x.a[t * nn + j - 1] / size[j - 1] : 0;
            x.a[t * nn + j] = size[j] * (0.6f * (float)dw_rng_normal(&rng) + 0.5f * before + 0.3f * common + 0.1f);
        }
    }
    for (size_t i = 0; i < (size_t)d * nn; i++) x.v[i] = (float)dw_rng_normal(&rng);
    free(size);
    sum_up(&x);
    x.gram = (kit_gram_matrix){.layer = 3, .input = KIT_STATS_FFN_NEURON, .n = n, .sum = x.sum};
    return x;
}

static void free_layer(layer *x) { free(x->a), free(x->v), free(x->sum); }

static obs_task task_of(const layer *x, int group, double damp) {
    return (obs_task){.gram = &x->gram,
                      .n_tokens = x->n_tokens,
                      .v = x->v,
                      .d = x->d,
                      .group = group,
                      .most_removed = x->n,
                      .damp = damp};
}

/* Kept neurons after `gone` groups of an order, ascending. */
static int kept_after(const obs_order *o, int n, int gone, int32_t *keep) {
    bool *is_gone = calloc((size_t)n, 1);
    const int group = n / o->n_group;
    for (int i = 0; i < gone; i++) memset(is_gone + o->group[i] * group, 1, (size_t)group);
    int n_keep = 0;
    for (int j = 0; j < n; j++)
        if (!is_gone[j]) keep[n_keep++] = j;
    free(is_gone);
    return n_keep;
}

/* ---- naive OBS: the inverse is computed anew after every removal ------------------------------------------ */

typedef struct naive {
    int n, d;
    const double *gamma; // (d, d): of the output's norm; NULL: the identity
    double *h; // (n, n), damped
    double *v; // (d, n)
    bool *gone;
    int32_t *at; // those that stay
    int m;
    double *inverse;
} naive;

static void invert_rest(naive *x) {
    x->m = 0;
    for (int j = 0; j < x->n; j++)
        if (!x->gone[j]) x->at[x->m++] = j;
    const size_t m = (size_t)x->m;
    for (size_t i = 0; i < m; i++)
        for (size_t k = 0; k < m; k++) x->inverse[i * m + k] = x->h[(size_t)x->at[i] * (size_t)x->n + (size_t)x->at[k]];
    if (!m) return;
    LAPACKE_dpotrf(LAPACK_ROW_MAJOR, 'L', x->m, x->inverse, x->m);
    LAPACKE_dpotri(LAPACK_ROW_MAJOR, 'L', x->m, x->inverse, x->m);
    for (size_t i = 0; i < m; i++)
        for (size_t k = i + 1; k < m; k++) x->inverse[i * m + k] = x->inverse[k * m + i];
}

/* s_j of the i-th that stays. */
static double naive_score(const naive *x, int i) {
    double square = 0;
    for (int r = 0; r < x->d; r++) {
        double weighted = x->gamma ? 0 : x->v[r * x->n + x->at[i]];
        for (int c = 0; c < x->d && x->gamma; c++) weighted += x->gamma[r * x->d + c] * x->v[c * x->n + x->at[i]];
        square += weighted * x->v[r * x->n + x->at[i]];
    }
    return square / x->inverse[(size_t)i * (size_t)x->m + (size_t)i];
}

/* Removes the one of the least score; returns the score. */
static double naive_step(naive *x, int *removed) {
    int least = 0;
    double score = INFINITY;
    for (int i = 0; i < x->m; i++)
        if (naive_score(x, i) < score) score = naive_score(x, i), least = i;
    for (int r = 0; r < x->d; r++) {
        const double factor = x->v[r * x->n + x->at[least]] / x->inverse[(size_t)least * (size_t)x->m + (size_t)least];
        for (int i = 0; i < x->m; i++)
            x->v[r * x->n + x->at[i]] -= factor * x->inverse[(size_t)least * (size_t)x->m + (size_t)i];
    }
    *removed = x->at[least];
    x->gone[x->at[least]] = true;
    invert_rest(x);
    return score;
}

static naive make_naive(const layer *l, double lambda) {
    const size_t n = (size_t)l->n;
    naive x = {.n = l->n,
               .d = l->d,
               .h = calloc(n * n, 8),
               .v = calloc((size_t)l->d * n, 8),
               .gone = calloc(n, 1),
               .at = calloc(n, 4),
               .inverse = calloc(n * n, 8)};
    for (int i = 0; i < l->n; i++)
        for (int k = 0; k < l->n; k++)
            x.h[i * l->n + k] = kit_gram_at(&l->gram, i, k) / l->n_tokens + (i == k ? lambda : 0);
    for (size_t i = 0; i < (size_t)l->d * n; i++) x.v[i] = (double)l->v[i];
    invert_rest(&x);
    return x;
}

static void free_naive(naive *x) { free(x->h), free(x->v), free(x->gone), free(x->at), free(x->inverse); }

static void check_against_naive(int n, int d, int block, int n_removed) {
    layer l = make_layer(n, d, 6 * n, (uint64_t)n);
    dw_err err = {0};
    obs_order o;
    obs_task t = task_of(&l, 1, 0.01);
    t.block = block;
    t.most_removed = n_removed;
    REQUIRE(!obs_select(&o, &t, two_threads(), &err), "%s", err.text);
    CHECK(o.n_removed == n_removed && o.n_group == n);
    naive x = make_naive(&l, o.damping.lambda);
    double sum = 0;
    int n_other = 0;
    for (int i = 0; i < n_removed; i++) {
        int removed;
        sum += naive_step(&x, &removed);
        n_other += removed != o.group[i];
        if (!CHECK(fabs(o.error[i] - sum) <= 1e-9 * sum, "width %d, removal %d: error %.15g, naive %.15g", n, i,
                   o.error[i], sum))
            break;
    }
    CHECK(!n_other, "width %d: %d of %d removals differ", n, n_other, n_removed);
    free_naive(&x);
    obs_order_release(&o);
    free_layer(&l);
}

static void like_naive(void) {
    check_against_naive(14, 5, 3, 14);
    check_against_naive(96, 20, 16, 96);
    check_against_naive(300, 40, 128, 250);
    check_against_naive(512, 64, 128, 400);
}

/* ---- another norm of the output --------------------------------------------------------------------------- */

enum { GRADIENT_D = 12 };

typedef struct covariance {
    double sum[GRADIENT_D * (GRADIENT_D + 1) / 2], damped[GRADIENT_D * GRADIENT_D]; // packed sum; mean and damping
    kit_gram_matrix matrix;
    int n_tokens;
} covariance;

/* Of correlated gradients of very different sizes. */
static void make_covariance(covariance *c, int n_tokens) {
    enum { D = GRADIENT_D };
    double g[D], trace = 0;
    dw_rng rng;
    dw_rng_seed(&rng, 77);
    memset(c, 0, sizeof *c);
    for (int t = 0; t < n_tokens; t++) {
        const double common = dw_rng_normal(&rng);
        for (int i = 0; i < D; i++) g[i] = exp(0.5 * i - 3) * (dw_rng_normal(&rng) + common);
        for (int i = 0; i < D; i++)
            for (int k = i; k < D; k++) c->sum[kit_gram_row(D, i) + (size_t)k] += g[i] * g[k];
    }
    c->n_tokens = n_tokens;
    c->matrix = (kit_gram_matrix){.layer = 3, .input = KIT_GRAM_GRADIENT, .n = D, .sum = c->sum};
    for (int i = 0; i < D; i++) trace += kit_gram_at(&c->matrix, i, i) / n_tokens;
    for (int i = 0; i < D; i++)
        for (int k = 0; k < D; k++)
            c->damped[i * D + k] = kit_gram_at(&c->matrix, i, k) / n_tokens + (i == k ? 1e-3 * trace / D : 0);
}

static float *weighted_columns(const layer *l, const covariance *c) {
    dw_err err = {0};
    const size_t size = (size_t)l->d * (size_t)l->n * sizeof(float);
    float *v = malloc(size);
    memcpy(v, l->v, size);
    CHECK(!output_norm_apply(&c->matrix, c->n_tokens, v, l->n, two_threads(), &err), "%s", err.text);
    return v;
}

/* Scores v_j^T Gamma v_j / (2 [H^-1]_jj), the inverse computed anew after every removal. */
static void weighted_like_naive(void) {
    enum { N = 150, REMOVED = 120 };
    layer l = make_layer(N, GRADIENT_D, 6 * N, 9);
    covariance c;
    make_covariance(&c, 300);
    dw_err err = {0};
    obs_order o, plain;
    obs_task t = task_of(&l, 1, 0.01);
    t.most_removed = REMOVED;
    REQUIRE(!obs_select(&plain, &t, two_threads(), &err), "%s", err.text);
    float *v = weighted_columns(&l, &c);
    t.v = v;
    REQUIRE(!obs_select(&o, &t, two_threads(), &err), "%s", err.text);
    naive x = make_naive(&l, o.damping.lambda);
    x.gamma = c.damped;
    double sum = 0;
    int n_other = 0, n_plain = 0;
    for (int i = 0; i < REMOVED; i++) {
        int removed;
        sum += 0.5 * naive_step(&x, &removed);
        n_other += removed != o.group[i];
        n_plain += removed == plain.group[i];
        if (!CHECK(fabs(o.error[i] - sum) <= 1e-5 * sum, "removal %d: error %.12g, naive %.12g", i, o.error[i], sum))
            break;
    }
    CHECK(!n_other, "%d of %d removals differ", n_other, REMOVED);
    CHECK(n_plain < REMOVED / 2, "%d of %d removals as without weights", n_plain, REMOVED);
    free(v);
    free_naive(&x);
    obs_order_release(&o), obs_order_release(&plain);
    free_layer(&l);
}

/* tr(Gamma D H D^T) / 2 for the change D of down that a repair makes. */
static double weighted_change(const layer *l, const covariance *c, double lambda, const int32_t *keep, int n_keep,
                              const float *v_new) {
    enum { D = GRADIENT_D };
    const size_t n = (size_t)l->n;
    double *change = calloc(D * n, sizeof *change), *times_h = calloc(D * n, sizeof *times_h), sum = 0;
    for (size_t i = 0; i < D * n; i++) change[i] = -(double)l->v[i];
    for (int r = 0; r < D; r++)
        for (int s = 0; s < n_keep; s++) change[(size_t)r * n + (size_t)keep[s]] += (double)v_new[r * n_keep + s];
    for (int r = 0; r < D; r++)
        for (int i = 0; i < l->n; i++)
            for (int k = 0; k < l->n; k++)
                times_h[(size_t)r * n + (size_t)i] += change[(size_t)r * n + (size_t)k] *
                                                      (kit_gram_at(&l->gram, i, k) / l->n_tokens +
                                                       (i == k ? lambda : 0));
    for (int r = 0; r < D; r++)
        for (int q = 0; q < D; q++)
            for (size_t i = 0; i < n; i++)
                sum += 0.5 * c->damped[r * D + q] * change[(size_t)r * n + i] * times_h[(size_t)q * n + i];
    free(change), free(times_h);
    return sum;
}

/* The scores' sum is the weighted error of the unweighted repair, and no other values of the kept columns have less. */
static void repair_ignores_weights(void) {
    enum { N = 60, D = GRADIENT_D };
    layer l = make_layer(N, D, 700, 4);
    covariance c;
    make_covariance(&c, 200);
    dw_err err = {0};
    obs_order o;
    static float v_new[N * D];
    int32_t keep[N];
    float *v = weighted_columns(&l, &c);
    obs_task t = task_of(&l, 1, 0.01);
    t.v = v;
    REQUIRE(!obs_select(&o, &t, two_threads(), &err), "%s", err.text);
    for (int gone = 10; gone < N; gone += 20) {
        const int n_keep = kept_after(&o, N, gone, keep);
        const repair_task r = {
            .gram = &l.gram, .n_tokens = l.n_tokens, .v = l.v, .d = D, .keep = keep, .n_keep = n_keep, .damp = 0.01};
        REQUIRE(!repair_least_squares(&r, v_new, NULL, two_threads(), &err), "%s", err.text);
        const double least = weighted_change(&l, &c, o.damping.lambda, keep, n_keep, v_new);
        CHECK(fabs(least - o.error[gone - 1]) <= 1e-5 * least, "%d gone: %.9g, scores %.9g", gone, least,
              o.error[gone - 1]);
        dw_rng rng;
        dw_rng_seed(&rng, 3);
        for (int i = 0; i < n_keep * D; i++) v_new[i] += 0.02f * (float)dw_rng_normal(&rng);
        CHECK(weighted_change(&l, &c, o.damping.lambda, keep, n_keep, v_new) > least, "%d gone", gone);
    }
    free(v);
    obs_order_release(&o);
    free_layer(&l);
}

/* ---- selection in float, as wide layers have it ----------------------------------------------------------- */

/* Neurons that one order has removed after n steps and the other has not. */
static int n_different(const obs_order *a, const obs_order *b, int n) {
    bool *gone = calloc((size_t)a->n_group, 1);
    int differ = 0;
    for (int i = 0; i < n; i++) gone[a->group[i]] = true;
    for (int i = 0; i < n; i++) differ += !gone[b->group[i]];
    free(gone);
    return differ;
}

/* Near ties may be decided otherwise, which costs next to nothing: the errors agree to 1e-5 after every removal, and at
 * most one in a hundred of those that are gone differs. */
static void check_float(int n, int d, int group, int block) {
    layer l = make_layer(n, d, 6 * n, (uint64_t)n + 1);
    dw_err err = {0};
    obs_order wide, narrow;
    obs_task t = task_of(&l, group, 0.01);
    t.block = block;
    t.most_removed = n / group * 3 / 4;
    REQUIRE(!obs_select(&wide, &t, two_threads(), &err), "%s", err.text);
    t.most_f64 = -1;
    REQUIRE(!obs_select(&narrow, &t, two_threads(), &err), "%s", err.text);
    CHECK(memcmp(wide.error, narrow.error, (size_t)wide.n_removed * sizeof *wide.error), "nothing was in float");
    for (int i = 0; i < wide.n_removed; i++)
        if (!CHECK(fabs(narrow.error[i] - wide.error[i]) <= 1e-5 * wide.error[i],
                   "width %d, removal %d: error %.9g in float, %.9g in double", n, i, narrow.error[i], wide.error[i]))
            break;
    for (int i = wide.n_removed / 8; i <= wide.n_removed; i += wide.n_removed / 8) {
        const int other = n_different(&wide, &narrow, i);
        CHECK(other * 100 <= i, "width %d: %d of %d removals differ", n, other, i);
    }
    obs_order_release(&wide);
    obs_order_release(&narrow);
    free_layer(&l);
}

/* Float beside a new inverse in double after every removal of the same neuron. */
static void check_float_naive(int n, int d, int n_removed) {
    layer l = make_layer(n, d, 6 * n, (uint64_t)n);
    dw_err err = {0};
    obs_order o;
    obs_task t = task_of(&l, 1, 0.01);
    t.most_f64 = -1;
    t.most_removed = n_removed;
    REQUIRE(!obs_select(&o, &t, two_threads(), &err), "%s", err.text);
    naive x = make_naive(&l, o.damping.lambda);
    double sum = 0;
    int n_other = 0;
    for (int i = 0; i < n_removed; i++) {
        int removed;
        sum += naive_step(&x, &removed);
        n_other += removed != o.group[i];
        CHECK(fabs(o.error[i] - sum) <= 1e-5 * sum, "width %d, removal %d: error %.9g in float, naive %.9g", n, i,
              o.error[i], sum);
    }
    CHECK(n_other * 100 <= n_removed, "width %d: %d of %d removals differ", n, n_other, n_removed);
    free_naive(&x);
    obs_order_release(&o);
    free_layer(&l);
}

/* Uncorrelated gradients of equal size weigh nothing: the plain order, in half of their mean square. */
static void equal_weights(void) {
    enum { N = 80, D = GRADIENT_D };
    layer l = make_layer(N, D, 500, 6);
    covariance c = {.n_tokens = 10, .matrix = {.layer = 3, .input = KIT_GRAM_GRADIENT, .n = D}};
    for (int i = 0; i < D; i++) c.sum[kit_gram_row(D, i) + (size_t)i] = 40; // mean square 4
    c.matrix.sum = c.sum;
    dw_err err = {0};
    obs_order o[2];
    obs_task t = task_of(&l, 1, 0.01);
    REQUIRE(!obs_select(&o[0], &t, two_threads(), &err), "%s", err.text);
    float *v = weighted_columns(&l, &c);
    t.v = v;
    REQUIRE(!obs_select(&o[1], &t, two_threads(), &err), "%s", err.text);
    for (int i = 0; i < N; i++)
        CHECK(o[0].group[i] == o[1].group[i] && fabs(o[1].error[i] - 2.002 * o[0].error[i]) <= 1e-5 * o[1].error[i],
              "removal %d", i);
    for (int i = 0; i < D; i++) c.sum[kit_gram_row(D, i) + (size_t)i] = 0;
    CHECK(output_norm_apply(&c.matrix, 10, v, N, two_threads(), &err));
    check_sentence(&err, "layer 3: the gradients by the FFN's output have the mean square 0", "no gradients");
    free(v);
    obs_order_release(&o[0]), obs_order_release(&o[1]);
    free_layer(&l);
}

static void in_float(void) {
    check_float(512, 64, 1, 128);
    check_float(700, 100, 1, 0);
    check_float(512, 40, 8, 64);
    check_float_naive(256, 48, 200);
}

/* ---- groups ----------------------------------------------------------------------------------------------- */

/* tr(V_P ([H^-1]_PP)^-1 V_P^T): the least error of removing all of P from the whole layer. */
static double joint_error(const layer *l, double lambda, const bool *gone) {
    naive x = make_naive(l, lambda);
    const int n = l->n;
    int p[64], m = 0;
    for (int j = 0; j < n; j++)
        if (gone[j]) p[m++] = j;
    double block[64 * 64], solved[64];
    for (int i = 0; i < m; i++)
        for (int k = 0; k < m; k++) block[i * m + k] = x.inverse[(size_t)p[i] * (size_t)n + (size_t)p[k]];
    LAPACKE_dpotrf(LAPACK_ROW_MAJOR, 'L', m, block, m);
    double sum = 0;
    for (int r = 0; r < l->d; r++) {
        for (int i = 0; i < m; i++) solved[i] = (double)l->v[r * n + p[i]];
        LAPACKE_dpotrs(LAPACK_ROW_MAJOR, 'L', m, 1, block, m, solved, 1);
        for (int i = 0; i < m; i++) sum += solved[i] * (double)l->v[r * n + p[i]];
    }
    free_naive(&x);
    return sum;
}

/* Every step removes the group that adds least to the joint error of all that is gone. */
static void groups(void) {
    enum { N = 48, GROUP = 8 };
    layer l = make_layer(N, 10, 400, 5);
    dw_err err = {0};
    obs_order o;
    obs_task t = task_of(&l, GROUP, 0.01);
    t.block = 16;
    REQUIRE(!obs_select(&o, &t, two_threads(), &err), "%s", err.text);
    bool gone[N] = {0};
    double before = 0;
    for (int i = 0; i < N / GROUP; i++) {
        double least = INFINITY;
        for (int p = 0; p < N / GROUP; p++) {
            if (gone[p * GROUP]) continue;
            memset(gone + p * GROUP, 1, GROUP);
            const double error = joint_error(&l, o.damping.lambda, gone);
            if (p == o.group[i])
                CHECK(fabs(error - o.error[i]) <= 1e-9 * error, "step %d: %.15g, closed form %.15g", i, o.error[i],
                      error);
            least = fmin(least, error);
            memset(gone + p * GROUP, 0, GROUP);
        }
        CHECK(o.error[i] <= least * (1 + 1e-9) && o.error[i] >= before, "step %d: %.15g, best group %.15g", i,
              o.error[i], least);
        memset(gone + o.group[i] * GROUP, 1, GROUP);
        before = o.error[i];
    }
    obs_order_release(&o);
    free_layer(&l);
}

/* ---- errors ----------------------------------------------------------------------------------------------- */

/* Mean over the tokens of ||V a - V' a_S||^2. */
static double measured_error(const layer *l, const int32_t *keep, int n_keep, const float *v_new) {
    double sum = 0;
    for (int t = 0; t < l->n_tokens; t++) {
        const float *a = l->a + (size_t)t * (size_t)l->n;
        for (int r = 0; r < l->d; r++) {
            double y = 0;
            for (int j = 0; j < l->n; j++) y += (double)l->v[r * l->n + j] * (double)a[j];
            for (int s = 0; s < n_keep; s++) y -= (double)v_new[r * n_keep + s] * (double)a[keep[s]];
            sum += y * y;
        }
    }
    return sum / l->n_tokens;
}

static double squared_change(const layer *l, const int32_t *keep, int n_keep, const float *v_new) {
    double sum = 0;
    for (int r = 0; r < l->d; r++)
        for (int j = 0, s = 0; j < l->n; j++) {
            const bool stays = s < n_keep && keep[s] == j;
            const double change = (double)l->v[r * l->n + j] - (stays ? (double)v_new[r * n_keep + s] : 0);
            sum += change * change;
            s += stays;
        }
    return sum;
}

/* E(P) = measured error of the repaired layer + lambda ||V - V'||^2, for every level of one run. */
static void error_is_measured(void) {
    enum { N = 96, D = 24 };
    layer l = make_layer(N, D, 900, 8);
    dw_err err = {0};
    obs_order o;
    static float v_new[N * D];
    int32_t keep[N];
    double last = 0;
    obs_task t = task_of(&l, 1, 1e-3);
    REQUIRE(!obs_select(&o, &t, two_threads(), &err), "%s", err.text);
    for (int gone = 8; gone < N; gone += 8) {
        const int n_keep = kept_after(&o, N, gone, keep);
        repair_task r = {
            .gram = &l.gram, .n_tokens = l.n_tokens, .v = l.v, .d = D, .keep = keep, .n_keep = n_keep, .damp = 1e-3};
        REQUIRE(!repair_least_squares(&r, v_new, NULL, two_threads(), &err), "%s", err.text);
        const double error = measured_error(&l, keep, n_keep, v_new),
                     ridge = o.damping.lambda * squared_change(&l, keep, n_keep, v_new);
        CHECK(fabs(error + ridge - o.error[gone - 1]) <= 1e-4 * o.error[gone - 1],
              "%d gone: measured %.9g + %.3g, scores %.9g", gone, error, ridge, o.error[gone - 1]);
        CHECK(error > last, "%d gone: the error falls from %.9g to %.9g", gone, last, error);
        last = error;
    }
    obs_order_release(&o);
    free_layer(&l);
}

/* ||v_j||^2 / [H^-1]_jj <= ||v_j||^2 H_jj; and equal ones where nothing is correlated. */
static void not_above_energy(void) {
    enum { N = 64 };
    layer l = make_layer(N, 12, 500, 2);
    dw_err err = {0};
    obs_order o;
    obs_task t = task_of(&l, 1, 0.01);
    t.most_removed = 0; // the order lists first scores
    REQUIRE(!obs_select(&o, &t, two_threads(), &err), "%s", err.text);
    for (int i = 0; i < N; i++) {
        const int j = o.group[i];
        double square = 0;
        for (int r = 0; r < l.d; r++) square += (double)l.v[r * N + j] * (double)l.v[r * N + j];
        const double energy = square * (kit_gram_at(&l.gram, j, j) / l.n_tokens + o.damping.lambda),
                     score = o.error[i] - (i ? o.error[i - 1] : 0);
        CHECK(score <= energy * (1 + 1e-12) && score > 0, "neuron %d: obs %.9g, energy %.9g", j, score, energy);
    }
    obs_order_release(&o);
    for (int i = 0; i < N; i++)
        for (int k = i + 1; k < N; k++) l.sum[kit_gram_row(N, i) + (size_t)k] = 0;
    REQUIRE(!obs_select(&o, &t, two_threads(), &err), "%s", err.text);
    for (int i = 0; i < N; i++) {
        const int j = o.group[i];
        double square = 0;
        for (int r = 0; r < l.d; r++) square += (double)l.v[r * N + j] * (double)l.v[r * N + j];
        const double energy = square * (kit_gram_at(&l.gram, j, j) / l.n_tokens + o.damping.lambda),
                     score = o.error[i] - (i ? o.error[i - 1] : 0);
        CHECK(fabs(score - energy) <= 1e-6 * energy, "neuron %d: obs %.9g, energy %.9g", j, score, energy);
    }
    obs_order_release(&o);
    free_layer(&l);
}

/* ---- repair ----------------------------------------------------------------------------------------------- */

/* V'_S = (V C_:S + lambda V_S) (C_SS + lambda I)^-1, solved by LAPACK. */
static void repair_directly(void) {
    enum { N = 60, D = 9, KEPT = 37 };
    layer l = make_layer(N, D, 700, 4);
    dw_err err = {0};
    int32_t keep[KEPT];
    float v_new[D * KEPT];
    damping info;
    for (int s = 0; s < KEPT; s++) keep[s] = s * 3 / 2 + (s > 30);
    const repair_task r = {
        .gram = &l.gram, .n_tokens = l.n_tokens, .v = l.v, .d = D, .keep = keep, .n_keep = KEPT, .damp = 0.02};
    REQUIRE(!repair_least_squares(&r, v_new, &info, two_threads(), &err), "%s", err.text);
    double h[KEPT * KEPT], x[KEPT * D];
    for (int i = 0; i < KEPT; i++) {
        for (int k = 0; k < KEPT; k++)
            h[i * KEPT + k] = kit_gram_at(&l.gram, keep[i], keep[k]) / l.n_tokens + (i == k ? info.lambda : 0);
        for (int c = 0; c < D; c++) {
            x[i * D + c] = info.lambda * (double)l.v[c * N + keep[i]];
            for (int j = 0; j < N; j++)
                x[i * D + c] += (double)l.v[c * N + j] * kit_gram_at(&l.gram, j, keep[i]) / l.n_tokens;
        }
    }
    int pivot[KEPT];
    CHECK(!LAPACKE_dgesv(LAPACK_ROW_MAJOR, KEPT, D, h, KEPT, pivot, x, D));
    for (int c = 0; c < D; c++)
        for (int s = 0; s < KEPT; s++)
            CHECK(fabs((double)v_new[c * KEPT + s] - x[s * D + c]) <= 1e-6 * (1 + fabs(x[s * D + c])),
                  "row %d, neuron %d: %.9g, solved directly %.9g", c, keep[s], (double)v_new[c * KEPT + s],
                  x[s * D + c]);
    free_layer(&l);
}

static void nothing_removed(void) {
    enum { N = 40, D = 7 };
    layer l = make_layer(N, D, 300, 6);
    dw_err err = {0};
    int32_t keep[N];
    float v_new[N * D];
    for (int j = 0; j < N; j++) keep[j] = j;
    const repair_task r = {.gram = &l.gram, .n_tokens = l.n_tokens, .v = l.v, .d = D, .keep = keep, .n_keep = N};
    REQUIRE(!repair_least_squares(&r, v_new, NULL, two_threads(), &err), "%s", err.text);
    CHECK(!memcmp(v_new, l.v, sizeof v_new));
    free_layer(&l);
}

/* Sums of a_S R^T with R = V_P a_P are what the Gram matrix gives. */
static void cross_sums(void) {
    enum { N = 50, D = 8, KEPT = 30 };
    layer l = make_layer(N, D, 400, 9);
    dw_err err = {0};
    int32_t keep[KEPT];
    float by_gram[D * KEPT], by_sums[D * KEPT];
    double cross[KEPT * D] = {0};
    for (int s = 0; s < KEPT; s++) keep[s] = s + (s >= 15 ? 20 : 0);
    for (int t = 0; t < l.n_tokens; t++)
        for (int c = 0; c < D; c++) {
            double rest = 0;
            for (int j = 15; j < 35; j++) rest += (double)l.v[c * N + j] * (double)l.a[t * N + j];
            for (int s = 0; s < KEPT; s++) cross[s * D + c] += rest * (double)l.a[t * N + keep[s]];
        }
    repair_task r = {.gram = &l.gram, .n_tokens = l.n_tokens, .v = l.v, .d = D, .keep = keep, .n_keep = KEPT};
    REQUIRE(!repair_least_squares(&r, by_gram, NULL, two_threads(), &err), "%s", err.text);
    r.cross = cross;
    REQUIRE(!repair_least_squares(&r, by_sums, NULL, two_threads(), &err), "%s", err.text);
    for (int i = 0; i < D * KEPT; i++)
        CHECK(fabs((double)(by_gram[i] - by_sums[i])) <= 1e-5 * (1 + fabs((double)by_gram[i])), "%g and %g",
              (double)by_gram[i], (double)by_sums[i]);
    free_layer(&l);
}

/* ---- matrices that cannot be inverted --------------------------------------------------------------------- */

static bool finite_order(const obs_order *o) {
    bool ok = true;
    for (int i = 0; i < o->n_group; i++)
        ok = ok && isfinite(o->error[i]) && (!i || o->error[i] >= o->error[i - 1] * (1 - 1e-9));
    return ok;
}

static char told_lines[400];

static void add_line(const char *text) { strcat(strcat(told_lines, text), "\n"); }

/* Layers 0 and 1 say the same, layer 2 says nothing, layer 3 something else. */
static void reported_together(void) {
    damping_report r = {.tell = add_line, .what = ""};
    const damping few = {.median = 1, .lambda = 0.5, .few_tokens = true}, good = {.median = 1, .lambda = 0.01};
    *told_lines = 0;
    damping_report_layer(&r, 0, &few, 8, 4);
    damping_report_layer(&r, 1, &few, 8, 4);
    damping_report_layer(&r, 2, &good, 8, 400);
    damping_report_layer(&r, 3, &few, 8, 5);
    damping_report_end(&r);
    r.what = ", heads";
    damping_report_layer(&r, 4, &few, 8, 6);
    damping_report_end(&r);
    CHECK(!strcmp(told_lines, "layers 0 to 1: damped by 0.5 of the median square; 4 tokens are few for 8 neurons: give "
                              "more text\n"
                              "layer 3: damped by 0.5 of the median square; 5 tokens are few for 8 neurons: give more "
                              "text\n"
                              "layer 4, heads: damped by 0.5 of the median square; 6 tokens are few for 8 inputs: give "
                              "more text\n"),
          "%s", told_lines);
}

static void few_tokens(void) {
    enum { N = 80, D = 10, T = 20 };
    layer l = make_layer(N, D, T, 3);
    dw_err err = {0};
    obs_order o;
    char told[DAMPING_WORDS];
    const obs_task t = task_of(&l, 1, 0.01);
    REQUIRE(!obs_select(&o, &t, two_threads(), &err), "%s", err.text);
    CHECK(o.damping.few_tokens && fabs(o.damping.lambda / o.damping.median - 0.01 * 5 * N / T) < 1e-12, "damped by %g",
          o.damping.lambda / o.damping.median);
    damping_tell(&o.damping, N, T, "neurons", told);
    CHECK(strstr(told, "20 tokens are few for 80 neurons"), "%s", told);
    CHECK(finite_order(&o));
    obs_order_release(&o);
    free_layer(&l);
}

static void dead_neurons(void) {
    enum { N = 64, D = 8 };
    layer l = make_layer(N, D, 600, 7);
    dw_err err = {0};
    obs_order o;
    float v_new[D * N];
    int32_t keep[N];
    char told[DAMPING_WORDS];
    for (int t = 0; t < l.n_tokens; t++) l.a[t * N + 5] = l.a[t * N + 40] = 0;
    sum_up(&l);
    const obs_task t = task_of(&l, 1, 0.01);
    REQUIRE(!obs_select(&o, &t, two_threads(), &err), "%s", err.text);
    CHECK(o.group[0] == 5 && o.group[1] == 40 && o.error[1] == 0, "the first are %d and %d, error %g", o.group[0],
          o.group[1], o.error[1]);
    CHECK(o.damping.n_dead == 2 && finite_order(&o));
    damping_tell(&o.damping, N, l.n_tokens, "neurons", told);
    CHECK(strstr(told, "2 of 64 neurons are dead"), "%s", told);
    const int n_keep = kept_after(&o, N, 30, keep) - 1;
    keep[n_keep] = 40; // a dead one that stays keeps its column
    for (int i = n_keep; i && keep[i - 1] > keep[i]; i--) {
        const int32_t other = keep[i];
        keep[i] = keep[i - 1], keep[i - 1] = other;
    }
    const repair_task r = {
        .gram = &l.gram, .n_tokens = l.n_tokens, .v = l.v, .d = D, .keep = keep, .n_keep = n_keep + 1};
    REQUIRE(!repair_least_squares(&r, v_new, NULL, two_threads(), &err), "%s", err.text);
    for (int s = 0; s <= n_keep; s++)
        if (keep[s] == 40) CHECK(v_new[s] == l.v[40], "%g, before %g", (double)v_new[s], (double)l.v[40]);
    obs_order_release(&o);
    free_layer(&l);
}

/* Two equal neurons: each alone is free, both are not; the one that stays gets the sum of the columns. */
static void twins(void) {
    enum { N = 40, D = 6 };
    layer l = make_layer(N, D, 500, 12);
    dw_err err = {0};
    obs_order o;
    float v_new[D * N];
    int32_t keep[N];
    for (int t = 0; t < l.n_tokens; t++) l.a[t * N + 7] = l.a[t * N + 21];
    sum_up(&l);
    const obs_task t = task_of(&l, 1, 1e-6);
    REQUIRE(!obs_select(&o, &t, two_threads(), &err), "%s", err.text);
    CHECK((o.group[0] == 7 || o.group[0] == 21) && o.group[1] != 7 && o.group[1] != 21, "first %d, then %d", o.group[0],
          o.group[1]);
    CHECK(o.error[0] < 1e-3 * (o.error[1] - o.error[0]), "%g, then %g", o.error[0], o.error[1]);
    const int n_keep = kept_after(&o, N, 1, keep), other = o.group[0] == 7 ? 21 : 7;
    const repair_task r = {
        .gram = &l.gram, .n_tokens = l.n_tokens, .v = l.v, .d = D, .keep = keep, .n_keep = n_keep, .damp = 1e-6};
    REQUIRE(!repair_least_squares(&r, v_new, NULL, two_threads(), &err), "%s", err.text);
    for (int s = 0; s < n_keep; s++)
        if (keep[s] == other)
            CHECK(fabs((double)(v_new[s] - l.v[7] - l.v[21])) < 1e-3, "%g, expected %g", (double)v_new[s],
                  (double)(l.v[7] + l.v[21]));
    obs_order_release(&o);
    free_layer(&l);
}

static void refusals(void) {
    enum { N = 24 };
    layer l = make_layer(N, 4, 100, 1);
    dw_err err = {0};
    obs_order o;
    obs_task t = task_of(&l, 1, 0.01);
    t.group = 7;
    CHECK(obs_select(&o, &t, two_threads(), &err));
    check_sentence(&err, "24 neurons are not a multiple of the group size 7", "a group that does not divide");
    t.group = 1;
    l.v[9] = NAN;
    err = (dw_err){0};
    CHECK(obs_select(&o, &t, two_threads(), &err));
    check_sentence(&err, "layer 3: down holds NaN", "NaN in down");
    l.v[9] = 1;
    l.sum[kit_gram_row(N, 2) + 5] = NAN;
    err = (dw_err){0};
    CHECK(obs_select(&o, &t, two_threads(), &err));
    check_sentence(&err, "no Cholesky factor", "NaN in the Gram matrix");
    l.sum[kit_gram_row(N, 2) + 5] = 0;
    t.n_tokens = 1e-320; // the median is infinite then
    err = (dw_err){0};
    CHECK(obs_select(&o, &t, two_threads(), &err));
    check_sentence(&err, "the damping would be 0.01 times the median square inf", "a damping that is not finite");
    t.n_tokens = l.n_tokens;
    memset(l.sum, 0, kit_gram_packed(N) * sizeof *l.sum);
    err = (dw_err){0};
    CHECK(obs_select(&o, &t, two_threads(), &err));
    check_sentence(&err, "all 24 inputs are 0", "zeros");
    free_layer(&l);
}

/* A matrix with a negative eigenvalue, as rounding makes: the damping grows until all pivots are positive. */
static void raised_damping(void) {
    enum { N = 30 };
    layer l = make_layer(N, 4, 400, 1);
    dw_err err = {0};
    obs_order o;
    char told[DAMPING_WORDS];
    const obs_task t = task_of(&l, 1, 1e-3);
    const double a = kit_gram_at(&l.gram, 3, 3), b = kit_gram_at(&l.gram, 20, 20);
    l.sum[kit_gram_row(N, 3) + 20] = 1.02 * sqrt(a * b);
    REQUIRE(!obs_select(&o, &t, two_threads(), &err), "%s", err.text);
    CHECK(o.damping.n_raised > 0 && finite_order(&o));
    damping_tell(&o.damping, N, l.n_tokens, "neurons", told);
    CHECK(strstr(told, "a pivot was not positive"), "%s", told);
    obs_order_release(&o);
    free_layer(&l);
}

/* ---- threads, permutations -------------------------------------------------------------------------------- */

static void any_threads(void) {
    enum { N = 600, D = 30 };
    layer l = make_layer(N, D, 1500, 21);
    dw_err err = {0};
    obs_order one, three;
    const obs_task t = task_of(&l, 1, 0.01);
    dw_pool *pool1 = dw_pool_new(1, &err), *pool3 = dw_pool_new(3, &err);
    REQUIRE(pool1 && pool3 && !obs_select(&one, &t, pool1, &err) && !obs_select(&three, &t, pool3, &err), "%s",
            err.text);
    CHECK(!memcmp(one.group, three.group, N * sizeof *one.group) &&
          !memcmp(one.error, three.error, N * sizeof *one.error));
    double score[N], last = -1;
    obs_scores(&one, score);
    for (int i = 0; i < N; i++) {
        CHECK(score[one.group[i]] > last, "score %d", i);
        last = score[one.group[i]];
    }
    obs_order_release(&one);
    obs_order_release(&three);
    dw_pool_free(pool1);
    dw_pool_free(pool3);
    free_layer(&l);
}

static void inverse_of(int n) {
    layer l = make_layer(n, 1, 3 * n, 33);
    dw_err err = {0};
    const size_t nn = (size_t)n;
    double *h = calloc(nn * nn, 8), *factor = calloc(nn * nn, 8), *inverse = calloc(nn * nn, 8), worst = 0;
    for (size_t i = 0; i < nn; i++)
        for (size_t k = 0; k < nn; k++)
            h[i * nn + k] = factor[i * nn + k] = kit_gram_at(&l.gram, (int)i, (int)k) / l.n_tokens + (i == k ? 0.1 : 0);
    CHECK(spd_factor(factor, n, two_threads()) == n && !spd_inverse(factor, n, inverse, two_threads(), &err), "%s",
          err.text);
    for (size_t i = 0; i < nn; i++)
        for (size_t k = i + 1; k < nn; k++) inverse[i * nn + k] = inverse[k * nn + i];
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, h, n, inverse, n, 0, factor, n);
    for (size_t i = 0; i < nn; i++)
        for (size_t k = 0; k < nn; k++) worst = fmax(worst, fabs(factor[i * nn + k] - (i == k)));
    CHECK(worst < 1e-9, "width %d: H H^-1 differs from 1 by %g", n, worst);
    free(h), free(factor), free(inverse);
    free_layer(&l);
}

static void inverses(void) {
    inverse_of(1);
    inverse_of(255);
    inverse_of(700);
}

static const test_case cases[] = {
    {"exact selection equals naive OBS with a new inverse after every removal, in order and error", like_naive},
    {"errors of the output are weighted by gradients as naive OBS with that norm does", weighted_like_naive},
    {"the least-squares repair is the best for any weights, and the scores are its weighted error",
     repair_ignores_weights},
    {"equal gradients weigh nothing, and gradients of 0 are refused", equal_weights},
    {"selection in float, as layers wider than 8192 have it, equals the one in double to 1e-5 of the error", in_float},
    {"groups are removed by the closed form of their joint error", groups},
    {"the error of scores is the measured error of the repaired layer, for every level of one run", error_is_measured},
    {"a score is at most the energy, and equals it where nothing is correlated", not_above_energy},
    {"a repair equals a direct solve with the ridge towards the original", repair_directly},
    {"a repair after which nothing is missing changes no bit", nothing_removed},
    {"a repair from sums over tokens equals one from the Gram matrix", cross_sums},
    {"fewer tokens than neurons: damped more, and said", few_tokens},
    {"layers of which the same is said share a line", reported_together},
    {"dead neurons go first, at no cost, and change nothing else", dead_neurons},
    {"of two equal neurons one is free and both are not", twins},
    {"matrices with NaN, without any value, and groups that do not divide are refused", refusals},
    {"a pivot that is not positive raises the damping, and that is said", raised_damping},
    {"order and errors do not depend on the number of threads", any_threads},
    {"inverses by tiles, of any width", inverses},
    {0}};

TEST_MAIN(cases)
