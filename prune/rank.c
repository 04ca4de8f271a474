/* rank.c - deadwood-rank: statistics and a model become a plan.
 *
 *     deadwood rank -m mini.gguf -s stats.h5 -o plan.tsv --metric energy --rate 0.2
 *
 * Scores come from metrics.c, widths from allocate.c; the plan says all that was decided. */
#include "kit/plan.h"
#include "prune/agreement.h"
#include "prune/allocate.h"
#include "prune/obs_model.h"
#include "prune/search.h"
#include "kit/calib.h"
#include "kit/progress.h"
#include "kit/blas.h"
#include "kit/metrics.h"
#include "kit/lineage.h"
#include "kit/options.h"
#include "kit/talk.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_METRICS = 32 };

static kit_metric metrics[MOST_METRICS + 2]; // those of the kit, obs; ends with name NULL

static const kit_metric obs_metric = {
    "obs", NULL, true, true, true, "||v_j||^2 / [H^-1]_jj, one at a time, H = E[a a^T] + damping",
    "optimal brain surgeon: Hassibi & Stork 1993, Frantar 2022 (arXiv 2208.11580); error of the output when the rest is repaired"};

static void list_metrics(void) {
    size_t n = 0;
    for (const kit_metric *m = kit_metrics; m->name && n < MOST_METRICS; m++) metrics[n++] = *m;
    metrics[n] = obs_metric;
}

static const kit_metric *find_metric(const char *name) {
    for (const kit_metric *m = metrics; m->name; m++)
        if (!strcmp(m->name, name)) return m;
    return NULL;
}

static bool is_obs(const kit_metric *m) { return !m->score; }

static const struct { const char *name; } groups[] = {{"1"}, {"32"}, {"64"}, {"128"}, {"256"}, {0}};

static struct {
    const char *model, *stats, *out, *metric, *group, *allocate, *start;
    opt_list texts;
    opt_range windows;
    int n_ctx, evaluations;
    double rate, damp;
    size_t bytes;
    int multiple, drop_layers, seed;
    bool compare;
} o = {.rate = -1};

// clang-format off
static const opt_row rows[] = {
    {"model", 'm', OPT_PATH, OPT_REQUIRED | OPT_INPUT, &o.model, NULL, "FILE", "the model (GGUF)"},
    {"stats", 's', OPT_PATH, OPT_INPUT, &o.stats, NULL, "FILE", "statistics of that model (collect)"},
    {"out", 'o', OPT_PATH, OPT_NO_BYTE | OPT_STDOUT | OPT_KEEPS, &o.out, NULL, "FILE", "the plan; -: standard output"},
    {"metric", 0, OPT_CHOICE, 0, &o.metric, NULL, "NAME", "what makes a neuron worth keeping", OPT_CHOICES(metrics)},
    {"rate", 0, OPT_REAL, 0, &o.rate, NULL, "R", "fraction of the neurons that goes", .min = 0, .max = 1},
    {"bytes", 0, OPT_BYTES, 0, &o.bytes, NULL, "SIZE", "or: the file's size after the cut, at most", .min = 1, .max = 1e15},
    {"group", 0, OPT_CHOICE, 0, &o.group, "1", "N", "neurons that go together", OPT_CHOICES(groups)},
    {"multiple", 0, OPT_INT, 0, &o.multiple, "0", "K", "kept widths are multiples of K; 0: of 256 where that comes within 0.01 of the rate, else of 32", .min = 0, .max = 65536},
    {"allocate", 0, OPT_CHOICE, 0, &o.allocate, "uniform", "NAME", "how the layers share the loss", OPT_CHOICES_HELP(prune_allocators, prune_allocator)},
    {"text", 'f', OPT_TEXTS, OPT_INPUT, &o.texts, NULL, "TEXT", "held-out texts, for allocations that run the model"},
    {"ctx", 'c', OPT_INT, 0, &o.n_ctx, "512", "N", "tokens of a window of these", .min = 2, .max = 1 << 20},
    {"windows", 0, OPT_RANGE, 0, &o.windows, NULL, "A-B", "only windows A to B of every text; 20 is 1-20"},
    {"start", 0, OPT_CHOICE, 0, &o.start, "uniform", "NAME", "the allocation from which evolve starts", OPT_CHOICES(prune_allocators)},
    {"evaluations", 0, OPT_INT, 0, &o.evaluations, "0", "N", "evaluations of the model; 0: 400 for evolve, 8 a layer for sensitivity", .min = 0, .max = 1000000},
    {"drop-layers", 0, OPT_INT, 0, &o.drop_layers, "0", "N", "drop the N layers that change the residual least, too", .min = 0, .max = 511},
    {"damp", 0, OPT_REAL, 0, &o.damp, "0.01", "R", "obs: added to the diagonal of the Gram matrix, relative to its median", .min = 1e-9, .max = 100},
    {"seed", 0, OPT_INT, 0, &o.seed, "0", "N", "seed of the metric random", .min = 0, .max = 2147483647},
    {"compare", 0, OPT_FLAG, 0, &o.compare, NULL, NULL, "print how all metrics agree, as a table"},
    OPT_COMMON, {0}};

