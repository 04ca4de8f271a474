/* teacher_cache.c - see teacher_cache.h. */
#include "prune/teacher_cache.h"
#include "kit/progress.h"
#include "measure/distribution.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const char magic[16] = {'d', 'e', 'a', 'd', 'w', 'o', 'o', 'd', ' ', 't', 'e', 'a', 'c', 'h', ' ', '1'};
static const double steps_of_ln = 2048; // a unit

enum { ROWS = 64, MOST_CODE = UINT16_MAX };

typedef struct head {
    char magic[16];
    uint8_t identity[32];
    uint64_t n_steps;
    uint32_t step_tokens, n_vocab, k, id_bytes;
} head;
_Static_assert(sizeof(head) == 72, "the head has no gaps");

static head head_of(const teacher_cache_shape *s, const uint8_t identity[32]) {
    head h = {.n_steps = s->n_steps,
              .step_tokens = (uint32_t)s->step_tokens,
              .n_vocab = (uint32_t)s->n_vocab,
              .k = (uint32_t)measure_n_top(s->n_vocab),
              .id_bytes = s->n_vocab <= 65536 ? 2 : 4};
    memcpy(h.magic, magic, sizeof h.magic);
    memcpy(h.identity, identity, sizeof h.identity);
    return h;
}

static teacher_cache_shape shape_of(const distil *d, uint64_t n_steps) {
    return (teacher_cache_shape){.n_steps = n_steps,
                                 .step_tokens = d->o.batch * d->o.n_ctx,
                                 .n_vocab = dw_model_hparams(d->teacher_model)->n_vocab,
                                 .n_ctx = d->o.n_ctx,
                                 .n_windows = d->n_micro};
}

static size_t token_bytes(const head *h) { return (size_t)h->k * (h->id_bytes + 2) + sizeof(float); }

double teacher_cache_bytes(const distil *d, uint64_t n_steps) {
    const teacher_cache_shape s = shape_of(d, n_steps);
    const head h = head_of(&s, (const uint8_t[32]){0});
    return (double)sizeof h + (double)n_steps * h.step_tokens * (double)token_bytes(&h) + 32;
}

/* ---- making ---------------------------------------------------------------------------------------------------- */

typedef struct rows_job {
    const head *h;
    double temperature;
    float *logits;   // (ROWS, n_vocab)
    uint8_t *packed; // (ROWS, token_bytes)
    atomic_bool failed; // a logit is NaN or infinite
} rows_job;

static void pack_token(const head *h, const measure_coarse *c, uint8_t *to) {
    for (uint32_t i = 0; i < h->k; i++) {
        const uint32_t id = (uint32_t)c->id[i];
        const uint16_t code = (uint16_t)lrint(fmin(MOST_CODE, fmax(0, -(double)c->logprob[i] * steps_of_ln)));
        memcpy(to + (size_t)i * h->id_bytes, h->id_bytes == 2 ? (const void *)&(uint16_t){(uint16_t)id} : &id,
               h->id_bytes);
        memcpy(to + (size_t)h->k * h->id_bytes + 2 * (size_t)i, &code, 2);
    }
    memcpy(to + token_bytes(h) - sizeof c->tail, &c->tail, sizeof c->tail);
}

static void pack_row(void *job, size_t i) {
    rows_job *j = job;
    const int n = (int)j->h->n_vocab;
    float *x = j->logits + i * (size_t)n;
    measure_coarse c;
    for (int k = 0; k < n && j->temperature != 1; k++) x[k] = (float)(x[k] / j->temperature);
    const measure_row r = measure_row_of(x, n);
    if (r.top < 0) {
        j->failed = true;
        return;
    }
    measure_coarse_of(&c, x, &r, n);
    pack_token(j->h, &c, j->packed + i * token_bytes(j->h));
}

typedef struct writing {
    distil *d;
    head h;
    rows_job rows;
    dw_out *out;
    dw_sha256 hash;
    progress *bar;
} writing;

static int put(writing *w, const void *data, size_t size, dw_err *err) {
    dw_sha256_add(&w->hash, data, size);
    return dw_out_write(w->out, data, size, err);
}

