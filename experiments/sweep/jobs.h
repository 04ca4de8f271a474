/* jobs.h - what a grid asks for: every step for every combination of values that decides its output.
 *
 * A job's identity is a hash of its command, in which the outputs of other jobs stand by their identities and files
 * from outside by their contents; of the bytes of the program that runs it (kit/hash_cache.h, kit_sha256_program: its
 * code, not the commit that it was built from); and of the level of the cpu backend, which decides how results are
 * rounded.  So a changed value, command, input or formula changes the identities of what depends on it, and of nothing
 * else.  The commit is in every lineage and row.  It is not in the identity, because then a commit of a comment would
 * change every job.  A file's name is the step, the values that vary, and ten digits of the identity:
 *
 *     cut-energy-0.2-8c5e0f12ab.gguf
 *
 * A word that names a file or a folder, alone or after the = of --option=PATH, is taken for an input, and with a file
 * the Gram matrices beside it (kit/gram.h). */
#ifndef EXP_JOBS_H
#define EXP_JOBS_H

#include "experiments/sweep/grid.h"

enum { JOB_NO_VALUE = UINT16_MAX };

typedef struct job {
    const grid_step *step;
    const uint16_t *value;        // (n_variable) which value each variable has; JOB_NO_VALUE: does not matter
    int *input;                   // (step->n_read) jobs, one of each step that it reads; all stand before this one
    char id[65];                  // from jobs_identify on
    char *file[GRID_MAX_OUTPUTS]; // names of its outputs without folder
    uint64_t options, words;      // hashes of the options, and of all words that are no files
    uint32_t *outside;            // (n_outside) inputs from outside, its program among them: places in jobs.outside
    size_t n_outside, cap_outside;
} job;

typedef struct job_outside { // a word that was looked at
    char *word;
    bool is_program, is_file;
    dw_stamp stamp;  // of a file; of a folder zero
    char sha256[65]; // "" when it names nothing
    double bytes;
} job_outside;

typedef struct jobs {
    const grid *grid; // borrowed
    job *job;
    size_t n, cap;
    uint16_t **values; // what the jobs' values point to, a step each
    size_t *first;     // (n_step + 1) the first job of each step; they stand in the order of their values
    job_outside *outside;
    size_t n_outside, cap_outside;
} jobs;

/* All jobs, in the grid's order: by step, then by values, the first variable slowest. */
int jobs_expand(jobs *j, const grid *g, const char *what, dw_err *err);
/* Gives every job its identity and its files' names; reads all inputs from outside, and the programs of the steps
 * (n_step paths; NULL: none). */
int jobs_identify(jobs *j, char *const *program, dw_err *err);
/* Fails when an input of a job, or its program, is no more what it was when jobs_identify read it. */
int jobs_check_inputs(const jobs *j, size_t i, dw_err *err);
void jobs_release(jobs *j);

/* How output k of job i is written in a command. */
typedef const char *(*job_file_fn)(void *ctx, size_t i, int output);

/* The arguments of a job's command; `file` says how the outputs of jobs are written, its own too.  The words and the
 * array are to be freed with jobs_free_words. */
char **jobs_words(const jobs *j, size_t i, job_file_fn file, void *ctx, size_t *n, dw_err *err);
void jobs_free_words(char **word, size_t n);

/* "metric=random rate=0.2 seed=1": the values that vary, quoted as for a shell; free(). */
char *jobs_variant(const jobs *j, size_t i, dw_err *err);
/* Whether the grid calls it a control. */
bool jobs_is_control(const jobs *j, size_t i);

#endif
