/* options.h - one table of options for a program.
 *
 * The table gives parsing, --help, the man page (--help-man) and the effective arguments that the lineage stores.
 * Exit status of every program: 0 done, 1 failed (one line: what, where, why, what to do), 2 wrong usage.
 *
 * Arguments are --name value, --name=value, -x value or -xvalue; letters of flags may be joined; -- ends the options.
 * A value that begins with a dash and is not a number must be given as --name=value.  OPT_TEXTS takes all values up to
 * the next option (--name=value takes one) and may be repeated, as a flag may; any other option is given once.  Choices
 * are found in upper and lower case and stored as the table spells them.  Every program has --help (-h), --help-man,
 * --version, --summary and --check-options: it reads the other arguments as always, prints "output PATH" for every file
 * that they name for writing and "input PATH" for every one for reading, and ends without looking at any file.  sweep
 * asks so before it runs a command. */
#ifndef KIT_OPTIONS_H
#define KIT_OPTIONS_H

#include "engine.h"
#include "kit/content.h"

#define DEADWOOD_VERSION "0.1"

typedef enum opt_kind {
    OPT_FLAG,   // bool *: --name sets it
    OPT_INT,    // int *: min .. max; 20000 or 2e4
    OPT_REAL,   // double *: min .. max
    OPT_BYTES,  // size_t *: 3300000000, 3.3GB, 512MiB
    OPT_TEXT,   // const char **
    OPT_PATH,   // const char **
    OPT_CHOICE, // const char **: the first member of a row of the table `choices`
    OPT_TEXTS,  // opt_list *: one or more values, also repeated
    OPT_RANGE,  // opt_range *: "20" is 1-20, "21-60"
    OPT_GROUP,  // not an option: `help` is a heading in --help and the man page
} opt_kind;

enum { // flags of an option
    OPT_REQUIRED = 1,
    OPT_NO_BYTE = 2, // changes no byte of the output (threads, quiet, output path): not in the lineage
    OPT_INPUT = 4,   // names an input file, which must be readable when the program starts; the lineage stores its base
                     // name
    OPT_OUTPUT = 8,  // names a file to write, which must be writable and neither an input nor another output; an
                     // OPT_PATH with letter 'o' needs no such flag
    OPT_STDOUT = 16, // of an output: "-" is standard output; without this flag "-" is refused
    OPT_KEEPS = 32,  // of an output: an interrupted run keeps its results in FILE.part, which is an output, too
    OPT_FOLDER = 64, // names a folder to make, which must not be another output
    OPT_STDIN = 128, // of an input: "-" is standard input; without this flag "-" is refused
};

typedef struct opt_list {
    const char **item; // n texts, then NULL
    size_t n;
} opt_list;

typedef struct opt_range {
    int first, last; // counted from 1, both included; 0, 0: everything
} opt_range;

typedef struct opt_row {
    const char *name;    // long name without dashes; NULL: the positional arguments (target opt_list)
    char letter;         // 0: none.  Letters mean the same in all programs: -m model, -o out, -t threads, -q quiet, ...
    opt_kind kind;
    unsigned flags;
    void *target;
    const char *initial; // default, as text; NULL: none, the parser leaves target as it is
    const char *value;   // name of the value in help: "FILE", "N"
    const char *help;
    double min, max;     // OPT_INT, OPT_REAL, OPT_BYTES: smallest and largest value; OPT_TEXTS and positional
                         // arguments: number of values; both 0: unlimited
    const void *choices; // OPT_CHOICE: a table whose rows begin with `const char *name`; the last name is NULL
    size_t choice_size;  // bytes of a row
    size_t choice_help;  // offset in a row of a `const char *` with its help text; 0: none
    const char *(*hint)(const char *word); // OPT_CHOICE: where a word belongs that is no choice here, for the error
                                           // message; it returns NULL if it does not know; may be NULL
    size_t n_derived;                      // OPT_FLAG: a program with this flag also writes n_derived files, which are
    char *(*derived)(size_t i);            // outputs, too; derived(i) names one, with the other options read; free() it
    const char *beside;                    // of an output FILE: the program may write FILE with this ending, too
    unsigned holds, beside_holds;          // kit_content of an output, or of those that `derived` names; of FILE with
                                           // `beside`: an existing file is replaced only if it is empty or of this
                                           // kind; 0: the program itself checks it
} opt_row;

typedef struct opt_program {
    const char *name;    // "convert": the program is deadwood-convert
    const char *summary; // one line
    const char *usage;   // "DIR -o M.gguf [--type T]"
    const char *about;   // paragraphs for help and man page
    const char *example; // one or more command lines
    const opt_row *rows; // ends with help NULL
} opt_program;

