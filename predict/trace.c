/* trace.c - deadwood-trace: what predictors learn from, of a gated model over texts.
 *
 *     deadwood trace -m mini-gated.gguf -f experiments/texts/calib/english-1.txt -o traces.h5
 *
 * The session's own threads turn what they see into rows inside the pass; each step of windows becomes a record of
 * OUT.part as soon as it is there, from which the same command goes on when it was ended.  At the end the records
 * become traces.h5 (traces.h), chunk by chunk: memory is a batch of one layer and a chunk, whatever the number of
 * tokens. */
#include "formats/ffn_gated.h"
#include "kit/calib.h"
#include "kit/disk.h"
#include "kit/hash_cache.h"
#include "kit/lineage.h"
#include "kit/options.h"
#include "kit/progress.h"
#include "kit/talk.h"
#include "kit/traces.h"
#include "model/model.h"
#include "predict/journal.h"
#include "predict/predict.h"
#include "predict/rules.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    const char *model, *out;
    opt_list texts;
    opt_range windows;
    int n_tokens, n_ctx, skip;
} o;

// clang-format off
static const opt_row rows[] = {
    {"model", 'm', OPT_PATH, OPT_REQUIRED | OPT_INPUT, &o.model, NULL, "FILE", "the gated model (gate)"},
    {"text", 'f', OPT_TEXTS, OPT_REQUIRED | OPT_INPUT, &o.texts, NULL, "TEXT", "calibration texts"},
    {"out", 'o', OPT_PATH, OPT_REQUIRED | OPT_NO_BYTE | OPT_KEEPS, &o.out, NULL, "TRACES", "the traces (HDF5)",
     .holds = KIT_TRACES},
    {"tokens", 0, OPT_INT, 0, &o.n_tokens, "0", "N",
     "at most N tokens, from all texts alike: whole windows; 0: 8192, or one window of every text if that is more",
     .min = 0, .max = KIT_H5_MAX_ROWS},
    {"ctx", 'c', OPT_INT, 0, &o.n_ctx, "512", "N", "tokens of a window", .min = 1, .max = 1 << 20},
    {"windows", 0, OPT_RANGE, 0, &o.windows, NULL, "A-B", "only windows A to B of every text; 20 is 1-20"},
    {"skip", 0, OPT_INT, 0, &o.skip, "0", "N", "leave the first N positions of every window out",
     .min = 0, .max = 1 << 20},
    OPT_COMMON_ENGINE, {0}};
// clang-format on

static const opt_program program = {
    .name = "trace",
    .summary = "the gate's decisions of a model over texts, and what it decided from",
    .usage = "-m GATED.gguf -f TEXT.. -o traces.h5 [--tokens N] [-c N] [--windows A-B]",
    .about =
        "Runs the model densely, as if it were not gated, and stores for every token and gated layer the FFN's input, "
        "which groups of "
        "neurons the gate would have opened, and each group's share of sum ||v_j||^2 a_j^2.  train learns predictors "
        "from it.  Layers "
        "that the gate marks dense have none.\n\n"
        "Tokens are taken evenly: the first window of every text, then the second, and so on, while --tokens lasts.  "
        "The size is told "
        "beforehand.  When a run is interrupted, OUT.part has what is finished; the same command continues after it, "
        "and "
        "one with other inputs or options is refused until OUT.part is removed.",
    .example = "deadwood trace -m mini-gated.gguf -f experiments/texts/calib/*.txt -o traces.h5",
    .rows = rows};

enum { BATCH_TOKENS = 512 }; // of one pass, but for longer windows: they are cut
enum { USUAL_TOKENS = 8192 };

/* ---- what will be evaluated ------------------------------------------------------------------------------------- */

typedef struct pass {
    size_t text;                     // of the traces
    int window, n_windows, first, n; // tokens first .. first + n - 1 of each of these windows
    size_t row, n_rows;              // of the datasets
    size_t record, offset;           // where its rows stand in the journal
} pass;

