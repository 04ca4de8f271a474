/* gate.c - deadwood-gate: statistics and a model become a model that skips neurons at run time.
 *
 *     deadwood gate -m mini.gguf -s stats.h5 -o mini-gated.gguf --rule cats --activity 0.3
 *
 * Every tensor of the model is copied; beside them stand the transposed copies of down (down_t.h) and, as keys, the rule with a
 * threshold a layer (rules.h).  Then the file is opened again and compared. */
#include "formats/ffn_gated.h"
#include "kit/lineage.h"
#include "kit/options.h"
#include "kit/progress.h"
#include "kit/talk.h"
#include "model/model.h"
#include "predict/down_t.h"
#include "predict/rules.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct { const char *name; } groups[] = {{"1"}, {"32"}, {"64"}, {"128"}, {0}};

static struct {
    const char *model, *stats, *out, *rule, *group, *source;
    double activity;
    bool force;
} o;

// clang-format off
static const opt_row rows[] = {
    {"model", 'm', OPT_PATH, OPT_REQUIRED | OPT_INPUT, &o.model, NULL, "FILE", "the model (GGUF)"},
    {"stats", 's', OPT_PATH, OPT_REQUIRED | OPT_INPUT, &o.stats, NULL, "FILE", "statistics of that model (collect)"},
    {"out", 'o', OPT_PATH, OPT_REQUIRED | OPT_NO_BYTE, &o.out, NULL, "FILE", "the gated model"},
    {"rule", 0, OPT_CHOICE, OPT_REQUIRED, &o.rule, NULL, "NAME", "what is held against the threshold", OPT_CHOICES(predict_rules)},
    {"activity", 0, OPT_REAL, OPT_REQUIRED, &o.activity, NULL, "A", "share of each layer's neurons to be computed", .min = 0.001, .max = 1},
    {"group", 0, OPT_CHOICE, 0, &o.group, "1", "N", "neurons that are open or closed together", OPT_CHOICES(groups)},
    {"source", 0, OPT_PATH, OPT_INPUT, &o.source, NULL, "FILE", "a 16-bit file of the same model: transposed copies are encoded from it"},
    {"force", 0, OPT_FLAG, 0, &o.force, NULL, NULL, "accepted for older scripts; every layer gets its threshold"},
    OPT_COMMON, {0}};

static opt_program program = {
    .name = "gate",
    .summary = "thresholds that decide at run time which neurons are computed",
    .usage = "-m M.gguf -s stats.h5 -o M2.gguf --rule NAME --activity A [--group N] [--source M16.gguf]",
    .example = "deadwood gate -m mini.gguf -s stats.h5 -o mini-gated.gguf --rule cats --activity 0.3\n"
               "deadwood gate -m q4.gguf -s stats.h5 -o gated.gguf --rule group-max --group 64 --activity 0.5 --source bf16.gguf",
    .rows = rows};
// clang-format on

static const char about[] = "A group of neurons is open for a token when the rule's value reaches the layer's "
                            "threshold; closed neurons count as zero, and "
                            "their rows of up and columns of down are not read.  The threshold of each layer is the "
                            "quantile of the value on the texts that the "
                            "statistics were collected from, so that a share --activity of the neurons is open there.  "
                            "On other texts it is another share, and "
                            "what the first layers leave out changes what the later ones see: what is reached in the "
                            "end, score shows as coverage.\n"
                            "\n"
                            "Down is stored a second time, transposed, a row for each neuron: exactly in 16 and 32 "
                            "bits.  In blocks it is encoded again, from the 16-bit "
                            "file of --source or else from what it decodes to, which loses a second time; how much is "
                            "said.  Whether skipping is "
                            "faster is not stored: the engine measures it where the model runs, and where it is not, "
                            "computes closed neurons and sets them to zero.\n"
                            "\n"
                            "Stock llama.cpp refuses such a file.  It is opened again and every tensor compared before "
                            "this program says that it is done.\n"
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
} inputs;

typedef struct gating { // what is added, by layer
    int n_layer;
    float *threshold, *activity;
    predict_down_t *down_t;
    double parent_bytes, added_bytes;
} gating;

