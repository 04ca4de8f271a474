/* test_layers.c - a net is a value: layers run one by one on a residual of the caller, tensors that are replaced,
 * parts of the state that are given and taken, a context that costs nothing before it is used. */
#include "backends/gate_decide.h"
#include "backends/kernels_vec.h"
#include "build.h"
#include "model/session.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { N = 21 };

static const char *const backends[] = {"ref", "cpu"};
static const char *const shapes[] = {"tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-deci", "tiny-openelm", NULL};

typedef struct run {
    dw_model *model;
    dw_session *session;
    const dw_hparams *hp;
    int32_t token[N];
    uint8_t out[N];
    dw_batch batch; // N tokens, all of them output rows
} run;

static bool open_session(run *r, dw_session_options o) {
    dw_err err = {0};
    o.pool = two_threads();
    if (!o.n_ctx) o.n_ctx = 64;
    o.n_out = N;
    r->session = dw_session_new(r->model, &o, &err);
    return CHECK(r->session, "%s", err.text);
}

static bool open_run(run *r, const char *path, dw_session_options o) {
    dw_err err = {0};
    *r = (run){.model = dw_model_open(path, &err)};
    if (!CHECK(r->model, "%s", err.text)) return false;
    r->hp = dw_model_hparams(r->model);
    random_tokens(r->token, N, r->hp->n_vocab, 3);
    memset(r->out, 1, sizeof r->out);
    r->batch = (dw_batch){.n_tokens = N, .token = r->token, .out = r->out};
    return open_session(r, o);
}

static void close_run(run *r) {
    dw_session_free(r->session);
    dw_model_close(r->model);
}

static size_t n_logits(const run *r) { return (size_t)N * (size_t)r->hp->n_vocab; }
static size_t n_residual(const run *r) { return (size_t)N * (size_t)r->hp->n_embd; }

static float *fetch(run *r) {
    dw_err err = {0};
    float *logits = calloc(n_logits(r), sizeof *logits);
    CHECK(!dw_session_logits(r->session, 0, N, logits, &err), "%s", err.text);
    return logits;
}

static float *whole_pass(run *r) {
    dw_err err = {0};
    dw_session_rewind(r->session, 0, 0);
    CHECK(!dw_session_eval(r->session, &r->batch, &err), "%s", err.text);
    return fetch(r);
}

static bool same_logits(const float *a, const float *b, const run *r) { return !memcmp(a, b, n_logits(r) * sizeof *a); }

/* ---- ranges of layers -------------------------------------------------------------------------------------------- */

/* Layers before k once; then layer k and what follows it, twice, from copies of the residual. */
static void range_at(run *r, int k, const float *whole, const char *what) {
    dw_err err = {0};
    const size_t bytes = n_residual(r) * sizeof(float);
    float *before = malloc(bytes), *x = malloc(bytes);
    CHECK(!dw_session_embed(r->session, &r->batch, before, &err) &&
              !dw_session_layers(r->session, &r->batch, 0, k, before, &err),
          "%s", err.text);
    for (int again = 0; again < 2; again++) {
        memcpy(x, before, bytes);
        CHECK(!dw_session_layers(r->session, &r->batch, k, k + 1, x, &err) &&
                  !dw_session_layers(r->session, &r->batch, k + 1, r->hp->n_layer, x, &err) &&
                  !dw_session_head(r->session, &r->batch, x, &err),
              "%s", err.text);
        float *logits = fetch(r);
        CHECK(same_logits(logits, whole, r), "%s, layer %d, time %d: other logits than of the whole pass, NMSE %.1e",
              what, k, again, nmse(logits, whole, n_logits(r)));
        free(logits);
    }
    free(before), free(x);
}

static void range_is_whole(void) {
    static const char *const types[] = {"F32", "Q8_0"};
    for (int b = 0; b < 2; b++)
        for (int s = 0; shapes[s]; s++)
            for (int n_batch = 512; n_batch >= 5; n_batch -= 507) {
                run r;
                char what[96];
                const char *type = types[s % 2];
                snprintf(what, sizeof what, "%s, %s %s, passes of %d", backends[b], shapes[s], type, n_batch);
                if (!open_run(&r, random_model(shapes[s], type, 0),
                              (dw_session_options){.backend = backends[b], .exact = true, .n_batch = n_batch}))
                    return;
                float *whole = whole_pass(&r);
                for (int k = 0; k < r.hp->n_layer; k++) range_at(&r, k, whole, what);
                CHECK(dw_session_n_past(r.session, 0) == N, "n_past does not move");
                free(whole);
                close_run(&r);
            }
}

