/* shrink_costs.c - what a shrunk model will take. */
#include "experiments/shrink_costs.h"
#include "engine.h"

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

static parts parts_of(const dw_model *m, const kit_mixture *mixture) {
    const dw_gguf *g = dw_model_gguf(m);
    const kit_mixture_use use = {.mixture = mixture, .model = m, .weighted = true};
    parts p = {0};
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        *(is_ffn(t) ? &p.ffn : &p.rest) += bytes_as(&use, t);
    }
    return p;
}

double shrink_bytes(const dw_model *m, const kit_mixture *mixture, double kept) {
    const parts p = parts_of(m, mixture);
    return p.rest + kept * p.ffn;
}

double shrink_kept(const dw_model *m, const kit_mixture *mixture, double bytes) {
    const parts p = parts_of(m, mixture);
    return p.ffn > 0 ? (bytes - p.rest) / p.ffn : -1;
}

const kit_mixture *shrink_nearest(const dw_model *m, double bytes) {
    const kit_mixture *nearest = kit_mixtures;
    double least = INFINITY;
    for (const kit_mixture *x = kit_mixtures; x->name; x++) {
        const double distance = fabs(shrink_bytes(m, x, 1) - bytes);
        if (distance < least) nearest = x;
        least = fmin(least, distance);
    }
    return nearest;
}

/* ---- minutes ---------------------------------------------------------------------------------------------------- */

/* Seconds a token, after one run that warms up; products as finely as collect's. */
static int time_tokens(double *seconds, const shrink_work *w, const int32_t *token, int n, dw_err *err) {
    dw_pool *pool = dw_pool_new(w->n_threads, err);
    const dw_session_options options = {.pool = pool, .n_ctx = n, .n_batch = n, .n_out = 1,
                                        .precision = DW_PRECISION_ROUNDED};
    dw_session *s = pool ? dw_session_new(w->model, &options, err) : NULL;
    const dw_batch batch = {.n_tokens = n, .token = token};
    int rc = s ? dw_session_eval(s, &batch, err) : -1;
    if (!rc) dw_session_rewind(s, 0, 0);
    const double began = dw_now();
    if (!rc) rc = dw_session_eval(s, &batch, err);
    *seconds = (dw_now() - began) / n;
    dw_session_free(s);
    dw_pool_free(pool);
    return rc;
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

static double seconds_of(const shrink_work *w, double r) {
    const double n_params = (double)dw_model_n_params(w->model), f = 2 * n_params / r;
    const widths n = widths_of(w->model);
    const double n_requants = w->mixture ? 2 : 0, n_collects = 1 + n_requants, n_rows = 4 + (w->control != NULL);
    const double gram = w->calib_tokens * n.square, solves = 4 * n.cube + 2 * 2 * n.cube;
    double s = 1.3 * r * w->calib_tokens * n_collects + (gram + solves) / f;
    s += r * w->held_tokens * w->evaluations + 1.5 * r * w->eval_tokens * n_rows;
    s += n_params * (n_requants + (w->control != NULL)) / (values_a_second * fmax(1, w->n_threads));
    return s + 0.3 * (6 + n_rows + 2 * n_requants);
}

/* ---- memory and disk -------------------------------------------------------------------------------------------- */

/* Of heal: five F32 numbers a parameter; about 20 values of n_embd, 4 of n_ff and a residual a layer for each of the
 * 4096 tokens of a pass, student and teacher. */
static double healing_memory(const dw_model *m, double kept) {
    const dw_hparams *hp = dw_model_hparams(m);
    const double pass = 4096 * sizeof(float) * 2 * ((hp->n_layer + 20.0) * hp->n_embd + 4.0 * hp->n_ff_max);
    return 5 * sizeof(float) * kept * (double)dw_model_n_params(m) + pass;
}

int shrink_estimate(shrink_costs *c, const shrink_work *w, const int32_t *token, int n, dw_err *err) {
    double r = 0;
    const widths width = widths_of(w->model);
    const double whole = shrink_bytes(w->model, NULL, 1), cut = shrink_bytes(w->model, NULL, w->kept);
    const double gram = 4 * width.square, most_gram = 4e9; // collect --gram-memory
    const double layer = 3 * 8 * width.widest * width.widest, room = 100e6;
    if (time_tokens(&r, w, token, n, err)) return -1;
    const double heal = w->heal_minutes > 0 ? healing_memory(w->model, w->kept) : 0;
    c->minutes = seconds_of(w, r) / 60 + 2 * w->heal_minutes;
    c->memory = whole + fmax(heal, fmax(fmin(gram, most_gram), layer)) + room;
    c->disk = gram + 2 * cut + 400 * w->eval_tokens;
    if (w->heal_minutes > 0) c->disk += 2 * cut;
    if (w->mixture) c->disk += 3 * shrink_bytes(w->model, w->mixture, w->kept);
    if (!w->mixture) c->disk += cut;
    if (w->control) c->disk += shrink_bytes(w->model, w->control, 1);
    return 0;
}
