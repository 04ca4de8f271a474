/* claims.c - one file a job says who works on it. */
#include "experiments/sweep/claims.h"
#include "kit/talk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <sys/random.h>
#endif

enum { MAX_CLAIM = 1024, BEGINNING_SECONDS = 10 };

static const char head[] = "deadwood claim 2\n";

struct claims {
    char *folder, *presence;
    char grid[80]; // the line "grid SHA256\n" of the presence
    char process[256]; // "HOST BOOT NAMESPACE PID START RANDOM"
    size_t n_place;    // bytes of "HOST BOOT NAMESPACE "
    char **held;
    size_t n_held, cap_held;
    double beaten;   // when claims were touched last
    bool lock_stuck; // another process held the lock too long
};

/* ---- processes -------------------------------------------------------------------------------------------------- */

/* The first word of a small file; "-": it cannot be read. */
static void read_word(const char *path, char *word, size_t size) {
    FILE *f = fopen(path, "re");
    if (!f || !fgets(word, (int)size, f)) snprintf(word, size, "-");
    word[strcspn(word, " \n")] = 0;
    if (f) fclose(f);
}

/* When a process began, in the kernel's ticks; 0: unknown.  state: 'Z' if it ended and nobody has asked how, as happens
 * to orphans in containers. */
static unsigned long long start_of(long pid, char *state) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *f = fopen(path, "re");
    const size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    const char *at = strrchr(text, ')'); // the name in parentheses may hold anything
    unsigned long long start = 0;
    *state = at && at[1] ? at[2] : '?';
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    return at && sscanf(at, " %llu", &start) == 1 ? start : 0;
}

/* 64 random bits as text.  Where the system gives none, the clock stands for them. */
static void draw_name(char name[17]) {
    uint64_t bits;
    if (getentropy(&bits, sizeof bits)) bits = (uint64_t)(dw_now() * 1e9);
    snprintf(name, 17, "%016" PRIx64, bits);
}

/* "HOST BOOT NAMESPACE ", where a process id means something, and this process.  Where the kernel tells no boot or no
 * namespace, the random number stands for it: then no other process is judged by its id. */
