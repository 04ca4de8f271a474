/* printed.c - what `deadwood score` prints: the short table, JSON, the layers of gated models. */
#include "experiments/score/score.h"
#include "formats/ffn_gated.h"
#include "kit/talk.h"
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT_COLUMNS = 9, CELL = 64 };

static void cell_with_se(char *cell, double v, double se, int digits) {
    if (isnan(v))
        snprintf(cell, CELL, "-");
    else if (isnan(se))
        snprintf(cell, CELL, "%.*f", digits, v);
    else
        snprintf(cell, CELL, "%.*f ± %.*f", digits, v, digits, se);
}

static void cell_number(char *cell, double v, const char *format) {
    if (isnan(v))
        snprintf(cell, CELL, "-");
    else
        snprintf(cell, CELL, format, v);
}

static void short_row(char (*cell)[CELL], const exp_result *r) {
    dw_show(cell[0], 40 + 1, r->model, strlen(r->model));
    const char *what = *r->text ? r->text : r->speed_test;
    dw_show(cell[1], 24 + 1, what, strlen(what));
    cell_with_se(cell[2], r->ppl, r->ppl_se, r->ppl < 100 ? 3 : 1);
    cell_with_se(cell[3], r->ln_ratio, r->ln_ratio_se, 5);
    cell_with_se(cell[4], r->kl_mean, r->kl_se, 5);
    cell_with_se(cell[5], 100 * r->top1_agree, 100 * r->top1_se, 2);
    cell_number(cell[6], r->file_bytes / 1e6, "%.1f");
    cell_number(cell[7], r->prefill_tok_s, "%.0f");
    cell_number(cell[8], r->decode_tok_s, r->decode_tok_s < 100 ? "%.1f" : "%.0f");
    if (*r->disturbed && strcmp(r->disturbed, "no")) strcat(cell[8], " !");
    if (!strcmp(r->kl_kind, "top64")) strcat(cell[4], " or more");
}

static void print_cells(char (*cell)[CELL], const int *width) {
    for (int c = 0; c < SHORT_COLUMNS; c++) {
        const int pad = width[c] - exp_width_of(cell[c]);
        if (c < 2)
            printf("%s%s%*s", c ? "  " : "", cell[c], pad, "");
        else
            printf("  %*s%s", pad, "", cell[c]);
    }
    printf("\n");
}

static bool any_without_error(const exp_result *r, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isnan(r[i].ppl) && r[i].windows < MEASURE_LEAST_WINDOWS) return true;
    return false;
}

static int print_short(const exp_result *r, size_t n, dw_err *err) {
    static const char *const heads[SHORT_COLUMNS] = {"model",   "text", "ppl",           "ln ratio",    "KL",
                                                     "top-1 %", "MB",   "prefill tok/s", "decode tok/s"};
    char(*cell)[SHORT_COLUMNS][CELL] = dw_alloc(n + 1, sizeof *cell, "a table", err);
    int width[SHORT_COLUMNS] = {0};
    if (!cell) return -1;
    for (int c = 0; c < SHORT_COLUMNS; c++) snprintf(cell[0][c], CELL, "%s", heads[c]);
    for (size_t i = 0; i < n; i++) short_row(cell[i + 1], &r[i]);
    for (size_t i = 0; i <= n; i++)
        for (int c = 0; c < SHORT_COLUMNS; c++)
            if (exp_width_of(cell[i][c]) > width[c]) width[c] = exp_width_of(cell[i][c]);
    for (size_t i = 0; i <= n; i++) print_cells(cell[i], width);
    for (size_t i = 0; i < n; i++)
        if (*r[i].disturbed && strcmp(r[i].disturbed, "no") && (!i || strcmp(r[i].model, r[i - 1].model)))
            say("the speed of '%s' was disturbed: %s", r[i].model, r[i].disturbed);
    if (any_without_error(r, n)) say("± is a standard error over windows (fewer than %d windows: none)", MEASURE_LEAST_WINDOWS);
    free(cell);
    return 0;
}

static int print_json(const exp_result *r, size_t n, dw_err *err) {
    for (size_t i = 0; i < n; i++) {
        char *line = exp_result_json(&r[i], err);
        if (!line) return -1;
        puts(line);
        free(line);
    }
    return 0;
}

/* A gated model's layers: what was wanted, what the calibration texts gave, what was met. */
static void print_layers(const score_entrant *c) {
    const dw_gguf *g = dw_model_gguf(c->model);
    const dw_hparams *hp = dw_model_hparams(c->model);
    const char *wanted = *c->result[0].activity ? c->result[0].activity : "-";
    dw_str rule = {"-", 1};
    uint32_t group = 0;
    dw_gguf_str(g, DW_KEY_GATE_RULE, &rule, NULL);
    dw_gguf_u32(g, DW_KEY_GATE_GROUP, &group, NULL);
    show_text(stdout, c->result[0].model, strlen(c->result[0].model));
    printf(": rule ");
    show_text(stdout, rule.ptr, rule.len);
    printf(", groups of %u, select %s, activity ", group, tool.select);
    show_text(stdout, wanted, strlen(wanted));
    printf(" wanted\n");
    printf("%5s  %6s  %12s  %6s  %9s  %9s  %12s\n", "layer", "n_ff", "threshold", "dense", "expected", "coverage",
           "bytes/token");
    for (int l = 0; l < hp->n_layer; l++) {
        const dw_layer_gate *s = &c->model->net.layer[l].sparse;
        const exp_reading *reading = &c->speed[0].reading;
        const double coverage = c->n_seen[l] > 0   ? c->n_open[l] / c->n_seen[l]
                                : reading->n_layer ? reading->open[l]
                                                   : NAN;
        char cell[4][CELL];
        cell_number(cell[0], s->down_t.name && !s->pred_a.name && !s->dense ? (double)s->threshold : NAN, "%.6g");
        cell_number(cell[1], s->down_t.name && !s->pred_a.name ? (double)s->activity : NAN, "%.4f");
        cell_number(cell[2], coverage, "%.4f");
        cell_number(cell[3], reading->n_layer ? reading->bytes[l] : NAN, "%.0f");
        printf("%5d  %6d  %12s  %6s  %9s  %9s  %12s\n", l, hp->n_ff[l], cell[0],
               s->dense || !s->down_t.name ? "yes" : "no", cell[1], cell[2], cell[3]);
    }
}

int score_print_rows(const score_run *r, dw_err *err) {
    size_t n = 0, at = 0;
    for (int i = 0; i < r->n_models; i++) n += (size_t)score_n_all_rows(&r->all[i], r);
    exp_result *all = dw_alloc(n, sizeof *all, "rows", err);
    if (!all) return -1;
    for (int i = 0; i < r->n_models; i++)
        for (int t = 0; t < score_n_all_rows(&r->all[i], r); t++) all[at++] = r->all[i].result[t];
    int rc = r->o->json ? print_json(all, n, err) : print_short(all, n, err);
    for (int i = 0; i < r->n_models && r->o->per_layer && !rc; i++) {
        const score_entrant *c = &r->all[i];
        if (c->model && dw_model_is_gated(c->model)) print_layers(c);
        else say("'%s' %s: --per-layer prints nothing of it", c->path, c->model ? "is not gated" : "is stored predictions");
    }
    free(all);
    return rc;
}

void score_print_columns(void) {
    printf("column\tmeaning\n");
    for (const exp_column *c = exp_columns; c->name; c++) printf("%s\t%s\n", c->name, c->help);
}
