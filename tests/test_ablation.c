/* test_ablation.c - losses without single groups of neurons: measured as a session without them measures, with the
 * error of a mean over windows, and beside all metrics. */
#include "build.h"
#include "engine.h"
#include "prune/ablation.h"
#include "test.h"
#include "text/tokenizers.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_CTX = 32, N_WINDOWS = 5, GROUP = 32 };

static const char *text_file(void) {
    const char *path = test_file("text.txt");
    if (!access(path, R_OK)) return path;
    FILE *f = fopen(path, "wb");
    dw_rng rng;
    dw_rng_seed(&rng, 8);
    for (int i = 0; f && i < 4000; i++) fputc(" abcdefghijklmnopqrstuvwxyz\n"[dw_rng_below(&rng, 28)], f);
    if (f) fclose(f);
    return path;
}

/* ---- the same by another way: a selection of neurons, and whole rows of logits ------------------------------ */

static void windows_of(const dw_model *m, int32_t token[N_WINDOWS * N_CTX]) {
    dw_err err = {0};
    size_t size, n;
    int32_t *all;
    dw_tokenizer *tok = dw_tokenizer_open(dw_model_gguf(m), &err);
    char *text = dw_read_text(text_file(), 1 << 20, &size, &err);
    if (!CHECK(tok && text && !dw_tokenize(tok, text, size, DW_ADD_SPECIAL, &all, &n, &err), "%s", err.text)) exit(1);
    const dw_vocab *v = dw_tokenizer_vocab(tok);
    memcpy(token, all, N_WINDOWS * N_CTX * sizeof *token);
    for (int w = 1; w < N_WINDOWS && v->add_bos; w++) token[w * N_CTX] = v->bos;
    free(all), free(text);
    dw_tokenizer_free(tok);
}

/* Mean losses of the windows at tokens N_CTX / 2 + 1 .. N_CTX - 1. */
static void losses(dw_session *s, int n_vocab, const int32_t *token, double *loss) {
    dw_err err = {0};
    uint8_t out[N_CTX];
    float *row = calloc((size_t)n_vocab * N_CTX, sizeof *row);
    memset(out, 1, sizeof out);
    for (int w = 0; w < N_WINDOWS; w++) {
        const int32_t *t = token + w * N_CTX;
        dw_session_rewind(s, 0, 0);
        CHECK(!dw_session_eval(s, &(dw_batch){.n_tokens = N_CTX, .token = t, .out = out}, &err) &&
                  !dw_session_logits(s, 0, N_CTX, row, &err),
              "%s", err.text);
        loss[w] = 0;
        for (int i = N_CTX / 2; i < N_CTX - 1; i++) {
            double sum = 0;
            for (int v = 0; v < n_vocab; v++) sum += exp((double)row[i * n_vocab + v]);
            loss[w] += (log(sum) - (double)row[i * n_vocab + t[i + 1]]) / (N_CTX / 2 - 1);
        }
    }
    free(row);
}

static void check_group(dw_session *s, const dw_hparams *hp, const int32_t *token, const double *base,
                        const ablated *g, double *d) {
    int32_t list[512];
    int n = 0;
    const int32_t *neuron[16] = {0};
    int32_t length[16] = {0};
    double loss[N_WINDOWS], mean = 0, square = 0;
    for (int j = 0; j < hp->n_ff[g->layer]; j++)
        if (j / GROUP != g->group) list[n++] = j;
    neuron[g->layer] = list, length[g->layer] = n;
    dw_err err = {0};
    CHECK(!dw_session_set_selection(s, &(dw_selection){neuron, length}, &err), "%s", err.text);
    losses(s, hp->n_vocab, token, loss);
    for (int w = 0; w < N_WINDOWS; w++) d[w] = loss[w] - base[w];
    for (int w = 0; w < N_WINDOWS; w++) mean += (loss[w] - base[w]) / N_WINDOWS;
    for (int w = 0; w < N_WINDOWS; w++) square += (loss[w] - base[w] - mean) * (loss[w] - base[w] - mean);
    const double se = sqrt(square / (N_WINDOWS - 1) / N_WINDOWS);
    CHECK(fabs(g->change - mean) <= 2e-5 && fabs(g->error - se) <= 2e-5,
          "layer %d, group %d: %.7f +- %.7f, expected %.7f +- %.7f", g->layer, g->group, g->change, g->error, mean, se);
}

