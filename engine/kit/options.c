/* options.c - reads a command line with a program's table of options. */
#include "kit/kit_own.h"

#include <ctype.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_ROWS = 128 };

/* The program of the command line, and for each row whether it was given, and whether it was given or has a default. */
static const opt_program *parsed;
static bool is_given[MAX_ROWS], has_value[MAX_ROWS];

/* ---- names ---------------------------------------------------------------------------------------------- */

const char *opt_label(const opt_row *row) {
    static char text[64];
    snprintf(text, sizeof text, "%s%s", row->name ? "--" : "", row->name ? row->name : row->value);
    return text;
}

/* Insertions, deletions, replacements and swaps of neighbours that make one short word of another; case is ignored. */
static int distance(const char *a, const char *b) {
    enum { MAX = 32 };
    const int n = (int)strlen(a), m = (int)strlen(b);
    if (n > MAX || m > MAX) return MAX;
    int d[MAX + 1][MAX + 1];
    for (int i = 0; i <= n; i++) {
        for (int j = 0; j <= m; j++) {
            if (!i || !j) {
                d[i][j] = i + j;
                continue;
            }
            const bool same = tolower((unsigned char)a[i - 1]) == tolower((unsigned char)b[j - 1]);
            int best = d[i - 1][j - 1] + !same;
            if (d[i - 1][j] + 1 < best) best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    }
    return d[n][m];
}

/* Keeps the more similar name in *best.  A name is similar if it begins with the word, or if at most two letters or a
 * third of the word must change, and never more than half of it. */
static void nearer(const char *word, const char *name, const char **best, int *best_distance) {
    const size_t len = strlen(word);
    const int d = len >= 3 && !strncasecmp(word, name, len) ? 1 : distance(word, name);
    const int most = len / 3 > 2 ? (int)len / 3 : 2;
    if (d < *best_distance && d <= most && 2 * d <= (int)len) {
        *best = name;
        *best_distance = d;
    }
}

const char *opt_nearest(const char *word, const void *table, size_t row_size) {
    const char *best = NULL, *name;
    int best_distance = INT_MAX;
    for (const char *row = table; memcpy(&name, row, sizeof name), name; row += row_size)
        nearer(word, name, &best, &best_distance);
    return best;
}

/* Options of llama.cpp that people type from habit, and what to do instead. */
static const struct habit {
    const char *option, *instead; // the program's own option; NULL: see advice
    const char *advice;
} habits[] = {
    {"-ngl", NULL, "the CPU computes all layers; leave it out"},
    {"--gpu-layers", NULL, "the CPU computes all layers; leave it out"},
    {"--n-gpu-layers", NULL, "the CPU computes all layers; leave it out"},
    {"--flash-attn", NULL, "attention is always fused; leave it out"},
    {"--no-mmap", NULL, "models are always mapped; leave it out"},
    {"--mlock", NULL, "models are mapped and never locked; leave it out"},
    {"-cnv", "chat", NULL},
    {"--conversation", "chat", NULL},
    {"-sys", "system", NULL},
    {"--system-prompt", "system", NULL},
    {"--ctx-size", "ctx", NULL},
    {"--file", "text", NULL},
    {"--batch-size", "batch", NULL},
    {"-ctk", "kv", NULL},
    {"-ctv", "kv", NULL},
    {"--cache-type-k", "kv", NULL},
    {"--cache-type-v", "kv", NULL},
    {"--imatrix", "stats", NULL},
    {"--imatrix", "import-imatrix", NULL}, // of programs that have both, this
    {"--allow-requantize", "lossy-twice", NULL},
    {"--tensor-type", "tensor", NULL},
    {"--kl-divergence-base", NULL, "score --store FILE keeps predictions, score --base FILE compares with them"},
    {"--kl-divergence", NULL, "score --base compares with a model or with stored predictions, and gives the divergence"},
    {"-d", "depth", NULL},
    {0},
};

static const opt_row *find_long(const opt_program *program, const char *name, size_t len) {
    for (const opt_row *row = program->rows; !opt_is_end(row); row++)
        if (row->name && !strncmp(name, row->name, len) && !row->name[len]) return row;
    return NULL;
}

/* Replaces the error for an argument like "-ngl", "--ctx-size=9" or "-temp" by what to give instead.  The error stays
 * where there is nothing to advise. */
static int advise(const opt_program *program, const char *arg, dw_err *err) {
    const int len = (int)strcspn(arg, "=");
    const char *name = NULL, *advice = NULL;
    for (const struct habit *h = habits; h->option; h++) {
        if (strncmp(arg, h->option, (size_t)len) || h->option[len]) continue;
        advice = h->advice;
        if (h->instead && find_long(program, h->instead, strlen(h->instead))) name = h->instead;
    }
    const opt_row *same = arg[1] == '-' || len < 3 ? NULL : find_long(program, arg + 1, (size_t)len - 1);
    if (same) name = same->name;
    if (!name && !advice) return -1;
    if (err) *err = (dw_err){0};
    if (name) return dw_fail(err, "unknown option '%.*s' (did you mean '--%s'?)", len, arg, name);
    return dw_fail(err, "unknown option '%.*s': %s", len, arg, advice);
}

static int fail_unknown(const opt_program *program, const char *word, dw_err *err) {
    const char *best = NULL;
    int best_distance = INT_MAX;
    for (const opt_row *row = program->rows; !opt_is_end(row); row++)
        if (row->name) nearer(word, row->name, &best, &best_distance);
    nearer(word, "help", &best, &best_distance);
    nearer(word, "version", &best, &best_distance);
    if (best && !strcmp(word, best)) return dw_fail(err, "--%s takes no value", word); // --help=x
    if (best) return dw_fail(err, "unknown option '--%s' (did you mean '--%s'?)", word, best);
    return dw_fail(err, "unknown option '--%s'", word);
}

/* ---- values --------------------------------------------------------------------------------------------- */

static bool is_within(const opt_row *row, double x) {
    return (row->min == 0 && row->max == 0) || (x >= row->min && x <= row->max);
}

static int fail_range(const opt_row *row, const char *text, dw_err *err) {
    if (isinf(row->max)) return dw_fail(err, "%s: '%s' is less than %.15g", opt_label(row), text, row->min);
    return dw_fail(err, "%s: '%s' is not between %.15g and %.15g", opt_label(row), text, row->min, row->max);
}

/* "20000" and "2e4": a double holds every int. */
static int set_int(const opt_row *row, const char *text, dw_err *err) {
    char *end;
    const double x = strtod(text, &end);
    const bool is_decimal = !text[strspn(text, " +-.0123456789eE")]; // neither "0x10" nor "inf"
    if (end == text || *end || !is_decimal || (isfinite(x) && x != floor(x)))
        return dw_fail(err, "%s: '%s' is not a whole number", opt_label(row), text);
    if (x < INT_MIN || x > INT_MAX)
        return dw_fail(err, "%s: '%s' is too %s", opt_label(row), text, x < 0 ? "small" : "large");
    if (!is_within(row, x)) return fail_range(row, text, err);
    *(int *)row->target = (int)x;
    return 0;
}

static int set_real(const opt_row *row, const char *text, dw_err *err) {
    char *end;
    const double x = strtod(text, &end);
    if (end == text || *end || !isfinite(x)) return dw_fail(err, "%s: '%s' is not a number", opt_label(row), text);
    if (!is_within(row, x)) return fail_range(row, text, err);
    *(double *)row->target = x;
    return 0;
}

static int set_bytes(const opt_row *row, const char *text, dw_err *err) {
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"", 1},      {"B", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
                 {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
    char *end;
    const double x = strtod(text, &end);
    while (*end == ' ') end++;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcasecmp(end, units[i].name) || end == text) continue;
        const double bytes = x * units[i].bytes;
        if (!(bytes >= 0 && bytes < 0x1p63))
            return dw_fail(err, "%s: '%s' is not a possible size", opt_label(row), text);
        if (!is_within(row, bytes)) return fail_range(row, text, err);
        *(size_t *)row->target = (size_t)(bytes + 0.5);
        return 0;
    }
    return dw_fail(err, "%s: '%s' is not a size like 3300000000, 3.3GB or 512MiB", opt_label(row), text);
}

