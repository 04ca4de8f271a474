/* test_rank.c - scores, widths and plans. */
#include "build.h"
#include "engine.h"
#include "experiments/random_model.h"
#include "kit/plan.h"
#include "kit/stats.h"
#include "prune/agreement.h"
#include "kit/metrics.h"
#include "test.h"
#include "kit/tsv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_TEXT = 2, N_TOKENS = 40 };

/* ---- statistics ------------------------------------------------------------------------------------------------ */

typedef struct watch {
    kit_stats *stats;
    size_t text;
    float *before; // residual of the layer before, (N_TOKENS, n_embd)
} watch;

static void add_neurons(kit_stats_layer *layer, size_t text, const dw_tap_event *e) {
    layer->count[text] += (uint64_t)e->n_tokens;
    for (int i = 0; i < e->n_tokens; i++)
        for (int j = 0; j < e->n; j++) {
            const double a = e->values[(size_t)i * (size_t)e->n + (size_t)j];
            const size_t at = text * (size_t)e->n + (size_t)j;
            layer->sum_a[at] += a;
            layer->sum_abs[at] += fabs(a);
            layer->sum_square[at] += a * a;
            const double product = a * ((i * 7 + j * 3) % 5 - 1.7); // a gradient of the test's own
            layer->sum_taylor[at] += fabs(product);
            layer->sum_fisher[at] += product * product;
        }
}

static void add_cosines(kit_stats_layer *layer, size_t text, const float *before, const dw_tap_event *e) {
    for (int i = 0; i < e->n_tokens; i++) {
        double xy = 0, xx = 0, yy = 0;
        for (int j = 0; j < e->n; j++) {
            const double x = before[i * e->n + j], y = e->values[i * e->n + j];
            xy += x * y, xx += x * x, yy += y * y;
        }
        layer->text_cosine[text] += xy / sqrt(xx * yy);
        layer->text_inverse[text] += 1 / yy;
        layer->text_n_cosine[text]++;
    }
}

static void look(void *ctx, const dw_tap_event *e) {
    watch *w = ctx;
    if (e->point == DW_TAP_FFN_NEURON) {
        add_neurons(&w->stats->layer[e->layer], w->text, e);
        return;
    }
    if (e->layer > 0) add_cosines(&w->stats->layer[e->layer - 1], w->text, w->before, e);
    memcpy(w->before, e->values, (size_t)e->n_tokens * (size_t)e->n * sizeof *w->before);
}

/* Statistics of random tokens, by taps. */
static bool collect(kit_stats *s, const char *path) {
    dw_err err = {0};
    dw_pool *pool = dw_pool_new(1, &err);
    dw_model *m = dw_model_open(path, &err);
    dw_session *session =
        m ? dw_session_new(m, &(dw_session_options){.pool = pool, .backend = "ref", .n_ctx = 64}, &err) : NULL;
    if (!CHECK(session, "%s", err.text)) return false;
    const dw_hparams *hp = dw_model_hparams(m);
    int mix[64];
    for (int l = 0; l < hp->n_layer; l++) mix[l] = hp->n_head[l] * hp->head_dim;
    CHECK(!kit_stats_init(s, hp->n_layer, hp->n_embd, hp->n_ff, mix, N_TEXT, &err) &&
              !kit_stats_add_gradients(s, &err) && !dw_sha256_file(path, s->model_sha256, &err),
          "%s", err.text);
    snprintf(s->arch, sizeof s->arch, "%s", hp->arch);
    snprintf(s->backend, sizeof s->backend, "ref");
    s->n_ctx = 64, s->hist_every = 1;
    watch w = {.stats = s, .before = calloc((size_t)N_TOKENS * (size_t)hp->n_embd, sizeof *w.before)};
    dw_session_set_tap(session, &(dw_tap){1u << DW_TAP_RESIDUAL | 1u << DW_TAP_FFN_NEURON, look, &w});
    for (w.text = 0; w.text < N_TEXT; w.text++) {
        int32_t token[N_TOKENS];
        random_tokens(token, N_TOKENS, hp->n_vocab, 9 + w.text);
        dw_session_rewind(session, 0, 0);
        CHECK(!dw_session_eval(session, &(dw_batch){.n_tokens = N_TOKENS, .token = token}, &err), "%s", err.text);
        kit_stats_text *t = &s->text[w.text];
        snprintf(t->name, sizeof t->name, "text %zu.txt", w.text);
        snprintf(t->sha256, sizeof t->sha256, "%064zu", w.text);
        t->first_window = 1, t->n_windows = 1, t->n_tokens = N_TOKENS, t->blocks = dw_strdup("0123456789abcdef", &err);
    }
    kit_stats_total(s);
    free(w.before);
    dw_session_free(session);
    dw_model_close(m);
    dw_pool_free(pool);
    return true;
}

/* The statistics of a model in a file; made once. */
static const char *stats_of(const char *model) {
    char name[128];
    snprintf(name, sizeof name, "%s.h5", strrchr(model, '/') + 1);
    const char *path = test_file(name);
    kit_stats s;
    dw_err err = {0};
    if (access(path, R_OK) && collect(&s, model)) {
        CHECK(!kit_stats_write(&s, path, &err), "%s", err.text);
        kit_stats_release(&s);
    }
    return path;
}

/* ---- plans ------------------------------------------------------------------------------------------------------ */

/* Runs rank with a model and its statistics and reads the plan. */
static bool rank(kit_plan *p, const char *model, const char *options) {
    const char *path = test_file("plan.tsv");
    dw_err err = {0};
    if (!CHECK(!test_run("deadwood-rank -m %s -s %s -o %s -q %s", model, stats_of(model), path, options), "%s: %s",
               options, test_run_output()))
        return false;
    return CHECK(!kit_plan_read(p, path, NULL, 0, &err), "%s", err.text);
}

static bool keeps(const kit_plan_layer *layer, int j) {
    for (size_t i = 0; i < layer->n_span; i++)
        if (j >= layer->span[i].first && j <= layer->span[i].last) return true;
    return false;
}

static void dead_first(void) {
    const char *model = random_model("tiny-qwen2", "F32", 0.25);
    dw_err err = {0};
    dw_gguf *g = dw_gguf_open(model, &err);
    REQUIRE(g, "%s", err.text);
    const dw_kv *dead = dw_gguf_find(g, "deadwood.synth.dead");
    REQUIRE(dead && dead->count == 2 * 4 * 32);
    for (const kit_metric *m = kit_metrics; m->name; m++) {
        char options[128];
        snprintf(options, sizeof options, "--metric %s --rate 0.25 --multiple 1", m->name);
        kit_plan p;
        if (!rank(&p, model, options)) continue;
        int n_kept = 0;
        for (size_t i = 0; i < dead->count; i += 2)
            n_kept += keeps(&p.layer[(int)dw_kv_number(dead, i)], (int)dw_kv_number(dead, i + 1));
        if (strcmp(m->name, "random")) CHECK(!n_kept, "%s keeps %d dead neurons", m->name, n_kept);
        else CHECK(n_kept > 32, "at random only %d dead neurons are kept", n_kept);
        CHECK(p.layer[0].n_keep == 96 && p.rate_wanted == 0.25 && p.rate_reached == 0.25);
        kit_plan_release(&p);
    }
    dw_gguf_close(g);
}

