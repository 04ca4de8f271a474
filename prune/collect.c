/* collect.c - runs a model over calibration texts and adds up what its neurons and matrix inputs do.
 *
 *     deadwood collect -m mini.gguf -f experiments/texts/calib/english-1.txt -o stats.h5
 *
 * The session's own threads take all sums inside the pass.  Each thread has its own columns and adds in the order of
 * tokens.  Which windows of a text share a pass depends on -c alone.  So the number of threads changes no bit, although
 * the passes are the engine's fast ones and not `exact`: few and many tokens may round differently, but the same tokens
 * are together in every run.
 *
 * Memory depends on the model and on how many texts are kept apart, not on how many texts there are: later texts add to
 * one row of the sums (stats.h).
 *
 * Finished texts are kept in OUT.part.  The same command continues after them when it was interrupted, and writes the
 * same file as without the interruption. */
#include "kit/hash_cache.h"
#include "kit/imatrix.h"
#include "kit/stats.h"
#include "kit/blas.h"
#include "kit/disk.h"
#include "prune/collect_gradients.h"
#include "prune/collect_gram.h"
#include "prune/column_sums.h"
#include "prune/prune.h"
#include "kit/calib.h"
#include "kit/lineage.h"
#include "kit/options.h"
#include "kit/progress.h"
#include "kit/talk.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    const char *model, *out, *export_imatrix, *import_imatrix, *gram;
    size_t gram_memory;
    opt_list texts, parts;
    opt_range windows;
    int text_windows, skip, n_ctx, hist_every, apart;
    bool gradients;
} o;

static const opt_row rows[] = {
    {"model", 'm', OPT_PATH, OPT_REQUIRED | OPT_INPUT, &o.model, NULL, "FILE", "the model (GGUF)"},
    {"text", 'f', OPT_TEXTS, OPT_INPUT, &o.texts, NULL, "TEXT", "calibration texts"},
    {"out", 'o', OPT_PATH, OPT_NO_BYTE | OPT_KEEPS, &o.out, NULL, "STATS", "the statistics (HDF5)", .beside = ".gram",
     .holds = KIT_STATS, .beside_holds = KIT_GRAM},
    {"stats", 's', OPT_TEXTS, OPT_INPUT, &o.parts, NULL, "PART", "statistics of other texts, to which these are added"},
    {"ctx", 'c', OPT_INT, 0, &o.n_ctx, "512", "N", "tokens of a window", .min = 1, .max = 1 << 20},
    {"windows", 0, OPT_RANGE, 0, &o.windows, NULL, "A-B", "only windows A to B of every text; 20 is 1-20"},
    {"text-windows", 0, OPT_INT, 0, &o.text_windows, "0", "N",
     "every N windows of a file are a text of their own; 0: a file is a text", .min = 0, .max = 1 << 20},
    {"apart", 0, OPT_INT, 0, &o.apart, "64", "N",
     "the first N texts have sums of their own; all later ones share one row of sums", .min = 1, .max = 1 << 20},
    {"skip", 0, OPT_INT, 0, &o.skip, "0", "N", "leave the first N positions of every window out", .min = 0,
     .max = 1 << 22},
    {"hist-every", 0, OPT_INT, 0, &o.hist_every, "4", "N",
     "every N-th position of a window enters the histograms; sums take all", .min = 1, .max = 1 << 20},
    {"gram", 0, OPT_CHOICE, 0, &o.gram, NULL, "WHICH", "also write STATS.gram: sums of x x^T of matrix inputs x",
     OPT_CHOICES_HELP(gram_inputs_names, gram_inputs)},
    {"gram-memory", 0, OPT_BYTES, OPT_NO_BYTE, &o.gram_memory, "4GB", "SIZE",
     "Gram matrices up to this size are summed in the one pass; larger ones in a second, layer by layer", .min = 1,
     .max = 1e15},
    {"gradients", 0, OPT_FLAG, 0, &o.gradients, NULL, NULL,
     "also a backward pass: sums of |a g| and (a g)^2, and into STATS.gram g g^T of the FFNs' outputs"},
    {"export-imatrix", 0, OPT_PATH, OPT_NO_BYTE | OPT_OUTPUT, &o.export_imatrix, NULL, "FILE",
     "write llama.cpp's importance matrix too (.dat: in its old form)",
     .holds = KIT_IMATRIX},
    {"import-imatrix", 0, OPT_PATH, OPT_INPUT, &o.import_imatrix, NULL, "FILE",
     "make statistics of llama.cpp's importance matrix: input sums only"},
    OPT_COMMON_ENGINE,
    {0}};

