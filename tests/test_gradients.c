/* test_gradients.c - collect --gradients: against finite differences and a plain loop; parts, threads, interruptions;
 * metrics and selections that read the sums; refusals. */
#include "build.h"
#include "engine.h"
#include "kit/gram.h"
#include "kit/metrics.h"
#include "kit/plan.h"
#include "test.h"
#include "text/tokenizers.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_TOKENS = 8192 };

#define RUN(...) CHECK(!test_run(__VA_ARGS__), "%s", test_run_output())

static const char *tiny(void) { return random_model("tiny-qwen2", "F32", 0); }

static const char *gram_file(const char *stats) {
    static char path[4][512];
    static int at;
    at = (at + 1) % 4;
    snprintf(path[at], sizeof path[at], "%s.gram", stats);
    return path[at];
}

typedef struct collected {
    kit_stats s;
    kit_gram gram;
} collected;

static bool open_collected(collected *c, const char *stats) {
    dw_err err = {0};
    return CHECK(!kit_stats_read(&c->s, stats, &err) && !kit_gram_open(&c->gram, gram_file(stats), &err) &&
                     !kit_gram_check_stats(&c->gram, "gram", &c->s, &err),
                 "%s", err.text);
}

static void close_collected(collected *c) {
    kit_stats_release(&c->s);
    kit_gram_close(&c->gram);
}

static const kit_gram_matrix *covariance(collected *c, int l) {
    dw_err err = {0};
    double n_tokens;
    const kit_gram_matrix *m = kit_gram_find(&c->gram, l, KIT_GRAM_GRADIENT, &n_tokens, &err);
    CHECK(m && m->n == c->s.n_embd && n_tokens == (double)kit_stats_n_tokens(&c->s), "%s", err.text);
    return m;
}

/* ---- a model and the tokens of a text ---------------------------------------------------------------------- */

typedef struct subject {
    dw_model *m;
    const dw_hparams *hp;
    dw_session *session;
    int32_t token[MOST_TOKENS], bos;
    int n_token, n_ctx;
} subject;

static bool open_subject(subject *x, const char *text, const char *backend, int n_ctx) {
    dw_err err = {0};
    size_t size, n = 0;
    int32_t *token = NULL;
    *x = (subject){.m = dw_model_open(tiny(), &err), .n_ctx = n_ctx};
    dw_tokenizer *tok = x->m ? dw_tokenizer_open(dw_model_gguf(x->m), &err) : NULL;
    char *bytes = dw_read_file(text, 1 << 20, &size, &err);
    const bool ok = tok && bytes && !dw_tokenize(tok, bytes, size, DW_ADD_SPECIAL, &token, &n, &err);
    if (!CHECK(ok && n <= MOST_TOKENS, "%s", err.text)) return false;
    memcpy(x->token, token, n * sizeof *token);
    x->n_token = (int)n;
    x->bos = dw_tokenizer_vocab(tok)->add_bos ? dw_tokenizer_vocab(tok)->bos : -1;
    x->hp = dw_model_hparams(x->m);
    x->session = dw_session_new(x->m,
                                &(dw_session_options){.pool = two_threads(),
                                                      .backend = backend,
                                                      .n_ctx = n_ctx,
                                                      .n_batch = n_ctx,
                                                      .kv = DW_KV_CACHE_F32,
                                                      .exact = true},
                                &err);
    free(bytes), free(token);
    dw_tokenizer_free(tok);
    return CHECK(x->session, "%s", err.text);
}

static void close_subject(subject *x) {
    dw_session_free(x->session);
    dw_model_close(x->m);
}

static void take_window(const subject *x, int first, int32_t *token) {
    memcpy(token, x->token + first, (size_t)x->n_ctx * sizeof *token);
    if (x->bos >= 0) token[0] = x->bos;
}

/* ---- finite differences ------------------------------------------------------------------------------------ */

