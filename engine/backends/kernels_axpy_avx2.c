/* kernels_axpy_avx2.c - sums of rows with AVX2, FMA and F16C.
 *
 * As kernels_axpy_avx512.c with vectors half as wide: Q4_0 in fixed point (kernels_axpy_q4_0.inc says how), pairs of
 * rows; the others as F32. */
#if defined(__x86_64__)
#include "backends/kernels_axpy_rows.h"
#include "backends/kernels_weights_avx2.h"

#include <math.h>

enum { MOST_COLS = 2 };

INLINE __m128i load64(const uint8_t *p) { return _mm_loadl_epi64((const __m128i *)(const void *)p); }

// Scales of the n_blocks <= 8 blocks at p; the last one's scale fills the rest of the vector.
INLINE __m256 scales_up_to(const uint8_t *p, int bytes, int n_blocks) {
    __m128i h = _mm_setzero_si128();
#define PUT(k) h = _mm_insert_epi16(h, dw_le16(p + (k < n_blocks ? k : n_blocks - 1) * bytes), k)
    PUT(0), PUT(1), PUT(2), PUT(3), PUT(4), PUT(5), PUT(6), PUT(7);
#undef PUT
    return _mm256_cvtph_ps(h);
}

// Of a whole record of Q4_0: the scale of block k is word k of the 16 bytes from 16 k on.
INLINE __m256 scales_of_q4_0(const uint8_t *p) {
    const __m256i first = _mm256_blend_epi32(load256(p), load256(p + 32), 0x22),
                  last = _mm256_blend_epi32(load256(p + 64), load256(p + 96), 0x88),
                  all = _mm256_blend_epi32(first, last, 0xcc); // even blocks in one lane, odd ones in the other
    return _mm256_cvtph_ps(_mm_blend_epi16(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1), 0xaa));
}

INLINE __m256 block_scales(const uint8_t *p, int bytes, int n_blocks) {
    if (bytes == 18 && n_blocks == BLOCKS) return scales_of_q4_0(p);
    return n_blocks == BLOCKS ? scales_up_to(p, bytes, BLOCKS) : scales_up_to(p, bytes, n_blocks);
}

/* ---- Q4_0: pairs of rows in 16 bits ------------------------------------------------------------------------- */

/* Added are bytes with both codes, and beside them low codes; the difference is 16 times the sum of the high ones. */
typedef struct factors { // of a record's blocks
    int32_t pair[AXPY_ROWS / 2][BLOCKS];     // two rows' factors, 16 bits each
    int32_t of_low[BLOCKS], of_both[BLOCKS]; // the offsets: -8 and -8 * 17 times the sum of all rows' factors
    float unit_low[BLOCKS], unit_high[BLOCKS];
} factors;

INLINE void store_ints(int32_t *to, __m256i v) { _mm256_storeu_si256((__m256i *)(void *)to, v); }

// A block whose products are all below 2^-100 counts as zero; a number that is not finite makes its blocks NaN.
INLINE void make_factors(const bundle *b, int n_rows, size_t at, int n_blocks, const float *a, factors *f) {
    __m256 product[AXPY_ROWS];
    __m256i bits = _mm256_setzero_si256(); // of the largest product; a number that is not finite has the most
    for (int r = 0; r < n_rows; r++) {
        product[r] = _mm256_mul_ps(block_scales(b->row[r] + at, 18, n_blocks), _mm256_set1_ps(a[r]));
        bits = _mm256_max_epi32(bits, _mm256_castps_si256(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), product[r])));
    }
    const __m256 largest = _mm256_castsi256_ps(bits), poison = _mm256_mul_ps(largest, _mm256_setzero_ps());
    const __m256 some = _mm256_cmp_ps(largest, _mm256_set1_ps(0x1p-100f), _CMP_GE_OQ);
    const __m256 inverse = _mm256_and_ps(some, _mm256_div_ps(_mm256_set1_ps(32767), largest));
    __m256i sum = _mm256_setzero_si256();
    for (int r = 0; r < n_rows; r += 2) {
        const __m256i even = _mm256_cvtps_epi32(_mm256_mul_ps(product[r], inverse));
        const __m256i odd = r + 1 < n_rows ? _mm256_cvtps_epi32(_mm256_mul_ps(product[r + 1], inverse))
                                           : _mm256_setzero_si256();
        sum = _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
        store_ints(f->pair[r / 2], _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa));
    }
    const __m256i offset = _mm256_slli_epi32(_mm256_sub_epi32(_mm256_setzero_si256(), sum), 3);
    store_ints(f->of_low, offset);
    store_ints(f->of_both, _mm256_add_epi32(offset, _mm256_slli_epi32(offset, 4)));
    const __m256 unit = _mm256_fmadd_ps(largest, _mm256_set1_ps(1 / 32767.0f), poison);
    _mm256_storeu_ps(f->unit_low, unit);
    _mm256_storeu_ps(f->unit_high, _mm256_mul_ps(unit, _mm256_set1_ps(1 / 16.0f)));
}