typedef struct seen {
    int n_residual, n_neuron, first, last;
} seen;

static void look(void *ctx, const dw_tap_event *e) {
    seen *s = ctx;
    s->n_residual += e->point == DW_TAP_RESIDUAL;
    s->n_neuron += e->point == DW_TAP_FFN_NEURON;
    if (e->layer < s->first) s->first = e->layer;
    if (e->layer > s->last) s->last = e->layer;
}

static void taps_see_the_range(void) {
    run r;
    dw_err err = {0};
    seen s = {.first = 99};
    if (!open_run(&r, random_model("tiny-llama", "F32", 0), (dw_session_options){0})) return;
    float *x = calloc(n_residual(&r), sizeof *x);
    dw_session_set_tap(r.session,
                       &(dw_tap){.points = 1u << DW_TAP_RESIDUAL | 1u << DW_TAP_FFN_NEURON, .fn = look, .ctx = &s});
    CHECK(!dw_session_layers(r.session, &r.batch, 1, 3, x, &err), "%s", err.text);
    CHECK(s.first == 1 && s.last == 2 && s.n_residual == 2 && s.n_neuron == 2, "layers %d to %d, %d residuals", s.first,
          s.last, s.n_residual);
#ifndef DW_DEBUG // in builds with checks these end the program
    dw_session_set_tap(r.session, &(dw_tap){.points = 1u << DW_TAP_RESIDUAL}); // no function: no tap
    CHECK(!dw_session_layers(r.session, &r.batch, 1, 3, x, &err), "%s", err.text);
    dw_session_rewind(r.session, -1, 0);
    dw_session_rewind(r.session, 1, 0);
    CHECK(dw_session_n_past(r.session, 1) == 0);
#endif
    free(x);
    close_run(&r);
}

static void bad_ranges(void) {
    run r;
    if (!open_run(&r, random_model("tiny-llama", "F32", 0), (dw_session_options){.n_ctx = N})) return;
    float *x = calloc(n_residual(&r), sizeof *x);
    static const struct {
        int first, end;
        const char *says;
    } bad[] = {{-1, 2, "layers -1 to 1"}, {2, 1, "layers 2 to 0"}, {0, 5, "the model has 4"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dw_err err = {0};
        CHECK(dw_session_layers(r.session, &r.batch, bad[i].first, bad[i].end, x, &err) == -1, "%d to %d", bad[i].first,
              bad[i].end);
        check_sentence(&err, bad[i].says, "range");
    }
    dw_err err = {0};
    int32_t pos[N];
    for (int i = 0; i < N; i++) pos[i] = i + 1;
    r.batch.pos = pos;
    CHECK(dw_session_layers(r.session, &r.batch, 0, 1, x, &err) == -1);
    check_sentence(&err, "the context of 21 positions is full", "positions");
    free(x);
    close_run(&r);
}

/* ---- replaced tensors -------------------------------------------------------------------------------------------- */

/* Random values in the type of a tensor, or F32; free() the data. */
static dw_tensor another(const dw_tensor *t, bool f32) {
    dw_rng rng;
    dw_tensor a = *t;
    if (f32) a.type = dw_qtype_get(DW_F32);
    a.n_bytes = a.ne[1] * dw_tensor_row_bytes(&a);
    uint8_t *data = malloc(a.n_bytes);
    float *row = malloc(a.ne[0] * sizeof *row);
    dw_rng_seed(&rng, 11);
    for (size_t r = 0; r < a.ne[1]; r++) {
        for (size_t i = 0; i < a.ne[0]; i++)
            row[i] = (float)((a.ne[1] == 1) + 0.1 * dw_rng_normal(&rng)); // vectors about 1
        a.type->encode(row, data + r * dw_tensor_row_bytes(&a), a.ne[0], NULL);
    }
    free(row);
    a.data = data;
    return a;
}

/* The file `from`, but with `t` under its name. */
static void write_with(const char *from, const char *path, const dw_tensor *t) {
    dw_err err = {0};
    dw_gguf *g = dw_gguf_open(from, &err);
    dw_gguf_writer *w = g ? dw_gguf_writer_new(path, &err) : NULL;
    REQUIRE(w, "%s", err.text);
    dw_gguf_set_keys(w, g);
    for (int write = 0; write < 2; write++) {
        for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
            const dw_tensor *own = dw_gguf_tensor(g, i), *use = strcmp(own->name, t->name) ? own : t;
            if (write) dw_gguf_write(w, use->data, use->n_bytes, &err);
            else dw_gguf_add_tensor(w, use->name, use->type, use->n_dims, use->ne);
        }
        if (!write) dw_gguf_begin(w, &err);
    }
    CHECK(!dw_gguf_commit(w, &err), "%s", err.text);
    dw_gguf_writer_free(w);
    dw_gguf_close(g);
}

