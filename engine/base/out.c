/* out.c - output that appears whole or not at all.
 *
 * An output is written into a file without a name (O_TMPFILE).  When it is complete it gets a random name in the same
 * folder and is renamed to the final one, so a process that is killed while it writes leaves nothing.  On a file system
 * without O_TMPFILE the file has the random name from the beginning:
 *
 *     model.gguf.dw9f86d081884c7d65.part
 *
 * A process that is killed while such a name is there leaves that file.  Its writer holds a lock (flock) on it for as long
 * as it lives, so others can tell (dw_out_remove_left).  The next output of that name removes it.
 *
 * A name that would be longer than file systems allow is cut before the random part.  The random name must be new and
 * is never followed as a link, so nobody who writes into the folder can redirect the output. */
#include "base/base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER_BYTES = 2 << 20, MOST_AT_ONCE = 1 << 30 }; // Linux writes at most 2 GB less a page
enum { MAX_OPEN = 64, MAX_FILES = 16, N_DIGITS = 16, MAX_NAME = 255 };

struct dw_out {
    char *path, *temporary; // the final name and the random one
    int fd, slot;
    bool nameless; // the random name is not on the disk yet
    bool keeper;
    char link[32]; // leads to the file while it has no name
    uint8_t *buffer;
    size_t n_buffered;
};

/* ---- standard streams -------------------------------------------------------------------------- */

/* Each is opened in the wrong direction, so that using the stream still fails, as if it were closed. */
int dw_open_standard_streams(dw_err *err) {
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
        const int got = open("/dev/null", fd ? O_RDONLY : O_WRONLY);
        if (got < 0)
            return dw_fail(err, "cannot open '/dev/null' for a standard stream that is closed: %s", strerror(errno));
    }
    return 0;
}

/* ---- names that must not stay ------------------------------------------------------------------ */

/* Names of unfinished files and folders.  Whoever exchanges a name for NULL owns it: the writer, which frees it, or
 * a signal handler, which removes the file.  So the handler never sees a name that is being freed. */
static _Atomic(char *) unfinished[MAX_OPEN];

/* Files first, then the folders that held them. */
void dw_out_remove_unfinished(void) {
    char *folder[MAX_OPEN];
    int n_folder = 0;
    for (int i = 0; i < MAX_OPEN; i++) {
        char *name = atomic_exchange(&unfinished[i], NULL);
        if (name && unlink(name) && (errno == EISDIR || errno == EPERM)) folder[n_folder++] = name;
    }
    while (n_folder) rmdir(folder[--n_folder]);
}

/* A slot for the name, or -1. */
static int claim(char *name, dw_err *err) {
    for (int i = 0; i < MAX_OPEN; i++) {
        char *empty = NULL;
        if (atomic_compare_exchange_strong(&unfinished[i], &empty, name)) return i;
    }
    errno = EMFILE; // for callers without err
    return dw_fail(err, "cannot write '%s': more than %d output files are open", name, MAX_OPEN);
}

/* Takes the name back and frees it, unless the handler owns it. */
static void let_go(int *slot, char **name) {
    char *expected = *name;
    if (*slot < 0 || atomic_compare_exchange_strong(&unfinished[*slot], &expected, NULL)) free(*name);
    *slot = -1;
    *name = NULL;
}

/* ---- names --------------------------------------------------------------------------------------- */

static const char ending[] = ".part";
enum { TAIL = 3 + N_DIGITS + sizeof ending - 1 }; // ".dw", digits, ".part"

/* How many bytes of a path can stay before the tail; a character of UTF-8 is not cut. */
static int length_before_tail(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t n = strlen(name);
    if (n > MAX_NAME - TAIL)
        for (n = MAX_NAME - TAIL; n && ((unsigned char)name[n] & 0xc0) == 0x80;) n--;
    return (int)((size_t)(name - path) + n);
}

static char *temporary_name(const char *path, dw_err *err) {
    uint64_t number;
    if (getentropy(&number, sizeof number))
        return dw_fail(err, "cannot name a temporary file for '%s': %s", path, strerror(errno)), NULL;
    return dw_format(err, "%.*s.dw%016llx%s", length_before_tail(path), path, (unsigned long long)number, ending);
}

