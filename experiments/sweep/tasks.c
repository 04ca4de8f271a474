/* tasks.c - what there is to do: which jobs are done, which are needed, in which order, and which models may go. */
#include "experiments/sweep/sweep.h"
#include "kit/talk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void tasks_remove_outputs(const task *t) {
    for (int k = 0; k < GRID_MAX_OUTPUTS && t->path[k]; k++) unlink(t->path[k]);
}

bool tasks_exist(const task *t) {
    for (int k = 0; k < GRID_MAX_OUTPUTS && t->path[k]; k++)
        if (!dw_file_exists(t->path[k])) return false;
    return true;
}

/* ---- needs ------------------------------------------------------------------------------------------------------ */

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

/* The inputs wait for the job, until it is settled. */
static void need_inputs(sweep *s, size_t i) {
    s->task[i].waits = true;
    for (size_t k = 0; k < job_of(s, i)->step->n_read; k++) {
        task *input = &s->task[job_of(s, i)->input[k]];
        input->needed = true;
        input->n_waiting++;
    }
}

/* What nobody reads is wanted, and all that is read by what is wanted and not done. */
static void mark_needed(sweep *s) {
    for (size_t i = s->jobs.n; i-- > 0;) {
        task *t = &s->task[i];
        t->needed |= !t->n_reader;
        t->scored = t->source != SWEEP_NONE;
        for (size_t k = 0; k < t->n_reader; k++) t->scored |= s->task[t->reader[k]].scored;
        if (t->needed && t->state != DONE) need_inputs(s, i);
    }
}

void tasks_want(sweep *s, size_t i) {
    task *t = &s->task[i];
    if (t->waits || t->state == FAILED || (t->state == DONE && tasks_exist(t))) return;
    if (t->state != ELSEWHERE) t->state = ABSENT;
    t->needed = true;
    s->first = 0;
    need_inputs(s, i);
    for (size_t k = 0; k < job_of(s, i)->step->n_read; k++) tasks_want(s, (size_t)job_of(s, i)->input[k]);
}

/* Another sweep may settle a job that this one does not need. */
void tasks_settle(sweep *s, size_t i) {
    if (!s->task[i].waits) return;
    s->task[i].waits = false;
    for (size_t k = 0; k < job_of(s, i)->step->n_read; k++) s->task[job_of(s, i)->input[k]].n_waiting--;
    progress_step(s->bar, 1);
}

/* ---- order ------------------------------------------------------------------------------------------------------ */

