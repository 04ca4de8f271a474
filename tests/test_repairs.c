/* test_repairs.c - collect --gram, rank --metric obs and cut --repair, on random models and from the command line. */
#include "build.h"
#include "engine.h"
#include "kit/gram.h"
#include "kit/plan.h"
#include "prune/repairs.h"
#include "test.h"

#include <lapacke.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_CTX = 64, N_WINDOWS = 6, N_TOKENS = N_CTX * N_WINDOWS };

/* Text whose bytes are random letters; the random models have byte tokens. */
static const char *random_text(const char *name, int n, uint64_t seed) {
    const char *path = test_file(name);
    if (!access(path, R_OK)) return path;
    FILE *f = fopen(path, "wb");
    dw_rng rng;
    dw_rng_seed(&rng, seed);
    for (int i = 0; f && i < n; i++) fputc(" abcdefghijklmnopqrstuvwxyz\n"[dw_rng_below(&rng, 28)], f);
    if (f) fclose(f);
    return path;
}

/* ---- one model on the text ------------------------------------------------------------------------------------------- */

typedef struct pass {
    dw_model *m;
    dw_session *s;
    const dw_hparams *hp;
    float *before, *a, *after; // of one layer, all tokens: (N_TOKENS, n_embd), (N_TOKENS, n_ff), (N_TOKENS, n_embd)
    int layer, window;
} pass;

static void look(void *ctx, const dw_tap_event *e) {
    pass *p = ctx;
    const size_t n = (size_t)e->n * N_CTX;
    if (e->point == DW_TAP_RESIDUAL && e->layer == p->layer) memcpy(p->before + n * (size_t)p->window, e->values, n * sizeof(float));
    if (e->point == DW_TAP_RESIDUAL && e->layer == p->layer + 1) memcpy(p->after + n * (size_t)p->window, e->values, n * sizeof(float));
    if (e->point == DW_TAP_FFN_NEURON && e->layer == p->layer) memcpy(p->a + n * (size_t)p->window, e->values, n * sizeof(float));
}

static bool open_pass(pass *p, const char *path) {
    dw_err err = {0};
    *p = (pass){.m = dw_model_open(path, &err)};
    p->s = p->m ? dw_session_new(p->m, &(dw_session_options){.pool = two_threads(), .backend = "ref", .n_ctx = N_CTX, .n_batch = N_CTX}, &err) : NULL;
    if (!CHECK(p->s, "%s", err.text)) return false;
    p->hp = dw_model_hparams(p->m);
    p->before = calloc(N_TOKENS * (size_t)p->hp->n_embd, 4);
    p->after = calloc(N_TOKENS * (size_t)p->hp->n_embd, 4);
    p->a = calloc(N_TOKENS * (size_t)p->hp->n_ff_max, 4);
    return true;
}

static void close_pass(pass *p) {
    dw_session_free(p->s);
    dw_model_close(p->m);
    free(p->before), free(p->a), free(p->after);
}

static void run_pass(pass *p, int layer, const int32_t *token) {
    dw_err err = {0};
    p->layer = layer;
    dw_session_set_tap(p->s, &(dw_tap){1u << DW_TAP_RESIDUAL | 1u << DW_TAP_FFN_NEURON, look, p});
    for (p->window = 0; p->window < N_WINDOWS; p->window++) {
        dw_session_rewind(p->s, 0, 0);
        CHECK(!dw_session_eval(p->s, &(dw_batch){.n_tokens = N_CTX, .token = token + p->window * N_CTX}, &err), "%s", err.text);
    }
}

/* Runs layer l of p on the residuals `x`; fills a and after. */
static void run_layer(pass *p, int layer, const float *x) {
    dw_err err = {0};
    const size_t n = N_CTX * (size_t)p->hp->n_embd;
    int32_t token[N_CTX] = {0}, pos[N_CTX];
    for (int i = 0; i < N_CTX; i++) pos[i] = i;
    p->layer = layer;
    memcpy(p->after, x, N_WINDOWS * n * sizeof *x);
    dw_session_set_tap(p->s, &(dw_tap){1u << DW_TAP_FFN_NEURON, look, p});
    for (p->window = 0; p->window < N_WINDOWS; p->window++)
        CHECK(!dw_session_layers(p->s, &(dw_batch){.n_tokens = N_CTX, .token = token, .pos = pos}, layer, layer + 1, p->after + n * (size_t)p->window, &err), "%s", err.text);
}

static float *down_of(const dw_model *m, int l, size_t *n) {
    char name[64];
    snprintf(name, sizeof name, "blk.%d.ffn_down.weight", l);
    const dw_tensor *t = dw_gguf_find_tensor(dw_model_gguf(m), name);
    float *v = calloc(t->ne[0] * t->ne[1], sizeof *v);
    for (size_t r = 0; r < t->ne[1]; r++) t->type->decode(t->data + r * dw_tensor_row_bytes(t), v + r * t->ne[0], t->ne[0]);
    *n = t->ne[0];
    return v;
}

