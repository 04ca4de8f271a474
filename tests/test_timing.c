/* test_timing.c - widths and microseconds: the arithmetic of a table, a measured one, and plans that keep to a time. */
#include "build.h"
#include "engine.h"
#include "kit/plan.h"
#include "prune/allocate.h"
#include "prune/timing.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* 10 layers; T(w) = 100 + 10 * f(w) with f(32) = 2, f(64) = 4, f(128) = 10. */
static timing made(void) { return (timing){.n = 3, .n_layer = 10, .width = {32, 64, 128}, .us = {120, 140, 200}}; }

static void arithmetic(void) {
    timing t = made();
    timing_settle(&t);
    CHECK(fabs(t.rest - 100) < 1e-9, "%g", t.rest);
    static const struct {
        int width;
        double us;
    } rows[] = {{0, 0}, {16, 1}, {32, 2}, {48, 3}, {64, 4}, {96, 7}, {128, 10}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHECK(fabs(timing_of_layer(&t, rows[i].width) - rows[i].us) < 1e-9, "width %d: %g", rows[i].width,
              timing_of_layer(&t, rows[i].width));
    CHECK(timing_uniform_width(&t, 200) == 128 && timing_uniform_width(&t, 1e9) == 128 &&
          timing_uniform_width(&t, 170) == 96);
    CHECK(timing_uniform_width(&t, 130) == 48 && timing_uniform_width(&t, 99) == 0);
}

/* Noise: a wider layer never counts as faster, and nothing takes less than no time. */
static void settled(void) {
    timing t = made();
    t.us[1] = 110;
    timing_settle(&t);
    CHECK(t.us[1] == 120 && t.rest == 120 && timing_of_layer(&t, 50) == 0 && timing_of_layer(&t, 128) == 8);
    t = (timing){.n = 2, .n_layer = 1, .width = {32, 64}, .us = {10, 30}};
    timing_settle(&t);
    CHECK(t.rest == 0 && timing_of_layer(&t, 16) == 5, "%g", t.rest);
}

static const char *wide_model(void) {
    const exp_shape shape = {"wide", "llama", 4, 128, 2048, 2, 1, 64, 512, true, 10000, 256};
    const char *path = test_file("wide.gguf");
    if (access(path, R_OK)) write_random(path, &shape, "Q8_0");
    return path;
}

/* The bounds are wide, because the machine may be busy: whole layers, eight times as wide, take longer. */
static void measured(void) {
    dw_err err = {0};
    dw_model *m = dw_model_open(wide_model(), &err);
    REQUIRE(m, "%s", err.text);
    timing t;
    bool drop[4] = {false, true, false, false};
    REQUIRE(!timing_measure(&t, m, drop, two_threads(), &err), "%s", err.text);
    CHECK(t.n == 8 && t.n_layer == 3 && t.width[0] == 256 && t.width[7] == 2048, "%d widths, %d layers", t.n,
          t.n_layer);
    for (int k = 1; k < t.n; k++) CHECK(t.width[k] > t.width[k - 1] && t.us[k] >= t.us[k - 1] && isfinite(t.us[k]));
    CHECK(t.us[0] > 0 && t.us[7] > t.us[0] && t.rest >= 0, "%g us, %g us, %g us", t.rest, t.us[0], t.us[7]);
    dw_model_close(m);
}

static void unequal(void) {
    dw_err err = {0};
    dw_model *m = dw_model_open(random_model("tiny-deci", "F32", 0), &err);
    REQUIRE(m, "%s", err.text);
    timing t;
    bool drop[4] = {false};
    CHECK(timing_measure(&t, m, drop, two_threads(), &err));
    check_sentence(&err, "times are measured of models with one width", "unequal widths");
    dw_model_close(m);
}

/* A plan keeps to its time by its own table: another one, measured a moment later, may differ much on a busy
 * machine. */
static void check_plan(const char *path) {
    kit_plan p;
    dw_err err = {0};
    double wanted = 0, reached = 0, whole = 0;
    int sum = 0;
    REQUIRE(!kit_plan_read(&p, path, NULL, 0, &err), "%s", err.text);
    const char *at = strstr(p.comment, "time   at most "),
               *table = strstr(p.comment, "width:us of a token with all layers so wide: 256:"),
               *last = table ? strstr(table, " 2048:") : NULL;
    CHECK(at && last && sscanf(at, "time   at most %lf us a token wanted, %lf by this table", &wanted, &reached) == 2 &&
              sscanf(last, " 2048:%lf", &whole) == 1,
          "%s", p.comment);
    for (int l = 0; l < p.n_layer; l++) sum += p.layer[l].n_keep;
    const bool is_least = sum == 4 * 256;
    CHECK(reached <= wanted + 0.1 || is_least, "%d neurons, %g of %g us", sum, reached, wanted);
    CHECK((sum == 4 * 2048) == (whole <= wanted), "%d neurons, %g us wanted, %g us whole", sum, wanted, whole);
    kit_plan_release(&p);
}

/* Half of what the whole model takes; asked for again while the machine's speed changes under it. */
static bool rank_by_time(const char *options, const char *plan) {
    dw_err err = {0};
    dw_model *m = dw_model_open(wide_model(), &err);
    bool drop[4] = {false}, ok = false;
    timing t;
    for (int tries = 0; m && tries < 5 && !ok; tries++) {
        if (!CHECK(!timing_measure(&t, m, drop, two_threads(), &err), "%s", err.text)) break;
        ok = !test_run("deadwood-rank -m %s --metric weight --us %.1f -o %s -t 2 -q %s", wide_model(),
                       0.5 * (t.us[2] + t.us[5]), plan, options);
    }
    dw_model_close(m);
    return CHECK(ok, "%s", test_run_output());
}

static void plans(void) {
    const char *model = wide_model(), *plan = test_file("us.tsv"), *text = test_file("text.txt");
    char options[1024];
    FILE *f = fopen(text, "w");
    for (int i = 0; i < 600; i++) fputc(" abcdefghij\n"[(i * 7 + i / 11) % 12], f);
    fclose(f);
    snprintf(options, sizeof options, "--allocate sensitivity --evaluations 8 -f %s -c 32 --windows 2", text);
    if (rank_by_time("", plan)) check_plan(plan);
    if (rank_by_time(options, plan)) check_plan(plan);
    REQUIRE(!test_run("deadwood-rank -m %s --metric weight --us 1e9 -o %s -t 2", model, plan), "%s", test_run_output());
    CHECK(strstr(test_run_output(), "the whole model is fast enough"), "%s", test_run_output());
    check_plan(plan);
    CHECK(test_run("deadwood-rank -m %s --metric weight --us 0.001 -o %s -q", model, test_file("none.tsv")) == 1 &&
              strstr(test_run_output(), "without any neuron; allow more"),
          "%s", test_run_output());
    static const struct {
        const char *options, *words;
    } bad[] = {{"--us 10 --rate 0.1", "give one of --rate, --bytes and --us"},
               {"--us 10 --bytes 1MB", "give one of --rate, --bytes and --us"},
               {"--us 10 --allocate standardized", "--us is for --allocate uniform and sensitivity"},
               {"--us 10 --as Q4_K_M", "--as cannot be given"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK(test_run("deadwood-rank -m %s --metric weight %s -o %s -q", model, bad[i].options, plan) == 2 &&
                  strstr(test_run_output(), bad[i].words),
              "%s", test_run_output());
}

/* The uniform rule on 4 layers of 2048, by a table of ours: 100 us for the rest, and for one layer 100 us with 256
 * neurons and 240 us with all, which the protected layers have.  With 1024 a layer takes 160 us, or 125 us. */
static void uniform_widths(void) {
    static const struct {
        double us, at_1024; // wanted; of one layer
        int unit, min_width;
        bool protects;
        int width; // of the layers that are not protected; 0: refused
        const char *words;
    } rows[] = {{1060, 160, 32, 0, false, 2048, NULL},
                {900, 160, 32, 0, false, 1536, NULL},
                {899, 160, 32, 0, false, 1504, NULL},
                {900, 160, 256, 1600, false, 0, "--us 900 is too little: a token takes 980.0 us by the measured times"},
                {499, 160, 256, 0, false, 0, "500.0 us by the measured times even when no layer keeps more than 256"},
                {900, 160, 32, 0, true, 1024, NULL},
                {800, 125, 32, 0, true, 544, NULL}, // 798.75 us; as many neurons as without protection take 821 us
                {779, 160, 256, 0, true, 0, "256 neurons, but for the protected ones; drop layers, protect less, or "}};
    dw_err err = {0};
    dw_model *m = dw_model_open(wide_model(), &err);
    REQUIRE(m, "%s", err.text);
    const bool drop[4] = {false}, protect[4] = {false, true, true};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int n_keep[4] = {0};
        const timing table = {.n = 3,
                              .n_layer = 4,
                              .width = {256, 1024, 2048},
                              .us = {500, 100 + 4 * rows[i].at_1024, 1060},
                              .rest = 100};
        const prune_task t = {.model = m,
                              .drop = drop,
                              .group = 1,
                              .unit = rows[i].unit,
                              .us = rows[i].us,
                              .times = &table,
                              .rate = 1 - timing_uniform_width(&table, rows[i].us) / 2048.0,
                              .min_width = rows[i].min_width,
                              .protect = rows[i].protects ? protect : NULL};
        err = (dw_err){0};
        const int rc = prune_allocator_find("uniform")->allocate(&t, n_keep, &err);
        CHECK(!rc == !rows[i].words, "%g us: widths %d %d %d %d", rows[i].us, n_keep[0], n_keep[1], n_keep[2],
              n_keep[3]);
        if (rows[i].words) check_sentence(&err, rows[i].words, "a time that widths do not reach");
        for (int l = 0; l < 4 && !rows[i].words; l++)
            CHECK(n_keep[l] == (rows[i].protects && protect[l] ? 2048 : rows[i].width), "%g us: %slayer %d keeps %d",
                  rows[i].us, err.text, l, n_keep[l]);
    }
    dw_model_close(m);
}

static const test_case cases[] = {
    {"a layer costs what the table gives, linear between widths, and the rest of a token apart", arithmetic},
    {"wider layers never count as faster", settled},
    {"a table is measured at eight widths, without layers that are dropped", measured},
    {"models whose layers differ in width are refused", unequal},
    {"one width for all keeps to a time, or is refused", uniform_widths},
    {"plans keep to microseconds and tell the table", plans},
    {0}};

TEST_MAIN(cases)
