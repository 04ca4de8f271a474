/* judge.c - gathers rows, compares them, writes one table (judge.h says by which rules). */
#include "experiments/sweep/judge.h"
#include "experiments/measures.h"
#include "kit/tsv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double collapse = 10;           // times the base's perplexity
static const double repeats_enough = 0.8;    // share of the prompts whose continuations only repeat, ...
static const double base_repeats_most = 0.5; // ... where the base, which may be small, has at most this share

typedef struct source {
    tsv_table rows;                 // n_columns 0: none yet, or failed
    char *variant, *model, *reason; // reason: it failed
    const char *role;               // NULL: none
    bool is_control;
    size_t first, n; // its standings
} source;

typedef struct standing { // a model of a source, as its row of all texts has it
    size_t source, row;
    char *frame; // what must agree before two are compared; NULL: cannot be compared
    double bytes, bytes_per_token, ln_ratio, se, ppl, base_ppl, repeats, base_repeats;
    bool is_control;
    size_t dominator; // NONE or a standing
} standing;

struct judge {
    source *source;
    size_t n_source;
    standing *all;
    size_t n, cap;
};

static const size_t NONE = SIZE_MAX;

judge *judge_new(size_t n, dw_err *err) {
    judge *j = dw_alloc(1, sizeof *j, "rows", err);
    if (!j) return NULL;
    j->n_source = n;
    j->source = dw_alloc(n, sizeof *j->source, "rows", err);
    if (j->source) return j;
    free(j);
    return NULL;
}

void judge_free(judge *j) {
    if (!j) return;
    for (size_t i = 0; i < j->n_source; i++) {
        tsv_release(&j->source[i].rows);
        free(j->source[i].variant);
        free(j->source[i].model);
        free(j->source[i].reason);
    }
    for (size_t i = 0; i < j->n; i++) free(j->all[i].frame);
    free(j->source);
    free(j->all);
    free(j);
}

/* ---- cells -------------------------------------------------------------------------------------------------------- */

static const char *cell(const source *s, size_t row, const char *column) {
    const char *text = s->rows.n_columns ? tsv_cell(&s->rows, row, column) : NULL;
    return text && *text ? text : "-";
}

static bool is_known(const char *text) { return strcmp(text, "-") != 0; }

