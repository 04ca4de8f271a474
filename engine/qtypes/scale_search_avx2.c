/* scale_search_avx2.c - the searches for 8 groups at a time. */
#if defined(__x86_64__)
#define LANES 8
#define LANES_STATIC __attribute__((target("avx2"))) static
#define LANES_INLINE __attribute__((target("avx2"))) static inline
#include "qtypes/scale_search_lanes.inc"

const dw_searches dw_searches_avx2 = LANES_TABLE;
#endif
