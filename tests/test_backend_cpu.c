/* test_backend_cpu.c - every fused step of `cpu` against `ref`, on small nets of random weights of every type. */
#include "backends/backend_cpu.h"
#include "backends/kernels.h"
#include "backends/steps.h"
#include "build.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Largest NMSE of a step's results: sum of squared differences by sum of squares.  few: packed vectors (int8 for
 * quantized weights); many: matrix products of a fast pass; exact: of an exact one. */
static const struct type_bound {
    dw_qtype type;
    double few, many, exact;
} bounds[] = {
    {DW_F32, 1e-10, 1e-10, 1e-10}, {DW_F16, 1e-10, 1e-10, 1e-10}, {DW_BF16, 1e-10, 1e-10, 1e-10},
    {DW_Q8_0, 1e-4, 2e-5, 1e-10},  {DW_Q4_0, 1e-4, 2e-5, 1e-10},  {DW_Q4_1, 1e-4, 2e-5, 1e-10},
    {DW_Q5_0, 1e-4, 2e-5, 1e-10},  {DW_Q5_1, 1e-4, 2e-5, 1e-10},  {DW_IQ4_NL, 1e-4, 2e-5, 1e-10},
    {DW_Q2_K, 1e-4, 2e-5, 1e-10},  {DW_Q3_K, 1e-4, 2e-5, 1e-10},  {DW_Q4_K, 1e-4, 2e-5, 1e-10},
    {DW_Q5_K, 1e-4, 2e-5, 1e-10},  {DW_Q6_K, 1e-4, 2e-5, 1e-10},
};

enum {
    EMBD = 256,
    HEAD = 64,
    N_HEAD = 4,
    N_KV = 2,
    VOCAB = 300,
    CTX = 96,
    SEQS = 3,
    FF0 = 512,
    FF1 = 256,
    TOKENS = 34
};

/* ---- a net ------------------------------------------------------------------------------------------------------ */

typedef struct small_net {
    dw_net net;
    dw_layer layer[2];
} small_net;

static const int n_ff[2] = {FF0, FF1}, n_head[2] = {N_HEAD, N_HEAD}, n_head_kv[2] = {N_KV, N_HEAD};

static dw_tensor random_tensor(dw_rng *rng, dw_qtype type, size_t n, size_t rows, double mean, double deviation) {
    dw_tensor t = {.name = "t", .type = dw_qtype_get(type), .n_dims = rows > 1 ? 2 : 1, .ne = {n, rows, 1, 1}};
    t.n_bytes = dw_tensor_row_bytes(&t) * rows;
    uint8_t *data = malloc(t.n_bytes);
    float *row = malloc(n * sizeof *row);
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < n; i++) row[i] = (float)(mean + deviation * dw_rng_normal(rng));
        t.type->encode(row, data + r * dw_tensor_row_bytes(&t), n, NULL);
    }
    free(row);
    t.data = data;
    return t;
}

