/* fuzz_traces.c - any bytes as traces, and any changes to the datasets of a good file with a right checksum. */
#include "tests/h5_changes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    h5_try_file(&h5_traces, data, size);
    h5_try_changes(&h5_traces, data, size);
    return 0;
}