static const opt_program program = {
    .name = "collect",
    .summary = "activation statistics of a model over texts",
    .usage = "-m M.gguf -f TEXT.. -o stats.h5 [-s PART.h5..] [-c N] [--windows A-B] [--text-windows N]",
    .about =
        "Evaluates consecutive windows of the texts and adds up, for every text, what each neuron of each layer does: "
        "its activation a, |a|, a^2, the largest |a|, and over all texts histograms of |a| and of the gate, the "
        "squares of every matrix's inputs, and the block influence of every layer.  rank, cut, gate and requant read "
        "these statistics.\n"
        "\n"
        "The tokens after the last whole window of a file are used too: a last window ends with the file, and only "
        "its new tokens count.  With --windows there is no such window.\n"
        "\n"
        "Texts after the first --apart ones are pooled: they add to one row of sums, so thousands of texts need no "
        "more memory than a few.  Metrics count such a row as its texts, by the mean over all their tokens.  Only "
        "activation-max needs the texts apart: it takes that mean instead of the largest of a text, and rank warns.\n"
        "\n"
        "--gram also writes STATS.gram, the sums of x x^T over all tokens for the inputs x of down, or of every "
        "matrix: 4 n^2 bytes for width n.  rank --metric obs and cut --repair need it.  With -s the parts' matrices "
        "are added.\n"
        "\n"
        "--gradients also takes every window through a backward pass of the loss of its own next tokens, which takes "
        "about three times as long in all.  It adds for every neuron the sums of |a g| and (a g)^2, g = dL/da, for "
        "rank --metric taylor and fisher.  Into STATS.gram it writes for every layer the sum of g g^T, g: gradient by "
        "the FFN's output, 4 n^2 bytes for width n, for rank --metric obs-gradient, which needs --gram down, too.\n"
        "\n"
        "Runs of disjoint texts add up: -s takes statistics of the same model, and without -f nothing is evaluated.  "
        "When a run is interrupted, OUT.part holds the finished texts, and the same command continues after them.  A "
        "command with other inputs or options is refused until OUT.part is removed.",
    .example = "deadwood collect -m mini.gguf -f experiments/texts/calib/*.txt -o stats.h5\n"
               "deadwood collect -m mini.gguf -s a.h5 b.h5 -o both.h5 --export-imatrix mini.imatrix.gguf",
    .rows = rows};

/* ---- sums inside the pass -------------------------------------------------------------------------------------- */

enum {
    UNIT = 128,         // columns that one thread takes together: whole groups of neurons
    TILE = 4 * UNIT,    // columns whose sums stay in the cache while all rows are added
    BATCH_TOKENS = 512, // of one pass; longer windows take several passes
};

typedef struct collector {
    kit_stats *s;
    size_t to;                 // the row of s that the sums of this text go to
    const column_sums *loops;
    int n_row, *row;           // tokens of the pass whose position counts
    int n_sampled, *sampled;   // those of them that enter histograms
    float *before;             // (tokens, n_embd): residual before the layer
    double *power;             // (tokens): its square
    double *cosine, *inverse;  // (n_layer, tokens)
    int n_batch;
    collect_gram *gram;        // may be closed
} collector;

/* Of a token's time with gradients: the training pass takes about twice as long as the pass of the statistics. */
#define GRADIENT_SHARE (2.0 / 3)

/* Thread ith takes columns first .. end - 1, which are whole units. */
static void share(int n, int ith, int n_threads, int *first, int *end) {
    const long n_unit = (n + UNIT - 1) / UNIT;
    *first = (int)(n_unit * ith / n_threads) * UNIT;
    *end = (int)(n_unit * (ith + 1) / n_threads) * UNIT;
    if (*end > n) *end = n;
}

/* The counts are integers, so the order of threads changes nothing. */
static void add_counts(uint64_t *hist, const uint32_t *counts) {
    for (int b = 0; b < KIT_STATS_BINS; b++)
        if (counts[b]) __atomic_fetch_add(&hist[b], counts[b], __ATOMIC_RELAXED);
}

/* Bins of columns first .. first + n - 1 of the i-th sampled row; the next but one is prefetched. */
static void bins_of(const collector *c, const dw_tap_event *e, int i, int first, int n, uint8_t *bin) {
    const float *x = e->values + (size_t)c->sampled[i] * (size_t)e->n + first;
    const float *next = e->values + (size_t)c->sampled[dw_smaller(i + 2, c->n_sampled - 1)] * (size_t)e->n + first;
    for (int j = 0; j < n; j += 16) __builtin_prefetch(next + j);
    c->loops->bins(x, n, bin);
}

/* Counts |x| of all columns in one histogram.  Neighbouring columns use different tables, because an addition to the
 * same counter would have to wait for the one before. */
static void count_inputs(const collector *c, const dw_tap_event *e, int first, int end, uint64_t *hist) {
    enum { TABLES = 8 };
    uint32_t counts[TABLES][KIT_STATS_BINS] = {{0}};
    uint8_t bin[UNIT];
    for (int i = 0; i < c->n_sampled; i++) {
        for (int j = first; j < end; j += UNIT) {
            const int n = dw_smaller(UNIT, end - j);
            bins_of(c, e, i, j, n, bin);
            for (int k = 0; k < n; k++) counts[k % TABLES][bin[k]]++;
        }
    }
    for (int k = 0; k < TABLES; k++) add_counts(hist, counts[k]);
}

static void add_input(const collector *c, const dw_tap_event *e, kit_stats_input k, int first, int end) {
    kit_stats_layer *w = &c->s->layer[e->layer];
    double *square = w->text_square[k] + c->to * (size_t)e->n;
    for (int j = first; j < end; j += TILE)
        c->loops->squares(e->values + j, (size_t)e->n, c->row, c->n_row, dw_smaller(TILE, end - j), square + j);
    if (first < end) count_inputs(c, e, first, end, w->input_hist[k]);
}

static void add_output(const collector *c, const dw_tap_event *e, int first, int end) {
    double *square = c->s->text_output_square + c->to * (size_t)e->n;
    for (int j = first; j < end; j += TILE)
        c->loops->squares(e->values + j, (size_t)e->n, c->row, c->n_row, dw_smaller(TILE, end - j), square + j);
}

/* Histograms of the neurons of a unit.  Rows are counted in bytes, which stay in L1 with the values, and added after at
 * most ROWS_COUNTED of them. */
enum { ROWS_COUNTED = 255 };

