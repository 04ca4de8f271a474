/* peaks.c - the arithmetic units of x86-64 at their limit.
 *
 * Each loop keeps 8 or 12 independent accumulators in registers (4 tiles for AMX), so that the latency of one step is
 * hidden behind the others; there are no loads or stores in it (look at the disassembly after a change: an array of
 * accumulators was once spilt after every instruction and showed 0.54 instead of 0.89 Top/s).  Values stay finite and
 * normal: sums converge to 1 or wrap as integers.  The compiler must believe that the result is used. */
#include "experiments/peaks.h"

#include "engine.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

/* ---- vectors ------------------------------------------------------------------------------------------------ */

#define EACH8(X, v) X(0, v) X(1, v) X(2, v) X(3, v) X(4, v) X(5, v) X(6, v) X(7, v)
#define EACH12(X, v) EACH8(X, v) X(8, v) X(9, v) X(10, v) X(11, v)
#define EACH16(X, v) EACH12(X, v) X(12, v) X(13, v) X(14, v) X(15, v)
#define FIRST(k, v) v c##k = (v){0} + (k + 1);
#define ADD(k, v) sum += c##k;

/* n times STEP on each of the accumulators c0, c1, .. of type v; a and b are the step's constants. */
#define VECTOR_LOOP(name, features, EACH, v, STEP, type_a, value_a, type_b, value_b)                                   \
    __attribute__((target(features))) static void name(size_t n) {                                                     \
        const type_a a = value_a;                                                                                      \
        const type_b b = value_b;                                                                                      \
        v sum = {0};                                                                                                   \
        EACH(FIRST, v)                                                                                                 \
        for (size_t i = 0; i < n; i++) { EACH(STEP, v) }                                                               \
        EACH(ADD, v)                                                                                                   \
        __asm__ volatile("" : : "v"(sum));                                                                             \
    }

#define FMA_AVX2(k, v) c##k = _mm256_fmadd_ps(c##k, a, b);
#define FMA_AVX512(k, v) c##k = _mm512_fmadd_ps(c##k, a, b);
/* As kernels without VNNI do it: products to 16 bits, pairs to 32, add.  With its temporaries 16 registers hold only 8
 * accumulators.  The sum is an operand, else the product would be computed once. */
#define MADD_AVX2(k, v) c##k = _mm256_add_epi32(c##k, _mm256_madd_epi16(_mm256_maddubs_epi16(c##k, a), b));
/* By name: around the intrinsics gcc 12 copies accumulators. */
#define DPBUSD(k, v) __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(c##k) : "v"(a), "v"(b));
// (Zen 5: 0.90 Tflop/s on two threads with 16 sums, 0.82 with 12.)
#define DPBF16(k, v) __asm__ volatile("vdpbf16ps %2, %1, %0" : "+v"(c##k) : "v"(a), "v"(b));
#define TINY _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.0078125f), _mm512_set1_ps(0.0078125f))

// clang-format off
VECTOR_LOOP(f32_avx2, "avx2,fma", EACH12, __m256, FMA_AVX2, __m256, _mm256_set1_ps(0.999f), __m256, _mm256_set1_ps(0.001f))
VECTOR_LOOP(f32_avx512, "avx512f", EACH12, __m512, FMA_AVX512, __m512, _mm512_set1_ps(0.999f), __m512, _mm512_set1_ps(0.001f))
VECTOR_LOOP(int8_avx2, "avx2", EACH8, __m256i, MADD_AVX2, __m256i, _mm256_set1_epi8(3), __m256i, _mm256_set1_epi16(1))
VECTOR_LOOP(int8_vnni, "avx512f,avx512vnni", EACH12, __m512i, DPBUSD, __m512i, _mm512_set1_epi8(5), __m512i, _mm512_set1_epi8(3))
VECTOR_LOOP(bf16_avx512, "avx512f,avx512bw,avx512bf16", EACH16, __m512, DPBF16, __m512bh, TINY, __m512bh, TINY)
// clang-format on

/* ---- AMX ---------------------------------------------------------------------------------------------------- */

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t colsb[16];
    uint8_t rows[16];
} tile_config;

enum { TILE_BYTES = 1024 };

/* The compiler believes that the instruction reads 8 bytes of the configuration and drops the stores to the rest; the
 * empty statement makes it keep them. */
