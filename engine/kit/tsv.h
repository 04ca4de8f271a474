/* tsv.h - tab-separated tables, read and appended to by column name. */
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
const char *tsv_cell(const tsv_table *t, size_t row, const char *column); // NULL: there is no such column
void tsv_release(tsv_table *t);

/* Several processes may append at once: each locks the folder first.  In the meantime it may write other files together
 * with the rows. */
int tsv_lock(const char *path, dw_err *err); // a descriptor, or -1
void tsv_unlock(int folder);                 // -1: does nothing
/* Appends n_rows rows, all or none, under the lock: the file is rewritten and renamed.  A new file begins with the
 * comment and a header line.  In an existing file, columns that are not given get "-"; a column that the file lacks is
 * an error. */
int tsv_append_locked(const char *path, const char *comment, const char *const *columns, size_t n_columns,
                      const char *const *cells, size_t n_rows, dw_err *err);

/* Fails if tsv_append_locked would refuse these columns: the file exists and is not a table with all of them.  Call
 * it before the work whose rows are appended. */
bool tsv_is_there(const char *path); // an empty file counts as none: mktemp makes such files
int tsv_check(const char *path, const char *const *columns, size_t n_columns, dw_err *err);

#endif
