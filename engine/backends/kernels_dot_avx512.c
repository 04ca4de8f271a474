/* kernels_dot_avx512.c - dot rows with AVX-512 VNNI.
 *
 * kernels_weights_avx512.h says how a type becomes unsigned bytes and what its scales and offsets are.  Everything else
 * is one template, add_record: multiply bytes, convert, scale, add. */
#if defined(__x86_64__)
#include "backends/kernels_weights_avx512.h"

#include <string.h>

/* ---- the template -------------------------------------------------------------------------------------- */

INLINE __m512 scaled(__m512i dots, __m512 scale, __m512i pick, __m512 sum) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), _mm512_permutexvar_ps(pick, scale), sum);
}

INLINE __m512i dot_bytes(__m512i sum, __m512i u, const int8_t *q) {
    return _mm512_dpbusd_epi32(sum, u, _mm512_load_si512(q));
}

// Adds the record's n_blocks blocks at p times each column: to sum[c], and to off[c] for add_off.
INLINE void add_record(dw_qtype type, const uint8_t *p, int n_blocks, const record *x, size_t act_stride, int n_cols,
                       __m512 *sum, __m512 *off) {
    const half_record u[2] = {unpack_half(type, p, 0, n_blocks), unpack_half(type, p, 1, n_blocks)};
    const __m512i zero = _mm512_setzero_si512();
    if (has_scale_of_16(type)) {
        const scales s = scales_16(type, p);
        const __m512i even_twice = _mm512_setr_epi32(0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14);
        for (int c = 0; c < n_cols; c++) {
            const record *r = (const record *)((const uint8_t *)x + (size_t)c * act_stride);
            const __m512 scale = _mm512_mul_ps(s.d, _mm512_permutexvar_ps(even_twice, _mm512_load_ps(r->block)));
            off[c] = _mm512_fnmadd_ps(s.m, _mm512_load_ps(r->sum16), off[c]); // two sums: half the latency
            for (int h = 0; h < 2; h++) {
                const __m512i pick = lane_numbers(8 * h, 8 * h + 4, 8 * h + 2, 8 * h + 6);
                const __m512i pick_last = lane_numbers(8 * h + 1, 8 * h + 5, 8 * h + 3, 8 * h + 7);
                sum[c] = scaled(dot_bytes(zero, u[h].first, r->q + 128 * h), scale, pick, sum[c]);
                off[c] = scaled(dot_bytes(zero, u[h].last, r->q + 128 * h + 64), scale, pick_last, off[c]);
            }
        }
        return;
    }
    const __m512 both = scales_32(type, p, n_blocks);
    for (int c = 0; c < n_cols; c++) {
        const record *r = (const record *)((const uint8_t *)x + (size_t)c * act_stride);
        const __m512 scale = _mm512_mul_ps(both, _mm512_load_ps(r->block)); // even: scales; odd: sums
        off[c] = _mm512_add_ps(off[c], scale);
        for (int h = 0; h < 2; h++) {
            const __m512i pick = lane_numbers(8 * h, 8 * h + 4, 8 * h + 2, 8 * h + 6);
            const __m512i dots = dot_bytes(zero, u[h].first, r->q + 128 * h);
            sum[c] = scaled(dot_bytes(dots, u[h].last, r->q + 128 * h + 64), scale, pick, sum[c]);
        }
    }
}

INLINE __m512 add_off(dw_qtype type, __m512 sum, __m512 off) {
    if (has_scale_of_16(type)) return _mm512_add_ps(sum, off);
    return _mm512_fnmadd_ps(off, two_numbers(0, offset_32(type)), sum); // odd lanes of off are scaled sums
}

/* ---- F32, F16, BF16 ------------------------------------------------------------------------------------ */

INLINE __m512 load_values(dw_qtype type, const uint8_t *p) {
    switch (type) {
    case DW_F32: return _mm512_loadu_ps(p);
    case DW_F16: return _mm512_cvtph_ps(load256(p));
    default: return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load256(p)), 16));
    }
}