/* Bytes of two rows as words that take turns.  (Zen 3 starts two shuffles within lanes in a cycle, but a vpmovzxbw of
 * registers only every 1.3 cycles.) */
typedef struct two_rows {
    __m256i bytes[2];
} two_rows;

INLINE two_rows bytes_of(const uint8_t *row, const uint8_t *other) {
    const __m256i p = same_lanes(row), q = same_lanes(other);
    const __m256i words = _mm256_setr_epi8(0, -1, 1, -1, 2, -1, 3, -1, 4, -1, 5, -1, 6, -1, 7, -1, // the other lane's:
                                           8, -1, 9, -1, 10, -1, 11, -1, 12, -1, 13, -1, 14, -1, 15, -1);
    return (two_rows){{_mm256_shuffle_epi8(_mm256_unpacklo_epi8(p, q), words),
                       _mm256_shuffle_epi8(_mm256_unpackhi_epi8(p, q), words)}};
}

INLINE void add_scaled(float *to, __m256i sum, float unit) {
    _mm256_storeu_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(unit), _mm256_loadu_ps(to)));
}

INLINE __m256i add_pairs(__m256i sum, __m256i codes, __m256i two_factors) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(codes, two_factors));
}

// Adds block k of a record, at `at` of each row, to 32 sums from i on.
INLINE void add_block(int n_cols, int n_rows, const terms *t, size_t at, const factors *f, int k, int i) {
    __m256i low[MOST_COLS][2], both[MOST_COLS][2]; // of eight bytes each
    for (int c = 0; c < n_cols; c++)
        for (int j = 0; j < 2; j++)
            low[c][j] = _mm256_set1_epi32(f[c].of_low[k]), both[c][j] = _mm256_set1_epi32(f[c].of_both[k]);
    for (int r = 0; r < n_rows; r += 2) {
        const two_rows x = bytes_of(t->b->row[r] + at + 2, t->b->row[r + 1 < n_rows ? r + 1 : r] + at + 2);
        for (int c = 0; c < n_cols; c++) {
            const __m256i two_factors = _mm256_set1_epi32(f[c].pair[r / 2][k]);
            for (int j = 0; j < 2; j++) {
                both[c][j] = add_pairs(both[c][j], x.bytes[j], two_factors);
                low[c][j] = add_pairs(low[c][j], _mm256_and_si256(x.bytes[j], _mm256_set1_epi16(15)), two_factors);
            }
        }
    }
    for (int c = 0; c < n_cols; c++)
        for (int j = 0; j < 2; j++) {
            float *to = sum_at(t, c, i + 8 * j);
            add_scaled(to, low[c][j], f[c].unit_low[k]);
            add_scaled(to + 16, _mm256_sub_epi32(both[c][j], low[c][j]), f[c].unit_high[k]);
        }
}

INLINE void add_q4_0(int n_cols, int n_rows, const terms *t) {
    const bundle *b = t->b;
    const int n = t->n;
    for (int i = 0; i < n; i += RECORD) {
        const int n_blocks = n - i < RECORD ? (n - i) / 32 : BLOCKS;
        const size_t at = (size_t)(i / 32 * 18);
        const ahead next = ahead_of(b, i / RECORD, (n + RECORD - 1) / RECORD, 18 * BLOCKS);
        factors f[MOST_COLS];
        for (int c = 0; c < n_cols; c++) {
            const float *a = t->a + (size_t)c * t->a_stride;
            if (n_blocks == BLOCKS) make_factors(b, n_rows, at, BLOCKS, a, &f[c]);
            else make_factors(b, n_rows, at, n_blocks, a, &f[c]);
        }
        for (int k = 0; k < n_blocks; k++) {
            if (k < n_rows) prefetch_row(next, k, 18 * BLOCKS);
            add_block(n_cols, n_rows, t, at + (size_t)(18 * k), f, k, i + 32 * k);
        }
    }
}

/* ---- Q8_0 --------------------------------------------------------------------------------------------------- */

