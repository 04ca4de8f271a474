/* sweep.c - deadwood-sweep: runs all variants of a grid; nothing is computed twice, nothing finished is lost.
 *
 *     deadwood sweep experiments/grids/mini.grid -o build/sweep
 *
 * A grid (grid.h) becomes jobs (jobs.h), each a command that writes one file whose name carries its identity: a file
 * that is there is done.  Files appear whole or not at all, so this holds after any kind of end.  Jobs are child
 * processes (children.h); their rows are gathered and judged (judge.h).
 *
 * The folder: the jobs' files; rows.tsv; grid, a copy; log/FILE.log, what each command said; times.tsv, what each job
 * took; lock, held by this process and its children. */
#include "experiments/sweep/children.h"
#include "experiments/sweep/jobs.h"
#include "experiments/sweep/judge.h"
#include "kit/options.h"
#include "kit/progress.h"
#include "kit/talk.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ALONE_BATCH = 8 }; // so many jobs that run alone wait before the others are held up

typedef struct keep_rule {
    const char *name;
    bool none, best;
} keep_rule;

static const struct { const char *name; } control_choices[] = {{"auto"}, {"none"}, {0}};
static const keep_rule keep_rules[] = {{"all", false, false}, {"best", false, true}, {"none", true, false}, {0}};

static struct {
    opt_list grid;
    const char *dir, *keep, *controls;
    int jobs;
    bool dry_run;
} o;

// clang-format off
static const opt_row rows[] = {
    {NULL, 0, OPT_TEXTS, OPT_REQUIRED | OPT_INPUT, &o.grid, NULL, "GRID", "the grid: a text file", .min = 1, .max = 1},
    {"out", 'o', OPT_TEXT, OPT_REQUIRED | OPT_NO_BYTE, &o.dir, NULL, "DIR", "the folder for all files; made where it is missing"},
    {"jobs", 'j', OPT_INT, OPT_NO_BYTE, &o.jobs, "0", "N", "jobs at once; 0: as many as threads", .min = 0, .max = CHILDREN_MAX},
    {"keep", 0, OPT_CHOICE, 0, &o.keep, "best", "WHICH", "models that stay when they are scored; best: those whose verdict is keep", OPT_CHOICES(keep_rules)},
    {"controls", 0, OPT_CHOICE, 0, &o.controls, "auto", "WHICH", "auto: add random neurons and plain quantizations where the grid has none", OPT_CHOICES(control_choices)},
    {"dry-run", 0, OPT_FLAG, OPT_NO_BYTE, &o.dry_run, NULL, NULL, "print the commands that would run, and what is there; write nothing"},
    OPT_COMMON_HEADING,
    {"threads", 't', OPT_INT, OPT_NO_BYTE, &tool.threads, "0", "N", "threads of all jobs together; 0: the physical cores this process may use", .min = 0, .max = 256},
    OPT_QUIET, {0}};

static const opt_program program = {
    .name = "sweep",
    .summary = "run all variants of a grid and make one table of their rows",
    .usage = "GRID -o DIR [-j N] [--keep all|best|none] [--controls auto|none] [--dry-run]",
    .about = "A grid is a text file of variables with lists of values and of steps, each a deadwood command:\n"
             "\n"
             "  # deadwood grid 1\n"
             "  eval   := experiments/texts/eval/*.txt\n"
             "  metric  = energy random\n"
             "  rate    = 0.1 0.2 0.3\n"
             "  seed    = 1 2 3                            if metric = random\n"
             "  dense   : convert experiments/mini -o $out.gguf\n"
             "  stats   : collect -m $dense -f experiments/texts/calib/code-1.txt -o $out.h5\n"
             "  plan    : rank -m $dense -s $stats --metric $metric --rate $rate --seed $seed -o $out.tsv\n"
             "  cut     : cut -m $dense -p $plan -o $out.gguf\n"
             "  score   : score -m $cut --base $dense -f $eval --no-speed -o $rows\n"
             "  speed   : alone score -m $cut --speed-only -o $rows\n"
             "\n"
             "NAME = varies over its values, NAME := is a list that is used as a whole, NAME : is a step.  A step runs once "
             "for each combination of the values that decide its output.  $NAME is a value, or the output of a step above; $out.SUFFIX is "
             "what the step writes, $rows the rows that it adds to DIR/rows.tsv.  `if NAME = VALUE .. [and ..]` behind a variable says when it varies "
             "(else it has its first value), behind a step when there is one; `control if ..` says which rows are controls, besides those of metric random.  "
             "Steps marked `alone` have nothing beside them.  experiments/sweep/grid.h says it all.\n"
             "\n"
             "Controls come by themselves: a grid that ranks neurons by no random metric gets every cut three times by lot as well (steps random_..), and "
             "one without requant the first cut's model rounded to six types (steps rounded_..), so that verdicts have something to hold cuts against.\n"
             "\n"
             "Files are named by the values and by a hash of the command and of all that it reads, so after any change or any end the same command "
             "computes what is missing and nothing else.  A job that fails costs the rows that need it: they have the "
             "verdict failed and the reason; the next run tries again.\n"
             "\n"
             "Verdicts: control; collapsed (perplexity above ten times the base's, beyond the error); discard (another row of the same type is no larger, in file size and bytes a "
             "token, and its ln_ratio is smaller beyond the error of the paired difference, corrected for the number of comparisons); keep.  With --keep best the models of the others are deleted as soon as "
             "that is known; plan and lineage make them again.",
    .example = "deadwood sweep experiments/grids/mini.grid -o build/sweep --dry-run\n"
               "deadwood sweep experiments/grids/mini.grid -o build/sweep -j 2",
    .rows = rows};
