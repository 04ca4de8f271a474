/* test_qtypes.c - number formats: the table, decoders against slow formulas, encoders by their properties, and
 * both against the library of llama.cpp where $DW_STOCK names a folder with libggml-base.so. */
#include "base/base.h"
#include "base/half_inline.h"
#include "qtypes/qtypes.h"
#include "qtypes/encoding.h"
#include "qtypes/scale_search_own.h"
#include "test.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_MAX = 6144 }; // longest row here
static float x[N_MAX], y[N_MAX], z[N_MAX], weight[N_MAX];
static uint8_t packed[4 * N_MAX + 64], again[4 * N_MAX + 64];

#define EACH_ENCODABLE(t)                                                                                              \
    for (const dw_qtype_row *t = dw_qtypes; t->name; t++)                                                              \
        if (t->encode)

static bool same_float(float a, float b) { return !memcmp(&a, &b, sizeof a) || (isnan(a) && isnan(b)); }

static void normal_row(uint64_t seed, size_t n) {
    dw_rng rng;
    dw_rng_seed(&rng, seed);
    for (size_t i = 0; i < n; i++) x[i] = (float)dw_rng_normal(&rng);
    for (size_t i = 0; i < n; i++) weight[i] = (float)(0.05 + dw_rng_uniform(&rng) * dw_rng_uniform(&rng));
}

static void random_bytes(uint64_t seed, uint8_t *bytes, size_t n) {
    dw_rng rng;
    dw_rng_seed(&rng, seed);
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(dw_rng_next(&rng) >> 32);
}

/* ---- the table ------------------------------------------------------------------------------------ */

static void table_consistent(void) {
    int n_encodable = 0;
    for (const dw_qtype_row *t = dw_qtypes; t->name; t++) {
        CHECK(dw_qtype_get(t->id) == t, "%s by number", t->name);
        CHECK(dw_qtype_by_name(t->name) == t && !strcmp(dw_ggml_type_name(t->id), t->name), "%s by name", t->name);
        CHECK(t->block > 0 && 256 % t->block == 0, "%s", t->name);
        CHECK(t->block_bytes > 0 && t->block_bytes <= 4 * t->block, "%s", t->name);
        CHECK(dw_qtype_row_bytes(t, 512) == (size_t)(512 / t->block * t->block_bytes), "%s", t->name);
        CHECK(t->decode, "%s", t->name);
        n_encodable += t->encode != NULL;
        for (const dw_qtype_row *u = dw_qtypes; u < t; u++)
            CHECK(u->id != t->id && u->file_type != t->file_type, "%s and %s", u->name, t->name);
    }
    CHECK(n_encodable == 14, "%d types", n_encodable);
    for (const dw_qtype_name *e = dw_encodable_names; e->name; e++, n_encodable--)
        CHECK(dw_qtype_by_name(e->name)->encode, "%s", e->name);
    CHECK(n_encodable == 0);
    CHECK(dw_qtype_by_name("q4_k") == dw_qtype_get(DW_Q4_K) && dw_qtype_by_name("bf16") == dw_qtype_get(DW_BF16));
    CHECK(!dw_qtype_by_name("Q4") && !dw_qtype_by_name("") && !dw_qtype_by_name("F320"));
    CHECK(!dw_qtype_get(4) && !dw_qtype_get(15) && !dw_qtype_get(DW_QTYPE_END) && !dw_qtype_get(UINT32_MAX));
    CHECK(!strcmp(dw_ggml_type_name(23), "IQ4_XS") && !strcmp(dw_ggml_type_name(1000), "unknown"));
}

/* ---- half precision ------------------------------------------------------------------------------- */

static float slow_half(const uint8_t *p) {
    const int h = p[0] | p[1] << 8, exponent = h >> 10 & 31, mantissa = h & 1023;
    const double sign = h >> 15 ? -1 : 1;
    if (exponent == 31) return mantissa ? NAN : (float)(sign * INFINITY);
    return (float)(sign * (exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24)));
}

/* The half nearest to f, found by stepping in units of its last place. */
static int slow_to_half(float f) {
    const int sign = signbit(f) ? 0x8000 : 0;
    const double a = fabs((double)f);
    if (isnan(f)) return sign | 0x7e00;
    if (a >= 65520) return sign | 0x7c00;
    int exponent = a > 0 ? ilogb(a) : -14;
    if (exponent < -14) exponent = -14;
    const double places = nearbyint(ldexp(a, 10 - exponent)); // to even; 0 .. 2048
    return sign | ((exponent + 14) * 1024 + (int)places);
}

