/* train.c - deadwood-train: traces become predictors in a copy of the gated model.
 *
 *     deadwood train -m mini-gated.gguf -x traces.h5 -o mini-predicted.gguf --report predictors.tsv
 *
 * Layers are trained side by side, each on one thread with its own seed, so that neither the number of threads nor an
 * interruption changes a bit.  A finished layer is a record of OUT.part, from which the same command goes on, and from
 * which the file and the report are made at the end. */
#include "formats/ffn_gated.h"
#include "kit/hash_cache.h"
#include "kit/blas.h"
#include "kit/lineage.h"
#include "kit/options.h"
#include "kit/progress.h"
#include "kit/talk.h"
#include "model/model.h"
#include "predict/journal.h"
#include "predict/parts.h"
#include "predict/predict.h"
#include "predict/report.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct { const char *name; } inputs[] = {{"ffn"}, {"previous"}, {0}};

static struct {
    const char *model, *traces, *out, *input, *report;
    int rank, epochs, batch, seed;
    double rate, activity, recall, mass;
} o;

// clang-format off
static const opt_row rows[] = {
    {"model", 'm', OPT_PATH, OPT_REQUIRED | OPT_INPUT, &o.model, NULL, "FILE", "the gated model (gate)"},
    {"traces", 'x', OPT_PATH, OPT_REQUIRED | OPT_INPUT, &o.traces, NULL, "FILE", "traces of that model (trace)"},
    {"out", 'o', OPT_PATH, OPT_REQUIRED | OPT_NO_BYTE | OPT_KEEPS, &o.out, NULL, "FILE", "the model with predictors",
     .holds = KIT_GGUF},
    {"report", 0, OPT_PATH, OPT_NO_BYTE | OPT_OUTPUT, &o.report, NULL, "FILE",
     "write all numbers of all layers (tab-separated)", .holds = KIT_TEXT},
    {.kind = OPT_GROUP, .help = "the predictors"},
    {"rank", 0, OPT_INT, 0, &o.rank, "0", "R", "width of the hidden layer; 0: n_embd / 6, a multiple of 16",
     .min = 0, .max = 65536},
    {"input", 0, OPT_CHOICE, 0, &o.input, "ffn", "NAME",
     "whose normed input they see: ffn, their own layer's, or previous, that of the layer before", OPT_CHOICES(inputs)},
    {"mass", 0, OPT_REAL, 0, &o.mass, "0.98", "M",
     "open as many groups as capture M times the mass that the gate captures",
     .min = 0, .max = 1},
    {"recall", 0, OPT_REAL, 0, &o.recall, "0", "R", "or: as many as find R of the gate's open groups; 0: by --mass",
     .min = 0, .max = 1},
    {"activity", 0, OPT_REAL, 0, &o.activity, "0", "A", "or: the share A of the groups; 0: by --recall or --mass",
     .min = 0, .max = 1},
    {.kind = OPT_GROUP, .help = "training"},
    {"epochs", 0, OPT_INT, 0, &o.epochs, "20", "N", "at most N passes over the training tokens",
     .min = 1, .max = 100000},
    {"seed", 0, OPT_INT, 0, &o.seed, "0", "N", "seed of the first weights and the order of tokens",
     .min = 0, .max = 2147483647},
    {"lr", 0, OPT_REAL, 0, &o.rate, "0.003", "X", "Adam's rate at the beginning; it falls to zero",
     .min = 1e-9, .max = 1},
    {"batch", 0, OPT_INT, 0, &o.batch, "128", "N", "tokens of a step", .min = 1, .max = 65536},
    OPT_COMMON, {0}};
// clang-format on

