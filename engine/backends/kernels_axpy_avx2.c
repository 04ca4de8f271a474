/* kernels_axpy_avx2.c - adding up rows with AVX2, FMA and F16C.
 *
 * As kernels_axpy_avx512.c with vectors half as wide: a block of 32 becomes four vectors of F32.  Four-bit codes are
 * converted as they are, 0..15; the 8 that Q4_0 takes off is the same for all 32 values of a block and is taken off y
 * once for all rows of a bundle. */
#if defined(__x86_64__)
#include "backends/kernels_axpy_rows.h"

#include <immintrin.h>
#include <math.h>

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) TARGET

enum { MOST_COLS = 2 };

/* ---- blocks of 32 ------------------------------------------------------------------------------------------- */

INLINE __m128i load64(const uint8_t *p) { return _mm_loadl_epi64((const __m128i *)(const void *)p); }

// The block at p without its scale and offset, eight values each.
INLINE void unscaled(dw_qtype type, const uint8_t *p, __m256 v[4]) {
    if (type == DW_Q8_0) {
        for (int k = 0; k < 4; k++) v[k] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load64(p + 2 + 8 * k)));
        return;
    }
    for (int k = 0; k < 2; k++) {
        const __m256i codes = _mm256_cvtepu8_epi32(load64(p + 2 + 8 * k));
        v[k] = _mm256_cvtepi32_ps(_mm256_and_si256(codes, _mm256_set1_epi32(15)));
        v[k + 2] = _mm256_cvtepi32_ps(_mm256_srli_epi32(codes, 4));
    }
}

// Scales of the eight blocks at p; those behind the n_blocks that exist are copies of the last one's.
INLINE __m256 block_scales(const uint8_t *p, int bytes, int n_blocks) {
    __m128i h = _mm_setzero_si128();
#define PUT(k) h = _mm_insert_epi16(h, dw_le16(p + (k < n_blocks ? k : n_blocks - 1) * bytes), k)
    PUT(0), PUT(1), PUT(2), PUT(3), PUT(4), PUT(5), PUT(6), PUT(7);
#undef PUT
    return _mm256_cvtph_ps(h);
}

INLINE void add_blocks(dw_qtype type, int n_cols, int n_rows, const bundle *b, int n, const float *a, size_t a_stride,
                       float *y, size_t y_stride) {
    const int bytes = record_bytes(type) / 8;
    for (int i = 0; i < n; i += RECORD) {
        const int n_blocks = n - i < RECORD ? (n - i) / 32 : BLOCKS;
        const size_t at = (size_t)(i / 32 * bytes);
        float factor[MOST_COLS][AXPY_ROWS][BLOCKS], offset[MOST_COLS][BLOCKS];
        __m256 all[MOST_COLS] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        const ahead next = ahead_of(b, i / RECORD, (n + RECORD - 1) / RECORD, record_bytes(type));
        for (int r = 0; r < n_rows; r++) {
            const uint8_t *p = b->row[r] + at;
            const __m256 scale = n_blocks == BLOCKS ? block_scales(p, bytes, BLOCKS) : block_scales(p, bytes, n_blocks);
            for (int c = 0; c < n_cols; c++) {
                const __m256 f = _mm256_mul_ps(scale, _mm256_set1_ps(a[(size_t)c * a_stride + (size_t)r]));
                _mm256_storeu_ps(factor[c][r], f);
                all[c] = _mm256_add_ps(all[c], f);
            }
        }
        for (int c = 0; c < n_cols; c++)
            _mm256_storeu_ps(offset[c], _mm256_mul_ps(all[c], _mm256_set1_ps(type == DW_Q4_0 ? -8 : 0)));
        for (int k = 0; k < n_blocks; k++) {
            float *to = y + i + 32 * k;
            __m256 sum[MOST_COLS][4];
            for (int r = k; r < n_rows; r += BLOCKS) prefetch_row(next, r, record_bytes(type));
            for (int c = 0; c < n_cols; c++)
                for (int j = 0; j < 4; j++) {
                    sum[c][j] = _mm256_loadu_ps(to + (size_t)c * y_stride + 8 * j);
                    if (type == DW_Q4_0) sum[c][j] = _mm256_add_ps(sum[c][j], _mm256_set1_ps(offset[c][k]));
                }
            for (int r = 0; r < n_rows; r++) {
                __m256 v[4];
                unscaled(type, b->row[r] + at + k * bytes, v);
                for (int c = 0; c < n_cols; c++)
                    for (int j = 0; j < 4; j++)
                        sum[c][j] = _mm256_fmadd_ps(v[j], _mm256_set1_ps(factor[c][r][k]), sum[c][j]);
            }
            for (int c = 0; c < n_cols; c++)
                for (int j = 0; j < 4; j++) _mm256_storeu_ps(to + (size_t)c * y_stride + 8 * j, sum[c][j]);
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

INLINE void add_floats(dw_qtype type, int n_cols, int n_rows, const bundle *b, int n, const float *a, size_t a_stride,
                       float *y, size_t y_stride) {
    const int bytes = value_bytes(type);
    int i = 0;
    for (; i + 32 <= n; i += 32) {
        const size_t at = (size_t)(i * bytes);
        __m256 sum[MOST_COLS][4];
        const ahead next = ahead_of(b, i / 32, n / 32, 32 * bytes);
        for (int r = 0; r < n_rows; r++) prefetch_row(next, r, 32 * bytes);
        for (int c = 0; c < n_cols; c++)
            for (int j = 0; j < 4; j++) sum[c][j] = _mm256_loadu_ps(y + (size_t)c * y_stride + i + 8 * j);
        for (int r = 0; r < n_rows; r++)
            for (int j = 0; j < 4; j++) {
                const __m256 v = load_values(type, b->row[r] + at + 8 * j * bytes);
                for (int c = 0; c < n_cols; c++)
                    sum[c][j] = _mm256_fmadd_ps(v, _mm256_set1_ps(a[(size_t)c * a_stride + (size_t)r]), sum[c][j]);
            }
        for (int c = 0; c < n_cols; c++)
            for (int j = 0; j < 4; j++) _mm256_storeu_ps(y + (size_t)c * y_stride + i + 8 * j, sum[c][j]);
    }
    for (; i < n; i++)
        for (int r = 0; r < n_rows; r++)
            for (int c = 0; c < n_cols; c++) {
                float *to = y + (size_t)c * y_stride + i;
                *to = fmaf(load_value(type, b->row[r] + (size_t)(i * bytes)), a[(size_t)c * a_stride + (size_t)r], *to);
            }
}

/* ---- rows of each type -------------------------------------------------------------------------------------- */

DEFINE_ADD_ROWS(INLINE, MOST_COLS)

#define DEFINE(type, suffix)                                                                                           \
    TARGET void dw_axpy_avx2_##suffix(DW_AXPY_ROWS_ARGS) {                                                             \
        add_rows(type, w, row_bytes, row, n_rows, n, a, a_stride, n_cols, y, y_stride);                                \
    }
AXPY_AVX2_TYPES(DEFINE)
#endif
