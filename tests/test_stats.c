/* test_stats.c - statistics in memory and as HDF5 files: round trips, addition, what is refused, h5py. */
#include "build.h"
#include "kit/gram.h"
#include "kit/h5_child.h"
#include "test.h"
#include "tests/h5_changes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char magic[] = "deadwood stats 1\n";

enum { LAYERS = 3, E = 24, TEXTS = 4 };
static const int n_ff[LAYERS] = {160, 0, 33}, n_mix[LAYERS] = {24, 40, 0};

static void random_squares(double *v, size_t n, dw_rng *rng) {
    for (size_t i = 0; i < n; i++) v[i] = exp(4 * dw_rng_normal(rng));
}

static void fill_hist(uint32_t *v, size_t n, dw_rng *rng) {
    for (size_t i = 0; i < n; i++) v[i] = (uint32_t)dw_rng_below(rng, 768);
}

static void fill_text(kit_stats *s, size_t t, dw_rng *rng) {
    kit_stats_text *x = &s->text[t];
    snprintf(x->name, sizeof x->name, "t\303\244xt-%zu.txt", t);
    memset(x->sha256, "0123456789abcdef"[t % 16], 64);
    x->first_window = 1;
    x->n_windows = 6;
    x->blocks = dw_strdup("0123abcdffffffff", NULL);
    random_squares(s->text_output_square + t * E, E, rng);
    for (int l = 0; l < s->n_layer; l++) {
        kit_stats_layer *w = &s->layer[l];
        const size_t n = (size_t)w->n_ff;
        w->count[t] = w->text_n_cosine[t] = 768;
        w->text_cosine[t] = dw_rng_normal(rng);
        for (size_t j = 0; j < n; j++) {
            w->sum_a[t * n + j] = dw_rng_normal(rng);
            w->max_abs[t * n + j] = (float)dw_rng_uniform(rng);
        }
        if (n) random_squares(w->sum_abs + t * n, n, rng);
        for (int k = 0; k < KIT_STATS_N_INPUTS; k++)
            if (w->n_input[k])
                random_squares(w->text_square[k] + t * (size_t)w->n_input[k], (size_t)w->n_input[k], rng);
    }
}

static void fill_hists(kit_stats *s, dw_rng *rng) {
    for (int l = 0; l < s->n_layer; l++) {
        kit_stats_layer *w = &s->layer[l];
        if (w->n_ff) {
            fill_hist(w->hist_a, (size_t)w->n_ff * KIT_STATS_BINS, rng);
            fill_hist(w->hist_gate, (size_t)w->n_ff * KIT_STATS_BINS, rng);
        }
        for (int g = 0; g < KIT_STATS_N_GROUPS && w->n_ff; g++)
            fill_hist(w->hist_group[g],
                      (size_t)((w->n_ff + kit_stats_group_sizes[g] - 1) / kit_stats_group_sizes[g]) * KIT_STATS_BINS,
                      rng);
        for (int k = 0; k < KIT_STATS_N_INPUTS; k++)
            for (int b = 0; b < KIT_STATS_BINS && w->n_input[k]; b++)
                w->input_hist[k][b] = dw_rng_below(rng, 768 * (uint64_t)w->n_input[k]);
    }
}

static void set_header(kit_stats *s) {
    memset(s->model_sha256, 'a', 64);
    strcpy(s->arch, "deci");
    strcpy(s->backend, "ref");
    s->n_ctx = 128;
    s->skip = 1;
    s->hist_every = 4;
    free(s->arguments);
    s->arguments = dw_strdup("--windows 1-6 'a text.txt'", NULL);
}

/* Random statistics of texts first .. first + n - 1; the same text always has the same sums. */
static bool make(kit_stats *s, size_t first, size_t n) {
    dw_err err = {0};
    dw_rng rng;
    if (!CHECK(!kit_stats_init(s, LAYERS, E, n_ff, n_mix, n, &err), "%s", err.text)) return false;
    set_header(s);
    for (size_t t = 0; t < n; t++) {
        dw_rng_seed(&rng, 100 + first + t);
        fill_text(s, t, &rng);
        memset(s->text[t].sha256, "0123456789abcdef"[(first + t) % 16], 64);
        s->text[t].n_tokens = 768 + first + t;
    }
    fill_hists(s, &rng);
    kit_stats_total(s);
    return true;
}

static bool write_file(const kit_stats *s, const char *path) {
    dw_err err = {0};
    return CHECK(!kit_stats_write(s, path, &err), "%s", err.text);
}

/* ---- bins ---------------------------------------------------------------------------------------------------- */

static void bins(void) {
    dw_rng rng;
    dw_rng_seed(&rng, 1);
    for (int i = 0; i < 100000; i++) {
        const float v = (float)exp2(-24 + 40 * dw_rng_uniform(&rng));
        const double wanted = fmin(fmax(floor(2 * log2(v)) + 40, 0), KIT_STATS_BINS - 1);
        if (!CHECK(kit_stats_bin(v) == (int)wanted, "%.9g is in bin %d, expected %g", (double)v, kit_stats_bin(v),
                   wanted))
            return;
    }
    for (int b = 1; b < KIT_STATS_BINS; b++) {
        const float edge = kit_stats_bin_edge(b), below = nextafterf(edge, 0), above = nextafterf(edge, 1e9f);
        CHECK(kit_stats_bin(above) == b && kit_stats_bin(nextafterf(below, 0)) == b - 1, "bin %d begins at %.9g", b,
              (double)edge);
        if (b % 2 == 0)
            CHECK(kit_stats_bin(edge) == b && kit_stats_bin(below) == b - 1, "bin %d begins at %.9g", b, (double)edge);
    }
    CHECK(kit_stats_bin(0) == 0 && kit_stats_bin(1e-40f) == 0 && kit_stats_bin(INFINITY) == KIT_STATS_BINS - 1 &&
          kit_stats_bin_edge(0) == 0);
}

/* Quantiles of values whose logarithm is uniform are exact but for chance; others are off by half an octave at most. */
static void quantiles(void) {
    enum { N = 100000 };
    uint64_t uniform[KIT_STATS_BINS] = {0}, one[KIT_STATS_BINS] = {0}, none[KIT_STATS_BINS] = {0};
    dw_rng rng;
    dw_rng_seed(&rng, 3);
    for (int i = 0; i < N; i++) uniform[kit_stats_bin((float)exp2(-10 + 12 * dw_rng_uniform(&rng)))]++;
    for (int i = 1; i < 10; i++) {
        const double q = 0.1 * i, wanted = exp2(-10 + 12 * q), got = kit_stats_quantile(uniform, q);
        CHECK(fabs(got / wanted - 1) < 0.05, "quantile %g is %g, expected %g", q, got, wanted);
    }
    one[kit_stats_bin(3.0f)] = 7;
    CHECK(fabs(log2(kit_stats_quantile(one, 0.5) / 3)) < 0.5 &&
          kit_stats_quantile(one, 0) < kit_stats_quantile(one, 1));
    CHECK(isnan(kit_stats_quantile(none, 0.5)));
    none[0] = 4; // zeros
    CHECK(kit_stats_quantile(none, 0.5) <= (double)kit_stats_bin_edge(1));
}

