/* options_help.c - makes --help and the man page from a program's table of options. */
#include "kit/kit_own.h"

#include <string.h>

enum { LEFT = 26, WIDTH = 100 };

/* Writes text from column *column on, wrapped at WIDTH; the next lines begin at column `left`. */
static void put_words(FILE *to, const char *text, int left, int *column) {
    bool follows = *column > left; // a word of this line
    while (*(text += strspn(text, " "))) {
        const int n = (int)strcspn(text, " ");
        if (follows && *column + 1 + n > WIDTH) {
            fprintf(to, "\n%*s", left, "");
            *column = left;
            follows = false;
        }
        *column += fprintf(to, "%s%.*s", follows ? " " : "", n, text);
        follows = true;
        text += n;
    }
}

/* Wraps paragraphs.  An empty line ends a paragraph.  An indented line stays a line; if it is too long, its rest is
 * indented further. */
static void put_paragraphs(FILE *to, const char *text) {
    int column = 0;
    while (*text) {
        char line[2048];
        const int n = (int)strcspn(text, "\n"), indent = (int)strspn(text, " ");
        snprintf(line, sizeof line, "%.*s", n, text);
        if (column && (!n || indent)) { // end of the paragraph
            fputc('\n', to);
            column = 0;
        }
        if (indent && n <= WIDTH) {
            fputs(line, to);
        } else if (indent) {
            column = fprintf(to, "%*s", indent, "");
            put_words(to, line, indent + 4, &column);
            column = 0;
        } else {
            put_words(to, line, 0, &column);
        }
        if (!column) fputc('\n', to);
        text += n + (text[n] == '\n');
    }
    if (column) fputc('\n', to);
}

/* Commands are not wrapped, so that they can be copied. */
static void put_examples(FILE *to, const char *text) {
    for (int n; *text; text += n + (text[n] == '\n')) {
        n = (int)strcspn(text, "\n");
        fprintf(to, "  %.*s\n", n, text);
    }
}

typedef struct choice_text {
    char text[512];
} choice_text;

static void add_choice(void *ctx, size_t i, const char *name, const char *help) {
    (void)help;
    choice_text *c = ctx;
    const size_t used = strlen(c->text);
    snprintf(c->text + used, sizeof c->text - used, "%s%s", i ? ", " : ": ", name);
}

/* Choices with help texts get their own lines after the row. */
static bool has_choice_lines(const opt_row *row) { return row->kind == OPT_CHOICE && row->choice_help; }

static void widen(void *ctx, size_t i, const char *name, const char *help) {
    (void)i, (void)help;
    int *width = ctx;
    if ((int)strlen(name) > *width) *width = (int)strlen(name);
}

typedef struct choice_lines {
    FILE *to;
    int width; // of the longest name
} choice_lines;

static void help_choice(void *ctx, size_t i, const char *name, const char *help) {
    (void)i;
    const choice_lines *c = ctx;
    int column = fprintf(c->to, "%*s%-*s  ", LEFT + 2, "", c->width, name);
    put_words(c->to, help, LEFT + 4 + c->width, &column);
    fputc('\n', c->to);
}

/* The text of a row: its help, the choices, the default. */
static void describe(const opt_row *row, char *text, size_t size) {
    choice_text choices = {""};
    if (row->kind == OPT_CHOICE && !has_choice_lines(row)) opt_each_choice(row, add_choice, &choices);
    snprintf(text, size, "%s%s%s%s%s%s", row->help, choices.text, row->initial ? " [" : "",
             row->initial ? row->initial : "", row->initial ? "]" : "", row->flags & OPT_REQUIRED ? " (required)" : "");
}

static void help_row(FILE *to, const opt_row *row) {
    char left[96], text[1024];
    const char letter[] = {'-', row->letter, ',', ' ', 0};
    if (row->name)
        snprintf(left, sizeof left, "  %s--%s%s%s", row->letter ? letter : "    ", row->name, row->value ? " " : "",
                 row->value ? row->value : "");
    else
        snprintf(left, sizeof left, "  %s", row->value);
    int column = fprintf(to, "%-*s", LEFT - 1, left);
    if (column >= LEFT) {
        fprintf(to, "\n%*s", LEFT, "");
    } else {
        fputc(' ', to);
    }
    column = LEFT;
    describe(row, text, sizeof text);
    put_words(to, text, LEFT, &column);
    fputc('\n', to);
    if (!has_choice_lines(row)) return;
    choice_lines lines = {.to = to};
    opt_each_choice(row, widen, &lines.width);
    opt_each_choice(row, help_choice, &lines);
}

static const opt_row built_in[] = {
    {"help", 'h', OPT_FLAG, .help = "show this text; --help-man writes it as a man page"},
    {"version", .kind = OPT_FLAG, .help = "show the version"},
    {0},
};

