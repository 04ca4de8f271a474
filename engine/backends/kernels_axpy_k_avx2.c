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

/* The bytes of eight dwords become numbers where they are: byte k is 2^8k times its code, which F32 holds exactly.  Each
 * has a sum of its own, and the sums are put into the order of columns once for all rows.  A sum of 2^104 is infinite. */

// Byte k of each dword, times 2^8k but for the last.
INLINE __m256 bytes_in_place(__m256i x, int k) {
    if (k == 3) return _mm256_cvtepi32_ps(_mm256_srli_epi32(x, 24));
    return _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(0xff << 8 * k)));
}

INLINE __m256 unit_of_byte(int k) { return _mm256_set1_ps(k == 3 ? 1 : 1 / (float)(1 << 8 * k)); }

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
            const __m256 v = bytes_in_place(code, k);
            for (int c = 0; c < n_cols; c++)
                sum[c][k] = _mm256_fmadd_ps(v, factors_of(f[c].factor[r], of_16, s), sum[c][k]);
        }
    }
    for (int c = 0; c < n_cols; c++) {
        const __m256 offset = factors_of(f[c].offset + !of_16, of_16, s);
        for (int k = 0; k < 4; k++) sum[c][k] = _mm256_fmadd_ps(sum[c][k], unit_of_byte(k), offset);
        add_columns(sum_at(t, c, i + UNIT * s), sum[c]);
    }
}

INLINE void add_some(dw_qtype type, int n_cols, int n_rows, const terms *t) {
    const int bytes = record_bytes(type), n_tiles = t->n / RECORD;
    for (int tile = 0; tile < n_tiles; tile++) {
        k_factors f[MOST_COLS];
        const ahead next = ahead_of(type, t->b, tile, n_tiles, bytes);
        make_factors(type, n_cols, n_rows, (size_t)(tile * bytes), t, f);
        for (int s = 0; s < BLOCKS; s++) {
            if (s < n_rows) prefetch_row(next, s, bytes);
            add_unit(type, n_cols, n_rows, t, RECORD * tile, s, f);
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