static double dot(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- the direct solution of a layer ---------------------------------------------------------------------------------------- */

typedef struct direct {
    const int32_t *keep;
    size_t n_keep, n_ff, d;
    float *v, *v_new; // (d, n_ff), (d, n_keep)
    double dense, gap, damp;
} direct;

/* (V_S H + E[R a_S^T]) H^-1 by LAPACK; the largest difference to the file's V', over the largest change. */
static double difference(const direct *x, const pass *whole, const pass *cut, const pass *own) {
    const size_t n = x->n_keep, d = x->d;
    double *h = calloc(n * n, 8), *b = calloc(n * d, 8), *diagonal = calloc(n, 8), worst = 0, largest = 0;
    for (size_t t = 0; t < N_TOKENS; t++) {
        const float *a = cut->a + t * n, *a_whole = whole->a + t * x->n_ff, *a_own = own->a + t * x->n_ff;
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < n; k++) h[i * n + k] += (double)a[i] * (double)a[k] / N_TOKENS;
        for (size_t r = 0; r < d; r++) {
            const double y = dot(x->v + r * x->n_ff, a_whole, x->n_ff), y_own = dot(x->v + r * x->n_ff, a_own, x->n_ff);
            const double mid = (double)whole->after[t * d + r] - y, mid_cut = (double)own->after[t * d + r] - y_own;
            double target = x->dense * (y + x->gap * (mid - mid_cut)) + (1 - x->dense) * y_own;
            for (size_t i = 0; i < n; i++) b[i * d + r] += target * (double)a[i] / N_TOKENS;
        }
    }
    for (size_t i = 0; i < n; i++) diagonal[i] = h[i * n + i];
    qsort(diagonal, n, sizeof *diagonal, ascending);
    double lambda = x->damp * 0.5 * (diagonal[n / 2] + diagonal[(n - 1) / 2]);
    if (N_TOKENS < 5 * n) lambda *= 5.0 * (double)n / N_TOKENS;
    for (size_t i = 0; i < n; i++) {
        h[i * n + i] += lambda;
        for (size_t r = 0; r < d; r++) b[i * d + r] += lambda * (double)x->v[r * x->n_ff + (size_t)x->keep[i]];
    }
    int *pivot = calloc(n, sizeof *pivot);
    CHECK(!LAPACKE_dgesv(LAPACK_ROW_MAJOR, (int)n, (int)d, h, (int)n, pivot, b, (int)d));
    for (size_t i = 0; i < n; i++)
        for (size_t r = 0; r < d; r++) {
            worst = fmax(worst, fabs((double)x->v_new[r * n + i] - b[i * d + r]));
            largest = fmax(largest, fabs((double)x->v_new[r * n + i] - (double)x->v[r * x->n_ff + (size_t)x->keep[i]]));
        }
    free(h), free(b), free(diagonal), free(pivot);
    return worst / largest;
}

static void tokens_of(int32_t *token, const dw_model *m, const char *path) {
    dw_err err = {0};
    size_t size, n;
    int32_t *all;
    dw_tokenizer *tok = dw_tokenizer_open(dw_model_gguf(m), &err);
    char *text = dw_read_text(path, 1 << 20, &size, &err);
    const dw_vocab *v = dw_tokenizer_vocab(tok);
    CHECK(tok && text && !dw_tokenize(tok, text, size, DW_ADD_SPECIAL, &all, &n, &err) && n >= N_TOKENS, "%s", err.text);
    memcpy(token, all, N_TOKENS * sizeof *token);
    for (int w = 0; w < N_WINDOWS && v->add_bos; w++) token[w * N_CTX] = v->bos;
    free(all);
    free(text);
    dw_tokenizer_free(tok);
}

static void check_sequential(const char *target, double dense, double gap) {
    const char *model = random_model("tiny-qwen2", "F32", 0), *text = random_text("calib.txt", 6000, 4);
    const char *plan_path = test_file("sequential.tsv"), *out = test_file("sequential.gguf");
    REQUIRE(!test_run("deadwood-rank -m %s -o %s --metric random --rate 0.4 --multiple 1 -q", model, plan_path), "%s", test_run_output());
    REQUIRE(!test_run("deadwood-cut -m %s -p %s -o %s --repair lsq --sequential -f %s -c %d --windows %d --target %s --gap %g --damp 0.05 -q", model, plan_path, out, text,
                      N_CTX, N_WINDOWS, target, gap), "%s", test_run_output());
    dw_err err = {0};
    kit_plan plan;
    pass whole, cut, own; // own: layer l of the whole model on the inputs of the cut one
    REQUIRE(!kit_plan_read(&plan, plan_path, NULL, 0, &err) && open_pass(&whole, model) && open_pass(&cut, out) && open_pass(&own, model), "%s", err.text);
    int32_t token[N_TOKENS], keep[1024];
    tokens_of(token, whole.m, text);
    for (int l = 0; l < whole.hp->n_layer; l++) {
        direct x = {.keep = keep, .d = (size_t)whole.hp->n_embd, .dense = dense, .gap = gap, .damp = 0.05};
        kit_plan_neurons(&plan.layer[l], keep);
        x.v = down_of(whole.m, l, &x.n_ff);
        x.v_new = down_of(cut.m, l, &x.n_keep);
        run_pass(&whole, l, token);
        run_pass(&cut, l, token);
        run_layer(&own, l, cut.before);
        const double worst = difference(&x, &whole, &cut, &own);
        CHECK(worst < 2e-3, "%s, layer %d: differs by %g of the largest change", target, l, worst);
        free(x.v);
        free(x.v_new);
    }
    close_pass(&whole);
    close_pass(&cut);
    close_pass(&own);
    kit_plan_release(&plan);
}

static void sequential(void) {
    check_sequential("own", 0, 0.5);
    check_sequential("dense", 1, 0.5);
    check_sequential("dense", 1, 1);
    check_sequential("blend", 0.5, 0.25);
}

static const test_case cases[] = {
    {"sequential repairs equal direct solves on the layers below as they are cut", sequential},
    {0}};

TEST_MAIN(cases)
