/* test_backward.c - the training pass: gradients against finite differences, cpu against ref, AdamW against a worked
 * example. */
#include "backends/kernels_backward.h"
#include "build.h"
#include "model/optimizer.h"
#include "model/session.h"
#include "qtypes/encoding.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 1024 };

/* Two random models with one vocabulary, a student and its teacher. */
typedef struct couple {
    dw_model *model, *teacher_model;
    dw_session *session, *teacher_session;
    dw_train *train, *teacher;
    dw_parameters p;
    float *bias[DW_N_WEIGHTS]; // that the file lacks
    int32_t token[MAX_TOKENS];
    int n_ctx, n_seq;
} couple;

static bool any(dw_weight w) {
    (void)w;
    return true;
}

static bool only_down(dw_weight w) { return w == DW_W_DOWN; }

static dw_session *open_session(const dw_model *m, const char *backend, dw_pool *pool, int n_ctx) {
    dw_err err = {0};
    dw_session *s = dw_session_new(
        m, &(dw_session_options){.pool = pool, .backend = backend, .n_ctx = n_ctx, .n_batch = 64}, &err);
    CHECK(s, "%s", err.text);
    return s;
}

/* Biases that no file of this architecture has, so that every kind of parameter is seen. */
static void add_biases(couple *c) {
    static const dw_weight kinds[] = {DW_W_Q_BIAS,    DW_W_K_BIAS,  DW_W_V_BIAS,    DW_W_O_BIAS,
                                      DW_W_GATE_BIAS, DW_W_UP_BIAS, DW_W_DOWN_BIAS, DW_W_OUTPUT_BIAS};
    static const dw_weight of[] = {DW_W_Q, DW_W_K, DW_W_V, DW_W_O, DW_W_GATE, DW_W_UP, DW_W_DOWN, DW_W_OUTPUT};
    dw_rng rng;
    dw_rng_seed(&rng, 3);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        dw_err err = {0};
        const size_t n = dw_session_tensor(c->session, 0, of[k]).ne[1];
        float *v = c->bias[kinds[k]] = malloc(n * sizeof *v);
        for (size_t i = 0; i < n; i++) v[i] = (float)(0.3 * dw_rng_normal(&rng));
        const dw_tensor t = {
            .name = "bias", .type = dw_qtype_get(DW_F32), .ne = {n, 1, 1, 1}, .data = (const uint8_t *)v};
        CHECK(!dw_session_replace(c->session, 0, kinds[k], &t, &err), "%s", err.text);
    }
}

typedef struct setting {
    const char *student, *teacher, *backend;
    int n_ctx, n_seq;
    bool biases;
    bool (*wanted)(dw_weight);
    int rank; // of low-rank additions
    const dw_qtype_row *(*rounded)(const void *, const dw_tensor *);
    dw_precision precision;
    bool keeps;    // the layers' values
    dw_pool *pool; // NULL: two threads
} setting;

/* For passes so small that threads would only wait. */
static dw_pool *one_thread(void) {
    static dw_pool *p;
    if (!p) p = dw_pool_new(1, NULL);
    return p;
}

static bool couple_open(couple *c, setting s) {
    dw_err err = {0};
    dw_pool *pool = s.pool ? s.pool : two_threads();
    *c = (couple){.n_ctx = s.n_ctx, .n_seq = s.n_seq};
    c->model = dw_model_open(s.student, &err);
    c->teacher_model = dw_model_open(s.teacher, &err);
    if (!CHECK(c->model && c->teacher_model, "%s", err.text)) return false;
    c->session = open_session(c->model, s.backend, pool, s.n_ctx);
    c->teacher_session = open_session(c->teacher_model, s.backend, pool, s.n_ctx);
    if (!c->session || !c->teacher_session) return false;
    if (s.biases) add_biases(c);
    const dw_train_options o = {.n_ctx = s.n_ctx, .n_seq = s.n_seq, .keep_values = s.keeps, .precision = s.precision};
    const dw_train_options forward = {
        .n_ctx = s.n_ctx, .n_seq = s.n_seq, .forward_only = true, .keep_residuals = true, .precision = s.precision};
    const dw_trained what = {s.wanted ? s.wanted : any, s.rank, 1, s.rounded};
    CHECK(!dw_parameters_new(&c->p, c->session, &what, &err), "%s", err.text);
    c->train = dw_train_new(c->session, &o, &err);
    c->teacher = dw_train_new(c->teacher_session, &forward, &err);
    random_tokens(c->token, s.n_ctx * s.n_seq, dw_model_hparams(c->model)->n_vocab, 5);
    return CHECK(c->train && c->teacher, "%s", err.text);
}

static void couple_close(couple *c) {
    dw_train_free(c->train);
    dw_train_free(c->teacher);
    dw_parameters_release(&c->p);
    dw_session_free(c->session);
    dw_session_free(c->teacher_session);
    dw_model_close(c->model);
    dw_model_close(c->teacher_model);
    for (int i = 0; i < DW_N_WEIGHTS; i++) free(c->bias[i]);
}

static double loss_of(couple *c, dw_loss loss) {
    dw_err err = {0};
    dw_loss_sums sums = {0};
    CHECK(!dw_train_forward(c->train, c->token, c->n_seq, &err), "%s", err.text);
    dw_train_loss(c->train, &loss, &sums);
    return sums.loss;
}

static dw_loss_sums gradients_of(couple *c, dw_loss loss) {
    dw_err err = {0};
    dw_loss_sums sums = {0};
    dw_parameters_zero_gradients(&c->p);
    if (loss.teacher) CHECK(!dw_train_forward(c->teacher, c->token, c->n_seq, &err), "%s", err.text);
    CHECK(!dw_train_forward(c->train, c->token, c->n_seq, &err), "%s", err.text);
    dw_train_backward(c->train, &loss, 1, c->p.gradients, &sums);
    return sums;
}

/* ---- models ---------------------------------------------------------------------------------------------------- */

static const exp_shape shapes[] = {
    {"llama", "llama", 2, 32, 48, 4, 2, 8, 90, false, 10000, 64, .rope_freqs = true}, // adjacent pairs
    {"qwen2", "qwen2", 2, 32, 48, 4, 2, 8, 90, true, 10000, 64},                      // biases, tied
    {"qwen3", "qwen3", 2, 32, 48, 4, 1, 16, 90, false, 10000, 64},                    // norms of q and k
    {"qwen3-tied", "qwen3", 2, 32, 48, 2, 2, 16, 90, true, 10000, 64},
    {"teacher", "llama", 3, 32, 64, 4, 4, 8, 90, false, 10000, 64},
};
enum { N_SHAPES = 4, TEACHER = 4 };

static const char *path_of(int shape) {
    char name[64];
    snprintf(name, sizeof name, "back-%s.gguf", shapes[shape].name);
    const char *path = test_file(name);
    if (!dw_file_exists(path)) write_random(path, &shapes[shape], "F32");
    return path;
}

/* ---- finite differences ---------------------------------------------------------------------------------------- */

/* The derivative along v at step e by four points, with an error of order e^4. */
static double slope_along(couple *c, const dw_parameter *item, const float *v, double e, dw_loss loss) {
    float *value = c->p.value + item->first, *kept = malloc(item->n * sizeof *kept);
    double f[4];
    memcpy(kept, value, item->n * sizeof *kept);
    static const double at[4] = {-2, -1, 1, 2};
    for (int k = 0; k < 4; k++) {
        for (size_t i = 0; i < item->n; i++) value[i] = (float)(kept[i] + at[k] * e * v[i]);
        dw_parameters_derive(&c->p, one_thread());
        f[k] = loss_of(c, loss);
    }
    memcpy(value, kept, item->n * sizeof *kept);
    dw_parameters_derive(&c->p, one_thread());
    free(kept);
    return (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * e);
}

