/* labels.c - see labels.h. */
#include "experiments/report/labels.h"

#include "experiments/report/conditions.h"
#include "experiments/report/headings.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *model_of(const exp_labels *l, const exp_line *line) {
    return exp_rows_cell(l->rows, line->row[0], l->model);
}

/* What was done, but for what follows from other columns. */
static bool is_telling(const char *column) {
    static const char *const results[] = {"tool", "rate_reached", "nominal_bits", "minutes_trained"};
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        if (!strcmp(column, results[i])) return false;
    return exp_heading_of(column).role == EXP_TREATMENT;
}

/* Steps that are done or not: no value then says that it was not. */
static bool may_be_left_out(const char *column) {
    return !strcmp(column, "repair") || !strcmp(column, "tokens_trained");
}

/* Two lines, dense ones or others, have different known values. */
static bool differs(const exp_rows *r, const exp_lines *lines, int column, bool dense) {
    const char *first = NULL;
    const bool any = may_be_left_out(r->column[column]);
    for (size_t i = 0; i < lines->n; i++) {
        if (lines->line[i].is_dense != dense) continue;
        const char *text = exp_line_text(r, &lines->line[i], column);
        if (!text || (first && (any || is_known(text)) && strcmp(first, text))) return true;
        if (any || is_known(text)) first = text;
    }
    return false;
}

typedef struct named_line {
    const char *name;
    const exp_line *line;
} named_line;

static int by_name(const void *pa, const void *pb) {
    const named_line *a = pa, *b = pb;
    return strcmp(a->name, b->name);
}

static int sort_lines(exp_labels *l, const exp_lines *lines, dw_err *err) {
    named_line *named = dw_alloc(lines->n, sizeof *named, "labels", err);
    if (!named) return -1;
    for (size_t i = 0; i < lines->n; i++) named[i] = (named_line){model_of(l, &lines->line[i]), &lines->line[i]};
    qsort(named, lines->n, sizeof *named, by_name);
    for (size_t i = 0; i < lines->n; i++) l->by_name[i] = named[i].line;
    l->n = lines->n;
    free(named);
    return 0;
}

static bool has_heading(const char *column) {
    for (const exp_heading *h = exp_headings; h->column; h++)
        if (!strcmp(h->column, column)) return true;
    return false;
}

/* Whether a label always says it: a cut of these kinds is another one, whatever its rate. */
static bool is_always_said(const char *column) {
    return !strcmp(column, "metric") || !strcmp(column, "rule") || !strcmp(column, "layers_dropped") ||
           !strcmp(column, "kv_heads");
}

/* A value that says nothing without the name of its column: a number, or "1 of 12". */
static bool needs_head(const char *column, const char *value) {
    return !isnan(exp_number(value)) || !strcmp(column, "layers_dropped") || !strcmp(column, "kv_heads");
}

static void add_column(exp_labels *l, const exp_lines *lines, int column) {
    if (column < 0 || !is_telling(l->rows->column[column])) return;
    const char *name = l->rows->column[column];
    l->differs[l->n_columns] = is_always_said(name) || differs(l->rows, lines, column, false);
    l->dense_differ[l->n_columns] = differs(l->rows, lines, column, true);
    l->column[l->n_columns++] = column;
}

int exp_labels_make(exp_labels *l, const exp_rows *r, const exp_lines *lines, dw_err *err) {
    *l = (exp_labels){.rows = r, .model = exp_rows_find(r, "model")};
    l->column = dw_alloc(r->n_columns, sizeof *l->column, "labels", err);
    l->differs = dw_alloc(r->n_columns, sizeof *l->differs, "labels", err);
    l->dense_differ = dw_alloc(r->n_columns, sizeof *l->dense_differ, "labels", err);
    l->by_name = dw_alloc(lines->n, sizeof *l->by_name, "labels", err);
    if (!l->column || !l->differs || !l->dense_differ || !l->by_name || sort_lines(l, lines, err)) {
        exp_labels_release(l);
        return -1;
    }
    for (const exp_heading *h = exp_headings; h->column; h++) add_column(l, lines, exp_rows_find(r, h->column));
    for (size_t c = 0; c < r->n_columns; c++)
        if (!has_heading(r->column[c])) add_column(l, lines, (int)c);
    return 0;
}

void exp_labels_release(exp_labels *l) {
    free(l->column);
    free(l->differs);
    free(l->dense_differ);
    free(l->by_name);
    *l = (exp_labels){0};
}

bool exp_labels_are_needed(const exp_rows *r, const exp_lines *lines) {
    const int variant = exp_rows_find(r, "variant");
    for (size_t i = 0; i < lines->n && variant >= 0; i++)
        if (is_known(exp_rows_cell(r, lines->line[i].row[0], variant))) return true;
    return false;
}

