/* sampler.c - from logits to a token: top-k, then top-p, then min-p, then temperature, in llama.cpp's order.
 *
 * The result is that of a sort of the whole vocabulary by falling logit (equal ones by rising id), but only the
 * candidates that can be kept are sorted.  One pass finds each block's largest logit and  Σ exp(logit - largest).  A
 * logit's distance from the largest of all says which of BUCKETS it falls into; the farthest one that is needed follows
 *
 *   with top-k    from the counts of the buckets: of the largest of each block, if the blocks are k or more,
 *   with top-p    from the buckets' shares of  sum = Σ exp(logit - largest)  over the vocabulary.  Only those up to a
 *                 distance are looked at, which is guessed from a sample and grows until they are enough,
 *   with min-p    from  largest - logit <= -ln(min-p).
 *
 * Blocks whose largest is beyond that bucket are passed over.  With none of the three all are sorted, by radix.  Sums of
 * blocks are F32: candidates that have about 1e-6 of the probability together may be kept by top-p or not. */
#include "backends/kernels_vec.h"
#include "base/half_inline.h"
#include "engine.h"

#include <math.h>
#include <stdlib.h>

enum {
    BUCKETS = 1024,
    PER_UNIT = 32, // buckets of a unit of the logits; the last bucket holds the rest
    BLOCK = 256,   // logits
    SAMPLE = 64,   // one logit of so many is in the sample of top-p
    STEP = 64,     // buckets by which top-p looks farther at first
};

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

struct dw_sampler {
    dw_sampler_options o;
    dw_rng rng;
    const dw_vec *vec;
    int n_vocab, n_blocks;
    float *top, *sum;       // n_blocks each: the largest logit of a block, and Σ exp(logit - top)
    float largest;          // of all logits in work
    candidate *list, *work; // n_vocab each; work is for sorting
    double *p;              // n_vocab
    double exp_bucket[BUCKETS]; // exp(-distance) where each begins
};

/* ---- buckets -------------------------------------------------------------------------------------------------- */

static int bucket_of(double distance) { // NaN, too, goes to the last
    return distance < (BUCKETS - 1) / (double)PER_UNIT ? (int)(distance * PER_UNIT) : BUCKETS - 1;
}

static double begin_of(int bucket) { return bucket / (double)PER_UNIT; }

/* exp(x) within a bucket, |x| <= 1/32: the series, whose next term is below 2^-55. */
static double exp_within(double x) {
    return 1 + x * (1 + x * (1 / 2. + x * (1 / 6. + x * (1 / 24. + x * (1 / 120. + x * (1 / 720. + x * (1 / 5040.)))))));
}

static double exp_of(const dw_sampler *s, double distance) {
    const int b = bucket_of(distance);
    return b < BUCKETS - 1 ? s->exp_bucket[b] * exp_within(begin_of(b) - distance) : exp(-distance);
}

dw_sampler *dw_sampler_new(const dw_sampler_options *o, int n_vocab, dw_err *err) {
    dw_sampler *s = dw_alloc(1, sizeof *s, "a sampler", err);
    if (!s) return NULL;
    s->o = *o;
    s->n_vocab = n_vocab;
    s->n_blocks = (n_vocab + BLOCK - 1) / BLOCK;
    dw_rng_seed(&s->rng, o->seed);
    for (int b = 0; b < BUCKETS; b++) s->exp_bucket[b] = exp(-begin_of(b));
    dw_level level;
    if (dw_level_choose(&level, err)) return free(s), NULL;
    s->vec = dw_vec_of(level);
    s->top = dw_alloc((size_t)s->n_blocks, sizeof *s->top, "the largest logits", err);
    s->sum = dw_alloc((size_t)s->n_blocks, sizeof *s->sum, "sums of logits", err);
    s->list = dw_alloc((size_t)n_vocab, sizeof *s->list, "candidates", err);
    s->work = dw_alloc((size_t)n_vocab, sizeof *s->work, "candidates", err);
    s->p = dw_alloc((size_t)n_vocab, sizeof *s->p, "probabilities", err);
    if (s->top && s->sum && s->list && s->work && s->p) return s;
    dw_sampler_free(s);
    return NULL;
}

