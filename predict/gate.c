/* gate.c - deadwood-gate: statistics and a model become a model that skips neurons at run time.
 *
 *     deadwood gate -m mini.gguf -s stats.h5 -o mini-gated.gguf --rule cats --activity 0.3
 *
 * Every tensor of the model is copied.  Added are the transposed copies of down (down_t.h) and, as keys, the rule with
 * a threshold per layer (rules.h), or for a control its fixed choice (fixed.h).  The new file is opened and compared
 * before it replaces an old one. */
#include "formats/ffn_gated.h"
#include "kit/hash_cache.h"
#include "kit/lineage.h"
#include "kit/metrics.h"
#include "kit/options.h"
#include "kit/progress.h"
#include "kit/sizes.h"
#include "kit/talk.h"
#include "model/model.h"
#include "predict/down_t.h"
#include "predict/fixed.h"
#include "predict/parts.h"
#include "predict/rules.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct { const char *name; } groups[] = {{"1"}, {"32"}, {"64"}, {"128"}, {0}};

static struct {
    const char *model, *stats, *out, *rule, *group, *source;
    double activity;
    int seed;
    bool dry_run;
} o;

// clang-format off
static const opt_row rows[] = {
    {"model", 'm', OPT_PATH, OPT_REQUIRED | OPT_INPUT, &o.model, NULL, "FILE", "the model (GGUF)"},
    {"stats", 's', OPT_PATH, OPT_INPUT, &o.stats, NULL, "FILE",
     "statistics of that model (collect); --rule random reads none"},
    {"out", 'o', OPT_PATH, OPT_REQUIRED | OPT_NO_BYTE, &o.out, NULL, "FILE", "the gated model", .holds = KIT_GGUF},
    {"rule", 0, OPT_CHOICE, OPT_REQUIRED, &o.rule, NULL, "NAME", "what is compared with the threshold, or a control",
     OPT_CHOICES(predict_rules)},
    {"activity", 0, OPT_REAL, OPT_REQUIRED, &o.activity, NULL, "A", "share of each layer's neurons to be computed",
     .min = 0.001, .max = 1},
    {"group", 0, OPT_CHOICE, 0, &o.group, NULL, "N",
     "neurons that are open or closed together; default: 1, of --rule group-max 64, or 32 where 64 does not divide every width",
     OPT_CHOICES(groups)},
    {"seed", 0, OPT_INT, 0, &o.seed, NULL, "N", "seed of --rule random; other rules draw nothing; default: 0", .min = 0, .max = 2147483647},
    {"source", 0, OPT_PATH, OPT_INPUT, &o.source, NULL, "FILE",
     "a 16-bit file of the same model: transposed copies are encoded from it"},
    {"dry-run", 0, OPT_FLAG, OPT_NO_BYTE, &o.dry_run, NULL, NULL,
     "print the types and bytes of the new file; write nothing"},
    OPT_COMMON, {0}};

static opt_program program = {
    .name = "gate",
    .summary = "thresholds that decide at run time which neurons are computed",
    .usage = "-m M.gguf -s stats.h5 -o M2.gguf --rule NAME --activity A [--group N] [--source M16.gguf]",
    .example = "deadwood gate -m mini.gguf -s stats.h5 -o mini-gated.gguf --rule cats --activity 0.3\n"
               "deadwood gate -m q4.gguf -s stats.h5 -o gated.gguf --rule group-max --group 64 --activity 0.5 "
               "--source bf16.gguf\n"
               "deadwood gate -m mini.gguf -s stats.h5 -o control.gguf --rule static --activity 0.3   # what the "
               "gate must beat",
    .rows = rows};
// clang-format on

static const char about[] =
    "A group of neurons is open for a token when the rule's value reaches the layer's threshold.  Closed neurons count "
    "as "
    "zero, and their rows of up and columns of down are not read.  The threshold of each layer is the quantile of the "
    "value on the texts that the statistics were collected from, so that a share --activity of the neurons is open "
    "there.  "
    "On other texts it is another share, and what the first layers leave out changes what the later ones see.  score "
    "shows the share that is reached in the end as coverage.\n"
    "\n"
    "The rules static and random are controls: they open the same neurons for every token.  Compare a gate with a "
    "control "
    "of the same coverage.\n"
    "\n"
    "Down is stored a second time, transposed, with a row for each neuron: exactly in 16 and 32 bits.  In blocks it is "
    "encoded again, from the 16-bit file of --source or else from what it decodes to, which loses a second time; the "
    "loss "
    "is printed.  Whether skipping is faster is not stored.  Where down has 16 or 32 bits, the engine measures it "
    "where the model runs; where it is slower, closed neurons are computed and set to zero.  Where down has blocks, "
    "closed neurons are always skipped, because down holds other numbers than its copy.\n"
    "\n"
    "Upstream llama.cpp refuses such a file.  The file is opened again and every tensor compared before it gets its "
    "name.\n"
    "\n"
    "rules:\n";

