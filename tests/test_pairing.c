/* test_pairing.c - errors, intervals and verdicts against a known truth; the window sums that they come from.
 *
 * tests/seeds/window-sums-sample.windows holds real sums: the embedded model cut by 20 % by `energy` and by `flap`,
 * both against the uncut model, 220 windows of 256 tokens of one English text (protocol llama).  Simulations draw
 * windows from it and plant noise, so the true means are known and the windows' distribution is that of a language
 * model. */
#include "experiments/measures.h"
#include "experiments/sweep/judge.h"
#include "kit/tsv.h"
#include "measure/sums.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <zstd.h>

static const char sample[] = "tests/seeds/window-sums-sample.windows";

/* ---- Student's t ------------------------------------------------------------------------------------------- */

/* Closed forms for 1, 2 and 4 degrees of freedom (Shaw 2006, Journal of Computational Finance 9). */
static double t_closed(double p, int df) {
    const double alpha = 4 * p * (1 - p);
    if (df == 1) return 1 / tan(M_PI * p);
    if (df == 2) return (1 - 2 * p) * sqrt(2 / alpha);
    return 2 * sqrt(cos(acos(sqrt(alpha)) / 3) / sqrt(alpha) - 1);
}

static void quantiles_of_t(void) {
    static const struct {
        double p, df, t;
    } known[] = {{0.05, 4, 2.131846786},  {0.05, 7, 1.894578605},   {0.05, 28, 1.701130934},
                 {0.05, 199, 1.652546746}, {0.025, 10, 2.228138852}, {0.025, 1e12, 1.959963985}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        CHECK(fabs(measure_t(known[i].p, known[i].df) - known[i].t) < 3e-6, "%g, %g: %.9f", known[i].p, known[i].df,
              measure_t(known[i].p, known[i].df));
    for (double p = 0.4; p > 1e-12; p /= 7)
        for (int df = 1; df <= 4; df *= 2) {
            const double t = measure_t(p, df), expected = t_closed(p, df);
            CHECK(fabs(t / expected - 1) < 1e-7, "df %d, p %g: %.12g, not %.12g", df, p, t, expected);
            CHECK(fabs(measure_t(1 - p, df) + measure_t(p, df)) < 1e-6 * t || p < 1e-6);
        }
    for (double df = 0.7; df < 1e5; df *= 3.3) {
        const double t = measure_t(1e-4, df);
        CHECK(fabs(measure_t_tail(t, df) / 1e-4 - 1) < 1e-6, "%g: %g", df, measure_t_tail(t, df));
    }
    CHECK(isnan(measure_t(0, 4)) && isnan(measure_t(0.5, 0)) && isnan(measure_t(0.1, NAN)) && measure_t(0.5, 3) == 0);
}

/* ---- real window sums --------------------------------------------------------------------------------------- */

typedef struct pool { // the windows of one text, of two models
    measure_book *book;
    measure_view cut[2];
    size_t n;
} pool;

static bool pool_open(pool *p) {
    dw_err err = {0};
    p->book = measure_book_new(&err);
    if (!CHECK(p->book && !measure_book_read(p->book, sample, &err), "%s", err.text)) return false;
    if (!CHECK(measure_book_count(p->book) == 2)) return false;
    for (size_t k = 0; k < 2; k++) p->cut[k] = measure_book_at(p->book, k);
    p->n = p->cut[0].of->n_windows;
    return true;
}

static void pool_close(pool *p) { measure_book_free(p->book); }

static double pool_mean(const pool *p, measure_sum what) {
    const double *sum = p->cut[0].of->sum[what], *n = p->cut[0].of->sum[MEASURE_TOKENS];
    double total = 0, tokens = 0;
    for (size_t w = 0; w < p->n; w++) total += sum[w], tokens += n[w];
    return total / tokens;
}

/* Of a token: planted ln_ratio and its deviation by window, KL and the deviation of its logarithm by window, which are
 * about those of the sample. */
static const double ratio = 0.05, ratio_sd = 0.12, kl = 0.4, ln_kl_sd = 0.3;

/* n windows of the pool: the base's sums are real, the model's differ from them by planted noise; the share of
 * agreements is that of the window, their number is drawn. */
static void draw(const pool *p, dw_rng *rng, size_t n, double *const sum[MEASURE_N_SUMS]) {
    const measure_sums *s = p->cut[0].of;
    for (size_t w = 0; w < n; w++) {
        const size_t from = dw_rng_below(rng, p->n);
        const double tokens = s->sum[MEASURE_TOKENS][from], share = s->sum[MEASURE_AGREE][from] / tokens;
        sum[MEASURE_TOKENS][w] = tokens;
        sum[MEASURE_BASE_NLL][w] = s->sum[MEASURE_BASE_NLL][from];
        sum[MEASURE_NLL][w] = sum[MEASURE_BASE_NLL][w] + tokens * (ratio + ratio_sd * dw_rng_normal(rng));
        sum[MEASURE_KL][w] = tokens * kl * exp(ln_kl_sd * dw_rng_normal(rng) - ln_kl_sd * ln_kl_sd / 2);
        sum[MEASURE_AGREE][w] = 0;
        for (double i = 0; i < tokens; i++) sum[MEASURE_AGREE][w] += dw_rng_uniform(rng) < share;
    }
}

/* The same with the cut's own sums: nothing is planted. */
static void draw_real(const pool *p, dw_rng *rng, size_t n, double *const sum[MEASURE_N_SUMS]) {
    for (size_t w = 0; w < n; w++) {
        const size_t from = dw_rng_below(rng, p->n);
        for (int k = 0; k < MEASURE_IDS; k++) sum[k][w] = p->cut[0].of->sum[k][from];
    }
}

static const double skewed_sd = 0.6; // of the logarithms of KL, twice that of the sample

/* Log-normal KL by window. */
static void draw_skewed(const pool *p, dw_rng *rng, size_t n, double *const sum[MEASURE_N_SUMS]) {
    const double sd = skewed_sd;
    draw(p, rng, n, sum);
    for (size_t w = 0; w < n; w++)
        sum[MEASURE_KL][w] = sum[MEASURE_TOKENS][w] * kl * exp(sd * dw_rng_normal(rng) - sd * sd / 2);
}

enum { TRIALS = 2000, MOST = 200, COLUMNS = 4 };
static const char *const column_names[COLUMNS] = {"nll_nats", "ln_ratio", "kl_mean", "top1_agree"};

/* The means of a row's columns, as score takes them. */
static void means_of(double *const sum[MEASURE_N_SUMS], size_t n, measure_mean m[COLUMNS]) {
    const double *tokens = sum[MEASURE_TOKENS];
    m[0] = measure_mean_of_windows(sum[MEASURE_NLL], tokens, n);
    m[1] = measure_mean_of_pairs(sum[MEASURE_NLL], sum[MEASURE_BASE_NLL], tokens, n);
    m[2] = measure_mean_of_windows(sum[MEASURE_KL], tokens, n);
    m[3] = measure_mean_of_windows(sum[MEASURE_AGREE], tokens, n);
}

typedef void draw_windows(const pool *p, dw_rng *rng, size_t n, double *const sum[MEASURE_N_SUMS]);

/* How many of TRIALS rows of n_texts texts with n windows each have the truth in their 90 % interval. */
static void count_covered(const pool *p, draw_windows *windows, size_t n_texts, size_t n, int covered[COLUMNS]) {
    static double memory[MEASURE_N_SUMS][MOST];
    double *const sum[MEASURE_N_SUMS] = {memory[0], memory[1], memory[2], memory[3], memory[4]};
    const double base = pool_mean(p, MEASURE_BASE_NLL), real = pool_mean(p, MEASURE_NLL);
    const bool is_real = windows == draw_real;
    const double truth[COLUMNS] = {is_real ? real : base + ratio, is_real ? real - base : ratio,
                                   is_real ? pool_mean(p, MEASURE_KL) : kl, pool_mean(p, MEASURE_AGREE)};
    dw_rng rng;
    dw_rng_seed(&rng, 10 * n + n_texts);
    for (int trial = 0; trial < TRIALS; trial++) {
        measure_texts all[COLUMNS] = {{0}};
        for (size_t t = 0; t < n_texts; t++) {
            measure_mean m[COLUMNS];
            windows(p, &rng, n, sum);
            means_of(sum, n, m);
            for (int c = 0; c < COLUMNS; c++) measure_texts_add(&all[c], &m[c]);
        }
        for (int c = 0; c < COLUMNS; c++) {
            const measure_mean m = measure_texts_mean(&all[c]);
            covered[c] += fabs(m.mean - truth[c]) <= measure_half_width(&m, 0.9);
        }
    }
}

/* Checks the share of intervals that cover the truth; texts of 5 and 8 windows are taken one and five at a time. */
static void check_coverage(draw_windows *from, double least, double most) {
    static const size_t windows[] = {5, 8, 29, 200};
    pool p;
    REQUIRE(pool_open(&p));
    for (size_t i = 0; i < 4; i++)
        for (size_t n_texts = 1; n_texts <= (windows[i] > 8 ? 1 : 5); n_texts += 4) {
            int covered[COLUMNS] = {0};
            count_covered(&p, from, n_texts, windows[i], covered);
            for (int c = 0; c < COLUMNS; c++) {
                const double share = (double)covered[c] / TRIALS;
                CHECK(share >= least && share <= most, "%s, %zu texts of %zu windows: %.1f %%", column_names[c],
                      n_texts, windows[i], 100 * share);
            }
        }
    pool_close(&p);
}

static void coverage(void) { check_coverage(draw, 0.88, 0.92); }

/* Two of the 220 windows, which repeat a text, have four times the mean KL.  Few windows without them cannot know
 * it. */
static void coverage_of_outliers(void) { check_coverage(draw_real, 0.84, 0.92); }

/* What statistics.h says of skewed windows. */
static void coverage_of_skewed(void) { check_coverage(draw_skewed, 0.83, 0.92); }

static void narrower(void) {
    pool p;
    REQUIRE(pool_open(&p));
    const measure_mean paired = measure_view_compare(&p.cut[0], &p.cut[1], MEASURE_NLL);
    double square = 0;
    for (int k = 0; k < 2; k++) square += pow(measure_view_mean(&p.cut[k], MEASURE_NLL).se, 2);
    CHECK(paired.se > 0 && sqrt(square) > 3 * paired.se, "unpaired %.5f, paired %.5f", sqrt(square), paired.se);
    CHECK(fabs(paired.mean - (measure_view_mean(&p.cut[0], MEASURE_NLL).mean -
                              measure_view_mean(&p.cut[1], MEASURE_NLL).mean)) < 1e-12);
    pool_close(&p);
}

/* ---- rows with their sums ------------------------------------------------------------------------------------ */

typedef struct variant { // a model's row: what differs between variants
    const char *name, *type, *role;
    double bytes, bytes_per_token;
    double *nll; // (n) sums of the windows
    const char *protocol;
} variant;

static void hash_of(const char *name, char hex[65]) { dw_sha256_hex(name, strlen(name), hex); }

static void fill_row(exp_result *r, const variant *v, const measure_sums *s) {
    const measure_mean m = measure_mean_of_windows(s->sum[MEASURE_NLL], s->sum[MEASURE_TOKENS], s->n_windows);
    r->nll = m.mean;
    r->ln_ratio = m.mean - 3.3;
    r->nll_se = r->ln_ratio_se = m.se;
    r->windows = (double)s->n_windows;
    r->file_bytes = v->bytes;
    r->bytes_per_token = v->bytes_per_token;
    dw_hex(s->text->sha256, 32, r->text_sha256);
}

/* The row of a variant on one text of n windows of 100 tokens, where the base has 3.3 nats a token, and its sums. */
static void add_row(exp_result *r, measure_book *b, const variant *v, size_t n) {
    dw_err err = {0};
    const measure_sums_text text = {.sha256 = {v->role ? (uint8_t)v->role[0] : 1}, .first = 1, .n_windows = (int)n};
    measure_sums s;
    int place;
    *r = exp_result_unknown();
    hash_of(v->name, r->model_sha256);
    hash_of("dense", r->base_sha256);
    snprintf(r->model, sizeof r->model, "%s", v->name);
    snprintf(r->text, sizeof r->text, "text");
    snprintf(r->type, sizeof r->type, "%s", v->type ? v->type : "BF16");
    snprintf(r->role, sizeof r->role, "%s", v->role ? v->role : "");
    snprintf(r->window_range, sizeof r->window_range, "1-%zu", n);
    snprintf(r->base, sizeof r->base, "dense");
    snprintf(r->protocol, sizeof r->protocol, "%s", v->protocol ? v->protocol : "llama");
    char *how = exp_sums_how_of(r, &err);
    REQUIRE(how && !measure_sums_make(&s, how, &text, 1, &place, &err), "%s", err.text);
    for (size_t w = 0; w < n; w++) {
        s.sum[MEASURE_TOKENS][w] = 100;
        s.sum[MEASURE_BASE_NLL][w] = 330;
        s.sum[MEASURE_NLL][w] = v->nll[w];
    }
    fill_row(r, v, &s);
    CHECK(!measure_book_add(b, &s, &err), "%s", err.text);
    measure_sums_release(&s);
    free(how);
}

static void write_rows(const char *path, const variant *v, size_t n_variants, size_t n) {
    dw_err err = {0};
    size_t n_again;
    exp_result *r = calloc(n_variants, sizeof *r);
    measure_book *b = measure_book_new(&err);
    char *sums = measure_book_path(path, &err);
    remove(path);
    for (size_t i = 0; i < n_variants; i++) add_row(&r[i], b, &v[i], n);
    CHECK(!measure_book_write(b, sums, &err) && !exp_append_results(path, r, n_variants, NULL, &n_again, &err), "%s",
          err.text);
    measure_book_free(b);
    free(sums);
    free(r);
}

/* The judged table of one source; false: it could not be made. */
static bool judged(const char *path, tsv_table *t, judge_counts *counts) {
    dw_err err = {0};
    const char *out = test_file("judged.tsv");
    judge *j = judge_new(1, &err);
    const bool ok = CHECK(j && !judge_add(j, 0, path, "-", false, &err) && !judge_write(j, out, "#", counts, &err) &&
                              !tsv_read(t, out, &err),
                          "%s", err.text);
    judge_free(j);
    return ok;
}

static bool says(const tsv_table *t, size_t row, const char *column, const char *begin) {
    return !strncmp(tsv_cell(t, row, column), begin, strlen(begin));
}

/* Variants whose windows have the same means and independent noise. */
static void equal_variants(void) {
    enum { N = 60, SWEEPS = 100, MOST_WINDOWS = 29 };
    static double nll[N][MOST_WINDOWS];
    static char name[N][16];
    static const size_t windows[] = {5, 29};
    pool p;
    dw_rng rng;
    REQUIRE(pool_open(&p));
    dw_rng_seed(&rng, 11);
    const double *real = p.cut[0].of->sum[MEASURE_NLL];
    int n_false = 0;
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        variant v[N] = {{0}};
        const size_t n = windows[sweep % 2];
        double shared[MOST_WINDOWS];
        for (size_t w = 0; w < n; w++) shared[w] = real[dw_rng_below(&rng, p.n)];
        for (int i = 0; i < N; i++) {
            snprintf(name[i], sizeof name[i], "v%d", i);
            for (size_t w = 0; w < n; w++) nll[i][w] = shared[w] + 3 * dw_rng_normal(&rng);
            v[i] = (variant){.name = name[i], .bytes = 100, .bytes_per_token = 10, .nll = nll[i]};
        }
        write_rows(test_file("equal.tsv"), v, N, n);
        tsv_table t;
        judge_counts counts;
        REQUIRE(judged(test_file("equal.tsv"), &t, &counts));
        CHECK(counts.keep + counts.discard == N, "%zu and %zu", counts.keep, counts.discard);
        n_false += counts.discard > 0;
        tsv_release(&t);
    }
    CHECK(n_false <= SWEEPS * 5 / 100, "%d of %d sweeps of equal variants have a discarded one", n_false, SWEEPS);
    pool_close(&p);
}

