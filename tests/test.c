/* test.c - runs the cases of one test program and counts. */
#include "test.h"

#include <ftw.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *sentence;
static int n_failed_checks;
static bool skipped;

bool test_check(bool ok, const char *file, int line, const char *expression, const char *format, ...) {
    if (ok) return true;
    n_failed_checks++;
    const char *slash = strrchr(file, '/');
    printf("FAIL  %s  %s:%d  %s", sentence, slash ? slash + 1 : file, line, expression);
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    return false;
}

void test_skip(const char *format, ...) {
    skipped = true;
    printf("SKIP  %s: ", sentence);
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
}

const char *test_path(const char *folder, const char *name) {
    static char buffers[16][1024];
    static int next;
    char *b = buffers[next++ % 16];
    snprintf(b, sizeof buffers[0], "%s/%s", folder, name);
    return b;
}

const char *test_shared(void) {
    const char *folder = getenv("DW_SHARED");
    if (!folder) folder = "../shared";
    return access(test_path(folder, "reference-model"), R_OK) ? NULL : folder;
}

static char folder_name[64];

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static void remove_folder(void) { nftw(folder_name, remove_entry, 16, FTW_DEPTH | FTW_PHYS); }

const char *test_folder(void) {
    if (!folder_name[0]) {
        const char *base = getenv("TMPDIR");
        snprintf(folder_name, sizeof folder_name, "%s/deadwood-test-XXXXXX", base && strlen(base) < 32 ? base : "/tmp");
        if (!mkdtemp(folder_name)) {
            perror("mkdtemp");
            exit(1);
        }
        atexit(remove_folder);
    }
    return folder_name;
}

const char *test_file(const char *name) {
    static char path[256][256];
    char wanted[256];
    size_t i = 0;
    snprintf(wanted, sizeof wanted, "%s/%s", test_folder(), name);
    while (path[i][0] && strcmp(path[i], wanted)) i++;
    if (i + 1 == sizeof path / sizeof *path) abort(); // a test with more files needs a longer table
    return strcpy(path[i], wanted);
}

bool test_slow(void) {
    const char *slow = getenv("DW_SLOW");
    return slow && *slow && strcmp(slow, "0") != 0;
}

static void put_own_folder_on_path(void) {
    char own[1024], path[8192];
    const ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    if (n < 0) return;
    own[n] = 0;
    *strrchr(own, '/') = 0;
    snprintf(path, sizeof path, "%s:%s", own, getenv("PATH"));
    setenv("PATH", path, 1);
}

int test_run(const char *format, ...) {
    static bool path_is_set;
    if (!path_is_set) put_own_folder_on_path();
    path_is_set = true;
    char command[8192], line[10240];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    snprintf(line, sizeof line, "{ %s ; } >%s/log 2>&1 </dev/null", command, test_folder());
    const int status = system(line);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void test_again_with_names(const char *words, const char *faults) {
    const char *san = getenv("SAN"); // make sets it, empty without a sanitizer
    if (san && *san) SKIP("no preloading under sanitizers");
    const int status = test_run(
        "own=$(readlink /proc/%ld/exe) && FAULT_NO_TMPFILE=1 %s LD_PRELOAD=$(dirname $own)/faults.so "
        "$own '%s'",
        (long)getpid(), faults, words);
    CHECK(!status, "%s", test_run_output());
}

const char *test_run_output(void) {
    static char text[65536];
    FILE *f = fopen(test_path(test_folder(), "log"), "r");
    const size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    text[n] = 0;
    if (f) fclose(f);
    return text;
}

int test_main(const test_case *cases, const char *file, int argc, char **argv) {
    const char *only = argc > 1 ? argv[1] : "";
    setenv("XDG_CACHE_HOME", test_path(test_folder(), "cache"), 1); // the user's own stays as it is
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(only, "--list")) {
        for (const test_case *c = cases; c->sentence; c++) printf("%s\n", c->sentence);
        return 0;
    }
    int n_passed = 0, n_failed = 0, n_skipped = 0;
    struct timespec t0, t1;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    for (const test_case *c = cases; c->sentence; c++) {
        if (!strstr(c->sentence, only)) continue;
        sentence = c->sentence;
        n_failed_checks = 0;
        skipped = false;
        c->run();
        if (n_failed_checks) n_failed++;
        else if (skipped) n_skipped++;
        else n_passed++;
    }
    clock_gettime(CLOCK_MONOTONIC, &t1);
    const char *slash = strrchr(file, '/'), *base = slash ? slash + 1 : file;
    printf("%-24.*s %d passed, %d failed, %d skipped  %.0f ms\n", (int)strcspn(base, "."), base, n_passed, n_failed,
           n_skipped, 1e3 * (double)(t1.tv_sec - t0.tv_sec) + 1e-6 * (double)(t1.tv_nsec - t0.tv_nsec));
    return n_failed ? 1 : 0;
}
