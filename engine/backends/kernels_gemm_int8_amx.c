/* kernels_gemm_int8_amx.c - products with 8-bit inputs: AMX, 16 rows times 16 tokens.
 *
 * A part is a block of 32 values, or a piece of 16 where a type has a scale for 16.  One TDPBSSD or TDPBUSD multiplies
 * a part of 16 rows with that of 16 tokens.  The 256 dots go through memory, because tiles have no other way to
 * registers; then they are scaled and added up.  So elements are the same chains as with AVX-512, and equal bits.
 *
 * What limits it (a Xeon, a program written for the purpose): a part of Q4_0 takes 16.6 ns.  Loads and product alone
 * take 4.7, storing the dots 4.3, scaling 8.1: none of them overlaps with another, in whatever order and with one, two or
 * four tiles of dots.  So types that are unpacked straight into tiles of BF16 are multiplied there (dw_gemm_form_of). */
#if defined(__x86_64__)
#include "backends/kernels_gemm_int8_avx512.h"

#undef TARGET
#define TARGET                                                                                                         \
    __attribute__((target("avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,amx-tile,amx-int8")))
#define LEVEL(name) name##_amx

enum { SQUARE = DW_TILE * DW_TILE, DELAY = 2, SLOTS = 4 };

/* A row has its blocks in the order of a record's halves, 0 2 1 3, but whole ones. */
INLINE int place_of(int piece) {
    static const uint8_t order[4] = {0, 2, 1, 3};
    return 128 * (piece / 8) + 32 * order[piece / 2 % 4] + 16 * (piece % 2);
}

/* Types with an offset become signed. */
INLINE bool is_signed(dw_qtype type) { return offset_bits(type) != 0; }

INLINE void unpack_bytes(dw_qtype type, const uint8_t *w, int n_blocks, uint8_t *u) {
    const __m512i first_two = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                  last_two = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15),
                  offset = _mm512_set1_epi8((char)(is_signed(type) ? 1 << offset_bits(type) : 0));
    for (int h = 0; h < 2; h++, u += 128) {
        const half_record half = unpack_half(type, w, h, n_blocks);
        const __m512i first = _mm512_sub_epi8(half.first, offset), last = _mm512_sub_epi8(half.last, offset);
        _mm512_storeu_si512(u, _mm512_permutex2var_epi64(first, first_two, last));
        _mm512_storeu_si512(u + 64, _mm512_permutex2var_epi64(first, last_two, last));
    }
}

typedef struct part { // of a row tile and a token tile
    const dw_int8_row *w;
    const dw_int8_tile *x;
    int piece; // the first
} part;

INLINE part part_of(dw_qtype type, const dw_int8_row *w, const dw_int8_tile *x, int i) {
    return (part){w, x, has_scale_of_16(type) ? i : 2 * i};
}

INLINE void multiply_part(dw_qtype type, part p, int32_t *dots) {
    const int place = place_of(p.piece);
    _tile_loadd(6, p.x->q[place / 4], sizeof p.x->q[0]);
    _tile_loadd(4, p.w->u + place, sizeof *p.w);
    _tile_zero(0);
    if (is_signed(type)) _tile_dpbssd(0, 4, 6);
    else _tile_dpbusd(0, 4, 6);
    _tile_stored(0, dots, DW_TILE * sizeof *dots);
}

/* sum[row] += d s dots - m s sum(q) */
INLINE void add_part(dw_qtype type, part p, const int32_t *dots, vf sum[DW_TILE]) {
    const bool of_16 = has_scale_of_16(type);
    const int at_d = p.piece, at_m = of_16 ? PIECES + p.piece : p.piece + 1;
    const vf scale = load(p.x->scale[p.piece / 2]);
    vi less = load_ints(p.x->less[p.piece]);
    if (!of_16) less += load_ints(p.x->less[p.piece + 1]);
    const vf minus = to_float(less) * scale;
#pragma GCC unroll 16
    for (int r = 0; r < DW_TILE; r++) {
        sum[r] = fmadd(to_float(load_ints(dots + r * DW_TILE)), set1(p.w[r].scale[at_d]) * scale, sum[r]);
        if (has_factor_m(type)) sum[r] = fmadd(set1(p.w[r].scale[at_m]), minus, sum[r]);
    }
}

INLINE void multiply_square(dw_qtype type, const dw_int8_row *w, const dw_int8_tile *x, int n_blocks, float *c,
                            bool fresh) {
    _Alignas(64) int32_t dots[SLOTS][SQUARE];
    const int n_parts = has_scale_of_16(type) ? 2 * n_blocks : n_blocks;
    vf sum[DW_TILE];
#pragma GCC unroll 16
    for (int r = 0; r < DW_TILE; r++) sum[r] = fresh ? set1(0) : load(c + r * DW_TILE);
    for (int i = 0; i < n_parts + DELAY; i++) {
        if (i < n_parts) multiply_part(type, part_of(type, w, x, i), dots[i % SLOTS]);
        if (i >= DELAY) add_part(type, part_of(type, w, x, i - DELAY), dots[(i - DELAY) % SLOTS], sum);
    }
#pragma GCC unroll 16
    for (int r = 0; r < DW_TILE; r++) store(c + r * DW_TILE, sum[r]);
}

INLINE void multiply_all(dw_qtype type, const dw_int8_product *p) {
    float *c = p->c;
    dw_assert(p->n_row_tiles > 0 && p->n_token_tiles >= 1 && p->n_token_tiles <= 2);
    dw_assert(p->n_blocks > 0 && p->n_blocks <= BLOCKS);
    __asm__ volatile("" ::: "memory"); // completes stores: gcc's tile loads do not declare that they read
    for (int r = 0; r < p->n_row_tiles; r++)
        for (int t = 0; t < p->n_token_tiles; t++, c += SQUARE)
            multiply_square(type, p->panel + r * DW_TILE, p->x + t, p->n_blocks, c, p->fresh);
}

#include "backends/kernels_gemm_int8_table.inc"
#endif
