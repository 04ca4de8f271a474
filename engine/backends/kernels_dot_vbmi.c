/* kernels_dot_vbmi.c - dot rows with AVX-512 VNNI and VBMI, for blocks of 32 nibbles with one scale (18 bytes).
 *
 * A permutation of bytes takes 8 bytes of four blocks from one load.  So eight blocks are two vectors, whose lanes of 32
 * bits belong to half a block each (DW_ACT_INT8_QUARTERS); their products are one chain, which begins with the offset and
 * ends at the scales without another permutation.  A record of Q4_0 takes 21 vector operations instead of 29. */
#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi")))
#include "backends/kernels_weights_avx512.h"

enum { BLOCK_BYTES = 18, HALF_BYTES = 4 * BLOCK_BYTES };

// The first n_bytes at p, at most 64, then zeros.
INLINE __m512i load_some(const uint8_t *p, int n_bytes) {
    if (n_bytes >= 64) return _mm512_loadu_si512(p);
    return _mm512_maskz_loadu_epi8(n_bytes > 0 ? ~0ull >> (64 - n_bytes) : 0, p);
}

// 8 bytes at `from` of each of eight blocks: of four in `low` and four in `high`.
INLINE __m512i eight_of_each(__m512i low, __m512i high) {
    const __m512i first = _mm512_setr_epi64(0x0908070605040302, 0x1b1a191817161514, 0x2d2c2b2a29282726, 0x3f3e3d3c3b3a3938,
                                            0x0908070605040302, 0x1b1a191817161514, 0x2d2c2b2a29282726, 0x3f3e3d3c3b3a3938);
    return _mm512_mask_permutexvar_epi8(_mm512_permutexvar_epi8(first, low), 0xffffffff00000000, first, high);
}

// The scales of eight blocks, each in two lanes.
INLINE __m512 twice_scales(__m512i low, __m512i high) {
    const __m512i at = _mm512_castsi256_si512(_mm256_setr_epi16(0, 0, 9, 9, 18, 18, 27, 27, 0, 0, 9, 9, 18, 18, 27, 27));
    const __m512i halves = _mm512_mask_permutexvar_epi16(_mm512_permutexvar_epi16(at, low), 0xff00, at, high);
    return _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
}

// Unsigned bytes; IQ4_NL's are 128 larger than its values.
INLINE __m512i bytes_of(dw_qtype type, __m512i nibbles) {
    const __m128i values = _mm_add_epi8(_mm_setr_epi8(DW_IQ4_NL_VALUES), _mm_set1_epi8(-128));
    return type == DW_Q4_0 ? nibbles : _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), nibbles);
}

INLINE void add_record(dw_qtype type, const uint8_t *p, int n_blocks, const record *x, size_t act_stride, int n_cols,
                       __m512 *sum, __m512 *off) {
    const int n = n_blocks * BLOCK_BYTES;
    __m512i low = load_some(p, n), high = load_some(p + HALF_BYTES, n - HALF_BYTES);
    __asm__("" : "+v"(low), "+v"(high)); // in registers: each is used twice (decode of base 1.03, of mini 1.04)
    const __m512i a = eight_of_each(low, high),
                  b = eight_of_each(load_some(p + 8, n - 8), load_some(p + HALF_BYTES + 8, n - HALF_BYTES - 8));
    const __m512i fifteen = _mm512_set1_epi8(15);
    const __m512i quarter[4] = {bytes_of(type, _mm512_and_si512(a, fifteen)), bytes_of(type, _mm512_and_si512(b, fifteen)),
                                bytes_of(type, _mm512_and_si512(_mm512_srli_epi16(a, 4), fifteen)),
                                bytes_of(type, _mm512_and_si512(_mm512_srli_epi16(b, 4), fifteen))};
    const __m512 d = twice_scales(low, high);
    for (int c = 0; c < n_cols; c++) {
        const record *r = (const record *)((const uint8_t *)x + (size_t)c * act_stride);
        __m512i dots = _mm512_load_si512(r->lane.offset);
        if (type == DW_IQ4_NL) dots = _mm512_slli_epi32(dots, 4); // 128 instead of 8
        for (int k = 0; k < 4; k++) dots = _mm512_dpbusd_epi32(dots, quarter[k], _mm512_load_si512(r->q + 64 * k));
        sum[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), _mm512_mul_ps(d, _mm512_load_ps(r->lane.scale)), sum[c]);
    }
    (void)off;
}

INLINE __m512 add_off(dw_qtype type, __m512 sum, __m512 off) { // offsets are in the sum
    (void)type, (void)off;
    return sum;
}

#define NO_FLOAT_ROWS
#include "backends/kernels_dot_rows.inc"

// Defines dw_dot_vbmi_q4_0, ..: one for each row of the list.
#define DEFINE(type, suffix) \
    TARGET void dw_dot_vbmi_##suffix(const dw_dot_job *job) { all_rows(type, job); }
VBMI_TYPES(DEFINE)
#endif
