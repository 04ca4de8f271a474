/* threads.c - one pool: a job runs on its first n threads, and threads wait for each other at barriers.
 *
 * Waiting has three stages.  A short spin serves the common case, where the other thread arrives within microseconds.
 * Then the thread yields between shorter spins, because on a shared machine the other may be waiting for this very
 * core: an idle core comes back at once, a wanted one is not held.  Then it parks on a futex.  A spin that never ends
 * loses whole scheduler slices to a competing process: other engines fall to a tenth of their speed there.
 *
 * Linux may wake a parked thread on the core of the thread that wakes it, although others are idle, and take
 * milliseconds to part them.  (Two cores, a prefill of 11 ms after a pause of 50: 12 to 20 ms, the median 14.)  So for a
 * job that wakes threads each thread claims its core, and leaves one that is claimed already.
 *
 * Other processes.  Where one holds a core, the thread that should run there is late at every barrier, and one that
 * yields there may lose milliseconds.  (Two cores, one busy process: two threads decode at 0.1 to 0.4 of their speed,
 * one alone at 0.5.)  So each thread counts its lost time: it was ready and had no core.  In a trial, TRIAL_S or more
 * of jobs on n threads, let them lose the shares l_1 <= .. <= l_n.  A barrier waits for all, so the k that lost least
 * would do
 *
 *     k (1 - l_1 - .. - l_k)
 *
 * times the work of an undisturbed thread.  (Threads that lose their cores at the same time would do more.)  The best k
 * is what dw_pool_present returns for a while.  The first k threads then take part; the kernel moves them to the cores
 * that are left.  After that rest all are tried again.  A rest is four trials long, and at least twice the last one, up
 * to REST_S; trials that find all n the best shorten the next rest by as much as they last. */
#include "base/base.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
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
static const double TRIAL_S = 0.01, REST_S = 1; // the least of a trial; a rest does not double beyond

/* A number that threads wait on.  The writer makes the system call that wakes them only if `n_parked` is not 0. */
typedef struct signal_word {
    _Alignas(64) atomic_uint value;
    _Alignas(64) atomic_uint n_parked;
} signal_word;

typedef struct pool_thread {
    signal_word start;        // counts the thread's jobs; it waits on it
    double lost_before, lost; // seconds, at the beginning and at the end of a trial; -1: not known
} pool_thread;

typedef struct pool_job {
    int n; // threads
    void (*fn)(void *, int, int);
    void *arg;
    bool begins_trial, ends_trial; // threads read their lost time before it, after it
    bool wakes;                    // it began with parked threads
} pool_job;

/* Jobs on the same number of threads, which the first thread judges together. */
typedef struct trial {
    int n;               // threads
    double began, ended; // times: of its first and of its last job
    bool is_new, is_due; // the next job is the first; is probably the last
} trial;

struct dw_pool {
    int n, n_started;
    pthread_t thread[MAX_THREADS];
    pool_thread state[MAX_THREADS];
    trial trial;
    int n_present;             // threads for jobs that ask
    double rest_s, rest_until; // of the other threads
    _Alignas(64) pool_job job; // written between jobs; one line
    signal_word barrier;       // counts barriers passed
    _Alignas(64) atomic_uint n_arrived;
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
    p->job.wakes = false;
    for (int i = 1; i < p->job.n; i++)
        p->job.wakes |= atomic_load_explicit(&p->state[i].start.n_parked, memory_order_relaxed) > 0;
    if (!p->job.wakes) return;
    for (int i = 0; i < MAX_CORES / 64; i++) atomic_store_explicit(&p->claimed[i], 0, memory_order_relaxed);
    claim(p, sched_getcpu());
}

/* The others, once they see the job. */
static void claim_core(dw_pool *p) {
    if (p->job.wakes && !claim(p, sched_getcpu())) leave_core(p);
}
#else
static void begin_claims(dw_pool *p) { (void)p; }
static void claim_core(dw_pool *p) { (void)p; }
#endif

/* ---- how many threads have cores -------------------------------------------------------------------------------- */

/* The calling thread's lost time, -1 where the system does not tell. */
static double lost_seconds(void) {
    char text[64] = "";
    const int fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC); // "RAN WAITED TIMES", nanoseconds
    if (fd < 0) return -1;
    if (read(fd, text, sizeof text - 1) < 0) *text = 0;
    close(fd);
    const char *waited = strchr(text, ' ');
    return waited ? 1e-9 * strtod(waited, NULL) : -1;
}

