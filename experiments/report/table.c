/* table.c - deadwood-table: rows of results as what is pasted into a post or a paper.
 *
 *     deadwood table rows.tsv -o table.md --plot plot.svg
 *
 * Reading and choosing: rows.h; the text: paste.h; the picture: plot.h. */
#include "experiments/report/against.h"
#include "experiments/report/paste.h"
#include "experiments/report/plot.h"
#include "experiments/report/rows.h"
#include "kit/options.h"
#include "kit/talk.h"

#include <stdlib.h>
#include <string.h>

static struct {
    opt_list files, where;
    const char *columns, *text, *join, *sort, *out, *format, *plot, *x, *y, *by, *title, *x_range, *y_range, *against;
    bool reverse;
} o;

typedef struct table_format {
    const char *name, *help, *ending;
    exp_paste *paste;
} table_format;

static const table_format formats[] = {{"markdown", "for readers; it reads as text, too", ".md", exp_paste_markdown},
                                       {"tsv", "cells as they are, for programs", ".tsv", exp_paste_tsv},
                                       {"csv", "the same, separated by commas", ".csv", exp_paste_csv},
                                       {"latex", "a table with the package booktabs", ".tex", exp_paste_latex},
                                       {0}};

static const opt_row rows[] = {
    {NULL, 0, OPT_TEXTS, OPT_INPUT | OPT_REQUIRED, &o.files, NULL, "ROWS",
     "rows.tsv of score or sweep, or other tables (TSV) with a header line", .min = 1, .max = 4096},
    {"out", 'o', OPT_PATH, OPT_NO_BYTE | OPT_STDOUT, &o.out, "-", "FILE",
     "the table: FILE.md, FILE.tsv, FILE.csv, FILE.tex; -: standard output", .holds = KIT_TEXT},
    {"format", 0, OPT_CHOICE, 0, &o.format, NULL, "NAME",
     "its form; default: by the ending of FILE, markdown for standard output", OPT_CHOICES_HELP(formats, table_format)},
    {.kind = OPT_GROUP, .help = "which rows and columns"},
    {"columns", 0, OPT_TEXT, 0, &o.columns, NULL, "A,B,C",
     "these columns; NAME/base is the ratio to the dense model's; label is what was done, in words"},
    {"text", 0, OPT_TEXT, 0, &o.text, NULL, "NAME",
     "rows of this text; *: geometric means; all: every row; default: geometric means where there are any"},
    {"where", 0, OPT_TEXTS, 0, &o.where, NULL, "COLUMN=VALUE",
     "only rows that have this value (or != VALUE); several values of one column are alternatives"},
    {"against", 0, OPT_TEXT, 0, &o.against, NULL, "MODEL",
     "the column difference: every row's ln ratio to this model (its name or hash), paired by the sums in ROWS.windows; "
     "with --columns, name it there"},
    {"join", 0, OPT_TEXT, 0, &o.join, NULL, "COLUMN",
     "rows that differ in this column only (seed), and in how long they trained, become one: mean and standard "
     "deviation"},
    {"sort", 0, OPT_TEXT, 0, &o.sort, NULL, "COLUMN",
     "ascending, after the dense model; default: the order of the files"},
    {"reverse", 0, OPT_FLAG, 0, &o.reverse, NULL, NULL, "sort descending"},
    {.kind = OPT_GROUP, .help = "plot"},
    {"plot", 0, OPT_PATH, OPT_NO_BYTE | OPT_OUTPUT, &o.plot, NULL, "FILE",
     "draw the rows too, as FILE.svg, FILE.pdf or FILE.png (needs gnuplot)", .holds = KIT_PICTURE},
    {"x", 0, OPT_TEXT, 0, &o.x, NULL, "COLUMN", "along the x axis; default for rows of score and sweep: file_bytes"},
    {"y", 0, OPT_TEXT, 0, &o.y, NULL, "COLUMN", "along the y axis, or several: A,B; default likewise: ppl"},
    {"by", 0, OPT_TEXT, 0, &o.by, NULL, "COLUMN",
     "a series of points for each value, or with A,B for each pair of values; default likewise: the metric, rule or type"},
    {"title", 0, OPT_TEXT, 0, &o.title, NULL, "TEXT", "a line above the plot"},
    {"x-range", 0, OPT_TEXT, 0, &o.x_range, NULL, "A:B",
     "ends of the x axis in its unit; A: and :B leave one end open"},
    {"y-range", 0, OPT_TEXT, 0, &o.y_range, NULL, "A:B", "the same of the y axis"},
    OPT_COMMON_HEADING,
    OPT_QUIET,
    {0}};

