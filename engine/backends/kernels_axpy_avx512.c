/* kernels_axpy_avx512.c - sums of rows with AVX-512.
 *
 * Q4_0 is added in fixed point, two rows at a time; the other types as F32, a block of 32 as two vectors.  Scales of
 * many blocks are converted at once and multiplied with the row's factor; the products are kept in a small table and
 * broadcast from there. */
#if defined(__x86_64__)
#include "backends/kernels_axpy_rows.h"

#include <immintrin.h>

#define TARGET __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define INLINE static inline __attribute__((always_inline)) TARGET

INLINE __m128i load128(const void *p) { return _mm_loadu_si128(p); }

/* ---- blocks of 32 ------------------------------------------------------------------------------------------- */

typedef struct block {
    __m512 first, last; // 16 values each
} block;

INLINE __m512 to_float(const uint8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load128(p))); }

// The block at p without its scale.
INLINE block unscaled(dw_qtype type, const uint8_t *p, __m512 value) {
    if (type == DW_Q8_0) return (block){to_float(p + 2), to_float(p + 18)};
    const __m512i codes = _mm512_cvtepu8_epi32(load128(p + 2));
    return (block){_mm512_permutexvar_ps(codes, value), _mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), value)};
}

// Scales of the n_blocks <= 8 blocks at p; the rest of the vector is zero.
INLINE __m256 block_scales(dw_qtype type, const uint8_t *p, int n_blocks) {
    const int bytes = record_bytes(type) / 8;
    if (bytes == 18 && n_blocks == BLOCKS) { // all scales are in the first 128 bytes
        const __m512i at = _mm512_castsi128_si512(_mm_setr_epi16(0, 9, 18, 27, 36, 45, 54, 63));
        return _mm256_cvtph_ps(
            _mm512_castsi512_si128(_mm512_permutex2var_epi16(_mm512_loadu_si512(p), at, _mm512_loadu_si512(p + 64))));
    }
    const __m256i at = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(bytes));
    const __mmask8 there = (__mmask8)((1 << n_blocks) - 1);
    return _mm256_cvtph_ps(
        _mm256_cvtepi32_epi16(_mm256_mmask_i32gather_epi32(_mm256_setzero_si256(), there, at, (const int *)p, 1)));
}

INLINE void add_scaled(dw_qtype type, int n_cols, int n_rows, const terms *t) {
    const bundle *b = t->b;
    const int n = t->n;
    static const float iq4_nl[16] = {DW_IQ4_NL_VALUES};
    const __m512 value = _mm512_loadu_ps(iq4_nl);
    const int bytes = record_bytes(type) / 8;
    for (int i = 0; i < n; i += RECORD) {
        const int n_blocks = n - i < RECORD ? (n - i) / 32 : BLOCKS;
        const size_t at = (size_t)(i / 32 * bytes);
        float factor[4][AXPY_ROWS][BLOCKS];
        const ahead next = ahead_of(type, b, i / RECORD, (n + RECORD - 1) / RECORD, record_bytes(type));
        for (int r = 0; r < n_rows; r++) {
            const __m256 scale = block_scales(type, b->row[r] + at, n_blocks);
            for (int c = 0; c < n_cols; c++)
                _mm256_storeu_ps(factor[c][r],
                                 _mm256_mul_ps(scale, _mm256_set1_ps(factor_of(t, c, r))));
        }
        for (int k = 0; k < n_blocks; k++) {
            __m512 sum[4][2];
            for (int r = k; r < n_rows; r += BLOCKS) prefetch_row(next, r, record_bytes(type));
            for (int j = 0; j < 2 * n_cols; j++)
                sum[j / 2][j % 2] = _mm512_loadu_ps(sum_at(t, j / 2, i + 32 * k + 16 * (j % 2)));
            for (int r = 0; r < n_rows; r++) {
                const block v = unscaled(type, b->row[r] + at + k * bytes, value);
                for (int c = 0; c < n_cols; c++) {
                    const __m512 f = _mm512_set1_ps(factor[c][r][k]);
                    sum[c][0] = _mm512_fmadd_ps(v.first, f, sum[c][0]);
                    sum[c][1] = _mm512_fmadd_ps(v.last, f, sum[c][1]);
                }
            }
            for (int j = 0; j < 2 * n_cols; j++)
                _mm512_storeu_ps(sum_at(t, j / 2, i + 32 * k + 16 * (j % 2)), sum[j / 2][j % 2]);
        }
    }
}

/* ---- Q4_0: pairs of rows in 16 bits ---------------------------------------------------------------------------- */

/* For each block a row's factor times its scale is rounded to 16 bits, in units of the bundle's largest product /
 * 32767.  Then one multiply-add takes two rows: the halves of a lane hold the codes of both, and likewise their
 * factors.  Sums are exact; the rounding is 2^-16 of the largest product, about 1e-10 of the result's square. */
