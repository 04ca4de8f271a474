/* rows.c - reading rows of results, and choosing among them. */
#include "experiments/report/rows.h"

#include "experiments/report/headings.h"
#include "experiments/measures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 1 }; // of rows.tsv

double exp_number(const char *cell) {
    char *end;
    if (!*cell || cell[strspn(cell, "0123456789+-.eE")]) return NAN; // neither "inf" nor "0x1p4" nor " 1"
    const double v = strtod(cell, &end);
    return *end || !isfinite(v) ? NAN : v;
}

static bool is_known(const char *cell) { return strcmp(cell, "-") != 0; }

/* ---- reading -------------------------------------------------------------------------------------------------- */

static int find_name(const char *const *name, size_t n, const char *wanted) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(name[i], wanted)) return (int)i;
    return -1;
}

int exp_rows_find(const exp_rows *r, const char *name) { return find_name(r->column, r->n_columns, name); }

int exp_rows_need(const exp_rows *r, const char *name, dw_err *err) {
    const int i = exp_rows_find(r, name);
    if (i >= 0) return i;
    const char *near = opt_nearest(name, r->column, sizeof *r->column);
    return dw_fail(err, "there is no column '%s'%s%s%s", name, near ? " (did you mean '" : "", near ? near : "",
                   near ? "'?)" : "");
}

const char *exp_rows_cell(const exp_rows *r, size_t row, int column) {
    return column < 0 ? "-" : r->cell[row * r->n_columns + (size_t)column];
}

/* What comes from outside is shown on terminals and in plots. */
static int clean_text(char *text) {
    if (!dw_is_utf8(text, strlen(text))) return -1;
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 127) *text = '?';
    return 0;
}

static bool is_results(char *const *column, size_t n) {
    const char *const *names = (const char *const *)column;
    return find_name(names, n, "model") >= 0 && find_name(names, n, "text") >= 0 && find_name(names, n, "ppl") >= 0;
}

static int check_numbers(const tsv_table *t, size_t column, const char *path, dw_err *err) {
    for (const exp_column *c = exp_columns; c->name; c++) {
        if (!c->digits || strcmp(c->name, t->column[column])) continue;
        for (size_t i = 0; i < t->n_rows; i++) {
            const char *cell = t->cell[i * t->n_columns + column];
            if (*cell && is_known(cell) && isnan(exp_number(cell)))
                return dw_fail(err, "'%s': column '%s' of row %zu holds '%.40s', which is no number", path, c->name,
                               i + 1, cell);
        }
    }
    return 0;
}

static int check_file(const tsv_table *t, const char *path, dw_err *err) {
    static const char mark[] = "# deadwood rows, version ";
    const char *version = strstr(t->comment, mark);
    if (version && atoi(version + strlen(mark)) != VERSION)
        return dw_fail(err, "'%s': rows of version %d, this program reads version %d", path,
                       atoi(version + strlen(mark)), VERSION);
    for (size_t i = 0; i < t->n_columns; i++)
        if (clean_text(t->column[i]) || !*t->column[i])
            return dw_fail(err, "'%s': the name of column %zu is %s", path, i + 1,
                           *t->column[i] ? "no UTF-8" : "empty");
    for (size_t i = 0; i < t->n_rows * t->n_columns; i++)
        if (clean_text(t->cell[i]))
            return dw_fail(err, "'%s': column '%s' of row %zu is no UTF-8", path, t->column[i % t->n_columns],
                           i / t->n_columns + 1);
    for (size_t i = 0; i < t->n_columns && is_results(t->column, t->n_columns); i++)
        if (check_numbers(t, i, path, err)) return -1;
    return 0;
}

/* Cuts the first "NAME=VALUE" off a variant and takes the shell's quotes away; behind the last NULL.  *value is NULL for
 * a word without "=". */
