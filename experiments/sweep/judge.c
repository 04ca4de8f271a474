/* judge.c - gathers rows, compares them, writes one table (judge.h says by which rules). */
#include "experiments/sweep/judge.h"
#include "experiments/measures.h"
#include "experiments/report/headings.h"
#include "kit/tsv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double collapse = 10;        // times the base's perplexity
static const double significance = 0.05;  // of all comparisons together
static const double least_t = 1.64;       // no quantile of t at this significance is smaller

static const size_t NONE = SIZE_MAX;

typedef struct source {
    tsv_table rows; // n_columns 0: none yet, or failed
    int *column;    // (exp_n_columns) of each column of results in the rows, -1: it has none
    size_t *speaker; // (n_rows) the standing that speaks for the row's model, or NONE
    char *variant, *model, *reason; // reason: it failed
    bool is_control;
    size_t first, n; // its standings
} source;

typedef struct standing { // a model of a source, as the row that speaks for it has it
    size_t source, row;
    char *frame; // what must agree before two are compared
    double bytes, bytes_per_token;
    measure_mean ratio; // ln_ratio
    measure_view sums;
    bool has_sums, is_control, is_report;
    /* made by judge_all */
    size_t dominator; // NONE or a standing
    size_t selected;  // the standing of role select that decides, or NONE
    measure_mean difference; // from the dominator
    bool is_paired;
} standing;

typedef struct place { // a row by its model
    const char *sha256, *model;
    size_t source, row, standing;
    bool used; // a row of speed: another row takes its numbers
} place;

struct judge {
    source *source;
    size_t n_source, n_expected;
    standing *all;
    size_t n, cap;
    measure_book *book;
    /* made by judge_all */
    bool is_judged;
    place *speed, *speaker; // rows of speed alone, standings; sorted by model
    size_t n_speed, cap_speed, n_speaker, cap_speaker;
};

judge *judge_new(size_t n, dw_err *err) {
    judge *j = dw_alloc(1, sizeof *j, "rows", err);
    if (!j) return NULL;
    j->n_source = j->n_expected = n;
    j->source = dw_alloc(n, sizeof *j->source, "rows", err);
    j->book = j->source ? measure_book_new(err) : NULL;
    if (j->book) return j;
    free(j->source);
    free(j);
    return NULL;
}

void judge_expect(judge *j, size_t n_rows) { j->n_expected = n_rows; }

static void drop_rows(source *s) {
    tsv_release(&s->rows);
    free(s->column);
    free(s->speaker);
    s->column = NULL;
    s->speaker = NULL;
}

void judge_free(judge *j) {
    if (!j) return;
    for (size_t i = 0; i < j->n_source; i++) {
        drop_rows(&j->source[i]);
        free(j->source[i].variant);
        free(j->source[i].model);
        free(j->source[i].reason);
    }
    for (size_t i = 0; i < j->n; i++) free(j->all[i].frame);
    measure_book_free(j->book);
    free(j->speed);
    free(j->speaker);
    free(j->source);
    free(j->all);
    free(j);
}

/* ---- cells ------------------------------------------------------------------------------------------------------ */

static int place_of(const char *column) {
    int i = 0;
    while (exp_columns[i].name && strcmp(exp_columns[i].name, column)) i++;
    return i;
}

static const char *cell_at(const source *s, size_t row, int column) {
    const int i = s->column ? s->column[column] : -1;
    const char *text = i < 0 ? NULL : s->rows.cell[row * s->rows.n_columns + (size_t)i];
    return text && *text ? text : "-";
}

static const char *cell(const source *s, size_t row, const char *column) { return cell_at(s, row, place_of(column)); }

static const char *role_of(const source *s, size_t row) { return cell(s, row, "role"); }

static double number(const source *s, size_t row, const char *column) {
    const char *text = cell(s, row, column);
    char *end;
    const double x = strtod(text, &end);
    return end > text && !*end ? x : NAN;
}

static int find_columns(source *s, dw_err *err) {
    s->column = dw_alloc(exp_n_columns(), sizeof *s->column, "columns", err);
    for (size_t k = 0; s->column && k < exp_n_columns(); k++) {
        s->column[k] = -1;
        for (size_t i = 0; i < s->rows.n_columns; i++)
            if (!strcmp(s->rows.column[i], exp_columns[k].name)) s->column[k] = (int)i;
    }
    return s->column ? 0 : -1;
}

