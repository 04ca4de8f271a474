/* tsv.c - reads tab-separated tables and appends rows to them. */
#include "kit/tsv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* MAX_COLUMNS is small because names of columns are found by linear search, here and in programs that read tables. */
enum { MAX_TABLE_BYTES = 1 << 30, MAX_COLUMNS = 4096 };

static size_t count_cells(const char *line) {
    size_t n = 1;
    for (; *line; line++) n += *line == '\t';
    return n;
}

/* Cuts a line at its tabs into cells. */
static void split_cells(char *line, char **cell) {
    for (char *tab; (tab = strchr(line, '\t')); line = tab + 1) {
        *tab = 0;
        *cell++ = line;
    }
    *cell = line;
}

static int check_columns(const tsv_table *t, dw_err *err) {
    for (size_t i = 0; i < t->n_columns; i++)
        for (size_t j = 0; j < i; j++)
            if (!strcmp(t->column[i], t->column[j])) return dw_fail(err, "two columns are called '%s'", t->column[i]);
    return 0;
}

/* Cuts the next line off *rest and returns it without its line end. */
static char *next_line(char **rest) {
    char *line = *rest;
    const size_t n = strcspn(line, "\n");
    *rest = line + n + (line[n] == '\n');
    line[n] = 0;
    if (n && line[n - 1] == '\r') line[n - 1] = 0;
    return line;
}

static int parse(tsv_table *t, char *text, dw_err *err) {
    size_t cap = 0, n_cells = 0, n_line = 0;
    char *comment_end = t->comment;
    while (*text) {
        char *line = next_line(&text);
        n_line++;
        if (!*line) continue;
        if (*line == '#') {
            comment_end = stpcpy(stpcpy(comment_end, line), "\n");
            continue;
        }
        const size_t n = count_cells(line);
        if (!t->n_columns) {
            if (n > MAX_COLUMNS)
                return dw_fail(err, "line %zu has %zu columns; at most %d are read", n_line, n, MAX_COLUMNS);
            t->column = dw_alloc(n, sizeof *t->column, "the columns", err);
            if (!t->column) return -1;
            t->n_columns = n;
            split_cells(line, t->column);
            if (check_columns(t, err)) return -1;
            continue;
        }
        if (n != t->n_columns)
            return dw_fail(err, "line %zu has %zu cell%s, the header %zu", n_line, n, n == 1 ? "" : "s", t->n_columns);
        if (dw_grow(&t->cell, &cap, n_cells + n, sizeof *t->cell, "the cells", err)) return -1;
        split_cells(line, t->cell + n_cells);
        n_cells += n;
        t->n_rows++;
    }
    return t->n_columns ? 0 : dw_fail(err, "there is no header line with the names of the columns");
}

int tsv_read(tsv_table *t, const char *path, dw_err *err) {
    size_t size;
    *t = (tsv_table){0};
    char *text = dw_read_file(path, MAX_TABLE_BYTES, &size, err);
    if (!text) return -1;
    t->owned = text;
    t->comment = dw_alloc(size + 2, 1, "the comment", err);
    int rc = t->comment ? 0 : -1;
    if (!rc && memchr(text, 0, size)) rc = dw_fail(err, "not a text file");
    if (!rc) rc = parse(t, text, err);
    if (!rc) return 0;
    tsv_release(t);
    return dw_fail_in(err, "'%s'", path);
}

const char *tsv_cell(const tsv_table *t, size_t row, const char *column) {
    for (size_t i = 0; i < t->n_columns; i++)
        if (!strcmp(t->column[i], column)) return t->cell[row * t->n_columns + i];
    return NULL;
}

void tsv_release(tsv_table *t) {
    free(t->column);
    free(t->cell);
    free(t->comment);
    free(t->owned);
    *t = (tsv_table){0};
}

/* ---- appending -------------------------------------------------------------------------------------------- */

static int check_cells(const char *const *cells, size_t n, dw_err *err) {
    for (size_t i = 0; i < n; i++)
        if (cells[i] && strpbrk(cells[i], "\t\n\r"))
            return dw_fail(err, "a cell has a tab or a line end: '%s'", cells[i]);
    return 0;
}

/* Writes one line.  Cell i is cells[from[i]], or "-" if from[i] is n or that cell is empty. */
static int write_line(dw_out *out, const char *const *cells, const size_t *from, size_t n_out, size_t n, dw_err *err) {
    for (size_t i = 0; i < n_out; i++) {
        const char *cell = from[i] < n ? cells[from[i]] : NULL;
        if (!i && cell && *cell == '#')
            return dw_fail(err, "the first cell of a row begins as a comment does: '%s'", cell);
        if (dw_out_printf(out, err, "%s%s", cell && *cell ? cell : "-", i + 1 < n_out ? "\t" : "\n")) return -1;
    }
    return 0;
}

