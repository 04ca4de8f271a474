/* signals.c - how signals end a program: unfinished files are removed, and a bus error names the file. */
#include "kit/kit_own.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NAME_BYTES = 4096 };

static pid_t writer;         // the process whose files are removed: a child must not remove files of its parent
static char begins_line[96]; // "deadwood-cut"; on a terminal "\n" before it, because a bar or ^C may be in the line
static _Atomic(const char *) last_words;
static _Atomic(const char *) hold_words; // what the first signal says, which does not end the program; NULL: it does
static atomic_int noted;
static atomic_llong noted_at; // ms

void signals_on_interrupt(const char *words) { atomic_store(&last_words, words); }

void signals_hold(const char *words) {
    atomic_store(&hold_words, words);
    if (!words && noted) raise(noted);
}

int signals_noted(void) { return atomic_load(&noted); }

static void remove_unfinished(void) {
    if (getpid() == writer) dw_out_remove_unfinished();
}

static void put(const char *text) { (void)!write(STDERR_FILENO, text, strlen(text)); }

void signals_end(int sig) {
    const char *words = atomic_load(&last_words);
    remove_unfinished();
    if (sig == SIGINT && words && getpid() == writer) put(words);
    signal(sig, SIG_DFL);
    raise(sig);
}

static long long ms_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1000LL * t.tv_sec + t.tv_nsec / 1000000;
}

/* True for the first signal while signals are held, and for others within a second: a parent that passes on what the
 * terminal sends to both makes two of one. */
static bool is_held(int sig, const char *words) {
    int none = 0;
    if (!words || getpid() != writer) return false;
    if (!atomic_load(&noted)) atomic_store(&noted_at, ms_now());
    if (!atomic_compare_exchange_strong(&noted, &none, sig)) return ms_now() < atomic_load(&noted_at) + 1000;
    if (sig == SIGINT && !tool.quiet) put(begins_line), put(": "), put(words), put("\n");
    return true;
}

static void end_by_signal(int sig) {
    const int saved = errno;
    if (!is_held(sig, atomic_load(&hold_words))) signals_end(sig);
    errno = saved;
}

/* True when a line of /proc/self/maps, "7f12-7f34 r--s 00000000 08:01 42    /the/path", holds the address. */
static bool is_map_of(const char *line, uintptr_t address) {
    char *end;
    const uintptr_t first = strtoul(line, &end, 16), last = *end == '-' ? strtoul(end + 1, NULL, 16) : 0;
    return address >= first && address < last;
}

/* The name of the file that is mapped at the address, inside `text`, or NULL.  This runs in a signal handler, so it
 * uses system calls and plain loops only. */
static char *file_mapped_at(uintptr_t address, char *text, size_t size) {
    const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    size_t held = 0;
    for (ssize_t n; fd >= 0 && (n = read(fd, text + held, size - 1 - held)) > 0;) {
        held += (size_t)n;
        text[held] = 0;
        char *line = text;
        for (char *end; (end = strchr(line, '\n')); line = end + 1) {
            *end = 0;
            if (!is_map_of(line, address)) continue;
            close(fd);
            return strchr(line, '/');
        }
        held -= (size_t)(line - text);
        if (held == size - 1) held = 0; // no path is that long
        memmove(text, line, held);
    }
    if (fd >= 0) close(fd);
    return NULL;
}

/* A page of a mapped file cannot be read, because the file became shorter or its disk fails. */
static void end_by_bus_error(int sig, siginfo_t *info, void *context) {
    (void)context;
    if (info->si_code <= 0) { // a process sent the signal
        signals_end(sig);
        return;
    }
    static atomic_flag told = ATOMIC_FLAG_INIT;
    while (atomic_flag_test_and_set(&told)) pause(); // another thread met the same fault, and ends the program
    char text[NAME_BYTES + 256], shown[2 * NAME_BYTES];
    const char *name = file_mapped_at((uintptr_t)info->si_addr, text, sizeof text);
    remove_unfinished();
    put(begins_line), put(": ");
    put("cannot read ");
    if (name) dw_show(shown, sizeof shown, name, strlen(name));
    put(name ? "'" : ""), put(name ? shown : "a mapped file"), put(name ? "'" : "");
    put(": it became shorter while it was in use, or its disk fails\n");
    _exit(1);
}

void signals_catch(void) {
    if (!writer) atexit(remove_unfinished);
    writer = getpid();
    snprintf(begins_line, sizeof begins_line, "%s%s", isatty(STDERR_FILENO) ? "\n" : "", tool_name());
    const int sigs[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++) {
        struct sigaction old;
        if (!sigaction(sigs[i], NULL, &old) && old.sa_handler == SIG_IGN) continue; // ignored since the start: nohup
        struct sigaction act = {.sa_handler = end_by_signal, .sa_flags = SA_RESTART};
        sigaction(sigs[i], &act, NULL);
    }
    struct sigaction act = {.sa_sigaction = end_by_bus_error, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &act, NULL);
    signal(SIGXFSZ, SIG_IGN); // with a limit on file sizes (ulimit -f) a write fails instead, as on a full disk
}
