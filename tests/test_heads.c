/* test_heads.c - KV heads that are cut with their query heads: which ones, what the file computes, what o becomes; and
 * biases of down that keep the mean of what is lost. */
#include "build.h"
#include "engine.h"
#include "kit/gram.h"
#include "kit/plan.h"
#include "model/model.h"
#include "test.h"

#include <lapacke.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_CTX = 64, N_WINDOWS = 6, N_TOKENS = 48 };

/* ---- models, texts, statistics ---------------------------------------------------------------------------- */

static const exp_shape shapes[] = {{"llama", "llama", 4, 64, 128, 8, 4, 8, 512, false, 10000, 256},
                                   {"qwen2", "qwen2", 4, 64, 128, 8, 4, 8, 512, true, 10000, 256},
                                   {"qwen3", "qwen3", 4, 64, 128, 8, 4, 16, 512, true, 10000, 256},
                                   {"untied", "qwen3", 4, 64, 128, 8, 4, 16, 512, false, 10000, 256},
                                   {"one", "qwen2", 4, 64, 128, 8, 1, 8, 512, true, 10000, 256},
                                   {0}};

static const char *model_of(const char *name) {
    for (const exp_shape *s = shapes; s->name; s++) {
        char file[64];
        snprintf(file, sizeof file, "%s.gguf", name);
        const char *path = test_file(file);
        if (strcmp(s->name, name)) continue;
        if (access(path, R_OK)) write_random(path, s, "F32");
        return path;
    }
    return random_model(name, "F32", 0);
}

static const char *text_file(void) {
    const char *path = test_file("calib.txt");
    if (!access(path, R_OK)) return path;
    FILE *f = fopen(path, "wb");
    dw_rng rng;
    dw_rng_seed(&rng, 4);
    for (int i = 0; f && i < 6000; i++) fputc(" abcdefghijklmnopqrstuvwxyz\n"[dw_rng_below(&rng, 28)], f);
    if (f) fclose(f);
    return path;
}

static const char *stats_of(const char *name) {
    char file[64];
    snprintf(file, sizeof file, "%s.h5", name);
    const char *path = test_file(file);
    if (access(path, R_OK))
        CHECK(!test_run("deadwood-collect -m %s -f %s -c %d --windows %d --gram down+o -o %s -q", model_of(name),
                        text_file(), N_CTX, N_WINDOWS, path),
              "%s", test_run_output());
    return path;
}

/* A plan that keeps all neurons, and of some layers' KV heads those in `heads`. */
static const char *write_heads(const char *name, const char *heads, bool every_layer) {
    const char *path = test_file("heads.tsv");
    dw_err err = {0};
    dw_model *m = dw_model_open(model_of(name), &err);
    FILE *f = fopen(path, "w");
    if (!CHECK(m && f, "%s", err.text)) exit(1);
    const dw_hparams *hp = dw_model_hparams(m);
    fprintf(f, "# deadwood plan 1\nlayer width keep\n");
    for (int l = 0; l < hp->n_layer; l++) {
        fprintf(f, "%d %d 0-%d\n", l, hp->n_ff[l], hp->n_ff[l] - 1);
        if (hp->n_head_kv[l] > 1 && (every_layer || l % 2)) fprintf(f, "heads %d %s\n", l, heads);
    }
    fclose(f);
    dw_model_close(m);
    return path;
}

/* ---- what the file computes ------------------------------------------------------------------------------- */

static dw_session *open_ref(const dw_model *m, dw_err *err) {
    const dw_session_options o = {
        .pool = two_threads(), .backend = "ref", .n_ctx = N_CTX, .n_batch = N_TOKENS, .n_out = N_TOKENS};
    return dw_session_new(m, &o, err);
}

static float *logits_of(dw_session *s, int n_vocab) {
    dw_err err = {0};
    int32_t token[N_TOKENS];
    uint8_t out[N_TOKENS];
    float *logits = calloc(N_TOKENS * (size_t)n_vocab, sizeof *logits);
    random_tokens(token, N_TOKENS, n_vocab, 3);
    memset(out, 1, sizeof out);
    CHECK(!dw_session_eval(s, &(dw_batch){.n_tokens = N_TOKENS, .token = token, .out = out}, &err) &&
              !dw_session_logits(s, 0, N_TOKENS, logits, &err),
          "%s", err.text);
    return logits;
}

