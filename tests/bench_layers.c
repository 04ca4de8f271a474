/* bench_layers.c - what evaluating a changed layer costs, beside a whole pass: the reason for dw_session_layers.
 *
 *     build/bench_layers MODEL.gguf [LAYER [EVALUATIONS [TOKENS [THREADS]]]]        10, 100, 4096, 2
 *
 * The residual before the layer is computed once.  Each evaluation replaces the layer's down by other F32 values, copies the
 * residual and runs the layer.  Whole passes are timed before, in the middle and after.  Prints seconds, and the evaluations'
 * time as a multiple of what that many layers are of a whole pass: 1.2 is the bound. */
#include "engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 512 };

typedef struct bench {
    dw_pool *pool;
    dw_model *model;
    dw_session *session;
    const dw_hparams *hp;
    dw_batch batch;
    int32_t *token, *seq, *pos;
    float *before, *x, *down;
    dw_tensor changed;
} bench;

static int open_bench(bench *b, const char *path, int layer, int n_tokens, int n_threads, dw_err *err) {
    b->pool = dw_pool_new(n_threads, err);
    b->model = b->pool ? dw_model_open(path, err) : NULL;
    if (!b->model) return -1;
    b->hp = dw_model_hparams(b->model);
    if (layer >= b->hp->n_layer) return dw_fail(err, "'%s' has %d layers", path, b->hp->n_layer);
    const dw_session_options o = {
        .pool = b->pool, .n_ctx = WINDOW, .n_seq = n_tokens / WINDOW + 1, .n_out = 1, .exact = true};
    b->session = dw_session_new(b->model, &o, err);
    const size_t n = (size_t)n_tokens, d = (size_t)b->hp->n_embd, n_ff = (size_t)b->hp->n_ff[layer];
    b->token = dw_alloc(3 * n, sizeof *b->token, "tokens", err);
    b->before = dw_alloc(2 * n * d, sizeof *b->before, "a residual", err);
    b->down = dw_alloc(n_ff * d, sizeof *b->down, "a matrix", err);
    if (!b->session || !b->token || !b->before || !b->down) return -1;
    b->seq = b->token + n, b->pos = b->seq + n, b->x = b->before + n * d;
    for (int i = 0; i < n_tokens; i++)
        b->token[i] = i * 37 % b->hp->n_vocab, b->seq[i] = i / WINDOW, b->pos[i] = i % WINDOW;
    b->batch = (dw_batch){.n_tokens = n_tokens, .token = b->token, .seq = b->seq, .pos = b->pos};
    b->changed = (dw_tensor){.name = "down",
                             .type = dw_qtype_get(DW_F32),
                             .n_dims = 2,
                             .ne = {n_ff, d, 1, 1},
                             .data = (const uint8_t *)b->down,
                             .n_bytes = n_ff * d * sizeof *b->down};
    return 0;
}

static void close_bench(bench *b) {
    dw_session_free(b->session);
    dw_model_close(b->model);
    dw_pool_free(b->pool);
    free(b->token), free(b->before), free(b->down);
}

static int time_whole(bench *b, double *seconds, dw_err *err) {
    const double start = dw_now();
    if (dw_session_eval(b->session, &b->batch, err)) return -1;
    *seconds += dw_now() - start;
    return 0;
}

/* Another matrix: what a repair would try next. */
static void change(bench *b, int step) {
    dw_rng rng;
    dw_rng_seed(&rng, (uint64_t)step);
    for (size_t i = 0; i < b->changed.ne[0]; i++) b->down[i] = (float)(0.01 * dw_rng_normal(&rng));
}

static int time_layers(bench *b, int layer, int first, int end, double *seconds, dw_err *err) {
    const size_t bytes = (size_t)b->batch.n_tokens * (size_t)b->hp->n_embd * sizeof(float);
    for (int i = first; i < end; i++) {
        change(b, i);
        const double start = dw_now();
        memcpy(b->x, b->before, bytes);
        if (dw_session_replace(b->session, layer, DW_W_DOWN, &b->changed, err) ||
            dw_session_layers(b->session, &b->batch, layer, layer + 1, b->x, err))
            return -1;
        *seconds += dw_now() - start;
    }
    return dw_session_replace(b->session, layer, DW_W_DOWN, NULL, err);
}

static int measure(bench *b, int layer, int n, dw_err *err) {
    double whole = 0, layers = 0, warm = 0;
    if (time_whole(b, &warm, err) || dw_session_embed(b->session, &b->batch, b->before, err) ||
        dw_session_layers(b->session, &b->batch, 0, layer, b->before, err))
        return -1;
    if (time_whole(b, &whole, err) || time_layers(b, layer, 0, n / 2, &layers, err) || time_whole(b, &whole, err) ||
        time_layers(b, layer, n / 2, n, &layers, err) || time_whole(b, &whole, err))
        return -1;
    whole /= 3;
    printf("whole pass %.3f s, %d times layer %d of %d %.3f s: %.3f of that share of a whole pass\n", whole, n, layer,
           b->hp->n_layer, layers, layers / (whole * n / b->hp->n_layer));
    return 0;
}

int main(int argc, char **argv) {
    const int layer = argc > 2 ? atoi(argv[2]) : 10, n = argc > 3 ? atoi(argv[3]) : 100;
    const int n_tokens = argc > 4 ? atoi(argv[4]) : 4096, n_threads = argc > 5 ? atoi(argv[5]) : 2;
    static bench b;
    dw_err err = {0};
    if (argc < 2 || layer < 0 || n < 1 || n_tokens < 1)
        return fputs("build/bench_layers MODEL.gguf [LAYER [EVALUATIONS [TOKENS [THREADS]]]]\n", stderr), 2;
    const int rc = open_bench(&b, argv[1], layer, n_tokens, n_threads, &err) || measure(&b, layer, n, &err);
    close_bench(&b);
    return rc ? fprintf(stderr, "bench_layers: %s\n", err.text), 1 : 0;
}
