/* cpus.c - how many processors a process may use: affinity, cores, quota. */
#include "base/cpus.h"

#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the quota of control groups ----------------------------------------------------------------- */

double dw_cpus_of_quota(const char *quota, const char *period) {
    char *quota_end, *period_end;
    const double q = strtod(quota, &quota_end), p = strtod(period, &period_end);
    if (quota_end == quota || period_end == period || !(q > 0) || !(p > 0) || !isfinite(q / p)) return 0;
    return q / p;
}

double dw_cpus_of_max(const char *cpu_max) {
    const char *period = strchr(cpu_max, ' ');
    return period ? dw_cpus_of_quota(cpu_max, period) : 0; // "max" is not a number: no quota
}

static bool has_word(const char *list, size_t n, const char *word) {
    const size_t len = strlen(word);
    for (const char *at = list, *end = list + n; at <= end;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        if (!comma) comma = end;
        if ((size_t)(comma - at) == len && !memcmp(at, word, len)) return true;
        at = comma + 1;
    }
    return false;
}

const char *dw_cpus_group(const char *text, const char *controller, size_t *n) {
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const size_t len = strcspn(line, "\n");
        const char *list = memchr(line, ':', len);
        const char *path = list ? memchr(list + 1, ':', len - (size_t)(list + 1 - line)) : NULL;
        if (!path || path[1] != '/' || !has_word(list + 1, (size_t)(path - list - 1), controller)) continue;
        *n = len - (size_t)(path + 1 - line);
        return path + 1;
    }
    return NULL;
}

static size_t without_slashes(const char *path, size_t n) {
    while (n && path[n - 1] == '/') n--;
    return n;
}

bool dw_cpus_group_above(const char *path, size_t *n) {
    *n = without_slashes(path, *n);
    if (!*n) return false;
    while (*n && path[*n - 1] != '/') --*n;
    *n = without_slashes(path, *n);
    return true;
}

static bool read_line(const char *root, const char *folder, int n, const char *file, char text[64]) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s%.*s/%s", root, n, folder, file) >= (int)sizeof path) return false;
    FILE *f = fopen(path, "re");
    const bool read = f && fgets(text, 64, f);
    if (f) fclose(f);
    return read;
}

static double quota_of(const char *root, const char *path, int n, bool version_2) {
    char quota[64], period[64];
    if (version_2) return read_line(root, path, n, "cpu.max", quota) ? dw_cpus_of_max(quota) : 0;
    return read_line(root, path, n, "cpu.cfs_quota_us", quota) && read_line(root, path, n, "cpu.cfs_period_us", period)
               ? dw_cpus_of_quota(quota, period)
               : 0;
}

/* The smallest quota of a group and of all groups above it.  In a container the path may be the host's and not exist
 * there; the root, which is the container's own group, still counts. */
static double smallest_quota(const char *root, const char *path, size_t n, bool version_2) {
    double smallest = 0;
    n = without_slashes(path, n);
    do {
        const double quota = quota_of(root, path, (int)n, version_2);
        if (quota > 0 && (!smallest || quota < smallest)) smallest = quota;
    } while (dw_cpus_group_above(path, &n));
    return smallest;
}

double dw_cpus_allowed(const char *root, const char *groups) {
    char folder[PATH_MAX];
    size_t n;
    const char *path = dw_cpus_group(groups, "", &n);
    double quota = path && n < PATH_MAX ? smallest_quota(root, path, n, true) : 0;
    path = dw_cpus_group(groups, "cpu", &n);
    if (quota || !path || n >= PATH_MAX || snprintf(folder, sizeof folder, "%s/cpu", root) >= (int)sizeof folder)
        return quota;
    return smallest_quota(folder, path, n, false);
}

bool dw_cpus_own_groups(char *text, size_t size) {
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f) return false;
    text[fread(text, 1, size - 1, f)] = 0;
    fclose(f);
    return true;
}

static double own_quota(void) {
    char text[8192];
    return dw_cpus_own_groups(text, sizeof text) ? dw_cpus_allowed("/sys/fs/cgroup", text) : 0;
}

/* ---- cores ------------------------------------------------------------------------------------------ */

#if defined(__linux__)
/* The first hyper-thread of a processor's core. */
static int first_sibling(int cpu) {
    char path[96];
    int first = cpu;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *f = fopen(path, "re");
    if (!f) return cpu;
    if (fscanf(f, "%d", &first) != 1) first = cpu;
    fclose(f);
    return first;
}

/* The kernel refuses a mask smaller than its own and does not tell its size, so larger ones are tried. */
static cpu_set_t *own_affinity(int *n_cpu, size_t *size) {
    for (*n_cpu = CPU_SETSIZE; *n_cpu <= 1 << 20; *n_cpu *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)*n_cpu);
        *size = CPU_ALLOC_SIZE((size_t)*n_cpu);
        if (!set) return NULL;
        if (!sched_getaffinity(0, *size, set)) return set;
        CPU_FREE(set);
    }
    return NULL;
}

static int n_cores(void) {
    int n_cpu, n = 0;
    size_t size;
    cpu_set_t *allowed = own_affinity(&n_cpu, &size);
    for (int cpu = 0; allowed && cpu < n_cpu; cpu++) {
        if (!CPU_ISSET_S((size_t)cpu, size, allowed)) continue;
        const int first = first_sibling(cpu);
        if (first == cpu || first < 0 || first >= n_cpu || !CPU_ISSET_S((size_t)first, size, allowed)) n++;
    }
    if (allowed) CPU_FREE(allowed);
    return n;
}
#else
static int n_cores(void) { return (int)sysconf(_SC_NPROCESSORS_ONLN); }
#endif

/* A quota is rounded down: the other threads would wait at every barrier for one that has only part of a processor. */
int dw_cpu_count(void) {
    const int n = n_cores();
    const double quota = own_quota();
    const int most = quota > 0 && quota < n ? (int)quota : n;
    return most > 0 ? most : 1;
}