/* The whole model with zeros in the columns of o whose heads are cut. */
static float *masked_logits(const char *path, const char *plan_path) {
    dw_err err = {0};
    kit_plan plan;
    dw_model *m = dw_model_open(path, &err);
    dw_session *s = m ? open_ref(m, &err) : NULL;
    if (!CHECK(s && !kit_plan_read(&plan, plan_path, NULL, 0, &err), "%s", err.text)) exit(1);
    const dw_hparams *hp = dw_model_hparams(m);
    float *o[16] = {0};
    for (int l = 0; l < hp->n_layer; l++) {
        if (!plan.layer[l].n_kv) continue;
        const dw_tensor *t = &m->net.layer[l].o;
        const size_t n = t->ne[0], d = t->ne[1], per = n / (size_t)hp->n_head_kv[l];
        int32_t kept[64];
        kit_plan_kv_heads(&plan.layer[l], kept);
        o[l] = calloc(n * d, sizeof *o[l]);
        for (size_t r = 0; r < d; r++)
            for (int i = 0; i < plan.layer[l].n_kv; i++)
                memcpy(o[l] + r * n + (size_t)kept[i] * per, t->data + 4 * (r * n + (size_t)kept[i] * per), 4 * per);
        const dw_tensor masked = {.type = dw_qtype_get(DW_F32), .ne = {n, d, 1, 1}, .data = (uint8_t *)o[l]};
        CHECK(!dw_session_replace(s, l, DW_W_O, &masked, &err), "%s", err.text);
    }
    float *logits = logits_of(s, hp->n_vocab);
    kit_plan_release(&plan);
    dw_session_free(s);
    dw_model_close(m);
    for (int l = 0; l < 16; l++) free(o[l]);
    return logits;
}

static void check_cut(const char *name, const char *heads, bool every_layer, const char *arch) {
    const char *model = model_of(name), *plan = write_heads(name, heads, every_layer), *out = test_file("cut.gguf");
    dw_err err = {0};
    REQUIRE(!test_run("deadwood-cut -m %s -p %s -o %s -q", model, plan, out), "%s", test_run_output());
    dw_model *m = dw_model_open(out, &err);
    dw_session *s = m ? open_ref(m, &err) : NULL;
    REQUIRE(s, "%s", err.text);
    const dw_hparams *hp = dw_model_hparams(m);
    CHECK(!strcmp(hp->arch, arch), "%s: architecture %s, expected %s", name, hp->arch, arch);
    float *ours = logits_of(s, hp->n_vocab), *masked = masked_logits(model, plan);
    const double worst = nmse(ours, masked, N_TOKENS * (size_t)hp->n_vocab);
    CHECK(worst <= 1e-10, "%s, heads %s: NMSE %g", name, heads, worst);
    free(ours), free(masked);
    dw_session_free(s);
    dw_model_close(m);
}

static void computes_without(void) {
    check_cut("llama", "0,2-3", true, "llama");
    check_cut("llama", "1,3", false, "deci");
    check_cut("qwen2", "1-2", true, "deci");
    check_cut("qwen2", "0,3", false, "deci");
    check_cut("qwen3", "2", true, "qwen3");
    check_cut("qwen3", "1-3", false, "openelm");
    check_cut("untied", "0-1", true, "qwen3");
    check_cut("tiny-deci", "1", false, "deci");
    check_cut("tiny-openelm", "0", false, "openelm");
}

