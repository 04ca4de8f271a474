/* predictions.c - writes and reads a stored base; the layout is in predictions.h. */
#include "measure/predictions.h"
#include "measure/pack.h"
#include "measure/windows.h"
#include "text/tokenizers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

enum {
    CHUNK = 256,
    RECORD = 8 + 4 * MEASURE_TOP + 4 * MEASURE_TOP + 4,
    MAX_HEAD = 16 << 20,
    MAX_NAME = 4096,
    MAX_TEXTS = 1 << 16,
    LEVEL = 6,
};

enum { VERSION = 3 };
static const char magics[VERSION][9] = {"dw-base1", "dw-base2", "dw-base3"};
enum { MAGIC = sizeof *magics - 1 }; // bytes

void measure_vocab_hash(const dw_vocab *v, uint8_t digest[32]) {
    dw_sha256 h;
    dw_sha256_begin(&h);
    for (size_t i = 0; i < v->n_token + v->n_merge; i++) {
        const dw_str s = i < v->n_token ? v->token[i] : v->merge[i - v->n_token];
        const uint32_t len = (uint32_t)s.len;
        dw_sha256_add(&h, &len, sizeof len);
        dw_sha256_add(&h, s.ptr, s.len);
    }
    dw_sha256_end(&h, digest);
}

void measure_ids_hash(const int32_t *ids, size_t n, uint8_t digest[32]) {
    dw_sha256 h;
    dw_sha256_begin(&h);
    for (size_t i = 0; i < n; i++) {
        uint8_t id[4];
        measure_put_u32(id, (uint32_t)ids[i]);
        dw_sha256_add(&h, id, sizeof id);
    }
    dw_sha256_end(&h, digest);
}

/* ---- records ---------------------------------------------------------------------------------------------- */

static void put_float(uint8_t *p, float f) {
    uint32_t v;
    memcpy(&v, &f, sizeof v);
    measure_put_u32(p, v);
}

static float get_float(const uint8_t *p) {
    const uint32_t v = dw_le32(p);
    float f;
    memcpy(&f, &v, sizeof f);
    return f;
}

static void put_record(uint8_t *to, const measure_prediction *p) {
    uint64_t v;
    memcpy(&v, &p->logprob, sizeof v);
    measure_put_u32(to, (uint32_t)v);
    measure_put_u32(to + 4, (uint32_t)(v >> 32));
    for (int k = 0; k < MEASURE_TOP; k++) {
        measure_put_u32(to + 8 + 4 * k, (uint32_t)p->coarse.id[k]);
        put_float(to + 8 + 4 * MEASURE_TOP + 4 * k, p->coarse.logprob[k]);
    }
    put_float(to + RECORD - 4, p->coarse.tail);
}

/* Whether v can be ln of a probability; rounding may make it slightly larger than 0. */
static bool is_logprob(double v) { return v <= 1e-6 && v > -1e5; }

static bool has_repeated(const int32_t *id, int n) {
    for (int k = 1; k < n; k++)
        for (int i = 0; i < k; i++)
            if (id[i] == id[k]) return true;
    return false;
}

/* False when the bytes are not a prediction over n_vocab tokens. */
static bool get_record(const uint8_t *from, int n_vocab, measure_prediction *p) {
    const uint64_t v = dw_le64(from);
    memcpy(&p->logprob, &v, sizeof v);
    p->coarse.tail = get_float(from + RECORD - 4);
    bool ok = is_logprob(p->logprob) && is_logprob((double)p->coarse.tail);
    for (int k = 0; k < MEASURE_TOP; k++) {
        const uint32_t id = dw_le32(from + 8 + 4 * k);
        p->coarse.id[k] = (int32_t)id;
        p->coarse.logprob[k] = get_float(from + 8 + 4 * MEASURE_TOP + 4 * k);
        if (k < measure_n_top(n_vocab)) ok &= id < (uint32_t)n_vocab && is_logprob((double)p->coarse.logprob[k]);
    }
    return ok && !has_repeated(p->coarse.id, measure_n_top(n_vocab));
}

/* ---- writing ---------------------------------------------------------------------------------------------- */

struct measure_predictions_writer {
    dw_out *out;
    size_t *n_left; // for each text, predictions that are not written yet
    int n_texts, text;
    uint8_t *record; // (CHUNK, RECORD)
    size_t n_record; // filled ones
    uint8_t *planes; // (RECORD, n_record)
    uint8_t *packed;
    size_t packed_cap;
};

static int write_u32(dw_out *out, size_t v, dw_err *err) {
    uint8_t b[4];
    measure_put_u32(b, (uint32_t)v);
    return dw_out_write(out, b, sizeof b, err);
}

