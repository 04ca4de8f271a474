/* kernels_dot_avx2.c - dot rows with AVX2, FMA and F16C.
 *
 * A vector has two lanes of 128 bits, and in each a block of 32 weights, or half of one (DW_ACT_INT8_LANES).  The dots of
 * a record's eight blocks are folded to one vector, which is converted and scaled once. */
#if defined(__x86_64__)
#include "backends/kernels_weights_avx2.h"

#include <string.h>

/* ---- the template -------------------------------------------------------------------------------------- */

// Sums of two products, in 16 bits.
INLINE __m256i products(dw_qtype type, __m256i u, __m256i q) {
    if (is_signed(type)) return _mm256_maddubs_epi16(_mm256_abs_epi8(u), _mm256_sign_epi8(q, u));
    return _mm256_maddubs_epi16(u, q);
}

INLINE __m256i in_fours(__m256i twos) { return _mm256_madd_epi16(twos, _mm256_set1_epi16(1)); }

INLINE __m256i load_q(const lane_record *r, int at) {
    return _mm256_load_si256((const __m256i *)(const void *)(r->q + at));
}

INLINE const lane_record *column(const lane_record *x, size_t act_stride, int c) {
    return (const lane_record *)column_at((const uint8_t *)x, act_stride, c);
}

/* Sums are folded until each lane has a number or two for each of its blocks, in the order of sum16. */

// Words of a and b in turn, each the sum of two; the same of 32 and 64 bits.  These sums wrap around.
INLINE __m256i fold_16(__m256i a, __m256i b) {
    return _mm256_add_epi16(_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b));
}
INLINE __m256i fold_32(__m256i a, __m256i b) {
    return _mm256_add_epi16(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}
INLINE __m256i fold_64(__m256i a, __m256i b) {
    return _mm256_add_epi16(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

// Of each lane the even and the odd numbers of 32 bits, first a's, then b's.
INLINE __m256i even_32(__m256i a, __m256i b) {
    return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88));
}
INLINE __m256i odd_32(__m256i a, __m256i b) {
    return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0xdd));
}

// Sums of neighbours, of each lane first a's, then b's: 16 bits, in which they fit, or 32.
INLINE __m256i pairs_16(__m256i a, __m256i b) { return _mm256_packs_epi32(in_fours(a), in_fours(b)); }
INLINE __m256i pairs_32(__m256i a, __m256i b) { // (vphaddd takes four operations on Zen 3)
    return _mm256_add_epi32(even_32(a, b), odd_32(a, b));
}
// As pairs_32, of two words each.
INLINE __m256i pairs_of_twos(__m256i a, __m256i b) { return _mm256_add_epi16(even_32(a, b), odd_32(a, b)); }

/* Blocks of 32: the dots of the four of half h.  In 16 bits, 16 products of 4-bit weights fit (15 * 127 * 16), eight of
 * 5-bit weights (31 * 127 * 8) and two of 8-bit weights. */
INLINE __m256i half_dots_32(dw_qtype type, const pair u[2], const lane_record *r, int h) {
    __m256i dots[2];
    for (int odd = 0; odd < 2; odd++) {
        const int at = 128 * h + 32 * odd;
        const __m256i first = products(type, u[odd].first, load_q(r, at));
        const __m256i last = products(type, u[odd].last, load_q(r, at + 64));
        dots[odd] = is_signed(type) ? _mm256_add_epi32(in_fours(first), in_fours(last)) : _mm256_add_epi16(first, last);
    }
    return is_signed(type) ? pairs_32(dots[0], dots[1]) : fold_64(dots[0], dots[1]);
}

// Types whose offset or minimum add_off adds; that of Q4_0 is in the activations, superblocks have their own.
INLINE bool has_off(dw_qtype type) { return !is_superblock(type) && !is_signed(type) && type != DW_Q4_0; }