/* n windows of the step: the teacher's last pass. */
static int write_windows(writing *w, uint64_t step, int n, dw_err *err) {
    const int n_tokens = n * w->d->o.n_ctx;
    for (int first = 0, now; first < n_tokens; first += now) {
        now = n_tokens - first < ROWS ? n_tokens - first : ROWS;
        dw_train_logits(w->d->teacher, first, now, w->rows.logits);
        dw_pool_each(w->d->o.pool, (size_t)now, pack_row, &w->rows);
        if (w->rows.failed)
            return dw_fail(err,
                           "step %llu: a logit of the teacher is NaN or infinite; the model is damaged or overflows",
                           (unsigned long long)step);
        if (put(w, w->rows.packed, (size_t)now * token_bytes(&w->h), err)) return -1;
    }
    return 0;
}

static int write_step(writing *w, uint64_t step, dw_err *err) {
    const distil *d = w->d;
    distil_draw(d, step);
    for (int first = 0, n; first < d->o.batch; first += n) {
        n = d->o.batch - first < d->n_micro ? d->o.batch - first : d->n_micro;
        if (dw_train_forward(d->teacher, d->token + (size_t)first * (size_t)d->o.n_ctx, n, err) ||
            write_windows(w, step, n, err))
            return -1;
    }
    progress_step(w->bar, w->h.step_tokens);
    return 0;
}

static int write_file(writing *w, dw_err *err) {
    uint8_t digest[32];
    dw_sha256_begin(&w->hash);
    int rc = put(w, &w->h, sizeof w->h, err);
    for (uint64_t i = 1; i <= w->h.n_steps && !rc; i++) rc = write_step(w, i, err);
    dw_sha256_end(&w->hash, digest);
    return rc || dw_out_write(w->out, digest, sizeof digest, err) || dw_out_commit(w->out, err) ? -1 : 0;
}