static const struct {
    dw_weight which;
    const char *name;
} weights[] = {{DW_W_DOWN, "blk.1.ffn_down.weight"},     {DW_W_O, "blk.1.attn_output.weight"},
               {DW_W_Q, "blk.1.attn_q.weight"},          {DW_W_K, "blk.1.attn_k.weight"},
               {DW_W_V, "blk.1.attn_v.weight"},          {DW_W_GATE, "blk.1.ffn_gate.weight"},
               {DW_W_UP, "blk.1.ffn_up.weight"},         {DW_W_ATTN_NORM, "blk.1.attn_norm.weight"},
               {DW_W_FFN_NORM, "blk.1.ffn_norm.weight"}, {DW_W_Q_BIAS, "blk.1.attn_q.bias"},
               {DW_W_V_BIAS, "blk.1.attn_v.bias"},       {DW_W_Q_NORM, "blk.1.attn_q_norm.weight"},
               {DW_W_TOKEN_EMBD, "token_embd.weight"},   {DW_W_OUTPUT, "output.weight"},
               {DW_W_OUTPUT_NORM, "output_norm.weight"}};

static void compare_replaced(run *r, const char *path, size_t i, bool f32, const char *what) {
    dw_err err = {0};
    const dw_tensor *own = dw_gguf_find_tensor(dw_model_gguf(r->model), weights[i].name);
    if (!own || (weights[i].which == DW_W_TOKEN_EMBD && r->hp->tied)) return;
    dw_tensor t = another(own, f32);
    write_with(path, test_file("replaced.gguf"), &t);
    run other;
    float *before = whole_pass(r), *expected = NULL;
    if (open_run(&other, test_file("replaced.gguf"), (dw_session_options){.backend = r->session->o.backend,
                                                            .exact = true})) expected = whole_pass(&other);
    CHECK(!dw_session_replace(r->session, 1, weights[i].which, &t, &err), "%s", err.text);
    float *replaced = whole_pass(r);
    CHECK(expected && same_logits(replaced, expected, r), "%s, %s%s: the session differs from the file", what,
          weights[i].name, f32 ? " as F32" : "");
    CHECK(!same_logits(replaced, before, r), "%s, %s: nothing was replaced", what, weights[i].name);
    CHECK(!dw_session_replace(r->session, 1, weights[i].which, NULL, &err), "%s", err.text);
    float *restored = whole_pass(r);
    CHECK(same_logits(restored, before, r), "%s, %s: not as before", what, weights[i].name);
    free(before), free(expected), free(replaced), free(restored), free((void *)(uintptr_t)t.data);
    close_run(&other);
}

static void replaced_is_file(void) {
    static const struct {
        const char *shape, *type;
    } cases[] = {{"tiny-qwen2", "Q4_0"}, {"tiny-qwen3", "BF16"}, {"tiny-llama", "Q8_0"}};
    for (int b = 0; b < 2; b++)
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            run r;
            const char *path = random_model(cases[c].shape, cases[c].type, 0);
            if (!open_run(&r, path, (dw_session_options){.backend = backends[b], .exact = true})) return;
            for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
                for (int f32 = 0; f32 < 2; f32++) {
                    char what[64];
                    snprintf(what, sizeof what, "%s, %s %s", backends[b], cases[c].shape, cases[c].type);
                    compare_replaced(&r, path, i, f32, what);
                }
            close_run(&r);
        }
}