static double dot_of(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

/* Directions: a random half of the gradient; the other half with a random vector of its size, which would see what the
 * gradient lacks. */
static void fill_directions(dw_rng *rng, const float *g, size_t n, float *v[2]) {
    const double size = sqrt(dot_of(g, g, n) / (double)n);
    for (size_t i = 0; i < n; i++) {
        const bool first = dw_rng_next(rng) >> 63;
        v[0][i] = first ? g[i] : 0;
        v[1][i] = (first ? 0 : g[i]) + (float)(size * dw_rng_normal(rng));
    }
    for (int k = 0; k < 2; k++) {
        const double length = sqrt(dot_of(v[k], v[k], n));
        for (size_t i = 0; i < n && length > 0; i++) v[k][i] = (float)(v[k][i] / length);
    }
}

static const dw_adamw still = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8}; // rate 0

/* The gradients of the first n_layers layers' parameters and of the model's, on ref, within `bound` of their norms. */
static void check_differences(couple *c, dw_loss loss, double bound, int n_layers, const char *what) {
    dw_rng rng;
    dw_rng_seed(&rng, 11);
    gradients_of(c, loss);
    if (c->p.n_derived) dw_adamw_step(&c->p, &still, 1, one_thread()); // gradients by the factors
    for (size_t i = 0; i < c->p.n; i++) {
        const dw_parameter *item = &c->p.item[i];
        if (item->layer >= n_layers && item->layer < dw_model_hparams(c->model)->n_layer) continue;
        const float *g = c->p.grad + item->first;
        float *v[2] = {malloc(item->n * sizeof *g), malloc(item->n * sizeof *g)};
        const double size = sqrt(dot_of(g, g, item->n));
        CHECK(size > 0, "%s, layer %d, weight %d: no gradient", what, item->layer, item->which);
        fill_directions(&rng, g, item->n, v);
        for (int k = 0; k < 2; k++) {
            const double wanted = dot_of(g, v[k], item->n), got = slope_along(c, item, v[k], 5e-3, loss);
            CHECK(fabs(got - wanted) <= bound * fmax(size, 0.1),
                  "%s, layer %d, weight %d, direction %d: slope %.7g, gradient says %.7g of %.3g", what, item->layer,
                  item->which, k, got, wanted, size);
        }
        free(v[0]), free(v[1]);
    }
}

static void differences_of(int shape, bool biases, dw_loss loss, bool distils) {
    couple c;
    char what[64];
    snprintf(what, sizeof what, "%s%s", shapes[shape].name, biases ? " with all biases" : "");
    if (!couple_open(&c,
                     (setting){path_of(shape), path_of(TEACHER), "ref", 6, 2, .biases = biases, .pool = one_thread()}))
        return;
    if (distils) loss.teacher = c.teacher;
    check_differences(&c, loss, 1e-3, 2, what);
    couple_close(&c);
}

static void differences_kl(void) {
    for (int s = 0; s < N_SHAPES; s++) differences_of(s, s == 0, (dw_loss){0}, true);
}

/* Layers of unequal widths and heads, Q, K and V in one matrix, a layer without attention. */
static void differences_unequal(void) {
    static const char *const names[] = {"tiny-deci", "tiny-openelm"};
    for (int i = 0; i < 2; i++) {
        couple c;
        const char *path = random_model(names[i], "F32", 0);
        if (!couple_open(&c, (setting){path, path, "ref", 4, 1, .pool = one_thread()})) continue;
        check_differences(&c, (dw_loss){0}, 1e-3, 4, names[i]);
        couple_close(&c);
    }
}

static void differences_ce(void) {
    for (int s = 0; s < N_SHAPES; s++) differences_of(s, s == 2, (dw_loss){.first = 1}, false);
}

static void differences_mixed(void) { differences_of(1, false, (dw_loss){.temperature = 2, .ce = 0.3}, true); }

static bool layers_only(dw_weight w) { return !dw_weight_is_of_model(w); }

/* B begins as 0, where A has no gradient; so it is made random here. */
static void differences_low_rank(void) {
    couple c;
    dw_rng rng;
    if (!couple_open(&c, (setting){path_of(1), path_of(TEACHER), "ref", 6, 2, .wanted = layers_only, .rank = 3,
                                   .pool = one_thread()}))
        return;
    dw_rng_seed(&rng, 9);
    for (const dw_parameter *i = c.p.item; i < c.p.item + c.p.n; i++)
        for (size_t k = 0; i->rank && k < 3 * i->source.ne[1]; k++)
            c.p.value[i->first + 3 * i->source.ne[0] + k] = (float)(0.05 * dw_rng_normal(&rng));
    dw_parameters_derive(&c.p, one_thread());
    check_differences(&c, (dw_loss){.teacher = c.teacher}, 1e-3, 2, "rank 3");
    couple_close(&c);
}

static const dw_qtype_row *as_q4_0(const void *nothing, const dw_tensor *t) {
    (void)nothing;
    return t->ne[1] > 1 && t->ne[0] % 32 == 0 ? dw_qtype_get(DW_Q4_0) : NULL;
}

/* After three steps the session computes with decode(encode(V)); V itself is exact, and dV = dW. */
static void rounded_is_derived(void) {
    couple c;
    if (!couple_open(&c, (setting){path_of(0), path_of(TEACHER), "cpu", 6, 2, .rounded = as_q4_0})) return;
    for (int t = 1; t <= 3; t++) {
        gradients_of(&c, (dw_loss){.teacher = c.teacher});
        dw_adamw_step(&c.p, &(dw_adamw){.rate = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8}, (uint64_t)t,
                      two_threads());
    }
    size_t n_rounded = 0;
    for (const dw_parameter *i = c.p.item; i < c.p.item + c.p.n; i++) {
        const float *V = c.p.value + i->first;
        float w[64];
        uint8_t packed[64];
        CHECK(i->weight_grad == c.p.grad + i->first, "%s: dV is not dW", i->source.name);
        CHECK((i->weight == V) == !i->rounded, "%s: W is not V", i->source.name);
        n_rounded += i->rounded != NULL;
        for (size_t k = 0; i->rounded && k < i->n; k += 32) {
            dw_encode_row(&(dw_encoding){.tensor = i->source.name, .type = i->rounded, .n = 32}, k, V + k, packed);
            i->rounded->decode(packed, w, 32);
            if (!CHECK(!memcmp(w, i->weight + k, 32 * sizeof *w), "%s: W is not V rounded", i->source.name)) break;
        }
    }
    CHECK(n_rounded > 5 && n_rounded < c.p.n, "%zu of %zu parameters are rounded", n_rounded, c.p.n);
    couple_close(&c);
}

