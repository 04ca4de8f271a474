/* plan.c - reads, checks and writes plans.
 *
 * People edit plans, so every line is checked, and a message names the line that is wrong.  Neurons are stored as
 * ranges, so memory is at most a small multiple of the size of the text. */
#include "kit/plan.h"

#include "formats/formats.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NEURON = 1 << 24, MAX_FILE_BYTES = 256 << 20 };

static const char format_line[] = "deadwood plan 1", columns[] = "layer\twidth\tkeep";

typedef struct reader {
    kit_plan *p;
    size_t cap_layer, cap_text, n_comment;
    const int *n_ff; // NULL: unchecked
    int n_layer;
    bool columns_seen;
    dw_err *err;
} reader;

/* ---- words ----------------------------------------------------------------------------------------------- */

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/* The next word of a line, NUL-terminated in place; "" at the end. */
static char *next_word(char **at) {
    char *word = *at;
    while (is_blank(*word)) word++;
    char *end = word;
    while (*end && !is_blank(*end)) end++;
    *at = *end ? end + 1 : end;
    *end = 0;
    return word;
}

/* Reads a number from 0 to max at *at. */
static bool take_number(const char **at, int32_t max, int32_t *value) {
    const char *p = *at;
    int64_t n = 0;
    for (; *p >= '0' && *p <= '9' && n <= max; p++) n = 10 * n + (*p - '0');
    if (p == *at || n > max) return false;
    *at = p;
    *value = (int32_t)n;
    return true;
}

/* Cuts what does not fit. */
static void copy_text(char *dst, size_t size, const char *src) { snprintf(dst, size, "%s", src); }

/* ---- comments -------------------------------------------------------------------------------------------- */

/* The text after the last `word`; NULL if the word does not occur. */
static char *after_last(char *text, const char *word) {
    char *found = NULL;
    for (char *p = text; (p = strstr(p, word)); p++) found = p + strlen(word);
    return found;
}

static int read_model(reader *r, char *text) {
    char *at = after_last(text, " sha256 ");
    const char *hash = at ? next_word(&at) : "";
    if (!dw_is_hash(hash))
        return dw_fail(r->err, "'model' is not followed by a name and 'sha256' with 64 hexadecimal digits");
    copy_text(r->p->model_sha256, sizeof r->p->model_sha256, hash);
    return 0;
}

static int read_metric(reader *r, const char *text) {
    const char *group = strstr(text, ", group "), *allocate = strstr(text, ", allocate ");
    if (sscanf(text, "%63s", r->p->metric) != 1) return dw_fail(r->err, "'metric' has no name");
    if (group) {
        group += strlen(", group ");
        if (!take_number(&group, MAX_NEURON, &r->p->group))
            return dw_fail(r->err, "'group' is not a number up to %d", MAX_NEURON);
    }
    if (allocate) sscanf(allocate, ", allocate %31[^, \t]", r->p->allocate);
    return 0;
}

static int read_rate(reader *r, const char *text) {
    double wanted, reached;
    if (sscanf(text, "wanted %lf , reached %lf", &wanted, &reached) != 2 || !(wanted >= 0 && wanted <= 1) ||
        !(reached >= 0 && reached <= 1))
        return dw_fail(r->err, "'rate' is not 'wanted W, reached R' with fractions from 0 to 1");
    r->p->rate_wanted = wanted;
    r->p->rate_reached = reached;
    return 0;
}

/* "at most N" is of the cut file, "at most N as TYPE" of another one that is made from it. */
static void read_bytes(reader *r, const char *text) {
    double most;
    int n = 0;
    if (sscanf(text, "at most %lf%n", &most, &n) == 1 && most > 0 && strspn(text + n, " \t\r") == strlen(text + n))
        r->p->most_bytes = most;
}