// Adds the n_blocks blocks of 32 at p times each column to sum[c], and to off[c] for add_off.
INLINE void add_blocks(dw_qtype type, const uint8_t *p, int n_blocks, const lane_record *x, size_t act_stride,
                       int n_cols, __m256 *sum, __m256 *off) {
    __m256i half[2][4];
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        const pair u[2] = {unpack_pair(type, p, h, 0, n_blocks), unpack_pair(type, p, h, 1, n_blocks)};
        for (int c = 0; c < n_cols; c++) half[h][c] = half_dots_32(type, u, column(x, act_stride, c), h);
    }
    const lane_heads head = lane_heads_of(type, p, n_blocks);
    for (int c = 0; c < n_cols; c++) {
        const lane_record *r = column(x, act_stride, c);
        const __m256i a = half[0][c], b = half[1][c];
        __m256i dots = is_signed(type)       ? pairs_32(a, b)
                       : has_four_bits(type) ? in_fours(pairs_of_twos(a, b))
                                             : pairs_32(in_fours(a), in_fours(b));
        if (type == DW_Q4_0) dots = _mm256_add_epi32(dots, _mm256_load_si256((const __m256i *)(const void *)r->offset));
        const __m256 scale = _mm256_mul_ps(head.d, _mm256_load_ps(r->scale));
        sum[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), scale, sum[c]);
        if (has_off(type)) off[c] = _mm256_fmadd_ps(head.m, _mm256_load_ps(r->sum), off[c]);
    }
}

/* Superblocks: the scales are multiplied as integers. */

// Q6_K: the products of half h times their scales.  Four products fit in 16 bits: 63 * 127 * 4.
INLINE __m256i scaled_fours(const __m256i twos[4], int h, __m256i scale) {
    const __m128i first_last = _mm_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3);
    const __m256i even = _mm256_add_epi8(_mm256_broadcastsi128_si256(first_last), _mm256_set1_epi8((char)(8 * h)));
    const __m256i odd = _mm256_add_epi8(even, _mm256_set1_epi8(4));
    return pairs_32(_mm256_madd_epi16(pairs_16(twos[0], twos[1]), _mm256_shuffle_epi8(scale, even)),
                    _mm256_madd_epi16(pairs_16(twos[2], twos[3]), _mm256_shuffle_epi8(scale, odd)));
}

/* The dots of half h.  Q2_K, Q3_K: words, twice first 0, last 0, first 1, last 1 of each lane (28 * 127 * 8 fits).
 * Q4_K, Q5_K: words, four of each lane's even block, four of its odd one (31 * 127 * 8 fits).
 * Q6_K: two of each, 32 bits, scaled. */
INLINE __m256i half_dots(dw_qtype type, const __m256i code[4], const lane_record *r, int h, __m256i scale) {
    __m256i twos[4];
    for (int k = 0; k < 4; k++)
        twos[k] = _mm256_maddubs_epi16(code[k], load_q(r, 128 * h + 64 * (k % 2) + 32 * (k / 2)));
    if (has_few_bits(type)) return fold_32(fold_16(twos[0], twos[1]), fold_16(twos[2], twos[3]));
    if (type == DW_Q6_K) return scaled_fours(twos, h, scale);
    return pairs_16(_mm256_add_epi16(twos[0], twos[1]), _mm256_add_epi16(twos[2], twos[3]));
}

INLINE __m256i load_sums(const lane_record *r) { return _mm256_load_si256((const __m256i *)(const void *)r->sum16); }

// The sum of scale times (code - the type's offset) of each block; odd blocks of Q2_K and Q3_K are four times as large.
INLINE __m256i block_dots(dw_qtype type, __m256i first, __m256i last, const lane_record *r, __m256i scale) {
    switch (type) {
    case DW_Q2_K: return _mm256_madd_epi16(fold_64(first, last), scale); // 12 * 127 * 16 fits in 16 bits
    case DW_Q3_K: {
        // Sums of 16 products may wrap around; less the offset they fit again: 16 * 127 * 16.
        const __m256i four = _mm256_setr_epi16(4, 4, 16, 16, 4, 4, 16, 16, 4, 4, 16, 16, 4, 4, 16, 16);
        const __m256i offset = _mm256_mullo_epi16(load_sums(r), four);
        return _mm256_madd_epi16(_mm256_sub_epi16(fold_64(first, last), offset), scale);
    }
    case DW_Q4_K: return _mm256_madd_epi16(pairs_16(first, last), scale); // 15 * 127 * 16 fits in 16 bits
    case DW_Q5_K:
        return pairs_32(_mm256_madd_epi16(first, _mm256_unpacklo_epi32(scale, scale)),
                        _mm256_madd_epi16(last, _mm256_unpackhi_epi32(scale, scale)));
    default: // Q6_K
        return _mm256_sub_epi32(pairs_32(first, last),
                                _mm256_slli_epi32(_mm256_madd_epi16(load_sums(r), scale), 5));
    }
}