/* Cutting A then B equals cutting both. */
static void one_after_the_other(void) {
    const char *model = model_of("qwen2"), *first = test_file("first.gguf"), *second = test_file("second.gguf"),
               *both = test_file("both.gguf");
    REQUIRE(!test_run("deadwood-cut -m %s -p %s -o %s -q", model, write_heads("qwen2", "0,2-3", true), first), "%s",
            test_run_output());
    REQUIRE(!test_run("deadwood-cut -m %s -p %s -o %s -q", first, write_heads("qwen2", "0,2", true), second), "%s",
            test_run_output());
    REQUIRE(!test_run("deadwood-cut -m %s -p %s -o %s -q", model, write_heads("qwen2", "0,3", true), both), "%s",
            test_run_output());
    dw_err err = {0};
    dw_gguf *a = dw_gguf_open(second, &err), *b = dw_gguf_open(both, &err);
    REQUIRE(a && b && dw_gguf_n_tensors(a) == dw_gguf_n_tensors(b), "%s", err.text);
    for (size_t i = 0; i < dw_gguf_n_tensors(a); i++) {
        const dw_tensor *x = dw_gguf_tensor(a, i), *y = dw_gguf_find_tensor(b, x->name);
        CHECK(y && x->n_bytes == y->n_bytes && !memcmp(x->data, y->data, x->n_bytes), "%s", x->name);
    }
    dw_gguf_close(a);
    dw_gguf_close(b);
}

/* ---- which ones ------------------------------------------------------------------------------------------- */

typedef struct problem { // of o of one layer
    int n, d, per;       // inputs, outputs, inputs of a KV head
    double *h;           // (n, n), damped
    double *v;           // (d, n)
    double lambda;
} problem;

/* H by the formulas of damping.h: the median of the diagonal, more of it for few tokens. */
static problem problem_of(const dw_model *m, kit_gram *gram, int l) {
    dw_err err = {0};
    double n_tokens;
    const kit_gram_matrix *g = kit_gram_find(gram, l, KIT_STATS_ATTN_MIX, &n_tokens, &err);
    if (!CHECK(g, "%s", err.text)) exit(1);
    const dw_tensor *o = &m->net.layer[l].o;
    problem p = {.n = g->n, .d = (int)o->ne[1], .per = g->n / dw_model_hparams(m)->n_head_kv[l]};
    const size_t n = (size_t)p.n;
    double diagonal[256];
    for (int i = 0; i < p.n; i++) diagonal[i] = kit_gram_at(g, i, i) / n_tokens;
    for (int i = 0; i < p.n; i++)
        for (int k = i + 1; k < p.n; k++)
            if (diagonal[k] < diagonal[i]) {
                const double x = diagonal[i];
                diagonal[i] = diagonal[k], diagonal[k] = x;
            }
    p.lambda = 0.01 * 0.5 * (diagonal[p.n / 2] + diagonal[(p.n - 1) / 2]) * fmax(1, 5.0 * p.n / n_tokens);
    p.h = calloc(n * n, sizeof *p.h), p.v = calloc((size_t)p.d * n, sizeof *p.v);
    for (int i = 0; i < p.n; i++)
        for (int k = 0; k < p.n; k++) p.h[i * p.n + k] = kit_gram_at(g, i, k) / n_tokens + (i == k ? p.lambda : 0);
    for (size_t i = 0; i < (size_t)p.d * n; i++) p.v[i] = (double)((const float *)o->data)[i];
    return p;
}

/* The repaired columns of the inputs that stay, (d, m): (V H_:S) H_SS^-1, and the least error of losing the others. */
static double solve(const problem *p, const bool *stays, double *v_new) {
    const int n = p->n;
    int at[256], m = 0, pivot[256];
    for (int i = 0; i < n; i++)
        if (stays[i]) at[m++] = i;
    double *a = calloc((size_t)(m * m), sizeof *a), *b = calloc((size_t)(m * p->d), sizeof *b), error = 0;
    for (int i = 0; i < m; i++) {
        for (int k = 0; k < m; k++) a[i * m + k] = p->h[at[i] * n + at[k]];
        for (int r = 0; r < p->d; r++)
            for (int j = 0; j < n; j++) b[i * p->d + r] += p->v[r * n + j] * p->h[j * n + at[i]];
    }
    CHECK(!LAPACKE_dgesv(LAPACK_ROW_MAJOR, m, p->d, a, m, pivot, b, p->d));
    double *rest = calloc((size_t)n, sizeof *rest);
    for (int r = 0; r < p->d; r++) { // (V - V')_r H (V - V')_r^T
        for (int j = 0; j < n; j++) rest[j] = p->v[r * n + j];
        for (int i = 0; i < m; i++) rest[at[i]] -= b[i * p->d + r], v_new[r * m + i] = b[i * p->d + r];
        for (int j = 0; j < n; j++)
            for (int k = 0; k < n; k++) error += rest[j] * p->h[j * n + k] * rest[k];
    }
    free(a), free(b), free(rest);
    return error;
}

