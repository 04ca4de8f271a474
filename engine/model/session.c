/* session.c - memory of a session, batches, outputs. */
#include "model/session.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { DEFAULT_CTX = 4096, DEFAULT_BATCH = 512 };

/* ---- memory: one arena, laid out by the same code that counts it -------------------------------------- */

/* Points the session's arrays into the arena.  Products stay below 2^63: dimensions are at most 2^24, the context
 * and the batch are bounded by check_options. */
static void lay_out(dw_session *s, dw_layout *a) {
    const dw_net *net = &s->model->net;
    const dw_hparams *hp = &net->hp;
    const dw_session_options *o = &s->o;
    const size_t rows = (size_t)o->n_batch, d = (size_t)hp->n_embd, heads = (size_t)hp->n_head_max * (size_t)hp->head_dim;
    dw_pass *p = &s->pass;
    s->n_past = dw_layout_take(a, (size_t)o->n_seq, sizeof *s->n_past);
    s->next_past = dw_layout_take(a, (size_t)o->n_seq, sizeof *s->next_past);
    s->begun = dw_layout_take(a, (size_t)o->n_seq, sizeof *s->begun);
    s->hidden = dw_layout_take(a, (size_t)o->n_out * d, sizeof *s->hidden);
    s->wanted = dw_layout_take(a, rows, sizeof *s->wanted);
    int32_t *ids = dw_layout_take(a, 3 * rows, sizeof *ids);
    p->token = ids, p->seq = ids + rows, p->pos = ids + 2 * rows;
    p->rope = dw_layout_take(a, (size_t)o->n_ctx * (size_t)hp->head_dim, sizeof *p->rope);
    p->x = dw_layout_take(a, rows * d, sizeof *p->x);
    p->h = dw_layout_take(a, rows * d, sizeof *p->h);
    p->q = dw_layout_take(a, rows * heads, sizeof *p->q);
    p->mix = dw_layout_take(a, rows * heads, sizeof *p->mix);
    p->gate = dw_layout_take(a, rows * (size_t)hp->n_ff_max, sizeof *p->gate);
    p->neuron = dw_layout_take(a, rows * (size_t)hp->n_ff_max, sizeof *p->neuron);
    p->scratch = dw_layout_take(a, s->backend->scratch_bytes(net, o->n_batch, o->n_ctx, dw_pool_size(o->pool), o->select), 1);
    p->coverage = dw_layout_take(a, (size_t)dw_pool_size(o->pool) * (size_t)hp->n_layer, sizeof *p->coverage);
    s->injected = dw_layout_take(a, (size_t)hp->n_layer, sizeof *s->injected);
    const size_t size = o->kv == DW_KV_CACHE_F32 ? 4 : 2;
    p->cache.k = dw_layout_take(a, (size_t)hp->n_layer, sizeof *p->cache.k);
    p->cache.v = dw_layout_take(a, (size_t)hp->n_layer, sizeof *p->cache.v);
    for (int l = 0; l < hp->n_layer; l++) {
        const size_t n = (size_t)o->n_seq * (size_t)hp->n_head_kv[l] * (size_t)o->n_ctx * (size_t)hp->head_dim;
        void *k = dw_layout_take(a, n, size), *v = dw_layout_take(a, n, size);
        if (!a->base) continue;
        p->cache.k[l] = k;
        p->cache.v[l] = v;
    }
}

static int fill_options(dw_session *s, const dw_session_options *given, dw_err *err) {
    const dw_hparams *hp = &s->model->net.hp;
    dw_session_options *o = &s->o;
    *o = *given;
    if (!o->pool) return dw_fail(err, "a session needs a thread pool");
    if (!o->n_ctx) o->n_ctx = hp->n_ctx_train < DEFAULT_CTX ? hp->n_ctx_train : DEFAULT_CTX;
    if (!o->n_seq) o->n_seq = 1;
    if (!o->n_batch) o->n_batch = DEFAULT_BATCH;
    if (!o->n_out) o->n_out = o->n_batch;
    if (o->n_ctx < 1 || o->n_ctx > 1 << 22 || o->n_seq < 1 || o->n_seq > 4096 || o->n_batch < 1 || o->n_batch > 1 << 16 || o->n_out < 1 ||
        o->n_out > 1 << 20)
        return dw_fail(err, "a session of %d positions, %d sequences, %d tokens a batch and %d outputs is out of range", o->n_ctx, o->n_seq,
                       o->n_batch, o->n_out);
    s->backend = dw_backend_find(o->backend);
    return s->backend ? 0 : dw_fail(err, "backend '%s' is unknown", o->backend);
}

size_t dw_session_memory(const dw_model *m, const dw_session_options *o) {
    dw_session s = {.model = m};
    dw_layout count = {0};
    if (fill_options(&s, o, NULL)) return 0;
    lay_out(&s, &count);
    return count.used;
}

