/* schedule.c - see schedule.h. */
#include "prune/schedule.h"
#include "model/optimizer.h"

#include <math.h>

/* Whether another step would end after the budget. */
static bool is_out_of_time(const schedule *s) { return s->steps && s->seconds + s->longest + s->reserve > s->budget; }

double schedule_done(const schedule *s) {
    if (s->n_steps) return fmin(1, (double)s->steps / (double)s->n_steps);
    if (is_out_of_time(s)) return 1;
    return s->steps ? s->seconds / (s->budget - s->reserve) : 0; // what came before the first step is no learning
}

double schedule_rate(const schedule *s) {
    enum { FINE = 1 << 20 }; // of a run that is planned by time
    if (s->n_steps) return s->rate * dw_cosine(s->steps, s->n_steps, s->warm, s->last);
    return s->rate * dw_cosine((uint64_t)(schedule_done(s) * FINE), FINE, s->warm, s->last);
}

void schedule_clock(schedule *s, double seconds, double step_seconds) {
    s->longest = fmax(s->longest, step_seconds);
    s->seconds = seconds;
}

bool schedule_is_due(const schedule *s) {
    const double done = schedule_done(s);
    return done >= 1 || done * SCHEDULE_PARTS >= s->n_measured + 1;
}

bool schedule_measure(schedule *s, double loss) {
    const bool is_best = !s->best_step || loss < s->best;
    s->n_measured = (int)(schedule_done(s) * SCHEDULE_PARTS);
    s->n_worse = is_best ? 0 : s->n_worse + 1;
    if (is_best) s->best_step = s->steps, s->best = loss;
    return is_best;
}

bool schedule_gives_up(const schedule *s) { return s->patience && s->n_worse >= s->patience; }
