/* kernels_dot.c - dot products of packed weight rows with 1..8 activation vectors: the tables, packing, portable rows.
 *
 * Generation reads every weight once per token, so the instructions for a row must take no longer than the memory needs
 * to deliver it.  Weights stay as the file has them.  Activations are packed once for all rows (layout: kernels_dot.h).
 * The portable kernels here define the results; kernels_dot_avx2.c, .._avx512.c, .._vbmi.c and .._q2_k.c do the same
 * with vectors.  A type that is in none of their lists is decoded, a record at a time, and multiplied as F32.
 *
 * A row's result depends only on the row, the activations, the level, VBMI, the CPU's maker and, on Zen 5, on whether
 * the model is larger than DW_CACHED (dw_reach, dw_rows_with_vbmi), not on other rows or columns of the call. */
#include "backends/kernels_dot.h"
#include "backends/kernels_vec.h"

#include <string.h>

/* ---- packing ------------------------------------------------------------------------------------------- */

size_t dw_act_bytes(dw_act_form form, int n) {
    if (form == DW_ACT_F32) return ((size_t)n * sizeof(float) + 63) / 64 * 64;
    return (size_t)(n + RECORD - 1) / RECORD *
           (form == DW_ACT_INT8_QUARTERS ? sizeof(quarters) : sizeof(record)); // (the others', too)
}

// Adding 1.5 * 2^23 rounds to an integer, half to even, and leaves it in the low bits.
static int32_t round_small(float x) { return (int32_t)(dw_float_bits(x + 12582912.0f) - dw_float_bits(12582912.0f)); }