static void half_exact(void) {
    for (uint32_t h = 0; h < 65536; h++) {
        const uint8_t bytes[2] = {(uint8_t)h, (uint8_t)(h >> 8)};
        REQUIRE(same_float(dw_f16_to_f32_inline((uint16_t)h), slow_half(bytes)), "%04x", h);
    }
    dw_rng rng;
    dw_rng_seed(&rng, 1);
    for (int i = 0; i < 300000; i++) {
        const float any = dw_bits_float((uint32_t)dw_rng_next(&rng));
        const float close = (float)(dw_rng_normal(&rng) * exp2(40 * dw_rng_uniform(&rng) - 30));
        const float tie = dw_bits_float((dw_float_bits(close) & ~0x1fffu) | 0x1000);
        REQUIRE(dw_f32_to_f16_inline(any) == slow_to_half(any), "%a", any);
        REQUIRE(dw_f32_to_f16_inline(close) == slow_to_half(close), "%a", close);
        REQUIRE(dw_f32_to_f16_inline(tie) == slow_to_half(tie), "%a", tie);
    }
}

/* ---- decoders ------------------------------------------------------------------------------------- */

static int nibble(const uint8_t *qs, int i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; }
static int bit(const uint8_t *bits, int i) { return bits[i / 8] >> i % 8 & 1; }

static int k4_scale(const uint8_t *s, int k) { return k < 4 ? s[k] & 63 : (s[k + 4] & 15) | (s[k - 4] >> 6) << 4; }
static int k4_min(const uint8_t *s, int k) { return k < 4 ? s[k + 4] & 63 : s[k + 4] >> 4 | (s[k] >> 6) << 4; }