static small_net *small_net_new(dw_qtype type, bool extras) {
    small_net *s = calloc(1, sizeof *s);
    dw_rng rng;
    dw_rng_seed(&rng, 7);
    s->net.from_memory = true; // as of a large model; tests with files have small ones
    s->net.hp = (dw_hparams){.arch = "test",
                             .n_layer = 2,
                             .n_embd = EMBD,
                             .n_vocab = VOCAB,
                             .head_dim = HEAD,
                             .n_ctx_train = CTX,
                             .n_ff = n_ff,
                             .n_head = n_head,
                             .n_head_kv = n_head_kv,
                             .n_ff_max = FF0,
                             .n_head_max = N_HEAD,
                             .n_head_kv_max = N_HEAD,
                             .rope_base = 10000,
                             .norm_eps = 1e-5f,
                             .attn_scale = 0.125f};
    s->net.rope_neox = extras;
    s->net.act = (dw_act)(type % DW_N_ACTS);
    s->net.embd_scale = extras ? 1.5f : 0;
    s->net.layer = s->layer;
    s->net.token_embd = random_tensor(&rng, type, EMBD, VOCAB, 0, 1);
    s->net.output = random_tensor(&rng, type, EMBD, VOCAB, 0, 0.2);
    s->net.output_norm = random_tensor(&rng, DW_F32, EMBD, 1, 1, 0.1);
    if (extras) s->net.output_bias = random_tensor(&rng, DW_F32, VOCAB, 1, 0, 0.5);
    for (int l = 0; l < 2; l++) {
        dw_layer *w = &s->layer[l];
        const size_t q = N_HEAD * HEAD, kv = (size_t)n_head_kv[l] * HEAD, ff = (size_t)n_ff[l];
        *w = (dw_layer){.n_ff = n_ff[l], .n_head = N_HEAD, .n_head_kv = n_head_kv[l]};
        w->attn_norm = random_tensor(&rng, DW_F32, EMBD, 1, 1, 0.1);
        w->ffn_norm = random_tensor(&rng, DW_F32, EMBD, 1, 1, 0.1);
        w->q = random_tensor(&rng, type, EMBD, q, 0, 0.06);
        w->k = random_tensor(&rng, type, EMBD, kv, 0, 0.06);
        w->v = random_tensor(&rng, l ? DW_F16 : type, EMBD, kv, 0, 0.06); // files mix types
        w->o = random_tensor(&rng, type, q, EMBD, 0, 0.06);
        w->gate = random_tensor(&rng, type, EMBD, ff, 0, 0.06);
        w->up = random_tensor(&rng, type, EMBD, ff, 0, 0.06);
        w->down = random_tensor(&rng, type, ff, EMBD, 0, 0.06);
        if (!extras) continue;
        w->q_bias = random_tensor(&rng, DW_F32, q, 1, 0, 0.5);
        w->k_bias = random_tensor(&rng, DW_F32, kv, 1, 0, 0.5);
        w->v_bias = random_tensor(&rng, DW_F32, kv, 1, 0, 0.5);
        w->q_norm = random_tensor(&rng, DW_F32, HEAD, 1, 1, 0.1);
        w->k_norm = random_tensor(&rng, DW_F32, HEAD, 1, 1, 0.1);
        w->o_bias = random_tensor(&rng, DW_F32, EMBD, 1, 0, 0.5);
        w->gate_bias = random_tensor(&rng, DW_F32, ff, 1, 0, 0.5);
        w->up_bias = random_tensor(&rng, DW_F32, ff, 1, 0, 0.5);
        w->down_bias = random_tensor(&rng, DW_F32, EMBD, 1, 0, 0.5);
    }
    return s;
}

static void drop(dw_tensor *t) { free((void *)(uintptr_t)t->data); }

static void small_net_free(small_net *s) {
    drop(&s->net.token_embd), drop(&s->net.output), drop(&s->net.output_norm), drop(&s->net.output_bias);
    for (dw_layer *w = s->layer; w < s->layer + 2; w++) {
        dw_tensor *all[] = {&w->attn_norm, &w->q,      &w->k,         &w->v,       &w->q_bias, &w->k_bias,
                            &w->v_bias,    &w->q_norm, &w->k_norm,    &w->o,       &w->o_bias, &w->ffn_norm,
                            &w->gate,      &w->up,     &w->gate_bias, &w->up_bias, &w->down,   &w->down_bias};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop(all[i]);
    }
    free(s);
}

/* ---- a pass that a backend computes step by step --------------------------------------------------------------- */

typedef struct runner {
    const dw_backend *backend;
    dw_state *state;
    dw_pass *pass;
    float *logits;
    double *logprob;
} runner;

static size_t layer_values(int l) { return (size_t)SEQS * (size_t)n_head_kv[l] * CTX * HEAD; } // of keys

/* All of a state's memory; steps are run one by one on its pass. */
static runner *runner_new(const small_net *net, const char *backend, dw_pool *pool, bool exact) {
    runner *r = calloc(1, sizeof *r);
    dw_err err = {0};
    const dw_session_options o = {.pool = pool,
                                  .n_ctx = CTX,
                                  .n_seq = SEQS,
                                  .n_batch = TOKENS,
                                  .n_out = TOKENS,
                                  .kv = DW_KV_CACHE_F32,
                                  .exact = exact,
                                  .precision = exact ? DW_PRECISION_SPLIT : DW_PRECISION_ROUNDED};
    r->backend = dw_backend_find(backend);
    r->state = r->backend->open(r->backend, &net->net, &o, &err);
    if (!CHECK(r->state, "%s", err.text)) abort();
    r->pass = dw_on_pool_pass(r->state);
    r->pass->keep_h = true;
    r->pass->gate_every = 1;
    r->pass->x = calloc(TOKENS * EMBD, sizeof(float));
    dw_rope_rows(&net->net, 0, CTX, (float *)r->pass->rope);
    r->logits = calloc(TOKENS * VOCAB, sizeof *r->logits);
    r->logprob = calloc(TOKENS, sizeof *r->logprob);
    return r;
}

