/* lanes.h - four groups side by side: a vector of four floats, in the compiler's own vector arithmetic. */
#ifndef DW_LANES_H
#define DW_LANES_H

#include <stdbool.h>
#include <stdint.h>

enum { LANES = 4 };
typedef float lanes __attribute__((vector_size(16)));
typedef int32_t mask __attribute__((vector_size(16))); // a comparison's result: all bits set or none

static inline lanes all(float v) { return (lanes){v, v, v, v}; }
static inline lanes pick(mask m, lanes yes, lanes no) { return (lanes)((m & (mask)yes) | (~m & (mask)no)); }
static inline lanes magnitude(lanes v) { return (lanes)((mask)v & 0x7fffffff); }
static inline bool any(mask m) { return m[0] | m[1] | m[2] | m[3]; }

static inline lanes lanes_clamp(lanes v, float low, float high) {
    v = pick(v < all(low), all(low), v);
    return pick(v > all(high), all(high), v);
}

/* nearest() of scale_search.h, as floats. */
static inline lanes lanes_nearest(lanes v) {
    return __builtin_convertvector(((mask)(v + 12582912.0f) & 0x7fffff) - 0x400000, lanes);
}

/* Value i of four groups of len values at p; groups beyond n_groups are zeros. */
static inline void lanes_load(lanes *to, const float *p, int n_groups, int len) {
    if (n_groups >= LANES) {
        for (int i = 0; i < len; i++) to[i] = (lanes){p[i], p[len + i], p[2 * len + i], p[3 * len + i]};
        return;
    }
    for (int i = 0; i < len; i++)
        for (int g = 0; g < LANES; g++) to[i][g] = g < n_groups ? p[g * len + i] : 0;
}

static inline void lanes_store(float *p, lanes v, int n_groups) {
    for (int g = 0; g < LANES && g < n_groups; g++) p[g] = v[g];
}

static inline void lanes_store_codes(uint8_t *p, const lanes *code, int n_groups, int len) {
    for (int i = 0; i < len; i++) {
        const mask c = __builtin_convertvector(code[i], mask);
        for (int g = 0; g < LANES && g < n_groups; g++) p[g * len + i] = (uint8_t)c[g];
    }
}

#endif
