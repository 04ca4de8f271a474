/* entrants.c - models and texts of a run: opened, and checked that they can be compared. */
#include "experiments/score/score.h"
#include "kit/hash_cache.h"
#include "kit/lineage.h"
#include "kit/talk.h"
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

static int open_text(score_file *t, const char *path, dw_err *err) {
    dw_sha256 h;
    t->path = path;
    t->data = dw_read_text(path, (size_t)1 << 31, &t->size, err);
    if (!t->data) return -1;
    dw_sha256_begin(&h);
    dw_sha256_add(&h, t->data, t->size);
    dw_sha256_end(&h, t->hash);
    dw_hex(t->hash, 32, t->sha256);
    return 0;
}

/* A text that is given twice would count twice in the mean of all texts. */
static int check_new(const score_run *r, int t, dw_err *err) {
    for (int u = 0; u < t; u++)
        if (!memcmp(r->texts[u].hash, r->texts[t].hash, sizeof r->texts[t].hash))
            return dw_fail(err, "'%s' and '%s' are the same text; give it once", r->texts[u].path, r->texts[t].path);
    return 0;
}

static int tokenize(score_entrant *c, const score_run *r, dw_err *err) {
    for (int t = 0; t < r->n_texts; t++) {
        if (dw_tokenize(c->tok, r->texts[t].data, r->texts[t].size, DW_ADD_SPECIAL, &c->ids[t], &c->n_ids[t], err))
            return -1;
        measure_ids_hash(c->ids[t], c->n_ids[t], c->ids_sha256[t]);
    }
    return 0;
}

bool score_knows_ids(const score_entrant *c, int t) {
    static const uint8_t unknown[sizeof *c->ids_sha256];
    return memcmp(c->ids_sha256[t], unknown, sizeof unknown) != 0;
}

static int find_leaks(score_entrant *c, const score_run *r, dw_err *err) {
    dw_err own = {0};
    c->leak = dw_alloc((size_t)r->n_texts, sizeof *c->leak, "texts", err);
    if (!c->leak || lineage_learnt_unnamed(dw_model_gguf(c->model), &c->learnt_unnamed, err)) return -1;
    for (int t = 0; t < r->n_texts && !own.text[0]; t++)
        c->leak[t] = lineage_leak(dw_model_gguf(c->model), r->texts[t].sha256, c->ids[t], c->n_ids[t], &own);
    return own.text[0] ? dw_fail(err, "%s", own.text) : 0;
}

static int open_live(score_entrant *c, const score_run *r, dw_err *err) {
    if (!dw_is_folder(c->path) && !dw_is_gguf(c->path)) // of a folder dw_model_open says what to do with it
        return dw_fail(err, "'%s' is neither a model (GGUF) nor stored predictions", c->path);
    c->model = dw_model_open(c->path, err);
    if (!c->model || lineage_check(dw_model_gguf(c->model), err)) return -1;
    kit_sha256_gguf(dw_model_gguf(c->model), c->sha256);
    c->tok = dw_tokenizer_open(dw_model_gguf(c->model), err);
    if (!c->tok) return dw_fail_in(err, "'%s'", c->path);
    const dw_vocab *v = dw_tokenizer_vocab(c->tok);
    measure_vocab_hash(v, c->vocab);
    c->bos = r->protocol->bos_each_window && v->add_bos ? v->bos : -1;
    const size_t n_layer = (size_t)dw_model_hparams(c->model)->n_layer;
    c->n_open = dw_alloc(n_layer, sizeof *c->n_open, "layers", err);
    c->n_seen = dw_alloc(n_layer, sizeof *c->n_seen, "layers", err);
    return c->n_open && c->n_seen && !tokenize(c, r, err) ? find_leaks(c, r, err) : -1;
}