static opt_program program = {
    .name = "rank",
    .summary = "decide which neurons and layers stay: a plan for cut",
    .usage = "-m M.gguf -s stats.h5 -o plan.tsv --metric NAME --rate R|--bytes SIZE [--group N] [--allocate NAME]",
    .example = "deadwood rank -m mini.gguf -s stats.h5 -o plan.tsv --metric energy --rate 0.2\n"
               "deadwood rank -m 7b.gguf -s stats.h5 -o plan.tsv --metric activation --group 256 --bytes 3.3GB\n"
               "deadwood rank -m mini.gguf -s stats.h5 --compare --rate 0.25 --group 64",
    .rows = rows};
// clang-format on

static const char about[] =
    "A neuron is a row of gate and up and a column of down: a_j = act(gate_j . h) * (up_j . h), which reaches the output through its "
    "column v_j.  Metrics give each a score, a group's is the sum of its neurons', and the smallest go first.  E and Var are over all "
    "tokens of all texts.\n"
    "\n"
    "Kept widths are multiples, so that formats and kernels can hold them; a multiple of 1 needs a down matrix in 16 or 32 bits.  With groups "
    "the least common multiple of both counts.  The rate counts neurons of layers that stay.  --bytes never exceeds the size, and "
    "supposes that no tensor changes its type.  --allocate global needs a metric whose scores compare across layers: %s.\n"
    "\n"
    "--drop-layers goes by block influence, 1 - mean cosine of the residual before and behind a layer (Men et al. 2024, arXiv 2403.03853).\n"
    "\n"
    "obs removes one group after the other, each time the one whose loss the others repair best, on the Gram matrix of the inputs of down "
    "(collect --gram); the error is that of the repaired layer, so cut with --repair lsq.\n"
    "\n"
    "metrics:\n";

/* "energy, flap": the metrics whose scores compare across layers; free(). */
static char *names_across(dw_err *err) {
    char *names = NULL;
    for (const kit_metric *m = metrics; m->name; m++)
        if (m->across_layers) dw_append(&names, err, "%s%s", names ? ", " : "", m->name);
    return names;
}

/* The help lists the table's formulas. */
static void write_about(void) {
    char *text = NULL, *across;
    dw_err err = {0};
    across = names_across(&err);
    dw_append(&text, &err, about, across ? across : "");
    for (const kit_metric *m = metrics; m->name; m++) dw_append(&text, &err, "  %s: %s (%s)\n", m->name, m->formula, m->source);
    free(across);
    if (err.text[0]) die_err(&err);
    program.about = text;
}