typedef struct schedule {
    int *n_windows;  // of each text of the command line
    size_t *text_of; // texts of the traces among those
    pass *pass;
    size_t n_pass, cap_pass, n_record;
} schedule;

static void release_schedule(schedule *p) { free(p->n_windows), free(p->text_of), free(p->pass); }

/* Tokens that one window of every text has. */
static double tokens_of_all(const calib_texts *texts) { return (double)texts->n_text * (o.n_ctx - o.skip); }

static int tokens_wanted(const calib_texts *texts) {
    if (o.n_tokens) return o.n_tokens;
    return (int)fmin(fmax(USUAL_TOKENS, tokens_of_all(texts)), KIT_H5_MAX_ROWS);
}

/* Windows in turn from all texts until the tokens are spent. */
static int draw(schedule *p, const calib_texts *texts, dw_err *err) {
    const int per_window = o.n_ctx - o.skip;
    int left = tokens_wanted(texts) / per_window, n_before;
    if (!left)
        return dw_fail(err, "--tokens %d is less than one window of %d; raise --tokens or lower -c", o.n_tokens,
                       per_window);
    p->n_windows = dw_alloc(texts->n_text, sizeof *p->n_windows, "windows", err);
    if (!p->n_windows) return -1;
    do {
        n_before = left;
        for (size_t i = 0; i < texts->n_text && left; i++)
            if (p->n_windows[i] < texts->text[i].n_windows) p->n_windows[i]++, left--;
    } while (left && left < n_before);
    return 0;
}

static int schedule_text(schedule *p, size_t text, int n_windows, size_t token_bytes, size_t *row, dw_err *err) {
    const int n_seq = o.n_ctx < BATCH_TOKENS ? BATCH_TOKENS / o.n_ctx : 1;
    for (int w = 0, n; w < n_windows; w += n, p->n_record++) {
        n = dw_smaller(n_seq, n_windows - w);
        for (int first = 0; first < o.n_ctx; first += BATCH_TOKENS) {
            if (dw_grow(&p->pass, &p->cap_pass, p->n_pass + 1, sizeof *p->pass, "passes", err)) return -1;
            pass *x = &p->pass[p->n_pass++];
            *x = (pass){.text = text,
                        .window = w,
                        .n_windows = n,
                        .first = first,
                        .n = dw_smaller(BATCH_TOKENS, o.n_ctx - first),
                        .row = *row,
                        .record = p->n_record};
            const int n_skipped = o.skip > first ? dw_smaller(o.skip - first, x->n) : 0;
            x->n_rows = (size_t)n * (size_t)(x->n - n_skipped);
            if (first) x->offset = x[-1].offset + x[-1].n_rows * token_bytes;
            *row += x->n_rows;
        }
    }
    return 0;
}

static int set_text(kit_stats_text *to, const calib_text *from, int n_windows, dw_err *err) {
    snprintf(to->name, sizeof to->name, "%s", from->name);
    snprintf(to->sha256, sizeof to->sha256, "%s", from->sha256);
    to->first_window = from->first_window;
    to->n_windows = n_windows;
    to->n_tokens = (uint64_t)n_windows * (uint64_t)(o.n_ctx - o.skip);
    to->blocks = lineage_blocks(from->token, (size_t)n_windows * (size_t)o.n_ctx, err);
    return to->blocks ? 0 : -1;
}

/* Windows are given in the order of the texts, so whole kinds of text may be missing: their names say it. */
static void warn_of_left_out(const schedule *p, const calib_texts *texts, size_t n) {
    enum { MOST_NAMES = 8 };
    char names[MOST_NAMES * 64] = "";
    size_t n_named = 0, used = 0;
    for (size_t i = 0; i < texts->n_text && n_named < MOST_NAMES; i++)
        if (!p->n_windows[i])
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%.50s", n_named++ ? ", " : "",
                                     texts->text[i].name);
    warn("%zu of %zu texts get no window: %s%s; --tokens %.0f gives one to every text", n, texts->n_text, names,
         n_named < n ? ", .." : "", tokens_of_all(texts));
}