// Adds the superblock at p times each column to sum[c].
INLINE void add_superblock(dw_qtype type, const uint8_t *p, const lane_record *x, size_t act_stride, int n_cols,
                           __m256 *sum) {
    const lane_factors f = lane_factors_of(type, p);
    __m256i half[2][4];
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        __m256i code[4];
        superblock_codes(type, p, h, code);
        for (int c = 0; c < n_cols; c++) half[h][c] = half_dots(type, code, column(x, act_stride, c), h, f.scale);
    }
    for (int c = 0; c < n_cols; c++) {
        const lane_record *r = column(x, act_stride, c);
        const __m256i dots = block_dots(type, half[0][c], half[1][c], r, f.scale);
        __m256 value = _mm256_mul_ps(_mm256_cvtepi32_ps(dots), f.d);
        if (type == DW_Q2_K || type == DW_Q4_K || type == DW_Q5_K)
            value = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(load_sums(r), f.min)), f.m, value);
        sum[c] = _mm256_fmadd_ps(value, _mm256_load_ps(r->scale), sum[c]);
    }
}

INLINE void add_record(dw_qtype type, const uint8_t *p, int n_blocks, const lane_record *x, size_t act_stride,
                       int n_cols, __m256 *sum, __m256 *off) {
    if (is_superblock(type)) {
        add_superblock(type, p, x, act_stride, n_cols, sum);
        return;
    }
    add_blocks(type, p, n_blocks, x, act_stride, n_cols, sum, off);
}

INLINE __m256 add_off(dw_qtype type, __m256 sum, __m256 off) {
    return has_off(type) ? _mm256_fnmadd_ps(off, _mm256_set1_ps(offset_32(type)), sum) : sum;
}

INLINE __m256 folded(__m256 v) { return v; }