static void pack_block(const float *x, record *r, int block) {
    uint32_t largest = 0;
    for (int i = 0; i < 32; i++) {
        const uint32_t bits = dw_float_bits(x[i]) & 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    const act_scale s = scale_of(largest);
    if (s.zero) return;
    int sum[2] = {0, 0};
    for (int half = 0; half < 2 && s.finite; half++) {
        int8_t *q = r->q + piece_place(2 * block + half);
        for (int i = 0; i < 16; i++) sum[half] += q[i] = (int8_t)round_small(x[16 * half + i] * s.inverse);
    }
    set_block_sums(r, block, s.scale, sum);
}

static void pack_portable(const float *x, int n, record *act) {
    memset(act, 0, dw_act_bytes(DW_ACT_INT8, n));
    for (int i = 0; i < n; i += 32) pack_block(x + i, act + i / RECORD, i % RECORD / 32);
}

void dw_act_pack(dw_level level, dw_act_form form, const float *x, int n, uint8_t *act) {
    dw_assert(x && act && n > 0 && (uintptr_t)act % 64 == 0 && (form == DW_ACT_F32 || n % 32 == 0));
    if (form == DW_ACT_F32) {
        memcpy(act, x, (size_t)n * sizeof *x);
        memset(act + (size_t)n * sizeof *x, 0, dw_act_bytes(form, n) - (size_t)n * sizeof *x);
        return;
    }
    dw_assert(form == DW_ACT_INT8 || level >= (form == DW_ACT_INT8_LANES ? DW_AVX2 : DW_AVX512));
#if defined(__x86_64__)
    if (form == DW_ACT_INT8_QUARTERS) return dw_act_pack_quarters(x, n, (quarters *)act);
    if (form == DW_ACT_INT8_PIECES) return dw_act_pack_pieces(x, n, (piece_record *)act);
    if (form == DW_ACT_INT8_LANES) return dw_act_pack_lanes(x, n, (lane_record *)act);
    if (level >= DW_AVX512) return dw_act_pack_avx512(x, n, (record *)act);
#endif
    (void)level;
    pack_portable(x, n, (record *)act);
}

/* ---- portable rows of quantized types ------------------------------------------------------------------ */

// Up to 256 weights: value = d u - m, d and m for each piece of 16.
typedef struct weights {
    uint8_t u[RECORD];
    float d[PIECES], m[PIECES];
} weights;

static inline float half_at(const uint8_t *p) { return dw_f16_to_f32_inline(dw_le16(p)); }

static void set_block(weights *w, int block, float d, float m) {
    w->d[2 * block] = w->d[2 * block + 1] = d;
    w->m[2 * block] = w->m[2 * block + 1] = m;
}

// Loops of 16 and 32 with plain indices, which compilers turn into vector code.
static inline void nibbles(const uint8_t *restrict p, uint8_t *restrict u) {
    for (int i = 0; i < 16; i++) u[i] = p[i] & 15;
    for (int i = 0; i < 16; i++) u[i + 16] = p[i] >> 4;
}

static inline void fifth_bits(uint32_t bits, uint8_t *u) {
    for (int i = 0; i < 32; i++) u[i] |= (uint8_t)((bits >> i & 1) << 4);
}

// u += (bits of p from `shift` on, under the mask) << up
static inline void add_bits(const uint8_t *restrict p, int shift, int mask, int up, uint8_t *restrict u) {
    for (int i = 0; i < 32; i++) u[i] = (uint8_t)(u[i] + ((p[i] >> shift & mask) << up));
}

// Blocks of 32: one at p.
static inline void block_q4_0(const uint8_t *p, weights *w, int b) {
    nibbles(p + 2, w->u + 32 * b);
    set_block(w, b, half_at(p), 8 * half_at(p));
}

static inline void block_q4_1(const uint8_t *p, weights *w, int b) {
    nibbles(p + 4, w->u + 32 * b);
    set_block(w, b, half_at(p), -half_at(p + 2));
}

static inline void block_q5_0(const uint8_t *p, weights *w, int b) {
    nibbles(p + 6, w->u + 32 * b);
    fifth_bits(dw_le32(p + 2), w->u + 32 * b);
    set_block(w, b, half_at(p), 16 * half_at(p));
}

static inline void block_q5_1(const uint8_t *p, weights *w, int b) {
    nibbles(p + 8, w->u + 32 * b);
    fifth_bits(dw_le32(p + 4), w->u + 32 * b);
    set_block(w, b, half_at(p), -half_at(p + 2));
}

static inline void block_q8_0(const uint8_t *p, weights *w, int b) {
    uint8_t *restrict u = w->u + 32 * b;
    for (int i = 0; i < 32; i++) u[i] = p[2 + i] ^ 0x80;
    set_block(w, b, half_at(p), 128 * half_at(p));
}

static inline void block_iq4_nl(const uint8_t *p, weights *w, int b) {
    static const int8_t value[16] = {DW_IQ4_NL_VALUES};
    uint8_t *u = w->u + 32 * b;
    nibbles(p + 2, u);
    for (int i = 0; i < 32; i++) u[i] = (uint8_t)(value[u[i]] + 128);
    set_block(w, b, half_at(p), 128 * half_at(p));
}

// Superblocks of 256: one at p.
static inline void block_q2_k(const uint8_t *p, weights *w, int b) {
    (void)b;
    memset(w->u, 0, RECORD);
    for (int s = 0; s < BLOCKS; s++) add_bits(p + 16 + s / 4 * 32, s % 4 * 2, 3, 0, w->u + 32 * s);
    const float d = half_at(p + 80), m = half_at(p + 82);
    for (int k = 0; k < PIECES; k++) w->d[k] = d * (float)(p[k] & 15), w->m[k] = m * (float)(p[k] >> 4);
}

static inline void block_q3_k(const uint8_t *p, weights *w, int b) {
    (void)b;
    memset(w->u, 0, RECORD);
    for (int s = 0; s < BLOCKS; s++) {
        add_bits(p + 32 + s / 4 * 32, s % 4 * 2, 3, 0, w->u + 32 * s);
        add_bits(p, s, 1, 2, w->u + 32 * s);
    }
    uint64_t scales[2];
    dw_unpack_q3_scales(p + 96, &scales[0], &scales[1]);
    const float d = half_at(p + 108);
    for (int k = 0; k < PIECES; k++) {
        w->d[k] = d * (float)((int)(scales[k / 8] >> k % 8 * 8 & 63) - 32);
        w->m[k] = 4 * w->d[k];
    }
}

static inline void scales_mins(const uint8_t *p, weights *w) {
    uint64_t scales, mins;
    dw_unpack_scales_mins(p + 4, &scales, &mins);
    const float d = half_at(p), m = half_at(p + 2);
    for (int s = 0; s < BLOCKS; s++)
        set_block(w, s, d * (float)(int)(scales >> 8 * s & 63), m * (float)(int)(mins >> 8 * s & 63));
}

static inline void block_q4_k(const uint8_t *p, weights *w, int b) {
    (void)b;
    memset(w->u, 0, RECORD);
    for (int s = 0; s < BLOCKS; s++) add_bits(p + 16 + s / 2 * 32, s % 2 * 4, 15, 0, w->u + 32 * s);
    scales_mins(p, w);
}

static inline void block_q5_k(const uint8_t *p, weights *w, int b) {
    (void)b;
    memset(w->u, 0, RECORD);
    for (int s = 0; s < BLOCKS; s++) {
        add_bits(p + 48 + s / 2 * 32, s % 2 * 4, 15, 0, w->u + 32 * s);
        add_bits(p + 16, s, 1, 4, w->u + 32 * s);
    }
    scales_mins(p, w);
}

static inline void block_q6_k(const uint8_t *p, weights *w, int b) {
    (void)b;
    memset(w->u, 0, RECORD);
    for (int s = 0; s < BLOCKS; s++) {
        const int half = s / 4, j = s % 4;
        add_bits(p + 64 * half + j % 2 * 32, j / 2 * 4, 15, 0, w->u + 32 * s);
        add_bits(p + 128 + 32 * half, 2 * j, 3, 4, w->u + 32 * s);
    }
    const float d = half_at(p + 208);
    for (int k = 0; k < PIECES; k++) {
        w->d[k] = d * (float)(int8_t)p[192 + k];
        w->m[k] = 32 * w->d[k];
    }
}

// Eight numbers at once; the compiler chooses the vectors.
typedef uint8_t bytes8 __attribute__((vector_size(8)));
typedef int8_t chars8 __attribute__((vector_size(8)));
typedef int16_t words8 __attribute__((vector_size(16)));
typedef int32_t ints8 __attribute__((vector_size(32)));
typedef float floats8 __attribute__((vector_size(32)));

// Products of eight weights and activations: at most 255 * 127, which fits in 16 bits.
static inline words8 products(const uint8_t *u, const int8_t *q) {
    bytes8 a;
    chars8 b;
    memcpy(&a, u, sizeof a), memcpy(&b, q, sizeof b);
    return __builtin_convertvector(a, words8) * __builtin_convertvector(b, words8);
}

// Adds the pieces' products to the lanes of sum, and what must be subtracted later to off.
static inline ALWAYS_INLINE void add_pieces(const weights *w, const record *x, int n_pieces, floats8 *sum, float *off) {
    for (int k = 0; k < n_pieces; k++) {
        const uint8_t *u = w->u + 16 * k;
        const int8_t *q = x->q + piece_place(k);
        const ints8 dots = __builtin_convertvector(products(u, q), ints8) +
                           __builtin_convertvector(products(u + 8, q + 8), ints8);
        *sum += w->d[k] * x->block[k / 2].scale * __builtin_convertvector(dots, floats8);
        *off += w->m[k] * x->sum16[k];
    }
}

static inline ALWAYS_INLINE void rows_int8(dw_qtype type, void (*unpack)(const uint8_t *, weights *, int),
                                           const dw_dot_job *job) {
    check_dot_rows(type, job);
    const dw_dot_job j = *job;
    const int block = is_superblock(type) ? RECORD : 32, bytes = record_bytes(type) / (RECORD / block);
    weights u;
    for (int r = 0; r < j.n_rows; r++) {
        floats8 sum[DW_DOT_MAX_COLS] = {{0}};
        float off[DW_DOT_MAX_COLS] = {0};
        const uint8_t *p = j.w + (size_t)r * j.row_bytes;
        for (int i = 0; i < j.n; i += RECORD) {
            const int n_here = j.n - i < RECORD ? j.n - i : RECORD;
            for (int b = 0; b < n_here / block; b++, p += bytes) unpack(p, &u, b);
            for (int c = 0; c < j.n_cols; c++)
                add_pieces(&u, (const record *)column_at(j.act, j.act_stride, c) + i / RECORD, n_here / 16, &sum[c],
                           &off[c]);
        }
        for (int c = 0; c < j.n_cols; c++) {
            float all = -off[c];
            for (int l = 0; l < 8; l++) all += sum[c][l];
            j.y[(size_t)c * j.y_stride + (size_t)r] = all;
        }
    }
}

// Defines portable_q4_0, portable_q8_0, ..: one for each row of the list.
#define PORTABLE_ROWS(type, suffix) \
    static void portable_##suffix(const dw_dot_job *job) { rows_int8(type, block_##suffix, job); }
INT8_TYPES(PORTABLE_ROWS)

/* ---- portable rows of F32, F16, BF16 ------------------------------------------------------------------- */

static inline float value_f32(const uint8_t *p) { return dw_bits_float(dw_le32(p)); }
static inline float value_f16(const uint8_t *p) { return half_at(p); }
static inline float value_bf16(const uint8_t *p) { return dw_bf16_to_f32(dw_le16(p)); }

static inline ALWAYS_INLINE void rows_float(dw_qtype type, float (*value)(const uint8_t *), const dw_dot_job *job) {
    check_dot_rows(type, job);
    const dw_dot_job j = *job;
    const size_t bytes = (size_t)value_bytes(type);
    for (int c = 0; c < j.n_cols; c++)
        for (int r = 0; r < j.n_rows; r++) {
            const uint8_t *p = j.w + (size_t)r * j.row_bytes;
            const float *x = (const float *)column_at(j.act, j.act_stride, c);
            float lane[8] = {0}, sum = 0;
            int i = 0;
            for (; i + 8 <= j.n; i += 8)
                for (int l = 0; l < 8; l++) lane[l] += value(p + (size_t)(i + l) * bytes) * x[i + l];
            for (int l = 0; i + l < j.n; l++) lane[l] += value(p + (size_t)(i + l) * bytes) * x[i + l];
            for (int l = 0; l < 8; l++) sum += lane[l];
            j.y[(size_t)c * j.y_stride + (size_t)r] = sum;
        }
}

// Defines portable_f32, portable_f16, portable_bf16.
#define PORTABLE_FLOAT(type, suffix) \
    static void portable_##suffix(const dw_dot_job *job) { rows_float(type, value_##suffix, job); }
FLOAT_TYPES(PORTABLE_FLOAT)

/* ---- rows that are decoded first ------------------------------------------------------------------------ */

/* Types without a kernel: a row is decoded a record at a time and multiplied by the level's F32 kernel. */
static __attribute__((noinline)) void rows_decoded(dw_level level, const dw_qtype_row *type, const dw_dot_job *job) {
    check_dot_rows(type->id, job);
    const dw_dot_job j = *job;
    dw_unpack_fn *decode = dw_unpack_of(level, type);
    const dw_dot_kernel *f32 = &dw_dot_kernels[level][DW_F32];
    _Alignas(64) float values[RECORD];
    const uint8_t *w = j.w;
    for (int r = 0; r < j.n_rows; r++, w += j.row_bytes) {
        float sum[DW_DOT_MAX_COLS] = {0}, part[DW_DOT_MAX_COLS];
        for (int i = 0; i < j.n; i += RECORD) {
            const int n_here = j.n - i < RECORD ? j.n - i : RECORD;
            decode(w + dw_qtype_row_bytes(type, (size_t)i), values, (size_t)n_here);
            f32->rows(&(dw_dot_job){.w = (const uint8_t *)values,
                                    .n_rows = 1,
                                    .n = n_here,
                                    .act = j.act + (size_t)i * sizeof(float),
                                    .act_stride = j.act_stride,
                                    .n_cols = j.n_cols,
                                    .y = part,
                                    .y_stride = 1});
            for (int c = 0; c < j.n_cols; c++) sum[c] += part[c];
        }
        for (int c = 0; c < j.n_cols; c++) j.y[(size_t)c * j.y_stride + (size_t)r] = sum[c];
    }
}

// Defines decoded_PORTABLE_q4_0, decoded_AVX2_q4_0, ..: one for each level and type.
#define DECODED(NAME, level, suffix)                                                                                   \
    static void decoded_##level##_##suffix(const dw_dot_job *job) {                                                    \
        rows_decoded(DW_##level, dw_qtype_get(DW_##NAME), job);                                                        \
    }
#define DECODED_ROW(NAME, level, suffix) [DW_##NAME] = {DW_##NAME, DW_##level, DW_ACT_F32, decoded_##level##_##suffix},

/* ---- the tables ---------------------------------------------------------------------------------------- */

#define DEFINE(NAME, id, block, bytes, file_type, suffix, HAS) DECODED(NAME, PORTABLE, suffix)
DW_QTYPES(DEFINE)
#undef DEFINE
#define PORTABLE_DECODED(NAME, id, block, bytes, file_type, suffix, HAS) DECODED_ROW(NAME, PORTABLE, suffix)
#define PORTABLE_INT8(type, suffix) [type] = {type, DW_PORTABLE, DW_ACT_INT8, portable_##suffix},
#define PORTABLE_F32(type, suffix) [type] = {type, DW_PORTABLE, DW_ACT_F32, portable_##suffix},
#if defined(__x86_64__)
#define DEFINE(NAME, id, block, bytes, file_type, suffix, HAS) DECODED(NAME, AVX2, suffix) DECODED(NAME, AVX512, suffix)
DW_QTYPES(DEFINE)
#define AVX2_DECODED(NAME, id, block, bytes, file_type, suffix, HAS) DECODED_ROW(NAME, AVX2, suffix)
#define AVX512_DECODED(NAME, id, block, bytes, file_type, suffix, HAS) DECODED_ROW(NAME, AVX512, suffix)
#define AVX2_INT8(type, suffix) [type] = {type, DW_AVX2, DW_ACT_INT8_LANES, dw_dot_avx2_##suffix},
#define AVX2_F32(type, suffix) [type] = {type, DW_AVX2, DW_ACT_F32, dw_dot_avx2_##suffix},
#define AVX512_INT8(type, suffix) [type] = {type, DW_AVX512, DW_ACT_INT8, dw_dot_avx512_##suffix},
#define AVX512_F32(type, suffix) [type] = {type, DW_AVX512, DW_ACT_F32, dw_dot_avx512_##suffix},
#define VBMI_ROW(type, suffix) [type] = {type, DW_AVX512, DW_ACT_INT8_QUARTERS, dw_dot_vbmi_##suffix},
#endif

const dw_dot_kernel dw_dot_kernels[DW_N_LEVELS][DW_QTYPE_END] = {
    [DW_PORTABLE] = {INT8_TYPES(PORTABLE_INT8) FLOAT_TYPES(PORTABLE_F32)},
#if defined(__x86_64__)
    [DW_AVX2] = {INT8_TYPES(AVX2_INT8) FLOAT_TYPES(AVX2_F32)},
    [DW_AVX512] = {[DW_Q2_K] = {DW_Q2_K, DW_AVX512, DW_ACT_INT8_PIECES, dw_dot_avx512_q2_k},
                   INT8_TYPES_BUT_Q2_K(AVX512_INT8) FLOAT_TYPES(AVX512_F32)},
#endif
};

const dw_dot_kernel dw_dot_vbmi[DW_QTYPE_END] = {
#if defined(__x86_64__)
    VBMI_TYPES(VBMI_ROW)
#endif
};

const dw_dot_kernel dw_dot_decoded[DW_N_LEVELS][DW_QTYPE_END] = {
    [DW_PORTABLE] = {DW_QTYPES(PORTABLE_DECODED)},
#if defined(__x86_64__)
    [DW_AVX2] = {DW_QTYPES(AVX2_DECODED)},
    [DW_AVX512] = {DW_QTYPES(AVX512_DECODED)},
#endif
};

static const dw_dot_kernel *find(const dw_dot_kernel table[][DW_QTYPE_END], dw_level level, dw_qtype type) {
    for (int l = (int)level; l >= 0; l--)
        if (table[l][type].rows) return &table[l][type];
    return NULL;
}

const dw_dot_kernel *dw_dot_find(dw_level level, dw_row_kind rows) {
    const dw_qtype type = rows.type;
    if (dw_dot_vbmi[type].rows && dw_rows_with_vbmi(level, rows)) return &dw_dot_vbmi[type];
    const dw_dot_kernel *own = find(dw_dot_kernels, level, type);
    return own ? own : find(dw_dot_decoded, level, type);
}
