/* preload_faults.c - makes one allocation or one file operation of a program fail, or ends it there by a signal
 * (build/faults.so, by LD_PRELOAD).
 *
 *     FAULT_ALLOC=N     the Nth allocation since main() gives NULL
 *     FAULT_IO=N        the Nth open, read, write, fsync, link, rename, mmap or close since main() fails
 *                       (writing: ENOSPC, else EIO)
 *     FAULT_INT=N       SIGINT comes at the Nth of these file operations
 *     FAULT_FLIP=N      the Nth write to a file since main() stores one wrong bit, and nobody is told; a word such as
 *                       GGUF instead of N: the first write that begins with it
 *     FAULT_NO_TMPFILE=1  files without a name (O_TMPFILE) cannot be made, as on some file systems, also in child
 *                         processes
 *     FAULT_LATE_LOCK=1 locks of files (flock) come late, or what follows them does, by a tenth of a millisecond
 *     FAULT_COUNT=FILE  nothing fails; at exit FILE gets one line for each distinct call stack: "alloc N" or "io N",
 *                       N its first call, then "total alloc N" and "total io N"
 *
 * Failing the first call of every distinct stack exercises every place that can fail, without as many runs as there
 * are calls.  Calls by the dynamic loader, by BLAS and by HDF5, directly or through libc, are passed on and not
 * counted: libhdf5 may crash when its own allocations fail.  Needs glibc; the numbers repeat only for a program that
 * runs on one thread. */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end);

enum { ALLOC, IO, N_KINDS, MAX_STACKS = 1 << 16, MAX_PARTS = 32, DEPTH = 24 };

static bool armed, no_tmpfile, late_lock;
static long n_calls[N_KINDS], failing[N_KINDS], interrupted, n_writes, flipped;
static const char *flipped_word;
typedef struct code { // of loaded libraries
    struct { uintptr_t first, end; } part[MAX_PARTS];
    int n;
} code;
static code excluded, libc;

/* Distinct call stacks: an open hash table, and the calls that came first, in order. */
static const char *count_file;
static uint64_t seen[MAX_STACKS];
static int n_seen, kind_of[MAX_STACKS];
static long first_call[MAX_STACKS];
static __thread bool inside;

static void note_stack(int kind) {
    if (inside || n_seen > MAX_STACKS * 3 / 4) return;
    inside = true; // backtrace may take memory itself
    void *frame[DEPTH];
    uint64_t h = (uint64_t)kind + 1;
    for (int i = 1, n = backtrace(frame, DEPTH); i < n; i++) h = (h ^ (uintptr_t)frame[i]) * 0x100000001b3u + 1;
    size_t at = h >> 20 & (MAX_STACKS - 1);
    while (seen[at] && seen[at] != h) at = (at + 1) & (MAX_STACKS - 1);
    if (!seen[at]) {
        seen[at] = h;
        kind_of[n_seen] = kind;
        first_call[n_seen++] = n_calls[kind];
    }
    inside = false;
}

static bool is_in(const code *c, const void *address) {
    for (int i = 0; i < c->n; i++)
        if ((uintptr_t)address >= c->part[i].first && (uintptr_t)address < c->part[i].end) return true;
    return false;
}

/* The first caller that is not libc (which allocates in strdup, fopen ..). */
static const void *outer_caller(const void *caller) {
    if (!is_in(&libc, caller)) return caller;
    void *frame[DEPTH];
    inside = true;
    const int n = backtrace(frame, DEPTH);
    inside = false;
    int i = 0;
    while (i < n && !is_in(&libc, frame[i])) i++; // this file's own frames
    while (i < n && is_in(&libc, frame[i])) i++;
    return i < n ? frame[i] : caller;
}

/* Counts a call; true when it has to fail. */
static bool fails(int kind, const void *caller) {
    if (!armed || inside || is_in(&excluded, outer_caller(caller))) return false;
    n_calls[kind]++;
    if (count_file) note_stack(kind);
    if (kind == IO && n_calls[IO] == interrupted) raise(SIGINT);
    return n_calls[kind] == failing[kind];
}