bool dw_out_is_temporary(const char *name) {
    const size_t n = strlen(name);
    if (n <= TAIL || strcmp(name + n - (sizeof ending - 1), ending)) return false;
    const char *at = name + n - TAIL;
    return !strncmp(at, ".dw", 3) && strspn(at + 3, "0123456789abcdef") == N_DIGITS;
}

/* The folder of a path, with its slash; free() it. */
static char *folder_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
}

static int refuse_input(const dw_out *out, dw_err *err) {
    if (!dw_is_input(out->path, out->keeper)) return 0;
    return dw_fail(err, "'%s' is input and output at once; choose another name for the output", out->path);
}

/* Whether a rename can replace the file: not where something is mounted, nor where only owners may. */
static bool may_replace(const char *path, const struct stat *file) {
    struct stat st;
    char *folder = folder_of(path);
    const bool known = folder && !stat(folder, &st);
    free(folder);
    if (!known) return true;
    const uid_t own = geteuid();
    if ((st.st_mode & S_ISVTX) && own && own != st.st_uid && own != file->st_uid) return false;
#ifdef STATX_ATTR_MOUNT_ROOT
    struct statx x;
    if (!statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, 0, &x) && x.stx_attributes & STATX_ATTR_MOUNT_ROOT) return false;
#endif
    return true;
}

static int check_path(const dw_out *out, dw_err *err) {
    struct stat st;
    const size_t n = strlen(out->path);
    if (stat(out->path, &st)) { // a name that cannot exist fails now, and not after hours of work
        if (errno != ENOENT) return dw_fail(err, "cannot write '%s': %s", out->path, strerror(errno));
        if (n && out->path[n - 1] == '/')
            return dw_fail(err, "cannot write '%s': a file's name does not end in '/'", out->path);
        return 0;
    }
    if (!S_ISREG(st.st_mode))
        return dw_fail(err, "cannot write '%s': it is %s, not a regular file", out->path, dw_file_kind(st.st_mode));
    if (!may_replace(out->path, &st))
        return dw_fail(err,
                       "cannot write '%s': it cannot be replaced, because it is mounted or of another user in a "
                       "folder that keeps its files (sticky); choose another name",
                       out->path);
    return refuse_input(out, err);
}

/* ---- locks ----------------------------------------------------------------------------------------- */

/* Where files cannot be locked, nobody can lock them to remove them.  False: another process holds the lock. */
static bool lock(int fd) { return !flock(fd, LOCK_EX | LOCK_NB) || errno != EWOULDBLOCK; }

/* A lock (fcntl) that those of flock do not see.  Where there is none, nobody can test it either. */
#ifdef F_OFD_SETLK
static void lock_aside(int fd) {
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    (void)fcntl(fd, F_OFD_SETLK, &l);
}

static bool is_locked_aside(int fd) {
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return !fcntl(fd, F_OFD_GETLK, &l) && l.l_type != F_UNLCK;
}
#else
static void lock_aside(int fd) { (void)fd; }
static bool is_locked_aside(int fd) { return (void)fd, false; }
#endif

bool dw_out_remove_left(const char *path) {
    struct stat st;
    if (!dw_out_is_temporary(dw_base_name(path))) return false;
    const int flags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    int fd = open(path, O_RDWR | flags); // some file systems lock only what can be written
    if (fd < 0) fd = open(path, O_RDONLY | flags);
    // Looked at under the lock: another remover may have been here, and the name may be that of a new file.
    const bool is_left = fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB) && !is_locked_aside(fd) && !fstat(fd, &st) &&
                         S_ISREG(st.st_mode) && st.st_nlink;
    const bool removed = is_left && !unlink(path);
    if (fd >= 0) close(fd);
    return removed;
}

/* Of outputs to the same path. */
static void remove_all_left(const char *path) {
    char *folder = folder_of(path);
    const char *name = dw_base_name(path);
    const size_t n = (size_t)length_before_tail(name);
    DIR *d = folder ? opendir(folder) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        char *left = !strncmp(e->d_name, name, n) && strlen(e->d_name) == n + TAIL
                         ? dw_format(NULL, "%.*s%s", (int)(name - path), path, e->d_name)
                         : NULL;
        if (left) dw_out_remove_left(left);
        free(left);
    }
    if (d) closedir(d);
    free(folder);
}

