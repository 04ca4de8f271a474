/* costs.h - what jobs took, remembered for later sweeps on this machine, and how much memory there is.
 *
 *   $XDG_CACHE_HOME/deadwood/times.tsv  (kit/hash_cache.h): a line for each job that ran
 *   tool  options  words  in_bytes  threads  seconds  cpu_seconds  peak_bytes  file_bytes
 *
 * options and words are hashes of a command's options and of all its words that are no files.  The cost of a new job is
 * that of the remembered job with the most in common (the same words, else the same options, else the same tool) and
 * the nearest number of bytes to read; seconds, memory and bytes written are taken as proportional to those.  Where all
 * that is remembered read more than ten times as much, or less than a tenth, the cost is unknown.
 * file_bytes counts what tools write beside an output, too (.gram, .windows). */
#ifndef EXP_COSTS_H
#define EXP_COSTS_H

#include "experiments/sweep/jobs.h"

#include <sys/types.h>

typedef struct job_cost {
    double seconds, cpu_seconds, peak_bytes, file_bytes;
    int threads;
} job_cost;

typedef struct costs costs;

costs *costs_open(dw_err *err); // without a cache nothing is remembered
void costs_free(costs *c);
bool costs_find(const costs *c, const job *j, double in_bytes, job_cost *cost); // false: nothing like it ran here
void costs_note(costs *c, const job *j, double in_bytes, const job_cost *cost);

double memory_of(pid_t process); // bytes that it holds now, 0: unknown

#endif
