/* kernels_dot_vbmi.c - dot rows with AVX-512 VNNI and VBMI, for blocks of 4 and 5 bits, Q3_K, Q4_K and Q5_K.
 *
 * In each vector of weights and activations two lanes of 32 bits belong to a block (DW_ACT_INT8_QUARTERS).  So the
 * products of 256 weights are one chain, or two with a scale for 16, and meet their scales without another permutation.
 *   - Blocks of 18 bytes: a permutation of bytes takes 8 bytes of four blocks from one load, and two make eight blocks.
 *     The chain begins with the offset.
 *   - Blocks of 20 and 22 bytes: a permutation of the first 128 bytes and a masked one of the last 64 take the same 8
 *     bytes of all.  Blocks of 24 bytes are three words of 64 bits.
 *   - Fifth bits: a VPMULTISHIFTQB for each quarter puts a block's into its bytes.
 *   - Superblocks: a permutation brings 8 bytes to each block; the block's bits stay where they are in their bytes.
 *     Sums are then too large by a power of two, which belongs to the lane and is corrected once a row.
 *   - Scales of 6 bits are cut out of their 12 bytes by two VPMULTISHIFTQB.
 *
 * Q6_K was no faster in this form (results/kernels.md). */
#if defined(__x86_64__)
#define TARGET \
    __attribute__((target("avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi")))
#include "backends/kernels_weights_avx512.h"

typedef quarters act_record;

/* ---- blocks of 32: two vectors of nibbles ------------------------------------------------------------------ */

enum { BLOCK_BYTES = 18, HALF_BYTES = 4 * BLOCK_BYTES };

// The first n_bytes at p, at most 64, then zeros.
INLINE __m512i load_some(const uint8_t *p, int n_bytes) {
    if (n_bytes >= 64) return _mm512_loadu_si512(p);
    return _mm512_maskz_loadu_epi8(n_bytes > 0 ? ~0ull >> (64 - n_bytes) : 0, p);
}

// 8 bytes of each of eight blocks: of four in `low` and four in `high`.
INLINE __m512i eight_of_each(__m512i low, __m512i high) {
    const __m512i first = _mm512_broadcast_i64x4(
        _mm256_setr_epi64x(0x0908070605040302, 0x1b1a191817161514, 0x2d2c2b2a29282726, 0x3f3e3d3c3b3a3938));
    return _mm512_mask_permutexvar_epi8(_mm512_permutexvar_epi8(first, low), 0xffffffff00000000, first, high);
}

// The scales of eight blocks, each in two lanes.
INLINE __m512 twice_scales(__m512i low, __m512i high) {
    const __m512i at = _mm512_broadcast_i32x4(_mm_setr_epi16(0, 0, 9, 9, 18, 18, 27, 27));
    const __m512i twice = _mm512_mask_permutexvar_epi16(_mm512_permutexvar_epi16(at, low), 0xff00, at, high);
    return _mm512_cvtph_ps(_mm512_castsi512_si256(twice));
}

// Unsigned bytes; IQ4_NL's are 128 larger than its values.
INLINE __m512i bytes_of(dw_qtype type, __m512i nibbles) {
    const __m128i values = _mm_add_epi8(_mm_setr_epi8(DW_IQ4_NL_VALUES), _mm_set1_epi8(-128));
    return type != DW_IQ4_NL ? nibbles : _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), nibbles);
}

/* ---- superblocks: scales ----------------------------------------------------------------------------------- */

/* A number of up to 8 bits for each lane of 32 bits, from two places: `order` puts source bytes into each pair of
 * lanes; 8 bits of the pair are taken from bit `low` (high) on, and masked.  Bytes of `low`, `high` and the masks are
 * those of the result. */
INLINE __m512i packed_numbers(const uint8_t *p, __m512i order, __m512i low, __m512i of_low, __m512i high,
                              __m512i of_high) {
    const __m512i bytes = _mm512_permutexvar_epi8(order, _mm512_castsi128_si512(load128(p)));
    const __m512i highs = _mm512_and_si512(_mm512_multishift_epi64_epi8(high, bytes), of_high);
    enum { OR_AND = 0xf8 }; // a | (b & c)
    return _mm512_ternarylogic_epi32(highs, _mm512_multishift_epi64_epi8(low, bytes), of_low, OR_AND);
}

// a for blocks 0 to 3, b for blocks 4 to 7.
INLINE __m512i halves(long long a, long long b) { return _mm512_setr_epi64(a, a, a, a, b, b, b, b); }

