/* plot.h - lines of a table as a picture: gnuplot draws it, run as a program with its script on standard input.
 *
 * A series holds the points of one value, or of one pair of values, of the columns `by`.  Its points are joined in the
 * order of x, unless two of them have the same x.  Rows that differ in the seed only become a filled band from the
 * least to the largest, with their mean as a line.  Where rows of pruned or gated models are drawn and no `by` is
 * given, plain quantizations of the whole model are one series: its line joins neighbouring mixtures, each with its
 * name.
 *
 * An axis is logarithmic when its values are positive and reach over a factor of 20.  Standard errors become bars.  The
 * dense model is a dashed line and a point; where it would squeeze all others into less than half of an axis, it is
 * left out there, and the legend says where it is.  Where it is known for both axes which way is better, the Pareto
 * front is drawn beneath the points.  The same rows give the same bytes. */
#ifndef EXP_PLOT_H
#define EXP_PLOT_H

#include "experiments/report/paste.h"

typedef struct exp_range { // of an axis, in its unit
    double from, to;
    bool has_from, has_to; // false: that end is open
} exp_range;

/* "A:B", "A:" or ":B"; NULL leaves both ends open. */
int exp_range_read(exp_range *r, const char *text, dw_err *err);

typedef struct exp_axes {
    const char *x, *y; // fields; y may be several, separated by commas
    const char *by;    // columns whose values are series, separated by commas; NULL: of results metric, rule or type
    const char *title; // NULL: none
    exp_range x_range, y_range;
} exp_axes;

typedef enum exp_picture { EXP_SVG, EXP_PDF, EXP_PNG, EXP_NO_PICTURE } exp_picture;
exp_picture exp_picture_of(const char *path); // by the ending of a file's name

/* The script that gnuplot reads, free().  *n_outside points lie outside the ranges and are not drawn.  Fails when no
 * line has both numbers, or a column holds texts. */
char *exp_plot_script(const exp_sheet *s, const exp_axes *axes, exp_picture picture, size_t *n_outside, dw_err *err);
/* The picture of *size bytes that gnuplot makes of a script, free().  Fails, naming the package, without gnuplot. */
char *exp_plot_draw(const char *script, exp_picture picture, size_t *size, dw_err *err);

#endif
