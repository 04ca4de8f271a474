/* cut.c - deadwood-cut: a plan and a model become the smaller model.
 *
 *     deadwood cut -m mini.gguf -p plan.tsv -o mini-cut.gguf
 *
 * What moves where: cutting.h.  One pass over the parent; then the file is opened again and compared with it. */
#include "prune/cutting.h"
#include "prune/hf.h"
#include "prune/repairs.h"
#include "kit/blas.h"
#include "kit/calib.h"
#include "kit/lineage.h"
#include "kit/options.h"
#include "kit/progress.h"
#include "kit/talk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct type_name {
    const char *name;
} type_name;

static type_name down_types[DW_QTYPE_END + 2] = {{"same"}}; // and dw_encodable_names

static struct {
    const char *model, *plan, *out, *source, *down_type, *hf, *checkpoint, *repair, *target, *stats;
    opt_list texts;
    opt_range windows;
    double damp, gap;
    int n_ctx;
    bool pad, sequential;
} o = {.damp = 0.01, .gap = REPAIR_GAP, .n_ctx = 512};

static const struct { const char *name, *help; } repair_names[] = {
    {"none", "down keeps its values"},
    {"lsq", "least squares with a ridge towards the original (prune/repair.h)"},
    {0}};

// clang-format off
static const opt_row rows[] = {
    {"model", 'm', OPT_PATH, OPT_REQUIRED | OPT_INPUT, &o.model, NULL, "FILE", "the model (GGUF)"},
    {"plan", 'p', OPT_PATH, OPT_REQUIRED | OPT_INPUT, &o.plan, NULL, "FILE", "what stays (made by rank, or by hand)"},
    {"out", 'o', OPT_PATH, OPT_REQUIRED | OPT_NO_BYTE, &o.out, NULL, "FILE", "the smaller model"},
    {"source", 0, OPT_PATH, OPT_INPUT, &o.source, NULL, "FILE", "a 16-bit file of the same model: down is encoded from it"},
    {"down-type", 0, OPT_CHOICE, 0, &o.down_type, NULL, "TYPE", "encode down where it cannot be copied; same: as each layer has it", OPT_CHOICES(down_types)},
    {"pad", 0, OPT_FLAG, 0, &o.pad, NULL, NULL, "zero neurons up to one width instead of an architecture with unequal ones"},
    {.kind = OPT_GROUP, .help = "repair"},
    {"repair", 0, OPT_CHOICE, 0, &o.repair, NULL, "NAME", "fit what stays of down again; needs -s, or --sequential with -f", OPT_CHOICES(repair_names)},
    {"stats", 's', OPT_PATH, OPT_INPUT, &o.stats, NULL, "STATS", "statistics of the model, with STATS.gram beside them (collect --gram)"},
    {"sequential", 0, OPT_FLAG, 0, &o.sequential, NULL, NULL, "repair the layers in order, each on the inputs that the cut layers below give it"},
    {"text", 'f', OPT_TEXTS, OPT_INPUT, &o.texts, NULL, "TEXT", "calibration texts for --sequential"},
    {"ctx", 'c', OPT_INT, 0, &o.n_ctx, NULL, "N", "tokens of a window; 512", .min = 1, .max = 1 << 20},
    {"windows", 0, OPT_RANGE, 0, &o.windows, NULL, "A-B", "only windows A to B of every text; 20 is 1-20"},
    {"target", 0, OPT_CHOICE, 0, &o.target, NULL, "NAME", "what --sequential fits to; dense", OPT_CHOICES_HELP(repair_targets, repair_target)},
    {"gap", 0, OPT_REAL, 0, &o.gap, NULL, "R", "share of the residual stream's gap that the target dense adds; 0.5", .min = 0, .max = 1},
    {"damp", 0, OPT_REAL, 0, &o.damp, NULL, "R", "ridge, relative to the median square of the inputs; 0.01", .min = 1e-9, .max = 100},
    {.kind = OPT_GROUP, .help = "for transformers"},
    {"hf", 0, OPT_PATH, OPT_NO_BYTE | OPT_FOLDER, &o.hf, NULL, "DIR", "write a checkpoint folder too (16 or 32 bits, one width); needs --checkpoint"},
    {"checkpoint", 0, OPT_PATH, OPT_NO_BYTE, &o.checkpoint, NULL, "DIR", "the folder that the model came from: its config.json and tokenizer go into that of --hf"},
    OPT_COMMON, {0}};

