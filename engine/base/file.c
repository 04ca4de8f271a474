/* file.c - inputs: how every file that is read is opened, and which of them were opened. */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- which files are inputs ------------------------------------------------------------------- */

/* A file that was read.  Device and inode identify it while it exists.  After it is removed a new file may get its
 * inode; size and time then tell the two apart. */
typedef struct input {
    dev_t device;
    ino_t inode;
    off_t size;
    time_t seconds;
    long nanoseconds;
    bool named; // on the command line: not even the program that keeps the file itself may replace it
} input;

static struct {
    pthread_mutex_t lock;
    bool kept;
    input *list;
    size_t n, cap;
} inputs = {.lock = PTHREAD_MUTEX_INITIALIZER};

static input input_of(const struct stat *st) {
    return (input){.device = st->st_dev,
                   .inode = st->st_ino,
                   .size = st->st_size,
                   .seconds = st->st_mtim.tv_sec,
                   .nanoseconds = st->st_mtim.tv_nsec};
}

static bool same_input(const input *a, const input *b) {
    return a->device == b->device && a->inode == b->inode && a->size == b->size && a->seconds == b->seconds &&
           a->nanoseconds == b->nanoseconds;
}

static input *find_input(const input *wanted) {
    for (size_t i = 0; i < (size_t)inputs.n; i++)
        if (same_input(&inputs.list[i], wanted)) return &inputs.list[i];
    return NULL;
}

static int remember(const struct stat *st, bool named, dw_err *err) {
    input wanted = input_of(st);
    int rc = 0;
    pthread_mutex_lock(&inputs.lock);
    input *known = inputs.kept ? find_input(&wanted) : NULL;
    if (known) {
        known->named |= named;
    } else if (inputs.kept) {
        rc = dw_grow(&inputs.list, &inputs.cap, inputs.n + 1, sizeof wanted, "the list of inputs", err);
        wanted.named = named;
        if (!rc) inputs.list[inputs.n++] = wanted;
    }
    pthread_mutex_unlock(&inputs.lock);
    return rc;
}

void dw_input_forget(int fd) {
    struct stat st;
    if (fstat(fd, &st)) return;
    const input gone = input_of(&st);
    pthread_mutex_lock(&inputs.lock);
    input *found = find_input(&gone);
    if (found) *found = inputs.list[--inputs.n];
    pthread_mutex_unlock(&inputs.lock);
}

void dw_inputs_keep(void) { inputs.kept = true; }

int dw_input_named(const char *path, dw_err *err) {
    struct stat st;
    return stat(path, &st) || !S_ISREG(st.st_mode) ? 0 : remember(&st, true, err);
}

bool dw_is_input(const char *path, bool only_named) {
    struct stat st;
    if (stat(path, &st)) return false;
    const input wanted = input_of(&st);
    pthread_mutex_lock(&inputs.lock);
    const input *found = find_input(&wanted);
    const bool is = found && (found->named || !only_named);
    pthread_mutex_unlock(&inputs.lock);
    return is;
}

/* ---- reading ---------------------------------------------------------------------------------- */