static int fewer_first(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int dw_pool_best(double *lost, int n) {
    qsort(lost, (size_t)n, sizeof *lost, fewer_first);
    double sum = 0, most = 0;
    int best = n;
    for (int k = 1; k <= n; k++) {
        sum += lost[k - 1];
        const double work = k * (1 - sum);
        if (work >= most) most = work, best = k;
    }
    return best;
}

/* Judges a trial of `seconds`; the next begins where it ends. */
static void judge(dw_pool *p, double seconds) {
    double lost[MAX_THREADS];
    for (int i = 0; i < p->trial.n; i++) {
        pool_thread *s = &p->state[i];
        const bool is_known = s->lost >= 0 && s->lost_before >= 0;
        lost[i] = is_known ? fmin((s->lost - s->lost_before) / seconds, 1) : 0;
        s->lost_before = s->lost;
    }
    const int n = dw_pool_best(lost, p->trial.n);
    if (n < p->trial.n) {
        p->rest_s = fmax(fmin(2 * p->rest_s, REST_S), 4 * seconds);
        p->rest_until = dw_now() + p->rest_s;
        p->n_present = n;
    } else if (n == p->n) {
        p->rest_s = fmax(p->rest_s - seconds, 0);
        p->n_present = n;
    }
}

/* Jobs on other numbers of threads are not tried: they have few items. */
static bool is_tried(const dw_pool *p, int n) { return p->n > 1 && (n == p->n || n == p->n_present); }

/* Before a job: it belongs to the trial, or begins another. */
static void enter_trial(dw_pool *p, int n, double now) {
    trial *t = &p->trial;
    if (n == t->n && now - t->ended < TRIAL_S) return;
    *t = (trial){.n = n, .began = now, .is_new = true};
}

/* After the job: ends the trial if it was the last. */
static void count_job(dw_pool *p, double began, double ended) {
    trial *t = &p->trial;
    if (t->is_due && ended - t->began >= TRIAL_S) {
        judge(p, ended - t->began);
        t->began = ended;
    }
    t->ended = ended;
    t->is_new = false;
    t->is_due = ended - t->began + (ended - began) >= TRIAL_S; // if the next one is as long
}

int dw_pool_present(dw_pool *p) {
    if (p->n_present < p->n && dw_now() >= p->rest_until) p->n_present = p->n;
    return p->n_present;
}

void dw_pool_rest(dw_pool *p, int n, double seconds) {
    dw_assert(n >= 1 && n <= p->n);
    p->n_present = n;
    p->rest_until = dw_now() + seconds;
}

/* ---- barrier and jobs ------------------------------------------------------------------------------------------ */

void dw_pool_barrier(dw_pool *p) {
    const unsigned n = (unsigned)p->job.n; // once this thread has arrived, the first may begin another job
    if (n == 1) return;
    const unsigned seen = atomic_load_explicit(&p->barrier.value, memory_order_relaxed);
    if (atomic_fetch_add(&p->n_arrived, 1) + 1 == n) {
        atomic_store_explicit(&p->n_arrived, 0, memory_order_relaxed);
        advance(&p->barrier);
    } else {
        wait_for_change(&p->barrier, seen);
    }
}

/* One thread's part of a job. */
static void run_part(dw_pool *p, int ith) {
    if (p->job.begins_trial) p->state[ith].lost_before = lost_seconds();
    p->job.fn(p->job.arg, ith, p->job.n);
    if (p->job.ends_trial) p->state[ith].lost = lost_seconds();
    dw_pool_barrier(p);
}

void dw_pool_run_on(dw_pool *p, int n, void (*fn)(void *arg, int ith, int n), void *arg) {
    dw_assert(n >= 1 && n <= p->n);
    const bool tried = is_tried(p, n);
    const double now = dw_now();
    if (tried) enter_trial(p, n, now);
    p->job = (pool_job){
        .n = n, .fn = fn, .arg = arg, .begins_trial = tried && p->trial.is_new, .ends_trial = tried && p->trial.is_due};
    begin_claims(p);
    for (int i = 1; i < n; i++) advance(&p->state[i].start);
    run_part(p, 0);
    if (tried) count_job(p, now, dw_now());
}

void dw_pool_run(dw_pool *p, void (*fn)(void *arg, int ith, int n), void *arg) { dw_pool_run_on(p, p->n, fn, arg); }

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
        wait_for_change(&p->state[ith].start, seen);
        if (p->stop) return NULL;
        claim_core(p);
        run_part(p, ith);
    }
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
    p->n = p->n_present = n_threads;
    sigset_t old;
    block_signals(&old);
    int rc = 0;
    while (!rc && p->n_started < n_threads - 1 && !(rc = start_thread(p, p->n_started + 1, err))) p->n_started++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!rc) {
        // A thread that still starts may hold a lock of the allocator: a fork would keep it locked.
        dw_pool_run(p, do_nothing, NULL);
        p->trial = (trial){0}; // starting threads is none
        return p;
    }
    dw_pool_free(p);
    return NULL;
}

void dw_pool_free(dw_pool *p) {
    if (!p) return;
    p->stop = true;
    for (int i = 1; i <= p->n_started; i++) advance(&p->state[i].start);
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
    const int present = dw_pool_present(p);
    if (n) dw_pool_run_on(p, n < (size_t)present ? (int)n : present, each_worker, &job);
}

double dw_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
