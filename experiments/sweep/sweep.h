/* sweep.h - declarations for the files of a sweep:
 *
 *   sweep.c     options, and the order of everything        programs.c  what may be a step, and checks of its options
 *   folder.c    the output folder and what is refused there  tasks.c     what there is to do, and which models may go
 *   run_jobs.c  starts jobs and takes their results         dry_run.c   what would be done, and what it would cost
 *
 * Below them: grid, jobs, claims, children, costs, judge (a header each). */
#ifndef EXP_SWEEP_H
#define EXP_SWEEP_H

#include "experiments/sweep/children.h"
#include "experiments/sweep/claims.h"
#include "experiments/sweep/costs.h"
#include "experiments/sweep/jobs.h"
#include "experiments/sweep/judge.h"
#include "kit/disk.h"
#include "kit/options.h"
#include "kit/progress.h"

typedef struct keep_rule {
    const char *name;
    bool none, best;
    bool misses_none; // what an earlier run removed
} keep_rule;

typedef enum task_state { ABSENT, RUNNING, ELSEWHERE, DONE, REMOVED, FAILED } task_state; // from DONE on: settled

typedef struct task { // what becomes of a job
    task_state state;
    bool needed, scored; // scored: rows tell of it, or of what is made from it
    bool waits;          // it is counted in n_waiting of what it reads
    char *path[GRID_MAX_OUTPUTS];
    size_t *reader, n_reader; // jobs that read its output
    size_t n_waiting;         // those of them that are still to run
    size_t source;            // of rows, SWEEP_NONE: it makes none
    size_t cause;             // FAILED: the job that failed first
    char *reason;             // of a cause
    double in_bytes;          // that it reads
    job_cost cost;            // what it will take, if cost_known
    bool cost_known;
    bool seconds_known; // cost.seconds, also where the command itself says them
    pid_t pid;
    int n_threads;
    double began;
} task;

typedef struct failure { // of jobs that failed for the same reason
    char *reason;        // in which the names of files are those of their steps
    size_t n, step;
} failure;

typedef struct warning { // that jobs of a step gave
    char *text;          // in which the names of files are those of their steps
    size_t n, step;      // n: how many jobs
    size_t last;         // job
} warning;

typedef struct sweep {
    const char *dir;
    const char *grid_path;
    char grid_sha256[65];
    grid grid;
    jobs jobs;
    task *task;
    char **program; // (n_step) paths
    double *peak;   // (n_step) bytes: the most that a job of the step had; 0: none ran here
    judge *judge;
    claims *claims;
    costs *costs;
    const keep_rule *keep;
    size_t *order, n_order, first; // all jobs in the order in which they are tried; all before `first` are settled
    int n_threads, n_at_once, n_running;
    double memory; // bytes that jobs may use; 0: what the machine has
    bool alone_runs, alone_turn;
    int alone_lock; // a descriptor: shared while jobs run, exclusive for a job that runs alone; -1: there is none
    size_t n_elsewhere;
    size_t n_failed, n_failed_files; // rows; files that no row needed
    failure *failure;
    size_t n_failure, cap_failure;
    warning *warning;
    size_t n_warning, cap_warning;
    double written, write_seconds; // when the table was written last, and how long that took
    bool rows_came;                // since then
    char *comment;                 // of the table
    progress *bar;
} sweep;

#define SWEEP_NONE SIZE_MAX

static inline const job *job_of(const sweep *s, size_t i) { return &s->jobs.job[i]; }
static inline bool is_settled(const task *t) { return t->state >= DONE; }

/* ---- programs.c ---- */

/* The path of deadwood-NAME, beside this program or on PATH; free().  NULL: there is none. */
char *programs_path(const char *name, dw_err *err);
/* Finds the programs of all steps; only those of a list and those in `allowed` may be steps. */
int programs_find(sweep *s, const opt_list *allowed, dw_err *err);
/* Asks every program whether it understands its commands, and refuses outputs that are none of the step's and inputs
 * that are not there. */
int programs_check(const sweep *s, dw_err *err);

/* ---- folder.c ---- */

char *folder_path(const sweep *s, const char *name, dw_err *err); // free()
/* Refuses a folder with files of somebody else; makes nothing. */
int folder_check(const sweep *s, dw_err *err);
/* Makes the folder and takes part in the work on it. */
int folder_open(sweep *s, dw_err *err);
/* Removes what killed programs left of the outputs of jobs that nobody works on, and of the files of the sweep itself. */
int folder_clean(const sweep *s, dw_err *err);
int folder_clean_job(const sweep *s, size_t i, dw_err *err); // of one job, which this process holds
int folder_bury(const sweep *s, dw_err *err); // removes what dead processes held of jobs that are not needed
extern const char sweep_comment[];                           // the begin of the second line of a sweep's table

/* ---- tasks.c ---- */

int tasks_find(sweep *s, dw_err *err); // which jobs are done, in which order the others come
bool tasks_exist(const task *t);       // whether all outputs are there
void tasks_remove_outputs(const task *t);
double tasks_bytes(const task *t);     // of its outputs, and of what tools write beside them
void tasks_estimate(sweep *s);         // what every job that is still to run will read, take and write
void tasks_want(sweep *s, size_t i);   // a model that was removed is needed again
void tasks_settle(sweep *s, size_t i); // a job has an end: those that it reads are read once less
void tasks_remove_models(sweep *s);    // that --keep does not keep
void tasks_warn_of_gone(const sweep *s); // models that --keep keeps and an earlier run removed
int tasks_take_rows(sweep *s, size_t i, dw_err *err);
int tasks_table(sweep *s, judge_counts *counts, dw_err *err); // writes rows.tsv

/* ---- run_jobs.c ---- */

char **run_command(const sweep *s, size_t i, int n_threads, size_t *n, dw_err *err); // argv, NULL after it
char *run_line(char **argv, size_t n, dw_err *err);                                  // as a user would type it
int run_jobs(sweep *s, dw_err *err);

/* ---- dry_run.c ---- */

int dry_run_print(sweep *s, dw_err *err);

#endif
