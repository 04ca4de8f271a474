/* kernels_weights_avx2.h - packed weights as bytes, scales and offsets, with AVX2: for dot rows, products with
 * 8-bit inputs, additions of rows and decoders.
 *
 * As kernels_weights_avx512.h with vectors half as wide: two blocks of 32, one in each lane of 128 bits.  Products of
 * bytes are added in pairs to 16 bits, which must not overflow.  Unsigned bytes of Q8_0 and IQ4_NL would be too large
 * for that, so these types stay signed and their signs are moved to the activations. */
#ifndef DW_KERNELS_WEIGHTS_AVX2_H
#define DW_KERNELS_WEIGHTS_AVX2_H

#include "backends/kernels_dot.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) TARGET

/* ---- weights: bytes ------------------------------------------------------------------------------------ */

// The first and the last 16 values of two blocks.
typedef struct pair {
    __m256i first, last;
} pair;

INLINE bool is_signed(dw_qtype type) { return type == DW_Q8_0 || type == DW_IQ4_NL; }
INLINE bool has_minimum(dw_qtype type) { return type == DW_Q4_1 || type == DW_Q5_1; }
INLINE bool has_four_bits(dw_qtype type) { return type == DW_Q4_0 || type == DW_Q4_1 || type == DW_Q4_K; }

INLINE __m128i load128(const void *p) { return _mm_loadu_si128(p); }
INLINE __m256i load256(const void *p) { return _mm256_loadu_si256(p); }
INLINE __m256i lanes(const void *a, const void *b) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load128(a)), load128(b), 1);
}
INLINE __m256i same_lanes(const void *p) { return _mm256_broadcastsi128_si256(load128(p)); }
// The same as lanes, with another load instead of an operation that Zen 3 begins once a cycle.
INLINE __m256i loaded_lanes(const void *a, const void *b) {
    return _mm256_blend_epi32(same_lanes(a), same_lanes(b), 0xf0);
}
INLINE __m256i same_dwords(const void *p) { return _mm256_castps_si256(_mm256_broadcast_ss(p)); }
INLINE __m256i lane_numbers(int a, int b) { return _mm256_setr_epi32(a, a, a, a, b, b, b, b); }
INLINE __m256i low_nibbles(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
INLINE __m256i high_nibbles(__m256i x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }
INLINE pair both_nibbles(__m256i x) { return (pair){low_nibbles(x), high_nibbles(x)}; }
INLINE pair nibbles(const uint8_t *a, const uint8_t *b) { return both_nibbles(lanes(a, b)); }

// `value` where all bits of `bits` are set in x.
INLINE __m256i value_where(__m256i x, __m256i bits, int value) {
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(x, bits), bits), _mm256_set1_epi8((char)value));
}

// Fifth bits: 32 at a, 32 at b.
INLINE pair with_fifth_bits(pair x, const uint8_t *a, const uint8_t *b) {
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i all = _mm256_blend_epi32(same_dwords(a), same_dwords(b), 0xf0);
    const __m128i bytes01 = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m256i which = _mm256_broadcastsi128_si256(bytes01), next = _mm256_add_epi8(which, _mm256_set1_epi8(2));
    x.first = _mm256_or_si256(x.first, value_where(_mm256_shuffle_epi8(all, which), bit, 16));
    x.last = _mm256_or_si256(x.last, value_where(_mm256_shuffle_epi8(all, next), bit, 16));
    return x;
}

// Two blocks of 32 at a and b.
INLINE pair unpack_blocks(dw_qtype type, const uint8_t *a, const uint8_t *b) {
    const __m256i value = _mm256_broadcastsi128_si256(_mm_setr_epi8(DW_IQ4_NL_VALUES));
    pair x;
    switch (type) {
    case DW_Q4_0: return nibbles(a + 2, b + 2);
    case DW_Q4_1: return nibbles(a + 4, b + 4);
    case DW_Q5_0: return with_fifth_bits(nibbles(a + 6, b + 6), a + 2, b + 2);
    case DW_Q5_1: return with_fifth_bits(nibbles(a + 8, b + 8), a + 4, b + 4);
    case DW_IQ4_NL:
        x = both_nibbles(loaded_lanes(a + 2, b + 2));
        return (pair){_mm256_shuffle_epi8(value, x.first), _mm256_shuffle_epi8(value, x.last)};
    default: return (pair){lanes(a + 2, b + 2), lanes(a + 18, b + 18)}; // Q8_0
    }
}