void dw_sampler_free(dw_sampler *s) {
    if (!s) return;
    free(s->top);
    free(s->sum);
    free(s->list);
    free(s->work);
    free(s->p);
    free(s);
}

/* ---- order ---------------------------------------------------------------------------------------------------- */

// Rises as the logit falls; -0 and 0 are equal.
static uint32_t falling(float logit) {
    const int32_t bits = (int32_t)dw_float_bits(logit + 0.0f);
    return 0x7fffffffu - (uint32_t)(bits ^ (bits >> 31 & 0x7fffffff));
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

/* ---- blocks --------------------------------------------------------------------------------------------------- */

static int block_size(const dw_sampler *s, int block) {
    return block < s->n_blocks - 1 ? BLOCK : s->n_vocab - block * BLOCK;
}

static bool has_nan(const float *x, int n) {
    for (int i = 0; i < n; i++)
        if (isnan(x[i])) return true;
    return false;
}

/* Finds the largest logits and the sums; false if a logit is NaN.  A sum is NaN also where the largest is infinite. */
static bool sum_blocks(dw_sampler *s, const float *logits) {
    s->largest = -INFINITY;
    for (int b = 0; b < s->n_blocks; b++) {
        const float *x = logits + b * BLOCK;
        const int n = block_size(s, b);
        s->vec->exp_sum(x, n, &s->top[b], &s->sum[b]);
        if (isnan(s->sum[b])) {
            if (has_nan(x, n)) return false;
            s->sum[b] = 0; // all are -INFINITY; or one is INFINITY, and then no sum is used
        }
        if (s->top[b] > s->largest) s->largest = s->top[b];
    }
    return true;
}

/* Σ exp(logit - largest). */
static double sum_of_all(const dw_sampler *s) {
    double sum = 0;
    for (int b = 0; b < s->n_blocks; b++) sum += s->sum[b] * exp_of(s, s->largest - s->top[b]);
    return sum;
}

/* ---- which candidates can be kept ----------------------------------------------------------------------------- */

/* The bucket that holds the k-th largest of n logits. */
static int bucket_of_kth(const dw_sampler *s, const float *logits, int n, int k) {
    int count[BUCKETS] = {0}, b = 0;
    for (int i = 0; i < n; i++) count[bucket_of(s->largest - logits[i])]++;
    for (int sum = count[0]; sum < k && b < BUCKETS - 1;) sum += count[++b];
    return b;
}

/* The distance where a bucket ends. */
static float end_of(int bucket) { return bucket < BUCKETS - 1 ? (float)(bucket + 1) / PER_UNIT : INFINITY; }

/* NaN, the distance between infinite logits, is near. */
static bool is_near(float distance, float end) { return !(distance > end); }

/* Appends those of n <= BLOCK candidates, from `first` on, that are no farther than `end`; returns the new end of the
 * list.  Without a branch: each is written, and overwritten by the next one if it is not near. */
static candidate *append_near(float largest, const float *logits, int first, int n, float end, candidate *list) {
    int near[BLOCK];
    for (int i = 0; i < n; i++) near[i] = is_near(largest - logits[first + i], end);
    for (int i = 0; i < n; i++) {
        *list = (candidate){logits[first + i], first + i};
        list += near[i];
    }
    return list;
}

/* Lists the candidates in the buckets up to the farthest, and says how many. */
static int list_near(dw_sampler *s, const float *logits, int farthest) {
    const float end = end_of(farthest);
    candidate *to = s->list;
    for (int b = 0; b < s->n_blocks; b++)
        if (is_near(s->largest - s->top[b], end))
            to = append_near(s->largest, logits, b * BLOCK, block_size(s, b), end, to);
    return (int)(to - s->list);
}

/* Leaves those of n listed candidates that are in the buckets up to the farthest. */
static int keep_near(dw_sampler *s, int n, int farthest) {
    const float end = end_of(farthest);
    candidate *to = s->list;
    for (int i = 0; i < n; i++) {
        const candidate c = s->list[i];
        *to = c;
        to += is_near(s->largest - c.logit, end);
    }
    return (int)(to - s->list);
}

static void add_share(const dw_sampler *s, float logit, double share[BUCKETS]) {
    const double distance = s->largest - logit;
    share[bucket_of(distance)] += exp_of(s, distance);
}

/* About the bucket beyond which the logits are half of what top_p leaves out of `sum`. */
static int guess_farthest(const dw_sampler *s, const float *logits, double sum) {
    double share[BUCKETS] = {0};
    for (int id = 0; id < s->n_vocab; id += SAMPLE) add_share(s, logits[id], share);
    int b = BUCKETS - 1;
    for (double beyond = SAMPLE * share[b]; b > 0 && beyond < (1 - s->o.top_p) / 2 * sum;)
        beyond += SAMPLE * share[--b];
    return b;
}

/* The bucket in which the n listed candidates reach the share top_p of `sum`; the margin is for the order of additions.
 * BUCKETS, if they do not reach it. */
static int bucket_of_share(const dw_sampler *s, int n, double sum) {
    double share[BUCKETS] = {0}, reached = 0;
    for (int i = 0; i < n; i++) add_share(s, s->list[i].logit, share);
    for (int b = 0; b < BUCKETS; b++)
        if ((reached += share[b]) > s->o.top_p * sum * (1 + 1e-9)) return b;
    return BUCKETS;
}

/* Lists the likeliest that make the share top_p of `sum`, and some more. */
static int list_share(dw_sampler *s, const float *logits, double sum) {
    int farthest = guess_farthest(s, logits, sum);
    for (int step = STEP;; farthest += step, step *= 2) {
        const int n = list_near(s, logits, farthest), last = bucket_of_share(s, n, sum);
        if (last <= farthest) return keep_near(s, n, last);
        if (n == s->n_vocab || farthest >= BUCKETS - 1) return n;
    }
}

/* The farthest bucket of which min-p keeps any; one more is for rounding. */
static int farthest_by_min_p(const dw_sampler *s) {
    return s->o.min_p > 0 ? bucket_of(-log(s->o.min_p)) + 1 : BUCKETS - 1;
}

static bool has_top_k(const dw_sampler *s) { return s->o.top_k > 0 && s->o.top_k < s->n_vocab; }

/* Lists all candidates that can be kept, and says how many.  *sum: of exp(logit - largest) over the vocabulary if top-p
 * needs it. */
static int list_candidates(dw_sampler *s, const float *logits, double *sum) {
    const int k = s->o.top_k;
    if (isinf(s->largest)) return list_near(s, logits, BUCKETS - 1); // distances are NaN
    if (has_top_k(s))
        return list_near(s, logits,
                         k <= s->n_blocks ? bucket_of_kth(s, s->top, s->n_blocks, k)
                                          : bucket_of_kth(s, logits, s->n_vocab, k));
    if (s->o.top_p >= 1) return list_near(s, logits, farthest_by_min_p(s));
    *sum = sum_of_all(s);
    return keep_near(s, list_share(s, logits, *sum), farthest_by_min_p(s));
}

/* ---- probabilities -------------------------------------------------------------------------------------------- */

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

/* Lists the kept candidates in order, and says how many. */
static int list_kept(dw_sampler *s, const float *logits) {
    double sum = 1; // without top-p only ratios count
    int n = list_candidates(s, logits, &sum);
    sort_list(s, n);
    if (has_top_k(s)) n = s->o.top_k;
    const double listed = sum_exp(s, n, 1);
    return truncate_list(s, n, has_top_k(s) ? listed : sum);
}

/* Which of the largest logits comes first. */
static int32_t first_largest(const dw_sampler *s, const float *logits) {
    int b = 0;
    while (s->top[b] != s->largest) b++;
    int32_t id = b * BLOCK;
    while (logits[id] != s->largest) id++;
    return id;
}

int32_t dw_sample(dw_sampler *s, const float *logits) {
    if (!sum_blocks(s, logits)) return -1;
    if (s->o.temperature <= 0) return first_largest(s, logits);
    const int n = list_kept(s, logits);
    const double sum = sum_exp(s, n, s->o.temperature);
    double u = dw_rng_uniform(&s->rng);
    for (int i = 0; i < n - 1; i++)
        if ((u -= s->p[i] / sum) < 0) return s->list[i].id;
    return s->list[n - 1].id;
}
