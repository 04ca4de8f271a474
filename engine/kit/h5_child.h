/* h5_child.h - the process in which the HDF5 library reads a file (h5.c asks it, h5_child.c answers).
 *
 * libhdf5 crashes, loops for ever or takes memory without bound on hostile files, and the checksum in front of a file
 * keeps only accidents away.  So the library reads in a child process with limits:
 *   memory       at most 48 MiB more than the program had when it forked (Linux; elsewhere only the budgets of h5.c hold)
 *   time         0.5 s of CPU time, and 1 s more for every 16 MiB that it sends or must decode to send
 *   files        none can be opened: it sees the bytes that the program mapped and checked; its stdin, stdout and
 *                stderr are /dev/null, so that the library's own messages are not seen
 * It answers requests over a socket, one at a time, in pieces of 1 MiB.  The program believes nothing of an answer: it
 * compares every size with the file's before it allocates, and every value with the format.
 *
 *     program                               child
 *     dw_h5_request {SET, "output/..."}  ->
 *                                        <- dw_h5_answer {fault, dims, n_stored}
 *     dw_h5_request {ROWS, first, n}     ->
 *                                        <- dw_h5_answer, n rows
 *     dw_h5_request {ROWS of strings}    ->
 *                                        <- dw_h5_answer, n times: u64 length, bytes
 *
 * The child is forked and does not exec: a library knows no program that it could run, and the mapped bytes stay the
 * same.  Other threads may exist at the fork: the child needs nothing of them.  It uses the heap, which the libc keeps
 * usable, and the HDF5 library, which one thread at a time may use anyway (h5.h). */
#ifndef DW_H5_CHILD_H
#define DW_H5_CHILD_H

#include "kit/h5.h"

#include <sys/types.h>

/* 1 with a sanitizer: its shadow memory allows no limit on the address space, and it is slow (4 s instead of 0.5). */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define DW_H5_SHADOW 1
#elif defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define DW_H5_SHADOW 1
#endif
#endif
#ifndef DW_H5_SHADOW
#define DW_H5_SHADOW 0
#endif

enum { DW_H5_PATH_BYTES = 96, DW_H5_MAX_CHUNK = 8 << 20 };

typedef enum dw_h5_what { DW_H5_HAS, DW_H5_SET, DW_H5_ROWS, DW_H5_INT, DW_H5_TEXT } dw_h5_what;

typedef enum dw_h5_fault {
    DW_H5_FINE,
    DW_H5_MISSING,       // there is no hard link of that name
    DW_H5_NO_SET,        // it is a group
    DW_H5_OTHER_TYPE,
    DW_H5_OTHER_RANK,    // not 1 or 2 dimensions
    DW_H5_OTHER_STORAGE, // other filters, storage outside the file, a chunk larger than the dataset or DW_H5_MAX_CHUNK
    DW_H5_UNREADABLE
} dw_h5_fault;

typedef struct dw_h5_request {
    uint32_t what, type;         // dw_h5_what, dw_h5_type
    uint64_t first, n;           // rows
    char path[DW_H5_PATH_BYTES]; // of a dataset, or the name of an attribute
} dw_h5_request;

typedef struct dw_h5_answer {
    uint32_t fault;   // dw_h5_fault; when it is not DW_H5_FINE, nothing follows
    int32_t value;    // of an attribute; the rank of a dataset
    uint64_t dims[2]; // dims[1] is 0 for one dimension
    uint64_t n_stored; // bytes that hold the dataset in the file
    uint64_t n_bytes;  // that follow; 0 for strings in rows, which tell their lengths one by one
} dw_h5_answer;

/* Forks the child for the bytes of a file.  Its first answer says whether the library could open them.  *fd is closed and
 * *pid is waited for by the caller. */
int dw_h5_child_start(const dw_map *map, pid_t *pid, int *fd, dw_err *err);

#endif
