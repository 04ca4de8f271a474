/* test_repairs.c - collect --gram, rank --metric obs and cut --repair, on random models and from the command line. */
#include "build.h"
#include "engine.h"
#include "kit/gram.h"
#include "kit/plan.h"
#include "prune/gram_sums.h"
#include "prune/rank.h"
#include "prune/repairs.h"
#include "prune/trial.h"
#include "test.h"

#include <lapacke.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_CTX = 64, N_WINDOWS = 6, N_TOKENS = N_CTX * N_WINDOWS };

/* ---- one model on the text -------------------------------------------------------------------------------- */

typedef struct pass {
    dw_model *m;
    dw_session *s;
    const dw_hparams *hp;
    float *before, *a, *after; // of one layer, all tokens: (N_TOKENS, n_embd), (N_TOKENS, n_ff), (N_TOKENS, n_embd)
    int layer, window;
} pass;

static void look(void *ctx, const dw_tap_event *e) {
    pass *p = ctx;
    const size_t n = (size_t)e->n * N_CTX;
    if (e->point == DW_TAP_RESIDUAL && e->layer == p->layer)
        memcpy(p->before + n * (size_t)p->window, e->values, n * sizeof(float));
    if (e->point == DW_TAP_RESIDUAL && e->layer == p->layer + 1)
        memcpy(p->after + n * (size_t)p->window, e->values, n * sizeof(float));
    if (e->point == DW_TAP_FFN_NEURON && e->layer == p->layer)
        memcpy(p->a + n * (size_t)p->window, e->values, n * sizeof(float));
}

static bool open_pass(pass *p, const char *path) {
    dw_err err = {0};
    *p = (pass){.m = dw_model_open(path, &err)};
    p->s = p->m ? dw_session_new(
                      p->m,
                      &(dw_session_options){.pool = two_threads(), .backend = "ref", .n_ctx = N_CTX, .n_batch = N_CTX},
                      &err)
                : NULL;
    if (!CHECK(p->s, "%s", err.text)) return false;
    p->hp = dw_model_hparams(p->m);
    p->before = calloc(N_TOKENS * (size_t)p->hp->n_embd, 4);
    p->after = calloc(N_TOKENS * (size_t)p->hp->n_embd, 4);
    p->a = calloc(N_TOKENS * (size_t)p->hp->n_ff_max, 4);
    return true;
}

static void close_pass(pass *p) {
    dw_session_free(p->s);
    dw_model_close(p->m);
    free(p->before), free(p->a), free(p->after);
}

static void run_pass(pass *p, int layer, const int32_t *token) {
    dw_err err = {0};
    p->layer = layer;
    dw_session_set_tap(p->s, &(dw_tap){1u << DW_TAP_RESIDUAL | 1u << DW_TAP_FFN_NEURON, look, p});
    for (p->window = 0; p->window < N_WINDOWS; p->window++) {
        dw_session_rewind(p->s, 0, 0);
        CHECK(!dw_session_eval(p->s, &(dw_batch){.n_tokens = N_CTX, .token = token + p->window * N_CTX}, &err), "%s",
              err.text);
    }
}

/* Runs layer l of p on the residuals `x`; fills a and after. */
static void run_layer(pass *p, int layer, const float *x) {
    dw_err err = {0};
    const size_t n = N_CTX * (size_t)p->hp->n_embd;
    int32_t token[N_CTX] = {0}, pos[N_CTX];
    for (int i = 0; i < N_CTX; i++) pos[i] = i;
    p->layer = layer;
    memcpy(p->after, x, N_WINDOWS * n * sizeof *x);
    dw_session_set_tap(p->s, &(dw_tap){1u << DW_TAP_FFN_NEURON, look, p});
    for (p->window = 0; p->window < N_WINDOWS; p->window++)
        CHECK(!dw_session_layers(p->s, &(dw_batch){.n_tokens = N_CTX, .token = token, .pos = pos}, layer, layer + 1,
                                 p->after + n * (size_t)p->window, &err),
              "%s", err.text);
}

static float *down_of(const dw_model *m, int l, size_t *n) {
    char name[64];
    snprintf(name, sizeof name, "blk.%d.ffn_down.weight", l);
    const dw_tensor *t = dw_gguf_find_tensor(dw_model_gguf(m), name);
    float *v = calloc(t->ne[0] * t->ne[1], sizeof *v);
    for (size_t r = 0; r < t->ne[1]; r++)
        t->type->decode(t->data + r * dw_tensor_row_bytes(t), v + r * t->ne[0], t->ne[0]);
    *n = t->ne[0];
    return v;
}

static double dot(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- the direct solution of a layer ----------------------------------------------------------------------- */

typedef struct direct {
    const int32_t *keep;
    size_t n_keep, n_ff, d;
    float *v, *v_new; // (d, n_ff), (d, n_keep)
    double dense, gap, damp;
} direct;

/* (V_S H + E[R a_S^T]) H^-1 by LAPACK; the largest difference to the file's V', over the largest change. */
static double difference(const direct *x, const pass *whole, const pass *cut, const pass *own) {
    const size_t n = x->n_keep, d = x->d;
    double *h = calloc(n * n, 8), *b = calloc(n * d, 8), *diagonal = calloc(n, 8), worst = 0, largest = 0;
    for (size_t t = 0; t < N_TOKENS; t++) {
        const float *a = cut->a + t * n, *a_whole = whole->a + t * x->n_ff, *a_own = own->a + t * x->n_ff;
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < n; k++) h[i * n + k] += (double)a[i] * (double)a[k] / N_TOKENS;
        for (size_t r = 0; r < d; r++) {
            const double y = dot(x->v + r * x->n_ff, a_whole, x->n_ff), y_own = dot(x->v + r * x->n_ff, a_own, x->n_ff);
            const double mid = (double)whole->after[t * d + r] - y, mid_cut = (double)own->after[t * d + r] - y_own;
            double target = x->dense * (y + x->gap * (mid - mid_cut)) + (1 - x->dense) * y_own;
            for (size_t i = 0; i < n; i++) b[i * d + r] += target * (double)a[i] / N_TOKENS;
        }
    }
    for (size_t i = 0; i < n; i++) diagonal[i] = h[i * n + i];
    qsort(diagonal, n, sizeof *diagonal, ascending);
    double lambda = x->damp * 0.5 * (diagonal[n / 2] + diagonal[(n - 1) / 2]);
    if (N_TOKENS < 5 * n) lambda *= 5.0 * (double)n / N_TOKENS;
    for (size_t i = 0; i < n; i++) {
        h[i * n + i] += lambda;
        for (size_t r = 0; r < d; r++) b[i * d + r] += lambda * (double)x->v[r * x->n_ff + (size_t)x->keep[i]];
    }
    int *pivot = calloc(n, sizeof *pivot);
    CHECK(!LAPACKE_dgesv(LAPACK_ROW_MAJOR, (int)n, (int)d, h, (int)n, pivot, b, (int)d));
    for (size_t i = 0; i < n; i++)
        for (size_t r = 0; r < d; r++) {
            worst = fmax(worst, fabs((double)x->v_new[r * n + i] - b[i * d + r]));
            largest = fmax(largest, fabs((double)x->v_new[r * n + i] - (double)x->v[r * x->n_ff + (size_t)x->keep[i]]));
        }
    free(h), free(b), free(diagonal), free(pivot);
    return worst / largest;
}

