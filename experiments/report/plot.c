/* plot.c - a gnuplot script of lines of a table, and gnuplot as a child process. */
#include "experiments/report/plot.h"

#include "experiments/report/conditions.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { MAX_FIELDS = 8, LABEL = 160, MAX_SVG_BYTES = 1 << 28 };

typedef struct point {
    double x, y, error;
    size_t series;
    bool is_dense;
} point;

typedef struct plot {
    exp_field x, y[MAX_FIELDS];
    size_t n_y;
    point *point; // n_points, by series, then x
    size_t n_points;
    double base_ppl;      // what rows say of their base; NaN: unknown, or not what is drawn
    char (*label)[LABEL]; // n_series
    size_t n_series;
} plot;

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

/* What a line's series is called when nothing was said: what was done to the model. */
static const char *deed_of(const exp_rows *r, const exp_line *line) {
    static const char *const columns[] = {"metric", "rule", "type", "tool"};
    for (size_t i = 0; i < sizeof columns / sizeof *columns && r->are_results; i++) {
        const char *cell = exp_rows_cell(r, line->row[0], exp_rows_find(r, columns[i]));
        if (strcmp(cell, "-")) return cell;
    }
    return "";
}

/* The place of a series among the labels, made where it is new.  Numbers are told apart by the name of their column. */
static size_t series_of(plot *p, const char *head, const char *by, const exp_field *y) {
    char label[LABEL], name[LABEL - 110];
    size_t i = 0;
    exp_clip(name, sizeof name, by);
    const bool is_number = !isnan(exp_number(name));
    if (!*name)
        snprintf(label, LABEL, "%s", y->head);
    else
        snprintf(label, LABEL, "%.40s%s%s%s%s", is_number ? head : "", is_number ? " " : "", name,
                 p->n_y > 1 ? ", " : "", p->n_y > 1 ? y->head : "");
    while (i < p->n_series && strcmp(p->label[i], label)) i++;
    if (i == p->n_series) strcpy(p->label[p->n_series++], label);
    return i;
}

static int compare_points(const void *pa, const void *pb) {
    const point *a = pa, *b = pb;
    if (a->series != b->series) return a->series < b->series ? -1 : 1;
    if (a->x != b->x) return a->x < b->x ? -1 : 1;
    return (a->y > b->y) - (a->y < b->y);
}

