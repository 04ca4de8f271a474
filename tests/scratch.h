/* scratch.h - files in memory for fuzzing: readers that take a path get the fuzzer's bytes there. */
#ifndef TEST_SCRATCH_H
#define TEST_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

/* Writes a whole file; failures end the program. */
void scratch_write(const char *path, const void *data, size_t size);
/* The path of this process's scratch file, which is removed at exit. */
const char *scratch_path(void);
/* Writes the scratch file and returns its path. */
const char *scratch_file(const void *data, size_t size);
/* A copy of a file whose identity at byte 16 is zeros and whose last 32 bytes are the SHA-256 of the rest, as heal's
 * checkpoints and teachers' predictions have them; free().  NULL: the file is too short for them. */
uint8_t *scratch_resealed(const uint8_t *data, size_t size);

#endif
