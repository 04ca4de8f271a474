/* test_level.c - both programs of `versus` held to one level of instruction sets. */
#include "engine.h"
#include "experiments/peer/level.h"
#include "test.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* An empty folder in the place of stock's, with these files. */
static const char *folder_of(const char *name, const char *const *files) {
    const char *folder = test_file(name);
    mkdir(folder, 0777);
    for (; *files; files++) {
        FILE *f = fopen(test_path(folder, *files), "w");
        if (f) fclose(f);
    }
    return folder;
}

static const char *const whole[] = {"libllama.v0.5.0.so", "libggml.so", "libggml-base.so", "libggml-cpu-haswell.so",
                                    "libggml-cpu-zen4.so", "libggml-cpu-skylakex.so", "libggml-cpu-sapphirerapids.so",
                                    "libggml-cpu-x64.so", "libggml-cpu-zen4x.so", "notes.txt", NULL};

static int n_links(const char *folder) {
    DIR *dir = opendir(folder);
    int n = 0;
    for (struct dirent *e; dir && (e = readdir(dir));) n += e->d_name[0] != '.';
    if (dir) closedir(dir);
    return n;
}

static void links(void) {
    static const struct {
        const char *level, *has[4]; // CPU libraries
    } rows[] = {{"avx2", {"libggml-cpu-haswell.so"}},
                {"avx512", {"libggml-cpu-zen4.so", "libggml-cpu-skylakex.so"}},
                {"amx", {"libggml-cpu-sapphirerapids.so"}}};
    const char *folder = folder_of("whole", whole);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        dw_err err = {0};
        char copy[1024], target[1024];
        char *made = exp_level_links(folder, rows[i].level, &err);
        REQUIRE(made, "%s", err.text);
        int n = 3; // libllama, libggml, libggml-base
        for (const char *const *file = rows[i].has; *file; file++, n++) {
            const ssize_t len = readlink(test_path(made, *file), target, sizeof target - 1);
            target[len < 0 ? 0 : len] = 0;
            CHECK(target[0] == '/' && strstr(target, *file), "%s: '%s'", *file, target);
        }
        CHECK(n_links(made) == n && !access(test_path(made, "libllama.v0.5.0.so"), R_OK), "%s: %d files", rows[i].level,
              n_links(made));
        snprintf(copy, sizeof copy, "%s", made);
        exp_level_remove(made);
        CHECK(access(copy, F_OK) && !access(test_path(folder, "libllama.v0.5.0.so"), R_OK), "%s", copy);
    }
    exp_level_remove(NULL);
}

static void refused_links(void) {
    dw_err err = {0};
    CHECK(!exp_level_links(test_file("nowhere"), "avx2", &err) && strstr(err.text, "nowhere"), "%s", err.text);
    err = (dw_err){0};
    CHECK(!exp_level_links(folder_of("whole", whole), "avx9", &err) && strstr(err.text, "avx9"), "%s", err.text);
}

/* The best level here, as a row of exp_levels counts it; -1: none of them. */
static int best_level(void) {
    dw_err err = {0};
    const char *best = dw_cpu_level(&err);
    for (int i = 0; best && exp_levels[i].name; i++)
        if (!strcmp(exp_levels[i].name, best)) return i;
    return -1;
}

static void checked(void) {
    static const char *const few[] = {"libllama.so", "libggml-cpu-x64.so", NULL};
    const char *folder = folder_of("whole", whole), *poor = folder_of("few", few);
    const int best = best_level();
    for (int i = 0; exp_levels[i].name; i++) {
        dw_err err = {0};
        const char *name = exp_levels[i].name;
        const int rc = exp_level_check(name, folder, &err);
        CHECK((rc == 0) == (i <= best), "%s: %s", name, err.text);
        CHECK(!rc || strstr(err.text, "this machine lacks the level"), "%s", err.text);
        if (i > best) continue;
        CHECK(exp_level_check(name, poor, &err) && strstr(err.text, "has no library of the level"), "%s", err.text);
        err = (dw_err){0};
        CHECK(exp_level_check(name, test_file("nowhere"), &err) && strstr(err.text, "cannot open"), "%s", err.text);
    }
    setenv("DEADWOOD_CPU", "portable", 1);
    dw_err err = {0};
    CHECK((exp_level_check("avx2", folder, &err) == 0) == (best >= 0), "%s", err.text);
    CHECK(getenv("DEADWOOD_CPU") && !strcmp(getenv("DEADWOOD_CPU"), "portable"));
    unsetenv("DEADWOOD_CPU");
}

static void one_line(void) {
    const char *model = test_file("m.gguf");
    REQUIRE(!test_run("deadwood-synth --shape tiny-llama --type Q8_0 -o %s -q", model), "%s", test_run_output());
    const int best = best_level();
    for (int i = best + 1; exp_levels[i].name; i++) {
        CHECK(test_run("deadwood-versus -m %s --level %s --stock %s", model, exp_levels[i].name,
                       folder_of("whole", whole)) == 1);
        CHECK(strstr(test_run_output(), "deadwood-versus: --level: this machine lacks the level") &&
                  strchr(test_run_output(), '\n') == strrchr(test_run_output(), '\n'),
              "%s", test_run_output());
    }
}