INLINE float sum_of(__m256 v) {
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* ---- F32, F16, BF16 ------------------------------------------------------------------------------------ */

INLINE __m256 load_values(dw_qtype type, const uint8_t *p) {
    switch (type) {
    case DW_F32: return _mm256_loadu_ps((const float *)(const void *)p);
    case DW_F16: return _mm256_cvtph_ps(load128(p));
    default: return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
    }
}

INLINE __m256 column_values(const uint8_t *act, size_t act_stride, int c, int i) {
    return _mm256_load_ps((const float *)(const void *)(act + (size_t)c * act_stride) + i);
}

/* One row times n_cols <= 4 columns, or several times one; two or four sums for each, of values 8k.. for k = 0 1 2 3 modulo
 * n_sums. */
INLINE void rows_float(dw_qtype type, int n_sums, int n_rows, size_t row_bytes, int n_cols, const uint8_t *w,
                       beyond next, int n, const uint8_t *act, size_t act_stride, float *y, size_t y_stride) {
    const int bytes = value_bytes(type);
    __m256 sum[STREAMS][4][4];
    for (int r = 0; r < n_rows; r++)
        for (int j = 0; j < 4 * n_cols; j++) sum[r][j / 4][j % 4] = _mm256_setzero_ps();
    int i = 0;
    for (; i + 32 <= n; i += 32, w += 32 * bytes)
#pragma GCC unroll 3
        for (int r = 0; r < n_rows; r++) {
            const uint8_t *from = w + (size_t)r * row_bytes;
            prefetch(from, next, 32 * bytes, (n - i) * bytes, skipped(n_rows, row_bytes));
            for (int k = 0; k < 4; k++) {
                const __m256 v = load_values(type, from + 8 * k * bytes);
                for (int c = 0; c < n_cols; c++) {
                    __m256 *s = &sum[r][c][k % n_sums];
                    *s = _mm256_fmadd_ps(v, column_values(act, act_stride, c, i + 8 * k), *s);
                }
            }
        }
    for (int k = 0; k < 4; k++, i += 8, w += 8 * bytes) {
        if (i >= n) break;
        for (int r = 0; r < n_rows; r++) {
            uint8_t some[8 * sizeof(float)] = {0};
            memcpy(some, w + (size_t)r * row_bytes, (size_t)((n - i < 8 ? n - i : 8) * bytes));
            const __m256 v = load_values(type, some);
            for (int c = 0; c < n_cols; c++) {
                __m256 *s = &sum[r][c][k % n_sums];
                *s = _mm256_fmadd_ps(v, column_values(act, act_stride, c, i), *s);
            }
        }
    }
    for (int r = 0; r < n_rows; r++)
        for (int c = 0; c < n_cols; c++) {
            const __m256 *s = sum[r][c];
            y[(size_t)(r + c) * y_stride] =
                sum_of(_mm256_add_ps(_mm256_add_ps(s[0], s[2]), _mm256_add_ps(s[1], s[3])));
        }
}

enum { FEW_SUMS = 2 }; // of long rows on AMD (kernels_dot.h)

/* ---- rows of each type --------------------------------------------------------------------------------- */

typedef __m256 vf;
typedef lane_record act_record;
#include "backends/kernels_dot_rows.inc"

// Defines dw_dot_avx2_q4_0, dw_dot_avx2_q8_0, .., dw_dot_avx2_f16, ..: one for each row of the two lists.
#define DEFINE(type, suffix)                                                                                           \
    TARGET void dw_dot_avx2_##suffix(const dw_dot_job *job) { all_rows(type, job); }
INT8_TYPES(DEFINE)
FLOAT_TYPES(DEFINE)

/* ---- packing ------------------------------------------------------------------------------------------- */

INLINE __m256i magnitudes(const float *x) {
    return _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(const void *)x), _mm256_set1_epi32(0x7fffffff));
}

INLINE uint32_t largest_bits(const float *x) {
    const __m256i eight = _mm256_max_epu32(_mm256_max_epu32(magnitudes(x), magnitudes(x + 8)),
                                           _mm256_max_epu32(magnitudes(x + 16), magnitudes(x + 24)));
    const __m128i four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_max_epu32(four, _mm_unpackhi_epi64(four, four));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(two, _mm_srli_epi64(two, 32)));
}

// Writes rint(x * inverse) of 16 values and returns their sum.
INLINE int pack_piece(const float *x, __m256 inverse, int8_t *q) {
    const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
    const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), inverse));
    const __m128i words_a = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    const __m128i words_b = _mm_packs_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    _mm_store_si128((__m128i *)(void *)q, _mm_packs_epi16(words_a, words_b));
    const __m128i four = _mm_madd_epi16(_mm_add_epi16(words_a, words_b), _mm_set1_epi16(1));
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_srli_epi64(two, 32)));
}

TARGET void dw_act_pack_lanes(const float *x, int n, lane_record *act) {
    for (int i = 0; i < n; i += 32, x += 32) {
        lane_record *r = act + i / RECORD;
        const int block = i % RECORD / 32;
        if (!block) *r = (lane_record){0};
        const act_scale s = scale_of(largest_bits(x));
        if (s.zero) continue;
        int sum[2] = {0, 0};
        for (int half = 0; half < 2 && s.finite; half++)
            sum[half] = pack_piece(x + 16 * half, _mm256_set1_ps(s.inverse), r->q + piece_place(2 * block + half));
        const int at = lane_place(block);
        r->scale[at] = s.scale;
        r->sum[at] = s.scale * (float)(sum[0] + sum[1]);
        r->offset[at] = -8 * (sum[0] + sum[1]);
        for (int half = 0; half < 2; half++) r->sum16[2 * at + half] = (int16_t)sum[half];
    }
}
#endif
