/* bpe.c - "gpt2": byte-level BPE.
 *
 * The vocabulary writes each byte as one printable character.  Bytes 0x21-0x7E, 0xA1-0xAC and 0xAE-0xFF become the code
 * point of the same number.  The other 68 bytes become U+0100, U+0101, ... in order.
 * Merging works on ids: a word starts as the ids of its bytes, and a table maps a pair of ids to its merge. */
#include "text/internal.h"

#include <stdlib.h>
#include <string.h>

enum { N_BYTE_CHARS = 256 + 68 };

typedef struct pair_slot {
    uint64_t pair; // left << 32 | right
    uint32_t rank;
    int32_t result; // -1: a free slot
} pair_slot;

struct dw_bpe {
    const dw_lookup *index;
    dw_pretokenizer *pre;
    bool ignore_merges;
    uint16_t char_of_byte[256];         // code points
    int16_t byte_of_char[N_BYTE_CHARS]; // -1: no byte has this character
    int32_t id_of_byte[256];            // -1: the vocabulary lacks it
    pair_slot *slot;
    size_t mask; // slots - 1
    dw_hash_key key;
};

static void number_bytes(dw_bpe *m) {
    memset(m->byte_of_char, 0xff, sizeof m->byte_of_char);
    for (int b = 0, other = 256; b < 256; b++) {
        const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        m->char_of_byte[b] = (uint16_t)(printable ? b : other++);
        m->byte_of_char[m->char_of_byte[b]] = (int16_t)b;
    }
}