// Scales and minima of Q4_K and Q5_K: d, m of each block.
INLINE __m512 scales_and_minima(const uint8_t *p) {
    const __m512i order =
        _mm512_setr_epi64(0x0804, 0x0905, 0x0a06, 0x0b07, 0x08040c0c, 0x09050d0d, 0x0a060e0e, 0x0b070f0f);
    const __m512i low = halves(0x0800000000, 0x0c00000000), of_low = halves(0x3f0000003f, 0x0f0000000f);
    const __m512i high = _mm512_set1_epi64(0x1a00000012), of_high = halves(0, 0x3000000030);
    const __m512i numbers = packed_numbers(p, order, low, of_low, high, of_high);
    return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_broadcastd_epi32(load128(p))), _mm512_cvtepi32_ps(numbers));
}

// The scales of the 16 pieces of Q3_K, without d.  (16 bytes from p + 96 on would end after the superblock.)
INLINE __m512 scales_of_q3_k(const uint8_t *p) {
    const __m512i order = _mm512_broadcast_i64x4(_mm256_setr_epi64x(0x0b030a02, 0x0d050c04, 0x0b070a06, 0x0d090c08));
    const __m512i low = halves(0x1000000000, 0x1400000004), of_low = _mm512_set1_epi64(0x0f0000000f);
    const __m512i high = _mm512_setr_epi64(0x1400000004, 0x1400000004, 0x1600000006, 0x1600000006, 0x1800000008,
                                           0x1800000008, 0x1a0000000a, 0x1a0000000a);
    const __m512i numbers = packed_numbers(p + 94, order, low, of_low, high, _mm512_set1_epi64(0x3000000030));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(numbers, _mm512_set1_epi32(32)));
}

/* ---- a record ---------------------------------------------------------------------------------------------- */

/* Unsigned bytes in the order of q, and `bits`, further bytes with one more bit of each weight.  Both keep the bits
 * where the superblock has them, so block b's are too large by a power of two, and its lanes of a sum are, too; add_off
 * corrects that, once a row. */
typedef struct unpacked {
    __m512i quarter[4], bits[4];
    __m512 d; // scales: of blocks; of pieces of 16; or interleaved d, m of blocks
} unpacked;

INLINE bool has_block_minima(dw_qtype type) {
    return type == DW_Q4_1 || type == DW_Q5_1 || type == DW_Q4_K || type == DW_Q5_K;
}
INLINE bool has_bits(dw_qtype type) { return type == DW_Q3_K || type == DW_Q5_K; }

INLINE __m512 by_block(float b0, float b1, float b2, float b3, float b4, float b5, float b6, float b7) {
    return _mm512_setr_ps(b0, b0, b1, b1, b2, b2, b3, b3, b4, b4, b5, b5, b6, b6, b7, b7);
}

// What corrects a sum of quarters, and one of bits.
INLINE __m512 quarters_in_place(dw_qtype type) {
    if (has_block_minima(type)) return by_block(1, 0x1p-4f, 1, 0x1p-4f, 1, 0x1p-4f, 1, 0x1p-4f);
    return by_block(1, 0x1p-2f, 0x1p-4f, 0x1p-6f, 1, 0x1p-2f, 0x1p-4f, 0x1p-6f);
}

INLINE __m512 bits_in_place(dw_qtype type) {
    const float one = type == DW_Q3_K ? -4 : 16;
    const __m512 place = by_block(1, 0x1p-1f, 0x1p-2f, 0x1p-3f, 0x1p-4f, 0x1p-5f, 0x1p-6f, 0x1p-7f);
    return _mm512_mul_ps(_mm512_set1_ps(one), place);
}

// The same 8 bits in all bytes of a block.
INLINE __m512i block_masks(uint8_t b0, uint8_t b1, uint8_t b2, uint8_t b3, uint8_t b4, uint8_t b5, uint8_t b6,
                           uint8_t b7) {
    const long long all = 0x0101010101010101;
    return _mm512_mullo_epi64(_mm512_setr_epi64(b0, b1, b2, b3, b4, b5, b6, b7), _mm512_set1_epi64(all));
}

// From the first and the last 8 bytes of all blocks.
INLINE void split_nibbles(dw_qtype type, __m512i first, __m512i last, unpacked *u) {
    const __m512i fifteen = _mm512_set1_epi8(15);
    u->quarter[0] = bytes_of(type, _mm512_and_si512(first, fifteen));
    u->quarter[1] = bytes_of(type, _mm512_and_si512(last, fifteen));
    u->quarter[2] = bytes_of(type, _mm512_and_si512(_mm512_srli_epi16(first, 4), fifteen));
    u->quarter[3] = bytes_of(type, _mm512_and_si512(_mm512_srli_epi16(last, 4), fifteen));
}