/* Of two groups, each is half their difference from their mean. */
static double own_error_of(const double *a, const double *b) {
    double mean = 0, square = 0;
    for (int w = 0; w < N_WINDOWS; w++) mean += (a[w] - b[w]) / 2 / N_WINDOWS;
    for (int w = 0; w < N_WINDOWS; w++) square += pow((a[w] - b[w]) / 2 - mean, 2);
    return sqrt(square / (N_WINDOWS - 1) / N_WINDOWS);
}

static void as_a_session(void) {
    const char *path = random_model("tiny-qwen2", "F32", 0);
    dw_err err = {0};
    dw_model *m = dw_model_open(path, &err);
    dw_session *s =
        m ? dw_session_new(
                m, &(dw_session_options){.pool = two_threads(), .backend = "ref", .n_ctx = N_CTX, .n_out = N_CTX}, &err)
          : NULL;
    calib_texts texts = {0};
    const char *names[] = {text_file(), NULL};
    const opt_list list = {names, 1};
    REQUIRE(s && !calib_read(&texts, m, &(calib_request){&list, {1, N_WINDOWS}, N_CTX, 0}, &err), "%s", err.text);
    const dw_hparams *hp = dw_model_hparams(m);
    size_t n;
    double loss, base[N_WINDOWS], mean = 0;
    int32_t token[N_WINDOWS * N_CTX];
    ablated *group = ablation_sample(hp, GROUP, 2, 3, &n, &err);
    REQUIRE(group && n == 8, "%zu groups %s", n, err.text);
    const ablation_task t = {.model = m, .texts = &texts, .group = GROUP, .pool = two_threads(), .backend = "ref"};
    REQUIRE(!ablation_measure(&t, group, n, &loss, &err), "%s", err.text);
    windows_of(m, token);
    losses(s, hp->n_vocab, token, base);
    for (int w = 0; w < N_WINDOWS; w++) mean += base[w] / N_WINDOWS;
    CHECK(fabs(loss - mean) <= 2e-5, "loss %.7f, expected %.7f", loss, mean);
    double d[8][N_WINDOWS];
    for (size_t i = 0; i < n; i++) check_group(s, hp, token, base, &group[i], d[i]);
    for (size_t i = 0; i < n; i++)
        CHECK(fabs(group[i].own_error - own_error_of(d[i], d[i ^ 1])) <= 2e-5,
              "layer %d: own error %.7f, expected %.7f", group[i].layer, group[i].own_error,
              own_error_of(d[i], d[i ^ 1]));
    free(group);
    calib_release(&texts);
    dw_session_free(s);
    dw_model_close(m);
}

/* ---- the sample ------------------------------------------------------------------------------------------- */

static void sample(void) {
    const int n_ff[] = {128, 64, 256};
    const dw_hparams hp = {.n_layer = 3, .n_ff = n_ff, .n_ff_max = 256};
    dw_err err = {0};
    size_t n, n_again;
    ablated *a = ablation_sample(&hp, 32, 3, 7, &n, &err), *b = ablation_sample(&hp, 32, 3, 7, &n_again, &err);
    REQUIRE(a && b && n == 3 + 2 + 3 && n_again == n, "%s", err.text);
    for (size_t i = 0; i < n; i++) {
        CHECK(a[i].layer == b[i].layer && a[i].group == b[i].group && a[i].group >= 0 &&
              a[i].group < n_ff[a[i].layer] / 32);
        if (i) CHECK(a[i].layer > a[i - 1].layer || (a[i].layer == a[i - 1].layer && a[i].group > a[i - 1].group));
    }
    free(a), free(b);
    a = ablation_sample(&hp, 32, INT_MAX, 7, &n, &err); // takes no room for groups that are not there
    CHECK(a && n == 4 + 2 + 8, "%zu groups; %s", n, err.text);
    free(a);
}

/* ---- the table -------------------------------------------------------------------------------------------- */

