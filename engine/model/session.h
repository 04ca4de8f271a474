/* session.h - inside of a session. */
#ifndef DW_SESSION_H
#define DW_SESSION_H

#include "model/model.h"

struct dw_session {
    const dw_model *model;
    const dw_backend *backend;
    dw_session_options o; // with the defaults filled in
    dw_pass pass;
    int *n_past;          // (n_seq): positions filled
    int *next_past;       // (n_seq): while a batch is checked
    bool *begun;          // (n_seq): the batch at hand has a token of it
    float *hidden;        // (n_out, n_embd): normed output rows of the last dw_session_eval
    int n_hidden;
    int n_wanted;         // output rows of the pass at hand, ...
    int *wanted;          // ... and which of its tokens they are
    dw_tap tap;
    const dw_selection *selection;
    float *injected;      // (n_layer)
    uint8_t *arena;       // all of the above
    size_t arena_bytes;
};

/* One pass over pass.n_tokens tokens: fills the cache and appends n_wanted rows to hidden (forward.c). */
void dw_session_forward(dw_session *s);

#endif
