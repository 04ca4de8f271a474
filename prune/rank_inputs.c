/* rank_inputs.c - what a plan is made from: model and statistics, and which layers and heads stay. */
#include "kit/hash_cache.h"
#include "kit/lineage.h"
#include "kit/talk.h"
#include "measure/statistics.h"
#include "model/model.h"
#include "prune/cutting.h"
#include "prune/heads.h"
#include "prune/rank.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- inputs ------------------------------------------------------------------------------------------------- */

static int read_stats(rank_inputs *in, dw_err *err) {
    if (!in->o->stats) return 0;
    if (kit_stats_open(&in->stats, in->o->stats, err)) return -1;
    in->has_stats = true;
    if (kit_stats_check_model(&in->stats, in->o->stats, in->o->model, in->model_sha256, err) ||
        kit_stats_check_shape(&in->stats, in->o->stats, in->hp->n_layer, in->hp->n_embd, in->hp->n_ff, err))
        return -1;
    return kit_sha256_file(in->o->stats, in->stats_sha256, err);
}

size_t rank_lineage_bytes(const rank_inputs *in) {
    size_t n = 0;
    for (size_t i = 0; in->has_stats && i < in->stats.n_text; i++)
        n += 256 + strlen(in->stats.text[i].name) + strlen(in->stats.text[i].blocks);
    for (size_t i = 0; i < in->texts.n_text; i++) // 8 digits for each 16 tokens
        n += 256 + strlen(in->texts.text[i].name) + (size_t)in->texts.text[i].n_windows * (size_t)in->texts.n_ctx / 2;
    return n;
}

int rank_open_inputs(rank_inputs *in, const rank_options *o, dw_pool *pool, dw_err *err) {
    *in = (rank_inputs){.o = o, .model = dw_model_open(o->model, err)};
    if (!in->model || prune_need_cuttable(in->model, err)) return -1;
    in->hp = dw_model_hparams(in->model);
    kit_sha256_gguf(dw_model_gguf(in->model), in->model_sha256);
    if (read_stats(in, err)) return -1;
    in->drop = dw_alloc((size_t)in->hp->n_layer, sizeof *in->drop, "layers", err);
    in->scorer = (kit_scorer){.model = in->model,
                              .stats = in->has_stats ? &in->stats : NULL,
                              .group = atoi(in->o->group),
                              .seed = (uint64_t)in->o->seed,
                              .pool = pool};
    return in->drop ? 0 : -1;
}

void rank_close_inputs(rank_inputs *in) {
    kit_scorer_release(&in->scorer);
    prune_sizes_release(&in->sizes);
    trial_free(in->search.trial);
    calib_release(&in->texts);
    kit_gram_close(&in->gram);
    dw_hold_free(in->hold);
    free(in->state);
    if (in->has_stats) kit_stats_release(&in->stats);
    free(in->influence);
    free(in->inverse);
    free(in->drop);
    free(in->protect);
    for (int l = 0; in->kv && l < in->hp->n_layer; l++) free(in->kv[l]);
    free(in->kv);
    dw_model_close(in->model);
}

/* ---- layers to drop ------------------------------------------------------------------------------------------ */

static int measure_influence(rank_inputs *in, dw_err *err) {
    in->influence = dw_alloc((size_t)in->hp->n_layer, sizeof *in->influence, "block influence", err);
    for (int l = 0; in->influence && l < in->hp->n_layer; l++) {
        const kit_stats_layer *layer = &in->stats.layer[l];
        in->influence[l] = 1 - layer->sum_cosine / (double)layer->n_cosine;
        if (!isfinite(in->influence[l]))
            return dw_fail(err, "layer %d: the statistics have no block influence; collect them from texts", l);
    }
    return in->influence ? 0 : -1;
}

/* "0-1,23": single layers and ranges, from 0. */
int rank_read_protected(rank_inputs *in, dw_err *err) {
    const int n_layer = in->hp->n_layer;
    const char *at = in->o->protect;
    if (!at) return 0;
    in->protect = dw_alloc((size_t)n_layer, sizeof *in->protect, "layers", err);
    if (!in->protect) return -1;
    for (;; at++) {
        int first, last, n = 0, more = 0;
        if (*at < '0' || *at > '9' || sscanf(at, "%8d%n", &first, &n) != 1) break;
        at += n, last = first;
        if (*at == '-' && (at[1] < '0' || at[1] > '9' || sscanf(at, "-%8d%n", &last, &more) != 1)) break;
        at += more;
        if (last < first)
            return dw_fail(err, "--protect '%s': the range %d-%d runs backwards", in->o->protect, first, last);
        if (last >= n_layer)
            return dw_fail(err, "--protect '%s': the model has layers 0 to %d", in->o->protect, n_layer - 1);
        for (int l = first; l <= last; l++) in->protect[l] = true;
        if (!*at) return 0;
        if (*at != ',') break;
    }
    return dw_fail(err, "--protect '%s': '%s' is no layer or range of layers; write 0-1,23", in->o->protect, at);
}

