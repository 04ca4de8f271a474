/* costs.c - remembers what jobs took. */
#include "experiments/sweep/costs.h"
#include "kit/hash_cache.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_BYTES = 1 << 20, MAX_TOOL = 40 };

static const char head[] = "tool\toptions\twords\tin_bytes\tthreads\tseconds\tcpu_seconds\tpeak_bytes\tfile_bytes\n";

typedef struct remembered {
    char tool[MAX_TOOL];
    uint64_t options, words;
    double in_bytes;
    job_cost cost;
} remembered;

struct costs {
    char *path; // NULL: there is no cache
    remembered *all;
    size_t n, cap;
};

/* A line that is torn or damaged is left out. */
static int add_line(costs *c, const char *line, dw_err *err) {
    remembered r = {0};
    if (sscanf(line, "%39[A-Za-z0-9_-]\t%" SCNx64 "\t%" SCNx64 "\t%lf\t%d\t%lf\t%lf\t%lf\t%lf", r.tool, &r.options,
               &r.words, &r.in_bytes, &r.cost.threads, &r.cost.seconds, &r.cost.cpu_seconds, &r.cost.peak_bytes,
               &r.cost.file_bytes) != 9)
        return 0;
    const double all[] = {r.in_bytes, r.cost.seconds, r.cost.cpu_seconds, r.cost.peak_bytes, r.cost.file_bytes};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!(all[i] >= 0 && all[i] < 1e18)) return 0;
    if (dw_grow(&c->all, &c->cap, c->n + 1, sizeof *c->all, "times", err)) return -1;
    c->all[c->n++] = r;
    return 0;
}

/* Keeps the second half of a file that has become long. */
static void shorten(const char *path, const char *text, size_t size) {
    const char *half = size > MAX_BYTES ? strchr(text + size / 2, '\n') : NULL;
    dw_out *out = half ? dw_out_open_kept(path, NULL) : NULL;
    if (out && !dw_out_write(out, head, strlen(head), NULL) && !dw_out_write(out, half + 1, strlen(half + 1), NULL))
        dw_out_commit(out, NULL);
    dw_out_free(out);
}

costs *costs_open(dw_err *err) {
    costs *c = dw_alloc(1, sizeof *c, "times", err);
    if (!c) return NULL;
    size_t size = 0;
    c->path = kit_cache_path("times.tsv");
    char *text = c->path && dw_file_exists(c->path) ? dw_read_file(c->path, 1 << 28, &size, NULL) : NULL, *rest = text;
    if (text) shorten(c->path, text, size);
    int rc = 0;
    while (rest && !rc) rc = add_line(c, strsep(&rest, "\n"), err);
    free(text);
    if (!rc) return c;
    costs_free(c);
    return NULL;
}

void costs_free(costs *c) {
    if (!c) return;
    free(c->path);
    free(c->all);
    free(c);
}

/* How much a remembered job has in common with a job; 0: nothing. */
static int likeness(const remembered *r, const job *j) {
    if (strcmp(r->tool, j->step->tool)) return 0;
    return r->words == j->words ? 3 : r->options == j->options ? 2 : 1;
}

static double distance(const remembered *r, double in_bytes) { return fabs(log((r->in_bytes + 1) / (in_bytes + 1))); }

static const double comparable = 10;     // inputs that differ by a larger factor tell nothing
static const double least_memory = 64e6; // a program has its own, however little it reads

/* The memory of a job whose inputs are `ratio` times those of the remembered one. */
static double scaled_memory(double peak_bytes, double ratio) {
    return fmax(peak_bytes * ratio, fmin(peak_bytes, least_memory));
}

bool costs_find(const costs *c, const job *j, double in_bytes, job_cost *cost) {
    const remembered *best = NULL;
    int most = 0;
    for (size_t i = c->n; i-- > 0;) { // the last ones first
        const int like = likeness(&c->all[i], j);
        if (!like || distance(&c->all[i], in_bytes) > log(comparable)) continue;
        if (like < most || (like == most && distance(&c->all[i], in_bytes) >= distance(best, in_bytes))) continue;
        best = &c->all[i];
        most = like;
    }
    if (!best) return false;
    const double ratio = (in_bytes + 1) / (best->in_bytes + 1);
    *cost = best->cost;
    cost->seconds *= ratio;
    cost->cpu_seconds *= ratio;
    cost->file_bytes *= ratio;
    cost->peak_bytes = scaled_memory(cost->peak_bytes, ratio);
    return true;
}

void costs_note(costs *c, const job *j, double in_bytes, const job_cost *k) {
    char line[512];
    const int n = snprintf(line, sizeof line, "%s\t%016" PRIx64 "\t%016" PRIx64 "\t%.0f\t%d\t%.3f\t%.3f\t%.0f\t%.0f\n",
                           j->step->tool, j->options, j->words, in_bytes, k->threads, k->seconds, k->cpu_seconds,
                           k->peak_bytes, k->file_bytes);
    add_line(c, line, NULL);
    const int fd = c->path ? open(c->path,
                                  O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666)
                           : -1;
    struct stat st;
    if (fd < 0) return;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode)) {
        if (!st.st_size) dprintf(fd, "%s", head);
        if (write(fd, line, (size_t)n) != n) {} // a torn line is left out when it is read
    }
    close(fd);
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

double memory_of(pid_t process) {
    char path[64];
    double pages = 0, resident = 0;
    snprintf(path, sizeof path, "/proc/%ld/statm", (long)process);
    FILE *f = fopen(path, "re");
    if (f && fscanf(f, "%lf %lf", &pages, &resident) != 2) resident = 0;
    if (f) fclose(f);
    return resident * (double)sysconf(_SC_PAGESIZE);
}
