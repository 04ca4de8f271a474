/* test_kernels_dot.c - levels, packed activations, and every row of the dot table against decoded weights. */
#include "backends/kernels_dot.h"
#include "test.h"
#include "guarded.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_N = 22272, ROWS = 7, TEXT = 128 };

static const uint8_t place_in_lanes[BLOCKS] = {0, 1, 4, 5, 2, 3, 6, 7}; // of each block, in a lane_record

/* Packed value i of a vector. */
static double value_in(const uint8_t *act, dw_act_form form, int i) {
    const int block = i % RECORD / 32, at = piece_place(i % RECORD / 16) + i % 16;
    const record *r = (const record *)act + i / RECORD;
    const lane_record *l = (const lane_record *)act + i / RECORD;
    const quarters *q = (const quarters *)act + i / RECORD;
    const piece_record *p = (const piece_record *)act + i / RECORD;
    const int of_16 = i % 16, piece = i % RECORD / 16, c = of_16 / 4, turned = (c - piece / 2) & 3;
    if (form == DW_ACT_F32) return (double)((const float *)act)[i];
    if (form == DW_ACT_INT8) return (double)r->block[block].scale * r->q[at];
    if (form == DW_ACT_INT8_LANES) return (double)l->scale[place_in_lanes[block]] * l->q[at];
    if (form == DW_ACT_INT8_PIECES)
        return (double)p->block[block] * p->q[64 * turned + 4 * (piece / 8 * 8 + piece % 2 * 4 + c) + of_16 % 4];
    return (double)q->block[block].scale * q->q[i % 32 / 8 * 64 + block * 8 + i % 8];
}

static void unpacked(dw_act_form form, const uint8_t *act, int n, double *x) {
    for (int i = 0; i < n; i++) x[i] = value_in(act, form, i);
}

static const char *text_of(const dw_dot_kernel *k, int n, int n_cols) {
    static char text[TEXT];
    snprintf(text, sizeof text, "%s at %s%s, n %d, %d columns", dw_qtype_get(k->type)->name, dw_level_names[k->level],
             k == &dw_dot_vbmi[k->type] ? " with VBMI" : "", n, n_cols);
    return text;
}

/* Largest accepted relative RMS error: against the packed activations, and against those that were packed. */
static const struct {
    double packed, exact;
} bounds[] = {
    [DW_ACT_F32] = {2e-6, 2e-6},           [DW_ACT_INT8] = {1e-5, 1.5e-2},
    [DW_ACT_INT8_LANES] = {1e-5, 1.5e-2},  [DW_ACT_INT8_QUARTERS] = {1e-5, 1.5e-2},
    [DW_ACT_INT8_PIECES] = {1e-5, 1.5e-2},
};

