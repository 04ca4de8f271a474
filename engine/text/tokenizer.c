/* tokenizer.c - text to ids and back: finds special tokens first; the model tokenizes the text between them.
 *
 * llama.cpp goes through the special tokens, longest first, and splits the remaining text at every occurrence.  Here,
 * for the same result, one pass notes the places where special tokens begin, and the length of the longest; then there
 * is one pass over these places for each length, longest first.  An occurrence counts unless its bytes are taken
 * already.  A token that took bytes is at least as long, so checking the first and the last byte is enough. */
#include "text/internal.h"

#include <stdlib.h>
#include <string.h>

struct dw_tokenizer {
    const dw_vocab *vocab;
    dw_vocab own; // filled by dw_tokenizer_open
    dw_lookup index;
    dw_bpe *bpe; // one of bpe and spm is NULL
    dw_spm *spm;
    bool *ends; // n_token
    size_t n_special, n_special_len;
    dw_str *special;                  // special tokens in the order of their bytes
    size_t *special_len;              // their lengths, longest first
    uint8_t special_start[65536 / 8]; // bit set: a special token begins with this pair of bytes
};

static bool is_special(const dw_vocab *v, int32_t id, bool parse_special) {
    const int32_t type = v->type[id];
    return type == DW_TOKEN_USER || (parse_special && (type == DW_TOKEN_CONTROL || type == DW_TOKEN_UNKNOWN));
}

/* ---- setting up ------------------------------------------------------------------------------------- */

static int longest_first(const void *a, const void *b) {
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x < y) - (x > y);
}

static int by_bytes(const void *a, const void *b) {
    const dw_str *x = a, *y = b;
    const int c = memcmp(x->ptr, y->ptr, x->len < y->len ? x->len : y->len);
    return c ? c : (x->len > y->len) - (x->len < y->len);
}

static void mark_start(dw_tokenizer *t, uint8_t first, uint8_t second) {
    const unsigned pair = (unsigned)first << 8 | second;
    t->special_start[pair / 8] |= (uint8_t)(1 << pair % 8);
}

static int find_special(dw_tokenizer *t, dw_err *err) {
    const dw_vocab *v = t->vocab;
    size_t n = 0;
    for (size_t id = 0; id < v->n_token; id++) n += is_special(v, (int32_t)id, true);
    if (!(t->special_len = dw_alloc(n + 1, sizeof *t->special_len, "special tokens", err)) ||
        !(t->special = dw_alloc(n + 1, sizeof *t->special, "special tokens", err)))
        return -1;
    n = 0;
    for (size_t id = 0; id < v->n_token; id++) {
        if (!is_special(v, (int32_t)id, true)) continue;
        const dw_str text = v->token[id];
        t->special[n] = text;
        t->special_len[n++] = text.len;
        if (text.len > 1)
            mark_start(t, (uint8_t)text.ptr[0], (uint8_t)text.ptr[1]);
        else
            for (int second = 0; second < 256; second++) mark_start(t, (uint8_t)text.ptr[0], (uint8_t)second);
    }
    t->n_special = n;
    qsort(t->special, n, sizeof *t->special, by_bytes);
    qsort(t->special_len, n, sizeof *t->special_len, longest_first);
    for (size_t i = 0; i < n; i++)
        if (!i || t->special_len[i] != t->special_len[i - 1]) t->special_len[t->n_special_len++] = t->special_len[i];
    return 0;
}

static int find_ends(dw_tokenizer *t, dw_err *err) {
    const dw_vocab *v = t->vocab;
    if (!(t->ends = dw_alloc(v->n_token, sizeof *t->ends, "tokens that end a text", err))) return -1;
    if (v->eos >= 0) t->ends[v->eos] = true;
    if (v->eot >= 0) t->ends[v->eot] = true;
    if (v->eom >= 0) t->ends[v->eom] = true;
    for (const dw_control *c = dw_controls; c->name; c++) {
        const int32_t id = dw_lookup_find(&t->index, c->name, strlen(c->name));
        if (id >= 0 && c->does != DW_CONTROLS) t->ends[id] = true;
    }
    return 0;
}

static int set_up(dw_tokenizer *t, const dw_vocab *v, dw_err *err) {
    t->vocab = v;
    if (dw_lookup_build(&t->index, v->token, v->n_token, err) || find_special(t, err) || find_ends(t, err)) return -1;
    if (v->score) t->spm = dw_spm_new(v, &t->index, err);
    else t->bpe = dw_bpe_new(v, &t->index, err);
    return t->spm || t->bpe ? 0 : -1;
}

dw_tokenizer *dw_tokenizer_new(const dw_vocab *v, dw_err *err) {
    dw_tokenizer *t = dw_alloc(1, sizeof *t, "a tokenizer", err);
    if (!t || !set_up(t, v, err)) return t;
    dw_tokenizer_free(t);
    return NULL;
}