static char *next_variable(char *at, char **name, char **value) {
    bool quoted = false;
    at += strspn(at, " ");
    if (!*at) return NULL;
    char *to = *name = at;
    for (; *at && (quoted || *at != ' '); at++) {
        if (*at == '\'') {
            quoted = !quoted;
            continue;
        }
        if (*at == '\\' && !quoted && at[1]) at++;
        *to++ = *at;
    }
    at += *at != 0;
    *to = 0;
    to = strchr(*name, '=');
    *value = to ? to + 1 : NULL;
    if (to) *to = 0;
    return at;
}

static int add_column(exp_rows *r, size_t *cap, const char *name, dw_err *err) {
    if (exp_rows_find(r, name) >= 0) return 0;
    if (dw_grow(&r->column, cap, r->n_columns + 2, sizeof *r->column, "columns", err)) return -1;
    r->column[r->n_columns++] = name;
    r->column[r->n_columns] = NULL;
    return 0;
}

/* Calls fn for each variable of a row that tells of a deed. */
static int each_variable(exp_rows *r, size_t row, const char *variant,
                         int (*fn)(exp_rows *r, size_t row, const char *name, const char *value, void *ctx), void *ctx,
                         dw_err *err) {
    char *name, *value;
    int rc = 0;
    free(r->variant[row]);
    r->variant[row] = dw_strdup(variant, err);
    if (!r->variant[row]) return -1;
    for (char *at = r->variant[row]; !rc && (at = next_variable(at, &name, &value));)
        if (*name && value && *value && exp_heading_of(name).role == EXP_DEED) rc = fn(r, row, name, value, ctx);
    return rc;
}

typedef struct new_columns {
    size_t cap;
    dw_err *err;
} new_columns;

static int note_column(exp_rows *r, size_t row, const char *name, const char *value, void *ctx) {
    (void)row, (void)value;
    new_columns *new = ctx;
    if (exp_rows_find(r, name) >= 0) return 0;
    char *own = dw_strdup(name, new->err);
    const int rc = own ? add_column(r, &new->cap, own, new->err) : -1;
    if (rc) free(own);
    return rc;
}

/* A variable stands where the row's own columns say nothing. */
static int fill_cell(exp_rows *r, size_t row, const char *name, const char *value, void *ctx) {
    (void)ctx;
    const char **cell = &r->cell[row * r->n_columns + (size_t)exp_rows_find(r, name)];
    if (!is_known(*cell)) *cell = value;
    return 0;
}

/* The columns of all files, each once; then the variables that are none yet. */
static int unite_columns(exp_rows *r, dw_err *err) {
    new_columns new = {.err = err};
    size_t row = 0;
    for (size_t f = 0; f < r->n_files; f++) {
        r->n_rows += r->file[f].n_rows;
        for (size_t i = 0; i < r->file[f].n_columns; i++, r->first_variable = r->n_columns)
            if (add_column(r, &new.cap, r->file[f].column[i], err)) return -1;
    }
    r->are_results = is_results((char *const *)r->column, r->n_columns);
    if (!r->are_results || exp_rows_find(r, "variant") < 0) return 0;
    r->variant = dw_alloc(r->n_rows, sizeof *r->variant, "variants", err);
    if (!r->variant) return -1;
    for (size_t f = 0; f < r->n_files; f++)
        for (size_t i = 0; i < r->file[f].n_rows; i++, row++) {
            const char *variant = tsv_cell(&r->file[f], i, "variant");
            if (variant && each_variable(r, row, variant, note_column, &new, err)) return -1;
        }
    return 0;
}

