/* learn.c - training with early stop, the operating point, and the rivals (learn.h). */
#include "predict/learn.h"
#include "predict/ridge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PATIENCE = 3, JUDGE_BATCH = 256 };

const char *const predict_learn_method_names[LEARN_N_METHODS] = {"gate", "predictor", "static", "linear", "never"};

int predict_learn_default_rank(int n_embd) {
    const int rank = (n_embd / 6 + 8) / 16 * 16;
    return rank < 16 ? 16 : rank;
}

/* ---- training ------------------------------------------------------------------------------------------------- */

typedef struct trainer {
    const predict_examples *e;
    const predict_learn_options *o;
    predict_network net, gradient, best, folded;
    predict_adam adam;
    predict_network_scratch scratch;
    predict_network_weights weights;
    uint32_t *order; // of the training tokens
    float *x;        // (n_batch, n_in)
    uint8_t *open;   // (n_batch, stride)
    dw_rng rng;
} trainer;

static int take_memory(trainer *t, dw_err *err) {
    const predict_examples *e = t->e;
    const int n_batch = t->o->n_batch > JUDGE_BATCH ? t->o->n_batch : JUDGE_BATCH;
    predict_network *const nets[] = {&t->net, &t->gradient, &t->best, &t->folded};
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++)
        if (predict_network_init(nets[i], e->n_in, t->o->rank, e->n_groups, err)) return -1;
    t->order = dw_alloc(e->n[EXAMPLES_TRAIN], sizeof *t->order, "a batch", err);
    t->x = dw_alloc((size_t)n_batch * (size_t)e->n_in, sizeof *t->x, "a batch", err);
    t->open = dw_alloc((size_t)n_batch, e->stride, "a batch", err);
    return t->order && t->x && t->open && !predict_adam_init(&t->adam, &t->net, t->o->rate, 0.01, err) &&
                   !predict_network_scratch_init(&t->scratch, &t->net, n_batch, err)
               ? 0
               : -1;
}

static void release(trainer *t) {
    predict_network_release(&t->net), predict_network_release(&t->gradient), predict_network_release(&t->best),
        predict_network_release(&t->folded);
    predict_adam_release(&t->adam);
    predict_network_scratch_release(&t->scratch);
    free(t->order), free(t->x), free(t->open);
}

