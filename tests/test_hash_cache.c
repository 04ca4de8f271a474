/* test_hash_cache.c - hashes of inputs are remembered, and never wrongly. */
#include "kit/hash_cache.h"
#include "test.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = KIT_HASH_LEAST_BYTES + 5 };

static void sleep_ms(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

static const char *cache(void) { return test_file("cache"); }

/* A large file of one letter. */
static const char *write_large(const char *name, char letter) {
    char *data = malloc(BYTES);
    memset(data, letter, BYTES);
    FILE *f = fopen(test_file(name), "w");
    CHECK(f && fwrite(data, 1, BYTES, f) == BYTES && !fclose(f), "%s", name);
    free(data);
    return test_file(name);
}

static bool is_true_hash(const char *path) {
    char hex[65], expected[65];
    dw_err err = {0};
    return !kit_sha256_file(path, hex, &err) && !dw_sha256_file(path, expected, &err) && !strcmp(hex, expected);
}

/* The path of the one entry; NULL: there is none. */
static const char *only_entry(void) {
    static char path[512];
    snprintf(path, sizeof path, "%s/deadwood/hashes", cache());
    DIR *d = opendir(path);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));)
        if (*e->d_name != '.' && !n++) snprintf(path, sizeof path, "%s/deadwood/hashes/%s", cache(), e->d_name);
    if (d) closedir(d);
    CHECK(n <= 1, "%d entries", n);
    return n ? path : NULL;
}

/* Puts another hash into an entry, well-formed, so that whoever uses the entry is seen to do so. */
static void forge(const char *path) {
    char line[512] = "", check[65];
    FILE *f = fopen(path, "r");
    if (!CHECK(f && fgets(line, sizeof line, f))) return;
    fclose(f);
    char *hash = strrchr(line, ' ') - 64;
    memset(hash, 'a', 64);
    hash[64] = 0;
    dw_sha256_hex(line, strlen(line), check);
    f = fopen(path, "w");
    CHECK(f && fprintf(f, "%s %.16s\n", line, check) > 0 && !fclose(f));
}

static bool is_forged_hash(const char *path) {
    char hex[65];
    return !kit_sha256_file(path, hex, NULL) && strspn(hex, "a") == 64;
}

/* The files of all cases, old enough to be remembered. */
static void set_up(void) {
    static bool done;
    if (done) return;
    static const char *const names[] = {"large", "changed", "damaged", "alone"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) write_large(names[i], 'x');
    sleep_ms(2100);
    done = true;
}

static void forget(void) { CHECK(!test_run("rm -rf %s", cache())); }

static void remembers(void) {
    set_up();
    forget();
    CHECK(is_true_hash(write_large("fresh", 'x')) && !only_entry(),
          "a file that was written just now is not remembered");
    const char *path = test_file("large");
    CHECK(is_true_hash(path) && only_entry());
    forge(only_entry());
    CHECK(is_forged_hash(path), "the file is hashed once");
    char hex[65];
    CHECK(!kit_sha256_input(path, hex, NULL) && hex[0] == 'a', "by its other name, too");
}

/* The same size, inode and time of modification: the time of the inode still tells. */
static void sees_changes(void) {
    set_up();
    forget();
    const char *path = test_file("changed");
    struct stat st;
    CHECK(is_true_hash(path) && only_entry() && !stat(path, &st));
    forge(only_entry());
    const int fd = open(path, O_WRONLY);
    CHECK(fd >= 0 && write(fd, "y", 1) == 1 && !close(fd));
    CHECK(!utimensat(AT_FDCWD, path, (struct timespec[]){st.st_atim, st.st_mtim}, 0));
    CHECK(is_true_hash(path), "a change with its time set back");
}

static void survives_damage(void) {
    set_up();
    forget();
    const char *path = test_file("damaged");
    CHECK(is_true_hash(path) && only_entry());
    char entry[512];
    snprintf(entry, sizeof entry, "%s", only_entry());
    FILE *f = fopen(entry, "r");
    char line[512] = "";
    REQUIRE(f && fgets(line, sizeof line, f) && !fclose(f));
    const size_t n = strlen(line);
    int n_wrong = 0;
    for (size_t i = 0; i < n; i++) { // one changed byte, and the line cut there
        for (int cut = 0; cut < 2; cut++) {
            char changed[512];
            memcpy(changed, line, n);
            changed[i] = (char)(changed[i] == '1' ? '2' : '1');
            f = fopen(entry, "w");
            CHECK(f && fwrite(changed, 1, cut ? i : n, f) == (cut ? i : n) && !fclose(f));
            n_wrong += !is_true_hash(path);
            if (i % 40) break;
        }
    }
    CHECK(!n_wrong, "%d of %zu damages gave a wrong hash", n_wrong, n);
}

static void works_without(void) {
    set_up();
    const char *path = test_file("alone");
    static const char *const homes[] = {"/dev/null", "/proc/nowhere", "relative", ""};
    for (size_t i = 0; i < sizeof homes / sizeof *homes; i++) {
        setenv("XDG_CACHE_HOME", homes[i], 1);
        setenv("HOME", homes[i], 1);
        CHECK(is_true_hash(path), "'%s'", homes[i]);
    }
    setenv("XDG_CACHE_HOME", cache(), 1);
}

static void programs(void) {
    char a[65], b[65];
    dw_err err = {0};
    CHECK(!test_run("cp /proc/self/exe %s; printf 'code deadwood-commit:%%048d end' 1 >%s; printf 'code "
                    "deadwood-commit:%%048d end' 2 >%s",
                    test_file("cp"), test_file("one"), test_file("two")));
    CHECK(!kit_sha256_program(test_file("one"), a, &err) && !kit_sha256_program(test_file("two"), b, &err), "%s",
          err.text);
    CHECK(!strcmp(a, b), "another commit");
    CHECK(!test_run("printf 'code deadwood-commit:%%048d End' 1 >%s", test_file("two")));
    CHECK(!kit_sha256_program(test_file("two"), b, &err) && strcmp(a, b), "other code");
    CHECK(!test_run("deadwood-cut --version") && kit_sha256_program("/nowhere", b, &err));
}

static const test_case cases[] = {
    {"a large file is hashed once, unless it has changed within two seconds", remembers},
    {"a change is seen even if the file's time is set back", sees_changes},
    {"a damaged entry of the cache is as good as none", survives_damage},
    {"without a folder for the cache everything is hashed", works_without},
    {"a program's hash is that of its code, not of the commit it was built from", programs},
    {0}};
TEST_MAIN(cases)
