/* vocab.c - vocabularies: memory, lookup of texts, keys in a GGUF file. */
#include "text/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- text to id ---------------------------------------------------------------------------------- */

/* The key is random, so nobody can choose texts that make lookup slow. */
static uint32_t hash_text(const dw_lookup *x, const char *text, size_t len) {
    return (uint32_t)(dw_siphash13(x->key, text, len) >> 32);
}

/* The slot that holds the text, or the free slot where the text would go. */
static uint64_t *find_slot(const dw_lookup *x, uint32_t hash, const char *text, size_t len) {
    for (size_t i = hash & x->mask;; i = (i + 1) & x->mask) {
        uint64_t *slot = &x->slot[i];
        if (!*slot) return slot;
        const dw_str found = x->text[(uint32_t)*slot - 1];
        if (*slot >> 32 == hash && found.len == len && !memcmp(found.ptr, text, len)) return slot;
    }
}

int dw_lookup_build(dw_lookup *x, const dw_str *text, size_t n, dw_err *err) {
    size_t n_slots = 16;
    while (n_slots < 2 * n) n_slots *= 2;
    *x = (dw_lookup){.text = text, .mask = n_slots - 1};
    if (dw_hash_key_new(&x->key, err)) return -1;
    if (!(x->slot = dw_alloc(n_slots, sizeof *x->slot, "the lookup of tokens", err))) return -1;
    for (size_t id = 0; id < n; id++) {
        if (!text[id].len) continue;
        const uint32_t hash = hash_text(x, text[id].ptr, text[id].len);
        uint64_t *slot = find_slot(x, hash, text[id].ptr, text[id].len);
        if (*slot) {
            dw_fail(err, "tokens %u and %zu are both '%.*s'; token texts must differ", (uint32_t)*slot - 1, id,
                    DW_SHOW(text[id]));
            dw_lookup_release(x);
            return -1;
        }
        *slot = (uint64_t)hash << 32 | (id + 1);
    }
    return 0;
}

int32_t dw_lookup_find(const dw_lookup *x, const char *text, size_t len) {
    return (int32_t)(uint32_t)*find_slot(x, hash_text(x, text, len), text, len) - 1;
}

size_t dw_lookup_steps(const dw_lookup *x) {
    size_t n = 0;
    for (size_t i = 0; i <= x->mask; i++)
        if (x->slot[i]) n += 1 + ((i - (x->slot[i] >> 32)) & x->mask);
    return n;
}

void dw_lookup_release(dw_lookup *x) {
    free(x->slot);
    *x = (dw_lookup){0};
}

/* ---- memory ---------------------------------------------------------------------------------------- */

/* Texts that the vocabulary owns are kept in chunks, which are freed with the vocabulary. */
typedef struct chunk {
    struct chunk *next;
    size_t used, cap;
    char text[];
} chunk;

enum { CHUNK = 1 << 16 };

dw_str dw_vocab_text(dw_vocab *v, const char *text, size_t len, dw_err *err) {
    chunk *c = v->owned;
    if (!c || c->cap - c->used < len) {
        const size_t cap = len < CHUNK ? CHUNK : len;
        chunk *fresh = dw_alloc(sizeof *fresh + cap, 1, "a vocabulary's texts", err);
        if (!fresh) return (dw_str){0};
        *fresh = (chunk){.next = c, .cap = cap};
        v->owned = c = fresh;
    }
    char *copy = c->text + c->used;
    c->used += len;
    if (len) memcpy(copy, text, len);
    return (dw_str){copy, len};
}

int dw_vocab_alloc(dw_vocab *v, const char *model, size_t n_token, dw_err *err) {
    if (!n_token || n_token >= INT32_MAX) return dw_fail(err, "a vocabulary cannot have %zu tokens", n_token);
    v->model = model;
    v->n_token = n_token;
    v->bos = v->eos = v->eot = v->eom = v->unk = v->pad = -1;
    v->token = dw_alloc(n_token, sizeof *v->token, "tokens", err);
    v->type = dw_alloc(n_token, sizeof *v->type, "token types", err);
    if (!v->token || !v->type) return -1;
    if (!strcmp(model, "llama") && !(v->score = dw_alloc(n_token, sizeof *v->score, "token scores", err))) return -1;
    return 0;
}