/* The same network for inputs as they are: standardized = (x - mean) * scale. */
static void fold(const predict_network *net, const predict_examples *e, predict_network *out) {
    memcpy(out->params, net->params, net->n_params * sizeof *net->params);
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

static double mean_loss(trainer *t, const predict_network *net, predict_examples_part part) {
    const predict_examples *e = t->e;
    double sum = 0;
    for (size_t i = 0; i < e->n[part]; i += JUDGE_BATCH) {
        const int n = e->n[part] - i < JUDGE_BATCH ? (int)(e->n[part] - i) : JUDGE_BATCH;
        sum += n * predict_network_loss(net, e->x[part] + i * (size_t)e->n_in, e->open[part] + i * e->stride, e->stride,
                                        n, t->weights, &t->scratch, NULL);
    }
    return sum / (double)e->n[part];
}

static void shuffle(trainer *t) {
    for (size_t i = t->e->n[EXAMPLES_TRAIN]; i > 1; i--) {
        const size_t k = (size_t)dw_rng_below(&t->rng, i);
        const uint32_t swap = t->order[i - 1];
        t->order[i - 1] = t->order[k];
        t->order[k] = swap;
    }
}

/* The rate falls with every batch: `done` of all epochs is over. */
static void train_batch(trainer *t, size_t first, int n, double done) {
    const predict_examples *e = t->e;
    for (int i = 0; i < n; i++) {
        const size_t at = t->order[first + (size_t)i];
        memcpy(t->x + (size_t)i * (size_t)e->n_in, e->x[EXAMPLES_TRAIN] + at * (size_t)e->n_in,
               (size_t)e->n_in * sizeof *t->x);
        memcpy(t->open + (size_t)i * e->stride, e->open[EXAMPLES_TRAIN] + at * e->stride, e->stride);
    }
    t->adam.rate = t->o->rate * (1 - done);
    predict_network_loss(&t->net, t->x, t->open, e->stride, n, t->weights, &t->scratch, &t->gradient);
    predict_adam_step(&t->adam, &t->net, &t->gradient);
}

static void train_epoch(trainer *t, int epoch) {
    const size_t n_all = t->e->n[EXAMPLES_TRAIN], n_batch = (size_t)t->o->n_batch;
    shuffle(t);
    for (size_t i = 0; i < n_all; i += n_batch)
        train_batch(t, i, (int)(n_all - i < n_batch ? n_all - i : n_batch),
                    (epoch + (double)i / (double)n_all) / t->o->n_epochs);
}

/* Leaves the best epoch's network, for inputs as they are, in t->folded; the number of epochs that were run. */
static int train(trainer *t) {
    const int n_epochs = t->o->n_epochs;
    fold(&t->net, t->e, &t->best);
    double least = mean_loss(t, &t->best, EXAMPLES_CHOOSE);
    int best_epoch = 0, epoch = 0;
    while (epoch < n_epochs && epoch - best_epoch < PATIENCE) {
        train_epoch(t, epoch++);
        fold(&t->net, t->e, &t->folded);
        const double loss = mean_loss(t, &t->folded, EXAMPLES_CHOOSE);
        if (loss < least) {
            least = loss;
            best_epoch = epoch;
            memcpy(t->best.params, t->folded.params, t->best.n_params * sizeof *t->best.params);
        }
        if (t->o->on_epoch) t->o->on_epoch(t->o->ctx, 1);
    }
    if (t->o->on_epoch) t->o->on_epoch(t->o->ctx, n_epochs - epoch);
    memcpy(t->folded.params, t->best.params, t->best.n_params * sizeof *t->best.params);
    return isfinite(least) ? epoch : -1;
}

static double mean_rate(const predict_examples *e) {
    double sum = 0;
    for (int g = 0; g < e->n_groups; g++) sum += e->rate[g];
    return sum / e->n_groups;
}

static int round_to_f16(float *v, size_t n, dw_err *err) {
    for (size_t i = 0; i < n; i++) {
        v[i] = dw_f16_to_f32(dw_f32_to_f16(v[i]));
        if (!isfinite(v[i])) return dw_fail(err, "a weight of the predictor is beyond F16; lower --lr");
    }
    return 0;
}

/* The standard deviation of a hidden unit of the linear map on as many training tokens as a batch has. */
static double deviation_of(const trainer *t, const float *row) {
    const predict_examples *e = t->e;
    const size_t n_in = (size_t)e->n_in, n = e->n[EXAMPLES_TRAIN] < (size_t)t->scratch.n_batch
                                                 ? e->n[EXAMPLES_TRAIN]
                                                 : (size_t)t->scratch.n_batch;
    double square = 0;
    for (size_t k = 0; k < n; k++) {
        double z = 0;
        for (size_t j = 0; j < n_in; j++) z += (double)row[j] * (double)e->x[EXAMPLES_TRAIN][k * n_in + j];
        square += z * z;
    }
    return sqrt(square / (double)n);
}

/* The network begins as the linear map: hidden units of unit variance, lifted so far that relu lets nearly all of them pass, and
 * outputs with the slope of a logit.  Units beyond the linear map's rank, or that hardly vary, begin at random, unused. */
static void seed_network(trainer *t, const predict_ridge *linear) {
    enum { LIFT = 2, SLOPE = 4 };
    predict_network *net = &t->net;
    const predict_examples *e = t->e;
    for (float *p = net->a; p < net->a_bias; p++) *p = (float)(sqrt(2.0 / net->n_in) * dw_rng_normal(&t->rng));
    for (int g = 0; g < net->n_out; g++) {
        const double p = fmin(fmax(e->rate[g], 1e-3), 1 - 1e-3);
        net->b_bias[g] = (float)log(p / (1 - p));
    }
    for (int i = 0; i < linear->rank; i++) {
        const float *row = linear->a + (size_t)i * (size_t)net->n_in;
        const float deviation = (float)deviation_of(t, row);
        if (deviation < 1e-3f) continue;
        for (int j = 0; j < net->n_in; j++) net->a[(size_t)i * (size_t)net->n_in + (size_t)j] = row[j] / deviation;
        net->a_bias[i] = LIFT;
        for (int g = 0; g < net->n_out; g++) {
            const float b = SLOPE * deviation * linear->b[(size_t)g * (size_t)linear->rank + (size_t)i];
            net->b[(size_t)g * (size_t)net->rank + (size_t)i] = b;
            net->b_bias[g] -= LIFT * b;
        }
    }
}

/* ---- scores ------------------------------------------------------------------------------------------------------- */

typedef struct judge {
    const predict_examples *e;
    float *score;           // (n, n_groups) of the part at hand
    float *hidden;          // scratch of the linear rival
    uint8_t *chosen;        // (n, stride)
    predict_scored *scored; // (n * n_groups)
} judge;

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static int judge_init(judge *j, const predict_examples *e, int rank, dw_err *err) {
    const size_t n = larger(e->n[EXAMPLES_CHOOSE], e->n[EXAMPLES_HELD_OUT]), n_groups = (size_t)e->n_groups;
    *j = (judge){.e = e};
    j->score = dw_alloc(n * n_groups, sizeof *j->score, "scores", err);
    j->hidden = dw_alloc(n * (size_t)rank, sizeof *j->hidden, "scores", err);
    j->chosen = dw_alloc(n, e->stride, "decisions", err);
    j->scored = dw_alloc(n * n_groups, sizeof *j->scored, "scores", err);
    return j->score && j->hidden && j->chosen && j->scored ? 0 : -1;
}

static void judge_release(judge *j) { free(j->score), free(j->hidden), free(j->chosen), free(j->scored); }

static void score_network(judge *j, const predict_network *net, predict_network_scratch *s,
                          predict_examples_part part) {
    const predict_examples *e = j->e;
    for (size_t i = 0; i < e->n[part]; i += JUDGE_BATCH) {
        const int n = e->n[part] - i < JUDGE_BATCH ? (int)(e->n[part] - i) : JUDGE_BATCH;
        predict_network_scores(net, e->x[part] + i * (size_t)e->n_in, n, s);
        memcpy(j->score + i * (size_t)e->n_groups, s->score, (size_t)n * (size_t)e->n_groups * sizeof *j->score);
    }
}

/* The threshold at which the choosing part's scores bring what is wanted. */
static float operating_point(judge *j, const predict_learn_options *o) {
    const predict_examples *e = j->e;
    const size_t n = e->n[EXAMPLES_CHOOSE], n_groups = (size_t)e->n_groups;
    double gate_worth = 0;
    for (size_t i = 0; i < n * n_groups; i++) {
        const bool is_open = traces_is_open(e->open[EXAMPLES_CHOOSE] + i / n_groups * e->stride, (int)(i % n_groups));
        const float worth = o->recall > 0 ? (float)is_open : dw_f16_to_f32(e->share[EXAMPLES_CHOOSE][i]);
        j->scored[i] = (predict_scored){j->score[i], worth};
        gate_worth += is_open ? (double)worth : 0;
    }
    return predict_tally_threshold(j->scored, n * n_groups, (o->recall > 0 ? o->recall : o->mass) * gate_worth);
}

/* The threshold at which the choosing part's scores open n_open groups. */
static float point_of_count(judge *j, uint64_t n_open) {
    const size_t n = j->e->n[EXAMPLES_CHOOSE] * (size_t)j->e->n_groups;
    for (size_t i = 0; i < n; i++) j->scored[i] = (predict_scored){j->score[i], 1};
    return predict_tally_threshold(j->scored, n, (double)n_open);
}

static uint64_t count_chosen(const judge *j, float threshold, predict_examples_part part) {
    uint64_t n = 0;
    for (size_t i = 0; i < j->e->n[part] * (size_t)j->e->n_groups; i++) n += j->score[i] >= threshold;
    return n;
}

/* ---- judging -------------------------------------------------------------------------------------------------------- */

static void judge_chosen(const judge *j, predict_learned *r, predict_learn_method m, const uint8_t *chosen) {
    const predict_examples *e = j->e;
    predict_tally_rows(&r->held_out[m], chosen, e->open[EXAMPLES_HELD_OUT], e->share[EXAMPLES_HELD_OUT], e->n_groups,
                       e->n[EXAMPLES_HELD_OUT], r->mass[m]);
}

static void judge_scores(judge *j, predict_learned *r, predict_learn_method m, float threshold) {
    predict_tally_choose(j->score, threshold, j->e->n_groups, j->e->n[EXAMPLES_HELD_OUT], j->chosen);
    judge_chosen(j, r, m, j->chosen);
}

/* The k groups of most mass, for every token. */
static void judge_static(judge *j, predict_learned *r, size_t k) {
    const predict_examples *e = j->e;
    const size_t n_groups = (size_t)e->n_groups;
    for (size_t g = 0; g < n_groups; g++) j->scored[g] = (predict_scored){(float)e->mass[g], 1};
    const float threshold = predict_tally_threshold(j->scored, n_groups, (double)k);
    for (size_t i = 0; i < e->n[EXAMPLES_HELD_OUT] * n_groups; i++) j->score[i] = (float)e->mass[i % n_groups];
    judge_scores(j, r, LEARN_STATIC, threshold);
}

/* A map of inputs as they are, which opens n_open groups of the choosing part. */
static void judge_linear(judge *j, predict_learned *r, const predict_ridge *linear, uint64_t n_open) {
    const predict_examples *e = j->e;
    predict_ridge_scores(linear, e->x[EXAMPLES_CHOOSE], (int)e->n[EXAMPLES_CHOOSE], j->hidden, j->score);
    const float threshold = point_of_count(j, n_open);
    predict_ridge_scores(linear, e->x[EXAMPLES_HELD_OUT], (int)e->n[EXAMPLES_HELD_OUT], j->hidden, j->score);
    judge_scores(j, r, LEARN_LINEAR, threshold);
}

/* Sets the operating point of t->folded and fills the result. */
static int conclude(trainer *t, judge *j, const predict_ridge *linear, predict_learned *r, dw_err *err) {
    const predict_examples *e = t->e;
    predict_network *net = &t->folded;
    if (round_to_f16(net->a, (size_t)(net->a_bias - net->a), err) ||
        round_to_f16(net->b, (size_t)(net->b_bias - net->b), err))
        return -1;
    score_network(j, net, &t->scratch, EXAMPLES_CHOOSE);
    const float threshold = operating_point(j, t->o);
    const uint64_t n_open = count_chosen(j, threshold, EXAMPLES_CHOOSE);
    for (int g = 0; g < net->n_out; g++) net->b_bias[g] -= threshold;
    score_network(j, net, &t->scratch, EXAMPLES_HELD_OUT);
    judge_scores(j, r, LEARN_PREDICTOR, 0);
    judge_chosen(j, r, LEARN_GATE, e->open[EXAMPLES_HELD_OUT]);
    judge_static(j, r, (size_t)(predict_tally_active(&r->held_out[LEARN_PREDICTOR]) * e->n_groups + 0.5));
    memset(j->chosen, 0, e->n[EXAMPLES_HELD_OUT] * e->stride);
    judge_chosen(j, r, LEARN_NEVER, j->chosen);
    judge_linear(j, r, linear, n_open);
    r->net = *net;
    *net = (predict_network){0};
    return 0;
}

static int train_and_judge(trainer *t, judge *j, predict_learned *r, dw_err *err) {
    const predict_examples *e = t->e;
    const double p = mean_rate(e), positive = t->o->positive_weight > 0 ? t->o->positive_weight : 1 / (p + 0.005);
    predict_ridge linear;
    t->weights = (predict_network_weights){.open = (float)positive, .closed = 1};
    for (size_t i = 0; i < e->n[EXAMPLES_TRAIN]; i++) t->order[i] = (uint32_t)i;
    dw_rng_seed(&t->rng, t->o->seed);
    int rc = predict_ridge_fit(&linear, e->x[EXAMPLES_TRAIN], e->open[EXAMPLES_TRAIN], e->stride, e->n[EXAMPLES_TRAIN],
                               e->n_in, e->n_groups, t->o->rank, e->rate, err);
    if (!rc) {
        seed_network(t, &linear);
        predict_ridge_fold(&linear, e->mean, e->scale);
        r->n_epochs = train(t);
        rc = r->n_epochs < 0 ? dw_fail(err, "the loss became infinite or NaN; lower --lr")
                             : conclude(t, j, &linear, r, err);
    }
    predict_ridge_release(&linear);
    return rc;
}

double predict_learn_bytes(const traces *t, int layer, int rank, int n_batch) {
    const double d = t->n_embd, n_groups = t->layer[layer].n_groups, r = rank,
                 n_train = (double)predict_examples_count(t, EXAMPLES_TRAIN);
    const double n_choose = (double)predict_examples_count(t, EXAMPLES_CHOOSE),
                 n_held_out = (double)predict_examples_count(t, EXAMPLES_HELD_OUT);
    const double batch = n_batch > JUDGE_BATCH ? n_batch : JUDGE_BATCH, judged = fmax(n_choose, n_held_out);
    const double networks = 6 * 4 * (r * (d + n_groups) + r + n_groups); // four and Adam's two
    const double batches = 4 * n_train + batch * (4 * d + n_groups / 8 + 1 + 4 * (2 * r + n_groups));
    const double judging = judged * (12 * n_groups + 4 * r + n_groups / 8 + 1) + 4 * LEARN_N_METHODS * n_held_out;
    const double linear = d * d * (8 + 3 * 4 + 3 * 4) + 4 * n_groups * (d + 512) +
                          4 * r * (d + n_groups); // LAPACK: 3 d^2 floats
    return networks + batches + judging + linear;
}

int predict_learn_layer(predict_learned *result, const predict_examples *e, const predict_learn_options *o,
                        dw_err *err) {
    trainer t = {.e = e, .o = o};
    judge j = {0};
    *result = (predict_learned){0};
    int rc = take_memory(&t, err) || judge_init(&j, e, o->rank, err) ? -1 : 0;
    for (int m = 0; m < LEARN_N_METHODS && !rc; m++)
        if (!(result->mass[m] = dw_alloc(e->n[EXAMPLES_HELD_OUT], sizeof *result->mass[m], "captured masses", err)))
            rc = -1;
    if (!rc) rc = train_and_judge(&t, &j, result, err);
    judge_release(&j);
    release(&t);
    return rc;
}

void predict_learned_release(predict_learned *r) {
    predict_network_release(&r->net);
    for (int m = 0; m < LEARN_N_METHODS; m++) free(r->mass[m]);
    *r = (predict_learned){0};
}