static void put_in_order(sweep *s, size_t i, bool *placed) {
    if (placed[i]) return;
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

/* ---- what is there ---------------------------------------------------------------------------------------------- */

/* Reads the rows of a job that is done. */
int tasks_take_rows(sweep *s, size_t i, dw_err *err) {
    const grid_step *step = job_of(s, i)->step;
    size_t k = 0;
    while (!step->output[k].is_rows) k++;
    char *variant = jobs_variant(&s->jobs, i, err);
    const int rc = variant ? judge_add(s->judge, s->task[i].source, s->task[i].path[k], variant,
                                       jobs_is_control(&s->jobs, i), err)
                           : -1;
    free(variant);
    s->rows_came = true;
    return rc;
}

/* Outputs are taken as finished if they are there and no process works on them. */
static task_state state_of(const sweep *s, size_t i) {
    char *reason;
    const claim_state claim = s->claims ? claims_look(s->claims, job_of(s, i)->file[0], &reason) : CLAIM_FREE;
    if (s->claims) free(reason);
    if (claim == CLAIM_OTHER || claim == CLAIM_FAILED) return ELSEWHERE;
    return claim == CLAIM_FREE && tasks_exist(&s->task[i]) ? DONE : ABSENT;
}

static const char *no_path(void *nothing, size_t i, int output) {
    (void)nothing, (void)i, (void)output;
    return "";
}

/* How many models the jobs score that make rows: the words after their -m. */
static size_t n_models(const sweep *s) {
    size_t sum = 0;
    for (size_t i = 0; i < s->jobs.n; i++) {
        size_t n = 0;
        bool is_model = false;
        char **word = job_of(s, i)->step->makes_rows ? jobs_words(&s->jobs, i, no_path, NULL, &n, NULL) : NULL;
        for (size_t k = 0; k < n && word; k++) {
            if (word[k][0] == '-' && word[k][1])
                is_model = !strcmp(word[k], "-m") || !strcmp(word[k], "--model");
            else
                sum += is_model;
            sum += !strncmp(word[k], "--model=", 8);
        }
        jobs_free_words(word, n);
    }
    return sum;
}

int tasks_find(sweep *s, dw_err *err) {
    size_t n_source = 0;
    s->task = dw_alloc(s->jobs.n, sizeof *s->task, "jobs", err);
    for (size_t i = 0; s->task && i < s->jobs.n; i++) {
        task *t = &s->task[i];
        for (size_t k = 0; k < job_of(s, i)->step->n_output; k++)
            if (!(t->path[k] = folder_path(s, job_of(s, i)->file[k], err))) return -1;
        t->state = state_of(s, i);
        s->n_elsewhere += t->state == ELSEWHERE;
        t->source = job_of(s, i)->step->makes_rows ? n_source++ : SWEEP_NONE;
    }
    s->judge = s->task ? judge_new(n_source, err) : NULL;
    for (size_t i = 0; s->judge && i < s->jobs.n; i++)
        if (s->task[i].source != SWEEP_NONE && s->task[i].state == DONE && tasks_take_rows(s, i, err)) return -1;
    if (!s->judge || link_readers(s, err)) return -1;
    judge_expect(s->judge, n_models(s));
    mark_needed(s);
    return make_order(s, err);
}

/* ---- what it will take ------------------------------------------------------------------------------------------ */

/* Files that tools write beside an output: Gram matrices (kit/gram.h), sums by window (measure/sums.h). */
static const char *const beside[] = {"", ".gram", ".windows"};

double tasks_bytes(const task *t) {
    double bytes = 0;
    struct stat st;
    for (int k = 0; k < GRID_MAX_OUTPUTS && t->path[k]; k++)
        for (size_t b = 0; b < sizeof beside / sizeof *beside; b++) {
            char *path = dw_format(NULL, "%s%s", t->path[k], beside[b]);
            if (path && !stat(path, &st)) bytes += (double)st.st_size;
            free(path);
        }
    return bytes;
}

/* The seconds of `heal --minutes M`, which plans its schedule to end in that time; 0: the command says no time. */
static double planned_seconds(const sweep *s, size_t i) {
    size_t n;
    double minutes = 0;
    if (strcmp(job_of(s, i)->step->tool, "heal") != 0) return 0;
    char **word = jobs_words(&s->jobs, i, no_path, NULL, &n, NULL);
    for (size_t k = 0; word && k < n; k++) {
        if (!strncmp(word[k], "--minutes=", 10)) minutes = atof(word[k] + 10);
        if (!strcmp(word[k], "--minutes") && k + 1 < n) minutes = atof(word[k + 1]);
    }
    jobs_free_words(word, n);
    return minutes > 0 && minutes < 1e9 ? 60 * minutes : 0;
}

/* The bytes that a job will read; false: what a job before it will write is not known. */
static bool find_in_bytes(sweep *s, size_t i) {
    const job *j = job_of(s, i);
    task *t = &s->task[i];
    bool known = true;
    t->in_bytes = 0;
    for (size_t k = 0; k < j->n_outside; k++)
        t->in_bytes += s->jobs.outside[j->outside[k]].is_program ? 0 : s->jobs.outside[j->outside[k]].bytes;
    for (size_t k = 0; k < j->step->n_read; k++) {
        const task *input = &s->task[j->input[k]];
        t->in_bytes += input->cost.file_bytes;
        known = known && (input->cost_known || input->cost.file_bytes > 0);
    }
    return known;
}

void tasks_estimate(sweep *s) {
    for (size_t i = 0; i < s->jobs.n; i++) { // inputs stand before what reads them
        const job *j = job_of(s, i);
        task *t = &s->task[i];
        t->cost_known = find_in_bytes(s, i) && costs_find(s->costs, j, t->in_bytes, &t->cost);
        const double planned = planned_seconds(s, i);
        if (planned > 0) t->cost.seconds = planned;
        t->seconds_known = t->cost_known || planned > 0;
        const double there = t->state == DONE ? tasks_bytes(t) : 0;
        if (there > 0) t->cost.file_bytes = there;
    }
}

/* ---- models that may go ----------------------------------------------------------------------------------------- */

static bool ends_in(const char *text, const char *end) {
    const size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && !strcmp(text + n - n_end, end);
}

static bool is_model(const grid_output *o) { return ends_in(o->suffix, ".gguf") || ends_in(o->suffix, ".model"); }

/* Whether the rows of a source keep one of a job's models. */
static bool has_kept_model(const sweep *s, size_t i, size_t source) {
    const job *j = job_of(s, i);
    for (size_t k = 0; k < j->step->n_output; k++)
        if (is_model(&j->step->output[k]) && judge_keeps(s->judge, source, j->file[k])) return true;
    return false;
}

static bool is_best(const sweep *s, size_t i) {
    const task *t = &s->task[i];
    for (size_t k = 0; k < t->n_reader; k++) {
        const task *reader = &s->task[t->reader[k]];
        if (reader->source == SWEEP_NONE) continue;
        if (reader->state != DONE || has_kept_model(s, i, reader->source)) return true;
    }
    return false;
}

/* Whether --keep says that a job's model stays when it is scored. */
static bool stays(const sweep *s, size_t i) { return !s->keep->none && (!s->keep->best || is_best(s, i)); }

static bool is_scored_model(const sweep *s, size_t i) {
    return s->task[i].scored && is_model(&job_of(s, i)->step->output[0]);
}

void tasks_warn_of_gone(const sweep *s) {
    size_t n = 0, first = 0;
    for (size_t i = 0; i < s->jobs.n && !s->keep->misses_none; i++) {
        const bool is_gone = is_scored_model(s, i) && s->task[i].state == ABSENT && !s->task[i].needed && stays(s, i);
        if (is_gone && !n++) first = i;
    }
    if (n)
        warn("%zu model%s that --keep %s keeps %s gone, such as '%s': an earlier run removed them, and while their "
             "rows are there, nothing makes them again; to have them, sweep into another folder, or remove the files "
             "of their rows and run this again",
             n, plural((double)n), s->keep->name, n > 1 ? "are" : "is", s->task[first].path[0]);
}

void tasks_remove_models(sweep *s) {
    for (size_t i = 0; i < s->jobs.n; i++) {
        task *t = &s->task[i];
        const grid_step *step = job_of(s, i)->step;
        if (t->state != DONE || t->n_waiting || !is_scored_model(s, i) || stays(s, i)) continue;
        for (size_t k = 0; k < step->n_output; k++)
            if (is_model(&step->output[k]) && unlink(t->path[k]) && errno != ENOENT)
                warn("cannot remove '%s': %s", t->path[k], strerror(errno));
        t->state = REMOVED;
    }
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

int tasks_table(sweep *s, judge_counts *counts, dw_err *err) {
    const double began = dw_now();
    char *path = folder_path(s, "rows.tsv", err);
    const int rc = path ? judge_write(s->judge, path, s->comment, counts, err) : -1;
    free(path);
    s->written = dw_now();
    s->write_seconds = s->written - began;
    s->rows_came = false;
    return rc;
}
