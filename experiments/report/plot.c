/* plot.c - a gnuplot script of lines of a table, and gnuplot as a child process. */
#include "experiments/report/plot.h"

#include "experiments/report/conditions.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { MAX_FIELDS = 8, MAX_BY = 4, LABEL = 200, MAX_PICTURE_BYTES = 1 << 28 };

static const char plain_series[] = "plain quantization";

typedef struct point {
    double x, y, low, high; // the ends of a bar or a band; NaN: none
    size_t series;
    uint64_t keys; // a hash of what was done without the seed, and of how it was measured
    const exp_line *line;
    bool is_dense, is_band;
} point;

typedef struct reach { // of the values along an axis
    double least, most;
    size_t n; // different values, at most 3 are counted
} reach;

typedef struct axis {
    exp_range range;
    reach others;    // without the dense model
    reach all;       // what is drawn
    bool has_dense;  // the dense model is drawn on it
    bool is_log;
} axis;

typedef struct plot {
    exp_field x, y[MAX_FIELDS];
    size_t n_y;
    int by[MAX_BY], n_by;
    bool joins_plain;     // plain quantizations are one series
    const exp_labels *labels; // of a sweep's lines; NULL: there are none
    point *point;         // n_points, by series, then x
    size_t n_points;
    double base_ppl;      // what rows say of their base; NaN: unknown, or not what is drawn
    char (*label)[LABEL]; // n_series
    size_t n_series;
    axis ax, ay;
} plot;

/* ---- options -------------------------------------------------------------------------------------------------- */

int exp_range_read(exp_range *r, const char *text, dw_err *err) {
    *r = (exp_range){0};
    if (!text) return 0;
    const char *colon = strchr(text, ':');
    char from[64] = "";
    if (colon && colon - text < (int)sizeof from) memcpy(from, text, (size_t)(colon - text));
    r->has_from = *from, r->has_to = colon && colon[1];
    if (r->has_from) r->from = exp_number(from);
    if (r->has_to) r->to = exp_number(colon + 1);
    if (!colon || isnan(r->from) || isnan(r->to) || (r->has_from && r->has_to && r->from >= r->to))
        return dw_fail(err, "'%s' is no range like 5:10, 5: or :10", text);
    return 0;
}

exp_picture exp_picture_of(const char *path) {
    static const char *const endings[] = {".svg", ".pdf", ".png"};
    const size_t n = strlen(path);
    for (int i = 0; i < 3; i++)
        if (n > 4 && !strcmp(path + n - 4, endings[i])) return (exp_picture)i;
    return EXP_NO_PICTURE;
}

/* ---- points --------------------------------------------------------------------------------------------------- */

static int find_axis(exp_field *f, const exp_sheet *s, const char *name, dw_err *err) {
    if (exp_field_find(f, s, name, err)) return -1;
    return f->is_number ? 0 : dw_fail(err, "column '%s' holds texts, which have no place on an axis", f->name);
}

static int find_axes(plot *p, const exp_sheet *s, const exp_axes *axes, dw_err *err) {
    if (find_axis(&p->x, s, axes->x, err)) return -1;
    for (const char *at = axes->y;; at++) {
        const size_t n = strcspn(at, ",");
        if (p->n_y == MAX_FIELDS) return dw_fail(err, "--y: more than %d columns", MAX_FIELDS);
        char *name = dw_format(err, "%.*s", (int)n, at);
        const int rc = name ? find_axis(&p->y[p->n_y++], s, name, err) : -1;
        free(name);
        if (rc) return -1;
        at += n;
        if (!*at) return 0;
    }
}

static int find_by(plot *p, const exp_rows *r, const char *by, dw_err *err) {
    for (const char *at = by; at; at += *at == ',') {
        const size_t n = strcspn(at, ",");
        if (p->n_by == MAX_BY) return dw_fail(err, "--by: more than %d columns", MAX_BY);
        char *name = dw_format(err, "%.*s", (int)n, at);
        p->by[p->n_by] = name ? exp_rows_need(r, name, err) : -1;
        free(name);
        if (p->by[p->n_by++] < 0) return -1;
        at += n;
        if (!*at) return 0;
    }
    return 0;
}