/* The help lists the table's formulas. */
static void write_about(void) {
    char *text = NULL;
    dw_err err = {0};
    dw_append(&text, &err, "%s", about);
    for (const predict_rule *r = predict_rules; r->name; r++)
        dw_append(&text, &err, "  %s: %s; groups of %s (%s)\n", r->name, r->formula, r->groups, r->source);
    if (err.text[0]) die_err(&err);
    program.about = text;
}

typedef struct inputs {
    dw_model *model, *source;
    kit_stats stats;
    bool has_stats;
    char model_sha256[65];
    int group;
    const predict_rule *rule;
    dw_pool *pool;
} inputs;

typedef struct gating { // what is added, by layer
    int n_layer;
    float *threshold, *activity;
    predict_down_t *down_t;
    predict_fixed fixed; // of a control; bias NULL: a rule with thresholds
    double parent_bytes, added_bytes;
} gating;

static bool needs_stats(const predict_rule *rule) {
    return !rule->metric || kit_metric_find(rule->metric)->needs_stats;
}

/* ---- inputs ------------------------------------------------------------------------------------------------- */

static int check_stats(const inputs *in, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(in->model);
    if (kit_stats_check_model(&in->stats, o.stats, o.model, in->model_sha256, err)) return -1;
    return kit_stats_check_shape(&in->stats, o.stats, hp->n_layer, hp->n_embd, hp->n_ff, err);
}

static bool any_blocks(const dw_model *m) {
    for (int l = 0; l < m->net.hp.n_layer; l++)
        if (m->net.layer[l].down.type->block > 1) return true;
    return false;
}

static int open_source(inputs *in, dw_err *err) {
    if (!o.source) return 0;
    if (!any_blocks(in->model)) return dw_fail(err, "down of '%s' is transposed exactly; leave out --source", o.model);
    in->source = dw_model_open(o.source, err);
    if (!in->source || dw_model_check_source(in->model, in->source, err)) return -1;
    return lineage_check_texts_of_model(dw_model_gguf(in->model), dw_model_gguf(in->source), err);
}

/* Of rules that take single neurons these, else 64, or 32 where 64 does not divide every width. */
static void choose_group(inputs *in) {
    if (!o.group) {
        const bool is_of_groups = in->rule->least_group > 1;
        const bool is_64 = kit_widest_group(dw_model_hparams(in->model), 64) == 64;
        o.group = !is_of_groups ? "1" : is_64 ? "64" : "32";
        opt_chosen(&o.group);
    }
    in->group = atoi(o.group);
}

static int open_inputs(inputs *in, dw_err *err) {
    in->rule = predict_rule_find(o.rule);
    in->model = dw_model_open(o.model, err);
    if (!in->model || lineage_check(dw_model_gguf(in->model), err) || dw_model_need_whole_ffn(in->model, err))
        return -1;
    choose_group(in);
    if (dw_gguf_find(dw_model_gguf(in->model), DW_KEY_GATE_RULE))
        return dw_fail(err, "'%s' is gated already; gate the model that it was made from", o.model);
    if (in->group > dw_model_hparams(in->model)->n_ff_max)
        return dw_fail(err, "--group %d: layers of '%s' have at most %d neurons; give a smaller one", in->group,
                       o.model, dw_model_hparams(in->model)->n_ff_max);
    kit_sha256_gguf(dw_model_gguf(in->model), in->model_sha256);
    if (needs_stats(in->rule)) {
        if (kit_stats_open(&in->stats, o.stats, err)) return -1;
        in->has_stats = true;
        if (check_stats(in, err)) return -1;
    }
    return open_source(in, err);
}

static void release_stats(inputs *in) {
    if (in->has_stats) kit_stats_release(&in->stats);
    in->has_stats = false;
}

