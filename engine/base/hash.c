/* hash.c - SHA-256 (FIPS 180-4), with the x86 SHA instructions where the CPU has them. */
#include "base/base.h"

#include <string.h>

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotr(uint32_t x, int k) { return x >> k | x << (32 - k); }

static void compress_plain(uint32_t state[8], const uint8_t *p, size_t n_blocks) {
    for (; n_blocks; n_blocks--, p += 64) {
        uint32_t w[64], s[8];
        for (int i = 0; i < 16; i++) w[i] = __builtin_bswap32(dw_le32(p + 4 * i));
        for (int i = 16; i < 64; i++) {
            const uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + w[i - 7] + (rotr(a, 7) ^ rotr(a, 18) ^ a >> 3) + (rotr(b, 17) ^ rotr(b, 19) ^ b >> 10);
        }
        memcpy(s, state, sizeof s);
        for (int i = 0; i < 64; i++) {
            const uint32_t t1 = s[7] + (rotr(s[4], 6) ^ rotr(s[4], 11) ^ rotr(s[4], 25)) +
                                ((s[4] & s[5]) ^ (~s[4] & s[6])) + K[i] + w[i];
            const uint32_t t2 = (rotr(s[0], 2) ^ rotr(s[0], 13) ^ rotr(s[0], 22)) +
                                ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
            memmove(s + 1, s, 7 * sizeof *s);
            s[4] += t1;
            s[0] = t1 + t2;
        }
        for (int i = 0; i < 8; i++) state[i] += s[i];
    }
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

static bool has_sha(void) {
    static int known; // 0: not tested, 1: no, 2: yes; a race only tests twice
    if (!known) {
        unsigned a, b, c, d;
        known = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1) && __builtin_cpu_supports("sse4.1") ? 2 : 1;
    }
    return known == 2;
}

/* The instructions keep the state as (a,b,e,f) and (c,d,g,h), and do two rounds at a time. */
__attribute__((target("sha,sse4.1,ssse3"))) static void compress_sha(uint32_t state[8], const uint8_t *p,
                                                                     size_t n_blocks) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i lo = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xb1);
    __m128i hi = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(lo, hi, 8), cdgh = _mm_blend_epi16(hi, lo, 0xf0);
    for (; n_blocks; n_blocks--, p += 64) {
        const __m128i abef0 = abef, cdgh0 = cdgh;
        __m128i w[4];
        for (int i = 0; i < 16; i++) {
            if (i < 4) {
                w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(p + 16 * i)), swap);
            } else { // w[t] from w[t-16], w[t-15], w[t-7], w[t-2]
                __m128i t = _mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]);
                t = _mm_add_epi32(t, _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4));
                w[i & 3] = _mm_sha256msg2_epu32(t, w[(i + 3) & 3]);
            }
            __m128i k = _mm_add_epi32(w[i & 3], _mm_loadu_si128((const __m128i *)(K + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, k);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(k, 0x0e));
        }
        abef = _mm_add_epi32(abef, abef0);
        cdgh = _mm_add_epi32(cdgh, cdgh0);
    }
    lo = _mm_shuffle_epi32(abef, 0x1b);
    hi = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(lo, hi, 0xf0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(hi, lo, 8));
}
#endif

static void compress(uint32_t state[8], const uint8_t *p, size_t n_blocks) {
#if defined(__x86_64__)
    if (has_sha()) {
        compress_sha(state, p, n_blocks);
        return;
    }
#endif
    compress_plain(state, p, n_blocks);
}

void dw_sha256_begin(dw_sha256 *h) {
    *h = (dw_sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void dw_sha256_add(dw_sha256 *h, const void *data, size_t size) {
    const uint8_t *p = data;
    const size_t held = h->n_bytes % 64;
    h->n_bytes += size;
    if (held) {
        const size_t n = size < 64 - held ? size : 64 - held;
        memcpy(h->block + held, p, n);
        if (held + n < 64) return;
        compress(h->state, h->block, 1);
        p += n;
        size -= n;
    }
    compress(h->state, p, size / 64);
    if (size % 64) memcpy(h->block, p + size / 64 * 64, size % 64);
}

void dw_sha256_end(dw_sha256 *h, uint8_t digest[32]) {
    const uint64_t n_bits = h->n_bytes * 8;
    static const uint8_t pad[64] = {0x80};
    dw_sha256_add(h, pad, 1 + (119 - h->n_bytes % 64) % 64);
    uint8_t tail[8];
    for (int i = 0; i < 8; i++) tail[i] = (uint8_t)(n_bits >> (56 - 8 * i));
    dw_sha256_add(h, tail, sizeof tail);
    for (int i = 0; i < 32; i++) digest[i] = (uint8_t)(h->state[i / 4] >> (24 - 8 * (i % 4)));
}

void dw_hex(const uint8_t *bytes, size_t n, char *text) {
    for (size_t i = 0; i < n; i++) {
        text[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
        text[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
    }
    text[2 * n] = 0;
}

bool dw_is_hash(const char *text) { return strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64; }

void dw_sha256_digest(const void *data, size_t size, uint8_t digest[32]) {
    dw_sha256 h;
    dw_sha256_begin(&h);
    dw_sha256_add(&h, data, size);
    dw_sha256_end(&h, digest);
}

void dw_sha256_hex(const void *data, size_t size, char hex[65]) {
    uint8_t digest[32];
    dw_sha256_digest(data, size, digest);
    dw_hex(digest, 32, hex);
}

int dw_sha256_file(const char *path, char hex[65], dw_err *err) {
    dw_map map;
    if (dw_map_file(&map, path, err)) return -1;
    dw_sha256_hex(map.data, map.size, hex);
    dw_unmap(&map);
    return 0;
}