/* ---- files --------------------------------------------------------------------------------------------------- */

static void round_trip(void) {
    kit_stats s, back;
    dw_err err = {0};
    REQUIRE(make(&s, 0, TEXTS) && write_file(&s, test_file("a.h5")));
    REQUIRE(!kit_stats_read(&back, test_file("a.h5"), &err), "%s", err.text);
    CHECK(back.n_text == TEXTS && back.n_layer == LAYERS && back.n_ctx == 128 && back.skip == 1 &&
          back.hist_every == 4);
    CHECK(!strcmp(back.arguments, s.arguments) && !strcmp(back.text[1].name, s.text[1].name) &&
          !strcmp(back.text[1].blocks, s.text[1].blocks));
    for (int l = 0; l < LAYERS; l++) {
        const size_t n = (size_t)n_ff[l];
        CHECK(!n || !memcmp(back.layer[l].sum_a, s.layer[l].sum_a, TEXTS * n * sizeof(double)), "layer %d", l);
        CHECK(!n || !memcmp(back.layer[l].hist_gate, s.layer[l].hist_gate, n * KIT_STATS_BINS * sizeof(uint32_t)),
              "layer %d", l);
        CHECK(back.layer[l].sum_cosine == s.layer[l].sum_cosine && back.layer[l].n_cosine == s.layer[l].n_cosine,
              "layer %d", l);
        for (int k = 0; k < KIT_STATS_N_INPUTS; k++)
            CHECK(!s.layer[l].n_input[k] || !memcmp(back.layer[l].input_square[k], s.layer[l].input_square[k],
                                                    (size_t)s.layer[l].n_input[k] * sizeof(double)),
                  "layer %d, %s", l, kit_stats_input_names[k]);
    }
    CHECK(write_file(&back, test_file("b.h5")) && same_files(test_file("a.h5"), test_file("b.h5")),
          "what is read writes the same bytes");
    CHECK(kit_stats_is(test_file("a.h5")) && !kit_stats_is("/dev/null"));
    kit_stats_release(&s);
    kit_stats_release(&back);
}

static void addition(void) {
    kit_stats whole, a, b;
    dw_err err = {0};
    REQUIRE(make(&whole, 0, TEXTS) && make(&a, 0, 1) && make(&b, 1, TEXTS - 1));
    const uint32_t hist_a = a.layer[0].hist_a[77], hist_b = b.layer[0].hist_a[77];
    const uint64_t input_a = a.layer[1].input_hist[1][7], input_b = b.layer[1].input_hist[1][7];
    REQUIRE(!kit_stats_add(&a, &b, &err), "%s", err.text);
    CHECK(a.n_text == TEXTS && kit_stats_n_tokens(&a) == kit_stats_n_tokens(&whole));
    for (int l = 0; l < LAYERS; l++) {
        const kit_stats_layer *x = &a.layer[l], *y = &whole.layer[l];
        CHECK(!n_ff[l] || !memcmp(x->sum_abs, y->sum_abs, TEXTS * (size_t)n_ff[l] * sizeof(double)), "layer %d", l);
        CHECK(!n_ff[l] || !memcmp(x->max_abs, y->max_abs, TEXTS * (size_t)n_ff[l] * sizeof(float)), "layer %d", l);
        CHECK(x->sum_cosine == y->sum_cosine, "layer %d", l);
        for (int k = 0; k < KIT_STATS_N_INPUTS; k++)
            CHECK(!x->n_input[k] ||
                      !memcmp(x->input_square[k], y->input_square[k], (size_t)x->n_input[k] * sizeof(double)),
                  "layer %d: %s", l, kit_stats_input_names[k]);
    }
    CHECK(!memcmp(a.output_square, whole.output_square, E * sizeof(double)));
    CHECK(a.layer[0].hist_a[77] == hist_a + hist_b && a.layer[1].input_hist[1][7] == input_a + input_b);
    kit_stats_release(&whole), kit_stats_release(&a), kit_stats_release(&b);
}

static void other_model(kit_stats *s) { s->model_sha256[0] = 'b'; }
static void other_context(kit_stats *s) { s->n_ctx = 256; }
static void other_skip(kit_stats *s) { s->skip = 0; }
static void other_sampling(kit_stats *s) { s->hist_every = 1; }
static void many_more(kit_stats *s) { s->text[0].n_windows = INT32_MAX - 10; }
static void same_text(kit_stats *s) { memset(s->text[0].sha256, '0', 64); }
static void same_text_partly(kit_stats *s) { same_text(s), s->text[0].first_window = 6; }

