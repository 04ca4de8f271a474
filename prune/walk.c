/* walk.c - passes over all texts, one layer at a time (walk.h). */
#include "prune/walk.h"

#include <stdlib.h>
#include <string.h>

double walk_bytes(const dw_model *m, const calib_texts *texts) {
    return (double)calib_n_tokens(texts) * dw_model_hparams(m)->n_embd * (double)sizeof(float);
}

/* Batches of a text: passes of n_seq windows, or pieces of one window. */
static int passes_of(const walk *w, const calib_text *text) {
    const int n_pass = (calib_n_windows(text) + w->n_seq - 1) / w->n_seq;
    return n_pass * ((w->texts->n_ctx + w->most - 1) / w->most);
}

void walk_select(walk *w, int b) {
    const int n_ctx = w->texts->n_ctx, n_piece = w->n_seq > 1 ? 1 : (n_ctx + w->most - 1) / w->most;
    const calib_text *text = w->texts->text;
    size_t before = 0;
    for (; b >= passes_of(w, text); text++) {
        b -= passes_of(w, text);
        before += (size_t)calib_n_windows(text) * (size_t)n_ctx;
    }
    const int window = b / n_piece * w->n_seq, from = b % n_piece * w->most;
    const int n_window = dw_smaller(w->n_seq, calib_n_windows(text) - window), n = dw_smaller(w->most, n_ctx - from);
    int at = 0;
    w->n_row = 0;
    for (int i = 0; i < n_window; i++) {
        const int first_new = calib_first_new(w->texts, text, window + i, w->skip);
        calib_window(w->texts, text, window + i, w->window);
        for (int p = from; p < from + (w->n_seq > 1 ? n_ctx : n); p++, at++) {
            w->token[at] = w->window[p];
            w->seq[at] = i;
            w->pos[at] = p;
            if (p >= first_new) w->row[w->n_row++] = at;
        }
    }
    w->batch = (dw_batch){.n_tokens = at, .token = w->token, .seq = w->seq, .pos = w->pos};
    w->first = before + (size_t)window * (size_t)n_ctx + (size_t)from;
    w->residual = w->x + w->first * (size_t)w->n_embd;
}

int walk_run(walk *w, int first, int end, float *residual, dw_err *err) {
    return dw_session_layers(w->session, &w->batch, first, end, residual, err);
}

double walk_n_counted(const walk *w) {
    double n = 0;
    for (size_t t = 0; t < w->texts->n_text; t++) n += (double)calib_n_counted(w->texts, &w->texts->text[t], w->skip);
    return n;
}

void walk_close(walk *w) {
    dw_session_free(w->session);
    free(w->x), free(w->window), free(w->token), free(w->seq), free(w->pos), free(w->row);
    *w = (walk){0};
}

static int open_walk(walk *w, const dw_model *m, const dw_session_options *o, dw_err *err) {
    const int n_ctx = w->texts->n_ctx;
    dw_session_options own = {.pool = o->pool, .backend = o->backend, .select = o->select, .n_ctx = n_ctx,
                              .precision = DW_PRECISION_ROUNDED};
    own.n_seq = w->n_seq = n_ctx < WALK_TOKENS ? WALK_TOKENS / n_ctx : 1;
    own.n_batch = w->most = w->n_seq > 1 ? w->n_seq * n_ctx : dw_smaller(n_ctx, WALK_TOKENS);
    const size_t n = (size_t)w->most;
    w->n_tokens = calib_n_tokens(w->texts);
    w->n_embd = dw_model_hparams(m)->n_embd;
    for (size_t t = 0; t < w->texts->n_text; t++) w->n_batch += passes_of(w, &w->texts->text[t]);
    w->x = dw_alloc(w->n_tokens, (size_t)w->n_embd * sizeof *w->x, "the residuals of all tokens", err);
    w->window = dw_alloc((size_t)n_ctx, sizeof *w->window, "a window", err);
    w->token = dw_alloc(n, sizeof *w->token, "a batch", err);
    w->seq = dw_alloc(n, sizeof *w->seq, "a batch", err);
    w->pos = dw_alloc(n, sizeof *w->pos, "a batch", err);
    w->row = dw_alloc(n, sizeof *w->row, "a batch", err);
    w->session = dw_session_new(m, &own, err);
    if (!w->x || !w->window || !w->token || !w->seq || !w->pos || !w->row || !w->session) return -1;
    for (int b = 0; b < w->n_batch; b++) {
        walk_select(w, b);
        if (dw_session_embed(w->session, &w->batch, w->residual, err)) return -1;
    }
    return 0;
}

int walk_open(walk *w, const dw_model *m, const calib_texts *texts, int skip, const dw_session_options *o,
              dw_err *err) {
    *w = (walk){.texts = texts, .skip = skip};
    if (!open_walk(w, m, o, err)) return 0;
    walk_close(w);
    return -1;
}