/* Element i of a block, each from its formula alone. */
static float slow_element(dw_qtype type, const uint8_t *b, int i) {
    static const int table[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    const int part = i / 128, j = i % 128 / 32, l = i % 32, s = i / 32, k = i / 16;
    int low, high;
    float product, offset;
    switch (type) {
    case DW_F32: memcpy(&product, b, 4); return product;
    case DW_F16: return slow_half(b);
    case DW_BF16: return dw_bits_float((uint32_t)b[0] << 16 | (uint32_t)b[1] << 24);
    case DW_Q8_0: return slow_half(b) * (float)(b[2 + i] < 128 ? b[2 + i] : b[2 + i] - 256);
    case DW_Q4_0: return slow_half(b) * (float)(nibble(b + 2, i) - 8);
    case DW_Q4_1: product = slow_half(b) * (float)nibble(b + 4, i); return product + slow_half(b + 2);
    case DW_Q5_0: return slow_half(b) * (float)(nibble(b + 6, i) + 16 * bit(b + 2, i) - 16);
    case DW_Q5_1:
        product = slow_half(b) * (float)(nibble(b + 8, i) + 16 * bit(b + 4, i));
        return product + slow_half(b + 2);
    case DW_IQ4_NL: return slow_half(b) * (float)table[nibble(b + 2, i)];
    case DW_Q2_K:
        product = slow_half(b + 80) * (float)(b[k] & 15);
        product = product * (float)(b[16 + 32 * part + l] >> 2 * j & 3);
        offset = slow_half(b + 82) * (float)(b[k] >> 4);
        return product - offset;
    case DW_Q3_K:
        low = k < 8 ? b[96 + k] & 15 : b[96 + k - 8] >> 4;
        high = b[104 + k % 4] >> 2 * (k / 4) & 3;
        product = slow_half(b + 108) * (float)(low + 16 * high - 32);
        return product * (float)((b[32 + 32 * part + l] >> 2 * j & 3) - (b[l] >> s & 1 ? 0 : 4));
    case DW_Q4_K:
        product = slow_half(b) * (float)k4_scale(b + 4, s);
        product = product * (float)(b[16 + 32 * (i / 64) + l] >> 4 * (s % 2) & 15);
        offset = slow_half(b + 2) * (float)k4_min(b + 4, s);
        return product - offset;
    case DW_Q5_K:
        product = slow_half(b) * (float)k4_scale(b + 4, s);
        product = product * (float)((b[48 + 32 * (i / 64) + l] >> 4 * (s % 2) & 15) + 16 * (b[16 + l] >> s & 1));
        offset = slow_half(b + 2) * (float)k4_min(b + 4, s);
        return product - offset;
    case DW_Q6_K:
        low = b[64 * part + 32 * (j % 2) + l] >> 4 * (j / 2) & 15;
        high = b[128 + 32 * part + l] >> 2 * j & 3;
        product = slow_half(b + 208) * (float)(b[192 + k] < 128 ? b[192 + k] : b[192 + k] - 256);
        return product * (float)(low + 16 * high - 32);
    default: return NAN;
    }
}

static void decoders_follow_formulas(void) {
    for (const dw_qtype_row *t = dw_qtypes; t->name; t++)
        for (uint64_t seed = 0; seed < 20; seed++) {
            random_bytes(seed, packed, sizeof packed);
            t->decode(packed, y, N_MAX);
            for (int i = 0; i < N_MAX; i++) {
                const float want = slow_element(t->id, packed + i / t->block * t->block_bytes, i % t->block);
                REQUIRE(same_float(y[i], want), "%s element %d: %a, formula %a", t->name, i, y[i], want);
            }
        }
}

static void decoders_by_hand(void) {
    uint8_t b[256] = {0x00, 0x38}; // d = 0.5
    b[2] = 0x2f;
    dw_qtype_get(DW_Q4_0)->decode(b, y, 32);
    CHECK(y[0] == 3.5f && y[16] == -3 && y[1] == -4, "Q4_0: %g %g %g", y[0], y[16], y[1]);
    dw_qtype_get(DW_IQ4_NL)->decode(b, y, 32);
    CHECK(y[0] == 56.5f && y[16] == -41.5f && y[1] == -63.5f, "IQ4_NL: %g %g %g", y[0], y[16], y[1]);
    b[2] = 0x80;
    dw_qtype_get(DW_Q8_0)->decode(b, y, 32);
    CHECK(y[0] == -64 && y[1] == 0, "Q8_0 reads -128: %g", y[0]);

    memset(b, 0, sizeof b);
    b[1] = 0x3c, b[3] = 0x40;          // Q4_K: d = 1, dmin = 2
    b[4] = 0x43, b[8] = 0x85;          // scale 0 = 3, min 0 = 5; high bits of scale 4 = 1, of min 4 = 2
    b[12] = 0x21;                      // scale 4 = 16 + 1, min 4 = 32 + 2
    b[16] = 0x0f, b[16 + 64] = 0x02;
    dw_qtype_get(DW_Q4_K)->decode(b, y, 256);
    CHECK(y[0] == 3 * 15 - 2 * 5 && y[1] == -10 && y[128] == 17 * 2 - 2 * 34, "Q4_K: %g %g %g", y[0], y[1], y[128]);

    memset(b, 0, sizeof b);
    b[209] = 0xbc, b[192] = 0xfe; // Q6_K: d = -1, scale 0 = -2
    b[0] = 0x0a, b[128] = 0x03;   // element 0 = 10 + 48 - 32
    dw_qtype_get(DW_Q6_K)->decode(b, y, 256);
    CHECK(y[0] == 52 && y[1] == -64, "Q6_K: %g %g", y[0], y[1]);
}

/* ---- encoders ------------------------------------------------------------------------------------- */

/* Relative root mean square error on normal data, in percent: upper bounds, close above what was measured, so
 * that an encoder which loses quality is caught. */
// clang-format off
static const struct error_bound {
    dw_qtype type;
    double plain, weighted; // the weighted form's error is measured with its weights
} error_bounds[] = {
    {DW_F32,    0,      0},
    {DW_F16,    0.0215, 0.0215},
    {DW_BF16,   0.175,  0.175},
    {DW_Q8_0,   0.56,   0.56},
    {DW_Q4_0,   8.9,    8.2},
    {DW_Q4_1,   8.2,    7.0},
    {DW_Q5_0,   4.5,    4.2},
    {DW_Q5_1,   4.0,    3.4},
    {DW_IQ4_NL, 8.0,    7.6},
    {DW_Q2_K,   31,     26},
    {DW_Q3_K,   16,     14.5},
    {DW_Q4_K,   7.5,    7.1},
    {DW_Q5_K,   3.8,    3.6},
    {DW_Q6_K,   1.85,   1.75},
};
// clang-format on

/* 100 sqrt(sum w (a - b)^2 / sum w b^2); w NULL: all 1. */
static double percent_error(const float *a, const float *b, const float *w, size_t n) {
    double error = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        const double v = w ? w[i] : 1, diff = (double)a[i] - b[i];
        error += v * diff * diff;
        square += v * b[i] * b[i];
    }
    return 100 * sqrt(error / square);
}

