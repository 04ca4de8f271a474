/* conditions.c - verdicts, marks, and the paragraphs under a table. */
#include "experiments/report/conditions.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char *cell_of(const exp_rows *r, size_t row, const char *column) {
    return exp_rows_cell(r, row, exp_rows_find(r, column));
}

/* ---- marks ---------------------------------------------------------------------------------------------------- */

/* True when a row of the line says something else than "no" or nothing. */
static bool any_says(const exp_rows *r, const exp_line *line, const char *column) {
    for (size_t i = 0; i < line->n; i++) {
        const char *cell = cell_of(r, line->row[i], column);
        if (is_known(cell) && strcmp(cell, "no")) return true;
    }
    return false;
}

bool exp_is_disturbed(const exp_rows *r, const exp_line *line) { return any_says(r, line, "disturbed"); }

bool exp_has_leak(const exp_rows *r, const exp_line *line) { return any_says(r, line, "leak"); }

bool exp_is_bound(const exp_rows *r, const exp_line *line) {
    return !strcmp(cell_of(r, line->row[0], "kl_kind"), "top64");
}

static const char ellipsis[] = "…";

void exp_clip(char *to, size_t size, const char *text) {
    size_t n = strlen(text);
    const bool fits = n < size;
    if (!fits)
        for (n = size - sizeof ellipsis; n && (text[n] & 0xc0) == 0x80; n--) {}
    memcpy(to, text, n);
    strcpy(to + n, fits ? "" : ellipsis);
}

static bool has_labels(const exp_sheet *s) {
    for (size_t i = 0; i < s->n_fields; i++)
        if (s->field[i].is_label) return true;
    return false;
}

/* What a gated file holds besides the model (measures.c), which is no reason of a verdict. */
static bool is_note_of_gate(const char *column, const char *cell) {
    return !strcmp(column, "note") && !strncmp(cell, "down_t ", 7);
}

/* How many of a line's rows say the same in a column as row k; 0: an earlier one says it. */
static size_t count_alike(const exp_rows *r, const exp_line *line, int column, size_t k) {
    size_t n = 0;
    for (size_t i = 0; i < line->n; i++) {
        const bool same = !strcmp(exp_rows_cell(r, line->row[i], column), exp_rows_cell(r, line->row[k], column));
        if (same && i < k) return 0;
        n += same;
    }
    return n;
}

/* What the rows of a line say in a column.  Joined rows that differ there: of verdicts how many have which ("1 keep,
 * 2 discard"), of other columns nothing, for what holds of one of them does not hold of their mean. */
static void said_by_all(char *cell, size_t size, const exp_rows *r, const exp_line *line, const char *name) {
    const int column = exp_rows_find(r, name);
    char counts[EXP_VERDICT / 4] = "";
    size_t n = 0;
    if (count_alike(r, line, column, 0) == line->n) {
        exp_clip(cell, size, exp_rows_cell(r, line->row[0], column));
        return;
    }
    for (size_t k = 0; k < line->n && !strcmp(name, "verdict") && n < sizeof counts; k++) {
        const char *verdict = exp_rows_cell(r, line->row[k], column);
        const size_t alike = count_alike(r, line, column, k);
        if (alike)
            n += (size_t)snprintf(counts + n, sizeof counts - n, "%s%zu %.40s", n ? ", " : "", alike,
                                  is_known(verdict) ? verdict : "without");
    }
    exp_clip(cell, size, n ? counts : "-");
}

