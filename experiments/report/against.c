/* against.c - adds columns of paired differences to rows. */
#include "experiments/report/against.h"

#include "experiments/measures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_NEW = 3, CELL = 32 };
static const char *const new_columns[N_NEW] = {"difference", "difference_se", "difference_ci90"};

typedef struct row_of { // for exp_sums_find
    const exp_rows *rows;
    size_t row;
} row_of;

static const char *cell_of(const exp_rows *r, size_t row, const char *column) {
    return exp_rows_cell(r, row, exp_rows_find(r, column));
}

static const char *cell_for_sums(const void *of, const char *column) {
    const row_of *r = of;
    return cell_of(r->rows, r->row, column);
}

static int find_view(measure_book *b, const exp_rows *r, size_t row, measure_view *v, dw_err *err) {
    return exp_sums_find(b, cell_for_sums, &(row_of){r, row}, v, err);
}

static bool is_model(const exp_rows *r, size_t row, const char *model) {
    const size_t n = strlen(model);
    return !strcmp(cell_of(r, row, "model"), model) ||
           (n >= 8 && !strncmp(cell_of(r, row, "model_sha256"), model, n));
}

static measure_book *read_books(const char *const *paths, size_t n_paths, dw_err *err) {
    measure_book *b = measure_book_new(err);
    int rc = b ? 0 : -1;
    for (size_t i = 0; i < n_paths && !rc; i++) {
        char *of = measure_book_path(paths[i], err);
        rc = of && (!dw_file_exists(of) || !measure_book_read(b, of, err)) ? 0 : -1;
        free(of);
    }
    if (!rc) return b;
    measure_book_free(b);
    return NULL;
}

typedef struct known_row { // of the model
    measure_view sums;
    size_t row;
} known_row;

/* The *n rows of the model that have sums; *any: it has rows.  A file that was made anew is another model. */
static int find_model(measure_book *b, const exp_rows *r, const char *model, known_row *of, size_t *n, bool *any,
                      dw_err *err) {
    const char *sha256 = NULL;
    *n = 0;
    for (size_t i = 0; i < r->n_rows; i++) {
        if (!is_model(r, i, model)) continue;
        const char *own = cell_of(r, i, "model_sha256");
        if (sha256 && strcmp(own, "-") && strcmp(sha256, "-") && strcmp(sha256, own))
            return dw_fail(err, "--against: rows of '%s' are of two models; give one of them by sha256: %.12s or %.12s",
                           model, sha256, own);
        if (!sha256 || strcmp(own, "-")) sha256 = own;
        of[*n].row = i;
        const int found = find_view(b, r, i, &of[*n].sums, err);
        if (found < 0) return -1;
        *n += (size_t)found;
    }
    *any = sha256 != NULL;
    return 0;
}

/* Whether the same tokens were scored after the same tokens. */
static bool same_conditions(const exp_rows *r, size_t a, size_t b) {
    static const char *const columns[] = {"protocol", "n_ctx", "bos"};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        if (strcmp(cell_of(r, a, columns[i]), cell_of(r, b, columns[i]))) return false;
    return true;
}

static void put_number(char cell[CELL], double v, int digits) {
    if (isfinite(v))
        snprintf(cell, CELL, "%.*g", digits, v);
    else
        strcpy(cell, "-");
}

static int compare_row(char (*cell)[CELL], measure_book *b, const exp_rows *r, size_t row, const known_row *of,
                       size_t n, dw_err *err) {
    measure_view v;
    measure_mean d = {NAN, NAN, NAN};
    const int found = find_view(b, r, row, &v, err);
    if (found < 0) return -1;
    for (size_t k = 0; k < n && found && isnan(d.mean); k++)
        if (same_conditions(r, row, of[k].row)) d = measure_view_compare(&v, &of[k].sums, MEASURE_NLL);
    put_number(cell[0], d.mean, 8);
    put_number(cell[1], d.se, 4);
    put_number(cell[2], measure_half_width(&d, 0.9), 4);
    return 0;
}

/* The rows get N_NEW columns in front of those of variables, which `rows` owns. */
static int widen(exp_rows *r, dw_err *err) {
    const size_t old = r->n_columns, n = old + N_NEW, at = r->first_variable;
    size_t n_cells, n_made;
    const bool fits = dw_mul(r->n_rows, n, &n_cells) && dw_mul(r->n_rows, N_NEW, &n_made);
    const char **column = dw_alloc(n + 1, sizeof *column, "columns", err),
               **cell = fits ? dw_alloc(n_cells, sizeof *cell, "cells", err) : NULL;
    r->made = cell ? dw_alloc(n_made, CELL, "cells", err) : NULL;
    if (!column || !r->made) {
        free(column);
        free(cell);
        return fits ? -1 : dw_fail(err, "the tables are too large");
    }
    for (size_t c = 0; c < n; c++) {
        const bool is_new = c >= at && c < at + N_NEW;
        const size_t from = c < at ? c : c - N_NEW;
        column[c] = is_new ? new_columns[c - at] : r->column[from];
        for (size_t i = 0; i < r->n_rows; i++)
            cell[i * n + c] = is_new ? r->made + (i * N_NEW + c - at) * CELL : r->cell[i * old + from];
    }
    free(r->column);
    free(r->cell);
    r->column = column;
    r->cell = cell;
    r->n_columns = n;
    r->first_variable += N_NEW;
    return 0;
}

int exp_rows_compare(exp_rows *r, const char *const *paths, size_t n_paths, const char *model, dw_err *err) {
    bool any = false;
    if (!r->are_results) return dw_fail(err, "--against: these tables hold no results of models");
    measure_book *b = read_books(paths, n_paths, err);
    known_row *of = b ? dw_alloc(r->n_rows, sizeof *of, "rows", err) : NULL;
    size_t n = 0;
    int rc = of ? find_model(b, r, model, of, &n, &any, err) : -1;
    if (!rc && !any) rc = dw_fail(err, "--against: no row is of a model '%s'", model);
    if (!rc && !n)
        rc = dw_fail(err, "--against: no window sums of '%s' are beside the tables; score writes them to ROWS.windows",
                     model);
    if (!rc) rc = widen(r, err);
    for (size_t i = 0; i < r->n_rows && !rc; i++)
        rc = compare_row((char(*)[CELL])(void *)(r->made + i * N_NEW * CELL), b, r, i, of, n, err);
    measure_book_free(b);
    free(of);
    return rc;
}
