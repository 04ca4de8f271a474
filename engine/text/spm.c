/* spm.c - "llama": SentencePiece BPE.
 *
 * Spaces become U+2581.  If the vocabulary asks for it, one more U+2581 goes before the fragment.  The pair whose
 * result has the highest score is merged first; on ties the leftmost pair.  A character that is not a token becomes
 * byte tokens.
 *
 * In most vocabularies no token has a U+2581 after another character.  Then no merge crosses such a place, so cutting
 * the text there gives the same ids with a shorter queue. */
#include "text/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dw_spm {
    const dw_lookup *index;
    const float *score;
    bool add_space_prefix;
    bool cut_at_spaces;
    size_t longest; // bytes of the longest token
    int32_t id_of_byte[256];
};

enum { SPACE_LEN = sizeof DW_SPACE - 1 };

static bool is_space(const char *text, size_t left) { return left >= SPACE_LEN && !memcmp(text, DW_SPACE, SPACE_LEN); }

/* True when the token has a U+2581 after another character. */
static bool has_inner_space(dw_str token) {
    bool text_before = false;
    for (size_t i = 0; i < token.len;) {
        const bool space = is_space(token.ptr + i, token.len - i);
        if (space && text_before) return true;
        text_before = !space;
        i += space ? SPACE_LEN : 1;
    }
    return false;
}

dw_spm *dw_spm_new(const dw_vocab *v, const dw_lookup *x, dw_err *err) {
    dw_spm *m = dw_alloc(1, sizeof *m, "a tokenizer", err);
    if (!m) return NULL;
    *m = (dw_spm){.index = x, .score = v->score, .add_space_prefix = v->add_space_prefix, .cut_at_spaces = true};
    for (size_t i = 0; i < v->n_token; i++) {
        if (m->longest < v->token[i].len) m->longest = v->token[i].len;
        if (has_inner_space(v->token[i])) m->cut_at_spaces = false;
    }
    for (int b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        const char byte = (char)b;
        int32_t id = dw_lookup_find(x, name, 6);
        if (id < 0) id = dw_lookup_find(x, &byte, 1);
        m->id_of_byte[b] = id < 0 ? v->unk : id;
    }
    return m;
}

void dw_spm_free(dw_spm *m) { free(m); }

/* Maps a score to an unsigned number; higher scores give smaller numbers. */
static uint32_t descending(float score) {
    union {
        float f;
        uint32_t u;
    } bits = {.f = score + 0.0f}; // -0 becomes +0
    const uint32_t ascending = bits.u >> 31 ? ~bits.u : bits.u | 1u << 31;
    return ~ascending;
}

static bool pair_by_score(const void *model, const char *word, const dw_symbol *left, const dw_symbol *right,
                          uint32_t *key, int32_t *id) {
    const dw_spm *m = model;
    const size_t len = (size_t)left->len + right->len;
    if (len > m->longest || (*id = dw_lookup_find(m->index, word + left->at, len)) < 0) return false;
    *key = descending(m->score[*id]);
    return true;
}

/* Bytes of the character that begins with this byte, at most `left`.  Invalid text is cut in a fixed way, too. */
static size_t announced_len(const char *s, size_t left) {
    const uint8_t b = (uint8_t)*s;
    const size_t len = b < 0xc0 ? 1 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
    return len < left ? len : left;
}

static int merge_word(const dw_spm *m, dw_text_work *w, const char *word, size_t len, dw_err *err) {
    w->n_symbol = 0;
    for (size_t i = 0, n; i < len; i += n) {
        n = announced_len(word + i, len - i);
        if (dw_grow(&w->symbol, &w->cap_symbol, w->n_symbol + 1, sizeof *w->symbol, "a text's symbols", err)) return -1;
        w->symbol[w->n_symbol++] = (dw_symbol){
            .at = (uint32_t)i, .len = (uint32_t)n, .id = dw_lookup_find(m->index, word + i, n)};
    }
    if (dw_merge(w, pair_by_score, m, word, err)) return -1;
    for (size_t i = 0; i < w->n_symbol; i++) {
        const dw_symbol *s = &w->symbol[i];
        if (s->len && s->id >= 0 && dw_text_emit(w, s->id, err)) return -1;
        for (uint32_t k = 0; s->id < 0 && k < s->len; k++)
            if (dw_text_emit(w, m->id_of_byte[(uint8_t)word[s->at + k]], err)) return -1;
    }
    return 0;
}

int dw_spm_fragment(const dw_spm *m, dw_text_work *w, const char *text, size_t len, dw_err *err) {
    size_t n = 0, start = 0;
    if (dw_grow(&w->text, &w->cap_text, SPACE_LEN * (len + 1), 1, "a text", err)) return -1;
    if (m->add_space_prefix) n = (memcpy(w->text, DW_SPACE, SPACE_LEN), SPACE_LEN);
    for (size_t i = 0; i < len; i++) {
        if (text[i] != ' ')
            w->text[n++] = text[i];
        else
            memcpy(w->text + n, DW_SPACE, SPACE_LEN), n += SPACE_LEN;
    }
    bool text_before = false;
    for (size_t i = 0; m->cut_at_spaces && i < n;) {
        const bool space = is_space(w->text + i, n - i);
        if (space && text_before) {
            if (merge_word(m, w, w->text + start, i - start, err)) return -1;
            start = i;
        }
        text_before = !space;
        i += space ? SPACE_LEN : announced_len(w->text + i, n - i);
    }
    return merge_word(m, w, w->text + start, n - start, err);
}

int dw_spm_byte(dw_str token) {
    static const char digits[] = "0123456789ABCDEF";
    if (token.len != 6 || memcmp(token.ptr, "<0x", 3) || token.ptr[5] != '>' || !token.ptr[3] || !token.ptr[4])
        return -1;
    const char *high = strchr(digits, token.ptr[3]), *low = strchr(digits, token.ptr[4]);
    return high && low ? (int)(high - digits) * 16 + (int)(low - digits) : -1;
}

size_t dw_spm_bytes(dw_str token, int32_t type, char *buf, size_t cap) {
    const int byte = type == DW_TOKEN_BYTE ? dw_spm_byte(token) : -1;
    if (byte >= 0) {
        if (cap) *buf = (char)byte;
        return 1;
    }
    size_t n = 0;
    for (size_t i = 0; i < token.len; n++) {
        const bool space = is_space(token.ptr + i, token.len - i);
        if (n < cap) buf[n] = space ? ' ' : token.ptr[i];
        i += space ? SPACE_LEN : 1;
    }
    return n;
}
