/* cut.c - deadwood-cut: a plan and a model become the smaller model.
 *
 *     deadwood cut -m mini.gguf -p plan.tsv -o mini-cut.gguf
 *
 * cutting.h says what moves where.  The parent is read once.  The new file is opened again and compared with the parent
 * before it gets its name. */
#include "base/set.h"
#include "prune/cutting.h"
#include "prune/hf.h"
#include "prune/repairs.h"
#include "prune/scores.h"
#include "kit/hash_cache.h"
#include "kit/blas.h"
#include "kit/calib.h"
#include "kit/lineage.h"
#include "kit/options.h"
#include "kit/progress.h"
#include "kit/talk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_CTX = 512 };

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
    bool pad, sequential, dry_run;
} o = {.damp = DAMPING, .gap = REPAIR_GAP, .n_ctx = N_CTX};

typedef struct repair_name {
    const char *name, *help;
} repair_name;

static const repair_name repair_names[] = {
    {"none", "down keeps its values"},
    {"bias", "down's bias gets the mean of what is lost (prune/repairs.h); needs -s"},
    {"lsq",  "least squares with a ridge towards the original (prune/repair.h)"},
    {0}};

static const opt_row rows[] = {
    {"model", 'm', OPT_PATH, OPT_REQUIRED | OPT_INPUT, &o.model, NULL, "FILE", "the model (GGUF)"},
    {"plan", 'p', OPT_PATH, OPT_REQUIRED | OPT_INPUT, &o.plan, NULL, "FILE", "what stays (made by rank, or by hand)"},
    {"out", 'o', OPT_PATH, OPT_REQUIRED | OPT_NO_BYTE, &o.out, NULL, "FILE", "the smaller model", .holds = KIT_GGUF},
    {"source", 0, OPT_PATH, OPT_INPUT, &o.source, NULL, "FILE",
     "a 16-bit file of the same model: down is encoded from it"},
    {"down-type", 0, OPT_CHOICE, 0, &o.down_type, NULL, "TYPE",
     "the type of down where it must be encoded again; same: each layer keeps its own", OPT_CHOICES(down_types)},
    {"stats", 's', OPT_PATH, OPT_INPUT, &o.stats, NULL, "STATS",
     "statistics of the model: weigh errors where down is encoded; for --repair bias; for --repair lsq with STATS.gram "
     "(collect --gram)"},
    {"pad", 0, OPT_FLAG, 0, &o.pad, NULL, NULL,
     "zero neurons up to one width instead of an architecture with unequal ones"},
    {"dry-run", 0, OPT_FLAG, OPT_NO_BYTE, &o.dry_run, NULL, NULL,
     "print the types and bytes of the new file; write nothing"},
    {.kind = OPT_GROUP, .help = "repair"},
    {"repair", 0, OPT_CHOICE, 0, &o.repair, NULL, "NAME", "make up for what is cut; needs -s, or --sequential with -f",
     OPT_CHOICES_HELP(repair_names, repair_name)},
    {"sequential", 0, OPT_FLAG, 0, &o.sequential, NULL, NULL,
     "repair the layers in order, each on the inputs that the cut layers below give it"},
    {"text", 'f', OPT_TEXTS, OPT_INPUT, &o.texts, NULL, "TEXT", "calibration texts for --sequential"},
    {"ctx", 'c', OPT_INT, 0, &o.n_ctx, NULL, "N", "tokens of a window; default: 512", .min = 1, .max = 1 << 20},
    {"windows", 0, OPT_RANGE, 0, &o.windows, NULL, "A-B", "only windows A to B of every text; 20 is 1-20"},
    {"target", 0, OPT_CHOICE, 0, &o.target, NULL, "NAME", "what --sequential fits to; default: dense",
     OPT_CHOICES_HELP(repair_targets, repair_target)},
    {"gap", 0, OPT_REAL, 0, &o.gap, NULL, "R", "share of the residual stream's gap that the target dense adds; default: 0.5",
     .min = 0, .max = 1},
    {"damp", 0, OPT_REAL, 0, &o.damp, NULL, "R", "ridge, relative to the median square of the inputs; default: 0.01",
     .min = 1e-9, .max = 100},
    {.kind = OPT_GROUP, .help = "for transformers"},
    {"hf", 0, OPT_PATH, OPT_NO_BYTE | OPT_FOLDER, &o.hf, NULL, "DIR",
     "write a checkpoint folder too (16 or 32 bits, one width); needs --checkpoint"},
    {"checkpoint", 0, OPT_PATH, OPT_NO_BYTE, &o.checkpoint, NULL, "DIR",
     "the folder that the model came from: its config.json and tokenizer go into that of --hf"},
    OPT_COMMON,
    {0}};