// Two bits of each byte at p, at bit 0 4 or 2 6.
INLINE __m256i two_bits(const uint8_t *p, int odd) {
    return _mm256_and_si256(_mm256_srlv_epi32(same_lanes(p), lane_numbers(2 * odd, 4 + 2 * odd)), _mm256_set1_epi8(3));
}

// `value` where bit `bit` (one lane) or bit + 2 (the other) of the bytes at p is set.
INLINE __m256i bit_value(const uint8_t *p, int bit, int value) {
    return value_where(same_lanes(p), lane_numbers(0x01010101 << bit, (int)(0x04040404u << bit)), value);
}

// 16 where bit `bit` (one lane) or bit + 2 (the other) of the bytes at p is set; `bit` is 0, 1, 4 or 5.
INLINE __m256i fifth_bits_by_lane(const uint8_t *p, int bit) {
    const __m256i x = same_lanes(p);
    return _mm256_and_si256(bit < 4 ? _mm256_sllv_epi32(x, lane_numbers(4 - bit, 2 - bit))
                                    : _mm256_srlv_epi32(x, lane_numbers(bit - 4, bit - 2)),
                            _mm256_set1_epi8(16));
}

INLINE __m256i nibbles_by_lane(const uint8_t *p) {
    return low_nibbles(_mm256_srlv_epi32(same_lanes(p), lane_numbers(0, 4)));
}

// Blocks 0 2 (odd = 0) or 1 3 of half h of the superblock at p.
INLINE pair unpack_superblock(dw_qtype type, const uint8_t *p, int h, int odd) {
    const int bit = 4 * h + odd;
    const uint8_t *nib = p + 64 * h + (type == DW_Q4_K ? 16 : 48);
    pair x;
    switch (type) {
    case DW_Q2_K: return (pair){two_bits(p + 16 + 32 * h, odd), two_bits(p + 32 + 32 * h, odd)};
    case DW_Q3_K:
        x = (pair){two_bits(p + 32 + 32 * h, odd), two_bits(p + 48 + 32 * h, odd)};
        return (pair){_mm256_or_si256(x.first, bit_value(p, bit, 4)),
                      _mm256_or_si256(x.last, bit_value(p + 16, bit, 4))};
    case DW_Q4_K:
    case DW_Q5_K:
        x = (pair){lanes(nib, nib + 32), lanes(nib + 16, nib + 48)};
        x = odd ? (pair){high_nibbles(x.first), high_nibbles(x.last)}
                : (pair){low_nibbles(x.first), low_nibbles(x.last)};
        if (type == DW_Q4_K) return x;
        return (pair){_mm256_or_si256(x.first, fifth_bits_by_lane(p + 16, bit)),
                      _mm256_or_si256(x.last, fifth_bits_by_lane(p + 32, bit))};
    default: { // Q6_K
        const uint8_t *low = p + 64 * h + 32 * odd, *high = p + 128 + 32 * h;
        return (pair){_mm256_or_si256(nibbles_by_lane(low), _mm256_slli_epi16(two_bits(high, odd), 4)),
                      _mm256_or_si256(nibbles_by_lane(low + 16), _mm256_slli_epi16(two_bits(high + 16, odd), 4))};
    }
    }
}

// As unpack_superblock, for a record of n_blocks blocks at p; the last block replaces those that are missing.
INLINE pair unpack_pair(dw_qtype type, const uint8_t *p, int h, int odd, int n_blocks) {
    if (is_superblock(type)) return unpack_superblock(type, p, h, odd);
    const int bytes = record_bytes(type) / 8, last = n_blocks - 1, a = 4 * h + odd, b = a + 2;
    return unpack_blocks(type, p + (a < last ? a : last) * bytes, p + (b < last ? b : last) * bytes);
}

/* ---- weights: bytes in the order of columns ------------------------------------------------------------- */

// Bits of each byte at p from bit `from` on, under the mask, from bit `to` on.
INLINE __m256i bits_of(const void *p, int from, int mask, int to) {
    const __m256i x = _mm256_srl_epi16(load256(p), _mm_cvtsi32_si128(from));
    return _mm256_slli_epi16(_mm256_and_si256(x, _mm256_set1_epi8((char)mask)), to);
}

