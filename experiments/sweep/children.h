/* children.h - commands as child processes: many at once, each with a log; none outlives this process.
 *
 * SIGINT, SIGTERM and SIGHUP are passed on to all children, which remove what they have not finished.  When this
 * process is killed, its children are too (on Linux; elsewhere they end when they are done). */
#ifndef EXP_CHILDREN_H
#define EXP_CHILDREN_H

#include "base/base.h"

#include <sys/types.h>

enum { CHILDREN_MAX = 256 };

typedef struct child_end {
    pid_t pid;
    int status; // that waitpid gave
    double cpu_seconds, peak_bytes;
} child_end;

void children_on_signals(void); // from now on
int children_signal(void);      // which came, 0: none
void children_end_by(int sig);  // ends this program by the signal, as if it had no handler

/* Runs a program; what it prints goes to the file `log`, which begins with the line `heading`.  -1 on failure. */
pid_t children_start(const char *program, char *const *argv, const char *log, const char *heading, dw_err *err);
/* The same without a log: messages go where those of this process go, stdout to the descriptor `out`. */
pid_t children_start_here(const char *program, char *const *argv, int out, dw_err *err);
/* Waits until a child ends, at most so many seconds: 0, or 1 when none ended in that time, or -1 when there is none. */
int children_wait(child_end *end, double seconds);
void children_nap(double seconds); // a signal that is passed on ends it
/* Runs a program and waits for its end.  *said: what it printed; free().  Returns the status that waitpid gave, or
 * -1. */
int children_ask(const char *program, char *const *argv, char **said, dw_err *err);

#endif