/* "20" is 1-20; "21-60" counts both. */
static int set_range(const opt_row *row, const char *text, dw_err *err) {
    int first = 1, last = 0, used = 0;
    const bool digit = isdigit((unsigned char)*text);
    if (digit && sscanf(text, "%9d-%9d%n", &first, &last, &used) == 2 && used && !text[used]) {
        if (first < 1)
            return dw_fail(err, "%s: '%s' begins below 1; ranges count from 1, as in 21-60", opt_label(row), text);
        if (last < first)
            return dw_fail(err, "%s: '%s' is empty; ranges count from 1, as in 21-60", opt_label(row), text);
    } else {
        used = 0;
        first = 1;
        if (!digit || sscanf(text, "%9d%n", &last, &used) != 1 || text[used] || last < 1)
            return dw_fail(err, "%s: '%s' is not a range like 20 or 21-60", opt_label(row), text);
    }
    *(opt_range *)row->target = (opt_range){first, last};
    return 0;
}

void opt_each_choice(const opt_row *row, void (*fn)(void *ctx, size_t i, const char *name, const char *help),
                     void *ctx) {
    const char *name, *help = NULL, *at = row->choices;
    for (size_t i = 0; memcpy(&name, at, sizeof name), name; at += row->choice_size) {
        if (row->choice_help) memcpy(&help, at + row->choice_help, sizeof help);
        fn(ctx, i++, name, help);
    }
}

