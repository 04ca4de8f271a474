/* score.c - the harness: perplexity, distance from a base, size, memory and speed of models, a row each.
 *
 *     deadwood score -m mini-q4.gguf -f text.txt --base mini.gguf -o rows.tsv */
#include "experiments/score/score.h"
#include "kit/talk.h"
#include "measure/continuations.h"
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static score_options o;

static const struct { const char *name; } roles[] = {{"select"}, {"report"}, {0}};

static const opt_row rows[] = {
    {"model", 'm', OPT_TEXTS, OPT_INPUT, &o.models, NULL, "FILE", "models (GGUF), or predictions stored with --store"},
    {"text", 'f', OPT_TEXTS, OPT_INPUT, &o.texts, NULL, "TEXT", "texts: a row each, and one for their geometric mean"},
    {"base", 0, OPT_PATH, OPT_INPUT, &o.base, NULL, "FILE",
     "compare with this model, evaluated side by side, or with its stored predictions"},
    {"store", 0, OPT_PATH, OPT_NO_BYTE | OPT_OUTPUT, &o.store, NULL, "FILE",
     "store the predictions of the one model given, as a base for later runs", .holds = KIT_PREDICTIONS},
    {.kind = OPT_GROUP, .help = "what is scored"},
    {"protocol", 0, OPT_CHOICE, 0, &o.protocol, "llama", "NAME", "which tokens are scored, and with which context",
     OPT_CHOICES_HELP(measure_protocols, measure_protocol)},
    {"ctx", 'c', OPT_INT, 0, &o.n_ctx, "512", "N", "tokens of a window", .min = MEASURE_LEAST_CTX, .max = 1 << 20},
    {"windows", 0, OPT_RANGE, 0, &o.windows, NULL, "A-B", "only windows A to B of every text; 20 is 1-20"},
    OPT_KV,
    OPT_SELECT,
    {"precision", 0, OPT_CHOICE, 0, &o.precision, "split", "NAME",
     "how finely products are rounded; with AMX rounded and int8 are the same and coarser than split; without it split "
     "and rounded are the same, and int8 is coarser.  Speed is measured with it if it is given, else with int8, as in "
     "generation",
     OPT_CHOICES_HELP(tool_precision_names, tool_precision_name)},
    {"batch", 0, OPT_INT, OPT_NO_BYTE, &o.n_batch, "512", "N", "tokens evaluated at once; changes no result", .min = 1,
     .max = 1 << 16},
    {"side-by-side", 0, OPT_INT, OPT_NO_BYTE, &o.n_beside, "8", "N",
     "models evaluated at once with the base, each in memory of its own; the base is evaluated again for the next N; "
     "changes no result",
     .min = 1, .max = 4096},
    {.kind = OPT_GROUP, .help = "speed"},
    {"no-speed", 0, OPT_FLAG, 0, &o.no_speed, NULL, NULL, "leave memory, load time and speed unknown"},
    {"speed-only", 0, OPT_FLAG, 0, &o.speed_only, NULL, NULL, "leave quality unknown: one row a model"},
    {"speed-prefill", 0, OPT_INT, 0, &o.n_prefill, "512", "N", "tokens of a timed prefill, at most 512; 0: none",
     .min = 0, .max = EXP_SPEED_TOKENS},
    {"speed-decode", 0, OPT_INT, 0, &o.n_decode, "64", "N", "tokens of a timed decode, at most 504; 0: none", .min = 0,
     .max = EXP_SPEED_TOKENS - EXP_SPEED_PREFIX},
    {"depth", 0, OPT_TEXT, 0, &o.depths, "0", "D[,D...]",
     "tokens in the KV cache before those that are timed; each further depth has a row of its own, without quality"},
    {"sequences", 0, OPT_INT, 0, &o.n_seq, "1", "N", "time so many sequences together", .min = 1,
     .max = EXP_SPEED_MAX_SEQ},
    {"inject", 0, OPT_TEXT, 0, &o.inject, NULL, "A[,A...]",
     "time gated models with this planted share of open groups, from the first layer to the last; leaves quality "
     "unknown"},
    OPT_HUGE_PAGES,
    {"speed-rounds", 0, OPT_INT, 0, &o.n_rounds, "5", "N", "rounds over the models in turn; their medians are shown",
     .min = 1, .max = EXP_SPEED_MAX_ROUNDS},
    {.kind = OPT_GROUP, .help = "output"},
    {"out", 'o', OPT_PATH, OPT_NO_BYTE, &o.out, NULL, "FILE",
     "append the rows to this table (TSV) as soon as a model is finished, and its window sums to FILE.windows",
     .beside = ".windows"},
    {"role", 0, OPT_CHOICE, 0, &o.role, NULL, "NAME",
     "of these texts: select, to choose variants by, or report, which nothing is chosen by", OPT_CHOICES(roles)},
    {"per-layer", 0, OPT_FLAG, OPT_NO_BYTE, &o.per_layer, NULL, NULL,
     "print a table of each gated model's layers, too"},
    {"json", 0, OPT_FLAG, OPT_NO_BYTE, &o.json, NULL, NULL, "print a JSON object a line instead of the short table"},
    {"columns", 0, OPT_FLAG, OPT_NO_BYTE, &o.columns, NULL, NULL, "say what each column means, and end"},
    OPT_COMMON_ENGINE,
    {0}};

