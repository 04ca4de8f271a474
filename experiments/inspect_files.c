/* inspect_files.c - summaries of files that are no models (inspect_files.h). */
#include "experiments/inspect_files.h"
#include "kit/content.h"
#include "kit/plan.h"
#include "kit/stats.h"
#include "kit/talk.h"
#include "kit/traces.h"
#include "kit/tsv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void inspect_text(dw_str s, size_t most) {
    size_t n = most && s.len > most ? most : s.len;
    while (n < s.len && n && (s.ptr[n] & 0xc0) == 0x80) n--;
    show_text(stdout, s.ptr, n);
    if (n < s.len) printf("...");
}

void inspect_name(const char *name) { inspect_text((dw_str){name, strlen(name)}, 0); }

/* ---- statistics ---------------------------------------------------------------------------------------------- */

/* Quantiles of magnitudes, of all neurons or columns of a layer together. */
enum { N_QUANTILES = 5, N_VALUES = 5 };
static const double quantiles[N_QUANTILES] = {0.1, 0.5, 0.9, 0.99, 0.999};
static const char *const value_names[N_VALUES] = {"neuron", "gate", "attn_in", "attn_mix", "ffn_in"};
static const kit_stats_input inputs_of[N_VALUES] = {KIT_STATS_FFN_NEURON, 0, KIT_STATS_ATTN_IN, KIT_STATS_ATTN_MIX,
                                                    KIT_STATS_FFN_IN};

typedef struct layer_quantiles {
    double of[N_VALUES][N_QUANTILES]; // NaN: none
} layer_quantiles;

static void sum_gates(const kit_stats_layer *w, uint64_t *hist) {
    memset(hist, 0, KIT_STATS_BINS * sizeof *hist);
    for (size_t i = 0; i < (size_t)w->n_ff * KIT_STATS_BINS; i++) hist[i % KIT_STATS_BINS] += w->hist_gate[i];
}

static int take_quantiles(layer_quantiles *q, const kit_stats *s, int l, dw_err *err) {
    const kit_stats_layer *w = &s->layer[l];
    uint64_t gates[KIT_STATS_BINS];
    if (kit_stats_need_layer(s, l, err)) return -1;
    sum_gates(w, gates);
    for (int v = 0; v < N_VALUES; v++) {
        const bool is_gate = v == 1;
        const uint64_t *hist = is_gate ? gates : w->input_hist[inputs_of[v]];
        for (int i = 0; i < N_QUANTILES; i++) q->of[v][i] = hist ? kit_stats_quantile(hist, quantiles[i]) : (double)NAN;
    }
    return 0;
}

static void print_head(const kit_stats *s) {
    printf("%-18s", "statistics of");
    inspect_name(s->arch);
    printf(", sha256 %.12s\n", s->model_sha256);
    printf("%-18s%d of width %d\n", "layers", s->n_layer, s->n_embd);
    printf("%-18s%d, the first %d positions left out\n", "window", s->n_ctx, s->skip);
    printf("%-18s1 of %d position%s\n", "histograms", s->hist_every, plural(s->hist_every));
    printf("%-18s", "backend");
    inspect_name(s->backend);
    printf("\n%-18s", "arguments");
    inspect_name(s->arguments);
    if (s->has_gradients) printf("\n%-18sof |a g| and (a g)^2, g = dL/da of the texts' own next tokens", "gradients");
    if (s->n_row < s->n_text) printf("\n%-18s%zu rows of sums for %zu texts", "pooled", s->n_row, s->n_text);
    printf("\n");
}

static void print_texts(const kit_stats_text *text, size_t n) {
    printf("text\twindows\ttokens\tsha256\n");
    for (size_t t = 0; t < n; t++) {
        const kit_stats_text *x = &text[t];
        inspect_name(x->name);
        printf("\t%d-%d\t%llu\t%.12s\n", x->first_window, x->first_window + x->n_windows - 1,
               (unsigned long long)x->n_tokens, x->sha256);
    }
}