static const opt_program program = {
    .name = "cut",
    .summary = "remove the neurons that a plan does not keep, and the layers that it drops",
    .usage = "-m M.gguf -p plan.tsv -o M2.gguf [--repair lsq -s stats.h5] [--source M16.gguf] [--down-type TYPE] [--pad] [--hf DIR]",
    .about = "A neuron is a row of gate and up and a column of down.  Rows are copied as bytes in every type.  Columns are copied block for "
             "block where the kept neurons are whole blocks of down's type (any neurons in 16 and 32 bits, groups of 32 in Q4_0 to Q8_0 and "
             "IQ4_NL, of 256 in K types); else --down-type lets down be encoded again.  Encoding what was encoded loses twice: give the 16-bit "
             "file with --source.\n"
             "\n"
             "Equal widths keep the architecture.  Unequal ones are stored as deci (llama, mistral, qwen2) or openelm (qwen3 without an output "
             "matrix of its own), which llama.cpp loads; --pad keeps the architecture and fills up with zero neurons, which change no result but "
             "cost size and time.\n"
             "\n"
             "--repair lsq fits the columns of down that stay so that each layer writes what it wrote before, as far as it can: from STATS.gram, "
             "or with --sequential on the texts, layer by layer.  down is then encoded anew, in the type that it has unless --down-type says "
             "another.\n"
             "\n"
             "A plan that names the hash of its model cuts only that model.  The file is opened again and every row compared with the parent's "
             "before this program says that it is done.",
    .example = "deadwood cut -m mini.gguf -p plan.tsv -o mini-cut.gguf\n"
               "deadwood cut -m mini.gguf -p plan.tsv -o mini-cut.gguf --repair lsq --sequential -f experiments/texts/calib/*.txt\n"
               "deadwood cut -m 7b-q4_0.gguf -p plan.tsv -o 7b-cut.gguf --source 7b-bf16.gguf --down-type same",
    .rows = rows};
// clang-format on

typedef struct inputs {
    dw_model *model, *source;
    kit_plan plan;
    repairs repairs;       // with --repair
    calib_texts texts;     // with --sequential
    char model_sha256[65];
    double hash_seconds;
} inputs;

static bool is_repaired(void) { return o.repair && strcmp(o.repair, "none") != 0; }
static const repair_target *target(void) { return repair_target_find(o.target ? o.target : "dense"); }

static void name_types(void) {
    size_t n = 1;
    for (const dw_qtype_name *t = dw_encodable_names; t->name; t++) down_types[n++].name = t->name;
}

static int open_inputs(inputs *in, dw_err *err) {
    *in = (inputs){.model = dw_model_open(o.model, err)};
    if (!in->model || lineage_check(dw_model_gguf(in->model), err)) return -1;
    const dw_hparams *hp = dw_model_hparams(in->model);
    if (kit_plan_read(&in->plan, o.plan, hp->n_ff, hp->n_layer, err)) return -1;
    if (o.source && !(in->source = dw_model_open(o.source, err))) return -1;
    const double t0 = dw_now();
    dw_gguf_sha256(dw_model_gguf(in->model), in->model_sha256);
    in->hash_seconds = dw_now() - t0;
    if (!in->plan.model_sha256[0]) warn("'%s' does not say for which model it was made; only its widths are checked", o.plan);
    return kit_plan_check_model(&in->plan, o.plan, o.model, in->model_sha256, err);
}

static void close_inputs(inputs *in) {
    repairs_release(&in->repairs);
    calib_release(&in->texts);
    kit_plan_release(&in->plan);
    dw_model_close(in->source);
    dw_model_close(in->model);
}

/* What the plan says of itself. */
static int stamp_plan(lineage *l, const kit_plan *p, dw_err *err) {
    char group[16] = "", wanted[32] = "", reached[32] = "";
    if (p->group) snprintf(group, sizeof group, "%d", p->group);
    if (p->rate_wanted >= 0) snprintf(wanted, sizeof wanted, "%.4g", p->rate_wanted);
    if (p->rate_reached >= 0) snprintf(reached, sizeof reached, "%.4g", p->rate_reached);
    return lineage_fact(l, "metric", p->metric, err) || lineage_fact(l, "rate", wanted, err) || lineage_fact(l, "rate_reached", reached, err) ||
                   lineage_fact(l, "group", group, err) || lineage_fact(l, "allocate", p->allocate, err)
               ? -1
               : 0;
}