static void bad_addition(void) {
    static const struct {
        void (*change)(kit_stats *);
        const char *words;
    } cases[] = {{other_model, "two models"},      {other_context, "with -c"},    {other_skip, "--skip"},
                 {other_sampling, "--hist-every"}, {many_more, "windows cannot"}, {same_text, "are in both"},
                 {same_text_partly, "6 to 11"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kit_stats a, b;
        dw_err err = {0};
        REQUIRE(make(&a, 0, 2) && make(&b, 2, 2));
        cases[i].change(&b);
        CHECK(kit_stats_add(&a, &b, &err) == -1, "case %zu", i);
        check_sentence(&err, cases[i].words, cases[i].words);
        CHECK(a.n_text == 2);
        kit_stats_release(&a), kit_stats_release(&b);
    }
    kit_stats a, b;
    dw_err err = {0};
    const int wider[LAYERS] = {161, 0, 33};
    REQUIRE(make(&a, 0, 1) && !kit_stats_init(&b, LAYERS, E, wider, n_mix, 1, &err));
    set_header(&b);
    CHECK(kit_stats_add(&a, &b, &err) == -1 && strstr(err.text, "widths"), "%s", err.text);
    kit_stats_release(&a), kit_stats_release(&b);
}

/* One text of many shares a window with one of as many others. */
static void many_texts_compared(void) {
    enum { N = 60000, SHARED = 777 };
    kit_stats a, b;
    dw_err err = {0};
    REQUIRE(make(&a, 0, 1) && make(&b, 0, 1));
    kit_stats_text *own[2] = {a.text, b.text}, *many = calloc(2 * N, sizeof *many);
    REQUIRE(many);
    for (int i = 0; i < 2 * N; i++) {
        snprintf(many[i].name, sizeof many[i].name, "%d.txt", i);
        snprintf(many[i].sha256, sizeof many[i].sha256, "%064x", i / 4);
        many[i].first_window = 1 + 10 * (i % 4); // four texts of a file
        many[i].n_windows = 10;
        many[i].n_tokens = 1;
    }
    a.text = many, b.text = many + N, a.n_text = b.n_text = N;
    const double begin = (double)clock() / CLOCKS_PER_SEC;
    CHECK(!kit_stats_can_add(&a, &b, &err), "%s", err.text);
    memcpy(many[N + SHARED].sha256, many[SHARED].sha256, sizeof many->sha256);
    many[N + SHARED].first_window = many[SHARED].first_window + 9; // the last window, and some of the next text
    CHECK(kit_stats_can_add(&a, &b, &err) && strstr(err.text, "60777.txt"), "%s", err.text);
    const double seconds = (double)clock() / CLOCKS_PER_SEC - begin;
    CHECK(seconds < 5, "%.1f s for %d texts", seconds, N);
    a.text = own[0], b.text = own[1], a.n_text = b.n_text = 1;
    free(many);
    kit_stats_release(&a), kit_stats_release(&b);
}

/* Whatever their order, a text that covers others is seen behind them. */
static void covered_windows(void) {
    static const struct {
        int first, n;
        bool shared;
    } cases[] = {{1, 1, true},   {50, 1, true},  {100, 1, true},   {101, 5, false}, {105, 95, false},
                 {199, 1, false}, {199, 2, true}, {200, 1, true}, {201, 9, false}, {50, 0, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kit_stats a, b;
        dw_err err = {0};
        REQUIRE(make(&a, 0, 3) && make(&b, 3, 1));
        const int windows[][2] = {{200, 1}, {10, 5}, {1, 100}}; // of the texts of a
        for (int t = 0; t < 3; t++) {
            memset(a.text[t].sha256, 'e', 64);
            a.text[t].first_window = windows[t][0], a.text[t].n_windows = windows[t][1];
        }
        memset(b.text[0].sha256, 'e', 64);
        b.text[0].first_window = cases[i].first, b.text[0].n_windows = cases[i].n;
        CHECK(!kit_stats_can_add(&a, &b, &err) == !cases[i].shared, "%d windows from %d on: %s", cases[i].n,
              cases[i].first, err.text);
        kit_stats_release(&a), kit_stats_release(&b);
    }
}

/* ---- what is refused ------------------------------------------------------------------------------------------- */

static void check_read_fails(const char *path, const char *words, const char *what) {
    kit_stats s;
    dw_err err = {0};
    if (!CHECK(kit_stats_read(&s, path, &err) == -1, "%s", what)) kit_stats_release(&s);
    else check_sentence(&err, words, what);
}

static void bad_numbers(void) {
    const double values[] = {NAN, INFINITY, -1};
    const char *const says[] = {"NaN", "infinity", "negative"};
    for (int i = 0; i < 3; i++) {
        for (int where = 0; where < 5; where++) {
            kit_stats s;
            REQUIRE(make(&s, 0, 2));
            static const char *const names[] = {"layer/02/ffn/sum_square", "layer/00/ffn/max_abs",
                                                "layer/01/input/attn_mix/sum_square", "output/sum_square",
                                                "layer/00/ffn/sum_abs"};
            if (where == 0) s.layer[2].sum_square[40] = values[i];
            if (where == 1) s.layer[0].max_abs[319] = (float)values[i];
            if (where == 2) s.layer[1].text_square[KIT_STATS_ATTN_MIX][0] = values[i];
            if (where == 3) s.text_output_square[47] = values[i];
            if (where == 4) s.layer[0].sum_abs[3] = values[i];
            REQUIRE(write_file(&s, test_file("n.h5")));
            check_read_fails(test_file("n.h5"), says[i], names[where]);
            check_read_fails(test_file("n.h5"), names[where], names[where]);
            kit_stats_release(&s);
        }
    }
}

static void damaged(void) {
    kit_stats s;
    size_t size;
    REQUIRE(make(&s, 0, 1) && write_file(&s, test_file("d.h5")));
    kit_stats_release(&s);
    uint8_t *bytes = (uint8_t *)dw_read_file(test_file("d.h5"), 1 << 24, &size, NULL);
    REQUIRE(bytes);
    dw_rng rng;
    dw_rng_seed(&rng, 5);
    for (int i = 0; i < 60; i++) {
        const size_t n = i < 20 ? (size_t)i * 40 : (size_t)dw_rng_below(&rng, size);
        save(&(test_bytes){.data = bytes, .size = n}, test_file("t.h5"));
        check_read_fails(test_file("t.h5"), n >= 513 ? "checksum" : "statistics", "truncated");
        uint8_t *at = &bytes[dw_rng_below(&rng, size)];
        const uint8_t bit = (uint8_t)(1u << dw_rng_below(&rng, 8));
        *at ^= bit;
        save(&(test_bytes){.data = bytes, .size = size}, test_file("t.h5"));
        check_read_fails(test_file("t.h5"), "statistics", "one bit");
        *at ^= bit;
    }
    save(&(test_bytes){.data = bytes + 512, .size = size - 512}, test_file("t.h5"));
    check_read_fails(test_file("t.h5"), "no checksum", "HDF5 without the block in front");
    free(bytes);
    check_read_fails(test_file("absent.h5"), "cannot open", "an absent file");
}

/* Changes by the HDF5 library, after which the checksum is put right. */
static void without_set(hid_t f) { H5Ldelete(f, "layer/02/ffn/sum_abs", H5P_DEFAULT); }
static void without_count(hid_t f) { H5Ldelete(f, "layer/01/ffn/count", H5P_DEFAULT); }
static void without_layer(hid_t f) { H5Ldelete(f, "layer/01", H5P_DEFAULT); }
static void without_texts(hid_t f) { H5Ldelete(f, "texts", H5P_DEFAULT); }
static void without_output(hid_t f) { H5Ldelete(f, "output", H5P_DEFAULT); }
static void without_attribute(hid_t f) { H5Adelete(f, "n_ctx"); }
static void soft_link(hid_t f) {
    H5Ldelete(f, "layer/02/ffn/sum_abs", H5P_DEFAULT);
    H5Lcreate_soft("/layer/02/ffn/sum_a", f, "layer/02/ffn/sum_abs", H5P_DEFAULT, H5P_DEFAULT);
}
static void external_link(hid_t f) {
    H5Ldelete(f, "layer/02/ffn/sum_abs", H5P_DEFAULT);
    H5Lcreate_external("a.h5", "/layer/02/ffn/sum_abs", f, "layer/02/ffn/sum_abs", H5P_DEFAULT, H5P_DEFAULT);
}
static void group_for_set(hid_t f) {
    H5Ldelete(f, "layer/02/ffn/sum_abs", H5P_DEFAULT);
    H5Gclose(H5Gcreate2(f, "layer/02/ffn/sum_abs", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
}

static void put_set(hid_t f, const char *path, hid_t type, int rank, hsize_t rows, hsize_t cols, bool chunked) {
    const hsize_t dims[] = {rows, cols}, chunk[] = {2, 64};
    const hid_t space = H5Screate_simple(rank, dims, NULL), how = H5Pcreate(H5P_DATASET_CREATE);
    if (chunked) H5Pset_chunk(how, rank, chunk);
    H5Ldelete(f, path, H5P_DEFAULT);
    const hid_t set = H5Dcreate2(f, path, type, space, H5P_DEFAULT, how, H5P_DEFAULT);
    if (!chunked && rows * cols < 100000) {
        double *zeros = calloc(rows * cols, sizeof *zeros);
        H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros);
        free(zeros);
    }
    H5Dclose(set), H5Pclose(how), H5Sclose(space);
}

static void wrong_type(hid_t f) { put_set(f, "layer/02/ffn/sum_abs", H5T_IEEE_F32LE, 2, 2, 33, false); }
static void wrong_rank(hid_t f) { put_set(f, "layer/02/ffn/sum_abs", H5T_IEEE_F64LE, 1, 66, 1, false); }
static void wrong_rows(hid_t f) { put_set(f, "layer/02/ffn/sum_abs", H5T_IEEE_F64LE, 2, 3, 33, false); }
static void wrong_columns(hid_t f) { put_set(f, "layer/02/input/ffn_in/sum_square", H5T_IEEE_F64LE, 2, 2, 25, false); }
static void empty_chunks(hid_t f) { put_set(f, "layer/02/ffn/sum_square", H5T_IEEE_F64LE, 2, 2, 1 << 20, true); }
static void packed_sums(hid_t f) { // the sums of 64 KiB in a few bytes
    static const double zeros[2 * 4096];
    H5Ldelete(f, "layer/02/ffn/sum_square", H5P_DEFAULT);
    kit_h5_put(&(kit_h5_out){.file = f, .links = H5P_DEFAULT}, "layer/02/ffn/sum_square", H5T_IEEE_F64LE,
               H5T_NATIVE_DOUBLE, 2, 4096, true, zeros);
}
static void put_windows(hid_t f, int32_t n) {
    H5Ldelete(f, "texts/n_windows", H5P_DEFAULT);
    kit_h5_put(&(kit_h5_out){.file = f, .links = H5P_DEFAULT}, "texts/n_windows", H5T_STD_I32LE, H5T_NATIVE_INT32, 2, 0,
               false, (int32_t[]){n, n});
}
static void many_windows(hid_t f) { put_windows(f, 1 << 30); }
static void many_texts(hid_t f) { put_set(f, "texts/n_tokens", H5T_STD_U64LE, 1, 1 << 19, 1, true); }
static void more_tokens(hid_t f) { put_set(f, "texts/n_tokens", H5T_STD_U64LE, 1, 2, 1, false); }
static void put_number(hid_t f, const char *name, int32_t v) {
    const hid_t a = H5Aopen(f, name, H5P_DEFAULT);
    H5Awrite(a, H5T_NATIVE_INT32, &v);
    H5Aclose(a);
}
static void next_version(hid_t f) { put_number(f, "format_version", 2); }
static void no_layers(hid_t f) { put_number(f, "n_layer", 0); }
static void more_layers(hid_t f) { put_number(f, "n_layer", 500); }
static void other_width(hid_t f) { put_number(f, "n_embd", 25); }
static void every_zero(hid_t f) { put_number(f, "hist_every", 0); }

static const struct { const char *what, *words; void (*change)(hid_t); } changes[] = {
    {"a dataset is missing", "layer/02/ffn/sum_abs", without_set},
    {"a count is missing", "layer/01/ffn/count", without_count},
    {"a layer is missing", "layer/01", without_layer},
    {"texts are missing", "texts", without_texts},
    {"the output is missing", "output", without_output},
    {"an attribute is missing", "n_ctx", without_attribute},
    {"a soft link", "missing", soft_link},
    {"an external link", "missing", external_link},
    {"a group for a dataset", "not a dataset", group_for_set},
    {"another type", "number type", wrong_type},
    {"another rank", "values", wrong_rank},
    {"more rows", "expected 2 x 33", wrong_rows},
    {"more columns", "expected 2 x 24", wrong_columns},
    {"a large dataset without bytes", "stored", empty_chunks},
    {"sums that are packed", "packed", packed_sums},
    {"more windows than an int holds", "windows", many_windows},
    {"many texts without bytes", "stored", many_texts},
    {"counts above tokens", "more tokens", more_tokens},
    {"a newer version", "version is 2", next_version},
    {"no layers", "n_layer", no_layers},
    {"more layers than there are", "layer/03", more_layers},
    {"another embedding", "n_embd", other_width},
    {"histograms of every 0th position", "hist_every", every_zero}};

static void nothing(hid_t f) { (void)f; }

static void structure(void) {
    kit_stats s;
    REQUIRE(make(&s, 0, 2));
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        REQUIRE(write_file(&s, test_file("c.h5")));
        h5_change(test_file("c.h5"), magic, changes[i].change);
        check_read_fails(test_file("c.h5"), changes[i].words, changes[i].what);
        kit_stats opened; // shapes are checked before a layer is read
        CHECK(kit_stats_open(&opened, test_file("c.h5"), NULL) == -1, "%s", changes[i].what);
    }
    dw_err err = {0};
    REQUIRE(write_file(&s, test_file("c.h5")));
    h5_change(test_file("c.h5"), magic, nothing);
    kit_stats_release(&s);
    CHECK(!kit_stats_read(&s, test_file("c.h5"), &err), "%s", err.text);
    kit_stats_release(&s);
}

/* ---- pooled texts --------------------------------------------------------------------------------------------- */

/* Texts 0 .. n - 1 added one at a time, of which `apart` have rows of their own. */
static bool make_pooled(kit_stats *s, size_t n, size_t apart) {
    dw_err err = {0};
    if (!make(s, 0, 1)) return false;
    s->apart = apart;
    for (size_t t = 1; t < n; t++) {
        kit_stats one;
        if (!make(&one, t, 1) || !CHECK(!kit_stats_add(s, &one, &err), "%s", err.text)) return false;
        kit_stats_release(&one);
    }
    return true;
}

static void pooled(void) {
    kit_stats s, all, back;
    dw_err err = {0};
    REQUIRE(make_pooled(&s, 6, 3) && make_pooled(&all, 6, 6) && write_file(&s, test_file("a.h5")));
    REQUIRE(!kit_stats_read(&back, test_file("a.h5"), &err), "%s", err.text);
    CHECK(back.n_text == 6 && back.n_row == 4);
    for (size_t t = 0; t < 6; t++) CHECK(back.text[t].row == (t < 3 ? t : 3), "text %zu", t);
    for (int l = 0; l < LAYERS; l++) {
        const size_t n = (size_t)n_ff[l];
        CHECK(!n || !memcmp(back.layer[l].sum_a, all.layer[l].sum_a, 3 * n * sizeof(double)), "layer %d: texts apart",
              l);
        for (size_t j = 0; j < n; j++) {
            const double *a = all.layer[l].sum_a;
            const float *m = all.layer[l].max_abs;
            const double sum = a[3 * n + j] + a[4 * n + j] + a[5 * n + j];
            if (!CHECK(back.layer[l].sum_a[3 * n + j] == sum &&
                           back.layer[l].max_abs[3 * n + j] == fmaxf(fmaxf(m[3 * n + j], m[4 * n + j]), m[5 * n + j]),
                       "layer %d, neuron %zu", l, j))
                break;
        }
        CHECK(back.layer[l].n_cosine == all.layer[l].n_cosine, "layer %d", l);
    }
    CHECK(write_file(&back, test_file("b.h5")) && same_files(test_file("a.h5"), test_file("b.h5")),
          "what is read writes the same bytes");
    kit_stats_release(&s), kit_stats_release(&all), kit_stats_release(&back);
}

static void put_rows(hid_t f, const int32_t *row) {
    H5Ldelete(f, "texts/row", H5P_DEFAULT);
    kit_h5_put(&(kit_h5_out){.file = f, .links = H5P_DEFAULT}, "texts/row", H5T_STD_I32LE, H5T_NATIVE_INT32, 6, 0,
               false, row);
}
static void row_beyond(hid_t f) { put_rows(f, (int32_t[]){0, 1, 2, 3, 4, 3}); }
static void row_below(hid_t f) { put_rows(f, (int32_t[]){0, 1, 2, 3, -1, 3}); }
static void row_unused(hid_t f) { put_rows(f, (int32_t[]){0, 1, 2, 2, 2, 2}); }
static void row_lost(hid_t f) { H5Ldelete(f, "texts/row", H5P_DEFAULT); }

static void bad_rows(void) {
    static const struct {
        const char *words;
        void (*change)(hid_t);
    } cases[] = {{"has the row 4 of 4", row_beyond},
                 {"has the row -1 of 4", row_below},
                 {"leaves row 3 without a text", row_unused},
                 {"expected one for each of 6 texts", row_lost}};
    kit_stats s;
    REQUIRE(make_pooled(&s, 6, 3));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        REQUIRE(write_file(&s, test_file("c.h5")));
        h5_change(test_file("c.h5"), magic, cases[i].change);
        check_read_fails(test_file("c.h5"), cases[i].words, cases[i].words);
    }
    kit_stats_release(&s);
}

/* ---- layers one at a time --------------------------------------------------------------------------------------- */

static void by_layers(void) {
    static const int order[] = {2, 0, 0, 1, 2};
    kit_stats whole, open;
    dw_err err = {0};
    REQUIRE(make(&whole, 0, TEXTS) && write_file(&whole, test_file("a.h5")) &&
                !kit_stats_open(&open, test_file("a.h5"), &err),
            "%s", err.text);
    CHECK(open.layer[1].sum_cosine == whole.layer[1].sum_cosine && open.layer[1].n_cosine == whole.layer[1].n_cosine &&
          open.text_output_square[5] == whole.text_output_square[5]);
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        const kit_stats_layer *a = &open.layer[order[i]], *b = &whole.layer[order[i]];
        REQUIRE(!kit_stats_need_layer(&open, order[i], &err), "%s", err.text);
        CHECK(!a->n_ff || !memcmp(a->sum_abs, b->sum_abs, TEXTS * (size_t)a->n_ff * sizeof(double)), "layer %d",
              order[i]);
        for (int k = 0; k < KIT_STATS_N_INPUTS; k++)
            CHECK(!a->n_input[k] ||
                      !memcmp(a->input_square[k], b->input_square[k], (size_t)a->n_input[k] * sizeof(double)),
                  "layer %d, input %d", order[i], k);
        for (int l = 0; l < LAYERS; l++)
            CHECK(l == order[i] || (!open.layer[l].sum_a && !open.layer[l].input_square[0]), "layer %d stays in memory",
                  l);
    }
    kit_stats_release(&whole), kit_stats_release(&open);
}

