/* threads.c - one pool: a job runs on every thread, and threads wait for each other at barriers.
 *
 * Waiting has three stages.  A short spin serves the common case, where the other thread arrives within microseconds.
 * Then the thread yields between shorter spins, because on a shared machine the other may be waiting for this very
 * core: an idle core comes back at once, a wanted one is not held.  Then it parks on a futex.  A spin that never ends
 * loses whole scheduler slices to a competing process: other engines fall to a tenth of their speed there.
 *
 * Linux may wake a parked thread on the core of the thread that wakes it, although others are idle, and take
 * milliseconds to part them.  (Two cores, a prefill of 11 ms after a pause of 50: 12 to 20 ms, the median 14.)  So for a
 * job that wakes threads each thread claims its core, and leaves one that is claimed already. */
#include "base/base.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

enum {
    SPINS_FIRST = 100,  // 3 to 5 us, by the length of a pause: the imbalance of a fused step
    SPINS_BETWEEN = 20, // two yields
    AWAKE_US = 1000,    // a parked thread wakes slowly, above all on virtual machines
    MAX_THREADS = 256,
    MAX_CORES = 1024, // that are told apart
};

/* A number that threads wait on.  The writer makes the system call that wakes them only if `n_parked` is not 0. */
typedef struct signal_word {
    _Alignas(64) atomic_uint value;
    _Alignas(64) atomic_uint n_parked;
} signal_word;

struct dw_pool {
    int n;
    pthread_t thread[MAX_THREADS];
    int n_started;
    void (*fn)(void *, int, int);
    void *arg;
    signal_word job;     // counts jobs; workers wait on it
    signal_word barrier; // counts barriers passed
    _Alignas(64) atomic_uint n_arrived;
    bool wakes;                                   // the job began with parked threads
    atomic_uint_fast64_t claimed[MAX_CORES / 64]; // cores of the job's threads, if it wakes some
    bool stop;
};

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void park(signal_word *s, unsigned seen) {
#if defined(__linux__)
    syscall(SYS_futex, &s->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
#else
    (void)s, (void)seen;
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
#endif
}

static bool changes_within(const signal_word *s, unsigned seen, int spins) {
    for (int i = 0; i < spins; i++) {
        if (atomic_load_explicit(&s->value, memory_order_acquire) != seen) return true;
        relax();
    }
    return false;
}

/* Returns once s->value differs from `seen`. */
static void wait_for_change(signal_word *s, unsigned seen) {
    if (changes_within(s, seen, SPINS_FIRST)) return;
    for (const double until = dw_now() + 1e-6 * AWAKE_US; dw_now() < until;) {
        sched_yield();
        if (changes_within(s, seen, SPINS_BETWEEN)) return;
    }
    atomic_fetch_add(&s->n_parked, 1);
    while (atomic_load(&s->value) == seen) park(s, seen);
    atomic_fetch_sub(&s->n_parked, 1);
}

static void advance(signal_word *s) {
    atomic_fetch_add(&s->value, 1);
#if defined(__linux__)
    if (atomic_load(&s->n_parked)) syscall(SYS_futex, &s->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
#endif
}

/* ---- cores of woken threads ------------------------------------------------------------------------------------ */

#if defined(__linux__)
static bool is_claimed(const dw_pool *p, int core) {
    return atomic_load_explicit(&p->claimed[core / 64], memory_order_relaxed) >> core % 64 & 1;
}

/* False: another thread has it. */
static bool claim(dw_pool *p, int core) {
    if (core < 0 || core >= MAX_CORES) return true;
    const uint64_t bit = (uint64_t)1 << core % 64;
    return !(atomic_fetch_or_explicit(&p->claimed[core / 64], bit, memory_order_relaxed) & bit);
}

/* Moves the calling thread to one of the cores that are not claimed, if it may use any.  After that it may run where it
 * could before. */
static void leave_core(dw_pool *p) {
    cpu_set_t allowed, free_cores;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
    CPU_ZERO(&free_cores);
    for (int core = 0; core < MAX_CORES && core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &allowed) && !is_claimed(p, core)) CPU_SET(core, &free_cores);
    if (!CPU_COUNT(&free_cores) || sched_setaffinity(0, sizeof free_cores, &free_cores)) return;
    claim(p, sched_getcpu());
    sched_setaffinity(0, sizeof allowed, &allowed);
}

/* The first thread, before it begins a job. */
static void begin_claims(dw_pool *p) {
    p->wakes = atomic_load(&p->job.n_parked);
    if (!p->wakes) return;
    for (int i = 0; i < MAX_CORES / 64; i++) atomic_store_explicit(&p->claimed[i], 0, memory_order_relaxed);
    claim(p, sched_getcpu());
}

/* The others, once they see the job. */
static void claim_core(dw_pool *p) {
    if (p->wakes && !claim(p, sched_getcpu())) leave_core(p);
}
#else
static void begin_claims(dw_pool *p) { (void)p; }
static void claim_core(dw_pool *p) { (void)p; }
#endif

/* ---- barrier and jobs ------------------------------------------------------------------------------------------ */

void dw_pool_barrier(dw_pool *p) {
    if (p->n == 1) return;
    const unsigned seen = atomic_load_explicit(&p->barrier.value, memory_order_relaxed);
    if (atomic_fetch_add(&p->n_arrived, 1) + 1 == (unsigned)p->n) {
        atomic_store_explicit(&p->n_arrived, 0, memory_order_relaxed);
        advance(&p->barrier);
    } else {
        wait_for_change(&p->barrier, seen);
    }
}

typedef struct worker_start {
    dw_pool *pool;
    int ith;
} worker_start;

static void *worker(void *start_pointer) {
    worker_start *start = start_pointer;
    dw_pool *p = start->pool;
    const int ith = start->ith;
    free(start);
    for (unsigned seen = 0;; seen++) {
        wait_for_change(&p->job, seen);
        if (p->stop) return NULL;
        claim_core(p);
        p->fn(p->arg, ith, p->n);
        dw_pool_barrier(p);
    }
}

void dw_pool_run(dw_pool *p, void (*fn)(void *arg, int ith, int n), void *arg) {
    p->fn = fn;
    p->arg = arg;
    if (p->n > 1) {
        begin_claims(p);
        advance(&p->job);
    }
    fn(arg, 0, p->n);
    dw_pool_barrier(p);
}

/* A new thread inherits the mask of blocked signals.  Only the program's own thread runs handlers of signals that
 * end it, so a handler never runs at the same time as that thread.  Faults (SIGSEGV, SIGBUS) are not blocked: they
 * go to the thread that causes them. */
static void block_signals(sigset_t *old) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    sigset_t set;
    sigfillset(&set);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&set, faults[i]);
    pthread_sigmask(SIG_BLOCK, &set, old);
}

