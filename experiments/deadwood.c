/* deadwood.c - `deadwood NAME ...` runs the program deadwood-NAME beside it or on PATH.  `deadwood help NAME` prints
 * the help of that program. */
#include "kit/options.h"
#include "kit/talk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_FOUND = 256 };

static const char prefix[] = "deadwood-";

typedef struct found { // a program; a row of a table as opt_nearest takes it
    const char *name;  // within path, without the prefix
    char path[PATH_MAX];
} found;

static const opt_row options[] = {{0}};
static const opt_program program = {
    .name = "",
    .summary = "cuts away what a language model does not need, and tells what that cost",
    .usage = "NAME [arguments]",
    .about =
        "deadwood NAME runs the program deadwood-NAME.  Each reads files and writes a file: convert makes a model\n"
        "file, score measures it, inspect says what is in it and how it came to be.  `deadwood` alone lists all\n"
        "programs; each has --help.",
    .example = "deadwood convert mini -o mini.gguf --type q8_0\ndeadwood score -m mini.gguf -f text.txt",
    .rows = options,
};

/* ---- finding --------------------------------------------------------------------------------------------- */

static found table[MAX_FOUND + 1];
static int n_found;

static const char *name_in(const char *path) { return strrchr(path, '/') + sizeof prefix; }

static void add_program(const char *folder, const char *file) {
    found *f = &table[n_found];
    const int n = snprintf(f->path, sizeof f->path, "%s/%s", *folder ? folder : ".", file);
    if (n_found == MAX_FOUND || n >= (int)sizeof f->path || access(f->path, X_OK)) return;
    f->name = name_in(f->path);
    for (int i = 0; i < n_found; i++)
        if (!strcmp(table[i].name, f->name)) return; // the one found first counts
    n_found++;
}

static void add_folder(const char *folder) {
    DIR *dir = opendir(*folder ? folder : ".");
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (!strncmp(entry->d_name, prefix, sizeof prefix - 1) && !strchr(entry->d_name, '.'))
            add_program(folder, entry->d_name);
    if (dir) closedir(dir);
}

static int by_name(const void *a, const void *b) {
    return strcmp(name_in(((const found *)a)->path), name_in(((const found *)b)->path));
}

/* Fills the table: first the folder of this program, then those of PATH. */
static void find_programs(const char *argv0) {
    char own[PATH_MAX] = "";
    const ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    if (n <= 0) snprintf(own, sizeof own, "%s", strchr(argv0, '/') ? argv0 : "");
    char *slash = strrchr(own, '/');
    if (slash) {
        *slash = 0;
        add_folder(own);
    }
    const char *path = getenv("PATH");
    char *copy = strdup(path ? path : ""), *rest = copy;
    for (char *folder; rest && (folder = strsep(&rest, ":"));) add_folder(folder);
    free(copy);
    qsort(table, (size_t)n_found, sizeof *table, by_name);
    for (int i = 0; i < n_found; i++) table[i].name = name_in(table[i].path);
    table[n_found].name = NULL;
}

/* The first line that a program prints for --summary, or "". */
static void ask_summary(const found *f, char *line, size_t size) {
    int ends[2];
    *line = 0;
    if (pipe(ends)) return;
    const pid_t pid = fork();
    if (!pid) {
        const int nothing = open("/dev/null", O_RDWR);
        dup2(nothing, 0);
        dup2(ends[1], 1);
        dup2(nothing, 2);
        close(ends[0]);
        execl(f->path, f->path, "--summary", (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    FILE *in = fdopen(ends[0], "r");
    if (in && !fgets(line, (int)size, in)) *line = 0;
    line[strcspn(line, "\n")] = 0;
    if (in)
        fclose(in);
    else
        close(ends[0]);
    if (pid > 0) waitpid(pid, NULL, 0);
}

static void list_programs(void) {
    printf("usage: deadwood %s\n\n%s\n\nprograms:\n", program.usage, program.summary);
    for (int i = 0; i < n_found; i++) {
        char line[256];
        ask_summary(&table[i], line, sizeof line);
        printf("  %-12s %s\n", table[i].name, line);
    }
    printf("\n`deadwood help NAME` tells more about each.\n");
}

/* Becomes the program of that name, with these arguments; argv[0] is replaced. */
static void run(const char *name, char **argv) {
    for (int i = 0; i < n_found; i++) {
        if (strcmp(table[i].name, name)) continue;
        argv[0] = table[i].path;
        execv(table[i].path, argv);
        die("cannot run '%s': %s", table[i].path, strerror(errno));
    }
    const char *near = opt_nearest(name, table, sizeof *table);
    if (near) die_usage("there is no program '%s' (did you mean '%s'?)", name, near);
    die_usage("there is no program '%s'", name);
}

int main(int argc, char **argv) {
    dw_err err = {0};
    if (dw_open_standard_streams(&err)) die_err(&err);
    find_programs(argv[0]);
    const char *name = argc > 1 ? argv[1] : "--help";
    const bool is_help = !strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help");
    if (is_help && (argc < 3 || !strcmp(argv[2], "help"))) {
        list_programs();
        if (fflush(stdout) || ferror(stdout)) die("cannot write to stdout: %s", strerror(errno));
        return 0;
    }
    if (is_help && argc > 3) die_usage("'%s' takes the name of one program, '%s' is one word too many", name, argv[3]);
    opt_parse(&program, *name == '-' && !is_help ? argc : 1, argv);
    if (is_help) run(argv[2], (char *[]){argv[0], "--help", NULL});
    run(name, argv + 1);
}