/* One session's change is no other session's, and decoding uses it too; a bias that the model lacks is one more
 * term. */
static void own_copy(void) {
    run a, b;
    dw_err err = {0};
    if (!open_run(&a, random_model("tiny-llama", "Q8_0", 0), (dw_session_options){0})) return;
    b = a;
    if (!open_session(&b, (dw_session_options){0})) return;
    float *before = whole_pass(&b), bias[64];
    for (int i = 0; i < 64; i++) bias[i] = 0.5f;
    const dw_tensor t = {.name = "b", .type = dw_qtype_get(DW_F32), .n_dims = 1, .ne = {64, 1, 1, 1},
                         .data = (const uint8_t *)bias, .n_bytes = sizeof bias};
    CHECK(!dw_session_replace(a.session, 2, DW_W_DOWN_BIAS, &t, &err), "%s", err.text);
    float *changed = whole_pass(&a), *after = whole_pass(&b);
    CHECK(!same_logits(changed, before, &a) && same_logits(after, before, &b), "the sessions are not apart");
    memset(bias, 0, sizeof bias); // borrowed: new values count at once
    float *zero = whole_pass(&a);
    CHECK(nmse(zero, before, n_logits(&a)) < 1e-12, "a bias of zeros is none");
    free(before), free(changed), free(after), free(zero);
    dw_session_free(b.session);
    close_run(&a);
}

