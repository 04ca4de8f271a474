/* paste.c - fields of a table, their cells, and Markdown, LaTeX, TSV and CSV. */
#include "experiments/report/paste.h"

#include "experiments/report/conditions.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- fields --------------------------------------------------------------------------------------------------- */

int exp_field_find(exp_field *f, const exp_sheet *s, const char *name, dw_err *err) {
    static const char ratio[] = "/base";
    const size_t n = strlen(name), n_ratio = strlen(ratio);
    *f = (exp_field){.se = -1, .is_number = true};
    if (n >= sizeof f->name) return dw_fail(err, "there is no column '%.80s...'", name);
    strcpy(f->name, name);
    if (s->rows->are_results && !strcmp(name, "label") && exp_rows_find(s->rows, name) < 0) {
        *f = (exp_field){.name = "label", .head = "variant", .column = -1, .se = -1, .is_label = true};
        f->heading = (exp_heading){.column = "label", .role = EXP_NAME, .scale = 1};
        return 0;
    }
    f->of_dense = s->rows->are_results && n > n_ratio && !strcmp(name + n - n_ratio, ratio);
    char *column = dw_format(err, "%.*s", (int)(f->of_dense ? n - n_ratio : n), name);
    f->column = column ? exp_rows_need(s->rows, column, err) : -1;
    free(column);
    if (f->column < 0) return -1;
    f->heading = exp_heading_of(s->rows->column[f->column]);
    if (f->heading.se && !f->of_dense) f->se = exp_rows_find(s->rows, f->heading.se);
    if (f->of_dense)
        snprintf(f->head, sizeof f->head, "%.40s ÷ dense", f->heading.head);
    else
        snprintf(f->head, sizeof f->head, "%.60s", f->heading.head);
    for (size_t i = 0; i < s->lines->n; i++) {
        const exp_line *line = &s->lines->line[i];
        for (size_t k = 0; k < line->n; k++) {
            const char *cell = exp_rows_cell(s->rows, line->row[k], f->column);
            if (is_known(cell) && isnan(exp_number(cell))) f->is_number = false;
        }
    }
    return f->of_dense && !f->is_number
               ? dw_fail(err, "column '%s' holds texts, which have no ratio", f->heading.column)
               : 0;
}

double exp_field_value(const exp_sheet *s, const exp_field *f, const exp_line *line, double *error) {
    double sd, ignored;
    const double v = exp_line_mean(s->rows, line, f->column, &sd);
    *error = line->n > 1 ? sd : exp_line_mean(s->rows, line, f->se, &ignored);
    if (!f->of_dense) return v;
    const double dense = exp_line_dense(s->rows, line, f->column);
    *error /= dense;
    return v / dense;
}

double exp_field_scale(const exp_field *f) { return f->of_dense ? 1 : f->heading.scale; }

/* A column is worth showing if some line knows its value.  A treatment must also differ between lines, apart from the
 * dense ones. */
static bool is_worth_showing(const exp_sheet *s, const exp_heading *h) {
    const int column = exp_rows_find(s->rows, h->column);
    const char *first = NULL;
    bool known = false, differs = false;
    for (size_t i = 0; i < s->lines->n; i++) {
        const exp_line *line = &s->lines->line[i];
        const char *text = exp_line_text(s->rows, line, column);
        known |= !text || is_known(text);
        if (line->is_dense && h->role == EXP_TREATMENT) continue;
        if (!text || (first && strcmp(first, text))) differs = true;
        first = text ? text : first;
    }
    return known && (differs || h->role == EXP_MEASURE || h->role == EXP_NAME);
}

/* Both lines have a known value, and not the same. */
static bool differ(const exp_rows *r, const exp_line *a, const exp_line *b, int column) {
    const char *x = exp_line_text(r, a, column), *y = exp_line_text(r, b, column);
    return x && y && is_known(x) && is_known(y) && strcmp(x, y);
}

/* The verdict is written together from several columns. */
static bool has_verdict(const exp_sheet *s) {
    char text[EXP_VERDICT];
    for (size_t i = 0; i < s->lines->n; i++)
        if (exp_verdict(text, s, &s->lines->line[i])) return true;
    return false;
}

