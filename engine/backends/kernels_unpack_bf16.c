/* kernels_unpack_bf16.c - weights of four bits straight into tiles of BF16; the numbers are those of the type's decoder,
 * rounded, bit for bit.
 *
 * A code of four bits stands for one of 16 numbers.  Those of two blocks are computed and rounded once, into a table of
 * 32; one permutation of words looks up a block's 32 weights. */
#include "backends/kernels_vec.h"

#if defined(__x86_64__)
#include "backends/kernels_weights_avx512.h"

#undef TARGET
#define TARGET __attribute__((target("avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")))

enum { TILE_BYTES = 1024, ROW_BYTES = 64 };

/* The 16 numbers of an even block, then those of the odd one. */
INLINE __m512i table_of(__m512 even, __m512 odd) { return (__m512i)_mm512_cvtne2ps_pbh(odd, even); }

/* A block's 32 codes, in words whose bits above the third are anything. */
INLINE void look_up(__m512i codes, bool is_odd, __m512i table, uint8_t *to) {
    const __m512i fifteen = _mm512_set1_epi16(15), block = _mm512_set1_epi16(is_odd ? 16 : 0);
    enum { AND_OR = 0xea }; // a & b | c
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_ternarylogic_epi32(codes, fifteen, block, AND_OR), table));
}

/* A block of 32: the low nibbles of 16 bytes, then the high ones. */
INLINE __m512i nibbles_of(const uint8_t *p) {
    const __m512i words = _mm512_set_epi8(-1, 15, -1, 14, -1, 13, -1, 12, -1, 11, -1, 10, -1, 9, -1, 8,
                                          -1, 7, -1, 6, -1, 5, -1, 4, -1, 3, -1, 2, -1, 1, -1, 0,
                                          -1, 15, -1, 14, -1, 13, -1, 12, -1, 11, -1, 10, -1, 9, -1, 8,
                                          -1, 7, -1, 6, -1, 5, -1, 4, -1, 3, -1, 2, -1, 1, -1, 0);
    const __m512i shift = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1);
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm512_srlv_epi16(_mm512_shuffle_epi8(bytes, words), shift);
}

INLINE __m512 numbers(void) { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

/* A block's 16 numbers: d value + m. */
INLINE __m512 numbers_of(bool has_m, const float scale[2], __m512 value) {
    const __m512 v = _mm512_mul_ps(_mm512_set1_ps(scale[0]), value);
    return has_m ? _mm512_add_ps(v, _mm512_set1_ps(scale[1])) : v;
}

INLINE void put_blocks(dw_qtype type, const uint8_t *w, int n_blocks, __m512 value, uint8_t *to) {
    const int bytes = record_bytes(type) / BLOCKS, nibbles = bytes - 16;
    const bool has_m = has_minimum(type);
    float scale[BLOCKS][2];
    _mm512_storeu_ps(scale, block_scales(type, w, n_blocks));
    __asm__("" : "+m"(scale)); // read from memory: gcc would permute a register, which takes three times as many steps
#pragma GCC unroll 4
    for (int i = 0; i < n_blocks; i += 2, w += 2 * bytes, to += 2 * TILE_BYTES) {
        const __m512i table = table_of(numbers_of(has_m, scale[i], value), numbers_of(has_m, scale[i + 1], value));
        look_up(nibbles_of(w + nibbles), false, table, to);
        if (i + 1 < n_blocks) look_up(nibbles_of(w + bytes + nibbles), true, table, to + TILE_BYTES);
    }
}

/* Whole chunks have a loop of their own. */
INLINE void unpack(dw_qtype type, const uint8_t *w, int n_blocks, __m512 value, uint8_t *to) {
    if (n_blocks == BLOCKS) put_blocks(type, w, BLOCKS, value, to);
    else put_blocks(type, w, n_blocks, value, to);
}

TARGET static void unpack_q4_0(const uint8_t *w, int n_steps, int row, uint8_t *tiles) {
    unpack(DW_Q4_0, w, n_steps, _mm512_sub_ps(numbers(), _mm512_set1_ps(8)), tiles + row * ROW_BYTES);
}

TARGET static void unpack_q4_1(const uint8_t *w, int n_steps, int row, uint8_t *tiles) {
    unpack(DW_Q4_1, w, n_steps, numbers(), tiles + row * ROW_BYTES);
}

TARGET static void unpack_iq4_nl(const uint8_t *w, int n_steps, int row, uint8_t *tiles) {
    static const float values[16] = {DW_IQ4_NL_VALUES};
    unpack(DW_IQ4_NL, w, n_steps, _mm512_loadu_ps(values), tiles + row * ROW_BYTES);
}

INLINE __m256 eight_bytes(uint64_t x) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)x)));
}

INLINE __m512 numbers_of_q4_k(float d, float m) {
    return _mm512_sub_ps(_mm512_mul_ps(_mm512_set1_ps(d), numbers()), _mm512_set1_ps(m));
}

/* Two blocks share 32 bytes of nibbles. */
TARGET static void unpack_q4_k(const uint8_t *w, int n_steps, int row, uint8_t *tiles) {
    uint64_t scale, min;
    float d[BLOCKS], m[BLOCKS];
    (void)n_steps;
    dw_unpack_scales_mins(w + 4, &scale, &min);
    const __m128 heads = _mm_cvtph_ps(_mm_cvtsi32_si128((int)dw_le32(w)));
    _mm256_storeu_ps(d, _mm256_mul_ps(_mm256_broadcastss_ps(heads), eight_bytes(scale)));
    _mm256_storeu_ps(m, _mm256_mul_ps(_mm256_broadcastss_ps(_mm_movehdup_ps(heads)), eight_bytes(min)));
    uint8_t *to = tiles + row * ROW_BYTES;
    w += 16;
#pragma GCC unroll 4
    for (int i = 0; i < BLOCKS; i += 2, w += 32, to += 2 * TILE_BYTES) {
        const __m512i codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)w));
        const __m512i table = table_of(numbers_of_q4_k(d[i], m[i]), numbers_of_q4_k(d[i + 1], m[i + 1]));
        look_up(codes, false, table, to);
        look_up(_mm512_srli_epi16(codes, 4), true, table, to + TILE_BYTES);
    }
}

dw_unpack_tiles_fn *const dw_unpack_tiles[DW_QTYPE_END] = {
    [DW_Q4_0] = unpack_q4_0,
    [DW_Q4_1] = unpack_q4_1,
    [DW_IQ4_NL] = unpack_iq4_nl,
    [DW_Q4_K] = unpack_q4_k,
};

#else // no AVX-512 on this machine

dw_unpack_tiles_fn *const dw_unpack_tiles[DW_QTYPE_END] = {NULL};

#endif
