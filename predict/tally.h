/* tally.h - how good decisions are: counts against the gate's, and the mass that they capture.
 *
 * Decisions are rows of bits as traces.h has them.  With an open share p the constant answer "closed" is right for 1 -
 * p of all groups and useless, so accuracy is shown with
 *   recall     open groups that are chosen / open groups
 *   precision  open groups that are chosen / chosen groups
 *   mass       of a token: sum of the chosen groups' shares of sum ||v_j||^2 a_j^2, over the sum of all shares
 *   active     chosen groups / groups: what it costs */
#ifndef TALLY_H
#define TALLY_H

#include "base/base.h"

typedef struct predict_tally {
    uint64_t n_tokens, n_decisions; // tokens; tokens times groups
    uint64_t n_open, n_chosen, n_both;
    double mass;                    // summed over tokens
} predict_tally;

/* Adds n tokens: rows of (n_groups + 7) / 8 bytes, shares (n, n_groups) in F16.  mass (n): each token's, or NULL. */
void predict_tally_rows(predict_tally *t, const uint8_t *chosen, const uint8_t *open, const uint16_t *share,
                        int n_groups, size_t n, float *mass);
void predict_tally_add(predict_tally *t, const predict_tally *other);

/* NaN where nothing was counted. */
double predict_tally_open(const predict_tally *t);      // share of open groups
double predict_tally_active(const predict_tally *t);
double predict_tally_accuracy(const predict_tally *t);
double predict_tally_recall(const predict_tally *t);
double predict_tally_precision(const predict_tally *t);
double predict_tally_mass(const predict_tally *t);      // mean over tokens

/* The value below which a twentieth of n values lies, by nearest rank; sorts them. */
double predict_tally_percentile_5(float *values, size_t n);

/* A decision's score and what opening it brings. */
typedef struct predict_scored {
    float score, worth;
} predict_scored;

/* The highest score first, of equal scores the most worth. */
void predict_tally_sort(predict_scored *s, size_t n);
/* The threshold t for which the groups with score >= t, as few as possible, are worth at least `wanted`: half way to
 * the next lower score.  Sorts. */
float predict_tally_threshold(predict_scored *s, size_t n, double wanted);
/* The same, but where several groups tie for the last place, and being without them is nearer to `wanted` or as near,
 * they are left out, unless nothing would remain. */
float predict_tally_threshold_near(predict_scored *s, size_t n, double wanted);

/* Bits of score >= threshold, of (n, n_groups). */
void predict_tally_choose(const float *score, float threshold, int n_groups, size_t n, uint8_t *chosen);

#endif
