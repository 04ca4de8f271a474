/* cpu_features.c - which level of kernels this machine can run, and which one is used.
 *
 * A level is usable when the CPU has its instructions and the operating system saves its registers (XCR0).  AMX also
 * needs a permission for its tiles.  The process asks for it once (Linux, arch_prctl), and threads that exist already
 * have it, too. */
#include "backends/kernels.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

const char *const dw_level_names[DW_N_LEVELS] = {"portable", "avx2", "avx512", "amx"};

static bool usable[DW_N_LEVELS] = {[DW_PORTABLE] = true};
static bool has_bf16_dots, has_vbmi;
static dw_maker maker;

enum { LEAF7_1_A_AVX512_BF16 = 1 << 5 };

static bool has(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

bool dw_level_runs_on(dw_level level, const dw_cpu_words *cpu) {
    enum { STATE_YMM = 0x6, STATE_ZMM = 0xe6, STATE_TILE = 0x60000 };
    enum { LEAF1_C_FMA = 1 << 12, LEAF1_C_OSXSAVE = 1 << 27, LEAF1_C_AVX = 1 << 28, LEAF1_C_F16C = 1 << 29 };
    enum { LEAF7_B_AVX2 = 1 << 5, LEAF7_B_BMI2 = 1 << 8 };
    enum { LEAF7_B_F = 1 << 16, LEAF7_B_DQ = 1 << 17, LEAF7_B_BW = 1 << 30, LEAF7_C_VNNI = 1 << 11 };
    enum { LEAF7_D_AMX_BF16 = 1 << 22, LEAF7_D_AMX_TILE = 1 << 24, LEAF7_D_AMX_INT8 = 1 << 25 };
    const uint32_t leaf7_b_vl = 1u << 31;
    switch (level) {
    case DW_PORTABLE: return true;
    case DW_AVX2:
        return has(cpu->leaf1_c, LEAF1_C_OSXSAVE | LEAF1_C_AVX | LEAF1_C_FMA | LEAF1_C_F16C) &&
               has(cpu->state, STATE_YMM) && has(cpu->leaf7_b, LEAF7_B_AVX2 | LEAF7_B_BMI2);
    case DW_AVX512:
        return dw_level_runs_on(DW_AVX2, cpu) && has(cpu->state, STATE_ZMM) && has(cpu->leaf7_c, LEAF7_C_VNNI) &&
               has(cpu->leaf7_b, LEAF7_B_F | LEAF7_B_DQ | LEAF7_B_BW | leaf7_b_vl);
    case DW_AMX: // tiles are filled by AVX512_BF16
        return dw_level_runs_on(DW_AVX512, cpu) && has(cpu->state, STATE_TILE) &&
               has(cpu->leaf7_d, LEAF7_D_AMX_BF16 | LEAF7_D_AMX_TILE | LEAF7_D_AMX_INT8) &&
               has(cpu->leaf7_1_a, LEAF7_1_A_AVX512_BF16);
    default: return false;
    }
}

bool dw_vbmi_runs_on(const dw_cpu_words *cpu) {
    enum { LEAF7_C_VBMI = 1 << 1 };
    return dw_level_runs_on(DW_AVX512, cpu) && has(cpu->leaf7_c, LEAF7_C_VBMI);
}

#if defined(__x86_64__)

// State components that the operating system saves.
static uint32_t saved_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static bool permit_tiles(void) {
#if defined(__linux__)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}

static void ask_maker(void) {
    enum { FAMILY_ZEN_5 = 0x1a };
    uint32_t a, b, c, d, version;
    if (!__get_cpuid(0, &a, &b, &c, &d) || !__get_cpuid(1, &version, &a, &a, &a)) return;
    const uint32_t family = (version >> 8 & 15) + (version >> 20 & 255);
    if (b == signature_INTEL_ebx && c == signature_INTEL_ecx && d == signature_INTEL_edx) maker = DW_INTEL;
    if (b == signature_AMD_ebx && c == signature_AMD_ecx && d == signature_AMD_edx && family >= FAMILY_ZEN_5)
        maker = DW_ZEN_5;
}

static void ask_machine(void) {
    enum { LEAF1_C_OSXSAVE = 1 << 27 };
    dw_cpu_words cpu = {0};
    uint32_t a, b, c, d;
    ask_maker();
    if (!__get_cpuid(1, &a, &b, &cpu.leaf1_c, &d) || !has(cpu.leaf1_c, LEAF1_C_OSXSAVE)) return;
    cpu.state = saved_state();
    if (!__get_cpuid_count(7, 0, &a, &cpu.leaf7_b, &cpu.leaf7_c, &cpu.leaf7_d)) return;
    if (a >= 1) __get_cpuid_count(7, 1, &cpu.leaf7_1_a, &b, &c, &d); // a: the number of the last subleaf
    for (dw_level l = DW_AVX2; l < DW_N_LEVELS; l++) usable[l] = dw_level_runs_on(l, &cpu);
    usable[DW_AMX] = usable[DW_AMX] && permit_tiles();
    has_vbmi = dw_vbmi_runs_on(&cpu);
    has_bf16_dots = usable[DW_AVX512] && has(cpu.leaf7_1_a, LEAF7_1_A_AVX512_BF16);
}

#else

static void ask_machine(void) {}

#endif

bool dw_level_usable(dw_level level) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask_machine);
    return usable[level];
}