typedef struct unit_counts {
    const column_sums *loops;
    int n, n_rows; // neurons; rows since the last addition
    uint8_t of[UNIT][KIT_STATS_BINS];
    uint32_t *hist; // (n, KIT_STATS_BINS)
} unit_counts;

static unit_counts counts_of_unit(const collector *c, uint32_t *hist, int first, int n) {
    return (unit_counts){.loops = c->loops, .n = n, .hist = hist + (size_t)first * KIT_STATS_BINS};
}

static void flush_counts(unit_counts *u) {
    u->loops->add_bytes(u->of[0], u->n * KIT_STATS_BINS, u->hist);
    memset(u->of, 0, (size_t)u->n * sizeof *u->of);
    u->n_rows = 0;
}

static void count_row(unit_counts *u, const uint8_t *bin) {
    uint8_t *of = u->of[0];
    for (const uint8_t *end = bin + u->n; bin < end; bin++, of += KIT_STATS_BINS) of[*bin]++;
    if (++u->n_rows == ROWS_COUNTED) flush_counts(u);
}

static void count_neurons(const collector *c, const dw_tap_event *e, int first, int n) {
    unit_counts u = counts_of_unit(c, c->s->layer[e->layer].hist_a, first, n);
    uint8_t bin[UNIT];
    for (int i = 0; i < c->n_sampled; i++) {
        bins_of(c, e, i, first, n, bin);
        count_row(&u, bin);
    }
    flush_counts(&u);
}

static void add_neurons(const collector *c, const dw_tap_event *e, int first, int end) {
    kit_stats_layer *w = &c->s->layer[e->layer];
    for (int j = first; j < end; j += TILE) {
        const size_t to = c->to * (size_t)e->n + (size_t)j;
        const int tile_end = dw_smaller(j + TILE, end);
        c->loops->moments(e->values + j, (size_t)e->n, c->row, c->n_row, tile_end - j, w->sum_a + to, w->sum_abs + to,
                          w->sum_square + to, w->max_abs + to);
        for (int k = j; k < tile_end; k += UNIT) count_neurons(c, e, k, dw_smaller(UNIT, tile_end - k));
    }
}

/* The bin of a group's largest magnitude is the largest bin.  A unit begins at a multiple of every group size, and has
 * zeros after its n neurons. */
static void count_groups(const collector *c, kit_stats_layer *w, const uint8_t *bin, int first, int n) {
    uint8_t largest[UNIT / 32];
    c->loops->largest_of_32(bin, UNIT / 32, largest);
    for (int g = 0, n_group = UNIT / 32; g < KIT_STATS_N_GROUPS; g++, n_group /= 2) {
        const int size = kit_stats_group_sizes[g];
        uint32_t *hist = w->hist_group[g] + (size_t)(first / size) * KIT_STATS_BINS;
        for (int k = 0; k * size < n; k++) hist[k * KIT_STATS_BINS + largest[k]]++;
        for (int k = 0; k < n_group / 2; k++)
            largest[k] = largest[2 * k] > largest[2 * k + 1] ? largest[2 * k] : largest[2 * k + 1];
    }
}

static void add_gates(const collector *c, const dw_tap_event *e, int first, int end) {
    kit_stats_layer *w = &c->s->layer[e->layer];
    uint8_t bin[UNIT] = {0};
    for (int j = first; j < end; j += UNIT) {
        const int n = dw_smaller(UNIT, end - j);
        unit_counts u = counts_of_unit(c, w->hist_gate, j, n);
        memset(bin + n, 0, (size_t)(UNIT - n));
        for (int i = 0; i < c->n_sampled; i++) {
            bins_of(c, e, i, j, n, bin);
            count_row(&u, bin);
            count_groups(c, w, bin, j, n);
        }
        flush_counts(&u);
    }
}

/* Cosines between the residuals before and after the layer below, 1 / ||x||^2 of the latter, and the residual for the
 * next layer. */
static void add_residual(collector *c, const dw_tap_event *e, int ith, int n_threads) {
    const size_t n = (size_t)e->n;
    for (int i = c->n_row * ith / n_threads; i < c->n_row * (ith + 1) / n_threads; i++) {
        const float *x = e->values + (size_t)c->row[i] * n;
        double power;
        const double dot = c->loops->replace(c->before + (size_t)i * n, x, e->n, &power);
        const double both = sqrt(c->power[i] * power);
        if (e->layer > 0) {
            const size_t at = (size_t)(e->layer - 1) * (size_t)c->n_batch + (size_t)i;
            c->cosine[at] = both != 0 ? dot / both : 0;
            c->inverse[at] = power > 0 ? 1 / power : 0;
        }
        c->power[i] = power;
    }
}

static void look(void *ctx, const dw_tap_event *e, int ith, int n_threads) {
    collector *c = ctx;
    int first, end;
    share(e->n, ith, n_threads, &first, &end);
    gram_sums_add(&c->gram->sums, e, c->row, c->n_row, ith, n_threads);
    switch (e->point) {
    case DW_TAP_RESIDUAL: add_residual(c, e, ith, n_threads); break;
    case DW_TAP_ATTN_IN: add_input(c, e, KIT_STATS_ATTN_IN, first, end); break;
    case DW_TAP_ATTN_MIX: add_input(c, e, KIT_STATS_ATTN_MIX, first, end); break;
    case DW_TAP_FFN_IN: add_input(c, e, KIT_STATS_FFN_IN, first, end); break;
    case DW_TAP_FFN_GATE: add_gates(c, e, first, end); break;
    case DW_TAP_FFN_NEURON: add_neurons(c, e, first, end); break;
    case DW_TAP_HEAD_IN: add_output(c, e, first, end); break;
    default: break;
    }
}

