/* pages.c - memory by whole pages, small or huge. */
#include "base/base.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 << 20 };

/* The memory ends where a page of its kind ends. */
int dw_pages_new(dw_pages *p, size_t n_bytes, bool huge, dw_err *err) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), unit = huge ? HUGE_PAGE : page;
    *p = (dw_pages){0};
    if (n_bytes > PTRDIFF_MAX - unit - page) return dw_fail(err, "out of memory: %zu bytes", n_bytes);
    const size_t map_bytes = (n_bytes + page - 1) / page * page + unit + page;
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

bool dw_pages_may_be_huge(void) {
    char text[64] = "";
    const int fd = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0) close(fd);
    return n > 0 && !strstr(text, "[never]");
}