static const char *cell_of(const exp_rows *r, const exp_line *line, const char *column) {
    return exp_rows_cell(r, line->row[0], exp_rows_find(r, column));
}

/* Neurons of the model were removed, or are left out at run time. */
static bool is_pruned(const exp_rows *r, const exp_line *line) {
    return is_known(cell_of(r, line, "metric")) || is_known(cell_of(r, line, "rule")) ||
           is_known(cell_of(r, line, "rate"));
}

/* A type or mixture for the whole model.  Methods with fewer bits than their file's type say so in nominal_bits. */
static bool is_plain_quantization(const exp_rows *r, const exp_line *line) {
    return !line->is_dense && !is_pruned(r, line) && !strcmp(cell_of(r, line, "tool"), "requant") &&
           !is_known(cell_of(r, line, "tokens_trained")) && is_known(cell_of(r, line, "type")) &&
           !is_known(cell_of(r, line, "nominal_bits"));
}

/* What a line's series is called when nothing was said: what was done to the model. */
static const char *treatment_of(const plot *p, const exp_rows *r, const exp_line *line) {
    static const char *const columns[] = {"metric", "rule", "type", "tool"};
    if (p->joins_plain && is_plain_quantization(r, line)) return plain_series;
    for (size_t i = 0; i < sizeof columns / sizeof *columns && r->are_results; i++) {
        const char *cell = cell_of(r, line, columns[i]);
        if (is_known(cell)) return cell;
    }
    return "";
}

/* Cuts that were repaired or healed, and others, are no one series. */
static void name_treatment(char name[LABEL - 60], const plot *p, const exp_rows *r, const exp_line *line) {
    exp_clip(name, LABEL - 60, treatment_of(p, r, line));
    size_t n = strlen(name);
    const char *repair = p->labels && exp_labels_tell(p->labels, "repair") ? cell_of(r, line, "repair") : "-";
    if (is_known(repair)) n += (size_t)snprintf(name + n, LABEL - 60 - n, ", %.20s", repair);
    const bool tells_healed = p->labels && exp_labels_tell(p->labels, "tokens_trained");
    if (n < LABEL - 60 && tells_healed && exp_is_healed(p->labels, line))
        snprintf(name + n, LABEL - 60 - n, ", healed");
}

/* "energy, group 64": the values of a line in the columns `by`, or what was done.  Numbers are told apart by the name
 * of their column.  Columns without a value are left out; "no metric" where none has one. */
static void name_series(char name[LABEL - 60], const plot *p, const exp_rows *r, const exp_line *line) {
    size_t n = 0;
    name[0] = 0;
    if (!p->n_by) name_treatment(name, p, r, line);
    for (int i = 0; i < p->n_by; i++) {
        char value[40];
        exp_clip(value, sizeof value, exp_rows_cell(r, line->row[0], p->by[i]));
        if (!strcmp(value, "-")) continue;
        const char *head = isnan(exp_number(value)) ? "" : exp_heading_of(r->column[p->by[i]]).head;
        const char *comma = n ? ", " : "", *space = *head ? " " : "";
        n += (size_t)snprintf(name + n, LABEL - 60 - n, "%s%.30s%s%s", comma, head, space, value);
        if (n >= LABEL - 60) break;
    }
    if (p->n_by && !n) snprintf(name, LABEL - 60, "no %.30s", r->column[p->by[0]]);
}

