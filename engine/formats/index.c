/* index.c - records by name. */
#include "formats/internal.h"

#include <stdlib.h>
#include <string.h>

static const char *name_of(const void *record) { return *(const char *const *)record; }

static int by_name(const void *a, const void *b) {
    return strcmp(name_of(*(const void *const *)a), name_of(*(const void *const *)b));
}

static int name_to_record(const void *name, const void *record) {
    return strcmp(name, name_of(*(const void *const *)record));
}

int dw_index_build(dw_index *index, const void *records, size_t n, size_t record_bytes, const char *what, dw_err *err) {
    *index = (dw_index){.sorted = dw_alloc(n, sizeof *index->sorted, what, err), .n = n};
    if (!index->sorted) return -1;
    for (size_t i = 0; i < n; i++) index->sorted[i] = (const char *)records + i * record_bytes;
    qsort(index->sorted, n, sizeof *index->sorted, by_name);
    for (size_t i = 1; i < n; i++) {
        const char *name = name_of(index->sorted[i]);
        if (!strcmp(name_of(index->sorted[i - 1]), name)) return dw_fail(err, "%s '%.200s' occurs twice", what, name);
    }
    return 0;
}

const void *dw_index_find(const dw_index *index, const char *name) {
    const void **found = bsearch(name, index->sorted, index->n, sizeof *index->sorted, name_to_record);
    return found ? *found : NULL;
}

void dw_index_free(dw_index *index) {
    free(index->sorted);
    *index = (dw_index){0};
}