/* A layer's numbers are checked when it is read. */
static void late_damage(void) {
    kit_stats s;
    dw_err err = {0};
    REQUIRE(make(&s, 0, 2));
    s.layer[2].sum_abs[3] = NAN;
    REQUIRE(write_file(&s, test_file("n.h5")));
    kit_stats_release(&s);
    REQUIRE(!kit_stats_open(&s, test_file("n.h5"), &err), "%s", err.text);
    CHECK(!kit_stats_need_layer(&s, 0, &err) && kit_stats_need_layer(&s, 2, &err) == -1);
    check_sentence(&err, "n.h5': 'layer/02/ffn/sum_abs' holds NaN", "NaN in layer 2");
    kit_stats_release(&s);
}

/* ---- notes in the file ------------------------------------------------------------------------------------------- */

static int n_sets, n_notes;

static bool has_text(hid_t set, const char *name) {
    const hid_t a = H5Aexists(set, name) > 0 ? H5Aopen(set, name, H5P_DEFAULT) : -1, type = kit_h5_string_type();
    char *text = NULL;
    const bool ok = a >= 0 && H5Aread(a, type, &text) >= 0 && text && *text;
    if (text) H5free_memory(text);
    if (a >= 0) H5Aclose(a);
    H5Tclose(type);
    return ok;
}

