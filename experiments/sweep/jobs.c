/* jobs.c - from a grid to jobs: combinations, commands, identities. */
#include "experiments/sweep/jobs.h"
#include "kit/gram.h"
#include "kit/hash_cache.h"
#include "kit/options.h"
#include "kit/progress.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- combinations ----------------------------------------------------------------------------------------------- */

typedef struct expansion {
    jobs *j;
    const grid *g;
    const grid_step *step;
    uint16_t value[GRID_MAX_VARIABLES]; // of the combination that is being made
    uint16_t *values;                   // of the step's jobs
    size_t cap_values;
    size_t n_seen; // combinations, of all steps
} expansion;

/* The job of a step for the values of a combination, or -1.  The jobs of a step are sorted by their values. */
static int find_job(const expansion *e, int step) {
    const size_t n_variable = e->g->n_variable;
    const uint64_t needs = e->g->step[step].needs;
    size_t low = e->j->first[step], high = e->j->first[step + 1];
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const uint16_t *value = e->j->job[middle].value;
        size_t v = 0;
        while (v < n_variable && (!(needs >> v & 1) || value[v] == e->value[v])) v++;
        if (v == n_variable) return (int)middle;
        if (value[v] < e->value[v])
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

/* A job for the combination, unless a condition or a missing input says that there is none. */
static int add_job(expansion *e, dw_err *err) {
    jobs *j = e->j;
    if (++e->n_seen > GRID_MAX_JOBS) return dw_fail(err, "more than %d combinations up to this step", GRID_MAX_JOBS);
    if (!grid_holds(&e->step->only, e->value)) return 0;
    const size_t n_variable = e->g->n_variable, n_here = j->n - j->first[e->step - e->g->step];
    int *input = dw_alloc(e->step->n_read, sizeof *input, "inputs of a job", err);
    bool complete = input != NULL;
    for (size_t i = 0; complete && i < e->step->n_read; i++)
        complete = (input[i] = find_job(e, e->step->reads[i])) >= 0;
    if (!complete) {
        free(input);
        return input ? 0 : -1;
    }
    if (dw_grow(&e->values, &e->cap_values, (n_here + 1) * n_variable + 1, sizeof *e->values, "values", err) ||
        dw_grow(&j->job, &j->cap, j->n + 1, sizeof *j->job, "jobs", err)) {
        free(input);
        return -1;
    }
    if (n_variable) memcpy(e->values + n_here * n_variable, e->value, n_variable * sizeof *e->value);
    j->job[j->n++] = (job){.step = e->step, .input = input};
    return 0;
}

static int combine(expansion *e, size_t v, dw_err *err) {
    if (v == e->g->n_variable) return add_job(e, err);
    const grid_variable *variable = &e->g->variable[v];
    const bool matters = e->step->needs >> v & 1, varies = matters && grid_holds(&variable->only, e->value);
    e->value[v] = matters ? 0 : JOB_NO_VALUE;
    if (!varies) return combine(e, v + 1, err);
    for (size_t k = 0; k < variable->n_value; k++) {
        e->value[v] = (uint16_t)k;
        if (combine(e, v + 1, err)) return -1;
    }
    return 0;
}

static int expand_step(expansion *e, size_t s, dw_err *err) {
    jobs *j = e->j;
    e->step = &e->g->step[s];
    e->values = NULL;
    e->cap_values = 0;
    j->first[s] = j->n;
    const int rc = combine(e, 0, err);
    j->values[s] = e->values;
    j->first[s + 1] = j->n;
    for (size_t i = j->first[s]; i < j->n; i++) j->job[i].value = e->values + (i - j->first[s]) * e->g->n_variable;
    if (!rc && j->first[s] == j->n)
        return dw_fail(err, "'%s' is never run: its conditions, or those of what it reads, never hold", e->step->name);
    return rc;
}

int jobs_expand(jobs *j, const grid *g, const char *what, dw_err *err) {
    *j = (jobs){.grid = g};
    j->first = dw_alloc(g->n_step + 1, sizeof *j->first, "steps", err);
    j->values = dw_alloc(g->n_step, sizeof *j->values, "steps", err);
    expansion e = {.j = j, .g = g};
    int rc = j->first && j->values ? 0 : -1;
    for (size_t s = 0; s < g->n_step && !rc; s++) {
        dw_err why = {0};
        rc = expand_step(&e, s, &why);
        if (rc) dw_fail(err, "'%s', line %d: %s", what, g->step[s].line, why.text);
    }
    if (rc) jobs_release(j);
    return rc;
}

void jobs_release(jobs *j) {
    for (size_t i = 0; i < j->n; i++) {
        free(j->job[i].input);
        free(j->job[i].outside);
        for (int k = 0; k < GRID_MAX_OUTPUTS; k++) free(j->job[i].file[k]);
    }
    for (size_t i = 0; i < j->n_outside; i++) free(j->outside[i].word);
    free(j->outside);
    for (size_t s = 0; j->values && s < j->grid->n_step; s++) free(j->values[s]);
    free(j->values);
    free(j->first);
    free(j->job);
    *j = (jobs){0};
}

/* ---- commands --------------------------------------------------------------------------------------------------- */

typedef struct words {
    char **word;
    size_t n, cap;
} words;

static int add_word(words *w, const char *text, size_t len, dw_err *err) {
    if (dw_grow(&w->word, &w->cap, w->n + 1, sizeof *w->word, "a command", err)) return -1;
    char *copy = dw_alloc(len + 1, 1, "a command", err);
    if (!copy) return -1;
    memcpy(copy, text, len);
    w->word[w->n++] = copy;
    return 0;
}

static int add_split(words *w, const char *text, dw_err *err) {
    for (;;) {
        text += strspn(text, " ");
        if (!*text) return 0;
        const size_t n = strcspn(text, " ");
        if (add_word(w, text, n, err)) return -1;
        text += n;
    }
}

static int add_list(words *w, const grid_list *l, dw_err *err) {
    for (size_t i = 0; i < l->n_word; i++)
        if (add_word(w, l->word[i], strlen(l->word[i]), err)) return -1;
    return 0;
}

static const char *piece_text(const jobs *j, size_t i, const grid_piece *p, job_file_fn file, void *ctx) {
    const job *self = &j->job[i];
    switch (p->kind) {
    case GRID_TEXT: return p->text;
    case GRID_VARIABLE: return j->grid->variable[p->index].value[self->value[p->index]];
    case GRID_OUTPUT: return file(ctx, i, p->output);
    default: break;
    }
    for (size_t k = 0; k < self->step->n_read; k++)
        if (self->step->reads[k] == p->index) return file(ctx, (size_t)self->input[k], p->output);
    return "";
}

static int add_pieces(words *w, const jobs *j, size_t i, const grid_word *from, job_file_fn file, void *ctx,
                      dw_err *err) {
    char *text = dw_strdup("", err);
    for (size_t k = 0; k < from->n && text; k++) {
        char *longer = dw_format(err, "%s%s", text, piece_text(j, i, &from->piece[k], file, ctx));
        free(text);
        text = longer;
    }
    const int rc = text ? add_word(w, text, strlen(text), err) : -1;
    free(text);
    return rc;
}

char **jobs_words(const jobs *j, size_t i, job_file_fn file, void *ctx, size_t *n, dw_err *err) {
    const grid_step *s = j->job[i].step;
    words w = {0};
    int rc = dw_grow(&w.word, &w.cap, 1, sizeof *w.word, "a command", err); // an empty command is no failure
    for (size_t k = 0; k < s->n_word && !rc; k++) {
        const grid_word *word = &s->word[k];
        for (size_t f = 0; f < word->n_file && !rc; f++) rc = add_word(&w, word->file[f], strlen(word->file[f]), err);
        if (word->n_file) continue;
        if (!word->splits)
            rc = add_pieces(&w, j, i, word, file, ctx, err);
        else if (word->piece->kind == GRID_LIST)
            rc = add_list(&w, &j->grid->list[word->piece->index], err);
        else
            rc = add_split(&w, piece_text(j, i, word->piece, file, ctx), err);
    }
    *n = w.n;
    if (!rc) return w.word;
    jobs_free_words(w.word, w.n);
    return NULL;
}

void jobs_free_words(char **word, size_t n) {
    for (size_t i = 0; word && i < n; i++) free(word[i]);
    free(word);
}

/* ---- inputs from outside ---------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Of a folder: the names and contents of the files that lie in it, not of those in folders below; *bytes has their
 * sum. */
static int hash_folder(const char *path, char hex[65], double *bytes, dw_err *err) {
    DIR *dir = opendir(path);
    if (!dir) return dw_fail(err, "cannot read the folder '%s'", path);
    words names = {0};
    int rc = 0;
    for (struct dirent *entry; !rc && (entry = readdir(dir));)
        rc = add_word(&names, entry->d_name, strlen(entry->d_name), err);
    closedir(dir);
    if (names.n) qsort(names.word, names.n, sizeof *names.word, by_name);
    dw_sha256 h;
    dw_sha256_begin(&h);
    for (size_t i = 0; i < names.n && !rc; i++) {
        struct stat st;
        char *file = dw_format(err, "%s/%s", path, names.word[i]), sha256[65];
        if (!file)
            rc = -1;
        else if (!stat(file, &st) && S_ISREG(st.st_mode) && !(rc = kit_sha256_file(file, sha256, err))) {
            dw_sha256_add(&h, names.word[i], strlen(names.word[i]) + 1);
            dw_sha256_add(&h, sha256, sizeof sha256);
            *bytes += (double)st.st_size;
        }
        free(file);
    }
    uint8_t digest[32];
    dw_sha256_end(&h, digest);
    dw_hex(digest, sizeof digest, hex);
    jobs_free_words(names.word, names.n);
    return rc;
}

static int hash_outside(job_outside *o, dw_err *err) {
    struct stat st;
    o->stamp = (dw_stamp){0};
    *o->sha256 = 0;
    if (!*o->word || stat(o->word, &st)) return o->is_program ? dw_fail(err, "there is no '%s'", o->word) : 0;
    if (S_ISDIR(st.st_mode)) return hash_folder(o->word, o->sha256, &o->bytes, err);
    if (!S_ISREG(st.st_mode)) return 0;
    dw_stamp_of(o->word, &o->stamp); // before it is read: a change while it is read counts as one after
    o->is_file = true;
    o->bytes = (double)st.st_size;
    return o->is_program ? kit_sha256_program(o->word, o->sha256, err) : kit_sha256_input(o->word, o->sha256, err);
}

/* The place of a word in j->outside.  Every word is looked at once. */
static int find_outside(jobs *j, const char *word, bool is_program, size_t *place, dw_err *err) {
    for (*place = 0; *place < j->n_outside; ++*place)
        if (j->outside[*place].is_program == is_program && !strcmp(j->outside[*place].word, word)) return 0;
    if (dw_grow(&j->outside, &j->cap_outside, j->n_outside + 1, sizeof *j->outside, "inputs", err)) return -1;
    job_outside *o = &j->outside[j->n_outside];
    *o = (job_outside){.word = dw_strdup(word, err), .is_program = is_program};
    if (o->word && !hash_outside(o, err)) return j->n_outside++, 0;
    free(o->word);
    return -1;
}

/* sha256: "" when the word names nothing. */
static int add_outside(jobs *j, size_t i, const char *word, bool is_program, char sha256[65], dw_err *err) {
    job *one = &j->job[i];
    size_t place;
    if (find_outside(j, word, is_program, &place, err)) return -1;
    memcpy(sha256, j->outside[place].sha256, 65); // the array may move
    if (!*sha256) return 0;
    if (dw_grow(&one->outside, &one->cap_outside, one->n_outside + 1, sizeof *one->outside, "inputs", err)) return -1;
    one->outside[one->n_outside++] = (uint32_t)place;
    return 0;
}

int jobs_check_inputs(const jobs *j, size_t i, dw_err *err) {
    const job *one = &j->job[i];
    for (size_t k = 0; k < one->n_outside; k++) {
        const job_outside *before = &j->outside[one->outside[k]];
        dw_stamp stamp;
        if (before->is_file && !dw_stamp_of(before->word, &stamp) && dw_stamp_equal(&stamp, &before->stamp)) continue;
        job_outside now = {.word = before->word, .is_program = before->is_program};
        dw_err why = {0};
        if (hash_outside(&now, &why) || strcmp(now.sha256, before->sha256))
            return dw_fail(err, "%s '%s' changed while the sweep ran; run the same command again",
                           before->is_program ? "the program" : "the input", before->word);
    }
    return 0;
}

/* ---- identities ------------------------------------------------------------------------------------------------- */

/* How outputs are written where only identities count.  '/' keeps them from being names of files. */
static const char *id_of(void *ctx, size_t i, int output) {
    static const char *const own[GRID_MAX_OUTPUTS] = {"/out/", "/out/1", "/out/2", "/out/3"};
    static char other[4][80];
    static int next;
    const jobs *j = ctx;
    if (!*j->job[i].id) return own[output];
    if (!output) return j->job[i].id;
    char *text = other[next++ % 4];
    snprintf(text, sizeof other[0], "%s/%d", j->job[i].id, output);
    return text;
}

static void add_text(dw_sha256 *h, const char *text) { dw_sha256_add(h, text, strlen(text) + 1); }

static uint64_t mix(uint64_t hash, const char *word) {
    char hex[65];
    dw_sha256_hex(word, strlen(word), hex);
    hex[16] = 0;
    return dw_splitmix(hash ^ strtoull(hex, NULL, 16));
}

/* Programs that read statistics read the Gram matrices beside them, too. */
static int add_gram(jobs *j, size_t i, dw_sha256 *h, const char *path, dw_err *err) {
    char sha256[65], *gram = kit_gram_path(path, err);
    const int rc = gram ? add_outside(j, i, gram, false, sha256, err) : -1;
    if (!rc && *sha256) add_text(h, sha256);
    free(gram);
    return rc;
}

static int add_identity(jobs *j, size_t i, dw_sha256 *h, const char *word, dw_err *err) {
    const char *equal = strchr(word, '='), *path = word;
    char sha256[65];
    if (add_outside(j, i, word, false, sha256, err)) return -1;
    if (!*sha256 && equal && add_outside(j, i, path = equal + 1, false, sha256, err)) return -1;
    add_text(h, word);
    add_text(h, sha256);
    if (*sha256 && add_gram(j, i, h, path, err)) return -1;
    const bool is_output = strspn(word, "0123456789abcdef") >= 64 || strstr(word, "/out/");
    if (!*sha256 && !is_output) j->job[i].words = mix(j->job[i].words, word);
    if (word[0] == '-' && isalpha((unsigned char)word[word[1] == '-' ? 2 : 1]))
        j->job[i].options = mix(j->job[i].options, word);
    return 0;
}

static int identify(jobs *j, size_t i, const char *program, dw_err *err) {
    job *one = &j->job[i];
    const char *level = dw_cpu_level(NULL);
    char sha256[65] = "";
    size_t n;
    char **word = jobs_words(j, i, id_of, j, &n, err);
    if (!word) return -1;
    dw_sha256 h;
    dw_sha256_begin(&h);
    add_text(&h, "deadwood " DEADWOOD_VERSION);
    add_text(&h, level ? level : "");
    add_text(&h, one->step->tool);
    for (size_t k = 0; k < one->step->n_output; k++) add_text(&h, one->step->output[k].suffix);
    int rc = program ? add_outside(j, i, program, true, sha256, err) : 0;
    add_text(&h, sha256);
    for (size_t k = 0; k < n && !rc; k++) rc = add_identity(j, i, &h, word[k], err);
    jobs_free_words(word, n);
    uint8_t digest[32];
    dw_sha256_end(&h, digest);
    dw_hex(digest, sizeof digest, one->id);
    return rc;
}

static bool varies(const jobs *j, size_t i, size_t v) {
    const uint16_t *value = j->job[i].value;
    return value[v] != JOB_NO_VALUE && grid_holds(&j->grid->variable[v].only, value);
}

enum { MAX_NAME = 120 };

/* "-energy-0.2": bytes that are no part of a good name become _, dashes in front go. */
static void append_value(char *name, const char *value) {
    size_t n = strlen(name);
    if (n < MAX_NAME) name[n++] = '-';
    for (value += strspn(value, "- "); *value && n < MAX_NAME; value++) {
        const bool good = isalnum((unsigned char)*value) || strchr("._+=-", *value);
        if (good || name[n - 1] != '_') name[n++] = good ? *value : '_';
    }
    name[n] = 0;
}

static int give_name(jobs *j, size_t i, dw_err *err) {
    char name[MAX_NAME + 1];
    job *one = &j->job[i];
    snprintf(name, sizeof name, "%s", one->step->name);
    for (size_t v = 0; v < j->grid->n_variable; v++)
        if (varies(j, i, v)) append_value(name, j->grid->variable[v].value[one->value[v]]);
    for (size_t k = 0; k < one->step->n_output; k++) {
        one->file[k] = dw_format(err, "%s-%.10s%s", name, one->id, one->step->output[k].suffix);
        if (!one->file[k]) return -1;
    }
    return 0;
}

int jobs_identify(jobs *j, char *const *program, dw_err *err) {
    progress *bar = progress_begin("hashing inputs", "jobs", (double)j->n);
    int rc = 0;
    for (size_t i = 0; i < j->n && !rc; i++) {
        const char *own = program ? program[j->job[i].step - j->grid->step] : NULL;
        rc = identify(j, i, own, err);
        if (!rc) rc = give_name(j, i, err);
        progress_step(bar, 1);
    }
    progress_end(bar);
    return rc;
}

/* ---- words for people ------------------------------------------------------------------------------------------- */

char *jobs_variant(const jobs *j, size_t i, dw_err *err) {
    char *text = dw_strdup("", err);
    for (size_t v = 0; v < j->grid->n_variable && text; v++) {
        if (!varies(j, i, v)) continue;
        const grid_variable *variable = &j->grid->variable[v];
        char *value = opt_quoted(variable->value[j->job[i].value[v]]),
             *longer = dw_format(err, "%s%s%s=%s", text, *text ? " " : "", variable->name, value);
        free(value);
        free(text);
        text = longer;
    }
    return text;
}

/* Conditions on variables that the job does not depend on do not hold. */
static bool holds_for(const grid_conditions *c, const uint16_t *value) {
    for (size_t i = 0; i < c->n; i++)
        if (value[c->one[i].variable] == JOB_NO_VALUE) return false;
    return grid_holds(c, value);
}

bool jobs_is_control(const jobs *j, size_t i) {
    for (size_t k = 0; k < j->grid->n_control; k++)
        if (holds_for(&j->grid->control[k], j->job[i].value)) return true;
    return false;
}