static const opt_program program = {
    .name = "train",
    .summary = "small networks that predict which groups of neurons matter",
    .usage = "-m GATED.gguf -x traces.h5 -o M2.gguf [--rank R] [--input ffn|previous] [--mass M | --recall R | "
             "--activity A]",
    .about =
        "One network per layer, score = B relu(A h + a) + b with a score for each group, learns which groups carry the "
        "mass, a token's sum ||v_j||^2 a_j^2.  It is written in F16 into a copy of the model, where it decides "
        "instead of the threshold.  First a linear map of the same rank is found in closed form; the network begins "
        "as this map and is trained by logistic loss in which an open group weighs its share of the mass.  Training "
        "stops when the mass at a fixed share of open groups no longer grows on tokens it does not train on.  If the "
        "closed form captures as much there, the closed form is stored.\n\n"
        "Of each text the first eight tenths train, the next tenth chooses (epoch, form, operating point), and the "
        "last tenth, which nothing has seen, is reported.\n\n"
        "Accuracy alone says nothing: with an open share p, always closed is right for 1 - p.  So recall, precision, "
        "the captured mass (mean and 5th percentile of tokens) and the share that is computed are reported, also for "
        "the gate itself, the static choice (always the same groups, as many), the closed form, the trained network "
        "and never.  Where a predictor does not beat the static choice beyond its error, cutting is cheaper.\n\n"
        "Layers that the gate marks dense get none.  When a run is interrupted, OUT.part holds the finished layers; "
        "the same command goes on after them, and one with other inputs or options is refused until OUT.part is "
        "removed.",
    .example = "deadwood train -m mini-gated.gguf -x traces.h5 -o mini-predicted.gguf --report predictors.tsv",
    .rows = rows};

/* ---- a layer's record in the journal ----------------------------------------------------------------------------- */

/* Head, then masses of all methods, A and B in F16, a and b in F32. */
typedef struct record {
    int32_t layer, n_in, rank, n_groups, n_epochs, n_tokens; // n_tokens: held out
    int32_t is_linear, zero;
    predict_tally held_out[PREDICT_LEARN_N_METHODS];
} record;

typedef struct record_view {
    record head;
    const float *mass[PREDICT_LEARN_N_METHODS];
    const uint16_t *a, *b;
    const float *a_bias, *b_bias;
} record_view;

static size_t record_bytes(const record *h) {
    const size_t n_weights = (size_t)h->rank * ((size_t)h->n_in + (size_t)h->n_groups);
    return sizeof *h + 4 * (PREDICT_LEARN_N_METHODS * (size_t)h->n_tokens + (size_t)h->rank + (size_t)h->n_groups) +
           2 * n_weights;
}

static int add_halves(predict_journal *j, const float *v, size_t n, dw_err *err) {
    uint16_t part[1024];
    int rc = 0;
    for (size_t i = 0, now; i < n && !rc; i += now) {
        now = n - i < 1024 ? n - i : 1024;
        for (size_t k = 0; k < now; k++) part[k] = dw_f32_to_f16(v[i + k]);
        rc = predict_journal_add(j, part, now * sizeof *part, err);
    }
    return rc;
}

static int put_weights(predict_journal *j, const predict_network *net, dw_err *err) {
    if (predict_journal_add(j, net->a_bias, (size_t)net->rank * 4, err)) return -1;
    if (predict_journal_add(j, net->b_bias, (size_t)net->n_out * 4, err)) return -1;
    if (add_halves(j, net->a, (size_t)(net->a_bias - net->a), err)) return -1;
    return add_halves(j, net->b, (size_t)(net->b_bias - net->b), err);
}

static int put_record(predict_journal *j, int layer, size_t n_tokens, const predict_learned *r, dw_err *err) {
    const predict_network *net = &r->net;
    record h = {.layer = layer,
                .n_in = net->n_in,
                .rank = net->rank,
                .n_groups = net->n_out,
                .n_epochs = r->n_epochs,
                .n_tokens = (int32_t)n_tokens,
                .is_linear = r->is_linear};
    memcpy(h.held_out, r->held_out, sizeof h.held_out);
    int rc = predict_journal_begin(j, record_bytes(&h), err);
    if (!rc) rc = predict_journal_add(j, &h, sizeof h, err);
    for (int m = 0; m < PREDICT_LEARN_N_METHODS && !rc; m++)
        rc = predict_journal_add(j, r->mass[m], n_tokens * sizeof **r->mass, err);
    if (!rc) rc = put_weights(j, net, err);
    return rc ? -1 : predict_journal_end(j, err);
}

