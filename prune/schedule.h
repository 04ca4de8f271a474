/* schedule.h - how long a run of heal lasts, at which rate it learns, and which of its states wins.
 *
 * The end.  By tokens, a run has n_steps steps.  By time, it ends so that its command ends after `budget` seconds:
 *
 *     done = steps / n_steps        or   seconds / (budget - reserve)
 *
 * where seconds count from the first step on, `budget` is what is left then, and `reserve` what the last measurement and
 * the file need.  A step that would end too late is not begun; the first step always is.  The rate follows dw_cosine over `done`; by
 * time, how long the next step will take is taken from the longest so far, at first from `expected`.
 *
 * The best.  After each tenth of the run the held-out loss is measured.  The values of the lowest one win.  After
 * `patience` measurements in a row that are not below the lowest, the run stops (Prechelt 1998, "Early stopping - but
 * when?").  There the loss before the first step does not count, because a high rate raises the loss at the beginning;
 * but where no measurement is as low, the weights of before win. */
#ifndef PRUNE_SCHEDULE_H
#define PRUNE_SCHEDULE_H

#include "base/base.h"

enum { SCHEDULE_PARTS = 10 }; // of a run: measurements

typedef struct schedule {
    uint64_t n_steps;       // planned; 0: by time
    double budget, reserve; // seconds, by time
    double expected;        // seconds of the first step, by time; 0: unknown
    double rate, warm, last;
    int patience; // 0: the last values win, and nothing stops early
    /* state */
    uint64_t steps;     // done
    double seconds;     // since the first step began
    double longest;     // step, in seconds
    int n_measured;     // tenths whose measurement is done
    uint64_t best_step; // 0: nothing was measured
    double best;        // its held-out loss
    int n_worse;        // measurements since
} schedule;

double schedule_done(const schedule *s); // 0 .. 1
double schedule_rate(const schedule *s); // of the next step
/* It is `seconds` after the first step began.  A step of step_seconds has ended; 0: what ended is a measurement or a file. */
void schedule_clock(schedule *s, double seconds, double step_seconds);
bool schedule_is_due(const schedule *s);         // a measurement
bool schedule_measure(schedule *s, double loss); // true: the values are the best so far
bool schedule_gives_up(const schedule *s);       // because of `patience`
static inline bool schedule_ends(const schedule *s) { return schedule_done(s) >= 1 || schedule_gives_up(s); }

#endif