typedef struct choice_search {
    const char *word, *found;
    char names[320]; // "a, b, c"; a longer list is cut
} choice_search;

static void visit_choice(void *ctx, size_t i, const char *name, const char *help) {
    (void)help;
    choice_search *s = ctx;
    if (!s->found && !strcasecmp(s->word, name)) s->found = name;
    const size_t used = strlen(s->names);
    snprintf(s->names + used, sizeof s->names - used, "%s%s", i ? ", " : "", name);
}

/* Another option of the program that has this choice, or NULL: `requant --type Q4_K_M` means --mixture. */
static const opt_row *other_with_choice(const opt_row *row, const char *text) {
    for (const opt_row *other = parsed->rows; !opt_is_end(other); other++) {
        choice_search s = {.word = text};
        if (other == row || other->kind != OPT_CHOICE) continue;
        opt_each_choice(other, visit_choice, &s);
        if (s.found) return other;
    }
    return NULL;
}

static int set_choice(const opt_row *row, const char *text, dw_err *err) {
    choice_search s = {.word = text};
    opt_each_choice(row, visit_choice, &s);
    *(const char **)row->target = s.found;
    if (s.found) return 0;
    const char *hint = row->hint ? row->hint(text) : NULL;
    if (hint) return dw_fail(err, "%s: '%s' is not one of its choices; %s", opt_label(row), text, hint);
    const opt_row *other = other_with_choice(row, text);
    if (other)
        return dw_fail(err, "--%s: '%s' is a choice of --%s; give --%s %s", row->name, text, other->name, other->name,
                       text);
    return dw_fail(err, "%s: '%s' is not one of %s", opt_label(row), text, s.names);
}

static int add_text(const opt_row *row, const char *text) {
    opt_list *list = row->target;
    const char **item = tool_need(realloc(list->item, (list->n + 2) * sizeof *item), opt_label(row));
    item[list->n++] = text;
    item[list->n] = NULL;
    list->item = item;
    return 0;
}

static int set_value(const opt_row *row, const char *text, dw_err *err) {
    const bool is_name = row->kind == OPT_PATH || row->flags & OPT_INPUT;
    if (is_name && !*text) return dw_fail(err, "%s: the name is empty", opt_label(row));
    if (!row->name) return add_text(row, text);
    switch (row->kind) {
    case OPT_FLAG: *(bool *)row->target = true; return 0;
    case OPT_INT: return set_int(row, text, err);
    case OPT_REAL: return set_real(row, text, err);
    case OPT_BYTES: return set_bytes(row, text, err);
    case OPT_TEXT:
    case OPT_PATH: *(const char **)row->target = text; return 0;
    case OPT_CHOICE: return set_choice(row, text, err);
    case OPT_TEXTS: return add_text(row, text);
    case OPT_RANGE: return set_range(row, text, err);
    case OPT_GROUP: break;
    }
    return dw_fail(err, "%s takes no value", opt_label(row));
}

/* ---- the command line ----------------------------------------------------------------------------------- */

typedef struct reader {
    const opt_program *program;
    char **next, **end; // arguments still to be read
    bool check;         // --check-options was given
    dw_err *err;
} reader;

/* Two values for an option that takes one are a mistake; a flag may be repeated. */
static int give(reader *r, const opt_row *row, const char *text) {
    const bool is_single = row->name && row->kind != OPT_TEXTS && row->kind != OPT_FLAG;
    const ptrdiff_t i = row - r->program->rows;
    if (is_given[i] && is_single) return dw_fail(r->err, "%s is given twice, and it takes one value", opt_label(row));
    is_given[i] = has_value[i] = true;
    return set_value(row, text, r->err);
}

/* True for an argument that is not an option: a word, "-" alone, a negative number. */
static bool is_word(const char *arg) {
    return arg[0] != '-' || !arg[1] || isdigit((unsigned char)arg[1]) || arg[1] == '.';
}

