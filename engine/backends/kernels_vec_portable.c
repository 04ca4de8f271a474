/* kernels_vec_portable.c - vectors of four lanes in the compiler's own notation: SSE2, NEON or plain code. */
#include "base/half_inline.h"
#include "base/base.h"

#include <string.h>

#define TARGET
#define LEVEL(name) name##_portable
enum { LANES = 4, ROWS = 4 };
typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t mask_lanes __attribute__((vector_size(4 * LANES)));

static inline vf load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void store(float *p, vf v) { memcpy(p, &v, sizeof v); }
static inline vf set1(float x) { return (vf){x, x, x, x}; }
static inline vf fmadd(vf a, vf b, vf c) { return a * b + c; }
static inline vf choose(mask_lanes m, vf a, vf b) { return (vf)((m & (mask_lanes)a) | (~m & (mask_lanes)b)); }
static inline vf at_least(vf bound, vf x) { return choose(bound > x, bound, x); }
static inline vf at_most(vf bound, vf x) { return choose(bound < x, bound, x); }
static inline vf load_f16(const uint16_t *h) {
    return (vf){dw_f16_to_f32_inline(h[0]), dw_f16_to_f32_inline(h[1]), dw_f16_to_f32_inline(h[2]),
                dw_f16_to_f32_inline(h[3])};
}
static inline void store_f16(uint16_t *h, vf v) {
    for (int i = 0; i < LANES; i++) h[i] = dw_f32_to_f16_inline(v[i]);
}
static inline float sum_of(vf v) { return (v[0] + v[2]) + (v[1] + v[3]); }
static inline float larger_of(float a, float b) { return a > b ? a : b; }
static inline float max_of(vf v) { return larger_of(larger_of(v[0], v[2]), larger_of(v[1], v[3])); }
static inline void transpose16(const float *src, size_t ld_src, float *dst, size_t ld_dst) {
    for (size_t i = 0; i < 16; i++)
        for (size_t j = 0; j < 16; j++) dst[i * ld_dst + j] = src[j * ld_src + i];
}

static inline void transpose_lanes(const float *src, float *dst) {
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < LANES; j++) dst[i * LANES + j] = src[j * LANES + i];
}

#include "backends/kernels_vec_body.inc"
#include "backends/kernels_backward_body.inc"
