/* level.c - a folder of links to stock's libraries, and what a machine and a folder have of a level. */
#include "experiments/peer/level.h"

#include "engine.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const exp_level exp_levels[] = {
    {"avx2", {"haswell"}},
    {"avx512", {"zen4", "cooperlake", "icelake", "cannonlake", "cascadelake", "skylakex"}},
    {"amx", {"sapphirerapids"}},
    {0},
};

static const exp_level *find(const char *name) {
    for (const exp_level *l = exp_levels; l->name; l++)
        if (!strcmp(l->name, name)) return l;
    return NULL;
}

static const char cpu_prefix[] = "libggml-cpu-";

static bool is_variant(const exp_level *l, const char *file) {
    const char *name = file + sizeof cpu_prefix - 1;
    for (const char *const *v = l->variant; *v; v++)
        if (!strncmp(name, *v, strlen(*v)) && !strcmp(name + strlen(*v), ".so")) return true;
    return false;
}

/* Is the file wanted: a library that is no CPU variant, or one of the level? */
static bool is_wanted(const exp_level *l, const char *file) {
    if (!strncmp(file, cpu_prefix, sizeof cpu_prefix - 1)) return is_variant(l, file);
    return !strncmp(file, "lib", 3) && strstr(file, ".so");
}

/* Levels of this engine are asked for by the environment, which is as it was afterwards. */
static int check_machine(const char *level, dw_err *err) {
    static const char variable[] = "DEADWOOD_CPU";
    char *before = getenv(variable) ? strdup(getenv(variable)) : NULL;
    dw_err ignored = {0};
    setenv(variable, level, 1);
    const bool has = dw_cpu_level(&ignored);
    unsetenv(variable);
    const char *best = dw_cpu_level(&ignored);
    if (before) setenv(variable, before, 1);
    free(before);
    return has ? 0 : dw_fail(err, "this machine lacks the level '%s'; its best is '%s'", level, best ? best : "?");
}

int exp_level_check(const char *level, const char *folder, dw_err *err) {
    const exp_level *l = find(level);
    if (!l) return dw_fail(err, "'%s' is no level that upstream can be held to; try avx2, avx512 or amx", level);
    if (check_machine(level, err)) return -1;
    DIR *dir = opendir(folder);
    if (!dir) return dw_fail(err, "cannot open the folder '%s': %s", folder, strerror(errno));
    bool has = false;
    for (struct dirent *e; !has && (e = readdir(dir));)
        has = !strncmp(e->d_name, cpu_prefix, sizeof cpu_prefix - 1) && is_variant(l, e->d_name);
    closedir(dir);
    return has ? 0
               : dw_fail(err, "'%s' has no library of the level '%s', like %s%s.so; give the folder of a whole package",
                         folder, level, cpu_prefix, l->variant[0]);
}

/* Links every wanted file of a folder, whose path is absolute. */
static int link_files(const char *from, const char *to, const exp_level *l, dw_err *err) {
    DIR *dir = opendir(from);
    if (!dir) return dw_fail(err, "cannot open the folder '%s': %s", from, strerror(errno));
    int rc = 0;
    for (struct dirent *e; !rc && (e = readdir(dir));) {
        if (!is_wanted(l, e->d_name)) continue;
        char *target = dw_format(err, "%s/%s", from, e->d_name), *name = dw_format(err, "%s/%s", to, e->d_name);
        rc = target && name ? 0 : -1;
        if (!rc && symlink(target, name)) rc = dw_fail(err, "cannot make the link '%s': %s", name, strerror(errno));
        free(target);
        free(name);
    }
    closedir(dir);
    return rc;
}

char *exp_level_links(const char *folder, const char *level, dw_err *err) {
    const exp_level *l = find(level);
    const char *temporary = getenv("TMPDIR");
    char *from = l ? realpath(folder, NULL) : NULL, *to = NULL;
    if (!l) dw_fail(err, "'%s' is no level that upstream can be held to", level);
    else if (!from) dw_fail(err, "cannot open the folder '%s': %s", folder, strerror(errno));
    else to = dw_format(err, "%s/deadwood-stock-XXXXXX", temporary && *temporary ? temporary : "/tmp");
    if (to && !mkdtemp(to)) {
        dw_fail(err, "cannot make the temporary folder '%s': %s; set $TMPDIR", to, strerror(errno));
        free(to);
        to = NULL;
    }
    if (to && link_files(from, to, l, err)) {
        exp_level_remove(to);
        to = NULL;
    }
    free(from);
    return to;
}

void exp_level_remove(char *links) {
    DIR *dir = links ? opendir(links) : NULL;
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (!strncmp(e->d_name, "lib", 3)) unlinkat(dirfd(dir), e->d_name, 0);
    if (dir) closedir(dir);
    if (links) rmdir(links);
    free(links);
}

stock *stock_open_level(const char *folder, const char *level, dw_err *err) {
    if (!level) return stock_open(folder, err);
    char *links = exp_level_links(folder, level, err);
    stock *s = links ? stock_open(links, err) : NULL;
    exp_level_remove(links);
    if (s && !*stock_cpu_library(s)) {
        dw_fail(err, "upstream %s runs none of its libraries of the level '%s' on this machine", stock_version(s),
                level);
        stock_close(s);
        return NULL;
    }
    return s;
}
