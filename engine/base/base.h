/* base.h - what every part of deadwood uses; it knows nothing of models.
 *
 * Errors       a dw_err holds one sentence; the first failure wins.  Functions that can fail return 0 or
 *              -1 (or a pointer, NULL on failure) and take `dw_err *err` last; err may be NULL.
 * Memory       allocated up front by dw_alloc, which checks the product and names what could not be allocated.
 * Files        inputs are opened in one place and must be regular files; they are mapped (dw_map) or read whole.
 *              An output is written whole or not at all and never replaces an input (dw_out).
 * Numbers      half-precision conversions, SHA-256, a seeded generator.
 * Threads      one pool per process; a job runs on every thread; barriers spin, then yield, then park.
 *
 * Nothing here prints or exits. */
#ifndef DW_BASE_H
#define DW_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* For what must hold inside the engine, and for what the caller of a function has to keep to.  Checked only in builds
 * with -DDW_DEBUG (make DEBUG=1). */
#ifdef DW_DEBUG
#include <assert.h>
#define dw_assert assert
#else
#define dw_assert(x) ((void)sizeof(x))
#endif

/* A function that is compiled for several widths of the vector unit; the CPU's own is called.  All give the same bits:
 * multiply-adds are not contracted, and a loop's sums are written apart.  (Not under the thread sanitizer: the choice
 * runs before the sanitizer is ready.) */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_THREAD__)
#define DW_FOR_VECTOR_UNITS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DW_FOR_VECTOR_UNITS
#endif

static inline int dw_smaller(int a, int b) { return a < b ? a : b; }
static inline int dw_larger(int a, int b) { return a > b ? a : b; }
static inline size_t dw_larger_size(size_t a, size_t b) { return a > b ? a : b; }

/* ---- errors ---------------------------------------------------------------------------------- */

typedef struct dw_err {
    char text[4096 + 512]; // "" while nothing has failed; a path of PATH_MAX bytes leaves room for the reason
} dw_err;