/* ---- begin and end -------------------------------------------------------------------------------------------- */

static int find_code(struct dl_phdr_info *info, size_t size, void *ctx) {
    (void)size, (void)ctx;
    static const char *const names[] = {"/libc.so", "/ld-linux", "libopenblas", "libgomp",    "libgfortran",
                                        "libhdf5",  "/libz.so",  "/libsz.so",   "/libaec.so", "linux-vdso"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!info->dlpi_name || !strstr(info->dlpi_name, names[i])) continue;
        code *c = i ? &excluded : &libc;
        for (int k = 0; k < info->dlpi_phnum && c->n < MAX_PARTS; k++) {
            if (info->dlpi_phdr[k].p_type != PT_LOAD) continue;
            const uintptr_t first = info->dlpi_addr + info->dlpi_phdr[k].p_vaddr;
            c->part[c->n].first = first;
            c->part[c->n++].end = first + info->dlpi_phdr[k].p_memsz;
        }
    }
    return 0;
}

static int (*real_main)(int, char **, char **);

static int armed_main(int argc, char **argv, char **envp) {
    const char *alloc = getenv("FAULT_ALLOC"), *io = getenv("FAULT_IO"), *interrupt = getenv("FAULT_INT");
    void *frame[4];
    failing[ALLOC] = alloc ? atol(alloc) : 0;
    failing[IO] = io ? atol(io) : 0;
    interrupted = interrupt ? atol(interrupt) : 0;
    const char *flip = getenv("FAULT_FLIP");
    flipped = flip ? atol(flip) : 0;
    if (flip && !flipped) flipped_word = flip;
    signal(SIGINT, SIG_DFL); // a shell may have started this in the background
    count_file = getenv("FAULT_COUNT");
    dl_iterate_phdr(find_code, NULL);
    backtrace(frame, 4);    // loads the unwinder now
    no_tmpfile = getenv("FAULT_NO_TMPFILE") != NULL;
    late_lock = getenv("FAULT_LATE_LOCK") != NULL;
    if (!no_tmpfile) unsetenv("LD_PRELOAD"); // children run as they are
    armed = true;
    const int rc = real_main(argc, argv, envp);
    armed = false; // what exit() and the libraries' ends do is theirs
    return rc;
}

int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end) {
    __typeof__(__libc_start_main) *real = dlsym(RTLD_NEXT, "__libc_start_main");
    real_main = main;
    return real(armed_main, argc, argv, init, fini, rtld_fini, stack_end);
}

__attribute__((destructor)) static void write_counts(void) {
    armed = false;
    FILE *f = count_file ? fopen(count_file, "w") : NULL;
    if (!f) return;
    for (int i = 0; i < n_seen; i++) fprintf(f, "%s %ld\n", kind_of[i] == IO ? "io" : "alloc", first_call[i]);
    fprintf(f, "total alloc %ld\ntotal io %ld\n", n_calls[ALLOC], n_calls[IO]);
    fclose(f);
}

/* ---- memory --------------------------------------------------------------------------------------------------- */

#define ALLOC_FAILS() (fails(ALLOC, __builtin_return_address(0)) && (errno = ENOMEM))

void *malloc(size_t size) { return ALLOC_FAILS() ? NULL : __libc_malloc(size); }
void *calloc(size_t n, size_t size) { return ALLOC_FAILS() ? NULL : __libc_calloc(n, size); }
void *realloc(void *old, size_t size) { return ALLOC_FAILS() ? NULL : __libc_realloc(old, size); }
void *aligned_alloc(size_t alignment, size_t size) { return ALLOC_FAILS() ? NULL : __libc_memalign(alignment, size); }
void *memalign(size_t alignment, size_t size) { return ALLOC_FAILS() ? NULL : __libc_memalign(alignment, size); }

int posix_memalign(void **p, size_t alignment, size_t size) {
    if (ALLOC_FAILS()) return ENOMEM;
    *p = __libc_memalign(alignment, size);
    return *p ? 0 : ENOMEM;
}

