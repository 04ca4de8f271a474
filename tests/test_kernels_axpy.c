/* test_kernels_axpy.c - every row of the axpy table against decoded weights, added up in double. */
#include "backends/kernels_axpy.h"
#include "test.h"
#include "guarded.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_ROWS = 40, MAX_ROWS = 96, MAX_N = 1024, TEXT = 160 };

// Largest accepted squared error / squared size.
static double bound_of(const dw_axpy_kernel *k) {
    const bool is_decoded = k == &dw_axpy_decoded[k->level][k->type];
    return k->type == DW_Q4_0 && !is_decoded ? 1e-9 : 1e-12; // factors of 16 bits
}

typedef struct shape {
    int n, n_rows, n_cols;
    bool listed;
    size_t gap; // bytes between rows
} shape;

static const char *text_of(const dw_axpy_kernel *k, const shape *s) {
    static char text[TEXT];
    snprintf(text, sizeof text, "%s at %s%s, %d%s rows of %d, %d columns", dw_qtype_get(k->type)->name,
             dw_level_names[k->level], k == &dw_axpy_vbmi[k->type] ? " with VBMI" : "", s->n_rows,
             s->listed ? " listed" : "", s->n, s->n_cols);
    return text;
}

/* A case: weights and sums end where the readable memory does. */
typedef struct sums {
    const dw_qtype_row *type;
    size_t row_bytes;
    guarded w, y;
    int32_t row[MAX_ROWS];
    float a[DW_DOT_MAX_COLS][MAX_ROWS], before[DW_DOT_MAX_COLS][MAX_N];
    size_t y_stride;
} sums;

static float *y_of(const sums *s) { return (float *)(void *)s->y.data; }

static void begin(sums *s, const dw_axpy_kernel *k, const shape *h) {
    dw_rng rng;
    dw_rng_seed(&rng, (uint64_t)(h->n * 64 + h->n_rows * 8 + h->n_cols));
    s->type = dw_qtype_get(k->type);
    const size_t bytes = dw_qtype_row_bytes(s->type, (size_t)h->n);
    const int n_file = h->listed ? FILE_ROWS : h->n_rows;
    s->row_bytes = bytes + h->gap;
    s->w = guard(n_file ? (size_t)(n_file - 1) * s->row_bytes + bytes : 0);
    for (int r = 0; r < n_file; r++) random_weights(&rng, s->type, s->w.data + (size_t)r * s->row_bytes, bytes);
    for (int r = 0; r < h->n_rows; r++) s->row[r] = (int32_t)dw_rng_below(&rng, FILE_ROWS);
    s->y_stride = (size_t)h->n + 3;
    s->y = guard(((size_t)(h->n_cols - 1) * s->y_stride + (size_t)h->n) * sizeof(float));
    for (int c = 0; c < h->n_cols; c++) {
        for (int r = 0; r < h->n_rows; r++) s->a[c][r] = (float)dw_rng_normal(&rng);
        for (int i = 0; i < h->n; i++) s->before[c][i] = (float)(0.1 * dw_rng_normal(&rng));
    }
}

static void end(sums *s) { unguard(&s->w), unguard(&s->y); }

static void reset(const sums *s, const shape *h) {
    for (int c = 0; c < h->n_cols; c++) {
        memcpy(y_of(s) + (size_t)c * s->y_stride, s->before[c], (size_t)h->n * sizeof(float));
        for (int i = 0; c + 1 < h->n_cols && i < 3; i++) y_of(s)[(size_t)c * s->y_stride + (size_t)(h->n + i)] = 77;
    }
}

// Rows first .. first + n_rows - 1 of the list, columns c and following.
static void add(const sums *s, const dw_axpy_kernel *k, const shape *h, int first, int n_rows, int c, int n_cols) {
    const uint8_t *w = h->listed ? s->w.data : s->w.data + (size_t)first * s->row_bytes;
    k->rows(&(dw_axpy_job){w, s->row_bytes, h->listed ? s->row + first : NULL, n_rows, h->n, s->a[c] + first, MAX_ROWS,
                           n_cols, y_of(s) + (size_t)c * s->y_stride, s->y_stride});
}