static int read_text(reader *r, char *text) {
    static const char form[] = "'text' is not 'NAME sha256 HASH tokens N blocks HEX'";
    char *at = after_last(text, " sha256 ");
    if (!at) return dw_fail(r->err, form);
    size_t n_name = (size_t)(at - strlen(" sha256 ") - text);
    while (n_name && is_blank(text[n_name - 1])) n_name--;
    const char *hash = next_word(&at), *tokens_word = next_word(&at), *tokens = next_word(&at),
               *blocks_word = next_word(&at), *blocks = next_word(&at);
    kit_plan_text t = {0};
    if (!n_name || !dw_is_hash(hash) || strcmp(tokens_word, "tokens") || strcmp(blocks_word, "blocks") ||
        strspn(blocks, "0123456789abcdef") != strlen(blocks) || strlen(blocks) % 8 || !*tokens || strlen(tokens) > 18 ||
        tokens[strspn(tokens, "0123456789")])
        return dw_fail(r->err, form);
    if (dw_grow(&r->p->text, &r->cap_text, r->p->n_text + 1, sizeof *r->p->text, "texts of a plan", r->err)) return -1;
    text[n_name] = 0;
    t.n_tokens = strtoul(tokens, NULL, 10);
    copy_text(t.sha256, sizeof t.sha256, hash);
    t.name = dw_strdup(text, r->err);
    t.blocks = dw_strdup(blocks, r->err);
    r->p->text[r->p->n_text++] = t;
    return t.name && t.blocks ? 0 : -1;
}

static bool is_form(const char *comment) {
    const size_t n = strlen(format_line);
    return !strncmp(comment, format_line, n) && strspn(comment + n, " \t\r") == strlen(comment + n);
}

/* Stores the comment and reads it if it begins with a known word. */
static int read_comment(reader *r, char *text) {
    if (*text == ' ') text++;
    char *at = text + strcspn(text, " \t\r");
    const size_t n_key = (size_t)(at - text), n = strlen(text);
    while (is_blank(*at)) at++;
    const bool is_text = n_key == 4 && !memcmp(text, "text", 4);
    if (!is_text) { // kit_plan_parse has made room for all comments
        memcpy(r->p->comment + r->n_comment, text, n);
        r->n_comment += n;
        r->p->comment[r->n_comment++] = '\n';
        r->p->comment[r->n_comment] = 0;
    }
    if (is_text && strstr(at, " sha256 ")) return read_text(r, at);
    if (n_key == 5 && !memcmp(text, "bytes", 5)) read_bytes(r, at);
    if (n_key == 5 && !memcmp(text, "model", 5)) return read_model(r, at - 1);
    if (n_key == 6 && !memcmp(text, "metric", 6)) return read_metric(r, at);
    if (n_key == 4 && !memcmp(text, "rate", 4)) return read_rate(r, at);
    return is_text ? dw_fail(r->err, "'text' has no hash") : 0;
}

/* ---- layers ---------------------------------------------------------------------------------------------- */

typedef struct listed { // what of a layer is listed, and what the list gives
    const char *what;   // "neuron", "KV head"
    int layer;
    int32_t last; // that the layer has
    kit_plan_span *span;
    size_t n_span, n_keep;
} listed;

static int fail_word(const reader *r, const char *word, const char *what) {
    return dw_fail(r->err, "'%.40s' is not a %s or a range of %ss", word, what, what);
}

/* Reads numbers and ranges, separated by commas. */
static int read_spans(reader *r, const char *text, listed *to) {
    const char *what = to->what;
    size_t n_comma = 0;
    for (const char *p = text; *p; p++) n_comma += *p == ',';
    to->span = dw_alloc(n_comma + 1, sizeof *to->span, "ranges of a plan", r->err);
    if (!to->span) return -1;
    for (const char *at = text;; at++) {
        kit_plan_span s;
        const char *word = at;
        if (!take_number(&at, MAX_NEURON - 1, &s.first)) return fail_word(r, word, what);
        s.last = s.first;
        if (*at == '-' && (at++, !take_number(&at, MAX_NEURON - 1, &s.last)))
            return dw_fail(r->err, "'%.40s' is not a range of %ss", word, what);
        if (*at && *at != ',') return fail_word(r, word, what);
        if (s.last < s.first) return dw_fail(r->err, "the range %d-%d runs backwards", s.first, s.last);
        if (s.last > to->last)
            return dw_fail(r->err, "%s %d does not exist: layer %d has %d", what, s.last, to->layer, to->last + 1);
        kit_plan_span *before = to->n_span ? &to->span[to->n_span - 1] : NULL;
        if (before && s.first <= before->last)
            return dw_fail(r->err, "%s %d comes after %d; give each %s once, ascending", what, s.first, before->last,
                           what);
        if (before && s.first == before->last + 1)
            before->last = s.last;
        else
            to->span[to->n_span++] = s;
        to->n_keep += (size_t)(s.last - s.first) + 1;
        if (!*at) break;
    }
    return 0;
}

