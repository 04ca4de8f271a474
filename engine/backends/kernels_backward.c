/* kernels_backward.c - which table of functions a level uses, and the scratch of attention. */
#include "backends/kernels_backward.h"

const dw_vec_back *dw_vec_back_of(dw_level level) {
#if defined(__x86_64__)
    if (level >= DW_AVX512) return &dw_vec_back_avx512;
    if (level == DW_AVX2) return &dw_vec_back_avx2;
#else
    (void)level;
#endif
    return &dw_vec_back_portable;
}

/* Six arrays of a window's keys, three of a block of 48 queries, four of their scores; padded as in the body.  With
 * blocks of 64 (kernels_attend_rounded.inc), backward: three and a half of keys, six of blocks, four and a half of their
 * scores; forward: one, three and two of all keys' scores. */
size_t dw_attend_back_scratch(int n_ctx, int head_dim) {
    const size_t keys = ((size_t)n_ctx + 95) / 96 * 96, width = ((size_t)head_dim + 31) / 32 * 32,
                 blocks = ((size_t)n_ctx + 63) / 64 * 64;
    const size_t plain = 6 * keys * width + 3 * 48 * width + 4 * 48 * keys;
    const size_t rounded = 4 * blocks * width + 6 * 64 * width + 2 * 64 * blocks + 5 * 64 * 64;
    return plain > rounded ? plain : rounded;
}

#if !defined(__x86_64__) // no level has BF16 products
void dw_attend_rounded(const dw_attend_back_job *job) { (void)job; }
void dw_attend_back_rounded(const dw_attend_back_job *job) { (void)job; }
#endif