/* The table's scores against their definitions, one neuron at a time. */
static void formulas(void) {
    const char *path = random_model("tiny-llama", "Q8_0", 0);
    dw_err err = {0};
    kit_stats s;
    dw_model *m = dw_model_open(path, &err);
    dw_pool *pool = dw_pool_new(2, &err);
    REQUIRE(m && pool && collect(&s, path), "%s", err.text);
    kit_scorer scorer = {.model = m, .stats = &s, .group = 32, .pool = pool};
    const dw_tensor *t[3] = {dw_gguf_find_tensor(dw_model_gguf(m), "blk.1.ffn_gate.weight"),
                             dw_gguf_find_tensor(dw_model_gguf(m), "blk.1.ffn_up.weight"),
                             dw_gguf_find_tensor(dw_model_gguf(m), "blk.1.ffn_down.weight")};
    static float w[3][64 * 128];
    for (int i = 0; i < 3; i++) t[i]->type->decode(t[i]->data, w[i], 64 * 128);
    double expected[9][4] = {{0}};
    for (int j = 0; j < 128; j++) {
        const kit_stats_layer *layer = &s.layer[1];
        double rows = 0, down = 0, magnitude = 0;
        for (int i = 0; i < 64; i++) {
            rows += pow(w[0][j * 64 + i], 2) + pow(w[1][j * 64 + i], 2);
            down += pow(w[2][i * 128 + j], 2);
            magnitude += fabs(w[2][i * 128 + j]);
        }
        const double abs0 = layer->sum_abs[j] / N_TOKENS, abs1 = layer->sum_abs[128 + j] / N_TOKENS, n = 2 * N_TOKENS;
        const double square = (layer->sum_square[j] + layer->sum_square[128 + j]) / n,
                     mean = (layer->sum_a[j] + layer->sum_a[128 + j]) / n;
        const double taylor = (layer->sum_taylor[j] + layer->sum_taylor[128 + j]) / n,
                     fisher = (layer->sum_fisher[j] + layer->sum_fisher[128 + j]) / n;
        const double score[9] = {(abs0 + abs1) / 2,
                                 fmax(abs0, abs1),
                                 0,
                                 sqrt(rows + down),
                                 sqrt(square) * magnitude,
                                 down * square,
                                 down * (square - mean * mean),
                                 taylor,
                                 fisher};
        for (int i = 0; i < 9; i++) expected[i][j / 32] += score[i];
    }
    double *score[4];
    for (int i = 0; kit_metrics[i].name; i++) {
        REQUIRE(!kit_score(&scorer, &kit_metrics[i], score, &err), "%s", err.text);
        for (int g = 0; g < 4 && strcmp(kit_metrics[i].name, "random"); g++)
            CHECK(fabs(score[1][g] - expected[i][g]) <= 1e-9 * expected[i][g], "%s: %.12g, expected %.12g",
                  kit_metrics[i].name, score[1][g], expected[i][g]);
        for (int l = 0; l < 4; l++) free(score[l]);
    }
    s.layer[2].sum_abs[5] = NAN;
    CHECK(kit_score(&scorer, &kit_metrics[0], score, &err));
    check_sentence(&err, "layer 2: neuron 5 has the activation score nan", "NaN");
    kit_scorer_release(&scorer);
    kit_stats_release(&s);
    dw_pool_free(pool);
    dw_model_close(m);
}

/* ---- widths ------------------------------------------------------------------------------------------------------ */

/* A model of one wide layer. */
static const char *wide(int n_ff, const char *type) {
    char name[64];
    snprintf(name, sizeof name, "wide-%d-%s.gguf", n_ff, type);
    const char *path = test_file(name);
    dw_err err = {0};
    const exp_shape shape = {"wide", "llama", 2, 32, n_ff, 2, 1, 16, 512, true, 10000, 64, NULL, NULL, NULL};
    dw_pool *pool = dw_pool_new(1, &err);
    const exp_random_options o = {.shape = &shape, .type = dw_qtype_by_name(type), .seed = 1, .pool = pool};
    dw_gguf_writer *w = access(path, R_OK) ? dw_gguf_writer_new(path, &err) : NULL;
    if (w) CHECK(!exp_random_write(w, &o, &err) && !dw_gguf_commit(w, &err), "%s", err.text);
    dw_gguf_writer_free(w);
    dw_pool_free(pool);
    return path;
}

static const struct width_case {
    int n_ff;
    const char *type, *options;
    int width;
    double reached;
} width_cases[] = {
    {18944, "Q4_0", "--rate 0.2", 15104, 0.2027},       // Qwen2.5-7B: 59 times 256
    {18944, "Q4_0", "--rate 0.3", 13312, 0.2973},       // 52 times 256
    {1024, "BF16", "--rate 0.2 --group 64", 832, 0.1875}, // 256 is too coarse, 32 and 64 have 64
    {1024, "BF16", "--rate 0.25 --group 64", 768, 0.25},
    {1024, "BF16", "--rate 0.2", 832, 0.1875},          // 26 times 32
    {1024, "BF16", "--rate 0.2 --multiple 1", 819, 0.2002},
    {1024, "BF16", "--rate 0.3 --multiple 1", 717, 0.2998},
    {1024, "Q4_0", "--rate 0.2 --group 32 --multiple 48", 864, 0.1563}, // the least common multiple is 96
    {1024, "Q4_0", "--rate 0", 1024, 0},
    {1024, "BF16", "--rate 0.999", 32, 0.9688},         // something stays
    {1024, "Q6_K", "--rate 0.2", 768, 0.25},            // K types hold nothing finer
};

static void widths(void) {
    for (size_t i = 0; i < sizeof width_cases / sizeof *width_cases; i++) {
        const struct width_case *c = &width_cases[i];
        const char *plan = test_file("plan.tsv");
        kit_plan p;
        dw_err err = {0};
        if (!CHECK(
                !test_run("deadwood-rank -m %s --metric random -o %s -q %s", wide(c->n_ff, c->type), plan, c->options),
                "%s", test_run_output()))
            continue;
        REQUIRE(!kit_plan_read(&p, plan, NULL, 0, &err), "%s", err.text);
        CHECK(p.layer[0].n_keep == c->width && p.layer[1].n_keep == c->width, "%d %s: width %d, expected %d", c->n_ff,
              c->options, p.layer[0].n_keep, c->width);
        CHECK(fabs(p.rate_reached - c->reached) < 1e-4, "%d %s: reached %.4f", c->n_ff, c->options, p.rate_reached);
        kit_plan_release(&p);
    }
}