/* -ln p of the second token of a window of two, by the engine's ordinary pass. */
static double loss_of_two(subject *x) {
    int32_t token[2];
    double logprob = NAN;
    dw_err err = {0};
    take_window(x, 0, token);
    dw_session_rewind(x->session, 0, 0);
    CHECK(!dw_session_eval(x->session, &(dw_batch){.n_tokens = 2, .token = token, .out = (uint8_t[]){1, 0}}, &err) &&
              !dw_session_logprobs(x->session, 0, 1, token + 1, &logprob, &err),
          "%s", err.text);
    return -logprob;
}

static double loss_with(subject *x, int l, dw_weight which, float *values, const size_t ne[2]) {
    dw_err err = {0};
    const dw_tensor t = {
        .name = "changed", .type = dw_qtype_get(DW_F32), .ne = {ne[0], ne[1], 1, 1}, .data = (const uint8_t *)values};
    CHECK(!dw_session_replace(x->session, l, which, &t, &err), "%s", err.text);
    return loss_of_two(x);
}

/* dL/ds for v_j s at s = 1, which is a_j dL/da_j: only the first token's neurons reach the loss. */
static double by_column(subject *x, int l, int j, float *down) {
    const size_t d = (size_t)x->hp->n_embd, n = (size_t)x->hp->n_ff[l];
    const float step = 0.0625f;
    double loss[2];
    for (int side = 0; side < 2; side++) {
        for (size_t r = 0; r < d; r++) down[r * n + (size_t)j] *= side ? 1 - step : 1 + step;
        loss[side] = loss_with(x, l, DW_W_DOWN, down, (size_t[]){n, d});
        for (size_t r = 0; r < d; r++) down[r * n + (size_t)j] /= side ? 1 - step : 1 + step;
    }
    return (loss[0] - loss[1]) / (2 * (double)step);
}

/* dL/db_i of a bias of down, which is the gradient by the FFN's output. */
static double by_bias(subject *x, int l, int i, float *bias) {
    const float step = 0.02f;
    double loss[2];
    for (int side = 0; side < 2; side++) {
        bias[i] = side ? -step : step;
        loss[side] = loss_with(x, l, DW_W_DOWN_BIAS, bias, (size_t[]){(size_t)x->hp->n_embd, 1});
        bias[i] = 0;
    }
    return (loss[0] - loss[1]) / (2 * (double)step);
}

static void check_columns(subject *x, const collected *c, int l) {
    const dw_tensor t = dw_session_tensor(x->session, l, DW_W_DOWN);
    const int n = x->hp->n_ff[l];
    const double *taylor = c->s.layer[l].sum_taylor, *fisher = c->s.layer[l].sum_fisher;
    double largest = 0;
    float *down = malloc(t.n_bytes);
    memcpy(down, t.data, t.n_bytes);
    for (int j = 0; j < n; j++) largest = fmax(largest, taylor[j]);
    CHECK(largest > 1e-4, "layer %d: no neuron matters", l);
    for (int j = 0; j < n; j++) {
        const double by = by_column(x, l, j, down);
        CHECK(fabs(fabs(by) - taylor[j]) <= 5e-3 * largest, "layer %d, neuron %d: |a g| %.9g, by differences %.9g", l,
              j, taylor[j], by);
        CHECK(fabs(fisher[j] - taylor[j] * taylor[j]) <= 1e-12 * largest * largest, "layer %d, neuron %d", l, j);
    }
    CHECK(!dw_session_replace(x->session, l, DW_W_DOWN, NULL, NULL));
    free(down);
}

