/* table.c - deadwood-table: rows of results as what is pasted into a post or a paper.
 *
 *     deadwood table rows.tsv -o table.md --plot plot.svg
 *
 * Reading and choosing: rows.h; the text: paste.h; the picture: plot.h. */
#include "experiments/report/paste.h"
#include "experiments/report/plot.h"
#include "experiments/report/rows.h"
#include "kit/options.h"
#include "kit/talk.h"

#include <stdlib.h>
#include <string.h>

static struct {
    opt_list files, where;
    const char *columns, *text, *join, *sort, *out, *plot, *x, *y, *by;
    bool reverse;
} o;

// clang-format off
static const opt_row rows[] = {
    {NULL, 0, OPT_TEXTS, OPT_INPUT | OPT_REQUIRED, &o.files, NULL, "ROWS", "rows.tsv of score or sweep, or other tables (TSV) with a header line", .min = 1, .max = 4096},
    {"out", 'o', OPT_PATH, OPT_NO_BYTE | OPT_STDOUT, &o.out, "-", "FILE", "the table: FILE.md, FILE.tsv, FILE.csv; -: Markdown to standard output"},
    {.kind = OPT_GROUP, .help = "which rows and columns"},
    {"columns", 0, OPT_TEXT, 0, &o.columns, NULL, "A,B,C", "these columns; NAME/base is the ratio to the dense model's"},
    {"text", 0, OPT_TEXT, 0, &o.text, NULL, "NAME", "rows of this text; *: geometric means; all: every row; default: geometric means where there are any"},
    {"where", 0, OPT_TEXTS, 0, &o.where, NULL, "COLUMN=VALUE", "only rows that have this value (or != VALUE); several values of one column are alternatives"},
    {"join", 0, OPT_TEXT, 0, &o.join, NULL, "COLUMN", "rows that differ in this column only (seed) become one: mean and standard deviation"},
    {"sort", 0, OPT_TEXT, 0, &o.sort, NULL, "COLUMN", "ascending, behind the dense model; default: the order of the files"},
    {"reverse", 0, OPT_FLAG, 0, &o.reverse, NULL, NULL, "sort descending"},
    {.kind = OPT_GROUP, .help = "plot"},
    {"plot", 0, OPT_PATH, OPT_NO_BYTE | OPT_OUTPUT, &o.plot, NULL, "FILE.svg", "draw the rows too (needs gnuplot)"},
    {"x", 0, OPT_TEXT, 0, &o.x, NULL, "COLUMN", "along the x axis; of results file_bytes"},
    {"y", 0, OPT_TEXT, 0, &o.y, NULL, "COLUMN", "along the y axis, or several: A,B; of results ppl"},
    {"by", 0, OPT_TEXT, 0, &o.by, NULL, "COLUMN", "a series of points for each value; of results the metric, rule or type"},
    OPT_COMMON_HEADING, OPT_QUIET, {0}};

static const opt_program program = {
    .name = "table",
    .summary = "results as a table to paste, and as a plot",
    .usage = "ROWS.. [-o table.md] [--columns A,B,C] [--where COLUMN=VALUE] [--plot plot.svg]",
    .about = "Reads rows by column name, from any number of files, and writes those that matter: the dense model first, what was done as far as "
             "it differs, size, quality with standard errors, speed, coverage, verdict.  A speed that was disturbed is marked with !, a row that "
             "is dominated, collapsed, failed or scored on a text that it learnt from says so in the column verdict.  The conditions stand once under "
             "the table, and in which of them the rows differ.  deadwood score --columns lists the columns.\n"
             "\n"
             "TSV and CSV keep the numbers as they are in the rows, each standard error in a column of its own.  Tables of other programs are shown "
             "with all their columns; a plot of them needs --x and --y.\n"
             "\n"
             "A plot has error bars where there are standard errors, logarithmic axes where the range asks for them, the dense model as a dashed line, "
             "and the Pareto front.",
    .example = "deadwood table rows.tsv\n"
               "deadwood table rows.tsv -o cut.md --where tool=cut --sort ppl --plot cut.svg\n"
               "deadwood table rows.tsv --columns model,file_bytes,ppl,decode_tok_s,decode_tok_s/base\n"
               "deadwood table speed.tsv --plot speed.svg --x inactive --y ms --by path",
    .rows = rows};
// clang-format on

static exp_paste *format_of(const char *path) {
    static const struct {
        const char *ending;
        exp_paste *paste;
    } formats[] = {{".md", exp_paste_markdown}, {".tsv", exp_paste_tsv}, {".csv", exp_paste_csv}};
    if (!strcmp(path, "-")) return exp_paste_markdown;
    const char *ending = strrchr(path, '.');
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (ending && !strcmp(ending, formats[i].ending)) return formats[i].paste;
    return NULL;
}

/* Whole or not at all; "-" is standard output. */
static int write_text(const char *path, const char *text, dw_err *err) {
    if (!strcmp(path, "-")) {
        show_lines(stdout, text);
        return fflush(stdout) || ferror(stdout) ? dw_fail(err, "cannot write to stdout") : 0;
    }
    dw_out *out = dw_out_open(path, err);
    const int rc = out && !dw_out_write(out, text, strlen(text), err) && !dw_out_commit(out, err) ? 0 : -1;
    dw_out_free(out);
    return rc;
}

static char *draw(const exp_sheet *s, dw_err *err) {
    const bool results = s->rows->are_results;
    const exp_axes axes = {.x = o.x       ? o.x
                                : results ? "file_bytes"
                                          : NULL,
                           .y = o.y       ? o.y
                                : results ? "ppl"
                                          : NULL,
                           .by = o.by};
    if (!axes.x || !axes.y) die_usage("a plot of tables that are no results needs --x and --y");
    char *script = exp_plot_script(s, &axes, err), *svg = script ? exp_plot_draw(script, err) : NULL;
    free(script);
    return svg;
}

/* Both outputs are made before the first is written. */
static int show(exp_sheet *s, dw_err *err) {
    char *text = NULL, *svg = NULL;
    int rc = exp_sheet_fields(s, o.columns, err);
    if (!rc) rc = format_of(o.out)(s, &text, err);
    if (!rc && o.plot && !(svg = draw(s, err))) rc = -1;
    if (!rc) rc = write_text(o.out, text, err);
    if (!rc && svg) rc = write_text(o.plot, svg, err);
    free(text);
    free(svg);
    return rc;
}

int main(int argc, char **argv) {
    opt_parse(&program, argc, argv);
    if (!format_of(o.out)) die_usage("-o: '%s' ends in none of .md, .tsv, .csv", o.out);
    const size_t n = o.plot ? strlen(o.plot) : 0;
    if (o.plot && (n < 5 || strcmp(o.plot + n - 4, ".svg"))) die_usage("--plot: '%s' does not end in .svg", o.plot);
    if (!o.plot && (o.x || o.y || o.by)) die_usage("--x, --y and --by belong to --plot");
    dw_err err = {0};
    exp_rows r;
    exp_lines lines = {0};
    const exp_choice choice = {.where = &o.where, .text = o.text, .join = o.join, .sort = o.sort, .reverse = o.reverse};
    if (exp_rows_read(&r, o.files.item, o.files.n, &err) || exp_lines_choose(&lines, &r, &choice, &err)) die_err(&err);
    exp_sheet sheet = {.rows = &r, .lines = &lines, .join = o.join};
    if (show(&sheet, &err)) die_err(&err);
    exp_sheet_release(&sheet);
    exp_lines_release(&lines);
    exp_rows_release(&r);
    return 0;
}