/* A rate that no width reaches is refused; one that is missed by more than 0.01 is told. */
static void missed_rates(void) {
    const char *plan = test_file("missed.tsv"), *model = wide(1024, "BF16");
    CHECK(test_run("deadwood-rank -m %s --metric random -o %s --rate 0.001", model, plan) == 1 && access(plan, F_OK),
          "%s", test_run_output());
    CHECK(strstr(test_run_output(), "--rate 0.001 removes no neuron") && strstr(test_run_output(), "at least 0.0312"),
          "%s", test_run_output());
    CHECK(!test_run("deadwood-rank -m %s --metric random -o %s --rate 0.2 --group 64", model, plan) &&
              strstr(test_run_output(), "warning: --rate 0.2 is wanted and 0.1875 is reached"),
          "%s", test_run_output());
    CHECK(!test_run("deadwood-rank -m %s --metric random -o %s --rate 0.25 --group 64", model, plan) &&
              !strstr(test_run_output(), "warning"),
          "%s", test_run_output());
    CHECK(!test_run("deadwood-rank -m %s --metric random -o %s --rate 0", model, plan) &&
              strstr(test_run_output(), "warning: nothing is cut: --rate 0 keeps all neurons") &&
              strstr(test_run_output(), "widths 1024 to 1024; the file"),
          "%s", test_run_output());
}

/* The size after requant is met from below, and by less than a step of the widths. */
static void bytes_as(void) {
    static const struct {
        const char *as, *options, *requant;
        size_t wanted, step;
    } cases[] = {{"Q4_K_M", "--allocate uniform", "--mixture Q4_K_M", 6400000, 8 * 256 * 3 * 256 * 6 / 8},
                 {"Q4_K_M", "--allocate standardized", "--mixture Q4_K_M", 6400000, 256 * 3 * 256 * 6 / 8},
                 {"Q4_K_M", "--multiple 32", "--mixture Q4_K_M", 6400000,
                  8 * 32 * 3 * 256 * 9 / 8 + 8 * 1024 * 256 / 4}, // with fallbacks
                 {"Q4_K_M", "--output-type Q3_K", "--mixture Q4_K_M --output-type Q3_K", 5400000,
                  8 * 256 * 3 * 256 * 6 / 8},
                 {"Q4_K", "", "--type Q4_K", 6200000, 8 * 256 * 3 * 256 * 6 / 8},
                 {"Q8_0", "--group 64", "--mixture Q8_0", 9000000, 8 * 64 * 3 * 256 * 9 / 8},
                 {"BF16", "--multiple 1", "--type BF16", 20000000, 8 * 3 * 256 * 2}};
    const char *model = random_model("mini", "BF16", 0), *plan = test_file("as.tsv"), *small = test_file("as.gguf"),
               *last = test_file("last.gguf");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dw_err err = {0};
        REQUIRE(!test_run("deadwood-rank -m %s --metric weight -o %s -q --bytes %zu --as %s %s", model, plan,
                          cases[i].wanted, cases[i].as, cases[i].options),
                "%s", test_run_output());
        REQUIRE(!test_run("deadwood-cut -m %s -p %s -o %s -q && deadwood-requant -m %s -o %s -q %s", model, plan, small,
                          small, last, cases[i].requant),
                "%s", test_run_output());
        dw_gguf *g = dw_gguf_open(last, &err);
        REQUIRE(g, "%s", err.text);
        const size_t n = dw_gguf_file_bytes(g);
        CHECK(n <= cases[i].wanted && n + cases[i].step + 20000 > cases[i].wanted, "%s %s: %zu bytes, wanted %zu",
              cases[i].as, cases[i].options, n, cases[i].wanted);
        dw_gguf_close(g);
    }
    CHECK(test_run("deadwood-rank -m %s --metric weight -o %s -q --bytes 6MB --as Q4_K --multiple 32", model, plan) ==
                  1 &&
              strstr(test_run_output(), "--multiple 256 does"),
          "%s", test_run_output());
    CHECK(test_run("deadwood-rank -m %s --metric weight -o %s -q --as Q4_K --drop-layers 0", model, plan) == 2, "%s",
          test_run_output());
}

/* openelm, which stores tied qwen3 with unequal widths, joins q, k and v in one matrix of v's type. */
static void bytes_as_joined(void) {
    enum { N_LAYER = 12, WANTED = 4200000 };
    static const exp_shape shape = {"joined", "qwen3", N_LAYER, 256, 768, 4, 2, 64, 512, true, 10000, 256};
    const char *model = test_file("joined.gguf"), *plan = test_file("as.tsv"), *small = test_file("as.gguf"),
               *last = test_file("last.gguf");
    struct stat st;
    if (!write_random(model, &shape, "BF16")) return;
    REQUIRE(!test_run("deadwood-rank -m %s --metric weight -o %s -q --allocate standardized --bytes %d --as Q3_K_M "
                      "--multiple 32 && deadwood-cut -m %s -p %s -o %s -q && deadwood-requant -m %s -o %s -q "
                      "--mixture Q3_K_M",
                      model, plan, WANTED, model, plan, small, small, last),
            "%s", test_run_output());
    REQUIRE(!stat(last, &st));
    CHECK(st.st_size <= WANTED && st.st_size > WANTED * 9 / 10, "%lld bytes, wanted %d",
          (long long)st.st_size, WANTED);
}

/* Widths of a plan that rank makes of a model without statistics. */
static bool widths_of(int width[8], const char *model, const char *options) {
    const char *plan = test_file("widths.tsv");
    kit_plan p;
    dw_err err = {0};
    if (!CHECK(!test_run("deadwood-rank -m %s --metric weight -o %s %s", model, plan, options), "%s",
               test_run_output()) ||
        !CHECK(!kit_plan_read(&p, plan, NULL, 0, &err) && p.n_layer <= 8, "%s", err.text))
        return false;
    for (int l = 0; l < p.n_layer; l++) width[l] = p.layer[l].n_keep;
    kit_plan_release(&p);
    return true;
}

/* A rate with a target type: K types need 256, whatever the rate; the simple ones 32. */
static void widths_as(void) {
    static const struct { const char *options; int width; } cases[] = {
        {"--rate 0.2", 832},
        {"--rate 0.2 --as Q4_K_M", 768},
        {"--rate 0.2 --as Q6_K", 768},
        {"--rate 0.2 --as Q8_0", 832},
        {"--rate 0.2 --as Q4_K_M --multiple 32", 832}}; // with fallbacks, as asked for
    int width[8];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!widths_of(width, wide(1024, "BF16"), cases[i].options)) return;
        CHECK(width[0] == cases[i].width && width[1] == cases[i].width, "%s: widths %d, %d", cases[i].options, width[0],
              width[1]);
    }
    CHECK(test_run("deadwood-rank -m %s --metric weight -o %s -q --rate 0.2 --as Q4_K --multiple 32",
                   random_model("mini", "BF16", 0), test_file("widths.tsv")) == 1 &&
              strstr(test_run_output(), "--multiple 256 does"),
          "%s", test_run_output());
}

