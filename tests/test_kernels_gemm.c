/* test_kernels_gemm.c - matrix products of every level and type against sums in double, and the vector functions. */
#include "backends/kernels_vec.h"
#include "test.h"
#include "guarded.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* RMS error allowed of a product w . x, by form, in units of sqrt(sum of (w_i x_i)^2). */
static const double bound[] = {
    [DW_GEMM_INT8] = 8e-3,  [DW_GEMM_ROUNDED] = 4e-3, [DW_GEMM_SPLIT_X] = 1e-5,
    [DW_GEMM_SPLIT] = 1e-5, [DW_GEMM_F32] = 1e-6};

/* Together these give every form. */
static const struct { dw_precision precision; int n_tokens;
} asked[] = {{DW_PRECISION_SPLIT, DW_GEMM_TOKENS},
             {DW_PRECISION_ROUNDED, DW_GEMM_TOKENS},
             {DW_PRECISION_INT8, DW_GEMM_TOKENS},
             {DW_PRECISION_INT8, 1},
             {DW_PRECISION_BF16, DW_GEMM_TOKENS}};
enum { N_ASKED = sizeof asked / sizeof *asked };

static dw_gemm_form form_asked(dw_level level, const dw_qtype_row *type, int i) {
    return dw_gemm_form_of(level, type, asked[i].precision, asked[i].n_tokens);
}

/* ---- a product with its reference ---------------------------------------------------------------------------- */

typedef struct problem {
    int n, n_rows, n_tokens;
    dw_tensor w;
    guarded weights, x, packed, scratch;
    double *expected; // (n_tokens, n_rows)
    double size;      // sum of all (w_i x_i)^2
} problem;

static void random_values(float *x, size_t n, dw_rng *rng) {
    for (size_t i = 0; i < n; i++) x[i] = (float)dw_rng_normal(rng);
}

static problem problem_new(const dw_qtype_row *type, int n, int n_rows, int n_tokens) {
    problem p = {.n = n, .n_rows = n_rows, .n_tokens = n_tokens};
    dw_rng rng;
    dw_rng_seed(&rng, (uint64_t)type->id * 1000 + (uint64_t)n);
    const size_t row_bytes = dw_qtype_row_bytes(type, (size_t)n);
    p.w = (dw_tensor){.name = "w", .type = type, .n_dims = 2, .ne = {(size_t)n, (size_t)n_rows, 1, 1}};
    p.weights = guard(row_bytes * (size_t)n_rows);
    p.x = guard((size_t)n_tokens * (size_t)n * sizeof(float));
    p.packed = guard(dw_gemm_pack_bytes(n_tokens, n));
    p.scratch = guard(DW_GEMM_SCRATCH);
    p.w.data = p.weights.data;
    float *row = malloc((size_t)n * sizeof *row), *x = (float *)(void *)p.x.data;
    random_values(x, (size_t)n_tokens * (size_t)n, &rng);
    p.expected = calloc((size_t)n_tokens * (size_t)n_rows, sizeof *p.expected);
    for (int r = 0; r < n_rows; r++) {
        random_values(row, (size_t)n, &rng);
        type->encode(row, p.weights.data + (size_t)r * row_bytes, (size_t)n, NULL);
        type->decode(p.weights.data + (size_t)r * row_bytes, row, (size_t)n);
        for (int t = 0; t < n_tokens; t++)
            for (int i = 0; i < n; i++) {
                const double product = (double)row[i] * (double)x[t * n + i];
                p.expected[t * n_rows + r] += product;
                p.size += product * product;
            }
    }
    free(row);
    return p;
}

static void problem_free(problem *p) {
    unguard(&p->weights);
    unguard(&p->x);
    unguard(&p->packed);
    unguard(&p->scratch);
    free(p->expected);
}

/* Rows first .. first + n_rows - 1 (of the list, if any) for tokens token0 .. token0 + n_tokens - 1 into y. */
static void multiply(const problem *p, dw_level level, dw_gemm_form form, const int32_t *list, int first, int n_rows,
                     int token0, int n_tokens, int n_threads, float *y) {
    const float *x = (const float *)(const void *)p->x.data + token0 * p->n;
    uint8_t *packed = p->packed.data + dw_gemm_pack_bytes(p->n_tokens, p->n) - dw_gemm_pack_bytes(n_tokens, p->n);
    memset(packed, 0xff, dw_gemm_pack_bytes(n_tokens, p->n)); // NaN: whatever is read must be written
    memset(p->scratch.data, 0xff, DW_GEMM_SCRATCH);
    for (int i = n_threads - 1; i >= 0; i--)
        dw_gemm_pack(&(dw_gemm_tokens){level, form, x, (size_t)p->n, n_tokens, p->n}, packed, i, n_threads);
    dw_gemm_rows(&(dw_gemm_job){.level = level,
                                .form = form,
                                .w = &p->w,
                                .list = list,
                                .first = (size_t)first,
                                .n_rows = n_rows,
                                .packed = packed,
                                .n_tokens = n_tokens,
                                .y = y,
                                .ldy = (size_t)n_rows,
                                .scratch = p->scratch.data});
}

static double relative_error(const problem *p, const float *y) {
    double error = 0;
    for (int i = 0; i < p->n_rows * p->n_tokens; i++) error += (y[i] - p->expected[i]) * (y[i] - p->expected[i]);
    return sqrt(error / p->size);
}

static const int shapes[][3] = { // n in blocks of the type (of 37 for single values), rows, tokens
    {1, 9, 1}, {3, 37, 5}, {2, 16, 16}, {5, 33, 33}, {3, 290, 20}};

static int length_of(const dw_qtype_row *type, int blocks) {
    return blocks * (type->block == 1 ? 237 : type->block == 32 ? 160 : type->block);
}