static dw_tap collector_tap(collector *c) {
    return (dw_tap){.points = (1u << DW_N_TAP_POINTS) - 1, .ctx = c, .fn_thread = look, .gate_every = o.hist_every};
}

/* ---- one text --------------------------------------------------------------------------------------------------- */

typedef struct run { // everything that evaluating needs
    dw_model *model;
    dw_pool *pool;
    dw_session *session;
    calib_texts texts;
    collector c;
    collect_gram gram;
    dw_session_options walking; // of its second pass
    collect_gradients gradients; // may be closed
    int n_seq, n_batch;     // windows of one pass; tokens
    int32_t *token, *seq, *pos;
    uint8_t *out;
    dw_hold *hold; // of OUT.part; NULL: nothing is kept
    progress *bar;
} run;

typedef struct pass { // tokens first .. first + n - 1 of windows `window` .. window + n_window - 1 of a text
    int window, n_window, first, n;
} pass;

static void fill_batch(run *r, const calib_text *text, const pass *x) {
    collector *c = &r->c;
    c->n_row = c->n_sampled = 0;
    for (int i = 0; i < x->n_window; i++) {
        const int first_new = calib_first_new(&r->texts, text, x->window + i, o.skip);
        if (x->first == 0) dw_session_rewind(r->session, i, 0);
        calib_window(&r->texts, text, x->window + i, r->token + (size_t)i * (size_t)o.n_ctx);
        for (int p = x->first; p < x->first + x->n; p++) {
            const int at = i * x->n + p - x->first;
            r->token[at] = r->token[i * o.n_ctx + p]; // at is not larger, so nothing is overwritten before it is read
            r->seq[at] = i;
            r->pos[at] = p;
            if (p < first_new) continue;
            c->row[c->n_row++] = at;
            if (p % o.hist_every == 0) c->sampled[c->n_sampled++] = at;
        }
    }
}

/* One pass, and its sums. */
static int eval(run *r, const calib_text *text, const pass *x, dw_err *err) {
    collector *c = &r->c;
    fill_batch(r, text, x);
    const dw_batch batch = {
        .n_tokens = x->n_window * x->n, .token = r->token, .seq = r->seq, .pos = r->pos, .out = r->out};
    if (dw_session_eval(r->session, &batch, err)) return -1;
    for (int l = 0; l < c->s->n_layer; l++) {
        kit_stats_layer *w = &c->s->layer[l];
        const size_t at = (size_t)l * (size_t)c->n_batch;
        for (int i = 0; i < c->n_row; i++) {
            w->text_cosine[c->to] += c->cosine[at + (size_t)i];
            w->text_inverse[c->to] += c->inverse[at + (size_t)i];
        }
    }
    progress_step(r->bar, x->n_window * x->n * (o.gradients ? 1 - GRADIENT_SHARE : 1));
    return 0;
}

static int eval_windows(run *r, const calib_text *text, int window, int n_window, dw_err *err) {
    for (int first = 0; first < o.n_ctx; first += r->n_batch)
        if (eval(r, text, &(pass){window, n_window, first, dw_smaller(o.n_ctx - first, r->n_batch)}, err)) return -1;
    return 0;
}

static int check_sums(const double *sums, size_t n, int l, const char *what, const calib_text *text, dw_err *err) {
    for (size_t j = 0; j < n; j++)
        if (!isfinite(sums[j]))
            return dw_fail(
                err, "layer %d: %s of '%s' became NaN or infinite in column %zu; the model is damaged or overflows", l,
                what, text->name, j);
    return 0;
}

/* Refuses sums that are NaN or infinite; names the first place in the order of the pass. */
static int check_text(const collector *c, const calib_text *text, dw_err *err) {
    static const char *const what[] = {"the input of q, k, v", "the input of attn_output", "the input of gate and up",
                                       "the neurons"};
    for (int l = 0; l < c->s->n_layer; l++) {
        const kit_stats_layer *w = &c->s->layer[l];
        for (int k = 0; k < KIT_STATS_N_INPUTS; k++) {
            const size_t n = (size_t)w->n_input[k];
            if (n && check_sums(w->text_square[k] + c->to * n, n, l, what[k], text, err)) return -1;
        }
        if (check_sums(w->text_cosine + c->to, 1, l, "the residual", text, err)) return -1;
        const size_t n_ff = c->s->has_gradients ? (size_t)w->n_ff : 0;
        if (n_ff && check_sums(w->sum_fisher + c->to * n_ff, n_ff, l, "the neurons' gradient", text, err)) return -1;
    }
    const size_t n = (size_t)c->s->n_embd;
    return check_sums(c->s->text_output_square + c->to * n, n, c->s->n_layer, "the input of the output matrix", text,
                      err);
}

static int eval_text(run *r, const calib_text *text, dw_err *err) {
    const int n_all = calib_n_windows(text);
    for (int w = 0; w < n_all; w += r->n_seq)
        if (eval_windows(r, text, w, dw_smaller(r->n_seq, n_all - w), err)) return -1;
    return 0;
}

/* The windows once more, through the backward pass. */
static int differentiate_text(run *r, const calib_text *text, dw_err *err) {
    collect_gradients *g = &r->gradients;
    const int n_all = calib_n_windows(text);
    g->to = r->c.to;
    for (int w = 0, n; w < n_all && o.gradients; w += n) {
        n = dw_smaller(g->n_seq, n_all - w);
        if (collect_gradients_add(g, &r->texts, text, w, n, o.skip, err)) return -1;
        progress_step(r->bar, n * o.n_ctx * GRADIENT_SHARE);
    }
    return 0;
}

