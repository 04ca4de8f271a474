/* progress.h - shows the progress of long work, its rate, and the time left. */
#ifndef KIT_PROGRESS_H
#define KIT_PROGRESS_H

#include "base/base.h"

/* On a terminal a bar appears after one second; elsewhere there is one line per 30 s.  Any thread may call
 * progress_step. */
typedef struct progress progress;
progress *progress_begin(const char *what, const char *unit, double total); // total 0: unknown
void progress_step(progress *p, double done); // units done since the last call; p NULL: nobody looks
void progress_end(progress *p);

#endif