static double round_trip_error(const dw_qtype_row *t, const float *encode_weight, const float *measure_weight) {
    t->encode(x, packed, N_MAX, encode_weight);
    t->decode(packed, y, N_MAX);
    return percent_error(y, x, measure_weight, N_MAX);
}

static void errors_bounded(void) {
    normal_row(3, N_MAX);
    for (size_t k = 0; k < sizeof error_bounds / sizeof *error_bounds; k++) {
        const struct error_bound *bound = &error_bounds[k];
        const dw_qtype_row *t = dw_qtype_get(bound->type);
        const double plain = round_trip_error(t, NULL, NULL), weighted = round_trip_error(t, weight, weight);
        CHECK(plain <= bound->plain, "%s: %.4f %%", t->name, plain);
        CHECK(weighted <= bound->weighted, "%s weighted: %.4f %%", t->name, weighted);
        CHECK(plain >= 0.9 * bound->plain, "%s: %.4f %%, its bound is loose", t->name, plain);
    }
}

static void weights_help(void) {
    const dw_qtype searched[] = {DW_Q4_0, DW_Q4_1, DW_Q5_0, DW_Q5_1, DW_IQ4_NL,
                                 DW_Q2_K, DW_Q3_K, DW_Q4_K, DW_Q5_K, DW_Q6_K};
    normal_row(4, N_MAX);
    for (size_t k = 0; k < sizeof searched / sizeof *searched; k++) {
        const dw_qtype_row *t = dw_qtype_get(searched[k]);
        const double plain = round_trip_error(t, NULL, weight), weighted = round_trip_error(t, weight, weight);
        CHECK(weighted < plain, "%s: %.3f %% with weights, %.3f %% without", t->name, weighted, plain);
    }
}

/* Importances of columns of which nearly all were never active. */
static void few_weights(void) {
    dw_rng rng;
    dw_rng_seed(&rng, 12);
    for (int round = 0; round < 400; round++) {
        for (size_t i = 0; i < N_MAX; i++) {
            x[i] = (float)(round % 2 ? -dw_rng_uniform(&rng) : 2 * dw_rng_uniform(&rng) - 1);
            weight[i] = dw_rng_uniform(&rng) < 0.9 ? 0 : (float)dw_rng_uniform(&rng);
        }
        dw_weights_raise(weight, N_MAX);
        EACH_ENCODABLE(t) {
            t->encode(x, packed, N_MAX, weight);
            t->decode(packed, y, N_MAX);
            for (size_t i = 0; i < N_MAX; i++)
                REQUIRE(fabsf(y[i]) < 4, "%s: %g becomes %g", t->name, (double)x[i], (double)y[i]);
        }
    }
}

/* What dw_encode_row does not refuse is read back as finite numbers. */
static void weighted_is_finite(void) {
    dw_rng rng;
    dw_rng_seed(&rng, 13);
    for (int round = 0; round < 200; round++) {
        const double size = round % 2 ? 65280 : 30000;
        for (size_t i = 0; i < N_MAX; i++) {
            x[i] = (float)(size * (2 * dw_rng_uniform(&rng) - 1));
            weight[i] = (float)dw_rng_uniform(&rng);
        }
        EACH_ENCODABLE(t) {
            dw_encoding e = {.tensor = "t", .type = t, .n = N_MAX, .weight = weight};
            dw_encode_row(&e, 0, x, packed);
            if (dw_encoding_end(&e, "", NULL)) continue;
            t->decode(packed, y, N_MAX);
            for (size_t i = 0; i < N_MAX; i++)
                REQUIRE(isfinite(y[i]), "%s: %g becomes %g", t->name, (double)x[i], (double)y[i]);
        }
    }
}

static void zeros_stay(void) {
    normal_row(5, N_MAX);
    for (int sign = 0; sign < 2; sign++) {
        for (size_t i = 0; i < N_MAX; i++) x[i] = sign ? -0.0f : 0.0f;
        EACH_ENCODABLE(t)
            for (int weighted = 0; weighted < 2; weighted++) {
                memset(packed, 0xaa, sizeof packed);
                t->encode(x, packed, N_MAX, weighted ? weight : NULL);
                t->decode(packed, y, N_MAX);
                for (size_t i = 0; i < N_MAX; i++) REQUIRE(y[i] == 0, "%s element %zu: %g", t->name, i, y[i]);
            }
    }
}