/* The length of a word as opt_quoted writes it. */
static size_t word_length(const char *word) {
    size_t n = 0;
    for (bool quoted = false; word[n] && (quoted || word[n] != ' '); n++) {
        if (word[n] == '\'')
            quoted = !quoted;
        else if (word[n] == '\\' && !quoted && word[n + 1])
            n++;
    }
    return n;
}

/* The value of a variable in "NAME=VALUE .."; "-": it has none. */
static const char *value_in(const char *variant, const char *name, char *value, size_t size) {
    const size_t len = strlen(name);
    for (const char *at = variant; *at; at += *at == ' ') {
        const size_t n = word_length(at);
        if (n > len + 1 && !strncmp(at, name, len) && at[len] == '=') {
            snprintf(value, size, "%.*s", (int)(n - len - 1), at + len + 1);
            return value;
        }
        at += n;
    }
    return "-";
}

/* What a variable says of a column that a row does not know, if the column tells what was done to the model.  A variable
 * that is called as a measure or a condition, `depth` or `texts`, is an input of some step, and nothing was measured. */
static const char *treatment_in(const char *variant, const char *column, char *value, size_t size) {
    return exp_heading_of(column).role == EXP_TREATMENT ? value_in(variant, column, value, size) : "-";
}

static bool is_speed_alone(const source *s, size_t row) { return !is_known(cell(s, row, "text")); }

/* Speed at a further depth, or of several sequences together, has no other row to go into. */
static bool fills_others(const source *s, size_t row) {
    return is_speed_alone(s, row) && !(number(s, row, "depth") > 0) && !(number(s, row, "sequences") > 1);
}

static bool has_speed(const source *s, size_t row) {
    return is_known(cell(s, row, "prefill_tok_s")) || is_known(cell(s, row, "decode_tok_s"));
}

static bool lacks_cost(const source *s, size_t row) {
    return !is_speed_alone(s, row) && (!has_speed(s, row) || !is_known(cell(s, row, "bytes_per_token")));
}

/* ---- adding ----------------------------------------------------------------------------------------------------- */

/* The type that was asked for, else that of most matrices. */
static int add_type(char **frame, const source *s, size_t row, dw_err *err) {
    char value[64];
    const char *type = cell(s, row, "type"), *types = cell(s, row, "types");
    if (!is_known(type)) type = value_in(s->variant, "type", value, sizeof value);
    if (is_known(type)) return dw_append(frame, err, "\t%.*s", (int)strcspn(type, ","), type); // "Q3_K_S, output Q4_K"
    return dw_append(frame, err, "\t%.*s", (int)strcspn(types, " "), types);
}

static char *frame_of(const source *s, size_t row, dw_err *err) {
    static const char *const columns[] = {"text",    "text_sha256",   "window_range", "protocol", "n_ctx", "bos",
                                          "windows", "tokens_scored", "base_sha256",  "base",     "kv",    "precision"};
    char *frame = NULL;
    int rc = 0;
    for (size_t i = 0; i < sizeof columns / sizeof *columns && !rc; i++)
        rc = dw_append(&frame, err, "\t%s", cell(s, row, columns[i]));
    if (!rc) rc = dw_append(&frame, err, "\t%s", role_of(s, row));
    if (!rc) rc = add_type(&frame, s, row, err);
    if (!rc) return frame;
    free(frame);
    return NULL;
}

typedef struct source_row {
    const source *s;
    size_t row;
} source_row;

static const char *cell_of_row(const void *of, const char *column) {
    const source_row *r = of;
    return cell(r->s, r->row, column);
}

static int find_sums(judge *j, standing *new, dw_err *err) {
    const source_row row = {&j->source[new->source], new->row};
    const int found = exp_sums_find(j->book, cell_of_row, &row, &new->sums, err);
    if (found < 0) return -1;
    new->has_sums = found;
    const double df = found ? measure_view_ratio(&new->sums).df : NAN;
    if (!isnan(df)) new->ratio.df = df;
    return 0;
}

/* Random neurons, neurons that a gate's control opens for every token, or what the grid calls a control. */
static bool is_control(const source *s, size_t row) {
    char metric[64];
    const char *rule = cell(s, row, "rule");
    return s->is_control || !strcmp(cell(s, row, "metric"), "random") ||
           !strcmp(value_in(s->variant, "metric", metric, sizeof metric), "random") || !strcmp(rule, "static") ||
           !strcmp(rule, "random");
}

