/* test_mutants.c - what reads files from elsewhere ends with a result or one line of error, whatever the file holds.
 *
 * Each mutant goes through eight programs (inspect twice), each in a process with limits.  A finding is a signal, ten
 * seconds, an exit status other than 0, 1 and 2, a report of a sanitizer, or an error of more than one line.  DW_MUTANT=N
 * tries mutant N alone. */
#include "tests/mutate.h"
#include "tests/test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS = 10, N_SHORT = 15, N_SLOW = 1250, WORDS = 24 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool has_sanitizer = true; // reserves terabytes
#else
static const bool has_sanitizer = false;
#endif

static const struct {
    const char *shape, *type;
} parents[] = {{"tiny-llama", "F16"}, {"tiny-llama", "Q4_0"}, {"tiny-llama", "F32"}};

/* MODEL, TEXT, PLAN, STATS and OUT stand for paths. */
static const char *const commands[] = {
    "inspect MODEL --lineage",
    "inspect MODEL",
    "score -m MODEL -f TEXT -c 64 --windows 1 --no-speed --per-layer -t 1 -q",
    "generate -m MODEL -p a -n 2 -c 32 -t 1 -q",
    "cut -m MODEL -p PLAN -o OUT -t 1 -q",
    "rank -m MODEL --metric weight --rate 0.5 -o OUT -t 1 -q",
    "requant -m MODEL --type Q8_0 --lossy-twice -o OUT -t 1 -q",
    "collect -m MODEL -f TEXT -c 64 -o OUT -t 1 -q",
    "gate -m MODEL -s STATS --rule cats --activity 0.5 -o OUT -t 1 -q",
};

static const char *path_of(const char *word, const char *model) {
    if (!strcmp(word, "MODEL")) return model;
    if (!strcmp(word, "TEXT")) return test_file("text");
    if (!strcmp(word, "PLAN")) return test_file("plan");
    if (!strcmp(word, "STATS")) return test_file("stats.h5");
    return strcmp(word, "OUT") ? word : test_file("out");
}

static void start(const char *command, const char *model, const char *folder) {
    char words[256], program[600], *argv[WORDS + 1], *rest = words;
    int n = 0;
    snprintf(words, sizeof words, "%s", command);
    for (char *word; (word = strtok_r(rest, " ", &rest)) && n < WORDS;)
        argv[n++] = (char *)(uintptr_t)path_of(word, model);
    argv[n] = NULL;
    snprintf(program, sizeof program, "%s/deadwood-%s", folder, argv[0]);
    const int null = open("/dev/null", O_RDWR), err = open(test_file("err"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(null, 0), dup2(null, 1), dup2(err, 2);
    if (!has_sanitizer) setrlimit(RLIMIT_AS, &(struct rlimit){(rlim_t)2 << 30, (rlim_t)2 << 30});
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    alarm(SECONDS);
    execv(program, argv);
    _exit(127);
}

/* Lines of an error; warnings are none. */
static int error_lines(const char *text) {
    int n = 0;
    for (const char *end; (end = strchr(text, '\n')); text = end + 1) {
        const char *warning = strstr(text, ": warning: ");
        n += !warning || warning > end;
    }
    return n;
}

/* What is wrong with how a program ended, or NULL. */
static const char *finding(int status, const char *text) {
    if (WIFSIGNALED(status)) return WTERMSIG(status) == SIGALRM ? "it takes ten seconds" : "a signal";
    if (WEXITSTATUS(status) > 2) return "exit status";
    if (strstr(text, "Sanitizer") || strstr(text, "runtime error")) return "a sanitizer";
    if (WEXITSTATUS(status) && error_lines(text) != 1) return "not one line of error";
    return NULL;
}

static void try_program(const char *command, const char *model, const char *folder, const char *what) {
    const pid_t pid = fork();
    if (!pid) start(command, model, folder);
    int status = 0;
    size_t size;
    if (!CHECK(pid > 0 && waitpid(pid, &status, 0) == pid)) return;
    char *text = dw_read_file(test_file("err"), 1 << 20, &size, NULL);
    const char *why = finding(status, text ? text : "");
    CHECK(!why, "%s: %s (%#x): %s: %.300s", command, why, (unsigned)status, what, text ? text : "");
    free(text);
}

static void write_text(const char *path, const char *begin, const char *line, int n) {
    FILE *f = fopen(path, "w");
    fputs(begin, f);
    for (int i = 0; i < n; i++) fprintf(f, line, i);
    fclose(f);
}

static void mutants(void) {
    char folder[512];
    const ssize_t len = readlink("/proc/self/exe", folder, sizeof folder - 1);
    REQUIRE(len > 0);
    folder[len] = 0;
    *strrchr(folder, '/') = 0;
    setenv("ASAN_OPTIONS", "exitcode=99:allocator_may_return_null=1", 0);
    write_text(test_file("text"), "", "word %d of a text; ", 200);
    write_text(test_file("plan"), "# deadwood plan 1\nlayer width keep\n", "%d 32 0-31\n", 4);
    const char *model = random_model(parents[0].shape, parents[0].type, 0);
    CHECK(!test_run("deadwood-collect -m %s -f %s -c 64 -o %s -q", model, test_file("text"), test_file("stats.h5")), "%s",
          test_run_output());
    const char *one = getenv("DW_MUTANT");
    const uint64_t first = one ? strtoull(one, NULL, 10) : 0, n = one ? 1 : test_slow() ? N_SLOW : N_SHORT;
    for (uint64_t i = first; i < first + n; i++) {
        char what[400];
        const size_t p = i % (sizeof parents / sizeof *parents);
        snprintf(what, sizeof what, "mutant %llu, %s", (unsigned long long)i,
                 mutate_gguf(random_model(parents[p].shape, parents[p].type, 0), test_file("mutant.gguf"), i));
        for (size_t c = 0; c < sizeof commands / sizeof *commands; c++)
            try_program(commands[c], test_file("mutant.gguf"), folder, what);
    }
}

static const test_case cases[] = {
    {"mutants of models end in a result or in one line of error, in eight programs", mutants},
    {0}};
TEST_MAIN(cases)
