/* rank.c - deadwood-rank: statistics and a model become a plan.
 *
 *     deadwood rank -m mini.gguf -s stats.h5 -o plan.tsv --metric energy --rate 0.2
 *
 * rank.h says which file does what; the plan says all that was decided. */
#include "prune/rank.h"
#include "kit/blas.h"
#include "kit/talk.h"
#include "prune/heads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct { const char *name; } as_names[64]; // mixtures, then types that are no mixture's name; ends with NULL

static void list_as_names(void) {
    size_t n = 0, most = sizeof as_names / sizeof *as_names - 1;
    for (const kit_mixture *m = kit_mixtures; m->name && n < most; m++) as_names[n++].name = m->name;
    for (const dw_qtype_name *t = dw_encodable_names; t->name && n < most; t++)
        if (!kit_mixture_find(t->name)) as_names[n++].name = t->name;
}

static prune_as as_named(const char *name, const char *output) {
    if (!name) return (prune_as){0};
    const kit_mixture *m = kit_mixture_find(name);
    return m ? (prune_as){.mixture = m, .output = output ? dw_qtype_by_name(output) : NULL}
             : (prune_as){.type = dw_qtype_by_name(name)};
}

static const struct { const char *name; } groups[] = {{"1"}, {"32"}, {"64"}, {"128"}, {"256"}, {0}};

enum { SAMPLE = 4 }; // groups of every layer, when --sample is not given

static rank_options o = {.rate = -1};

static const opt_row rows[] = {
    {"model", 'm', OPT_PATH, OPT_REQUIRED | OPT_INPUT, &o.model, NULL, "FILE", "the model (GGUF)"},
    {"stats", 's', OPT_PATH, OPT_INPUT, &o.stats, NULL, "FILE", "statistics of that model (collect)"},
    {"out", 'o', OPT_PATH, OPT_NO_BYTE | OPT_STDOUT | OPT_KEEPS, &o.out, NULL, "FILE", "the plan; -: standard output",
     .holds = KIT_PLAN},
    {"scores", 0, OPT_PATH, OPT_NO_BYTE | OPT_OUTPUT | OPT_STDOUT, &o.scores, NULL, "FILE",
     "write the scores of all groups as a table; -: standard output", .holds = KIT_SCORES | KIT_TEXT},
    {"metric", 0, OPT_CHOICE, 0, &o.metric, NULL, "NAME", "what makes a neuron worth keeping",
     OPT_CHOICES(rank_metrics)},
    {"rate", 0, OPT_REAL, 0, &o.rate, NULL, "R", "fraction of the neurons that goes", .min = 0, .max = 1},
    {"bytes", 0, OPT_BYTES, 0, &o.bytes, NULL, "SIZE",
     "or: the file's size after the cut, at most; requant -s adds half a byte for each token of its texts", .min = 1,
     .max = 1e15},
    {"least-bytes", 0, OPT_FLAG, 0, &o.least_bytes, NULL, NULL,
     "print the least --bytes that these options can reach, for scripts, and end"},
    {"us", 0, OPT_REAL, 0, &o.us, "0", "N",
     "or: a token takes N microseconds at most, measured here on -t threads; for uniform and sensitivity", .min = 0,
     .max = 1e12},
    {"as", 0, OPT_CHOICE, 0, &o.as, NULL, "TYPES",
     "fit widths to the types that a later requant --mixture or --type gives, and count --bytes in them; a name of "
     "both is the mixture",
     OPT_CHOICES(as_names)},
    {"output-type", 0, OPT_CHOICE, 0, &o.output_type, NULL, "TYPE",
     "of --as MIXTURE with --bytes: type of the matrix that gives the logits, as requant's",
     OPT_CHOICES(dw_encodable_names)},
    {"group", 0, OPT_CHOICE, 0, &o.group, "1", "N", "neurons that go together", OPT_CHOICES(groups)},
    {"multiple", 0, OPT_INT, 0, &o.multiple, "0", "K",
     "kept widths are multiples of K; 0: of 256 where that comes within 0.01 of the rate or --as needs it, otherwise "
     "of 32",
     .min = 0, .max = 65536},
    {"min-width", 0, OPT_INT, 0, &o.min_width, "0", "N", "no layer keeps fewer neurons", .min = 0, .max = 1 << 24},
    {"protect", 0, OPT_TEXT, 0, &o.protect, NULL, "LAYERS",
     "layers that keep all their neurons and are not dropped, from 0: 0-1,23"},
    {"allocate", 0, OPT_CHOICE, 0, &o.allocate, "uniform", "NAME", "how many neurons each layer loses",
     OPT_CHOICES_HELP(prune_allocators, prune_allocator)},
    {"text", 'f', OPT_TEXTS, OPT_INPUT, &o.texts, NULL, "TEXT",
     "held-out texts, for allocations that run the model, and for --ablation"},
    {"ctx", 'c', OPT_INT, 0, &o.n_ctx, "512", "N", "tokens of a window of these", .min = 2, .max = 1 << 20},
    {"windows", 0, OPT_RANGE, 0, &o.windows, NULL, "A-B", "only windows A to B of every text; 20 is 1-20"},
    {"start", 0, OPT_CHOICE, 0, &o.start, "uniform", "NAME", "the allocation from which evolve starts",
     OPT_CHOICES(prune_allocators)},
    {"evaluations", 0, OPT_INT, 0, &o.evaluations, "0", "N",
     "evaluations of the model; 0: 400 for evolve, 8 per layer for sensitivity", .min = 0, .max = 1000000},
    {"heads", 0, OPT_REAL, 0, &o.heads, "0", "R",
     "also cut this fraction of the KV heads, each with its query heads; needs Gram matrices of the inputs of o",
     .min = 0, .max = 1},
    {"heads-allocate", 0, OPT_CHOICE, 0, &o.heads_allocate, "uniform", "NAME", "how many KV heads each layer loses",
     OPT_CHOICES_HELP(heads_allocators, heads_allocator)},
    {"drop-layers", 0, OPT_INT, 0, &o.drop_layers, "0", "N", "drop the N layers that change the residual least, too",
     .min = 0, .max = 511},
    {"damp", 0, OPT_REAL, 0, &o.damp, "0.01", "R",
     "of obs, and of the repairs that sensitivity and evolve judge: added to the diagonal of the Gram matrix, relative "
     "to its median",
     .min = 1e-9, .max = 100},
    {"seed", 0, OPT_INT, 0, &o.seed, "0", "N", "seed of the metric random, and of evolve's steps", .min = 0,
     .max = 2147483647},
    {"ablation", 0, OPT_PATH, OPT_NO_BYTE | OPT_OUTPUT | OPT_STDOUT, &o.ablation, NULL, "FILE",
     "measure the loss without single groups on the texts of -f, and write it beside all metrics; -: standard output",
     .holds = KIT_SCORES | KIT_TEXT},
    {"sample", 0, OPT_INT, 0, &o.sample, NULL, "N", "of --ablation: random groups of every layer; default: 4", .min = 1,
     .max = 1 << 20},
    {"compare", 0, OPT_FLAG, 0, &o.compare, NULL, NULL,
     "print how all metrics but obs and obs-gradient agree, as a table; needs --rate or --bytes"},
    OPT_COMMON,
    {0}};

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
               "deadwood rank -m 7b.gguf --least-bytes --as Q4_K_M\n"
               "deadwood rank -m mini.gguf -s stats.h5 --ablation truth.tsv --group 64 --sample 4 -f held-out.txt "
               "--windows 1-8",
    .rows = rows};