/* Differences that the unpaired error hides are found, and only among files that are no larger and of the same type. */
static void found(void) {
    enum { W = 20 };
    double nll[6][W];
    pool p;
    dw_rng rng;
    REQUIRE(pool_open(&p));
    dw_rng_seed(&rng, 12);
    const double above[6] = {0, 1, 1, 1, 1, 1.0001};
    for (int i = 0; i < 6; i++)
        for (size_t w = 0; w < W; w++)
            nll[i][w] = p.cut[0].of->sum[MEASURE_NLL][w] + above[i] * 3 + 0.1 * sin((double)(w + 7 * (size_t)i));
    const variant v[6] = {{"best", NULL, NULL, 100, 10, nll[0]},    {"larger", NULL, NULL, 101, 10, nll[1]},
                          {"smaller", NULL, NULL, 99, 10, nll[2]},  {"other-type", "Q8_0", NULL, 101, 10, nll[3]},
                          {"uncounted", NULL, NULL, 101, NAN, nll[4]}, {"alike", NULL, NULL, 99, 10, nll[5]}};
    static const char *const verdict[6] = {"keep", "discard", "keep", "keep", "-", "keep"};
    write_rows(test_file("found.tsv"), v, 6, W);
    tsv_table t;
    judge_counts counts;
    REQUIRE(judged(test_file("found.tsv"), &t, &counts));
    for (size_t i = 0; i < 6; i++)
        CHECK(!strcmp(tsv_cell(&t, i, "verdict"), verdict[i]), "%s: %s", v[i].name, tsv_cell(&t, i, "verdict"));
    CHECK(says(&t, 1, "dominated_by", "best") && says(&t, 1, "note", "ln ratio larger by 0.03") &&
              strstr(tsv_cell(&t, 1, "note"), "paired"), "%s", tsv_cell(&t, 1, "note"));
    CHECK(says(&t, 4, "note", "not judged: bytes a token were not counted"), "%s", tsv_cell(&t, 4, "note"));
    CHECK(strstr(tsv_cell(&t, 4, "note"), "without --no-speed, or add a step 'alone score -m MODEL --speed-only'"),
          "the note says what to do: %s", tsv_cell(&t, 4, "note"));
    tsv_release(&t);
    char sums[1024];
    snprintf(sums, sizeof sums, "%s.windows", test_file("found.tsv"));
    remove(sums);
    REQUIRE(judged(test_file("found.tsv"), &t, &counts));
    CHECK(says(&t, 1, "verdict", "keep"), "without window sums the difference is lost in the error of both rows: %s",
          tsv_cell(&t, 1, "note"));
    tsv_release(&t);
    pool_close(&p);
}

