/* hash_cache.h - SHA-256 of inputs, remembered between runs: a file of 4 GB takes seconds to hash, and every program of
 * a pipeline records the hashes of its inputs.
 *
 *   $XDG_CACHE_HOME/deadwood/hashes/DIGITS   (~/.cache where XDG_CACHE_HOME is not an absolute path)
 *   one file for each hashed file, one line: "deadwood-hash-1 DEVICE INODE SIZE MODIFIED CHANGED SHA256 CHECK"
 *
 * The times are nanoseconds: of the contents (mtime) and of the inode (ctime; a program can set mtime back, but not
 * ctime).  A remembered hash counts if all five numbers are those of the file as it was opened, and CHECK, the first
 * 16 digits of the SHA-256 of the words before, is right.  A file that changed less than two seconds ago is hashed
 * anyway and not remembered, because a second change in the same tick of the clock would not be seen.  Files below
 * 1 MiB are always hashed.  A cache that cannot be read or written is as good as none: nothing here fails for it. */
#ifndef KIT_HASH_CACHE_H
#define KIT_HASH_CACHE_H

#include "engine.h"

enum { KIT_HASH_LEAST_BYTES = 1 << 20 };

/* As dw_sha256_file and dw_gguf_sha256. */
int kit_sha256_file(const char *path, char hex[65], dw_err *err);
void kit_sha256_gguf(const dw_gguf *g, char hex[65]);
/* As dw_gguf_sha256, for a path.  An input that is not a model is one file. */
int kit_sha256_input(const char *path, char hex[65], dw_err *err);

/* SHA-256 of a program's bytes without the commit that it was built from (lineage.h, kit_commit): the same code built
 * from two commits has the same hash. */
int kit_sha256_program(const char *path, char hex[65], dw_err *err);

/* A path in the user's cache folder, which is made where it is missing; free().  NULL: there is no such folder. */
char *kit_cache_path(const char *name);

#endif
