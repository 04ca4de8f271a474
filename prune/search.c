/* search.c - sensitivity and evolve (search.h). */
#include "prune/search.h"
#include "kit/options.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const dw_hparams *hp_of(const prune_task *t) { return dw_model_hparams(t->model); }
static int n_ff(const prune_task *t, int l) { return hp_of(t)->n_ff[l]; }

/* The next allowed widths.  A whole layer may have any width, so a step to it or from it may be less than a unit. */
static int wider(const prune_task *t, int l, int width) { return dw_smaller(width + t->unit, n_ff(t, l)); }
static int narrower(const prune_task *t, int width) { return (width - 1) / t->unit * t->unit; }
/* The widest allowed width of at most `width`. */
static int widest(const prune_task *t, int l, int width) {
    return width < n_ff(t, l) ? width / t->unit * t->unit : n_ff(t, l);
}

static int uniform_widths(const prune_task *t, int *n_keep, dw_err *err) {
    return prune_allocator_find("uniform")->allocate(t, n_keep, err);
}

static int mean_kl(const prune_task *t, const int *n_keep, double *kl, double *mean, dw_err *err) {
    const int n = trial_n_windows(t->search->trial);
    if (trial_run(t->search->trial, n_keep, kl, err)) return -1;
    *mean = 0;
    for (int w = 0; w < n; w++) *mean += kl[w] / n;
    progress_step(t->search->bar, 1);
    return 0;
}

/* ---- sensitivity: curves ---------------------------------------------------------------------------------- */

enum { MOST_LEVELS = 32 };

typedef struct curve {
    int width[MOST_LEVELS + 1]; // descending: the first is the whole layer
    double kl[MOST_LEVELS + 1];
    int n;
} curve;

/* Divergence at a width, linear between measured ones. */
static double at_width(const curve *c, int width) {
    int i = 1;
    while (i < c->n - 1 && width < c->width[i]) i++;
    const double share = (double)(c->width[i - 1] - width) / (c->width[i - 1] - c->width[i]);
    return c->kl[i - 1] + share * (c->kl[i] - c->kl[i - 1]);
}

static int n_levels(const prune_task *t) {
    const bool is_start = t->search->start != NULL; // of evolve, to which the evaluations belong
    const int n = t->search->evaluations && !is_start ? t->search->evaluations / hp_of(t)->n_layer : SEARCH_LEVELS;
    return n < 2 ? 2 : n > MOST_LEVELS ? MOST_LEVELS : n;
}

static int n_dropped(const prune_task *t) {
    int n = 0;
    for (int l = 0; l < hp_of(t)->n_layer; l++) n += t->drop[l];
    return n;
}

/* whole: the divergence when no layer is cut. */
static int measure_curve(const prune_task *t, int l, double whole, int *n_keep, double *kl, curve *c, dw_err *err) {
    const int levels = n_levels(t), least = prune_least_width(t, l);
    *c = (curve){.width = {n_ff(t, l)}, .kl = {whole}, .n = 1};
    for (int i = 1; i <= levels; i++) {
        int width = (int)((1 - (double)i / levels) * n_ff(t, l) / t->unit) * t->unit;
        if (width < least) width = least;
        if (width >= c->width[c->n - 1]) continue;
        n_keep[l] = width;
        if (mean_kl(t, n_keep, kl, &c->kl[c->n], err)) return -1;
        if (c->kl[c->n] < c->kl[c->n - 1]) c->kl[c->n] = c->kl[c->n - 1]; // noise: less never costs less
        c->width[c->n++] = width;
    }
    n_keep[l] = n_ff(t, l);
    return 0;
}

/* Each layer alone.  With dropped layers no trial is the whole model, so what they cost alone is measured, too: it is
 * in every point of every curve. */