static herr_t look_at_notes(hid_t f, const char *name, const H5L_info_t *info, void *ctx) {
    (void)info, (void)ctx;
    const hid_t set = strncmp(name, "texts", 5) ? H5Oopen(f, name, H5P_DEFAULT) : -1;
    if (set >= 0 && H5Iget_type(set) == H5I_DATASET) {
        n_sets++;
        n_notes += has_text(set, "meaning") && has_text(set, "unit");
        if (!has_text(set, "meaning") || !has_text(set, "unit")) printf("%s has no meaning or unit\n", name);
    }
    if (set >= 0) H5Oclose(set);
    return 0;
}

static void notes(void) {
    kit_stats s;
    REQUIRE(make(&s, 0, 2) && !kit_stats_add_gradients(&s, NULL) && write_file(&s, test_file("u.h5")));
    kit_stats_release(&s);
    const hid_t f = H5Fopen(test_file("u.h5"), H5F_ACC_RDONLY, H5P_DEFAULT);
    REQUIRE(f >= 0);
    H5Lvisit(f, H5_INDEX_NAME, H5_ITER_INC, look_at_notes, NULL);
    CHECK(n_sets > 30 && n_notes == n_sets, "%d of %d datasets have a meaning and a unit", n_notes, n_sets);
    double edge[KIT_STATS_BINS] = {0};
    const hid_t a = H5Aopen(f, "bin_lower_edges", H5P_DEFAULT), space = a < 0 ? -1 : H5Aget_space(a);
    REQUIRE(a >= 0 && H5Sget_simple_extent_npoints(space) == KIT_STATS_BINS &&
            H5Aread(a, H5T_NATIVE_DOUBLE, edge) >= 0);
    for (int b = 0; b < KIT_STATS_BINS; b++)
        CHECK(edge[b] == (b ? exp2((b - 40) / 2.0) : 0) || fabs(edge[b] / exp2((b - 40) / 2.0) - 1) < 1e-7,
              "bin %d begins at %g", b, edge[b]);
    H5Sclose(space), H5Aclose(a), H5Fclose(f);
}

