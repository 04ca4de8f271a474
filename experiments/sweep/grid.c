/* grid.c - reads a grid and checks it (grid.h says how it is written). */
#include "experiments/sweep/grid.h"
#include "experiments/sweep/controls.h"
#include "experiments/sweep/stored_bases.h"
#include "kit/hash_cache.h"
#include "kit/options.h"

#include <ctype.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 1 << 20, MAX_WORDS = 1 << 16 };

static const char head[] = "# deadwood grid 1";

typedef struct reader {
    grid *g;
    char **word; // of the statement that is read, with their quotes
    size_t n_word, cap_word;
    int line;            // where it begins
    controls *controls;  // see every statement; NULL: none are wanted
    stored_bases *bases; // NULL: bases are evaluated with every model
} reader;

/* ---- words ------------------------------------------------------------------------------------------------------ */

static bool is_name_byte(char c) { return isalnum((unsigned char)c) || c == '_'; }

static bool is_name(const char *s) {
    if (!isalpha((unsigned char)*s)) return false;
    while (is_name_byte(*s)) s++;
    return !*s;
}

/* The length of the word at the begin of a line, quotes included; 0: a quote does not end. */
static size_t word_length(const char *line) {
    const char *s = line;
    for (char quote = 0; *s && (quote || !strchr(" \t\r", *s)); s++) {
        if (quote)
            quote = *s == quote ? 0 : quote;
        else if (*s == '\'' || *s == '"')
            quote = *s;
        if (quote && !s[1]) return 0;
    }
    return (size_t)(s - line);
}

static int add_words(reader *r, char *line, dw_err *err) {
    for (;;) {
        line += strspn(line, " \t\r");
        if (!*line || *line == '#') return 0;
        const size_t n = word_length(line);
        if (!n) return dw_fail(err, "a quote does not end: %.40s", line);
        if (r->n_word == MAX_WORDS) return dw_fail(err, "more than %d words", MAX_WORDS);
        if (dw_grow(&r->word, &r->cap_word, r->n_word + 1, sizeof *r->word, "the words of a grid", err)) return -1;
        char *copy = dw_alloc(n + 1, 1, "a word of a grid", err);
        if (!copy) return -1;
        memcpy(copy, line, n);
        r->word[r->n_word++] = copy;
        line += n;
    }
}

static void drop_words(reader *r) {
    for (size_t i = 0; i < r->n_word; i++) free(r->word[i]);
    r->n_word = 0;
}

static bool begins_pattern(char c) { return c == '*' || c == '?' || c == '['; }

/* Whether a word has * ? [ outside quotes. */
static bool has_pattern(const char *word) {
    for (char quote = 0; *word; word++) {
        if (!quote && begins_pattern(*word)) return true;
        if (quote ? *word == quote : *word == '\'' || *word == '"') quote = quote ? 0 : *word;
    }
    return false;
}

/* A value without its quotes; free().  escapes: quoted bytes of patterns stand for themselves in a pattern. */
static char *unquoted(const char *word, bool escapes, dw_err *err) {
    char *copy = dw_alloc(2 * strlen(word) + 1, 1, "a value", err), *to = copy, quote = 0;
    for (; copy && *word; word++) {
        if (*word == quote)
            quote = 0;
        else if (!quote && (*word == '\'' || *word == '"'))
            quote = *word;
        else if (*word == '$' && quote != '\'') {
            dw_fail(err, "a value cannot name another one: '%.40s'; only commands can", word);
            free(copy);
            return NULL;
        } else {
            if (escapes && quote && (begins_pattern(*word) || *word == ']' || *word == '\\')) *to++ = '\\';
            *to++ = *word;
        }
    }
    return copy;
}

static char *plain(const char *word, dw_err *err) { return unquoted(word, false, err); }

/* ---- names ------------------------------------------------------------------------------------------------------ */

static int find_variable(const grid *g, const char *name) {
    for (size_t i = 0; i < g->n_variable; i++)
        if (!strcmp(g->variable[i].name, name)) return (int)i;
    return -1;
}

static int find_list(const grid *g, const char *name) {
    for (size_t i = 0; i < g->n_list; i++)
        if (!strcmp(g->list[i].name, name)) return (int)i;
    return -1;
}

static int find_step(const grid *g, const char *name) {
    for (size_t i = 0; i < g->n_step; i++)
        if (!strcmp(g->step[i].name, name)) return (int)i;
    return -1;
}

