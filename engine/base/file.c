/* file.c - mapped input, and output that appears whole or not at all. */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- reading ---------------------------------------------------------------------------------- */

/* A descriptor of a regular file and its size, or -1. */
static int open_regular(const char *path, size_t *size, dw_err *err) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return dw_fail(err, "cannot open '%s': %s", path, strerror(errno));
    struct stat st;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size < 0) {
        close(fd);
        return dw_fail(err, "cannot read '%s': not a regular file", path);
    }
    *size = (size_t)st.st_size;
    return fd;
}

int dw_map_file(dw_map *map, const char *path, dw_err *err) {
    static const uint8_t nothing[1];
    *map = (dw_map){nothing, 0};
    size_t size;
    const int fd = open_regular(path, &size, err);
    if (fd < 0) return -1;
    void *data = size ? mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0) : NULL;
    const int why = errno;
    close(fd);
    if (data == MAP_FAILED) return dw_fail(err, "cannot map '%s' (%zu bytes): %s", path, size, strerror(why));
    if (size) *map = (dw_map){data, size};
    return 0;
}

void dw_unmap(dw_map *map) {
    if (map->size) munmap((void *)(uintptr_t)map->data, map->size);
    *map = (dw_map){0};
}

bool dw_file_exists(const char *path) { return access(path, F_OK) == 0; }

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
    const int fd = open_regular(path, &n, err);
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
    dw_fail(err, "'%s' is not a text in UTF-8: byte 0x%02x at offset %zu; convert it if it is a text in another encoding", path, (uint8_t)text[good], good);
    free(text);
    return NULL;
}

/* ---- writing ---------------------------------------------------------------------------------- */

enum { BUFFER_BYTES = 1 << 20, MAX_OPEN = 64, MAX_FILES = 16 };

struct dw_out {
    char *path, *temporary;
    int fd, slot;
    uint8_t *buffer;
    size_t n_buffered;
};

/* Names that a signal must remove.  Written by normal code, read by the handler: a slot is claimed by
 * exchanging its pointer, so the handler sees a whole name or none. */
static _Atomic(char *) unfinished[MAX_OPEN];

static pid_t writer; // a child that exits leaves its parent's files alone

/* Files first, then the folders that held them. */
static void remove_unfinished(void) {
    for (int i = 0; i < 2 * MAX_OPEN; i++) {
        char *name = atomic_load(&unfinished[i % MAX_OPEN]);
        if (name && getpid() == writer) (void)(i < MAX_OPEN ? unlink(name) : rmdir(name));
    }
}

/* A slot for the name, or -1. */
static int claim(char *name, dw_err *err) {
    for (int i = 0; i < MAX_OPEN; i++) {
        char *empty = NULL;
        if (atomic_compare_exchange_strong(&unfinished[i], &empty, name)) return i;
    }
    return dw_fail(err, "cannot write '%s': more than %d output files are open", name, MAX_OPEN);
}

static void let_go(int *slot) {
    if (*slot >= 0) atomic_store(&unfinished[*slot], NULL);
    *slot = -1;
}

static _Atomic(const char *) last_words;

void dw_out_on_interrupt(const char *words) { atomic_store(&last_words, words); }

static void end_by_signal(int sig) {
    const char *words = atomic_load(&last_words);
    remove_unfinished();
    if (sig == SIGINT && words && getpid() == writer) (void)!write(STDERR_FILENO, words, strlen(words));
    signal(sig, SIG_DFL);
    raise(sig);
}

void dw_out_on_signals(void) {
    if (!writer) atexit(remove_unfinished);
    writer = getpid();
    const int sigs[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++) {
        struct sigaction old;
        if (!sigaction(sigs[i], NULL, &old) && old.sa_handler == SIG_IGN) continue; // nohup
        struct sigaction act = {.sa_handler = end_by_signal};
        sigaction(sigs[i], &act, NULL);
    }
    signal(SIGXFSZ, SIG_IGN); // a limit on the size of files (ulimit -f) makes writing fail, as a full disk does
}

