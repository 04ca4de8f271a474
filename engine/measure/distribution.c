/* distribution.c - sums over rows of logits, eight at a time. */
#include "measure/distribution.h"

#include <math.h>
#include <string.h>

enum { LANES = 8 };

#define INLINE static inline __attribute__((always_inline))

/* Eight lanes in the compiler's vector arithmetic.  Passed by pointer, so no call depends on the width of registers. */
typedef double lanes __attribute__((vector_size(8 * LANES)));
typedef int64_t lane_bits __attribute__((vector_size(8 * LANES)));
typedef float half_lanes __attribute__((vector_size(4 * LANES)));

static const double lowest = -708; // exp(-708) is still a normal number, and far below the precision of any sum

/* *e = *e * *r + c; rounded once if `fused`, which takes half the work if the CPU has fused multiply-add. */
INLINE void multiply_add(lanes *e, const lanes *r, double c, bool fused) {
    if (fused) {
        for (int j = 0; j < LANES; j++) (*e)[j] = __builtin_fma((*e)[j], (*r)[j], c);
    } else {
        *e = *e * *r + c;
    }
}

/* *v = exp(*v) for values <= 0: 2^n exp(r) with |r| <= ln(2)/2, by the Taylor series to r^11 (error below 1e-14).
 * Adding 1.5 * 2^52 rounds to the integer n; the low bits of n are then the last bits of the sum's mantissa. */
INLINE void lanes_exp(lanes *v, bool fused) {
    const double shift = 0x1.8p52, log2e = 0x1.71547652b82fep0, ln2_high = 0x1.62e42fefa0000p-1,
                 ln2_low = 0x1.cf79abc9e3b39p-40;
    const lanes least = (lanes){0} + lowest;
    const lane_bits is_low = *v < least;
    const lanes x = (lanes)((is_low & (lane_bits)least) | (~is_low & (lane_bits)*v));
    const lanes t = x * log2e + shift, n = t - shift, r = (x - n * ln2_high) - n * ln2_low;
    lanes e = (lanes){0} + 1.0 / 39916800;
    multiply_add(&e, &r, 1.0 / 3628800, fused);
    multiply_add(&e, &r, 1.0 / 362880, fused);
    multiply_add(&e, &r, 1.0 / 40320, fused);
    multiply_add(&e, &r, 1.0 / 5040, fused);
    multiply_add(&e, &r, 1.0 / 720, fused);
    multiply_add(&e, &r, 1.0 / 120, fused);
    multiply_add(&e, &r, 1.0 / 24, fused);
    multiply_add(&e, &r, 1.0 / 6, fused);
    multiply_add(&e, &r, 0.5, fused);
    multiply_add(&e, &r, 1, fused);
    multiply_add(&e, &r, 1, fused);
    *v = (lanes)((lane_bits)e + ((lane_bits)t << 52));
}

/* x - max of LANES logits; lanes after the end of the row get `lowest`. */
INLINE void lanes_load(const float *x, int n, double max, lanes *to) {
    half_lanes f;
    if (n >= LANES) {
        memcpy(&f, x, sizeof f);
        *to = __builtin_convertvector(f, lanes) - max;
    } else {
        double end[LANES];
        for (int j = 0; j < LANES; j++) end[j] = j < n ? (double)x[j] - max : lowest;
        memcpy(to, end, sizeof end);
    }
}

INLINE double fold(const lanes *v) {
    return (((*v)[0] + (*v)[1]) + ((*v)[2] + (*v)[3])) + (((*v)[4] + (*v)[5]) + ((*v)[6] + (*v)[7]));
}

INLINE double sum_exp_body(const float *x, int n, double max, bool fused) {
    lanes sum = {0}, v;
    for (int k = 0; k < n; k += LANES) {
        lanes_load(x + k, n - k, max, &v);
        lanes_exp(&v, fused);
        sum += v;
    }
    return fold(&sum);
}

/* sum of exp(x - max_x) ((x - max_x) - (y - max_y)) */
INLINE double sum_excess_body(const float *x, double max_x, const float *y, double max_y, int n, bool fused) {
    lanes sum = {0}, v, w;
    for (int k = 0; k < n; k += LANES) {
        lanes_load(x + k, n - k, max_x, &v);
        lanes_load(y + k, n - k, max_y, &w);
        const lanes excess = v - w;
        lanes_exp(&v, fused);
        sum += v * excess;
    }
    return fold(&sum);
}

/* The maximum.  *finite: whether every logit is finite; x - x is 0 for finite x only. */
INLINE float max_body(const float *x, int n, bool *finite) {
    float max[2 * LANES], odd[2 * LANES] = {0};
    for (int j = 0; j < 2 * LANES; j++) max[j] = x[0];
    int k = 0;
    for (; k + 2 * LANES <= n; k += 2 * LANES)
        for (int j = 0; j < 2 * LANES; j++) {
            const float v = x[k + j];
            max[j] = v > max[j] ? v : max[j];
            odd[j] += v - v;
        }
    for (; k < n; k++) {
        max[0] = x[k] > max[0] ? x[k] : max[0];
        odd[0] += x[k] - x[k];
    }
    for (int j = 1; j < 2 * LANES; j++) {
        max[0] = max[j] > max[0] ? max[j] : max[0];
        odd[0] += odd[j];
    }
    *finite = odd[0] == 0;
    return max[0];
}

