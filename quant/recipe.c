/* recipe.c - a text file of lines PATTERN TYPE (quant.h says how it reads). */
#include "kit/options.h"
#include "quant/quant.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_BYTES = 1 << 20, MAX_RULES = 4096, MAX_PATTERN = 256, MATCH_LIMIT = 100000 };

/* ---- reading --------------------------------------------------------------------------------------------------- */

/* PCRE2's words for its error. */
static const char *words_of(int code, char words[120]) {
    if (pcre2_get_error_message(code, (PCRE2_UCHAR8 *)words, 120) < 0) snprintf(words, 120, "error %d", code);
    return words;
}

static pcre2_code *compile(const char *expr, size_t len, dw_err *err) {
    int code;
    PCRE2_SIZE at;
    pcre2_code *regex = pcre2_compile((PCRE2_SPTR)expr, len, PCRE2_UTF, &code, &at, NULL);
    if (regex) return regex;
    char why[120];
    dw_fail(err, "the regular expression is wrong at its column %zu: %s", at + 1, words_of(code, why));
    return NULL;
}

static int set_type(quant_rule *rule, const char *name, dw_err *err) {
    if (!strcasecmp(name, "keep")) return 0;
    rule->type = quant_type_find(name);
    if (rule->type) return 0;
    const char *near = opt_nearest(name, quant_types, sizeof *quant_types);
    if (near) return dw_fail(err, "there is no type '%.40s' (did you mean '%s'?)", name, near);
    return dw_fail(err, "there is no type '%.40s'; requant --help lists them, and 'keep' leaves a tensor as it is",
                   name);
}

/* The next word of a line, NUL-terminated in place, or NULL. */
static char *next_word(char **line) {
    static const char space[] = " \t\r";
    char *word = *line + strspn(*line, space);
    if (!*word || *word == '#') return NULL;
    const size_t n = strcspn(word, space);
    *line = word + n + (word[n] != 0);
    word[n] = 0;
    return word;
}

/* A new rule at the end of the recipe. */
static quant_rule *add_rule(quant_recipe *r, const char *pattern, int line, dw_err *err) {
    const size_t len = strlen(pattern);
    if (len > MAX_PATTERN) return dw_fail(err, "a pattern of %zu bytes; at most %d", len, MAX_PATTERN), NULL;
    if (r->n_rule == MAX_RULES) return dw_fail(err, "more than %d rules", MAX_RULES), NULL;
    if (dw_grow(&r->rule, &r->cap_rule, r->n_rule + 1, sizeof *r->rule, "the rules of a recipe", err)) return NULL;
    quant_rule *rule = &r->rule[r->n_rule++];
    *rule = (quant_rule){.line = line};
    rule->pattern = dw_strdup(pattern, err);
    return rule->pattern ? rule : NULL;
}

static int parse_line(quant_recipe *r, char *text, int line, dw_err *err) {
    char *pattern = next_word(&text);
    if (!pattern) return 0;
    char *type = next_word(&text);
    if (!type) return dw_fail(err, "a pattern without a type: '%.40s'", pattern);
    const char *more = next_word(&text);
    if (more)
        return dw_fail(err, "'%.40s' follows the type; a line is PATTERN TYPE, and a comment begins with #", more);
    const size_t len = strlen(pattern);
    quant_rule *rule = add_rule(r, pattern, line, err);
    if (!rule || set_type(rule, type, err)) return -1;
    if (*pattern != '/') return 0;
    if (len < 3 || pattern[len - 1] != '/')
        return dw_fail(err, "'%.40s': a regular expression is written between two slashes", pattern);
    return (rule->regex = compile(pattern + 1, len - 2, err)) ? 0 : -1;
}

/* Memory for matching. */
static int begin(quant_recipe *r, dw_err *err) {
    *r = (quant_recipe){0};
    r->match = pcre2_match_data_create(1, NULL);
    r->limits = pcre2_match_context_create(NULL);
    if (!r->match || !r->limits) return dw_fail(err, "out of memory: a recipe");
    pcre2_set_match_limit(r->limits, MATCH_LIMIT);
    return 0;
}

static int parse_lines(quant_recipe *r, char *text, const char *what, dw_err *err) {
    for (int line = 1; text; line++) {
        dw_err why = {0};
        if (parse_line(r, strsep(&text, "\n"), line, &why))
            return dw_fail(err, "'%s', line %d: %s", what, line, why.text);
    }
    return r->n_rule ? 0 : dw_fail(err, "'%s' has no rule; a line is PATTERN TYPE", what);
}

