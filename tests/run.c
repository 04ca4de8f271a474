/* run.c - runs test programs and command-line cases, two at a time, and counts.
 *
 *     build/run BUILD ONLY TEST-PROGRAM...
 *
 * A test program prints a line for each failed or skipped case and at last "... N passed, N failed, N skipped"
 * (test.h).  A command-line case is tests/cli/PROGRAM/CASE.sh, run by bash -eu in a fresh folder with BUILD in front of
 * PATH; $ROOT is the source tree, $DW_SHARED the shared material.  Beside it, where present: CASE.out and CASE.err (the
 * whole stdout and stderr), CASE.exit (the exit status, else 0).  Exit status 77 is a skip; its last line says why.
 * Output comes in order; ONLY restricts to names that contain it.  DW_SLOW raises the limit of time for one program.
 * The last line is "N passed, N failed" (and ", N skipped").  Exit status 1 when anything failed or nothing ran. */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { AT_ONCE = 2, SKIP_STATUS = 77, SHOWN_BYTES = 20000 };

typedef struct job {
    const char *path; // program or script
    char name[128];   // "test_base", "cli convert/mini"
    bool is_script;
    char folder[PATH_MAX]; // holds out, err and the script's own folder `here`
    pid_t pid;             // 0: not started
    double began, seconds;
    bool ended, too_long;
    int status;
} job;

static char root[PATH_MAX], build[PATH_MAX];
static volatile pid_t running[AT_ONCE]; // process groups
static int n_passed, n_failed, n_skipped;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void stop(const char *what) {
    fprintf(stderr, "run: %s: %s\n", what, strerror(errno));
    exit(1);
}

static const char *beside(const job *j, const char *name) { return test_path(j->folder, name); }

/* "tests/cli/convert/mini.sh" with its ending replaced. */
static const char *expected(const job *j, const char *ending) {
    char stem[PATH_MAX];
    snprintf(stem, sizeof stem, "%.*s", (int)strlen(j->path) - 3, j->path);
    static char buffer[PATH_MAX + 8];
    snprintf(buffer, sizeof buffer, "%s%s", stem, ending);
    return buffer;
}

/* An interrupted run takes its programs along. */
static void end_by_signal(int sig) {
    for (int i = 0; i < AT_ONCE; i++)
        if (running[i]) kill(-running[i], SIGKILL);
    signal(sig, SIG_DFL);
    raise(sig);
}

/* Replaces one process in the list of those that run; 0 is an empty place. */
static void replace_running(pid_t old, pid_t new) {
    for (int i = 0; i < AT_ONCE; i++) {
        if (running[i] != old) continue;
        running[i] = new;
        return;
    }
}

/* ---- running ------------------------------------------------------------------------------------------------ */

static void redirect(const char *path, int flags, int to) {
    const int fd = open(path, flags, 0666);
    if (fd < 0 || dup2(fd, to) < 0) _exit(126);
}

static void start(job *j, int number) {
    snprintf(j->folder, sizeof j->folder, "%s/%d", test_folder(), number);
    if (mkdir(j->folder, 0777) || mkdir(beside(j, "here"), 0777)) stop(j->folder);
    j->began = now();
    fflush(stdout);
    j->pid = fork();
    if (j->pid < 0) stop("fork");
    if (j->pid) {
        setpgid(j->pid, j->pid);
        replace_running(0, j->pid);
        return;
    }
    setpgid(0, 0);
    redirect("/dev/null", O_RDONLY, 0);
    redirect(beside(j, "out"), O_WRONLY | O_CREAT | O_TRUNC, 1);
    if (j->is_script)
        redirect(beside(j, "err"), O_WRONLY | O_CREAT | O_TRUNC, 2);
    else
        dup2(1, 2);
    if (!j->is_script)
        execl(j->path, j->path, (char *)NULL);
    else if (!chdir(beside(j, "here")))
        execlp("bash", "bash", "-eu", j->path, (char *)NULL);
    _exit(127);
}

