/* h5_changes.h - statistics and traces that are changed and have a right checksum (kit/h5.h), for tests and fuzzing.
 *
 * A kind of file says how a good one is made and what an accepted one must hold.  A fuzzer's bytes are used in three ways:
 *   h5_try_file     as a file
 *   h5_try_changes  as changes that the HDF5 library makes to the datasets of a good file; our own checks judge the result
 *   h5_try_damage   as bytes that are overwritten in a good file; the HDF5 library, in its child process, meets those */
#ifndef TEST_H5_CHANGES_H
#define TEST_H5_CHANGES_H

#include "kit/h5.h"

typedef struct h5_kind { // of file
    const char *name, *magic;
    const char *const *paths;       // datasets and groups that are changed, ended by NULL
    const char *const *attributes;  // of the root, integers; likewise
    void (*make)(const char *path); // a good file
    void (*read)(const char *path); // aborts when what is accepted is not what was promised
} h5_kind;

extern const h5_kind h5_stats, h5_traces;

void h5_try_file(const h5_kind *kind, const uint8_t *data, size_t size);
void h5_try_changes(const h5_kind *kind, const uint8_t *data, size_t size);
void h5_try_damage(const h5_kind *kind, const uint8_t *data, size_t size);

/* ---- for tests: failures end the program ----------------------------------------------------------- */

/* Lets the library change the file at `path`, and puts the checksum right. */
void h5_change(const char *path, const char *magic, void (*change)(hid_t file));
/* Deletes, moves, replaces and links datasets and changes attributes of the file at `path`, as every 8 bytes say. */
void h5_make_changes(const h5_kind *kind, const char *path, const uint8_t *data, size_t size);
/* Writes n bytes of a file, whose checksum is put right, to `path`. */
void h5_seal(const char *path, const char *magic, uint8_t *bytes, size_t n);
void h5_seal_file(const char *path, const char *magic); // in place
/* The bytes of a file, which the caller frees. */
uint8_t *h5_bytes(const char *path, size_t *n);
/* Overwrites the first heap of strings: the length of its first string, or the number of the string that the first
 * attribute names. */
typedef enum h5_heap_part { H5_STRING_LENGTH, H5_STRING_NUMBER } h5_heap_part;
void h5_damage_heap(const char *path, const char *magic, h5_heap_part part, int64_t value);

#endif
