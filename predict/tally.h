/* tally.h - how good decisions are: counts against the gate's, and the mass that they capture.
 *
 * Decisions are rows of bits as traces.h has them.  With an open share p the constant answer "closed" is right for 1 - p of all
 * groups and useless, so accuracy stands beside
 *   recall     open groups that are chosen / open groups
 *   precision  open groups that are chosen / chosen groups
 *   mass       of a token: sum of the chosen groups' shares of sum ||v_j||^2 a_j^2, over the sum of all shares
 *   active     chosen groups / groups: what it costs */
#ifndef TALLY_H
#define TALLY_H

#include "base/base.h"

typedef struct tally {
    uint64_t n_tokens, n_decisions; // tokens; tokens times groups
    uint64_t n_open, n_chosen, n_both;
    double mass;                    // summed over tokens
} tally;

/* Adds n tokens: rows of (n_groups + 7) / 8 bytes, shares (n, n_groups) in F16.  mass (n): each token's, or NULL. */
void tally_rows(tally *t, const uint8_t *chosen, const uint8_t *open, const uint16_t *share, int n_groups, size_t n, float *mass);
void tally_add(tally *t, const tally *other);

/* NaN where nothing was counted. */
double tally_open(const tally *t);      // share of open groups
double tally_active(const tally *t);
double tally_accuracy(const tally *t);
double tally_recall(const tally *t);
double tally_precision(const tally *t);
double tally_mass(const tally *t);      // mean over tokens

/* The value below which a twentieth of n values lies, by nearest rank; sorts them. */
double tally_percentile_5(float *values, size_t n);

/* A decision's score and what opening it brings. */
typedef struct scored {
    float score, worth;
} scored;

/* The threshold t for which the groups with score >= t, as few as possible, are worth at least `wanted`: half way to the next
 * lower score.  Sorts. */
float tally_threshold(scored *s, size_t n, double wanted);

/* Bits of score >= threshold, of (n, n_groups). */
void tally_choose(const float *score, float threshold, int n_groups, size_t n, uint8_t *chosen);

#endif
