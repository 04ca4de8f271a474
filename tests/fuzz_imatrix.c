/* fuzz_imatrix.c - any bytes as an importance file: refused in a sentence, or every value can be read and written back. */
#include "kit/imatrix.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    dw_err err = {0};
    dw_imatrix im;
    const int rc = dw_imatrix_parse(&im, data, size, "fuzz", &err);
    if (!rc != !err.text[0]) abort(); // a sentence exactly when it failed
    for (size_t i = 0; i < im.n_entry; i++) {
        const dw_imatrix_entry *e = &im.entry[i];
        for (int j = 0; j < e->n; j++)
            if (!(e->mean[j] >= 0)) abort();
        if (dw_imatrix_find(&im, e->name) != e) abort();
    }
    if (!rc && im.n_entry) { // as statistics of a small model
        const int n_ff[] = {3, 1}, n_mix[] = {2, 0};
        dw_stats s;
        if (!dw_stats_init(&s, 2, 2, n_ff, n_mix, 1, NULL)) {
            dw_imatrix_to_stats(&im, &s, NULL);
            dw_stats_release(&s);
        }
    }
    dw_imatrix_release(&im);
    return 0;
}