static void against_double(void) {
    for (const dw_qtype_row *type = dw_qtypes; type->name; type++)
        for (size_t s = 0; type->encode && s < sizeof shapes / sizeof *shapes; s++) {
            problem p = problem_new(type, length_of(type, shapes[s][0]), shapes[s][1], shapes[s][2]);
            const int n = p.n_rows * p.n_tokens;
            guarded y = guard((size_t)n * sizeof(float));
            for (int level = 0; level < DW_N_LEVELS; level++)
                for (int i = 0; i < N_ASKED && dw_level_usable(level); i++) {
                    const dw_gemm_form form = form_asked(level, type, i);
                    memset(y.data, 0xff, (size_t)n * sizeof(float));
                    multiply(&p, level, form, NULL, 0, p.n_rows, 0, p.n_tokens, 1, (float *)(void *)y.data);
                    const double error = relative_error(&p, (float *)(void *)y.data);
                    CHECK(error <= bound[form], "%s %s n %d rows %d tokens %d: %.3g", dw_level_names[level], type->name,
                          p.n, p.n_rows, p.n_tokens, error);
                }
            unguard(&y);
            problem_free(&p);
        }
}

/* x rounded to 8 bits by the definition: blocks of 32, steps of the largest |x| / 127. */
static void round_inputs(float *x, int n) {
    for (int i = 0; i < n; i += 32) {
        float largest = 0;
        for (int k = i; k < i + 32; k++) largest = fmaxf(largest, fabsf(x[k]));
        for (int k = i; k < i + 32; k++) x[k] = largest > 0 ? nearbyintf(x[k] * (127 / largest)) * (largest / 127) : 0;
    }
}

/* AMX has bytes for the types of AVX-512. */
static bool multiplies_bytes(dw_level level, const dw_qtype_row *type) {
    const dw_level of = level > DW_AVX512 ? DW_AVX512 : level;
    return dw_level_usable(level) && dw_gemm_form_of(of, type, DW_PRECISION_INT8, 1) == DW_GEMM_INT8;
}

/* Some inputs are large, some blocks zero, and bytes are as extreme as codes can be in random blocks. */
static void eight_bit_inputs(void) {
    for (const dw_qtype_row *type = dw_qtypes; type->name; type++)
        for (int level = 0; level < DW_N_LEVELS; level++) {
            if (!multiplies_bytes(level, type)) continue;
            for (int blocks = 1; blocks <= 24; blocks = blocks * 2 + 1) {
                problem p = problem_new(type, blocks * type->block, 37, 35);
                float *x = (float *)(void *)p.x.data, *row = malloc((size_t)p.n * sizeof *row), y[35 * 37];
                dw_rng rng;
                dw_rng_seed(&rng, 8);
                const size_t row_bytes = dw_qtype_row_bytes(type, (size_t)p.n);
                random_weights(&rng, type, p.weights.data, row_bytes * 37);
                for (int i = 0; i < p.n * 35; i++) x[i] *= i % 96 < 64 ? ldexpf(1, i / 32 % 7 * 9 - 30) : 0;
                for (int i = 0; i < p.n; i++) x[3 * p.n + i] = i % 2 ? 1.0f : -1.0f; // |q| 127 everywhere
                for (int i = 0; i < p.n; i++) x[4 * p.n + i] = 1;
                multiply(&p, level, DW_GEMM_INT8, NULL, 0, 37, 0, 35, 2, y);
                if (level == DW_AMX) {
                    float same[35 * 37];
                    multiply(&p, DW_AVX512, DW_GEMM_INT8, NULL, 0, 37, 0, 35, 2, same);
                    CHECK(!memcmp(y, same, sizeof y), "%s: AMX and AVX-512 differ", type->name);
                }
                for (int t = 0; t < 35; t++) round_inputs(x + t * p.n, p.n);
                double worst = 0;
                for (int r = 0; r < 37; r++) {
                    type->decode(p.weights.data + (size_t)r * row_bytes, row, (size_t)p.n);
                    for (int t = 0; t < 35; t++) {
                        double sum = 0, size = 1e-300;
                        for (int i = 0; i < p.n; i++) {
                            const double product = (double)row[i] * (double)x[t * p.n + i];
                            sum += product, size += fabs(product);
                        }
                        const double error = fabs(y[t * 37 + r] - sum) / size;
                        worst = error > worst || isnan(error) ? error : worst;
                    }
                }
                CHECK(worst <= 1e-5, "%s %s n %d: %.3g", dw_level_names[level], type->name, p.n, worst);
                free(row);
                problem_free(&p);
            }
        }
}

/* A token with a NaN or an infinite input gives numbers that are not finite, and its neighbours are as without it. */
static void eight_bit_nans(void) {
    const dw_qtype_row *type = dw_qtype_get(DW_Q4_0);
    for (int level = 0; level < DW_N_LEVELS; level++) {
        if (!multiplies_bytes(level, type)) continue;
        problem p = problem_new(type, 96, 20, 19);
        float y[19 * 20], clean[19 * 20], *x = (float *)(void *)p.x.data;
        multiply(&p, level, DW_GEMM_INT8, NULL, 0, 20, 0, 19, 1, clean);
        const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
        for (int b = 0; b < 4; b++) {
            x[5 * 96 + 70] = bad[b];
            multiply(&p, level, DW_GEMM_INT8, NULL, 0, 20, 0, 19, 1, y);
            bool bad_stays = true, others_stay = true;
            for (int i = 0; i < 19 * 20; i++)
                if (i / 20 == 5) bad_stays = bad_stays && !isfinite(y[i]);
                else others_stay = others_stay && y[i] == clean[i];
            CHECK(bad_stays && others_stay, "%s %g", dw_level_names[level], (double)bad[b]);
        }
        for (int i = 0; i < 96; i++) x[5 * 96 + i] = i % 2 ? -0.0f : 1e-40f;
        multiply(&p, level, DW_GEMM_INT8, NULL, 0, 20, 0, 19, 1, y);
        for (int r = 0; r < 20; r++) CHECK(y[5 * 20 + r] == 0, "%s %g", dw_level_names[level], (double)y[5 * 20 + r]);
        problem_free(&p);
    }
}

