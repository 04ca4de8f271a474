/* test_kit.c - options, messages, progress, rows, lineage. */
#include "formats/formats.h"
#include "kit/blas.h"
#include "kit/disk.h"
#include "kit/kit_own.h"
#include "kit/lineage.h"
#include "kit/memory.h"
#include "kit/stats.h"
#include "kit/tsv.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- options ------------------------------------------------------------------------------------------ */

typedef struct named {
    const char *name;
    int value;
    const char *help;
} named;
static const named colours[] = {{"red", 1}, {"green", 2}, {"blue", 3}, {0}};
static const named cups[] = {{"s", 1, "small, as most things are"}, {"large", 2, "large"}, {0}};

static struct {
    bool fast;
    int count;
    double rate;
    size_t bytes;
    const char *text, *path, *colour, *size;
    opt_list texts, words;
    opt_range windows;
} o;

static const opt_row rows[] = {
    {NULL, 0, OPT_TEXTS, 0, &o.words, NULL, "WORD", "words", .max = 2},
    {"fast", 'F', OPT_FLAG, 0, &o.fast, NULL, NULL, "be fast"},
    {"count", 'n', OPT_INT, 0, &o.count, "7", "N", "how many", .min = -5, .max = 9},
    {.kind = OPT_GROUP, .help = "more"},
    {"rate", 'r', OPT_REAL, 0, &o.rate, "0.25", "R", "fraction", .min = 0, .max = 1},
    {"bytes", 'b', OPT_BYTES, 0, &o.bytes, NULL, "SIZE", "size"},
    {"text", 'p', OPT_TEXT, 0, &o.text, NULL, "TEXT", "prompt"},
    {"path", 'o', OPT_PATH, OPT_NO_BYTE, &o.path, NULL, "FILE", "output"},
    {"colour", 'c', OPT_CHOICE, 0, &o.colour, "green", "NAME", "colour", OPT_CHOICES(colours)},
    {"size", 0, OPT_CHOICE, 0, &o.size, NULL, "SIZE", "size", OPT_CHOICES_HELP(cups, named)},
    {"texts", 'f', OPT_TEXTS, 0, &o.texts, NULL, "TEXT..", "texts"},
    {"windows", 0, OPT_RANGE, 0, &o.windows, NULL, "A-B", "windows"},
    {"quiet", 'q', OPT_FLAG, OPT_NO_BYTE, &tool.quiet, NULL, NULL, "silence"},
    {0},
};
static const opt_program program = {
    "try", "tries things", "[options] [WORD..]", "Reads nothing.\n\nWrites nothing.", "deadwood try --fast", rows};

/* Reads a command line of words separated by '|'. */
static int read_line(const opt_program *p, const char *line, dw_err *err) {
    static char text[512];
    static char *argv[32];
    int argc = 1;
    free(o.texts.item);
    free(o.words.item);
    memset(&o, 0, sizeof o);
    *err = (dw_err){0};
    argv[0] = "deadwood-try";
    snprintf(text, sizeof text, "%s", line);
    for (char *word = strtok(text, "|"); word; word = strtok(NULL, "|")) argv[argc++] = word;
    argv[argc] = NULL;
    return opt_read(p, argc, argv, err);
}

static void every_form(void) {
    dw_err err;
    const char *lines[] = {
        "--count=3|--colour|blue|-F|a|b",     "-n|3|-cblue|--fast|a|b", "-Fn3|-c|BLUE|a|b",
        "a|--count|3|--colour=blue|b|--fast", "-c=blue|-n=3|-F|--|a|b", "-n|30e-1|-cblue|a|b|-F"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        CHECK(read_line(&program, lines[i], &err) == OPT_DONE, "%s: %s", lines[i], err.text);
        CHECK(o.count == 3 && o.fast && !strcmp(o.colour, "blue") && o.words.n == 2 && !strcmp(o.words.item[1], "b"),
              "%s", lines[i]);
    }
    CHECK(read_line(&program, "--|--fast|-", &err) == OPT_DONE && !o.fast && !strcmp(o.words.item[0], "--fast"));
    CHECK(!strcmp(o.words.item[1], "-") && !o.words.item[2]);
}

static void defaults(void) {
    dw_err err;
    CHECK(read_line(&program, "", &err) == OPT_DONE, "%s", err.text);
    CHECK(o.count == 7 && o.rate == 0.25 && !strcmp(o.colour, "green") && !o.path && !o.texts.n && !o.windows.last);
}

static void lists(void) {
    dw_err err;
    CHECK(read_line(&program, "-f|a|b|-F|c|--texts=d|--texts|e|-|--|w", &err) == OPT_DONE, "%s", err.text);
    REQUIRE(o.texts.n == 5 && o.words.n == 2, "%zu texts, %zu words", o.texts.n, o.words.n);
    const char *wanted[] = {"a", "b", "d", "e", "-"};
    for (int i = 0; i < 5; i++) CHECK(!strcmp(o.texts.item[i], wanted[i]), "%s", o.texts.item[i]);
    CHECK(!o.texts.item[5] && !strcmp(o.words.item[0], "c") && !strcmp(o.words.item[1], "w"));
}

static void sizes(void) {
    const struct {
        const char *text;
        size_t bytes;
    } good[] = {{"0", 0},      {"17", 17},      {"3300000000", 3300000000}, {"3.3GB", 3300000000},
                {"2KB", 2000}, {"1KiB", 1024},  {"512MiB", 512 << 20},      {"1.5 gib", 3u << 29},
                {"20B", 20},   {"1MB", 1000000}};
    dw_err err;
    char line[64];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        snprintf(line, sizeof line, "--bytes=%s", good[i].text);
        CHECK(read_line(&program, line, &err) == OPT_DONE && o.bytes == good[i].bytes, "%s: %zu %s", line, o.bytes,
              err.text);
    }
}

static void ranges(void) {
    dw_err err;
    CHECK(read_line(&program, "--windows|20", &err) == OPT_DONE && o.windows.first == 1 && o.windows.last == 20);
    CHECK(read_line(&program, "--windows|21-60", &err) == OPT_DONE && o.windows.first == 21 && o.windows.last == 60);
    CHECK(read_line(&program, "--windows=5-5", &err) == OPT_DONE && o.windows.first == 5 && o.windows.last == 5);
}

