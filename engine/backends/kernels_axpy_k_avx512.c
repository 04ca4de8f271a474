/* kernels_axpy_k_avx512.c - sums of rows of K types with AVX-512.
 *
 * With w = s u - m (u the codes; s and m for 16 or 32 values) eight rows add
 *
 *     y_i += sum over r of (a_r s_r) u_ri - sum over r of a_r m_r
 *
 * The factors a_r s_r of a superblock and the sums of a_r m_r come first.  Then 64 columns at a time stay in registers
 * while the rows' codes are unpacked to bytes, converted and added as F32. */
#if defined(__x86_64__)
#include "backends/kernels_axpy_rows.h"
#include "backends/kernels_weights_avx512.h"

enum { MOST_COLS = 4, UNIT = 64, UNITS = RECORD / UNIT };

INLINE __m512i load256_twice(const void *p) { return _mm512_broadcast_i64x4(_mm256_loadu_si256(p)); }
INLINE __m512i four_numbers(int a, int b, int c, int d) { return _mm512_broadcast_i32x4(_mm_setr_epi32(a, b, c, d)); }
INLINE __m512 unsigned_to_float(__m128i x) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(x)); }

/* ---- scales ------------------------------------------------------------------------------------------------- */

#define HIGH (1 / 16.0f) // high nibbles of Q4_K stay where they are, so they are 16 times as large

/* Q4_K, Q5_K: the packed scales and minima of four superblocks (dw_unpack_scales_mins), each in its own lane, as bytes
 * that take turns. */
