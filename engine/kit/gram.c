/* gram.c - reads and writes STATS.gram (gram.h). */
#include "kit/gram.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGN = 64,
    HASH = 32,
    TEXT_BYTES = 208,
    MATRIX_BYTES = 16,
    FIXED_BYTES = 64 + 32 + 4 * 4,
    MAX_TEXTS = 1 << 20,
    MAX_MATRICES = KIT_GRAM_N_KINDS * DW_MAX_LAYERS,
    MAX_WIDTH = 1 << 20,
};

static const char magic[] = "deadwood gram 1\n";

const char *const kit_gram_names[KIT_GRAM_N_KINDS] = {"the inputs of q, k, v", "the inputs of o",
                                                      "the inputs of gate and up", "the inputs of down",
                                                      "the gradients by the FFN's output"};

char *kit_gram_path(const char *stats_path, dw_err *err) { return dw_format(err, "%s.gram", stats_path); }

double kit_gram_n_tokens(const kit_gram *g) {
    double n = 0;
    for (size_t t = 0; t < g->n_text; t++) n += (double)g->text[t].n_tokens;
    return n;
}

void kit_gram_close(kit_gram *g) {
    dw_unmap(&g->map);
    free(g->text);
    free(g->matrix);
    free(g->is_checked);
    *g = (kit_gram){0};
}

/* ---- a head in memory ------------------------------------------------------------------------------------- */

int kit_gram_head(kit_gram *g, const kit_stats *s, dw_err *err) {
    *g = (kit_gram){.n_ctx = s->n_ctx, .skip = s->skip, .n_text = s->n_text};
    memcpy(g->model_sha256, s->model_sha256, sizeof g->model_sha256);
    memcpy(g->backend, s->backend, sizeof g->backend);
    g->text = dw_alloc(s->n_text, sizeof *g->text, "texts", err);
    g->matrix = dw_alloc(KIT_GRAM_N_KINDS * (size_t)s->n_layer, sizeof *g->matrix, "a list of matrices", err);
    if (!g->text || !g->matrix) {
        kit_gram_close(g);
        return -1;
    }
    for (size_t t = 0; t < s->n_text; t++) {
        g->text[t] = s->text[t];
        g->text[t].blocks = NULL;
    }
    return 0;
}

int kit_gram_add_matrix(kit_gram *g, int layer, int input, int n, dw_err *err) {
    if (n < 1 || n > MAX_WIDTH || g->n_matrix >= MAX_MATRICES)
        return dw_fail(err, "layer %d: a Gram matrix of width %d is out of range", layer, n);
    g->matrix[g->n_matrix++] = (kit_gram_matrix){.layer = layer, .input = input, .n = n};
    return 0;
}

/* ---- writing ---------------------------------------------------------------------------------------------- */

struct kit_gram_out {
    dw_out *out;
    const kit_gram *head;
    size_t n_put, n_bytes;
};

static void put_u32(uint8_t **at, uint32_t v) {
    for (int i = 0; i < 4; i++) *(*at)++ = (uint8_t)(v >> (8 * i));
}

static void put_bytes(uint8_t **at, const void *bytes, size_t n) {
    memcpy(*at, bytes, n);
    *at += n;
}

static void put_head(const kit_gram *g, uint8_t *at) {
    put_bytes(&at, g->model_sha256, 64);
    put_bytes(&at, g->backend, sizeof g->backend);
    put_u32(&at, (uint32_t)g->n_ctx), put_u32(&at, (uint32_t)g->skip);
    put_u32(&at, (uint32_t)g->n_text), put_u32(&at, (uint32_t)g->n_matrix);
    for (size_t t = 0; t < g->n_text; t++) {
        const kit_stats_text *x = &g->text[t];
        memcpy(at, x->name, strnlen(x->name, sizeof x->name)); // zeros follow
        at += sizeof x->name;
        put_bytes(&at, x->sha256, 64);
        put_u32(&at, (uint32_t)x->first_window), put_u32(&at, (uint32_t)x->n_windows);
        put_u32(&at, (uint32_t)x->n_tokens), put_u32(&at, (uint32_t)(x->n_tokens >> 32));
    }
    for (size_t i = 0; i < g->n_matrix; i++) {
        const kit_gram_matrix *m = &g->matrix[i];
        put_u32(&at, (uint32_t)m->layer), put_u32(&at, (uint32_t)m->input);
        put_u32(&at, (uint32_t)m->n), put_u32(&at, 0);
    }
}

