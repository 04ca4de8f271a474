/* fuzz_gguf.c - any bytes as a GGUF file: refused, or every view that is handed out can be read. */
#include "formats/internal.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink; // keeps the reads

static void read_bytes(const void *data, size_t n) {
    const uint8_t *p = data;
    uint8_t sum = 0;
    for (size_t i = 0; i < n; i++) sum ^= p[i];
    sink = sum;
}

static void read_text(const char *text) {
    for (; *text; text++) sink = (uint8_t)*text;
}

static void read_kv(const dw_gguf *g, const dw_kv *kv) {
    uint32_t u;
    float f;
    bool b;
    dw_str s;
    read_text(kv->key);
    read_bytes(kv->data, kv->n_bytes);
    for (size_t i = 0; i < kv->count; i++) {
        sink = dw_kv_number(kv, i) > 1;
        if (kv->str) read_bytes(kv->str[i].ptr, kv->str[i].len);
    }
    if (dw_gguf_find(g, kv->key) != kv) abort();
    dw_gguf_u32(g, kv->key, &u, NULL);
    dw_gguf_f32(g, kv->key, &f, NULL);
    dw_gguf_bool(g, kv->key, &b, NULL);
    if (dw_gguf_str(g, kv->key, &s, NULL) == 1) read_bytes(s.ptr, s.len);
}

static void read_tensor(const dw_gguf *g, const dw_tensor *t) {
    read_text(t->name);
    read_bytes(t->data, t->n_bytes);
    if (dw_gguf_find_tensor(g, t->name) != t) abort();
    if (dw_tensor_row_bytes(t) * t->ne[1] * t->ne[2] * t->ne[3] != t->n_bytes) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    dw_err err = {0};
    dw_gguf *g = dw_gguf_open_memory(data, size, "fuzz", &err);
    if (!g != !!err.text[0]) abort(); // a sentence exactly when it failed
    if (!g) return 0;
    for (size_t i = 0; i < dw_gguf_n_kv(g); i++) read_kv(g, dw_gguf_kv(g, i));
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) read_tensor(g, dw_gguf_tensor(g, i));
    dw_gguf_close(g);
    return 0;
}