static void check_biases(subject *x, collected *c, int l) {
    const kit_gram_matrix *m = covariance(c, l);
    const int d = x->hp->n_embd;
    double g[256] = {0}, largest = 0;
    float bias[256] = {0};
    for (int i = 0; i < d; i++) g[i] = by_bias(x, l, i, bias), largest = fmax(largest, fabs(g[i]));
    CHECK(largest > 1e-4, "layer %d: no output matters", l);
    for (int i = 0; i < d && m; i++)
        for (int k = i; k < d; k++)
            if (!CHECK(fabs(kit_gram_at(m, i, k) - g[i] * g[k]) <= 5e-3 * largest * largest,
                       "layer %d, outputs %d and %d: %.9g, by differences %.9g", l, i, k, kit_gram_at(m, i, k),
                       g[i] * g[k]))
                break;
    CHECK(!dw_session_replace(x->session, l, DW_W_DOWN_BIAS, NULL, NULL));
}

static void differences(void) {
    const char *stats = test_file("two.h5"), *text = random_text("two.txt", 600, 3);
    subject x;
    collected c;
    RUN("deadwood-collect -q -m %s -f %s -c 2 --windows 1 --gradients --backend ref -o %s", tiny(), text, stats);
    if (!open_subject(&x, text, "ref", 2) || !open_collected(&c, stats)) return;
    CHECK(c.s.text[0].n_tokens == 2 && c.s.has_gradients);
    for (int l = 0; l < x.hp->n_layer; l += x.hp->n_layer - 1) { // the first and the last
        check_columns(&x, &c, l);
        check_biases(&x, &c, l);
    }
    close_subject(&x);
    close_collected(&c);
}

/* ---- a plain loop over the training pass's taps ------------------------------------------------------------ */

typedef struct plain {
    int from;                // positions of a window before it do not count
    double *taylor, *fisher; // (n_layer, n_ff_max)
    double *gamma;           // (n_layer, n_embd, n_embd)
    const dw_hparams *hp;
} plain;

static void add_plainly(void *ctx, const dw_grad_event *e) {
    plain *p = ctx;
    const size_t l = (size_t)e->layer, d = (size_t)p->hp->n_embd, most = (size_t)p->hp->n_ff_max;
    for (int t = p->from; t < e->n_tokens; t++) {
        const float *g = e->grad + (size_t)t * (size_t)e->n;
        for (size_t i = 0; i < d && e->point == DW_GRAD_FFN_OUT; i++)
            for (size_t k = 0; k < d; k++) p->gamma[(l * d + i) * d + k] += (double)g[i] * (double)g[k];
        for (size_t j = 0; j < (size_t)e->n && e->point == DW_GRAD_NEURON; j++) {
            const double product = (double)e->values[(size_t)t * (size_t)e->n + j] * (double)g[j];
            p->taylor[l * most + j] += fabs(product);
            p->fisher[l * most + j] += product * product;
        }
    }
}

/* One window after the other; the tail's last. */
static bool sum_plainly(plain *p, subject *x, int n_windows, bool with_tail, int skip) {
    dw_err err = {0};
    const size_t n_layer = (size_t)x->hp->n_layer, d = (size_t)x->hp->n_embd;
    *p = (plain){.hp = x->hp,
                 .taylor = calloc(n_layer * (size_t)x->hp->n_ff_max, sizeof(double)),
                 .fisher = calloc(n_layer * (size_t)x->hp->n_ff_max, sizeof(double)),
                 .gamma = calloc(n_layer * d * d, sizeof(double))};
    dw_train *train = dw_train_new(x->session, &(dw_train_options){.n_ctx = x->n_ctx}, &err);
    dw_gradients *none = calloc(n_layer + 1, sizeof *none);
    int32_t token[1024];
    if (!CHECK(train, "%s", err.text)) return false;
    dw_train_set_tap(train, &(dw_grad_tap){add_plainly, p});
    for (int w = 0; w < n_windows + with_tail; w++) {
        const bool is_tail = w == n_windows;
        const int new = is_tail ? x->n_ctx - x->n_token % x->n_ctx : 0;
        dw_loss_sums sums = {0};
        p->from = new > skip ? new : skip;
        take_window(x, is_tail ? x->n_token - x->n_ctx : w * x->n_ctx, token);
        /* The loss of positions that do not count is left out here: it makes no difference. */
        CHECK(!dw_train_forward(train, token, 1, &err), "%s", err.text);
        dw_train_backward(train, &(dw_loss){.first = p->from}, 1, none, &sums);
    }
    free(none);
    dw_train_free(train);
    return true;
}