static int write_padded(kit_gram_out *o, const void *data, size_t n, dw_err *err) {
    static const uint8_t zeros[ALIGN];
    const size_t padding = (ALIGN - (o->n_bytes + n) % ALIGN) % ALIGN;
    o->n_bytes += n + padding;
    if (dw_out_write(o->out, data, n, err) || dw_out_write(o->out, zeros, padding, err)) return -1;
    return 0;
}

static size_t head_bytes(size_t n_text, size_t n_matrix) {
    return FIXED_BYTES + n_text * TEXT_BYTES + n_matrix * MATRIX_BYTES;
}

static int write_head(kit_gram_out *o, dw_err *err) {
    const kit_gram *g = o->head;
    const size_t n = head_bytes(g->n_text, g->n_matrix);
    uint8_t *head = dw_alloc(n, 1, "a head of Gram matrices", err), first[ALIGN] = {0}, *at = first;
    if (!head) return -1;
    put_head(g, head);
    put_bytes(&at, magic, strlen(magic));
    put_u32(&at, (uint32_t)n), put_u32(&at, (uint32_t)((uint64_t)n >> 32));
    dw_sha256_digest(head, n, at);
    int rc = write_padded(o, first, ALIGN, err);
    if (!rc) rc = write_padded(o, head, n, err);
    free(head);
    return rc;
}

kit_gram_out *kit_gram_begin(const kit_gram *head, const char *path, dw_err *err) {
    kit_gram_out *o = dw_alloc(1, sizeof *o, "a file of Gram matrices", err);
    if (!o) return NULL;
    o->head = head;
    o->out = dw_out_open_kept(path, err);
    if (o->out && !write_head(o, err)) return o;
    kit_gram_out_free(o);
    return NULL;
}

int kit_gram_put(kit_gram_out *o, const double *sum, dw_err *err) {
    if (o->n_put == o->head->n_matrix)
        return dw_fail(err, "a Gram matrix too many: the head lists %zu", o->head->n_matrix);
    const size_t n = kit_gram_packed(o->head->matrix[o->n_put++].n) * sizeof *sum;
    uint8_t hash[HASH];
    dw_sha256_digest(sum, n, hash);
    o->n_bytes += n;
    if (dw_out_write(o->out, sum, n, err) || write_padded(o, hash, HASH, err)) return -1;
    return 0;
}

int kit_gram_commit(kit_gram_out *o, dw_err *err) {
    if (o->n_put == o->head->n_matrix) return dw_out_commit(o->out, err);
    return dw_fail(err, "%zu of %zu Gram matrices were written", o->n_put, o->head->n_matrix);
}

void kit_gram_out_free(kit_gram_out *o) {
    if (!o) return;
    dw_out_free(o->out);
    free(o);
}

/* ---- reading ---------------------------------------------------------------------------------------------- */

static int damaged(const char *path, const char *how, dw_err *err) {
    return dw_fail(err, "'%s' %s; collect it again (collect --gram)", path, how);
}

static bool has_hash(const void *data, size_t n, const uint8_t hash[HASH]) {
    uint8_t digest[HASH];
    dw_sha256_digest(data, n, digest);
    return !memcmp(digest, hash, HASH);
}

static void take_chars(dw_cursor *c, char *to, size_t n) {
    const uint8_t *at = dw_cursor_take(c, n);
    if (at) memcpy(to, at, n);
}

static bool read_text(dw_cursor *c, kit_stats_text *t) {
    take_chars(c, t->name, sizeof t->name);
    take_chars(c, t->sha256, 64);
    t->first_window = (int)dw_cursor_u32(c);
    t->n_windows = (int)dw_cursor_u32(c);
    t->n_tokens = dw_cursor_u64(c);
    return !c->failed && dw_is_hash(t->sha256) && t->first_window >= 1 && t->n_windows >= 0 &&
           t->n_tokens <= UINT32_MAX && memchr(t->name, 0, sizeof t->name) && dw_is_utf8(t->name, strlen(t->name));
}