static const char about[] =
    "A neuron is a row of gate and up and a column of down: a_j = act(gate_j . h) * (up_j . h), which reaches the "
    "output through its column v_j.  Metrics give each neuron a score.  The score of a group is the sum of its "
    "neurons' scores, and the groups with the smallest scores are cut first.  E and Var are over all tokens of all "
    "texts.\n"
    "\n"
    "Kept widths are multiples of --multiple and of --group, so that number formats and kernels can hold them; a "
    "multiple of 1 needs a down matrix in 16 or 32 bits.  The rate counts neurons of layers that stay.\n"
    "\n"
    "The cut file has --bytes at most; what a repair adds comes on top, and cut warns of it.  Where the model "
    "fits as it is, the plan keeps all neurons, and a warning says so.  "
    "Without --as no tensor changes its type.  With --as the size is that of the file after requant, with other types "
    "where rows are no whole number of blocks, as requant takes them; widths are multiples of 256 for K types, also "
    "where a mixture has few of them, and of 32 for the simple ones, unless --multiple says another number.\n"
    "\n"
    "--us measures for some seconds what a token takes when all layers have one of eight widths, and writes the table "
    "into the plan.  It holds for this machine, -t and the model's types as they are now.\n"
    "\n"
    "--protect and --min-width leave more to the other layers: the rate counts the neurons of all layers that stay.\n"
    "\n"
    "--allocate relative needs a metric whose scores are energies of the layer's output: %s; random is taken, too, "
    "as the control.  Raw scores of different "
    "layers do not compare, because the residual stream grows from layer to layer.\n"
    "\n"
    "--drop-layers goes by block influence, 1 - mean cosine of the residuals before and after a layer (Men et al. "
    "2024, arXiv 2403.03853).  Without --metric, --rate and --bytes all neurons of the other layers stay.\n"
    "\n"
    "--heads goes by obs, too: groups of heads on the inputs of o, one after the other (collect --gram down+o; cut "
    "--repair lsq repairs o).  The fraction is of the KV heads of layers that may be cut: these do not make up for "
    "layers that are dropped or protected.  A plan may cut heads alone.  --bytes counts what goes with them; "
    "sensitivity and evolve judge widths with all heads.\n"
    "\n"
    "obs removes one group after the other, each time the one whose loss the others repair best, on the Gram matrix "
    "of the inputs of down (collect --gram); the error is that of the repaired layer, so cut with --repair lsq.  "
    "obs-gradient weighs this error by the gradients of the loss.  The same repair is best for both, because least "
    "squares does not depend on the weights of outputs.\n"
    "\n"
    "--ablation tells what scores are worth: the change of the loss without a group, with its error over windows, for "
    "a random sample, and every metric's rank correlation with it.  Each group takes a pass over the texts from its "
    "layer on.\n"
    "\n"
    "metrics:\n";

