/* distil.c - steps, held-out loss, checkpoints (distil.h). */
#include "kit/options.h"
#include "prune/teacher_cache.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PASS_TOKENS = 4096 }; // of one pass: large enough for efficient products

/* ---- windows --------------------------------------------------------------------------------------------------- */

/* Windows that a text holds out: its share, rounded up, as far as one window is left to learn from. */
static size_t held_of_text(size_t n, size_t n_text, const distil_options *o) {
    const size_t share = ((size_t)o->n_held + n_text - 1) / n_text, room = n / (size_t)o->n_ctx - 1;
    return share < room ? share : room;
}

size_t distil_n_held(const distil_text *text, size_t n_text, int n_ctx) {
    size_t n = 0;
    for (const distil_text *t = text; t < text + n_text; t++) n += (t->n - t->n_train) / (size_t)n_ctx;
    return n;
}

int distil_hold_out(distil_text *text, size_t n_text, const distil_options *o, dw_err *err) {
    const size_t n_ctx = (size_t)o->n_ctx;
    size_t n_held = 0;
    for (distil_text *t = text; t < text + n_text; t++) {
        if (t->n < n_ctx)
            return dw_fail(err, "'%s' has %zu tokens, a window needs %zu; give a longer text or a smaller -c", t->name,
                           t->n, n_ctx);
        const size_t n = held_of_text(t->n, n_text, o);
        t->n_train = t->n - n * n_ctx;
        n_held += n;
    }
    if (n_held < (size_t)o->n_held)
        return dw_fail(err,
                       "--held-out %d windows of %zu tokens are wanted, and one of every text to learn from, but the "
                       "texts have room for %zu; give longer texts, a smaller -c or fewer --held-out",
                       o->n_held, n_ctx, n_held);
    return 0;
}

static void copy_window(const distil *d, const int32_t *from, int32_t *to) {
    memcpy(to, from, (size_t)d->o.n_ctx * sizeof *to);
    if (d->o.bos >= 0) to[0] = d->o.bos;
}

/* Where a window of a text may begin: at n places. */
static size_t n_places(const distil *d, const distil_text *t) { return t->n_train - (size_t)d->o.n_ctx + 1; }