/* `with_raw`: writes the raw size first.  A chunk needs none, because the number of its records gives it. */
static int write_packed(measure_predictions_writer *w, const void *raw, size_t size, bool with_raw, dw_err *err) {
    const size_t n = measure_pack(w->packed, w->packed_cap, raw, size, LEVEL);
    if (!n) return dw_fail(err, "cannot compress predictions");
    if (with_raw && write_u32(w->out, size, err)) return -1;
    if (write_u32(w->out, n, err) || dw_out_write(w->out, w->packed, n, err)) return -1;
    return 0;
}

static int write_head(measure_predictions_writer *w, const measure_stored_head *h, dw_err *err) {
    measure_bytes b = {.err = err};
    measure_add_text(&b, h->model);
    measure_add(&b, h->model_sha256, 32);
    measure_add_u32(&b, (uint32_t)h->n_vocab);
    measure_add(&b, h->vocab_sha256, 32);
    measure_add_text(&b, h->protocol);
    measure_add_u32(&b, (uint32_t)h->n_ctx);
    measure_add_u32(&b, (uint32_t)h->bos);
    measure_add_u32(&b, (uint32_t)h->first);
    measure_add_u32(&b, (uint32_t)h->last);
    measure_add_u32(&b, h->learnt_unnamed);
    measure_add_u32(&b, (uint32_t)h->n_texts);
    for (int t = 0; t < h->n_texts; t++) {
        measure_add_text(&b, h->text[t].name);
        measure_add(&b, h->text[t].sha256, 32);
        measure_add_u64(&b, h->text[t].n_tokens);
        measure_add_u64(&b, h->text[t].n_scored);
        measure_add_text(&b, h->text[t].leak ? h->text[t].leak : "");
        measure_add(&b, h->text[t].ids_sha256, 32);
    }
    int rc = b.failed                                      ? -1
             : b.size > MAX_HEAD || h->n_texts > MAX_TEXTS ? dw_fail(err, "too many texts for one stored base")
                                                           : 0;
    const size_t bound = ZSTD_compressBound(b.size > CHUNK * RECORD ? b.size : CHUNK * RECORD);
    w->packed = rc ? NULL : dw_alloc(bound, 1, "packed predictions", err);
    w->packed_cap = bound;
    rc = w->packed ? write_packed(w, b.data, b.size, true, err) : -1;
    free(b.data);
    return rc;
}

measure_predictions_writer *measure_predictions_writer_new(const char *path, const measure_stored_head *h,
                                                           dw_err *err) {
    measure_predictions_writer *w = dw_alloc(1, sizeof *w, "a writer of predictions", err);
    if (!w) return NULL;
    w->n_texts = h->n_texts;
    w->n_left = dw_alloc((size_t)h->n_texts, sizeof *w->n_left, "a writer of predictions", err);
    w->record = dw_alloc(CHUNK, RECORD, "predictions", err);
    w->planes = dw_alloc(CHUNK, RECORD, "predictions", err);
    if (w->n_left && w->record && w->planes && (w->out = dw_out_open(path, err))) {
        for (int t = 0; t < h->n_texts; t++) w->n_left[t] = h->text[t].n_scored;
        if (!dw_out_write(w->out, magics[VERSION - 1], MAGIC, err) && !write_head(w, h, err)) return w;
    }
    measure_predictions_writer_free(w);
    return NULL;
}

static int write_chunk(measure_predictions_writer *w, dw_err *err) {
    const size_t n = w->n_record;
    for (size_t b = 0; b < RECORD; b++)
        for (size_t i = 0; i < n; i++) w->planes[b * n + i] = w->record[i * RECORD + b];
    w->n_record = 0;
    return write_packed(w, w->planes, n * RECORD, false, err);
}

int measure_predictions_write(measure_predictions_writer *w, const measure_prediction *p, size_t n, dw_err *err) {
    for (size_t i = 0; i < n; i++) {
        if (w->text == w->n_texts) return dw_fail(err, "more predictions are written than the header announces");
        put_record(w->record + w->n_record++ * RECORD, &p[i]);
        const bool text_ends = --w->n_left[w->text] == 0;
        if ((text_ends || w->n_record == CHUNK) && write_chunk(w, err)) return -1;
        w->text += text_ends;
    }
    return 0;
}

struct measure_predictions {
    dw_map map; // data NULL: memory of the caller
    char *name;
    measure_stored_head head;
    dw_cursor *chunks; // n_texts: the first chunk of each text
    dw_cursor at;      // the next chunk
    uint64_t n_left;   // predictions of the text from the next chunk on
    int text;
    uint8_t *planes;      // the chunk that is being read
    size_t n_chunk, used; // its predictions, and how many of them were read
};

