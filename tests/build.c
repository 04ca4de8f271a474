/* build.c - files for tests, made in memory. */
#include "tests/build.h"
#include "tests/test.h"

#include <dirent.h>
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

/* ---- broken files -------------------------------------------------------------------------------- */

static const char folder[] = "tests/broken";

void check_sentence(const dw_err *err, const char *words, const char *what) {
    const size_t n = strlen(err->text);
    CHECK(n && !strchr(err->text, '\n') && err->text[n - 1] != '.', "%s: not a sentence: \"%s\"", what, err->text);
    CHECK(strstr(err->text, words), "%s: \"%s\" does not say \"%s\"", what, err->text, words);
}

void check_refused(open_bytes *open, const void *data, size_t size, const char *words, const char *what) {
    dw_err err = {0};
    char *exact = malloc(size ? size : 1);
    need(exact, "malloc");
    if (size) memcpy(exact, data, size);
    CHECK(!open(exact, size, what, &err), "%s of %zu bytes was opened", what, size);
    check_sentence(&err, words, what);
    free(exact);
}

static const broken_file *find_row(const broken_file *files, const char *name) {
    for (; files->name; files++)
        if (!strcmp(files->name, name)) return files;
    return NULL;
}

static void check_file(const broken_file *row, const char *name, const char *readme, open_bytes *open) {
    size_t size = 0;
    char *bytes = dw_read_file(test_path(folder, name), 1 << 20, &size, NULL);
    REQUIRE(bytes, "%s", name);
    CHECK(size <= 1024 && strstr(readme, name), "%s is too large or not in the README", name);
    check_refused(open, bytes, size, row ? row->words : "", name);
    test_bytes made = {0};
    if (row) row->make(&made);
    CHECK(!row || (made.size == size && (!size || !memcmp(made.data, bytes, size))), "%s is not what its row makes",
          name);
    free(made.data);
    free(bytes);
}

void check_broken(const broken_file *files, const char *prefix, open_bytes *open) {
    char *readme = dw_read_file(test_path(folder, "README.md"), 1 << 20, NULL, NULL);
    DIR *dir = opendir(folder);
    REQUIRE(readme && dir, "run me where %s/ is", folder);
    size_t n_rows = 0, n_found = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (strncmp(entry->d_name, prefix, strlen(prefix))) continue;
        const broken_file *row = find_row(files, entry->d_name);
        check_file(row, entry->d_name, readme, open);
        n_found += row != NULL;
    }
    while (files[n_rows].name) n_rows++;
    CHECK(n_found == n_rows, "%zu of %zu files", n_found, n_rows);
    closedir(dir);
    free(readme);
}

bool write_broken(const broken_file *files, int argc, char **argv) {
    if (argc != 3 || strcmp(argv[1], "--write")) return false;
    for (; files->name; files++) {
        test_bytes b = {0};
        files->make(&b);
        save(&b, test_path(argv[2], files->name));
        printf("| `%s` | %s |\n", files->name, files->cause);
        free(b.data);
    }
    return true;
}