static void runner_free(runner *r) {
    free(r->pass->x), free(r->logits), free(r->logprob);
    r->backend->close(r->state);
    free(r);
}

typedef enum step { EMBED, QKV, ATTEND, ATTN_OUT, FFN_NEURONS, FFN_DOWN, LOGITS, LOGPROBS, N_STEPS } step;
static const char *const step_names[] = {"embed",       "qkv",      "attend", "attn_out",
                                         "ffn_neurons", "ffn_down", "logits", "logprobs"};

static const int32_t *targets(void) {
    static _Thread_local int32_t target[TOKENS]; // every thread of a step asks
    for (int t = 0; t < TOKENS; t++) target[t] = t * 311 % VOCAB;
    return target;
}

typedef struct step_job {
    runner *r;
    step step;
    int layer;
} step_job;

static void run_step(void *job_pointer, int ith, int n) {
    const step_job *job = job_pointer;
    runner *r = job->r;
    dw_pass *p = r->pass;
    const dw_steps *steps = r->backend->own;
    const dw_way *way = steps->way[p->way];
    const dw_head head = {
        .hidden = p->h, .n = p->n_tokens, .logits = r->logits, .target = targets(), .logprob = r->logprob};
    const int l = job->layer;
    (void)n;
    switch (job->step) {
    case EMBED: way->embed(p, ith); break;
    case QKV: way->qkv(p, l, ith); break;
    case ATTEND: way->attend(p, l, ith); break;
    case ATTN_OUT: way->attn_out(p, l, ith); break;
    case FFN_NEURONS: p->layer[l].ffn[p->way]->neurons(p, l, ith); break;
    case FFN_DOWN: p->layer[l].ffn[p->way]->down(p, l, ith); break;
    case LOGITS: way->logits(p, &head, ith); break;
    case LOGPROBS: steps->way[DW_WAY_MANY]->logprobs(p, &head, ith); break;
    default: break;
    }
}

static void run(runner *r, step s, int layer) { dw_pool_run(r->pass->pool, run_step, &(step_job){r, s, layer}); }

/* What a step may change, so that the next step can begin from the same numbers. */
static void take_state(runner *to, const runner *from) {
    dw_pass *a = to->pass;
    const dw_pass *b = from->pass;
    memcpy(a->x, b->x, TOKENS * EMBD * sizeof *a->x);
    memcpy(a->h, b->h, TOKENS * EMBD * sizeof *a->h);
    memcpy(a->q, b->q, TOKENS * N_HEAD * HEAD * sizeof *a->q);
    memcpy(a->mix, b->mix, TOKENS * N_HEAD * HEAD * sizeof *a->mix);
    memcpy(a->neuron, b->neuron, TOKENS * FF0 * sizeof *a->neuron);
    for (int l = 0; l < 2; l++) {
        memcpy(a->cache.k[l], b->cache.k[l], layer_values(l) * sizeof(float));
        memcpy(a->cache.v[l], b->cache.v[l], layer_values(l) * sizeof(float));
    }
}

/* The largest NMSE among what the step leaves behind. */
static double difference(const runner *a, const runner *b, step s, int l) {
    const dw_pass *p = a->pass, *q = b->pass;
    const size_t t = (size_t)p->n_tokens, heads = N_HEAD * HEAD, ff = (size_t)n_ff[l];
    double worst;
    switch (s) {
    case EMBED: case ATTN_OUT: case FFN_DOWN: return nmse(p->x, q->x, t * EMBD);
    case QKV:
        worst = nmse(p->q, q->q, t * heads);
        worst = fmax(worst, nmse(p->h, q->h, t * EMBD));
        worst = fmax(worst, nmse(p->cache.k[l], q->cache.k[l], layer_values(l)));
        return fmax(worst, nmse(p->cache.v[l], q->cache.v[l], layer_values(l)));
    case ATTEND: return nmse(p->mix, q->mix, t * heads);
    case FFN_NEURONS:
        worst = fmax(nmse(p->h, q->h, t * EMBD), nmse(p->gate, q->gate, t * ff));
        return fmax(worst, nmse(p->neuron, q->neuron, t * ff));
    case LOGITS: return nmse(a->logits, b->logits, t * VOCAB);
    default:
        worst = 0;
        for (size_t i = 0; i < t; i++) {
            const double d = a->logprob[i] - b->logprob[i];
            worst = !(d * d <= worst) ? d * d : worst;
        }
        return worst;
    }
}

