/* h5.h - the HDF5 files of this project (stats.h5, traces.h5), with a checksum; the reader is safe against hostile
 * files.
 *
 *   bytes 0 .. 511   the user block, which HDF5 libraries skip: the magic, a line such as "deadwood stats 1\n"; the
 *                    SHA-256 of bytes 512 .. in hex; "\n"; zeros
 *   bytes 512 ..     the HDF5 file
 *
 * The reader compares the hash first.  This finds damage, but anybody can compute a hash, and on hostile files the HDF5
 * library crashes, loops, or takes memory without limit.  Therefore the library reads in a child process with limits
 * (h5_child.h).  This process takes plain values from the child and checks their sizes first:
 *   - Only what this project writes is accepted: hard links, plain types, no filters except shuffle and deflate, no
 *     storage outside the file, no chunk larger than its dataset.
 *   - The size of a dataset is limited by its bytes in the file: the same number if it is not packed, 1100 times that
 *     if it is (deflate makes at most 1032 bytes of one).
 *   - Everything that is read once, strings included, has together at most as many bytes as the file (kit_h5_take).
 *     This refuses files in which many names share the same bytes.
 *
 * To change a file in Python, open it in h5py, close it, and write the new hash of bytes 512 .. into the user block;
 * h5py.File(path, "w", userblock_size=512) makes a new file.
 *
 * Files are written in this process.  The library may crash when its own writes fail, so small files are made in memory
 * and written by dw_out, and large files are written to disk space that was reserved before.  The library is not
 * thread-safe: only one thread of the process may use it at a time. */
#ifndef KIT_H5_H
#define KIT_H5_H

#include "kit/stats.h"

#include <hdf5.h>
#include <sys/types.h>

enum { KIT_H5_USER_BLOCK = 512, KIT_H5_MAX_ROWS = 1 << 24, KIT_H5_MAX_TEXTS = 1 << 20 };

void kit_h5_quiet(void);        // call first: the library then prints nothing, loads no filters, does nothing at exit
hid_t kit_h5_string_type(void); // UTF-8 of any length; H5Tclose()
hid_t kit_h5_half_type(void);   // IEEE 754 binary16, little endian; H5Tclose()

/* Makes the user block of a file whose HDF5 part is the n bytes of `image`. */
void kit_h5_user_block(const char *magic, const uint8_t *image, size_t n, char block[KIT_H5_USER_BLOCK]);

/* ---- writing ---------------------------------------------------------------------------------------- */

/* The put functions set `failed`, which the caller checks once, at the end. */
typedef struct kit_h5_out {
    hid_t file, links, text; // links: creation property list that makes the groups of a path
    bool failed;
} kit_h5_out;

/* A dataset of one (cols 0) or two dimensions; packed: in chunks, shuffled and deflated. */
void kit_h5_put(kit_h5_out *h, const char *path, hid_t type, hid_t in_memory, size_t rows, size_t cols, bool packed,
                const void *values);
void kit_h5_put_int(kit_h5_out *h, const char *name, int value);          // an attribute of the root
void kit_h5_put_text(kit_h5_out *h, const char *name, const char *value);
void kit_h5_put_numbers(kit_h5_out *h, const char *name, const double *value, size_t n);
/* An attribute of a dataset that exists. */
void kit_h5_put_note(kit_h5_out *h, const char *path, const char *name, const char *value);
int kit_h5_put_texts(kit_h5_out *h, const kit_stats_text *text, size_t n, dw_err *err); // group /texts (stats.h)

/* ---- reading ---------------------------------------------------------------------------------------- */

typedef enum kit_h5_type {
    KIT_H5_U8, KIT_H5_U32, KIT_H5_U64, KIT_H5_I32, KIT_H5_F16, KIT_H5_F32, KIT_H5_F64, KIT_H5_STRING
} kit_h5_type;

size_t kit_h5_type_size(kit_h5_type type); // bytes of a value in the file

/* A file that is open for reading; all zero: no file. */
typedef struct kit_h5_in {
    pid_t child;    // 0: none
    int socket;     // to the child
    size_t n_bytes; // of the file
    size_t n_left;  // how many bytes kit_h5_take still allows
    const char *maker;
    dw_err *err;    // where calls report
} kit_h5_in;

typedef struct kit_h5_set { // a dataset
    const char *path;      // borrowed
    kit_h5_type type;
    size_t dims[2];        // dims[1] is 0 for one dimension
    size_t n_stored;       // its bytes in the file
    bool is_packed;        // n_stored is less than the bytes of the values
} kit_h5_set;

/* Checks the hash and opens the file.  Messages name the content `what` ("statistics") and the program `maker`
 * ("collect"); maker is borrowed until kit_h5_close, which must also follow a failure. */
int kit_h5_open(kit_h5_in *r, const char *path, const char *magic, const char *what, const char *maker, dw_err *err);
void kit_h5_close(kit_h5_in *r);

/* Subtracts n_bytes from n_left; fails if n_left is smaller. */
int kit_h5_take(kit_h5_in *r, size_t n_bytes, const char *what);

/* The calls below return -1 (NULL) with a message when the file is not as they expect. */
int kit_h5_has(const kit_h5_in *r, const char *path, bool *has); // follows hard links only
int kit_h5_find(const kit_h5_in *r, const char *path, kit_h5_type type, kit_h5_set *set); // a dataset of that type
/* Rows of a dataset that was found; may be read again.  Not for strings. */
int kit_h5_rows(const kit_h5_in *r, const kit_h5_set *set, size_t first, size_t n, void *values);
int kit_h5_whole(kit_h5_in *r, const kit_h5_set *set, void *values); // all rows; subtracts them from n_left
/* Attributes of the root. */
int kit_h5_int(const kit_h5_in *r, const char *name, int least, int most, int *value);
char *kit_h5_text(kit_h5_in *r, const char *name); // free()
int kit_h5_short_text(kit_h5_in *r, const char *name, char *text, size_t size);
int kit_h5_hash(kit_h5_in *r, const char *name, char hash[65]); // 64 hex digits
int kit_h5_n_texts(const kit_h5_in *r, size_t *n);              // at least 1
/* Fills n texts.  The caller frees their `blocks`, also after a failure. */
int kit_h5_texts(kit_h5_in *r, kit_stats_text *text, size_t n);

#endif