static void wrong_usage(void) {
    const struct {
        const char *line, *words;
    } bad[] = {
        {"--colr|red", "unknown option '--colr' (did you mean '--colour'?)"},
        {"--col", "(did you mean '--colour'?)"},
        {"--zzzzzzzz", "unknown option '--zzzzzzzz'"},
        {"--hepl", "'--help'"},
        {"-x", "unknown option '-x'"},
        {"-ngl|99", "unknown option '-ngl': the CPU computes all layers; leave it out"},
        {"--n-gpu-layers=99", "unknown option '--n-gpu-layers': the CPU computes all layers"},
        {"-count|3", "unknown option '-count' (did you mean '--count'?)"},
        {"--ctx-size|9", "unknown option '--ctx-size'"},
        {"--count", "--count needs a value: N"},
        {"--count|--fast", "--count needs a value"},
        {"-o|--fast", "--path needs a value: FILE"},
        {"--fast=1", "--fast takes no value"},
        {"-n|three", "'three' is not a whole number"},
        {"-n|3x", "'3x' is not a whole number"},
        {"-n|2.5", "'2.5' is not a whole number"},
        {"-n|1e-1", "'1e-1' is not a whole number"},
        {"-n|0x3", "'0x3' is not a whole number"},
        {"-n|inf", "'inf' is not a whole number"},
        {"-n|1e1", "'1e1' is not between -5 and 9"},
        {"-n|1e999", "too large"},
        {"-n|10", "'10' is not between -5 and 9"},
        {"-n|-6", "'-6' is not between"},
        {"-n|99999999999999999999", "too large"},
        {"-n|-99999999999999999999", "too small"},
        {"-r|nan", "not a number"},
        {"-r|1.01", "not between 0 and 1"},
        {"-c|pink", "'pink' is not one of red, green, blue"},
        {"-b|3XB", "'3XB' is not a size like"},
        {"-b=-1", "not a possible size"},
        {"-b|1e30", "not a possible size"},
        {"-b=MB", "not a size"},
        {"--windows|0", "not a range"},
        {"--windows|5-4", "is empty"},
        {"--windows|0-4", "begins below 1"},
        {"--windows|3-", "not a range"},
        {"--windows=+3", "not a range"},
        {"--windows|3-4-5", "not a range"},
        {"a|b|c", "WORD: 3 values are too many, at most 2"},
        {"--path=", "the name is empty"},
        {"-f", "--texts needs a value"},
        {"-n|1|-n|3", "--count is given twice, and it takes one value"},
        {"--colour=red|-c|red", "--colour is given twice"},
    };
    dw_err err;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(read_line(&program, bad[i].line, &err) == -1, "%s", bad[i].line);
        CHECK(strstr(err.text, bad[i].words), "%s: %s", bad[i].line, err.text);
    }
}

static void required(void) {
    static const opt_row needs[] = {{NULL, 0, OPT_TEXTS, OPT_REQUIRED, &o.words, NULL, "DIR", "folder", .max = 1},
                                    {"out", 'o', OPT_PATH, OPT_REQUIRED, &o.path, NULL, "FILE", "output"},
                                    {0}};
    static const opt_program p = {"need", "needs things", "DIR -o FILE", NULL, NULL, needs};
    dw_err err;
    CHECK(read_line(&p, "-o|x", &err) == -1 && !strcmp(err.text, "DIR is missing"), "%s", err.text);
    CHECK(read_line(&p, "x", &err) == -1 && !strcmp(err.text, "--out FILE is missing"), "%s", err.text);
    CHECK(read_line(&p, "x|-o|y", &err) == OPT_DONE, "%s", err.text);
    static const opt_program none = {"none", "needs nothing", "", NULL, NULL, needs + 2};
    CHECK(read_line(&none, "x", &err) == -1 && !strcmp(err.text, "unexpected argument 'x'"), "%s", err.text);
}

static void asked(void) {
    dw_err err;
    CHECK(read_line(&program, "--help", &err) == OPT_ASKED_HELP && read_line(&program, "-Fh", &err) == OPT_ASKED_HELP);
    CHECK(read_line(&program, "--help-man", &err) == OPT_ASKED_MAN);
    CHECK(read_line(&program, "--fast|--version", &err) == OPT_ASKED_VERSION);
    CHECK(read_line(&program, "--summary", &err) == OPT_ASKED_SUMMARY);
}

static char *printed(void (*print)(const opt_program *, FILE *)) {
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    print(&program, f);
    fclose(f);
    return text;
}

static void help_complete(void) {
    tool_program = &program;
    char *help = printed(opt_print_help), *man = printed(opt_print_man);
    for (const opt_row *row = rows; row->help; row++) {
        CHECK(strstr(help, row->help) && strstr(man, row->help), "%s", row->help);
        if (row->name) CHECK(strstr(help, row->name) && strstr(man, row->name), "%s", row->name);
        if (row->value) CHECK(strstr(help, row->value) && strstr(man, row->value), "%s", row->value);
    }
    const char *words[] = {"usage: deadwood-try [options]", "tries things", "[0.25]",
                           "red, green, blue [green]",      "\nmore:\n",    "Writes nothing.",
                           "size\n",                "  s      small, as most things are\n", "  large  large\n",
                           "deadwood try --fast",           "--version"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        CHECK(strstr(help, words[i]), "%s in:\n%s", words[i], help);
    CHECK(strstr(man, ".SH NAME\ndeadwood\\-try \\- tries things\n") && strstr(man, ".SS more\n") &&
              strstr(man, ".br\n\\fBlarge\\fR: large\n"),
          "%s", man);
    for (const char *line = help; *line; line = strchr(line, '\n') + 1)
        CHECK(strcspn(line, "\n") <= 100, "%.110s", line);
    free(help);
    free(man);
}

static void effective_values(void) {
    dw_err err;
    CHECK(read_line(&program, "-f|a b|it's|c|--bytes|2KiB|--windows|9|-F|-r0.1|x", &err) == OPT_DONE, "%s", err.text);
    const struct {
        const char *name, *value;
    } wanted[] = {
        {"count", "7"},     {"rate", "0.1"},     {"bytes", "2048"}, {"text", NULL}, {"texts", "a b|it's|c"},
        {"windows", "1-9"}, {"colour", "green"}, {"fast", ""},      {"path", NULL}, {"quiet", NULL}};
    for (const opt_row *row = rows; row->help; row++) {
        for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
            if (!row->name || strcmp(row->name, wanted[i].name)) continue;
            size_t n;
            char joined[64] = "", **value = opt_values(row, &n);
            for (size_t k = 0; k < n; k++) {
                snprintf(joined + strlen(joined), sizeof joined - strlen(joined), "%s%s", k ? "|" : "", value[k]);
                free(value[k]);
            }
            const char *w = wanted[i].value;
            CHECK(w ? value && !strcmp(joined, w) : !value, "%s: %s", row->name, value ? joined : "unset");
            free(value);
        }
    }
}