INLINE void unpack_blocks_of_18(dw_qtype type, const uint8_t *p, int n_blocks, unpacked *u) {
    const int n = n_blocks * BLOCK_BYTES;
    __m512i low = load_some(p, n), high = load_some(p + HALF_BYTES, n - HALF_BYTES);
    in_register(low);
    in_register(high);
    split_nibbles(type, eight_of_each(low, high),
                  eight_of_each(load_some(p + 8, n - 8), load_some(p + HALF_BYTES + 8, n - HALF_BYTES - 8)), u);
    u->d = twice_scales(low, high);
}

INLINE __m512 scales_of_words(__m512i words) { return _mm512_cvtph_ps(_mm512_castsi512_si256(words)); }

/* Eight blocks of 20 or 22 bytes: their first 128 bytes, from which one permutation takes, and their last 64. */
typedef struct window {
    __m512i first, second, last;
} window;

INLINE window load_window(const uint8_t *p, int n_blocks, int block_bytes) {
    const int n = n_blocks * block_bytes, last = BLOCKS * block_bytes - 64;
    window w = {load_some(p, n), load_some(p + 64, n - 64), load_some(p + last, n - last)};
    in_register(w.first);
    in_register(w.second);
    in_register(w.last);
    return w;
}

// True when n bytes of block k, from its byte `at` on, are in `last`, not in the first 128.
INLINE bool is_behind(int k, int block_bytes, int at, int n) { return k * block_bytes + at + n > 128; }
// Their place there.
INLINE int place_in(int k, int block_bytes, int at, int n) {
    return k * block_bytes + at - (is_behind(k, block_bytes, at, n) ? BLOCKS * block_bytes - 64 : 0);
}

INLINE int blocks_before_last(int block_bytes, int at, int n) {
    int k = 0;
    while (k < BLOCKS && !is_behind(k, block_bytes, at, n)) k++;
    return k;
}

INLINE long long eight_places(int k, int block_bytes, int at) {
    return 0x0706050403020100 + 0x0101010101010101 * place_in(k, block_bytes, at, 8);
}

// 8 bytes of each block, from byte `at` of the block on.
INLINE __m512i eight_in(window w, int block_bytes, int at) {
    const __m512i from = _mm512_setr_epi64(eight_places(0, block_bytes, at), eight_places(1, block_bytes, at),
                                           eight_places(2, block_bytes, at), eight_places(3, block_bytes, at),
                                           eight_places(4, block_bytes, at), eight_places(5, block_bytes, at),
                                           eight_places(6, block_bytes, at), eight_places(7, block_bytes, at));
    const __mmask64 last = ~0ull << (8 * blocks_before_last(block_bytes, at, 8));
    return _mm512_mask_permutexvar_epi8(_mm512_permutex2var_epi8(w.first, from, w.second), last, from, w.last);
}

INLINE int two_places(int k, int block_bytes, int next) { // of 16 bits
    const int place = place_in(k, block_bytes, 0, 4) / 2;
    return place | (place + next) << 16;
}

// Of each block the first 16 bits, then those `next` words further on (0: the same again), as numbers.
INLINE __m512 scales_in(window w, int block_bytes, int next) {
    const __m512i from = _mm512_castsi256_si512(_mm256_setr_epi32(
        two_places(0, block_bytes, next), two_places(1, block_bytes, next), two_places(2, block_bytes, next),
        two_places(3, block_bytes, next), two_places(4, block_bytes, next), two_places(5, block_bytes, next),
        two_places(6, block_bytes, next), two_places(7, block_bytes, next)));
    const __mmask32 last = ~0u << (2 * blocks_before_last(block_bytes, 0, 4));
    const __m512i x = _mm512_permutex2var_epi16(w.first, from, w.second);
    return scales_of_words(_mm512_mask_permutexvar_epi16(x, last, from, w.last));
}

INLINE void unpack_q4_1(const uint8_t *p, int n_blocks, unpacked *u) {
    enum { BYTES = 20 };
    const window w = load_window(p, n_blocks, BYTES);
    split_nibbles(DW_Q4_1, eight_in(w, BYTES, 4), eight_in(w, BYTES, 12), u);
    u->d = scales_in(w, BYTES, 1);
}

