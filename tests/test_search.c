/* test_search.c - widths that sensitivity and evolve choose, on small random models, without the command line. */
#include "build.h"
#include "engine.h"
#include "kit/calib.h"
#include "kit/metrics.h"
#include "model/model.h"
#include "prune/search.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_LAYERS = 4, N_CTX = 32, N_WINDOWS = 2 };

typedef struct bench { // a model, texts that judge it, and all that a rule reads; t may be changed
    dw_model *m;
    calib_texts texts;
    double *score[MOST_LAYERS];
    bool drop[MOST_LAYERS];
    prune_sizes sizes;
    prune_search search;
    prune_task t;
} bench;

/* A quarter of each layer's neurons writes nothing. */
static bool write_model(const char *path, const exp_shape *shape) {
    dw_err err = {0};
    const exp_random_options o = {
        .shape = shape, .type = dw_qtype_get(DW_F32), .seed = 1, .dead = 0.25, .pool = two_threads()};
    dw_gguf_writer *w = dw_gguf_writer_new(path, &err);
    const bool ok = w && !exp_random_write(w, &o, &err) && !dw_gguf_commit(w, &err);
    dw_gguf_writer_free(w);
    return CHECK(ok, "%s", err.text);
}

/* These neurons have the smallest scores. */
static bool open_model(bench *b, const exp_shape *shape) {
    char name[64];
    dw_err err = {0};
    snprintf(name, sizeof name, "search-%d-%d-%d.gguf", shape->n_layer, shape->n_embd, shape->n_ff);
    const char *path = test_file(name);
    if (!dw_file_exists(path) && !write_model(path, shape)) return false;
    b->m = dw_model_open(path, &err);
    kit_scorer scorer = {.model = b->m, .group = 1, .pool = two_threads()};
    const bool ok = b->m && !kit_score(&scorer, kit_metric_find("weight"), b->score, &err);
    kit_scorer_release(&scorer);
    return CHECK(ok, "%s", err.text);
}

/* Widths are multiples of `unit`.  dropped: a layer; -1: none.  as: a mixture; NULL: none. */
static bool open_bench(bench *b, int n_layer, int n_ff, int unit, int dropped, const char *as) {
    dw_err err = {0};
    const char *path = random_text("held.txt", 200, 4);
    const opt_list paths = {&path, 1};
    const exp_shape shape = {"search", "llama", n_layer, as ? 256 : 32, n_ff, 2, 1, 16, 512, true, 10000, 64};
    *b = (bench){.m = NULL};
    if (!open_model(b, &shape)) return false;
    if (dropped >= 0) b->drop[dropped] = true;
    const trial_options o = {
        .model = b->m, .texts = &b->texts, .score = b->score, .group = 1, .drop = b->drop, .pool = two_threads()};
    const prune_sizes_request sizes = {.model = b->m, .drop = b->drop, .as.mixture = as ? kit_mixture_find(as) : NULL};
    const bool ok = !calib_read(&b->texts, b->m, &(calib_request){&paths, {1, N_WINDOWS}, N_CTX, 0}, &err) &&
                    !prune_sizes_init(&b->sizes, &sizes, &err) && (b->search.trial = trial_new(&o, &err));
    b->t = (prune_task){.model = b->m,
                        .drop = b->drop,
                        .group = 1,
                        .unit = unit,
                        .score = b->score,
                        .sizes = &b->sizes,
                        .search = &b->search};
    return CHECK(ok, "%s", err.text);
}

static void close_bench(bench *b) {
    trial_free(b->search.trial);
    prune_sizes_release(&b->sizes);
    calib_release(&b->texts);
    for (int l = 0; l < MOST_LAYERS; l++) free(b->score[l]);
    dw_model_close(b->m);
}

/* ---- trials ----------------------------------------------------------------------------------------------- */