// clang-format on

static const size_t NONE = SIZE_MAX;

typedef enum task_state { ABSENT, RUNNING, DONE, REMOVED, FAILED } task_state; // from DONE on: settled

typedef struct task { // what becomes of a job
    task_state state;
    bool needed, scored; // scored: rows tell of it, or of what is made from it
    char *path;
    size_t *reader, n_reader; // jobs that read its output
    size_t n_waiting;         // those of them that are still to run
    size_t source;            // of rows, NONE: it makes none
    size_t cause;             // FAILED: the job that failed first
    char *reason;             // of a cause
    pid_t pid;
    double began;
} task;

typedef struct sweep {
    const char *dir;
    grid grid;
    jobs jobs;
    task *task;
    char **program; // (n_step) paths
    judge *judge;
    const keep_rule *keep;
    size_t *order, n_order, first; // jobs to run; all before `first` are settled
    int n_threads, n_at_once, n_running;
    bool alone_runs, alone_turn;
    size_t n_failed, n_failed_files; // rows; files that no row needed
    double written; // when the table was, last
    char *comment;  // of the table
    progress *bar;
} sweep;

static const job *job_of(const sweep *s, size_t i) { return &s->jobs.job[i]; }

static const char *path_of(void *ctx, size_t i) { return ((const sweep *)ctx)->task[i].path; }

static char *in_folder(const char *dir, const char *name, dw_err *err) { return dw_format(err, "%s/%s", dir, name); }

/* ---- programs ------------------------------------------------------------------------------------------------------ */

static char *executable(const char *folder, size_t n, const char *tool_name, dw_err *err) {
    char *path = dw_format(err, "%.*s/deadwood-%s", (int)n, folder, tool_name);
    if (path && !access(path, X_OK)) return path;
    free(path);
    return NULL;
}

/* Beside this program, or on PATH. */
static char *find_program(const char *tool_name, dw_err *err) {
    char own[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    own[n > 0 ? n : 0] = 0;
    const char *slash = strrchr(own, '/'), *path = getenv("PATH");
    char *found = slash ? executable(own, (size_t)(slash - own), tool_name, err) : NULL;
    for (const char *at = path ? path : ""; *at && !found; at += strcspn(at, ":"), at += *at == ':') {
        const size_t len = strcspn(at, ":");
        if (len) found = executable(at, len, tool_name, err);
    }
    return found;
}

static int find_programs(sweep *s, const char *what, dw_err *err) {
    s->program = dw_alloc(s->grid.n_step, sizeof *s->program, "programs", err);
    for (size_t i = 0; s->program && i < s->grid.n_step; i++) {
        const grid_step *step = &s->grid.step[i];
        s->program[i] = find_program(step->tool, err);
        if (!s->program[i])
            return dw_fail(err, "'%s', line %d: there is no program deadwood-%s", what, step->line, step->tool);
    }
    return s->program ? 0 : -1;
}

/* ---- the folder ------------------------------------------------------------------------------------------------------ */

static int make_folder(const char *path, dw_err *err) {
    struct stat st;
    if (mkdir(path, 0777) && errno != EEXIST)
        return dw_fail(err, "cannot make the folder '%s': %s", path, strerror(errno));
    return !stat(path, &st) && S_ISDIR(st.st_mode) ? 0 : dw_fail(err, "'%s' is no folder", path);
}

static void pause_shortly(void) { nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL); }