/* A table with the paired difference of every row from one model. */
static void against(void) {
    enum { W = 12 };
    double nll[3][W], mean = 0, square = 0;
    pool p;
    REQUIRE(pool_open(&p));
    for (int i = 0; i < 3; i++)
        for (size_t w = 0; w < W; w++)
            nll[i][w] = p.cut[0].of->sum[MEASURE_NLL][w] + 2 * i + cos((double)(w + 5 * (size_t)i));
    const variant v[4] = {{"one", NULL, NULL, 100, 10, nll[0]}, {"two", NULL, NULL, 101, 10, nll[1]},
                          {"three", NULL, NULL, 99, 10, nll[2]}, {"other", NULL, NULL, 99, 10, nll[2], "full"}};
    write_rows(test_file("against.tsv"), v, 4, W);
    for (int w = 0; w < W; w++) mean += (nll[2][w] - nll[0][w]) / W;
    for (int w = 0; w < W; w++) square += pow(nll[2][w] - nll[0][w] - mean, 2);
    CHECK(!test_run("deadwood-table %s --against one --columns model,difference,difference_ci90 --format tsv -o %s",
                    test_file("against.tsv"), test_file("against.out")), "%s", test_run_output());
    dw_err err = {0};
    tsv_table t;
    REQUIRE(!tsv_read(&t, test_file("against.out"), &err) && t.n_rows == 4, "%s", err.text);
    const double se = sqrt(square / W / (W - 1)) / 100;
    CHECK(fabs(atof(tsv_cell(&t, 2, "difference")) - mean / 100) < 1e-7 && says(&t, 2, "model", "three"));
    CHECK(fabs(atof(tsv_cell(&t, 2, "difference_se")) / se - 1) < 1e-3, "%s", tsv_cell(&t, 2, "difference_se"));
    CHECK(fabs(atof(tsv_cell(&t, 2, "difference_ci90")) / (se * measure_t(0.05, W - 1)) - 1) < 1e-3);
    CHECK(atof(tsv_cell(&t, 0, "difference")) == 0 && says(&t, 0, "difference", "0"));
    CHECK(says(&t, 3, "model", "other") && !strcmp(tsv_cell(&t, 3, "difference"), "-"), "of another protocol: %s",
          tsv_cell(&t, 3, "difference"));
    tsv_release(&t);
    CHECK(!test_run("deadwood-table %s --against one", test_file("against.tsv")) &&
              strstr(test_run_output(), "paired ln ratio is ln(ppl / ppl of one) on the same windows"), "%s",
          test_run_output());
    CHECK(test_run("deadwood-table %s --against four", test_file("against.tsv")) == 1 &&
              strstr(test_run_output(), "no row is of a model 'four'"), "%s", test_run_output());
    pool_close(&p);
}

