/* shrink_costs.c - what a shrunk model will take. */
#include "experiments/shrink_costs.h"
#include "engine.h"
#include "kit/blas.h"

#include <math.h>
#include <string.h>

/* ---- bytes ------------------------------------------------------------------------------------------------------ */

typedef struct parts { // of a file
    double rest, ffn;
} parts;

static bool is_ffn(const dw_tensor *t) {
    return kit_is_matrix(t) &&
           (strstr(t->name, ".ffn_gate.") || strstr(t->name, ".ffn_up.") || strstr(t->name, ".ffn_down."));
}

static double bytes_as(const kit_mixture_use *use, const dw_tensor *t) {
    bool fell_back = false;
    if (!use->mixture || !kit_is_matrix(t)) return (double)t->n_bytes;
    const dw_qtype_row *type = kit_mixture_type(use, t, &fell_back);
    return (double)dw_qtype_row_bytes(type, t->ne[0]) * (double)(dw_tensor_n_values(t) / t->ne[0]);
}

static parts parts_of(const shrink_work *w, const kit_mixture *mixture) {
    const dw_gguf *g = dw_model_gguf(w->model);
    const kit_mixture_use use = {.mixture = mixture, .model = w->model, .weighted = true, .output = w->output};
    parts p = {0};
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        *(is_ffn(t) ? &p.ffn : &p.rest) += bytes_as(&use, t);
    }
    return p;
}

double shrink_bytes(const shrink_work *w, const kit_mixture *mixture, double kept) {
    const parts p = parts_of(w, mixture);
    return p.rest + kept * p.ffn;
}

double shrink_kept(const shrink_work *w, double bytes) {
    const parts p = parts_of(w, w->mixture);
    return p.ffn > 0 ? (bytes - p.rest) / p.ffn : -1;
}

const kit_mixture *shrink_nearest(const shrink_work *w, double bytes) {
    const kit_mixture *nearest = kit_mixtures;
    double least = INFINITY;
    for (const kit_mixture *x = kit_mixtures; x->name; x++) {
        const double distance = fabs(shrink_bytes(w, x, 1) - bytes);
        if (distance < least) nearest = x;
        least = fmin(least, distance);
    }
    return nearest;
}

/* ---- minutes ---------------------------------------------------------------------------------------------------- */

#define GRAM_OVERHEAD 1.6 // time of Gram matrices over that of their products: the rest adds tiles to sums in F64

/* Seconds a token, products as finely as collect's: after a run that warms up the shortest of several, as other programs
 * only make it longer. */
static int time_tokens(double *seconds, const shrink_work *w, const int32_t *token, int n, dw_err *err) {
    dw_pool *pool = dw_pool_new(w->n_threads, err);
    const dw_session_options options = {.pool = pool, .n_ctx = n, .n_batch = n, .n_out = 1,
                                        .precision = DW_PRECISION_ROUNDED};
    dw_session *s = pool ? dw_session_new(w->model, &options, err) : NULL;
    const dw_batch batch = {.n_tokens = n, .token = token};
    int rc = s ? dw_session_eval(s, &batch, err) : -1;
    double least = INFINITY;
    const double until = dw_now() + 2;
    for (int i = 0; i < 2 || (i < 20 && dw_now() < until); i++) {
        const double began = dw_now();
        if (!rc) dw_session_rewind(s, 0, 0);
        if (!rc) rc = dw_session_eval(s, &batch, err);
        least = fmin(least, dw_now() - began);
    }
    *seconds = least / n;
    dw_session_free(s);
    dw_pool_free(pool);
    return rc;
}

typedef struct rates { // of this machine, all threads
    double token; // seconds that one takes
    double gram;  // F32 operations a second of Gram matrices
    double solve; // F64 operations a second of factors and solutions
} rates;

static int measure(rates *r, const shrink_work *w, const int32_t *token, int n, dw_err *err) {
    if (time_tokens(&r->token, w, token, n, err)) return -1;
    const double engine = 2 * (double)dw_model_n_params(w->model) / r->token; // where OpenBLAS has no memory
    const double singles = kit_blas_speed(false) * w->n_threads, doubles = kit_blas_speed(true) * w->n_threads;
    r->gram = (singles > 0 ? singles : engine) / GRAM_OVERHEAD;
    r->solve = doubles > 0 ? doubles : engine / 2;
    return 0;
}

typedef struct widths { // sums over layers
    double square, cube, widest;
} widths;

static widths widths_of(const dw_model *m) {
    const dw_hparams *hp = dw_model_hparams(m);
    widths sum = {0};
    for (int l = 0; l < hp->n_layer; l++) {
        const double n = hp->n_ff[l];
        sum.square += n * n;
        sum.cube += n * n * n;
        sum.widest = fmax(sum.widest, n);
    }
    return sum;
}

static const double values_a_second = 10e6; // that requant encodes, a thread

enum { SENSITIVITY_LEVELS = 8 }; // widths of a layer that rank measures
#define MOST_GRAM 4e9            // collect --gram-memory: beyond it Gram matrices take a second pass

static double gram_bytes(const dw_model *m) { return 4 * widths_of(m).square; }