/* Within a part of the largest. */
static void compare_sums(const double *got, const double *expected, size_t n, double part, const char *what, int l) {
    double largest = 0, worst = 0;
    for (size_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs(expected[i]));
        worst = fmax(worst, fabs(got[i] - expected[i]));
    }
    CHECK(worst <= part * largest && largest > 0, "layer %d: %s differs by %g of %g", l, what, worst, largest);
}

static void compare_layers(collected *c, const plain *p, double part) {
    const size_t d = (size_t)p->hp->n_embd;
    for (int l = 0; l < p->hp->n_layer; l++) {
        const size_t n = (size_t)p->hp->n_ff[l], at = (size_t)l * (size_t)p->hp->n_ff_max;
        const kit_gram_matrix *m = covariance(c, l);
        compare_sums(c->s.layer[l].sum_taylor, p->taylor + at, n, part, "|a g|", l);
        compare_sums(c->s.layer[l].sum_fisher, p->fisher + at, n, part, "(a g)^2", l);
        for (size_t i = 0; i < d && m; i++)
            compare_sums(m->sum + kit_gram_row(m->n, (int)i) + i, p->gamma + ((size_t)l * d + i) * d + i, d - i, part,
                         "g g^T", l);
    }
}

static void check_plain(const char *backend, int n_ctx, int skip, bool whole) {
    const char *stats = test_file("plain.h5"), *text = random_text("calib.txt", 640, 4);
    subject x;
    plain p;
    collected c;
    RUN("deadwood-collect -q -m %s -f %s -c %d --skip %d %s --gradients --backend %s -t 2 -o %s", tiny(), text, n_ctx,
        skip, whole ? "" : "--windows 5", backend, stats);
    if (!open_subject(&x, text, backend, n_ctx) || !open_collected(&c, stats)) return;
    if (!sum_plainly(&p, &x, whole ? x.n_token / n_ctx : 5, whole && x.n_token % n_ctx, skip)) return;
    compare_layers(&c, &p, 1e-5);
    free(p.taylor), free(p.fisher), free(p.gamma);
    close_subject(&x);
    close_collected(&c);
}

static void plain_loop(void) {
    check_plain("ref", 32, 0, false);
    check_plain("ref", 48, 5, false);
    check_plain("ref", 300, 0, true); // a tail
    check_plain("cpu", 60, 3, true);  // many windows in a pass
}

/* ---- the same sums in any way ------------------------------------------------------------------------------ */

static bool collect(const char *out, const char *windows, const char *options) {
    return RUN("deadwood-collect -m %s -f %s -c 64 --windows %s --gradients --gram down -o %s -q %s", tiny(),
               random_text("long.txt", 6000, 8), windows, out, options);
}

static void any_way(void) {
    const char *one = test_file("one.h5"), *three = test_file("three.h5"), *layers = test_file("layers.h5");
    if (!collect(one, "40", "-t 1") || !collect(three, "40", "-t 3") ||
        !collect(layers, "40", "-t 2 --gram-memory 1000"))
        return;
    CHECK(same_files(gram_file(one), gram_file(three)) && same_files(gram_file(one), gram_file(layers)));
    CHECK(same_files(one, three) && same_files(one, layers));
}