/* More tokens than DW_GEMM_FEW, and parts with fewer: their blocks have other sizes. */
static void unaffected_by_cuts(void) {
    for (const dw_qtype_row *type = dw_qtypes; type->name; type++) {
        if (!type->encode) continue;
        problem p = problem_new(type, length_of(type, 3), 83, 70);
        float *whole = malloc(83 * 70 * sizeof *whole), *part = malloc(83 * 70 * sizeof *part);
        for (int level = 0; level < DW_N_LEVELS; level++)
            for (int i = 0; i < N_ASKED && dw_level_usable(level); i++) {
                const dw_gemm_form form = form_asked(level, type, i);
                multiply(&p, level, form, NULL, 0, 83, 0, 70, 1, whole);
                static const int cuts[][4] = {{0, 83, 0, 70}, {0, 1, 69, 1},  {5, 40, 3, 17}, // rows, tokens
                                              {81, 2, 9, 32}, {3, 77, 2, 47}, {0, 83, 6, 64}};
                for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
                    const int first = cuts[c][0], rows = cuts[c][1], token0 = cuts[c][2], tokens = cuts[c][3];
                    multiply(&p, level, form, NULL, first, rows, token0, tokens, 3, part);
                    bool same = true;
                    for (int t = 0; t < tokens; t++)
                        same = same &&
                               !memcmp(part + t * rows, whole + (token0 + t) * 83 + first, (size_t)rows * sizeof *part);
                    CHECK(same, "%s %s cut %zu", dw_level_names[level], type->name, c);
                }
            }
        free(whole);
        free(part);
        problem_free(&p);
    }
}

/* Few tokens whose rows are so long that they leave L2: groups of 128 or 256 rows share chunks of them. */
static void long_tokens(void) {
    if (!dw_level_usable(DW_AMX)) SKIP("this machine has no AMX");
    static const struct {
        dw_qtype type;
        int n, n_rows, n_tokens;
    } cases[] = {{DW_Q4_0, 16416, 150, 50},
                 {DW_BF16, 8200, 150, 50},
                 {DW_F16, 8200, 150, 50},
                 {DW_F16, 12300, 290, 20},
                 {DW_F16, 24600, 270, 9}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const dw_qtype_row *type = dw_qtype_get(cases[i].type);
        const int n_rows = cases[i].n_rows, n_tokens = cases[i].n_tokens;
        const dw_gemm_form form = dw_gemm_form_of(DW_AMX, type, DW_PRECISION_ROUNDED, n_tokens);
        problem p = problem_new(type, cases[i].n, n_rows, n_tokens);
        float *y = malloc((size_t)(n_rows * n_tokens) * sizeof *y), *some = malloc((size_t)(n_rows * 5) * sizeof *some);
        multiply(&p, DW_AMX, form, NULL, 0, n_rows, 0, n_tokens, 1, y);
        multiply(&p, DW_AMX, form, NULL, 0, n_rows, 3, 5, 1, some);
        const double error = relative_error(&p, y);
        CHECK(error <= bound[form], "%s, %d tokens: %.3g", type->name, n_tokens, error);
        CHECK(!memcmp(some, y + 3 * n_rows, (size_t)(n_rows * 5) * sizeof *y),
              "%s: the sums depend on the number of tokens", type->name);
        free(y);
        free(some);
        problem_free(&p);
    }
}

static void decoders_equal(void) {
    dw_rng rng;
    dw_rng_seed(&rng, 4);
    for (const dw_qtype_row *type = dw_qtypes; type->name; type++)
        for (int n = type->block; n <= 1024; n = n * 2 + (type->block == 1)) {
            const size_t bytes = dw_qtype_row_bytes(type, (size_t)n);
            guarded src = guard(bytes), dst = guard((size_t)n * sizeof(float));
            float expected[1024];
            for (size_t i = 0; i < bytes; i++)
                src.data[i] = (uint8_t)dw_rng_below(&rng, type->block == 1 ? 120 : 256); // no NaN
            for (int b = 0; b < n / type->block && type->block > 1;
                 b++) { // halves that are finite, wherever they stand
                uint8_t *block = src.data + b * type->block_bytes;
                for (int i = 0; i < type->block_bytes; i++) block[i] = (uint8_t)(block[i] & 0xbf);
            }
            type->decode(src.data, expected, (size_t)n);
            for (int level = 0; level < DW_N_LEVELS; level++) {
                if (!dw_level_usable(level)) continue;
                memset(dst.data, 0xff, (size_t)n * sizeof(float));
                dw_unpack_of(level, type)(src.data, (float *)(void *)dst.data, (size_t)n);
                CHECK(!memcmp(expected, dst.data, (size_t)n * sizeof(float)), "%s %s n %d", dw_level_names[level],
                      type->name, n);
            }
            unguard(&src);
            unguard(&dst);
        }
}