static void second_pass_changes_nothing(void) {
    const dw_qtype exact[] = {DW_F32, DW_F16, DW_BF16, DW_Q8_0, DW_Q4_0, DW_Q4_1, DW_Q5_0, DW_Q5_1};
    normal_row(6, N_MAX);
    for (size_t k = 0; k < sizeof exact / sizeof *exact; k++) {
        const dw_qtype_row *t = dw_qtype_get(exact[k]);
        t->encode(x, packed, N_MAX, NULL);
        t->decode(packed, y, N_MAX);
        t->encode(y, again, N_MAX, NULL);
        CHECK(!memcmp(packed, again, dw_qtype_row_bytes(t, N_MAX)), "%s", t->name);
    }
}

static void blocks_independent(void) {
    normal_row(7, N_MAX);
    EACH_ENCODABLE(t)
        for (int blocks = 1; blocks <= 9; blocks++) { // searches take several blocks at once
            const size_t n = (size_t)(blocks * t->block), bytes = dw_qtype_row_bytes(t, n);
            memset(packed, 0xaa, sizeof packed);
            t->encode(x, packed, n, NULL);
            for (int b = 0; b < blocks; b++)
                t->encode(x + b * t->block, again + b * t->block_bytes, (size_t)t->block, NULL);
            CHECK(!memcmp(packed, again, bytes), "%s, %d blocks", t->name, blocks);
            CHECK(packed[bytes] == 0xaa, "%s wrote beyond its row", t->name);
        }
}

/* First digits of the SHA-256 of 24 encoded super-blocks, plain and weighted; equal to llama.cpp's bytes. */
// clang-format off
static const struct fingerprint {
    dw_qtype type;
    const char *plain, *weighted;
} fingerprints[] = {
    {DW_F32,    "3b3a4a7f", "3b3a4a7f"},
    {DW_F16,    "36c390b3", "36c390b3"},
    {DW_BF16,   "614ff539", "614ff539"},
    {DW_Q8_0,   "7a693a7e", "7a693a7e"},
    {DW_Q4_0,   "1d9e3651", "dfe7dffa"},
    {DW_Q4_1,   "51cfa02f", "fb08a470"},
    {DW_Q5_0,   "d21de007", "69de124d"},
    {DW_Q5_1,   "3ed0177f", "6d4ce917"},
    {DW_IQ4_NL, "db66d62a", "32ed43d2"},
    {DW_Q2_K,   "c79e1fc8", "8fa6d6e6"},
    {DW_Q3_K,   "c292353c", "f5faf9e1"},
    {DW_Q4_K,   "fc85f304", "32e57fc7"},
    {DW_Q5_K,   "7da90029", "1a5692cf"},
    {DW_Q6_K,   "2c993b81", "8fc6b998"},
};
// clang-format on

static void same_bytes_everywhere(void) {
    dw_rng rng;
    dw_rng_seed(&rng, 11);
    for (size_t i = 0; i < N_MAX; i++) { // near to normal, by exact steps only
        double sum = -2;
        for (int k = 0; k < 4; k++) sum += dw_rng_uniform(&rng);
        x[i] = (float)sum;
        weight[i] = (float)(dw_rng_uniform(&rng) + 0.05);
    }
    for (size_t k = 0; k < sizeof fingerprints / sizeof *fingerprints; k++) {
        const struct fingerprint *f = &fingerprints[k];
        const dw_qtype_row *t = dw_qtype_get(f->type);
        for (int weighted = 0; weighted < 2; weighted++) {
            dw_sha256 hash;
            uint8_t digest[32];
            char hex[9];
            t->encode(x, packed, N_MAX, weighted ? weight : NULL);
            dw_sha256_begin(&hash);
            dw_sha256_add(&hash, packed, dw_qtype_row_bytes(t, N_MAX));
            dw_sha256_end(&hash, digest);
            dw_hex(digest, 4, hex);
            const char *expected = weighted ? f->weighted : f->plain;
            CHECK(!strcmp(hex, expected), "%s%s: %s", t->name, weighted ? " weighted" : "", hex);
        }
    }
}

/* A row by fit, round and pack, block by block, into `again`; the values as round says that they are read into z. */
static void encode_in_steps(const dw_qtype_row *t, size_t n, const float *importance) {
    float sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i] * x[i];
    for (size_t b = 0; b < n / (size_t)t->block; b++) {
        const size_t at = b * (size_t)t->block;
        uint32_t code[DW_BLOCK_MAX];
        dw_block_fit f;
        memset(&f, 0xa5, sizeof f);
        t->coder->fit(x + at, importance ? importance + at : NULL, sum / (float)n, &f);
        for (int i = 0; i < t->block; i++) code[i] = t->coder->round(&f, i, x[at + (size_t)i], &z[at + (size_t)i]);
        t->coder->pack(&f, code, again + b * (size_t)t->block_bytes);
    }
}