int teacher_cache_make(distil *d, const char *path, const uint8_t identity[32], uint64_t n_steps, dw_err *err) {
    const teacher_cache_shape s = shape_of(d, n_steps);
    writing w = {.d = d, .h = head_of(&s, identity)};
    w.rows.h = &w.h;
    w.rows.temperature = d->o.temperature;
    w.rows.logits = dw_alloc((size_t)ROWS * w.h.n_vocab, sizeof(float), "logits of the teacher", err);
    w.rows.packed = dw_alloc(ROWS, token_bytes(&w.h), "predictions of the teacher", err);
    w.out = w.rows.logits && w.rows.packed ? dw_out_open_kept(path, err) : NULL;
    w.bar = progress_begin("predictions of the teacher", "tokens", (double)n_steps * w.h.step_tokens);
    const int rc = w.out ? write_file(&w, err) : -1;
    progress_end(w.bar);
    dw_out_free(w.out);
    free(w.rows.logits);
    free(w.rows.packed);
    return rc;
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

struct teacher_cache {
    dw_map map;
    const char *path; // borrowed
    head h;
    int n_ctx;
    size_t room; // tokens
    int32_t *token;
    float *logprob, *rest;
    dw_coarse_teacher coarse;
};

const dw_coarse_teacher *teacher_cache_coarse(const teacher_cache *c) { return &c->coarse; }

void teacher_cache_close(teacher_cache *c) {
    if (!c) return;
    dw_unmap(&c->map);
    free(c->token);
    free(c->logprob);
    free(c->rest);
    free(c);
}

static int check_file(const teacher_cache *c, const head *wanted, dw_err *err) {
    const head *h = &c->h;
    size_t tokens, bytes, all;
    uint8_t digest[32];
    dw_sha256 hash;
    if (memcmp(h->identity, wanted->identity, 32))
        return dw_fail(err,
                       "--teacher-cache '%s' is of another teacher, or of other texts, --seed, --batch, -c, "
                       "--held-out, --temperature or CPU level; give another name",
                       c->path);
    if (h->n_steps < wanted->n_steps)
        return dw_fail(err, "--teacher-cache '%s' has %llu steps, the run %llu; remove it, or give another name",
                       c->path, (unsigned long long)h->n_steps, (unsigned long long)wanted->n_steps);
    const bool same = h->step_tokens == wanted->step_tokens && h->n_vocab == wanted->n_vocab && h->k == wanted->k &&
                      h->id_bytes == wanted->id_bytes;
    if (!same || !dw_mul(h->n_steps, h->step_tokens, &tokens) || !dw_mul(tokens, token_bytes(h), &bytes) ||
        !dw_add(bytes, sizeof *h + 32, &all) || all != c->map.size)
        return dw_fail(err, "--teacher-cache '%s' is damaged; remove it", c->path);
    dw_sha256_begin(&hash);
    dw_sha256_add(&hash, c->map.data, c->map.size - 32);
    dw_sha256_end(&hash, digest);
    if (memcmp(digest, c->map.data + c->map.size - 32, 32))
        return dw_fail(err, "--teacher-cache '%s' is damaged; remove it", c->path);
    return 0;
}

static int read_head(teacher_cache *c, const head *wanted, dw_err *err) {
    if (dw_map_file(&c->map, c->path, err)) return -1;
    if (c->map.size < sizeof c->h + 32 || memcmp(c->map.data, magic, sizeof magic))
        return dw_fail(err, "--teacher-cache '%s' is not a file of a teacher's predictions; give another name",
                       c->path);
    memcpy(&c->h, c->map.data, sizeof c->h);
    return check_file(c, wanted, err);
}

teacher_cache *teacher_cache_new(const char *path, const uint8_t identity[32], const teacher_cache_shape *s,
                                 dw_err *err) {
    const head wanted = head_of(s, identity);
    const char what[] = "stored predictions";
    teacher_cache *c = dw_alloc(1, sizeof *c, what, err);
    if (!c) return NULL;
    *c = (teacher_cache){.path = path, .n_ctx = s->n_ctx, .room = (size_t)s->n_windows * (size_t)s->n_ctx};
    if (!read_head(c, &wanted, err)) {
        c->token = dw_alloc(c->room, c->h.k * sizeof *c->token, what, err);
        c->logprob = dw_alloc(c->room, c->h.k * sizeof *c->logprob, what, err);
        c->rest = dw_alloc(c->room, sizeof *c->rest, what, err);
        c->coarse = (dw_coarse_teacher){(int)c->h.k, c->token, c->logprob, c->rest};
        if (c->token && c->logprob && c->rest) return c;
    }
    teacher_cache_close(c);
    return NULL;
}

int teacher_cache_open(distil *d, const char *path, const uint8_t identity[32], uint64_t n_steps, dw_err *err) {
    const teacher_cache_shape s = shape_of(d, n_steps);
    d->cache = teacher_cache_new(path, identity, &s, err);
    return d->cache ? 0 : -1;
}

/* False: an id is not of the vocabulary, or the mass of the others is none. */
static bool unpack_token(const teacher_cache *c, const uint8_t *from, size_t at) {
    const head *h = &c->h;
    int32_t *token = c->token + at * h->k;
    float *rest = &c->rest[at];
    for (uint32_t i = 0; i < h->k; i++) {
        uint32_t id = 0;
        uint16_t code;
        memcpy(&id, from + (size_t)i * h->id_bytes, h->id_bytes);
        memcpy(&code, from + (size_t)h->k * h->id_bytes + 2 * (size_t)i, 2);
        if (id >= h->n_vocab) return false;
        token[i] = (int32_t)id;
        c->logprob[at * h->k + i] = (float)(-code / steps_of_ln);
    }
    memcpy(rest, from + token_bytes(h) - sizeof *rest, sizeof *rest);
    return *rest <= 0 && *rest >= -1000;
}

int teacher_cache_read(teacher_cache *c, uint64_t step, int first, int n, dw_err *err) {
    const size_t n_tokens = (size_t)n * (size_t)c->n_ctx, bytes = token_bytes(&c->h);
    const size_t before = (size_t)(step - 1) * c->h.step_tokens + (size_t)first * (size_t)c->n_ctx;
    dw_assert(step >= 1 && step <= c->h.n_steps && n_tokens <= c->room);
    for (size_t i = 0; i < n_tokens; i++)
        if (!unpack_token(c, c->map.data + sizeof c->h + (before + i) * bytes, i))
            return dw_fail(err,
                           "--teacher-cache '%s': token %zu of step %llu has a prediction that cannot be; "
                           "remove the file",
                           c->path, i, (unsigned long long)step);
    return 0;
}