/* from[i]: which of the n given columns is column i of the file; n: none. */
static int match_columns(const tsv_table *old, const char *const *columns, size_t n, size_t *from, dw_err *err) {
    for (size_t i = 0; i < old->n_columns; i++) from[i] = n;
    for (size_t k = 0; k < n; k++) {
        size_t i = 0;
        while (i < old->n_columns && strcmp(old->column[i], columns[k])) i++;
        if (i == old->n_columns)
            return dw_fail(err, "it has no column '%s', so these rows do not belong to it; write to a new file",
                           columns[k]);
        from[i] = k;
    }
    return 0;
}

bool tsv_is_there(const char *path) {
    struct stat st;
    return !access(path, F_OK) && !(!stat(path, &st) && S_ISREG(st.st_mode) && !st.st_size);
}

int tsv_check(const char *path, const char *const *columns, size_t n_columns, dw_err *err) {
    tsv_table old;
    if (!tsv_is_there(path)) return 0;
    if (tsv_read(&old, path, err)) return -1;
    size_t *from = dw_alloc(old.n_columns, sizeof *from, "the columns", err);
    int rc = from ? match_columns(&old, columns, n_columns, from, err) : -1;
    if (rc) dw_fail_in(err, "'%s'", path);
    free(from);
    tsv_release(&old);
    return rc;
}

/* Copies the text of an existing file and ends it with a line end, or writes the header of a new file. */
static int write_old(dw_out *out, const char *path, bool exists, const char *comment, const char *const *columns,
                     const size_t *from, size_t n, dw_err *err) {
    if (exists) {
        size_t size;
        char *text = dw_read_file(path, MAX_TABLE_BYTES, &size, err);
        int rc = text ? dw_out_write(out, text, size, err) : -1;
        if (!rc && size && text[size - 1] != '\n') rc = dw_out_write(out, "\n", 1, err);
        free(text);
        return rc;
    }
    const size_t len = comment ? strlen(comment) : 0;
    if (len && dw_out_printf(out, err, "%s%s", comment, comment[len - 1] == '\n' ? "" : "\n")) return -1;
    return write_line(out, columns, from, n, n, err);
}

static int rewrite(const char *path, const char *comment, const char *const *columns, size_t n,
                   const char *const *cells, size_t n_rows, dw_err *err) {
    const bool exists = tsv_is_there(path);
    tsv_table old = {0};
    if (exists && tsv_read(&old, path, err)) return -1;
    const size_t n_out = exists ? old.n_columns : n;
    int rc = -1;
    dw_out *out = NULL;
    size_t *from = dw_alloc(n_out, sizeof *from, "the columns", err);
    if (!from) goto done;
    for (size_t i = 0; i < n_out; i++) from[i] = i;
    if (exists && match_columns(&old, columns, n, from, err)) {
        dw_fail_in(err, "'%s'", path);
        goto done;
    }
    out = dw_out_open_kept(path, err);
    if (!out || write_old(out, path, exists, comment, columns, from, n, err)) goto done;
    for (size_t r = 0; r < n_rows; r++)
        if (write_line(out, cells + r * n, from, n_out, n, err)) goto done;
    rc = dw_out_commit(out, err);
done:
    dw_out_free(out);
    free(from);
    tsv_release(&old);
    return rc;
}

/* Locks the folder: every append replaces the file itself, and a lock file would be left over. */
int tsv_lock(const char *path, dw_err *err) {
    const char *slash = strrchr(path, '/');
    char *folder = dw_format(err, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    if (!folder) return -1;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = -1;
    while (fd >= 0 && (rc = flock(fd, LOCK_EX)) && errno == EINTR) {}
    if (fd < 0 || rc) {
        dw_fail(err, fd < 0 ? "cannot write '%s': %s" : "cannot append to '%s', whose folder cannot be locked: %s",
                path, strerror(errno));
        if (fd >= 0) close(fd);
        fd = -1;
    }
    free(folder);
    return fd;
}

void tsv_unlock(int folder) {
    if (folder >= 0) close(folder);
}

int tsv_append_locked(const char *path, const char *comment, const char *const *columns, size_t n_columns,
                      const char *const *cells, size_t n_rows, dw_err *err) {
    if (check_cells(columns, n_columns, err) || check_cells(cells, n_rows * n_columns, err)) return -1;
    return rewrite(path, comment, columns, n_columns, cells, n_rows, err);
}