bool exp_verdict(char text[EXP_VERDICT], const exp_sheet *s, const exp_line *line) {
    static const struct {
        const char *column, *begin, *end;
    } parts[] = {{"verdict", "", ""}, {"note", "(", ")"}, {"dominated_by", "dominated by ", ""}};
    const exp_rows *r = s->rows;
    const bool is_label_table = has_labels(s);
    size_t n = 0;
    text[0] = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char cell[EXP_VERDICT / 4];
        said_by_all(cell, sizeof cell, r, line, parts[i].column);
        if (is_note_of_gate(parts[i].column, cell)) continue; // a paragraph tells it
        if (is_known(cell) && is_label_table && !strcmp(parts[i].column, "dominated_by"))
            exp_label_of_model(cell, &s->labels, cell_of(r, line->row[0], parts[i].column));
        if (is_known(cell))
            n += (size_t)sprintf(text + n, "%s%s%s%s",
                                 !n                       ? ""
                                 : *parts[i].begin == '(' ? " "
                                                          : "; ",
                                 parts[i].begin, cell, parts[i].end);
    }
    if (exp_has_leak(r, line)) n += (size_t)sprintf(text + n, "%sleak", n ? "; " : "");
    return n > 0;
}

void exp_escape(char *to, size_t size, const char *text) {
    char *at = to, *end = to + size - 1 - sizeof ellipsis;
    for (; *text && at < end; text++) {
        if (strchr("|\\`*<[", *text)) *at++ = '\\';
        *at++ = *text;
    }
    if ((*text & 0xc0) == 0x80) { // no half characters
        while (at > to && (at[-1] & 0xc0) == 0x80) at--;
        at -= at > to;
    }
    strcpy(at, *text ? ellipsis : "");
}

/* ---- paragraphs ----------------------------------------------------------------------------------------------- */

enum { LINE_WIDTH = 110 };

/* A blank line and the text, its lines broken at spaces. */
static void print_paragraph(FILE *out, const char *text) {
    int column = 0;
    fprintf(out, "\n");
    while (*text) {
        const size_t n = strcspn(text, " ");
        int width = 0;
        for (size_t i = 0; i < n; i++) width += (text[i] & 0xc0) != 0x80;
        if (column && column + 1 + width > LINE_WIDTH) column = 0, fprintf(out, "\n");
        fprintf(out, "%s%.*s", column ? " " : "", (int)n, text);
        column += width + (column > 0);
        text += n + (text[n] == ' ');
    }
    fprintf(out, "\n");
}

/* Texts that are collected each once. */
typedef struct values {
    char **value;
    size_t n, cap;
} values;

static int add_value(values *v, const char *text, dw_err *err) {
    for (size_t i = 0; i < v->n; i++)
        if (!strcmp(v->value[i], text)) return 0;
    if (dw_grow(&v->value, &v->cap, v->n + 1, sizeof *v->value, "conditions", err)) return -1;
    v->value[v->n] = dw_strdup(text, err);
    return v->value[v->n++] ? 0 : -1;
}

static void release_values(values *v) {
    for (size_t i = 0; i < v->n; i++) free(v->value[i]);
    free(v->value);
    *v = (values){0};
}

static void print_values(FILE *out, const char *head, const values *v) {
    enum { SHOWN = 4 };
    fprintf(out, "%s ", head);
    for (size_t i = 0; i < v->n && i < SHOWN; i++) {
        char text[512];
        exp_escape(text, sizeof text, v->value[i]);
        fprintf(out, "%s%s", i ? ", " : "", text);
    }
    if (v->n > SHOWN) fprintf(out, " and %zu others", v->n - SHOWN);
}

/* The texts of a geometric mean: the rows of the same model and base that were made with it. */
static int texts_of_mean(char **text, const exp_rows *r, size_t row, dw_err *err) {
    const int name = exp_rows_find(r, "text"), date = exp_rows_find(r, "date");
    values names = {0};
    size_t n;
    const size_t *sibling = exp_rows_siblings(r, row, &n);
    char label[EXP_TEXT];
    int rc = 0;
    for (size_t k = 0; k < n && !rc; k++) {
        const char *of = exp_rows_cell(r, sibling[k], name);
        if (strcmp(of, "*") && is_known(of) && !strcmp(exp_rows_cell(r, sibling[k], date), exp_rows_cell(r, row, date)))
            rc = add_value(&names, exp_text_name(label, r, sibling[k]), err);
    }
    *text = NULL;
    for (size_t i = 0; i < names.n && !rc; i++) rc = dw_append(text, err, "%s%s", i ? ", " : "", names.value[i]);
    if (!rc) rc = dw_append(text, err, "%s (geometric mean)", names.n ? "" : "unnamed ones");
    release_values(&names);
    return rc;
}

