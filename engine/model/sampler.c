/* sampler.c - from logits to a token: top-k, then top-p, then min-p, then temperature, in llama.cpp's order. */
#include "engine.h"

#include <math.h>
#include <stdlib.h>

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

struct dw_sampler {
    dw_sampler_options o;
    dw_rng rng;
    int n_vocab;
    candidate *list; // n_vocab
    double *p;       // n_vocab
};

dw_sampler *dw_sampler_new(const dw_sampler_options *o, int n_vocab, dw_err *err) {
    dw_sampler *s = dw_alloc(1, sizeof *s, "a sampler", err);
    if (!s) return NULL;
    s->o = *o;
    s->n_vocab = n_vocab;
    dw_rng_seed(&s->rng, o->seed);
    s->list = dw_alloc((size_t)n_vocab, sizeof *s->list, "candidates", err);
    s->p = dw_alloc((size_t)n_vocab, sizeof *s->p, "probabilities", err);
    if (s->list && s->p) return s;
    dw_sampler_free(s);
    return NULL;
}

void dw_sampler_free(dw_sampler *s) {
    if (!s) return;
    free(s->list);
    free(s->p);
    free(s);
}

static int by_logit(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}

/* p = softmax of the first n logits at a temperature. */
static void softmax(dw_sampler *s, int n, double temperature) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += s->p[i] = exp((s->list[i].logit - s->list[0].logit) / temperature);
    for (int i = 0; i < n; i++) s->p[i] /= sum;
}

/* How many of the sorted candidates are kept. */
static int truncate_list(dw_sampler *s) {
    int n = s->o.top_k > 0 && s->o.top_k < s->n_vocab ? s->o.top_k : s->n_vocab;
    softmax(s, n, 1);
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

int32_t dw_sample(dw_sampler *s, const float *logits) {
    int32_t best = 0;
    for (int i = 0; i < s->n_vocab; i++) {
        if (isnan(logits[i])) return -1;
        if (logits[i] > logits[best]) best = i;
        s->list[i] = (candidate){logits[i], i};
    }
    if (s->o.temperature <= 0) return best;
    qsort(s->list, (size_t)s->n_vocab, sizeof *s->list, by_logit);
    const int n = truncate_list(s);
    softmax(s, n, s->o.temperature);
    double u = dw_rng_uniform(&s->rng);
    for (int i = 0; i < n - 1; i++)
        if ((u -= s->p[i]) < 0) return s->list[i].id;
    return s->list[n - 1].id;
}
