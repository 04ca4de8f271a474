/* evaluate.h - what models predict for the scored tokens of a text, and how far that is from a base's predictions.
 *
 * The windows of a text are one stream of tokens, evaluated in pieces that fill the engine's batch whatever the
 * length of a window; logits are fetched a tile of rows at a time and never stored. Everybody evaluates a piece
 * before the next one begins, so the base is evaluated once for all models. Log-probabilities always come from
 * measure_row_of, and each token's numbers depend on its logits only: with sessions made `exact` they are the same for
 * every number of threads and every size of batch. */
#ifndef MEASURE_EVALUATE_H
#define MEASURE_EVALUATE_H

#include "engine.h"
#include "measure/predictions.h"
#include "measure/windows.h"

typedef struct measure_entrant {    // a model in a comparison, or its stored predictions
    const char *name;           // for errors
    const dw_model *model;      // NULL: stored
    measure_predictions *stored;    // at the text's begin
    dw_session *session;        // of measure_entrant_open
    float *logits;              // (tile, n_vocab)
    measure_row *row;               // (tile)
    measure_prediction *prediction; // (tile): stored, or to be stored
    /* results, by scored token of the text: room for n_scored */
    double *nll;
    double *kl;     // models beside a base that is live or stored; NULL: not wanted
    uint8_t *agree; // 1 where the likeliest tokens are the same; with kl
} measure_entrant;

typedef struct measure_entrant_options {
    dw_pool *pool;
    const char *backend;
    dw_kv_cache kv;
    dw_select select;   // how gated layers are run
    dw_precision precision; // default: split
    int n_ctx, n_batch; // tokens of a window, of a piece
} measure_entrant_options;

/* Makes session and buffers; name, model or stored are set. */
int measure_entrant_open(measure_entrant *e, const measure_entrant_options *o, dw_err *err);
void measure_entrant_close(measure_entrant *e);

typedef struct measure_evaluation {
    const measure_entrant_options *o;
    const measure_windows *windows;
    const int32_t *ids; // of the text, the same for all; NULL when everybody is stored
    int32_t bos;        // first token of each window; -1: as it stands
    measure_entrant *base;  // may be NULL
    measure_entrant *model; // n_models
    int n_models;
    measure_predictions_writer *store;              // gets the first model's predictions; may be NULL
    void (*progress)(void *ctx, double tokens); // counts every model; may be NULL
    void *progress_ctx;
} measure_evaluation;

int measure_evaluate(const measure_evaluation *e, dw_err *err);

#endif