dw_session *dw_session_new(const dw_model *m, const dw_session_options *o, dw_err *err) {
    dw_session *s = dw_alloc(1, sizeof *s, "a session", err);
    if (!s) return NULL;
    s->model = m;
    if (fill_options(s, o, err)) goto fail;
    if ((s->backend == &dw_backend_cpu) && !dw_cpu_level(err)) goto fail;
    dw_layout count = {0};
    lay_out(s, &count);
    /* Fresh pages cost nothing until they are touched: a long context is not paid for before it is used. */
    void *pages = mmap(NULL, count.used, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) {
        dw_fail(err, "out of memory: %zu bytes for a session of %d x %d positions; try a smaller context", count.used, s->o.n_seq, s->o.n_ctx);
        goto fail;
    }
    s->arena = pages;
    s->arena_bytes = count.used;
    lay_out(s, &(dw_layout){.base = s->arena});
    s->pass.net = &m->net;
    s->pass.pool = s->o.pool;
    s->pass.exact = s->o.exact;
    s->pass.n_batch = s->o.n_batch;
    s->pass.select = s->o.select;
    s->pass.cache.type = s->o.kv;
    s->pass.cache.n_ctx = s->o.n_ctx;
    s->pass.cache.n_seq = s->o.n_seq;
    dw_rope_table(m, s->o.n_ctx, (float *)s->pass.rope);
    return s;
fail:
    dw_session_free(s);
    return NULL;
}

void dw_session_free(dw_session *s) {
    if (!s) return;
    if (s->arena) munmap(s->arena, s->arena_bytes);
    free(s);
}

/* ---- evaluation --------------------------------------------------------------------------------------- */

/* Where token i of a batch goes; it is checked, and n_past, the ends of the sequences, moves behind it.  Within a batch a
 * sequence goes on without a gap or a step back: only its first token may rewind it. */
static int place(const dw_session *s, const dw_batch *b, int i, int *n_past, bool *begun, int32_t *pos, dw_err *err) {
    const int token = b->token[i], seq = b->seq ? b->seq[i] : 0;
    if (token < 0 || token >= s->model->net.hp.n_vocab)
        return dw_fail(err, "token %d of the batch is %d, the vocabulary has %d", i, token, s->model->net.hp.n_vocab);
    if (seq < 0 || seq >= s->o.n_seq) return dw_fail(err, "token %d of the batch is for sequence %d of %d", i, seq, s->o.n_seq);
    *pos = b->pos ? b->pos[i] : n_past[seq];
    if (*pos < 0 || *pos > n_past[seq] || (begun[seq] && *pos < n_past[seq]))
        return dw_fail(err, "token %d of the batch is for position %d, sequence %d ends at %d", i, *pos, seq, n_past[seq]);
    if (*pos >= s->o.n_ctx) return dw_fail(err, "the context of %d positions is full; give a larger one", s->o.n_ctx);
    n_past[seq] = *pos + 1;
    begun[seq] = true;
    return 0;
}

/* The whole batch is checked before anything moves. */
static int check_batch(dw_session *s, const dw_batch *b, dw_err *err) {
    int n_out = 0;
    int32_t pos;
    memcpy(s->next_past, s->n_past, (size_t)s->o.n_seq * sizeof *s->n_past);
    memset(s->begun, 0, (size_t)s->o.n_seq * sizeof *s->begun);
    for (int i = 0; i < b->n_tokens; i++) {
        if (place(s, b, i, s->next_past, s->begun, &pos, err)) return -1;
        n_out += b->out ? b->out[i] != 0 : i == b->n_tokens - 1;
    }
    return n_out <= s->o.n_out ? 0 : dw_fail(err, "the batch asks for %d output rows, the session keeps %d", n_out, s->o.n_out);
}

int dw_session_eval(dw_session *s, const dw_batch *b, dw_err *err) {
    if (check_batch(s, b, err)) return -1;
    int32_t *token = (int32_t *)s->pass.token, *seq = (int32_t *)s->pass.seq, *pos = (int32_t *)s->pass.pos;
    memset(s->begun, 0, (size_t)s->o.n_seq * sizeof *s->begun);
    s->n_hidden = 0;
    for (int first = 0; first < b->n_tokens; first += s->o.n_batch) {
        const int left = b->n_tokens - first, n = left < s->o.n_batch ? left : s->o.n_batch;
        s->n_wanted = 0;
        for (int i = 0; i < n; i++) {
            token[i] = b->token[first + i];
            seq[i] = b->seq ? b->seq[first + i] : 0;
            place(s, b, first + i, s->n_past, s->begun, &pos[i], err); // checked above
            if (b->out ? b->out[first + i] : first + i == b->n_tokens - 1) s->wanted[s->n_wanted++] = i;
        }
        s->pass.n_tokens = n;
        dw_session_forward(s);
    }
    return 0;
}

