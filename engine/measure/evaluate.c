/* evaluate.c - pieces of windows, tiles of rows. */
#include "measure/evaluate.h"

#include <stdlib.h>
#include <string.h>

enum { TILE_BYTES = 8 << 20, TILE_MIN = 32, TILE_MAX = 256 };

/* Rows whose logits are held at once: enough for an efficient product; if n_vocab is small, they fit a cache. */
static int tile_rows(int n_vocab) {
    const int n = TILE_BYTES / (n_vocab * (int)sizeof(float));
    return n < TILE_MIN ? TILE_MIN : n > TILE_MAX ? TILE_MAX : n;
}

static int n_vocab_of(const measure_entrant *e) {
    return e->model ? dw_model_hparams(e->model)->n_vocab : measure_predictions_head(e->stored)->n_vocab;
}

/* Windows of a piece: n_ctx - 1 tokens each, and a part of one at either end. */
static int n_sequences(const measure_entrant_options *o) { return o->n_batch / (o->n_ctx - 1) + 2; }

int measure_entrant_open(measure_entrant *e, const measure_entrant_options *o, dw_err *err) {
    const size_t tile = (size_t)tile_rows(n_vocab_of(e));
    e->prediction = dw_alloc(tile, sizeof *e->prediction, "predictions", err);
    if (!e->model) return e->prediction ? 0 : -1;
    const dw_session_options so = {.pool = o->pool,
                                   .backend = o->backend,
                                   .n_ctx = o->n_ctx,
                                   .n_seq = n_sequences(o),
                                   .n_batch = o->n_batch,
                                   .n_out = o->n_batch,
                                   .kv = o->kv,
                                   .select = o->select,
                                   .exact = true,
                                   .precision = o->precision};
    e->session = dw_session_new(e->model, &so, err);
    e->logits = dw_alloc(tile * (size_t)n_vocab_of(e), sizeof *e->logits, "logits", err);
    e->row = dw_alloc(tile, sizeof *e->row, "rows", err);
    if (e->prediction && e->session && e->logits && e->row) return 0;
    measure_entrant_close(e);
    return -1;
}

void measure_entrant_close(measure_entrant *e) {
    dw_session_free(e->session);
    free(e->logits);
    free(e->row);
    free(e->prediction);
    e->session = NULL;
    e->logits = NULL;
    e->row = NULL;
    e->prediction = NULL;
}

/* ---- pieces ----------------------------------------------------------------------------------------------- */

typedef struct piece { // the tokens of one evaluation, and which of them are scored
    int32_t *token, *seq, *pos;
    uint8_t *out;
    int32_t *target; // n_out: the token that each output row predicts
    size_t *window;  // n_out: the window of each output row
    int n_tokens, n_out;
    size_t next; // the window of the next token, and its position in that window
    int next_pos;
    void *owned;
} piece;

static int piece_open(piece *p, int n_batch, dw_err *err) {
    const size_t n = (size_t)n_batch;
    uint8_t *at = dw_alloc(n, 4 * sizeof(int32_t) + sizeof(size_t) + 1, "a piece of text", err);
    if (!at) return -1;
    *p = (piece){.owned = at};
    p->window = (size_t *)at;
    p->token = (int32_t *)(p->window + n);
    p->seq = p->token + n;
    p->pos = p->seq + n;
    p->target = p->pos + n;
    p->out = (uint8_t *)(p->target + n);
    return 0;
}

/* Takes the next tokens of the stream of windows; false at its end.  A window keeps its sequence in the next piece. */
static bool piece_next(piece *p, const measure_evaluation *e) {
    const int n_seq = n_sequences(e->o);
    p->n_tokens = p->n_out = 0;
    while (p->next < e->windows->n && p->n_tokens < e->o->n_batch) {
        const measure_window *w = &e->windows->window[p->next];
        const int i = p->n_tokens++, pos = p->next_pos++;
        const int32_t *id = e->ids ? e->ids + w->start + pos : NULL;
        p->token[i] = pos == 0 && e->bos >= 0 ? e->bos : id ? id[0] : 0;
        p->seq[i] = (int32_t)(p->next % (size_t)n_seq);
        p->pos[i] = pos;
        p->out[i] = pos >= w->first;
        if (p->out[i]) {
            p->target[p->n_out] = id ? id[1] : 0;
            p->window[p->n_out++] = p->next;
        }
        if (p->next_pos == w->n_eval) p->next++, p->next_pos = 0;
    }
    return p->n_tokens > 0;
}

/* ---- tiles ------------------------------------------------------------------------------------------------ */

