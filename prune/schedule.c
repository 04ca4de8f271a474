/* schedule.c - see schedule.h. */
#include "prune/schedule.h"
#include "model/optimizer.h"

#include <math.h>

/* Whether another step would end after the budget. */
static bool is_out_of_time(const schedule *s) { return s->steps && s->seconds + s->longest + s->reserve > s->budget; }

double schedule_done(const schedule *s) {
    if (s->n_steps) return fmin(1, (double)s->steps / (double)s->n_steps);
    if (is_out_of_time(s)) return 1;
    return s->steps ? s->seconds / (s->budget - s->reserve) : 0;
}

/* As dw_cosine by steps: it rises to where the next step ends, and falls from where it begins. */
static double cosine_of_time(const schedule *s) {
    enum { FINE = 1 << 20 };
    const double done = schedule_done(s), step = (s->steps ? s->longest : s->expected) / (s->budget - s->reserve);
    const double rise = s->warm > 0 && step > 0 ? fmin(1, (done + step) / s->warm) : 1;
    return rise * dw_cosine((uint64_t)(done * FINE), FINE, 0, s->last);
}

double schedule_rate(const schedule *s) {
    return s->rate * (s->n_steps ? dw_cosine(s->steps, s->n_steps, s->warm, s->last) : cosine_of_time(s));
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