static void steps_are_encode(void) {
    for (int kind = 0; kind < 3; kind++) {
        normal_row(20 + (uint64_t)kind, N_MAX);
        for (size_t i = 0; kind == 1 && i < N_MAX; i++)
            x[i] = i / 64 % 3 ? (float)(i / 256) : 0; // constant groups, zeros
        for (size_t i = 0; kind == 2 && i < N_MAX; i++) x[i] *= (float)exp2((double)(i / 16 % 40) - 30);
        EACH_ENCODABLE(t)
            for (int weighted = 0; weighted < 2; weighted++) {
                t->encode(x, packed, N_MAX, weighted ? weight : NULL);
                encode_in_steps(t, N_MAX, weighted ? weight : NULL);
                CHECK(!memcmp(packed, again, dw_qtype_row_bytes(t, N_MAX)), "%s, weighted %d, values %d", t->name,
                      weighted, kind);
                t->decode(packed, y, N_MAX);
                for (size_t i = 0; i < N_MAX; i++)
                    REQUIRE(y[i] == z[i], "%s element %zu: round says %a, it reads %a", t->name, i, (double)z[i],
                            (double)y[i]);
            }
    }
}

/* An error that was pushed on moves a value beyond what fit saw: it gets the value that is nearest to it in the
 * block. */
static void round_takes_any_value(void) {
    normal_row(23, N_MAX);
    EACH_ENCODABLE(t)
        for (int weighted = 0; weighted < 2 && t->block > 1; weighted++) {
            dw_block_fit f;
            t->coder->fit(x, weighted ? weight : NULL, 1, &f);
            for (int i = 0; i < t->block; i++) {
                float last = -INFINITY, value;
                for (double size = -1e30; size <= 1e30; size = size < -1e-3  ? size / 10
                                                               : size < 1e-3 ? size + 2e-4
                                                                             : size * 10) {
                    const uint32_t code = t->coder->round(&f, i, (float)size, &value);
                    REQUIRE(code < 256 && isfinite(value) && value >= last, "%s place %d: %g becomes %g after %g",
                            t->name, i, size, (double)value, (double)last);
                    last = value;
                }
            }
        }
}

static void unaligned(void) {
    static uint8_t shifted[4 * N_MAX + 64];
    normal_row(8, N_MAX);
    EACH_ENCODABLE(t) {
        const size_t bytes = dw_qtype_row_bytes(t, N_MAX);
        for (int weighted = 0; weighted < 2; weighted++)
            for (int offset = 1; offset < 4; offset++) {
                t->encode(x, packed, N_MAX, weighted ? weight : NULL);
                t->encode(x, shifted + offset, N_MAX, weighted ? weight : NULL);
                CHECK(!memcmp(packed, shifted + offset, bytes), "%s encoded at offset %d", t->name, offset);
                t->decode(packed, y, N_MAX);
                t->decode(shifted + offset, z, N_MAX);
                CHECK(!memcmp(y, z, sizeof y), "%s decoded from offset %d", t->name, offset);
            }
    }
}

static void nonsense_survives(void) {
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3.4e38f, -3.4e38f, 1e-45f, -1e-40f, 65520, -0.0f, 1};
    dw_rng rng;
    dw_rng_seed(&rng, 9);
    for (int round = 0; round < 30; round++) {
        const int choice = round % 10 + 1; // more and more of the odd values
        for (size_t i = 0; i < N_MAX; i++) x[i] = odd[dw_rng_below(&rng, (uint64_t)choice)];
        for (size_t i = 0; i < N_MAX; i++) weight[i] = odd[dw_rng_below(&rng, 10)];
        EACH_ENCODABLE(t)
            for (int weighted = 0; weighted < 2; weighted++) {
                const size_t bytes = dw_qtype_row_bytes(t, N_MAX);
                packed[bytes] = 0xaa;
                t->encode(x, packed, N_MAX, weighted ? weight : NULL);
                t->decode(packed, y, N_MAX);
                CHECK(packed[bytes] == 0xaa, "%s", t->name);
            }
    }
}