void distil_draw(const distil *d, uint64_t step) {
    dw_rng rng;
    uint64_t n_all = 0;
    dw_rng_seed(&rng, dw_splitmix(dw_splitmix(d->o.seed) + step));
    for (size_t i = 0; i < d->n_text; i++) n_all += n_places(d, &d->text[i]);
    for (int w = 0; w < d->o.batch; w++) {
        size_t at = dw_rng_below(&rng, n_all);
        const distil_text *t = d->text;
        while (at >= n_places(d, t)) at -= n_places(d, t++);
        copy_window(d, t->id + at, d->token + (size_t)w * (size_t)d->o.n_ctx);
    }
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

static dw_session *open_session(const dw_model *m, const distil_options *o, dw_err *err) {
    return dw_session_new(
        m, &(dw_session_options){.pool = o->pool, .backend = o->backend, .n_ctx = o->n_ctx, .n_batch = 1}, err);
}

/* Neither a step nor a measurement has more windows at a time than `batch`. */
static int windows_of_pass(const distil_options *o) {
    const int fit = PASS_TOKENS / o->n_ctx;
    return fit < 1 ? 1 : fit < o->batch ? fit : o->batch;
}

static dw_train_options pass_options(const distil_options *o, bool forward_only) {
    return (dw_train_options){.n_ctx = o->n_ctx,
                              .n_seq = windows_of_pass(o),
                              .forward_only = forward_only,
                              .keep_residuals = forward_only && o->hidden != 0,
                              .keep_values = !forward_only && o->keeps_values};
}

size_t distil_memory(const dw_model *student, const dw_model *teacher, const distil_options *o) {
    const dw_train_options pass = pass_options(o, false), forward = pass_options(o, true);
    dw_session *s = open_session(student, o, NULL), *t = open_session(teacher, o, NULL);
    const size_t own = s ? dw_train_memory(s, &pass) : 0, teachers = t ? dw_train_memory(t, &forward) : 0;
    const size_t n_best = s && o->keeps_best ? dw_parameters_n_values(s, &o->trained) : 0;
    const size_t parameters = s ? dw_parameters_memory(s, &o->trained) + n_best * sizeof(float) : 0;
    dw_session_free(s);
    dw_session_free(t);
    size_t sum;
    return own && teachers && dw_add(own, teachers, &sum) && dw_add(sum, parameters, &sum) ? sum : 0;
}

/* The first layer of the teacher from `l` on that has the FFN norm of the student's layer k; -1: there is none. */
static int teacher_layer(const distil *d, int k, int l, int n_layer) {
    const dw_tensor of = dw_session_tensor(d->session, k, DW_W_FFN_NORM);
    for (; l < n_layer; l++) {
        const dw_tensor t = dw_session_tensor(d->teacher_session, l, DW_W_FFN_NORM);
        if (t.n_bytes == of.n_bytes && !memcmp(t.data, of.data, t.n_bytes)) return l;
    }
    return -1;
}

/* Which of the teacher's residuals belongs to the one after each layer of the student. */
static int match_layers(distil *d, const dw_hparams *own, const dw_hparams *teachers, dw_err *err) {
    const int n = own->n_layer;
    if (own->n_embd != teachers->n_embd)
        return dw_fail(err,
                       "the model's hidden states have %d values, the teacher's %d, so they cannot be compared; leave "
                       "out --hidden-states",
                       own->n_embd, teachers->n_embd);
    if (!(d->residual = dw_alloc((size_t)n, sizeof *d->residual, "layers", err))) return -1;
    for (int k = 1, l = 0; k < n; k++) {
        l = n == teachers->n_layer ? k : teacher_layer(d, k, l + 1, teachers->n_layer);
        if (l < 0)
            return dw_fail(err,
                           "layer %d of the model has the FFN norm of no layer of the teacher, so it is unknown which "
                           "hidden states to compare; leave out --hidden-states, or heal the model as it was cut",
                           k);
        d->residual[k - 1] = l;
    }
    d->residual[n - 1] = teachers->n_layer;
    return 0;
}

int distil_open(distil *d, const dw_model *student, const dw_model *teacher, const distil_options *o, dw_err *err) {
    const dw_train_options pass = pass_options(o, false), forward = pass_options(o, true);
    d->o = *o;
    d->n_micro = pass.n_seq;
    d->model = student;
    d->teacher_model = teacher;
    d->session = open_session(student, o, err);
    d->teacher_session = d->session ? open_session(teacher, o, err) : NULL;
    if (!d->teacher_session) return -1;
    if (o->activation && dw_session_activation(d->session, o->activation, err)) return -1;
    if (o->hidden != 0 && match_layers(d, dw_model_hparams(student), dw_model_hparams(teacher), err)) return -1;
    d->token = dw_alloc((size_t)o->batch * (size_t)o->n_ctx, sizeof *d->token, "windows", err);
    d->train = dw_train_new(d->session, &pass, err);
    d->teacher = dw_train_new(d->teacher_session, &forward, err);
    if (!d->train || !d->teacher || !d->token || dw_parameters_new(&d->p, d->session, &o->trained, err)) return -1;
    if (o->keeps_best) d->best = dw_alloc(d->p.n_values, sizeof *d->best, "the values with the lowest loss", err);
    return o->keeps_best && !d->best ? -1 : 0;
}

void distil_close(distil *d) {
    teacher_cache_close(d->cache);
    dw_train_free(d->train);
    dw_train_free(d->teacher);
    if (d->p.item) dw_parameters_release(&d->p);
    dw_session_free(d->session);
    dw_session_free(d->teacher_session);
    free(d->token);
    free(d->residual);
    free(d->best);
    *d = (distil){0};
}

/* ---- steps ----------------------------------------------------------------------------------------------------- */

/* The means of distil.h as one factor of all sums, and weights within them.  With r = n_ctx / (n_ctx - 1),
 *     (1 - ce) KL + ce r CE + hidden r E + sparsity S = m ((1 - c) KL + c CE + h E + k S),
 *     m = 1 - ce + ce r,  c = ce r / m,  h = hidden r / m,  k = sparsity / m */
static double terms_of(const distil *d, dw_loss *loss) {
    const double ce = d->o.ce, r = (double)d->o.n_ctx / (d->o.n_ctx - 1), m = 1 - ce + ce * r;
    *loss = (dw_loss){.teacher = d->cache ? NULL : d->teacher,
                      .coarse = d->cache ? teacher_cache_coarse(d->cache) : NULL,
                      .temperature = d->o.temperature,
                      .ce = ce * r / m,
                      .hidden = d->o.hidden * r / m,
                      .sparsity = d->o.sparsity / m,
                      .residual = d->residual};
    return m;
}

static int forward(distil *d, const int32_t *token, int n, dw_err *err) {
    if (dw_train_forward(d->teacher, token, n, err) || dw_train_forward(d->train, token, n, err)) return -1;
    return 0;
}

/* Windows first .. first + n - 1 of the step that is begun: the student's pass, and what the teacher says. */
static int forward_step(distil *d, int first, int n, dw_err *err) {
    const int32_t *token = d->token + (size_t)first * (size_t)d->o.n_ctx;
    if (!d->cache) return forward(d, token, n, err);
    if (teacher_cache_read(d->cache, d->plan.steps + 1, first, n, err)) return -1;
    return dw_train_forward(d->train, token, n, err);
}

/* Fails for a loss that is no number, and names the step. */
static int check(const distil *d, const char *what, double value, dw_err *err) {
    if (isfinite(value)) return 0;
    return dw_fail(err, "step %llu is refused, because its %s is %g; try a smaller --lr",
                   (unsigned long long)d->plan.steps + 1, what, value);
}

int distil_step(distil *d, double rate, double *loss, dw_err *err) {
    dw_loss l;
    const size_t n_ctx = (size_t)d->o.n_ctx;
    const double scale = terms_of(d, &l) / ((double)d->o.batch * (double)n_ctx);
    dw_loss_sums sums = {0};
    dw_adamw adamw = d->o.adamw;
    adamw.rate = rate;
    distil_draw(d, d->plan.steps + 1);
    dw_parameters_zero_gradients(&d->p);
    for (int w = 0, n; w < d->o.batch; w += n) {
        n = d->o.batch - w < d->n_micro ? d->o.batch - w : d->n_micro;
        if (forward_step(d, w, n, err)) return -1;
        dw_train_backward(d->train, &l, scale, d->p.gradients, &sums);
    }
    *loss = sums.loss * scale;
    d->open = sums.n_density ? sums.open / (double)sums.n_density : 0;
    if (check(d, "loss", *loss, err)) return -1;
    if (check(d, "gradient", dw_adamw_step(&d->p, &adamw, d->plan.steps + 1, d->o.pool), err)) return -1;
    d->plan.steps++;
    return 0;
}

/* ---- operations ------------------------------------------------------------------------------------------------ */

static const dw_weight matrices[] = {DW_W_Q, DW_W_K, DW_W_V, DW_W_O, DW_W_GATE, DW_W_UP, DW_W_DOWN};

static double of_matrix(dw_session *s, int l, dw_weight w) {
    const dw_tensor t = dw_session_tensor(s, l, w);
    return t.name ? 2.0 * (double)t.ne[0] * (double)t.ne[1] : 0;
}

/* q k and p v of a token, which sees half of the window in the mean. */
static double of_attention(const dw_hparams *hp, int l, int n_ctx) {
    return 2.0 * hp->n_head[l] * hp->head_dim * n_ctx;
}

static double of_head(const dw_hparams *hp) { return 2.0 * hp->n_embd * hp->n_vocab; }

static double forward_operations(dw_session *s, const dw_hparams *hp, int n_ctx) {
    double sum = of_head(hp);
    for (int l = 0; l < hp->n_layer; l++) {
        sum += of_attention(hp, l, n_ctx);
        for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) sum += of_matrix(s, l, matrices[i]);
    }
    return sum;
}