/* The loops above, compiled for one level of vector instructions. */
typedef struct loops {
    float (*max)(const float *, int, bool *);
    double (*sum_exp)(const float *, int, double);
    double (*sum_excess)(const float *, double, const float *, double, int);
} loops;

#define LOOPS(name, target, fused)                                                                                     \
    target static float max_##name(const float *x, int n, bool *finite) { return max_body(x, n, finite); }             \
    target static double sum_exp_##name(const float *x, int n, double max) { return sum_exp_body(x, n, max, fused); }  \
    target static double sum_excess_##name(const float *x, double max_x, const float *y, double max_y, int n) {        \
        return sum_excess_body(x, max_x, y, max_y, n, fused);                                                          \
    }                                                                                                                  \
    static const loops loops_##name = {max_##name, sum_exp_##name, sum_excess_##name}

LOOPS(plain, , false);
#if defined(__x86_64__)
LOOPS(avx2, __attribute__((target("avx2,fma"))), true);
LOOPS(avx512, __attribute__((target("avx512f,avx512dq,fma"))), true);
#endif

static const loops *best_loops(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) return &loops_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &loops_avx2;
#endif
    return &loops_plain;
}

/* Whether one of the LANES values is v. */
static bool has(const float *x, float v) {
    int n = 0;
    for (int j = 0; j < LANES; j++) n += x[j] == v;
    return n > 0;
}

measure_row measure_row_of(const float *x, int n) {
    const loops *l = best_loops();
    bool finite;
    const float max = l->max(x, n, &finite);
    if (!finite) return (measure_row){NAN, NAN, -1};
    measure_row r = {.max = (double)max, .log_sum = log(l->sum_exp(x, n, (double)max))};
    while (r.top + LANES <= n && !has(x + r.top, max)) r.top += LANES;
    while (x[r.top] != max) r.top++;
    return r;
}

double measure_row_kl(const float *x, const measure_row *p, const float *y, const measure_row *q, int n) {
    const double excess = best_loops()->sum_excess(x, p->max, y, q->max, n);
    const double kl = excess / exp(p->log_sum) + (q->log_sum - p->log_sum);
    return kl > 0 ? kl : 0; // rounding may leave -1e-17
}

/* ---- coarse ----------------------------------------------------------------------------------------------- */

static const float no_mass = -1000;

/* True when token i comes after token j in the order of likelihood. */
static bool is_behind(const float *x, int32_t i, int32_t j) { return x[i] < x[j] || (x[i] == x[j] && i > j); }

/* Moves the token at place k of a heap down to its place; the least likely token is on top. */
static void sink(int32_t *heap, int n, int k, const float *x) {
    for (int child; (child = 2 * k + 1) < n; k = child) {
        if (child + 1 < n && is_behind(x, heap[child + 1], heap[child])) child++;
        if (!is_behind(x, heap[child], heap[k])) return;
        const int32_t id = heap[k];
        heap[k] = heap[child];
        heap[child] = id;
    }
}

static void find_top(const float *x, int n, int32_t *id, int n_top) {
    for (int i = 0; i < n_top; i++) id[i] = i;
    for (int k = n_top / 2; k-- > 0;) sink(id, n_top, k, x);
    for (int i = n_top; i < n; i++) {
        if (x[i] <= x[id[0]]) continue; // on ties the first token stays
        id[0] = i;
        sink(id, n_top, 0, x);
    }
    for (int last = n_top - 1; last > 0; last--) { // moves the least likely token to the end
        const int32_t least = id[0];
        id[0] = id[last];
        id[last] = least;
        sink(id, last, 0, x);
    }
}

/* ln of the mass of all tokens except id[0 .. n_top-1].  Summed directly, because 1 - sum would lose digits. */
static float tail_of(float *x, const measure_row *r, int n, const int32_t *id, int n_top) {
    float kept[MEASURE_TOP];
    for (int k = 0; k < n_top; k++) {
        kept[k] = x[id[k]];
        x[id[k]] = -INFINITY;
    }
    const double mass = best_loops()->sum_exp(x, n, r->max);
    for (int k = n_top; k-- > 0;) x[id[k]] = kept[k];
    return mass > 1e-300 ? (float)(log(mass) - r->log_sum) : no_mass;
}

void measure_coarse_of(measure_coarse *c, float *x, const measure_row *r, int n) {
    const int n_top = measure_n_top(n);
    *c = (measure_coarse){0};
    find_top(x, n, c->id, n_top);
    for (int k = 0; k < n_top; k++) c->logprob[k] = (float)measure_row_logprob(r, x, c->id[k]);
    c->tail = tail_of(x, r, n, c->id, n_top);
}

double measure_coarse_kl(const measure_coarse *c, float *x, const measure_row *q, int n) {
    const int n_top = measure_n_top(n);
    const float tail = tail_of(x, q, n, c->id, n_top);
    double kl = exp((double)c->tail) * ((double)c->tail - (double)tail);
    for (int k = 0; k < n_top; k++) {
        const double p = (double)c->logprob[k], ours = (double)(float)measure_row_logprob(q, x, c->id[k]);
        kl += exp(p) * (p - ours);
    }
    return kl > 0 ? kl : 0;
}