/* Multiplies ROWS random rows with n_cols columns that are `size` large, and compares. */
static void compare_read(const dw_dot_kernel *k, int n, int n_cols, double size, size_t gap, dw_reach reach,
                         float y[][ROWS]) {
    const dw_qtype_row *t = dw_qtype_get(k->type);
    dw_rng rng;
    dw_rng_seed(&rng, (uint64_t)(n * 8 + n_cols));
    const size_t row_bytes = dw_qtype_row_bytes(t, (size_t)n), stride = row_bytes + gap,
                 act_stride = dw_act_bytes(k->form, n);
    guarded w = guard((ROWS - 1) * stride + row_bytes), act = guard((size_t)n_cols * act_stride);
    random_weights(&rng, t, w.data, row_bytes);
    for (int r = 0; r < ROWS; r++) random_weights(&rng, t, w.data + (size_t)r * stride, row_bytes);
    static float x[DW_DOT_MAX_COLS][MAX_N], decoded[MAX_N];
    static double back[MAX_N];
    for (int c = 0; c < n_cols; c++) {
        for (int i = 0; i < n; i++) x[c][i] = (float)(size * dw_rng_normal(&rng));
        dw_act_pack(k->level, k->form, x[c], n, act.data + (size_t)c * act_stride);
    }
    k->rows(&(dw_dot_job){w.data, stride, ROWS, n, act.data, act_stride, n_cols, y[0], ROWS, reach});
    double off_packed = 0, off_exact = 0, all = 0;
    for (int r = 0; r < ROWS; r++) {
        t->decode(w.data + (size_t)r * stride, decoded, (size_t)n);
        for (int c = 0; c < n_cols; c++) {
            unpacked(k->form, act.data + (size_t)c * act_stride, n, back);
            double exact = 0, packed = 0, scale = 0;
            for (int i = 0; i < n; i++) {
                exact += (double)decoded[i] * x[c][i], packed += decoded[i] * back[i];
                scale += (double)decoded[i] * decoded[i] * size * size;
            }
            // Against sqrt(n) times the size of a product: the sum itself may be near zero.
            all += scale;
            off_packed += pow(y[c][r] - packed, 2), off_exact += pow(y[c][r] - exact, 2);
            float alone;
            k->rows(&(dw_dot_job){w.data + (size_t)r * stride, stride, 1, n, act.data + (size_t)c * act_stride,
                                  act_stride, 1, &alone, 1, reach});
            CHECK(!memcmp(&alone, &y[c][r], sizeof alone), "%s: row %d alone %.9g, with others %.9g",
                  text_of(k, n, n_cols), r, (double)alone, (double)y[c][r]);
        }
    }
    const double packed = sqrt(off_packed / all), exact = sqrt(off_exact / all);
    CHECK(packed <= bounds[k->form].packed, "%s, size %g: %.3g from the packed", text_of(k, n, n_cols), size, packed);
    CHECK(exact <= bounds[k->form].exact, "%s, size %g: %.3g from the exact", text_of(k, n, n_cols), size, exact);
    unguard(&w), unguard(&act);
}

/* In all ways of reading rows.  Whether they are taken together changes no bit. */
static void compare(const dw_dot_kernel *k, int n, int n_cols, double size, size_t gap) {
    for (int few_sums = 0; few_sums < (dw_qtype_get(k->type)->block == 1 ? 2 : 1); few_sums++) {
        const dw_reach way[] = {
            {.first = 768, .second = 8192, .few_sums = few_sums},
            {.first = few_sums ? 4096 : 0, .second = 16384, .few_sums = few_sums, .one_by_one = true},
            {.second = 16384, .few_sums = few_sums, .one_by_one = true, .streams_from = 1, .past_second = true},
        };
        static float y[3][DW_DOT_MAX_COLS][ROWS];
        for (int i = 0; i < 3; i++) {
            compare_read(k, n, n_cols, size, gap, way[i], y[i]);
            CHECK(!memcmp(y[0], y[i], (size_t)n_cols * sizeof y[0][0]), "%s: way %d", text_of(k, n, n_cols), i);
        }
    }
}

static void every_usable(void (*check)(const dw_dot_kernel *k)) {
    for (int l = 0; l < DW_N_LEVELS; l++) {
        if (!dw_level_usable((dw_level)l)) test_skip("this machine lacks '%s'", dw_level_names[l]);
        for (int t = 0; t < DW_QTYPE_END && dw_level_usable((dw_level)l); t++) {
            if (dw_dot_kernels[l][t].rows) check(&dw_dot_kernels[l][t]);
            if (dw_dot_decoded[l][t].rows) check(&dw_dot_decoded[l][t]);
        }
    }
    if (!dw_level_has_vbmi(DW_AVX512)) test_skip("this machine lacks AVX512_VBMI");
    for (int t = 0; t < DW_QTYPE_END && dw_level_has_vbmi(DW_AVX512); t++)
        if (dw_dot_vbmi[t].rows) check(&dw_dot_vbmi[t]);
}