static int value_of(char **text, const exp_sheet *s, const char *column, size_t row, dw_err *err) {
    const char *cell = cell_of(s->rows, row, column);
    char label[EXP_TEXT];
    if (!strcmp(column, "text") && !strcmp(cell, "*")) return texts_of_mean(text, s->rows, row, err);
    if (!strcmp(column, "text")) cell = exp_text_name(label, s->rows, row);
    *text = dw_format(err, "%.*s", !strcmp(column, "date") ? 10 : 4000, cell); // the day
    return *text ? 0 : -1;
}

static bool has_failed(const exp_rows *r, size_t row) { return !strcmp(cell_of(r, row, "verdict"), "failed"); }

/* The values of a column in all rows that are shown, but for failed ones, which know nothing.  For treatments the dense
 * model is left out; where labels are shown, unknown values are left out, too. */
static int collect_values(values *v, const exp_sheet *s, const exp_heading *h, dw_err *err) {
    for (size_t i = 0; i < s->lines->n; i++) {
        const exp_line *line = &s->lines->line[i];
        for (size_t k = 0; k < line->n && !(line->is_dense && h->role == EXP_TREATMENT); k++) {
            char *text;
            if (has_failed(s->rows, line->row[k])) continue;
            if (value_of(&text, s, h->column, line->row[k], err)) return -1;
            const bool skip = h->role == EXP_TREATMENT && has_labels(s) && !is_known(text);
            const int rc = skip ? 0 : add_value(v, text, err);
            free(text);
            if (rc) return -1;
        }
    }
    return 0;
}

static bool is_shown(const exp_sheet *s, const char *column) {
    for (size_t i = 0; i < s->n_fields; i++)
        if (!strcmp(s->field[i].heading.column, column)) return true;
    return false;
}

/* The number of windows and tokens is a text's: it differs where texts do. */
static bool is_wanted(const exp_sheet *s, const exp_heading *h, exp_role role) {
    const bool of_text = !strcmp(h->column, "windows") || !strcmp(h->column, "tokens_scored");
    if (h->role != role || is_shown(s, h->column) || exp_rows_find(s->rows, h->column) < 0) return false;
    if (role == EXP_TREATMENT && has_labels(s) && exp_labels_tell(&s->labels, h->column)) return false;
    if (role == EXP_TREATMENT) return h->usual && (!s->join || strcmp(h->column, s->join));
    return !(of_text && is_shown(s, "text"));
}

/* The conditions (or treatments) that have one value in all rows, or (differing) those that have several. */
static int print_role(FILE *out, const exp_sheet *s, exp_role role, bool differing, const char *begin, dw_err *err) {
    exp_text t;
    bool any = false;
    int rc = 0;
    if (exp_text_begin(&t, err)) return -1;
    for (const exp_heading *h = exp_headings; h->column && !rc; h++) {
        if (!is_wanted(s, h, role) || (differing && !strcmp(h->column, "date"))) continue;
        values v = {0};
        rc = collect_values(&v, s, h, err);
        if (!rc && v.n && (v.n > 1) == differing && (v.n > 1 || is_known(v.value[0]))) {
            fprintf(t.out, "%s", any ? "; " : begin);
            print_values(t.out, h->head, &v);
            any = true;
        }
        release_values(&v);
    }
    fprintf(t.out, ".");
    char *text = exp_text_end(&t, rc, err);
    if (text && any) print_paragraph(out, text);
    free(text);
    return text ? 0 : -1;
}

static bool has_dense(const exp_sheet *s) {
    for (size_t i = 0; i < s->lines->n; i++)
        if (s->lines->line[i].is_dense) return true;
    return false;
}

