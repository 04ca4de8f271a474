/* folder.c - the output folder: only files of this grid's sweeps are written, and no others are touched.
 *
 *   rows.tsv  the table; its second line is "# sweep of the grid 'NAME', sha256 HASH"
 *   grid      a copy of the grid, whose hash is that of the table or of the grid that is run
 *   log/JOB.log  what each command said            claims/  who works on what (claims.h)
 *   JOB       the jobs' outputs */
#include "experiments/sweep/sweep.h"
#include "kit/talk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char sweep_comment[] = "# sweep of the grid '";

char *folder_path(const sweep *s, const char *name, dw_err *err) { return dw_format(err, "%s/%s", s->dir, name); }

static int make_folder(const char *path, dw_err *err) {
    if (mkdir(path, 0777) && errno != EEXIST)
        return dw_fail(err, "cannot make the folder '%s': %s", path, strerror(errno));
    return dw_is_folder(path) ? 0 : dw_fail(err, "'%s' is no folder", path);
}

/* Makes the folders above the last name of a path. */
static int make_parents(const char *path, dw_err *err) {
    char *parent = dw_strdup(path, err);
    int rc = parent ? 0 : -1;
    for (char *slash = parent; !rc && (slash = strchr(slash + 1, '/')); *slash = '/') {
        *slash = 0;
        rc = make_folder(parent, err);
    }
    free(parent);
    return rc;
}

/* ---- files of somebody else ------------------------------------------------------------------------------------- */

/* The line of a table that says which sweep wrote it; NULL: it has none. */
static char *table_line(const char *path, dw_err *err) {
    char *text = dw_read_file(path, SIZE_MAX, NULL, err), *found = NULL;
    for (char *rest = text, *line; rest && !found && (line = strsep(&rest, "\n")) && *line == '#';)
        if (!strncmp(line, sweep_comment, strlen(sweep_comment))) found = dw_strdup(line, err);
    free(text);
    return found;
}

/* The table belongs to this grid if its name or its contents are the same. */
static int check_table(const sweep *s, const char *path, const char *line, dw_err *err) {
    if (!line)
        return dw_fail(
            err, "'%s' was not written by a sweep, which would replace it; move it, or choose another folder", path);
    const char *name = line + strlen(sweep_comment), *own = s->comment + strlen(sweep_comment);
    const bool same_name = !strncmp(name, own, strcspn(own, "'") + 1);
    if (same_name || strstr(line, s->grid_sha256)) return 0;
    return dw_fail(err, "'%s' is the table of another grid, '%.*s'; choose another folder, or remove the table", path,
                   (int)strcspn(name, "'"), name);
}

static int check_copy(const sweep *s, const char *path, const char *line, dw_err *err) {
    char hex[65];
    if (dw_sha256_file(path, hex, err)) return -1;
    if (!strcmp(hex, s->grid_sha256) || (line && strstr(line, hex)) || dw_is_input(path, true)) return 0;
    return dw_fail(err,
                   "'%s' is another grid, or was not written by a sweep, which would replace it; move it, or choose "
                   "another folder",
                   path);
}

