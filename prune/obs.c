/* obs.c - optimal brain surgeon for the inputs of down: preparation, and the order that comes out (obs.h). */
#include "prune/obs_own.h"

#include "prune/spd.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The same loops for wider vectors; without fused products every level gives the same bits. */
#if defined(__x86_64__) && defined(__gnu_linux__)
#define WIDE __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define WIDE
#endif

#define REAL double
#define NAME(name) name##_f64
#define GEMM cblas_dgemm
#include "prune/obs_body.inc"
#undef REAL
#undef NAME
#undef GEMM

#define REAL float
#define NAME(name) name##_f32
#define GEMM cblas_sgemm
#include "prune/obs_body.inc"

void obs_order_release(obs_order *o) {
    free(o->group);
    free(o->error);
    *o = (obs_order){0};
}

static int make_order(obs_order *o, const obs_task *t, dw_err *err) {
    const int n = t->gram->n;
    if (t->group < 1 || n % t->group)
        return dw_fail(err,
                       "layer %d: %d neurons are not a multiple of the group size %d; give a --group that divides them",
                       t->gram->layer, n, t->group);
    *o = (obs_order){.n_group = n / t->group};
    o->group = dw_alloc((size_t)o->n_group, sizeof *o->group, "an order of neurons", err);
    o->error = dw_alloc((size_t)o->n_group, sizeof *o->error, "an order of neurons", err);
    return o->group && o->error ? 0 : -1;
}

/* H' = D^-1/2 H D^-1/2 has a unit diagonal, V' = V D^1/2.  Of the inverse: multiplied from both sides by D^1/2. */
static void scale_inverse(double *inverse, int n, const double *root) {
    for (int i = 0; i < n; i++)
        for (int k = 0; k <= i; k++) inverse[(size_t)i * (size_t)n + (size_t)k] *= root[i] * root[k];
}

/* Square roots of the diagonal of H, before it is factored. */
static void roots_of(double *root, const obs_task *t, const damping *d, const bool *dead) {
    for (int j = 0; j < t->gram->n; j++)
        root[j] = sqrt(dead[j] ? d->median : kit_gram_at(t->gram, j, j) / t->n_tokens + d->lambda);
}

static int check_weights(const obs_task *t, dw_err *err) {
    const size_t n = (size_t)t->d * (size_t)t->gram->n;
    for (size_t i = 0; i < n; i++)
        if (!isfinite(t->v[i]))
            return dw_fail(err, "layer %d: down holds NaN or infinity; the model is damaged", t->gram->layer);
    return 0;
}

typedef struct arrays {
    bool *dead;
    double *root, *h, *inverse;
} arrays;

static int prepare(arrays *a, obs_order *o, const obs_task *t, dw_pool *pool, dw_err *err) {
    const int n = t->gram->n;
    a->dead = dw_alloc((size_t)n, sizeof *a->dead, "a selection", err);
    a->root = dw_alloc((size_t)n, sizeof *a->root, "a selection", err);
    a->h = dw_alloc((size_t)n, (size_t)n * sizeof *a->h, "a Gram matrix", err);
    if (!a->dead || !a->root || !a->h || check_weights(t, err)) return -1;
    if (damping_of(&o->damping, t->gram, t->n_tokens, t->damp > 0 ? t->damp : DAMPING, a->dead, err)) return -1;
    double began = dw_now();
    if (damping_factor(&o->damping, t->gram, t->n_tokens, a->dead, NULL, n, a->h, pool, err)) return -1;
    o->seconds.factor = dw_now() - began;
    began = dw_now();
    a->inverse = dw_alloc((size_t)n, (size_t)n * sizeof *a->inverse, "an inverse", err);
    if (!a->inverse || spd_inverse(a->h, n, a->inverse, pool, err)) return -1;
    o->seconds.invert = dw_now() - began;
    free(a->h);
    a->h = NULL;
    roots_of(a->root, t, &o->damping, a->dead);
    scale_inverse(a->inverse, n, a->root);
    for (int j = 0; j < n; j++)
        if (a->dead[j]) a->root[j] = 0; // its column of V counts as zero
    return 0;
}

int obs_select(obs_order *o, const obs_task *t, dw_pool *pool, dw_err *err) {
    arrays a = {0};
    *o = (obs_order){0};
    int rc = make_order(o, t, err);
    if (!rc) rc = prepare(&a, o, t, pool, err);
    obs_start s = {.n = t->gram->n,
                   .group = t->group,
                   .most_removed = t->most_removed < o->n_group ? t->most_removed : o->n_group,
                   .block = t->block ? t->block : 128,
                   .inverse = a.inverse,
                   .v = t->v,
                   .d = t->d,
                   .scale = a.root};
    const int most_f64 = t->most_f64 ? t->most_f64 : OBS_MOST_F64;
    const double began = dw_now();
    if (!rc) rc = (s.n > most_f64 ? obs_run_f32 : obs_run_f64)(o, &s, pool, err);
    o->seconds.select = dw_now() - began;
    free(a.dead);
    free(a.root);
    free(a.h);
    free(s.inverse);
    if (rc) obs_order_release(o);
    return rc;
}

void obs_scores(const obs_order *o, double *score) {
    double before = 0, last = -1;
    for (int i = 0; i < o->n_group; i++) {
        const double step = o->error[i] - before;
        last = step > last ? step : nextafter(last, INFINITY);
        score[o->group[i]] = last;
        before = o->error[i];
    }
}
