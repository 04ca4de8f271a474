/* child.c - starts and ends a child, and moves bytes between it and its parent. */
#include "experiments/child.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

int exp_child_start(exp_child *c, void (*live)(const void *ctx, int line), const void *ctx, dw_err *err) {
    int line[2];
    *c = (exp_child){0};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, line))
        return dw_fail(err, "cannot make a socket to a child process: %s", strerror(errno));
    const pid_t parent = getpid(), pid = fork();
    if (!pid) {
#ifdef __linux__
        prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
        close(line[0]);
        if (getppid() == parent) live(ctx, line[1]);
        _exit(0); // no destructors: threads of libraries may still sleep
    }
    close(line[1]);
    if (pid > 0) {
        *c = (exp_child){pid, line[0]};
        return 0;
    }
    dw_fail(err, "cannot start a child process: %s", strerror(errno));
    close(line[0]);
    return -1;
}

void exp_child_stop(exp_child *c) {
    if (!c->pid) return;
    close(c->line);
    kill(c->pid, SIGKILL);
    waitpid(c->pid, NULL, 0);
    *c = (exp_child){0};
}

bool exp_send(int line, const void *data, size_t size) {
    for (const char *at = data; size;) {
        const ssize_t n = send(line, at, size, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        size -= (size_t)n;
    }
    return true;
}

bool exp_receive(int line, void *data, size_t size) {
    for (char *at = data; size;) {
        const ssize_t n = recv(line, at, size, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        size -= (size_t)n;
    }
    return true;
}