static int open_entrant(score_entrant *c, const char *path, const score_run *r, dw_err *err) {
    const size_t n = (size_t)r->n_texts;
    c->path = path;
    c->ids = dw_alloc(n, sizeof *c->ids, "texts", err);
    c->n_ids = dw_alloc(n, sizeof *c->n_ids, "texts", err);
    c->ids_sha256 = dw_alloc(n, sizeof *c->ids_sha256, "texts", err);
    c->result = dw_alloc(n + 1 + EXP_SPEED_MAX_DEPTHS, sizeof *c->result, "rows", err);
    c->nll = dw_alloc(n, sizeof *c->nll, "rows", err);
    c->kl = dw_alloc(n, sizeof *c->kl, "rows", err);
    c->agree = dw_alloc(n, sizeof *c->agree, "rows", err);
    c->ratio = dw_alloc(n, sizeof *c->ratio, "rows", err);
    c->paired = dw_alloc(n, sizeof *c->paired, "rows", err);
    c->place = dw_alloc(n, sizeof *c->place, "rows", err);
    if (!c->ids || !c->n_ids || !c->ids_sha256 || !c->result || !c->nll || !c->kl || !c->agree || !c->ratio ||
        !c->paired || !c->place)
        return -1;
    if (!c->stored) return open_live(c, r, err);
    const measure_stored_head *h = measure_predictions_head(c->stored);
    memcpy(c->vocab, h->vocab_sha256, sizeof c->vocab);
    dw_hex(h->model_sha256, 32, c->sha256);
    c->bos = h->bos;
    return 0;
}

void score_close_entrant(score_entrant *c, int n_texts) {
    measure_entrant_close(&c->of);
    for (int t = 0; c->ids && t < n_texts; t++) free(c->ids[t]);
    free(c->ids);
    free(c->n_ids);
    free(c->ids_sha256);
    for (int t = 0; c->leak && t < n_texts; t++) free(c->leak[t]);
    free(c->leak);
    free(c->result);
    free(c->nll);
    free(c->kl);
    free(c->agree);
    free(c->ratio);
    free(c->paired);
    free(c->place);
    measure_sums_release(&c->sums);
    free(c->n_open);
    free(c->n_seen);
    dw_tokenizer_free(c->tok);
    dw_model_close(c->model);
    measure_predictions_close(c->stored);
}

/* ---- stored predictions: they must be of the same tokens -------------------------------------------------- */

int score_find_stored_text(const score_entrant *c, const score_run *r, int t) {
    const measure_stored_head *h = measure_predictions_head(c->stored);
    int s = 0;
    while (s < h->n_texts && memcmp(h->text[s].sha256, r->texts[t].hash, 32)) s++;
    return s;
}

/* "--windows 1-6" or "all windows". */
static const char *windows_words(char words[40], opt_range w) {
    snprintf(words, 40, w.last ? "--windows %d-%d" : "all windows", w.first, w.last);
    return words;
}

/* Every setting that decides which tokens are predicted from what. */
static int check_stored(const score_entrant *c, const score_run *r, dw_err *err) {
    const measure_stored_head *h = measure_predictions_head(c->stored);
    if (strcmp(h->protocol, r->protocol->name) || h->n_ctx != r->o->n_ctx)
        return dw_fail(err, "'%s' was stored with --protocol %s -c %d, this run has --protocol %s -c %d", c->path,
                       h->protocol, h->n_ctx, r->protocol->name, r->o->n_ctx);
    char stored[40], here[40];
    const opt_range of_stored = {h->first, h->last};
    if (h->first != r->o->windows.first || h->last != r->o->windows.last)
        return dw_fail(err, "'%s' was stored with %s, this run takes %s; give the same --windows", c->path,
                       windows_words(stored, of_stored), windows_words(here, r->o->windows));
    for (int t = 0; t < r->n_texts; t++)
        if (score_find_stored_text(c, r, t) == h->n_texts)
            return dw_fail(err, "'%s' holds no predictions for the text '%s' as it is now", c->path, r->texts[t].path);
    return 0;
}