static void tokens_of(int32_t *token, const dw_model *m, const char *path) {
    dw_err err = {0};
    size_t size, n;
    int32_t *all;
    dw_tokenizer *tok = dw_tokenizer_open(dw_model_gguf(m), &err);
    char *text = dw_read_text(path, 1 << 20, &size, &err);
    const dw_vocab *v = dw_tokenizer_vocab(tok);
    CHECK(tok && text && !dw_tokenize(tok, text, size, DW_ADD_SPECIAL, &all, &n, &err) && n >= N_TOKENS, "%s",
          err.text);
    memcpy(token, all, N_TOKENS * sizeof *token);
    for (int w = 0; w < N_WINDOWS && v->add_bos; w++) token[w * N_CTX] = v->bos;
    free(all);
    free(text);
    dw_tokenizer_free(tok);
}

/* The model in F32, but for o, whose rounding inputs of later layers then show. */
static const char *with_rounded_o(void) {
    const char *model = test_file("rounded-o.gguf");
    CHECK(!test_run("deadwood-requant -m %s -o %s --type F32 --tensor attn_output=Q4_0 -q",
                    random_model("tiny-qwen2", "F32", 0), model),
          "%s", test_run_output());
    return model;
}

/* heads: half of them are cut, too; then the layers' own attention is that of the model without them. */
static void check_sequential(const char *target, double dense, double gap, bool heads) {
    const char *model = heads ? with_rounded_o() : random_model("tiny-qwen2", "F32", 0),
               *text = random_text("calib.txt", 6000, 4);
    const char *plan_path = test_file("sequential.tsv"), *out = test_file("sequential.gguf"),
               *only = test_file("only.gguf");
    char with[1024] = "", cuts[1024] = "";
    if (heads) {
        const char *stats = test_file("o.h5"), *heads_only = test_file("only.tsv");
        REQUIRE(
            !test_run(
                "deadwood-collect -m %s -f %s -c %d --windows %d --gram down+o -o %s -q && deadwood-rank -m %s -s %s "
                "--heads 0.5 -o %s -q && deadwood-cut -m %s -p %s -o %s --repair lsq -s %s --damp 0.05 -q",
                model, text, N_CTX, N_WINDOWS, stats, model, stats, heads_only, model, heads_only, only, stats),
            "%s", test_run_output());
        snprintf(with, sizeof with, "-s %s", stats);
        snprintf(cuts, sizeof cuts, "-s %s --heads 0.5", stats);
    }
    REQUIRE(
        !test_run("deadwood-rank -m %s -o %s --metric random --rate 0.4 --multiple 1 -q %s", model, plan_path, cuts),
        "%s", test_run_output());
    char gap_option[32] = "";
    if (dense != 0) snprintf(gap_option, sizeof gap_option, "--gap %g", gap);
    REQUIRE(!test_run("deadwood-cut -m %s -p %s -o %s --repair lsq --sequential -f %s -c %d --windows %d --target %s "
                      "%s --damp 0.05 -q %s",
                      model, plan_path, out, text, N_CTX, N_WINDOWS, target, gap_option, with),
            "%s", test_run_output());
    dw_err err = {0};
    kit_plan plan;
    pass whole, cut, own; // own: layer l of the whole model on the inputs of the cut one
    REQUIRE(!kit_plan_read(&plan, plan_path, NULL, 0, &err) && open_pass(&whole, model) && open_pass(&cut, out) &&
                open_pass(&own, heads ? only : model),
            "%s", err.text);
    int32_t token[N_TOKENS], keep[1024];
    tokens_of(token, whole.m, text);
    for (int l = 0; l < whole.hp->n_layer; l++) {
        direct x = {.keep = keep, .d = (size_t)whole.hp->n_embd, .dense = dense, .gap = gap, .damp = 0.05};
        kit_plan_neurons(&plan.layer[l], keep);
        x.v = down_of(whole.m, l, &x.n_ff);
        x.v_new = down_of(cut.m, l, &x.n_keep);
        run_pass(&whole, l, token);
        run_pass(&cut, l, token);
        run_layer(&own, l, cut.before);
        const double worst = difference(&x, &whole, &cut, &own);
        CHECK(worst < 2e-3, "%s, layer %d: differs by %g of the largest change", target, l, worst);
        free(x.v);
        free(x.v_new);
    }
    close_pass(&whole);
    close_pass(&cut);
    close_pass(&own);
    kit_plan_release(&plan);
}

static void sequential(void) {
    check_sequential("own", 0, 0.5, false);
    check_sequential("blend", 0.5, 0.25, false);
    check_sequential("blend", 0.5, 0.25, true);
    if (test_slow()) check_sequential("dense", 1, 1, false);
}

/* ---- collect --gram --------------------------------------------------------------------------------------- */

static bool collect(const char *out, const char *options) {
    return CHECK(!test_run("deadwood-collect -m %s -f %s -c %d --windows %d --gram down -o %s -q %s",
                           random_model("tiny-qwen2", "F32", 0), random_text("calib.txt", 6000, 4), N_CTX, N_WINDOWS,
                           out, options),
                 "%s", test_run_output());
}

static const char *gram_file(const char *stats) {
    static char path[4][512];
    static int at;
    at = (at + 1) % 4;
    snprintf(path[at], sizeof path[at], "%s.gram", stats);
    return path[at];
}

static void sums_of_products(void) {
    const char *stats = test_file("gram.h5"), *model = random_model("tiny-qwen2", "F32", 0);
    dw_err err = {0};
    kit_gram gram;
    pass p;
    int32_t token[N_TOKENS];
    if (!collect(stats, "")) return;
    REQUIRE(!kit_gram_open(&gram, gram_file(stats), &err) && open_pass(&p, model), "%s", err.text);
    tokens_of(token, p.m, random_text("calib.txt", 6000, 4));
    for (int l = 0; l < p.hp->n_layer; l++) {
        double n_tokens, worst = 0, largest = 0;
        const kit_gram_matrix *g = kit_gram_find(&gram, l, KIT_STATS_FFN_NEURON, &n_tokens, &err);
        REQUIRE(g && g->n == p.hp->n_ff[l] && n_tokens == N_TOKENS, "%s", err.text);
        run_pass(&p, l, token);
        for (int i = 0; i < g->n; i++)
            for (int k = i; k < g->n; k++) {
                double sum = 0;
                for (int t = 0; t < N_TOKENS; t++) sum += (double)p.a[t * g->n + i] * (double)p.a[t * g->n + k];
                worst = fmax(worst, fabs(sum - kit_gram_at(g, k, i)));
                largest = fmax(largest, fabs(sum));
            }
        CHECK(worst < 1e-4 * largest, "layer %d: differs by %g of %g", l, worst, largest);
    }
    CHECK(!kit_gram_find(&gram, 0, KIT_STATS_ATTN_MIX, &(double){0}, &err));
    check_sentence(&err, "layer 0: there is no Gram matrix of the inputs of o; collect it (collect --gram down+o)",
                   "a matrix that was not collected");
    close_pass(&p);
    kit_gram_close(&gram);
}

