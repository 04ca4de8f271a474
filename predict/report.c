/* report.c - gains with their errors, and the tables of train (report.h). */
#include "predict/report.h"

#include "kit/talk.h"
#include "measure/statistics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- gains ------------------------------------------------------------------------------------------------------- */

int predict_windows_of(predict_windows *w, const traces *t, dw_err *err) {
    const size_t per_window = (size_t)(t->n_ctx - t->skip);
    *w = (predict_windows){.n_tokens = predict_examples_count(t, PREDICT_EXAMPLES_HELD_OUT)};
    w->of = dw_alloc(w->n_tokens, sizeof *w->of, "windows", err);
    if (!w->of) return -1;
    size_t row = 0;
    for (size_t i = 0; i < t->n_text; i++) {
        size_t first;
        const size_t n = predict_examples_part_of(t->text[i].n_tokens, PREDICT_EXAMPLES_HELD_OUT, &first);
        for (size_t k = first; k < first + n; k++) {
            w->n += k == first || k % per_window == 0;
            w->of[row++] = (uint32_t)(w->n - 1);
        }
    }
    return 0;
}

void predict_windows_release(predict_windows *w) {
    free(w->of);
    *w = (predict_windows){0};
}

typedef struct sums { // by window
    double *gain, *n;
} sums;

static void add_gains(sums *s, const float *a, const float *b, size_t n_rows, const predict_windows *w) {
    memset(s->gain, 0, w->n * sizeof *s->gain);
    memset(s->n, 0, w->n * sizeof *s->n);
    for (size_t i = 0; i < n_rows * w->n_tokens; i++) {
        const uint32_t window = w->of[i % w->n_tokens];
        s->gain[window] += (double)a[i] - (double)b[i];
        s->n[window]++;
    }
}

static predict_gain gain_of(const sums *s, size_t n_windows) {
    const measure_mean m = measure_mean_of_windows(s->gain, s->n, n_windows);
    return (predict_gain){m.mean, m.se, measure_half_width(&m, 0.9)};
}

int predict_result_gains(predict_result *x, float *const mass[PREDICT_LEARN_N_METHODS], size_t n_rows,
                         const predict_windows *w, dw_err *err) {
    sums s = {dw_alloc(w->n, sizeof *s.gain, "sums of windows", err),
              dw_alloc(w->n, sizeof *s.n, "sums of windows", err)};
    int rc = s.gain && s.n ? 0 : -1;
    x->n_windows = w->n;
    for (int m = 0; m < PREDICT_LEARN_N_METHODS && !rc; m++) {
        add_gains(&s, mass[PREDICT_LEARN_PREDICTOR], mass[m], n_rows, w);
        x->gain[m] = gain_of(&s, w->n);
    }
    free(s.gain);
    free(s.n);
    return rc;
}

