/* bandwidth.h - what a speed must be read beside: this minute's read bandwidth, and who else used the machine.
 *
 * On shared hosts the read bandwidth itself moves by a third within minutes, so a speed that is bound by memory is
 * stated as a share of the bandwidth measured in the same run, before and after it.  Some hosts change it several times
 * a minute by half: there a lap must be read beside what the same threads read right before and after it. */
#ifndef EXP_BANDWIDTH_H
#define EXP_BANDWIDTH_H

#include "base/base.h"

/* How memory is read: each thread's part in pieces of equal size, 256 bytes of each in turn, prefetched so many bytes ahead
 * (0: left to the hardware).  Which is fastest depends on the machine.  Three streams on two of Zen 5, two threads: 1.1 to
 * 1.2 and 1.03 to 1.06 times the rate of one.  More streams were no faster. */
typedef struct exp_way {
    int n_streams, prefetch;
} exp_way;
enum { EXP_N_WAYS = 5, EXP_MOST_PREFETCH = 4096 }; // the largest of exp_ways
extern const exp_way exp_ways[EXP_N_WAYS];

/* Gigabytes (1e9) a second that all threads of the pool read together from memory larger than the caches, each its own
 * part, in the fastest way.  The memory is taken and given back; takes about a second.  -1 after an error. */
double exp_read_bandwidth(dw_pool *pool, dw_err *err);

/* One piece of memory, aligned to 64. */
typedef struct exp_span {
    const uint8_t *start;
    size_t n_bytes;
} exp_span;

/* Gigabytes a second that all threads of the pool read together from the spans, once, each its own part of every span.
 * seconds: of each thread, for this call's use. */
double exp_read_spans(dw_pool *pool, const exp_span *span, size_t n_spans, exp_way way, double *seconds);
/* The fastest way to read them, and its rate: the median of three passes. */
double exp_best_way(dw_pool *pool, const exp_span *span, size_t n_spans, double *seconds, exp_way *way);

/* Bytes of third-level cache that n threads can read from: a slice each, at most the whole chip's; 0: not known. */
size_t exp_cache_bytes(int n_threads);

/* Reads n bytes (but the last, fewer than 256 of each stream) of memory that is aligned to 64, as fast as this CPU loads
 * them.  The sum, so that nothing is left out. */
uint64_t exp_read_bytes(const void *memory, size_t n, exp_way way);

/* What happened between begin and end. */
typedef struct exp_watch {
    double wall_s, own_cpu_s;       // end: of this process (all threads); begin: the clocks
    double busy_cpu_s, steal_cpu_s; // of all processes; taken by the host
    double load;                    // load average of one minute, at the end
} exp_watch;

exp_watch exp_watch_begin(void);
exp_watch exp_watch_end(const exp_watch *begin);
/* CPU seconds a second of wall time that others took: processes that are not ours, and the host. */
double exp_watch_others(const exp_watch *w);

/* Median and extremes of n numbers, which are sorted. */
typedef struct exp_spread {
    double median, min, max;
} exp_spread;
exp_spread exp_spread_of(double *x, size_t n);

#endif
