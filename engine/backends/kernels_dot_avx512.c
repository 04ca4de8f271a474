/* kernels_dot_avx512.c - dot rows with AVX-512 VNNI.
 *
 * A type says how four blocks of 32 become two vectors of unsigned bytes (unpack_half) and what its scales and offsets
 * are (scales_32, scales_16).  Everything else is one template, add_record: multiply bytes, convert, scale, add.
 * Vector lanes of 128 bits hold the blocks 0 2 1 3 (kernels_dot.h). */
#if defined(__x86_64__)
#include "backends/kernels_dot.h"

#include <immintrin.h>

#define TARGET __attribute__((target("avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define INLINE static inline __attribute__((always_inline)) TARGET

/* ---- weights: bytes ------------------------------------------------------------------------------------ */

// The first and the last 16 values of each of four blocks, as unsigned bytes.
typedef struct half_record {
    __m512i first, last;
} half_record;

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

INLINE __m512 bytes_to_float(__m128i x) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x)); }

INLINE scales scales_16(dw_qtype type, const uint8_t *p) {
    const __m128i fifteen = _mm_set1_epi8(15);
    uint64_t first, last;
    __m512 d, place;
    __m128i s;
    switch (type) {
    case DW_Q2_K:
        s = load128(p);
        place = _mm512_broadcast_f32x8(
            _mm256_setr_ps(1, 1, 1 / 4.0f, 1 / 4.0f, 1 / 16.0f, 1 / 16.0f, 1 / 64.0f, 1 / 64.0f));
        d = _mm512_mul_ps(_mm512_set1_ps(half_at(p + 80)), place); // two_bits_in_place
        return (scales){_mm512_mul_ps(d, bytes_to_float(_mm_and_si128(s, fifteen))),
                        _mm512_mul_ps(_mm512_set1_ps(half_at(p + 82)),
                                      bytes_to_float(_mm_and_si128(_mm_srli_epi16(s, 4), fifteen)))};
    case DW_Q3_K:
        dw_unpack_q3_scales(p + 96, &first, &last);
        s = _mm_sub_epi8(_mm_set_epi64x((long long)last, (long long)first), _mm_set1_epi8(32));
        d = _mm512_mul_ps(bytes_to_float(s), _mm512_set1_ps(half_at(p + 108)));
        return (scales){d, _mm512_mul_ps(d, _mm512_set1_ps(4))};
    default: // Q6_K
        d = _mm512_mul_ps(bytes_to_float(load128(p + 192)), _mm512_set1_ps(half_at(p + 208)));
        return (scales){d, _mm512_mul_ps(d, _mm512_set1_ps(32))};
    }
}

/* ---- the template -------------------------------------------------------------------------------------- */

INLINE __m512 scaled(__m512i dots, __m512 scale, __m512i pick, __m512 sum) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), _mm512_permutexvar_ps(pick, scale), sum);
}

INLINE __m512i dot_bytes(__m512i sum, __m512i u, const int8_t *q) {
    return _mm512_dpbusd_epi32(sum, u, _mm512_load_si512(q));
}

// Adds the record's n_blocks blocks at p times each column: to sum[c], and to off[c] for add_off.
INLINE void add_record(dw_qtype type, const uint8_t *p, int n_blocks, const record *x, size_t act_stride, int n_cols,
                       __m512 *sum, __m512 *off) {
    const half_record u[2] = {unpack_half(type, p, 0, n_blocks), unpack_half(type, p, 1, n_blocks)};
    const __m512i zero = _mm512_setzero_si512();
    if (has_scale_of_16(type)) {
        const scales s = scales_16(type, p);
        const __m512i even_twice = _mm512_setr_epi32(0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14);
        for (int c = 0; c < n_cols; c++) {
            const record *r = (const record *)((const uint8_t *)x + (size_t)c * act_stride);
            const __m512 scale = _mm512_mul_ps(s.d, _mm512_permutexvar_ps(even_twice, _mm512_load_ps(r->block)));
            off[c] = _mm512_fnmadd_ps(s.m, _mm512_load_ps(r->sum16), off[c]); // two sums: half the latency
            for (int h = 0; h < 2; h++) {
                const __m512i pick = lane_numbers(8 * h, 8 * h + 4, 8 * h + 2, 8 * h + 6);
                const __m512i pick_last = lane_numbers(8 * h + 1, 8 * h + 5, 8 * h + 3, 8 * h + 7);
                sum[c] = scaled(dot_bytes(zero, u[h].first, r->q + 128 * h), scale, pick, sum[c]);
                off[c] = scaled(dot_bytes(zero, u[h].last, r->q + 128 * h + 64), scale, pick_last, off[c]);
            }
        }
        return;
    }
    const __m512 both = scales_32(type, p, n_blocks);
    for (int c = 0; c < n_cols; c++) {
        const record *r = (const record *)((const uint8_t *)x + (size_t)c * act_stride);
        const __m512 scale = _mm512_mul_ps(both, _mm512_load_ps(r->block)); // even: scales; odd: sums
        off[c] = _mm512_add_ps(off[c], scale);
        for (int h = 0; h < 2; h++) {
            const __m512i pick = lane_numbers(8 * h, 8 * h + 4, 8 * h + 2, 8 * h + 6);
            const __m512i dots = dot_bytes(zero, u[h].first, r->q + 128 * h);
            sum[c] = scaled(dot_bytes(dots, u[h].last, r->q + 128 * h + 64), scale, pick, sum[c]);
        }
    }
}