typedef struct inputs {
    dw_model *model;
    const dw_hparams *hp;
    kit_stats stats;
    bool has_stats;
    char model_sha256[65], stats_sha256[65];
    kit_scorer scorer;
    prune_sizes sizes;
    bool *drop;       // (n_layer)
    double *influence; // (n_layer), NULL without statistics
    kit_gram gram;     // when the metric or the allocation reads it
    calib_texts texts; // held out
    prune_search search;
    char *state, key[65];
} inputs;

/* ---- inputs ------------------------------------------------------------------------------------------------- */

static int read_stats(inputs *in, dw_err *err) {
    if (!o.stats) return 0;
    if (kit_stats_open(&in->stats, o.stats, err)) return -1;
    in->has_stats = true;
    return kit_stats_check_model(&in->stats, o.stats, o.model, in->model_sha256, err) || dw_sha256_file(o.stats, in->stats_sha256, err) ? -1 : 0;
}

static size_t lineage_bytes(const inputs *in) {
    size_t n = 0;
    for (size_t i = 0; in->has_stats && i < in->stats.n_text; i++) n += 256 + strlen(in->stats.text[i].name) + strlen(in->stats.text[i].blocks);
    return n;
}

static int open_inputs(inputs *in, dw_pool *pool, dw_err *err) {
    *in = (inputs){.model = dw_model_open(o.model, err)};
    if (!in->model || dw_model_need_whole_ffn(in->model, err)) return -1;
    in->hp = dw_model_hparams(in->model);
    dw_gguf_sha256(dw_model_gguf(in->model), in->model_sha256);
    if (read_stats(in, err) || prune_sizes_init(&in->sizes, in->model, lineage_bytes(in), err)) return -1;
    in->drop = dw_alloc((size_t)in->hp->n_layer, sizeof *in->drop, "layers", err);
    in->scorer = (kit_scorer){.model = in->model, .stats = in->has_stats ? &in->stats : NULL, .group = atoi(o.group), .seed = (uint64_t)o.seed, .pool = pool};
    return in->drop ? 0 : -1;
}

static void close_inputs(inputs *in) {
    kit_scorer_release(&in->scorer);
    prune_sizes_release(&in->sizes);
    trial_free(in->search.trial);
    calib_release(&in->texts);
    kit_gram_close(&in->gram);
    free(in->state);
    if (in->has_stats) kit_stats_release(&in->stats);
    free(in->influence);
    free(in->drop);
    dw_model_close(in->model);
}

/* ---- layers to drop ------------------------------------------------------------------------------------------ */

static int measure_influence(inputs *in, dw_err *err) {
    if (kit_stats_check_shape(&in->stats, in->hp->n_layer, in->hp->n_embd, in->hp->n_ff, err)) return -1;
    in->influence = dw_alloc((size_t)in->hp->n_layer, sizeof *in->influence, "block influence", err);
    for (int l = 0; in->influence && l < in->hp->n_layer; l++) {
        const kit_stats_layer *layer = &in->stats.layer[l];
        in->influence[l] = 1 - layer->sum_cosine / (double)layer->n_cosine;
        if (!isfinite(in->influence[l])) return dw_fail(err, "layer %d: the statistics have no block influence; collect them from texts", l);
    }
    return in->influence ? 0 : -1;
}

static int choose_layers(inputs *in, dw_err *err) {
    if (!o.drop_layers) return 0;
    if (o.drop_layers >= in->hp->n_layer) return dw_fail(err, "%d of %d layers cannot be dropped: one must stay", o.drop_layers, in->hp->n_layer);
    if (measure_influence(in, err)) return -1;
    for (int i = 0; i < o.drop_layers; i++) {
        int least = -1;
        for (int l = 0; l < in->hp->n_layer; l++)
            if (!in->drop[l] && (least < 0 || in->influence[l] < in->influence[least])) least = l;
        in->drop[least] = true;
        say("layer %d is dropped, block influence %.4f", least, in->influence[least]);
    }
    return 0;
}

