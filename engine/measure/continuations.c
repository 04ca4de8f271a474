/* continuations.c - greedy continuations of the built-in prompts, and whether they only repeat. */
#include "measure/continuations.h"

#include <stdlib.h>
#include <string.h>

static const char *const prompts[MEASURE_PROMPTS] = {
    "The server keeps the measurements in",
    "Das Programm liest die Datei und",
    "El programa permite al usuario",
    "int main(int argc, char **argv) {\n",
    "Let f be a continuous function on",
};

enum { PROMPT_TOKENS = 64 }; // more than the bytes of a prompt

typedef struct continuations {
    const dw_tokenizer *tok;
    dw_session *session; // a sequence for each prompt
    dw_sampler *greedy;
    float *logits; // (MEASURE_PROMPTS, n_vocab)
    int n_vocab;
    int32_t id[MEASURE_PROMPTS][MEASURE_CONTINUED];
} continuations;

static bool is_among(int32_t id, const int32_t *ids, int n) {
    for (int i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

bool measure_only_repeats(const int32_t *id, int n) {
    int repeated = 0;
    if (n < MEASURE_REPEAT_TAIL) return false;
    for (int i = n - MEASURE_REPEAT_TAIL; i < n; i++) {
        const int reach = i < MEASURE_REPEAT_REACH ? i : MEASURE_REPEAT_REACH;
        repeated += is_among(id[i], id + i - reach, reach);
    }
    return 2 * repeated >= MEASURE_REPEAT_TAIL;
}

/* The likeliest tokens after the n output rows: the next ones, number `at`, of sequences `first` and following. */
static int choose(continuations *c, int first, int n, int at, dw_err *err) {
    if (dw_session_logits(c->session, 0, n, c->logits, err)) return -1;
    for (int i = 0; i < n; i++) {
        int32_t *id = &c->id[first + i][at];
        *id = dw_sample(c->greedy, c->logits + (size_t)i * (size_t)c->n_vocab);
        if (*id < 0) return dw_fail(err, "the model's logits are NaN after a built-in prompt");
    }
    return 0;
}

static int begin(continuations *c, int seq, dw_err *err) {
    int32_t *id, of[PROMPT_TOKENS];
    size_t n;
    if (dw_tokenize(c->tok, prompts[seq], strlen(prompts[seq]), DW_ADD_SPECIAL, &id, &n, err)) return -1;
    for (int i = 0; i < PROMPT_TOKENS; i++) of[i] = seq;
    int rc = n && n <= PROMPT_TOKENS
                 ? 0
                 : dw_fail(err, "the built-in prompt '%s' has %zu tokens in this vocabulary, allowed are 1 to %d",
                           prompts[seq], n, PROMPT_TOKENS);
    if (!rc) rc = dw_session_eval(c->session, &(dw_batch){.n_tokens = (int)n, .token = id, .seq = of}, err);
    free(id);
    return rc ? rc : choose(c, seq, 1, 0, err);
}

/* Adds one token to every continuation. */
static int go_on(continuations *c, int at, dw_err *err) {
    int32_t id[MEASURE_PROMPTS], seq[MEASURE_PROMPTS];
    uint8_t out[MEASURE_PROMPTS];
    for (int s = 0; s < MEASURE_PROMPTS; s++) {
        id[s] = c->id[s][at - 1];
        seq[s] = s;
        out[s] = 1;
    }
    const dw_batch batch = {.n_tokens = MEASURE_PROMPTS, .token = id, .seq = seq, .out = out};
    return dw_session_eval(c->session, &batch, err) ? -1 : choose(c, 0, MEASURE_PROMPTS, at, err);
}

static int length(const continuations *c, int seq) {
    int n = 0;
    while (n < MEASURE_CONTINUED && !dw_token_ends(c->tok, c->id[seq][n])) n++;
    return n;
}

static int open_session(continuations *c, const dw_model *m, const dw_tokenizer *tok, const dw_session_options *o,
                        dw_err *err) {
    dw_session_options own = {.pool = o->pool,     .backend = o->backend, .kv = o->kv,
                              .select = o->select, .exact = true,         .precision = o->precision};
    own.n_seq = own.n_out = MEASURE_PROMPTS;
    own.n_ctx = PROMPT_TOKENS + MEASURE_CONTINUED;
    own.n_batch = PROMPT_TOKENS;
    c->tok = tok;
    c->n_vocab = dw_model_hparams(m)->n_vocab;
    c->session = dw_session_new(m, &own, err);
    c->greedy = dw_sampler_new(&(dw_sampler_options){0}, c->n_vocab, err);
    c->logits = dw_alloc((size_t)c->n_vocab, MEASURE_PROMPTS * sizeof *c->logits, "logits", err);
    return c->session && c->greedy && c->logits ? 0 : -1;
}

int measure_repeats(const dw_model *m, const dw_tokenizer *tok, const dw_session_options *o, double *share,
                    dw_err *err) {
    continuations c = {0};
    int rc = open_session(&c, m, tok, o, err), n = 0;
    for (int s = 0; s < MEASURE_PROMPTS && !rc; s++) rc = begin(&c, s, err);
    for (int at = 1; at < MEASURE_CONTINUED && !rc; at++) rc = go_on(&c, at, err);
    for (int s = 0; s < MEASURE_PROMPTS && !rc; s++) n += measure_only_repeats(c.id[s], length(&c, s));
    *share = (double)n / MEASURE_PROMPTS;
    free(c.logits);
    dw_sampler_free(c.greedy);
    dw_session_free(c.session);
    return rc;
}
