/* mutate.h - files that are wrong in one or a few places, made by something that knows the format.
 *
 * Some mutants have a field (count, length, type, dimension, address, value) replaced where it stands, or the file cut.
 * The others are written anew from changed records, so that they are whole files whose content means something else:
 * those come past the reader.  Checksums and compressed frames are right in nearly all, because a reader looks at
 * nothing else in a file where they are wrong.  One seed gives one mutant. */
#ifndef TEST_MUTATE_H
#define TEST_MUTATE_H

#include "tests/build.h"

/* Writes mutant number `seed` of the file `parent` to `path`; returns what was done, in static storage. */
const char *mutate_gguf(const char *parent, const char *path, uint64_t seed);  // a model
const char *mutate_stats(const char *parent, const char *path, uint64_t seed); // statistics, with a right checksum
const char *mutate_base(const char *parent, const char *path, uint64_t seed);  // a stored base

#endif