static double error_without(const problem *p, const bool *kv, double *v_new) {
    bool stays[256];
    for (int i = 0; i < p->n; i++) stays[i] = kv[i / p->per];
    return solve(p, stays, v_new);
}

/* What is told of a matrix o says so. */
static void few_tokens(void) {
    const char *model = model_of("qwen2"), *few = test_file("few.h5");
    CHECK(!test_run("deadwood-collect -m %s -f %s -c %d --windows 1 --gram down+o -o %s -q && deadwood-cut -m %s -p %s "
                    "-o %s --repair lsq -s %s",
                    model, text_file(), N_CTX, few, model, write_heads("qwen2", "0,2-3", true), test_file("few.gguf"),
                    few) &&
              strstr(test_run_output(), "layers 0 to 3, heads: damped by") &&
              strstr(test_run_output(), "64 tokens are few for 64 inputs: give more text"),
          "%s", test_run_output());
}

/* Half of the KV heads go, one after the other; each time none other would have cost less.  And o is the solution. */
static void least_errors(void) {
    static const char *const names[] = {"llama", "qwen2", "qwen3"};
    for (int i = 0; i < 3; i++) {
        const char *model = model_of(names[i]), *stats = stats_of(names[i]), *plan = test_file("rank.tsv"),
                   *out = test_file("repaired.gguf");
        dw_err err = {0};
        char gram_path[1024];
        kit_gram gram;
        kit_plan p;
        snprintf(gram_path, sizeof gram_path, "%s.gram", stats);
        REQUIRE(!test_run("deadwood-rank -m %s -s %s --heads 0.5 -o %s -q && deadwood-cut -m %s -p %s -o %s --repair "
                          "lsq -s %s -q",
                          model, stats, plan, model, plan, out, stats),
                "%s", test_run_output());
        CHECK(!test_run("grep -qa 'kv_heads.*8 of 16' %s", out), "the lineage does not tell the heads");
        dw_model *m = dw_model_open(model, &err), *small = dw_model_open(out, &err);
        REQUIRE(m && small && !kit_gram_open(&gram, gram_path, &err) && !kit_plan_read(&p, plan, NULL, 0, &err), "%s",
                err.text);
        for (int l = 0; l < p.n_layer; l++) {
            problem x = problem_of(m, &gram, l);
            double *v_new = calloc((size_t)(x.d * x.n), sizeof *v_new), largest = 0, worst = 0;
            bool kv[4] = {true, true, true, true}, wanted[4] = {0};
            int32_t kept[4];
            REQUIRE(p.layer[l].n_kv == 2 && p.layer[l].n_keep == 128, "%d KV heads stay", p.layer[l].n_kv);
            kit_plan_kv_heads(&p.layer[l], kept);
            wanted[kept[0]] = wanted[kept[1]] = true;
            for (int step = 0; step < 2; step++) {
                double least = INFINITY;
                int which = 0;
                for (int h = 0; h < 4; h++) {
                    if (!kv[h]) continue;
                    kv[h] = false;
                    const double error = error_without(&x, kv, v_new);
                    if (error < least) least = error, which = h;
                    kv[h] = true;
                }
                kv[which] = false;
            }
            CHECK(!memcmp(kv, wanted, sizeof kv), "%s, layer %d: %d and %d stay", names[i], l, kept[0], kept[1]);
            error_without(&x, wanted, v_new);
            const float *o = (const float *)small->net.layer[l].o.data;
            for (int k = 0; k < x.d * 2 * x.per; k++) {
                largest = fmax(largest, fabs(v_new[k]));
                worst = fmax(worst, fabs(v_new[k] - (double)o[k]));
            }
            CHECK(worst <= 1e-5 * largest, "%s, layer %d: o differs by %g of %g", names[i], l, worst, largest);
            free(v_new), free(x.h), free(x.v);
        }
        kit_plan_release(&p);
        kit_gram_close(&gram);
        dw_model_close(m);
        dw_model_close(small);
    }
}