/* However many tokens come at once, as with gradients of long windows, no product in F32 has more than a block. */
static void many_tokens(void) {
    enum { WIDTH = 5, ROWS = 2 * GRAM_TOKENS + 100, PACKED = WIDTH * (WIDTH + 1) / 2 };
    static float x[(ROWS + ROWS / 7 + 1) * WIDTH], scratch[GRAM_SCRATCH];
    double at_once[PACKED] = {0}, in_blocks[PACKED] = {0};
    int row[ROWS];
    dw_rng rng;
    dw_rng_seed(&rng, 12);
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) x[i] = (float)dw_rng_normal(&rng);
    for (int i = 0; i < ROWS; i++) row[i] = i + i / 7; // every eighth does not count
    gram_add(at_once, WIDTH, x, row, ROWS, scratch, 0, 1);
    for (int first = 0, n = GRAM_TOKENS; first < ROWS; first += n) {
        if (n > ROWS - first) n = ROWS - first;
        gram_add(in_blocks, WIDTH, x, row + first, n, scratch, 0, 1);
    }
    CHECK(!memcmp(at_once, in_blocks, sizeof at_once), "%.17g and %.17g", at_once[0], in_blocks[0]);
}

/* One thread or three, in one pass or layer by layer: the same bytes.  Two halves add up. */
static void any_way(void) {
    const char *one = test_file("one.h5"), *three = test_file("three.h5"), *layers = test_file("layers.h5");
    if (!collect(one, "-t 1") || !collect(three, "-t 3") || !collect(layers, "-t 2 --gram-memory 1000")) return;
    CHECK(same_files(gram_file(one), gram_file(three)) && same_files(gram_file(one), gram_file(layers)));
    const char *a = test_file("a.h5"), *b = test_file("b.h5"), *model = random_model("tiny-qwen2", "F32", 0),
               *text = random_text("calib.txt", 6000, 4);
    CHECK(!test_run("deadwood-collect -m %s -f %s -c %d --windows 1-4 --gram all -o %s -q", model, text, N_CTX, a),
          "%s", test_run_output());
    CHECK(!test_run("deadwood-collect -m %s -f %s -c %d --windows 5-6 --gram all -o %s -s %s -q", model, text, N_CTX, b,
                    a),
          "%s", test_run_output());
    dw_err err = {0};
    kit_gram whole, sum;
    REQUIRE(!kit_gram_open(&whole, gram_file(one), &err) && !kit_gram_open(&sum, gram_file(b), &err), "%s", err.text);
    CHECK(sum.n_text == 2 && sum.n_matrix == 4 * whole.n_matrix);
    for (size_t i = 0; i < whole.n_matrix; i++) {
        double n;
        const kit_gram_matrix *x = kit_gram_find(&whole, whole.matrix[i].layer, KIT_STATS_FFN_NEURON, &n, &err),
                              *y = NULL;
        if (x) y = kit_gram_find(&sum, x->layer, x->input, &n, &err);
        REQUIRE(x && y, "%s", err.text);
        for (size_t k = 0; k < kit_gram_packed(x->n); k++)
            if (!CHECK(fabs(x->sum[k] - y->sum[k]) <= 1e-5 * (1 + fabs(x->sum[k])), "layer %d: %g and %g", x->layer,
                       x->sum[k], y->sum[k]))
                break;
    }
    kit_gram_close(&whole);
    kit_gram_close(&sum);
}

/* ---- the order of wide layers ----------------------------------------------------------------------------- */

/* Scores of the first layer as rank makes them; free(). */
static double *scores_by(const rank_options *o, int *n_ff) {
    rank_inputs in;
    dw_err err = {0};
    double *score[64] = {NULL}, *first = NULL;
    const bool ok = !rank_open_inputs(&in, o, two_threads(), &err) && !rank_read_protected(&in, &err) &&
                    !rank_make_scores(&in, rank_find_metric("obs"), score, &err);
    if (CHECK(ok, "%s", err.text)) {
        first = score[0];
        *n_ff = in.hp->n_ff[0];
        for (int l = 1; l < in.hp->n_layer; l++) free(score[l]);
    }
    rank_close_inputs(&in);
    return first;
}

static bool is_among_least(const double *score, int n, int j, int k) {
    int below = 0;
    for (int i = 0; i < n; i++) below += score[i] < score[j];
    return below < k;
}

/* Of the first k neurons that go by `a`, how many stay by `b`. */
static int n_other(const double *a, const double *b, int n, int k) {
    int other = 0;
    for (int j = 0; j < n; j++) other += is_among_least(a, n, j, k) && !is_among_least(b, n, j, k);
    return other;
}

/* Layers above most_f64 are selected in float, and no further than the plan reads the order.  `gone` is the share of
 * the first layer that the options may make go: more than the rate where others are protected, any by --us and
 * --bytes. */
static void wide_order(void) {
    const char *stats = test_file("gram.h5"), *model = random_model("tiny-qwen2", "F32", 0);
    if (access(stats, R_OK) && !collect(stats, "")) return;
    const struct {
        const char *name;
        double rate, us, gone;
        size_t bytes;
        int multiple, min_width;
        const char *protect, *scores;
    } cases[] = {{.name = "--rate 0.3", .rate = 0.3, .gone = 0.3, .multiple = 1},
                 {.name = "--rate 0.3 --multiple 64", .rate = 0.3, .gone = 0.5, .multiple = 64},
                 {.name = "--rate 0.3 --protect 1", .rate = 0.3, .gone = 0.6, .multiple = 1, .protect = "1"},
                 {.name = "--rate 0.3 --min-width 8", .rate = 0.3, .gone = 0.6, .multiple = 1, .min_width = 8},
                 {.name = "--rate 0.3 --scores -", .rate = 0.3, .gone = 0.9, .multiple = 1, .scores = "-"},
                 {.name = "--us 10", .us = 10, .gone = 0.5, .multiple = 1},
                 {.name = "--bytes 100000", .bytes = 100000, .gone = 0.5, .multiple = 1}};
    rank_options o = {
        .model = model, .stats = stats, .metric = "obs", .group = "1", .allocate = "uniform", .damp = 0.01};
    int n = 0;
    rank_list_metrics();
    double *whole = scores_by(&o, &n);
    o.most_f64 = 16;
    for (size_t i = 0; whole && i < sizeof cases / sizeof *cases; i++) {
        o.rate = cases[i].rate, o.us = cases[i].us, o.bytes = cases[i].bytes, o.multiple = cases[i].multiple;
        o.min_width = cases[i].min_width, o.protect = cases[i].protect, o.scores = cases[i].scores;
        double *wide = scores_by(&o, &n);
        const int k = (int)(cases[i].gone * n);
        if (!wide) break;
        CHECK(memcmp(wide, whole, (size_t)n * sizeof *wide), "%s: nothing was in float", cases[i].name);
        CHECK(n_other(whole, wide, n, k) <= k / 50, "%s: of the first %d of %d neurons %d are others", cases[i].name, k,
              n, n_other(whole, wide, n, k));
        free(wide);
    }
    free(whole);
}

