/* test_train.c - predictors: gradients, thresholds, the linear rival, a planted problem, and train's files and
 * figures. */
#include "build.h"
#include "model/model.h"
#include "planted_gate.h"
#include "predict/journal.h"
#include "predict/learn.h"
#include "predict/report.h"
#include "predict/ridge.h"
#include "test.h"
#include "text/tokenizers.h"

#include <cblas.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void randomize(float *v, size_t n, double scale, dw_rng *rng) {
    for (size_t i = 0; i < n; i++) v[i] = (float)(scale * dw_rng_normal(rng));
}

/* ---- networks ---------------------------------------------------------------------------------------------------- */

/* The loss in doubles, from the formulas. */
static double plain_loss(const predict_network *net, const predict_batch *b) {
    double sum = 0;
    for (int t = 0; t < b->n; t++) {
        double hidden[64];
        for (int i = 0; i < net->rank; i++) {
            hidden[i] = (double)net->a_bias[i];
            for (int j = 0; j < net->n_in; j++)
                hidden[i] += (double)net->a[i * net->n_in + j] * (double)b->x[t * net->n_in + j];
            hidden[i] = fmax(hidden[i], 0);
        }
        for (int g = 0; g < net->n_out; g++) {
            const double m = (double)dw_f16_to_f32(b->share[t * net->n_out + g]);
            double s = (double)net->b_bias[g];
            for (int i = 0; i < net->rank; i++) s += (double)net->b[g * net->rank + i] * hidden[i];
            sum += m / (double)b->price * log1p(exp(-s)) + log1p(exp(s));
        }
    }
    return sum / ((double)b->n * net->n_out);
}

static void gradients(void) {
    enum { N = 9, IN = 7, RANK = 5, OUT = 11 };
    predict_network net, d;
    predict_network_scratch s;
    dw_err err = {0};
    dw_rng rng;
    float x[N * IN];
    uint16_t share[N * OUT];
    const predict_batch b = {.x = x, .share = share, .n = N, .price = 0.03f};
    dw_rng_seed(&rng, 11);
    REQUIRE(!predict_network_init(&net, IN, RANK, OUT, &err) && !predict_network_init(&d, IN, RANK, OUT, &err) &&
                !predict_network_scratch_init(&s, &net, N, &err), "%s", err.text);
    randomize(net.params, net.n_params, 0.7, &rng);
    randomize(x, N * IN, 1, &rng);
    for (int i = 0; i < N * OUT; i++) share[i] = dw_f32_to_f16((float)pow(dw_rng_uniform(&rng), 4));
    const double loss = predict_network_loss(&net, &b, &s, &d), plain = plain_loss(&net, &b);
    CHECK(fabs(loss - plain) <= 1e-6 * plain, "%.9g, expected %.9g", loss, plain);
    double worst = 0, largest = 0;
    for (size_t i = 0; i < net.n_params; i++) {
        const float kept = net.params[i], step = 1e-4f;
        net.params[i] = kept + step;
        const double above = plain_loss(&net, &b), up = (double)net.params[i];
        net.params[i] = kept - step;
        const double slope = (above - plain_loss(&net, &b)) / (up - (double)net.params[i]);
        net.params[i] = kept;
        worst = fmax(worst, fabs(slope - (double)d.params[i]));
        largest = fmax(largest, fabs(slope));
    }
    CHECK(worst <= 1e-4 * largest, "the worst derivative is off by %g of %g", worst, largest);
    predict_network_release(&net), predict_network_release(&d), predict_network_scratch_release(&s);
}

/* A network of biases alone finds scores ln(mean share / price), so that the sign is the choice at the price. */
static void scores_are_expected_shares(void) {
    enum { N = 200, OUT = 3 };
    static const double mean[OUT] = {0.004, 0.02, 0.3};
    predict_network net, d;
    predict_network_scratch s;
    predict_adam a;
    dw_err err = {0};
    dw_rng rng;
    float x[N] = {0};
    uint16_t share[N * OUT];
    double sum[OUT] = {0};
    const predict_batch b = {.x = x, .share = share, .n = N, .price = 0.02f};
    dw_rng_seed(&rng, 17);
    REQUIRE(!predict_network_init(&net, 1, 1, OUT, &err) && !predict_network_init(&d, 1, 1, OUT, &err) &&
                !predict_network_scratch_init(&s, &net, N, &err) && !predict_adam_init(&a, &net, 0.05, 0, &err),
            "%s", err.text);
    for (int i = 0; i < N * OUT; i++) {
        share[i] = dw_f32_to_f16((float)(mean[i % OUT] * 2 * dw_rng_uniform(&rng)));
        sum[i % OUT] += (double)dw_f16_to_f32(share[i]) / N;
    }
    for (int step = 0; step < 3000; step++) {
        a.rate = 0.05 * (1 - step / 3000.0);
        predict_network_loss(&net, &b, &s, &d);
        predict_adam_step(&a, &net, &d);
    }
    predict_network_scores(&net, x, 1, &s);
    for (int g = 0; g < OUT; g++)
        CHECK(fabs((double)s.score[g] - log(sum[g] / (double)b.price)) < 1e-3, "group %d: score %g, expected %g", g,
              (double)s.score[g], log(sum[g] / (double)b.price));
    predict_network_release(&net), predict_network_release(&d), predict_network_scratch_release(&s),
        predict_adam_release(&a);
}

/* On a quadratic bowl, whose minimum is known. */
static void predict_adam_descends(void) {
    predict_network net, d;
    predict_adam a;
    dw_err err = {0};
    dw_rng rng;
    dw_rng_seed(&rng, 12);
    REQUIRE(!predict_network_init(&net, 4, 3, 5, &err) && !predict_network_init(&d, 4, 3, 5, &err) &&
                !predict_adam_init(&a, &net, 0.05, 0, &err),
            "%s", err.text);
    randomize(net.params, net.n_params, 1, &rng);
    const float first = net.params[0];
    for (int step = 0; step < 2000; step++) {
        for (size_t i = 0; i < net.n_params; i++) d.params[i] = 2 * (net.params[i] - 0.01f * (float)i);
        a.rate = 0.05 * (1 - step / 2000.0);
        predict_adam_step(&a, &net, &d);
        if (!step)
            CHECK(fabs(fabs((double)(net.params[0] - first)) - 0.05) < 1e-4,
                  "the first step is as long as the rate, %g", (double)(net.params[0] - first));
    }
    for (size_t i = 0; i < net.n_params; i++)
        if (!CHECK(fabs((double)net.params[i] - 0.01 * (double)i) < 1e-3, "parameter %zu is %g", i,
                   (double)net.params[i]))
            break;
    predict_network_release(&net), predict_network_release(&d), predict_adam_release(&a);
}

/* ---- the linear rival -------------------------------------------------------------------------------------------- */

enum { R_N = 700, R_IN = 9, R_OUT = 12, R_STRIDE = 2 };

