/* scale_search.c - the searches; scale_search.h says what they minimise. */
#include "qtypes/scale_search.h"
#include "qtypes/codecs.h"
#include "qtypes/lanes.h"

#include <float.h>
#include <math.h>

enum { LEN_MAX = 32 };
static const float tiny = 1e-15f; // a group of smaller values counts as zeros

/* ---- sums and ranges of a group -------------------------------------------------------------------- */

float dw_sum_of_squares(const float *x, size_t n) {
    float sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sum;
}

void dw_weigh(const float *x, const float *importance, float variance, size_t n, float *w) {
    for (size_t i = 0; i < n; i++) w[i] = importance[i] * sqrtf(variance + x[i] * x[i]);
}

static float first_equal(const float *x, float value) {
    while (*x != value) x++;
    return *x;
}

dw_range dw_range_of(const float *x, int n) {
    lanes low = all(FLT_MAX), high = all(-FLT_MAX);
    for (int i = 0; i < n; i += LANES) {
        lanes v;
        memcpy(&v, x + i, sizeof v);
        low = pick(v < low, v, low);
        high = pick(v > high, v, high);
    }
    dw_range range = {low[0], high[0]};
    for (int k = 1; k < LANES; k++) {
        range.min = low[k] < range.min ? low[k] : range.min;
        range.max = high[k] > range.max ? high[k] : range.max;
    }
    if (range.min == 0) range.min = first_equal(x, 0);
    if (range.max == 0) range.max = first_equal(x, 0);
    return range;
}

float dw_extreme(const float *x, int n) {
    const dw_range range = dw_range_of(x, n);
    if (range.max > -range.min) return range.max;
    if (range.max < -range.min) return range.min;
    for (int i = 0; i < n && range.max != 0; i++)
        if (fabsf(x[i]) == range.max) return x[i];
    return 0;
}

/* ---- four groups ------------------------------------------------------------------------------------ */

/* Four groups under search: their x, weight and product for each place in the group. */
typedef struct quartet {
    lanes x[LEN_MAX], w[LEN_MAX], wx[LEN_MAX];
    lanes extreme; // the first value of largest magnitude, with its sign
    mask zero;     // groups that count as zeros
} quartet;

static inline void load(quartet *q, int n_groups, int len, const float *x, const float *weight) {
    lanes_load(q->x, x, n_groups, len);
    if (weight) lanes_load(q->w, weight, n_groups, len);
    lanes largest = all(0);
    q->extreme = all(0);
    for (int i = 0; i < len; i++) {
        if (!weight) q->w[i] = q->x[i] * q->x[i];
        q->wx[i] = q->w[i] * q->x[i];
        const mask larger = magnitude(q->x[i]) > largest;
        largest = pick(larger, magnitude(q->x[i]), largest);
        q->extreme = pick(larger, q->x[i], q->extreme);
    }
    q->zero = largest < all(tiny);
}

/* Sums of w x l and w l l over a group; the best scale for codes l is their quotient. */
typedef struct moments {
    lanes xl, ll;
} moments;

static inline lanes quotient(moments s) { return pick(s.ll != all(0), s.xl / s.ll, all(0)); }

/* ---- symmetric ------------------------------------------------------------------------------------ */

static inline moments symmetric_moments(const quartet *q, int len, int nmax, lanes inverse) {
    moments s = {all(0), all(0)};
    for (int i = 0; i < len; i++) {
        const lanes l = lanes_clamp(lanes_nearest(inverse * q->x[i]), (float)-nmax, (float)(nmax - 1));
        s.xl += q->wx[i] * l;
        s.ll += q->w[i] * l * l;
    }
    return s;
}