/* ---- inputs ------------------------------------------------------------------------------------------------- */

static int check_stats(const inputs *in, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(in->model);
    if (kit_stats_check_model(&in->stats, o.stats, o.model, in->model_sha256, err)) return -1;
    return kit_stats_check_shape(&in->stats, hp->n_layer, hp->n_embd, hp->n_ff, err) ? dw_fail_in(err, "'%s'", o.stats)
                                                                                     : 0;
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
    return in->source ? dw_model_check_source(in->model, in->source, err) : -1;
}

static int open_inputs(inputs *in, dw_err *err) {
    in->group = atoi(o.group);
    in->model = dw_model_open(o.model, err);
    if (!in->model || lineage_check(dw_model_gguf(in->model), err) || dw_model_need_whole_ffn(in->model, err))
        return -1;
    if (dw_gguf_find(dw_model_gguf(in->model), DW_KEY_GATE_RULE))
        return dw_fail(err, "'%s' is gated already; gate the model that it was made from", o.model);
    if (kit_stats_open(&in->stats, o.stats, err)) return -1;
    in->has_stats = true;
    dw_gguf_sha256(dw_model_gguf(in->model), in->model_sha256);
    return check_stats(in, err) ? -1 : open_source(in, err);
}

static void close_inputs(inputs *in) {
    if (in->has_stats) kit_stats_release(&in->stats);
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
}

static int choose_threshold(gating *g, const inputs *in, int l, dw_err *err) {
    predict_values values;
    if (kit_stats_need_layer(&in->stats, l, err)) return -1;
    if (predict_values_of(&values, predict_rule_find(o.rule), in->group, &in->stats.layer[l], err)) return -1;
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

static int decide(gating *g, const inputs *in, dw_err *err) {
    const dw_gguf *gguf = dw_model_gguf(in->model);
    if (gating_init(g, in, err)) return -1;
    for (int l = 0; l < g->n_layer; l++) {
        if (choose_threshold(g, in, l, err)) return dw_fail_in(err, "layer %d", l);
        choose_down_t(g, in, l);
    }
    for (size_t i = 0; i < dw_gguf_n_tensors(gguf); i++) g->parent_bytes += (double)dw_gguf_tensor(gguf, i)->n_bytes;
    return 0;
}

/* ---- writing ------------------------------------------------------------------------------------------------ */

static int stamp(const inputs *in, dw_gguf_writer *w, dw_err *err) {
    lineage *l = lineage_new(&program, dw_model_gguf(in->model), err);
    int rc = !l || lineage_input_hashed(l, o.model, in->model_sha256, err) || lineage_input(l, o.stats, err) ? -1 : 0;
    if (!rc && o.source) rc = lineage_input(l, o.source, err);
    if (!rc) rc = lineage_texts(l, in->stats.text, in->stats.n_text, err);
    if (!rc) rc = lineage_write(l, w, err);
    lineage_free(l);
    return rc;
}

static int declare(const inputs *in, const gating *g, dw_gguf_writer *w, dw_err *err) {
    const dw_gguf *parent = dw_model_gguf(in->model);
    const size_t n = (size_t)g->n_layer;
    dw_gguf_set_keys(w, parent);
    dw_gguf_set_text(w, DW_KEY_GATE_RULE, o.rule);
    dw_gguf_set_u32(w, DW_KEY_GATE_GROUP, (uint32_t)in->group);
    dw_gguf_set_array(w, DW_KEY_GATE_THRESHOLD, DW_KV_F32, g->threshold, n);
    dw_gguf_set_array(w, DW_KEY_GATE_ACTIVITY, DW_KV_F32, g->activity, n);
    for (size_t i = 0; i < dw_gguf_n_tensors(parent); i++) {
        const dw_tensor *t = dw_gguf_tensor(parent, i);
        dw_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne);
    }
    for (const predict_down_t *t = g->down_t; t < g->down_t + g->n_layer; t++)
        dw_gguf_add_tensor(w, t->name, t->type, 2, (size_t[]){t->n_embd, t->n_ff});
    return stamp(in, w, err);
}