/* ---- beside llama.cpp's library -------------------------------------------------------------------- */

typedef struct stock_traits { // the head of ggml_type_traits
    const char *type_name;
    int64_t block, interleave;
    size_t block_bytes;
    bool is_quantized;
    void (*to_float)(const void *, float *, int64_t);
} stock_traits;

typedef struct stock_library {
    size_t (*quantize)(int type, const float *src, void *dst, int64_t start, int64_t n_rows, int64_t n_per_row,
                       const float *weight);
    const stock_traits *(*traits)(int type);
} stock_library;

static bool open_stock(stock_library *stock) {
    const char *folder = getenv("DW_STOCK");
    void *handle = folder ? dlopen(test_path(folder, "libggml-base.so"), RTLD_NOW) : NULL;
    if (!handle) {
        test_skip("%s", folder ? dlerror() : "DW_STOCK does not name a folder with libggml-base.so");
        return false;
    }
    *(void **)&stock->quantize = dlsym(handle, "ggml_quantize_chunk");
    *(void **)&stock->traits = dlsym(handle, "ggml_get_type_traits");
    return CHECK(stock->quantize && stock->traits, "%s", dlerror());
}

static void stock_decodes_alike(void) {
    stock_library stock;
    if (!open_stock(&stock)) return;
    for (const dw_qtype_row *t = dw_qtypes; t->name; t++) {
        const stock_traits *traits = stock.traits(t->id);
        CHECK(traits->block == t->block && traits->block_bytes == (size_t)t->block_bytes, "%s", t->name);
        if (t->id == DW_F32) continue; // has no to_float there
        for (uint64_t seed = 100; seed < 130; seed++) {
            random_bytes(seed, packed, sizeof packed);
            t->decode(packed, y, N_MAX);
            traits->to_float(packed, z, N_MAX);
            for (int i = 0; i < N_MAX; i++) REQUIRE(same_float(y[i], z[i]), "%s: %a, there %a", t->name, y[i], z[i]);
        }
    }
}

/* Value i of a row of one kind; kinds are what searches trip over. */
enum { N_KINDS = 18 };

static double value_of_kind(int kind, int i, dw_rng *rng) {
    const double g = dw_rng_normal(rng), u = dw_rng_uniform(rng);
    switch (kind) {
    case 0: return g;
    case 1: return i / 32 % 3 == 1 ? 0 : g;              // zero runs
    case 2: return (int)(g * 2) * 0.25;                  // ties
    case 3: return fabs(g);                              // one-signed
    case 4: return -fabs(g) - 0.5;
    case 5: return g * 1e-36;                            // tiny
    case 6: return g * 1e36;                             // huge
    case 7: return g * exp(20 * (u - 0.5));              // of all sizes
    case 8: return i / 256 % 2 ? 3.25 : -1.5;            // constant
    case 9: return g * 1e-41;                            // subnormal
    case 10: return dw_rng_next(rng) & 1 ? 1 : -1;
    case 11: return u < 0.1 ? g * 10 : 0;                // sparse
    case 12: return g * 1e-14;                           // about the threshold of zero
    case 13: return 1000 + g * 1e-3;                     // a large offset
    case 14: return i % 256 < 16 ? 1e-30 * g : g;
    case 15: return g * 60000;                           // scales beyond F16
    case 16: return u < 0.9 ? -0.0 : g;                  // negative zeros
    default: return i % 7 ? 0.5 : g;
    }
}

enum { N_WEIGHTINGS = 7 }; // 0: none

static double weight_of_kind(int kind, int i, dw_rng *rng) {
    const double u = dw_rng_uniform(rng);
    switch (kind) {
    case 1: return u + 0.01;
    case 2: return u < 0.3 ? 0 : exp(8 * u);
    case 3: return 0;
    case 4: return i / 64 % 2 ? 0 : 1;
    case 5: return 1e-30 * u;
    default: return 1e20 * u;
    }
}

static void stock_encodes_alike(void) {
    stock_library stock;
    if (!open_stock(&stock)) return;
    const int lengths[] = {256, 512, 1280, 2304};
    dw_rng rng;
    dw_rng_seed(&rng, 10);
    EACH_ENCODABLE(t)
        for (int weighting = 0; weighting < N_WEIGHTINGS; weighting++)
            for (int kind = 0; kind < N_KINDS; kind++)
                for (int k = 0; k < 4; k++) {
                    const int n = lengths[k];
                    for (int i = 0; i < n; i++) x[i] = (float)value_of_kind(kind, i, &rng);
                    for (int i = 0; i < n; i++) weight[i] = (float)weight_of_kind(weighting, i, &rng);
                    const float *w = weighting ? weight : NULL;
                    t->encode(x, packed, (size_t)n, w);
                    stock.quantize(t->id, x, again, 0, 1, n, w);
                    const size_t bytes = dw_qtype_row_bytes(t, (size_t)n);
                    const bool alike = !memcmp(packed, again, bytes);
                    CHECK(alike, "%s, values %d, weights %d, length %d", t->name, kind, weighting, n);
                }
}