/* The cell of a column in a row, 1 being the first after the names; "" when it is not there. */
static const char *cell_of(const char *name, int row) {
    static char cell[256];
    char *text = strdup(test_run_output()), *rest = text, *names = NULL, *line;
    int at = -1, n = 0;
    cell[0] = 0;
    while ((line = strsep(&rest, "\n"))) { // remarks on stderr have no tabs
        if (!strchr(line, '\t')) continue;
        if (!names) names = line;
        else if (++n != row) continue;
        int i = 0;
        for (char *word; (word = strsep(&line, "\t")); i++) {
            if (n == 0 && !strcmp(word, name)) at = i;
            if (n == row && i == at) snprintf(cell, sizeof cell, "%s", word);
        }
    }
    free(text);
    return cell;
}

#define NEED_STOCK() do { if (!getenv("DW_STOCK")) SKIP("$DW_STOCK names no folder with libllama*.so"); } while (0)
#define TINY "-m %s --tokens 4 --prefill 16 -c 16 -t 1 -q"

static void held(void) {
    NEED_STOCK();
    if (best_level() < 0) SKIP("this machine has no level that stock can be held to");
    const char *model = test_file("m.gguf"), *folder = test_file("links");
    mkdir(folder, 0777);
    setenv("TMPDIR", folder, 1);
    REQUIRE(!test_run("deadwood-synth --shape tiny-llama --type Q8_0 -o %s -q", model), "%s", test_run_output());
    const int rc = test_run("deadwood-versus " TINY " --level avx2 --what prefill --pairs 1", model);
    unsetenv("TMPDIR");
    REQUIRE(!rc, "%s", test_run_output());
    CHECK(!strcmp(cell_of("level", 1), "avx2") && !strcmp(cell_of("own_kernels", 1), "avx2"), "%s", test_run_output());
    CHECK(strstr(cell_of("stock_version", 1), "libggml-cpu-haswell.so"), "%s", cell_of("stock_version", 1));
    CHECK(n_links(folder) == 0, "%d links are left", n_links(folder));
}

static void deep(void) {
    NEED_STOCK();
    const char *model = test_file("m.gguf");
    REQUIRE(!test_run("deadwood-synth --shape tiny-llama --type Q8_0 -o %s -q", model), "%s", test_run_output());
    REQUIRE(!test_run("deadwood-versus " TINY " --what decode --depth 0,40 --sequences 2 --kv f32 --pairs 3", model),
            "%s", test_run_output());
    CHECK(!strcmp(cell_of("kv", 1), "f32") && !strcmp(cell_of("own_fill_tok_s", 1), "-"), "%s", test_run_output());
    CHECK(!strcmp(cell_of("depth", 2), "40") && atof(cell_of("own_fill_tok_s", 2)) > 0 &&
              atof(cell_of("stock_fill_tok_s", 2)) > 0 && !strcmp(cell_of("sequences", 2), "2"),
          "%s", test_run_output());
    CHECK(atof(cell_of("own_rss_after_mb", 1)) > 0 && atof(cell_of("file_mb", 1)) >= 0 && strlen(cell_of("commit", 1)));
}

/* The extremes of four pairs hold the median with less than 90 %, those of five with more.  All ratios are told. */
static void intervals(void) {
    NEED_STOCK();
    const char *model = test_file("m.gguf");
    REQUIRE(!test_run("deadwood-synth --shape tiny-llama --type Q8_0 -o %s -q", model), "%s", test_run_output());
    for (int pairs = 4; pairs <= 5; pairs++) {
        REQUIRE(!test_run("deadwood-versus " TINY " --what prefill --pairs %d", model, pairs), "%s", test_run_output());
        CHECK(!strcmp(cell_of("ratio_low", 1), "-") == (pairs == 4) &&
                  !strcmp(cell_of("ratio_high", 1), "-") == (pairs == 4),
              "%d pairs: %s", pairs, test_run_output());
    }
    REQUIRE(!test_run("deadwood-versus " TINY " --what prefill --pairs 2000", model), "%s", test_run_output());
    int n_commas = 0;
    for (const char *p = test_run_output(); *p; p++) n_commas += *p == ',';
    CHECK(n_commas >= 1999, "%d commas", n_commas);
}

/* A thousand laps of 100 ms do not fit into a second; three are always measured. */
static void bounded(void) {
    NEED_STOCK();
    const char *model = test_file("m.gguf");
    REQUIRE(!test_run("deadwood-synth --shape tiny-llama --type Q8_0 -o %s -q", model), "%s", test_run_output());
    REQUIRE(!test_run("deadwood-versus -m %s -t 1 -q --what decode --tokens 400 --pairs 1000 --seconds 1", model), "%s",
            test_run_output());
    const int n = atoi(cell_of("pairs", 1));
    CHECK(n >= 3 && n < 1000, "%d pairs", n);
}

static const test_case cases[] = {
    {"links of a level lead to stock's libraries and to the CPU variants of that level alone, and go again", links},
    {"a folder or level that is not there gets no links", refused_links},
    {"a level is refused where the machine or the folder lacks it; the environment stays", checked},
    {"versus --level says what the machine lacks in one line", one_line},
    {"versus --level holds both programs to it and leaves no links", held},
    {"versus at a depth times the filling of the cache; the row says the cache's type", deep},
    {"versus tells an interval from five pairs on, and all ratios of many", intervals},
    {"versus --seconds ends a row with fewer pairs", bounded},
    {0},
};
TEST_MAIN(cases)
