/* tool.h - what every program of deadwood shares: options, talk, progress, rows, lineage.
 *
 * A program is one table of options and one function a step.  The table gives parsing, --help, the man page
 * (--help-man) and the effective arguments that the lineage stores.  stdout is data, stderr is talk.  Exit status: 0
 * done, 1 failed (one line: what, where, why, what to do), 2 wrong usage.  Only code behind this header prints or
 * exits; the engine never does. */
#ifndef DW_TOOL_H
#define DW_TOOL_H

#include "engine.h"

#define DEADWOOD_VERSION "0.1"

/* ---- options -------------------------------------------------------------------------------------- */

typedef enum opt_kind {
    OPT_FLAG,   // bool *: --name sets it
    OPT_INT,    // int *: min .. max
    OPT_REAL,   // double *: min .. max
    OPT_BYTES,  // size_t *: 3300000000, 3.3GB, 512MiB
    OPT_TEXT,   // const char **
    OPT_PATH,   // const char **
    OPT_CHOICE, // const char **: the first member of a row of the table `choices`
    OPT_TEXTS,  // opt_list *: one or more values, also repeated
    OPT_RANGE,  // opt_range *: "20" is 1-20, "21-60"
    OPT_GROUP,  // no option: `help` is a heading in --help and the man page
} opt_kind;

enum { // what an option means beyond its value
    OPT_REQUIRED = 1,
    OPT_NO_BYTE = 2, // changes no byte of the output (threads, quiet, output path): not in the lineage
    OPT_INPUT = 4,   // names an input file: must be readable when the program starts ("-" is taken for stdin); stored
                     // by base name; its hash stands in the step's inputs
    OPT_OUTPUT = 8,  // names a file to write (so does every OPT_PATH with letter 'o'): must be writable and no input
    OPT_STDOUT = 16, // and "-" is standard output; else "-" is refused
};

typedef struct opt_list {
    const char **item; // n of them, NULL behind the last
    size_t n;
} opt_list;

typedef struct opt_range {
    int first, last; // counted from 1, both included; 0, 0: everything
} opt_range;

typedef struct opt_row {
    const char *name;    // long name without dashes; NULL: the positional arguments (target opt_list)
    char letter;         // 0: none.  Same meaning everywhere: -m model, -o out, -t threads, -q quiet, -f text, ...
    opt_kind kind;
    unsigned flags;
    void *target;
    const char *initial; // default as help shows it and the parser reads it; NULL: none, target untouched
    const char *value;   // what help calls the value: "FILE", "N"
    const char *help;
    double min, max;     // OPT_INT, OPT_REAL, OPT_BYTES: smallest and largest; OPT_TEXTS and positional arguments: how
                         // many; both 0: unlimited
    const void *choices; // OPT_CHOICE: a table whose rows begin with `const char *name`, ended by NULL
    size_t choice_size;  // bytes of a row
    size_t choice_help;  // where in a row a `const char *` says what it means; 0: nowhere
} opt_row;

typedef struct opt_program {
    const char *name;    // "convert": the program is deadwood-convert
    const char *summary; // one line
    const char *usage;   // "DIR -o M.gguf [--type T]"
    const char *about;   // paragraphs for help and man: what it reads, writes, means
    const char *example; // one or more command lines
    const opt_row *rows; // ends with help NULL
} opt_program;

/* How arguments are read: --name value, --name=value, -x value, -xvalue, -- ends the options, flags' letters may stand
 * together.  A value that begins with a dash and is no number must be given as --name=value.  OPT_TEXTS takes values up
 * to the next option (--name=value just one), and again when repeated; of other options the last one counts.  Choices
 * are found in any case and stored as the table writes them.  Every program has --help (-h), --version, --help-man. */

#define OPT_CHOICES(table) .choices = (table), .choice_size = sizeof (table)[0]
#define OPT_CHOICES_HELP(table, type) OPT_CHOICES(table), .choice_help = offsetof(type, help)

typedef struct tool_kv_name {
    const char *name;
    dw_kv_cache kv;
} tool_kv_name;

/* Rows that programs share; a table ends with OPT_COMMON, or OPT_COMMON_ENGINE where a model is run. */
typedef struct tool_common {
    int threads;         // -t; 0: physical cores
    const char *backend; // --backend
    const char *kv;      // --kv
    const char *select;  // --select
    bool quiet;          // -q
} tool_common;
extern tool_common tool;
extern const tool_kv_name tool_kv_names[]; // "f16", "f32"
dw_kv_cache tool_kv(void);                 // what --kv says