static void compare_lengths(const dw_dot_kernel *k) {
    const int block = dw_qtype_get(k->type)->block;
    for (int n = block; n <= 12 * block; n += block) compare(k, n, 1, 1, 0);
    for (int n = 256; n <= 4096; n *= 4) {
        compare(k, n, 1, 1, 0);
        if (block <= 32) compare(k, n - block, 2, 1, 0);
    }
    for (int n = 1; block == 1 && n < 70; n++) compare(k, n, 1, 1, 0);
    compare(k, block == 1 ? MAX_N - 3 : MAX_N, 1, 1, 0); // two rows at a time, where activations are large
    if (block == 32) compare(k, MAX_N - block, 1, 1, 0);
}

static void compare_columns(const dw_dot_kernel *k) {
    for (int n_cols = 1; n_cols <= DW_DOT_MAX_COLS; n_cols++) compare(k, 768, n_cols, 1, 0);
    if (dw_qtype_get(k->type)->block <= 32)
        for (int n_cols = 1; n_cols <= DW_DOT_MAX_COLS; n_cols++) compare(k, 416, n_cols, 1, 0);
}

static void compare_sizes(const dw_dot_kernel *k) {
    for (int e = -30; e <= 30; e += 10) compare(k, 512, 3, pow(10, e), 0);
    for (size_t gap = 1; gap < 6; gap += 2) compare(k, 512, 1, 1, gap);
}

/* Streams take any number of rows, also fewer than there are streams.  No bit depends on them: the results are those of
 * rows one by one, and of a call that is a byte too short for streams.  Nothing is written behind the last row's. */
static void compare_streams(const dw_dot_kernel *k) {
    enum { N = 512 };
    const dw_qtype_row *t = dw_qtype_get(k->type);
    const size_t row_bytes = dw_qtype_row_bytes(t, N);
    dw_rng rng;
    dw_rng_seed(&rng, 5);
    guarded w = guard(ROWS * row_bytes), act = guard(dw_act_bytes(k->form, N));
    static float x[N];
    for (int i = 0; i < N; i++) x[i] = (float)dw_rng_normal(&rng);
    dw_act_pack(k->level, k->form, x, N, act.data);
    for (int r = 0; r < ROWS; r++) random_weights(&rng, t, w.data + (size_t)r * row_bytes, row_bytes);
    for (int n_rows = 1; n_rows <= ROWS; n_rows++) {
        const uint8_t *from = w.data + (size_t)(ROWS - n_rows) * row_bytes; // the last row ends where memory does
        float y[3][ROWS + 1] = {{0}};
        const size_t call = (size_t)n_rows * row_bytes, from_bytes[] = {0, call, call + 1}; // 0: no streams
        for (int i = 0; i < 3; i++) {
            const dw_reach reach = {.second = 8192, .one_by_one = true, .streams_from = from_bytes[i]};
            y[i][n_rows] = 77; // must stay
            k->rows(&(dw_dot_job){from, row_bytes, n_rows, N, act.data, 0, 1, y[i], ROWS, reach});
            CHECK(y[i][n_rows] == 77, "%s: %d rows, written behind", text_of(k, N, 1), n_rows);
        }
        CHECK(!memcmp(y[0], y[1], sizeof y[0]) && !memcmp(y[0], y[2], sizeof y[0]), "%s: %d rows", text_of(k, N, 1),
              n_rows);
    }
    unguard(&w), unguard(&act);
}

static void lengths(void) { every_usable(compare_lengths); }
static void streams(void) { every_usable(compare_streams); }
static void columns(void) { every_usable(compare_columns); }
static void sizes(void) { every_usable(compare_sizes); }