static int check_n_dropped(const rank_inputs *in, dw_err *err) {
    int n_protected = 0;
    for (int l = 0; l < in->hp->n_layer; l++) n_protected += in->protect && in->protect[l];
    if (in->o->drop_layers >= in->hp->n_layer)
        return dw_fail(err, "%d of %d layers cannot be dropped: one must stay", in->o->drop_layers, in->hp->n_layer);
    if (in->o->drop_layers <= in->hp->n_layer - n_protected) return 0;
    return dw_fail(err, "%d layers cannot be dropped: %d of %d are protected", in->o->drop_layers, n_protected,
                   in->hp->n_layer);
}

int rank_choose_layers(rank_inputs *in, dw_err *err) {
    if (!in->o->drop_layers) return 0;
    if (check_n_dropped(in, err)) return -1;
    if (measure_influence(in, err)) return -1;
    for (int i = 0; i < in->o->drop_layers; i++) {
        int least = -1;
        for (int l = 0; l < in->hp->n_layer; l++)
            if (!in->drop[l] && !(in->protect && in->protect[l]) &&
                (least < 0 || in->influence[l] < in->influence[least]))
                least = l;
        in->drop[least] = true;
        say("layer %d is dropped, block influence %.4f", least, in->influence[least]);
    }
    return 0;
}

/* ---- the residual stream ----------------------------------------------------------------------------------------- */

static int read_inverse(rank_inputs *in, const char *what, dw_err *err) {
    if (in->inverse) return 0;
    in->inverse = dw_alloc((size_t)in->hp->n_layer, sizeof *in->inverse, "energies of the residual", err);
    for (int l = 0; in->inverse && l < in->hp->n_layer; l++) {
        const kit_stats_layer *layer = &in->stats.layer[l];
        in->inverse[l] = layer->sum_inverse / (double)layer->n_cosine;
        if (!(in->inverse[l] > 0))
            return dw_fail(err,
                           "'%s' does not know the residual's norm after layer %d, which %s needs; "
                           "collect the statistics again",
                           in->o->stats, l, what);
    }
    return in->inverse ? 0 : -1;
}

int rank_measure_residual(rank_inputs *in, dw_err *err) {
    char what[64];
    const char *option;
    const prune_allocator *rule = rank_first_rule(in->o, &option);
    if (!rule->needs_inverse || rank_find_metric(in->o->metric)->scale == KIT_SCALE_COMMON) return 0;
    snprintf(what, sizeof what, "--%s %s", option, rule->name);
    return read_inverse(in, what, err);
}

void rank_say(const char *text) { say("%s", text); }

int rank_open_gram(rank_inputs *in, bool must, dw_err *err) {
    char *path = kit_gram_path(in->o->stats, err);
    int rc = path ? 0 : -1;
    if (!rc && (must || dw_file_exists(path)) && !in->gram.matrix)
        rc = kit_gram_open(&in->gram, path, err) ? -1 : kit_gram_check_stats(&in->gram, path, &in->stats, err);
    if (!rc && !must && !kit_gram_has(&in->gram, KIT_STATS_FFN_NEURON)) kit_gram_close(&in->gram); // gradients alone
    free(path);
    return rc;
}

/* Whole windows only: losses are means of windows that weigh the same, and a tail is a few tokens after others that
 * have been counted already. */
int rank_read_texts(rank_inputs *in, dw_err *err) {
    const calib_request wanted = {&in->o->texts, in->o->windows, in->o->n_ctx, 0};
    if (in->texts.n_text) return 0;
    if (calib_read(&in->texts, in->model, &wanted, err)) return -1;
    for (size_t i = 0; i < in->texts.n_text; i++) in->texts.text[i].n_tail = 0;
    return 0;
}

typedef struct token_range { // of a file
    int64_t first, end;
} token_range;

static token_range tokens_of(int first_window, int n_windows, int n_ctx) {
    const int64_t first = (int64_t)(first_window - 1) * n_ctx;
    return (token_range){first, first + (int64_t)n_windows * n_ctx};
}

