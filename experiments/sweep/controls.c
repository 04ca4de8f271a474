/* controls.c - writes the statements of a grid's controls from its own. */
#include "experiments/sweep/controls.h"
#include "engine.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct statement {
    char **word;
    size_t n;
    bool copied; // it depends on a step that has a copy
} statement;

struct controls {
    statement *s;
    size_t n, cap;
    bool failed;
    bool has_random;    // neurons, in seeds
    char *text, *notes; // written so far
    char **row;         // words of copied rows steps, so that none is written twice
    size_t n_row, cap_row;
    dw_err *err;
};

static const size_t NONE = SIZE_MAX;

controls *controls_new(dw_err *err) { return dw_alloc(1, sizeof(controls), "controls", err); }

void controls_free(controls *c) {
    if (!c) return;
    for (size_t i = 0; i < c->n; i++) {
        for (size_t k = 0; k < c->s[i].n; k++) free(c->s[i].word[k]);
        free(c->s[i].word);
    }
    for (size_t i = 0; i < c->n_row; i++) free(c->row[i]);
    free(c->row);
    free(c->s);
    free(c->text);
    free(c->notes);
    free(c);
}

void controls_see(controls *c, char *const *word, size_t n_word) {
    if (n_word < 3 || c->failed) return;
    c->failed = dw_grow(&c->s, &c->cap, c->n + 1, sizeof *c->s, "controls", NULL) != 0;
    if (c->failed) return;
    statement *s = &c->s[c->n++];
    *s = (statement){.word = dw_alloc(n_word, sizeof *s->word, "controls", NULL)};
    c->failed = !s->word;
    for (; !c->failed && s->n < n_word; s->n++) c->failed = !(s->word[s->n] = dw_strdup(word[s->n], NULL));
}

/* ---- what the grid says ----------------------------------------------------------------------------------------- */

static bool is_step(const statement *s) { return !strcmp(s->word[1], ":"); }

static size_t tool_at(const statement *s) { return 2 + !strcmp(s->word[2], "alone"); }

static bool runs(const statement *s, const char *tool) {
    return is_step(s) && tool_at(s) < s->n && !strcmp(s->word[tool_at(s)], tool);
}

static bool makes_rows(const statement *s) {
    for (size_t i = 2; is_step(s) && i < s->n; i++)
        if (!strcmp(s->word[i], "$rows") || !strcmp(s->word[i], "${rows}")) return true;
    return false;
}

/* The value of an option, given as --name VALUE, --name=VALUE or -x VALUE; NULL: it is not given. */
static const char *value_of(const statement *s, const char *name, const char *letter) {
    for (size_t i = 3; i < s->n; i++) {
        const size_t n = strlen(name);
        if (!strncmp(s->word[i], name, n) && s->word[i][n] == '=') return s->word[i] + n + 1;
        if (i + 1 < s->n && (!strcmp(s->word[i], name) || (letter && !strcmp(s->word[i], letter))))
            return s->word[i + 1];
    }
    return NULL;
}

static bool is_model_option(const char *word) { return !strcmp(word, "-m") || !strcmp(word, "--model"); }

/* The model that word i of a step names, as one of the words after -m or in --model=FILE; NULL: it names none. */
static const char *model_at(const statement *s, size_t i) {
    static const char joined[] = "--model=";
    size_t option = i;
    if (!strncmp(s->word[i], joined, sizeof joined - 1)) return s->word[i] + sizeof joined - 1;
    while (option > 3 && s->word[option][0] != '-') option--;
    return option < i && is_model_option(s->word[option]) ? s->word[i] : NULL;
}

static size_t name_length(const char *s) {
    size_t n = 0;
    while (isalnum((unsigned char)s[n]) || s[n] == '_') n++;
    return n;
}

/* The statement that a word $NAME or ${NAME} refers to, NONE: another word. */
static size_t referred(const controls *c, const char *word) {
    if (!word || *word != '$') return NONE;
    const char *name = word + 1 + (word[1] == '{');
    const size_t n = name_length(name);
    for (size_t i = 0; i < c->n; i++)
        if (strlen(c->s[i].word[0]) == n && !memcmp(c->s[i].word[0], name, n)) return i;
    return NONE;
}