static int add_field(exp_sheet *s, const char *name, dw_err *err) {
    return exp_field_find(&s->field[s->n_fields++], s, name, err);
}

/* Variables of a sweep that are no columns of results. */
static int add_variables(exp_sheet *s, dw_err *err) {
    int rc = 0;
    for (size_t i = s->rows->first_variable; i < s->rows->n_columns && !rc; i++) {
        const exp_heading h = exp_heading_of(s->rows->column[i]);
        if (!h.usual && is_worth_showing(s, &h)) rc = add_field(s, h.column, err);
    }
    return rc;
}

static bool has_field(const exp_sheet *s, const char *name) {
    for (size_t i = 0; i < s->n_fields; i++)
        if (!strcmp(s->field[i].name, name)) return true;
    return false;
}

/* Whether two lines agree in all that is shown of their names, treatments and conditions. */
static bool look_alike(const exp_sheet *s, const exp_line *a, const exp_line *b) {
    for (size_t i = 0; i < s->n_fields; i++) {
        const exp_field *f = &s->field[i];
        char text[2][EXP_LABEL] = {"", ""};
        if (f->is_label) exp_label(text[0], &s->labels, a), exp_label(text[1], &s->labels, b);
        if (strcmp(text[0], text[1])) return false;
        if (f->column < 0 || f->heading.role == EXP_MEASURE || !strcmp(f->name, "verdict")) continue;
        if (differ(s->rows, a, b, f->column)) return false;
    }
    return true;
}

/* Whether lines that look alike were measured under different conditions. */
static bool tells_apart(const exp_sheet *s, const exp_heading *h) {
    const int column = exp_rows_find(s->rows, h->column);
    for (size_t i = 0; i < s->lines->n; i++)
        for (size_t k = 0; k < i; k++) {
            const exp_line *a = &s->lines->line[k], *b = &s->lines->line[i];
            if (differ(s->rows, a, b, column) && look_alike(s, a, b)) return true;
        }
    return false;
}

/* Whether lines are compared with different bases, which one column of ln ratios does not show. */
static bool has_several_bases(const exp_sheet *s) {
    const int column = exp_rows_find(s->rows, "base");
    const char *first = NULL;
    for (size_t i = 0; i < s->lines->n && column >= 0; i++) {
        const char *base = exp_line_text(s->rows, &s->lines->line[i], column);
        if (!base || !strcmp(base, "-")) continue;
        if (first && strcmp(first, base)) return true;
        first = base;
    }
    return false;
}

/* Conditions stand under the table unless lines could not be told apart, or compared, without them. */
static int add_telling(exp_sheet *s, dw_err *err) {
    for (const exp_heading *h = exp_headings; h->column; h++) {
        const bool is_told = h->role == EXP_CONDITION && !h->usual && strcmp(h->column, "date") &&
                             strcmp(h->column, "commit") && exp_rows_find(s->rows, h->column) >= 0;
        const bool is_needed = !strcmp(h->column, "base") && has_several_bases(s);
        if (!is_told || !(is_needed || tells_apart(s, h))) continue;
        exp_field f;
        if (exp_field_find(&f, s, h->column, err)) return -1;
        memmove(s->field + 2, s->field + 1, (s->n_fields++ - 1) * sizeof f); // after the model
        s->field[1] = f;
    }
    return 0;
}

static bool any_line(const exp_sheet *s, bool (*says)(const exp_rows *r, const exp_line *line)) {
    for (size_t i = 0; i < s->lines->n; i++)
        if (says(s->rows, &s->lines->line[i])) return true;
    return false;
}

/* Programs cannot see the marks ≥, ! and "leak".  Where a row has one, a column says so: a KL that is a lower bound, a
 * speed that was disturbed, a text that the model has seen. */
static int add_marks(exp_sheet *s, dw_err *err) {
    int rc = 0;
    bool speeds = false;
    for (size_t i = 0; i < s->n_fields; i++) speeds |= exp_is_speed(s->field[i].heading.column);
    if (has_field(s, "kl_mean") && !has_field(s, "kl_kind") && any_line(s, exp_is_bound))
        rc = add_field(s, "kl_kind", err);
    if (!rc && speeds && any_line(s, exp_is_disturbed)) rc = add_field(s, "disturbed", err);
    if (!rc && any_line(s, exp_has_leak)) rc = add_field(s, "leak", err);
    return rc;
}