/* Sums of products in 16 bits must not overflow: all q are 127 or -127, all codes the same. */
static void compare_extremes(const dw_dot_kernel *k) {
    enum { N = 512 };
    static const uint8_t bytes[] = {0x00, 0x0f, 0x7f, 0x80, 0xf0, 0xff};
    static const float signs[][2] = {{1, 1}, {-1, -1}, {1, -1}};
    const dw_qtype_row *t = dw_qtype_get(k->type);
    static uint8_t w[N * 4];
    static _Alignas(64) uint8_t act[N * 4];
    static float x[N], decoded[N];
    dw_rng rng;
    dw_rng_seed(&rng, 4);
    for (size_t b = 0; t->block > 1 && b < sizeof bytes; b++)
        for (int s = 0; s < 3; s++) {
            constant_weights(&rng, t, bytes[b], w, dw_qtype_row_bytes(t, N));
            t->decode(w, decoded, N);
            double expected = 0, size = 1e-3;
            for (int i = 0; i < N; i++) {
                x[i] = signs[s][i % 2];
                expected += (double)decoded[i] * (double)x[i], size += fabs((double)decoded[i]);
            }
            float y;
            dw_act_pack(k->level, k->form, x, N, act);
            k->rows(&(dw_dot_job){.w = w, .n_rows = 1, .n = N, .act = act, .n_cols = 1, .y = &y, .y_stride = 1});
            CHECK(fabs(y - expected) <= 1e-5 * size, "%s, bytes %02x, signs %g %g: %.9g, not %.9g", text_of(k, N, 1),
                  bytes[b], (double)signs[s][0], (double)signs[s][1], (double)y, expected);
        }
}

static void extremes(void) { every_usable(compare_extremes); }

static void zero_and_nan(const dw_dot_kernel *k) {
    enum { N = 512 };
    const dw_qtype_row *t = dw_qtype_get(k->type);
    static uint8_t w[N * 4];
    static _Alignas(64) uint8_t act[N * 4];
    static float x[N];
    dw_rng rng;
    dw_rng_seed(&rng, 1);
    random_weights(&rng, t, w, dw_qtype_row_bytes(t, N));
    float y;
    const float zeros[] = {0.0f, -0.0f, 1e-40f};
    for (int z = 0; z < 3; z++) {
        for (int i = 0; i < N; i++) x[i] = zeros[z];
        dw_act_pack(k->level, k->form, x, N, act);
        k->rows(&(dw_dot_job){w, 0, 1, N, act, 0, 1, &y, 1});
        CHECK(fabsf(y) < 1e-35f, "%s of %g: %g", text_of(k, N, 1), (double)zeros[z], (double)y);
    }
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int b = 0; b < 4; b++) {
        for (int i = 0; i < N; i++) x[i] = i == 300 ? bad[b] : 1.0f;
        dw_act_pack(k->level, k->form, x, N, act);
        k->rows(&(dw_dot_job){w, 0, 1, N, act, 0, 1, &y, 1});
        CHECK(!isfinite(y), "%s with %g: %g", text_of(k, N, 1), (double)bad[b], (double)y);
    }
}

static void zeros_and_nans(void) { every_usable(zero_and_nan); }

/* Packs, and writes no byte more than dw_act_bytes. */
static void pack_whole(dw_level level, dw_act_form form, const float *x, int n, void *act, size_t bytes) {
    memset(act, 0xee, bytes);
    dw_act_pack(level, form, x, n, act);
    CHECK(((const uint8_t *)act)[dw_act_bytes(form, n)] == 0xee, "at %s", dw_level_names[level]);
}