static int n_kv_of(const char *path, int kept[8]) {
    kit_plan p;
    dw_err err = {0};
    int sum = 0;
    if (!CHECK(!kit_plan_read(&p, path, NULL, 0, &err), "%s", err.text)) return 0;
    for (int l = 0; l < p.n_layer; l++) kept[l] = p.layer[l].n_kv ? p.layer[l].n_kv : 4, sum += kept[l];
    kit_plan_release(&p);
    return sum;
}

static void counts(void) {
    const char *model = model_of("qwen2"), *stats = stats_of("qwen2"), *plan = test_file("counts.tsv");
    int kept[8] = {0};
    REQUIRE(!test_run("deadwood-rank -m %s -s %s --heads 0.3 -o %s -q", model, stats, plan), "%s", test_run_output());
    CHECK(n_kv_of(plan, kept) == 12 && kept[0] == 3 && kept[3] == 3, "%d %d", kept[0], kept[3]);
    REQUIRE(!test_run("deadwood-rank -m %s -s %s --heads 0.5 --heads-allocate relative -o %s -q", model, stats, plan),
            "%s", test_run_output());
    CHECK(n_kv_of(plan, kept) == 8 && kept[0] && kept[1] && kept[2] && kept[3]);
    REQUIRE(!test_run("deadwood-rank -m %s -s %s --heads 0.99 --protect 2 -o %s -q", model, stats, plan), "%s",
            test_run_output());
    CHECK(n_kv_of(plan, kept) == 7 && kept[2] == 4 && kept[0] == 1, "%d %d", kept[0], kept[2]);
    CHECK(strstr(test_run_output(), "--heads 0.99 is wanted and 0.7500 is reached, because layers have at most 4 KV") &&
              !strstr(test_run_output(), "comes nearer"),
          "%s", test_run_output());
    REQUIRE(!test_run("deadwood-rank -m %s -s %s --heads 0.5 --metric energy --bytes 500kB --multiple 1 -o %s -q && "
                      "deadwood-cut -m %s -p %s -o %s -q",
                      model, stats, plan, model, plan, test_file("bytes.gguf")),
            "%s", test_run_output());
    dw_err err = {0};
    dw_gguf *g = dw_gguf_open(test_file("bytes.gguf"), &err);
    REQUIRE(g, "%s", err.text);
    CHECK(dw_gguf_file_bytes(g) <= 500000 && dw_gguf_file_bytes(g) > 480000, "%zu bytes", dw_gguf_file_bytes(g));
    dw_gguf_close(g);
}

/* Rounding in every layer is told, and the plan says what chose the heads. */
static void rounded(void) {
    const char *model = model_of("qwen2"), *stats = stats_of("qwen2"), *plan = test_file("rounded.tsv");
    dw_err err = {0};
    size_t size;
    kit_plan p;
    for (int i = 0; i < 2; i++) {
        REQUIRE(!test_run("deadwood-rank -m %s -s %s --heads 0.125 -o %s %s", model, stats, plan,
                          i ? "--heads-allocate relative" : ""),
                "%s", test_run_output());
        const char *told = strstr(test_run_output(), "warning: --heads 0.125 is wanted and 0.2500 is reached, because "
                                                     "layers have at most 4 KV heads, and one must stay; "
                                                     "--heads-allocate relative comes nearer");
        CHECK(i ? !told : told != NULL, "%s", test_run_output());
        CHECK(!strstr(test_run_output(), "multiples of"), "all neurons stay: %s", test_run_output());
        char *text = dw_read_text(plan, 1 << 20, &size, &err);
        CHECK(text && strstr(text, i ? "wanted 0.1250, reached 0.1250" : "wanted 0.1250, reached 0.2500"), "%s", text);
        free(text);
    }
    REQUIRE(!kit_plan_read(&p, plan, NULL, 0, &err), "%s", err.text);
    CHECK(!strcmp(p.metric, "obs-heads"), "%s", p.metric);
    kit_plan_release(&p);
}