static const opt_program program = {
    .name = "score",
    .summary = "perplexity, distance from a base model, size, memory and speed of models",
    .usage = "-m M... -f TEXT... [--base M|STORED] [--store FILE] [-o rows.tsv]",
    .about =
        "Makes one row for each model and text.  A short table goes to stdout; all columns go to -o (appended) and "
        "--json.  Quality does not depend on the number of threads nor on --batch.  Memory, load time and speed are "
        "measured in a process that holds one model alone; rounds over several models are interleaved, and what "
        "disturbed them is said in column disturbed.\n"
        "Standard errors are clustered by window: tokens of one window are not independent.  Intervals take Student's "
        "t, because windows are few.  FILE.windows keeps the sums of each window, from which any two rows of the "
        "table compare pairwise.\n"
        "With --base the difference of the log-perplexities is paired token by token, with its standard error over "
        "windows and over runs of windows, and the divergence KL(base || model) is taken over the whole vocabulary.  "
        "--store keeps of each scored token the exact log-probability, the 64 likeliest tokens and the mass of the "
        "rest (about 330 bytes); compared with that, ln_ratio and top-1 agreement are the same, and KL is that of the "
        "coarser distribution, a lower bound: on the embedded model 12 to 17 % below the full one at 4 bits (Q4_0) "
        "and 8 to 14 % at 2 (Q2_K).  Two stored files give ln_ratio only.\n"
        "Each model, and a base that is a model, also continues five built-in prompts greedily by 48 tokens each; "
        "column repeats is the share of them that only repeats: at least half of the last 32 tokens are one of the "
        "four before them.\n"
        "Of gated models coverage says which share of the FFN's neurons counted, and bytes_per_token what decoding "
        "really read.  --inject opens groups at random instead, a share A of them (a list is interpolated over the "
        "layers), which leaves nothing to be said about quality: gates and predictors are computed all the same.",
    .example = "deadwood score -m mini.gguf mini-q8.gguf -f english.txt german.txt\n"
               "deadwood score -m mini-q4.gguf --base mini.gguf -f english.txt -o rows.tsv\n"
               "deadwood score -m mini.gguf -f english.txt --store mini.base\n"
               "deadwood score -m mini-q4.gguf --base mini.base -f english.txt\n"
               "deadwood score -m 7b.gguf 7b-cut.gguf --speed-only --speed-prefill 0\n"
               "deadwood score -m 7b.gguf --speed-only --depth 0,4096 --sequences 4\n"
               "deadwood score -m 7b-gated.gguf --inject 0.5 --select listed",
    .rows = rows};

/* ---- one text --------------------------------------------------------------------------------------------- */

static void step(void *ctx, double n) { progress_step(ctx, n); }

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

/* The tokens of text t; NULL: the predictions of all these models are stored. */
static const int32_t *ids_of(const score_entrant *c, int n, int t) {
    for (int i = 0; i < n; i++)
        if (c[i].model) return c[i].ids[t];
    return NULL;
}

