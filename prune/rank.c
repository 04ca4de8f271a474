/* rank.c - deadwood-rank: statistics and a model become a plan.
 *
 *     deadwood rank -m mini.gguf -s stats.h5 -o plan.tsv --metric energy --rate 0.2
 *
 * Scores come from metrics.c, widths from allocate.c; the plan says all that was decided. */
#include "kit/blas.h"
#include "kit/calib.h"
#include "kit/hash_cache.h"
#include "kit/lineage.h"
#include "kit/metrics.h"
#include "kit/options.h"
#include "kit/plan.h"
#include "kit/progress.h"
#include "kit/talk.h"
#include "model/model.h"
#include "prune/ablation.h"
#include "prune/agreement.h"
#include "prune/allocate.h"
#include "prune/heads.h"
#include "prune/obs_model.h"
#include "prune/scores.h"
#include "prune/search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_METRICS = 32 };

static kit_metric metrics[MOST_METRICS + 3]; // those of the kit, obs, obs-gradient; ends with name NULL

static const kit_metric obs_metric = {"obs",
                                      NULL,
                                      true,
                                      true,
                                      KIT_SCALE_ENERGY,
                                      "||v_j||^2 / [H^-1]_jj, one at a time, H = E[a a^T] + damping",
                                      "optimal brain surgeon: Hassibi & Stork 1993, Frantar 2022 (arXiv 2208.11580); "
                                      "error of the output when the rest is repaired"};

static const kit_metric obs_gradient_metric = {
    "obs-gradient",
    NULL,
    true,
    true,
    KIT_SCALE_COMMON,
    "v_j^T Gamma v_j / (2 [H^-1]_jj), one at a time, Gamma = E[g g^T] + damping, g: gradient by the output",
    "obs whose error of the output is weighted by the loss's second-order change, in nats a token; needs collect "
    "--gradients --gram down"};

static void list_metrics(void) {
    size_t n = 0;
    for (const kit_metric *m = kit_metrics; m->name && n < MOST_METRICS; m++) metrics[n++] = *m;
    metrics[n++] = obs_metric;
    metrics[n] = obs_gradient_metric;
}

static const kit_metric *find_metric(const char *name) {
    for (const kit_metric *m = metrics; m->name; m++)
        if (!strcmp(m->name, name)) return m;
    return NULL;
}

static bool is_obs(const kit_metric *m) { return !m->score; }
static bool is_weighted(const kit_metric *m) { return !strcmp(m->name, obs_gradient_metric.name); }

/* What a plan says whose layers are dropped and whose neurons all stay. */
static const kit_metric no_metric = {.name = "block-influence",
                                     .formula = "1 - mean cosine of the residuals before and after a layer",
                                     .source = "Men et al. 2024 (arXiv 2403.03853)"};

static struct { const char *name; } as_names[64]; // mixtures, then types that are no mixture's name; ends with NULL

static void list_as_names(void) {
    size_t n = 0, most = sizeof as_names / sizeof *as_names - 1;
    for (const kit_mixture *m = kit_mixtures; m->name && n < most; m++) as_names[n++].name = m->name;
    for (const dw_qtype_name *t = dw_encodable_names; t->name && n < most; t++)
        if (!kit_mixture_find(t->name)) as_names[n++].name = t->name;
}

static prune_as as_named(const char *name) {
    if (!name) return (prune_as){0};
    const kit_mixture *m = kit_mixture_find(name);
    return m ? (prune_as){.mixture = m} : (prune_as){.type = dw_qtype_by_name(name)};
}

static const struct { const char *name; } groups[] = {{"1"}, {"32"}, {"64"}, {"128"}, {"256"}, {0}};

static struct {
    const char *model, *stats, *out, *scores, *metric, *group, *allocate, *as, *start;
    opt_list texts;
    opt_range windows;
    int n_ctx, evaluations;
    double rate, damp, heads, us;
    const char *heads_allocate, *ablation;
    size_t bytes;
    int multiple, min_width, drop_layers, seed, sample;
    const char *protect;
    bool compare;
} o = {.rate = -1};