/* "energy, flap": the metrics of a scale; free(). */
static char *names_of_scale(kit_scale scale, dw_err *err) {
    char *names = NULL;
    for (const kit_metric *m = rank_metrics; m->name; m++)
        if (m->scale == scale) dw_append(&names, err, "%s%s", names ? ", " : "", m->name);
    return names;
}

/* The help lists the table's formulas. */
static void write_about(void) {
    char *text = NULL, *energies;
    dw_err err = {0};
    energies = names_of_scale(KIT_SCALE_ENERGY, &err);
    dw_append(&text, &err, about, energies ? energies : "");
    for (const kit_metric *m = rank_metrics; m->name; m++)
        dw_append(&text, &err, "  %s: %s (%s)\n", m->name, m->formula, m->source);
    free(energies);
    if (err.text[0]) die_err(&err);
    program.about = text;
}

/* ---- main ------------------------------------------------------------------------------------------------------- */

static void check_metric(const kit_metric *metric) {
    const char *option;
    const prune_allocator *allocator = rank_first_rule(&o, &option);
    if (metric->needs_stats && !o.stats)
        die_usage("metric '%s' needs statistics: collect them and give them with -s", metric->name);
    if (allocator->needs_inverse && metric->scale == KIT_SCALE_COMMON && strcmp(metric->name, "random") != 0)
        die_usage("scores of metric '%s' compare across layers as they are, and relative is for energies: %s; give "
                  "--%s global",
                  metric->name, names_of_scale(KIT_SCALE_ENERGY, NULL), option);
    if (metric->scale >= allocator->scale) return;
    if (metric->scale == KIT_SCALE_ENERGY)
        die_usage("scores of metric '%s' do not compare across layers as they are, because the residual stream grows "
                  "from layer to layer; give --%s relative or standardized",
                  metric->name, option);
    char *energies = names_of_scale(KIT_SCALE_ENERGY, NULL);
    die_usage(
        "scores of metric '%s' do not compare across layers, as --%s %s needs; give --%s standardized, or "
        "relative with one of these metrics: %s",
        metric->name, option, allocator->name, option, energies ? energies : "");
}

static bool is_stdout(const char *path) { return path && !strcmp(path, "-"); }

static void check_least_bytes(void) {
    if (o.out || o.scores || o.ablation || o.compare) die_usage("--least-bytes prints a number; it takes no output");
    if (o.rate >= 0 || o.bytes || o.us > 0) die_usage("--least-bytes takes no --rate, --bytes or --us");
    if (o.metric) die_usage("--least-bytes takes no --metric: it does not depend on which neurons go");
}

static void check_outputs(void) {
    const bool has_size = o.rate >= 0 || o.bytes || o.us > 0;
    if (o.least_bytes) {
        check_least_bytes();
        return;
    }
    if (!o.compare && !o.out && !o.scores && !o.ablation)
        die_usage("nothing to write: give a plan (-o), --scores, --ablation or --compare");
    if (o.metric && !o.out && !o.scores)
        die_usage("--metric is for a plan (-o) and --scores; --compare and --ablation take every metric");
    if (o.scores && !o.metric) die_usage("--scores needs a --metric");
    if (!o.metric && strcmp(o.allocate, "uniform") != 0) die_usage("--allocate %s needs a --metric", o.allocate);
    if (!has_size && !o.drop_layers && !(o.heads > 0) && (o.out || o.compare))
        die_usage("give --rate, --bytes, --us, --heads or --drop-layers");
    if (o.out && has_size && !o.metric)
        die_usage("--rate, --bytes and --us need a --metric, which says what goes first");
    if (o.compare && o.rate < 0 && !o.bytes)
        die_usage("--compare needs --rate or --bytes: it compares which neurons metrics remove");
    if (is_stdout(o.out) + is_stdout(o.scores) + is_stdout(o.ablation) + o.compare > 1)
        die_usage("only one of the plan, the scores, the ablation and the comparison can go to standard output");
}

