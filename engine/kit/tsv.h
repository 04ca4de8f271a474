/* tsv.h - rows: tab-separated tables, read and written by column name. */
#ifndef KIT_TSV_H
#define KIT_TSV_H

#include "base/base.h"

typedef struct tsv_table {
    size_t n_columns, n_rows;
    char **column;  // n_columns
    char **cell;    // n_rows * n_columns
    char *comment;  // the lines beginning with '#', or ""
    void *owned;
} tsv_table;

int tsv_read(tsv_table *t, const char *path, dw_err *err);
const char *tsv_cell(const tsv_table *t, size_t row, const char *column); // NULL: no such column
void tsv_release(tsv_table *t);

/* Append n_rows rows whole or not at all, also beside other processes (the file is locked, rewritten, renamed).  A new
 * file begins with the comment and a header line.  Cells of the other columns of an existing file become "-"; a column
 * that the file lacks is refused. */
int tsv_append(const char *path, const char *comment, const char *const *columns, size_t n_columns,
               const char *const *cells, size_t n_rows, dw_err *err);

/* Whether tsv_append would accept these columns: there is no such file yet, or it is a table that has them all.  To be
 * asked before the work whose rows are appended. */
int tsv_check(const char *path, const char *const *columns, size_t n_columns, dw_err *err);

#endif