/* Reads the values of an option from the arguments that follow it. */
static int give_following(reader *r, const opt_row *row) {
    if (r->next == r->end || !is_word(*r->next))
        return dw_fail(r->err, "%s needs a value%s%s", opt_label(row), row->value ? ": " : "",
                       row->value ? row->value : "");
    if (row->kind != OPT_TEXTS) return give(r, row, *r->next++);
    while (r->next < r->end && is_word(*r->next))
        if (give(r, row, *r->next++)) return -1;
    return 0;
}

static int read_long(reader *r, const char *arg) {
    static const char *const asked[] = {"help", "help-man", "version", "summary"};
    const size_t len = strcspn(arg, "=");
    for (int i = 0; i < 4; i++)
        if (!strcmp(arg, asked[i])) return OPT_ASKED_HELP + i;
    if (!strcmp(arg, "check-options")) return r->check = true, OPT_DONE;
    const opt_row *row = find_long(r->program, arg, len);
    if (row && row->kind != OPT_FLAG) return arg[len] ? give(r, row, arg + len + 1) : give_following(r, row);
    if (row) return arg[len] ? dw_fail(r->err, "%s takes no value", opt_label(row)) : give(r, row, "");
    char word[64];
    snprintf(word, sizeof word, "%.*s", (int)(len < 60 ? len : 60), arg);
    return fail_unknown(r->program, word, r->err);
}

/* The value that has no option; NULL: the program takes none. */
static const opt_row *find_word(const opt_program *program) {
    for (const opt_row *row = program->rows; !opt_is_end(row); row++)
        if (!row->name && opt_is_value(row)) return row;
    return NULL;
}

static const opt_row *find_letter(const opt_program *program, char letter) {
    for (const opt_row *row = program->rows; !opt_is_end(row); row++)
        if (row->letter == letter) return row;
    return NULL;
}

/* Most programs take the model by -m, some as a word. */
static int fail_letter(reader *r, char letter) {
    const opt_row *word = letter == 'm' ? find_word(r->program) : NULL;
    if (word) return dw_fail(r->err, "unknown option '-m'; give %s without an option", word->value);
    return dw_fail(r->err, "unknown option '-%c'", letter);
}

static int fail_word(reader *r, const char *arg) {
    const size_t n = strlen(arg);
    if (n > 5 && !strcmp(arg + n - 5, ".gguf") && find_letter(r->program, 'm'))
        return dw_fail(r->err, "unexpected argument '%s' (did you mean '-m %s'?)", arg, arg);
    return dw_fail(r->err, "unexpected argument '%s'", arg);
}

static int read_letters(reader *r, const char *arg) {
    for (; *arg; arg++) {
        const opt_row *row = find_letter(r->program, *arg);
        if (!row) return *arg == 'h' ? OPT_ASKED_HELP : fail_letter(r, *arg);
        if (row->kind != OPT_FLAG) return arg[1] ? give(r, row, arg + 1 + (arg[1] == '=')) : give_following(r, row);
        if (give(r, row, "")) return -1;
    }
    return OPT_DONE;
}

static int read_word(reader *r, const char *arg) {
    const opt_row *row = find_word(r->program);
    return row ? give(r, row, arg) : fail_word(r, arg);
}

/* Applies defaults and checks required options and numbers of values. */
static int complete(reader *r) {
    for (const opt_row *row = r->program->rows; !opt_is_end(row); row++) {
        if (!opt_is_value(row)) continue;
        const ptrdiff_t i = row - r->program->rows;
        if (!is_given[i] && row->initial) {
            has_value[i] = true;
            if (set_value(row, row->initial, r->err)) return -1;
        } else if (!is_given[i] && row->flags & OPT_REQUIRED) {
            return dw_fail(r->err, "%s%s%s is missing", opt_label(row), row->name && row->value ? " " : "",
                           row->name && row->value ? row->value : "");
        }
        if (row->name && row->kind != OPT_TEXTS) continue;
        const size_t n = ((const opt_list *)row->target)->n;
        if (n && !is_within(row, (double)n)) {
            if (row->max >= row->min && (double)n > row->max)
                return dw_fail(r->err, "%s: %zu values are too many, at most %g are allowed", opt_label(row), n,
                               row->max);
            return dw_fail(r->err, "%s: %zu values are too few, at least %g are needed", opt_label(row), n, row->min);
        }
    }
    return 0;
}

