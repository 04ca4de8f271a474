/* kernels_dot_q2_k.c - dot rows of Q2_K with AVX-512 VNNI.
 *
 * A superblock's 256 weights of two bits are 64 bytes.  Each of their 16 lanes of 32 bits has four weights of each of
 * four pieces of 16, in bits 0, 2, 4 and 6 of its bytes.  In step k = 0 .. 3, lane c of a group of four multiplies
 * those in bits 2t, t = (c - k) mod 4, and the sums move one lane on between steps.  So each lane ends with a piece's
 * whole sum, and one multiplication of integers gives all 16 their scales:
 *
 *     w . x = d sum over pieces p (s_p scale_p dots_p) - dmin sum over pieces p (m_p scale_p sum_p)
 *
 * Activations are in the order of the steps (DW_ACT_INT8_PIECES).  The bits stay where they are in their bytes; what
 * makes the sums too large, 4^t, is in the activations' scales.
 *
 * On Zen 4 other orders were slower (results/kernels.md). */
#if defined(__x86_64__)
#include "backends/kernels_weights_avx512.h"

typedef piece_record act_record;

// Two bits of each byte: in lane c of each group of four from bit 2 ((c - step) mod 4) on.
INLINE __m512i mask_of(int step) {
    int of_lane[4];
    for (int c = 0; c < 4; c++) of_lane[c] = (int)(0x03030303u << 2 * ((c - step) & 3));
    return _mm512_broadcast_i32x4(_mm_setr_epi32(of_lane[0], of_lane[1], of_lane[2], of_lane[3]));
}

// The sums of u . q for the 16 pieces, in the order of piece_lane.
INLINE __m512i dots_of(__m512i pairs, const piece_record *r) {
    __m512i sum = _mm512_setzero_si512();
    for (int step = 0; step < 4; step++) {
        if (step) sum = _mm512_shuffle_epi32(sum, _MM_PERM_CBAD); // lane c to lane c + 1
        sum = _mm512_dpbusd_epi32(sum, _mm512_and_si512(pairs, mask_of(step)), _mm512_load_si512(r->q + 64 * step));
    }
    return sum;
}

INLINE void add_record(dw_qtype type, const uint8_t *p, int n_blocks, const piece_record *x, size_t act_stride,
                       int n_cols, __m512 *sum, __m512 *off) {
    (void)type, (void)n_blocks;
    // order: the piece of each lane (piece_lane)
    const __m128i order = _mm_setr_epi8(2, 4, 6, 0, 3, 5, 7, 1, 10, 12, 14, 8, 11, 13, 15, 9),
                  fifteen = _mm_set1_epi8(15);
    __m512i pairs = _mm512_loadu_si512(p + 16);
    in_register(pairs);
    const __m128i both = load128(p); // of each piece: scale, minimum
    const __m512i scale = _mm512_cvtepu8_epi32(_mm_shuffle_epi8(_mm_and_si128(both, fifteen), order));
    const __m256i minimum = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(both, 4), fifteen));
    const __m128 d = _mm_cvtph_ps(_mm_loadu_si32(p + 80)); // d, dmin
    for (int c = 0; c < n_cols; c++) {
        const piece_record *r = (const piece_record *)column_at((const uint8_t *)x, act_stride, c);
        const __m512 dots = _mm512_cvtepi32_ps(_mm512_mullo_epi32(dots_of(pairs, r), scale));
        sum[c] = _mm512_fmadd_ps(dots, _mm512_mul_ps(_mm512_broadcastss_ps(d), _mm512_load_ps(r->scale)), sum[c]);
        const __m256 sums = _mm256_cvtepi32_ps(_mm256_madd_epi16(minimum, _mm256_load_si256((const void *)r->sum16)));
        const __m256 dmin = _mm256_mul_ps(_mm256_broadcastss_ps(_mm_movehdup_ps(d)), _mm256_load_ps(r->block));
        off[c] = _mm512_zextps256_ps512(_mm256_fmadd_ps(sums, dmin, _mm512_castps512_ps256(off[c])));
    }
}

INLINE __m512 add_off(dw_qtype type, __m512 sum, __m512 off) { return (void)type, _mm512_sub_ps(sum, off); }

#define NO_FLOAT_ROWS
#include "backends/kernels_dot_rows.inc"

TARGET void dw_dot_avx512_q2_k(const dw_dot_job *job) { all_rows(DW_Q2_K, job); }
#endif