typedef struct tile { // output rows first .. first + n - 1 of a piece; the first is scored token `at` of the text
    const measure_evaluation *e;
    const piece *piece;
    int first, n;
    size_t at;
} tile;

typedef struct row_job {
    const tile *t;
    measure_entrant *entrant;
    const measure_entrant *base; // NULL: nothing to compare with
    bool store;
} row_job;

static void score_row(void *job_pointer, size_t i) {
    const row_job *job = job_pointer;
    measure_entrant *m = job->entrant;
    const measure_entrant *base = job->base;
    const int n_vocab = n_vocab_of(m);
    const size_t at = job->t->at + i;
    float *x = m->logits + i * (size_t)n_vocab;
    m->row[i] = measure_row_of(x, n_vocab);
    if (m->row[i].top < 0) return;
    m->nll[at] = -measure_row_logprob(&m->row[i], x, job->t->piece->target[job->t->first + (int)i]);
    if (base && m->kl) {
        m->kl[at] = base->model
                        ? measure_row_kl(base->logits + i * (size_t)n_vocab, &base->row[i], x, &m->row[i], n_vocab)
                        : measure_coarse_kl(&base->prediction[i].coarse, x, &m->row[i], n_vocab);
        m->agree[at] = m->row[i].top == (base->model ? base->row[i].top : base->prediction[i].coarse.id[0]);
    }
    if (job->store) {
        m->prediction[i].logprob = -m->nll[at];
        measure_coarse_of(&m->prediction[i].coarse, x, &m->row[i], n_vocab);
    }
}

static int score_tile(const tile *t, measure_entrant *m, const measure_entrant *base, bool store, dw_err *err) {
    if (!m->model) {
        if (measure_predictions_read(m->stored, m->prediction, (size_t)t->n, err)) return -1;
        for (int i = 0; i < t->n; i++) m->nll[t->at + (size_t)i] = -m->prediction[i].logprob;
        return 0;
    }
    if (dw_session_logits(m->session, t->first, t->n, m->logits, err)) return -1;
    row_job job = {t, m, base, store};
    dw_pool_each(t->e->o->pool, (size_t)t->n, score_row, &job);
    for (int i = 0; i < t->n; i++)
        if (m->row[i].top < 0)
            return dw_fail(err, "the logits of '%s' are not finite in window %zu", m->name,
                           t->piece->window[t->first + i] + 1);
    return store ? measure_predictions_write(t->e->store, m->prediction, (size_t)t->n, err) : 0;
}

static int eval_piece(const measure_evaluation *e, measure_entrant *m, const piece *p, dw_err *err) {
    const dw_batch batch = {.n_tokens = p->n_tokens, .token = p->token, .seq = p->seq, .pos = p->pos, .out = p->out};
    if (!m->model) return 0;
    dw_assert(e->ids);
    if (dw_session_eval(m->session, &batch, err)) return -1;
    if (e->progress) e->progress(e->progress_ctx, p->n_tokens);
    return 0;
}

/* Fails unless all entrants have equally large vocabularies, because a tile has one width. */
static int check_vocabularies(const measure_evaluation *e, const measure_entrant *any, dw_err *err) {
    for (int m = 0; m < e->n_models; m++)
        if (n_vocab_of(&e->model[m]) != n_vocab_of(any))
            return dw_fail(err, "'%s' has a vocabulary of %d tokens, but '%s' one of %d; they cannot be compared",
                           e->model[m].name, n_vocab_of(&e->model[m]), any->name, n_vocab_of(any));
    return 0;
}

int measure_evaluate(const measure_evaluation *e, dw_err *err) {
    const measure_entrant *any = e->base ? e->base : e->model;
    const int n_tile = tile_rows(n_vocab_of(any));
    piece p;
    if (check_vocabularies(e, any, err) || piece_open(&p, e->o->n_batch, err)) return -1;
    int rc = 0;
    for (size_t at = 0; !rc && piece_next(&p, e);) {
        if (e->base) rc = eval_piece(e, e->base, &p, err);
        for (int m = 0; m < e->n_models && !rc; m++) rc = eval_piece(e, &e->model[m], &p, err);
        for (tile t = {.e = e, .piece = &p, .at = at}; t.first < p.n_out && !rc; t.first += t.n, t.at += (size_t)t.n) {
            t.n = p.n_out - t.first < n_tile ? p.n_out - t.first : n_tile;
            if (e->base) rc = score_tile(&t, e->base, NULL, false, err);
            for (int m = 0; m < e->n_models && !rc; m++)
                rc = score_tile(&t, &e->model[m], e->base, e->store && m == 0, err);
        }
        at += (size_t)p.n_out;
    }
    free(p.owned);
    return rc;
}