/* What was repaired, how, and with which texts. */
static int stamp_repair(lineage *l, const inputs *in, dw_err *err) {
    char words[64];
    if (!is_repaired()) return 0;
    snprintf(words, sizeof words, "%s%s%s", o.repair, o.sequential ? "-sequential-" : "", o.sequential ? target()->name : "");
    if (lineage_fact(l, "repair", words, err) || (o.stats && lineage_input(l, o.stats, err))) return -1;
    for (size_t i = 0; i < in->texts.n_text; i++) {
        const calib_text *t = &in->texts.text[i];
        const size_t n = (size_t)t->n_windows * (size_t)in->texts.n_ctx + (size_t)t->n_tail;
        char *blocks = lineage_blocks(t->token, n, err);
        const int rc = blocks ? lineage_text_blocks(l, t->name, t->sha256, blocks, n, err) : -1;
        free(blocks);
        if (rc) return -1;
    }
    return 0;
}

static int stamp(const inputs *in, dw_gguf_writer *w, dw_err *err) {
    lineage *l = lineage_new(&program, dw_model_gguf(in->model), err);
    int rc = !l || lineage_input_hashed(l, o.model, in->model_sha256, err) || lineage_input(l, o.plan, err) || stamp_plan(l, &in->plan, err) ? -1 : 0;
    if (!rc && o.source) rc = lineage_input(l, o.source, err);
    if (!rc) rc = stamp_repair(l, in, err);
    if (!rc) rc = lineage_plan_texts(l, in->plan.text, in->plan.n_text, err);
    if (!rc) rc = lineage_write(l, w, err);
    lineage_free(l);
    return rc;
}

static int write_data(const prune_layout *layout, dw_gguf_writer *w, dw_pool *pool, progress *bar, dw_err *err) {
    kit_stream *s = kit_stream_new(w, pool, bar, err);
    const int rc = s ? prune_layout_write(layout, s, err) : -1;
    kit_stream_free(s);
    return rc;
}

typedef struct comparer { // of the new file with the parent
    const prune_layout *layout;
    dw_pool *pool;
    progress *bar;
    double began;
} comparer;

static int compare_file(void *comparer_pointer, const char *path, dw_err *err) {
    comparer *c = comparer_pointer;
    c->began = dw_now();
    kit_stream *s = kit_stream_new(NULL, c->pool, c->bar, err);
    const int rc = s ? prune_layout_compare(c->layout, path, s, err) : -1;
    kit_stream_free(s);
    return rc;
}

static int write_file(const inputs *in, dw_gguf_writer *w, comparer *c, dw_err *err) {
    if (prune_layout_declare(c->layout, w, err) || stamp(in, w, err) || dw_gguf_begin(w, err)) return -1;
    if (write_data(c->layout, w, c->pool, c->bar, err)) return -1;
    return dw_gguf_commit_checked(w, compare_file, c, err);
}

/* Writes the file and compares it with the parent before it replaces an old one. */
static int make_file(const inputs *in, const prune_layout *layout, dw_pool *pool, dw_err *err) {
    const double bytes = layout->data_bytes, t0 = dw_now();
    comparer c = {.layout = layout, .pool = pool, .bar = progress_begin("cutting", "B", 2 * bytes)};
    dw_gguf_writer *w = dw_gguf_writer_new(o.out, err);
    const int rc = w ? write_file(in, w, &c, err) : -1;
    dw_gguf_writer_free(w);
    progress_end(c.bar);
    if (rc) return -1;
    say("%s read, written and synced in %.2f s (%s/s); the parent hashed in %.2f s, compared in %.2f s",
        show_bytes(bytes).text, c.began - t0, show_bytes(bytes / (c.began - t0)).text, in->hash_seconds,
        dw_now() - c.began);
    return 0;
}

/* What the user should know about the file. */
static void tell(const prune_layout *layout, const kit_plan *plan) {
    int least = layout->n_ff[0], most = least;
    for (int l = 0; l < layout->n_layer; l++) {
        if (layout->n_ff[l] < least) least = layout->n_ff[l];
        if (layout->n_ff[l] > most) most = layout->n_ff[l];
    }
    if (layout->n_layer < plan->n_layer) say("layers dropped: %d of %d", plan->n_layer - layout->n_layer, plan->n_layer);
    if (least == most) say("%d layers of %d neurons, architecture '%s'%s", layout->n_layer, most, layout->arch->name, layout->has_padding ? ", filled up with zeros" : "");
    else say("%d layers of %d to %d neurons, architecture '%s'", layout->n_layer, least, most, layout->arch->name);
    if (layout->n_repaired) say("down of %zu layers is repaired (%s%s)", layout->n_repaired, o.repair, o.sequential ? ", in order of the layers" : "");
    if (layout->n_encoded && !layout->source)
        warn("down of %zu layers is encoded again from what was encoded before; 16 bits are the better source (--source)", layout->n_encoded);
}

