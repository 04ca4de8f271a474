/* peaks.c - the arithmetic units of x86-64 at their limit.
 *
 * Each loop keeps 8 or 12 independent accumulators in registers (4 tiles for AMX), so that the latency of one step is hidden
 * behind the others; there are no loads or stores in it (look at the disassembly after a change: an array of accumulators
 * was once spilt after every instruction and showed 0.54 instead of 0.89 Top/s).  Values stay finite and normal: sums
 * converge to 1 or wrap as integers.  The result goes into a volatile. */
#include "experiments/peaks.h"

#include "engine.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define EACH8(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define EACH12(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

static volatile float sink_f32;
static volatile int sink_i32;

/* ---- F32 ------------------------------------------------------------------------------------------------- */

__attribute__((target("avx2,fma"))) static void f32_avx2(size_t n) {
    const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
#define X(k) __m256 c##k = _mm256_set1_ps(1.0f + 0.01f * k);
    EACH12(X)
#undef X
    for (size_t i = 0; i < n; i++) {
#define X(k) c##k = _mm256_fmadd_ps(c##k, a, b);
        EACH12(X)
#undef X
    }
    __m256 sum = _mm256_setzero_ps();
#define X(k) sum = _mm256_add_ps(sum, c##k);
    EACH12(X)
#undef X
    sink_f32 = _mm256_cvtss_f32(sum);
}

__attribute__((target("avx512f"))) static void f32_avx512(size_t n) {
    const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
#define X(k) __m512 c##k = _mm512_set1_ps(1.0f + 0.01f * k);
    EACH12(X)
#undef X
    for (size_t i = 0; i < n; i++) {
#define X(k) c##k = _mm512_fmadd_ps(c##k, a, b);
        EACH12(X)
#undef X
    }
    __m512 sum = _mm512_setzero_ps();
#define X(k) sum = _mm512_add_ps(sum, c##k);
    EACH12(X)
#undef X
    sink_f32 = _mm512_reduce_add_ps(sum);
}

/* ---- int8 ------------------------------------------------------------------------------------------------- */

/* As kernels without VNNI do it: products to 16 bits, pairs to 32, add.  With its temporaries 16 registers hold only 8 accumulators. */
__attribute__((target("avx2"))) static void int8_avx2(size_t n) {
    const __m256i b = _mm256_set1_epi8(3), ones = _mm256_set1_epi16(1);
#define X(k) __m256i c##k = _mm256_set1_epi32(k);
    EACH8(X)
#undef X
    for (size_t i = 0; i < n; i++) { // the sum is an operand, else the product would be computed once
#define X(k) c##k = _mm256_add_epi32(c##k, _mm256_madd_epi16(_mm256_maddubs_epi16(c##k, b), ones));
        EACH8(X)
#undef X
    }
    __m256i sum = _mm256_setzero_si256();
#define X(k) sum = _mm256_add_epi32(sum, c##k);
    EACH8(X)
#undef X
    sink_i32 = _mm256_extract_epi32(sum, 0);
}

/* By name: around the intrinsic gcc 12 copies every accumulator twice. */
__attribute__((target("avx512f,avx512vnni"))) static void int8_vnni(size_t n) {
    const __m512i a = _mm512_set1_epi8(5), b = _mm512_set1_epi8(3);
#define X(k) __m512i c##k = _mm512_set1_epi32(k);
    EACH12(X)
#undef X
    for (size_t i = 0; i < n; i++) {
#define X(k) __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(c##k) : "v"(a), "v"(b));
        EACH12(X)
#undef X
    }
    __m512i sum = _mm512_setzero_si512();
#define X(k) sum = _mm512_add_epi32(sum, c##k);
    EACH12(X)
#undef X
    sink_i32 = _mm512_reduce_add_epi32(sum);
}

/* ---- BF16 -------------------------------------------------------------------------------------------------- */

__attribute__((target("avx512f,avx512bw,avx512bf16"))) static void bf16_avx512(size_t n) {
    const __m512 tiny = _mm512_set1_ps(0.0078125f);
    const __m512bh a = _mm512_cvtne2ps_pbh(tiny, tiny);
#define X(k) __m512 c##k = _mm512_set1_ps(1.0f + 0.01f * k);
    EACH12(X)
#undef X
    for (size_t i = 0; i < n; i++) {
#define X(k) c##k = _mm512_dpbf16_ps(c##k, a, a);
        EACH12(X)
#undef X
    }
    __m512 sum = _mm512_setzero_ps();
#define X(k) sum = _mm512_add_ps(sum, c##k);
    EACH12(X)
#undef X
    sink_f32 = _mm512_reduce_add_ps(sum);
}

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
    int first;
    memcpy(&first, result, sizeof first);
    sink_i32 = first;
}

/* BF16 0x3c00 is 2^-7; as bytes 0 and 60. */
static void fill_tile(uint8_t *tile) {
    for (int i = 0; i < TILE_BYTES; i++) tile[i] = i % 2 ? 0x3c : 0;
}

__attribute__((target("amx-tile,amx-int8"))) static void int8_amx(size_t n) {
    _Alignas(64) uint8_t tile[TILE_BYTES];
    fill_tile(tile);
    tiles_begin(tile);
    for (size_t i = 0; i < n; i++) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    tiles_end();
}

__attribute__((target("amx-tile,amx-int8"))) static void int8_amx_loads(size_t n) {
    _Alignas(64) uint8_t tile[4][TILE_BYTES]; // rows within cache lines: else half the speed
    for (int k = 0; k < 4; k++) fill_tile(tile[k]);
    tiles_begin(tile[0]);
    for (size_t i = 0; i < n; i++) {
        _tile_loadd(4, tile[0], 64);
        _tile_loadd(6, tile[2], 64);
        _tile_dpbssd(0, 4, 6);
        _tile_loadd(7, tile[3], 64);
        _tile_dpbssd(1, 4, 7);
        _tile_loadd(5, tile[1], 64);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    tiles_end();
}

__attribute__((target("amx-tile,amx-bf16"))) static void bf16_amx(size_t n) {
    _Alignas(64) uint8_t tile[TILE_BYTES];
    fill_tile(tile);
    tiles_begin(tile);
    for (size_t i = 0; i < n; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    tiles_end();
}

__attribute__((target("amx-tile,amx-bf16"))) static void bf16_amx_loads(size_t n) {
    _Alignas(64) uint8_t tile[4][TILE_BYTES]; // rows within cache lines: else half the speed
    for (int k = 0; k < 4; k++) fill_tile(tile[k]);
    tiles_begin(tile[0]);
    for (size_t i = 0; i < n; i++) {
        _tile_loadd(4, tile[0], 64);
        _tile_loadd(6, tile[2], 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, tile[3], 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, tile[1], 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    tiles_end();
}

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
    {"bf16 dpbf16ps avx512",         "Tflop/s", 12 * 32 * 2,        has_bf16,   bf16_avx512},
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
