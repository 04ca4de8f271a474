/* scratch.h - files in memory for fuzzing: readers that take a path get the fuzzer's bytes there. */
#ifndef TEST_SCRATCH_H
#define TEST_SCRATCH_H

#include <stddef.h>

/* Writes a whole file; failures end the program. */
void scratch_write(const char *path, const void *data, size_t size);
/* The path of this process's scratch file, which is removed at exit. */
const char *scratch_path(void);
/* Writes the scratch file and returns its path. */
const char *scratch_file(const void *data, size_t size);

#endif