/* Waits for one of the running jobs to end, ending those that take too long. */
static void wait_for_one(job *jobs, int n, double limit) {
    for (;;) {
        int status;
        const pid_t pid = waitpid(-1, &status, WNOHANG);
        for (int i = 0; i < n; i++) {
            job *j = &jobs[i];
            if (!j->pid || j->ended) continue;
            if (j->pid == pid) {
                j->ended = true;
                j->status = status;
                j->seconds = now() - j->began;
                kill(-j->pid, SIGKILL); // what it may have left running
                replace_running(j->pid, 0);
                return;
            }
            if (now() - j->began > limit && !j->too_long) {
                j->too_long = true;
                kill(-j->pid, SIGKILL);
            }
        }
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
}

/* ---- reporting ---------------------------------------------------------------------------------------------- */

/* A file's text with a NUL; "" when it cannot be read.  Long ones keep their end.  free(). */
static char *text_of(const char *path) {
    char *text = calloc(1, SHOWN_BYTES + 1);
    FILE *f = fopen(path, "rb");
    if (f) {
        if (fseek(f, -SHOWN_BYTES, SEEK_END)) rewind(f);
        text[fread(text, 1, SHOWN_BYTES, f)] = 0;
        fclose(f);
    }
    return text;
}

static const char *last_line(char *text) {
    size_t n = strlen(text);
    while (n && text[n - 1] == '\n') text[--n] = 0;
    const char *end = strrchr(text, '\n');
    return end ? end + 1 : text;
}

static void describe_end(const job *j, char *text, size_t size) {
    if (j->too_long)
        snprintf(text, size, "took longer than %.0f s", j->seconds);
    else if (WIFSIGNALED(j->status))
        snprintf(text, size, "ended by signal %d", WTERMSIG(j->status));
    else
        snprintf(text, size, "exit status %d", WEXITSTATUS(j->status));
}

static void report_program(const job *j) {
    char *text = text_of(beside(j, "out")), end[64];
    fputs(text, stdout);
    const char *line = last_line(text), *counts = strstr(line, " passed, ");
    while (counts && counts > line && counts[-1] >= '0' && counts[-1] <= '9') counts--;
    int passed = 0, failed = 0, skipped = 0;
    const bool counted = counts && sscanf(counts, "%d passed, %d failed, %d skipped", &passed, &failed, &skipped) == 3;
    const bool honest = counted && WIFEXITED(j->status) && WEXITSTATUS(j->status) == (failed ? 1 : 0);
    if (!honest) {
        describe_end(j, end, sizeof end);
        printf("%sFAIL  %s: %s%s\n", counted || !*line ? "" : "\n", j->name, end,
               counted ? "" : ", without counting its cases");
    }
    n_passed += passed;
    n_failed += failed + !honest;
    n_skipped += skipped;
    free(text);
}

/* Compares a stream with what is expected of it; without such a file everything is right. */
static bool is_expected(const job *j, const char *stream, const char *ending) {
    char command[3 * PATH_MAX];
    const char *wanted = expected(j, ending);
    if (access(wanted, R_OK)) return true;
    snprintf(command, sizeof command,
             "diff -u --label expected --label '%s' '%s' '%s' | head -n 40; exit ${PIPESTATUS[0]}", stream, wanted,
             beside(j, stream));
    fflush(stdout);
    const pid_t pid = fork();
    int status = 1;
    if (!pid) {
        execlp("bash", "bash", "-c", command, (char *)NULL);
        _exit(127);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    return status == 0;
}

static void report_script(const job *j) {
    char *out = text_of(beside(j, "out")), *err = text_of(beside(j, "err")), end[64];
    char *wanted_text = text_of(expected(j, ".exit"));
    const int wanted = atoi(wanted_text);
    describe_end(j, end, sizeof end);
    if (WIFEXITED(j->status) && WEXITSTATUS(j->status) == SKIP_STATUS) {
        n_skipped++;
        printf("SKIP  %s: %s\n", j->name, *err ? last_line(err) : last_line(out));
    } else if (j->too_long || !WIFEXITED(j->status) || WEXITSTATUS(j->status) != wanted) {
        n_failed++;
        printf("FAIL  %s: %s, expected %d\n%s%s", j->name, end, wanted, out, err);
    } else {
        const bool out_ok = is_expected(j, "out", ".out"), err_ok = is_expected(j, "err", ".err");
        const bool ok = out_ok && err_ok;
        if (ok)
            n_passed++;
        else
            n_failed++;
        printf("%s%s  %.0f ms\n", ok ? "" : "FAIL  ", j->name, 1e3 * j->seconds);
    }
    free(out);
    free(err);
    free(wanted_text);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static void report(const job *j) {
    if (j->is_script)
        report_script(j);
    else
        report_program(j);
    nftw(j->folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    fflush(stdout);
}

/* ---- */

static int add_jobs(job *jobs, int n, char **paths, size_t n_paths, bool is_script, const char *only) {
    for (size_t i = 0; i < n_paths; i++) {
        job *j = &jobs[n];
        *j = (job){.path = paths[i], .is_script = is_script};
        const char *slash = strrchr(paths[i], '/');
        if (is_script) {
            const char *name = strstr(paths[i], "/cli/") + 5;
            snprintf(j->name, sizeof j->name, "cli %.*s", (int)strlen(name) - 3, name);
        } else {
            snprintf(j->name, sizeof j->name, "%s", slash ? slash + 1 : paths[i]);
        }
        if (strstr(j->name, only)) n++;
    }
    return n;
}

/* What the cases see: absolute names, BUILD on PATH, plain messages. */
static void prepare_environment(const char *build_name) {
    char path[3 * PATH_MAX], shared[PATH_MAX + 16], real[PATH_MAX];
    if (!getcwd(root, sizeof root) || !realpath(build_name, build)) stop(build_name);
    const char *old = getenv("PATH");
    snprintf(path, sizeof path, "%s:%s", build, old ? old : "/usr/bin:/bin");
    snprintf(shared, sizeof shared, "%s/../shared", root);
    setenv("PATH", path, 1);
    setenv("ROOT", root, 1);
    setenv("BUILD", build, 1);
    setenv("LC_ALL", "C", 1);
    setenv("XDG_CACHE_HOME", test_path(test_folder(), "cache"), 1);
    unsetenv("MAKEFLAGS");
    setenv("DW_SHARED", realpath(shared, real) ? real : shared, 0);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: run BUILD ONLY TEST-PROGRAM...\n");
        return 2;
    }
    prepare_environment(argv[1]);
    signal(SIGINT, end_by_signal);
    signal(SIGTERM, end_by_signal);
    glob_t scripts = {0};
    char pattern[PATH_MAX + 32];
    snprintf(pattern, sizeof pattern, "%s/tests/cli/*/*.sh", root);
    glob(pattern, 0, NULL, &scripts);
    const size_t n_most = (size_t)argc + scripts.gl_pathc;
    job *jobs = calloc(n_most, sizeof *jobs);
    if (!jobs) stop("jobs");
    int n = add_jobs(jobs, 0, argv + 3, (size_t)argc - 3, false, argv[2]);
    n = add_jobs(jobs, n, scripts.gl_pathv, scripts.gl_pathc, true, argv[2]);

    const char *given = getenv("DW_TEST_SECONDS");
    const char *san = getenv("SAN"); // a sanitizer makes programs several times slower
    const double limit = given ? atof(given) : getenv("DW_SLOW") ? 7200 : san && *san ? 1500 : 300;
    for (int started = 0, reported = 0, ended = 0; reported < n;) {
        while (started < n && started - ended < AT_ONCE) {
            start(&jobs[started], started);
            started++;
        }
        wait_for_one(jobs, started, limit);
        ended++;
        for (; reported < started && jobs[reported].ended; reported++) report(&jobs[reported]);
    }
    printf("%d passed, %d failed", n_passed, n_failed);
    if (n_skipped) printf(", %d skipped", n_skipped);
    printf("\n");
    free(jobs);
    globfree(&scripts);
    return n_failed || !n_passed ? 1 : 0;
}