/* W = W0 + 2 B A by three plain loops, after three steps; nothing else of the model has changed. */
static void low_rank_is_merged(void) {
    couple c;
    if (!couple_open(&c, (setting){path_of(0), path_of(TEACHER), "cpu", 6, 2, .wanted = only_down, .rank = 2})) return;
    const dw_parameter *item = &c.p.item[1];
    const size_t n_in = item->source.ne[0], n_out = item->source.ne[1];
    const float *W0 = (const float *)(const void *)item->source.data, *A = c.p.value + item->first, *B = A + 2 * n_in;
    CHECK(c.p.n == 2 && c.p.n_values == 2 * 2 * (n_in + n_out) && c.p.n_derived == 2 * n_in * n_out,
          "%zu values of %zu", c.p.n_values, c.p.n_derived);
    CHECK(!memcmp(item->weight, W0, n_in * n_out * sizeof *W0), "W does not begin as W0");
    for (int t = 1; t <= 3; t++) {
        gradients_of(&c, (dw_loss){.teacher = c.teacher});
        dw_adamw_step(&c.p, &(dw_adamw){.rate = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8}, (uint64_t)t,
                      two_threads());
    }
    double worst = 0, change = 0;
    for (size_t i = 0; i < n_out; i++)
        for (size_t j = 0; j < n_in; j++) {
            double w = W0[i * n_in + j];
            for (size_t k = 0; k < 2; k++) w += 2.0 * B[i * 2 + k] * A[k * n_in + j];
            worst = fmax(worst, fabs(item->weight[i * n_in + j] - w));
            change = fmax(change, fabs(w - W0[i * n_in + j]));
        }
    CHECK(worst < 1e-6 && change > 1e-3, "W differs from W0 + 2 B A by %g, from W0 by %g", worst, change);
    const dw_parameter kept = *item;
    dw_parameters_release(&c.p);
    const dw_tensor t = dw_session_tensor(c.session, kept.layer, kept.which);
    CHECK(t.data == kept.source.data, "the session has not its own weights again");
    couple_close(&c);
}

static void differences_oracles(void) {
    if (!test_shared()) SKIP("the oracles are not here (DW_SHARED)");
    static const char *const names[] = {"llama3-rope", "qwen2-untied", "qwen3", "smollm-tied"};
    for (int i = 0; i < 4; i++) {
        char name[64];
        couple c;
        snprintf(name, sizeof name, "back-%s-oracle.gguf", names[i]);
        const char *path = test_file(name);
        if (!CHECK(!test_run("deadwood-convert %s/oracle/%s -o %s -q", test_shared(), names[i], path), "%s",
                   test_run_output()))
            continue;
        if (!couple_open(&c, (setting){path, path, "ref", 5, 1, .pool = one_thread()})) continue;
        check_differences(&c, (dw_loss){0}, 1e-3, 1, names[i]);
        couple_close(&c);
    }
}

/* ---- residuals beside the teacher's ---------------------------------------------------------------------------- */

/* The student's two layers against the teacher's first and third. */
static const int first_and_last[] = {1, 3};

static void differences_hidden(void) {
    couple c;
    if (!couple_open(&c, (setting){path_of(1), path_of(TEACHER), "ref", 6, 2, .pool = one_thread()})) return;
    const dw_loss loss = {.teacher = c.teacher, .ce = 0.2, .hidden = 0.7, .residual = first_and_last};
    check_differences(&c, loss, 1e-3, 2, "hidden");
    couple_close(&c);
}

typedef struct residuals { // of 6 tokens, 32 values each, before the layers 0 .. 3
    float x[4][6][32];
} residuals;

static void keep_residual(void *ctx, const dw_tap_event *e) {
    residuals *r = ctx;
    if (e->point == DW_TAP_RESIDUAL) memcpy(r->x[e->layer], e->values, sizeof r->x[0]);
}

static void residuals_of(const dw_model *m, const int32_t *token, residuals *r) {
    dw_err err = {0};
    const dw_session_options o = {
        .pool = one_thread(), .backend = "ref", .n_ctx = 6, .n_batch = 6, .kv = DW_KV_CACHE_F32, .exact = true};
    dw_session *s = dw_session_new(m, &o, &err);
    dw_session_set_tap(s, &(dw_tap){.points = 1u << DW_TAP_RESIDUAL, .fn = keep_residual, .ctx = r});
    CHECK(!dw_session_eval(s, &(dw_batch){.n_tokens = 6, .token = token}, &err), "%s", err.text);
    dw_session_free(s);
}

/* The error by the session's own residuals, without the first token. */
static void hidden_is_by_hand(void) {
    couple c;
    static residuals x, y;
    if (!couple_open(&c, (setting){path_of(1), path_of(TEACHER), "ref", 6, 1, .pool = one_thread()})) return;
    residuals_of(c.model, c.token, &x);
    residuals_of(c.teacher_model, c.token, &y);
    double sum = 0;
    for (int l = 0; l < 2; l++)
        for (int t = 1; t < 6; t++) {
            double error = 0, size = 0;
            for (int i = 0; i < 32; i++) {
                const double to = y.x[first_and_last[l]][t][i];
                error += pow(x.x[l + 1][t][i] - to, 2), size += to * to;
            }
            sum += error / size / 2;
        }
    const dw_loss_sums got = gradients_of(&c, (dw_loss){.teacher = c.teacher, .hidden = 3, .residual = first_and_last});
    CHECK(fabs(got.hidden - sum) < 1e-5 * sum && got.n_hidden == 5 && fabs(got.loss - got.kl - 3 * sum) < 1e-4 * sum,
          "%.9g of %zu tokens, by hand %.9g; loss %.9g, KL %.9g", got.hidden, got.n_hidden, sum, got.loss, got.kl);
    couple_close(&c);
}

/* ---- stored predictions of a teacher --------------------------------------------------------------------------- */

enum { BINS = 7 };

typedef struct stored {
    int32_t token[12 * 90];
    float logprob[12 * 90], rest[12];
    dw_coarse_teacher coarse;
} stored;

/* The k likeliest of 90 tokens at a temperature, for 12 tokens of text. */
static void store_teacher(couple *c, stored *s, int k, double tau) {
    dw_err err = {0};
    float z[90];
    CHECK(!dw_train_forward(c->teacher, c->token, 2, &err), "%s", err.text);
    for (int t = 0; t < 12; t++) {
        double sum = 0, rest = 0;
        dw_train_logits(c->teacher, t, 1, z);
        for (int i = 0; i < 90; i++) sum += exp(z[i] / tau);
        for (int i = 0, next = 0; i < 90; i++) {
            int larger = 0;
            for (int j = 0; j < 90; j++) larger += z[j] > z[i];
            if (larger >= k) {
                rest += exp(z[i] / tau) / sum;
                continue;
            }
            s->token[t * k + next] = i;
            s->logprob[t * k + next++] = (float)(z[i] / tau - log(sum));
        }
        s->rest[t] = rest > 0 ? (float)log(rest) : -1000;
    }
    s->coarse = (dw_coarse_teacher){k, s->token, s->logprob, s->rest};
}

/* KL over the k + 1 bins, times tau^2, of all 12 tokens. */
static double coarse_kl(couple *c, const stored *s, double tau) {
    double kl = 0;
    float z[90];
    for (int t = 0; t < 12; t++) {
        double sum = 0, q_rest = 1;
        dw_train_logits(c->train, t, 1, z);
        for (int i = 0; i < 90; i++) sum += exp(z[i] / tau);
        for (int i = 0; i < s->coarse.k; i++) {
            const double ln_p = s->logprob[t * s->coarse.k + i],
                         ln_q = z[s->token[t * s->coarse.k + i]] / tau - log(sum);
            kl += exp(ln_p) * (ln_p - ln_q);
            q_rest -= exp(ln_q);
        }
        kl += exp(s->rest[t]) * (s->rest[t] - log(q_rest));
    }
    return tau * tau * kl;
}