/* The choices of --select: those of the engine, and what only a comparison of speed wants. */
typedef struct tool_select_name {
    const char *name, *help;
    dw_select select;
    bool is_listed;    // install dw_ffn_experiment.gathered
} tool_select_name;
extern const tool_select_name tool_select_names[];
const tool_select_name *tool_select(void); // what --select says
void tool_backend_text(char text[32]);     // "cpu avx512": whose rounding the numbers have
#define OPT_THREADS {"threads", 't', OPT_INT, OPT_NO_BYTE, &tool.threads, "0", "N", "threads; 0: the physical cores this process may use", .min = 0, .max = 256}
#define OPT_BACKEND {"backend", 0, OPT_CHOICE, 0, &tool.backend, "cpu", "NAME", "who computes", OPT_CHOICES_HELP(dw_backend_names, dw_backend_name)}
#define OPT_QUIET {"quiet", 'q', OPT_FLAG, OPT_NO_BYTE, &tool.quiet, NULL, NULL, "no progress, no remarks"}
#define OPT_KV {"kv", 0, OPT_CHOICE, 0, &tool.kv, "f16", "TYPE", "type of the key/value cache", OPT_CHOICES(tool_kv_names)}
#define OPT_SELECT {"select", 0, OPT_CHOICE, 0, &tool.select, "auto", "NAME", "how layers of gated models are run", OPT_CHOICES_HELP(tool_select_names, tool_select_name)}
#define OPT_COMMON_HEADING {.kind = OPT_GROUP, .help = "common"}
#define OPT_COMMON OPT_COMMON_HEADING, OPT_THREADS, OPT_QUIET
#define OPT_COMMON_ENGINE OPT_COMMON_HEADING, OPT_THREADS, OPT_BACKEND, OPT_QUIET

/* Parses, applies defaults, checks ranges and requirements; prints help and exits 0, or a usage error and exits 2.
 * Also installs the signal handlers that remove unfinished output files. */
void opt_parse(const opt_program *program, int argc, char **argv);

char *opt_quoted(const char *text); // as a shell would read it back; free()

/* The name of a table (rows as in OPT_CHOICES) that is nearest to a mistyped word, or NULL when none is near. */
const char *opt_nearest(const char *word, const void *table, size_t row_size);

/* ---- talk ------------------------------------------------------------------------------------------- */

void die_err(const dw_err *err) __attribute__((noreturn));                           // "deadwood-cut: sentence", exit 1
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));   // the same
void die_usage(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn)); // exit 2, points to --help
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));             // one line on stderr, unless quiet
void warn(const char *format, ...) __attribute__((format(printf, 1, 2)));            // "deadwood-cut: warning: ...", even if quiet

/* SIGINT ends a run with one line on stderr, unless quiet: that nothing unfinished is left, or, from here on, that the file
 * `kept` holds what is finished and the same command goes on from there. */
void say_if_interrupted(const char *kept);

/* A number of bytes for people, in decimal units: show_bytes(n).text is "512 B", "24.7 MB", "4.293 GB". */
typedef struct shown_bytes {
    char text[24];
} shown_bytes;
shown_bytes show_bytes(double n);
static inline const char *plural(double n) { return n == 1 ? "" : "s"; } // "%d token%s"

/* A bar on a terminal after one second, with rate and time left; elsewhere a line each 30 s.  Thread-safe steps. */
typedef struct progress progress;
progress *progress_begin(const char *what, const char *unit, double total);
void progress_step(progress *p, double done); // units since the last call
void progress_end(progress *p);

/* ---- rows: tab-separated, read and written by column name ------------------------------------------- */

typedef struct tsv_table {
    size_t n_columns, n_rows;
    char **column;  // n_columns
    char **cell;    // n_rows * n_columns
    char *comment;  // the lines beginning with '#', or ""
    void *owned;
} tsv_table;

int tsv_read(tsv_table *t, const char *path, dw_err *err);
const char *tsv_cell(const tsv_table *t, size_t row, const char *column); // NULL: no such column
void tsv_release(tsv_table *t);

/* Append n_rows rows whole or not at all, also beside other processes (the file is locked, rewritten, renamed).  A new
 * file begins with the comment and a header line.  Cells of the other columns of an existing file become "-"; a column
 * that the file lacks is refused. */
int tsv_append(const char *path, const char *comment, const char *const *columns, size_t n_columns,
               const char *const *cells, size_t n_rows, dw_err *err);

/* Whether tsv_append would accept these columns: there is no such file yet, or it is a table that has them all.  To be
 * asked before the work whose rows are appended. */
int tsv_check(const char *path, const char *const *columns, size_t n_columns, dw_err *err);

/* ---- lineage: how a file came to be ------------------------------------------------------------------ */

