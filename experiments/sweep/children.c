/* children.c - starts and waits for child processes. */
#include "experiments/sweep/children.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP};
enum { N_PASSED_ON = sizeof passed_on / sizeof *passed_on };

/* Written while these signals are blocked, read by their handler. */
static volatile pid_t running[CHILDREN_MAX];
static volatile sig_atomic_t received;

static void pass_on(int sig) {
    const int saved = errno;
    received = sig;
    for (int i = 0; i < CHILDREN_MAX; i++)
        if (running[i]) kill(running[i], sig);
    errno = saved;
}

static void wake(int sig) { (void)sig; } // ends a pselect

void children_on_signals(void) {
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL); // it comes only while a pselect waits
    sigaction(SIGCHLD, &(struct sigaction){.sa_handler = wake}, NULL);
    for (int i = 0; i < N_PASSED_ON; i++) {
        struct sigaction old, act = {.sa_handler = pass_on};
        if (sigaction(passed_on[i], NULL, &old) || old.sa_handler == SIG_IGN) continue; // nohup
        sigaction(passed_on[i], &act, NULL);
    }
}

int children_signal(void) { return received; }

void children_end_by(int sig) {
    signal(sig, SIG_DFL);
    raise(sig);
}

static void block(sigset_t *old) {
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < N_PASSED_ON; i++) sigaddset(&set, passed_on[i]);
    sigprocmask(SIG_BLOCK, &set, old);
}

static void replace(pid_t from, pid_t to) {
    for (int i = 0; i < CHILDREN_MAX; i++) {
        if (running[i] != from) continue;
        running[i] = to;
        return;
    }
}

/* In the child: a signal that came since the fork ends it here.  `to` are its streams 1 and 2. */
static void become(const char *program, char *const *argv, const int to[2], pid_t parent, const sigset_t *mask) {
    for (int i = 0; i < N_PASSED_ON; i++) {
        struct sigaction old;
        if (!sigaction(passed_on[i], NULL, &old) && old.sa_handler == pass_on) signal(passed_on[i], SIG_DFL);
    }
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    if (getppid() != parent) _exit(127); // it died before
    const int nothing = open("/dev/null", O_RDONLY);
    if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(to[0], 1) < 0 || dup2(to[1], 2) < 0) _exit(127);
    if (nothing > 2) close(nothing);
    sigset_t own = *mask;
    sigdelset(&own, SIGCHLD);
    sigprocmask(SIG_SETMASK, &own, NULL);
    execv(program, argv);
    dprintf(2, "cannot run '%s': %s\n", program, strerror(errno));
    _exit(127);
}

/* A child that signals reach, also one that came before it: the caller may have looked for signals a little earlier. */
static pid_t start(const char *program, char *const *argv, const int to[2], dw_err *err) {
    sigset_t old;
    block(&old);
    const pid_t self = getpid(), pid = fork();
    if (!pid) become(program, argv, to, self, &old);
    if (pid > 0) {
        replace(0, pid);
        if (received) kill(pid, received);
    } else {
        dw_fail(err, "cannot start '%s': %s", program, strerror(errno));
    }
    sigprocmask(SIG_SETMASK, &old, NULL);
    return pid;
}

pid_t children_start(const char *program, char *const *argv, const char *log, const char *heading, dw_err *err) {
    const int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
    if (fd < 0 || dprintf(fd, "%s\n", heading) < 0) {
        dw_fail(err, "cannot write '%s': %s", log, strerror(errno));
        if (fd >= 0) close(fd);
        return -1;
    }
    const pid_t pid = start(program, argv, (const int[2]){fd, fd}, err);
    close(fd);
    return pid;
}

pid_t children_start_here(const char *program, char *const *argv, int out, dw_err *err) {
    return start(program, argv, (const int[2]){out, 2}, err);
}

void children_nap(double seconds) {
    if (!(seconds > 0)) return;
    const struct timespec time = {.tv_sec = (time_t)seconds,
                                  .tv_nsec = (long)(1e9 * (seconds - (double)(time_t)seconds))};
    sigset_t mask;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    sigdelset(&mask, SIGCHLD);
    pselect(0, NULL, NULL, NULL, &time, &mask);
}

int children_wait(child_end *end, double seconds) {
    struct rusage usage;
    *end = (child_end){0};
    for (const double until = dw_now() + seconds;; children_nap(until - dw_now())) {
        end->pid = wait4(-1, &end->status, WNOHANG, &usage);
        if (end->pid > 0) break;
        if (end->pid < 0 && errno != EINTR) return -1;
        if (dw_now() >= until) return 1;
    }
    sigset_t old;
    block(&old);
    replace(end->pid, 0);
    sigprocmask(SIG_SETMASK, &old, NULL);
    end->cpu_seconds = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                       1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    end->peak_bytes = 1024.0 * (double)usage.ru_maxrss;
    return 0;
}

static int read_all(int fd, char **said, dw_err *err) {
    char buffer[4096];
    *said = dw_strdup("", err);
    for (ssize_t n; *said && (n = read(fd, buffer, sizeof buffer)) != 0;) {
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) break;
        if (dw_append(said, err, "%.*s", (int)n, buffer)) return -1;
    }
    return *said ? 0 : -1;
}

int children_ask(const char *program, char *const *argv, char **said, dw_err *err) {
    int ends[2], status = -1;
    *said = NULL;
    if (pipe2(ends, O_CLOEXEC)) return dw_fail(err, "cannot start '%s': %s", program, strerror(errno));
    const pid_t self = getpid(), pid = fork();
    sigset_t mask;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    if (!pid) become(program, argv, (const int[2]){ends[1], ends[1]}, self, &mask);
    close(ends[1]);
    const int rc = pid < 0 ? dw_fail(err, "cannot start '%s': %s", program, strerror(errno))
                           : read_all(ends[0], said, err);
    close(ends[0]);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    return rc ? -1 : status;
}
