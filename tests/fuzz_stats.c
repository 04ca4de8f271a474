/* fuzz_stats.c - any bytes as statistics, and any changes to the datasets of a good file with a right checksum. */
#include "tests/h5_changes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    h5_try_file(&h5_stats, data, size);
    h5_try_changes(&h5_stats, data, size);
    return 0;
}