static void flip_byte(const char *from, const char *to, size_t at) {
    size_t size;
    dw_err err = {0};
    char *data = dw_read_file(from, 1 << 28, &size, &err);
    if (!CHECK(data, "%s", err.text)) return;
    data[at < size ? at : size - 1] ^= 4;
    FILE *f = fopen(to, "wb");
    CHECK(f && fwrite(data, 1, size, f) == size && !fclose(f));
    free(data);
}

/* Changes a bit of the last matrix. */
static void damage_end(const char *path) {
    FILE *f = fopen(path, "rb");
    REQUIRE(f && !fseek(f, 0, SEEK_END), "%s", path);
    const long size = ftell(f);
    fclose(f);
    flip_byte(path, path, (size_t)size - 1000);
}

static void damaged_files(void) {
    const char *stats = test_file("gram.h5"), *bad = test_file("bad.gram");
    if (access(stats, R_OK) && !collect(stats, "")) return;
    dw_err err = {0};
    kit_gram g;
    double n;
    for (size_t at = 0; at < 700; at += 23) {
        flip_byte(gram_file(stats), bad, at);
        err = (dw_err){0};
        if (kit_gram_open(&g, bad, &err))
            check_sentence(&err, "", "a bit of the head");
        else {
            bool refused = false;
            for (size_t i = 0; i < g.n_matrix; i++)
                refused |= !kit_gram_find(&g, g.matrix[i].layer, g.matrix[i].input, &n, &err);
            CHECK(refused || (at >= 56 && at < 64), "byte %zu", at); // 56 to 63 are zeros without meaning
            kit_gram_close(&g);
        }
    }
    CHECK(!test_run("truncate -s -64 %s", bad));
    CHECK(kit_gram_open(&g, bad, &err));
    const char *other = test_file("other.h5"), *model = random_model("tiny-qwen2", "F32", 0);
    CHECK(!test_run("deadwood-collect -m %s -f %s -c %d --windows 2 -o %s -q && cp %s %s", model,
                    random_text("calib.txt", 6000, 4), N_CTX, other, gram_file(stats), gram_file(other)),
          "%s", test_run_output());
    CHECK(test_run("deadwood-rank -m %s -s %s -o %s --metric obs --rate 0.5 -q", model, other, test_file("no.tsv")) ==
          1);
    CHECK(strstr(test_run_output(), "is not of the same model and texts as the statistics beside it"), "%s",
          test_run_output());
    unlink(gram_file(other));
    CHECK(test_run("deadwood-rank -m %s -s %s -o %s --metric obs --rate 0.5 -q", model, other, test_file("no.tsv")) ==
          1);
    CHECK(strstr(test_run_output(),
                 "does not exist; make it with the statistics (collect --gram down, or down+o for heads)"),
          "%s", test_run_output());
}

/* The program ended after it had kept the statistics of its finished texts, and before STATS.gram was of these
 * texts. */
static void gram_goes_on(void) {
    const char *out = test_file("on.h5"), *whole = test_file("on-whole.h5"),
               *model = random_model("tiny-qwen2", "F32", 0);
    char command[1024];
    snprintf(command, sizeof command,
             "deadwood-collect -m %s -f %s -c %d --windows 8 --text-windows 1 --gram down -t 1", model,
             random_text("calib.txt", 6000, 4), N_CTX);
    CHECK(!test_run("%s -o %s", command, whole), "%s", test_run_output());
    const char *parts[] = {"mv p.h5.gram %s.part.gram.next",
                           "cp p.h5.gram %s.part.gram.next && head -c 99 p.h5.gram >%s.part.gram",
                           "cp p.h5.gram %s.part.gram && head -c 99 p.h5.gram >%s.part.gram.next"};
    for (int i = 0; i < 3; i++) { // what a run of the first three texts leaves
        char move[600];
        snprintf(move, sizeof move, parts[i], "$out", "$out");
        CHECK(
            !test_run(
                "cd %s && deadwood-collect -m %s -f %s -c %d --windows 3 --text-windows 1 --gram down -t 1 -q -o p.h5 "
                "&& out=%s && mv p.h5 $out.part && %s",
                test_file("."), model, random_text("calib.txt", 6000, 4), N_CTX, out, move),
            "%s", test_run_output());
        CHECK(!test_run("%s -o %s", command, out), "%s", test_run_output());
        CHECK(strstr(test_run_output(), "going on after text 3 of 8"), "%s", test_run_output());
        CHECK(same_files(gram_file(out), gram_file(whole)) && same_files(out, whole), "as without the stop");
        CHECK(access(test_file("on.h5.part.gram.next"), F_OK) && access(test_file("on.h5.part.gram"), F_OK),
              "what was kept is gone");
    }
}