static int measure_curves(const prune_task *t, int *n_keep, double *kl, curve *c, dw_err *err) {
    double whole = 0;
    for (int l = 0; l < hp_of(t)->n_layer; l++) n_keep[l] = n_ff(t, l);
    if (n_dropped(t) && mean_kl(t, n_keep, kl, &whole, err)) return -1;
    for (int l = 0; l < hp_of(t)->n_layer; l++)
        if (!t->drop[l] && measure_curve(t, l, whole, n_keep, kl, &c[l], err)) return -1;
    return 0;
}

/* ---- sensitivity: dynamic programming --------------------------------------------------------------------- */

enum { MOST_CELLS = 1 << 14 };

typedef struct table {
    double cell; // neurons, bytes or microseconds of a cell
    int n_cell;
    double *best, *next; // (n_cell + 1)
    int *choice;         // (n_layer, n_cell + 1): width
} table;

static double cost_of(const prune_task *t, int l, int width) {
    if (t->us > 0) return timing_of_layer(t->times, width);
    return t->bytes > 0 ? width * t->sizes->neuron[l] : width;
}

/* What the next wider width costs in addition. */
static double cost_of_step(const prune_task *t, int l, int width) {
    return cost_of(t, l, wider(t, l, width)) - cost_of(t, l, width);
}

/* Of the unit and of the layers that stay: every sum of allowed widths is a multiple of it. */
static int common_divisor(const prune_task *t) {
    int divisor = t->unit;
    for (int l = 0; l < hp_of(t)->n_layer; l++)
        for (int x = t->drop[l] ? 0 : n_ff(t, l), rest; x; x = rest) rest = divisor % x, divisor = x;
    return divisor;
}

/* Neurons that stay: as many as in the uniform rule, or as the rate says where large units keep that rule from it. */
static double neurons_of(const prune_task *t, const int *uniform) {
    double all = 0, kept = 0, least = 0;
    for (int l = 0; l < hp_of(t)->n_layer; l++)
        if (!t->drop[l]) all += n_ff(t, l), kept += uniform[l], least += prune_least_width(t, l);
    const double wanted = (1 - t->rate) * all, step = common_divisor(t);
    return fabs(kept - wanted) > 0.01 * all ? fmax(least, floor(wanted / step + 1e-9) * step) : kept;
}

/* What widths may cost together. */
static double budget_of(const prune_task *t, const int *uniform) {
    double fixed = t->sizes->fixed;
    for (int l = 0; l < hp_of(t)->n_layer; l++) fixed += t->drop[l] ? 0 : t->sizes->layer[l];
    if (t->us > 0) return t->us - t->times->rest;
    return t->bytes > 0 ? t->bytes - fixed : neurons_of(t, uniform);
}

static int cells_of(const table *b, double cost) { return (int)ceil(cost / b->cell - 1e-9); }

/* Widths of a layer that the table looks at: steps of a 64th, whole units. */
static int step_of(const prune_task *t, int l) {
    const int units = n_ff(t, l) / 64 / t->unit;
    return (units < 1 ? 1 : units) * t->unit;
}

static void add_width(const prune_task *t, const table *b, const curve *c, int l, int width) {
    const int cost = cells_of(b, cost_of(t, l, width));
    const double kl = at_width(c, width);
    for (int k = cost; k <= b->n_cell; k++)
        if (b->best[k - cost] + kl < b->next[k])
            b->next[k] = b->best[k - cost] + kl, b->choice[(size_t)l * ((size_t)b->n_cell + 1) + (size_t)k] = width;
}

static void fill_table(const prune_task *t, table *b, const curve *c) {
    for (int l = 0; l < hp_of(t)->n_layer; l++) {
        if (t->drop[l]) continue;
        for (int k = 0; k <= b->n_cell; k++) b->next[k] = INFINITY;
        for (int width = prune_least_width(t, l); width < n_ff(t, l); width += step_of(t, l))
            add_width(t, b, &c[l], l, width);
        add_width(t, b, &c[l], l, n_ff(t, l));
        double *swap = b->best;
        b->best = b->next, b->next = swap;
    }
}