/* ---- biases of down --------------------------------------------------------------------------------------- */

typedef struct mean_tap {
    double sum[128];
    int n;
} mean_tap;

/* Sums the residual after layer 0. */
static void add_residual(void *ctx, const dw_tap_event *e) {
    mean_tap *m = ctx;
    if (e->layer != 1) return;
    for (int i = 0; i < e->n_tokens; i++)
        for (int j = 0; j < e->n; j++) m->sum[j] += (double)e->values[(size_t)i * (size_t)e->n + (size_t)j];
    m->n += e->n_tokens;
}

/* The mean over the calibration tokens. */
static bool mean_after_layer_0(const char *path, double *mean, int d) {
    dw_err err = {0};
    mean_tap tap = {0};
    dw_model *m = dw_model_open(path, &err);
    dw_session *s = m ? open_ref(m, &err) : NULL;
    dw_tokenizer *tok = m ? dw_tokenizer_open(dw_model_gguf(m), &err) : NULL;
    size_t size, n;
    int32_t *token;
    char *text = dw_read_text(text_file(), 1 << 20, &size, &err);
    if (!CHECK(s && tok && text && !dw_tokenize(tok, text, size, DW_ADD_SPECIAL, &token, &n, &err), "%s", err.text))
        return false;
    const dw_vocab *v = dw_tokenizer_vocab(tok);
    dw_session_set_tap(s, &(dw_tap){1u << DW_TAP_RESIDUAL, add_residual, &tap});
    for (int w = 0; w < N_WINDOWS; w++) {
        if (w && v->add_bos) token[w * N_CTX] = v->bos;
        dw_session_rewind(s, 0, 0);
        for (int at = 0; at < N_CTX; at += 32)
            CHECK(!dw_session_eval(s, &(dw_batch){.n_tokens = 32, .token = token + w * N_CTX + at}, &err), "%s",
                  err.text);
    }
    for (int j = 0; j < d; j++) mean[j] = tap.sum[j] / tap.n;
    free(token), free(text);
    dw_tokenizer_free(tok);
    dw_session_free(s);
    dw_model_close(m);
    return tap.n == N_WINDOWS * N_CTX;
}

static void mean_stays(const char *name, const char *arch) {
    const char *model = model_of(name), *stats = stats_of(name), *plan = test_file("bias.tsv"),
               *out = test_file("bias.gguf"), *bare = test_file("bare.gguf");
    double whole[128], without[128], with[128], lost = 0, left = 0, size = 0;
    REQUIRE(!test_run("deadwood-rank -m %s -s %s --metric flap --rate 0.5 --multiple 1 -o %s -q", model, stats, plan),
            "%s", test_run_output());
    REQUIRE(!test_run("deadwood-cut -m %s -p %s -o %s -q && deadwood-cut -m %s -p %s -o %s --repair bias -s %s", model,
                      plan, bare, model, plan, out, stats),
            "%s", test_run_output());
    CHECK(strstr(test_run_output(), "down of 4 layers gets the mean of what is lost as its bias"), "%s",
          test_run_output());
    REQUIRE(mean_after_layer_0(model, whole, 64) && mean_after_layer_0(bare, without, 64) &&
            mean_after_layer_0(out, with, 64));
    for (int j = 0; j < 64; j++) {
        size = fmax(size, fabs(whole[j]));
        lost = fmax(lost, fabs(without[j] - whole[j]));
        left = fmax(left, fabs(with[j] - whole[j]));
    }
    CHECK(left <= 1e-4 * lost && left <= 1e-4 * size, "%s: the mean differs by %g, without the bias by %g", name, left,
          lost);
    dw_err err = {0};
    dw_model *m = dw_model_open(out, &err);
    REQUIRE(m, "%s", err.text);
    CHECK(!strcmp(dw_model_hparams(m)->arch, arch) && m->net.layer[3].down_bias.name, "%s", dw_model_hparams(m)->arch);
    dw_model_close(m);
    CHECK(!test_run("deadwood-inspect %s --lineage", out) && strstr(test_run_output(), "--repair bias"), "%s",
          test_run_output());
}

