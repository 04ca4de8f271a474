/* evaluate.h - what models predict for the scored tokens of a text, and how far that is from a base's predictions.
 *
 * The windows of a text are one stream of tokens, evaluated in pieces that fill the engine's batch whatever the
 * length of a window; logits are fetched a tile of rows at a time and never stored. Everybody evaluates a piece
 * before the next one begins, so the base is evaluated once for all models. Log-probabilities always come from
 * exp_row_of, and each token's numbers depend on its logits only: with sessions made `exact` they are the same for
 * every number of threads and every size of batch. */
#ifndef EXP_EVALUATE_H
#define EXP_EVALUATE_H

#include "engine.h"
#include "measure/predictions.h"
#include "measure/windows.h"

typedef struct exp_entrant {    // a model in a comparison, or its stored predictions
    const char *name;           // for errors
    const dw_model *model;      // NULL: stored
    exp_predictions *stored;    // at the text's begin
    dw_session *session;        // of exp_entrant_open
    float *logits;              // (tile, n_vocab)
    exp_row *row;               // (tile)
    exp_prediction *prediction; // (tile): stored, or to be stored
    /* results, by scored token of the text: room for n_scored */
    double *nll;
    double *kl;     // models beside a base that is live or stored; NULL: not wanted
    uint8_t *agree; // 1 where the likeliest tokens are the same; with kl
} exp_entrant;

typedef struct exp_entrant_options {
    dw_pool *pool;
    const char *backend;
    dw_kv_cache kv;
    dw_select select;   // how gated layers are run
    dw_precision precision; // default: split
    int n_ctx, n_batch; // tokens of a window, of a piece
} exp_entrant_options;

/* Makes session and buffers; name, model or stored are set. */
int exp_entrant_open(exp_entrant *e, const exp_entrant_options *o, dw_err *err);
void exp_entrant_close(exp_entrant *e);

typedef struct exp_evaluation {
    const exp_entrant_options *o;
    const exp_windows *windows;
    const int32_t *ids; // of the text, the same for all; NULL when everybody is stored
    int32_t bos;        // first token of each window; -1: as it stands
    exp_entrant *base;  // may be NULL
    exp_entrant *model; // n_models
    int n_models;
    exp_predictions_writer *store;              // gets the first model's predictions; may be NULL
    void (*progress)(void *ctx, double tokens); // counts every model; may be NULL
    void *progress_ctx;
} exp_evaluation;

int exp_evaluate(const exp_evaluation *e, dw_err *err);

#endif
