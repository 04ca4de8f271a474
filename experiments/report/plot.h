/* plot.h - lines of a table as a picture: gnuplot draws it, run as a program with its script on standard input.
 *
 * Points of one series are joined in the order of x.  An axis is logarithmic when its values are positive and reach over
 * a factor of 20.  Standard errors become bars; the dense model becomes a dashed line; where it is known for both axes
 * which way is better, the Pareto front is drawn behind.  The same rows give the same bytes. */
#ifndef EXP_PLOT_H
#define EXP_PLOT_H

#include "experiments/report/paste.h"

typedef struct exp_axes {
    const char *x, *y; // fields; y may be several, separated by commas
    const char *by;    // a column whose values are series; NULL: of results the metric, rule or type, else one series
} exp_axes;

/* The script that gnuplot reads, free().  Fails when no line has both numbers, or a column holds texts. */
char *exp_plot_script(const exp_sheet *s, const exp_axes *axes, dw_err *err);
/* The SVG that gnuplot makes of a script, free().  Fails, naming the package, when there is no gnuplot. */
char *exp_plot_draw(const char *script, dw_err *err);

#endif
