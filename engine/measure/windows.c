/* windows.c - a table of protocols; the function of a protocol gives window i. */
#include "measure/windows.h"

#include <stdlib.h>
#include <string.h>

static bool consecutive(size_t i, size_t n_ids, int n_ctx, int first, measure_window *w) {
    if (i >= n_ids / (size_t)n_ctx) return false;
    *w = (measure_window){.start = i * (size_t)n_ctx, .n_eval = n_ctx - 1, .first = first};
    return true;
}

static bool llama(size_t i, size_t n_ids, int n_ctx, measure_window *w) {
    return consecutive(i, n_ids, n_ctx, n_ctx / 2, w);
}
static bool full(size_t i, size_t n_ids, int n_ctx, measure_window *w) { return consecutive(i, n_ids, n_ctx, 0, w); }

/* Window i begins at i * stride.  Tokens before `reached` are in earlier windows and are scored there. */
static bool hf(size_t i, size_t n_ids, int n_ctx, measure_window *w) {
    const size_t stride = (size_t)n_ctx / 2, start = i * stride, reached = i ? start - stride + (size_t)n_ctx : 1;
    if (reached >= n_ids) return false;
    const size_t left = n_ids - start, n = left < (size_t)n_ctx ? left : (size_t)n_ctx;
    *w = (measure_window){.start = start, .n_eval = (int)n - 1, .first = (int)(reached - 1 - start)};
    return true;
}

const measure_protocol measure_protocols[] = {
    {"llama", "windows of n_ctx tokens, the second half of each is scored, as in llama.cpp", 2, true, llama},
    {"hf", "windows that slide by n_ctx/2, every token is scored once", 0, false, hf},
    {"full", "windows of n_ctx tokens, every token but the first of each is scored", 1, false, full},
    {0}};

const measure_protocol *measure_protocol_find(const char *name) {
    for (const measure_protocol *p = measure_protocols; p->name; p++)
        if (!strcmp(p->name, name)) return p;
    return NULL;
}

int measure_windows_make(measure_windows *w, const measure_protocol *p, size_t n_ids, int n_ctx, int first, int last,
                         const char *what, dw_err *err) {
    const size_t least = p->least_windows ? (size_t)p->least_windows * (size_t)n_ctx : 2;
    measure_window one;
    *w = (measure_windows){0};
    if (n_ids < least)
        return dw_fail(err, "'%s' is too short: protocol %s with a context of %d needs %zu tokens, the text has %zu; "
                       "give a longer text or a smaller -c", what, p->name, n_ctx, least, n_ids);
    while (p->window(w->n_all, n_ids, n_ctx, &one)) w->n_all++;
    if (!first) first = 1, last = w->n_all > INT32_MAX ? INT32_MAX : (int)w->n_all;
    if ((size_t)last > w->n_all)
        return dw_fail(err, "windows %d to %d are wanted, but '%s' has %zu", first, last, what, w->n_all);
    w->window = dw_alloc((size_t)(last - first + 1), sizeof *w->window, "windows", err);
    if (!w->window) return -1;
    for (size_t i = (size_t)first - 1; i < (size_t)last; i++) {
        p->window(i, n_ids, n_ctx, &w->window[w->n]);
        w->n_scored += (size_t)measure_window_n_scored(&w->window[w->n++]);
    }
    return 0;
}

void measure_windows_release(measure_windows *w) {
    free(w->window);
    *w = (measure_windows){0};
}