static bool is_named(const controls *c, const char *name) {
    for (size_t i = 0; i < c->n; i++)
        if (!strcmp(c->s[i].word[0], name)) return true;
    return false;
}

/* A name that the grid leaves free: the wish, or the other one. */
static const char *free_name(const controls *c, const char *wish, const char *other) {
    return is_named(c, wish) ? other : wish;
}

static bool is_variable(const statement *s) { return !strcmp(s->word[1], "="); }

/* Whether a word is a value, or a variable that has it. */
static bool may_be(const controls *c, const char *word, const char *value) {
    const size_t i = referred(c, word);
    if (i == NONE || !is_variable(&c->s[i])) return !strcmp(word, value);
    for (size_t k = 2; k < c->s[i].n && strcmp(c->s[i].word[k], "if"); k++)
        if (!strcmp(c->s[i].word[k], value)) return true;
    return false;
}

/* The word for the first model of a chain of -m: a step that reads no other model, or a file. */
static const char *root_of(const controls *c, const char *word) {
    for (size_t depth = 0; depth <= c->n; depth++) {
        const size_t i = referred(c, word);
        const char *before = i == NONE || !is_step(&c->s[i]) ? NULL : value_of(&c->s[i], "--model", "-m");
        if (!before) return word;
        word = before;
    }
    return word;
}

/* Whether the chain of -m of a word comes to a step. */
static bool comes_from(const controls *c, const char *word, size_t step) {
    for (size_t depth = 0; word && depth <= c->n; depth++) {
        const size_t i = referred(c, word);
        if (i == step) return true;
        word = i == NONE || !is_step(&c->s[i]) ? NULL : value_of(&c->s[i], "--model", "-m");
    }
    return false;
}

/* The first model of a step that makes rows whose chain of -m comes to `step`; NULL: there is none. */
static const char *scored_of(const controls *c, const statement *s, size_t step) {
    for (size_t i = 3; makes_rows(s) && i < s->n && strcmp(s->word[i], "if"); i++) {
        const char *model = model_at(s, i);
        if (model && comes_from(c, model, step)) return model;
    }
    return NULL;
}

