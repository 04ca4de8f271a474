/* column_sums.c - one source for every level of the CPU; the compiler makes the vectors. */
#include "prune/column_sums.h"
#include "kit/stats.h"

#include <math.h>
#include <string.h>

enum { STRIP = 64 }; // columns whose next rows are prefetched while these are added

#define larger(a, b) ((a) > (b) ? (a) : (b))

#define TARGET
#define ADD_PRODUCT(x, y, sum) ((sum) + (x) * (y))
#define LEVEL(name) name##_portable
#include "prune/column_sums_body.inc"

#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2,fma")))
#define ADD_PRODUCT __builtin_fma
#define LEVEL(name) name##_avx2
#include "prune/column_sums_body.inc"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define ADD_PRODUCT __builtin_fma
#define LEVEL(name) name##_avx512
#include "prune/column_sums_body.inc"
#endif

const column_sums column_sums_levels[] = {
    {"portable", moments_portable, squares_portable, bins_portable, largest_of_32_portable, add_bytes_portable,
     replace_portable},
#if defined(__x86_64__)
    {"avx2", moments_avx2, squares_avx2, bins_avx2, largest_of_32_avx2, add_bytes_avx2, replace_avx2},
    {"avx512", moments_avx512, squares_avx512, bins_avx512, largest_of_32_avx512, add_bytes_avx512, replace_avx512},
    {"amx", moments_avx512, squares_avx512, bins_avx512, largest_of_32_avx512, add_bytes_avx512, replace_avx512},
#endif
    {0}};

const column_sums *column_sums_choose(dw_err *err) {
    const char *level = dw_cpu_level(err);
    if (!level) return NULL;
    for (const column_sums *c = column_sums_levels; c->level; c++)
        if (!strcmp(c->level, level)) return c;
    return column_sums_levels;
}
