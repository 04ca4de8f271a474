/* layouts.h - layouts that decoders and kernels share: the table of IQ4_NL, the packed scales of K types. */
#ifndef DW_LAYOUTS_H
#define DW_LAYOUTS_H

#include "base/base.h"

/* IQ4_NL: code to value. */
#define DW_IQ4_NL_VALUES -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113

/* Unpacks the eight six-bit scales and minima of a Q4_K or Q5_K super-block from its 12 bytes, to a byte each.
 * Groups 0..3: the low six bits of bytes 0..3 (scales) and 4..7 (minima).  Groups 4..7: the low four bits are nibbles
 * of bytes 8..11, the high two are the top bits of bytes 0..3 and 4..7. */
static inline void dw_unpack_scales_mins(const uint8_t *packed, uint64_t *scales, uint64_t *mins) {
    const uint32_t a = dw_le32(packed), b = dw_le32(packed + 4), c = dw_le32(packed + 8);
    const uint32_t scale_high = (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030);
    const uint32_t min_high = (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030);
    *scales = (a & 0x3f3f3f3f) | (uint64_t)scale_high << 32;
    *mins = (b & 0x3f3f3f3f) | (uint64_t)min_high << 32;
}

/* Unpacks the sixteen six-bit scales of a Q3_K super-block from its 12 bytes, to a byte each (scale + 32).  The low
 * four bits are nibbles of bytes 0..7, the high two are in bytes 8..11. */
static inline void dw_unpack_q3_scales(const uint8_t *packed, uint64_t *first, uint64_t *last) {
    const uint32_t a = dw_le32(packed), b = dw_le32(packed + 4), c = dw_le32(packed + 8);
    const uint32_t s0 = (a & 0x0f0f0f0f) | (c << 4 & 0x30303030), s1 = (b & 0x0f0f0f0f) | (c << 2 & 0x30303030);
    const uint32_t s2 = (a >> 4 & 0x0f0f0f0f) | (c & 0x30303030), s3 = (b >> 4 & 0x0f0f0f0f) | (c >> 2 & 0x30303030);
    *first = s0 | (uint64_t)s1 << 32;
    *last = s2 | (uint64_t)s3 << 32;
}

#endif
