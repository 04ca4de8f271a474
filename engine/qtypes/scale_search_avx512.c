/* scale_search_avx512.c - the searches for 16 groups at a time. */
#if defined(__x86_64__)
#define LANES 16
#define LANES_STATIC __attribute__((target("avx512f"))) static
#define LANES_INLINE __attribute__((target("avx512f"))) static inline
#include "qtypes/scale_search_lanes.inc"

const dw_searches dw_searches_avx512 = LANES_TABLE;
#endif