INLINE __m512 load_some_values(dw_qtype type, const uint8_t *p, __mmask16 some) {
    switch (type) {
    case DW_F32: return _mm512_maskz_loadu_ps(some, p);
    case DW_F16: return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, p));
    default:
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, p)), 16));
    }
}

INLINE __m512 column_values(const uint8_t *act, size_t act_stride, int c, int i) {
    return _mm512_load_ps((const float *)(act + (size_t)c * act_stride) + i);
}

/* One row times n_cols <= 4 columns, or several times one; one or four sums for each, of values 16k.. for k = 0 1 2 3 modulo
 * n_sums. */
INLINE void rows_float(dw_qtype type, int n_sums, int n_rows, size_t row_bytes, int n_cols, const uint8_t *w,
                       beyond next, int n, const uint8_t *act, size_t act_stride, float *y, size_t y_stride) {
    const int bytes = value_bytes(type);
    __m512 sum[STREAMS][4][4];
    for (int r = 0; r < n_rows; r++)
        for (int j = 0; j < 4 * n_cols; j++) sum[r][j / 4][j % 4] = _mm512_setzero_ps();
    int i = 0;
    for (; i + 64 <= n; i += 64, w += 64 * bytes)
#pragma GCC unroll 3
        for (int r = 0; r < n_rows; r++) {
            const uint8_t *from = w + (size_t)r * row_bytes;
            prefetch(from, next, 64 * bytes, (n - i) * bytes, skipped(n_rows, row_bytes));
            for (int k = 0; k < 4; k++) {
                const __m512 v = load_values(type, from + 16 * k * bytes);
                for (int c = 0; c < n_cols; c++) {
                    __m512 *s = &sum[r][c][k % n_sums];
                    *s = _mm512_fmadd_ps(v, column_values(act, act_stride, c, i + 16 * k), *s);
                }
            }
        }
    for (int k = 0; k < 4; k++, i += 16, w += 16 * bytes) {
        if (i >= n) break;
        const __mmask16 some = n - i >= 16 ? 0xffff : (__mmask16)((1 << (n - i)) - 1);
        for (int r = 0; r < n_rows; r++) {
            const __m512 v = load_some_values(type, w + (size_t)r * row_bytes, some);
            for (int c = 0; c < n_cols; c++) {
                __m512 *s = &sum[r][c][k % n_sums];
                *s = _mm512_fmadd_ps(v, column_values(act, act_stride, c, i), *s);
            }
        }
    }
    for (int r = 0; r < n_rows; r++)
        for (int c = 0; c < n_cols; c++) {
            const __m512 *s = sum[r][c];
            y[(size_t)(r + c) * y_stride] =
                sum_of(_mm512_add_ps(_mm512_add_ps(s[0], s[2]), _mm512_add_ps(s[1], s[3])));
        }
}

enum { FEW_SUMS = 1 }; // of long rows on AMD (kernels_dot.h)

/* ---- rows of each type --------------------------------------------------------------------------------- */

typedef record act_record;
#include "backends/kernels_dot_rows.inc"

// Defines dw_dot_avx512_q4_0, dw_dot_avx512_q8_0, .., dw_dot_avx512_f16, ..: one for each row of the two lists.
#define DEFINE(type, suffix)                                                                                           \
    TARGET void dw_dot_avx512_##suffix(const dw_dot_job *job) { all_rows(type, job); }
INT8_TYPES_BUT_Q2_K(DEFINE)
FLOAT_TYPES(DEFINE)

/* ---- packing ------------------------------------------------------------------------------------------- */

INLINE uint32_t largest_bits(__m512 a, __m512 b) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    return _mm512_reduce_max_epu32(_mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(a), magnitude),
                                                    _mm512_and_si512(_mm512_castps_si512(b), magnitude)));
}

INLINE __m512i rounded(__m512 x, float inverse) {
    return _mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(inverse)));
}

// Writes rint(x * inverse) of 16 values and returns their sum.
INLINE int pack_piece(__m512 x, float inverse, int8_t *q) {
    const __m512i numbers = rounded(x, inverse);
    _mm_store_si128((__m128i *)q, _mm512_cvtepi32_epi8(numbers));
    return _mm512_reduce_add_epi32(numbers);
}

