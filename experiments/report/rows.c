/* rows.c - reading rows of results, and choosing among them. */
#include "experiments/report/rows.h"

#include "experiments/measures.h"
#include "experiments/report/headings.h"
#include "kit/content.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 1 }; // of rows.tsv

double exp_number(const char *cell) {
    char *end;
    if (!*cell || cell[strspn(cell, "0123456789+-.eE")]) return NAN; // neither "inf" nor "0x1p4" nor " 1"
    const double v = strtod(cell, &end);
    return *end || !isfinite(v) ? NAN : v;
}

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
                   near ? "'?)" : "; the header line of the file names its columns");
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
    if (kit_content_of(path) == KIT_PLAN)
        return dw_fail(err, "'%s' is a plan, not a table; deadwood inspect shows what is in it", path);
    if (version && atoi(version + strlen(mark)) != VERSION)
        return dw_fail(err, "'%s': rows of version %d, this program reads version %d", path,
                       atoi(version + strlen(mark)), VERSION);
    if (t->n_columns == 1 && strpbrk(t->column[0], " ,|"))
        return dw_fail(err,
                       "'%s' is no table of rows: its first line has no tabs between names of columns; give rows.tsv of "
                       "score or sweep, or another table (TSV)",
                       path);
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

/* Cuts the first "NAME=VALUE" off a variant and takes the shell's quotes away; after the last NULL.  *value is NULL
 * for a word without "=". */
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

/* The seeds of controls that a sweep adds (controls.h) are called seed, where the row has no other. */
static const char *name_of_variable(const char *name, const char *variant) {
    const bool is_of_control = !strcmp(name, "twin_seed") || !strcmp(name, "fixed_seed");
    const bool has_seed = !strncmp(variant, "seed=", 5) || strstr(variant, " seed=");
    return is_of_control && !has_seed ? "seed" : name;
}