/* The texts' tokens, and what the model had seen of the texts when it was stored. */
static int take_stored_texts(score_entrant *c, const score_run *r, dw_err *err) {
    const measure_stored_head *h = measure_predictions_head(c->stored);
    c->learnt_unnamed = h->learnt_unnamed;
    c->leak = dw_alloc((size_t)r->n_texts, sizeof *c->leak, "texts", err);
    if (!c->leak) return -1;
    for (int t = 0; t < r->n_texts; t++) {
        const measure_stored_text *text = &h->text[score_find_stored_text(c, r, t)];
        c->n_ids[t] = text->n_tokens;
        memcpy(c->ids_sha256[t], text->ids_sha256, sizeof text->ids_sha256);
        if (text->leak && !(c->leak[t] = dw_strdup(text->leak, err))) return -1;
    }
    return 0;
}

/* Without texts on the command line those of the first stored file are meant, and its settings. */
static int take_stored_settings(score_run *r, dw_err *err) {
    const measure_stored_head *h = measure_predictions_head(r->all[0].stored);
    r->n_texts = h->n_texts;
    r->protocol = measure_protocol_find(h->protocol);
    r->texts = r->protocol ? dw_alloc((size_t)h->n_texts, sizeof *r->texts, "texts", err) : NULL;
    r->o->n_ctx = h->n_ctx;
    r->o->windows = (opt_range){h->first, h->last};
    for (int t = 0; r->texts && t < h->n_texts; t++) {
        r->texts[t].path = h->text[t].name;
        memcpy(r->texts[t].hash, h->text[t].sha256, 32);
        dw_hex(r->texts[t].hash, 32, r->texts[t].sha256);
    }
    return r->texts ? 0
                    : dw_fail(err, "'%s' was stored with protocol '%s', which is unknown here", r->o->models.item[0],
                              h->protocol);
}

static int n_vocab_of(const score_entrant *c) {
    return c->model ? dw_model_hparams(c->model)->n_vocab : measure_predictions_head(c->stored)->n_vocab;
}

/* Of older stored files only the number of tokens is known. */
static bool same_ids(const score_entrant *a, const score_entrant *b, int t) {
    if (a->n_ids[t] != b->n_ids[t]) return false;
    if (!score_knows_ids(a, t) || !score_knows_ids(b, t)) return true;
    return !memcmp(a->ids_sha256[t], b->ids_sha256[t], sizeof *a->ids_sha256);
}

static int check_same_ids(const score_entrant *c, const score_entrant *base, const score_run *r, dw_err *err) {
    if (memcmp(c->vocab, base->vocab, sizeof c->vocab) || c->bos != base->bos)
        return dw_fail(err, "'%s' and '%s' have different vocabularies, so their predictions cannot be compared",
                       c->path, base->path);
    if (n_vocab_of(c) != n_vocab_of(base))
        return dw_fail(err, "'%s' predicts %d tokens, '%s' %d", c->path, n_vocab_of(c), base->path, n_vocab_of(base));
    for (int t = 0; t < r->n_texts; t++)
        if (!same_ids(c, base, t))
            return dw_fail(err, "'%s' and '%s' cut the text '%s' into different tokens", c->path, base->path,
                           r->texts[t].path);
    return 0;
}

/* Whether an entrant before it is the same model: the base may be one of the models. */
static bool is_again(const score_run *r, int i) {
    for (int k = 0; k < i; k++)
        if (!strcmp(r->all[k].sha256, r->all[i].sha256)) return true;
    return false;
}

static void warn_of_leaks(const score_entrant *c, const score_run *r) {
    for (int t = 0; t < r->n_texts; t++)
        if (c->leak[t]) warn("'%s' has seen the text '%s': %s", c->path, r->texts[t].path, c->leak[t]);
}

/* Positions that a model was not trained on are predicted badly. */
static void warn_of_context(const score_entrant *c, const score_run *r) {
    const int n_ctx_train = dw_model_hparams(c->model)->n_ctx_train;
    int deepest = 0;
    for (int d = 0; d < r->n_depths; d++) deepest = r->depth[d] > deepest ? r->depth[d] : deepest;
    if (!r->o->speed_only && r->o->n_ctx > n_ctx_train)
        warn("'%s' was trained on %d positions, windows have %d", c->path, n_ctx_train, r->o->n_ctx);
    if (deepest > n_ctx_train)
        warn("'%s' was trained on %d positions, --depth goes to %d", c->path, n_ctx_train, deepest);
}