/* Models first .. first + n - 1 on text t, all side by side with the base. */
static int evaluate_text(score_run *r, int first, int n, int t, const measure_entrant_options *eo,
                      measure_predictions_writer *store, dw_err *err) {
    measure_windows w = {0};
    measure_entrant *models = dw_alloc((size_t)n, sizeof *models, "models", err);
    score_entrant *one = &r->all[first];
    int rc = models ? score_make_windows(&w, one, r, t, err) : -1;
    for (int i = 0; i < n && !rc; i++)
        rc = take_results(&r->all[first + i].of, w.n_scored, r->base && r->all[first + i].model, err);
    if (r->base && !rc) rc = take_results(&r->base->of, w.n_scored, false, err);
    for (int i = 0; i < r->n_models + (r->base != NULL) && !rc; i++)
        if (r->all[i].stored) measure_predictions_seek(r->all[i].stored, score_find_stored_text(&r->all[i], r, t));
    for (int i = 0; i < n && !rc; i++) {
        models[i] = r->all[first + i].of;
        if (models[i].session) dw_session_reset_coverage(models[i].session);
    }
    const measure_evaluation e = {.o = eo,
                                  .windows = &w,
                                  .ids = ids_of(one, n, t),
                                  .bos = one->bos,
                                  .base = r->base ? &r->base->of : NULL,
                                  .model = models,
                                  .n_models = n,
                                  .store = store,
                                  .progress = step,
                                  .progress_ctx = r->bar};
    if (!rc) rc = measure_evaluate(&e, err);
    for (int i = 0; i < n; i++) {
        if (!rc) rc = score_fill_text(&r->all[first + i], r, t, &w, err);
        drop_results(&r->all[first + i].of);
    }
    if (r->base) drop_results(&r->base->of);
    measure_windows_release(&w);
    free(models);
    return rc;
}

/* ---- storing ---------------------------------------------------------------------------------------------- */

static measure_predictions_writer *store_open(const score_run *r, dw_err *err) {
    const score_entrant *c = &r->all[0];
    measure_stored_text *texts = dw_alloc((size_t)r->n_texts, sizeof *texts, "texts", err);
    measure_stored_head h = {.model = (char *)dw_base_name(c->path),
                             .n_vocab = dw_model_hparams(c->model)->n_vocab,
                             .protocol = (char *)r->protocol->name,
                             .n_ctx = o.n_ctx,
                             .bos = c->bos,
                             .first = o.windows.first,
                             .last = o.windows.last,
                             .learnt_unnamed = c->learnt_unnamed,
                             .text = texts,
                             .n_texts = r->n_texts};
    for (int i = 0; i < 32; i++) sscanf(c->sha256 + 2 * i, "%2hhx", &h.model_sha256[i]);
    memcpy(h.vocab_sha256, c->vocab, sizeof c->vocab);
    int rc = texts ? 0 : -1;
    for (int t = 0; t < r->n_texts && !rc; t++) {
        measure_windows w;
        if ((rc = score_make_windows(&w, c, r, t, err))) break;
        texts[t] = (measure_stored_text){.name = (char *)dw_base_name(r->texts[t].path),
                                         .n_tokens = c->n_ids[t],
                                         .n_scored = w.n_scored,
                                         .leak = c->leak[t]};
        memcpy(texts[t].sha256, r->texts[t].hash, 32);
        memcpy(texts[t].ids_sha256, c->ids_sha256[t], 32);
        measure_windows_release(&w);
    }
    measure_predictions_writer *w = rc ? NULL : measure_predictions_writer_new(o.store, &h, err);
    free(texts);
    return w;
}

/* ---- all texts -------------------------------------------------------------------------------------------- */

/* Models first .. first + n - 1 and the base, so that the base is evaluated once for all of them. */
static int evaluate_group(score_run *r, int first, int n, measure_predictions_writer *store, dw_err *err) {
    /* A session has 4096 sequences, so at most 4000 windows are evaluated at once. */
    const measure_entrant_options eo = {.pool = r->pool,
                                        .backend = tool.backend,
                                        .kv = r->kv,
                                        .select = tool_select()->select,
                                        .precision = tool_precision(o.precision),
                                        .n_ctx = o.n_ctx,
                                        .n_batch = o.n_batch / (o.n_ctx - 1) > 4000 ? 4000 * (o.n_ctx - 1) : o.n_batch};
    int rc = 0;
    for (int i = 0; i < r->n_models + (r->base != NULL) && !rc; i++) {
        score_entrant *c = &r->all[i];
        if (c != r->base && (i < first || i >= first + n)) continue;
        c->of = (measure_entrant){.name = c->path, .model = c->model, .stored = c->stored};
        rc = measure_entrant_open(&c->of, &eo, err);
    }
    for (int t = 0; t < r->n_texts && !rc; t++) rc = evaluate_text(r, first, n, t, &eo, store, err);
    for (int i = first; i < first + n; i++) measure_entrant_close(&r->all[i].of);
    if (r->base) measure_entrant_close(&r->base->of);
    return rc;
}

