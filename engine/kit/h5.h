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
 *   - all that is read once, strings too, has together at most as many bytes as the file (kit_h5_take).  Bytes that many
 *     names share are refused so.
 *
 * To change a file in Python, open it in h5py, close it, and put the hash of bytes 512.. back;
 * h5py.File(path, "w", userblock_size=512) makes a new one.
 *
 * Writing is done in this process.  The library ends badly when its own writes fail: small files are made in memory and
 * written by dw_out, large ones on disk space that was reserved before.  It is not thread-safe: one thread at a time, in
 * the whole process. */
#ifndef KIT_H5_H
#define KIT_H5_H

#include "kit/stats.h"

#include <hdf5.h>
#include <sys/types.h>

enum { KIT_H5_USER_BLOCK = 512, KIT_H5_MAX_ROWS = 1 << 24, KIT_H5_MAX_TEXTS = 1 << 20 };

void kit_h5_quiet(void);        // first of all: the library prints nothing, loads no filters and does nothing at exit
hid_t kit_h5_string_type(void); // UTF-8 of any length; H5Tclose()
hid_t kit_h5_half_type(void);   // IEEE 754 binary16, little endian; H5Tclose()

/* The block of a file whose HDF5 part is image. */
void kit_h5_user_block(const char *magic, const uint8_t *image, size_t n, char block[KIT_H5_USER_BLOCK]);

/* ---- writing ---------------------------------------------------------------------------------------- */

/* Puts note a failure, which is looked at once, at the end. */
typedef struct kit_h5_out {
    hid_t file, links, text; // links: makes the groups of a path
    bool failed;
} kit_h5_out;

/* A dataset of one (cols 0) or two dimensions; packed: in chunks, shuffled and deflated. */
void kit_h5_put(kit_h5_out *h, const char *path, hid_t type, hid_t in_memory, size_t rows, size_t cols, bool packed, const void *values);
void kit_h5_put_int(kit_h5_out *h, const char *name, int value);          // an attribute of the root
void kit_h5_put_text(kit_h5_out *h, const char *name, const char *value);
int kit_h5_put_texts(kit_h5_out *h, const kit_stats_text *text, size_t n, dw_err *err); // group /texts, as stats.h has it

/* ---- reading ---------------------------------------------------------------------------------------- */

typedef enum kit_h5_type { KIT_H5_U8, KIT_H5_U32, KIT_H5_U64, KIT_H5_I32, KIT_H5_F16, KIT_H5_F32, KIT_H5_F64, KIT_H5_STRING } kit_h5_type;

size_t kit_h5_type_size(kit_h5_type type); // bytes of a value in the file

/* A file that is open for reading; all zero: none is. */
typedef struct kit_h5_in {
    pid_t child;    // 0: none
    int socket;
    size_t n_bytes; // of the file
    size_t n_left;  // of them, for what is read once
    const char *maker;
    dw_err *err;    // of the call at hand
} kit_h5_in;

typedef struct kit_h5_set { // a dataset
    const char *path;      // borrowed
    kit_h5_type type;
    size_t dims[2];        // dims[1] is 0 for one dimension
    size_t n_stored;       // bytes in the file
    bool is_packed;        // they are fewer than its values have
} kit_h5_set;

/* Compares the checksum and opens.  `what` and `maker` name contents and program in sentences: "statistics", "collect";
 * they stay.  kit_h5_close also after a failure. */
int kit_h5_open(kit_h5_in *r, const char *path, const char *magic, const char *what, const char *maker, dw_err *err);
void kit_h5_close(kit_h5_in *r);

/* Subtracts from the bytes that the file can explain; refused when they are fewer. */
int kit_h5_take(kit_h5_in *r, size_t n_bytes, const char *what);

/* Below, -1 and a sentence when the file is not as the call expects. */
int kit_h5_has(const kit_h5_in *r, const char *path, bool *has);                             // by hard links only
int kit_h5_find(const kit_h5_in *r, const char *path, kit_h5_type type, kit_h5_set *set);      // a dataset of that type
/* Rows of a dataset that was found, as often as wanted; not of strings. */
int kit_h5_rows(const kit_h5_in *r, const kit_h5_set *set, size_t first, size_t n, void *values);
int kit_h5_whole(kit_h5_in *r, const kit_h5_set *set, void *values); // all rows, once
int kit_h5_int(const kit_h5_in *r, const char *name, int least, int most, int *value); // attributes of the root
char *kit_h5_text(kit_h5_in *r, const char *name);                                     // free()
int kit_h5_short_text(kit_h5_in *r, const char *name, char *text, size_t size);
int kit_h5_hash(kit_h5_in *r, const char *name, char hash[65]);                        // 64 hex digits
int kit_h5_n_texts(const kit_h5_in *r, size_t *n);                                     // at least 1
/* Fills n texts; their blocks are the caller's to free, also after a failure. */
int kit_h5_texts(kit_h5_in *r, kit_stats_text *text, size_t n);

#endif