static void bad_replacements(void) {
    run r;
    if (!open_run(&r, random_model("tiny-llama", "Q8_0", 0), (dw_session_options){0})) return;
    static float values[64 * 128];
    const dw_qtype_row *f32 = dw_qtype_get(DW_F32), *f16 = dw_qtype_get(DW_F16), *q4_k = dw_qtype_get(DW_Q4_K);
    const struct {
        int layer;
        dw_weight which;
        const dw_qtype_row *type;
        size_t n, rows;
        const char *says;
    } bad[] = {{1, DW_W_DOWN, f32, 64, 128, "shape [64, 128] was given, expected [128, 64]"},
               {4, DW_W_DOWN, f32, 128, 64, "layer 4"},
               {-1, DW_W_O, f32, 64, 64, "layer -1"},
               {0, DW_W_FFN_NORM, f16, 64, 1, "vectors are F32"},
               {0, DW_W_GATE, q4_k, 64, 128, "rows of 64 values"},
               {0, DW_W_DOWN_T, f32, 64, 128, "not gated"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dw_err err = {0};
        const dw_tensor t = {
            .name = "t", .type = bad[i].type, .ne = {bad[i].n, bad[i].rows, 1, 1}, .data = (const uint8_t *)values};
        CHECK(dw_session_replace(r.session, bad[i].layer, bad[i].which, &t, &err) == -1, "case %zu", i);
        check_sentence(&err, bad[i].says, "replacement");
    }
    close_run(&r);
}

/* A gated layer holds down twice: both must be replaced. */
static void gated_down(void) {
    run r;
    dw_err err = {0}, why = {0};
    static const gated_file o = {.group = 8};
    write_gated(random_model("tiny-llama", "F32", 0), test_file("gated.gguf"), &o);
    if (!open_run(&r, test_file("gated.gguf"), (dw_session_options){.exact = true})) return;
    const dw_layer *w = &r.model->net.layer[1];
    dw_tensor down = another(&w->down, false), down_t = another(&w->sparse.down_t, false);
    for (size_t i = 0; i < down.ne[1]; i++)
        for (size_t j = 0; j < down.ne[0]; j++)
            ((float *)(uintptr_t)down_t.data)[j * down.ne[1] + i] =
                ((const float *)(const void *)down.data)[i * down.ne[0] + j];
    CHECK(dw_session_replace(r.session, 1, DW_W_DOWN, &down, &why) == -1);
    check_sentence(&why, "replace that one first", "down");
    const dw_layer *mine = &r.session->net.layer[1];
    CHECK(dw_down_is_copy(mine) && !dw_session_replace(r.session, 1, DW_W_DOWN_T, &down_t, &err), "%s", err.text);
    CHECK(!dw_down_is_copy(mine), "down is still the model's, so it does not serve for its copy");
    CHECK(!dw_session_replace(r.session, 1, DW_W_DOWN, &down, &err) && dw_down_is_copy(mine), "%s", err.text);
    float *gated = whole_pass(&r);
    err = (dw_err){0};
    CHECK(dw_session_replace(r.session, 1, DW_W_DOWN_T, NULL, &err) && strstr(err.text, "restore it before"), "%s",
          err.text);
    err = (dw_err){0};
    CHECK(!dw_session_replace(r.session, 1, DW_W_DOWN, NULL, &err) &&
              !dw_session_replace(r.session, 1, DW_W_DOWN_T, NULL, &err),
          "%s", err.text);
    dw_session_free(r.session);
    if (!open_session(&r, (dw_session_options){.exact = true, .select = DW_SELECT_DENSE})) return;
    CHECK(!dw_session_replace(r.session, 1, DW_W_DOWN, &down, &err), "%s", err.text);
    float *dense = whole_pass(&r);
    CHECK(nmse(gated, dense, n_logits(&r)) < 1e-8, "NMSE %.1e",
          nmse(gated, dense, n_logits(&r))); // threshold 0: all open
    free(gated), free(dense), free((void *)(uintptr_t)down.data), free((void *)(uintptr_t)down_t.data);
    close_run(&r);
}

/* ---- the state --------------------------------------------------------------------------------------------------- */

/* Keys and values of one session, put into another, which goes on there. */
static void state_moves(void) {
    for (int b = 0; b < 2; b++)
        for (dw_kv_cache kv = DW_KV_CACHE_F16; kv <= DW_KV_CACHE_F32; kv++) {
            run a, c;
            dw_err err = {0};
            const dw_session_options o = {.backend = backends[b], .exact = true, .kv = kv, .n_seq = 2};
            if (!open_run(&a, random_model("tiny-deci", "F32", 0), o)) return;
            c = a;
            if (!open_session(&c, o)) return;
            free(whole_pass(&a));
            const dw_backend *backend = a.session->backend;
            float *values = calloc((size_t)a.hp->n_head_kv_max * N * (size_t)a.hp->head_dim, sizeof *values);
            for (int l = 0; l < a.hp->n_layer; l++)
                for (dw_part part = DW_PART_K; part <= DW_PART_V; part++) {
                    const dw_place from = {part, l, 0, 0, N}, to = {part, l, 1, 0, N};
                    CHECK(!backend->get(a.session->state, from, values, &err) &&
                              !backend->put(c.session->state, to, values, &err),
                          "%s", err.text);
                }
            const int32_t token = 5, seq = 1, pos = N;
            float *x = calloc(2 * (size_t)a.hp->n_embd, sizeof *x), *y = x + a.hp->n_embd;
            const dw_batch one = {.n_tokens = 1, .token = &token, .pos = &pos}, same = {.n_tokens = 1, .token = &token,
                                                            .seq = &seq, .pos = &pos};
            CHECK(!dw_session_embed(a.session, &one, x, &err) &&
                      !dw_session_layers(a.session, &one, 0, a.hp->n_layer, x, &err),
                  "%s", err.text);
            CHECK(!dw_session_embed(c.session, &same, y, &err) &&
                      !dw_session_layers(c.session, &same, 0, a.hp->n_layer, y, &err),
                  "%s", err.text);
            CHECK(!memcmp(x, y, (size_t)a.hp->n_embd * sizeof *x),
                  "%s: the cache that was moved gives another residual", backends[b]);
            CHECK(backend->get(a.session->state, (dw_place){DW_PART_K, 0, 0, 60, 5}, values, &err) == -1);
            check_sentence(&err, "there are 64", "rows beyond the context");
            free(values), free(x);
            dw_session_free(c.session);
            close_run(&a);
        }
}

/* A layer's keys or values, (KV heads, N, head_dim). */
static float *cache_of(const run *r, dw_part part, int l) {
    dw_err err = {0};
    float *values = calloc((size_t)r->hp->n_head_kv_max * N * (size_t)r->hp->head_dim, sizeof *values);
    CHECK(!r->session->backend->get(r->session->state, (dw_place){part, l, 0, 0, N}, values, &err), "%s", err.text);
    return values;
}

/* The first layer's keys and values are those of F32, rounded to Q8_0 by its definition; the logits follow. */
static void cache_in_blocks(void) {
    const dw_qtype_row *q8_0 = dw_qtype_get(DW_Q8_0);
    for (int b = 0; b < 2; b++) {
        run r[2];
        float *logits[2];
        for (int i = 0; i < 2; i++) {
            const dw_session_options o = {
                .backend = backends[b], .exact = true, .kv = i ? DW_KV_CACHE_Q8_0 : DW_KV_CACHE_F32};
            if (!open_run(&r[i], random_model("tiny-qwen3", "F32", 0), o)) return;
            logits[i] = whole_pass(&r[i]);
        }
        for (dw_part part = DW_PART_K; part <= DW_PART_V; part++) {
            const size_t n = (size_t)r->hp->n_head_kv[0] * N * (size_t)r->hp->head_dim;
            float *f32 = cache_of(&r[0], part, 0), *blocks = cache_of(&r[1], part, 0);
            uint8_t *bytes = malloc(dw_qtype_row_bytes(q8_0, n));
            q8_0->encode(f32, bytes, n, NULL);
            q8_0->decode(bytes, f32, n);
            CHECK(!memcmp(f32, blocks, n * sizeof *f32), "%s: the cache is not the rounded one", backends[b]);
            free(bytes), free(f32), free(blocks);
        }
        const double error = nmse(logits[1], logits[0], n_logits(r));
        CHECK(error > 0 && error < 1e-4, "%s: NMSE %.1e", backends[b], error);
        float values[64] = {1, 2, NAN};
        const dw_place at = {DW_PART_K, 0, 0, 0, 1};
        dw_err err = {0};
        CHECK(!r[1].session->backend->put(r[1].session->state, at, values, &err) &&
                  !r[1].session->backend->get(r[1].session->state, at, values, &err) && isnan(values[0]) &&
                  values[32] == 0,
              "a block with a NaN is NaN");
        for (int i = 0; i < 2; i++) free(logits[i]), close_run(&r[i]);
    }
    run r;
    dw_err err = {0};
    if (!open_run(&r, random_model("tiny-llama", "F32", 0), (dw_session_options){0})) return;
    CHECK(!dw_session_new(r.model, &(dw_session_options){.pool = two_threads(), .kv = DW_KV_CACHE_Q8_0}, &err));
    check_sentence(&err, "the heads of this model have 16", "heads of half a block");
    close_run(&r);
}

/* The table of rope grows in blocks: crossing them one token at a time gives what one pass gives. */
static void long_context(void) {
    enum { LONG = 600 };
    run r;
    dw_err err = {0};
    struct rusage before, after;
    if (!open_run(&r, random_model("tiny-llama", "F32", 0), (dw_session_options){.exact = true, .n_ctx = LONG})) return;
    int32_t token[LONG];
    random_tokens(token, LONG, r.hp->n_vocab, 8);
    float *whole = calloc(2 * (size_t)r.hp->n_vocab, sizeof *whole), *steps = whole + r.hp->n_vocab;
    CHECK(!dw_session_eval(r.session, &(dw_batch){.n_tokens = LONG, .token = token}, &err) &&
              !dw_session_logits(r.session, 0, 1, whole, &err),
          "%s", err.text);
    dw_session_free(r.session);
    if (!open_session(&r, (dw_session_options){.exact = true, .n_ctx = LONG})) return;
    for (int i = 0; i < LONG; i += 50)
        CHECK(!dw_session_eval(r.session, &(dw_batch){.n_tokens = 50, .token = token + i}, &err), "%s", err.text);
    CHECK(!dw_session_logits(r.session, 0, 1, steps, &err), "%s", err.text);
    CHECK(!memcmp(whole, steps, (size_t)r.hp->n_vocab * sizeof *whole), "NMSE %.1e",
          nmse(steps, whole, (size_t)r.hp->n_vocab));
    dw_session_free(r.session);

    getrusage(RUSAGE_SELF, &before);
    const double start = dw_now();
    if (!open_session(&r, (dw_session_options){.n_ctx = 1 << 22})) return;
    CHECK(!dw_session_eval(r.session, &(dw_batch){.n_tokens = 1, .token = token}, &err), "%s", err.text);
    getrusage(RUSAGE_SELF, &after);
    CHECK(after.ru_maxrss - before.ru_maxrss < 16 << 10, "one token of a context of %d takes %ld KiB", 1 << 22,
          after.ru_maxrss - before.ru_maxrss);
    CHECK(dw_now() - start < 1, "%.1f s", dw_now() - start);
    free(whole);
    close_run(&r);
}

/* Sizes whose sum no size_t holds are refused, not wrapped. */
static void huge_sessions(void) {
    run r;
    if (!open_run(&r, random_model("tiny-llama", "F32", 0), (dw_session_options){0})) return;
    dw_err err = {0};
    int heads[4] = {1 << 24, 1 << 24, 1 << 24, 1 << 24};
    dw_model m = *r.model;
    m.net.hp.n_head_kv = heads; // as a file would claim that this bound does not stop
    m.net.hp.n_head_kv_max = 1;
    const dw_session_options o = {.pool = two_threads(), .n_ctx = 1 << 22, .n_seq = 4096};
    CHECK(dw_session_memory(&m, &o) == SIZE_MAX, "%zu", dw_session_memory(&m, &o));
    CHECK(!dw_session_new(&m, &o, &err));
    check_sentence(&err, "out of memory", "a session");
    close_run(&r);
}

/* ---- precision --------------------------------------------------------------------------------------------------- */

static void precision(void) {
    for (const dw_qtype_row *t = dw_qtypes; t->name; t++) {
        const dw_gemm_form split = dw_gemm_form_of(DW_AMX, t, DW_PRECISION_SPLIT, 1),
                           rounded = dw_gemm_form_of(DW_AMX, t, DW_PRECISION_ROUNDED, 1);
        CHECK(split != DW_GEMM_ROUNDED && (rounded == DW_GEMM_ROUNDED) == (t->block > 1), "%s", t->name);
        CHECK(dw_gemm_form_of(DW_AVX512, t, DW_PRECISION_ROUNDED, 1) == DW_GEMM_F32, "%s", t->name);
        CHECK(dw_gemm_form_of(DW_AMX, t, DW_PRECISION_INT8, DW_GEMM_FEW + 1) == rounded, "%s", t->name);
        const dw_gemm_form bytes = dw_gemm_form_of(DW_AVX512, t, DW_PRECISION_INT8, 1);
        const bool has_tiles = t->id == DW_Q4_0 || t->id == DW_Q4_1 || t->id == DW_Q4_K || t->id == DW_IQ4_NL;
        const dw_gemm_form few = bytes == DW_GEMM_INT8 && !has_tiles ? bytes : rounded;
        const bool has_words = t->id == DW_F16 || t->id == DW_BF16;
        CHECK(!dw_unpack_tiles[t->id] == !(has_tiles || has_words) && !dw_amx_few_of[t->id] == !has_tiles, "%s",
              t->name);
        CHECK(dw_gemm_form_of(DW_AMX, t, DW_PRECISION_BF16, 1) == DW_GEMM_ROUNDED, "%s", t->name);
        CHECK(dw_gemm_form_of(DW_AVX2, t, DW_PRECISION_BF16, 1) == DW_GEMM_F32, "%s", t->name);
        CHECK(dw_gemm_form_of(DW_AMX, t, DW_PRECISION_INT8, DW_GEMM_FEW) == few, "%s", t->name);
        CHECK(dw_gemm_form_of(DW_PORTABLE, t, DW_PRECISION_INT8, 1) == DW_GEMM_F32, "%s", t->name);
        for (dw_level l = DW_AVX2; l <= DW_AVX512; l++) { // as in decode
            if (!dw_level_usable(l)) continue;
            const bool has_bytes = dw_dot_find(l, (dw_row_kind){t->id, 256, false})->form != DW_ACT_F32;
            CHECK(dw_gemm_form_of(l, t, DW_PRECISION_INT8, DW_GEMM_TOKENS) == (has_bytes ? DW_GEMM_INT8 : DW_GEMM_F32), "%s", t->name);
            CHECK(dw_gemm_form_of(l, t, DW_PRECISION_SPLIT, DW_GEMM_TOKENS) == DW_GEMM_F32, "%s", t->name);
        }
    }
    static const struct { bool exact; dw_precision asked, got; } cases[] = {
        {true, DW_PRECISION_DEFAULT, DW_PRECISION_SPLIT},  {false, DW_PRECISION_DEFAULT, DW_PRECISION_INT8},
        {true, DW_PRECISION_ROUNDED, DW_PRECISION_ROUNDED}, {false, DW_PRECISION_SPLIT, DW_PRECISION_SPLIT},
        {false, DW_PRECISION_ROUNDED, DW_PRECISION_ROUNDED}, {true, DW_PRECISION_INT8, DW_PRECISION_INT8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run r;
        if (!open_run(&r, random_model("tiny-llama", "Q8_0", 0), (dw_session_options){.exact = cases[i].exact,
                                                            .precision = cases[i].asked})) return;
        CHECK(r.session->o.precision == cases[i].got, "case %zu", i);
        close_run(&r);
    }
}

/* Products rounded to BF16 or to 8 bits, too, are the same for any cut into passes. */
static void rounded_is_exact(dw_precision precision_of) {
    float *first = NULL;
    for (int n_batch = 32; n_batch >= 5; n_batch -= 9) {
        run r;
        if (!open_run(&r, random_model("tiny-qwen2", "Q4_0", 0),
                      (dw_session_options){.exact = true, .precision = precision_of, .n_batch = n_batch}))
            return;
        float *logits = whole_pass(&r);
        if (first) CHECK(same_logits(logits, first, &r), "precision %d, passes of %d", precision_of, n_batch);
        if (first) free(logits);
        else first = logits;
        close_run(&r);
    }
    free(first);
}

static void rounded_are_exact(void) {
    rounded_is_exact(DW_PRECISION_ROUNDED);
    rounded_is_exact(DW_PRECISION_INT8);
}

/* Such a predictor reads what the layer before computes; a saved residual does not hold it. */
static void range_of_previous(void) {
    run r;
    dw_err err = {0};
    static const gated_file o = {.group = 8, .rank = 8, .input = "previous"};
    write_gated(random_model("tiny-llama", "F32", 0), test_file("previous.gguf"), &o);
    if (!open_run(&r, test_file("previous.gguf"), (dw_session_options){.exact = true})) return;
    float *x = calloc((size_t)dw_model_hparams(r.model)->n_embd, sizeof *x);
    const int32_t token = 1;
    const dw_batch b = {.n_tokens = 1, .token = &token};
    CHECK(!dw_session_embed(r.session, &b, x, &err) && !dw_session_layers(r.session, &b, 0, 2, x, &err), "%s",
          err.text);
    CHECK(dw_session_layers(r.session, &b, 2, 3, x, &err) && strstr(err.text, "cannot be the first of a range"), "%s",
          err.text);
    free(x);
    close_run(&r);
}

static const test_case cases[] = {
    {"layers run one by one on a residual equal the whole pass, bit for bit", range_is_whole},
    {"taps see the layers that are run, and a tap without a function is none", taps_see_the_range},
    {"ranges and positions outside are refused in a sentence", bad_ranges},
    {"a session with a replaced tensor equals a file with that tensor, bit for bit", replaced_is_file},
    {"a replaced tensor is the session's own", own_copy},
    {"replacements of another shape or type are refused in a sentence", bad_replacements},
    {"down of a gated layer is replaced together with its transposed copy, and restored before it", gated_down},
    {"a range does not begin where a predictor reads the layer before", range_of_previous},
    {"keys and values are taken out of one session and put into another", state_moves},
    {"a cache in Q8_0 holds what its definition makes of F32, and needs whole blocks", cache_in_blocks},
    {"a long context costs nothing before it is used", long_context},
    {"sessions whose sizes no sum holds are refused", huge_sessions},
    {"precision is chosen apart from exactness", precision},
    {"rounded products do not depend on batches", rounded_are_exact},
    {0}};
TEST_MAIN(cases)