/* ---- what the marks mean -------------------------------------------------------------------------------------- */

/* The ± of ln ratio goes by windows and needs five of them. */
static bool lacks_error(const exp_sheet *s) {
    double ignored;
    for (size_t i = 0; i < s->lines->n; i++) {
        const exp_line *line = &s->lines->line[i];
        const double ratio = exp_line_mean(s->rows, line, exp_rows_find(s->rows, "ln_ratio"), &ignored);
        const double error = exp_line_mean(s->rows, line, exp_rows_find(s->rows, "ln_ratio_se"), &ignored);
        if (line->n == 1 && !line->is_dense && !isnan(ratio) && isnan(error)) return true;
    }
    return false;
}

/* Whether a cell of a column has a ±. */
static bool has_error(const exp_sheet *s, const exp_field *f) {
    for (size_t i = 0; i < s->lines->n && f->se >= 0; i++) {
        double error;
        const double v = exp_field_value(s, f, &s->lines->line[i], &error);
        if (isfinite(v) && isfinite(error) && error > 0) return true;
    }
    return false;
}

static bool has_rows_of_base(const exp_rows *r) {
    for (size_t i = 0; i < r->n_rows && r->is_base; i++)
        if (r->is_base[i]) return true;
    return false;
}

/* A ratio to the dense model that no row knows. */
static void print_unknown_ratio(FILE *out, const exp_sheet *s, const exp_field *f) {
    char words[600], name[300];
    double ignored;
    for (size_t i = 0; i < s->lines->n; i++)
        if (!isnan(exp_field_value(s, f, &s->lines->line[i], &ignored))) return;
    const char *base = s->lines->n ? cell_of(s->rows, s->lines->line[0].row[0], "base") : "-";
    exp_escape(name, sizeof name, is_known(base) ? base : "model");
    snprintf(words, sizeof words,
             has_rows_of_base(s->rows) ? "%.80s is unknown: no row of the base %s has it under the same conditions."
                                       : "%.80s is unknown: no row is of the base %s; score it, too.",
             f->head, name);
    print_paragraph(out, words);
}

static void print_marks(FILE *out, const exp_sheet *s) {
    bool errors = false, any_error = false, speeds = false, disturbed = false, bound = false, joined = false;
    for (size_t i = 0; i < s->n_fields; i++) {
        errors |= s->field[i].se >= 0;
        any_error |= has_error(s, &s->field[i]);
        speeds |= exp_is_speed(s->field[i].heading.column);
    }
    for (size_t i = 0; i < s->lines->n; i++) {
        disturbed |= exp_is_disturbed(s->rows, &s->lines->line[i]);
        bound |= exp_is_bound(s->rows, &s->lines->line[i]);
        joined |= s->lines->line[i].n > 1;
    }
    const bool compared = is_shown(s, "ln_ratio") || is_shown(s, "kl_mean") || is_shown(s, "top1_agree");
    if (errors && !any_error && lacks_error(s))
        print_paragraph(out, "No standard errors: they need 5 windows of every text.");
    if (any_error)
        print_paragraph(out, lacks_error(s) ? "± is a standard error over windows (fewer than 5 windows: none)."
                                            : "± is a standard error over windows.");
    for (size_t i = 0; i < s->n_fields; i++)
        if (s->field[i].of_dense) print_unknown_ratio(out, s, &s->field[i]);
    if (compared) print_paragraph(out, "ln ratio, KL and top-1 are against the base.");
    if (s->against && is_shown(s, "difference")) {
        char text[600], name[300];
        exp_escape(name, sizeof name, s->against);
        snprintf(text, sizeof text, "paired ln ratio is ln(ppl / ppl of %s) on the same windows, its ± from the "
                 "differences of the windows.", name);
        print_paragraph(out, text);
    }
    if (joined) {
        char text[256];
        snprintf(
            text, sizeof text,
            "A \"mean of N\" is one over rows that differ in %.60s only; its ± is their standard deviation.",
            s->join);
        print_paragraph(out, text);
    }
    if (speeds && disturbed) print_paragraph(out, "! Something else used the machine while this speed was measured.");
    if (bound && is_shown(s, "kl_mean")) print_paragraph(out, "≥ The base was a stored one: KL is a lower bound.");
}