static void coarse_is_by_hand(void) {
    static stored s;
    for (int i = 0; i < 2; i++) {
        couple c;
        const double tau = i ? 2 : 1;
        if (!couple_open(&c, (setting){path_of(i), path_of(TEACHER), "ref", 6, 2, .pool = one_thread()})) return;
        store_teacher(&c, &s, BINS, tau);
        const dw_loss loss = {.coarse = &s.coarse, .temperature = tau};
        const dw_loss_sums got = gradients_of(&c, loss);
        const double wanted = coarse_kl(&c, &s, tau);
        CHECK(fabs(got.kl - wanted) < 1e-5 * wanted && got.n_kl == 12, "temperature %g: %.9g, by hand %.9g", tau,
              got.kl, wanted);
        check_differences(&c, loss, 1e-3, 1, "coarse");
        couple_close(&c);
    }
}

/* A coarse teacher that knows all 90 tokens is the teacher itself. */
static void coarse_may_be_whole(void) {
    static stored s;
    couple c;
    if (!couple_open(&c, (setting){path_of(1), path_of(TEACHER), "cpu", 6, 2, .pool = one_thread()})) return;
    store_teacher(&c, &s, 90, 1);
    const dw_loss_sums whole = gradients_of(&c, (dw_loss){.teacher = c.teacher});
    float *g = malloc(c.p.n_values * sizeof *g);
    memcpy(g, c.p.grad, c.p.n_values * sizeof *g);
    const dw_loss_sums got = gradients_of(&c, (dw_loss){.coarse = &s.coarse});
    CHECK(fabs(got.kl - whole.kl) < 1e-5 * whole.kl && nmse(c.p.grad, g, c.p.n_values) < 1e-9,
          "KL %.9g, of the teacher %.9g; gradients' NMSE %.1e", got.kl, whole.kl, nmse(c.p.grad, g, c.p.n_values));
    free(g);
    couple_close(&c);
}

static void coarse_cpu_is_ref(void) {
    static stored s;
    dw_loss_sums sums[2];
    float *g[2] = {0};
    for (int b = 0; b < 2; b++) {
        couple c;
        if (!couple_open(
                &c, (setting){path_of(0), path_of(TEACHER), b ? "cpu" : "ref", 6, 2, .precision = DW_PRECISION_SPLIT}))
            return;
        if (!b) store_teacher(&c, &s, BINS, 1.5);
        sums[b] = gradients_of(&c, (dw_loss){.coarse = &s.coarse, .temperature = 1.5});
        g[b] = malloc(c.p.n_values * sizeof *g[b]);
        memcpy(g[b], c.p.grad, c.p.n_values * sizeof *g[b]);
        if (b)
            CHECK(fabs(sums[1].kl - sums[0].kl) < 1e-5 * sums[0].kl && nmse(g[1], g[0], c.p.n_values) < 1e-9,
                  "KL %.9g, ref's %.9g; gradients' NMSE %.1e", sums[1].kl, sums[0].kl, nmse(g[1], g[0], c.p.n_values));
        couple_close(&c);
    }
    free(g[0]), free(g[1]);
}

/* ---- activations ----------------------------------------------------------------------------------------------- */

/* No architecture that is read has these activations yet, so the net's is changed.  Differences step over relu's
 * kinks. */
static void differences_act(void) {
    for (int act = 0; act < DW_N_ACTS; act++) {
        couple c;
        if (!couple_open(
                &c, (setting){path_of(0), path_of(TEACHER), "ref", 6, 2, .wanted = only_down, .pool = one_thread()}))
            return;
        dw_parameters_release(&c.p);
        c.session->net.act = (dw_act)act;
        dw_err err = {0};
        CHECK(!dw_parameters_new(&c.p, c.session, &(dw_trained){.wanted = any}, &err), "%s", err.text);
        check_differences(&c, (dw_loss){0}, act == DW_RELU ? 2e-2 : 1e-3, 1,
                          act == DW_RELU   ? "relu"
                          : act == DW_SILU ? "silu"
                                           : "gelu_tanh");
        if (act == DW_RELU) check_differences(&c, (dw_loss){.sparsity = 20, .first = 1}, 2e-2, 1, "relu, density");
        couple_close(&c);
    }
}

typedef struct gates { // act(g) of 6 tokens, 48 neurons, in two layers
    float r[2][6][48];
} gates;

static void keep_gates(void *ctx, const dw_tap_event *e) {
    if (e->point == DW_TAP_FFN_GATE) memcpy(((gates *)ctx)->r[e->layer], e->values, sizeof(float) * 6 * 48);
}

static void gates_of(const dw_model *m, const int32_t *token, gates *x) {
    dw_err err = {0};
    const dw_session_options o = {
        .pool = one_thread(), .backend = "ref", .n_ctx = 6, .n_batch = 6, .kv = DW_KV_CACHE_F32, .exact = true};
    dw_session *s = dw_session_new(m, &o, &err);
    CHECK(!dw_session_activation(s, "relu", &err), "%s", err.text);
    dw_session_set_tap(s, &(dw_tap){.points = 1u << DW_TAP_FFN_GATE, .fn = keep_gates, .ctx = x});
    CHECK(!dw_session_eval(s, &(dw_batch){.n_tokens = 6, .token = token}, &err), "%s", err.text);
    dw_session_free(s);
}

/* |r|_1 / (sqrt(n) |r|_2) of five tokens, in the mean over two layers; with kept values and without, which give the same
 * gradient. */
static void density_is_by_hand(void) {
    float *first = NULL;
    for (int keeps = 0; keeps < 2; keeps++) {
        couple c;
        static gates x;
        if (!couple_open(&c, (setting){path_of(0), path_of(TEACHER), "ref", 6, 1, .keeps = keeps, .pool = one_thread()}))
            return;
        c.session->net.act = DW_RELU;
        gates_of(c.model, c.token, &x);
        double sum = 0, open = 0;
        for (int l = 0; l < 2; l++)
            for (int t = 1; t < 6; t++) {
                double one = 0, two = 0;
                for (int i = 0; i < 48; i++) {
                    const double r = x.r[l][t][i];
                    one += r, two += r * r, open += (r > 0) / 48.0 / 2;
                }
                sum += one / sqrt(48 * two) / 2;
            }
        const dw_loss loss = {.sparsity = 3, .first = 1};
        const dw_loss_sums got = gradients_of(&c, loss);
        CHECK(fabs(got.density - sum) < 1e-5 * sum && fabs(got.open - open) < 1e-9 && got.n_density == 5 &&
                  fabs(got.loss - got.nll - 3 * sum) < 1e-4 * sum,
              "%.9g, %.9g open of %zu tokens, by hand %.9g, %.9g; loss %.9g, NLL %.9g", got.density, got.open,
              got.n_density, sum, open, got.loss, got.nll);
        const size_t bytes = c.p.n_values * sizeof *first;
        if (!keeps) first = memcpy(malloc(bytes), c.p.grad, bytes);
        else CHECK(!memcmp(first, c.p.grad, bytes), "kept values give another gradient");
        CHECK(fabs(loss_of(&c, loss) - got.loss) < 1e-9 * got.loss, "the loss alone differs");
        dw_parameters_zero_gradients(&c.p);
        dw_train_backward(c.train, &loss, 1, c.p.gradients, &(dw_loss_sums){0});
        CHECK(!memcmp(first, c.p.grad, bytes), "another gradient after the loss of the same pass");
        couple_close(&c);
    }
    free(first);
}

/* ---- cpu against ref ------------------------------------------------------------------------------------------- */

static const exp_shape wide[] = {
    {"wide", "qwen3", 2, 96, 208, 6, 2, 24, 300, true, 10000, 256}, // nothing is a multiple of a tile
    {"wide-teacher", "qwen2", 2, 64, 128, 2, 1, 32, 300, true, 10000, 256},
};