static int check_new_name(const grid *g, const char *name, dw_err *err) {
    static const char *const taken[] = {"out", "rows", "if", "and", "alone", "control"};
    if (!is_name(name)) return dw_fail(err, "'%.40s' is no name; letters, digits and _ make one, a letter first", name);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (!strcmp(name, taken[i])) return dw_fail(err, "'%s' has a meaning of its own; choose another name", name);
    if (find_variable(g, name) >= 0 || find_list(g, name) >= 0 || find_step(g, name) >= 0)
        return dw_fail(err, "there are two things called '%.40s'", name);
    return 0;
}

typedef struct known_name { // a row as opt_nearest takes it
    const char *name;
} known_name;

static int fail_unknown(const grid *g, const char *name, dw_err *err) {
    static const char *const own[] = {"out", "rows"};
    known_name all[GRID_MAX_VARIABLES * 2 + GRID_MAX_STEPS + 3] = {{0}};
    size_t n = 0;
    for (size_t i = 0; i < 2; i++) all[n++].name = own[i];
    for (size_t i = 0; i < g->n_variable; i++) all[n++].name = g->variable[i].name;
    for (size_t i = 0; i < g->n_list; i++) all[n++].name = g->list[i].name;
    for (size_t i = 0; i < g->n_step; i++) all[n++].name = g->step[i].name;
    const char *near = opt_nearest(name, all, sizeof *all);
    if (near) return dw_fail(err, "nothing above is called '%.40s' (did you mean '%.40s'?)", name, near);
    return dw_fail(
        err, "nothing above is called '%.40s'; a command names variables, lists and steps that stand above it", name);
}

/* ---- conditions ------------------------------------------------------------------------------------------------- */

static int mark_value(const grid_variable *v, grid_condition *c, const char *word, dw_err *err) {
    char *value = plain(word, err);
    size_t i = 0;
    while (value && i < v->n_value && strcmp(v->value[i], value)) i++;
    const bool found = value && i < v->n_value;
    if (found)
        c->holds[i] = true;
    else if (value)
        dw_fail(err, "'%s' never has the value '%.40s'", v->name, value);
    free(value);
    return found ? 0 : -1;
}

/* "NAME = VALUE .." from word i on; returns where it ends, 0 on failure. */
static size_t read_condition(reader *r, size_t i, grid_conditions *c, dw_err *err) {
    if (i + 2 >= r->n_word || strcmp(r->word[i + 1], "=") || !strcmp(r->word[i + 2], "and")) {
        dw_fail(err, "after 'if' and 'and' comes VARIABLE = VALUE ..");
        return 0;
    }
    const int variable = find_variable(r->g, r->word[i]);
    if (variable < 0) {
        dw_fail(err, "'if %.40s': no variable above is called so", r->word[i]);
        return 0;
    }
    grid_variable *v = &r->g->variable[variable];
    if (dw_grow(&c->one, &c->cap, c->n + 1, sizeof *c->one, "conditions", err)) return 0;
    grid_condition *one = &c->one[c->n++];
    *one = (grid_condition){variable, dw_alloc(v->n_value, sizeof *one->holds, "a condition", err)};
    v->used = true;
    for (i += 2; one->holds && i < r->n_word && strcmp(r->word[i], "and"); i++)
        if (mark_value(v, one, r->word[i], err)) return 0;
    return one->holds ? i : 0;
}

/* Takes the conditions off the end of the statement. */
static int read_conditions(reader *r, grid_conditions *c, dw_err *err) {
    size_t first = 0;
    while (first < r->n_word && strcmp(r->word[first], "if")) first++;
    for (size_t i = first; i < r->n_word;) {
        i = read_condition(r, i + 1, c, err);
        if (!i) return -1;
    }
    while (r->n_word > first) free(r->word[--r->n_word]);
    return 0;
}

static uint64_t condition_needs(const grid *g, const grid_conditions *c) {
    uint64_t needs = 0;
    for (size_t i = 0; i < c->n; i++) needs |= g->variable[c->one[i].variable].needs;
    return needs;
}

bool grid_holds(const grid_conditions *c, const uint16_t *value) {
    for (size_t i = 0; i < c->n; i++)
        if (!c->one[i].holds[value[c->one[i].variable]]) return false;
    return true;
}