static bool read_matrix(dw_cursor *c, kit_gram_matrix *m, const kit_gram_matrix *before) {
    m->layer = (int)dw_cursor_u32(c);
    const uint32_t input = dw_cursor_u32(c);
    m->input = (int)input;
    m->n = (int)dw_cursor_u32(c);
    dw_cursor_u32(c);
    const bool ascends = !before || m->layer > before->layer || (m->layer == before->layer && m->input > before->input);
    return !c->failed && ascends && m->layer >= 0 && m->layer < DW_MAX_LAYERS && input < KIT_GRAM_N_KINDS &&
           m->n >= 1 && m->n <= MAX_WIDTH;
}

static bool read_fixed(dw_cursor *c, kit_gram *g, size_t n_head) {
    take_chars(c, g->model_sha256, 64);
    take_chars(c, g->backend, sizeof g->backend);
    g->n_ctx = (int)dw_cursor_u32(c);
    g->skip = (int)dw_cursor_u32(c);
    g->n_text = dw_cursor_u32(c);
    g->n_matrix = dw_cursor_u32(c);
    const bool is_plain = dw_is_hash(g->model_sha256) && memchr(g->backend, 0, sizeof g->backend) &&
                          dw_is_utf8(g->backend, strlen(g->backend));
    return !c->failed && is_plain && g->n_ctx >= 0 && g->skip >= 0 && g->n_text >= 1 && g->n_text <= MAX_TEXTS &&
           g->n_matrix <= MAX_MATRICES && head_bytes(g->n_text, g->n_matrix) == n_head;
}

/* Where the matrices lie; the file must end after the last. */
static bool place(kit_gram *g, size_t at) {
    for (size_t i = 0; i < g->n_matrix; i++) {
        const size_t n = kit_gram_packed(g->matrix[i].n) * sizeof(double) + HASH; // at most 2^42
        at = (at + ALIGN - 1) / ALIGN * ALIGN;
        if (at > g->map.size || n > g->map.size - at) return false;
        g->matrix[i].sum = (const double *)(const void *)(g->map.data + at);
        at += n;
    }
    return (at + ALIGN - 1) / ALIGN * ALIGN == g->map.size;
}

static int read_head(kit_gram *g, const char *path, dw_err *err) {
    dw_cursor first = {g->map.data, g->map.size, false};
    const uint8_t *words = dw_cursor_take(&first, strlen(magic));
    if (!words || memcmp(words, magic, strlen(magic)))
        return dw_fail(err, "'%s' holds no Gram matrices of 'deadwood collect'", path);
    const uint64_t n_head = dw_cursor_u64(&first);
    const uint8_t *hash = dw_cursor_take(&first, HASH);
    dw_cursor_take(&first, ALIGN - strlen(magic) - 8 - HASH);
    const uint8_t *head = dw_cursor_take(&first, n_head);
    if (first.failed || !has_hash(head, n_head, hash)) return damaged(path, "is damaged in its head", err);
    dw_cursor c = {head, n_head, false};
    if (!read_fixed(&c, g, n_head)) return damaged(path, "has a head that makes no sense", err);
    g->text = dw_alloc(g->n_text, sizeof *g->text, "texts", err);
    g->matrix = dw_alloc(g->n_matrix, sizeof *g->matrix, "a list of matrices", err);
    g->is_checked = dw_alloc(g->n_matrix, sizeof *g->is_checked, "a list of matrices", err);
    if (!g->text || !g->matrix || !g->is_checked) return -1;
    for (size_t t = 0; t < g->n_text; t++)
        if (!read_text(&c, &g->text[t])) return damaged(path, "has a text that makes no sense", err);
    for (size_t i = 0; i < g->n_matrix; i++)
        if (!read_matrix(&c, &g->matrix[i], i ? &g->matrix[i - 1] : NULL))
            return damaged(path, "lists matrices that make no sense", err);
    return place(g, ALIGN + n_head) ? 0 : damaged(path, "is not as long as its matrices", err);
}