static bool same_word(const controls *c, const char *a, const char *b) {
    const size_t i = referred(c, a);
    return i != NONE ? i == referred(c, b) : !strcmp(a, b);
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

#define PUT(c, ...) ((c)->failed |= dw_append(&(c)->text, NULL, __VA_ARGS__) != 0)
#define NOTE(c, ...) ((c)->failed |= dw_append(&(c)->notes, NULL, __VA_ARGS__) != 0)

typedef const char *(*rename_fn)(const controls *c, size_t step, const void *ctx); // a step's new name; NULL: it stays

/* A word in which the names of steps are replaced; free(). */
static char *renamed(const controls *c, const char *word, rename_fn fn, const void *ctx) {
    char *text = dw_strdup("", NULL);
    for (const char *at = word; *at && text;) {
        const bool refers = *at == '$' && *word != '\'', braces = refers && at[1] == '{';
        const size_t n = refers ? name_length(at + 1 + braces) : 0, i = n ? referred(c, at) : NONE;
        const char *name = i == NONE || !is_step(&c->s[i]) ? NULL : fn(c, i, ctx);
        const size_t used = name ? 1 + n + 2 * (size_t)braces : 1 + strcspn(at + 1, "$");
        if (name ? dw_append(&text, NULL, "${%s}", name) : dw_append(&text, NULL, "%.*s", (int)used, at)) {
            free(text);
            return NULL;
        }
        at += used;
    }
    return text;
}

typedef struct replacement {
    size_t from; // a step
    const char *to;
} replacement;

static const char *as_replaced(const controls *c, size_t step, const void *ctx) {
    const replacement *r = ctx;
    (void)c;
    return step == r->from ? r->to : NULL;
}

/* The words of a step that makes rows, of the control alone in the place of all models: other models are not scored
 * again, and are not called controls.  The statement's own name and conditions are left out. */
static char *rows_words(const controls *c, const statement *s, const replacement *r) {
    char *text = dw_strdup("", NULL);
    bool named = false;
    for (size_t i = 2; i < s->n && strcmp(s->word[i], "if") && text; i++) {
        const bool is_model = is_model_option(s->word[i]) || model_at(s, i);
        if (is_model && named) continue;
        char *word = is_model ? dw_format(NULL, "-m ${%s}", r->to) : renamed(c, s->word[i], as_replaced, r);
        named |= is_model;
        if (!word || dw_append(&text, NULL, " %s", word)) {
            free(text);
            text = NULL;
        }
        free(word);
    }
    return text;
}

/* Writes a step that makes rows, unless one with the same words was written.  Returns whether it was. */
static bool put_rows(controls *c, const char *name, const statement *s, const replacement *r) {
    char *words = rows_words(c, s, r);
    if (!words || dw_grow(&c->row, &c->cap_row, c->n_row + 1, sizeof *c->row, "controls", NULL)) {
        c->failed = true;
        free(words);
        return false;
    }
    for (size_t i = 0; i < c->n_row; i++)
        if (!strcmp(c->row[i], words)) return free(words), false;
    c->row[c->n_row++] = words;
    PUT(c, "%s :%s\n", name, words);
    return true;
}

/* ---- random neurons --------------------------------------------------------------------------------------------- */

static const char *as_random(const controls *c, size_t step, const void *ctx) {
    char *name = (char *)(uintptr_t)ctx;
    if (!c->s[step].copied) return NULL;
    snprintf(name, 128, "random_%.100s", c->s[step].word[0]);
    return name;
}

static bool names_copies(const controls *c, const statement *s) {
    for (size_t i = 2; i < s->n; i++)
        for (const char *at = s->word[i]; *s->word[i] != '\'' && (at = strchr(at, '$')); at++) {
            const size_t k = referred(c, at);
            if (k != NONE && c->s[k].copied) return true;
        }
    return false;
}

/* Marks what a random ranking changes; whether there are rows among it. */
static bool mark_copies(controls *c) {
    bool rows = false;
    for (size_t i = 0; i < c->n; i++) {
        statement *s = &c->s[i];
        s->copied = is_step(s) && ((runs(s, "rank") && value_of(s, "--metric", NULL)) || names_copies(c, s));
        rows |= s->copied && makes_rows(s);
    }
    return rows;
}

static void put_random(controls *c, const statement *s, const char *seed) {
    const bool is_rank = runs(s, "rank") && value_of(s, "--metric", NULL);
    char name[128];
    PUT(c, "random_%s :", s->word[0]);
    for (size_t i = 2; i < s->n; i++) {
        const bool metric = is_rank && !strncmp(s->word[i], "--metric", 8);
        if (metric) PUT(c, " --metric random --seed $%s", seed);
        if (metric || (is_rank && !strncmp(s->word[i], "--seed", 6))) {
            i += !strchr(s->word[i], '=');
            continue;
        }
        char *word = renamed(c, s->word[i], as_random, name);
        c->failed |= !word;
        if (word) PUT(c, " %s", word);
        free(word);
    }
    PUT(c, "\n");
}

/* Whether a step, or what reads it, makes rows. */
static bool leads_to_rows(controls *c, size_t step) {
    bool rows = false;
    for (size_t i = 0; i < c->n; i++) {
        statement *s = &c->s[i];
        s->copied = i == step || (is_step(s) && names_copies(c, s));
        rows |= s->copied && makes_rows(s);
    }
    return rows;
}

/* The variable or list among the words of a step whose values hold an option, as how = '--metric energy' does; NONE: no
 * value does. */
static size_t holder_of(const controls *c, const statement *s, const char *option) {
    for (size_t i = 3; i < s->n; i++) {
        const size_t k = referred(c, s->word[i]);
        for (size_t v = 2; k != NONE && !is_step(&c->s[k]) && v < c->s[k].n; v++)
            if (strstr(c->s[k].word[v], option)) return k;
    }
    return NONE;
}

static bool holds_word(const statement *s, const char *word) {
    for (size_t v = 2; v < s->n; v++)
        if (strstr(s->word[v], word)) return true;
    return false;
}

/* Steps whose option cannot be replaced, because it stands in a variable's value, get no control, which is said. */
static void note_hidden(controls *c, const char *tool, const char *option, const char *what) {
    for (size_t i = 0; i < c->n; i++) {
        const statement *s = &c->s[i];
        const size_t k = runs(s, tool) && !value_of(s, option, NULL) ? holder_of(c, s, option) : NONE;
        if (k != NONE && leads_to_rows(c, i))
            NOTE(c, "no control: %s for step %s: its %s stands in a value of '%s'; write %s into the step\n", what,
                 s->word[0], option, c->s[k].word[0], option);
    }
}

static void add_random(controls *c) {
    for (size_t i = 0; i < c->n; i++) {
        const char *metric = runs(&c->s[i], "rank") ? value_of(&c->s[i], "--metric", NULL) : NULL;
        if (metric && may_be(c, metric, "random")) return;
        const size_t holder = runs(&c->s[i], "rank") && !metric ? holder_of(c, &c->s[i], "--metric") : NONE;
        if (holder != NONE && holds_word(&c->s[holder], "random")) return;
    }
    note_hidden(c, "rank", "--metric", "random neurons");
    if (!mark_copies(c)) return;
    const char *seed = free_name(c, "seed", "twin_seed");
    PUT(c, "%s = 1 2 3\n", seed);
    c->has_random = true;
    NOTE(c, "controls: random neurons in three seeds (steps");
    for (size_t i = 0; i < c->n; i++) {
        if (!c->s[i].copied) continue;
        put_random(c, &c->s[i], seed);
        NOTE(c, " random_%s", c->s[i].word[0]);
    }
    NOTE(c, ")\n");
}

/* ---- plain rounding --------------------------------------------------------------------------------------------- */

static const char *stats_of(const controls *c, const statement *cut) {
    const char *own = value_of(cut, "--stats", "-s");
    const size_t plan = referred(c, value_of(cut, "--plan", "-p"));
    return own || plan == NONE ? own : value_of(&c->s[plan], "--stats", "-s");
}

static bool is_wide(const char *type) {
    static const char *const wide[] = {"f32", "f16", "bf16", "F32", "F16", "BF16"};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (!strcmp(type, wide[i])) return true;
    return false;
}

/* The type of a file's first matrix that is quantized; NULL: none is, or the file cannot be read here. */
static const char *quantized_type(const char *path) {
    dw_gguf *g = dw_is_gguf(path) ? dw_gguf_open(path, NULL) : NULL;
    const char *found = NULL;
    for (size_t i = 0; g && !found && i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        if (t->n_dims > 1 && !is_wide(t->type->name)) found = t->type->name; // a row of a static table
    }
    if (g) dw_gguf_close(g);
    return found;
}

/* What makes a root no 16-bit model: the type; NULL: it may be one. */
static const char *narrow_type(const controls *c, const char *root) {
    const size_t i = referred(c, root);
    if (i == NONE) return quantized_type(root);
    const char *type = is_step(&c->s[i]) ? value_of(&c->s[i], "--type", NULL) : NULL;
    return type && *type != '$' && !is_wide(type) ? type : NULL;
}

static bool is_written(const controls *c, const char *name) {
    char *begin = dw_format(NULL, "\n%s :", name);
    const bool found = begin && c->text && strstr(c->text, begin);
    free(begin);
    return found;
}

/* "fixed_score"; of a step whose models have several controls, from the second on "fixed_score_GATE"; free(). */
static char *rows_name(const controls *c, const char *prefix, const statement *rows, const statement *from) {
    char *name = dw_format(NULL, "%s_%s", prefix, rows->word[0]);
    if (!name || !is_written(c, name)) return name;
    free(name);
    return dw_format(NULL, "%s_%s_%s", prefix, rows->word[0], from->word[0]);
}

/* The rows of every model that comes from a step, of the control instead. */
static void put_rows_of(controls *c, const char *prefix, size_t step, const char *control) {
    for (size_t i = 0; i < c->n; i++) {
        const char *model = scored_of(c, &c->s[i], step);
        if (!model) continue;
        const replacement r = {referred(c, model), control};
        char *name = rows_name(c, prefix, &c->s[i], &c->s[step]);
        c->failed |= !name;
        if (name && put_rows(c, name, &c->s[i], &r)) NOTE(c, " %s", name);
        free(name);
    }
}

static bool has_rows(const controls *c, size_t step) {
    for (size_t i = 0; i < c->n; i++)
        if (scored_of(c, &c->s[i], step)) return true;
    return false;
}

/* Whether the grid rounds this model itself. */
static bool is_rounded(const controls *c, const char *source) {
    for (size_t i = 0; i < c->n; i++) {
        const char *model = runs(&c->s[i], "requant") ? value_of(&c->s[i], "--model", "-m") : NULL;
        if (model && same_word(c, model, source)) return true;
    }
    return false;
}

/* The statistics that a cut used, if they are of its 16-bit source: requant takes no others for that.  NULL: none. */
static const char *stats_of_source(const controls *c, const statement *cut, const char *source) {
    const char *stats = stats_of(c, cut);
    const size_t i = referred(c, stats);
    const char *model = i != NONE && runs(&c->s[i], "collect") ? value_of(&c->s[i], "--model", "-m") : NULL;
    return model && !same_word(c, model, source) ? NULL : stats;
}

/* Whether an earlier cut has the same source, and the same statistics if there are any of it. */
static bool is_repeated(const controls *c, size_t cut, const char *source, const char *stats) {
    for (size_t i = 0; i < cut; i++) {
        const statement *s = &c->s[i];
        const char *model = runs(s, "cut") ? value_of(s, "--model", "-m") : NULL,
                   *own = model ? value_of(s, "--source", NULL) : NULL;
        if (!model || !has_rows(c, i) || !same_word(c, own ? own : root_of(c, model), source)) continue;
        const char *other = stats_of_source(c, s, source);
        if (!stats || (other && same_word(c, other, stats))) return true;
    }
    return false;
}

static void add_rounding(controls *c) {
    bool has_variable = false;
    for (size_t i = 0; i < c->n; i++) {
        const statement *s = &c->s[i];
        const char *model = runs(s, "cut") ? value_of(s, "--model", "-m") : NULL;
        if (!model || !has_rows(c, i)) continue;
        const char *own = value_of(s, "--source", NULL), *source = own ? own : root_of(c, model),
                   *stats = stats_of_source(c, s, source);
        const char *narrow = narrow_type(c, source), *mixture = free_name(c, "mixture", "rounding");
        if (is_rounded(c, source) || is_repeated(c, i, source, stats)) continue;
        if (narrow) {
            NOTE(c,
                 "no control: plain rounding for step %s: %s is %s already, and rounding it twice would be worse than "
                 "rounding once; give the 16-bit model with cut --source\n",
                 s->word[0], source, narrow);
            continue;
        }
        char name[128];
        snprintf(name, sizeof name, "rounded_%.100s", s->word[0]);
        if (!has_variable) PUT(c, "%s = Q8_0 Q6_K Q5_K_M Q4_K_M Q3_K_M Q2_K\n", mixture);
        has_variable = true;
        PUT(c, "%s : requant -m %s%s%s --mixture $%s -o $out.gguf\n", name, source, stats ? " -s " : "",
            stats ? stats : "", mixture);
        NOTE(c, "controls: %s in six mixtures, %s%s (steps %s", source,
             stats ? "with the statistics " : "without statistics", stats ? stats : "", name);
        put_rows_of(c, "rounded", i, name);
        NOTE(c, ")\n");
    }
}

/* ---- fixed neurons, for gates ------------------------------------------------------------------------------------ */

/* Whether the size of the gate's groups is a default that the rules of the controls do not have. */
static bool groups_are_open(const controls *c, const statement *gate) {
    return may_be(c, value_of(gate, "--rule", NULL), "group-max") && !value_of(gate, "--group", NULL);
}

static void put_fixed(controls *c, const statement *gate, const char *seed_name) {
    PUT(c, "fixed_%s :", gate->word[0]);
    for (size_t i = 2; i < gate->n; i++) {
        const bool rule = !strncmp(gate->word[i], "--rule", 6), seed = !strncmp(gate->word[i], "--seed", 6);
        if (rule) PUT(c, " --rule $fixed --seed $%s", seed_name);
        if (rule || seed)
            i += !strchr(gate->word[i], '=');
        else
            PUT(c, " %s", gate->word[i]);
    }
    PUT(c, "\n");
}

/* Whether the grid compares gates with fixed neurons itself. */
static bool has_fixed(const controls *c) {
    for (size_t i = 0; i < c->n; i++) {
        const char *rule = runs(&c->s[i], "gate") ? value_of(&c->s[i], "--rule", NULL) : NULL;
        if (rule && (may_be(c, rule, "static") || may_be(c, rule, "random"))) return true;
        const size_t holder = runs(&c->s[i], "gate") && !rule ? holder_of(c, &c->s[i], "--rule") : NONE;
        if (holder != NONE && (holds_word(&c->s[holder], "static") || holds_word(&c->s[holder], "random"))) return true;
    }
    return false;
}

/* Whether the gate gets controls; those whose groups are open get none, which is said. */
static bool gets_fixed(controls *c, size_t gate, bool says) {
    const statement *s = &c->s[gate];
    if (!runs(s, "gate") || !has_rows(c, gate) || !value_of(s, "--rule", NULL)) return false;
    if (!groups_are_open(c, s)) return true;
    if (says)
        NOTE(c,
             "no control: fixed neurons for step %s: its groups have the size of a default that is not theirs; write "
             "--group into the step\n",
             s->word[0]);
    return false;
}

static void add_fixed(controls *c) {
    size_t n = 0;
    if (has_fixed(c)) return;
    note_hidden(c, "gate", "--rule", "fixed neurons");
    for (size_t i = 0; i < c->n; i++) n += gets_fixed(c, i, true);
    const char *seed = c->has_random ? "fixed_seed" : free_name(c, "seed", "fixed_seed"); // table --join seed
    const char *own = is_named(c, "fixed") ? "fixed" : is_named(c, seed) ? seed : NULL;
    if (n && own) NOTE(c, "no control: fixed neurons for gates: the grid has its own '%s'; rename it\n", own);
    if (!n || own) return;
    PUT(c, "fixed = static random\n%s = 1 2 3 if fixed = random\n", seed);
    NOTE(c, "controls: for gates, the same neurons for every token, by energy and at random in three seeds (steps");
    for (size_t i = 0; i < c->n; i++) {
        char name[128];
        if (!gets_fixed(c, i, false)) continue;
        snprintf(name, sizeof name, "fixed_%.100s", c->s[i].word[0]);
        put_fixed(c, &c->s[i], seed);
        NOTE(c, " %s", name);
        put_rows_of(c, "fixed", i, name);
    }
    NOTE(c, ")\n");
    PUT(c, "control if fixed = static random\n");
}

int controls_write(controls *c, char **text, char **notes, dw_err *err) {
    c->failed |= dw_append(&c->text, NULL, "%s", "") || dw_append(&c->notes, NULL, "%s", "");
    if (!c->failed) {
        add_random(c);
        add_rounding(c);
        add_fixed(c);
    }
    if (c->failed) return dw_fail(err, "out of memory: controls");
    *text = c->text;
    *notes = c->notes;
    c->text = c->notes = NULL;
    return 0;
}