int quant_recipe_parse(quant_recipe *r, const char *text, size_t len, const char *what, dw_err *err) {
    *r = (quant_recipe){0};
    if (!dw_is_utf8(text, len)) return dw_fail(err, "'%s' is not UTF-8 text", what);
    char *copy = dw_alloc(len + 1, 1, "a recipe", err);
    if (!copy) return -1;
    memcpy(copy, text, len);
    int rc = begin(r, err);
    if (!rc) rc = parse_lines(r, copy, what, err);
    free(copy);
    if (rc) quant_recipe_release(r);
    return rc;
}

static int parse_word(quant_recipe *r, const char *word, int number, dw_err *err) {
    const char *sign = strrchr(word, '=');
    if (!sign || sign == word || !sign[1]) return dw_fail(err, "a word is REGEX=TYPE, as in 'ffn_down=Q6_K'");
    if (!dw_is_utf8(word, strlen(word))) return dw_fail(err, "it is not UTF-8 text");
    char *pattern = dw_format(err, "%.*s", (int)(sign - word), word);
    quant_rule *rule = pattern ? add_rule(r, pattern, number, err) : NULL;
    int rc = rule ? set_type(rule, sign + 1, err) : -1;
    if (!rc) rc = (rule->regex = compile(pattern, strlen(pattern), err)) ? 0 : -1;
    free(pattern);
    return rc;
}

int quant_recipe_of_words(quant_recipe *r, const char *const *word, size_t n, dw_err *err) {
    int rc = begin(r, err);
    for (size_t i = 0; i < n && !rc; i++) {
        dw_err why = {0};
        rc = parse_word(r, word[i], (int)i + 1, &why);
        if (rc) dw_fail(err, "--tensor '%.80s': %s", word[i], why.text);
    }
    if (rc) quant_recipe_release(r);
    return rc;
}

int quant_recipe_read(quant_recipe *r, const char *path, dw_err *err) {
    size_t len;
    char *text = dw_read_file(path, MAX_BYTES, &len, err);
    const int rc = text ? quant_recipe_parse(r, text, len, path, err) : -1;
    free(text);
    return rc;
}

void quant_recipe_release(quant_recipe *r) {
    for (size_t i = 0; i < r->n_rule; i++) {
        free(r->rule[i].pattern);
        pcre2_code_free(r->rule[i].regex);
    }
    free(r->rule);
    pcre2_match_data_free(r->match);
    pcre2_match_context_free(r->limits);
    *r = (quant_recipe){0};
}

/* ---- matching ---------------------------------------------------------------------------------------------------- */

/* The last star takes one character more whenever what follows it does not match. */
static bool glob_matches(const char *p, const char *name) {
    const char *star = NULL, *taken = NULL;
    while (*name) {
        if (*p == '*') {
            star = p++;
            taken = name;
        } else if (*p == '?' || *p == *name) {
            p++;
            name++;
        } else if (star) {
            p = star + 1;
            name = ++taken;
        } else {
            return false;
        }
    }
    while (*p == '*') p++;
    return !*p;
}

/* 1: it matches; 0: it does not; -1: PCRE2 gave up, so nobody knows. */
static int regex_matches(const quant_recipe *r, const quant_rule *rule, const char *name, dw_err *err) {
    char why[120];
    const int found = pcre2_match(rule->regex, (PCRE2_SPTR)name, strlen(name), 0, 0, r->match, r->limits);
    if (found >= 0 || found == PCRE2_ERROR_NOMATCH) return found >= 0;
    return dw_fail(err, "'%.80s' cannot be decided for '%.80s': %s; write the regular expression in a simpler way",
                   rule->pattern, name, words_of(found, why));
}

int quant_recipe_find(quant_recipe *r, const char *name, quant_rule **found, dw_err *err) {
    *found = NULL;
    for (quant_rule *rule = r->rule; rule < r->rule + r->n_rule; rule++) {
        const int matches = rule->regex ? regex_matches(r, rule, name, err) : glob_matches(rule->pattern, name);
        if (matches < 0) return -1;
        if (!matches) continue;
        rule->n_decided++;
        *found = rule;
        return 0;
    }
    return 0;
}