static int read_vocab(dw_tokenizer *t, const dw_gguf *g, dw_err *err) {
    const dw_tensor *embd = dw_gguf_find_tensor(g, "token_embd.weight");
    if (dw_vocab_from_gguf(&t->own, g, err)) return -1;
    if (!embd || t->own.n_token <= embd->ne[1]) return 0;
    return dw_fail(err, "the vocabulary has %zu tokens, but the embedding only %zu rows", t->own.n_token, embd->ne[1]);
}

dw_tokenizer *dw_tokenizer_open(const dw_gguf *g, dw_err *err) {
    dw_tokenizer *t = dw_alloc(1, sizeof *t, "a tokenizer", err);
    if (!t || (!read_vocab(t, g, err) && !set_up(t, &t->own, err))) return t;
    dw_tokenizer_free(t);
    return NULL;
}

void dw_tokenizer_free(dw_tokenizer *t) {
    if (!t) return;
    dw_bpe_free(t->bpe);
    dw_spm_free(t->spm);
    dw_lookup_release(&t->index);
    dw_vocab_release(&t->own);
    free(t->special);
    free(t->special_len);
    free(t->ends);
    free(t);
}

/* ---- text to ids ------------------------------------------------------------------------------------ */

int dw_text_emit(dw_text_work *w, int32_t id, dw_err *err) {
    if (id < 0) return 0;
    if (dw_grow(&w->ids, &w->cap_ids, w->n_ids + 1, sizeof *w->ids, "ids of a text", err)) return -1;
    w->ids[w->n_ids++] = id;
    return 0;
}

/* Of special[low .. high), which are longer than `at` and alike before it, the first whose byte there is at least
 * `byte`; high: none. */