/* A gated model is judged by the bytes that were counted with its speed, wherever that row is. */
static void counted_bytes(void) {
    FILE *f = fopen(test_file("gated.tsv"), "w");
    fprintf(f, "model\tmodel_sha256\ttext\tln_ratio\tln_ratio_se\twindows\tfile_bytes\tbytes_per_token\tdepth\n"
               "gated\th1\t-\t-\t-\t-\t100\t70\t4096\n"
               "gated\th1\ta\t0.5\t0.001\t30\t100\t-\t-\n"
               "dense\th2\ta\t0\t0.001\t30\t90\t80\t-\n"
               "gated\th1\t-\t-\t-\t-\t100\t%s\t0\n", "95");
    fclose(f);
    tsv_table t;
    judge_counts counts;
    REQUIRE(judged(test_file("gated.tsv"), &t, &counts));
    CHECK(t.n_rows == 3 && says(&t, 1, "verdict", "discard") && says(&t, 1, "dominated_by", "dense") &&
              says(&t, 1, "bytes_per_token", "95"),
          "%zu rows, %s", t.n_rows, tsv_cell(&t, 1, "verdict"));
    CHECK(says(&t, 0, "depth", "4096") && says(&t, 0, "verdict", "-"), "speed at a further depth stays");
    tsv_release(&t);
}