/* Reads all predictions of a file. */
static int read_back(void *ctx, const char *path, dw_err *err) {
    (void)ctx;
    dw_map map;
    if (dw_map_file(&map, path, err)) return -1;
    measure_predictions *p = measure_predictions_open_memory(map.data, map.size, "new file", err);
    measure_prediction *some = p ? dw_alloc(CHUNK, sizeof *some, "predictions", err) : NULL;
    int rc = some ? 0 : -1;
    for (int t = 0; !rc && t < p->head.n_texts; t++) {
        measure_predictions_seek(p, t);
        for (size_t left = p->head.text[t].n_scored, n; !rc && left; left -= n) {
            n = left < CHUNK ? left : CHUNK;
            rc = measure_predictions_read(p, some, n, err);
        }
    }
    free(some);
    measure_predictions_close(p);
    dw_unmap(&map);
    return rc;
}

int measure_predictions_commit(measure_predictions_writer *w, bool unread, dw_err *err) {
    if (w->text != w->n_texts) return dw_fail(err, "fewer predictions are written than the header announces");
    return unread ? dw_out_commit(w->out, err) : dw_out_commit_checked(w->out, read_back, NULL, err);
}

void measure_predictions_writer_free(measure_predictions_writer *w) {
    if (!w) return;
    dw_out_free(w->out);
    free(w->n_left);
    free(w->record);
    free(w->planes);
    free(w->packed);
    free(w);
}

/* ---- reading ---------------------------------------------------------------------------------------------- */

static void read_hash(dw_cursor *c, uint8_t hash[32]) {
    const uint8_t *bytes32 = dw_cursor_take(c, 32);
    if (bytes32) memcpy(hash, bytes32, 32);
}

/* A number from least to most. */
static int read_count(dw_cursor *c, int least, int most) {
    const uint32_t v = dw_cursor_u32(c);
    if (v < (uint32_t)least || v > (uint32_t)most) c->failed = true;
    return c->failed ? 0 : (int)v;
}

static int version_of(const uint8_t begin[8]) { // 0: not a stored base
    int version = VERSION;
    while (version && memcmp(begin, magics[version - 1], MAGIC)) version--;
    return version;
}

static int read_text(dw_cursor *c, measure_stored_text *t, int version, dw_err *err) {
    const bool has_leak = version >= 2;
    t->name = measure_read_text(c, MAX_NAME, err);
    read_hash(c, t->sha256);
    t->n_tokens = dw_cursor_u64(c);
    t->n_scored = dw_cursor_u64(c);
    if (!t->n_scored || t->n_scored >= t->n_tokens || t->n_tokens > INT32_MAX)
        c->failed = true;
    t->leak = has_leak ? measure_read_text(c, MAX_HEAD, err) : NULL;
    if (version >= 3) read_hash(c, t->ids_sha256);
    if (c->failed || !t->name || (has_leak && !t->leak)) return -1;
    if (!t->leak || *t->leak) return 0;
    free(t->leak);
    t->leak = NULL;
    return 0;
}

static int read_head(measure_stored_head *h, dw_cursor *c, int version, dw_err *err) {
    h->model = measure_read_text(c, MAX_NAME, err);
    read_hash(c, h->model_sha256);
    h->n_vocab = read_count(c, 1, 1 << 24);
    read_hash(c, h->vocab_sha256);
    h->protocol = measure_read_text(c, MAX_NAME, err);
    h->n_ctx = read_count(c, MEASURE_LEAST_CTX, 1 << 22);
    h->bos = (int32_t)dw_cursor_u32(c);
    h->first = read_count(c, 0, INT32_MAX);
    h->last = read_count(c, 0, INT32_MAX);
    if (h->bos < -1 || h->bos >= h->n_vocab || h->first > h->last || (!h->first && h->last)) c->failed = true;
    h->learnt_unnamed = version == 1 || read_count(c, 0, 1);
    const int n = read_count(c, 1, MAX_TEXTS);
    h->text = c->failed || err->text[0] ? NULL : dw_alloc((size_t)n, sizeof *h->text, "texts", err);
    if (!h->text) return -1;
    h->n_texts = n;
    for (int t = 0; t < n; t++)
        if (read_text(c, &h->text[t], version, err)) return -1;
    return c->left ? -1 : 0;
}

/* Finds the first chunk of every text. */
static int index_chunks(measure_predictions *p, dw_cursor c, dw_err *err) {
    p->chunks = dw_alloc((size_t)p->head.n_texts, sizeof *p->chunks, "texts", err);
    if (!p->chunks) return -1;
    for (int t = 0; t < p->head.n_texts; t++) {
        p->chunks[t] = c;
        for (uint64_t left = p->head.text[t].n_scored; left; left -= left < CHUNK ? left : CHUNK)
            if (!dw_cursor_take(&c, dw_cursor_u32(&c)) || c.failed)
                return dw_fail(err, "'%s' is not a whole stored base: it ends inside the predictions for '%s'", p->name,
                               p->head.text[t].name);
    }
    return c.left ? dw_fail(err, "'%s' is not a stored base: %zu bytes follow its end", p->name, c.left) : 0;
}