/* The lock is inherited by all jobs: who gets it knows that nobody writes into the folder.  Of a sweep that was killed
 * the jobs die within moments, which are waited for. */
static int lock_folder(const char *dir, dw_err *err) {
    char *path = in_folder(dir, "lock", err), owner[32] = "";
    if (!path) return -1;
    const int fd = open(path, O_RDWR | O_CREAT, 0666);
    int rc = fd < 0 ? dw_fail(err, "cannot open '%s': %s", path, strerror(errno)) : 0;
    for (const double until = dw_now() + 60; !rc && flock(fd, LOCK_EX | LOCK_NB);) {
        const ssize_t n = pread(fd, owner, sizeof owner - 1, 0);
        owner[n > 0 ? n : 0] = 0;
        const long pid = strtol(owner, NULL, 10);
        if (pid > 0 && (!kill((pid_t)pid, 0) || errno == EPERM))
            rc = dw_fail(err, "another sweep (process %ld) works on '%s'", pid, dir);
        else if (dw_now() > until)
            rc = dw_fail(err, "jobs of a sweep that ended still work on '%s'; wait for them, or end them", dir);
        else
            pause_shortly();
    }
    const int n = snprintf(owner, sizeof owner, "%ld\n", (long)getpid());
    if (!rc && (ftruncate(fd, 0) || pwrite(fd, owner, (size_t)n, 0) != n))
        rc = dw_fail(err, "cannot write '%s': %s", path, strerror(errno));
    if (rc && fd >= 0) close(fd);
    free(path);
    return rc;
}

/* What a process left that was killed goes.  What tools keep to go on from, "x.h5.part", stays, and so does any other file. */
static int remove_stale(const char *dir, dw_err *err) {
    DIR *d = opendir(dir);
    if (!d) return dw_fail(err, "cannot read the folder '%s': %s", dir, strerror(errno));
    for (struct dirent *entry; (entry = readdir(d));)
        if (dw_out_is_temporary(entry->d_name)) unlinkat(dirfd(d), entry->d_name, 0);
    closedir(d);
    return 0;
}

