/* kernels_axpy_avx2.c - sums of rows with AVX2, FMA and F16C.
 *
 * As kernels_axpy_avx512.c with vectors half as wide: Q4_0 in fixed point, pairs of rows; the others as F32. */
#if defined(__x86_64__)
#include "backends/kernels_axpy_rows.h"

#include <immintrin.h>
#include <math.h>

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) TARGET

enum { MOST_COLS = 2 };

INLINE __m128i load64(const uint8_t *p) { return _mm_loadl_epi64((const __m128i *)(const void *)p); }
INLINE __m128i load128(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)(const void *)p); }

// Scales of the n_blocks <= 8 blocks at p; the last one's scale fills the rest of the vector.
INLINE __m256 scales_up_to(const uint8_t *p, int bytes, int n_blocks) {
    __m128i h = _mm_setzero_si128();
#define PUT(k) h = _mm_insert_epi16(h, dw_le16(p + (k < n_blocks ? k : n_blocks - 1) * bytes), k)
    PUT(0), PUT(1), PUT(2), PUT(3), PUT(4), PUT(5), PUT(6), PUT(7);
#undef PUT
    return _mm256_cvtph_ps(h);
}

INLINE __m256 block_scales(const uint8_t *p, int bytes, int n_blocks) {
    return n_blocks == BLOCKS ? scales_up_to(p, bytes, BLOCKS) : scales_up_to(p, bytes, n_blocks);
}

/* ---- Q4_0: pairs of rows in 16 bits ------------------------------------------------------------------------- */

typedef struct factors { // of a record's blocks
    int32_t pair[AXPY_ROWS / 2][BLOCKS]; // two rows' factors, 16 bits each
    int32_t offset[BLOCKS];              // -8 times the sum of all rows' factors
    float unit[BLOCKS];
} factors;

INLINE void store_ints(int32_t *to, __m256i v) { _mm256_storeu_si256((__m256i *)(void *)to, v); }

// A block whose products are all below 2^-100 counts as zero; a number that is not finite makes its blocks NaN.
INLINE void make_factors(const bundle *b, int n_rows, size_t at, int n_blocks, const float *a, factors *f) {
    __m256 product[AXPY_ROWS], largest = _mm256_setzero_ps(), poison = _mm256_setzero_ps();
    for (int r = 0; r < n_rows; r++) {
        product[r] = _mm256_mul_ps(block_scales(b->row[r] + at, 18, n_blocks), _mm256_set1_ps(a[r]));
        largest = _mm256_max_ps(largest, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), product[r]));
        poison = _mm256_fmadd_ps(product[r], _mm256_setzero_ps(), poison);
    }
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
    store_ints(f->offset, _mm256_slli_epi32(_mm256_sub_epi32(_mm256_setzero_si256(), sum), 3));
    _mm256_storeu_ps(f->unit, _mm256_fmadd_ps(largest, _mm256_set1_ps(1 / 32767.0f), poison));
}

INLINE __m256i add_pairs(__m256i sum, __m256i codes, __m256i pair) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(codes, pair));
}

INLINE void add_q4_0(int n_cols, int n_rows, const terms *t) {
    const bundle *b = t->b;
    const int n = t->n;
    for (int i = 0; i < n; i += RECORD) {
        const int n_blocks = n - i < RECORD ? (n - i) / 32 : BLOCKS;
        const size_t at = (size_t)(i / 32 * 18);
        const ahead next = ahead_of(DW_Q4_0, b, i / RECORD, (n + RECORD - 1) / RECORD, 18 * BLOCKS);
        factors f[MOST_COLS];
        for (int c = 0; c < n_cols; c++) make_factors(b, n_rows, at, n_blocks, t->a + (size_t)c * t->a_stride, &f[c]);
        for (int k = 0; k < n_blocks; k++) {
            __m256i sum[MOST_COLS][4]; // of eight columns each
            if (k < n_rows) prefetch_row(next, k, 18 * BLOCKS);
            for (int c = 0; c < n_cols; c++)
                for (int j = 0; j < 4; j++) sum[c][j] = _mm256_set1_epi32(f[c].offset[k]);
            for (int r = 0; r < n_rows; r += 2) {
                const size_t codes = at + (size_t)(18 * k + 2);
                const __m128i p = load128(b->row[r] + codes), q = load128(b->row[r + 1 < n_rows ? r + 1 : r] + codes);
                const __m256i two[2] = {_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(p, q)),
                                        _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(p, q))};
                for (int c = 0; c < n_cols; c++) {
                    const __m256i pair = _mm256_set1_epi32(f[c].pair[r / 2][k]);
                    for (int j = 0; j < 2; j++) {
                        sum[c][j] = add_pairs(sum[c][j], _mm256_and_si256(two[j], _mm256_set1_epi16(15)), pair);
                        sum[c][j + 2] = add_pairs(sum[c][j + 2], _mm256_srli_epi16(two[j], 4), pair);
                    }
                }
            }
            for (int c = 0; c < n_cols; c++)
                for (int j = 0; j < 4; j++) {
                    float *to = sum_at(t, c, i + 32 * k + 8 * j);
                    const __m256 unit = _mm256_set1_ps(f[c].unit[k]);
                    _mm256_storeu_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[c][j]), unit, _mm256_loadu_ps(to)));
                }
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
        const ahead next = ahead_of(DW_Q8_0, b, i / RECORD, (n + RECORD - 1) / RECORD, 34 * BLOCKS);
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
        const ahead next = ahead_of(type, b, i / 32, n / 32, 32 * bytes);
        for (int r = 0; r < n_rows; r++) prefetch_row_second(next, r, 32 * bytes);
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