// clang-format off
static const opt_row rows[] = {
    {"model", 'm', OPT_PATH, OPT_REQUIRED | OPT_INPUT, &o.model, NULL, "FILE", "the model (GGUF)"},
    {"stats", 's', OPT_PATH, OPT_INPUT, &o.stats, NULL, "FILE", "statistics of that model (collect)"},
    {"out", 'o', OPT_PATH, OPT_NO_BYTE | OPT_STDOUT | OPT_KEEPS, &o.out, NULL, "FILE", "the plan; -: standard output"},
    {"scores", 0, OPT_PATH, OPT_NO_BYTE | OPT_OUTPUT | OPT_STDOUT, &o.scores, NULL, "FILE", "write the scores of all groups as a table; -: standard output"},
    {"metric", 0, OPT_CHOICE, 0, &o.metric, NULL, "NAME", "what makes a neuron worth keeping", OPT_CHOICES(metrics)},
    {"rate", 0, OPT_REAL, 0, &o.rate, NULL, "R", "fraction of the neurons that goes", .min = 0, .max = 1},
    {"bytes", 0, OPT_BYTES, 0, &o.bytes, NULL, "SIZE", "or: the file's size after the cut, at most", .min = 1, .max = 1e15},
    {"us", 0, OPT_REAL, 0, &o.us, "0", "N", "or: microseconds of a token, measured here on -t threads; of uniform and sensitivity", .min = 0, .max = 1e12},
    {"as", 0, OPT_CHOICE, 0, &o.as, NULL, "TYPES", "the file's types after requant --mixture or --type TYPES, which widths then fit, and of which --bytes counts; a name of both is the mixture", OPT_CHOICES(as_names)},
    {"group", 0, OPT_CHOICE, 0, &o.group, "1", "N", "neurons that go together", OPT_CHOICES(groups)},
    {"multiple", 0, OPT_INT, 0, &o.multiple, "0", "K", "kept widths are multiples of K; 0: of 256 where that comes within 0.01 of the rate or --as needs it, otherwise of 32", .min = 0, .max = 65536},
    {"min-width", 0, OPT_INT, 0, &o.min_width, "0", "N", "no layer keeps fewer neurons", .min = 0, .max = 1 << 24},
    {"protect", 0, OPT_TEXT, 0, &o.protect, NULL, "LAYERS", "layers that keep all their neurons and are not dropped, from 0: 0-1,23"},
    {"allocate", 0, OPT_CHOICE, 0, &o.allocate, "uniform", "NAME", "how many neurons each layer loses", OPT_CHOICES_HELP(prune_allocators, prune_allocator)},
    {"text", 'f', OPT_TEXTS, OPT_INPUT, &o.texts, NULL, "TEXT", "held-out texts, for allocations that run the model, and for --ablation"},
    {"ctx", 'c', OPT_INT, 0, &o.n_ctx, "512", "N", "tokens of a window of these", .min = 2, .max = 1 << 20},
    {"windows", 0, OPT_RANGE, 0, &o.windows, NULL, "A-B", "only windows A to B of every text; 20 is 1-20"},
    {"start", 0, OPT_CHOICE, 0, &o.start, "uniform", "NAME", "the allocation from which evolve starts", OPT_CHOICES(prune_allocators)},
    {"evaluations", 0, OPT_INT, 0, &o.evaluations, "0", "N", "evaluations of the model; 0: 400 for evolve, 8 per layer for sensitivity", .min = 0, .max = 1000000},
    {"heads", 0, OPT_REAL, 0, &o.heads, "0", "R", "also cut this fraction of the KV heads, each with its query heads; needs Gram matrices of the inputs of o", .min = 0, .max = 1},
    {"heads-allocate", 0, OPT_CHOICE, 0, &o.heads_allocate, "uniform", "NAME", "how many KV heads each layer loses", OPT_CHOICES_HELP(heads_allocators, heads_allocator)},
    {"drop-layers", 0, OPT_INT, 0, &o.drop_layers, "0", "N", "drop the N layers that change the residual least, too", .min = 0, .max = 511},
    {"damp", 0, OPT_REAL, 0, &o.damp, "0.01", "R", "of obs, and of the repairs that sensitivity and evolve judge: added to the diagonal of the Gram matrix, relative to its median", .min = 1e-9, .max = 100},
    {"seed", 0, OPT_INT, 0, &o.seed, "0", "N", "seed of the metric random, and of evolve's steps", .min = 0, .max = 2147483647},
    {"ablation", 0, OPT_PATH, OPT_NO_BYTE | OPT_OUTPUT | OPT_STDOUT, &o.ablation, NULL, "FILE", "measure the loss without single groups on the texts of -f, and write it beside all metrics; -: standard output"},
    {"sample", 0, OPT_INT, 0, &o.sample, "4", "N", "of --ablation: random groups of every layer", .min = 1, .max = 1 << 20},
    {"compare", 0, OPT_FLAG, 0, &o.compare, NULL, NULL, "print how all metrics agree, as a table"},
    OPT_COMMON, {0}};

static opt_program program = {
    .name = "rank",
    .summary = "decide which neurons and layers stay: a plan for cut",
    .usage = "-m M.gguf -s stats.h5 -o plan.tsv --metric NAME --rate R|--bytes SIZE [--as TYPES] [--group N] "
             "[--allocate NAME]",
    .example = "deadwood rank -m mini.gguf -s stats.h5 -o plan.tsv --metric energy --rate 0.2\n"
               "deadwood rank -m 7b.gguf -s stats.h5 -o plan.tsv --metric activation --group 256 --bytes 3.3GB\n"
               "deadwood rank -m 7b.gguf -s stats.h5 -o plan.tsv --metric energy --bytes 3.3GB --as Q4_K_M\n"
               "deadwood rank -m mini.gguf -s stats.h5 --metric energy --scores scores.tsv\n"
               "deadwood rank -m mini.gguf -s stats.h5 -o plan.tsv --drop-layers 2\n"
               "deadwood rank -m mini.gguf -s stats.h5 --compare --rate 0.25 --group 64\n"
               "deadwood rank -m mini.gguf -s stats.h5 --ablation truth.tsv --group 64 --sample 4 -f held-out.txt --windows 1-8",
    .rows = rows};
// clang-format on

static const char about[] =
    "A neuron is a row of gate and up and a column of down: a_j = act(gate_j . h) * (up_j . h), which reaches the "
    "output through its column v_j.  Metrics give each neuron a score.  The score of a group is the sum of its "
    "neurons' scores, and the groups with the smallest scores are cut first.  E and Var are over all tokens of all "
    "texts.\n"
    "\n"
    "Kept widths are multiples of --multiple and of --group, so that number formats and kernels can hold them; a "
    "multiple of 1 needs a down matrix in 16 or 32 bits.  The rate counts neurons of layers that stay.\n"
    "\n"
    "--bytes is never exceeded.  Where the whole model fits, the plan keeps all neurons, and a warning says so.  "
    "Without --as no tensor changes its type.  With --as the size is that of the file after requant, with other "
    "types where rows are no whole number of blocks, as requant takes them; widths are multiples of 256 for K types "
    "and of 32 for the simple ones, unless --multiple says another number.\n"
    "\n"
    "--us measures for some seconds what a token takes when all layers have one of eight widths, and writes the "
    "table into the plan.  It holds for this machine, -t and the model's types as they are now.\n"
    "\n"
    "--protect and --min-width leave more to the other layers: the rate counts the neurons of all layers that stay.\n"
    "\n"
    "--allocate relative needs a metric whose scores are energies of the layer's output: %s.  Raw scores of "
    "different layers do not compare, because the residual stream grows from layer to layer.\n"
    "\n"
    "--drop-layers goes by block influence, 1 - mean cosine of the residuals before and after a layer (Men et al. "
    "2024, arXiv 2403.03853).  Without --metric, --rate and --bytes all neurons of the other layers stay.\n"
    "\n"
    "--heads goes by obs, too: groups of heads on the inputs of o, one after the other (collect --gram down+o; cut "
    "--repair lsq repairs o).  A plan may cut heads alone.  --bytes counts what goes with them; sensitivity and "
    "evolve judge widths with all heads.\n"
    "\n"
    "obs removes one group after the other, each time the one whose loss the others repair best, on the Gram matrix of "
    "the inputs of down (collect --gram); the error is that of the repaired layer, so cut with --repair lsq.  "
    "obs-gradient weighs this error by the gradients of the loss.  The same repair is best for both, because least "
    "squares does not depend on the weights of outputs.\n"
    "\n"
    "--ablation tells what scores are worth: the change of the loss without a group, with its error over windows, "
    "for a random sample, and every metric's rank correlation with it.  Each group takes a pass over the texts from "
    "its layer on.\n"
    "\n"
    "metrics:\n";