/* Spends what rounding has left, a step at a time where the curve is steepest. */
static void spend_rest(const prune_task *t, const curve *c, double left, int *n_keep) {
    for (int best = 0; best >= 0;) {
        double gain = -1;
        best = -1;
        for (int l = 0; l < hp_of(t)->n_layer; l++) {
            if (t->drop[l] || n_keep[l] == n_ff(t, l) || cost_of_step(t, l, n_keep[l]) > left + 1e-9) continue;
            const double g = (at_width(&c[l], n_keep[l]) - at_width(&c[l], wider(t, l, n_keep[l]))) /
                             fmax(cost_of_step(t, l, n_keep[l]), 1e-300);
            if (g > gain) gain = g, best = l;
        }
        if (best < 0) break;
        left -= cost_of_step(t, best, n_keep[best]);
        n_keep[best] = wider(t, best, n_keep[best]);
    }
}

/* What a layer loses with the next narrower width, by its curve, for each neuron. */
static double slope_at(const prune_task *t, const curve *c, int width) {
    const int next = narrower(t, width);
    return (at_width(c, next) - at_width(c, width)) / (width - next);
}

/* Rows that fall back to larger types may need more than their blocks: takes units where the curve is flattest. */
static void shrink_to_bytes(const prune_task *t, const curve *c, int *n_keep) {
    for (int least = 0; least >= 0 && prune_file_bytes(t, n_keep) > t->bytes;) {
        double flattest = INFINITY;
        least = -1;
        for (int l = 0; l < hp_of(t)->n_layer; l++) {
            if (t->drop[l] || narrower(t, n_keep[l]) < prune_least_width(t, l)) continue;
            const double slope = slope_at(t, &c[l], n_keep[l]);
            if (slope < flattest) flattest = slope, least = l;
        }
        if (least >= 0) n_keep[least] = narrower(t, n_keep[least]);
    }
}

/* Keeps the least widths; what they cost. */
static double keep_least(const prune_task *t, int *n_keep) {
    double cost = 0;
    for (int l = 0; l < hp_of(t)->n_layer; l++) {
        n_keep[l] = t->drop[l] ? 0 : prune_least_width(t, l);
        cost += t->drop[l] ? 0 : cost_of(t, l, n_keep[l]);
    }
    return cost;
}

static int least_of_all(const prune_task *t) {
    int least = INT32_MAX;
    for (int l = 0; l < hp_of(t)->n_layer; l++)
        if (!t->drop[l]) least = dw_smaller(least, prune_least_width(t, l));
    return least;
}

/* The widths that fill the table's last cell; what they cost. */
static double keep_best(const prune_task *t, const table *b, int *n_keep) {
    double cost = 0;
    for (int l = hp_of(t)->n_layer, k = b->n_cell; l--;) {
        n_keep[l] = t->drop[l] ? 0 : b->choice[(size_t)l * ((size_t)b->n_cell + 1) + (size_t)k];
        if (!t->drop[l]) k -= cells_of(b, cost_of(t, l, n_keep[l])), cost += cost_of(t, l, n_keep[l]);
    }
    return cost;
}

/* A budget that just holds the least widths has too few cells, because each layer's are rounded up. */
static int take_widths(const prune_task *t, const table *b, double budget, int *n_keep, double *spent, dw_err *err) {
    const bool fits = !isinf(b->best[b->n_cell]);
    *spent = fits ? keep_best(t, b, n_keep) : keep_least(t, n_keep);
    if (fits || *spent <= budget * (1 + 1e-12)) return 0;
    return dw_fail(err, "no widths fit the budget, not even %d neurons a layer; drop layers, or allow more",
                   least_of_all(t));
}