/* ---- searches --------------------------------------------------------------------------------------- */

typedef struct found {
    float scale[48], depth[48], inverse[48], base[48];
    uint8_t code[48 * DW_SEARCH_MAX];
} found;

/* What search number `which` finds; in the same order as below. */
static void search(const dw_searches *s, int which, int n_groups, int len, bool weighted, found *f) {
    const dw_groups g = {n_groups, len, x, weighted ? weight : NULL, f->scale, f->depth, f->inverse, f->base, f->code};
    memset(f, 0, sizeof *f);
    if (which == 0) s->symmetric(&g, 32);
    if (which == 1) s->sweeps(&g, 4);
    if (which == 2) s->affine(&g, (dw_affine_search){.nmax = 15, .first = -1, .step = 0.1f, .n_steps = 20});
    if (which == 3) s->affine(&g, (dw_affine_search){.nmax = 3, .first = -0.5f, .step = 0.1f, .n_steps = 15, true});
    if (which == 4) s->table(&g);
}

/* Among the values: a group of zeros, one that is too small, one of equal values, an infinity and a NaN. */
static void searches_agree(void) {
#if defined(__x86_64__)
    const struct {
        const dw_searches *s;
        bool there;
    } wide[] = {{&dw_searches_avx2, __builtin_cpu_supports("avx2")},
                {&dw_searches_avx512, __builtin_cpu_supports("avx512f")}};
    static found plain, other;
    normal_row(77, 48 * DW_SEARCH_MAX);
    for (int i = 0; i < 32; i++) x[i] = 0, x[96 + i] = 1e-20f, x[160 + i] = 3;
    x[224] = INFINITY, x[290] = NAN;
    for (int i = 0; i < 2; i++)
        for (int n_groups = 1; wide[i].there && n_groups <= 48; n_groups += n_groups < 34 ? 1 : 7)
            for (int which = 0; which < 5; which++)
                for (int len = 16; len <= 32; len += 16)
                    for (int weighted = which == 2 || which == 3; weighted < 2; weighted++) {
                        search(&dw_searches_plain, which, n_groups, len, weighted, &plain);
                        search(wide[i].s, which, n_groups, len, weighted, &other);
                        CHECK(!memcmp(&plain, &other, sizeof plain), "search %d of %d groups of %d, %s at a time", which,
                              n_groups, len, i ? "16" : "8");
                    }
#endif
}

static const test_case cases[] = {
    {"searches of 8 and of 16 groups at a time find what those of 4 find, bit for bit", searches_agree},
    {"encode is fit, round and pack, and round says how a value is read", steps_are_encode},
    {"round takes a value of any size, and larger ones never become less", round_takes_any_value},
    {"every row of the table has consistent sizes and is found by number and by name", table_consistent},
    {"half precision without branches is exact for all halves, and rounds to even", half_exact},
    {"decoders give every element what its formula says, on random bytes", decoders_follow_formulas},
    {"blocks computed by hand decode to their values", decoders_by_hand},
    {"errors on normal data are within each type's bounds", errors_bounded},
    {"importance weights lower the weighted error", weights_help},
    {"blocks of which one column counts keep the size of their values", few_weights},
    {"weighted rows of large values are finite or refused", weighted_is_finite},
    {"rows of zeros stay zeros", zeros_stay},
    {"encoding what was decoded gives the same bytes", second_pass_changes_nothing},
    {"a block encodes alike alone and in a row", blocks_independent},
    {"the same numbers give the same bytes on every machine", same_bytes_everywhere},
    {"packed rows need no alignment", unaligned},
    {"NaN, infinities and subnormals are survived, as values and as weights", nonsense_survives},
    {"llama.cpp decodes the same bytes to the same numbers", stock_decodes_alike},
    {"llama.cpp encodes the same numbers to the same bytes, weighted or not", stock_encodes_alike},
    {0},
};
TEST_MAIN(cases)