enum { LONGEST_CACHED_ROW = 2048 }; // values; longer rows are probably of models that no cache holds

/* Zen 5, from memory, at all levels (results/kernels.md).  Activations that fill half of the first-level cache leave
 * little of it to weights.  Rows of up to MOST_SHORT bytes are taken together as elsewhere. */
static dw_reach far_reach_of_zen_5(dw_level level, dw_row_kind rows) {
    enum { MOST_ACT = 24 << 10, MOST_SHORT = 384, STREAMS_FROM = 512 << 10 };
    const size_t row_bytes = dw_qtype_row_bytes(dw_qtype_get(rows.type), (size_t)rows.n);
    dw_reach reach = {.first = 0,
                      .second = 16384,
                      .one_by_one = row_bytes > MOST_SHORT,
                      .streams_from = row_bytes > MOST_SHORT ? STREAMS_FROM : 0,
                      .past_second = rows.n > LONGEST_CACHED_ROW};
    if (dw_act_bytes(dw_dot_find(level, rows)->form, rows.n) > MOST_ACT)
        reach.first = 4096, reach.second = 8192, reach.few_sums = rows.type == DW_F16 || rows.type == DW_BF16;
    return reach;
}

dw_reach dw_reach_on(dw_maker on, dw_level level, dw_row_kind rows) {
    const bool is_packed = dw_qtype_block(rows.type) > 1, is_16_bit = rows.type == DW_F16 || rows.type == DW_BF16;
    const bool is_long = rows.n > LONGEST_CACHED_ROW;
    enum { NEAR_STREAMS_FROM = 48 << 10 };
    if (on == DW_INTEL) return (dw_reach){.first = 2048, .second = 4096};
    if (on == DW_ZEN_5 && rows.from_memory) return far_reach_of_zen_5(level, rows);
    if (on == DW_ZEN_5)
        return (dw_reach){.first = 768, .second = 8192, .streams_from = is_16_bit ? NEAR_STREAMS_FROM : 0};
    if (is_long && is_packed && level >= DW_AVX512)
        return (dw_reach){.first = 2048, .second = rows.type == DW_Q8_0 ? 8192 : 16384};
    return (dw_reach){.first = level >= DW_AVX512 ? 768 : 0, .second = 8192, .few_sums = is_long && is_16_bit};
}

dw_reach dw_reach_of(dw_level level, dw_row_kind rows) { return dw_reach_on(maker, level, rows); }

/* Blocks of 18 and 20 bytes: VBMI loads 64 bytes that cross cache lines. */
bool dw_vbmi_is_faster_on(dw_maker on, dw_row_kind rows) {
    const bool crosses_lines = rows.type == DW_Q4_0 || rows.type == DW_Q4_1 || rows.type == DW_IQ4_NL;
    return !(on == DW_ZEN_5 && rows.from_memory && crosses_lines);
}

bool dw_rows_with_vbmi(dw_level level, dw_row_kind rows) {
    return dw_level_has_vbmi(level) && dw_vbmi_is_faster_on(maker, rows);
}

bool dw_level_has_bf16(dw_level level) { return level >= DW_AVX512 && dw_level_usable(level) && has_bf16_dots; }
bool dw_level_has_vbmi(dw_level level) { return level >= DW_AVX512 && dw_level_usable(level) && has_vbmi; }

int dw_level_choose(dw_level *level, dw_err *err) {
    const char *wish = getenv("DEADWOOD_CPU");
    if (!wish || !*wish) {
        *level = DW_N_LEVELS - 1;
        while (!dw_level_usable(*level)) --*level;
        return 0;
    }
    for (int l = 0; l < DW_N_LEVELS; l++) {
        if (strcmp(wish, dw_level_names[l])) continue;
        *level = (dw_level)l;
        if (dw_level_usable(*level)) return 0;
        return dw_fail(err, "'DEADWOOD_CPU' is '%s', which this machine lacks; unset it for the best level",
                       wish);
    }
    return dw_fail(err, "'DEADWOOD_CPU' is '%s', but must be portable, avx2, avx512 or amx", wish);
}

const char *dw_cpu_level(dw_err *err) {
    dw_level level;
    return dw_level_choose(&level, err) ? NULL : dw_level_names[level];
}
