/* sampler.c - from logits to a token: top-k, then top-p, then min-p, then temperature, in llama.cpp's order.
 *
 * The result is that of a sort of the whole vocabulary by falling logit (equal ones by rising id), but only the
 * candidates that can be kept are sorted.  A logit's distance from the largest says which of BUCKETS it falls into;
 * the last bucket that is needed follows
 *
 *   with top-k    from the counts of the buckets,
 *   with top-p    from their shares of  sum = Σ exp(logit - largest)  over the vocabulary,
 *   with min-p    from  largest - logit <= -ln(min-p).
 *
 * With neither of them all candidates are sorted, by radix. */
#include "engine.h"
#include "base/half_inline.h"

#include <math.h>
#include <stdlib.h>

enum {
    BUCKETS = 1024,
    PER_UNIT = 32, // buckets of a unit of the logits; the last bucket holds the rest
    BLOCK = 256,   // logits whose probabilities are computed by vectors, then added to their buckets
};

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

struct dw_sampler {
    dw_sampler_options o;
    dw_rng rng;
    int n_vocab;
    float largest;          // of the logits in work
    candidate *list, *work; // n_vocab each; work is for sorting
    double *p;              // n_vocab
    double exp_bucket[BUCKETS]; // exp(-distance) where each begins
};

/* ---- buckets -------------------------------------------------------------------------------------------------- */

static const float far = (BUCKETS - 1) / (float)PER_UNIT; // where the last bucket begins

static int bucket_of(double distance) { // NaN, too, goes to the last
    return distance < far ? (int)(distance * PER_UNIT) : BUCKETS - 1;
}

/* How many logits the block at `first` has. */
static int block_at(const dw_sampler *s, int first) { return s->n_vocab - first < BLOCK ? s->n_vocab - first : BLOCK; }

static double begin_of(int bucket) { return bucket / (double)PER_UNIT; }

/* exp(x) within a bucket, |x| <= 1/32: the series, whose next term is below 2^-55. */
static double exp_within(double x) {
    return 1 + x * (1 + x * (1 / 2. + x * (1 / 6. + x * (1 / 24. + x * (1 / 120. + x * (1 / 720. + x * (1 / 5040.)))))));
}

dw_sampler *dw_sampler_new(const dw_sampler_options *o, int n_vocab, dw_err *err) {
    dw_sampler *s = dw_alloc(1, sizeof *s, "a sampler", err);
    if (!s) return NULL;
    s->o = *o;
    s->n_vocab = n_vocab;
    dw_rng_seed(&s->rng, o->seed);
    for (int b = 0; b < BUCKETS; b++) s->exp_bucket[b] = exp(-begin_of(b));
    s->list = dw_alloc((size_t)n_vocab, sizeof *s->list, "candidates", err);
    s->work = dw_alloc((size_t)n_vocab, sizeof *s->work, "candidates", err);
    s->p = dw_alloc((size_t)n_vocab, sizeof *s->p, "probabilities", err);
    if (s->list && s->work && s->p) return s;
    dw_sampler_free(s);
    return NULL;
}

void dw_sampler_free(dw_sampler *s) {
    if (!s) return;
    free(s->list);
    free(s->work);
    free(s->p);
    free(s);
}

/* ---- order ---------------------------------------------------------------------------------------------------- */

// Rises as the logit does; -0 is before 0.
static int32_t rising(float logit) {
    const int32_t bits = (int32_t)dw_float_bits(logit);
    return bits ^ (bits >> 31 & 0x7fffffff);
}

// Rises as the logit falls; -0 and 0 are equal.
static uint32_t falling(float logit) { return 0x7fffffffu - (uint32_t)rising(logit + 0.0f); }