int folder_check(const sweep *s, dw_err *err) {
    if (dw_file_exists(s->dir) && !dw_is_folder(s->dir)) return dw_fail(err, "'%s' is no folder", s->dir);
    char *table = folder_path(s, "rows.tsv", err), *copy = folder_path(s, "grid", err), *line = NULL;
    int rc = table && copy ? 0 : -1;
    dw_err why = {0};
    if (!rc && dw_file_exists(table)) {
        line = table_line(table, &why);
        rc = *why.text ? dw_fail(err, "%s", why.text) : check_table(s, table, line, err);
    }
    if (!rc && dw_file_exists(copy)) rc = check_copy(s, copy, line, err);
    free(line);
    free(copy);
    free(table);
    return rc;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static int copy_grid(const sweep *s, dw_err *err) {
    size_t n;
    char *text = dw_read_file(s->grid_path, SIZE_MAX, &n, err), *copy = folder_path(s, "grid", err);
    if (text && copy && dw_is_input(copy, true)) { // the copy itself is the grid that is run
        free(copy);
        free(text);
        return 0;
    }
    dw_out *out = text && copy ? dw_out_open_kept(copy, err) : NULL;
    const int rc = out && !dw_out_write(out, text, n, err) && !dw_out_commit(out, err) ? 0 : -1;
    dw_out_free(out);
    free(copy);
    free(text);
    return rc;
}

int folder_open(sweep *s, dw_err *err) {
    int n_others = 0;
    char *log = folder_path(s, "log", err);
    int rc = log && !make_parents(s->dir, err) ? make_folder(s->dir, err) : -1;
    if (!rc && !(s->claims = claims_open(s->dir, s->grid_sha256, &n_others, err))) rc = -1;
    if (!rc) rc = make_folder(log, err);
    if (!rc) rc = copy_grid(s, err);
    if (!rc) s->alone_lock = open(log, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (!rc && n_others)
        say("%d other sweep%s of this grid work%s on '%s'; the jobs are shared", n_others, plural(n_others),
            n_others == 1 ? "s" : "", s->dir);
    free(log);
    return rc;
}

/* ---- what killed programs left ---------------------------------------------------------------------------------- */

/* Whether a name of n bytes is that of an output, or of what belongs to it, as OUT.gram and OUT.windows do. */
static bool is_of(const char *out, const char *name, size_t n) {
    const size_t n_out = strlen(out);
    return n >= n_out && !memcmp(out, name, n_out) && (n == n_out || name[n_out] == '.');
}

/* The job to whose outputs a name of n bytes belongs; SWEEP_NONE: none. */
static size_t job_named(const sweep *s, const char *name, size_t n) {
    for (size_t i = 0; i < s->jobs.n; i++)
        for (size_t k = 0; k < job_of(s, i)->step->n_output; k++)
            if (is_of(job_of(s, i)->file[k], name, n)) return i;
    return SWEEP_NONE;
}

/* A temporary, n bytes before its random part, of a file that the sweep itself writes goes when nobody writes it. */
static void remove_own(const sweep *s, const char *name, size_t n) {
    static const char *const own[] = {"grid", "rows.tsv", "rows.tsv.windows"};
    char *path = folder_path(s, name, NULL);
    for (size_t i = 0; path && i < sizeof own / sizeof *own; i++)
        if (strlen(own[i]) == n && !strncmp(name, own[i], n)) dw_out_remove_left(path);
    free(path);
}

/* Whoever works on a job holds its claim for as long as its programs run.  So a temporary that was seen before the
 * claim was free is not written any more. */
static claim_state claim_of(const sweep *s, size_t i) {
    char *reason;
    const claim_state claim = claims_look(s->claims, job_of(s, i)->file[0], &reason);
    free(reason);
    return claim;
}

/* "NAME.dw0123456789abcdef.part" of job `only`, or of the sweep itself and any job that nobody works on, goes. */
static int clean(const sweep *s, size_t only, dw_err *err) {
    DIR *d = opendir(s->dir);
    if (!d) return dw_fail(err, "cannot read the folder '%s': %s", s->dir, strerror(errno));
    for (struct dirent *entry; (entry = readdir(d));) {
        if (!dw_out_is_temporary(entry->d_name)) continue;
        const size_t n = strlen(entry->d_name) - strlen(".dw0123456789abcdef.part"), i = job_named(s, entry->d_name, n);
        if (i == SWEEP_NONE)
            remove_own(s, entry->d_name, n);
        else if (only == SWEEP_NONE ? claim_of(s, i) != CLAIM_OTHER : i == only)
            unlinkat(dirfd(d), entry->d_name, 0);
    }
    closedir(d);
    return 0;
}

int folder_clean(const sweep *s, dw_err *err) { return clean(s, SWEEP_NONE, err); }
int folder_clean_job(const sweep *s, size_t i, dw_err *err) {
    tasks_remove_outputs(&s->task[i]); // a dead process may have finished them before it looked at the inputs again
    return clean(s, i, err);
}

/* Nobody takes over the dead claim of a job that is not needed any more. */
int folder_bury(const sweep *s, dw_err *err) {
    for (size_t i = 0; i < s->jobs.n; i++) {
        claim_taken taken;
        const char *name = job_of(s, i)->file[0];
        if (s->task[i].needed || claim_of(s, i) != CLAIM_DEAD) continue;
        if (claims_take(s->claims, name, &taken, err) || (taken == CLAIM_INHERITED && folder_clean_job(s, i, err)))
            return -1;
        if (taken != CLAIM_NOT_MINE) claims_release(s->claims, name);
    }
    return 0;
}