static void close_inputs(inputs *in) {
    release_stats(in);
    dw_model_close(in->source);
    dw_model_close(in->model);
}

/* ---- what is added ------------------------------------------------------------------------------------------ */

static int gating_init(gating *g, const inputs *in, dw_err *err) {
    const size_t n = (size_t)dw_model_hparams(in->model)->n_layer;
    g->n_layer = (int)n;
    g->threshold = dw_alloc(n, sizeof *g->threshold, "thresholds", err);
    g->activity = dw_alloc(n, sizeof *g->activity, "thresholds", err);
    g->down_t = dw_alloc(n, sizeof *g->down_t, "transposed copies", err);
    return g->threshold && g->activity && g->down_t ? 0 : -1;
}

static void gating_release(gating *g) {
    free(g->threshold);
    free(g->activity);
    free(g->down_t);
    predict_fixed_release(&g->fixed);
}

/* Tensors of a control's layer: A, a and B are zeros (data NULL), b is the choice. */
static void parts_of(const inputs *in, const gating *g, int l, predict_part parts[PREDICT_N_PARTS]) {
    predict_parts_of(l, (size_t)dw_model_hparams(in->model)->n_embd, 1, (size_t)g->fixed.n_groups[l], parts);
    parts[3].data = g->fixed.bias[l];
}

static double fixed_bytes(const inputs *in, const gating *g, int l) {
    predict_part parts[PREDICT_N_PARTS];
    double n = 0;
    parts_of(in, g, l, parts);
    for (int i = 0; i < PREDICT_N_PARTS; i++) n += (double)predict_part_bytes(&parts[i]);
    return n;
}

static int choose_threshold(gating *g, const inputs *in, int l, dw_err *err) {
    predict_values values;
    if (kit_stats_need_layer(&in->stats, l, err)) return -1;
    if (predict_values_of(&values, in->rule, in->group, dw_model_activation(in->model), &in->stats.layer[l], err))
        return -1;
    g->threshold[l] = predict_threshold_for(&values, o.activity);
    g->activity[l] = (float)predict_activity_at(&values, g->threshold[l]);
    say("layer %2d: activity %.4f wanted, %.4f expected at threshold %.6g", l, o.activity, (double)g->activity[l],
        (double)g->threshold[l]);
    return 0;
}

static void choose_down_t(gating *g, const inputs *in, int l) {
    predict_down_t *t = &g->down_t[l];
    const dw_tensor *down = &in->model->net.layer[l].down;
    const bool from_source = in->source && down->type->block > 1;
    *t = (predict_down_t){.from = from_source ? &in->source->net.layer[l].down : down,
                          .type = predict_down_t_type(down),
                          .n_ff = down->ne[0],
                          .n_embd = down->ne[1]};
    snprintf(t->name, sizeof t->name, "blk.%d.ffn_down_t.weight", l);
    g->added_bytes += (double)predict_down_t_bytes(t);
    if (t->type != down->type)
        say("layer %2d: %zu values are no whole number of %s blocks; the transposed copy is %s", l, t->n_embd,
            down->type->name, t->type->name);
}

/* A control's groups. */
static int choose_fixed(gating *g, const inputs *in, dw_err *err) {
    const predict_fixed_options how = {.model = in->model,
                                       .stats = in->has_stats ? &in->stats : NULL,
                                       .metric = kit_metric_find(in->rule->metric),
                                       .pool = in->pool,
                                       .group = in->group,
                                       .activity = o.activity,
                                       .seed = (uint64_t)o.seed};
    if (in->has_stats && kit_stats_check_neurons(&in->stats, err)) return -1;
    if (predict_fixed_choose(&g->fixed, &how, err)) return -1;
    memcpy(g->activity, g->fixed.activity, (size_t)g->n_layer * sizeof *g->activity);
    for (int l = 0; l < g->n_layer; l++) {
        g->added_bytes += fixed_bytes(in, g, l);
        say("layer %2d: activity %.4f wanted, %.4f is open for every token", l, o.activity, (double)g->activity[l]);
    }
    return 0;
}