/* Chosen on one text, reported on another. */
static void select_and_report(void) {
    enum { W = 10 };
    double good[W], bad[W];
    for (int w = 0; w < W; w++) good[w] = 600 + w % 3, bad[w] = 630 + w % 4;
    const variant v[4] = {{"a", NULL, "select", 100, 10, good}, {"b", NULL, "select", 100, 10, bad},
                          {"a", NULL, "report", 100, 10, bad},  {"b", NULL, "report", 100, 10, good}};
    write_rows(test_file("roles.tsv"), v, 4, W);
    tsv_table t;
    judge_counts counts;
    REQUIRE(judged(test_file("roles.tsv"), &t, &counts));
    CHECK(counts.collapsed == 2 && !counts.keep, "a model is counted once: %zu", counts.collapsed);
    tsv_release(&t);
    for (int w = 0; w < W; w++) good[w] -= 260, bad[w] -= 260;
    write_rows(test_file("roles.tsv"), v, 4, W);
    REQUIRE(judged(test_file("roles.tsv"), &t, &counts));
    CHECK(says(&t, 0, "verdict", "keep") && says(&t, 2, "verdict", "keep"), "%s", tsv_cell(&t, 2, "verdict"));
    CHECK(says(&t, 1, "verdict", "discard") && says(&t, 3, "verdict", "discard") && says(&t, 3, "dominated_by", "a") &&
              strstr(tsv_cell(&t, 3, "note"), "on the texts of role select"), "%s, %s", tsv_cell(&t, 3, "verdict"),
          tsv_cell(&t, 3, "note"));
    tsv_release(&t);
    CHECK(!test_run("deadwood-table %s", test_file("judged.tsv")), "%s", test_run_output());
    CHECK(strstr(test_run_output(), "Not shown: 2 rows of the texts that variants were chosen by"), "%s",
          test_run_output());
}