/* Both parts add up to the whole: neurons bit for bit while each text has its row, matrices to rounding. */
static void halves(void) {
    const char *a = test_file("a.h5"), *b = test_file("b.h5"), *both = test_file("both.h5"),
               *whole = test_file("whole.h5");
    if (!collect(whole, "1-8", "--text-windows 4") || !collect(a, "1-4", "") || !collect(b, "5-8", "") ||
        !RUN("deadwood-collect -m %s -f %s -c 64 --windows 5-8 --gradients --gram down -s %s -o %s -q", tiny(),
             random_text("long.txt", 6000, 8), a, both))
        return;
    collected x, y;
    if (!open_collected(&x, whole) || !open_collected(&y, both)) return;
    CHECK(x.s.n_row == 2 && y.s.n_row == 2 && x.gram.n_matrix == y.gram.n_matrix);
    for (int l = 0; l < x.s.n_layer; l++) {
        const size_t n = (size_t)x.s.layer[l].n_ff;
        CHECK(!memcmp(x.s.layer[l].sum_taylor, y.s.layer[l].sum_taylor, 2 * n * 8) &&
                  !memcmp(x.s.layer[l].sum_fisher, y.s.layer[l].sum_fisher, 2 * n * 8),
              "layer %d", l);
        const kit_gram_matrix *p = covariance(&x, l), *q = covariance(&y, l);
        if (p && q) compare_sums(q->sum, p->sum, kit_gram_packed(p->n), 1e-12, "g g^T", l);
    }
    close_collected(&y);
    RUN("deadwood-collect -q -m %s -s %s %s --gradients --gram down -o %s", tiny(), a, b, both);
    if (!open_collected(&y, both)) return;
    CHECK(y.s.has_gradients && y.gram.n_matrix == x.gram.n_matrix &&
          !memcmp(x.s.layer[1].sum_fisher, y.s.layer[1].sum_fisher, 2 * (size_t)x.s.layer[1].n_ff * 8));
    for (int l = 0; l < x.s.n_layer; l++) {
        const kit_gram_matrix *p = covariance(&x, l), *q = covariance(&y, l);
        if (p && q) compare_sums(q->sum, p->sum, kit_gram_packed(p->n), 1e-12, "g g^T", l);
    }
    close_collected(&x), close_collected(&y);
}

/* What a run of the first three texts has kept is gone on from, in both ways of the inputs' Gram matrices. */
static void goes_on(void) {
    const char *out = test_file("on.h5"), *whole = test_file("on-whole.h5");
    const char *ways[] = {"--gram down", "--gram down --gram-memory 1000", ""};
    for (int i = 0; i < 3; i++) {
        char command[1024];
        snprintf(command, sizeof command, "deadwood-collect -m %s -f %s -c 64 --text-windows 1 --gradients -t 1 %s",
                 tiny(), random_text("long.txt", 6000, 8), ways[i]);
        RUN("%s --windows 8 -o %s", command, whole);
        RUN("%s --windows 3 -o %s.part", command, out);
        if (i == 1)
            RUN("deadwood-collect -q -m %s -f %s -c 64 --text-windows 1 --gradients -t 1 --windows 3 -o %s.part",
                tiny(), random_text("long.txt", 6000, 8), out); // keeps no matrices of the second pass
        RUN("%s --windows 8 -o %s", command, out);
        CHECK(strstr(test_run_output(), "going on after text 3 of 8"), "%s", test_run_output());
        CHECK(same_files(out, whole) && same_files(gram_file(out), gram_file(whole)), "'%s': as without the stop",
              ways[i]);
        CHECK(access(test_file("on.h5.part.gram"), F_OK), "what was kept is gone");
    }
    RUN("deadwood-collect -q -m %s -f %s -c 64 --text-windows 1 -t 1 --windows 3 -o %s.part", tiny(),
        random_text("long.txt", 6000, 8), out);
    CHECK(test_run("deadwood-collect -m %s -f %s -c 64 --text-windows 1 -t 1 --windows 8 --gradients -o %s", tiny(),
                   random_text("long.txt", 6000, 8), out) == 1 &&
              strstr(test_run_output(), "is of another run"),
          "%s", test_run_output());
}

/* ---- what reads them --------------------------------------------------------------------------------------- */