/* A part whose matrices cannot be added is refused before the texts are evaluated, whose speed would be told. */
static void parts_come_first(void) {
    const char *part = test_file("first.h5"), *out = test_file("late.h5"),
               *model = random_model("tiny-qwen2", "F32", 0), *text = random_text("calib.txt", 6000, 4);
    const struct {
        const char *collected, *then, *words;
    } rows[] = {
        {"", "down", "first.h5.gram' does not exist"},
        {"--gram down", "all", "first.h5.gram': layer 0: there is no Gram matrix of the inputs of q, k, v"},
        {"--gradients", "down --gradients", "first.h5.gram': layer 0: there is no Gram matrix of the inputs of down"},
        {"--gram down", "down", "first.h5.gram': layer 3: the Gram matrix of the inputs of down is damaged"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        unlink(gram_file(part));
        CHECK(!test_run("deadwood-collect -m %s -f %s -c %d --windows 1-2 %s -q -o %s", model, text, N_CTX,
                        rows[i].collected, part),
              "%s", test_run_output());
        if (strstr(rows[i].words, "damaged")) damage_end(gram_file(part));
        CHECK(test_run("deadwood-collect -m %s -f %s -c %d --windows 3-4 --gram %s -s %s -o %s", model, text, N_CTX,
                       rows[i].then, part, out) == 1,
              "%s", test_run_output());
        CHECK(strstr(test_run_output(), rows[i].words) && !strstr(test_run_output(), "tokens/s"),
              "'%s' is not said before the work: %s", rows[i].words, test_run_output());
        CHECK(access(out, F_OK) && access(gram_file(out), F_OK), "nothing is written");
    }
}

/* The first matrices of what was kept are whole, and the last one is not: no text may count twice. */
static void damaged_part(void) {
    const char *out = test_file("again.h5"), *whole = test_file("again-whole.h5");
    char command[1024];
    snprintf(command, sizeof command, "deadwood-collect -m %s -f %s -c %d --text-windows 1 --gram down -t 1",
             random_model("tiny-qwen2", "F32", 0), random_text("calib.txt", 6000, 4), N_CTX);
    CHECK(!test_run("%s --windows 3 -q -o %s", command, whole), "%s", test_run_output());
    CHECK(!test_run("%s --windows 2 -q -o %s.part", command, out), "%s", test_run_output());
    damage_end(test_file("again.h5.part.gram"));
    CHECK(test_run("%s --windows 3 -o %s", command, out) == 1 &&
              strstr(test_run_output(), "again.h5.part' are missing or damaged; remove it to begin again"),
          "%s", test_run_output());
    CHECK(!test_run("rm %s.part && %s --windows 3 -o %s", out, command, out), "%s", test_run_output());
    CHECK(same_files(gram_file(out), gram_file(whole)) && same_files(out, whole), "as if nothing had been kept");
}

/* A run with --gram was interrupted, and the same command without it ends. */
static void kept_is_removed(void) {
    const char *out = test_file("plain.h5");
    char command[1024];
    snprintf(command, sizeof command, "deadwood-collect -m %s -f %s -c %d --text-windows 1 -t 1",
             random_model("tiny-qwen2", "F32", 0), random_text("calib.txt", 6000, 4), N_CTX);
    CHECK(!test_run("%s --windows 2 --gram down -q -o %s.part", command, out), "%s", test_run_output());
    CHECK(!test_run("%s --windows 3 -o %s", command, out), "%s", test_run_output());
    CHECK(strstr(test_run_output(), "going on after text 2 of 3"), "%s", test_run_output());
    CHECK(access(test_file("plain.h5.part"), F_OK) && access(test_file("plain.h5.part.gram"), F_OK),
          "what was kept is gone");
}

/* Matrices of other widths than the model's would be read beyond their end. */
static void other_widths(void) {
    const char *stats = test_file("gram.h5");
    if (access(stats, R_OK) && !collect(stats, "")) return;
    dw_err err = {0};
    kit_stats s;
    REQUIRE(!kit_stats_read(&s, stats, &err), "%s", err.text);
    for (int more = -1; more <= 1; more++) {
        kit_gram g;
        err = (dw_err){0};
        REQUIRE(!kit_gram_head(&g, &s, &err) &&
                    !kit_gram_add_matrix(&g, 0, KIT_STATS_FFN_NEURON, s.layer[0].n_ff + more, &err),
                "%s", err.text);
        CHECK(!kit_gram_check_stats(&g, "wide.gram", &s, &err) == !more, "%d more: %s", more, err.text);
        kit_gram_close(&g);
    }
    kit_stats_release(&s);
}

/* ---- one-shot repair from the command line ---------------------------------------------------------------- */

static void one_shot(void) {
    const char *stats = test_file("gram.h5"), *model = random_model("tiny-qwen2", "F32", 0),
               *plan = test_file("obs.tsv"), *out = test_file("obs.gguf");
    const char *same = test_file("same.gguf"), *none = test_file("none.tsv");
    if (access(stats, R_OK) && !collect(stats, "")) return;
    REQUIRE(
        !test_run("deadwood-rank -m %s -s %s -o %s --metric obs --rate 0.25 --multiple 1 -t 1 -q", model, stats, plan),
        "%s", test_run_output());
    REQUIRE(!test_run("deadwood-rank -m %s -s %s -o %s --metric obs --rate 0.25 --multiple 1 -t 3 -q && cmp %s %s",
                      model, stats, test_file("obs3.tsv"), plan, test_file("obs3.tsv")),
            "%s", test_run_output());
    REQUIRE(!test_run("deadwood-cut -m %s -p %s -o %s --repair lsq -s %s -q", model, plan, out, stats), "%s",
            test_run_output());
    CHECK(!test_run("deadwood-inspect %s --lineage", out) && strstr(test_run_output(), "--repair lsq"), "%s",
          test_run_output());
    dw_err err = {0};
    kit_plan p;
    kit_gram gram;
    dw_model *m = dw_model_open(out, &err), *whole = dw_model_open(model, &err);
    REQUIRE(m && whole && !kit_plan_read(&p, plan, NULL, 0, &err) && !kit_gram_open(&gram, gram_file(stats), &err),
            "%s", err.text);
    const repairs_task task = {.model = whole, .plan = &p, .damp = 0.01, .pool = two_threads(), .gram = &gram};
    repairs r;
    REQUIRE(!repairs_make(&r, &task, &err), "%s", err.text);
    for (int l = 0; l < p.n_layer; l++) {
        size_t n;
        float *v = down_of(m, l, &n);
        CHECK(n == (size_t)p.layer[l].n_keep &&
                  !memcmp(v, r.down[l], n * (size_t)dw_model_hparams(m)->n_embd * sizeof *v),
              "layer %d", l);
        free(v);
    }
    repairs_release(&r);
    kit_gram_close(&gram);
    kit_plan_release(&p);
    dw_model_close(m);
    dw_model_close(whole);
    REQUIRE(!test_run("deadwood-rank -m %s -s %s -o %s --metric obs --rate 0 -q && deadwood-cut -m %s -p %s -o %s "
                      "--repair lsq -s %s -q",
                      model, stats, none, model, none, same, stats),
            "%s", test_run_output());
    CHECK(!test_run("deadwood-score -m %s --base %s -f %s -c %d --windows 2 --no-speed -q", same, model,
                    random_text("calib.txt", 6000, 4), N_CTX),
          "%s", test_run_output());
}

/* A repaired down in blocks is encoded with its importances, and the file is checked row by row. */
static void in_blocks(void) {
    const char *model = random_model("tiny-qwen2", "Q8_0", 0), *text = random_text("calib.txt", 6000, 4),
               *out = test_file("blocks.gguf");
    REQUIRE(!test_run("deadwood-collect -m %s -f %s -c %d --windows %d --gram down -o %s -q", model, text, N_CTX,
                      N_WINDOWS, test_file("blocks.h5")),
            "%s", test_run_output());
    REQUIRE(!test_run("deadwood-rank -m %s -s %s -o %s --metric obs --rate 0.25 --group 32 --multiple 32 -q", model,
                      test_file("blocks.h5"), test_file("blocks.tsv")),
            "%s", test_run_output());
    for (int i = 0; i < 2; i++)
        REQUIRE(!test_run("deadwood-cut -m %s -p %s -o %s --repair lsq %s %s --down-type Q4_0 -q", model,
                          test_file("blocks.tsv"), out, i ? "--sequential -c 64 --windows 6 -f" : "-s",
                          i ? text : test_file("blocks.h5")),
                "%s", test_run_output());
    CHECK(test_run("deadwood-cut -m %s -p %s -o %s --repair lsq -q", model, test_file("blocks.tsv"), out) == 2, "%s",
          test_run_output());
}

/* ---- allocations that run the model ----------------------------------------------------------------------- */

/* A model whose layer 0 writes nothing: its down is zero. */
static const char *idle_layer(void) {
    const char *from = random_model("tiny-qwen2", "F32", 0), *to = test_file("idle.gguf");
    dw_err err = {0};
    if (!access(to, R_OK)) return to;
    dw_gguf *g = dw_gguf_open(from, &err);
    const dw_tensor *t = g ? dw_gguf_find_tensor(g, "blk.0.ffn_down.weight") : NULL;
    size_t size;
    char *data = dw_read_file(from, 1 << 28, &size, &err), *at = NULL;
    if (!CHECK(t && data, "%s", err.text)) return to;
    for (size_t i = 0; i + t->n_bytes <= size && !at; i += 32)
        if (!memcmp(data + i, t->data, t->n_bytes)) at = data + i;
    if (CHECK(at)) memset(at, 0, t->n_bytes);
    FILE *f = fopen(to, "wb");
    CHECK(f && fwrite(data, 1, size, f) == size && !fclose(f));
    free(data);
    dw_gguf_close(g);
    return to;
}

static bool widths_of(const char *options, const char *out, int *width) {
    const char *model = idle_layer(), *text = random_text("calib.txt", 6000, 4);
    dw_err err = {0};
    kit_plan p;
    if (access(test_file("idle.h5"), R_OK) &&
        !CHECK(!test_run("deadwood-collect -m %s -f %s -c %d --windows %d --gram down -o %s -q", model, text, N_CTX,
                         N_WINDOWS, test_file("idle.h5")),
               "%s", test_run_output()))
        return false;
    if (!CHECK(!test_run(
                   "deadwood-rank -m %s -s %s -o %s --metric obs --rate 0.25 --multiple 1 -f %s -c %d --windows 7-9 %s",
                   model, test_file("idle.h5"), out, text, N_CTX, options),
               "%s", test_run_output()))
        return false;
    if (!CHECK(!kit_plan_read(&p, out, NULL, 0, &err), "%s", err.text)) return false;
    for (int l = 0; l < p.n_layer; l++) width[l] = p.layer[l].n_keep;
    kit_plan_release(&p);
    return true;
}

static void idle_layers_go(void) {
    int width[16], sum = 0;
    if (!widths_of("--allocate sensitivity", test_file("sensitivity.tsv"), width)) return;
    for (int l = 0; l < 4; l++) sum += width[l];
    CHECK(width[0] <= 16 && sum <= 384 && sum > 380, "widths %d %d %d %d", width[0], width[1], width[2], width[3]);
    if (!widths_of("--allocate evolve --evaluations 30 --seed 3", test_file("evolve.tsv"), width)) return;
    sum = 0;
    for (int l = 0; l < 4; l++) sum += width[l];
    CHECK(width[0] < 80 && sum == 384, "widths %d %d %d %d", width[0], width[1], width[2], width[3]);
    CHECK(strstr(test_run_output(), "steps accepted, KL on the texts of the search"), "%s", test_run_output());
}

/* Layers of 128 in units of 32: one width for all is 96 for a rate of 0.3, which is 0.25; widths that differ keep 11 of
 * the 16 units, the most that the rate allows.  There are at most 12 moves of a unit, and none is tried twice. */
static void large_units(void) {
    int width[16];
    const char *const allocations[] = {"sensitivity", "evolve --start sensitivity --evaluations 400"};
    if (!widths_of("--allocate sensitivity", test_file("first.tsv"), width)) return;
    for (int i = 0; i < 2; i++) {
        kit_plan p;
        dw_err err = {0};
        int sum = 0;
        REQUIRE(!test_run("deadwood-rank -m %s -s %s -o %s --metric obs --rate 0.3 --multiple 32 -f %s -c %d "
                          "--windows 7-9 --allocate %s",
                          idle_layer(), test_file("idle.h5"), test_file("large.tsv"), random_text("calib.txt", 6000, 4),
                          N_CTX, allocations[i]),
                "%s", test_run_output());
        CHECK(!i || strstr(test_run_output(), "no other move was found"), "%s", test_run_output());
        CHECK(strstr(test_run_output(), "reached 0.3125"), "%s", test_run_output());
        REQUIRE(!kit_plan_read(&p, test_file("large.tsv"), NULL, 0, &err), "%s", err.text);
        for (int l = 0; l < p.n_layer; l++) {
            CHECK(p.layer[l].n_keep % 32 == 0, "layer %d keeps %d", l, p.layer[l].n_keep);
            sum += p.layer[l].n_keep;
        }
        CHECK(p.layer[0].n_keep == 32 && sum == 11 * 32, "%d of %d", p.layer[0].n_keep, sum);
        kit_plan_release(&p);
    }
}

/* The state of another run is refused. */
static void refuses_state(const char *part, const char *level, const char *options) {
    CHECK(test_run("cp %1$s %2$s.part && %7$s deadwood-rank -m %3$s -s %4$s -o %2$s --metric obs --rate 0.25 "
                   "--multiple 1 -f %5$s -c %6$d --windows 7-9 --allocate evolve --seed 3 %8$s",
                   part, test_file("other.tsv"), idle_layer(), test_file("idle.h5"), random_text("calib.txt", 6000, 4),
                   N_CTX, level, options) == 1 &&
              strstr(test_run_output(), "other.tsv.part' is of another run"),
          "%s %s: %s", level, options, test_run_output());
}

/* Kills a search after its first accepted step.  A search that ended before, as happens on a busy machine, is run
 * again, up to 30 times in all. */
static bool kill_search(const char *out, const char *part) {
    for (int i = 0; i < 30 && access(part, F_OK); i++)
        CHECK(!test_run("rm -f %3$s; deadwood-rank -m %1$s -s %2$s -o %3$s --metric obs --rate 0.25 "
                        "--multiple 1 -f %4$s -c %5$d --windows 7-9 --allocate evolve --evaluations 12 --seed 3 & "
                        "pid=$!; until grep -qs 'accepted [1-9]' %6$s || ! kill -0 $pid; do :; done; "
                        "kill -KILL $pid; wait $pid; true",
                        idle_layer(), test_file("idle.h5"), out, random_text("calib.txt", 6000, 4), N_CTX, part),
              "%s", test_run_output());
    return CHECK(!access(part, R_OK), "no search was killed in time: %s", test_run_output());
}

/* A state after some evaluations leads to the same plan as a run without a stop. */
static void evolve_resumes(void) {
    int width[16];
    const char *whole = test_file("whole.tsv"), *stopped = test_file("stopped.tsv");
    if (!widths_of("--allocate evolve --evaluations 12 --seed 3", whole, width)) return;
    char part[512];
    snprintf(part, sizeof part, "%s.part", stopped);
    if (!kill_search(stopped, part)) return;
    refuses_state(part, "", "--evaluations 12 --drop-layers 1");
    refuses_state(part, "", "--evaluations 11");
    if (strcmp(dw_cpu_level(NULL), "portable") != 0) refuses_state(part, "DEADWOOD_CPU=portable", "--evaluations 12");
    if (!widths_of("--allocate evolve --evaluations 12 --seed 3", stopped, width)) return;
    CHECK(strstr(test_run_output(), "going on after") && same_files(whole, stopped), "%s", test_run_output());
    CHECK(access(part, F_OK), "the state stays");
}

static void one_run_has_a_state(void) {
    dw_err err = {0};
    dw_hold *other = dw_hold_take(test_file("taken.tsv.part"), &err);
    REQUIRE(other, "%s", err.text);
    CHECK(test_run("deadwood-rank -m %s -s %s -o %s --metric obs --rate 0.25 --multiple 1 -f %s -c %d --windows 7-9 "
                   "--allocate evolve --evaluations 2 -q",
                   idle_layer(), test_file("idle.h5"), test_file("taken.tsv"), random_text("calib.txt", 6000, 4),
                   N_CTX) == 1 &&
              strstr(test_run_output(), "taken.tsv.part' is in use by another run"),
          "%s", test_run_output());
    dw_hold_free(other);
}

/* evolve may start from a rule across layers; what that rule needs is asked of --start as of --allocate. */
static void evolve_starts(void) {
    int width[16], sum = 0;
    if (!widths_of("--allocate evolve --start relative --evaluations 2", test_file("start.tsv"), width)) return;
    for (int l = 0; l < 4; l++) sum += width[l];
    CHECK(sum == 384 && width[0] < 64, "widths %d %d %d %d", width[0], width[1], width[2], width[3]);
    CHECK(test_run("deadwood-rank -m %s -s %s -o %s --metric obs --rate 0.25 --multiple 1 -f %s -c %d --windows 7-9 "
                   "--allocate evolve --start global -q",
                   idle_layer(), test_file("idle.h5"), test_file("start.tsv"), random_text("calib.txt", 6000, 4),
                   N_CTX) == 2 &&
              strstr(test_run_output(), "give --start relative or standardized"),
          "%s", test_run_output());
}

/* A size that just holds the least widths is enough for sensitivity, too, whose table counts in cells. */
static void least_widths_fit(void) {
    char command[1024], asked[512];
    int width[16], n = 0;
    if (!widths_of("--allocate sensitivity --evaluations 8", test_file("least.tsv"), width)) return; // makes idle.h5
    snprintf(asked, sizeof asked,
             "deadwood-rank -m %s -s %s --multiple 1 --min-width 37 --protect 1 -f %s -c %d --windows 7-9 --allocate "
             "sensitivity --evaluations 8 -q",
             idle_layer(), test_file("idle.h5"), random_text("calib.txt", 6000, 4), N_CTX);
    snprintf(command, sizeof command, "%s --metric obs -o %s", asked, test_file("least.tsv"));
    CHECK(test_run("%s --bytes 1000", command) == 1, "%s", test_run_output());
    const char *needed = strstr(test_run_output(), "too little: ");
    REQUIRE(needed && sscanf(needed, "too little: %d are needed", &n) == 1, "%s", test_run_output());
    CHECK(!test_run("%s --least-bytes", asked) && atoi(test_run_output()) == n, "%d: %s", n, test_run_output());
    for (int more = 0; more < 4; more++) {
        dw_err err = {0};
        kit_plan p;
        REQUIRE(!test_run("%s --bytes %d", command, n + more), "%d bytes more: %s", more, test_run_output());
        REQUIRE(!kit_plan_read(&p, test_file("least.tsv"), NULL, 0, &err), "%s", err.text);
        for (int l = 0; l < p.n_layer; l++)
            CHECK(p.layer[l].n_keep == (l == 1 ? 128 : 37), "layer %d keeps %d", l, p.layer[l].n_keep);
        kit_plan_release(&p);
    }
    CHECK(test_run("%s --bytes %d", command, n - 1) == 1);
}

/* Texts that judged the widths are texts that the plan has learnt from: a model cut by it has seen them, too. */
static void judges_are_named(void) {
    static const char *const allocations[] = {"--allocate sensitivity --evaluations 8",
                                              "--allocate evolve --evaluations 2"};
    const char *path = test_file("judged.tsv"), *cut = test_file("judged.gguf");
    for (int i = 0; i < 2; i++) {
        int width[16];
        dw_err err = {0};
        kit_plan p;
        if (!widths_of(allocations[i], path, width)) return;
        REQUIRE(!kit_plan_read(&p, path, NULL, 0, &err), "%s", err.text);
        const bool named = p.n_text == 2 && !strcmp(p.text[0].sha256, p.text[1].sha256) &&
                           p.text[1].n_tokens == 3 * N_CTX && strlen(p.text[1].blocks) == 3 * N_CTX / 16 * 8 &&
                           !strstr(p.text[0].blocks, p.text[1].blocks);
        CHECK(named, "%s: %zu texts", allocations[i], p.n_text);
        REQUIRE(!test_run("deadwood-cut -m %s -p %s -o %s -q", idle_layer(), path, cut), "%s", test_run_output());
        dw_gguf *g = dw_gguf_open(cut, &err);
        const dw_kv *steps = g ? dw_gguf_find(g, "deadwood.lineage") : NULL;
        REQUIRE(steps, "%s", err.text);
        CHECK(named && memmem(steps->data, steps->n_bytes, p.text[1].blocks, strlen(p.text[1].blocks)),
              "%s: the lineage does not name the text", allocations[i]);
        dw_gguf_close(g);
        kit_plan_release(&p);
    }
}

static void held_out(void) {
    const char *model = idle_layer(), *text = random_text("calib.txt", 6000, 4);
    int width[16];
    if (!widths_of("--allocate sensitivity --evaluations 8", test_file("held.tsv"), width)) return;
    CHECK(test_run("deadwood-rank -m %s -s %s -o %s --metric obs --rate 0.25 --multiple 1 -f %s -c %d --windows 5-9 "
                   "--allocate sensitivity -q",
                   model, test_file("idle.h5"), test_file("held.tsv"), text, N_CTX) == 1);
    CHECK(strstr(test_run_output(), "are in the statistics; judge the widths by others"), "%s", test_run_output());
    CHECK(test_run("deadwood-rank -m %s -s %s -o %s --metric obs --rate 0.25 --allocate evolve -q", model,
                   test_file("idle.h5"), test_file("held.tsv")) == 2);
    CHECK(test_run("deadwood-rank -m %s -s %s -o %s --metric obs --rate 0.25 --multiple 1 -f %s -c %d --windows 7-9 "
                   "--allocate sensitivity --evaluations 7 -q",
                   model, test_file("idle.h5"), test_file("held.tsv"), text, N_CTX) == 1 &&
              strstr(test_run_output(), "--evaluations 7 is too few: sensitivity needs 2 of each layer, 8 in all"),
          "%s", test_run_output());
    REQUIRE(!test_run("deadwood-collect -m %s -f %s -c %d --windows 2 -o %s -q", model, text, N_CTX,
                      test_file("bare.h5")),
            "%s", test_run_output());
    CHECK(test_run("deadwood-rank -m %s -s %s -o %s --metric obs --rate 0.25 -f %s -c %d --windows 1-2 "
                   "--allocate sensitivity -q",
                   model, test_file("bare.h5"), test_file("held.tsv"), text, N_CTX) == 1 &&
              strstr(test_run_output(), "are in the statistics"), // before the missing Gram matrices
          "%s", test_run_output());
    const char *copy = test_file("copy.txt"); // another hash, the same tokens
    REQUIRE(!test_run("bash -c '(cat %s; echo) > %s'", text, copy), "%s", test_run_output());
    const char *const wanted[] = {"--windows 1-2", "--windows 7-9"}; // the statistics have windows 1 to 6
    for (int i = 0; i < 2; i++) {
        REQUIRE(!test_run("deadwood-rank -m %s -s %s -o %s --metric obs --rate 0.25 --multiple 1 -f %s -c %d %s "
                          "--allocate sensitivity --evaluations 8",
                          model, test_file("idle.h5"), test_file("held.tsv"), copy, N_CTX, wanted[i]),
                "%s", test_run_output());
        CHECK((strstr(test_run_output(), "'copy.txt' shares a run of") != NULL) == !i, "%s: %s", wanted[i],
              test_run_output());
    }
}

/* Statistics and held-out texts may have windows of different sizes: tokens count. */
static void other_windows(void) {
    static const struct { const char *collected, *held; bool is_refused; } cases[] = {
        {"-c 64 --windows 2", "-c 32 --windows 4-6", true},
        {"-c 64 --windows 2", "-c 32 --windows 5-6", false},
        {"-c 32 --windows 4", "-c 64 --windows 2-3", true},
        {"-c 32 --windows 4", "-c 64 --windows 3-4", false},
        {"-c 4096", "-c 32 --windows 150-151", true}}; // in the tail
    const char *model = idle_layer(), *text = random_text("calib.txt", 6000, 4), *stats = test_file("other.h5");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        REQUIRE(!test_run("deadwood-collect -m %s -f %s %s -o %s -q", model, text, cases[i].collected, stats), "%s",
                test_run_output());
        const int status = test_run("deadwood-rank -m %s -s %s -o %s --metric energy --rate 0.25 --multiple 32 -f %s "
                                    "%s --allocate sensitivity --evaluations 8 -q",
                                    model, stats, test_file("other.tsv"), text, cases[i].held);
        CHECK(status == cases[i].is_refused &&
                  !strstr(test_run_output(), "are in the statistics") == !cases[i].is_refused,
              "%s, then %s: %s", cases[i].collected, cases[i].held, test_run_output());
    }
}

