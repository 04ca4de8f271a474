/* run_jobs.c - starts jobs while memory and processors last, takes their results, and waits for those of other
 * sweeps. */
#include "experiments/sweep/sweep.h"
#include "kit/memory.h"
#include "kit/talk.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ALONE_BATCH = 8 }; // so many jobs that run alone wait before the others are held up

static const double look_every = 0.2; // seconds between looks at what other sweeps do
static const double spare = 1.1;      // of the memory that a job had when it ran before

/* ---- commands --------------------------------------------------------------------------------------------------- */

static const char *path_of(void *ctx, size_t i, int output) { return ((const sweep *)ctx)->task[i].path[output]; }

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

/* The name that a user types is argv[0] and argv[1]: "deadwood" "cut" .. */
char **run_command(const sweep *s, size_t i, int n_threads, size_t *n, dw_err *err) {
    size_t n_word;
    char **word = jobs_words(&s->jobs, i, path_of, (void *)(uintptr_t)s, &n_word, err);
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

char *run_line(char **argv, size_t n, dw_err *err) {
    char *line = dw_strdup("", err);
    for (size_t k = 0; k < n && line; k++) {
        char *word = opt_quoted(argv[k]), *longer = dw_format(err, "%s%s%s", line, k ? " " : "", word);
        free(word);
        free(line);
        line = longer;
    }
    return line;
}

static char *log_of(const sweep *s, size_t i, dw_err *err) {
    return dw_format(err, "%s/log/%s.log", s->dir, job_of(s, i)->file[0]);
}

/* Starts a job that this process holds. */
static int start(sweep *s, size_t i, int n_ready, dw_err *err) {
    task *t = &s->task[i];
    const grid_step *step = job_of(s, i)->step;
    size_t n = 0;
    t->n_threads = threads_of(s, i, n_ready);
    char **argv = run_command(s, i, t->n_threads, &n, err), *line = argv ? run_line(argv, n, err) : NULL;
    char *heading = line ? dw_format(err, "$ %s", line) : NULL, *log = log_of(s, i, err);
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

/* ---- why a job failed ------------------------------------------------------------------------------------------- */

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
    char *path = log_of(s, i, NULL);
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

/* The reason with the names of jobs' files as their steps, so that equal failures of different variants are equal:
 * 'plan-energy-0.2-8c5e0f12ab.tsv' is 'plan..'; free(). */
static char *general_reason(const char *reason) {
    char *text = dw_strdup(reason, NULL);
    for (char *at = text; at && (at = strchr(at, '-')); at++) {
        if (strspn(at + 1, "0123456789abcdef") < 10 || isalnum((unsigned char)at[11])) continue;
        char *from = at;
        while (from > text && !strchr(" '\"/", from[-1])) from--;
        char *dash = strchr(from, '-'), *end = at + 11;
        end += strcspn(end, " '\",:;");
        memmove(dash + 2, end, strlen(end) + 1);
        dash[0] = dash[1] = '.';
        at = dash;
    }
    return text;
}

/* Says it, unless the same was said before. */
static void tell_failure(sweep *s, size_t i) {
    const char *reason = s->task[i].reason ? s->task[i].reason : "out of memory";
    const size_t step = (size_t)(job_of(s, i)->step - s->grid.step);
    char *general = general_reason(reason);
    size_t k = 0;
    while (general && k < s->n_failure && (s->failure[k].step != step || strcmp(s->failure[k].reason, general))) k++;
    if (general && k < s->n_failure) {
        s->failure[k].n++;
        free(general);
        return;
    }
    warn("'%s' failed: %s (log: %s/log/%s.log)", job_of(s, i)->file[0], reason, s->dir, job_of(s, i)->file[0]);
    if (general && !dw_grow(&s->failure, &s->cap_failure, s->n_failure + 1, sizeof *s->failure, "failures", NULL))
        s->failure[s->n_failure++] = (failure){general, 1, step};
    else
        free(general);
}

static void tell_repeated_failures(const sweep *s) {
    for (size_t k = 0; k < s->n_failure; k++)
        if (s->failure[k].n > 1)
            warn("%zu jobs of step '%s' failed alike: %s", s->failure[k].n, s->grid.step[s->failure[k].step].name,
                 s->failure[k].reason);
}

/* ---- what jobs warn of ------------------------------------------------------------------------------------------- */

/* Remembers a warning of a job, unless another job of the step gave it before; then it counts. */
static void note_warning(sweep *s, size_t i, const char *said) {
    const size_t step = (size_t)(job_of(s, i)->step - s->grid.step);
    char *text = general_reason(said);
    size_t k = 0;
    while (text && k < s->n_warning && (s->warning[k].step != step || strcmp(s->warning[k].text, text))) k++;
    if (text && k < s->n_warning) {
        s->warning[k].n += s->warning[k].last != i;
        s->warning[k].last = i;
        free(text);
    } else if (text && !dw_grow(&s->warning, &s->cap_warning, s->n_warning + 1, sizeof *s->warning, "warnings", NULL)) {
        s->warning[s->n_warning++] = (warning){text, 1, step, i};
    } else {
        free(text);
    }
}

/* A job that succeeds is not told of, but for its warnings: "deadwood-rank: warning: .." in its log. */
static void note_warnings(sweep *s, size_t i) {
    static const char mark[] = ": warning: ";
    char *path = log_of(s, i, NULL);
    char *text = path ? dw_read_file(path, 1 << 30, NULL, NULL) : NULL, *rest = text;
    for (char *line; rest && (line = strsep(&rest, "\n"));) {
        char *said = strncmp(line, "deadwood-", 9) ? NULL : strstr(line, mark);
        if (!said || strcspn(line, " ") != (size_t)(said - line) + 1) continue;
        said += strlen(mark);
        drop_folder(said, s->dir);
        note_warning(s, i, said);
    }
    free(text);
    free(path);
}

static void tell_warnings(const sweep *s) {
    for (size_t k = 0; k < s->n_warning; k++)
        warn("%zu job%s of step '%s': %s", s->warning[k].n, plural((double)s->warning[k].n),
             s->grid.step[s->warning[k].step].name, s->warning[k].text);
}

/* The job cannot be done because `cause`, itself or one that it needs, failed. */
static int fail(sweep *s, size_t i, size_t cause, dw_err *err) {
    task *t = &s->task[i];
    t->state = FAILED;
    t->cause = cause;
    tasks_settle(s, i);
    if (t->source == SWEEP_NONE) return s->n_failed_files++, 0;
    s->n_failed++;
    s->rows_came = true;
    const char *reason = s->task[cause].reason;
    char *variant = jobs_variant(&s->jobs, i, err);
    const char *model = job_of(s, i)->step->n_read ? job_of(s, (size_t)job_of(s, i)->input[0])->file[0] : "-";
    const int rc = variant ? judge_fail(s->judge, t->source, model, variant, reason ? reason : "out of memory", err)
                           : -1;
    free(variant);
    return rc;
}

/* ---- results ---------------------------------------------------------------------------------------------------- */

static void note_cost(sweep *s, size_t i, const child_end *end) {
    task *t = &s->task[i];
    double *peak = &s->peak[job_of(s, i)->step - s->grid.step];
    job_cost cost = {.seconds = dw_now() - t->began,
                     .cpu_seconds = end->cpu_seconds,
                     .peak_bytes = end->peak_bytes,
                     .file_bytes = tasks_bytes(t),
                     .threads = t->n_threads};
    if (end->peak_bytes > *peak) *peak = end->peak_bytes;
    double in_bytes = 0;
    const job *j = job_of(s, i);
    for (size_t k = 0; k < j->n_outside; k++)
        in_bytes += s->jobs.outside[j->outside[k]].is_program ? 0 : s->jobs.outside[j->outside[k]].bytes;
    for (size_t k = 0; k < j->step->n_read; k++) in_bytes += s->task[j->input[k]].cost.file_bytes;
    costs_note(s->costs, j, in_bytes, &cost);
    t->cost = cost;
    t->cost_known = true;
}

/* The outputs of a job that is done, here or elsewhere. */
static int take(sweep *s, size_t i, dw_err *why) {
    task *t = &s->task[i];
    if (t->source != SWEEP_NONE && tasks_take_rows(s, i, why)) return -1;
    t->state = DONE;
    tasks_settle(s, i);
    return 0;
}

/* Another process does the job now: its outputs are taken when its claim ends. */
static int leave_to_heir(sweep *s, size_t i) {
    warn("'%s' was taken over by another sweep while this one did not run", job_of(s, i)->file[0]);
    claims_release(s->claims, job_of(s, i)->file[0]); // forgets it
    s->task[i].state = ELSEWHERE;
    s->n_elsewhere++;
    return 0;
}

static int finish(sweep *s, size_t i, const child_end *end, dw_err *err) {
    task *t = &s->task[i];
    const char *claim = job_of(s, i)->file[0];
    dw_err why = {0};
    s->n_running--;
    s->alone_runs = false;
    t->state = ABSENT;
    if (!claims_holds(s->claims, claim)) return leave_to_heir(s, i);
    if (children_signal() && end->status) { // it was told to end, maybe between two outputs or in the middle of one
        tasks_remove_outputs(t);
        claims_release(s->claims, claim);
        return 0;
    }
    if (!end->status && tasks_exist(t) && !jobs_check_inputs(&s->jobs, i, &why) && !take(s, i, &why)) {
        note_cost(s, i, end);
        note_warnings(s, i);
        claims_release(s->claims, claim);
        return 0;
    }
    tasks_remove_outputs(t); // what a program that failed has written is not trusted
    t->reason = *why.text ? dw_strdup(why.text, NULL) : reason_of(s, i, end->status);
    if (t->reason) drop_folder(t->reason, s->dir);
    claims_fail(s->claims, claim, t->reason ? t->reason : "out of memory");
    tell_failure(s, i);
    return fail(s, i, i, err);
}

/* ---- other sweeps ----------------------------------------------------------------------------------------------- */

/* What has become of a job that another process works on. */
static int look_at(sweep *s, size_t i, dw_err *err) {
    task *t = &s->task[i];
    dw_err why = {0};
    char *reason;
    const claim_state claim = claims_look(s->claims, job_of(s, i)->file[0], &reason);
    if (claim == CLAIM_OTHER) return 0;
    s->n_elsewhere--;
    t->state = ABSENT;
    s->first = 0;
    if (claim == CLAIM_FAILED) {
        t->reason = reason;
        return fail(s, i, i, err);
    }
    if (claim == CLAIM_FREE && tasks_exist(t) && take(s, i, &why)) {
        t->reason = dw_strdup(why.text, NULL);
        return fail(s, i, i, err);
    }
    return 0;
}

static int look_elsewhere(sweep *s, dw_err *err) {
    for (size_t k = 0; k < s->n_order && s->n_elsewhere; k++)
        if (s->task[s->order[k]].state == ELSEWHERE && look_at(s, s->order[k], err)) return -1;
    return 0;
}

/* Whether a job must still run, after a look at what other processes have done since: they may have finished it, or all
 * that reads it and then removed it. */
static int still_needed(sweep *s, size_t i, bool *needed, dw_err *err) {
    task *t = &s->task[i];
    if (t->state == ELSEWHERE && look_at(s, i, err)) return -1;
    if (t->state == ABSENT && tasks_exist(t)) {
        t->state = ELSEWHERE;
        s->n_elsewhere++;
        if (look_at(s, i, err)) return -1;
    }
    *needed = !is_settled(t);
    if (!*needed || t->state != ABSENT || !t->n_reader) return 0;
    *needed = false;
    for (size_t k = 0; k < t->n_reader; k++) {
        bool by_reader = false;
        if (s->task[t->reader[k]].needed && still_needed(s, t->reader[k], &by_reader, err)) return -1;
        *needed |= by_reader;
    }
    if (*needed) return 0;
    t->state = REMOVED;
    tasks_settle(s, i);
    return 0;
}

/* Whether all inputs are there; what another process has removed is made again. */
static bool has_inputs(sweep *s, size_t i) {
    bool complete = true;
    for (size_t k = 0; k < job_of(s, i)->step->n_read; k++) {
        const size_t input = (size_t)job_of(s, i)->input[k];
        if (tasks_exist(&s->task[input])) continue;
        tasks_want(s, input);
        complete = false;
    }
    return complete;
}

/* Makes a job this process's own.  *mine: it is to be started. */
static int take_claim(sweep *s, size_t i, bool *mine, dw_err *err) {
    task *t = &s->task[i];
    const char *claim = job_of(s, i)->file[0];
    claim_taken taken;
    *mine = false;
    if (claims_take(s->claims, claim, &taken, err)) return -1;
    if (taken == CLAIM_NOT_MINE) {
        t->state = ELSEWHERE;
        s->n_elsewhere++;
        return look_at(s, i, err);
    }
    *mine = true;
    const int rc = taken == CLAIM_NEW ? still_needed(s, i, mine, err) : folder_clean_job(s, i, err);
    if (rc) return -1;
    *mine = *mine && t->state == ABSENT && has_inputs(s, i);
    if (*mine) return claims_begin(s->claims, claim, err);
    claims_release(s->claims, claim);
    return 0;
}

/* ---- which job is next ------------------------------------------------------------------------------------------ */

/* Whether all that a job reads is there; *failed: what it needs and will not come, else SWEEP_NONE. */
static bool is_ready(const sweep *s, size_t i, size_t *failed) {
    bool ready = true;
    *failed = SWEEP_NONE;
    for (size_t k = 0; k < job_of(s, i)->step->n_read; k++) {
        const task *input = &s->task[job_of(s, i)->input[k]];
        if (input->state == FAILED) *failed = input->cause;
        ready = ready && input->state == DONE;
    }
    return ready;
}

/* The memory that a job will have: by what its step had here, else by what was remembered; NaN: unknown. */
static double memory_for(const sweep *s, size_t i) {
    const double here = s->peak[job_of(s, i)->step - s->grid.step];
    return here > 0 ? here : s->task[i].cost_known ? s->task[i].cost.peak_bytes : NAN;
}

typedef struct room { // for more jobs
    double left;      // bytes; infinity: not bounded
    bool *first;      // (n_step) a job of this step runs whose memory is not known yet
} room;

static int find_room(const sweep *s, room *r, dw_err *err) {
    r->first = dw_alloc(s->grid.n_step, sizeof *r->first, "memory", err);
    r->left = s->memory > 0 ? s->memory : kit_free_memory();
    for (size_t k = s->first; k < s->n_order && r->first; k++) {
        const size_t i = s->order[k];
        if (s->task[i].state != RUNNING) continue;
        const double wanted = memory_for(s, i), now = s->memory > 0 ? 0 : memory_of(s->task[i].pid);
        if (isnan(wanted))
            r->first[job_of(s, i)->step - s->grid.step] = true;
        else if (wanted * spare > now)
            r->left -= wanted * spare - now;
    }
    if (isnan(r->left)) r->left = INFINITY;
    return r->first ? 0 : -1;
}

/* A job runs if nothing else does, or if it is the first of its step, or if its memory is known and left. */
static bool fits(const sweep *s, const room *r, size_t i) {
    const double wanted = memory_for(s, i);
    if (!s->n_running) return true;
    return isnan(wanted) ? !r->first[job_of(s, i)->step - s->grid.step] && r->left > 0 : wanted * spare <= r->left;
}

typedef struct ready_jobs {
    size_t plain, alone;  // the first of each kind, SWEEP_NONE
    int n_plain, n_alone; // counted as far as it matters
} ready_jobs;

static int find_ready_in(sweep *s, const room *space, ready_jobs *r, dw_err *err) {
    *r = (ready_jobs){SWEEP_NONE, SWEEP_NONE, 0, 0};
    while (s->first < s->n_order) {
        const task *t = &s->task[s->order[s->first]];
        if (!is_settled(t) && (t->needed || t->state != ABSENT)) break;
        s->first++;
    }
    for (size_t k = s->first; k < s->n_order && (r->n_plain < s->n_at_once || r->n_alone < ALONE_BATCH); k++) {
        const size_t i = s->order[k];
        size_t failed;
        if (s->task[i].state != ABSENT || !s->task[i].needed) continue;
        const bool ready = is_ready(s, i, &failed), alone = job_of(s, i)->step->alone;
        if (failed != SWEEP_NONE && fail(s, i, failed, err)) return -1;
        if (!ready || failed != SWEEP_NONE) continue;
        if (alone && !r->n_alone++) r->alone = i;
        if (alone) continue;
        r->n_plain++;
        if (r->plain == SWEEP_NONE && fits(s, space, i)) r->plain = i;
    }
    return 0;
}

static int find_ready(sweep *s, ready_jobs *r, dw_err *err) {
    room space;
    const int rc = find_room(s, &space, err) ? -1 : find_ready_in(s, &space, r, err);
    free(space.first);
    return rc;
}

/* The job to start now, SWEEP_NONE: wait.  Those that run alone are gathered, so that others do not wait for each. */
static size_t choose(sweep *s, const ready_jobs *r) {
    if (s->alone_runs || s->n_running == s->n_at_once) return SWEEP_NONE;
    if (!r->n_alone)
        s->alone_turn = false;
    else if (r->n_alone >= ALONE_BATCH || (!r->n_plain && !s->n_running))
        s->alone_turn = true;
    if (!s->alone_turn) return r->plain;
    return s->n_running ? SWEEP_NONE : r->alone;
}

/* A job that runs alone runs beside no job of another sweep of this folder on this machine. */
static bool may_run(const sweep *s, bool alone) {
    return s->alone_lock < 0 || !flock(s->alone_lock, (alone ? LOCK_EX : LOCK_SH) | LOCK_NB) || errno != EWOULDBLOCK;
}

static int start_ready(sweep *s, dw_err *err) {
    for (;;) {
        ready_jobs r;
        bool mine;
        if (find_ready(s, &r, err)) return -1;
        const size_t i = choose(s, &r);
        if (i == SWEEP_NONE || !may_run(s, job_of(s, i)->step->alone)) return 0;
        if (take_claim(s, i, &mine, err) || (mine && start(s, i, r.n_plain, err))) return -1;
    }
}

/* ---- all jobs --------------------------------------------------------------------------------------------------- */

/* Waits for a job, at most so many seconds. */
static int wait_for_one(sweep *s, double seconds, dw_err *err) {
    child_end end;
    const int rc = children_wait(&end, seconds);
    if (rc < 0) return dw_fail(err, "the jobs cannot be waited for: %s", strerror(errno));
    for (size_t k = 0; k < s->n_order && !rc; k++)
        if (s->task[s->order[k]].state == RUNNING && s->task[s->order[k]].pid == end.pid)
            return finish(s, s->order[k], &end, err);
    return 0;
}

static bool is_all_settled(const sweep *s) {
    for (size_t k = s->first; k < s->n_order; k++)
        if (s->task[s->order[k]].needed && !is_settled(&s->task[s->order[k]])) return false;
    return true;
}

/* Rows come into the table within a second, or, where the table is long, often enough that writing it takes little. */
static int write_rows(sweep *s, dw_err *err) {
    judge_counts counts;
    const double pause = s->write_seconds > 0.05 ? 20 * s->write_seconds : 1;
    return s->rows_came && dw_now() - s->written > pause ? tasks_table(s, &counts, err) : 0;
}

static int run_round(sweep *s, dw_err *err) {
    if (start_ready(s, err)) return -1;
    if (!s->n_running && s->alone_lock >= 0) flock(s->alone_lock, LOCK_UN);
    const double seconds = s->n_elsewhere || s->rows_came ? look_every : CLAIM_BEAT;
    if (s->n_running) {
        if (wait_for_one(s, seconds, err)) return -1;
    } else if (!is_all_settled(s)) {
        children_nap(look_every);
    }
    claims_beat(s->claims);
    tasks_remove_models(s);
    if (look_elsewhere(s, err) || write_rows(s, err)) return -1;
    return 0;
}

int run_jobs(sweep *s, dw_err *err) {
    size_t n = 0;
    for (size_t i = 0; i < s->jobs.n; i++) n += s->task[i].needed && !is_settled(&s->task[i]);
    s->bar = progress_begin("sweep", "jobs", (double)n);
    tasks_remove_models(s);
    int rc = 0;
    while (!rc && !children_signal() && !is_all_settled(s)) rc = run_round(s, err);
    if (rc) raise(SIGTERM); // goes to the children
    while (s->n_running && !wait_for_one(s, CLAIM_BEAT, err)) claims_beat(s->claims);
    progress_end(s->bar);
    tell_repeated_failures(s);
    tell_warnings(s);
    return rc;
}