static size_t first_with(const dw_tokenizer *t, size_t low, size_t high, size_t at, int byte) {
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if ((uint8_t)t->special[middle].ptr[at] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The length of the longest special token that a text begins with; 0: none. */
static size_t longest_special(const dw_tokenizer *t, const char *text, size_t len) {
    size_t low = 0, high = t->n_special, longest = 0;
    for (size_t i = 0; i < len && low < high; i++) { // special[low .. high) are longer than the i bytes that they share
        const int byte = (uint8_t)text[i];
        low = first_with(t, low, high, i, byte);
        high = first_with(t, low, high, i, byte + 1);
        if (low < high && t->special[low].len == i + 1) longest = t->special[low++].len;
    }
    return longest;
}

typedef struct special_place {
    uint32_t at, longest; // of the special tokens that begin here
    int32_t id;           // -1: none is taken
} special_place;

/* Notes every place where some special token begins. */
static int note_places(const dw_tokenizer *t, const char *text, size_t len, special_place **places, size_t *n,
                       dw_err *err) {
    size_t cap = 0;
    *places = NULL;
    *n = 0;
    for (size_t i = 0; i < len; i++) {
        const unsigned pair = (unsigned)(uint8_t)text[i] << 8 | (i + 1 < len ? (uint8_t)text[i + 1] : 0);
        if (!(t->special_start[pair / 8] >> pair % 8 & 1)) continue;
        const size_t longest = longest_special(t, text + i, len - i);
        if (!longest) continue;
        if (dw_grow(places, &cap, *n + 1, sizeof **places, "special tokens of a text", err)) return -1;
        (*places)[(*n)++] = (special_place){(uint32_t)i, (uint32_t)longest, -1};
    }
    return 0;
}

static void take_special(const dw_tokenizer *t, const char *text, bool parse_special, special_place *places, size_t n,
                         uint8_t *taken) {
    for (size_t k = 0; k < t->n_special_len; k++) {
        const size_t n_bytes = t->special_len[k];
        for (special_place *p = places; p < places + n; p++) {
            if (n_bytes > p->longest || taken[p->at] || taken[p->at + n_bytes - 1]) continue;
            const int32_t id = dw_lookup_find(&t->index, text + p->at, n_bytes);
            if (id < 0 || !is_special(t->vocab, id, parse_special)) continue;
            p->id = id;
            memset(taken + p->at, 1, n_bytes);
        }
    }
}

static int fragment(dw_text_work *w, const char *text, size_t len, dw_err *err) {
    if (!len) return 0;
    return w->t->bpe ? dw_bpe_fragment(w->t->bpe, w, text, len, err) : dw_spm_fragment(w->t->spm, w, text, len, err);
}

static int tokenize(dw_text_work *w, const char *text, size_t len, bool parse_special, dw_err *err) {
    special_place *places;
    size_t n, done = 0;
    uint8_t *taken = NULL;
    int rc = note_places(w->t, text, len, &places, &n, err);
    if (!rc && n) {
        if ((taken = dw_alloc(len, 1, "special tokens of a text", err)))
            take_special(w->t, text, parse_special, places, n, taken);
        else
            rc = -1;
    }
    for (size_t i = 0; i < n && !rc; i++) {
        if (places[i].id < 0) continue;
        rc = fragment(w, text + done, places[i].at - done, err);
        if (!rc) rc = dw_text_emit(w, places[i].id, err);
        done = places[i].at + w->t->vocab->token[places[i].id].len;
    }
    if (!rc) rc = fragment(w, text + done, len - done, err);
    free(places);
    free(taken);
    return rc;
}

int dw_tokenize(const dw_tokenizer *t, const char *text, size_t len, unsigned flags, int32_t **ids, size_t *n,
                dw_err *err) {
    const dw_vocab *v = t->vocab;
    dw_text_work w = {.t = t};
    *ids = NULL;
    *n = 0;
    if (len > 1u << 30) return dw_fail(err, "the text has %zu bytes; cut it into pieces of at most 1 GiB", len);
    int rc = dw_grow(&w.ids, &w.cap_ids, len / 4 + 8, sizeof *w.ids, "ids of a text", err);
    if (!rc && flags & DW_ADD_SPECIAL && v->add_bos) rc = dw_text_emit(&w, v->bos, err);
    if (!rc) rc = tokenize(&w, text, len, flags & DW_PARSE_SPECIAL, err);
    if (!rc && flags & DW_ADD_SPECIAL && v->add_eos) rc = dw_text_emit(&w, v->eos, err);
    free(w.symbol);
    free(w.heap);
    free(w.text);
    if (rc) {
        free(w.ids);
        return -1;
    }
    *ids = w.ids;
    *n = w.n_ids;
    return 0;
}

/* ---- ids to text ------------------------------------------------------------------------------------- */

size_t dw_utf8_char(const char *s, size_t left) {
    const uint8_t *b = (const uint8_t *)s;
    if (b[0] < 0x80) return 1;
    const size_t n = b[0] >= 0xf0 ? 4 : b[0] >= 0xe0 ? 3 : 2;
    if (n > left || !dw_is_utf8(s, n)) return 0;
    return n;
}

static size_t copy_bytes(dw_str text, char *buf, size_t cap) {
    if (cap) memcpy(buf, text.ptr, text.len < cap ? text.len : cap);
    return text.len;
}

size_t dw_token_bytes(const dw_tokenizer *t, int32_t id, bool special, char *buf, size_t cap) {
    const dw_vocab *v = t->vocab;
    if (id < 0 || (size_t)id >= v->n_token) return 0;
    switch ((dw_token_type)v->type[id]) {
    case DW_TOKEN_UNUSED:
        return 0;
    case DW_TOKEN_UNKNOWN:
    case DW_TOKEN_CONTROL:
        return special ? copy_bytes(v->token[id], buf, cap) : 0;
    case DW_TOKEN_USER:
        return copy_bytes(v->token[id], buf, cap);
    case DW_TOKEN_NORMAL:
    case DW_TOKEN_BYTE:
        break;
    }
    return t->bpe ? dw_bpe_bytes(t->bpe, v->token[id], buf, cap) : dw_spm_bytes(v->token[id], v->type[id], buf, cap);
}

char *dw_detokenize(const dw_tokenizer *t, const int32_t *ids, size_t n, bool special, size_t *len, dw_err *err) {
    size_t total = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        if (!dw_add(total, dw_token_bytes(t, ids[i], special, NULL, 0), &total)) total = SIZE_MAX - 1;
    char *text = dw_alloc(total + 1, 1, "a text", err);
    if (!text) return NULL;
    bool at_start = true; // only control tokens so far
    for (size_t i = 0; i < n; i++) {
        const size_t bytes = dw_token_bytes(t, ids[i], special, text + at, total - at);
        const bool control = ids[i] < 0 || (size_t)ids[i] >= t->vocab->n_token ||
                             t->vocab->type[ids[i]] == DW_TOKEN_CONTROL;
        const bool drop = at_start && !control && t->vocab->add_space_prefix && bytes && text[at] == ' ';
        if (drop) memmove(text + at, text + at + 1, bytes - 1);
        at += bytes - drop;
        at_start = at_start && control;
    }
    text[at] = 0;
    if (len) *len = at;
    return text;
}

bool dw_token_ends(const dw_tokenizer *t, int32_t id) {
    return id >= 0 && (size_t)id < t->vocab->n_token && t->ends[id];
}

const dw_vocab *dw_tokenizer_vocab(const dw_tokenizer *t) { return t->vocab; }
