/* labels.h - what a line of results is called: what was done to its model, in words.
 *
 * "energy, rate 0.2, group 64, Q4_K_M": the metric or rule and what else differs between the lines, numbers with the
 * name of their column; all columns where nothing of the line's own does.  Repair and healing are named where lines
 * differ in them: "energy, rate 0.2, repaired, healed 6144 tokens".  The dense model is "dense"; where there are
 * several, with what differs between them, "dense, qwen3".  A line of which nothing is known keeps the name of its
 * file. */
#ifndef EXP_LABELS_H
#define EXP_LABELS_H

#include "experiments/report/rows.h"

enum { EXP_LABEL = 512 };

typedef struct exp_labels {
    const exp_rows *rows;
    int *column;              // n_columns that tell what was done: as in the headings, then variables of a sweep
    bool *differs;            // (n_columns) whether lines differ there, or it is the metric or rule
    bool *dense_differ;       // (n_columns) whether dense lines differ there
    size_t n_columns;
    int model;                // the column of file names
    const exp_line **by_name; // n lines in the order of their models' names
    size_t n;
} exp_labels;

/* Borrows rows and lines until exp_labels_release. */
int exp_labels_make(exp_labels *l, const exp_rows *r, const exp_lines *lines, dw_err *err);
void exp_labels_release(exp_labels *l);

/* True when lines come from a sweep, whose file names are no names for readers. */
bool exp_labels_are_needed(const exp_rows *r, const exp_lines *lines);

void exp_label(char text[EXP_LABEL], const exp_labels *l, const exp_line *line);
/* Whether labels tell lines apart by a step that may be left out: repair, or tokens_trained of heal. */
bool exp_labels_tell(const exp_labels *l, const char *column);
bool exp_is_healed(const exp_labels *l, const exp_line *line);
/* The label of the line of a model's file; the name itself where no line has it. */
void exp_label_of_model(char text[EXP_LABEL], const exp_labels *l, const char *model);

#endif