/* ---- hostile files ---------------------------------------------------------------------------------------------- */

typedef struct outcome {
    int status;          // of wait(): 0 the file was read, 256 it was refused
    double seconds;      // of CPU time
    size_t peak_bytes;   // of memory
    dw_err err;
} outcome;

/* Reads a file in a process of its own, so that its memory is known. */
static outcome read_apart(const char *path) {
    outcome o = {0};
    struct rusage use = {0};
    int end[2];
    if (pipe(end)) return o;
    const pid_t pid = fork();
    if (!pid) {
        kit_stats s;
        const int rc = kit_stats_read(&s, path, &o.err);
        _exit(write(end[1], &o.err, sizeof o.err) != sizeof o.err || rc);
    }
    close(end[1]);
    if (read(end[0], &o.err, sizeof o.err) != sizeof o.err) snprintf(o.err.text, sizeof o.err.text, "nothing");
    close(end[0]);
    wait4(pid, &o.status, 0, &use);
    o.peak_bytes = (size_t)use.ru_maxrss * 1024;
    o.seconds = (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
                1e-6 * (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
    return o;
}

/* Statistics of a shape, otherwise empty. */
static bool write_shape(const char *path, int n_embd, int width, size_t n_text) {
    kit_stats s;
    dw_err err = {0};
    if (!CHECK(!kit_stats_init(&s, 1, n_embd, &width, &width, n_text, &err), "%s", err.text)) return false;
    set_header(&s);
    for (size_t t = 0; t < n_text; t++) {
        memset(s.text[t].sha256, 'a', 64);
        s.text[t].first_window = 1;
        s.text[t].n_tokens = 1;
    }
    s.text[0].blocks = calloc(60001, 1);
    memset(s.text[0].blocks, 'a', 60000);
    const bool ok = write_file(&s, path);
    kit_stats_release(&s);
    return ok;
}

static void link_layers(hid_t f) {
    put_number(f, "n_layer", 256);
    for (int l = 1; l < 256; l++) {
        char path[32];
        snprintf(path, sizeof path, "layer/%02d", l);
        H5Lcreate_hard(f, "layer/00", f, path, H5P_DEFAULT, H5P_DEFAULT);
    }
}

static bool layers_of_one(const char *path) {
    if (!write_shape(path, 64, 4096, 1)) return false;
    h5_change(path, magic, link_layers);
    return true;
}

/* All texts name the string of the first one. */
static bool strings_of_one(const char *path) {
    enum { N = 20000 };
    if (!write_shape(path, 1, 0, N)) return false;
    const hid_t f = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT), set = H5Dopen2(f, "texts/blocks", H5P_DEFAULT);
    const haddr_t at = H5Dget_offset(set);
    H5Dclose(set), H5Fclose(f);
    size_t n;
    uint8_t *bytes = h5_bytes(path, &n);
    for (size_t t = 1; t < N; t++) memcpy(bytes + at + 16 * t, bytes + at, 16);
    h5_seal(path, magic, bytes, n);
    free(bytes);
    return true;
}

/* The rows of a histogram are few, but may become many, so that the library accepts a chunk of 64 MiB. */
static void put_chunk(hid_t f) {
    const hsize_t dims[] = {256, KIT_STATS_BINS}, most[] = {H5S_UNLIMITED, KIT_STATS_BINS},
                  chunk[] = {1 << 18, KIT_STATS_BINS};
    const hid_t space = H5Screate_simple(2, dims, most), how = H5Pcreate(H5P_DATASET_CREATE);
    static const uint32_t zeros[256 * KIT_STATS_BINS];
    H5Pset_chunk(how, 2, chunk);
    H5Pset_deflate(how, 1);
    H5Ldelete(f, "layer/00/ffn/hist_a", H5P_DEFAULT);
    const hid_t set = H5Dcreate2(f, "layer/00/ffn/hist_a", H5T_STD_U32LE, space, H5P_DEFAULT, how, H5P_DEFAULT);
    H5Dwrite(set, H5T_NATIVE_UINT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros);
    H5Dclose(set), H5Pclose(how), H5Sclose(space);
}

static bool one_chunk(const char *path) {
    if (!write_shape(path, 64, 256, 1)) return false;
    h5_change(path, magic, put_chunk);
    return true;
}

static bool string_number(const char *path) {
    if (!write_shape(path, 64, 256, 1)) return false;
    h5_damage_heap(path, magic, H5_STRING_NUMBER, 1 << 27);
    return true;
}

static bool string_length(const char *path) {
    if (!write_shape(path, 64, 256, 1)) return false;
    h5_damage_heap(path, magic, H5_STRING_LENGTH, -16);
    return true;
}

/* The checksums are right. */
static void hostile(void) {
    static const struct { const char *what, *words; bool (*make)(const char *); } files[] = {
        {"256 layers are the same datasets", "share their bytes", layers_of_one},
        {"20,000 texts name the same string", "names share", strings_of_one},
        {"a chunk of 64 MiB", "stored in a way", one_chunk},
        {"a string that no heap has: the library crashes", "hostile", string_number},
        {"a string whose length wraps: the library loops", "hostile", string_length}};
    REQUIRE(write_shape(test_file("honest.h5"), 1, 0, 20000));
    const double honest = read_apart(test_file("honest.h5")).seconds; // a slow machine is no fault of the reader
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const char *path = test_file("h.h5");
        size_t size;
        REQUIRE(files[i].make(path));
        free(h5_bytes(path, &size));
        const outcome o = read_apart(path);
        CHECK(o.status == 256, "%s: status %d", files[i].what, o.status);
        check_sentence(&o.err, files[i].words, files[i].what);
        CHECK(o.seconds < fmax(2, 1.5 * honest) || KIT_H5_SHADOW, "%s: %.1f s, an honest file of as many texts %.1f s",
              files[i].what, o.seconds, honest);
        CHECK(o.peak_bytes <= size + (64 << 20) || KIT_H5_SHADOW, "%s: %zu bytes of memory for a file of %zu",
              files[i].what, o.peak_bytes, size);
        CHECK(test_run("deadwood-inspect %s", path) == 1, "%s", files[i].what);
        CHECK(strcspn(test_run_output(), "\n") + 1 == strlen(test_run_output()), "%s: one line: %s", files[i].what,
              test_run_output());
    }
}

