/* test_mutants.c - what reads files from elsewhere ends with a result or one line of error, whatever the file holds.
 *
 * Three readers: models (GGUF), statistics (HDF5) and stored bases.  A case is one run of one program with one
 * mutant; each mutant goes through all command lines of its reader, each in a process with limits of time and
 * memory.  A finding is a signal, ten seconds of CPU time, an exit status other than 0, 1 and 2, a report of a
 * sanitizer, or an error of more than one line.
 *
 * DW_SLOW makes 10,000 mutants a reader.  They take hours, so DW_SHARD=K/N tries the K-th of N equal parts of them
 * (1/4 .. 4/4), and parts may run at the same time.  DW_MUTANT=N tries mutant N alone. */
#include "tests/mutate.h"
#include "tests/test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS = 10, WORDS = 24, MAX_COMMANDS = 10 };

/* Mutants of each reader in make test, and with DW_SLOW. */
enum { N_MODELS = 15, N_STATS = 15, N_BASES = 25, N_SLOW = 10000 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool has_sanitizer = true; // reserves terabytes
#else
static const bool has_sanitizer = false;
#endif

/* What the words in capitals stand for. */
static const char *path_of(const char *word) {
    static const char *const paths[][2] = {{"TEXT", "text"}, {"OTHER", "other"}, {"PLAN", "plan"},
                                           {"STATS", "stats.h5"}, {"BASE", "base"}, {"MUTANT", "mutant"},
                                           {"OUT", "out"}, {"KEPT", "kept"}};
    if (!strcmp(word, "MODEL")) return random_model("tiny-llama", "F16", 0);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (!strcmp(word, paths[i][0])) return test_file(paths[i][1]);
    return word;
}

static void start(const char *command, const char *folder) {
    char words[256], program[600], *argv[WORDS + 1], *rest = words;
    int n = 0;
    snprintf(words, sizeof words, "%s", command);
    for (char *word; (word = strtok_r(rest, " ", &rest)) && n < WORDS;)
        argv[n++] = (char *)(uintptr_t)path_of(word);
    argv[n] = NULL;
    snprintf(program, sizeof program, "%s/deadwood-%s", folder, argv[0]);
    const int null = open("/dev/null", O_RDWR), err = open(test_file("err"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(null, 0), dup2(null, 1), dup2(err, 2);
    if (!has_sanitizer) setrlimit(RLIMIT_AS, &(struct rlimit){(rlim_t)2 << 30, (rlim_t)2 << 30});
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    alarm(60 * SECONDS); // for one that waits for ever; a busy machine makes the others wait, too
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

/* A sanitizer's programs have four times as long for HDF5, too. */
static bool took_too_long(const struct rusage *used) {
    const double seconds = (double)(used->ru_utime.tv_sec + used->ru_stime.tv_sec) +
                           1e-6 * (double)(used->ru_utime.tv_usec + used->ru_stime.tv_usec);
    return seconds > (has_sanitizer ? 4 * SECONDS : SECONDS);
}

/* What is wrong with how a program ended, or NULL.  `used` is by the program and the processes that it waited for. */
static const char *finding(int status, const struct rusage *used, const char *text) {
    if (took_too_long(used)) return "it takes too long";
    if (WIFSIGNALED(status)) return WTERMSIG(status) == SIGALRM ? "it takes too long" : "a signal";
    if (WEXITSTATUS(status) > 2) return "exit status";
    if (strstr(text, "Sanitizer") || strstr(text, "runtime error")) return "a sanitizer";
    if (WEXITSTATUS(status) && error_lines(text) != 1) return "not one line of error";
    return NULL;
}

static void try_program(const char *command, const char *folder, const char *what) {
    unlink(test_file("out")); // a mutant's cases do not depend on those before
    const pid_t pid = fork();
    if (!pid) start(command, folder);
    int status = 0;
    size_t size;
    struct rusage used = {0};
    if (!CHECK(pid > 0 && wait4(pid, &status, 0, &used) == pid)) return;
    char *text = dw_read_file(test_file("err"), 1 << 20, &size, NULL);
    const char *why = finding(status, &used, text ? text : "");
    CHECK(!why, "%s: %s (%#x): %s: %.300s", command, why, (unsigned)status, what, text ? text : "");
    free(text);
}

static void write_text(const char *path, const char *begin, const char *line, int n) {
    FILE *f = fopen(path, "w");
    fputs(begin, f);
    for (int i = 0; i < n; i++) fprintf(f, line, i);
    fclose(f);
}

typedef struct reader {
    const char *(*mutate)(const char *parent, const char *path, uint64_t seed);
    const char *const parents[4];
    const char *const commands[MAX_COMMANDS + 1];
    uint64_t n; // mutants in make test
} reader;

/* The mutants first, first + step, .. that are below end. */
typedef struct part {
    uint64_t first, end, step;
} part;

/* False: DW_SHARD is no K/N. */
static bool part_of(uint64_t n, part *mine) {
    const char *one = getenv("DW_MUTANT"), *shard = getenv("DW_SHARD");
    unsigned k = 1, of = 1;
    if (shard && (sscanf(shard, "%u/%u", &k, &of) != 2 || k < 1 || k > of)) return false;
    *mine = (part){k - 1, n, of};
    if (one) mine->first = strtoull(one, NULL, 10), mine->end = mine->first + 1;
    return true;
}

/* Mutants of a reader's parents in turn, each through all of its commands. */
static void try_mutants(const reader *r) {
    char folder[512];
    const ssize_t len = readlink("/proc/self/exe", folder, sizeof folder - 1);
    REQUIRE(len > 0);
    folder[len] = 0;
    *strrchr(folder, '/') = 0;
    setenv("ASAN_OPTIONS", "exitcode=99:allocator_may_return_null=1", 0);
    size_t n_parents = 0;
    while (r->parents[n_parents]) n_parents++;
    part mine = {0};
    REQUIRE(part_of(test_slow() ? N_SLOW : r->n, &mine), "DW_SHARD='%s': give K/N, like 1/4", getenv("DW_SHARD"));
    for (uint64_t i = mine.first; i < mine.end; i += mine.step) {
        char what[400];
        snprintf(what, sizeof what, "mutant %llu, %s", (unsigned long long)i,
                 r->mutate(r->parents[i % n_parents], test_file("mutant"), i));
        for (const char *const *command = r->commands; *command; command++) {
            if (strstr(*command, "KEPT")) rename(test_file("mutant"), test_file("kept.part"));
            try_program(*command, folder, what);
        }
    }
}

static void write_inputs(void) {
    write_text(test_file("text"), "", "word %d of a text; ", 200);
    write_text(test_file("other"), "", "line %d of another one. ", 200);
    write_text(test_file("plan"), "# deadwood plan 1\nlayer width keep\n", "%d 32 0-31\n", 4);
    const char *model = random_model("tiny-llama", "F16", 0), *text = test_file("text"), *other = test_file("other");
    CHECK(!test_run("deadwood-collect -m %s -f %s -c 64 --windows 1-3 --text-windows 1 -o %s -q", model, text,
                    test_file("stats.h5")), "%s", test_run_output());
    CHECK(!test_run("deadwood-score -m %s -f %s %s -c 64 --windows 1-10 --no-speed -q --store %s", model, text, other,
                    test_file("base")), "%s", test_run_output());
}

static void models(void) {
    write_inputs();
    try_mutants(&(reader){
        mutate_gguf,
        {random_model("tiny-llama", "F16", 0), random_model("tiny-llama", "Q4_0", 0),
         random_model("tiny-llama", "F32", 0)},
        {"inspect MUTANT --lineage", "inspect MUTANT",
         "score -m MUTANT -f TEXT -c 64 --windows 1 --no-speed --per-layer -t 1 -q",
         "generate -m MUTANT -p a -n 2 -c 32 -t 1 -q",
         "cut -m MUTANT -p PLAN -o OUT -t 1 -q",
         "rank -m MUTANT --metric weight --rate 0.5 -o OUT -t 1 -q",
         "requant -m MUTANT --type Q8_0 --lossy-twice -o OUT -t 1 -q",
         "collect -m MUTANT -f TEXT -c 64 -o OUT -t 1 -q",
         "gate -m MUTANT -s STATS --rule cats --activity 0.5 -o OUT -t 1 -q"},
        N_MODELS});
}

/* The last one goes on with statistics that were kept of a run that ended. */
static void statistics(void) {
    write_inputs();
    try_mutants(&(reader){
        mutate_stats, {test_file("stats.h5")},
        {"inspect MUTANT",
         "rank -m MODEL -s MUTANT --metric flap --allocate global --drop-layers 1 --rate 0.5 -o OUT -t 1 -q",
         "rank -m MODEL -s MUTANT --compare --rate 0.25 -t 1 -q",
         "gate -m MODEL -s MUTANT --rule cats --activity 0.5 -o OUT -t 1 -q",
         "gate -m MODEL -s MUTANT --rule group-max --group 64 --activity 0.5 -o OUT -t 1 -q",
         "requant -m MODEL --type Q4_0 -s MUTANT -o OUT -t 1 -q",
         "requant -m MODEL --cold-rate 0.5 --cold-type Q4_0 -s MUTANT -o OUT -t 1 -q",
         "collect -m MODEL -s MUTANT -f TEXT -c 64 --windows 4-5 -o OUT -t 1 -q",
         "collect -m MODEL -f TEXT -c 64 --windows 1-3 --text-windows 1 -o KEPT -t 1 -q"},
        N_STATS});
}

static void stored_bases(void) {
    write_inputs();
    try_mutants(&(reader){
        mutate_base, {test_file("base")},
        {"score -m MUTANT -f TEXT OTHER -c 64 --windows 1-10 --no-speed -t 1 -q",
         "score -m MUTANT --base BASE -f TEXT OTHER -c 64 --windows 1-10 --no-speed -t 1 -q",
         "score -m MUTANT --base MUTANT -f TEXT OTHER -c 64 --windows 1-10 --no-speed -t 1 -q",
         "score -m BASE --base MUTANT -f TEXT OTHER -c 64 --windows 1-10 --no-speed -o OUT -t 1 -q",
         "score -m MODEL --base MUTANT -f TEXT OTHER -c 64 --windows 1-10 --no-speed -o OUT -t 1 -q",
         "score -m MODEL MUTANT --base BASE -f TEXT OTHER -c 64 --windows 1-10 --no-speed -t 1 -q"},
        N_BASES});
}

static const test_case cases[] = {
    {"mutants of models end in a result or in one line of error, in eight programs", models},
    {"mutants of statistics with a right checksum end in a result or in one line of error, in five programs",
     statistics},
    {"mutants of stored bases end in a result or in one line of error, as a model and as a base", stored_bases},
    {0}};
TEST_MAIN(cases)