/* More tokens than whole windows have are those of the tail, which is the file's end. */
static token_range tokens_of_stats(const kit_stats *s, const kit_stats_text *text) {
    token_range r = tokens_of(text->first_window, text->n_windows, s->n_ctx);
    if (text->n_tokens > (uint64_t)text->n_windows * (uint64_t)(s->n_ctx - s->skip)) r.end = INT64_MAX;
    return r;
}

const calib_text *rank_find_seen(const rank_inputs *in) {
    for (size_t i = 0; i < in->texts.n_text && in->has_stats; i++)
        for (size_t k = 0; k < in->stats.n_text; k++) {
            const calib_text *text = &in->texts.text[i];
            const token_range a = tokens_of(text->first_window, text->n_windows, in->texts.n_ctx),
                              b = tokens_of_stats(&in->stats, &in->stats.text[k]);
            if (!strcmp(text->sha256, in->stats.text[k].sha256) && a.first < b.end && b.first < a.end) return text;
        }
    return NULL;
}

/* A copy of a text has another hash, and a collection of texts has them all: their runs of tokens tell.  Windows of the
 * same file are rank_find_seen's. */
int rank_warn_of_shared(const rank_inputs *in, dw_err *err) {
    for (size_t i = 0; i < in->texts.n_text && in->has_stats; i++) {
        const calib_text *text = &in->texts.text[i];
        size_t k = 0;
        const long run = lineage_shared_run(in->stats.text, in->stats.n_text, text->sha256, text->token,
                                            (size_t)text->n_windows * (size_t)in->texts.n_ctx, &k, err);
        if (run < 0) return -1;
        if (!run) continue;
        warn("'%s' shares a run of %ld tokens with '%s' of the statistics, so it is not wholly held out; give other "
             "texts",
             text->name, run, in->stats.text[k].name);
        return 0;
    }
    return 0;
}

void rank_warn_of_few(const rank_inputs *in, const char *then) {
    int n = 0;
    for (size_t i = 0; i < in->texts.n_text; i++) n += calib_n_windows(&in->texts.text[i]);
    if (n < MEASURE_LEAST_WINDOWS)
        warn("%d window%s of text (-f) %s too few for a standard error: %s; %d or more have one", n, plural(n),
             n == 1 ? "is" : "are", then, MEASURE_LEAST_WINDOWS);
}

/* ---- heads ---------------------------------------------------------------------------------------------------- */

static void warn_of_heads(rank_inputs *in, const heads_task *t) {
    double nearest;
    int most = 0;
    for (int l = 0; l < in->hp->n_layer; l++)
        if (!t->fixed[l] && in->hp->n_head_kv[l] > most) most = in->hp->n_head_kv[l];
    in->heads_reached = heads_reached(t, in->kv, &nearest);
    if (fabs(in->heads_reached - t->rate) <= 0.01) return;
    warn("--heads %g is wanted and %.4f is reached, because layers have at most %d KV heads, and one must stay%s",
         t->rate, in->heads_reached, most,
         fabs(nearest - t->rate) < fabs(in->heads_reached - t->rate) - 1e-9
             ? "; --heads-allocate relative comes nearer"
             : "");
}

/* Dropped and protected layers keep their heads. */
int rank_choose_heads(rank_inputs *in, dw_err *err) {
    const size_t n_layer = (size_t)in->hp->n_layer;
    const bool is_relative = !strcmp(in->o->heads_allocate, "relative");
    if (!(in->o->heads > 0)) return 0;
    if (rank_open_gram(in, true, err) || (is_relative && read_inverse(in, "--heads-allocate relative", err))) return -1;
    bool *fixed = dw_alloc(n_layer, sizeof *fixed, "layers", err);
    in->kv = dw_alloc(n_layer, sizeof *in->kv, "kept heads", err);
    for (size_t l = 0; fixed && l < n_layer; l++) fixed[l] = in->drop[l] || (in->protect && in->protect[l]);
    damping_report report = {.tell = rank_say, .what = ", heads"};
    const heads_task t = {.model = in->model,
                          .gram = &in->gram,
                          .rate = in->o->heads,
                          .inverse = is_relative ? in->inverse : NULL,
                          .fixed = fixed,
                          .damp = in->o->damp,
                          .pool = in->scorer.pool,
                          .report = &report};
    const int rc = fixed && in->kv ? heads_choose(&t, in->kv, err) : -1;
    damping_report_end(&report);
    if (!rc) warn_of_heads(in, &t);
    free(fixed);
    return rc;
}

int rank_n_kv_kept(const rank_inputs *in, int l) {
    if (!in->kv || !in->kv[l]) return in->hp->n_head_kv[l];
    int n = 0;
    for (int h = 0; h < in->hp->n_head_kv[l]; h++) n += in->kv[l][h];
    return n;
}