/* ---- cases ------------------------------------------------------------------------------------------------------ */

/* Lists for all layers. */
static void select_neurons(runner *r, const int32_t *list, int n) {
    const int32_t *lists[] = {list, list}, lengths[] = {n, n};
    dw_err err = {0};
    CHECK(!r->backend->bind(r->state, &(dw_binding){.selection = list ? &(dw_selection){lists, lengths} : NULL}, &err),
          "%s", err.text);
}

static const int32_t *selection_of(int kind, int *n) { // 0: all, 1: some with neighbours, 2: none
    static int32_t list[80];
    *n = kind == 1 ? 80 : 0; // of 240
    for (int i = 0; i < *n; i++) list[i] = 3 * i + i % 3 / 2 * 2 + 1;
    return kind ? list : NULL;
}

typedef struct pass_plan {
    int n_tokens, n_threads;
    bool exact;
} pass_plan;

/* Tokens of two sequences after each other at positions from 10 on, the cache before them random. */
static void place_tokens(runner *r, int n, int32_t *token, int32_t *seq, int32_t *pos) {
    for (int t = 0; t < n; t++) {
        token[t] = t * 37 % VOCAB;
        seq[t] = t < n / 2 ? 2 : 0;
        pos[t] = 10 + (t < n / 2 ? t : t - n / 2);
    }
    const dw_steps *steps = r->backend->own;
    r->pass->n_tokens = n;
    r->pass->token = token;
    r->pass->seq = seq;
    r->pass->pos = pos;
    r->pass->way = !r->pass->exact && n <= steps->most_few ? DW_WAY_FEW : DW_WAY_MANY;
}

static void force(int level) { setenv("DEADWOOD_CPU", dw_level_names[level], 1); }

/* Of many tokens, passes that need not be exact multiply sums of two BF16 (kernels_attend_tiles.inc). */
static double attend_bound(int level, const dw_pass *p) {
    return level >= DW_AMX && p->way == DW_WAY_MANY && !p->exact ? 1e-10 : 1e-12;
}

/* One step of every level from the same numbers, then of ref, which the next step goes on with. */
static void compare_step(runner *ref, runner *const *cpu, step s, int l, double bound) {
    for (int level = 0; level < DW_N_LEVELS; level++) {
        if (!cpu[level]) continue;
        dw_pass *p = cpu[level]->pass;
        take_state(cpu[level], ref);
        memset(p->gate, 0xff, TOKENS * FF0 * sizeof(float));
        if (s == FFN_NEURONS) memset(p->neuron, 0xff, TOKENS * FF0 * sizeof(float));
        run(cpu[level], s, l);
    }
    run(ref, s, l);
    for (int level = 0; level < DW_N_LEVELS; level++) {
        if (!cpu[level]) continue;
        const double d = difference(cpu[level], ref, s, l), limit = s == ATTEND ? attend_bound(level, ref->pass) : bound;
        CHECK(d <= limit, "%s %s, %d tokens, %d threads%s, %d selected, layer %d, %s: %.3g", dw_level_names[level],
              ref->pass->net->output.type->name, ref->pass->n_tokens, ref->pass->n_threads,
              ref->pass->exact ? ", exact" : "", ref->pass->layer[l].n_list, l, step_names[s], d);
    }
}

