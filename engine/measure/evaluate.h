/* evaluate.h - evaluates models on the scored tokens of a text and compares them with a base.
 *
 * The windows of a text form one stream of tokens.  The stream is evaluated in pieces that fill the engine's batch,
 * whatever the length of a window.  Logits are fetched one tile of rows at a time and never stored.  The base and all
 * models evaluate a piece before the next piece begins, so the base is evaluated once for all models.
 * A token's numbers depend on its logits only, and the sessions are `exact`.  Results are therefore the same for every
 * number of threads and every batch size. */
#ifndef MEASURE_EVALUATE_H
#define MEASURE_EVALUATE_H

#include "engine.h"
#include "measure/predictions.h"
#include "measure/windows.h"

typedef struct measure_entrant { // a model in a comparison, or the stored predictions of one
    const char *name;            // for messages
    const dw_model *model;       // NULL: predictions are stored
    measure_predictions *stored; // at the first scored token of the text
    /* made by measure_entrant_open */
    dw_session *session;
    float *logits;                  // (tile, n_vocab)
    measure_row *row;               // (tile)
    measure_prediction *prediction; // (tile): read from `stored`, or to be stored
    /* results: arrays of the caller, (n_scored), one value per scored token */
    double *nll;    // -ln p of the token, nats
    double *kl;     // from the base, nats; NULL: not wanted.  Only models have it, and only with a base
    uint8_t *agree; // 1: model and base have the same likeliest token; needed if kl is
} measure_entrant;

typedef struct measure_entrant_options {
    dw_pool *pool;
    const char *backend;
    dw_kv_cache kv;
    dw_select select;       // how gated layers are run
    dw_precision precision; // default: split
    int n_ctx, n_batch;     // tokens of a window, of a piece
} measure_entrant_options;

/* Makes session and buffers.  The caller has set name, and model or stored.  After a failure there is nothing to
 * close. */
int measure_entrant_open(measure_entrant *e, const measure_entrant_options *o, dw_err *err);
void measure_entrant_close(measure_entrant *e);

typedef struct measure_evaluation {
    const measure_entrant_options *o;
    const measure_windows *windows;
    const int32_t *ids;     // of the text, the same for all; NULL if all predictions are stored
    int32_t bos;            // replaces the first token of each window; -1: none does
    measure_entrant *base;  // may be NULL
    measure_entrant *model; // n_models
    int n_models;
    measure_predictions_writer *store;          // gets the first model's predictions; may be NULL
    void (*progress)(void *ctx, double tokens); // tokens that base or a model has evaluated; may be NULL
    void *progress_ctx;
} measure_evaluation;

int measure_evaluate(const measure_evaluation *e, dw_err *err);

#endif