/* Texts and rows of the traces, and the passes that give them. */
static int make_schedule(schedule *p, traces *t, const calib_texts *texts, dw_err *err) {
    if (o.skip >= o.n_ctx)
        return dw_fail(err, "a window of %d tokens has nothing left when %d are skipped", o.n_ctx, o.skip);
    if (draw(p, texts, err)) return -1;
    t->text = dw_alloc(texts->n_text, sizeof *t->text, "texts", err);
    p->text_of = dw_alloc(texts->n_text, sizeof *p->text_of, "texts", err);
    if (!t->text || !p->text_of) return -1;
    const size_t token_bytes = traces_token_bytes(t);
    for (size_t i = 0; i < texts->n_text; i++) {
        if (!p->n_windows[i]) continue;
        p->text_of[t->n_text] = i;
        if (set_text(&t->text[t->n_text++], &texts->text[i], p->n_windows[i], err) ||
            schedule_text(p, t->n_text - 1, p->n_windows[i], token_bytes, &t->n_tokens, err))
            return -1;
    }
    if (t->n_text < texts->n_text) warn_of_left_out(p, texts, texts->n_text - t->n_text);
    return 0;
}

/* ---- the header -------------------------------------------------------------------------------------------------- */

static const dw_layer_gate *gate_of(const dw_model *m, int l) { return &m->net.layer[l].sparse; }

static bool is_traced(const dw_model *m, int l) {
    return l < m->net.hp.n_layer && gate_of(m, l)->down_t.name && !gate_of(m, l)->dense;
}

/* NULL: unknown. */
static const predict_rule *rule_of(const dw_model *m) {
    dw_str name = {"", 0};
    char text[32];
    if (dw_gguf_str(m->gguf, DW_KEY_GATE_RULE, &name, NULL) < 1) return NULL;
    snprintf(text, sizeof text, "%.*s", (int)(name.len < 31 ? name.len : 31), name.ptr);
    return predict_rule_find(text);
}

static int make_header(traces *t, const dw_model *m, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(m);
    int n_traced = 0;
    *t = (traces){.n_layer = hp->n_layer, .n_embd = hp->n_embd, .n_ctx = o.n_ctx, .skip = o.skip, .group = 1};
    if (!dw_model_is_gated(m))
        return dw_fail(err, "'%s' is not gated: it has nothing to trace; make it with deadwood gate", o.model);
    const predict_rule *rule = rule_of(m);
    if (rule && rule->metric)
        return dw_fail(err, "'%s' opens the same neurons for every token (rule %s): there is nothing to predict",
                       o.model, rule->name);
    t->arguments = lineage_arguments(&program, err);
    t->layer = dw_alloc((size_t)hp->n_layer, sizeof *t->layer, "layers", err);
    if (!t->arguments || !t->layer) return -1;
    kit_sha256_gguf(dw_model_gguf(m), t->model_sha256);
    snprintf(t->arch, sizeof t->arch, "%s", hp->arch);
    tool_backend_text(t->backend);
    for (int l = 0; l < hp->n_layer; l++) {
        t->layer[l].has_input = is_traced(m, l) || is_traced(m, l + 1);
        if (!is_traced(m, l)) continue;
        t->group = gate_of(m, l)->group;
        t->layer[l].n_groups = (hp->n_ff[l] + t->group - 1) / t->group;
        n_traced++;
    }
    return n_traced ? 0
                    : dw_fail(err,
                              "'%s': every layer is marked dense, so there is nothing to predict; gate it with a "
                              "smaller activity",
                              o.model);
}

/* ---- rows inside the pass ---------------------------------------------------------------------------------------- */

typedef struct tracer {
    const dw_model *model;
    const traces *t;
    float **weight;  // (n_ff) of each traced layer: ||v_j||^2
    int n_row, *row; // tokens of the pass whose position counts
    uint8_t *buffer; // their rows of one part of one layer
    uint8_t *open;   // (n_threads, n_groups)
    double *mass;    // (n_threads, n_groups)
    size_t most_groups;
    atomic_int n_done;  // threads that finished the event
    atomic_bool is_bad; // a value that F16 cannot hold, or NaN
    int bad_layer;
    predict_journal *j;
    int rc;
    dw_err *err;
} tracer;