/* Waits for the lock. */
static void wait_for_lock(int fd) {
    while (flock(fd, LOCK_EX) && errno == EINTR) {}
}

/* A file with this name, locked.  Another process that finds it before the lock may remove it, under the lock; then it is
 * made again. */
static int open_named(const char *name) {
    struct stat st;
    for (int i = 0; i < 100; i++) {
        const int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd >= 0) wait_for_lock(fd);
        if (fd < 0 || (!fstat(fd, &st) && st.st_nlink)) return fd;
        close(fd);
    }
    errno = EBUSY;
    return -1;
}

/* ---- files without a name ------------------------------------------------------------------------ */

#ifdef O_TMPFILE
static int give_name(int fd, const char *name) {
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, link, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
}

static int open_unnamed(const char *folder) {
    const int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    if (fd >= 0) lock(fd); // nobody else can
    return fd;
}

/* A descriptor, or -1 where files without a name cannot be made or cannot be named later.  An empty file tests both,
 * because a failure to name the output after hours of work would be too late. */
static int open_nameless(const char *path, const char *temporary) {
    char *folder = folder_of(path);
    int fd = folder ? open_unnamed(folder) : -1;
    if (fd >= 0) {
        const bool can = !give_name(fd, temporary) && !unlink(temporary);
        close(fd);
        fd = can ? open_unnamed(folder) : -1;
    }
    free(folder);
    return fd;
}
#else
static int give_name(int fd, const char *name) { return (void)fd, (void)name, -1; }
static int open_unnamed(const char *folder) { return (void)folder, -1; }
static int open_nameless(const char *path, const char *temporary) { return (void)path, (void)temporary, -1; }
#endif

/* ---- held paths ------------------------------------------------------------------------------------ */

struct dw_hold {
    char *path, *name; // name: as path, among the names that must not stay; NULL: the file is kept
    int fd, slot;
    dw_hold *next;
};

static dw_hold *holds; // of this process

static bool is_at(int fd, const char *path) {
    struct stat own, now;
    return !fstat(fd, &own) && !lstat(path, &now) && own.st_dev == now.st_dev && own.st_ino == now.st_ino;
}

/* The file at the path, locked.  Another process may commit to the path or remove the file between the opening and the
 * lock; then the file that is there now is tried. */
static int open_held(const char *path, dw_err *err) {
    for (int i = 0; i < 100; i++) {
        const int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
        if (fd < 0) return dw_fail(err, "cannot open '%s': %s", path, strerror(errno));
        const bool is_free = lock(fd);
        if (is_free && is_at(fd, path)) return fd;
        close(fd);
        if (!is_free) break;
    }
    return dw_fail(err, "'%s' is in use by another run", path);
}

dw_hold *dw_hold_take(const char *path, dw_err *err) {
    struct stat st;
    dw_hold *h = dw_alloc(1, sizeof *h, "a path to hold", err);
    if (!h) return NULL;
    h->slot = -1;
    h->path = dw_strdup(path, err);
    h->fd = h->path ? open_held(path, err) : -1;
    if (h->fd < 0) {
        free(h->path);
        free(h);
        return NULL;
    }
    h->next = holds;
    holds = h;
    dw_hold_keep(h, fstat(h->fd, &st) || st.st_size);
    return h;
}

int dw_hold_fd(const dw_hold *h) { return h->fd; }
bool dw_hold_is_kept(const dw_hold *h) { return !h->name; }

void dw_hold_keep(dw_hold *h, bool kept) {
    if (kept == dw_hold_is_kept(h)) return;
    if (!kept && (h->name = dw_strdup(h->path, NULL))) h->slot = claim(h->name, NULL);
    if (kept || h->slot < 0) let_go(&h->slot, &h->name);
}

/* Another process may have the path by now, if somebody removed the file. */
static void end_hold(dw_hold *h, bool removes) {
    let_go(&h->slot, &h->name);
    if (removes && is_at(h->fd, h->path)) unlink(h->path);
    dw_hold **at = &holds;
    while (*at != h) at = &(*at)->next;
    *at = h->next;
    close(h->fd);
    free(h->path);
    free(h);
}