static int continue_prompts(score_entrant *c, const score_run *r, dw_err *err) {
    const dw_session_options so = {.pool = r->pool,
                                   .backend = tool.backend,
                                   .kv = r->kv,
                                   .select = tool_select()->select,
                                   .precision = tool_precision(o.precision)};
    c->repeats = NAN;
    if (!c->model || !measure_repeats(c->model, c->tok, &so, &c->repeats, err)) return 0;
    return dw_fail_in(err, "'%s'", c->path);
}

static int evaluate_all(score_run *r, dw_err *err) {
    const int n_beside = r->base ? o.n_beside : 1;
    measure_predictions_writer *store = NULL;
    if (o.store && !(store = store_open(r, err))) return -1;
    int rc = r->base ? continue_prompts(r->base, r, err) : 0;
    for (int i = 0, n; i < r->n_models && !rc; i += n) {
        n = r->n_models - i < n_beside ? r->n_models - i : n_beside;
        if (r->n_models > n_beside) say("scoring '%s', model %d of %d", r->all[i].path, i + 1, r->n_models);
        rc = evaluate_group(r, i, n, store, err);
        for (int k = i; k < i + n && !rc; k++) rc = continue_prompts(&r->all[k], r, err);
        if (store && !rc) rc = measure_predictions_commit(store, false, err);
        for (int k = i; k < i + n && !rc; k++) rc = score_finish(&r->all[k], r, err);
    }
    measure_predictions_writer_free(store);
    return rc;
}

/* ---- */

/* A planted activity needs a gate somewhere; models without one may stand beside it. */
static int check_inject(const score_run *r, dw_err *err) {
    for (int i = 0; i < r->n_models; i++)
        if (r->all[i].model && dw_model_is_gated(r->all[i].model)) return 0;
    return dw_fail(
        err, "'%s' is not gated, so that no activity can be planted in it; gate makes such files, and synth --gate",
        r->all[0].path);
}

static int score(score_run *r, exp_child *children, int n_children, dw_err *err) {
    double n_tokens;
    if (score_open_all(r, err) || (o.inject && check_inject(r, err)) || score_check_windows(r, &n_tokens, err))
        return -1;
    if (o.store && !r->all[0].model) return dw_fail(err, "'%s' is stored already", r->all[0].path);
    for (int i = 0; i < r->n_models; i++)
        if (score_begin_rows(&r->all[i], r, err)) return -1;
    if (n_children && score_measure_speed(r, children, n_children, err)) return -1;
    for (int i = 0; i < n_children; i++) exp_child_stop(&children[i]);
    r->bar = progress_begin("scoring", "tokens", n_tokens);
    int rc = o.speed_only ? 0 : evaluate_all(r, err);
    for (int i = 0; i < r->n_models && o.speed_only && !rc; i++) rc = score_finish(&r->all[i], r, err);
    progress_end(r->bar);
    if (!rc && r->n_again)
        say("'%s' had %zu of these rows before; deadwood table shows the last ones and says so", o.out, r->n_again);
    return rc ? rc : score_print_rows(r, err);
}

/* Shares between 0 and 1, separated by commas; free(). */
static double *parse_shares(const char *list, int *n) {
    size_t cap = 1;
    for (const char *p = list; *p; p++) cap += *p == ',';
    double *share = dw_alloc(cap, sizeof *share, "shares", NULL);
    if (!share) die("out of memory: shares");
    *n = 0;
    for (const char *from = list; from; ++*n) {
        char *end;
        share[*n] = strtod(from, &end);
        if (end == from || (*end && *end != ',') || !(share[*n] >= 0 && share[*n] <= 1))
            die_usage("--inject '%s' is no list of shares between 0 and 1", list);
        from = *end ? end + 1 : NULL; // after the comma
    }
    return share;
}

