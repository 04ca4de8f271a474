/* repair.c - least squares for the columns of down that stay (repair.h). */
#include "prune/repair.h"

#include "prune/spd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct fit {
    bool *dead;
    int32_t *gone; // (n_gone): P
    int n_gone;
    double *h;     // (n_keep, n_keep)
    double *c, *v; // (n_gone, n_keep): C_PS; (n_gone, d): V_P^T
    double *x;     // (d, n_keep): E[R a_S^T], then the change of V
} fit;

static void release(fit *f) { free(f->dead), free(f->gone), free(f->h), free(f->c), free(f->v), free(f->x); }

static int list_gone(fit *f, const repair_task *t, dw_err *err) {
    const int n = t->gram->n;
    f->gone = dw_alloc((size_t)n, sizeof *f->gone, "removed neurons", err);
    for (int j = 0, i = 0; f->gone && j < n; j++) {
        if (i < t->n_keep && t->keep[i] == j)
            i++;
        else
            f->gone[f->n_gone++] = j;
    }
    return f->gone ? 0 : -1;
}

/* C_PS and V_P^T; dead neurons contribute nothing. */
static int gather_gone(fit *f, const repair_task *t, dw_err *err) {
    const size_t n_gone = (size_t)f->n_gone, n_keep = (size_t)t->n_keep, d = (size_t)t->d, n = (size_t)t->gram->n;
    f->c = dw_alloc(n_gone + 1, n_keep * sizeof *f->c, "a Gram matrix", err);
    f->v = dw_alloc(n_gone + 1, d * sizeof *f->v, "removed columns of down", err);
    if (!f->c || !f->v) return -1;
    for (size_t p = 0; p < n_gone; p++) {
        const int from = f->gone[p];
        for (size_t s = 0; s < n_keep; s++)
            f->c[p * n_keep + s] = f->dead[from] || f->dead[t->keep[s]]
                                       ? 0
                                       : kit_gram_at(t->gram, from, t->keep[s]) / t->n_tokens;
        for (size_t r = 0; r < d; r++) f->v[p * d + r] = (double)t->v[r * n + (size_t)from];
    }
    return 0;
}

/* x = V_P C_PS. */
static int cross_of_gram(fit *f, const repair_task *t, dw_pool *pool, dw_err *err) {
    if (list_gone(f, t, err) || gather_gone(f, t, err)) return -1;
    spd_multiply(&(spd_product){.a = f->v,
                                .b = f->c,
                                .c = f->x,
                                .lda = (size_t)t->d,
                                .ldb = (size_t)t->n_keep,
                                .m = t->d,
                                .n = t->n_keep,
                                .k = f->n_gone,
                                .alpha = 1},
                 pool);
    return 0;
}

static void cross_of_sums(fit *f, const repair_task *t) {
    for (int s = 0; s < t->n_keep; s++)
        for (int r = 0; r < t->d; r++)
            f->x[(size_t)r * (size_t)t->n_keep + (size_t)s] =
                f->dead[t->keep[s]] ? 0 : t->cross[(size_t)s * (size_t)t->d + (size_t)r] / t->n_tokens;
}

static int check(const repair_task *t, const double *x, dw_err *err) {
    const size_t n = (size_t)t->d * (size_t)t->n_keep;
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return dw_fail(
                err, "layer %d: the repair of down gives NaN or infinity; the model or the statistics are damaged",
                t->gram->layer);
    return 0;
}

static int solve(fit *f, const repair_task *t, damping *info, dw_pool *pool, dw_err *err) {
    const size_t n_keep = (size_t)t->n_keep;
    f->dead = dw_alloc((size_t)t->gram->n, sizeof *f->dead, "a repair", err);
    f->x = dw_alloc((size_t)t->d, n_keep * sizeof *f->x, "a repair", err);
    if (!f->dead || !f->x || damping_of(info, t->gram, t->n_tokens, t->damp > 0 ? t->damp : DAMPING, f->dead, err))
        return -1;
    if (t->cross)
        cross_of_sums(f, t);
    else if (cross_of_gram(f, t, pool, err))
        return -1;
    f->h = dw_alloc(n_keep, n_keep * sizeof *f->h, "a Gram matrix", err);
    if (!f->h || damping_factor(info, t->gram, t->n_tokens, f->dead, t->keep, t->n_keep, f->h, pool, err)) return -1;
    spd_solve_rows(f->h, t->n_keep, f->x, (size_t)t->d, pool);
    return check(t, f->x, err);
}

int repair_least_squares(const repair_task *t, float *out, damping *info, dw_pool *pool, dw_err *err) {
    fit f = {0};
    damping own;
    const int rc = solve(&f, t, info ? info : &own, pool, err);
    const size_t n_keep = (size_t)t->n_keep, n = (size_t)t->gram->n;
    for (size_t r = 0; r < (size_t)t->d && !rc; r++)
        for (size_t s = 0; s < n_keep; s++)
            out[r * n_keep + s] = (float)((double)t->v[r * n + (size_t)t->keep[s]] + f.x[r * n_keep + s]);
    release(&f);
    return rc;
}