static const char *wide_path(int i, const char *type) {
    char name[64];
    snprintf(name, sizeof name, "back-%s-%s.gguf", wide[i].name, type);
    const char *path = test_file(name);
    if (!dw_file_exists(path)) write_random(path, &wide[i], type);
    return path;
}

static void check_cpu(dw_precision precision, dw_loss loss, int act, double bound) {
    couple a, b;
    const setting s = {wide_path(0, "F32"),   wide_path(1, "BF16"), "ref", 75, 9,
                       .precision = precision}; // 675 tokens: two groups
    setting fast = s;
    fast.backend = "cpu";
    if (!couple_open(&a, s) || !couple_open(&b, fast)) return;
    a.session->net.act = b.session->net.act = (dw_act)act;
    dw_loss with_a = loss, with_b = loss;
    with_a.teacher = a.teacher, with_b.teacher = b.teacher;
    const dw_loss_sums want = gradients_of(&a, with_a), got = gradients_of(&b, with_b);
    CHECK(fabs(got.loss - want.loss) <= sqrt(bound) * want.loss && fabs(got.kl - want.kl) <= sqrt(bound) * want.kl &&
              fabs(got.nll - want.nll) <= sqrt(bound) * want.nll,
          "loss %.9g, kl %.9g, nll %.9g; ref has %.9g, %.9g, %.9g", got.loss, got.kl, got.nll, want.loss, want.kl,
          want.nll);
    CHECK(want.n_kl == (size_t)(75 - loss.first) * 9 && want.n_nll == want.n_kl - 9, "%zu and %zu tokens", want.n_kl,
          want.n_nll);
    for (size_t i = 0; i < a.p.n; i++) {
        const dw_parameter *item = &a.p.item[i];
        const double error = nmse(b.p.grad + item->first, a.p.grad + item->first, item->n);
        CHECK(error <= bound, "%s: layer %d, weight %d: NMSE %.1e", dw_cpu_level(NULL), item->layer, item->which,
              error);
    }
    couple_close(&a);
    couple_close(&b);
}

/* Every level, and every activation at one of them. */
static void cpu_is_ref(void) {
    for (int level = 0; level < DW_N_LEVELS; level++) {
        if (!dw_level_usable((dw_level)level)) continue;
        setenv("DEADWOOD_CPU", dw_level_names[level], 1);
        for (int act = 0; act < DW_N_ACTS; act++)
            if (act == 0 || level == DW_PORTABLE)
                check_cpu(DW_PRECISION_SPLIT,
                          (dw_loss){.temperature = act == 1 ? 1.5 : 0, .ce = act == 2 ? 0.25 : 0, .first = act}, act,
                          1e-9);
    }
    unsetenv("DEADWOOD_CPU");
}

/* One BF16 of each number: products are off by 2e-3. */
static void rounded_is_near(void) {
    for (int level = 0; level < DW_N_LEVELS; level++) {
        if (!dw_level_usable((dw_level)level)) continue;
        setenv("DEADWOOD_CPU", dw_level_names[level], 1);
        if (dw_level_has_bf16((dw_level)level))
            check_cpu(DW_PRECISION_ROUNDED, (dw_loss){0}, DW_SILU, 1e-3);
        else if (level == DW_AVX2)
            check_cpu(DW_PRECISION_ROUNDED, (dw_loss){0}, DW_SILU, 1e-9);
    }
    unsetenv("DEADWOOD_CPU");
}

/* Packing the columns of a matrix gives the bytes of packing the rows of its transposed. */
static void check_turned(dw_level level, dw_gemm_form form, int n_tokens, int n) {
    const size_t values = (size_t)n_tokens * (size_t)n, bytes = dw_gemm_pack_bytes(n_tokens, n);
    float *x = malloc(values * sizeof *x), *turned = malloc(values * sizeof *x);
    uint8_t *packed[2] = {dw_alloc(bytes, 1, "a", NULL), dw_alloc(bytes, 1, "b", NULL)};
    dw_rng rng;
    dw_rng_seed(&rng, 9);
    for (int t = 0; t < n_tokens; t++)
        for (int i = 0; i < n; i++) turned[i * n_tokens + t] = x[t * n + i] = (float)dw_rng_normal(&rng);
    const dw_gemm_tokens rows = {.level = level, .form = form, .x = x, .ldx = (size_t)n, .n_tokens = n_tokens, .n = n};
    dw_gemm_tokens columns = rows;
    columns.x = turned;
    columns.ldx = (size_t)n_tokens;
    for (int i = 0; i < 3; i++) dw_gemm_pack(&rows, packed[0], i, 3);
    for (int i = 0; i < 2; i++) dw_gemm_pack_turned(&columns, packed[1], i, 2);
    CHECK(!memcmp(packed[0], packed[1], bytes), "%s, form %d, %d tokens of %d values", dw_level_names[level], form,
          n_tokens, n);
    free(x), free(turned), free(packed[0]), free(packed[1]);
}

static void turned_is_packed(void) {
    static const int sizes[][2] = {{1, 1}, {16, 32}, {37, 300}, {512, 511}};
    for (int i = 0; i < 4; i++)
        for (int level = 0; level < DW_AMX; level++)
            if (dw_level_usable((dw_level)level)) check_turned((dw_level)level, DW_GEMM_F32, sizes[i][0], sizes[i][1]);
#if defined(__x86_64__)
    if (!dw_level_usable(DW_AVX512) || !__builtin_cpu_supports("avx512bf16")) return; // packing needs no tiles
    for (int i = 0; i < 4; i++)
        for (int form = DW_GEMM_ROUNDED; form < DW_GEMM_F32; form++)
            check_turned(DW_AMX, (dw_gemm_form)form, sizes[i][0], sizes[i][1]);
#endif
}

/* c (m, n) of a (m, k) and b (n, k), with the rows of b packed (by_rows) or those of a; or a and b are stored
 * transposed. */
typedef struct factors {
    int m, n, k;
    float *a, *b, *at, *bt;
} factors;

static float *random_matrix(dw_rng *rng, int n_rows, int n, float **transposed) {
    const size_t size = (size_t)n_rows * (size_t)n;
    float *x = malloc(size * sizeof *x), *t = *transposed = malloc(size * sizeof *x);
    for (int r = 0; r < n_rows; r++)
        for (int i = 0; i < n; i++) t[i * n_rows + r] = x[r * n + i] = (float)dw_rng_normal(rng);
    return x;
}

static dw_tensor matrix_of(const float *x, int n_rows, int n) {
    return (dw_tensor){.name = "x",
                       .type = dw_qtype_get(DW_F32),
                       .n_dims = 2,
                       .ne = {(size_t)n, (size_t)n_rows, 1, 1},
                       .data = (const uint8_t *)x};
}

enum { FROM_TENSOR = 1, BY_ROWS = 2, TURNED = 4, N_WAYS = 8 };

