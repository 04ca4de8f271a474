/* set.c - a hash table of digests (set.h). */
#include "base/set.h"

#include <stdlib.h>
#include <string.h>

static bool is_free(const uint8_t digest[32]) {
    static const uint8_t zeros[32];
    return !memcmp(digest, zeros, sizeof zeros);
}

/* The slot that holds the digest, or the free one where it would go. */
static uint8_t *find_slot(const dw_set *s, const uint8_t digest[32]) {
    size_t i = dw_siphash13(s->key, digest, 32) & (s->n_slot - 1);
    while (!is_free(s->slot[i]) && memcmp(s->slot[i], digest, 32)) i = (i + 1) & (s->n_slot - 1);
    return s->slot[i];
}

/* Makes a table of twice the slots. */
static int grow(dw_set *s, dw_err *err) {
    dw_set larger = {.n = s->n, .n_slot = s->n_slot ? 2 * s->n_slot : 64, .key = s->key};
    if (!s->n_slot && dw_hash_key_new(&larger.key, err)) return -1;
    larger.slot = dw_alloc(larger.n_slot, sizeof *larger.slot, "a set of strings", err);
    if (!larger.slot) return -1;
    for (size_t i = 0; i < s->n_slot; i++)
        if (!is_free(s->slot[i])) memcpy(find_slot(&larger, s->slot[i]), s->slot[i], 32);
    free(s->slot);
    *s = larger;
    return 0;
}

int dw_set_add(dw_set *s, const void *bytes, size_t n, dw_err *err) {
    uint8_t digest[32];
    if (2 * s->n >= s->n_slot && grow(s, err)) return -1;
    dw_sha256_digest(bytes, n, digest);
    uint8_t *slot = find_slot(s, digest);
    if (!is_free(slot)) return 0;
    memcpy(slot, digest, sizeof digest);
    s->n++;
    return 1;
}

bool dw_set_has(const dw_set *s, const void *bytes, size_t n) {
    uint8_t digest[32];
    if (!s->n) return false;
    dw_sha256_digest(bytes, n, digest);
    return !is_free(find_slot(s, digest));
}

void dw_set_free(dw_set *s) {
    free(s->slot);
    *s = (dw_set){0};
}