/* Of n evaluations on so many held-out tokens, and of the curves of rank --start sensitivity. */
static double seconds_of_widths(const shrink_work *w, const rates *r, int n, double held_tokens) {
    const dw_hparams *hp = dw_model_hparams(w->model);
    const double curves = SENSITIVITY_LEVELS * hp->n_layer;
    const widths width = widths_of(w->model);
    const double widths_of_all = hp->n_layer * width.widest / w->step, kept = w->kept * w->kept * w->kept;
    const double of_curves = 2 * 1.5 * width.cube; // sum of (i / 8)^3 over the levels
    const double of_steps = fmin(2.0 * n, widths_of_all) * 2 * kept * width.cube / hp->n_layer;
    return r->token * held_tokens * (curves + n) + (of_curves + of_steps) / r->solve;
}

static bool control_learns(const shrink_work *w) { return w->heal_minutes > 0 && w->mixture && w->control; }

static double seconds_of(const shrink_work *w, const rates *r) {
    const double n_params = (double)dw_model_n_params(w->model);
    const widths n = widths_of(w->model);
    const bool heals = w->heal_minutes > 0, has_learned = control_learns(w);
    const double n_cuts = w->mixture ? 2 : 0; // that have statistics of their own
    const double n_rows = 4 + (w->control != NULL) + has_learned,
                 n_requants = (heals ? 0 : n_cuts) + (w->control != NULL);
    const double stats = 1.3 + (w->by_gradient ? 2 : 0) + (gram_bytes(w->model) > MOST_GRAM ? 1 : 0);
    const double gram = w->calib_tokens * n.square, solves = 4 * n.cube + 2 * 2 * n.cube;
    double s = r->token * w->calib_tokens * (stats + 1.3 * w->kept * n_cuts) + gram / r->gram + solves / r->solve;
    if (w->evaluations) s += seconds_of_widths(w, r, w->evaluations, w->held_tokens);
    s += 2 * r->token * w->eval_tokens * n_rows;
    s += n_params * n_requants / (values_a_second * fmax(1, w->n_threads));
    return s + 0.3 * (6 + n_rows + 2 * n_cuts) + 60 * w->heal_minutes * (2 + has_learned);
}

/* ---- memory and disk -------------------------------------------------------------------------------------------- */

static double n_params_of(const dw_model *m, double kept) {
    const dw_hparams *hp = dw_model_hparams(m);
    double ffn = 0;
    for (int l = 0; l < hp->n_layer; l++) ffn += 3.0 * hp->n_embd * hp->n_ff[l];
    return (double)dw_model_n_params(m) - (1 - kept) * ffn;
}

/* Of the largest model that learns. */
static double n_trained(const shrink_work *w) { return n_params_of(w->model, control_learns(w) ? 1 : w->kept); }

/* Of heal: for each parameter its value, gradient, two moments, the best so far and, with a mixture, what it is rounded
 * to, in F32; about 20 values of n_embd, 4 of n_ff and a residual a layer for each token of a pass, student and teacher.
 * A pass has two windows, or one of more than 2048 tokens. */
static double healing_memory(const shrink_work *w) {
    const dw_hparams *hp = dw_model_hparams(w->model);
    const double tokens = (w->n_ctx > 2048 ? 1.0 : 2.0) * w->n_ctx;
    const double pass = tokens * sizeof(float) * 2 * ((hp->n_layer + 20.0) * hp->n_embd + 4.0 * hp->n_ff_max);
    return (w->mixture ? 6 : 5) * sizeof(float) * n_trained(w) + pass;
}

/* Of heal: a checkpoint of four F32 numbers a parameter, and its successor. */
static double checkpoint_bytes(const shrink_work *w) {
    return 2 * 4 * sizeof(float) * n_trained(w);
}

int shrink_estimate(shrink_costs *c, const shrink_work *w, const int32_t *token, int n, dw_err *err) {
    rates r = {0};
    const widths width = widths_of(w->model);
    const double whole = shrink_bytes(w, NULL, 1), cut = shrink_bytes(w, NULL, w->kept);
    const double gram = gram_bytes(w->model);
    const double layer = 3 * 8 * width.widest * width.widest, room = 100e6;
    if (measure(&r, w, token, n, err)) return -1;
    const double heal = w->heal_minutes > 0 ? healing_memory(w) : 0;
    c->minutes = seconds_of(w, &r) / 60;
    c->evolve_minutes = seconds_of_widths(w, &r, SHRINK_EVALUATIONS, w->calib_tokens / 6) / 60;
    c->memory = whole + fmax(heal, fmax(fmin(gram, MOST_GRAM), layer)) + room;
    c->disk = gram + 2 * cut + 400 * w->eval_tokens;
    if (w->heal_minutes > 0) c->disk += checkpoint_bytes(w) + (w->mixture ? 0 : 2 * cut);
    if (control_learns(w)) c->disk += shrink_bytes(w, w->control, 1);
    if (w->mixture) c->disk += 3 * shrink_bytes(w, w->mixture, w->kept);
    if (!w->mixture) c->disk += cut;
    if (w->control) c->disk += shrink_bytes(w, w->control, 1);
    return 0;
}