void dw_search_symmetric(const dw_groups *g, int nmax) {
    const int len = g->len;
    quartet q;
    for (int first = 0; first < g->n_groups; first += LANES) {
        const int n_groups = g->n_groups - first;
        load(&q, n_groups, len, g->x + first * len, g->weight ? g->weight + first * len : NULL);
        lanes inverse = all((float)-nmax) / q.extreme;
        moments s = symmetric_moments(&q, len, nmax, inverse);
        lanes best_scale = quotient(s), best = best_scale * s.xl;
        for (int k = -9; k <= 9; k++) {
            if (k == 0) continue;
            const lanes candidate = all(-((float)nmax + 0.1f * (float)k)) / q.extreme;
            s = symmetric_moments(&q, len, nmax, candidate);
            const mask better = (s.ll > all(0)) & (s.xl * s.xl > best * s.ll);
            inverse = pick(better, candidate, inverse);
            best_scale = pick(better, s.xl / s.ll, best_scale);
            best = pick(better, best_scale * s.xl, best);
        }
        lanes codes[LEN_MAX];
        for (int i = 0; i < len; i++) {
            const lanes l = lanes_clamp(lanes_nearest(inverse * q.x[i]), (float)-nmax, (float)(nmax - 1));
            codes[i] = pick(q.zero, all(0), l + (float)nmax);
        }
        lanes_store(g->scale + first, pick(q.zero, all(0), best_scale), n_groups);
        if (g->inverse) lanes_store(g->inverse + first, pick(q.zero, all(0), inverse), n_groups);
        lanes_store_codes(g->code + first * len, codes, n_groups, len);
    }
}

/* ---- symmetric, one code at a time ----------------------------------------------------------------- */

typedef struct sweeping {
    quartet q;
    lanes codes[LEN_MAX];
    moments s;
    mask changed; // groups that the current sweep changed
} sweeping;

static inline void sweep_begin(sweeping *g, int n_groups, int len, int nmax, const float *x) {
    load(&g->q, n_groups, len, x, NULL);
    const lanes inverse = all((float)-nmax) / g->q.extreme;
    g->s = (moments){all(0), all(0)};
    for (int i = 0; i < len; i++) {
        const lanes l = lanes_clamp(lanes_nearest(inverse * g->q.x[i]), (float)-nmax, (float)(nmax - 1));
        g->codes[i] = l;
        g->s.xl += g->q.wx[i] * l;
        g->s.ll += g->q.w[i] * l * l;
    }
}

/* Gives value i its code under the best scale of the other values, if that lowers the group's error. */
static inline void sweep_value(sweeping *g, int i, int nmax) {
    const lanes x = g->q.x[i], w = g->q.w[i], wx = g->q.wx[i], old = g->codes[i];
    const moments s = g->s, rest = {s.xl - wx * old, s.ll - w * old * old};
    const lanes l = lanes_clamp(lanes_nearest(x * rest.ll / rest.xl), (float)-nmax, (float)(nmax - 1));
    const moments with = {rest.xl + wx * l, rest.ll + w * l * l};
    const mask better = ~g->q.zero & (rest.xl > all(0)) & (l != old) & (with.ll > all(0)) &
                        (with.xl * with.xl * s.ll > s.xl * s.xl * with.ll);
    g->codes[i] = pick(better, l, old);
    g->s.xl = pick(better, with.xl, s.xl);
    g->s.ll = pick(better, with.ll, s.ll);
    g->changed |= better;
}

static inline void sweep_end(sweeping *g, int n_groups, int len, int nmax, float *scale, uint8_t *code) {
    for (int i = 0; i < len; i++) g->codes[i] = pick(g->q.zero, all(0), g->codes[i] + (float)nmax);
    lanes_store(scale, pick(g->q.zero, all(0), quotient(g->s)), n_groups);
    lanes_store_codes(code, g->codes, n_groups, len);
}

/* Each step waits for the division of the step before it; a second quartet uses that time. */
void dw_search_sweeps(const dw_groups *g, int nmax) {
    const int len = g->len;
    sweeping a, b;
    for (int first = 0; first < g->n_groups; first += 2 * LANES) {
        const int n_groups = g->n_groups - first, second = first + LANES;
        sweep_begin(&a, n_groups, len, nmax, g->x + first * len);
        sweep_begin(&b, n_groups - LANES, len, nmax, g->x + second * len);
        for (int sweep = 0; sweep < 5; sweep++) {
            a.changed = b.changed = a.q.zero & 0;
            for (int i = 0; i < len; i++) {
                sweep_value(&a, i, nmax);
                sweep_value(&b, i, nmax);
            }
            if (!any(a.changed | b.changed)) break;
        }
        sweep_end(&a, n_groups, len, nmax, g->scale + first, g->code + first * len);
        sweep_end(&b, n_groups - LANES, len, nmax, g->scale + second, g->code + second * len);
    }
}

