/* progress.h - how far long work has come, and how much time is left. */
#ifndef KIT_PROGRESS_H
#define KIT_PROGRESS_H

#include "base/base.h"

/* A bar on a terminal after one second, with rate and time left; elsewhere a line each 30 s.  Thread-safe steps. */
typedef struct progress progress;
progress *progress_begin(const char *what, const char *unit, double total);
void progress_step(progress *p, double done); // units since the last call
void progress_end(progress *p);

#endif