/* Scores of a table, in the order of layers and neurons. */
static int read_scores(const char *path, double *score, int most) {
    size_t size;
    dw_err err = {0};
    char *text = dw_read_file(path, 1 << 20, &size, &err);
    int n = 0;
    CHECK(text, "%s", err.text);
    for (char *line = text; line && *line && n < most; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        n += sscanf(line, "%*d\t%*d\t%*d\t%*d\t%lf", &score[n]) == 1;
    free(text);
    return n;
}

static void metrics_read_sums(void) {
    const char *stats = test_file("metric.h5"), *scores = test_file("scores.tsv");
    collected c;
    static double score[4096];
    if (!collect(stats, "6", "--text-windows 2") || !open_collected(&c, stats)) return;
    for (int which = 0; which < 2; which++) {
        RUN("deadwood-rank -q -m %s -s %s --metric %s --scores %s", tiny(), stats, which ? "fisher" : "taylor", scores);
        const int n_score = read_scores(scores, score, 4096);
        int at = 0;
        for (int l = 0; l < c.s.n_layer; l++)
            for (int j = 0; j < c.s.layer[l].n_ff; j++, at++) {
                const double *sums = which ? c.s.layer[l].sum_fisher : c.s.layer[l].sum_taylor;
                double mean = 0;
                for (size_t r = 0; r < 3; r++) mean += sums[r * (size_t)c.s.layer[l].n_ff + (size_t)j] / (6 * 64);
                if (!CHECK(at < n_score && fabs(score[at] - mean) <= 1e-8 * mean, "layer %d, neuron %d", l, j)) return;
            }
        CHECK(at == n_score);
    }
    close_collected(&c);
}

/* Plans by gradients, across layers too, because the scores are nats of one loss; with every number of threads. */
static void plans(void) {
    const char *stats = test_file("metric.h5"), *plan = test_file("plan.tsv"), *cut = test_file("cut.gguf");
    if (access(stats, R_OK) && !collect(stats, "6", "--text-windows 2")) return;
    const char *metrics[] = {"taylor", "fisher", "obs-gradient"};
    for (int i = 0; i < 3; i++) {
        RUN("deadwood-rank -q -m %s -s %s -o %s --metric %s --rate 0.25 --multiple 1 --allocate global -t 1", tiny(),
            stats, plan, metrics[i]);
        RUN("deadwood-rank -q -m %s -s %s -o %s2 --metric %s --rate 0.25 --multiple 1 --allocate global -t 3 && cmp %s "
            "%s2",
            tiny(), stats, plan, metrics[i], plan, plan);
        RUN("deadwood-cut -q -m %s -p %s -o %s --repair lsq -s %s", tiny(), plan, cut, stats);
        RUN("grep -q '^# metric %s (' %s", metrics[i], plan);
    }
    RUN("deadwood-rank -m %s -s %s --compare --rate 0.25", tiny(), stats);
    CHECK(strstr(test_run_output(), "\ttaylor\tfisher\n"), "%s", test_run_output());
}

/* ---- refusals ---------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static void refused(int status, const char *words, const char *format, ...) {
    char command[2048];
    va_list list;
    va_start(list, format);
    vsnprintf(command, sizeof command, format, list);
    va_end(list);
    CHECK(test_run("%s", command) == status, "%s: %s", command, test_run_output());
    const char *text = test_run_output();
    CHECK(strstr(text, words) && (status == 2 || strchr(text, '\n') == text + strlen(text) - 1),
          "'%s' does not say '%s' in one line", text, words);
}

static void refusals(void) {
    const char *with = test_file("with.h5"), *without = test_file("without.h5"), *alone = test_file("alone.h5"),
               *text = random_text("long.txt", 6000, 8), *m = tiny(), *out = test_file("no.h5"),
               *plan = test_file("no.tsv");
    if (!collect(with, "2", "")) return;
    RUN("deadwood-collect -q -m %s -f %s -c 64 --windows 2 --gram down -o %s", m, text, without);
    RUN("deadwood-collect -q -m %s -f %s -c 64 --windows 2 --gradients -o %s", m, text, alone);
    refused(1,
            "the statistics have no gradients, which metric 'taylor' needs; collect them with gradients (collect "
            "--gradients)",
            "deadwood-rank -q -m %s -s %s -o %s --metric taylor --rate 0.5", m, without, plan);
    refused(1, "the statistics have no gradients, which metric 'fisher' needs",
            "deadwood-rank -q -m %s -s %s -o %s --metric fisher --rate 0.5", m, without, plan);
    refused(1,
            "layer 0: there is no Gram matrix of the gradients by the FFN's output; collect it (collect --gradients)",
            "deadwood-rank -q -m %s -s %s -o %s --metric obs-gradient --rate 0.5", m, without, plan);
    refused(1, "layer 0: there is no Gram matrix of the inputs of down; collect it (collect --gram down)",
            "deadwood-rank -q -m %s -s %s -o %s --metric obs-gradient --rate 0.5", m, alone, plan);
    refused(2, "needs statistics", "deadwood-rank -q -m %s -o %s --metric fisher --rate 0.5", m, plan);
    refused(1, "statistics with gradients cannot be added to others without",
            "deadwood-collect -q -m %s -f %s -c 64 --windows 3-4 -s %s -o %s", m, text, with, out);
    refused(1, "the statistics have no gradients, which --gradients needs",
            "deadwood-collect -q -m %s -f %s -c 64 --windows 3-4 --gradients -s %s -o %s", m, text, without, out);
    refused(1, "the statistics have no gradients, which --gradients needs",
            "deadwood-collect -q -m %s --gradients -s %s -o %s", m, without, out);
    refused(2, "one has no next token", "deadwood-collect -q -m %s -f %s -c 1 --gradients -o %s", m, text, out);
    refused(2, "--gradients writes STATS.gram beside the statistics",
            "deadwood-collect -q -m %s -f %s --gradients --export-imatrix %s", m, text, out);
    refused(1,
            "--gradients: the model is gated, and the backward pass takes no gates; collect gradients from the model "
            "before gate",
            "deadwood-gate -q -m %s -s %s -o %s --rule cats --activity 0.5 && deadwood-collect -q -m %s -f %s -c 64 "
            "--gradients -o %s",
            m, without, test_file("gated.gguf"), test_file("gated.gguf"), text, out);
    CHECK(access(out, F_OK) && access(plan, F_OK), "nothing is written");
}

/* Widths are judged without repair where the file beside the statistics has gradients alone. */
static void gradients_alone(void) {
    const char *stats = test_file("only.h5"), *text = random_text("long.txt", 6000, 8), *plan = test_file("only.tsv");
    RUN("deadwood-collect -q -m %s -f %s -c 64 --windows 4 --gradients -o %s", tiny(), text, stats);
    RUN("deadwood-rank -m %s -s %s -o %s --metric fisher --rate 0.25 --multiple 32 --allocate sensitivity -f %s -c 64 "
        "--windows 9-10",
        tiny(), stats, plan, text);
    CHECK(strstr(test_run_output(), "widths are judged without repair"), "%s", test_run_output());
}

static const test_case cases[] = {
    {"a g of every neuron and g g^T of every output are those of finite differences", differences},
    {"sums are those of a plain loop over the training pass, with skipped positions and tails", plain_loop},
    {"sums do not depend on threads, nor on the way of the other Gram matrices", any_way},
    {"two parts add up to the run over both", halves},
    {"a run that ended goes on from the texts that were finished", goes_on},
    {"taylor and fisher are means of the sums over tokens", metrics_read_sums},
    {"plans by gradients, across layers, cut and repaired", plans},
    {"gradients without the inputs' Gram matrices repair nothing", gradients_alone},
    {"what has no gradients, or cannot have any, is refused in one line", refusals},
    {0}};
TEST_MAIN(cases)
