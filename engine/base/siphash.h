/* siphash.h - a hash for tables whose keys come from files.
 *
 * SipHash-c-d (Aumasson and Bernstein, 2012, "SipHash: a fast short-input PRF"): c rounds per word of the message, d
 * at the end.  Without its 128-bit key nobody can choose messages that collide, so a table with a random key has
 * short chains whatever a file holds.  Hash tables use SipHash-1-3, as CPython and Rust do.
 *
 * The functions are inline so that the compiler sees lengths that are constants. */
#ifndef DW_SIPHASH_H
#define DW_SIPHASH_H

#include "base/base.h"

typedef struct dw_hash_key {
    uint64_t k[2];
} dw_hash_key;

/* A random key from the system.  Nothing that is printed or written may depend on it. */
int dw_hash_key_new(dw_hash_key *key, dw_err *err);

static inline uint64_t dw_sip_rotate(uint64_t x, int n) { return x << n | x >> (64 - n); }

static inline void dw_sip_round(uint64_t v[4]) {
    v[0] += v[1], v[2] += v[3];
    v[1] = dw_sip_rotate(v[1], 13) ^ v[0], v[3] = dw_sip_rotate(v[3], 16) ^ v[2];
    v[0] = dw_sip_rotate(v[0], 32);
    v[2] += v[1], v[0] += v[3];
    v[1] = dw_sip_rotate(v[1], 17) ^ v[2], v[3] = dw_sip_rotate(v[3], 21) ^ v[0];
    v[2] = dw_sip_rotate(v[2], 32);
}

static inline void dw_sip_word(uint64_t v[4], uint64_t word, int n_rounds) {
    v[3] ^= word;
    for (int i = 0; i < n_rounds; i++) dw_sip_round(v);
    v[0] ^= word;
}

/* n bytes; c and d as in the name SipHash-c-d. */
static inline uint64_t dw_siphash(int c, int d, dw_hash_key key, const void *data, size_t n) {
    uint64_t v[4] = {key.k[0] ^ 0x736f6d6570736575u, key.k[1] ^ 0x646f72616e646f6du, // "somepseudorandomlygenerated
                     key.k[0] ^ 0x6c7967656e657261u, key.k[1] ^ 0x7465646279746573u}; // bytes", the paper's constants
    const uint8_t *at = data, *end = at + n / 8 * 8;
    for (; at < end; at += 8) dw_sip_word(v, dw_le64(at), c);
    uint64_t last = (uint64_t)n << 56; // the remaining bytes; the top byte is the length's low byte
    for (size_t i = 0; i < n % 8; i++) last |= (uint64_t)at[i] << 8 * i;
    dw_sip_word(v, last, c);
    v[2] ^= 0xff;
    for (int i = 0; i < d; i++) dw_sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static inline uint64_t dw_siphash13(dw_hash_key key, const void *data, size_t n) {
    return dw_siphash(1, 3, key, data, n);
}

#endif