static void compare_steps(const small_net *net, pass_plan plan, double bound) {
    dw_pool *pool = dw_pool_new(plan.n_threads, NULL);
    runner *ref = runner_new(net, "ref", pool, plan.exact), *cpu[DW_N_LEVELS] = {0};
    int32_t token[TOKENS], seq[TOKENS], pos[TOKENS];
    place_tokens(ref, plan.n_tokens, token, seq, pos);
    for (int level = 0; level < DW_N_LEVELS; level++) {
        if (!dw_level_usable(level)) continue;
        force(level);
        cpu[level] = runner_new(net, "cpu", pool, plan.exact);
        place_tokens(cpu[level], plan.n_tokens, token, seq, pos);
    }
    dw_rng rng;
    dw_rng_seed(&rng, 9);
    for (int l = 0; l < 2; l++)
        for (size_t i = 0; i < layer_values(l); i++) {
            ((float *)ref->pass->cache.k[l])[i] = (float)dw_rng_normal(&rng);
            ((float *)ref->pass->cache.v[l])[i] = (float)dw_rng_normal(&rng);
        }
    compare_step(ref, cpu, EMBED, 0, 0);
    for (int l = 0; l < 2; l++)
        for (step s = QKV; s <= FFN_DOWN; s++)
            for (int kind = s == FFN_NEURONS ? 2 : 0; kind >= 0; kind--) {
                int n_selected;
                const int32_t *list = selection_of(kind, &n_selected);
                select_neurons(ref, list, n_selected);
                for (int level = 0; level < DW_N_LEVELS; level++)
                    if (cpu[level]) select_neurons(cpu[level], list, n_selected);
                compare_step(ref, cpu, s, l, bound);
            }
    compare_step(ref, cpu, LOGITS, 0, bound);
    compare_step(ref, cpu, LOGPROBS, 0, 100 * bound);
    runner_free(ref);
    for (int level = 0; level < DW_N_LEVELS; level++)
        if (cpu[level]) runner_free(cpu[level]);
    dw_pool_free(pool);
    unsetenv("DEADWOOD_CPU");
}

static void every_step(void) {
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        small_net *net = small_net_new(bounds[i].type, i % 2);
        compare_steps(net, (pass_plan){3, 2, false}, bounds[i].few);
        compare_steps(net, (pass_plan){TOKENS, 2, false}, bounds[i].many);
        compare_steps(net, (pass_plan){5, 2, true}, bounds[i].exact);
        small_net_free(net);
    }
}

static void every_type_has_a_bound(void) {
    for (const dw_qtype_row *t = dw_qtypes; t->name; t++) {
        int n = 0;
        for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) n += bounds[i].type == t->id;
        CHECK(n == (t->encode != NULL), "%s", t->name); // others: test_decoder_only
    }
}

static void shares_of_threads(void) {
    small_net *net = small_net_new(DW_Q4_0, true);
    for (int n = 1; n <= 5; n += 2) {
        compare_steps(net, (pass_plan){1, n, false}, 1e-4);
        compare_steps(net, (pass_plan){17, n, true}, 1e-10);
    }
    small_net_free(net);
}

/* All steps of all layers for tokens of sequence 0, in batches; hidden rows (n, EMBD) into out. */
static void whole_pass(const small_net *net, int n_threads, int batch, float *out, double *logprob) {
    dw_pool *pool = dw_pool_new(n_threads, NULL);
    runner *r = runner_new(net, "cpu", pool, true);
    for (int first = 0; first < TOKENS; first += batch) {
        int32_t token[TOKENS], seq[TOKENS] = {0}, pos[TOKENS];
        const int n = TOKENS - first < batch ? TOKENS - first : batch;
        place_tokens(r, n, token, seq, pos);
        for (int t = 0; t < n; t++) {
            token[t] = (first + t) * 37 % VOCAB;
            seq[t] = 0;
            pos[t] = first + t;
        }
        run(r, EMBED, 0);
        for (int l = 0; l < 2; l++)
            for (step s = QKV; s <= FFN_DOWN; s++) run(r, s, l);
        memcpy(out + first * EMBD, r->pass->x, (size_t)n * EMBD * sizeof *out);
        memcpy(r->pass->h, r->pass->x, (size_t)n * EMBD * sizeof *out);
        run(r, LOGPROBS, 0);
        for (int t = 0; t < n; t++) // targets are those of the batch's places
            if (batch == TOKENS || first == 0) logprob[t] = r->logprob[t];
    }
    runner_free(r);
    dw_pool_free(pool);
}