static double number(const source *s, size_t row, const char *column) {
    const char *text = cell(s, row, column);
    char *end;
    const double x = strtod(text, &end);
    return end > text && !*end ? x : NAN;
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

static bool is_speed_alone(const source *s, size_t row) { return !is_known(cell(s, row, "text")); }

static bool same_model(const source *a, size_t row, const source *b, size_t other) {
    const char *hash = cell(a, row, "model_sha256");
    return is_known(hash) && !strcmp(hash, cell(b, other, "model_sha256")) &&
           !strcmp(cell(a, row, "model"), cell(b, other, "model"));
}

/* ---- dominance ------------------------------------------------------------------------------------------------------ */

static bool is_within(const standing *a, const standing *b) {
    return a->bytes <= b->bytes && a->bytes_per_token <= b->bytes_per_token && a->ln_ratio <= b->ln_ratio;
}

static bool is_dominated(const standing *b, const standing *a) {
    if (!a->frame || !b->frame || strcmp(a->frame, b->frame) || !is_within(a, b)) return false;
    const double noise = 2 * sqrt(a->se * a->se + b->se * b->se);
    return a->bytes < b->bytes || a->bytes_per_token < b->bytes_per_token || b->ln_ratio - a->ln_ratio > noise;
}

/* The one to be named of two that dominate: the better one, whatever came first. */
static bool is_better(const standing *a, const standing *b) {
    if (a->ln_ratio != b->ln_ratio) return a->ln_ratio < b->ln_ratio;
    if (a->bytes != b->bytes) return a->bytes < b->bytes;
    return a->source != b->source ? a->source < b->source : a->row < b->row;
}

static void compare(judge *j, size_t b, size_t a) {
    standing *loser = &j->all[b];
    if (!is_dominated(loser, &j->all[a])) return;
    if (loser->dominator == NONE || is_better(&j->all[a], &j->all[loser->dominator])) loser->dominator = a;
}

/* Unknown numbers (NaN) say nothing. */
static bool is_collapsed(const standing *s) {
    return s->ppl > collapse * s->base_ppl || (s->repeats >= repeats_enough && s->base_repeats <= base_repeats_most);
}

static const char *verdict_of(const standing *s) {
    if (s->is_control) return "control";
    if (is_collapsed(s)) return "collapsed";
    if (s->dominator != NONE) return "discard";
    return s->frame ? "keep" : "-";
}

/* ---- adding --------------------------------------------------------------------------------------------------------- */

static char *frame_of(const source *s, size_t row, dw_err *err) {
    static const char *const columns[] = {"text_sha256", "protocol", "n_ctx", "windows", "tokens_scored", "base", "kv"};
    char *frame = dw_strdup(cell(s, row, "text"), err);
    for (size_t i = 0; i < sizeof columns / sizeof *columns && frame; i++) {
        char *longer = dw_format(err, "%s\t%s", frame, cell(s, row, columns[i]));
        free(frame);
        frame = longer;
    }
    return frame;
}

static int add_standing(judge *j, size_t i, size_t row, dw_err *err) {
    const source *s = &j->source[i];
    if (dw_grow(&j->all, &j->cap, j->n + 1, sizeof *j->all, "rows", err)) return -1;
    standing *new = &j->all[j->n];
    char metric[64];
    const bool is_random = !strcmp(cell(s, row, "metric"), "random") ||
                           !strcmp(value_in(s->variant, "metric", metric, sizeof metric), "random");
    *new = (standing){.source = i, .row = row, .dominator = NONE, .is_control = s->is_control || is_random};
    new->bytes = number(s, row, "file_bytes");
    new->bytes_per_token = number(s, row, "bytes_per_token");
    new->ln_ratio = number(s, row, "ln_ratio");
    new->se = number(s, row, "ln_ratio_se");
    if (isnan(new->se)) new->se = INFINITY; // one window has none: nothing can be told from noise
    new->ppl = number(s, row, "ppl");
    new->base_ppl = number(s, row, "base_ppl");
    new->repeats = number(s, row, "repeats");
    new->base_repeats = number(s, row, "base_repeats");
    if (!isnan(new->ln_ratio) && !(new->frame = frame_of(s, row, err))) return -1;
    j->n++;
    for (size_t k = 0; k + 1 < j->n; k++) {
        compare(j, k, j->n - 1);
        compare(j, j->n - 1, k);
    }
    return 0;
}

/* The row that speaks for its model: that of all texts, which comes last, or the first where there is none. */
static bool speaks(const source *s, size_t row) {
    if (is_speed_alone(s, row)) return false;
    if (!strcmp(cell(s, row, "text"), "*")) return true;
    for (size_t k = 0; k < s->rows.n_rows; k++)
        if (same_model(s, row, s, k) && (k < row || !strcmp(cell(s, k, "text"), "*"))) return false;
    return true;
}

void judge_set_role(judge *j, size_t i, const char *role) { j->source[i].role = role; }

int judge_add(judge *j, size_t i, const char *path, const char *variant, bool is_control, dw_err *err) {
    source *s = &j->source[i];
    s->is_control = is_control;
    s->first = j->n;
    s->variant = dw_strdup(variant, err);
    if (!s->variant || tsv_read(&s->rows, path, err)) return -1;
    if (!s->rows.n_rows) return dw_fail(err, "'%s' has no row", path);
    for (size_t row = 0; row < s->rows.n_rows; row++)
        if (speaks(s, row) && add_standing(j, i, row, err)) return -1;
    s->n = j->n - s->first;
    return 0;
}

int judge_fail(judge *j, size_t i, const char *model, const char *variant, const char *reason, dw_err *err) {
    source *s = &j->source[i];
    tsv_release(&s->rows);
    free(s->variant);
    s->variant = dw_strdup(variant, err);
    s->model = dw_strdup(model, err);
    s->reason = dw_strdup(reason, err);
    if (!s->variant || !s->model || !s->reason) return -1;
    for (char *c = s->reason; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
    return 0;
}

bool judge_keeps(const judge *j, size_t i) {
    const source *s = &j->source[i];
    for (const standing *st = j->all + s->first; st < j->all + s->first + s->n; st++)
        if (!strcmp(verdict_of(st), "keep") || !st->frame) return true;
    return false;
}

/* ---- writing ---------------------------------------------------------------------------------------------------------- */

static const standing *standing_of(const judge *j, size_t i, size_t row) {
    const source *s = &j->source[i];
    for (const standing *st = j->all + s->first; st < j->all + s->first + s->n; st++)
        if (same_model(s, row, s, st->row)) return st;
    return NULL;
}

/* The row that holds the speed of a model, and its source; false: none. */
static bool find_speed(const judge *j, size_t i, size_t row, size_t *source_found, size_t *row_found) {
    for (size_t k = 0; k < j->n_source; k++)
        for (size_t r = 0; r < j->source[k].rows.n_rows; r++)
            if (is_speed_alone(&j->source[k], r) && same_model(&j->source[i], row, &j->source[k], r)) {
                *source_found = k;
                *row_found = r;
                return true;
            }
    return false;
}

/* Whether a row of speed has others to go into. */
static bool goes_elsewhere(const judge *j, size_t i, size_t row) {
    for (size_t k = 0; k < j->n; k++)
        if (same_model(&j->source[i], row, &j->source[j->all[k].source], j->all[k].row)) return true;
    return false;
}

static int write_cell(dw_out *out, const char *text, char end, dw_err *err) {
    return dw_out_printf(out, err, "%s%c", *text ? text : "-", end);
}

/* `variant`, `role` and what judges stand at the end. */
static int write_verdict(dw_out *out, const char *variant, const char *role, const char *dominator, const char *verdict, const char *note,
                         dw_err *err) {
    return write_cell(out, variant, '\t', err) || write_cell(out, role ? role : "-", '\t', err) || write_cell(out, dominator, '\t', err) ||
                   write_cell(out, verdict, '\t', err) || write_cell(out, note, '\n', err)
               ? -1
               : 0;
}

static bool is_of_verdict(const char *column) {
    return !strcmp(column, "dominated_by") || !strcmp(column, "verdict") || !strcmp(column, "note");
}

static int write_failed(const source *s, dw_out *out, dw_err *err) {
    char value[64];
    for (const exp_column *c = exp_columns; c->name; c++) {
        const char *text = !strcmp(c->name, "model") ? s->model : value_in(s->variant, c->name, value, sizeof value);
        if (!is_of_verdict(c->name) && write_cell(out, text, '\t', err)) return -1;
    }
    return write_verdict(out, s->variant, s->role, "-", "failed", s->reason, err);
}

static int write_row(const judge *j, size_t i, size_t row, dw_out *out, dw_err *err) {
    const source *s = &j->source[i];
    const standing *st = standing_of(j, i, row);
    char value[64];
    size_t k = 0, r = 0;
    const bool has_speed = !is_speed_alone(s, row) && find_speed(j, i, row, &k, &r);
    for (const exp_column *c = exp_columns; c->name; c++) {
        const char *text = cell(s, row, c->name);
        if (has_speed && (!is_known(text) || !strcmp(c->name, "threads"))) text = cell(&j->source[k], r, c->name);
        if (!is_known(text)) text = value_in(s->variant, c->name, value, sizeof value);
        if (!is_of_verdict(c->name) && write_cell(out, text, '\t', err)) return -1;
    }
    const standing *best = st && st->dominator != NONE ? &j->all[st->dominator] : NULL;
    return write_verdict(out, s->variant, s->role, best ? cell(&j->source[best->source], best->row, "model") : "-",
                         st ? verdict_of(st) : "-", cell(s, row, "note"), err);
}

static int write_source(const judge *j, size_t i, dw_out *out, dw_err *err) {
    const source *s = &j->source[i];
    if (s->reason) return write_failed(s, out, err);
    for (size_t row = 0; row < s->rows.n_rows; row++)
        if (!(is_speed_alone(s, row) && goes_elsewhere(j, i, row)) && write_row(j, i, row, out, err)) return -1;
    return 0;
}

static int write_table(const judge *j, dw_out *out, const char *comment, dw_err *err) {
    if (dw_out_printf(out, err, "%s\n%s\n", exp_rows_comment, comment)) return -1;
    for (const exp_column *c = exp_columns; c->name; c++)
        if (!is_of_verdict(c->name) && write_cell(out, c->name, '\t', err)) return -1;
    if (write_verdict(out, "variant", "role", "dominated_by", "verdict", "note", err)) return -1;
    for (size_t i = 0; i < j->n_source; i++)
        if (write_source(j, i, out, err)) return -1;
    return dw_out_commit(out, err);
}

static judge_counts count(const judge *j) {
    judge_counts n = {0};
    for (size_t i = 0; i < j->n_source; i++) n.failed += j->source[i].reason != NULL;
    for (size_t i = 0; i < j->n; i++) {
        const char *v = verdict_of(&j->all[i]);
        ++*(!strcmp(v, "keep")        ? &n.keep
            : !strcmp(v, "discard")   ? &n.discard
            : !strcmp(v, "control")   ? &n.control
            : !strcmp(v, "collapsed") ? &n.collapsed
                                      : &n.other);
    }
    return n;
}

int judge_write(const judge *j, const char *path, const char *comment, judge_counts *counts, dw_err *err) {
    dw_out *out = dw_out_open_kept(path, err);
    const int rc = out ? write_table(j, out, comment, err) : -1;
    dw_out_free(out);
    *counts = count(j);
    return rc;
}
