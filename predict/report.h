/* report.h - what train says of its predictors: a line for each layer and method, and a verdict.
 *
 * The verdict is the gain: the mass that a predictor captures minus that of a rival, of the same held-out tokens.  The
 * static choice opens as many groups as the predictor there.  linear and network open as many as the predictor on the
 * choosing part, and nearly as many here; gate and never open what they open, so compare their column active as well.
 * Its error is clustered by the windows that the held-out tokens are of (measure/statistics.h), because
 * neighbouring tokens resemble each other; its interval is by Student's t.
 *
 * Columns of the file (tab-separated, a header line; unknown is "-"):
 *   layer method tokens decisions rank epochs      layer * : all of them
 *   open active accuracy recall precision mass mass_p5     of tally.h; mass_p5: the 5th percentile of tokens
 *   gain gain_se gain_ci90 windows                 the predictor's mass minus this method's, its standard error, half
 *                                                  of the 90 % interval, and the number of windows
 *   form                                           of the predictor: linear (the closed form won) or network; over all
 *                                                  layers how many of each */
#ifndef PREDICT_REPORT_H
#define PREDICT_REPORT_H

#include "predict/learn.h"

typedef struct predict_gain {
    double mean, se, half; // half: of the 90 % interval; NaN where windows are too few
} predict_gain;

typedef struct predict_result { // of a layer, or of all of them
    int layer, rank, n_epochs;  // layer -1: all
    int n_linear, n_network;    // layers of each form
    size_t n_windows;
    predict_tally held_out[PREDICT_LEARN_N_METHODS];
    double mass_5[PREDICT_LEARN_N_METHODS];
    predict_gain gain[PREDICT_LEARN_N_METHODS]; // of the predictor over the method
} predict_result;

/* The held-out tokens by window. */
typedef struct predict_windows {
    size_t n, n_tokens;
    uint32_t *of; // (n_tokens)
} predict_windows;

int predict_windows_of(predict_windows *w, const traces *t, dw_err *err);
void predict_windows_release(predict_windows *w);

/* The gains, from the masses of all methods: (n_rows, w->n_tokens) each, a row per layer. */
int predict_result_gains(predict_result *x, float *const mass[PREDICT_LEARN_N_METHODS], size_t n_rows,
                         const predict_windows *w, dw_err *err);
/* mass_5, from n masses of each method, which are sorted. */
void predict_result_percentiles(predict_result *x, float *const mass[PREDICT_LEARN_N_METHODS], size_t n);

/* n layers and after them all of them together. */
int predict_report_write(const char *path, const predict_result *x, size_t n, dw_err *err);
/* The same for people, as one text; free(). */
char *predict_report_text(const predict_result *x, size_t n, const traces *t, dw_err *err);

#endif