static int plan_widths(const prune_task *t, const curve *c, double budget, int *n_keep, dw_err *err) {
    if (!(budget > 0))
        return dw_fail(err, "no widths fit the budget: it is less than what all but the neurons takes; allow more");
    table b = {.cell = fmax(t->us > 0 ? 0 : t->bytes > 0 ? 1 : common_divisor(t), budget / MOST_CELLS)};
    b.n_cell = (int)(budget / b.cell + 1e-9);
    const size_t n = (size_t)b.n_cell + 1;
    double *first = dw_alloc(n, 2 * sizeof *first, "an allocation", err);
    b.choice = dw_alloc((size_t)hp_of(t)->n_layer, n * sizeof *b.choice, "an allocation", err);
    b.best = first, b.next = first ? first + n : NULL;
    int rc = first && b.choice ? 0 : -1;
    double spent = 0;
    if (!rc) fill_table(t, &b, c);
    if (!rc) rc = take_widths(t, &b, budget, n_keep, &spent, err);
    if (!rc) spend_rest(t, c, budget - spent, n_keep);
    if (!rc && t->bytes > 0) shrink_to_bytes(t, c, n_keep);
    free(first);
    free(b.choice);
    return rc;
}

int search_sensitivity(const prune_task *t, int *n_keep, dw_err *err) {
    const size_t n_layer = (size_t)hp_of(t)->n_layer;
    curve *c = dw_alloc(n_layer, sizeof *c, "curves", err);
    double *kl = dw_alloc((size_t)trial_n_windows(t->search->trial), sizeof *kl, "windows", err), budget = 0;
    int rc = c && kl ? uniform_widths(t, n_keep, err) : -1;
    if (!rc) budget = budget_of(t, n_keep);
    if (!rc) rc = measure_curves(t, n_keep, kl, c, err);
    if (!rc) rc = plan_widths(t, c, budget, n_keep, err);
    free(c);
    free(kl);
    return rc;
}

/* ---- evolve ----------------------------------------------------------------------------------------------- */

typedef struct move { // n neurons more for a layer, from another one and the spare ones
    int from, to, n;
} move;

typedef struct state {
    int *best, *trial;  // (n_layer) widths
    int spare, left;    // neurons that the start's layers keep and these do not: of best; of trial
    move last, *failed; // the trial's; those that did not help since the last that did
    size_t n_failed, room;
    double *kl, *other; // of windows
    double mean, first; // of best; of the start
    dw_rng rng;
    int n_done, n_accepted;
    bool is_stuck; // no untried move was found
} state;

static int save(const prune_task *t, const state *s, dw_err *err) {
    const prune_search *search = t->search;
    if (!search->state) return 0;
    dw_out *out = dw_out_open_kept(search->state, err);
    int rc = out ? dw_out_printf(out, err,
                                 "deadwood evolve 2\nkey %s\ndone %d accepted %d first %.17g spare %d\nrng %" PRIu64
                                 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\nwidths",
                                 search->key, s->n_done, s->n_accepted, s->first, s->spare, s->rng.s[0], s->rng.s[1],
                                 s->rng.s[2], s->rng.s[3])
                 : -1;
    for (int l = 0; l < hp_of(t)->n_layer && !rc; l++) rc = dw_out_printf(out, err, " %d", s->best[l]);
    if (!rc) rc = dw_out_printf(out, err, "\n");
    if (!rc) rc = dw_out_commit(out, err);
    dw_out_free(out);
    return rc;
}

static bool parse(const prune_task *t, const char *text, state *s) {
    char key[80];
    int at = 0, n;
    if (sscanf(text,
               "deadwood evolve 2\nkey %79s\ndone %d accepted %d first %lg spare %d\nrng %" SCNu64 " %" SCNu64
               " %" SCNu64 " %" SCNu64 "\nwidths%n",
               key, &s->n_done, &s->n_accepted, &s->first, &s->spare, &s->rng.s[0], &s->rng.s[1], &s->rng.s[2],
               &s->rng.s[3], &at) != 9 ||
        !at || strcmp(key, t->search->key))
        return false;
    for (int l = 0; l < hp_of(t)->n_layer; l++, at += n) {
        n = 0;
        if (sscanf(text + at, " %d%n", &s->best[l], &n) != 1 ||
            s->best[l] < (t->drop[l] ? 0 : prune_least_width(t, l)) || s->best[l] > n_ff(t, l))
            return false;
    }
    return s->n_done >= 0 && s->spare >= 0;
}