static void exact_of_type(dw_qtype type) {
    small_net *net = small_net_new(type, true);
    static float whole[TOKENS * EMBD], cut[TOKENS * EMBD];
    double logprob[TOKENS], first[TOKENS];
    for (int level = 0; level < DW_N_LEVELS; level++) {
        if (!dw_level_usable(level)) continue;
        force(level);
        whole_pass(net, 1, TOKENS, whole, logprob);
        static const int batches[] = {TOKENS, 16, 3};
        for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
            whole_pass(net, 1 + (int)i, batches[i], cut, first);
            CHECK(!memcmp(whole, cut, sizeof whole), "%s %s: batches of %d, %zu threads", dw_level_names[level],
                  dw_qtype_get(type)->name, batches[i], i + 1);
            CHECK(!memcmp(logprob, first, (size_t)batches[i] * sizeof *first), "%s %s: logprobs in batches of %d",
                  dw_level_names[level], dw_qtype_get(type)->name, batches[i]);
        }
    }
    unsetenv("DEADWOOD_CPU");
    small_net_free(net);
}

static void exact_passes(void) {
    exact_of_type(DW_F32);
    exact_of_type(DW_BF16);
    exact_of_type(DW_Q4_K);
}

/* ---- pieces ---------------------------------------------------------------------------------------------------- */

enum { STEPS = 3000, MOST_PIECES = 600, MOST_THREADS = 8 };

typedef struct sharing {
    dw_portion portions[MOST_THREADS];
    atomic_int taken[MOST_PIECES], dealt[MOST_PIECES];
    dw_pool *pool;
    int n_wrong;
} sharing;

static void count(const dw_step *s, const dw_pieces *pieces, sharing *of, int i) {
    atomic_fetch_add(&of->taken[i], 1);
    atomic_fetch_add(&of->dealt[dw_pieces_dealt(s, pieces, i)], 1);
}

/* Some steps have fewer pieces than threads, and now and then a thread begins late. */
static void share_steps(void *arg, int ith, int n_threads) {
    sharing *of = arg;
    const dw_step s = {.ith = ith, .n_threads = n_threads, .portions = of->portions};
    dw_rng same, own;
    dw_rng_seed(&same, 1), dw_rng_seed(&own, (uint64_t)ith + 2);
    for (int k = 0; k < STEPS; k++) {
        const int n = (int)(dw_rng_next(&same) % (k % 3 ? 12 : MOST_PIECES));
        for (volatile int wait = dw_rng_next(&own) % 8 ? 0 : 1000; wait > 0;) wait--;
        dw_pieces pieces = dw_pieces_begin(&s, n);
        if (k % 2)
            for (int i; (i = dw_pieces_next(&s, &pieces)) >= 0;) count(&s, &pieces, of, i);
        else
            for (dw_run run; dw_pieces_run(&s, &pieces, 64, &run);)
                for (int i = run.first; i < run.end; i++) count(&s, &pieces, of, i);
        dw_pool_barrier(of->pool);
        for (int i = 0; ith == 0 && i < MOST_PIECES; i++) {
            of->n_wrong += of->taken[i] != (i < n) || of->dealt[i] != (i < n);
            of->taken[i] = of->dealt[i] = 0;
        }
        dw_pool_barrier(of->pool);
    }
}

static void pieces_once(void) {
    for (int n_threads = 1; n_threads <= MOST_THREADS; n_threads += n_threads < 3 ? 1 : 5) {
        static sharing of;
        of = (sharing){.pool = dw_pool_new(n_threads, NULL)};
        REQUIRE(of.pool);
        dw_pool_run(of.pool, share_steps, &of);
        CHECK(!of.n_wrong, "%d threads: %d pieces were not taken once", n_threads, of.n_wrong);
        dw_pool_free(of.pool);
    }
}

static void pieces_dealt(void) {
    const dw_step s = {.n_threads = 3};
    const dw_pieces pieces = {.n = 8}; // portions 0 1, 2 3 4, 5 6 7
    const int expected[8] = {0, 3, 1, 4, 6, 2, 5, 7};
    for (int i = 0; i < 8; i++) {
        const int got = dw_pieces_dealt(&s, &pieces, i);
        CHECK(got == expected[i], "piece %d is %d, not %d", i, got, expected[i]);
    }
}

static const test_case cases[] = {
    {"every piece of a step is taken once, by whatever thread, also when threads begin late", pieces_once},
    {"pieces are dealt to the threads in turn", pieces_dealt},
    {"every type has a bound", every_type_has_a_bound},
    {"every step of cpu equals ref within the type's bound, at every level, inside its scratch", every_step},
    {"steps share their work among any number of threads", shares_of_threads},
    {"exact passes do not depend on threads nor batches, bit for bit", exact_passes},
    {0},
};
TEST_MAIN(cases)