/* "energy, flap": the metrics of a scale; free(). */
static char *names_of_scale(kit_scale scale, dw_err *err) {
    char *names = NULL;
    for (const kit_metric *m = metrics; m->name; m++)
        if (m->scale == scale) dw_append(&names, err, "%s%s", names ? ", " : "", m->name);
    return names;
}

/* The help lists the table's formulas. */
static void write_about(void) {
    char *text = NULL, *energies;
    dw_err err = {0};
    energies = names_of_scale(KIT_SCALE_ENERGY, &err);
    dw_append(&text, &err, about, energies ? energies : "");
    for (const kit_metric *m = metrics; m->name; m++)
        dw_append(&text, &err, "  %s: %s (%s)\n", m->name, m->formula, m->source);
    free(energies);
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
    bool *drop;        // (n_layer)
    bool *protect;     // (n_layer): --protect; NULL: none
    bool **kv;         // (n_layer) of n_head_kv: KV heads that stay, NULL where all do; NULL: --heads is not given
    double *influence; // (n_layer): block influence; NULL: no layer is dropped
    double *inverse;   // (n_layer): E[1 / ||x||^2] of the residual after the layer; NULL: not needed
    kit_gram gram;     // when the metric or the allocation reads it
    calib_texts texts; // held out
    prune_search search;
    char *state, key[65];
    timing times; // with --us
} inputs;

/* ---- inputs ------------------------------------------------------------------------------------------------- */

static int read_stats(inputs *in, dw_err *err) {
    if (!o.stats) return 0;
    if (kit_stats_open(&in->stats, o.stats, err)) return -1;
    in->has_stats = true;
    if (kit_stats_check_model(&in->stats, o.stats, o.model, in->model_sha256, err)) return -1;
    return kit_sha256_file(o.stats, in->stats_sha256, err);
}

static size_t lineage_bytes(const inputs *in) {
    size_t n = 0;
    for (size_t i = 0; in->has_stats && i < in->stats.n_text; i++)
        n += 256 + strlen(in->stats.text[i].name) + strlen(in->stats.text[i].blocks);
    return n;
}

static int open_inputs(inputs *in, dw_pool *pool, dw_err *err) {
    *in = (inputs){.model = dw_model_open(o.model, err)};
    if (!in->model || dw_model_need_whole_ffn(in->model, err)) return -1;
    in->hp = dw_model_hparams(in->model);
    kit_sha256_gguf(dw_model_gguf(in->model), in->model_sha256);
    if (read_stats(in, err)) return -1;
    in->drop = dw_alloc((size_t)in->hp->n_layer, sizeof *in->drop, "layers", err);
    in->scorer = (kit_scorer){.model = in->model, .stats = in->has_stats ? &in->stats : NULL, .group = atoi(o.group),
                              .seed = (uint64_t)o.seed, .pool = pool};
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
    free(in->inverse);
    free(in->drop);
    free(in->protect);
    for (int l = 0; in->kv && l < in->hp->n_layer; l++) free(in->kv[l]);
    free(in->kv);
    dw_model_close(in->model);
}

/* ---- layers to drop ------------------------------------------------------------------------------------------ */

