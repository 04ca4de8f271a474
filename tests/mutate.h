/* mutate.h - GGUF files that are wrong in one or a few places, made by something that knows the format.
 *
 * Half of the mutants have a field of the header (count, length, type, dimension, offset, value) replaced where it stands,
 * or the file cut.  The others are written anew by the GGUF writer from changed records, so that they are whole files
 * whose keys, shapes and types mean something else: those come past the reader.  One seed gives one mutant. */
#ifndef TEST_MUTATE_H
#define TEST_MUTATE_H

#include "tests/build.h"

/* Writes mutant number `seed` of the model file `parent` to `path`; returns what was done, in static storage. */
const char *mutate_gguf(const char *parent, const char *path, uint64_t seed);

#endif
