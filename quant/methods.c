/* methods.c - ways of rounding a row of weights, and the table of what a matrix can become.
 *
 * A group of G weights w with codes q of b bits, N = 2^b - 1 (rint: ties to even):
 *
 *   affine   s = max((max - min) / N, 1e-7), negative when |max| >= |min|; edge: max if s < 0, else min;
 *            k = rint(edge / s);  if k != 0: s = edge / k, o = edge;  else o = 0;  q = clamp(rint((w - o) / s), 0, N)
 *   minmax   s = bf16((max - min) / N),  o = bf16(min),  q = clamp(rint((w - o) / s), 0, N)
 *
 * and w' = s q + o.  In affine k moves the step so that zero lies on the grid, and codes come from the unrounded s and
 * o, which are then kept in BF16, as MLX keeps them in checkpoints of BF16 weights; in minmax codes are nearest on the
 * grid as it is kept.  Both are held by two Q4_1 blocks a group, which have s and o in F16: exact for every BF16 value
 * from 2^-17 on. */
#include "quant/quant.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { GROUP = 64, BLOCK = 32, BLOCK_BYTES = 20 };

typedef struct grid {
    float scale, offset;
} grid;

static float in_bf16(float x) { return dw_bf16_to_f32(dw_f32_to_bf16(x)); }

static grid affine_grid(float min, float max, int n_steps) {
    const bool from_max = fabsf(max) >= fabsf(min);
    const float edge = from_max ? max : min, step = fmaxf((max - min) / (float)n_steps, 1e-7f),
                scale = from_max ? -step : step;
    const float k = rintf(edge / scale);
    return k != 0 ? (grid){edge / k, edge} : (grid){scale, 0};
}

static grid minmax_grid(float min, float max, int n_steps) {
    return (grid){in_bf16((max - min) / (float)n_steps), in_bf16(min)};
}

/* Codes of a group; true when all are zero, so that the scale does not matter. */
static bool group_codes(const float *w, grid g, int n_steps, uint8_t *code) {
    int any = 0;
    for (int i = 0; i < GROUP; i++) {
        const float q = g.scale != 0 ? rintf((w[i] - g.offset) / g.scale) : 0;
        code[i] = (uint8_t)(q < 0 ? 0 : q > (float)n_steps ? n_steps : (int)q);
        any |= code[i];
    }
    return !any;
}

static bool put_half(uint8_t *at, float value) {
    const uint16_t h = dw_f32_to_f16(value);
    memcpy(at, &h, sizeof h);
    return dw_f16_to_f32(h) == value;
}

/* A group as two Q4_1 blocks: scale, offset, then code i beside code i + 16.  True when the halves are exact. */
static bool put_group(const uint8_t *code, float scale, float offset, uint8_t *out) {
    bool exact = true;
    for (int b = 0; b < GROUP / BLOCK; b++, code += BLOCK, out += BLOCK_BYTES) {
        const bool scale_exact = put_half(out, scale), offset_exact = put_half(out + 2, offset);
        exact = scale_exact && offset_exact;
        for (int i = 0; i < BLOCK / 2; i++) out[4 + i] = (uint8_t)(code[i] | code[i + BLOCK / 2] << 4);
    }
    return exact;
}

static size_t encode_groups(const quant_type *t, const float *row, uint8_t *out, size_t n,
                            grid (*fit)(float min, float max, int n_steps)) {
    const int n_steps = (1 << t->bits) - 1;
    size_t n_inexact = 0;
    for (const float *w = row; w < row + n; w += GROUP, out += GROUP / BLOCK * BLOCK_BYTES) {
        uint8_t code[GROUP];
        float min = w[0], max = w[0];
        for (int i = 1; i < GROUP; i++) {
            min = w[i] < min ? w[i] : min;
            max = w[i] > max ? w[i] : max;
        }
        const grid g = fit(min, max, n_steps);
        const bool flat = group_codes(w, g, n_steps, code);
        n_inexact += !put_group(code, flat ? 0 : in_bf16(g.scale), in_bf16(g.offset), out);
    }
    return n_inexact;
}

static size_t encode_affine(const quant_type *t, const float *row, void *out, size_t n) {
    return encode_groups(t, row, out, n, affine_grid);
}

static size_t encode_minmax(const quant_type *t, const float *row, void *out, size_t n) {
    return encode_groups(t, row, out, n, minmax_grid);
}

// clang-format off
const quant_method quant_methods[] = {
    {"rtn",    "each value to its nearest code; scales by the format's own search, weighted by importances where given",
               "llama.cpp, ggml-quants.c"},
    {"affine", "s q + o in groups of 64, s and o in BF16, the step moved so that zero is on the grid",
               "MLX, affine quantize of mlx/ops.cpp", 2, 4, GROUP, 32, DW_Q4_1, encode_affine},
    {"minmax", "s q + o in groups of 64, s and o in BF16, from the least to the largest weight",
               "plain min-max rounding", 2, 4, GROUP, 32, DW_Q4_1, encode_minmax},
    {0},
};
// clang-format on

quant_type quant_types[QUANT_MAX_TYPES + 1];

static void add_block_formats(const quant_method *m, quant_type **next) {
    for (const dw_qtype_row *s = dw_qtypes; s->name; s++)
        if (s->encode) *(*next)++ = (quant_type){.name = s->name, .method = m, .stored = s, .multiple = s->block};
}

static void add_widths(const quant_method *m, quant_type **next) {
    static char names[QUANT_MAX_TYPES][16];
    for (int bits = m->min_bits; bits <= m->max_bits; bits++) {
        char *name = names[*next - quant_types];
        snprintf(name, sizeof names[0], "%s%d", m->name, bits);
        *(*next)++ = (quant_type){name, m, dw_qtype_get(m->stored), bits, m->group, bits + m->overhead_bits / m->group};
    }
}

void quant_types_init(void) {
    quant_type *next = quant_types;
    for (const quant_method *m = quant_methods; m->name; m++)
        m->max_bits ? add_widths(m, &next) : add_block_formats(m, &next);
}

const quant_type *quant_type_find(const char *name) {
    for (const quant_type *t = quant_types; t->name; t++)
        if (!strcasecmp(t->name, name)) return t;
    return NULL;
}

const quant_type *quant_type_of(const dw_qtype_row *stored) { return quant_type_find(stored->name); }