/* The record at its place, which may be unaligned, is copied into memory of its own, which the caller frees. */
static uint8_t *read_record(predict_journal *j, size_t i, record_view *v, dw_err *err) {
    size_t size;
    const uint8_t *bytes = predict_journal_record(j, i, &size, err);
    if (!bytes) return NULL;
    const record *h = &v->head;
    if (size >= sizeof v->head) memcpy(&v->head, bytes, sizeof v->head);
    if (size < sizeof v->head || h->layer < 0 || h->rank < 1 || h->n_in < 1 || h->n_groups < 1 || h->n_tokens < 1 ||
        size != record_bytes(h)) {
        dw_fail(err, "'%s.part' is damaged; remove it", o.out);
        return NULL;
    }
    uint8_t *copy = dw_alloc(size, 1, "a layer", err);
    if (!copy) return NULL;
    memcpy(copy, bytes, size);
    const float *at = (const float *)(const void *)(copy + sizeof *h);
    for (int m = 0; m < PREDICT_LEARN_N_METHODS; m++, at += h->n_tokens) v->mass[m] = at;
    v->a_bias = at;
    v->b_bias = v->a_bias + h->rank;
    v->a = (const uint16_t *)(const void *)(v->b_bias + h->n_groups);
    v->b = v->a + (size_t)h->rank * (size_t)h->n_in;
    return copy;
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

typedef struct run {
    dw_model *model;
    char model_sha256[65], traces_sha256[65];
    traces t;
    int rank;
    size_t n_layer, *record_of; // layers that are traced, by layer: 1 + the record; 0: not yet
    int *layer;                 // (n_layer)
    predict_journal *j;
    progress *bar;
    pthread_mutex_t lock; // of traces, journal, error
    int rc;
    dw_err *err;
} run;

static void show(void *ctx, int n_epochs) { progress_step(((run *)ctx)->bar, n_epochs); }

/* Different for every layer, whatever the order. */
static uint64_t seed_of(int layer) { return ((uint64_t)(unsigned)o.seed << 16) + (uint64_t)layer; }

static int input_layer(int layer) { return !strcmp(o.input, "previous") && layer > 0 ? layer - 1 : layer; }

static int train_layer(run *r, int layer, dw_err *err) {
    const predict_learn_options options = {.rank = r->rank,
                                           .n_epochs = o.epochs,
                                           .n_batch = o.batch,
                                           .rate = o.rate,
                                           .activity = o.activity,
                                           .recall = o.recall,
                                           .mass = o.mass,
                                           .seed = seed_of(layer),
                                           .on_epoch = show,
                                           .ctx = r};
    predict_examples e = {0};
    predict_learned result = {0};
    pthread_mutex_lock(&r->lock);
    int rc = r->rc ? -1 : predict_examples_load(&e, &r->t, layer, input_layer(layer), err);
    pthread_mutex_unlock(&r->lock);
    if (!rc) rc = predict_learn_layer(&result, &e, &options, err);
    pthread_mutex_lock(&r->lock);
    if (!rc) rc = r->rc ? -1 : put_record(r->j, layer, e.n[PREDICT_EXAMPLES_HELD_OUT], &result, err);
    if (!rc) {
        r->record_of[layer] = predict_journal_n_records(r->j);
        say_if_interrupted(predict_journal_kept(r->j));
    }
    pthread_mutex_unlock(&r->lock);
    predict_examples_release(&e);
    predict_learned_release(&result);
    return rc;
}

static void train_task(void *arg, size_t i) {
    run *r = arg;
    dw_err err = {0};
    const int layer = r->layer[i];
    if (r->record_of[layer] || !train_layer(r, layer, &err)) return;
    pthread_mutex_lock(&r->lock);
    if (!r->rc && err.text[0]) dw_fail(r->err, "layer %d: %s", layer, err.text);
    r->rc = -1;
    pthread_mutex_unlock(&r->lock);
}

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

/* The hash says that they belong together; shapes are compared because memory is taken by them. */
static int check_traces(const run *r, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(r->model);
    if (strcmp(r->t.model_sha256, r->model_sha256))
        return dw_fail(err, "'%s' was traced from another model (sha256 %.12s..., '%s' has %.12s...); trace this one",
                       o.traces, r->t.model_sha256, o.model, r->model_sha256);
    bool same = r->t.n_layer == hp->n_layer && r->t.n_embd == hp->n_embd;
    for (int l = 0; same && l < hp->n_layer; l++) {
        const dw_layer_gate *g = &r->model->net.layer[l].sparse;
        same = r->t.layer[l].n_groups == (g->down_t.name && !g->dense ? (hp->n_ff[l] + g->group - 1) / g->group : 0) &&
               (!r->t.layer[l].n_groups || r->t.layer[input_layer(l)].has_input);
    }
    return same ? 0 : dw_fail(err, "'%s' has other layers than '%s'; trace it again", o.traces, o.model);
}

static int list_layers(run *r, dw_err *err) {
    const int n_layer = r->t.n_layer;
    r->layer = dw_alloc((size_t)n_layer, sizeof *r->layer, "layers", err);
    r->record_of = dw_alloc((size_t)n_layer, sizeof *r->record_of, "layers", err);
    if (!r->layer || !r->record_of) return -1;
    for (int l = 0; l < n_layer; l++)
        if (r->t.layer[l].n_groups) r->layer[r->n_layer++] = l;
    return 0;
}

/* All that decides the result. */
static void identify(const run *r, const char *arguments, uint8_t identity[32]) {
    char backend[32];
    dw_sha256 h;
    tool_backend_text(backend);
    dw_sha256_begin(&h);
    dw_sha256_add(&h, r->model_sha256, sizeof r->model_sha256);
    dw_sha256_add(&h, r->traces_sha256, sizeof r->traces_sha256);
    dw_sha256_add(&h, arguments, strlen(arguments) + 1);
    dw_sha256_add(&h, backend, strlen(backend) + 1);
    dw_sha256_end(&h, identity);
}

static int find_finished(run *r, dw_err *err) {
    const size_t n = predict_journal_n_records(r->j);
    record_view v;
    for (size_t i = 0; i < n; i++) {
        uint8_t *bytes = read_record(r->j, i, &v, err);
        if (!bytes) return -1;
        free(bytes);
        if (v.head.layer >= r->t.n_layer || v.head.n_groups != r->t.layer[v.head.layer].n_groups ||
            v.head.n_in != r->t.n_embd || v.head.rank != r->rank)
            return dw_fail(err, "'%s.part' does not fit this run; remove it", o.out);
        r->record_of[v.head.layer] = i + 1;
    }
    if (n) say("going on after %zu of %zu layers, which '%s.part' has", n, r->n_layer, o.out);
    return 0;
}

static int open_journal(run *r, dw_err *err) {
    uint8_t identity[32];
    bool resumed = false;
    char *path = dw_format(err, "%s.part", o.out), *arguments = lineage_arguments(&program, err);
    if (path && arguments) {
        identify(r, arguments, identity);
        r->j = predict_journal_open(path, identity, &resumed, err);
        if (r->j) say_if_interrupted(predict_journal_kept(r->j));
    }
    free(path);
    free(arguments);
    return r->j ? find_finished(r, err) : -1;
}

static int open_run(run *r, dw_err *err) {
    *r = (run){.err = err, .lock = PTHREAD_MUTEX_INITIALIZER};
    r->model = dw_model_open(o.model, err);
    if (!r->model || lineage_check(dw_model_gguf(r->model), err)) return -1;
    if (!dw_model_is_gated(r->model))
        return dw_fail(err, "'%s' is not gated: it has no decisions to predict; make it with deadwood gate", o.model);
    r->rank = o.rank ? o.rank : predict_learn_default_rank(dw_model_hparams(r->model)->n_embd);
    kit_sha256_gguf(dw_model_gguf(r->model), r->model_sha256);
    if (kit_sha256_file(o.traces, r->traces_sha256, err) || traces_open(&r->t, o.traces, err)) return -1;
    if (check_traces(r, err) || list_layers(r, err)) return -1;
    return open_journal(r, err);
}

static void close_run(run *r) {
    traces_release(&r->t);
    dw_model_close(r->model);
    free(r->layer);
    free(r->record_of);
}

/* ---- the report -------------------------------------------------------------------------------------------------- */

/* The masses of all methods, layer after layer. */
typedef struct masses {
    size_t n_tokens;
    float *of[PREDICT_LEARN_N_METHODS]; // (n_layer, n_tokens)
} masses;

static int masses_init(masses *s, size_t n_layer, size_t n_tokens, dw_err *err) {
    *s = (masses){.n_tokens = n_tokens};
    for (int m = 0; m < PREDICT_LEARN_N_METHODS; m++)
        if (!(s->of[m] = dw_alloc(n_layer * n_tokens, sizeof *s->of[m], "captured masses", err))) return -1;
    return 0;
}

static void masses_release(masses *s) {
    for (int m = 0; m < PREDICT_LEARN_N_METHODS; m++) free(s->of[m]);
}

/* A threshold cannot tell groups of equal score apart. */
static void tell_activity(const predict_result *x) {
    const double active = predict_tally_active(&x->held_out[PREDICT_LEARN_PREDICTOR]);
    if (o.activity > 0 && fabs(active - o.activity) > fmin(0.25 * o.activity, 0.05))
        warn("layer %d: the predictor opens %.3f of the groups on held-out tokens, not --activity %g: groups of equal "
             "score open together, or these tokens differ from those that chose the threshold",
             x->layer, active, o.activity);
}

/* Layer i of the list, from its record. */
static int gather_layer(run *r, size_t i, predict_result *x, predict_result *all, masses *s, dw_err *err) {
    record_view v;
    uint8_t *bytes = read_record(r->j, r->record_of[r->layer[i]] - 1, &v, err);
    if (!bytes) return -1;
    const bool fits = (size_t)v.head.n_tokens == s->n_tokens;
    *x = (predict_result){.layer = v.head.layer,
                          .rank = v.head.rank,
                          .n_epochs = v.head.n_epochs,
                          .n_linear = v.head.is_linear != 0,
                          .n_network = !v.head.is_linear};
    all->n_linear += x->n_linear;
    all->n_network += x->n_network;
    for (int m = 0; m < PREDICT_LEARN_N_METHODS && fits; m++) {
        memcpy(s->of[m] + i * s->n_tokens, v.mass[m], s->n_tokens * sizeof *s->of[m]);
        x->held_out[m] = v.head.held_out[m];
        predict_tally_add(&all->held_out[m], &x->held_out[m]);
    }
    free(bytes);
    if (fits) tell_activity(x);
    return fits ? 0 : dw_fail(err, "'%s.part' does not fit this run; remove it", o.out);
}

/* All layers together first: what follows sorts the masses of each layer. */
static int finish(predict_result *x, size_t n_layer, masses *s, const predict_windows *w, dw_err *err) {
    if (predict_result_gains(&x[n_layer], s->of, n_layer, w, err)) return -1;
    for (size_t i = 0; i < n_layer; i++) {
        float *of[PREDICT_LEARN_N_METHODS];
        for (int m = 0; m < PREDICT_LEARN_N_METHODS; m++) of[m] = s->of[m] + i * s->n_tokens;
        if (predict_result_gains(&x[i], of, 1, w, err)) return -1;
        predict_result_percentiles(&x[i], of, s->n_tokens);
    }
    predict_result_percentiles(&x[n_layer], s->of, n_layer * s->n_tokens);
    return 0;
}

/* Fills x with the layers and, after them, all layers together. */
static int gather(run *r, predict_result *x, dw_err *err) {
    predict_windows w;
    masses s;
    predict_result *all = &x[r->n_layer];
    *all = (predict_result){.layer = -1, .rank = r->rank};
    int rc = masses_init(&s, r->n_layer, predict_examples_count(&r->t, PREDICT_EXAMPLES_HELD_OUT), err);
    if (predict_windows_of(&w, &r->t, err)) rc = -1;
    for (size_t i = 0; i < r->n_layer && !rc; i++) rc = gather_layer(r, i, &x[i], all, &s, err);
    if (!rc) rc = finish(x, r->n_layer, &s, &w, err);
    predict_windows_release(&w);
    masses_release(&s);
    return rc;
}

static int print_report(const run *r, const predict_result *x, dw_err *err) {
    char *text = predict_report_text(x, r->n_layer, &r->t, err);
    if (text) fputs(text, stdout);
    free(text);
    return text ? 0 : -1;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static bool is_predictor(const char *tensor) { return strstr(tensor, ".ffn_pred_") != NULL; }

static int stamp(const run *r, dw_gguf_writer *w, dw_err *err) {
    lineage *l = lineage_new(&program, dw_model_gguf(r->model), err);
    char tokens[32];
    snprintf(tokens, sizeof tokens, "%zu", predict_examples_count(&r->t, PREDICT_EXAMPLES_TRAIN));
    int rc = l ? lineage_input_hashed(l, o.model, r->model_sha256, err) : -1;
    if (!rc) rc = lineage_input_hashed(l, o.traces, r->traces_sha256, err);
    if (!rc) rc = lineage_fact(l, "tokens_trained", tokens, err);
    if (!rc) rc = lineage_texts(l, r->t.text, r->t.n_text, err);
    if (!rc) rc = lineage_write(l, w, err);
    lineage_free(l);
    return rc;
}

/* The tensors of a layer's predictor.  v NULL: without data. */
static void parts_of(const run *r, int l, const record_view *v, predict_part parts[PREDICT_N_PARTS]) {
    predict_parts_of(l, (size_t)r->t.n_embd, (size_t)r->rank, (size_t)r->t.layer[l].n_groups, parts);
    const void *const data[] = {v ? v->a : NULL, v ? v->a_bias : NULL, v ? v->b : NULL, v ? v->b_bias : NULL};
    for (int i = 0; i < PREDICT_N_PARTS; i++) parts[i].data = data[i];
}

static void declare(const run *r, dw_gguf_writer *w) {
    const dw_gguf *g = dw_model_gguf(r->model);
    predict_part parts[PREDICT_N_PARTS];
    dw_gguf_set_keys(w, g);
    dw_gguf_set_text(w, DW_KEY_PREDICTOR_INPUT, o.input);
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        if (!is_predictor(t->name)) dw_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne);
    }
    for (size_t i = 0; i < r->n_layer; i++) {
        parts_of(r, r->layer[i], NULL, parts);
        for (const predict_part *p = parts; p < parts + PREDICT_N_PARTS; p++)
            dw_gguf_add_tensor(w, p->name, p->type, p->n_dims, p->ne);
    }
}

