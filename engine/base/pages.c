/* pages.c - memory by whole pages, small or huge. */
#include "base/base.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 << 20 };

/* The memory ends where a page of its kind ends, and all pages of its kind that it touches lie inside of the map. */
int dw_pages_new(dw_pages *p, size_t n_bytes, bool huge, dw_err *err) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), unit = huge ? HUGE_PAGE : page;
    *p = (dw_pages){0};
    if (n_bytes > PTRDIFF_MAX - 2 * unit - page) return dw_fail(err, "out of memory: %zu bytes", n_bytes);
    const size_t map_bytes = (n_bytes + unit - 1) / unit * unit + unit + page;
    uint8_t *map = mmap(NULL, map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return dw_fail(err, "out of memory: %zu bytes", n_bytes);
    uint8_t *end = map + map_bytes - page;
    end -= (uintptr_t)end % unit;
#ifdef MADV_HUGEPAGE
    if (huge) madvise(map, map_bytes, MADV_HUGEPAGE);
#endif
    mprotect(end, page, PROT_NONE); // only a safeguard: it may fail
    *p = (dw_pages){end - n_bytes, n_bytes, map, map_bytes};
    return 0;
}

void dw_pages_free(dw_pages *p) {
    if (p->map) munmap(p->map, p->map_bytes);
    *p = (dw_pages){0};
}

/* Where a map of this size can begin at a multiple of a huge page; NULL: it cannot, or it need not. */
static void *place_of_map(size_t n_bytes) {
    if (n_bytes < HUGE_PAGE || n_bytes > PTRDIFF_MAX - HUGE_PAGE) return NULL;
    const size_t with_room = n_bytes + HUGE_PAGE;
    uint8_t *free = mmap(NULL, with_room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (free == MAP_FAILED) return NULL;
    munmap(free, with_room);
    return free + (HUGE_PAGE - (uintptr_t)free % HUGE_PAGE) % HUGE_PAGE;
}

void *dw_pages_map_file(int fd, size_t n_bytes) {
    void *map = mmap(place_of_map(n_bytes), n_bytes, PROT_READ, MAP_SHARED, fd, 0);
#ifdef MADV_HUGEPAGE
    if (map != MAP_FAILED) madvise(map, n_bytes, MADV_HUGEPAGE);
#endif
    return map;
}

/* The text of a small file of the system; empty: there is none. */
static void read_setting(const char *path, char text[64]) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? read(fd, text, 63) : 0;
    if (fd >= 0) close(fd);
    text[n > 0 ? n : 0] = 0;
}

bool dw_pages_may_be_huge(void) {
    char when[64], size[64];
    read_setting("/sys/kernel/mm/transparent_hugepage/enabled", when);
    read_setting("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", size);
    return *when && !strstr(when, "[never]") && strtoul(size, NULL, 10) == HUGE_PAGE;
}

/* Kilobytes after a name in a line of smaps; 0: another line. */
static size_t kilobytes(const char *line, const char *name) {
    const size_t n = strlen(name);
    return strncmp(line, name, n) ? 0 : strtoul(line + n, NULL, 10);
}

double dw_pages_huge_share(const dw_pages *p) {
    const uintptr_t first = (uintptr_t)p->data, end = first + p->n_bytes;
    size_t resident = 0, huge = 0;
    bool is_ours = false;
    char line[512];
    FILE *f = fopen("/proc/self/smaps", "re");
    while (f && fgets(line, sizeof line, f)) {
        uintptr_t from, to;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2) is_ours = from < end && to > first;
        else if (is_ours) resident += kilobytes(line, "Rss:"), huge += kilobytes(line, "AnonHugePages:");
    }
    if (f) fclose(f);
    return resident ? (double)huge / (double)resident : NAN;
}