static int collect_points(plot *p, const exp_sheet *s, int by, dw_err *err) {
    size_t n;
    if (!dw_mul(s->lines->n, p->n_y, &n)) return dw_fail(err, "the table is too large");
    p->point = dw_alloc(n, sizeof *p->point, "points", err);
    p->label = dw_alloc(n, sizeof *p->label, "series", err);
    if (!p->point || !p->label) return -1;
    for (size_t i = 0; i < s->lines->n; i++) {
        const exp_line *line = &s->lines->line[i];
        for (size_t k = 0; k < p->n_y; k++) {
            double ignored, error;
            const double x = exp_field_scale(&p->x) * exp_field_value(s, &p->x, line, &ignored);
            const double y = exp_field_scale(&p->y[k]) * exp_field_value(s, &p->y[k], line, &error);
            if (isnan(x) || isnan(y)) continue;
            const char *name = by >= 0 ? exp_rows_cell(s->rows, line->row[0], by) : deed_of(s->rows, line);
            p->point[p->n_points++] = (point){
                x, y, exp_field_scale(&p->y[k]) * error,
                line->is_dense ? 0
                               : series_of(p, by >= 0 ? exp_heading_of(s->rows->column[by]).head : "", name, &p->y[k]),
                line->is_dense};
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

static void print_axis(FILE *out, const plot *p, char axis) {
    double least = INFINITY, most = -INFINITY;
    const exp_field *f = axis == 'x' ? &p->x : &p->y[0];
    for (size_t i = 0; i < p->n_points; i++) {
        const double v = axis == 'x' ? p->point[i].x : p->point[i].y;
        least = fmin(least, v), most = fmax(most, v);
    }
    fprintf(out, "set %clabel ", axis);
    print_quoted(out, axis == 'y' && p->n_y > 1 ? "" : f->head);
    fprintf(out, "\n");
    if (least > 0 && most >= 20 * least) fprintf(out, "set logscale %c\n", axis);
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
        if (!is_beaten(p, &p->point[i])) front[n++] = p->point[i];
    qsort(front, n, sizeof *front, compare_x);
    fprintf(out, "$front << EOD\n");
    for (size_t i = 0; i < n; i++) fprintf(out, "%.10g %.10g\n", front[i].x, front[i].y);
    fprintf(out, "EOD\n");
    free(front);
    return 0;
}

/* Data: x, y, and the ends of the error bar, which stays above zero for the sake of logarithms. */
static void print_data(FILE *out, const plot *p) {
    for (size_t k = 0; k < p->n_series; k++) {
        fprintf(out, "$series%zu << EOD\n", k + 1);
        for (size_t i = 0; i < p->n_points; i++) {
            const point *a = &p->point[i];
            if (a->series != k || a->is_dense) continue;
            fprintf(out, "%.10g %.10g", a->x, a->y);
            if (a->error > 0)
                fprintf(out, " %.10g %.10g\n", a->y > 0 ? fmax(a->y - a->error, a->y / 100) : a->y - a->error,
                        a->y + a->error);
            else
                fprintf(out, " NaN NaN\n");
        }
        fprintf(out, "EOD\n");
    }
    fprintf(out, "$dense << EOD\n");
    for (size_t i = 0; i < p->n_points; i++)
        if (p->point[i].is_dense) fprintf(out, "%.10g %.10g\n", p->point[i].x, p->point[i].y);
    fprintf(out, "EOD\n");
}

static void print_plot(FILE *out, const plot *p) {
    const char *next = "plot ";
    bool titled = false;
    if (has_front(p)) fprintf(out, "%s$front with lines lc rgb '#bbbbbb' lw 5 title 'front'", next), next = ", ";
    for (size_t i = 0; i < p->n_points; i++) {
        if (!p->point[i].is_dense) continue;
        fprintf(out, "%s%.10g with lines lc rgb '#000000' dt 2 %s", next, p->point[i].y,
                titled ? "notitle" : "title 'dense'");
        titled = true, next = ", ";
    }
    if (titled)
        fprintf(out, "%s$dense with points lc rgb '#000000' pt 7 notitle", next);
    else if (!isnan(p->base_ppl))
        fprintf(out, "%s%.10g with lines lc rgb '#000000' dt 2 title 'dense'", next, p->base_ppl), next = ", ";
    for (size_t k = 0; k < p->n_series; k++, next = ", ") {
        bool errors = false;
        for (size_t i = 0; i < p->n_points; i++)
            errors |= p->point[i].series == k && !p->point[i].is_dense && p->point[i].error > 0;
        fprintf(out, "%s$series%zu with linespoints lt %zu title ", next, k + 1, k + 1);
        print_quoted(out, p->label[k]);
        if (errors) fprintf(out, ", $series%zu using 1:2:3:4 with yerrorbars lt %zu notitle", k + 1, k + 1);
    }
    fprintf(out, "\n");
}

/* Colours that all eyes tell apart (Okabe and Ito). */
static void print_style(FILE *out) {
    static const char *const colour[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                         "#e69f00", "#56b4e9", "#555555", "#a0522d"};
    const int n = sizeof colour / sizeof *colour;
    fprintf(out,
            "set terminal svg size 900,560 noenhanced font 'sans-serif,14' background '#ffffff'\nset encoding utf8\n");
    for (int i = 0; i < n; i++)
        fprintf(out, "set linetype %d lc rgb '%s' lw 1.5 pt %d ps 0.7\n", i + 1, colour[i], 4 + i);
    fprintf(out,
            "set linetype cycle %d\nset key outside right top\nset border 3\nset tics nomirror\nset grid lc rgb "
            "'#dddddd'\n",
            n);
}

static int print_script(FILE *out, const plot *p, dw_err *err) {
    print_style(out);
    print_axis(out, p, 'x');
    print_axis(out, p, 'y');
    print_data(out, p);
    if (has_front(p) && print_front(out, p, err)) return -1;
    print_plot(out, p);
    return 0;
}

char *exp_plot_script(const exp_sheet *s, const exp_axes *axes, dw_err *err) {
    plot p = {0};
    exp_text t;
    char *script = NULL;
    const int by = axes->by ? exp_rows_need(s->rows, axes->by, err) : -1;
    if ((!axes->by || by >= 0) && !find_axes(&p, s, axes, err) && !collect_points(&p, s, by, err) &&
        !exp_text_begin(&t, err))
        script = exp_text_end(&t, print_script(t.out, &p, err), err);
    free(p.point);
    free(p.label);
    return script;
}

/* ---- gnuplot -------------------------------------------------------------------------------------------------- */

/* Everything that comes out of a file descriptor, with a NUL; free(). */
static char *read_all(int fd, dw_err *err) {
    char *text = NULL;
    size_t cap = 0, size = 0;
    for (ssize_t n = 1; n; size += (size_t)n) {
        if (dw_grow(&text, &cap, size + 65536, 1, "the plot", err)) break;
        while ((n = read(fd, text + size, 65535)) < 0 && errno == EINTR) {}
        if (n < 0) dw_fail(err, "cannot read what gnuplot writes: %s", strerror(errno));
        if (size > MAX_SVG_BYTES) dw_fail(err, "gnuplot writes more than %d bytes", MAX_SVG_BYTES);
        if (n < 0 || size > MAX_SVG_BYTES) break;
        text[size + (size_t)n] = 0;
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

static char *run_gnuplot(FILE *script, FILE *complaints, dw_err *err) {
    int ends[2], status = -1;
    pid_t pid;
    if (pipe2(ends, O_CLOEXEC)) {
        dw_fail(err, "cannot make a pipe: %s", strerror(errno));
        return NULL;
    }
    const int rc = start_gnuplot(&pid, script, ends[1], complaints, err);
    close(ends[1]);
    char *svg = rc ? NULL : read_all(ends[0], err);
    close(ends[0]);
    if (rc) return NULL;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    if (svg && status == 0 && strstr(svg, "</svg>")) return svg;
    if (svg) report_complaint(complaints, err);
    free(svg);
    return NULL;
}

char *exp_plot_draw(const char *script, dw_err *err) {
    FILE *in = tmpfile(), *complaints = tmpfile();
    char *svg = NULL;
    if (!in || !complaints || fputs(script, in) < 0 || fflush(in) || lseek(fileno(in), 0, SEEK_SET))
        dw_fail(err, "cannot write a temporary file: %s", strerror(errno));
    else
        svg = run_gnuplot(in, complaints, err);
    if (in) fclose(in);
    if (complaints) fclose(complaints);
    return svg;
}
