/* kernels_axpy_k_avx2.c - sums of rows of K types with AVX2, FMA and F16C.
 *
 * As kernels_axpy_k_avx512.c with vectors half as wide, 32 columns at a time, and with the eight rows added up before they
 * are added to y. */
#if defined(__x86_64__)
#include "backends/kernels_axpy_rows.h"
#include "backends/kernels_weights_avx2.h"

enum { MOST_COLS = 2, UNIT = 32 };

/* ---- scales ------------------------------------------------------------------------------------------------- */

typedef struct numbers {
    __m256 first, last; // of 8 pieces each
} numbers;

INLINE numbers of_bytes(__m128i x) { // signed
    return (numbers){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
                     _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
}

INLINE numbers times(__m256 a, numbers x) { return (numbers){_mm256_mul_ps(a, x.first), _mm256_mul_ps(a, x.last)}; }

// sum - a x
INLINE numbers minus(numbers sum, __m256 a, numbers x) {
    return (numbers){_mm256_fnmadd_ps(a, x.first, sum.first), _mm256_fnmadd_ps(a, x.last, sum.last)};
}

/* Q4_K, Q5_K: the packed scales and minima of two superblocks (dw_unpack_scales_mins), each in its own lane, as bytes that
 * take turns. */
INLINE __m256i two_scales_and_minima(const uint8_t *p, const uint8_t *q) {
    const __m256i both = lanes(p, q); // words: d and dmin, a, b, c
    const __m256i acbc = _mm256_shuffle_epi32(both, 0xed), aabb = _mm256_shuffle_epi32(both, 0xa5);
    const __m256i low = _mm256_and_si256(_mm256_srlv_epi32(acbc, _mm256_setr_epi32(0, 0, 0, 4, 0, 0, 0, 4)),
                                         _mm256_set1_epi64x(0x0f0f0f0f3f3f3f3f));
    const __m256i high = _mm256_and_si256(_mm256_srli_epi32(aabb, 2), _mm256_set1_epi64x(0x3030303000000000));
    const __m128i turns = _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    return _mm256_shuffle_epi8(_mm256_or_si256(low, high), _mm256_broadcastsi128_si256(turns));
}

// The row's factors; adds to the rows' offsets, for one column's factor a.  packed: its scales and minima of Q4_K and Q5_K.
INLINE numbers row_factors(dw_qtype type, const uint8_t *p, const uint8_t *packed, float a, numbers *offset) {
    const __m256 one = _mm256_set1_ps(1);
    const __m128i fifteen = _mm_set1_epi8(15);
    numbers s;
    switch (type) {
    case DW_Q2_K:
        *offset = minus(*offset, _mm256_set1_ps(a * half_at(p + 82)),
                        of_bytes(_mm_and_si128(_mm_srli_epi16(load128(p), 4), fifteen)));
        return times(_mm256_set1_ps(a * half_at(p + 80)), of_bytes(_mm_and_si128(load128(p), fifteen)));
    case DW_Q3_K:
        s = times(_mm256_set1_ps(a * half_at(p + 108)), of_bytes(q3_scales(p)));
        *offset = minus(*offset, _mm256_set1_ps(4), s);
        return s;
    case DW_Q6_K:
        s = times(_mm256_set1_ps(a * half_at(p + 208)), of_bytes(load128(p + 192)));
        *offset = minus(*offset, _mm256_set1_ps(32), s);
        return s;
    default: // Q4_K, Q5_K: d, dmin, d, ..
        s = times(_mm256_mul_ps(_mm256_set1_ps(a), _mm256_cvtph_ps(_mm_set1_epi32((int)dw_le32(p)))),
                  of_bytes(load128(packed)));
        *offset = minus(*offset, one, s);
        return s;
    }
}

INLINE void make_factors(dw_qtype type, int n_cols, int n_rows, size_t at, const terms *t, k_factors *f) {
    _Alignas(32) uint8_t packed[AXPY_ROWS][16];
    for (int r = 0; r < n_rows && (type == DW_Q4_K || type == DW_Q5_K); r += 2)
        _mm256_store_si256((void *)packed[r],
                           two_scales_and_minima(t->b->row[r] + at, t->b->row[r + 1 < n_rows ? r + 1 : r] + at));
    for (int c = 0; c < n_cols; c++) {
        numbers offset = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        for (int r = 0; r < n_rows; r++) {
            const numbers s = row_factors(type, t->b->row[r] + at, packed[r], factor_of(t, c, r), &offset);
            _mm256_storeu_ps(f[c].factor[r], s.first), _mm256_storeu_ps(f[c].factor[r] + 8, s.last);
        }
        _mm256_storeu_ps(f[c].offset, offset.first), _mm256_storeu_ps(f[c].offset + 8, offset.last);
    }
}

/* ---- columns ------------------------------------------------------------------------------------------------ */

/* Codes in dwords become numbers where they are: those from bit `at` on are 2^at times their code, which F32 holds
 * exactly.  Each place has a sum of its own, and the sums are put into the order of columns once for all rows.  A sum of
 * 2^100 is infinite. */

// The code of n_bits from bit `at` on of each dword, times 2^at but for the highest code.
INLINE __m256 codes_in_place(__m256i x, int at, int n_bits) {
    if (at + n_bits == 32) return _mm256_cvtepi32_ps(_mm256_srli_epi32(x, at));
    return _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(((1 << n_bits) - 1) << at)));
}

INLINE __m256 unit_of_codes(int at, int n_bits) { return _mm256_set1_ps(at + n_bits == 32 ? 1 : 1 / (float)(1 << at)); }

