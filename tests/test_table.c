/* test_table.c - tables: what is shown of rows, how numbers look, plots, and tables that are damaged. */
#include "experiments/report/conditions.h"
#include "experiments/report/headings.h"
#include "experiments/report/plot.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- files ---------------------------------------------------------------------------------------------------- */

/* A table of lines whose cells are separated by spaces. */
static const char *write_table(const char *name, const char *text) {
    const char *path = test_file(name);
    FILE *f = fopen(path, "w");
    for (; *text; text++) fputc(*text == ' ' ? '\t' : *text, f);
    fclose(f);
    return path;
}

static const char *read_file(const char *path) {
    static char text[1 << 20];
    FILE *f = fopen(path, "r");
    text[f ? fread(text, 1, sizeof text - 1, f) : 0] = 0;
    if (f) fclose(f);
    return text;
}

/* What the program prints for these arguments. */
static const char *shown(const char *path, const char *arguments) {
    CHECK(!test_run("deadwood-table %s %s", path, arguments), "%s: %s", arguments, test_run_output());
    return test_run_output();
}

/* The line of the output that begins with "| NAME "; "" when there is none. */
static const char *line_of(const char *output, const char *name) {
    static char line[4][2048];
    static int k;
    char *to = line[k = (k + 1) % 4], begin[64];
    snprintf(begin, sizeof begin, "| %s ", name);
    const char *at = strstr(output, begin);
    snprintf(to, sizeof line[0], "%.*s", at ? (int)strcspn(at, "\n") : 0, at ? at : "");
    return to;
}

static const char results[] =
    "model text base metric rate group file_bytes ppl ppl_se ln_ratio ln_ratio_se kl_mean kl_se top1_agree top1_se "
    "decode_tok_s disturbed "
    "leak verdict dominated_by note windows n_ctx protocol machine threads backend kl_kind commit\n"
    "cut.gguf a.txt dense.gguf energy 0.25 64 20000000 40 1.2 0.9 0.05 0.8 0.02 0.5 0.01 200 cpu no - - - 3 512 llama "
    "m 2 cpu full c1\n"
    "cut.gguf * dense.gguf energy 0.25 64 20000000 42.123456 0.8 0.91 0.041 0.81 0.012 0.512 0.011 200 cpu no discard "
    "q4.gguf - 6 512 llama m 2 cpu full c1\n"
    "cut.gguf b.txt dense.gguf energy 0.25 64 20000000 44 1.2 0.9 0.05 0.8 0.02 0.5 0.01 200 cpu no - - - 3 512 llama "
    "m 2 cpu full c1\n"
    "dense.gguf a.txt dense.gguf - - - 24730000 16 0.4 0 0 0 0 1 0 100 no no - - - 3 512 llama m 2 cpu full c1\n"
    "dense.gguf b.txt dense.gguf - - - 24730000 18 0.5 0 0 0 0 1 0 100 no no - - - 3 512 llama m 2 cpu full c1\n"
    "dense.gguf * dense.gguf - - - 24730000 16.97056 0.32 0 0 0 0 1 0 100 no no - - - 6 512 llama m 2 cpu full c1\n"
    "flap.gguf * dense.gguf flap 0.25 64 20000000 1868.4 41.7 4.7 0.11 4.2 0.013 0.101 0.009 - - a - - - 6 512 llama m "
    "2 cpu top64 c2\n";

/* ---- what is shown -------------------------------------------------------------------------------------------- */

static void first_and_means(void) {
    const char *out = shown(write_table("rows.tsv", results), "");
    const char *dense = strstr(out, "| dense.gguf"), *cut = strstr(out, "| cut.gguf");
    CHECK(dense && cut && dense < cut, "%s", out);
    CHECK(!strstr(out, "a.txt |") && strstr(line_of(out, "cut.gguf"), "42.12 ± 0.80"), "%s", out);
    CHECK(strstr(out, "texts a.txt, b.txt (geometric mean)") || strstr(out, "a.txt, b.txt (geometric mean)"), "%s",
          out);
    out = shown(test_file("rows.tsv"), "--text a.txt");
    CHECK(strstr(line_of(out, "cut.gguf"), "40.0 ± 1.2") && !strstr(out, "flap"), "%s", out);
    out = shown(test_file("rows.tsv"), "--text all");
    CHECK(strstr(out, "geometric mean |") && strstr(out, "| a.txt"), "%s", out);
}