void dw_hold_free(dw_hold *h) {
    if (h) end_hold(h, !dw_hold_is_kept(h));
}

void dw_hold_remove(dw_hold *h) {
    if (h) end_hold(h, true);
}

static dw_hold *hold_of(const char *path) {
    dw_hold *h = holds;
    while (h && strcmp(h->path, path)) h = h->next;
    return h;
}

/* ---- writing --------------------------------------------------------------------------------------- */

/* All writes but the last are whole multiples of a huge page.  Some file systems (ext4 since Linux 6.16) then keep the
 * file in memory by huge pages, and dw_map_file maps these. */

/* What continues a file may be read by those who could read it before. */
static void keep_mode(const dw_out *out) {
    struct stat st;
    if (!stat(out->path, &st) && fchmod(out->fd, st.st_mode & 0777))
        return; // the file is new where this is not allowed
}

static dw_out *open_out(const char *path, bool keeper, dw_err *err) {
    dw_out *out = dw_alloc(1, sizeof *out, "an output file", err);
    if (!out) return NULL;
    out->fd = out->slot = -1;
    out->keeper = keeper;
    out->path = dw_strdup(path, err);
    if (!out->path || check_path(out, err)) goto fail;
    out->temporary = temporary_name(path, err);
    out->buffer = dw_alloc(BUFFER_BYTES, 1, "an output buffer", err);
    if (!out->temporary || !out->buffer) goto fail;
    if ((out->slot = claim(out->temporary, err)) < 0) goto fail;
    out->fd = open_nameless(path, out->temporary);
    out->nameless = out->fd >= 0;
    if (!out->nameless) {
        remove_all_left(path);
        out->fd = open_named(out->temporary);
    }
    if (out->fd >= 0) {
        if (keeper) keep_mode(out);
        return out;
    }
    dw_fail(err, "cannot write '%s': %s", path, strerror(errno));
fail:
    dw_out_free(out);
    return NULL;
}

dw_out *dw_out_open(const char *path, dw_err *err) { return open_out(path, false, err); }
dw_out *dw_out_open_kept(const char *path, dw_err *err) { return open_out(path, true, err); }

static int write_all(dw_out *out, const uint8_t *data, size_t size, dw_err *err) {
    while (size) {
        const ssize_t w = write(out->fd, data, size);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0)
            return dw_fail(err, "cannot write '%s': %s", out->path, w ? strerror(errno) : "nothing was written");
        data += w;
        size -= (size_t)w;
    }
    return 0;
}

static int flush(dw_out *out, dw_err *err) {
    const size_t n = out->n_buffered;
    out->n_buffered = 0;
    return write_all(out, out->buffer, n, err);
}

/* Puts what has room into the buffer. */
static size_t fill(dw_out *out, const uint8_t *data, size_t size) {
    const size_t room = BUFFER_BYTES - out->n_buffered, n = size < room ? size : room;
    memcpy(out->buffer + out->n_buffered, data, n);
    out->n_buffered += n;
    return n;
}

int dw_out_write(dw_out *out, const void *data, size_t size, dw_err *err) {
    const uint8_t *at = data;
    while (size) {
        const size_t most = size < MOST_AT_ONCE ? size : MOST_AT_ONCE;
        const size_t whole = out->n_buffered ? 0 : most / BUFFER_BYTES * BUFFER_BYTES,
                     n = whole ? whole : fill(out, at, size);
        if (whole && write_all(out, at, whole, err)) return -1;
        if (out->n_buffered == BUFFER_BYTES && flush(out, err)) return -1;
        at += n;
        size -= n;
    }
    return 0;
}

int dw_out_printf(dw_out *out, dw_err *err, const char *format, ...) {
    va_list args;
    va_start(args, format);
    char *text = NULL;
    const int n = vasprintf(&text, format, args);
    va_end(args);
    if (n < 0) return dw_fail(err, "out of memory: a line of '%s'", out->path);
    const int rc = dw_out_write(out, text, (size_t)n, err);
    free(text);
    return rc;
}