static int start_thread(dw_pool *p, int ith, dw_err *err) {
    worker_start *start = dw_alloc(1, sizeof *start, "a thread", err);
    if (!start) return -1;
    *start = (worker_start){p, ith};
    if (!pthread_create(&p->thread[ith], NULL, worker, start)) return 0;
    free(start);
    return dw_fail(err, "cannot start thread %d of %d; try fewer with -t", ith + 1, p->n);
}

static void do_nothing(void *arg, int ith, int n) { (void)arg, (void)ith, (void)n; }

dw_pool *dw_pool_new(int n_threads, dw_err *err) {
    if (n_threads <= 0) n_threads = dw_cpu_count();
    if (n_threads > MAX_THREADS) n_threads = MAX_THREADS;
    dw_pool *p = dw_alloc(1, sizeof *p, "a thread pool", err);
    if (!p) return NULL;
    p->n = n_threads;
    sigset_t old;
    block_signals(&old);
    int rc = 0;
    while (!rc && p->n_started < n_threads - 1 && !(rc = start_thread(p, p->n_started + 1, err))) p->n_started++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!rc) {
        // A thread that still starts may hold a lock of the allocator: a fork would keep it locked.
        dw_pool_run(p, do_nothing, NULL);
        return p;
    }
    dw_pool_free(p);
    return NULL;
}

void dw_pool_free(dw_pool *p) {
    if (!p) return;
    p->stop = true;
    advance(&p->job);
    for (int i = 1; i <= p->n_started; i++) pthread_join(p->thread[i], NULL);
    free(p);
}

int dw_pool_size(const dw_pool *p) { return p->n; }

typedef struct each_job {
    void (*fn)(void *arg, size_t i);
    void *arg;
    size_t n;
    atomic_size_t next;
} each_job;

static void each_worker(void *job_pointer, int ith, int n) {
    (void)ith, (void)n;
    each_job *job = job_pointer;
    for (size_t i; (i = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) < job->n;) job->fn(job->arg, i);
}

void dw_pool_each(dw_pool *p, size_t n, void (*fn)(void *arg, size_t i), void *arg) {
    each_job job = {.fn = fn, .arg = arg, .n = n};
    dw_pool_run(p, each_worker, &job);
}

double dw_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
