/* programs.c - which programs may be steps, where they are, and whether they understand their commands.
 *
 * A grid is read by people who did not write it, so it must not be able to run any program or to write any file.  Only
 * the programs below are steps.  None of them loads code.  A step writes only into the sweep's folder: the program
 * itself says which files its arguments name for writing (--check-options), and each must be an output of the step.  It
 * also says which they name for reading: each must be there, or be the output of another step. */
#include "experiments/sweep/sweep.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const steps[] = {"convert", "synth", "collect", "rank", "cut",   "gate",
                                    "trace",   "train", "requant", "heal", "score", "inspect"};
enum { N_STEPS = sizeof steps / sizeof *steps };

static bool is_own(const char *name) {
    for (size_t i = 0; i < N_STEPS; i++)
        if (!strcmp(steps[i], name)) return true;
    return false;
}

static bool is_allowed(const char *name, const opt_list *allowed) {
    for (size_t i = 0; i < allowed->n; i++)
        if (!strcmp(allowed->item[i], name)) return true;
    return is_own(name);
}

/* ---- where they are --------------------------------------------------------------------------------------------- */

static char *executable(const char *folder, size_t n, const char *name, dw_err *err) {
    char *path = dw_format(err, "%.*s/deadwood-%s", (int)n, folder, name);
    if (path && !access(path, X_OK)) return path;
    free(path);
    return NULL;
}