/* ---- affine --------------------------------------------------------------------------------------- */

/* Weighted deviation of scale * l + min from x. */
static inline lanes deviation(const quartet *q, int len, const lanes *l, lanes scale, lanes min, bool absolute) {
    lanes sum = all(0);
    for (int i = 0; i < len; i++) {
        const lanes diff = scale * l[i] + min - q->x[i];
        sum += q->w[i] * (absolute ? magnitude(diff) : diff * diff);
    }
    return sum;
}

static inline lanes affine_code(lanes inverse, lanes x, lanes min, int nmax) {
    return lanes_clamp(lanes_nearest(inverse * (x - min)), 0, (float)nmax);
}

void dw_search_affine(const dw_groups *g, dw_affine_search how) {
    const int len = g->len;
    quartet q;
    const float nmax = (float)how.nmax;
    for (int first = 0; first < g->n_groups; first += LANES) {
        const int n_groups = g->n_groups - first;
        load(&q, n_groups, len, g->x + first * len, g->weight + first * len);
        lanes min = q.x[0], max = q.x[0], sum_w = q.w[0], sum_x = q.wx[0]; // not from 0: a sum of -0 is -0
        for (int i = 1; i < len; i++) {
            min = pick(q.x[i] < min, q.x[i], min);
            max = pick(q.x[i] > max, q.x[i], max);
            sum_w += q.w[i];
            sum_x += q.wx[i];
        }
        min = pick(min > all(0), all(0), min);
        const mask flat = max <= min;

        lanes inverse = all(nmax) / (max - min), best_scale = all(1) / inverse;
        lanes base = min; // the minimum that gave the best codes; min itself changes
        lanes l[LEN_MAX];
        for (int i = 0; i < len; i++) l[i] = affine_code(inverse, q.x[i], min, how.nmax);
        lanes best = deviation(&q, len, l, best_scale, min, how.absolute);
        for (int k = 0; k <= how.n_steps; k++) {
            const lanes candidate = all(how.first + how.step * (float)k + nmax) / (max - min);
            lanes sum_l = all(0), sum_ll = all(0), sum_xl = all(0);
            for (int i = 0; i < len; i++) {
                l[i] = affine_code(candidate, q.x[i], min, how.nmax);
                sum_l += q.w[i] * l[i];
                sum_ll += q.w[i] * l[i] * l[i];
                sum_xl += q.w[i] * l[i] * q.x[i];
            }
            const lanes det = sum_w * sum_ll - sum_l * sum_l;
            const lanes free_min = (sum_ll * sum_x - sum_l * sum_xl) / det;
            const mask above = free_min > all(0);
            const lanes new_min = pick(above, all(0), free_min);
            const lanes new_scale = pick(above, sum_xl / sum_ll, (sum_w * sum_xl - sum_x * sum_l) / det);
            const lanes error = deviation(&q, len, l, new_scale, new_min, how.absolute);
            const mask better = (det > all(0)) & (error < best);
            best = pick(better, error, best);
            inverse = pick(better, candidate, inverse);
            base = pick(better, min, base);
            best_scale = pick(better, new_scale, best_scale);
            min = pick(better, new_min, min);
        }
        for (int i = 0; i < len; i++) l[i] = pick(flat, all(0), affine_code(inverse, q.x[i], base, how.nmax));
        lanes_store(g->scale + first, pick(flat, all(0), best_scale), n_groups);
        lanes_store(g->depth + first, -min, n_groups);
        if (g->inverse) lanes_store(g->inverse + first, pick(flat, all(0), inverse), n_groups);
        if (g->base) lanes_store(g->base + first, base, n_groups);
        lanes_store_codes(g->code + first * len, l, n_groups, len);
    }
}

