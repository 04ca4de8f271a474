/* fuzz_safetensors.c - any bytes as a safetensors file: refused, or its tensors cover the data exactly. */
#include "formats/internal.h"
#include "kit/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    dw_err err = {0};
    kit_safetensors *st = kit_safetensors_open_memory(data, size, "fuzz", &err);
    if (!st != !!err.text[0]) abort(); // a sentence exactly when it failed
    if (!st) return 0;
    const uint8_t *at = data + 8 + dw_le64(data);
    for (size_t i = 0; i < kit_safetensors_count(st); i++) {
        const kit_st_tensor *t = kit_safetensors_tensor(st, i);
        if (t->data != at || kit_safetensors_find(st, t->name) != t || !strlen(t->dtype_name)) abort();
        at += t->n_bytes;
    }
    if (at != data + size) abort();
    kit_safetensors_close(st);
    return 0;
}