static int read_neurons(reader *r, const char *text, int width, kit_plan_layer *layer) {
    const int l = r->p->n_layer;
    listed list = {.what = "neuron", .layer = l, .last = (r->n_ff ? r->n_ff[l] : MAX_NEURON) - 1};
    const int rc = read_spans(r, text, &list);
    layer->span = list.span, layer->n_span = list.n_span;
    if (rc) return -1;
    if (list.n_keep != (size_t)width) return dw_fail(r->err, "width %d, but %zu neurons are kept", width, list.n_keep);
    layer->n_keep = width;
    return 0;
}

/* "heads 3 0,2-3"; whether the model has so many is cut's to know. */
static int read_heads(reader *r, char *line) {
    next_word(&line);
    const char *number = next_word(&line), *keep = next_word(&line), *rest = next_word(&line);
    int32_t l;
    if (!take_number(&number, DW_MAX_LAYERS, &l) || *number || !*keep || *rest)
        return dw_fail(r->err, "the line is not 'heads LAYER KEEP' with ranges of KV heads, as 'heads 3 0,2-3'");
    if (l != r->p->n_layer - 1) return dw_fail(r->err, "the heads of layer %d do not follow its line", l);
    kit_plan_layer *layer = &r->p->layer[l];
    if (layer->drop) return dw_fail(r->err, "layer %d is dropped and has no heads", l);
    if (layer->n_kv) return dw_fail(r->err, "the heads of layer %d are given twice", l);
    listed list = {.what = "KV head", .layer = l, .last = MAX_NEURON - 1};
    const int rc = read_spans(r, keep, &list);
    layer->kv = list.span, layer->n_kv_span = list.n_span;
    layer->n_kv = (int)list.n_keep;
    return rc;
}

static int read_layer(reader *r, char *line) {
    const char *number = next_word(&line), *width_word = next_word(&line);
    const bool drop = !strcmp(width_word, "drop"); // the width may be left out
    const char *keep = drop ? width_word : next_word(&line), *rest = next_word(&line);
    int32_t l, width = 0;
    if (!take_number(&number, DW_MAX_LAYERS, &l) || *number)
        return dw_fail(r->err, "the line does not begin with the number of a layer");
    if (l != r->p->n_layer) return dw_fail(r->err, "this is layer %d, but layer %d is expected", l, r->p->n_layer);
    if (l >= DW_MAX_LAYERS) return dw_fail(r->err, "more than %d layers", DW_MAX_LAYERS);
    if (r->n_ff && l >= r->n_layer) return dw_fail(r->err, "the model has %d layers", r->n_layer);
    if (!drop && (!take_number(&width_word, MAX_NEURON, &width) || *width_word))
        return dw_fail(r->err, "the width of layer %d is not a number up to %d", l, MAX_NEURON);
    if (!*keep) return dw_fail(r->err, "layer %d does not say what it keeps", l);
    if (*rest)
        return dw_fail(r->err, "'%.40s' follows the ranges of layer %d; separate ranges by commas without spaces",
                       rest, l);
    if (dw_grow(&r->p->layer, &r->cap_layer, (size_t)l + 1, sizeof *r->p->layer, "layers of a plan", r->err)) return -1;
    kit_plan_layer *layer = &r->p->layer[l];
    *layer = (kit_plan_layer){.drop = !strcmp(keep, "drop")};
    int rc;
    if (layer->drop) rc = width ? dw_fail(r->err, "layer %d is dropped, so its width must be 0, not %d", l, width) : 0;
    else if (!width)
        rc = dw_fail(r->err, "layer %d keeps no neuron; keep at least one, or write 'drop' to remove the whole layer",
                     l);
    else
        rc = read_neurons(r, keep, width, layer);
    r->p->n_layer++;
    return rc;
}

static int read_columns(reader *r, char *line) {
    char *at = line;
    if (strcmp(next_word(&at), "layer") || strcmp(next_word(&at), "width") || strcmp(next_word(&at), "keep") ||
        *next_word(&at))
        return dw_fail(r->err, "the columns are not 'layer width keep'");
    r->columns_seen = true;
    return 0;
}

/* ---- files ----------------------------------------------------------------------------------------------- */

static int read_line(reader *r, char *line, int number) {
    if (number == 1)
        return *line == '#' && is_form(line + strspn(line, "# "))
                   ? 0
                   : dw_fail(r->err, "the line is not '# %s', so this is not a plan", format_line);
    if (line[strspn(line, " \t\r")] == 0) return 0;
    if (*line == '#') return read_comment(r, line + 1);
    if (!r->columns_seen) return read_columns(r, line);
    const char *word = line + strspn(line, " \t\r");
    return strncmp(word, "heads", 5) || !is_blank(word[5]) ? read_layer(r, line) : read_heads(r, line);
}

