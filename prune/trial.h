/* trial.h - what widths of the layers cost: the divergence of the cut model from the whole one, measured on texts.
 *
 * KL(whole || cut) in nats per token, at the positions of the second half of every window.  It is taken over the 64
 * likeliest tokens of the whole model and the mass of all others (measure/distribution.h).  The texts must be held out:
 * the scores and the repair have not seen them.  A layer of width w keeps the neurons of the best scores; with Gram
 * matrices its down is repaired (repair.h), without them removed columns are zero.
 *
 * A trial starts at the first layer whose width differs from the accepted widths; its residuals are stored.
 * Repaired matrices are kept in BF16, because the same widths come again and again; where they take more than 4 GiB,
 * the oldest ones of a layer go. */
#ifndef PRUNE_TRIAL_H
#define PRUNE_TRIAL_H

#include "kit/calib.h"
#include "kit/gram.h"

typedef struct trial_options {
    const dw_model *model;
    kit_gram *gram; // NULL: no repair
    double damp;    // of the repair
    const calib_texts *texts;
    double *const *score; // (n_layer) lists of n_ff / group
    int group;
    const bool *drop; // (n_layer): these layers are left out
    dw_pool *pool;
    const char *backend; // NULL: the default
} trial_options;

typedef struct prune_trial prune_trial;

/* Evaluates the whole model; all layers have their whole width. */
prune_trial *trial_new(const trial_options *o, dw_err *err);
void trial_free(prune_trial *t);

int trial_n_windows(const prune_trial *t);
/* kl: the mean of every window (trial_n_windows). */
int trial_run(prune_trial *t, const int *n_keep, double *kl, dw_err *err);
/* From now on trials with these widths in their first layers are cheap. */
int trial_accept(prune_trial *t, const int *n_keep, dw_err *err);

#endif
