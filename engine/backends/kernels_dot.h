/* kernels_dot.h - inside the dot kernels: how activations are packed, and the kernels of each level.
 *
 * Packed int8 activations are records of 256 values (the last one filled up with zeros).  A record serves eight
 * blocks of 32 weights or one superblock of 256:
 *
 *   q      rint(x / scale) of 256 values, in two halves of four blocks.  A half holds first the first 16 values of each
 *          block, then the last 16; its blocks are in the order 0 2 1 3.  So the low nibbles of four 4-bit blocks
 *          match the first 64 bytes, the high nibbles the next 64, and K-quants need no more than one shuffle.
 *   block  for each 32 values: scale = largest |x| / 127, sum = scale * (sum of q)
 *   sum16  for each 16 values: scale * (sum of q)
 *
 * DW_ACT_INT8_LANES, `lane_record`, has the same q.  The rest is in the order that sums in two lanes of 128 bits have,
 * blocks 0 1 4 5 2 3 6 7:
 *
 *   scale, sum   as above
 *   sum16        for each 16 values: the sum of q
 *   offset       -8 * (sum of q), what the offset 8 of Q4_0 adds to u . q
 *
 * DW_ACT_INT8_QUARTERS has another order, `quarters`, in which two lanes of 32 bits serve a block, and one vector eight:
 *
 *   q       q[64k + 8b + i] is value 8k + i of block b, for k < 4
 *   block, sum16   as above
 *   offset  for lanes 2b and 2b + 1: -8 * (sum of their q over k), what the offset 8 of Q4_0 adds to u . q
 *
 * DW_ACT_INT8_PIECES, `piece_record`, is for Q2_K (kernels_dot_q2_k.c).  A lane of 32 bits serves a piece of 16 values:
 *
 *   q       q[64k + 4l + i] is value 4c + i of piece 8h + 2 ((c - k) mod 4) + g, for lane l = 8h + 4g + c and k < 4
 *   scale   of each piece, in the order of piece_lane: the scale of its block / 4^t for piece 8h + 2t + g
 *   block   the scales of blocks
 *   sum16   for each 16 values: the sum of q
 *
 * With weights w = d u - m (u unsigned bytes) a block's product is  d scale (u . q) - m sum.  So the offset of a type
 * (8, 128, or its own minimum) costs one or two operations for eight blocks.
 *
 * A block with an infinite or NaN x is NaN; a block whose largest |x| is below 2^-119 counts as zero. */
#ifndef DW_KERNELS_DOT_H
#define DW_KERNELS_DOT_H

#include "backends/kernels.h"
#include "base/half_inline.h"
#include "qtypes/layouts.h"

enum { RECORD = 256, PIECES = RECORD / 16, BLOCKS = RECORD / 32 };

typedef struct scale_and_sum {
    float scale, sum;
} scale_and_sum;

typedef struct record {
    int8_t q[RECORD];
    scale_and_sum block[BLOCKS];
    float sum16[PIECES];
} record;

typedef struct lane_record {
    int8_t q[RECORD];
    float scale[BLOCKS], sum[BLOCKS];
    int16_t sum16[PIECES];
    int32_t offset[BLOCKS];
} lane_record;

typedef struct quarters {
    int8_t q[RECORD];
    scale_and_sum block[BLOCKS];
    float sum16[PIECES];
    int32_t offset[2 * BLOCKS];
} quarters;

typedef struct piece_record {
    int8_t q[RECORD];
    float scale[PIECES], block[BLOCKS];
    int16_t sum16[PIECES];
} piece_record;
_Static_assert(sizeof(record) == 384 && sizeof(lane_record) == 384 && sizeof(quarters) == 448 &&
                   sizeof(piece_record) == 384,
               "records keep columns aligned to 64 bytes");

// Where q holds the 16 values of piece k (values 16k..16k+15 of the record).
static inline int piece_place(int k) {
    static const uint8_t order[4] = {0, 2, 1, 3};
    return 128 * (k / 8) + 64 * (k % 2) + 16 * order[k / 2 % 4];
}

// Where a lane_record has what belongs to a block: bits 1 and 2 change places, so it is also which block is there.
static inline int lane_place(int block) { return (block & 1) | (block & 2) << 1 | (block & 4) >> 1; }

// The lane of a piece_record's scale, and of the sum of a piece after four steps.
static inline int piece_lane(int piece) { return piece / 8 * 8 + piece % 2 * 4 + (piece / 2 + 3) % 4; }

// Where a piece_record holds values 4c .. 4c + 3 of a piece.
static inline int place_in_piece(int piece, int c) {
    return 64 * ((c - piece / 2) & 3) + 4 * (piece / 8 * 8 + piece % 2 * 4 + c);
}