/* dx of every product, dW where it is trained, attention's five products, and, unless they are kept, the values of all
 * layers but the last once more, without `down`. */
static double backward_operations(const distil *d, const dw_hparams *hp) {
    double sum = of_head(hp) * (d->p.gradients[hp->n_layer].of[DW_W_OUTPUT] ? 2 : 1);
    for (int l = 0; l < hp->n_layer; l++) {
        const bool again = !d->o.keeps_values && l < hp->n_layer - 1;
        sum += of_attention(hp, l, d->o.n_ctx) * (2.5 + again);
        for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
            const dw_weight w = matrices[i];
            const int n = 1 + (d->p.gradients[l].of[w] != NULL) + (again && w != DW_W_DOWN);
            sum += n * of_matrix(d->session, l, w);
        }
    }
    return sum;
}

double distil_operations(const distil *d) {
    const dw_hparams *hp = dw_model_hparams(d->model), *teachers = dw_model_hparams(d->teacher_model);
    const double teacher = d->cache ? 0 : forward_operations(d->teacher_session, teachers, d->o.n_ctx);
    return teacher + forward_operations(d->session, hp, d->o.n_ctx) + backward_operations(d, hp);
}

/* Steps cannot be faster than their products: other work then disturbed the measurement of the rate. */
void distil_speed_words(char words[160], double tokens, double allowed) {
    const double share = 100 * tokens / allowed;
    if (share <= 100)
        snprintf(words, 160,
                 "%.0f tokens/s, %.0f %% of the rate that their operations and the inner loop of products allow",
                 tokens, share);
    else
        snprintf(words, 160,
                 "%.0f tokens/s; other work disturbed the measurement of the machine's matrix products, so no share of "
                 "them can be told",
                 tokens);
}