static void one_bin_more(hid_t f) {
    uint32_t hist[160 * KIT_STATS_BINS] = {[77] = 768 + 769 + 1};
    H5Ldelete(f, "layer/00/ffn/hist_a", H5P_DEFAULT);
    kit_h5_put(&(kit_h5_out){.file = f, .links = H5P_DEFAULT}, "layer/00/ffn/hist_a", H5T_STD_U32LE, H5T_NATIVE_UINT32,
               160, KIT_STATS_BINS, true, hist);
}
static void one_input_more(hid_t f) {
    uint64_t hist[KIT_STATS_BINS] = {[7] = (768 + 769) * 40 + 1};
    H5Ldelete(f, "layer/01/input/attn_mix/hist", H5P_DEFAULT);
    kit_h5_put(&(kit_h5_out){.file = f, .links = H5P_DEFAULT}, "layer/01/input/attn_mix/hist", H5T_STD_U64LE,
               H5T_NATIVE_UINT64, KIT_STATS_BINS, 0, false, hist);
}

static void wrapping_counts(void) {
    static const struct {
        const char *words;
        void (*change)(hid_t);
    } cases[] = {{"'layer/00/ffn/hist_a' holds counts of more tokens", one_bin_more},
                 {"'layer/01/input/attn_mix/hist' holds counts of more tokens", one_input_more}};
    kit_stats s;
    REQUIRE(make(&s, 0, 2));
    for (size_t i = 0; i < 2; i++) {
        REQUIRE(write_file(&s, test_file("c.h5")));
        h5_change(test_file("c.h5"), magic, cases[i].change);
        check_read_fails(test_file("c.h5"), cases[i].words, cases[i].words);
    }
    kit_stats_release(&s);
}

/* ---- Python ----------------------------------------------------------------------------------------------------- */

/* Checks the layout that stats.h promises, and prints sums that C adds up too. */
static const char script[] =
    "import h5py, sys\n"
    "f = h5py.File(sys.argv[1], 'r')\n"
    "assert f.attrs['format_version'] == 1 and f.attrs['model_arch'] == 'deci', dict(f.attrs)\n"
    "assert abs(f.attrs['bin_lower_edges'][42] - 2) < 1e-9 and 'a^2' in f['layer/00/ffn/sum_square'].attrs['meaning']\n"
    "assert f['texts/name'][1].decode() == 't\\u00e4xt-1.txt' and list(f['texts/n_tokens']) == [768, 769, 770, 771]\n"
    "assert f['layer/00/ffn/sum_a'].shape == (4, 160) and f['layer/02/ffn/hist_group_32'].shape == (2, 64)\n"
    "assert f['layer/00/input/ffn_neuron/sum_square'] == f['layer/00/ffn/sum_square']\n"
    "assert 'attn_in' not in f['layer/02/input'] and 'sum_a' not in f['layer/01/ffn']\n"
    "print('%.17g %.17g %d %.9g %.17g' % (f['layer/00/ffn/sum_a'][3, 159], f['layer/01/input/attn_mix/sum_square'][2, "
    "39],\n"
    "      f['layer/02/ffn/hist_gate'][:].sum(), f['layer/00/ffn/max_abs'][1, 7], f['output/sum_square'][3, 23]))\n";

static void python(void) {
    kit_stats s;
    const char *python3 = "/usr/bin/python3";
    if (access(python3, X_OK)) python3 = "python3";
    if (test_run("%s -c 'import h5py'", python3)) SKIP("python3 has no h5py (Debian: python3-h5py)");
    REQUIRE(make(&s, 0, TEXTS) && write_file(&s, test_file("p.h5")));
    save(&(test_bytes){.data = (uint8_t *)(uintptr_t)script, .size = sizeof script - 1}, test_file("p.py"));
    REQUIRE(!test_run("%s %s %s", python3, test_file("p.py"), test_file("p.h5")), "%s", test_run_output());
    uint64_t hist = 0;
    for (int i = 0; i < 33 * KIT_STATS_BINS; i++) hist += s.layer[2].hist_gate[i];
    double a, mix, output;
    float max;
    unsigned long long sum;
    CHECK(sscanf(test_run_output(), "%lf %lf %llu %f %lf", &a, &mix, &sum, &max, &output) == 5 &&
              a == s.layer[0].sum_a[3 * 160 + 159] && mix == s.layer[1].text_square[KIT_STATS_ATTN_MIX][2 * 40 + 39] &&
              sum == hist && max == s.layer[0].max_abs[160 + 7] && output == s.text_output_square[3 * E + 23],
          "%s", test_run_output());
    kit_stats_release(&s);
}

/* ---- gradients ----------------------------------------------------------------------------------------------- */