static int copy_grid(const char *dir, const char *path, dw_err *err) {
    size_t n;
    char *text = dw_read_file(path, SIZE_MAX, &n, err), *copy = in_folder(dir, "grid", err);
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

static int open_folder(const sweep *s, dw_err *err) {
    char *log = in_folder(s->dir, "log", err);
    const int rc = !log || make_folder(s->dir, err) || lock_folder(s->dir, err) || make_folder(log, err) ||
                           remove_stale(s->dir, err) || copy_grid(s->dir, o.grid.item[0], err)
                       ? -1
                       : 0;
    free(log);
    return rc;
}

/* ---- what there is to do ------------------------------------------------------------------------------------------------ */

static int link_readers(sweep *s, dw_err *err) {
    for (size_t i = 0; i < s->jobs.n; i++)
        for (size_t k = 0; k < job_of(s, i)->step->n_read; k++) s->task[job_of(s, i)->input[k]].n_reader++;
    for (size_t i = 0; i < s->jobs.n; i++) {
        s->task[i].reader = dw_alloc(s->task[i].n_reader, sizeof *s->task[i].reader, "jobs", err);
        if (!s->task[i].reader) return -1;
        s->task[i].n_reader = 0;
    }
    for (size_t i = 0; i < s->jobs.n; i++)
        for (size_t k = 0; k < job_of(s, i)->step->n_read; k++) {
            task *t = &s->task[job_of(s, i)->input[k]];
            t->reader[t->n_reader++] = i;
        }
    return 0;
}

/* What nobody reads is wanted, and all that is read by what is wanted and not done. */
static void mark_needed(sweep *s) {
    for (size_t i = s->jobs.n; i-- > 0;) {
        task *t = &s->task[i];
        t->needed |= !t->n_reader;
        t->scored = t->source != NONE;
        for (size_t k = 0; k < t->n_reader; k++) t->scored |= s->task[t->reader[k]].scored;
        if (!t->needed || t->state == DONE) continue;
        for (size_t k = 0; k < job_of(s, i)->step->n_read; k++) {
            task *input = &s->task[job_of(s, i)->input[k]];
            input->needed = true;
            input->n_waiting++;
        }
    }
}

static void put_in_order(sweep *s, size_t i, bool *placed) {
    if (placed[i] || s->task[i].state == DONE) return;
    placed[i] = true;
    for (size_t k = 0; k < job_of(s, i)->step->n_read; k++) put_in_order(s, (size_t)job_of(s, i)->input[k], placed);
    s->order[s->n_order++] = i;
}

static const sweep *sorted; // for the comparison

/* By the values, so that all of a variant comes together and its model can go before the next one is made. */
static int by_values(const void *a, const void *b) {
    const size_t i = *(const size_t *)a, k = *(const size_t *)b;
    for (size_t v = 0; v < sorted->grid.n_variable; v++) {
        const int x = job_of(sorted, i)->value[v], y = job_of(sorted, k)->value[v];
        if (x != y) return x < y ? -1 : 1;
    }
    return i < k ? -1 : i > k;
}

static int make_order(sweep *s, dw_err *err) {
    size_t *wanted = dw_alloc(s->jobs.n, sizeof *wanted, "jobs", err), n = 0;
    bool *placed = dw_alloc(s->jobs.n, sizeof *placed, "jobs", err);
    s->order = dw_alloc(s->jobs.n, sizeof *s->order, "jobs", err);
    const bool ok = wanted && placed && s->order;
    for (size_t i = 0; i < s->jobs.n && ok; i++)
        if (!s->task[i].n_reader) wanted[n++] = i;
    sorted = s;
    if (n) qsort(wanted, n, sizeof *wanted, by_values);
    for (size_t i = 0; i < n; i++) put_in_order(s, wanted[i], placed);
    free(wanted);
    free(placed);
    return ok ? 0 : -1;
}

/* Reads the rows of a job that is done. */
static int take_rows(sweep *s, size_t i, dw_err *err) {
    char *variant = jobs_variant(&s->jobs, i, err);
    const int rc = variant ? judge_add(s->judge, s->task[i].source, s->task[i].path, variant,
                                       jobs_is_control(&s->jobs, i), err)
                           : -1;
    free(variant);
    return rc;
}

static int find_tasks(sweep *s, dw_err *err) {
    size_t n_source = 0;
    s->task = dw_alloc(s->jobs.n, sizeof *s->task, "jobs", err);
    for (size_t i = 0; s->task && i < s->jobs.n; i++) {
        task *t = &s->task[i];
        t->path = in_folder(s->dir, job_of(s, i)->file, err);
        if (!t->path) return -1;
        t->state = dw_file_exists(t->path) ? DONE : ABSENT;
        t->source = job_of(s, i)->step->makes_rows ? n_source++ : NONE;
    }
    s->judge = s->task ? judge_new(n_source, err) : NULL;
    for (size_t i = 0; s->judge && i < s->jobs.n; i++)
        if (s->task[i].source != NONE && s->task[i].state == DONE && take_rows(s, i, err)) return -1;
    if (!s->judge || link_readers(s, err)) return -1;
    mark_needed(s);
    return make_order(s, err);
}

/* ---- models that may go --------------------------------------------------------------------------------------------------- */

static bool is_model(const sweep *s, size_t i) {
    const char *suffix = job_of(s, i)->step->suffix;
    const size_t n = strlen(suffix);
    return n >= 5 && !strcmp(suffix + n - 5, ".gguf");
}

static bool is_best(const sweep *s, size_t i) {
    const task *t = &s->task[i];
    for (size_t k = 0; k < t->n_reader; k++) {
        const task *reader = &s->task[t->reader[k]];
        if (reader->source == NONE) continue;
        if (reader->state != DONE || judge_keeps(s->judge, reader->source)) return true;
    }
    return false;
}

static void remove_models(sweep *s) {
    for (size_t i = 0; i < s->jobs.n; i++) {
        task *t = &s->task[i];
        if (t->state != DONE || t->n_waiting || !is_model(s, i) || !t->scored) continue;
        if (!s->keep->none && (!s->keep->best || is_best(s, i))) continue;
        if (unlink(t->path) && errno != ENOENT) warn("cannot remove '%s': %s", t->path, strerror(errno));
        t->state = REMOVED;
    }
}

/* ---- the table ---------------------------------------------------------------------------------------------------------------- */

static int write_table(sweep *s, judge_counts *counts, dw_err *err) {
    char *path = in_folder(s->dir, "rows.tsv", err);
    const int rc = path ? judge_write(s->judge, path, s->comment, counts, err) : -1;
    free(path);
    s->written = dw_now();
    return rc;
}

/* ---- one job -------------------------------------------------------------------------------------------------------------------- */

/* How many threads a job gets.  Rows say with how many they were made, so theirs does not hang on what runs beside. */
static int threads_of(const sweep *s, size_t i, int n_ready) {
    const grid_step *step = job_of(s, i)->step;
    int share = s->n_running + n_ready < s->n_at_once ? s->n_running + n_ready : s->n_at_once;
    if (step->makes_rows) share = s->n_at_once;
    if (step->alone || share < 1) share = 1;
    return s->n_threads > share ? s->n_threads / share : 1;
}

static bool says_threads(char **word, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!strncmp(word[i], "-t", 2) || !strncmp(word[i], "--threads", 9)) return true;
    return false;
}

