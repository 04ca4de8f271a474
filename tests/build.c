/* build.c - files for tests, made in memory. */
#include "tests/build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void need(bool ok, const char *what) {
    if (ok) return;
    perror(what);
    exit(1);
}

void put(test_bytes *b, const void *data, size_t size) {
    if (!size) return;
    if (size > b->cap - b->size) {
        b->cap = 2 * b->cap + size;
        b->data = realloc(b->data, b->cap);
        need(b->data, "realloc");
    }
    memcpy(b->data + b->size, data, size);
    b->size += size;
}

void put_u8(test_bytes *b, uint8_t v) { put(b, &v, sizeof v); }
void put_u16(test_bytes *b, uint16_t v) { put(b, &v, sizeof v); }
void put_u32(test_bytes *b, uint32_t v) { put(b, &v, sizeof v); }
void put_u64(test_bytes *b, uint64_t v) { put(b, &v, sizeof v); }
void put_f32(test_bytes *b, float v) { put(b, &v, sizeof v); }

void put_zeros(test_bytes *b, size_t n) {
    for (size_t i = 0; i < n; i++) put_u8(b, 0);
}

void put_padding(test_bytes *b, size_t alignment) {
    while (b->size % alignment) put_u8(b, 0);
}

void put_text(test_bytes *b, const char *text) { put(b, text, strlen(text)); }

void put_str(test_bytes *b, const char *text) {
    put_u64(b, strlen(text));
    put_text(b, text);
}

void put_gguf(test_bytes *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv) {
    put_text(b, "GGUF");
    put_u32(b, version);
    put_u64(b, n_tensors);
    put_u64(b, n_kv);
}

void put_key(test_bytes *b, const char *key, uint32_t type) {
    put_str(b, key);
    put_u32(b, type);
}

void put_kv_u32(test_bytes *b, const char *key, uint32_t v) {
    put_key(b, key, DW_KV_U32);
    put_u32(b, v);
}

void put_kv_str(test_bytes *b, const char *key, const char *v) {
    put_key(b, key, DW_KV_STR);
    put_str(b, v);
}

void put_kv_array(test_bytes *b, const char *key, uint32_t type, uint64_t count) {
    put_key(b, key, DW_KV_ARRAY);
    put_u32(b, type);
    put_u64(b, count);
}

void put_tensor(test_bytes *b, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *ne, uint64_t offset) {
    put_str(b, name);
    put_u32(b, n_dims);
    for (uint32_t d = 0; d < n_dims; d++) put_u64(b, ne[d]);
    put_u32(b, type);
    put_u64(b, offset);
}

void put_safetensors(test_bytes *b, const char *json) {
    put_u64(b, strlen(json));
    put_text(b, json);
}

void save(const test_bytes *b, const char *path) {
    FILE *f = fopen(path, "wb");
    need(f, path);
    need(fwrite(b->data, 1, b->size, f) == b->size && !fclose(f), path);
}