static bool has_steps_of_another(const prune_task *t, const char *text) {
    char key[80];
    int n_done;
    return sscanf(text, "deadwood evolve 2\nkey %79s\ndone %d", key, &n_done) == 2 && n_done > 0 &&
           strcmp(key, t->search->key);
}

static int check_state(const prune_task *t, const char *text, dw_err *err) {
    const char *path = t->search->state;
    if (*text && strncmp(text, "deadwood evolve ", 16) != 0)
        return dw_fail(err, "'%s' is in the way: no interrupted run of rank has written it; remove it", path);
    return has_steps_of_another(t, text) ? tool_other_run(path, err) : 0;
}

/* *resumes: an ended run with the same key has left a state. */
static int resume(const prune_task *t, state *s, bool *resumes, dw_err *err) {
    const char *path = t->search->state;
    size_t size;
    *resumes = false;
    if (!path || !dw_file_exists(path)) return 0;
    char *text = dw_read_text(path, 1 << 20, &size, err);
    const int rc = text ? check_state(t, text, err) : -1;
    *resumes = !rc && parse(t, text, s);
    free(text);
    return rc;
}

static bool has_failed(const state *s, const move *m) {
    for (size_t i = 0; i < s->n_failed; i++)
        if (!memcmp(&s->failed[i], m, sizeof *m)) return true;
    return false;
}

static int add_failed(state *s, dw_err *err) {
    if (s->n_failed == s->room) {
        const size_t room = s->room ? 2 * s->room : 256;
        move *more = dw_alloc(room, sizeof *more, "moves", err);
        if (!more) return -1;
        if (s->n_failed) memcpy(more, s->failed, s->n_failed * sizeof *more);
        free(s->failed);
        s->failed = more, s->room = room;
    }
    s->failed[s->n_failed++] = s->last;
    return 0;
}

/* Neurons from a random layer to another: 1, 2 or 4 fortieths of a layer, or units where those are larger; at most a
 * quarter of the layer, or one unit.  A whole layer may have any width.  From it go whole units and what is over; the
 * other layer takes what fits, and the rest, less than a unit, is spare for later moves.  false: these two cannot, or
 * the same move has failed. */
static bool mutate(const prune_task *t, state *s) {
    const int n_layer = hp_of(t)->n_layer, a = (int)dw_rng_below(&s->rng, (uint64_t)n_layer),
              b = (int)dw_rng_below(&s->rng, (uint64_t)n_layer);
    const int units = n_ff(t, a) / 40 / t->unit, steps = 1 << dw_rng_below(&s->rng, 3);
    const int quarter = n_ff(t, a) / 4 / t->unit * t->unit;
    memcpy(s->trial, s->best, (size_t)n_layer * sizeof *s->trial);
    if (a == b || t->drop[a] || t->drop[b]) return false;
    int n = dw_smaller(steps * (units < 1 ? 1 : units) * t->unit, quarter > t->unit ? quarter : t->unit);
    n = dw_smaller(n, n_ff(t, b) - s->best[b]);
    n = dw_smaller(n, s->best[a] - prune_least_width(t, a));
    if (n <= 0) return false;
    n = s->best[a] - dw_larger(widest(t, a, s->best[a] - n), prune_least_width(t, a));
    s->trial[b] = widest(t, b, s->best[b] + n + s->spare);
    n = s->trial[b] - s->best[b];
    s->trial[a] = dw_smaller(s->best[a], widest(t, a, s->best[a] + s->spare - n));
    s->left = s->best[a] + s->spare - n - s->trial[a];
    s->last = (move){a, b, n};
    return n > 0 && !has_failed(s, &s->last) && (t->bytes <= 0 || prune_file_bytes(t, s->trial) <= t->bytes);
}

