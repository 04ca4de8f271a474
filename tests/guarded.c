/* guarded.c - see guarded.h. */
#include "guarded.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

guarded guard(size_t bytes) {
    guarded g = {.map_bytes = (bytes + 2 * PAGE - 1) / PAGE * PAGE};
    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.map == MAP_FAILED || mprotect(g.map + g.map_bytes - PAGE, PAGE, PROT_NONE)) abort();
    g.data = g.map + g.map_bytes - PAGE - bytes;
    return g;
}

void unguard(guarded *g) { munmap(g->map, g->map_bytes); }

/* Small F16 numbers where blocks have theirs; minima at the middle of the range, so that weights have a mean near zero. */
static void set_halves(dw_rng *rng, const dw_qtype_row *t, uint8_t *w, size_t bytes) {
    static const struct {
        dw_qtype type;
        int at[2];
    } halves[] = {{DW_Q4_0, {0, 0}}, {DW_Q4_1, {0, 2}},   {DW_Q5_0, {0, 0}},    {DW_Q5_1, {0, 2}},
                  {DW_Q8_0, {0, 0}}, {DW_IQ4_NL, {0, 0}}, {DW_Q2_K, {80, 82}},  {DW_Q3_K, {108, 108}},
                  {DW_Q4_K, {0, 2}}, {DW_Q5_K, {0, 2}},   {DW_Q6_K, {208, 208}}};
    for (size_t k = 0; k < sizeof halves / sizeof *halves; k++)
        for (size_t i = 0; halves[k].type == t->id && i < bytes; i += (size_t)t->block_bytes)
            for (int j = 0; j < 2; j++) {
                const double middle = t->id == DW_Q4_1 ? -7.5 : t->id == DW_Q5_1 ? -15.5 : 1;
                const double d = 0.01 * (1 + 0.2 * dw_rng_uniform(rng));
                const uint16_t h = dw_f32_to_f16((float)(j ? d * middle : d));
                if (j == 0 || halves[k].at[1] != halves[k].at[0]) memcpy(w + i + halves[k].at[j], &h, 2);
            }
}

void random_weights(dw_rng *rng, const dw_qtype_row *t, uint8_t *w, size_t bytes) {
    if (t->block == 1) {
        for (size_t i = 0; i < bytes; i += (size_t)t->block_bytes) {
            const float v = (float)dw_rng_normal(rng);
            const uint16_t h = t->id == DW_F16 ? dw_f32_to_f16(v) : dw_f32_to_bf16(v);
            memcpy(w + i, t->id == DW_F32 ? (const void *)&v : &h, (size_t)t->block_bytes);
        }
        return;
    }
    for (size_t i = 0; i < bytes; i++) w[i] = (uint8_t)dw_rng_next(rng);
    set_halves(rng, t, w, bytes);
}

void constant_weights(dw_rng *rng, const dw_qtype_row *t, uint8_t byte, uint8_t *w, size_t bytes) {
    memset(w, byte, bytes);
    set_halves(rng, t, w, bytes);
}
