/* hash_cache.c - looks a hash up before it is computed. */
#include "kit/hash_cache.h"
#include "kit/lineage.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { CHECK_DIGITS = 16, MAX_LINE = 512, KEPT_DAYS = 90 };

static const int64_t settled = 2000000000; // nanoseconds after which a change would be seen

/* ---- the folder ------------------------------------------------------------------------------------------- */

char *kit_cache_path(const char *name) {
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char *root = xdg && *xdg == '/'     ? dw_strdup(xdg, NULL)
                 : home && *home == '/' ? dw_format(NULL, "%s/.cache", home)
                                        : NULL;
    char *folder = root ? dw_format(NULL, "%s/deadwood", root) : NULL;
    if (folder) mkdir(root, 0700), mkdir(folder, 0700);
    char *path = folder && !access(folder, X_OK) ? dw_format(NULL, "%s/%s", folder, name) : NULL;
    free(root);
    free(folder);
    return path;
}

/* Where the hash of a file is remembered; free(). */
static char *entry_path(const dw_stamp *file) {
    char key[64], hex[65], name[64];
    const int n = snprintf(key, sizeof key, "%" PRIu64 " %" PRIu64, file->device, file->inode);
    dw_sha256_hex(key, (size_t)n, hex);
    snprintf(name, sizeof name, "hashes/%.32s", hex);
    return kit_cache_path(name);
}

/* ---- one line --------------------------------------------------------------------------------------------- */

/* All words before the hash. */
static int begin_line(char line[MAX_LINE], const dw_stamp *s) {
    return snprintf(line, MAX_LINE, "deadwood-hash-1 %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 " %" PRId64 " ",
                    s->device, s->inode, s->size, s->modified, s->changed);
}

static void end_line(char line[MAX_LINE], const char sha256[65]) {
    char check[65];
    strcat(line, sha256);
    dw_sha256_hex(line, strlen(line), check);
    snprintf(line + strlen(line), MAX_LINE - strlen(line), " %.*s\n", CHECK_DIGITS, check);
}

static bool find(const char *path, const dw_stamp *stamp, char hex[65]) {
    char found[MAX_LINE] = "", expected[MAX_LINE];
    FILE *f = fopen(path, "re");
    if (!f) return false;
    const size_t n_found = fread(found, 1, sizeof found - 1, f), n = (size_t)begin_line(expected, stamp);
    fclose(f);
    found[n_found] = 0;
    if (strncmp(found, expected, n) || n_found < n + 64) return false;
    snprintf(hex, 65, "%.64s", found + n);
    end_line(expected, hex);
    return dw_is_hash(hex) && !strcmp(found, expected);
}

/* Now and then hashes that were computed months ago go; those of files that still exist are computed again. */
static void forget_old(const char *entry) {
    const char *slash = strrchr(entry, '/');
    char *folder = dw_format(NULL, "%.*s", (int)(slash - entry), entry);
    DIR *d = folder && !strncmp(slash, "/00", 3) ? opendir(folder) : NULL; // one entry in 256
    const time_t now = time(NULL);
    struct stat st;
    for (struct dirent *e; d && (e = readdir(d));)
        if (!fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode) &&
            now - st.st_mtime > KEPT_DAYS * 86400)
            unlinkat(dirfd(d), e->d_name, 0);
    if (d) closedir(d);
    free(folder);
}

static void remember(const char *path, const dw_stamp *stamp, const char hex[65]) {
    char line[MAX_LINE], *folder = kit_cache_path("hashes");
    if (folder) mkdir(folder, 0700);
    free(folder);
    begin_line(line, stamp);
    end_line(line, hex);
    dw_out *out = dw_out_open_kept(path, NULL);
    if (out && !dw_out_write(out, line, strlen(line), NULL)) dw_out_commit(out, NULL);
    dw_out_free(out);
    forget_old(path);
}

/* ---- hashes ----------------------------------------------------------------------------------------------- */

/* Whether the file has not changed for so long that the next change gives it another stamp. */
static bool is_settled(const dw_stamp *s) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return false;
    const int64_t ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    return ns - s->modified > settled && ns - s->changed > settled;
}

static void hash_with(const dw_map *file, void (*compute)(const dw_map *, char hex[65]), char hex[65]) {
    const bool cached = file->stamp.inode && file->size >= KIT_HASH_LEAST_BYTES && is_settled(&file->stamp);
    char *entry = cached ? entry_path(&file->stamp) : NULL;
    if (!entry || !find(entry, &file->stamp, hex)) {
        compute(file, hex);
        if (entry) remember(entry, &file->stamp, hex);
    }
    free(entry);
}

static void compute_plain(const dw_map *file, char hex[65]) { dw_sha256_hex(file->data, file->size, hex); }

int kit_sha256_file(const char *path, char hex[65], dw_err *err) {
    dw_map file;
    if (dw_map_file(&file, path, err)) return -1;
    hash_with(&file, compute_plain, hex);
    dw_unmap(&file);
    return 0;
}

static int digit(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

static void digest_of(const dw_map *file, uint8_t digest[32]) {
    char hex[65];
    hash_with(file, compute_plain, hex);
    for (int i = 0; i < 32; i++) digest[i] = (uint8_t)(digit(hex[2 * i]) << 4 | digit(hex[2 * i + 1]));
}

void kit_sha256_gguf(const dw_gguf *g, char hex[65]) { dw_gguf_sha256_by(g, digest_of, hex); }

int kit_sha256_input(const char *path, char hex[65], dw_err *err) {
    if (dw_split_count(path) == 1 || !dw_is_gguf(path)) return kit_sha256_file(path, hex, err);
    dw_gguf *g = dw_gguf_open(path, err);
    if (!g) return -1;
    kit_sha256_gguf(g, hex);
    dw_gguf_close(g);
    return 0;
}

int kit_sha256_program(const char *path, char hex[65], dw_err *err) {
    dw_map file;
    uint8_t digest[32];
    if (dw_map_file(&file, path, err)) return -1;
    const uint8_t *at = file.data, *end = file.data + file.size;
    dw_sha256 h;
    dw_sha256_begin(&h);
    for (const uint8_t *mark; (mark = memmem(at, (size_t)(end - at), kit_commit_mark(), KIT_COMMIT_MARK));) {
        const size_t n = (size_t)(end - mark) < KIT_COMMIT_BYTES ? (size_t)(end - mark) : KIT_COMMIT_BYTES;
        dw_sha256_add(&h, at, (size_t)(mark - at));
        at = mark + n;
    }
    dw_sha256_add(&h, at, (size_t)(end - at));
    dw_sha256_end(&h, digest);
    dw_hex(digest, sizeof digest, hex);
    dw_unmap(&file);
    return 0;
}