/* A metric that is the change itself agrees fully, its negative not at all, and one that is constant has no rank. */
static void agreement(void) {
    ablated g[] = {{0, 0, 0.1, 0}, {0, 2, 0.3, 0}, {0, 3, 0.2, 0}, {1, 0, 5, 0}, {1, 1, 4, 0}, {1, 2, 6, 0}};
    double up0[] = {0.1, 9, 0.3, 0.2}, up1[] = {0.05, 0.04, 0.06}, down0[] = {-0.1, 9, -0.3, -0.2},
           down1[] = {-5, -4, -6};
    double same0[4] = {0}, same1[3] = {0};
    double *up[] = {up0, up1}, *down[] = {down0, down1}, *same[] = {same0, same1};
    const ablation_metric metric[] = {{"up", up}, {"down", down}, {"same", same}};
    dw_err err = {0};
    ablation_agreement a;
    REQUIRE(!ablation_agree(g, 6, &metric[0], &a, &err), "%s", err.text);
    CHECK(fabs(a.by_layer - 1) < 1e-12 && a.pooled < 0.5, "%g, %g", a.by_layer, a.pooled);
    REQUIRE(!ablation_agree(g, 6, &metric[1], &a, &err), "%s", err.text);
    CHECK(fabs(a.by_layer + 1) < 1e-12 && fabs(a.pooled + 1) < 1e-12, "%g, %g", a.by_layer, a.pooled);
    for (int i = 0; i < 6; i++) g[i].error = 9, g[i].own_error = 0.1; // sums of squares: 0.02 and 2; noise 6 times 0.01
    CHECK(fabs(ablation_reliability(g, 6) - (1 - 0.06 / 2.02)) < 1e-12, "%g", ablation_reliability(g, 6));
    for (int i = 0; i < 6; i++) g[i].error = g[i].own_error = 0;
    CHECK(ablation_reliability(g, 6) == 1 && isnan(ablation_reliability(g, 1)));
    char *table = ablation_table(&(ablation_report){"model  m\n", g, 6, 64, metric, 3}, &err);
    REQUIRE(table, "%s", err.text);
    CHECK(strstr(table, "# deadwood ablation 1\n# model  m\n# reliability 1.000 of the changes within layers\n") ==
              table,
          "%s", table);
    CHECK(strstr(table, "# metric down: rank correlation -1.000 over all groups, -1.000 within layers\n"), "%s", table);
    CHECK(strstr(table, "# metric same: rank correlation - over all groups, - within layers\n"), "%s", table);
    CHECK(strstr(table, "layer\tgroup\tfirst\tlast\tloss_change\tse\town_se\tup\tdown\tsame\n"
                        "0\t0\t0\t63\t0.1\t0\t0\t0.1\t-0.1\t0\n0\t2\t128\t191\t0.3"),
          "%s", table);
    free(table);
}

static void by_command(void) {
    const char *model = random_model("tiny-llama", "F32", 0), *stats = test_file("stats.h5"),
               *out = test_file("truth.tsv"), *again = test_file("again.tsv");
    REQUIRE(!test_run("deadwood-collect -m %s -f %s -c 32 --windows 6 --gram down -o %s -q", model, text_file(), stats),
            "%s", test_run_output());
    REQUIRE(
        !test_run(
            "deadwood-rank -m %s -s %s --ablation %s --group 32 --sample 2 --seed 5 -f %s -c 32 --windows 4 -q -t 1",
            model, stats, out, text_file()),
        "%s", test_run_output());
    REQUIRE(
        !test_run(
            "deadwood-rank -m %s -s %s --ablation %s --group 32 --sample 2 --seed 5 -f %s -c 32 --windows 4 -q -t 3",
            model, stats, again, text_file()),
        "%s", test_run_output());
    CHECK(same_files(out, again));
    size_t size;
    dw_err err = {0};
    char *text = dw_read_text(out, 1 << 20, &size, &err);
    REQUIRE(text, "%s", err.text);
    CHECK(strstr(text, "# groups of 32, 2 of every layer, seed 5\n") && strstr(text, "windows 1-4 of 32 tokens") &&
              strstr(text, "# metric obs: rank correlation ") && strstr(text, "# metric energy: ") &&
              strstr(text, "\tflap\t") && strstr(text, "\tobs\n"),
          "%s", text);
    int n_line = 0;
    for (const char *p = text; *p; p++) n_line += *p == '\n' && p[1] >= '0' && p[1] <= '9';
    CHECK(n_line == 8, "%d lines of groups", n_line);
    free(text);
    REQUIRE(!test_run("deadwood-rank -m %s --ablation - --group 32 --sample 1 -f %s -c 32 --windows 2 -q", model,
                      text_file()),
            "%s", test_run_output());
    CHECK(strstr(test_run_output(), "# metric weight") && !strstr(test_run_output(), "# metric energy"), "%s",
          test_run_output());
    CHECK(test_run("deadwood-rank -m %s --ablation %s -q", model, again) == 2 &&
              strstr(test_run_output(), "--ablation measures the loss on texts"),
          "%s", test_run_output());
    CHECK(test_run("deadwood-rank -m %s --ablation %s -q --group 256 -f %s", model, again, text_file()) == 1 &&
              strstr(test_run_output(), "128 neurons are not a multiple"),
          "%s", test_run_output());
    CHECK(
        !test_run("deadwood-rank -m %s --ablation - -q --group 64 --sample 2 -f %s -c 32 --windows 4", model,
                  text_file()) &&
            strstr(test_run_output(), "4 windows of text (-f) are too few for a standard error: changes of the loss") &&
            strstr(test_run_output(), "# reliability - of the changes") && strstr(test_run_output(), "\t-\t-\t"),
        "%s", test_run_output());
}