/* A second cut adds to the bias of the first, and the mean still stays. */
static void bias_on_bias(void) {
    const char *first = test_file("bias.gguf"), *stats = test_file("again.h5"), *plan = test_file("again.tsv"),
               *out = test_file("again.gguf");
    double before[128], after[128];
    mean_stays("llama", "llama");
    REQUIRE(
        !test_run("deadwood-collect -m %s -f %s -c %d --windows %d -o %s -q && deadwood-rank -m %s -s %s --metric flap "
                  "--rate 0.5 --multiple 1 -o %s -q && deadwood-cut -m %s -p %s -o %s --repair bias -s %s -q",
                  first, text_file(), N_CTX, N_WINDOWS, stats, first, stats, plan, first, plan, out, stats),
        "%s", test_run_output());
    REQUIRE(mean_after_layer_0(first, before, 64) && mean_after_layer_0(out, after, 64));
    for (int j = 0; j < 64; j++) CHECK(fabs(before[j] - after[j]) <= 1e-5, "%g, before %g", after[j], before[j]);
}

static void biases(void) {
    mean_stays("qwen2", "deci");
    mean_stays("tiny-deci", "deci");
    bias_on_bias();
}

/* ---- refusals --------------------------------------------------------------------------------------------- */

static void refused(int status, const char *command, const char *words) {
    CHECK(test_run("%s", command) == status && strstr(test_run_output(), words) &&
              access(test_file("refused.gguf"), F_OK),
          "%s\n  does not say '%s': %s", command, words, test_run_output());
}

static void refusals(void) {
    char line[4096];
    const char *qwen2 = model_of("qwen2"), *stats = stats_of("qwen2"), *out = test_file("refused.gguf"),
               *bare = test_file("bare.h5");
    const char *plan = write_heads("untied", "1", false);
    snprintf(line, sizeof line, "deadwood-cut -m %s -p %s -o %s -q", model_of("untied"), plan, out);
    refused(1, line, "the numbers of heads differ by layer, which no architecture stores for 'qwen3'");
    plan = write_heads("qwen2", "0,4", true);
    snprintf(line, sizeof line, "deadwood-cut -m %s -p %s -o %s -q", qwen2, plan, out);
    refused(1, line, "the plan keeps KV head 4 of layer 0, which has 4");
    snprintf(line, sizeof line, "deadwood-cut -m %s -p %s -o %s -q --repair lsq -s %s", qwen2, plan, out, stats);
    refused(1, line, "the plan keeps KV head 4 of layer 0, which has 4");
    plan = write_heads("qwen2", "0-1", true);
    snprintf(line, sizeof line, "deadwood-cut -m %s -p %s -o %s -q --repair bias", qwen2, plan, out);
    refused(2, line, "--repair bias needs statistics");
    snprintf(line, sizeof line, "deadwood-cut -m %s -p %s -o %s -q --repair bias -s %s --source %s", qwen2, plan, out,
             stats, qwen2);
    refused(2, line, "--source is what down is encoded from; give --down-type too");
    snprintf(line, sizeof line, "deadwood-cut -m %s -p %s -o %s -q --repair bias -s %s --sequential -f %s", qwen2, plan,
             out, stats, text_file());
    refused(2, line, "--sequential is for --repair lsq");
    REQUIRE(!test_run("deadwood-collect -m %s -f %s -c %d --windows 2 --gram down -o %s -q", qwen2, text_file(), N_CTX,
                      bare),
            "%s", test_run_output());
    snprintf(line, sizeof line, "deadwood-cut -m %s -p %s -o %s -q --repair lsq -s %s", qwen2, plan, out, bare);
    refused(1, line, "there is no Gram matrix of the inputs of o; collect it (collect --gram down+o)");
    snprintf(line, sizeof line, "deadwood-rank -m %s -s %s --heads 0.5 -o %s -q", qwen2, bare, out);
    refused(1, line, "there is no Gram matrix of the inputs of o; collect it (collect --gram down+o)");
    snprintf(line, sizeof line, "deadwood-rank -m %s --heads 0.5 -o %s -q", qwen2, out);
    refused(2, line, "--heads needs statistics with Gram matrices");
    snprintf(line, sizeof line, "deadwood-rank -m %s -s %s --heads 1 -o %s -q", qwen2, stats, out);
    refused(2, line, "leaves no head");
    snprintf(line, sizeof line, "deadwood-rank -m %s -s %s --heads 0.1 -o %s -q", qwen2, stats, out);
    refused(1, line,
            "--heads 0.1 cuts no KV head: layers have at most 4 of them, and one must stay; give at least 0.125");
    snprintf(line, sizeof line, "deadwood-rank -m %s -s %s --heads 0.9 -o %s -q", model_of("one"), stats_of("one"),
             out);
    refused(1, line, "cuts no KV head: no layer that may be cut has two of them");
    snprintf(line, sizeof line, "deadwood-rank -m %s -s %s --heads 0.9 --protect 0,2 -o %s -q", model_of("tiny-deci"),
             stats_of("tiny-deci"), out);
    refused(1, line, "cuts no KV head: no layer that may be cut has two of them");
    plan = test_file("flap.tsv");
    REQUIRE(!test_run("deadwood-rank -m %s --metric random --rate 0.5 --multiple 1 -o %s -q", model_of("qwen3"), plan),
            "%s", test_run_output());
    snprintf(line, sizeof line, "deadwood-cut -m %s -p %s -o %s -q --repair bias -s %s", model_of("qwen3"), plan, out,
             stats_of("qwen3"));
    refused(1, line, "architecture 'qwen3' has no bias of down");
}