static int unite_cells(exp_rows *r, dw_err *err) {
    size_t n, at = 0;
    if (!dw_mul(r->n_rows, r->n_columns, &n)) return dw_fail(err, "the tables are too large");
    r->cell = dw_alloc(n, sizeof *r->cell, "cells", err);
    if (!r->cell) return -1;
    for (size_t i = 0; i < n; i++) r->cell[i] = "-";
    for (size_t f = 0; f < r->n_files; f++) {
        const tsv_table *t = &r->file[f];
        for (size_t c = 0; c < t->n_columns; c++) {
            const size_t column = (size_t)exp_rows_find(r, t->column[c]);
            for (size_t i = 0; i < t->n_rows; i++)
                if (*t->cell[i * t->n_columns + c])
                    r->cell[(at + i) * r->n_columns + column] = t->cell[i * t->n_columns + c];
        }
        at += t->n_rows;
    }
    const int variant = r->variant ? exp_rows_find(r, "variant") : -1;
    for (size_t i = 0; i < r->n_rows && variant >= 0; i++)
        if (each_variable(r, i, exp_rows_cell(r, i, variant), fill_cell, NULL, err)) return -1;
    return 0;
}

int exp_rows_read(exp_rows *r, const char *const *paths, size_t n_paths, dw_err *err) {
    *r = (exp_rows){.file = dw_alloc(n_paths, sizeof *r->file, "tables", err)};
    int rc = r->file ? 0 : -1;
    for (; !rc && r->n_files < n_paths; r->n_files++) {
        rc = tsv_read(&r->file[r->n_files], paths[r->n_files], err);
        if (!rc) rc = check_file(&r->file[r->n_files], paths[r->n_files], err);
    }
    if (!rc) rc = unite_columns(r, err);
    if (!rc) rc = unite_cells(r, err);
    if (rc) exp_rows_release(r);
    return rc;
}

void exp_rows_release(exp_rows *r) {
    for (size_t f = 0; f < r->n_files; f++) tsv_release(&r->file[f]);
    for (size_t i = 0; i < r->n_rows && r->variant; i++) free(r->variant[i]);
    for (size_t i = r->first_variable; i < r->n_columns; i++) free((char *)r->column[i]);
    free(r->variant);
    free(r->file);
    free(r->column);
    free(r->cell);
    *r = (exp_rows){0};
}

/* ---- which rows ----------------------------------------------------------------------------------------------- */

typedef struct condition {
    int column;
    const char *value;
    bool unequal;
} condition;

static bool same(const char *a, const char *b) { return !strcmp(a, b) || exp_number(a) == exp_number(b); }

static int read_condition(condition *c, const exp_rows *r, const char *text, dw_err *err) {
    const char *equals = strchr(text, '=');
    const bool unequal = equals && equals > text && equals[-1] == '!';
    if (!equals || equals - unequal == text)
        return dw_fail(err, "--where: '%s' is no COLUMN=VALUE or COLUMN!=VALUE; files stand in front of options", text);
    char *name = dw_format(err, "%.*s", (int)(equals - unequal - text), text);
    c->column = name ? exp_rows_need(r, name, err) : -1;
    free(name);
    c->unequal = unequal;
    c->value = equals + 1;
    return c->column < 0 ? -1 : 0;
}

static bool passes(const exp_rows *r, size_t row, const condition *c, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const char *cell = exp_rows_cell(r, row, c[i].column);
        bool ok = same(cell, c[i].value) != c[i].unequal;
        for (size_t k = 0; k < n && !ok && !c[i].unequal; k++)
            ok = c[k].column == c[i].column && !c[k].unequal && same(cell, c[k].value);
        if (!ok) return false;
    }
    return true;
}

static int keep_where(bool *keep, const exp_rows *r, const opt_list *where, dw_err *err) {
    const size_t n = where ? where->n : 0;
    condition *c = dw_alloc(n, sizeof *c, "conditions", err);
    int rc = c ? 0 : -1;
    for (size_t i = 0; i < n && !rc; i++) rc = read_condition(&c[i], r, where->item[i], err);
    for (size_t i = 0; i < r->n_rows && !rc; i++) keep[i] = passes(r, i, c, n);
    free(c);
    return rc;
}