INLINE __m512 add_off(dw_qtype type, __m512 sum, __m512 off) {
    if (has_scale_of_16(type)) return _mm512_add_ps(sum, off);
    return _mm512_fnmadd_ps(off, two_numbers(0, offset_32(type)), sum); // odd lanes of off are scaled sums
}

INLINE float sum_of(__m512 v) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}

// A row times n_cols <= 4 columns, a constant after inlining.
INLINE void row_int8(dw_qtype type, int n_cols, const uint8_t *w, const uint8_t *end, int n, const uint8_t *act,
                     size_t act_stride, float *y, size_t y_stride) {
    __m512 sum[4], off[4];
    for (int c = 0; c < n_cols; c++) sum[c] = off[c] = _mm512_setzero_ps();
    const record *x = (const record *)act;
    int i = 0;
    for (; i + RECORD <= n; i += RECORD, w += record_bytes(type), x++) {
        prefetch(w, end, record_bytes(type));
        add_record(type, w, BLOCKS, x, act_stride, n_cols, sum, off);
    }
    if (i < n && !is_superblock(type)) add_record(type, w, (n - i) / 32, x, act_stride, n_cols, sum, off);
    for (int c = 0; c < n_cols; c++) y[(size_t)c * y_stride] = sum_of(add_off(type, sum[c], off[c]));
}

/* ---- F32, F16, BF16 ------------------------------------------------------------------------------------ */

INLINE __m512 load_values(dw_qtype type, const uint8_t *p) {
    switch (type) {
    case DW_F32: return _mm512_loadu_ps(p);
    case DW_F16: return _mm512_cvtph_ps(load256(p));
    default: return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load256(p)), 16));
    }
}

INLINE __m512 load_some_values(dw_qtype type, const uint8_t *p, __mmask16 some) {
    switch (type) {
    case DW_F32: return _mm512_maskz_loadu_ps(some, p);
    case DW_F16: return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, p));
    default:
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, p)), 16));
    }
}

INLINE __m512 column_values(const uint8_t *act, size_t act_stride, int c, int i) {
    return _mm512_load_ps((const float *)(act + (size_t)c * act_stride) + i);
}

// As row_int8; four sums for each column, of values 16k.. for k = 0 1 2 3 modulo 4.
INLINE void row_float(dw_qtype type, int n_cols, const uint8_t *w, const uint8_t *end, int n, const uint8_t *act,
                      size_t act_stride, float *y, size_t y_stride) {
    const int bytes = value_bytes(type);
    __m512 sum[4][4];
    for (int j = 0; j < 4 * n_cols; j++) sum[j / 4][j % 4] = _mm512_setzero_ps();
    int i = 0;
    for (; i + 64 <= n; i += 64, w += 64 * bytes) {
        prefetch_second(w, end, 64 * bytes);
        for (int k = 0; k < 4; k++) {
            const __m512 v = load_values(type, w + 16 * k * bytes);
            for (int c = 0; c < n_cols; c++)
                sum[c][k] = _mm512_fmadd_ps(v, column_values(act, act_stride, c, i + 16 * k), sum[c][k]);
        }
    }
    for (int k = 0; k < 4; k++, i += 16, w += 16 * bytes) {
        if (i >= n) break;
        const __m512 v = load_some_values(type, w, n - i >= 16 ? 0xffff : (__mmask16)((1 << (n - i)) - 1));
        for (int c = 0; c < n_cols; c++)
            sum[c][k] = _mm512_fmadd_ps(v, column_values(act, act_stride, c, i), sum[c][k]);
    }
    for (int c = 0; c < n_cols; c++)
        y[(size_t)c * y_stride] = sum_of(
            _mm512_add_ps(_mm512_add_ps(sum[c][0], sum[c][2]), _mm512_add_ps(sum[c][1], sum[c][3])));
}

/* ---- rows of each type --------------------------------------------------------------------------------- */

DEFINE_ALL_ROWS(INLINE) // all_rows: kernels_dot.h

// Defines dw_dot_avx512_q4_0, dw_dot_avx512_q8_0, .., dw_dot_avx512_f16, ..: one for each row of the two lists.
#define DEFINE(type, suffix)                                                                                           \
    TARGET void dw_dot_avx512_##suffix(const dw_dot_job *job) { all_rows(type, job); }
INT8_TYPES(DEFINE)
FLOAT_TYPES(DEFINE)

/* ---- packing ------------------------------------------------------------------------------------------- */

INLINE uint32_t largest_bits(__m512 a, __m512 b) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    return _mm512_reduce_max_epu32(_mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(a), magnitude),
                                                    _mm512_and_si512(_mm512_castps_si512(b), magnitude)));
}

// Writes rint(x * inverse) of 16 values and returns their sum.
INLINE int pack_piece(__m512 x, float inverse, int8_t *q) {
    const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(inverse)));
    _mm_store_si128((__m128i *)q, _mm512_cvtepi32_epi8(rounded));
    return _mm512_reduce_add_epi32(rounded);
}

TARGET void dw_act_pack_avx512(const float *x, int n, record *act) {
    for (int i = 0; i < n; i += 32, x += 32) {
        record *r = act + i / RECORD;
        const int block = i % RECORD / 32;
        if (!block) *r = (record){0};
        const __m512 half[2] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
        const act_scale s = scale_of(largest_bits(half[0], half[1]));
        if (s.zero) continue;
        int sum[2] = {0, 0};
        for (int k = 0; k < 2 && s.finite; k++)
            sum[k] = pack_piece(half[k], s.inverse, r->q + piece_place(2 * block + k));
        set_block_sums(r, block, s.scale, sum);
    }
}
#endif
