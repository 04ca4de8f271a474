/* runner.h - two programs, each in a child process that holds its model, doing the same work in turn.
 *
 * A child times its own work; what it is timed for is stated at each work below.  It answers when its threads sleep. */
#ifndef EXP_RUNNER_H
#define EXP_RUNNER_H

#include "experiments/child.h"
#include "experiments/peer/program.h"

typedef enum exp_work {
    EXP_DECODE,  // n tokens of each sequence one by one after `depth` tokens, logits of each fetched; if that is 0,
                 // after 8 tokens of one sequence, 4 of two, .. 1 of eight or more
    EXP_PREFILL, // n tokens of each sequence in one batch after `depth` tokens, logits of each one's last fetched
    EXP_PERPLEXITY, // n windows of n_ctx tokens, log-probabilities of their second halves
    EXP_N_WORKS,
    EXP_FILL = EXP_N_WORKS // n tokens of each sequence at the positions first .., which stay in the cache
} exp_work;

enum { EXP_FILL_TOKENS = 512, EXP_WARM_TOKENS = 8 }; // tokens of one EXP_FILL, of all sequences; before decoding

typedef struct exp_runner_options {
    const char *path;         // the model
    const char *stock_folder; // NULL: this engine
    const char *level;        // of stock (level.h); NULL: the best variant
    exp_program_options program; // its pool and stock are made in the child
    int n_threads;
    const int32_t *ids;       // n_ids of them, at least one window and one batch
    size_t n_ids;
    int n_ctx;                // of a window
    int depth;                // tokens of each sequence that EXP_FILL has put into the cache before
    int32_t bos;              // first token of each window; -1: as it stands
} exp_runner_options;

typedef struct exp_runner {
    exp_child child;
    double load_s;      // opening model and session
    double rss_bytes;   // then
    char about[96];     // kernels or version and CPU library
    int n_vocab;
    bool can_set;       // options are obeyed: stock_can_set
} exp_runner;

typedef struct exp_lap {
    double wall_s, cpu_s;
    double nll;       // EXP_PERPLEXITY: mean over the scored tokens
    double rss_bytes, huge_bytes; // at the end: resident memory, and what of it is huge pages
    double read_gb_s; // EXP_DECODE of this engine: exp_program_read right before and after, the better one; else 0
} exp_lap;

/* Starts a child; returns when its model is ready. */
int exp_runner_start(exp_runner *c, const exp_runner_options *o, dw_err *err);
void exp_runner_stop(exp_runner *c); // nothing, where none is running
static inline bool exp_runner_is_running(const exp_runner *c) { return c->child.pid; }
/* One repetition: first (of windows and EXP_FILL, else ignored) and n as above.
 *
 * Before the clock starts, decode evaluates the last tokens before its first position again, n / 8 of them but 1 to 8:
 * the caches of the CPU belong to this program then, and its threads are awake. */
int exp_runner_run(exp_runner *c, exp_work work, int first, int n, exp_lap *lap, dw_err *err);

enum { EXP_MAX_CROWD = 64 };

/* Processes that do nothing but keep cores busy. */
typedef struct exp_crowd {
    exp_child child[EXP_MAX_CROWD];
    int n;
} exp_crowd;

/* Starts n processes, at most EXP_MAX_CROWD, which wait for exp_crowd_go.  After a failure c->n of them are there. */
int exp_crowd_start(exp_crowd *c, int n, dw_err *err);
void exp_crowd_go(const exp_crowd *c, bool busy); // busy: all run; else all wait
void exp_crowd_stop(exp_crowd *c);                // ends them

#endif