/* Squared error / squared size of all columns, against the sums in double. */
static double error_of(const sums *s, const shape *h) {
    static float decoded[MAX_N];
    static double sum[DW_DOT_MAX_COLS][MAX_N];
    for (int c = 0; c < h->n_cols; c++)
        for (int i = 0; i < h->n; i++) sum[c][i] = s->before[c][i];
    for (int r = 0; r < h->n_rows; r++) {
        s->type->decode(s->w.data + (size_t)(h->listed ? s->row[r] : r) * s->row_bytes, decoded, (size_t)h->n);
        for (int c = 0; c < h->n_cols; c++)
            for (int i = 0; i < h->n; i++) sum[c][i] += (double)s->a[c][r] * decoded[i];
    }
    double off = 0, all = 0;
    for (int c = 0; c < h->n_cols; c++)
        for (int i = 0; i < h->n; i++) {
            off += pow(y_of(s)[(size_t)c * s->y_stride + (size_t)i] - sum[c][i], 2);
            all += pow(sum[c][i], 2);
        }
    return off / all;
}

static void compare(const dw_axpy_kernel *k, shape h) {
    static sums s;
    begin(&s, k, &h);
    reset(&s, &h);
    add(&s, k, &h, 0, h.n_rows, 0, h.n_cols);
    const double error = error_of(&s, &h);
    CHECK(error <= bound_of(k), "%s: %.3g", text_of(k, &h), error);
    for (int c = 0; c + 1 < h.n_cols; c++)
        for (int i = 0; i < 3; i++)
            CHECK(y_of(&s)[(size_t)c * s.y_stride + (size_t)(h.n + i)] == 77, "%s: written behind", text_of(k, &h));
    end(&s);
}

static void every_usable(void (*check)(const dw_axpy_kernel *k)) {
    for (int l = 0; l < DW_N_LEVELS; l++)
        if (!dw_level_usable((dw_level)l)) test_skip("this machine lacks '%s'", dw_level_names[l]);
    for (int l = 0; l < DW_N_LEVELS; l++)
        for (int t = 0; t < DW_QTYPE_END && dw_level_usable((dw_level)l); t++) {
            if (dw_axpy_kernels[l][t].rows) check(&dw_axpy_kernels[l][t]);
            if (dw_axpy_decoded[l][t].rows) check(&dw_axpy_decoded[l][t]);
        }
    if (!dw_level_has_vbmi(DW_AVX512)) test_skip("this machine lacks AVX512_VBMI");
    for (int t = 0; t < DW_QTYPE_END && dw_level_has_vbmi(DW_AVX512); t++)
        if (dw_axpy_vbmi[t].rows) check(&dw_axpy_vbmi[t]);
}

static void compare_lengths(const dw_axpy_kernel *k) {
    const int block = dw_qtype_get(k->type)->block;
    for (int n = block; n <= MAX_N; n += block < 32 ? 32 : block) compare(k, (shape){.n = n, .n_rows = 9, .n_cols = 1});
    for (int n = 1; block == 1 && n < 100; n++) compare(k, (shape){.n = n, .n_rows = 3, .n_cols = 2});
}

static void compare_lists(const dw_axpy_kernel *k) {
    for (int n_rows = 0; n_rows <= 20; n_rows++)
        for (int listed = 0; listed < 2; listed++)
            compare(k, (shape){.n = 512, .n_rows = n_rows, .n_cols = 1, .listed = listed});
    for (int n = 256; n <= 768; n += 512) // one tile, and more
        for (int listed = 0; listed < 2; listed++)
            compare(k, (shape){.n = n, .n_rows = MAX_ROWS, .n_cols = 1, .listed = listed});
    for (size_t gap = 1; gap < 70; gap += 23)
        compare(k, (shape){.n = 256, .n_rows = 11, .n_cols = 1, .listed = true, .gap = gap});
}

static void compare_columns(const dw_axpy_kernel *k) {
    const int short_n = dw_qtype_get(k->type)->block <= 32 ? 416 : 256;
    for (int n_cols = 1; n_cols <= DW_DOT_MAX_COLS; n_cols++) {
        compare(k, (shape){.n = 768, .n_rows = 17, .n_cols = n_cols, .listed = true});
        compare(k, (shape){.n = short_n, .n_rows = 21, .n_cols = n_cols});
    }
}