/* Whether a model or the base must be run on texts. */
static bool needs_text(void) {
    bool any = o.base && !measure_is_predictions(o.base);
    for (size_t i = 0; i < o.models.n; i++) any |= !measure_is_predictions(o.models.item[i]);
    return any && !o.speed_only;
}

/* Speed alone is that of the same tokens, whatever texts are given. */
static void drop_texts(void) {
    static const char *const of_quality[] = {"protocol", "ctx", "windows", "role"};
    if (o.texts.n) warn("--speed-only reads no text; -f is not used");
    for (size_t i = 0; i < sizeof of_quality / sizeof *of_quality; i++)
        if (opt_is_given(of_quality[i])) warn("--speed-only measures no quality; --%s is not used", of_quality[i]);
    o.texts.n = 0;
}

static void check_no_speed(void) {
    static const char *const names[] = {"depth",        "speed-prefill", "speed-decode",
                                        "speed-rounds", "sequences",     "huge-pages"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (opt_is_given(names[i]))
            die_usage("--%s asks for speed, --no-speed for none; leave one of them out", names[i]);
}

int main(int argc, char **argv) {
    opt_parse(&program, argc, argv);
    if (o.columns) {
        score_print_columns();
        return 0;
    }
    if (!o.models.n) die_usage("give a model with -m");
    if (o.speed_only && (o.no_speed || o.store)) die_usage("--speed-only leaves nothing for --no-speed and --store");
    if (o.store && o.models.n != 1) die_usage("--store keeps the predictions of one model");
    if (o.inject && (o.no_speed || o.store))
        die_usage("--inject plants an activity for measuring speed alone; leave out --no-speed and --store");
    if (o.speed_only && !o.n_prefill && !o.n_decode)
        die_usage("--speed-prefill 0 and --speed-decode 0 leave nothing to measure");
    if (o.inject && o.texts.n) die_usage("--inject measures speed alone, which reads no text; leave out -f");
    if (o.speed_only) drop_texts();
    if (o.no_speed) check_no_speed();
    if (o.json && o.per_layer) die_usage("--per-layer prints a table, --json objects; give one of them");
    o.speed_only |= o.inject != NULL;
    if (!o.texts.n && needs_text()) die_usage("give a text with -f");
    dw_err err = {0};
    if (o.out && exp_check_results(o.out, &err)) die_err(&err);
    score_run r = {
        .o = &o, .protocol = measure_protocol_find(o.protocol), .n_texts = (int)o.texts.n, .n_models = (int)o.models.n};
    r.kv = tool_kv();
    double *shares = o.inject ? parse_shares(o.inject, &r.n_inject) : NULL;
    r.inject = shares;
    r.n_depths = exp_speed_depths(o.depths, r.depth);
    if (!r.n_depths)
        die_usage("--depth '%s' is no list of at most %d different numbers of tokens up to %d, like 0,4096", o.depths,
                  EXP_SPEED_MAX_DEPTHS, EXP_SPEED_MAX_DEPTH);
    exp_child *children = dw_alloc(o.models.n, sizeof *children, "models", &err);
    int n_children = 0;
    if (!children || (!o.no_speed && score_start_speed(children, &n_children, &r, &err))) die_err(&err);
    r.pool = dw_pool_new(tool.threads, &err);
    r.all = dw_alloc(o.models.n + 1, sizeof *r.all, "models", &err);
    r.texts = o.texts.n ? dw_alloc(o.texts.n, sizeof *r.texts, "texts", &err) : NULL;
    if (o.base && r.all) r.base = &r.all[o.models.n];
    if (!r.pool || !r.all || (o.texts.n && !r.texts) || score(&r, children, n_children, &err)) die_err(&err);
    for (int i = 0; i < r.n_models + (r.base != NULL); i++) score_close_entrant(&r.all[i], r.n_texts);
    for (int t = 0; t < r.n_texts; t++) free(r.texts[t].data);
    free(r.texts);
    free(r.all);
    free(children);
    free(shares);
    dw_pool_free(r.pool);
    return 0;
}
