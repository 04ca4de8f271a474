/* memory.h - how much memory is free, and whether a copy of a model has room in it. */
#ifndef KIT_MEMORY_H
#define KIT_MEMORY_H

#include "engine.h"

double kit_free_memory(void); // bytes that new processes may use, within the limits of control groups; NaN: unknown

/* The bytes that the limits of a process's control group and of all groups above it leave; infinity: there is no limit.
 * `groups` is the text of its /proc/self/cgroup; files are read below `root` ("/sys/fs/cgroup"). */
double kit_memory_of_groups(const char *root, const char *groups);

/* dw_model_to_huge_pages; it also fails when the copies have no room. */
int kit_huge_pages(dw_model *m, dw_pool *pool, dw_err *err);

#endif