/* mini: 8 layers of 1024.  A quarter of all neurons goes, from the layers that are not protected. */
static void protected_layers(void) {
    static const char *const options[] = {"--rate 0.25 --multiple 1 --protect 0-1,7",
                                          "--rate 0.25 --multiple 1 --allocate standardized --protect 0-1,7"};
    const char *model = random_model("mini", "BF16", 0);
    int width[8];
    for (int i = 0; i < 2; i++) {
        if (!widths_of(width, model, options[i])) return;
        int sum = 0;
        for (int l = 0; l < 8; l++) sum += width[l];
        CHECK(width[0] == 1024 && width[1] == 1024 && width[7] == 1024, "%s: %d %d %d", options[i], width[0], width[1],
              width[7]);
        CHECK(abs(sum - 6144) <= 5, "%s: %d neurons stay, 6144 are wanted", options[i], sum);
        for (int l = 2; l < 7 && !i; l++)
            CHECK(abs(width[l] - 614) <= 1, "layer %d: %d", l, width[l]); // 1 - 0.25 * 8 / 5
    }
    if (!widths_of(width, model, "--bytes 22MB --multiple 1 --protect 3")) return;
    CHECK(width[3] == 1024 && width[2] < 1024 && width[2] == width[4], "%d %d %d", width[2], width[3], width[4]);
}

static void least_width(void) {
    const char *model = random_model("mini", "BF16", 0);
    int width[8], least = 1024;
    if (!widths_of(width, model, "--rate 0.5 --multiple 32 --allocate standardized --min-width 500")) return;
    for (int l = 0; l < 8; l++) least = width[l] < least ? width[l] : least;
    CHECK(least >= 512, "a layer keeps %d", least); // 500, in units of 32
    if (!widths_of(width, model, "--rate 0.4 --multiple 1 --min-width 614")) return;
    for (int l = 0; l < 8; l++) CHECK(width[l] >= 614, "layer %d keeps %d", l, width[l]);
}

/* A budget above the whole model is no mistake of a grid, and is told. */
static void nothing_to_cut(void) {
    int width[8];
    if (!widths_of(width, random_model("mini", "Q4_0", 0), "--bytes 1GB")) return;
    CHECK(strstr(test_run_output(), "warning: nothing needs to be cut") && strstr(test_run_output(), "1.000 GB"), "%s",
          test_run_output());
    for (int l = 0; l < 8; l++) CHECK(width[l] == 1024, "layer %d keeps %d", l, width[l]);
}

/* The lineage of a cut file has its room in --bytes, but a model that fits as it is gets no lineage. */
static void fits_as_it_is(void) {
    static const char *const rules[] = {"", "--allocate standardized", "--multiple 32"};
    const char *model = random_model("mini", "Q4_0", 0);
    const size_t whole = dw_file_bytes(model);
    char options[128], said[128];
    int width[8];
    for (int fits = 0; fits < 2; fits++)
        for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
            snprintf(options, sizeof options, "%s --bytes %zu", rules[i], whole - 1 + (size_t)fits);
            if (!widths_of(width, model, options)) return;
            int sum = 0;
            for (int l = 0; l < 8; l++) sum += width[l];
            CHECK((sum == 8 * 1024) == fits, "%s: %d neurons stay", options, sum);
            snprintf(said, sizeof said, "the model has %zu bytes, and --bytes allows %zu", whole, whole);
            CHECK(!strstr(test_run_output(), said) == !fits, "%s", test_run_output());
        }
    snprintf(options, sizeof options, "--as Q4_0 --bytes %zu", whole); // requant writes a file
    if (widths_of(width, model, options)) CHECK(width[0] < 1024, "%d", width[0]);
}

static void bytes(void) {
    const char *model = random_model("mini", "Q4_0", 0), *plan = test_file("plan.tsv"),
               *small = test_file("small.gguf");
    for (int i = 0; i < 2; i++) {
        const size_t wanted = i ? 5600000 : 6500000;
        REQUIRE(!test_run("deadwood-rank -m %s --metric weight -o %s -q --group 32 --bytes %zu", model, plan, wanted),
                "%s", test_run_output());
        kit_plan p;
        dw_err err = {0};
        REQUIRE(!kit_plan_read(&p, plan, NULL, 0, &err), "%s", err.text);
        REQUIRE(!test_run("deadwood-cut -m %s -p %s -o %s -q", model, plan, small), "%s", test_run_output());
        dw_gguf *g = dw_gguf_open(small, &err);
        REQUIRE(g, "%s", err.text);
        const size_t unit = 8 * 256 * 3 * 256 * 18 / 32; // of all layers, multiples of 256
        CHECK(dw_gguf_file_bytes(g) <= wanted && dw_gguf_file_bytes(g) + unit + 10000 > wanted, "%zu bytes, wanted %zu",
              dw_gguf_file_bytes(g), wanted);
        dw_gguf_close(g);
        kit_plan_release(&p);
    }
    CHECK(test_run("deadwood-rank -m %s --metric weight -o %s -q --bytes 1MB", model, plan) == 1 &&
              strstr(test_run_output(), "--bytes 1000000 is too little"),
          "%s", test_run_output());
    CHECK(!test_run("deadwood-rank -m %s --metric weight -o %s -q --bytes 1GB", model, plan), "%s", test_run_output());
}

/* What makes scores of different layers comparable, by the definitions of allocate.h. */
static double comparable(const char *name, const kit_stats *s, double *const *score, int l, int j) {
    if (!strcmp(name, "relative")) return score[l][j] * s->layer[l].sum_inverse / (double)s->layer[l].n_cosine;
    double sum = 0, square = 0;
    for (int i = 0; i < 128; i++) sum += score[l][i], square += score[l][i] * score[l][i];
    return (score[l][j] - sum / 128) / sqrt(square / 128 - sum / 128 * (sum / 128));
}

/* All neurons of all layers are in one list, the smallest go. */
static void across_layers(void) {
    static const char *const names[] = {"relative", "standardized"};
    const char *path = random_model("tiny-llama", "F32", 0);
    dw_err err = {0};
    kit_stats s;
    dw_model *m = dw_model_open(path, &err);
    dw_pool *pool = dw_pool_new(1, &err);
    REQUIRE(m && pool && collect(&s, path), "%s", err.text);
    kit_scorer scorer = {.model = m, .stats = &s, .group = 1, .pool = pool};
    double *score[4];
    REQUIRE(!kit_score(&scorer, kit_metric_find("energy"), score, &err), "%s", err.text);
    for (int i = 0; i < 2; i++) {
        char options[128];
        double largest_gone = -INFINITY, least_kept = INFINITY;
        int n_kept = 0;
        kit_plan p;
        snprintf(options, sizeof options, "--metric energy --rate 0.4 --multiple 1 --allocate %s", names[i]);
        REQUIRE(rank(&p, path, options));
        for (int l = 0; l < 4; l++) {
            n_kept += p.layer[l].n_keep;
            for (int j = 0; j < 128; j++) {
                const double v = comparable(names[i], &s, score, l, j);
                if (keeps(&p.layer[l], j)) least_kept = fmin(least_kept, v);
                else largest_gone = fmax(largest_gone, v);
            }
        }
        CHECK(n_kept == 512 - 205 && largest_gone <= least_kept + 1e-12, "%s: %d are kept; %g goes, %g stays", names[i],
              n_kept, largest_gone, least_kept);
        CHECK(!strcmp(p.allocate, names[i]));
        kit_plan_release(&p);
        snprintf(options, sizeof options, "--metric flap --rate 0.9 --group 32 --allocate %s", names[i]);
        REQUIRE(rank(&p, path, options));
        for (int l = 0; l < 4; l++) CHECK(p.layer[l].n_keep >= 32 && p.layer[l].n_keep % 32 == 0);
        kit_plan_release(&p);
    }
    for (int l = 0; l < 4; l++) free(score[l]);
    kit_scorer_release(&scorer);
    kit_stats_release(&s);
    dw_pool_free(pool);
    dw_model_close(m);
    kit_plan p;
    REQUIRE(rank(&p, path, "--metric random --rate 0.5 --multiple 1 --allocate relative")); // twins of such plans
    kit_plan_release(&p);
    REQUIRE(rank(&p, path, "--metric random --rate 0.5 --multiple 1 --allocate global"));
    kit_plan_release(&p);
}