static void keep_text(bool *keep, const exp_rows *r, const char *text) {
    const int column = exp_rows_find(r, "text");
    bool any_mean = false;
    for (size_t i = 0; i < r->n_rows && !text; i++) any_mean |= keep[i] && !strcmp(exp_rows_cell(r, i, column), "*");
    if (!text) text = any_mean && r->are_results ? "*" : "all";
    for (size_t i = 0; i < r->n_rows; i++)
        keep[i] = keep[i] && (!strcmp(text, "all") || !strcmp(exp_rows_cell(r, i, column), text));
}

/* ---- lines ---------------------------------------------------------------------------------------------------- */

/* What two rows must have in common to be joined: deeds and what decides about quality. */
static bool is_key(const char *column) {
    static const char *const free_conditions[] = {"date", "commit", "threads"};
    const exp_heading h = exp_heading_of(column);
    for (size_t i = 0; i < sizeof free_conditions / sizeof *free_conditions; i++)
        if (!strcmp(column, free_conditions[i])) return false;
    return h.role == EXP_DEED || h.role == EXP_CONDITION;
}

static bool same_but(const exp_rows *r, const bool *key, size_t a, size_t b) {
    for (size_t c = 0; c < r->n_columns; c++)
        if (key[c] && !same(exp_rows_cell(r, a, (int)c), exp_rows_cell(r, b, (int)c))) return false;
    return true;
}

/* Takes row i, and with `key` all later ones that equal it there. */
static void take_line(exp_lines *s, const exp_rows *r, bool *keep, const bool *key, size_t i) {
    exp_line *line = &s->line[s->n];
    size_t *member = s->n ? (size_t *)s->line[s->n - 1].row + s->line[s->n - 1].n : s->member;
    *line = (exp_line){.row = member};
    for (size_t k = i; k < (key ? r->n_rows : i + 1); k++) {
        if (!keep[k] || !(k == i || same_but(r, key, i, k))) continue;
        member[line->n++] = k;
        keep[k] = false;
    }
    s->n++;
}

/* The dense model is the one that `base` names. */
static void mark_dense(exp_lines *s, const exp_rows *r) {
    const int model = exp_rows_find(r, "model"), base = exp_rows_find(r, "base");
    const char *last = "-";
    for (size_t i = 0; i < r->n_rows && r->are_results; i++) {
        const char *name = exp_rows_cell(r, i, base);
        if (!strcmp(name, last)) continue;
        last = name;
        for (size_t k = 0; k < s->n && is_known(name); k++)
            s->line[k].is_dense |= !strcmp(exp_rows_cell(r, s->line[k].row[0], model), name);
    }
}

typedef struct sort_key {
    exp_line line;
    double number;
    const char *text;
    size_t order;
    int sign;
} sort_key;

/* Dense lines, then known ones, numbers before texts; unknown ones last whatever the direction. */
static int compare(const void *pa, const void *pb) {
    const sort_key *a = pa, *b = pb;
    if (a->line.is_dense != b->line.is_dense) return a->line.is_dense ? -1 : 1;
    if (is_known(a->text) != is_known(b->text)) return is_known(a->text) ? -1 : 1;
    if (isnan(a->number) != isnan(b->number)) return isnan(b->number) ? -1 : 1;
    int c = isnan(a->number) ? strcmp(a->text, b->text) : (a->number > b->number) - (a->number < b->number);
    if (c) return a->sign * c;
    return (a->order > b->order) - (a->order < b->order);
}

static int sort_lines(exp_lines *s, const exp_rows *r, int column, bool reverse, dw_err *err) {
    sort_key *key = dw_alloc(s->n, sizeof *key, "lines", err);
    if (!key) return -1;
    for (size_t i = 0; i < s->n; i++) {
        double sd;
        const char *text = exp_line_text(r, &s->line[i], column);
        key[i] = (sort_key){.line = s->line[i],
                            .number = exp_line_mean(r, &s->line[i], column, &sd),
                            .text = text ? text : "",
                            .order = i,
                            .sign = reverse ? -1 : 1};
    }
    qsort(key, s->n, sizeof *key, compare);
    for (size_t i = 0; i < s->n; i++) s->line[i] = key[i].line;
    free(key);
    return 0;
}

