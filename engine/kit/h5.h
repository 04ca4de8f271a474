/* h5.h - HDF5 files of this project, behind a checksum and read with distrust (stats.h5, traces.h5).
 *
 * The HDF5 library crashes on damaged files, so it never sees one: in front of the HDF5 file stands a user block of 512
 * bytes, which HDF5 libraries skip: a line that says what the file is (its magic, e.g. "deadwood stats 1\n"), the SHA-256 of
 * all bytes behind the block in hex, "\n", zeros.  The reader compares the hash first; then it accepts only what this
 * project writes: hard links, plain types, no filters but shuffle and deflate, no storage outside the file, datasets no
 * larger than their bytes in the file explain.  To change a file in Python, open it in h5py, close it, and put the hash of
 * bytes 512.. back; h5py.File(path, "w", userblock_size=512) makes a new one.
 *
 * The library ends badly when its own writes fail: small files are made in memory and written by dw_out, large ones on
 * disk space that was reserved before.  It is not thread-safe: one thread at a time, in the whole process. */
#ifndef DW_H5_H
#define DW_H5_H

#include "kit/stats.h"

#include <hdf5.h>

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

typedef struct dw_h5_in {
    hid_t file, text;
    size_t n_bytes; // of the file
    dw_err *err;    // of the call at hand
} dw_h5_in;

/* Compares the checksum and opens.  `what` and `maker` name contents and program in sentences: "statistics", "collect".
 * dw_h5_close also after a failure. */
int dw_h5_open(dw_h5_in *r, const char *path, const char *magic, const char *what, const char *maker, dw_err *err);
void dw_h5_close(dw_h5_in *r);

bool dw_h5_has(const dw_h5_in *r, const char *path); // by hard links only
/* The dataset of a type and its dimensions (1 or 2; dims[1] is 0 for one), or -1 with a sentence.  H5Dclose(). */
hid_t dw_h5_set(const dw_h5_in *r, const char *path, hid_t type, size_t value_size, size_t dims[2]);
int dw_h5_int(const dw_h5_in *r, const char *name, int least, int most, int *value); // attributes of the root
char *dw_h5_text(const dw_h5_in *r, const char *name);                               // free()
int dw_h5_short_text(const dw_h5_in *r, const char *name, char *text, size_t size);
int dw_h5_hash(const dw_h5_in *r, const char *name, char hash[65]);                  // 64 hex digits
int dw_h5_n_texts(const dw_h5_in *r, size_t *n);                                     // at least 1
/* Fills n texts; their blocks are the caller's to free, also after a failure. */
int dw_h5_texts(const dw_h5_in *r, dw_stats_text *text, size_t n);

#endif