/* Raw scores that do not compare are refused with advice, and so are statistics that do not know the residual. */
static void incomparable(void) {
    static const struct { const char *metric, *allocate, *words; } cases[] = {
        {"energy", "global", "the residual stream grows from layer to layer; give --allocate relative or standardized"},
        {"flap", "global", "give --allocate relative or standardized"},
        {"wanda", "global", "give --allocate standardized, or relative with one of these metrics: energy, flap"},
        {"activation", "relative", "give --allocate standardized, or relative with one of these metrics: energy, flap"},
        {"weight", "relative", "do not compare across layers"}};
    const char *path = random_model("tiny-llama", "F32", 0), *plan = test_file("no.tsv"), *stats = stats_of(path);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK(test_run("deadwood-rank -m %s -s %s -o %s -q --rate 0.2 --metric %s --allocate %s", path, stats, plan,
                       cases[i].metric, cases[i].allocate) == 2 &&
                  strstr(test_run_output(), cases[i].words),
              "%s", test_run_output());
    kit_stats s;
    dw_err err = {0};
    REQUIRE(!kit_stats_read(&s, stats, &err), "%s", err.text);
    s.layer[2].text_inverse[1] = 0;
    CHECK(!kit_stats_write(&s, test_file("old.h5"), &err), "%s", err.text);
    kit_stats_release(&s);
    CHECK(test_run("deadwood-rank -m %s -s %s -o %s -q --rate 0.2 --metric energy --allocate relative", path,
                   test_file("old.h5"), plan) == 1 &&
              strstr(test_run_output(), "does not know the residual's norm after layer 2"),
          "%s", test_run_output());
}

/* The table of scores has what kit_score gives. */
static void scores(void) {
    const char *path = random_model("tiny-llama", "F32", 0), *table = test_file("scores.tsv");
    dw_err err = {0};
    kit_stats s;
    tsv_table t;
    dw_model *m = dw_model_open(path, &err);
    dw_pool *pool = dw_pool_new(1, &err);
    REQUIRE(m && pool && collect(&s, path), "%s", err.text);
    REQUIRE(
        !test_run("deadwood-rank -m %s -s %s --metric energy --group 32 --scores %s -q", path, stats_of(path), table),
        "%s", test_run_output());
    kit_scorer scorer = {.model = m, .stats = &s, .group = 32, .pool = pool};
    double *score[4];
    REQUIRE(!kit_score(&scorer, kit_metric_find("energy"), score, &err) && !tsv_read(&t, table, &err), "%s", err.text);
    CHECK(t.n_rows == 16 && t.n_columns == 5 && strstr(t.comment, "energy") && strstr(t.comment, "group 32"), "%s",
          t.comment);
    for (size_t i = 0; i < t.n_rows && i < 16; i++) {
        const int l = atoi(tsv_cell(&t, i, "layer")), g = atoi(tsv_cell(&t, i, "group"));
        CHECK(l == (int)i / 4 && g == (int)i % 4 && atoi(tsv_cell(&t, i, "first")) == 32 * g &&
                  atoi(tsv_cell(&t, i, "last")) == 32 * g + 31,
              "row %zu", i);
        CHECK(fabs(atof(tsv_cell(&t, i, "score")) / score[l][g] - 1) < 1e-8, "row %zu: %s, expected %.12g", i,
              tsv_cell(&t, i, "score"), score[l][g]);
    }
    tsv_release(&t);
    for (int l = 0; l < 4; l++) free(score[l]);
    kit_scorer_release(&scorer), kit_stats_release(&s), dw_pool_free(pool), dw_model_close(m);
    CHECK(
        !test_run("deadwood-rank -m %s --metric weight --rate 0.5 -o %s --scores - -q", path, test_file("both.tsv")) &&
            !strncmp(test_run_output(), "# deadwood scores 1\n# model  ", 29) && !access(test_file("both.tsv"), F_OK),
        "%.200s", test_run_output());
}

static void drop_layers(void) {
    const char *path = random_model("tiny-llama", "F32", 0);
    kit_stats s;
    kit_plan p;
    REQUIRE(collect(&s, path) && rank(&p, path, "--metric activation --drop-layers 1 --rate 0.25"));
    int least = 0, n_dropped = 0;
    for (int l = 1; l < 4; l++)
        if (s.layer[l].sum_cosine / (double)s.layer[l].n_cosine >
            s.layer[least].sum_cosine / (double)s.layer[least].n_cosine)
            least = l;
    for (int l = 0; l < 4; l++) n_dropped += p.layer[l].drop;
    CHECK(n_dropped == 1 && p.layer[least].drop && p.layer[(least + 1) % 4].n_keep == 96 && p.rate_reached == 0.25);
    CHECK(!test_run("deadwood-cut -m %s -p %s -o %s -q", path, test_file("plan.tsv"), test_file("small.gguf")), "%s",
          test_run_output());
    kit_plan alone; // all neurons of the other layers stay
    REQUIRE(rank(&alone, path, "--drop-layers 1"));
    for (int l = 0; l < 4; l++) CHECK(l == least ? alone.layer[l].drop : alone.layer[l].n_keep == 128, "layer %d", l);
    CHECK(alone.rate_reached == 0 && !strcmp(alone.metric, "block-influence"), "%s", alone.metric);
    kit_plan_release(&alone);
    CHECK(!test_run("deadwood-cut -m %s -p %s -o %s -q", path, test_file("plan.tsv"), test_file("small.gguf")), "%s",
          test_run_output());
    CHECK(p.n_text == N_TEXT && !strcmp(p.text[1].name, "text 1.txt") && !strcmp(p.text[1].blocks, "0123456789abcdef"));
    kit_plan_release(&p);
    kit_stats_release(&s);
}

/* ---- agreement --------------------------------------------------------------------------------------------------- */