int kit_gram_open(kit_gram *g, const char *path, dw_err *err) {
    *g = (kit_gram){0};
    if (!dw_file_exists(path))
        return dw_fail(err,
                       "'%s' does not exist; make it with the statistics (collect --gram down, or down+o for heads)",
                       path);
    if (dw_map_file(&g->map, path, err)) return -1;
    if (!read_head(g, path, err)) return 0;
    kit_gram_close(g);
    return -1;
}

static int check_values(const kit_gram_matrix *m, dw_err *err) {
    const size_t n = kit_gram_packed(m->n);
    if (!has_hash(m->sum, n * sizeof *m->sum, (const uint8_t *)(m->sum + n)))
        return dw_fail(err, "layer %d: the Gram matrix of %s is damaged; collect it again", m->layer,
                       kit_gram_names[m->input]);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(m->sum[i]))
            return dw_fail(err,
                           "layer %d: the Gram matrix of %s holds NaN or infinity; the model is damaged or "
                           "overflows",
                           m->layer, kit_gram_names[m->input]);
    for (int j = 0; j < m->n; j++)
        if (kit_gram_at(m, j, j) < 0)
            return dw_fail(err, "layer %d: the Gram matrix of %s has a negative square", m->layer,
                           kit_gram_names[m->input]);
    return 0;
}

bool kit_gram_has(const kit_gram *g, int input) {
    for (size_t i = 0; i < g->n_matrix; i++)
        if (g->matrix[i].input == input) return true;
    return false;
}

static void fail_missing(int layer, int input, dw_err *err) {
    const char *which = input == KIT_STATS_FFN_NEURON ? "down" : input == KIT_STATS_ATTN_MIX ? "down+o" : "all";
    if (input == KIT_GRAM_GRADIENT)
        dw_fail(err, "layer %d: there is no Gram matrix of %s; collect it (collect --gradients)", layer,
                kit_gram_names[input]);
    else
        dw_fail(err, "layer %d: there is no Gram matrix of %s; collect it (collect --gram %s)", layer,
                kit_gram_names[input], which);
}

const kit_gram_matrix *kit_gram_find(kit_gram *g, int layer, int input, double *n_tokens, dw_err *err) {
    *n_tokens = kit_gram_n_tokens(g);
    for (size_t i = 0; i < g->n_matrix; i++) {
        const kit_gram_matrix *m = &g->matrix[i];
        if (m->layer != layer || m->input != input) continue;
        if (*n_tokens < 1)
            dw_fail(err, "layer %d: the Gram matrix sums no token", layer);
        else if (g->is_checked[i] || !check_values(m, err))
            return g->is_checked[i] = true, m;
        return NULL;
    }
    fail_missing(layer, input, err);
    return NULL;
}

/* Readers take columns of the model from a matrix, so each is as wide as the model says. */
static bool same_widths(const kit_gram *g, const kit_stats *s) {
    for (size_t i = 0; i < g->n_matrix; i++) {
        const kit_gram_matrix *m = &g->matrix[i];
        if (m->layer >= s->n_layer) return false;
        const kit_stats_layer *w = &s->layer[m->layer];
        if (m->n != (m->input == KIT_GRAM_GRADIENT ? s->n_embd : w->n_input[m->input])) return false;
    }
    return true;
}

int kit_gram_check_stats(const kit_gram *g, const char *path, const kit_stats *s, dw_err *err) {
    bool same = !strcmp(g->model_sha256, s->model_sha256) && g->n_ctx == s->n_ctx && g->skip == s->skip &&
                g->n_text == s->n_text && same_widths(g, s);
    for (size_t t = 0; same && t < s->n_text; t++)
        same = !strcmp(g->text[t].sha256, s->text[t].sha256) && g->text[t].first_window == s->text[t].first_window &&
               g->text[t].n_windows == s->text[t].n_windows && g->text[t].n_tokens == s->text[t].n_tokens;
    return same
               ? 0
               : dw_fail(err,
                         "'%s' is not of the same model and texts as the statistics beside it; collect both in one run "
                         "(collect --gram)",
                         path);
}