INLINE __m512i scales_and_minima(const uint8_t *const *row, int n_rows, size_t at) {
    const __m512i x = _mm512_castsi128_si512(load128(row[0] + at)); // words: d and dmin, a, b, c
    const __m512i xy = _mm512_inserti32x4(x, load128(row[1 < n_rows ? 1 : 0] + at), 1);
    const __m512i xyz = _mm512_inserti32x4(xy, load128(row[2 < n_rows ? 2 : 0] + at), 2);
    const __m512i all = _mm512_inserti32x4(xyz, load128(row[3 < n_rows ? 3 : 0] + at), 3);
    const __m512i acbc = _mm512_shuffle_epi32(all, (_MM_PERM_ENUM)0xed);
    const __m512i aabb = _mm512_shuffle_epi32(all, (_MM_PERM_ENUM)0xa5);
    const __m512i low = _mm512_and_si512(_mm512_srlv_epi32(acbc, four_numbers(0, 0, 0, 4)),
                                         four_numbers(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
    const __m512i high = _mm512_and_si512(_mm512_srli_epi32(aabb, 2), four_numbers(0, 0x30303030, 0, 0x30303030));
    const __m512i turns = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
    return _mm512_shuffle_epi8(_mm512_or_si512(low, high), turns);
}

// A row's factors for one column's a; adds to the rows' offsets.  packed: the row's scales and minima of Q4_K and Q5_K.
INLINE __m512 row_factors(dw_qtype type, const uint8_t *p, const uint8_t *packed, float a, __m512 *offset) {
    const __m512 factor = _mm512_set1_ps(a);
    const __m128i fifteen = _mm_set1_epi8(15);
    __m512 s;
    switch (type) {
    case DW_Q2_K:
        s = _mm512_mul_ps(factor, _mm512_set1_ps(half_at(p + 82)));
        *offset = _mm512_fnmadd_ps(s, unsigned_to_float(_mm_and_si128(_mm_srli_epi16(load128(p), 4), fifteen)), *offset);
        s = _mm512_mul_ps(factor, _mm512_set1_ps(half_at(p + 80)));
        return _mm512_mul_ps(s, unsigned_to_float(_mm_and_si128(load128(p), fifteen)));
    case DW_Q3_K:
        s = _mm512_mul_ps(_mm512_mul_ps(factor, _mm512_set1_ps(half_at(p + 108))), signed_to_float(q3_scales(p)));
        *offset = _mm512_fnmadd_ps(s, _mm512_set1_ps(4), *offset);
        return s;
    case DW_Q6_K:
        s = _mm512_mul_ps(_mm512_mul_ps(factor, _mm512_set1_ps(half_at(p + 208))),
                          signed_to_float(load128(p + 192)));
        *offset = _mm512_fnmadd_ps(s, _mm512_set1_ps(32), *offset);
        return s;
    default: // Q4_K, Q5_K
        s = _mm512_mul_ps(factor, _mm512_cvtph_ps(_mm256_set1_epi32((int)dw_le32(p))));
        if (type == DW_Q4_K)
            s = _mm512_mul_ps(s, _mm512_setr_ps(1, 1, HIGH, 1, 1, 1, HIGH, 1, 1, 1, HIGH, 1, 1, 1, HIGH, 1));
        s = _mm512_mul_ps(s, unsigned_to_float(load128(packed)));
        *offset = _mm512_sub_ps(*offset, s);
        return s;
    }
}

INLINE void make_factors(dw_qtype type, int n_cols, int n_rows, const uint8_t *const *row, size_t at, const float *a,
                         size_t a_stride, k_factors *f) {
    _Alignas(64) uint8_t packed[AXPY_ROWS][16];
    for (int r = 0; r < n_rows && (type == DW_Q4_K || type == DW_Q5_K); r += 4)
        _mm512_store_si512(packed[r], scales_and_minima(row + r, n_rows - r, at));
    for (int c = 0; c < n_cols; c++, a += a_stride) {
        __m512 offset = _mm512_setzero_ps();
        for (int r = 0; r < n_rows; r++)
            _mm512_storeu_ps(f[c].factor[r], row_factors(type, row[r] + at, packed[r], a[r], &offset));
        _mm512_storeu_ps(f[c].offset, offset);
    }
}

/* ---- codes -------------------------------------------------------------------------------------------------- */

// Bits `first` (low half) and `last` (high half) of each byte at p, and those above them, from bit `to` on.
INLINE __m512i turned(const void *p, int first, int last, int to) {
    const int a = (first - to) & 31, b = (last - to) & 31;
    return _mm512_rorv_epi32(load256_twice(p), _mm512_setr_epi32(a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b));
}

INLINE __m512i and_bytes(__m512i x, int mask) { return _mm512_and_si512(x, _mm512_set1_epi8((char)mask)); }

// a | (b & mask)
INLINE __m512i or_masked(__m512i a, __m512i b, int mask) {
    enum { OR_AND = 0xf8 };
    return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi8((char)mask), OR_AND);
}

// Codes of columns 64 j .. 64 j + 63 of the superblock at p.
INLINE __m512i codes_of(dw_qtype type, const uint8_t *p, int j) {
    const int half = j / 2, e = j % 2;
    switch (type) {
    case DW_Q2_K: return and_bytes(turned(p + 16 + 32 * half, 4 * e, 4 * e + 2, 0), 3);
    case DW_Q3_K:
        return or_masked(and_bytes(turned(p + 32 + 32 * half, 4 * e, 4 * e + 2, 0), 3),
                         turned(p, 2 * j, 2 * j + 1, 2), 4);
    case DW_Q5_K:
        return or_masked(and_bytes(turned(p + 48 + 32 * j, 0, 4, 0), 15), turned(p + 16, 2 * j, 2 * j + 1, 4), 16);
    default: { // Q6_K
        const __m512i low = _mm512_srli_epi16(_mm512_loadu_si512(p + 64 * half), (unsigned)(4 * e));
        return or_masked(and_bytes(low, 15), turned(p + 128 + 32 * half, 4 * e, 4 * e + 2, 4), 48);
    }
    }
}

typedef struct unit {
    __m512 v[4]; // codes of 64 columns
} unit;

// Shuffles, conversions and multiply-adds use different ports of a core: low nibbles are looked up, high ones converted.
INLINE unit q4_unit(const uint8_t *p) {
    const __m512 number = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i high = _mm512_set1_epi32(0xf0);
    const __m512i x = _mm512_cvtepu8_epi32(load128(p)), y = _mm512_cvtepu8_epi32(load128(p + 16));
    return (unit){{_mm512_permutexvar_ps(x, number), _mm512_permutexvar_ps(y, number),
                   _mm512_cvtepi32_ps(_mm512_and_si512(x, high)), _mm512_cvtepi32_ps(_mm512_and_si512(y, high))}};
}

INLINE unit unit_of_bytes(const uint8_t *code) {
    return (unit){{unsigned_to_float(load128(code)), unsigned_to_float(load128(code + 16)),
                   unsigned_to_float(load128(code + 32)), unsigned_to_float(load128(code + 48))}};
}

/* ---- rows --------------------------------------------------------------------------------------------------- */

// Sums of 64 columns.
typedef struct unit_sums {
    __m512 v[MOST_COLS][4];
} unit_sums;

INLINE unit_sums load_sums(int n_cols, const terms *t, int i) {
    unit_sums s;
    for (int c = 0; c < n_cols; c++)
        for (int k = 0; k < 4; k++) s.v[c][k] = _mm512_loadu_ps(sum_at(t, c, i + 16 * k));
    return s;
}

INLINE void store_sums(int n_cols, const unit_sums *s, const terms *t, int i) {
    for (int c = 0; c < n_cols; c++)
        for (int k = 0; k < 4; k++) _mm512_storeu_ps(sum_at(t, c, i + 16 * k), s->v[c][k]);
}

// Adds a bundle's columns 64 j .. of the superblock at `at` of each row.
INLINE void add_unit(dw_qtype type, int n_cols, int n_rows, const uint8_t *const *row, size_t at, int j,
                     const k_factors *f, unit_sums *s) {
    const int per_scale = has_scale_of_16(type) ? 1 : 2, shift = per_scale - 1; // where the offsets are
    _Alignas(64) uint8_t code[AXPY_ROWS][UNIT];
    for (int r = 0; r < n_rows && type != DW_Q4_K; r++) _mm512_store_si512(code[r], codes_of(type, row[r] + at, j));
    for (int c = 0; c < n_cols; c++)
        for (int k = 0; k < 4; k++) {
            const int piece = (4 * j + k) / per_scale * per_scale;
            s->v[c][k] = _mm512_add_ps(s->v[c][k], _mm512_set1_ps(f[c].offset[piece + shift]));
        }
    for (int r = 0; r < n_rows; r++) {
        const unit u = type == DW_Q4_K ? q4_unit(row[r] + at + 16 + 32 * j) : unit_of_bytes(code[r]);
        for (int c = 0; c < n_cols; c++)
            for (int k = 0; k < 4; k++) {
                const int piece = (4 * j + k) / per_scale * per_scale;
                s->v[c][k] = _mm512_fmadd_ps(u.v[k], _mm512_set1_ps(f[c].factor[r][piece]), s->v[c][k]);
            }
    }
}

INLINE void add_some(dw_qtype type, int n_cols, int n_rows, const terms *t) {
    const int bytes = record_bytes(type), n_tiles = t->n / RECORD;
    for (int tile = 0; tile < n_tiles; tile++) {
        const size_t at = (size_t)(tile * bytes);
        k_factors f[MOST_COLS];
        const ahead next = ahead_of(t->b, tile, n_tiles, bytes);
        make_factors(type, n_cols, n_rows, t->b->row, at, t->a, t->a_stride, f);
        for (int j = 0; j < UNITS; j++) {
            for (int r = j; r < n_rows; r += UNITS) prefetch_row(next, r, bytes);
            unit_sums s = load_sums(n_cols, t, RECORD * tile + UNIT * j);
            add_unit(type, n_cols, n_rows, t->b->row, at, j, f, &s);
            store_sums(n_cols, &s, t, RECORD * tile + UNIT * j);
        }
    }
}

INLINE void add_bundles(dw_qtype type, int n_cols, int n_rows, int n_bundles, const terms *t) {
    const uint8_t *const *row = t->b->row;
    k_factors f[MOST_BUNDLES * MOST_COLS];
    for (int b = 0, r = 0; b < n_bundles; b++, r += n_rows)
        make_factors(type, n_cols, n_rows, row + r, 0, t->a + r, t->a_stride, f + b * n_cols);
    for (int j = 0; j < UNITS; j++) {
        unit_sums s = load_sums(n_cols, t, UNIT * j);
        for (int b = 0; b < n_bundles; b++) add_unit(type, n_cols, n_rows, row + b * n_rows, 0, j, f + b * n_cols, &s);
        store_sums(n_cols, &s, t, UNIT * j);
    }
}

/* ---- rows of each type -------------------------------------------------------------------------------------- */

DEFINE_ADD_ROWS(INLINE, MOST_COLS)
DEFINE_ADD_SHORT_ROWS(INLINE, MOST_COLS)

// Defines dw_axpy_avx512_q2_k, ..: one for each row of the list.
#define DEFINE(type, suffix)                                                                                           \
    TARGET void dw_axpy_avx512_##suffix(const dw_axpy_job *job) {                                                      \
        if (job->n <= SHORT_K)                                                                                         \
            add_short_rows(type, job);                                                                                 \
        else                                                                                                           \
            add_rows(type, job);                                                                                       \
    }
AXPY_K_TYPES(DEFINE)
#endif