/* Of results: the model and what was done to it, measures, the verdict.  For readers of a sweep a label tells all that
 * was done but the rate that was reached. */
static int add_usual(exp_sheet *s, dw_err *err) {
    const bool labelled = !s->for_programs && exp_labels_are_needed(s->rows, s->lines);
    bool before_measures = true;
    int rc = 0;
    for (const exp_heading *h = exp_headings; h->column && !rc; h++) {
        if (before_measures && h->role == EXP_MEASURE && !labelled && add_variables(s, err)) return -1;
        before_measures &= h->role != EXP_MEASURE;
        if (!h->usual || exp_rows_find(s->rows, h->column) < 0) continue;
        if (labelled && h->role == EXP_TREATMENT && strcmp(h->column, "rate_reached")) continue;
        const bool is_name = labelled && !strcmp(h->column, "model");
        if (strcmp(h->column, "verdict") ? is_worth_showing(s, h) : has_verdict(s))
            rc = add_field(s, is_name ? "label" : h->column, err);
    }
    if (!rc && s->n_fields) rc = add_telling(s, err);
    return !rc && s->for_programs ? add_marks(s, err) : rc;
}

static int add_all(exp_sheet *s, dw_err *err) {
    int rc = 0;
    for (size_t i = 0; i < s->rows->n_columns && !rc; i++) rc = add_field(s, s->rows->column[i], err);
    return rc;
}

static int add_named(exp_sheet *s, const char *names, dw_err *err) {
    int rc = 0;
    for (const char *at = names; !rc; at++) {
        const size_t n = strcspn(at, ",");
        char *name = dw_format(err, "%.*s", (int)n, at);
        rc = name ? add_field(s, name, err) : -1;
        free(name);
        at += n;
        if (!*at) break;
    }
    return rc;
}

/* Whether a field is the standard error of another one, beside which it stands already. */
static bool stands_beside(const exp_sheet *s, const exp_field *f) {
    for (size_t k = 0; k < s->n_fields && !f->of_dense; k++)
        if (s->field[k].se >= 0 && s->field[k].se == f->column) return true;
    return false;
}

/* Programs find each column once. */
static void drop_errors(exp_sheet *s) {
    size_t n = 0;
    for (size_t k = 0; k < s->n_fields; k++)
        if (!stands_beside(s, &s->field[k])) s->field[n++] = s->field[k];
    s->n_fields = n;
}

int exp_sheet_fields(exp_sheet *s, const char *names, dw_err *err) {
    size_t n = s->rows->n_columns;
    for (const char *p = names ? names : ""; *p; p++) n += *p == ',';
    s->field = dw_alloc(n + 1, sizeof *s->field, "columns", err);
    if (!s->field || exp_labels_make(&s->labels, s->rows, s->lines, err)) return -1;
    const int rc = names ? add_named(s, names, err) : s->rows->are_results ? add_usual(s, err) : add_all(s, err);
    if (s->for_programs) drop_errors(s);
    return rc;
}

void exp_sheet_release(exp_sheet *s) {
    free(s->field);
    exp_labels_release(&s->labels);
    *s = (exp_sheet){0};
}

/* ---- cells of Markdown ---------------------------------------------------------------------------------------- */

enum { CELL = 4096 };

/* One place after the point for a whole column of numbers without errors. */
static int decimals_of(const exp_sheet *s, const exp_field *f) {
    double least = INFINITY, most = 0, error;
    for (size_t i = 0; i < s->lines->n; i++) {
        const double v = fabs(exp_field_scale(f) * exp_field_value(s, f, &s->lines->line[i], &error));
        if (v > 0) least = fmin(least, v), most = fmax(most, v);
    }
    return isfinite(least) ? exp_decimals(least, most) : 0;
}

