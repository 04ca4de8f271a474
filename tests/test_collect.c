/* test_collect.c - collect against a plain accumulation of what the taps show; parts, resumption, threads, refusals. */
#include "build.h"
#include "text/tokenizers.h"
#include "engine.h"
#include "experiments/peer/stock.h"
#include "kit/imatrix.h"
#include "kit/stats.h"
#include "prune/column_sums.h"
#include "test.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* The trained model of the repository, made once; a text of letters and words for it. */
static const char *mini(void) {
    const char *path = test_file("mini.gguf");
    if (access(path, R_OK))
        CHECK(!test_run("deadwood-convert experiments/mini -q -o %s", path), "%s", test_run_output());
    return path;
}

static const char *some_words(const char *name, int seed, int n) {
    static const char *const words[] = {"the ",    "function ", "returns ", "a ",           "tree ",  "of ",
                                        "light, ", "und ",      "es ",      "x = y + 1;\n", "river ", "12 "};
    const char *path = test_file(name);
    test_bytes b = {0};
    dw_rng rng;
    dw_rng_seed(&rng, (uint64_t)seed);
    for (int i = 0; i < n; i++) put_text(&b, words[dw_rng_below(&rng, sizeof words / sizeof *words)]);
    save(&b, path);
    free(b.data);
    return path;
}

static const char *a_text(const char *name, int seed) { return some_words(name, seed, 1500); }

#define RUN(...) CHECK(!test_run(__VA_ARGS__), "%s", test_run_output())