/* Bit `first` + 8 k + i of a block's 64-bit word becomes bit 4 of byte i of its quarter k. */
INLINE void add_bits_of_words(__m512i words, int first, unpacked *u) {
    enum { OR_AND = 0xf8 }; // a | (b & c)
    for (int k = 0; k < 4; k++) {
        const long long at = 0x0706050403020100 + 0x0101010101010101 * (long long)((first + 8 * k + 60) % 64);
        const __m512i bits = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(at), words);
        u->quarter[k] = _mm512_ternarylogic_epi32(u->quarter[k], bits, _mm512_set1_epi8(16), OR_AND);
    }
}

INLINE void unpack_q5_0(const uint8_t *p, int n_blocks, unpacked *u) {
    enum { BYTES = 22 };
    const window w = load_window(p, n_blocks, BYTES);
    split_nibbles(DW_Q5_0, eight_in(w, BYTES, 6), eight_in(w, BYTES, 14), u);
    add_bits_of_words(eight_in(w, BYTES, 2), 0, u);
    u->d = scales_in(w, BYTES, 0);
}

// 64-bit word `at` of each block of three.
INLINE __m512i third_words(const __m512i w[3], int at, __mmask8 in_last) {
    const __m512i from = _mm512_setr_epi64(at, 3 + at, 6 + at, 9 + at, 12 + at, 15 + at, 18 + at, 21 + at);
    return _mm512_mask_permutexvar_epi64(_mm512_permutex2var_epi64(w[0], from, w[1]), in_last, from, w[2]);
}

INLINE void unpack_q5_1(const uint8_t *p, int n_blocks, unpacked *u) {
    const int n = n_blocks * 24;
    __m512i w[3] = {load_some(p, n), load_some(p + 64, n - 64), load_some(p + 128, n - 128)};
    for (int k = 0; k < 3; k++) in_register(w[k]);
    split_nibbles(DW_Q5_1, third_words(w, 1, 0xe0), third_words(w, 2, 0xe0), u);
    const __m512i heads = third_words(w, 0, 0xc0);
    add_bits_of_words(heads, 32, u);
    const __m512i pairs = _mm512_castsi256_si512(
        _mm256_setr_epi16(0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29));
    u->d = scales_of_words(_mm512_permutexvar_epi16(pairs, heads));
}

// 32 bytes for two blocks, in each byte a nibble of both.
INLINE void unpack_nibbles(const uint8_t *p, unpacked *u) {
    const __m512i first = _mm512_loadu_si512(p), second = _mm512_loadu_si512(p + 64);
    const __m512i mask = block_masks(15, 0xf0, 15, 0xf0, 15, 0xf0, 15, 0xf0);
    for (int k = 0; k < 4; k++) {
        const __m512i from = _mm512_setr_epi64(k, k, 4 + k, 4 + k, 8 + k, 8 + k, 12 + k, 12 + k);
        u->quarter[k] = _mm512_and_si512(_mm512_permutex2var_epi64(first, from, second), mask);
    }
}

// 32 bytes for four blocks, in each byte two bits of all.
INLINE void unpack_pairs(const uint8_t *p, unpacked *u) {
    const __m512i mask = block_masks(3, 12, 48, 192, 3, 12, 48, 192);
    __m512i x = _mm512_loadu_si512(p);
    in_register(x);
    u->quarter[0] = _mm512_and_si512(_mm512_permutex_epi64(x, 0x00), mask);
    u->quarter[1] = _mm512_and_si512(_mm512_permutex_epi64(x, 0x55), mask);
    u->quarter[2] = _mm512_and_si512(_mm512_permutex_epi64(x, 0xaa), mask);
    u->quarter[3] = _mm512_and_si512(_mm512_permutex_epi64(x, 0xff), mask);
}

// 32 bytes for eight blocks, in each byte a bit of all; or those that are not set.
INLINE void unpack_bits(const uint8_t *p, bool set, unpacked *u) {
    const __m512i mask = block_masks(1, 2, 4, 8, 16, 32, 64, 128);
    for (int k = 0; k < 4; k++) {
        const __m512i x = _mm512_set1_epi64((long long)dw_le64(p + 8 * k));
        u->bits[k] = set ? _mm512_and_si512(x, mask) : _mm512_andnot_si512(x, mask);
    }
}