static void number_cell(char cell[CELL], const exp_sheet *s, const exp_field *f, const exp_line *line, int decimals) {
    char number[EXP_NUMBER];
    double error;
    const double v = exp_field_scale(f) * exp_field_value(s, f, line, &error);
    if (isnan(v))
        snprintf(number, sizeof number, "-");
    else if (f->se >= 0)
        exp_format_pair(number, v, exp_field_scale(f) * error);
    else
        snprintf(number, sizeof number, fabs(v) < 1e15 ? "%.*f" : "%.*g", decimals, v);
    const bool bound = !strcmp(f->heading.column, "kl_mean") && exp_is_bound(s->rows, line);
    const bool disturbed = !isnan(v) && exp_is_speed(f->heading.column) && exp_is_disturbed(s->rows, line);
    snprintf(cell, CELL, "%s%s%s", bound && !isnan(v) ? "≥ " : "", number, disturbed ? " !" : "");
}

static void joined_cell(char cell[CELL], const exp_sheet *s, const exp_field *f, const exp_line *line) {
    char first[CELL - 40];
    exp_escape(first, sizeof first, exp_rows_cell(s->rows, line->row[0], f->column));
    if (!strcmp(f->heading.column, s->join))
        snprintf(cell, CELL, "mean of %zu", line->n);
    else
        snprintf(cell, CELL, "%s and %zu more", first, line->n - 1);
}

static void make_cell(char cell[CELL], const exp_sheet *s, const exp_field *f, const exp_line *line, int decimals) {
    const char *text = exp_line_text(s->rows, line, f->column);
    char verdict[EXP_VERDICT], label[EXP_LABEL];
    if (f->is_label) {
        exp_label(label, &s->labels, line);
        exp_escape(cell, CELL, label);
    } else if (!strcmp(f->heading.column, "verdict") && s->rows->are_results) {
        exp_escape(cell, CELL, exp_verdict(verdict, s, line) ? verdict : "-");
    } else if (f->of_dense || (f->heading.role == EXP_MEASURE && f->is_number)) {
        number_cell(cell, s, f, line, decimals);
    } else if (!text) {
        joined_cell(cell, s, f, line);
    } else {
        char shown[EXP_TEXT];
        const bool is_text = !strcmp(f->name, "text") && s->rows->are_results;
        if (is_text) text = !strcmp(text, "*") ? "geometric mean" : exp_text_name(shown, s->rows, line->row[0]);
        exp_escape(cell, CELL, text);
    }
}

/* ---- Markdown ------------------------------------------------------------------------------------------------- */

typedef struct look { // of a column
    int decimals, width;
    bool right;
} look;

static void print_cell(FILE *out, const char *cell, const look *l) {
    const int pad = l->width - exp_width_of(cell);
    fprintf(out, " %*s%s%*s |", l->right ? pad : 0, "", cell, l->right ? 0 : pad, "");
}

static void print_rule(FILE *out, const look *l) {
    fprintf(out, l->right ? "-" : ":");
    for (int i = 0; i < l->width; i++) fprintf(out, "-");
    fprintf(out, l->right ? ":|" : "-|");
}

static void measure_field(look *l, const exp_sheet *s, const exp_field *f) {
    char cell[CELL];
    exp_escape(cell, CELL, f->head);
    *l = (look){
        .decimals = decimals_of(s, f),
        .width = exp_width_of(cell),
        .right = f->is_number && strcmp(f->name, "verdict")};
    for (size_t i = 0; i < s->lines->n; i++) {
        make_cell(cell, s, f, &s->lines->line[i], l->decimals);
        if (exp_width_of(cell) > l->width) l->width = exp_width_of(cell);
    }
}

static int print_markdown(FILE *out, const exp_sheet *s, dw_err *err) {
    char cell[CELL];
    look *l = dw_alloc(s->n_fields, sizeof *l, "a table", err);
    if (!l) return -1;
    for (size_t k = 0; k < s->n_fields; k++) measure_field(&l[k], s, &s->field[k]);
    for (size_t k = 0; k < s->n_fields; k++) {
        exp_escape(cell, CELL, s->field[k].head);
        if (!k) fprintf(out, "|");
        print_cell(out, cell, &l[k]);
    }
    fprintf(out, "\n|");
    for (size_t k = 0; k < s->n_fields; k++) print_rule(out, &l[k]);
    for (size_t i = 0; i < s->lines->n; i++) {
        fprintf(out, "\n|");
        for (size_t k = 0; k < s->n_fields; k++) {
            make_cell(cell, s, &s->field[k], &s->lines->line[i], l[k].decimals);
            print_cell(out, cell, &l[k]);
        }
    }
    fprintf(out, "\n");
    free(l);
    return s->rows->are_results ? exp_conditions_print(out, s, err) : 0;
}