/* Options that others make meaningless. */
static void check_idle(const prune_allocator *allocator) {
    if (opt_is_given("sample") && !o.ablation) die_usage("--sample is for --ablation");
    if (allocator->allocate != search_evolve && opt_is_given("start"))
        die_usage("--start is for --allocate evolve");
    if (opt_is_given("evaluations") && !allocator->runs_model)
        die_usage("--evaluations is for allocations that run the model, sensitivity and evolve");
    if (!o.texts.n && (opt_is_given("ctx") || opt_is_given("windows")))
        die_usage("-c and --windows are for the texts of -f, and there are none");
    if (!(o.heads > 0) && opt_is_given("heads-allocate")) die_usage("--heads-allocate needs --heads");
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
    const bool counts_bytes = o.bytes || o.least_bytes;
    if (o.output_type && (!counts_bytes || !o.as || !kit_mixture_find(o.as)))
        die_usage("--output-type belongs to --bytes with --as MIXTURE");
    if (o.as && !counts_bytes && o.rate < 0) die_usage("--as needs --bytes or --rate, whose widths then fit the types");
    if (o.min_width && !counts_bytes && o.rate < 0 && !(o.us > 0))
        die_usage("--min-width needs --bytes, --rate or --us");
    if (o.rate >= 1) die_usage("rate 1 leaves no neuron; to remove whole layers, give --drop-layers");
    if (o.heads > 0 && !o.stats)
        die_usage("--heads needs statistics with Gram matrices (collect --gram down+o): give them with -s");
    if (o.heads >= 1) die_usage("--heads 1 leaves no head; every layer keeps a KV head");
    if (o.drop_layers && !o.stats) die_usage("--drop-layers needs statistics: collect them and give them with -s");
    check_search(prune_allocator_find(o.allocate), prune_allocator_find(o.start));
    if (o.metric) check_metric(rank_find_metric(o.metric));
    check_idle(prune_allocator_find(o.allocate));
    if (o.rate < 0) o.rate = 0;
    if (!o.sample) o.sample = SAMPLE;
}

/* Exact selection, heads, and trials of cut models, which statistics repair. */
static bool uses_blas(void) {
    const bool is_obs = o.metric && rank_is_obs(rank_find_metric(o.metric));
    return is_obs || o.heads > 0 || (o.stats && (o.ablation || prune_allocator_find(o.allocate)->runs_model));
}

/* Of the metrics that are used. */
static void warn_of_pooled(const rank_inputs *in) {
    char text[512];
    for (const kit_metric *m = rank_metrics; m->name && in->has_stats; m++) {
        const bool is_used = o.compare || o.ablation || (o.metric && !strcmp(m->name, o.metric));
        if (is_used && kit_metric_of_pooled(m, &in->stats, text, sizeof text)) warn("%s", text);
    }
}

static int run(rank_inputs *in, dw_pool *pool, dw_err *err) {
    if (rank_open_inputs(in, &o, pool, err) || rank_read_protected(in, err) || rank_choose_layers(in, err)) return -1;
    warn_of_pooled(in);
    if (rank_choose_heads(in, err)) return -1;
    /* The texts of -f judge, and the file will name them. */
    const bool judges = (o.out || o.least_bytes) && prune_allocator_find(o.allocate)->runs_model;
    if (judges && rank_read_texts(in, err)) return -1;
    int *n_kv = dw_alloc((size_t)in->hp->n_layer, sizeof *n_kv, "numbers of heads", err);
    if (!n_kv) return -1;
    for (int l = 0; l < in->hp->n_layer; l++) n_kv[l] = rank_n_kv_kept(in, l);
    const bool may_differ = strcmp(o.allocate, "uniform") || strcmp(o.heads_allocate, "uniform") || o.protect;
    const prune_as as = as_named(o.as, o.output_type);
    const prune_sizes_request wanted = {in->model, in->drop, as, rank_lineage_bytes(in), n_kv, may_differ};
    const int rc = prune_sizes_init(&in->sizes, &wanted, err);
    free(n_kv);
    if (rc) return -1;
    if (o.least_bytes) return rank_print_least_bytes(in, err);
    if (o.compare && rank_compare(in, err)) return -1;
    if (o.ablation && rank_ablate(in, err)) return -1;
    return o.out || o.scores ? rank_score_and_plan(in, err) : 0;
}

int main(int argc, char **argv) {
    rank_list_metrics();
    list_as_names();
    write_about();
    opt_parse(&program, argc, argv);
    check_options();
    if (uses_blas()) kit_blas_start(argv);
    dw_err err = {0};
    dw_pool *pool = dw_pool_new(tool.threads, &err);
    rank_inputs in = {0};
    const int rc = pool ? run(&in, pool, &err) : -1;
    rank_close_inputs(&in);
    dw_pool_free(pool);
    if (rc) die_err(&err);
    return 0;
}