/* Rows of the tiles, from wherever they lie; nothing is written elsewhere. */
static void tiles_equal_decoders(void) {
    if (!dw_level_has_bf16(DW_AVX512)) SKIP("this machine has no AVX512_BF16");
    dw_rng rng;
    dw_rng_seed(&rng, 6);
    for (const dw_qtype_row *type = dw_qtypes; type->name; type++)
        for (int i = 0; dw_unpack_tiles[type->id] && i < 2 * DW_PANEL_K / type->block; i++) {
            const int n = (i / 2 + 1) * type->block, n_rows = i % 2 ? 5 : DW_TILE;
            const size_t bytes = dw_qtype_row_bytes(type, (size_t)n), tiles = (size_t)n / DW_AMX_STEP * 1024;
            guarded src = guard((size_t)n_rows * bytes), got = guard(tiles), expected = guard(tiles);
            const uint8_t *at[DW_TILE];
            float row[DW_PANEL_K];
            random_weights(&rng, type, src.data, (size_t)n_rows * bytes);
            memset(got.data, 7, tiles);
            memset(expected.data, 7, tiles);
            for (int r = 0; r < n_rows; r++) {
                at[r] = src.data + (size_t)(n_rows - 1 - r) * bytes;
                type->decode(at[r], row, (size_t)n);
                dw_amx_unpack(row, n / DW_AMX_STEP, r, 1, expected.data);
                at[r] -= 3;
            }
            dw_unpack_tiles[type->id](at, 3, n_rows, n / DW_AMX_STEP, got.data);
            CHECK(!memcmp(got.data, expected.data, tiles), "%s n %d", type->name, n);
            unguard(&src);
            unguard(&got);
            unguard(&expected);
        }
}

/* Neurons that are packed from the sums of gate and up are those of the products by tokens, packed. */
static void neurons_of(dw_level level, dw_gemm_form form, int n_neurons, int n_tokens, dw_act act) {
    problem gate = problem_new(dw_qtype_get(DW_F32), 64, n_neurons, n_tokens),
            up = problem_new(dw_qtype_get(DW_Q8_0), 64, n_neurons, n_tokens);
    const problem *of[] = {&gate, &up};
    const size_t n = (size_t)n_neurons * (size_t)n_tokens, n_packed = dw_gemm_pack_bytes(n_tokens, n_neurons);
    const size_t n_sums = DW_GEMM_SUM_ROWS * ((size_t)n_tokens + DW_TILE);
    guarded expected = guard(n_packed), got = guard(n_packed);
    float *y[2], *sums[2];
    for (int i = 0; i < 2; i++) y[i] = malloc(n * sizeof(float)), sums[i] = malloc(n_sums * sizeof(float));
    multiply(&gate, level, form, NULL, 0, 1, 0, n_tokens, 1, y[0]); // packs the tokens, which both read
    for (int i = 0; i < 2; i++) {
        dw_gemm_job job = {.level = level, .form = form, .w = &of[i]->w, .n_rows = n_neurons, .packed = gate.packed.data,
                           .n_tokens = n_tokens, .y = y[i], .ldy = (size_t)n_neurons, .scratch = gate.scratch.data};
        dw_gemm_rows(&job);
    }
    memset(got.data, 0, n_packed);
    memset(expected.data, 0, n_packed);
    for (int first = 0; first < n_neurons; first += DW_GEMM_SUM_ROWS) {
        const int rows = n_neurons - first < DW_GEMM_SUM_ROWS ? n_neurons - first : DW_GEMM_SUM_ROWS;
        for (int i = 0; i < 2; i++)
            dw_gemm_rows(&(dw_gemm_job){.level = level, .form = form, .w = &of[i]->w, .first = (size_t)first,
                                        .n_rows = rows, .packed = gate.packed.data, .n_tokens = n_tokens,
                                        .sums = sums[i], .scratch = gate.scratch.data});
        dw_gemm_pack_neurons(&(dw_gemm_neurons){level, form, act, n_tokens, n_neurons, sums[0], sums[1], first, rows},
                             got.data);
    }
    dw_vec_of(level)->glu[act](y[0], y[1], (int)n, y[0]);
    for (int tile = 0; tile * DW_TILE < n_tokens; tile++) {
        const int first = tile * DW_TILE, here = n_tokens - first < DW_TILE ? n_tokens - first : DW_TILE;
        dw_gemm_pack_tile(&(dw_gemm_tokens){level, form, y[0] + (size_t)first * (size_t)n_neurons, (size_t)n_neurons, here,
                                            n_neurons},
                          tile, n_tokens, expected.data);
    }
    CHECK(!memcmp(got.data, expected.data, n_packed), "%s form %d: %d neurons, %d tokens", dw_level_names[level],
          (int)form, n_neurons, n_tokens);
    memset(got.data, 0, n_packed);
    dw_gemm_pack(&(dw_gemm_tokens){level, form, y[0], (size_t)n_neurons, n_tokens, n_neurons}, got.data, 0, 1);
    CHECK(!memcmp(got.data, expected.data, n_packed), "%s form %d: tiles of %d tokens", dw_level_names[level], (int)form,
          n_tokens);
    for (int i = 0; i < 2; i++) free(y[i]), free(sums[i]);
    unguard(&expected);
    unguard(&got);
    problem_free(&gate);
    problem_free(&up);
}

static void packed_neurons(void) {
    if (!dw_level_has_bf16(DW_AVX512)) SKIP("this machine has no AVX512_BF16");
    static const int sizes[][2] = {{32, 1}, {64, 33}, {224, 16}, {256, 50}, {352, 90}}; // neurons, tokens
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        neurons_of(DW_AVX512, DW_GEMM_ROUNDED, sizes[i][0], sizes[i][1], DW_SILU);
        if (!dw_level_usable(DW_AMX)) continue;
        neurons_of(DW_AMX, DW_GEMM_ROUNDED, sizes[i][0], sizes[i][1], DW_GELU_TANH);
        neurons_of(DW_AMX, DW_GEMM_SPLIT, sizes[i][0], sizes[i][1], DW_SILU);
    }
}

