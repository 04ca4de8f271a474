/* rank.h - what the files of `deadwood rank` share.
 *
 *     rank.c           options, help, and their checks
 *     rank_inputs.c    model and statistics; layers that are dropped or protected; heads
 *     rank_scores.c    the metrics of the kit and obs, and their scores
 *     rank_widths.c    how many neurons each layer keeps
 *     rank_plan.c      the plan that is written, and the table of scores
 *     rank_compare.c   --compare and --ablation
 *
 * Inputs are opened first, then scores are made, from them widths, and from both the plan. */
#ifndef PRUNE_RANK_H
#define PRUNE_RANK_H

#include "kit/calib.h"
#include "kit/gram.h"
#include "kit/metrics.h"
#include "kit/options.h"
#include "prune/allocate.h"
#include "prune/search.h"
#include "prune/timing.h"

typedef struct rank_options { // of the command line; rate -1: not given
    const char *model, *stats, *out, *scores, *metric, *group, *allocate, *as, *output_type, *start;
    opt_list texts;
    opt_range windows;
    int n_ctx, evaluations;
    double rate, damp, heads, us;
    const char *heads_allocate, *ablation;
    size_t bytes;
    int multiple, min_width, drop_layers, seed, sample;
    const char *protect;
    bool compare, least_bytes;
    int most_f64; // no option: as in obs_task, lowered by tests
} rank_options;

typedef struct rank_inputs {
    const rank_options *o;
    dw_model *model;
    const dw_hparams *hp;
    kit_stats stats;
    bool has_stats;
    char model_sha256[65], stats_sha256[65];
    kit_scorer scorer;
    prune_sizes sizes;
    bool *drop;        // (n_layer)
    bool *protect;     // (n_layer): --protect; NULL: none
    bool **kv;         // (n_layer) of n_head_kv: KV heads that stay, NULL where all do; NULL: --heads is not given
    double heads_reached; // fraction of the KV heads of layers that may be cut
    double *influence; // (n_layer): block influence; NULL: no layer is dropped
    double *inverse;   // (n_layer): E[1 / ||x||^2] of the residual after the layer; NULL: not needed
    kit_gram gram;     // when the metric or the allocation reads it
    calib_texts texts; // held out
    prune_search search;
    char *state, key[65];
    dw_hold *hold; // of the state
    timing times; // with --us
} rank_inputs;

/* ---- rank_inputs.c */

int rank_open_inputs(rank_inputs *in, const rank_options *o, dw_pool *pool, dw_err *err);
void rank_close_inputs(rank_inputs *in);
/* What the texts of the statistics, and those of -f that have been read, take in the lineage of a cut file. */
size_t rank_lineage_bytes(const rank_inputs *in);
int rank_read_protected(rank_inputs *in, dw_err *err);
int rank_choose_layers(rank_inputs *in, dw_err *err); // which are dropped
int rank_choose_heads(rank_inputs *in, dw_err *err);
int rank_n_kv_kept(const rank_inputs *in, int l);
int rank_measure_residual(rank_inputs *in, dw_err *err); // where the allocation needs it
/* STATS.gram, if it is there or must be. */
int rank_open_gram(rank_inputs *in, bool must, dw_err *err);
int rank_read_texts(rank_inputs *in, dw_err *err); // those of -f, once
/* A text of -f of whose tokens the statistics have some; NULL: none. */
const calib_text *rank_find_seen(const rank_inputs *in);
/* Warns where the texts of -f have too few windows for a standard error, and says what comes of it. */
void rank_warn_of_few(const rank_inputs *in, const char *then);
/* Warns of a text of -f that is another file than those of the statistics, but has tokens of one of them. */
int rank_warn_of_shared(const rank_inputs *in, dw_err *err);
void rank_say(const char *text);

/* ---- rank_scores.c */

extern kit_metric rank_metrics[]; // those of the kit, obs, obs-gradient; ends with name NULL
void rank_list_metrics(void);     // fills it
const kit_metric *rank_find_metric(const char *name);
bool rank_is_obs(const kit_metric *m);
/* Whether the statistics, and for obs the Gram matrices, have what the metric needs. */
bool rank_can_score(const rank_inputs *in, const kit_metric *m);
/* score[l]: a list for each layer; free() each. */
int rank_make_scores(rank_inputs *in, const kit_metric *metric, double **score, dw_err *err);

/* ---- rank_widths.c */

/* The rule that compares scores of layers: that of --start where evolve starts from it.  *option: what names it. */
const prune_allocator *rank_first_rule(const rank_options *o, const char **option);
/* What widths are multiples of: --multiple and --group, or the coarsest that is tried. */
int rank_unit(const rank_options *o, int group);
/* What a cut file may have: --bytes; where the model fits as it is, what all its neurons take, because no cut then adds
 * to the lineage. */
double rank_bytes_of_widths(const rank_inputs *in);
/* n_keep (n_layer), with the first multiple that comes near enough or the one that was asked for; *wanted: the rate. */
int rank_choose_widths(const rank_inputs *in, prune_task *t, const prune_allocator *a, double *wanted, int *n_keep,
                       dw_err *err);
/* --least-bytes: the file with the least widths that the options allow, as a number on standard output. */
int rank_print_least_bytes(const rank_inputs *in, dw_err *err);
/* Fails when no neuron goes although some should. */
int rank_check_rate(const prune_task *t, double wanted, const int *n_keep, dw_err *err);
/* Warns when the rate, or the one that --bytes needs, is missed by more than 0.01. */
void rank_warn_of_rate(const prune_task *t, double wanted, const int *n_keep);
/* Reads the held-out texts of a rule that runs the model, and checks what it can without scores. */
int rank_prepare_search(rank_inputs *in, const prune_allocator *a, dw_err *err);
/* Widths by that rule, with the unit that the uniform rule has found. */
int rank_search_widths(rank_inputs *in, prune_task *t, const prune_allocator *a, int *n_keep, dw_err *err);
/* --us: a time as the rate of the widest layers that keep to it. */
int rank_measure_times(rank_inputs *in, prune_task *t, dw_err *err);

/* ---- rank_plan.c */

/* Lines of a comment that say what a file was made from. */
int rank_describe_inputs(char **comment, const rank_inputs *in, dw_err *err);
/* Scores, where a metric is given, and what is made of them. */
int rank_score_and_plan(rank_inputs *in, dw_err *err);

/* ---- rank_compare.c */

int rank_compare(rank_inputs *in, dw_err *err);
int rank_ablate(rank_inputs *in, dw_err *err);

#endif