/* Blocks of the type of o that the heads do not fill. */
static void whole_blocks(void) {
    const exp_shape s = {"blocks", "llama", 2, 64, 128, 8, 4, 16, 512, false, 10000, 256};
    const char *model = test_file("blocks.gguf"), *plan = test_file("blocks.tsv"), *out = test_file("blocks-cut.gguf");
    REQUIRE(write_random(model, &s, "Q8_0"));
    for (int i = 0; i < 2; i++) { // 32 columns a KV head: whole blocks of 32, not of 256
        FILE *f = fopen(plan, "w");
        fprintf(f, "# deadwood plan 1\nlayer width keep\n0 128 0-127\nheads 0 1-3\n1 128 0-127\nheads 1 0,2-3\n");
        fclose(f);
        if (i) {
            const exp_shape k = {"k", "llama", 2, 256, 256, 8, 4, 64, 512, false, 10000, 256};
            REQUIRE(write_random(model, &k, "Q4_K"));
            f = fopen(plan, "w");
            fprintf(f, "# deadwood plan 1\nlayer width keep\n0 256 0-255\nheads 0 1-3\n1 256 0-255\nheads 1 0,2-3\n");
            fclose(f);
        }
        const int rc = test_run("deadwood-cut -m %s -p %s -o %s -q", model, plan, out);
        CHECK(i ? rc == 1 && strstr(test_run_output(),
                                    "the 6 heads that stay give o rows of 384 values, which Q4_K blocks of 256")
                : !rc,
              "%s", test_run_output());
    }
}

static const test_case cases[] = {
    {"a model without heads computes what the whole one does without their columns of o, in every carrier",
     computes_without},
    {"cutting heads twice equals cutting them at once", one_after_the_other},
    {"the heads that go have the least error, and the repaired o is the least-squares solution", least_errors},
    {"the damping of o is told as that of heads", few_tokens},
    {"as many KV heads go as wanted, in every layer or all together, and sizes know it", counts},
    {"heads that rounding adds are told, and the plan says what chose them", rounded},
    {"columns of o in blocks are copied where they are whole ones, and refused otherwise", whole_blocks},
    {"with --repair bias the mean output over the calibration tokens stays", biases},
    {"plans of heads and biases that cannot be stored are refused in one line", refusals},
    {0}};

TEST_MAIN(cases)