static int write_data(const inputs *in, gating *g, kit_stream *s, dw_err *err) {
    const dw_gguf *parent = dw_model_gguf(in->model);
    int rc = 0;
    for (size_t i = 0; i < dw_gguf_n_tensors(parent) && !rc; i++)
        rc = kit_stream_copy(s, dw_gguf_tensor(parent, i), err);
    for (int l = 0; l < g->n_layer && !rc; l++) rc = predict_down_t_write(&g->down_t[l], s, err);
    return rc ? rc : kit_stream_end(s, err);
}

static int write_file(const inputs *in, gating *g, dw_pool *pool, progress *bar, dw_err *err) {
    dw_gguf_writer *w = dw_gguf_writer_new(o.out, err);
    kit_stream *s = w ? kit_stream_new(w, pool, bar, err) : NULL;
    int rc = s && !declare(in, g, w, err) && !dw_gguf_begin(w, err) ? write_data(in, g, s, err) : -1;
    if (!rc) rc = dw_gguf_commit(w, err);
    kit_stream_free(s);
    dw_gguf_writer_free(w);
    return rc;
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

/* What the engine will see of the gate. */
static int compare_gate(const inputs *in, const gating *g, const dw_model *m, dw_err *err) {
    for (int l = 0; l < g->n_layer; l++) {
        const dw_layer_gate *s = &m->net.layer[l].sparse;
        if (!s->down_t.name || s->group != in->group || s->threshold != g->threshold[l] ||
            s->activity != g->activity[l] || s->dense)
            return dw_fail(err, "layer %d: the gate was not written as planned", l);
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

static int compare_file(const inputs *in, const gating *g, dw_pool *pool, progress *bar, dw_err *err) {
    dw_model *m = dw_model_open(o.out, err);
    kit_stream *s = m ? kit_stream_new(NULL, pool, bar, err) : NULL;
    const int rc = s ? compare_all(in, g, m, s, err) : -1;
    kit_stream_free(s);
    dw_model_close(m);
    return rc ? dw_fail_in(err, "'%s'", o.out) : 0;
}

/* ---- the program -------------------------------------------------------------------------------------------- */

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
    say("%s of tensors, %s without the transposed copies; stock llama.cpp cannot load the file",
        show_bytes(g->parent_bytes + g->added_bytes).text, show_bytes(g->parent_bytes).text);
}

/* Writes and compares.  A file that is not what it should be does not stay. */
static int make_file(const inputs *in, gating *g, dw_pool *pool, dw_err *err) {
    const double bytes = g->parent_bytes + g->added_bytes, t0 = dw_now();
    progress *bar = progress_begin("gating", "B", 2 * bytes);
    int rc = write_file(in, g, pool, bar, err);
    const double t1 = dw_now();
    if (!rc && (rc = compare_file(in, g, pool, bar, err))) unlink(o.out);
    progress_end(bar);
    if (rc) return -1;
    tell(in, g);
    say("written and synced in %.2f s (%s/s), compared in %.2f s", t1 - t0, show_bytes(bytes / (t1 - t0)).text,
        dw_now() - t1);
    return 0;
}

static void check_usage(void) {
    const predict_rule *rule = predict_rule_find(o.rule);
    if (!predict_rule_fits(rule, atoi(o.group)))
        die_usage("--rule %s works on groups of %s, not of %s; give --group", rule->name, rule->groups, o.group);
}

int main(int argc, char **argv) {
    write_about();
    opt_parse(&program, argc, argv);
    check_usage();
    dw_err err = {0};
    inputs in = {0};
    gating g = {0};
    dw_pool *pool = dw_pool_new(tool.threads, &err);
    const int rc = pool && !open_inputs(&in, &err) && !decide(&g, &in, &err) ? make_file(&in, &g, pool, &err) : -1;
    gating_release(&g);
    close_inputs(&in);
    dw_pool_free(pool);
    if (rc) die_err(&err);
    return 0;
}