// Kernels are written once for all types; the type is a constant after inlining.
#define ALWAYS_INLINE __attribute__((always_inline))

static inline ALWAYS_INLINE bool is_superblock(dw_qtype type) { return dw_qtype_block(type) == RECORD; }
static inline ALWAYS_INLINE bool has_scale_of_16(dw_qtype type) {
    return type == DW_Q2_K || type == DW_Q3_K || type == DW_Q6_K;
}

// Bytes of 256 weights: a superblock, or eight blocks.
static inline ALWAYS_INLINE int record_bytes(dw_qtype type) {
    return RECORD / dw_qtype_block(type) * dw_qtype_block_bytes(type);
}

static inline ALWAYS_INLINE bool has_float_rows(dw_qtype type) {
    return type == DW_F32 || type == DW_F16 || type == DW_BF16;
}

static inline ALWAYS_INLINE int value_bytes(dw_qtype type) { return dw_qtype_block_bytes(type); }

/* Rows are read one after the other, so that the weights are one stream, but some short and long ones together
 * (kernels_dot_rows.inc), and long calls on Zen 5 as three streams (below).  What comes is prefetched into the second-level
 * cache, and from a shorter distance into the first: early prefetches there would drive out F32 activations.  Where
 * nothing is prefetched into the first (Zen 5 from memory, AMD with AVX2), the code below prefetches the current bytes,
 * which cost nothing clear on Zen 3.  The CPU's maker and generation decide the distances (dw_reach_of in
 * cpu_features.c); results/kernels.md has what they were chosen from.
 *
 * A call with LONG_RUN rows or more is probably a piece of a matrix, so the beginning of the next piece is prefetched,
 * too (of pairs of long rows, that of its first row).  Fewer rows come from a list, and prefetching stops at the end of the
 * last one. */
enum { LONG_RUN = 32 };

/* A long call is read in three streams, from memory and of 16 bits also from cache (dw_reach_of): of each third of its
 * rows one row at a time, prefetched into the first level.  Why it is faster is not known: perhaps the hardware, which
 * prefetches each stream by itself, begins anew at each page of 4 KB.  No result depends on it.  Prefetches pass the end
 * of the last row by up to 3 KB.  Streams of rows of more than 2,048 values are prefetched past the second level, since
 * their models are probably many times larger than caches.  (results/kernels.md) */
enum { STREAM_AHEAD = 3072 };

enum { SHORT_ROWS = 4, LONG_ROWS = 2, STREAMS = 3 }; // rows that are taken together

/* Rows of F16 and BF16 with more than 2,048 values have FEW_SUMS on Zen 3 and 4 (on Zen 5 those whose activations fill
 * half of the first level): one of AVX-512 vectors, two of AVX2.  The chain of additions then takes 16 cycles for 128
 * bytes, little less than memory does.  With four sums in AVX-512 it takes 4, and rows read less, perhaps because the core
 * runs too far ahead of what has arrived.  From cache four are faster.  (results/kernels.md) */

typedef struct beyond {
    const uint8_t *end; // where prefetching into the second level stops, and with it into the first; streams have none
    dw_reach reach;
    bool is_stream;
} beyond;

static inline ALWAYS_INLINE beyond beyond_of(const dw_dot_job *j) {
    const uint8_t *end = j->w + (size_t)j->n_rows * j->row_bytes;
    return (beyond){.end = end + (j->n_rows >= LONG_RUN ? j->reach.second : 0), .reach = j->reach};
}

/* Rows that are read together next to each other skip each other's bytes; streams go on in the row that follows. */
static inline ALWAYS_INLINE size_t skipped(int n_rows, size_t row_bytes) { return n_rows == LONG_ROWS ? row_bytes : 0; }

static inline ALWAYS_INLINE void prefetch_stream(const uint8_t *p, bool past_second, int bytes) {
    for (int i = 0; i < bytes; i += 64)
        if (past_second)
            __builtin_prefetch(p + STREAM_AHEAD + i, 0, 0);
        else
            __builtin_prefetch(p + STREAM_AHEAD + i, 0, 3);
}

