/* stored_bases.c - writes the step that stores a base from the step that is compared with it. */
#include "experiments/sweep/stored_bases.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct entry {
    char *of, **word;
    size_t n_word, cap_word;
} entry;

struct stored_bases {
    entry *entry;
    size_t n, cap;
};

stored_bases *stored_bases_new(dw_err *err) { return dw_alloc(1, sizeof(stored_bases), "stored bases", err); }

static void release(entry *e) {
    for (size_t i = 0; i < e->n_word; i++) free(e->word[i]);
    free(e->word);
    free(e->of);
}

void stored_bases_free(stored_bases *b) {
    if (!b) return;
    for (size_t i = 0; i < b->n; i++) release(&b->entry[i]);
    free(b->entry);
    free(b);
}

static int add_word(entry *e, const char *text, dw_err *err) {
    if (dw_grow(&e->word, &e->cap_word, e->n_word + 1, sizeof *e->word, "stored bases", err)) return -1;
    return (e->word[e->n_word] = dw_strdup(text, err)) ? (e->n_word++, 0) : -1;
}

/* "dense" of "$dense" and "${dense}"; NULL: another word; free(). */
static char *name_in(const char *word, dw_err *err) {
    if (*word != '$') return NULL;
    const bool braces = word[1] == '{';
    const char *name = word + 1 + braces;
    size_t n = 0;
    while (isalnum((unsigned char)name[n]) || name[n] == '_') n++;
    if (!n || strcmp(name + n, braces ? "}" : "")) return NULL;
    return dw_format(err, "%.*s", (int)n, name);
}

typedef enum place { KEPT, DROPPED, WITH_VALUE, WITH_VALUES } place;

/* What becomes of an option of the comparing step: those of quality stay.  The storing step has --no-speed, and score
 * refuses options of speed beside it. */
static place place_of(const char *word) {
    static const struct {
        const char *name;
        place place;
    } table[] = {{"-m", WITH_VALUES},
                 {"--model", WITH_VALUES},
                 {"--base", WITH_VALUE},
                 {"-o", WITH_VALUE},
                 {"--out", WITH_VALUE},
                 {"-t", WITH_VALUE},
                 {"--threads", WITH_VALUE},
                 {"--speed-prefill", WITH_VALUE},
                 {"--speed-decode", WITH_VALUE},
                 {"--speed-rounds", WITH_VALUE},
                 {"--depth", WITH_VALUE},
                 {"--sequences", WITH_VALUE},
                 {"--role", WITH_VALUE},
                 {"--no-speed", DROPPED},
                 {"--huge-pages", DROPPED},
                 {"--json", DROPPED},
                 {"--per-layer", DROPPED}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const size_t n = strlen(table[i].name);
        if (!strcmp(word, table[i].name)) return table[i].place;
        const bool joined = !strncmp(word, table[i].name, n) && (word[1] == '-' ? word[n] == '=' : true);
        if (joined) return DROPPED;
    }
    return KEPT;
}

/* Options of score that leave no base to be stored. */
static bool is_excluded(const char *word) {
    static const char *const options[] = {"--store", "--speed-only", "--inject", "--columns"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (!strncmp(word, options[i], strlen(options[i]))) return true;
    return false;
}

/* The words of the storing step after its name. */
static int write_step(entry *e, char *const *word, size_t n_word, dw_err *err) {
    const char *const begin[] = {":", "score", "-m"};
    char *of = dw_format(err, "${%s}", e->of);
    int rc = of ? 0 : -1;
    for (size_t i = 0; i < 3 && !rc; i++) rc = add_word(e, begin[i], err);
    if (!rc) rc = add_word(e, of, err);
    free(of);
    for (size_t i = 0; i < n_word && !rc; i++) {
        const place p = place_of(word[i]);
        if (p == KEPT) rc = add_word(e, word[i], err);
        if (p == WITH_VALUE) i++;
        while (p == WITH_VALUES && i + 1 < n_word && word[i + 1][0] != '-') i++;
    }
    const char *const end[] = {"--no-speed", "--store", "$out.base"};
    for (size_t i = 0; i < 3 && !rc; i++) rc = add_word(e, end[i], err);
    return rc;
}

/* Whether two steps are the same but for their names, which stand first. */
static bool same_step(const entry *a, const entry *b) {
    if (a->n_word != b->n_word) return false;
    for (size_t i = 1; i < a->n_word; i++)
        if (strcmp(a->word[i], b->word[i])) return false;
    return true;
}

/* "dense_stored", "dense_stored_2", .. */
static int name_step(const stored_bases *b, entry *e, dw_err *err) {
    int n = 1;
    for (size_t i = 0; i < b->n; i++) n += !strcmp(b->entry[i].of, e->of);
    free(e->word[0]);
    e->word[0] = n > 1 ? dw_format(err, "%s_stored_%d", e->of, n) : dw_format(err, "%s_stored", e->of);
    if (e->word[0]) return 0;
    e->n_word = 0;
    return -1;
}

/* Where the base is named; 0: nowhere, or as what is no step's output. */
static size_t find_base(char *const *word, size_t n_word, char **of, bool *joined, dw_err *err) {
    for (size_t i = 3; i < n_word; i++) {
        *joined = !strncmp(word[i], "--base=", 7);
        if (!*joined && (strcmp(word[i], "--base") || i + 1 == n_word)) continue;
        i += !*joined;
        *of = name_in(word[i] + (*joined ? 7 : 0), err);
        return *of ? i : 0;
    }
    return 0;
}

int stored_bases_find(stored_bases *b, char *const *word, size_t n_word, stored_base *found, dw_err *err) {
    const size_t tool_at = n_word > 2 && !strcmp(word[2], "alone") ? 3 : 2;
    size_t n = tool_at + 1;
    if (n_word <= n || strcmp(word[tool_at], "score")) return 0;
    while (n < n_word && strcmp(word[n], "if") && !is_excluded(word[n])) n++;
    if (n < n_word && is_excluded(word[n])) return 0;
    *found = (stored_base){0};
    if (dw_grow(&b->entry, &b->cap, b->n + 1, sizeof *b->entry, "stored bases", err)) return -1;
    entry *e = &b->entry[b->n];
    *e = (entry){0};
    found->at = find_base(word, n, &e->of, &found->joined, err);
    if (!found->at) return 0;
    size_t i = 0;
    int rc = add_word(e, "", err);
    if (!rc) rc = write_step(e, word + tool_at + 1, n - tool_at - 1, err);
    while (i < b->n && !rc && !same_step(&b->entry[i], e)) i++;
    found->is_new = i == b->n;
    if (!rc && found->is_new) rc = name_step(b, e, err);
    if (rc || !found->is_new) release(e);
    b->n += !rc && found->is_new;
    if (rc) return -1;
    found->of = b->entry[i].of;
    found->word = b->entry[i].word;
    found->n_word = b->entry[i].n_word;
    return 1;
}

int stored_bases_use(const stored_base *base, char **word, dw_err *err) {
    char *with = dw_format(err, "%s${%s}", base->joined ? "--base=" : "", base->word[0]);
    if (!with) return -1;
    free(word[base->at]);
    word[base->at] = with;
    return 0;
}
