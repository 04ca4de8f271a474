/* sparse.c - from which activity on skipping neurons pays.
 *
 * Measured by `build/bench_sparse -l 6 -g 1,32,64,128 -s 5,15,25,35,45 -r 14`: the FFN of a 7B model in Q4_0, one token at
 * a time, two threads with AVX-512, the paths in turns.  The fused walk took as long as the dense path with 0.74, 0.88,
 * 0.87 and 0.90 of groups of 1, 32, 64 and 128 open (single neurons in other runs 0.66 and 0.68); just below stands here.
 * Where all are open it takes 1.04 to 1.1 times the dense path: adding up rows costs more instructions than products do.
 * Single neurons pay besides for rows that lie alone: the memory's pages and prefetchers want runs. */
#include "formats/sparse.h"

#include <stddef.h>

static const struct { int group; float activity; } break_even[] = {{128, 0.88f}, {32, 0.86f}, {1, 0.68f}};

float dw_gate_break_even(int group) {
    for (size_t i = 0; i < sizeof break_even / sizeof *break_even; i++)
        if (group >= break_even[i].group) return break_even[i].activity;
    return 0;
}