/* Calls fn for each variable of a row that tells what was done. */
static int each_variable(exp_rows *r, size_t row, const char *variant,
                         int (*fn)(exp_rows *r, size_t row, const char *name, const char *value, void *ctx), void *ctx,
                         dw_err *err) {
    char *name, *value;
    int rc = 0;
    free(r->variant[row]);
    r->variant[row] = dw_strdup(variant, err);
    if (!r->variant[row]) return -1;
    for (char *at = r->variant[row]; !rc && (at = next_variable(at, &name, &value));)
        if (*name && value && *value && exp_heading_of(name).role == EXP_TREATMENT)
            rc = fn(r, row, name_of_variable(name, variant), value, ctx);
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

/* Results of models, or other tables: rows of both have no columns to share. */
static int check_kinds(const exp_rows *r, const char *const *paths, dw_err *err) {
    size_t first[2] = {SIZE_MAX, SIZE_MAX};
    for (size_t f = r->n_files; f-- > 0;) first[is_results(r->file[f].column, r->file[f].n_columns)] = f;
    if (first[0] == SIZE_MAX || first[1] == SIZE_MAX) return 0;
    return dw_fail(err, "'%s' holds results of models and '%s' another table; give them apart", paths[first[1]],
                   paths[first[0]]);
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

/* ---- which rows belong together ------------------------------------------------------------------------------- */

typedef struct row_key {
    const char *part[6];
    size_t row;
} row_key;

enum { N_PARTS = sizeof(((row_key *)0)->part) / sizeof(char *) };

static int by_parts(const row_key *a, const row_key *b) {
    int c = 0;
    for (int i = 0; i < N_PARTS && !c; i++) c = strcmp(a->part[i], b->part[i]);
    return c;
}

static int by_parts_and_row(const void *pa, const void *pb) {
    const row_key *a = pa, *b = pb;
    const int c = by_parts(a, b);
    return c ? c : (a->row > b->row) - (a->row < b->row);
}

/* All rows sorted by up to N_PARTS columns; free(). */
static row_key *sort_rows(const exp_rows *r, const char *const *columns, dw_err *err) {
    row_key *key = dw_alloc(r->n_rows, sizeof *key, "rows", err);
    int at[N_PARTS] = {-1, -1, -1, -1, -1, -1};
    for (int k = 0; k < N_PARTS && columns[k]; k++) at[k] = exp_rows_find(r, columns[k]);
    for (size_t i = 0; key && i < r->n_rows; i++) {
        key[i].row = i;
        for (int k = 0; k < N_PARTS; k++) key[i].part[k] = exp_rows_cell(r, i, at[k]);
    }
    if (key && r->n_rows) qsort(key, r->n_rows, sizeof *key, by_parts_and_row);
    return key;
}

static int find_siblings(exp_rows *r, dw_err *err) {
    static const char *const columns[N_PARTS] = {"model_sha256", "model", "base_sha256", "base", "protocol", "n_ctx"};
    row_key *key = sort_rows(r, columns, err);
    for (size_t i = 0, first = 0; key && i < r->n_rows; i++) {
        if (i && by_parts(&key[i - 1], &key[i])) first = i;
        r->sibling[i] = key[i].row;
        r->family[key[i].row] = first;
    }
    free(key);
    return key ? 0 : -1;
}

const size_t *exp_rows_siblings(const exp_rows *r, size_t row, size_t *n) {
    const size_t first = r->family[row];
    *n = 0;
    while (first + *n < r->n_rows && r->family[r->sibling[first + *n]] == first) ++*n;
    return r->sibling + first;
}

/* One name, several hashes. */
static int find_twins(exp_rows *r, dw_err *err) {
    static const char *const columns[N_PARTS] = {"text", "text_sha256"};
    row_key *key = sort_rows(r, columns, err);
    for (size_t from = 0, to; key && from < r->n_rows; from = to) {
        for (to = from; to < r->n_rows && !strcmp(key[from].part[0], key[to].part[0]);) to++;
        const bool differ = strcmp(key[from].part[1], key[to - 1].part[1]) != 0 && strcmp(key[from].part[0], "*");
        for (size_t k = from; k < to; k++) r->is_twin[key[k].row] = differ && is_known(key[k].part[1]);
    }
    free(key);
    return key ? 0 : -1;
}

const char *exp_text_name(char name[EXP_TEXT], const exp_rows *r, size_t row) {
    const char *text = exp_rows_cell(r, row, exp_rows_find(r, "text"));
    if (!r->is_twin || !r->is_twin[row])
        snprintf(name, EXP_TEXT, "%s", text);
    else
        snprintf(name, EXP_TEXT, "%.300s (sha256 %.8s)", text, exp_rows_cell(r, row, exp_rows_find(r, "text_sha256")));
    return name;
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* Sorts texts, each once; their number. */
static size_t sort_unique(const char **text, size_t n) {
    size_t kept = 0;
    if (n) qsort(text, n, sizeof *text, by_text);
    for (size_t i = 0; i < n; i++)
        if (!kept || strcmp(text[kept - 1], text[i])) text[kept++] = text[i];
    return kept;
}

static bool is_among(const char *text, const char **sorted, size_t n) {
    return n && bsearch(&text, sorted, n, sizeof *sorted, by_text);
}

/* The hashes of all bases; the names of those whose hash no row knows. */
static int find_bases(exp_rows *r, dw_err *err) {
    const int base = exp_rows_find(r, "base"), base_hash = exp_rows_find(r, "base_sha256"),
              model = exp_rows_find(r, "model"), hash = exp_rows_find(r, "model_sha256");
    const char **hashes = dw_alloc(r->n_rows, sizeof *hashes, "bases", err),
               **names = dw_alloc(r->n_rows, sizeof *names, "bases", err);
    size_t n_hashes = 0, n_names = 0;
    for (size_t i = 0; hashes && names && i < r->n_rows; i++) {
        const char *h = exp_rows_cell(r, i, base_hash), *name = exp_rows_cell(r, i, base);
        if (is_known(h))
            hashes[n_hashes++] = h;
        else if (is_known(name))
            names[n_names++] = name;
    }
    const bool ok = hashes && names;
    n_hashes = ok ? sort_unique(hashes, n_hashes) : 0;
    n_names = ok ? sort_unique(names, n_names) : 0;
    for (size_t i = 0; ok && i < r->n_rows; i++)
        r->is_base[i] = is_among(exp_rows_cell(r, i, hash), hashes, n_hashes) ||
                        is_among(exp_rows_cell(r, i, model), names, n_names);
    free(hashes);
    free(names);
    return ok ? 0 : -1;
}

static int relate_rows(exp_rows *r, dw_err *err) {
    if (!r->are_results) return 0;
    r->is_base = dw_alloc(r->n_rows, sizeof *r->is_base, "rows", err);
    r->is_twin = dw_alloc(r->n_rows, sizeof *r->is_twin, "rows", err);
    r->sibling = dw_alloc(r->n_rows, sizeof *r->sibling, "rows", err);
    r->family = dw_alloc(r->n_rows, sizeof *r->family, "rows", err);
    if (!r->is_base || !r->is_twin || !r->sibling || !r->family) return -1;
    if (find_bases(r, err) || find_twins(r, err) || find_siblings(r, err)) return -1;
    return 0;
}

int exp_rows_read(exp_rows *r, const char *const *paths, size_t n_paths, dw_err *err) {
    *r = (exp_rows){.file = dw_alloc(n_paths, sizeof *r->file, "tables", err)};
    int rc = r->file ? 0 : -1;
    for (; !rc && r->n_files < n_paths; r->n_files++) {
        rc = tsv_read(&r->file[r->n_files], paths[r->n_files], err);
        if (!rc) rc = check_file(&r->file[r->n_files], paths[r->n_files], err);
    }
    if (!rc) rc = check_kinds(r, paths, err);
    if (!rc) rc = unite_columns(r, err);
    if (!rc) rc = unite_cells(r, err);
    if (!rc && !r->n_rows)
        rc = dw_fail(err, "'%s'%s: there are no rows, only a line with names of columns", paths[0],
                     n_paths > 1 ? " and the others" : "");
    if (!rc) rc = relate_rows(r, err);
    if (rc) exp_rows_release(r);
    return rc;
}

void exp_rows_release(exp_rows *r) {
    for (size_t f = 0; f < r->n_files; f++) tsv_release(&r->file[f]);
    for (size_t i = 0; i < r->n_rows && r->variant; i++) free(r->variant[i]);
    for (size_t i = r->first_variable; i < r->n_columns; i++) free((char *)r->column[i]);
    free(r->variant);
    free(r->made);
    free(r->is_base);
    free(r->is_twin);
    free(r->sibling);
    free(r->family);
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

static bool is_text(const exp_rows *r, size_t row, int text, int hash, const char *wanted) {
    const size_t n = strlen(wanted);
    return !strcmp(exp_rows_cell(r, row, text), wanted) ||
           (n >= 8 && !strncmp(exp_rows_cell(r, row, hash), wanted, n));
}

/* A mean that is itself hidden stands for no row, nor does that of texts of another role. */
static bool has_mean(const exp_rows *r, const bool *keep, size_t row, int text, int role) {
    size_t n;
    const size_t *sibling = exp_rows_siblings(r, row, &n);
    for (size_t k = 0; k < n; k++)
        if (keep[sibling[k]] && !strcmp(exp_rows_cell(r, sibling[k], text), "*") &&
            !strcmp(exp_rows_cell(r, sibling[k], role), exp_rows_cell(r, row, role)))
            return true;
    return false;
}

/* Without a choice: of a model that has a row of several texts that row, of others all. */
static void keep_means(exp_lines *s, bool *keep, const exp_rows *r, int text) {
    const int role = exp_rows_find(r, "role");
    bool any = false;
    for (size_t i = 0; i < r->n_rows; i++) any |= keep[i] && !strcmp(exp_rows_cell(r, i, text), "*");
    for (size_t i = 0; i < r->n_rows && any; i++) {
        const char *name = exp_rows_cell(r, i, text);
        if (!keep[i] || !strcmp(name, "*") || !is_known(name) || !has_mean(r, keep, i, text, role)) continue;
        keep[i] = false;
        s->n_single++;
    }
}

static void keep_text(exp_lines *s, bool *keep, const exp_rows *r, const char *wanted) {
    const int text = exp_rows_find(r, "text"), hash = exp_rows_find(r, "text_sha256"),
              verdict = exp_rows_find(r, "verdict");
    if (!r->are_results || (wanted && !strcmp(wanted, "all"))) return;
    if (!wanted) keep_means(s, keep, r, text);
    for (size_t i = 0; i < r->n_rows && wanted; i++) {
        if (!keep[i] || is_text(r, i, text, hash, wanted) || !strcmp(exp_rows_cell(r, i, verdict), "failed")) continue;
        keep[i] = false;
        s->n_other_texts++;
    }
}

/* Numbers by which variants were chosen are not shown beside unbiased ones. */
static void keep_reports(exp_lines *s, bool *keep, const exp_rows *r) {
    const int role = exp_rows_find(r, "role");
    bool any = false;
    for (size_t i = 0; i < r->n_rows; i++) any |= keep[i] && !strcmp(exp_rows_cell(r, i, role), "report");
    for (size_t i = 0; i < r->n_rows && any; i++)
        if (keep[i] && !strcmp(exp_rows_cell(r, i, role), "select")) {
            keep[i] = false;
            s->n_select++;
        }
}

uint64_t exp_add_to_hash(uint64_t h, const char *text) {
    for (const char *p = text; *p; p++) h = (h ^ (uint8_t)*p) * 0x100000001b3u;
    return (h ^ '\t') * 0x100000001b3u;
}

typedef struct hashed_row {
    uint64_t hash;
    size_t row;
} hashed_row;

static int by_hash(const void *pa, const void *pb) {
    const hashed_row *a = pa, *b = pb;
    if (a->hash != b->hash) return a->hash < b->hash ? -1 : 1;
    return (a->row > b->row) - (a->row < b->row);
}

/* Which columns may vary between rows that measure the same as this one; `varies` has them for rows with a text, then
 * for rows without. */
static const bool *varying_of(const exp_rows *r, const bool *varies, size_t row) {
    return varies + (is_known(exp_rows_cell(r, row, exp_rows_find(r, "text"))) ? 0 : r->n_columns);
}

static bool same_measurement(const exp_rows *r, const bool *varies, size_t a, size_t b) {
    for (size_t c = 0; c < r->n_columns; c++)
        if (!varies[c] && strcmp(exp_rows_cell(r, a, (int)c), exp_rows_cell(r, b, (int)c))) return false;
    return true;
}

static uint64_t hash_measurement(const exp_rows *r, const bool *varies, size_t row) {
    uint64_t h = 0;
    for (size_t c = 0; c < r->n_columns; c++)
        if (!varies[c]) h = exp_add_to_hash(h, exp_rows_cell(r, row, (int)c));
    return h;
}

static bool has_speed(const exp_rows *r, size_t row) {
    return is_known(exp_rows_cell(r, row, exp_rows_find(r, "prefill_tok_s"))) ||
           is_known(exp_rows_cell(r, row, exp_rows_find(r, "decode_tok_s")));
}

/* Drops rows that a later one equals but for time, place and speed, or without a text but for time and speed.  Rows
 * without a model's hash stay. */
static int drop_repeated(exp_lines *s, bool *keep, const exp_rows *r, dw_err *err) {
    const int model = exp_rows_find(r, "model_sha256");
    hashed_row *of = dw_alloc(r->n_rows, sizeof *of, "rows", err);
    bool *varies = dw_alloc(2 * r->n_columns, sizeof *varies, "columns", err);
    size_t n = 0;
    const bool ok = of && varies;
    for (size_t c = 0; ok && c < 2 * r->n_columns; c++)
        varies[c] = exp_column_varies_on(c < r->n_columns ? "*" : "-", r->column[c % r->n_columns]);
    for (size_t i = 0; ok && r->are_results && i < r->n_rows; i++)
        if (keep[i] && is_known(exp_rows_cell(r, i, model)))
            of[n++] = (hashed_row){hash_measurement(r, varying_of(r, varies, i), i), i};
    if (n) qsort(of, n, sizeof *of, by_hash);
    for (size_t k = 0; k + 1 < n; k++) {
        const size_t row = of[k].row;
        const bool *may = varying_of(r, varies, row);
        if (of[k].hash != of[k + 1].hash || !same_measurement(r, may, row, of[k + 1].row)) continue;
        keep[row] = false;
        *(has_speed(r, row) ? &s->n_timed_again : &s->n_again) += 1;
    }
    free(of);
    free(varies);
    return ok ? 0 : -1;
}

/* ---- lines ---------------------------------------------------------------------------------------------------- */

bool exp_is_key(const char *column) {
    static const char *const free_conditions[] = {"date", "commit", "threads"};
    static const char *const keys[] = {"text_sha256", "base_sha256", "window_range", "depth", "sequences"};
    const exp_role role = exp_heading_of(column).role;
    if (find_name(free_conditions, sizeof free_conditions / sizeof *free_conditions, column) >= 0) return false;
    if (find_name(keys, sizeof keys / sizeof *keys, column) >= 0) return true;
    return role == EXP_TREATMENT || role == EXP_CONDITION;
}

/* Texts and bases of different names have different hashes, too. */
static bool is_hash_of(const char *column, const char *name) {
    const size_t n = strlen(name);
    return !strncmp(column, name, n) && !strcmp(column + n, "_sha256");
}

/* The columns in which rows of a line agree; a hash of these cells for each row. */
typedef struct line_key {
    bool *has;
    uint64_t *of;
} line_key;

/* Results of training by --minutes or --patience, in which seeds of one treatment differ. */
static bool is_length(const char *column) {
    return !strcmp(column, "tokens_trained") || !strcmp(column, "minutes_trained");
}

/* All keys but the column that rows are joined over, and but the length of training unless `with_lengths`. */
static void find_keys(bool *key, const exp_rows *r, const char *join, bool with_lengths) {
    for (size_t c = 0; c < r->n_columns; c++) {
        const char *name = r->column[c];
        key[c] = exp_is_key(name) && strcmp(name, join) && !is_hash_of(name, join) &&
                 (with_lengths || !is_length(name));
    }
}

static bool same_but(const exp_rows *r, const bool *key, size_t a, size_t b) {
    for (size_t c = 0; c < r->n_columns; c++)
        if (key[c] && !same(exp_rows_cell(r, a, (int)c), exp_rows_cell(r, b, (int)c))) return false;
    return true;
}

/* Equal for rows that same_but calls equal: numbers by their value. */
static uint64_t hash_key(const exp_rows *r, const bool *key, size_t row) {
    uint64_t h = 0;
    for (size_t c = 0; c < r->n_columns; c++) {
        const char *cell = exp_rows_cell(r, row, (int)c);
        const double v = key[c] ? exp_number(cell) : 0;
        char number[32] = "0"; // -0 is 0
        if (v != 0) snprintf(number, sizeof number, "%.17g", v);
        if (key[c]) h = exp_add_to_hash(h, isnan(v) ? cell : number);
    }
    return h;
}

/* Row i and all later ones that equal it in the key, as they stand in `keep`; their number. */
static size_t find_members(size_t *member, const exp_rows *r, const bool *keep, const line_key *key, size_t i) {
    size_t n = 0;
    for (size_t k = i; k < r->n_rows; k++)
        if (keep[k] && (k == i || (key->of[k] == key->of[i] && same_but(r, key->has, i, k)))) member[n++] = k;
    return n;
}

static bool is_repeated(const exp_rows *r, const size_t *member, size_t n, int column, const char **cells) {
    for (size_t k = 0; k < n; k++) cells[k] = exp_rows_cell(r, member[k], column);
    return sort_unique(cells, n) < n;
}

/* Takes row i, and with a key all that equal it there. */
static void take_line(exp_lines *s, const exp_rows *r, bool *keep, const line_key *key, size_t i) {
    exp_line *line = &s->line[s->n];
    size_t *member = s->n ? (size_t *)s->line[s->n - 1].row + s->line[s->n - 1].n : s->member;
    *line = (exp_line){.row = member, .n = 1};
    member[0] = i;
    if (key) line->n = find_members(member, r, keep, key, i);
    for (size_t k = 0; k < line->n; k++) keep[member[k]] = false;
    s->n++;
}

/* Joins the rows that equal row i and trained for any time, unless that would join one seed with itself: then the time
 * was the treatment.  group, cells: room for all rows. */
static void join_lines(exp_lines *s, const exp_rows *r, bool *keep, const line_key key[2], int join, size_t *group,
                       const char **cells, size_t i) {
    const size_t n = find_members(group, r, keep, &key[0], i);
    const line_key *by = &key[is_repeated(r, group, n, join, cells)];
    for (size_t k = 0; k < n; k++)
        if (keep[group[k]]) take_line(s, r, keep, by, group[k]);
}

static void mark_dense(exp_lines *s, const exp_rows *r) {
    for (size_t k = 0; k < s->n && r->are_results; k++) s->line[k].is_dense = r->is_base[s->line[k].row[0]];
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

static int make_key(line_key *key, const exp_rows *r, const bool *keep, const char *join, bool with_lengths,
                    dw_err *err) {
    key->has = dw_alloc(r->n_columns, sizeof *key->has, "columns", err);
    key->of = dw_alloc(r->n_rows, sizeof *key->of, "rows", err);
    if (!key->has || !key->of) return -1;
    find_keys(key->has, r, join, with_lengths);
    for (size_t i = 0; i < r->n_rows; i++) key->of[i] = keep[i] ? hash_key(r, key->has, i) : 0;
    return 0;
}

static int take_joined(exp_lines *s, const exp_rows *r, bool *keep, int join, dw_err *err) {
    line_key key[2] = {{0}};
    const char **cells = dw_alloc(r->n_rows, sizeof *cells, "rows", err);
    size_t *group = dw_alloc(r->n_rows, sizeof *group, "rows", err);
    int rc = cells && group ? 0 : -1;
    for (int k = 0; k < 2 && !rc; k++) rc = make_key(&key[k], r, keep, r->column[join], k, err);
    for (size_t i = 0; i < r->n_rows && !rc; i++)
        if (keep[i]) join_lines(s, r, keep, key, join, group, cells, i);
    for (int k = 0; k < 2; k++) {
        free(key[k].has);
        free(key[k].of);
    }
    free(group);
    free(cells);
    return rc;
}

static int take_lines(exp_lines *s, const exp_rows *r, bool *keep, int join, dw_err *err) {
    if (join >= 0) return take_joined(s, r, keep, join, err);
    for (size_t i = 0; i < r->n_rows; i++)
        if (keep[i]) take_line(s, r, keep, NULL, i);
    return 0;
}

static int make_lines(exp_lines *s, const exp_rows *r, const exp_choice *c, bool *keep, dw_err *err) {
    const int sort = c->sort ? exp_rows_need(r, c->sort, err) : -1;
    const int join = c->join ? exp_rows_need(r, c->join, err) : -1;
    if ((c->sort && sort < 0) || (c->join && join < 0) || keep_where(keep, r, c->where, err)) return -1;
    if (drop_repeated(s, keep, r, err)) return -1;
    if (!c->text) keep_reports(s, keep, r);
    keep_text(s, keep, r, c->text);
    if (take_lines(s, r, keep, join, err)) return -1;
    if (!s->n) return dw_fail(err, "none of %zu rows is left; look at --where and --text", r->n_rows);
    mark_dense(s, r);
    return sort_lines(s, r, sort, c->reverse, err);
}

int exp_lines_choose(exp_lines *s, const exp_rows *r, const exp_choice *c, dw_err *err) {
    *s = (exp_lines){.line = dw_alloc(r->n_rows, sizeof *s->line, "lines", err),
                     .member = dw_alloc(r->n_rows, sizeof *s->member, "lines", err)};
    bool *keep = dw_alloc(r->n_rows, sizeof *keep, "rows", err);
    const int rc = s->line && s->member && keep ? make_lines(s, r, c, keep, err) : -1;
    free(keep);
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

enum { N_CONDITIONS = 14, N_TIMED = 3 };

/* The columns in which a row and that of its base must agree, so that the ratio of another column says something; their
 * number.  What was timed decides about speeds only; rows without a text hold nothing else. */
static int find_conditions(int at[N_CONDITIONS], const exp_rows *r, size_t row, int column) {
    static const char *const conditions[N_CONDITIONS] = {
        "text", "text_sha256", "machine",   "threads",      "backend", "protocol",  "n_ctx",
        "bos",  "kv",          "precision", "window_range", "depth",   "sequences", "speed_test"};
    for (int k = 0; k < N_CONDITIONS; k++) at[k] = exp_rows_find(r, conditions[k]);
    const bool timed = exp_column_varies(r->column[column]) || !is_known(exp_rows_cell(r, row, at[0]));
    return timed ? N_CONDITIONS : N_CONDITIONS - N_TIMED;
}

double exp_line_dense(const exp_rows *r, const exp_line *line, int column) {
    const int model = exp_rows_find(r, "model"), hash = exp_rows_find(r, "model_sha256");
    const size_t row = line->row[0];
    const char *base = exp_rows_cell(r, row, exp_rows_find(r, "base")),
               *base_hash = exp_rows_cell(r, row, exp_rows_find(r, "base_sha256"));
    const bool by_name = !is_known(base_hash);
    int at[N_CONDITIONS];
    const int n = find_conditions(at, r, row, column);
    double found = NAN;
    for (size_t i = 0; i < r->n_rows && r->is_base && is_known(base); i++) {
        bool ok = r->is_base[i] && !strcmp(exp_rows_cell(r, i, by_name ? model : hash), by_name ? base : base_hash);
        for (int k = 0; k < n && ok; k++) ok = same(exp_rows_cell(r, i, at[k]), exp_rows_cell(r, row, at[k]));
        const double v = ok ? exp_number(exp_rows_cell(r, i, column)) : NAN;
        if (!isnan(v)) found = v;
    }
    return found;
}