static const opt_program program = {
    .name = "table",
    .summary = "results as a table to paste, and as a plot",
    .usage = "ROWS.. [-o table.md] [--columns A,B,C] [--where COLUMN=VALUE] [--plot plot.pdf]",
    .about = "Reads rows by column name, from any number of files, and writes those that matter: the dense model "
             "first, what was done as far as it differs, size, quality with standard errors, speed, coverage, "
             "verdict.  A speed that was disturbed is marked with !, a row that is dominated, collapsed, failed or "
             "scored on a text that it learnt from says so in the column verdict.  The conditions stand once under "
             "the table, and in which of them the rows differ.  deadwood score --columns lists the columns.\n"
             "\n"
             "Rows of a sweep are called by what was done (energy, rate 0.2) and not by their files.\n"
             "\n"
             "TSV and CSV keep the numbers as they are in the rows, each standard error in a column of its own; where a "
             "KL is a lower bound, a speed was disturbed or a text was seen, the columns kl_kind, disturbed and leak say "
             "so.  "
             "Tables of other programs are shown with all their columns; a plot of them needs --x and --y.  With "
             "pandas: read_csv(FILE, sep='\\t', comment='#', na_values='-').\n"
             "\n"
             "A plot has error bars where there are standard errors, logarithmic axes where the range asks for them, "
             "the dense model as a dashed line, and the Pareto front.  Points of a series are joined unless two have "
             "the same x.  Rows that differ in the seed only become a band from the least to the largest.  Beside "
             "pruned models, plain quantizations are one line with the name of each type.  A dense model that would "
             "squeeze the others into less than half of an axis is named in the legend instead.",
    .example = "deadwood table rows.tsv\n"
               "deadwood table rows.tsv -o cut.md --where tool=cut --sort ppl --plot cut.svg\n"
               "deadwood table rows.tsv -o paper.tex --plot paper.pdf --by metric,group --x-range 15:25 --title "
               "'Base, five texts'\n"
               "deadwood table rows.tsv --columns model,file_bytes,ppl,decode_tok_s,decode_tok_s/base\n"
               "deadwood table speed.tsv --plot speed.svg --x inactive --y ms --by path",
    .rows = rows};

/* The form of the table, or NULL when neither --format nor the file's ending says it. */
static exp_paste *format_of(const char *path) {
    const char *ending = strcmp(path, "-") ? strrchr(path, '.') : ".md";
    for (const table_format *f = formats; f->name; f++)
        if (o.format ? !strcmp(o.format, f->name) : ending && !strcmp(ending, f->ending)) return f->paste;
    return NULL;
}

/* Whole or not at all; "-" is standard output. */
static int write_bytes(const char *path, const char *bytes, size_t size, dw_err *err) {
    if (!strcmp(path, "-")) {
        show_lines(stdout, bytes); // whether all of it was written is checked at the end (kit/options.c)
        return 0;
    }
    dw_out *out = dw_out_open(path, err);
    const int rc = out && !dw_out_write(out, bytes, size, err) && !dw_out_commit(out, err) ? 0 : -1;
    dw_out_free(out);
    return rc;
}

static char *draw(const exp_sheet *s, size_t *size, dw_err *err) {
    const bool results = s->rows->are_results;
    exp_axes axes = {.x = o.x ? o.x : results ? "file_bytes" : NULL, .y = o.y ? o.y : results ? "ppl" : NULL};
    axes.by = o.by, axes.title = o.title;
    if (!axes.x || !axes.y) die_usage("a plot of a table that is no results needs --x and --y");
    if (exp_range_read(&axes.x_range, o.x_range, err)) die_usage("--x-range: %s", err->text);
    if (exp_range_read(&axes.y_range, o.y_range, err)) die_usage("--y-range: %s", err->text);
    const exp_picture picture = exp_picture_of(o.plot);
    size_t n_outside;
    char *script = exp_plot_script(s, &axes, picture, &n_outside, err);
    char *image = script ? exp_plot_draw(script, picture, size, err) : NULL;
    free(script);
    if (image && n_outside)
        say("%zu point%s outside the ranges of the plot", n_outside, n_outside == 1 ? " lies" : "s lie");
    return image;
}

/* Both outputs are made before the first is written. */
static int show(exp_sheet *s, dw_err *err) {
    char *text = NULL, *image = NULL;
    size_t size = 0;
    int rc = exp_sheet_fields(s, o.columns, err);
    if (!rc) rc = format_of(o.out)(s, &text, err);
    if (!rc && o.plot && !(image = draw(s, &size, err))) rc = -1;
    if (!rc) rc = write_bytes(o.out, text, strlen(text), err);
    if (!rc && image) rc = write_bytes(o.plot, image, size, err);
    free(text);
    free(image);
    return rc;
}

int main(int argc, char **argv) {
    opt_parse(&program, argc, argv);
    if (!format_of(o.out)) die_usage("-o: '%s' ends in none of .md, .tsv, .csv, .tex; give --format too", o.out);
    if (o.plot && exp_picture_of(o.plot) == EXP_NO_PICTURE)
        die_usage("--plot: '%s' ends in none of .svg, .pdf, .png", o.plot);
    if (!o.plot && (o.x || o.y || o.by || o.title || o.x_range || o.y_range))
        die_usage("--x, --y, --by, --title, --x-range and --y-range belong to --plot");
    dw_err err = {0};
    exp_rows r;
    exp_lines lines = {0};
    const exp_choice choice = {.where = &o.where, .text = o.text, .join = o.join, .sort = o.sort, .reverse = o.reverse};
    if (exp_rows_read(&r, o.files.item, o.files.n, &err) ||
        (o.against && exp_rows_compare(&r, o.files.item, o.files.n, o.against, &err)) ||
        exp_lines_choose(&lines, &r, &choice, &err)) die_err(&err);
    exp_sheet sheet = {.rows = &r, .lines = &lines, .join = o.join, .against = o.against};
    sheet.for_programs = format_of(o.out) == exp_paste_tsv || format_of(o.out) == exp_paste_csv;
    if (show(&sheet, &err)) die_err(&err);
    exp_sheet_release(&sheet);
    exp_lines_release(&lines);
    exp_rows_release(&r);
    return 0;
}
