/* score.h - what the files of `deadwood score` share: the models of a run, their texts, and the rows they fill.
 *
 *     score.c     options; evaluates the models in groups, side by side with the base
 *     entrants.c  opens models and texts, and checks that they can be compared
 *     results.c   from the numbers of every token to sums of windows, rows and the row of all texts
 *     speeds.c    memory and speed, in a process a model
 *     printed.c   the short table, JSON, layers of gated models
 *
 * A model is first opened as an entrant (entrants.c), then evaluated text by text (score.c), each text filling one row
 * and its part of the window sums (results.c); finished rows are appended at once. */
#ifndef DW_SCORE_H
#define DW_SCORE_H

#include "experiments/measures.h"
#include "experiments/speed.h"
#include "kit/options.h"
#include "kit/progress.h"
#include "measure/evaluate.h"
#include "measure/statistics.h"
#include "measure/sums.h"
#include "text/tokenizers.h"

typedef struct score_options { // of the command line
    opt_list models, texts;
    const char *base, *store, *protocol, *precision, *out, *inject, *depths, *role;
    opt_range windows;
    int n_ctx, n_batch, n_rounds, n_prefill, n_decode, n_seq, n_beside;
    bool json, no_speed, speed_only, per_layer, columns;
} score_options;

typedef struct score_file { // a text
    const char *path;
    char *data;
    size_t size;
    uint8_t hash[32];
    char sha256[65];
} score_file;

typedef struct score_entrant { // a model with its ids of every text
    measure_entrant of;
    const char *path;
    dw_model *model;
    dw_tokenizer *tok;  // the model's
    measure_predictions *stored;
    char sha256[65];
    uint8_t hash[32], vocab[32];
    int32_t **ids; // n_texts
    size_t *n_ids;
    uint8_t (*ids_sha256)[32]; // n_texts: measure_ids_hash; zeros: unknown, of an older stored file
    int32_t bos;        // at the begin of each window, -1: none
    exp_result *result; // n_texts, and the mean; after the rows with quality one for each further depth
    exp_speed speed[EXP_SPEED_MAX_DEPTHS];
    double repeats;     // NaN: stored predictions
    double *n_open, *n_seen; // n_layer: neurons that counted in all texts, and all of them; of gated models
    char **leak;             // n_texts: why the model has seen that text; NULL: its lineage does not say so
    bool learnt_unnamed;     // from data that no text can be compared with
    measure_mean *nll, *kl, *agree, *ratio; // n_texts
    measure_paired *paired;
    measure_sums sums;
    int *place; // n_texts: of a text in the sums
} score_entrant;

typedef struct score_run {
    score_options *o;
    const measure_protocol *protocol;
    dw_kv_cache kv;
    dw_pool *pool;
    score_file *texts;
    int n_texts;
    score_entrant *all; // n_models, then the base
    int n_models;
    score_entrant *base; // NULL: none
    double bandwidth;
    const double *inject; // n_inject planted activities
    int n_inject;
    int depth[EXP_SPEED_MAX_DEPTHS], n_depths;
    progress *bar;
    size_t n_again; // rows that the table had before
} score_run;

/* ---- entrants.c */

/* Opens every text and model, and refuses what cannot be compared.  0, or -1. */
int score_open_all(score_run *r, dw_err *err);
void score_close_entrant(score_entrant *c, int n_texts);
/* Whether it is known how c cuts text t into tokens. */
bool score_knows_ids(const score_entrant *c, int t);
/* The place of text t in a stored entrant; its number of texts when it is not there. */
int score_find_stored_text(const score_entrant *c, const score_run *r, int t);
/* The windows of text t, as c cuts it into tokens; measure_windows_release(). */
int score_make_windows(measure_windows *w, const score_entrant *c, const score_run *r, int t, dw_err *err);
/* Every window of every model, made once before anything long begins; the number of tokens to be evaluated. */
int score_check_windows(const score_run *r, double *n_tokens, dw_err *err);

/* ---- results.c */

/* Rows of a model with quality, or with --speed-only the one without. */
int score_n_rows(const score_run *r);
/* With the rows of further depths, too. */
int score_n_all_rows(const score_entrant *c, const score_run *r);
/* What is known of every row before anything is measured. */
int score_begin_rows(score_entrant *c, const score_run *r, dw_err *err);
/* From the numbers of every token of text t to its row. */
int score_fill_text(score_entrant *c, const score_run *r, int t, const measure_windows *w, dw_err *err);
/* Completes the rows of a model and appends them, so that what is finished stays whatever happens to the rest. */
int score_finish(score_entrant *c, score_run *r, dw_err *err);

/* ---- speeds.c */

/* Starts a process a model, before this one has any thread; *n counts the processes that run, also on failure. */
int score_start_speed(exp_child *children, int *n, const score_run *r, dw_err *err);
/* children[k] belongs to the k-th live model. */
int score_measure_speed(score_run *r, exp_child *children, int n, dw_err *err);
/* What was measured of a model's speed, in its rows. */
void score_fill_speed(score_entrant *c, const score_run *r);

/* ---- printed.c */

int score_print_rows(const score_run *r, dw_err *err);
void score_print_columns(void);

#endif