/* ---- files --------------------------------------------------------------------------------------------------- */

static int read_bytes(const char *data, size_t size, dw_err *err) {
    const char *path = test_file("damaged.windows");
    FILE *f = fopen(path, "w");
    if (size) fwrite(data, 1, size, f);
    fclose(f);
    measure_book *b = measure_book_new(err);
    const int rc = measure_book_read(b, path, err);
    measure_book_free(b);
    return rc;
}

/* Changed bytes of a record whose frame and checksum are right: refused, or read without harm. */
static void check_contents(const char *data, size_t first) {
    const size_t raw = dw_le32(data + 8), bound = ZSTD_compressBound(raw);
    uint8_t *bytes = malloc(raw), *file = malloc(16 + bound);
    dw_rng rng;
    dw_rng_seed(&rng, 9);
    CHECK(ZSTD_decompress(bytes, raw, data + 16, first - 16) == raw);
    memcpy(file, data, 12);
    for (int i = 0; i < 400; i++) {
        dw_err e = {0};
        const size_t at = i < 200 ? (size_t)i : dw_rng_below(&rng, raw);
        const uint8_t old = bytes[at];
        bytes[at] = (uint8_t)dw_rng_next(&rng);
        const size_t n = ZSTD_compress(file + 16, bound, bytes, raw, 1);
        for (int k = 0; k < 4; k++) file[12 + k] = (uint8_t)(n >> 8 * k);
        const int rc = read_bytes((char *)file, 16 + n, &e);
        CHECK((rc != 0) == (e.text[0] != 0) && !strchr(e.text, '\n'), "byte %zu: %d, '%s'", at, rc, e.text);
        bytes[at] = old;
    }
    free(bytes);
    free(file);
}

static void damage(void) {
    dw_err err = {0};
    dw_rng rng;
    size_t size;
    char *data = dw_read_file(sample, 1 << 20, &size, &err);
    REQUIRE(data, "%s", err.text);
    CHECK(!read_bytes(data, size, &err), "%s", err.text);
    const size_t first = 16 + dw_le32(data + 12); // where the first record ends
    for (size_t n = 0; n < size; n += n < 300 || n + 20 > size ? 1 : 997) {
        dw_err e = {0};
        const int rc = read_bytes(data, n, &e);
        CHECK((rc == 0) == (n == 8 || n == first), "%zu of %zu bytes: %d %s", n, size, rc, e.text);
        CHECK(rc == 0 || (e.text[0] && !strchr(e.text, '\n')));
    }
    check_contents(data, first);
    dw_rng_seed(&rng, 8);
    for (int i = 0; i < 300; i++) {
        dw_err e = {0};
        const size_t at = i < 64 ? (size_t)i : dw_rng_below(&rng, size);
        const char old = data[at];
        data[at] = (char)~old;
        CHECK(read_bytes(data, size, &e) && e.text[0] && !strchr(e.text, '\n'), "byte %zu is not missed", at);
        data[at] = old;
    }
    free(data);
}