static void multiply_factors(const factors *f, dw_level level, dw_gemm_form form, int way, bool add, float *c) {
    const bool by_rows = way & BY_ROWS, turned = way & TURNED;
    const float *packs = by_rows ? f->b : f->a, *packs_turned = by_rows ? f->bt : f->at;
    const int n_packed = by_rows ? f->n : f->m, n_rows = by_rows ? f->m : f->n;
    const dw_tensor tensor = matrix_of(packs, n_packed, f->k);
    const dw_tensor w = turned ? matrix_of(by_rows ? f->at : f->bt, f->k, n_rows)
                               : matrix_of(by_rows ? f->a : f->b, n_rows, f->k);
    uint8_t *packed = dw_alloc(dw_gemm_pack_bytes(n_packed, f->k), 1, "packed", NULL),
            *scratch = dw_alloc(DW_GEMM_SCRATCH, 1, "scratch", NULL);
    const dw_gemm_tokens tokens = {.level = level,
                                   .form = form,
                                   .x = turned ? packs_turned : packs,
                                   .ldx = (size_t)(turned ? n_packed : f->k),
                                   .n_tokens = n_packed,
                                   .n = f->k,
                                   .w = !turned && way & FROM_TENSOR ? &tensor : NULL};
    (turned ? dw_gemm_pack_turned : dw_gemm_pack)(&tokens, packed, 0, 1);
    (turned ? dw_gemm_columns : dw_gemm_rows)(&(dw_gemm_job){.level = level,
                                                             .form = form,
                                                             .w = &w,
                                                             .n_rows = n_rows,
                                                             .packed = packed,
                                                             .n_tokens = n_packed,
                                                             .y = c,
                                                             .ldy = (size_t)f->n,
                                                             .scratch = scratch,
                                                             .by_rows = by_rows,
                                                             .add = add});
    free(packed), free(scratch);
}

/* Every way gives the bits of the first; added to itself, twice the bits. */
static void check_ways(dw_level level, dw_gemm_form form, int m, int n, int k) {
    factors f = {m, n, k};
    const size_t size = (size_t)m * (size_t)n;
    float *first = malloc(size * sizeof *first), *c = malloc(size * sizeof *c);
    dw_rng rng;
    dw_rng_seed(&rng, 7);
    f.a = random_matrix(&rng, m, k, &f.at);
    f.b = random_matrix(&rng, n, k, &f.bt);
    multiply_factors(&f, level, form, 0, false, first);
    for (int way = 1; way < N_WAYS; way++) {
        bool same = true, twice = true;
        memset(c, 0xff, size * sizeof *c);
        multiply_factors(&f, level, form, way, false, c);
        for (size_t i = 0; i < size; i++) same = same && c[i] == first[i];
        multiply_factors(&f, level, form, way, true, c);
        for (size_t i = 0; i < size; i++) twice = twice && c[i] == 2 * first[i];
        CHECK(same && twice, "%s, form %d, way %d: (%d, %d) of %d", dw_level_names[level], form, way, m, n, k);
    }
    free(f.a), free(f.at), free(f.b), free(f.bt), free(first), free(c);
}

static void either_factor_is_packed(void) {
    static const int sizes[][3] = {{1, 1, 1}, {32, 64, 32}, {37, 70, 300}, {512, 33, 511}, {300, 512, 64}};
    for (int level = 0; level < DW_N_LEVELS; level++)
        for (int i = 0; dw_level_usable((dw_level)level) && i < 5; i++) {
            if (level < DW_AMX) check_ways((dw_level)level, DW_GEMM_F32, sizes[i][0], sizes[i][1], sizes[i][2]);
            if (dw_level_has_bf16((dw_level)level))
                check_ways((dw_level)level, DW_GEMM_ROUNDED, sizes[i][0], sizes[i][1], sizes[i][2]);
        }
}

/* ---- attention in BF16 ----------------------------------------------------------------------------------------- */

enum { HEADS = 3 }; // that share a KV head

typedef struct attention_values { // of one KV head
    int n, D;
    float *q, *k, *v, *dmix;            // random
    float *mix, *lse, *dq, *dk, *dv;    // results
} attention_values;

static float *normal_values(dw_rng *rng, size_t n) {
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)dw_rng_normal(rng);
    return x;
}

static attention_values attention_new(int n, int D) {
    dw_rng rng;
    dw_rng_seed(&rng, 21);
    const size_t kv = (size_t)n * (size_t)D, q = kv * HEADS;
    return (attention_values){n,
                              D,
                              normal_values(&rng, q),
                              normal_values(&rng, kv),
                              normal_values(&rng, kv),
                              normal_values(&rng, q),
                              malloc(q * sizeof(float)),
                              malloc((size_t)n * HEADS * sizeof(float)),
                              malloc(q * sizeof(float)),
                              malloc(kv * sizeof(float)),
                              malloc(kv * sizeof(float))};
}

static void attention_free(attention_values *a) {
    free(a->q), free(a->k), free(a->v), free(a->dmix), free(a->mix), free(a->lse);
    free(a->dq), free(a->dk), free(a->dv);
}

static void attend(attention_values *a, bool rounded, bool has_tiles) {
    const size_t bytes = dw_attend_back_scratch(a->n, a->D) * sizeof(float);
    uint8_t *scratch = dw_alloc(1, bytes + 64, "scratch", NULL);
    memset(scratch, 0xff, bytes); // NaN: whatever is read must be written
    dw_attend_back_job job = {.n = a->n, .head_dim = a->D, .n_group = HEADS, .q = a->q, .k = a->k, .v = a->v,
                              .ld = (size_t)(HEADS * a->D), .ld_kv = (size_t)a->D, .mix = a->mix, .lse = a->lse,
                              .ld_lse = HEADS, .scale = 1 / sqrtf((float)a->D), .scratch = (float *)(void *)scratch,
                              .has_tiles = has_tiles};
    (rounded ? dw_attend_rounded : dw_vec_back_portable.attend)(&job);
    job.dmix = a->dmix, job.dq = a->dq, job.dk = a->dk, job.dv = a->dv;
    memset(scratch, 0xff, bytes);
    (rounded ? dw_attend_back_rounded : dw_vec_back_portable.attend_back)(&job);
    for (size_t i = bytes; i < bytes + 64; i++)
        if (!CHECK(scratch[i] == 0, "written after the scratch: %d tokens of %d", a->n, a->D)) break;
    free(scratch);
}

static void check_attention(int n, int D, bool has_tiles) {
    attention_values want = attention_new(n, D), got = attention_new(n, D);
    const size_t kv = (size_t)n * (size_t)D, q = kv * HEADS, rows = (size_t)n * HEADS;
    attend(&want, false, false);
    attend(&got, true, has_tiles);
    const struct {
        const char *name;
        const float *want, *got;
        size_t n;
    } parts[] = {{"mix", want.mix, got.mix, q}, {"lse", want.lse, got.lse, rows}, {"dq", want.dq, got.dq, q},
                 {"dk", want.dk, got.dk, kv},   {"dv", want.dv, got.dv, kv}};
    for (int i = 0; i < 5 && n > 1; i++) // one token has no gradient of its scores
        CHECK(nmse(parts[i].got, parts[i].want, parts[i].n) <= 1e-4, "%s of %d tokens of %d, tiles %d: NMSE %.1e",
              parts[i].name, n, D, has_tiles, nmse(parts[i].got, parts[i].want, parts[i].n));
    CHECK(nmse(got.mix, want.mix, q) <= 1e-4 && nmse(got.dv, want.dv, kv) <= 1e-4, "%d tokens of %d", n, D);
    attention_free(&want);
    attention_free(&got);
}

/* A key and a value change no result of an earlier query. */
static void check_causal(int n, int D, bool has_tiles) {
    attention_values a = attention_new(n, D), b = attention_new(n, D);
    const size_t first = (size_t)(n / 2);
    for (size_t i = first * (size_t)D; i < (size_t)(n * D); i++) b.k[i] *= -2, b.v[i] += 3;
    attend(&a, true, has_tiles);
    attend(&b, true, has_tiles);
    CHECK(!memcmp(a.mix, b.mix, first * HEADS * (size_t)D * 4) && !memcmp(a.dq, b.dq, first * HEADS * (size_t)D * 4) &&
              memcmp(a.mix, b.mix, (size_t)n * HEADS * (size_t)D * 4),
          "%d tokens of %d, tiles %d", n, D, has_tiles);
    attention_free(&a);
    attention_free(&b);
}

