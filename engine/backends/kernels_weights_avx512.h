/* kernels_weights_avx512.h - packed weights as unsigned bytes, scales and offsets, with AVX-512: for dot rows and for
 * products with 8-bit inputs.
 *
 * A type says how four blocks of 32 become two vectors of unsigned bytes (unpack_half) and what its scales and offsets
 * are (scales_32, scales_16).  Vector lanes of 128 bits hold the blocks 0 2 1 3, as records do (kernels_dot.h). */
#ifndef DW_KERNELS_WEIGHTS_AVX512_H
#define DW_KERNELS_WEIGHTS_AVX512_H

#include "backends/kernels_dot.h"

#if defined(__x86_64__)
#include <immintrin.h>

#ifndef TARGET // kernels_dot_vbmi.c has its own
#define TARGET __attribute__((target("avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#endif
#define INLINE static inline __attribute__((always_inline)) TARGET

/* ---- weights: bytes ------------------------------------------------------------------------------------ */

// The first and the last 16 values of each of four blocks, as unsigned bytes.
typedef struct half_record {
    __m512i first, last;
} half_record;

/* Keeps what is used several times in a register; compilers would load it each time, as an operand.  (Decode in Q4_0
 * without it: base 0.97, mini 0.96.) */
#define in_register(x) __asm__("" : "+v"(x))

INLINE __m128i load128(const void *p) { return _mm_loadu_si128(p); }
INLINE __m256i load256(const void *p) { return _mm256_loadu_si256(p); }

INLINE __m512i lanes(__m128i a, __m128i b, __m128i c, __m128i d) {
    const __m512i ab = _mm512_inserti32x4(_mm512_castsi128_si512(a), b, 1);
    return _mm512_inserti32x4(_mm512_inserti32x4(ab, c, 2), d, 3);
}

INLINE __m512i same_lanes(const void *p) { return _mm512_broadcast_i32x4(load128(p)); }

// One 32-bit number for each lane.
INLINE __m512i lane_numbers(int a, int b, int c, int d) {
    return _mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d);
}

INLINE half_record low_high_nibbles(__m512i x) {
    const __m512i fifteen = _mm512_set1_epi8(15);
    return (half_record){_mm512_and_si512(x, fifteen), _mm512_and_si512(_mm512_srli_epi16(x, 4), fifteen)};
}

// Adds `value` where bit `bit` + (0 2 1 3 by lane) of the bytes at p is set.
INLINE __m512i add_bit(__m512i x, const uint8_t *p, int bit, int value) {
    const __m512i bits = lane_numbers(0x01010101 << bit, 0x04040404 << bit, 0x02020202 << bit, 0x08080808u << bit);
    const __mmask64 set = _mm512_test_epi8_mask(same_lanes(p), bits);
    return _mm512_mask_add_epi8(x, set, x, _mm512_set1_epi8((char)value));
}

// Two bits of each byte at p, from bit 0 2 4 6 for the blocks 0 1 2 3.
INLINE __m512i two_bits(const uint8_t *p) {
    return _mm512_and_si512(_mm512_srlv_epi32(same_lanes(p), lane_numbers(0, 4, 2, 6)), _mm512_set1_epi8(3));
}

// The same without shifting: 1 4 16 64 times as large; the scales of Q2_K correct it.
INLINE __m512i two_bits_in_place(const uint8_t *p) {
    return _mm512_and_si512(same_lanes(p), lane_numbers(0x03030303, 0x30303030, 0x0c0c0c0c, (int)0xc0c0c0c0));
}

// Nibbles of the 16 bytes at p (blocks 0 1) and q (blocks 2 3); those of odd blocks are 16 times as large; the
// scales of Q4_K correct it.
INLINE __m512i nibbles_in_place(const uint8_t *p, const uint8_t *q) {
    const __m512i x = _mm512_mask_broadcast_i32x4(same_lanes(p), 0xf0f0, load128(q));
    return _mm512_and_si512(x, lane_numbers(0x0f0f0f0f, 0x0f0f0f0f, (int)0xf0f0f0f0, (int)0xf0f0f0f0));
}