/* Record a failure unless one is recorded already.  Always returns -1, so that failing is one line. */
int dw_fail(dw_err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Put "where: " in front of a recorded failure, to name the file or layer that a helper did not know. */
int dw_fail_in(dw_err *err, const char *where, ...) __attribute__((format(printf, 2, 3)));

/* ---- memory ---------------------------------------------------------------------------------- */

/* n * size bytes, zeroed, aligned to 64; `what` names them in the error.  Free with free(). */
void *dw_alloc(size_t n, size_t size, const char *what, dw_err *err);

/* Grow an array from dw_alloc to hold at least `need` elements (doubling); old contents are kept.
 * *array and *cap are updated together; on failure both are unchanged. */
int dw_grow(void *array_pointer, size_t *cap, size_t need, size_t size, const char *what, dw_err *err);

/* Whole pages of memory, zeroed, which cost nothing until they are touched.  The memory ends at a page that nobody may
 * access; data is aligned to 64 if n_bytes is a multiple of it.  Huge ones (2 MB) need fewer look-ups of addresses and
 * are touched whole; they are a wish, which the system may grant for some of them (Linux: madvise). */
typedef struct dw_pages {
    uint8_t *data; // NULL: none
    size_t n_bytes;
    void *map;
    size_t map_bytes;
} dw_pages;

int dw_pages_new(dw_pages *p, size_t n_bytes, bool huge, dw_err *err);
void dw_pages_free(dw_pages *p);
bool dw_pages_may_be_huge(void); // whether this system gives pages of 2 MB to those who ask
double dw_pages_huge_share(const dw_pages *p); // of what is touched; NaN: unknown

/* The first n_bytes (not 0) of a file, read-only, by huge pages where the file system keeps it so (ext4 since Linux 6.16:
 * what was written or read first 2 MB at a time).  MAP_FAILED, with errno; munmap() it. */
void *dw_pages_map_file(int fd, size_t n_bytes);

char *dw_strdup(const char *text, dw_err *err);                                      // free()
char *dw_format(dw_err *err, const char *format, ...) __attribute__((format(printf, 2, 3))); // free()

/* Appends formatted text to *text (NULL: empty), which is reallocated; unchanged on failure. */
int dw_append(char **text, dw_err *err, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Several arrays in one block of memory.  The same code runs twice: with base NULL it only counts, and `used` is
 * then the size of the block to allocate; with that block it hands out the arrays.  When a product or a sum
 * overflows, `used` becomes SIZE_MAX and stays so; the allocation then fails. */
typedef struct dw_layout {
    uint8_t *base;
    size_t used;
} dw_layout;

void *dw_layout_take(dw_layout *l, size_t n, size_t size); // rounded up to 64 bytes; NULL while counting

/* Checked arithmetic for every number that comes from a file: false on overflow, *out then unset. */
static inline bool dw_mul(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool dw_add(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }
/* The product; SIZE_MAX on overflow, which dw_layout_take refuses. */
static inline size_t dw_times(size_t a, size_t b) {
    size_t product;
    return dw_mul(a, b, &product) ? product : SIZE_MAX;
}

/* ---- a cursor over untrusted bytes ------------------------------------------------------------ */

/* All reading of binary headers goes through this one type.  dw_cursor_take compares n with `left` and adds nothing,
 * so untrusted numbers cannot overflow.  After the first failure every read returns 0 and `failed` stays set. */
typedef struct dw_cursor {
    const uint8_t *at;
    size_t left;
    bool failed;
} dw_cursor;

const uint8_t *dw_cursor_take(dw_cursor *c, size_t n); // n bytes, or NULL
uint8_t dw_cursor_u8(dw_cursor *c);
uint32_t dw_cursor_u32(dw_cursor *c);
uint64_t dw_cursor_u64(dw_cursor *c);

static inline uint16_t dw_le16(const void *p) { const uint8_t *b = p; return (uint16_t)(b[0] | b[1] << 8); }
static inline uint32_t dw_le32(const void *p) { return dw_le16(p) | (uint32_t)dw_le16((const uint8_t *)p + 2) << 16; }
static inline uint64_t dw_le64(const void *p) { return dw_le32(p) | (uint64_t)dw_le32((const uint8_t *)p + 4) << 32; }

/* The number of bytes before the first that is a NUL or not well-formed UTF-8; and whether there is no such byte. */
size_t dw_utf8_len(const char *text, size_t len);
bool dw_is_utf8(const char *text, size_t len);

/* Copies n bytes of text in a form that is safe to print on a terminal: control characters, characters that change
 * the direction of writing, and bytes that are not UTF-8 become escapes ("\x1b", "\n", "\u202e").  Writes whole
 * characters and escapes, as many as fit in cap bytes with the NUL.  cap is at least 1; 4 n + 1 bytes hold
 * everything.  Returns the number of bytes before the NUL. */
size_t dw_show(char *to, size_t cap, const char *text, size_t n);

/* ---- input files ------------------------------------------------------------------------------ */

/* Returns a descriptor, and the file's size, or -1.  Every input is opened here.  Only regular files are accepted;
 * O_NONBLOCK keeps the open from waiting for a FIFO or a terminal.  Symbolic links are followed, because the caches
 * of Hugging Face consist of them. */
int dw_open_input(const char *path, size_t *size, dw_err *err);

/* Which version of which file: a file that is written again or replaced has another stamp, unless that happens within
 * one tick of the file system's clock.  All zero: unknown. */
typedef struct dw_stamp {
    uint64_t device, inode, size;
    int64_t modified, changed; // nanoseconds: of the contents, of the inode
} dw_stamp;

int dw_stamp_of(const char *path, dw_stamp *stamp); // -1: it is not there, or no regular file
bool dw_stamp_equal(const dw_stamp *a, const dw_stamp *b);

/* A file mapped read-only.  data stays valid until dw_unmap; an empty file has data != NULL and size 0. */
typedef struct dw_map {
    const uint8_t *data;
    size_t size;
    dw_stamp stamp; // of the file when it was opened
} dw_map;

int dw_map_file(dw_map *map, const char *path, dw_err *err);
void dw_unmap(dw_map *map);

bool dw_file_exists(const char *path);
bool dw_is_folder(const char *path);
size_t dw_file_bytes(const char *path);                             // 0: it is not there, or no regular file
bool dw_file_begins(const char *path, const void *magic, size_t n); // a regular file that begins with these bytes
const char *dw_file_kind(unsigned mode);    // st_mode in words, for messages: "a FIFO"
const char *dw_base_name(const char *path); // the part after the last slash that is not at the end: "b/" for "a/b/"

/* A whole file in memory, followed by a NUL; refused when larger than max_bytes.  free() it. */
char *dw_read_file(const char *path, size_t max_bytes, size_t *size, dw_err *err);

/* The same for a text; size must not be NULL.  Fails if it is not UTF-8 without NUL, so that no model is calibrated on,
 * or scored with, a binary file. */
char *dw_read_text(const char *path, size_t max_bytes, size_t *size, dw_err *err);

/* No output replaces an input.  A program calls dw_inputs_keep once at its start.  From then on every file that is
 * opened as input is remembered by device, inode, size and time, and dw_out refuses to replace it.  dw_input_named
 * adds a file that the command line names; a path that does not exist is ignored.  A caller of the library that does
 * not call dw_inputs_keep may read a file and write it again. */
void dw_inputs_keep(void);
int dw_input_named(const char *path, dw_err *err);
bool dw_is_input(const char *path, bool only_named); // whether the path now leads to a remembered file
void dw_input_forget(int fd);                        // an output that was read back is no input

/* ---- output files ------------------------------------------------------------------------------ */

/* Opens /dev/null for each of the descriptors 0 to 2 that is closed.  Otherwise a file opened later would get the
 * number of a standard stream and receive its messages.  A program calls this first. */
int dw_open_standard_streams(dw_err *err);

/* An output file that appears whole or not at all.  It is written in the same folder without its final name (out.c);
 * dw_out_commit flushes, fsyncs and renames it.  dw_out_free without a commit removes it.  An existing file is
 * replaced only at commit.  Opening fails if the path is not a regular file; opening and commit both fail if it is
 * an input. */
typedef struct dw_out dw_out;

dw_out *dw_out_open(const char *path, dw_err *err);
/* The same for a file that the program itself reads and writes again (a table to which rows are appended).  It may
 * replace a file that was read, but not one that the command line names as input. */
dw_out *dw_out_open_kept(const char *path, dw_err *err);
int dw_out_write(dw_out *out, const void *data, size_t size, dw_err *err); // buffered
int dw_out_printf(dw_out *out, dw_err *err, const char *format, ...) __attribute__((format(printf, 3, 4)));
int dw_out_commit(dw_out *out, dw_err *err);
/* Commits only a file that passes a check.  check(ctx, path, err) opens the complete new file for reading under `path`,
 * which is not its final name, and returns 0, or -1 with the reason.  After a failed check an
 * old file of the final name is unchanged, and the new one is removed. */
typedef int dw_out_check(void *ctx, const char *path, dw_err *err);
int dw_out_commit_checked(dw_out *out, dw_out_check *check, void *ctx, dw_err *err);
/* A check for an output that is still in memory: the file consists of these pieces. */
typedef struct dw_out_piece {
    const void *data;
    size_t size;
} dw_out_piece;
typedef struct dw_out_pieces {
    const dw_out_piece *piece;
    size_t n;
} dw_out_pieces;
int dw_out_holds(void *pieces, const char *path, dw_err *err);
/* Gives the unfinished file its random name and returns it (borrowed).  For a library that opens the file by name
 * and writes it before anything is written here.  What killed processes left of such files for the same output goes. */
const char *dw_out_temporary(dw_out *out, dw_err *err);
void dw_out_free(dw_out *out);
/* Whether a file's name (without folders) has the form that dw_out gives to unfinished files. */
bool dw_out_is_temporary(const char *name);
/* Removes such a file, unless a living process writes it; true when it is gone.  Where locks do not reach other hosts,
 * their processes are not seen. */
bool dw_out_remove_left(const char *path);
/* Makes a small file that appears with its contents, but is not synced.  1: there is a file of that name.  A process that
 * is killed here may leave a temporary name beside it. */
int dw_write_new(const char *path, const char *text, size_t n, dw_err *err);

/* The same for a new folder of up to 16 files.  Each is written with dw_out to the path that dw_out_folder_file
 * returns (borrowed until dw_out_folder_free).  The folder must not exist yet. */
typedef struct dw_out_folder dw_out_folder;

dw_out_folder *dw_out_folder_open(const char *path, dw_err *err);
const char *dw_out_folder_file(dw_out_folder *f, const char *name, dw_err *err);
int dw_out_folder_commit(dw_out_folder *f, dw_err *err);
void dw_out_folder_free(dw_out_folder *f);

/* A path at which a run keeps what it has finished, such as FILE.part, and which one process has at a time.
 * dw_hold_take makes an empty file where there is none, locks it, and fails while another process has it.  The lock
 * follows the path: a file that dw_out commits there gets it.  A file that is not kept goes when the hold or the
 * process ends.  An empty file is not kept, unless dw_hold_keep says so; a commit to the path says so, too.  Where
 * files cannot be locked, several processes may have a path. */
typedef struct dw_hold dw_hold;

dw_hold *dw_hold_take(const char *path, dw_err *err);
int dw_hold_fd(const dw_hold *h); // of the file until the next commit, for reading and writing; borrowed
void dw_hold_keep(dw_hold *h, bool kept);
bool dw_hold_is_kept(const dw_hold *h);
void dw_hold_free(dw_hold *h);   // may be NULL
void dw_hold_remove(dw_hold *h); // removes the file, kept or not; may be NULL

/* Removes all unfinished outputs, for signal handlers and exit().  Safe in a handler and in any thread.  The process
 * must end soon after, because outputs that are still being written have lost their names.  Not for a forked child. */
void dw_out_remove_unfinished(void);

/* ---- hash, random numbers ---------------------------------------------------------------------- */

typedef struct dw_sha256 {
    uint32_t state[8];
    uint64_t n_bytes;
    uint8_t block[64];
} dw_sha256;

void dw_sha256_begin(dw_sha256 *h);
void dw_sha256_add(dw_sha256 *h, const void *data, size_t size); // uses the CPU's SHA instructions where present
void dw_sha256_end(dw_sha256 *h, uint8_t digest[32]);
void dw_sha256_digest(const void *data, size_t size, uint8_t digest[32]); // all three
void dw_hex(const uint8_t *bytes, size_t n, char *text); // 2n digits and a NUL
bool dw_is_hash(const char *text);                       // 64 digits as dw_hex writes them
void dw_sha256_hex(const void *data, size_t size, char hex[65]);
int dw_sha256_file(const char *path, char hex[65], dw_err *err);

/* xoshiro256** (Blackman & Vigna 2018), seeded by splitmix64: one seed gives the same numbers on every machine. */
typedef struct dw_rng {
    uint64_t s[4];
} dw_rng;

void dw_rng_seed(dw_rng *rng, uint64_t seed);
uint64_t dw_splitmix(uint64_t x); // a hash of x: the next number of splitmix64 (Steele et al. 2014) after state x
uint64_t dw_rng_next(dw_rng *rng);
double dw_rng_uniform(dw_rng *rng);            // [0, 1)
double dw_rng_normal(dw_rng *rng);             // mean 0, variance 1
uint64_t dw_rng_below(dw_rng *rng, uint64_t n); // 0 .. n-1 without bias

/* ---- half precision ----------------------------------------------------------------------------- */

static inline float dw_bf16_to_f32(uint16_t h) {
    union { uint32_t u; float f; } v = {.u = (uint32_t)h << 16};
    return v.f;
}
uint16_t dw_f32_to_bf16(float f); // round to nearest even; NaN stays NaN
float dw_f16_to_f32(uint16_t h);
uint16_t dw_f32_to_f16(float f); // round to nearest even, subnormals kept, overflow to infinity

/* ---- threads -------------------------------------------------------------------------------------- */

typedef struct dw_pool dw_pool;

/* n_threads <= 0: dw_cpu_count() threads; above 256: 256 threads (dw_pool_size tells).  The calling thread is one of
 * them; the others receive no signals. */
dw_pool *dw_pool_new(int n_threads, dw_err *err);
void dw_pool_free(dw_pool *pool);
int dw_pool_size(const dw_pool *pool);

/* Run fn(arg, ith, n) on all n threads, ith = 0 on the caller; returns when all have returned. */
void dw_pool_run(dw_pool *pool, void (*fn)(void *arg, int ith, int n), void *arg);
/* The same on the first n threads, 1 <= n <= size. */
void dw_pool_run_on(dw_pool *pool, int n, void (*fn)(void *arg, int ith, int n), void *arg);
/* How many threads the next job had best run on: all, or for a while fewer where other processes took their cores
 * (threads.c).  For jobs whose results do not depend on it. */
int dw_pool_present(dw_pool *pool);
/* Sorts lost[0 .. n - 1], the shares of the time that n threads were ready without a core, and returns how many threads
 * would do most. */
int dw_pool_best(double *lost, int n);
/* Makes dw_pool_present return n for some seconds (for tests). */
void dw_pool_rest(dw_pool *pool, int n, double seconds);

/* Inside a job: wait until all its threads are here.  Spins for 3 to 5 us, yields for 1 ms, then parks on a futex, so
 * that a core that a competing process wants is not held. */
void dw_pool_barrier(dw_pool *pool);

/* Run fn(arg, i) for i in 0..n-1 in any order, taken one at a time by at most n of the threads that are present. */
void dw_pool_each(dw_pool *pool, size_t n, void (*fn)(void *arg, size_t i), void *arg);

int dw_cpu_count(void); // physical cores that affinity and the control group's quota allow
double dw_now(void);    // seconds, monotonic

#endif