dw_out *dw_out_open(const char *path, dw_err *err) {
    dw_out *out = dw_alloc(1, sizeof *out, "an output file", err);
    if (!out) return NULL;
    out->fd = out->slot = -1;
    struct stat st;
    if (!stat(path, &st) && !S_ISREG(st.st_mode)) {
        dw_fail(err, "cannot write '%s': not a regular file", path);
        goto fail;
    }
    out->path = dw_strdup(path, err);
    out->temporary = dw_format(err, "%s.%ld.part", path, (long)getpid());
    out->buffer = dw_alloc(BUFFER_BYTES, 1, "an output buffer", err);
    if (!out->path || !out->temporary || !out->buffer) goto fail;
    if ((out->slot = claim(out->temporary, err)) < 0) goto fail;
    out->fd = open(out->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (out->fd >= 0) return out;
    dw_fail(err, "cannot write '%s': %s", path, strerror(errno));
fail:
    dw_out_free(out);
    return NULL;
}

static int write_all(dw_out *out, const uint8_t *data, size_t size, dw_err *err) {
    while (size) {
        const ssize_t w = write(out->fd, data, size);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) return dw_fail(err, "cannot write '%s': %s", out->path, w ? strerror(errno) : "nothing was written");
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

int dw_out_write(dw_out *out, const void *data, size_t size, dw_err *err) {
    if (size > BUFFER_BYTES - out->n_buffered && flush(out, err)) return -1;
    if (size >= BUFFER_BYTES) return write_all(out, data, size, err);
    memcpy(out->buffer + out->n_buffered, data, size);
    out->n_buffered += size;
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

const char *dw_out_temporary(const dw_out *out) { return out->temporary; }

/* The rename is durable only when the folder is, too. */
static void sync_folder(const char *path) {
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    const int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

int dw_out_commit(dw_out *out, dw_err *err) {
    if (flush(out, err)) return -1;
    if (fsync(out->fd)) return dw_fail(err, "cannot write '%s': %s", out->path, strerror(errno));
    const int fd = out->fd;
    out->fd = -1;
    if (close(fd)) return dw_fail(err, "cannot write '%s': %s", out->path, strerror(errno));
    if (rename(out->temporary, out->path)) return dw_fail(err, "cannot create '%s': %s", out->path, strerror(errno));
    let_go(&out->slot);
    sync_folder(out->path);
    return 0;
}

void dw_out_free(dw_out *out) {
    if (!out) return;
    if (out->fd >= 0) close(out->fd);
    if (out->slot >= 0) unlink(out->temporary);
    let_go(&out->slot);
    free(out->path);
    free(out->temporary);
    free(out->buffer);
    free(out);
}

/* ---- folders ---------------------------------------------------------------------------------- */

struct dw_out_folder {
    char *path, *temporary, *file[MAX_FILES]; // in the temporary folder
    int slot, file_slot[MAX_FILES], n_file;
};

dw_out_folder *dw_out_folder_open(const char *path, dw_err *err) {
    dw_out_folder *f = dw_alloc(1, sizeof *f, "an output folder", err);
    if (!f) return NULL;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    f->slot = -1;
    f->path = dw_format(err, "%.*s", (int)n, path);
    f->temporary = dw_format(err, "%.*s.%ld.part", (int)n, path, (long)getpid());
    if (!f->path || !f->temporary || (f->slot = claim(f->temporary, err)) < 0) goto fail;
    if (!mkdir(f->temporary, 0777)) return f;
    dw_fail(err, "cannot create '%s': %s", f->path, strerror(errno));
fail:
    dw_out_folder_free(f);
    return NULL;
}

const char *dw_out_folder_file(dw_out_folder *f, const char *name, dw_err *err) {
    if (f->n_file == MAX_FILES) return dw_fail(err, "cannot write more than %d files to '%s'", MAX_FILES, f->path), NULL;
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
    if (rename(f->temporary, f->path)) return dw_fail(err, "cannot create '%s': %s", f->path, strerror(errno));
    let_go(&f->slot);
    sync_folder(f->path);
    return 0;
}

void dw_out_folder_free(dw_out_folder *f) {
    if (!f) return;
    for (int i = 0; i < f->n_file; i++) {
        if (f->slot >= 0) unlink(f->file[i]);
        let_go(&f->file_slot[i]);
        free(f->file[i]);
    }
    if (f->slot >= 0) rmdir(f->temporary);
    let_go(&f->slot);
    free(f->path);
    free(f->temporary);
    free(f);
}