static int decide(gating *g, const inputs *in, dw_err *err) {
    const dw_gguf *gguf = dw_model_gguf(in->model);
    if (gating_init(g, in, err)) return -1;
    if (in->rule->metric && choose_fixed(g, in, err)) return -1;
    for (int l = 0; l < g->n_layer; l++) {
        if (!in->rule->metric && choose_threshold(g, in, l, err)) return dw_fail_in(err, "layer %d", l);
        choose_down_t(g, in, l);
    }
    for (size_t i = 0; i < dw_gguf_n_tensors(gguf); i++) g->parent_bytes += (double)dw_gguf_tensor(gguf, i)->n_bytes;
    return 0;
}

/* ---- writing ------------------------------------------------------------------------------------------------ */

static int stamp(const inputs *in, dw_gguf_writer *w, dw_err *err) {
    lineage *l = lineage_new(&program, dw_model_gguf(in->model), err);
    int rc = l ? lineage_input_hashed(l, o.model, in->model_sha256, err) : -1;
    if (!rc && in->has_stats) rc = lineage_input(l, o.stats, err);
    if (!rc && o.source) rc = lineage_input(l, o.source, err);
    if (!rc && in->rule->metric) rc = lineage_fact(l, "control", o.rule, err);
    if (!rc && in->has_stats) rc = lineage_texts(l, in->stats.text, in->stats.n_text, err);
    if (!rc && o.source) rc = lineage_texts_of_model(l, dw_model_gguf(in->source), err);
    if (!rc) rc = lineage_write(l, w, err);
    lineage_free(l);
    return rc;
}

static void declare_fixed(const inputs *in, const gating *g, dw_gguf_writer *w) {
    for (int l = 0; g->fixed.bias && l < g->n_layer; l++) {
        predict_part parts[PREDICT_N_PARTS];
        parts_of(in, g, l, parts);
        for (const predict_part *p = parts; p < parts + PREDICT_N_PARTS; p++)
            dw_gguf_add_tensor(w, p->name, p->type, p->n_dims, p->ne);
    }
}

static int declare(const inputs *in, const gating *g, dw_gguf_writer *w, dw_err *err) {
    const dw_gguf *parent = dw_model_gguf(in->model);
    const size_t n = (size_t)g->n_layer;
    dw_gguf_set_keys(w, parent);
    dw_gguf_set_text(w, DW_KEY_GATE_RULE, o.rule);
    dw_gguf_set_u32(w, DW_KEY_GATE_GROUP, (uint32_t)in->group);
    if (!g->fixed.bias) dw_gguf_set_array(w, DW_KEY_GATE_THRESHOLD, DW_KV_F32, g->threshold, n);
    dw_gguf_set_array(w, DW_KEY_GATE_ACTIVITY, DW_KV_F32, g->activity, n);
    for (size_t i = 0; i < dw_gguf_n_tensors(parent); i++) {
        const dw_tensor *t = dw_gguf_tensor(parent, i);
        dw_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne);
    }
    for (const predict_down_t *t = g->down_t; t < g->down_t + g->n_layer; t++)
        dw_gguf_add_tensor(w, t->name, t->type, 2, (size_t[]){t->n_embd, t->n_ff});
    declare_fixed(in, g, w);
    return stamp(in, w, err);
}

static void make_part(void *part_pointer, const kit_piece *piece) {
    const predict_part *p = part_pointer;
    const size_t row_bytes = dw_qtype_row_bytes(p->type, p->ne[0]);
    if (p->data)
        memcpy(piece->out, (const uint8_t *)p->data + piece->first * row_bytes, piece->n * row_bytes);
    else
        memset(piece->out, 0, piece->n * row_bytes);
}

static int write_fixed(const inputs *in, const gating *g, int l, kit_stream *s, dw_err *err) {
    predict_part parts[PREDICT_N_PARTS];
    parts_of(in, g, l, parts);
    for (predict_part *p = parts; p < parts + PREDICT_N_PARTS; p++) {
        const kit_rows r = {
            .n_rows = p->ne[1], .row_bytes = dw_qtype_row_bytes(p->type, p->ne[0]), .make = make_part, .ctx = p};
        if (kit_stream_tensor(s, &r, err)) return -1;
    }
    return 0;
}