/* argv for a job, NULL behind it; the name that a user types is argv[0] and argv[1]: "deadwood" "cut" .. */
static char **command_of(const sweep *s, size_t i, int n_threads, size_t *n, dw_err *err) {
    size_t n_word;
    char **word = jobs_words(&s->jobs, i, path_of, (void *)s, &n_word, err);
    char **argv = word ? dw_alloc(n_word + 5, sizeof *argv, "a command", err) : NULL;
    if (!argv) {
        jobs_free_words(word, n_word);
        return NULL;
    }
    argv[0] = dw_strdup("deadwood", err);
    argv[1] = dw_strdup(job_of(s, i)->step->tool, err);
    if (n_word) memcpy(argv + 2, word, n_word * sizeof *argv);
    *n = n_word + 2;
    if (!says_threads(word, n_word) && n_threads) {
        argv[(*n)++] = dw_strdup("-t", err);
        argv[(*n)++] = dw_format(err, "%d", n_threads);
    }
    free(word);
    for (size_t k = 0; k < *n; k++)
        if (!argv[k]) {
            jobs_free_words(argv, *n);
            return NULL;
        }
    return argv;
}

static char *line_of(char **argv, size_t n, dw_err *err) {
    char *line = dw_strdup("", err);
    for (size_t k = 0; k < n && line; k++) {
        char *word = opt_quoted(argv[k]), *longer = dw_format(err, "%s%s%s", line, k ? " " : "", word);
        free(word);
        free(line);
        line = longer;
    }
    return line;
}

static int start(sweep *s, size_t i, int n_ready, dw_err *err) {
    task *t = &s->task[i];
    const grid_step *step = job_of(s, i)->step;
    size_t n = 0;
    char **argv = command_of(s, i, threads_of(s, i, n_ready), &n, err), *line = argv ? line_of(argv, n, err) : NULL;
    char *heading = line ? dw_format(err, "$ %s", line) : NULL,
         *log = dw_format(err, "%s/log/%s.log", s->dir, job_of(s, i)->file);
    int rc = heading && log ? 0 : -1;
    if (!rc) {
        t->began = dw_now();
        t->pid = children_start(s->program[step - s->grid.step], argv + 1, log, heading, err);
        if (t->pid < 0) rc = -1;
    }
    if (!rc) {
        t->state = RUNNING;
        s->n_running++;
        s->alone_runs = step->alone;
    }
    free(log);
    free(heading);
    free(line);
    jobs_free_words(argv, n);
    return rc;
}

/* A line for --dry-run of later runs; a torn one is passed over there. */
static void note_time(const sweep *s, size_t i, const child_end *end) {
    char *path = in_folder(s->dir, "times.tsv", NULL);
    const int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666) : -1;
    struct stat st;
    if (fd >= 0 && !fstat(fd, &st) && !st.st_size)
        dprintf(fd, "step\tseconds\tcpu_seconds\tpeak_bytes\tfile_bytes\tfile\n");
    if (fd >= 0 && !stat(s->task[i].path, &st))
        dprintf(fd, "%s\t%.3f\t%.3f\t%.0f\t%lld\t%s\n", job_of(s, i)->step->name, dw_now() - s->task[i].began,
                end->cpu_seconds, end->peak_bytes, (long long)st.st_size, job_of(s, i)->file);
    if (fd >= 0) close(fd);
    free(path);
}

/* Every mention of the folder goes, so that a reason does not hang on where it is. */
static void drop_folder(char *text, const char *dir) {
    const size_t n = strlen(dir);
    for (char *at = text; (at = strstr(at, dir));) {
        const bool begins = at == text || strchr(" '\"(:=", at[-1]);
        if (begins && at[n] == '/')
            memmove(at, at + n + 1, strlen(at + n + 1) + 1);
        else
            at++;
    }
}

/* What a log says last; free(). */
static char *last_line(const sweep *s, size_t i) {
    char *path = dw_format(NULL, "%s/log/%s.log", s->dir, job_of(s, i)->file);
    char *text = path ? dw_read_file(path, 1 << 30, NULL, NULL) : NULL, *line = text, *last = NULL;
    while (line) {
        char *one = strsep(&line, "\n");
        if (*one && *one != '$') last = one;
    }
    char *found = last ? dw_format(NULL, "%.400s", last) : NULL;
    if (found) drop_folder(found, s->dir);
    free(text);
    free(path);
    return found;
}

