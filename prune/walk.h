/* walk.h - calibration texts taken through a model layer by layer.
 *
 * The residuals of all tokens are in memory, (tokens, n_embd) F32, so a layer sees all texts before the next begins.
 * Memory: tokens * n_embd * 4 bytes and one layer's own needs, not the model's.  Which tokens share a pass follows from
 * the window's size alone, so results do not depend on the number of threads.
 *
 *     for each layer l:  for b in 0 .. w.n_batch - 1:  walk_select(&w, b);  walk_run(&w, l, l + 1, w.residual, err) */
#ifndef PRUNE_WALK_H
#define PRUNE_WALK_H

#include "kit/calib.h"

enum { WALK_TOKENS = 512 }; // of one pass, but for longer windows: they are cut

typedef struct walk {
    const calib_texts *texts;
    dw_session *session;
    float *x; // (n_tokens, n_embd): the residual before the next layer
    size_t n_tokens;
    int n_embd, n_seq, most, n_batch, skip;
    int32_t *token, *seq, *pos; // (most)
    int32_t *window;            // (n_ctx)
    /* the selected batch */
    dw_batch batch;
    float *residual; // its rows of x
    size_t first;    // row of x at which it begins
    int *row, n_row; // rows of the batch whose position counts
} walk;

/* Embeds all tokens.  o->pool, backend and select are used; the texts are borrowed. */
int walk_open(walk *w, const dw_model *m, const calib_texts *texts, int skip, const dw_session_options *o, dw_err *err);
void walk_close(walk *w);
double walk_bytes(const dw_model *m, const calib_texts *texts); // of the residuals

/* Batch b, 0 .. n_batch - 1, of whole windows or a part of one: fills what stands under "the selected batch". */
void walk_select(walk *w, int b);
/* Layers first .. end - 1 of the selected batch, on a residual of the caller with its rows. */
int walk_run(walk *w, int first, int end, float *residual, dw_err *err);
/* Number of tokens whose position counts. */
double walk_n_counted(const walk *w);

#endif