static void listed_rows(void) {
    const dw_qtype_row *type = dw_qtype_get(DW_Q8_0);
    problem p = problem_new(type, 320, 50, 7);
    float whole[50 * 7], part[3 * 7];
    const int32_t list[] = {0, 4, 31, 49};
    for (int level = 0; level < DW_N_LEVELS; level++) {
        if (!dw_level_usable(level)) continue;
        for (int i = 0; i < N_ASKED; i++) {
            const dw_gemm_form form = form_asked(level, type, i);
            multiply(&p, level, form, NULL, 0, 50, 0, 7, 1, whole);
            multiply(&p, level, form, list, 1, 3, 0, 7, 1, part);
            for (int t = 0; t < 7; t++)
                for (int r = 0; r < 3; r++)
                    CHECK(part[t * 3 + r] == whole[t * 50 + list[1 + r]], "%s %d", dw_level_names[level], form);
        }
    }
    problem_free(&p);
}

/* ---- vector functions ---------------------------------------------------------------------------------------- */

enum { MOST = 131 };

#define EACH_LEVEL(vec)                                                                                                \
    for (int level = 0; level < DW_N_LEVELS; level++)                                                                  \
        for (const dw_vec *vec = dw_level_usable(level) ? dw_vec_of(level) : NULL; vec; vec = NULL)

static void norm_and_add(void) {
    dw_rng rng;
    dw_rng_seed(&rng, 1);
    float x[MOST], w[MOST], y[MOST], z[MOST];
    random_values(x, MOST, &rng);
    random_values(w, MOST, &rng);
    EACH_LEVEL(vec) for (int n = 1; n <= MOST; n++) {
        double square = 0, worst = 0, worst_add = 0;
        for (int i = 0; i < n; i++) square += (double)x[i] * (double)x[i];
        memset(y, 0xff, sizeof y);
        vec->norm(x, w, n, 1e-5f, y);
        for (int i = 0; i < n; i++)
            worst = fmax(worst, fabs(y[i] - x[i] / sqrt(square / n + 1e-5) * w[i]) / (1e-30 + fabs((double)y[i])));
        CHECK(worst < 1e-6 && (n == MOST || isnan(y[n])), "%s n %d: %g", dw_level_names[level], n, worst);
        memcpy(z, x, sizeof z);
        vec->add(z, w, NULL, n);
        vec->add(z, w, w, n);
        for (int i = 0; i < n; i++) worst_add = fmax(worst_add, fabs((double)z[i] - (x[i] + 3 * (double)w[i])));
        CHECK(worst_add < 1e-5 && (n == MOST || z[n] == x[n]), "%s n %d: %g", dw_level_names[level], n, worst_add);
    }
}

static void add_transposed(void) {
    enum { LD = 19 };
    dw_rng rng;
    dw_rng_seed(&rng, 8);
    float src[DW_TILE * DW_TILE], before[DW_TILE * LD], y[DW_TILE * LD];
    random_values(src, DW_TILE * DW_TILE, &rng);
    random_values(before, DW_TILE * LD, &rng);
    EACH_LEVEL(vec) {
        memcpy(y, before, sizeof y);
        vec->add_transposed(src, y, LD);
        for (int i = 0; i < DW_TILE * LD; i++) {
            const int r = i / LD, c = i % LD;
            const float wanted = c < DW_TILE ? before[i] + src[c * DW_TILE + r] : before[i];
            CHECK(y[i] == wanted, "%s row %d column %d", dw_level_names[level], r, c);
        }
    }
}

static double activation(dw_act act, double x) {
    if (act == DW_RELU) return fmax(x, 0);
    return act == DW_SILU ? x / (1 + exp(-x)) : x / 2 * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
}

/* silu to a relative error; the tail of gelu, where tanh is -1 but for the last bits, to an absolute one. */
static void activation_accurate(dw_act act) {
    EACH_LEVEL(vec) for (int n = 1; n <= 37; n++) {
        float gate[37], up[37], neuron[38];
        double worst = 0;
        for (int i = 0; i < n; i++) {
            gate[i] = (float)(i - n / 2) * (act == DW_SILU ? 4.7f : 0.37f) + 0.1f;
            up[i] = (float)i - 3.3f;
        }
        neuron[n] = 7;
        float kept[37];
        memcpy(kept, gate, sizeof gate);
        vec->glu[act](gate, up, n, neuron);
        for (int i = 0; i < n; i++) {
            const double g = activation(act, (double)kept[i]), least = act == DW_SILU ? 1e-36 : 1;
            worst = fmax(worst, fabs(gate[i] - g) / (fabs(g) + least));
            worst = fmax(worst, fabs(neuron[i] - g * up[i]) / (fabs(g * up[i]) + least));
        }
        CHECK(worst < 1e-6 && neuron[n] == 7, "%s, activation %d, n %d: %g", dw_level_names[level], act, n, worst);
        gate[n - 1] = NAN;
        vec->glu[act](gate, up, n, neuron);
        CHECK(isnan(neuron[n - 1]), "%s", dw_level_names[level]);
    }
}

static void activations_accurate(void) {
    for (dw_act act = 0; act < DW_N_ACTS; act++) activation_accurate(act);
}

static void log_sum_exp(void) {
    dw_rng rng;
    dw_rng_seed(&rng, 2);
    float x[MOST];
    random_values(x, MOST, &rng);
    for (int i = 0; i < MOST; i++) x[i] *= 20;
    EACH_LEVEL(vec) for (int n = 1; n <= MOST; n++) {
        double expected = 0;
        float max, sum;
        for (int i = 0; i < n; i++) expected += exp((double)x[i]);
        vec->exp_sum(x, n, &max, &sum);
        const double got = max + log((double)sum);
        CHECK(fabs(got - log(expected)) < 1e-6, "%s n %d: %g %g", dw_level_names[level], n, got, log(expected));
    }
}