/* True for "--count" and "--count=x" of a program that has --count. */
static bool is_own(const opt_program *program, const char *arg) {
    return arg[1] == '-' && find_long(program, arg + 2, strcspn(arg + 2, "="));
}

int opt_read(const opt_program *program, int argc, char **argv, dw_err *err) {
    reader r = {.program = program, .next = argv + 1, .end = argv + argc, .err = err};
    bool options = true;
    size_t n_rows = 0;
    while (!opt_is_end(&program->rows[n_rows])) n_rows++;
    if (n_rows > MAX_ROWS) return dw_fail(err, "the program has more than %d options", MAX_ROWS);
    parsed = program;
    memset(is_given, 0, sizeof is_given);
    memset(has_value, 0, sizeof has_value);
    while (r.next < r.end) {
        const char *arg = *r.next++;
        int rc;
        if (options && !strcmp(arg, "--")) {
            options = false;
            continue;
        }
        if (!options || is_word(arg))
            rc = read_word(&r, arg);
        else if (arg[1] == '-')
            rc = read_long(&r, arg + 2);
        else
            rc = read_letters(&r, arg + 1);
        if (rc < 0 && options && !is_word(arg) && !is_own(program, arg)) rc = advise(program, arg, err);
        if (rc) return rc;
    }
    if (complete(&r)) return -1;
    return r.check ? OPT_ASKED_CHECK : OPT_DONE;
}

/* A program whose output could not be written must not exit with 0. */
static void check_stdout(void) {
    if (!fflush(stdout) && !ferror(stdout)) return;
    fprintf(stderr, "%s: cannot write to stdout: %s\n", tool_name(), strerror(errno));
    dw_out_remove_unfinished(); // _exit skips the exit handlers that were installed before this one
    _exit(1);
}

/* A static buffer, because the C library silently drops output when it cannot allocate one. */
static void buffer_stdout(void) {
    static char buffer[BUFSIZ];
    setvbuf(stdout, buffer, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF, sizeof buffer);
}

void opt_parse(const opt_program *program, int argc, char **argv) {
    dw_err err = {0};
    tool_program = program;
    if (dw_open_standard_streams(&err)) die_err(&err);
    buffer_stdout();
    dw_inputs_keep();
    signals_catch();
    atexit(check_stdout);
    const int rc = opt_read(program, argc, argv, &err);
    switch (rc) {
    case OPT_ASKED_HELP: opt_print_help(program, stdout); break;
    case OPT_ASKED_MAN: opt_print_man(program, stdout); break;
    case OPT_ASKED_VERSION: printf("%s %s\n", tool_name(), DEADWOOD_VERSION); break;
    case OPT_ASKED_SUMMARY: printf("%s\n", program->summary); break;
    case OPT_ASKED_CHECK: paths_print(program); break;
    case OPT_DONE: say_if_interrupted(NULL), paths_check(program); return;
    default: die_usage("%s", err.text);
    }
    exit(0);
}

/* ---- effective values ----------------------------------------------------------------------------------- */

/* A short decimal text that reads back as x: 10 and not 1e+01. */
static char *real_text(double x) {
    char text[40];
    int digits = x == floor(x) && fabs(x) < 1e6 ? 6 : 1;
    do snprintf(text, sizeof text, "%.*g", digits, x);
    while (strtod(text, NULL) != x && digits++ < 17);
    return strdup(text);
}

static char *scalar_text(const opt_row *row) {
    char text[64];
    switch (row->kind) {
    case OPT_FLAG: return *(bool *)row->target ? tool_need(strdup(""), opt_label(row)) : NULL;
    case OPT_INT: snprintf(text, sizeof text, "%d", *(int *)row->target); break;
    case OPT_REAL: return tool_need(real_text(*(double *)row->target), opt_label(row));
    case OPT_BYTES: snprintf(text, sizeof text, "%zu", *(size_t *)row->target); break;
    case OPT_RANGE: {
        const opt_range *range = row->target;
        if (!range->last) return NULL;
        snprintf(text, sizeof text, "%d-%d", range->first, range->last);
        break;
    }
    default: {
        const char *s = *(const char **)row->target;
        return s ? tool_need(strdup(s), opt_label(row)) : NULL;
    }
    }
    return tool_need(strdup(text), opt_label(row));
}

bool opt_is_given(const char *name) { return is_given[find_long(parsed, name, strlen(name)) - parsed->rows]; }