/* ---- LaTeX ---------------------------------------------------------------------------------------------------- */

/* What a character of a cell or paragraph of Markdown is in LaTeX; *n is how many bytes it has there. */
static const char *latex_of(const char *at, size_t *n, char own[8]) {
    static const struct {
        const char *text, *latex;
    } forms[] = {{"±", "$\\pm$"}, {"≥", "$\\ge$"}, {"÷", "$\\div$"}, {"…", "\\ldots{}"}, {"~", "\\textasciitilde{}"},
                 {"^", "\\textasciicircum{}"}, {"<", "\\textless{}"}, {">", "\\textgreater{}"}, {"|", "\\textbar{}"},
                 {"\"", "\\textquotedbl{}"}};
    const size_t escaped = *at == '\\' && at[1] && strchr("|\\`*<[", at[1]) ? 1 : 0; // as exp_escape wrote it
    at += escaped;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        *n = strlen(forms[i].text) + escaped;
        if (!strncmp(at, forms[i].text, strlen(forms[i].text))) return forms[i].latex;
    }
    *n = 1 + escaped;
    if (at[0] == '-' && at[1] == '-') return "-{}"; // two are a dash in TeX
    if (*at == '\\') return "\\textbackslash{}";
    snprintf(own, 8, "%s%c", strchr("&%$#_{}", *at) ? "\\" : "", *at);
    return own;
}

static void put_latex(FILE *out, const char *text) {
    char own[8];
    size_t n;
    if (text[0] == '-' && text[1] >= '0' && text[1] <= '9') fputs("$-$", out), text++;
    for (; *text; text += n) fputs(latex_of(text, &n, own), out);
}

/* The paragraphs under the table, each as one. */
static int put_latex_conditions(FILE *out, const exp_sheet *s, dw_err *err) {
    exp_text t;
    if (exp_text_begin(&t, err)) return -1;
    char *text = exp_text_end(&t, exp_conditions_print(t.out, s, err), err);
    if (!text) return -1;
    fprintf(out, "\n\\medskip\n\\parbox{\\linewidth}{\\footnotesize\n");
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));) {
        if (!*line && rest && *rest) fprintf(out, line == text ? "" : "\n");
        put_latex(out, line);
        if (*line) fprintf(out, "\n");
    }
    fprintf(out, "}\n");
    free(text);
    return 0;
}

static int print_latex(FILE *out, const exp_sheet *s, dw_err *err) {
    char cell[CELL];
    look *l = dw_alloc(s->n_fields, sizeof *l, "a table", err);
    if (!l) return -1;
    fprintf(out, "%% needs \\usepackage{booktabs}\n\\begin{table}\n\\centering\n\\begin{tabular}{");
    for (size_t k = 0; k < s->n_fields; k++) {
        measure_field(&l[k], s, &s->field[k]);
        fputc(l[k].right ? 'r' : 'l', out);
    }
    fprintf(out, "}\n\\toprule\n");
    for (size_t k = 0; k < s->n_fields; k++) {
        exp_escape(cell, CELL, s->field[k].head);
        fprintf(out, k ? " & " : "");
        put_latex(out, cell);
    }
    fprintf(out, " \\\\\n\\midrule\n");
    for (size_t i = 0; i < s->lines->n; i++) {
        for (size_t k = 0; k < s->n_fields; k++) {
            make_cell(cell, s, &s->field[k], &s->lines->line[i], l[k].decimals);
            fprintf(out, k ? " & " : "");
            put_latex(out, cell);
        }
        fprintf(out, " \\\\\n");
    }
    fprintf(out, "\\bottomrule\n\\end{tabular}\n");
    free(l);
    if (s->rows->are_results && put_latex_conditions(out, s, err)) return -1;
    fprintf(out, "\\end{table}\n");
    return 0;
}

/* ---- TSV, CSV ------------------------------------------------------------------------------------------------- */