/* p is in a row that ends `left` bytes further on.  What is read after that begins `between` bytes after its end. */
static inline ALWAYS_INLINE void prefetch(const uint8_t *p, beyond b, int bytes, int left, size_t between) {
    if (b.is_stream) {
        prefetch_stream(p, b.reach.past_second, bytes);
        return;
    }
    const size_t to_second = (size_t)b.reach.second + (b.reach.second >= left ? between : 0);
    const size_t to_first = (size_t)b.reach.first + (b.reach.first >= left ? between : 0);
    /* One comparison, no branch.  (Intel: a comparison for each level takes base in Q4_0 to 0.97 and mini in F16 to 0.96;
     * branches cost as much.) */
    const bool has_more = b.end - p > (ptrdiff_t)to_second;
    const uint8_t *second = has_more ? p + to_second : p, *first = has_more ? p + to_first : p;
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(second + i, 0, 2);
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(first + i, 0, 3);
}

/* Preconditions of every dot kernel.  Weight rows need no alignment. */
static inline void check_dot_rows(dw_qtype type, const dw_dot_job *j) {
    dw_assert(j->n > 0 && j->n % dw_qtype_block(type) == 0 && j->n_rows >= 0 && j->n_cols > 0 && j->n_cols <= DW_DOT_MAX_COLS);
    dw_assert((j->n_rows == 0 || j->w) && j->act && j->y && (uintptr_t)j->act % 64 == 0 && j->act_stride % 64 == 0);
    dw_assert(j->n_cols == 1 || j->y_stride >= (size_t)j->n_rows);
    dw_assert(j->n_rows < 2 || !j->row_bytes ||
              j->row_bytes >= (size_t)(j->n / dw_qtype_block(type)) * (size_t)dw_qtype_block_bytes(type));
    (void)type, (void)j;
}

// X(type, suffix): types with int8 activations; types with F32 activations
// clang-format off
#define INT8_TYPES_BUT_Q2_K(X)                                                                                         \
    X(DW_Q4_0, q4_0) X(DW_Q4_1, q4_1) X(DW_Q5_0, q5_0) X(DW_Q5_1, q5_1) X(DW_Q8_0, q8_0) X(DW_IQ4_NL, iq4_nl)          \
    X(DW_Q3_K, q3_k) X(DW_Q4_K, q4_k) X(DW_Q5_K, q5_k) X(DW_Q6_K, q6_k)
#define INT8_TYPES(X) INT8_TYPES_BUT_Q2_K(X) X(DW_Q2_K, q2_k)
#define FLOAT_TYPES(X) X(DW_F32, f32) X(DW_F16, f16) X(DW_BF16, bf16)
// clang-format on

#define DECLARE(type, suffix)                                                                                          \
    void dw_dot_avx2_##suffix(const dw_dot_job *job);                                                                          \
    void dw_dot_avx512_##suffix(const dw_dot_job *job);
INT8_TYPES(DECLARE)
FLOAT_TYPES(DECLARE)
#undef DECLARE

// Types whose kernels need VBMI and take DW_ACT_INT8_QUARTERS
#define VBMI_TYPES(X)                                                                                                  \
    X(DW_Q4_0, q4_0)                                                                                                   \
    X(DW_Q4_1, q4_1)                                                                                                   \
    X(DW_Q5_0, q5_0) X(DW_Q5_1, q5_1) X(DW_IQ4_NL, iq4_nl) X(DW_Q3_K, q3_k) X(DW_Q4_K, q4_k) X(DW_Q5_K, q5_k)
#define DECLARE(type, suffix) void dw_dot_vbmi_##suffix(const dw_dot_job *job);
VBMI_TYPES(DECLARE)
#undef DECLARE

static inline ALWAYS_INLINE const uint8_t *column_at(const uint8_t *act, size_t act_stride, int c) {
    return act + (size_t)c * act_stride;
}

/* The scale of a block, from the bits of its largest |x|.  Bits are ordered as |x| is, with infinity and NaN on top. */
typedef struct act_scale {
    bool zero, finite;
    float scale, inverse;
} act_scale;

static inline act_scale scale_of(uint32_t largest) {
    if (largest < 0x04000000) return (act_scale){.zero = true, .finite = true}; // 2^-119
    if (largest >= 0x7f800000) return (act_scale){.scale = dw_bits_float(0x7fc00000)};
    const float amax = dw_bits_float(largest);
    return (act_scale){.finite = true, .scale = amax / 127.0f, .inverse = 127.0f / amax};
}

static inline void set_block_sums(record *r, int block, float scale, const int sum[2]) {
    r->block[block].scale = scale;
    r->block[block].sum = scale * (float)(sum[0] + sum[1]);
    for (int half = 0; half < 2; half++) r->sum16[2 * block + half] = scale * (float)sum[half];
}

void dw_act_pack_lanes(const float *x, int n, lane_record *act);
void dw_act_pack_avx512(const float *x, int n, record *act);
void dw_act_pack_quarters(const float *x, int n, quarters *act);
void dw_act_pack_pieces(const float *x, int n, piece_record *act);

#endif
