/* codecs.h - inside qtypes/: the functions of the table's rows, and how blocks are read and written.
 *
 * Layouts are little-endian bytes, addressed as offsets from a block's start: no struct, no alignment. */
#ifndef DW_CODECS_H
#define DW_CODECS_H

#include "base/half_inline.h"
#include "qtypes/qtypes.h"

typedef void dw_decode_fn(const void *src, float *dst, size_t n);
typedef void dw_encode_fn(const float *src, void *dst, size_t n, const float *weight);

// qtype_simple.c
dw_decode_fn dw_decode_f32, dw_decode_f16, dw_decode_bf16, dw_decode_q8_0, dw_decode_q4_0, dw_decode_q4_1,
    dw_decode_q5_0, dw_decode_q5_1, dw_decode_iq4_nl;
dw_encode_fn dw_encode_f32, dw_encode_f16, dw_encode_bf16, dw_encode_q8_0, dw_encode_q4_0, dw_encode_q4_1,
    dw_encode_q5_0, dw_encode_q5_1, dw_encode_iq4_nl;

// qtype_k.c
dw_decode_fn dw_decode_q2_k, dw_decode_q3_k, dw_decode_q4_k, dw_decode_q5_k, dw_decode_q6_k;
dw_encode_fn dw_encode_q2_k, dw_encode_q3_k, dw_encode_q4_k, dw_encode_q5_k, dw_encode_q6_k;

extern const float dw_iq4_nl_table[16];

static inline uint16_t load16(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return h;
}

static inline void store16(uint8_t *p, uint16_t h) { memcpy(p, &h, sizeof h); }

static inline float load_half(const uint8_t *p) { return dw_f16_to_f32_inline(load16(p)); }

static inline void store_half(uint8_t *p, float f) { store16(p, dw_f32_to_f16_inline(f)); }

#endif
