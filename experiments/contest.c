/* contest.c - child processes, their pipes and their work. */
#include "experiments/contest.h"

#include "experiments/bandwidth.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

/* ---- pipes --------------------------------------------------------------------------------------------- */

typedef struct order {
    int work, first, n;
} order;

typedef struct reply {
    int rc;
    dw_err err;
    exp_lap lap;
    double load_s, rss_bytes;
    char about[96];
} reply;

static bool send_all(int fd, const void *data, size_t n) {
    for (const char *at = data; n;) {
        const ssize_t w = write(fd, at, n);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) return false;
        at += w;
        n -= (size_t)w;
    }
    return true;
}

static bool receive_all(int fd, void *data, size_t n) {
    for (char *at = data; n;) {
        const ssize_t r = read(fd, at, n);
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0) return false;
        at += r;
        n -= (size_t)r;
    }
    return true;
}

static void end_with_parent(pid_t parent) {
#if defined(__linux__)
    prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    if (getppid() != parent) _exit(1);
}

/* ---- the child's work ------------------------------------------------------------------------------------- */

typedef struct child {
    const exp_contestant_options *o;
    exp_side *side;
    volatile float sink; // logits are looked at
} child;

enum { WARM_TOKENS = 8 };

static int decode_one(child *c, int pos, dw_err *err) {
    const int32_t token = c->o->ids[(size_t)pos % c->o->n_ids];
    if (exp_side_eval(c->side, &token, 1, pos, 1, err)) return -1;
    const float *logits = exp_side_logits(c->side, 0, err);
    if (!logits) return -1;
    c->sink = logits[0];
    return 0;
}

static int decode(child *c, int n, exp_watch *watch, dw_err *err) {
    for (int pos = 0; pos < WARM_TOKENS; pos++)
        if (decode_one(c, pos, err)) return -1;
    *watch = exp_watch_begin();
    for (int pos = WARM_TOKENS; pos < WARM_TOKENS + n; pos++)
        if (decode_one(c, pos, err)) return -1;
    return 0;
}

static int prefill(child *c, int n, dw_err *err) {
    if (exp_side_eval(c->side, c->o->ids, n, 0, 1, err)) return -1;
    const float *logits = exp_side_logits(c->side, 0, err);
    if (!logits) return -1;
    c->sink = logits[0];
    return 0;
}

static int windows(child *c, int first, int n, double *mean, dw_err *err) {
    double *nll = dw_alloc((size_t)n, sizeof *nll, "windows", err);
    const int rc = nll ? exp_side_windows(c->side, c->o->ids, c->o->n_ctx, c->o->bos, first, n, nll, err) : -1;
    *mean = 0;
    for (int w = 0; !rc && w < n; w++) *mean += nll[w] / n / (c->o->n_ctx - 1 - c->o->n_ctx / 2);
    free(nll);
    return rc;
}

static void obey(child *c, const order *o, reply *r) {
    exp_watch watch = exp_watch_begin();
    switch ((exp_work)o->work) {
    case EXP_DECODE: r->rc = decode(c, o->n, &watch, &r->err); break;
    case EXP_PREFILL: r->rc = prefill(c, o->n, &r->err); break;
    case EXP_PERPLEXITY: r->rc = windows(c, o->first, o->n, &r->lap.nll, &r->err); break;
    case EXP_N_WORKS: break;
    }
    watch = exp_watch_end(&watch);
    r->lap.wall_s = watch.wall_s;
    r->lap.cpu_s = watch.own_cpu_s;
}