static void shown_sizes(void) {
    const struct {
        double n;
        const char *text;
    } wanted[] = {{0, "0 B"},
                  {999, "999 B"},
                  {1000, "1.0 kB"},
                  {24.7e6, "24.7 MB"},
                  {999.9e6, "999.9 MB"},
                  {4.2931e9, "4.293 GB"},
                  {1.5e12, "1500.000 GB"}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        CHECK(!strcmp(show_bytes(wanted[i].n).text, wanted[i].text), "%s: %s", wanted[i].text,
              show_bytes(wanted[i].n).text);
    CHECK(!*plural(1) && !strcmp(plural(0), "s") && !strcmp(plural(2), "s"));
}

static void disk_space(void) {
    dw_err err = {0};
    CHECK(kit_free_disk(test_folder()) > 0 && kit_free_disk(test_file("none/x")) > 0);
    CHECK(!kit_need_disk(test_file("x"), 1, &err), "%s", err.text);
    CHECK(kit_need_disk(test_file("x"), 1e30, &err) == -1);
    CHECK(strstr(err.text, "x': it needs ") && strstr(err.text, ", and the disk has ") && strstr(err.text, " free"), "%s",
          err.text);
}

/* Limits of a group and of the groups above it, as the kernel writes them. */
static void memory_of_groups(void) {
    const char *root = test_file("memory");
    REQUIRE(
        !test_run("mkdir -p %s/a/b %s/memory/d && cd %s && echo 8000 >a/memory.max && echo 5000 >a/memory.current && "
                  "printf 'active_file 9\ninactive_file 500\n' >a/memory.stat && echo max >a/b/memory.max && "
                  "echo 100 >a/b/memory.current",
                  root, root, root));
    CHECK(kit_memory_of_groups(root, "0::/a/b\n") == 3500, "the limit of the group above");
    REQUIRE(!test_run("echo 300 >%s/a/b/memory.max", root));
    CHECK(kit_memory_of_groups(root, "0::/a/b\n") == 200, "the smallest of all");
    CHECK(isinf(kit_memory_of_groups(root, "0::/\n")) && isinf(kit_memory_of_groups(root, "")));
    REQUIRE(
        !test_run("cd %s/memory && echo 9223372036854771712 >d/memory.limit_in_bytes && "
                  "echo 900 >d/memory.usage_in_bytes && echo 4000 >memory.limit_in_bytes && "
                  "echo 1000 >memory.usage_in_bytes && printf 'inactive_file 1\ntotal_inactive_file 30\n' >memory.stat",
                  root));
    CHECK(kit_memory_of_groups(root, "5:memory:/d\n0::/\n") == 3030, "version 1");
    CHECK(kit_memory_of_groups(root, "5:memory:/docker/of-the-host\n") == 3030, "a path that is the host's");
}

/* bash reads back what was quoted, and no byte of it acts in a terminal. */
static void quoted_words(void) {
    static const char *const words[] = {
        "plain", "",         "two words", "it's", "$(ls) `ls` $x \\ \"", "a\nb\t\033[2J", "\u202e \xc2\x9b'\\",
        "é",     "\xff\x9b", "\x7f-1"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char *quoted = opt_quoted(words[i]), shown[256];
        dw_show(shown, sizeof shown, quoted, strlen(quoted));
        CHECK(!strcmp(shown, quoted), "%s", shown);
        FILE *f = fopen(test_file("words.sh"), "w");
        fprintf(f, "printf %%s %s\n", quoted);
        fclose(f);
        CHECK(!test_run("bash %s", test_file("words.sh")) && !strcmp(test_run_output(), words[i]), "%s", quoted);
        free(quoted);
    }
}

static void nearest(void) {
    const struct {
        const char *word, *name;
    } wanted[] = {{"gren", "green"}, {"GREEN", "green"}, {"rde", "red"}, {"blu", "blue"},
                  {"yellow", NULL},  {"x", NULL},        {"", NULL},     {"rat", NULL}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        const char *name = opt_nearest(wanted[i].word, colours, sizeof *colours);
        CHECK(wanted[i].name ? name && !strcmp(name, wanted[i].name) : !name, "'%s': %s", wanted[i].word,
              name ? name : "none");
    }
}

/* ---- progress ----------------------------------------------------------------------------------------- */

static double clock_now;
static double scripted_clock(void) { return clock_now; }

/* What is drawn when n steps of 10 units come every `seconds`. */
static char *drawn(int columns, double total, int n, double seconds) {
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    clock_now = 100;
    progress_set_screen(&(progress_screen){scripted_clock, f, columns});
    progress *p = progress_begin("reading", "tokens", total);
    for (int i = 0; i < n; i++) {
        clock_now += seconds;
        progress_step(p, 10);
    }
    progress_end(p);
    progress_set_screen(NULL);
    fclose(f);
    return text;
}

static void progress_bar(void) {
    char *text = drawn(60, 100, 4, 0.5);
    CHECK(!strcmp(text, "\rreading  [###...............]   20 %  20 tokens/s  4 s left\033[K"
                        "\rreading  [#####.............]   30 %  20 tokens/s  4 s left\033[K"
                        "\rreading  [#######...........]   40 %  20 tokens/s  3 s left\033[K"
                        "\r\033[K"),
          "%s", text);
    CHECK(!strncmp(text, "\rreading  [", 11) && !strchr(text, '\n'), "%s", text);
    free(text);
    text = drawn(80, 1000, 9, 0.1);
    CHECK(!*text, "nothing within the first second, but: %s", text);
    free(text);
    text = drawn(80, 0, 4, 1);
    CHECK(strstr(text, "reading  40 tokens  10 tokens/s\033[K"), "%s", text);
    free(text);
}

static void progress_lines(void) {
    char *text = drawn(0, 100, 9, 7), wanted[200];
    snprintf(wanted, sizeof wanted, "%s: reading:  50 %%  1.43 tokens/s  35 s left\n", tool_name());
    CHECK(!strcmp(text, wanted), "%s", text);
    free(text);
    tool.quiet = true;
    text = drawn(0, 100, 9, 7);
    CHECK(!*text, "%s", text);
    free(text);
    text = drawn(80, 100, 9, 7);
    CHECK(!*text, "%s", text);
    free(text);
    tool.quiet = false;
}

/* ---- rows --------------------------------------------------------------------------------------------- */

static const char *const columns[] = {"model", "ppl"};

/* As programs append. */
static int append(const char *path, const char *comment, const char *const *column, size_t n_columns,
                  const char *const *cells, size_t n_rows, dw_err *err) {
    const int folder = tsv_lock(path, err);
    const int rc = folder < 0 ? -1 : tsv_append_locked(path, comment, column, n_columns, cells, n_rows, err);
    tsv_unlock(folder);
    return rc;
}

static void tables(void) {
    dw_err err = {0};
    const char *path = test_path(test_folder(), "rows.tsv");
    CHECK(!append(path, "# rows, format 1", columns, 2, (const char *[]){"a.gguf", "12.5", "b.gguf", ""}, 2, &err),
          "%s", err.text);
    CHECK(!append(path, "# rows, format 1", columns + 1, 1, (const char *[]){"7"}, 1, &err), "%s", err.text);
    CHECK(!append(path, NULL, (const char *[]){"ppl", "model"}, 2, (const char *[]){"3", "c d"}, 1, &err), "%s",
          err.text);
    CHECK(append(path, NULL, columns, 2, (const char *[]){"#1", "3"}, 1, &err) && strstr(err.text, "comment"),
          "a row that would be read as a comment: %s", err.text);
    char *text = dw_read_file(path, 1000, NULL, &err);
    CHECK(text && !strcmp(text, "# rows, format 1\nmodel\tppl\na.gguf\t12.5\nb.gguf\t-\n-\t7\nc d\t3\n"), "%s", text);
    free(text);
    const char *empty = test_path(test_folder(), "empty.tsv");
    fclose(fopen(empty, "w"));
    CHECK(!tsv_check(empty, columns, 2, &err) && !append(empty, NULL, columns, 2, (const char *[]){"a", "1"}, 1, &err),
          "%s", err.text);
    text = dw_read_file(empty, 1000, NULL, &err);
    CHECK(text && !strcmp(text, "model\tppl\na\t1\n"), "an empty file gets a header: %s", text);
    free(text);
    tsv_table t;
    REQUIRE(!tsv_read(&t, path, &err), "%s", err.text);
    CHECK(t.n_columns == 2 && t.n_rows == 4 && !strcmp(t.comment, "# rows, format 1\n"));
    CHECK(!strcmp(tsv_cell(&t, 3, "model"), "c d") && !strcmp(tsv_cell(&t, 2, "ppl"), "7") && !tsv_cell(&t, 0, "kl"));
    tsv_release(&t);
}

static void refused_tables(void) {
    dw_err err = {0};
    const char *path = test_path(test_folder(), "refused.tsv");
    CHECK(append(path, NULL, columns, 2, (const char *[]){"a\tb", "1"}, 1, &err) && access(path, F_OK),
          "a tab in a cell");
    CHECK(!append(path, NULL, columns, 1, (const char *[]){"a"}, 1, NULL));
    err = (dw_err){0};
    CHECK(append(path, NULL, columns, 2, (const char *[]){"a", "1"}, 1, &err) && strstr(err.text, "no column 'ppl'"),
          "%s", err.text);
    err = (dw_err){0};
    CHECK(tsv_check(path, columns, 2, &err) && strstr(err.text, "no column 'ppl'") && strstr(err.text, path), "%s",
          err.text);
    CHECK(!tsv_check(path, columns, 1, NULL) && !tsv_check(test_path(test_folder(), "new.tsv"), columns, 2, NULL));
    const struct {
        const char *text, *words;
    } bad[] = {{"", "no header"},
               {"# only\n", "no header"},
               {"a\tb\n1\n", "line 2 has 1 cell, the header 2"},
               {"a\ta\n", "two columns"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        FILE *f = fopen(path, "w");
        fputs(bad[i].text, f);
        fclose(f);
        err = (dw_err){0};
        tsv_table t;
        CHECK(tsv_read(&t, path, &err) && strstr(err.text, bad[i].words) && strstr(err.text, path), "%s", err.text);
    }
}

/* A table whose header has n columns. */
static int read_columns(int n, dw_err *err) {
    const char *path = test_file("wide.tsv");
    FILE *f = fopen(path, "w");
    for (int i = 0; i < n; i++) fprintf(f, "%sc%d", i ? "\t" : "", i);
    fclose(f);
    tsv_table t;
    const int rc = tsv_read(&t, path, err);
    if (!rc) tsv_release(&t);
    return rc;
}

static void many_columns(void) {
    dw_err err = {0};
    CHECK(!read_columns(4096, &err), "%s", err.text);
    CHECK(read_columns(4097, &err) && strstr(err.text, "4097 columns; at most 4096"), "%s", err.text);
}

static void windows_lines(void) {
    const char *path = test_path(test_folder(), "crlf.tsv");
    FILE *f = fopen(path, "w");
    fputs("# c\r\na\tb\r\n1\t\r\n\n2\tx\r", f);
    fclose(f);
    tsv_table t;
    dw_err err = {0};
    REQUIRE(!tsv_read(&t, path, &err), "%s", err.text);
    CHECK(t.n_rows == 2 && !strcmp(t.comment, "# c\n") && !strcmp(t.column[1], "b") && !*tsv_cell(&t, 0, "b"));
    CHECK(!strcmp(tsv_cell(&t, 1, "b"), "x"));
    tsv_release(&t);
    CHECK(!append(path, NULL, columns, 0, NULL, 0, &err), "%s", err.text);
}

static void append_together(void) {
    enum { WRITERS = 4, ROWS = 15 };
    const char *path = test_path(test_folder(), "together.tsv");
    for (int k = 0; k < WRITERS; k++) {
        if (fork()) continue;
        int rc = 0;
        for (int i = 0; i < ROWS; i++) {
            char cell[2][16];
            snprintf(cell[0], 16, "%d", k);
            snprintf(cell[1], 16, "%d", i);
            rc |= append(path, "# c", columns, 2, (const char *[]){cell[0], cell[1]}, 1, NULL);
        }
        _exit(rc != 0);
    }
    int status, n_ok = 0;
    while (wait(&status) > 0) n_ok += status == 0;
    CHECK(n_ok == WRITERS, "%d writers succeeded", n_ok);
    tsv_table t;
    dw_err err = {0};
    REQUIRE(!tsv_read(&t, path, &err), "%s", err.text);
    CHECK(t.n_rows == WRITERS * ROWS, "%zu rows", t.n_rows);
    tsv_release(&t);
}

/* ---- lineage ------------------------------------------------------------------------------------------ */

static const char zeros[] = "0000000000000000000000000000000000000000000000000000000000000000";
static const char ones[] = "1111111111111111111111111111111111111111111111111111111111111111";

static const opt_row collect_rows[] = {
    {"model", 'm', OPT_PATH, OPT_INPUT, &o.path, NULL, "FILE", "model"},
    {"texts", 'f', OPT_TEXTS, OPT_INPUT, &o.texts, NULL, "TEXT..", "texts"},
    {"prompt", 'p', OPT_TEXT, 0, &o.text, NULL, "TEXT", "prompt"},
    {"out", 'o', OPT_PATH, OPT_NO_BYTE, &o.colour, NULL, "FILE", "output"},
    {0},
};
static const opt_program collect = {"collect", "", "", NULL, NULL, collect_rows};

/* Writes a model file with one more step: the parent's (may be NULL), an input, a text of n tokens. */
static bool write_step(const char *path, const opt_program *p, const dw_gguf *parent, const char *input,
                       const int32_t *ids, size_t n) {
    dw_err err = {0};
    const size_t ne[] = {32};
    static const float data[32];
    lineage *l = lineage_new(p, parent, &err);
    char *blocks = n ? lineage_blocks(ids, n, &err) : NULL;
    bool ok = l && (!input || !lineage_input(l, input, &err)) &&
              (!n || (blocks && !lineage_text_blocks(l, "in/text.txt", ones, blocks, n, &err)));
    free(blocks);
    dw_gguf_writer *w = ok ? dw_gguf_writer_new(path, &err) : NULL;
    if (w) {
        dw_gguf_set_text(w, "general.architecture", "llama");
        dw_gguf_add_tensor(w, "w", dw_qtype_get(DW_F32), 1, ne);
        ok = !lineage_write(l, w, &err) && !dw_gguf_begin(w, &err) && !dw_gguf_write(w, data, sizeof data, &err) &&
             !dw_gguf_commit(w, &err);
    }
    CHECK(ok && w, "%s", err.text);
    dw_gguf_writer_free(w);
    lineage_free(l);
    return ok && w;
}

typedef struct inputs {
    int n;
    char text[512];
} inputs;

static void note_input(void *ctx, const char *tool_name_, const char *name, const char *sha256) {
    inputs *in = ctx;
    const size_t used = strlen(in->text);
    snprintf(in->text + used, sizeof in->text - used, "%s %s %.8s;", tool_name_, name, sha256);
    in->n++;
}

static void chain(void) {
    dw_err err = {0};
    opt_program maker = program, other = collect; // called as tools that write models
    maker.name = "convert";
    other.name = "requant";
    const char *source = test_path(test_folder(), "source"), *first = test_path(test_folder(), "first.gguf"),
               *second = test_path(test_folder(), "the second.gguf"), *again = test_path(test_folder(), "again.gguf");
    FILE *f = fopen(source, "w");
    fputs("abc", f);
    fclose(f);
    REQUIRE(read_line(&maker, "--texts|x/a|it's|-p=-t|--path|gone|/some/where/mini/", &err) == OPT_DONE, "%s",
            err.text);
    if (!write_step(first, &maker, NULL, source, NULL, 0)) return;
    dw_gguf *parent = dw_gguf_open(first, &err);
    REQUIRE(parent, "%s", err.text);
    char line[400];
    snprintf(line, sizeof line, "-m|%s|-f|/deep/folder/t.txt|-o|y", first);
    REQUIRE(read_line(&other, line, &err) == OPT_DONE, "%s", err.text);
    if (!write_step(second, &other, parent, first, NULL, 0) || !write_step(again, &other, parent, first, NULL, 0))
        return;
    dw_gguf_close(parent);

    dw_gguf *g = dw_gguf_open(second, &err);
    REQUIRE(g, "%s", err.text);
    char *commands = lineage_commands(g, &err);
    CHECK(commands &&
              !strcmp(commands,
                      "deadwood convert mini -o first.gguf --count 7 --rate 0.25 --text=-t --colour green "
                      "--texts a 'it'\\''s'\n"
                      "deadwood requant -o 'the second.gguf' --model first.gguf --texts t.txt\n"),
          "%s", commands);
    free(commands);
    inputs in = {0};
    CHECK(!lineage_inputs(g, note_input, &in, &err) && in.n == 2, "%s", err.text);
    CHECK(!strncmp(in.text, "convert source ba7816bf;requant first.gguf ", 43), "%s", in.text);
    dw_gguf_close(g);

    char a[65], b[65];
    CHECK(!dw_sha256_file(second, a, &err) && !dw_sha256_file(again, b, &err) && !strcmp(a, b),
          "same step, same bytes");
}

static void leaks(void) {
    enum { N = 3000 };
    dw_err err = {0};
    int32_t ids[N], other[N];
    dw_rng rng;
    dw_rng_seed(&rng, 1);
    for (int i = 0; i < N; i++) ids[i] = (int32_t)dw_rng_below(&rng, 50000);
    const char *path = test_path(test_folder(), "leak.gguf");
    REQUIRE(read_line(&collect, "", &err) == OPT_DONE);
    if (!write_step(path, &collect, NULL, NULL, ids, N)) return;
    dw_gguf *g = dw_gguf_open(path, &err);
    REQUIRE(g, "%s", err.text);
    char *why = lineage_leak(g, ones, other, 0, &err);
    CHECK(why && !strcmp(why, "calibration text 'text.txt' of step collect has the same hash"), "%s", why);
    free(why);
    for (int n = 0; n <= 200; n++) { // n tokens shared, at places that fit no block
        for (int i = 0; i < N; i++) other[i] = (int32_t)dw_rng_below(&rng, 50000);
        const int from = (int)dw_rng_below(&rng, N - 200), to = (int)dw_rng_below(&rng, N - 200);
        memcpy(other + to, ids + from, (size_t)n * sizeof *ids);
        why = lineage_leak(g, zeros, other, N, &err);
        CHECK(n < 48 ? !why : n < 64 || why, "%d tokens: %s", n, why ? why : "no leak");
        free(why);
    }
    CHECK(!err.text[0] && !lineage_leak(g, zeros, ids, 15, &err), "%s", err.text);
    dw_gguf_close(g);
}

/* Of a million tokens every 12th block and the two after it are kept: runs of (12 + 2) 16 + 15 tokens cover three. */
static void leaks_of_long_texts(void) {
    enum { N = 1000000, PART = 4096, RUN = 239 };
    dw_err err = {0};
    int32_t *ids = malloc(N * sizeof *ids), other[PART];
    REQUIRE(ids);
    for (int i = 0; i < N; i++) ids[i] = (int32_t)(dw_splitmix((uint64_t)i) % 50000);
    char *blocks = lineage_blocks(ids, N, &err);
    CHECK(blocks && strlen(blocks) <= lineage_blocks_bytes(N) && lineage_blocks_bytes(N) == 8 << 14, "%s", err.text);
    kit_stats_text text = {.blocks = blocks, .sha256 = "1"};
    for (int k = 0; blocks && k < 40; k++) {
        const size_t from = dw_splitmix((uint64_t)k) % (N - RUN), to = dw_splitmix((uint64_t)~k) % (PART - RUN);
        size_t which;
        for (int i = 0; i < PART; i++) other[i] = -1 - i;
        memcpy(other + to, ids + from, RUN * sizeof *ids);
        CHECK(lineage_shared_run(&text, 1, zeros, other, PART, &which, &err) >= 48, "from %zu to %zu", from, to);
    }
    free(blocks), free(ids);
}

/* A model file with these steps; opened. */
static dw_gguf *with_steps(const char *name, const char *const *steps, size_t n) {
    const char *path = test_file(name);
    dw_err err = {0};
    dw_str str[8];
    for (size_t i = 0; i < n; i++) str[i] = (dw_str){steps[i], strlen(steps[i])};
    dw_gguf_writer *w = dw_gguf_writer_new(path, &err);
    dw_gguf_set_text(w, "general.architecture", "llama");
    dw_gguf_set_strs(w, "deadwood.lineage", str, n);
    dw_gguf_add_tensor(w, "w", dw_qtype_get(DW_F32), 1, (size_t[]){1});
    CHECK(!dw_gguf_begin(w, &err) && !dw_gguf_write(w, "\0\0\0", 4, &err) && !dw_gguf_commit(w, &err), "%s", err.text);
    dw_gguf_writer_free(w);
    dw_gguf *g = dw_gguf_open(path, &err);
    CHECK(g, "%s", err.text);
    return g;
}

/* A step alone in a file, and what is proposed for it, or why nothing is. */
static void forged_lineage(void) {
    static const struct {
        const char *step, *line;
    } cases[] = {
        {"{\"tool\":\"convert\",\"args\":[\"/home/a/mini/\",\"--type=../q8_0\"]}",
         "deadwood convert mini -o forged.gguf --type=q8_0"},
        {"{\"tool\":\"convert\",\"args\":[\"x\\nrm -rf ~\\n#\"]}",
         "deadwood convert $'x\\x0arm -rf ~\\x0a#' -o forged.gguf"},
        {"{\"tool\":\"cut\",\"args\":[\"--model\",\"$(ls) `ls` 'a' \\\\ \\u001b]0;x\\u0007\"]}",
         "deadwood cut -o forged.gguf --model $'$(ls) `ls` \\x27a\\x27 \\\\ \\x1b]0;x\\x07'"},
        {"{\"tool\":\"cut\",\"args\":[\"--model\",\"\\u202egnp.sh\",\"--plan\",\"a\\u009bb\"]}",
         "deadwood cut -o forged.gguf --model $'\\xe2\\x80\\xaegnp.sh' --plan $'a\\xc2\\x9bb'"},
        {"{\"tool\":\"versus\",\"args\":[\"--stock\",\"./evil\"]}", "it names no tool that writes models"},
        {"{\"tool\":\"../evil\",\"args\":[]}", "it names no tool that writes models"},
        {"{\"tool\":\"cut --hf\",\"args\":[]}", "it names no tool that writes models"},
        {"{\"tool\":\"train\",\"args\":[\"--report\",\"x\"]}", "an option names another file to write, or code"},
        {"{\"tool\":\"heal\",\"args\":[\"--snapshots\"]}", "an option names another file to write, or code"},
        {"{\"tool\":\"heal\",\"args\":[\"--teacher-cache\",\"t\"]}",
         "it has --teacher-cache, which writes another file"},
        {"{\"tool\":\"cut\",\"args\":[\"--out=x\"]}", "an option names another file to write, or code"},
        {"{\"tool\":\"cut\",\"args\":[\"-ox\"]}", "an argument is not written as deadwood writes it"},
        {"{\"tool\":\"cut\",\"args\":[\"--\",\"-o\",\"x\"]}", "an argument is not written as deadwood writes it"},
        {"{\"tool\":\"cut\",\"args\":[1]}", "an argument is not a string"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dw_err err = {0};
        char want[256];
        const bool is_command = !strncmp(cases[i].line, "deadwood ", 9);
        snprintf(want, sizeof want, "%s%s\n", is_command ? "" : "# step 1 is left out: ", cases[i].line);
        dw_gguf *g = with_steps("forged.gguf", &cases[i].step, 1);
        char *commands = lineage_commands(g, &err);
        CHECK(commands && !strcmp(commands, want), "%s: %s", cases[i].step, commands ? commands : err.text);
        free(commands);
        dw_gguf_close(g);
    }
}

/* Each step writes what the next one calls its parent. */
static void forged_outputs(void) {
    static const char *const parents[][2] = {
        {"../../.ssh/authorized_keys", "deadwood convert a -o authorized_keys"},
        {"~/.bashrc", "# step 1 is left out: the file that it writes is hidden or has no name"},
        {"", "# step 1 is left out: the file that it writes is hidden or has no name"}};
    for (size_t i = 0; i < sizeof parents / sizeof *parents; i++) {
        dw_err err = {0};
        char step[128];
        snprintf(step, sizeof step, "{\"tool\":\"cut\",\"args\":[],\"parent\":\"%s\"}", parents[i][0]);
        dw_gguf *g = with_steps("forged.gguf", (const char *[]){"{\"tool\":\"convert\",\"args\":[\"a\"]}", step}, 2);
        char *commands = lineage_commands(g, &err);
        CHECK(commands && !strncmp(commands, parents[i][1], strlen(parents[i][1])), "%s",
              commands ? commands : err.text);
        free(commands);
        dw_gguf_close(g);
    }
}

static void bad_lineage(void) {
    const char *path = test_path(test_folder(), "bad.gguf");
    const char *bad[] = {"no json",
                         "[]",
                         "{}",
                         "{\"tool\": 1, \"args\": []}",
                         "{\"tool\": \"x\"}",
                         "{\"tool\": \"x\", \"args\": [1, {}], \"inputs\": 7, \"texts\": [{\"blocks\": \"zz\"}, 3]}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dw_err err = {0};
        dw_gguf_writer *w = dw_gguf_writer_new(path, &err);
        dw_gguf_set_text(w, "general.architecture", "llama");
        dw_gguf_set_strs(w, "deadwood.lineage", &(dw_str){bad[i], strlen(bad[i])}, 1);
        dw_gguf_add_tensor(w, "w", dw_qtype_get(DW_F32), 1, (size_t[]){1});
        CHECK(!dw_gguf_begin(w, &err) && !dw_gguf_write(w, "\0\0\0", 4, &err) && !dw_gguf_commit(w, &err), "%s",
              err.text);
        dw_gguf_writer_free(w);
        dw_gguf *g = dw_gguf_open(path, &err);
        REQUIRE(g, "%s", err.text);
        const bool odd = i + 1 == sizeof bad / sizeof *bad; // readable, its odd parts are left out
        inputs in = {0};
        char *commands = lineage_commands(g, &err);
        CHECK(lineage_check(g, &err) == (odd ? 0 : -1) && (odd || strstr(err.text, "bad.gguf")), "%s: %s", bad[i],
              err.text);
        CHECK(odd ? commands && !err.text[0] : !commands && err.text[0], "%s: %s", bad[i], err.text);
        bool unnamed;
        CHECK(lineage_learnt_unnamed(g, &unnamed, &err) == (odd ? 0 : -1), "%s", bad[i]);
        CHECK(lineage_inputs(g, note_input, &in, &err) == (odd ? 0 : -1) && !in.n, "%s", bad[i]);
        CHECK(!lineage_leak(g, zeros, (int32_t[64]){0}, 64, &err));
        free(commands);
        dw_gguf_close(g);
    }
}

/* ---- hostile numbers of things in a lineage -------------------------------------------------------------- */

static double cpu_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

/* {"tool":"heal","args":[..],"texts":[..]} with `n` items of the list that `fill` prints; free(). */
static char *large_step(const char *begin, const char *end, int n, void (*fill)(FILE *f, int i)) {
    char *step = NULL;
    size_t size;
    FILE *f = open_memstream(&step, &size);
    fputs(begin, f);
    for (int i = 0; i < n; i++) {
        if (i) fputc(',', f);
        fill(f, i);
    }
    fputs(end, f);
    fclose(f);
    return step;
}

static dw_gguf *with_large_step(const char *name, char *step) {
    dw_gguf *g = with_steps(name, (const char *const *)&step, 1);
    free(step);
    return g;
}

static void put_text(FILE *f, int i) { fprintf(f, "{\"name\":\"%d\"}", i % 30000); }
static void put_arg(FILE *f, int i) { fprintf(f, "\"%c%030d\"", 'a' + i % 26, i); }
/* A text in which the block that 16 zeros give stands beside others, again and again. */
static void put_blocks(FILE *f, int i) {
    char *same = lineage_blocks((int32_t[16]){i}, 16, NULL);
    fprintf(f, "{\"name\":\"t\",\"blocks\":\"");
    for (int k = 0; k < 50000; k++) fprintf(f, "%s%08x", same, k);
    fprintf(f, "\"}");
    free(same);
}

static void many_texts(void) {
    dw_err err = {0};
    dw_gguf *g = with_large_step("many.gguf", large_step("{\"tool\":\"heal\",\"args\":[],\"texts\":[", "]}", 60000,
                                                       put_text));
    REQUIRE(g && read_line(&collect, "", &err) == OPT_DONE, "%s", err.text);
    const double begin = cpu_seconds();
    lineage *l = lineage_new(&collect, NULL, &err);
    CHECK(l && !lineage_texts_of_model(l, g, &err), "%s", err.text);
    CHECK(cpu_seconds() - begin < 5, "%.1f s for 60,000 texts", cpu_seconds() - begin);
    dw_gguf_writer *w = dw_gguf_writer_new(test_file("taken.gguf"), &err);
    CHECK(w && !lineage_write(l, w, &err) && !dw_gguf_begin(w, &err) && !dw_gguf_commit(w, &err), "%s", err.text);
    dw_gguf_writer_free(w);
    lineage_free(l);
    CHECK(!test_run("grep -ao '\"name\":\"[0-9]*\"' %s | sort -u | wc -l; grep -ao '\"name\":\"[0-9]*\"' %s | wc -l",
                    test_file("taken.gguf"), test_file("taken.gguf")) &&
              !strcmp(test_run_output(), "30000\n30000\n"),
          "each text once: %s", test_run_output());
    dw_gguf_close(g);
}

/* What is written can be read: a step of so many texts, or none. */
static void many_own_texts(void) {
    static const struct {
        int n;
        bool can;
    } cases[] = {{45000, true}, {250000, false}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        dw_err err = {0};
        REQUIRE(read_line(&collect, "", &err) == OPT_DONE, "%s", err.text);
        lineage *l = lineage_new(&collect, NULL, &err);
        bool ok = l;
        for (int i = 0; i < cases[k].n && ok; i++) {
            char hex[65];
            snprintf(hex, sizeof hex, "%064x", i);
            ok = !lineage_text_blocks(l, "text.txt", hex, "", 1, &err);
        }
        dw_gguf_writer *w = dw_gguf_writer_new(test_file("own.gguf"), &err);
        REQUIRE(ok && w, "%s", err.text);
        CHECK(!lineage_write(l, w, &err) == cases[k].can && (cases[k].can || strstr(err.text, "too many values")), "%s",
              err.text);
        lineage_free(l);
        if (cases[k].can) {
            CHECK(!dw_gguf_begin(w, &err) && !dw_gguf_commit(w, &err), "%s", err.text);
            dw_gguf *g = dw_gguf_open(test_file("own.gguf"), &err);
            CHECK(g && !lineage_check(g, &err), "%s", err.text);
            dw_gguf_close(g);
        }
        dw_gguf_writer_free(w);
    }
}

static void many_arguments(void) {
    enum { N = 300000 };
    dw_err err = {0};
    dw_gguf *g = with_large_step("args.gguf", large_step("{\"tool\":\"cut\",\"args\":[", "]}", N, put_arg));
    REQUIRE(g);
    const double begin = cpu_seconds();
    char *commands = lineage_commands(g, &err);
    CHECK(cpu_seconds() - begin < 5, "%.1f s for %d arguments", cpu_seconds() - begin, N);
    CHECK(commands && !strncmp(commands, "deadwood cut a0000", 18) && strlen(commands) > 32 * (size_t)N, "%s", err.text);
    free(commands);
    dw_gguf_close(g);
}

/* Blocks of one token again and again, as in a text of spaces; never two in a row. */
static void many_equal_blocks(void) {
    enum { N = 100000 };
    dw_err err = {0};
    int32_t *ids = calloc(N, sizeof *ids);
    dw_gguf *g = with_large_step("blocks.gguf", large_step("{\"tool\":\"heal\",\"args\":[],\"texts\":[", "]}", 1,
                                                         put_blocks));
    REQUIRE(g && ids);
    const double begin = cpu_seconds();
    char *why = lineage_leak(g, zeros, ids, N, &err);
    CHECK(!why && !err.text[0], "%s", why ? why : err.text);
    CHECK(cpu_seconds() - begin < 5, "%.1f s for %d blocks and tokens", cpu_seconds() - begin, N);
    free(why), free(ids);
    dw_gguf_close(g);
}

static void blas_cores(void) {
    CHECK(!kit_blas_core("Haswell", true, true));
    CHECK(!kit_blas_core("Prescott", false, false));
    CHECK(!strcmp(kit_blas_core("Prescott", true, false), "Haswell"));
    CHECK(!strcmp(kit_blas_core("Prescott", true, true), "SkylakeX"));
}

static const test_case cases[] = {
    {"every way to write an option gives the same values", every_form},
    {"what is not given has its default or stays untouched", defaults},
    {"an option of several values takes them up to the next option and adds up", lists},
    {"sizes are read in decimal and binary units", sizes},
    {"a range counts from 1 and includes both ends", ranges},
    {"wrong usage is one sentence that names the option and what it wants", wrong_usage},
    {"what is required is asked for by name", required},
    {"help, man page, version and summary can be asked for anywhere", asked},
    {"help and man page name every option with its value, default and choices", help_complete},
    {"effective values are written as one would type them", effective_values},
    {"sizes are shown in decimal units", shown_sizes},
    {"what has no room on the disk is told before it is written", disk_space},
    {"every control group above a process limits its memory", memory_of_groups},
    {"a word is quoted so that a shell reads it back and a terminal does not obey it", quoted_words},
    {"the nearest name is found for a mistyped word and none for a strange one", nearest},
    {"a bar appears after a second, with rate and time left, and is wiped away", progress_bar},
    {"without a terminal a line comes every 30 seconds, and none when quiet", progress_lines},
    {"rows are appended under the columns of the file and read back by name", tables},
    {"a table that would not fit is refused and stays as it was", refused_tables},
    {"tables with CRLF line ends and empty cells are read", windows_lines},
    {"a table has at most 4,096 columns", many_columns},
    {"processes that append together lose no row", append_together},
    {"the chain of a file is its parent's and its own step, as commands, and repeats bit for bit", chain},
    {"a text that shares 64 tokens with a calibration text is a leak, one that shares 47 is none", leaks},
    {"of a long text a part of the hashes is kept, which finds long runs", leaks_of_long_texts},
    {"a forged lineage proposes tools that write models, base names and quoted words only", forged_lineage},
    {"a forged parent proposes no file elsewhere and no hidden one", forged_outputs},
    {"a damaged lineage is one sentence", bad_lineage},
    {"tens of thousands of texts of a teacher are taken in seconds, each once", many_texts},
    {"a lineage of very many texts is written so that it can be read, or not at all", many_own_texts},
    {"a step with hundreds of thousands of arguments is shown in seconds", many_arguments},
    {"a text whose blocks are alike is compared in seconds", many_equal_blocks},
    {"a CPU that OpenBLAS takes for a Prescott gets the kernels of its own instructions", blas_cores},
    {0},
};
TEST_MAIN(cases)
