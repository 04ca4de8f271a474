/* program.c - the two programs behind one set of calls. */
#include "experiments/peer/program.h"

#include "experiments/bandwidth.h"
#include "kit/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct exp_program {
    exp_program_options o;
    int n_vocab;
    stock_tokens last;  // of the last evaluation
    dw_model *model;    // this engine
    dw_session *session;
    uint8_t *out;       // n_batch flags
    int32_t *seq;       // n_batch
    float *logits;      // (n_seq, n_vocab): output rows first_logits ..
    int first_logits;   // -1: none of the last evaluation
    exp_span *span;     // of the weights of a token
    size_t n_spans;
    double *seconds;    // of each thread
    exp_way way;        // how the spans are read; no streams: not chosen yet
    stock_session *stock;
    int32_t *window;    // n_ctx ids
    double *logprob;    // n_ctx
};

static int n_seq_of(const exp_program *s) { return s->o.n_seq ? s->o.n_seq : 1; }

/* The file's tensors that are read for a token, as spans without gaps of a page and more.  The embeddings are among them
 * if they are the output matrix, too; else a token reads one row. */
static int find_file_spans(exp_program *s, dw_err *err) {
    enum { GAP = 4096, ALIGNED = 64 };
    const dw_gguf *g = dw_model_gguf(s->model);
    const size_t n = dw_gguf_n_tensors(g);
    const bool is_tied = !dw_gguf_find_tensor(g, "output.weight");
    const dw_tensor *unread = is_tied ? NULL : dw_gguf_find_tensor(g, "token_embd.weight");
    s->span = dw_alloc(n, sizeof *s->span, "tensors", err);
    if (!s->span) return -1;
    for (size_t i = 0; i < n; i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        const uint8_t *start = t->data + (ALIGNED - (uintptr_t)t->data % ALIGNED) % ALIGNED;
        const uint8_t *end = t->data + t->n_bytes;
        exp_span *last = s->n_spans ? &s->span[s->n_spans - 1] : NULL;
        if (t == unread || end <= start) continue;
        if (last && start >= last->start + last->n_bytes && start - (last->start + last->n_bytes) < GAP)
            last->n_bytes = (size_t)(end - last->start);
        else s->span[s->n_spans++] = (exp_span){start, (size_t)(end - start)};
    }
    return 0;
}

static int find_spans(exp_program *s, dw_err *err) {
    const dw_pages *copies = dw_model_copies(s->model);
    s->seconds = dw_alloc((size_t)dw_pool_size(s->o.pool), sizeof *s->seconds, "times", err);
    if (!s->seconds) return -1;
    if (!copies->data) return find_file_spans(s, err);
    s->span = dw_alloc(1, sizeof *s->span, "copies of tensors", err);
    if (!s->span) return -1;
    s->span[s->n_spans++] = (exp_span){copies->data, copies->n_bytes};
    return 0;
}

double exp_program_read(exp_program *s) {
    if (s->stock) return 0;
    if (!s->way.n_streams) exp_best_way(s->o.pool, s->span, s->n_spans, s->seconds, &s->way);
    return exp_read_spans(s->o.pool, s->span, s->n_spans, s->way, s->seconds);
}

static int open_own(exp_program *s, const char *path, dw_err *err) {
    s->model = dw_model_open(path, err);
    if (!s->model || (s->o.huge_pages && kit_huge_pages(s->model, s->o.pool, err))) return -1;
    const dw_session_options o = {.pool = s->o.pool, .backend = s->o.backend, .n_ctx = s->o.n_ctx, .n_seq = s->o.n_seq,
                                  .n_batch = s->o.n_batch,
                                  .kv = s->o.kv_f32 ? DW_KV_CACHE_F32 : DW_KV_CACHE_F16, .exact = s->o.exact,
                                  .precision = s->o.precision};
    s->session = dw_session_new(s->model, &o, err);
    s->n_vocab = dw_model_hparams(s->model)->n_vocab;
    s->out = dw_alloc((size_t)s->o.n_batch, 1, "a batch", err);
    s->logits = dw_alloc((size_t)s->n_vocab, (size_t)n_seq_of(s) * sizeof *s->logits, "logits", err);
    s->seq = dw_alloc((size_t)s->o.n_batch, sizeof *s->seq, "a batch", err);
    return s->session && s->out && s->logits && s->seq ? find_spans(s, err) : -1;
}

static int open_stock(exp_program *s, const char *path, dw_err *err) {
    const stock_options o = {.n_threads = dw_pool_size(s->o.pool),
                             .n_ctx = s->o.n_ctx,
                             .n_seq = s->o.n_seq,
                             .n_batch = s->o.n_batch,
                             .flash = s->o.flash,
                             .plain_buffers = s->o.plain_buffers,
                             .kv_f32 = s->o.kv_f32};
    s->stock = stock_session_new(s->o.stock, path, &o, err);
    s->n_vocab = s->stock ? stock_session_n_vocab(s->stock) : 0;
    return s->stock ? 0 : -1;
}