static int write_data(const inputs *in, gating *g, kit_stream *s, dw_err *err) {
    const dw_gguf *parent = dw_model_gguf(in->model);
    int rc = 0;
    for (size_t i = 0; i < dw_gguf_n_tensors(parent) && !rc; i++)
        rc = kit_stream_copy(s, dw_gguf_tensor(parent, i), err);
    for (int l = 0; l < g->n_layer && !rc; l++) rc = predict_down_t_write(&g->down_t[l], s, err);
    for (int l = 0; g->fixed.bias && l < g->n_layer && !rc; l++) rc = write_fixed(in, g, l, s, err);
    return rc ? rc : kit_stream_end(s, err);
}

/* ---- comparing ---------------------------------------------------------------------------------------------- */

typedef struct comparison {
    const dw_tensor *parent;
    atomic_bool differ;
} comparison;

static void compare_bytes(void *comparison_pointer, const kit_piece *p) {
    comparison *c = comparison_pointer;
    if (memcmp(c->parent->data + p->first, p->written, p->n)) atomic_store(&c->differ, true);
}

static int compare_tensor(const dw_tensor *t, const dw_tensor *written, kit_stream *s, dw_err *err) {
    comparison c = {.parent = t};
    if (!written || written->type != t->type || written->n_bytes != t->n_bytes || written->ne[0] != t->ne[0])
        return dw_fail(err, "tensor '%s' was not written as planned", t->name);
    const kit_rows r = {
        .n_rows = t->n_bytes, .row_bytes = 1, .written = written->data, .make = compare_bytes, .ctx = &c};
    if (kit_stream_tensor(s, &r, err)) return -1;
    return c.differ ? dw_fail(err, "tensor '%s' differs from its parent", t->name) : 0;
}

static bool is_fixed_as_planned(const inputs *in, const gating *g, int l, const dw_gguf *written) {
    predict_part parts[PREDICT_N_PARTS];
    parts_of(in, g, l, parts);
    const dw_tensor *b = dw_gguf_find_tensor(written, parts[3].name);
    for (int i = 0; i < 3; i++) {
        const dw_tensor *t = dw_gguf_find_tensor(written, parts[i].name);
        for (size_t k = 0; t && k < t->n_bytes; k++)
            if (t->data[k]) return false;
        if (!t || t->n_bytes != predict_part_bytes(&parts[i])) return false;
    }
    return b && b->n_bytes == predict_part_bytes(&parts[3]) && !memcmp(b->data, parts[3].data, b->n_bytes);
}

/* What the engine will see of the gate. */
static int compare_gate(const inputs *in, const gating *g, const dw_model *m, dw_err *err) {
    for (int l = 0; l < g->n_layer; l++) {
        const dw_layer_gate *s = &m->net.layer[l].sparse;
        bool same = s->down_t.name && s->group == in->group && s->activity == g->activity[l] && !s->dense;
        if (same && g->fixed.bias)
            same = is_fixed_as_planned(in, g, l, m->gguf);
        else
            same = same && s->threshold == g->threshold[l];
        if (!same) return dw_fail(err, "layer %d: the gate was not written as planned", l);
    }
    return 0;
}

