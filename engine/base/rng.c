/* rng.c - xoshiro256** (Blackman & Vigna 2018, "Scrambled linear pseudorandom number generators"). */
#include "base/base.h"

#include <math.h>

static uint64_t rotl(uint64_t x, int k) { return x << k | x >> (64 - k); }

enum { STATES = 4 };
static const uint64_t golden = 0x9e3779b97f4a7c15u; // the step of splitmix64

uint64_t dw_splitmix(uint64_t x) {
    uint64_t z = x + golden;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void dw_rng_seed(dw_rng *rng, uint64_t seed) {
    for (int i = 0; i < STATES; i++, seed += golden) rng->s[i] = dw_splitmix(seed);
}

uint64_t dw_rng_next(dw_rng *rng) {
    uint64_t *s = rng->s;
    const uint64_t result = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

double dw_rng_uniform(dw_rng *rng) { return (double)(dw_rng_next(rng) >> 11) * 0x1p-53; }

double dw_rng_normal(dw_rng *rng) { // Box-Muller; one of the pair is enough here
    const double u = 1 - dw_rng_uniform(rng), v = dw_rng_uniform(rng);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

uint64_t dw_rng_below(dw_rng *rng, uint64_t n) {
    const uint64_t limit = -n % n; // smaller numbers would make the first residues more likely
    uint64_t x;
    do x = dw_rng_next(rng);
    while (x < limit);
    return x % n;
}