/* ---- a table of values ------------------------------------------------------------------------------ */

/* The nearest value of IQ4_NL's table; halfway between two, the upper one. */
static inline lanes nearest_in_table(lanes v) {
    lanes value = all(dw_iq4_nl_table[15]);
    for (int t = 0; t < 15; t++) {
        const float low = dw_iq4_nl_table[t], high = dw_iq4_nl_table[t + 1];
        value -= (lanes)((v < all((low + high) / 2)) & (mask)all(high - low));
    }
    return value;
}

static inline moments table_moments(const quartet *q, int len, lanes inverse) {
    moments s = {all(0), all(0)};
    for (int i = 0; i < len; i++) {
        const lanes v = nearest_in_table(inverse * q->x[i]);
        s.xl += q->w[i] * v * q->x[i];
        s.ll += q->w[i] * v * v;
    }
    return s;
}

void dw_search_table(const dw_groups *g) {
    const int len = g->len;
    quartet q;
    for (int first = 0; first < g->n_groups; first += LANES) {
        const int n_groups = g->n_groups - first;
        load(&q, n_groups, len, g->x + first * len, g->weight ? g->weight + first * len : NULL);
        moments s = table_moments(&q, len, all(1) / (-q.extreme / dw_iq4_nl_table[0]));
        lanes best_scale = pick(s.ll > all(0), s.xl / s.ll, all(0)), best = best_scale * s.xl;
        for (int k = -7; k <= 7; k++) {
            s = table_moments(&q, len, all((float)k + dw_iq4_nl_table[0]) / q.extreme);
            const mask better = (s.ll > all(0)) & (s.xl * s.xl > best * s.ll);
            best_scale = pick(better, s.xl / s.ll, best_scale);
            best = pick(better, best_scale * s.xl, best);
        }
        lanes_store(g->scale + first, pick(q.zero, all(0), best_scale), n_groups);
    }
}

/* ---- a super-block's scales ------------------------------------------------------------------------- */

float dw_search_positive(int n, int nmax, const float *x, const float *weight, uint8_t *code) {
    float max = 0;
    for (int i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    if (max < tiny) {
        memset(code, 0, (size_t)n);
        return 0;
    }
    float inverse = (float)nmax / max, best = 0;
    for (int k = -5; k <= 4; k++) { // the first round is the plain inverse
        if (k == 0) continue;
        const float candidate = k == -5 ? inverse : (0.1f * (float)k + (float)nmax) / max, scale = 1 / candidate;
        float error = 0;
        for (int i = 0; i < n; i++) {
            const int l = nearest(candidate * x[i]);
            const float diff = x[i] - scale * (float)(l < nmax ? l : nmax);
            error += weight[i] * diff * diff;
        }
        if (k == -5 || error < best) {
            best = error;
            inverse = candidate;
        }
    }
    float xl = 0, ll = 0;
    for (int i = 0; i < n; i++) {
        const int l = nearest(inverse * x[i]);
        code[i] = (uint8_t)(l < nmax ? l : nmax);
        xl += weight[i] * x[i] * (float)code[i];
        ll += weight[i] * (float)code[i] * (float)code[i];
    }
    bool changed = true;
    for (int sweep = 0; sweep < 5 && changed; sweep++) {
        changed = false;
        for (int i = 0; i < n; i++) {
            const float w = weight[i], wx = w * x[i], old = (float)code[i];
            const float rest_xl = xl - wx * old, rest_ll = ll - w * old * old;
            if (!(rest_xl > 0 && rest_ll > 0)) continue;
            int l = nearest(x[i] * rest_ll / rest_xl);
            l = l < nmax ? l : nmax;
            if (l == code[i]) continue;
            const float with_xl = rest_xl + wx * (float)l, with_ll = rest_ll + w * (float)l * (float)l;
            if (!(with_xl * with_xl * ll > xl * xl * with_ll)) continue;
            code[i] = (uint8_t)l;
            xl = with_xl;
            ll = with_ll;
            changed = true;
        }
    }
    return ll > 0 ? xl / ll : 0;
}