static int measure_influence(inputs *in, dw_err *err) {
    if (kit_stats_check_shape(&in->stats, in->hp->n_layer, in->hp->n_embd, in->hp->n_ff, err)) return -1;
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
static int read_protected(inputs *in, dw_err *err) {
    const int n_layer = in->hp->n_layer;
    const char *at = o.protect;
    if (!at) return 0;
    in->protect = dw_alloc((size_t)n_layer, sizeof *in->protect, "layers", err);
    if (!in->protect) return -1;
    for (;; at++) {
        int first, last, n = 0, more = 0;
        if (*at < '0' || *at > '9' || sscanf(at, "%8d%n", &first, &n) != 1) break;
        at += n, last = first;
        if (*at == '-' && (at[1] < '0' || at[1] > '9' || sscanf(at, "-%8d%n", &last, &more) != 1)) break;
        at += more;
        if (last < first || last >= n_layer)
            return dw_fail(err, "--protect %s: the model has layers 0 to %d", o.protect, n_layer - 1);
        for (int l = first; l <= last; l++) in->protect[l] = true;
        if (!*at) return 0;
        if (*at != ',') break;
    }
    return dw_fail(err, "--protect %s: '%s' is no layer or range of layers; write 0-1,23", o.protect, at);
}

static int check_n_dropped(const inputs *in, dw_err *err) {
    int n_protected = 0;
    for (int l = 0; l < in->hp->n_layer; l++) n_protected += in->protect && in->protect[l];
    if (o.drop_layers >= in->hp->n_layer)
        return dw_fail(err, "%d of %d layers cannot be dropped: one must stay", o.drop_layers, in->hp->n_layer);
    if (o.drop_layers <= in->hp->n_layer - n_protected) return 0;
    return dw_fail(err, "%d layers cannot be dropped: %d of %d are protected", o.drop_layers, n_protected,
                   in->hp->n_layer);
}

static int choose_layers(inputs *in, dw_err *err) {
    if (!o.drop_layers) return 0;
    if (check_n_dropped(in, err)) return -1;
    if (measure_influence(in, err)) return -1;
    for (int i = 0; i < o.drop_layers; i++) {
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

static int read_inverse(inputs *in, const char *what, dw_err *err) {
    if (in->inverse) return 0;
    if (kit_stats_check_shape(&in->stats, in->hp->n_layer, in->hp->n_embd, in->hp->n_ff, err)) return -1;
    in->inverse = dw_alloc((size_t)in->hp->n_layer, sizeof *in->inverse, "energies of the residual", err);
    for (int l = 0; in->inverse && l < in->hp->n_layer; l++) {
        const kit_stats_layer *layer = &in->stats.layer[l];
        in->inverse[l] = layer->sum_inverse / (double)layer->n_cosine;
        if (!(in->inverse[l] > 0))
            return dw_fail(err,
                           "'%s' does not know the residual's norm after layer %d, which %s needs; "
                           "collect the statistics again",
                           o.stats, l, what);
    }
    return in->inverse ? 0 : -1;
}

static int measure_residual(inputs *in, dw_err *err) {
    char what[64];
    if (!prune_allocator_find(o.allocate)->needs_inverse || find_metric(o.metric)->scale == KIT_SCALE_COMMON) return 0;
    snprintf(what, sizeof what, "--allocate %s", o.allocate);
    return read_inverse(in, what, err);
}

static void say_text(const char *text) { say("%s", text); }

/* STATS.gram, if it is there or must be. */
static int open_gram(inputs *in, bool must, dw_err *err) {
    char *path = kit_gram_path(o.stats, err);
    int rc = path ? 0 : -1;
    if (!rc && (must || dw_file_exists(path)) && !in->gram.matrix)
        rc = kit_gram_open(&in->gram, path, err) ? -1 : kit_gram_check_stats(&in->gram, path, &in->stats, err);
    if (!rc && !must && !kit_gram_has(&in->gram, KIT_STATS_FFN_NEURON)) kit_gram_close(&in->gram); // gradients alone
    free(path);
    return rc;
}

/* ---- heads ---------------------------------------------------------------------------------------------------- */

/* Dropped and protected layers keep their heads. */
static int choose_heads(inputs *in, dw_err *err) {
    const size_t n_layer = (size_t)in->hp->n_layer;
    const bool is_relative = !strcmp(o.heads_allocate, "relative");
    if (!(o.heads > 0)) return 0;
    if (kit_stats_check_shape(&in->stats, in->hp->n_layer, in->hp->n_embd, in->hp->n_ff, err) ||
        open_gram(in, true, err) || (is_relative && read_inverse(in, "--heads-allocate relative", err)))
        return -1;
    bool *fixed = dw_alloc(n_layer, sizeof *fixed, "layers", err);
    in->kv = dw_alloc(n_layer, sizeof *in->kv, "kept heads", err);
    for (size_t l = 0; fixed && l < n_layer; l++) fixed[l] = in->drop[l] || (in->protect && in->protect[l]);
    const heads_task t = {.model = in->model,
                          .gram = &in->gram,
                          .rate = o.heads,
                          .inverse = is_relative ? in->inverse : NULL,
                          .fixed = fixed,
                          .damp = o.damp,
                          .pool = in->scorer.pool,
                          .tell = say_text};
    const int rc = fixed && in->kv ? heads_choose(&t, in->kv, err) : -1;
    free(fixed);
    return rc;
}

static int n_kv_kept(const inputs *in, int l) {
    if (!in->kv || !in->kv[l]) return in->hp->n_head_kv[l];
    int n = 0;
    for (int h = 0; h < in->hp->n_head_kv[l]; h++) n += in->kv[l][h];
    return n;
}

static int plan_heads(kit_plan *p, const inputs *in, dw_err *err) {
    int kept = 0, all = 0;
    for (int l = 0; l < p->n_layer && in->kv; l++) {
        if (in->drop[l]) continue;
        kept += n_kv_kept(in, l), all += in->hp->n_head_kv[l];
        if (in->kv[l] && kit_plan_set_kv_heads(&p->layer[l], in->kv[l], in->hp->n_head_kv[l], err)) return -1;
    }
    if (!in->kv) return 0;
    say("heads: %d of %d KV heads stay", kept, all);
    return dw_append(&p->comment, err,
                     "heads  %d of %d KV heads stay (obs on the inputs of o), allocate %s, wanted %.4f\n", kept, all,
                     o.heads_allocate, o.heads);
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
        const dw_qtype_row *down = m->net.layer[l].down.type;
        if (down && down->block > type->block) type = down;
    }
    return type;
}

/* A rate that no width near it reaches: the user would get something else without noticing. */
static int check_rate(const prune_task *t, double wanted, const int *n_keep, dw_err *err) {
    const double reached = prune_rate_of(t, n_keep), step = (double)t->unit / dw_model_hparams(t->model)->n_ff_max;
    if (t->bytes > 0 || t->us > 0 || !(wanted > 0)) return 0;
    if (!(reached > 0))
        return dw_fail(
            err,
            "--rate %g removes no neuron: widths are multiples of %d, so a layer loses at least %.4f; give that rate, "
            "or a smaller --multiple or --group",
            wanted, t->unit, step);
    if (fabs(reached - wanted) > 0.01)
        warn("--rate %g is wanted and %.4f is reached, because widths are multiples of %d; do not compare it with "
             "plans of exactly that rate",
             wanted, reached, t->unit);
    return 0;
}

static int allocate_unit(prune_task *t, const prune_allocator *allocator, int multiple, int *n_keep, dw_err *err) {
    const dw_qtype_row *down = largest_block(t->model);
    const int block = prune_sizes_block(t->sizes);
    t->unit = least_common_multiple(t->group, multiple);
    if (t->unit % down->block)
        return dw_fail(
            err, "widths that are multiples of %d do not fill %s blocks of %d, the type of down; --multiple %d does",
            t->unit, down->name, down->block, down->block);
    if (o.as && !kit_mixture_find(o.as) && t->unit % block)
        return dw_fail(
            err, "widths that are multiples of %d do not fill %s blocks of %d, as --as wants them; --multiple %d does",
            t->unit, o.as, block, block);
    return allocator->allocate(t, n_keep, err);
}

/* Widths of all layers, with the first multiple that comes near enough, or the one that was asked for. */
static int choose_widths(prune_task *t, const prune_allocator *allocator, double *wanted, int *n_keep, dw_err *err) {
    const dw_qtype_row *down = largest_block(t->model);
    *wanted = t->bytes > 0 ? prune_rate_for_bytes(t) : t->rate;
    const bool needs_256 = down->block > 32 || (o.as && prune_sizes_block(t->sizes) > 32);
    dw_err why = {0};
    int rc = allocate_unit(t, allocator, o.multiple ? o.multiple : 256, n_keep, &why);
    const double reached = rc ? 0 : prune_rate_of(t, n_keep);
    const bool near = !rc && fabs(reached - *wanted) <= 0.01 && (reached > 0 || !(*wanted > 0));
    if (!near && !o.multiple && !needs_256) {
        why = (dw_err){0};
        rc = allocate_unit(t, allocator, 32, n_keep, &why);
    }
    if (rc) return dw_fail(err, "%s", why.text);
    if (t->group % down->block)
        say("down is %s in blocks of %d and groups are of %d: cut will have to encode it again (--down-type)",
            down->name, down->block, t->group);
    return check_rate(t, *wanted, n_keep, err);
}

/* ---- the plan -------------------------------------------------------------------------------------------------- */

/* Lines of a plan's or scores' comment that say what they were made from. */
static int describe_inputs(char **comment, const inputs *in, dw_err *err) {
    if (dw_append(comment, err, "model  %s  sha256 %s\n", dw_base_name(o.model), in->model_sha256)) return -1;
    if (!o.stats) return 0;
    return dw_append(comment, err, "stats  %s  sha256 %s\n", dw_base_name(o.stats), in->stats_sha256);
}

static int describe_size(kit_plan *p, dw_err *err) {
    if (!o.bytes && o.as) return dw_append(&p->comment, err, "widths fit %s\n", o.as);
    if (!o.bytes) return 0;
    if (!o.as) return dw_append(&p->comment, err, "bytes  at most %zu\n", o.bytes);
    return dw_append(&p->comment, err, "bytes  at most %zu as %s\n", o.bytes, o.as);
}

static int describe(kit_plan *p, const inputs *in, const prune_task *t, double wanted, dw_err *err) {
    const kit_metric *metric = o.metric ? find_metric(o.metric) : &no_metric;
    if (describe_inputs(&p->comment, in, err)) return -1;
    if (dw_append(&p->comment, err, "metric %s (%s; %s), group %d, allocate %s, seed %d\n", metric->name,
                  metric->formula, metric->source, t->group, o.allocate, o.seed))
        return -1;
    if (dw_append(&p->comment, err, "rate   wanted %.4f, reached %.4f\n", wanted, p->rate_reached)) return -1;
    if (dw_append(&p->comment, err, "widths are multiples of %d\n", t->unit) || describe_size(p, err)) return -1;
    if (o.min_width && dw_append(&p->comment, err, "widths are at least %d\n", o.min_width)) return -1;
    if (o.protect && dw_append(&p->comment, err, "layers %s are protected\n", o.protect)) return -1;
    for (int l = 0; l < p->n_layer; l++)
        if (in->drop[l] &&
            dw_append(&p->comment, err, "layer %d is dropped, block influence %.6f\n", l, in->influence[l]))
            return -1;
    return 0;
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

static int fill_layer(kit_plan_layer *p, const prune_task *t, int l, int n_keep, bool *keep, dw_err *err) {
    const int n_ff = dw_model_hparams(t->model)->n_ff[l];
    if (t->drop[l]) {
        p->drop = true;
        return 0;
    }
    if (!t->score) memset(keep, true, (size_t)n_ff * sizeof *keep);
    else if (prune_choose(t->score[l], n_ff, t->group, n_keep, keep, err)) return -1;
    return kit_plan_set_layer(p, keep, n_ff, err);
}

static int fill_plan(kit_plan *p, const prune_task *t, const int *n_keep, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(t->model);
    bool *keep = dw_alloc((size_t)hp->n_ff_max, sizeof *keep, "kept neurons", err);
    p->layer = dw_alloc((size_t)hp->n_layer, sizeof *p->layer, "layers of a plan", err);
    int rc = keep && p->layer ? 0 : -1;
    for (int l = 0; l < hp->n_layer && !rc; l++) {
        p->n_layer = l + 1;
        rc = fill_layer(&p->layer[l], t, l, n_keep[l], keep, err);
    }
    free(keep);
    return rc;
}

static int write_plan(const kit_plan *p, dw_err *err) {
    if (strcmp(o.out, "-") != 0) return kit_plan_write(p, o.out, err);
    size_t size;
    char *text = kit_plan_format(p, &size, err);
    const int rc = text ? prune_write_text("-", "the plan", text, err) : -1;
    free(text);
    return rc;
}

static void tell(const prune_task *t, const int *n_keep, double wanted) {
    int least = INT32_MAX, most = 0;
    for (int l = 0; l < dw_model_hparams(t->model)->n_layer; l++) {
        if (t->drop[l]) continue;
        if (n_keep[l] < least) least = n_keep[l];
        if (n_keep[l] > most) most = n_keep[l];
    }
    if (t->bytes > 0 && !(prune_rate_of(t, n_keep) > 0))
        warn("nothing needs to be cut: the whole model takes at most %s, and --bytes allows %s; the plan keeps all "
             "neurons",
             show_bytes(prune_file_bytes(t, n_keep)).text, show_bytes(t->bytes).text);
    say("rate wanted %.4f, reached %.4f; widths %d to %d, multiples of %d; the file will have at most %s%s%s", wanted,
        prune_rate_of(t, n_keep), least, most, t->unit, show_bytes(prune_file_bytes(t, n_keep)).text,
        o.as ? " as " : "", o.as ? o.as : "");
}

/* The selection of wide layers ends a little beyond the rate, where nothing else needs the rest of the order. */
static double most_removed(const inputs *in) {
    const bool is_rate = !o.bytes && !strcmp(o.allocate, "uniform");
    return is_rate && in->hp->n_ff_max > OBS_MOST_F64 ? fmin(1, o.rate + 0.03) : 1;
}

static int score_obs(inputs *in, const kit_metric *metric, double **score, dw_err *err) {
    if (kit_stats_check_shape(&in->stats, in->hp->n_layer, in->hp->n_embd, in->hp->n_ff, err) ||
        open_gram(in, true, err))
        return -1;
    const obs_model_task t = {.model = in->model,
                              .gram = &in->gram,
                              .by_gradient = is_weighted(metric),
                              .group = in->scorer.group,
                              .most = most_removed(in),
                              .damp = o.damp,
                              .pool = in->scorer.pool,
                              .tell = say_text};
    return obs_score_model(&t, score, err);
}

/* The texts of -f, once. */
static int read_texts(inputs *in, dw_err *err) {
    const calib_request wanted = {&o.texts, o.windows, o.n_ctx, 0};
    return in->texts.n_text ? 0 : calib_read(&in->texts, in->model, &wanted, err);
}

/* The calibration texts of the scores may not be those that judge the widths. */
static int check_held_out(const inputs *in, dw_err *err) {
    for (size_t i = 0; i < in->texts.n_text && in->has_stats; i++)
        for (size_t k = 0; k < in->stats.n_text; k++) {
            const calib_text *a = &in->texts.text[i];
            const kit_stats_text *b = &in->stats.text[k];
            if (!strcmp(a->sha256, b->sha256) && a->first_window < b->first_window + b->n_windows &&
                b->first_window < a->first_window + a->n_windows)
                return dw_fail(err,
                               "windows %d to %d of '%s' are in the statistics; judge the widths by others (--windows)",
                               a->first_window, a->first_window + a->n_windows - 1, a->name);
        }
    return 0;
}

/* The hash of STATS.gram, "-" where trials repair nothing. */
static int hash_gram(const inputs *in, char hex[65], dw_err *err) {
    snprintf(hex, 65, "-");
    if (!in->gram.matrix) return 0;
    char *path = kit_gram_path(o.stats, err);
    const int rc = path ? kit_sha256_file(path, hex, err) : -1;
    free(path);
    return rc;
}

/* A hash of all that the widths depend on. */
static int make_key(inputs *in, const prune_task *t, dw_err *err) {
    char gram[65];
    if (hash_gram(in, gram, err)) return -1;
    char *text = dw_format(err, "%s %s %s %s %d %d %.17g %.17g %d %.17g %d", in->model_sha256, in->stats_sha256,
                           o.metric, o.start, t->group, t->unit, t->rate, t->bytes, o.seed, o.damp, o.n_ctx);
    int rc = text ? dw_append(&text, err, " %s %s", o.as ? o.as : "-", gram) : -1;
    if (!rc && o.heads > 0) rc = dw_append(&text, err, " %.17g %s", o.heads, o.heads_allocate);
    if (!rc && (o.protect || o.min_width))
        rc = dw_append(&text, err, " %s %d", o.protect ? o.protect : "-", o.min_width);
    for (int l = 0; l < in->hp->n_layer && !rc; l++) rc = dw_append(&text, err, " %d", t->drop[l]);
    for (size_t i = 0; i < in->texts.n_text && !rc; i++)
        rc = dw_append(&text, err, " %s %d %d", in->texts.text[i].sha256, in->texts.text[i].first_window,
                       in->texts.text[i].n_windows);
    if (!rc) dw_sha256_hex(text, strlen(text), in->key);
    free(text);
    return rc;
}

static int open_search(inputs *in, prune_task *t, const prune_allocator *allocator, dw_err *err) {
    const prune_allocator *start = allocator->allocate == search_evolve ? prune_allocator_find(o.start) : NULL;
    if ((o.stats && open_gram(in, false, err)) ||
        read_texts(in, err) || check_held_out(in, err) || make_key(in, t, err))
        return -1;
    if (!in->gram.matrix) say("there are no Gram matrices (collect --gram): widths are judged without repair");
    const trial_options options = {.model = in->model,
                                   .gram = in->gram.matrix ? &in->gram : NULL,
                                   .damp = o.damp,
                                   .texts = &in->texts,
                                   .score = t->score,
                                   .group = t->group,
                                   .drop = t->drop,
                                   .pool = in->scorer.pool};
    if (start && strcmp(o.out, "-") != 0 && !(in->state = dw_format(err, "%s.part", o.out))) return -1;
    in->search = (prune_search){.trial = trial_new(&options, err),
                                .start = start,
                                .evaluations = o.evaluations,
                                .seed = (uint64_t)o.seed,
                                .state = in->state,
                                .key = in->key,
                                .tell = say_text};
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
    return is_obs(metric) ? score_obs(in, metric, score, err) : kit_score(&in->scorer, metric, score, err);
}

static int write_scores(const inputs *in, double *const *score, dw_err *err) {
    const kit_metric *metric = find_metric(o.metric);
    char *comment = NULL, *text = NULL;
    int rc = describe_inputs(&comment, in, err);
    if (!rc)
        rc = dw_append(&comment, err, "metric %s (%s; %s), group %d, seed %d\n", metric->name, metric->formula,
                       metric->source, in->scorer.group, o.seed);
    if (!rc) rc = (text = prune_scores_table(in->hp, comment, in->scorer.group, score, err)) ? 0 : -1;
    if (!rc) rc = prune_write_text(o.scores, "the scores", text, err);
    free(comment);
    free(text);
    return rc;
}

/* A time as the rate of the widest layers that keep to it. */
static int measure_times(inputs *in, prune_task *t, dw_err *err) {
    timing *m = &in->times;
    if (timing_measure(m, in->model, in->drop, in->scorer.pool, err)) return -1;
    const int width = timing_uniform_width(m, o.us), n_ff = m->width[m->n - 1];
    say("a token takes %.0f us with all neurons, %.0f us with %d of %d a layer", m->us[m->n - 1], m->us[0], m->width[0],
        n_ff);
    if (!width)
        return dw_fail(err, "--us %g: a token takes %.0f us without any neuron; allow more, or drop layers", o.us,
                       m->rest);
    t->rate = 1 - (double)width / n_ff;
    t->us = o.us, t->times = m;
    if (width == n_ff) warn("nothing needs to be cut: the whole model is fast enough; the plan keeps all neurons");
    return 0;
}

/* The table of times, and what the widths take by it. */
static int describe_times(kit_plan *p, const inputs *in, const int *n_keep, dw_err *err) {
    const timing *m = &in->times;
    double us = m->rest;
    char backend[32];
    for (int l = 0; l < p->n_layer && o.us > 0; l++) us += in->drop[l] ? 0 : timing_of_layer(m, n_keep[l]);
    if (!(o.us > 0)) return 0;
    tool_backend_text(backend);
    int rc = dw_append(&p->comment, err,
                       "time   at most %g us a token wanted, %.1f by this table (decoding, %s, %d threads)\n", o.us, us,
                       backend, dw_pool_size(in->scorer.pool));
    if (!rc) rc = dw_append(&p->comment, err, "width:us of a token with all layers so wide:");
    for (int k = 0; k < m->n && !rc; k++) rc = dw_append(&p->comment, err, " %d:%.1f", m->width[k], m->us[k]);
    return rc ? rc : dw_append(&p->comment, err, "\n");
}

static int make_plan(inputs *in, double *const *score, dw_err *err) {
    kit_plan plan = {0};
    double wanted = 0;
    int *n_keep = dw_alloc((size_t)in->hp->n_layer, sizeof *n_keep, "widths", err);
    prune_task t = {.model = in->model,
                    .drop = in->drop,
                    .group = in->scorer.group,
                    .score = score,
                    .inverse = in->inverse,
                    .is_energy = o.metric && find_metric(o.metric)->scale == KIT_SCALE_ENERGY,
                    .sizes = &in->sizes,
                    .rate = o.rate,
                    .bytes = (double)o.bytes,
                    .min_width = o.min_width,
                    .protect = in->protect};
    const prune_allocator *allocator = prune_allocator_find(o.allocate);
    if (o.us > 0 && measure_times(in, &t, err)) return free(n_keep), -1;
    const prune_allocator *first = allocator->runs_model ? prune_allocator_find("uniform") : allocator;
    int rc = n_keep ? choose_widths(&t, first, &wanted, n_keep, err) : -1;
    if (!rc && allocator->runs_model) rc = search_widths(in, &t, allocator, n_keep, err);
    if (!rc) {
        plan.rate_reached = prune_rate_of(&t, n_keep);
        rc = fill_plan(&plan, &t, n_keep, err);
    }
    if (!rc) rc = describe(&plan, in, &t, wanted, err);
    if (!rc) rc = plan_heads(&plan, in, err);
    if (!rc) rc = describe_times(&plan, in, n_keep, err);
    if (!rc && in->has_stats) rc = list_texts(&plan, &in->stats, err);
    if (!rc) rc = write_plan(&plan, err);
    if (!rc) tell(&t, n_keep, wanted);
    kit_plan_release(&plan);
    free(n_keep);
    return rc;
}

/* Scores, where a metric is given, and what is made of them. */
static int score_and_plan(inputs *in, dw_err *err) {
    const size_t n_layer = (size_t)in->hp->n_layer;
    double **score = o.metric ? dw_alloc(n_layer, sizeof *score, "scores", err) : NULL;
    int rc = score || !o.metric ? 0 : -1;
    if (!rc && o.metric) rc = measure_residual(in, err);
    if (!rc && score) rc = make_scores(in, find_metric(o.metric), score, err);
    if (!rc && o.scores) rc = write_scores(in, score, err);
    if (!rc && o.out) rc = make_plan(in, score, err);
    for (size_t l = 0; score && l < n_layer; l++) free(score[l]);
    free(score);
    return rc;
}

/* ---- comparison of metrics -------------------------------------------------------------------------------------- */

enum { MAX_METRICS = 64 };

typedef struct judged { // one metric
    const kit_metric *metric;
    double **score; // (n_layer)
    bool **keep;    // (n_layer) of n_ff
} judged;

static int judge(judged *j, const kit_metric *metric, inputs *in, prune_task *t, const int *n_keep, dw_err *err) {
    const size_t n_layer = (size_t)in->hp->n_layer;
    *j = (judged){metric, dw_alloc(n_layer, sizeof *j->score, "scores", err),
                  dw_alloc(n_layer, sizeof *j->keep, "kept neurons", err)};
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

/* Whether the statistics have what the metric needs. */
static bool can_score(const inputs *in, const kit_metric *m) {
    return !m->needs_stats || (in->has_stats && (m->needs_stats != KIT_NEEDS_GRADIENTS || in->stats.has_gradients));
}

static int compare(inputs *in, dw_err *err) {
    const size_t n_layer = (size_t)in->hp->n_layer;
    judged j[MAX_METRICS] = {{0}};
    int n = 0, *n_keep = dw_alloc(n_layer, sizeof *n_keep, "widths", err);
    double wanted;
    bool *all = dw_alloc(n_layer, sizeof *all, "layers", err); // nothing is dropped here
    prune_task t = {.model = in->model,
                    .drop = all,
                    .group = in->scorer.group,
                    .sizes = &in->sizes,
                    .rate = o.rate,
                    .bytes = (double)o.bytes,
                    .min_width = o.min_width,
                    .protect = in->protect};
    int rc = all && n_keep ? choose_widths(&t, prune_allocator_find("uniform"), &wanted, n_keep, err) : -1;
    for (const kit_metric *m = kit_metrics; m->name && !rc && n < MAX_METRICS; m++)
        if (can_score(in, m)) rc = judge(&j[n++], m, in, &t, n_keep, err);
    if (!rc) {
        printf("# groups of %d; mean of the layers' rank correlations; overlap of the neurons removed at rate %.4f\n",
               t.group, prune_rate_of(&t, n_keep));
        rc = print_matrix(j, n, in, false, err);
        if (!rc) rc = print_matrix(j, n, in, true, err);
    }
    if (!rc && fflush(stdout)) rc = dw_fail(err, "cannot write to standard output");
    for (int i = 0; i < n; i++) judged_release(&j[i], in->hp->n_layer);
    free(n_keep);
    free(all);
    return rc;
}

/* ---- ablation --------------------------------------------------------------------------------------------------- */

typedef struct scored { // metrics that can be computed here
    const char *name[MAX_METRICS];
    double **score[MAX_METRICS];
    size_t n;
} scored;

static bool has_gram_of(const inputs *in, const kit_metric *m) {
    return in->gram.matrix && (!is_weighted(m) || kit_gram_has(&in->gram, KIT_GRAM_GRADIENT));
}

static int score_everything(inputs *in, scored *s, dw_err *err) {
    if (in->has_stats && open_gram(in, false, err)) return -1;
    for (const kit_metric *m = metrics; m->name && s->n < MAX_METRICS; m++) {
        if (is_obs(m) ? !has_gram_of(in, m) : !can_score(in, m)) continue;
        s->name[s->n] = m->name;
        s->score[s->n] = dw_alloc((size_t)in->hp->n_layer, sizeof **s->score, "scores", err);
        if (!s->score[s->n++] || make_scores(in, m, s->score[s->n - 1], err)) return -1;
    }
    return 0;
}

static void free_scored(scored *s, int n_layer) {
    for (size_t i = 0; i < s->n; i++) {
        for (int l = 0; s->score[i] && l < n_layer; l++) free(s->score[i][l]);
        free(s->score[i]);
    }
}

static char *describe_ablation(const inputs *in, double loss, dw_err *err) {
    char *comment = NULL;
    int rc = describe_inputs(&comment, in, err);
    for (size_t i = 0; i < in->texts.n_text && !rc; i++) {
        const calib_text *t = &in->texts.text[i];
        rc = dw_append(&comment, err, "text   %s  sha256 %s  windows %d-%d of %d tokens\n", t->name, t->sha256,
                       t->first_window, t->first_window + t->n_windows - 1, in->texts.n_ctx);
    }
    if (!rc)
        rc = dw_append(&comment, err, "groups of %d, %d of every layer, seed %d\n", in->scorer.group, o.sample, o.seed);
    if (!rc) rc = dw_append(&comment, err, "loss   %.6f nats per token of the whole model\n", loss);
    if (!rc) return comment;
    free(comment);
    return NULL;
}

static int write_ablation(const inputs *in, const ablated *group, size_t n, double loss, const scored *s, dw_err *err) {
    ablation_metric metric[MAX_METRICS];
    for (size_t i = 0; i < s->n; i++) metric[i] = (ablation_metric){s->name[i], s->score[i]};
    char *comment = describe_ablation(in, loss, err);
    const ablation_report r = {comment ? comment : "", group, n, in->scorer.group, metric, s->n};
    char *text = comment ? ablation_table(&r, err) : NULL;
    const int rc = text ? prune_write_text(o.ablation, "the ablation", text, err) : -1;
    free(comment);
    free(text);
    return rc;
}

static int ablate(inputs *in, dw_err *err) {
    scored s = {.n = 0};
    size_t n = 0;
    double loss = 0;
    if (read_texts(in, err)) return -1;
    for (int l = 0; l < in->hp->n_layer; l++)
        if (in->hp->n_ff[l] % in->scorer.group)
            return dw_fail(err, "layer %d: %d neurons are not a multiple of the group size %d", l, in->hp->n_ff[l],
                           in->scorer.group);
    ablated *group = ablation_sample(in->hp, in->scorer.group, o.sample, (uint64_t)o.seed, &n, err);
    int rc = group ? score_everything(in, &s, err) : -1;
    ablation_task t = {.model = in->model, .texts = &in->texts, .group = in->scorer.group, .pool = in->scorer.pool};
    t.bar = rc ? NULL : progress_begin("ablating", "groups", (double)n);
    if (!rc) rc = ablation_measure(&t, group, n, &loss, err);
    progress_end(t.bar);
    if (!rc) rc = write_ablation(in, group, n, loss, &s, err);
    free_scored(&s, in->hp->n_layer);
    free(group);
    return rc;
}

/* ---- main ------------------------------------------------------------------------------------------------------- */

static void check_metric(const kit_metric *metric, const prune_allocator *allocator) {
    if (metric->needs_stats && !o.stats)
        die_usage("metric '%s' needs statistics: collect them and give them with -s", metric->name);
    if (metric->scale >= allocator->scale) return;
    if (metric->scale == KIT_SCALE_ENERGY)
        die_usage("scores of metric '%s' do not compare across layers as they are, because the residual stream grows "
                  "from layer to layer; give --allocate relative or standardized",
                  metric->name);
    char *energies = names_of_scale(KIT_SCALE_ENERGY, NULL);
    die_usage(
        "scores of metric '%s' do not compare across layers, as --allocate %s needs; give --allocate standardized, or "
        "relative with one of these metrics: %s",
        metric->name, allocator->name, energies ? energies : "");
}

static void check_outputs(void) {
    const bool has_size = o.rate >= 0 || o.bytes || o.us > 0;
    if (!o.compare && !o.out && !o.scores && !o.ablation)
        die_usage("nothing to write: give a plan (-o), --scores, --ablation or --compare");
    if (o.scores && !o.metric) die_usage("--scores needs a --metric");
    if (!o.metric && strcmp(o.allocate, "uniform") != 0) die_usage("--allocate %s needs a --metric", o.allocate);
    if (!has_size && !o.drop_layers && !(o.heads > 0) && (o.out || o.compare))
        die_usage("give --rate, --bytes, --heads or --drop-layers");
    if (o.out && has_size && !o.metric) die_usage("--rate and --bytes need a --metric, which says what goes first");
    if (o.scores && o.out && !strcmp(o.scores, "-") && !strcmp(o.out, "-"))
        die_usage("the plan and the scores cannot both go to standard output");
}

static void check_search(const prune_allocator *allocator, const prune_allocator *start) {
    if (allocator->runs_model && !o.texts.n)
        die_usage("--allocate %s judges widths by held-out texts: give them with -f (and --windows)", allocator->name);
    if (o.ablation && !o.texts.n) die_usage("--ablation measures the loss on texts: give them with -f (and --windows)");
    if (!allocator->runs_model && o.texts.n && !o.ablation)
        die_usage("-f is for allocations that run the model, sensitivity and evolve, and for --ablation");
    if (start->allocate == search_evolve) die_usage("--start is another allocation than evolve");
}

static void check_options(void) {
    check_outputs();
    if (o.rate >= 0 && o.bytes) die_usage("give --rate or --bytes, not both");
    if (o.us > 0 && (o.rate >= 0 || o.bytes)) die_usage("give one of --rate, --bytes and --us");
    if (o.us > 0 && o.as) die_usage("--us measures the types that the model has now; --as cannot be given");
    if (o.us > 0 && o.heads > 0) die_usage("--us measures the model with all its heads; cut them first");
    if (o.us > 0 && !prune_allocator_find(o.allocate)->knows_times)
        die_usage("--us is for --allocate uniform and sensitivity");
    if (o.as && !o.bytes && o.rate < 0) die_usage("--as needs --bytes or --rate, whose widths then fit the types");
    if (o.min_width && !o.bytes && o.rate < 0 && !(o.us > 0)) die_usage("--min-width needs --bytes or --rate");
    if (o.rate >= 1) die_usage("rate 1 leaves no neuron; to remove whole layers, give --drop-layers");
    if (o.heads > 0 && !o.stats)
        die_usage("--heads needs statistics with Gram matrices (collect --gram down+o): give them with -s");
    if (o.heads >= 1) die_usage("--heads 1 leaves no head; every layer keeps a KV head");
    if (o.drop_layers && !o.stats) die_usage("--drop-layers needs statistics: collect them and give them with -s");
    check_search(prune_allocator_find(o.allocate), prune_allocator_find(o.start));
    if (o.metric) check_metric(find_metric(o.metric), prune_allocator_find(o.allocate));
    if (o.rate < 0) o.rate = 0;
}

static int run(inputs *in, dw_pool *pool, dw_err *err) {
    if (open_inputs(in, pool, err) || read_protected(in, err) || choose_layers(in, err)) return -1;
    if (choose_heads(in, err)) return -1;
    int *n_kv = dw_alloc((size_t)in->hp->n_layer, sizeof *n_kv, "numbers of heads", err);
    if (!n_kv) return -1;
    for (int l = 0; l < in->hp->n_layer; l++) n_kv[l] = n_kv_kept(in, l);
    const prune_sizes_request wanted = {in->model, in->drop, as_named(o.as), lineage_bytes(in), n_kv};
    const int rc = prune_sizes_init(&in->sizes, &wanted, err);
    free(n_kv);
    if (rc) return -1;
    if (o.compare && compare(in, err)) return -1;
    if (o.ablation && ablate(in, err)) return -1;
    return o.out || o.scores ? score_and_plan(in, err) : 0;
}

int main(int argc, char **argv) {
    list_metrics();
    list_as_names();
    write_about();
    opt_parse(&program, argc, argv);
    check_options();
    if ((o.metric && is_obs(find_metric(o.metric))) || o.heads > 0 || (o.ablation && o.stats))
        kit_blas_on_one_thread(argv);
    dw_err err = {0};
    dw_pool *pool = dw_pool_new(tool.threads, &err);
    inputs in = {0};
    const int rc = pool ? run(&in, pool, &err) : -1;
    close_inputs(&in);
    dw_pool_free(pool);
    if (rc) die_err(&err);
    return 0;
}