static int add_text(run *r, const calib_text *text, dw_err *err) {
    kit_stats *s = r->c.s;
    kit_stats_text *t = &s->text[s->n_text];
    r->c.to = t->row;
    if (eval_text(r, text, err) || differentiate_text(r, text, err) || check_text(&r->c, text, err)) return -1;
    t->blocks = lineage_blocks(text->token, (size_t)text->n_windows * (size_t)o.n_ctx + (size_t)text->n_tail, err);
    if (!t->blocks) return -1;
    for (int l = 0; l < s->n_layer; l++) {
        s->layer[l].count[t->row] += t->n_tokens;
        s->layer[l].text_n_cosine[t->row] += t->n_tokens;
    }
    s->n_text++;
    if (s->n_row <= t->row) s->n_row = t->row + 1;
    return 0;
}

/* The input histogram of down is the sum over its neurons. */
static void sum_neuron_hists(kit_stats *s) {
    for (int l = 0; l < s->n_layer; l++) {
        const kit_stats_layer *w = &s->layer[l];
        uint64_t *hist = w->input_hist[KIT_STATS_FFN_NEURON];
        for (int b = 0; b < KIT_STATS_BINS && w->n_ff; b++) hist[b] = 0;
        for (size_t i = 0; i < (size_t)w->n_ff * KIT_STATS_BINS; i++) hist[i % KIT_STATS_BINS] += w->hist_a[i];
    }
}

/* ---- what is there already ------------------------------------------------------------------------------ */

static int make_stats(kit_stats *s, const dw_model *m, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(m);
    int *n_mix = dw_alloc((size_t)hp->n_layer, sizeof *n_mix, "statistics", err);
    if (!n_mix) return -1;
    for (int l = 0; l < hp->n_layer; l++) n_mix[l] = hp->n_head[l] * hp->head_dim;
    const int rc = kit_stats_init(s, hp->n_layer, hp->n_embd, hp->n_ff, n_mix, 1, err);
    free(n_mix);
    return rc || (o.gradients && kit_stats_add_gradients(s, err)) ? -1 : 0;
}

static int set_arguments(kit_stats *s, dw_err *err) {
    free(s->arguments);
    s->arguments = lineage_arguments(&program, err);
    return s->arguments ? 0 : -1;
}

static int set_header(kit_stats *s, const dw_model *m, const char *model_sha256, dw_err *err) {
    snprintf(s->model_sha256, sizeof s->model_sha256, "%s", model_sha256);
    snprintf(s->arch, sizeof s->arch, "%s", dw_model_hparams(m)->arch);
    tool_backend_text(s->backend);
    s->n_ctx = o.n_ctx;
    s->skip = o.skip;
    s->hist_every = o.hist_every;
    return set_arguments(s, err);
}

/* What is known of a text before it is evaluated. */
static void describe_text(kit_stats_text *to, const calib_texts *texts, size_t t, size_t row) {
    const calib_text *x = &texts->text[t];
    *to = (kit_stats_text){.first_window = x->first_window, .n_windows = x->n_windows, .row = row};
    to->n_tokens = calib_n_counted(texts, x, o.skip);
    snprintf(to->name, sizeof to->name, "%s", x->name);
    snprintf(to->sha256, sizeof to->sha256, "%s", x->sha256);
}

/* Whether finished texts are the first ones of this run. */
static bool is_beginning(const kit_stats *s, const char *model_sha256, const calib_texts *texts) {
    char backend[32];
    tool_backend_text(backend);
    if (strcmp(s->model_sha256, model_sha256) || strcmp(s->backend, backend) || s->n_text > texts->n_text) return false;
    if (s->n_ctx != o.n_ctx || s->skip != o.skip || s->hist_every != o.hist_every) return false;
    if (s->has_gradients != o.gradients) return false;
    for (size_t t = 0; t < s->n_text; t++) {
        kit_stats_text wanted;
        describe_text(&wanted, texts, t, t < (size_t)o.apart ? t : (size_t)o.apart);
        if (!collect_same_text(&s->text[t], &wanted) || s->text[t].row != wanted.row) return false;
    }
    return true;
}

/* Reads the finished texts of an interrupted run of the same command. */
static int resume(kit_stats *s, run *r, const char *path, const char *model_sha256, dw_err *err) {
    if (kit_stats_read(s, path, err))
        return dw_fail_in(err, "cannot continue after the texts of '%s' (remove it to begin again)", path);
    if (!is_beginning(s, model_sha256, &r->texts)) return tool_other_run(path, err);
    if (!collect_gram_resume(&r->gram, s, path))
        return dw_fail(err,
                       "the Gram matrices of '%s' are missing or damaged; remove it to begin again, or choose another "
                       "-o",
                       path);
    say("going on after text %zu of %zu, which '%s' has", s->n_text, r->texts.n_text, path);
    say_if_interrupted(path);
    return 0;
}

/* Statistics with room for all texts.  Finished ones come first. */
static int prepare(kit_stats *s, run *r, const char *model_sha256, const char *kept, dw_err *err) {
    const calib_texts *texts = &r->texts;
    const bool resumes = kept && dw_hold_is_kept(r->hold);
    if (resumes ? resume(s, r, kept, model_sha256, err) : make_stats(s, r->model, err)) return -1;
    if (!resumes) s->n_text = s->n_row = 0;
    s->apart = (size_t)o.apart;
    const size_t n_row = kit_stats_next_row(s, texts->n_text - 1) + 1;
    if (set_header(s, r->model, model_sha256, err) || kit_stats_reserve(s, texts->n_text, n_row, err)) return -1;
    for (size_t t = s->n_text; t < texts->n_text; t++)
        describe_text(&s->text[t], texts, t, kit_stats_next_row(s, t));
    return 0;
}