static void same_again(void) {
    enum { W = 6 };
    dw_err err = {0};
    double a[W], b[W];
    for (int w = 0; w < W; w++) a[w] = 300 + w, b[w] = 301 + w * w;
    const variant v[2] = {{"a", NULL, NULL, 1, 1, a}, {"b", NULL, NULL, 1, 1, b}};
    char path[1024], copy[1040];
    write_rows(test_file("twice.tsv"), v, 2, W);
    snprintf(path, sizeof path, "%s.windows", test_file("twice.tsv"));
    snprintf(copy, sizeof copy, "%s.copy", path);
    REQUIRE(!test_run("cp %s %s", path, copy));
    measure_book *book = measure_book_new(&err);
    REQUIRE(!measure_book_read(book, path, &err) && !measure_book_read(book, path, &err) &&
                !measure_book_write(book, path, &err),
            "%s", err.text);
    CHECK(measure_book_count(book) == 4 && !test_run("cmp %s %s", path, copy),
          "records that are there twice count once");
    measure_book_free(book);
}

/* ---- the program ---------------------------------------------------------------------------------------------- */

static const char *text_of(const char *name, size_t n, unsigned seed) {
    FILE *f = fopen(test_file(name), "w");
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1103515245u + 12345;
        fputc(i % 6 == 5 ? ' ' : 'a' + (int)(seed >> 16) % 26, f);
    }
    fclose(f);
    return test_file(name);
}

static const char *synth(const char *name, int seed) {
    CHECK(!test_run("deadwood-synth --shape tiny-llama --type Q8_0 --seed %d -o %s -q", seed, test_file(name)), "%s",
          test_run_output());
    return test_file(name);
}

/* Every row of a table finds its sums, and they have its mean. */
static size_t check_sums(const char *path) {
    dw_err err = {0};
    tsv_table t;
    judge_counts counts;
    if (!CHECK(!tsv_read(&t, path, &err), "%s", err.text)) return 0;
    const size_t n = t.n_rows;
    tsv_release(&t);
    char sums[1024];
    snprintf(sums, sizeof sums, "%s.windows", path);
    CHECK(dw_file_exists(sums));
    if (judged(path, &t, &counts)) tsv_release(&t);
    return n;
}

static void killed(void) {
    const char *a = synth("a.gguf", 1), *b = synth("b.gguf", 2), *c = synth("c.gguf", 3),
               *t = text_of("t.txt", 6000, 1), *u = text_of("u.txt", 6000, 2), *rows = test_file("killed.tsv");
    remove(rows);
    CHECK(!test_run("deadwood-score -m %s -f %s -c 32 --windows 6 --no-speed -q -o %s", a, t, rows), "%s",
          test_run_output());
    for (int i = 0; i < 4; i++) {
        const size_t before = check_sums(rows);
        test_run("deadwood-score -m %s %s %s -f %s %s -c 32 --no-speed -q -t 1 --role select -o %s & pid=$!; "
                 "n=0; while [ $(wc -l <%s) -lt %zu ] && [ $n -lt 2000 ]; do sleep 0.01; n=$((n + 1)); done; "
                 "kill -9 $pid; wait $pid",
                 a, b, c, t, u, rows, rows, before + 2 + 1);
        const size_t after = check_sums(rows);
        CHECK(after > before && (after - before) % 3 == 0, "%zu rows, then %zu", before, after);
    }
    CHECK(!test_run("deadwood-score -m %s %s %s -f %s %s -c 32 --no-speed -t 1 --role select -o %s", a, b, c, t, u,
                    rows) &&
              strstr(test_run_output(), "of these rows before"),
          "%s", test_run_output());
    CHECK(!test_run("deadwood-table %s --text all", rows) && strstr(test_run_output(), "measured again later"),
          "%s", test_run_output());
}

/* Several processes append to one table: no row is lost, and none is without its sums. */
static void at_once(void) {
    const char *a = synth("a.gguf", 1), *b = synth("b.gguf", 2), *t = text_of("t.txt", 1500, 1),
               *rows = test_file("at-once.tsv");
    CHECK(!test_run("for m in %s %s %s %s; do deadwood-score -m $m -f %s -c 32 --no-speed -q -t 1 -o %s & done; wait",
                    a, b, a, b, t, rows),
          "%s", test_run_output());
    dw_err err = {0};
    char *sums = measure_book_path(rows, &err);
    measure_book *book = measure_book_new(&err);
    CHECK(check_sums(rows) == 4 && !measure_book_read(book, sums, &err) && measure_book_count(book) == 2, "%s",
          err.text);
    measure_book_free(book);
    free(sums);
}