/* The largest logit; false if one is NaN.  Integers, because compilers turn their maxima into vector code. */
static bool find_largest(dw_sampler *s, const float *logits) {
    int32_t top = INT32_MIN, magnitude = 0;
    for (int i = 0; i < s->n_vocab; i++) {
        const int32_t key = rising(logits[i]), m = (int32_t)(dw_float_bits(logits[i]) & 0x7fffffff);
        top = key > top ? key : top;
        magnitude = m > magnitude ? m : magnitude;
    }
    s->largest = dw_bits_float((uint32_t)(top ^ (top >> 31 & 0x7fffffff)));
    return magnitude <= 0x7f800000;
}

static int by_logit(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS, FEW = 256 };

/* One stable pass of a radix sort over a digit of falling(). */
static void sort_digit(const candidate *from, candidate *to, int n, int shift) {
    int at[DIGITS] = {0};
    for (int i = 0; i < n; i++) at[falling(from[i].logit) >> shift & (DIGITS - 1)]++;
    for (int d = 0, first = 0, here; d < DIGITS; d++, first += here) here = at[d], at[d] = first;
    for (int i = 0; i < n; i++) to[at[falling(from[i].logit) >> shift & (DIGITS - 1)]++] = from[i];
}

/* Sorts the first n of the list, whose ids rise. */
static void sort_list(dw_sampler *s, int n) {
    if (n <= FEW) {
        qsort(s->list, (size_t)n, sizeof *s->list, by_logit);
        return;
    }
    sort_digit(s->list, s->work, n, 0);
    sort_digit(s->work, s->list, n, DIGIT_BITS);
    sort_digit(s->list, s->work, n, 2 * DIGIT_BITS);
    candidate *sorted = s->work;
    s->work = s->list;
    s->list = sorted;
}

/* ---- which candidates can be kept ----------------------------------------------------------------------------- */

/* The bucket that holds the n-th likeliest. */
static int bucket_of_nth(const dw_sampler *s, const float *logits, int n) {
    int count[BUCKETS] = {0}, b = 0;
    for (int i = 0; i < s->n_vocab; i++) count[bucket_of(s->largest - logits[i])]++;
    for (int sum = count[0]; sum < n && b < BUCKETS - 1;) sum += count[++b];
    return b;
}

/* A distance, or where the last bucket begins, whichever is less: as integers, which vectors compare. */
static float nearer(float distance) {
    const int32_t bits = (int32_t)dw_float_bits(distance), most = (int32_t)dw_float_bits(far);
    return dw_bits_float((uint32_t)(bits < most ? bits : most));
}

/* The bucket of each of n logits, and exp(-distance) over that of where the bucket begins; in the last bucket only
 * the former.  Nothing branches, so that compilers make vector code. */
static void find_buckets(float largest, const float *logits, int n, int *bucket, double *over_begin) {
    for (int i = 0; i < n; i++) {
        const float near = nearer(largest - logits[i]);
        bucket[i] = (int)(near * PER_UNIT);
        over_begin[i] = exp_within(begin_of(bucket[i]) - near);
    }
}

/* share[b] = sum of exp(-distance) over bucket b. */
static void share_out(const dw_sampler *s, const float *logits, double share[BUCKETS]) {
    int bucket[BLOCK];
    double p[BLOCK], rest = 0;
    for (int b = 0; b < BUCKETS; b++) share[b] = 0;
    for (int first = 0; first < s->n_vocab; first += BLOCK) {
        const int n = block_at(s, first);
        find_buckets(s->largest, logits + first, n, bucket, p);
        for (int i = 0; i < n; i++)
            if (bucket[i] < BUCKETS - 1)
                share[bucket[i]] += p[i];
            else
                rest += exp(logits[first + i] - s->largest);
    }
    for (int b = 0; b < BUCKETS - 1; b++) share[b] *= s->exp_bucket[b];
    share[BUCKETS - 1] = rest;
}

/* The bucket with which the likeliest reach the share top_p of the sum over the vocabulary, which goes to *sum.  They
 * exceed it by more than rounding. */
