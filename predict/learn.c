/* learn.c - the closed form, training with early stop, the operating point, and the rivals (learn.h). */
#include "predict/learn.h"
#include "predict/ridge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PATIENCE = 3, JUDGE_BATCH = 256 };

const char *const predict_learn_method_names[PREDICT_LEARN_N_METHODS] = {"gate",   "predictor", "static",
                                                                         "linear", "network",   "never"};

int predict_learn_default_rank(int n_embd) {
    const int rank = (n_embd / 6 + 8) / 16 * 16;
    return rank < 16 ? 16 : rank;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

typedef struct learner {
    const predict_examples *e;
    const predict_learn_options *o;
    predict_network net, gradient;        // of standardized inputs: what is trained
    predict_network linear, best, folded; // of inputs as they are: the closed form, the best epoch, this epoch
    predict_adam adam;
    predict_network_scratch scratch;
    float price;     // tau
    uint32_t *order; // of the training tokens
    float *x;        // (n_batch, n_in)
    uint16_t *share; // (n_batch, n_groups)
    dw_rng rng;
    /* judging */
    uint64_t n_open;        // groups to open on the choosing part: the activity
    float *score;           // (n, n_groups) of the part at hand
    uint8_t *chosen;        // (n, stride)
    predict_scored *scored; // (n * n_groups)
} learner;

static int init_networks(learner *t, dw_err *err) {
    predict_network *const nets[] = {&t->net, &t->gradient, &t->linear, &t->best, &t->folded};
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++)
        if (predict_network_init(nets[i], t->e->n_in, t->o->rank, t->e->n_groups, err)) return -1;
    return predict_adam_init(&t->adam, &t->net, t->o->rate, 0.01, err);
}

static int init(learner *t, const predict_examples *e, const predict_learn_options *o, dw_err *err) {
    const size_t n_batch = dw_larger_size((size_t)o->n_batch, JUDGE_BATCH), n_groups = (size_t)e->n_groups;
    const size_t n_judged = dw_larger_size(e->n[PREDICT_EXAMPLES_CHOOSE], e->n[PREDICT_EXAMPLES_HELD_OUT]);
    *t = (learner){.e = e, .o = o};
    if (init_networks(t, err) || predict_network_scratch_init(&t->scratch, &t->net, (int)n_batch, err)) return -1;
    t->order = dw_alloc(e->n[PREDICT_EXAMPLES_TRAIN], sizeof *t->order, "a batch", err);
    t->x = dw_alloc(n_batch * (size_t)e->n_in, sizeof *t->x, "a batch", err);
    t->share = dw_alloc(n_batch * n_groups, sizeof *t->share, "a batch", err);
    t->score = dw_alloc(n_judged * n_groups, sizeof *t->score, "scores", err);
    t->chosen = dw_alloc(n_judged, e->stride, "decisions", err);
    t->scored = dw_alloc(n_judged * n_groups, sizeof *t->scored, "scores", err);
    return t->order && t->x && t->share && t->score && t->chosen && t->scored ? 0 : -1;
}

static void release(learner *t) {
    predict_network *const nets[] = {&t->net, &t->gradient, &t->linear, &t->best, &t->folded};
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++) predict_network_release(nets[i]);
    predict_adam_release(&t->adam);
    predict_network_scratch_release(&t->scratch);
    free(t->order), free(t->x), free(t->share);
    free(t->score), free(t->chosen), free(t->scored);
}

/* ---- networks of two kinds of inputs ----------------------------------------------------------------------------- */

/* The same network for inputs as they are: standardized = (x - mean) * scale. */
static void fold(const predict_network *net, const predict_examples *e, predict_network *out) {
    predict_network_copy(out, net);
    for (int i = 0; i < net->rank; i++) {
        float *row = out->a + (size_t)i * (size_t)net->n_in;
        double offset = 0;
        for (int j = 0; j < net->n_in; j++) {
            row[j] *= e->scale[j];
            offset += (double)row[j] * (double)e->mean[j];
        }
        out->a_bias[i] -= (float)offset;
    }
}