static bool put_halves(const float *x, size_t n, uint8_t *to) {
    bool ok = true;
    for (size_t i = 0; i < n; i++) {
        const uint16_t h = dw_f32_to_f16(x[i]);
        ok &= (h & 0x7c00) != 0x7c00;
        to[2 * i] = (uint8_t)h, to[2 * i + 1] = (uint8_t)(h >> 8);
    }
    return ok;
}

static void put_open(const dw_layer_gate *g, const float *gate, int n_ff, int n_groups, uint8_t *open, uint8_t *to) {
    dw_open_groups(gate, n_ff, g->group, g->threshold, open);
    memset(to, 0, traces_open_bytes(n_groups));
    for (int i = 0; i < n_groups; i++) to[i / 8] |= (uint8_t)(open[i] << (i % 8));
}

static bool put_shares(const float *weight, const float *a, int n_ff, int group, double *mass, uint8_t *to) {
    double sum = 0;
    int n = 0;
    for (int first = 0; first < n_ff; first += group) {
        const int end = dw_smaller(first + group, n_ff);
        double m = 0;
        for (int j = first; j < end; j++) m += (double)weight[j] * (double)a[j] * (double)a[j];
        sum += mass[n++] = m;
    }
    for (int i = 0; i < n; i++) {
        const uint16_t h = dw_f32_to_f16(sum > 0 ? (float)(mass[i] / sum) : 0.0f);
        to[2 * i] = (uint8_t)h, to[2 * i + 1] = (uint8_t)(h >> 8);
    }
    return isfinite(sum);
}

static bool put_row(tracer *c, const dw_tap_event *e, traces_part part, int i, int ith) {
    const float *x = e->values + (size_t)c->row[i] * (size_t)e->n;
    const dw_layer_gate *g = gate_of(c->model, e->layer);
    uint8_t *to = c->buffer + (size_t)i * traces_row_bytes(c->t, e->layer, part);
    if (part == TRACES_INPUT) return put_halves(x, (size_t)e->n, to);
    if (part == TRACES_SHARE)
        return put_shares(c->weight[e->layer], x, e->n, g->group, c->mass + (size_t)ith * c->most_groups, to);
    put_open(g, x, e->n, c->t->layer[e->layer].n_groups, c->open + (size_t)ith * c->most_groups, to);
    return true;
}