int dw_session_n_past(const dw_session *s, int seq) { return s->n_past[seq]; }

void dw_session_rewind(dw_session *s, int seq, int n_past) {
    if (n_past < s->n_past[seq]) s->n_past[seq] = n_past < 0 ? 0 : n_past;
}

typedef struct head_job {
    dw_session *s;
    const float *hidden;
    int n;
    float *logits;
    const int32_t *target;
    double *logprob;
} head_job;

static void run_logits(void *job_pointer, int ith, int n) {
    head_job *job = job_pointer;
    job->s->backend->logits(&job->s->pass, job->hidden, job->n, job->logits, ith, n);
}

static void run_logprobs(void *job_pointer, int ith, int n) {
    head_job *job = job_pointer;
    job->s->backend->logprobs(&job->s->pass, job->hidden, job->n, job->target, job->logprob, ith, n);
}

/* The head takes at most n_batch rows at a time: that is what the backend's scratch was made for. */
static int run_head(dw_session *s, int first, int n, head_job job, void (*run)(void *, int, int), dw_err *err) {
    if (first < 0 || n < 0 || first > s->n_hidden - n)
        return dw_fail(err, "output rows %d to %d were asked for, there are %d", first, first + n - 1, s->n_hidden);
    job.s = s;
    job.hidden = s->hidden + (size_t)first * (size_t)s->model->net.hp.n_embd;
    for (int left = n; left > 0; left -= job.n) {
        job.n = left < s->o.n_batch ? left : s->o.n_batch;
        dw_pool_run(s->pass.pool, run, &job);
        job.hidden += (size_t)job.n * (size_t)s->model->net.hp.n_embd;
        if (job.logits) job.logits += (size_t)job.n * (size_t)s->model->net.hp.n_vocab;
        if (job.target) job.target += job.n, job.logprob += job.n;
    }
    return 0;
}

int dw_session_logits(dw_session *s, int first, int n, float *out, dw_err *err) {
    return run_head(s, first, n, (head_job){.logits = out}, run_logits, err);
}

int dw_session_logprobs(dw_session *s, int first, int n, const int32_t *target, double *logprob, dw_err *err) {
    for (int i = 0; i < n; i++)
        if (target[i] < 0 || target[i] >= s->model->net.hp.n_vocab) return dw_fail(err, "target %d is %d, the vocabulary has %d", i, target[i], s->model->net.hp.n_vocab);
    return run_head(s, first, n, (head_job){.target = target, .logprob = logprob}, run_logprobs, err);
}

/* ---- taps and selection --------------------------------------------------------------------------------- */

void dw_session_set_tap(dw_session *s, const dw_tap *tap) { s->tap = tap ? *tap : (dw_tap){0}; }

int dw_session_set_selection(dw_session *s, const dw_selection *sel, dw_err *err) {
    const dw_hparams *hp = &s->model->net.hp;
    if (sel && dw_model_need_whole_ffn(s->model, err)) return -1;
    for (int l = 0; sel && l < hp->n_layer; l++) {
        const int32_t *list = sel->neuron[l];
        if (list && sel->n[l] < 0) return dw_fail(err, "layer %d: a list of %d neurons", l, sel->n[l]);
        for (int i = 0; list && i < sel->n[l]; i++)
            if (list[i] < 0 || list[i] >= hp->n_ff[l] || (i && list[i] <= list[i - 1]))
                return dw_fail(err, "layer %d: neuron list is not ascending within 0 to %d at entry %d", l, hp->n_ff[l] - 1, i);
    }
    s->selection = sel;
    return 0;
}

/* ---- gated layers --------------------------------------------------------------------------------------- */

dw_coverage dw_session_coverage(const dw_session *s, int layer) {
    dw_coverage sum = {0};
    for (int i = 0; i < dw_pool_size(s->o.pool); i++) {
        const dw_coverage *c = &s->pass.coverage[i * s->model->net.hp.n_layer + layer];
        sum.n_tokens += c->n_tokens;
        sum.n_open += c->n_open;
        sum.n_computed += c->n_computed;
        sum.n_bytes += c->n_bytes;
        sum.n_few += c->n_few;
    }
    return sum;
}

void dw_session_reset_coverage(dw_session *s) {
    memset(s->pass.coverage, 0, (size_t)dw_pool_size(s->o.pool) * (size_t)s->model->net.hp.n_layer * sizeof *s->pass.coverage);
}

void dw_session_inject(dw_session *s, const float *activity, uint64_t seed) {
    if (activity) memcpy(s->injected, activity, (size_t)s->model->net.hp.n_layer * sizeof *s->injected);
    s->pass.injected = activity ? s->injected : NULL;
    s->pass.injected_seed = seed;
}