static int round_to_f16(float *v, size_t n, dw_err *err) {
    for (size_t i = 0; i < n; i++) {
        v[i] = dw_f16_to_f32(dw_f32_to_f16(v[i]));
        if (!isfinite(v[i]))
            return dw_fail(err, "a weight of the predictor is beyond F16; trace more tokens, or lower --rank or --lr");
    }
    return 0;
}

static int round_weights(predict_network *net, dw_err *err) {
    if (round_to_f16(net->a, (size_t)(net->a_bias - net->a), err)) return -1;
    return round_to_f16(net->b, (size_t)(net->b_bias - net->b), err);
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

/* Into t->score. */
static void score_network(learner *t, const predict_network *net, predict_examples_part part) {
    const predict_examples *e = t->e;
    const size_t n_groups = (size_t)e->n_groups;
    for (size_t i = 0; i < e->n[part]; i += JUDGE_BATCH) {
        const int n = e->n[part] - i < JUDGE_BATCH ? (int)(e->n[part] - i) : JUDGE_BATCH;
        predict_network_scores(net, e->x[part] + i * (size_t)e->n_in, n, &t->scratch);
        memcpy(t->score + i * n_groups, t->scratch.score, (size_t)n * n_groups * sizeof *t->score);
    }
}

/* The threshold at which the choosing part's scores bring what the options want; *n_open: groups that it opens
 * there. */
static float operating_point(learner *t, uint64_t *n_open) {
    const predict_learn_options *o = t->o;
    const predict_examples *e = t->e;
    const size_t n_groups = (size_t)e->n_groups, n = e->n[PREDICT_EXAMPLES_CHOOSE] * n_groups;
    const bool by_recall = o->activity <= 0 && o->recall > 0, by_activity = o->activity > 0;
    double gate_worth = 0;
    for (size_t i = 0; i < n; i++) {
        const bool is_open = traces_is_open(e->open[PREDICT_EXAMPLES_CHOOSE] + i / n_groups * e->stride,
                                            (int)(i % n_groups));
        const float worth = by_activity ? 1
                            : by_recall ? (float)is_open
                                        : dw_f16_to_f32(e->share[PREDICT_EXAMPLES_CHOOSE][i]);
        t->scored[i] = (predict_scored){t->score[i], worth};
        gate_worth += is_open ? (double)worth : 0;
    }
    const double wanted = by_activity ? o->activity * (double)n : (by_recall ? o->recall : o->mass) * gate_worth;
    const float threshold = by_activity ? predict_tally_threshold_near(t->scored, n, wanted)
                                        : predict_tally_threshold(t->scored, n, wanted);
    *n_open = 0;
    for (size_t i = 0; i < n; i++) *n_open += t->score[i] >= threshold;
    return threshold;
}

/* The threshold at which the choosing part's scores open t->n_open groups, or as near to it as equal scores allow. */
static float point_of_activity(learner *t) {
    const size_t n = t->e->n[PREDICT_EXAMPLES_CHOOSE] * (size_t)t->e->n_groups;
    for (size_t i = 0; i < n; i++) t->scored[i] = (predict_scored){t->score[i], 1};
    return predict_tally_threshold_near(t->scored, n, (double)t->n_open);
}

static double activity_of(const learner *t) {
    return (double)t->n_open / ((double)t->e->n[PREDICT_EXAMPLES_CHOOSE] * t->e->n_groups);
}

/* What a network captures of the choosing part at the activity. */
static double mass_at_activity(learner *t, const predict_network *net) {
    const predict_examples *e = t->e;
    const size_t n = e->n[PREDICT_EXAMPLES_CHOOSE];
    predict_tally tally = {0};
    score_network(t, net, PREDICT_EXAMPLES_CHOOSE);
    predict_tally_choose(t->score, point_of_activity(t), e->n_groups, n, t->chosen);
    predict_tally_rows(&tally, t->chosen, e->open[PREDICT_EXAMPLES_CHOOSE], e->share[PREDICT_EXAMPLES_CHOOSE],
                       e->n_groups, n, NULL);
    return predict_tally_mass(&tally);
}

/* ---- the closed form --------------------------------------------------------------------------------------------- */

/* Shares have long tails, of which squared error would see little else; their roots, the sizes of the groups'
 * contributions, have not, and order groups alike. */
static void roots_of_shares(const void *examples_pointer, size_t t, float *y) {
    const predict_examples *e = examples_pointer;
    const uint16_t *share = e->share[PREDICT_EXAMPLES_TRAIN] + t * (size_t)e->n_groups;
    for (int g = 0; g < e->n_groups; g++) y[g] = sqrtf(dw_f16_to_f32(share[g]));
}

/* Hidden unit i of the closed form on the training part. */
typedef struct unit {
    double square; // mean
    float least;
} unit;

typedef struct closed_form {
    predict_ridge map;
    double *mean; // (n_groups): of the targets
    unit *unit;   // (rank)
} closed_form;

static void release_closed_form(closed_form *c) {
    predict_ridge_release(&c->map);
    free(c->mean);
    free(c->unit);
}

static void find_units(learner *t, closed_form *c) {
    const predict_examples *e = t->e;
    const size_t n_all = e->n[PREDICT_EXAMPLES_TRAIN];
    float *hidden = t->scratch.hidden;
    for (size_t first = 0; first < n_all; first += JUDGE_BATCH) {
        const int n = n_all - first < JUDGE_BATCH ? (int)(n_all - first) : JUDGE_BATCH;
        predict_ridge_hidden(&c->map, e->x[PREDICT_EXAMPLES_TRAIN] + first * (size_t)e->n_in, n, hidden);
        for (int k = 0; k < n * c->map.rank; k++) {
            unit *u = &c->unit[k % c->map.rank];
            u->square += (double)hidden[k] * (double)hidden[k] / (double)n_all;
            u->least = fminf(u->least, hidden[k]);
        }
    }
}

static int fit_closed_form(learner *t, closed_form *c, dw_err *err) {
    const predict_examples *e = t->e;
    const size_t n = e->n[PREDICT_EXAMPLES_TRAIN], n_groups = (size_t)e->n_groups;
    float *y = t->scratch.score; // room for a row
    c->mean = dw_alloc(n_groups, sizeof *c->mean, "a linear predictor", err);
    c->unit = dw_alloc((size_t)t->o->rank, sizeof *c->unit, "a linear predictor", err);
    if (!c->mean || !c->unit) return -1;
    for (size_t i = 0; i < n; i++) {
        roots_of_shares(e, i, y);
        for (size_t g = 0; g < n_groups; g++) c->mean[g] += (double)y[g] / (double)n;
    }
    const predict_regression p = {.x = e->x[PREDICT_EXAMPLES_TRAIN],
                                  .n = n,
                                  .n_in = e->n_in,
                                  .n_out = e->n_groups,
                                  .mean = c->mean,
                                  .target = roots_of_shares,
                                  .ctx = e};
    if (predict_ridge_fit(&c->map, &p, t->o->rank, err)) return -1;
    find_units(t, c);
    return 0;
}

/* Adds unit i, scaled to variance 1 and raised by `lift` above zero; slope (n_groups): of the scores, NULL: 1. */
static void put_unit(predict_network *net, const closed_form *c, int i, float lift, const float *slope) {
    const size_t n_in = (size_t)net->n_in, rank = (size_t)net->rank, at = (size_t)i;
    const float *row = c->map.a + at * n_in, deviation = (float)sqrt(c->unit[i].square);
    for (size_t j = 0; j < n_in; j++) net->a[at * n_in + j] = row[j] / deviation;
    net->a_bias[i] = lift;
    for (size_t g = 0; g < (size_t)net->n_out; g++) {
        const float b = (slope ? slope[g] : 1) * deviation * c->map.b[g * (size_t)c->map.rank + at];
        net->b[g * rank + at] = b;
        net->b_bias[g] -= lift * b;
    }
}

/* Units that hardly vary, as when inputs are constant, are left out. */
static bool is_used(const closed_form *c, int i) {
    double largest = 0;
    for (int k = 0; k < c->map.rank; k++) largest = fmax(largest, c->unit[k].square);
    return c->unit[i].square > 1e-12 * largest;
}

/* The closed form as a network of inputs as they are.  Units are raised half as far again as the training part needs,
 * so that relu passes them all. */
static int make_linear(learner *t, const closed_form *c, dw_err *err) {
    predict_network *net = &t->net;
    memset(net->params, 0, net->n_params * sizeof *net->params);
    for (int g = 0; g < net->n_out; g++) net->b_bias[g] = (float)c->mean[g];
    for (int i = 0; i < c->map.rank; i++) {
        const float lift = -1.5f * c->unit[i].least / (float)sqrt(c->unit[i].square);
        if (is_used(c, i)) put_unit(net, c, i, lift, NULL);
    }
    fold(net, t->e, &t->linear);
    return round_weights(&t->linear, err);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

/* The share that is reached by the wanted part of all shares of the training part, at least the smallest F16 above
 * 0. */
static int find_price(learner *t, dw_err *err) {
    enum { INFINITE = 0x7c00 }; // as F16; codes of numbers from 0 on ascend
    const predict_examples *e = t->e;
    const size_t n = e->n[PREDICT_EXAMPLES_TRAIN] * (size_t)e->n_groups;
    size_t *count = dw_alloc(INFINITE, sizeof *count, "shares by size", err), n_above = 0;
    int code = INFINITE;
    if (!count) return -1;
    for (size_t i = 0; i < n; i++) count[e->share[PREDICT_EXAMPLES_TRAIN][i]]++; // 0 .. 1, as traces are checked
    while (code > 1 && (double)n_above < activity_of(t) * (double)n) n_above += count[--code];
    t->price = dw_f16_to_f32((uint16_t)code);
    free(count);
    return 0;
}

/* The network begins near the closed form: hidden units raised by two deviations, so that relu lets nearly all of them
 * pass, and scores ln(m / tau) to first order in the root y of m, ln(mean m / tau) + 2 (y - mean y) / mean y.  Units
 * that the closed form does not use begin at random, without effect. */
static void seed_network(learner *t, const closed_form *c, float *slope) {
    enum { LIFT = 2 };
    predict_network *net = &t->net;
    const predict_examples *e = t->e;
    const double least = 1e-3 / e->n_groups; // of a mean share
    memset(net->params, 0, net->n_params * sizeof *net->params);
    for (float *p = net->a; p < net->a_bias; p++) *p = (float)(sqrt(2.0 / net->n_in) * dw_rng_normal(&t->rng));
    for (int g = 0; g < net->n_out; g++) {
        const double m = fmax(e->mass[g] / (double)e->n[PREDICT_EXAMPLES_TRAIN], least);
        net->b_bias[g] = (float)log(m / (double)t->price);
        slope[g] = (float)(2 / fmax(c->mean[g], sqrt(least)));
    }
    for (int i = 0; i < c->map.rank; i++)
        if (is_used(c, i)) put_unit(net, c, i, LIFT, slope);
}

static void shuffle(learner *t) {
    for (size_t i = t->e->n[PREDICT_EXAMPLES_TRAIN]; i > 1; i--) {
        const size_t k = (size_t)dw_rng_below(&t->rng, i);
        const uint32_t swap = t->order[i - 1];
        t->order[i - 1] = t->order[k];
        t->order[k] = swap;
    }
}

/* The rate falls with every batch: `done` of all epochs is over.  Returns the sum of the tokens' losses. */
static double train_batch(learner *t, size_t first, int n, double done) {
    const predict_examples *e = t->e;
    const size_t n_in = (size_t)e->n_in, n_groups = (size_t)e->n_groups;
    for (size_t i = 0; i < (size_t)n; i++) {
        const size_t at = t->order[first + i];
        memcpy(t->x + i * n_in, e->x[PREDICT_EXAMPLES_TRAIN] + at * n_in, n_in * sizeof *t->x);
        memcpy(t->share + i * n_groups, e->share[PREDICT_EXAMPLES_TRAIN] + at * n_groups, n_groups * sizeof *t->share);
    }
    t->adam.rate = t->o->rate * (1 - done);
    const predict_batch batch = {.x = t->x, .share = t->share, .n = n, .price = t->price};
    const double loss = predict_network_loss(&t->net, &batch, &t->scratch, &t->gradient);
    predict_adam_step(&t->adam, &t->net, &t->gradient);
    return loss * n;
}

/* The mean loss. */
static double train_epoch(learner *t, int epoch) {
    const size_t n_all = t->e->n[PREDICT_EXAMPLES_TRAIN], n_batch = (size_t)t->o->n_batch;
    double sum = 0;
    shuffle(t);
    for (size_t i = 0; i < n_all; i += n_batch) {
        const size_t n = n_all - i < n_batch ? n_all - i : n_batch;
        sum += train_batch(t, i, (int)n, (epoch + (double)i / (double)n_all) / t->o->n_epochs);
    }
    return sum / (double)n_all;
}

/* Leaves the best epoch's network in t->best, for inputs as they are and as it is stored.  Returns the number of epochs
 * that were run. */
static int train(learner *t, dw_err *err) {
    const int n_epochs = t->o->n_epochs;
    int best_epoch = 0, epoch = 0;
    double most = -1;
    while (epoch < n_epochs && epoch - best_epoch < PATIENCE) {
        if (!isfinite(train_epoch(t, epoch++))) return dw_fail(err, "the loss became infinite or NaN; lower --lr");
        fold(&t->net, t->e, &t->folded);
        const double mass = mass_at_activity(t, &t->folded);
        if (mass > most) {
            most = mass;
            best_epoch = epoch;
            predict_network_copy(&t->best, &t->folded);
        }
        if (t->o->on_epoch) t->o->on_epoch(t->o->ctx, 1);
    }
    if (t->o->on_epoch) t->o->on_epoch(t->o->ctx, n_epochs - epoch);
    return round_weights(&t->best, err) ? -1 : epoch;
}

/* ---- judging ----------------------------------------------------------------------------------------------------- */

static void judge_chosen(const learner *t, predict_learned *r, predict_learn_method m, const uint8_t *chosen) {
    const predict_examples *e = t->e;
    predict_tally_rows(&r->held_out[m], chosen, e->open[PREDICT_EXAMPLES_HELD_OUT], e->share[PREDICT_EXAMPLES_HELD_OUT],
                       e->n_groups, e->n[PREDICT_EXAMPLES_HELD_OUT], r->mass[m]);
}

static void judge_scores(learner *t, predict_learned *r, predict_learn_method m, float threshold) {
    predict_tally_choose(t->score, threshold, t->e->n_groups, t->e->n[PREDICT_EXAMPLES_HELD_OUT], t->chosen);
    judge_chosen(t, r, m, t->chosen);
}

/* A rival at the activity. */
static void judge_network(learner *t, predict_learned *r, predict_learn_method m, const predict_network *net) {
    score_network(t, net, PREDICT_EXAMPLES_CHOOSE);
    const float threshold = point_of_activity(t);
    score_network(t, net, PREDICT_EXAMPLES_HELD_OUT);
    judge_scores(t, r, m, threshold);
}

/* The k groups of most mass for every token, of equal ones the first, and the mass that each token has in them. */
static predict_tally judge_most(learner *t, uint64_t k, float *mass) {
    const predict_examples *e = t->e;
    const size_t n = e->n[PREDICT_EXAMPLES_HELD_OUT];
    predict_tally tally = {0};
    for (int g = 0; g < e->n_groups; g++) t->scored[g] = (predict_scored){(float)e->mass[g], -(float)g};
    predict_tally_sort(t->scored, (size_t)e->n_groups);
    memset(t->chosen, 0, n * e->stride);
    for (uint64_t i = 0; i < k; i++) {
        const size_t g = (size_t)-t->scored[i].worth;
        for (size_t row = 0; row < n; row++) t->chosen[row * e->stride + g / 8] |= (uint8_t)(1 << g % 8);
    }
    predict_tally_rows(&tally, t->chosen, e->open[PREDICT_EXAMPLES_HELD_OUT], e->share[PREDICT_EXAMPLES_HELD_OUT],
                       e->n_groups, n, mass);
    return tally;
}

/* The groups of most mass for every token, as many as the predictor opens on average.  That is seldom a whole number:
 * of 16 groups a predictor may open 0.4.  So each token has the whole groups, and a part of the next one's mass. */
static void judge_static(learner *t, predict_learned *r) {
    const size_t n = t->e->n[PREDICT_EXAMPLES_HELD_OUT];
    const uint64_t n_chosen = r->held_out[PREDICT_LEARN_PREDICTOR].n_chosen, k = n_chosen / n;
    const double part = (double)(n_chosen % n) / (double)n;
    float *mass = r->mass[PREDICT_LEARN_STATIC], *with_next = t->score; // read before: free
    predict_tally tally = judge_most(t, k, mass);
    const predict_tally next = judge_most(t, k + (part > 0), with_next);
    tally.mass = 0;
    for (size_t i = 0; i < n; i++) {
        mass[i] += (float)part * (with_next[i] - mass[i]);
        tally.mass += (double)mass[i];
    }
    tally.n_chosen = n_chosen;
    tally.n_both += (uint64_t)llround(part * (double)(next.n_both - tally.n_both));
    r->held_out[PREDICT_LEARN_STATIC] = tally;
}

/* Sets the operating point of the better network and fills the result. */
static void conclude(learner *t, predict_learned *r) {
    predict_network *net = r->is_linear ? &t->linear : &t->best;
    score_network(t, net, PREDICT_EXAMPLES_CHOOSE);
    const float threshold = operating_point(t, &t->n_open);
    judge_network(t, r, PREDICT_LEARN_LINEAR, &t->linear);
    judge_network(t, r, PREDICT_LEARN_NETWORK, &t->best);
    for (int g = 0; g < net->n_out; g++) net->b_bias[g] -= threshold;
    score_network(t, net, PREDICT_EXAMPLES_HELD_OUT);
    judge_scores(t, r, PREDICT_LEARN_PREDICTOR, 0);
    judge_static(t, r);
    judge_chosen(t, r, PREDICT_LEARN_GATE, t->e->open[PREDICT_EXAMPLES_HELD_OUT]);
    memset(t->chosen, 0, t->e->n[PREDICT_EXAMPLES_HELD_OUT] * t->e->stride);
    judge_chosen(t, r, PREDICT_LEARN_NEVER, t->chosen);
    r->net = *net;
    *net = (predict_network){0};
}

/* Masses of 0 leave nothing to learn; NaN is never above 0. */
static int check_masses(const predict_examples *e, dw_err *err) {
    double sum = 0;
    for (int g = 0; g < e->n_groups; g++) sum += e->mass[g];
    if (sum > 0) return 0;
    return dw_fail(err,
                   "the groups have no mass (0 or NaN) on the %zu tokens that train: the FFN's output is zero, or the "
                   "traces are damaged; trace the model again",
                   e->n[PREDICT_EXAMPLES_TRAIN]);
}

static int fail_closed(const learner *t, dw_err *err) {
    return dw_fail(err,
                   "the gate opens no group for the %zu tokens that choose the operating point, so there is nothing to "
                   "predict; trace more text, gate with a larger --activity, or give train an --activity",
                   t->e->n[PREDICT_EXAMPLES_CHOOSE]);
}

static int learn_from(learner *t, const closed_form *c, predict_learned *r, dw_err *err) {
    if (make_linear(t, c, err)) return -1;
    score_network(t, &t->linear, PREDICT_EXAMPLES_CHOOSE);
    operating_point(t, &t->n_open);
    if (!t->n_open) return fail_closed(t, err);
    if (find_price(t, err)) return -1;
    seed_network(t, c, t->scratch.score);
    r->n_epochs = train(t, err);
    if (r->n_epochs < 0) return -1;
    r->is_linear = mass_at_activity(t, &t->linear) >= mass_at_activity(t, &t->best); // both as they are stored
    conclude(t, r);
    return 0;
}

/* ---- a layer ----------------------------------------------------------------------------------------------------- */

double predict_learn_bytes(const traces *t, int layer, int rank, int n_batch) {
    const double d = t->n_embd, n_groups = t->layer[layer].n_groups, r = rank;
    const double n_train = (double)predict_examples_count(t, PREDICT_EXAMPLES_TRAIN);
    const double n_choose = (double)predict_examples_count(t, PREDICT_EXAMPLES_CHOOSE);
    const double n_held_out = (double)predict_examples_count(t, PREDICT_EXAMPLES_HELD_OUT);
    const double batch = n_batch > JUDGE_BATCH ? n_batch : JUDGE_BATCH, judged = fmax(n_choose, n_held_out);
    const double networks = 7 * 4 * (r * (d + n_groups) + r + n_groups); // five and Adam's two
    const double batches = 4 * n_train + batch * (4 * d + 2 * n_groups + 4 * (2 * r + n_groups)) + 8 * 65536;
    const double judging = judged * (12 * n_groups + n_groups / 8 + 1) + 4 * PREDICT_LEARN_N_METHODS * n_held_out;
    const double linear = d * d * (8 + 3 * 4 + 3 * 4) + 4 * n_groups * (d + 512) + 4 * r * (d + n_groups) +
                          8 * n_groups + 16 * r; // LAPACK: 3 d^2 floats
    return networks + batches + judging + linear;
}

int predict_learn_layer(predict_learned *result, const predict_examples *e, const predict_learn_options *o,
                        dw_err *err) {
    learner t;
    closed_form c = {0};
    *result = (predict_learned){0};
    if (check_masses(e, err)) return -1;
    int rc = init(&t, e, o, err);
    for (int m = 0; m < PREDICT_LEARN_N_METHODS && !rc; m++) {
        result->mass[m] = dw_alloc(e->n[PREDICT_EXAMPLES_HELD_OUT], sizeof *result->mass[m], "captured masses", err);
        if (!result->mass[m]) rc = -1;
    }
    for (size_t i = 0; i < e->n[PREDICT_EXAMPLES_TRAIN] && !rc; i++) t.order[i] = (uint32_t)i;
    dw_rng_seed(&t.rng, o->seed);
    if (!rc) rc = fit_closed_form(&t, &c, err);
    if (!rc) rc = learn_from(&t, &c, result, err);
    release_closed_form(&c);
    release(&t);
    return rc;
}

void predict_learned_release(predict_learned *r) {
    predict_network_release(&r->net);
    for (int m = 0; m < PREDICT_LEARN_N_METHODS; m++) free(r->mass[m]);
    *r = (predict_learned){0};
}