enum { TILE_BLOCKS = 16 };

typedef struct factors {                      // of the tile's blocks
    int32_t pair[AXPY_ROWS / 2][TILE_BLOCKS]; // two rows' factors, 16 bits each
    int32_t offset[TILE_BLOCKS];              // -8 times the sum of all rows' factors
    float unit[TILE_BLOCKS];
} factors;

// Scales of the n_blocks <= 16 blocks at p; the rest of the vector is zero.
INLINE __m512 tile_scales(const uint8_t *p, int n_blocks) {
    if (n_blocks == TILE_BLOCKS) { // the scales of eight blocks are in their first 128 bytes
        const __m512i at = _mm512_castsi128_si512(_mm_setr_epi16(0, 9, 18, 27, 36, 45, 54, 63));
        const __m512i low = _mm512_permutex2var_epi16(_mm512_loadu_si512(p), at, _mm512_loadu_si512(p + 64));
        const __m512i high = _mm512_permutex2var_epi16(_mm512_loadu_si512(p + 144), at, _mm512_loadu_si512(p + 208));
        return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm512_castsi512_si256(low), _mm512_castsi512_si128(high), 1));
    }
    const __m512i number = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_mullo_epi32(number, _mm512_set1_epi32(18));
    const __mmask16 there = (__mmask16)((1 << n_blocks) - 1);
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_mask_i32gather_epi32(_mm512_setzero_si512(), there, at, p, 1)));
}

// A block whose products are all below 2^-100 counts as zero; a number that is not finite makes its blocks NaN.
INLINE void make_factors(const bundle *b, int n_rows, size_t at, int n_blocks, const float *a, factors *f) {
    __m512 product[AXPY_ROWS], largest = _mm512_setzero_ps(), poison = _mm512_setzero_ps();
    for (int r = 0; r < n_rows; r++) {
        product[r] = _mm512_mul_ps(tile_scales(b->row[r] + at, n_blocks), _mm512_set1_ps(a[r]));
        largest = _mm512_max_ps(largest, _mm512_abs_ps(product[r]));
        poison = _mm512_fmadd_ps(product[r], _mm512_setzero_ps(), poison);
    }
    const __mmask16 some = _mm512_cmp_ps_mask(largest, _mm512_set1_ps(0x1p-100f), _CMP_GE_OQ);
    const __m512 inverse = _mm512_maskz_div_ps(some, _mm512_set1_ps(32767), largest);
    __m512i sum = _mm512_setzero_si512();
    for (int r = 0; r < n_rows; r += 2) {
        const __m512i even = _mm512_cvtps_epi32(_mm512_mul_ps(product[r], inverse));
        const __m512i odd = r + 1 < n_rows ? _mm512_cvtps_epi32(_mm512_mul_ps(product[r + 1], inverse))
                                           : _mm512_setzero_si512();
        sum = _mm512_add_epi32(sum, _mm512_add_epi32(even, odd));
        _mm512_storeu_si512(f->pair[r / 2], _mm512_mask_blend_epi16(0xaaaaaaaa, even, _mm512_slli_epi32(odd, 16)));
    }
    _mm512_storeu_si512(f->offset, _mm512_slli_epi32(_mm512_sub_epi32(_mm512_setzero_si512(), sum), 3));
    _mm512_storeu_ps(f->unit, _mm512_fmadd_ps(largest, _mm512_set1_ps(1 / 32767.0f), poison));
}

// Codes of a block as bytes: row p in the lower halves of 16 lanes, row q in the upper halves.
INLINE __m512i codes_of_two(const uint8_t *p, const uint8_t *q) {
    const __m512i four = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i place = _mm512_or_si512(_mm512_mullo_epi32(four, _mm512_set1_epi32(0x10001)),
                                          _mm512_set1_epi32((int)0x80008000));
    const __m512i both = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load128(p)), place);
    return _mm512_mask_shuffle_epi8(both, 0x4444444444444444, _mm512_broadcast_i32x4(load128(q)), place);
}