static void print_influence(const kit_stats *s) {
    printf("layer\twidth\tinfluence\n");
    for (int l = 0; l < s->n_layer; l++) {
        const kit_stats_layer *w = &s->layer[l];
        if (w->n_cosine)
            printf("%d\t%d\t%.6f\n", l, w->n_ff, 1 - w->sum_cosine / (double)w->n_cosine);
        else
            printf("%d\t%d\t-\n", l, w->n_ff);
    }
}

/* Values are magnitudes: |a| of neurons, |act(gate)|, |x| of inputs. */
static void print_quantiles(const layer_quantiles *q, int n_layer) {
    printf("layer\tmagnitude");
    for (int i = 0; i < N_QUANTILES; i++) printf("\tp%g", 100 * quantiles[i]);
    printf("\n");
    for (int l = 0; l < n_layer; l++)
        for (int v = 0; v < N_VALUES; v++) {
            if (isnan(q[l].of[v][0])) continue;
            printf("%d\t%s", l, value_names[v]);
            for (int i = 0; i < N_QUANTILES; i++) printf("\t%.4g", q[l].of[v][i]);
            printf("\n");
        }
}

static int inspect_stats(const char *path, dw_err *err) {
    kit_stats s;
    if (kit_stats_open(&s, path, err)) return -1;
    layer_quantiles *q = dw_alloc((size_t)s.n_layer, sizeof *q, "quantiles", err);
    int rc = q ? 0 : -1;
    for (int l = 0; l < s.n_layer && !rc; l++) rc = take_quantiles(&q[l], &s, l, err);
    if (!rc) {
        print_head(&s);
        print_texts(s.text, s.n_text);
        print_influence(&s);
        print_quantiles(q, s.n_layer);
    }
    free(q);
    kit_stats_release(&s);
    return rc;
}

/* ---- traces ---------------------------------------------------------------------------------------------------- */

enum { TRACE_ROWS = 4096 };

/* *open: the share of a layer's groups that the gate opens. */
static int open_share(const traces *t, int l, double *open, dw_err *err) {
    const size_t row_bytes = traces_row_bytes(t, l, TRACES_OPEN);
    double n_open = 0;
    *open = NAN;
    if (!row_bytes) return 0;
    uint8_t *rows = dw_alloc(TRACE_ROWS, row_bytes, "rows of traces", err);
    int rc = rows ? 0 : -1;
    for (size_t first = 0, n; first < t->n_tokens && !rc; first += n) {
        n = t->n_tokens - first < TRACE_ROWS ? t->n_tokens - first : TRACE_ROWS;
        rc = traces_read(t, l, TRACES_OPEN, first, n, rows, err);
        for (size_t i = 0; i < n * row_bytes && !rc; i++)
            n_open += __builtin_popcount(rows[i]); // bits after the last are 0
    }
    free(rows);
    *open = n_open / ((double)t->n_tokens * t->layer[l].n_groups);
    return rc;
}

static void print_traces(const traces *t, const double *open) {
    printf("%-18s", "traces of");
    inspect_name(t->arch);
    printf(", sha256 %.12s\n", t->model_sha256);
    printf("%-18s%d of width %d\n", "layers", t->n_layer, t->n_embd);
    printf("%-18s%zu, in windows of %d without the first %d\n", "tokens", t->n_tokens, t->n_ctx, t->skip);
    printf("%-18s%d neurons\n", "group", t->group);
    printf("%-18s", "backend");
    inspect_name(t->backend);
    printf("\n%-18s", "arguments");
    inspect_name(t->arguments);
    printf("\n");
    print_texts(t->text, t->n_text);
    printf("layer\tgroups\topen\n");
    for (int l = 0; l < t->n_layer; l++) {
        if (t->layer[l].n_groups)
            printf("%d\t%d\t%.4f\n", l, t->layer[l].n_groups, open[l]);
        else
            printf("%d\t-\t-\n", l);
    }
}