static void rounded_attention(void) {
    static const int sizes[][2] = {{1, 8}, {5, 24}, {64, 64}, {75, 80}, {200, 64}, {130, 128}};
    for (int tiles = 0; tiles < 2; tiles++)
        for (int i = 0; dw_level_has_bf16(tiles ? DW_AMX : DW_AVX512) && i < 6; i++) {
            check_attention(sizes[i][0], sizes[i][1], tiles);
            if (sizes[i][0] > 1) check_causal(sizes[i][0], sizes[i][1], tiles);
        }
}

/* ---- what must be exact ---------------------------------------------------------------------------------------- */

/* A student that computes with the numbers of its teacher has no loss and no gradient, whatever the types of the
 * files. */
static void same_model_is_still(void) {
    static const char *const types[] = {"F32", "BF16", "Q8_0"};
    for (int i = 0; i < 6; i++) {
        couple c;
        if (!couple_open(
                &c, (setting){wide_path(0, types[i / 2]), wide_path(0, types[i / 2]), i % 2 ? "cpu" : "ref", 25, 2}))
            return;
        const dw_loss_sums sums = gradients_of(&c, (dw_loss){.teacher = c.teacher});
        double most = 0;
        for (size_t k = 0; k < c.p.n_values; k++) most = fmax(most, fabs((double)c.p.grad[k]));
        CHECK(sums.kl == 0 && most == 0, "%s %s: kl %g, largest gradient %g", types[i / 2], i % 2 ? "cpu" : "ref",
              sums.kl, most);
        couple_close(&c);
    }
}

/* The same bits with one and three threads. */
static void threads_do_not_matter(void) {
    couple c[2];
    dw_err err = {0};
    for (int i = 0; i < 2; i++)
        if (!couple_open(&c[i], (setting){wide_path(0, "F32"), wide_path(1, "F32"), "cpu", 75, 9,
                                          .pool = dw_pool_new(i ? 3 : 1, &err)}))
            return;
    for (int i = 0; i < 2; i++) {
        gradients_of(&c[i], (dw_loss){.teacher = c[i].teacher});
        dw_adamw_step(&c[i].p, &(dw_adamw){.rate = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1}, 1,
                      c[i].session->o.pool);
    }
    CHECK(!memcmp(c[0].p.grad, c[1].p.grad, c[0].p.n_values * 4) &&
              !memcmp(c[0].p.value, c[1].p.value, c[0].p.n_values * 4),
          "results depend on threads");
    for (int i = 0; i < 2; i++) {
        dw_pool *pool = c[i].session->o.pool;
        couple_close(&c[i]);
        dw_pool_free(pool);
    }
}

/* The forward pass of training and the session's own pass are the same function. */
static void logits_of_session(void) {
    for (int b = 0; b < 2; b++) {
        couple c;
        dw_err err = {0};
        if (!couple_open(&c, (setting){wide_path(0, "F32"), wide_path(1, "F32"), b ? "cpu" : "ref", 40, 1,
                                       .precision = DW_PRECISION_SPLIT}))
            return;
        const size_t n = 40 * 300;
        float *a = malloc(n * sizeof *a), *s = malloc(n * sizeof *s);
        uint8_t out[40];
        memset(out, 1, sizeof out);
        dw_session *session = dw_session_new(c.model,
                                             &(dw_session_options){.pool = two_threads(),
                                                                   .backend = b ? "cpu" : "ref",
                                                                   .n_ctx = 40,
                                                                   .n_out = 40,
                                                                   .kv = DW_KV_CACHE_F32,
                                                                   .exact = true},
                                             &err);
        CHECK(session && !dw_session_eval(session, &(dw_batch){.n_tokens = 40, .token = c.token, .out = out}, &err) &&
                  !dw_session_logits(session, 0, 40, s, &err),
              "%s", err.text);
        CHECK(!dw_train_forward(c.train, c.token, 1, &err), "%s", err.text);
        dw_train_logits(c.train, 0, 40, a);
        CHECK(nmse(a, s, n) <= 1e-10, "%s: NMSE %.1e", b ? "cpu" : "ref", nmse(a, s, n));
        free(a), free(s);
        dw_session_free(session);
        couple_close(&c);
    }
}

/* ---- taps ------------------------------------------------------------------------------------------------------ */

typedef struct seen {
    int n_out, n_neuron, last_layer;
    double taylor; // sum of a dL/da in layer 0
} seen;

static void look(void *ctx, const dw_grad_event *e) {
    seen *s = ctx;
    s->n_out += e->point == DW_GRAD_FFN_OUT && e->n == 32 && e->n_tokens == 12 && !e->values;
    s->n_neuron += e->point == DW_GRAD_NEURON && e->n == 48 && e->n_tokens == 12;
    s->last_layer = e->layer;
    if (e->point == DW_GRAD_NEURON && e->layer == 0)
        s->taylor = dot_of(e->grad, e->values, (size_t)e->n * (size_t)e->n_tokens);
}

/* sum a da over all neurons and tokens is also sum W dW of down, because both scale the FFN's output. */
static void taps_see_gradients(void) {
    couple c;
    seen s = {0};
    if (!couple_open(&c, (setting){path_of(0), path_of(TEACHER), "ref", 6, 2, .wanted = only_down})) return;
    dw_train_set_tap(c.train, &(dw_grad_tap){look, &s});
    gradients_of(&c, (dw_loss){.teacher = c.teacher});
    CHECK(s.n_out == 2 && s.n_neuron == 2 && s.last_layer == 0 && c.p.n == 2, "%d, %d, %d, %zu", s.n_out, s.n_neuron,
          s.last_layer, c.p.n);
    const double down = dot_of(c.p.value, c.p.grad, c.p.item[0].n);
    CHECK(fabs(down - s.taylor) <= 1e-5 * fabs(down), "sum a da %.9g, sum W dW %.9g", s.taylor, down);
    couple_close(&c);
}

/* ---- AdamW ----------------------------------------------------------------------------------------------------- */

/* Two steps by hand for two values of a matrix (g = 3, -4, then 0.3, 0.4) with rate 0.1, b1 0.9, b2 0.99, decay 0.5,
 * clip 1:
 *   step 1: |g| = 5, so g = 0.6, -0.8;  m = 0.06, -0.08;  v = 0.0036, 0.0064;
 *           m / 0.1 = 0.6, -0.8;  v / 0.01 = 0.36, 0.64;  w = w - 0.1 (1, -1) - 0.05 w: 2 becomes 1.8, 1 becomes 1.05
 *   step 2: |g| = 0.5;  m = 0.084, -0.032;  v = 0.003564 + 0.0009, 0.006336 + 0.0016;  m / 0.19;  v / 0.0199;
 *           w = w - 0.1 m' / sqrt(v') - 0.05 w */