INLINE void add_q4_0(int n_cols, int n_rows, const terms *t) {
    const bundle *b = t->b;
    const int n = t->n;
    enum { COLUMNS = 32 * TILE_BLOCKS, BYTES = 18 * TILE_BLOCKS };
    const __m512i low = _mm512_set1_epi32(0x000f000f);
    for (int i = 0; i < n; i += COLUMNS) {
        const int n_blocks = n - i < COLUMNS ? (n - i) / 32 : TILE_BLOCKS;
        const size_t at = (size_t)(i / 32 * 18);
        factors f[4];
        const ahead next = ahead_of(DW_Q4_0, b, i / COLUMNS, (n + COLUMNS - 1) / COLUMNS, BYTES);
        for (int c = 0; c < n_cols; c++) make_factors(b, n_rows, at, n_blocks, t->a + (size_t)c * t->a_stride, &f[c]);
        for (int k = 0; k < n_blocks; k++) {
            __m512i sum[4][2];
            if (k < n_rows) prefetch_row(next, k, BYTES);
            for (int c = 0; c < n_cols; c++) sum[c][0] = sum[c][1] = _mm512_set1_epi32(f[c].offset[k]);
            for (int r = 0; r < n_rows; r += 2) {
                const size_t codes = at + (size_t)(18 * k + 2);
                const __m512i two = codes_of_two(b->row[r] + codes, b->row[r + 1 < n_rows ? r + 1 : r] + codes);
                for (int c = 0; c < n_cols; c++) {
                    const __m512i pair = _mm512_set1_epi32(f[c].pair[r / 2][k]);
                    sum[c][0] = _mm512_dpwssd_epi32(sum[c][0], _mm512_and_si512(two, low), pair);
                    sum[c][1] = _mm512_dpwssd_epi32(sum[c][1], _mm512_srli_epi16(two, 4), pair);
                }
            }
            for (int j = 0; j < 2 * n_cols; j++) {
                float *to = sum_at(t, j / 2, i + 32 * k + 16 * (j % 2));
                const __m512 unit = _mm512_set1_ps(f[j / 2].unit[k]);
                _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[j / 2][j % 2]), unit, _mm512_loadu_ps(to)));
            }
        }
    }
}

/* ---- F32, F16, BF16 ----------------------------------------------------------------------------------------- */

INLINE __m512 load_values(dw_qtype type, const uint8_t *p, __mmask16 some) {
    switch (type) {
    case DW_F32:
        return _mm512_maskz_loadu_ps(some, p);
    case DW_F16:
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, p));
    default:
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, p)), 16));
    }
}

// Values i .. of the rows: n_vectors vectors of 16, of the last one only those in the mask.
typedef struct piece {
    int i, n_vectors;
    __mmask16 last;
} piece;

INLINE void add_piece(dw_qtype type, int n_cols, int n_rows, piece p, const terms *t) {
    const int bytes = value_bytes(type), i = p.i, n_vectors = p.n_vectors;
    __m512 sum[4][4];
    __mmask16 some[4];
    for (int k = 0; k < n_vectors; k++) some[k] = k == n_vectors - 1 ? p.last : 0xffff;
    for (int c = 0; c < n_cols; c++)
        for (int k = 0; k < n_vectors; k++)
            sum[c][k] = _mm512_maskz_loadu_ps(some[k], sum_at(t, c, i + 16 * k));
    for (int r = 0; r < n_rows; r++)
        for (int k = 0; k < n_vectors; k++) {
            const __m512 v = load_values(type, t->b->row[r] + (size_t)((i + 16 * k) * bytes), some[k]);
            for (int c = 0; c < n_cols; c++)
                sum[c][k] = _mm512_fmadd_ps(v, _mm512_set1_ps(factor_of(t, c, r)), sum[c][k]);
        }
    for (int c = 0; c < n_cols; c++)
        for (int k = 0; k < n_vectors; k++)
            _mm512_mask_storeu_ps(sum_at(t, c, i + 16 * k), some[k], sum[c][k]);
}

INLINE void add_floats(dw_qtype type, int n_cols, int n_rows, const terms *t) {
    const bundle *b = t->b;
    const int n = t->n;
    const int bytes = value_bytes(type);
    int i = 0;
    for (; i + 64 <= n; i += 64) {
        const ahead next = ahead_of(type, b, i / 64, n / 64, 64 * bytes);
        for (int r = 0; r < n_rows; r++) prefetch_row_second(next, r, 64 * bytes);
        add_piece(type, n_cols, n_rows, (piece){i, 4, 0xffff}, t);
    }
    for (; i < n; i += 16)
        add_piece(type, n_cols, n_rows, (piece){i, 1, n - i >= 16 ? 0xffff : (__mmask16)((1 << (n - i)) - 1)}, t);
}

INLINE void add_some(dw_qtype type, int n_cols, int n_rows, const terms *t) {
    if (type == DW_F32 || type == DW_F16 || type == DW_BF16) add_floats(type, n_cols, n_rows, t);
    else if (type == DW_Q4_0) add_q4_0(n_cols, n_rows, t);
    else add_scaled(type, n_cols, n_rows, t);
}

/* ---- rows of each type -------------------------------------------------------------------------------------- */

DEFINE_ADD_ROWS(INLINE, 4)

// Defines dw_axpy_avx512_q4_0, ..: one for each row of the list.
#define DEFINE(type, suffix) \
    TARGET void dw_axpy_avx512_##suffix(const dw_axpy_job *job) { add_rows(type, job); }
AXPY_AVX512_TYPES(DEFINE)
#endif