#define OPT_CHOICES(table) .choices = (table), .choice_size = sizeof (table)[0]
#define OPT_CHOICES_HELP(table, type) OPT_CHOICES(table), .choice_help = offsetof(type, help)

typedef struct tool_kv_name {
    const char *name;
    dw_kv_cache kv;
} tool_kv_name;

/* Options that programs share; a table ends with OPT_COMMON, or with OPT_COMMON_ENGINE if the program runs a model. */
typedef struct tool_common {
    int threads;         // -t; 0: physical cores
    const char *backend; // --backend
    const char *kv;      // --kv
    const char *select;  // --select
    bool quiet;          // -q
    bool huge_pages;     // --huge-pages
} tool_common;
extern tool_common tool;
extern const tool_kv_name tool_kv_names[]; // "f16", "f32", "q8_0"
dw_kv_cache tool_kv(void);                 // the value of --kv

typedef struct tool_precision_name {
    const char *name, *help;
    dw_precision precision;
} tool_precision_name;
extern const tool_precision_name tool_precision_names[];
dw_precision tool_precision(const char *name);

/* The choices of --select: those of the engine, and "listed" for comparisons of speed. */
typedef struct tool_select_name {
    const char *name, *help;
    dw_select select;
    bool is_listed; // the session uses dw_ffn_experiment.gathered (backends/ffn_ops.h)
} tool_select_name;
extern const tool_select_name tool_select_names[];
const tool_select_name *tool_select(void); // the value of --select
void tool_backend_text(char text[32]);     // "cpu avx512": backend and level, which determine the rounding
/* Fails, because what an interrupted run keeps at the path (OPT_KEEPS) is of other inputs or options. */
int tool_other_run(const char *path, dw_err *err);
#define OPT_THREADS \
    {"threads", 't', OPT_INT, OPT_NO_BYTE, &tool.threads, "0", "N", \
     "number of threads; 0: one per physical core that this process may use", .min = 0, .max = 256}
#define OPT_BACKEND \
    {"backend", 0, OPT_CHOICE, 0, &tool.backend, "cpu", "NAME", "implementation that computes", \
     OPT_CHOICES_HELP(dw_backend_names, dw_backend_name)}
#define OPT_QUIET \
    {"quiet", 'q', OPT_FLAG, OPT_NO_BYTE, &tool.quiet, NULL, NULL, "show no progress and no remarks"}
#define OPT_KV \
    {"kv", 0, OPT_CHOICE, 0, &tool.kv, "f16", "TYPE", "type of the key/value cache", OPT_CHOICES(tool_kv_names)}
#define OPT_SELECT \
    {"select", 0, OPT_CHOICE, 0, &tool.select, "auto", "NAME", "how the layers of gated models are run", \
     OPT_CHOICES_HELP(tool_select_names, tool_select_name)}
#define OPT_HUGE_PAGES \
    {"huge-pages", 0, OPT_FLAG, OPT_NO_BYTE, &tool.huge_pages, NULL, NULL, \
     "copy the weights into huge pages first (Linux), which takes memory of their size and seconds for gigabytes; " \
     "decoding may be faster"}
#define OPT_COMMON_HEADING {.kind = OPT_GROUP, .help = "common"}
#define OPT_COMMON OPT_COMMON_HEADING, OPT_THREADS, OPT_QUIET
#define OPT_COMMON_ENGINE OPT_COMMON_HEADING, OPT_THREADS, OPT_BACKEND, OPT_QUIET

/* The first call of every program.  Parses the arguments, applies defaults, checks ranges and requirements; prints help
 * and exits 0, or a usage error and exits 2.  It also opens closed standard streams, records the inputs so that no
 * output replaces one, and installs the signal handlers that remove unfinished outputs. */
void opt_parse(const opt_program *program, int argc, char **argv);

/* Whether the command line has the program's option with this name. */
bool opt_is_given(const char *name);

/* Says that the program itself has set the option with this target, which was not given and has no default.  The lineage
 * then stores the value as if it had been given. */
void opt_chosen(const void *target);

/* The text quoted for a shell, in one line; free() it.  A text with bytes that a terminal must not get (dw_show)
 * becomes $'..', which bash, zsh and POSIX 2024 understand. */
char *opt_quoted(const char *text);

/* The name in a table (rows as in OPT_CHOICES) that is most similar to a mistyped word; NULL if none is similar. */
const char *opt_nearest(const char *word, const void *table, size_t row_size);

#endif