static void name_process(claims *c) {
    char host[128] = "-", boot[64], space[64] = "-", random[17], state;
    draw_name(random);
    if (gethostname(host, sizeof host - 1)) snprintf(host, sizeof host, "-");
    for (char *at = host; *at; at++)
        if (*at <= ' ' || *at == '/' || *at >= 127) *at = '_';
    read_word("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    const ssize_t n = readlink("/proc/self/ns/pid", space, sizeof space - 1);
    space[n > 0 ? n : 1] = 0;
    c->n_place = (size_t)snprintf(c->process, sizeof c->process, "%.100s %.40s %.40s ", host,
                                  strcmp(boot, "-") ? boot : random, strcmp(space, "-") ? space : random);
    snprintf(c->process + c->n_place, sizeof c->process - c->n_place, "%ld %llu %s", (long)getpid(),
             start_of((long)getpid(), &state), random);
}

/* ---- claims as text --------------------------------------------------------------------------------------------- */

static char *path_of(const claims *c, const char *name) { return dw_format(NULL, "%s/%s", c->folder, name); }

static const char unreadable[] = "cannot be read\n"; // in the place of a claim

static void read_text(int fd, char text[MAX_CLAIM]) {
    const ssize_t n = fd < 0 ? -1 : read(fd, text, MAX_CLAIM - 1);
    if (n < 0) strcpy(text, unreadable);
    else text[n] = 0;
}

/* Reads a claim; -1: there is none.  Where files have no second names the text may be incomplete while its owner
 * writes it. */
static int read_claim(const char *path, char text[MAX_CLAIM]) {
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const bool absent = fd < 0 && errno == ENOENT;
    read_text(fd, text);
    if (fd >= 0) close(fd);
    return absent ? -1 : 0;
}

/* The line after the head; false: the claim is not complete. */
static bool process_in(const char *text, char process[256]) {
    const size_t n = strlen(head), len = strstr(text, head) == text ? strcspn(text + n, "\n") : 0;
    if (!len || len >= 256 || text[n + len] != '\n') return false;
    snprintf(process, 256, "%.*s", (int)len, text + n);
    return true;
}

static bool is_own(const claims *c, const char *text) {
    char process[256];
    return process_in(text, process) && !strcmp(process, c->process);
}

/* Opens a claim if it is this process's own; -1: it is not.  Another process may put its claim in the place of this one
 * at any time; then the descriptor is that of the old file, which nobody sees. */
static int open_own(const claims *c, const char *name) {
    char text[MAX_CLAIM], *path = path_of(c, name);
    const int fd = path ? open(path, O_RDWR | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC) : -1;
    read_text(fd, text);
    const bool own = fd >= 0 && is_own(c, text);
    if (fd >= 0 && !own) close(fd);
    free(path);
    return own ? fd : -1;
}

/* The rest of the line that begins with a word; free().  NULL: there is no such line. */
static char *line_in(const char *text, const char *word) {
    for (const char *at = text; *at; at += strcspn(at, "\n"), at += *at == '\n')
        if (!strncmp(at, word, strlen(word)))
            return dw_format(NULL, "%.*s", (int)(strcspn(at, "\n") - strlen(word)), at + strlen(word));
    return NULL;
}

/* Whether outputs may be half made; so they may where the claim is not complete. */
static bool has_begun(const char *text) {
    char process[256], *began = line_in(text, "began");
    const bool begun = began || !process_in(text, process);
    free(began);
    return begun;
}

/* ---- life and death --------------------------------------------------------------------------------------------- */

/* Seconds since a file was touched, by the clock of the file system; 0 where that cannot be known. */
static double age_of(const claims *c, const char *path) {
    struct stat now, then;
    if (!c->presence || utimensat(AT_FDCWD, c->presence, NULL, 0) || stat(c->presence, &now) || stat(path, &then))
        return 0;
    return difftime(now.st_mtime, then.st_mtime);
}

static bool is_dead(const claims *c, const char *path, const char *text) {
    char process[256];
    if (!process_in(text, process))
        return age_of(c, path) > (strcmp(text, unreadable) ? (int)BEGINNING_SECONDS : (int)CLAIM_LOST);
    long pid;
    unsigned long long start;
    if (strncmp(process, c->process, c->n_place) || sscanf(process + c->n_place, "%ld %llu", &pid, &start) != 2)
        return age_of(c, path) > CLAIM_LOST;
    if (kill((pid_t)pid, 0) && errno == ESRCH) return true;
    char state;
    const unsigned long long now = start_of(pid, &state);
    return state == 'Z' || (start && now && now != start);
}

claim_state claims_look(claims *c, const char *name, char **reason) {
    char text[MAX_CLAIM], *path = path_of(c, name);
    claim_state state = CLAIM_OTHER;
    *reason = NULL;
    if (path && (read_claim(path, text) || is_own(c, text)))
        state = CLAIM_FREE;
    else if (path && is_dead(c, path, text))
        state = has_begun(text) ? CLAIM_DEAD : CLAIM_FREE;
    else if (path && (*reason = line_in(text, "failed ")))
        state = CLAIM_FAILED;
    free(path);
    return state;
}

/* ---- taking and giving ------------------------------------------------------------------------------------------ */

/* 1: there is a claim. */
static int write_claim(const claims *c, const char *path, const char *more, dw_err *err) {
    char text[MAX_CLAIM];
    const int n = snprintf(text, sizeof text, "%s%s\n%s", head, c->process, more);
    return dw_write_new(path, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1, err);
}

/* A lock is held for a few calls only: who waits seconds for it met a process that was stopped.  Where the file system has
 * no locks, without.  -1: another process holds it. */
static int lock_folder(claims *c) {
    const int lock = open(c->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int wait = 0; lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK; wait++) {
        if (wait == (c->lock_stuck ? 0 : 5000)) {
            c->lock_stuck = true;
            close(lock);
            return -1;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return lock;
}

/* Removes the claim of a dead process, or puts the claim `heir` in its place: at no time is there none, or a third
 * process could take the dead one's outputs for finished.  The lock keeps a second process, which saw the same dead
 * claim, from removing the claim that the first one makes next.  begun: what the caller saw of it. */
static bool bury(claims *c, const char *path, bool begun, const char *heir) {
    char text[MAX_CLAIM], process[256] = "a process";
    const int lock = lock_folder(c);
    if (lock < 0) return false;
    const bool dead = !read_claim(path, text) && has_begun(text) == begun && is_dead(c, path, text);
    const bool here = process_in(text, process) && !strncmp(process, c->process, strcspn(c->process, " ") + 1);
    if (dead && !here)
        say("the claim '%s' of %s was not touched for %.0f s and ends", path, process, age_of(c, path));
    const bool removed = dead && !(heir ? rename(heir, path) : unlink(path));
    close(lock);
    return removed;
}

/* Takes the claim of a dead process over, with its line "began": its outputs are not trusted until they are removed.
 * 1: another process does. */
static int inherit(claims *c, const char *path, bool begun, dw_err *err) {
    char *heir = dw_format(err, "%s.heir", c->presence);
    if (!heir) return -1;
    int rc = write_claim(c, heir, begun ? "began\n" : "", err);
    if (!rc && !bury(c, path, begun, heir)) {
        unlink(heir);
        rc = 1;
    }
    free(heir);
    return rc;
}

static int hold(claims *c, const char *name, dw_err *err) {
    if (dw_grow(&c->held, &c->cap_held, c->n_held + 1, sizeof *c->held, "claims", err)) return -1;
    return (c->held[c->n_held] = dw_strdup(name, err)) ? (c->n_held++, 0) : -1;
}

int claims_take(claims *c, const char *name, claim_taken *taken, dw_err *err) {
    char *path = path_of(c, name), text[MAX_CLAIM];
    int rc = path ? 1 : dw_fail(err, "out of memory: claims");
    *taken = CLAIM_NEW;
    for (int attempt = 0; attempt < 4 && rc == 1; attempt++) {
        rc = write_claim(c, path, "", err);
        if (rc != 1 || read_claim(path, text)) continue;
        if (!is_dead(c, path, text)) break;
        const bool begun = has_begun(text);
        rc = inherit(c, path, begun, err);
        if (!rc && begun) *taken = CLAIM_INHERITED;
    }
    if (!rc) rc = hold(c, name, err);
    if (rc == 1) *taken = CLAIM_NOT_MINE;
    free(path);
    return rc < 0 ? -1 : 0;
}

static void give_up(const claims *c, const char *name) {
    char text[MAX_CLAIM], *path = path_of(c, name);
    if (path && !read_claim(path, text) && is_own(c, text)) unlink(path);
    free(path);
}

bool claims_holds(const claims *c, const char *name) {
    const int fd = open_own(c, name);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

void claims_release(claims *c, const char *name) {
    for (size_t i = 0; i < c->n_held; i++) {
        if (strcmp(c->held[i], name)) continue;
        give_up(c, name);
        free(c->held[i]);
        c->held[i] = c->held[--c->n_held];
        return;
    }
}

int claims_begin(claims *c, const char *name, dw_err *err) {
    const int fd = open_own(c, name);
    if (fd < 0) return 0; // lost to another process: claims_holds says so when the job ends
    bool ok = dprintf(fd, "began\n") > 0;
    int why = errno;
    if (close(fd) && ok) ok = false, why = errno;
    return ok ? 0 : dw_fail(err, "cannot write '%s/%s': %s", c->folder, name, strerror(why));
}

void claims_fail(claims *c, const char *name, const char *reason) {
    const int fd = open_own(c, name);
    if (fd < 0) return;
    dprintf(fd, "failed %.*s\n", (int)strcspn(reason, "\n") < 400 ? (int)strcspn(reason, "\n") : 400, reason);
    close(fd);
}

/* The claim of another process is never touched: its owner may be dead. */
void claims_beat(claims *c) {
    if (dw_now() - c->beaten < CLAIM_BEAT) return;
    c->beaten = dw_now();
    if (c->presence && utimensat(AT_FDCWD, c->presence, NULL, 0) && errno == ENOENT) // taken for dead and removed
        write_claim(c, c->presence, c->grid, NULL);
    for (size_t i = 0; i < c->n_held; i++) {
        const int fd = open_own(c, c->held[i]);
        if (fd < 0) continue;
        futimens(fd, NULL);
        close(fd);
    }
}

/* ---- the folder ------------------------------------------------------------------------------------------------- */

static bool ends_with(const char *name, const char *end) {
    const size_t n = strlen(name), n_end = strlen(end);
    return n > n_end && !strcmp(name + n - n_end, end);
}

static int refuse_other_grid(const char *folder, const char *text, dw_err *err) {
    char process[256] = "?", host[128] = "?", pid[32] = "?";
    process_in(text, process);
    sscanf(process, "%127s %*s %*s %31s", host, pid);
    return dw_fail(
        err,
        "another sweep (process %s on %s) works on '%.*s' with another grid; wait for it, or choose another folder",
        pid, host, (int)(strrchr(folder, '/') - folder), folder);
}

/* Another process of the folder, if it lives, must have the same grid. */
static int look_at(claims *c, const char *path, bool presence, const char *grid_sha256, int *n_others, dw_err *err) {
    char text[MAX_CLAIM];
    int rc = 0;
    if (!strcmp(path, c->presence) || read_claim(path, text)) return 0;
    char *grid = line_in(text, "grid ");
    if (is_dead(c, path, text))
        bury(c, path, has_begun(text), NULL);
    else if (grid && strcmp(grid, grid_sha256))
        rc = refuse_other_grid(c->folder, text, err);
    else
        *n_others += presence;
    free(grid);
    return rc;
}

/* Who else is here.  What dead ones left goes: their names, and claims that they did not finish. */
static int look_around(claims *c, const char *grid_sha256, int *n_others, dw_err *err) {
    DIR *d = opendir(c->folder);
    if (!d) return dw_fail(err, "cannot read the folder '%s': %s", c->folder, strerror(errno));
    int rc = 0;
    for (struct dirent *e; !rc && (e = readdir(d));) {
        const bool heir = ends_with(e->d_name, ".heir"), presence = ends_with(e->d_name, ".sweep");
        char *path = path_of(c, e->d_name);
        if (path && dw_out_is_temporary(e->d_name))
            dw_out_remove_left(path);
        else if (path && (heir || presence))
            rc = look_at(c, path, presence, grid_sha256, n_others, err);
        free(path);
    }
    closedir(d);
    return rc;
}

static int make_presence(claims *c, const char *grid_sha256, dw_err *err) {
    c->presence = dw_format(err, "%s/%.*s-%ld-%s.sweep", c->folder, (int)strcspn(c->process, " "), c->process,
                            (long)getpid(), strrchr(c->process, ' ') + 1);
    if (!c->presence) return -1;
    snprintf(c->grid, sizeof c->grid, "grid %s\n", grid_sha256);
    if (!write_claim(c, c->presence, c->grid, err)) return 0;
    free(c->presence);
    c->presence = NULL;
    return dw_fail(err, "cannot write into '%s'", c->folder);
}

claims *claims_open(const char *folder, const char *grid_sha256, int *n_others, dw_err *err) {
    claims *c = dw_alloc(1, sizeof *c, "claims", err);
    if (!c) return NULL;
    *n_others = 0;
    name_process(c);
    c->folder = dw_format(err, "%s/claims", folder);
    int rc = c->folder ? 0 : -1;
    if (!rc && mkdir(c->folder, 0777) && errno != EEXIST)
        rc = dw_fail(err, "cannot make the folder '%s': %s", c->folder, strerror(errno));
    if (!rc && !dw_is_folder(c->folder)) rc = dw_fail(err, "'%s' is no folder", c->folder);
    if (!rc && (make_presence(c, grid_sha256, err) || look_around(c, grid_sha256, n_others, err))) rc = -1;
    if (!rc) return c;
    claims_close(c);
    return NULL;
}

/* Claims of dead processes that did not begin say nothing of outputs. */
static void bury_not_begun(claims *c) {
    char text[MAX_CLAIM];
    DIR *d = opendir(c->folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        char *path = *e->d_name == '.' ? NULL : path_of(c, e->d_name);
        if (path && !read_claim(path, text) && !has_begun(text) && is_dead(c, path, text)) bury(c, path, false, NULL);
        free(path);
    }
    if (d) closedir(d);
}

void claims_close(claims *c) {
    if (!c) return;
    if (c->presence) bury_not_begun(c);
    while (c->n_held) {
        give_up(c, c->held[--c->n_held]);
        free(c->held[c->n_held]);
    }
    if (c->presence) unlink(c->presence);
    free(c->presence);
    free(c->folder);
    free(c->held);
    free(c);
}