void predict_result_percentiles(predict_result *x, float *const mass[PREDICT_LEARN_N_METHODS], size_t n) {
    for (int m = 0; m < PREDICT_LEARN_N_METHODS; m++) x->mass_5[m] = predict_tally_percentile_5(mass[m], n);
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

typedef struct shown {
    char text[24];
} shown;

/* Unknown is "-". */
static shown show(const char *format, double v) {
    shown s = {"-"};
    if (!isnan(v)) snprintf(s.text, sizeof s.text, format, v);
    return s;
}

static shown number(double v) { return show("%.6f", v); }
static shown brief(double v) { return show("%.4f", v); }

static int write_numbers(dw_out *out, const double *v, size_t n, dw_err *err) {
    for (size_t i = 0; i < n; i++)
        if (dw_out_printf(out, err, "\t%s", number(v[i]).text)) return -1;
    return 0;
}

static int write_line(dw_out *out, const predict_result *x, predict_learn_method m, dw_err *err) {
    const predict_tally *t = &x->held_out[m];
    const predict_gain *g = &x->gain[m];
    const bool is_own = m == PREDICT_LEARN_PREDICTOR;
    const double v[] = {predict_tally_open(t),
                        predict_tally_active(t),
                        predict_tally_accuracy(t),
                        predict_tally_recall(t),
                        predict_tally_precision(t),
                        predict_tally_mass(t),
                        x->mass_5[m],
                        is_own ? NAN : g->mean,
                        is_own ? NAN : g->se,
                        is_own ? NAN : g->half};
    char layer[16] = "*", epochs[16] = "-", form[48] = "-";
    if (x->layer >= 0) snprintf(layer, sizeof layer, "%d", x->layer);
    if (x->layer >= 0) snprintf(epochs, sizeof epochs, "%d", x->n_epochs);
    if (is_own && x->layer >= 0) snprintf(form, sizeof form, "%s", x->n_linear ? "linear" : "network");
    if (is_own && x->layer < 0) snprintf(form, sizeof form, "%d linear, %d network", x->n_linear, x->n_network);
    if (dw_out_printf(out, err, "%s\t%s\t%llu\t%llu\t%d\t%s", layer, predict_learn_method_names[m],
                      (unsigned long long)t->n_tokens, (unsigned long long)t->n_decisions, x->rank, epochs))
        return -1;
    if (write_numbers(out, v, sizeof v / sizeof *v, err)) return -1;
    return dw_out_printf(out, err, "\t%zu\t%s\n", x->n_windows, form);
}

int predict_report_write(const char *path, const predict_result *x, size_t n, dw_err *err) {
    static const char head[] =
        "layer\tmethod\ttokens\tdecisions\trank\tepochs\topen\tactive\taccuracy\trecall\tprecision"
        "\tmass\tmass_p5\tgain\tgain_se\tgain_ci90\twindows\tform\n";
    dw_out *out = dw_out_open(path, err);
    int rc = out ? dw_out_write(out, head, sizeof head - 1, err) : -1;
    for (size_t i = 0; i <= n && !rc; i++)
        for (int m = 0; m < PREDICT_LEARN_N_METHODS && !rc; m++)
            rc = write_line(out, &x[i], (predict_learn_method)m, err);
    if (!rc) rc = dw_out_commit(out, err);
    dw_out_free(out);
    return rc;
}

/* ---- for people -------------------------------------------------------------------------------------------------- */

static int tell_layer(char **text, const predict_result *x, dw_err *err) {
    const predict_tally *t = x->held_out, *p = &t[PREDICT_LEARN_PREDICTOR];
    return dw_append(
        text, err, "%5d %6d %-7s  %6s %6s | %6s %6s %6s %8s | %6s %6s %7s\n", x->layer, x->n_epochs,
        x->n_linear ? "linear" : "network", brief(predict_tally_open(t)).text, brief(predict_tally_mass(t)).text,
        brief(predict_tally_active(p)).text, brief(predict_tally_recall(p)).text, brief(predict_tally_mass(p)).text,
        brief(x->mass_5[PREDICT_LEARN_PREDICTOR]).text, brief(predict_tally_mass(&t[PREDICT_LEARN_STATIC])).text,
        brief(predict_tally_mass(&t[PREDICT_LEARN_LINEAR])).text,
        brief(predict_tally_mass(&t[PREDICT_LEARN_NETWORK])).text);
}

static shown show_gain(const predict_gain *g) {
    shown s = show("%+.4f", g->mean);
    if (!isnan(g->half)) snprintf(s.text, sizeof s.text, "%+.4f ± %.4f", g->mean, g->half);
    return s;
}

static int tell_method(char **text, const predict_result *all, int m, dw_err *err) {
    const predict_tally *t = &all->held_out[m];
    const predict_gain *g = &all->gain[m];
    if (dw_append(text, err, "%-10s  %6s    %6s  %6s     %6s  %6s %6s", predict_learn_method_names[m],
                  brief(predict_tally_active(t)).text, brief(predict_tally_accuracy(t)).text,
                  brief(predict_tally_recall(t)).text, brief(predict_tally_precision(t)).text,
                  brief(predict_tally_mass(t)).text, brief(all->mass_5[m]).text))
        return -1;
    const bool has_gain = m == PREDICT_LEARN_STATIC || m == PREDICT_LEARN_LINEAR || m == PREDICT_LEARN_NETWORK;
    if (!has_gain) return dw_append(text, err, "\n");
    return dw_append(text, err, "    %s\n", show_gain(g).text);
}

/* What the gain over the static choice, with its interval, says. */
static const char *verdict(const predict_gain *g) {
    if (isnan(g->half)) return "there are too few windows for an error, so nothing follows; trace more texts";
    if (g->mean - g->half > 0) return "they find more than always the same groups do";
    if (g->mean + g->half < 0) return "always the same groups capture more, so cutting is cheaper";
    return "no difference from always the same groups can be told, so cutting is cheaper";
}

static int tell_verdict(char **text, const predict_result *all, dw_err *err) {
    const predict_gain *g = &all->gain[PREDICT_LEARN_STATIC];
    const predict_tally *p = &all->held_out[PREDICT_LEARN_PREDICTOR];
    char interval[80] = "";
    if (!isnan(g->half))
        snprintf(interval, sizeof interval, " (90 %% interval over %zu windows, conditional on these texts)",
                 all->n_windows);
    return dw_append(text, err,
                     "\nThe predictors capture %s of the mass at an activity of %s: %s more than the static choice, "
                     "which costs nothing%s: %s.\n"
                     "In %d of %d layers the closed form captured at least as much as the trained network on the "
                     "tokens that choose, "
                     "and is stored.\n",
                     brief(predict_tally_mass(p)).text, brief(predict_tally_active(p)).text, show_gain(g).text,
                     interval, verdict(g), all->n_linear, all->n_linear + all->n_network);
}

static int tell(char **text, const predict_result *x, size_t n, const traces *t, dw_err *err) {
    static const char layers[] =
        "                         gate        | predictor                    | mass of rivals\n"
        "layer epochs form        open   mass | active recall   mass mass p5 | static linear network\n";
    static const char methods[] =
        "            active  accuracy  recall  precision    mass mass p5   predictor's gain\n";
    int rc = dw_append(text, err, "%s", layers);
    for (size_t i = 0; i < n && !rc; i++) rc = tell_layer(text, &x[i], err);
    if (!rc)
        rc = dw_append(text, err, "\nall layers, on %zu held-out tokens of %zu text%s; groups of %d; rank %d\n%s",
                       predict_examples_count(t, PREDICT_EXAMPLES_HELD_OUT), t->n_text, plural((double)t->n_text),
                       t->group, x[n].rank, methods);
    for (int m = 0; m < PREDICT_LEARN_N_METHODS && !rc; m++) rc = tell_method(text, &x[n], m, err);
    return rc ? rc : tell_verdict(text, &x[n], err);
}

char *predict_report_text(const predict_result *x, size_t n, const traces *t, dw_err *err) {
    char *text = NULL;
    if (!tell(&text, x, n, t, err)) return text;
    free(text);
    return NULL;
}
