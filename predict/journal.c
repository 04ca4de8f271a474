/* journal.c - an append-only file of checked records. */
#include "predict/journal.h"
#include "kit/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char magic[] = "deadwood journal 1\n";

enum { IDENTITY_BYTES = 32, HASH_BYTES = 32, HEAD = sizeof magic - 1 + IDENTITY_BYTES };

typedef struct record {
    size_t first, n_bytes; // of the payload in the file
} record;

struct predict_journal {
    char *path;
    dw_hold *hold; // of the path
    int fd;        // its
    record *record;
    size_t n_record, cap;
    size_t end;     // of the last whole record
    dw_map map;     // data NULL: not mapped
    dw_sha256 hash; // of the record being written
    size_t left;    // bytes that it still lacks
};

static int fail(const predict_journal *j, const char *what, dw_err *err) {
    return dw_fail(err, "cannot %s '%s': %s", what, j->path, strerror(errno));
}

static int write_all(const predict_journal *j, const void *data, size_t size, dw_err *err) {
    const uint8_t *at = data;
    while (size) {
        const ssize_t n = write(j->fd, at, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return fail(j, "write", err);
        at += n;
        size -= (size_t)n;
    }
    return 0;
}

static void put_size(uint8_t bytes[8], size_t size) {
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((uint64_t)size >> 8 * i);
}

static int add_record(predict_journal *j, size_t first, size_t n_bytes, dw_err *err) {
    if (dw_grow(&j->record, &j->cap, j->n_record + 1, sizeof *j->record, "records", err)) return -1;
    j->record[j->n_record++] = (record){first, n_bytes};
    j->end = first + n_bytes + HASH_BYTES;
    return 0;
}

static bool is_whole(const uint8_t *size_bytes, size_t n_bytes) {
    dw_sha256 h;
    uint8_t digest[HASH_BYTES];
    dw_sha256_begin(&h);
    dw_sha256_add(&h, size_bytes, 8 + n_bytes);
    dw_sha256_end(&h, digest);
    return !memcmp(digest, size_bytes + 8 + n_bytes, HASH_BYTES);
}

/* Finds the whole records after the head. */
static int find_records(predict_journal *j, const dw_map *map, dw_err *err) {
    dw_cursor c = {.at = map->data + HEAD, .left = map->size - HEAD};
    while (c.left) {
        const uint8_t *size_bytes = c.at;
        const uint64_t n = dw_cursor_u64(&c);
        if (c.failed || n > c.left || c.left - n < HASH_BYTES || !is_whole(size_bytes, (size_t)n)) return 0;
        if (add_record(j, (size_t)(c.at - map->data), (size_t)n, err)) return -1;
        dw_cursor_take(&c, (size_t)n + HASH_BYTES);
    }
    return 0;
}

/* Looks at the file that is there; *known: it is a journal of this identity.  One of another identity is refused if it
 * has records. */
static int look(predict_journal *j, const uint8_t *identity, bool *known, dw_err *err) {
    dw_map map;
    if (dw_map_file(&map, j->path, err)) return -1;
    const size_t n = sizeof magic - 1 < map.size ? sizeof magic - 1 : map.size;
    int rc = memcmp(map.data, magic, n)
                 ? dw_fail(err, "'%s' is in the way: no interrupted run has written it; remove it", j->path)
                 : 0;
    *known = !rc && map.size >= HEAD && !memcmp(map.data + sizeof magic - 1, identity, IDENTITY_BYTES);
    if (!rc && map.size >= HEAD) rc = find_records(j, &map, err);
    dw_unmap(&map);
    return !rc && j->n_record && !*known ? tool_other_run(j->path, err) : rc;
}

/* Makes an empty journal, or cuts off what follows the last whole record. */
static int prepare(predict_journal *j, const uint8_t *identity, bool known, dw_err *err) {
    if (!j->n_record) j->end = known ? HEAD : 0;
    if (ftruncate(j->fd, (off_t)j->end) || lseek(j->fd, 0, SEEK_END) < 0) return fail(j, "write", err);
    if (known) return 0;
    j->end = HEAD;
    if (write_all(j, magic, sizeof magic - 1, err)) return -1;
    return write_all(j, identity, IDENTITY_BYTES, err);
}

predict_journal *predict_journal_open(const char *path, const uint8_t identity[32], bool *resumed, dw_err *err) {
    predict_journal *j = dw_alloc(1, sizeof *j, "a journal", err);
    if (!j) return NULL;
    j->path = dw_strdup(path, err);
    j->hold = j->path ? dw_hold_take(path, err) : NULL;
    j->fd = j->hold ? dw_hold_fd(j->hold) : -1;
    if (j->hold && !look(j, identity, resumed, err)) {
        dw_hold_keep(j->hold, j->n_record);
        if (!prepare(j, identity, *resumed, err)) return j;
    }
    predict_journal_close(j);
    return NULL;
}

static void unmap(predict_journal *j) {
    if (j->map.data) dw_unmap(&j->map);
    j->map = (dw_map){0};
}

void predict_journal_close(predict_journal *j) {
    if (!j) return;
    unmap(j);
    dw_hold_free(j->hold);
    free(j->record);
    free(j->path);
    free(j);
}

void predict_journal_remove(predict_journal *j) {
    dw_hold_remove(j->hold);
    j->hold = NULL;
    predict_journal_close(j);
}

size_t predict_journal_n_records(const predict_journal *j) { return j->n_record; }
const char *predict_journal_kept(const predict_journal *j) { return j->n_record ? j->path : NULL; }

const uint8_t *predict_journal_record(predict_journal *j, size_t i, size_t *size, dw_err *err) {
    if (!j->map.data && dw_map_file(&j->map, j->path, err)) return NULL;
    *size = j->record[i].n_bytes;
    return j->map.data + j->record[i].first;
}

int predict_journal_begin(predict_journal *j, size_t size, dw_err *err) {
    uint8_t bytes[8];
    unmap(j);
    put_size(bytes, size);
    dw_sha256_begin(&j->hash);
    dw_sha256_add(&j->hash, bytes, sizeof bytes);
    j->left = size;
    return write_all(j, bytes, sizeof bytes, err);
}

int predict_journal_add(predict_journal *j, const void *data, size_t size, dw_err *err) {
    if (size > j->left) return dw_fail(err, "'%s': a record gets more than was announced", j->path);
    dw_sha256_add(&j->hash, data, size);
    j->left -= size;
    return write_all(j, data, size, err);
}

int predict_journal_end(predict_journal *j, dw_err *err) {
    uint8_t digest[HASH_BYTES];
    if (j->left) return dw_fail(err, "'%s': a record lacks %zu bytes", j->path, j->left);
    dw_sha256_end(&j->hash, digest);
    if (write_all(j, digest, sizeof digest, err)) return -1;
    if (fdatasync(j->fd)) return fail(j, "write", err);
    const size_t first = j->end + 8;
    const off_t end = lseek(j->fd, 0, SEEK_CUR);
    if (end < 0) return fail(j, "write", err);
    dw_hold_keep(j->hold, true);
    return add_record(j, first, (size_t)end - first - HASH_BYTES, err);
}