// Fifth bits: 32 for each of four blocks; `which` selects the first or last 16 of two blocks.
INLINE __m512i add_fifth_bits(__m512i x, uint64_t blocks02, uint64_t blocks13, uint64_t which) {
    const __mmask64 set = _pext_u64(blocks02, which) | _pext_u64(blocks13, which) << 32;
    return _mm512_mask_add_epi8(x, set, x, _mm512_set1_epi8(16));
}

INLINE half_record with_fifth_bits(half_record x, const uint8_t *b0, const uint8_t *b1, const uint8_t *b2,
                                   const uint8_t *b3) {
    const uint64_t blocks02 = dw_le32(b0) | (uint64_t)dw_le32(b2) << 32;
    const uint64_t blocks13 = dw_le32(b1) | (uint64_t)dw_le32(b3) << 32;
    x.first = add_fifth_bits(x.first, blocks02, blocks13, 0x0000ffff0000ffff);
    x.last = add_fifth_bits(x.last, blocks02, blocks13, 0xffff0000ffff0000);
    return x;
}

INLINE half_record nibbles_of_four(const uint8_t *b0, const uint8_t *b1, const uint8_t *b2, const uint8_t *b3) {
    return low_high_nibbles(lanes(load128(b0), load128(b2), load128(b1), load128(b3)));
}

// Four lanes from lanes of two vectors: 0 2 of a, 0 2 of b | 1 3 of a, 1 3 of b.
INLINE half_record even_odd_lanes(__m512i a, __m512i b) {
    return (half_record){_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd)};
}

// Four blocks of 32 at b0..b3.
INLINE half_record unpack_blocks(dw_qtype type, const uint8_t *b0, const uint8_t *b1, const uint8_t *b2,
                                 const uint8_t *b3) {
    const __m512i value = _mm512_broadcast_i32x4(_mm_add_epi8(_mm_setr_epi8(DW_IQ4_NL_VALUES), _mm_set1_epi8(-128)));
    const __m512i sign = _mm512_set1_epi8(-128);
    half_record x;
    switch (type) {
    case DW_Q4_0: return nibbles_of_four(b0 + 2, b1 + 2, b2 + 2, b3 + 2);
    case DW_Q4_1: return nibbles_of_four(b0 + 4, b1 + 4, b2 + 4, b3 + 4);
    case DW_Q5_0:
        x = nibbles_of_four(b0 + 6, b1 + 6, b2 + 6, b3 + 6);
        return with_fifth_bits(x, b0 + 2, b1 + 2, b2 + 2, b3 + 2);
    case DW_Q5_1:
        x = nibbles_of_four(b0 + 8, b1 + 8, b2 + 8, b3 + 8);
        return with_fifth_bits(x, b0 + 4, b1 + 4, b2 + 4, b3 + 4);
    case DW_IQ4_NL:
        x = nibbles_of_four(b0 + 2, b1 + 2, b2 + 2, b3 + 2);
        return (half_record){_mm512_shuffle_epi8(value, x.first), _mm512_shuffle_epi8(value, x.last)};
    default: // Q8_0
        x = even_odd_lanes(_mm512_inserti64x4(_mm512_castsi256_si512(load256(b0 + 2)), load256(b2 + 2), 1),
                           _mm512_inserti64x4(_mm512_castsi256_si512(load256(b1 + 2)), load256(b3 + 2), 1));
        return (half_record){_mm512_xor_si512(x.first, sign), _mm512_xor_si512(x.last, sign)};
    }
}