/* The place of a line's series among the labels, made where it is new. */
static size_t series_of(plot *p, const exp_rows *r, const exp_line *line, const exp_field *y) {
    char label[LABEL], name[LABEL - 60];
    size_t i = 0;
    name_series(name, p, r, line);
    if (!*name)
        snprintf(label, LABEL, "%s", y->head);
    else
        snprintf(label, LABEL, "%s%s%.50s", name, p->n_y > 1 ? ", " : "", p->n_y > 1 ? y->head : "");
    while (i < p->n_series && strcmp(p->label[i], label)) i++;
    if (i == p->n_series) strcpy(p->label[p->n_series++], label);
    return i;
}

/* Of all keys without the seed: random twins have the same. */
static uint64_t hash_keys(const exp_rows *r, const exp_line *line, const bool *is_key) {
    uint64_t h = 0xcbf29ce484222325;
    for (size_t c = 0; c < r->n_columns; c++)
        if (is_key[c]) h = exp_add_to_hash(h, exp_rows_cell(r, line->row[0], (int)c));
    return h;
}

static int compare_points(const void *pa, const void *pb) {
    const point *a = pa, *b = pb;
    if (a->series != b->series) return a->series < b->series ? -1 : 1;
    if (a->x != b->x) return a->x < b->x ? -1 : 1;
    if (a->keys != b->keys) return a->keys < b->keys ? -1 : 1;
    return (a->y > b->y) - (a->y < b->y);
}

/* The point of a line in the units of the axes; NaN where the line lacks a number. */
static point make_point(const plot *p, const exp_sheet *s, const exp_field *y, const exp_line *line) {
    double ignored, error, sd;
    const double scale = exp_field_scale(y);
    point a = {.x = exp_field_scale(&p->x) * exp_field_value(s, &p->x, line, &ignored),
               .y = scale * exp_field_value(s, y, line, &error),
               .line = line, .is_dense = line->is_dense, .low = NAN, .high = NAN};
    if (line->n == 1 && error > 0) a.low = a.y - scale * error, a.high = a.y + scale * error;
    for (size_t k = 0; line->n > 1 && k < line->n; k++) { // joined rows: from the least to the largest
        const exp_line one = {.row = &line->row[k], .n = 1};
        const double v = scale * exp_field_value(s, y, &one, &sd);
        a.low = fmin(a.low, v), a.high = fmax(a.high, v);
        a.is_band = true;
    }
    return a;
}

static int collect_points(plot *p, const exp_sheet *s, const bool *is_key, dw_err *err) {
    size_t n;
    if (!dw_mul(s->lines->n, p->n_y, &n)) return dw_fail(err, "the table is too large");
    p->point = dw_alloc(n, sizeof *p->point, "points", err);
    p->label = dw_alloc(n, sizeof *p->label, "series", err);
    if (!p->point || !p->label) return -1;
    p->labels = s->labels.rows ? &s->labels : NULL;
    for (size_t i = 0; i < s->lines->n && !p->n_by && s->rows->are_results; i++)
        p->joins_plain |= !s->lines->line[i].is_dense && is_pruned(s->rows, &s->lines->line[i]);
    for (size_t i = 0; i < s->lines->n; i++) {
        const exp_line *line = &s->lines->line[i];
        for (size_t k = 0; k < p->n_y; k++) {
            point a = make_point(p, s, &p->y[k], line);
            if (isnan(a.x) || isnan(a.y)) continue;
            a.keys = hash_keys(s->rows, line, is_key);
            if (!a.is_dense) a.series = series_of(p, s->rows, line, &p->y[k]);
            p->point[p->n_points++] = a;
        }
    }
    double ignored;
    p->base_ppl = strcmp(p->y[0].name, "ppl")
                      ? NAN
                      : exp_line_mean(s->rows, &s->lines->line[0], exp_rows_find(s->rows, "base_ppl"), &ignored);
    if (!p->n_points) return dw_fail(err, "no row has numbers in the columns '%s' and '%s'", p->x.name, p->y[0].name);
    qsort(p->point, p->n_points, sizeof *p->point, compare_points);
    return 0;
}