static int inspect_traces(const char *path, dw_err *err) {
    traces t;
    if (traces_open(&t, path, err)) return -1;
    double *open = dw_alloc((size_t)t.n_layer, sizeof *open, "shares of layers", err);
    int rc = open ? 0 : -1;
    for (int l = 0; l < t.n_layer && !rc; l++) rc = open_share(&t, l, &open[l], err);
    if (!rc) print_traces(&t, open);
    free(open);
    traces_release(&t);
    return rc ? dw_fail_in(err, "'%s'", path) : 0;
}

/* ---- plans and tables ------------------------------------------------------------------------------------- */

static int inspect_plan(const char *path, dw_err *err) {
    kit_plan p;
    if (kit_plan_read(&p, path, NULL, 0, err)) return -1;
    show_lines(stdout, p.comment);
    printf("\nlayer\twidth\tspans\n");
    for (int l = 0; l < p.n_layer; l++) {
        if (p.layer[l].drop)
            printf("%d\t0\tdrop\n", l);
        else
            printf("%d\t%d\t%zu\n", l, p.layer[l].n_keep, p.layer[l].n_span);
    }
    for (size_t i = 0; i < p.n_text; i++) {
        printf("text\t");
        inspect_name(p.text[i].name);
        printf("\t%llu tokens\n", (unsigned long long)p.text[i].n_tokens);
    }
    kit_plan_release(&p);
    return 0;
}

/* The first INSPECT_ITEMS different values of a column. */
static void print_column(const tsv_table *t, size_t column) {
    const char *seen[INSPECT_ITEMS];
    size_t n = 0;
    bool more = false;
    for (size_t i = 0; i < t->n_rows && !more; i++) {
        const char *cell = t->cell[i * t->n_columns + column];
        size_t k = 0;
        while (k < n && strcmp(seen[k], cell)) k++;
        more = k == INSPECT_ITEMS;
        if (k == n && !more) seen[n++] = cell;
    }
    inspect_name(t->column[column]);
    putchar('\t');
    for (size_t k = 0; k < n; k++) {
        if (k) printf(", ");
        inspect_text((dw_str){seen[k], strlen(seen[k])}, INSPECT_CHARS);
    }
    printf("%s\n", more ? ", ..." : "");
}

static int inspect_table(const char *path, dw_err *err) {
    tsv_table t;
    if (tsv_read(&t, path, err)) return -1;
    printf("%-18s%zu\n%-18s%zu\ncolumn\tvalues\n", "rows", t.n_rows, "columns", t.n_columns);
    for (size_t i = 0; i < t.n_columns; i++) print_column(&t, i);
    tsv_release(&t);
    return 0;
}

/* ---- which file it is ----------------------------------------------------------------------------------- */

inspect_file *inspect_file_of(const char *path) {
    switch (kit_content_of(path)) {
    case KIT_STATS: return inspect_stats;
    case KIT_TRACES: return inspect_traces;
    case KIT_PLAN: return inspect_plan;
    case KIT_ROWS:
    case KIT_SCORES: return inspect_table;
    default: return NULL;
    }
}

void inspect_refuse(const char *path, dw_err *err) {
    static const struct {
        const char *first, *what;
    } files[] = {
        {"deadwood gram ", "Gram matrices (collect --gram), which rank and cut read beside their statistics"},
        {"dw-base", "stored predictions (score --store), which score --base reads"},
        {"dw-sums1", "sums of each window (ROWS.windows of score), which table --against reads"},
        {"deadwood heal ", "the state of a run of heal (FILE.checkpoint), which the same command continues"},
        {"deadwood teach 1", "predictions of a teacher (heal --teacher-cache), which heal reads"},
        {"deadwood journal ", "the finished part of a run of trace or train, which the same command continues"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (dw_file_begins(path, files[i].first, strlen(files[i].first))) {
            dw_fail(err, "'%s' has %s; of such files there is no summary", path, files[i].what);
            return;
        }
    dw_fail(err, "'%s' is no model (GGUF), statistics, traces, plan or rows of results", path);
}