// Codes of columns 32 s .. 32 s + 31 of the superblock at p.
INLINE __m256i columns_of(dw_qtype type, const uint8_t *p, int s) {
    const int half = s / 4, j = s % 4;
    switch (type) {
    case DW_Q2_K: return bits_of(p + 16 + 32 * half, 2 * j, 3, 0);
    case DW_Q3_K: return _mm256_or_si256(bits_of(p + 32 + 32 * half, 2 * j, 3, 0), bits_of(p, s, 1, 2));
    case DW_Q4_K: return bits_of(p + 16 + 32 * (s / 2), 4 * (s % 2), 15, 0);
    case DW_Q5_K: return _mm256_or_si256(bits_of(p + 48 + 32 * (s / 2), 4 * (s % 2), 15, 0), bits_of(p + 16, s, 1, 4));
    default: // Q6_K
        return _mm256_or_si256(bits_of(p + 64 * half + 32 * (j % 2), 4 * (j / 2), 15, 0),
                               bits_of(p + 128 + 32 * half, 2 * j, 3, 4));
    }
}

/* ---- weights: scales and offsets ----------------------------------------------------------------------- */

INLINE float half_at(const uint8_t *p) { return _cvtsh_ss(dw_le16(p)); }

/* d of eight blocks of 32, and m, or d where their type has no minimum, in the order of lane_record; zeros from block

 * n_blocks on. */
typedef struct lane_heads {
    __m256 d, m;
} lane_heads;

INLINE lane_heads lane_heads_of(dw_qtype type, const uint8_t *p, int n_blocks) {
    const int bytes = record_bytes(type) / 8, last = n_blocks - 1; // a block has at least 16 bytes
    __m128i two[4], four[2];
    for (int i = 0; i < 4; i++) { // d d m m
        const int a = lane_place(2 * i), b = lane_place(2 * i + 1);
        two[i] = _mm_unpacklo_epi16(load128(p + (a < last ? a : last) * bytes),
                                    load128(p + (b < last ? b : last) * bytes));
    }
    for (int i = 0; i < 2; i++) four[i] = _mm_unpacklo_epi32(two[2 * i], two[2 * i + 1]);
    __m128i d = _mm_unpacklo_epi64(four[0], four[1]), m = _mm_unpackhi_epi64(four[0], four[1]);
    if (n_blocks < BLOCKS) {
        const __m128i here = _mm_cmpgt_epi16(_mm_set1_epi16((short)n_blocks), _mm_setr_epi16(0, 1, 4, 5, 2, 3, 6, 7));
        d = _mm_and_si128(d, here), m = _mm_and_si128(m, here);
    }
    const __m256 ds = _mm256_cvtph_ps(d);
    return (lane_heads){ds, has_minimum(type) ? _mm256_cvtph_ps(m) : ds};
}

// Types with one scale for 32 weights: d, m of the blocks of half h; offset_32 * m * sum is subtracted.
INLINE __m256 scales_32(dw_qtype type, const uint8_t *p, int h, int n_blocks) {
    if (is_superblock(type)) {
        uint64_t scales, mins;
        dw_unpack_scales_mins(p + 4, &scales, &mins);
        const __m128i both = _mm_unpacklo_epi8(_mm_cvtsi64_si128((long long)(scales >> 32 * h)),
                                               _mm_cvtsi64_si128((long long)(mins >> 32 * h)));
        return _mm256_mul_ps(_mm256_cvtph_ps(_mm_set1_epi32((int)dw_le32(p))),
                             _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(both)));
    }
    const lane_heads head = lane_heads_of(type, p, n_blocks);
    return h ? _mm256_unpackhi_ps(head.d, head.m) : _mm256_unpacklo_ps(head.d, head.m);
}

INLINE float offset_32(dw_qtype type) {
    switch (type) {
    case DW_Q4_0: return 8;
    case DW_Q5_0: return 16;
    case DW_Q8_0:
    case DW_IQ4_NL: return 0;
    case DW_Q4_1:
    case DW_Q5_1: return -1;
    default: return 1; // Q4_K, Q5_K
    }
}

// Types with a scale for 16 weights: scales of eight pieces, and the factors of the sums of 16, which are subtracted.
typedef struct scales {
    __m256 d, m;
} scales;

INLINE __m256 signed_to_float(__m128i x) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)); }