/* The same statistics, with sums of gradients. */
static bool make_with_gradients(kit_stats *s, size_t first, size_t n) {
    dw_err err = {0};
    dw_rng rng;
    if (!make(s, first, n) || !CHECK(!kit_stats_add_gradients(s, &err), "%s", err.text)) return false;
    for (size_t t = 0; t < n; t++)
        for (int l = 0; l < LAYERS; l++) {
            const size_t width = (size_t)s->layer[l].n_ff;
            dw_rng_seed(&rng, 700 + first + t);
            if (width) random_squares(s->layer[l].sum_taylor + t * width, width, &rng);
            if (width) random_squares(s->layer[l].sum_fisher + t * width, width, &rng);
        }
    return true;
}

static void without_fisher(hid_t f) { H5Ldelete(f, "layer/02/ffn/sum_fisher", H5P_DEFAULT); }
static void without_taylor(hid_t f) { H5Ldelete(f, "layer/02/ffn/sum_taylor", H5P_DEFAULT); }
static void narrow_taylor(hid_t f) { put_set(f, "layer/02/ffn/sum_taylor", H5T_IEEE_F64LE, 2, 2, 32, false); }
static void float_fisher(hid_t f) { put_set(f, "layer/02/ffn/sum_fisher", H5T_IEEE_F32LE, 2, 2, 33, false); }

/* What is wrong with a file's gradients is told by name. */
static void bad_gradients(void) {
    const struct {
        void (*change)(hid_t f);
        const char *words;
    } rows[] = {{without_fisher, "'layer/02/ffn/sum_fisher' is missing"},
                {without_taylor, "'layer/02/ffn/sum_taylor' is missing"},
                {narrow_taylor, "'layer/02/ffn/sum_taylor' has 2 x 32 values"},
                {float_fisher, "layer/02/ffn/sum_fisher"}};
    const char *path = test_file("bad-gradients.h5");
    kit_stats s;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        REQUIRE(make_with_gradients(&s, 0, 2) && write_file(&s, path));
        kit_stats_release(&s);
        h5_change(path, "deadwood stats 1\n", rows[i].change);
        check_read_fails(path, rows[i].words, rows[i].words);
    }
    REQUIRE(make_with_gradients(&s, 0, 2));
    s.layer[0].sum_taylor[3] = -1;
    REQUIRE(write_file(&s, path));
    check_read_fails(path, "'layer/00/ffn/sum_taylor' holds a negative sum", "a negative sum");
    s.layer[0].sum_taylor[3] = 1, s.layer[0].sum_fisher[5] = (double)INFINITY;
    REQUIRE(write_file(&s, path));
    check_read_fails(path, "'layer/00/ffn/sum_fisher' holds infinity", "infinity");
    kit_stats_release(&s);
}

static void gradients(void) {
    kit_stats s, back, more, none;
    dw_err err = {0};
    const char *path = test_file("gradients.h5");
    REQUIRE(make_with_gradients(&s, 0, 2) && write_file(&s, path));
    REQUIRE(!kit_stats_read(&back, path, &err), "%s", err.text);
    CHECK(back.has_gradients && kit_stats_bytes(&back, 2) == kit_stats_bytes(&s, 2));
    REQUIRE(write_file(&back, test_file("gradients2.h5")) && same_files(path, test_file("gradients2.h5")));
    REQUIRE(make_with_gradients(&more, 2, 1) && make(&none, 2, 1));
    CHECK(kit_stats_add(&back, &none, &err));
    check_sentence(&err, "with gradients cannot be added to others without", "gradients and none");
    CHECK(kit_stats_can_add(&none, &back, &err) && kit_stats_check_gradients(&none, "a thing", &err) &&
          !kit_stats_check_gradients(&back, "a thing", &err));
    err = (dw_err){0};
    REQUIRE(!kit_stats_add(&back, &more, &err), "%s", err.text);
    for (int l = 0; l < LAYERS; l++) {
        const size_t n = (size_t)back.layer[l].n_ff;
        if (!n) continue;
        CHECK(!memcmp(back.layer[l].sum_taylor, s.layer[l].sum_taylor, 2 * n * 8) &&
                  !memcmp(back.layer[l].sum_taylor + 2 * n, more.layer[l].sum_taylor, n * 8) &&
                  !memcmp(back.layer[l].sum_fisher + 2 * n, more.layer[l].sum_fisher, n * 8), "layer %d", l);
    }
    kit_stats_release(&s), kit_stats_release(&back), kit_stats_release(&more), kit_stats_release(&none);
}

/* As many Gram matrices as the head lists, no more and no fewer. */
static void gram_counts(void) {
    kit_gram_matrix matrix = {.n = 2};
    const kit_gram head = {.n_matrix = 1, .matrix = &matrix};
    const double sum[] = {1, 2, 3};
    const char *path = test_file("counts.gram");
    dw_err err = {0}, many = {0}, few = {0};
    kit_gram_out *o = kit_gram_begin(&head, path, &err);
    REQUIRE(o, "%s", err.text);
    CHECK(kit_gram_commit(o, &few) && strstr(few.text, "0 of 1 Gram matrices"), "%s", few.text);
    CHECK(!kit_gram_put(o, sum, &err), "%s", err.text);
    CHECK(kit_gram_put(o, sum, &many) && strstr(many.text, "too many"), "%s", many.text);
    CHECK(!kit_gram_commit(o, &err), "%s", err.text);
    kit_gram_out_free(o);
}

static const test_case cases[] = {
    {"bins of histograms are half octaves", bins},
    {"quantiles of histograms", quantiles},
    {"statistics are read as they were written, byte for byte", round_trip},
    {"statistics of two halves add up to those of the whole, bit for bit", addition},
    {"statistics that do not belong together are not added", bad_addition},
    {"texts of one file share windows where their ranges meet", covered_windows},
    {"statistics of tens of thousands of texts are compared in seconds", many_texts_compared},
    {"statistics with NaN, infinity or negative sums are refused by name", bad_numbers},
    {"truncated and damaged statistics are refused in a sentence", damaged},
    {"statistics of another layout are refused in a sentence", structure},
    {"hostile statistics with a right checksum are refused in one line, within an honest file's time and memory",
     hostile},
    {"histograms that count more tokens than there are, so that sums could wrap, are refused by name", wrapping_counts},
    {"texts that share a row are read as they were written", pooled},
    {"texts with rows that do not exist are refused", bad_rows},
    {"layers are read one at a time and are those of the whole file", by_layers},
    {"a layer that is read late is checked like the others", late_damage},
    {"gradients are read as they were written, and add up only with gradients", gradients},
    {"gradients that are not whole are refused by name", bad_gradients},
    {"every dataset says its meaning and unit, and the file says the edges of bins", notes},
    {"statistics open in h5py with the layout of the header", python},
    {"a file of Gram matrices has as many as its head lists", gram_counts},
    {0}};
TEST_MAIN(cases)
