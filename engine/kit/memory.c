/* memory.c - free memory, and a model in huge pages if it has room. */
#include "kit/memory.h"

#include "base/cpus.h"
#include "kit/talk.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- limits of control groups ---------------------------------------------------------------------------------- */

static const struct version {
    const char *controller, *folder, *limit, *used, *files; // files: a line of memory.stat
} versions[] = {{"", "", "memory.max", "memory.current", "inactive_file"},
                {"memory", "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}};

typedef struct group { // below a root: the first n bytes of path, which begins with '/'
    const char *root, *path;
    int n;
    const struct version *v;
} group;

static FILE *open_in(const group *g, const char *name) {
    char path[PATH_MAX];
    const int n = snprintf(path, sizeof path, "%s%s%.*s/%s", g->root, g->v->folder, g->n, g->path, name);
    return n < (int)sizeof path ? fopen(path, "re") : NULL;
}

/* The first number of a file, or of its line that begins with `key`; NaN: there is none. */
static double number_in(const group *g, const char *name, const char *key) {
    char line[128];
    double x = NAN;
    const size_t n = strlen(key);
    FILE *f = open_in(g, name);
    while (f && isnan(x) && fgets(line, sizeof line, f))
        if (!strncmp(line, key, n) && sscanf(line + n, "%lf", &x) != 1) x = NAN;
    if (f) fclose(f);
    return x;
}

/* What a group's own limit leaves; infinity: it has none.  Pages of files count as free, because the system takes them
 * back. */
static double left_in(const group *g) {
    const double limit = number_in(g, g->v->limit, ""), used = number_in(g, g->v->used, "");
    if (!(limit < 0x1p60) || isnan(used)) return INFINITY;
    const double files = number_in(g, "memory.stat", g->v->files);
    return limit - used + (isnan(files) ? 0 : files);
}

double kit_memory_of_groups(const char *root, const char *groups) {
    double least = INFINITY;
    for (const struct version *v = versions; v < versions + sizeof versions / sizeof *versions; v++) {
        size_t n;
        const char *path = dw_cpus_group(groups, v->controller, &n);
        if (!path || n >= PATH_MAX) continue;
        do // a container's path may be the host's; the root, its own group, still counts
            least = fmin(least, left_in(&(group){root, path, (int)n, v}));
        while (dw_cpus_group_above(path, &n));
    }
    return least;
}

static double left_in_own_groups(void) {
    char text[8192];
    return dw_cpus_own_groups(text, sizeof text) ? kit_memory_of_groups("/sys/fs/cgroup", text) : INFINITY;
}

/* ---- free memory ----------------------------------------------------------------------------------------------- */

double kit_free_memory(void) {
    double available = NAN, kib;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lf", &kib) == 1) available = 1024 * kib;
    if (f) fclose(f);
    const double groups = left_in_own_groups();
    return available > groups ? groups : available;
}

int kit_huge_pages(dw_model *m, dw_pool *pool, dw_err *err) {
    const double bytes = (double)dw_model_copied_bytes(m, err), room = kit_free_memory();
    if (!bytes) return -1;
    if (bytes > room)
        return dw_fail(err, "copies of the weights take %s, %s are free; run without --huge-pages",
                       show_bytes(bytes).text, show_bytes(room).text);
    if (bytes > 1e9) say("copying %s of weights into huge pages", show_bytes(bytes).text);
    if (dw_model_to_huge_pages(m, pool, err)) return -1;
    const double share = dw_pages_huge_share(dw_model_copies(m));
    if (share < 0.9) warn("the system gave huge pages for %.0f %% of the weights only", 100 * share);
    return 0;
}
