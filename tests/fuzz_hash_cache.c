/* fuzz_hash_cache.c - any bytes as the remembered hash of a file: it counts exactly when it is a right line for the
 * file.
 *
 * The bytes are tried as the entry, and as changes of a good entry: position and byte, again and again; an odd last
 * byte puts the check right.  Every wrong entry costs one hash of a mebibyte. */
#include "kit/hash_cache.h"
#include "tests/scratch.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX = 600, HASH = 64, CHECK = 16 };

static char folder[64], entry[512], good[MAX], right[65]; // the entry's path and words; the file's hash
static size_t n_good, n_before;                           // bytes of the entry; of its words before the hash

static void remove_folder(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command)) abort();
}

static void find_entry(void) {
    char path[256];
    snprintf(path, sizeof path, "%s/deadwood/hashes", folder);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));)
        if (*e->d_name != '.') snprintf(entry, sizeof entry, "%s/%s", path, e->d_name);
    if (!d || !*entry) abort();
    closedir(d);
}

/* A file whose hash is remembered: it must be two seconds old. */
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    char *bytes = calloc(1, KIT_HASH_LEAST_BYTES), *text;
    snprintf(folder, sizeof folder, "/dev/shm/fuzz-cache-%ld", (long)getpid());
    atexit(remove_folder);
    setenv("XDG_CACHE_HOME", folder, 1);
    if (!bytes || kit_sha256_file(scratch_file(bytes, KIT_HASH_LEAST_BYTES), right, NULL)) abort();
    sleep(3);
    if (kit_sha256_file(scratch_path(), right, NULL)) abort();
    find_entry();
    if (!(text = dw_read_file(entry, sizeof good - 1, &n_good, NULL)) || n_good < HASH + CHECK + 2) abort();
    memcpy(good, text, n_good);
    n_before = n_good - HASH - CHECK - 2;
    free(text);
    free(bytes);
    return 0;
}

static void put_check(char *line) {
    char check[65];
    dw_sha256_hex(line, n_before + HASH, check);
    memcpy(line + n_before + HASH + 1, check, CHECK);
}

static bool counts(const char *line, size_t n) {
    char hex[65] = "", check[MAX];
    if (n < n_good || memcmp(line, good, n_before)) return false;
    memcpy(hex, line + n_before, HASH);
    memcpy(check, line, n_good);
    check[n_before + HASH] = ' ', check[n_good - 1] = '\n';
    put_check(check);
    return dw_is_hash(hex) && !memcmp(check, line, n_good) && (n == n_good || !line[n_good]);
}

static void try(const char *line, size_t n) {
    char hex[65];
    scratch_write(entry, line, n);
    if (kit_sha256_file(scratch_path(), hex, NULL)) abort();
    if (memcmp(hex, counts(line, n) ? line + n_before : right, HASH)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size && data[0] & 1) { // changes
        char line[MAX];
        memcpy(line, good, n_good);
        for (size_t i = 1; i + 1 < size; i += 2) line[data[i] % n_good] = (char)data[i + 1];
        if (data[size - 1] & 1) put_check(line);
        try(line, n_good);
    } else {
        try((const char *)data, size);
    }
    return 0;
}
