/* fuzz_h5.c - bytes overwritten anywhere in statistics and traces with a right checksum, so that the HDF5 library
 * meets them.
 *
 * The library may crash, hang and allocate in its child process.  What is tested: the program gets a sentence or
 * values that keep the format's promises, in time and in bounded memory. */
#include "tests/h5_changes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size) h5_try_damage(data[0] & 1 ? &h5_traces : &h5_stats, data + 1, size - 1);
    return 0;
}