__attribute__((target("amx-tile"))) static void tiles_begin(const uint8_t *tile) {
    tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.rows[i] = 16;
        c.colsb[i] = 64;
    }
    __asm__ volatile("" ::"r"(&c) : "memory");
    _tile_loadconfig(&c);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, tile, 64);
    _tile_loadd(5, tile, 64);
    _tile_loadd(6, tile, 64);
    _tile_loadd(7, tile, 64);
}

__attribute__((target("amx-tile"))) static void tiles_end(void) {
    uint8_t result[TILE_BYTES];
    _tile_stored(0, result, 64);
    _tile_release();
    __asm__ volatile("" : : "r"(result) : "memory");
}

/* BF16 0x3c00 is 2^-7; as bytes 0 and 60. */
static void fill_tile(uint8_t *tile) {
    for (int i = 0; i < TILE_BYTES; i++) tile[i] = i % 2 ? 0x3c : 0;
}

#define TILE_LOOPS(type, dot)                                                                                          \
    __attribute__((target("amx-tile,amx-" #type))) static void type##_amx(size_t n) {                                  \
        _Alignas(64) uint8_t tile[TILE_BYTES];                                                                         \
        fill_tile(tile);                                                                                               \
        tiles_begin(tile);                                                                                             \
        for (size_t i = 0; i < n; i++) {                                                                               \
            dot(0, 4, 6);                                                                                              \
            dot(1, 4, 7);                                                                                              \
            dot(2, 5, 6);                                                                                              \
            dot(3, 5, 7);                                                                                              \
        }                                                                                                              \
        tiles_end();                                                                                                   \
    }                                                                                                                  \
    __attribute__((target("amx-tile,amx-" #type))) static void type##_amx_loads(size_t n) {                            \
        _Alignas(64) uint8_t tile[4][TILE_BYTES]; /* rows within cache lines: else half the speed */                   \
        for (int k = 0; k < 4; k++) fill_tile(tile[k]);                                                                \
        tiles_begin(tile[0]);                                                                                          \
        for (size_t i = 0; i < n; i++) {                                                                               \
            _tile_loadd(4, tile[0], 64);                                                                               \
            _tile_loadd(6, tile[2], 64);                                                                               \
            dot(0, 4, 6);                                                                                              \
            _tile_loadd(7, tile[3], 64);                                                                               \
            dot(1, 4, 7);                                                                                              \
            _tile_loadd(5, tile[1], 64);                                                                               \
            dot(2, 5, 6);                                                                                              \
            dot(3, 5, 7);                                                                                              \
        }                                                                                                              \
        tiles_end();                                                                                                   \
    }

TILE_LOOPS(int8, _tile_dpbssd)
TILE_LOOPS(bf16, _tile_dpbf16ps)

/* ---- the table ------------------------------------------------------------------------------------------------ */

/* The engine's own question also asks the system for the tiles, which must happen before threads start. */
static bool has_amx(void) {
    const char *level = dw_cpu_level(NULL);
    return level && strstr(level, "amx");
}

static bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
static bool has_avx512(void) { return __builtin_cpu_supports("avx512f"); }
static bool has_vnni(void) { return __builtin_cpu_supports("avx512vnni"); }
static bool has_bf16(void) { return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw"); }

// clang-format off
const exp_peak exp_peaks[] = {
    // name                          unit       ops of a step
    {"f32 fma avx2",                 "Tflop/s", 12 *  8 * 2,        has_avx2,   f32_avx2},
    {"f32 fma avx512",               "Tflop/s", 12 * 16 * 2,        has_avx512, f32_avx512},
    {"int8 maddubs+madd+add avx2",   "Top/s",   8 * 32 * 2,         has_avx2,   int8_avx2},
    {"int8 dpbusd avx512-vnni",      "Top/s",   12 * 64 * 2,        has_vnni,   int8_vnni},
    {"bf16 dpbf16ps avx512",         "Tflop/s", 16 * 32 * 2,        has_bf16,   bf16_avx512},
    {"int8 amx, registers",          "Top/s",   4 * 16 * 16 * 64 * 2, has_amx,  int8_amx},
    {"int8 amx, loads from L1",      "Top/s",   4 * 16 * 16 * 64 * 2, has_amx,  int8_amx_loads},
    {"bf16 amx, registers",          "Tflop/s", 4 * 16 * 16 * 32 * 2, has_amx,  bf16_amx},
    {"bf16 amx, loads from L1",      "Tflop/s", 4 * 16 * 16 * 32 * 2, has_amx,  bf16_amx_loads},
    {0},
};
// clang-format on

#else

const exp_peak exp_peaks[] = {{0}};

#endif
