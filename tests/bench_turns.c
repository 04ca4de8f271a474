/* bench_turns.c - one build's half of tests/bench_versions.sh: times passes of a model whenever it is told to.
 *
 *     bench_turns MODEL THREADS
 *
 * Each line of stdin, "prefill N" or "decode N", is answered by the seconds of N tokens in one pass, or of N tokens one by
 * one after a prefix of 32.  It uses nothing but engine.h, so that it compiles with an older engine, too. */
#include "engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PREFIX = 32, MAX_TOKENS = 1024 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* n tokens from position `from` on, `at_once` in a pass. */
static int pass(dw_session *s, const int32_t *ids, int from, int n, int at_once, dw_err *err) {
    dw_session_rewind(s, 0, from);
    for (int i = 0; i < n; i += at_once)
        if (dw_session_eval(s, &(dw_batch){.n_tokens = at_once, .token = ids + from + i}, err)) return -1;
    return 0;
}

static int timed(dw_session *s, const int32_t *ids, const char *what, int n, dw_err *err) {
    const bool one_by_one = !strcmp(what, "decode");
    if (one_by_one && pass(s, ids, 0, PREFIX, PREFIX, err)) return -1;
    const double begin = now();
    if (pass(s, ids, one_by_one ? PREFIX : 0, n, one_by_one ? 1 : n, err)) return -1;
    printf("%.6f\n", now() - begin);
    return fflush(stdout);
}

int main(int argc, char **argv) {
    dw_err err = {0};
    if (argc != 3) return fprintf(stderr, "usage: bench_turns MODEL THREADS\n"), 2;
    dw_pool *pool = dw_pool_new(atoi(argv[2]), &err);
    dw_model *m = pool ? dw_model_open(argv[1], &err) : NULL;
    const dw_session_options o = {.pool = pool, .backend = "cpu", .n_ctx = PREFIX + MAX_TOKENS, .n_batch = MAX_TOKENS};
    dw_session *s = m ? dw_session_new(m, &o, &err) : NULL;
    int32_t ids[PREFIX + MAX_TOKENS];
    for (uint32_t i = 0; s && i < PREFIX + MAX_TOKENS; i++)
        ids[i] = (int32_t)(i * 2654435761u % (uint32_t)dw_model_hparams(m)->n_vocab);
    char what[16];
    int n;
    while (s && !err.text[0] && scanf("%15s %d", what, &n) == 2 && n > 0 && n <= MAX_TOKENS)
        if (timed(s, ids, what, n, &err)) break;
    if (err.text[0]) fprintf(stderr, "bench_turns: %s\n", err.text);
    return err.text[0] != 0;
}
