/* scale_search.h - inside qtypes/: which scale represents a group of values best.
 *
 * Encoders divide a row into groups.  For each group they try a few scales (and minima) and keep the one with the
 * least weighted error.  Groups follow each other: group g's values are x[g * len] .. x[g * len + len - 1], its
 * weights and codes likewise.  len is at most 32.
 *
 * Bytes must be equal on every machine, so each sum runs in index order in F32 and each product associates as
 * written.  4, 8 or 16 groups are searched together, one per vector lane, which changes neither. */
#ifndef DW_SCALE_SEARCH_H
#define DW_SCALE_SEARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Round half to even, for |v| < 2^22: the sum's last mantissa bits are the integer. */
static inline int nearest(float v) {
    const float sum = v + 12582912.0f;
    uint32_t bits;
    memcpy(&bits, &sum, sizeof bits);
    return (int)(bits & 0x7fffff) - 0x400000;
}

/* v limited to low .. high; NaN gives low. */
static inline float limited(float v, float low, float high) {
    const float at_least = v > low ? v : low;
    return at_least < high ? at_least : high;
}

static inline int clamp(int v, int low, int high) { return v < low ? low : v > high ? high : v; }

/* Smallest and largest of n values, a multiple of 4; of 0 and -0 the first one.  NaNs are skipped. */
typedef struct dw_range {
    float min, max;
} dw_range;

dw_range dw_range_of(const float *x, int n);

/* The first value of largest magnitude, with its sign. */
float dw_extreme(const float *x, int n);

/* In F32 and index order. */
float dw_sum_of_squares(const float *x, size_t n);

/* w = importance * sqrt(variance + x^2) */
void dw_weigh(const float *x, const float *importance, float variance, size_t n, float *w);

/* Groups to search, and room for the results: one number per group, one code per value.  A field that the search does
 * not need is NULL, and so are results that the caller does not need (inverse, base). */
typedef struct dw_groups {
    int n_groups, len;
    const float *x, *weight; // weight NULL: x^2
    float *scale, *depth;
    float *inverse, *base;   // codes are inverse * (x - base), rounded; inverse 0: codes are 0
    uint8_t *code;
} dw_groups;

/* x ~ scale * (code - nmax), codes 0 .. 2 nmax - 1.  A group of zeros: scale 0, codes 0. */
void dw_search_symmetric(const dw_groups *g, int nmax);

/* The same with weight x^2; improves one code after another in up to five sweeps.  No inverse. */
void dw_search_sweeps(const dw_groups *g, int nmax);

/* x ~ scale * code - depth, codes 0 .. nmax, depth >= 0.  Candidate k = 0 .. n_steps stretches the range by
 * first + step * k codes; the error is squared, or absolute. */
typedef struct dw_affine_search {
    int nmax;
    float first, step;
    int n_steps;
    bool absolute;
} dw_affine_search;

void dw_search_affine(const dw_groups *g, dw_affine_search how);

/* x ~ scale * table[code] for the 16 values of IQ4_NL.  Codes follow from the scale later. */
void dw_search_table(const dw_groups *g);

/* One group of n values >= 0 (a super-block's scales): x ~ scale * code, codes 0 .. nmax.  Returns the scale. */
float dw_search_positive(int n, int nmax, const float *x, const float *weight, uint8_t *code);

#endif
