/* session.h - inside of a session, and what only experiments ask of one. */
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
    dw_ffn_experiment experiment; // what binding.experiment points to
    float *activity;      // (n_layer): what experiment.activity points to
    int *n_past;          // (n_seq): positions filled
    int *next_past;       // (n_seq): while a batch is checked
    bool *begun;          // (n_seq): the batch at hand has a token of it
    int32_t *token, *seq, *pos; // (n_batch): of the pass at hand
    int *wanted;          // (n_batch): which of its tokens are output rows
    float *hidden;        // (n_out, n_embd): normed output rows of the last evaluation
    int n_hidden;
    dw_tap tap;
    uint8_t *memory;      // all of the above
};

/* From now on gated layers decide and compute as the experiment says, for measuring speed; copied, but what ctx points to
 * is borrowed until the next call.  NULL: no more. */
int dw_session_experiment(dw_session *s, const dw_ffn_experiment *e, dw_err *err);

#endif