/* How many tokens there are, how the texts are kept, and how much memory their sums take. */
static void tell_texts(const kit_stats *s, const calib_texts *texts) {
    const size_t n_row = kit_stats_next_row(s, texts->n_text - 1) + 1, n_pooled = texts->n_text - n_row + 1;
    double n_tail = 0, n = 0;
    for (size_t t = 0; t < texts->n_text; t++) {
        n_tail += texts->text[t].n_tail;
        n += (double)texts->text[t].n_windows * o.n_ctx + texts->text[t].n_tail;
    }
    say("%zu text%s of %.0f tokens, %.0f of them after the last whole window of a file; sums take %s of memory, and as "
        "much again while they are written",
        texts->n_text, plural((double)texts->n_text), n, n_tail, show_bytes((double)kit_stats_bytes(s, n_row)).text);
    if (n_pooled > 1)
        say("the first %zu texts are kept apart, the other %zu are pooled (--apart)", n_row - 1, n_pooled);
}

/* Whether the texts can be added to the parts.  This is checked before the texts are evaluated. */
static int check_parts(const kit_stats *parts, kit_stats *s, size_t n_text, dw_err *err) {
    const size_t n_finished = s->n_text;
    s->n_text = n_text;
    const int rc = kit_stats_can_add(parts, s, err);
    s->n_text = n_finished;
    return rc;
}

/* Writes the finished texts to OUT.part, but spends at most a twentieth of the time on it. */
typedef struct keeper {
    const char *path;
    const collect_gram *gram;
    double next;
} keeper;

static int keep(keeper *k, kit_stats *s, dw_err *err) {
    const double began = dw_now();
    if (!k->path || began < k->next) return 0;
    sum_neuron_hists(s);
    if (collect_gram_keep(k->gram, s, k->path, err) || kit_stats_keep(s, k->path, err) ||
        collect_gram_kept(k->gram, k->path, err))
        return -1;
    say_if_interrupted(k->path);
    k->next = dw_now() + 20 * (dw_now() - began);
    return 0;
}

/* ---- a run ---------------------------------------------------------------------------------------------- */

static int open_run(run *r, kit_stats *s, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(r->model);
    r->n_seq = o.n_ctx < BATCH_TOKENS ? BATCH_TOKENS / o.n_ctx : 1;
    r->n_batch = dw_smaller(r->n_seq * o.n_ctx, BATCH_TOKENS);
    const size_t n = (size_t)r->n_batch, n_read = (size_t)r->n_seq * (size_t)o.n_ctx;
    r->c = (collector){.s = s, .n_batch = r->n_batch, .loops = column_sums_choose(err), .gram = &r->gram};
    if (!r->c.loops) return -1;
    const dw_session_options so = {.pool = r->pool, .backend = tool.backend, .n_ctx = o.n_ctx, .n_seq = r->n_seq,
                                   .n_batch = r->n_batch, .precision = DW_PRECISION_ROUNDED,
                                   .select = DW_SELECT_FUSED}; // not auto: it measures time
    r->session = dw_session_new(r->model, &so, err);
    r->token = dw_alloc(n_read, sizeof *r->token, "a batch", err);
    r->seq = dw_alloc(n, sizeof *r->seq, "a batch", err);
    r->pos = dw_alloc(n, sizeof *r->pos, "a batch", err);
    r->out = dw_alloc(n, 1, "a batch", err);
    r->c.row = dw_alloc(n, sizeof *r->c.row, "a batch", err);
    r->c.sampled = dw_alloc(n, sizeof *r->c.sampled, "a batch", err);
    r->c.before = dw_alloc(n * (size_t)hp->n_embd, sizeof *r->c.before, "a batch", err);
    r->c.power = dw_alloc(n, sizeof *r->c.power, "a batch", err);
    r->c.cosine = dw_alloc(n * (size_t)hp->n_layer, sizeof *r->c.cosine, "a batch", err);
    r->c.inverse = dw_alloc(n * (size_t)hp->n_layer, sizeof *r->c.inverse, "a batch", err);
    if (!r->session || !r->token || !r->seq || !r->pos || !r->out || !r->c.row || !r->c.sampled) return -1;
    if (!r->c.before || !r->c.power || !r->c.cosine || !r->c.inverse) return -1;
    memset(r->out, 1, n);
    const dw_tap tap = collector_tap(&r->c);
    dw_session_set_tap(r->session, &tap);
    return 0;
}

static void close_run(run *r) {
    collect_gradients_close(&r->gradients);
    collect_gram_close(&r->gram);
    calib_release(&r->texts);
    dw_session_free(r->session);
    dw_pool_free(r->pool);
    free(r->token), free(r->seq), free(r->pos), free(r->out);
    free(r->c.row), free(r->c.sampled), free(r->c.before), free(r->c.power);
    free(r->c.cosine), free(r->c.inverse);
}

/* Tokens that are still to be evaluated.  That of a tail is a whole window, although only its new tokens count. */
static double n_left(const calib_texts *texts, size_t n_finished) {
    double n = 0;
    for (size_t t = n_finished; t < texts->n_text; t++) n += (double)calib_n_windows(&texts->text[t]) * o.n_ctx;
    return n;
}