static void spearman(void) {
    const double a[5] = {1, 2, 3, 4, 5}, b[5] = {10, 20, 30, 40, 1e9}, c[5] = {5, 4, 3, 2, 1}, d[5] = {1, 2, 2, 2, 3},
                 same[5] = {0};
    double rho;
    dw_err err = {0};
    CHECK(!prune_rank_correlation(a, b, 5, &rho, &err) && fabs(rho - 1) < 1e-12, "%s", err.text);
    CHECK(!prune_rank_correlation(a, c, 5, &rho, &err) && fabs(rho + 1) < 1e-12);
    CHECK(!prune_rank_correlation(a, d, 5, &rho, &err) && fabs(rho - 8 / sqrt(80)) < 1e-12, "%g",
          rho); // ties share ranks 1, 3, 3, 3, 5
    CHECK(!prune_rank_correlation(a, same, 5, &rho, &err) && isnan(rho));
}

static void compare(void) {
    const char *model = random_model("tiny-llama", "F32", 0);
    REQUIRE(!test_run("deadwood-rank -m %s -s %s --compare --rate 0.25", model, stats_of(model)), "%s",
            test_run_output());
    const char *text = test_run_output(), *overlap = strstr(text, "overlap\tactivation"),
               *energy = strstr(text, "\nenergy\t");
    REQUIRE(overlap && energy, "%s", text);
    double row[7];
    REQUIRE(sscanf(energy, "\nenergy %lf %lf %lf %lf %lf %lf %lf", row, row + 1, row + 2, row + 3, row + 4, row + 5,
                   row + 6) == 7,
            "%s", text);
    CHECK(row[5] == 1 && row[6] > 0.9 && fabs(row[2]) < 0.3, "%s", text);
    energy = strstr(overlap, "\nenergy\t");
    REQUIRE(energy && sscanf(energy, "\nenergy %lf %lf %lf %lf %lf %lf %lf", row, row + 1, row + 2, row + 3, row + 4,
                             row + 5, row + 6) == 7,
            "%s", text);
    CHECK(row[5] == 1 && row[6] > 0.7 && row[2] < 0.5, "%s", text);
    CHECK(strstr(text, "# not compared: obs, obs-gradient"), "%s", text);
}

/* The widths are those of the plan by the uniform rule, and layers that it drops are not compared. */
static void compare_without_dropped(void) {
    const char *model = random_model("tiny-llama", "F32", 0), *plan = test_file("compared.tsv");
    double compared, reached;
    REQUIRE(
        !test_run("deadwood-rank -q -m %1$s -s %2$s -o %3$s --metric weight --multiple 1 --drop-layers 1 --protect 0 "
                  "--bytes $(($(wc -c <%1$s) * 7 / 10)) --compare && grep 'rate .*reached' %3$s",
                  model, stats_of(model), plan),
        "%s", test_run_output());
    const char *text = test_run_output(), *rate = strstr(text, "at rate "), *in_plan = strstr(text, "reached ");
    CHECK(rate && in_plan && sscanf(rate, "at rate %lf", &compared) == 1 &&
              sscanf(in_plan, "reached %lf", &reached) == 1 && compared > 0.2 && compared == reached,
          "%s", text);
}

/* A layer of one group has no order; the others count. */
static void compare_small(void) {
    REQUIRE(!test_run("deadwood-rank -m %s --compare --rate 0.25 --group 32 --multiple 32",
                      random_model("tiny-deci", "F32", 0)),
            "%s", test_run_output());
    double rho;
    const char *weight = strstr(test_run_output(), "\nweight\t");
    CHECK(weight && sscanf(weight, "\nweight %*f %lf", &rho) == 1 && rho == 1, "%s", test_run_output());
}

/* ---- pooled texts ------------------------------------------------------------------------------------------------ */

/* The texts from number `apart` on share a row of sums.  The metric that asks for single texts then warns; the others,
 * whose sums add up, do not. */
