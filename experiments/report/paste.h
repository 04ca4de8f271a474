/* paste.h - lines of results as a table that can be pasted: Markdown and LaTeX for readers, TSV and CSV for programs.
 *
 * A field is a column of the output: a column of the rows, its ratio to the dense model's (`decode_tok_s/base`), or
 * `label`, which says what was done (labels.h) and stands for the names of files in tables of sweeps.
 * Markdown rounds by the standard error, puts units into the headings and says once, under the table, under which
 * conditions the rows were measured and in which they differ.  TSV and CSV keep the cells as they are, each with its
 * standard error in a column of its own; of joined rows the standard deviation is in another (ppl_sd). */
#ifndef EXP_PASTE_H
#define EXP_PASTE_H

#include "experiments/report/headings.h"
#include "experiments/report/labels.h"
#include "experiments/report/rows.h"

#include <stdio.h>

typedef struct exp_field {
    exp_heading heading;
    char name[64];  // as it was asked for
    char head[64];
    int column, se; // of the rows; -1: none
    bool of_dense;  // divided by the dense model's value
    bool is_label;  // what was done; column is -1
    bool is_number; // every known cell of the lines is one
} exp_field;

typedef struct exp_sheet {
    const exp_rows *rows;
    const exp_lines *lines;
    const char *join; // column whose values were joined; NULL: none
    const char *against; // the model that `difference` is from; NULL: there is no such column
    exp_field *field; // n_fields
    size_t n_fields;
    bool for_programs; // without --columns: names of files and all that was done, instead of labels
    exp_labels labels;
} exp_sheet;

/* NAME or NAME/base. */
int exp_field_find(exp_field *f, const exp_sheet *s, const char *name, dw_err *err);
/* The number of a field in a line, in the file's unit; *error is its standard error, of joined rows their standard
 * deviation.  NaN: unknown. */
double exp_field_value(const exp_sheet *s, const exp_field *f, const exp_line *line, double *error);

double exp_field_scale(const exp_field *f); // from the file's unit to the heading's

/* Fields by name, separated by commas; NULL: the usual ones that are known; treatments only where they differ. */
int exp_sheet_fields(exp_sheet *s, const char *names, dw_err *err);
void exp_sheet_release(exp_sheet *s);

/* A text that is printed into memory. */
typedef struct exp_text {
    FILE *out;
    char *text;
    size_t size;
} exp_text;

int exp_text_begin(exp_text *t, dw_err *err);
/* The text, free(); NULL when rc tells of a failure, or memory ran out on the way. */
char *exp_text_end(exp_text *t, int rc, dw_err *err);

/* The whole output as text in *text (free()). */
typedef int exp_paste(const exp_sheet *s, char **text, dw_err *err);
exp_paste exp_paste_markdown, exp_paste_latex, exp_paste_tsv, exp_paste_csv;

#endif
