/* test_tool.c - options, messages, progress, rows, lineage. */
#include "formats/formats.h"
#include "test.h"
#include "tool/tool_own.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- options ------------------------------------------------------------------------------------------ */

typedef struct named {
    const char *name;
    int value;
} named;
static const named colours[] = {{"red", 1}, {"green", 2}, {"blue", 3}, {0}};

static struct {
    bool fast;
    int count;
    double rate;
    size_t bytes;
    const char *text, *path, *colour;
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
    memset(&o, 0, sizeof o); // the lists of earlier lines are small and stay with the test
    *err = (dw_err){0};
    argv[0] = "deadwood-try";
    snprintf(text, sizeof text, "%s", line);
    for (char *word = strtok(text, "|"); word; word = strtok(NULL, "|")) argv[argc++] = word;
    argv[argc] = NULL;
    return opt_read(p, argc, argv, err);
}

static void free_lists(void) {
    free(o.texts.item);
    free(o.words.item);
}

static void every_form(void) {
    dw_err err;
    const char *lines[] = {"--count=3|--colour|blue|-F|a|b", "-n|3|-cblue|--fast|a|b", "-Fn3|-c|BLUE|a|b",
                           "a|--count|3|--colour=blue|b|--fast"};
    for (int i = 0; i < 4; i++) {
        CHECK(read_line(&program, lines[i], &err) == OPT_DONE, "%s: %s", lines[i], err.text);
        CHECK(o.count == 3 && o.fast && !strcmp(o.colour, "blue") && o.words.n == 2 && !strcmp(o.words.item[1], "b"),
              "%s", lines[i]);
        free_lists();
    }
}

static void defaults(void) {
    dw_err err;
    CHECK(read_line(&program, "", &err) == OPT_DONE, "%s", err.text);
    CHECK(o.count == 7 && o.rate == 0.25 && !strcmp(o.colour, "green") && !o.path && !o.texts.n && !o.windows.last);
}

static const test_case cases[] = {
    {"every way to write an option gives the same values", every_form},
    {"what is not given has its default or stays untouched", defaults},
    {0},
};
TEST_MAIN(cases)