static bool read_stats(kit_stats *s, const char *name) {
    dw_err err = {0};
    return CHECK(!kit_stats_read(s, test_file(name), &err), "%s", err.text);
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */

enum { ROWS = 23, COLUMNS = 77 };

static void loops(void) {
    float x[ROWS * COLUMNS], max[2][COLUMNS];
    double sum[2][COLUMNS], sum_abs[2][COLUMNS], square[2][COLUMNS], only[COLUMNS];
    int row[ROWS], n_row = 0;
    dw_rng rng;
    dw_rng_seed(&rng, 3);
    for (int i = 0; i < ROWS * COLUMNS; i++) x[i] = (float)(dw_rng_normal(&rng) * exp2(10 * dw_rng_normal(&rng)));
    for (int r = 0; r < ROWS; r++)
        if (r % 5) row[n_row++] = r;
    for (const column_sums *c = column_sums_levels; c->level && strcmp(c->level, "amx"); c++) {
        if (!strcmp(c->level, "avx2") && !__builtin_cpu_supports("avx2")) break;
        if (!strcmp(c->level, "avx512") && !__builtin_cpu_supports("avx512dq")) break;
        memset(sum, 0, sizeof sum), memset(sum_abs, 0, sizeof sum_abs), memset(square, 0, sizeof square),
            memset(max, 0, sizeof max), memset(only, 0, sizeof only);
        for (int i = 0; i < n_row; i++) {
            for (int j = 0; j < COLUMNS; j++) {
                const double v = (double)x[row[i] * COLUMNS + j];
                sum[0][j] += v, sum_abs[0][j] += fabs(v), square[0][j] += v * v,
                    max[0][j] = fmaxf(max[0][j], fabsf((float)v));
            }
        }
        c->moments(x, COLUMNS, row, n_row, COLUMNS, sum[1], sum_abs[1], square[1], max[1]);
        c->squares(x, COLUMNS, row, n_row, COLUMNS, only);
        CHECK(!memcmp(sum[0], sum[1], sizeof sum[0]) && !memcmp(sum_abs[0], sum_abs[1], sizeof sum[0]) &&
                  !memcmp(square[0], square[1], sizeof sum[0]) && !memcmp(max[0], max[1], sizeof max[0]) &&
                  !memcmp(square[0], only, sizeof only),
              "%s: sums differ from plain ones", c->level);
        uint8_t bin[ROWS * COLUMNS];
        c->bins(x, ROWS * COLUMNS, bin);
        for (int i = 0; i < ROWS * COLUMNS; i++)
            if (!CHECK(bin[i] == kit_stats_bin(fabsf(x[i])), "%s: %g is in bin %d", c->level, (double)x[i], bin[i]))
                break;
        for (int n = 1; n <= 4; n++) {
            uint8_t largest[4];
            c->largest_of_32(bin + n, n, largest);
            for (int i = 0; i < 32 * n; i++)
                CHECK(largest[i / 32] >= bin[n + i] && memchr(bin + n + i / 32 * 32, largest[i / 32], 32),
                      "%s: the largest of bins %d .. is %d", c->level, i / 32 * 32, largest[i / 32]);
        }
        double dot = 0, power = 0, got_power, first_power;
        float old[2][COLUMNS];
        for (int j = 0; j < COLUMNS; j++) {
            old[0][j] = old[1][j] = x[COLUMNS + j];
            dot += (double)x[j] * (double)x[COLUMNS + j];
            power += (double)x[j] * (double)x[j];
        }
        const double got = c->replace(old[0], x, COLUMNS, &got_power),
                     first = column_sums_levels[0].replace(old[1], x, COLUMNS, &first_power);
        CHECK(fabs(got - dot) <= 1e-12 * fabs(dot) + 1e-300 && got == first, "%s: %g, expected %g", c->level, got, dot);
        CHECK(fabs(got_power - power) <= 1e-12 * power && got_power == first_power && !memcmp(old[0], x, sizeof old[0]),
              "%s: %g, expected %g", c->level, got_power, power);
    }
}

/* ---- against a plain accumulation -------------------------------------------------------------------------------- */

typedef struct plain { // sums as the definition has them, and the same shape
    kit_stats *s;
    size_t text;
    int skip, every;
    float *before; // (tokens, n_embd)
} plain;

static void add_square(plain *p, const dw_tap_event *e, int t, double *square, uint64_t *hist) {
    for (int j = 0; j < e->n; j++) {
        const double v = (double)e->values[t * e->n + j];
        square[p->text * (size_t)e->n + (size_t)j] += v * v;
        if (hist && e->pos[t] % p->every == 0) hist[kit_stats_bin(fabsf((float)v))]++;
    }
}

static void add_neuron(plain *p, kit_stats_layer *w, const dw_tap_event *e, int t) {
    add_square(p, e, t, w->sum_square, w->input_hist[KIT_STATS_FFN_NEURON]);
    for (int j = 0; j < e->n; j++) {
        const float v = e->values[t * e->n + j];
        const size_t at = p->text * (size_t)e->n + (size_t)j;
        w->sum_a[at] += (double)v;
        w->sum_abs[at] += fabs((double)v);
        w->max_abs[at] = fmaxf(w->max_abs[at], fabsf(v));
        if (e->pos[t] % p->every == 0) w->hist_a[j * KIT_STATS_BINS + kit_stats_bin(fabsf(v))]++;
    }
}

static void add_gate(plain *p, kit_stats_layer *w, const dw_tap_event *e, int t) {
    if (e->pos[t] % p->every) return;
    const float *x = e->values + t * e->n;
    for (int j = 0; j < e->n; j++) w->hist_gate[j * KIT_STATS_BINS + kit_stats_bin(fabsf(x[j]))]++;
    for (int g = 0; g < KIT_STATS_N_GROUPS; g++) {
        const int size = kit_stats_group_sizes[g];
        for (int first = 0; first < e->n; first += size) {
            float largest = 0;
            for (int j = first; j < e->n && j < first + size; j++) largest = fmaxf(largest, fabsf(x[j]));
            w->hist_group[g][first / size * KIT_STATS_BINS + kit_stats_bin(largest)]++;
        }
    }
}

static void add_cosine(plain *p, const dw_tap_event *e, int t) {
    double xx = 0, xy = 0, yy = 0;
    float *before = p->before + t * e->n;
    for (int j = 0; j < e->n; j++) {
        const double x = (double)before[j], y = (double)e->values[t * e->n + j];
        xx += x * x, xy += x * y, yy += y * y;
    }
    if (e->layer > 0) {
        p->s->layer[e->layer - 1].text_cosine[p->text] += xy / sqrt(xx * yy);
        p->s->layer[e->layer - 1].text_inverse[p->text] += 1 / yy;
    }
    memcpy(before, e->values + t * e->n, (size_t)e->n * sizeof *before);
}

static void add_plainly(void *ctx, const dw_tap_event *e) {
    plain *p = ctx;
    kit_stats_layer *w = &p->s->layer[e->layer < p->s->n_layer ? e->layer : 0];
    for (int t = 0; t < e->n_tokens; t++) {
        if (e->pos[t] < p->skip) continue;
        switch (e->point) {
        case DW_TAP_RESIDUAL: add_cosine(p, e, t); break;
        case DW_TAP_ATTN_IN:
            add_square(p, e, t, w->text_square[KIT_STATS_ATTN_IN], w->input_hist[KIT_STATS_ATTN_IN]);
            break;
        case DW_TAP_ATTN_MIX:
            add_square(p, e, t, w->text_square[KIT_STATS_ATTN_MIX], w->input_hist[KIT_STATS_ATTN_MIX]);
            break;
        case DW_TAP_FFN_IN:
            add_square(p, e, t, w->text_square[KIT_STATS_FFN_IN], w->input_hist[KIT_STATS_FFN_IN]);
            break;
        case DW_TAP_FFN_GATE: add_gate(p, w, e, t); break;
        case DW_TAP_FFN_NEURON: add_neuron(p, w, e, t); break;
        case DW_TAP_HEAD_IN: add_square(p, e, t, p->s->text_output_square, NULL); break;
        default: break;
        }
    }
}

typedef struct setting { // of collect
    int n_ctx, skip, every;
    const char *backend;
    bool whole; // the whole text and its tail, not two windows
} setting;

/* Evaluates a window; only its positions from `from` on count. */
static bool add_window(dw_session *session, plain *p, int32_t *token, int n_ctx, int bos, int from) {
    dw_err err = {0};
    static uint8_t out[1024];
    memset(out, 1, sizeof out);
    p->skip = from;
    const int32_t first = token[0];
    if (bos >= 0) token[0] = bos;
    dw_session_rewind(session, 0, 0);
    const int rc = dw_session_eval(session, &(dw_batch){.n_tokens = n_ctx, .token = token, .out = out}, &err);
    token[0] = first;
    return CHECK(!rc, "%s", err.text);
}

/* Statistics by their definition, window by window. */
static bool accumulate(kit_stats *s, const char *model, const char *const *texts, int n_text, const setting *how) {
    const int n_ctx = how->n_ctx, skip = how->skip, every = how->every;
    const char *backend = how->backend;
    enum { MOST_LAYERS = 64 };
    dw_err err = {0};
    int n_mix[MOST_LAYERS];
    dw_model *m = dw_model_open(model, &err);
    dw_pool *pool = dw_pool_new(2, &err);
    dw_tokenizer *tok = m ? dw_tokenizer_open(dw_model_gguf(m), &err) : NULL;
    if (!CHECK(pool && tok, "%s", err.text)) return false;
    const dw_hparams *hp = dw_model_hparams(m);
    for (int l = 0; l < hp->n_layer; l++) n_mix[l] = hp->n_head[l] * hp->head_dim;
    const dw_session_options options = {.pool = pool, .backend = backend, .n_ctx = n_ctx, .n_batch = n_ctx};
    dw_session *session = dw_session_new(m, &options, &err);
    bool ok = CHECK(session && !kit_stats_init(s, hp->n_layer, hp->n_embd, hp->n_ff, n_mix, (size_t)n_text, &err), "%s",
                    err.text);
    plain p = {
        .s = s, .skip = skip, .every = every, .before = calloc((size_t)n_ctx * (size_t)hp->n_embd, sizeof *p.before)};
    dw_session_set_tap(session, &(dw_tap){.points = (1u << DW_N_TAP_POINTS) - 1, .fn = add_plainly, .ctx = &p});
    const dw_vocab *v = dw_tokenizer_vocab(tok);
    const int bos = v->add_bos ? v->bos : -1;
    for (int t = 0; t < n_text && ok; t++) {
        size_t size, n;
        int32_t *token;
        char *text = dw_read_file(texts[t], 1 << 24, &size, &err);
        ok = CHECK(text && !dw_tokenize(tok, text, size, DW_ADD_SPECIAL, &token, &n, &err) && n >= 2 * (size_t)n_ctx,
                   "%s", err.text);
        p.text = (size_t)t;
        const int n_windows = how->whole ? (int)n / n_ctx : 2, n_tail = how->whole ? (int)n % n_ctx : 0;
        for (int w = 0; w < n_windows && ok; w++) ok = add_window(session, &p, token + w * n_ctx, n_ctx, bos, skip);
        if (n_tail && ok)
            ok = add_window(session, &p, token + n - n_ctx, n_ctx, bos, n_ctx - n_tail > skip ? n_ctx - n_tail : skip);
        free(text), free(token);
    }
    free(p.before);
    dw_tokenizer_free(tok);
    dw_session_free(session), dw_pool_free(pool), dw_model_close(m);
    kit_stats_total(s);
    return ok;
}

static bool near(const double *a, const double *b, size_t n, double tolerance) {
    for (size_t i = 0; i < n; i++)
        if (!(fabs(a[i] - b[i]) <= tolerance * fabs(b[i]))) return false;
    return true;
}

static void compare(const kit_stats *got, const kit_stats *expected, const char *what) {
    REQUIRE(got->n_text == expected->n_text && got->n_layer == expected->n_layer, "%s", what);
    for (int l = 0; l < got->n_layer; l++) {
        const kit_stats_layer *a = &got->layer[l], *b = &expected->layer[l];
        const size_t n_ff = (size_t)a->n_ff, n = got->n_text * n_ff;
        CHECK(!memcmp(a->sum_a, b->sum_a, n * sizeof(double)) && !memcmp(a->sum_abs, b->sum_abs, n * sizeof(double)) &&
                  !memcmp(a->sum_square, b->sum_square, n * sizeof(double)) &&
                  !memcmp(a->max_abs, b->max_abs, n * sizeof(float)),
              "%s: neurons of layer %d", what, l);
        CHECK(!memcmp(a->hist_a, b->hist_a, n_ff * KIT_STATS_BINS * 4) &&
                  !memcmp(a->hist_gate, b->hist_gate, n_ff * KIT_STATS_BINS * 4),
              "%s: histograms of layer %d", what, l);
        for (int g = 0; g < KIT_STATS_N_GROUPS; g++) {
            const size_t groups = (n_ff + (size_t)kit_stats_group_sizes[g] - 1) / (size_t)kit_stats_group_sizes[g];
            CHECK(!memcmp(a->hist_group[g], b->hist_group[g], groups * KIT_STATS_BINS * 4),
                  "%s: groups of %d, layer %d", what, kit_stats_group_sizes[g], l);
        }
        for (int k = 0; k < KIT_STATS_N_INPUTS; k++) {
            if (!a->n_input[k]) continue;
            CHECK(!memcmp(a->text_square[k], b->text_square[k], got->n_text * (size_t)a->n_input[k] * sizeof(double)),
                  "%s: %s of layer %d", what, kit_stats_input_names[k], l);
            CHECK(!memcmp(a->input_hist[k], b->input_hist[k], KIT_STATS_BINS * sizeof(uint64_t)),
                  "%s: histogram of %s, layer %d", what, kit_stats_input_names[k], l);
        }
        CHECK(near(a->text_inverse, b->text_inverse, got->n_row, 1e-12),
              "%s: 1 / ||x||^2 of layer %d: %.17g, expected %.17g", what, l, a->text_inverse[0], b->text_inverse[0]);
        CHECK(near(a->text_cosine, b->text_cosine, got->n_text, 1e-12),
              "%s: cosines of layer %d: %.17g, expected %.17g", what, l, a->text_cosine[0], b->text_cosine[0]);
    }
    CHECK(!memcmp(got->text_output_square, expected->text_output_square,
                  got->n_text * (size_t)got->n_embd * sizeof(double)),
          "%s: output", what);
}

static void check_collect(const char *model, setting how) {
    const char *const texts[] = {how.whole ? some_words("short.txt", 3, 600) : a_text("one.txt", 1),
                                 a_text("two.txt", 2)};
    kit_stats expected, got;
    char what[256];
    snprintf(what, sizeof what, "%s, windows of %d, skip %d, every %d, %s", strrchr(model, '/') + 1, how.n_ctx,
             how.skip, how.every, how.backend);
    const int n_text = how.whole ? 1 : 2;
    if (!RUN("deadwood-collect -q -m %s -f %s %s %s -c %d --skip %d --hist-every %d --backend %s -t 2 -o %s", model,
             texts[0], how.whole ? "" : texts[1], how.whole ? "" : "--windows 2", how.n_ctx, how.skip, how.every,
             how.backend, test_file("brute.h5")))
        return;
    if (!accumulate(&expected, model, texts, n_text, &how)) return;
    if (!read_stats(&got, "brute.h5")) return;
    compare(&got, &expected, what);
    if (!how.whole) CHECK(got.text[1].n_tokens == 2 * (uint64_t)(how.n_ctx - how.skip), "%s", what);
    CHECK(got.layer[0].count[n_text - 1] == got.text[n_text - 1].n_tokens, "%s", what);
    kit_stats_release(&expected), kit_stats_release(&got);
}

static void brute_force(void) {
    check_collect(mini(), (setting){128, 0, 4, "cpu"});
    check_collect(mini(), (setting){100, 3, 1, "cpu"});
    check_collect(mini(), (setting){32, 1, 5, "ref"});
    check_collect(mini(), (setting){550, 0, 4, "cpu"}); // longer than a batch
    check_collect(mini(), (setting){550, 0, 1, "cpu"}); // more rows of a histogram than a byte counts
}

/* The tokens after the last whole window count once, in a window that ends with the text. */
static void tails(void) {
    check_collect(mini(), (setting){300, 0, 4, "cpu", .whole = true});
    check_collect(mini(), (setting){420, 180, 1, "cpu", .whole = true}); // skips more than the overlap
    CHECK(!test_run("deadwood-collect -m %s -f %s -c 300 -o %s", mini(), test_file("short.txt"), test_file("tail.h5")));
    const char *said = strstr(test_run_output(), "1 text of ");
    kit_stats s;
    if (!said || !read_stats(&s, "tail.h5")) return;
    size_t n, n_tail;
    CHECK(sscanf(said, "1 text of %zu tokens, %zu of them after the last whole window", &n, &n_tail) == 2, "%s", said);
    CHECK(s.text[0].n_tokens == n && n_tail == n % 300 && n_tail && s.text[0].n_windows == (int)(n / 300),
          "%zu and %zu", n, n_tail);
    kit_stats_release(&s);
}

/* ---- equalities -------------------------------------------------------------------------------------------------- */

/* Windows of 96 and 100 share passes, those of 550 need two, those of 6 end in passes of few tokens. */
static void threads(void) {
    static const char *const windows[] = {"-c 96 --windows 7 --text-windows 3", "-c 550 --windows 1",
                                          "-c 6 --windows 87 --hist-every 1", "-c 100 --windows 7"};
    static const int n_threads[] = {2, 4, 13};
    const char *text = a_text("one.txt", 1), *model[] = {mini(), test_file("q4.gguf")};
    RUN("deadwood-convert experiments/mini -q -o %s --type q4_0", model[1]);
    for (int i = 0; i < 4; i++) {
        RUN("deadwood-collect -q -m %s -f %s %s -t 1 -o %s", model[i > 0], text, windows[i], test_file("one.h5"));
        for (int t = 0; t < 3; t++) {
            RUN("deadwood-collect -q -m %s -f %s %s -t %d -o %s", model[i > 0], text, windows[i], n_threads[t],
                test_file("more.h5"));
            CHECK(same_files(test_file("one.h5"), test_file("more.h5")), "%s, %d threads", windows[i], n_threads[t]);
        }
    }
}

static void halves(void) {
    const char *one = a_text("one.txt", 1), *two = a_text("two.txt", 2);
    const char *common = "-c 64 --text-windows 3 --skip 1 -t 2";
    kit_stats whole, sum;
    RUN("deadwood-collect -q -m %s -f %s %s --windows 1-6 %s -o %s", mini(), one, two, common, test_file("whole.h5"));
    RUN("deadwood-collect -q -m %s -f %s --windows 1-6 %s -o %s", mini(), one, common, test_file("half1.h5"));
    RUN("deadwood-collect -q -m %s -f %s --windows 1-3 %s -o %s", mini(), two, common, test_file("half2.h5"));
    RUN("deadwood-collect -q -m %s -f %s --windows 4-6 %s -s %s %s -o %s", mini(), two, common, test_file("half1.h5"),
        test_file("half2.h5"), test_file("sum.h5"));
    if (!read_stats(&whole, "whole.h5") || !read_stats(&sum, "sum.h5")) return;
    CHECK(!strncmp(whole.arguments, "--model mini.gguf --text one.txt two.txt --ctx 64 --windows 1-6 ", 64), "%s",
          whole.arguments);
    CHECK(whole.n_text == 4 && whole.text[3].first_window == 4 && whole.text[3].n_windows == 3 &&
          strlen(whole.text[3].blocks) == 8 * 3 * 64 / 16);
    compare(&sum, &whole, "halves");
    free(sum.arguments);
    sum.arguments = dw_strdup(whole.arguments, NULL); // the only difference
    CHECK(!kit_stats_write(&sum, test_file("sum.h5"), NULL) && same_files(test_file("sum.h5"), test_file("whole.h5")),
          "bit for bit");
    kit_stats_release(&whole), kit_stats_release(&sum);
    RUN("deadwood-collect -q -m %s -s %s %s -o %s", mini(), test_file("half1.h5"), test_file("half2.h5"),
        test_file("three.h5"));
    if (!read_stats(&sum, "three.h5")) return;
    CHECK(sum.n_text == 3 && sum.n_ctx == 64 && sum.skip == 1);
    kit_stats_release(&sum);
    CHECK(test_run("deadwood-collect -q -m %s -f %s --windows 3-4 %s -s %s -o %s", mini(), two, common,
                   test_file("half2.h5"), test_file("over.h5")) == 1 &&
              strstr(test_run_output(), "are in both"),
          "%s", test_run_output());
    CHECK(access(test_file("over.h5"), F_OK), "nothing is written");
}

/* ---- many texts -------------------------------------------------------------------------------------------------- */

/* The row of the last texts is the sum of theirs; the others are what they are alone. */
static void pooled(void) {
    const char *one = a_text("one.txt", 1), *two = a_text("two.txt", 2),
               *common = "-c 64 --windows 6 --text-windows 1 -t 2";
    kit_stats all, some, sum;
    RUN("deadwood-collect -q -m %s -f %s %s %s -o %s", mini(), one, two, common, test_file("all.h5"));
    CHECK(!test_run("deadwood-collect -m %s -f %s %s %s --apart 5 -o %s", mini(), one, two, common,
                    test_file("some.h5")) &&
              strstr(test_run_output(), "the first 5 texts are kept apart, the other 7 are pooled"),
          "%s", test_run_output());
    RUN("deadwood-collect -q -m %s -f %s %s --apart 5 -o %s", mini(), one, common, test_file("first.h5"));
    RUN("deadwood-collect -q -m %s -f %s %s --apart 5 -s %s -o %s", mini(), two, common, test_file("first.h5"),
        test_file("added.h5"));
    if (!read_stats(&all, "all.h5") || !read_stats(&some, "some.h5") || !read_stats(&sum, "added.h5")) return;
    CHECK(all.n_row == 12 && some.n_text == 12 && some.n_row == 6 && sum.n_text == 12 && sum.n_row == 6);
    for (size_t t = 0; t < 12; t++) CHECK(some.text[t].row == (t < 5 ? t : 5), "text %zu", t);
    for (int l = 0; l < all.n_layer; l++) {
        const kit_stats_layer *a = &all.layer[l], *b = &some.layer[l], *c = &sum.layer[l];
        const size_t n = (size_t)a->n_ff;
        CHECK(!memcmp(a->sum_square, b->sum_square, 5 * n * sizeof *a->sum_square), "layer %d: the first five", l);
        CHECK(b->count[5] == 7 * 64 && c->count[5] == 7 * 64 && near(&b->sum_cosine, &a->sum_cosine, 1, 1e-12),
              "layer %d", l);
        CHECK(near(b->input_square[KIT_STATS_FFN_IN], a->input_square[KIT_STATS_FFN_IN], (size_t)all.n_embd, 1e-12),
              "layer %d: inputs", l);
        CHECK(!memcmp(a->hist_a, b->hist_a, n * KIT_STATS_BINS * 4) &&
                  !memcmp(a->hist_a, c->hist_a, n * KIT_STATS_BINS * 4),
              "layer %d: histograms", l);
        for (size_t j = 0; j < n; j++) {
            double square = 0;
            float most = 0;
            for (size_t t = 5; t < 12; t++)
                square += a->sum_square[t * n + j], most = fmaxf(most, a->max_abs[t * n + j]);
            const double got[] = {b->sum_square[5 * n + j], c->sum_square[5 * n + j]}, wanted[] = {square, square};
            if (!CHECK(near(got, wanted, 2, 1e-12) && b->max_abs[5 * n + j] == most && c->max_abs[5 * n + j] == most,
                       "layer %d, neuron %zu", l, j))
                break;
        }
    }
    kit_stats_release(&all), kit_stats_release(&some), kit_stats_release(&sum);
}

/* Peak memory of collect over windows 1 .. n, each a text of its own. */
static long peak_kilobytes(const char *model, const char *text, const char *windows) {
    struct rusage use = {0};
    int status = -1;
    char program[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 32);
    if (n <= 0) return 0;
    program[n] = 0;
    strcpy(strrchr(program, '/') + 1, "deadwood-collect");
    const pid_t pid = fork();
    if (!pid) {
        execl(program, program, "-q", "-m", model, "-f", text, "-c", "16", "--windows", windows, "--text-windows", "1",
              "-t", "1", "-o", test_file("peak.h5"), (char *)NULL);
        _exit(1);
    }
    wait4(pid, &status, 0, &use);
    CHECK(!status, "status %d", status);
    return use.ru_maxrss;
}

static void many_texts(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    SKIP("a sanitizer takes memory of its own");
#endif
    const char *model = random_model("tiny-llama", "F32", 0), *text = test_file("many.txt");
    test_bytes b = {0};
    dw_rng rng;
    dw_rng_seed(&rng, 8);
    for (int i = 0; i < 33000; i++) put_u8(&b, (uint8_t)(i % 7 ? 'a' + dw_rng_below(&rng, 26) : ' '));
    save(&b, text);
    free(b.data);
    const long few = peak_kilobytes(model, text, "64"), many = peak_kilobytes(model, text, "2000");
    CHECK(few > 0 && 2 * many < 3 * few, "%ld kB for 2000 texts, %ld kB for 64", many, few);
    if (getenv("DW_SHOW")) printf("%ld kB for 2000 texts, %ld kB for 64\n", many, few);
}

/* Ended as soon as finished texts are kept, then run again. */
static void killed(void) {
    const char *text = a_text("one.txt", 1), *out = test_file("k.h5");
    char command[1024];
    snprintf(command, sizeof command, "-m %s -f %s -c 64 --windows 16 --text-windows 2 -t 2", mini(), text);
    RUN("deadwood-collect -q %s -o %s", command, test_file("unbroken.h5"));
    for (int i = 0; i < 2; i++) {
        remove(out);
        test_run("deadwood-collect -q %s -o %s & pid=$!; i=0; while [ ! -s %s.part ] && [ $i -lt 400 ]; do sleep 0.01; "
                 "i=$((i+1)); done; kill -%s $pid; wait $pid",
                 command, out, out, i ? "INT" : "KILL");
        const bool kept = !access(test_file("k.h5.part"), F_OK);
        RUN("deadwood-collect %s -o %s", command, out);
        CHECK(!kept || strstr(test_run_output(), "going on after text"), "%s", test_run_output());
        CHECK(same_files(out, test_file("unbroken.h5")), "as without the stop");
        CHECK(access(test_file("k.h5.part"), F_OK), "what was kept is gone");
    }
    save(&(test_bytes){.data = (uint8_t *)(uintptr_t) "deadwood stats 1\n", .size = 17}, test_file("k.h5.part"));
    CHECK(test_run("deadwood-collect -q %s -o %s", command, out) == 1 &&
              strstr(test_run_output(), "k.h5.part' (remove it to begin again): "),
          "%s", test_run_output());
    remove(test_file("k.h5.part"));
}

/* The finished texts of other options are refused and stay. */
static void other_run(void) {
    const char *text = a_text("one.txt", 1), *out = test_file("other.h5"), *part = test_file("other.h5.part");
    char command[1024];
    snprintf(command, sizeof command, "-q -m %s -f %s --windows 4 --text-windows 2", mini(), text);
    RUN("deadwood-collect %s -c 64 -o %s && cp %s %s.before", command, part, part, part);
    CHECK(test_run("deadwood-collect %s -c 32 -o %s", command, out) == 1 &&
              strstr(test_run_output(), "other.h5.part' is of another run (other models, texts, options or CPU level); "
                                        "remove it to begin again"),
          "%s", test_run_output());
    CHECK(access(out, F_OK) && same_files(part, test_file("other.h5.part.before")), "the part has changed");
    RUN("rm %s && touch %s && deadwood-collect %s -c 32 -o %s", part, part, command, out);
    CHECK(!test_run_output()[0], "an empty part is told: %s", test_run_output());
}

static void one_run_has_a_part(void) {
    dw_err err = {0};
    const char *text = a_text("one.txt", 1), *out = test_file("taken.h5");
    dw_hold *other = dw_hold_take(test_file("taken.h5.part"), &err);
    REQUIRE(other, "%s", err.text);
    CHECK(test_run("deadwood-collect -q -m %s -f %s -c 64 --windows 1 -o %s", mini(), text, out) == 1 &&
              strstr(test_run_output(), "taken.h5.part' is in use by another run") && access(out, F_OK),
          "%s", test_run_output());
    dw_hold_free(other);
    RUN("deadwood-collect -q -m %s -f %s -c 64 --windows 1 -o %s", mini(), text, out);
    CHECK(access(test_file("taken.h5.part"), F_OK), "the part stays after the end");
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void one_line(const char *words, int rc) {
    const char *text = test_run_output();
    const char *end = strchr(text, '\n');
    CHECK(rc == 1 && end && !end[1] && !strncmp(text, "deadwood-collect: ", 18) && strstr(text, words),
          "exit %d, wanted '%s': %s", rc, words, text);
}

/* A copy of mini with one value of layer 2's down or gate matrix replaced. */
static const char *damaged_model(const char *tensor) {
    size_t size;
    dw_err err = {0};
    uint8_t *bytes = (uint8_t *)dw_read_file(mini(), 1 << 28, &size, &err);
    dw_gguf *g = dw_gguf_open(mini(), &err);
    const dw_tensor *t = g ? dw_gguf_find_tensor(g, tensor) : NULL;
    const uint8_t *data = t ? t->data : NULL;
    for (size_t at = 0; data && at + t->n_bytes <= size; at += 32) {
        if (memcmp(bytes + at, data, t->n_bytes)) continue;
        bytes[at + 200] = 0xc0, bytes[at + 201] = 0x7f; // NaN of BF16
        break;
    }
    dw_gguf_close(g);
    save(&(test_bytes){.data = bytes, .size = size}, test_file("damaged.gguf"));
    free(bytes);
    return test_file("damaged.gguf");
}

static void refusals(void) {
    const char *text = a_text("one.txt", 1), *out = test_file("r.h5");
    RUN("deadwood-synth --shape mini --type BF16 -o %s", test_file("other.gguf"));
    RUN("deadwood-collect -q -m %s -f %s -c 64 --windows 2 -o %s", mini(), text, test_file("part.h5"));
    one_line("another model",
             test_run("deadwood-collect -q -m %s -s %s -o %s", test_file("other.gguf"), test_file("part.h5"), out));
    one_line("windows 90 to 900",
             test_run("deadwood-collect -q -m %s -f %s -c 64 --windows 90-900 -o %s", mini(), text, out));
    one_line("a window needs", test_run("deadwood-collect -q -m %s -f %s -c 60000 -o %s", mini(), text, out));
    one_line("same text", test_run("deadwood-collect -q -m %s -f %s %s -c 64 -o %s", mini(), text, text, out));
    one_line("with -c 128 --skip 0 --hist-every 4 cannot be added to others with 64",
             test_run("deadwood-collect -q -m %s -f %s -c 128 --windows 3-4 -s %s -o %s", mini(), text,
                      test_file("part.h5"), out));
    one_line("cannot open", test_run("deadwood-collect -q -m %s -f %s -o %s", mini(), test_file("absent.txt"), out));
    one_line("statistics", test_run("deadwood-collect -q -m %s -s %s -o %s", mini(), text, out));
    one_line("imatrix", test_run("deadwood-collect -q -m %s --import-imatrix %s -o %s", mini(), text, out));
    CHECK(test_run("deadwood-collect -q -m %s -f %s -c 64 --skip 64 -o %s", mini(), text, out) == 2 &&
          strstr(test_run_output(), "nothing left"));
    CHECK(test_run("deadwood-collect -m %s -o %s", mini(), out) == 2 &&
          test_run("deadwood-collect -m %s -f %s", mini(), text) == 2);
    CHECK(access(out, F_OK), "nothing is written");
}

static void not_finite(void) {
    const char *text = a_text("one.txt", 1);
    const char *model = damaged_model("blk.2.ffn_gate.weight");
    one_line("layer 2: the neurons of 'one.txt'",
             test_run("deadwood-collect -q -m %s -f %s -c 64 --windows 2 -o %s", model, text, test_file("r.h5")));
    model = damaged_model("blk.1.attn_output.weight");
    one_line("layer 1: the input of gate and up",
             test_run("deadwood-collect -q -m %s -f %s -c 64 --windows 2 -o %s", model, text, test_file("r.h5")));
}

/* ---- importance matrices ----------------------------------------------------------------------------------------- */

static void imatrix(void) {
    static const char *const names[] = {"m.imatrix.gguf", "m.imatrix.dat"};
    kit_stats s, back;
    RUN("deadwood-collect -q -m %s -f %s %s -c 64 --windows 3 -o %s --export-imatrix %s", mini(), a_text("one.txt", 1),
        a_text("two.txt", 2), test_file("i.h5"), test_file(names[0]));
    RUN("deadwood-collect -q -m %s -s %s --export-imatrix %s", mini(), test_file("i.h5"), test_file(names[1]));
    if (!read_stats(&s, "i.h5")) return;
    for (int i = 0; i < 2; i++) {
        kit_imatrix im;
        dw_err err = {0};
        REQUIRE(!kit_imatrix_read(&im, test_file(names[i]), &err), "%s", err.text);
        const kit_imatrix_entry *down = kit_imatrix_find(&im, "blk.3.ffn_down.weight"),
                                *up = kit_imatrix_find(&im, "blk.3.ffn_up.weight");
        CHECK(im.n_entry == (size_t)s.n_layer * 7 && im.n_chunks == 6 && !strcmp(im.dataset, "one.txt") &&
              !kit_imatrix_find(&im, "output.weight"));
        REQUIRE(down && up && down->n == s.layer[3].n_ff && up->n == s.n_embd && down->count == (i ? 6 : 384));
        for (int j = 0; j < down->n; j++) {
            const double mean = s.layer[3].input_square[KIT_STATS_FFN_NEURON][j] / 384;
            if (!CHECK(fabs((double)down->mean[j] - mean) <= 1e-6 * mean, "%s, column %d: %g, expected %g", names[i], j,
                       (double)down->mean[j], mean))
                break;
        }
        RUN("deadwood-collect -q -m %s --import-imatrix %s -o %s", mini(), test_file(names[i]), test_file("back.h5"));
        if (!read_stats(&back, "back.h5")) return;
        CHECK(back.layer[3].count[0] == 0 && back.text[0].n_tokens == (i ? 6 : 384) && back.text[0].n_windows == 6);
        for (int k = 0; k < KIT_STATS_N_INPUTS; k++) {
            const double a = back.layer[2].input_square[k][5] / (double)back.text[0].n_tokens,
                         b = s.layer[2].input_square[k][5] / 384;
            CHECK(fabs(a - b) <= 1e-6 * b, "%s: %g, expected %g", kit_stats_input_names[k], a, b);
        }
        kit_stats_release(&back);
        kit_imatrix_release(&im);
    }
    kit_stats_release(&s);
    RUN("deadwood-synth --shape tiny-qwen2 --type BF16 -o %s", test_file("base.gguf"));
    char name[160]; // of letters of three bytes, longer than what is kept
    for (size_t i = 0; i < 150; i += 3) memcpy(name + i, "\342\202\254", 4);
    const char *long_name = test_file(name);
    RUN("cp %s %s", test_file(names[1]), long_name);
    RUN("deadwood-collect -q -m %s --import-imatrix %s -o %s", mini(), long_name, test_file("back.h5"));
    if (read_stats(&back, "back.h5")) {
        CHECK(strlen(back.text[0].name) == 126 && !strncmp(back.text[0].name, name, 126), "%s", back.text[0].name);
        kit_stats_release(&back);
    }
    one_line("the model has", test_run("deadwood-collect -q -m %s --import-imatrix %s -o %s", test_file("base.gguf"),
                                       test_file(names[0]), test_file("r.h5")));
    remove(test_file("base.gguf"));
}

/* 2048 experts with 2^53 tokens each: no 64-bit number holds their sum. */
static void many_counts(void) {
    enum { EXPERTS = 2048 };
    static const size_t sums[] = {1, EXPERTS};
    const float most = 0x1p53f, one = 1;
    dw_err err = {0};
    kit_imatrix im;
    dw_gguf_writer *w = dw_gguf_writer_new(test_file("many.imatrix"), &err);
    REQUIRE(w, "%s", err.text);
    dw_gguf_set_text(w, "general.type", "imatrix");
    dw_gguf_add_tensor(w, "w.in_sum2", dw_qtype_get(DW_F32), 2, sums);
    dw_gguf_add_tensor(w, "w.counts", dw_qtype_get(DW_F32), 2, sums);
    REQUIRE(!dw_gguf_begin(w, &err), "%s", err.text);
    for (int i = 0; i < EXPERTS; i++) dw_gguf_write(w, &one, sizeof one, &err);
    for (int i = 0; i < EXPERTS; i++) dw_gguf_write(w, &most, sizeof most, &err);
    CHECK(!dw_gguf_commit(w, &err), "%s", err.text);
    dw_gguf_writer_free(w);
    CHECK(kit_imatrix_read(&im, test_file("many.imatrix"), &err) == -1 && !im.n_entry, "counts beyond 2^53");
    check_sentence(&err, "in all experts", "counts beyond 2^53");
}

/* As many chunks as windows that statistics can number are read, one more is not. */
static void many_chunks(void) {
    const double sums[] = {1, 2, 3};
    kit_imatrix im = {0}, back;
    dw_err err = {0};
    REQUIRE(!kit_imatrix_put(&im, "w", 3, sums, 2, &err), "%s", err.text);
    for (int form = KIT_IMATRIX_GGUF; form <= KIT_IMATRIX_OLD; form++)
        for (int over = 0; over < 2; over++) {
            const char *path = test_file("chunks.imatrix");
            dw_err why = {0};
            im.n_chunks = INT32_MAX - 1 + over;
            REQUIRE(!kit_imatrix_write(&im, path, (kit_imatrix_form)form, &err), "%s", err.text);
            CHECK(kit_imatrix_read(&back, path, &why) == -over, "form %d: %s", form, why.text);
            if (!over) kit_imatrix_release(&back);
        }
    kit_imatrix_release(&im);
}

/* Values and shapes that a reader must not believe. */
static void bad_imatrix(void) {
    static const struct {
        const char *what, *words;
        int32_t n, len, n_call, n_value;
        float value;
    } old[] = {{"no entries", "neither", 0, 1, 1, 1, 1},
               {"too many entries", "neither", 1 << 30, 1, 1, 1, 1},
               {"a long name", "name of", 1, 70000, 1, 1, 1},
               {"a negative name", "name of", 1, -1, 1, 1, 1},
               {"no calls", "0 calls", 1, 1, 0, 1, 1},
               {"no values", "0 values", 1, 1, 1, 0, 1},
               {"too many values", "ends before", 1, 1, 1, 1000, 1},
               {"negative values", "values", 1, 1, 1, -5, 1},
               {"NaN", "nan", 1, 1, 1, 1, NAN},
               {"infinity", "inf", 1, 1, 1, 1, INFINITY},
               {"a negative sum", "-1", 1, 1, 1, 1, -1}};
    for (size_t i = 0; i < sizeof old / sizeof *old; i++) {
        test_bytes b = {0};
        kit_imatrix im;
        dw_err err = {0};
        put_u32(&b, (uint32_t)old[i].n);
        put_u32(&b, (uint32_t)old[i].len);
        put_text(&b, "w");
        put_u32(&b, (uint32_t)old[i].n_call);
        put_u32(&b, (uint32_t)old[i].n_value);
        put_f32(&b, old[i].value);
        CHECK(kit_imatrix_parse(&im, b.data, b.size, "x", &err) == -1 && !im.n_entry, "%s", old[i].what);
        check_sentence(&err, old[i].words, old[i].what);
        free(b.data);
    }
    many_counts();
    many_chunks();
    kit_imatrix im = {0}, back;
    dw_err err = {0};
    const double sums[] = {1, 2, 3};
    REQUIRE(!kit_imatrix_put(&im, "a", 3, sums, 2, &err) && !kit_imatrix_put(&im, "a", 3, sums, 2, &err));
    CHECK(!kit_imatrix_write(&im, test_file("twice.dat"), KIT_IMATRIX_OLD, &err), "%s", err.text);
    CHECK(kit_imatrix_read(&back, test_file("twice.dat"), &err) == -1 && strstr(err.text, "twice"), "%s", err.text);
    kit_imatrix_release(&im);
}

static void stock_takes_it(void) {
    dw_err err = {0};
    stock *peer = stock_open(NULL, &err);
    if (!peer) SKIP("$DW_STOCK names no folder with libllama*.so");
    RUN("deadwood-collect -q -m %s -f %s -c 64 --windows 3 --export-imatrix %s", mini(), a_text("one.txt", 1),
        test_file("s.imatrix.gguf"));
    CHECK(!stock_quantize(peer, mini(), test_file("q.gguf"), "Q4_K_M", test_file("s.imatrix.gguf"), 2, &err), "%s",
          err.text);
    dw_gguf *g = dw_gguf_open(test_file("q.gguf"), &err);
    REQUIRE(g, "%s", err.text);
    uint32_t n = 0;
    CHECK(dw_gguf_u32(g, "quantize.imatrix.entries_count", &n, NULL) != 1 || n > 0, "%u entries were used", n);
    dw_gguf_close(g);
    stock_close(peer);
}

static const test_case cases[] = {{"sums and bins of every level equal plain ones, bit for bit", loops},
                                  {"collect equals a plain accumulation of what the taps show", brute_force},
                                  {"collect writes the same bytes for any number of threads", threads},
                                  {"statistics of two half runs added are those of one run, bit for bit", halves},
                                  {"the tokens after the last whole window are used, and their number is said", tails},
                                  {"texts after the first ones are pooled: their sums add up", pooled},
                                  {"2,000 texts take less than 1.5 times the memory of 64", many_texts},
                                  {"collect goes on where it was killed and writes the same file", killed},
                                  {"collect refuses what another run has finished", other_run},
                                  {"two runs do not write one part", one_run_has_a_part},
                                  {"collect refuses what does not fit in one line", refusals},
                                  {"collect names layer and place of NaN", not_finite},
                                  {"importance matrices go out and come back in both forms", imatrix},
                                  {"broken importance matrices are refused in a sentence", bad_imatrix},
                                  {"stock's quantizer takes the exported importance matrix", stock_takes_it},
                                  {0}};
TEST_MAIN(cases)
