/* tally.c - counts of decisions, captured mass, and thresholds. */
#include "predict/tally.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool bit(const uint8_t *row, int g) { return row[g / 8] >> (g % 8) & 1; }

void predict_tally_rows(predict_tally *t, const uint8_t *chosen, const uint8_t *open, const uint16_t *share,
                        int n_groups, size_t n, float *mass) {
    const size_t stride = ((size_t)n_groups + 7) / 8;
    t->n_tokens += n;
    t->n_decisions += n * (uint64_t)n_groups;
    for (size_t i = 0; i < n; i++, chosen += stride, open += stride, share += n_groups) {
        double captured = 0, all = 0;
        for (int g = 0; g < n_groups; g++) {
            const bool is_chosen = bit(chosen, g), is_open = bit(open, g);
            const double m = (double)dw_f16_to_f32(share[g]);
            t->n_open += is_open, t->n_chosen += is_chosen, t->n_both += is_open && is_chosen;
            all += m;
            captured += is_chosen ? m : 0;
        }
        const double part = all > 0 ? captured / all : 1; // of nothing, nothing is lost
        t->mass += part;
        if (mass) mass[i] = (float)part;
    }
}

void predict_tally_add(predict_tally *t, const predict_tally *other) {
    t->n_tokens += other->n_tokens;
    t->n_decisions += other->n_decisions;
    t->n_open += other->n_open;
    t->n_chosen += other->n_chosen;
    t->n_both += other->n_both;
    t->mass += other->mass;
}

static double ratio(uint64_t a, uint64_t b) { return b ? (double)a / (double)b : NAN; }

double predict_tally_open(const predict_tally *t) { return ratio(t->n_open, t->n_decisions); }
double predict_tally_active(const predict_tally *t) { return ratio(t->n_chosen, t->n_decisions); }
double predict_tally_accuracy(const predict_tally *t) {
    return ratio(t->n_decisions - t->n_open - t->n_chosen + 2 * t->n_both, t->n_decisions);
}
double predict_tally_recall(const predict_tally *t) { return ratio(t->n_both, t->n_open); }
double predict_tally_precision(const predict_tally *t) { return ratio(t->n_both, t->n_chosen); }
double predict_tally_mass(const predict_tally *t) { return t->n_tokens ? t->mass / (double)t->n_tokens : NAN; }

static int ascending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

double predict_tally_percentile_5(float *values, size_t n) {
    if (!n) return NAN;
    qsort(values, n, sizeof *values, ascending);
    return (double)values[(n + 19) / 20 - 1];
}

static int best_first(const void *a, const void *b) {
    const predict_scored *x = a, *y = b;
    if (x->score != y->score) return (x->score < y->score) - (x->score > y->score);
    return (x->worth < y->worth) - (x->worth > y->worth);
}

void predict_tally_sort(predict_scored *s, size_t n) { qsort(s, n, sizeof *s, best_first); }

/* The best n scores.  The last n_tied of them are equal, and no other score equals these. */
typedef struct reach {
    size_t n, n_tied;
    double worth, tied; // of all n; of the last n_tied
} reach;

/* As few as are worth `wanted`. */
static reach reach_for(const predict_scored *s, size_t n, double wanted) {
    reach r = {0};
    while (r.n < n && r.worth < wanted) {
        r.n_tied = 0, r.tied = 0;
        do {
            r.worth += (double)s[r.n].worth, r.tied += (double)s[r.n].worth;
            r.n++, r.n_tied++;
        } while (r.n < n && s[r.n].score >= s[r.n - 1].score);
    }
    return r;
}

/* The threshold that the first i of n sorted scores reach: half way to the next lower one. */
static float threshold_of(const predict_scored *s, size_t n, size_t i) {
    if (!i) return n ? nextafterf(s[0].score, INFINITY) : 0;
    if (i == n) return s[n - 1].score;
    const float middle = s[i].score + (s[i - 1].score - s[i].score) / 2;
    return middle > s[i].score ? middle : s[i - 1].score;
}

float predict_tally_threshold(predict_scored *s, size_t n, double wanted) {
    predict_tally_sort(s, n);
    return threshold_of(s, n, reach_for(s, n, wanted).n);
}

float predict_tally_threshold_near(predict_scored *s, size_t n, double wanted) {
    predict_tally_sort(s, n);
    const reach r = reach_for(s, n, wanted);
    const bool is_alone = r.n_tied < 2 || r.n_tied == r.n;
    const bool without = !is_alone && wanted - (r.worth - r.tied) <= r.worth - wanted;
    return threshold_of(s, n, without ? r.n - r.n_tied : r.n);
}

void predict_tally_choose(const float *score, float threshold, int n_groups, size_t n, uint8_t *chosen) {
    const size_t stride = ((size_t)n_groups + 7) / 8;
    memset(chosen, 0, n * stride);
    for (size_t i = 0; i < n; i++)
        for (int g = 0; g < n_groups; g++)
            chosen[i * stride + (size_t)g / 8] |= (uint8_t)((score[i * (size_t)n_groups + (size_t)g] >= threshold)
                                                            << (g % 8));
}