/* The rename is durable only after the folder is synced. */
static void sync_folder(const char *path) {
    char *folder = folder_of(path);
    const int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

static int fail_create(const char *path, dw_err *err) {
    return dw_fail(err, "cannot create '%s': %s", path, strerror(errno));
}

static int name_file(dw_out *out, dw_err *err) {
    if (out->nameless) remove_all_left(out->path);
    if (out->nameless && give_name(out->fd, out->temporary)) return fail_create(out->path, err);
    out->nameless = false;
    return 0;
}

const char *dw_out_temporary(dw_out *out, dw_err *err) {
    if (name_file(out, err)) return NULL;
    lock_aside(out->fd);
    flock(out->fd, LOCK_UN); // HDF5 takes this lock
    return out->temporary;
}

/* Everything that was written is now on the disk. */
static int sync_file(dw_out *out, dw_err *err) {
    if (flush(out, err)) return -1;
    return fsync(out->fd) ? dw_fail(err, "cannot write '%s': %s", out->path, strerror(errno)) : 0;
}

/* A file without a name is opened through its descriptor, so a process that is killed meanwhile leaves nothing. */
static const char *readable_path(dw_out *out) {
    if (!out->nameless) return out->temporary;
    snprintf(out->link, sizeof out->link, "/proc/self/fd/%d", out->fd);
    return out->link;
}

int dw_out_commit_checked(dw_out *out, dw_out_check *check, void *ctx, dw_err *err) {
    dw_err why = {0};
    if (sync_file(out, err)) return -1;
    if (check(ctx, readable_path(out), &why))
        return dw_fail(err, "'%s' was not written, because the new file fails its check: %s", out->path, why.text);
    dw_input_forget(out->fd); // the check has read it
    return dw_out_commit(out, err);
}

/* Closing may tell of an error. */
static int close_and_rename(dw_out *out, dw_err *err) {
    const int fd = out->fd;
    out->fd = -1;
    if (close(fd)) return dw_fail(err, "cannot write '%s': %s", out->path, strerror(errno));
    dw_hold *hold = hold_of(out->path);
    const bool was_kept = !hold || dw_hold_is_kept(hold);
    if (hold) dw_hold_keep(hold, true); // before the rename: a signal after it must not remove the new file
    if (rename(out->temporary, out->path)) {
        fail_create(out->path, err);
        if (!was_kept) dw_hold_keep(hold, false);
        return -1;
    }
    let_go(&out->slot, &out->temporary);
    sync_folder(out->path);
    return 0;
}

int dw_out_commit(dw_out *out, dw_err *err) {
    lock(out->fd); // again, after a library
    if (sync_file(out, err) || refuse_input(out, err)) return -1;
    dw_hold *hold = hold_of(out->path);
    int locked = fcntl(out->fd, F_DUPFD_CLOEXEC, 0); // the lock stays until the rename, or as long as the path is held
    if (hold && locked < 0) return dw_fail(err, "cannot write '%s': %s", out->path, strerror(errno));
    const int rc = name_file(out, err) ? -1 : close_and_rename(out, err);
    if (!rc && hold && locked >= 0) {
        const int old = hold->fd;
        hold->fd = locked;
        locked = old;
    }
    if (locked >= 0) close(locked);
    return rc;
}

int dw_out_holds(void *pieces_pointer, const char *path, dw_err *err) {
    const dw_out_pieces *pieces = pieces_pointer;
    dw_map map;
    size_t at = 0;
    int rc = 0;
    if (dw_map_file(&map, path, err)) return -1;
    for (size_t i = 0; i < pieces->n && !rc; i++) {
        const dw_out_piece *p = &pieces->piece[i];
        if (map.size - at < p->size || memcmp(map.data + at, p->data, p->size))
            rc = dw_fail(err, "its bytes from %zu on are not those that were written", at);
        else
            at += p->size;
    }
    if (!rc && at != map.size) rc = dw_fail(err, "it has %zu bytes instead of %zu", map.size, at);
    dw_unmap(&map);
    return rc;
}

void dw_out_free(dw_out *out) {
    if (!out) return;
    if (out->fd >= 0) close(out->fd);
    if (out->slot >= 0 && !out->nameless) unlink(out->temporary);
    let_go(&out->slot, &out->temporary);
    free(out->path);
    free(out->buffer);
    free(out);
}

/* ---- small files that must be new -------------------------------------------------------------------- */

static bool write_whole(int fd, const char *text, size_t n) {
    const ssize_t w = write(fd, text, n);
    if (w >= 0 && w != (ssize_t)n) errno = ENOSPC;
    return w == (ssize_t)n;
}

/* 1: this way is closed here, another may be open. */
static int linked(int rc) { return !rc ? 0 : errno == EEXIST ? -1 : 1; }

/* Where files have no second name either: others may see it while it is written. */
static int write_new_in_place(const char *path, const char *text, size_t n) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) return -1;
    int rc = write_whole(fd, text, n) ? 0 : -1, why = errno;
    if (close(fd) && !rc) rc = -1, why = errno;
    if (rc) unlink(path);
    errno = why;
    return rc;
}