static void release_conditions(grid_conditions *c) {
    for (size_t i = 0; i < c->n; i++) free(c->one[i].holds);
    free(c->one);
}

/* ---- variables and lists ---------------------------------------------------------------------------------------- */

static int read_variable(reader *r, dw_err *err) {
    grid *g = r->g;
    if (g->n_variable == GRID_MAX_VARIABLES) return dw_fail(err, "more than %d variables", GRID_MAX_VARIABLES);
    if (dw_grow(&g->variable, &g->cap_variable, g->n_variable + 1, sizeof *g->variable, "variables", err)) return -1;
    grid_variable *v = &g->variable[g->n_variable];
    *v = (grid_variable){.line = r->line, .name = dw_strdup(r->word[0], err)};
    if (!v->name) return -1;
    const uint64_t own = (uint64_t)1 << g->n_variable;
    if (read_conditions(r, &v->only, err)) {
        g->n_variable++; // so that it is released
        return -1;
    }
    g->n_variable++;
    v->needs = own | condition_needs(g, &v->only);
    if (r->n_word < 3) return dw_fail(err, "'%s' has no value", v->name);
    if (r->n_word - 2 > GRID_MAX_VALUES) return dw_fail(err, "'%s' has more than %d values", v->name, GRID_MAX_VALUES);
    for (size_t i = 2; i < r->n_word; i++) {
        if (has_pattern(r->word[i]))
            return dw_fail(
                err,
                "'%s': '%.40s' is no value; values are separated by spaces, without brackets, and patterns of "
                "files belong into a list (:=); quotes keep these bytes",
                v->name, r->word[i]);
        if (dw_grow(&v->value, &v->cap_value, v->n_value + 1, sizeof *v->value, "values", err)) return -1;
        char *value = v->value[v->n_value] = plain(r->word[i], err);
        if (!value) return -1;
        v->n_value++;
        for (size_t k = 0; k + 1 < v->n_value; k++)
            if (!strcmp(v->value[k], value)) return dw_fail(err, "'%s' has the value '%.40s' twice", v->name, value);
    }
    return 0;
}