static bool any_verdict(const exp_sheet *s, const char *column, const char *verdict) {
    for (size_t i = 0; i < s->lines->n; i++) {
        const exp_line *line = &s->lines->line[i];
        for (size_t k = 0; k < line->n; k++) {
            const char *cell = cell_of(s->rows, line->row[k], column);
            if (verdict ? !strcmp(cell, verdict) : is_known(cell)) return true;
        }
    }
    return false;
}

/* Which texts leaked, as the rows say it. */
static int print_leaks(FILE *out, const exp_sheet *s, dw_err *err) {
    exp_text t;
    values v = {0};
    int rc = 0;
    for (size_t i = 0; i < s->lines->n && !rc; i++) {
        const exp_line *line = &s->lines->line[i];
        for (size_t k = 0; k < line->n && !rc; k++) {
            const char *cell = cell_of(s->rows, line->row[k], "leak");
            if (is_known(cell) && strcmp(cell, "no")) rc = add_value(&v, cell, err);
        }
    }
    if (!rc && v.n) rc = exp_text_begin(&t, err);
    if (!rc && v.n) {
        print_values(t.out, "leak: the model or its base was made with a text that it is scored on:", &v);
        char *text = exp_text_end(&t, 0, err);
        if (text) print_paragraph(out, text);
        rc = text ? 0 : -1;
        free(text);
    }
    release_values(&v);
    return rc;
}

/* What gated files hold besides the model, where their size is shown. */
static void print_gates(FILE *out, const exp_sheet *s) {
    size_t n_gated = 0, n_choosing = 0; // with predictors, or with the fixed choice of static and random
    for (size_t i = 0; i < s->lines->n && is_shown(s, "file_bytes"); i++) {
        const char *note = cell_of(s->rows, s->lines->line[i].row[0], "note");
        n_gated += is_note_of_gate("note", note);
        n_choosing += is_note_of_gate("note", note) && strstr(note, "predictors");
    }
    if (!n_gated) return;
    print_paragraph(out, !n_choosing ? "MB of gated models include down_t, a transposed copy of down; column note says "
                                       "how much."
                         : n_choosing == n_gated
                             ? "MB of gated models include down_t, a transposed copy of down, and predictors; column "
                               "note says how much."
                             : "MB of gated models include down_t, a transposed copy of down, and in some files "
                               "predictors (or the choice of static and random); column note says how much.");
}

/* What the words of the column verdict mean. */
static int print_verdicts(FILE *out, const exp_sheet *s, dw_err *err) {
    if (!is_shown(s, "verdict")) return 0;
    if (any_verdict(s, "dominated_by", NULL))
        print_paragraph(
            out, "dominated by: that row has the same type and is no larger, in bytes and in bytes a token, and its ln "
                 "ratio is smaller beyond the error of their difference, corrected for the number of comparisons.");
    if (any_verdict(s, "verdict", "collapsed"))
        print_paragraph(out, "collapsed: the perplexity is above ten times the base's, beyond the error.");
    return print_leaks(out, s, err);
}

