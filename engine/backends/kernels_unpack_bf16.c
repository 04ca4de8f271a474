/* kernels_unpack_bf16.c - weights of 16 and of four bits straight into tiles of BF16, those of four bits also while a
 * chunk of few tokens is multiplied.  The numbers are those of the type's decoder, rounded, bit for bit.  BF16 is copied:
 * products take its subnormals as zeros.
 *
 * A code of four bits stands for one of 16 numbers.  Those of two blocks are computed and rounded once, into a table of
 * 32; one permutation of words looks up a block's 32 weights.
 *
 * What limits it: results/kernels.md. */
#include "backends/kernels_tiles.h"

#if defined(__x86_64__)
#include "backends/kernels_weights_avx512.h"

#undef TARGET
#undef INLINE
#define TARGET TILE_TARGET
#define INLINE TILE_INLINE

enum { ROW_BYTES = TILE_ROW_BYTES };

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

INLINE __m256 eight_bytes(uint64_t x) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)x)));
}

INLINE __m512 numbers_of_q4_k(float d, float m) {
    return _mm512_sub_ps(_mm512_mul_ps(_mm512_set1_ps(d), numbers()), _mm512_set1_ps(m));
}

/* Two blocks share 32 bytes of nibbles. */
INLINE void put_superblock(const uint8_t *w, uint8_t *to) {
    uint64_t scale, min;
    float d[BLOCKS], m[BLOCKS];
    dw_unpack_scales_mins(w + 4, &scale, &min);
    const __m128 heads = _mm_cvtph_ps(_mm_cvtsi32_si128((int)dw_le32(w)));
    _mm256_storeu_ps(d, _mm256_mul_ps(_mm256_broadcastss_ps(heads), eight_bytes(scale)));
    _mm256_storeu_ps(m, _mm256_mul_ps(_mm256_broadcastss_ps(_mm_movehdup_ps(heads)), eight_bytes(min)));
    __asm__("" : "+m"(d), "+m"(m)); // read from memory, as above: 16 tokens 31 ns instead of 35
    w += 16;
#pragma GCC unroll 4
    for (int i = 0; i < BLOCKS; i += 2, w += 32, to += 2 * TILE_BYTES) {
        const __m512i codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)w));
        const __m512i table = table_of(numbers_of_q4_k(d[i], m[i]), numbers_of_q4_k(d[i + 1], m[i + 1]));
        look_up(codes, false, table, to);
        look_up(_mm512_srli_epi16(codes, 4), true, table, to + TILE_BYTES);
    }
}

/* The numbers that the codes of a type stand for, but for d and m. */
INLINE __m512 values_of(dw_qtype type) {
    static const float values[16] = {DW_IQ4_NL_VALUES};
    return type == DW_IQ4_NL ? _mm512_loadu_ps(values)
           : type == DW_Q4_0 ? _mm512_sub_ps(numbers(), _mm512_set1_ps(8))
                             : numbers();
}

INLINE void put_row(dw_qtype type, const uint8_t *w, int n_blocks, uint8_t *to) {
    if (type == DW_Q4_K) put_superblock(w, to);
    else put_blocks(type, w, n_blocks, values_of(type), to);
}

/* Whole chunks have a loop of their own. */
INLINE void unpack(dw_qtype type, const uint8_t *const *row, size_t offset, int n_rows, int n_blocks, uint8_t *tiles) {
    for (int r = 0; r < n_rows; r++, tiles += ROW_BYTES)
        if (n_blocks == BLOCKS) put_row(type, row[r] + offset, BLOCKS, tiles);
        else put_row(type, row[r] + offset, n_blocks, tiles);
}

/* Row r of a whole chunk. */
INLINE void put_next(dw_qtype type, const dw_amx_next *n, int r) {
    const uint8_t *ahead = n->ahead[r] + n->ahead_offset;
    for (int i = 0; i < record_bytes(type); i += 64) _mm_prefetch((const char *)ahead + i, _MM_HINT_T1);
    put_row(type, n->row[r] + n->offset, BLOCKS,
            n->panel + r / DW_TILE * BLOCKS * TILE_BYTES + r % DW_TILE * ROW_BYTES);
}