/* Residuals are stored before any trial, from the first layer that stays. */
static void first_layer_dropped(void) {
    bench b;
    dw_err err = {0};
    double whole[N_WINDOWS], cut[N_WINDOWS];
    if (open_bench(&b, 4, 128, 32, 0, NULL)) {
        CHECK(!trial_run(b.search.trial, (int[]){0, 128, 128, 128}, whole, &err) &&
                  !trial_run(b.search.trial, (int[]){0, 32, 128, 128}, cut, &err),
              "%s", err.text);
        CHECK(whole[0] > 0 && cut[0] > 0 && whole[0] != cut[0], "%g nats with 128 neurons and %g with 32", whole[0],
              cut[0]);
    }
    close_bench(&b);
}

/* ---- sensitivity ------------------------------------------------------------------------------------------ */

/* A quarter of the neurons goes, and the quarter of each layer that writes nothing costs nothing.  Where a layer is
 * dropped, the whole width of the others has the divergence of the dropped layer, as their other widths have. */
static void dropped_layers(void) {
    for (int dropped = 0; dropped < 4; dropped++) { // 0: none
        bench b;
        dw_err err = {0};
        int n_keep[MOST_LAYERS];
        if (open_bench(&b, 4, 128, 32, dropped ? dropped : -1, NULL)) {
            b.t.rate = 0.25;
            CHECK(!search_sensitivity(&b.t, n_keep, &err), "%s", err.text);
            for (int l = 0; l < 4; l++)
                CHECK(n_keep[l] == (dropped && l == dropped ? 0 : 96), "without layer %d, layer %d keeps %d", dropped,
                      l, n_keep[l]);
        }
        close_bench(&b);
    }
}

/* 4 widths of each of 4 layers.  Without a dropped layer's curve, but with the whole width of the others, are 13. */
static void told_evaluations(void) {
    static const struct { int dropped; double alone, as_start; } rows[] = {{-1, 16, 4 * 8}, {1, 13, 3 * 8 + 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bench b;
        double n;
        const prune_allocator *sensitivity = prune_allocator_find("sensitivity");
        if (open_bench(&b, 4, 128, 32, rows[i].dropped, NULL)) {
            b.search.evaluations = 16;
            n = search_n_evaluations(&b.t, sensitivity);
            CHECK(n == rows[i].alone, "%g evaluations, expected %g", n, rows[i].alone);
            b.search.start = sensitivity; // of evolve, to which the 16 belong; they begin with one of the start
            n = search_n_evaluations(&b.t, prune_allocator_find("evolve"));
            CHECK(n == 17 + rows[i].as_start, "%g evaluations, expected %g", n, 17 + rows[i].as_start);
        }
        close_bench(&b);
    }
}

/* A whole layer may have any width: only others are multiples of the unit. */
static bool is_allowed(const bench *b, int n_keep) {
    return n_keep == b->t.model->net.hp.n_ff_max || (n_keep > 0 && n_keep % b->t.unit == 0);
}

/* Three layers whose width is no multiple of the unit keep as many neurons as the rate allows. */
static void odd_widths(void) {
    static const struct { int n_ff, unit; double rate; int sum; } rows[] = {
        {352, 64, 0, 3 * 352},
        {352, 64, 0.05, 352 + 2 * 320}, // at most 1003
        {352, 64, 0.1, 3 * 320},        // as in the uniform rule, within 0.01 of the rate
        {6000, 7, 0, 3 * 6000}};        // more neurons than cells
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bench b;
        dw_err err = {0};
        int n_keep[MOST_LAYERS], sum = 0;
        if (open_bench(&b, 3, rows[i].n_ff, rows[i].unit, -1, NULL)) {
            b.t.rate = rows[i].rate;
            b.search.evaluations = 6;
            CHECK(!search_sensitivity(&b.t, n_keep, &err), "%s", err.text);
            for (int l = 0; l < 3; l++) {
                CHECK(is_allowed(&b, n_keep[l]), "rate %g: layer %d keeps %d", rows[i].rate, l, n_keep[l]);
                sum += n_keep[l];
            }
            CHECK(sum == rows[i].sum, "rate %g: widths %d %d %d, %d neurons, expected %d", rows[i].rate, n_keep[0],
                  n_keep[1], n_keep[2], sum, rows[i].sum);
        }
        close_bench(&b);
    }
}