/* Where there are no files without a name: under a random name first. */
static int write_new_named(const char *path, const char *text, size_t n) {
    char *temporary = temporary_name(path, NULL);
    int slot = temporary ? claim(temporary, NULL) : -1;
    const int fd = slot < 0 ? -1 : open_named(temporary);
    const bool written = fd >= 0 && write_whole(fd, text, n) && !fsync(fd); // a full disk may be told only now
    const int rc = written ? linked(link(temporary, path)) : -1, why = errno;
    if (fd >= 0) {
        unlink(temporary);
        close(fd);
    }
    let_go(&slot, &temporary);
    errno = why;
    return rc;
}

/* 1: files without a name cannot be made here. */
static int write_new_nameless(const char *path, const char *text, size_t n) {
    char *folder = folder_of(path);
    const int fd = folder ? open_unnamed(folder) : -1;
    free(folder);
    if (fd < 0) return 1;
    const int rc = !write_whole(fd, text, n) ? -1 : linked(give_name(fd, path)), why = errno;
    close(fd);
    errno = why;
    return rc;
}

int dw_write_new(const char *path, const char *text, size_t n, dw_err *err) {
    int rc = write_new_nameless(path, text, n);
    if (rc == 1) rc = write_new_named(path, text, n);
    if (rc == 1) rc = write_new_in_place(path, text, n);
    if (rc && errno == EEXIST) return 1;
    return rc ? dw_fail(err, "cannot write '%s': %s", path, strerror(errno)) : 0;
}

/* ---- folders ---------------------------------------------------------------------------------------- */

struct dw_out_folder {
    char *path, *temporary, *file[MAX_FILES]; // in the temporary folder
    int slot, file_slot[MAX_FILES], n_file;
    bool done;
};

dw_out_folder *dw_out_folder_open(const char *path, dw_err *err) {
    dw_out_folder *f = dw_alloc(1, sizeof *f, "an output folder", err);
    if (!f) return NULL;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    f->slot = -1;
    f->path = dw_format(err, "%.*s", (int)n, path);
    f->temporary = f->path ? temporary_name(f->path, err) : NULL;
    if (!f->temporary || (f->slot = claim(f->temporary, err)) < 0) goto fail;
    if (!mkdir(f->temporary, 0777)) return f;
    fail_create(f->path, err);
fail:
    dw_out_folder_free(f);
    return NULL;
}

const char *dw_out_folder_file(dw_out_folder *f, const char *name, dw_err *err) {
    if (f->n_file == MAX_FILES)
        return dw_fail(err, "cannot write more than %d files to '%s'", MAX_FILES, f->path), NULL;
    char *file = dw_format(err, "%s/%s", f->temporary, name);
    const int slot = file ? claim(file, err) : -1;
    if (slot < 0) {
        free(file);
        return NULL;
    }
    f->file[f->n_file] = file;
    f->file_slot[f->n_file++] = slot;
    return file;
}

int dw_out_folder_commit(dw_out_folder *f, dw_err *err) {
    if (rename(f->temporary, f->path)) return fail_create(f->path, err);
    f->done = true;
    sync_folder(f->path);
    return 0;
}

void dw_out_folder_free(dw_out_folder *f) {
    if (!f) return;
    for (int i = 0; i < f->n_file; i++) {
        if (!f->done) unlink(f->file[i]);
        let_go(&f->file_slot[i], &f->file[i]);
    }
    if (f->slot >= 0 && !f->done) rmdir(f->temporary);
    let_go(&f->slot, &f->temporary);
    free(f->path);
    free(f);
}