/* Calls fn for each tensor of each predictor. */
typedef int part_fn(void *ctx, const predict_part *p, dw_err *err);

static int each_part(run *r, part_fn *fn, void *ctx, dw_err *err) {
    int rc = 0;
    for (size_t i = 0; i < r->n_layer && !rc; i++) {
        predict_part parts[PREDICT_N_PARTS];
        record_view v;
        const int l = r->layer[i];
        uint8_t *bytes = read_record(r->j, r->record_of[l] - 1, &v, err);
        if (!bytes) return -1;
        parts_of(r, l, &v, parts);
        for (const predict_part *p = parts; p < parts + PREDICT_N_PARTS && !rc; p++) rc = fn(ctx, p, err);
        free(bytes);
    }
    return rc;
}

static int write_part(void *writer, const predict_part *p, dw_err *err) {
    return dw_gguf_write(writer, p->data, predict_part_bytes(p), err);
}

static int write_data(run *r, dw_gguf_writer *w, dw_err *err) {
    const dw_gguf *g = dw_model_gguf(r->model);
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        if (!is_predictor(t->name) && dw_gguf_write(w, t->data, t->n_bytes, err)) return -1;
    }
    return each_part(r, write_part, w, err);
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

static int compare_bytes(const dw_gguf *g, const char *name, const void *data, size_t n_bytes, dw_err *err) {
    const dw_tensor *t = dw_gguf_find_tensor(g, name);
    if (t && t->n_bytes == n_bytes && !memcmp(t->data, data, n_bytes)) return 0;
    return dw_fail(err, "tensor '%s' was not written as planned", name);
}

