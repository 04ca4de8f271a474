/* score.c - the harness: perplexity, distance from a base, size, memory and speed of models, a row each.
 *
 *     deadwood score -m mini-q4.gguf -f text.txt --base mini.gguf -o rows.tsv */
#include "measure/continuations.h"
#include "measure/evaluate.h"
#include "experiments/measures.h"
#include "experiments/speed.h"
#include "measure/statistics.h"
#include "formats/ffn_gated.h"
#include "model/model.h"
#include "kit/hash_cache.h"
#include "kit/lineage.h"
#include "kit/options.h"
#include "kit/progress.h"
#include "kit/talk.h"
#include "text/tokenizers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    opt_list models, texts;
    const char *base, *store, *protocol, *precision, *out, *inject, *depths, *role;
    opt_range windows;
    int n_ctx, n_batch, n_rounds, n_prefill, n_decode, n_seq, n_beside;
    bool json, no_speed, speed_only, per_layer, columns;
} o;

static const struct { const char *name; } roles[] = {{"select"}, {"report"}, {0}};

// clang-format off
static const opt_row rows[] = {
    {"model", 'm', OPT_TEXTS, OPT_INPUT, &o.models, NULL, "FILE", "models (GGUF), or predictions stored with --store"},
    {"text", 'f', OPT_TEXTS, OPT_INPUT, &o.texts, NULL, "TEXT", "texts: a row each, and one for their geometric mean"},
    {"base", 0, OPT_PATH, OPT_INPUT, &o.base, NULL, "FILE", "compare with this model, evaluated side by side, or with its stored predictions"},
    {"store", 0, OPT_PATH, OPT_NO_BYTE | OPT_OUTPUT, &o.store, NULL, "FILE", "store the predictions of the one model given, as a base for later runs"},
    {.kind = OPT_GROUP, .help = "what is scored"},
    {"protocol", 0, OPT_CHOICE, 0, &o.protocol, "llama", "NAME", "which tokens are scored, and with which context", OPT_CHOICES_HELP(measure_protocols, measure_protocol)},
    {"ctx", 'c', OPT_INT, 0, &o.n_ctx, "512", "N", "tokens of a window", .min = 4, .max = 1 << 20},
    {"windows", 0, OPT_RANGE, 0, &o.windows, NULL, "A-B", "only windows A to B of every text; 20 is 1-20"},
    OPT_KV,
    OPT_SELECT,
    {"precision", 0, OPT_CHOICE, 0, &o.precision, "split", "NAME", "how finely products are rounded, where the CPU multiplies BF16 (amx)",
     OPT_CHOICES_HELP(tool_precision_names, tool_precision_name)},
    {"batch", 0, OPT_INT, OPT_NO_BYTE, &o.n_batch, "512", "N", "tokens evaluated at once; changes no result", .min = 1, .max = 1 << 16},
    {"side-by-side", 0, OPT_INT, OPT_NO_BYTE, &o.n_beside, "8", "N", "models evaluated at once with the base, each in memory of its own; the base is evaluated again for the next N; changes no result", .min = 1, .max = 4096},
    {.kind = OPT_GROUP, .help = "speed"},
    {"no-speed", 0, OPT_FLAG, 0, &o.no_speed, NULL, NULL, "leave memory, load time and speed unknown"},
    {"speed-only", 0, OPT_FLAG, 0, &o.speed_only, NULL, NULL, "leave quality unknown: one row a model"},
    {"speed-prefill", 0, OPT_INT, 0, &o.n_prefill, "512", "N", "tokens of a timed prefill; 0: none", .min = 0, .max = EXP_SPEED_TOKENS},
    {"speed-decode", 0, OPT_INT, 0, &o.n_decode, "64", "N", "tokens of a timed decode; 0: none", .min = 0, .max = EXP_SPEED_TOKENS - EXP_SPEED_PREFIX},
    {"depth", 0, OPT_TEXT, 0, &o.depths, "0", "D[,D...]",
     "tokens in the KV cache before those that are timed; each further depth has a row of its own, without quality"},
    {"sequences", 0, OPT_INT, 0, &o.n_seq, "1", "N", "time so many sequences together", .min = 1, .max = EXP_SPEED_MAX_SEQ},
    {"inject", 0, OPT_TEXT, 0, &o.inject, NULL, "A[,A...]",
     "time gated models with this planted share of open groups, from the first layer to the last; leaves quality unknown"},
    {"speed-rounds", 0, OPT_INT, 0, &o.n_rounds, "5", "N", "rounds over the models in turn, of which medians are taken", .min = 1, .max = EXP_SPEED_MAX_ROUNDS},
    {.kind = OPT_GROUP, .help = "output"},
    {"out", 'o', OPT_PATH, OPT_NO_BYTE, &o.out, NULL, "FILE", "append the rows to this table (TSV) as soon as a model is finished, and its window sums to FILE.windows"},
    {"role", 0, OPT_CHOICE, 0, &o.role, NULL, "NAME", "of these texts: select, to choose variants by, or report, which nothing is chosen by", OPT_CHOICES(roles)},
    {"per-layer", 0, OPT_FLAG, OPT_NO_BYTE, &o.per_layer, NULL, NULL, "print a table of each gated model's layers, too"},
    {"json", 0, OPT_FLAG, OPT_NO_BYTE, &o.json, NULL, NULL, "print a JSON object a line instead of the short table"},
    {"columns", 0, OPT_FLAG, OPT_NO_BYTE, &o.columns, NULL, NULL, "say what each column means, and end"},
    OPT_COMMON_ENGINE, {0}};

static const opt_program program = {
    .name = "score",
    .summary = "perplexity, distance from a base model, size, memory and speed of models",
    .usage = "-m M... -f TEXT... [--base M|STORED] [--store FILE] [-o rows.tsv]",
    .about = "Makes one row for each model and text.  A short table goes to stdout; all columns go to -o (appended) and --json.  Quality "
             "does not depend on the number of threads nor on --batch.  Memory, load time and speed are measured in a process that "
             "holds one model alone; rounds over several models are interleaved, and what disturbed them is said in column "
             "disturbed.\n"
             "Standard errors are clustered by window: tokens of one window are not independent.  Intervals take Student's t, because windows "
             "are few.  FILE.windows keeps the sums of each window, from which any two rows of the table compare pairwise.\n"
             "With --base the difference of the log-perplexities is paired token by token, with its standard error over windows and over "
             "runs of windows, and the divergence KL(base || model) is taken over the whole vocabulary.  --store keeps of each scored "
             "token the exact log-probability, the 64 likeliest tokens and the mass of the rest (about 330 bytes); compared with that, ln_ratio "
             "and top-1 agreement are the same, and KL is that of the coarser distribution, a lower bound: on the embedded model 12 to 17 % "
             "below the full one at 4 bits (Q4_0) and 8 to 14 % at 2 (Q2_K).  Two stored files give ln_ratio only.\n"
             "Each model, and a base that is a model, also continues five built-in prompts greedily by 48 tokens each; column repeats is the "
             "share of them that only repeats: at least half of the last 32 tokens are one of the four before them.\n"
             "Of gated models coverage says which share of the FFN's neurons counted, and bytes_per_token what decoding really read.  "
             "--inject opens groups at random instead, a share A of them (a list is interpolated over the layers), which leaves nothing "
             "to be said about quality: gates and predictors are computed all the same.",
    .example = "deadwood score -m mini.gguf mini-q8.gguf -f english.txt german.txt\n"
               "deadwood score -m mini-q4.gguf --base mini.gguf -f english.txt -o rows.tsv\n"
               "deadwood score -m mini.gguf -f english.txt --store mini.base\n"
               "deadwood score -m mini-q4.gguf --base mini.base -f english.txt\n"
               "deadwood score -m 7b.gguf 7b-cut.gguf --speed-only --speed-prefill 0\n"
               "deadwood score -m 7b.gguf --speed-only --depth 0,4096 --sequences 4\n"
               "deadwood score -m 7b-gated.gguf --inject 0.5 --select listed",
    .rows = rows};