static void half_precision(void) {
    EACH_LEVEL(vec) {
        float x[21];
        uint16_t h[22] = {0};
        for (int i = 0; i < 21; i++) x[i] = ldexpf(1.0f + (float)i / 21, i * 2 - 26);
        x[3] = 1e9f;
        x[4] = -0.0f;
        h[21] = 77;
        vec->to_f16(x, 21, h);
        for (int i = 0; i < 21; i++) CHECK(h[i] == dw_f32_to_f16(x[i]), "%s %d", dw_level_names[level], i);
        CHECK(h[21] == 77);
    }
}

/* ---- attention ------------------------------------------------------------------------------------------------- */

/* Heads of a token are taken up to 8 at a time.  EARLY tokens are 35 rows: more than a pair of tiles, which later
 * keys leave out. */
enum { CTX = 200, GROUP = 7, QUERIES = 9, EARLY = 5 };

/* The functions that compute it, and the relative RMS error allowed. */
typedef enum attend_kind { ONE_TOKEN, MANY_TOKENS, BY_TILES, BY_ROUNDED_TILES, ATTEND_KINDS } attend_kind;
static const double attend_bound[ATTEND_KINDS] = {1e-6, 1e-6, 1e-5, 4e-3};

static bool has_kind(dw_level level, attend_kind kind) {
    return kind < BY_TILES || level >= DW_AMX || (kind == BY_ROUNDED_TILES && dw_level_has_bf16(level));
}

static size_t attend_scratch(attend_kind kind, int head_dim, int n_group) {
    return (kind >= BY_TILES ? dw_attend_tiles_scratch_bytes : dw_attend_scratch_bytes)(head_dim, n_group);
}

/* `at_once` tokens a call. */
static void attend_all(dw_level level, attend_kind kind, dw_attend_job job, int n_tokens, int at_once) {
    const dw_vec *vec = dw_vec_of(level);
    const float *q = job.q;
    float *mix = job.mix;
    const int32_t *pos = job.pos;
    guarded scratch = guard(attend_scratch(kind, job.head_dim, job.n_group));
    job.scratch = scratch.data;
    job.is_rounded = kind == BY_ROUNDED_TILES;
    job.has_tiles = level >= DW_AMX;
    for (int t = 0; t < n_tokens; t += at_once) {
        job.q = q + (size_t)t * job.ld;
        job.mix = mix + (size_t)t * job.ld;
        job.pos = pos + t;
        job.n_tokens = n_tokens - t < at_once ? n_tokens - t : at_once;
        memset(job.scratch, 0xff, attend_scratch(kind, job.head_dim, job.n_group));
        (kind >= BY_TILES ? dw_attend_tiles : kind == ONE_TOKEN ? vec->attend_token : vec->attend)(&job);
    }
    unguard(&scratch);
}

/* Relative RMS error against softmax in double. */
static double attention_error(const float *mix, size_t ld, const float *q, const float *k, const float *v, int head_dim,
                              const int32_t *pos, float scale) {
    double error = 0, size = 0;
    for (int t = 0; t < QUERIES; t++)
        for (int g = 0; g < GROUP; g++) {
            const size_t at = (size_t)t * ld + (size_t)(g * head_dim);
            double score[CTX], sum = 0;
            for (int p = 0; p <= pos[t]; p++) {
                score[p] = 0;
                for (int d = 0; d < head_dim; d++) score[p] += (double)q[at + (size_t)d] * (double)k[p * head_dim + d];
                sum += score[p] = exp(score[p] * scale);
            }
            for (int d = 0; d < head_dim; d++) {
                double expected = 0;
                for (int p = 0; p <= pos[t]; p++) expected += score[p] / sum * (double)v[p * head_dim + d];
                error += (mix[at + (size_t)d] - expected) * (mix[at + (size_t)d] - expected);
                size += expected * expected;
            }
        }
    return sqrt(error / size);
}

/* Values as the cache holds them, encoded and decoded by the type's definition. */
static void fill_cache(const dw_qtype_row *type, float *values, size_t n, void *cache) {
    type->encode(values, cache, n, NULL);
    type->decode(cache, values, n);
}

static void attention_of(int head_dim, const dw_qtype_row *type) {
    dw_rng rng;
    dw_rng_seed(&rng, 3);
    const size_t hd = (size_t)head_dim, ld = GROUP * hd + 5;
    const size_t cache_bytes = dw_qtype_row_bytes(type, CTX * hd);
    guarded k = guard(cache_bytes), v = guard(cache_bytes);
    float *kf = malloc(CTX * hd * 4), *vf = malloc(CTX * hd * 4), *q = malloc(QUERIES * ld * 4);
    float *mix = malloc(QUERIES * ld * 4), *again = malloc(QUERIES * ld * 4);
    int32_t pos[QUERIES];
    random_values(kf, CTX * hd, &rng);
    random_values(vf, CTX * hd, &rng);
    random_values(q, QUERIES * ld, &rng);
    fill_cache(type, kf, CTX * hd, k.data);
    fill_cache(type, vf, CTX * hd, v.data);
    for (int t = 0; t < QUERIES; t++) pos[t] = t < EARLY ? t : CTX - QUERIES + t;
    const float scale = 1 / sqrtf((float)head_dim);
    EACH_LEVEL(vec) for (attend_kind kind = 0; kind < ATTEND_KINDS; kind++) {
        if (!has_kind((dw_level)level, kind)) continue;
        dw_attend_job job = {.type = type, .decode = dw_unpack_of(level, type), .k = k.data, .v = v.data,
                             .head_dim = head_dim, .n_group = GROUP, .pos = pos, .q = q, .mix = mix, .ld = ld,
                             .scale = scale};
        attend_all((dw_level)level, kind, job, QUERIES, kind == ONE_TOKEN ? 1 : QUERIES);
        const double error = attention_error(mix, ld, q, kf, vf, head_dim, pos, scale);
        CHECK(error <= attend_bound[kind], "%s %s head_dim %d, kind %d: %g", dw_level_names[level], type->name,
              head_dim, (int)kind, error);
        if (kind == ONE_TOKEN) continue;
        job.mix = again;
        for (int at_once = 1; at_once < QUERIES; at_once += 4) {
            attend_all((dw_level)level, kind, job, QUERIES, at_once);
            bool same = true;
            for (size_t t = 0; t < QUERIES; t++) same = same && !memcmp(again + t * ld, mix + t * ld, GROUP * hd * 4);
            CHECK(same, "%s head_dim %d, kind %d: %d queries at once", dw_level_names[level], head_dim, (int)kind,
                  at_once);
        }
    }
    unguard(&k);
    unguard(&v);
    free(kf);
    free(vf);
    free(q);
    free(mix);
    free(again);
}

