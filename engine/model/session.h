/* session.h - internals of a session, and the call that only experiments use. */
#ifndef DW_SESSION_H
#define DW_SESSION_H

#include "backends/ffn_ops.h"
#include "model/model.h"

struct dw_session {
    const dw_model *model;
    dw_net net;           // a copy of the model's, with layers of its own: tensors may be replaced
    dw_session_options o; // with the defaults filled in
    const dw_backend *backend;
    dw_state *state;
    dw_binding binding;
    dw_ffn_experiment experiment; // binding.experiment points to it
    float *activity;      // (n_layer): experiment.activity points to it
    int *n_past;          // (n_seq): positions filled
    int *next_past;       // (n_seq): n_past after the batch that is being checked
    bool *begun;          // (n_seq): the batch being checked has a token of the sequence
    int32_t *token, *seq, *pos; // (n_batch): of the current pass
    int *wanted;          // (n_batch): which tokens of the pass are output rows
    float *hidden;        // (n_out, n_embd): normed output rows of the last evaluation
    int n_hidden;
    dw_tap tap;
    uint8_t *memory;      // holds all of the above
};

/* For measuring speed: from now on gated layers decide and compute as the experiment says; NULL ends it.  *e is
 * copied; what ctx points to is borrowed until the next call. */
int dw_session_experiment(dw_session *s, const dw_ffn_experiment *e, dw_err *err);

#endif