/* Two rows of one experiment that differ in their seed only. */
static bool are_twins(const exp_rows *r, const point *a, const point *b) {
    const char *seed_a = cell_of(r, a->line, "seed"), *seed_b = cell_of(r, b->line, "seed");
    return !a->is_dense && !b->is_dense && a->series == b->series && a->x == b->x && a->keys == b->keys &&
           is_known(seed_a) && is_known(seed_b) && strcmp(seed_a, seed_b);
}

/* Twins become one point at their mean, whose band reaches from the least to the largest. */
static void merge_twins(plot *p, const exp_rows *r) {
    size_t to = 0;
    for (size_t i = 0, n; i < p->n_points; i += n) {
        point a = p->point[i];
        double sum = a.y;
        for (n = 1; i + n < p->n_points && are_twins(r, &p->point[i], &p->point[i + n]); n++) sum += p->point[i + n].y;
        if (n > 1) {
            a.low = a.y, a.high = p->point[i + n - 1].y; // they are in the order of y
            a.y = sum / (double)n;
            a.is_band = true;
        }
        p->point[to++] = a;
    }
    p->n_points = to;
}

/* ---- axes ----------------------------------------------------------------------------------------------------- */

static void widen(reach *r, double v) {
    r->n += r->n < 3 && v != r->least && v != r->most;
    r->least = fmin(r->least, v), r->most = fmax(r->most, v);
}

static bool is_within(const exp_range *r, double v) {
    return !(r->has_from && v < r->from) && !(r->has_to && v > r->to);
}

static double length_of(const reach *r, bool is_log) { return is_log ? log(r->most / r->least) : r->most - r->least; }

static bool wants_log(const reach *r) { return r->least > 0 && r->most >= 20 * r->least; }

/* The dense model stays on an axis unless three or more other values would share less than half of it. */
static void set_axis(axis *a, const plot *p, bool is_x) {
    const reach none = {INFINITY, -INFINITY, 0};
    a->others = none;
    reach with_dense = none;
    for (size_t i = 0; i < p->n_points; i++) {
        const double v = is_x ? p->point[i].x : p->point[i].y;
        if (!is_within(&a->range, v)) continue;
        widen(&with_dense, v);
        if (!p->point[i].is_dense) widen(&a->others, v);
    }
    const bool is_log = wants_log(&with_dense);
    a->has_dense = a->others.n < 3 || a->range.has_from || a->range.has_to ||
                   length_of(&a->others, is_log) >= length_of(&with_dense, is_log) / 2;
    a->all = a->has_dense ? with_dense : a->others;
    a->is_log = wants_log(&a->all);
}

static bool is_drawn(const plot *p, const point *a) {
    return (!a->is_dense || (p->ax.has_dense && p->ay.has_dense)) && is_within(&p->ax.range, a->x) &&
           is_within(&p->ay.range, a->y);
}

/* A point of a series, within the ranges. */
static bool is_drawn_of(const plot *p, const point *a, size_t series) {
    return a->series == series && !a->is_dense && is_drawn(p, a);
}

static bool is_series_drawn(const plot *p, size_t series) {
    for (size_t i = 0; i < p->n_points; i++)
        if (is_drawn_of(p, &p->point[i], series)) return true;
    return false;
}

/* ---- the script ----------------------------------------------------------------------------------------------- */

/* A string in single quotes, in which gnuplot substitutes nothing; quotes in it are strings of their own, joined. */
static void print_quoted(FILE *out, const char *text) {
    fputc('\'', out);
    for (; *text; text++)
        if (*text == '\'')
            fputs("'.\"'\".'", out);
        else
            fputc(*text, out);
    fputc('\'', out);
}

static void print_end(FILE *out, bool has, double v) {
    if (has) fprintf(out, "%.10g", v);
    else fputc('*', out);
}