/* Appends what fits; *n stays below EXP_LABEL. */
static void append(char text[EXP_LABEL], size_t *n, const char *head, const char *value) {
    char clipped[80];
    exp_clip(clipped, sizeof clipped, value);
    const char *comma = *n ? ", " : "", *space = *head && *clipped ? " " : "";
    const int used = snprintf(text + *n, EXP_LABEL - *n, "%s%.40s%s%s", comma, head, space, clipped);
    if (used > 0 && *n + (size_t)used < EXP_LABEL) *n += (size_t)used;
    else text[*n] = 0;
}

/* What column i says of a line: NULL where it is not wanted (NULL: all are) or the value is unknown. */
static const char *said_in(const exp_labels *l, const exp_line *line, const bool *wanted, size_t i) {
    const char *value = !wanted || wanted[i] ? exp_line_text(l->rows, line, l->column[i]) : NULL;
    return value && is_known(value) ? value : NULL;
}

static const char *cell_of(const exp_labels *l, const exp_line *line, const char *column) {
    const int at = exp_rows_find(l->rows, column);
    return at < 0 ? "-" : exp_rows_cell(l->rows, line->row[0], at);
}

bool exp_is_healed(const exp_labels *l, const exp_line *line) {
    return is_known(cell_of(l, line, "tokens_trained")) && strcmp(cell_of(l, line, "rule"), "predictors");
}

/* "healed 6144 tokens", or minutes where the run was planned by them; of predictors "4096 tokens".  Rows that were joined
 * may differ in their tokens. */
static void append_training(char text[EXP_LABEL], size_t *n, const exp_labels *l, const exp_line *line) {
    char length[48] = "";
    const char *tokens = exp_line_text(l->rows, line, exp_rows_find(l->rows, "tokens_trained"));
    const char *minutes = cell_of(l, line, "minutes_trained");
    if (is_known(minutes))
        snprintf(length, sizeof length, "%.2g minutes", atof(minutes));
    else if (tokens && is_known(tokens))
        snprintf(length, sizeof length, "%.30s tokens", tokens);
    if (exp_is_healed(l, line) || *length) append(text, n, exp_is_healed(l, line) ? "healed" : "", length);
}

/* Whether a column before the i-th says the same: type, types and a sweep's variable may. */
static bool is_said_before(const exp_labels *l, const exp_line *line, const bool *wanted, size_t i, const char *value) {
    for (size_t k = 0; k < i; k++) {
        const char *before = said_in(l, line, wanted, k);
        if (before && !strcmp(before, value)) return true;
    }
    return false;
}

/* Appends the values of a line in the columns that are wanted; n: the length so far.  Returns the new one. */
static size_t append_treatment(char text[EXP_LABEL], size_t n, const exp_labels *l, const exp_line *line,
                               const bool *wanted) {
    for (size_t i = 0; i < l->n_columns; i++) {
        const char *name = l->rows->column[l->column[i]], *value = said_in(l, line, wanted, i);
        if (!strcmp(name, "tokens_trained")) {
            if (!wanted || wanted[i]) append_training(text, &n, l, line);
            continue;
        }
        if (!value) continue;
        const bool headed = needs_head(name, value);
        if (!headed && is_said_before(l, line, wanted, i, value)) continue;
        append(text, &n, !headed ? "" : !strcmp(name, "rate") ? "rate" : exp_heading_of(name).head, value);
    }
    return n;
}

bool exp_labels_tell(const exp_labels *l, const char *column) {
    for (size_t i = 0; i < l->n_columns; i++)
        if (!strcmp(l->rows->column[l->column[i]], column)) return l->differs[i] && may_be_left_out(column);
    return false;
}

void exp_label(char text[EXP_LABEL], const exp_labels *l, const exp_line *line) {
    text[0] = 0;
    if (line->is_dense) {
        strcpy(text, "dense");
        append_treatment(text, strlen(text), l, line, l->dense_differ);
        return;
    }
    if (!append_treatment(text, 0, l, line, l->differs) && !append_treatment(text, 0, l, line, NULL))
        exp_clip(text, EXP_LABEL - 40, model_of(l, line));
    if (line->n > 1) snprintf(text + strlen(text), EXP_LABEL - strlen(text), " (mean of %zu)", line->n);
}

void exp_label_of_model(char text[EXP_LABEL], const exp_labels *l, const char *model) {
    size_t low = 0, high = l->n;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (strcmp(model_of(l, l->by_name[middle]), model) < 0) low = middle + 1;
        else high = middle;
    }
    if (low < l->n && !strcmp(model_of(l, l->by_name[low]), model)) exp_label(text, l, l->by_name[low]);
    else exp_clip(text, EXP_LABEL, model);
}