/* One token's heads, however many are taken together, are as each is alone. */
static void heads_together(void) {
    enum { HEAD = 32, HEADS = 17, POSITIONS = 130 };
    dw_rng rng;
    dw_rng_seed(&rng, 9);
    static const dw_qtype types[] = {DW_F16, DW_F32};
    float values[POSITIONS * HEAD], q[HEADS * HEAD], mix[HEADS * HEAD], alone[HEADS * HEAD];
    const int32_t pos = POSITIONS - 1;
    random_values(q, HEADS * HEAD, &rng);
    for (int i = 0; i < 2; i++) {
        const dw_qtype_row *type = dw_qtype_get(types[i]);
        guarded k = guard(dw_qtype_row_bytes(type, POSITIONS * HEAD)),
                v = guard(dw_qtype_row_bytes(type, POSITIONS * HEAD));
        random_values(values, POSITIONS * HEAD, &rng);
        fill_cache(type, values, POSITIONS * HEAD, k.data);
        random_values(values, POSITIONS * HEAD, &rng);
        fill_cache(type, values, POSITIONS * HEAD, v.data);
        EACH_LEVEL(vec) {
            dw_attend_job job = {.type = type,
                                 .decode = dw_unpack_of(level, type),
                                 .k = k.data,
                                 .v = v.data,
                                 .head_dim = HEAD,
                                 .n_group = 1,
                                 .pos = &pos,
                                 .ld = HEADS * HEAD,
                                 .scale = 0.2f};
            for (int h = 0; h < HEADS; h++) {
                job.q = q + h * HEAD, job.mix = alone + h * HEAD;
                attend_all((dw_level)level, ONE_TOKEN, job, 1, 1);
            }
            job.q = q, job.mix = mix;
            for (job.n_group = 1; job.n_group <= HEADS; job.n_group++) {
                memset(mix, 0xff, sizeof mix);
                attend_all((dw_level)level, ONE_TOKEN, job, 1, 1);
                CHECK(!memcmp(mix, alone, (size_t)job.n_group * HEAD * sizeof *mix), "%s %s, %d heads",
                      dw_level_names[level], type->name, job.n_group);
            }
        }
        unguard(&k);
        unguard(&v);
    }
}

/* Blocks of many rows: n_tokens queries of n_group heads, at positions 0, 3, 6 .., by tiles and in F32.  Two values
 * are infinite; where a row sees them, neither is finite. */
static void tall_block(attend_kind tiles, const dw_qtype_row *type, int head_dim, int n_group, int n_tokens,
                       bool has_infinite) {
    const dw_level level = tiles == BY_TILES ? DW_AMX : DW_AVX512;
    const size_t hd = (size_t)head_dim, n_ctx = 3 * (size_t)n_tokens;
    const size_t ld = (size_t)n_group * hd, n = (size_t)n_tokens * ld;
    const size_t cache_bytes = dw_qtype_row_bytes(type, n_ctx * hd);
    float *kf = malloc(n_ctx * hd * 4), *vf = malloc(n_ctx * hd * 4), *q = malloc(n * 4), *mix[2];
    int32_t *pos = malloc((size_t)n_tokens * sizeof *pos);
    guarded k = guard(cache_bytes), v = guard(cache_bytes);
    dw_rng rng;
    dw_rng_seed(&rng, 5);
    random_values(kf, n_ctx * hd, &rng);
    random_values(vf, n_ctx * hd, &rng);
    random_values(q, n, &rng);
    for (size_t i = 0; i < n_ctx * hd; i++) kf[i] += 0.5f; // scores of one sign
    if (has_infinite) vf[(n_ctx / 2) * hd + 3] = INFINITY, vf[(n_ctx - 2) * hd] = -INFINITY;
    fill_cache(type, kf, n_ctx * hd, k.data);
    fill_cache(type, vf, n_ctx * hd, v.data);
    for (int t = 0; t < n_tokens; t++) pos[t] = n_tokens == 1 ? (int32_t)n_ctx - 1 : 3 * t;
    for (int kind = 0; kind < 2; kind++) {
        mix[kind] = malloc(n * 4);
        const dw_attend_job job = {.type = type,
                                   .decode = dw_unpack_of(level, type),
                                   .k = k.data,
                                   .v = v.data,
                                   .head_dim = head_dim,
                                   .n_group = n_group,
                                   .pos = pos,
                                   .q = q,
                                   .mix = mix[kind],
                                   .ld = ld,
                                   .scale = 1 / sqrtf((float)head_dim)};
        const int rows = kind ? DW_TILED_ROWS : DW_QUERY_BLOCK, at_once = rows / n_group > 1 ? rows / n_group : 1;
        attend_all(level, kind ? tiles : MANY_TOKENS, job, n_tokens, at_once);
    }
    double error = 0, size = 0;
    size_t n_different = 0;
    for (size_t i = 0; i < n; i++) {
        const double a = (double)mix[0][i], b = (double)mix[1][i];
        n_different += isfinite(a) != isfinite(b);
        if (!isfinite(a) || !isfinite(b)) continue;
        error += (a - b) * (a - b), size += a * a;
    }
    CHECK(sqrt(error / size) <= attend_bound[tiles], "%s, head_dim %d, %d heads, %d tokens: %g", type->name, head_dim,
          n_group, n_tokens, sqrt(error / size));
    CHECK(!n_different, "%s, head_dim %d: %zu values are finite in one only", type->name, head_dim, n_different);
    unguard(&k);
    unguard(&v);
    free(kf), free(vf), free(q), free(mix[0]), free(mix[1]), free(pos);
}