static int check_whole(const reader *r) {
    const kit_plan *p = r->p;
    int n_kept = 0;
    if (!p->n_layer) return dw_fail(r->err, "it has no layers");
    if (r->n_ff && p->n_layer != r->n_layer)
        return dw_fail(r->err, "it has %d layers, the model %d", p->n_layer, r->n_layer);
    for (int l = 0; l < p->n_layer; l++) n_kept += !p->layer[l].drop;
    return n_kept ? 0 : dw_fail(r->err, "it drops every layer; at least one must stay");
}

static int read_lines(reader *r, char *text, size_t size, const char *name) {
    char *end = text + size;
    int number = 0, rc = 0;
    for (char *line = text; line < end && !rc;) {
        char *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop) stop = end;
        *stop = 0;
        number++;
        const bool has_nul = strlen(line) != (size_t)(stop - line);
        if (has_nul && number > 1) rc = dw_fail(r->err, "the line has a NUL byte");
        else rc = read_line(r, has_nul ? "" : line, number);
        line = stop + 1;
    }
    if (rc) return dw_fail_in(r->err, "'%s' line %d", name, number);
    rc = number ? check_whole(r) : dw_fail(r->err, "the plan is empty");
    return rc ? dw_fail_in(r->err, "'%s'", name) : 0;
}

int kit_plan_parse(kit_plan *p, const char *text, size_t size, const char *name, const int *n_ff, int n_layer,
                   dw_err *err) {
    *p = (kit_plan){.rate_wanted = -1, .rate_reached = -1};
    reader r = {.p = p, .n_ff = n_ff, .n_layer = n_layer, .err = err};
    char *copy = dw_alloc(size + 1, 1, "a plan's text", err);
    p->comment = dw_alloc(size + 2, 1, "a plan's comments", err);
    if (copy && size) memcpy(copy, text, size);
    const int rc = copy && p->comment ? read_lines(&r, copy, size, name) : -1;
    free(copy);
    if (rc) kit_plan_release(p);
    return rc;
}

int kit_plan_read(kit_plan *p, const char *path, const int *n_ff, int n_layer, dw_err *err) {
    size_t size;
    char *text = dw_read_file(path, MAX_FILE_BYTES, &size, err);
    const int rc = text ? kit_plan_parse(p, text, size, path, n_ff, n_layer, err) : -1;
    free(text);
    return rc;
}

int kit_plan_check_model(const kit_plan *p, const char *path, const char *model, const char sha256[65], dw_err *err) {
    if (!p->model_sha256[0] || !strcmp(p->model_sha256, sha256)) return 0;
    return dw_fail(err, "'%s' was made for another model (sha256 %.12s..., '%s' has %.12s...); give that model, or "
                   "rank this one", path, p->model_sha256, model, sha256);
}

void kit_plan_release(kit_plan *p) {
    for (int l = 0; l < p->n_layer; l++) free(p->layer[l].span), free(p->layer[l].kv);
    for (size_t i = 0; i < p->n_text; i++) {
        free(p->text[i].name);
        free(p->text[i].blocks);
    }
    free(p->layer);
    free(p->text);
    free(p->comment);
    *p = (kit_plan){0};
}

/* ---- writing --------------------------------------------------------------------------------------------- */

static void put_comment(FILE *f, const char *comment) {
    while (comment && *comment) {
        const int n = (int)strcspn(comment, "\n");
        fprintf(f, "# %.*s\n", n, comment);
        comment += n + (comment[n] == '\n');
    }
}

static void put_spans(FILE *f, const kit_plan_span *span, size_t n_span) {
    for (size_t i = 0; i < n_span; i++) {
        fprintf(f, i ? ",%d" : "%d", span[i].first);
        if (span[i].last > span[i].first) fprintf(f, "-%d", span[i].last);
    }
}

static void put_layer(FILE *f, int l, const kit_plan_layer *layer) {
    fprintf(f, "%d\t%d\t", l, layer->n_keep);
    put_spans(f, layer->span, layer->n_span);
    fprintf(f, layer->drop ? "drop\n" : "\n");
    if (!layer->n_kv) return;
    fprintf(f, "heads\t%d\t", l);
    put_spans(f, layer->kv, layer->n_kv_span);
    fprintf(f, "\n");
}