/* Whether the mean of windows falls by more than its standard error. */
static bool is_better(const prune_task *t, const state *s) {
    const int n = trial_n_windows(t->search->trial);
    double mean = 0, square = 0;
    for (int w = 0; w < n; w++) mean += (s->other[w] - s->kl[w]) / n;
    for (int w = 0; w < n; w++) square += (s->other[w] - s->kl[w] - mean) * (s->other[w] - s->kl[w] - mean);
    return mean < 0 && (n < 2 || -mean > sqrt(square / (n - 1.0) / n));
}

static int step(const prune_task *t, state *s, dw_err *err) {
    double mean;
    for (int tries = 0; !mutate(t, s); tries++)
        if (tries == 10000) return s->is_stuck = true, 0;
    if (mean_kl(t, s->trial, s->other, &mean, err)) return -1;
    s->n_done++;
    if (!is_better(t, s)) return add_failed(s, err);
    s->n_failed = 0;
    s->spare = s->left;
    memcpy(s->best, s->trial, (size_t)hp_of(t)->n_layer * sizeof *s->best);
    memcpy(s->kl, s->other, (size_t)trial_n_windows(t->search->trial) * sizeof *s->kl);
    s->mean = mean;
    s->n_accepted++;
    if (trial_accept(t->search->trial, s->best, err) || save(t, s, err)) return -1;
    return 0;
}

static int begin(const prune_task *t, state *s, dw_err *err) {
    const prune_allocator *start = t->search->start ? t->search->start : prune_allocator_find("uniform");
    bool resumes;
    char text[128];
    if (resume(t, s, &resumes, err)) return -1;
    if (!resumes) {
        dw_rng_seed(&s->rng, t->search->seed);
        s->n_done = s->n_accepted = s->spare = 0;
        if (start->allocate(t, s->best, err)) return -1;
    }
    if (trial_accept(t->search->trial, s->best, err) || mean_kl(t, s->best, s->kl, &s->mean, err)) return -1;
    if (!resumes) s->first = s->mean;
    snprintf(text, sizeof text, "going on after %d evaluations, %d accepted", s->n_done, s->n_accepted);
    if (resumes && t->search->tell) t->search->tell(text);
    return save(t, s, err);
}

int search_evolve(const prune_task *t, int *n_keep, dw_err *err) {
    const size_t n_layer = (size_t)hp_of(t)->n_layer, n_windows = (size_t)trial_n_windows(t->search->trial);
    const int most = t->search->evaluations ? t->search->evaluations : SEARCH_EVALUATIONS;
    state s = {.best = dw_alloc(n_layer, sizeof *s.best, "widths", err),
               .trial = dw_alloc(n_layer, sizeof *s.trial, "widths", err),
               .kl = dw_alloc(n_windows, sizeof *s.kl, "windows", err),
               .other = dw_alloc(n_windows, sizeof *s.other, "windows", err)};
    int rc = s.best && s.trial && s.kl && s.other ? begin(t, &s, err) : -1;
    while (!rc && s.n_done < most && !s.is_stuck) rc = step(t, &s, err);
    char text[160];
    snprintf(text, sizeof text, "evolve: %d of %d steps accepted, KL on the texts of the search %.4f -> %.4f nats%s",
             s.n_accepted, s.n_done, s.first, s.mean, s.is_stuck ? "; no other move was found in 10,000 tries" : "");
    if (!rc && t->search->tell) t->search->tell(text);
    for (size_t l = 0; l < n_layer && !rc; l++) n_keep[l] = s.best[l];
    free(s.best), free(s.trial), free(s.kl), free(s.other), free(s.failed);
    return rc;
}

double search_n_evaluations(const prune_task *t, const prune_allocator *a) {
    const bool evolves = a->allocate == search_evolve;
    const prune_allocator *start = evolves ? t->search->start : NULL;
    double n = evolves ? (t->search->evaluations ? t->search->evaluations : SEARCH_EVALUATIONS) + 1 : 0;
    if (a->allocate == search_sensitivity || (start && start->allocate == search_sensitivity))
        n += (double)n_levels(t) * (hp_of(t)->n_layer - n_dropped(t)) + (n_dropped(t) > 0);
    return n;
}
