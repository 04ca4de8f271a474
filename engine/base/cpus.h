/* cpus.h - how many processors a process may use.
 *
 * Three things limit the number.  The first is the affinity mask.  The second is the number of physical cores in it:
 * hyper-threads of one core share its units, so the matrix kernels gain nothing from the second.  The third is the
 * quota of the control group, which containers set.
 * A group may use QUOTA microseconds of processor time in each PERIOD: 200000 of 100000 are two processors.  If more
 * threads run, all are stopped until the next period begins.  Every group above the process may have a quota; the
 * smallest counts.
 *
 *   version 2   /sys/fs/cgroup/PATH/cpu.max: "200000 100000" or "max 100000"
 *   version 1   /sys/fs/cgroup/cpu/PATH/cpu.cfs_quota_us: "200000" or "-1", and cpu.cfs_period_us: "100000"
 *
 * PATH comes from /proc/self/cgroup: "0::/PATH" (version 2) or "4:cpu,cpuacct:/PATH" (version 1). */
#ifndef DW_CPUS_H
#define DW_CPUS_H

#include "base/base.h"

/* Processors that a quota allows; 0: unlimited, or the text says nothing. */
double dw_cpus_of_max(const char *cpu_max);
double dw_cpus_of_quota(const char *quota, const char *period);

/* Finds a group's path, which begins with '/', in the text of /proc/self/cgroup: that of a controller ("cpu"), or
 * with "" that of version 2.  *n is its length; NULL: there is none. */
const char *dw_cpus_group(const char *text, const char *controller, size_t *n);

/* n bytes of a group's path become those of the group above it, without '/' at the end; false: it was the root (n 0). */
bool dw_cpus_group_above(const char *path, size_t *n);

/* The text of /proc/self/cgroup, cut where it is longer; false: there is none. */
bool dw_cpus_own_groups(char *text, size_t size);

/* The smallest quota, in processors, of a process whose /proc/self/cgroup has the text `groups`.  Files are read
 * below `root` ("/sys/fs/cgroup").  0: no quota. */
double dw_cpus_allowed(const char *root, const char *groups);

#endif