/* Writes the character of a byte: one or two bytes of UTF-8.  Returns how many. */
static size_t write_byte(const dw_bpe *m, uint8_t byte, char out[2]) {
    const unsigned c = m->char_of_byte[byte];
    if (c < 0x80) return out[0] = (char)c, 1;
    out[0] = (char)(0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}

static size_t home_of(const dw_bpe *m, uint64_t pair) { return dw_siphash13(m->key, &pair, sizeof pair) & m->mask; }

/* The slot that holds the pair, or the free slot where the pair would go. */
static pair_slot *find_slot(const dw_bpe *m, uint64_t pair) {
    size_t i = home_of(m, pair);
    while (m->slot[i].result >= 0 && m->slot[i].pair != pair) i = (i + 1) & m->mask;
    return &m->slot[i];
}

static uint64_t pair_of(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

static int load_merges(dw_bpe *m, const dw_vocab *v, dw_err *err) {
    size_t n_slots = 16;
    while (n_slots < 2 * v->n_merge) n_slots *= 2;
    m->mask = n_slots - 1;
    if (dw_hash_key_new(&m->key, err)) return -1;
    if (!(m->slot = dw_alloc(n_slots, sizeof *m->slot, "merges", err))) return -1;
    for (size_t i = 0; i < n_slots; i++) m->slot[i].result = -1;
    for (size_t i = 0; i < v->n_merge; i++) {
        dw_merge_ids ids;
        if (dw_vocab_merge_ids(v, m->index, i, &ids, err)) return -1;
        const uint64_t pair = pair_of(ids.left, ids.right);
        pair_slot *s = find_slot(m, pair);
        if (s->result < 0) *s = (pair_slot){pair, (uint32_t)i, ids.result}; // of equal merges the first counts
    }
    return 0;
}

dw_bpe *dw_bpe_new(const dw_vocab *v, const dw_lookup *x, dw_err *err) {
    const dw_pretokenizer_row *row = dw_pretokenizer_find((dw_str){v->pre, strlen(v->pre)});
    if (!row) {
        dw_fail(err, "pre-tokenizer '%s' is not known", v->pre);
        return NULL;
    }
    dw_bpe *m = dw_alloc(1, sizeof *m, "a tokenizer", err);
    if (!m) return NULL;
    m->index = x;
    m->ignore_merges = v->ignore_merges;
    number_bytes(m);
    for (int b = 0; b < 256; b++) {
        char text[2];
        m->id_of_byte[b] = dw_lookup_find(x, text, write_byte(m, (uint8_t)b, text));
    }
    if (!(m->pre = dw_pretokenizer_new(row, err)) || load_merges(m, v, err)) {
        dw_bpe_free(m);
        return NULL;
    }
    return m;
}

void dw_bpe_free(dw_bpe *m) {
    if (!m) return;
    dw_pretokenizer_free(m->pre);
    free(m->slot);
    free(m);
}

size_t dw_bpe_steps(const dw_bpe *m) {
    size_t n = 0;
    for (size_t i = 0; i <= m->mask; i++)
        if (m->slot[i].result >= 0) n += 1 + ((i - home_of(m, m->slot[i].pair)) & m->mask);
    return n;
}

static bool pair_by_rank(const void *model, const char *word, const dw_symbol *left, const dw_symbol *right,
                         uint32_t *key, int32_t *id) {
    (void)word;
    const pair_slot *s = find_slot(model, pair_of(left->id, right->id));
    *key = s->rank;
    *id = s->result;
    return s->result >= 0;
}

typedef struct bpe_call {
    const dw_bpe *model;
    dw_text_work *work;
} bpe_call;

/* The token that is the whole word, or -1. */
static int32_t whole_word(const dw_bpe *m, dw_text_work *w, const char *word, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len; i++) n += write_byte(m, (uint8_t)word[i], w->text + n);
    return dw_lookup_find(m->index, w->text, n);
}

static int merge_word(void *arg, const char *word, size_t len, dw_err *err) {
    const bpe_call *call = arg;
    const dw_bpe *m = call->model;
    dw_text_work *w = call->work;
    if (m->ignore_merges) {
        if (dw_grow(&w->text, &w->cap_text, 2 * len, 1, "a word", err)) return -1;
        const int32_t id = whole_word(m, w, word, len);
        if (id >= 0) return dw_text_emit(w, id, err);
    }
    if (dw_grow(&w->symbol, &w->cap_symbol, len, sizeof *w->symbol, "a word's symbols", err)) return -1;
    w->n_symbol = len;
    for (size_t i = 0; i < len; i++)
        w->symbol[i] = (dw_symbol){.at = (uint32_t)i, .len = 1, .id = m->id_of_byte[(uint8_t)word[i]]};
    if (dw_merge(w, pair_by_rank, m, word, err)) return -1;
    for (size_t i = 0; i < len; i += w->symbol[i].len)
        if (dw_text_emit(w, w->symbol[i].id, err)) return -1;
    return 0;
}

/* A copy in valid UTF-8: each byte that belongs to no character becomes U+FFFD.  NULL if the text is valid
 * (*repaired_len is then len) or memory is missing. */
static char *repair_utf8(const char *text, size_t len, size_t *repaired_len, dw_err *err) {
    size_t n_bad = 0;
    for (size_t i = 0, n; i < len; i += n ? n : 1)
        if (!(n = dw_utf8_char(text + i, len - i))) n_bad++;
    *repaired_len = len + 2 * n_bad;
    if (!n_bad) return NULL;
    char *out = dw_alloc(*repaired_len, 1, "a text", err), *to = out;
    for (size_t i = 0, n; out && i < len; i += n ? n : 1) {
        n = dw_utf8_char(text + i, len - i);
        memcpy(to, n ? text + i : "\xef\xbf\xbd", n ? n : 3);
        to += n ? n : 3;
    }
    if (!out) *repaired_len = 0;
    return out;
}

int dw_bpe_fragment(const dw_bpe *m, dw_text_work *w, const char *text, size_t len, dw_err *err) {
    bpe_call call = {m, w};
    size_t valid_len;
    char *valid = repair_utf8(text, len, &valid_len, err);
    if (!valid && valid_len != len) return -1;
    const int rc = dw_pretokenize(m->pre, valid ? valid : text, valid_len, merge_word, &call, err);
    free(valid);
    return rc;
}

size_t dw_bpe_bytes(const dw_bpe *m, dw_str token, char *buf, size_t cap) {
    size_t n = 0;
    for (size_t i = 0, len; i < token.len; i += len) {
        const uint8_t *s = (const uint8_t *)token.ptr + i;
        len = dw_utf8_char(token.ptr + i, token.len - i);
        if (!len) len = 1;
        const unsigned c = len == 1 ? s[0] : len == 2 ? (s[0] & 0x1fu) << 6 | (s[1] & 0x3f) : N_BYTE_CHARS;
        if (c < N_BYTE_CHARS && m->byte_of_char[c] >= 0) {
            if (n < cap) buf[n] = (char)m->byte_of_char[c];
            n++;
        } else { // the character of no byte is copied as it is
            for (size_t k = 0; k < len; k++, n++)
                if (n < cap) buf[n] = (char)s[k];
        }
    }
    return n;
}