/* sum ||y - rate - BA x||^2 + lambda ||BA||^2, what predict_ridge_fit minimizes */
static double ridge_cost(const predict_ridge *r, const float *x, const uint8_t *open, const double *rate,
                         double lambda) {
    double cost = 0;
    for (int g = 0; g < R_OUT; g++) {
        double w[R_IN] = {0};
        for (int j = 0; j < R_IN; j++) {
            for (int i = 0; i < r->rank; i++) w[j] += (double)r->b[g * r->rank + i] * (double)r->a[i * R_IN + j];
            cost += lambda * w[j] * w[j];
        }
        for (int t = 0; t < R_N; t++) {
            double e = (open[t * R_STRIDE + g / 8] >> (g % 8) & 1) - rate[g];
            for (int j = 0; j < R_IN; j++) e -= w[j] * (double)x[t * R_IN + j];
            cost += e * e;
        }
    }
    return cost;
}

static int ascending(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static void bits_of(const void *open_pointer, size_t t, float *y) {
    const uint8_t *open = open_pointer;
    for (size_t g = 0; g < R_OUT; g++) y[g] = (float)(open[t * R_STRIDE + g / 8] >> (g % 8) & 1);
}

static void linear(void) {
    static float x[R_N * R_IN];
    static uint8_t open[R_N * R_STRIDE];
    double rate[R_OUT] = {0}, diagonal[R_IN] = {0}, before = INFINITY;
    dw_err err = {0};
    dw_rng rng;
    dw_rng_seed(&rng, 13);
    randomize(x, R_N * R_IN, 1, &rng);
    for (int t = 0; t < R_N; t++)
        for (int g = 0; g < R_OUT; g++) {
            const bool y = (double)x[t * R_IN + g % R_IN] - 0.5 * (double)x[t * R_IN] + 0.7 * dw_rng_normal(&rng) > 0.3;
            open[t * R_STRIDE + g / 8] |= (uint8_t)(y << (g % 8));
            rate[g] += y / (double)R_N;
        }
    for (int i = 0; i < R_N * R_IN; i++) diagonal[i % R_IN] += (double)x[i] * (double)x[i];
    qsort(diagonal, R_IN, sizeof *diagonal, ascending);
    const double lambda = 0.01 * diagonal[R_IN / 2];
    const predict_regression p = {
        .x = x, .n = R_N, .n_in = R_IN, .n_out = R_OUT, .mean = rate, .target = bits_of, .ctx = open};
    for (int rank = 1; rank <= R_IN + 2; rank += 2) {
        predict_ridge r;
        REQUIRE(!predict_ridge_fit(&r, &p, rank, &err), "%s", err.text);
        const double cost = ridge_cost(&r, x, open, rate, lambda);
        CHECK(r.rank == (rank < R_IN ? rank : R_IN) && cost <= before * (1 + 1e-6), "rank %d costs %g, a lower one %g",
              rank, cost, before);
        before = cost;
        for (int k = 0; k < 40; k++) { // no small change betters it
            float *at = k % 2 ? &r.a[dw_rng_below(&rng, (uint64_t)(r.rank * R_IN))]
                              : &r.b[dw_rng_below(&rng, (uint64_t)(R_OUT * r.rank))];
            const float kept = *at, step = (float)(1e-2 * dw_rng_normal(&rng)) * (1e-3f + fabsf(kept));
            *at = kept + step;
            CHECK(ridge_cost(&r, x, open, rate, lambda) >= cost * (1 - 1e-7), "rank %d: a change of %g betters it",
                  rank, (double)step);
            *at = kept;
        }
        float hidden[2 * (R_IN + 2)];
        predict_ridge_hidden(&r, x, 2, hidden);
        for (int i = 0; i < 2 * r.rank; i++) {
            double z = 0;
            for (int j = 0; j < R_IN; j++) z += (double)r.a[i % r.rank * R_IN + j] * (double)x[i / r.rank * R_IN + j];
            CHECK(fabs(z - (double)hidden[i]) < 1e-5, "hidden unit %d is %g, expected %g", i % r.rank,
                  (double)hidden[i], z);
        }
        predict_ridge_release(&r);
    }
}

/* ---- counts and thresholds --------------------------------------------------------------------------------------- */

static void counts(void) {
    enum { N = 40, GROUPS = 21, STRIDE = 3 };
    uint8_t open[N * STRIDE] = {0}, chosen[N * STRIDE] = {0};
    uint16_t share[N * GROUPS];
    float mass[N];
    uint64_t n[2][2] = {{0}};
    double sum = 0;
    dw_rng rng;
    dw_rng_seed(&rng, 14);
    for (int t = 0; t < N; t++) {
        double all = 0, captured = 0;
        for (int g = 0; g < GROUPS; g++) {
            const int y = dw_rng_uniform(&rng) < 0.3, c = dw_rng_uniform(&rng) < (y ? 0.8 : 0.1);
            share[t * GROUPS + g] = dw_f32_to_f16(t == 5 ? 0 : (float)dw_rng_uniform(&rng));
            open[t * STRIDE + g / 8] |= (uint8_t)(y << (g % 8));
            chosen[t * STRIDE + g / 8] |= (uint8_t)(c << (g % 8));
            n[y][c]++;
            all += (double)dw_f16_to_f32(share[t * GROUPS + g]);
            captured += c * (double)dw_f16_to_f32(share[t * GROUPS + g]);
        }
        sum += t == 5 ? 1 : captured / all;
    }
    predict_tally whole = {0}, parts = {0}, half = {0};
    predict_tally_rows(&whole, chosen, open, share, GROUPS, N, mass);
    predict_tally_rows(&parts, chosen, open, share, GROUPS, 13, NULL);
    predict_tally_rows(&half, chosen + 13 * STRIDE, open + 13 * STRIDE, share + 13 * GROUPS, GROUPS, N - 13, NULL);
    predict_tally_add(&parts, &half);
    CHECK(parts.n_both == whole.n_both && parts.n_chosen == whole.n_chosen && fabs(parts.mass - whole.mass) < 1e-9);
    CHECK(predict_tally_recall(&whole) == (double)n[1][1] / (double)(n[1][0] + n[1][1]) &&
          predict_tally_precision(&whole) == (double)n[1][1] / (double)(n[0][1] + n[1][1]));
    CHECK(predict_tally_accuracy(&whole) == (double)(n[0][0] + n[1][1]) / (N * GROUPS) &&
          predict_tally_open(&whole) == (double)(n[1][0] + n[1][1]) / (N * GROUPS));
    CHECK(fabs(predict_tally_mass(&whole) - sum / N) < 1e-12 && mass[5] == 1);
    CHECK(predict_tally_percentile_5((float[]){3, 1, 2}, 3) == 1 &&
          isnan(predict_tally_precision(&(predict_tally){.n_decisions = 4})));
}

static void thresholds(void) {
    enum { N = 60 };
    dw_rng rng;
    dw_rng_seed(&rng, 15);
    for (int trial = 0; trial < 300; trial++) {
        predict_scored s[N];
        double all = 0;
        for (int i = 0; i < N; i++) {
            const float score = trial % 3 ? (float)dw_rng_normal(&rng) : (float)dw_rng_below(&rng, 6); // often equal
            s[i] = (predict_scored){score, (float)dw_rng_uniform(&rng)};
            all += (double)s[i].worth;
        }
        const double wanted = trial % 10 ? dw_rng_uniform(&rng) * all : 0;
        const float t = predict_tally_threshold(s, N, wanted);
        double got = 0;
        float least = INFINITY;
        for (int i = 0; i < N; i++)
            if (s[i].score >= t) got += (double)s[i].worth, least = fminf(least, s[i].score);
        double without = 0;
        for (int i = 0; i < N; i++) without += s[i].score > least && s[i].score >= t ? (double)s[i].worth : 0;
        CHECK(got >= wanted && (wanted > 0 ? without < wanted : got == 0),
              "trial %d: %g wanted, %g got, %g without the last", trial, wanted, got, without);
    }
}

/* Groups that tie for the last place open together: the side that is nearer to the wish is taken, of two as near the
 * fewer, and at least one. */
static void ties(void) {
    static const struct {
        float score[8];
        double wanted;
        int n_open;
    } row[] = {{{8, 7, 6, 5, 0, 0, 0, 0}, 6, 4},   {{8, 7, 6, 5, 0, 0, 0, 0}, 6.5, 8}, {{8, 7, 6, 5, 0, 0, 0, 0}, 4, 4},
               {{8, 7, 6, 5, 0, 0, 0, 0}, 2.4, 3}, {{8, 7, 7, 7, 0, 0, 0, 0}, 2, 1},   {{3, 3, 3, 3, 3, 3, 3, 3}, 1, 8},
               {{8, 7, 6, 5, 4, 3, 2, 1}, 0, 0}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        predict_scored s[8];
        int n = 0;
        for (int g = 0; g < 8; g++) s[g] = (predict_scored){row[i].score[g], 1};
        const float t = predict_tally_threshold_near(s, 8, row[i].wanted);
        for (int g = 0; g < 8; g++) n += row[i].score[g] >= t;
        CHECK(n == row[i].n_open, "row %zu: %d open, expected %d", i, n, row[i].n_open);
    }
}

/* ---- a planted problem ------------------------------------------------------------------------------------------- */

enum { P_IN = 32, P_GROUPS = 61, P_TOKENS = 5000, P_RANK = 6 };

typedef struct planted { // open where a product of low rank reaches a threshold
    float x[P_TOKENS][P_IN];
    double w[P_GROUPS][P_IN], threshold[P_GROUPS];
    bool is_linear; // the roots of the shares are linear in x; otherwise shares are large where a group is open
    bool is_bent;   // the roots of the shares are a network's scores
    double u[P_GROUPS][P_RANK], v[P_RANK][P_IN];
} planted;

static planted plan;

static void plant(planted *p) {
    double(*u)[P_RANK] = p->u, (*v)[P_IN] = p->v;
    dw_rng rng;
    dw_rng_seed(&rng, 16);
    for (int g = 0; g < P_GROUPS; g++)
        for (int i = 0; i < P_RANK; i++) u[g][i] = dw_rng_normal(&rng);
    for (int i = 0; i < P_RANK; i++)
        for (int j = 0; j < P_IN; j++) v[i][j] = dw_rng_normal(&rng) / sqrt(P_IN);
    for (int g = 0; g < P_GROUPS; g++) {
        p->threshold[g] = dw_rng_normal(&rng);
        for (int j = 0; j < P_IN; j++) {
            p->w[g][j] = 0;
            for (int i = 0; i < P_RANK; i++) p->w[g][j] += u[g][i] * v[i][j];
        }
    }
    for (int t = 0; t < P_TOKENS; t++)
        for (int j = 0; j < P_IN; j++)
            p->x[t][j] = dw_f16_to_f32(dw_f32_to_f16((float)(0.3 * j + (1 + 0.1 * j) * dw_rng_normal(&rng))));
}

static double planted_score(const planted *p, size_t t, int g) {
    double s = 0;
    for (int j = 0; j < P_IN; j++) s += p->w[g][j] * ((double)p->x[t][j] - 0.3 * j) / (1 + 0.1 * j);
    return s;
}

static bool planted_open(const planted *p, size_t t, int g) { return planted_score(p, t, g) >= p->threshold[g]; }

/* sum of u_i relu(v_i x): what a network of rank P_RANK can say and a linear map cannot */
static double bent_score(const planted *p, size_t t, int g) {
    double sum = 0;
    for (int i = 0; i < P_RANK; i++) {
        double z = 0;
        for (int j = 0; j < P_IN; j++) z += p->v[i][j] * ((double)p->x[t][j] - 0.3 * j) / (1 + 0.1 * j);
        sum += p->u[g][i] * fmax(z, 0);
    }
    return sum;
}

static double planted_share(const planted *p, size_t t, int g) {
    if (p->is_linear) return pow(fmax(0.1 + 0.01 * planted_score(p, t, g), 0), 2);
    if (p->is_bent) return pow(fmin(fmax(0.02 * bent_score(p, t, g), 0), 0.9), 2);
    return planted_open(p, t, g) ? 0.05 : 0.001;
}

static int give(void *ctx, int layer, traces_part part, size_t first, size_t n, uint8_t *to, dw_err *err) {
    const planted *p = ctx;
    (void)layer, (void)err;
    for (size_t t = first; t < first + n; t++) {
        if (part == TRACES_OPEN) memset(to, 0, traces_open_bytes(P_GROUPS));
        for (int g = 0; part == TRACES_OPEN && g < P_GROUPS; g++)
            to[g / 8] |= (uint8_t)(planted_open(p, t, g) << (g % 8));
        if (part == TRACES_OPEN) to += traces_open_bytes(P_GROUPS);
        for (int i = 0; part != TRACES_OPEN && i < (part == TRACES_INPUT ? P_IN : P_GROUPS); i++, to += 2) {
            const uint16_t h = dw_f32_to_f16(part == TRACES_INPUT ? p->x[t][i] : (float)planted_share(p, t, i));
            to[0] = (uint8_t)h, to[1] = (uint8_t)(h >> 8);
        }
    }
    return 0;
}

static bool write_planted(const char *path) {
    static char nothing[] = "";
    traces_layer layer = {P_GROUPS, true};
    kit_stats_text text[2] = {{"a", "", 1, 3, 3000, nothing}, {"b", "", 1, 2, 2000, nothing}};
    traces t = {.n_layer = 1,
                .n_embd = P_IN,
                .n_ctx = 1000,
                .group = 1,
                .arguments = nothing,
                .n_tokens = P_TOKENS,
                .n_text = 2,
                .text = text,
                .layer = &layer};
    dw_err err = {0};
    memset(t.model_sha256, 'a', 64), memset(text[0].sha256, 'b', 64), memset(text[1].sha256, 'c', 64);
    return CHECK(!traces_write(&t, path, give, &plan, &err), "%s", err.text);
}

static void load_planted(const char *name, traces *t, predict_examples *e) {
    dw_err err = {0};
    openblas_set_num_threads(1);
    plant(&plan);
    REQUIRE(write_planted(test_file(name)) && !traces_open(t, test_file(name), &err) &&
                !predict_examples_load(e, t, 0, 0, &err),
            "%s", err.text);
}

/* The static choice by plain loops, where it is less than one group: a part of the mass of the first one. */
static void check_static(const predict_learned *r, const predict_examples *e) {
    const predict_tally *s = &r->held_out[PREDICT_LEARN_STATIC];
    const size_t n = e->n[PREDICT_EXAMPLES_HELD_OUT];
    const double part = (double)r->held_out[PREDICT_LEARN_PREDICTOR].n_chosen / (double)n;
    int best = 0;
    double sum = 0;
    CHECK(part > 0 && part < 1, "%g groups a token", part);
    for (int g = 0; g < e->n_groups; g++)
        if (e->mass[g] > e->mass[best]) best = g;
    for (size_t i = 0; i < n; i++) {
        double all = 0;
        const uint16_t *share = e->share[PREDICT_EXAMPLES_HELD_OUT] + i * (size_t)e->n_groups;
        for (int g = 0; g < e->n_groups; g++) all += (double)dw_f16_to_f32(share[g]);
        const double wanted = part * (double)dw_f16_to_f32(share[best]) / all;
        CHECK(fabs((double)r->mass[PREDICT_LEARN_STATIC][i] - wanted) < 1e-6, "token %zu", i);
        sum += wanted;
    }
    CHECK(fabs(predict_tally_mass(s) - sum / (double)n) < 1e-6 &&
              predict_tally_active(s) == predict_tally_active(&r->held_out[PREDICT_LEARN_PREDICTOR]),
          "static captures %g instead of %g", predict_tally_mass(s), sum / (double)n);
}

static void planted_problem(void) {
    traces t;
    predict_examples e;
    predict_learned r;
    dw_err err = {0};
    load_planted("planted.h5", &t, &e);
    CHECK(e.n[PREDICT_EXAMPLES_TRAIN] == 4000 && e.n[PREDICT_EXAMPLES_CHOOSE] == 500 &&
          e.n[PREDICT_EXAMPLES_HELD_OUT] == 500);
    CHECK(e.x[PREDICT_EXAMPLES_HELD_OUT][0] == plan.x[2700][0] &&
              e.x[PREDICT_EXAMPLES_HELD_OUT][300 * P_IN + 1] == plan.x[4800][1],
          "the last tenth of each text, as it is");
    predict_learn_options o = {.rank = 16, .n_epochs = 40, .n_batch = 64, .rate = 0.003, .recall = 0.98};
    REQUIRE(!predict_learn_layer(&r, &e, &o, &err), "%s", err.text);
    const predict_tally *p = &r.held_out[PREDICT_LEARN_PREDICTOR];
    CHECK(predict_tally_recall(p) > 0.97 && predict_tally_precision(p) > 0.97, "recall %g, precision %g",
          predict_tally_recall(p), predict_tally_precision(p));
    CHECK(predict_tally_mass(p) >= predict_tally_mass(&r.held_out[PREDICT_LEARN_LINEAR]) &&
          predict_tally_mass(p) >= predict_tally_mass(&r.held_out[PREDICT_LEARN_NETWORK]));
    CHECK(predict_tally_recall(p) > predict_tally_recall(&r.held_out[PREDICT_LEARN_STATIC]) + 0.1);
    CHECK(fabs(predict_tally_accuracy(&r.held_out[PREDICT_LEARN_NEVER]) - (1 - predict_tally_open(p))) < 1e-12 &&
          predict_tally_recall(&r.held_out[PREDICT_LEARN_GATE]) == 1);
    predict_learned_release(&r);
    o.recall = 0, o.mass = 0.9, o.n_epochs = 2;
    REQUIRE(!predict_learn_layer(&r, &e, &o, &err), "%s", err.text);
    CHECK(fabs(predict_tally_mass(&r.held_out[PREDICT_LEARN_PREDICTOR]) /
                   predict_tally_mass(&r.held_out[PREDICT_LEARN_GATE]) -
               0.9) < 0.03,
          "captures %g of the gate's %g", predict_tally_mass(&r.held_out[PREDICT_LEARN_PREDICTOR]),
          predict_tally_mass(&r.held_out[PREDICT_LEARN_GATE]));
    predict_learned_release(&r);
    o.activity = 0.25;
    REQUIRE(!predict_learn_layer(&r, &e, &o, &err), "%s", err.text);
    for (int m = PREDICT_LEARN_PREDICTOR; m <= PREDICT_LEARN_NETWORK; m++) {
        const double active = predict_tally_active(&r.held_out[m]);
        CHECK(fabs(active - 0.25) < 0.02, "%s opens %g, wanted is 0.25", predict_learn_method_names[m], active);
    }
    predict_learned_release(&r);
    o.activity = 0.4 / P_GROUPS; // less than half a group
    REQUIRE(!predict_learn_layer(&r, &e, &o, &err), "%s", err.text);
    check_static(&r, &e);
    predict_learned_release(&r), predict_examples_release(&e), traces_release(&t);
}

/* Half of the groups have no mass, so the closed form gives them all one score. */
static void groups_without_mass(void) {
    traces t;
    predict_examples e;
    predict_learned r;
    dw_err err = {0};
    load_planted("half.h5", &t, &e);
    for (int part = 0; part < PREDICT_EXAMPLES_N_PARTS; part++)
        for (size_t i = 0; i < e.n[part] * (size_t)e.n_groups; i++)
            if (i % P_GROUPS >= P_GROUPS / 2) e.share[part][i] = 0;
    for (int g = P_GROUPS / 2; g < P_GROUPS; g++) e.mass[g] = 0;
    const predict_learn_options o = {.rank = 16, .n_epochs = 2, .n_batch = 64, .rate = 0.003, .activity = 0.6};
    REQUIRE(!predict_learn_layer(&r, &e, &o, &err), "%s", err.text);
    for (int m = PREDICT_LEARN_PREDICTOR; m <= PREDICT_LEARN_NETWORK; m++) { // about 30 of 61 groups; with ties all
        const double active = predict_tally_active(&r.held_out[m]);
        CHECK(active > 0.4 && active < 0.65, "%s opens %g", predict_learn_method_names[m], active);
    }
    predict_learned_release(&r), predict_examples_release(&e), traces_release(&t);
}

/* Groups of equal mass: the static choice has as many as it says, and finds what these find. */
static void static_ties(void) {
    traces t;
    predict_examples e;
    predict_learned r;
    dw_err err = {0};
    double n_both = 0;
    load_planted("equal.h5", &t, &e);
    for (int g = 0; g < P_GROUPS; g++) e.mass[g] = 1;
    const predict_learn_options o = {.rank = 16, .n_epochs = 2, .n_batch = 64, .rate = 0.003, .activity = 0.25};
    REQUIRE(!predict_learn_layer(&r, &e, &o, &err), "%s", err.text);
    const predict_tally *s = &r.held_out[PREDICT_LEARN_STATIC];
    const size_t n = e.n[PREDICT_EXAMPLES_HELD_OUT], k = s->n_chosen / n;
    const double part = (double)(s->n_chosen % n) / (double)n;
    for (size_t i = 0; i < n; i++)
        for (size_t g = 0; g <= k; g++) {
            const uint8_t *open = e.open[PREDICT_EXAMPLES_HELD_OUT] + i * e.stride;
            n_both += (g < k ? 1 : part) * traces_is_open(open, (int)g);
        }
    CHECK(fabs((double)s->n_both - n_both) < 1 && s->n_both <= s->n_chosen, "%g found, counted %g", (double)s->n_both,
          n_both);
    predict_learned_release(&r), predict_examples_release(&e), traces_release(&t);
}

/* What no linear map can know. */
static void network_wins(void) {
    traces t;
    predict_examples e;
    predict_learned r;
    dw_err err = {0};
    plan.is_bent = true;
    load_planted("bent.h5", &t, &e);
    plan.is_bent = false;
    const predict_learn_options o = {.rank = 16, .n_epochs = 40, .n_batch = 64, .rate = 0.01, .activity = 0.3};
    REQUIRE(!predict_learn_layer(&r, &e, &o, &err), "%s", err.text);
    const predict_tally *h = r.held_out;
    const double network = predict_tally_mass(&h[PREDICT_LEARN_NETWORK]),
                 map = predict_tally_mass(&h[PREDICT_LEARN_LINEAR]);
    CHECK(!r.is_linear && predict_tally_mass(&h[PREDICT_LEARN_PREDICTOR]) == network,
          "the trained network is the predictor");
    CHECK(network > map + 0.005 && network > predict_tally_mass(&h[PREDICT_LEARN_STATIC]) + 0.1,
          "network %g, linear %g, static %g", network, map, predict_tally_mass(&h[PREDICT_LEARN_STATIC]));
    predict_learned_release(&r), predict_examples_release(&e), traces_release(&t);
}

/* Layers from which nothing can be learnt are refused in a line that says why. */
static void nothing_to_learn(void) {
    traces t;
    predict_examples e;
    predict_learned r;
    dw_err err = {0};
    load_planted("empty.h5", &t, &e);
    predict_learn_options o = {.rank = 4, .n_epochs = 1, .n_batch = 64, .rate = 0.01, .mass = 0.9};
    for (int part = 0; part < PREDICT_EXAMPLES_N_PARTS; part++) memset(e.open[part], 0, e.n[part] * e.stride);
    for (int by_recall = 0; by_recall < 2; by_recall++) {
        o.recall = by_recall ? 0.9 : 0;
        err = (dw_err){0};
        CHECK(predict_learn_layer(&r, &e, &o, &err));
        check_sentence(&err, "opens no group for the 500 tokens that choose", "a gate that is closed for all tokens");
        predict_learned_release(&r);
    }
    o.activity = 0.25, err = (dw_err){0};
    CHECK(!predict_learn_layer(&r, &e, &o, &err), "an activity can be reached all the same: %s", err.text);
    predict_learned_release(&r);
    for (int is_nan = 0; is_nan < 2; is_nan++) {
        for (int g = 0; g < e.n_groups; g++) e.mass[g] = is_nan ? NAN : 0;
        for (size_t i = 0; i < e.n[PREDICT_EXAMPLES_TRAIN] * (size_t)e.n_groups; i++)
            e.share[PREDICT_EXAMPLES_TRAIN][i] = is_nan ? 0x7e00 : 0;
        err = (dw_err){0};
        CHECK(predict_learn_layer(&r, &e, &o, &err));
        check_sentence(&err, "no mass (0 or NaN) on the 4000 tokens that train", "shares of nothing");
        predict_learned_release(&r);
    }
    predict_examples_release(&e), traces_release(&t);
}

static int largest_first(const void *a, const void *b) {
    const predict_scored *x = a, *y = b;
    return (x->score < y->score) - (x->score > y->score);
}

/* What no training can better: the roots of the shares are linear in the input, at a rank that the predictor has. */
static void closed_form_wins(void) {
    traces t;
    predict_examples e;
    predict_learned r;
    dw_err err = {0};
    plan.is_linear = true;
    load_planted("linear.h5", &t, &e);
    plan.is_linear = false;
    const predict_learn_options o = {.rank = P_RANK, .n_epochs = 2, .n_batch = 64, .rate = 0.05, .activity = 0.3};
    REQUIRE(!predict_learn_layer(&r, &e, &o, &err), "%s", err.text);
    const predict_tally *h = r.held_out;
    CHECK(r.is_linear &&
              predict_tally_mass(&h[PREDICT_LEARN_PREDICTOR]) == predict_tally_mass(&h[PREDICT_LEARN_LINEAR]),
          "the closed form is returned");
    CHECK(predict_tally_mass(&h[PREDICT_LEARN_LINEAR]) > predict_tally_mass(&h[PREDICT_LEARN_NETWORK]),
          "linear %g, trained %g", predict_tally_mass(&h[PREDICT_LEARN_LINEAR]),
          predict_tally_mass(&h[PREDICT_LEARN_NETWORK]));
    double best = 0; // the true largest shares over all held-out tokens, as many
    size_t n = 0;
    predict_scored *all = dw_alloc(e.n[PREDICT_EXAMPLES_HELD_OUT] * P_GROUPS, sizeof *all, "shares", &err);
    for (size_t i = 0; i < e.n[PREDICT_EXAMPLES_HELD_OUT]; i++) {
        double sum = 0;
        const uint16_t *share = e.share[PREDICT_EXAMPLES_HELD_OUT] + i * P_GROUPS;
        for (int g = 0; g < P_GROUPS; g++) sum += (double)dw_f16_to_f32(share[g]);
        for (int g = 0; g < P_GROUPS; g++) {
            const float m = dw_f16_to_f32(share[g]);
            all[n++] = (predict_scored){m, (float)((double)m / sum)};
        }
    }
    qsort(all, n, sizeof *all, largest_first);
    for (uint64_t i = 0; i < h[PREDICT_LEARN_LINEAR].n_chosen; i++)
        best += (double)all[i].worth / (double)e.n[PREDICT_EXAMPLES_HELD_OUT];
    CHECK(predict_tally_mass(&h[PREDICT_LEARN_LINEAR]) > 0.995 * best, "captures %g of the possible %g",
          predict_tally_mass(&h[PREDICT_LEARN_LINEAR]), best);
    free(all);
    predict_learned_release(&r), predict_examples_release(&e), traces_release(&t);
}

/* Inputs of a mean of 320 deviations, so that F16 weights lose much.  The network captures 0.90184 of the choosing part
 * before its weights are rounded and 0.90081 after, the closed form 0.90147 after. */
static void forms_as_stored(void) {
    traces t;
    predict_examples e;
    predict_learned r;
    dw_err err = {0};
    const float far = 320;
    plan.is_bent = true;
    load_planted("far.h5", &t, &e);
    plan.is_bent = false;
    for (int j = 0; j < e.n_in; j++) e.mean[j] += far;
    for (int part = PREDICT_EXAMPLES_CHOOSE; part <= PREDICT_EXAMPLES_HELD_OUT; part++) // these are not standardized
        for (size_t i = 0; i < e.n[part] * (size_t)e.n_in; i++) e.x[part][i] += far;
    const predict_learn_options o = {
        .rank = P_RANK, .n_epochs = 1, .n_batch = 64, .rate = 0.003, .activity = 0.3, .seed = 5};
    REQUIRE(!predict_learn_layer(&r, &e, &o, &err), "%s", err.text);
    const predict_tally *h = r.held_out;
    CHECK(r.is_linear &&
              predict_tally_mass(&h[PREDICT_LEARN_PREDICTOR]) == predict_tally_mass(&h[PREDICT_LEARN_LINEAR]),
          "linear %g, network %g, predictor %g", predict_tally_mass(&h[PREDICT_LEARN_LINEAR]),
          predict_tally_mass(&h[PREDICT_LEARN_NETWORK]), predict_tally_mass(&h[PREDICT_LEARN_PREDICTOR]));
    predict_learned_release(&r), predict_examples_release(&e), traces_release(&t);
}

/* ---- gains ------------------------------------------------------------------------------------------------------- */

/* 300 and 250 tokens in windows of 10: held out are the last three windows of the first, and half a window and two
 * more of the second.  The predictor captures d_w more in window w. */
static void gains(void) {
    enum { N = 30 + 25, N_WINDOWS = 6 };
    static const double difference[N_WINDOWS] = {0.02, 0.05, 0.03, -0.01, 0.04, 0.02};
    static const int n_tokens[N_WINDOWS] = {10, 10, 10, 5, 10, 10};
    kit_stats_text text[2] = {{.n_tokens = 300}, {.n_tokens = 250}};
    const traces t = {.n_ctx = 12, .skip = 2, .n_text = 2, .text = text, .n_tokens = 550};
    dw_err err = {0};
    predict_windows w;
    predict_result x = {0};
    float *mass[PREDICT_LEARN_N_METHODS];
    REQUIRE(!predict_windows_of(&w, &t, &err) && w.n == N_WINDOWS && w.n_tokens == N, "%s", err.text);
    for (int m = 0; m < PREDICT_LEARN_N_METHODS; m++) {
        mass[m] = dw_alloc(2 * N, sizeof *mass[m], "masses", &err);
        for (int i = 0; i < 2 * N; i++)
            mass[m][i] = (float)(0.9 - (m == PREDICT_LEARN_PREDICTOR ? 0 : difference[w.of[i % N]]));
    }
    REQUIRE(!predict_result_gains(&x, mass, 2, &w, &err), "%s", err.text); // two layers alike
    double sum = 0, square = 0;
    for (int k = 0; k < N_WINDOWS; k++) sum += n_tokens[k] * difference[k] / N;
    for (int k = 0; k < N_WINDOWS; k++) square += pow(n_tokens[k] * (difference[k] - sum), 2);
    const double se = sqrt(square * N_WINDOWS / (N_WINDOWS - 1)) / N;
    const predict_gain *g = &x.gain[PREDICT_LEARN_STATIC];
    CHECK(fabs(g->mean - sum) < 1e-6 && fabs(g->se - se) < 1e-6, "gain %g +- %g, expected %g +- %g", g->mean, g->se,
          sum, se);
    CHECK(fabs(g->half / g->se - 2.015) < 1e-3, "t with 5 degrees of freedom at 90 %%, not %g", g->half / g->se);
    CHECK(x.gain[PREDICT_LEARN_PREDICTOR].mean == 0 && x.n_windows == N_WINDOWS);
    for (int m = 0; m < PREDICT_LEARN_N_METHODS; m++) free(mass[m]);
    predict_windows_release(&w);
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

#define RUN(...) CHECK(!test_run(__VA_ARGS__), "%s", test_run_output())

/* A gated model, whose layer 2 is dense, and its traces; made once. */
static const char *gated(void) {
    return access(test_file("gated.gguf"), R_OK) ? planted_gate("gated.gguf", 1, 4, 1) : test_file("gated.gguf");
}

static const char *traced(void) {
    const char *path = test_file("traces.h5");
    if (access(path, R_OK))
        RUN("deadwood-trace -q -m %s -f %s -o %s -c 64 --tokens 2048 --backend ref", gated(),
            planted_text("one.txt", 3000, 1), path);
    return path;
}

static void one_file(void) {
    const char *m = gated(), *x = traced();
    const char *const runs[] = {"--rank 16 -t 1", "--rank 16 -t 3", "--rank 16 -t 2 --seed 7", "--rank 32 -t 2"};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char name[32];
        snprintf(name, sizeof name, "p%zu.gguf", i);
        RUN("deadwood-train -q -m %s -x %s -o %s --epochs 3 %s", m, x, test_file(name), runs[i]);
    }
    CHECK(same_files(test_file("p0.gguf"), test_file("p1.gguf")), "threads change nothing");
    CHECK(!same_files(test_file("p0.gguf"), test_file("p2.gguf")), "another seed is another order");
    dw_err err = {0};
    dw_gguf *parent = dw_gguf_open(m, &err), *child = dw_gguf_open(test_file("p3.gguf"), &err);
    REQUIRE(parent && child, "%s", err.text);
    for (size_t i = 0; i < dw_gguf_n_tensors(parent); i++) {
        const dw_tensor *a = dw_gguf_tensor(parent, i), *b = dw_gguf_find_tensor(child, a->name);
        CHECK(b && a->n_bytes == b->n_bytes && a->type == b->type && !memcmp(a->data, b->data, a->n_bytes), "%s",
              a->name);
    }
    CHECK(dw_gguf_n_tensors(child) == dw_gguf_n_tensors(parent) + 4 * 3);
    const dw_tensor *b = dw_gguf_find_tensor(child, "blk.3.ffn_pred_b.weight");
    CHECK(b && b->ne[0] == 32 && b->ne[1] == PLANTED_FF && b->type->id == DW_F16 &&
              !dw_gguf_find_tensor(child, "blk.2.ffn_pred_b.weight"),
          "the dense layer has none");
    /* What has predictors gets new ones. */
    RUN("deadwood-trace -q -m %s -f %s -o %s -c 64 --tokens 256", test_file("p3.gguf"),
        planted_text("one.txt", 3000, 1), test_file("again.h5"));
    RUN("deadwood-train -q -m %s -x %s -o %s --epochs 1 --rank 16", test_file("p3.gguf"), test_file("again.h5"),
        test_file("again.gguf"));
    dw_gguf *again = dw_gguf_open(test_file("again.gguf"), &err);
    b = again ? dw_gguf_find_tensor(again, "blk.3.ffn_pred_b.weight") : NULL;
    CHECK(b && b->ne[0] == 16 && dw_gguf_n_tensors(again) == dw_gguf_n_tensors(parent) + 4 * 3, "%s", err.text);
    dw_gguf_close(again);
    dw_gguf_close(parent), dw_gguf_close(child);
}

/* A row counts the tokens that train says it trains on, not those that choose or are held out. */
static void tokens_in_rows(void) {
    size_t n = 0;
    char cell[64];
    RUN("deadwood-train -m %s -x %s -o %s --epochs 1 --rank 16", gated(), traced(), test_file("counted.gguf"));
    const char *said = strstr(test_run_output(), "rank 16, ");
    REQUIRE(said && sscanf(said, "rank 16, %zu tokens train", &n) == 1 && n > 0 && n < 2048, "%s", test_run_output());
    snprintf(cell, sizeof cell, "\"tokens_trained\":\"%zu\"", n);
    RUN("deadwood-score -q -m %s -f %s -c 64 --windows 1 --no-speed --json", test_file("counted.gguf"),
        planted_text("one.txt", 3000, 1));
    CHECK(strstr(test_run_output(), cell), "%s: %s", cell, test_run_output());
}

static void killed(void) {
    const char *out = test_file("k.gguf");
    char command[1024];
    snprintf(command, sizeof command, "-m %s -x %s --epochs 6 --rank 16 -t 1", gated(), traced());
    RUN("deadwood-train -q %s -o %s --report %s", command, test_file("unbroken.gguf"), test_file("unbroken.tsv"));
    for (int i = 0; i < 4; i++) {
        remove(out);
        test_run("deadwood-train -q %s -o %s & pid=$!; i=0; while [ ! -s %s.part ] && [ $i -lt 400 ]; do sleep 0.005; "
                 "i=$((i+1)); done; sleep 0.%d; kill -%s $pid; wait $pid",
                 command, out, out, 1 + i, i % 2 ? "INT" : "KILL");
        RUN("deadwood-train -q %s -o %s --report %s", command, out, test_file("k.tsv"));
        CHECK(same_files(out, test_file("unbroken.gguf")) && same_files(test_file("k.tsv"), test_file("unbroken.tsv")),
              "as without the stop");
        CHECK(access(test_file("k.gguf.part"), F_OK), "what was kept is gone");
    }
}

/* Interrupted as soon as the part is there: what is said is so.  (Without `set -m` a job ignores SIGINT.) */
static void interrupted_early(void) {
    const char *part = test_file("early.gguf.part");
    const int status = test_run("bash -c 'set -m; deadwood-train -m %s -x %s --rank 256 -t 1 -o %s & p=$!; "
                                "until [ -s %s ] || ! kill -0 $p; do :; done; kill -INT $p; wait $p'",
                                gated(), traced(), test_file("early.gguf"), part);
    CHECK(status == 128 + SIGINT && access(test_file("early.gguf"), F_OK), "%d: %s", status, test_run_output());
    CHECK(strstr(test_run_output(), access(part, F_OK) ? "nothing unfinished is left" : "has the finished part"), "%s",
          test_run_output());
    remove(part);
}

/* Layers that another CPU level finished are refused: levels round otherwise. */
static void other_level(void) {
    const char *out = test_file("level.gguf"), *part = test_file("level.gguf.part");
    char command[1024];
    if (!strcmp(dw_cpu_level(NULL), "portable")) return;
    snprintf(command, sizeof command, "deadwood-train -q -m %s -x %s --epochs 6 --rank 16 -t 1 -o %s", gated(),
             traced(), out);
    test_run("DEADWOOD_CPU=portable %s & p=$!; until [ \"$(wc -c 2>/dev/null <%s)0\" -gt 10000 ] || ! kill -0 $p; do "
             "sleep 0.005; done; kill -KILL $p; wait $p",
             command, part);        // 1000 bytes: a layer is finished
    if (access(part, F_OK)) return; // it had ended before
    CHECK(test_run("%s", command) == 1 && strstr(test_run_output(), "level.gguf.part' is of another run"), "%s",
          test_run_output());
    RUN("DEADWOOD_CPU=portable %s", command);
}

/* The finished layers of other options are refused and stay. */
static void other_run(void) {
    const char *out = test_file("other.gguf"), *part = test_file("other.gguf.part");
    dw_err err = {0};
    bool resumed;
    predict_journal *j = predict_journal_open(part, (const uint8_t[32]){1}, &resumed, &err);
    REQUIRE(j && !predict_journal_begin(j, 1, &err) && !predict_journal_add(j, "x", 1, &err) &&
                !predict_journal_end(j, &err),
            "%s", err.text);
    predict_journal_close(j);
    CHECK(test_run("cp %1$s %1$s.before; deadwood-train -q -m %2$s -x %3$s --epochs 1 --rank 16 -o %4$s", part, gated(),
                   traced(), out) == 1 &&
              strstr(test_run_output(), "other.gguf.part' is of another run"),
          "%s", test_run_output());
    CHECK(access(out, F_OK) && same_files(part, test_file("other.gguf.part.before")), "the part has changed");
}

typedef struct line { // of the report
    char layer[8], method[16], epochs[8]; // "-": of all layers
    unsigned long long tokens, decisions;
    int rank;
    double open, active, accuracy, recall, precision, mass, mass_5;
} line;

static bool find_line(const char *path, const char *layer, const char *method, line *x) {
    char text[512];
    bool found = false;
    FILE *f = fopen(path, "re");
    while (f && !found && fgets(text, sizeof text, f))
        found = sscanf(text, "%7s %15s %llu %llu %d %7s %lf %lf %lf %lf %lf %lf %lf", x->layer, x->method, &x->tokens,
                       &x->decisions, &x->rank, x->epochs, &x->open, &x->active, &x->accuracy, &x->recall,
                       &x->precision, &x->mass, &x->mass_5) == 13 &&
                !strcmp(x->layer, layer) && !strcmp(x->method, method) &&
                !strcmp(x->epochs, "-") == !strcmp(layer, "*");
    if (f) fclose(f);
    return found;
}

typedef struct brute { // counted on the last tenth of the text by plain loops
    unsigned long long n, n_open, n_chosen, n_both;
    double mass;
} brute;

static brute count(const dw_model *m, const traces *t, int layer, int input_layer) {
    brute c = {0};
    uint16_t in[PLANTED_EMBD], share[PLANTED_FF];
    uint8_t open[PLANTED_FF / 8];
    float x[PLANTED_EMBD];
    double score[PLANTED_FF];
    for (size_t row = t->n_tokens * 9 / 10; row < t->n_tokens; row++) {
        double all = 0, captured = 0;
        CHECK(!traces_read(t, input_layer, TRACES_INPUT, row, 1, in, NULL) &&
              !traces_read(t, layer, TRACES_OPEN, row, 1, open, NULL) &&
              !traces_read(t, layer, TRACES_SHARE, row, 1, share, NULL));
        for (int j = 0; j < PLANTED_EMBD; j++) x[j] = dw_f16_to_f32(in[j]);
        CHECK(plain_scores(m, layer, x, score));
        for (int g = 0; g < PLANTED_FF; g++) {
            const bool y = traces_is_open(open, g), chosen = score[g] >= 0;
            c.n++, c.n_open += y, c.n_chosen += chosen, c.n_both += y && chosen;
            all += (double)dw_f16_to_f32(share[g]);
            captured += chosen ? (double)dw_f16_to_f32(share[g]) : 0;
        }
        c.mass += captured / all;
    }
    return c;
}

/* One decision in 10,000 may lie within rounding of the threshold. */
static void reported(void) {
    static const char *const inputs[] = {"ffn", "previous"};
    for (int k = 0; k < 2; k++) {
        dw_err err = {0};
        traces t;
        RUN("deadwood-train -q -m %s -x %s -o %s --epochs 4 --rank 16 --input %s --report %s", gated(), traced(),
            test_file("r.gguf"), inputs[k], test_file("r.tsv"));
        dw_model *m = dw_model_open(test_file("r.gguf"), &err);
        REQUIRE(m && !traces_open(&t, traced(), &err), "%s", err.text);
        brute sum = {0};
        for (int l = 0; l < PLANTED_LAYERS; l++) {
            char layer[8];
            line x;
            snprintf(layer, sizeof layer, "%d", l);
            CHECK(find_line(test_file("r.tsv"), layer, "predictor", &x) == (l != 2), "layer %d", l);
            if (l == 2) continue;
            const brute c = count(m, &t, l, k && l ? l - 1 : l);
            const double n = (double)c.n, tolerance = 1e-4 * n / (double)c.n_open + 1e-6;
            CHECK(x.decisions == c.n && fabs(x.open - (double)c.n_open / n) < 1e-6 &&
                      fabs(x.active - (double)c.n_chosen / n) < tolerance,
                  "layer %d", l);
            CHECK(fabs(x.recall - (double)c.n_both / (double)c.n_open) < tolerance &&
                      fabs(x.precision - (double)c.n_both / (double)c.n_chosen) < tolerance,
                  "layer %d: recall %g, counted %g", l, x.recall, (double)c.n_both / (double)c.n_open);
            CHECK(fabs(x.mass - c.mass / (double)x.tokens) < 1e-4, "layer %d: mass %g, counted %g", l, x.mass,
                  c.mass / (double)x.tokens);
            sum.n += c.n, sum.n_open += c.n_open, sum.n_both += c.n_both;
        }
        size_t size;
        char *text = dw_read_file(test_file("r.tsv"), 1 << 20, &size, &err);
        CHECK(text && !strstr(text, "nan"), "unknown is -, never nan: %s", text ? text : err.text);
        free(text);
        line all;
        CHECK(find_line(test_file("r.tsv"), "*", "predictor", &all) && all.decisions == sum.n &&
              fabs(all.recall - (double)sum.n_both / (double)sum.n_open) < 1e-4);
        traces_release(&t);
        dw_model_close(m);
    }
}

/* The first gated layer sees what was traced, so the engine must decide there as the file says. */
static void engine_decides(void) {
    enum { CTX = 64 };
    dw_err err = {0};
    traces t;
    size_t size, n;
    int32_t *token;
    RUN("deadwood-train -q -m %s -x %s -o %s --epochs 2 --rank 16 --recall 0.9", gated(), traced(),
        test_file("e.gguf"));
    dw_model *m = dw_model_open(test_file("e.gguf"), &err);
    dw_tokenizer *tok = m ? dw_tokenizer_open(dw_model_gguf(m), &err) : NULL;
    REQUIRE(tok && !traces_open(&t, traced(), &err), "%s", err.text);
    char *bytes = dw_read_file(planted_text("one.txt", 3000, 1), 1 << 20, &size, &err);
    REQUIRE(bytes && !dw_tokenize(tok, bytes, size, DW_ADD_SPECIAL, &token, &n, &err), "%s", err.text);
    dw_pool *pool = dw_pool_new(1, &err);
    dw_session *s = dw_session_new(
        m, &(dw_session_options){.pool = pool, .backend = "ref", .n_ctx = CTX, .select = DW_SELECT_FUSED}, &err);
    REQUIRE(s && !dw_session_eval(s, &(dw_batch){.n_tokens = CTX, .token = token}, &err), "%s", err.text);
    uint64_t n_open = 0;
    for (size_t row = 0; row < CTX; row++) {
        uint16_t in[PLANTED_EMBD];
        float x[PLANTED_EMBD];
        double score[PLANTED_FF];
        CHECK(!traces_read(&t, 0, TRACES_INPUT, row, 1, in, &err), "%s", err.text);
        for (int j = 0; j < PLANTED_EMBD; j++) x[j] = dw_f16_to_f32(in[j]);
        CHECK(plain_scores(m, 0, x, score));
        for (int g = 0; g < PLANTED_FF; g++) n_open += score[g] >= 0;
    }
    const dw_coverage c = dw_session_coverage(s, 0);
    CHECK(c.n_tokens == CTX && fabs((double)c.n_open - (double)n_open) <= 0.002 * CTX * PLANTED_FF,
          "%llu open in the engine, %llu counted", (unsigned long long)c.n_open, (unsigned long long)n_open);
    dw_session_free(s), dw_pool_free(pool), traces_release(&t), dw_tokenizer_free(tok), dw_model_close(m);
    free(bytes), free(token);
}

static void refusals(void) {
    const char *other = planted_gate("other.gguf", 1, 4, 2);
    RUN("deadwood-synth --shape tiny-qwen2 --type f16 -q -o %s", test_file("plain.gguf"));
    const struct {
        const char *model, *traces, *words;
    } cases[] = {{other, traced(), "traced from another model"},
                 {test_file("plain.gguf"), traced(), "not gated"},
                 {gated(), gated(), "no traces of 'deadwood trace'"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(test_run("deadwood-train -q -m %s -x %s -o %s", cases[i].model, cases[i].traces, test_file("no.gguf")) ==
                      1 &&
                  strstr(test_run_output(), cases[i].words),
              "%s", test_run_output());
        CHECK(access(test_file("no.gguf"), F_OK) && access(test_file("no.gguf.part"), F_OK), "nothing is left");
    }
    RUN("deadwood-trace -q -m %s -f %s -o %s -c 4 --tokens 4", gated(), planted_text("one.txt", 3000, 1),
        test_file("few.h5"));
    CHECK(test_run("deadwood-train -q -m %s -x %s -o %s", gated(), test_file("few.h5"), test_file("no.gguf")) == 1 &&
              strstr(test_run_output(), "too few tokens"),
          "%s", test_run_output());
    const struct {
        const char *report, *words;
    } outputs[] = {{traced(), "is input and output at once"}, {test_file("nowhere/report.tsv"), "cannot write"}};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        CHECK(test_run("deadwood-train -q -m %s -x %s -o %s --report %s", gated(), traced(), test_file("never.gguf"),
                       outputs[i].report) == 1 &&
                  strstr(test_run_output(), outputs[i].words),
              "%s", test_run_output());
    CHECK(access(test_file("never.gguf"), F_OK) && access(test_file("never.gguf.part"), F_OK), "nothing was begun");
    save(&(test_bytes){.data = (uint8_t *)(uintptr_t) "something", .size = 9}, test_file("way.gguf.part"));
    CHECK(test_run("deadwood-train -q -m %s -x %s -o %s", gated(), traced(), test_file("way.gguf")) == 1 &&
              strstr(test_run_output(), "is in the way"),
          "%s", test_run_output());
}

static const test_case cases[] = {
    {"gradients are the slopes of the loss", gradients},
    {"Adam's first step has the length of the rate, and it finds a minimum", predict_adam_descends},
    {"the linear rival is the best map of its rank", linear},
    {"counts are those of plain loops, and parts add up", counts},
    {"a threshold opens as few groups as bring what is wanted", thresholds},
    {"groups that tie are opened or closed together, on the side nearer to the wish", ties},
    {"scores are logarithms of expected shares over the price", scores_are_expected_shares},
    {"a planted threshold of low rank is learnt", planted_problem},
    {"an activity that equal scores do not allow is the nearest", groups_without_mass},
    {"the static choice of groups of equal mass has as many as it says", static_ties},
    {"a trained network is returned where a linear map cannot know", network_wins},
    {"the closed form is returned when it wins", closed_form_wins},
    {"the closed form and the network are compared as they are stored", forms_as_stored},
    {"a gate that opens nothing, and shares of nothing, are refused in one line", nothing_to_learn},
    {"a gain is paired by token, and its error is clustered by window", gains},
    {"train writes the same file with any threads, and keeps every tensor of its parent", one_file},
    {"a row counts the tokens that trained, not those that choose or are held out", tokens_in_rows},
    {"train goes on where it was killed and writes the same file and report", killed},
    {"train leaves no file when it is interrupted before a layer is finished", interrupted_early},
    {"train refuses what another run has finished", other_run},
    {"a run goes on only with the CPU level that it began with", other_level},
    {"the reported recall and mass equal a count by plain loops", reported},
    {"the engine decides as the file's predictor says", engine_decides},
    {"train refuses what does not fit in one line", refusals},
    {0}};
TEST_MAIN(cases)
