/* h5_child.h - the process in which the HDF5 library reads a file: h5.c sends requests, h5_child.c answers.
 *
 * On hostile files libhdf5 crashes, loops forever, or takes memory without limit; the checksum finds only accidents.
 * Therefore the library reads in a child process with limits:
 *   memory       48 MiB more than the program had when it forked (on Linux; elsewhere only the limits of h5.c hold)
 *   time         0.5 s of CPU time, and 1 s more for every 16 MiB that it sends or 64 MiB that it decodes
 *   files        it can open none; it reads the bytes that the program mapped and checked.  stdin, stdout and stderr
 *                are /dev/null, so the messages of the library are not seen
 * It answers one request at a time over a socket, in pieces of 1 MiB.  The program does not trust an answer: it
 * compares every size with the size of the file before it allocates, and every value with the format.
 *
 *     program                               child
 *     kit_h5_request {SET, "output/..."}  ->
 *                                        <- kit_h5_answer {fault, dims, n_stored}
 *     kit_h5_request {ROWS, first, n}     ->
 *                                        <- kit_h5_answer, n rows
 *     kit_h5_request {ROWS of strings}    ->
 *                                        <- kit_h5_answer, n times: u64 length, bytes
 *
 * The child is a fork without exec, because a library has no program of its own to run, and because the mapped bytes
 * stay the same.  Other threads may exist at the fork.  The child uses the heap, which libc keeps usable, and the HDF5
 * library, which only one thread at a time may use anyway (h5.h). */
#ifndef KIT_H5_CHILD_H
#define KIT_H5_CHILD_H

#include "kit/h5.h"

#include <sys/types.h>

/* 1 with a sanitizer: its shadow memory forbids a limit on the address space, and it is slow (limit 4 s, not 0.5 s). */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define KIT_H5_SHADOW 1
#elif defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define KIT_H5_SHADOW 1
#endif
#endif
#ifndef KIT_H5_SHADOW
#define KIT_H5_SHADOW 0
#endif

enum { KIT_H5_PATH_BYTES = 96, KIT_H5_MAX_CHUNK = 8 << 20 };

typedef enum kit_h5_what { KIT_H5_HAS, KIT_H5_SET, KIT_H5_ROWS, KIT_H5_INT, KIT_H5_TEXT } kit_h5_what;

typedef enum kit_h5_fault {
    KIT_H5_FINE,
    KIT_H5_MISSING,       // no hard link has that name
    KIT_H5_NO_SET,        // not a dataset
    KIT_H5_OTHER_TYPE,
    KIT_H5_OTHER_RANK,    // not 1 or 2 dimensions
    KIT_H5_OTHER_STORAGE, // other filters, storage outside the file, a chunk larger than dataset or KIT_H5_MAX_CHUNK
    KIT_H5_UNREADABLE
} kit_h5_fault;

typedef struct kit_h5_request {
    uint32_t what, type;         // kit_h5_what, kit_h5_type
    uint64_t first, n;           // rows
    char path[KIT_H5_PATH_BYTES]; // of a dataset, or the name of an attribute
} kit_h5_request;

typedef struct kit_h5_answer {
    uint32_t fault;   // kit_h5_fault; when it is not KIT_H5_FINE, nothing follows
    int32_t value;    // of an attribute; the rank of a dataset
    uint64_t dims[2]; // dims[1] is 0 for one dimension
    uint64_t n_stored; // bytes that hold the dataset in the file
    uint64_t n_bytes;  // bytes of the values that follow; 0 for strings, each of which is sent with its length
} kit_h5_answer;

/* Forks the child for the bytes of a file.  The child sends a first answer: whether the library could open them.  The
 * caller closes *fd and waits for *pid. */
int kit_h5_child_start(const dw_map *map, pid_t *pid, int *fd, dw_err *err);

#endif