static int make_lines(exp_lines *s, const exp_rows *r, const exp_choice *c, bool *keep, bool *key, dw_err *err) {
    const int sort = c->sort ? exp_rows_need(r, c->sort, err) : -1;
    const int join = c->join ? exp_rows_need(r, c->join, err) : -1;
    if ((c->sort && sort < 0) || (c->join && join < 0) || keep_where(keep, r, c->where, err)) return -1;
    keep_text(keep, r, c->text);
    for (size_t i = 0; i < r->n_columns; i++) key[i] = (int)i != join && is_key(r->column[i]);
    for (size_t i = 0; i < r->n_rows; i++)
        if (keep[i]) take_line(s, r, keep, c->join ? key : NULL, i);
    if (!s->n) return dw_fail(err, "none of %zu rows is left; look at --where and --text", r->n_rows);
    mark_dense(s, r);
    return sort_lines(s, r, sort, c->reverse, err);
}

int exp_lines_choose(exp_lines *s, const exp_rows *r, const exp_choice *c, dw_err *err) {
    *s = (exp_lines){.line = dw_alloc(r->n_rows, sizeof *s->line, "lines", err),
                     .member = dw_alloc(r->n_rows, sizeof *s->member, "lines", err)};
    bool *keep = dw_alloc(r->n_rows, sizeof *keep, "rows", err),
         *key = dw_alloc(r->n_columns, sizeof *key, "columns", err);
    const int rc = s->line && s->member && keep && key ? make_lines(s, r, c, keep, key, err) : -1;
    free(keep);
    free(key);
    if (rc) exp_lines_release(s);
    return rc;
}

void exp_lines_release(exp_lines *s) {
    free(s->line);
    free(s->member);
    *s = (exp_lines){0};
}

/* ---- values of a line ----------------------------------------------------------------------------------------- */

double exp_line_mean(const exp_rows *r, const exp_line *line, int column, double *sd) {
    double sum = 0, square = 0, n = 0;
    for (size_t i = 0; i < line->n; i++) {
        const double v = exp_number(exp_rows_cell(r, line->row[i], column));
        if (!isnan(v)) sum += v, n++;
    }
    for (size_t i = 0; i < line->n; i++) {
        const double v = exp_number(exp_rows_cell(r, line->row[i], column));
        if (!isnan(v)) square += (v - sum / n) * (v - sum / n);
    }
    *sd = n > 1 ? sqrt(square / (n - 1)) : NAN;
    return n > 0 ? sum / n : NAN;
}

const char *exp_line_text(const exp_rows *r, const exp_line *line, int column) {
    const char *text = exp_rows_cell(r, line->row[0], column);
    for (size_t i = 1; i < line->n; i++)
        if (!same(text, exp_rows_cell(r, line->row[i], column))) return NULL;
    return text;
}

double exp_line_dense(const exp_rows *r, const exp_line *line, int column) {
    static const char *const conditions[] = {"text", "machine", "threads", "backend"};
    const int model = exp_rows_find(r, "model");
    const char *base = exp_rows_cell(r, line->row[0], exp_rows_find(r, "base"));
    double found = NAN;
    for (size_t i = 0; i < r->n_rows && is_known(base); i++) {
        bool ok = !strcmp(exp_rows_cell(r, i, model), base);
        for (int k = 0; k < 4 && ok; k++) {
            const int c = exp_rows_find(r, conditions[k]);
            ok = same(exp_rows_cell(r, i, c), exp_rows_cell(r, line->row[0], c));
        }
        if (ok) found = exp_number(exp_rows_cell(r, i, column));
    }
    return found;
}