/* The spread between texts, where a row of several is shown. */
static void print_spread(FILE *out, const exp_sheet *s) {
    const int column = exp_rows_find(s->rows, "ln_ratio_texts_sd"), text = exp_rows_find(s->rows, "text");
    double least = INFINITY, most = 0, ignored;
    bool any = false;
    for (size_t i = 0; i < s->lines->n; i++) {
        const exp_line *line = &s->lines->line[i];
        const double sd = exp_line_mean(s->rows, line, column, &ignored);
        any |= !strcmp(exp_rows_cell(s->rows, line->row[0], text), "*");
        if (isnan(sd) || line->is_dense) continue;
        least = fmin(least, sd);
        most = fmax(most, sd);
    }
    if (!any) return;
    char words[400] = "A geometric mean and its ± are conditional on these texts";
    char low[32], high[32];
    snprintf(low, sizeof low, "%.2g", least);
    snprintf(high, sizeof high, "%.2g", most);
    if (most > 0)
        snprintf(words + strlen(words), sizeof words - strlen(words),
                 "; between them the standard deviation of ln ratio is %s", low);
    if (most > 0 && strcmp(low, high))
        snprintf(words + strlen(words), sizeof words - strlen(words), " to %s, by row", high);
    strcat(words, ".");
    print_paragraph(out, words);
}

/* A mixture whose types do not fit every row is another mixture. */
static void print_fallbacks(FILE *out, const exp_sheet *s) {
    const int column = exp_rows_find(s->rows, "types"), model = exp_rows_find(s->rows, "model");
    size_t n = 0, first = 0;
    for (size_t i = s->lines->n; i-- > 0;) {
        const size_t row = s->lines->line[i].row[0];
        if (!strstr(exp_rows_cell(s->rows, row, column), "(fallback)")) continue;
        first = row;
        n++;
    }
    if (!n) return;
    char words[1200], name[300], types[300], label[EXP_LABEL];
    const char *called = exp_rows_cell(s->rows, first, model);
    if (has_labels(s)) exp_label_of_model(label, &s->labels, called), called = label;
    exp_escape(name, sizeof name, called);
    exp_escape(types, sizeof types, exp_rows_cell(s->rows, first, column));
    snprintf(
        words, sizeof words,
        "fallback: in %zu of %zu rows some matrices do not fit the mixture's type and have a larger one, as in %s: %s. "
        "Where it is ffn_down, rank --multiple 256 gives widths that fit.",
        n, s->lines->n, name, types);
    print_paragraph(out, words);
}

static void print_hidden(FILE *out, size_t n, const char *what) {
    char words[300];
    if (!n) return;
    snprintf(words, sizeof words, "Not shown: %zu row%s %s.", n, n == 1 ? "" : "s", what);
    print_paragraph(out, words);
}

static size_t count_failed(const exp_sheet *s) {
    size_t n = 0;
    for (size_t i = 0; i < s->lines->n; i++)
        n += has_failed(s->rows, s->lines->line[i].row[0]);
    return n;
}

/* Rows that failed, and rows that are there and not shown. */
static void print_counts(FILE *out, const exp_sheet *s) {
    const size_t n_failed = count_failed(s);
    char words[120];
    snprintf(words, sizeof words, "failed: %zu of %zu rows; the reason is beside each.", n_failed, s->lines->n);
    if (n_failed) print_paragraph(out, is_shown(s, "verdict") ? words : "Some rows failed; column verdict says which.");
    print_hidden(out, s->lines->n_single, "of single texts (--text all)");
    print_hidden(out, s->lines->n_other_texts, "of other texts (--text all)");
    print_hidden(out, s->lines->n_select, "of the texts that variants were chosen by (--where role=select)");
    print_hidden(out, s->lines->n_again, "measured again later with the same result");
    print_hidden(out, s->lines->n_timed_again, "measured again later; the last measurement is shown");
}

int exp_conditions_print(FILE *out, const exp_sheet *s, dw_err *err) {
    const char *all = has_labels(s)  ? "The same wherever it applies: "
                      : has_dense(s) ? "All but the base: "
                                     : "All rows: ";
    if (print_role(out, s, EXP_TREATMENT, false, all, err) ||
        print_role(out, s, EXP_CONDITION, false, "Conditions: ", err) ||
        print_role(out, s, EXP_CONDITION, true, "Rows differ in: ", err))
        return -1;
    print_marks(out, s);
    print_spread(out, s);
    print_fallbacks(out, s);
    print_gates(out, s);
    print_counts(out, s);
    return print_verdicts(out, s, err);
}