static const opt_program program = {
    .name = "cut",
    .summary = "remove the neurons that a plan does not keep, and the layers that it drops",
    .usage =
        "-m M.gguf -p plan.tsv -o M2.gguf [--repair lsq -s stats.h5] [--source M16.gguf] [--down-type TYPE] [--pad] "
        "[--hf DIR]",
    .about =
        "A neuron is a row of gate and up and a column of down.  Rows are copied as bytes in every type.  Columns are "
        "copied block for block where the kept neurons are whole blocks of down's type: any neurons in 16 and 32 "
        "bits, groups of 32 in Q4_0 to Q8_0 and IQ4_NL, groups of 256 in K types.  Otherwise --down-type encodes down "
        "again.  Encoding what was encoded loses twice, so give the 16-bit file with --source.  With -s errors are "
        "weighed by the mean square of each input, as requant -s does.\n"
        "\n"
        "Equal widths keep the architecture.  Unequal ones are stored as deci (llama, mistral, qwen2) or openelm "
        "(qwen3 without an output matrix of its own), which llama.cpp loads; --pad keeps the architecture where no "
        "heads are cut, and fills up with zero neurons, which change no result but cost size and time.\n"
        "\n"
        "--repair lsq fits the columns of down that stay so that each layer writes what it wrote before, as far as it "
        "can: from STATS.gram, or with --sequential on the texts, layer by layer.  down is then encoded anew, in the "
        "type that it has unless --down-type says another.  --repair bias gives back the mean of what is lost, as a "
        "bias of down, and leaves down as it is; llama and deci have such a bias (4 bytes for each value of the "
        "embedding and layer, which rank --bytes does not know), and qwen2 becomes deci for it.\n"
        "\n"
        "Where the plan cuts heads (rank --heads), q, k and v lose rows and o loses columns; --repair lsq with -s "
        "repairs o, too (collect --gram down+o).  With --sequential give -s and -f then: o comes from the "
        "statistics.  llama and qwen3 keep their architecture when all layers have the same number of heads; qwen2 "
        "becomes deci.\n"
        "\n"
        "A plan that names the hash of its model cuts only that model.  The new file is opened and every row compared "
        "with the parent's before it replaces an old file.",
    .example = "deadwood cut -m mini.gguf -p plan.tsv -o mini-cut.gguf\n"
               "deadwood cut -m mini.gguf -p plan.tsv -o mini-cut.gguf --repair lsq --sequential -f "
               "experiments/texts/calib/*.txt\n"
               "deadwood cut -m 7b-q4_0.gguf -p plan.tsv -o 7b-cut.gguf --source 7b-bf16.gguf --down-type same",
    .rows = rows};

typedef struct inputs {
    dw_model *model, *source;
    kit_plan plan;
    repairs repairs;   // with --repair
    kit_stats stats;   // with -s
    calib_texts texts; // with --sequential
    char model_sha256[65];
    double hash_seconds;
} inputs;

static bool is_repaired(void) { return o.repair && strcmp(o.repair, "none") != 0; }
static bool is_fitted(void) { return o.repair && !strcmp(o.repair, "lsq"); }
static const repair_target *target(void) { return repair_target_find(o.target ? o.target : "dense"); }

static void name_types(void) {
    size_t n = 1;
    for (const dw_qtype_name *t = dw_encodable_names; t->name; t++) down_types[n++].name = t->name;
}

/* A plan of another model says so before a neuron of it is missed. */
static int read_plan(inputs *in, const dw_hparams *hp, dw_err *err) {
    kit_plan of_any;
    int rc = 0;
    if (!kit_plan_read(&of_any, o.plan, NULL, 0, &(dw_err){0})) {
        rc = kit_plan_check_model(&of_any, o.plan, o.model, in->model_sha256, err);
        kit_plan_release(&of_any);
    }
    return rc ? rc : kit_plan_read(&in->plan, o.plan, hp->n_ff, hp->n_layer, err);
}