static int add_standing(judge *j, size_t i, size_t row, dw_err *err) {
    const source *s = &j->source[i];
    if (dw_grow(&j->all, &j->cap, j->n + 1, sizeof *j->all, "rows", err)) return -1;
    standing *new = &j->all[j->n];
    const double texts = number(s, row, "texts");
    *new = (standing){.source = i, .row = row, .dominator = NONE, .is_control = is_control(s, row)};
    new->is_report = !strcmp(role_of(s, row), "report");
    new->bytes = number(s, row, "file_bytes");
    new->bytes_per_token = number(s, row, "bytes_per_token");
    new->ratio = (measure_mean){number(s, row, "ln_ratio"), number(s, row, "ln_ratio_se"),
                                number(s, row, "windows") - (isnan(texts) ? 1 : texts)};
    new->frame = frame_of(s, row, err);
    if (!new->frame) return -1;
    j->n++;
    return find_sums(j, new, err);
}

typedef struct row_key { // rows of one source, sorted by their model and role
    const char *sha256, *model, *role;
    size_t row;
    bool is_mean;
} row_key;

static int by_model_and_role(const row_key *a, const row_key *b) {
    int c = strcmp(a->sha256, b->sha256);
    if (!c) c = strcmp(a->model, b->model);
    return c ? c : strcmp(a->role, b->role);
}

static int by_row(const void *pa, const void *pb) {
    const row_key *a = pa, *b = pb;
    const int c = by_model_and_role(a, b);
    return c ? c : (a->row > b->row) - (a->row < b->row);
}

/* Which rows speak: each row of several texts, or the first of a model that has none. */
static void mark_speakers(const row_key *key, size_t n, bool *speaks) {
    for (size_t from = 0, to; from < n; from = to) {
        bool any_mean = false;
        for (to = from; to < n && !by_model_and_role(&key[from], &key[to]); to++) any_mean |= key[to].is_mean;
        for (size_t k = from; k < to; k++) speaks[key[k].row] = any_mean ? key[k].is_mean : k == from;
    }
}

/* The standing of every row: its own, else the first of its model and role. */
static void set_speakers(source *s, const row_key *key, size_t n) {
    for (size_t from = 0, to; from < n; from = to) {
        size_t first = NONE;
        for (to = from; to < n && !by_model_and_role(&key[from], &key[to]); to++)
            if (first == NONE) first = s->speaker[key[to].row];
        for (size_t k = from; k < to; k++)
            if (s->speaker[key[k].row] == NONE) s->speaker[key[k].row] = first;
    }
}

static int add_standings(judge *j, size_t i, row_key *key, bool *speaks, dw_err *err) {
    source *s = &j->source[i];
    size_t n = 0;
    for (size_t row = 0; row < s->rows.n_rows; row++) {
        s->speaker[row] = NONE;
        if (is_speed_alone(s, row)) continue;
        key[n++] = (row_key){cell(s, row, "model_sha256"), cell(s, row, "model"), role_of(s, row), row,
                             !strcmp(cell(s, row, "text"), "*")};
    }
    if (n) qsort(key, n, sizeof *key, by_row);
    mark_speakers(key, n, speaks);
    for (size_t row = 0; row < s->rows.n_rows; row++) {
        if (!speaks[row]) continue;
        s->speaker[row] = j->n;
        if (add_standing(j, i, row, err)) return -1;
    }
    set_speakers(s, key, n);
    return 0;
}

static int read_sums(judge *j, const char *path, dw_err *err) {
    char *of = measure_book_path(path, err);
    const int rc = of && (!dw_file_exists(of) || !measure_book_read(j->book, of, err)) ? 0 : -1;
    free(of);
    return rc;
}

int judge_add(judge *j, size_t i, const char *path, const char *variant, bool is_control, dw_err *err) {
    source *s = &j->source[i];
    s->is_control = is_control;
    s->first = j->n;
    s->variant = dw_strdup(variant, err);
    j->is_judged = false;
    if (!s->variant || tsv_read(&s->rows, path, err) || find_columns(s, err) || read_sums(j, path, err)) return -1;
    if (!s->rows.n_rows) return dw_fail(err, "'%s' has no row", path);
    row_key *key = dw_alloc(s->rows.n_rows, sizeof *key, "rows", err);
    bool *speaks = dw_alloc(s->rows.n_rows, sizeof *speaks, "rows", err);
    s->speaker = dw_alloc(s->rows.n_rows, sizeof *s->speaker, "rows", err);
    const int rc = key && speaks && s->speaker ? add_standings(j, i, key, speaks, err) : -1;
    free(key);
    free(speaks);
    s->n = j->n - s->first;
    return rc;
}