TARGET void dw_act_pack_avx512(const float *x, int n, record *act) {
    for (int i = 0; i < n; i += 32, x += 32) {
        record *r = act + i / RECORD;
        const int block = i % RECORD / 32;
        if (!block) *r = (record){0};
        const __m512 half[2] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
        const act_scale s = scale_of(largest_bits(half[0], half[1]));
        if (s.zero) continue;
        int sum[2] = {0, 0};
        for (int k = 0; k < 2 && s.finite; k++)
            sum[k] = pack_piece(half[k], s.inverse, r->q + piece_place(2 * block + k));
        set_block_sums(r, block, s.scale, sum);
    }
}

TARGET void dw_act_pack_pieces(const float *x, int n, piece_record *act) {
    for (int i = 0; i < n; i += 32, x += 32) {
        piece_record *r = act + i / RECORD;
        const int block = i % RECORD / 32;
        if (!block) *r = (piece_record){0};
        const __m512 half[2] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
        const act_scale s = scale_of(largest_bits(half[0], half[1]));
        r->block[block] = s.scale;
        for (int k = 0; k < 2; k++) {
            const int piece = 2 * block + k;
            _Alignas(16) int8_t q[16];
            r->scale[piece_lane(piece)] = s.scale / (float)(1 << 2 * (block & 3));
            if (!s.finite) continue; // a zero has inverse 0
            r->sum16[piece] = (int16_t)pack_piece(half[k], s.inverse, q);
            for (int c = 0; c < 4; c++) memcpy(r->q + place_in_piece(piece, c), q + 4 * c, 4);
        }
    }
}

// Sums of u * q over quarters first and first + 1.
INLINE __m512i dot_two(const quarters *r, __m512i u, int first) {
    return dot_bytes(dot_bytes(_mm512_setzero_si512(), u, r->q + 64 * first), u, r->q + 64 * first + 64);
}

// Each lane plus its neighbour, the other lane of its block.
INLINE __m512i plus_neighbour(__m512i x) { return _mm512_add_epi32(x, _mm512_shuffle_epi32(x, _MM_PERM_CDAB)); }

TARGET void dw_act_pack_quarters(const float *x, int n, quarters *act) {
    const __mmask16 odd = 0xaaaa;
    for (quarters *r = act; n > 0; n -= RECORD, r++) {
        _Alignas(64) float twice[2 * BLOCKS] = {0};
        memset(r->q, 0, sizeof r->q);
        for (int block = 0; block < BLOCKS && 32 * block < n; block++, x += 32) {
            const __m512 half[2] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
            const act_scale s = scale_of(largest_bits(half[0], half[1]));
            twice[2 * block] = twice[2 * block + 1] = s.scale;
            for (int k = 0; k < 2 && s.finite; k++) { // a zero has inverse 0
                const __m128i q = _mm512_cvtepi32_epi8(rounded(half[k], s.inverse));
                _mm_storel_epi64((__m128i *)(r->q + 128 * k + 8 * block), q);
                _mm_storeh_pd((double *)(r->q + 128 * k + 64 + 8 * block), _mm_castsi128_pd(q));
            }
        }
        const __m512 scale = _mm512_load_ps(twice);
        const __m512i one = _mm512_set1_epi8(1), lanes[2] = {dot_two(r, one, 0), dot_two(r, one, 2)};
        const __m512i first = plus_neighbour(lanes[0]), last = plus_neighbour(lanes[1]); // 16 values
        const __m512 block_sum = _mm512_cvtepi32_ps(_mm512_add_epi32(first, last));
        _mm512_store_ps(r->block, _mm512_mask_mul_ps(scale, odd, scale, block_sum));
        _mm512_store_ps(r->sum16, _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_mask_mov_epi32(first, odd, last))));
        _mm512_store_si512(r->offset, _mm512_mullo_epi32(_mm512_add_epi32(lanes[0], lanes[1]), _mm512_set1_epi32(-8)));
    }
}
#endif
