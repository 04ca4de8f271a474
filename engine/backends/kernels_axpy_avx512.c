/* kernels_axpy_avx512.c - sums of rows with AVX-512.
 *
 * Q4_0 is added in fixed point, two rows at a time (kernels_axpy_q4_0.inc); the other types as F32, a block of 32 as
 * two vectors.  Scales of many blocks are converted at once and multiplied with the row's factor; the products are kept
 * in a small table and broadcast from there. */
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
        const ahead next = ahead_of(b, i / RECORD, (n + RECORD - 1) / RECORD, record_bytes(type));
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

/* ---- Q4_0 ----------------------------------------------------------------------------------------------------- */

// Codes of a block: byte i of row p in the lower half of lane i, of row q in the upper half; the other bytes are zero.
INLINE __m512i codes_of_two(const uint8_t *p, const uint8_t *q) {
    const __m512i four = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i place = _mm512_or_si512(_mm512_mullo_epi32(four, _mm512_set1_epi32(0x10001)),
                                          _mm512_set1_epi32((int)0x80008000));
    const __m512i both = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load128(p)), place);
    return _mm512_mask_shuffle_epi8(both, 0x4444444444444444, _mm512_broadcast_i32x4(load128(q)), place);
}

#include "backends/kernels_axpy_q4_0.inc"

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
        const ahead next = ahead_of(b, i / 64, n / 64, 64 * bytes);
        for (int r = 0; r < n_rows; r++) prefetch_row(next, r, 64 * bytes);
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
DEFINE_ADD_SHORT_ROWS(INLINE, 4)

// Defines dw_axpy_avx512_q4_0, ..: one for each row of the list.
#define DEFINE(type, suffix)                                                                                           \
    TARGET void dw_axpy_avx512_##suffix(const dw_axpy_job *job) {                                                      \
        if (type == DW_Q4_0 && job->n <= SHORT_Q4_0)                                                                   \
            add_short_rows(type, job);                                                                                 \
        else                                                                                                           \
            add_rows(type, job);                                                                                       \
    }
AXPY_AVX512_TYPES(DEFINE)
#endif