static int open_inputs(inputs *in, dw_err *err) {
    *in = (inputs){.model = dw_model_open(o.model, err)};
    if (!in->model || lineage_check(dw_model_gguf(in->model), err) || prune_need_cuttable(in->model, err)) return -1;
    const dw_hparams *hp = dw_model_hparams(in->model);
    if (o.source && !(in->source = dw_model_open(o.source, err))) return -1;
    if (o.source && lineage_check_texts_of_model(dw_model_gguf(in->model), dw_model_gguf(in->source), err)) return -1;
    const double t0 = dw_now();
    kit_sha256_gguf(dw_model_gguf(in->model), in->model_sha256);
    in->hash_seconds = dw_now() - t0;
    if (read_plan(in, hp, err)) return -1;
    if (!in->plan.model_sha256[0])
        warn("'%s' does not say for which model it was made; only its widths are checked", o.plan);
    if (!o.stats) return 0;
    if (kit_stats_open(&in->stats, o.stats, err)) return -1;
    if (kit_stats_check_model(&in->stats, o.stats, o.model, in->model_sha256, err)) return -1;
    return kit_stats_check_shape(&in->stats, o.stats, hp->n_layer, hp->n_embd, hp->n_ff, err);
}

static void close_inputs(inputs *in) {
    repairs_release(&in->repairs);
    kit_stats_release(&in->stats);
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
    const struct {
        const char *name, *value;
    } facts[] = {{"metric", p->metric},
                 {"rate", wanted},
                 {"rate_reached", reached},
                 {"group", group},
                 {"allocate", p->allocate}};
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        if (lineage_fact(l, facts[i].name, facts[i].value, err)) return -1;
    return 0;
}

static bool cuts_heads(const inputs *in) {
    const dw_hparams *hp = dw_model_hparams(in->model);
    for (int l = 0; l < in->plan.n_layer; l++)
        if (in->plan.layer[l].n_kv && in->plan.layer[l].n_kv < hp->n_head_kv[l]) return true;
    return false;
}

static int stamp_heads(lineage *l, const inputs *in, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(in->model);
    int kept = 0, all = 0;
    char words[64];
    for (int i = 0; i < in->plan.n_layer; i++) {
        const kit_plan_layer *p = &in->plan.layer[i];
        if (p->drop) continue;
        kept += p->n_kv ? p->n_kv : hp->n_head_kv[i], all += hp->n_head_kv[i];
    }
    snprintf(words, sizeof words, "%d of %d", kept, all);
    return cuts_heads(in) ? lineage_fact(l, "kv_heads", words, err) : 0;
}

static int stamp_layers(lineage *l, const kit_plan *p, dw_err *err) {
    int dropped = 0;
    char words[64];
    for (int i = 0; i < p->n_layer; i++) dropped += p->layer[i].drop;
    snprintf(words, sizeof words, "%d of %d", dropped, p->n_layer);
    return dropped ? lineage_fact(l, "layers_dropped", words, err) : 0;
}