INLINE scales scales_16(dw_qtype type, const uint8_t *p, int h) {
    const __m128i fifteen = _mm_set1_epi8(15);
    uint64_t part[2];
    __m256 d;
    __m128i s;
    switch (type) {
    case DW_Q2_K:
        s = _mm_loadl_epi64((const __m128i *)(const void *)(p + 8 * h));
        return (scales){_mm256_mul_ps(_mm256_set1_ps(half_at(p + 80)), signed_to_float(_mm_and_si128(s, fifteen))),
                        _mm256_mul_ps(_mm256_set1_ps(half_at(p + 82)),
                                      signed_to_float(_mm_and_si128(_mm_srli_epi16(s, 4), fifteen)))};
    case DW_Q3_K:
        dw_unpack_q3_scales(p + 96, &part[0], &part[1]);
        s = _mm_sub_epi8(_mm_cvtsi64_si128((long long)part[h]), _mm_set1_epi8(32));
        d = _mm256_mul_ps(signed_to_float(s), _mm256_set1_ps(half_at(p + 108)));
        return (scales){d, _mm256_mul_ps(d, _mm256_set1_ps(4))};
    default: // Q6_K
        s = _mm_loadl_epi64((const __m128i *)(const void *)(p + 192 + 8 * h));
        d = _mm256_mul_ps(signed_to_float(s), _mm256_set1_ps(half_at(p + 208)));
        return (scales){d, _mm256_mul_ps(d, _mm256_set1_ps(32))};
    }
}

// Q4_K, Q5_K: scale, minimum, scale, .. of the eight blocks.
INLINE __m128i scales_and_minima(const uint8_t *p) {
    uint64_t scale, min;
    dw_unpack_scales_mins(p + 4, &scale, &min);
    return _mm_unpacklo_epi8(_mm_cvtsi64_si128((long long)scale), _mm_cvtsi64_si128((long long)min));
}

// Q3_K: the signed scales of the 16 pieces.
INLINE __m128i q3_scales(const uint8_t *p) {
    uint64_t first, last;
    dw_unpack_q3_scales(p + 96, &first, &last);
    return _mm_sub_epi8(_mm_set_epi64x((long long)last, (long long)first), _mm_set1_epi8(32));
}

/* ---- superblocks for dots that are scaled as integers ---------------------------------------------------- */

/* Two and three bits: the codes of odd blocks are four times as large, so lane_factors.d is a quarter there. */
INLINE bool has_few_bits(dw_qtype type) { return type == DW_Q2_K || type == DW_Q3_K; }

// Half h: first 0, last 0, first 1, last 1 of the pairs of unpack_superblock.
INLINE void few_bits_codes(dw_qtype type, const uint8_t *p, int h, __m256i code[4]) {
    const uint8_t *twos = p + (type == DW_Q2_K ? 16 : 32) + 32 * h;
    for (int last = 0; last < 2; last++) {
        const __m256i x = _mm256_srlv_epi32(same_lanes(twos + 16 * last), lane_numbers(0, 4));
        code[last] = _mm256_and_si256(x, _mm256_set1_epi8(3));
        code[2 + last] = _mm256_and_si256(x, _mm256_set1_epi8(12));
        if (type == DW_Q2_K) continue;
        const __m256i ones = same_lanes(p + 16 * last); // third bits: those of the pairs are moved to bits 2 and 3
        const __m256i y = h ? _mm256_srlv_epi32(ones, lane_numbers(2, 4)) : _mm256_sllv_epi32(ones, lane_numbers(2, 0));
        code[last] = _mm256_or_si256(code[last], _mm256_and_si256(y, _mm256_set1_epi8(4)));
        code[2 + last] = _mm256_or_si256(code[2 + last],
                                         _mm256_and_si256(_mm256_slli_epi16(y, 1), _mm256_set1_epi8(16)));
    }
}

INLINE void superblock_codes(dw_qtype type, const uint8_t *p, int h, __m256i code[4]) {
    if (has_few_bits(type)) {
        few_bits_codes(type, p, h, code);
        return;
    }
    for (int odd = 0; odd < 2; odd++) {
        const pair x = unpack_superblock(type, p, h, odd);
        code[2 * odd] = x.first, code[2 * odd + 1] = x.last;
    }
}

/* value = d scale code - m min, in the order of lane_record.  The factors of pieces are words. */
typedef struct lane_factors {
    __m256i scale, min;
    __m256 d, m;
} lane_factors;