// clang-format on

/* ---- texts and models ------------------------------------------------------------------------------------- */

typedef struct text {
    const char *path;
    char *data;
    size_t size;
    uint8_t hash[32];
    char sha256[65];
} text;

typedef struct entrant { // a model with its ids of every text
    measure_entrant of;
    const char *path;
    dw_model *model;
    dw_tokenizer *tok;  // the model's
    measure_predictions *stored;
    char sha256[65];
    uint8_t hash[32], vocab[32];
    int32_t **ids; // n_texts
    size_t *n_ids;
    int32_t bos;        // at the begin of each window, -1: none
    exp_result *result; // n_texts, and the mean; after the rows with quality one for each further depth
    exp_speed speed[EXP_SPEED_MAX_DEPTHS];
    double repeats;     // NaN: stored predictions
    double *n_open, *n_seen; // n_layer: neurons that counted in all texts, and all of them; of gated models
    bool learnt_unnamed;     // from data that no text can be compared with
    measure_mean *nll, *kl, *agree, *ratio; // n_texts
    measure_paired *paired;
    measure_sums sums;
    int *place; // n_texts: of a text in the sums
} entrant;

typedef struct run {
    const measure_protocol *protocol;
    dw_kv_cache kv;
    dw_pool *pool;
    text *texts;
    int n_texts;
    entrant *all; // n_models, then the base
    int n_models;
    entrant *base; // NULL: none
    double bandwidth;
    const double *inject; // n_inject planted activities
    int n_inject;
    int depth[EXP_SPEED_MAX_DEPTHS], n_depths;
    progress *bar;
    size_t n_again; // rows that the table had before
} run;