/* A name with a line end would end the comment: it is shown as a terminal gets it. */
static void put_text(FILE *f, const kit_plan_text *t, char *shown, size_t cap) {
    dw_show(shown, cap, t->name, strlen(t->name));
    fprintf(f, "# text   %s  sha256 %s  tokens %" PRIu64 "  blocks %s\n", shown, t->sha256, t->n_tokens, t->blocks);
}

static size_t longest_name(const kit_plan *p) {
    size_t most = 0;
    for (size_t i = 0; i < p->n_text; i++)
        if (strlen(p->text[i].name) > most) most = strlen(p->text[i].name);
    return most;
}

/* A name in a comment may be one that the reader takes for something else, so the text is read before it is written. */
static int check_readable(const char *text, size_t size, dw_err *err) {
    kit_plan p;
    dw_err why = {0};
    if (kit_plan_parse(&p, text, size, "the new plan", NULL, 0, &why))
        return dw_fail(err, "no plan was written, because it could not be read: %s", why.text);
    kit_plan_release(&p);
    return 0;
}

char *kit_plan_format(const kit_plan *p, size_t *size, dw_err *err) {
    const size_t cap = 4 * longest_name(p) + 1;
    char *text = NULL, *shown = malloc(cap);
    *size = 0;
    FILE *f = shown ? open_memstream(&text, size) : NULL;
    bool failed = !f;
    if (f) {
        fprintf(f, "# %s\n", format_line);
        put_comment(f, p->comment);
        fprintf(f, "%s\n", columns);
        for (int l = 0; l < p->n_layer; l++) put_layer(f, l, &p->layer[l]);
        for (size_t i = 0; i < p->n_text; i++) put_text(f, &p->text[i], shown, cap);
        failed = ferror(f);
        failed |= fclose(f) != 0;
    }
    free(shown);
    if (failed) dw_fail(err, "out of memory: a plan's text");
    if (!failed && !check_readable(text, *size, err)) return text;
    free(text);
    return NULL;
}

int kit_plan_write(const kit_plan *p, const char *path, dw_err *err) {
    size_t size;
    char *text = kit_plan_format(p, &size, err);
    dw_out *out = text ? dw_out_open(path, err) : NULL;
    dw_out_pieces whole = {&(dw_out_piece){text, size}, 1};
    int rc = out ? dw_out_write(out, text, size, err) : -1;
    if (!rc) rc = dw_out_commit_checked(out, dw_out_holds, &whole, err);
    dw_out_free(out);
    free(text);
    return rc;
}

/* ---- layers in memory ------------------------------------------------------------------------------------ */

static void list_spans(const kit_plan_span *span, size_t n_span, int32_t *number) {
    for (size_t i = 0; i < n_span; i++)
        for (int32_t j = span[i].first; j <= span[i].last; j++) *number++ = j;
}

void kit_plan_neurons(const kit_plan_layer *layer, int32_t *neuron) { list_spans(layer->span, layer->n_span, neuron); }
void kit_plan_kv_heads(const kit_plan_layer *layer, int32_t *head) { list_spans(layer->kv, layer->n_kv_span, head); }

/* The ranges of those of n that `keep` names; NULL: no memory. */
static kit_plan_span *make_spans(const bool *keep, int n, size_t *n_span, int *n_keep, dw_err *err) {
    size_t most = 0;
    for (int j = 0; j < n; j++) most += keep[j] && (!j || !keep[j - 1]);
    kit_plan_span *span = dw_alloc(most ? most : 1, sizeof *span, "ranges of a plan", err);
    *n_span = 0, *n_keep = 0;
    for (int j = 0; span && j < n; j++) {
        if (!keep[j]) continue;
        if (!j || !keep[j - 1]) span[(*n_span)++].first = j;
        span[*n_span - 1].last = j;
        ++*n_keep;
    }
    return span;
}

int kit_plan_set_layer(kit_plan_layer *layer, const bool *keep, int n_ff, dw_err *err) {
    *layer = (kit_plan_layer){0};
    layer->span = make_spans(keep, n_ff, &layer->n_span, &layer->n_keep, err);
    return layer->span ? 0 : -1;
}

int kit_plan_set_kv_heads(kit_plan_layer *layer, const bool *keep, int n, dw_err *err) {
    layer->kv = make_spans(keep, n, &layer->n_kv_span, &layer->n_kv, err);
    return layer->kv ? 0 : -1;
}