/* A step and some rows by turns, so that the products of a step run while rows are unpacked. */
INLINE void multiply_and_unpack(dw_qtype type, int n_row_tiles, bool two, const dw_amx_few *f, const dw_amx_next *n) {
    const int n_each = (n->n_rows + f->n_steps - 1) / f->n_steps;
    for (int s = 0, r = 0; s < f->n_steps; s++) {
        few_step(DW_GEMM_ROUNDED, n_row_tiles, two, f, s);
        for (int i = 0; i < n_each && r < n->n_rows; i++, r++) put_next(type, n, r);
    }
}

INLINE void few(dw_qtype type, const dw_amx_few *f, const dw_amx_next *n) {
    TILES_READ_MEMORY();
    if (f->n_row_tiles == 1) multiply_and_unpack(type, 1, true, f, n);
    else if (f->n_token_tiles > 1) multiply_and_unpack(type, 2, true, f, n);
    else multiply_and_unpack(type, 2, false, f, n);
}

/* ---- 16 bits ------------------------------------------------------------------------------------------------ */

INLINE __m512i halves_as_bf16(__m512i halves) {
    const __m256i low = _mm512_castsi512_si256(halves), high = _mm512_extracti64x4_epi64(halves, 1);
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_cvtph_ps(high), _mm512_cvtph_ps(low));
}

INLINE void unpack_words(dw_qtype type, const uint8_t *const *row, size_t offset, int n_rows, int n_steps,
                         uint8_t *tiles) {
    for (int r = 0; r < n_rows; r++, tiles += ROW_BYTES)
        for (int i = 0; i < n_steps; i++) {
            const __m512i words = _mm512_loadu_si512(row[r] + offset + i * ROW_BYTES);
            _mm512_storeu_si512(tiles + i * TILE_BYTES, type == DW_F16 ? halves_as_bf16(words) : words);
        }
}

#define WORD_TYPES(X) X(DW_F16, f16) X(DW_BF16, bf16)
#define DEFINE_WORDS(type, suffix)                                                                                     \
    TARGET static void unpack_##suffix(const uint8_t *const *row, size_t offset, int n_rows, int n_steps,              \
                                       uint8_t *tiles) {                                                               \
        unpack_words(type, row, offset, n_rows, n_steps, tiles);                                                       \
    }
WORD_TYPES(DEFINE_WORDS)

/* ---- tables ------------------------------------------------------------------------------------------------- */

#define BF16_TYPES(X) X(DW_Q4_0, q4_0) X(DW_Q4_1, q4_1) X(DW_IQ4_NL, iq4_nl) X(DW_Q4_K, q4_k)
#define DEFINE(type, suffix)                                                                                           \
    TARGET static void unpack_##suffix(const uint8_t *const *row, size_t offset, int n_rows, int n_steps,              \
                                       uint8_t *tiles) {                                                               \
        unpack(type, row, offset, n_rows, n_steps, tiles);                                                             \
    }                                                                                                                  \
    TARGET static void few_##suffix(const dw_amx_few *f, const dw_amx_next *n) { few(type, f, n); }
BF16_TYPES(DEFINE)

#define UNPACK(type, suffix) [type] = unpack_##suffix,
#define FEW(type, suffix) [type] = few_##suffix,
dw_unpack_tiles_fn *const dw_unpack_tiles[DW_QTYPE_END] = {BF16_TYPES(UNPACK) WORD_TYPES(UNPACK)};
dw_amx_few_fn *const dw_amx_few_of[DW_QTYPE_END] = {BF16_TYPES(FEW)};

#else // no AVX-512 on this machine

dw_unpack_tiles_fn *const dw_unpack_tiles[DW_QTYPE_END] = {NULL};
dw_amx_few_fn *const dw_amx_few_of[DW_QTYPE_END] = {NULL};

#endif