/* The orders of lanes and of quarters hold the same numbers and sums. */
static void same_as_lanes(const record *r, const float *x, int n) {
    static _Alignas(64) lane_record by_lanes[8];
    if (!dw_level_usable(DW_AVX2)) return test_skip("this machine lacks 'avx2'");
    pack_whole(DW_AVX2, DW_ACT_INT8_LANES, x, n, by_lanes, sizeof by_lanes);
    for (int i = 0; i < (n + RECORD - 1) / RECORD; i++, r++) {
        const lane_record *l = &by_lanes[i];
        CHECK(!memcmp(l->q, r->q, sizeof l->q), "record %d", i);
        for (int at = 0; at < BLOCKS; at++)
            CHECK(l->offset[at] == -8 * (l->sum16[2 * at] + l->sum16[2 * at + 1]), "record %d, place %d", i, at);
        for (int k = 0; k < PIECES; k++) {
            const int block = k / 2, at = place_in_lanes[block];
            const scale_and_sum both = {l->scale[at], l->sum[at]};
            const float sum16 = both.scale * (float)l->sum16[2 * at + k % 2];
            CHECK(!memcmp(&both, &r->block[block], sizeof both) && !memcmp(&sum16, &r->sum16[k], sizeof sum16),
                  "record %d, piece %d", i, k);
        }
    }
}

static void same_as_quarters(const record *r, const float *x, int n) {
    static _Alignas(64) quarters by_quarters[8];
    if (!dw_level_usable(DW_AVX512)) return test_skip("this machine lacks 'avx512'");
    pack_whole(DW_AVX512, DW_ACT_INT8_QUARTERS, x, n, by_quarters, sizeof by_quarters);
    for (int i = 0; i < n; i++) {
        const double expected = value_in((const uint8_t *)r, DW_ACT_INT8, i),
                     got = value_in((const uint8_t *)by_quarters, DW_ACT_INT8_QUARTERS, i);
        CHECK(got == expected || (isnan(got) && isnan(expected)), "value %d: %g, not %g", i, got, expected);
    }
    for (int i = 0; i < (n + RECORD - 1) / RECORD; i++, r++) { // the last one is filled up with zeros
        const quarters *q = &by_quarters[i];
        CHECK(!memcmp(q->block, r->block, sizeof q->block) && !memcmp(q->sum16, r->sum16, sizeof q->sum16));
        for (int lane = 0; lane < 16; lane++) { // half a block: the first or the last 4 of every 8 values
            int sum = 0;
            for (int k = 0; k < 16; k++) {
                const int at = lane / 2 * 32 + k / 4 * 8 + lane % 2 * 4 + k % 4;
                sum += r->q[piece_place(at / 16) + at % 16];
            }
            CHECK(q->offset[lane] == -8 * sum, "record %d, lane %d: %d, not -8 * %d", i, lane, q->offset[lane], sum);
        }
    }
}

static void packing_agrees(void) {
    enum { N = 1024 + 96 };
    static float x[N];
    static _Alignas(64) uint8_t act[DW_N_LEVELS][2 * N + 1024];
    dw_rng rng;
    dw_rng_seed(&rng, 2);
    for (int i = 0; i < N; i++) x[i] = (float)dw_rng_normal(&rng) * ldexpf(1, i / 32 % 8 * 20 - 90);
    for (int i = 0; i < 32; i++) x[i] = (float)(i - 20) + 0.5f, x[32 + i] = 0;
    x[0] = 127, x[700] = NAN, x[800] = INFINITY, x[900] = 3e38f;
    for (int l = 0; l < DW_N_LEVELS; l++) {
        if (!dw_level_usable((dw_level)l)) continue;
        pack_whole((dw_level)l, DW_ACT_INT8, x, N, act[l], sizeof act[l]);
        CHECK(!memcmp(act[0], act[l], dw_act_bytes(DW_ACT_INT8, N)), "at %s", dw_level_names[l]);
    }
    const record *r = (const record *)act[0];
    CHECK(r->q[0] == 127 && r->q[1] == -18 && r->q[2] == -18 && r->q[3] == -16, "ties go to even: %d %d %d", r->q[1],
          r->q[2], r->q[3]);
    same_as_lanes(r, x, N);
    same_as_quarters(r, x, N);
    CHECK(r->block[0].scale == 1 && r->block[1].scale == 0 && r->block[1].sum == 0);
}