static int open_text(text *t, const char *path, dw_err *err) {
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

static int tokenize(entrant *c, const run *r, dw_err *err) {
    for (int t = 0; t < r->n_texts; t++)
        if (dw_tokenize(c->tok, r->texts[t].data, r->texts[t].size, DW_ADD_SPECIAL, &c->ids[t], &c->n_ids[t], err))
            return -1;
    return 0;
}

static int open_live(entrant *c, const run *r, dw_err *err) {
    if (!dw_is_gguf(c->path)) return dw_fail(err, "'%s' is neither a model (GGUF) nor stored predictions", c->path);
    c->model = dw_model_open(c->path, err);
    if (!c->model || lineage_check(dw_model_gguf(c->model), err) ||
        exp_learnt_unnamed(dw_model_gguf(c->model), &c->learnt_unnamed, err))
        return -1;
    kit_sha256_gguf(dw_model_gguf(c->model), c->sha256);
    c->tok = dw_tokenizer_open(dw_model_gguf(c->model), err);
    if (!c->tok) return dw_fail_in(err, "'%s'", c->path);
    const dw_vocab *v = dw_tokenizer_vocab(c->tok);
    measure_vocab_hash(v, c->vocab);
    c->bos = r->protocol->bos_each_window && v->add_bos ? v->bos : -1;
    const size_t n_layer = (size_t)dw_model_hparams(c->model)->n_layer;
    c->n_open = dw_alloc(n_layer, sizeof *c->n_open, "layers", err);
    c->n_seen = dw_alloc(n_layer, sizeof *c->n_seen, "layers", err);
    return c->n_open && c->n_seen ? tokenize(c, r, err) : -1;
}

static int open_entrant(entrant *c, const char *path, const run *r, dw_err *err) {
    const size_t n = (size_t)r->n_texts;
    c->path = path;
    c->ids = dw_alloc(n, sizeof *c->ids, "texts", err);
    c->n_ids = dw_alloc(n, sizeof *c->n_ids, "texts", err);
    c->result = dw_alloc(n + 1 + EXP_SPEED_MAX_DEPTHS, sizeof *c->result, "rows", err);
    c->nll = dw_alloc(n, sizeof *c->nll, "rows", err);
    c->kl = dw_alloc(n, sizeof *c->kl, "rows", err);
    c->agree = dw_alloc(n, sizeof *c->agree, "rows", err);
    c->ratio = dw_alloc(n, sizeof *c->ratio, "rows", err);
    c->paired = dw_alloc(n, sizeof *c->paired, "rows", err);
    c->place = dw_alloc(n, sizeof *c->place, "rows", err);
    if (!c->ids || !c->n_ids || !c->result || !c->nll || !c->kl || !c->agree || !c->ratio || !c->paired || !c->place)
        return -1;
    if (!c->stored) return open_live(c, r, err);
    const measure_stored_head *h = measure_predictions_head(c->stored);
    memcpy(c->vocab, h->vocab_sha256, sizeof c->vocab);
    dw_hex(h->model_sha256, 32, c->sha256);
    c->bos = h->bos;
    return 0;
}

static void close_entrant(entrant *c, int n_texts) {
    measure_entrant_close(&c->of);
    for (int t = 0; c->ids && t < n_texts; t++) free(c->ids[t]);
    free(c->ids);
    free(c->n_ids);
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

static int find_stored_text(const entrant *c, const run *r, int t) {
    const measure_stored_head *h = measure_predictions_head(c->stored);
    int s = 0;
    while (s < h->n_texts && memcmp(h->text[s].sha256, r->texts[t].hash, 32)) s++;
    return s;
}

/* Every setting that decides which tokens are predicted from what. */
static int check_stored(const entrant *c, const run *r, dw_err *err) {
    const measure_stored_head *h = measure_predictions_head(c->stored);
    if (strcmp(h->protocol, r->protocol->name) || h->n_ctx != o.n_ctx)
        return dw_fail(err, "'%s' was stored with --protocol %s -c %d, this run has --protocol %s -c %d", c->path,
                       h->protocol, h->n_ctx, r->protocol->name, o.n_ctx);
    if (h->first != o.windows.first || h->last != o.windows.last)
        return dw_fail(err,
                       "'%s' was stored with windows %d to %d (0: all), this run has %d to %d; give the same --windows",
                       c->path, h->first, h->last, o.windows.first, o.windows.last);
    for (int t = 0; t < r->n_texts; t++)
        if (find_stored_text(c, r, t) == h->n_texts)
            return dw_fail(err, "'%s' holds no predictions for the text '%s' as it is now", c->path, r->texts[t].path);
    return 0;
}

/* Without texts on the command line those of the first stored file are meant, and its settings. */
static int take_stored_settings(run *r, dw_err *err) {
    const measure_stored_head *h = measure_predictions_head(r->all[0].stored);
    r->n_texts = h->n_texts;
    r->protocol = measure_protocol_find(h->protocol);
    r->texts = r->protocol ? dw_alloc((size_t)h->n_texts, sizeof *r->texts, "texts", err) : NULL;
    o.n_ctx = h->n_ctx;
    o.windows = (opt_range){h->first, h->last};
    for (int t = 0; r->texts && t < h->n_texts; t++) {
        r->texts[t].path = h->text[t].name;
        memcpy(r->texts[t].hash, h->text[t].sha256, 32);
        dw_hex(r->texts[t].hash, 32, r->texts[t].sha256);
    }
    return r->texts ? 0
                    : dw_fail(err, "'%s' was stored with protocol '%s', which is unknown here", o.models.item[0],
                              h->protocol);
}

static int n_vocab_of(const entrant *c) {
    return c->model ? dw_model_hparams(c->model)->n_vocab : measure_predictions_head(c->stored)->n_vocab;
}

static int check_same_ids(const entrant *c, const entrant *base, const run *r, dw_err *err) {
    if (memcmp(c->vocab, base->vocab, sizeof c->vocab) || c->bos != base->bos)
        return dw_fail(err, "'%s' and '%s' have different vocabularies, so their predictions cannot be compared",
                       c->path, base->path);
    if (n_vocab_of(c) != n_vocab_of(base))
        return dw_fail(err, "'%s' predicts %d tokens, '%s' %d", c->path, n_vocab_of(c), base->path, n_vocab_of(base));
    for (int t = 0; t < r->n_texts && c->model && base->model; t++)
        if (c->n_ids[t] != base->n_ids[t] || memcmp(c->ids[t], base->ids[t], c->n_ids[t] * sizeof *c->ids[t]))
            return dw_fail(err, "'%s' and '%s' cut the text '%s' into different tokens", c->path, base->path,
                           r->texts[t].path);
    return 0;
}

/* Once, where the base is one of the models, too. */
static void warn_of_context(const run *r, int i) {
    const entrant *c = &r->all[i];
    if (!c->model || o.speed_only) return;
    const int n_ctx_train = dw_model_hparams(c->model)->n_ctx_train;
    for (int k = 0; k < i; k++)
        if (!strcmp(r->all[k].sha256, c->sha256)) return;
    if (o.n_ctx > n_ctx_train) warn("'%s' was trained on %d positions, windows have %d", c->path, n_ctx_train, o.n_ctx);
}

static int open_all(run *r, dw_err *err) {
    const int n = r->n_models + (r->base != NULL);
    for (int i = 0; i < n; i++) {
        const char *path = i < r->n_models ? o.models.item[i] : o.base;
        if (measure_is_predictions(path) && !(r->all[i].stored = measure_predictions_open(path, err))) return -1;
    }
    if (r->base && !r->base->stored)
        for (int i = 0; i < r->n_models; i++)
            if (r->all[i].stored)
                return dw_fail(err, "'%s' holds stored predictions, which can only be compared with a stored base",
                               o.models.item[i]);
    if (!o.texts.n && !o.speed_only && take_stored_settings(r, err)) return -1;
    for (int t = 0; t < (int)o.texts.n; t++)
        if (open_text(&r->texts[t], o.texts.item[t], err)) return -1;
    for (int i = 0; i < n; i++) {
        if (open_entrant(&r->all[i], i < r->n_models ? o.models.item[i] : o.base, r, err)) return -1;
        if (r->all[i].stored && check_stored(&r->all[i], r, err)) return -1;
        warn_of_context(r, i);
    }
    for (int i = 0; i < r->n_models && r->base; i++)
        if (check_same_ids(&r->all[i], r->base, r, err)) return -1;
    return 0;
}

/* ---- windows of a text ------------------------------------------------------------------------------------ */

static size_t n_ids_of(const entrant *c, const run *r, int t) {
    return c->model ? c->n_ids[t] : measure_predictions_head(c->stored)->text[find_stored_text(c, r, t)].n_tokens;
}

static int make_windows(measure_windows *w, const entrant *c, const run *r, int t, dw_err *err) {
    return measure_windows_make(w, r->protocol, n_ids_of(c, r, t), o.n_ctx, o.windows.first, o.windows.last,
                            r->texts[t].path, err);
}

/* How often the base is evaluated. */
static int n_groups(const run *r) { return r->base ? (r->n_models + o.n_beside - 1) / o.n_beside : r->n_models; }

/* Adds the tokens that a model evaluates for a text, and says which windows these are. */
static int check_text(const entrant *c, const run *r, int t, double *n_tokens, measure_sums_text *part, dw_err *err) {
    measure_windows w;
    if (make_windows(&w, c, r, t, err)) return -1;
    for (size_t k = 0; k < w.n && c->model; k++) *n_tokens += w.window[k].n_eval;
    const size_t n_scored = w.n_scored;
    *part = (measure_sums_text){.first = o.windows.first ? o.windows.first : 1, .n_windows = (int)w.n};
    memcpy(part->sha256, r->texts[t].hash, sizeof part->sha256);
    measure_windows_release(&w);
    if (c->stored && n_scored != measure_predictions_head(c->stored)->text[find_stored_text(c, r, t)].n_scored)
        return dw_fail(err, "'%s' is damaged: other tokens of '%s' were scored than its header says", c->path,
                       r->texts[t].path);
    return 0;
}

/* Every window of every model, made once before anything long begins; the number of tokens to be evaluated. */
static int check_windows(const run *r, double *n_tokens, dw_err *err) {
    measure_sums_text *texts = dw_alloc((size_t)r->n_texts, sizeof *texts, "texts", err);
    int rc = texts ? 0 : -1;
    *n_tokens = 0;
    for (int i = 0; i < r->n_models + (r->base != NULL) && !rc; i++) {
        entrant *c = &r->all[i];
        double n = 0;
        for (int t = 0; t < r->n_texts && !rc; t++) rc = check_text(c, r, t, &n, &texts[t], err);
        *n_tokens += n * (c == r->base ? n_groups(r) : 1);
        if (!rc) rc = measure_sums_make(&c->sums, "", texts, r->n_texts, c->place, err);
    }
    free(texts);
    return rc;
}

/* ---- one text --------------------------------------------------------------------------------------------- */

static void step(void *ctx, double n) { progress_step(ctx, n); }

static int fill_leak(exp_result *res, const entrant *c, const text *tx, int t, dw_err *err) {
    if (!c->model || !dw_gguf_find(dw_model_gguf(c->model), "deadwood.lineage")) return 0;
    dw_err own = {0};
    char *why = lineage_leak(dw_model_gguf(c->model), tx->sha256, c->ids[t], c->n_ids[t], &own);
    if (own.text[0]) return dw_fail(err, "%s", own.text);
    if (why || !c->learnt_unnamed) snprintf(res->leak, sizeof res->leak, "%s", why ? why : "no");
    if (why) warn("'%s' has seen the text '%s': %s", c->path, tx->path, why);
    free(why);
    return 0;
}

static void fill_quality(exp_result *q, measure_mean nll, const measure_paired *paired, const measure_mean *kl,
                         const measure_mean *agree) {
    q->nll = nll.mean;
    q->nll_se = nll.se;
    q->nll_ci90 = measure_half_width(&nll, 0.9);
    q->ppl = exp(nll.mean);
    q->ppl_se = q->ppl * nll.se;
    if (paired) {
        q->ln_ratio = paired->of.mean;
        q->ln_ratio_se = paired->of.se;
        q->ln_ratio_ci90 = measure_half_width(&paired->of, 0.9);
        q->ln_ratio_se_blocks = paired->se_blocks;
        q->resolvable = paired->resolvable;
        q->base_ppl = exp(nll.mean - paired->of.mean);
    }
    if (kl) {
        q->kl_mean = kl->mean;
        q->kl_se = kl->se;
        q->kl_ci90 = measure_half_width(kl, 0.9);
        q->top1_agree = agree->mean;
        q->top1_se = agree->se;
        q->top1_ci90 = measure_half_width(agree, 0.9);
    }
}

/* From the numbers of every token to the sums of every window of text t. */
static void sum_windows(entrant *c, const entrant *base, int t, const measure_windows *w) {
    const measure_entrant *m = &c->of;
    const size_t first = measure_sums_at(&c->sums, c->place[t]);
    for (size_t k = 0, i = 0; k < w->n; k++) {
        double *const *sum = c->sums.sum;
        const size_t at = first + k, end = i + (size_t)measure_window_n_scored(&w->window[k]);
        sum[MEASURE_TOKENS][at] = (double)(end - i);
        for (; i < end; i++) {
            sum[MEASURE_NLL][at] += m->nll[i];
            if (base) sum[MEASURE_BASE_NLL][at] += base->of.nll[i];
            if (m->kl) sum[MEASURE_KL][at] += m->kl[i];
            if (m->kl) sum[MEASURE_AGREE][at] += m->agree[i];
        }
    }
}

/* The base is compared token by token: its differences are summed, not its sums subtracted. */
static int pair_windows(measure_paired *p, const measure_windows *w, const double *nll, const double *base,
                        dw_err *err) {
    double *sum = dw_alloc(w->n, sizeof *sum, "windows", err), *n = dw_alloc(w->n, sizeof *n, "windows", err);
    int rc = sum && n ? 0 : -1;
    for (size_t k = 0, at = 0; !rc && k < w->n; k++) {
        n[k] = measure_window_n_scored(&w->window[k]);
        for (int i = 0; i < (int)n[k]; i++, at++) sum[k] += nll[at] - base[at];
    }
    if (!rc) rc = measure_paired_of(p, sum, n, w->n, err);
    free(sum);
    free(n);
    return rc;
}

/* What the session has counted of a gated model since the text began. */
static void fill_coverage(exp_result *res, entrant *c) {
    double open = 0, seen = 0;
    if (!c->model || !dw_model_is_gated(c->model)) return;
    for (int l = 0; l < dw_model_hparams(c->model)->n_layer; l++) {
        const dw_coverage counts = dw_session_coverage(c->of.session, l);
        const double n = (double)counts.n_tokens * dw_model_hparams(c->model)->n_ff[l];
        open += (double)counts.n_open;
        seen += n;
        c->n_open[l] += (double)counts.n_open;
        c->n_seen[l] += n;
    }
    if (seen > 0) res->coverage = open / seen;
}

/* From the numbers of every token to the row's. */
static int fill_text(entrant *c, const run *r, int t, const measure_windows *w, dw_err *err) {
    exp_result *res = &c->result[t];
    const measure_entrant *m = &c->of, *base = r->base ? &r->base->of : NULL;
    const size_t at = measure_sums_at(&c->sums, c->place[t]);
    double *const *sum = c->sums.sum, *n = sum[MEASURE_TOKENS] + at;
    res->tokens_scored = (double)w->n_scored;
    sum_windows(c, r->base, t, w);
    c->nll[t] = measure_mean_of_windows(sum[MEASURE_NLL] + at, n, w->n);
    if (base && pair_windows(&c->paired[t], w, m->nll, base->nll, err)) return -1;
    c->ratio[t] = c->paired[t].of;
    if (m->kl) {
        c->kl[t] = measure_mean_of_windows(sum[MEASURE_KL] + at, n, w->n);
        c->agree[t] = measure_mean_of_windows(sum[MEASURE_AGREE] + at, n, w->n);
        measure_sort(m->kl, w->n_scored);
        res->kl_median = measure_quantile(m->kl, w->n_scored, 0.5);
        res->kl_p99 = measure_quantile(m->kl, w->n_scored, 0.99);
    }
    fill_quality(res, c->nll[t], base ? &c->paired[t] : NULL, m->kl ? &c->kl[t] : NULL, &c->agree[t]);
    fill_coverage(res, c);
    return fill_leak(res, c, &r->texts[t], t, err);
}

static int take_results(measure_entrant *e, size_t n, bool with_kl, dw_err *err) {
    e->nll = dw_alloc(n, sizeof *e->nll, "results", err);
    e->kl = with_kl ? dw_alloc(n, sizeof *e->kl, "results", err) : NULL;
    e->agree = with_kl ? dw_alloc(n, sizeof *e->agree, "results", err) : NULL;
    return e->nll && (!with_kl || (e->kl && e->agree)) ? 0 : -1;
}

static void drop_results(measure_entrant *e) {
    free(e->nll);
    free(e->kl);
    free(e->agree);
    e->nll = e->kl = NULL;
    e->agree = NULL;
}

/* Models first .. first + n - 1 on text t, all side by side with the base. */
static int score_text(run *r, int first, int n, int t, const measure_entrant_options *eo,
                      measure_predictions_writer *store, dw_err *err) {
    measure_windows w = {0};
    measure_entrant *models = dw_alloc((size_t)n, sizeof *models, "models", err);
    entrant *one = &r->all[first];
    int rc = models ? make_windows(&w, one, r, t, err) : -1;
    for (int i = 0; i < n && !rc; i++)
        rc = take_results(&r->all[first + i].of, w.n_scored, r->base && r->all[first + i].model, err);
    if (r->base && !rc) rc = take_results(&r->base->of, w.n_scored, false, err);
    for (int i = 0; i < r->n_models + (r->base != NULL) && !rc; i++)
        if (r->all[i].stored) measure_predictions_seek(r->all[i].stored, find_stored_text(&r->all[i], r, t));
    for (int i = 0; i < n && !rc; i++) {
        models[i] = r->all[first + i].of;
        if (models[i].session) dw_session_reset_coverage(models[i].session);
    }
    const measure_evaluation e = {.o = eo,
                                  .windows = &w,
                                  .ids = one->model ? one->ids[t] : NULL,
                                  .bos = one->bos,
                                  .base = r->base ? &r->base->of : NULL,
                                  .model = models,
                                  .n_models = n,
                                  .store = store,
                                  .progress = step,
                                  .progress_ctx = r->bar};
    if (!rc) rc = measure_evaluate(&e, err);
    for (int i = 0; i < n; i++) {
        if (!rc) rc = fill_text(&r->all[first + i], r, t, &w, err);
        drop_results(&r->all[first + i].of);
    }
    if (r->base) drop_results(&r->base->of);
    measure_windows_release(&w);
    free(models);
    return rc;
}

/* ---- storing ---------------------------------------------------------------------------------------------- */

static measure_predictions_writer *store_open(const run *r, dw_err *err) {
    const entrant *c = &r->all[0];
    measure_stored_text *texts = dw_alloc((size_t)r->n_texts, sizeof *texts, "texts", err);
    measure_stored_head h = {.model = (char *)dw_base_name(c->path),
                         .n_vocab = dw_model_hparams(c->model)->n_vocab,
                         .protocol = (char *)r->protocol->name,
                         .n_ctx = o.n_ctx,
                         .bos = c->bos,
                         .first = o.windows.first,
                         .last = o.windows.last,
                         .text = texts,
                         .n_texts = r->n_texts};
    for (int i = 0; i < 32; i++) sscanf(c->sha256 + 2 * i, "%2hhx", &h.model_sha256[i]);
    memcpy(h.vocab_sha256, c->vocab, sizeof c->vocab);
    int rc = texts ? 0 : -1;
    for (int t = 0; t < r->n_texts && !rc; t++) {
        measure_windows w;
        if ((rc = make_windows(&w, c, r, t, err))) break;
        texts[t] = (measure_stored_text){
            .name = (char *)dw_base_name(r->texts[t].path), .n_tokens = c->n_ids[t], .n_scored = w.n_scored};
        memcpy(texts[t].sha256, r->texts[t].hash, 32);
        measure_windows_release(&w);
    }
    measure_predictions_writer *w = rc ? NULL : measure_predictions_writer_new(o.store, &h, err);
    free(texts);
    return w;
}

/* ---- rows ------------------------------------------------------------------------------------------------- */

/* Rows of a model with quality, or with --speed-only the one without. */
static int n_rows_of(const run *r) { return o.speed_only ? 1 : r->n_texts + (r->n_texts > 1); }
/* Rows that tell of the speed at a further depth come after them.  A row a depth, because then each cell of the table
 * is one number, and a plot of speed over depth is one of its columns over another. */
static int n_all_rows_of(const entrant *c, const run *r) {
    return n_rows_of(r) + (o.no_speed || !c->model ? 0 : r->n_depths - 1);
}

static const char *bos_text(const entrant *c) {
    if (c->bos >= 0) return "window";
    if (!c->model) return "-";
    return dw_tokenizer_vocab(c->tok)->add_bos ? "text" : "no";
}

static void put_range(exp_result *res, const measure_sums_text *part) {
    snprintf(res->window_range, sizeof res->window_range, "%d-%d", part->first, part->first + part->n_windows - 1);
}

static void name_texts(entrant *c, const run *r) {
    for (int t = 0; t < r->n_texts; t++) {
        exp_result *res = &c->result[t];
        const measure_sums_text *part = &c->sums.text[c->place[t]];
        snprintf(res->text, sizeof res->text, "%s", dw_base_name(r->texts[t].path));
        snprintf(res->text_sha256, sizeof res->text_sha256, "%s", r->texts[t].sha256);
        put_range(res, part);
        res->windows = part->n_windows;
    }
}

/* The row of all texts. */
static int name_mean(entrant *c, const run *r, dw_err *err) {
    exp_result *res = &c->result[r->n_texts];
    const measure_sums *s = &c->sums;
    bool same = true;
    snprintf(res->text, sizeof res->text, "*");
    res->texts = r->n_texts;
    for (int t = 1; t < s->n_texts; t++)
        same &= s->text[t].first == s->text[0].first && s->text[t].n_windows == s->text[0].n_windows;
    if (same) put_range(res, &s->text[0]);
    return measure_sums_set_hash(s->text, s->n_texts, res->text_sha256, err);
}

static int begin_rows(entrant *c, const run *r, dw_err *err) {
    exp_result common = exp_result_unknown();
    dw_err ignored = {0};
    const char *level = dw_cpu_level(&ignored);
    if (exp_fill_place(&common, err)) return -1;
    snprintf(common.protocol, sizeof common.protocol, "%s", r->protocol->name);
    snprintf(common.bos, sizeof common.bos, "%s", bos_text(c));
    if (r->base) snprintf(common.base, sizeof common.base, "%s", dw_base_name(r->base->path));
    if (r->base) snprintf(common.base_sha256, sizeof common.base_sha256, "%s", r->base->sha256);
    if (o.role) snprintf(common.role, sizeof common.role, "%s", o.role);
    if (r->base && c->model && !o.speed_only)
        snprintf(common.kl_kind, sizeof common.kl_kind, "%s", r->base->model ? "full" : "top64");
    common.n_ctx = o.n_ctx;
    if (c->model) {
        if (exp_fill_model(&common, c->path, c->sha256, c->model, err)) return -1;
        common.threads = dw_pool_size(r->pool);
        const bool is_cpu = !strcmp(tool.backend, "cpu");
        snprintf(common.backend, sizeof common.backend, "%s%s%s", tool.backend, is_cpu ? "-" : "",
                 is_cpu && level ? level : "");
        snprintf(common.kv, sizeof common.kv, "%s", tool.kv);
        if (is_cpu) snprintf(common.precision, sizeof common.precision, "%s", o.precision);
        snprintf(common.select, sizeof common.select, "%s", tool.select);
        if (o.inject && dw_model_is_gated(c->model)) snprintf(common.activity, sizeof common.activity, "%s", o.inject);
        if (dw_model_is_gated(c->model) && tool_select()->select != DW_SELECT_DENSE)
            common.bytes_per_token = NAN; // until it is counted
    } else {
        snprintf(common.model, sizeof common.model, "%s", measure_predictions_head(c->stored)->model);
        snprintf(common.model_sha256, sizeof common.model_sha256, "%s", c->sha256);
    }
    for (int t = 0; t < r->n_texts + 1 + EXP_SPEED_MAX_DEPTHS; t++) c->result[t] = common;
    for (int d = 1; d < r->n_depths; d++) *c->result[n_rows_of(r) + d - 1].role = 0; // nothing is chosen by speed alone
    if (!o.speed_only) name_texts(c, r);
    return o.speed_only || r->n_texts < 2 ? 0 : name_mean(c, r, err);
}

/* All but the model. */
static exp_speed_options speed_options(const run *r) {
    return (exp_speed_options){.backend = tool.backend,
                               .n_threads = tool.threads,
                               .kv = r->kv,
                               .select = tool_select()->select,
                               .is_listed = tool_select()->is_listed,
                               .inject = r->inject,
                               .n_inject = r->n_inject,
                               .n_prefill = o.n_prefill,
                               .n_decode = o.n_decode,
                               .depth = r->depth,
                               .n_depths = r->n_depths,
                               .n_seq = o.n_seq};
}

/* Without a pass for quality: over the tokens that were decoded. */
static double decoded_coverage(const entrant *c, const exp_speed *s) {
    const dw_hparams *hp = dw_model_hparams(c->model);
    double open = 0, all = 0;
    for (int l = 0; l < hp->n_layer; l++) {
        open += s->reading.open[l] * hp->n_ff[l];
        all += hp->n_ff[l];
    }
    return open / all;
}

static void put_speed(exp_result *res, const entrant *c, const run *r, int d) {
    const exp_speed *s = &c->speed[d];
    const exp_speed_options so = speed_options(r);
    res->depth = r->depth[d];
    res->sequences = o.n_seq;
    exp_speed_name(&so, r->depth[d], res->speed_test, sizeof res->speed_test);
    res->peak_rss_bytes = s->peak_rss_bytes;
    res->load_ms = s->load_ms;
    res->prefill_tok_s = s->prefill_tok_s.median;
    res->prefill_spread = s->prefill_tok_s.max - s->prefill_tok_s.min;
    res->decode_tok_s = s->decode_tok_s.median;
    res->decode_spread = s->decode_tok_s.max - s->decode_tok_s.min;
    res->read_gb_s = r->bandwidth;
    if (s->reading.n_layer) res->bytes_per_token = s->reading.bytes_per_token;
    if (s->reading.n_layer && !*res->text) res->coverage = decoded_coverage(c, s);
    res->read_share = res->bytes_per_token * res->decode_tok_s / o.n_seq / (1e9 * r->bandwidth);
    snprintf(res->disturbed, sizeof res->disturbed, "%s", s->disturbed);
}

static void fill_speed(entrant *c, const run *r) {
    const int n = n_rows_of(r);
    for (int t = 0; t < n; t++) put_speed(&c->result[t], c, r, 0);
    for (int d = 1; d < r->n_depths; d++) put_speed(&c->result[n + d - 1], c, r, d);
}

/* The row of all texts: means of logarithms, so perplexity is the geometric mean; quantiles have no such mean. */
static void fill_mean(entrant *c, const run *r) {
    exp_result *res = &c->result[r->n_texts];
    const size_t n = (size_t)r->n_texts;
    const bool with_kl = c->model && r->base;
    const measure_mean kl = measure_mean_of_texts(c->kl, n), agree = measure_mean_of_texts(c->agree, n);
    const measure_paired paired = measure_paired_of_texts(c->paired, n);
    if (n < 2) return;
    res->windows = res->tokens_scored = 0;
    if (isfinite(c->result[0].coverage)) res->coverage = 0;
    snprintf(res->leak, sizeof res->leak, "%s", c->result[0].leak);
    for (size_t t = 0; t < n; t++) {
        res->coverage += c->result[t].coverage / (double)n;
        res->windows += c->result[t].windows;
        res->tokens_scored += c->result[t].tokens_scored;
        if (*c->result[t].leak && strcmp(c->result[t].leak, "no"))
            snprintf(res->leak, sizeof res->leak, "%s", c->result[t].leak);
    }
    res->nll_texts_sd = measure_between_texts(c->nll, n);
    if (r->base) res->ln_ratio_texts_sd = measure_between_texts(c->ratio, n);
    fill_quality(res, measure_mean_of_texts(c->nll, n), r->base ? &paired : NULL, with_kl ? &kl : NULL, &agree);
}

/* ---- speed ------------------------------------------------------------------------------------------------ */

static void count_round(void *bar) { progress_step(bar, 1); }

/* Ids for the benchmark: of the first text, repeated as far as needed; without texts all over the vocabulary. */
static void speed_ids(const entrant *c, bool from_text, int32_t *ids) {
    const uint32_t n_vocab = (uint32_t)dw_model_hparams(c->model)->n_vocab;
    for (uint32_t i = 0; i < EXP_SPEED_TOKENS; i++)
        ids[i] = from_text ? c->ids[0][i % c->n_ids[0]] : (int32_t)(i * 2654435761u % n_vocab);
}

/* children[k] belongs to the k-th live model. */
static int measure_speed(run *r, exp_child *children, int n, dw_err *err) {
    int32_t(*ids)[EXP_SPEED_TOKENS] = dw_alloc((size_t)n, sizeof *ids, "ids", err);
    const int32_t **of = dw_alloc((size_t)n, sizeof *of, "ids", err);
    exp_speed *results = dw_alloc((size_t)n * (size_t)r->n_depths, sizeof *results, "speeds", err);
    int rc = ids && of && results ? 0 : -1;
    for (int i = 0, k = 0; i < r->n_models && !rc; i++)
        if (r->all[i].model) {
            speed_ids(&r->all[i], r->n_texts > 0, ids[k]);
            of[k] = ids[k];
            k++;
        }
    const double before = rc ? -1 : exp_read_bandwidth(r->pool, 0, 5, err);
    progress *bar = progress_begin("measuring speed", "rounds", n * r->n_depths * (o.n_rounds + 1.0));
    const exp_speed_run all = {.children = children,
                               .ids = of,
                               .n = n,
                               .n_depths = r->n_depths,
                               .n_threads = dw_pool_size(r->pool),
                               .n_rounds = o.n_rounds,
                               .step = count_round,
                               .ctx = bar};
    if (before < 0 || exp_speed_measure(&all, results, err)) rc = -1;
    progress_end(bar);
    const double after = rc ? -1 : exp_read_bandwidth(r->pool, 0, 5, err);
    if (after < 0) rc = -1;
    r->bandwidth = (before + after) / 2;
    for (int i = 0, k = 0; i < r->n_models && !rc; i++)
        if (r->all[i].model)
            memcpy(r->all[i].speed, results + r->n_depths * k++, (size_t)r->n_depths * sizeof *results);
    free(ids);
    free(of);
    free(results);
    return rc;
}

/* Before any thread is started. */
static int start_children(exp_child *children, int *n, const run *r, dw_err *err) {
    *n = 0;
    for (size_t i = 0; i < o.models.n; i++) {
        if (measure_is_predictions(o.models.item[i])) continue;
        exp_speed_options so = speed_options(r);
        so.path = o.models.item[i];
        if (exp_speed_start(&children[*n], &so, err)) return -1;
        ++*n;
    }
    return 0;
}

/* ---- a finished model ------------------------------------------------------------------------------------- */

/* Sums of quantities that were not measured are none. */
static void drop_unknown_sums(entrant *c, const run *r) {
    const bool unknown[MEASURE_N_SUMS] = {
        [MEASURE_BASE_NLL] = !r->base, [MEASURE_KL] = !r->base || !c->model, [MEASURE_AGREE] = !r->base || !c->model};
    for (int k = 0; k < MEASURE_N_SUMS; k++) {
        if (!unknown[k]) continue;
        free(c->sums.sum[k]);
        c->sums.sum[k] = NULL;
    }
}

/* Completes the rows of a model and appends them, so that what is finished stays whatever happens to the rest. */
static int finish(entrant *c, run *r, dw_err *err) {
    if (!o.speed_only) fill_mean(c, r);
    if (!o.no_speed && c->model) fill_speed(c, r);
    for (int t = 0; t < n_rows_of(r) && !o.speed_only; t++) {
        c->result[t].repeats = c->repeats;
        if (r->base) c->result[t].base_repeats = r->base->repeats;
    }
    if (!o.out) return 0;
    size_t n_again;
    drop_unknown_sums(c, r);
    free(c->sums.how);
    c->sums.how = exp_sums_how_of(&c->result[0], err);
    if (!c->sums.how || exp_append_results(o.out, c->result, (size_t)n_all_rows_of(c, r),
                                           o.speed_only ? NULL : &c->sums, &n_again, err))
        return -1;
    r->n_again += n_again;
    return 0;
}

/* ---- all texts -------------------------------------------------------------------------------------------- */

/* Models first .. first + n - 1 and the base, so that the base is evaluated once for all of them. */
static int score_group(run *r, int first, int n, measure_predictions_writer *store, dw_err *err) {
    /* A session has 4096 sequences, so at most 4000 windows are evaluated at once. */
    const measure_entrant_options eo = {.pool = r->pool,
                                        .backend = tool.backend,
                                        .kv = r->kv,
                                        .select = tool_select()->select,
                                        .precision = tool_precision(o.precision),
                                        .n_ctx = o.n_ctx,
                                        .n_batch = o.n_batch / o.n_ctx > 4000 ? 4000 * o.n_ctx : o.n_batch};
    int rc = 0;
    for (int i = 0; i < r->n_models + (r->base != NULL) && !rc; i++) {
        entrant *c = &r->all[i];
        if (c != r->base && (i < first || i >= first + n)) continue;
        c->of = (measure_entrant){.name = c->path, .model = c->model, .stored = c->stored};
        rc = measure_entrant_open(&c->of, &eo, err);
    }
    for (int t = 0; t < r->n_texts && !rc; t++) rc = score_text(r, first, n, t, &eo, store, err);
    for (int i = first; i < first + n; i++) measure_entrant_close(&r->all[i].of);
    if (r->base) measure_entrant_close(&r->base->of);
    return rc;
}

static int continue_prompts(entrant *c, const run *r, dw_err *err) {
    const dw_session_options so = {.pool = r->pool,
                                   .backend = tool.backend,
                                   .kv = r->kv,
                                   .select = tool_select()->select,
                                   .precision = tool_precision(o.precision)};
    c->repeats = NAN;
    if (!c->model || !measure_repeats(c->model, c->tok, &so, &c->repeats, err)) return 0;
    return dw_fail_in(err, "'%s'", c->path);
}

static int score_all(run *r, dw_err *err) {
    const int n_beside = r->base ? o.n_beside : 1;
    measure_predictions_writer *store = NULL;
    if (o.store && !(store = store_open(r, err))) return -1;
    int rc = r->base ? continue_prompts(r->base, r, err) : 0;
    for (int i = 0, n; i < r->n_models && !rc; i += n) {
        n = r->n_models - i < n_beside ? r->n_models - i : n_beside;
        if (r->n_models > n_beside) say("scoring '%s', model %d of %d", r->all[i].path, i + 1, r->n_models);
        rc = score_group(r, i, n, store, err);
        for (int k = i; k < i + n && !rc; k++) rc = continue_prompts(&r->all[k], r, err);
        if (store && !rc) rc = measure_predictions_commit(store, err);
        for (int k = i; k < i + n && !rc; k++) rc = finish(&r->all[k], r, err);
    }
    measure_predictions_writer_free(store);
    return rc;
}

/* ---- output ----------------------------------------------------------------------------------------------- */

enum { SHORT_COLUMNS = 9, CELL = 64 };

static void cell_with_se(char *cell, double v, double se, int digits) {
    if (isnan(v))
        snprintf(cell, CELL, "-");
    else if (isnan(se))
        snprintf(cell, CELL, "%.*f", digits, v);
    else
        snprintf(cell, CELL, "%.*f ± %.*f", digits, v, digits, se);
}

static void cell_number(char *cell, double v, const char *format) {
    if (isnan(v))
        snprintf(cell, CELL, "-");
    else
        snprintf(cell, CELL, format, v);
}

static void short_row(char (*cell)[CELL], const exp_result *r) {
    dw_show(cell[0], 40 + 1, r->model, strlen(r->model));
    const char *what = *r->text ? r->text : r->speed_test;
    dw_show(cell[1], 24 + 1, what, strlen(what));
    cell_with_se(cell[2], r->ppl, r->ppl_se, r->ppl < 100 ? 3 : 1);
    cell_with_se(cell[3], r->ln_ratio, r->ln_ratio_se, 5);
    cell_with_se(cell[4], r->kl_mean, r->kl_se, 5);
    cell_with_se(cell[5], 100 * r->top1_agree, 100 * r->top1_se, 2);
    cell_number(cell[6], r->file_bytes / 1e6, "%.1f");
    cell_number(cell[7], r->prefill_tok_s, "%.0f");
    cell_number(cell[8], r->decode_tok_s, r->decode_tok_s < 100 ? "%.1f" : "%.0f");
    if (*r->disturbed && strcmp(r->disturbed, "no")) strcat(cell[8], " !");
    if (!strcmp(r->kl_kind, "top64")) strcat(cell[4], " or more");
}

/* Characters of UTF-8 text. */
static int width_of(const char *s) {
    int n = 0;
    for (; *s; s++) n += (*s & 0xc0) != 0x80;
    return n;
}

static void print_cells(char (*cell)[CELL], const int *width) {
    for (int c = 0; c < SHORT_COLUMNS; c++) {
        const int pad = width[c] - width_of(cell[c]);
        if (c < 2)
            printf("%s%s%*s", c ? "  " : "", cell[c], pad, "");
        else
            printf("  %*s%s", pad, "", cell[c]);
    }
    printf("\n");
}

static int print_short(const exp_result *r, size_t n, dw_err *err) {
    static const char *const heads[SHORT_COLUMNS] = {"model",   "text", "ppl",           "ln ratio",    "KL",
                                                     "top-1 %", "MB",   "prefill tok/s", "decode tok/s"};
    char(*cell)[SHORT_COLUMNS][CELL] = dw_alloc(n + 1, sizeof *cell, "a table", err);
    int width[SHORT_COLUMNS] = {0};
    if (!cell) return -1;
    for (int c = 0; c < SHORT_COLUMNS; c++) snprintf(cell[0][c], CELL, "%s", heads[c]);
    for (size_t i = 0; i < n; i++) short_row(cell[i + 1], &r[i]);
    for (size_t i = 0; i <= n; i++)
        for (int c = 0; c < SHORT_COLUMNS; c++)
            if (width_of(cell[i][c]) > width[c]) width[c] = width_of(cell[i][c]);
    for (size_t i = 0; i <= n; i++) print_cells(cell[i], width);
    for (size_t i = 0; i < n; i++)
        if (*r[i].disturbed && strcmp(r[i].disturbed, "no") && (!i || strcmp(r[i].model, r[i - 1].model)))
            say("the speed of '%s' was disturbed: %s", r[i].model, r[i].disturbed);
    free(cell);
    return 0;
}

static int print_json(const exp_result *r, size_t n, dw_err *err) {
    for (size_t i = 0; i < n; i++) {
        char *line = exp_result_json(&r[i], err);
        if (!line) return -1;
        puts(line);
        free(line);
    }
    return 0;
}

/* A gated model's layers: what was wanted, what the calibration texts gave, what was met. */
static void print_layers(const entrant *c) {
    const dw_gguf *g = dw_model_gguf(c->model);
    const dw_hparams *hp = dw_model_hparams(c->model);
    const char *wanted = *c->result[0].activity ? c->result[0].activity : "-";
    dw_str rule = {"-", 1};
    uint32_t group = 0;
    dw_gguf_str(g, DW_KEY_GATE_RULE, &rule, NULL);
    dw_gguf_u32(g, DW_KEY_GATE_GROUP, &group, NULL);
    show_text(stdout, c->result[0].model, strlen(c->result[0].model));
    printf(": rule ");
    show_text(stdout, rule.ptr, rule.len);
    printf(", groups of %u, select %s, activity ", group, tool.select);
    show_text(stdout, wanted, strlen(wanted));
    printf(" wanted\n");
    printf("%5s  %6s  %12s  %6s  %9s  %9s  %12s\n", "layer", "n_ff", "threshold", "dense", "expected", "coverage",
           "bytes/token");
    for (int l = 0; l < hp->n_layer; l++) {
        const dw_layer_gate *s = &c->model->net.layer[l].sparse;
        const exp_reading *reading = &c->speed[0].reading;
        const double coverage = c->n_seen[l] > 0   ? c->n_open[l] / c->n_seen[l]
                                : reading->n_layer ? reading->open[l]
                                                   : NAN;
        char cell[4][CELL];
        cell_number(cell[0], s->down_t.name && !s->pred_a.name && !s->dense ? (double)s->threshold : NAN, "%.6g");
        cell_number(cell[1], s->down_t.name && !s->pred_a.name ? (double)s->activity : NAN, "%.4f");
        cell_number(cell[2], coverage, "%.4f");
        cell_number(cell[3], reading->n_layer ? reading->bytes[l] : NAN, "%.0f");
        printf("%5d  %6d  %12s  %6s  %9s  %9s  %12s\n", l, hp->n_ff[l], cell[0],
               s->dense || !s->down_t.name ? "yes" : "no", cell[1], cell[2], cell[3]);
    }
}

static int print_rows(const run *r, dw_err *err) {
    size_t n = 0, at = 0;
    for (int i = 0; i < r->n_models; i++) n += (size_t)n_all_rows_of(&r->all[i], r);
    exp_result *all = dw_alloc(n, sizeof *all, "rows", err);
    if (!all) return -1;
    for (int i = 0; i < r->n_models; i++)
        for (int t = 0; t < n_all_rows_of(&r->all[i], r); t++) all[at++] = r->all[i].result[t];
    int rc = o.json ? print_json(all, n, err) : print_short(all, n, err);
    for (int i = 0; i < r->n_models && o.per_layer && !rc; i++)
        if (r->all[i].model && dw_model_is_gated(r->all[i].model)) print_layers(&r->all[i]);
    if (!rc && (fflush(stdout) || ferror(stdout))) rc = dw_fail(err, "cannot write to stdout");
    free(all);
    return rc;
}

static void print_columns(void) {
    printf("column\tmeaning\n");
    for (const exp_column *c = exp_columns; c->name; c++) printf("%s\t%s\n", c->name, c->help);
}

/* ---- */

/* A planted activity needs a gate somewhere; models without one may stand beside it. */
static int check_inject(const run *r, dw_err *err) {
    for (int i = 0; i < r->n_models; i++)
        if (r->all[i].model && dw_model_is_gated(r->all[i].model)) return 0;
    return dw_fail(
        err, "'%s' is not gated, so that no activity can be planted in it; gate makes such files, and synth --gate",
        r->all[0].path);
}

static int score(run *r, exp_child *children, int n_children, dw_err *err) {
    double n_tokens;
    if (open_all(r, err) || (o.inject && check_inject(r, err)) || check_windows(r, &n_tokens, err)) return -1;
    if (o.store && !r->all[0].model) return dw_fail(err, "'%s' is stored already", r->all[0].path);
    for (int i = 0; i < r->n_models; i++)
        if (begin_rows(&r->all[i], r, err)) return -1;
    if (n_children && measure_speed(r, children, n_children, err)) return -1;
    for (int i = 0; i < n_children; i++) exp_child_stop(&children[i]);
    r->bar = progress_begin("scoring", "tokens", n_tokens);
    int rc = o.speed_only ? 0 : score_all(r, err);
    for (int i = 0; i < r->n_models && o.speed_only && !rc; i++) rc = finish(&r->all[i], r, err);
    progress_end(r->bar);
    if (!rc && r->n_again)
        say("'%s' had %zu of these rows before; deadwood table shows the last ones and says so", o.out, r->n_again);
    return rc ? rc : print_rows(r, err);
}

/* Shares between 0 and 1, separated by commas; free(). */
static double *parse_shares(const char *list, int *n) {
    size_t cap = 1;
    for (const char *p = list; *p; p++) cap += *p == ',';
    double *share = dw_alloc(cap, sizeof *share, "shares", NULL);
    if (!share) die("out of memory: shares");
    *n = 0;
    for (char *end = (char *)list - 1; *n == 0 || *end; ++*n) { // behind the comma
        const char *from = end + 1;
        share[*n] = strtod(from, &end);
        if (end == from || (*end && *end != ',') || !(share[*n] >= 0 && share[*n] <= 1))
            die_usage("--inject '%s' is no list of shares between 0 and 1", list);
    }
    return share;
}

/* Whether a model or the base must be run on texts. */
static bool needs_text(void) {
    bool any = o.base && !measure_is_predictions(o.base);
    for (size_t i = 0; i < o.models.n; i++) any |= !measure_is_predictions(o.models.item[i]);
    return any && !o.speed_only;
}

int main(int argc, char **argv) {
    opt_parse(&program, argc, argv);
    if (o.columns) {
        print_columns();
        return 0;
    }
    if (!o.models.n) die_usage("give a model with -m");
    if (o.speed_only && (o.no_speed || o.store)) die_usage("--speed-only leaves nothing for --no-speed and --store");
    if (o.store && o.models.n != 1) die_usage("--store keeps the predictions of one model");
    if (o.inject && (o.no_speed || o.store))
        die_usage("--inject plants an activity for measuring speed alone; leave out --no-speed and --store");
    if (o.json && o.per_layer) die_usage("--per-layer prints a table, --json objects; give one of them");
    o.speed_only |= o.inject != NULL;
    if (!o.texts.n && needs_text()) die_usage("give a text with -f");
    dw_err err = {0};
    if (o.out && exp_check_results(o.out, &err)) die_err(&err);
    run r = {.protocol = measure_protocol_find(o.protocol), .n_texts = (int)o.texts.n, .n_models = (int)o.models.n};
    r.kv = tool_kv();
    double *shares = o.inject ? parse_shares(o.inject, &r.n_inject) : NULL;
    r.inject = shares;
    r.n_depths = exp_speed_depths(o.depths, r.depth);
    if (!r.n_depths)
        die_usage("--depth '%s' is no list of at most %d different numbers of tokens, like 0,4096", o.depths,
                  EXP_SPEED_MAX_DEPTHS);
    exp_child *children = dw_alloc(o.models.n, sizeof *children, "models", &err);
    int n_children = 0;
    if (!children || (!o.no_speed && start_children(children, &n_children, &r, &err))) die_err(&err);
    r.pool = dw_pool_new(tool.threads, &err);
    r.all = dw_alloc(o.models.n + 1, sizeof *r.all, "models", &err);
    r.texts = o.texts.n ? dw_alloc(o.texts.n, sizeof *r.texts, "texts", &err) : NULL;
    if (o.base && r.all) r.base = &r.all[o.models.n];
    if (!r.pool || !r.all || (o.texts.n && !r.texts) || score(&r, children, n_children, &err)) die_err(&err);
    for (int i = 0; i < r.n_models + (r.base != NULL); i++) close_entrant(&r.all[i], r.n_texts);
    for (int t = 0; t < r.n_texts; t++) free(r.texts[t].data);
    free(r.texts);
    free(r.all);
    free(children);
    free(shares);
    dw_pool_free(r.pool);
    return 0;
}
