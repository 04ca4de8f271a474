/* controls.c - writes the statements of a grid's controls from its own. */
#include "experiments/sweep/controls.h"
#include "experiments/sweep/grid.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct writing { // of one kind of control
    const char *prefix;
    char *step[GRID_MAX_STEPS]; // that have one
    size_t n_step;
    bool has_rows, unwanted;    // unwanted: the grid has its own
    FILE *out;
    char *text;
    size_t n_text;
} writing;

struct controls {
    writing twins, plain;
};

controls *controls_new(dw_err *err) {
    controls *c = dw_alloc(1, sizeof *c, "controls", err);
    if (!c) return NULL;
    c->twins.prefix = "random", c->plain.prefix = "rounded";
    c->twins.out = open_memstream(&c->twins.text, &c->twins.n_text);
    c->plain.out = open_memstream(&c->plain.text, &c->plain.n_text);
    if (c->twins.out && c->plain.out) return c;
    controls_free(c);
    dw_fail(err, "out of memory: controls");
    return NULL;
}

static void release(writing *w) {
    if (w->out) fclose(w->out);
    for (size_t i = 0; i < w->n_step; i++) free(w->step[i]);
    free(w->text);
}

void controls_free(controls *c) {
    if (!c) return;
    release(&c->twins);
    release(&c->plain);
    free(c);
}

static size_t name_length(const char *s) {
    size_t n = 0;
    while (isalnum((unsigned char)s[n]) || s[n] == '_') n++;
    return n;
}

static bool is_copied(const writing *w, const char *name, size_t n) {
    for (size_t i = 0; i < w->n_step; i++)
        if (strlen(w->step[i]) == n && !memcmp(w->step[i], name, n)) return true;
    return false;
}

/* Writes a word with the copies in the place of the steps that it names; whether it names any.  out may be NULL. */
static bool put_word(const writing *w, const char *word, FILE *out) {
    bool any = false;
    for (const char *at = word; *at;) {
        const bool braces = *at == '$' && at[1] == '{';
        const char *name = at + 1 + braces;
        const size_t n = *at == '$' && *word != '\'' ? name_length(name) : 0;
        if (n && is_copied(w, name, n)) {
            any = true;
            if (out) fprintf(out, "${%s_%.*s}", w->prefix, (int)n, name);
            at = name + n + braces;
        } else {
            if (out) fputc(*at, out);
            at++;
        }
    }
    return any;
}

static bool names_copies(const writing *w, char *const *word, size_t n_word) {
    for (size_t i = 2; i < n_word; i++)
        if (put_word(w, word[i], NULL)) return true;
    return false;
}

static const char *value_of(char *const *word, size_t n_word, const char *option, const char *letter) {
    for (size_t i = 2; i + 1 < n_word; i++)
        if (!strcmp(word[i], option) || !strcmp(word[i], letter)) return word[i + 1];
    return NULL;
}

static bool makes_rows(char *const *word, size_t n_word) {
    for (size_t i = 2; i < n_word; i++)
        if (!strcmp(word[i], "$rows")) return true;
    return false;
}

/* The step once more, under the prefix; `is_rank`: by lot. */
static void copy_step(writing *w, char *const *word, size_t n_word, bool is_rank) {
    char *name = strdup(word[0]);
    if (!name || w->n_step == GRID_MAX_STEPS) {
        free(name);
        return;
    }
    fprintf(w->out, "%s_%s :", w->prefix, name);
    for (size_t i = 2; i < n_word; i++) {
        const bool is_metric = is_rank && i > 2 && !strcmp(word[i - 1], "--metric");
        fputc(' ', w->out);
        if (is_metric) fputs("random --seed $seed", w->out);
        else put_word(w, word[i], w->out);
    }
    fputc('\n', w->out);
    w->step[w->n_step++] = name;
    w->has_rows |= makes_rows(word, n_word);
}

static void see_step(controls *c, char *const *word, size_t n_word) {
    const size_t at = 2 + !strcmp(word[2], "alone");
    const char *tool = at < n_word ? word[at] : "", *model = value_of(word, n_word, "--model", "-m");
    const bool is_rank = !strcmp(tool, "rank") && value_of(word, n_word, "--metric", "--metric");
    if (!strcmp(tool, "requant")) c->plain.unwanted = true;
    if (is_rank || names_copies(&c->twins, word, n_word)) copy_step(&c->twins, word, n_word, is_rank);
    if (!strcmp(tool, "cut") && model && !c->plain.n_step) {
        fprintf(c->plain.out, "mixture = Q8_0 Q6_K Q5_K_M Q4_K_M Q3_K_M Q2_K\n%s_%s : requant -m %s --mixture $mixture --lossy-twice -o $out.gguf\n",
                c->plain.prefix, word[0], model);
        c->plain.step[c->plain.n_step] = strdup(word[0]);
        c->plain.n_step += c->plain.step[0] != NULL;
    } else if (makes_rows(word, n_word) && names_copies(&c->plain, word, n_word)) {
        copy_step(&c->plain, word, n_word, false);
    }
}

void controls_see(controls *c, char *const *word, size_t n_word) {
    if (n_word < 3) return;
    if (!strcmp(word[0], "seed")) c->twins.unwanted = true;
    if (!strcmp(word[0], "mixture")) c->plain.unwanted = true;
    for (size_t i = 2; i < n_word; i++)
        if (!strcmp(word[i], "random") || !strcmp(word[i], "--seed")) c->twins.unwanted = true;
    if (!strcmp(word[1], ":")) see_step(c, word, n_word);
}

char *controls_text(controls *c, dw_err *err) {
    if (fflush(c->twins.out) || fflush(c->plain.out)) {
        dw_fail(err, "out of memory: controls");
        return NULL;
    }
    const bool twins = c->twins.has_rows && !c->twins.unwanted, plain = c->plain.has_rows && !c->plain.unwanted;
    return dw_format(err, "%s%s%s", twins ? "seed = 1 2 3\n" : "", twins ? c->twins.text : "", plain ? c->plain.text : "");
}