void opt_print_help(const opt_program *program, FILE *to) {
    int column = fprintf(to, "usage: %s", tool_name());
    put_words(to, program->usage, (int)strlen("usage: "), &column);
    fprintf(to, "\n\n%s\n", program->summary);
    if (program->about) {
        fputc('\n', to);
        put_paragraphs(to, program->about);
    }
    if (program->rows[0].kind != OPT_GROUP) fprintf(to, "\noptions:\n");
    for (const opt_row *row = program->rows; !opt_is_end(row); row++) {
        if (row->kind == OPT_GROUP)
            fprintf(to, "\n%s:\n", row->help);
        else
            help_row(to, row);
    }
    for (const opt_row *row = built_in; !opt_is_end(row); row++) help_row(to, row);
    if (program->example) {
        fprintf(to, "\nexamples:\n");
        put_examples(to, program->example);
    }
}

/* ---- man page ------------------------------------------------------------------------------------------- */

/* Escapes what roff would take as a command. */
static void put_roff(FILE *to, const char *text) {
    for (bool line_begins = true; *text; line_begins = *text++ == '\n') {
        if (line_begins && (*text == '.' || *text == '\'')) fputs("\\&", to);
        if (*text == '\\')
            fputs("\\e", to);
        else if (*text == '-')
            fputs("\\-", to);
        else
            fputc(*text, to);
    }
}

/* "  energy: error of .." is an item of a list: the bytes of its name; 0: the line is none. */
static size_t item_name(const char *line) {
    const char *colon = strstr(line, ": ");
    return line[0] == ' ' && colon && colon[-1] != ' ' ? (size_t)(colon - line) : 0;
}

static void man_item(FILE *to, char *line, size_t n_name) {
    line[n_name] = 0;
    fputs(".TP\n\\fB", to);
    put_roff(to, line + strspn(line, " "));
    fputs("\\fR\n", to);
    put_roff(to, line + n_name + 2);
    fputc('\n', to);
}

/* An empty line begins a new paragraph; indented lines are items, whose text is filled, or are kept as they are. */
static void man_paragraphs(FILE *to, const char *text) {
    bool kept = false, listed = false;
    while (*text) {
        const size_t n = strcspn(text, "\n");
        char line[2048];
        snprintf(line, sizeof line, "%.*s", (int)n, text);
        const size_t n_name = item_name(line);
        const bool keep = line[0] == ' ' && !n_name;
        if (keep != kept && n) fputs((kept = keep) ? ".PP\n.nf\n" : ".fi\n", to);
        if (listed && n && !n_name && !keep) fputs(".PP\n", to);
        listed = n_name || (listed && !n);
        if (n_name) {
            man_item(to, line, n_name);
        } else {
            put_roff(to, line);
            fputs(n ? "\n" : ".PP\n", to);
        }
        text += n + (text[n] == '\n');
    }
    if (kept) fputs(".fi\n", to);
}

static void man_choice(void *ctx, size_t i, const char *name, const char *help) {
    (void)i;
    FILE *to = ctx;
    fputs(".br\n\\fB", to);
    put_roff(to, name);
    fputs("\\fR: ", to);
    put_roff(to, help);
    fputc('\n', to);
}

static void man_row(FILE *to, const opt_row *row) {
    char text[1024];
    fputs(".TP\n", to);
    if (row->letter) fprintf(to, "\\fB\\-%c\\fR, ", row->letter);
    if (row->name) {
        fputs("\\fB\\-\\-", to);
        put_roff(to, row->name);
        fputs("\\fR", to);
    }
    if (row->value) fprintf(to, "%s\\fI%s\\fR", row->name ? " " : "", row->value);
    describe(row, text, sizeof text);
    fputc('\n', to);
    put_roff(to, text);
    fputc('\n', to);
    if (has_choice_lines(row)) opt_each_choice(row, man_choice, to);
}

void opt_print_man(const opt_program *program, FILE *to) {
    fputs(".TH \"", to);
    for (const char *c = tool_name(); *c; c++) fputc(*c >= 'a' && *c <= 'z' ? *c - 32 : *c, to);
    fprintf(to, "\" 1 \"\" \"deadwood %s\" \"deadwood\"\n.SH NAME\n", DEADWOOD_VERSION);
    put_roff(to, tool_name());
    fputs(" \\- ", to);
    put_roff(to, program->summary);
    fputs("\n.SH SYNOPSIS\n.B ", to);
    put_roff(to, tool_name());
    fputc('\n', to);
    put_roff(to, program->usage);
    fputc('\n', to);
    if (program->about) {
        fputs(".SH DESCRIPTION\n", to);
        man_paragraphs(to, program->about);
    }
    fputs(".SH OPTIONS\n", to);
    for (const opt_row *row = program->rows; !opt_is_end(row); row++) {
        if (row->kind != OPT_GROUP) {
            man_row(to, row);
            continue;
        }
        fputs(".SS ", to);
        put_roff(to, row->help);
        fputc('\n', to);
    }
    for (const opt_row *row = built_in; !opt_is_end(row); row++) man_row(to, row);
    if (program->example) {
        fputs(".SH EXAMPLES\n.nf\n", to);
        put_roff(to, program->example);
        fputs("\n.fi\n", to);
    }
    fputs(".SH EXIT STATUS\n0 done, 1 failed (one line on stderr says why), 2 wrong usage.\n.SH SEE ALSO\n"
          "\\fBdeadwood\\fR(1)\n",
          to);
}
