/* sparse.c - from which activity on skipping neurons pays. */
#include "formats/sparse.h"

#include <stddef.h>

/* Share of open neurons at which the walk over open groups takes as long as the dense path, one token at a time.  Small
 * groups pay for rows that lie alone: the memory's pages and prefetchers want runs. */
static const struct { int group; float activity; } break_even[] = {{64, 0.65f}, {32, 0.55f}, {1, 0.37f}};

float dw_gate_break_even(int group) {
    for (size_t i = 0; i < sizeof break_even / sizeof *break_even; i++)
        if (group >= break_even[i].group) return break_even[i].activity;
    return 0;
}