static int collect_texts(run *r, const char *kept, dw_err *err) {
    kit_stats *s = r->c.s;
    const double n_tokens = n_left(&r->texts, s->n_text), began = dw_now();
    keeper k = {.path = kept, .gram = r->c.gram};
    int rc = 0;
    r->bar = progress_begin("collecting", "tokens", n_tokens);
    while (s->n_text < r->texts.n_text && !rc) {
        rc = add_text(r, &r->texts.text[s->n_text], err);
        if (!rc && s->n_text < r->texts.n_text) rc = keep(&k, s, err);
    }
    const double seconds = dw_now() - began;
    progress_end(r->bar);
    if (rc) return -1;
    sum_neuron_hists(s);
    kit_stats_total(s);
    say("%.0f token%s in %.2f s (those that last windows repeat are counted): %.0f tokens/s", n_tokens,
        plural(n_tokens), seconds, n_tokens / (seconds > 0 ? seconds : 1));
    if (r->gradients.n_nll)
        say("gradients of a mean loss of %.4f nats a token in this run", r->gradients.nll / (double)r->gradients.n_nll);
    return 0;
}

static bool writes_gram(void) { return o.gram || o.gradients; }

/* Room for STATS.gram, which is written after everything has been evaluated. */
static int need_disk(const collect_gram *g, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(g->model);
    double bytes = gram_bytes(hp, g->inputs, 0, hp->n_layer);
    if (g->with_gradients) bytes += gram_bytes(hp, &gram_inputs_gradient, 0, hp->n_layer);
    char *path = kit_gram_path(o.out, err);
    const int rc = path ? kit_need_disk(path, bytes, err) : -1;
    free(path);
    return rc;
}

/* A pool for all that computes, and what --gram and --gradients ask for.  Texts are read before, and s is the sum of
 * the parts. */
static int open_gram(run *r, const kit_stats *s, dw_err *err) {
    if (!(r->pool = dw_pool_new(tool.threads, err))) return -1;
    if (!writes_gram()) return 0;
    r->walking = (dw_session_options){.pool = r->pool, .backend = tool.backend};
    r->gram = (collect_gram){.inputs = o.gram ? gram_inputs_find(o.gram) : &gram_inputs_none,
                             .with_gradients = o.gradients,
                             .model = r->model,
                             .texts = o.texts.n ? &r->texts : NULL,
                             .skip = o.skip,
                             .session = &r->walking};
    if (need_disk(&r->gram, err) || collect_gram_open_parts(&r->gram, &o.parts, s, err)) return -1;
    return collect_gram_open(&r->gram, (double)o.gram_memory, dw_pool_size(r->pool), err);
}

static int write_gram(run *r, const kit_stats *s, dw_err *err) {
    if (!writes_gram()) return 0;
    r->gram.bar = progress_begin("Gram matrices", "tokens",
                                 r->gram.texts && r->gram.by_layer ? (double)calib_n_tokens(&r->texts) : 1);
    const int rc = collect_gram_write(&r->gram, s, o.out, err);
    progress_end(r->gram.bar);
    return rc;
}

/* The backward pass, if it is wanted, and what it takes. */
static int open_gradients(run *r, kit_stats *s, dw_err *err) {
    collect_gradients *g = &r->gradients;
    if (!o.gradients) return 0;
    if (collect_gradients_open(g, r->model, o.n_ctx, &(dw_session_options){.pool = r->pool, .backend = tool.backend},
                               err))
        return dw_fail_in(err, "--gradients");
    g->s = s;
    g->covariance = &r->gram.gradients;
    say("gradients: a pass of %d windows takes %s of memory, the sums of g g^T %s", g->n_seq,
        show_bytes(collect_gradients_bytes(g)).text,
        show_bytes(gram_bytes(dw_model_hparams(r->model), &gram_inputs_gradient, 0, s->n_layer)).text);
    return 0;
}

/* Makes room for the sums of the texts, so that all refusals come before the work. */
static int begin_texts(run *r, kit_stats *s, const kit_stats *parts, const char *model_sha256, const char *kept,
                       dw_err *err) {
    if (prepare(s, r, model_sha256, kept, err)) return -1;
    if (parts && check_parts(parts, s, r->texts.n_text, err)) return -1;
    tell_texts(s, &r->texts);
    return open_run(r, s, err) ? -1 : open_gradients(r, s, err);
}

/* Adds the texts of -f to those of -s. */
static int run_texts(run *r, kit_stats *sum, bool has_parts, const char *model_sha256, dw_err *err) {
    kit_stats s = {0};
    char *kept = o.out ? dw_format(err, "%s.part", o.out) : NULL;
    if (o.out && (!kept || !(r->hold = dw_hold_take(kept, err)))) return -1;
    if (begin_texts(r, &s, has_parts ? sum : NULL, model_sha256, kept, err) || collect_texts(r, kept, err)) return -1;
    if (has_parts) {
        if (kit_stats_add(sum, &s, err)) return -1;
        kit_stats_release(&s);
    } else {
        *sum = s;
    }
    free(kept);
    return 0;
}

/* The first part is read whole, of the others one layer at a time. */
static int add_part(kit_stats *sum, const char *path, bool is_first, const char *model_sha256, dw_err *err) {
    kit_stats part;
    if (is_first ? kit_stats_read(sum, path, err) : kit_stats_open(&part, path, err)) return -1;
    if (kit_stats_check_model(is_first ? sum : &part, path, o.model, model_sha256, err)) return -1;
    sum->apart = (size_t)o.apart;
    if (o.gradients && kit_stats_check_gradients(is_first ? sum : &part, "--gradients", err))
        return dw_fail_in(err, "'%s'", path);
    if (is_first) return 0;
    if (kit_stats_add(sum, &part, err)) return dw_fail_in(err, "'%s'", path);
    kit_stats_release(&part);
    return 0;
}