// Half h of the superblock at p.
INLINE half_record unpack_superblock(dw_qtype type, const uint8_t *p, int h) {
    half_record x;
    switch (type) {
    case DW_Q2_K: return (half_record){two_bits_in_place(p + 16 + 32 * h), two_bits_in_place(p + 32 + 32 * h)};
    case DW_Q3_K:
        x = (half_record){two_bits(p + 32 + 32 * h), two_bits(p + 48 + 32 * h)};
        return (half_record){add_bit(x.first, p, 4 * h, 4), add_bit(x.last, p + 16, 4 * h, 4)};
    case DW_Q4_K: p += 16 + 64 * h; return (half_record){nibbles_in_place(p, p + 32), nibbles_in_place(p + 16, p + 48)};
    case DW_Q5_K:
        x = low_high_nibbles(_mm512_loadu_si512(p + 48 + 64 * h));
        x = even_odd_lanes(x.first, x.last);
        return (half_record){add_bit(x.first, p + 16, 4 * h, 16), add_bit(x.last, p + 32, 4 * h, 16)};
    default: { // Q6_K
        const __m512i low = _mm512_loadu_si512(p + 64 * h), turn = lane_numbers(0, 4, 0, 4);
        const __m512i fifteen = _mm512_set1_epi8(15), top = _mm512_set1_epi8(0x30), place = lane_numbers(28, 0, 30, 2);
        enum { OR_AND = 0xf8 }; // a | (b & c)
        x.first = _mm512_and_si512(_mm512_srlv_epi32(_mm512_shuffle_i32x4(low, low, 0xa0), turn), fifteen);
        x.last = _mm512_and_si512(_mm512_srlv_epi32(_mm512_shuffle_i32x4(low, low, 0xf5), turn), fifteen);
        const __m512i high_first = _mm512_rorv_epi32(same_lanes(p + 128 + 32 * h), place);
        const __m512i high_last = _mm512_rorv_epi32(same_lanes(p + 144 + 32 * h), place);
        return (half_record){_mm512_ternarylogic_epi32(x.first, high_first, top, OR_AND),
                             _mm512_ternarylogic_epi32(x.last, high_last, top, OR_AND)};
    }
    }
}

// Half h of a record of n_blocks blocks of 32 at p; the last block replaces those that are missing.
INLINE half_record unpack_half(dw_qtype type, const uint8_t *p, int h, int n_blocks) {
    if (is_superblock(type)) return unpack_superblock(type, p, h);
    const int bytes = record_bytes(type) / 8, last = n_blocks - 1;
    const uint8_t *b[4];
    for (int i = 0; i < 4; i++) b[i] = p + (4 * h + i < last ? 4 * h + i : last) * bytes;
    return unpack_blocks(type, b[0], b[1], b[2], b[3]);
}

/* ---- weights: scales and offsets ----------------------------------------------------------------------- */

// a b a b ...
INLINE __m512 two_numbers(float a, float b) { return _mm512_setr_ps(a, b, a, b, a, b, a, b, a, b, a, b, a, b, a, b); }

INLINE float half_at(const uint8_t *p) { return _cvtsh_ss(dw_le16(p)); }

// Words of the 128 bytes at p: w0, w0 + next, w1, w1 + next, ... of blocks that are `step` words apart, w0 at `first`.
INLINE __m128i words_of_four(const uint8_t *p, int first, int step, int next) {
    const __m128i at = _mm_setr_epi16((short)first, (short)(first + next), (short)(first + step),
                                      (short)(first + step + next), (short)(first + 2 * step),
                                      (short)(first + 2 * step + next), (short)(first + 3 * step),
                                      (short)(first + 3 * step + next));
    return _mm512_castsi512_si128(
        _mm512_permutex2var_epi16(_mm512_loadu_si512(p), _mm512_castsi128_si512(at), _mm512_loadu_si512(p + 64)));
}

INLINE bool has_minimum(dw_qtype type) { return type == DW_Q4_1 || type == DW_Q5_1; }

// Eight blocks of 32: d, m of each, or d, d if the type has no minimum.  Missing blocks give zero.
INLINE __m512 block_scales(dw_qtype type, const uint8_t *p, int n_blocks) {
    const int bytes = record_bytes(type) / 8, next = has_minimum(type);
    if (n_blocks < BLOCKS) {
        const __m256i at = _mm256_setr_epi32(0, bytes, 2 * bytes, 3 * bytes, 4 * bytes, 5 * bytes, 6 * bytes,
                                             7 * bytes);
        const __mmask8 there = (__mmask8)((1 << n_blocks) - 1);
        const __m256i heads = _mm256_mmask_i32gather_epi32(_mm256_setzero_si256(), there, at, (const int *)p, 1);
        const __m256i twice = _mm256_blend_epi16(heads, _mm256_slli_epi32(heads, 16), 0xaa);
        return _mm512_cvtph_ps(next ? heads : twice);
    }
    if (bytes == 18) { // all scales are in the first 128 bytes
        const __m256i at = _mm256_setr_epi16(0, 0, 9, 9, 18, 18, 27, 27, 36, 36, 45, 45, 54, 54, 63, 63);
        return _mm512_cvtph_ps(_mm512_castsi512_si256(
            _mm512_permutex2var_epi16(_mm512_loadu_si512(p), _mm512_castsi256_si512(at), _mm512_loadu_si512(p + 64))));
    }
    const int second = 4 * bytes < 8 * bytes - 128 ? 4 * bytes : 8 * bytes - 128; // does not read beyond the last block
    const __m128i low = words_of_four(p, 0, bytes / 2, next);
    const __m128i high = words_of_four(p + second, (4 * bytes - second) / 2, bytes / 2, next);
    return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1));
}