static char *reason_of(const sweep *s, size_t i, int status) {
    const char *name = job_of(s, i)->step->tool;
    if (WIFSIGNALED(status))
        return dw_format(NULL, "deadwood-%s: ended by signal %d (%s)", name, WTERMSIG(status),
                         strsignal(WTERMSIG(status)));
    char *line = last_line(s, i);
    if (line && status) return line;
    free(line);
    return status ? dw_format(NULL, "deadwood-%s: exit status %d", name, WEXITSTATUS(status))
                  : dw_format(NULL, "deadwood-%s: wrote no output", name);
}

/* A job has an end, good or bad: those that it read are read once less. */
static void settle(sweep *s, size_t i) {
    for (size_t k = 0; k < job_of(s, i)->step->n_read; k++) s->task[job_of(s, i)->input[k]].n_waiting--;
    progress_step(s->bar, 1);
}

/* The job cannot be done because `cause`, itself or one that it needs, failed. */
static int fail(sweep *s, size_t i, size_t cause, dw_err *err) {
    task *t = &s->task[i];
    t->state = FAILED;
    t->cause = cause;
    settle(s, i);
    if (t->source == NONE) return s->n_failed_files++, 0;
    s->n_failed++;
    const char *reason = s->task[cause].reason;
    char *variant = jobs_variant(&s->jobs, i, err);
    const char *model = job_of(s, i)->step->n_read ? job_of(s, (size_t)job_of(s, i)->input[0])->file : "-";
    const int rc = variant ? judge_fail(s->judge, t->source, model, variant, reason ? reason : "out of memory", err)
                           : -1;
    free(variant);
    return rc;
}

static int finish(sweep *s, size_t i, const child_end *end, dw_err *err) {
    task *t = &s->task[i];
    dw_err why = {0};
    s->n_running--;
    s->alone_runs = false;
    t->state = ABSENT;
    if (children_signal() && end->status) return 0; // it was told to end
    bool done = !end->status && dw_file_exists(t->path);
    if (done && t->source != NONE && take_rows(s, i, &why)) {
        done = false;
        t->reason = dw_strdup(why.text, NULL);
        if (t->reason) drop_folder(t->reason, s->dir);
    }
    if (done) {
        t->state = DONE;
        note_time(s, i, end);
        settle(s, i);
        return 0;
    }
    unlink(t->path); // what a program that failed has written is not trusted
    if (!t->reason) t->reason = reason_of(s, i, end->status);
    warn("'%s' failed: %s (log: %s/log/%s.log)", job_of(s, i)->file, t->reason ? t->reason : "out of memory", s->dir,
         job_of(s, i)->file);
    return fail(s, i, i, err);
}

/* ---- all jobs --------------------------------------------------------------------------------------------------------------------- */

/* Whether all that a job reads is there; *failed: what it needs and will not come, else NONE. */
static bool is_ready(const sweep *s, size_t i, size_t *failed) {
    bool ready = true;
    *failed = NONE;
    for (size_t k = 0; k < job_of(s, i)->step->n_read; k++) {
        const task *input = &s->task[job_of(s, i)->input[k]];
        if (input->state == FAILED) *failed = input->cause;
        ready = ready && input->state == DONE;
    }
    return ready;
}

typedef struct ready_jobs {
    size_t plain, alone;  // the first of each kind, NONE
    int n_plain, n_alone; // counted as far as it matters
} ready_jobs;

static int find_ready(sweep *s, ready_jobs *r, dw_err *err) {
    *r = (ready_jobs){NONE, NONE, 0, 0};
    while (s->first < s->n_order && s->task[s->order[s->first]].state >= DONE) s->first++;
    for (size_t k = s->first; k < s->n_order && (r->n_plain < s->n_at_once || r->n_alone < ALONE_BATCH); k++) {
        const size_t i = s->order[k];
        size_t failed;
        if (s->task[i].state != ABSENT) continue;
        const bool ready = is_ready(s, i, &failed), alone = job_of(s, i)->step->alone;
        if (failed != NONE && fail(s, i, failed, err)) return -1;
        if (!ready || failed != NONE) continue;
        if (alone && !r->n_alone++) r->alone = i;
        if (!alone && !r->n_plain++) r->plain = i;
    }
    return 0;
}