int judge_fail(judge *j, size_t i, const char *model, const char *variant, const char *reason, dw_err *err) {
    source *s = &j->source[i];
    drop_rows(s);
    free(s->variant);
    s->variant = dw_strdup(variant, err);
    s->model = dw_strdup(model, err);
    s->reason = dw_strdup(reason, err);
    if (!s->variant || !s->model || !s->reason) return -1;
    for (char *c = s->reason; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
    return 0;
}

/* ---- rows by model ---------------------------------------------------------------------------------------------- */

static int by_model(const void *pa, const void *pb) {
    const place *a = pa, *b = pb;
    const int c = strcmp(a->sha256, b->sha256);
    return c ? c : strcmp(a->model, b->model);
}

static int by_place(const void *pa, const void *pb) {
    const place *a = pa, *b = pb;
    const int c = by_model(a, b);
    if (c) return c;
    return a->source != b->source ? (a->source > b->source) - (a->source < b->source)
                                  : (a->row > b->row) - (a->row < b->row);
}

static place place_at(const judge *j, size_t i, size_t row) {
    const source *s = &j->source[i];
    return (place){cell(s, row, "model_sha256"), cell(s, row, "model"), i, row, NONE, false};
}

/* The first place of the model of a row; *n: how many there are.  A row without hash has none. */
static place *places_of(place *all, size_t n_all, const place *wanted, size_t *n) {
    size_t low = 0, high = n_all;
    *n = 0;
    if (!is_known(wanted->sha256)) return NULL;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (by_model(&all[middle], wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    while (low + *n < n_all && !by_model(&all[low + *n], wanted)) ++*n;
    return *n ? &all[low] : NULL;
}

static bool agree(const char *a, const char *b) { return !is_known(a) || !is_known(b) || !strcmp(a, b); }

/* Whether a row of speed tells the cost of a row of the same model.  It does not with another cache, other kernels or
 * planted gates; score --inject writes their share into `activity`. */
static bool tells_cost_of(const source *speed, size_t row, const source *s, size_t of) {
    return agree(cell(speed, row, "kv"), cell(s, of, "kv")) &&
           agree(cell(speed, row, "select"), cell(s, of, "select")) &&
           !strcmp(cell(speed, row, "activity"), cell(s, of, "activity"));
}

/* The row that holds the speed of a row; NULL: none does, or the row has its own. */
static place *find_speed(const judge *j, size_t i, size_t row) {
    size_t n = 0;
    const source *s = &j->source[i];
    const place wanted = place_at(j, i, row);
    place *at = lacks_cost(s, row) ? places_of(j->speed, j->n_speed, &wanted, &n) : NULL;
    for (size_t k = 0; k < n; k++)
        if (tells_cost_of(&j->source[at[k].source], at[k].row, s, row)) return &at[k];
    return NULL;
}

static void mark_used(judge *j) {
    for (size_t i = 0; i < j->n_source; i++)
        for (size_t row = 0; row < j->source[i].rows.n_rows; row++) {
            place *speed = find_speed(j, i, row);
            if (speed) speed->used = true;
        }
}

static int index_rows(judge *j, dw_err *err) {
    j->n_speed = j->n_speaker = 0;
    for (size_t i = 0; i < j->n_source; i++)
        for (size_t row = 0; row < j->source[i].rows.n_rows; row++) {
            if (!fills_others(&j->source[i], row)) continue;
            if (dw_grow(&j->speed, &j->cap_speed, j->n_speed + 1, sizeof *j->speed, "rows", err)) return -1;
            j->speed[j->n_speed++] = place_at(j, i, row);
        }
    if (dw_grow(&j->speaker, &j->cap_speaker, j->n + 1, sizeof *j->speaker, "rows", err)) return -1;
    for (size_t k = 0; k < j->n; k++) {
        j->speaker[k] = place_at(j, j->all[k].source, j->all[k].row);
        j->speaker[k].standing = k;
    }
    j->n_speaker = j->n;
    if (j->n_speed) qsort(j->speed, j->n_speed, sizeof *j->speed, by_place);
    if (j->n) qsort(j->speaker, j->n, sizeof *j->speaker, by_place);
    mark_used(j);
    return 0;
}

/* ---- dominance -------------------------------------------------------------------------------------------------- */

static bool knows_size(const standing *s) { return !isnan(s->bytes) && !isnan(s->bytes_per_token); }

static bool is_comparable(const standing *s) { return knows_size(s) && !isnan(s->ratio.mean); }

static measure_mean difference_of(const standing *worse, const standing *better, bool *is_paired) {
    measure_mean d = {NAN, NAN, NAN};
    if (worse->has_sums && better->has_sums) d = measure_view_compare(&worse->sums, &better->sums, MEASURE_NLL);
    *is_paired = !isnan(d.mean);
    if (*is_paired) return d;
    const measure_mean *a = &worse->ratio, *b = &better->ratio;
    return (measure_mean){a->mean - b->mean, sqrt(a->se * a->se + b->se * b->se), a->df < b->df ? a->df : b->df};
}

/* Whether `better`, which is no larger, has a smaller ln_ratio beyond the error; p: significance of one comparison. */
static bool dominates(const standing *better, standing *worse, double p) {
    bool is_paired;
    const measure_mean d = difference_of(worse, better, &is_paired);
    if (!(d.mean > least_t * d.se) || !(d.mean > 0)) return false; // quick, and NaN ends here
    if (d.se > 0 && !(measure_t_tail(d.mean / d.se, d.df) < p)) return false;
    worse->difference = d;
    worse->is_paired = is_paired;
    return true;
}

/* Of one frame, ascending by ln_ratio: each is tried against those before it that are no larger. */
static void judge_frame(const judge *j, standing *const *order, size_t n, double p) {
    for (size_t k = 1; k < n; k++) {
        standing *s = order[k];
        int n_tried = 0;
        for (size_t b = 0; b < k && n_tried < JUDGE_TRIED && s->dominator == NONE; b++) {
            const standing *better = order[b];
            if (better->bytes > s->bytes || better->bytes_per_token > s->bytes_per_token) continue;
            n_tried++;
            if (dominates(better, s, p)) s->dominator = (size_t)(better - j->all);
        }
    }
}

static int by_quality(const void *pa, const void *pb) {
    const standing *a = *(standing *const *)pa, *b = *(standing *const *)pb;
    const int c = strcmp(a->frame, b->frame);
    if (c) return c;
    if (a->ratio.mean != b->ratio.mean) return a->ratio.mean < b->ratio.mean ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
    return a->source != b->source ? (a->source > b->source) - (a->source < b->source)
                                  : (a->row > b->row) - (a->row < b->row);
}

/* The standing of role select of the same model, where `s` is of role report. */
static size_t find_selected(const judge *j, const standing *s) {
    size_t n = 0;
    const place wanted = place_at(j, s->source, s->row);
    const place *at = NULL;
    if (s->is_report) at = places_of(j->speaker, j->n_speaker, &wanted, &n);
    for (size_t k = 0; k < n; k++) {
        const standing *other = &j->all[at[k].standing];
        if (!strcmp(role_of(&j->source[other->source], other->row), "select")) return at[k].standing;
    }
    return NONE;
}

static int judge_all(judge *j, dw_err *err) {
    if (j->is_judged) return 0;
    standing **order = dw_alloc(j->n + 1, sizeof *order, "rows", err);
    size_t n = 0;
    if (!order || index_rows(j, err)) {
        free(order);
        return -1;
    }
    for (size_t k = 0; k < j->n; k++) {
        standing *s = &j->all[k];
        const place *speed = isnan(s->bytes_per_token) ? find_speed(j, s->source, s->row) : NULL;
        if (speed) s->bytes_per_token = number(&j->source[speed->source], speed->row, "bytes_per_token");
        s->dominator = NONE;
        s->selected = find_selected(j, s);
        if (is_comparable(s)) order[n++] = s;
    }
    if (n) qsort(order, n, sizeof *order, by_quality);
    const double of = (double)(j->n > j->n_expected ? j->n : j->n_expected),
                 p = of > 1 ? significance / of / (of - 1) : 0;
    for (size_t from = 0, to; from < n; from = to) {
        for (to = from + 1; to < n && !strcmp(order[from]->frame, order[to]->frame);) to++;
        judge_frame(j, order + from, to - from, p);
    }
    free(order);
    j->is_judged = true;
    return 0;
}

/* ---- verdicts --------------------------------------------------------------------------------------------------- */

/* Where the error is unknown the value decides. */
static bool is_collapsed(const standing *s) {
    const double error = measure_half_width(&s->ratio, 0.9);
    return s->ratio.mean - (isnan(error) ? 0 : error) > log(collapse);
}

static const standing *decider(const judge *j, const standing *s) {
    return s->selected != NONE ? &j->all[s->selected] : s;
}

static const char *verdict_of(const judge *j, const standing *row) {
    const standing *s = decider(j, row);
    if (s->is_control || row->is_control) return "control";
    if (is_collapsed(s)) return "collapsed";
    if (s->dominator != NONE) return "discard";
    return is_comparable(s) ? "keep" : "-";
}

static const char *model_of(const judge *j, const standing *s) { return cell(&j->source[s->source], s->row, "model"); }

/* Why a row has its verdict, after what its note says; NULL: there is nothing to say. */
static char *reason_of(const judge *j, const standing *row, const char *verdict, dw_err *err) {
    const standing *s = decider(j, row);
    const char *by = s == row ? "" : ", on the texts of role select";
    const double error = s->ratio.se, apart = s->difference.se;
    if (!strcmp(verdict, "collapsed"))
        return isnan(error) ? dw_format(err, "ln ratio %.3g, above ln 10%s", s->ratio.mean, by)
                            : dw_format(err, "ln ratio %.3g ± %.2g, above ln 10%s", s->ratio.mean, error, by);
    if (!strcmp(verdict, "discard"))
        return dw_format(err, "ln ratio larger by %.3g ± %.2g, %s%s", s->difference.mean, apart,
                         s->is_paired ? "paired" : "not paired: window sums are missing", by);
    if (strcmp(verdict, "-")) return dw_strdup("", err);
    return dw_strdup(isnan(s->ratio.mean) ? "not judged: it has no ln ratio, which score --base gives"
                     : isnan(s->bytes)    ? "not judged: its size is unknown"
                                       : "not judged: bytes a token were not counted; score it without --no-speed, or "
                                         "add a step 'alone score -m MODEL --speed-only'",
                     err);
}

/* A row holds no more of a long name than its field takes. */
static bool is_file_of(const judge *j, const standing *s, const char *file) {
    return !strncmp(model_of(j, s), file, sizeof(exp_result){0}.model - 1);
}

bool judge_keeps(judge *j, size_t i, const char *file) {
    const source *s = &j->source[i];
    bool has_rows = false, keeps = false, keeps_any = false;
    if (judge_all(j, NULL)) return true;
    for (const standing *st = j->all + s->first; st < j->all + s->first + s->n; st++) {
        const char *verdict = verdict_of(j, st);
        const bool own = is_file_of(j, st, file), kept = !strcmp(verdict, "keep") || !strcmp(verdict, "-");
        has_rows |= own;
        keeps |= own && kept;
        keeps_any |= kept;
    }
    return has_rows ? keeps : keeps_any;
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static int write_cell(dw_out *out, const char *text, char end, dw_err *err) {
    return dw_out_printf(out, err, "%s%c", *text ? text : "-", end);
}

/* `variant` and what judges stand at the end. */
static int write_verdict(dw_out *out, const char *variant, const char *dominator, const char *verdict, const char *note,
                         dw_err *err) {
    if (write_cell(out, variant, '\t', err) || write_cell(out, dominator, '\t', err) ||
        write_cell(out, verdict, '\t', err) || write_cell(out, note, '\n', err))
        return -1;
    return 0;
}

static bool is_of_verdict(const char *column) {
    return !strcmp(column, "dominated_by") || !strcmp(column, "verdict") || !strcmp(column, "note");
}

static int write_failed(const source *s, dw_out *out, dw_err *err) {
    char value[64];
    for (const exp_column *c = exp_columns; c->name; c++) {
        const char *text = !strcmp(c->name, "model") ? s->model
                                                     : treatment_in(s->variant, c->name, value, sizeof value);
        if (!is_of_verdict(c->name) && write_cell(out, text, '\t', err)) return -1;
    }
    return write_verdict(out, s->variant, "-", "failed", s->reason, err);
}

/* Only the row that speaks for the model has the reason. */
static int write_judged(const judge *j, size_t i, size_t row, dw_out *out, dw_err *err) {
    const source *s = &j->source[i];
    const size_t k = s->speaker[row];
    const char *note = cell(s, row, "note");
    if (k == NONE) return write_verdict(out, s->variant, "-", "-", note, err);
    const standing *st = &j->all[k], *by = decider(j, st);
    const char *verdict = verdict_of(j, st);
    char *reason = st->row == row ? reason_of(j, st, verdict, err) : dw_strdup("", err),
         *both = reason && *reason && is_known(note) ? dw_format(err, "%s; %s", note, reason) : NULL;
    const char *dominator = by->dominator != NONE ? model_of(j, &j->all[by->dominator]) : "-";
    int rc = reason ? 0 : -1;
    if (!rc && *reason) note = both ? both : reason;
    if (!rc) rc = write_verdict(out, s->variant, dominator, verdict, note, err);
    free(reason);
    free(both);
    return rc;
}

static int write_row(const judge *j, size_t i, size_t row, dw_out *out, dw_err *err) {
    const source *s = &j->source[i];
    const place *speed = find_speed(j, i, row);
    const bool has_own = has_speed(s, row);
    char value[64];
    for (int c = 0; exp_columns[c].name; c++) {
        const char *name = exp_columns[c].name, *text = cell_at(s, row, c);
        if (is_of_verdict(name)) continue;
        if (speed && (!is_known(text) || (!has_own && !strcmp(name, "threads"))))
            text = cell_at(&j->source[speed->source], speed->row, c);
        if (!is_known(text)) text = treatment_in(s->variant, name, value, sizeof value);
        if (write_cell(out, text, '\t', err)) return -1;
    }
    return write_judged(j, i, row, out, err);
}

/* Whether another row has taken the numbers of a row of speed. */
static bool goes_elsewhere(const judge *j, size_t i, size_t row) {
    size_t n;
    const place wanted = place_at(j, i, row), *at = places_of(j->speed, j->n_speed, &wanted, &n);
    for (size_t k = 0; k < n; k++)
        if (at[k].source == i && at[k].row == row) return at[k].used;
    return false;
}

static int write_source(const judge *j, size_t i, dw_out *out, dw_err *err) {
    const source *s = &j->source[i];
    if (s->reason) return write_failed(s, out, err);
    for (size_t row = 0; row < s->rows.n_rows; row++)
        if (!goes_elsewhere(j, i, row) && write_row(j, i, row, out, err)) return -1;
    return 0;
}

static int write_table(const judge *j, dw_out *out, const char *comment, dw_err *err) {
    if (dw_out_printf(out, err, "%s\n%s\n", exp_rows_comment, comment)) return -1;
    for (const exp_column *c = exp_columns; c->name; c++)
        if (!is_of_verdict(c->name) && write_cell(out, c->name, '\t', err)) return -1;
    if (write_verdict(out, "variant", "dominated_by", "verdict", "note", err)) return -1;
    for (size_t i = 0; i < j->n_source; i++)
        if (write_source(j, i, out, err)) return -1;
    return dw_out_commit(out, err);
}

static int write_sums(const judge *j, const char *path, dw_err *err) {
    if (!measure_book_count(j->book)) return 0;
    char *of = measure_book_path(path, err);
    const int rc = of ? measure_book_write(j->book, of, err) : -1;
    free(of);
    return rc;
}

static judge_counts count(const judge *j) {
    judge_counts n = {0};
    for (size_t i = 0; i < j->n_source; i++) n.failed += j->source[i].reason != NULL;
    for (size_t i = 0; i < j->n; i++) {
        const char *v = verdict_of(j, &j->all[i]);
        if (j->all[i].selected != NONE) continue; // the model is counted by its row of role select
        ++*(!strcmp(v, "keep")        ? &n.keep
            : !strcmp(v, "discard")   ? &n.discard
            : !strcmp(v, "control")   ? &n.control
            : !strcmp(v, "collapsed") ? &n.collapsed
                                      : &n.other);
    }
    return n;
}

int judge_write(judge *j, const char *path, const char *comment, judge_counts *counts, dw_err *err) {
    *counts = (judge_counts){0};
    if (judge_all(j, err) || write_sums(j, path, err)) return -1;
    dw_out *out = dw_out_open_kept(path, err);
    const int rc = out ? write_table(j, out, comment, err) : -1;
    dw_out_free(out);
    *counts = count(j);
    return rc;
}