static void roundings(void) {
    const struct {
        double value, error;
        const char *text;
    } pairs[] = {{16.8463, 0.2138, "16.85 ± 0.21"},
                 {1868.4, 41.7, "1868 ± 42"},
                 {0.00031, 0.0000123, "0.000310 ± 0.000012"},
                 {647.7, 0, "647.7"},
                 {0, 0, "0"},
                 {-0.5, 0.25, "-0.50 ± 0.25"},
                 {16.8, NAN, "16.80"},
                 {NAN, 1, "-"},
                 {100, 0, "100"},
                 {1, 1e-9, "1.000000 ± 0.000000"},
                 {12345678, 1234, "12345678 ± 1234"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char text[EXP_NUMBER];
        exp_format_pair(text, pairs[i].value, pairs[i].error);
        CHECK(!strcmp(text, pairs[i].text), "'%s', expected '%s'", text, pairs[i].text);
    }
    CHECK(exp_decimals(7.42, 24.7) == 2 && exp_decimals(3640, 4294) == 0 && exp_decimals(0.001, 0.5) == 5 &&
          exp_decimals(0.001, 4294) == 2);
    for (double v = -1e300; v < 1e301; v += 1e299) {
        char text[EXP_NUMBER];
        exp_format_pair(text, v, fabs(v) / 3);
        CHECK(strlen(text) < EXP_NUMBER - 1, "%s", text);
    }
}

static void treatments_that_differ(void) {
    const char *out = shown(test_file("rows.tsv"), "");
    CHECK(strstr(out, "| metric") && !strstr(out, "| group") &&
              strstr(out, "All but the base: rate wanted 0.25; group 64."),
          "%s", out);
    CHECK(strstr(out, "|      MB |") || strstr(out, " MB |"), "%s", out);
    CHECK(strstr(line_of(out, "dense.gguf"), "24.7") && strstr(line_of(out, "cut.gguf"), "20.0"), "%s", out);
}

static void conditions_once(void) {
    const char *out = shown(test_file("rows.tsv"), "");
    const char *conditions = strstr(out, "Conditions: "), *differ = strstr(out, "Rows differ in: ");
    CHECK(conditions && strstr(conditions, "protocol llama") && strstr(conditions, "context 512") &&
              strstr(conditions, "machine m"),
          "%s", out);
    CHECK(differ && strstr(differ, "commit c1,"), "%s", out);
    out = shown(test_file("rows.tsv"), "--where commit=c1");
    CHECK(!strstr(out, "Rows differ"), "%s", out);
    out = shown(test_file("rows.tsv"), "--columns model,ppl,commit");
    CHECK(!strstr(out, "Rows differ in: commit") && strstr(out, "| c2"), "%s", out);
}

static void marks(void) {
    const char *out = shown(test_file("rows.tsv"), "");
    CHECK(strstr(line_of(out, "cut.gguf"), "200 ! |") && strstr(line_of(out, "dense.gguf"), "100 |"), "%s", out);
    CHECK(strstr(out, "! Something else used the machine"), "%s", out);
    CHECK(strstr(line_of(out, "cut.gguf"), "discard; dominated by q4.gguf |"), "%s", out);
    CHECK(strstr(line_of(out, "flap.gguf"), "| leak") && strstr(line_of(out, "flap.gguf"), "≥ 4.200 ± 0.013"), "%s",
          out);
    CHECK(strstr(out, "\ndominated by: ") && strstr(out, "that it is scored on: a\n") && !strstr(out, "\ncollapsed: "),
          "%s", out);
    out = shown(test_file("rows.tsv"), "--where model=dense.gguf");
    CHECK(!strstr(out, "verdict") && !strstr(out, "dominated by") && !strstr(out, "Something else") &&
              !strstr(out, "lower bound"),
          "%s", out);
}

static void long_cells(void) {
    char *text = malloc(20000), wanted[4000];
    memset(wanted, 'x', sizeof wanted);
    wanted[3000] = 0;
    snprintf(text, 20000, "a b\n%s 1\n", wanted);
    CHECK(strstr(shown(write_table("long.tsv", text), ""), wanted), "a cell of 3000 characters is not whole");
    strcpy(text, "a b\n");
    memset(text + 4, 'x', 10000);
    strcpy(text + 9000, " 1\n");
    CHECK(strstr(shown(write_table("long.tsv", text), ""), "xxx… |"), "a cell that was cut does not say so");
    free(text);
}

static void aligned(void) {
    const char *out = shown(test_file("rows.tsv"), "");
    int first = 0;
    for (const char *line = out; *line == '|'; line += strcspn(line, "\n") + 1) {
        int width = 0, bars = 0;
        for (const char *p = line; *p != '\n'; p++) width += (*p & 0xc0) != 0x80, bars += *p == '|';
        if (!first) first = width;
        CHECK(width == first, "%d characters, the first line has %d: %s", width, first, out);
        CHECK(bars == 10, "%d bars: %s", bars, out);
    }
    for (const char *line = strstr(out, "\n\n"); line && *line; line += strcspn(line, "\n") + 1)
        CHECK(strcspn(line, "\n") <= 120, "%s", line);
}

static void columns_and_ratios(void) {
    const char *out = shown(test_file("rows.tsv"), "--columns model,decode_tok_s,decode_tok_s/base,file_bytes/base");
    CHECK(strstr(line_of(out, "cut.gguf"), "200 ! |") && strstr(line_of(out, "cut.gguf"), " 2.00"), "%s", out);
    CHECK(strstr(line_of(out, "dense.gguf"), " 1.00"), "%s", out);
    CHECK(strstr(line_of(out, "cut.gguf"), " 0.809 |"), "%s", out);
    CHECK(strstr(line_of(out, "flap.gguf"), " - |"), "%s", out);
    CHECK(test_run("deadwood-table %s --columns model,pppl", test_file("rows.tsv")) == 1);
    CHECK(strstr(test_run_output(), "no column 'pppl' (did you mean 'ppl'?)"), "%s", test_run_output());
    CHECK(test_run("deadwood-table %s --columns model/base", test_file("rows.tsv")) == 1 &&
          strstr(test_run_output(), "have no ratio"));
}

/* Of two rows of the base that differ in one condition only, a row is divided by that which shares its condition. */
static void ratios_under_equal_conditions(void) {
    const char *conditions[] = {"protocol",  "n_ctx", "bos",       "window_range", "kv",
                                "precision", "depth", "sequences", "speed_test",   "machine"};
    for (size_t i = 0; i < sizeof conditions / sizeof *conditions; i++) {
        char text[500], arguments[100];
        snprintf(text, sizeof text,
                 "model text base ppl %s decode_tok_s\ndense - dense - 1 100\ndense - dense - 2 400\n"
                 "cut - dense - 1 200\ncut - dense - 2 200\ncut - dense - 3 200\n",
                 conditions[i]);
        snprintf(arguments, sizeof arguments, "--format tsv --columns model,%s,decode_tok_s/base", conditions[i]);
        const char *out = shown(write_table("same.tsv", text), arguments);
        CHECK(strstr(out, "dense\t1\t1\ndense\t2\t1\ncut\t1\t2\ncut\t2\t0.5\ncut\t3\t-\n"), "%s", out);
    }
}

/* What differs between rows of one model is a column, and what differs only between models stands under the table. */
static void one_model_twice(void) {
    const char *out = shown(write_table("twice.tsv", "model text base ppl n_ctx kv\n"
                                                     "dense a dense 10 128 f16\ndense a dense 9 256 f16\n"
                                                     "cut a dense 20 128 f32\ncut a dense 18 256 f32\n"),
                            "");
    CHECK(strstr(out, "| model | context |") && strstr(line_of(out, "cut"), "128"), "%s", out);
    CHECK(!strstr(out, "| KV cache") && strstr(out, "Rows differ in: KV cache f16, f32."), "%s", out);
}

/* Perplexities and sizes are the same whatever was timed beside them; the base may not have been timed at all. */
static void ratios_beside_speeds(void) {
    const char *path = write_table("beside.tsv", "model text base ppl file_bytes depth speed_test decode_tok_s\n"
                                                 "dense a dense 10 90 - - -\n"
                                                 "dense - dense - 90 0 tg64 100\n"
                                                 "dense - dense - 90 64 tg64@64 80\n"
                                                 "cut a dense 20 45 0 tg64 150\n"
                                                 "cut - dense - 45 64 tg64@64 120\n");
    const char *out = shown(path,
                            "--format tsv --where model=cut --columns ppl/base,file_bytes/base,decode_tok_s/base");
    CHECK(strstr(out, "\n2\t0.5\t-\n-\t0.5\t1.5\n"), "%s", out);
    out = shown(path, "--where model=cut text=a --columns model,decode_tok_s/base");
    CHECK(strstr(out, "is unknown: no row of the base dense has it under the same conditions."), "%s", out);
}

static void alternatives(void) {
    const char *path = test_file("rows.tsv");
    const char *out = shown(path, "--where metric=flap metric=energy");
    CHECK(strstr(out, "flap.gguf") && strstr(out, "cut.gguf") && !strstr(out, "| dense"), "%s", out);
    out = shown(path, "--where metric!=flap --where metric!=energy");
    CHECK(!strstr(out, "flap.gguf") && strstr(out, "| dense"), "%s", out);
    out = shown(path, "--where rate=0.250 --where ppl!=42.123456");
    CHECK(strstr(out, "flap.gguf") && !strstr(out, "42.12"), "numbers are compared as numbers: %s", out);
    CHECK(test_run("deadwood-table %s --where ppl", path) == 1 && strstr(test_run_output(), "is no COLUMN=VALUE"));
    CHECK(test_run("deadwood-table %s --where metric=none", path) == 1 &&
              strstr(test_run_output(), "none of 7 rows is left"),
          "%s", test_run_output());
}

static void sorted(void) {
    const char *path = write_table("sort.tsv",
                                   "model text base ppl n\nz * z 1 1\na * z - 2\nb * z 100 3\nc * z 20 4\nd * z 3 5\n");
    const char *orders[][2] = {
        {"--sort ppl", "zdcba"}, {"--sort ppl --reverse", "zbcda"}, {"--sort model --reverse", "zdcba"}, {"", "zabcd"}};
    for (size_t i = 0; i < 4; i++) {
        const char *at = strstr(shown(path, orders[i][0]), ":-");
        char order[8] = "";
        for (at = at ? strchr(at, '\n') : NULL; at && at[1] == '|'; at = strchr(at + 1, '\n'))
            strncat(order, at + 3, 1);
        CHECK(!strcmp(order, orders[i][1]), "%s gives %s", orders[i][0], order);
    }
}

static void joined(void) {
    const char *path = write_table(
        "seeds.tsv",
        "model text base metric seed rate ppl ppl_se file_bytes n_ctx\n"
        "d * d - - - 10 1 100 512\n"
        "r0 * d random 0 0.2 20 1 80 512\nr1 * d random 1 0.2 22 1 80 512\nr2 * d random 2 0.2 24 1 80 512\n"
        "s0 * d random 0 0.3 40 1 70 512\ns1 * d random 1 0.3 44 1 70 256\n");
    const char *out = shown(path, "--join seed");
    CHECK(strstr(line_of(out, "r0 and 2 more"), "22.0 ± 2.0") && strstr(line_of(out, "r0 and 2 more"), "mean of 3"),
          "%s", out);
    CHECK(strstr(line_of(out, "s0"), "40.0 ± 1.0") && strstr(line_of(out, "s1"), "44.0 ± 1.0"),
          "another context is no twin: %s", out);
    CHECK(strstr(out, "standard deviation"), "%s", out);
    CHECK(!strstr(shown(path, ""), "standard deviation"));
}

/* A verdict, its reason and the row that dominates are of single rows: a mean has them where all its rows do. */
static void joined_verdicts(void) {
    const char *path = write_table(
        "verdicts.tsv", "model text base metric seed rate ppl file_bytes dominated_by verdict note\n"
                        "d * d - - - 10 100 - keep -\n"
                        "a0 * d energy 0 0.2 11 80 - keep -\na1 * d energy 1 0.2 12 80 a0 discard worse-by-1\n"
                        "a2 * d energy 2 0.2 99 80 a0 discard worse-by-88\n"
                        "b0 * d energy 0 0.3 13 70 a0 discard wide\nb1 * d energy 1 0.3 13 70 a0 discard wide\n"
                        "c0 * d random 0 0.3 30 70 b0 control -\nc1 * d random 1 0.3 30 70 b1 control -\n"
                        "e0 * d random 0 0.4 30 60 - - -\ne1 * d random 1 0.4 300 60 - collapsed -\n");
    const char *out = shown(path, "--join seed");
    CHECK(strstr(line_of(out, "a0 and 2 more"), "| 1 keep, 2 discard "), "%s", out);
    CHECK(strstr(line_of(out, "b0 and 1 more"), "| discard (wide); dominated by a0 |"), "%s", out);
    CHECK(strstr(line_of(out, "c0 and 1 more"), "| control  "), "%s", out);
    CHECK(strstr(line_of(out, "e0 and 1 more"), "| 1 without, 1 collapsed ") && strstr(out, "\ncollapsed: "), "%s",
          out);
}

/* Training by minutes or with patience ends each seed elsewhere.  Seeds that come again were trained for several times
 * on purpose. */
static void joined_runs_of_any_length(void) {
    const char *path = write_table("lengths.tsv", "model text base metric seed ppl tokens_trained minutes_trained\n"
                                                  "a0 a d energy 0 20 1000 9.9\na1 a d energy 1 22 1200 10.1\n"
                                                  "b0 a d random 0 30 1000 -\nb1 a d random 1 32 1000 -\n"
                                                  "b2 a d random 0 10 2000 -\nb3 a d random 1 12 2000 -\n"
                                                  "c0 a d flap 0 40 1000 -\nc1 a d flap 0 50 2000 -\n"
                                                  "c2 a d flap 1 60 1100 -\n");
    const char *out = shown(path, "--join seed --format tsv --columns metric,ppl");
    CHECK(!strcmp(out, "metric\tppl\nenergy\t21\nrandom\t31\nrandom\t11\nflap\t40\nflap\t50\nflap\t60\n"), "%s", out);
}

/* Seeds 1 and 2 share what was scored, seed 3 does not; of seeds 4 and 5 it is unknown. */
static void joined_only_where_measured_alike(void) {
    const char *conditions[] = {"window_range", "text_sha256", "base_sha256", "depth", "sequences"};
    for (size_t i = 0; i < sizeof conditions / sizeof *conditions; i++) {
        char text[500];
        snprintf(text, sizeof text,
                 "model text base metric seed ppl %s\nr1 a d random 1 20 1\nr2 a d random 2 22 1\n"
                 "r3 a d random 3 90 2\nr4 a d random 4 50 -\nr5 a d random 5 52 -\n",
                 conditions[i]);
        const char *out = shown(write_table("alike.tsv", text), "--join seed --format tsv --columns metric,ppl");
        CHECK(!strcmp(out, "metric\tppl\nrandom\t21\nrandom\t90\nrandom\t51\n"), "%s: %s", conditions[i], out);
    }
}

/* A deviation between seeds is no error over windows: programs find it in a column of its own. */
static void joined_for_programs(void) {
    const char *path = write_table("errors.tsv",
                                   "model text base metric seed ppl ppl_se\n"
                                   "a d.txt d random 1 20 0.5\nb d.txt d random 2 24 0.5\nc d.txt d energy - 21 0.5\n");
    const char *out = shown(path, "--join seed --format tsv --columns metric,seed,ppl,ppl_se");
    CHECK(!strcmp(out, "metric\tseed\tppl\tppl_se\tppl_sd\nrandom\tmean of 2\t22\t-\t2.828427125\n"
                       "energy\t-\t21\t0.5\t-\n"),
          "%s", out);
}

/* Rows that differ in the text differ in its hash, too. */
static void joined_over_texts(void) {
    const char *path = write_table("texts.tsv", "model text text_sha256 base base_sha256 ppl\n"
                                                "cut a.txt a1 d d1 20\ncut b.txt b1 d d1 22\n");
    const char *out = shown(path, "--join text --format tsv --columns base,ppl");
    CHECK(!strcmp(out, "base\tppl\nd\t21\n"), "%s", out);
}

static const char of_hashes[] =
    "date model model_sha256 text text_sha256 base base_sha256 protocol n_ctx type types file_bytes ppl verdict note\n"
    "1 dense.gguf h0 a.txt aaaaaaaa1 dense.gguf h0 llama 512 BF16 - 90 10 - -\n"
    "1 dense.gguf h0 b.txt bbbbbbbb1 dense.gguf h0 llama 512 BF16 - 90 12 - -\n"
    "1 dense.gguf h0 * set1 dense.gguf h0 llama 512 BF16 - 90 11 keep -\n"
    "1 dense.gguf h9 a.txt cccccccc1 other.gguf h8 llama 512 BF16 - 95 19 - -\n"
    "1 cut.gguf h1 a.txt aaaaaaaa1 dense.gguf h0 llama 512 Q4_K_M Q4_K_9,_Q8_0_2_(fallback) 50 20 - -\n"
    "1 cut.gguf h1 * set1 dense.gguf h0 llama 512 Q4_K_M Q4_K_9,_Q8_0_2_(fallback) 50 21 keep -\n"
    "2 cut.gguf h1 * set1 dense.gguf h0 llama 512 Q4_K_M Q4_K_9,_Q8_0_2_(fallback) 50 21 keep -\n"
    "2 cut.gguf h1 a.txt cccccccc1 dense.gguf h0 llama 512 Q4_K_M Q4_K_9,_Q8_0_2_(fallback) 50 22 - -\n"
    "- bad.gguf - - - - - - - - - - - failed no-memory\n";

/* Rows of results are told apart by hash, and none goes without a count. */
static void told_by_hash(void) {
    char text[sizeof of_hashes];
    strcpy(text, of_hashes);
    const char *path = write_table("hashes.tsv", text), *out = shown(path, "--columns model,text,ppl,verdict");
    CHECK(strstr(out, "| bad.gguf") && strstr(out, "failed (no-memory)") && strstr(out, "failed: 1 of 4 rows"), "%s",
          out);
    CHECK(strstr(out, "Not shown: 4 rows of single texts (--text all)."), "%s", out);
    CHECK(strstr(out, "Not shown: 1 row measured again later"), "%s", out);
    CHECK(strstr(out, "a.txt (sha256 cccccccc)"), "of a model without a mean the single text is shown: %s", out);
    CHECK(strstr(out, "fallback: in 1 of 4 rows"), "%s", out);
    out = shown(path, "--columns model,text,ppl --text all");
    CHECK(strstr(out, "a.txt (sha256 aaaaaaaa)") && strstr(out, "a.txt (sha256 cccccccc)") && strstr(out, "| b.txt "),
          "%s", out);
    out = shown(path, "--columns model,ppl --text cccccccc");
    CHECK(strstr(out, "| cut.gguf") && strstr(out, "| dense.gguf | 19") && !strstr(out, "| 20"), "%s", out);
    dw_err err = {0};
    exp_rows r;
    exp_lines lines;
    REQUIRE(!exp_rows_read(&r, &path, 1, &err) && !exp_lines_choose(&lines, &r, &(exp_choice){.text = "all"}, &err),
            "%s", err.text);
    size_t n_dense = 0;
    for (size_t i = 0; i < lines.n; i++) n_dense += lines.line[i].is_dense;
    CHECK(n_dense == 3 && lines.line[0].is_dense, "the other dense.gguf is no base of these rows: %zu", n_dense);
    exp_lines_release(&lines);
    exp_rows_release(&r);
}

/* A mean stands for the single rows of its role, as long as it is shown itself. */
static void means_that_are_hidden(void) {
    const char *path = write_table("held-out.tsv", "model text base role ppl\n"
                                                   "cut a.txt d select 20\ncut b.txt d select 22\ncut * d select 21\n"
                                                   "cut c.txt d report 30\n");
    const char *other = write_table("other.tsv", "model text base role ppl\ngate a.txt d report 50\n"
                                                 "gate b.txt d report 52\ngate * d report 51\n");
    const char *out = shown(path, other);
    CHECK(strstr(line_of(out, "cut"), "30.0") && strstr(line_of(out, "gate"), "51.0"),
          "the mean of the texts of role select is no mean of the report: %s", out);
    CHECK(strstr(out, "Not shown: 2 rows of single texts") && strstr(out, "Not shown: 3 rows of the texts that"), "%s",
          out);
    out = shown(path, "--where role=select");
    CHECK(strstr(line_of(out, "cut"), "21.0") && strstr(out, "Not shown: 2 rows of single texts"), "%s", out);
    path = write_table("discarded.tsv", "model text base verdict ppl\n"
                                        "cut a.txt d - 20\ncut b.txt d - 22\ncut * d discard 21\ngate * d keep 51\n");
    out = shown(path, "--where verdict!=discard --columns model,text,ppl");
    CHECK(strstr(out, "| cut   | a.txt ") && strstr(out, "| cut   | b.txt ") && !strstr(out, "Not shown"),
          "a mean that --where leaves out hides nothing: %s", out);
}

/* The speeds of two machines are two measurements.  Of one machine's the last is shown, and it is said. */
static void speeds_of_machines(void) {
    const char *path = write_table("machines.tsv", "date machine model model_sha256 text ppl decode_tok_s\n"
                                                   "1 m1 cut h1 - - 100\n2 m2 cut h1 - - 30\n");
    const char *out = shown(path, "--format tsv --columns machine,decode_tok_s");
    CHECK(strstr(out, "m1\t100\nm2\t30\n"), "%s", out);
    CHECK(!strstr(shown(path, ""), "Not shown"), "%s", test_run_output());
    const char *again = write_table("machines-again.tsv", "date machine model model_sha256 text ppl decode_tok_s\n"
                                                          "3 m1 cut h1 - - 120\n");
    char arguments[1024];
    snprintf(arguments, sizeof arguments, "%s --columns machine,decode_tok_s", again);
    out = shown(path, arguments);
    CHECK(strstr(line_of(out, "m1"), "120") && strstr(line_of(out, "m2"), "30"), "%s", out);
    CHECK(strstr(out, "Not shown: 1 row measured again later; the last measurement is shown.\n"), "%s", out);
    path = write_table("same.tsv", "date machine model model_sha256 text ppl\n1 m1 cut h1 a 10\n2 m2 cut h1 a 10\n");
    out = shown(path, "");
    CHECK(strstr(out, "Not shown: 1 row measured again later with the same result.\n"),
          "a perplexity is the same on both machines: %s", out);
}

/* What score says of a table that it appends to agrees with what is shown of it. */
static void speeds_that_were_there(void) {
    const char *path = test_file("appended.tsv"), *machines[] = {"m1", "m2", "m1"};
    const size_t expected[] = {0, 0, 1};
    dw_err err = {0};
    for (int i = 0; i < 3; i++) {
        exp_result r = exp_result_unknown();
        size_t n_again;
        strcpy(r.machine, machines[i]), strcpy(r.model, "cut"), strcpy(r.model_sha256, "h1");
        r.decode_tok_s = 100 + i;
        REQUIRE(!exp_append_results(path, &r, 1, NULL, &n_again, &err), "%s", err.text);
        CHECK(n_again == expected[i], "row %d: %zu", i, n_again);
    }
}

static size_t n_outside; // of the last script

/* The script for a table; free(). */
static char *script_of(const char *path, const exp_axes *axes, dw_err *err) {
    exp_rows r;
    exp_lines lines;
    const exp_choice all = {0};
    if (!CHECK(!exp_rows_read(&r, &path, 1, err) && !exp_lines_choose(&lines, &r, &all, err), "%s", err->text))
        return NULL;
    const exp_sheet s = {.rows = &r, .lines = &lines};
    char *script = exp_plot_script(&s, axes, EXP_SVG, &n_outside, err);
    exp_lines_release(&lines);
    exp_rows_release(&r);
    return script;
}

static void variants(void) {
    FILE *f = fopen(test_file("sweep.tsv"), "w");
    fprintf(f, "model\ttext\tbase\tbase_ppl\tmetric\trate\tppl\tppl_se\tfile_bytes\tvariant\tverdict\n");
    for (int seed = 1; seed <= 3; seed++)
        fprintf(f, "r%d\t*\td\t11\trandom\t-\t%d\t1\t80\tmetric=random rate=0.2 seed=%d part=\'a b\' ppl=x\tcontrol\n",
                seed, 18 + 2 * seed, seed);
    fprintf(f, "e\t*\td\t11\tenergy\t0.2\t15\t1\t80\tmetric=energy rate=0.2 seed=1 "
               "part=c\tkeep\nq\t*\td\t11\t-\t-\t12\t1\t90\tword =\tkeep\n-\t*\td\t11\t-\t-\t12\t1\t90\t-\tkeep\n");
    fclose(f);
    const char *path = test_file("sweep.tsv");
    const char *out = shown(path, "--columns model,rate,part");
    CHECK(strstr(out, "| part |") && strstr(line_of(out, "r1"), "| a b ") && strstr(line_of(out, "r1"), " 0.2 |"), "%s",
          out);
    out = shown(path, "--join seed --where metric=random");
    CHECK(strstr(line_of(out, "random (mean of 3)"), "22.0 ± 2.0") && strstr(out, "control"), "%s", out);
    out = shown(path, "--where part=c");
    CHECK(strstr(line_of(out, "energy"), "15.0 ± 1.0") && !strstr(out, "random"), "%s", out);
    dw_err err = {0};
    char *script = script_of(path, &(exp_axes){.x = "file_bytes", .y = "ppl"}, &err);
    CHECK(script && strstr(script, "11 with lines lc rgb '#000000' dt 2 title 'dense'"),
          "without its row the dense model is known from base_ppl: %s", err.text);
    free(script);
}

/* ---- forms ---------------------------------------------------------------------------------------------------- */

static void tsv_and_csv(void) {
    const char *path = test_file("rows.tsv"), *tsv = test_file("out.tsv"), *again = test_file("again.tsv"),
               *csv = test_file("out.csv"), *out;
    CHECK(!test_run("deadwood-table %s -o %s", path, tsv), "%s", test_run_output());
    CHECK(strstr(read_file(tsv), "\tppl\tppl_se\t") && strstr(read_file(tsv), "\t42.123456\t0.8\t"), "%s",
          read_file(tsv));
    CHECK(!test_run("deadwood-table %s -o %s --columns \"$(head -n 1 %s | tr '\\t' ',' | sed 's/,[a-z0-9_]*_se//g')\"",
                    tsv, again, tsv),
          "%s", test_run_output());
    CHECK(!test_run("cmp %s %s", tsv, again), "%s", test_run_output());
    CHECK(!test_run("deadwood-table %s -o %s", tsv, again) && !test_run("cmp %s %s", tsv, again),
          "read again it is the same: %s", read_file(again));
    CHECK(!strncmp(shown(tsv, "--format tsv --columns ppl_se,model,ppl"), "model\tppl\tppl_se\n", 17), "%s",
          test_run_output());
    CHECK(strstr(read_file(tsv), "\tverdict\tkl_kind\tdisturbed\tleak\n") &&
              strstr(read_file(tsv), "\tdiscard\tfull\tcpu\tno\n") && strstr(read_file(tsv), "\t-\ttop64\t-\ta\n"),
          "bounds, disturbed speeds and leaks are columns: %s", read_file(tsv));
    out = shown(path, "--format csv --where model!=flap.gguf --where model!=cut.gguf");
    CHECK(!strstr(out, "kl_kind") && !strstr(out, "disturbed") && !strstr(out, "leak"), "where a row has one: %s", out);
    const char *odd = write_table("odd.tsv", "a b\n1,2 say\"no\"\n3 4\n");
    CHECK(!test_run("deadwood-table %s -o %s", odd, csv) &&
              !strcmp(read_file(csv), "a,b\n\"1,2\",\"say\"\"no\"\"\"\n3,4\n"),
          "%s", read_file(csv));
    CHECK(!test_run("deadwood-table %s -o %s", path, test_file("out.md")) &&
          !strncmp(read_file(test_file("out.md")), "| model", 7));
}

static void any_table(void) {
    const char *out = shown(
        write_table("speed.tsv", "# axpy\npath inactive ms\nlisted 0.5 3.25\nfused 0.5 2\nid|eal* 0.5 1.5\n"), "");
    CHECK(strstr(out, "| path ") && strstr(line_of(out, "listed"), "3.25 |") && strstr(out, "id\\|eal\\*") &&
              !strstr(out, "Conditions"),
          "%s", out);
    out = shown(write_table("more.tsv", "inactive share\n0.75 0.9\n"), test_file("speed.tsv"));
    CHECK(strstr(out, "| inactive | share | path") && strstr(out, "0.75 |   0.9 | -"),
          "columns of several files are united: %s", out);
}

static void damaged(void) {
    const struct {
        const char *text, *words;
    } bad[] = {{"", "no header line"},
               {"model text ppl\na * x\n", "column 'ppl' of row 1 holds 'x', which is no number"},
               {"model text ppl\na * nan\n", "no number"},
               {"model text ppl\na * inf\n", "no number"},
               {"model text ppl\na * 0x10\n", "no number"},
               {"model text ppl\na * 1e999\n", "no number"},
               {"model text ppl kl_mean\na * 1 2 3\n", "line 2 has 5 cells, the header 4"},
               {"model text ppl ppl\na * 1 2\n", "two columns are called 'ppl'"},
               {"model text  ppl\na * 1 2\n", "the name of column 3 is empty"},
               {"model text ppl\n\xff * 1\n", "column 'model' of row 1 is no UTF-8"},
               {"model text p\xffpl\na * 1\n", "the name of column 3 is no UTF-8"},
               {"# deadwood\n# x\nmodel text ppl\n", "bad.tsv': there are no rows, only a line"},
               {"hello\n", "there are no rows, only a line"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *path = write_table("bad.tsv", bad[i].text), *out = test_file("bad.md");
        CHECK(test_run("deadwood-table %s -o %s", path, out) == 1, "row %zu", i);
        const char *said = test_run_output();
        CHECK(strstr(said, bad[i].words) && strchr(said, '\n') == said + strlen(said) - 1,
              "'%s' does not say '%s' in one line", said, bad[i].words);
        CHECK(access(out, F_OK), "a table of row %zu", i);
    }
    FILE *f = fopen(test_file("new.tsv"), "w");
    fprintf(f, "# deadwood rows, version 2: ...\nmodel\ttext\tppl\na\t*\t1\n");
    fclose(f);
    CHECK(test_run("deadwood-table %s", test_file("new.tsv")) == 1 &&
              strstr(test_run_output(), "rows of version 2, this program reads version 1"),
          "%s", test_run_output());
}

static void wrong_usage(void) {
    const char *path = test_file("rows.tsv");
    CHECK(test_run("deadwood-table") == 2 && strstr(test_run_output(), "ROWS is missing"), "%s", test_run_output());
    CHECK(test_run("deadwood-table %s -o %s", path, test_file("x.html")) == 2 &&
          strstr(test_run_output(), "ends in none of .md, .tsv, .csv, .tex"));
    CHECK(test_run("deadwood-table %s --plot x.gif", path) == 2 &&
          strstr(test_run_output(), "ends in none of .svg, .pdf, .png"));
    CHECK(test_run("deadwood-table %s --plot %s --x-range 9:3", path, test_file("x.svg")) == 2 &&
              strstr(test_run_output(), "--x-range: '9:3' is no range like 5:10"),
          "%s", test_run_output());
    CHECK(test_run("deadwood-table %s --x ppl", path) == 2 && strstr(test_run_output(), "belong to --plot"));
    CHECK(test_run("deadwood-table %s --plot %s", test_file("speed.tsv"), test_file("x.svg")) == 2 &&
          strstr(test_run_output(), "needs --x and --y"));
    CHECK(access(test_file("x.svg"), F_OK) && access(test_file("x.html"), F_OK));
}

/* ---- plots ---------------------------------------------------------------------------------------------------- */

static void scripts(void) {
    dw_err err = {0};
    char *script = script_of(test_file("rows.tsv"), &(exp_axes){.x = "file_bytes", .y = "ppl"}, &err);
    REQUIRE(script, "%s", err.text);
    CHECK(strstr(script, "set xlabel 'MB'") && strstr(script, "set ylabel 'ppl'"), "%s", script);
    CHECK(strstr(script, "set logscale y") && !strstr(script, "set logscale x"), "%s", script);
    CHECK(strstr(script, "\n20 42.123456 41.323456 42.923456\n"), "bars of a standard error: %s", script);
    CHECK(strstr(script, "$dense << EOD\n24.73 16.97056\n") && strstr(script, "dt 2 title 'dense'"), "%s", script);
    CHECK(strstr(script, "$front << EOD\n20 42.123456\n24.73 16.97056\nEOD"), "%s", script);
    CHECK(strstr(script, "title 'energy'") && strstr(script, "title 'flap'"), "%s", script);
    free(script);
    script = script_of(test_file("rows.tsv"), &(exp_axes){.x = "rate", .y = "ppl,kl_mean", .by = "model"}, &err);
    REQUIRE(script, "%s", err.text);
    CHECK(strstr(script, "title 'cut.gguf, ppl'") && strstr(script, "title 'cut.gguf, KL, nats'") &&
              !strstr(script, "$front"),
          "%s", script);
    free(script);
    script = script_of(test_file("rows.tsv"), &(exp_axes){.x = "file_bytes", .y = "ppl", .by = "group"}, &err);
    CHECK(script && strstr(script, "title 'group 64'"), "%s", err.text);
    free(script);
    CHECK(!script_of(test_file("rows.tsv"), &(exp_axes){.x = "model", .y = "ppl"}, &err) &&
              strstr(err.text, "holds texts"),
          "%s", err.text);
    err = (dw_err){0};
    CHECK(!script_of(write_table("none.tsv", "a b\n- 1\n2 -\n"), &(exp_axes){.x = "a", .y = "b"}, &err) &&
              strstr(err.text, "no row has numbers"),
          "%s", err.text);
}

static bool has_gnuplot(void) { return !test_run("gnuplot --version"); }

static void drawn(void) {
    if (!has_gnuplot()) SKIP("gnuplot is not installed");
    const char *path = test_file("rows.tsv"), *a = test_file("a.svg"), *b = test_file("b.svg");
    CHECK(!test_run("deadwood-table %s --plot %s", path, a) && !test_run("deadwood-table %s --plot %s", path, b), "%s",
          test_run_output());
    CHECK(strstr(read_file(a), "</svg>") && strstr(read_file(a), "energy") && strstr(read_file(a), "dense"), "%.200s",
          read_file(a));
    CHECK(!test_run("cmp %s %s", a, b), "the same rows give the same bytes: %s", test_run_output());
    CHECK(test_run("grep -q 20[0-9][0-9]-[01][0-9] %s", a) == 1, "a date: %s", test_run_output());
}

/* A script for a table with the given options of the plot; free(). */
static char *script_for(const char *text, exp_axes axes) {
    dw_err err = {0};
    char *script = script_of(write_table("plot.tsv", text), &axes, &err);
    CHECK(script, "%s", err.text);
    return script;
}

static void two_variables(void) {
    char *script = script_for(
        "x y metric group\n1 5 energy 64\n2 6 energy 64\n1 4 energy 1\n1 3 energy 1\n2 9 flap 64\n",
        (exp_axes){.x = "x", .y = "y", .by = "metric,group"});
    REQUIRE(script);
    CHECK(strstr(script, "title 'energy, group 64'") && strstr(script, "title 'energy, group 1'") &&
              strstr(script, "title 'flap, group 64'"),
          "%s", script);
    CHECK(strstr(script, "$series2 with points") && strstr(script, "$series1 with linespoints"),
          "points of one x are not joined: %s", script);
    free(script);
    script = script_for("x y metric group\n1 5 energy 64\n2 6 energy 64\n1 4 random -\n1 3 - -\n",
                        (exp_axes){.x = "x", .y = "y", .by = "metric,group"});
    REQUIRE(script);
    CHECK(strstr(script, "title 'random'") && strstr(script, "title 'no metric'"), "what is not set is not named: %s",
          script);
    free(script);
    CHECK(test_run("deadwood-table %s --plot %s --x x --y y --by metric,grup", test_file("plot.tsv"),
                   test_file("x.svg")) == 1 &&
              strstr(test_run_output(), "no column 'grup' (did you mean 'group'?)"),
          "%s", test_run_output());
}

static void ranges_and_title(void) {
    const char *table = "x y\n1 5\n2 6\n30 900\n";
    exp_axes axes = {.x = "x", .y = "y", .title = "it's"};
    dw_err err = {0};
    CHECK(!exp_range_read(&axes.x_range, "0.5:3", &err) && !exp_range_read(&axes.y_range, ":10", &err), "%s", err.text);
    char *script = script_for(table, axes);
    REQUIRE(script);
    CHECK(strstr(script, "set xrange [0.5:3]\n") && strstr(script, "set yrange [*:10]\n"), "%s", script);
    CHECK(!strstr(script, "logscale"), "an axis is logarithmic by what is drawn: %s", script);
    CHECK(n_outside == 1 && !strstr(script, "30 900"), "what lies outside is not drawn: %s", script);
    CHECK(strstr(script, "set title 'it'.\"'\".'s'"), "%s", script);
    free(script);
    const char *bad[] = {"", "3", "3:1", "1:1", "a:2", ":x", "1:2:3"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        exp_range r;
        CHECK(exp_range_read(&r, bad[i], NULL), "'%s'", bad[i]);
    }
    axes = (exp_axes){.x = "x", .y = "y", .by = "kind", .x_range = {.to = 3, .has_to = true}};
    script = script_for("x y kind\n1 5 a\n2 6 a\n30 900 b\n40 901 b\n", axes);
    CHECK(script && n_outside == 2 && strstr(script, "title 'a'") && !strstr(script, "title 'b'"),
          "a series outside is not in the legend: %s", script);
    free(script);
    axes = (exp_axes){.x = "x", .y = "y", .x_range = {.from = 100, .has_from = true}};
    CHECK(!script_of(test_file("plot.tsv"), &axes, &err) && strstr(err.text, "no point lies within"), "%s", err.text);
}

/* Three seeds of random cuts at two sizes, and one metric. */
static const char twins[] = "model text base metric rate group seed ppl ppl_se file_bytes\n"
                            "d * d - - - - 10 1 100000000\n"
                            "a * d random 0.2 64 1 20 1 80000000\nb * d random 0.2 64 2 26 1 80000000\nc * d random 0.2 64 3 23 1 80000000\n"
                            "e * d random 0.3 64 1 40 1 70000000\nf * d random 0.3 64 2 46 1 70000000\ng * d random 0.3 64 3 43 1 70000000\n"
                            "h * d random 0.2 1 1 19 1 80000000\n"
                            "i * d energy 0.2 64 - 18 1 80000000\nj * d energy 0.3 64 - 30 1 70000000\n";

static void bands(void) {
    char *script = script_for(twins, (exp_axes){.x = "file_bytes", .y = "ppl", .by = "metric,group"});
    REQUIRE(script);
    CHECK(strstr(script, "\n70 43 40 46\n80 23 20 26\nEOD"), "the mean, the least and the largest: %s", script);
    CHECK(strstr(script, "using 1:3:4 with filledcurves") && strstr(script, "\n80 19 18 20\n"),
          "another group is no twin: %s", script);
    CHECK(strstr(script, "\n70 30 29 31\n80 18 17 19\n"), "a standard error is a bar: %s", script);
    free(script);
    /* the same when the table joins them */
    dw_err err = {0};
    exp_rows r;
    exp_lines lines;
    const char *path = test_file("plot.tsv");
    const exp_choice joined = {.join = "seed"};
    REQUIRE(!exp_rows_read(&r, &path, 1, &err) && !exp_lines_choose(&lines, &r, &joined, &err), "%s", err.text);
    const exp_sheet s = {.rows = &r, .lines = &lines, .join = "seed"};
    script = exp_plot_script(&s, &(exp_axes){.x = "file_bytes", .y = "ppl", .by = "metric,group"}, EXP_SVG, &n_outside,
                             &err);
    CHECK(script && strstr(script, "\n70 43 40 46\n80 23 20 26\nEOD"), "%s", script);
    free(script);
    exp_lines_release(&lines);
    exp_rows_release(&r);
}

static void large_numbers_are_short(void) {
    char *script = script_for("x y\n500000 15\n1500000 14\n3000000 13\n", (exp_axes){.x = "x", .y = "y"});
    CHECK(script && strstr(script, "set format x '%.1s %c'\n") && !strstr(script, "set format y"), "%s", script);
    free(script);
}

static void long_names_stand_below(void) {
    const exp_axes axes = {.x = "x", .y = "y", .by = "rate,setting"};
    char *shorter = script_for("x y rate setting\n1 15 1 a\n2 14 1 b\n", axes),
         *longer = script_for("x y rate setting\n1 15 0.302 a_long_name\n2 14 0.302 b\n", axes);
    CHECK(shorter && strstr(shorter, "set key outside right top\n"), "%s", shorter);
    CHECK(longer && strstr(longer, "set key below\n"), "%s", longer);
    free(shorter);
    free(longer);
}

static void check_band(const char *table) {
    char *script = script_for(table, (exp_axes){.x = "file_bytes", .y = "ppl"});
    CHECK(script && strstr(script, "\n80 21 20 22\n") && strstr(script, "\n80 90 NaN NaN\n"), "%s: %s", table, script);
    free(script);
}

/* Seeds 1 and 2 share the condition, seed 3 does not. */
static void bands_of_equal_conditions(void) {
    const char *conditions[] = {"text_sha256",  "base_sha256", "protocol", "n_ctx", "bos",
                                "window_range", "precision",   "kv",       "depth", "machine"};
    for (size_t i = 0; i < sizeof conditions / sizeof *conditions; i++) {
        char text[500];
        snprintf(text, sizeof text,
                 "model text metric seed ppl file_bytes %s\nr1 a random 1 20 80000000 1\n"
                 "r2 a random 2 22 80000000 1\nr3 a random 3 90 80000000 2\n",
                 conditions[i]);
        check_band(text);
    }
    check_band("model text metric seed ppl file_bytes\nr1 a random 1 20 80000000\nr2 a random 2 22 80000000\n"
               "r3 b random 3 90 80000000\n");
}

static const char quantized[] = "model text base tool metric rate type ppl ppl_se file_bytes\n"
                                "d * d convert - - - 30 1 24000000\n"
                                "a * d cut energy 0.2 - 40 1 8000000\nb * d cut energy 0.3 - 60 1 7000000\n"
                                "q3 * d requant - - Q3_K_M 45 1 6000000\nq4 * d requant - - Q4_K_M 33 1 9000000\n"
                                "c * d requant energy 0.2 Q4_K_M 50 1 5000000\n";

static void plain_quantizations(void) {
    char *script = script_for(quantized, (exp_axes){.x = "file_bytes", .y = "ppl"});
    REQUIRE(script);
    CHECK(strstr(script, "\n6 45 44 46\n9 33 32 34\nEOD") && strstr(script, "title 'plain quantization'"), "%s",
          script);
    CHECK(strstr(script, "set label 'Q3_K_M' at first 6, first 45") && !strstr(script, "at first 5, first 50"), "%s",
          script);
    CHECK(strstr(script, "title 'energy'") && !strstr(script, "title 'Q4_K_M'"), "%s", script);
    CHECK(strstr(script, "30 with lines lc rgb '#000000' dt 2 title 'dense, at MB 24'") &&
              strstr(script, "$dense << EOD\nEOD"),
          "a dense model of three times the size squeezes nothing: %s", script);
    free(script);
    exp_axes axes = {.x = "file_bytes", .y = "ppl", .x_range = {.to = 30, .has_to = true}};
    script = script_for(quantized, axes);
    CHECK(script && strstr(script, "$dense << EOD\n24 30\n"), "a range that holds it shows it: %s", script);
    free(script);
}

static void pictures(void) {
    if (!has_gnuplot()) SKIP("gnuplot is not installed");
    const char *endings[] = {"svg", "pdf", "png"}, *begin[] = {"<?xml", "%PDF-", "\x89PNG"};
    write_table("plot.tsv", twins);
    for (int i = 0; i < 3; i++) {
        char name[2][16];
        for (int k = 0; k < 2; k++) {
            snprintf(name[k], sizeof name[k], "%d.%s", k, endings[i]);
            CHECK(!test_run("deadwood-table %s --plot %s --title 'a < b' && sleep 0.%d", test_file("plot.tsv"),
                            test_file(name[k]), 5 * (1 - k) * (i > 0)),
                  "%s", test_run_output());
        }
        CHECK(!strncmp(read_file(test_file(name[0])), begin[i], strlen(begin[i])), "%s", endings[i]);
        CHECK(!test_run("cmp %s %s", test_file(name[0]), test_file(name[1])), "%s", test_run_output());
    }
}

/* ---- labels, LaTeX -------------------------------------------------------------------------------------------- */

static void labels(void) {
    FILE *f = fopen(test_file("named.tsv"), "w");
    fprintf(f, "model\ttext\tbase\tmetric\trate\tgroup\ttype\tppl\tfile_bytes\tvariant\tverdict\tdominated_by\n"
               "dense-1a.gguf\t*\tdense-1a.gguf\t-\t-\t-\t-\t10\t30\tpart=x\t-\t-\n"
               "cut-energy-1-0.2-26ea4cde1d.gguf\t*\tdense-1a.gguf\tenergy\t0.2\t1\t-\t15\t20\tmetric=energy\tdiscard\tcut-energy-64-0.2-77.gguf\n"
               "cut-energy-64-0.2-77.gguf\t*\tdense-1a.gguf\tenergy\t0.2\t64\t-\t14\t19\tmetric=energy\tkeep\t-\n"
               "rounded-0b.gguf\t*\tdense-1a.gguf\t-\t-\t-\tQ4_K_M\t11\t10\t-\tcontrol\t-\n");
    fclose(f);
    const char *out = shown(test_file("named.tsv"), "");
    CHECK(strstr(line_of(out, "dense"), " 10.0") && strstr(line_of(out, "Q4_K_M"), "control") &&
              strstr(line_of(out, "energy, group 1"), "discard; dominated by energy, group 64 |"),
          "%s", out);
    CHECK(!strstr(out, ".gguf |") &&
              strstr(out, "The same wherever it applies: metric energy; rate wanted 0.2; type Q4_K_M."),
          "%s", out);
    out = shown(test_file("named.tsv"), "--columns label,model,ppl");
    CHECK(strstr(out, "| energy, group 64 | cut-energy-64-0.2-77.gguf "), "%s", out);
    out = shown(test_file("named.tsv"), "--format tsv");
    CHECK(!strncmp(out, "model\tmetric\trate\tgroup\t", 24) &&
              strstr(out, "\ncut-energy-1-0.2-26ea4cde1d.gguf\tenergy\t0.2\t"),
          "programs get the names of files and each variable: %s", out);
    out = shown(write_table("rows.tsv", results), "");
    CHECK(strstr(out, "| cut.gguf "), "files that a person named keep their names: %s", out);
}

/* Repairs, and how long a model learned, are told apart; seeds of a sweep's own controls are joined as seeds. */
static void labels_of_repairs_and_training(void) {
    FILE *f = fopen(test_file("learned.tsv"), "w");
    fprintf(f, "model\ttext\tbase\tmetric\trate\trepair\ttokens_trained\tminutes_trained\tppl\tvariant\n"
               "dense\t*\tdense\t-\t-\t-\t-\t-\t10\tpart=x\n"
               "a\t*\tdense\tenergy\t0.2\t-\t-\t-\t15\tmetric=energy\n"
               "b\t*\tdense\tenergy\t0.2\tlsq\t-\t-\t14\tmetric=energy\n"
               "c\t*\tdense\tenergy\t0.2\tlsq\t6144\t-\t13\tmetric=energy\n"
               "d\t*\tdense\tenergy\t0.2\tlsq\t9999\t5.98\t12\tmetric=energy\n"
               "e\t*\tdense\trandom\t0.2\t-\t-\t-\t20\ttwin_seed=1\n"
               "f\t*\tdense\trandom\t0.2\t-\t-\t-\t22\ttwin_seed=2\n");
    fclose(f);
    const char *out = shown(test_file("learned.tsv"), "--join seed");
    static const char *const wanted[] = {"| energy ", "| energy, lsq ", "| energy, lsq, healed 6144 tokens ",
                                         "| energy, lsq, healed 6 minutes ", "| random (mean of 2) "};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        CHECK(strstr(out, wanted[i]), "'%s' in %s", wanted[i], out);
    CHECK(!strstr(out, "repair lsq"), "not all are repaired: %s", out);
}

static void labels_of_layers_and_heads(void) {
    FILE *f = fopen(test_file("dropped.tsv"), "w");
    fprintf(f, "model\ttext\tbase\tmetric\trate\tlayers_dropped\tkv_heads\tppl\tvariant\n"
               "dense-1a.gguf\t*\tdense-1a.gguf\t-\t-\t-\t-\t10\tpart=x\n"
               "cut-0.gguf\t*\tdense-1a.gguf\tenergy\t0.25\t-\t-\t14\tpart=x\n"
               "cut-1.gguf\t*\tdense-1a.gguf\tenergy\t0.25\t1 of 12\t-\t15\tpart=x\n"
               "cut-2.gguf\t*\tdense-1a.gguf\tblock-influence\t0\t-\t4 of 8\t16\tpart=x\n");
    fclose(f);
    const char *out = shown(test_file("dropped.tsv"), "");
    CHECK(strstr(out, "| energy, rate 0.25 ") && strstr(out, "| energy, rate 0.25, layers dropped 1 of 12 ") &&
              strstr(out, "| block-influence, rate 0, KV heads 4 of 8 "),
          "%s", out);
}

/* A grid over two models has two bases. */
static void labels_of_several_bases(void) {
    FILE *f = fopen(test_file("bases.tsv"), "w");
    fprintf(f, "model\ttext\tbase\ttype\tppl\tvariant\n"
               "dense-qwen3-1a.gguf\t*\tdense-qwen3-1a.gguf\tBF16\t10\tarch=qwen3\n"
               "dense-llama-2b.gguf\t*\tdense-llama-2b.gguf\tBF16\t20\tarch=llama\n"
               "small-qwen3-3c.gguf\t*\tdense-qwen3-1a.gguf\tQ8_0\t11\tarch=qwen3 mixture=Q8_0\n"
               "small-llama-4d.gguf\t*\tdense-llama-2b.gguf\tQ4_0\t21\tarch=llama mixture=Q4_0\n");
    fclose(f);
    const char *out = shown(test_file("bases.tsv"), "");
    CHECK(strstr(line_of(out, "dense, qwen3 |"), " 10") && strstr(line_of(out, "dense, llama |"), " 20"), "%s", out);
    CHECK(strstr(out, "| Q8_0, qwen3 ") && strstr(out, "| Q4_0, llama ") && !strstr(out, "qwen3, Q8_0"),
          "a type that the sweep names, too, is said once: %s", out);
}

/* One row failed; no row has errors, and none is of the base. */
static void only_what_is_known(void) {
    FILE *f = fopen(test_file("known.tsv"), "w");
    fprintf(f, "model\ttext\tbase\tfile_bytes\tppl\tppl_se\tln_ratio\tln_ratio_se\tdecode_tok_s\tn_ctx\tprotocol\t"
               "note\tverdict\n"
               "gated.gguf\ta.txt\tmini.gguf\t9000000\t40\t-\t0.9\t-\t100\t512\tllama\tdown_t 4.2 MB of it\t-\n"
               "cut.gguf\ta.txt\tmini.gguf\t8000000\t50\t-\t1.2\t-\t110\t512\tllama\t-\t-\n"
               "lost.gguf\t-\t-\t-\t-\t-\t-\t-\t-\t-\t-\twhy\tfailed\n");
    fclose(f);
    const char *out =
        shown(test_file("known.tsv"), "--text all --columns model,file_bytes,ppl,decode_tok_s/base,verdict");
    CHECK(!strstr(out, "Rows differ in") && strstr(out, "protocol llama"), "%s", out);
    CHECK(!strstr(out, "±") && strstr(out, "No standard errors: they need 5 windows of every text."), "%s", out);
    CHECK(strstr(out, "decode tok/s ÷ dense is unknown: no row is of the base mini.gguf; score it, too."), "%s", out);
    CHECK(!strstr(out, "of it)") && strstr(out, "include down_t, a transposed copy of down; column note"), "%s", out);
    CHECK(strstr(out, "failed (why)"), "%s", out);
}

static void latex(void) {
    const char *path = write_table("rows.tsv", results), *tex = test_file("t.tex");
    CHECK(!test_run("deadwood-table %s -o %s", path, tex), "%s", test_run_output());
    const char *out = read_file(tex);
    CHECK(strstr(out, "\\begin{tabular}{llrrrrrrl}\n\\toprule\nmodel & metric & "), "%s", out);
    CHECK(strstr(out, "top-1 \\%") && strstr(out, "42.12 $\\pm$ 0.80") &&
              strstr(out, "discard; dominated by q4.gguf \\\\\n"),
          "%s", out);
    CHECK(strstr(out, "$\\ge$ 4.200 $\\pm$ 0.013") && strstr(out, "\\bottomrule\n\\end{tabular}\n"), "%s", out);
    CHECK(strstr(out, "\\footnotesize\nAll but the base: rate wanted 0.25; group 64.\n\nConditions: ") &&
              strstr(out, "\\end{table}\n"),
          "%s", out);
    CHECK(!strcmp(shown(path, "--format latex"), read_file(tex)), "--format gives the same on standard output");
    out = shown(write_table("odd.tsv", "a_b% c\n\\x{1} -2\na&b~^#$ *|`<\n"), "--format latex");
    CHECK(strstr(out, "a\\_b\\% & c \\\\\n") && strstr(out, "\\textbackslash{}x\\{1\\} & $-$2 \\\\\n") &&
              strstr(out, "a\\&b\\textasciitilde{}\\textasciicircum{}\\#\\$ & *\\textbar{}`\\textless{} \\\\\n"),
          "%s", out);
}

/* Names are data: neither gnuplot nor a shell reads them. */
static void evil_names(void) {
    if (!has_gnuplot()) SKIP("gnuplot is not installed");
    const char *names[] = {"`touch$IFS\"evil\"`",
                           "'.system(\"touch\\tevil\").'",
                           "\";system('touch\\tevil')#",
                           "EOD",
                           "@x",
                           "\\",
                           "a'b",
                           "$(touch evil)",
                           "<b>&"};
    const char *path = test_file("evil.tsv"), *svg = test_file("evil.svg");
    FILE *f = fopen(path, "w");
    fprintf(f, "x\ty\tby'`touch evil`\n");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) fprintf(f, "%zu\t1\t%s\n", i, names[i]);
    fclose(f);
    CHECK(!test_run("cd %s && deadwood-table %s --plot %s --x x --y y --by \"by'\\`touch evil\\`\"", test_folder(),
                    path, svg),
          "%s", test_run_output());
    CHECK(access(test_file("evil"), F_OK), "a name was run");
    CHECK(strstr(read_file(svg), "a'b") || strstr(read_file(svg), "a&#39;b") || strstr(read_file(svg), "a&apos;b"),
          "%.2000s", read_file(svg));
}

/* The output stays away, and so does the table. */
static void without_gnuplot(void) {
    const char *svg = test_file("none.svg"), *md = test_file("none.md"), *folder = test_file("no-programs");
    mkdir(folder, 0777);
    CHECK(test_run("table=$(command -v deadwood-table); PATH=%s $table %s --plot %s -o %s", folder,
                   test_file("rows.tsv"), svg, md) == 1,
          "%s", test_run_output());
    CHECK(strstr(test_run_output(), "no such program; plots need the package gnuplot-nox\n"), "%s", test_run_output());
    CHECK(access(svg, F_OK) && access(md, F_OK), "an output was written");
    FILE *f = fopen(test_path(folder, "gnuplot"), "w");
    fprintf(f, "#!/bin/sh\necho '' >&2\necho 'line 3: no sense' >&2\nexit 1\n");
    fclose(f);
    chmod(test_path(folder, "gnuplot"), 0777);
    CHECK(test_run("table=$(command -v deadwood-table); PATH=%s:$PATH $table %s --plot %s -o %s", folder,
                   test_file("rows.tsv"), svg, md) == 1,
          "%s", test_run_output());
    CHECK(strstr(test_run_output(), "gnuplot failed: line 3: no sense\n"), "%s", test_run_output());
    CHECK(access(svg, F_OK) && access(md, F_OK), "an output was written");
}

static const test_case cases[] = {
    {"the dense model comes first, and of several texts the geometric mean is shown", first_and_means},
    {"numbers have two digits of their standard error", roundings},
    {"treatments are columns where they differ, and are said once where they do not", treatments_that_differ},
    {"conditions stand once under the table, and differences are said", conditions_once},
    {"disturbed speeds, lower bounds, leaks and verdicts are marked", marks},
    {"a long cell is whole, and one beyond all bounds ends in an ellipsis", long_cells},
    {"the text of the table is aligned, and its paragraphs are not wide", aligned},
    {"columns can be chosen, also as ratios to the dense model", columns_and_ratios},
    {"a ratio to the dense model is one under the same conditions", ratios_under_equal_conditions},
    {"a condition that alone tells rows of one model apart is a column", one_model_twice},
    {"what was timed is a condition of speeds, not of perplexities and sizes", ratios_beside_speeds},
    {"values of one column are alternatives, columns are not", alternatives},
    {"sorting puts numbers in order, the dense model first and unknown ones last", sorted},
    {"texts, bases and repeated rows are told apart by hash, and no row goes without a count", told_by_hash},
    {"speeds of two machines are both shown, and of one machine the last", speeds_of_machines},
    {"a speed was in a table before if it was measured on the same machine", speeds_that_were_there},
    {"a mean that is not shown, or is of another role, hides no single text", means_that_are_hidden},
    {"rows that differ in the seed only become mean and standard deviation", joined},
    {"joined rows tell the verdicts of all of them, and reasons only where they agree", joined_verdicts},
    {"seeds are joined that trained for other times, unless a seed comes again", joined_runs_of_any_length},
    {"rows of other windows, texts, bases and depths are not joined", joined_only_where_measured_alike},
    {"for programs the standard deviation of joined rows has a column of its own", joined_for_programs},
    {"rows are joined over texts, whose hashes differ, too", joined_over_texts},
    {"the variables of a sweep are columns", variants},
    {"TSV keeps cells as they are and can be read again; CSV quotes", tsv_and_csv},
    {"any table with a header line is shown, and several are united", any_table},
    {"a damaged table costs one line and no output", damaged},
    {"wrong usage is told before anything is written", wrong_usage},
    {"a plot has axes with units, logarithms, bars, the dense model and the front", scripts},
    {"gnuplot draws the same bytes each time, without a date", drawn},
    {"a plot by two variables has a series for each pair, and no line where x repeats", two_variables},
    {"a plot has a title and ranges, and refuses ranges that are none", ranges_and_title},
    {"rows that differ in the seed only are a band from the least to the largest", bands},
    {"numbers of 100,000 and more along an axis have prefixes: 2.5 M", large_numbers_are_short},
    {"long names of series stand below the plot", long_names_stand_below},
    {"a band holds only rows that were measured under the same conditions", bands_of_equal_conditions},
    {"plain quantizations are one line beside pruned models, and a large dense model squeezes nothing",
     plain_quantizations},
    {"SVG, PDF and PNG are drawn by the name of the file, the same bytes each time", pictures},
    {"rows of a sweep are called by what was done, and so is what dominates them", labels},
    {"... and of a sweep that repairs and heals by that, too", labels_of_repairs_and_training},
    {"labels say how many layers were dropped and how many KV heads are kept", labels_of_layers_and_heads},
    {"labels tell several bases apart, and say a type once", labels_of_several_bases},
    {"a table says nothing of what no row knows, and why a ratio to the base is unknown", only_what_is_known},
    {"LaTeX tables escape what LaTeX would take for itself", latex},
    {"names in a table are never run", evil_names},
    {"a missing or failing gnuplot costs one line that says what to do, and no output", without_gnuplot},
    {0}};
TEST_MAIN(cases)
