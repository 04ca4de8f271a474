/* children.h - commands as child processes: many at once, each with a log; none outlives this process.
 *
 * SIGINT, SIGTERM and SIGHUP are passed on to all children, which remove what they have not finished.  When this process
 * is killed, its children are too (on Linux; elsewhere they end when they are done).  Files that are open without
 * O_CLOEXEC are theirs as well: a lock taken on one is held until the last of them has ended. */
#ifndef EXP_CHILDREN_H
#define EXP_CHILDREN_H

#include "base/base.h"

#include <sys/types.h>

enum { CHILDREN_MAX = 256 };

typedef struct child_end {
    pid_t pid;
    int status; // as waitpid has it
    double cpu_seconds, peak_bytes;
} child_end;

void children_on_signals(void); // from now on
int children_signal(void);      // which came, 0: none

/* Runs a program; what it prints goes to the file `log`, which begins with the line `heading`.  -1 on failure. */
pid_t children_start(const char *program, char *const *argv, const char *log, const char *heading, dw_err *err);
/* Waits until a child ends.  -1 when there is none. */
int children_wait(child_end *end);

#endif