static void packing_error(void) {
    static float x[MAX_N];
    static double back[MAX_N];
    static _Alignas(64) uint8_t act[2 * MAX_N];
    dw_rng rng;
    dw_rng_seed(&rng, 3);
    for (int i = 0; i < MAX_N; i++) x[i] = (float)dw_rng_normal(&rng);
    dw_act_pack(DW_PORTABLE, DW_ACT_INT8, x, MAX_N, act);
    unpacked(DW_ACT_INT8, act, MAX_N, back);
    double error = 0, all = 0;
    for (int i = 0; i < MAX_N; i++) error += pow(back[i] - (double)x[i], 2), all += pow((double)x[i], 2);
    // Largest of 32 normal values / 127 steps / sqrt(12): 2.36 / 440.
    CHECK(sqrt(error / all) <= 5.6e-3, "%g", sqrt(error / all));
}

static void levels(void) {
    dw_err err = {0};
    CHECK(dw_level_usable(DW_PORTABLE));
    for (int l = 0; l < DW_N_LEVELS; l++) {
        dw_level got = DW_N_LEVELS;
        setenv("DEADWOOD_CPU", dw_level_names[l], 1);
        err.text[0] = 0;
        const int rc = dw_level_choose(&got, &err);
        CHECK(dw_level_usable((dw_level)l) ? rc == 0 && got == (dw_level)l : rc == -1 && strstr(err.text, "lacks"),
              "%s: %s", dw_level_names[l], err.text);
        CHECK((dw_cpu_level(NULL) == NULL) == (rc != 0));
    }
    setenv("DEADWOOD_CPU", "avx1024", 1);
    dw_level got;
    err.text[0] = 0;
    CHECK(dw_level_choose(&got, &err) == -1 && strstr(err.text, "'avx1024'"), "%s", err.text);
    unsetenv("DEADWOOD_CPU");
    CHECK(dw_level_choose(&got, NULL) == 0 && dw_level_usable(got) && dw_cpu_level(NULL) == dw_level_names[got]);
    for (int l = got + 1; l < DW_N_LEVELS; l++) CHECK(!dw_level_usable((dw_level)l));
}

static void amx_needs_all(void) {
    const dw_cpu_words all = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX};
    for (dw_level l = 0; l < DW_N_LEVELS; l++) CHECK(dw_level_runs_on(l, &all), "%s", dw_level_names[l]);
    dw_cpu_words less = all;
    less.leaf7_1_a &= ~(1u << 5); // AVX512_BF16
    CHECK(!dw_level_runs_on(DW_AMX, &less) && dw_level_runs_on(DW_AVX512, &less));
    less = all;
    less.leaf7_d &= ~(1u << 25); // AMX_INT8
    CHECK(!dw_level_runs_on(DW_AMX, &less));
    less = all;
    less.state &= ~0x60000u; // tiles are not saved
    CHECK(!dw_level_runs_on(DW_AMX, &less));
    less = all;
    less.leaf7_c &= ~(1u << 1); // AVX512_VBMI
    CHECK(dw_vbmi_runs_on(&all) && !dw_vbmi_runs_on(&less) && dw_level_runs_on(DW_AMX, &less));
    CHECK(!dw_level_runs_on(DW_AVX2, &(dw_cpu_words){0}) && dw_level_runs_on(DW_PORTABLE, &(dw_cpu_words){0}));
}

/* Zen 5, from memory: no prefetches into the first level, but where activations fill it; long calls in streams, but not of
 * tiny rows; streams of long rows past the second level.  From cache: streams of 16 bits only, and never past it. */
