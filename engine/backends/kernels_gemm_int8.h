/* kernels_gemm_int8.h - products of quantized weights with 8-bit inputs, for many tokens (DW_GEMM_INT8).
 *
 * Inputs are rounded as the dot kernels round them: blocks of 32 have one F32 scale s, q = rint(x / s).  With weights
 * w = d u - m (u bytes) a block of a row times a block of a token is
 *
 *     d s (u . q) - m s sum(q)
 *
 * u . q is exact in 32 bits; only its conversion, the factors d s and the sum over blocks are F32.  A type with an
 * offset (Q4_0: w = d (u - 8)) adds the offset times -sum(q) to the integers, and has no m.
 *
 * Tokens are the lanes: a vector of a token tile holds four values of each of 8 or 16 tokens, and a row's four bytes
 * are broadcast to them.  So weights need no transposition: a row of the panel is the bytes as the dot kernels unpack
 * them, and a tile has its values in the order of a record's q (kernels_dot.h).  AMX has an order of its own, whose
 * blocks are whole: 16 rows and a block of a token tile are its two operands as they lie.
 *
 *     row of the panel, 256 weights            tile, 256 values of 16 tokens
 *     +--------------+                         +--------------------------+
 *     | 256 bytes u  | the level's order       | 64 words x 16 tokens x 4 | the level's order
 *     | 32 F32 d, m  |                         | 8 x 16 scales            | by blocks of 32
 *     +--------------+                         | 16 x 16 -sum(q)          | by pieces of 16
 *                                              +--------------------------+
 *
 * One source, kernels_gemm_int8_body.inc, is compiled for AVX2 and for AVX-512 VNNI; AMX has its own products.  A
 * product's element is one chain of multiply-adds in the order of the blocks; it does not depend on the other rows and
 * tokens.
 *
 * What limits it (Zen 4, Q4_0): 64 VPDPBUSD of a tile of 4 rows and 32 tokens come with 8 products d s and 8
 * multiply-adds on the same units, so 0.8 of the peak is possible; the inner loop reaches 0.78 (Zen 5: 0.73).  The
 * AVX2 kernel (Zen 3) reaches 0.46 of VPMADDUBSW's peak; results/speed.md tells where the rest goes. */
#ifndef DW_KERNELS_GEMM_INT8_H
#define DW_KERNELS_GEMM_INT8_H

#include "backends/kernels_dot.h"
#include "backends/kernels_vec.h"

typedef struct dw_int8_row {
    uint8_t u[RECORD];    // signed where the level keeps the type signed
    float scale[2 * PIECES]; // d, m of each block of 32; or d of 16 pieces, then m of 16 pieces
} dw_int8_row;

typedef struct dw_int8_tile {
    int8_t q[RECORD / 4][DW_TILE][4];
    float scale[BLOCKS][DW_TILE];
    int32_t less[PIECES][DW_TILE]; // -sum(q)
} dw_int8_tile;
_Static_assert(sizeof(dw_int8_row) == 384 && sizeof(dw_int8_tile) % 64 == 0, "rows and tiles stay aligned to 64 bytes");

/* C[row tile][token tile] (16, 16) (+)= panel . x over n_blocks blocks of 32.  One or two tiles follow each other. */
typedef struct dw_int8_product {
    const dw_int8_row *panel;
    const dw_int8_tile *x;
    int n_row_tiles, n_token_tiles, n_blocks;
    float *c;
    bool fresh; // c begins at zero
    const dw_ahead *ahead; // NULL: none, as always with AMX
} dw_int8_product;

/* The functions of a level; NULL for types that are not multiplied in this form. */
typedef struct dw_int8 {
    /* Packs block `block` of a tile: x (16, 32), rows ldx apart. */
    void (*pack)(const float *x, size_t ldx, int block, dw_int8_tile *tile);
    /* Rows 0 .. n_rows - 1 of the panel: n_blocks blocks of 32 from row[r] + offset on. */
    void (*unpack[DW_QTYPE_END])(const uint8_t *const *row, size_t offset, int n_rows, int n_blocks,
                                 dw_int8_row *panel);
    void (*multiply[DW_QTYPE_END])(const dw_int8_product *p);
} dw_int8;

extern const dw_int8 dw_int8_avx2, dw_int8_avx512, dw_int8_amx;
const dw_int8 *dw_int8_of(dw_level level); // NULL: the level has none

#endif
