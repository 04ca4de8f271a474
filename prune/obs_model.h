/* obs_model.h - exact selection (obs.h) for the layers of a model. */
#ifndef PRUNE_OBS_MODEL_H
#define PRUNE_OBS_MODEL_H

#include "engine.h"
#include "kit/progress.h"
#include "prune/obs.h"

/* A matrix as floats, in its shape; free(). */
float *prune_decode(const dw_tensor *t, dw_pool *pool, dw_err *err);
/* down of a layer as (n_embd, n_ff) floats; free(). */
float *prune_decode_down(const dw_model *m, int layer, dw_pool *pool, dw_err *err);

typedef struct obs_model_task {
    const dw_model *model;
    kit_gram *gram;
    bool by_gradient; // errors of the output are weighted by its gradient (output_norm.h)
    int group;
    double most; // fraction of a layer's neurons that is removed at most
    double damp;  // as in obs_task
    int most_f64; // as in obs_task
    dw_pool *pool;
    damping_report *report;         // may be NULL
    progress *bar;                  // hears of layers; may be NULL
} obs_model_task;

/* Scores of all groups, as kit_score gives them.  score (n_layer) gets a list for each layer, or NULL after a failure;
 * the caller frees the lists in both cases. */
int obs_score_model(const obs_model_task *t, double **score, dw_err *err);

void obs_orders_free(obs_order *order, int n_layer); // NULL is allowed

#endif