/* Cells are kept without tabs and line ends by the reader; CSV doubles quotes (RFC 4180). */
static void print_raw(FILE *out, const char *text, char separator, bool first) {
    if (!first) fputc(separator, out);
    if (separator == '\t' || !strpbrk(text, ",\"")) {
        fputs(text, out);
        return;
    }
    fputc('"', out);
    for (; *text; text++) fprintf(out, *text == '"' ? "\"\"" : "%c", *text);
    fputc('"', out);
}

static void print_raw_number(FILE *out, double v, char separator) {
    char text[EXP_NUMBER];
    snprintf(text, sizeof text, isnan(v) ? "-" : "%.10g", v);
    print_raw(out, text, separator, false);
}

static void print_raw_field(FILE *out, const exp_sheet *s, const exp_field *f, const exp_line *line, char separator,
                            bool first) {
    char joined[CELL], number[EXP_NUMBER], label[EXP_LABEL];
    double error;
    const double v = exp_field_value(s, f, line, &error);
    const char *text = f->is_label ? label : exp_line_text(s->rows, line, f->column);
    if (f->is_label) exp_label(label, &s->labels, line);
    snprintf(number, sizeof number, isnan(v) ? "-" : "%.10g", v);
    if (f->of_dense) text = number;
    if (!text && f->heading.role == EXP_MEASURE) text = number;
    if (!text) joined_cell(joined, s, f, line);
    print_raw(out, text ? text : joined, separator, first);
    if (f->se < 0) return;
    print_raw_number(out, line->n > 1 ? NAN : error, separator);
    if (s->join) print_raw_number(out, line->n > 1 ? error : NAN, separator);
}

/* Beside a standard error that of joined rows is none, but a standard deviation. */
static void print_raw_head(FILE *out, const exp_sheet *s, const exp_field *f, char separator, bool first) {
    char deviation[sizeof f->name + 3];
    print_raw(out, f->name, separator, first);
    if (f->se < 0) return;
    print_raw(out, f->heading.se, separator, false);
    snprintf(deviation, sizeof deviation, "%s_sd", f->name);
    if (s->join) print_raw(out, deviation, separator, false);
}

static void print_raw_table(FILE *out, const exp_sheet *s, char separator) {
    for (size_t k = 0; k < s->n_fields; k++) print_raw_head(out, s, &s->field[k], separator, !k);
    fputc('\n', out);
    for (size_t i = 0; i < s->lines->n; i++) {
        for (size_t k = 0; k < s->n_fields; k++)
            print_raw_field(out, s, &s->field[k], &s->lines->line[i], separator, !k);
        fputc('\n', out);
    }
}

static int print_tsv(FILE *out, const exp_sheet *s, dw_err *err) {
    (void)err;
    print_raw_table(out, s, '\t');
    return 0;
}

static int print_csv(FILE *out, const exp_sheet *s, dw_err *err) {
    (void)err;
    print_raw_table(out, s, ',');
    return 0;
}

/* ---- */

int exp_text_begin(exp_text *t, dw_err *err) {
    *t = (exp_text){0};
    t->out = open_memstream(&t->text, &t->size);
    return t->out ? 0 : dw_fail(err, "out of memory: a text");
}

char *exp_text_end(exp_text *t, int rc, dw_err *err) {
    const bool bad = ferror(t->out);
    if (fclose(t->out) || bad || !t->text)
        dw_fail(err, "out of memory: a text");
    else if (!rc)
        return t->text;
    free(t->text);
    return NULL;
}

static int print_to_text(int (*print)(FILE *out, const exp_sheet *s, dw_err *err), const exp_sheet *s, char **text,
                         dw_err *err) {
    exp_text t;
    if (exp_text_begin(&t, err)) return -1;
    *text = exp_text_end(&t, print(t.out, s, err), err);
    return *text ? 0 : -1;
}

int exp_paste_markdown(const exp_sheet *s, char **text, dw_err *err) {
    return print_to_text(print_markdown, s, text, err);
}
int exp_paste_latex(const exp_sheet *s, char **text, dw_err *err) { return print_to_text(print_latex, s, text, err); }
int exp_paste_tsv(const exp_sheet *s, char **text, dw_err *err) { return print_to_text(print_tsv, s, text, err); }
int exp_paste_csv(const exp_sheet *s, char **text, dw_err *err) { return print_to_text(print_csv, s, text, err); }
