/* scale_search.c - ranges, scales of a super-block, and which of the searches (scale_search_lanes.inc) this CPU uses. */
#define LANES 4
#define LANES_STATIC static
#define LANES_INLINE static inline
#include "qtypes/scale_search_lanes.inc"

#include <float.h>

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

/* ---- the searches of this CPU ------------------------------------------------------------------------ */

const dw_searches dw_searches_plain = LANES_TABLE;

/* The widest that this CPU has, unless so few groups leave half of its lanes empty. */
static const dw_searches *searches_of(int n_groups) {
#if defined(__x86_64__)
    if (n_groups > 8 && __builtin_cpu_supports("avx512f")) return &dw_searches_avx512;
    if (n_groups > 4 && __builtin_cpu_supports("avx2")) return &dw_searches_avx2;
#endif
    (void)n_groups;
    return &dw_searches_plain;
}

void dw_search_symmetric(const dw_groups *g, int nmax) { searches_of(g->n_groups)->symmetric(g, nmax); }
void dw_search_sweeps(const dw_groups *g, int nmax) { searches_of(g->n_groups / 2)->sweeps(g, nmax); } // two at a time
void dw_search_affine(const dw_groups *g, dw_affine_search how) { searches_of(g->n_groups)->affine(g, how); }
void dw_search_table(const dw_groups *g) { searches_of(g->n_groups)->table(g); }

/* ---- a super-block's scales ------------------------------------------------------------------------- */

float dw_search_positive(int n, int nmax, const float *x, const float *weight, uint8_t *code) {
    float max = 0;
    for (int i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    if (max < DW_TINY_GROUP) {
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