// Types with one scale for 32 weights: d, m of eight blocks; offset_32 * m * sum is subtracted.
INLINE __m512 scales_32(dw_qtype type, const uint8_t *p, int n_blocks) {
    if (!is_superblock(type)) return block_scales(type, p, n_blocks);
    uint64_t scales, mins;
    dw_unpack_scales_mins(p + 4, &scales, &mins);
    const __m128i both = _mm_unpacklo_epi8(_mm_cvtsi64_si128((long long)scales), _mm_cvtsi64_si128((long long)mins));
    __m512 d = _mm512_cvtph_ps(_mm256_set1_epi32((int)dw_le32(p)));
    const float odd = 1 / 16.0f; // nibbles_in_place
    if (type == DW_Q4_K) d = _mm512_mul_ps(d, _mm512_setr_ps(1, 1, odd, 1, 1, 1, odd, 1, 1, 1, odd, 1, 1, 1, odd, 1));
    return _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(both)));
}

INLINE float offset_32(dw_qtype type) {
    switch (type) {
    case DW_Q4_0: return 8;
    case DW_Q5_0: return 16;
    case DW_Q8_0:
    case DW_IQ4_NL: return 128;
    case DW_Q4_1:
    case DW_Q5_1: return -1;
    default: return 1; // Q4_K, Q5_K
    }
}

// Types with a scale for 16 weights: the scales, and the factors of the sums of 16, which are subtracted.
typedef struct scales {
    __m512 d, m;
} scales;

INLINE __m512 signed_to_float(__m128i x) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x)); }

// The scales of the 16 pieces of a superblock of Q3_K.
INLINE __m128i q3_scales(const uint8_t *p) {
    uint64_t first, last;
    dw_unpack_q3_scales(p + 96, &first, &last);
    return _mm_sub_epi8(_mm_set_epi64x((long long)last, (long long)first), _mm_set1_epi8(32));
}

INLINE scales scales_16(dw_qtype type, const uint8_t *p) {
    const __m128i fifteen = _mm_set1_epi8(15);
    __m512 d, place;
    __m128i s;
    switch (type) {
    case DW_Q2_K:
        s = load128(p);
        place = _mm512_broadcast_f32x8(
            _mm256_setr_ps(1, 1, 1 / 4.0f, 1 / 4.0f, 1 / 16.0f, 1 / 16.0f, 1 / 64.0f, 1 / 64.0f));
        d = _mm512_mul_ps(_mm512_set1_ps(half_at(p + 80)), place); // two_bits_in_place
        return (scales){_mm512_mul_ps(d, signed_to_float(_mm_and_si128(s, fifteen))),
                        _mm512_mul_ps(_mm512_set1_ps(half_at(p + 82)),
                                      signed_to_float(_mm_and_si128(_mm_srli_epi16(s, 4), fifteen)))};
    case DW_Q3_K:
        d = _mm512_mul_ps(signed_to_float(q3_scales(p)), _mm512_set1_ps(half_at(p + 108)));
        return (scales){d, _mm512_mul_ps(d, _mm512_set1_ps(4))};
    default: // Q6_K
        d = _mm512_mul_ps(signed_to_float(load128(p + 192)), _mm512_set1_ps(half_at(p + 208)));
        return (scales){d, _mm512_mul_ps(d, _mm512_set1_ps(32))};
    }
}

/* ---- sums ---------------------------------------------------------------------------------------------- */

// As kernels_dot_rows.inc needs them.
typedef __m512 vf;
INLINE __m256 folded(__m512 v) { return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)); }

INLINE float sum_of(__m512 v) {
    const __m256 half = folded(v);
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}

#endif
#endif