// y_i += sum of columns i .. i + 31; lane i of sum[k] is that of column 4 i + k.
INLINE void add_columns(float *y, const __m256 *sum) {
    const __m256 a = _mm256_unpacklo_ps(sum[0], sum[1]), b = _mm256_unpacklo_ps(sum[2], sum[3]);
    const __m256 c = _mm256_unpackhi_ps(sum[0], sum[1]), d = _mm256_unpackhi_ps(sum[2], sum[3]);
    // of[j]: columns 4 j .. 4 j + 3 and 4 j + 16 .. 4 j + 19.
    const __m256 of[4] = {_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee),
                          _mm256_shuffle_ps(c, d, 0x44), _mm256_shuffle_ps(c, d, 0xee)};
    for (int k = 0; k < 2; k++) {
        float *first = y + 8 * k, *last = first + 16;
        _mm256_storeu_ps(first,
                         _mm256_add_ps(_mm256_loadu_ps(first), _mm256_permute2f128_ps(of[2 * k], of[2 * k + 1], 0x20)));
        _mm256_storeu_ps(last,
                         _mm256_add_ps(_mm256_loadu_ps(last), _mm256_permute2f128_ps(of[2 * k], of[2 * k + 1], 0x31)));
    }
}

/* ---- rows --------------------------------------------------------------------------------------------------- */

// A row's factor of its 32 columns from 32 s on; two of 16 columns each in some types.
INLINE __m256 factors_of(const float *factor, bool of_16, int s) {
    if (!of_16) return _mm256_broadcast_ss(factor + 2 * s);
    const __m256 both = _mm256_castpd_ps(_mm256_broadcast_sd((const double *)(const void *)(factor + 2 * s)));
    return _mm256_permutevar_ps(both, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
}

// Columns 32 s .. of the superblock whose columns begin at i.
INLINE void add_unit(dw_qtype type, int n_cols, int n_rows, const terms *t, int i, int s, const k_factors *f) {
    const size_t at = (size_t)(i / RECORD * record_bytes(type));
    const bool of_16 = has_scale_of_16(type);
    __m256 sum[MOST_COLS][4];
    for (int c = 0; c < n_cols; c++)
        for (int k = 0; k < 4; k++) sum[c][k] = _mm256_setzero_ps();
    for (int r = 0; r < n_rows; r++) {
        const __m256i code = columns_of(type, t->b->row[r] + at, s);
        for (int k = 0; k < 4; k++) {
            const __m256 v = codes_in_place(code, 8 * k, 8);
            for (int c = 0; c < n_cols; c++)
                sum[c][k] = _mm256_fmadd_ps(v, factors_of(f[c].factor[r], of_16, s), sum[c][k]);
        }
    }
    for (int c = 0; c < n_cols; c++) {
        const __m256 offset = factors_of(f[c].offset + !of_16, of_16, s);
        for (int k = 0; k < 4; k++) sum[c][k] = _mm256_fmadd_ps(sum[c][k], unit_of_codes(8 * k, 8), offset);
        add_columns(sum_at(t, c, i + UNIT * s), sum[c]);
    }
}

// As add_unit for one column of Q4_K: the units s and s + 1, which are the low and the high codes of the same bytes.
INLINE void add_two_units(int n_rows, const terms *t, int i, int s, const k_factors *f) {
    const size_t at = (size_t)(i / RECORD * record_bytes(DW_Q4_K) + 16 + 16 * s);
    __m256 sum[2][4];
    for (int k = 0; k < 8; k++) sum[k % 2][k / 2] = _mm256_setzero_ps();
#pragma GCC unroll 2
    for (int r = 0; r < n_rows; r++) {
        const __m256i codes = load256(t->b->row[r] + at);
        for (int k = 0; k < 8; k++)
            sum[k % 2][k / 2] = _mm256_fmadd_ps(codes_in_place(codes, 4 * k, 4),
                                                factors_of(f->factor[r], false, s + k % 2), sum[k % 2][k / 2]);
    }
    for (int j = 0; j < 2; j++) {
        const __m256 offset = factors_of(f->offset + 1, false, s + j);
        for (int k = 0; k < 4; k++) sum[j][k] = _mm256_fmadd_ps(sum[j][k], unit_of_codes(8 * k + 4 * j, 4), offset);
        add_columns(sum_at(t, 0, i + UNIT * (s + j)), sum[j]);
    }
}

INLINE void add_some(dw_qtype type, int n_cols, int n_rows, const terms *t) {
    const int bytes = record_bytes(type), n_tiles = t->n / RECORD;
    for (int tile = 0; tile < n_tiles; tile++) {
        k_factors f[MOST_COLS];
        const ahead next = ahead_of(t->b, tile, n_tiles, bytes);
        make_factors(type, n_cols, n_rows, (size_t)(tile * bytes), t, f);
        const int n_units = type == DW_Q4_K && n_cols == 1 ? 2 : 1; // added at a time
        for (int s = 0; s < BLOCKS; s += n_units) {
            for (int r = s; r < s + n_units && r < n_rows; r++) prefetch_row(next, r, bytes);
            if (n_units == 2) add_two_units(n_rows, t, RECORD * tile, s, f);
            else add_unit(type, n_cols, n_rows, t, RECORD * tile, s, f);
        }
    }
}

/* ---- rows of each type -------------------------------------------------------------------------------------- */

DEFINE_ADD_ROWS(INLINE, MOST_COLS)

// Defines dw_axpy_avx2_q2_k, ..: one for each row of the list.
#define DEFINE(type, suffix) \
    TARGET void dw_axpy_avx2_##suffix(const dw_axpy_job *job) { add_rows(type, job); }
AXPY_K_TYPES(DEFINE)
#endif
