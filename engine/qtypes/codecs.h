/* codecs.h - inside qtypes/: the functions of the table's rows, and how blocks are read and written.
 *
 * Layouts are little-endian bytes, addressed as offsets from a block's start: no struct, no alignment. */
#ifndef DW_CODECS_H
#define DW_CODECS_H

#include "base/half_inline.h"
#include "qtypes/qtypes.h"
#include "qtypes/scale_search.h"

typedef void dw_decode_fn(const void *src, float *dst, size_t n);
typedef void dw_encode_fn(const float *src, void *dst, size_t n, const float *weight);

#define DECLARE_ENCODER(suffix)                                                                                        \
    dw_encode_fn dw_encode_##suffix;                                                                                   \
    extern const dw_coder dw_coder_##suffix;
#define DECLARE_DECODER(suffix)
#define DECLARE(NAME, id, block, bytes, file_type, suffix, HAS)                                                        \
    dw_decode_fn dw_decode_##suffix;                                                                                   \
    DECLARE_##HAS(suffix)
DW_QTYPES(DECLARE)
#undef DECLARE
#undef DECLARE_ENCODER
#undef DECLARE_DECODER

extern const float dw_iq4_nl_table[16];

/* ---- encoders ------------------------------------------------------------------------------------------- */

/* The steps of an encoder, for several blocks at a time and codes of one byte.  They are inlined. */
typedef struct coding {
    int block, block_bytes;
    int group;             // values that share a scale
    int n_side;            // most blocks that one call of fit searches
    bool uses_mean_square; // fit needs it when there are importances
    void (*fit)(const float *x, const float *importance, float mean_square, int n_blocks, dw_block_fit *f);
    /* any: x may be any value; otherwise it is one of the fitted values. */
    int (*code)(const dw_block_fit *f, int group, int i, float x, bool any);
    float (*value)(const dw_block_fit *f, int i, int code);
    void (*pack)(const dw_block_fit *f, const uint8_t *code, uint8_t *to);
} coding;

enum { MOST_SIDE = 4 };

static inline __attribute__((always_inline)) void encode_blocks(const coding *c, const float *x, uint8_t *b, size_t n,
                                                                const float *importance) {
    const float mean_square = importance && c->uses_mean_square ? dw_sum_of_squares(x, n) / (float)n : 0;
    const size_t block = (size_t)c->block;
    dw_block_fit f[MOST_SIDE];
    for (size_t at = 0, n_blocks; at < n; at += n_blocks * block) {
        const size_t left = (n - at) / block;
        n_blocks = left < (size_t)c->n_side ? left : (size_t)c->n_side;
        c->fit(x + at, importance ? importance + at : NULL, mean_square, (int)n_blocks, f);
        for (size_t k = 0; k < n_blocks; k++, b += c->block_bytes) {
            uint8_t code[DW_BLOCK_MAX];
            const float *v = x + at + k * block;
            for (int g = 0; g < c->block / c->group && !f[k].has_codes; g++)
                for (int i = g * c->group; i < (g + 1) * c->group; i++) code[i] = (uint8_t)c->code(&f[k], g, i, v[i], false);
            c->pack(&f[k], f[k].has_codes ? f[k].code : code, b);
        }
    }
}

/* Defines dw_encode_SUFFIX and dw_coder_SUFFIX from the steps. */
#define DEFINE_ENCODER(suffix, steps)                                                                                  \
    void dw_encode_##suffix(const float *src, void *dst, size_t n, const float *weight) {                              \
        encode_blocks(&(steps), src, dst, n, weight);                                                                  \
    }                                                                                                                  \
    static void fit_one_##suffix(const float *x, const float *importance, float mean_square, dw_block_fit *f) {        \
        (steps).fit(x, importance, mean_square, 1, f);                                                                 \
    }                                                                                                                  \
    static uint32_t round_##suffix(const dw_block_fit *f, int i, float x, float *value) {                              \
        const uint8_t code = (uint8_t)(steps).code(f, i / (steps).group, i, x, true);                                                  \
        *value = (steps).value(f, i, code);                                                                            \
        return code;                                                                                                   \
    }                                                                                                                  \
    static void pack_words_##suffix(const dw_block_fit *f, const uint32_t *word, void *to) {                           \
        uint8_t code[DW_BLOCK_MAX];                                                                                    \
        for (int i = 0; i < (steps).block; i++) code[i] = (uint8_t)word[i];                                            \
        (steps).pack(f, code, to);                                                                                     \
    }                                                                                                                  \
    const dw_coder dw_coder_##suffix = {fit_one_##suffix, round_##suffix, pack_words_##suffix};

/* ---- bytes ------------------------------------------------------------------------------------------------ */

static inline uint16_t load16(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return h;
}

static inline void store16(uint8_t *p, uint16_t h) { memcpy(p, &h, sizeof h); }

static inline float load_half(const uint8_t *p) { return dw_f16_to_f32_inline(load16(p)); }

static inline float in_half(float f) { return dw_f16_to_f32_inline(dw_f32_to_f16_inline(f)); }

static inline void store_half(uint8_t *p, float f) { store16(p, dw_f32_to_f16_inline(f)); }

#endif
