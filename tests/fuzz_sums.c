/* fuzz_sums.c - any bytes as window sums: refused with a sentence, or records that can be found, compared and written.
 *
 * The bytes are tried as a file, and as the content of one record, whose frame is then right. */
#include "measure/pack.h"
#include "measure/sums.h"
#include "tests/scratch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(measure_book *b, const measure_sums *s, int t) {
    const measure_sums_text *text = &s->text[t];
    char hex[65];
    measure_view v;
    dw_err err = {0};
    dw_hex(text->sha256, sizeof text->sha256, hex);
    if (measure_book_find(b, s->how, hex, text->first, text->first + text->n_windows - 1, &v, &err) != 1) abort();
    if (v.n_texts != 1 || v.window + (size_t)text->n_windows > v.of->n_windows) abort();
    for (int k = 0; k < MEASURE_N_SUMS; k++) measure_view_mean(&v, (measure_sum)k);
    measure_view_ratio(&v);
}

static void check_record(measure_book *b, size_t i) {
    const measure_view all = measure_book_at(b, i), first = measure_book_at(b, 0);
    char hex[65];
    measure_view v;
    for (int t = 0; t < all.of->n_texts && t < 16; t++) check_text(b, all.of, t);
    const measure_mean own = measure_view_compare(&all, &all, MEASURE_TOKENS);
    if (own.mean != 0 && !isnan(own.mean)) abort();
    measure_view_compare(&all, &first, MEASURE_NLL);
    if (measure_sums_set_hash(all.of->text, all.of->n_texts, hex, NULL)) abort();
    measure_book_find(b, all.of->how, hex, 0, 0, &v, NULL);
}

/* What is written again has the last record of each place, and is written the same once more. */
static void check_written(measure_book *b) {
    dw_err err = {0};
    size_t n[2];
    char *bytes[2];
    for (int i = 0; i < 2; i++) {
        if (measure_book_write(b, scratch_path(), &err)) abort();
        bytes[i] = dw_read_file(scratch_path(), 1 << 28, &n[i], &err);
        measure_book_free(b);
        b = measure_book_new(&err);
        if (!bytes[i] || !b || measure_book_read(b, scratch_path(), &err)) abort();
    }
    if (n[0] != n[1] || memcmp(bytes[0], bytes[1], n[0])) abort();
    measure_book_free(b);
    free(bytes[0]);
    free(bytes[1]);
}

static void read_all(const uint8_t *data, size_t size) {
    dw_err err = {0};
    measure_book *b = measure_book_new(&err);
    const int rc = measure_book_read(b, scratch_file(data, size), &err);
    if (!rc != !err.text[0]) abort(); // a sentence exactly when it failed
    for (size_t i = 0; i < measure_book_count(b); i++) check_record(b, i);
    if (rc)
        measure_book_free(b);
    else
        check_written(b);
}

/* A fuzzer does not find its way through a compressor. */
static void read_unpacked(const uint8_t *data, size_t size) {
    static uint8_t file[1 << 14];
    if (size > 1 << 13) return;
    const size_t packed = ZSTD_compress(file + 16, sizeof file - 16, data, size, 1);
    if (ZSTD_isError(packed)) abort();
    memcpy(file, "dw-sums1", 8);
    measure_put_u32(file + 8, (uint32_t)size);
    measure_put_u32(file + 12, (uint32_t)packed);
    read_all(file, 16 + packed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    read_all(data, size);
    read_unpacked(data, size);
    return 0;
}