static void print_axis(FILE *out, char name, const axis *a, const char *head) {
    fprintf(out, "set %clabel ", name);
    print_quoted(out, head);
    fprintf(out, "\n");
    if (a->is_log) fprintf(out, "set logscale %c\n", name);
    if (!a->is_log && a->all.most >= 1e5) fprintf(out, "set format %c '%%.1s %%c'\n", name); // 2.5 M, not 2.5e+06
    if (!a->range.has_from && !a->range.has_to) return;
    fprintf(out, "set %crange [", name);
    print_end(out, a->range.has_from, a->range.from), fputc(':', out), print_end(out, a->range.has_to, a->range.to);
    fprintf(out, "]\n");
}

static bool has_front(const plot *p) {
    return p->n_y == 1 && p->x.heading.better && p->y[0].heading.better && p->n_points > 2;
}

static bool is_beaten(const plot *p, const point *a) {
    const double sx = p->x.heading.better, sy = p->y[0].heading.better;
    for (size_t i = 0; i < p->n_points; i++) {
        const point *b = &p->point[i];
        if (sx * b->x >= sx * a->x && sy * b->y >= sy * a->y && (b->x != a->x || b->y != a->y)) return true;
    }
    return false;
}

static int compare_x(const void *pa, const void *pb) {
    const point *a = pa, *b = pb;
    return (a->x > b->x) - (a->x < b->x);
}

static int print_front(FILE *out, const plot *p, dw_err *err) {
    point *front = dw_alloc(p->n_points, sizeof *front, "points", err);
    size_t n = 0;
    if (!front) return -1;
    for (size_t i = 0; i < p->n_points; i++)
        if (is_drawn(p, &p->point[i]) && !is_beaten(p, &p->point[i])) front[n++] = p->point[i];
    qsort(front, n, sizeof *front, compare_x);
    fprintf(out, "$front << EOD\n");
    for (size_t i = 0; i < n; i++) fprintf(out, "%.10g %.10g\n", front[i].x, front[i].y);
    fprintf(out, "EOD\n");
    free(front);
    return 0;
}

/* Data: x, y, and the ends of the bar or band, which stay above zero for the sake of logarithms. */
static void print_point(FILE *out, const point *a) {
    const double low = a->y > 0 ? fmax(a->low, a->y / 100) : a->low;
    fprintf(out, "%.10g %.10g", a->x, a->y);
    if (isnan(a->low)) fprintf(out, " NaN NaN\n");
    else fprintf(out, " %.10g %.10g\n", low, a->high);
}

static void print_data(FILE *out, const plot *p) {
    for (size_t k = 0; k < p->n_series; k++) {
        fprintf(out, "$series%zu << EOD\n", k + 1);
        for (size_t i = 0; i < p->n_points; i++)
            if (is_drawn_of(p, &p->point[i], k)) print_point(out, &p->point[i]);
        fprintf(out, "EOD\n");
    }
    fprintf(out, "$dense << EOD\n");
    for (size_t i = 0; i < p->n_points; i++) {
        const point *a = &p->point[i];
        if (a->is_dense && is_drawn(p, a)) fprintf(out, "%.10g %.10g\n", a->x, a->y);
    }
    fprintf(out, "EOD\n");
}

/* The names of the mixtures beside the points of plain quantizations. */
static void print_names(FILE *out, const plot *p, const exp_rows *r) {
    for (size_t i = 0; i < p->n_points; i++) {
        const point *a = &p->point[i];
        if (a->is_dense || !p->joins_plain || !is_plain_quantization(r, a->line) || !is_drawn(p, a)) continue;
        char name[40];
        exp_clip(name, sizeof name, cell_of(r, a->line, "type"));
        fprintf(out, "set label ");
        print_quoted(out, name);
        fprintf(out,
                " at first %.10g, first %.10g rotate by 40 offset 0.2, 0.6 noenhanced font ',9' tc rgb '#555555'\n",
                a->x, a->y);
    }
}