/* The job to start now, NONE: wait.  Those that run alone are gathered, so that the others are not held up for each. */
static size_t choose(sweep *s, const ready_jobs *r) {
    if (s->alone_runs || s->n_running == s->n_at_once) return NONE;
    if (!r->n_alone)
        s->alone_turn = false;
    else if (r->n_alone >= ALONE_BATCH || (!r->n_plain && !s->n_running))
        s->alone_turn = true;
    if (!s->alone_turn) return r->plain;
    return s->n_running ? NONE : r->alone;
}

static int start_ready(sweep *s, dw_err *err) {
    for (;;) {
        ready_jobs r;
        if (find_ready(s, &r, err)) return -1;
        const size_t i = choose(s, &r);
        if (i == NONE) return 0;
        if (start(s, i, r.n_plain, err)) return -1;
    }
}

static int wait_for_one(sweep *s, dw_err *err) {
    child_end end;
    if (children_wait(&end)) return dw_fail(err, "the jobs cannot be waited for: %s", strerror(errno));
    for (size_t k = s->first; k < s->n_order; k++)
        if (s->task[s->order[k]].state == RUNNING && s->task[s->order[k]].pid == end.pid)
            return finish(s, s->order[k], &end, err);
    return 0;
}

static int run_jobs(sweep *s, dw_err *err) {
    static const double table_every = 60; // seconds
    judge_counts counts;
    int rc = 0;
    s->bar = progress_begin("sweep", "jobs", (double)s->n_order);
    remove_models(s);
    while (!rc && !children_signal() && !(rc = start_ready(s, err)) && s->n_running) {
        rc = wait_for_one(s, err);
        remove_models(s);
        if (!rc && dw_now() - s->written > table_every) rc = write_table(s, &counts, err);
    }
    if (rc) raise(SIGTERM); // goes to the children
    while (s->n_running && !wait_for_one(s, err)) {}
    progress_end(s->bar);
    return rc;
}

/* ---- what would be done -------------------------------------------------------------------------------------------------------------- */

typedef struct step_times { // of jobs that ran
    size_t n;
    double seconds, peak_bytes, file_bytes;
} step_times;

static int find_step(const sweep *s, const char *name, size_t len) {
    for (size_t k = 0; k < s->grid.n_step; k++)
        if (strlen(s->grid.step[k].name) == len && !strncmp(s->grid.step[k].name, name, len)) return (int)k;
    return -1;
}

static void read_times(const sweep *s, step_times *times) {
    char *path = in_folder(s->dir, "times.tsv", NULL),
         *text = path && dw_file_exists(path) ? dw_read_file(path, 1 << 30, NULL, NULL) : NULL, *rest = text;
    while (rest) {
        const char *line = strsep(&rest, "\n");
        const size_t len = strcspn(line, "\t");
        const int k = find_step(s, line, len);
        double seconds, cpu, peak, bytes;
        if (k < 0 || sscanf(line + len, "\t%lf\t%lf\t%lf\t%lf\t%*s", &seconds, &cpu, &peak, &bytes) != 4) continue;
        times[k].n++;
        times[k].seconds += seconds;
        if (peak > times[k].peak_bytes) times[k].peak_bytes = peak;
        if (bytes > times[k].file_bytes) times[k].file_bytes = bytes;
    }
    free(text);
    free(path);
}

/* One line a step; returns the seconds of what is still to run, and whether all of them are known. */
static double print_step(const sweep *s, size_t k, const step_times *t, bool *known) {
    size_t n = 0, n_there = 0, n_run = 0;
    double bytes = 0;
    struct stat st;
    for (size_t i = s->jobs.first[k]; i < s->jobs.first[k + 1]; i++, n++) {
        n_there += s->task[i].state == DONE;
        if (s->task[i].state == DONE && !stat(s->task[i].path, &st)) bytes += (double)st.st_size;
    }
    for (size_t i = 0; i < s->n_order; i++) n_run += job_of(s, s->order[i])->step == &s->grid.step[k];
    printf("# %-12s %6zu %6zu %6zu", s->grid.step[k].name, n, n_there, n_run);
    if (n_there)
        printf(" %10.1f", bytes * 1e-6);
    else
        printf(" %10s", "-");
    if (t->n)
        printf(" %10.2f %10.1f %10.1f\n", t->seconds / (double)t->n, t->file_bytes * 1e-6, t->peak_bytes * 1e-6);
    else
        printf(" %10s %10s %10s\n", "-", "-", "-");
    *known = *known && (t->n || !n_run);
    return t->n ? (double)n_run * t->seconds / (double)t->n / (s->grid.step[k].alone ? 1 : s->n_at_once) : 0;
}