void opt_chosen(const void *target) {
    for (const opt_row *row = parsed->rows; !opt_is_end(row); row++)
        if (opt_is_value(row) && row->target == target) has_value[row - parsed->rows] = true;
}

char **opt_values(const opt_row *row, size_t *n) {
    *n = 0;
    const ptrdiff_t i = row - parsed->rows;
    if (!has_value[i]) return NULL;
    const bool is_list = !row->name || row->kind == OPT_TEXTS;
    const opt_list *list = row->target; // valid if is_list
    char **value = tool_need(calloc(is_list ? list->n + 1 : 1, sizeof *value), opt_label(row));
    if (is_list) {
        for (; *n < list->n; ++*n) value[*n] = tool_need(strdup(list->item[*n]), opt_label(row));
    } else {
        value[0] = scalar_text(row);
        *n = value[0] != NULL;
    }
    if (*n) return value;
    free(value);
    return NULL;
}

/* Writes $'..'; the quote and every byte that is not printable ASCII become escapes. */
static char *quote_bytes(const char *text, char *to) {
    to = stpcpy(to, "$'");
    for (; *text; text++) {
        const bool is_plain = *text >= ' ' && *text < 0x7f && *text != '\'';
        if (*text == '\\') to = stpcpy(to, "\\\\");
        else if (is_plain) *to++ = *text;
        else to += sprintf(to, "\\x%02x", (uint8_t)*text);
    }
    return stpcpy(to, "'");
}

static char *quote_text(const char *text, char *to) {
    *to++ = '\'';
    for (; *text; text++) to = *text == '\'' ? stpcpy(to, "'\\''") : (*to = *text, to + 1);
    return stpcpy(to, "'");
}

char *opt_quoted(const char *text) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+=.,/:@%^";
    if (*text && !text[strspn(text, plain)]) return tool_need(strdup(text), "a quoted word");
    const size_t n = strlen(text);
    char *shown = tool_need(malloc(4 * n + 1), "a quoted word"),
         *quoted = tool_need(malloc(4 * n + 4), "a quoted word");
    dw_show(shown, 4 * n + 1, text, n);
    strcmp(shown, text) ? quote_bytes(text, quoted) : quote_text(text, quoted);
    free(shown);
    return quoted;
}

const tool_kv_name tool_kv_names[] = {
    {"f16", DW_KV_CACHE_F16}, {"f32", DW_KV_CACHE_F32}, {"q8_0", DW_KV_CACHE_Q8_0}, {0}};

const tool_precision_name tool_precision_names[] = {
    {"split", "each number as a sum of two BF16", DW_PRECISION_SPLIT},
    {"rounded", "quantized weights and their inputs rounded to one BF16: faster", DW_PRECISION_ROUNDED},
    {"int8", "inputs of quantized weights rounded to 8 bits, as in generation: fastest without AMX", DW_PRECISION_INT8},
    {"bf16",
     "all weights and inputs, of attention too, rounded to one BF16, as models in bfloat16 do: F16 is fastest so; as "
     "split where the CPU does not multiply BF16",
     DW_PRECISION_BF16},
    {0}};

dw_precision tool_precision(const char *name) {
    for (const tool_precision_name *p = tool_precision_names; p->name; p++)
        if (!strcmp(p->name, name)) return p->precision;
    return DW_PRECISION_DEFAULT;
}

const tool_select_name tool_select_names[] = {
    {"auto",
     "skip closed neurons; where down has 16 or 32 bits, only in the layers in which that is faster on this machine",
     DW_SELECT_AUTO, false},
    {"fused", "skip in every gated layer: gate, test, up, down in one pass over the neurons", DW_SELECT_FUSED, false},
    {"listed", "as fused, in separate steps: all gates, a list, gathered rows, products", DW_SELECT_FUSED, true},
    {"dense", "skip nothing, as if the model were not gated", DW_SELECT_DENSE, false},
    {0}};

const tool_select_name *tool_select(void) {
    for (const tool_select_name *s = tool_select_names; s->name; s++)
        if (!strcmp(s->name, tool.select)) return s;
    return tool_select_names;
}

void tool_backend_text(char text[32]) {
    const char *level = !strcmp(tool.backend, "cpu") ? dw_cpu_level(NULL) : NULL;
    snprintf(text, 32, "%s%s%s", tool.backend, level ? " " : "", level ? level : "");
}

dw_kv_cache tool_kv(void) {
    for (const tool_kv_name *k = tool_kv_names; k->name; k++)
        if (!strcmp(k->name, tool.kv)) return k->kv;
    return DW_KV_CACHE_F16;
}
