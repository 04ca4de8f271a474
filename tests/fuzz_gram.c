/* fuzz_gram.c - any bytes as Gram matrices: refused with a sentence, or every matrix that is handed out can be read.
 *
 * The bytes are tried as they are, and with right hashes of the head and of the matrices that the head lists. */
#include "kit/gram.h"
#include "tests/scratch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FIRST = 64, FIXED = 112, TEXT = 208, MATRIX = 16, HASH = 32 }; // bytes, as gram.h says

static void put_hash(const void *data, size_t n, uint8_t *to) {
    dw_sha256 h;
    dw_sha256_begin(&h);
    dw_sha256_add(&h, data, n);
    dw_sha256_end(&h, to);
}

static size_t align(size_t at) { return (at + FIRST - 1) / FIRST * FIRST; }

/* Puts the hashes right where they lie within the file. */
static void seal(uint8_t *file, size_t size) {
    if (size < FIRST) return;
    const uint64_t n_head = dw_le64(file + 16);
    if (n_head > size - FIRST || n_head < FIXED) return;
    const uint8_t *head = file + FIRST;
    const uint64_t n_matrix = dw_le32(head + FIXED - 4), n_text = dw_le32(head + FIXED - 8);
    put_hash(head, n_head, file + 24);
    if (FIXED + n_text * TEXT + n_matrix * MATRIX != n_head) return;
    size_t at = FIRST + n_head;
    for (size_t i = 0; i < n_matrix; i++) {
        const size_t width = dw_le32(head + FIXED + n_text * TEXT + i * MATRIX + 8);
        const size_t n = width <= 1 << 10 ? kit_gram_packed((int)width) * sizeof(double) : size;
        at = align(at);
        if (at > size || n > size - at || size - at - n < HASH) return;
        put_hash(file + at, n, file + at + n);
        at += n + HASH;
    }
}

static void check_matrix(kit_gram *g, const kit_gram_matrix *m) {
    dw_err err = {0};
    double n_tokens;
    const kit_gram_matrix *found = kit_gram_find(g, m->layer, m->input, &n_tokens, &err);
    if (!found != !!err.text[0] || (found && (found != m || !(n_tokens >= 1)))) abort();
    for (int r = 0; found && r < m->n; r++) {
        if (!(kit_gram_at(m, r, r) >= 0)) abort();
        for (int c = 0; c < m->n; c++)
            if (!isfinite(kit_gram_at(m, r, c))) abort();
    }
}

static void read_all(const uint8_t *data, size_t size) {
    dw_err err = {0};
    kit_gram g;
    const int rc = kit_gram_open(&g, scratch_file(data, size), &err);
    if (!rc != !err.text[0]) abort(); // a sentence exactly when it failed
    if (rc) return;
    if (g.n_ctx < 0 || g.skip < 0 || !dw_is_utf8(g.backend, strlen(g.backend))) abort();
    for (size_t i = 0; i < g.n_matrix; i++) check_matrix(&g, &g.matrix[i]);
    kit_gram_close(&g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    read_all(data, size);
    uint8_t *file = malloc(align(size) + 1);
    if (!file) abort();
    memset(file, 0, align(size) + 1);
    if (size) memcpy(file, data, size);
    seal(file, align(size));
    read_all(file, align(size));
    free(file);
    return 0;
}
