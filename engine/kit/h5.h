/* h5.h - the HDF5 files of this project (stats.h5, traces.h5): a checksum in front, read with distrust.
 *
 * In front of the HDF5 file is a user block of 512 bytes, which HDF5 libraries skip: a line that says what the file is
 * (its magic, e.g. "deadwood stats 1\n"), the SHA-256 of all bytes after the block in hex, "\n", zeros.  The reader
 * compares the hash first.  That finds damage, but anybody can compute it, and the HDF5 library crashes, loops or takes
 * memory without bound on hostile files.  So the library reads in a child process with limits (h5_child.h), and this
 * process takes from it plain values whose sizes it has checked:
 *   - only what this project writes is accepted: hard links, plain types, no filters but shuffle and deflate, no storage
 *     outside the file, chunks no larger than their dataset;
 *   - a dataset has at most as many bytes as its bytes in the file explain: the same number, or 1100 times as many when
 *     it is packed (deflate makes at most 1032 bytes of one);
 *   - all that is read once, strings too, has together at most as many bytes as the file (dw_h5_take).  Bytes that many
 *     names share are refused so.
 *
 * To change a file in Python, open it in h5py, close it, and put the hash of bytes 512.. back;
 * h5py.File(path, "w", userblock_size=512) makes a new one.
 *
 * Writing is done in this process.  The library ends badly when its own writes fail: small files are made in memory and
 * written by dw_out, large ones on disk space that was reserved before.  It is not thread-safe: one thread at a time, in
 * the whole process. */
#ifndef DW_H5_H
#define DW_H5_H

#include "kit/stats.h"

#include <hdf5.h>
#include <sys/types.h>

enum { DW_H5_USER_BLOCK = 512, DW_H5_MAX_ROWS = 1 << 24, DW_H5_MAX_TEXTS = 1 << 20 };

void dw_h5_quiet(void);        // first of all: the library prints nothing, loads no filters and does nothing at exit
hid_t dw_h5_string_type(void); // UTF-8 of any length; H5Tclose()
hid_t dw_h5_half_type(void);   // IEEE 754 binary16, little endian; H5Tclose()

/* The block of a file whose HDF5 part is image. */
void dw_h5_user_block(const char *magic, const uint8_t *image, size_t n, char block[DW_H5_USER_BLOCK]);

/* ---- writing ---------------------------------------------------------------------------------------- */

/* Puts note a failure, which is looked at once, at the end. */
typedef struct dw_h5_out {
    hid_t file, links, text; // links: makes the groups of a path
    bool failed;
} dw_h5_out;

/* A dataset of one (cols 0) or two dimensions; packed: in chunks, shuffled and deflated. */
void dw_h5_put(dw_h5_out *h, const char *path, hid_t type, hid_t in_memory, size_t rows, size_t cols, bool packed, const void *values);
void dw_h5_put_int(dw_h5_out *h, const char *name, int value);          // an attribute of the root
void dw_h5_put_text(dw_h5_out *h, const char *name, const char *value);
int dw_h5_put_texts(dw_h5_out *h, const dw_stats_text *text, size_t n, dw_err *err); // group /texts, as stats.h has it

/* ---- reading ---------------------------------------------------------------------------------------- */

typedef enum dw_h5_type { DW_H5_U8, DW_H5_U32, DW_H5_U64, DW_H5_I32, DW_H5_F16, DW_H5_F32, DW_H5_F64, DW_H5_STRING } dw_h5_type;

size_t dw_h5_type_size(dw_h5_type type); // bytes of a value in the file

/* A file that is open for reading; all zero: none is. */
typedef struct dw_h5_in {
    pid_t child;    // 0: none
    int socket;
    size_t n_bytes; // of the file
    size_t n_left;  // of them, for what is read once
    const char *maker;
    dw_err *err;    // of the call at hand
} dw_h5_in;

typedef struct dw_h5_set { // a dataset
    const char *path;      // borrowed
    dw_h5_type type;
    size_t dims[2];        // dims[1] is 0 for one dimension
    size_t n_stored;       // bytes in the file
    bool is_packed;        // they are fewer than its values have
} dw_h5_set;

/* Compares the checksum and opens.  `what` and `maker` name contents and program in sentences: "statistics", "collect";
 * they stay.  dw_h5_close also after a failure. */
int dw_h5_open(dw_h5_in *r, const char *path, const char *magic, const char *what, const char *maker, dw_err *err);
void dw_h5_close(dw_h5_in *r);

/* Subtracts from the bytes that the file can explain; refused when they are fewer. */
int dw_h5_take(dw_h5_in *r, size_t n_bytes, const char *what);

/* Below, -1 and a sentence when the file is not as the call expects. */
int dw_h5_has(const dw_h5_in *r, const char *path, bool *has);                             // by hard links only
int dw_h5_find(const dw_h5_in *r, const char *path, dw_h5_type type, dw_h5_set *set);      // a dataset of that type
/* Rows of a dataset that was found, as often as wanted; not of strings. */
int dw_h5_rows(const dw_h5_in *r, const dw_h5_set *set, size_t first, size_t n, void *values);
int dw_h5_whole(dw_h5_in *r, const dw_h5_set *set, void *values); // all rows, once
int dw_h5_int(const dw_h5_in *r, const char *name, int least, int most, int *value); // attributes of the root
char *dw_h5_text(dw_h5_in *r, const char *name);                                     // free()
int dw_h5_short_text(dw_h5_in *r, const char *name, char *text, size_t size);
int dw_h5_hash(dw_h5_in *r, const char *name, char hash[65]);                        // 64 hex digits
int dw_h5_n_texts(const dw_h5_in *r, size_t *n);                                     // at least 1
/* Fills n texts; their blocks are the caller's to free, also after a failure. */
int dw_h5_texts(dw_h5_in *r, dw_stats_text *text, size_t n);

#endif