static int print_plan(sweep *s, dw_err *err) {
    step_times *times = dw_alloc(s->grid.n_step, sizeof *times, "times", err);
    if (!times) return -1;
    for (size_t k = 0; k < s->n_order; k++) {
        size_t n;
        char **argv = command_of(s, s->order[k], 0, &n, err), *line = argv ? line_of(argv, n, err) : NULL;
        if (line) show_text(stdout, line, strlen(line)), putchar('\n');
        jobs_free_words(argv, argv ? n : 0);
        free(line);
        if (!line) return -1;
    }
    read_times(s, times);
    double seconds = 0;
    bool known = true;
    printf("# %-12s %6s %6s %6s %10s %10s %10s %10s\n", "step", "jobs", "there", "to run", "MB there", "s a job",
           "MB a file", "MB memory");
    for (size_t k = 0; k < s->grid.n_step; k++) seconds += print_step(s, k, &times[k], &known);
    printf("# %zu jobs to run, %d at once; ", s->n_order, s->n_at_once);
    if (known)
        printf("about %.1f minutes, by what jobs took here\n", seconds / 60);
    else
        printf("%s\n", seconds > 0 ? "more minutes than can be said before each step has run once"
                                   : "minutes, disk and memory are known when each step has run once");
    free(times);
    return 0;
}

/* ---- main -------------------------------------------------------------------------------------------------------------------------- */

static int open_sweep(sweep *s, dw_err *err) {
    const char *path = o.grid.item[0], *slash = strrchr(path, '/');
    char sha256[65];
    s->n_threads = tool.threads ? tool.threads : dw_cpu_count();
    s->n_at_once = o.jobs ? o.jobs : s->n_threads;
    if (grid_read(&s->grid, path, !strcmp(o.controls, "auto"), err) || jobs_expand(&s->jobs, &s->grid, path, err) || find_programs(s, path, err) ||
        dw_sha256_file(path, sha256, err))
        return -1;
    s->comment = dw_format(err, "# sweep of the grid '%s', sha256 %s", slash ? slash + 1 : path, sha256);
    if (!s->comment || (!o.dry_run && open_folder(s, err)) || jobs_identify(&s->jobs, err)) return -1;
    return find_tasks(s, err);
}

static void close_sweep(sweep *s) {
    for (size_t i = 0; s->task && i < s->jobs.n; i++) {
        free(s->task[i].path);
        free(s->task[i].reader);
        free(s->task[i].reason);
    }
    for (size_t i = 0; s->program && i < s->grid.n_step; i++) free(s->program[i]);
    judge_free(s->judge);
    jobs_release(&s->jobs);
    grid_release(&s->grid);
    free(s->program);
    free(s->comment);
    free(s->task);
    free(s->order);
}

static void end_by(int sig) {
    signal(sig, SIG_DFL);
    raise(sig);
}

int main(int argc, char **argv) {
    opt_parse(&program, argc, argv);
    dw_err err = {0};
    size_t n = strlen(o.dir);
    while (n > 1 && o.dir[n - 1] == '/') n--;
    char *dir = dw_format(&err, "%.*s", (int)n, o.dir);
    sweep s = {.dir = dir, .keep = keep_rules, .written = dw_now()};
    while (strcmp(s.keep->name, o.keep)) s.keep++;
    if (!dir || open_sweep(&s, &err) || (o.dry_run && print_plan(&s, &err))) die_err(&err);
    judge_counts counts = {0};
    if (!o.dry_run) {
        children_on_signals();
        const int rc = run_jobs(&s, &err), sig = rc ? 0 : children_signal();
        if (write_table(&s, &counts, &err) || rc) die_err(&err);
        if (sig) {
            say("interrupted; what is finished stays, and the same command goes on from there");
            end_by(sig);
        }
        say("%s/rows.tsv: %zu to keep, %zu dominated, %zu controls, %zu collapsed, %zu failed%s", dir, counts.keep,
            counts.discard, counts.control, counts.collapsed, counts.failed,
            counts.other ? "; some have nothing to compare with" : "");
    }
    const size_t n_failed = s.n_failed, n_failed_files = s.n_failed_files;
    close_sweep(&s);
    free(dir);
    if (n_failed_files && !n_failed)
        die("%zu file%s could not be made; the log says why, and the same command tries again", n_failed_files, plural((double)n_failed_files));
    if (n_failed) die("%zu row%s failed; rows.tsv says why, and the same command tries again", n_failed, plural((double)n_failed));
    return 0;
}