static int compare_part(void *gguf, const predict_part *p, dw_err *err) {
    return compare_bytes(gguf, p->name, p->data, predict_part_bytes(p), err);
}

/* The new file before it replaces an old one: the engine opens it, and every tensor is what it should be. */
static int compare_file(void *run_pointer, const char *path, dw_err *err) {
    run *r = run_pointer;
    dw_model *m = dw_model_open(path, err);
    if (!m) return -1;
    const dw_gguf *parent = dw_model_gguf(r->model);
    int rc = 0;
    for (size_t i = 0; i < dw_gguf_n_tensors(parent) && !rc; i++) {
        const dw_tensor *t = dw_gguf_tensor(parent, i);
        if (!is_predictor(t->name)) rc = compare_bytes(m->gguf, t->name, t->data, t->n_bytes, err);
    }
    if (!rc) rc = each_part(r, compare_part, m->gguf, err);
    dw_model_close(m);
    return rc;
}

static int write_file(run *r, dw_gguf_writer *w, dw_err *err) {
    declare(r, w);
    if (stamp(r, w, err) || dw_gguf_begin(w, err) || write_data(r, w, err)) return -1;
    return dw_gguf_commit_checked(w, compare_file, r, err);
}

static int write_model(run *r, dw_err *err) {
    dw_gguf_writer *w = dw_gguf_writer_new(o.out, err);
    const int rc = w ? write_file(r, w, err) : -1;
    dw_gguf_writer_free(w);
    return rc;
}

