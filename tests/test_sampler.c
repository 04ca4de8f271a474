/* test_sampler.c - sampled tokens against a definition that sorts the whole vocabulary. */
#include "engine.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VOCAB = 3000, DRAWS = 3 };

/* ---- the definition ------------------------------------------------------------------------------------------- */

static const float *sorted_logits;

static int by_logit(const void *a, const void *b) {
    const int x = *(const int *)a, y = *(const int *)b;
    const float p = sorted_logits[x], q = sorted_logits[y];
    return p != q ? (p < q ? 1 : -1) : (x > y) - (x < y);
}

static void softmax(const float *logits, const int *order, int n, double temperature, double *p) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += p[i] = exp((double)(logits[order[i]] - logits[order[0]]) / temperature);
    for (int i = 0; i < n; i++) p[i] /= sum;
}

/* A token: sort all, first k, then the likeliest of top_p together, then those above min_p, then the temperature. */
static int by_definition(const dw_sampler_options *o, const float *logits, int n_vocab, dw_rng *rng) {
    static int order[MAX_VOCAB];
    static double p[MAX_VOCAB];
    for (int i = 0; i < n_vocab; i++) order[i] = i;
    sorted_logits = logits;
    qsort(order, (size_t)n_vocab, sizeof *order, by_logit);
    if (o->temperature <= 0) return order[0];
    int n = o->top_k > 0 && o->top_k < n_vocab ? o->top_k : n_vocab, kept = 0;
    softmax(logits, order, n, 1, p);
    if (o->top_p < 1) {
        for (double sum = 0; kept < n && sum < o->top_p;) sum += p[kept++];
        n = kept ? kept : 1;
    }
    for (kept = 1; kept < n && p[kept] >= o->min_p * p[0];) kept++;
    softmax(logits, order, kept, o->temperature, p);
    double u = dw_rng_uniform(rng);
    for (int i = 0; i < kept - 1; i++)
        if ((u -= p[i]) < 0) return order[i];
    return order[kept - 1];
}

/* ---- logits --------------------------------------------------------------------------------------------------- */

static float narrow(dw_rng *r) { return (float)dw_rng_normal(r); }
static float wide(dw_rng *r) { return (float)(20 * dw_rng_normal(r)); }
static float peaked(dw_rng *r) { return (float)(dw_rng_uniform(r) < 0.005 ? 12 : 3 * dw_rng_normal(r)); }
static float tied(dw_rng *r) { return roundf((float)(2 * dw_rng_normal(r))); }
static float two_zeros(dw_rng *r) { return dw_rng_uniform(r) < 0.5 ? 0.0f : -0.0f; }
static float cut_away(dw_rng *r) { return dw_rng_uniform(r) < 0.5 ? -INFINITY : (float)dw_rng_normal(r); }
static float some_infinite(dw_rng *r) { return dw_rng_uniform(r) < 0.01 ? INFINITY : (float)dw_rng_normal(r); }
static float all_cut_away(dw_rng *r) { return (void)r, -INFINITY; }

static const struct {
    const char *name;
    float (*of)(dw_rng *rng);
} kinds[] = {{"narrow", narrow}, {"wide", wide}, {"peaked", peaked}, {"tied", tied}, {"zeros of both signs", two_zeros},
             {"half of them -inf", cut_away}, {"some of them inf", some_infinite}, {"all of them -inf", all_cut_away}};

static void compare(const dw_sampler_options *o, const char *kind, const float *logits, int n_vocab) {
    dw_err err = {0};
    dw_sampler *s = dw_sampler_new(o, n_vocab, &err);
    REQUIRE(s, "%s", err.text);
    dw_rng rng;
    dw_rng_seed(&rng, o->seed);
    for (int i = 0; i < DRAWS; i++) {
        const int wanted = by_definition(o, logits, n_vocab, &rng), got = dw_sample(s, logits);
        if (!CHECK(got == wanted, "%s logits of %d, k %d, p %g, min-p %g, temperature %g: token %d, by a sort %d", kind,
                   n_vocab, o->top_k, o->top_p, o->min_p, o->temperature, got, wanted))
            break;
    }
    dw_sampler_free(s);
}

static void same_tokens(void) {
    static const int sizes[] = {1, 2, 300, MAX_VOCAB}, ks[] = {0, 1, 10, 40, 299, 2000, MAX_VOCAB + 1};
    static const double ps[] = {0, 0.5, 0.95, 0.999, 1}, mins[] = {0, 1e-20, 0.05, 1},
                        temperatures[] = {0.7, 1, 5, 100};
    static float logits[MAX_VOCAB];
    dw_sampler_options o = {.seed = 1};
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
        for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++) {
            dw_rng rng;
            dw_rng_seed(&rng, kind);
            for (int i = 0; i < sizes[size]; i++) logits[i] = kinds[kind].of(&rng);
            for (size_t i = 0; i < sizeof ks / sizeof *ks * 5 * 4 * 4; i++) {
                o.top_k = ks[i / 80], o.top_p = ps[i / 16 % 5], o.min_p = mins[i / 4 % 4];
                o.temperature = temperatures[i % 4];
                if (o.top_k <= sizes[size] || o.top_k > MAX_VOCAB) compare(&o, kinds[kind].name, logits, sizes[size]);
                o.seed++;
            }
        }
}

static void greedy(void) {
    const float logits[] = {-1, -0.0f, 0.0f, -3, 0.0f}, low[] = {-INFINITY, -7, -INFINITY, -7};
    compare(&(dw_sampler_options){0}, "equal", logits, 5);
    compare(&(dw_sampler_options){0}, "low", low, 4);
    dw_sampler *s = dw_sampler_new(&(dw_sampler_options){0}, 5, NULL);
    REQUIRE(s);
    CHECK(dw_sample(s, logits) == 1);
    dw_sampler_free(s);
}

static void refuses_nan(void) {
    for (int k = 0; k < 3; k++) {
        float logits[300] = {0};
        dw_sampler *s = dw_sampler_new(&(dw_sampler_options){.temperature = k, .top_p = 0.9, .top_k = k}, 300, NULL);
        REQUIRE(s);
        logits[0] = INFINITY;
        CHECK(dw_sample(s, logits) == 0);
        logits[299] = k == 1 ? -NAN : NAN;
        CHECK(dw_sample(s, logits) == -1, "temperature %d", k);
        dw_sampler_free(s);
    }
}

static const test_case cases[] = {
    {"the token is that of a sort of the whole vocabulary, for all of top-k, top-p, min-p and temperature", same_tokens},
    {"without a temperature the first of the largest logits", greedy},
    {"a NaN anywhere is told", refuses_nan},
    {0},
};
TEST_MAIN(cases)