static measure_predictions *open_bytes(measure_predictions *p, const void *data, size_t size, dw_err *err) {
    dw_cursor c = {.at = data, .left = size};
    dw_err own = {0};
    const uint8_t *begin = dw_cursor_take(&c, MAGIC);
    const int version = begin ? version_of(begin) : 0;
    if (!version) {
        dw_fail(err, "'%s' is not a stored base of predictions; score --store writes one", p->name);
        goto fail;
    }
    const size_t raw = dw_cursor_u32(&c), packed = dw_cursor_u32(&c);
    uint8_t *head = c.failed || raw > MAX_HEAD || packed > c.left || raw / 4096 > packed
                        ? NULL
                        : dw_alloc(raw + 1, 1, "a header", &own);
    int rc = head ? measure_unpack(&c, packed, head, raw) : -1;
    if (!rc) rc = read_head(&p->head, &(dw_cursor){.at = head, .left = raw}, version, &own);
    free(head);
    if (rc)
        dw_fail(err, own.text[0] ? "'%s': %s" : "'%s' is not a stored base: its header is damaged%s", p->name,
                own.text);
    p->planes = rc ? NULL : dw_alloc(CHUNK, RECORD, "predictions", err);
    if (p->planes && !index_chunks(p, c, err)) {
        measure_predictions_seek(p, 0);
        return p;
    }
fail:
    measure_predictions_close(p);
    return NULL;
}

measure_predictions *measure_predictions_open_memory(const void *data, size_t size, const char *name, dw_err *err) {
    measure_predictions *p = dw_alloc(1, sizeof *p, "a stored base", err);
    if (p && (p->name = dw_strdup(name, err))) return open_bytes(p, data, size, err);
    measure_predictions_close(p);
    return NULL;
}

measure_predictions *measure_predictions_open(const char *path, dw_err *err) {
    dw_map map;
    if (dw_map_file(&map, path, err)) return NULL;
    measure_predictions *p = measure_predictions_open_memory(map.data, map.size, path, err);
    if (p)
        p->map = map;
    else
        dw_unmap(&map);
    return p;
}

bool measure_is_predictions(const char *path) {
    for (int v = 0; v < VERSION; v++)
        if (dw_file_begins(path, magics[v], MAGIC)) return true;
    return false;
}

void measure_predictions_close(measure_predictions *p) {
    if (!p) return;
    for (int t = 0; t < p->head.n_texts; t++) {
        free(p->head.text[t].name);
        free(p->head.text[t].leak);
    }
    free(p->head.text);
    free(p->head.model);
    free(p->head.protocol);
    free(p->chunks);
    free(p->planes);
    free(p->name);
    if (p->map.data) dw_unmap(&p->map);
    free(p);
}

const measure_stored_head *measure_predictions_head(const measure_predictions *p) { return &p->head; }

void measure_predictions_seek(measure_predictions *p, int text) {
    p->text = text;
    p->at = p->chunks[text];
    p->n_left = p->head.text[text].n_scored;
    p->n_chunk = p->used = 0;
}

static int next_chunk(measure_predictions *p, dw_err *err) {
    if (!p->n_left) return dw_fail(err, "'%s' has no more predictions for '%s'", p->name, p->head.text[p->text].name);
    p->n_chunk = p->n_left < CHUNK ? (size_t)p->n_left : CHUNK;
    p->n_left -= p->n_chunk;
    p->used = 0;
    const size_t packed = dw_cursor_u32(&p->at);
    if (!measure_unpack(&p->at, packed, p->planes, p->n_chunk * RECORD)) return 0;
    p->n_left = p->n_chunk = 0;
    return dw_fail(err, "'%s' is damaged: predictions for '%s' cannot be unpacked", p->name,
                   p->head.text[p->text].name);
}

int measure_predictions_read(measure_predictions *p, measure_prediction *out, size_t n, dw_err *err) {
    uint8_t record[RECORD];
    for (size_t i = 0; i < n; i++) {
        if (p->used == p->n_chunk && next_chunk(p, err)) return -1;
        for (size_t b = 0; b < RECORD; b++) record[b] = p->planes[b * p->n_chunk + p->used];
        p->used++;
        if (!get_record(record, p->head.n_vocab, &out[i]))
            return dw_fail(err, "'%s' is damaged: a prediction for '%s' is out of range", p->name,
                           p->head.text[p->text].name);
    }
    return 0;
}