/* "dense", and where it is on an axis that leaves it out. */
static void print_dense_title(FILE *out, const plot *p, const point *a) {
    char title[LABEL], number[EXP_NUMBER];
    const exp_field *f = p->ay.has_dense ? &p->x : &p->y[0];
    exp_format_pair(number, p->ay.has_dense ? a->x : a->y, 0);
    if (p->ax.has_dense && p->ay.has_dense) snprintf(title, sizeof title, "dense");
    else snprintf(title, sizeof title, "dense, at %s %s", f->head, number);
    print_quoted(out, title);
}

static const char *print_dense(FILE *out, const plot *p, const char *next) {
    bool titled = false, drawn = false;
    for (size_t i = 0; i < p->n_points; i++) {
        const point *a = &p->point[i];
        if (!a->is_dense) continue;
        if (p->ay.has_dense) fprintf(out, "%s%.10g with lines lc rgb '#000000' dt 2 ", next, a->y);
        else if (!titled) fprintf(out, "%sNaN with lines lc rgb '#000000' dt 2 ", next);
        else continue;
        fprintf(out, titled ? "notitle" : "title ");
        if (!titled) print_dense_title(out, p, a);
        titled = true, next = ", ";
        drawn |= is_drawn(p, a);
    }
    if (drawn) fprintf(out, "%s$dense with points lc rgb '#000000' pt 7 notitle", next);
    if (!titled && !isnan(p->base_ppl))
        fprintf(out, "%s%.10g with lines lc rgb '#000000' dt 2 title 'dense'", next, p->base_ppl), next = ", ";
    return next;
}

/* How a series is drawn: whether it has bars, a band over several x, and two points with one x. */
typedef struct look {
    bool bars, band, repeats;
} look;

static look look_of(const plot *p, size_t series) {
    look l = {0};
    size_t n_band = 0;
    const point *last = NULL;
    for (size_t i = 0; i < p->n_points; i++) {
        const point *a = &p->point[i];
        if (!is_drawn_of(p, a, series)) continue;
        l.bars |= !isnan(a->low);
        l.repeats |= last && last->x == a->x;
        n_band += a->is_band;
        last = a;
    }
    l.band = n_band > 1 && !l.repeats;
    return l;
}

static void print_series(FILE *out, const plot *p, size_t k, const char *next) {
    const look l = look_of(p, k);
    const bool is_plain = !strcmp(p->label[k], plain_series);
    if (l.band)
        fprintf(out, "%s$series%zu using 1:3:4 with filledcurves lt %zu fs transparent solid 0.25 noborder notitle",
                next, k + 1, k + 1), next = ", ";
    fprintf(out, "%s$series%zu with %s lt %zu%s title ", next, k + 1, l.repeats ? "points" : "linespoints", k + 1,
            is_plain && !l.repeats ? " dt 4" : "");
    print_quoted(out, p->label[k]);
    if (l.bars && !l.band) fprintf(out, ", $series%zu using 1:2:3:4 with yerrorbars lt %zu notitle", k + 1, k + 1);
}

static void print_plot(FILE *out, const plot *p) {
    const char *next = "plot ";
    if (has_front(p)) fprintf(out, "%s$front with lines lc rgb '#bbbbbb' lw 5 title 'front'", next), next = ", ";
    next = print_dense(out, p, next);
    for (size_t k = 0; k < p->n_series; k++)
        if (is_series_drawn(p, k)) print_series(out, p, k, next), next = ", ";
    fprintf(out, "\n");
}

/* Beside the plot long names would take half of the width. */
static bool has_long_names(const plot *p) {
    for (size_t k = 0; k < p->n_series; k++)
        if (strlen(p->label[k]) > 20 && is_series_drawn(p, k)) return true;
    return false;
}