static int add_parts(kit_stats *sum, const char *model_sha256, dw_err *err) {
    for (size_t i = 0; i < o.parts.n; i++)
        if (add_part(sum, o.parts.item[i], i == 0, model_sha256, err)) return -1;
    return 0;
}

/* ---- importance matrices -------------------------------------------------------------------------------- */

static int import_imatrix(kit_stats *s, dw_model *m, const char *model_sha256, dw_err *err) {
    kit_imatrix im;
    if (kit_imatrix_read(&im, o.import_imatrix, err) || make_stats(s, m, err) || set_header(s, m, model_sha256, err))
        return -1;
    kit_stats_text *t = &s->text[0];
    calib_name(t->name, o.import_imatrix);
    t->first_window = 1;
    t->blocks = dw_strdup("", err);
    snprintf(s->backend, sizeof s->backend, "imatrix");
    s->skip = 0;
    s->hist_every = 1;
    if (!t->blocks || kit_sha256_file(o.import_imatrix, t->sha256, err)) return -1;
    const int rc = kit_imatrix_to_stats(&im, s, err);
    kit_imatrix_release(&im);
    return rc ? dw_fail_in(err, "'%s'", o.import_imatrix) : 0;
}

static void tell_import(const kit_stats *s) {
    say("'%s': sums of squares of the inputs of %d layers over %.0f %s, from '%s'; nothing of single neurons", o.out,
        s->n_layer, (double)s->text[0].n_tokens, s->n_ctx ? "tokens" : "calls, which the old form counts for tokens",
        o.import_imatrix);
}

static int export_imatrix(const kit_stats *s, const dw_model *m, dw_err *err) {
    kit_imatrix im;
    const size_t n = strlen(o.export_imatrix);
    const kit_imatrix_form form = n > 4 && !strcmp(o.export_imatrix + n - 4, ".dat") ? KIT_IMATRIX_OLD
                                                                                     : KIT_IMATRIX_GGUF;
    if (kit_imatrix_from_stats(&im, s, dw_model_gguf(m), false, err)) return -1;
    const int rc = kit_imatrix_write(&im, o.export_imatrix, form, err);
    kit_imatrix_release(&im);
    return rc;
}

/* ---- main ----------------------------------------------------------------------------------------------- */

/* Histograms see the counted positions that are multiples of --hist-every. */
static bool samples_a_position(void) { return (o.skip + o.hist_every - 1) / o.hist_every * o.hist_every < o.n_ctx; }

static void check_usage(void) {
    if (!o.out && !o.export_imatrix) die_usage("nothing to write: give -o or --export-imatrix");
    if (!o.texts.n && !o.parts.n && !o.import_imatrix)
        die_usage("nothing to read: give texts (-f), statistics (-s) or --import-imatrix");
    if (o.import_imatrix && (o.texts.n || o.parts.n)) die_usage("--import-imatrix cannot be combined with -f or -s");
    if (writes_gram() && (!o.out || o.import_imatrix))
        die_usage("--%s writes STATS.gram beside the statistics of texts: give -o, and texts (-f) or parts (-s)",
                  o.gram ? "gram" : "gradients");
    if (o.gradients && o.n_ctx < 2) die_usage("--gradients needs windows of two tokens or more: one has no next token");
    if (o.skip >= o.n_ctx) die_usage("a window of %d tokens has nothing left when %d are skipped", o.n_ctx, o.skip);
    if (o.texts.n && !samples_a_position())
        die_usage("no position from %d to %d is a multiple of %d, so the histograms would be empty; lower --hist-every",
                  o.skip, o.n_ctx - 1, o.hist_every);
}

int main(int argc, char **argv) {
    opt_parse(&program, argc, argv);
    check_usage();
    dw_err err = {0};
    kit_stats s = {0};
    run r = {0};
    char model_sha256[65];
    if (writes_gram()) kit_blas_start(argv);
    dw_model *m = dw_model_open(o.model, &err);
    if (!m) die_err(&err);
    r.model = m;
    kit_sha256_gguf(dw_model_gguf(m), model_sha256);
    if (o.import_imatrix ? import_imatrix(&s, m, model_sha256, &err) : add_parts(&s, model_sha256, &err)) die_err(&err);
    const calib_request wanted = {&o.texts, o.windows, o.n_ctx, o.text_windows};
    if (o.texts.n && calib_read(&r.texts, m, &wanted, &err)) die_err(&err);
    if ((o.texts.n || writes_gram()) && open_gram(&r, &s, &err)) die_err(&err);
    if (o.texts.n && run_texts(&r, &s, o.parts.n > 0, model_sha256, &err)) die_err(&err);
    if (o.parts.n && set_arguments(&s, &err)) die_err(&err);
    if (write_gram(&r, &s, &err)) die_err(&err);
    if (o.out && kit_stats_write(&s, o.out, &err)) die_err(&err);
    if (o.export_imatrix && export_imatrix(&s, m, &err)) die_err(&err);
    if (o.out && o.import_imatrix) tell_import(&s);
    if (o.out && o.texts.n) {
        char *kept = dw_format(NULL, "%s.part", o.out);
        if (kept) collect_gram_forget(kept); // an interrupted run may have had --gram
        dw_hold_remove(r.hold);
        free(kept);
    }
    close_run(&r);
    kit_stats_release(&s);
    dw_model_close(m);
    return 0;
}
