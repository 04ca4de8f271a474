/* h5_changes.h - fuzzing readers of the project's HDF5 files (formats/h5.h).
 *
 * Bytes are taken as a file as they are; the checksum in front keeps them away from the HDF5 library, which is not these
 * targets' subject.  Then the bytes are read as a list of changes that the library makes to a good file, whose checksum is
 * put right: what this project's own reader has to judge. */
#ifndef TEST_H5_CHANGES_H
#define TEST_H5_CHANGES_H

#include <stddef.h>
#include <stdint.h>

typedef struct h5_kind { // of file
    const char *name, *magic;
    const char *const *paths;      // datasets and groups that are changed, NULL behind the last
    const char *const *attributes; // of the root, integers; likewise
    void (*make)(const char *path); // a good file
    void (*read)(const char *path); // aborts when what is accepted is not what was promised
} h5_kind;

/* One input of a fuzzer that has only this kind. */
void h5_try(const h5_kind *kind, const uint8_t *data, size_t size);

#endif