static int read_list(reader *r, dw_err *err) {
    grid *g = r->g;
    if (g->n_list == GRID_MAX_VARIABLES) return dw_fail(err, "more than %d lists", GRID_MAX_VARIABLES);
    if (dw_grow(&g->list, &g->cap_list, g->n_list + 1, sizeof *g->list, "lists", err)) return -1;
    grid_list *l = &g->list[g->n_list++];
    *l = (grid_list){.line = r->line, .name = dw_strdup(r->word[0], err)};
    if (!l->name) return -1;
    if (r->n_word < 3) return dw_fail(err, "'%s' has no words", l->name);
    if (!(l->matches = dw_alloc(r->n_word, sizeof *l->matches, "the words of a list", err))) return -1;
    for (size_t i = 2; i < r->n_word; i++) {
        if (dw_grow(&l->word, &l->cap_word, l->n_word + 1, sizeof *l->word, "the words of a list", err)) return -1;
        l->matches[l->n_word] = has_pattern(r->word[i]);
        if (!(l->word[l->n_word] = unquoted(r->word[i], l->matches[l->n_word], err))) return -1;
        l->n_word++;
    }
    return 0;
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

static int add_piece(grid_word *w, grid_piece piece, dw_err *err) {
    if (dw_grow(&w->piece, &w->cap, w->n + 1, sizeof *w->piece, "a word", err)) return -1;
    w->piece[w->n++] = piece;
    return 0;
}

/* The n bytes as a piece of text, without the quotes that bound it. */
static int add_text(grid_word *w, const char *text, size_t n, dw_err *err) {
    if (!n) return 0;
    char *copy = dw_alloc(n + 1, 1, "a word", err);
    if (!copy) return -1;
    memcpy(copy, text, n);
    if (!add_piece(w, (grid_piece){.kind = GRID_TEXT, .text = copy}, err)) return 0;
    free(copy);
    return -1;
}

/* A new output; which one, -1: refused.  Its suffix comes with the rest of the word (take_suffix). */
static int add_output(grid_step *s, bool rows, dw_err *err) {
    if (rows && s->makes_rows) return dw_fail(err, "'%s' names $rows twice", s->name);
    if (s->n_output == GRID_MAX_OUTPUTS)
        return dw_fail(err, "'%s' has more than %d outputs", s->name, GRID_MAX_OUTPUTS);
    if (dw_grow(&s->output, &s->cap_output, s->n_output + 1, sizeof *s->output, "outputs", err)) return -1;
    grid_output *o = &s->output[s->n_output];
    *o = (grid_output){dw_strdup(rows ? ".tsv" : "", err), rows};
    if (!o->suffix) return -1;
    s->makes_rows |= rows;
    return (int)s->n_output++;
}

static int check_outputs(const grid_step *s, dw_err *err) {
    if (!s->n_output)
        return dw_fail(err, "'%s' does not say what it writes; name it as $out or $rows, as in -o $out.gguf", s->name);
    for (size_t i = 0; i < s->n_output; i++)
        for (size_t k = 0; k < i; k++)
            if (!strcmp(s->output[i].suffix, s->output[k].suffix))
                return dw_fail(err,
                               "'%s' names its output twice; several outputs need different suffixes, "
                               "as in -o $out.gguf --report $out.report.tsv",
                               s->name);
    return 0;
}

static int add_read(grid *g, grid_step *s, int step, dw_err *err) {
    const grid_step *from = &g->step[step];
    s->needs |= from->needs;
    for (size_t i = 0; i < s->n_read; i++)
        if (s->reads[i] == step) return 0;
    if (dw_grow(&s->reads, &s->cap_read, s->n_read + 1, sizeof *s->reads, "inputs of a step", err)) return -1;
    s->reads[s->n_read++] = step;
    return 0;
}

/* A step that reads the list `select` or `report` makes rows of that role. */
static int set_role(grid_step *s, const char *list, dw_err *err) {
    const grid_role role = !strcmp(list, "select") ? GRID_SELECT : !strcmp(list, "report") ? GRID_REPORT : GRID_NO_ROLE;
    if (role == GRID_NO_ROLE || role == s->role) return 0;
    if (s->role != GRID_NO_ROLE)
        return dw_fail(err, "'%s' reads the texts of select and those of report; use two steps", s->name);
    if (role == GRID_REPORT && strcmp(s->tool, "score"))
        return dw_fail(err, "'%s' reads the texts of report, which are for rows of score alone", s->name);
    s->role = role;
    return 0;
}

/* What $NAME stands for. */
static int add_reference(grid *g, grid_step *s, grid_word *w, const char *name, dw_err *err) {
    const int variable = find_variable(g, name), list = find_list(g, name), step = find_step(g, name);
    const bool rows = !strcmp(name, "rows");
    if (rows || !strcmp(name, "out")) {
        const int output = add_output(s, rows, err);
        return output < 0 ? -1 : add_piece(w, (grid_piece){.kind = GRID_OUTPUT, .output = output}, err);
    }
    if (variable >= 0) {
        g->variable[variable].used = true;
        s->needs |= g->variable[variable].needs;
        return add_piece(w, (grid_piece){.kind = GRID_VARIABLE, .index = variable}, err);
    }
    if (list >= 0) {
        g->list[list].used = true;
        return set_role(s, name, err) ? -1 : add_piece(w, (grid_piece){.kind = GRID_LIST, .index = list}, err);
    }
    if (step >= 0)
        return add_read(g, s, step, err) ? -1 : add_piece(w, (grid_piece){.kind = GRID_STEP, .index = step}, err);
    if (!strcmp(name, s->name))
        return dw_fail(err, "'%s' reads its own output; what it writes is called $out", s->name);
    return fail_unknown(g, name, err);
}

/* The reference at `at`, after its $; *end: after it. */
static int read_reference(grid *g, grid_step *s, grid_word *w, const char *at, const char **end, dw_err *err) {
    char name[64];
    const bool braces = *at == '{';
    const char *first = at + braces;
    size_t n = 0;
    while (is_name_byte(first[n])) n++;
    if (!n || (braces && first[n] != '}'))
        return dw_fail(err, "a $ without a name: '%.40s'; '$' keeps it as it is", at - 1);
    if (n >= sizeof name) return dw_fail(err, "a name of %zu bytes; at most %zu", n, sizeof name - 1);
    memcpy(name, first, n);
    name[n] = 0;
    *end = first + n + braces;
    return add_reference(g, s, w, name, err);
}

static bool is_suffix(const char *text) {
    const size_t n = strlen(text);
    return text[0] == '.' && isalpha((unsigned char)text[1]) &&
           strspn(text + 1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.") == n - 1 && n <= 16 &&
           !(n >= 5 && !strcmp(text + n - 5, ".part"));
}

/* The text after $out is the suffix, to the end of the word. */
static int take_suffix(grid_step *s, grid_word *w, dw_err *err) {
    size_t i = 0;
    while (i < w->n && w->piece[i].kind != GRID_OUTPUT) i++;
    if (i == w->n || i + 1 == w->n) return 0;
    grid_output *o = &s->output[w->piece[i].output];
    char *suffix = w->piece[i + 1].text;
    if (o->is_rows) return dw_fail(err, "$rows ends its word; put a space after it");
    if (i + 2 < w->n || !suffix || !is_suffix(suffix))
        return dw_fail(err, "after $out comes a suffix like .gguf or .h5, or nothing");
    free(o->suffix);
    o->suffix = suffix;
    w->n--;
    return 0;
}

/* $STEP.SUFFIX is one of the outputs of a step that has several; other text after $STEP stays. */
static int take_output(const grid *g, grid_word *w, dw_err *err) {
    for (size_t i = 0; i < w->n; i++) {
        grid_piece *p = &w->piece[i];
        if (p->kind != GRID_STEP) continue;
        const grid_step *from = &g->step[p->index];
        const char *after = i + 1 < w->n ? w->piece[i + 1].text : NULL;
        for (size_t k = 0; k < from->n_output && after && i + 2 == w->n; k++)
            if (from->n_output > 1 && !strcmp(from->output[k].suffix, after)) {
                p->output = (int)k;
                free(w->piece[--w->n].text);
                break;
            }
        if (from->output[p->output].is_rows) return dw_fail(err, "'%s' makes rows, which no step reads", from->name);
    }
    return 0;
}

static int read_word(grid *g, grid_step *s, const char *text, dw_err *err) {
    if (dw_grow(&s->word, &s->cap_word, s->n_word + 1, sizeof *s->word, "the words of a command", err)) return -1;
    grid_word *w = &s->word[s->n_word++];
    *w = (grid_word){0};
    const char *from = text; // of the text that has not become a piece
    char quote = 0;
    for (const char *at = text;;) {
        const bool is_quote = *at && (quote ? *at == quote : *at == '\'' || *at == '"');
        const bool is_reference = *at == '$' && quote != '\'';
        if (*at && !is_quote && !is_reference) {
            at++;
            continue;
        }
        if (add_text(w, from, (size_t)(at - from), err)) return -1;
        if (!*at) break;
        if (is_quote) quote = quote ? 0 : *at;
        if (is_reference && read_reference(g, s, w, at + 1, &at, err)) return -1;
        from = at += is_quote;
    }
    if (take_suffix(s, w, err) || take_output(g, w, err)) return -1;
    w->matches = w->n == 1 && w->piece[0].kind == GRID_TEXT && has_pattern(text);
    if (w->matches) {
        free(w->piece[0].text);
        if (!(w->piece[0].text = unquoted(text, true, err))) return -1;
    }
    w->splits = w->n == 1 && *text == '$' && (w->piece[0].kind == GRID_VARIABLE || w->piece[0].kind == GRID_LIST);
    for (size_t i = 0; i < w->n && !w->splits; i++)
        if (w->piece[i].kind == GRID_LIST)
            return dw_fail(err, "the list '%s' must stand alone in its word", g->list[w->piece[i].index].name);
    return 0;
}

/* score writes the role into its rows when it is told so. */
static int add_role(grid *g, grid_step *s, dw_err *err) {
    if (s->role == GRID_NO_ROLE || !s->makes_rows) return 0;
    if (read_word(g, s, "--role", err)) return -1;
    return read_word(g, s, s->role == GRID_SELECT ? "select" : "report", err);
}

static int read_step(reader *r, dw_err *err) {
    grid *g = r->g;
    if (g->n_step == GRID_MAX_STEPS) return dw_fail(err, "more than %d steps", GRID_MAX_STEPS);
    if (dw_grow(&g->step, &g->cap_step, g->n_step + 1, sizeof *g->step, "steps", err)) return -1;
    grid_step s = {.line = r->line, .name = dw_strdup(r->word[0], err)};
    int rc = s.name ? read_conditions(r, &s.only, err) : -1;
    s.alone = r->n_word > 2 && !strcmp(r->word[2], "alone");
    const size_t tool_at = 2 + s.alone;
    if (!rc && r->n_word <= tool_at) rc = dw_fail(err, "'%s' has no command", s.name);
    if (!rc && (!is_name(r->word[tool_at]) || strlen(r->word[tool_at]) > 32))
        rc = dw_fail(err, "'%.40s' is no name of a program", r->word[tool_at]);
    if (!rc) rc = (s.tool = dw_strdup(r->word[tool_at], err)) ? 0 : -1;
    s.needs = condition_needs(g, &s.only);
    for (size_t i = tool_at + 1; i < r->n_word && !rc; i++) rc = read_word(g, &s, r->word[i], err);
    if (!rc) rc = check_outputs(&s, err);
    if (!rc) rc = add_role(g, &s, err);
    g->step[g->n_step++] = s; // it cannot read itself
    return rc;
}

static int read_control(reader *r, dw_err *err) {
    grid *g = r->g;
    if (dw_grow(&g->control, &g->cap_control, g->n_control + 1, sizeof *g->control, "controls", err)) return -1;
    g->control[g->n_control] = (grid_conditions){0};
    return read_conditions(r, &g->control[g->n_control++], err);
}

/* ---- stored bases ----------------------------------------------------------------------------------------------- */

/* A step that compares with the output of a step reads stored predictions instead.  The step that stores them is new,
 * unless another step asked for the same ones before. */
static int read_stored_base(reader *r, dw_err *err) {
    stored_base base;
    const int found = stored_bases_find(r->bases, r->word, r->n_word, &base, err);
    if (found < 0) return -1;
    if (!found || find_step(r->g, base.of) < 0) return 0;
    if (base.is_new) {
        reader other = *r;
        other.word = base.word;
        other.n_word = base.n_word;
        if (check_new_name(r->g, base.word[0], err) || read_step(&other, err))
            return dw_fail_in(err,
                              "the step that stores the base (--base exact evaluates it with every model instead)");
    }
    return stored_bases_use(&base, r->word, err);
}

/* ---- the file --------------------------------------------------------------------------------------------------- */

static int read_statement(reader *r, dw_err *err) {
    if (!r->n_word) return 0;
    const char *second = r->n_word > 1 ? r->word[1] : "";
    if (r->controls) controls_see(r->controls, r->word, r->n_word);
    if (!strcmp(r->word[0], "control") && !strcmp(second, "if")) return read_control(r, err);
    const bool variable = !strcmp(second, "="), list = !strcmp(second, ":="), step = !strcmp(second, ":");
    if (step && r->bases && read_stored_base(r, err)) return -1;
    if (!variable && !list && !step)
        return dw_fail(err, "a line is NAME = VALUES, NAME := WORDS, NAME : COMMAND or control if ..");
    if (check_new_name(r->g, r->word[0], err)) return -1;
    return variable ? read_variable(r, err) : list ? read_list(r, err) : read_step(r, err);
}

static int end_statement(reader *r, const char *what, dw_err *err) {
    dw_err why = {0};
    const int rc = read_statement(r, &why);
    drop_words(r);
    return rc ? dw_fail(err, "'%s', line %d: %s", what, r->line, why.text) : 0;
}

static int read_lines(reader *r, char *text, const char *what, dw_err *err) {
    int line = 0;
    for (char *rest = text; rest;) {
        char *at = strsep(&rest, "\n");
        line++;
        const bool goes_on = *at == ' ' || *at == '\t', empty = !at[strspn(at, " \t\r")];
        if (!goes_on && !empty) {
            if (end_statement(r, what, err)) return -1;
            r->line = line;
        }
        if (line == 1 && (strncmp(at, head, strlen(head)) || at[strlen(head) + strspn(at + strlen(head), " \r")]))
            return dw_fail(err, "'%s', line 1: a grid begins with the line '%s'", what, head);
        dw_err why = {0};
        if (add_words(r, at, &why)) return dw_fail(err, "'%s', line %d: %s", what, line, why.text);
    }
    return end_statement(r, what, err);
}

static int check_used(const grid *g, const char *what, dw_err *err) {
    for (size_t i = 0; i < g->n_variable; i++)
        if (!g->variable[i].used)
            return dw_fail(err, "'%s', line %d: no step uses '%s'", what, g->variable[i].line, g->variable[i].name);
    for (size_t i = 0; i < g->n_list; i++)
        if (!g->list[i].used)
            return dw_fail(err, "'%s', line %d: no step uses '%s'", what, g->list[i].line, g->list[i].name);
    const int select = find_list(g, "select"), report = find_list(g, "report");
    if ((select >= 0) != (report >= 0))
        return dw_fail(err, "'%s', line %d: there is a list '%s', but no list '%s'; a grid has both or none", what,
                       g->list[select >= 0 ? select : report].line, select >= 0 ? "select" : "report",
                       select >= 0 ? "report" : "select");
    return g->n_step ? 0 : dw_fail(err, "'%s' has no step; a step is a line NAME : COMMAND", what);
}

static int parse(grid *g, const char *text, size_t len, const char *what, reader *r, dw_err *err) {
    *g = (grid){0};
    if (!dw_is_utf8(text, len)) return dw_fail(err, "'%s' is not UTF-8 text", what);
    r->g = g;
    r->line = 1;
    char *copy = dw_alloc(len + 1, 1, "a grid", err);
    if (copy) memcpy(copy, text, len);
    int rc = copy ? read_lines(r, copy, what, err) : -1;
    if (!rc) rc = check_used(g, what, err);
    drop_words(r);
    free(r->word);
    free(copy);
    if (rc) grid_release(g);
    g->n_own_step = g->n_step;
    return rc;
}

/* Parses the text, with stored bases where they are wanted. */
static int parse_plain(grid *g, const char *text, size_t len, const char *what, const grid_options *o, controls *seen,
                       dw_err *err) {
    reader r = {.controls = seen, .bases = o->stored_bases ? stored_bases_new(err) : NULL};
    *g = (grid){0};
    const int rc = o->stored_bases && !r.bases ? -1 : parse(g, text, len, what, &r, err);
    stored_bases_free(r.bases);
    return rc;
}

int grid_parse(grid *g, const char *text, size_t len, const char *what, dw_err *err) {
    return grid_parse_with(g, text, len, what, &(grid_options){0}, err);
}

/* The text once more, with the statements of its controls after it. */
static int parse_more(grid *g, const char *text, size_t len, const char *what, const grid_options *o, const char *more,
                      dw_err *err) {
    const size_t n_own = g->n_step;
    char *all = dw_format(err, "%.*s\n%s", (int)len, text, more);
    grid_release(g);
    const int rc = all ? parse_plain(g, all, strlen(all), what, o, NULL, err) : -1;
    free(all);
    if (rc) return dw_fail_in(err, "with its controls (--controls none leaves them out)");
    g->n_own_step = n_own;
    return 0;
}

int grid_parse_with(grid *g, const char *text, size_t len, const char *what, const grid_options *o, dw_err *err) {
    *g = (grid){0};
    if (!o->controls) return parse_plain(g, text, len, what, o, NULL, err);
    controls *seen = controls_new(err);
    char *more = NULL, *notes = NULL;
    int rc = seen ? parse_plain(g, text, len, what, o, seen, err) : -1;
    if (!rc) rc = controls_write(seen, &more, &notes, err);
    if (!rc && *more) rc = parse_more(g, text, len, what, o, more, err);
    if (!rc) {
        g->notes = notes;
    } else {
        free(notes);
        grid_release(g);
    }
    controls_free(seen);
    free(more);
    return rc;
}

/* ---- files ------------------------------------------------------------------------------------------------------ */

/* Appends the files that match a pattern. */
static int add_matches(const char *pattern, char ***file, size_t *n, size_t *cap, dw_err *err) {
    glob_t found = {0};
    if (glob(pattern, 0, NULL, &found)) {
        globfree(&found);
        return dw_fail(err, "no file matches '%s'%s; quotes keep a word as it is", pattern,
                       *pattern == '/' ? "" : " in the current folder");
    }
    int rc = 0;
    for (size_t k = 0; k < found.gl_pathc && !rc; k++) {
        rc = dw_grow(file, cap, *n + 1, sizeof **file, "files", err);
        if (!rc) rc = ((*file)[*n] = dw_strdup(found.gl_pathv[k], err)) ? 0 : -1;
        *n += !rc;
    }
    globfree(&found);
    return rc;
}

/* The files that match take the place of a pattern. */
static int match_list(grid_list *l, dw_err *err) {
    grid_list all = {.name = l->name, .line = l->line, .used = l->used};
    int rc = 0;
    for (size_t i = 0; i < l->n_word && !rc; i++) {
        if (l->matches[i]) {
            rc = add_matches(l->word[i], &all.word, &all.n_word, &all.cap_word, err);
            continue;
        }
        rc = dw_grow(&all.word, &all.cap_word, all.n_word + 1, sizeof *all.word, "files", err);
        if (!rc) rc = (all.word[all.n_word] = dw_strdup(l->word[i], err)) ? 0 : -1;
        all.n_word += !rc;
    }
    for (size_t i = 0; i < l->n_word; i++) free(l->word[i]);
    free(l->word);
    free(l->matches);
    *l = all;
    return rc;
}

static int match_step(grid_step *s, dw_err *err) {
    for (size_t i = 0; i < s->n_word; i++) {
        grid_word *w = &s->word[i];
        if (w->matches && add_matches(w->piece[0].text, &w->file, &w->n_file, &w->cap_file, err)) return -1;
    }
    return 0;
}

static int match_files(grid *g, const char *what, dw_err *err) {
    dw_err why = {0};
    for (size_t i = 0; i < g->n_list; i++)
        if (match_list(&g->list[i], &why)) return dw_fail(err, "'%s', line %d: %s", what, g->list[i].line, why.text);
    for (size_t i = 0; i < g->n_step; i++)
        if (match_step(&g->step[i], &why)) return dw_fail(err, "'%s', line %d: %s", what, g->step[i].line, why.text);
    return 0;
}

/* No text may be both in select and in report: the variants that look best there by chance would be reported so. */
static int check_roles(const grid *g, const char *what, dw_err *err) {
    const int a = find_list(g, "select"), b = find_list(g, "report");
    char one[65], other[65];
    for (size_t i = 0; a >= 0 && i < g->list[a].n_word; i++) {
        if (kit_sha256_file(g->list[a].word[i], one, err)) return -1;
        for (size_t k = 0; k < g->list[b].n_word; k++) {
            if (kit_sha256_file(g->list[b].word[k], other, err)) return -1;
            if (!strcmp(one, other))
                return dw_fail(
                    err,
                    "'%s', line %d: '%s' of report is the same text as '%s' of select; give each set its own texts",
                    what, g->list[b].line, g->list[b].word[k], g->list[a].word[i]);
        }
    }
    return 0;
}

int grid_read(grid *g, const char *path, const grid_options *o, dw_err *err) {
    size_t len;
    char *text = dw_read_file(path, MAX_BYTES, &len, err);
    *g = (grid){0};
    int rc = text ? grid_parse_with(g, text, len, path, o, err) : -1;
    free(text);
    if (!rc && (match_files(g, path, err) || check_roles(g, path, err))) rc = -1;
    if (rc) grid_release(g);
    return rc;
}

static void release_texts(char **text, size_t n) {
    for (size_t i = 0; i < n; i++) free(text[i]);
    free(text);
}

static void release_step(grid_step *s) {
    for (size_t i = 0; i < s->n_word; i++) {
        for (size_t k = 0; k < s->word[i].n; k++) free(s->word[i].piece[k].text);
        free(s->word[i].piece);
        release_texts(s->word[i].file, s->word[i].n_file);
    }
    for (size_t i = 0; i < s->n_output; i++) free(s->output[i].suffix);
    free(s->output);
    free(s->word);
    free(s->name);
    free(s->tool);
    free(s->reads);
    release_conditions(&s->only);
}

void grid_release(grid *g) {
    for (size_t i = 0; i < g->n_variable; i++) {
        free(g->variable[i].name);
        release_texts(g->variable[i].value, g->variable[i].n_value);
        release_conditions(&g->variable[i].only);
    }
    for (size_t i = 0; i < g->n_list; i++) {
        free(g->list[i].name);
        release_texts(g->list[i].word, g->list[i].n_word);
        free(g->list[i].matches);
    }
    for (size_t i = 0; i < g->n_step; i++) release_step(&g->step[i]);
    for (size_t i = 0; i < g->n_control; i++) release_conditions(&g->control[i]);
    free(g->variable);
    free(g->list);
    free(g->step);
    free(g->control);
    free(g->notes);
    *g = (grid){0};
}