/* The Gram matrices of the statistics. */
static int open_gram(kit_gram *gram, const inputs *in, dw_err *err) {
    kit_stats s = {0};
    char *path = kit_gram_path(o.stats, err);
    const int rc = !path || kit_stats_read(&s, o.stats, err) || kit_stats_check_model(&s, o.stats, o.model, in->model_sha256, err) ||
                   kit_gram_open(gram, path, err) || kit_gram_check_stats(gram, path, &s, err) ? -1 : 0;
    kit_stats_release(&s);
    free(path);
    return rc;
}

static void say_text(const char *text) { say("%s", text); }

static int repair(inputs *in, const dw_qtype_row *down_type, dw_pool *pool, dw_err *err) {
    kit_gram gram = {0};
    repairs_task t = {.model = in->model, .source = in->source, .plan = &in->plan, .down_type = down_type, .damp = o.damp, .pool = pool, .gram = &gram,
                      .target = target(), .gap = o.gap, .tell = say_text};
    const calib_request wanted = {.paths = &o.texts, .windows = o.windows, .n_ctx = o.n_ctx};
    if (o.sequential && calib_read(&in->texts, in->model, &wanted, err)) return -1;
    if (o.sequential) t.texts = &in->texts;
    else if (open_gram(&gram, in, err)) return -1;
    t.bar = progress_begin("repairing", "tokens", repairs_tokens(&t));
    const int rc = repairs_make(&in->repairs, &t, err);
    progress_end(t.bar);
    kit_gram_close(&gram);
    return rc;
}

static int check_plan(const inputs *in, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(in->model);
    return in->plan.n_layer == hp->n_layer ? dw_model_need_whole_ffn(in->model, err) : dw_fail(err, "the plan has %d layers, the model %d", in->plan.n_layer, hp->n_layer);
}

static int cut(inputs *in, dw_pool *pool, dw_err *err) {
    const bool same = o.down_type && !strcmp(o.down_type, "same");
    const dw_qtype_row *down_type = o.down_type && !same ? dw_qtype_by_name(o.down_type) : NULL;
    if (is_repaired() && (check_plan(in, err) || repair(in, down_type, pool, err))) return -1;
    const prune_cut_options options = {.source = in->source,
                                       .encode_down = o.down_type != NULL,
                                       .down_type = down_type,
                                       .pad = o.pad,
                                       .repairs = is_repaired() ? &in->repairs : NULL};
    prune_layout layout;
    if ((o.hf && prune_hf_check(in->model, o.checkpoint, o.hf, err)) || prune_layout_init(&layout, in->model, &in->plan, &options, err)) return -1;
    if (o.hf && (layout.is_carrier || layout.n_encoded)) {
        prune_layout_release(&layout);
        return dw_fail(err, "--hf needs one width for all layers (or --pad) and a down matrix as it is, without --down-type");
    }
    tell(&layout, &in->plan);
    int rc = make_file(in, &layout, pool, err);
    prune_layout_release(&layout);
    if (!rc && o.hf) rc = prune_hf_write(o.out, &in->plan, o.checkpoint, o.hf, err);
    return rc;
}

int main(int argc, char **argv) {
    name_types();
    opt_parse(&program, argc, argv);
    if (is_repaired() && !o.sequential != !!o.stats) die_usage("--repair needs statistics with Gram matrices (-s), or --sequential and texts (-f)");
    if (o.sequential && (!is_repaired() || !o.texts.n)) die_usage("--sequential is for --repair lsq and needs calibration texts (-f)");
    if (!o.sequential && (o.texts.n || o.target)) die_usage("-f and --target are for --repair lsq --sequential");
    if (o.stats && !is_repaired()) die_usage("-s is for --repair lsq");
    if (is_repaired()) blas_on_one_thread(argv);
    if (o.source && !o.down_type && !is_repaired()) die_usage("--source is what down is encoded from; give --down-type too");
    if (!o.hf != !o.checkpoint) die_usage("--hf and --checkpoint belong together");
    dw_err err = {0};
    dw_pool *pool = dw_pool_new(tool.threads, &err);
    inputs in = {0};
    const int rc = pool && !open_inputs(&in, &err) ? cut(&in, pool, &err) : -1;
    close_inputs(&in);
    dw_pool_free(pool);
    if (rc) die_err(&err);
    return 0;
}