static int compare_all(const inputs *in, const gating *g, const dw_model *m, kit_stream *s, dw_err *err) {
    const dw_gguf *parent = dw_model_gguf(in->model);
    int rc = compare_gate(in, g, m, err);
    for (size_t i = 0; i < dw_gguf_n_tensors(parent) && !rc; i++) {
        const dw_tensor *t = dw_gguf_tensor(parent, i);
        rc = compare_tensor(t, dw_gguf_find_tensor(m->gguf, t->name), s, err);
    }
    for (int l = 0; l < g->n_layer && !rc; l++)
        rc = predict_down_t_compare(&g->down_t[l], dw_gguf_find_tensor(m->gguf, g->down_t[l].name), s, err);
    return rc ? rc : kit_stream_end(s, err);
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

typedef struct maker {
    const inputs *in;
    gating *g;
    progress *bar;
    double written; // when
} maker;

static int compare_file(void *maker_pointer, const char *path, dw_err *err) {
    maker *k = maker_pointer;
    k->written = dw_now();
    dw_model *m = dw_model_open(path, err);
    kit_stream *s = m ? kit_stream_new(NULL, k->in->pool, k->bar, err) : NULL;
    const int rc = s ? compare_all(k->in, k->g, m, s, err) : -1;
    kit_stream_free(s);
    dw_model_close(m);
    return rc;
}

static int write_file(maker *k, dw_gguf_writer *w, dw_err *err) {
    if (declare(k->in, k->g, w, err) || dw_gguf_begin(w, err)) return -1;
    kit_stream *s = kit_stream_new(w, k->in->pool, k->bar, err);
    const int rc = s ? write_data(k->in, k->g, s, err) : -1;
    kit_stream_free(s);
    return rc ? -1 : dw_gguf_commit_checked(w, compare_file, k, err);
}

/* What was lost, and what it costs. */
static void tell(const inputs *in, const gating *g) {
    double worst = 0;
    int n_again = 0;
    for (const predict_down_t *t = g->down_t; t < g->down_t + g->n_layer; t++) {
        if (predict_down_t_is_exact(t)) continue;
        n_again++;
        if (t->loss > worst) worst = t->loss;
    }
    if (n_again && in->source)
        say("transposed copies of %d layers are encoded from 16 bits: relative RMSE at most %.4f", n_again, worst);
    else if (n_again)
        warn("transposed copies of %d layers are encoded again from what was encoded before: a relative RMSE of at "
             "most %.4f on top; 16 bits are the better source "
             "(--source)",
             n_again, worst);
    say("%s of tensors, %s without what was added; upstream llama.cpp cannot load the file",
        show_bytes(g->parent_bytes + g->added_bytes).text, show_bytes(g->parent_bytes).text);
}

/* Writes the file and compares it before it replaces an old one. */
static int make_file(inputs *in, gating *g, dw_err *err) {
    const double bytes = g->parent_bytes + g->added_bytes, began = dw_now();
    maker k = {.in = in, .g = g, .bar = progress_begin("gating", "B", 2 * bytes)};
    dw_gguf_writer *w = dw_gguf_writer_new(o.out, err);
    const int rc = w ? write_file(&k, w, err) : -1;
    dw_gguf_writer_free(w);
    progress_end(k.bar);
    if (rc) return -1;
    release_stats(in); // its file is closed before anything is said, so that nothing can fail after the warning
    tell(in, g);
    say("written and synced in %.2f s (%s/s), compared in %.2f s", k.written - began,
        show_bytes(bytes / (k.written - began)).text, dw_now() - k.written);
    return 0;
}

static int print_sizes(const inputs *in, const gating *g, dw_err *err) {
    const dw_gguf *parent = dw_model_gguf(in->model);
    kit_sizes sizes = {0};
    for (size_t i = 0; i < dw_gguf_n_tensors(parent); i++) kit_sizes_add_tensor(&sizes, dw_gguf_tensor(parent, i));
    for (int l = 0; l < g->n_layer; l++) {
        const predict_down_t *t = &g->down_t[l];
        kit_sizes_add(&sizes, t->type->name, "transposed", (double)t->n_ff * (double)t->n_embd,
                      (double)predict_down_t_bytes(t));
        predict_part parts[PREDICT_N_PARTS];
        if (g->fixed.bias) parts_of(in, g, l, parts);
        for (const predict_part *p = parts; g->fixed.bias && p < parts + PREDICT_N_PARTS; p++)
            kit_sizes_add(&sizes, p->type->name, "choice", (double)(p->ne[0] * p->ne[1]),
                          (double)predict_part_bytes(p));
    }
    char *text = kit_sizes_table(&sizes, err);
    if (text) fputs(text, stdout);
    free(text);
    return text ? 0 : -1;
}

static void check_usage(void) {
    const predict_rule *rule = predict_rule_find(o.rule);
    if (o.group && !predict_rule_fits(rule, atoi(o.group)))
        die_usage("--rule %s works on groups of %s, not of %s; give --group", rule->name, rule->groups, o.group);
    if (needs_stats(rule) && !o.stats) die_usage("--rule %s needs statistics of the model: -s stats.h5", rule->name);
}

static int make(inputs *in, gating *g, dw_err *err) {
    if (open_inputs(in, err) || decide(g, in, err)) return -1;
    return o.dry_run ? print_sizes(in, g, err) : make_file(in, g, err);
}

int main(int argc, char **argv) {
    write_about();
    opt_parse(&program, argc, argv);
    check_usage();
    dw_err err = {0};
    inputs in = {.pool = dw_pool_new(tool.threads, &err)};
    gating g = {0};
    const int rc = in.pool ? make(&in, &g, &err) : -1;
    gating_release(&g);
    close_inputs(&in);
    dw_pool_free(in.pool);
    if (rc) die_err(&err);
    return 0;
}