/* The report's file is last, so that no new one stands beside an old model. */
static int write_results(run *r, dw_err *err) {
    predict_result *x = dw_alloc(r->n_layer + 1, sizeof *x, "the report", err);
    int rc = x ? gather(r, x, err) : -1;
    if (!rc) rc = print_report(r, x, err);
    if (!rc) rc = write_model(r, err);
    if (!rc && o.report) rc = predict_report_write(o.report, x, r->n_layer, err);
    free(x);
    return rc;
}

/* ---- main -------------------------------------------------------------------------------------------------------- */

/* Before anything is computed: later OpenBLAS would wait for the memory for ever. */
static int check_memory(const run *r, int n_threads, dw_err *err) {
    double most = 0;
    int n_left = 0;
    for (size_t i = 0; i < r->n_layer; i++) {
        const int l = r->layer[i];
        if (r->record_of[l]) continue;
        most = fmax(most, predict_examples_bytes(&r->t, l) + predict_learn_bytes(&r->t, l, r->rank, o.batch));
        n_left++;
    }
    const int n = n_left < n_threads ? n_left : n_threads;
    if (most < 0x1p62 && kit_blas_has_memory(n, (size_t)most)) return 0;
    return dw_fail(err, "out of memory: training %d layer%s at once needs %s; %s", n, plural(n),
                   show_bytes(n * (most + BLAS_THREAD_BYTES)).text,
                   n > 1 ? "try fewer threads with -t" : "trace fewer tokens");
}