exp_program *exp_program_open(const char *path, const exp_program_options *o, dw_err *err) {
    exp_program *s = dw_alloc(1, sizeof *s, "a program", err);
    if (!s) return NULL;
    s->o = *o;
    s->window = dw_alloc((size_t)o->n_ctx, sizeof *s->window, "a window", err);
    s->logprob = dw_alloc((size_t)o->n_ctx, sizeof *s->logprob, "a window", err);
    if (s->window && s->logprob && !(o->stock ? open_stock(s, path, err) : open_own(s, path, err))) return s;
    exp_program_close(s);
    return NULL;
}

void exp_program_close(exp_program *s) {
    if (!s) return;
    stock_session_free(s->stock);
    dw_session_free(s->session);
    dw_model_close(s->model);
    free(s->out);
    free(s->seq);
    free(s->logits);
    free(s->window);
    free(s->logprob);
    free(s->span);
    free(s->seconds);
    free(s);
}

int exp_program_n_vocab(const exp_program *s) { return s->n_vocab; }

int exp_program_eval(exp_program *s, const stock_tokens *t, dw_err *err) {
    const int n_all = t->n * t->n_seq;
    if (n_all > s->o.n_batch) return dw_fail(err, "%d tokens in a batch of %d", n_all, s->o.n_batch);
    s->last = *t;
    s->first_logits = -1;
    if (s->stock) return stock_session_eval(s->stock, t, err);
    for (int k = 0; k < t->n_seq; k++) dw_session_rewind(s->session, k, t->pos0);
    for (int i = 0; i < n_all; i++) {
        s->out[i] = i % t->n >= t->n - t->n_out;
        s->seq[i] = i / t->n;
    }
    return dw_session_eval(s->session, &(dw_batch){.n_tokens = n_all, .token = t->token, .seq = s->seq, .out = s->out},
                           err);
}

/* Logits of stock's output row i. */
static const float *stock_row(exp_program *s, int i, dw_err *err) {
    const stock_tokens *t = &s->last;
    const float *row = stock_session_logits(s->stock, i / t->n_out * t->n + t->n - t->n_out + i % t->n_out);
    if (!row) dw_fail(err, "upstream has no logits of row %d", i);
    return row;
}

/* This engine computes rows on demand: as many as there are sequences at once, so that the head is one product. */
const float *exp_program_logits(exp_program *s, int i, dw_err *err) {
    if (s->stock) return stock_row(s, i, err);
    const int most = n_seq_of(s), first = i / most * most, left = s->last.n_seq * s->last.n_out - first;
    if (s->first_logits != first) {
        s->first_logits = -1;
        if (dw_session_logits(s->session, first, left < most ? left : most, s->logits, err)) return NULL;
        s->first_logits = first;
    }
    return s->logits + (size_t)(i - first) * (size_t)s->n_vocab;
}

typedef struct softmax_job {
    exp_program *s;
    const int32_t *target;
    double *logprob;
} softmax_job;

/* As llama-perplexity does it: F32 exponentials, a sum in double. */
static void stock_logprob(void *job_pointer, size_t i) {
    const softmax_job *job = job_pointer;
    const int n_vocab = job->s->n_vocab;
    const float *logit = stock_row(job->s, (int)i, NULL);
    float max = logit[0];
    for (int v = 1; v < n_vocab; v++) max = logit[v] > max ? logit[v] : max;
    double sum = 0;
    for (int v = 0; v < n_vocab; v++) sum += expf(logit[v] - max);
    job->logprob[i] = logit[job->target[i]] - max - log(sum);
}

/* logprob[i] = ln p(target[i]) of output row i, i < n. */
static int logprobs(exp_program *s, int n, const int32_t *target, double *logprob, dw_err *err) {
    if (!s->stock) return dw_session_logprobs(s->session, 0, n, target, logprob, err);
    for (int i = 0; i < n; i++)
        if (!stock_row(s, i, err)) return -1;
    dw_pool_each(s->o.pool, (size_t)n, stock_logprob, &(softmax_job){s, target, logprob});
    return 0;
}

int exp_program_windows(exp_program *s, const int32_t *ids, int n_ctx, int32_t bos, int first, int n, double *nll,
                     dw_err *err) {
    const int first_scored = n_ctx / 2, n_scored = n_ctx - 1 - first_scored;
    if (n_ctx > s->o.n_ctx) return dw_fail(err, "windows of %d tokens in a context of %d", n_ctx, s->o.n_ctx);
    for (int w = 0; w < n; w++) {
        const int32_t *window = ids + (size_t)(first + w) * (size_t)n_ctx;
        memcpy(s->window, window, (size_t)n_ctx * sizeof *window);
        if (bos >= 0) s->window[0] = bos;
        if (exp_program_eval(s, &(stock_tokens){s->window, n_ctx, 1, 0, n_ctx - first_scored}, err)) return -1;
        if (logprobs(s, n_scored, window + first_scored + 1, s->logprob, err)) return -1;
        nll[w] = 0;
        for (int i = 0; i < n_scored; i++) nll[w] -= s->logprob[i];
        if (!isfinite(nll[w])) return dw_fail(err, "window %d: log-probabilities are not finite", first + w + 1);
    }
    return 0;
}