void dw_vocab_release(dw_vocab *v) {
    for (chunk *c = v->owned, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(v->token);
    free(v->type);
    free(v->score);
    free(v->merge);
    *v = (dw_vocab){0};
}

int dw_vocab_pad(dw_vocab *v, dw_err *err) {
    dw_lookup x;
    if (dw_lookup_build(&x, v->token, v->n_token, err)) return -1;
    int rc = 0;
    for (size_t id = 0; id < v->n_token && !rc; id++) {
        if (v->token[id].len) continue;
        char name[64];
        int n = snprintf(name, sizeof name, "[PAD%zu]", id);
        while (n + 1 < (int)sizeof name && dw_lookup_find(&x, name, (size_t)n) >= 0) name[n++] = '_';
        v->token[id] = dw_vocab_text(v, name, (size_t)n, err);
        v->type[id] = DW_TOKEN_UNUSED;
        if (!v->token[id].ptr) rc = -1;
    }
    dw_lookup_release(&x);
    return rc;
}

/* The list of llama.cpp.  If a vocabulary names no eot, its eot is the first row here that ends a turn and is a token. */
const dw_control dw_controls[] = {
    {"<|eot_id|>", DW_ENDS_TURN},
    {"<|im_end|>", DW_ENDS_TURN},
    {"<|end|>", DW_ENDS_TURN},
    {"<end_of_turn>", DW_ENDS_TURN},
    {"<EOT>", DW_ENDS_TURN},
    {"<|endoftext|>", DW_ENDS_TURN},
    {"<|return|>", DW_ENDS_TEXT},
    {"<|call|>", DW_ENDS_TEXT},
    {"<|calls|>", DW_ENDS_TEXT},
    {"<|flush|>", DW_ENDS_TEXT},
    {"<|eom_id|>", DW_ENDS_TEXT},
    {"<|end_of_text|>", DW_ENDS_TEXT},
    {"</s>", DW_ENDS_TEXT},
    {"_<EOT>", DW_ENDS_TEXT},
    {"[EOT]", DW_ENDS_TEXT},
    {"[EOS]", DW_ENDS_TEXT},
    {"<eos>", DW_ENDS_TEXT},
    {"<turn|>", DW_ENDS_TEXT},
    {"<end_of_utterance>", DW_ENDS_TEXT},
    /* between the parts of a repository, and around a gap that is to be filled */
    {"<|fim_pad|>", DW_ENDS_TEXT},
    {"<fim-pad>", DW_ENDS_TEXT},
    {"<fim_pad>", DW_ENDS_TEXT},
    {"<|fim_repo|>", DW_ENDS_TEXT},
    {"<|repo_name|>", DW_ENDS_TEXT},
    {"<fim-repo>", DW_ENDS_TEXT},
    {"<reponame>", DW_ENDS_TEXT},
    {"<|file_sep|>", DW_ENDS_TEXT},
    {"<|fim_prefix|>", DW_CONTROLS},
    {"<fim-prefix>", DW_CONTROLS},
    {"<fim_prefix>", DW_CONTROLS},
    {"<|fim_suffix|>", DW_CONTROLS},
    {"<fim-suffix>", DW_CONTROLS},
    {"<fim_suffix>", DW_CONTROLS},
    {"<|fim_middle|>", DW_CONTROLS},
    {"<fim-middle>", DW_CONTROLS},
    {"<fim_middle>", DW_CONTROLS},
    {NULL, 0}};

int32_t dw_vocab_find_eot(const dw_lookup *x) {
    int32_t id = -1;
    for (const dw_control *t = dw_controls; t->name && id < 0; t++)
        if (t->does == DW_ENDS_TURN) id = dw_lookup_find(x, t->name, strlen(t->name));
    return id;
}

/* Whatever their types in the file, as llama.cpp does it. */
static void mark_controls(dw_vocab *v, const dw_lookup *x) {
    for (const dw_control *t = dw_controls; t->name; t++) {
        const int32_t id = dw_lookup_find(x, t->name, strlen(t->name));
        if (id >= 0 && (v->type[id] == DW_TOKEN_NORMAL || v->type[id] == DW_TOKEN_USER)) v->type[id] = DW_TOKEN_CONTROL;
    }
}

int dw_vocab_merge_ids(const dw_vocab *v, const dw_lookup *x, size_t i, dw_merge_ids *ids, dw_err *err) {
    const dw_str m = v->merge[i];
    const char *space = m.len > 1 ? memchr(m.ptr + 1, ' ', m.len - 1) : NULL;
    if (!space) return dw_fail(err, "merge %zu, '%.*s', is not two tokens with a space between them", i, DW_SHOW(m));
    const size_t n_left = (size_t)(space - m.ptr), n_right = m.len - n_left - 1;
    char few[256], *joined = m.len <= sizeof few ? few : dw_alloc(m.len, 1, "a merge", err);
    if (!joined) return -1;
    memcpy(joined, m.ptr, n_left);
    memcpy(joined + n_left, space + 1, n_right);
    ids->left = dw_lookup_find(x, joined, n_left);
    ids->right = dw_lookup_find(x, joined + n_left, n_right);
    ids->result = dw_lookup_find(x, joined, n_left + n_right);
    if (joined != few) free(joined);
    if (ids->left < 0 || ids->right < 0 || ids->result < 0)
        return dw_fail(err, "merge %zu, '%.*s': %s is no token", i, DW_SHOW(m),
                       ids->left < 0    ? "its left part"
                       : ids->right < 0 ? "its right part"
                                        : "its result");
    return 0;
}

/* ---- GGUF ------------------------------------------------------------------------------------------- */

#define KEY "tokenizer.ggml."

/* An array of n elements of this type (n = 0: at least one element; u32 also counts as i32).  NULL: absent or wrong. */
static const dw_kv *find_array(const dw_gguf *g, const char *key, dw_kv_type type, size_t n, bool needed, dw_err *err) {
    const dw_kv *kv = dw_gguf_find(g, key);
    if (!kv && needed) dw_fail(err, "key '%s' is missing", key);
    if (!kv) return NULL;
    const bool type_fits = kv->type == type || (type == DW_KV_I32 && kv->type == DW_KV_U32);
    if (kv->is_array && type_fits && (n ? kv->count == n : kv->count > 0)) return kv;
    if (!kv->is_array || !type_fits)
        dw_fail(err, "key '%s' is not an array of the right type", key);
    else if (n)
        dw_fail(err, "key '%s' has %zu elements, but there are %zu tokens", key, kv->count, n);
    else
        dw_fail(err, "key '%s' is an empty array", key);
    return NULL;
}

/* Reads a token id.  If the key is absent, or 0xffffffff (what some writers put for "none"), *id is unchanged.  So it
 * is for a padding token beyond the vocabulary, which files of fine-tuned models often name: nothing here uses it. */
static int read_id(const dw_gguf *g, const char *key, size_t n_token, int32_t *id, dw_err *err) {
    uint32_t value;
    const int found = dw_gguf_u32(g, key, &value, err);
    if (found <= 0) return found;
    if (value == UINT32_MAX || (value >= n_token && !strcmp(key, KEY "padding_token_id"))) return 0;
    if (value >= n_token) return dw_fail(err, "key '%s' is %u, but there are %zu tokens", key, value, n_token);
    *id = (int32_t)value;
    return 0;
}

static int read_tokens(dw_vocab *v, const dw_gguf *g, const dw_kv *tokens, dw_err *err) {
    for (size_t id = 0; id < v->n_token; id++) {
        v->token[id] = tokens->str[id];
        v->type[id] = DW_TOKEN_NORMAL;
        if (v->token[id].len) continue;
        char name[32]; // the name that llama.cpp gives
        v->token[id] = dw_vocab_text(v, name, (size_t)snprintf(name, sizeof name, "[EMPTY_%zu]", id), err);
        if (!v->token[id].ptr) return -1;
    }
    const dw_kv *types = find_array(g, KEY "token_type", DW_KV_I32, v->n_token, false, err);
    if (!types && dw_gguf_find(g, KEY "token_type")) return -1;
    for (size_t id = 0; types && id < v->n_token; id++) {
        const double type = dw_kv_number(types, id);
        if (!(type >= DW_TOKEN_NORMAL && type <= DW_TOKEN_BYTE))
            return dw_fail(err, "token %zu has type %.0f; types go from 1 to 6", id, type);
        v->type[id] = (int32_t)type;
    }
    return 0;
}

static int read_scores(dw_vocab *v, const dw_gguf *g, dw_err *err) {
    const dw_kv *scores = find_array(g, KEY "scores", DW_KV_F32, v->n_token, true, err);
    if (!scores) return -1;
    for (size_t id = 0; id < v->n_token; id++) {
        v->score[id] = (float)dw_kv_number(scores, id);
        if (isnan(v->score[id])) return dw_fail(err, "the score of token %zu is not a number", id);
    }
    return 0;
}

static int read_merges(dw_vocab *v, const dw_gguf *g, dw_err *err) {
    const dw_kv *merges = find_array(g, KEY "merges", DW_KV_STR, 0, true, err);
    if (!merges || !(v->merge = dw_alloc(merges->count, sizeof *v->merge, "merges", err))) return -1;
    memcpy(v->merge, merges->str, merges->count * sizeof *v->merge);
    v->n_merge = merges->count;
    return 0;
}

static int read_pre(dw_vocab *v, const dw_gguf *g, dw_err *err) {
    dw_str pre = {"default", 7}; // what llama.cpp takes if the key is absent
    if (dw_gguf_str(g, KEY "pre", &pre, err) < 0) return -1;
    const dw_pretokenizer_row *row = dw_pretokenizer_find(pre);
    if (!row || pre.len >= sizeof v->pre)
        return dw_fail(err, "pre-tokenizer '%.*s' (key '" KEY "pre') is not known", DW_SHOW(pre));
    memcpy(v->pre, pre.ptr, pre.len);
    v->add_bos = row->add_bos;
    v->ignore_merges = row->ignore_merges;
    return 0;
}

static int read_settings(dw_vocab *v, const dw_gguf *g, dw_err *err) {
    int32_t *const ids[] = {&v->bos, &v->eos, &v->eot, &v->eom, &v->unk, &v->pad};
    static const char *const keys[] = {KEY "bos_token_id", KEY "eos_token_id",     KEY "eot_token_id",
                                       KEY "eom_token_id", KEY "unknown_token_id", KEY "padding_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (read_id(g, keys[i], v->n_token, ids[i], err)) return -1;
    if (dw_gguf_bool(g, KEY "add_bos_token", &v->add_bos, err) < 0) return -1;
    if (dw_gguf_bool(g, KEY "add_eos_token", &v->add_eos, err) < 0) return -1;
    if (dw_gguf_bool(g, KEY "add_space_prefix", &v->add_space_prefix, err) < 0) return -1;
    return dw_gguf_str(g, "tokenizer.chat_template", &v->chat_template, err) < 0 ? -1 : 0;
}

static int read_gguf(dw_vocab *v, const dw_gguf *g, dw_err *err) {
    dw_str model = {0};
    const int found = dw_gguf_str(g, KEY "model", &model, err);
    if (found < 0) return -1;
    if (!found) return dw_fail(err, "key '" KEY "model' is missing");
    const bool llama = dw_str_is(model, "llama");
    if (!llama && !dw_str_is(model, "gpt2"))
        return dw_fail(err, "tokenizer model '%.*s' is not known; 'gpt2' and 'llama' are", DW_SHOW(model));
    const dw_kv *tokens = find_array(g, KEY "tokens", DW_KV_STR, 0, true, err);
    if (!tokens || dw_vocab_alloc(v, llama ? "llama" : "gpt2", tokens->count, err) || read_tokens(v, g, tokens, err))
        return -1;
    if (llama) {
        v->add_bos = v->add_space_prefix = true;
        if (v->n_token > 2) v->unk = 0, v->bos = 1, v->eos = 2;
        if (read_scores(v, g, err)) return -1;
    } else if (read_pre(v, g, err) || read_merges(v, g, err)) {
        return -1;
    }
    if (read_settings(v, g, err)) return -1;
    dw_lookup x;
    if (dw_lookup_build(&x, v->token, v->n_token, err)) return -1;
    if (v->eot < 0) v->eot = dw_vocab_find_eot(&x);
    mark_controls(v, &x);
    dw_lookup_release(&x);
    return 0;
}

int dw_vocab_from_gguf(dw_vocab *v, const dw_gguf *g, dw_err *err) {
    *v = (dw_vocab){0};
    if (!read_gguf(v, g, err)) return 0;
    dw_vocab_release(v);
    return dw_fail_in(err, "'%s'", dw_gguf_path(g));
}

static void write_id(dw_gguf_writer *w, const char *key, int32_t id) {
    if (id >= 0) dw_gguf_set_u32(w, key, (uint32_t)id);
}

void dw_vocab_write(const dw_vocab *v, dw_gguf_writer *w) {
    dw_gguf_set_text(w, KEY "model", v->model);
    if (v->merge) dw_gguf_set_text(w, KEY "pre", v->pre);
    dw_gguf_set_strs(w, KEY "tokens", v->token, v->n_token);
    if (v->score) dw_gguf_set_array(w, KEY "scores", DW_KV_F32, v->score, v->n_token);
    dw_gguf_set_array(w, KEY "token_type", DW_KV_I32, v->type, v->n_token);
    if (v->merge) dw_gguf_set_strs(w, KEY "merges", v->merge, v->n_merge);
    write_id(w, KEY "bos_token_id", v->bos);
    write_id(w, KEY "eos_token_id", v->eos);
    write_id(w, KEY "eot_token_id", v->eot);
    write_id(w, KEY "eom_token_id", v->eom);
    write_id(w, KEY "unknown_token_id", v->unk);
    write_id(w, KEY "padding_token_id", v->pad);
    dw_gguf_set_bool(w, KEY "add_bos_token", v->add_bos);
    dw_gguf_set_bool(w, KEY "add_eos_token", v->add_eos);
    if (v->score) dw_gguf_set_bool(w, KEY "add_space_prefix", v->add_space_prefix);
    if (v->chat_template.ptr) dw_gguf_set_str(w, "tokenizer.chat_template", v->chat_template.ptr, v->chat_template.len);
}