INLINE void unpack_record(dw_qtype type, const uint8_t *p, int n_blocks, unpacked *u) {
    switch (type) {
    case DW_Q4_K:
    case DW_Q5_K:
        unpack_nibbles(p + (has_bits(type) ? 48 : 16), u);
        if (has_bits(type)) unpack_bits(p + 16, true, u);
        u->d = scales_and_minima(p);
        return;
    case DW_Q3_K:
        unpack_pairs(p + 32, u);
        unpack_bits(p, false, u); // without a bit, a weight is smaller by 4
        u->d = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_set1_epi16((short)dw_le16(p + 108))), scales_of_q3_k(p));
        return;
    case DW_Q4_1: unpack_q4_1(p, n_blocks, u); return;
    case DW_Q5_0: unpack_q5_0(p, n_blocks, u); return;
    case DW_Q5_1: unpack_q5_1(p, n_blocks, u); return;
    default: unpack_blocks_of_18(type, p, n_blocks, u);
    }
}

/* Adds scale * (start + products with quarters first .. end - 1) to sum, scale * (products with their bits) to off. */
INLINE void add_dots(dw_qtype type, const unpacked *u, const quarters *r, __m512i start, int first, int end,
                     __m512 scale, __m512 *sum, __m512 *off) {
    __m512i bits = _mm512_setzero_si512();
    for (int k = first; k < end; k++) {
        __m512i q = _mm512_load_si512(r->q + 64 * k);
        if (has_bits(type)) in_register(q);
        start = _mm512_dpbusd_epi32(start, u->quarter[k], q);
        if (has_bits(type)) bits = _mm512_dpbusd_epi32(bits, u->bits[k], q);
    }
    *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(start), scale, *sum);
    if (has_bits(type)) *off = _mm512_fmadd_ps(_mm512_cvtepi32_ps(bits), scale, *off);
}

// off[c] takes sums of bits; sum[c] all else.
INLINE void add_record(dw_qtype type, const uint8_t *p, int n_blocks, const quarters *x, size_t act_stride, int n_cols,
                       __m512 *sum, __m512 *off) {
    const __m512 minimum = _mm512_broadcast_f32x4( // of superblocks it is subtracted, and too large as the quarters are
        is_superblock(type) ? _mm_setr_ps(0, -1, 0, -16) : _mm_setr_ps(0, 1, 0, 1));
    const __m512i zero = _mm512_setzero_si512();
    unpacked u;
    unpack_record(type, p, n_blocks, &u);
    for (int c = 0; c < n_cols; c++) {
        const quarters *r = (const quarters *)column_at((const uint8_t *)x, act_stride, c);
        const __m512 blocks = _mm512_load_ps(r->block); // even lanes: scales; odd: sums
        if (has_block_minima(type)) {
            const __m512 both = _mm512_mul_ps(u.d, blocks);
            sum[c] = _mm512_fmadd_ps(both, minimum, sum[c]);
            add_dots(type, &u, r, zero, 0, 4, _mm512_moveldup_ps(both), &sum[c], &off[c]);
            continue;
        }
        const __m512 scale = _mm512_mul_ps(u.d, _mm512_moveldup_ps(blocks));
        if (has_scale_of_16(type)) {
            add_dots(type, &u, r, zero, 0, 2, _mm512_moveldup_ps(scale), &sum[c], &off[c]);
            add_dots(type, &u, r, zero, 2, 4, _mm512_movehdup_ps(scale), &sum[c], &off[c]);
            continue;
        }
        __m512i offset = _mm512_load_si512(r->offset);
        if (type == DW_IQ4_NL) offset = _mm512_slli_epi32(offset, 4); // 128 instead of 8
        if (type == DW_Q5_0) offset = _mm512_slli_epi32(offset, 1);   // 16
        add_dots(type, &u, r, offset, 0, 4, scale, &sum[c], &off[c]);
    }
}

/* Before, sums of superblocks are up to 128 times too large, so they overflow where the result is near 1e36. */
INLINE __m512 add_off(dw_qtype type, __m512 sum, __m512 off) {
    if (!is_superblock(type)) return sum;
    sum = _mm512_mul_ps(sum, quarters_in_place(type));
    return has_bits(type) ? _mm512_fmadd_ps(off, bits_in_place(type), sum) : sum;
}

#define NO_FLOAT_ROWS
#include "backends/kernels_dot_rows.inc"

// Defines dw_dot_vbmi_q4_0, ..: one for each row of the list.
#define DEFINE(type, suffix) \
    TARGET void dw_dot_vbmi_##suffix(const dw_dot_job *job) { all_rows(type, job); }
VBMI_TYPES(DEFINE)
#endif