static void read_on_zen_5(void) {
    static const struct {
        dw_row_kind rows;
        dw_reach want;
    } of[] = {
        {{DW_Q4_0, 3584, true}, {0, 16384, false, true, 512 << 10, true}},
        {{DW_Q4_0, 18944, true}, {4096, 8192, false, true, 512 << 10, true}},
        {{DW_Q4_0, 512, true}, {0, 16384, false, false, 0}},
        {{DW_F16, 2048, true}, {0, 16384, false, true, 512 << 10}},
        {{DW_F16, 8960, true}, {4096, 8192, true, true, 512 << 10, true}},
        {{DW_F16, 8960, false}, {768, 8192, false, false, 48 << 10}},
        {{DW_Q8_0, 8960, false}, {768, 8192, false, false, 0}},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        const dw_reach got = dw_reach_on(DW_ZEN_5, DW_AVX2, of[i].rows), want = of[i].want;
        CHECK(got.first == want.first && got.second == want.second && got.few_sums == want.few_sums &&
                  got.one_by_one == want.one_by_one && got.streams_from == want.streams_from &&
                  got.past_second == want.past_second,
              "%zu: %d, %d, %d, %d, %zu, %d", i, got.first, got.second, got.few_sums, got.one_by_one, got.streams_from,
              got.past_second);
    }
}

static void vbmi_on_zen_5(void) {
    static const dw_qtype slower[] = {DW_Q4_0, DW_Q4_1, DW_IQ4_NL};
    for (const dw_qtype_row *t = dw_qtypes; t->name; t++) {
        bool is_slower = false;
        for (size_t i = 0; i < sizeof slower / sizeof *slower; i++) is_slower |= slower[i] == t->id;
        CHECK(dw_vbmi_is_faster_on(DW_ZEN_5, (dw_row_kind){t->id, 4096, true}) != is_slower, "%s", t->name);
        CHECK(dw_vbmi_is_faster_on(DW_ZEN_5, (dw_row_kind){t->id, 4096, false}) &&
                  dw_vbmi_is_faster_on(DW_INTEL, (dw_row_kind){t->id, 4096, true}) &&
                  dw_vbmi_is_faster_on(DW_OTHER_MAKER, (dw_row_kind){t->id, 4096, true}),
              "%s", t->name);
    }
}

static void found(void) {
    for (const dw_qtype_row *t = dw_qtypes; t->name; t++)
        for (int l = 0; l < DW_N_LEVELS; l++) {
            const dw_dot_kernel *k = dw_dot_find((dw_level)l, (dw_row_kind){t->id, 256, false}),
                                *far = dw_dot_find((dw_level)l, (dw_row_kind){t->id, 4096, true});
            REQUIRE(k && far, "%s at %s", t->name, dw_level_names[l]);
            REQUIRE(far->level == k->level && (far == k || far == &dw_dot_kernels[far->level][t->id]), "%s", t->name);
            CHECK(k->type == t->id && k->level <= (dw_level)l &&
                      (l > DW_AVX512 || k->level == (dw_level)l || !k->level),
                  "%s", t->name);
            const bool has_vbmi = dw_dot_vbmi[t->id].rows && dw_level_has_vbmi((dw_level)l);
            CHECK((k == &dw_dot_vbmi[t->id]) == has_vbmi, "%s at %s", t->name, dw_level_names[l]);
        }
}

static const test_case cases[] = {
    {"a level is in force only where the machine has it", levels},
    {"amx needs AVX512_BF16, AMX_INT8 and saved tiles; some rows need AVX512_VBMI", amx_needs_all},
    {"every type has a row at every level", found},
    {"on Zen 5 rows from memory have distances of their own", read_on_zen_5},
    {"on Zen 5 three types are read from memory without VBMI", vbmi_on_zen_5},
    {"all levels pack activations alike, to the nearest step", packing_agrees},
    {"packing changes normal values by half a percent", packing_error},
    {"rows of any length, read to the last byte and no further, equal decoded weights times activations", lengths},
    {"streams give what rows one by one give, of any number of rows", streams},
    {"several columns give what each gives alone", columns},
    {"large and small activations, rows at any address", sizes},
    {"codes and activations at their largest", extremes},
    {"zero gives zero; NaN and infinity do not vanish", zeros_and_nans},
    {0},
};
TEST_MAIN(cases)