/* Each thread its rows; the last one that comes puts them into the journal. */
static void look(void *ctx, const dw_tap_event *e, int ith, int n_threads) {
    tracer *c = ctx;
    const traces_part part = e->point == DW_TAP_FFN_IN     ? TRACES_INPUT
                             : e->point == DW_TAP_FFN_GATE ? TRACES_OPEN
                                                           : TRACES_SHARE;
    const size_t row_bytes = traces_row_bytes(c->t, e->layer, part);
    if (!row_bytes) return;
    for (int i = c->n_row * ith / n_threads; i < c->n_row * (ith + 1) / n_threads; i++)
        if (!put_row(c, e, part, i, ith) && !atomic_exchange(&c->is_bad, true)) c->bad_layer = e->layer;
    if (atomic_fetch_add(&c->n_done, 1) < n_threads - 1) return;
    atomic_store(&c->n_done, 0);
    if (!c->rc) c->rc = predict_journal_add(c->j, c->buffer, (size_t)c->n_row * row_bytes, c->err);
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

typedef struct run {
    dw_model *model;
    dw_pool *pool;
    dw_session *session;
    calib_texts texts;
    traces t;
    schedule schedule;
    tracer c;
    predict_journal *j;
    int32_t *token, *seq, *pos, *window;
    progress *bar;
} run;

static int eval(run *r, const pass *p, dw_err *err) {
    const calib_text *text = &r->texts.text[r->schedule.text_of[p->text]];
    int n = 0;
    r->c.n_row = 0;
    for (int i = 0; i < p->n_windows; i++) {
        if (!p->first) dw_session_rewind(r->session, i, 0);
        calib_window(&r->texts, text, p->window + i, r->window);
        for (int at = p->first; at < p->first + p->n; at++, n++) {
            r->token[n] = r->window[at];
            r->seq[n] = i;
            r->pos[n] = at;
            if (at >= o.skip) r->c.row[r->c.n_row++] = n;
        }
    }
    const dw_batch batch = {.n_tokens = n, .token = r->token, .seq = r->seq, .pos = r->pos};
    if (dw_session_eval(r->session, &batch, err) || r->c.rc) return -1;
    if (r->c.is_bad)
        return dw_fail(
            err,
            "layer %d: the FFN's values became NaN, infinite or beyond F16 in '%s'; the model is damaged or overflows",
            r->c.bad_layer, text->name);
    progress_step(r->bar, (double)p->n_rows);
    return 0;
}

static size_t record_bytes(const run *r, size_t record) {
    size_t n = 0;
    for (size_t i = 0; i < r->schedule.n_pass; i++)
        if (r->schedule.pass[i].record == record) n += r->schedule.pass[i].n_rows * traces_token_bytes(&r->t);
    return n;
}

/* Evaluates what the journal lacks. */
static int fill_journal(run *r, dw_err *err) {
    const schedule *p = &r->schedule;
    int rc = 0;
    for (size_t i = 0; i < p->n_pass && !rc; i++) {
        const bool begins = !i || p->pass[i - 1].record < p->pass[i].record,
                   ends = i + 1 == p->n_pass || p->pass[i + 1].record > p->pass[i].record;
        if (p->pass[i].record < predict_journal_n_records(r->j)) continue;
        rc = (begins && predict_journal_begin(r->j, record_bytes(r, p->pass[i].record), err)) ||
             eval(r, &p->pass[i], err) || (ends && predict_journal_end(r->j, err));
        if (!rc) say_if_interrupted(predict_journal_kept(r->j));
    }
    return rc ? -1 : 0;
}

static size_t rows_finished(const run *r) {
    size_t n = 0;
    for (size_t i = 0; i < r->schedule.n_pass; i++)
        if (r->schedule.pass[i].record < predict_journal_n_records(r->j)) n += r->schedule.pass[i].n_rows;
    return n;
}

/* Bytes of a token's row in front of a part, in the order in which the journal has them. */
static size_t bytes_before(const traces *t, int layer, traces_part part) {
    size_t n = 0;
    for (int l = 0; l <= layer; l++)
        for (int k = TRACES_INPUT; k <= TRACES_SHARE && (l < layer || k < (int)part); k++)
            n += traces_row_bytes(t, l, (traces_part)k);
    return n;
}

static int copy_rows(void *ctx, int layer, traces_part part, size_t first, size_t n, uint8_t *to, dw_err *err) {
    run *r = ctx;
    const size_t row_bytes = traces_row_bytes(&r->t, layer, part), before = bytes_before(&r->t, layer, part);
    size_t size;
    for (const pass *p = r->schedule.pass; p < r->schedule.pass + r->schedule.n_pass; p++) {
        const size_t from = p->row > first ? p->row : first,
                     end = p->row + p->n_rows < first + n ? p->row + p->n_rows : first + n;
        if (from >= end) continue;
        const uint8_t *record = predict_journal_record(r->j, p->record, &size, err);
        if (!record) return -1;
        memcpy(to + (from - first) * row_bytes, record + p->offset + p->n_rows * before + (from - p->row) * row_bytes,
               (end - from) * row_bytes);
    }
    progress_step(r->bar, (double)(n * row_bytes));
    return 0;
}

/* All that decides the result. */
static void identify(const run *r, uint8_t identity[32]) {
    const traces *t = &r->t;
    dw_sha256 h;
    dw_sha256_begin(&h);
    dw_sha256_add(&h, t->model_sha256, sizeof t->model_sha256);
    dw_sha256_add(&h, t->arguments, strlen(t->arguments) + 1);
    dw_sha256_add(&h, t->backend, strlen(t->backend) + 1);
    for (size_t i = 0; i < t->n_text; i++) dw_sha256_add(&h, t->text[i].sha256, sizeof t->text[i].sha256);
    dw_sha256_end(&h, identity);
}

static int check_journal(run *r, const char *path, dw_err *err) {
    size_t size;
    for (size_t i = 0; i < predict_journal_n_records(r->j); i++) {
        if (!predict_journal_record(r->j, i, &size, err)) return -1;
        if (i >= r->schedule.n_record || size != record_bytes(r, i))
            return dw_fail(err, "'%s' does not fit this run; remove it", path);
    }
    return 0;
}

static int open_journal(run *r, dw_err *err) {
    uint8_t identity[32];
    bool resumed = false;
    char *path = dw_format(err, "%s.part", o.out);
    identify(r, identity);
    r->c.j = r->j = path ? predict_journal_open(path, identity, &resumed, err) : NULL;
    const int rc = r->j ? check_journal(r, path, err) : -1;
    if (!rc) say_if_interrupted(predict_journal_kept(r->j));
    if (!rc && resumed && predict_journal_n_records(r->j))
        say("going on after %zu of %zu tokens, which '%s' has", rows_finished(r), r->t.n_tokens, path);
    free(path);
    return rc;
}

static void weigh_layer(void *arg, size_t l) {
    const run *r = arg;
    const dw_tensor *down_t = &gate_of(r->model, (int)l)->down_t;
    float *weight = r->c.weight[l];
    const size_t n = down_t->ne[0];
    float *row = weight ? weight + down_t->ne[1] : NULL; // room for a column of down after the sums
    for (size_t j = 0; row && j < down_t->ne[1]; j++) {
        double sum = 0;
        down_t->type->decode(down_t->data + j * dw_tensor_row_bytes(down_t), row, n);
        for (size_t i = 0; i < n; i++) sum += (double)row[i] * (double)row[i];
        weight[j] = (float)sum;
    }
}

static int make_tracer(run *r, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(r->model);
    const size_t n_threads = (size_t)dw_pool_size(r->pool);
    size_t most_bytes = 1;
    tracer *c = &r->c;
    *c = (tracer){.model = r->model, .t = &r->t, .most_groups = 1, .err = err};
    c->weight = dw_alloc((size_t)hp->n_layer, sizeof *c->weight, "norms", err);
    for (int l = 0; l < hp->n_layer && c->weight; l++) {
        const size_t n_groups = (size_t)r->t.layer[l].n_groups;
        if (n_groups > c->most_groups) c->most_groups = n_groups;
        for (int part = TRACES_INPUT; part <= TRACES_SHARE; part++)
            if (traces_row_bytes(&r->t, l, (traces_part)part) > most_bytes)
                most_bytes = traces_row_bytes(&r->t, l, (traces_part)part);
        if (n_groups &&
            !(c->weight[l] = dw_alloc((size_t)(hp->n_ff[l] + hp->n_embd), sizeof *c->weight[l], "norms", err)))
            return -1;
    }
    c->row = dw_alloc(BATCH_TOKENS, sizeof *c->row, "rows", err);
    c->buffer = dw_alloc(BATCH_TOKENS * most_bytes, 1, "rows", err);
    c->open = dw_alloc(n_threads * c->most_groups, 1, "rows", err);
    c->mass = dw_alloc(n_threads * c->most_groups, sizeof *c->mass, "rows", err);
    if (!c->weight || !c->row || !c->buffer || !c->open || !c->mass) return -1;
    dw_pool_each(r->pool, (size_t)hp->n_layer, weigh_layer, r);
    return 0;
}

static int make_session(run *r, dw_err *err) {
    const int n_seq = o.n_ctx < BATCH_TOKENS ? BATCH_TOKENS / o.n_ctx : 1;
    const dw_session_options options = {.pool = r->pool,
                                        .backend = tool.backend,
                                        .n_ctx = o.n_ctx,
                                        .n_seq = n_seq,
                                        .n_batch = BATCH_TOKENS,
                                        .n_out = 1,
                                        .precision = DW_PRECISION_ROUNDED,
                                        .select = DW_SELECT_DENSE};
    r->session = dw_session_new(r->model, &options, err);
    r->token = dw_alloc(BATCH_TOKENS, sizeof *r->token, "a batch", err);
    r->seq = dw_alloc(BATCH_TOKENS, sizeof *r->seq, "a batch", err);
    r->pos = dw_alloc(BATCH_TOKENS, sizeof *r->pos, "a batch", err);
    r->window = dw_alloc((size_t)o.n_ctx, sizeof *r->window, "a batch", err);
    if (!r->session || !r->token || !r->seq || !r->pos || !r->window) return -1;
    const unsigned points = 1u << DW_TAP_FFN_IN | 1u << DW_TAP_FFN_GATE | 1u << DW_TAP_FFN_NEURON;
    dw_session_set_tap(r->session, &(dw_tap){.points = points, .ctx = &r->c, .fn_thread = look, .in_step = true});
    return 0;
}

static void close_run(run *r) {
    dw_session_free(r->session);
    for (int l = 0; r->c.weight && l < r->t.n_layer; l++) free(r->c.weight[l]);
    free(r->c.weight), free(r->c.row), free(r->c.buffer), free(r->c.open), free(r->c.mass);
    free(r->token), free(r->seq), free(r->pos), free(r->window);
    release_schedule(&r->schedule);
    traces_release(&r->t);
    calib_release(&r->texts);
    dw_pool_free(r->pool);
    dw_model_close(r->model);
}

static int prepare(run *r, dw_err *err) {
    r->pool = dw_pool_new(tool.threads, err);
    r->model = r->pool ? dw_model_open(o.model, err) : NULL;
    const calib_request wanted = {&o.texts, o.windows, o.n_ctx, 0};
    if (!r->model || make_header(&r->t, r->model, err) || calib_read(&r->texts, r->model, &wanted, err) ||
        make_schedule(&r->schedule, &r->t, &r->texts, err))
        return -1;
    const double bytes = (double)(r->t.n_tokens * traces_token_bytes(&r->t)), room = kit_free_disk(o.out);
    say("%zu tokens of %zu text%s: at most %s, and as much in '%s.part' until it is done%s%s%s", r->t.n_tokens,
        r->t.n_text, plural((double)r->t.n_text), show_bytes(bytes).text, o.out,
        room < 2 * bytes ? "; the disk has only " : "", room < 2 * bytes ? show_bytes(room).text : "",
        room < 2 * bytes ? " free" : "");
    if (make_tracer(r, err) || make_session(r, err)) return -1;
    return open_journal(r, err);
}

static int trace(run *r, dw_err *err) {
    const double left = (double)(r->t.n_tokens - rows_finished(r)), began = dw_now();
    r->bar = progress_begin("tracing", "tokens", left);
    int rc = fill_journal(r, err);
    progress_end(r->bar);
    if (rc) return -1;
    const double traced = dw_now();
    r->bar = progress_begin("writing", "B", (double)(r->t.n_tokens * traces_token_bytes(&r->t)));
    rc = traces_write(&r->t, o.out, copy_rows, r, err);
    progress_end(r->bar);
    if (!rc)
        say("%.0f tokens in %.2f s, %.0f a second; written in %.2f s", left, traced - began,
            left / fmax(traced - began, 1e-9), dw_now() - traced);
    return rc;
}

int main(int argc, char **argv) {
    opt_parse(&program, argc, argv);
    dw_err err = {0};
    run r = {0};
    const int rc = prepare(&r, &err) || trace(&r, &err);
    if (rc)
        predict_journal_close(r.j);
    else
        predict_journal_remove(r.j);
    close_run(&r);
    if (rc) die_err(&err);
    return 0;
}