static void tall_blocks_of(attend_kind tiles) {
    const dw_qtype_row *f16 = dw_qtype_get(DW_F16), *f32 = dw_qtype_get(DW_F32), *q8_0 = dw_qtype_get(DW_Q8_0);
    tall_block(tiles, f16, 80, 1, 300, false);
    tall_block(tiles, f32, 96, 3, 100, false);
    tall_block(tiles, q8_0, 256, 8, 70, false);
    tall_block(tiles, f16, 64, 71, 1, false);
    tall_block(tiles, f16, 64, 300, 1, false);
    tall_block(tiles, f16, 64, 2, 90, true);
    tall_block(tiles, f32, 48, 1, 150, true);
}

static void tall_blocks(void) {
    if (!dw_level_usable(DW_AMX)) SKIP("this machine has no AMX");
    tall_blocks_of(BY_TILES);
}

static void tall_rounded_blocks(void) {
    if (!dw_level_has_bf16(DW_AVX512)) SKIP("this machine has no AVX512_BF16");
    tall_blocks_of(BY_ROUNDED_TILES);
}

/* An infinite value of a later position is no number of an earlier query's, however many queries come at once. */
static void unseen_infinity(void) {
    enum { HEAD = 16, N = 3 };
    const size_t n = (size_t)N * HEAD;
    float k[N * HEAD], v[N * HEAD], q[N * HEAD], mix[N * HEAD];
    const int32_t pos[N] = {0, 1, 2};
    for (size_t i = 0; i < n; i++) k[i] = q[i] = 0.5f, v[i] = i / HEAD == 2 ? INFINITY : 1 + (float)(i / HEAD);
    EACH_LEVEL(vec) for (attend_kind kind = MANY_TOKENS; kind < ATTEND_KINDS; kind++) {
        if (!has_kind((dw_level)level, kind)) continue;
        const dw_attend_job job = {.type = dw_qtype_get(DW_F32), .decode = dw_unpack_of(level, dw_qtype_get(DW_F32)),
                                   .k = (const uint8_t *)k, .v = (const uint8_t *)v, .head_dim = HEAD, .n_group = 1,
                                   .pos = pos, .q = q, .mix = mix, .ld = HEAD, .scale = 0.25f};
        attend_all((dw_level)level, kind, job, N, N);
        for (size_t i = 0; i < n; i++) {
            const float wanted = i / HEAD == 0 ? 1 : 1.5f;
            CHECK(i / HEAD == 2 ? !isfinite(mix[i]) : fabsf(mix[i] - wanted) < 1e-5f, "%s, kind %d: value %zu is %g",
                  dw_level_names[level], (int)kind, i, (double)mix[i]);
        }
    }
}

static void attention(void) {
    static const int head_dims[] = {8, 16, 40, 64, 128};
    for (size_t i = 0; i < sizeof head_dims / sizeof *head_dims; i++) {
        attention_of(head_dims[i], dw_qtype_get(DW_F16));
        attention_of(head_dims[i], dw_qtype_get(DW_F32));
        if (head_dims[i] % 32 == 0) attention_of(head_dims[i], dw_qtype_get(DW_Q8_0));
    }
}

static const test_case cases[] = {
    {"every level's product of every type equals the sum in double within its bound, inside its memory",
     against_double},
    {"products with 8-bit inputs equal those of the rounded inputs, whatever the sizes", eight_bit_inputs},
    {"a NaN or infinite input is not rounded away, and its neighbours do not see it", eight_bit_nans},
    {"a product's elements do not depend on how rows and tokens are cut, bit for bit", unaffected_by_cuts},
    {"few tokens of long rows: sums within the bound, and the same as of fewer tokens, bit for bit", long_tokens},
    {"every level's decoder equals the type's, bit for bit, inside its memory", decoders_equal},
    {"weights unpacked straight into tiles of BF16 are the decoder's, rounded, bit for bit", tiles_equal_decoders},
    {"neurons packed from sums, and tokens packed by tiles, are those packed from rows, bit for bit", packed_neurons},
    {"listed rows equal the same rows of the whole product", listed_rows},
    {"RMS norm and sums of any length, and nothing behind their end", norm_and_add},
    {"a transposed square is added in its place", add_transposed},
    {"every activation (silu, gelu, relu) is accurate to 1e-6 and shows a NaN", activations_accurate},
    {"log of a sum of exponentials is accurate to 1e-6", log_sum_exp},
    {"conversion to half precision equals the definition", half_precision},
    {"attention equals softmax in double, and each query does not depend on its neighbours, bit for bit", attention},
    {"attention of one token: heads that are taken together are as each alone, bit for bit", heads_together},
    {"attention by tiles equals that in F32 for many rows, wide heads and infinite values", tall_blocks},
    {"attention by rounded tiles with AVX512_BF16 does so, too", tall_rounded_blocks},
    {"attention: an infinite value at a later position does not reach earlier queries", unseen_infinity},
    {0},
};
TEST_MAIN(cases)