const char *dw_file_kind(unsigned mode) {
    return S_ISREG(mode)    ? "a regular file"
           : S_ISDIR(mode)  ? "a folder"
           : S_ISFIFO(mode) ? "a FIFO"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

static dw_stamp stamp_of(const struct stat *st) {
    return (dw_stamp){.device = (uint64_t)st->st_dev,
                      .inode = (uint64_t)st->st_ino,
                      .size = (uint64_t)st->st_size,
                      .modified = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec,
                      .changed = (int64_t)st->st_ctim.tv_sec * 1000000000 + st->st_ctim.tv_nsec};
}

int dw_stamp_of(const char *path, dw_stamp *stamp) {
    struct stat st;
    *stamp = (dw_stamp){0};
    if (stat(path, &st) || !S_ISREG(st.st_mode)) return -1;
    *stamp = stamp_of(&st);
    return 0;
}

bool dw_stamp_equal(const dw_stamp *a, const dw_stamp *b) {
    return a->device == b->device && a->inode == b->inode && a->size == b->size && a->modified == b->modified &&
           a->changed == b->changed;
}

static int open_input(const char *path, struct stat *found, dw_err *err) {
    struct stat st;
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) return dw_fail(err, "cannot open '%s': %s", path, strerror(errno));
    int rc = 0;
    if (fstat(fd, &st))
        rc = dw_fail(err, "cannot read '%s': %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        rc = dw_fail(err, "cannot read '%s': it is %s, not a regular file", path, dw_file_kind(st.st_mode));
    else
        rc = remember(&st, false, err);
    if (!rc) {
        *found = st;
        return fd;
    }
    close(fd);
    return -1;
}

int dw_open_input(const char *path, size_t *size, dw_err *err) {
    struct stat st = {0};
    const int fd = open_input(path, &st, err);
    if (fd >= 0) *size = (size_t)st.st_size;
    return fd;
}

int dw_map_file(dw_map *map, const char *path, dw_err *err) {
    static const uint8_t nothing[1];
    struct stat st = {0};
    *map = (dw_map){.data = nothing};
    const int fd = open_input(path, &st, err);
    if (fd < 0) return -1;
    const size_t size = (size_t)st.st_size;
    void *data = size ? dw_pages_map_file(fd, size) : NULL;
    const int why = errno;
    close(fd);
    if (data == MAP_FAILED) return dw_fail(err, "cannot map '%s' (%zu bytes): %s", path, size, strerror(why));
    *map = (dw_map){size ? data : nothing, size, stamp_of(&st)};
    return 0;
}

void dw_unmap(dw_map *map) {
    if (map->size) munmap((void *)(uintptr_t)map->data, map->size);
    *map = (dw_map){0};
}

bool dw_file_exists(const char *path) { return access(path, F_OK) == 0; }

bool dw_is_folder(const char *path) {
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

size_t dw_file_bytes(const char *path) {
    dw_stamp stamp;
    return dw_stamp_of(path, &stamp) ? 0 : (size_t)stamp.size;
}

bool dw_file_begins(const char *path, const void *magic, size_t n) {
    dw_map map;
    if (dw_map_file(&map, path, NULL)) return false;
    const bool begins = map.size >= n && !memcmp(map.data, magic, n);
    dw_unmap(&map);
    return begins;
}

const char *dw_base_name(const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    while (n && path[n - 1] != '/') n--;
    return path + n;
}

char *dw_read_file(const char *path, size_t max_bytes, size_t *size, dw_err *err) {
    size_t n, got = 0;
    const int fd = dw_open_input(path, &n, err);
    if (fd < 0) return NULL;
    char *text = NULL;
    if (n > max_bytes)
        dw_fail(err, "'%s' is too large: %zu bytes, at most %zu are read", path, n, max_bytes);
    else
        text = dw_alloc(n + 1, 1, "the bytes of a file", err);
    while (text && got < n) {
        const ssize_t r = read(fd, text + got, n - got);
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0) {
            dw_fail(err, "cannot read '%s': %s", path, r ? strerror(errno) : "it became shorter");
            free(text);
            text = NULL;
            break;
        }
        got += (size_t)r;
    }
    close(fd);
    if (text && size) *size = n;
    return text;
}

char *dw_read_text(const char *path, size_t max_bytes, size_t *size, dw_err *err) {
    char *text = dw_read_file(path, max_bytes, size, err);
    const size_t good = text ? dw_utf8_len(text, *size) : 0;
    if (!text || good == *size) return text;
    dw_fail(err,
            "'%s' is not a text in UTF-8: byte 0x%02x at offset %zu; convert it if it is a text in another encoding",
            path, (uint8_t)text[good], good);
    free(text);
    return NULL;
}