int score_open_all(score_run *r, dw_err *err) {
    const int n = r->n_models + (r->base != NULL);
    for (int i = 0; i < n; i++) {
        const char *path = i < r->n_models ? r->o->models.item[i] : r->o->base;
        if (measure_is_predictions(path) && !(r->all[i].stored = measure_predictions_open(path, err))) return -1;
    }
    if (r->base && !r->base->stored)
        for (int i = 0; i < r->n_models; i++)
            if (r->all[i].stored)
                return dw_fail(err, "'%s' holds stored predictions, which can only be compared with a stored base",
                               r->o->models.item[i]);
    if (!r->o->texts.n && !r->o->speed_only && take_stored_settings(r, err)) return -1;
    for (int t = 0; t < (int)r->o->texts.n; t++)
        if (open_text(&r->texts[t], r->o->texts.item[t], err) || check_new(r, t, err)) return -1;
    for (int i = 0; i < n; i++) {
        if (open_entrant(&r->all[i], i < r->n_models ? r->o->models.item[i] : r->o->base, r, err)) return -1;
        if (r->all[i].stored && (check_stored(&r->all[i], r, err) || take_stored_texts(&r->all[i], r, err))) return -1;
        if (is_again(r, i)) continue;
        if (r->all[i].model) warn_of_context(&r->all[i], r);
        warn_of_leaks(&r->all[i], r);
    }
    for (int i = 0; i < r->n_models && r->base; i++)
        if (check_same_ids(&r->all[i], r->base, r, err)) return -1;
    return 0;
}

/* ---- windows of a text ------------------------------------------------------------------------------------ */

int score_make_windows(measure_windows *w, const score_entrant *c, const score_run *r, int t, dw_err *err) {
    return measure_windows_make(w, r->protocol, c->n_ids[t], r->o->n_ctx, r->o->windows.first, r->o->windows.last,
                                r->texts[t].path, err);
}

/* How often the base is evaluated. */
static int n_groups(const score_run *r) {
    const int n_beside = r->o->n_beside;
    return r->base ? (r->n_models + n_beside - 1) / n_beside : r->n_models;
}

/* Adds the tokens that a model evaluates for a text, and says which windows these are. */
static int check_text(const score_entrant *c, const score_run *r, int t, double *n_tokens, measure_sums_text *part,
                      dw_err *err) {
    measure_windows w;
    if (score_make_windows(&w, c, r, t, err)) return -1;
    for (size_t k = 0; k < w.n && c->model; k++) *n_tokens += w.window[k].n_eval;
    const size_t n_scored = w.n_scored;
    *part = (measure_sums_text){.first = r->o->windows.first ? r->o->windows.first : 1, .n_windows = (int)w.n};
    memcpy(part->sha256, r->texts[t].hash, sizeof part->sha256);
    measure_windows_release(&w);
    if (c->stored && n_scored != measure_predictions_head(c->stored)->text[score_find_stored_text(c, r, t)].n_scored)
        return dw_fail(err, "'%s' is damaged: other tokens of '%s' were scored than its header says", c->path,
                       r->texts[t].path);
    return 0;
}

int score_check_windows(const score_run *r, double *n_tokens, dw_err *err) {
    measure_sums_text *texts = dw_alloc((size_t)r->n_texts, sizeof *texts, "texts", err);
    int rc = texts ? 0 : -1;
    *n_tokens = 0;
    for (int i = 0; i < r->n_models + (r->base != NULL) && !rc; i++) {
        score_entrant *c = &r->all[i];
        double n = 0;
        for (int t = 0; t < r->n_texts && !rc; t++) rc = check_text(c, r, t, &n, &texts[t], err);
        *n_tokens += n * (c == r->base ? n_groups(r) : 1);
        if (!rc) rc = measure_sums_make(&c->sums, "", texts, r->n_texts, c->place, err);
    }
    free(texts);
    return rc;
}