/* GGUF key "deadwood.lineage": an array of strings, one JSON object a step, oldest first:
 *   {"tool": "convert", "version": "0.1", "args": ["mini", "--type", "q8_0"], "facts": {"rate_reached": "0.1875"}, "parent": "name of the parent's file",
 *    "inputs": [{"name": .., "sha256": .., "bytes": ..}], "texts": [{"name": .., "sha256": .., "tokens": n, "blocks": "hex.."}]}
 * No time, no host, no absolute path: same inputs, same bytes.  A step is stamped by every tool that writes a model.
 * `args` are the effective values, defaults too, positional arguments first, paths by their base names.
 * `facts`, where present, are what an input says of itself or what was reached, by the names of score's columns.  `texts`
 * are calibration texts; `blocks` holds a 32-bit hash (8 digits) of each aligned run of 16 tokens.  Any shared
 * run of 64 tokens, wherever it begins, covers three such blocks: an evaluation text that holds three neighbouring
 * blocks is reported as a leak (so runs of 48 to 63 may be reported too, longer ones always are). */
typedef struct lineage lineage;

/* A new step behind the parent's (NULL: a first step), with the arguments that opt_parse has read. */
lineage *lineage_new(const opt_program *program, const dw_gguf *parent, dw_err *err);
int lineage_input(lineage *l, const char *path, dw_err *err); // hashes the file
int lineage_input_hashed(lineage *l, const char *path, const char sha256[65], dw_err *err); // its hash is known
int lineage_fact(lineage *l, const char *name, const char *value, dw_err *err); // "" or NULL: not known, nothing is stored
char *lineage_blocks(const int32_t *ids, size_t n, dw_err *err); // 8 hex digits for each whole run of 16 tokens; free()
/* A text that the step learnt from: its file's hash, the blocks of its n tokens. */
int lineage_text_blocks(lineage *l, const char *name, const char sha256[65], const char *blocks, size_t n, dw_err *err);
struct dw_stats_text;
int lineage_texts(lineage *l, const struct dw_stats_text *text, size_t n, dw_err *err); // n of them, as statistics and traces name them
struct dw_plan_text;
int lineage_plan_texts(lineage *l, const struct dw_plan_text *text, size_t n, dw_err *err); // likewise, as a plan names them
int lineage_write(const lineage *l, dw_gguf_writer *w, dw_err *err);
void lineage_free(lineage *l);

/* The effective arguments of this run as `args` has them, quoted for a shell; free(). */
char *lineage_arguments(const opt_program *program, dw_err *err);
/* The chain as commands that can be run again, one a line; free().  Each writes the file that the next one reads.
 * NULL, with err empty, when the file has none. */
char *lineage_commands(const dw_gguf *g, dw_err *err);
/* Why this text is a leak for this model ("calibration text 'x' of step collect has the same hash", "... shares 112
 * tokens"), or NULL, with err empty, when it is none.  free(). */
char *lineage_leak(const dw_gguf *g, const char sha256[65], const int32_t *ids, size_t n, dw_err *err);
/* Calls fn for every input of every step. */
int lineage_inputs(const dw_gguf *g, void (*fn)(void *ctx, const char *tool_name, const char *name, const char *sha256),
                   void *ctx, dw_err *err);

/* ---- calibration texts ------------------------------------------------------------------------------------------------ */

/* A text to learn from is a file and a range of its windows: consecutive runs of n_ctx tokens, the rest of the file is
 * left out.  Where the vocabulary adds BOS, it replaces the first token of every window (as llama.cpp's perplexity does). */
typedef struct calib_text {
    const char *name, *sha256;   // of the file: base name, hash
    int first_window, n_windows; // counted from 1
    const int32_t *token;        // (n_windows * n_ctx), as tokenized
} calib_text;

enum { CALIB_NAME = 128 };

typedef struct calib_file {
    char name[CALIB_NAME], sha256[65];
    int32_t *token;
} calib_file;

typedef struct calib_texts {
    calib_text *text;
    size_t n_text;
    int n_ctx;
    int32_t bos;       // -1: windows keep their first token
    calib_file *file;  // what the texts borrow
    size_t n_file;
} calib_texts;

/* Reads and tokenizes the files and cuts their windows (0, 0: all) into texts of `per_text` windows each, the last one
 * perhaps of fewer; 0: a file is one text.  Refused when a file is not UTF-8 or has too few tokens, or two files hold the
 * same bytes. */
int calib_read(calib_texts *t, dw_model *m, const opt_list *paths, opt_range windows, int n_ctx, int per_text, dw_err *err);
void calib_name(char name[CALIB_NAME], const char *path); // as texts are called: the base name, cut behind a whole character
void calib_window(const calib_texts *t, const calib_text *text, int window, int32_t *token); // n_ctx tokens of window 0 ..
size_t calib_n_tokens(const calib_texts *t);
void calib_release(calib_texts *t);

#endif
