/* levels.c - which level of kernels this machine can run, and which one is in force.
 *
 * A level is usable when the CPU has its instructions and the operating system saves its registers (XCR0); the tiles of
 * AMX must besides be asked for, once a process and before threads start (Linux, arch_prctl). */
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

#if defined(__x86_64__)

static bool has(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

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

static void ask_machine(void) {
    enum { STATE_YMM = 0x6, STATE_ZMM = 0xe6, STATE_TILE = 0x60000 };
    enum { LEAF1_C_FMA = 1 << 12, LEAF1_C_OSXSAVE = 1 << 27, LEAF1_C_AVX = 1 << 28, LEAF1_C_F16C = 1 << 29 };
    enum { LEAF7_B_AVX2 = 1 << 5, LEAF7_B_BMI2 = 1 << 8 };
    enum { LEAF7_B_F = 1 << 16, LEAF7_B_DQ = 1 << 17, LEAF7_B_BW = 1 << 30, LEAF7_C_VNNI = 1 << 11 };
    enum { LEAF7_D_AMX_BF16 = 1 << 22, LEAF7_D_AMX_TILE = 1 << 24, LEAF7_D_AMX_INT8 = 1 << 25 };
    const uint32_t leaf7_b_vl = 1u << 31;
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, LEAF1_C_OSXSAVE | LEAF1_C_AVX | LEAF1_C_FMA | LEAF1_C_F16C)) return;
    const uint32_t state = saved_state();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    usable[DW_AVX2] = has(state, STATE_YMM) && has(b, LEAF7_B_AVX2 | LEAF7_B_BMI2);
    usable[DW_AVX512] = usable[DW_AVX2] && has(state, STATE_ZMM) && has(c, LEAF7_C_VNNI) &&
                        has(b, LEAF7_B_F | LEAF7_B_DQ | LEAF7_B_BW | leaf7_b_vl);
    usable[DW_AMX] = usable[DW_AVX512] && has(state, STATE_TILE) &&
                     has(d, LEAF7_D_AMX_BF16 | LEAF7_D_AMX_TILE | LEAF7_D_AMX_INT8) && permit_tiles();
}

#else

static void ask_machine(void) {}

#endif

bool dw_level_usable(dw_level level) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask_machine);
    return usable[level];
}

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
        return dw_fail(err, "'DEADWOOD_CPU' asks for '%s', which this machine lacks; unset it for the best level",
                       wish);
    }
    return dw_fail(err, "'DEADWOOD_CPU' is '%s', but must be portable, avx2, avx512 or amx", wish);
}

const char *dw_cpu_level(dw_err *err) {
    dw_level level;
    return dw_level_choose(&level, err) ? NULL : dw_level_names[level];
}
