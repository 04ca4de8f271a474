/* sums.h - sums over each window's tokens, stored beside a table of rows, so that any two rows compare pairwise.
 *
 * A row of a table has means and errors.  The error of a difference between two rows does not follow from them, because
 * both rows scored the same tokens: it needs the difference of each window.  `rows.tsv.windows` keeps, for every model
 * that was scored into `rows.tsv`, the sums of each window, a few kilobytes a model:
 *
 *   8 bytes "dw-sums1"
 *   records, one for a model on all texts of a run: u32 bytes raw, u32 bytes packed, a zstd frame with a checksum:
 *     u32 length, how: what decides the numbers besides the texts; the writer's own words, compared as a whole
 *     u32 n_texts, each: 32 bytes SHA-256 of the file; u32 first window, from 1; u32 n_windows
 *     u32 n_columns, each: u32 length, its name; f64 for each window of all texts, text after text
 *
 * All numbers are little endian.  Columns: tokens, nll, base_nll, kl, agree (tokens with the base's likeliest token),
 * ids (measure_ids_number of the window's text); unknown columns are passed over.  Of records with the same `how` and the
 * same texts the last one counts.  The file is replaced as a whole, before the rows are, so after any end each row that
 * is there has its sums. */
#ifndef MEASURE_SUMS_H
#define MEASURE_SUMS_H

#include "measure/statistics.h"

typedef enum measure_sum {
    MEASURE_TOKENS,
    MEASURE_NLL,
    MEASURE_BASE_NLL,
    MEASURE_KL,
    MEASURE_AGREE,
    MEASURE_IDS, // no sum: a number that tells how the text is cut into tokens
    MEASURE_N_SUMS
} measure_sum;

typedef struct measure_sums_text {
    uint8_t sha256[32];
    int first, n_windows; // from 1
} measure_sums_text;

typedef struct measure_sums { // of a model on the texts of one run
    char *how;
    measure_sums_text *text; // n_texts, ascending by hash, then by window
    int n_texts;
    size_t n_windows;            // of all texts
    double *sum[MEASURE_N_SUMS]; // (n_windows); NULL: unknown
} measure_sums;

/* Takes the texts, in any order, and makes all sums, of zeros.  place[i] is the index of text i in s->text. */
int measure_sums_make(measure_sums *s, const char *how, const measure_sums_text *text, int n_texts, int *place,
                      dw_err *err);
void measure_sums_release(measure_sums *s);
size_t measure_sums_at(const measure_sums *s, int text); // the first window of a text in `sum`
double measure_ids_number(const uint8_t ids_sha256[32]); // of MEASURE_IDS: the first 48 bits of measure_ids_hash
/* The hash of a set of texts and windows, whatever their order: what a row of several texts has as text_sha256. */
int measure_sums_set_hash(const measure_sums_text *text, int n_texts, char hex[65], dw_err *err);

/* ---- files ------------------------------------------------------------------------------------------------- */

typedef struct measure_book measure_book; // the records of any number of files

char *measure_book_path(const char *table, dw_err *err); // of a table's records; free()
measure_book *measure_book_new(dw_err *err);
void measure_book_free(measure_book *b);
/* Adds the records of a file, which is not trusted: every count is checked, and numbers are finite. */
int measure_book_read(measure_book *b, const char *path, dw_err *err);
int measure_book_add(measure_book *b, const measure_sums *s, dw_err *err); // copies
size_t measure_book_count(const measure_book *b);
int measure_book_write(measure_book *b, const char *path, dw_err *err); // without records that later ones replace

/* ---- comparing --------------------------------------------------------------------------------------------- */

typedef struct measure_view { // one text, or all texts, of a record
    const measure_sums *of;   // borrowed from the book
    int text, n_texts;
    size_t window; // the first one
} measure_view;

measure_view measure_book_at(const measure_book *b, size_t i); // all texts of record i
/* One text by its hash and windows first .. last; several by the hash of the set, first 0.  1: found, 0: there is none,
 * -1: error. */
int measure_book_find(measure_book *b, const char *how, const char text_sha256[65], int first, int last,
                      measure_view *v, dw_err *err);
/* The mean of a quantity for each token, texts with equal weights; NaN: unknown. */
measure_mean measure_view_mean(const measure_view *v, measure_sum what);
/* ln ratio of the model to its base; NaN: there is none. */
measure_mean measure_view_ratio(const measure_view *v);
/* The mean of a - b on the same tokens; NaN if texts, windows or tokens differ or one is unknown.  Older records do not
 * say their tokens; those of one text and window are then taken as the same. */
measure_mean measure_view_compare(const measure_view *a, const measure_view *b, measure_sum what);

#endif
