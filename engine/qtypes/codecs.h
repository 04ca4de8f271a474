/* codecs.h - inside qtypes/: the functions of the table's rows, and how blocks are read and written.
 *
 * Layouts are little-endian bytes, addressed as offsets from a block's start: no struct, no alignment. */
#ifndef DW_CODECS_H
#define DW_CODECS_H

#include "base/half_inline.h"
#include "qtypes/qtypes.h"

typedef void dw_decode_fn(const void *src, float *dst, size_t n);
typedef void dw_encode_fn(const float *src, void *dst, size_t n, const float *weight);

#define DECLARE_ENCODER(suffix) dw_encode_fn dw_encode_##suffix;
#define DECLARE_DECODER(suffix)
#define DECLARE(NAME, id, block, bytes, file_type, suffix, HAS)                                                        \
    dw_decode_fn dw_decode_##suffix;                                                                                   \
    DECLARE_##HAS(suffix)
DW_QTYPES(DECLARE)
#undef DECLARE
#undef DECLARE_ENCODER
#undef DECLARE_DECODER

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
