/* scale_search_own.h - inside scale_search: one table of searches for each number of groups that are searched together. */
#ifndef DW_SCALE_SEARCH_OWN_H
#define DW_SCALE_SEARCH_OWN_H

#include "qtypes/scale_search.h"

enum { DW_SEARCH_MAX = 32 }; // values of a group
#define DW_TINY_GROUP 1e-15f // a group of smaller values counts as zeros

typedef struct dw_searches {
    void (*symmetric)(const dw_groups *g, int nmax);
    void (*sweeps)(const dw_groups *g, int nmax);
    void (*affine)(const dw_groups *g, dw_affine_search how);
    void (*table)(const dw_groups *g);
} dw_searches;

extern const dw_searches dw_searches_plain; // 4 groups at a time
#if defined(__x86_64__)
extern const dw_searches dw_searches_avx2, dw_searches_avx512; // 8 and 16
#endif

#endif