/* ---- held out -------------------------------------------------------------------------------------------------- */

/* Held-out windows go through the pass one text after the other, n_micro at a time. */
int distil_held_out(distil *d, double *loss, dw_err *err) {
    const dw_loss l = {.teacher = d->teacher};
    const size_t n_ctx = (size_t)d->o.n_ctx, n_all = distil_n_held(d->text, d->n_text, d->o.n_ctx);
    dw_loss_sums sums = {0};
    size_t n_seen = 0;
    int n = 0;
    for (size_t i = 0; i < d->n_text; i++)
        for (size_t at = d->text[i].n_train; at + n_ctx <= d->text[i].n; at += n_ctx) {
            copy_window(d, d->text[i].id + at, d->token + (size_t)n++ * n_ctx);
            if (++n_seen < n_all && n < d->n_micro) continue;
            if (forward(d, d->token, n, err)) return -1;
            dw_train_loss(d->train, &l, &sums);
            n = 0;
        }
    *loss = n_all ? sums.loss / ((double)n_all * (double)n_ctx) : 0;
    return isfinite(*loss) ? 0
                           : dw_fail(err, "the held-out loss after step %llu is %g; try a smaller --lr",
                                     (unsigned long long)d->plan.steps, *loss);
}

void distil_keep_best(distil *d) { memcpy(d->best, d->p.value, d->p.n_values * sizeof *d->best); }

void distil_take_best(distil *d) {
    memcpy(d->p.value, d->best, d->p.n_values * sizeof *d->best);
    dw_parameters_derive(&d->p, d->o.pool);
}

/* ---- checkpoints ----------------------------------------------------------------------------------------------- */

static const char magic[16] = "deadwood heal 3\n", magic_2[16] = "deadwood heal 2\n";

typedef struct head {
    char magic[16];
    uint8_t identity[32];
    uint64_t n_steps, n_values;
    double seconds, longest, first_held_out;
    uint64_t n_measured, best_step;
    double best;
    uint64_t n_worse;
    double reserve; // not in version 2
} head;
_Static_assert(sizeof(head) == 128, "the head has no gaps");

static head head_of(const distil *d, const uint8_t identity[32]) {
    const schedule *p = &d->plan;
    head h = {.n_steps = p->steps,
              .n_values = d->p.n_values,
              .seconds = p->seconds,
              .longest = p->longest,
              .first_held_out = d->first_held_out,
              .n_measured = (uint64_t)p->n_measured,
              .best_step = p->best_step,
              .best = p->best,
              .n_worse = (uint64_t)p->n_worse,
              .reserve = p->reserve};
    memcpy(h.magic, magic, sizeof h.magic);
    memcpy(h.identity, identity, sizeof h.identity);
    return h;
}

static void take_head(distil *d, const head *h) {
    schedule *p = &d->plan;
    p->steps = h->n_steps;
    p->seconds = h->seconds;
    p->longest = h->longest;
    p->n_measured = (int)h->n_measured;
    p->best_step = h->best_step;
    p->best = h->best;
    p->n_worse = (int)h->n_worse;
    p->reserve = fmax(p->reserve, h->reserve);
    d->first_held_out = h->first_held_out;
}