static void adamw_by_hand(void) {
    couple c;
    if (!couple_open(&c, (setting){path_of(0), path_of(TEACHER), "ref", 6, 2, .wanted = only_down})) return;
    const dw_adamw o = {.rate = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 0, .decay = 0.5, .clip = 1};
    float *w = c.p.value, *g = c.p.grad;
    memset(g, 0, c.p.n_values * sizeof *g);
    for (size_t i = 0; i < c.p.n_values; i++) c.p.square[i] = 1; // elsewhere nothing is divided by 0
    c.p.square[0] = c.p.square[1] = 0;
    w[0] = 2, w[1] = 1, g[0] = 3, g[1] = -4;
    CHECK(fabs(dw_adamw_step(&c.p, &o, 1, two_threads()) - 5) < 1e-6 && fabs(w[0] - 1.8) < 1e-6 &&
              fabs(w[1] - 1.05) < 1e-6,
          "%.9g %.9g", w[0], w[1]);
    g[0] = 0.3f, g[1] = 0.4f;
    dw_adamw_step(&c.p, &o, 2, two_threads());
    const double first = 0.95 * 1.8 - 0.1 * (0.084 / 0.19) / sqrt(0.004464 / 0.0199),
                 second = 0.95 * 1.05 + 0.1 * (0.032 / 0.19) / sqrt(0.007936 / 0.0199);
    CHECK(fabs(w[0] - first) < 1e-6 && fabs(w[1] - second) < 1e-6, "%.9g %.9g, by hand %.9g %.9g", w[0], w[1], first,
          second);
    couple_close(&c);
}

static void adamw_refuses_nan(void) {
    couple c;
    if (!couple_open(&c, (setting){path_of(0), path_of(TEACHER), "ref", 6, 2, .wanted = only_down})) return;
    const float before = c.p.value[0];
    c.p.grad[0] = 1;
    c.p.grad[1] = NAN;
    CHECK(!isfinite(
              dw_adamw_step(&c.p, &(dw_adamw){.rate = 1, .beta1 = 0.9, .beta2 = 0.9, .eps = 1e-8}, 1, two_threads())) &&
              c.p.value[0] == before && c.p.mean[0] == 0,
          "%g became %g", before, c.p.value[0]);
    couple_close(&c);
}

static void schedule(void) {
    CHECK(fabs(dw_cosine(0, 100, 0.05, 0) - 0.2) < 1e-12 &&
              fabs(dw_cosine(4, 100, 0.05, 0) - 0.5 * (1 + cos(M_PI * 0.04))) < 1e-12,
          "warm-up");
    CHECK(fabs(dw_cosine(50, 100, 0.05, 0) - 0.5) < 1e-12 && fabs(dw_cosine(50, 100, 0.05, 0.1) - 0.55) < 1e-12 &&
              dw_cosine(0, 1, 0.05, 0) == 1,
          "cosine");
}

/* ---- kept values ----------------------------------------------------------------------------------------------- */

static void check_kept(const char *path, const char *backend, const char *what) {
    couple again, kept;
    const setting s = {path, path_of(TEACHER), backend, 6, 2, .pool = one_thread()};
    setting keeps = s;
    keeps.keeps = true;
    if (!couple_open(&again, s) || !couple_open(&kept, keeps)) return;
    for (int pass = 0; pass < 2; pass++) { // what a pass has kept does not meet the next
        const dw_loss_sums a = gradients_of(&again, (dw_loss){0}), b = gradients_of(&kept, (dw_loss){0});
        CHECK(a.loss == b.loss && a.loss > 0, "%s, %s: loss %g and %g", what, backend, a.loss, b.loss);
        CHECK(!memcmp(again.p.grad, kept.p.grad, again.p.n_values * sizeof *kept.p.grad), "%s, %s: other gradients",
              what, backend);
        again.token[2] = kept.token[2] = 7;
    }
    couple_close(&again);
    couple_close(&kept);
}

static void kept_values(void) {
    static const char *const names[] = {"tiny-deci", "tiny-openelm"}, *const backends[] = {"ref", "cpu"};
    for (int b = 0; b < 2; b++) {
        for (int s = 0; s < N_SHAPES; s++) check_kept(path_of(s), backends[b], shapes[s].name);
        for (int i = 0; i < 2; i++) check_kept(random_model(names[i], "F32", 0), backends[b], names[i]);
    }
}

/* ---- refusals -------------------------------------------------------------------------------------------------- */

static void refusals(void) {
    couple c;
    if (!couple_open(&c, (setting){path_of(0), path_of(TEACHER), "ref", 6, 2, .wanted = only_down})) return;
    dw_err err = {0};
    c.token[3] = 90;
    CHECK(dw_train_forward(c.train, c.token, 2, &err) && strstr(err.text, "token 3 of the pass is 90"), "%s", err.text);
    err.text[0] = 0;
    CHECK(dw_train_forward(c.train, c.token, 3, &err) && strstr(err.text, "3 windows"), "%s", err.text);
    err.text[0] = 0;
    CHECK(!dw_train_new(c.session, &(dw_train_options){.n_ctx = 1}, &err) && strstr(err.text, "out of range"), "%s",
          err.text);
    const size_t memory = dw_train_memory(c.session, &(dw_train_options){.n_ctx = 6}),
                 kept = dw_train_memory(c.session, &(dw_train_options){.n_ctx = 6, .keep_values = true});
    CHECK(memory > 10000 && kept > memory, "memory of %zu and %zu bytes", memory, kept);
    couple_close(&c);
}

static const test_case cases[] = {
    {"KL: finite differences agree with every kind of gradient, with and without biases, q/k norms, tied embeddings",
     differences_kl},
    {"cross entropy: finite differences agree with every kind of gradient", differences_ce},
    {"residuals beside the teacher's: finite differences agree, also with fewer layers than it", differences_hidden},
    {"residuals beside the teacher's: the error by the session's own residuals", hidden_is_by_hand},
    {"stored predictions: KL by hand, and finite differences agree, at temperatures 1 and 2", coarse_is_by_hand},
    {"stored predictions of the whole vocabulary are the teacher", coarse_may_be_whole},
    {"stored predictions: cpu's loss and gradients are ref's", coarse_cpu_is_ref},
    {"low-rank additions: finite differences agree with the gradients of both factors", differences_low_rank},
    {"rounded matrices: W = decode(encode(V)) after every step, dV = dW", rounded_is_derived},
    {"low-rank additions: the session computes with W0 + 2 B A", low_rank_is_merged},
    {"layers of unequal widths and heads: finite differences agree", differences_unequal},
    {"KL at temperature 2 with 0.3 of cross entropy: finite differences agree", differences_mixed},
    {"oracles' architectures: finite differences agree", differences_oracles},
    {"silu, gelu_tanh and relu, also with the gates' density: finite differences agree", differences_act},
    {"density of the gates by hand, and the share of open ones", density_is_by_hand},
    {"cpu's losses and gradients are ref's at every level: NMSE within 1e-9", cpu_is_ref},
    {"cpu rounded to BF16: gradients' NMSE within 1e-3", rounded_is_near},
    {"columns are packed as the rows of the transposed matrix, in every form", turned_is_packed},
    {"a product has the same bits whichever factor is packed, and however both are stored", either_factor_is_packed},
    {"attention in BF16 is F32's, forward and backward: NMSE within 1e-4, and later tokens change nothing",
     rounded_attention},
    {"a student that is its teacher has KL 0 and gradient 0, exactly", same_model_is_still},
    {"gradients and steps are the same bits with 1 and 3 threads", threads_do_not_matter},
    {"layers' values that are kept give the same bits as those computed again", kept_values},
    {"the training pass has the session's logits", logits_of_session},
    {"taps see gradients by neurons and by the FFN's output", taps_see_gradients},
    {"AdamW: two steps with clipping and decay are those by hand", adamw_by_hand},
    {"AdamW: a step with a gradient that is NaN changes nothing", adamw_refuses_nan},
    {"the schedule: warm-up and cosine", schedule},
    {"refused: tokens outside the vocabulary, too many windows, sizes out of range", refusals},
    {0}};
TEST_MAIN(cases)
