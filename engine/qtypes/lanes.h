/* lanes.h - groups side by side: a vector of LANES floats, in the compiler's own vector arithmetic.
 *
 * The including file defines LANES (4, 8 or 16) and LANES_INLINE, the attributes of functions for its vector unit. */
#ifndef DW_LANES_H
#define DW_LANES_H

#include <stdbool.h>
#include <stdint.h>

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t mask __attribute__((vector_size(4 * LANES))); // a comparison's result: all bits set or none

LANES_INLINE lanes all(float v) { return v - (lanes){0}; }
LANES_INLINE lanes pick(mask m, lanes yes, lanes no) { return (lanes)((m & (mask)yes) | (~m & (mask)no)); }
LANES_INLINE lanes magnitude(lanes v) { return (lanes)((mask)v & 0x7fffffff); }

LANES_INLINE bool any(mask m) {
    int32_t bits = 0;
    for (int g = 0; g < LANES; g++) bits |= m[g];
    return bits;
}

LANES_INLINE lanes lanes_clamp(lanes v, float low, float high) {
    v = pick(v < all(low), all(low), v);
    return pick(v > all(high), all(high), v);
}

/* nearest() of scale_search.h, as floats. */
LANES_INLINE lanes lanes_nearest(lanes v) {
    return __builtin_convertvector(((mask)(v + 12582912.0f) & 0x7fffff) - 0x400000, lanes);
}

/* Value i of LANES groups of len values at p; groups beyond n_groups are zeros. */
LANES_INLINE void lanes_load(lanes *to, const float *p, int n_groups, int len) {
    float *value = (float *)to;
    if (n_groups < LANES)
        for (int i = 0; i < len; i++) to[i] = all(0);
    for (int g = 0; g < LANES && g < n_groups; g++)
        for (int i = 0; i < len; i++) value[i * LANES + g] = p[g * len + i];
}

LANES_INLINE void lanes_store(float *p, lanes v, int n_groups) {
    for (int g = 0; g < LANES && g < n_groups; g++) p[g] = v[g];
}

LANES_INLINE void lanes_store_codes(uint8_t *p, const lanes *code, int n_groups, int len) {
    for (int i = 0; i < len; i++) {
        const mask c = __builtin_convertvector(code[i], mask);
        for (int g = 0; g < LANES && g < n_groups; g++) p[g * len + i] = (uint8_t)c[g];
    }
}

#endif
