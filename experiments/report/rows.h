/* rows.h - tables with a header line, read back by column name: checked, chosen, joined, put in order.
 *
 * Rows of results (rows.tsv of score and sweep) are known by their columns `model`, `text` and `ppl`; any other
 * tab-separated table with a header line does too.  Unknown is "-" in a cell and NaN as a number, and so is every cell
 * of a column that a row's file lacks.  The variables of a sweep's grid, which its rows hold in `variant`, are columns,
 * too.
 * Cells are borrowed from the files until exp_rows_release. */
#ifndef EXP_ROWS_H
#define EXP_ROWS_H

#include "experiments/measures.h"
#include "kit/options.h"
#include "kit/tsv.h"

typedef struct exp_rows {
    const char **column; // n_columns names in the order of the files, NULL after the last
    const char **cell;   // (n_rows, n_columns)
    size_t n_columns, n_rows;
    size_t first_variable; // columns from here on are variables that no file has a column for
    bool are_results;
    tsv_table *file; // what the cells are borrowed from
    size_t n_files;
    char *made;     // cells of columns that were added (against.h)
    char **variant; // (n_rows) values of variables; NULL: none. The names are owned by `column`
    /* of rows of results, else NULL */
    bool *is_base;   // (n_rows) a row compares with this model: by its hash, by its name only where that is unknown
    bool *is_twin;   // (n_rows) the name of the text is also that of another text
    size_t *sibling; // (n_rows) rows, those of one model, base and protocol together, in the order of the files
    size_t *family;  // (n_rows) where a row's siblings begin in `sibling`
} exp_rows;

/* Refused: files that are no tables, rows of results of another version, cells that are no UTF-8, and numbers of
 * results that are none.  Control characters in cells become '?'. */
int exp_rows_read(exp_rows *r, const char *const *paths, size_t n_paths, dw_err *err);
void exp_rows_release(exp_rows *r);

int exp_rows_find(const exp_rows *r, const char *name);              // -1: no such column
int exp_rows_need(const exp_rows *r, const char *name, dw_err *err); // the same, failing with the nearest name
const char *exp_rows_cell(const exp_rows *r, size_t row, int column); // "-" for column -1

/* The rows of the same model, base and protocol: n indices of rows. */
const size_t *exp_rows_siblings(const exp_rows *r, size_t row, size_t *n);

enum { EXP_TEXT = 400 };
/* A text as it is called in a table: its name, and if two texts share it also the first digits of the hash. */
const char *exp_text_name(char name[EXP_TEXT], const exp_rows *r, size_t row);

double exp_number(const char *cell); // NaN when it is no finite decimal number

uint64_t exp_add_to_hash(uint64_t h, const char *text); // FNV-1a of the text and a tab, going on from h

/* ---- lines: what is shown ------------------------------------------------------------------------------------- */

/* One row, or several that differ in one column only and were joined. */
typedef struct exp_line {
    const size_t *row; // n rows, in the order of the files; borrowed from the lines
    size_t n;
    bool is_dense; // the model that others are compared with
} exp_line;

typedef struct exp_lines {
    exp_line *line; // n of them: dense ones first, then as sorted
    size_t n;
    size_t *member; // the rows of all lines
    /* rows that were asked for and are not shown */
    size_t n_single; // of one text, of models that have a row of several texts
    size_t n_select; // of texts by which variants were chosen, where there are rows of others
    size_t n_again;  // measured again later, with the same result
    size_t n_timed_again; // the same of rows that hold speeds, which differ
    size_t n_other_texts; // of other texts than the one asked for
} exp_lines;

typedef struct exp_choice {
    const opt_list *where; // COLUMN=VALUE or COLUMN!=VALUE: several values of one column are alternatives
    const char *text; // a text's name, or the first digits of its hash; "all"; NULL: the geometric means of models that
                      // have one among the rows of the same role, else all; rows of role report where there are any.
                      // Failed rows are always shown
    const char *join;      // column; NULL: none. Rows join that trained for other times, unless two share its value
    const char *sort;      // column; NULL: the order of the files
    bool reverse;
} exp_choice;

/* Of rows that are equal but for time, place and speed, the last one is shown; of rows without a text, which hold
 * speeds only, the last one of each machine.  Fails when no row is left. */
int exp_lines_choose(exp_lines *s, const exp_rows *r, const exp_choice *c, dw_err *err);
void exp_lines_release(exp_lines *s);

/* Whether rows must agree in a column to be joined, and to be drawn as one band: treatments, what decides about
 * quality, and what was timed. */
bool exp_is_key(const char *column);

/* The mean of a column over a line's rows that know it; *sd is their standard deviation, NaN for less than two. */
double exp_line_mean(const exp_rows *r, const exp_line *line, int column, double *sd);
/* The cell that all rows of a line have; NULL when they differ. */
const char *exp_line_text(const exp_rows *r, const exp_line *line, int column);
/* The same column of the dense model under the same conditions: text and windows, machine, threads, backend, precision,
 * and for speeds what was timed.  Of several rows the last one that knows it; NaN: there is none. */
double exp_line_dense(const exp_rows *r, const exp_line *line, int column);

#endif
