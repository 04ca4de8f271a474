/* memory.c - free memory, and a model in huge pages if it has room. */
#include "kit/memory.h"

#include "kit/talk.h"

#include <math.h>
#include <stdio.h>

/* The first number of a file; NaN: there is none. */
static double number_in(const char *path) {
    double x = NAN;
    FILE *f = fopen(path, "re");
    if (!f || fscanf(f, "%lf", &x) != 1) x = NAN;
    if (f) fclose(f);
    return x;
}

/* What the limit of the control group leaves; infinity: no limit.  Pages of files count as free, for they can go. */
static double left_in_group(void) {
    static const struct {
        const char *limit, *used, *stat;
    } versions[] = {{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"},
                    {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
                     "/sys/fs/cgroup/memory/memory.stat"}};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        const double limit = number_in(versions[i].limit), used = number_in(versions[i].used);
        if (!(limit < 0x1p60) || isnan(used)) continue;
        double files = 0;
        char line[128];
        FILE *f = fopen(versions[i].stat, "re");
        while (f && fgets(line, sizeof line, f))
            if (sscanf(line, "inactive_file %lf", &files) == 1) break;
        if (f) fclose(f);
        return limit - used + files;
    }
    return INFINITY;
}

double kit_free_memory(void) {
    double available = NAN, kib;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lf", &kib) == 1) available = 1024 * kib;
    if (f) fclose(f);
    const double group = left_in_group();
    return available > group ? group : available;
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