static int bucket_of_share(const dw_sampler *s, const float *logits, double *sum) {
    double share[BUCKETS], all = 0;
    share_out(s, logits, share);
    for (int b = 0; b < BUCKETS; b++) all += share[b];
    int b = 0;
    for (double reached = share[0]; !(reached > s->o.top_p * all * (1 + 1e-9)) && b < BUCKETS - 1;)
        reached += share[++b];
    *sum = all;
    return b;
}

/* Appends those of n <= BLOCK logits from `first` on that are nearer than `end`, or all; returns the new end.  Which are
 * near nobody can foresee, so each is written, and the next one over it if it is not near. */
static candidate *append_near(const dw_sampler *s, const float *logits, int first, int n, float end, bool all,
                              candidate *to) {
    int near[BLOCK], any = 0;
    for (int i = 0; i < n; i++) any |= near[i] = all | (s->largest - logits[first + i] < end);
    for (int i = 0; any && i < n; i++) {
        *to = (candidate){logits[first + i], first + i};
        to += near[i];
    }
    return to;
}

/* Lists all candidates up to a bucket, in order, and says how many. */
static int list_to(dw_sampler *s, const float *logits, int last) {
    const float end = (float)(last + 1) / PER_UNIT;
    candidate *to = s->list;
    for (int first = 0; first < s->n_vocab; first += BLOCK)
        to = append_near(s, logits, first, block_at(s, first), end, last == BUCKETS - 1, to);
    const int n = (int)(to - s->list);
    sort_list(s, n);
    return n;
}

/* ---- probabilities -------------------------------------------------------------------------------------------- */

static double exp_of(const dw_sampler *s, double distance) {
    const int b = bucket_of(distance);
    return b < BUCKETS - 1 ? s->exp_bucket[b] * exp_within(begin_of(b) - distance) : exp(-distance);
}

static double sum_exp(dw_sampler *s, int n, double temperature) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += s->p[i] = exp_of(s, (s->list[0].logit - s->list[i].logit) / temperature);
    return sum;
}

/* How many of the n listed candidates are kept, whose p are not yet divided by their sum. */
static int truncate_list(dw_sampler *s, int n, double p_sum) {
    for (int i = 0; i < n; i++) s->p[i] /= p_sum;
    if (s->o.top_p < 1) {
        double sum = 0;
        int kept = 0;
        while (kept < n && sum < s->o.top_p) sum += s->p[kept++];
        n = kept > 0 ? kept : 1;
    }
    int kept = 1;
    while (kept < n && s->p[kept] >= s->o.min_p * s->p[0]) kept++;
    return kept;
}

/* Lists the kept candidates, and says how many. */
static int list_kept(dw_sampler *s, const float *logits) {
    const bool is_first_k = s->o.top_k > 0 && s->o.top_k < s->n_vocab;
    int last = BUCKETS - 1;
    double sum = 1; // without top-p only ratios count
    if (isinf(s->largest)) { // distances are NaN: all are listed
    } else if (is_first_k) {
        last = bucket_of_nth(s, logits, s->o.top_k);
    } else {
        if (s->o.top_p < 1) last = bucket_of_share(s, logits, &sum);
        const int min_p = s->o.min_p > 0 ? bucket_of(-log(s->o.min_p)) + 1 : last; // one more: rounding
        last = min_p < last ? min_p : last;
    }
    int n = list_to(s, logits, last);
    if (is_first_k) n = s->o.top_k;
    const double listed = sum_exp(s, n, 1);
    return truncate_list(s, n, is_first_k ? listed : sum);
}

int32_t dw_sample(dw_sampler *s, const float *logits) {
    if (!find_largest(s, logits)) return -1;
    if (s->o.temperature <= 0) {
        int32_t best = 0;
        while (logits[best] != s->largest) best++;
        return best;
    }
    const int n = list_kept(s, logits);
    const double sum = sum_exp(s, n, s->o.temperature);
    double u = dw_rng_uniform(&s->rng);
    for (int i = 0; i < n - 1; i++)
        if ((u -= s->p[i] / sum) < 0) return s->list[i].id;
    return s->list[n - 1].id;
}