char *programs_path(const char *name, dw_err *err) {
    char own[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    own[n > 0 ? n : 0] = 0;
    const char *slash = strrchr(own, '/'), *path = getenv("PATH");
    char *found = slash ? executable(own, (size_t)(slash - own), name, err) : NULL;
    for (const char *at = path ? path : ""; *at && !found; at += strcspn(at, ":"), at += *at == ':') {
        const size_t len = strcspn(at, ":");
        if (len) found = executable(at, len, name, err);
    }
    return found;
}

static int fail_not_allowed(const sweep *s, const grid_step *step, dw_err *err) {
    char *list = NULL;
    for (size_t i = 0; i < N_STEPS; i++)
        if (dw_append(&list, err, "%s%s", i ? ", " : "", steps[i])) break;
    dw_fail(err,
            "'%s', line %d: '%s' is not among the programs that steps run: %s; --allow %s runs deadwood-%s with what "
            "the grid says",
            s->grid_path, step->line, step->tool, list ? list : "", step->tool, step->tool);
    free(list);
    return -1;
}

int programs_find(sweep *s, const opt_list *allowed, dw_err *err) {
    s->program = dw_alloc(s->grid.n_step, sizeof *s->program, "programs", err);
    for (size_t i = 0; s->program && i < s->grid.n_step; i++) {
        const grid_step *step = &s->grid.step[i];
        if (!is_allowed(step->tool, allowed)) return fail_not_allowed(s, step, err);
        s->program[i] = programs_path(step->tool, err);
        if (!s->program[i])
            return dw_fail(err, "'%s', line %d: there is no program deadwood-%s", s->grid_path, step->line, step->tool);
    }
    return s->program ? 0 : -1;
}

/* ---- whether they understand ------------------------------------------------------------------------------------ */

/* Names for files in a command that is only checked: outputs are told apart, inputs are not. */
typedef struct checked_job {
    size_t job;
} checked_job;

static const char in[] = "//in", out[] = "//out/";

static const char *checked_name(void *ctx, size_t i, int output) {
    static const char *const own[GRID_MAX_OUTPUTS] = {"//out/0", "//out/1", "//out/2", "//out/3"};
    const checked_job *c = ctx;
    return i == c->job ? own[output] : in;
}

/* An input that no step makes must be there. */
static int check_input(const char *path, dw_err *err) {
    if (strstr(path, in) || strstr(path, out) || !access(path, F_OK)) return 0;
    return dw_fail(err, "there is no '%s', and no step makes it", path);
}

/* What a program says of its outputs must be exactly the outputs of the step; its inputs must be there. */
static int check_files(const grid_step *step, char *said, dw_err *err) {
    bool written[GRID_MAX_OUTPUTS] = {false};
    for (char *rest = said, *line; rest && (line = strsep(&rest, "\n")) && *line;) {
        unsigned k = 0;
        char end;
        if (!strncmp(line, "input ", 6)) {
            if (check_input(line + 6, err)) return -1;
            continue;
        }
        if (strncmp(line, "output ", 7))
            return dw_fail(err, "cannot check the options of '%s': it said '%.80s'", step->tool, line);
        if (sscanf(line + 7, "//out/%u%c", &k, &end) != 1 || k >= step->n_output)
            return dw_fail(
                err, "the command of '%s' would write '%s', which is no output of the step; name it as $out.SUFFIX",
                step->name, line + 7);
        written[k] = true;
    }
    for (size_t k = 0; k < step->n_output; k++)
        if (!written[k])
            return dw_fail(err, "the command of '%s' does not write %s%s: no option that names an output has it",
                           step->name, step->output[k].is_rows ? "$rows" : "$out",
                           step->output[k].is_rows ? "" : step->output[k].suffix);
    return 0;
}

/* "deadwood-rank: --rate: '20' is .." without its begin and the lines after it. */
static void shorten(char *said, const char *tool_word) {
    const size_t n = strlen("deadwood-") + strlen(tool_word) + 2;
    said[strcspn(said, "\n")] = 0;
    if (!strncmp(said, "deadwood-", 9) && strlen(said) > n) memmove(said, said + n, strlen(said + n) + 1);
}

static int ask(const sweep *s, const grid_step *step, char **word, size_t n, dw_err *err) {
    char **argv = dw_alloc(n + 3, sizeof *argv, "a command", err), *said = NULL;
    if (!argv) return -1;
    argv[0] = step->tool;
    argv[1] = "--check-options";
    if (n) memcpy(argv + 2, word, n * sizeof *argv);
    const int status = children_ask(s->program[step - s->grid.step], argv, &said, err);
    int rc = said ? 0 : -1;
    if (!rc && WIFEXITED(status) && !WEXITSTATUS(status)) {
        rc = check_files(step, said, err);
    } else if (!rc) {
        shorten(said, step->tool);
        rc = dw_fail(err, "%s", said);
    }
    free(said);
    free(argv);
    return rc;
}

/* A sweep looks for files and models in whole words and after =, so it would not see one in -mFILE. */
static int check_letters(char **word, size_t n, dw_err *err) {
    for (size_t i = 0; i < n; i++)
        if (word[i][0] == '-' && isalpha((unsigned char)word[i][1]) && word[i][2])
            return dw_fail(err,
                           "'-%c' and what follows it are one word; a grid gives options of one letter apart from "
                           "their values and from each other",
                           word[i][1]);
    return 0;
}

typedef struct asked { // hashes of commands that were understood
    uint64_t *hash;
    size_t n, cap;
} asked;

static uint64_t hash_of(char **word, size_t n) {
    dw_sha256 h;
    uint8_t digest[32];
    dw_sha256_begin(&h);
    for (size_t i = 0; i < n; i++) dw_sha256_add(&h, word[i], strlen(word[i]) + 1);
    dw_sha256_end(&h, digest);
    return dw_le64(digest);
}

static int check_job(const sweep *s, size_t i, asked *a, dw_err *err) {
    const grid_step *step = job_of(s, i)->step;
    checked_job c = {i};
    size_t n;
    dw_err why = {0};
    char **word = jobs_words(&s->jobs, i, checked_name, &c, &n, err);
    if (!word) return -1;
    const uint64_t hash = hash_of(word, n);
    size_t k = 0;
    while (k < a->n && a->hash[k] != hash) k++;
    int rc = k < a->n ? 0 : dw_grow(&a->hash, &a->cap, a->n + 1, sizeof *a->hash, "commands", err);
    if (!rc && k == a->n) {
        a->hash[a->n++] = hash;
        if (check_letters(word, n, &why) || (is_own(step->tool) && ask(s, step, word, n, &why)))
            rc = dw_fail(err, "'%s', line %d: %s: %s", s->grid_path, step->line, step->tool, why.text);
    }
    jobs_free_words(word, n);
    return rc;
}

int programs_check(const sweep *s, dw_err *err) {
    progress *bar = progress_begin("checking options", "jobs", (double)s->jobs.n);
    int rc = 0;
    for (size_t k = 0; k < s->grid.n_step && !rc; k++) {
        asked a = {0};
        for (size_t i = s->jobs.first[k]; i < s->jobs.first[k + 1] && !rc; i++) {
            rc = check_job(s, i, &a, err);
            progress_step(bar, 1);
        }
        free(a.hash);
    }
    progress_end(bar);
    return rc;
}
