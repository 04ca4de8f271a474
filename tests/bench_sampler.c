/* bench_sampler.c - how long it takes to choose a token from the logits of a large vocabulary. */
#include "engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "build/bench_sampler [TOKENS [VOCABULARY]]\n"
    "\n"
    "Chooses TOKENS (200) tokens from random logits of a VOCABULARY (152064), other logits for each, by every kind of\n"
    "sampling in turn.  A row a kind: its name, median, least and most microseconds of a token, and how many there were.\n"
    "The logits are normal with a deviation of 3, and a hundred stand 8 above, as where a model is rather sure.\n";

enum { MAX_TOKENS = 100000, N_SETS = 8 };

static const struct {
    const char *name;
    dw_sampler_options o;
} kinds[] = {
    {"greedy", {.top_p = 1}},
    {"top-k 40", {.temperature = 0.8, .top_k = 40, .top_p = 1}},
    {"top-p 0.95", {.temperature = 0.8, .top_p = 0.95}},
    {"min-p 0.05", {.temperature = 0.8, .top_p = 1, .min_p = 0.05}},
    {"top-k 40, top-p 0.95, min-p 0.05", {.temperature = 0.8, .top_k = 40, .top_p = 0.95, .min_p = 0.05}},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* (N_SETS, n_vocab); free() them. */
static float *make_logits(int n_vocab, dw_err *err) {
    float *logits = dw_alloc((size_t)N_SETS * (size_t)n_vocab, sizeof *logits, "logits", err);
    dw_rng rng;
    dw_rng_seed(&rng, 1);
    for (size_t i = 0; logits && i < (size_t)N_SETS * (size_t)n_vocab; i++)
        logits[i] = (float)(3 * dw_rng_normal(&rng));
    for (int i = 0; logits && i < N_SETS * 100; i++)
        logits[(size_t)(i % N_SETS) * (size_t)n_vocab + dw_rng_below(&rng, (uint64_t)n_vocab)] += 8;
    return logits;
}

int main(int argc, char **argv) {
    const int n = argc > 1 ? atoi(argv[1]) : 200, n_vocab = argc > 2 ? atoi(argv[2]) : 152064;
    if (argc > 3 || n < 1 || n > MAX_TOKENS || n_vocab < 1 || n_vocab > 1 << 24) return fputs(usage, stderr), 2;
    static double us[N_KINDS][MAX_TOKENS];
    dw_err err = {0};
    dw_sampler *s[N_KINDS] = {0};
    float *logits = make_logits(n_vocab, &err);
    bool ready = logits;
    for (int k = 0; k < N_KINDS && ready; k++) ready = (s[k] = dw_sampler_new(&kinds[k].o, n_vocab, &err));
    for (int i = -1; i < n && ready; i++) // the first token of each warms up
        for (int k = 0; k < N_KINDS && ready; k++) {
            const double t0 = dw_now();
            ready = dw_sample(s[k], logits + (size_t)((i + 1) % N_SETS) * (size_t)n_vocab) >= 0;
            if (i >= 0) us[k][i] = 1e6 * (dw_now() - t0);
        }
    if (ready) printf("kind\tus\tus_min\tus_max\ttokens\n");
    for (int k = 0; k < N_KINDS; k++) {
        qsort(us[k], (size_t)n, sizeof **us, by_size);
        if (ready) printf("%s\t%.1f\t%.1f\t%.1f\t%d\n", kinds[k].name, us[k][n / 2], us[k][0], us[k][n - 1], n);
        dw_sampler_free(s[k]);
    }
    free(logits);
    return ready ? 0 : (fprintf(stderr, "bench_sampler: %s\n", *err.text ? err.text : "no token was chosen"), 1);
}