/* Colours that all eyes tell apart (Okabe and Ito). */
static void print_style(FILE *out, const plot *p, exp_picture picture) {
    static const char *const colour[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                         "#e69f00", "#56b4e9", "#555555", "#a0522d"};
    static const char *const terminal[] = {
        [EXP_SVG] = "svg size 900,560 noenhanced font 'sans-serif,14' background '#ffffff'",
        [EXP_PDF] = "pdfcairo size 9in,5.6in noenhanced font 'sans-serif,14'",
        [EXP_PNG] = "pngcairo size 1800,1120 noenhanced font 'sans-serif,14' fontscale 2 linewidth 2 pointscale 2"};
    const int n = sizeof colour / sizeof *colour;
    fprintf(out, "set terminal %s\nset encoding utf8\n", terminal[picture]);
    for (int i = 0; i < n; i++)
        fprintf(out, "set linetype %d lc rgb '%s' lw 1.5 pt %d ps 0.7\n", i + 1, colour[i], 4 + i);
    fprintf(out,
            "set linetype cycle %d\nset key %s\nset border 3\nset tics nomirror\nset grid lc rgb '#dddddd'\n", n,
            has_long_names(p) ? "below" : "outside right top");
}

static int print_script(FILE *out, const plot *p, const exp_sheet *s, const char *title, exp_picture picture,
                        dw_err *err) {
    print_style(out, p, picture);
    if (title) {
        fprintf(out, "set title ");
        print_quoted(out, title);
        fprintf(out, "\n");
    }
    print_axis(out, 'x', &p->ax, p->x.head);
    print_axis(out, 'y', &p->ay, p->n_y > 1 ? "" : p->y[0].head);
    print_data(out, p);
    print_names(out, p, s->rows);
    if (has_front(p) && print_front(out, p, err)) return -1;
    print_plot(out, p);
    return 0;
}

static int make_points(plot *p, const exp_sheet *s, const exp_axes *axes, dw_err *err) {
    bool *is_key = dw_alloc(s->rows->n_columns, sizeof *is_key, "columns", err);
    if (!is_key) return -1;
    for (size_t c = 0; c < s->rows->n_columns; c++)
        is_key[c] = exp_is_key(s->rows->column[c]) && strcmp(s->rows->column[c], "seed");
    int rc = find_by(p, s->rows, axes->by, err);
    if (!rc) rc = find_axes(p, s, axes, err);
    if (!rc) rc = collect_points(p, s, is_key, err);
    free(is_key);
    return rc;
}

static size_t count_outside(const plot *p) {
    size_t n = 0;
    for (size_t i = 0; i < p->n_points; i++)
        n += !is_within(&p->ax.range, p->point[i].x) || !is_within(&p->ay.range, p->point[i].y);
    return n;
}

char *exp_plot_script(const exp_sheet *s, const exp_axes *axes, exp_picture picture, size_t *n_outside, dw_err *err) {
    plot p = {.ax.range = axes->x_range, .ay.range = axes->y_range};
    exp_text t;
    char *script = NULL;
    int rc = make_points(&p, s, axes, err);
    if (!rc) {
        merge_twins(&p, s->rows);
        set_axis(&p.ax, &p, true);
        set_axis(&p.ay, &p, false);
        if (!p.ax.others.n && !p.ax.all.n) rc = dw_fail(err, "no point lies within --x-range and --y-range");
    }
    *n_outside = rc ? 0 : count_outside(&p);
    if (!rc && !exp_text_begin(&t, err))
        script = exp_text_end(&t, print_script(t.out, &p, s, axes->title, picture, err), err);
    free(p.point);
    free(p.label);
    return script;
}

/* ---- gnuplot -------------------------------------------------------------------------------------------------- */

/* Everything that comes out of a file descriptor, with a NUL; free(). */
static char *read_all(int fd, size_t *bytes, dw_err *err) {
    char *text = NULL;
    size_t cap = 0, size = 0;
    for (ssize_t n = 1; n; size += (size_t)n) {
        if (dw_grow(&text, &cap, size + 65536, 1, "the plot", err)) break;
        while ((n = read(fd, text + size, 65535)) < 0 && errno == EINTR) {}
        if (n < 0) dw_fail(err, "cannot read what gnuplot writes: %s", strerror(errno));
        if (size > MAX_PICTURE_BYTES) dw_fail(err, "gnuplot writes more than %d bytes", MAX_PICTURE_BYTES);
        if (n < 0 || size > MAX_PICTURE_BYTES) break;
        text[*bytes = size + (size_t)n] = 0;
        if (!n) return text;
    }
    free(text);
    return NULL;
}