/* A trial's divergence from stored residuals is that of a trial from the start, to the bit. */
static void trials_start_late(void) {
    const char *model = idle_layer();
    int width[16];
    if (access(test_file("idle.h5"), R_OK) &&
        !widths_of("--allocate sensitivity --evaluations 8", test_file("late.tsv"), width))
        return;
    dw_err err = {0};
    dw_model *m = dw_model_open(model, &err);
    kit_gram gram = {0};
    calib_texts texts = {0};
    const char *path = random_text("calib.txt", 6000, 4);
    const opt_list paths = {&path, 1};
    const dw_hparams *hp = m ? dw_model_hparams(m) : NULL;
    REQUIRE(m && !kit_gram_open(&gram, gram_file(test_file("idle.h5")), &err) &&
                !calib_read(&texts, m, &(calib_request){&paths, {7, 8}, N_CTX, 0}, &err),
            "%s", err.text);
    double *score[16], kl[2], again[2];
    bool drop[16] = {0};
    int keep[16];
    for (int l = 0; l < hp->n_layer; l++) {
        score[l] = calloc((size_t)hp->n_ff[l], sizeof *score[l]);
        for (int j = 0; j < hp->n_ff[l]; j++) score[l][j] = j * 7 % 64;
        keep[l] = hp->n_ff[l];
    }
    const trial_options o = {.model = m,
                             .gram = &gram,
                             .damp = 0.01,
                             .texts = &texts,
                             .score = score,
                             .group = 1,
                             .drop = drop,
                             .pool = two_threads()};
    prune_trial *early = trial_new(&o, &err), *late = trial_new(&o, &err);
    REQUIRE(early && late && trial_n_windows(late) == 2, "%s", err.text);
    CHECK(!trial_run(late, keep, kl, &err), "%s", err.text);
    CHECK(kl[0] == 0 && kl[1] == 0, "the whole model differs from itself by %g and %g", kl[0], kl[1]);
    keep[1] = 90, keep[2] = 50;
    CHECK(!trial_accept(late, keep, &err));
    keep[3] = 70;
    CHECK(!trial_run(late, keep, kl, &err) && !trial_run(early, keep, again, &err), "%s", err.text);
    CHECK(kl[0] > 0 && kl[0] == again[0] && kl[1] == again[1], "%.17g and %.17g", kl[0], again[0]);
    trial_free(early);
    trial_free(late);
    for (int l = 0; l < hp->n_layer; l++) free(score[l]);
    calib_release(&texts);
    kit_gram_close(&gram);
    dw_model_close(m);
}