INLINE __m128i same_four_bytes(const void *p) { return _mm_castps_si128(_mm_broadcast_ss(p)); }
INLINE __m128i lane_order(__m128i x) { return _mm_shuffle_epi32(x, 0xd8); } // 32 bits each: 0 2 1 3

// d, m of the F16 at p.
INLINE void set_d_m(const uint8_t *p, lane_factors *f) {
    const __m256 both = _mm256_cvtph_ps(same_four_bytes(p));
    f->d = _mm256_moveldup_ps(both), f->m = _mm256_movehdup_ps(both);
}

INLINE void set_q2_scales(const uint8_t *p, lane_factors *f) {
    const __m256i word = _mm256_setr_epi8(0, -1, 1, -1, 2, -1, 3, -1, 8, -1, 9, -1, 10, -1, 11, -1, //
                                          4, -1, 5, -1, 6, -1, 7, -1, 12, -1, 13, -1, 14, -1, 15, -1);
    const __m256i x = _mm256_shuffle_epi8(same_lanes(p), word);
    f->scale = _mm256_and_si256(x, _mm256_set1_epi16(15)), f->min = _mm256_srli_epi16(x, 4);
}

// As dw_unpack_q3_scales.
INLINE __m256i lane_q3_scales(const uint8_t *p) {
    const __m128i ab = _mm_shuffle_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p), 0x50); // a a b b
    const __m128i low = _mm_and_si128(_mm_srlv_epi32(ab, _mm_setr_epi32(0, 4, 0, 4)), _mm_set1_epi8(15));
    const __m128i c = _mm_srlv_epi32(same_four_bytes(p + 8), _mm_setr_epi32(0, 4, 2, 6));
    const __m128i high = _mm_slli_epi16(_mm_and_si128(c, _mm_set1_epi8(3)), 4);
    return _mm256_cvtepi8_epi16(_mm_sub_epi8(_mm_or_si128(low, high), _mm_set1_epi8(32)));
}

// As dw_unpack_scales_mins, each number twice; scales are made in one lane, minima in the other.
INLINE void set_scales_mins(const uint8_t *p, lane_factors *f) {
    const __m256i x = same_lanes(p); // d m, a, b, c
    const __m256i low_at = _mm256_setr_epi8(4, 4, 5, 5, 12, 12, 13, 13, 6, 6, 7, 7, 14, 14, 15, 15, //
                                            8, 8, 9, 9, 12, 12, 13, 13, 10, 10, 11, 11, 14, 14, 15, 15);
    const __m256i high_at = _mm256_setr_epi8(-1, -1, -1, -1, 4, 4, 5, 5, -1, -1, -1, -1, 6, 6, 7, 7, //
                                             -1, -1, -1, -1, 8, 8, 9, 9, -1, -1, -1, -1, 10, 10, 11, 11);
    const __m256i low = _mm256_shuffle_epi8(_mm256_srlv_epi32(x, _mm256_setr_epi32(0, 0, 0, 0, 0, 0, 0, 4)), low_at);
    const __m256i high = _mm256_srli_epi16(_mm256_shuffle_epi8(x, high_at), 2);
    const __m256i all = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi64x(0x0f0f0f0f3f3f3f3f)),
                                        _mm256_and_si256(high, _mm256_set1_epi8(0x30)));
    f->scale = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(all));
    f->min = _mm256_cvtepu8_epi16(_mm256_extracti128_si256(all, 1));
}

INLINE lane_factors lane_factors_of(dw_qtype type, const uint8_t *p) {
    const __m256 quarter = _mm256_setr_ps(1, 0.25f, 1, 0.25f, 1, 0.25f, 1, 0.25f);
    lane_factors f = {.m = _mm256_setzero_ps(), .min = _mm256_setzero_si256()};
    switch (type) {
    case DW_Q2_K:
        set_q2_scales(p, &f);
        set_d_m(p + 80, &f);
        f.d = _mm256_mul_ps(f.d, quarter);
        return f;
    case DW_Q3_K:
        f.scale = lane_q3_scales(p + 96);
        f.d = _mm256_mul_ps(_mm256_set1_ps(half_at(p + 108)), quarter);
        return f;
    case DW_Q6_K:
        f.scale = _mm256_cvtepi8_epi16(lane_order(load128(p + 192)));
        f.d = _mm256_set1_ps(half_at(p + 208));
        return f;
    default: // Q4_K, Q5_K
        set_scales_mins(p, &f);
        set_d_m(p, &f);
        return f;
    }
}

#endif
#endif