static bool is_plausible(const head *h) {
    const bool times = h->seconds >= 0 && isfinite(h->seconds) && h->longest >= 0 && isfinite(h->longest) &&
                       h->reserve >= 0 && isfinite(h->reserve);
    const bool losses = isfinite(h->first_held_out) && isfinite(h->best);
    return times && losses && h->best_step <= h->n_steps && h->n_measured <= SCHEDULE_PARTS &&
           h->n_worse <= SCHEDULE_PARTS;
}

static bool has_best(const distil *d, const head *h) { return d->best && h->best_step; }

static int put(dw_out *out, dw_sha256 *hash, const void *data, size_t size, dw_err *err) {
    dw_sha256_add(hash, data, size);
    return dw_out_write(out, data, size, err);
}

static int save_to(const distil *d, dw_out *out, const uint8_t identity[32], dw_err *err) {
    const head h = head_of(d, identity);
    const size_t bytes = d->p.n_values * sizeof(float);
    uint8_t digest[32];
    dw_sha256 hash;
    dw_sha256_begin(&hash);
    if (put(out, &hash, &h, sizeof h, err) || put(out, &hash, d->p.value, bytes, err) ||
        put(out, &hash, d->p.mean, bytes, err) || put(out, &hash, d->p.square, bytes, err) ||
        (has_best(d, &h) && put(out, &hash, d->best, bytes, err)))
        return -1;
    dw_sha256_end(&hash, digest);
    if (dw_out_write(out, digest, sizeof digest, err) || dw_out_commit(out, err)) return -1;
    return 0;
}

int distil_save(const distil *d, const char *path, const uint8_t identity[32], dw_err *err) {
    dw_out *out = dw_out_open_kept(path, err);
    const int rc = out ? save_to(d, out, identity, err) : -1;
    dw_out_free(out);
    return rc;
}

/* Reads the head and returns its bytes; 0: the file begins with none. */
static size_t read_head(const dw_map *m, head *h) {
    const bool is_2 = m->size >= sizeof magic_2 && !memcmp(m->data, magic_2, sizeof magic_2);
    const size_t n = is_2 ? offsetof(head, reserve) : sizeof *h;
    *h = (head){.reserve = 0};
    if (m->size < n + 32 || (!is_2 && memcmp(m->data, magic, sizeof magic))) return 0;
    memcpy(h, m->data, n);
    return n;
}

/* Whole, and of this run? */
static int check_file(const distil *d, const dw_map *m, const char *path, const uint8_t identity[32], dw_err *err) {
    head h;
    uint8_t digest[32];
    dw_sha256 hash;
    const size_t n_head = read_head(m, &h);
    if (!n_head) return dw_fail(err, "'%s' is not a checkpoint of heal, or is damaged; remove it to begin again", path);
    if (memcmp(h.identity, identity, 32)) return tool_other_run(path, err);
    dw_sha256_begin(&hash);
    dw_sha256_add(&hash, m->data, m->size - 32);
    dw_sha256_end(&hash, digest);
    const size_t n_arrays = has_best(d, &h) ? 4 : 3;
    if (h.n_values != d->p.n_values || m->size != n_head + n_arrays * d->p.n_values * sizeof(float) + 32 ||
        !is_plausible(&h) || memcmp(digest, m->data + m->size - 32, 32))
        return dw_fail(err, "'%s' is damaged; remove it to begin again", path);
    return 0;
}

int distil_load(distil *d, const char *path, const uint8_t identity[32], dw_err *err) {
    const size_t bytes = d->p.n_values * sizeof(float);
    dw_map m;
    head h;
    if (!dw_file_exists(path)) return 0;
    if (dw_map_file(&m, path, err)) return -1;
    const bool is_empty = !m.size; // a killed run had the path, and no checkpoint
    const int rc = is_empty ? 0 : check_file(d, &m, path, identity, err);
    if (!rc && !is_empty) {
        const uint8_t *values = m.data + read_head(&m, &h);
        memcpy(d->p.value, values, bytes);
        memcpy(d->p.mean, values + bytes, bytes);
        memcpy(d->p.square, values + 2 * bytes, bytes);
        if (has_best(d, &h)) memcpy(d->best, values + 3 * bytes, bytes);
        take_head(d, &h);
        dw_parameters_derive(&d->p, d->o.pool);
    }
    dw_unmap(&m);
    return rc ? -1 : !is_empty;
}
