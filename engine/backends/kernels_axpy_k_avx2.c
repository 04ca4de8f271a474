/* kernels_axpy_k_avx2.c - sums of rows of K types with AVX2, FMA and F16C.
 *
 * As kernels_axpy_k_avx512.c with vectors half as wide: 32 columns at a time. */
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

// The row's factors; adds to the rows' offsets, for one column's factor a.
INLINE numbers row_factors(dw_qtype type, const uint8_t *p, float a, numbers *offset) {
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
                  of_bytes(scales_and_minima(p)));
        *offset = minus(*offset, one, s);
        return s;
    }
}

INLINE void make_factors(dw_qtype type, int n_rows, size_t at, const terms *t, int c, k_factors *f) {
    numbers offset = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int r = 0; r < n_rows; r++) {
        const numbers s = row_factors(type, t->b->row[r] + at, factor_of(t, c, r), &offset);
        _mm256_storeu_ps(f->factor[r], s.first), _mm256_storeu_ps(f->factor[r] + 8, s.last);
    }
    _mm256_storeu_ps(f->offset, offset.first), _mm256_storeu_ps(f->offset + 8, offset.last);
}

/* ---- rows --------------------------------------------------------------------------------------------------- */

// Columns 32 s .. of the superblock whose columns begin at i.
INLINE void add_unit(dw_qtype type, int n_cols, int n_rows, const terms *t, int i, int s, const k_factors *f) {
    const size_t at = (size_t)(i / RECORD * record_bytes(type));
    const bool of_16 = has_scale_of_16(type);
    __m256 sum[MOST_COLS][4];
    _Alignas(32) uint8_t code[AXPY_ROWS][UNIT];
    for (int r = 0; r < n_rows; r++) _mm256_store_si256((void *)code[r], columns_of(type, t->b->row[r] + at, s));
    for (int c = 0; c < n_cols; c++)
        for (int k = 0; k < 4; k++)
            sum[c][k] = _mm256_add_ps(_mm256_loadu_ps(sum_at(t, c, i + UNIT * s + 8 * k)),
                                      _mm256_set1_ps(f[c].offset[2 * s + (of_16 ? k / 2 : 1)]));
    for (int r = 0; r < n_rows; r++)
        for (int k = 0; k < 4; k++) {
            const __m256 v = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(code[r] + 8 * k))));
            for (int c = 0; c < n_cols; c++)
                sum[c][k] = _mm256_fmadd_ps(v, _mm256_set1_ps(f[c].factor[r][2 * s + (of_16 ? k / 2 : 0)]), sum[c][k]);
        }
    for (int c = 0; c < n_cols; c++)
        for (int k = 0; k < 4; k++) _mm256_storeu_ps(sum_at(t, c, i + UNIT * s + 8 * k), sum[c][k]);
}

INLINE void add_some(dw_qtype type, int n_cols, int n_rows, const terms *t) {
    const int bytes = record_bytes(type), n_tiles = t->n / RECORD;
    for (int tile = 0; tile < n_tiles; tile++) {
        k_factors f[MOST_COLS];
        const ahead next = ahead_of(type, t->b, tile, n_tiles, bytes);
        for (int c = 0; c < n_cols; c++) make_factors(type, n_rows, (size_t)(tile * bytes), t, c, &f[c]);
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