static const test_case cases[] = {
    {"the order of wide layers, in float, is whole as far as any option reads it", wide_order},
    {"collect --gram sums the products of the inputs of down", sums_of_products},
    {"products of many tokens are those of blocks of them", many_tokens},
    {"Gram matrices are the same for any threads and memory, and parts add up", any_way},
    {"damaged Gram matrices, and those of other statistics, are refused", damaged_files},
    {"collect --gram goes on wherever it ended between keeping statistics and Gram matrices", gram_goes_on},
    {"collect --gram refuses parts without the matrices before it evaluates a text", parts_come_first},
    {"collect --gram starts again when a matrix that it kept is damaged, and counts no text twice", damaged_part},
    {"Gram matrices that an interrupted run kept are removed by a run without --gram", kept_is_removed},
    {"Gram matrices of other widths than the statistics are refused", other_widths},
    {"a cut with --repair lsq holds the least-squares solution", one_shot},
    {"a repaired down is encoded in blocks, one-shot and sequential", in_blocks},
    {"sequential repairs equal direct solves on the layers below as they are cut", sequential},
    {"a layer that writes nothing is cut first by sensitivity and evolve", idle_layers_go},
    {"evolve goes on after a kill and ends with the same plan, but not for other layers", evolve_resumes},
    {"large units: layers together keep as many as the rate allows, and no move is tried twice", large_units},
    {"two runs do not write one state of evolve", one_run_has_a_state},
    {"evolve starts from rules across layers, which get what they need", evolve_starts},
    {"texts that the statistics have seen do not judge widths", held_out},
    {"a size that just holds the least widths is enough for sensitivity", least_widths_fit},
    {"a plan names the texts that judged its widths", judges_are_named},
    {"nor do parts of them in windows of another size", other_windows},
    {"a trial from stored residuals equals one from the start", trials_start_late},
    {0}};

TEST_MAIN(cases)