/* Of a window of 2 tokens the second half has no next token; of 3 it has one. */
static void short_windows(void) {
    const char *model = random_model("tiny-llama", "F32", 0);
    for (int n_ctx = 2; n_ctx <= 3; n_ctx++) {
        const int rc = test_run("deadwood-rank -m %s --ablation - --group 64 --sample 1 -f %s -c %d --windows 4 -q",
                                model, text_file(), n_ctx);
        const char *said = test_run_output();
        if (n_ctx == 2)
            CHECK(rc == 1 && strstr(said, "windows of 2 tokens have no next token"), "exit %d: %s", rc, said);
        else
            CHECK(!rc && strstr(said, "\n0\t0\t0\t63\t") && !strstr(said, "\t63\t0\t0\t"), "exit %d: %s", rc, said);
    }
}

/* Texts are whole windows: the tokens after the last one do not count, with --windows or without. */
static void whole_windows(void) {
    const char *model = random_model("tiny-llama", "F32", 0), *all = test_file("all.tsv"), *out = test_file("some.tsv");
    size_t size;
    dw_err err = {0};
    int last = 0;
    REQUIRE(!test_run("deadwood-rank -m %s --ablation %s --group 64 --sample 1 -f %s -c 250 -q", model, all,
                      text_file()),
            "%s", test_run_output());
    char *text = dw_read_text(all, 1 << 20, &size, &err), *at = text ? strstr(text, "windows 1-") : NULL;
    CHECK(at && sscanf(at, "windows 1-%d", &last) == 1, "%s", text ? text : err.text);
    free(text);
    REQUIRE(!test_run("deadwood-rank -m %s --ablation %s --group 64 --sample 1 -f %s -c 250 --windows 1-%d -q", model,
                      out, text_file(), last),
            "%s", test_run_output());
    CHECK(same_files(all, out));
}

/* Texts that the statistics have seen are told. */
static void seen(void) {
    const char *model = random_model("tiny-llama", "F32", 0), *stats = test_file("seen.h5");
    REQUIRE(!test_run("deadwood-collect -m %s -f %s -c 64 --windows 3 -o %s -q", model, text_file(), stats), "%s",
            test_run_output());
    for (int first = 6; first <= 7; first++) { // 6 windows of 32 are 3 of 64
        REQUIRE(!test_run("deadwood-rank -m %s -s %s --ablation %s --group 64 --sample 1 -f %s -c 32 --windows %d-8",
                          model, stats, test_file("seen.tsv"), text_file(), first),
                "%s", test_run_output());
        CHECK(!strstr(test_run_output(), "warning: tokens of windows 6 to 8 of 'text.txt' are in the statistics") ==
                  (first == 7),
              "%s", test_run_output());
    }
}

/* Neurons that are always zero change nothing, to the last bit, in files of any type. */
static void dead_groups(void) {
    static const char *const types[] = {"F32", "BF16", "Q8_0"};
    for (int k = 0; k < 3; k++) {
        const char *model = random_model("tiny-llama", types[k], 0.99);
        REQUIRE(!test_run("deadwood-rank -m %s --ablation - --group 1 --sample 4 -f %s -c 32 --windows 5 -q", model,
                          text_file()),
                "%s", test_run_output());
        int n_zero = 0;
        for (const char *p = test_run_output(); (p = strstr(p, "\t0\t0\t")); p++) n_zero++;
        CHECK(n_zero >= 12, "%s: %d of 16 neurons change nothing:\n%s", types[k], n_zero, test_run_output());
    }
}

static const test_case cases[] = {
    {"changes of the loss are those of a session without the neurons, with the error of their mean", as_a_session},
    {"the sample is random, ascending and the same for a seed", sample},
    {"metrics are told by their rank correlation with the changes", agreement},
    {"rank --ablation writes the same table for any threads, and refuses what cannot be measured", by_command},
    {"windows whose second half predicts no token are refused", short_windows},
    {"texts count in whole windows", whole_windows},
    {"texts that the statistics have seen are told", seen},
    {"dead neurons change nothing", dead_groups},
    {0}};

TEST_MAIN(cases)