/* What was repaired, how, and with which texts. */
static int stamp_repair(lineage *l, const inputs *in, dw_err *err) {
    char words[64];
    if (!is_repaired()) return 0;
    snprintf(words, sizeof words, "%s%s%s", o.repair, o.sequential ? "-sequential-" : "",
             o.sequential ? target()->name : "");
    if (lineage_fact(l, "repair", words, err)) return -1;
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

static int stamp_inputs(lineage *l, const inputs *in, dw_err *err) {
    if (lineage_input_hashed(l, o.model, in->model_sha256, err) || lineage_input(l, o.plan, err)) return -1;
    if (stamp_plan(l, &in->plan, err) || (o.source && lineage_input(l, o.source, err))) return -1;
    return o.stats ? lineage_input(l, o.stats, err) : 0;
}

/* What tells texts apart: file and tokens.  free() */
static char *identity(const char *sha256, const char *blocks, dw_err *err) {
    return dw_format(err, "%s %s", sha256, blocks);
}

/* The texts of the statistics that the plan does not have. */
static int stamp_other_texts(lineage *l, const inputs *in, dw_err *err) {
    dw_set of_plan = {0};
    int rc = 0;
    for (size_t i = 0; i < in->plan.n_text && !rc; i++) {
        char *id = identity(in->plan.text[i].sha256, in->plan.text[i].blocks, err);
        rc = id && dw_set_add(&of_plan, id, strlen(id), err) >= 0 ? 0 : -1;
        free(id);
    }
    for (size_t i = 0; i < in->stats.n_text && !rc; i++) {
        const kit_stats_text *t = &in->stats.text[i];
        char *id = identity(t->sha256, t->blocks, err);
        if (!id) rc = -1;
        else if (!dw_set_has(&of_plan, id, strlen(id))) rc = lineage_texts(l, t, 1, err);
        free(id);
    }
    dw_set_free(&of_plan);
    return rc;
}

/* The texts of the plan, of the statistics those that the plan does not have, and those of the source's weights. */
static int stamp_texts(lineage *l, const inputs *in, dw_err *err) {
    if (lineage_plan_texts(l, in->plan.text, in->plan.n_text, err)) return -1;
    if (o.stats && stamp_other_texts(l, in, err)) return -1;
    return o.source ? lineage_texts_of_model(l, dw_model_gguf(in->source), err) : 0;
}

static int stamp(const inputs *in, dw_gguf_writer *w, dw_err *err) {
    lineage *l = lineage_new(&program, dw_model_gguf(in->model), err);
    int rc = l ? stamp_inputs(l, in, err) : -1;
    if (!rc) rc = stamp_layers(l, &in->plan, err);
    if (!rc) rc = stamp_heads(l, in, err);
    if (!rc) rc = stamp_repair(l, in, err);
    if (!rc) rc = stamp_texts(l, in, err);
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

/* rank --bytes does not know what a repair adds: biases, and the hashes of its texts in the lineage, about three bytes
 * a token. */
static void check_size(const inputs *in) {
    const double bytes = (double)dw_file_bytes(o.out), most = in->plan.most_bytes;
    if (most > 0 && bytes > most)
        warn("'%s' has %.0f bytes, and the plan is for %.0f at most; rank with --bytes %.0f smaller", o.out, bytes,
             most, bytes - most);
}

static void tell_times(double hashing, double writing, double comparing) {
    const double bytes = (double)dw_file_bytes(o.out);
    char others[96] = "";
    if (hashing + comparing >= 0.1)
        snprintf(others, sizeof others, "; the parent hashed in %.2f s, compared in %.2f s", hashing, comparing);
    say("%s written and synced in %.2f s (%s/s)%s", show_bytes(bytes).text, writing, show_bytes(bytes / writing).text,
        others);
}

/* Writes the file and compares it with the parent before it replaces an old one. */
static int make_file(const inputs *in, const prune_layout *layout, dw_pool *pool, dw_err *err) {
    const double t0 = dw_now();
    comparer c = {.layout = layout, .pool = pool, .bar = progress_begin("cutting", "B", 2 * layout->data_bytes)};
    dw_gguf_writer *w = dw_gguf_writer_new(o.out, err);
    const int rc = w ? write_file(in, w, &c, err) : -1;
    dw_gguf_writer_free(w);
    progress_end(c.bar);
    if (rc) return -1;
    tell_times(in->hash_seconds, c.began - t0, dw_now() - c.began);
    check_size(in);
    return 0;
}

/* Widths that were multiples of 256 and are not any more: K types do not fit down then. */
static bool leaves_k_blocks(const prune_layout *layout) {
    const int *n_ff = dw_model_hparams(layout->parent)->n_ff;
    for (int l = 0; l < layout->n_layer; l++)
        if (layout->n_ff[l] % 256 && n_ff[layout->layer_of[l]] % 256 == 0) return true;
    return false;
}

static void tell_heads(const prune_layout *layout) {
    const dw_hparams *hp = dw_model_hparams(layout->parent);
    int kept = 0, all = 0;
    for (int l = 0; l < layout->n_layer; l++) kept += layout->n_head_kv[l], all += hp->n_head_kv[layout->layer_of[l]];
    if (!layout->cuts_heads) return;
    say("heads: %d of %d KV heads stay, each with its query heads", kept, all);
    if (layout->n_repaired_o) say("o of %zu layers is repaired", layout->n_repaired_o);
    if (o.pad) say("--pad fills neurons up, not heads, so the architecture may change");
}

static void warn_again(const char *matrix, size_t n_layer) {
    if (n_layer)
        warn("%s of %zu layer%s is encoded again from what was encoded before; 16 bits are the better source "
             "(--source)",
             matrix, n_layer, plural((double)n_layer));
}

static void tell_down(const prune_layout *layout) {
    if (layout->n_biases) say("down of %zu layers gets the mean of what is lost as its bias", layout->n_biases);
    if (layout->n_repaired)
        say("down of %zu layers is repaired (%s%s)", layout->n_repaired, o.repair,
            o.sequential ? ", in order of the layers" : "");
    warn_again("down", layout->n_down_again);
    warn_again("o", layout->n_o_again);
    if (leaves_k_blocks(layout))
        say("some widths are no multiples of 256, so a requant to K types will store ffn_down in larger types "
            "(fallbacks); rank --multiple 256 avoids that");
}

/* What the user should know about the file. */
static void tell(const prune_layout *layout, const kit_plan *plan) {
    int least = layout->n_ff[0], most = least;
    for (int l = 0; l < layout->n_layer; l++) {
        if (layout->n_ff[l] < least) least = layout->n_ff[l];
        if (layout->n_ff[l] > most) most = layout->n_ff[l];
    }
    const char *arch = layout->arch->name, *padding = layout->has_padding ? ", filled up with zeros" : "";
    if (layout->n_layer < plan->n_layer)
        say("layers dropped: %d of %d", plan->n_layer - layout->n_layer, plan->n_layer);
    if (least == most)
        say("%d layers of %d neurons, architecture '%s'%s", layout->n_layer, most, arch, padding);
    else
        say("%d layers of %d to %d neurons, architecture '%s'", layout->n_layer, least, most, arch);
    tell_heads(layout);
    tell_down(layout);
}

static int print_sizes(const prune_layout *layout, dw_err *err) {
    kit_sizes sizes;
    prune_layout_sizes(layout, &sizes);
    char *text = kit_sizes_table(&sizes, err);
    const int rc = text ? prune_write_text("-", text, err) : -1;
    free(text);
    return rc;
}

/* The Gram matrices of the statistics. */
static int open_gram(kit_gram *gram, const inputs *in, dw_err *err) {
    char *path = kit_gram_path(o.stats, err);
    int rc = path ? kit_gram_open(gram, path, err) : -1;
    if (!rc && kit_gram_check_stats(gram, path, &in->stats, err)) {
        kit_gram_close(gram);
        rc = -1;
    }
    free(path);
    return rc;
}

static void say_text(const char *text) { say("%s", text); }

static int repair(inputs *in, const dw_qtype_row *down_type, dw_pool *pool, dw_err *err) {
    kit_gram gram = {0};
    damping_report report = {.tell = say_text, .what = ""};
    repairs_task t = {.model = in->model,
                      .source = in->source,
                      .plan = &in->plan,
                      .down_type = down_type,
                      .damp = o.damp,
                      .pool = pool,
                      .mean = is_fitted() ? NULL : &in->stats,
                      .target = target(),
                      .gap = o.gap,
                      .report = &report};
    const calib_request wanted = {.paths = &o.texts, .windows = o.windows, .n_ctx = o.n_ctx};
    if (o.sequential && calib_read(&in->texts, in->model, &wanted, err)) return -1;
    if (o.sequential) t.texts = &in->texts;
    if (is_fitted() && o.stats) {
        if (open_gram(&gram, in, err)) return -1;
        t.gram = &gram;
    }
    t.bar = progress_begin("repairing", t.texts ? "tokens" : "layers", repairs_steps(&t));
    const int rc = repairs_make(&in->repairs, &t, err);
    progress_end(t.bar);
    damping_report_end(&report);
    kit_gram_close(&gram);
    return rc;
}

/* What is known only when the plan is read. */
static int check_repair(const inputs *in, dw_err *err) {
    if (is_fitted() && o.sequential && o.stats && !cuts_heads(in))
        return dw_fail(err, "-s and --sequential together are for plans that cut heads; give one of them");
    return is_fitted() || !is_repaired() ? 0 : kit_stats_check_neurons(&in->stats, err);
}

static int check_hf(const prune_layout *layout, dw_err *err) {
    if (o.hf && (layout->cuts_heads || layout->n_biases))
        return dw_fail(err, "--hf cannot write models whose heads are cut, or whose down has a bias");
    if (!o.hf || (!layout->is_carrier && !layout->n_encoded)) return 0;
    return dw_fail(err,
                   "--hf needs one width for all layers (or --pad) and a down matrix as it is, without --down-type");
}

static int make_layout(prune_layout *layout, const inputs *in, const prune_cut_options *options, dw_err *err) {
    if (prune_layout_init(layout, in->model, &in->plan, options, err)) return -1;
    if (!check_hf(layout, err)) return 0;
    prune_layout_release(layout);
    return -1;
}

/* The first layout refuses what no repair can change, before a repair takes its time.  A dry run ends with it.  A
 * repaired down is always encoded. */
static int choose_layout(prune_layout *layout, inputs *in, dw_pool *pool, dw_err *err) {
    const bool same = o.down_type && !strcmp(o.down_type, "same"), fits = is_fitted();
    prune_cut_options options = {.source = in->source,
                                 .encode_down = o.down_type || fits,
                                 .pad = o.pad,
                                 .coming = {.down = fits, .o = fits && o.stats, .bias = is_repaired() && !fits}};
    if (o.down_type && !same) options.down_type = dw_qtype_by_name(o.down_type);
    if (o.stats) options.stats = &in->stats;
    if (is_repaired() && (prune_check_plan(in->model, &in->plan, err) || check_repair(in, err))) return -1;
    if (make_layout(layout, in, &options, err)) return -1;
    if (!is_repaired() || o.dry_run) return 0;
    prune_layout_release(layout);
    if (repair(in, options.down_type, pool, err)) return -1;
    options.repairs = &in->repairs;
    return make_layout(layout, in, &options, err);
}

static int cut(inputs *in, dw_pool *pool, dw_err *err) {
    prune_layout layout;
    if (o.hf && prune_hf_check(in->model, o.checkpoint, o.hf, err)) return -1;
    if (choose_layout(&layout, in, pool, err)) return -1;
    tell(&layout, &in->plan);
    int rc = o.dry_run ? print_sizes(&layout, err) : make_file(in, &layout, pool, err);
    prune_layout_release(&layout);
    if (!rc && o.hf && !o.dry_run) rc = prune_hf_write(o.out, &in->plan, o.checkpoint, o.hf, err);
    return rc;
}

static void check_usage(void) {
    if (is_fitted() && !o.sequential && !o.stats)
        die_usage("--repair needs statistics with Gram matrices (-s), or --sequential and texts (-f)");
    if (is_repaired() && !is_fitted() && !o.stats) die_usage("--repair bias needs statistics (-s)");
    if (o.sequential && (!is_fitted() || !o.texts.n))
        die_usage("--sequential is for --repair lsq and needs calibration texts (-f)");
    const bool has_gap = opt_is_given("gap"), has_windows = opt_is_given("windows") || opt_is_given("ctx");
    if (!o.sequential && (o.texts.n || o.target || has_windows || has_gap))
        die_usage("-f, -c, --windows, --target and --gap are for --repair lsq --sequential");
    if (has_gap && target()->dense == 0) die_usage("--gap is for the targets dense and blend");
    if (opt_is_given("damp") && !is_fitted()) die_usage("--damp is for --repair lsq");
    if (o.stats && !is_repaired() && !o.down_type)
        die_usage("-s is for --down-type, where down is encoded, and for --repair");
    if (o.source && !o.down_type && !is_fitted())
        die_usage("--source is what down is encoded from; give --down-type too");
    if (!o.hf != !o.checkpoint) die_usage("--hf and --checkpoint belong together");
}

int main(int argc, char **argv) {
    name_types();
    opt_parse(&program, argc, argv);
    check_usage();
    if (is_fitted()) kit_blas_start(argv);
    dw_err err = {0};
    dw_pool *pool = dw_pool_new(tool.threads, &err);
    inputs in = {0};
    const int rc = pool && !open_inputs(&in, &err) ? cut(&in, pool, &err) : -1;
    close_inputs(&in);
    dw_pool_free(pool);
    if (rc) die_err(&err);
    return 0;
}