/* Starts gnuplot without initialization files; in: its script, out: where it writes. */
static int start_gnuplot(pid_t *pid, FILE *in, int out, FILE *complaints, dw_err *err) {
    char *argv[] = {"gnuplot", "-d", "-", NULL};
    posix_spawn_file_actions_t actions;
    int rc = posix_spawn_file_actions_init(&actions);
    if (rc) return dw_fail(err, "cannot run 'gnuplot': %s", strerror(rc));
    if (!rc) rc = posix_spawn_file_actions_adddup2(&actions, fileno(in), 0);
    if (!rc) rc = posix_spawn_file_actions_adddup2(&actions, out, 1);
    if (!rc) rc = posix_spawn_file_actions_adddup2(&actions, fileno(complaints), 2);
    if (!rc) rc = posix_spawnp(pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (rc == ENOENT) return dw_fail(err, "cannot run 'gnuplot': no such program; plots need the package gnuplot-nox");
    return rc ? dw_fail(err, "cannot run 'gnuplot': %s", strerror(rc)) : 0;
}

static void report_complaint(FILE *complaints, dw_err *err) {
    char line[200] = "";
    rewind(complaints);
    while (fgets(line, sizeof line, complaints) && !line[strspn(line, " \t\r\n^")]) {}
    line[strcspn(line, "\n")] = 0;
    dw_fail(err, "gnuplot failed%s%s", *line ? ": " : "", line);
}

/* gnuplot may end with status 0 after an error, so the picture's own end is looked for. */
static bool is_whole(exp_picture picture, const char *image, size_t size) {
    static const char *const end[] = {[EXP_SVG] = "</svg>", [EXP_PDF] = "%%EOF", [EXP_PNG] = "IEND"};
    return memmem(image, size, end[picture], strlen(end[picture])) != NULL;
}

/* A PDF says when it was made; zeros instead, so that the same rows give the same bytes. */
static void clear_date(char *image, size_t size) {
    static const char mark[] = "/CreationDate (D:";
    char *at = memmem(image, size, mark, strlen(mark));
    for (at = at ? at + strlen(mark) : image + size; at < image + size && *at != ')'; at++)
        if (*at >= '0' && *at <= '9') *at = '0';
}

static char *run_gnuplot(FILE *script, FILE *complaints, exp_picture picture, size_t *size, dw_err *err) {
    int ends[2], status = -1;
    pid_t pid;
    if (pipe2(ends, O_CLOEXEC)) {
        dw_fail(err, "cannot make a pipe: %s", strerror(errno));
        return NULL;
    }
    const int rc = start_gnuplot(&pid, script, ends[1], complaints, err);
    close(ends[1]);
    char *image = rc ? NULL : read_all(ends[0], size, err);
    close(ends[0]);
    if (rc) return NULL;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    if (image && status == 0 && is_whole(picture, image, *size)) {
        if (picture == EXP_PDF) clear_date(image, *size);
        return image;
    }
    if (image) report_complaint(complaints, err);
    free(image);
    return NULL;
}

char *exp_plot_draw(const char *script, exp_picture picture, size_t *size, dw_err *err) {
    FILE *in = tmpfile(), *complaints = tmpfile();
    char *image = NULL;
    if (!in || !complaints || fputs(script, in) < 0 || fflush(in) || lseek(fileno(in), 0, SEEK_SET))
        dw_fail(err, "cannot write a temporary file: %s", strerror(errno));
    else
        image = run_gnuplot(in, complaints, picture, size, err);
    if (in) fclose(in);
    if (complaints) fclose(complaints);
    return image;
}
