/* fuzz_imatrix.c - any bytes as an importance file: refused in a sentence, or every value can be read and written
 * back. */
#include "kit/imatrix.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    dw_err err = {0};
    kit_imatrix im;
    const int rc = kit_imatrix_parse(&im, data, size, "fuzz", &err);
    if (!rc != !err.text[0]) abort(); // a sentence exactly when it failed
    for (size_t i = 0; i < im.n_entry; i++) {
        const kit_imatrix_entry *e = &im.entry[i];
        for (int j = 0; j < e->n; j++)
            if (!(e->mean[j] >= 0)) abort();
        if (kit_imatrix_find(&im, e->name) != e) abort();
    }
    if (!rc && im.n_entry) { // as statistics of a small model
        const int n_ff[] = {3, 1}, n_mix[] = {2, 0};
        kit_stats s;
        if (!kit_stats_init(&s, 2, 2, n_ff, n_mix, 1, NULL)) {
            kit_imatrix_to_stats(&im, &s, NULL);
            kit_stats_release(&s);
        }
    }
    kit_imatrix_release(&im);
    return 0;
}