static int train(run *r, dw_pool *pool, dw_err *err) {
    size_t n_left = 0;
    if (check_memory(r, dw_pool_size(pool), err)) return -1;
    for (size_t i = 0; i < r->n_layer; i++) n_left += !r->record_of[r->layer[i]];
    const double began = dw_now();
    say("%zu layers, rank %d, %zu tokens train, %zu choose, %zu are held out", r->n_layer, r->rank,
        predict_examples_count(&r->t, PREDICT_EXAMPLES_TRAIN), predict_examples_count(&r->t, PREDICT_EXAMPLES_CHOOSE),
        predict_examples_count(&r->t, PREDICT_EXAMPLES_HELD_OUT));
    r->bar = progress_begin("training", "epochs", (double)n_left * o.epochs);
    dw_pool_each(pool, r->n_layer, train_task, r);
    progress_end(r->bar);
    if (r->rc) return -1;
    say("%zu layer%s trained in %s", n_left, plural((double)n_left), show_duration(dw_now() - began).text);
    return write_results(r, err);
}

/* A mass of 0 is not asked for. */
static void check_usage(void) {
    const bool has_mass = o.mass > 0 && opt_is_given("mass");
    if ((o.recall > 0) + (o.activity > 0) + has_mass > 1) die_usage("give one of --mass, --recall and --activity");
    if (o.mass == 0 && o.recall == 0 && o.activity == 0)
        die_usage("--mass 0 would open no group; give a larger one, or --recall or --activity");
}

int main(int argc, char **argv) {
    kit_blas_start(argv);
    opt_parse(&program, argc, argv);
    check_usage();
    dw_err err = {0};
    run r;
    dw_pool *pool = NULL; // after the traces, whose reading process is forked
    const int rc = open_run(&r, &err) || !(pool = dw_pool_new(tool.threads, &err)) || train(&r, pool, &err);
    if (rc)
        predict_journal_close(r.j);
    else
        predict_journal_remove(r.j);
    close_run(&r);
    dw_pool_free(pool);
    if (rc) die_err(&err);
    return 0;
}