/* ---- files ---------------------------------------------------------------------------------------------------- */

#define REAL(name)                                                                                                     \
    static __typeof__(name) *real;                                                                                     \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define IO_FAILS(why) (fails(IO, __builtin_return_address(0)) && (errno = (why)))

static mode_t mode_of(int flags, va_list args) {
    const bool makes = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE;
    return makes ? va_arg(args, mode_t) : 0;
}

static bool is_refused(int flags) { return no_tmpfile && (flags & O_TMPFILE) == O_TMPFILE && (errno = EOPNOTSUPP); }

int open(const char *path, int flags, ...) {
    REAL(open);
    va_list args;
    va_start(args, flags);
    const mode_t mode = mode_of(flags, args);
    va_end(args);
    return is_refused(flags) || IO_FAILS(flags & O_CREAT ? ENOSPC : EIO) ? -1 : real(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    REAL(open64);
    va_list args;
    va_start(args, flags);
    const mode_t mode = mode_of(flags, args);
    va_end(args);
    return is_refused(flags) || IO_FAILS(flags & O_CREAT ? ENOSPC : EIO) ? -1 : real(path, flags, mode);
}

/* One of four calls waits before it locks, one after it. */
int flock(int fd, int operation) {
    REAL(flock);
    const long when = late_lock ? random() % 4 : 0;
    if (when == 1) usleep(100);
    const int rc = real(fd, operation);
    if (when == 2) usleep(100);
    return rc;
}

FILE *fopen(const char *path, const char *mode) {
    REAL(fopen);
    return IO_FAILS(EIO) ? NULL : real(path, mode);
}

ssize_t read(int fd, void *to, size_t size) {
    REAL(read);
    return IO_FAILS(EIO) ? -1 : real(fd, to, size);
}

ssize_t pread(int fd, void *to, size_t size, off_t at) {
    REAL(pread);
    return IO_FAILS(EIO) ? -1 : real(fd, to, size, at);
}

/* Writes the bytes with one bit changed in the middle. */
static ssize_t write_flipped(int fd, const void *from, size_t size, __typeof__(write) *real) {
    uint8_t *changed = __libc_malloc(size);
    if (!changed) abort();
    memcpy(changed, from, size);
    changed[size / 2] ^= 1;
    const ssize_t n = real(fd, changed, size);
    free(changed);
    return n;
}

static bool is_flipped(const void *from, size_t size) {
    if (flipped) return ++n_writes == flipped;
    const size_t n = flipped_word ? strlen(flipped_word) : 0;
    if (!n || size < n || memcmp(from, flipped_word, n)) return false;
    flipped_word = NULL;
    return true;
}

ssize_t write(int fd, const void *from, size_t size) {
    REAL(write);
    if (armed && fd > 2 && size && is_flipped(from, size)) return write_flipped(fd, from, size, real);
    return fd != 2 && IO_FAILS(ENOSPC) ? -1 : real(fd, from, size);
}

ssize_t pwrite(int fd, const void *from, size_t size, off_t at) {
    REAL(pwrite);
    return IO_FAILS(ENOSPC) ? -1 : real(fd, from, size, at);
}

int ftruncate(int fd, off_t size) {
    REAL(ftruncate);
    return IO_FAILS(ENOSPC) ? -1 : real(fd, size);
}

int fsync(int fd) {
    REAL(fsync);
    return IO_FAILS(EIO) ? -1 : real(fd);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    return IO_FAILS(EIO) ? -1 : real(from, to);
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    REAL(linkat);
    return IO_FAILS(EIO) ? -1 : real(from_folder, from, to_folder, to, flags);
}

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    REAL(mmap);
    return IO_FAILS(ENOMEM) ? MAP_FAILED : real(at, size, protection, flags, fd, offset);
}

int close(int fd) {
    REAL(close);
    const bool failed = IO_FAILS(EIO);
    const int rc = real(fd);
    if (!failed) return rc;
    errno = EIO;
    return -1;
}