static void pooled(void) {
    const char *model = random_model("tiny-llama", "F32", 0), *stats = test_file("pooled.h5");
    static const struct {
        int apart;
        const char *options;
        bool warns;
    } rows[] = {{3, "--metric activation-max --rate 0.5", false}, {2, "--metric activation-max --rate 0.5", false},
                {1, "--metric activation-max --rate 0.5", true},  {1, "--metric energy --rate 0.5", false},
                {1, "--metric flap --rate 0.5", false},           {1, "--metric energy --compare --rate 0.5", true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!i || rows[i].apart != rows[i - 1].apart)
            REQUIRE(!test_run("deadwood-collect -m %s -f %s -c 32 --windows 3 --text-windows 1 --apart %d -o %s -q",
                              model, random_text("pooled.txt", 3000, 4), rows[i].apart, stats),
                    "%s", test_run_output());
        REQUIRE(!test_run("deadwood-rank -m %s -s %s %s --scores %s -q", model, stats, rows[i].options,
                          test_file("pooled.tsv")),
                "%s", test_run_output());
        const bool warned =
            strstr(test_run_output(), "metric 'activation-max': the statistics have 2 rows of sums for 3 texts");
        CHECK(warned == rows[i].warns, "--apart %d, %s: %s", rows[i].apart, rows[i].options, test_run_output());
        if (warned) CHECK(strstr(test_run_output(), "collect with --apart 3"), "%s", test_run_output());
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void refused(int status, const char *arguments, const char *words) {
    const char *out = test_file("refused.tsv");
    CHECK(test_run("deadwood-rank -o %s -q %s", out, arguments) == status && access(out, F_OK), "not refused: %s",
          arguments);
    const char *text = test_run_output();
    CHECK(strstr(text, words) && strchr(text, '\n') == text + strlen(text) - 1, "'%s' does not say '%s' in one line",
          text, words);
}

/* The statistics with a NaN among the sums of a layer. */
static const char *with_nan(const char *stats) {
    kit_stats s;
    dw_err err = {0};
    const char *path = test_file("nan.h5");
    if (!CHECK(!kit_stats_read(&s, stats, &err), "%s", err.text)) exit(1);
    s.layer[1].sum_abs[7] = NAN;
    CHECK(!kit_stats_write(&s, path, &err), "%s", err.text);
    kit_stats_release(&s);
    return path;
}

/* Statistics that name the model, whose neurons they do not fit. */
static const char *misfit(const char *model, int width) {
    const char *path = test_file("misfit.h5");
    int n_ff[4], mix[4] = {0};
    for (int l = 0; l < 4; l++) n_ff[l] = width;
    kit_stats s, of_model;
    dw_err err = {0};
    if (!CHECK(!kit_stats_read(&of_model, stats_of(model), &err) &&
                   !kit_stats_init(&s, 4, of_model.n_embd, n_ff, mix, 1, &err),
               "%s", err.text))
        return path;
    snprintf(s.model_sha256, sizeof s.model_sha256, "%s", of_model.model_sha256);
    snprintf(s.arch, sizeof s.arch, "%s", of_model.arch);
    snprintf(s.backend, sizeof s.backend, "ref");
    snprintf(s.text[0].sha256, sizeof s.text[0].sha256, "%064d", 0);
    s.n_ctx = 64, s.hist_every = 1, s.text[0].first_window = s.text[0].n_windows = 1, s.text[0].n_tokens = 1;
    s.text[0].blocks = dw_strdup("0123456789abcdef", &err);
    CHECK(!kit_stats_write(&s, path, &err), "%s", err.text);
    kit_stats_release(&s);
    kit_stats_release(&of_model);
    return path;
}

static void refusals(void) {
    char arguments[1024];
    const char *f32 = random_model("tiny-llama", "F32", 0), *q8 = random_model("tiny-llama", "Q8_0", 0),
               *stats = stats_of(f32);
    const struct {
        int status;
        const char *model, *stats, *options, *words;
    } rows[] = {
        {1, q8, stats, "--metric energy --rate 0.2", "was collected from another model"},
        {1, f32, with_nan(stats), "--metric energy --rate 0.2", "NaN"},
        {2, f32, NULL, "--metric energy --rate 0.2", "needs statistics"},
        {2, f32, NULL, "--metric weight --drop-layers 1", "needs statistics"},
        {2, f32, NULL, "--metric weight --rate 1", "rate 1 leaves no neuron"},
        {1, f32, NULL, "--metric weight --rate 0.2 --group 256",
         "128 neurons are not a multiple of the group size 256; groups of 128 fit"},
        {1, q8, NULL, "--metric weight --rate 0.2 --multiple 1", "do not fill Q8_0 blocks of 32"},
        {2, f32, stats, "--metric activation --rate 0.2 --allocate global", "do not compare across layers"},
        {2, f32, stats, "--metric taylor --rate 0.2 --allocate relative", "give --allocate global"},
        {2, f32, stats, "--metric obs-gradient --rate 0.2 --allocate evolve --start relative -f /etc/passwd",
         "relative is for energies: energy, flap, obs; give --start global"},
        {2, f32, stats, "--compare --us 10 --metric weight", "--compare needs --rate or --bytes"},
        {2, f32, stats, "--metric weight --rate 0.2 --sample 4", "--sample is for --ablation"},
        {2, f32, stats, "--metric weight --rate 0.2 --start global", "--start is for --allocate evolve"},
        {2, f32, stats, "--metric weight --rate 0.2 --evaluations 7", "--evaluations is for allocations that run"},
        {2, f32, stats, "--metric weight --rate 0.2 -c 512", "-c and --windows are for the texts of -f"},
        {2, f32, stats, "--metric weight --rate 0.2 --windows 1-2", "-c and --windows are for the texts of -f"},
        {2, f32, stats, "--metric weight --rate 0.2 --heads-allocate relative", "--heads-allocate needs --heads"},
        {2, f32, stats, "--metric weight --rate 0.2 --scores - --compare", "only one of the plan, the scores"},
        {2, f32, stats, "--metric weight --rate 0.2 --scores - --ablation - -f /etc/passwd", "only one of the plan"},
        {2, f32, stats, "--rate 0.2", "need a --metric"},
        {2, f32, stats, "--drop-layers 1 --allocate relative", "needs a --metric"},
        {2, f32, stats, "--drop-layers 1 --as Q4_K_M", "--as needs --bytes or --rate"},
        {2, f32, stats, "--metric weight --rate 0.2 --as Q4_K_M --output-type Q4_K", "belongs to --bytes with --as"},
        {2, f32, stats, "--metric weight --bytes 1MB --as Q4_K --output-type Q4_K", "belongs to --bytes with --as"},
        {2, f32, stats, "--metric energy --scores s.tsv --protect 1", "give --rate, --bytes"},
        {2, f32, stats, "--drop-layers 1 --min-width 64", "--min-width needs --bytes, --rate or --us"},
        {1, f32, NULL, "--metric weight --rate 0.2 --protect 4", "the model has layers 0 to 3"},
        {1, f32, NULL, "--metric weight --rate 0.2 --protect 2-1", "--protect '2-1': the range 2-1 runs backwards"},
        {1, f32, NULL, "--metric weight --rate 0.2 --protect 1,,2", "',2' is no layer or range of layers"},
        {1, f32, NULL, "--metric weight --rate 0.2 --protect=-1", "'-1' is no layer or range of layers"},
        {1, f32, NULL, "--metric weight --rate 0.2 --protect 99999999999", "the model has layers 0 to 3"},
        {1, f32, NULL, "--metric weight --rate 0.6 --protect 0-1", "at most 0.5000 of the neurons may go"},
        {1, f32, NULL, "--metric weight --rate 0.6 --min-width 64 --allocate standardized",
         "at most 0.5000 of the neurons may go"},
        {1, f32, stats, "--drop-layers 3 --protect 1-2", "3 layers cannot be dropped: 2 of 4 are protected"},
        {1, f32, stats, "--metric activation --drop-layers 4", "one must stay"},
        {1, f32, NULL, "--metric weight --rate 0.2 --multiple 1000",
         "widths are multiples of 1000, and layers have at most 128 neurons; give a smaller --multiple"},
        {1, f32, misfit(f32, 96), "--metric energy --rate 0.5",
         "misfit.h5', layer 0: it has 96 neurons, the model 128; collect statistics of this model"},
        /* These statistics have no Gram matrices, which obs misses only after all that needs no scores. */
        {1, f32, stats, "--metric obs --rate 0.2 --multiple 1000", "layers have at most 128 neurons"},
        {1, f32, stats, "--metric obs --rate 0.6 --protect 0-1", "at most 0.5000 of the neurons may go"},
        {1, f32, stats, "--metric obs --bytes 1kB", "--bytes 1000 is too little"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(arguments, sizeof arguments, "-m %s %s %s %s", rows[i].model, rows[i].stats ? "-s" : "",
                 rows[i].stats ? rows[i].stats : "", rows[i].options);
        refused(rows[i].status, arguments, rows[i].words);
    }
    CHECK(test_run("deadwood-rank -m %s --rate 0.2 --bytes 1MB --metric weight -o x", f32) == 2);
    CHECK(test_run("deadwood-rank -m %s --rate 0.2 -o x", f32) == 2);
}

static void seeds(void) {
    char hash[3][65];
    dw_err err = {0};
    const char *model = random_model("tiny-llama", "F32", 0), *plan = test_file("plan.tsv");
    for (int i = 0; i < 3; i++) {
        REQUIRE(!test_run("deadwood-rank -m %s --metric random --rate 0.5 -o %s -q --seed 7 -t %d", model, plan, i + 1),
                "%s", test_run_output());
        if (i == 2)
            REQUIRE(!test_run("deadwood-rank -m %s --metric random --rate 0.5 -o %s -q --seed 8", model, plan), "%s",
                    test_run_output());
        CHECK(!dw_sha256_file(plan, hash[i], &err), "%s", err.text);
    }
    CHECK(!strcmp(hash[0], hash[1]) && strcmp(hash[0], hash[2]));
}

/* ---- figures of an independent program --------------------------------------------------------------------------- */

/* Perplexity (geometric mean of five domains, 20 windows of 512) of mini without neurons, statistics of 24 windows of
 * each domain, six a text: by the program that made the model (PyTorch in F32, weights BF16). */
static const struct figure {
    const char *options;
    double perplexity;
    bool is_quick; // measured without DW_SLOW, too
} figures[] = {
    {"--metric activation --group 64 --rate 0.2", 30.314, true},
    {"--metric activation --group 64 --rate 0.25", 43.508},
    {"--metric activation --group 64 --rate 0.5", 626.1},
    {"--metric activation-max --group 64 --rate 0.2", 29.410},
    {"--metric activation-max --group 64 --rate 0.25", 41.787},
    {"--metric activation-max --group 64 --rate 0.5", 636.5},
    {"--metric energy --group 64 --rate 0.2", 30.251},
    {"--metric energy --group 64 --rate 0.25", 42.076},
    {"--metric energy --group 64 --rate 0.5", 526.7},
    {"--metric activation --multiple 1 --rate 0.2", 24.174},
    {"--metric activation --multiple 1 --rate 0.3", 32.599},
    {"--metric activation --multiple 1 --rate 0.5", 103.15},
    {"--metric energy --multiple 1 --rate 0.2", 24.742},
    {"--metric energy --multiple 1 --rate 0.3", 34.891},
    {"--metric energy --multiple 1 --rate 0.5", 117.56},
    {"--metric flap --multiple 1 --rate 0.2", 24.749},
    {"--metric flap --multiple 1 --rate 0.3", 35.219},
    {"--metric flap --multiple 1 --rate 0.5", 119.61},
};

static double perplexity(const char *model, const char *texts) {
    const char *rows = test_file("rows.tsv");
    unlink(rows);
    if (!CHECK(!test_run("deadwood-score -m %s -f %s --windows 20 --no-speed -q -o %s", model, texts, rows), "%s",
               test_run_output()))
        return NAN;
    tsv_table t;
    dw_err err = {0};
    double ppl = NAN;
    if (!CHECK(!tsv_read(&t, rows, &err), "%s", err.text)) return NAN;
    for (size_t i = 0; i < t.n_rows; i++)
        if (!strcmp(tsv_cell(&t, i, "text"), "*")) ppl = atof(tsv_cell(&t, i, "ppl"));
    tsv_release(&t);
    return ppl;
}

static void independent(void) {
    const char *shared = test_shared();
    if (!shared) SKIP("the shared material is not there");
    if (test_run("deadwood-collect --version")) SKIP("there is no deadwood-collect");
    char calib[1024] = "", eval[1024] = "";
    static const char *const domains[] = {"english", "german", "spanish", "code", "math"};
    for (int i = 0; i < 5; i++) {
        snprintf(calib + strlen(calib), sizeof calib - strlen(calib), " %s/reference-model/text/calib/%s.txt", shared,
                 domains[i]);
        snprintf(eval + strlen(eval), sizeof eval - strlen(eval), " %s/reference-model/text/eval/%s.txt", shared,
                 domains[i]);
    }
    const char *model = test_file("mini.gguf"), *stats = test_file("mini.h5"), *plan = test_file("plan.tsv"),
               *small = test_file("small.gguf");
    REQUIRE(!test_run("deadwood-convert %s/reference-model/mini -o %s -q", shared, model), "%s", test_run_output());
    REQUIRE(!test_run("deadwood-collect -m %s -f %s --windows 24 --text-windows 6 -o %s -q", model, calib, stats), "%s",
            test_run_output());
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        if (!figures[i].is_quick && !test_slow()) continue; // all of them take 10 minutes
        REQUIRE(!test_run("deadwood-rank -m %s -s %s -o %s -q %s", model, stats, plan, figures[i].options), "%s",
                test_run_output());
        REQUIRE(!test_run("deadwood-cut -m %s -p %s -o %s -q", model, plan, small), "%s", test_run_output());
        const double ppl = perplexity(small, eval);
        CHECK(fabs(ppl / figures[i].perplexity - 1) <= 0.005, "%s: perplexity %.3f, expected %.3f", figures[i].options,
              ppl, figures[i].perplexity);
    }
}

/* The number in a tensor's name is the file's word, and an index here and there. */
static void stray_layers(void) {
    const char *names[] = {"blk.900000000.extra.weight", "blk.-7.extra.weight", "blk.4.extra.weight"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        dw_err err = {0};
        const char *parent = random_model("tiny-llama", "Q8_0", 0), *path = test_file("stray.gguf");
        const float value[4] = {0};
        dw_gguf *g = dw_gguf_open(parent, &err);
        dw_gguf_writer *w = g ? dw_gguf_writer_new(path, &err) : NULL;
        REQUIRE(w, "%s", err.text);
        dw_gguf_set_keys(w, g);
        for (size_t k = 0; k < dw_gguf_n_tensors(g); k++) {
            const dw_tensor *t = dw_gguf_tensor(g, k);
            dw_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne);
        }
        dw_gguf_add_tensor(w, names[i], dw_qtype_get(DW_F32), 1, (size_t[]){4});
        int rc = dw_gguf_begin(w, &err);
        for (size_t k = 0; k < dw_gguf_n_tensors(g) && !rc; k++)
            rc = dw_gguf_write(w, dw_gguf_tensor(g, k)->data, dw_gguf_tensor(g, k)->n_bytes, &err);
        if (!rc) rc = dw_gguf_write(w, value, sizeof value, &err) || dw_gguf_commit(w, &err);
        CHECK(!rc, "%s", err.text);
        dw_gguf_writer_free(w);
        dw_gguf_close(g);
        CHECK(test_run("deadwood-rank -m %s --metric weight --rate 0.5 --group 32 -o %s -q", path,
                       test_file("stray.tsv")) == 1 &&
                  strstr(test_run_output(), "is not part of the model"),
              "%s: %s", names[i], test_run_output());
    }
}

static const test_case cases[] = {
    {"tensors of layers that do not exist are refused", stray_layers},
    {"planted dead neurons are cut first by every metric but random", dead_first},
    {"scores are what the formulas say, and NaN is an error", formulas},
    {"kept widths are the nearest multiples", widths},
    {"a file's size is met from below", bytes},
    {"a rate that widths do not reach is refused or told", missed_rates},
    {"a size after requant is met from below", bytes_as},
    {"... also where the carrier joins q, k and v", bytes_as_joined},
    {"widths fit the types that are given for later", widths_as},
    {"protected layers keep all their neurons, and the rate still holds for the model", protected_layers},
    {"no layer keeps less than the least width", least_width},
    {"a size above the whole model's is told, and the plan keeps all", nothing_to_cut},
    {"a model that fits as it is keeps all neurons, although a cut's lineage would not fit", fits_as_it_is},
    {"allocations across layers cut the smallest comparable scores", across_layers},
    {"scores that do not compare across layers are refused with advice", incomparable},
    {"scores are written as a table", scores},
    {"the layer with the least block influence is dropped", drop_layers},
    {"rank correlation with and without ties", spearman},
    {"metrics are compared", compare},
    {"metrics are compared where a layer is a single group", compare_small},
    {"--compare takes the plan's widths, without the layers that are dropped", compare_without_dropped},
    {"a metric of single texts warns where texts share a row of sums", pooled},
    {"what cannot be ranked is refused in one line", refusals},
    {"same seed, same plan, for any number of threads", seeds},
    {"cut models have the perplexities that an independent program measured", independent},
    {0}};
TEST_MAIN(cases)