/* ---- widths --------------------------------------------------------------------------------------------------- */

static int least_common_multiple(int a, int b) {
    int x = a, y = b;
    while (y) {
        const int rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

/* The largest block of any layer's down, and its type. */
static const dw_qtype_row *largest_block(const dw_model *m) {
    const dw_qtype_row *type = dw_qtype_get(DW_F32);
    for (int l = 0; l < dw_model_hparams(m)->n_layer; l++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.ffn_down.weight", l);
        const dw_tensor *t = dw_gguf_find_tensor(dw_model_gguf(m), name);
        if (t && t->type->block > type->block) type = t->type;
    }
    return type;
}

/* Widths of all layers, with the first multiple that comes near enough, or the one that was asked for. */
static int choose_widths(prune_task *t, const prune_allocator *allocator, double *wanted, int *n_keep, dw_err *err) {
    static const int multiples[] = {256, 32};
    const dw_qtype_row *down = largest_block(t->model);
    *wanted = t->bytes > 0 ? prune_rate_for_bytes(t) : t->rate;
    for (int i = 0; i < 2; i++) {
        const int multiple = o.multiple ? o.multiple : multiples[i];
        const bool last = o.multiple || i == 1 || multiples[i + 1] % down->block;
        t->unit = least_common_multiple(t->group, multiple);
        if (t->unit % down->block)
            return dw_fail(err, "widths that are multiples of %d do not fill %s blocks of %d, the type of down; --multiple %d does", t->unit, down->name, down->block, down->block);
        dw_err why = {0};
        const int rc = allocator->allocate(t, n_keep, &why);
        if (rc && last) return dw_fail(err, "%s", why.text);
        if (last || (!rc && fabs(prune_rate_of(t, n_keep) - *wanted) <= 0.01)) break;
    }
    if (t->group % down->block) say("down is %s in blocks of %d and groups are of %d: cut will have to encode it again (--down-type)", down->name, down->block, t->group);
    return 0;
}

/* ---- the plan -------------------------------------------------------------------------------------------------- */

static int describe(kit_plan *p, const inputs *in, const prune_task *t, const kit_metric *metric, double wanted, dw_err *err) {
    int rc = dw_append(&p->comment, err, "model  %s  sha256 %s\n", dw_base_name(o.model), in->model_sha256);
    if (!rc && o.stats) rc = dw_append(&p->comment, err, "stats  %s  sha256 %s\n", dw_base_name(o.stats), in->stats_sha256);
    if (!rc)
        rc = dw_append(&p->comment, err, "metric %s (%s; %s), group %d, allocate %s, seed %d\n", metric->name, metric->formula, metric->source, t->group, o.allocate, o.seed);
    if (!rc) rc = dw_append(&p->comment, err, "rate   wanted %.4f, reached %.4f\n", wanted, p->rate_reached);
    if (!rc) rc = dw_append(&p->comment, err, "widths are multiples of %d\n", t->unit);
    if (!rc && o.bytes) rc = dw_append(&p->comment, err, "bytes  at most %zu\n", o.bytes);
    for (int l = 0; l < p->n_layer && !rc; l++)
        if (in->drop[l]) rc = dw_append(&p->comment, err, "layer %d is dropped, block influence %.6f\n", l, in->influence[l]);
    return rc;
}

static int list_texts(kit_plan *p, const kit_stats *s, dw_err *err) {
    p->text = dw_alloc(s->n_text, sizeof *p->text, "texts", err);
    for (size_t i = 0; p->text && i < s->n_text; i++) {
        kit_plan_text *t = &p->text[p->n_text++];
        t->name = dw_strdup(s->text[i].name, err);
        t->blocks = dw_strdup(s->text[i].blocks, err);
        t->n_tokens = s->text[i].n_tokens;
        memcpy(t->sha256, s->text[i].sha256, sizeof t->sha256);
        if (!t->name || !t->blocks) return -1;
    }
    return p->text ? 0 : -1;
}

static int fill_plan(kit_plan *p, const prune_task *t, const int *n_keep, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(t->model);
    bool *keep = dw_alloc((size_t)hp->n_ff_max, sizeof *keep, "kept neurons", err);
    p->layer = dw_alloc((size_t)hp->n_layer, sizeof *p->layer, "layers of a plan", err);
    int rc = keep && p->layer ? 0 : -1;
    for (int l = 0; l < hp->n_layer && !rc; l++) {
        p->n_layer = l + 1;
        if (t->drop[l]) p->layer[l].drop = true;
        else rc = prune_choose(t->score[l], hp->n_ff[l], t->group, n_keep[l], keep, err) || kit_plan_set_layer(&p->layer[l], keep, hp->n_ff[l], err) ? -1 : 0;
    }
    free(keep);
    return rc;
}

static int write_plan(const kit_plan *p, dw_err *err) {
    if (strcmp(o.out, "-") != 0) return kit_plan_write(p, o.out, err);
    size_t size;
    char *text = kit_plan_format(p, &size, err);
    const bool ok = text && fwrite(text, 1, size, stdout) == size && !fflush(stdout);
    free(text);
    return ok ? 0 : dw_fail(err, "cannot write the plan to standard output");
}

static void tell(const prune_task *t, const int *n_keep, double wanted) {
    int least = INT32_MAX, most = 0;
    for (int l = 0; l < dw_model_hparams(t->model)->n_layer; l++) {
        if (t->drop[l]) continue;
        if (n_keep[l] < least) least = n_keep[l];
        if (n_keep[l] > most) most = n_keep[l];
    }
    say("rate wanted %.4f, reached %.4f; widths %d to %d, multiples of %d; the file will have %s", wanted, prune_rate_of(t, n_keep), least, most, t->unit,
        show_bytes(prune_file_bytes(t, n_keep)).text);
}

/* The selection of wide layers ends a little beyond the rate, where nothing else needs the rest of the order. */
static double most_removed(const inputs *in) {
    const bool is_rate = !o.bytes && !strcmp(o.allocate, "uniform");
    return is_rate && in->hp->n_ff_max > OBS_MOST_F64 ? fmin(1, o.rate + 0.03) : 1;
}

static void say_text(const char *text) { say("%s", text); }

/* STATS.gram, if it is there or must be. */
static int open_gram(inputs *in, bool must, dw_err *err) {
    char *path = kit_gram_path(o.stats, err);
    int rc = path ? 0 : -1;
    if (!rc && (must || dw_file_exists(path)) && !in->gram.matrix) rc = kit_gram_open(&in->gram, path, err) || kit_gram_check_stats(&in->gram, path, &in->stats, err) ? -1 : 0;
    free(path);
    return rc;
}

static int score_obs(inputs *in, double **score, dw_err *err) {
    if (kit_stats_check_shape(&in->stats, in->hp->n_layer, in->hp->n_embd, in->hp->n_ff, err) || open_gram(in, true, err)) return -1;
    const obs_model_task t = {.model = in->model, .gram = &in->gram, .group = in->scorer.group, .most = most_removed(in), .damp = o.damp,
                              .pool = in->scorer.pool, .tell = say_text};
    return obs_score_model(&t, score, err);
}

/* The calibration texts of the scores may not be those that judge the widths. */
static int check_held_out(const inputs *in, dw_err *err) {
    for (size_t i = 0; i < in->texts.n_text && in->has_stats; i++)
        for (size_t k = 0; k < in->stats.n_text; k++) {
            const calib_text *a = &in->texts.text[i];
            const kit_stats_text *b = &in->stats.text[k];
            if (!strcmp(a->sha256, b->sha256) && a->first_window < b->first_window + b->n_windows && b->first_window < a->first_window + a->n_windows)
                return dw_fail(err, "windows %d to %d of '%s' are in the statistics; judge the widths by others (--windows)", a->first_window,
                               a->first_window + a->n_windows - 1, a->name);
        }
    return 0;
}

/* A hash of all that the widths depend on. */
static int make_key(inputs *in, const prune_task *t, dw_err *err) {
    char *text = dw_format(err, "%s %s %s %s %d %d %.17g %.17g %d %.17g %d", in->model_sha256, in->stats_sha256, o.metric, o.start, t->group, t->unit, t->rate, t->bytes,
                           o.seed, o.damp, o.n_ctx);
    int rc = text ? 0 : -1;
    for (size_t i = 0; i < in->texts.n_text && !rc; i++)
        rc = dw_append(&text, err, " %s %d %d", in->texts.text[i].sha256, in->texts.text[i].first_window, in->texts.text[i].n_windows);
    if (!rc) dw_sha256_hex(text, strlen(text), in->key);
    free(text);
    return rc;
}

static int open_search(inputs *in, prune_task *t, const prune_allocator *allocator, dw_err *err) {
    const prune_allocator *start = allocator->allocate == search_evolve ? prune_allocator_find(o.start) : NULL;
    if ((o.stats && open_gram(in, false, err)) || calib_read(&in->texts, in->model, &(calib_request){&o.texts, o.windows, o.n_ctx, 0}, err) || check_held_out(in, err) ||
        make_key(in, t, err))
        return -1;
    if (!in->gram.matrix) say("there are no Gram matrices (collect --gram): widths are judged without repair");
    const trial_options options = {.model = in->model, .gram = in->gram.matrix ? &in->gram : NULL, .damp = o.damp, .texts = &in->texts, .score = t->score,
                                   .group = t->group, .drop = t->drop, .pool = in->scorer.pool};
    if (start && strcmp(o.out, "-") != 0 && !(in->state = dw_format(err, "%s.part", o.out))) return -1;
    in->search = (prune_search){.trial = trial_new(&options, err), .start = start, .evaluations = o.evaluations, .seed = (uint64_t)o.seed, .state = in->state,
                                .key = in->key, .tell = say_text};
    t->search = &in->search;
    return in->search.trial ? 0 : -1;
}

/* Widths by a rule that runs the model, with the unit that the uniform rule has found. */
static int search_widths(inputs *in, prune_task *t, const prune_allocator *allocator, int *n_keep, dw_err *err) {
    if (open_search(in, t, allocator, err)) return -1;
    in->search.bar = progress_begin("allocating", "evaluations", search_n_evaluations(t, allocator));
    const int rc = allocator->allocate(t, n_keep, err);
    progress_end(in->search.bar);
    if (!rc && in->state) unlink(in->state);
    return rc;
}

static int make_scores(inputs *in, const kit_metric *metric, double **score, dw_err *err) {
    return is_obs(metric) ? score_obs(in, score, err) : kit_score(&in->scorer, metric, score, err);
}

static int make_plan(inputs *in, dw_err *err) {
    const kit_metric *metric = find_metric(o.metric);
    const prune_allocator *allocator = prune_allocator_find(o.allocate);
    const size_t n_layer = (size_t)in->hp->n_layer;
    kit_plan plan = {0};
    double wanted = 0, **score = dw_alloc(n_layer, sizeof *score, "scores", err);
    int *n_keep = dw_alloc(n_layer, sizeof *n_keep, "widths", err);
    prune_task t = {.model = in->model, .drop = in->drop, .group = in->scorer.group, .score = score, .sizes = &in->sizes, .rate = o.rate, .bytes = (double)o.bytes};
    int rc = !score || !n_keep || make_scores(in, metric, score, err) ||
             choose_widths(&t, allocator->runs_model ? prune_allocator_find("uniform") : allocator, &wanted, n_keep, err) ||
             (allocator->runs_model && search_widths(in, &t, allocator, n_keep, err)) ? -1 : 0;
    if (!rc) {
        plan.rate_reached = prune_rate_of(&t, n_keep);
        rc = fill_plan(&plan, &t, n_keep, err) || describe(&plan, in, &t, metric, wanted, err) || (in->has_stats && list_texts(&plan, &in->stats, err)) ||
             write_plan(&plan, err) ? -1 : 0;
    }
    if (!rc) tell(&t, n_keep, wanted);
    kit_plan_release(&plan);
    for (size_t l = 0; score && l < n_layer; l++) free(score[l]);
    free(score);
    free(n_keep);
    return rc;
}

/* ---- comparison of metrics -------------------------------------------------------------------------------------- */

enum { MAX_METRICS = 64 };

typedef struct judged { // one metric
    const kit_metric *metric;
    double **score;     // (n_layer)
    bool **keep;        // (n_layer) of n_ff
} judged;

static int judge(judged *j, const kit_metric *metric, inputs *in, prune_task *t, const int *n_keep, dw_err *err) {
    const size_t n_layer = (size_t)in->hp->n_layer;
    *j = (judged){metric, dw_alloc(n_layer, sizeof *j->score, "scores", err), dw_alloc(n_layer, sizeof *j->keep, "kept neurons", err)};
    if (!j->score || !j->keep || kit_score(&in->scorer, metric, j->score, err)) return -1;
    for (int l = 0; l < in->hp->n_layer; l++) {
        j->keep[l] = dw_alloc((size_t)in->hp->n_ff[l], sizeof **j->keep, "kept neurons", err);
        if (!j->keep[l] || prune_choose(j->score[l], in->hp->n_ff[l], t->group, n_keep[l], j->keep[l], err)) return -1;
    }
    return 0;
}

static void judged_release(judged *j, int n_layer) {
    for (int l = 0; l < n_layer; l++) {
        if (j->score) free(j->score[l]);
        if (j->keep) free(j->keep[l]);
    }
    free(j->score);
    free(j->keep);
}

/* Mean over layers of the rank correlation of groups. */
static int correlation(const judged *a, const judged *b, const inputs *in, double *mean, dw_err *err) {
    *mean = 0;
    for (int l = 0; l < in->hp->n_layer; l++) {
        double rho;
        if (prune_rank_correlation(a->score[l], b->score[l], in->hp->n_ff[l] / in->scorer.group, &rho, err)) return -1;
        *mean += rho / in->hp->n_layer;
    }
    return 0;
}

/* Of the neurons that a removes, the fraction that b removes too. */
static double overlap(const judged *a, const judged *b, const inputs *in) {
    double removed = 0, both = 0;
    for (int l = 0; l < in->hp->n_layer; l++)
        for (int j = 0; j < in->hp->n_ff[l]; j++) {
            removed += !a->keep[l][j];
            both += !a->keep[l][j] && !b->keep[l][j];
        }
    return both / removed;
}

static int print_matrix(const judged *j, int n, const inputs *in, bool overlaps, dw_err *err) {
    printf("%s", overlaps ? "overlap" : "spearman");
    for (int i = 0; i < n; i++) printf("\t%s", j[i].metric->name);
    printf("\n");
    for (int i = 0; i < n; i++) {
        printf("%s", j[i].metric->name);
        for (int k = 0; k < n; k++) {
            double value = 0;
            if (overlaps) value = overlap(&j[i], &j[k], in);
            else if (correlation(&j[i], &j[k], in, &value, err)) return -1;
            if (isnan(value)) printf("\t-"); // nothing is removed, or all scores are equal
            else printf("\t%.4f", value);
        }
        printf("\n");
    }
    return 0;
}

static int compare(inputs *in, dw_err *err) {
    const size_t n_layer = (size_t)in->hp->n_layer;
    judged j[MAX_METRICS] = {{0}};
    int n = 0, *n_keep = dw_alloc(n_layer, sizeof *n_keep, "widths", err);
    double wanted;
    bool *all = dw_alloc(n_layer, sizeof *all, "layers", err); // nothing is dropped here
    prune_task t = {.model = in->model, .drop = all, .group = in->scorer.group, .sizes = &in->sizes, .rate = o.rate, .bytes = (double)o.bytes};
    int rc = !all || !n_keep || choose_widths(&t, prune_allocator_find("uniform"), &wanted, n_keep, err) ? -1 : 0;
    for (const kit_metric *m = kit_metrics; m->name && !rc && n < MAX_METRICS; m++)
        if (in->has_stats || !m->needs_stats) rc = judge(&j[n++], m, in, &t, n_keep, err);
    if (!rc) {
        printf("# groups of %d; mean of the layers' rank correlations; overlap of what is removed at rate %.4f\n", t.group, prune_rate_of(&t, n_keep));
        rc = print_matrix(j, n, in, false, err) || print_matrix(j, n, in, true, err) ? -1 : 0;
    }
    if (!rc && fflush(stdout)) rc = dw_fail(err, "cannot write to standard output");
    for (int i = 0; i < n; i++) judged_release(&j[i], in->hp->n_layer);
    free(n_keep);
    free(all);
    return rc;
}

/* ---- main ------------------------------------------------------------------------------------------------------- */

static void check_metric(const kit_metric *metric, const prune_allocator *allocator) {
    if (metric->needs_stats && !o.stats) die_usage("metric '%s' needs statistics: collect them and give them with -s", metric->name);
    if (!allocator->across_layers || metric->across_layers) return;
    char *across = names_across(NULL);
    die_usage("scores of metric '%s' do not compare across layers, as --allocate %s needs; these do: %s", metric->name, allocator->name, across ? across : "");
}

static void check_options(void) {
    const bool has_rate = o.rate >= 0;
    if (has_rate && o.bytes) die_usage("give --rate or --bytes, not both");
    if (!has_rate && !o.bytes && !o.drop_layers) die_usage("give --rate, --bytes or --drop-layers");
    if (!o.compare && (!o.out || !o.metric)) die_usage("give a plan to write (-o) and a --metric, or --compare");
    if (o.rate >= 1) die_usage("rate 1 leaves no neuron; to remove whole layers, say --drop-layers");
    if (o.drop_layers && !o.stats) die_usage("--drop-layers needs statistics: collect them and give them with -s");
    const prune_allocator *allocator = prune_allocator_find(o.allocate);
    if (allocator->runs_model && !o.texts.n) die_usage("--allocate %s judges widths by held-out texts: give them with -f (and --windows)", o.allocate);
    if (!allocator->runs_model && o.texts.n) die_usage("-f is for allocations that run the model: sensitivity, evolve");
    if (prune_allocator_find(o.start)->allocate == search_evolve) die_usage("--start is another allocation than evolve");
    if (o.metric) check_metric(find_metric(o.metric), prune_allocator_find(o.allocate));
    if (!has_rate) o.rate = 0;
}

int main(int argc, char **argv) {
    list_metrics();
    write_about();
    opt_parse(&program, argc, argv);
    check_options();
    if (o.metric && (is_obs(find_metric(o.metric)) || prune_allocator_find(o.allocate)->runs_model)) blas_on_one_thread(argv);
    dw_err err = {0};
    dw_pool *pool = dw_pool_new(tool.threads, &err);
    inputs in = {0};
    int rc = !pool || open_inputs(&in, pool, &err) || choose_layers(&in, &err) ? -1 : 0;
    if (!rc && o.compare) rc = compare(&in, &err);
    if (!rc && o.out && o.metric) rc = make_plan(&in, &err);
    close_inputs(&in);
    dw_pool_free(pool);
    if (rc) die_err(&err);
    return 0;
}