INLINE void add_q8_0(int n_cols, int n_rows, const terms *t) {
    const bundle *b = t->b;
    const int n = t->n;
    for (int i = 0; i < n; i += RECORD) {
        const int n_blocks = n - i < RECORD ? (n - i) / 32 : BLOCKS;
        const size_t at = (size_t)(i / 32 * 34);
        const ahead next = ahead_of(b, i / RECORD, (n + RECORD - 1) / RECORD, 34 * BLOCKS);
        float factor[MOST_COLS][AXPY_ROWS][BLOCKS];
        for (int r = 0; r < n_rows; r++) {
            const __m256 scale = block_scales(b->row[r] + at, 34, n_blocks);
            for (int c = 0; c < n_cols; c++)
                _mm256_storeu_ps(factor[c][r],
                                 _mm256_mul_ps(scale, _mm256_set1_ps(factor_of(t, c, r))));
        }
        for (int k = 0; k < n_blocks; k++) {
            __m256 sum[MOST_COLS][4];
            if (k < n_rows) prefetch_row(next, k, 34 * BLOCKS);
            for (int c = 0; c < n_cols; c++)
                for (int j = 0; j < 4; j++) sum[c][j] = _mm256_loadu_ps(sum_at(t, c, i + 32 * k + 8 * j));
            for (int r = 0; r < n_rows; r++)
                for (int j = 0; j < 4; j++) {
                    const __m128i bytes = load64(b->row[r] + at + (size_t)(34 * k + 2 + 8 * j));
                    const __m256 v = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
                    for (int c = 0; c < n_cols; c++)
                        sum[c][j] = _mm256_fmadd_ps(v, _mm256_set1_ps(factor[c][r][k]), sum[c][j]);
                }
            for (int c = 0; c < n_cols; c++)
                for (int j = 0; j < 4; j++) _mm256_storeu_ps(sum_at(t, c, i + 32 * k + 8 * j), sum[c][j]);
        }
    }
}

/* ---- F32, F16, BF16 ----------------------------------------------------------------------------------------- */

INLINE __m256 load_values(dw_qtype type, const uint8_t *p) {
    if (type == DW_F32) return _mm256_loadu_ps((const float *)(const void *)p);
    const __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);
    if (type == DW_F16) return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

INLINE float load_value(dw_qtype type, const uint8_t *p) {
    if (type == DW_F32) return dw_bits_float(dw_le32(p));
    return type == DW_F16 ? _cvtsh_ss(dw_le16(p)) : dw_bf16_to_f32(dw_le16(p));
}

INLINE void add_floats(dw_qtype type, int n_cols, int n_rows, const terms *t) {
    const bundle *b = t->b;
    const int n = t->n;
    const int bytes = value_bytes(type);
    int i = 0;
    for (; i + 32 <= n; i += 32) {
        const size_t at = (size_t)(i * bytes);
        __m256 sum[MOST_COLS][4];
        const ahead next = ahead_of(b, i / 32, n / 32, 32 * bytes);
        for (int r = 0; r < n_rows; r++) prefetch_row(next, r, 32 * bytes);
        for (int c = 0; c < n_cols; c++)
            for (int j = 0; j < 4; j++) sum[c][j] = _mm256_loadu_ps(sum_at(t, c, i + 8 * j));
        for (int r = 0; r < n_rows; r++)
            for (int j = 0; j < 4; j++) {
                const __m256 v = load_values(type, b->row[r] + at + 8 * j * bytes);
                for (int c = 0; c < n_cols; c++)
                    sum[c][j] = _mm256_fmadd_ps(v, _mm256_set1_ps(factor_of(t, c, r)), sum[c][j]);
            }
        for (int c = 0; c < n_cols; c++)
            for (int j = 0; j < 4; j++) _mm256_storeu_ps(sum_at(t, c, i + 8 * j), sum[c][j]);
    }
    for (; i < n; i++)
        for (int r = 0; r < n_rows; r++)
            for (int c = 0; c < n_cols; c++) {
                float *to = sum_at(t, c, i);
                *to = fmaf(load_value(type, b->row[r] + (size_t)(i * bytes)), factor_of(t, c, r), *to);
            }
}

INLINE void add_some(dw_qtype type, int n_cols, int n_rows, const terms *t) {
    if (type == DW_F32 || type == DW_F16 || type == DW_BF16) add_floats(type, n_cols, n_rows, t);
    else if (type == DW_Q4_0) add_q4_0(n_cols, n_rows, t);
    else add_q8_0(n_cols, n_rows, t);
}

/* ---- rows of each type -------------------------------------------------------------------------------------- */

DEFINE_ADD_ROWS(INLINE, MOST_COLS)

// Defines dw_axpy_avx2_q4_0, ..: one for each row of the list.
#define DEFINE(type, suffix) \
    TARGET void dw_axpy_avx2_##suffix(const dw_axpy_job *job) { add_rows(type, job); }
AXPY_AVX2_TYPES(DEFINE)
#endif