static void side_by_side(void) {
    const char *a = synth("a.gguf", 1), *b = synth("b.gguf", 2), *c = synth("c.gguf", 3),
               *t = text_of("t.txt", 2500, 1), *u = text_of("u.txt", 1500, 2);
    char file[4][1024];
    for (int n = 1; n <= 3; n++) snprintf(file[n], sizeof file[n], "%s%d", test_file("beside"), n);
    for (int n = 1; n <= 3; n++)
        CHECK(!test_run(
                  "rm -f %s*; SOURCE_DATE_EPOCH=1 deadwood-score -m %s %s %s --base %s -f %s %s -c 32 --no-speed -q "
                  "--side-by-side %d -o %s",
                  file[n], a, b, c, a, t, u, n, file[n]),
              "%s", test_run_output());
    for (int n = 2; n <= 3; n++)
        CHECK(!test_run("cmp %s %s && cmp %s.windows %s.windows", file[1], file[n], file[1], file[n]), "%s",
              test_run_output());
}

/* ---- many rows ------------------------------------------------------------------------------------------------ */

static double child_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_CHILDREN, &u);
    return (double)u.ru_utime.tv_sec + 1e-6 * (double)u.ru_utime.tv_usec;
}

static void many_rows(void) {
    enum { MODELS = 2000, TEXTS = 4 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    SKIP("sanitizers are slow");
#endif
    FILE *f = fopen(test_file("many.tsv"), "w");
    fprintf(f,
            "%s\ndate\tmodel\tmodel_sha256\ttext\ttext_sha256\tbase\tbase_sha256\tprotocol\tn_"
            "ctx\tmetric\trate\tseed\tppl\tln_ratio\t"
            "ln_ratio_se\twindows\tfile_bytes\tbytes_per_token\n",
            exp_rows_comment);
    for (int m = 0; m < MODELS; m++)
        for (int t = 0; t <= TEXTS; t++)
            fprintf(f, "d%d\tm%d\thash%d\t%s\ttext%d\tm0\thash0\tllama\t512\te\t0.%d\t%d\t%d\t%g\t0.01\t30\t%d\t%d\n",
                    m, m, m, t == TEXTS ? "*" : (char[]){(char)('a' + t), 0}, t, m / 4, m % 4, 10 + m % 7,
                    1e-3 * ((m * 7919) % 1000), 100 + m % 50, 50 + m % 31);
    fclose(f);
    tsv_table t;
    judge_counts counts;
    const double begin = (double)clock() / CLOCKS_PER_SEC;
    REQUIRE(judged(test_file("many.tsv"), &t, &counts));
    const double seconds = (double)clock() / CLOCKS_PER_SEC - begin;
    CHECK(t.n_rows == MODELS * (TEXTS + 1) && counts.keep + counts.discard == MODELS, "%zu", t.n_rows);
    CHECK(seconds < 5, "10,000 rows are judged in %.1f s", seconds);
    tsv_release(&t);
    for (int join = 0; join < 2; join++) {
        const double before = child_seconds();
        CHECK(!test_run("deadwood-table %s %s -o %s", test_file(join ? "many.tsv" : "judged.tsv"),
                        join ? "--join seed" : "", test_file("many.md")),
              "%s", test_run_output());
        CHECK(child_seconds() - before < 5, "10,000 rows: a table in %.1f s", child_seconds() - before);
    }
}

static const test_case cases[] = {
    {"Student's t has the quantiles of closed forms and tables", quantiles_of_t},
    {"90 % intervals of every column cover the truth in 88 to 92 % of 2,000 trials, at 5, 8, 29 and 200 windows",
     coverage},
    {"where windows have outliers, as real damage has, 90 % intervals cover at least 84 %", coverage_of_outliers},
    {"where KL is log-normal by window, they cover at least 83 % from five windows", coverage_of_skewed},
    {"the paired comparison of two cuts is at least three times narrower than the unpaired", narrower},
    {"of 60 equal variants none is discarded in at least 95 % of sweeps", equal_variants},
    {"a difference beyond the paired error is found, among files of one type that are no larger", found},
    {"a table shows the paired difference of every row from any model", against},
    {"a gated model is judged by counted bytes, or not at all", counted_bytes},
    {"variants are chosen by rows of role select and shown by rows of role report", select_and_report},
    {"damaged window sums are refused in one line", damage},
    {"window sums that are there twice count once", same_again},
    {"a score that is killed keeps the rows of finished models and their window sums", killed},
    {"scores that append to one table at once lose neither rows nor window sums", at_once},
    {"how many models are evaluated side by side changes no byte", side_by_side},
    {"10,000 rows are judged and shown within five seconds", many_rows},
    {0}};
TEST_MAIN(cases)