static void lengths(void) { every_usable(compare_lengths); }
static void lists(void) { every_usable(compare_lists); }
static void columns(void) { every_usable(compare_columns); }

/* All columns and rows in one call, then column by column and the list in pieces of 8: the same bits. */
static void divide_rows(const dw_axpy_kernel *k, int n_values) {
    static sums s;
    static float whole[DW_DOT_MAX_COLS * (MAX_N + 3)];
    const shape h = {.n = n_values, .n_rows = 93, .n_cols = 7, .listed = true};
    begin(&s, k, &h);
    reset(&s, &h);
    add(&s, k, &h, 0, h.n_rows, 0, h.n_cols);
    memcpy(whole, y_of(&s), s.y_stride * (size_t)h.n_cols * sizeof(float) - 3 * sizeof(float));
    reset(&s, &h);
    for (int c = 0; c < h.n_cols; c++)
        for (int r = 0, n; r < h.n_rows; r += n) {
            n = h.n_rows - r < 8 * (1 + c % 2) ? h.n_rows - r : 8 * (1 + c % 2);
            add(&s, k, &h, r, n, c, 1);
        }
    CHECK(!memcmp(whole, y_of(&s), s.y_stride * (size_t)h.n_cols * sizeof(float) - 3 * sizeof(float)), "%s",
          text_of(k, &h));
    end(&s);
}

static void divide(const dw_axpy_kernel *k) {
    for (int n = 256; n <= 768; n += 256) divide_rows(k, n); // short rows of some types, and longer ones
}

static void divided(void) { every_usable(divide); }

/* Where a row is not listed its bytes do not matter; where a number is NaN it shows. */
static void nan_shows_in(const dw_axpy_kernel *k, int n_values) {
    static sums s;
    const shape h = {.n = n_values, .n_rows = 12, .n_cols = 3, .listed = true};
    begin(&s, k, &h);
    for (int r = 0; r < h.n_rows; r++) s.row[r] = 2 * r;
    for (int r = 1; r < FILE_ROWS; r += 2) memset(s.w.data + (size_t)r * s.row_bytes, 0xff, s.row_bytes);
    reset(&s, &h);
    add(&s, k, &h, 0, h.n_rows, 0, h.n_cols);
    CHECK(error_of(&s, &h) <= bound_of(k), "%s: a row that is not listed shows", text_of(k, &h));
    s.a[1][7] = NAN;
    reset(&s, &h);
    add(&s, k, &h, 0, h.n_rows, 0, h.n_cols);
    CHECK(!(error_of(&s, &h) <= bound_of(k)), "%s: NaN passes the bound", text_of(k, &h));
    for (int i = 0; i < h.n; i++)
        CHECK(isfinite(y_of(&s)[i]) && isnan(y_of(&s)[s.y_stride + (size_t)i]), "%s: value %d", text_of(k, &h), i);
    end(&s);
}

static void nan_shows(const dw_axpy_kernel *k) {
    nan_shows_in(k, 256);
    nan_shows_in(k, 512);
}

static void nans(void) { every_usable(nan_shows); }

static void found(void) {
    for (const dw_qtype_row *t = dw_qtypes; t->name; t++)
        for (int l = 0; l < DW_N_LEVELS; l++) {
            const dw_axpy_kernel *k = dw_axpy_find((dw_level)l, t->id);
            REQUIRE(k, "%s at %s", t->name, dw_level_names[l]);
            const bool has_vbmi = dw_axpy_vbmi[t->id].rows && dw_level_has_vbmi((dw_level)l);
            CHECK(k->type == t->id && k->level <= (dw_level)l, "%s", t->name);
            CHECK((k == &dw_axpy_vbmi[t->id]) == has_vbmi, "%s at %s", t->name, dw_level_names[l]);
        }
}

static const test_case cases[] = {
    {"every type has a row at every level", found},
    {"rows of any length are added, read and written to the last value and no further", lengths},
    {"lists of any length, in any order, at any address", lists},
    {"one to eight columns, beside what stood there", columns},
    {"calls may divide rows and columns: the bits stay the same", divided},
    {"NaN does not vanish, and rows that are not listed do not count", nans},
    {0},
};
TEST_MAIN(cases)