/* Rows of down that are no whole blocks of Q4_K get larger types, so the file needs more than its blocks say, and
 * neurons go again. */
static void odd_widths_by_bytes(void) {
    bench b;
    dw_err err = {0};
    int n_keep[MOST_LAYERS] = {352, 352, 352};
    if (open_bench(&b, 3, 352, 64, -1, "Q4_K_M")) {
        b.t.bytes = prune_file_bytes(&b.t, n_keep) - 1;
        b.search.evaluations = 6;
        CHECK(!search_sensitivity(&b.t, n_keep, &err), "%s", err.text);
        for (int l = 0; l < 3; l++) CHECK(is_allowed(&b, n_keep[l]), "layer %d keeps %d", l, n_keep[l]);
        CHECK(n_keep[0] + n_keep[1] + n_keep[2] == 2 * 352 + 320 && prune_file_bytes(&b.t, n_keep) <= b.t.bytes,
              "widths %d %d %d: %.0f bytes, at most %.0f are wanted", n_keep[0], n_keep[1], n_keep[2],
              prune_file_bytes(&b.t, n_keep), b.t.bytes);
    }
    close_bench(&b);
}

/* ---- evolve ----------------------------------------------------------------------------------------------- */

static int begun[3]; // widths

static int begin_there(const prune_task *t, int *n_keep, dw_err *err) {
    (void)t, (void)err;
    memcpy(n_keep, begun, sizeof begun);
    return 0;
}

/* Layers of 128 in units of 48, so widths are 48, 96 and 128.  Moves end at such widths, and less than a unit of all
 * neurons is missing at the end. */
static void odd_moves(void) {
    static const prune_allocator start = {.name = "there", .allocate = begin_there};
    static const int widths[][3] = {{128, 96, 96}, {96, 128, 96}, {96, 96, 128}, {128, 48, 48}, {48, 128, 128}};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        bench b;
        dw_err err = {0};
        int n_keep[MOST_LAYERS], sum = 0, most = 0;
        memcpy(begun, widths[i], sizeof begun);
        if (open_bench(&b, 3, 128, 48, -1, NULL)) {
            b.search.start = &start, b.search.evaluations = 100;
            CHECK(!search_evolve(&b.t, n_keep, &err), "%s", err.text);
            for (int l = 0; l < 3; l++) {
                CHECK(is_allowed(&b, n_keep[l]), "from %d %d %d: layer %d keeps %d", begun[0], begun[1], begun[2], l,
                      n_keep[l]);
                sum += n_keep[l], most += begun[l];
            }
            CHECK(n_keep[0] == 128, "from %d %d %d: layer 0, which matters most, keeps %d", begun[0], begun[1],
                  begun[2], n_keep[0]);
            CHECK(sum <= most && sum > most - 48, "from %d %d %d: %d neurons of %d", begun[0], begun[1], begun[2], sum,
                  most);
        }
        close_bench(&b);
    }
}

static const test_case cases[] = {
    {"trials without the first layer see how wide the second is", first_layer_dropped},
    {"sensitivity cuts what costs nothing, also where a layer is dropped", dropped_layers},
    {"the told evaluations are those of layers that stay, and one of the dropped layers", told_evaluations},
    {"sensitivity keeps as many neurons as the rate allows, whole layers of any width", odd_widths},
    {"neurons that go for the sake of bytes leave allowed widths", odd_widths_by_bytes},
    {"evolve moves neurons to and from whole layers of any width", odd_moves},
    {0}};

TEST_MAIN(cases)