static double resident_bytes(void) {
    unsigned long long total, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%llu %llu", &total, &resident) != 2) resident = 0;
    if (f) fclose(f);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static void open_side(child *c, reply *r) {
    exp_side_options side = c->o->side;
    const char *level = NULL;
    const double t0 = dw_now();
    r->rc = -1;
    side.pool = dw_pool_new(c->o->n_threads, &r->err);
    if (!side.pool) return;
    if (c->o->stock_folder) {
        side.stock = stock_open(c->o->stock_folder, &r->err);
        if (!side.stock) return;
        snprintf(r->about, sizeof r->about, "%s %s", stock_version(side.stock), stock_cpu_library(side.stock));
    } else {
        level = dw_cpu_level(&r->err);
        if (!level) return;
        snprintf(r->about, sizeof r->about, "%s", level);
    }
    c->side = exp_side_open(c->o->path, &side, &r->err);
    r->rc = c->side ? 0 : -1;
    r->load_s = dw_now() - t0;
    r->rss_bytes = resident_bytes();
}

static void live(const exp_contestant_options *o, int from_parent, int to_parent) {
    child c = {.o = o};
    reply r = {0};
    order next;
    open_side(&c, &r);
    while (send_all(to_parent, &r, sizeof r) && receive_all(from_parent, &next, sizeof next) && next.work != EXP_N_WORKS) {
        r = (reply){0};
        obey(&c, &next, &r);
    }
    _exit(0); // no destructors: the libraries' threads may still sleep
}

/* ---- the parent's side ---------------------------------------------------------------------------------------- */

int exp_contestant_start(exp_contestant *c, const exp_contestant_options *o, dw_err *err) {
    int down[2] = {-1, -1}, up[2] = {-1, -1};
    *c = (exp_contestant){.pid = -1, .to = -1, .from = -1};
    if (pipe(down) || pipe(up)) return dw_fail(err, "cannot make a pipe: %s", strerror(errno));
    fflush(NULL);
    signal(SIGPIPE, SIG_IGN);
    const pid_t parent = getpid();
    c->pid = fork();
    if (c->pid == 0) {
        end_with_parent(parent);
        close(down[1]);
        close(up[0]);
        live(o, down[0], up[1]);
    }
    close(down[0]);
    close(up[1]);
    c->to = down[1];
    c->from = up[0];
    reply r;
    if (c->pid < 0) return dw_fail(err, "cannot start a process: %s", strerror(errno));
    if (!receive_all(c->from, &r, sizeof r)) return dw_fail(err, "%s ended while loading '%s'", o->stock_folder ? "stock" : "the engine", o->path);
    if (r.rc) return dw_fail(err, "%s", r.err.text);
    c->load_s = r.load_s;
    c->rss_bytes = r.rss_bytes;
    memcpy(c->about, r.about, sizeof c->about);
    return 0;
}

void exp_contestant_stop(exp_contestant *c) {
    /* Said in words: the end of the pipe would not be seen while a later contestant holds a copy of it. */
    if (c->to >= 0) send_all(c->to, &(order){EXP_N_WORKS, 0, 0}, sizeof(order));
    if (c->to >= 0) close(c->to);
    if (c->from >= 0) close(c->from);
    if (c->pid > 0) waitpid(c->pid, NULL, 0);
    *c = (exp_contestant){.pid = -1, .to = -1, .from = -1};
}

int exp_contestant_run(exp_contestant *c, exp_work work, int first, int n, exp_lap *lap, dw_err *err) {
    const order o = {work, first, n};
    reply r;
    if (!send_all(c->to, &o, sizeof o) || !receive_all(c->from, &r, sizeof r))
        return dw_fail(err, "a contestant (%s) ended in the middle of its work", c->about);
    if (r.rc) return dw_fail(err, "%s: %s", c->about, r.err.text);
    *lap = r.lap;
    return 0;
}

/* ---- the crowd -------------------------------------------------------------------------------------------------- */

static void spin(void) {
    for (volatile uint64_t i = 0;; i++) {}
}

int exp_crowd_start(exp_crowd *c, int n, dw_err *err) {
    const pid_t parent = getpid();
    for (c->n = 0; c->n < n && c->n < (int)(sizeof c->pid / sizeof *c->pid); c->n++) {
        const pid_t pid = fork();
        if (pid < 0) return dw_fail(err, "cannot start a busy process: %s", strerror(errno));
        if (pid == 0) {
            end_with_parent(parent);
            raise(SIGSTOP);
            spin();
        }
        c->pid[c->n] = pid;
        waitpid(pid, NULL, WUNTRACED); // until it has stopped
    }
    return 0;
}

void exp_crowd_go(const exp_crowd *c, bool busy) {
    for (int i = 0; i < c->n; i++) kill(c->pid[i], busy ? SIGCONT : SIGSTOP);
}

void exp_crowd_stop(exp_crowd *c) {
    for (int i = 0; i < c->n; i++) {
        kill(c->pid[i], SIGKILL);
        waitpid(c->pid[i], NULL, 0);
    }
    c->n = 0;
}
